"""Votes of several runs of judges: which of their claims are the same, and one status for each.

`match_claims` matches the claims of the runs one to one, by their words and components:

    words        2 |A ∩ B| / (|A| + |B|) of the sets of content words        (Dice 1945)
    components   |A ∩ B| / |A ∪ B| of their names
    similarity   the mean of both; that of words where one of the claims names no component

Similarity is that of words, not of meaning: a paraphrase without a common word is another claim,
and a claim that merges two is matched to one of them.

`vote` gives each claim, criterion by criterion, the least status that any run gives (Tower 2026,
section 3.7). Mean, median and majority stand beside it. They are of the runs that say something.

    minimum    NO < PARTIAL < YES. Where a run says nothing (NOT TESTED, NA), it is NO if another
               says NO, else NOT TESTED: what one run has not found was not found by all
    mean       the status nearest to the mean of the points, the lower of two that are as near
    median     the lower one of two in the middle
    majority   what more than half say; if there is none, the median

Where no run says anything, all four are NA if all runs say NA, else NOT TESTED.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from mechassay.claims.claim import Claim, ClaimFile, check_claims, component_name, system_claim
from mechassay.claims.judgments import (
    JudgedClaim,
    Judgment,
    Judgments,
    Rater,
    RunClaim,
    SourceDocument,
    StatusStep,
    StepInput,
    TakenStep,
    now,
    rank,
    rater_names,
)
from mechassay.claims.rubric import JUDGED, Status
from mechassay.errors import BadUsage, one_of
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

LIKE = 0.6
"""The similarity from which two claims are one; claims on parts of one circuit reach about .5."""
_FUNCTION_WORDS = (
    "a all also an and are as at be been between but by can do does for from had has have how if"
    " in into is it its no not of on only onto or over so such than that the their them then there"
    " these they this those through to up via was were what when where which while who whose will"
    " with within"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_WORD = re.compile(r"[al]?\d+[.h]h?\d+|\w\w+|\d")


@dataclass(frozen=True, repr=False)
class ClaimGroup(OneLine):
    """The claims of several runs that are taken for one.

    Attributes:
        lead: the claim that the others were matched to.
        members: of each run that has it, its claim.
        similarity: of each member to the lead.
    """

    lead: Claim
    members: dict[int, JudgedClaim]
    similarity: dict[int, float]


def similarity(a: Claim, b: Claim) -> float:
    """How like two claims are, from 0 to 1; 0 where neither has a content word or component."""
    words = content_words(a.statement), content_words(b.statement)
    sizes = len(words[0]) + len(words[1])
    alike = 2 * len(words[0] & words[1]) / sizes if sizes else 0.0
    parts = [{component_name(component) for component in claim.components} for claim in (a, b)]
    if not all(parts):
        return alike
    return (alike + len(parts[0] & parts[1]) / len(parts[0] | parts[1])) / 2


def content_words(text: str) -> frozenset[str]:
    """Its words without function words, endings of plurals, and ways to write a head."""
    words = (component_name(word) for word in _WORD.findall(text.casefold()))
    return frozenset(_singular(word) for word in words if word not in FUNCTION_WORDS)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "su" else word


def match_claims(
    runs: Sequence[Judgments], given: Sequence[Claim] = (), like: float = LIKE
) -> list[ClaimGroup]:
    """Groups of claims that are one, of which every claim of every run is in exactly one.

    The run with most claims leads. The claims of each other run are assigned to its claims such
    that the summed similarity is largest (Kuhn 1955); less than `like` is no match. Then the
    run with most of the claims that are left leads, until none is left. Among runs with as many
    claims their content decides, never their order: the run that is most like the others leads.

    Each run is matched to the leading one alone. Another run therefore changes no match, unless
    it leads. Claims that are given beforehand lead first, so that no other run changes their
    matches.

    Args:
        given: claims that lead; one that no run makes has no group.
        like: the least similarity of a match, above 0 and at most 1.

    Returns:
        The groups in the order of the claims that lead.

    Raises:
        BadUsage: `like` outside of its range.
    """
    if not 0 < like <= 1:
        raise BadUsage(f"The least similarity of a match is above 0 and at most 1; got {like}.")
    # In an order of their content, so that equals are matched alike in whatever order they come.
    left = [sorted(run.claims, key=_content) for run in runs]
    groups = _matched(list(given), left, like) if given else []
    while any(left):
        leader = _leader(left)
        order = {judged.claim.id: place for place, judged in enumerate(runs[leader].claims)}
        lead = sorted(left[leader], key=lambda judged: order[judged.claim.id])
        groups += _matched([judged.claim for judged in lead], left, like, lead, leader)
    return groups


def _matched(
    claims: Sequence[Claim],
    left: list[list[JudgedClaim]],
    like: float,
    own: Sequence[JudgedClaim] = (),
    leader: int = -1,
) -> list[ClaimGroup]:
    """Take what matches the leading claims out of what is left."""
    groups = [ClaimGroup(claim, {}, {}) for claim in claims]
    for place, judged in enumerate(own):
        groups[place].members[leader] = judged
        groups[place].similarity[leader] = 1.0
    order = sorted(range(len(claims)), key=lambda place: claims[place].model_dump_json())
    for run, others in enumerate(left):
        if run == leader:
            left[run] = []
            continue
        likeness = similarities(
            [claims[place] for place in order], [other_claim.claim for other_claim in others]
        )
        likeness = np.where(likeness >= like, likeness, 0.0)
        taken: set[int] = set()
        for row, column in zip(*linear_sum_assignment(likeness, maximize=True), strict=True):
            if likeness[row, column] > 0:
                group = groups[order[row]]
                group.members[run] = others[column]
                group.similarity[run] = float(likeness[row, column])
                taken.add(int(column))
        left[run] = [other for place, other in enumerate(others) if place not in taken]
    return [group for group in groups if group.members]


def similarities(a: Sequence[Claim], b: Sequence[Claim]) -> Float[np.ndarray, "a b"]:
    """The similarity of each claim to each other one."""
    return np.array([[similarity(one, other) for other in b] for one in a]).reshape(len(a), len(b))


def _leader(left: Sequence[Sequence[JudgedClaim]]) -> int:
    """The run with most claims; among equals the one most like the others, then by content."""
    most = max(map(len, left))
    tied = [run for run, claims in enumerate(left) if len(claims) == most]
    if len(tied) == 1:
        return tied[0]
    alike = np.zeros((len(left),) * 2)
    for a, b in combinations(range(len(left)), 2):
        likeness = similarities(
            [claim.claim for claim in left[a]], [other_claim.claim for other_claim in left[b]]
        )
        alike[a, b] = alike[b, a] = round(float(likeness.sum()), 9)
    return min(
        tied, key=lambda run: (-round(float(alike[run].sum()), 6), [*map(_content, left[run])])
    )


def _content(judged: JudgedClaim) -> tuple[str, str]:
    return judged.claim.statement, judged.model_dump_json()


Aggregate = Literal["minimum", "mean", "median", "majority"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


def aggregated(statuses: Sequence[Status], how: Aggregate = "minimum") -> Status:
    """What the statuses of several runs make.

    Raises:
        UnknownName: an aggregate that there is not.
        BadUsage: no statuses.
    """
    one_of("aggregate", how, AGGREGATES)
    if not statuses:
        raise BadUsage("There are no statuses to make one of.")
    places = sorted(JUDGED.index(status) for status in statuses if status in JUDGED)
    if not places:
        return "NA" if set(statuses) == {"NA"} else "NOT TESTED"
    median = JUDGED[places[(len(places) - 1) // 2]]
    match how:
        case "minimum":
            silent = len(places) < len(statuses)
            return "NOT TESTED" if silent and places[0] > 0 else JUDGED[places[0]]
        case "mean":
            return JUDGED[math.ceil(sum(places) / len(places) - 0.5)]
        case "median":
            return median
        case "majority":
            most = max(set(places), key=places.count)
            return JUDGED[most] if 2 * places.count(most) > len(places) else median


@checked
def vote(
    runs: Sequence[Judgments],
    claims: ClaimFile | None = None,
    *,
    like: float = LIKE,
    support: int = 1,
    by: Aggregate = "minimum",
    finished: bool = False,
) -> Judgments:
    """The minimum of several runs on one source, claim by claim and criterion by criterion.

    A claim that only some runs make is judged by those, and keeps their number (support).
    Reason and evidence are those of a run that gives the status. All statuses of all runs are
    kept.

    The minimum never rises with another run of the same claims, and no score of the vote is
    above that of one of its runs (both by monotone rules of scores). It is no unbiased
    estimate: it falls with every run. Nor does it always steady a status. A status that a run
    calls YES with probability p is YES of all N runs with p^N. The variance p^N (1 - p^N) is
    larger than p (1 - p) where p is large (.25 to .16 at p = .8, N = 3).

    Args:
        claims: that lead the matching, if they were given beforehand (see `match_claims`).
        like: the least similarity of claims that are one.
        support: how many runs have to make a claim; others are left out.
        by: what the statuses of several runs make; others than the minimum for a consensus.
        finished: whether runs may have been voted on, audited or challenged: a consensus of several
            judges is of what each of them ends with.

    Returns:
        Judgments whose steps name the runs, with the hash of each; every claim has the claims
        that it was made of, every status those of the runs.

    Raises:
        BadUsage: fewer than two runs; of two rubrics, sources or scopes; runs that went through
            a step already; or no claim has enough support.
    """
    one_of("aggregate", by, AGGREGATES)
    _check(runs, claims, finished)
    names = rater_names(runs)
    groups = [
        group
        for group in match_claims(runs, claims.claims if claims else (), like)
        if len(group.members) >= support
    ]
    if not groups:
        raise BadUsage(f"No claim is made by {support} of {len(runs)} runs.")
    systems = [system_claim([judged.claim for judged in run.claims])[0] for run in runs]
    system = _system(groups, systems, claims)
    judged: list[JudgedClaim] = []
    for place, group in enumerate(groups):
        taken = [own.claim.id for own in judged]
        claim = group.lead.model_copy(
            update={"id": _unique(group.lead.id, taken), "system": place == system}
        )
        judged.append(_voted(claim, group, names, systems, runs[0].criteria.codes, by))
    check_claims(runs[0].rubric, [own.claim for own in judged])
    documents: dict[str, SourceDocument] = {
        document.sha256: document for run in runs for document in run.documents
    }
    return Judgments(
        rubric=runs[0].rubric,
        rater=Rater(kind="vote", id=f"{by} of {', '.join(names)}"),
        scope=runs[0].scope,
        created=now(),
        documents=tuple(documents.values()),
        claims=tuple(judged),
        steps=(TakenStep(step="vote", inputs=tuple(map(step_input, names, runs))),),
    )


def step_input(name: str, judgments: Judgments) -> StepInput:
    """What a step notes of judgments that it read."""
    return StepInput(
        name=name,
        rater=judgments.rater,
        created=judgments.created,
        sha256=hashlib.sha256(
            "\n".join(claim.model_dump_json() for claim in judgments.claims).encode()
        ).hexdigest(),
        n_claims=len(judgments.claims),
    )


def _check(runs: Sequence[Judgments], claims: ClaimFile | None, finished: bool) -> None:
    if len(runs) < 2:
        raise BadUsage(f"A vote takes at least two runs; got {len(runs)}.")
    named = [run.rubric for run in runs] + ([claims.rubric] if claims is not None else [])
    rubrics = list(dict.fromkeys(named))
    if len(rubrics) > 1:
        raise BadUsage(f"A vote is of runs by one rubric; got {rubrics}.")
    if len({run.scope for run in runs}) > 1:
        raise BadUsage(
            "A vote is of runs of one scope; got some on the claim, some on other models."
        )
    for run in runs:
        if run.steps and not finished:
            raise BadUsage(
                f"The judgments of {run.rater.id} went through {run.steps[-1].step} already; the"
                " order is matching, vote, audit, advocate, score."
            )
    read = [{document.sha256 for document in run.documents} for run in runs if run.documents]
    if read and not set.intersection(*read):
        raise BadUsage("A vote is of runs on one source; these have no document in common.")


def _system(groups: Sequence[ClaimGroup], systems: Sequence[str], given: ClaimFile | None) -> int:
    """The group of the system claim that was given; else the one that most runs call theirs.

    Groups of more than half the runs come before others.
    """
    if given is not None:
        name = system_claim(given.claims)[0]
        for place, group in enumerate(groups):
            if group.lead in given.claims and group.lead.id == name:
                return place

    def votes(place: int) -> tuple[int, int, int]:
        group = groups[place]
        own = sum(judged.claim.id == systems[run] for run, judged in group.members.items())
        return own, len(group.members), len(group.lead.components)

    order = sorted(range(len(groups)), key=lambda place: groups[place].lead.model_dump_json())
    many = [place for place in order if 2 * len(groups[place].members) > len(systems)]
    return max(many or order, key=votes)


def _unique(name: str, taken: Sequence[str]) -> str:
    """The id, with a number if it is taken."""
    unused, number = name, 1
    while unused in taken:
        number += 1
        unused = f"{name}-{number}"
    return unused


def _voted(
    claim: Claim,
    group: ClaimGroup,
    names: Sequence[str],
    systems: Sequence[str],
    codes: Sequence[str],
    by: Aggregate,
) -> JudgedClaim:
    members = sorted(group.members.items())
    return JudgedClaim(
        claim=claim,
        criteria={
            code: _made_one({names[run]: judged.criteria[code] for run, judged in members}, by)
            for code in codes
        },
        runs=tuple(
            RunClaim(
                run=names[run],
                claim=judged.claim.id,
                statement=judged.claim.statement,
                similarity=group.similarity[run],
                system=judged.claim.id == systems[run],
            )
            for run, judged in members
        ),
    )


def _made_one(judgments: dict[str, Judgment], by: Aggregate) -> Judgment:
    given: dict[str, Status] = {name: judgment.status for name, judgment in judgments.items()}
    status = aggregated(list(given.values()), by)

    def order(judgment: Judgment) -> tuple[bool, int, bool, str]:
        # Of those that give the status, else the lowest; with evidence first; then by content.
        own = judgment.status, rank(judgment.status)
        return own[0] != status, own[1], not judgment.evidence, judgment.model_dump_json()

    chosen = min(judgments.values(), key=order)
    return Judgment(
        status=status,
        reason=chosen.reason,
        evidence=chosen.evidence,
        steps=(
            StatusStep(step="vote", given=given, status=status, why="" if by == "minimum" else by),
        ),
    )
