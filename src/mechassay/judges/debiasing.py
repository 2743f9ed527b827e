"""From the runs of a judge to one score: match claims, vote, audit, challenge, then score.

The order is fixed, and judgments refuse a step that comes too late. A score is a function of the
statuses that are left, so it is always computed last. What each step did is in the judgments
that come out. Their record shows it, with the scores that other ways to make one status of many
would give, and with how the runs agree (Krippendorff's alpha of ordinal data, by claim and
criterion).

The challenge is that of a devil's advocate: judgments that argue against those at hand
(`challenge`; Tower 2026, section 3.8). The vote and the audit are `vote` and `audit`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np

from mechassay.claims.claim import ClaimFile, system_claim
from mechassay.claims.comparison import coincidences, ordinal_alpha
from mechassay.claims.judgments import JudgedClaim, Judgment, Judgments
from mechassay.claims.rubric import JUDGED, Rubric, Status, claim_score
from mechassay.errors import BadUsage, one_of
from mechassay.judges.leak_audit import Spare, audit, changed, objections, spared_claims
from mechassay.judges.options import Calibration
from mechassay.judges.voting import AGGREGATES, LIKE, Aggregate, aggregated, step_input, vote
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Record, Spec, Table, provenance
from mechassay.utils.arguments import checked
from mechassay.utils.display import counted

CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)


@checked
def challenge(
    judgments: Judgments, advocate: Judgments, calibration: Calibration = "conservative"
) -> Judgments:
    """Judgments after what an advocate says against them (Tower 2026, section 3.8).

    An advocate is a second file of judgments on the same claims. Of the five criteria of the
    leak audit, each status that it gives lower, with a reason, is an objection. How many
    objections are followed is its calibration:

        aggressive     each objection, on the system claim as well; the status is the advocate's
        conservative   those that say NO, on other claims than that of the system

    The paper tried both as prompts. The first was too strict (IOI fell from 6.9 to 4.2), the
    second changed nothing, and so the paper relies on votes. It leaves open what a status falls
    to, and whether the system claim is spared.

    Raises:
        UnknownName: a calibration that there is not.
        BadUsage: they were challenged already; the advocate's are by another rubric.
    """
    one_of("calibration of an advocate", calibration, CALIBRATIONS)
    mild = calibration == "conservative"
    spared = spared_claims([judged.claim for judged in judgments.claims]) if mild else ()

    def refused(before: Status, given: Judgment) -> str:
        return "a conservative advocate says NO or nothing" if mild and given.status != "NO" else ""

    debiased, rejected = objections(judgments, advocate, spared, refused)
    about = step_input(advocate.rater.id, advocate)
    return changed(judgments, "advocate", about, debiased, rejected, spared)


KIND = "claims-vote"
SINGLE = "single run"
LESS = "A minimum of fewer runs is less strict."


def debias(
    runs: Sequence[Judgments],
    claims: ClaimFile | None = None,
    *,
    like: float = LIKE,
    support: int = 1,
    by: Aggregate = "minimum",
    audited: bool = True,
    auditor: Judgments | None = None,
    spare: Spare = "system",
    advocate: Judgments | None = None,
    calibration: Calibration = "conservative",
) -> Judgments:
    """The judgments that several runs leave; see `vote`, `audit` and `challenge`.

    Args:
        audited: whether there is a leak audit, by the auditor or by the rule.

    Raises:
        BadUsage: runs that cannot be voted on, or objections by another rubric.
    """
    judgments = vote(runs, claims, like=like, support=support, by=by)
    if audited or auditor is not None:
        judgments = audit(judgments, auditor, spare=spare)
    return judgments if advocate is None else challenge(judgments, advocate, calibration)


def runs_of(judged: JudgedClaim) -> dict[str, dict[str, Status]]:
    """The statuses that every run gave a claim, from the steps of its vote; empty without one."""
    statuses: dict[str, dict[str, Status]] = {member.run: {} for member in judged.runs}
    for code, judgment in judged.criteria.items():
        for run, status in _given(judgment).items():
            statuses[run][code] = status
    return statuses


def single_scores(rubric: Rubric, judged: JudgedClaim) -> dict[str, float]:
    """The score of a claim in every run that the vote is of."""
    return {run: claim_score(rubric, own).cvs for run, own in runs_of(judged).items()}


def _given(judgment: Judgment) -> dict[str, Status]:
    """What each run said, before the vote."""
    return next((dict(step.given) for step in judgment.steps if step.step == "vote"), {})


def debiasing_record(judgments: Judgments) -> Record:
    """What the steps did, as a record.

    Raises:
        BadUsage: the judgments went through no step.
    """
    if not judgments.steps:
        raise BadUsage(f"The judgments of {judgments.rater.id} went through no step.")
    rubric = judgments.criteria
    names = [voted.name for step in judgments.steps if step.step == "vote" for voted in step.inputs]
    rater = judgments.rater.id
    return Record(
        kind=KIND,
        cell={"rater": rater},
        specs={
            "method": Spec(name=" → ".join(step.step for step in judgments.steps)),
            "rater": Spec(name=rater, args={"kind": judgments.rater.kind}),
            "rubric": Spec(name=rubric.id, version=rubric.version),
        },
        measures=_measures(judgments, names),
        tables=[
            Table.of("steps", ("step", "input"), _steps(judgments)),
            Table.of("claims", ("claim",), _claims(judgments, len(names))),
            Table.of("matches", ("claim", "run"), _matches(judgments)),
            Table.of("scores", ("claim", "of"), _scores(judgments)),
            Table.of("changes", ("claim", "criterion", "step"), _changes(judgments)),
            Table.of("statuses", ("claim", "criterion"), _statuses(judgments, names)),
            Table.of(
                "rejected",
                ("step", "number"),
                [
                    {"step": step.step, "number": place, "what": what}
                    for step in judgments.steps
                    for place, what in enumerate(step.rejected, start=1)
                ],
            ),
        ],
        warnings=_warnings(judgments, len(names)),
        provenance=provenance(device="cpu", dtype="float64", seed=0),
    )


def _measures(judgments: Judgments, names: Sequence[str]) -> list[Measure]:
    system, _ = system_claim([judged.claim for judged in judgments.claims])
    own = judgments.claim(system)
    score = claim_score(judgments.criteria, own.statuses)
    texts = measure_texts(KIND)
    measures = [
        texts.measure("cvs", score.cvs, n=score.n_judged, n_undefined=int(math.isnan(score.cvs)))
    ]
    if names:
        ratings, n = _ratings(judgments, names)
        alpha = float(ordinal_alpha(coincidences(ratings, len(JUDGED))))
        measures.append(
            texts.measure("alpha", alpha, n=n, n_undefined=n if math.isnan(alpha) else 0)
        )
    return measures


def _ratings(judgments: Judgments, names: Sequence[str]) -> tuple[np.ndarray, int]:
    """Places of statuses, runs by criteria of claims; -1 is nothing. And those that two judged."""
    items = [_given(item) for judged in judgments.claims for item in judged.criteria.values()]
    statuses = np.array(
        [
            [JUDGED.index(own[name]) if own.get(name) in JUDGED else -1 for own in items]
            for name in names
        ],
        dtype=np.int64,
    ).reshape(len(names), len(items))
    return statuses, int(((statuses >= 0).sum(axis=0) > 1).sum())


def _steps(judgments: Judgments) -> Iterator[dict[str, Any]]:
    for step in judgments.steps:
        for voted in step.inputs:
            yield {
                "step": step.step,
                "input": voted.name,
                "rater": f"{voted.rater.kind}: {voted.rater.id}",
                "created": voted.created,
                "sha256": voted.sha256,
                "n_claims": voted.n_claims,
            }


def _claims(judgments: Judgments, n_runs: int) -> Iterator[dict[str, Any]]:
    system, why = system_claim([judged.claim for judged in judgments.claims])
    for judged in judgments.claims:
        own = judged.claim.id == system
        yield {
            "claim": judged.claim.id,
            "statement": judged.claim.statement,
            "system": own,
            "why": why if own else "",
            "support": len(judged.runs),
            "n_runs": n_runs,
            "system_in": sum(run.system for run in judged.runs),
            "least_similarity": min((run.similarity for run in judged.runs), default=None),
        }


def _matches(judgments: Judgments) -> Iterator[dict[str, Any]]:
    for judged in judgments.claims:
        for run in judged.runs:
            yield {"claim": judged.claim.id, **run.model_dump(exclude={"claim"}), "id": run.claim}


def _scores(judgments: Judgments) -> Iterator[dict[str, Any]]:
    """Scores of a claim in single runs, by every way to make one of them, and at the end."""
    rubric = judgments.criteria
    for judged in judgments.claims:
        runs = runs_of(judged)
        by_step = {f"{SINGLE} {run}": own for run, own in runs.items()}
        if runs:
            by_step |= {how: _by(judged, how) for how in AGGREGATES}
        by_step["after all steps"] = judged.statuses
        for name, statuses in by_step.items():
            score = claim_score(rubric, statuses)
            tiers = {"tier": score.tier, "gated_tier": score.gated_tier}
            yield {"claim": judged.claim.id, "of": name, "cvs": score.cvs, **tiers}


def _by(judged: JudgedClaim, how: Aggregate) -> dict[str, Status]:
    return {
        code: aggregated(list(_given(judgment).values()), how)
        for code, judgment in judged.criteria.items()
    }


def _changes(judgments: Judgments) -> Iterator[dict[str, Any]]:
    for judged in judgments.claims:
        for code, judgment in judged.criteria.items():
            for step in judgment.steps:
                if step.note:
                    yield {
                        "claim": judged.claim.id,
                        "criterion": code,
                        "step": step.step,
                        "before": ", ".join(step.given.values()),
                        "after": step.status,
                        "why": step.why,
                    }


def _statuses(judgments: Judgments, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    if not names:
        return
    for judged in judgments.claims:
        for code, judgment in judged.criteria.items():
            given = _given(judgment)
            most = max(map(list(given.values()).count, given.values()))
            yield {
                "claim": judged.claim.id,
                "criterion": code,
                **{name: given.get(name) for name in names},
                **{how: aggregated(list(given.values()), how) for how in AGGREGATES},
                "final": judgment.status,
                "agree": most,
                "n": len(given),
            }


def _warnings(judgments: Judgments, n_runs: int) -> list[str]:
    warnings: list[str] = []
    few = [claim.claim.id for claim in judgments.claims if 2 * len(claim.runs) <= n_runs]
    some = [claim.claim.id for claim in judgments.claims if 0 < len(claim.runs) < n_runs]
    if some:
        warnings.append(f"Not made by all {n_runs} runs: {', '.join(some)}. {LESS}")
    if n_runs and few:
        warnings.append(f"Made by no more than half of the runs: {', '.join(few)}.")
    hashes = [
        voted.sha256 for step in judgments.steps if step.step == "vote" for voted in step.inputs
    ]
    if len(set(hashes)) < len(hashes):
        warnings.append(
            f"{len(hashes)} runs are {len(set(hashes))} different ones: a run that repeats another"
            " adds nothing."
        )
    silent = sum(
        judgment.status == "NOT TESTED"
        and any(status in JUDGED for status in _given(judgment).values())
        for judged in judgments.claims
        for judgment in judged.criteria.values()
    )
    if silent:
        silent_text, them = (
            counted(silent, "status is", "statuses are"),
            "it" if silent == 1 else "them",
        )
        warnings.append(f"{silent_text} NOT TESTED as some run says nothing of {them}.")
    if n := sum(len(step.rejected) for step in judgments.steps):
        warnings.append(f"{counted(n, 'objection was', 'objections were')} rejected.")
    return warnings
