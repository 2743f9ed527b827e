"""Leaderboards that recompute themselves: boards of records, their pages, and any cell again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.leaderboard.board import Board, BoardPlace
    from mechassay.leaderboard.cells import BoardCell
    from mechassay.leaderboard.folder import BoardsFolder, StoredBoards
    from mechassay.leaderboard.pages import BoardPages
    from mechassay.leaderboard.recomputation import Recomputation, recompute
    from mechassay.leaderboard.rules import BoardColumn, BoardRules

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
    "recompute",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "board": "Board BoardPlace",
        "cells": "BoardCell",
        "folder": "BoardsFolder StoredBoards",
        "pages": "BoardPages",
        "recomputation": "Recomputation recompute",
        "rules": "BoardColumn BoardRules",
    },
)
