"""Recovery of a known circuit: do an edge's scores say whether it is in the ground truth?

Every edge of the graph is one item, positive if it is in the truth. Edges without a score rank
last, all together. Where circuits are grown from the logits (information flow routes), edges rank
in the order in which the greedy circuit grows, and those that it never reaches last, all together.

`strict`    (default)
    auroc        P(a true edge scores above a false one) + P(they tie) / 2: the Mann-Whitney
                 statistic, with mid-ranks.
    auprc        average precision, sum_k (R_k - R_k-1) P_k over the distinct scores: edges of one
                 score are taken together, so that constant scores give the share of true edges.
    r_precision  precision among as many edges as the truth has; recall is the same number there.
                 Where the cut falls among ties: its expectation over their orders.
`mib-2025`  the AUROC of Mueller et al. (2025), section 3.1, as their code has it: circuits of
            ceil(p * edges) edges at ten sizes p, grown greedily by magnitude and pruned; the area
            under true over false positive rates by the trapezoidal rule from the first circuit on,
            divided by the last false positive rate. Other quantities as in `strict`, by magnitude.

The interval of the AUROC takes the edges as independent: it says how far a few true edges determine
a rank statistic, nothing about other prompts, seeds or models. It holds the values that the
observed one does not reject, with the standard error of Hanley and McNeil (1982) at the value in
question, so it stays in [0, 1] and always has a width. It is NaN under `mib-2025`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import FRACTIONS, PROFILES, Profile
from mechassay.circuits.scores import By, EdgeScores
from mechassay.display import OneLine
from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.stats.intervals import LEVEL, Interval, trapezoid

NAN = float("nan")


@dataclass(frozen=True, repr=False)
class Recovery(OneLine):
    """How well scores recover a known circuit; NaN where undefined (no true or no false edges).

    Attributes:
        profile, by: how `auroc` was computed, and what ranked the edges.
        greedy: whether edges rank in the order in which the greedy circuit grows.
        auroc, auroc_interval: area under the ROC curve; its interval over edges.
        auprc: average precision.
        r_precision: precision, and recall, among the best `n_true` edges.
        n_true, n_false: edges in the truth, and the others.
        n_unscored: edges without a score, true or false.
    """

    profile: Profile
    by: By
    greedy: bool
    auroc: float
    auroc_interval: Interval
    auprc: float
    r_precision: float
    n_true: int
    n_false: int
    n_unscored: int


def recovery_of(
    scores: EdgeScores,
    truth: Circuit,
    by: By | None = None,
    profile: Profile = "strict",
    *,
    greedy: bool = False,
) -> Recovery:
    """Compare a ranking of edges with the circuit that is known to be there.

    Args:
        truth: taken as it is; prune it first if edges on no path should not count.
        by: "value" (the default) or "magnitude" (the default, and all there is, under `mib-2025`).
        greedy: rank edges in the order in which the greedy circuit grows; always so for scores
            whose circuits are cut so.

    Raises:
        GraphMismatch: scores and truth belong to different graphs.
        UnknownName: no such profile or ranking.
        BadUsage: by value under `mib-2025`.
    """
    one_of("profile", profile, PROFILES)
    ranked: By = ("magnitude" if profile == "mib-2025" else "value") if by is None else by
    one_of("ranking", ranked, get_args(By))
    if profile == "mib-2025" and ranked != "magnitude":
        raise BadUsage(f"The profile mib-2025 ranks edges by magnitude; got {ranked!r}.")
    if scores.graph != truth.graph:
        raise GraphMismatch(
            f"The scores belong to {scores.graph}; the truth belongs to {truth.graph}."
        )
    greedy = greedy or scores.grows
    ranks = _greedy_ranks(scores, ranked) if greedy else _ranks(scores, ranked)
    member = truth.edges[truth.graph.legal].cpu().numpy()
    n_true, n_false = int(member.sum()), int((~member).sum())
    area, auprc, interval = NAN, NAN, Interval(NAN, NAN)
    if n_true and n_false:
        # Imported here, because it is slow.
        from sklearn.metrics import average_precision_score, roc_auc_score

        area = float(roc_auc_score(member, ranks))
        auprc = float(average_precision_score(member, ranks))
        interval = auroc_interval(area, n_true, n_false)
    if profile == "mib-2025":
        area, interval = _area_over_sizes(scores, truth), Interval(NAN, NAN)
    return Recovery(
        profile=profile,
        by=ranked,
        greedy=greedy,
        auroc=area,
        auroc_interval=interval,
        auprc=auprc,
        r_precision=_r_precision(ranks, member),
        n_true=n_true,
        n_false=n_false,
        n_unscored=len(member) - int(scores.scored().sum()),
    )


def _ranks(scores: EdgeScores, by: By) -> Float[np.ndarray, "edges"]:
    """Mid-ranks of all edges' scores, the best highest; those without a score share the lowest."""
    values = scores.values[scores.graph.legal].double().cpu().numpy()
    keys = np.abs(values) if by == "magnitude" else values
    return rankdata(np.where(np.isnan(keys), -np.inf, keys), method="average")


