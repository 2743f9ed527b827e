"""F03, F04 and F06: do methods agree about heads and edges, and only about the same behaviour?

A head's score is the sum of the scores of the edges out of it. Scores of heads are a matrix
[methods, heads], NaN where a method has none. Two methods agree by the rank correlation of
heads, and by the chance-corrected agreement kappa on which are chosen (Cohen 1960).

F03, convergence
    `page`      heads without a score count as 0, which all methods then agree on
    `repaired`  heads that both score; interval by resampling heads
F04, discriminant validity: D = 1 - r_discriminant / r_convergent, of another behaviour by the
same methods and of the same behaviour by other methods
    `page`      D, which is unstable where r_convergent is small, and above 1 for negative r
    `repaired`  the difference r_convergent - r_discriminant, with an interval
F06, agreement of raters: chosen edges at one size
    `page`      Jaccard and kappa; with few edges chosen kappa is close to Dice's coefficient
    `repaired`  Jaccard above chance (J - J0) / (1 - J0) with the hypergeometric probability of
                as large an overlap, kappa at half prevalence (PABAK), and a sweep of sizes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import hypergeom, rankdata

from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.circuit_runs import head_writers
from mechassay.results.records import Table
from mechassay.stats.intervals import percentile_interval

CONVERGENT, DISCRIMINANT, RATERS = "F03", "F04", "F06"
REPAIRED_CONVERGENT = (Condition("spearman_low", ">", 0.5),)
REPAIRED_DISCRIMINANT = (Condition("difference_low", ">", 0.0),)
REPAIRED_RATERS = (Condition("jaccard_corrected", ">", 0.4), Condition("p_value", "<", 0.05))
N_RESAMPLES = 500
SWEEP = (0.01, 0.02, 0.05, 0.1, 0.2)
Heads = Float[np.ndarray, "methods heads"]
Edges = Bool[np.ndarray, "methods edges"]


def rank_correlation(a: Float[np.ndarray, "n"], b: Float[np.ndarray, "n"]) -> float:
    """Spearman's, over what both have; NaN for fewer than three, or where all tie."""
    both = ~np.isnan(a) & ~np.isnan(b)
    if both.sum() < 3:
        return math.nan
    x, y = rankdata(a[both]), rankdata(b[both])
    if x.std() == 0 or y.std() == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def kappa(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> float:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e); NaN where chance is certain."""
    observed = float(np.mean(a == b))
    p, q = float(a.mean()), float(b.mean())
    expected = p * q + (1 - p) * (1 - q)
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan


def pabak(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> float:
    """Kappa as if half were chosen: 2 p_o - 1 (Byrt, Bishop and Carlin 1993)."""
    return 2 * float(np.mean(a == b)) - 1


def jaccard(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> float:
    """Shared over all that either chooses; NaN for two empty choices."""
    either = int((a | b).sum())
    return int((a & b).sum()) / either if either else math.nan


def chance_jaccard(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> float:
    """The Jaccard index of the overlap that chance gives choices of these sizes."""
    shared = int(a.sum()) * int(b.sum()) / len(a)
    either = int(a.sum()) + int(b.sum()) - shared
    return shared / either if either else math.nan


def overlap_probability(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> float:
    """The probability of as large an overlap or a larger one, of random choices of these sizes."""
    return float(hypergeom.sf(int((a & b).sum()) - 1, len(a), int(a.sum()), int(b.sum())))


def _pairs(
    statistic: Callable[[np.ndarray, np.ndarray], float], rows: np.ndarray
) -> Float[np.ndarray, "pairs"]:
    return np.array([statistic(a, b) for a, b in combinations(rows, 2)])


def _mean_correlation(rows: Heads) -> float:
    return float(np.mean(_pairs(rank_correlation, rows)))


def _check(rows: np.ndarray, what: str) -> None:
    if len(rows) < 2:
        raise BadUsage(f"{what} needs two methods or more; got {len(rows)}.")


def _chosen(rows: Heads, share: float) -> Edges:
    """The best share of what each method scores, one at least."""
    n = max(1, round(share * rows.shape[1]))
    order = np.argsort(-np.where(np.isnan(rows), -np.inf, rows), axis=1, kind="stable")
    chosen = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(chosen, order[:, :n], values=True, axis=1)
    return chosen & ~np.isnan(rows)


def convergence(
    scores: Heads,
    methods: Sequence[str],
    *,
    share: float = 0.1,
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """F03 of scores of heads.

    Args:
        share: of the heads that belong to a method's circuit.

    Raises:
        BadUsage: fewer than two methods.
    """
    _check(scores, CONVERGENT)
    notes, filled = list(flags), np.where(np.isnan(scores), 0.0, scores)
    missing = int(np.isnan(scores).any(axis=0).sum())
    if missing:
        notes.append(flag("heads_without_score", n=missing))
    n, chosen = scores.shape[1], _chosen(filled, share)
    page = {
        "spearman": quantity(_mean_correlation(filled), n=n),
        "kappa": quantity(float(_pairs(kappa, chosen).mean()), n=n),
    }
    rng = np.random.default_rng(seed)
    draws = np.array(
        [_mean_correlation(scores[:, rng.integers(n, size=n)]) for _ in range(N_RESAMPLES)]
    )
    ends = percentile_interval(draws, n_groups=n)
    ours = _chosen(scores, share)
    repaired = {
        "spearman": quantity(_mean_correlation(scores), interval=ends, n=n),
        "spearman_low": quantity(ends.low, n=n),
        "kappa": quantity(float(_pairs(kappa, ours).mean()), n=n),
    }
    rows = [
        {
            "methods": f"{a}, {b}",
            "spearman": rank_correlation(scores[i], scores[j]),
            "kappa": kappa(ours[i], ours[j]),
        }
        for (i, a), (j, b) in combinations(enumerate(methods), 2)
    ]
    return Measurement.of(
        CONVERGENT,
        page,
        repaired,
        REPAIRED_CONVERGENT,
        flags=notes,
        null=null_convergence(n, len(scores)),
        tables=[Table.of("pairs of methods", ("methods",), rows)],
        words={"share": share},
    )


def discrimination(
    own: Heads, other: Float[np.ndarray, "methods2 heads2"], *, seed: int = 0
) -> Measurement:
    """F04 of scores of heads by the same methods, of one behaviour and of another.

    Raises:
        BadUsage: fewer than two methods, or other methods for the other behaviour.
    """
    _check(own, DISCRIMINANT)
    if own.shape != other.shape:
        raise BadUsage(
            f"F04 compares the same methods and heads; got {own.shape} and {other.shape}."
        )
    n = own.shape[1]

    def both(columns: np.ndarray) -> tuple[float, float]:
        mine, theirs = own[:, columns], other[:, columns]
        same = [rank_correlation(a, b) for a, b in zip(mine, theirs, strict=True)]
        return _mean_correlation(mine), float(np.mean(same))

    convergent, discriminant = both(np.arange(n))
    rng = np.random.default_rng(seed)
    draws = np.array([both(rng.integers(n, size=n)) for _ in range(N_RESAMPLES)])
    ends = percentile_interval(draws[:, 0] - draws[:, 1], n_groups=n)
    ratio = 1 - discriminant / convergent if convergent != 0 else math.nan
    flags: list[Flag] = []
    if not convergent > 0.2:
        flags.append(flag("no_convergence"))
    if not math.isnan(ratio) and ratio > 1:
        flags.append(flag("above_1"))
    page = {
        "discriminant": quantity(ratio, n=n),
        "r_convergent": quantity(convergent, n=n),
        "r_discriminant": quantity(discriminant, n=n),
    }
    repaired = {
        "difference": quantity(convergent - discriminant, interval=ends, n=n),
        "difference_low": quantity(ends.low, n=n),
        "r_convergent": quantity(convergent, n=n),
        "r_discriminant": quantity(discriminant, n=n),
    }
    return Measurement.of(
        DISCRIMINANT,
        page,
        repaired,
        REPAIRED_DISCRIMINANT,
        flags=flags,
        null=null_discrimination(n, len(own)),
    )


def rater_agreement(
    scores: Float[np.ndarray, "methods edges"], methods: Sequence[str], *, size: float = 0.02
) -> Measurement:
    """F06 of the best edges of each method.

    Args:
        size: share of the edges that is chosen.

    Raises:
        BadUsage: fewer than two methods.
    """
    _check(scores, RATERS)
    n, chosen = scores.shape[1], _chosen(scores, size)
    agreements = {
        name: float(_pairs(rule, chosen).mean())
        for name, rule in (
            ("jaccard", jaccard),
            ("chance", chance_jaccard),
            ("kappa", kappa),
            ("pabak", pabak),
        )
    }
    largest = float(_pairs(overlap_probability, chosen).max())
    page = {name: quantity(agreements[name], n=n) for name in ("jaccard", "kappa")}
    corrected = (agreements["jaccard"] - agreements["chance"]) / (1 - agreements["chance"])
    repaired = {
        "jaccard_corrected": quantity(corrected, n=n),
        "p_value": quantity(largest, n=n),
        "kappa": quantity(agreements["kappa"], n=n),
        "pabak": quantity(agreements["pabak"], n=n),
        "chance_jaccard": quantity(agreements["chance"], n=n),
    }
    return Measurement.of(
        RATERS,
        page,
        repaired,
        REPAIRED_RATERS,
        flags=[flag("few_chosen", size=size)],
        null=null_raters(n, size),
        tables=[_sweep(scores), _raters(chosen, methods)],
    )


def _sweep(scores: Float[np.ndarray, "methods edges"]) -> Table:
    def row(size: float) -> Mapping[str, float]:
        chosen = _chosen(scores, size)
        return {
            "size": size,
            "jaccard": float(_pairs(jaccard, chosen).mean()),
            "chance": float(_pairs(chance_jaccard, chosen).mean()),
            "kappa": float(_pairs(kappa, chosen).mean()),
        }

    return Table.of("sizes", ("size",), map(row, SWEEP))


def _raters(chosen: Edges, methods: Sequence[str]) -> Table:
    rows = (
        {
            "methods": f"{a}, {b}",
            "shared": int((chosen[i] & chosen[j]).sum()),
            "jaccard": jaccard(chosen[i], chosen[j]),
        }
        for (i, a), (j, b) in combinations(enumerate(methods), 2)
    )
    return Table.of("pairs of methods", ("methods",), rows)


# How often the thresholds err


def _noisy(rng: np.random.Generator, methods: int, n: int, signal: float) -> Heads:
    return signal * rng.standard_normal(n) + rng.standard_normal((methods, n))


def _scenarios(draw: Callable[[np.random.Generator, int, float], Drawn]) -> tuple[Scenario, ...]:
    return (
        Scenario("methods that score at random", True, lambda rng, size: draw(rng, size, 0.0)),
        Scenario(
            "methods that share nine tenths of their variance",
            False,
            lambda rng, size: draw(rng, size, 3.0),
        ),
    )


@cache
def null_convergence(
    n: int = 144, methods: int = 2, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0
) -> NullTable:
    """Rates of F03's conditions for `n` heads; the lower end is that of Fisher's transformation."""

    def draw(rng: np.random.Generator, size: int, signal: float) -> Drawn:
        r, k = np.empty(size), np.empty(size)
        for row in range(size):
            scores = _noisy(rng, methods, n, signal)
            r[row] = _mean_correlation(scores)
            k[row] = _pairs(kappa, _chosen(scores, 0.1)).mean()
        low = np.tanh(np.arctanh(np.clip(r, -0.999, 0.999)) - 1.96 * 1.03 / math.sqrt(n - 3))
        return {"page": {"spearman": r, "kappa": k}, "repaired": {"spearman_low": low}}

    limits = thresholds(CONVERGENT, REPAIRED_CONVERGENT)
    return simulate(_scenarios(draw), limits, n, n_simulations=n_simulations, seed=seed)


@cache
def null_discrimination(
    n: int = 144, methods: int = 2, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0
) -> NullTable:
    """Rates of F04's conditions for `n` heads, of equal behaviours and of unrelated ones."""

    def draw(rng: np.random.Generator, size: int, shared: float) -> Drawn:
        ratio, low = np.empty(size), np.empty(size)
        for row in range(size):
            mine = 3 * rng.standard_normal(n)
            theirs = mine if shared else 3 * rng.standard_normal(n)
            own, other = (x + rng.standard_normal((methods, n)) for x in (mine, theirs))
            convergent = _mean_correlation(own)
            same = [rank_correlation(a, b) for a, b in zip(own, other, strict=True)]
            ratio[row] = 1 - np.mean(same) / convergent
            ends = (convergent, float(np.mean(same)))
            widths = [(1 - r**2) / math.sqrt(n - 3) for r in ends]
            low[row] = ends[0] - ends[1] - 1.96 * math.hypot(*widths)
        return {"page": {"discriminant": ratio}, "repaired": {"difference_low": low}}

    scenarios = (
        Scenario("two behaviours that are one", True, lambda rng, size: draw(rng, size, 1.0)),
        Scenario("two unrelated behaviours", False, lambda rng, size: draw(rng, size, 0.0)),
    )
    limits = thresholds(DISCRIMINANT, REPAIRED_DISCRIMINANT)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@cache
