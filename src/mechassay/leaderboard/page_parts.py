"""Parts of a board's pages: what is said of a cell, links between the files, what a reader chooses.

A cell is shown with its number, interval, controls and conditions, and with where it is from.
`Links` are the addresses of pages, data and records from the page that names them. The script of
a page hides places and rows, computes averages and scores of what is left with all digits
(`table_data`), sorts, and shows the paired difference of two rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from mechassay.leaderboard.board import Board, BoardPlace, Pairs
from mechassay.leaderboard.cells import BoardCell
from mechassay.results.page import NOTHING, TextTable
from mechassay.results.text import number_or_dash
from mechassay.runs.cells import cell_name
from mechassay.utils.display import interval, number


@dataclass(frozen=True)
class Links:
    """Addresses of files of the board.

    Attributes:
        up: the way from the page to the first one.
    """

    up: str = ""

    def board(self, name: str) -> str:
        return f"{self.up}{name}.html"

    def row(self, board: str, row: str) -> str:
        return f"{self.up}rows/{board}/{quote(cell_name(row))}.html"

    def data(self, board: str, kind: str) -> str:
        return f"{self.up}data/{board}.{kind}"

    def record(self, sha256: str) -> str:
        return f"{self.up}records/{sha256}.json"


def link(address: str, text: str) -> Markup:
    """A link; both are escaped."""
    return Markup('<a href="{}">{}</a>').format(address, text)


MARK = "✓"
"""Beside a number that somebody recomputed."""
BY_CHANCE = "not told from random"
"""Under an area that the best of as many random rankings as there are rows may have."""
OVERSHOOT = "overshoot"
"""Under a CPR above 1."""


@dataclass(frozen=True)
class Repetition:
    """That somebody recomputed a record.

    Attributes:
        text: what came of it, when and where.
        value: the number of one cell of the record, and that cell.
    """

    agrees: bool
    text: str
    value: str = ""
    cell: str = ""


@dataclass(frozen=True)
class CellNotes:
    """What else a page says of a cell: facts by name, and commands that make it again."""

    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()


def numbers_markup(value: float, low: float, high: float, reason: str = "") -> Markup:
    """A number with its interval, or why it has none, under it in small print."""
    value_text, bracket, ends = interval(value, low, high).partition(" [")
    small = f"[{ends}" if bracket else ""
    return _with_small(NOTHING if math.isnan(value) else value_text, small, reason)


def cell_markup(
    cell: BoardCell, again: Sequence[Repetition], beside: Collection[str], n_rows: int
) -> Markup:
    """A cell as a table has it: the number, under it the interval, controls, what is lacking.

    Args:
        beside: controls that do not stand in rows of their own.
        n_rows: rows of its place, of which it may be the best by chance.
    """
    value_text, bracket, ends = number_text(cell, again).partition(" [")
    ends, _, rest = ends.partition("]")
    rest = f"[{ends}]{rest}" if bracket else ""
    held = [
        f"{name}\u00a0{number_or_dash(value)}".replace(" ", "\u00a0")
        for name, value in cell.controls.items()
        if name in beside
    ]
    by_chance = cell.beats_random is not None and cell.beats_random < n_rows
    notes = [OVERSHOOT] if cell.column == "cpr" and cell.value > 1 else []
    notes += [BY_CHANCE] if by_chance else []
    return _with_small(value_text, rest, ", ".join(held), *notes, cell.reason)


def _with_small(text: str, small: str, *notes: str) -> Markup:
    parts = [Markup('<span class="interval">{}</span>').format(small)] if small else []
    parts += [
        Markup('<span class="interval note">{}</span>').format(note) for note in notes if note
    ]
    return Markup(" ").join([Markup("{}").format(text), *parts])


def number_text(cell: BoardCell, again: Sequence[Repetition]) -> str:
    """A cell's number with its interval; marked if it was recomputed, or only reported."""
    text = interval(cell.value, cell.low, cell.high)
    if cell.origin == "as reported":
        return f"{text} (as reported)"
    held = any(repetition.agrees for repetition in again)
    value, bracket, rest = text.partition(" [")
    return f"{value}{' ' + MARK if held else ''}{bracket}{rest}"