def _greedy_ranks(scores: EdgeScores, by: By) -> Float[np.ndarray, "edges"]:
    """Ranks in the order in which the greedy circuit grows; edges not reached share the lowest."""
    order = scores.greedy_order(by)
    keys = np.zeros(scores.values.numel())
    keys[order] = np.arange(len(order), 0, -1)
    return rankdata(keys[scores.graph.legal.flatten().numpy()], method="average")


def _r_precision(ranks: Float[np.ndarray, "edges"], member: Bool[np.ndarray, "edges"]) -> float:
    n = int(member.sum())
    if n in (0, len(member)):
        return NAN
    cut = np.partition(ranks, len(ranks) - n)[len(ranks) - n]
    above, tied = ranks > cut, ranks == cut
    expected = (n - above.sum()) * member[tied].mean()
    return float((member[above].sum() + expected) / n)


def auroc_interval(auroc: float, n_true: int, n_false: int, level: float = LEVEL) -> Interval:
    """The areas t with |auroc - t| <= z SE(t), where SE(t) is Hanley and McNeil's standard error.

    SE(t)^2 = t (1 - t) [1 + (n_true - 1) (1 - t) / (2 - t) + (n_false - 1) t / (1 + t)]
              / (n_true n_false),

    or, if that is larger, the same with the roles of true and false exchanged: scores times -1 then
    give the mirrored interval.
    """
    if math.isnan(auroc):
        return Interval(NAN, NAN, level)
    z = float(norm.ppf((1 + level) / 2))
    few, many = sorted((n_true, n_false))

    def excess(t: float) -> float:
        small, large = sorted(((1 - t) / (2 - t), t / (1 + t)))
        spread = 1 + (few - 1) * small + (many - 1) * large
        return (auroc - t) ** 2 - z**2 * t * (1 - t) * spread / (n_true * n_false)

    # SE is 0 at 0 and at 1, so there the excess is not negative; it is at the estimate, or just
    # inside for an estimate of 0 or 1.
    inside = min(max(auroc, 1e-9), 1 - 1e-9)
    low = _root(excess, 0.0, inside) if auroc > 0 else 0.0
    high = _root(excess, inside, 1.0) if auroc < 1 else 1.0
    return Interval(low, high, level)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = brentq(function, low, high)
    return float(found)


def _area_over_sizes(scores: EdgeScores, truth: Circuit) -> float:
    """MIB's ten-point area; NaN also if no circuit holds a false edge."""
    true, false = truth.edges, truth.graph.legal & ~truth.edges
    if not bool(true.any()) or not bool(false.any()):
        return NAN
    n_edges = truth.graph.n_edges
    sizes = [math.ceil(fraction * n_edges) for fraction in FRACTIONS]
    grown = [scores.greedy(size, by="magnitude").pruned().edges for size in sizes]
    right, wrong = (
        np.array([int((edges & kind).sum()) for edges in grown]) / int(kind.sum())
        for kind in (true, false)
    )
    return float(trapezoid(right[None], wrong)[0] / wrong[-1]) if wrong[-1] > 0 else NAN
