"""Records as evidence: the rules of a rubric, applied to the records of runs.

    claim + records -> a status for each criterion that has a rule, with what was read and its hash

A rule has parts (`rubric.RecordTest`). A part is met (YES), missed (NO), or open (PARTIAL) where an
interval contains the threshold; it is NOT TESTED if no record answers it, or what the record has is
undefined. All parts met are YES, all that were tested missed NO, anything between PARTIAL. A part
that several records answer has the worst of their answers. So a record that is gone makes NOT
TESTED, never NO; and a first record never lowers a score.

A record answers if it is of the claim's model and circuit, and where the part does not say
otherwise of its task and ablation. What is missing is named with the command that makes it, and
with its cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mechassay.claims.claim import Claim, ClaimFile
from mechassay.claims.commands import command_for
from mechassay.claims.evidence import file_hash
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
from mechassay.claims.rubric import Criterion, RecordTest, Rubric, load_rubric
from mechassay.claims.scoring import JUDGED, Status
from mechassay.errors import BadFile, BadUsage
from mechassay.records import Measure, Record, read_record
from mechassay.stats.intervals import clopper_pearson
from mechassay.text import interval, number
from mechassay.version import __version__

NO_RULE = "No rule decides it from records: a reader does."
SIZED = ("circuit", "complement", "unneeded")
"""Measures whose name ends with the size of the circuit."""
TRUTH = "truth-"


@dataclass(frozen=True)
class StoredRecord:
    """A record, and the file it was read from."""

    file: str
    sha256: str
    record: Record

    @property
    def ranking(self) -> str:
        """What ranked the edges of its circuits."""
        return self.record.cell.get("method", self.record.method.name)

    def setting(self, name: str) -> str:
        """How it was run."""
        return str(self.record.task.args.get(name, ""))


class Answer(NamedTuple):
    """What a part of a rule says, why, and what was read for it."""

    status: Status
    reason: str
    read: tuple[tuple[StoredRecord, Measure], ...] = ()


def records_below(runs: Path) -> list[StoredRecord]:
    """All records of the runs in a folder and below it.

    Raises:
        BadFile: there is no such folder; a record cannot be read; or the values that it speaks of
            are not those of the file beside it.
    """
    if not runs.is_dir():
        raise BadFile(f"{runs}: there is no such folder of runs.")
    found: list[StoredRecord] = []
    for file in sorted(runs.rglob("*.json")):
        parts = file.relative_to(runs).parts
        if "records" not in (runs.name, *parts[:-1]):
            continue
        record = read_record(file)
        _check_values(file, record)
        found.append(StoredRecord(file.relative_to(runs).as_posix(), file_hash(file), record))
    return found


def _check_values(file: Path, record: Record) -> None:
    if record.values is None or not record.values.file or not record.values.sha256:
        return
    folder = next((each for each in file.parents if (each / "plan.json").is_file()), file.parent)
    beside = folder / record.values.file
    if beside.is_file() and file_hash(beside) != record.values.sha256:
        raise BadFile(f"{beside}: was edited after {file.name} was made of it.")


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
        BadFile: a record cannot be read, or was edited since `before`.
        BadUsage: a claim names no model, task or circuit.
    """
    rubric, folder = load_rubric(claims.rubric), Path(runs)
    records = records_below(folder)
    _refuse_edited(folder, records, before)
    judged: list[JudgedClaim] = []
    elsewhere = False
    for claim in claims.claims:
        _check_claim(claim)
        other = bool(model) and model != claim.model
        elsewhere = elsewhere or other
        own = claim.model_copy(update={"model": model}) if other else claim
        criteria = {
            each.code: _judge(rubric, each, own, records, folder)
            for each in rubric.criteria
            if each.rule is not None
        }
        rest = {code: Judgment(status="NOT TESTED", reason=NO_RULE) for code in rubric.codes}
        judged.append(JudgedClaim(claim=own, criteria=ordered(rubric, {**rest, **criteria})))
    return Judgments(
        rubric=rubric.key,
        rater=Rater(kind="execution", id=f"mechassay {__version__}"),
        scope="other model" if elsewhere else "claim",
        created=now(),
        claims=tuple(judged),
    )


