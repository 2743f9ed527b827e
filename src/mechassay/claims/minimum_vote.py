"""One judgment of several runs: the least status that any run gives (Tower 2026, section 3.7).

    minimum    NO < PARTIAL < YES; where a run says nothing (NOT TESTED, NA) it is NO if some run
               says so, else NOT TESTED: what one run has not found was not found by all
    mean       the status nearest to the mean of the points, the lower one of two that are as near
    median     the lower one of two in the middle
    majority   what more than half say; if there is none, the median

Mean, median and majority stand beside it and are of the runs that say something. The minimum never
rises with another run of the same claims, and no score of the vote is above that of one of its runs
(both by monotone rules of scores). It is no unbiased estimate: it falls with every run. Nor does it
always steady a status: one that a run calls YES with probability p is YES of all with p^N, whose
variance p^N (1 - p^N) is larger than p (1 - p) where p is large (.25 to .16 at p = .8, N = 3).

A claim that only some runs make is judged by those, and keeps their number (support). Reason and
evidence are those of a run that gives the status. All statuses of all runs are kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal, get_args

from mechassay.claims.claim import Claim, ClaimFile, check_claims, system_claim
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
from mechassay.claims.matching import LIKE, ClaimGroup, match_claims
from mechassay.claims.scoring import JUDGED, Status
from mechassay.errors import BadUsage, one_of

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


def vote(
    runs: Sequence[Judgments],
    claims: ClaimFile | None = None,
    *,
    like: float = LIKE,
    support: int = 1,
) -> Judgments:
    """The minimum of several runs on one source, claim by claim and criterion by criterion.

    Args:
        claims: that lead the matching, if they were given beforehand (see `claims.matching`).
        like: the least similarity of claims that are one.
        support: how many runs have to make a claim; others are left out.

    Returns:
        Judgments whose steps name the runs, with the hash of each; every claim has the claims that
        it was made of, every status those of the runs.

    Raises:
        BadUsage: fewer than two runs; of two rubrics, sources or scopes; runs that went through a
            step already; or no claim has enough support.
    """
    _check(runs, claims)
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
        taken = [each.claim.id for each in judged]
        claim = group.lead.model_copy(
            update={"id": _unique(group.lead.id, taken), "system": place == system}
        )
        judged.append(_voted(claim, group, names, systems, runs[0].criteria.codes))
    check_claims(runs[0].rubric, [each.claim for each in judged])
    documents: dict[str, SourceDocument] = {
        each.sha256: each for run in runs for each in run.documents
    }
    return Judgments(
        rubric=runs[0].rubric,
        rater=Rater(kind="vote", id=f"minimum of {', '.join(names)}"),
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
            "\n".join(each.model_dump_json() for each in judgments.claims).encode()
        ).hexdigest(),
        n_claims=len(judgments.claims),
    )


def _check(runs: Sequence[Judgments], claims: ClaimFile | None) -> None:
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
        if run.steps:
            raise BadUsage(
                f"The judgments of {run.rater.id} went through {run.steps[-1].step} already; the"
                " order is matching, vote, audit, advocate, score."
            )
    read = [{each.sha256 for each in run.documents} for run in runs if run.documents]
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
        own = sum(each.claim.id == systems[run] for run, each in group.members.items())
        return own, len(group.members), len(group.lead.components)

    order = sorted(range(len(groups)), key=lambda place: groups[place].lead.model_dump_json())
    many = [place for place in order if 2 * len(groups[place].members) > len(systems)]
    return max(many or order, key=votes)


def _unique(name: str, taken: Sequence[str]) -> str:
    """The id, with a number if it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _voted(
    claim: Claim,
    group: ClaimGroup,
    names: Sequence[str],
    systems: Sequence[str],
    codes: Sequence[str],
) -> JudgedClaim:
    members = sorted(group.members.items())
    return JudgedClaim(
        claim=claim,
        criteria={
            code: _minimum({names[run]: each.criteria[code] for run, each in members})
            for code in codes
        },
        runs=tuple(
            RunClaim(
                run=names[run],
                claim=each.claim.id,
                statement=each.claim.statement,
                similarity=group.similarity[run],
                system=each.claim.id == systems[run],
            )
            for run, each in members
        ),
    )


def _minimum(judgments: dict[str, Judgment]) -> Judgment:
    given: dict[str, Status] = {name: judgment.status for name, judgment in judgments.items()}
    status = aggregated(list(given.values()))

    def order(each: Judgment) -> tuple[bool, int, bool, str]:
        # Of those that give the status, else the lowest; with evidence first; then by content.
        own = each.status, rank(each.status)
        return own[0] != status, own[1], not each.evidence, each.model_dump_json()

    chosen = min(judgments.values(), key=order)
    return Judgment(
        status=status,
        reason=chosen.reason,
        evidence=chosen.evidence,
        steps=(StatusStep(step="vote", given=given, status=status),),
    )
