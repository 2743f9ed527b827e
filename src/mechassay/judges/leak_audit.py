"""The leak audit: a claim about a part may not live on evidence of the whole (Tower 2026, 3.5).

Of claims that are not about the whole system, the criteria that leak (I2, I3, I5, E2, E5) are
looked at where they are YES or PARTIAL. Where the evidence is found to be that of the system, the
status falls to NO; never to PARTIAL, and never otherwise. Nobody reads the paper again: an auditor
gets claims with their evidence alone (`audit_request`), and answers with judgments, NO with a
reason or NOT TESTED. Whatever else an auditor says is rejected, and kept with the reason why.

Without an auditor a rule decides. A status leaks if it has evidence, if each piece is one that the
system claim has too, and if none names a component of the claim. A status with no evidence is
decided by its reason, in the same way. What rests on anything else stands. The rule compares
wording: it does not see that two quotes are of one experiment, and an invented one passes.

Which claim is the system's is that of `system_claim`. The paper spares more: each claim with most
components, with five of them, or with the word circuit, algorithm or mechanism (`spare="paper"`).
With it a claim on one head escapes the audit by calling itself a mechanism.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from mechassay.claims.claim import Claim, component_name, names_system, system_claim
from mechassay.claims.document import normalised
from mechassay.claims.judgments import (
    STEPS,
    Evidence,
    JudgedClaim,
    Judgment,
    Judgments,
    Rater,
    StatusStep,
    StepInput,
    StepName,
    TakenStep,
    rank,
)
from mechassay.claims.rubric import Rubric, Status
from mechassay.errors import BadUsage, one_of
from mechassay.judges.voting import step_input
from mechassay.utils.arguments import checked
from mechassay.version import __version__

Spare = Literal["system", "paper"]
SPARES: tuple[Spare, ...] = get_args(Spare)
MANY = 5
"""Components from which the paper spares a claim."""
LEAKED = "its evidence is that of the system claim and names none of its components"
_LABEL = re.compile(r"\(([^)]+)\)")
_HEAD = re.compile(r"\b[aL]?\d+[.H]h?\d+\b", re.IGNORECASE)

Change = tuple[Status, str]
"""A lower status, and why."""


def leaking(rubric: Rubric) -> tuple[str, ...]:
    """The criteria that are audited."""
    return tuple(criterion.code for criterion in rubric.criteria if criterion.leaks)


def spared_claims(claims: Sequence[Claim], spare: Spare = "system") -> tuple[str, ...]:
    """The claims that the audit leaves alone.

    Raises:
        UnknownName: `spare` is neither.
        BadUsage: no claims.
    """
    one_of("choice of claims to spare", spare, SPARES)
    system, _ = system_claim(claims)
    if spare == "system":
        return (system,)
    most = max(len(claim.components) for claim in claims)
    return tuple(
        claim.id
        for claim in claims
        if claim.id == system
        or (claim.components and len(claim.components) >= min(most, MANY))
        or names_system(claim)
    )


@checked
def audit(
    judgments: Judgments, auditor: Judgments | None = None, *, spare: Spare = "system"
) -> Judgments:
    """Judgments without the statuses that leak.

    Args:
        auditor: judgments of the same claims that object, NO with a reason; without them the rule
            decides.
        spare: which claims are left alone.

    Raises:
        BadUsage: they were audited or challenged already; the auditor's are by another rubric.
    """
    spared = spared_claims([judged.claim for judged in judgments.claims], spare)
    if auditor is None:
        rater = Rater(kind="execution", id=f"mechassay {__version__}")
        flagged = _inherited(judgments, spared)
        return changed(judgments, "audit", StepInput(name="rule", rater=rater), flagged, (), spared)

    def allowed(before: Status, given: Judgment) -> str:
        if given.status == "PARTIAL" and before == "YES":
            return "an audit takes a status to NO or leaves it"
        return ""

    flagged, rejected = objections(judgments, auditor, spared, allowed)
    about = step_input(auditor.rater.id, auditor)
    return changed(judgments, "audit", about, flagged, rejected, spared)


def audit_request(judgments: Judgments, *, spare: Spare = "system") -> dict[str, Any]:
    """All that an auditor is shown, as plain values: claims and evidence, nothing of the paper.

    Quotes stand without their page, their document and the words around them.
    """
    claims = [judged.claim for judged in judgments.claims]
    spared, rubric = spared_claims(claims, spare), judgments.criteria
    codes = leaking(rubric)
    return {
        "criteria": {code: rubric.criterion(code).asks for code in codes},
        "system": [
            claim_for_auditor(claim, codes)
            for claim in judgments.claims
            if claim.claim.id in spared
        ],
        "claims": [
            claim_for_auditor(claim, codes)
            for claim in judgments.claims
            if claim.claim.id not in spared
        ],
    }


def claim_for_auditor(judged: JudgedClaim, codes: Sequence[str]) -> dict[str, Any]:
    """A claim and the evidence of some criteria, as plain values."""
    claim = judged.claim
    return {
        "id": claim.id,
        "statement": claim.statement,
        "components": list(claim.components),
        "criteria": {
            code: {
                "status": judged.criteria[code].status,
                "reason": judged.criteria[code].reason,
                "evidence": [_words(quote) for quote in judged.criteria[code].evidence],
            }
            for code in codes
        },
    }


# The rule


def _inherited(judgments: Judgments, spared: Sequence[str]) -> dict[tuple[str, str], Change]:
    system, _ = system_claim([judged.claim for judged in judgments.claims])
    held = {
        piece
        for judgment in judgments.claim(system).criteria.values()
        for piece in (*_pieces(judgment), _plain(judgment.reason))
    }
    return {
        (judged.claim.id, code): ("NO", LEAKED)
        for judged in judgments.claims
        if judged.claim.id not in spared
        for code in leaking(judgments.criteria)
        if rank(judged.criteria[code].status) > 1 and _leaks(judged, code, held)
    }


def _leaks(judged: JudgedClaim, code: str, held: set[str]) -> bool:
    judgment = judged.criteria[code]
    pieces = _pieces(judgment) or [_plain(judgment.reason)]
    return all(
        piece and piece in held and not _names_a_part(piece, judged.claim) for piece in pieces
    )


def _pieces(judgment: Judgment) -> list[str]:
    return [_plain(_words(quote)) for quote in judgment.evidence]


def _words(evidence: Evidence) -> str:
    """A quote, a record by its hash and its measures, or what the claim says of itself."""
    if evidence.declared:
        return f"the claim's {evidence.declared}"
    if evidence.quote is not None:
        return evidence.quote.exact
    record = evidence.record
    assert record is not None, "evidence is a quote or a record"
    measures = ", ".join(f"{measure.name} {measure.value:.4g}" for measure in record.measures)
    return f"record {record.sha256[:12]}, {record.rule}: {measures}"


def _plain(text: str) -> str:
    return normalised(text).casefold()


def _names_a_part(piece: str, claim: Claim) -> bool:
    """Whether words name a component: "9.9 (Name Mover)" is named by "L9H9" and "name mover"."""
    heads = {component_name(head) for head in _HEAD.findall(piece)}
    for component in claim.components:
        label = _LABEL.search(component)
        if component_name(component) in heads or component.casefold() in piece:
            return True
        if label is not None and label[1].casefold() in piece:
            return True
    return False


# What any objection goes through


def objections(
    judgments: Judgments,
    given: Judgments,
    spared: Sequence[str],
    refused: Callable[[Status, Judgment], str],
) -> tuple[dict[tuple[str, str], Change], tuple[str, ...]]:
    """What the judgments of an auditor or an advocate lower, and what is rejected, and why.

    Args:
        spared: claims that may not be changed.
        refused: why a step does not allow a judgment that is lower; "" if it does.

    Raises:
        BadUsage: they are by another rubric.
    """
    if given.rubric != judgments.rubric:
        raise BadUsage(
            f"Objections are by {given.rubric}; the judgments are by {judgments.rubric}."
        )
    codes = leaking(judgments.criteria)
    known = {judged.claim.id: judged for judged in judgments.claims}
    changes: dict[tuple[str, str], Change] = {}
    rejected: list[str] = []
    for judged in given.claims:
        own = known.get(judged.claim.id)
        for code, judgment in judged.criteria.items():
            if judgment.status == "NOT TESTED":
                continue
            before = own.criteria[code].status if own else "NOT TESTED"
            why = _fault(judged.claim.id, code, own is None, codes, spared, before, judgment)
            if why := why or (refused(before, judgment) if _lowers(before, judgment) else ""):
                rejected.append(f"{judged.claim.id}, {code}: {judgment.status}: {why}")
            elif _lowers(before, judgment):
                changes[judged.claim.id, code] = (judgment.status, judgment.reason)
    return changes, tuple(rejected)


def _lowers(before: Status, judgment: Judgment) -> bool:
    return rank(judgment.status) < rank(before)


def _fault(
    name: str,
    code: str,
    unknown: bool,
    codes: Sequence[str],
    spared: Sequence[str],
    before: Status,
    judgment: Judgment,
) -> str:
    """Why a judgment can be no objection; "" if it can."""
    if unknown:
        return "there is no such claim"
    if code not in codes:
        return f"only {', '.join(codes)} are looked at"
    if judgment.status == "NA":
        return "NA is no objection"
    if rank(judgment.status) > rank(before):
        return f"a status is never raised; it is {before}"
    if judgment.status == before:
        return ""
    if name in spared:
        return "the claim is about the whole system"
    return "" if judgment.reason.strip() else "it has no reason"


def changed(
    judgments: Judgments,
    step: StepName,
    about: StepInput,
    changes: Mapping[tuple[str, str], Change],
    rejected: tuple[str, ...],
    spared: tuple[str, ...],
) -> Judgments:
    """Judgments after a step, each status that it lowered with the one before.

    Raises:
        BadUsage: they went through this step, or one that comes later, already.
    """
    done = [done_step.step for done_step in judgments.steps]
    if late := [name for name in done if STEPS.index(name) >= STEPS.index(step)]:
        raise BadUsage(
            f"These judgments went through {late[-1]} already, and {step} comes"
            f" {'once' if late[-1] == step else 'before it'}: the order is matching, vote, audit,"
            " advocate, score."
        )
    claims: list[JudgedClaim] = []
    for judged in judgments.claims:
        criteria = dict(judged.criteria)
        for code, judgment in criteria.items():
            if (judged.claim.id, code) in changes:
                status, why = changes[judged.claim.id, code]
                given: dict[str, Status] = {judgments.rater.id: judgment.status}
                taken = StatusStep(step=step, given=given, status=status, why=why)
                criteria[code] = judgment.model_copy(
                    update={"status": status, "steps": (*judgment.steps, taken)}
                )
        claims.append(judged.model_copy(update={"criteria": criteria}))
    taken = TakenStep(step=step, inputs=(about,), rejected=rejected, spared=spared)
    return judgments.model_copy(
        update={"claims": tuple(claims), "steps": (*judgments.steps, taken)}
    )
