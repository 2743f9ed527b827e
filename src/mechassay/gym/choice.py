"""What is drawn for a sentence: the texts of one region, or of several that go together.

Options that are listed by type differ between base and source, which are of different types: each
draws its own. All others are drawn once, for both. An option that comes twice is drawn twice as
often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mechassay.display import OneLine

Row = tuple[str, ...]
EVERY = ""
"""Stands for all types."""


@dataclass(frozen=True, repr=False)
class Choice(OneLine):
    """One draw.

    Attributes:
        regions: whose texts a row has, in the order of the template.
        rows: options by type; under `EVERY` where they are the same for all types.
    """

    regions: tuple[str, ...]
    rows: Mapping[str, tuple[Row, ...]]

    @property
    def typed(self) -> bool:
        """Whether base and source draw their own."""
        return EVERY not in self.rows

    def options(self, kind: str) -> tuple[Row, ...]:
        """What a sentence of a type may have."""
        return self.rows[kind if self.typed else EVERY]

    def empty(self, region: str) -> bool:
        """Whether a region of this choice may have no text."""
        at = self.regions.index(region)
        return any(not row[at].strip() for rows in self.rows.values() for row in rows)
