"""How far the tiers of a judge are from reference labels: pure functions of names and scores.

    error          places of the judge's tier above the label's, in the rubric's order
    exact          share of papers with an error of 0; `within` k: of at most k
    signed, MAE    means of the error and of its size
    kappa          Cohen's, unweighted and with quadratic weights
    sign test      p of as many errors up and down, if both were as likely

Shares have Clopper and Pearson's intervals. A paper without a score is a miss in every share, and
enters nothing else; each number has its own n. No number stands alone: a judge that always says one
tier is evaluated beside (`constants`), and one that draws tiers at random with the frequencies of
the labels, or with equal ones (`random_judges`). The best constant is chosen on the same labels,
which flatters it. Labels are judgments too, and no truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechassay.claims.rubric import Rubric, Tier
from mechassay.claims.scoring import attainable, tier_of
from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of
from mechassay.stats.agreement import confusion, sign_test, unweighted_kappa, weighted_kappa
from mechassay.stats.intervals import Interval, clopper_pearson

SHIFT = 0.5
"""How far a boundary is moved, as in Tower (2026), section 6.3."""
PLACES = range(3)
"""How many tiers a judge may be off, in shares of papers."""
NO_INTERVAL = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class JudgedPaper:
    """A paper, the score and tier that a judge gave, and the tier of its label.

    Attributes:
        cvs, tier: NaN and "" if it has no score.
        source: where the label is from.
    """

    paper: str
    cvs: float
    tier: str
    expected: str
    source: str = ""


@dataclass(frozen=True)
class Proportion:
    """Hits of n, with Clopper and Pearson's interval; NaN of none."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        return self.hits / self.n if self.n else math.nan

    @property
    def interval(self) -> Interval:
        return clopper_pearson(float(self.hits), float(self.n)) if self.n else NO_INTERVAL


@dataclass(frozen=True, repr=False)
class TierAgreement(OneLine):
    """Tiers against labels.

    Attributes:
        within: shares of papers whose error is at most k, by k; of 0 it is the exact share.
        over, under: papers judged too high, and too low.
        n: papers with a score, of which signed error, MAE and kappas are.
        n_undefined: papers without.
    """

    within: Mapping[int, Proportion]
    signed: float
    mae: float
    kappa: float
    weighted: float
    over: int
    under: int
    sign_p: float
    n: int
    n_undefined: int

    @property
    def exact(self) -> Proportion:
        return self.within[0]


def errors(tiers: Sequence[str], papers: Sequence[JudgedPaper]) -> Float[np.ndarray, "papers"]:
    """Places of each paper's tier above its label; NaN without a score.

    Raises:
        UnknownName: a tier that is not among the names.
    """
    for paper in papers:
        one_of(f"label of {paper.paper}", paper.expected, tiers)
        if paper.tier:
            one_of(f"tier of {paper.paper}", paper.tier, tiers)
    return np.array(
        [tiers.index(p.tier) - tiers.index(p.expected) if p.tier else math.nan for p in papers],
        dtype=float,
    )


def tier_agreement(tiers: Sequence[str], papers: Sequence[JudgedPaper]) -> TierAgreement:
    """How tiers agree with labels.

    Args:
        tiers: names from lowest to highest.

    Raises:
        UnknownName: a tier that is not among the names.
    """
    found = errors(tiers, papers)
    known = found[~np.isnan(found)]
    counts = tier_confusion(tiers, papers)
    over, under = int((known > 0).sum()), int((known < 0).sum())
    return TierAgreement(
        within={k: Proportion(int((abs(known) <= k).sum()), len(papers)) for k in PLACES},
        signed=float(known.mean()) if len(known) else math.nan,
        mae=float(abs(known).mean()) if len(known) else math.nan,
        kappa=float(unweighted_kappa(counts)),
        weighted=float(weighted_kappa(counts)),
        over=over,
        under=under,
        sign_p=sign_test(over, under),
        n=len(known),
        n_undefined=len(found) - len(known),
    )


def tier_confusion(
    tiers: Sequence[str], papers: Sequence[JudgedPaper]
) -> Float[np.ndarray, "tiers tiers"]:
    """How often a label (row) was given each tier (column); papers without a score are left out."""
    rows = np.array([tiers.index(paper.expected) for paper in papers], dtype=np.int64)
    columns = np.array([tiers.index(p.tier) if p.tier else -1 for p in papers], dtype=np.int64)
    return confusion(rows, columns, len(tiers))


# Judges that know nothing


