"""Pages of boards."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import mechassay as ma
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.leaderboard import Board, BoardCell, BoardPages, BoardsFolder, recompute
from mechassay.leaderboard.cells import NO_VALUES, read_cells
from mechassay.leaderboard.mib_results import write_mib_results
from mechassay.leaderboard.pages import PAIRED, UNCHECKED
from mechassay.leaderboard.rules import rules_of
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import SILENT


def data_of(page: str) -> list[dict[str, Any]]:
    """What the script of a page computes with, an entry a table."""
    text = re.search(r'id="board">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    return json.loads(text[1])


def made(row: str, model: str, value: float, **more: object) -> BoardCell:
    about = {"board": "circuits", "column": "cpr", "version": 1, "sha256": f"{row}{model}"}
    place = {"model": model, "task": "ioi"}
    return BoardCell.model_validate({**about, "row": row, "place": place, "value": value, **more})


def page_of(*cells: BoardCell, **more: Any) -> str:
    board = Board.of(rules_of("circuits"), cells)
    return BoardPages({"circuits": board}, lambda _: None, **more).board("circuits")


def test_the_folder_has_every_page_and_every_record(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    index = boards.write()
    assert "circuits.html" in index.read_text()
    board = boards.boards["circuits"]
    page = tmp_path / "circuits.html"
    for row in board.rows():
        assert (tmp_path / "rows" / "circuits" / f"{row}.html").is_file()
        assert f"rows/circuits/{row}.html" in page.read_text()
    for cell in board.cells:
        assert (tmp_path / "records" / f"{cell.sha256}.json").is_file()
    row = unescape((tmp_path / "rows" / "circuits" / "eap.html").read_text())
    assert "mechassay circuits run" in row
    cell = board.find("eap/truth-ioi/truth-ioi/cpr")
    assert f"mechassay leaderboard recompute circuits {cell.full_id} --runs" in row


def test_the_script_has_all_digits_and_the_differences(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    boards.write()
    data, board = data_of((tmp_path / "circuits.html").read_text()), boards.boards["circuits"]
    assert [table["column"] for table in data] == ["cma", "auroc", "cmd", "cpr"]
    for table in data:
        [place] = board.places(table["column"])
        for row, values in table["rows"].items():
            cell = board.cell(row, place, table["column"])
            assert cell is not None and values == [cell.value]
    [pairs] = data[0]["pairs"]
    [(first, second, less, low, high, resolved)] = pairs
    values = data[0]["rows"]
    assert less == pytest.approx(values[first][0] - values[second][0])
    assert low <= less <= high and resolved is (low > 0 or high < 0)
    # Areas have paired differences; the AUROC is one number of a ranking.
    assert data[2]["pairs"] != [[]] and data[1]["pairs"] == [[]]


def test_names_with_markup_stay_text(runs: Path, tmp_path: Path) -> None:
    rules = rules_of("circuits")
    bad = "</script><script>alert(1)</script>"
    cells = [
        cell.model_copy(update={"row": bad, "origin": "as reported", "file": "", "sha256": ""})
        for cell in read_cells(rules, runs)[0]
        if cell.row == "eap"
    ]
    BoardsFolder.of(runs, tmp_path, cells).write()
    for page in tmp_path.rglob("*.html"):
        assert "<script>alert" not in page.read_text()
    assert bad in data_of((tmp_path / "circuits.html").read_text())[0]["rows"]


def test_a_number_that_was_recomputed_has_a_mark(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path / "board")
    boards.write()
    assert "✓" not in (tmp_path / "board" / "circuits.html").read_text()
    cell = boards.boards["circuits"].find("eap/truth-ioi/truth-ioi/cpr")
    found = recompute(cell, runs, tmp_path / "again", progress=SILENT)
    folder = tmp_path / "board" / "recomputed"
    folder.mkdir()
    (folder / "one.json").write_text(found.model_dump_json())
    boards.write()
    assert "✓" in (tmp_path / "board" / "circuits.html").read_text()
    (folder / "one.json").write_text(found.model_copy(update={"largest": 1.0}).model_dump_json())
    boards.write()
    assert "✓" not in (tmp_path / "board" / "circuits.html").read_text()
    assert (
        "numbers of the record differ"
        in (tmp_path / "board" / "rows" / "circuits" / "eap.html").read_text()
    )
    (folder / "one.json").write_text("{}")
    with pytest.raises(BadFile, match="no recomputation"):
        boards.write()


def test_two_files_that_report_one_number_are_refused(runs: Path, tmp_path: Path) -> None:
    [cell, *_] = read_cells(rules_of("circuits"), runs)[0]
    reported = cell.model_copy(update={"origin": "as reported", "file": "", "sha256": ""})
    with pytest.raises(BadUsage, match="Two files report"):
        BoardsFolder.of(runs, tmp_path, [reported, reported])


def test_private_examples_leave_nothing_on_a_page(tmp_path: Path) -> None:
    experiment = ma.CircuitsExperiment(
        models=("truth-ioi",),
        methods=("eap",),
        train_limit=6,
        split="private",
        limit=8,
        private_seed=7,
    )
    ma.run(experiment, tmp_path / "runs" / "own", progress=SILENT)
    [file] = (tmp_path / "runs" / "own" / "records").rglob("eap.json")
    digest = json.loads(file.read_text())["provenance"]["data_hash"]
    boards = BoardsFolder.of(tmp_path / "runs", tmp_path / "board")
    boards.write()
    for page in (tmp_path / "board").rglob("*"):
        assert not page.is_file() or digest not in page.read_text()
    assert list((tmp_path / "board" / "records").glob("*")) == []
    row = (tmp_path / "board" / "rows" / "circuits" / "eap.html").read_text()
    assert "8 private examples" in row and "leaderboard recompute" not in row
    assert not write_mib_results(boards.boards["circuits"], tmp_path / "runs", tmp_path / "mib")


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="no record that a board reads"):
        BoardsFolder.of(tmp_path, tmp_path / "board")
    with pytest.raises(BadFile, match="no such folder"):
        BoardsFolder.of(tmp_path / "none", tmp_path / "board")


def test_a_file_that_cannot_be_read_is_named(runs: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    (copy / "own" / "records" / "broken.json").write_text("{")
    boards = BoardsFolder.of(copy, tmp_path / "board")
    assert len(boards.unreadable) == 1
    assert "broken.json" in boards.write().read_text()


def test_tables_have_the_controls_and_the_intervals_of_averages(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    boards.write()
    page, board = unescape((tmp_path / "circuits.html").read_text()), boards.boards["circuits"]
    rows = re.findall(r'<tr class="control">(.*?)</tr>', page, re.DOTALL)
    # Two of each area, one of AUROC.
    assert [re.sub("<[^>]+>", "", row).split("\n")[1].strip() for row in rows] == [
        *["control: random", "control: random-paths", "control: random"],
        *["control: random", "control: random-paths"] * 2,
    ]
    assert f"{board.find('eap/truth-ioi/truth-ioi/cma').controls['random-paths']:.2f}" in rows[1]
    summary = board.summary("eap", "cma").average
    row = next(each for each in page.split("<tr>") if ">eap</a>" in each)
    assert row.count(f"[{summary.low:.2f}, {summary.high:.2f}]") == 2


def test_controls_of_one_row_alone_stand_in_its_cell(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    rules, changed = rules_of("circuits"), []
    for cell in boards.boards["circuits"].cells:
        own = {"random": 0.5 if cell.row == "eap" else 0.75}
        changed.append(cell.model_copy(update={"controls": own, "reason": "too few <pairs>"}))
    page = BoardPages({"circuits": Board.of(rules, changed)}, lambda _: None).board("circuits")
    assert 'class="control"' not in page and "too few &lt;pairs&gt;" in page
    assert unescape(page).count(">random\u00a00.50<") == 4
    assert unescape(page).count(">random\u00a00.75<") == 4
    assert page.count("controls of its row") == 4


def test_language_models_and_ground_truths_have_a_table_each() -> None:
    numbers = {"gpt2": 0.5, "truth-ioi": 3.0, "truth-mcqa-trained": 2.0}
    controls = {"controls": {"random": 0.25}}
    page = page_of(*(made("eap", model, value, **controls) for model, value in numbers.items()))
    assert [table["places"][0]["model"] for table in data_of(page)] == ["gpt2", "truth-ioi"]
    heads = re.findall(r"<h3>(.*?)</h3>", page)
    assert heads == ["CPR on language models", "CPR on ground truths"]
    plain = [re.sub(r"<[^>]+>", " ", part) for part in page.split("<h3>")[1:]]
    assert "of 1 place " in plain[0] and " 0.50 " in plain[0] and "3.00" not in plain[0]
    assert "of 2 places " in plain[1] and " 2.50 " in plain[1] and "0.50" not in plain[1]
    alone = page_of(made("eap", "truth-ioi", 3.0), made("eap", "truth-mcqa-trained", 2.0))
    assert "<h3>" not in alone and len(data_of(alone)) == 1


def test_a_method_and_a_control_of_one_name_are_told_apart() -> None:
    cells = [made(row, "gpt2", 0.5, controls={"random": 0.25}) for row in ("eap", "random")]
    page = unescape(page_of(*cells))
    assert "control: random</dt>" in page and "the mean of several draws" in page
    assert "The row random is something else: the method of this name" in page
    assert page.count('<span class="interval">as a method</span>') == 1
    assert "something else" not in page_of(cells[0])


def test_numbers_that_no_values_stand_for_are_counted_once() -> None:
    one, other = (made(row, "gpt2", 0.5) for row in ("eap", "random"))
    told = "of 2 numbers were not recomputed: their records hold no values of single examples."
    bare = other.model_copy(update={"warnings": [NO_VALUES]})
    assert page_of(one, bare).count(f"1 {told}") == 1 and told not in page_of(one, other)


def test_which_way_is_better_is_said_of_number_and_score() -> None:
    up, down = page_of(made("a", "gpt2", 1.0)), page_of(made("a", "gpt2", 1.0, column="cmd"))
    assert "Higher is better, and so is a higher score." in up
    assert "Lower is better; the score turns this round, so that a higher score is better." in down
    assert "Lower is" not in up and "Higher is" not in down


def test_every_page_says_what_a_row_was_made_with_and_how_to_compute_it_again(
    runs: Path, tmp_path: Path
) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    boards.keep_artefacts()
    boards.write()
    board, page = boards.boards["circuits"], unescape((tmp_path / "circuits.html").read_text())
    first = f"mechassay leaderboard recompute circuits {board.cells[0].full_id} --board ."
    assert first in page and first in unescape((tmp_path / "index.html").read_text())
    row = unescape((tmp_path / "rows" / "circuits" / "eap.html").read_text())
    for cell in board.cells:
        assert cell.row != "eap" or f"recompute circuits {cell.full_id} --board ." in row
        assert cell.settings in page


def test_settings_that_differ_between_places_are_named() -> None:
    settings = ("site=resid.1@last, k=24, layers=[1, 2]", "site=resid.2@last, k=24, layers=[1, 2]")
    page = page_of(
        made("a", "gpt2", 1.0, settings=settings[0]), made("a", "gpt3", 1.0, settings=settings[1])
    )
    assert "k=24, layers=[1, 2], site by place" in page


def test_what_was_declared_stands_once_on_the_page_of_its_row_as_text() -> None:
    cells = [made(row, model, 1.0) for row in ("own", "eap") for model in ("gpt2", "truth-ioi")]
    facts = {"method": "<b>bold</b> gradients", "url": "javascript:alert(1)", "training": "x" * 300}
    pages = BoardPages(
        {"circuits": Board.of(rules_of("circuits"), cells)},
        lambda _: None,
        declared={"own": facts},
    )
    texts = dict(pages.texts())
    row = texts["rows/circuits/own.html"]
    assert row.count(UNCHECKED) == 1 and row.count("&lt;b&gt;bold&lt;/b&gt; gradients") == 1
    assert row.index(UNCHECKED) < row.index("<h2>") and facts["training"] in row
    assert UNCHECKED not in texts["rows/circuits/eap.html"]
    board = texts["circuits.html"]
    assert "declared, not checked" in board and "method: &lt;b&gt;bold" in board
    assert all("<b>bold" not in text and 'href="javascript' not in text for text in texts.values())
    assert "declared, not checked" not in page_of(*cells)


def test_the_texts_are_all_pages_and_data() -> None:
    pages = BoardPages(
        {"circuits": Board.of(rules_of("circuits"), [made("a", "x", 1.0), made("b", "x", 2.0)])},
        lambda _: None,
    )
    names = [name for name, text in pages.texts() if text]
    assert names[:4] == ["index.html", "circuits.html", "data/circuits.json", "data/circuits.csv"]
    assert set(names[4:]) == {"rows/circuits/a.html", "rows/circuits/b.html"}
    with pytest.raises(UnknownName, match="board 'gym'"):
        pages.board("gym")
    with pytest.raises(UnknownName, match="row 'c'"):
        pages.row("circuits", "c")


def test_the_best_rows_alone_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.leaderboard import pages as module

    compared: list[int] = []

    def paired(_: object, records: dict[str, object]) -> dict[tuple[str, str], Estimate]:
        compared.append(len(records))
        return {("r0", "r1"): Estimate(1.0, 0.5, 1.5)}

    monkeypatch.setattr(module, "paired_differences", paired)
    cells = [made(f"r{n}", "x", float(n)) for n in range(PAIRED + 3)]
    board = Board.of(rules_of("circuits"), cells)
    page = BoardPages({"circuits": board}, lambda _: object()).board("circuits")  # pyright: ignore
    assert compared == [PAIRED] and f"only the {PAIRED} best of {PAIRED + 3}" in page
    assert data_of(page)[0]["pairs"] == [[["r0", "r1", 1.0, 0.5, 1.5, True]]]


def test_a_board_begins_with_its_best_row_and_what_controls_have(
    runs: Path, tmp_path: Path
) -> None:
    BoardsFolder.of(runs, tmp_path).write()
    text = unescape((tmp_path / "circuits.html").read_text())
    first = re.findall(r'<p class="verdict">(.*?)</p>', text)[0]
    assert first.startswith("CMA: eap has the best average, ") and "over 1 place;" in first
    assert "control: random " in first and "better than" not in first, "random is no rival"


def test_a_cpr_that_overshoots_is_no_merit() -> None:
    page = page_of(made("high", "one", 2.4), made("near", "one", 0.98))
    assert (
        "CPR: high has the highest average, 2.40 over 1 place; more than 1 is overshoot, and no"
        " merit; near has 0.98"
    ) in page


@pytest.mark.parametrize(("low", "n_better"), [(0.01, 2), (-0.01, 0)])
def test_the_best_row_is_better_where_the_paired_difference_is_resolved(
    monkeypatch: pytest.MonkeyPatch, low: float, n_better: int
) -> None:
    pairs = {("good", "next"): Estimate(0.1, low, 0.2)}
    monkeypatch.setattr("mechassay.leaderboard.pages.paired_differences", lambda *_: pairs)
    cells = [
        made(row, model, value)
        for row, value in (("good", 0.9), ("next", 0.8))
        for model in ("one", "two")
    ]
    assert (
        "CPR: good has the best average, 0.90 over 2 places; it is better than next (0.80) at"
        f" {n_better} of the 2 where the two were compared example by example."
    ) in page_of(*cells)


def test_rows_that_were_not_compared_are_said_and_one_without_a_number_is_not_best() -> None:
    cells = [made("good", "one", 0.9), made("half", "one", 0.95), made("good", "two", 0.8)]
    assert "CPR: good has the best average, 0.85 over 2 places." in page_of(*cells)
    both = [*cells, made("half", "two", 0.5)]
    assert "half has 0.72; their examples were not compared." in page_of(*both)
    alone = [made("half", "one", 0.95), made("other", "two", 0.8)]
    assert "has the best average" not in page_of(*alone)
