"""What stood in a cell of a board before, and what stands beside it under other conditions."""

from __future__ import annotations

from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.facts import record_link
from mechassay.leaderboard.links import Links, history_link, link
from mechassay.report.page import Block, Text
from mechassay.report.tables import NOTHING, TextTable
from mechassay.text import interval, number


def cell_history(board: Board, cell: BoardCell, links: Links) -> tuple[Block, ...]:
    """The numbers of a cell, the newest first, and those that are not compared with them."""
    lines = [(cell.created, interval(cell.value, cell.low, cell.high), cell.settings, cell.sha256)]
    lines += [(old.created, number(old.value), old.settings, old.sha256) for old in cell.earlier]
    rows = [
        (
            created[:19] or NOTHING,
            value,
            settings or NOTHING,
            record_link(links, sha256) if sha256 and not cell.private else NOTHING,
        )
        for created, value, settings, sha256 in lines
    ]
    said = f"{board.rules.column(cell.column).says} The newest number stands on the board."
    head = ("made", "value", "method", "record")
    blocks: list[Block] = [Text(said), TextTable.of("", head, rows, words=True)]
    others = [each for each in board.cells if each.id == cell.id and each is not cell]
    if others:
        beside = [
            (
                each.created[:19] or NOTHING,
                interval(each.value, each.low, each.high),
                f"{each.examples:,}" if each.examples else NOTHING,
                link(history_link(board.rules.name, each.full_id), board.place_of(each).differs),
            )
            for each in others
        ]
        head = ("made", "value", "examples", "conditions")
        said = "Numbers under other conditions are not compared with these."
        blocks += [Text(said, "soft"), TextTable.of("", head, beside, words=True)]
    return tuple(blocks)
