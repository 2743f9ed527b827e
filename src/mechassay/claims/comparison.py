"""How raters differ: on every criterion, in statistics of agreement, and what is left to settle.

Files are compared on the claims that they share by id. YES, PARTIAL and NO are ordinal and enter
kappa and alpha; NA and NOT TESTED say nothing and are counted apart. Intervals are bootstraps
over claims, as the criteria of one claim depend on each other; one claim has no interval. Beside
them stands what as many criteria would show of raters with a true kappa of .5: one paper, 27
criteria, reads .12 to .80 and so cannot validate a rater. Judgments of another model's records
are listed and enter no statistic. The statistics, from counts alone:

    exact       Σ o_ii / n
    kappa       1 - Σ v_ij o_ij / Σ v_ij e_ij,  e from the margins of both raters; weighted with
                v_ij = (i - j)² (Cohen 1968), unweighted with v_ij = 1 for i ≠ j (Cohen 1960)
    alpha       1 - Σ v_ij o_ij / Σ v_ij e_ij,  o the coincidences of all raters, each unit's
                pairs divided by its raters less one, e from the margins of o, v_ij of ordinal
                data: (Σ_{g=i}^{j} n_g - (n_i + n_j) / 2)²            (Krippendorff 2019, ch. 12)

Counts add over units, so a bootstrap is a product of matrices. A statistic is undefined (NaN)
without units, and where all units have one category: agreement by chance is then certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import binomtest

from mechassay.claims.judgments import JudgedClaim, Judgment, Judgments, Rater, now, rater_names
from mechassay.claims.rubric import JUDGED, STATUSES, Status
from mechassay.errors import BadUsage
from mechassay.results.measures import measure_texts
from mechassay.results.records import Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import (
    N_RESAMPLES,
    NO_INTERVAL,
    Estimate,
    Interval,
    percentile_interval,
)
from mechassay.utils.arguments import checked


def confusion(
    first: Int[np.ndarray, "units"], second: Int[np.ndarray, "units"], k: int
) -> Float[np.ndarray, "k k"]:
    """How often the first rater says i where the second says j; -1 is nothing, and left out."""
    both = (first >= 0) & (second >= 0)
    counts = np.zeros((k, k))
    np.add.at(counts, (first[both], second[both]), 1.0)
    return counts


def exact_share(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """The share of units on which both raters agree."""
    return ratio(np.trace(counts, axis1=-2, axis2=-1), counts.sum(axis=(-2, -1)))


def weighted_kappa(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Cohen's kappa with quadratic weights, of tables of counts."""
    places = np.arange(counts.shape[-1], dtype=float)
    return _kappa(counts, (places[:, None] - places) ** 2)