def constants(tiers: Sequence[str], expected: Sequence[str]) -> dict[str, TierAgreement]:
    """The agreement of a judge that always says one tier, for each tier."""
    return {
        tier: tier_agreement(
            tiers, [JudgedPaper(str(n), math.nan, tier, label) for n, label in enumerate(expected)]
        )
        for tier in tiers
    }


@dataclass(frozen=True)
class ChanceAgreement:
    """What a judge that draws tiers shows on average: shares within k places, MAE, signed error."""

    within: Mapping[int, float]
    mae: float
    signed: float


def random_judges(tiers: Sequence[str], expected: Sequence[str]) -> dict[str, ChanceAgreement]:
    """Means over judges that draw a tier for each paper: as often as the labels, or any tier.

    Raises:
        BadUsage: no labels.
        UnknownName: a label that is no tier.
    """
    if not expected:
        raise BadUsage("There are no labels, so chance has no frequencies.")
    places = [tiers.index(one_of("label", each, tiers)) for each in expected]
    shares = np.bincount(places, minlength=len(tiers)) / len(places)
    apart = np.subtract.outer(np.arange(len(tiers)), np.arange(len(tiers)))
    found: dict[str, ChanceAgreement] = {}
    for name, drawn in {
        "as often as labels": shares,
        "all tiers alike": np.full(len(tiers), 1 / len(tiers)),
    }.items():
        joint = np.outer(drawn, shares)
        found[name] = ChanceAgreement(
            {k: float(joint[abs(apart) <= k].sum()) for k in PLACES},
            float((joint * abs(apart)).sum()),
            float((joint * apart).sum()),
        )
    return found


# Boundaries


@dataclass(frozen=True)
class BoundaryShift:
    """What moving the boundary below a tier changes.

    Attributes:
        tier: whose lower boundary it is.
        least, moved: where the boundary is, and where it was moved to.
        changed: papers that get another tier.
        exact: papers with the tier of their label afterwards, of those with a score.
    """

    tier: str
    least: float
    moved: float
    changed: tuple[str, ...]
    exact: int
    n: int


def boundary_shifts(
    rubric: Rubric, papers: Sequence[JudgedPaper], shift: float | None = SHIFT
) -> list[BoundaryShift]:
    """Move each boundary of tiers up and down, one at a time.

    Args:
        papers: with exact scores, not rounded ones (see `exact_score`).
        shift: by how much; None moves it past the next attainable score.

    Raises:
        BadUsage: a shift that is not above 0, or that passes the next boundary.
    """
    gaps = np.diff([tier.least for tier in rubric.tiers])
    if shift is not None and not 0 < shift < min(gaps):
        raise BadUsage(f"Boundaries are moved by more than 0 and less than {min(gaps):g}.")
    known = [paper for paper in papers if not math.isnan(paper.cvs)]
    found: list[BoundaryShift] = []
    for place, tier in enumerate(rubric.tiers[1:], start=1):
        for way in (-1, 1):
            moved = _moved(rubric, tier.least, way, shift)
            tiers = list(rubric.tiers)
            tiers[place] = Tier(name=tier.name, least=moved)
            other = rubric.model_copy(update={"tiers": tuple(tiers)})
            now = {paper.paper: tier_of(other, paper.cvs) for paper in known}
            changed = tuple(p.paper for p in known if now[p.paper] != tier_of(rubric, p.cvs))
            exact = sum(now[paper.paper] == paper.expected for paper in known)
            found.append(BoundaryShift(tier.name, tier.least, moved, changed, exact, len(known)))
    return found


def _moved(rubric: Rubric, least: float, way: int, shift: float | None) -> float:
    if shift is not None:
        return least + way * shift
    values = attainable(rubric)
    if way < 0:
        return max(value for value in values if value < least)
    # Past the lowest score that the boundary lets through.
    return [value for value in values if value >= least][1]


def boundary_distance(rubric: Rubric, score: float) -> float:
    """How far a score is from the nearest boundary of tiers; NaN of NaN."""
    return min(abs(score - tier.least) for tier in rubric.tiers[1:])


def exact_score(rubric: Rubric, printed: float) -> float:
    """The attainable score that is printed so, with one decimal.

    Raises:
        BadUsage: none is, or several are.
    """
    found = [each for each in attainable(rubric) if abs(each - printed) <= 0.05]
    if len(found) != 1:
        raise BadUsage(f"{len(found)} scores of {rubric.key} are printed as {printed:g}.")
    return found[0]
