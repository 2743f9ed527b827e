"""What a reader of a board's page chooses with, and the data that its script computes with.

The script hides places and rows, computes averages and scores of what is left with all digits,
sorts, and shows the paired difference of two rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from markupsafe import Markup

from mechassay.leaderboard.board import Board, BoardPlace
from mechassay.leaderboard.paired import Pairs

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
