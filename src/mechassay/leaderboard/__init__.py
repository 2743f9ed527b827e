"""Leaderboards that recompute themselves: boards of records, their pages, and any cell again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.leaderboard.board import Board, BoardPlace, paired_differences
    from mechassay.leaderboard.cells import BoardCell, read_cells
    from mechassay.leaderboard.folder import BoardsFolder, StoredBoards
    from mechassay.leaderboard.mib_results import read_mib_results, write_mib_results
    from mechassay.leaderboard.pages import BoardPages
    from mechassay.leaderboard.recomputation import Recomputation, recompute
    from mechassay.leaderboard.rules import BoardColumn, BoardRules, board_rules

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
    "write_mib_results",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "board": "Board BoardPlace paired_differences",
        "cells": "BoardCell read_cells",
        "folder": "BoardsFolder StoredBoards",
        "mib_results": "read_mib_results write_mib_results",
        "pages": "BoardPages",
        "recomputation": "Recomputation recompute",
        "rules": "BoardColumn BoardRules board_rules",
    },
)