def _check_claim(claim: Claim) -> None:
    for name in ("model", "task", "circuit"):
        if not getattr(claim, name):
            raise BadUsage(
                f"The claim {claim.id} names no {name}: records are found by model, task and"
                " circuit."
            )


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


def _judge(
    rubric: Rubric, criterion: Criterion, claim: Claim, records: Sequence[StoredRecord], runs: Path
) -> Judgment:
    assert criterion.rule is not None
    rule = criterion.rule
    answers = [TESTS[part.test](part, claim, records) for part in rule.parts]
    status = combined([answer.status for answer in answers])
    reasons = [answer.reason for answer in answers]
    if any(answer.status == "NOT TESTED" for answer in answers):
        reasons.append(command_for(rule.command, claim, runs, [each.record for each in records]))
    read: dict[str, tuple[StoredRecord, list[Measure]]] = {}
    for stored, measure in (row for answer in answers for row in answer.read):
        held = read.setdefault(stored.file, (stored, []))[1]
        if measure not in held:
            held.append(measure)
    evidence = tuple(
        Evidence(
            record=RecordEvidence(
                file=stored.file,
                sha256=stored.sha256,
                rule=f"{rubric.key}:{criterion.code}",
                measures=tuple(measures),
            )
        )
        for stored, measures in read.values()
    )
    return Judgment(status=status, reason=" ".join([rule.says, *reasons]), evidence=evidence)


def combined(statuses: Sequence[Status]) -> Status:
    """The status of a rule by those of its parts."""
    tested = [status for status in statuses if status in JUDGED]
    if not tested:
        return "NOT TESTED"
    if all(status == "YES" for status in statuses):
        return "YES"
    return "NO" if all(status == "NO" for status in tested) else "PARTIAL"


# Which records answer


def _of_circuit(stored: StoredRecord, claim: Claim) -> bool:
    if stored.ranking == claim.ranking or stored.ranking == claim.circuit:
        return True
    name, at, size = stored.ranking.partition("@")
    return bool(at) and f"{Path(name).stem}@{size}" == claim.circuit


def answering(
    part: RecordTest, claim: Claim, records: Iterable[StoredRecord], *, where: str = "own"
) -> list[StoredRecord]:
    """The records that a part is about.

    Args:
        where: "own", "other task", "held out", "truth" or "untrained".
    """
    model = claim.untrained if where == "untrained" else claim.model
    found: list[StoredRecord] = []
    for stored in records:
        record = stored.record
        truth = where == "truth"
        if record.kind != part.kind or not _of_circuit(stored, claim):
            continue
        if truth and not record.model.name.startswith(TRUTH):
            continue
        if not truth and (not model or record.model.name != model):
            continue
        if not truth and (record.task.name == claim.task) == (where == "other task"):
            continue
        if part.test != "conditions" and stored.setting("ablation") not in ("", claim.ablation):
            continue
        if where == "held out" and stored.setting("split") == stored.setting("train_split"):
            continue
        found.append(stored)
    return found


def _measured(
    part: RecordTest, claim: Claim, found: Iterable[StoredRecord], of: str = "result"
) -> list[tuple[StoredRecord, Measure]]:
    """The measure of each record that has it, defined or not."""
    sized = part.measure in SIZED and claim.size
    name = f"{part.measure}@{claim.size}" if sized else part.measure
    rows = [(stored, stored.record.measure(name, of)) for stored in found]
    return [(stored, measure) for stored, measure in rows if measure is not None]


