"""Leaderboards that recompute themselves: boards of records, their pages, and any cell again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.leaderboard.board import Board as Board
    from mechassay.leaderboard.board import BoardPlace as BoardPlace
    from mechassay.leaderboard.cells import BoardCell as BoardCell
    from mechassay.leaderboard.folder import BoardsFolder as BoardsFolder
    from mechassay.leaderboard.folder import StoredBoards as StoredBoards
    from mechassay.leaderboard.pages import BoardPages as BoardPages
    from mechassay.leaderboard.recomputation import Recomputation as Recomputation
    from mechassay.leaderboard.recomputation import recompute as recompute
    from mechassay.leaderboard.rules import BoardColumn as BoardColumn
    from mechassay.leaderboard.rules import BoardRules as BoardRules


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