def null_raters(
    n: int = 5000, size: float = 0.02, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
) -> NullTable:
    """Rates of F06's conditions for two methods on `n` edges."""
    n = min(n, 5000)

    def draw(rng: np.random.Generator, simulations: int, signal: float) -> Drawn:
        drawn = {name: np.empty(simulations) for name in ("kappa", "jaccard", "p_value")}
        for row in range(simulations):
            a, b = _chosen(_noisy(rng, 2, n, signal), size)
            chance = chance_jaccard(a, b)
            drawn["kappa"][row] = kappa(a, b)
            drawn["jaccard"][row] = (jaccard(a, b) - chance) / (1 - chance)
            drawn["p_value"][row] = overlap_probability(a, b)
        repaired = {"jaccard_corrected": drawn["jaccard"], "p_value": drawn["p_value"]}
        return {"page": {"kappa": drawn["kappa"]}, "repaired": repaired}

    limits = thresholds(RATERS, REPAIRED_RATERS)
    return simulate(_scenarios(draw), limits, n, n_simulations=n_simulations, seed=seed)


GRADIENT = ("eap", "nap", "ifr", "clean-corrupted")
"""How names of methods begin that are gradients, or linear in activations: one family."""


def head_scores(rankings: Mapping[str, EdgeScores]) -> Float[np.ndarray, "methods heads"]:
    """Scores of heads, in the order of the graph."""
    rows: list[np.ndarray] = []
    for scores in rankings.values():
        values = scores.values[head_writers(scores.graph)].double()
        known = ~values.isnan()
        sums = torch.where(known, values, torch.zeros_like(values)).sum(dim=1)
        rows.append(torch.where(known.any(dim=1), sums, torch.nan).numpy())
    return np.stack(rows)


