"""A part of a board: what a reader chose to see."""

from __future__ import annotations

from dataclasses import dataclass

from mechassay.errors import one_of
from mechassay.leaderboard.board import Board


@dataclass(frozen=True)
class BoardChoice:
    """What of a board a page shows.

    Attributes:
        roles: values by role, such as models; a role without any is not restricted.
        words: that the names of rows have to contain.
        every: all rows, however many.
    """

    roles: tuple[tuple[str, frozenset[str]], ...] = ()
    words: str = ""
    every: bool = False

    def part_of(self, board: Board) -> Board:
        """The cells at the chosen places, of all rows: words do not change what is averaged.

        Raises:
            UnknownName: the board has no such role, or no such value of it.
        """
        for role, values in self.roles:
            held = {cell.place[role] for cell in board.cells if role in cell.place}
            for value in sorted(values):
                one_of(one_of("role", role, board.rules.place), value, held)
        if not self.roles:
            return board
        return Board(
            board.rules,
            tuple(
                cell
                for cell in board.cells
                if all(not values or cell.place.get(role) in values for role, values in self.roles)
            ),
        )

    def shows(self, row: str) -> bool:
        """Whether a row has all of the words."""
        return all(word in row.lower() for word in self.words.lower().split())
