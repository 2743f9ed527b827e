"""How many features two dictionaries share: decoder rows matched one to one.

    cos_ij = <row i of a, row j of b> / |row i| |row j|, signed
    matched: the assignment of rows to rows with the largest sum (Hungarian algorithm), whose mean
    is the matched cosine (Song et al. 2025, 2505.20254); a feature is shared where its cosine is
    at least .7 (Paulo and Belrose 2025)

The largest of many random cosines is far from 0: two random dictionaries of d 576 and 4,096 rows
have a mean largest cosine of .15. So the same numbers of random dictionaries of these sizes stand
beside, and agreement is what is above them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.features.sae import SAE

SHARED = 0.7
"""A cosine from which two features count as the same."""


@dataclass(frozen=True, eq=False, repr=False)
class SeedAgreement(OneLine):
    """Decoder rows of two dictionaries, matched.

    Attributes:
        cosines: of each matched pair, of as many rows as the smaller dictionary has.
        rows, others: which row is matched with which.
        mean_max: the mean over rows of a of the largest cosine with any row of b.
        random_matched, random_mean_max, random_shared: the same of random dictionaries.
    """

    cosines: Float[Tensor, "n"]
    rows: Int[Tensor, "n"]
    others: Int[Tensor, "n"]
    mean_max: float
    random_matched: float
    random_mean_max: float
    random_shared: float

    @property
    def matched(self) -> float:
        """The mean cosine of matched rows."""
        return float(self.cosines.mean())

    @property
    def shared(self) -> float:
        """The share of matched rows whose cosine is at least `SHARED`."""
        return float((self.cosines >= SHARED).double().mean())


def seed_agreement(a: SAE, b: SAE, *, seed: int = 0) -> SeedAgreement:
    """Match the features of two SAEs.

    Args:
        seed: of the random dictionaries.

    Raises:
        BadUsage: dictionaries of values of other widths.
    """
    if a.d_in != b.d_in:
        raise BadUsage(f"SAEs of one width can be compared; got {a.d_in} and {b.d_in}.")
    ours, theirs = unit_rows(a.w_dec), unit_rows(b.w_dec)
    drawn = torch.Generator().manual_seed(seed)
    null = [unit_rows(torch.randn(x.shape, generator=drawn)) for x in (ours, theirs)]
    cosines, rows, others = matched_rows(ours, theirs)
    random, _, _ = matched_rows(*null)
    return SeedAgreement(
        cosines,
        rows,
        others,
        mean_max_cosine(ours, theirs),
        float(random.mean()),
        mean_max_cosine(*null),
        float((random >= SHARED).double().mean()),
    )


def matched_rows(
    ours: Float[Tensor, "n d"], theirs: Float[Tensor, "m d"]
) -> tuple[Float[Tensor, "k"], Int[Tensor, "k"], Int[Tensor, "k"]]:
    """Unit rows matched one to one, as many as the fewer: cosines, and which rows they are of."""
    cosines = ours @ theirs.mT
    rows, others = map(torch.from_numpy, linear_sum_assignment(cosines.numpy(), maximize=True))
    return cosines[rows, others], rows, others


def mean_max_cosine(ours: Float[Tensor, "n d"], theirs: Float[Tensor, "m d"]) -> float:
    """The mean over our unit rows of the largest cosine with any of theirs."""
    return float((ours @ theirs.mT).max(dim=1).values.mean())


def rows_like(rows: Float[Tensor, "n d"], drawn: torch.Generator) -> Float[Tensor, "n d"]:
    """As many random unit rows, normal with the same mean and covariance before their length is
    made 1: what rows have in common, such as a mean direction, is no agreement of features.
    """
    mean = rows.mean(0)
    _, sizes, axes = torch.linalg.svd(rows - mean, full_matrices=False)
    noise = torch.randn(len(rows), len(sizes), generator=drawn) / len(rows) ** 0.5
    return unit_rows(mean + noise @ (sizes[:, None] * axes))


def unit_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows of length 1, in fp32 on the CPU; rows of zeros stay zeros."""
    x = x.detach().float().cpu()
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)


def cosine_to(sae: SAE, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """The cosine of each decoder row with another, such as the one that its training began with.

    Raises:
        BadUsage: rows of another shape.
    """
    if tuple(rows.shape) != tuple(sae.w_dec.shape):
        raise BadUsage(
            f"Rows of shape {tuple(sae.w_dec.shape)} are compared; got {tuple(rows.shape)}."
        )
    return (unit_rows(sae.w_dec) * unit_rows(rows)).sum(dim=1)
