"""Leaderboards that recompute themselves: boards of records, their pages, and any cell again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.leaderboard.board import Board, BoardPlace
    from mechassay.leaderboard.cells import BoardCell, read_cells
    from mechassay.leaderboard.exchange import write_exchange
    from mechassay.leaderboard.folder import BoardsFolder
    from mechassay.leaderboard.pages import BoardPages
    from mechassay.leaderboard.paired import paired_differences
    from mechassay.leaderboard.recomputation import Recomputation, recompute
    from mechassay.leaderboard.reported import read_mib_results
    from mechassay.leaderboard.rules import BoardColumn, BoardRules, board_rules
    from mechassay.leaderboard.stored import StoredBoards

__all__ = [
    "Board",
    "BoardCell",
    "BoardColumn",
    "BoardPages",
    "BoardPlace",
    "BoardRules",
    "BoardsFolder",
    "Recomputation",
    "StoredBoards",
    "board_rules",
    "paired_differences",
    "read_cells",
    "read_mib_results",
    "recompute",
    "write_exchange",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "board": "Board BoardPlace",
        "cells": "BoardCell read_cells",
        "exchange": "write_exchange",
        "folder": "BoardsFolder",
        "pages": "BoardPages",
        "paired": "paired_differences",
        "recomputation": "Recomputation recompute",
        "reported": "read_mib_results",
        "rules": "BoardColumn BoardRules board_rules",
        "stored": "StoredBoards",
    },
)
