"""How far two rankings of tokens agree, feature by feature, beyond what any two features share.

Feature i has scores of tokens by its weights, w_i, and measured ones, a_i, of which those above 0
count. With m_j = min(k, tokens with a_j > 0):

    o_ij   |top m_j by w_i and top m_j by a_j| / m_j
    gain   o_jj - mean over i != j of o_ij        what only this feature's weights say

Two lists of k tokens can share few of them because a feature has fewer than k tokens, and many
because all features have the same frequent tokens: m_j mends the one, mismatched features the
other. Rank-biased overlap (Webber, Moffat and Zobel 2010) is the share of common tokens at depth d,
averaged with weights p^d and extrapolated beyond m_j: it is 1 for equal lists, and mostly about
their first tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mechassay.measurement.variant import Quantity, quantity
from mechassay.stats.intervals import student_interval

Scores = Float[np.ndarray, "features tokens"]
PERSISTENCE = 0.9
"""The p of rank-biased overlap: the first ten tokens have 86 % of the weight."""
FEW = "fewer than two features have tokens to compare"


@dataclass(frozen=True, eq=False)
class Described:
    """Features described twice.

    Attributes:
        by_weights: scores of tokens by weights.
        measured: by what happens; 0 or less: not among the feature's tokens.
    """

    by_weights: Scores
    measured: Scores


@dataclass(frozen=True, eq=False)
class TokenAgreement:
    """How far descriptions agree, a number a feature; NaN where a feature has no tokens.

    Attributes:
        matched: overlap of a feature's own descriptions.
        mismatched: mean overlap of its tokens with those by the weights of all other features.
        rbo: rank-biased overlap of its own.
    """

    matched: Float[np.ndarray, "features"]
    mismatched: Float[np.ndarray, "features"]
    rbo: Float[np.ndarray, "features"]

    @property
    def gain(self) -> Float[np.ndarray, "known"]:
        """Matched less mismatched, of features that have both."""
        both = self.matched - self.mismatched
        return both[~np.isnan(both)]


def top_tokens(scores: Scores, k: int) -> Int[np.ndarray, "features k"]:
    """The k tokens with the largest scores, largest first; of ties the first."""
    k = min(k, scores.shape[1])
    some = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def jaccard(
    a: Int[np.ndarray, "features k"], b: Int[np.ndarray, "features l"]
) -> Float[np.ndarray, "features"]:
    """|a and b| / |a or b| of lists without repeats, a row each, filled up with -1.

    Two empty lists have none: NaN.
    """
    common = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).sum(axis=(1, 2))
    union = (a >= 0).sum(axis=1) + (b >= 0).sum(axis=1) - common
    return np.divide(common, union, out=np.full(len(a), np.nan), where=union > 0)


def token_agreement(of: Described, k: int) -> TokenAgreement:
    """How far two descriptions of the same features agree on their first k tokens."""
    n, n_tokens = of.measured.shape
    lists = top_tokens(of.measured, k)
    depth = np.arange(lists.shape[1])
    sizes = np.minimum(lists.shape[1], (of.measured > 0).sum(axis=1))
    ranks = np.full((n, n_tokens), n_tokens)
    np.put_along_axis(ranks, top_tokens(of.by_weights, k), depth[None], axis=1)
    counted = depth < sizes[:, None]
    # [by whose weights, whose tokens, k]
    hits = ((ranks[:, lists] < sizes[:, None]) & counted).sum(axis=2)
    nothing = np.full((n, n), np.nan)
    overlaps = np.divide(hits, sizes, out=nothing, where=np.broadcast_to(sizes > 0, hits.shape))
    matched = np.diagonal(overlaps).copy()
    others = (overlaps.sum(axis=0) - matched) / (n - 1) if n > 1 else np.full(n, np.nan)
    own = np.take_along_axis(ranks, lists, axis=1)
    return TokenAgreement(matched, others, _rank_biased(own, sizes))


def _rank_biased(
    ranks: Int[np.ndarray, "features k"], sizes: Int[np.ndarray, "features"]
) -> Float[np.ndarray, "features"]:
    """Rank-biased overlap, extrapolated, given the other ranks of a list's tokens in order."""
    depth = np.arange(1, ranks.shape[1] + 1)
    inside = depth <= sizes[:, None]
    # A token is common at depth d if both lists have it among their first d.
    since = np.where(inside, np.maximum(depth, ranks + 1), np.iinfo(ranks.dtype).max)
    common = (since[:, :, None] <= depth).sum(axis=1)
    share = common / depth
    p = PERSISTENCE
    series = (1 - p) / p * np.where(inside, share * p**depth, 0).sum(axis=1)
    last = share[np.arange(len(ranks)), np.maximum(sizes, 1) - 1]
    return np.where(sizes > 0, series + last * p**sizes, np.nan)


def agreement_quantities(
    name: str, found: TokenAgreement, what: str, control: TokenAgreement | None = None
) -> dict[str, Quantity]:
    """Quantities `name`_agreement, _gain, _gain_low, _rbo, and those of the control.

    Args:
        what: is compared, in words.
        control: the same of a random dictionary.
    """
    gain = found.gain
    ends = student_interval(gain)
    random = np.empty(0) if control is None else control.gain
    no_control = "there is no random dictionary to compare with"
    return {
        f"{name}_agreement": mean_quantity(
            found.matched, f"Share of tokens that {what} have in common.", better="up"
        ),
        f"{name}_gain": quantity(
            mean_of(gain) if len(gain) > 1 else None,
            interval=ends,
            n=len(gain),
            reason=FEW,
            meaning=f"The same, less what {what} of two features have in common.",
            better="up",
        ),
        f"{name}_gain_low": quantity(ends.low, n=len(gain), reason=FEW),
        f"{name}_rbo": mean_quantity(found.rbo, f"Rank-biased overlap of {what}.", better="up"),
        f"{name}_random_gain": quantity(
            mean_of(random) if len(random) > 1 else None,
            interval=student_interval(random),
            n=len(random),
            reason=no_control if control is None else FEW,
            meaning="The gain of a random dictionary.",
        ),
    }


def mean_of(values: Float[np.ndarray, "n"]) -> float:
    """The mean of values that are no NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def mean_quantity(values: Float[np.ndarray, "n"], meaning: str, better: str = "") -> Quantity:
    """The mean of values that are no NaN, with Student's interval."""
    known = values[~np.isnan(values)]
    return quantity(
        mean_of(known),
        interval=student_interval(known),
        n=len(known),
        reason="no feature has one",
        meaning=meaning,
        better="up" if better == "up" else "",
    )


def popular(
    rng: np.random.Generator, shape: tuple[int, int], popularity: float
) -> Callable[[], Scores]:
    """Draws of random scores in which some tokens are high for all features (of simulations)."""
    common = popularity * rng.standard_normal(shape[1])
    return lambda: common + rng.standard_normal(shape)
