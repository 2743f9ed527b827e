r"""Scores of claims: pure functions of statuses.

    s_d     level 0 to 3 of a dimension: the highest whose conjuncts are all met
    CVS     10 Σ w_d s_d / Σ 3 w_d                                    (Tower 2026, section 3.4)

With weights 1.5, 1.5, 1, 1, 1 there are 35 attainable values, none of which lies on or is rounded
across a boundary of tiers. Under strict conjuncts PARTIAL meets none, but where a rule says so;
under lenient ones it meets those that name a criterion alone. The paper leaves this open; strict
reproduces its 5.6 for IOI.

NO, NA and NOT TESTED meet nothing and add nothing. A claim of which nothing was judged has no
score (NaN). `highest` is the score if all that was not tested were YES: what is not known yet.
The weighted sum calls a claim that cannot be refuted Triangulated; `gated_tier` is the tier under
the caps of the rubric, which are ours. The score of a paper is that of its system claim, with the
maximum and the median of its claims beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import median
from typing import Literal, get_args

from mechassay.claims.rubric import Dimension, Revision, Rubric
from mechassay.display import OneLine
from mechassay.errors import BadUsage, UnknownName, one_of

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
        each: sum(status == each for status in statuses.values()) for each in STATUSES
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
    return {each.code: _level(rubric, each, statuses, conjuncts) for each in rubric.dimensions}


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
    found: list[tuple[str, tuple[str, ...], str]] = []
    for text in part.split(" | "):
        atom = _ATOM.fullmatch(text)
        if atom is None:
            raise BadUsage(f"{text!r} is no conjunct of a dimension's level.")
        strict = atom["how"] == "=YES" or (atom["how"] is None and conjuncts == "strict")
        enough = ("YES",) if strict else ("YES", "PARTIAL")
        found.append((atom["code"] or "", enough, atom["least"] or ""))
    return tuple(found)


# Score and tiers


def cvs(rubric: Rubric, levels: Mapping[str, int]) -> float:
    """The Claim Validity Score of dimension levels, from 0 to 10."""
    weights = _weights(rubric)
    return _cvs(weights, [levels[each.code] for each in rubric.dimensions])


def attainable(rubric: Rubric) -> tuple[float, ...]:
    """All scores that levels of dimensions can make, rising."""
    return _attainable(_weights(rubric))


def _weights(rubric: Rubric) -> tuple[float, ...]:
    return tuple(each.weight for each in rubric.dimensions)


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


# The ladder of the revision


def ladder_tier(revision: Revision, statuses: Mapping[str, str]) -> str:
    """The highest rung whose needs, and those of all rungs below, are established.

    "" if not even the first is. A need whose status is excluded (N/A) is left out.

    Raises:
        UnknownName: a status that the revision does not have.
        BadUsage: a criterion has no status.
    """
    for code, status in statuses.items():
        one_of(f"status of {code}", status, tuple(revision.statuses))
    reached = ""
    for rung in revision.ladder:
        if not all(_established(revision, need, statuses) for need in rung.needs):
            break
        reached = rung.name
    return reached


def _established(revision: Revision, need: str, statuses: Mapping[str, str]) -> bool:
    codes: Sequence[str] = need.split(" | ")
    if missing := [code for code in codes if code not in statuses]:
        raise BadUsage(f"Every criterion of {revision.key} has a status; {missing[0]} has none.")
    own = [statuses[code] for code in codes]
    left = [status for status in own if status not in revision.excluded]
    return not left or any(status in revision.established for status in left)