def unweighted_kappa(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Cohen's kappa: every disagreement counts the same."""
    return _kappa(counts, 1 - np.eye(counts.shape[-1]))


def _kappa(
    counts: Float[np.ndarray, "*lead k k"], weights: Float[np.ndarray, "k k"]
) -> Float[np.ndarray, "*lead"]:
    total = counts.sum(axis=(-2, -1))
    expected = counts.sum(axis=-1)[..., :, None] * counts.sum(axis=-2)[..., None, :]
    observed = (weights * counts).sum(axis=(-2, -1)) * total
    return np.asarray(1 - ratio(observed, (weights * expected).sum(axis=(-2, -1))))


def sign_test(one_way: int, other_way: int) -> float:
    """The two-sided p of so many differences each way, if both ways were as likely; NaN of none.

    Of pairs of yes and no it is the exact form of McNemar's test.
    """
    n = one_way + other_way
    return float(binomtest(one_way, n).pvalue) if n else float("nan")


def coincidences(ratings: Int[np.ndarray, "raters units"], k: int) -> Float[np.ndarray, "k k"]:
    """How often two raters of one unit say i and j; -1 is nothing.

    A unit with m ratings counts m: each of its ordered pairs is 1 / (m - 1). One rating is no pair.
    """
    votes = (ratings[..., None] == np.arange(k)).sum(axis=0).astype(float)
    votes = votes[votes.sum(axis=1) > 1]
    pairs = votes[:, :, None] * votes[:, None, :]
    pairs[:, np.arange(k), np.arange(k)] -= votes
    return (pairs / (votes.sum(axis=1) - 1)[:, None, None]).sum(axis=0)


def ordinal_alpha(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Krippendorff's alpha of ordinal data, of tables of coincidences."""
    margins = counts.sum(axis=-1)
    below = np.cumsum(margins, axis=-1) - margins / 2
    weights = (below[..., :, None] - below[..., None, :]) ** 2
    total = margins.sum(axis=-1)
    same = np.eye(counts.shape[-1]) * margins[..., None, :]
    expected = margins[..., :, None] * margins[..., None, :] - same
    observed = (weights * counts).sum(axis=(-2, -1)) * (total - 1)
    return np.asarray(1 - ratio(observed, (weights * expected).sum(axis=(-2, -1))))


def ratio(top: Any, bottom: Any) -> Float[np.ndarray, "*lead"]:
    """One by the other; NaN where the other is not above 0."""
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    ratios = np.full(bottom.shape, np.nan)
    np.divide(top, bottom, out=ratios, where=bottom > 0)
    return ratios


def kappas_by_chance(
    n: int,
    true: float,
    shares: Float[np.ndarray, "k"],
    rng: np.random.Generator,
    n_draws: int = 20_000,
) -> Float[np.ndarray, "draws"]:
    """Weighted kappas that n units show of two raters whose kappa is `true`.

    Both have the margins `shares`; the second repeats the first with probability `true`, and else
    draws its own. Then kappa is `true`, whatever its weights.
    """
    same = np.diag(shares) * true + np.outer(shares, shares) * (1 - true)
    k = len(shares)
    draws = rng.multinomial(n, same.ravel(), size=n_draws).reshape(n_draws, k, k)
    return weighted_kappa(draws.astype(float))


K = len(JUDGED)
TRUE_KAPPA = 0.5
SHARES = (0.4, 0.2, 0.4)
"""Margins of NO, PARTIAL and YES in the simulation of one paper."""


@dataclass(frozen=True)
class JudgedItem:
    """One criterion of one claim, and what every rater says of it."""

    claim: str
    criterion: str
    judgments: tuple[Judgment, ...]

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(judgment.status for judgment in self.judgments)

    @property
    def distance(self) -> int:
        """Between the best and the worst status that says something: 2 of YES and NO."""
        places = [JUDGED.index(status) for status in self.statuses if status in JUDGED]
        return max(places) - min(places) if places else 0

    @property
    def differs(self) -> bool:
        return len(set(self.statuses)) > 1


@dataclass(frozen=True)
class AgreementMeasure:
    """A statistic of two raters, or of all of them, with its interval."""

    name: str
    between: str
    value: float
    interval: Interval
    n: int


@dataclass(frozen=True, repr=False)
class RaterComparison(Result, kind="claims-comparison"):
    """Raters, item by item.

    Attributes:
        names: of the raters.
        compared: which of them enter the statistics; the others judged another model.
        items: every criterion of every claim that all files have.
        left_out: claims that some file does not have.
        measures: exact agreement, kappa, difference and its size of each two raters; alpha of all.
        by_chance: the kappas that as many criteria show of raters whose kappa is .5.
    """

    names: tuple[str, ...]
    compared: tuple[bool, ...]
    rubric: str
    claims: tuple[str, ...]
    left_out: tuple[str, ...]
    items: tuple[JudgedItem, ...]
    measures: tuple[AgreementMeasure, ...]
    by_chance: Interval

    @property
    def n_judged(self) -> int:
        """Items that two raters of the statistics judged, of the two that have most."""
        return max((measure.n for measure in self.measures if measure.name == "exact"), default=0)

    def disagreements(self) -> list[JudgedItem]:
        """Items on which raters differ, the farthest apart first."""
        differing = [item for item in self.items if item.differs]
        return sorted(differing, key=lambda item: -item.distance)

    @checked
    def measure(self, name: str, between: str = "") -> AgreementMeasure:
        """A statistic; of the first two raters, or of all, if it is not said.

        Raises:
            BadUsage: there is none.
        """
        for measure in self.measures:
            if measure.name == name and between in ("", measure.between):
                return measure
        raise BadUsage(f"There is no {name} of {between or 'these raters'}.")

    @checked
    def confusion(self, first: int, second: int, criterion: str = "") -> Int[np.ndarray, "5 5"]:
        """How often one rater gives each status where another gives each, by `STATUSES`."""
        counts = np.zeros((len(STATUSES),) * 2, dtype=np.int64)
        for item in self.items:
            if criterion in ("", item.criterion):
                row, column = (STATUSES.index(item.statuses[n]) for n in (first, second))
                counts[row, column] += 1
        return counts

    def reading(self) -> str:
        """What the numbers can say of a rater."""
        low, high, _ = self.by_chance
        n, claims = self.n_judged, len(self.claims)
        if not n:
            return "No criterion was judged by two raters: there is no agreement to speak of."
        sentence = (
            f"{n} criteria of {claims} {'claim' if claims == 1 else 'claims'}: raters whose kappa"
            f" is {TRUE_KAPPA:g} would show {low:.2f} to {high:.2f} here."
        )
        alone = " One paper cannot validate a rater." if claims == 1 else ""
        return sentence + alone

    @checked
    def adjudication(self, judgments: Sequence[Judgments]) -> Judgments:
        """Judgments to settle: what all agree on stands; the rest is NOT TESTED, with what each
        rater says as its reason. The form reads it.
        """
        first = judgments[0]
        settled = [
            JudgedClaim(
                claim=first.claim(name).claim,
                criteria={
                    item.criterion: _to_settle(item, self.names)
                    for item in self.items
                    if item.claim == name
                },
            )
            for name in self.claims
        ]
        documents = {document.sha256: document for one in judgments for document in one.documents}
        return Judgments(
            rubric=self.rubric,
            rater=Rater(kind="human", id="adjudication"),
            created=now(),
            documents=tuple(documents.values()),
            claims=tuple(settled),
        )

    def contents(self) -> RecordContents:
        texts = measure_texts("claims-comparison")
        measures = [
            texts.measure(
                measure.name if measure.name == "alpha" else f"{measure.name} {{between}}",
                Estimate(measure.value, measure.interval.low, measure.interval.high),
                n=measure.n,
                between=measure.between,
            )
            for measure in self.measures
        ]
        raters = "; ".join(self.names)
        warnings = [self.reading()]
        if self.left_out:
            warnings.append(f"Not in every file, and left out: {', '.join(self.left_out)}.")
        aside = [name for name, own in zip(self.names, self.compared, strict=True) if not own]
        if aside:
            warnings.append(f"Of another model, beside the others: {', '.join(aside)}.")
        identifier, _, version = self.rubric.partition("@")
        return {
            "cell": {"raters": raters},
            "specs": {
                "method": Spec(name=raters),
                "rubric": Spec(name=identifier, version=int(version)),
            },
            "measures": measures,
            "tables": [
                Table.of("disagreements", ("claim", "criterion"), self._rows()),
                Table.of("confusion", ("raters", "first", "second"), self._confusions()),
                Table.of("criteria", ("criterion", "raters"), self._by_criterion()),
            ],
            "warnings": warnings,
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        for item in self.disagreements():
            statuses = dict(zip(self.names, item.statuses, strict=True))
            reasons = [
                f"{name}: {judgment.reason}"
                for name, judgment in zip(self.names, item.judgments, strict=True)
                if judgment.reason
            ]
            place = {"claim": item.claim, "criterion": item.criterion, "distance": item.distance}
            yield {**place, **statuses, "reasons": " | ".join(reasons)}

    def _pairs(self) -> list[tuple[int, int, str]]:
        return [
            (a, b, f"{self.names[a]} – {self.names[b]}")
            for a, b in combinations(range(len(self.names)), 2)
        ]

    def _confusions(self) -> Iterator[dict[str, Any]]:
        for a, b, between in self._pairs():
            counts = self.confusion(a, b)
            for row, column in np.argwhere(counts).tolist():
                names = {"first": STATUSES[row], "second": STATUSES[column]}
                yield {"raters": between, **names, "n": int(counts[row, column])}

    def _by_criterion(self) -> Iterator[dict[str, Any]]:
        for code in dict.fromkeys(item.criterion for item in self.items):
            for a, b, between in self._pairs():
                counts = self.confusion(a, b, code)
                judged = counts[:K, :K]
                off = int(counts.sum() - np.trace(counts))
                apart = {f"{x} – {y}": (x, y) for x in STATUSES for y in STATUSES if x != y}
                shares = {
                    name: int(counts[STATUSES.index(x), STATUSES.index(y)])
                    for name, (x, y) in apart.items()
                }
                yield {
                    "criterion": code,
                    "raters": between,
                    "n": int(judged.sum()),
                    "exact": float(exact_share(judged.astype(float))),
                    "differ": off,
                    "how": ", ".join(f"{name}: {n}" for name, n in shares.items() if n),
                }


@checked
def compare(
    judgments: Sequence[Judgments],
    rng: np.random.Generator | None = None,
    n_resamples: int = N_RESAMPLES,
) -> RaterComparison:
    """Compare the judgments of several raters on the claims that all of them have.

    Args:
        rng: of the bootstrap over claims; seeded with 0 if not given.

    Raises:
        BadUsage: fewer than two files, two rubrics, or no claim that all have.
    """
    if len(judgments) < 2:
        raise BadUsage(f"A comparison takes at least two files of judgments; got {len(judgments)}.")
    rubrics = list(dict.fromkeys(judgment.rubric for judgment in judgments))
    if len(rubrics) > 1:
        raise BadUsage(f"Judgments by different rubrics cannot be compared; got {rubrics}.")
    ids = [[judged.claim.id for judged in judgment.claims] for judgment in judgments]
    shared = tuple(name for name in ids[0] if all(name in other for other in ids))
    if not shared:
        raise BadUsage(f"No claim is in all files; they have {[sorted(own) for own in ids]}.")
    items = [
        JudgedItem(name, code, tuple(judgment.claim(name).criteria[code] for judgment in judgments))
        for name in shared
        for code in judgments[0].criteria.codes
    ]
    names, compared = (
        rater_names(judgments),
        tuple(judgment.scope == "claim" for judgment in judgments),
    )
    rng = np.random.default_rng(0) if rng is None else rng
    left = sorted({name for own in ids for name in own} - set(shared))
    draws = rng.multinomial(len(shared), [1 / len(shared)] * len(shared), size=n_resamples)
    measures = tuple(_measures(items, shared, names, compared, draws.astype(float)))
    n_judged = max((measure.n for measure in measures if measure.name == "exact"), default=0)
    chance = kappas_by_chance(n_judged, TRUE_KAPPA, np.array(SHARES), rng)
    defined = chance[~np.isnan(chance)]
    by_chance = percentile_interval(defined) if len(defined) else NO_INTERVAL
    return RaterComparison(
        names, compared, rubrics[0], shared, tuple(left), tuple(items), measures, by_chance
    )


def _measures(
    items: Sequence[JudgedItem],
    claims: Sequence[str],
    names: Sequence[str],
    compared: Sequence[bool],
    draws: Float[np.ndarray, "resamples claims"],
) -> Iterator[AgreementMeasure]:
    places = [n for n, own in enumerate(compared) if own]
    rated = np.array(
        [[_place(item.statuses[rater]) for item in items] for rater in places], dtype=np.int64
    ).reshape(len(places), len(claims), -1)

    def measure(name: str, between: str, tables: Any, statistic: Any) -> AgreementMeasure:
        """A statistic of tables of counts, one a claim."""
        whole = float(statistic(tables.sum(axis=0)))
        resampled = statistic(np.einsum("rc,cij->rij", draws, tables))
        defined = resampled[~np.isnan(resampled)]
        # With one claim, and where a tenth of the resamples say nothing, there is no interval.
        few = len(claims) < 2 or len(defined) < 0.9 * len(resampled) or math.isnan(whole)
        interval = NO_INTERVAL if few else percentile_interval(defined, n_groups=len(claims))
        return AgreementMeasure(name, between, whole, interval, round(float(tables.sum())))

    for a, b in combinations(range(len(places)), 2):
        between = f"{names[places[a]]} – {names[places[b]]}"
        both = zip(rated[a], rated[b], strict=True)
        tables = np.stack([confusion(one, other, K) for one, other in both])
        yield measure("exact", between, tables, exact_share)
        yield measure("kappa", between, tables, weighted_kappa)
        yield measure("difference", between, tables, _difference)
        yield measure("distance", between, tables, mean_distance)
    if len(places) > 1:
        tables = np.stack([coincidences(rated[:, n], K) for n in range(len(claims))])
        yield measure("alpha", "all raters", tables, ordinal_alpha)


def _place(status: Status) -> int:
    return JUDGED.index(status) if status in JUDGED else -1


def _difference(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """By how much the second rater is stricter, in the rubric's points: YES less NO is 1."""
    points = np.arange(K) / (K - 1)
    summed = (counts * (points[:, None] - points)).sum(axis=(-2, -1))
    return ratio(summed, counts.sum(axis=(-2, -1)))


def mean_distance(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """The mean size of the difference in points: 1 between YES and NO, 1/2 between neighbours."""
    points = np.arange(K) / (K - 1)
    summed = (counts * abs(points[:, None] - points)).sum(axis=(-2, -1))
    return ratio(summed, counts.sum(axis=(-2, -1)))


def _to_settle(item: JudgedItem, names: Sequence[str]) -> Judgment:
    evidence = tuple(quote for judgment in item.judgments for quote in judgment.evidence)
    unique = tuple({quote.model_dump_json(): quote for quote in evidence}.values())
    if not item.differs:
        reasons = dict.fromkeys(judgment.reason for judgment in item.judgments if judgment.reason)
        return Judgment(status=item.statuses[0], reason=" | ".join(reasons), evidence=unique)
    reasons_given = [
        f"{name}: {judgment.status}{f', {judgment.reason}' if judgment.reason else ''}"
        for name, judgment in zip(names, item.judgments, strict=True)
    ]
    return Judgment(
        status="NOT TESTED", reason=f"To settle. {' | '.join(reasons_given)}", evidence=unique
    )