class Bounds(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return interval(self.value, self.low, self.high)


def _bounds(part: RecordTest, measure: Measure) -> Bounds:
    low, high = measure.low, measure.high
    if part.loss:
        return Bounds(1 - measure.value, 1 - high, 1 - low)
    return Bounds(measure.value, low, high)


def _what(part: RecordTest) -> str:
    return f"1 - {part.measure}" if part.loss else part.measure


def _nothing(part: RecordTest, about: str = "") -> Answer:
    where = {"other task": " on another task", "held out": " on a split it was not found on"}
    place = where.get(part.where, f" on {part.where}" if part.where else "")
    return Answer("NOT TESTED", f"No record has {part.measure}{place}{about}.")


def _worst(answers: Sequence[Answer]) -> Answer:
    """The answer of the record that does worst, with all that was read."""
    tested = [answer for answer in answers if answer.status in JUDGED]
    if not tested:
        return answers[0]
    lowest = min(tested, key=lambda answer: JUDGED.index(answer.status))
    more = f" (the worst of {len(tested)} records)" if len(tested) > 1 else ""
    read = tuple(row for answer in tested for row in answer.read)
    return Answer(lowest.status, f"{lowest.reason.rstrip('.')}{more}.", read)


# The tests


def _against(part: RecordTest, stored: StoredRecord, measure: Measure) -> Answer:
    """A bound against `least`."""
    found, least = _bounds(part, measure), part.least or 0.0
    if math.isnan(found.value) or math.isnan(found.low):
        lacking = "is undefined" if math.isnan(found.value) else "has no interval"
        return Answer("NOT TESTED", f"{_what(part)} {lacking} in {stored.file}.")
    status: Status = "YES" if found.low >= least else "NO" if found.high < least else "PARTIAL"
    reason = f"{_what(part)} is {found}, with {least:g} needed."
    return Answer(status, reason, ((stored, measure),))


def by_interval(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The lower bound is at least the threshold; missed if the upper bound is below."""
    rows = _measured(part, claim, answering(part, claim, records, where=part.where or "own"))
    return _worst([_against(part, *row) for row in rows]) if rows else _nothing(part)


def by_conditions(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The lower bound is at least the threshold under several conditions."""
    rows = _measured(part, claim, answering(part, claim, records))
    if not rows:
        return _nothing(part)
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for stored, measure in rows:
        condition = tuple(stored.setting(name) for name in part.by)
        groups.setdefault(condition, []).append(_against(part, stored, measure))
    worst = {condition: _worst(answers) for condition, answers in groups.items()}
    tested = {key: answer for key, answer in worst.items() if answer.status in JUDGED}
    if not tested:
        return next(iter(worst.values()))
    said = "; ".join(f"{', '.join(key)}: {answer.reason}" for key, answer in tested.items())
    met = sum(answer.status == "YES" for answer in tested.values())
    some = any(answer.status != "NO" for answer in tested.values())
    status: Status = "YES" if met >= part.n else "PARTIAL" if some else "NO"
    read = tuple(row for answer in tested.values() for row in answer.read)
    return Answer(status, f"Met under {met} of {part.n} needed. {said}", read)


def by_spread(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The standard deviation over samples of prompts is at most the threshold."""
    rows = _measured(part, claim, answering(part, claim, records))
    # The same prompts again are no other sample.
    samples = {_sample(stored): (stored, measure) for stored, measure in rows}
    defined = [row for row in samples.values() if not math.isnan(row[1].value)]
    if len(defined) < 2:
        return _nothing(part, f" of a second sample of prompts ({len(defined)} there)")
    spread = float(np.std([_bounds(part, measure).value for _, measure in defined], ddof=1))
    enough = len(defined) >= part.n
    status: Status = "NO" if spread > (part.most or 0.0) else "YES" if enough else "PARTIAL"
    few = "" if enough else f", {part.n} are needed"
    said = f"Standard deviation {spread:.3f} over {len(defined)} samples{few}."
    return Answer(status, said, tuple(defined))


def _sample(stored: StoredRecord) -> tuple[str, str]:
    data = stored.record.data.get("test")
    return (data.hash if data else stored.file, str(stored.record.provenance.seed))


def by_width(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The interval is at most so wide."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        width = measure.high - measure.low
        if math.isnan(width):
            return Answer("NOT TESTED", f"{_what(part)} has no interval in {stored.file}.")
        status: Status = "YES" if width <= (part.most or 0.0) else "NO"
        said = f"The interval of {_what(part)} is {width:.3f} wide, with {part.most:g} allowed."
        return Answer(status, said, ((stored, measure),))

    rows = _measured(part, claim, answering(part, claim, records))
    return _worst([one(*row) for row in rows]) if rows else _nothing(part)


def by_ratio(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """On the task it is at least so many times as much as on any other."""
    own = _measured(part, claim, answering(part, claim, records))
    others = _measured(part, claim, answering(part, claim, records, where="other task"))
    if not own or not others:
        return _nothing(part, "" if not own else " on another task")

    def one(mine: tuple[StoredRecord, Measure], other: tuple[StoredRecord, Measure]) -> Answer:
        a, b, least = _bounds(part, mine[1]), _bounds(part, other[1]), part.least or 0.0
        if any(map(math.isnan, (*a, *b))):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {other[0].file}.")
        met = a.low > 0 and a.low >= least * max(b.high, 0.0)
        missed = a.high <= 0 or a.high < least * max(b.low, 0.0)
        status: Status = "YES" if met else "NO" if missed else "PARTIAL"
        task = other[0].record.task.name
        said = f"{_what(part)} is {a}, and {b} on {task}; {least:g} times is needed."
        return Answer(status, said, (mine, other))

    return _worst([one(mine, other) for mine in own for other in others])


def by_margin(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """It lies above a control of the same record, or above an untrained model."""
    own = _measured(part, claim, answering(part, claim, records))
    if part.against == "untrained":
        others = _measured(part, claim, answering(part, claim, records, where="untrained"))
        pairs = [(mine, other) for mine in own for other in others]
        what = "an untrained model"
        if not claim.untrained:
            return Answer("NOT TESTED", "The claim names no untrained copy of the model.")
    else:
        controls = _measured(part, claim, answering(part, claim, records), part.control)
        by_file = {stored.file: (stored, measure) for stored, measure in controls}
        pairs = [(mine, by_file[mine[0].file]) for mine in own if mine[0].file in by_file]
        what = part.control.removeprefix("control:").replace("-", " ")
    if not pairs:
        return _nothing(part, f" beside {what}")

    def one(mine: tuple[StoredRecord, Measure], other: tuple[StoredRecord, Measure]) -> Answer:
        a, b, least = _bounds(part, mine[1]), _bounds(part, other[1]), part.least or 0.0
        if any(map(math.isnan, (*a, *b))):
            return Answer("NOT TESTED", f"{_what(part)} is undefined beside {what}.")
        met, missed = a.low - b.high >= least, a.high - b.low < least
        status: Status = "YES" if met else "NO" if missed else "PARTIAL"
        said = f"{_what(part)} is {a}, of {what} {b}; {least:g} more is needed."
        return Answer(status, said, (mine, other))

    return _worst([one(mine, other) for mine, other in pairs])


def by_above(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The number lies above its control's; neither needs an interval."""
    found = answering(part, claim, records, where=part.where or "own")
    controls = {stored.file: row for stored, row in _measured(part, claim, found, part.control)}

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        control = controls[stored.file]
        margin = measure.value - control.value
        if math.isnan(margin):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        status: Status = "YES" if margin > (part.least or 0.0) else "NO"
        said = f"{_what(part)} is {number(measure.value)}, by chance {number(control.value)}."
        return Answer(status, said, ((stored, measure), (stored, control)))

    rows = [row for row in _measured(part, claim, found) if row[0].file in controls]
    return _worst([one(*row) for row in rows]) if rows else _nothing(part)


def by_share(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """A share of few parts is at most so large; missed if its interval lies above."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value) or measure.n < 1:
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        most = part.most or 0.0
        low = clopper_pearson(measure.value * measure.n, float(measure.n)).low
        status: Status = "YES" if measure.value <= most else "NO" if low > most else "PARTIAL"
        said = f"{_what(part)} is {measure.value:.2f} of {measure.n}, with {most:g} allowed."
        return Answer(status, said, ((stored, measure),))

    rows = _measured(part, claim, answering(part, claim, records))
    return _worst([one(*row) for row in rows]) if rows else _nothing(part)


def by_value(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """A number without an interval is at most so large."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        status: Status = "YES" if measure.value <= (part.most or 0.0) else "NO"
        said = f"{_what(part)} is {measure.value:.3g}, with {part.most:g} allowed."
        return Answer(status, said, ((stored, measure),))

    rows = _measured(part, claim, answering(part, claim, records))
    return _worst([one(*row) for row in rows]) if rows else _nothing(part)


TESTS: Mapping[str, Callable[[RecordTest, Claim, Sequence[StoredRecord]], Answer]] = {
    "interval": by_interval,
    "conditions": by_conditions,
    "spread": by_spread,
    "width": by_width,
    "ratio": by_ratio,
    "margin": by_margin,
    "above": by_above,
    "share": by_share,
    "value": by_value,
}
"""The tests of rules by their names."""
