"""A board in a browser: filtered, sorted and compared with keys alone, read out, never cut."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mechassay as ma
from helpers.web import web_module
from mechassay.leaderboard import Board, BoardCell, BoardPages, BoardsFolder
from mechassay.leaderboard.board import sigmoid
from mechassay.leaderboard.rules import rules_of
from mechassay.utils.display import SILENT

chromium, keys, pages = web_module("chromium"), web_module("keyboard"), web_module("test_pages")
PROGRAM = chromium.executable()
FLAGS = tuple(flag for flag in chromium.FLAGS if "virtual-time" not in flag)
pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; see `make test-web`"),
]
EAP = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.trim().startsWith('eap'))"


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> BoardsFolder:
    folder = tmp_path_factory.mktemp("boards")
    experiment = ma.CircuitsExperiment(
        models=("truth-ioi", "truth-induction"),
        methods=("eap", "random"),
        train_limit=6,
        limit=8,
    )
    ma.run(experiment, folder / "runs" / "own", progress=SILENT)
    made = BoardsFolder.of(folder / "runs", folder / "board")
    made.write()
    return made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    assert PROGRAM is not None
    with keys.keyboard(PROGRAM, FLAGS, tmp_path) as browser:
        yield browser


def open_choices(page: Any, boards: BoardsFolder) -> None:
    """The board's page, its fold of filters opened with a key."""
    page.open(boards.path / "circuits.html")
    assert page.value("document.querySelector('main details').open") is False
    page.tab_to("summary")
    page.press("Enter")
    assert page.value("document.querySelector('main details').open") is True


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    assert PROGRAM is not None
    return chromium.Browser(PROGRAM, tmp_path).evaluate


def shown(page: Any, cell: int) -> float:
    return float(page.value(f"{EAP}.cells[{cell}].innerText").split()[0])


def test_averages_follow_what_is_shown(boards: BoardsFolder, page: Any) -> None:
    board = boards.boards["circuits"]
    open_choices(page, boards)
    averaged = "document.querySelector('.averaged').innerText"
    assert page.value(averaged) == "of 2 places"
    assert math.isclose(shown(page, 1), board.average("eap", "cma"), rel_tol=1e-2)
    assert math.isclose(shown(page, 2), board.score("eap", "cma"), rel_tol=1e-2)
    # Without the model of truth-induction one place is left, and its number is the average.
    page.tab_to("input.place[value=truth-induction]")
    page.press(" ")
    left = board.find("eap/truth-ioi/truth-ioi/cma").value
    assert math.isclose(shown(page, 1), left, rel_tol=1e-2)
    assert math.isclose(shown(page, 2), sigmoid(left), rel_tol=1e-2)
    assert page.value(averaged) == "of 1 place"
    assert page.value(f"{EAP}.cells[3].hidden") is True
    assert page.value(f"{EAP}.cells[4].hidden") is False


def test_intervals_and_controls_follow_what_is_shown(boards: BoardsFolder, page: Any) -> None:
    board = boards.boards["circuits"]
    rows = "document.querySelectorAll('table')[2].tBodies[0].rows"
    texts = f"[...{rows}].map(row => [...row.cells].map(cell => cell.innerText))"
    page.open(boards.path / "circuits.html")
    # What the script writes is what stood there before.
    drawn = re.sub(r"<script>.*?</script>", "", page_text(boards), flags=re.DOTALL)
    (boards.path / "still.html").write_text(drawn)
    moved = page.value(texts)
    page.open(boards.path / "still.html")
    still = page.value(texts)
    assert [row[:3] for row in moved] == [row[:3] for row in still]
    assert [row[0] for row in still[-2:]] == ["control: random", "control: random-paths"]
    # With one place, the interval of the average is that of its number.
    open_choices(page, boards)
    page.tab_to("input.place[value=truth-induction]")
    page.press(" ")
    [row] = [row for row in page.value(texts) if row[0] == "eap"]
    ends = [row[n].split("[")[1].split("]")[0] for n in (1, 4)]
    assert ends[0] == ends[1]
    sort = "document.querySelectorAll('table')[2].tHead.rows[0].cells[2]"
    page.value(f"{sort}.querySelector('button').click()")
    assert page.value(f"{sort}.ariaSort") == "descending"
    names = [row[0].split("\n")[0] for row in page.value(texts)]
    places = [place for place in board.places("cmd") if place.names == ["truth-ioi"]]
    assert names[0] == max(("eap", "random"), key=lambda each: board.score(each, "cmd", places))
    assert names[-2:] == ["control: random", "control: random-paths"]