def cell_facts(
    cell: BoardCell, again: Sequence[Repetition], links: Links, notes: CellNotes
) -> TextTable:
    """All that is known of a cell."""
    rows: list[tuple[str, str]] = [
        ("value", interval(cell.value, cell.low, cell.high)),
        *([("lacking", cell.reason)] if cell.reason else []),
        *([("test examples", f"{cell.examples:,}")] if cell.examples else []),
        ("n", f"{cell.n:,}, {cell.n_undefined:,} undefined"),
        *((f"control: {name}", number(value)) for name, value in cell.controls.items()),
        ("made with", cell.settings or NOTHING),
        *((name, value) for name, value in cell.conditions.items()),
        ("origin", cell.source or cell.origin),
        ("seconds", number_or_dash(cell.seconds)),
        ("made", cell.created or NOTHING),
        *notes.facts,
    ]
    rows += [
        ("earlier", f"{number(old.value)}, {old.created[:10]}, {old.settings or NOTHING}")
        for old in cell.earlier
    ]
    if cell.private:
        rows.append(("record", "kept back: its examples are private"))
    elif cell.sha256:
        download = Markup('<a href="{}" download>{}</a>')
        rows.append(("record", download.format(links.record(cell.sha256), cell.sha256[:16])))
    for repetition in again:
        value = (
            f"{repetition.value}; " if repetition.value and repetition.cell == cell.full_id else ""
        )
        rows.append(("recomputed", f"{value}{repetition.text}"))
    return TextTable.of("", ("", ""), rows, words=True)


EQUAL = 1e-5
"""Differences within it are rounding: f is a ratio of differences of logits in fp32."""


def resolved(low: float, high: float) -> bool:
    """Whether an interval of a difference is on one side of 0."""
    return low > EQUAL or high < -EQUAL


def table_data(
    board: Board,
    name: str,
    places: Sequence[BoardPlace],
    comparable: Sequence[BoardPlace],
    rows: Sequence[str],
    pairs: Sequence[Pairs],
) -> dict[str, object]:
    """What the script computes with for one table: all digits, NaN as null.

    Args:
        name: of the column.
        comparable: the places that are averaged before the reader chooses.
        pairs: differences of rows, of each place.
    """

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def values(row: str) -> list[float | None]:
        cells = [board.cell(row, place, name) for place in places]
        return [None if cell is None else plain(cell.value) for cell in cells]

    def ends(row: str) -> list[list[float | None]]:
        cells = [board.cell(row, place, name) for place in places]
        return [[] if cell is None else [plain(cell.low), plain(cell.high)] for cell in cells]

    return {
        "column": name,
        "better": board.rules.column(name).better,
        "places": [
            dict(place.roles)
            | {"title": place.title, "shown": place in comparable, "examples of": place.examples_of}
            for place in places
        ],
        "rows": {row: values(row) for row in rows},
        "ends": {row: ends(row) for row in rows},
        "controls": {
            control_row(control): [plain(at.get(place, math.nan)) for place in places]
            for control, at in board.shared_controls(name).items()
        },
        "pairs": [
            [
                [a, b, *map(plain, (e.value, e.low, e.high)), resolved(e.low, e.high)]
                for (a, b), e in differences.items()
            ]
            for differences in pairs
        ],
    }


def control_row(name: str) -> str:
    """What the row of a control is called."""
    return f"control: {name}"


def controls(board: Board, data: Sequence[dict[str, object]]) -> Markup:
    """The data of the page's tables, and what its script listens to, folded: numbers come first."""
    # No "<" in the data can end the element that holds it.
    text = json.dumps(data).replace("<", "\\u003c")
    return Markup(
        '<script type="application/json" id="board">{}</script>'
        "<details><summary>Choose rows and places, or compare two rows</summary>"
        '<p><label>Rows <input id="filter" type="search" placeholder="Filter"></label></p>{}{}'
        '<p><label>Compare <select id="first"></select></label>'
        ' <label>with <select id="second"></select></label></p>'
        '<div id="difference" role="status"></div></details>'
    ).format(
        Markup(text),
        Markup("").join(_role_boxes(board, role) for role in board.rules.place),
        _condition_boxes(board),
    )


def _role_boxes(board: Board, role: str) -> Markup:
    """A box for each value of a role."""
    values = sorted({cell.place[role] for cell in board.cells if role in cell.place})
    boxes = Markup(" ").join(_box(role, value) for value in values)
    return Markup("<fieldset><legend>{}</legend>{}</fieldset>").format(role, boxes)


def _condition_boxes(board: Board) -> Markup:
    """A box for each place of those that share a task and model; one of them is ticked."""
    ticked: dict[str, bool] = {}
    for name in board.columns:
        for kind, places in board.kinds(name).items():
            comparable = board.comparable(name, kind)
            roles = [place.roles for place in places]
            for place in places:
                if roles.count(place.roles) > 1:
                    ticked[place.title] = ticked.get(place.title, False) or place in comparable
    if not ticked:
        return Markup("")
    boxes = Markup(" ").join(_box("title", title, on) for title, on in ticked.items())
    return Markup(
        "<details><summary>Conditions: {} of {} columns</summary>"
        "<fieldset><legend>conditions</legend>{}</fieldset></details>"
    ).format(sum(ticked.values()), len(ticked), boxes)


def _box(role: str, value: str, ticked: bool = True) -> Markup:
    return Markup(
        '<label><input type="checkbox" class="place" data-role="{}" value="{}"{}> {}</label>'
    ).format(role, value, Markup(" checked") if ticked else "", value)
