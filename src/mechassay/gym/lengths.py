"""Where base and source of interchanges are not of equal length, region by region.

    longer     the region has another number of tokens in the source than in the base
    shifted    its last token is at another place, counted from the prompt's beginning

Interchanges by columns are right in either case. Reading a vector at the other prompt's place is
wrong wherever a region is shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadPairs
from mechassay.interchange import LAST, InterchangeBatch


@dataclass(frozen=True, eq=False, repr=False)
class RegionLengths(OneLine, Tabular):
    """Tokens of regions in base and source.

    Attributes:
        regions: names, in order.
        base, source: how many tokens each region has, by pair.
        base_end, source_end: the place of its last token, from 0 at the prompt's first.
    """

    regions: tuple[str, ...]
    base: Int[np.ndarray, "n regions"]
    source: Int[np.ndarray, "n regions"]
    base_end: Int[np.ndarray, "n regions"]
    source_end: Int[np.ndarray, "n regions"]

    @property
    def longer(self) -> Bool[np.ndarray, "n regions"]:
        """Whether a region has another number of tokens in the source."""
        return self.base != self.source

    @property
    def shifted(self) -> Bool[np.ndarray, "n regions"]:
        """Whether a region ends at another place in the source."""
        return self.base_end != self.source_end

    @property
    def share(self) -> float:
        """The share of pairs in which any region is shifted."""
        return float(self.shifted.any(axis=1).mean())

    def columns(self) -> dict[str, list[Any]]:
        """A row for each region: mean tokens, and the shares of pairs."""
        return {
            "region": list(self.regions),
            "tokens": ((self.base + self.source).mean(axis=0) / 2).tolist(),
            "longer": self.longer.mean(axis=0).tolist(),
            "shifted": self.shifted.mean(axis=0).tolist(),
        }

    def shown(self) -> dict[str, Any]:
        """What a line says of it."""
        return {"n": len(self.base), "regions": self.regions, "shifted": self.share}

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{tokens:.2f}", f"{longer:.0%}", f"{shifted:.0%}")
            for name, tokens, longer, shifted in zip(*self.columns().values(), strict=True)
        ]
        facts = {"pairs": f"{len(self.base):,}", "shifted anywhere": f"{self.share:.0%}"}
        table = html_table(("region", "tokens", "other length", "shifted"), rows)
        return html_facts("regions", facts, table)


def region_lengths(batch: InterchangeBatch, regions: Sequence[str] | None = None) -> RegionLengths:
    """Lengths and ends of the regions of interchanges.

    Args:
        regions: names of columns; all parts of the prompts by default.

    Raises:
        UnknownName: no such column.
        BadPairs: no regions; a prompt that lacks one.
    """
    every = [name for name in batch.names if "." not in name and name != LAST]
    names = tuple(every if regions is None else regions)
    if not names:
        raise BadPairs("The batch has no regions: its prompts have no spans.")
    ends = [[each.cpu().numpy() for each in batch.column(f"{name}.last")] for name in names]
    firsts = [[each.cpu().numpy() for each in batch.column(f"{name}.first")] for name in names]
    begins = tuple(each.cpu().numpy() for each in batch.starts)
    counts, places = (
        [np.stack([found[side] for found in each], axis=1) for side in (0, 1)]
        for each in (
            [
                [b - a + 1 for a, b in zip(*both, strict=True)]
                for both in zip(firsts, ends, strict=True)
            ],
            [[end - begin for end, begin in zip(both, begins, strict=True)] for both in ends],
        )
    )
    return RegionLengths(names, counts[0], counts[1], places[0], places[1])
