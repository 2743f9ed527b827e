"""Counterparts: which features of a dictionary another one has too, and how many by chance.

Decoder rows are matched one to one by their signed cosine (`saes.agreement`). A match counts from a
cosine of .7 on, and where codes are known, only if they correlate by .5 or more: features that
write the same and are active elsewhere are not the same. Of n_a and n_b features with h such
matches,

    shared          2 h / (n_a + n_b): a dictionary that is too wide lacks counterparts too
    by chance       the same against random rows with the mean and covariance of the other's
    above chance    (shared - by chance) / (1 - by chance): 1 if all are shared, 0 for random rows

Chance has rows alone, so it is never too small. The largest of many random cosines is far from 0,
and in few dimensions above .7: no share, and no mean cosine, says anything without its value by
chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.saes.agreement import (
    SHARED,
    matched_rows,
    mean_max_cosine,
    rows_like,
    unit_rows,
)
from mechassay.stats.intervals import Interval, clopper_pearson

DRAWS = 3
"""Random dictionaries that stand for chance."""
SIMULATED_VALUES = 100
TOGETHER = 0.5
"""The correlation of codes from which two features are active in the same values."""


@dataclass(frozen=True, eq=False)
class Counterparts:
    """Features of two dictionaries, matched.

    Attributes:
        n, n_other: features of both.
        cosines: of matches; `rows` and `others` say of which features.
        together: correlations of their codes; NaN where one never varies, None if not known.
        random_shared, random_cosine: by chance: the share, and the mean cosine of matches.
    """

    n: int
    n_other: int
    cosines: Float[Tensor, "k"]
    rows: Int[Tensor, "k"]
    others: Int[Tensor, "k"]
    random_shared: float
    random_cosine: float
    together: Float[Tensor, "k"] | None = None

    @property
    def hits(self) -> int:
        """Matches that count."""
        counted = self.cosines >= SHARED
        if self.together is not None:
            counted &= self.together >= TOGETHER
        return int(counted.sum())

    @property
    def shared(self) -> float:
        """The share of all features that have a counterpart."""
        return dice(float(self.hits), self.n, self.n_other)

    @property
    def above_chance(self) -> float:
        return above(self.shared, self.random_shared)

    def above_chance_interval(self) -> Interval:
        """Over features: Clopper and Pearson's for the share of matches that count."""
        k = len(self.cosines)
        ends = clopper_pearson(float(self.hits), float(k))[:2]
        low, high = (above(dice(end * k, self.n, self.n_other), self.random_shared) for end in ends)
        return Interval(low, high)


def dice(hits: float, n: int, n_other: int) -> float:
    """The share of all features of both dictionaries that have a counterpart."""
    return 2 * hits / (n + n_other)


def above(share: float, chance: float) -> float:
    """A share, with what chance gives as 0; NaN where chance gives all."""
    return (share - chance) / (1 - chance) if chance < 1 else math.nan


def correlations(
    codes: Float[Tensor, "values n"], others: Float[Tensor, "values m"]
) -> Float[Tensor, "n m"]:
    """Pearson's, of each feature with each; NaN where one has the same code for all values."""
    return _standard(codes).mT @ _standard(others)


def paired_correlations(
    codes: Float[Tensor, "values k"], others: Float[Tensor, "values k"]
) -> Float[Tensor, "k"]:
    """Pearson's, of each feature with the one in its place."""
    return (_standard(codes) * _standard(others)).sum(0)


def _standard(codes: Float[Tensor, "values n"]) -> Float[Tensor, "values n"]:
    """Centred columns of length 1."""
    x = codes.float() - codes.float().mean(0)
    return x / x.norm(dim=0)


def counterparts(
    rows: Float[Tensor, "n d"],
    others: Float[Tensor, "m d"],
    drawn: torch.Generator,
    *,
    codes: Float[Tensor, "values n"] | None = None,
    other_codes: Float[Tensor, "values m"] | None = None,
) -> Counterparts | None:
    """Match the rows of two dictionaries; None with fewer than two of either.

    Args:
        codes, other_codes: of the same values.
    """
    if min(len(rows), len(others)) < 2:
        return None
    ours, theirs = unit_rows(rows), unit_rows(others)
    cosines, mine, matched = matched_rows(ours, theirs)
    random = [matched_rows(ours, rows_like(theirs, drawn))[0] for _ in range(DRAWS)]
    together = None
    if codes is not None and other_codes is not None:
        together = paired_correlations(codes[:, mine], other_codes[:, matched])
    chance = [dice(float((x >= SHARED).sum()), len(ours), len(theirs)) for x in random]
    return Counterparts(
        len(ours),
        len(theirs),
        cosines,
        mine,
        matched,
        sum(chance) / DRAWS,
        float(torch.stack(random).mean()),
        together,
    )


def found_again(
    rows: Float[Tensor, "n d"],
    others: Sequence[Float[Tensor, "m d"]],
    drawn: torch.Generator,
    *,
    codes: Float[Tensor, "values n"] | None = None,
    other_codes: Sequence[Float[Tensor, "values m"]] = (),
) -> tuple[Bool[Tensor, "n"], Float[Tensor, "n"]]:
    """Which features have a counterpart in every other dictionary; and how often by chance.

    Args:
        codes, other_codes: of the same values, of every dictionary; without them rows alone count.
    """
    ours = unit_rows(rows)
    found = torch.ones(len(ours), dtype=torch.bool)
    chance = torch.zeros(len(ours))
    pairs = [None] * len(others) if codes is None else [(codes, each) for each in other_codes]
    for other, both in zip(others, pairs, strict=True):
        found &= _has_counterpart(ours, unit_rows(other), both)
    for _ in range(DRAWS):
        by_chance = torch.ones_like(found)
        for other in others:
            by_chance &= _has_counterpart(ours, rows_like(unit_rows(other), drawn))
        chance += by_chance.float() / DRAWS
    return found, chance


def _has_counterpart(
    ours: Tensor, theirs: Tensor, codes: tuple[Tensor, Tensor] | None = None
) -> Bool[Tensor, "n"]:
    cosines, rows, others = matched_rows(ours, theirs)
    counted = cosines >= SHARED
    if codes is not None:
        counted &= paired_correlations(codes[0][:, rows], codes[1][:, others]) >= TOGETHER
    return torch.zeros(len(ours), dtype=torch.bool).index_put((rows,), counted)


def symmetric_mean_max(ours: Float[Tensor, "n d"], theirs: Float[Tensor, "m d"]) -> float:
    """The mean of both means of largest cosines, of unit rows."""
    return (mean_max_cosine(ours, theirs) + mean_max_cosine(theirs, ours)) / 2


def sparse_codes(n: int, drawn: torch.Generator) -> Float[Tensor, "values n"]:
    """Codes to simulate with: of `n` features, a tenth are active in a value."""
    on = torch.rand(SIMULATED_VALUES, n, generator=drawn) < 0.1
    return on * (1 + torch.rand(on.shape, generator=drawn))
