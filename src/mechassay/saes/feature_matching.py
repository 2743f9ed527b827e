"""Which features two dictionaries share, and dictionaries made for comparison.

Decoder rows are matched one to one (Song et al. 2025, 2505.20254):

    cos_ij    <row i of a, row j of b> / |row i| |row j|, signed
    matched   the assignment of rows to rows with the largest sum (Hungarian algorithm), whose
              mean is the matched cosine
    shared    matched with a cosine of .7 or more (Paulo and Belrose 2025)

The largest of many random cosines is far from 0: two random dictionaries of d 576 and 4,096 rows
have a mean largest cosine of .15. So random dictionaries stand beside every such number.

    seed_agreement    two SAEs, beside random dictionaries of the same sizes
    counterparts      matches whose codes agree too, beside random rows with the same mean and
                      covariance; a share of features, and how far it is above chance
    needed_features   how many features a value needs, whatever the encoder would activate

What a number has to beat before it says something of an SAE:

    random_sae    unit rows drawn uniformly, read by their transpose around the mean of values;
                  of each value, as many features as the SAE has on average (topk)
    permuted_sae  its decoder rows in another order: the same features, other directions
    prefix_of     its first features alone: a prefix of a Matryoshka SAE is a dictionary of its
                  own (Bussmann et al. 2025, 2503.17547)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.stats.intervals import Interval, clopper_pearson
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

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
    null = [
        unit_rows(torch.randn(x.shape, generator=drawn, dtype=torch.float32))
        for x in (ours, theirs)
    ]
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
    noise = (
        torch.randn(len(rows), len(sizes), generator=drawn, dtype=torch.float32) / len(rows) ** 0.5
    )
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


APART = 2_000_003
"""What is added to seeds of random rows. Trainings draw rows with their seed, and planted features
with theirs and another number: a control must be neither."""


def random_sae(
    d_in: int, n_features: int, k: int, mean: Float[Tensor, "d"], *, seed: int = 0
) -> SAE:
    """A random dictionary that keeps the k largest features of each value.

    Args:
        seed: of the rows, which are not those that a training with this seed begins with.

    Raises:
        BadUsage: k is not between 1 and the number of features; a mean of another width.
    """
    if tuple(mean.shape) != (d_in,):
        raise BadUsage(f"The mean of values has {d_in} numbers; got shape {tuple(mean.shape)}.")
    drawn = torch.Generator().manual_seed(seed + APART)
    rows = unit_rows(torch.randn(n_features, d_in, generator=drawn, dtype=torch.float32))
    b_dec = mean.detach().float().cpu()
    zeros = torch.zeros(n_features, dtype=torch.float32)
    return SAE(rows.mT.contiguous(), rows, zeros, b_dec, "topk", k=k, centred=True)


def permuted_sae(sae: SAE, *, seed: int = 0) -> SAE:
    """The SAE with its decoder rows in a random order, the encoder as it is."""
    drawn = torch.Generator().manual_seed(seed)
    order = torch.randperm(sae.n_features, generator=drawn)
    return replace(sae, w_dec=sae.w_dec[order.to(sae.w_dec.device)])


@checked
def prefix_of(sae: SAE, n: int) -> SAE:
    """The dictionary of an SAE's first n features. One of "topk" keeps the k largest of these.

    Raises:
        BadUsage: the SAE has fewer features, or none is asked for.
    """
    if not 1 <= n <= sae.n_features:
        raise BadUsage(f"A prefix of an SAE has 1 to {sae.n_features} features; got {n}.")
    names = ("b_enc", "w_dec", "threshold", "b_gate", "r_mag")
    arrays = {name: getattr(sae, name) for name in names}
    first = {name: x[:n] for name, x in arrays.items() if x is not None}
    k = None if sae.k is None else min(sae.k, n)
    return replace(sae, w_enc=sae.w_enc[:, :n], k=k, **first)


PASSES = 4
"""Steps of the pursuit for each feature that may be taken; rows can be taken again."""


@torch.no_grad()
def needed_features(
    x: Float[Tensor, "n d"], rows: Float[Tensor, "k _"], within: Float[Tensor, "n"], most: int
) -> Int[Tensor, "n"]:
    """Features that values need until the square of what is left is `within`.

    Matching pursuit (Mallat and Zhang 1993) with coefficients that are not negative, over rows
    d_i of length 1: from r = x, take the row with the largest c = <r, d_i> > 0, and r <- r - c
    d_i, until |r|^2 is small enough. A value needs as many features as distinct rows were
    taken. Greedy choices are not the best ones: the number is an upper bound of the smallest.

    Args:
        x: values, less the dictionary's constant.
        rows: of the dictionary, of any length; rows of zeros are never taken.
        most: where the search ends: most + 1 stands for more, and for what no number reaches.

    Raises:
        BadUsage: values of another width, or a search of less than one feature.
    """
    if x.shape[1] != rows.shape[1] or most < 1:
        raise BadUsage(
            f"Rows of {rows.shape[1]} numbers describe values of as many, by one or more; got"
            f" values of {x.shape[1]} and most={most}."
        )
    unit = unit_rows(rows)
    rest, bound = x.detach().float().cpu().clone(), within.detach().float().cpu()
    counts = torch.full((len(x),), most + 1)
    taken = torch.zeros(len(x), len(unit), dtype=torch.bool)
    going = torch.arange(len(x))
    for _ in range(PASSES * most + 1):
        count = taken[going].sum(dim=1)
        done = rest[going].square().sum(dim=1) <= bound[going]
        counts[going[done & (count <= most)]] = count[done & (count <= most)]
        going = going[~done & (count <= most)]
        if not len(going):
            break
        best, at = (rest[going] @ unit.mT).max(dim=1)
        going, best, at = going[best > 0], best[best > 0], at[best > 0]
        rest[going] -= best[:, None] * unit[at]
        taken[going, at] = True
    return counts


@torch.no_grad()
def needed_by(
    sae: SAE, h: Float[Tensor, "n d"], most: int
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Features that values have, and that they need to be as near as the SAE brings half of them.

    Near is the share of a value's squared distance from the mean that is left. It is the median
    over values, since large values are reconstructed better and would set the bar for all. Both are
    taken of values as the SAE normalises them.
    """
    wide = h.detach().float()
    x = sae.normalized(wide)
    f = sae.encode(wide)
    around = (x - x.mean(0)).square().sum(dim=1)
    left = (x - sae.decode(f)).square().sum(dim=1) / around.clamp(min=1e-12)
    need = needed_features(x - sae.b_dec.to(x), sae.w_dec, left.median() * around, most)
    return (f != 0).sum(dim=1), need


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

    Decoder rows are matched one to one by their signed cosine. A match counts from a cosine of
    .7 on, and where codes are known, only if they correlate by .5 or more: features that write
    the same and are active elsewhere are not the same. Of n_a and n_b features with h such
    matches,

        shared        2 h / (n_a + n_b): a dictionary that is too wide lacks counterparts too
        by chance     the same against random rows with the mean and covariance of the other's
        above chance  (shared - by chance) / (1 - by chance): 1 if all are shared, 0 for random
                      rows

    Chance has rows alone, so it is never too small. The largest of many random cosines is far
    from 0, and in few dimensions above .7: no share, and no mean cosine, says anything without
    its value by chance.

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
    in_all = torch.ones(len(ours), dtype=torch.bool)
    chance = torch.zeros(len(ours), dtype=torch.float32)
    pairs = (
        [None] * len(others) if codes is None else [(codes, own_codes) for own_codes in other_codes]
    )
    for other, both in zip(others, pairs, strict=True):
        in_all &= _has_counterpart(ours, unit_rows(other), both)
    for _ in range(DRAWS):
        by_chance = torch.ones_like(in_all)
        for other in others:
            by_chance &= _has_counterpart(ours, rows_like(unit_rows(other), drawn))
        chance += by_chance.float() / DRAWS
    return in_all, chance


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
    on = torch.rand(SIMULATED_VALUES, n, generator=drawn, dtype=torch.float32) < 0.1
    return on * (1 + torch.rand(on.shape, generator=drawn, dtype=torch.float32))
