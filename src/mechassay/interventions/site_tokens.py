"""Which tokens of an interchange a site is at: of the base and, beside each, of the source.

    last, a column's name    the columns that the batch has for it
    a number                 that token of both prompts, from 0; negative from their ends
    all                      every token, the i-th of the base beside the i-th of the source; both
                             prompts of a row then have as many tokens

Tokens of a label that is teacher-forced after the base belong to no site.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.errors import BadPairs
from mechassay.interchange import LAST, InterchangeBatch
from mechassay.interventions.site import ALL, Site


@dataclass(frozen=True, eq=False)
class SiteTokens:
    """Tokens at a site, in the order of the rows; one a row unless the position is "all".

    Attributes:
        row: of the batch.
        base, source: columns of the two tables.
    """

    row: Int[Tensor, "m"]
    base: Int[Tensor, "m"]
    source: Int[Tensor, "m"]

    def __len__(self) -> int:
        return len(self.row)

    def to(self, device: torch.device) -> SiteTokens:
        """The same with its tensors on `device`."""
        return SiteTokens(self.row.to(device), self.base.to(device), self.source.to(device))


def site_tokens(site: Site, batch: InterchangeBatch) -> SiteTokens:
    """The tokens of a site in a batch.

    Raises:
        UnknownName, BadPairs: a column that the batch, or a prompt, lacks; a token that a prompt
            does not have; "all" of prompts of different lengths.
    """
    rows = torch.arange(len(batch), device=batch.base.device)
    if isinstance(site.position, str) and site.position != ALL:
        return SiteTokens(rows, *batch.column(site.position))
    ends = batch.column(LAST)
    begins = (
        batch.base.shape[1] - batch.base_lengths,
        batch.source.shape[1] - batch.source_lengths,
    )
    lengths = ends[0] + 1 - begins[0], ends[1] + 1 - begins[1]
    if site.position == ALL:
        _check_equal(site, batch, lengths[0] != lengths[1])
        place = torch.arange(int(lengths[0].max()), device=rows.device)
        row, at = (place < lengths[0][:, None]).nonzero(as_tuple=True)
        return SiteTokens(row, begins[0][row] + at, begins[1][row] + at)
    number = int(site.position)
    starts = begins if number >= 0 else (ends[0] + 1, ends[1] + 1)
    for name, length in zip(("base", "source"), lengths, strict=True):
        lacking = (length <= number) if number >= 0 else (length < -number)
        if bool(lacking.any()):
            row = int(lacking.int().argmax())
            raise BadPairs(
                f"Site {site}: pair {batch.ids[row]} has {int(length[row])} tokens in its {name},"
                f" and no token {number}."
            )
    return SiteTokens(rows, starts[0] + number, starts[1] + number)


def _check_equal(site: Site, batch: InterchangeBatch, unequal: Tensor) -> None:
    if bool(unequal.any()):
        raise BadPairs(
            f"Site {site}: the prompts of pair {batch.ids[int(unequal.int().argmax())]} have"
            " different lengths, so their tokens are not matched; name a position."
        )
