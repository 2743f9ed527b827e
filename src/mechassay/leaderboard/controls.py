"""What a reader of a board's page chooses with, and the data that its script computes with.

The script hides places and rows, computes averages and scores of what is left with all digits,
sorts, and shows the paired difference of two rows. On a server boxes and fields are a form, which
works without it, and two rows are compared by a page of their own; the boxes of conditions are for
the script alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from mechassay.leaderboard.board import Board, BoardPlace
from mechassay.leaderboard.links import Links
from mechassay.leaderboard.paired import Pairs

EQUAL = 1e-5
"""Differences within it are rounding: f is a ratio of differences of logits in fp32."""


def resolved(low: float, high: float) -> bool:
    """Whether an interval of a difference is on one side of 0."""
    return low > EQUAL or high < -EQUAL


def column_data(
    board: Board,
    name: str,
    places: Sequence[BoardPlace],
    rows: Sequence[str],
    pairs: Sequence[Pairs],
) -> dict[str, object]:
    """What the script computes with: all digits, NaN as null."""

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def values(row: str) -> list[float | None]:
        cells = [board.cell(row, place, name) for place in places]
        return [None if cell is None else plain(cell.value) for cell in cells]

    def ends(row: str) -> list[list[float | None]]:
        cells = [board.cell(row, place, name) for place in places]
        return [[] if cell is None else [plain(cell.low), plain(cell.high)] for cell in cells]

    comparable = board.comparable(name)
    return {
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
                for (a, b), e in each.items()
            ]
            for each in pairs
        ],
    }


def control_row(name: str) -> str:
    """What the row of a control is called."""
    return f"control: {name}"


def controls(
    board: Board,
    data: Mapping[str, object],
    links: Links,
    *,
    whole: Board | None = None,
    words: str = "",
) -> Markup:
    """The data of the page, and what its script listens to.

    Args:
        whole: the board of which this one is a part; the same if not given.
        words: by which rows were chosen.
    """
    name = board.rules.name
    # No "<" in the data can end the element that holds it.
    text = json.dumps(data).replace("<", "\\u003c")
    held = Markup('<script type="application/json" id="board">{}</script>').format(Markup(text))
    boxes = [_role_boxes(board, whole or board, role) for role in board.rules.place]
    boxes.append(_condition_boxes(board))
    rows = Markup(
        '<label>Rows <input id="filter" type="search" name="row" value="{}" placeholder="Filter">'
        "</label>"
    ).format(words)
    if not links.served:
        compare = Markup(
            '<label>Compare <select id="first"></select></label>'
            ' <label>with <select id="second"></select></label>'
        )
        return Markup('{}{}<p>{} {}</p><div id="difference" role="status"></div>').format(
            held, Markup("").join(boxes), rows, compare
        )
    form = Markup(
        '<form method="get" action="{}">{}<p>{} <button>Show</button>'
        ' <a href="{}">Show all</a></p></form>'
    ).format(links.board(name), Markup("").join(boxes), rows, links.board(name))
    return Markup("{}{}{}").format(held, form, compare_form(whole or board))


def compare_form(board: Board, column: str = "", chosen: Sequence[str] = ("", "")) -> Markup:
    """A form that leads to the page of two rows of a server."""
    columns = options([(each, board.rules.column(each).title) for each in board.columns], column)
    rows = [(row, row) for row in board.rows()]
    return Markup(
        '<form method="get" action="/compare"><input type="hidden" name="board" value="{}">'
        '<p><label>Compare <select name="a">{}</select></label>'
        ' <label>with <select name="b">{}</select></label>'
        ' <label>by <select name="column">{}</select></label> <button>Compare</button></p></form>'
    ).format(board.rules.name, options(rows, chosen[0]), options(rows, chosen[1]), columns)


def options(choices: Sequence[tuple[str, str]], chosen: str) -> Markup:
    """The options of a select, by value and text."""
    return Markup("").join(
        Markup('<option value="{}"{}>{}</option>').format(
            value, Markup(" selected") if value == chosen else "", text
        )
        for value, text in choices
    )


def _values(board: Board, role: str) -> list[str]:
    return sorted({cell.place[role] for cell in board.cells if role in cell.place})


def _role_boxes(board: Board, whole: Board, role: str) -> Markup:
    """A box for each value of a role; the script does not listen to those that are not shown."""
    shown = _values(board, role)
    boxes = Markup("").join(
        Markup('<label><input type="checkbox" name="{}" value="{}"{}> {}</label> ').format(
            role,
            value,
            Markup(' class="place" data-role="{}" checked').format(role) if value in shown else "",
            value,
        )
        for value in _values(whole, role)
    )
    return Markup("<fieldset><legend>{}</legend>{}</fieldset>").format(role, boxes)


def _condition_boxes(board: Board) -> Markup:
    """A box for each place of those that share a task and model; one of them is ticked."""
    shown: dict[str, bool] = {}
    for name in board.columns:
        places, comparable = board.places(name), board.comparable(name)
        roles = [place.roles for place in places]
        for place in places:
            if roles.count(place.roles) > 1:
                shown[place.title] = shown.get(place.title, False) or place in comparable
    boxes = Markup("").join(
        Markup(
            '<label><input type="checkbox" class="place" data-role="title" value="{}"{}> {}'
            "</label> "
        ).format(title, Markup(" checked") if on else "", title)
        for title, on in shown.items()
    )
    fold = Markup(
        "<details><summary>Conditions: {} of {} columns</summary>"
        "<fieldset><legend>conditions</legend>{}</fieldset></details>"
    )
    return fold.format(sum(shown.values()), len(shown), boxes) if shown else Markup("")
