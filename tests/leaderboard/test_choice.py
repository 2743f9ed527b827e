"""Parts of boards, and the pages that a server adds: two rows, a cell over time."""

from __future__ import annotations

import json
import math
import re
from html import unescape

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.choice import BoardChoice
from mechassay.leaderboard.pages import PAIRED, SHOWN, BoardPages
from mechassay.leaderboard.rules import rules_of

RULES = rules_of("circuits")


def cell(row: str, model: str, value: float, **more: object) -> BoardCell:
    about = {"board": "circuits", "column": "cpr", "version": 1, "sha256": f"{row}{model}"}
    place = {"model": model, "task": "ioi"}
    return BoardCell.model_validate({**about, "row": row, "place": place, "value": value, **more})


def pages(*cells: BoardCell) -> BoardPages:
    return BoardPages({"circuits": Board.of(RULES, cells)}, lambda _: None, served=True)


BOTH = (cell("a", "x", 1.0), cell("a", "y", 3.0), cell("b", "x", 2.0))


def test_a_part_has_the_cells_that_were_chosen() -> None:
    board = Board.of(RULES, BOTH)
    part = BoardChoice((("model", frozenset({"x"})),)).part_of(board)
    assert [each.id for each in part.cells] == ["a/x/ioi/cpr", "b/x/ioi/cpr"]
    assert part.average("a", "cpr") == 1.0 and board.average("a", "cpr") == 2.0
    # A row that lacked a place has an average once the place is not asked for.
    assert math.isnan(board.average("b", "cpr")) and part.average("b", "cpr") == 2.0
    assert BoardChoice().part_of(board) is board


def test_words_choose_rows_and_not_what_is_averaged() -> None:
    """A row that is tried under rarer conditions has no average, whatever is typed."""
    rare = {"conditions": {"ablation": "zero"}}
    board = (*BOTH[:1], BOTH[2], cell("own", "x", 0.95, **rare), cell("a", "x", 0.9, **rare))
    whole = pages(*board).board("circuits")
    own = pages(*board).board("circuits", BoardChoice(words="OWN"))

    def line(page: str, row: str) -> str:
        found = re.search(rf"<tr[^>]*>(?:(?!</tr>).)*/rows/{row}\".*?</tr>", page, re.DOTALL)
        return found[0] if found else ""

    assert line(whole, "own") == line(own, "own") != ""
    assert line(whole, "a") and not line(own, "a")


def test_roles_and_values_that_are_not_there_are_refused() -> None:
    board = Board.of(RULES, BOTH)
    with pytest.raises(UnknownName, match="model 'z'"):
        BoardChoice((("model", frozenset({"z"})),)).part_of(board)
    with pytest.raises(UnknownName, match="role"):
        BoardChoice((("column", frozenset({"cpr"})),)).part_of(board)


def test_an_empty_part_says_so() -> None:
    assert "No row has all of these words" in pages(*BOTH).board("circuits", BoardChoice(words="q"))


def test_a_page_of_many_rows_shows_the_best_until_it_is_asked_for_all() -> None:
    many = pages(*(cell(f"r{n}", "x", float(n)) for n in range(SHOWN + 5)))
    page, every = many.board("circuits"), many.board("circuits", BoardChoice(every=True))
    assert f"The {SHOWN} best of {SHOWN + 5} rows" in page
    best, worst = f"/rows/r{SHOWN + 4}", "/rows/r0"
    assert f'{best}"' in page and f'{worst}"' not in page
    assert f'{worst}"' in every


def test_two_rows_without_records_are_shown_and_not_compared() -> None:
    page = pages(*BOTH).compared("circuits", "cpr", "a", "b")
    assert "first less second" in page and "not compared" in page
    assert "Choose two rows" in pages(*BOTH).compared("circuits")
    with pytest.raises(BadUsage, match="a twice"):
        pages(*BOTH).compared("circuits", "cpr", "a", "a")
    with pytest.raises(UnknownName, match="row"):
        pages(*BOTH).compared("circuits", "cpr", "a", "c")


def test_the_history_has_what_stood_there_and_what_stands_beside() -> None:
    old, new = (
        cell("a", "x", value, created=f"2026-01-0{day}T00:00:00", sha256=str(day))
        for day, value in ((1, 0.25), (2, 0.75))
    )
    other = cell("a", "x", 0.5, conditions={"examples": "private examples 1"}, private=True)
    page = unescape(pages(old, new, other).history("circuits", new.full_id))
    assert page.index("0.75") < page.index("0.25")
    assert "private examples 1" in page and other.full_id.replace("@", "%40") in page.replace(
        "%2F", "/"
    )
    assert '"/api/records/1.json"' in page
    with pytest.raises(BadUsage, match="several conditions"):
        pages(new, other).history("circuits", new.id)
    private = pages(new, other).history("circuits", other.full_id)
    assert "/api/records/" not in private.split("Numbers under other conditions")[0]


def test_pages_of_folders_have_the_same_names_as_their_texts() -> None:
    files = BoardPages({"circuits": Board.of(RULES, BOTH)}, lambda _: None)
    names = list(files.names())
    assert names[:4] == ["index.html", "circuits.html", "data/circuits.json", "data/circuits.csv"]
    assert set(names[4:]) == {"rows/circuits/a.html", "rows/circuits/b.html"}
    assert all(files.text(name) for name in names)
    assert "<form" not in files.text("circuits.html")
    with pytest.raises(UnknownName, match="page"):
        files.text("rows/circuits/c.html")


def test_a_folder_compares_the_best_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.leaderboard import pages as module
    from mechassay.stats.intervals import Estimate

    seen: list[int] = []

    def paired(_: object, records: dict[str, object]) -> dict[tuple[str, str], Estimate]:
        seen.append(len(records))
        return {("r0", "r1"): Estimate(1.0, 0.5, 1.5)}

    monkeypatch.setattr(module, "paired_differences", paired)
    cells = [cell(f"r{n}", "x", float(n)) for n in range(PAIRED + 3)]
    board = Board.of(RULES, cells)
    page = BoardPages({"circuits": board}, lambda _: object()).board("circuits")  # pyright: ignore
    assert seen == [PAIRED] and f"only the {PAIRED} best of {PAIRED + 3}" in page
    told = re.search(r'id="board">(.*?)</script>', page, re.DOTALL)
    assert told is not None
    assert json.loads(told[1])["cpr"]["pairs"] == [[["r0", "r1", 1.0, 0.5, 1.5, True]]]