def test_tables_of_two_kinds_of_models_are_averaged_apart(tmp_path: Path, page: Any) -> None:
    numbers = {"gpt2": 0.5, "truth-ioi": 3.0, "truth-induction": 1.0}
    cells = [
        BoardCell(
            board="circuits",
            column="cpr",
            version=1,
            row="eap",
            place={"model": model, "task": "x"},
            value=value,
        )
        for model, value in numbers.items()
    ]
    board = Board.of(rules_of("circuits"), cells)
    file = tmp_path / "both.html"
    file.write_text(BoardPages({"circuits": board}, lambda _: None).board("circuits"), "utf-8")
    page.open(file)
    averages = (
        "[...document.querySelectorAll('tbody tr')].slice(0, 2).map(r => r.cells[1].innerText)"
    )
    assert [text.split()[0] for text in page.value(averages)] == ["0.50", "2.00"]
    page.tab_to("summary")
    page.press("Enter")
    page.tab_to("input.place[value=truth-induction]")
    page.press(" ")
    assert [text.split()[0] for text in page.value(averages)] == ["0.50", "3.00"]
    counts = "[...document.querySelectorAll('.averaged')].map(small => small.innerText)"
    assert page.value(counts) == ["of 1 place"] * 4


def page_text(boards: BoardsFolder) -> str:
    return (boards.path / "circuits.html").read_text("utf-8")


def test_rows_are_filtered_and_sorted_with_keys(boards: BoardsFolder, page: Any) -> None:
    open_choices(page, boards)
    page.tab_to("#filter")
    page.write("rand")
    assert page.value(f"{EAP}.hidden") is True
    page.open(boards.path / "circuits.html")
    page.tab_to("thead button")
    first = "document.querySelector('tbody tr .row-name').innerText"
    page.press("Enter")
    one = page.value(first)
    page.press("Enter")
    assert {one, page.value(first)} == {"eap", "random"}


def test_two_rows_are_compared(boards: BoardsFolder, page: Any) -> None:
    open_choices(page, boards)
    for name in ("first", "second"):
        row = "eap" if name == "first" else "random"
        page.tab_to(f"#{name}")
        page.write(row)
        assert page.value(f"document.querySelector('#{name}').value") == row
    said = page.value("document.querySelector('#difference').innerText")
    assert said.startswith("eap less random")
    offered = (
        f"[...document.querySelector('#{name}').options].filter(o => !o.hidden).map(o => o.value)"
        for name in ("first", "second")
    )
    assert [page.value(names) for names in offered] == [["", "eap"], ["", "random"]]
    board = boards.boards["circuits"]
    names = (f"{row}/truth-ioi/truth-ioi/cpr" for row in ("eap", "random"))
    less = board.find(next(names)).value - board.find(next(names)).value
    line = next(line for line in said.splitlines() if line.startswith("cpr, truth-ioi:"))
    assert math.isclose(float(line.split(": ")[1].split(" ")[0]), less, rel_tol=1e-2)
    assert line.endswith(("(eap is better)", "(random is better)", "(not resolved)"))


def test_numbers_stand_on_the_first_screen_of_a_phone(
    boards: BoardsFolder, look: Callable[..., Any]
) -> None:
    answer = "document.querySelector('p.verdict')"
    where = f"[{answer}.getBoundingClientRect().bottom, {answer}.textContent]"
    bottom, text = look(page_text(boards), where, width=390)
    assert bottom < 700 and re.search(r"best average, -?[0-9.]+ \[", text)


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("name", ["index", "circuits", "rows/circuits/eap"])
def test_nothing_of_a_board_is_cut(
    boards: BoardsFolder, look: Callable[..., Any], name: str, width: int
) -> None:
    text = (boards.path / f"{name}.html").read_text("utf-8")
    found = look(text, pages.CUT, width=width)
    assert found["page"] <= width and found["loose"] == [] and found["uncued"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "circuits", "rows/circuits/eap"])
def test_axe_finds_nothing_in_a_board(
    boards: BoardsFolder, look: Callable[..., Any], name: str, scheme: str
) -> None:
    text = (boards.path / f"{name}.html").read_text("utf-8")
    found = look(text, pages.axe_script(), scheme=scheme)
    assert found["said"] == [] and found["passed"] > 10
