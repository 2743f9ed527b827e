"""Records as evidence: the rules of a rubric, applied to the records of runs.

    claim + records -> a status for each criterion that has a rule, with what was read and its hash

A rule has parts (`rubric.RecordTest`), which `record_tests` answers. All parts met are YES, all
that were tested missed NO, anything between PARTIAL; some rules say PARTIAL at most. So a record
that is gone makes NOT TESTED, never NO; and a first record never lowers a score.

Two kinds of parts read no record. `declared` asks what the claim says of itself; predictions count
in full if the claim stood in the folder of the runs, as it is now, before its first record
(`REGISTERED`), and the records have what is predicted. `needs` asks whether the criteria are met
that the claim's mode of description asks for.

What is missing is named with the command that makes it, and with its cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mechassay.claims.claim import Claim, ClaimFile, read_claims
from mechassay.claims.commands import command_for
from mechassay.claims.judgments import (
    Evidence,
    JudgedClaim,
    Judgment,
    Judgments,
    Rater,
    RecordEvidence,
    now,
    ordered,
)
from mechassay.claims.predictions import outcomes
from mechassay.claims.record_tests import TESTS, Answer
from mechassay.claims.rubric import (
    DECLARED,
    NEEDS,
    Criterion,
    RecordTest,
    Rubric,
    load_rubric,
)
from mechassay.claims.scoring import JUDGED, Status
from mechassay.claims.stored import StoredRecord, records_below
from mechassay.errors import BadFile, BadUsage
from mechassay.records import Measure
from mechassay.version import __version__

NO_RULE = "No rule decides it from records: a reader does."
REGISTERED = "claims.json"
"""The claims as they were before the first record, in the folder of the runs."""
FIXED = (
    "statement",
    "model",
    "task",
    "circuit",
    "scores",
    "components",
    "ablation",
    "predictions",
)
"""What of a claim must be as it was for its predictions to have been made before."""


def link(
    claims: ClaimFile,
    runs: str | Path,
    *,
    model: str = "",
    before: Judgments | None = None,
) -> Judgments:
    """Judge claims by the records of runs.

    Args:
        model: whose records are read, where it is not the model that the claims are about; the
            judgments are then of another model, and override none.
        before: judgments that were made of the same runs: their records must be as they were.

    Raises:
        BadFile: a record cannot be read, is not as it was written, or was edited since `before`.
        BadUsage: a claim names no model, task or circuit.
    """
    rubric, folder = load_rubric(claims.rubric), Path(runs)
    records = records_below(folder)
    _refuse_edited(folder, records, before)
    registered = _registered(folder, records)
    judged: list[JudgedClaim] = []
    elsewhere = False
    for claim in claims.claims:
        check_claim(claim)
        other = bool(model) and model != claim.model
        elsewhere = elsewhere or other
        own = claim.model_copy(update={"model": model, "untrained": ""}) if other else claim
        stood = _is_same(claim, registered.get(claim.id))
        dossier = _Dossier(rubric, own, records, folder, stood)
        judged.append(JudgedClaim(claim=own, criteria=dossier.criteria()))
    return Judgments(
        rubric=rubric.key,
        rater=Rater(kind="execution", id=f"mechassay {__version__}"),
        scope="other model" if elsewhere else "claim",
        created=now(),
        claims=tuple(judged),
    )


def check_claim(claim: Claim) -> None:
    """Refuse a claim whose records cannot be found.

    Raises:
        BadUsage: it names no model, task or circuit.
    """
    for name in ("model", "task", "circuit"):
        if not getattr(claim, name):
            raise BadUsage(
                f"The claim {claim.id} names no {name}: records are found by model, task and"
                " circuit."
            )


def _registered(runs: Path, records: Sequence[StoredRecord]) -> dict[str, Claim]:
    """The claims that were written down before the first record, by their ids."""
    file = runs / REGISTERED
    if not file.is_file():
        return {}
    held = read_claims(file)
    created = [_time(each.record.provenance.created) for each in records]
    if not held.registered or any(_time(held.registered) > each for each in created):
        return {}
    return {each.id: each for each in held.claims}


def _time(text: str) -> datetime:
    """A time that a file states; one without a zone is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadFile(f"{text!r} is no time; expected one such as {now()}.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_same(claim: Claim, before: Claim | None) -> bool:
    """Whether a claim is as it was; a file of scores may lie in another folder."""
    if before is None:
        return False

    def fixed(each: Claim) -> list[object]:
        plain = each.model_copy(update={"scores": Path(each.scores).name})
        return [getattr(plain, name) for name in FIXED]

    return fixed(claim) == fixed(before)


def _refuse_edited(runs: Path, records: Sequence[StoredRecord], before: Judgments | None) -> None:
    known = {each.file: each.sha256 for each in records}
    rows = before.claims if before else ()
    held = [
        each.record
        for judged in rows
        for judgment in judged.criteria.values()
        for each in judgment.evidence
        if each.record
    ]
    for each in held:
        if known.get(each.file, each.sha256) != each.sha256:
            raise BadFile(
                f"{runs / each.file}: was edited after it was judged (SHA-256"
                f" {known[each.file][:12]}, judged {each.sha256[:12]}); remove the judgments if the"
                " record was made again."
            )


class _Dossier:
    """One claim and all records."""

    def __init__(
        self,
        rubric: Rubric,
        claim: Claim,
        records: Sequence[StoredRecord],
        runs: Path,
        stood: bool,
    ) -> None:
        self.rubric, self.claim, self.records, self.runs = rubric, claim, records, runs
        self.stood = stood
        self.judged: dict[str, Judgment] = {}

    def criteria(self) -> dict[str, Judgment]:
        """The judgment of every criterion; those that need others come last."""
        ruled = [each for each in self.rubric.criteria if each.rule is not None]
        ruled.sort(key=_needs_others)
        for criterion in ruled:
            self.judged[criterion.code] = self._judgment(criterion)
        rest = {code: Judgment(status="NOT TESTED", reason=NO_RULE) for code in self.rubric.codes}
        return ordered(self.rubric, {**rest, **self.judged})

    def _judgment(self, criterion: Criterion) -> Judgment:
        assert criterion.rule is not None
        rule = criterion.rule
        answers = [self._answer(part) for part in rule.parts]
        status: Status = combined([answer.status for answer in answers])
        if status == "YES":
            status = rule.at_most
        reasons = [answer.reason for answer in answers]
        if rule.command and any(answer.status == "NOT TESTED" for answer in answers):
            held = [each.record for each in self.records]
            reasons.append(command_for(rule.command, self.claim, self.runs, held))
        evidence = [
            *self._records(criterion.code, answers),
            *self._declared(rule.parts, answers),
            *self._borrowed(rule.parts, answers),
        ]
        return Judgment(
            status=status, reason=" ".join([rule.says, *reasons]), evidence=tuple(evidence)
        )

    def _answer(self, part: RecordTest) -> Answer:
        if part.test == DECLARED:
            return self._by_declaration(part)
        if part.test == NEEDS:
            return self._by_needs()
        return TESTS[part.test](part, self.claim, self.records)

    def _by_declaration(self, part: RecordTest) -> Answer:
        """What the claim says of itself; predictions as they stood before the first record."""
        field = part.measure
        if not getattr(self.claim, field):
            return Answer("NOT TESTED", f"The claim has no {field}.")
        if field != "predictions":
            return Answer("YES", f"The claim has {field}.")
        told = ", ".join(map(str, self.claim.predictions))
        if not self.stood:
            said = (
                f"It predicts {told}; whether it did, as it is now, before the data is not known."
            )
            return Answer("PARTIAL", said)
        found = outcomes(self.claim, self.records) if self.records else []
        lacking = [str(each.prediction) for each in found if each.outcome == "not measured"]
        if lacking:
            return Answer("PARTIAL", f"It predicts {', '.join(lacking)}; no record has that.")
        return Answer("YES", f"It predicts {told}, and did before the first record.")

    def _by_needs(self) -> Answer:
        mode = self.claim.description_mode
        asked = self.rubric.asked.get(mode, ())
        if not asked:
            said = (
                f"No criteria are asked of the mode {mode}." if mode else "The claim has no mode."
            )
            return Answer("NOT TESTED", said)
        statuses: list[Status] = [self.judged[code].status for code in asked]
        told = ", ".join(f"{code} {status}" for code, status in zip(asked, statuses, strict=True))
        if "NOT TESTED" in statuses:
            return Answer("NOT TESTED", f"{mode}: {told}.")
        return Answer(combined(statuses), f"{mode}: {told}.")

    def _records(self, code: str, answers: Sequence[Answer]) -> list[Evidence]:
        read: dict[str, tuple[StoredRecord, list[Measure]]] = {}
        for stored, measure in (row for answer in answers for row in answer.read):
            held = read.setdefault(stored.file, (stored, []))[1]
            if measure not in held:
                held.append(measure)
        return [
            Evidence(
                record=RecordEvidence(
                    file=stored.file,
                    sha256=stored.sha256,
                    rule=f"{self.rubric.key}:{code}",
                    measures=tuple(measures),
                )
            )
            for stored, measures in read.values()
        ]

    def _declared(self, parts: Sequence[RecordTest], answers: Sequence[Answer]) -> list[Evidence]:
        return [
            Evidence(declared=part.measure)
            for part, answer in zip(parts, answers, strict=True)
            if part.test == DECLARED and answer.status in JUDGED
        ]

    def _borrowed(self, parts: Sequence[RecordTest], answers: Sequence[Answer]) -> list[Evidence]:
        """The evidence of the criteria that another one needs."""
        tested = [
            answer
            for part, answer in zip(parts, answers, strict=True)
            if part.test == NEEDS and answer.status in JUDGED
        ]
        asked = self.rubric.asked.get(self.claim.description_mode, ()) if tested else ()
        found = [each for code in asked for each in self.judged[code].evidence]
        return [each for place, each in enumerate(found) if each not in found[:place]]


def _needs_others(criterion: Criterion) -> bool:
    return criterion.rule is not None and any(part.test == NEEDS for part in criterion.rule.parts)


def combined(statuses: Sequence[Status]) -> Status:
    """The status of a rule by those of its parts."""
    tested = [status for status in statuses if status in JUDGED]
    if not tested:
        return "NOT TESTED"
    if all(status == "YES" for status in statuses):
        return "YES"
    return "NO" if all(status == "NO" for status in tested) else "PARTIAL"


def completed(executed: Judgments, read: Judgments) -> Judgments:
    """What was executed, and a reader's judgments of the rest.

    A status that records gave stands, but for a PARTIAL of a rule that can say no more. Records of
    another model than the claim's override none: then all is the reader's.

    Raises:
        BadUsage: two rubrics, a claim that the reader did not judge, or another claim of its id.
    """
    if executed.rubric != read.rubric:
        raise BadUsage(
            f"Judgments by different rubrics are not joined; got {executed.rubric} and"
            f" {read.rubric}."
        )
    if executed.scope == "other model":
        return read
    judged: list[JudgedClaim] = []
    for each in executed.claims:
        other = read.claim(each.claim.id)
        _check_same(each.claim, other.claim)
        theirs: Mapping[str, Judgment] = other.criteria
        criteria = {
            code: theirs[code] if _is_open(executed.criteria, code, own, theirs[code]) else own
            for code, own in each.criteria.items()
        }
        judged.append(each.model_copy(update={"criteria": criteria}))
    rater = Rater(kind="execution", id=f"{executed.rater.id}, the rest by {read.rater.id}")
    return executed.model_copy(
        update={"claims": tuple(judged), "rater": rater, "documents": read.documents}
    )


def _check_same(own: Claim, other: Claim) -> None:
    """Refuse a reader's claim that has the id of ours and is another.

    Raises:
        BadUsage: both say a statement, model, task or circuit, and not the same one.
    """
    for name in ("statement", "model", "task", "circuit"):
        ours, theirs = getattr(own, name), getattr(other, name)
        # A circuit that was written as a file has the name of the file.
        renamed = name == "circuit" and bool(own.scores) != bool(other.scores)
        if ours and theirs and ours != theirs and not renamed:
            raise BadUsage(
                f"The reader's claim {own.id} is another: its {name} is {theirs!r}, here {ours!r}."
            )


def _is_open(rubric: Rubric, code: str, own: Judgment, theirs: Judgment) -> bool:
    """Whether a reader's judgment takes the place of an executed one."""
    if own.status == "NOT TESTED":
        return True
    rule = rubric.criterion(code).rule
    capped = rule is not None and rule.at_most == own.status == "PARTIAL"
    return capped and theirs.status in JUDGED