def edge_scores(rankings: Mapping[str, EdgeScores]) -> Float[np.ndarray, "methods edges"]:
    """Sizes of the scores of all edges; NaN where a method has none."""
    rows = [
        scores.values[scores.graph.legal].abs().double().numpy() for scores in rankings.values()
    ]
    return np.stack(rows)


def same_family(methods: Mapping[str, EdgeScores]) -> list[Flag]:
    """A flag if all methods are of one family."""
    if not all(name.startswith(GRADIENT) for name in methods):
        return []
    return [flag("one_family", methods=", ".join(methods))]


@dataclass(frozen=True)
class Convergence(Gauge):
    """Do methods agree on which heads matter?"""

    share: float = 0.1

    about: ClassVar[PageMetric] = page_metric(CONVERGENT)
    default_n: ClassVar[int] = 144

    def measure(self, inputs: GaugeInputs) -> Measurement:
        rankings = inputs.rankings
        return convergence(
            head_scores(rankings),
            list(rankings),
            share=self.share,
            seed=inputs.seed,
            flags=same_family(rankings),
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` heads and two methods."""
        return null_convergence(n, 2, n_simulations, seed)


@dataclass(frozen=True)
class Discrimination(Gauge):
    """Do methods tell one behaviour's heads from another's?"""

    about: ClassVar[PageMetric] = page_metric(DISCRIMINANT)
    default_n: ClassVar[int] = 144

    def measure(self, inputs: GaugeInputs) -> Measurement:
        own, other = inputs.rankings, inputs.other_rankings
        if set(own) != set(other):
            raise BadUsage(
                f"F04 compares rankings by the same methods; got {', '.join(own)} and"
                f" {', '.join(other)}."
            )
        matched = {name: other[name] for name in own}
        return discrimination(head_scores(own), head_scores(matched), seed=inputs.seed)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` heads and two methods."""
        return null_discrimination(n, 2, n_simulations, seed)


@dataclass(frozen=True)
class RaterAgreement(Gauge):
    """Do methods choose the same edges at one size?

    Attributes:
        size: share of the edges.
    """

    size: float = 0.02

    about: ClassVar[PageMetric] = page_metric(RATERS)
    default_n: ClassVar[int] = 5000

    def measure(self, inputs: GaugeInputs) -> Measurement:
        rankings = inputs.rankings
        return rater_agreement(edge_scores(rankings), list(rankings), size=self.size)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` edges and two methods."""
        return null_raters(n, self.size, n_simulations, seed)
