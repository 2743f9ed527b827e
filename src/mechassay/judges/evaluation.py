"""How far the tiers of a judge are from reference labels: the numbers, and their record.

    error          places of the judge's tier above the label's, in the rubric's order
    exact          share of papers with an error of 0; `within` k: of at most k
    signed, MAE    means of the error and of its size
    kappa          Cohen's, unweighted and with quadratic weights
    sign test      p of as many errors up and down, if both were as likely

Shares have Clopper and Pearson's intervals. A paper without a score is a miss in every share,
and enters nothing else. What is undefined is NaN and counted; each number has its own n.

No number stands alone. Beside it is a judge that always says one tier (`constants`), and one
that draws tiers at random, with the frequencies of the labels or with equal ones
(`random_judges`). The best constant is chosen on the same labels, which flatters it. Labels are
judgments too, and no truth.

Criteria are compared over the claims that both the reference and the judge have; how many these
are stands beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.claims.comparison import (
    K,
    RaterComparison,
    confusion,
    exact_share,
    mean_distance,
    sign_test,
    unweighted_kappa,
    weighted_kappa,
)
from mechassay.claims.judgments import rank
from mechassay.claims.rubric import JUDGED, Rubric, Status, Tier, attainable, tier_of
from mechassay.errors import BadUsage, one_of
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import NO_INTERVAL, Estimate, Interval, clopper_pearson
from mechassay.utils.display import OneLine

SHIFT = 0.5
"""How far a boundary is moved, as in Tower (2026), section 6.3."""
PLACES = range(3)
"""How many tiers a judge may be off, in shares of papers."""


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
    misses = errors(tiers, papers)
    known = misses[~np.isnan(misses)]
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
        n_undefined=len(misses) - len(known),
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
    places = [tiers.index(one_of("label", label, tiers)) for label in expected]
    shares = np.bincount(places, minlength=len(tiers)) / len(places)
    apart = np.subtract.outer(np.arange(len(tiers)), np.arange(len(tiers)))
    by_chance: dict[str, ChanceAgreement] = {}
    for name, drawn in {
        "as often as labels": shares,
        "all tiers alike": np.full(len(tiers), 1 / len(tiers)),
    }.items():
        joint = np.outer(drawn, shares)
        by_chance[name] = ChanceAgreement(
            {k: float(joint[abs(apart) <= k].sum()) for k in PLACES},
            float((joint * abs(apart)).sum()),
            float((joint * apart).sum()),
        )
    return by_chance


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
    shifts: list[BoundaryShift] = []
    for place, tier in enumerate(rubric.tiers[1:], start=1):
        for way in (-1, 1):
            moved = _moved(rubric, tier.least, way, shift)
            tiers = list(rubric.tiers)
            tiers[place] = Tier(name=tier.name, least=moved)
            other = rubric.model_copy(update={"tiers": tuple(tiers)})
            now = {paper.paper: tier_of(other, paper.cvs) for paper in known}
            changed = tuple(p.paper for p in known if now[p.paper] != tier_of(rubric, p.cvs))
            exact = sum(now[paper.paper] == paper.expected for paper in known)
            shifts.append(BoundaryShift(tier.name, tier.least, moved, changed, exact, len(known)))
    return shifts


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
    near = [score for score in attainable(rubric) if abs(score - printed) <= 0.05]
    if len(near) != 1:
        raise BadUsage(f"{len(near)} scores of {rubric.key} are printed as {printed:g}.")
    return near[0]


@dataclass(frozen=True)
class PublishedCheck:
    """A statement of the paper, and what its own numbers make of it.

    Attributes:
        where: table or section.
        about: what is stated.
        holds: whether both agree; None of a number that the paper does not print.
    """

    where: str
    about: str
    printed: str
    recomputed: str
    holds: bool | None


SMALL = 30
"""Papers below which the width of intervals is pointed out."""


@dataclass(frozen=True)
class DimensionLevels:
    """Levels of dimensions of the system claim, and the mean over the n others of its paper."""

    paper: str
    system: Mapping[str, float]
    others: Mapping[str, float]
    n: int


@dataclass(frozen=True, repr=False)
class MatchedCriteria(OneLine):
    """Criteria of claims that both the reference and the judge have.

    Attributes:
        comparison: of the two, over matched claims; the reference is the first. None if no claim
            was matched.
        recall, precision: matched claims, of the reference's and of the judge's.
    """

    comparison: RaterComparison | None
    recall: Proportion
    precision: Proportion


KIND = "claims-evaluation"


def _share(name: str, share: Proportion, n_undefined: int = 0, **words: Any) -> Measure:
    """Return a share of items, with its interval, as a measure."""
    estimate = Estimate(share.value, share.interval.low, share.interval.high)
    return measure_texts(KIND).measure(
        name, estimate, n=share.n, n_undefined=n_undefined, hits=share.hits, **words
    )


@dataclass(frozen=True, repr=False)
class JudgeEvaluation(Result, kind=KIND):
    """A judge against labels.

    Attributes:
        papers: that have both.
        unlabelled, unjudged: those that have one.
        runs: of papers that were voted on, or of which single runs are known, their scores.
        checks: of an evaluation that was published.
        shift: by how much boundaries are moved.
    """

    rubric: Rubric
    judge: str
    labels: str
    papers: tuple[JudgedPaper, ...]
    unlabelled: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    runs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    dimensions: tuple[DimensionLevels, ...] = ()
    criteria: MatchedCriteria | None = None
    checks: tuple[PublishedCheck, ...] = ()
    shift: float = SHIFT

    @property
    def tiers(self) -> list[str]:
        return [tier.name for tier in self.rubric.tiers]

    @property
    def agreement(self) -> TierAgreement:
        return tier_agreement(self.tiers, self.papers)

    @property
    def by_source(self) -> dict[str, TierAgreement]:
        """The agreement with the labels of each source."""
        sources = dict.fromkeys(paper.source for paper in self.papers)
        return {
            name: tier_agreement(self.tiers, [p for p in self.papers if p.source == name])
            for name in sources
        }

    @property
    def shifts(self) -> dict[str, list[BoundaryShift]]:
        """Boundaries moved by `shift`, and by one attainable score."""
        return {
            f"{self.shift:g}": boundary_shifts(self.rubric, self.papers, self.shift),
            "one attainable score": boundary_shifts(self.rubric, self.papers, None),
        }

    def contents(self) -> RecordContents:
        return {
            "cell": {"judge": self.judge, "labels": self.labels},
            "specs": {
                "method": Spec(name=self.judge),
                "labels": Spec(name=self.labels),
                "rubric": Spec(name=self.rubric.id, version=self.rubric.version),
            },
            "measures": [*self._measures(), *self._criteria_measures()],
            "tables": [
                Table.of("papers", ("paper",), self._papers()),
                Table.of("baselines", ("judge",), self._baselines()),
                Table.of("sources", ("source",), self._sources()),
                Table.of("confusion", ("expected", "tier"), self._confusion()),
                Table.of("boundaries", ("by", "tier", "moved"), self._boundaries()),
                Table.of("runs", ("paper", "run"), self._runs()),
                Table.of("dimensions", ("paper", "dimension"), self._dimensions()),
                Table.of("criteria", ("criterion",), self._criteria()),
                Table.of("constants", ("status",), self._constants()),
                Table.of("checks", ("number",), self._checks()),
            ],
            "warnings": self._warnings(),
        }

    # Numbers

    def _measures(self) -> Iterator[Measure]:
        texts, own = measure_texts(KIND), self.agreement
        for k, share in own.within.items():
            name = "exact" if k == 0 else "within {k}"
            yield _share(name, share, n_undefined=own.n_undefined, k=k)
        for name in ("signed", "mae", "kappa", "weighted"):
            value = getattr(own, name)
            yield texts.measure(name, value, n=own.n, n_undefined=own.n_undefined)
        n = own.over + own.under
        yield texts.measure("sign p", own.sign_p, n=n, over=own.over, under=own.under)

    def _criteria_measures(self) -> Iterator[Measure]:
        matched = self.criteria
        if matched is None:
            return
        if matched.comparison is not None:
            for name in ("exact", "distance", "difference", "kappa"):
                agreement = matched.comparison.measure(name)
                low, high, _ = agreement.interval
                estimate = Estimate(agreement.value, low, high)
                yield measure_texts(KIND).measure(f"criteria {name}", estimate, n=agreement.n)
        for name, share in (("recall", matched.recall), ("precision", matched.precision)):
            yield _share(f"claims {name}", share)

    # Tables

    def _papers(self) -> Iterator[dict[str, Any]]:
        for paper, error in zip(self.papers, errors(self.tiers, self.papers), strict=True):
            runs = self.runs.get(paper.paper, ())
            yield {
                "paper": paper.paper,
                "cvs": paper.cvs,
                "tier": paper.tier,
                "expected": paper.expected,
                "error": float(error),
                "source": paper.source,
                "boundary": boundary_distance(self.rubric, paper.cvs),
                "lowest": min(runs, default=math.nan),
                "highest": max(runs, default=math.nan),
                "n_runs": len(runs),
            }

    def _baselines(self) -> Iterator[dict[str, Any]]:
        expected = [paper.expected for paper in self.papers]
        agreements = {self.judge: self.agreement}
        agreements |= {
            f"always {name}": own for name, own in constants(self.tiers, expected).items()
        }
        for name, own in agreements.items():
            yield {
                "judge": name,
                **{_within(k): share.value for k, share in own.within.items()},
                "mae": own.mae,
                "signed": own.signed,
                "weighted": own.weighted,
                "n": len(expected),
            }
        if expected:
            for name, chance in random_judges(self.tiers, expected).items():
                yield {
                    "judge": f"random, {name}",
                    **{_within(k): share for k, share in chance.within.items()},
                    "mae": chance.mae,
                    "signed": chance.signed,
                    "weighted": None,
                    "n": len(expected),
                }

    def _sources(self) -> Iterator[dict[str, Any]]:
        for source, own in self.by_source.items():
            share = own.exact
            ends = {"low": share.interval.low, "high": share.interval.high}
            yield {
                "source": source,
                "exact": share.value,
                **ends,
                "hits": share.hits,
                "n": share.n,
                "over": own.over,
                "under": own.under,
            }

    def _confusion(self) -> Iterator[dict[str, Any]]:
        counts = tier_confusion(self.tiers, self.papers)
        for row, expected in enumerate(self.tiers):
            for column, tier in enumerate(self.tiers):
                yield {"expected": expected, "tier": tier, "n": int(counts[row, column])}

    def _boundaries(self) -> Iterator[dict[str, Any]]:
        for by, shifts in self.shifts.items():
            for shift in shifts:
                yield {
                    "by": by,
                    "tier": shift.tier,
                    "least": shift.least,
                    "moved": shift.moved,
                    "n_changed": len(shift.changed),
                    "changed": ", ".join(shift.changed),
                    "exact": shift.exact,
                    "n": shift.n,
                }

    def _runs(self) -> Iterator[dict[str, Any]]:
        for paper, scores in self.runs.items():
            for place, score in enumerate(scores, start=1):
                yield {"paper": paper, "run": place, "cvs": score}

    def _dimensions(self) -> Iterator[dict[str, Any]]:
        for own in self.dimensions:
            for code, level in own.system.items():
                yield {
                    "paper": own.paper,
                    "dimension": code,
                    "system": float(level),
                    "others": own.others.get(code, math.nan),
                    "n_others": own.n,
                }

    def _criteria(self) -> Iterator[dict[str, Any]]:
        compared = self.criteria.comparison if self.criteria else None
        if compared is None:
            return
        for code in self.rubric.codes:
            counts = compared.confusion(0, 1, code)[:K, :K].astype(float)
            yield {
                "criterion": code,
                "name": self.rubric.criterion(code).name,
                "n": int(counts.sum()),
                "exact": float(exact_share(counts)),
                "mae": float(mean_distance(counts)),
                "judge_higher": int(_above(compared, code)),
                "judge_lower": int(_above(compared, code, -1)),
            }

    def _constants(self) -> Iterator[dict[str, Any]]:
        """Judges that give every criterion of every matched claim one status."""
        compared = self.criteria.comparison if self.criteria else None
        if compared is None:
            return
        given: list[Status] = [item.statuses[0] for item in compared.items]
        own = [status for status in given if status in JUDGED]
        for status in JUDGED:
            apart = [
                abs(JUDGED.index(status) - JUDGED.index(other_status)) / (K - 1)
                for other_status in own
            ]
            yield {
                "status": status,
                "exact": sum(distance == 0 for distance in apart) / len(own) if own else math.nan,
                "mae": fmean(apart) if own else math.nan,
                "n": len(own),
            }

    def _checks(self) -> Iterator[dict[str, Any]]:
        for number, check in enumerate(self.checks, start=1):
            yield {
                "number": number,
                "where": check.where,
                "about": check.about,
                "printed": check.printed,
                "recomputed": check.recomputed,
                "holds": check.holds,
            }

    def _warnings(self) -> list[str]:
        warnings: list[str] = []
        own = self.agreement
        n = len(self.papers)
        if n < SMALL:
            share = own.exact
            warnings.append(
                f"{n} {'paper is' if n == 1 else 'papers are'} few: the interval of the exact share"
                f" is {100 * (share.interval.high - share.interval.low):.0f} points wide."
            )
        if own.n_undefined:
            warnings.append(f"{own.n_undefined} of {n} papers have no score, which is a miss.")
        if self.unlabelled:
            warnings.append(f"Judged, without a label: {', '.join(self.unlabelled)}.")
        if self.unjudged:
            warnings.append(f"With a label, not judged: {', '.join(self.unjudged)}.")
        if failed := sum(check.holds is False for check in self.checks):
            n_printed = sum(check.holds is not None for check in self.checks)
            warnings.append(f"{failed} of {n_printed} printed statements do not hold.")
        return warnings


def _within(k: int) -> str:
    return "exact" if k == 0 else f"within {k}"


def _above(comparison: RaterComparison, code: str, way: int = 1) -> int:
    """Claims on which the judge is above (or below) the reference, where both judged."""
    return sum(
        way * (rank(item.statuses[1]) - rank(item.statuses[0])) > 0
        for item in comparison.items
        if item.criterion == code and all(status in JUDGED for status in item.statuses[:2])
    )
