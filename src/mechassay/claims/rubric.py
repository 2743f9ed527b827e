"""Rubrics and scores: criteria in dimensions, and the rules that make scores of statuses.

Rubrics are data (`claims/data`). `mv-27@1` has the 27 criteria and the rules of Tower (2026);
its sentences are ours. A code may mean something else in another rubric, so every file of judgments
names its rubric. Scores are pure functions of statuses:

    s_d     level 0 to 3 of a dimension: the highest whose conjuncts are all met
    CVS     10 Σ w_d s_d / Σ 3 w_d                                    (Tower 2026, section 3.4)

With weights 1.5, 1.5, 1, 1, 1 there are 35 attainable values, none of which lies on or is
rounded across a boundary of tiers. Under strict conjuncts PARTIAL meets none, but where a rule
says so; under lenient ones it meets those that name a criterion alone. The paper leaves this
open; strict reproduces its 5.6 for IOI. NO, NA and NOT TESTED meet nothing and add nothing. A
claim of which nothing was judged has no score (NaN). `highest` is the score if all that was not
tested were YES: what is not known yet.

The weighted sum calls a claim that cannot be refuted Triangulated; `gated_tier` is the tier
under the caps of the rubric, which are ours. The score of a paper is that of its system claim,
with the maximum and the median of its claims beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from statistics import median
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, Field, model_validator

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.results.records import Stored
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

RUBRIC = "mv-27@1"
RUBRICS = (RUBRIC,)
DECLARED, NEEDS = "declared", "needs"
"""Tests that read no record: of what a claim says of itself, and of other criteria."""


def _key(name: str) -> str:
    return next((known for known in RUBRICS if name == known.partition("@")[0]), name)


RubricKey = Annotated[str, AfterValidator(_key)]
"""The key of a rubric with its version, however it was named; `load_rubric` refuses an unknown."""

TestName = Literal[
    "interval",
    "conditions",
    "spread",
    "width",
    "ratio",
    "margin",
    "above",
    "share",
    "value",
    "most",
    "known",
    "verdict",
    "alternative",
    "declared",
    "needs",
]
Where = Literal["", "other task", "held out", "truth", "other family"]


class Dimension(Stored):
    """Criteria that are scored together, from 0 to 3.

    Attributes:
        levels: of each level, what has to be met; see the data for the notation.
        chosen: what was chosen where the paper's words leave a choice.
    """

    code: str
    name: str
    weight: float
    asks: str
    levels: dict[int, tuple[str, ...]]
    chosen: str = ""


class Tier(Stored):
    """A name for scores from `least` on."""

    name: str
    least: float


class TierCap(Stored):
    """The highest tier of a claim whose dimension has `at_most` so much."""

    dimension: str
    at_most: int
    tier: str
    because: str


class Pitfall(Stored):
    """A mistake that raters make, and the criteria that it is made of."""

    id: str
    about: tuple[str, ...]
    origin: Literal["paper", "ours"]
    text: str


class RecordTest(Stored):
    """A question to records; `claims.link` answers it.

    Attributes:
        kind: of the records.
        measure: of the result; with `loss`, 1 less the measure.
        where: which records: those of the claim's own task, of another, of a split that the circuit
            was not found on, of models whose circuit is known, or of another family.
        task: the only task whose claims it is about.
        against: records that the measure is compared with; of an alternative, whether it is one of
            another task.
        control: a measure of the same record that it is compared with.
        least, most: the threshold.
        by, n: the conditions that must differ, and how many are needed.
        optional: whether it counts only where it was tested, and never makes a NO better.
    """

    test: TestName
    measure: str
    kind: str = "circuits"
    loss: bool = False
    where: Where = ""
    task: str = ""
    against: Literal["", "other task", "untrained"] = ""
    control: str = ""
    least: float | None = None
    most: float | None = None
    by: tuple[Literal["ablation", "counterfactual"], ...] = ()
    n: int = 1
    optional: bool = False


class ExecutedRule(Stored):
    """How records decide a criterion: YES if all parts are met, NO if none is, else PARTIAL.

    Attributes:
        at_most: PARTIAL where the records can show a part of the criterion alone.
        needs_recovery: whether a circuit that does nothing would meet it: it is NOT TESTED then.
        origin: where the thresholds are from.
        command: which command makes what is missing, by its name in `claims.dossier`; "" where
            none does.
    """

    parts: tuple[RecordTest, ...]
    says: str
    origin: str
    at_most: Literal["YES", "PARTIAL"] = "YES"
    needs_recovery: bool = False
    command: str = ""

    @model_validator(mode="before")
    @classmethod
    def _one_part(cls, plain: Any) -> Any:
        if not isinstance(plain, dict) or "parts" in plain:
            return plain
        own = {key: plain[key] for key in RecordTest.model_fields if key in plain}
        return {"parts": [own], **{key: plain[key] for key in plain if key not in own}}


class Criterion(Stored):
    """One question about a claim.

    Attributes:
        met, partly, not_met: what YES, PARTIAL and NO say.
        threshold: of the framework's documents.
        leaks: whether evidence of a whole circuit is often taken for that of a part of it.
        rule: how records decide it, where they do.
    """

    code: str
    name: str
    asks: str
    met: str
    partly: str
    not_met: str
    threshold: str
    leaks: bool = False
    rule: ExecutedRule | None = None

    @property
    def dimension(self) -> str:
        """The code of its dimension."""
        return self.code[0]


class Rubric(Stored):
    """Criteria, and how their statuses make a score.

    Attributes:
        statuses: that count in the order from worst to best, with what they add to sums.
        modes, families: of descriptions and of evidence, as a claim names them.
        asked: of each mode, the criteria that have to be met for the evidence to be of its level.
    """

    id: str
    version: int
    name: str
    source: str
    statuses: dict[str, float]
    modes: tuple[str, ...]
    families: tuple[str, ...]
    asked: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    dimensions: tuple[Dimension, ...]
    tiers: tuple[Tier, ...]
    caps: tuple[TierCap, ...]
    pitfalls: tuple[Pitfall, ...]
    criteria: tuple[Criterion, ...]

    def __repr__(self) -> str:
        return f"Rubric({self.key}: {len(self.criteria)} criteria, {self.source})"

    __str__ = __repr__

    @property
    def key(self) -> str:
        """Its id and version, as files name it."""
        return f"{self.id}@{self.version}"

    @cached_property
    def by_code(self) -> dict[str, Criterion]:
        """The criteria by their codes, in their order."""
        return {criterion.code: criterion for criterion in self.criteria}

    @property
    def codes(self) -> tuple[str, ...]:
        """Of the criteria, in their order."""
        return tuple(self.by_code)

    @checked
    def criterion(self, code: str) -> Criterion:
        """The criterion of a code.

        Raises:
            UnknownName: it has none of that code.
        """
        if code not in self.by_code:
            raise UnknownName(f"criterion of {self.key}", code, self.codes)
        return self.by_code[code]

    def of(self, dimension: str) -> tuple[Criterion, ...]:
        """The criteria of a dimension."""
        return tuple(criterion for criterion in self.criteria if criterion.dimension == dimension)

    @property
    def unused(self) -> tuple[str, ...]:
        """Criteria that no level of a dimension names: they never change a score by themselves."""
        named = " ".join(
            part
            for dimension in self.dimensions
            for level in dimension.levels.values()
            for part in level
        )
        summed = {dimension.code for dimension in self.dimensions if "sum" in str(dimension.levels)}
        return tuple(
            criterion.code
            for criterion in self.criteria
            if criterion.code not in named and criterion.dimension not in summed
        )

    def warnings(self, code: str) -> tuple[str, ...]:
        """The pitfalls of a criterion, in words."""
        return tuple(pitfall.text for pitfall in self.pitfalls if code in pitfall.about)


@checked
def load_rubric(name: str = RUBRIC) -> Rubric:
    """A rubric by its id, with or without the version: "mv-27@1", "mv-27".

    Raises:
        UnknownName: there is none of that name.
    """
    key = _key(name)
    if key not in RUBRICS:
        raise UnknownName("rubric", name, RUBRICS)
    return _rubric(key)


@cache
def _rubric(key: str) -> Rubric:
    return Rubric.model_validate(_data(key))


def _data(key: str) -> Any:
    name = f"{key.partition('@')[0]}.yaml"
    return yaml.safe_load(files("mechassay.claims").joinpath("data", name).read_text("utf-8"))


Status = Literal["YES", "PARTIAL", "NO", "NA", "NOT TESTED"]
STATUSES: tuple[Status, ...] = get_args(Status)
JUDGED: tuple[Status, ...] = ("NO", "PARTIAL", "YES")
"""Statuses that say something of the claim, from worst to best."""
Conjuncts = Literal["strict", "lenient"]
LEVELS = 3
_ATOM = re.compile(r"(?P<code>[A-Z]\d+)(?P<how>=YES|>=PARTIAL)?|sum>=(?P<least>[\d.]+)")

Statuses = Mapping[str, Status]


@dataclass(frozen=True, repr=False)
class ClaimScore(OneLine):
    """What the statuses of a claim make.

    Attributes:
        cvs: from 0 to 10; NaN if nothing was judged.
        tier, gated_tier: by the score, and under the caps; "" without a score.
        because: the caps that hold the gated tier down.
        dimensions: the level of each, 0 to 3.
        highest: the score if all that was not tested were YES.
        counts: criteria by status.
    """

    cvs: float
    tier: str
    gated_tier: str
    because: tuple[str, ...]
    dimensions: Mapping[str, int]
    highest: float
    counts: Mapping[Status, int]
    conjuncts: Conjuncts = "strict"

    @property
    def n_judged(self) -> int:
        return sum(self.counts[status] for status in JUDGED)


@dataclass(frozen=True, repr=False)
class PaperScore(OneLine):
    """What the claims of a paper make.

    Attributes:
        system: the claim whose score is the paper's, and why it is that one.
        highest, median: over all claims that have a score.
    """

    system: str
    why: str
    cvs: float
    tier: str
    gated_tier: str
    highest: float
    median: float
    n: int
    n_undefined: int


def claim_score(rubric: Rubric, statuses: Statuses, conjuncts: Conjuncts = "strict") -> ClaimScore:
    """The score of a claim.

    Args:
        statuses: of every criterion of the rubric.

    Raises:
        UnknownName: a criterion or a status that the rubric does not have.
        BadUsage: a criterion has no status.
    """
    one_of("choice of conjuncts", conjuncts, get_args(Conjuncts))
    check_statuses(rubric, statuses)
    levels = dimension_levels(rubric, statuses, conjuncts)
    counts: dict[Status, int] = {
        one_status: sum(status == one_status for status in statuses.values())
        for one_status in STATUSES
    }
    if not any(counts[status] for status in JUDGED):
        return ClaimScore(math.nan, "", "", (), levels, math.nan, counts, conjuncts)
    score = cvs(rubric, levels)
    best: Statuses = {
        code: "YES" if status == "NOT TESTED" else status for code, status in statuses.items()
    }
    tier = tier_of(rubric, score)
    gated, because = gated_tier(rubric, levels)
    highest = cvs(rubric, dimension_levels(rubric, best, conjuncts))
    return ClaimScore(score, tier, gated, because, levels, highest, counts, conjuncts)


def without_reader(rubric: Rubric) -> float:
    """The highest score that rules can give: what no rule decides is not met, and a rule that shows
    a part alone gives PARTIAL.
    """
    statuses: Statuses = {
        criterion.code: "NOT TESTED" if criterion.rule is None else criterion.rule.at_most
        for criterion in rubric.criteria
    }
    return claim_score(rubric, statuses).cvs


def check_statuses(rubric: Rubric, statuses: Mapping[str, str]) -> None:
    """Refuse statuses that are not one of each criterion.

    Raises:
        UnknownName: a criterion or a status that the rubric does not have.
        BadUsage: a criterion has no status.
    """
    for code, status in statuses.items():
        rubric.criterion(code)
        if status not in STATUSES:
            raise UnknownName(f"status of {code}", status, STATUSES)
    if missing := [code for code in rubric.codes if code not in statuses]:
        raise BadUsage(
            f"Every criterion of {rubric.key} has a status; {', '.join(missing)} have none. What"
            " was not judged is NOT TESTED."
        )


# Dimensions


def dimension_levels(
    rubric: Rubric, statuses: Statuses, conjuncts: Conjuncts = "strict"
) -> dict[str, int]:
    """The level of each dimension, 0 to 3."""
    return {
        dimension.code: _level(rubric, dimension, statuses, conjuncts)
        for dimension in rubric.dimensions
    }


def _level(rubric: Rubric, dimension: Dimension, statuses: Statuses, conjuncts: Conjuncts) -> int:
    own = [status for code, status in statuses.items() if code[0] == dimension.code]
    total = sum(rubric.statuses.get(status, 0.0) for status in own)
    reached = 0
    for level, parts in dimension.levels.items():
        if level > reached and all(
            any(
                total >= float(least) if least else statuses[code] in enough
                for code, enough, least in _atoms(part, conjuncts)
            )
            for part in parts
        ):
            reached = level
    return reached


@cache
def _atoms(part: str, conjuncts: str) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """What a conjunct needs, any of: a criterion with the statuses that meet it, or a sum."""
    rows: list[tuple[str, tuple[str, ...], str]] = []
    for text in part.split(" | "):
        atom = _ATOM.fullmatch(text)
        if atom is None:
            raise BadUsage(f"{text!r} is no conjunct of a dimension's level.")
        strict = atom["how"] == "=YES" or (atom["how"] is None and conjuncts == "strict")
        enough = ("YES",) if strict else ("YES", "PARTIAL")
        rows.append((atom["code"] or "", enough, atom["least"] or ""))
    return tuple(rows)


# Score and tiers


def cvs(rubric: Rubric, levels: Mapping[str, int]) -> float:
    """The Claim Validity Score of dimension levels, from 0 to 10."""
    weights = _weights(rubric)
    return _cvs(weights, [levels[dimension.code] for dimension in rubric.dimensions])


@checked
def attainable(rubric: Rubric) -> tuple[float, ...]:
    """All scores that levels of dimensions can make, rising."""
    return _attainable(_weights(rubric))


def _weights(rubric: Rubric) -> tuple[float, ...]:
    return tuple(dimension.weight for dimension in rubric.dimensions)


def _cvs(weights: Sequence[float], levels: Sequence[int]) -> float:
    total = sum(weight * level for weight, level in zip(weights, levels, strict=True))
    return 10 * total / sum(LEVELS * weight for weight in weights)


@cache
def _attainable(weights: tuple[float, ...]) -> tuple[float, ...]:
    profiles = product(range(LEVELS + 1), repeat=len(weights))
    return tuple(sorted({_cvs(weights, levels) for levels in profiles}))


def tier_of(rubric: Rubric, score: float) -> str:
    """The tier of a score, which is not rounded; "" of NaN."""
    return next((tier.name for tier in reversed(rubric.tiers) if score >= tier.least), "")


def gated_tier(rubric: Rubric, levels: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """The tier under the rubric's caps, and why it is below that of the score."""
    names = [tier.name for tier in rubric.tiers]
    own = names.index(tier_of(rubric, cvs(rubric, levels)))
    held = [cap for cap in rubric.caps if levels[cap.dimension] <= cap.at_most]
    lowest = min([own, *(names.index(cap.tier) for cap in held)])
    because = tuple(cap.because for cap in held if names.index(cap.tier) == lowest and lowest < own)
    return names[lowest], because


def lifting(rubric: Rubric, statuses: Statuses, conjuncts: Conjuncts = "strict") -> tuple[str, ...]:
    """Criteria of which YES alone would raise the score."""
    now = cvs(rubric, dimension_levels(rubric, statuses, conjuncts))
    return tuple(
        code
        for code, status in statuses.items()
        if status != "YES"
        and cvs(rubric, dimension_levels(rubric, {**statuses, code: "YES"}, conjuncts)) > now
    )


# Papers


def paper_score(scores: Mapping[str, ClaimScore], system: str, why: str = "") -> PaperScore:
    """The score of a paper by the scores of its claims.

    Args:
        system: the claim that is the paper's; see `claims.claim.system_claim`.

    Raises:
        UnknownName: no claim has this name.
    """
    if system not in scores:
        raise UnknownName("claim", system, scores)
    own = scores[system]
    known = [score.cvs for score in scores.values() if not math.isnan(score.cvs)]
    return PaperScore(
        system,
        why,
        own.cvs,
        own.tier,
        own.gated_tier,
        max(known, default=math.nan),
        median(known) if known else math.nan,
        len(scores),
        len(scores) - len(known),
    )
