"""Rules of a rubric put to records: which records are about a claim, and what each part answers.

Records of runs are read with their hashes, and refused if they were edited. A record answers if
it is of the claim's model and circuit, and where the part does not say otherwise of its task,
with the settings that the claim gives it, and ablation. A file of scores is known by its hash
where a record has that. A claim may name a model by a folder, a task by a file and a method with
its settings: records have names of their own, which are made here.

Each kind of part is a function of this module. A part is met (YES), missed (NO), or open
(PARTIAL) where an interval contains the threshold; it is NOT TESTED if no record answers it, or
if what the record has is undefined. A part that several records answer has the worst of their
answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from mechassay.circuits.evaluation.chance import n_groups
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import method_name
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.circuits.scores import SCORES_SHA256
from mechassay.claims.claim import Claim
from mechassay.claims.rubric import JUDGED, RecordTest, Status
from mechassay.errors import BadFile, MechassayError
from mechassay.measurement.measurement import Measurement
from mechassay.models.objectives import least_size
from mechassay.models.sources import UNTRAINED, known_digests, model_name
from mechassay.results.reading import has_values, read_record
from mechassay.results.records import Measure, Record
from mechassay.runs.cells import cell_name
from mechassay.runs.names import is_task_file, name_of, stored_name
from mechassay.stats.distribution import SIDES
from mechassay.stats.intervals import (
    LEVEL,
    clopper_pearson,
    percentile_interval,
    resampled_means,
    resolved_difference,
)
from mechassay.tasks import TASKS, load_task
from mechassay.tasks.task import settings_of
from mechassay.utils.display import interval, number
from mechassay.utils.files import file_hash, no_folder


@dataclass(frozen=True)
class StoredRecord:
    """A record, and the file it was read from."""

    file: str
    sha256: str
    record: Record

    @property
    def ranking(self) -> str:
        """What ranked the edges of its circuits; of measurement the circuit itself."""
        if self.record.kind == Measurement.kind:
            circuit = self.record.specs.get("circuit")
            return circuit.name if circuit else ""
        return self.record.cell.get("method", self.record.method.name)

    @property
    def family(self) -> str:
        """The family of its model."""
        return str(self.record.model.args.get("family", ""))

    def setting(self, name: str) -> str:
        """How it was run."""
        return str(self.record.task.args.get(name, ""))


def records_below(runs: Path) -> list[StoredRecord]:
    """All records of the runs in a folder and below it.

    Raises:
        BadFile: there is no such folder; a record cannot be read, or is not as it was written; or
            the values that it speaks of are not those of the file beside it.
    """
    if not runs.is_dir():
        raise BadFile(f"{runs}: {no_folder(runs)}; expected one of runs.")
    records: list[StoredRecord] = []
    for file in sorted(runs.rglob("*.json")):
        parts = file.relative_to(runs).parts
        if "records" not in (runs.name, *parts[:-1]):
            continue
        record = read_record(file)
        _check_values(file, record)
        records.append(StoredRecord(file.relative_to(runs).as_posix(), file_hash(file), record))
    return records


def _check_values(file: Path, record: Record) -> None:
    if record.values is None or not record.values.file or not record.values.sha256:
        return
    folder = next(
        (parent for parent in file.parents if (parent / "plan.json").is_file()), file.parent
    )
    beside = folder / record.values.file
    if beside.is_file() and file_hash(beside) != record.values.sha256:
        raise BadFile(f"{beside}: was edited after {file.name} was made of it.")


SIZED = ("circuit", "complement", "agreement", "unneeded")
"""Measures whose name ends with the size of the circuit."""
TRUTH = "truth-"
RANDOM = "control:random*"
"""The controls that are random circuits."""


def _of_circuit(stored: StoredRecord, claim: Claim) -> bool:
    if not _of_file(stored, claim):
        return False
    names = (claim.ranking, spelled(claim.ranking))
    if stored.ranking in (*names, claim.circuit):
        return True
    name, at, size = stored.ranking.rpartition("@")
    stem = Path(name).stem if name.endswith(".safetensors") else name
    return bool(at) and size == claim.size and stem in names


def _of_file(stored: StoredRecord, claim: Claim) -> bool:
    """Whether a record is of the claim's file of scores, as far as both are known by their hash."""
    method = stored.record.specs.get("method")
    digest = method.args.get(SCORES_SHA256) if method else None
    if not digest or not claim.scores or not Path(claim.scores).is_file():
        return True
    return digest == file_hash(Path(claim.scores))


@cache
def spelled(ranking: str) -> str:
    """What records call a method that a claim names, with its settings; others as they are."""
    if ranking.partition(":")[0] not in METHODS:
        return ranking
    return method_name(METHODS.make(ranking))


def record_name(model: str) -> str:
    """Return the name by which records have a model that a claim names."""
    return stored_name(model_name(model))


def task_name(task: str) -> str:
    """Return the name by which records have a task that a claim names: without settings."""
    return stored_name(name_of(task, "tasks")) if is_task_file(task) else task.partition(":")[0]


@cache
def _settings(task: str) -> dict[str, str]:
    """The settings of a task that a claim names, as records state them."""
    if task.partition(":")[0] not in TASKS:
        return {}
    return {key: _plain(value) for key, value in settings_of(load_task(task)).items()}


def _plain(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)


def _of_task(stored: StoredRecord, claim: Claim, where: str) -> bool:
    """Whether a record is of the claim's task with its settings, or of another task.

    A task with other settings is neither.
    """
    named = stored.record.task.name in (claim.task, task_name(claim.task))
    if where == "other task":
        return not named
    asked, args = _settings(claim.task), stored.record.task.args
    return named and all(_plain(args[key]) == asked[key] for key in asked if key in args)


def _of_model(stored: StoredRecord, claim: Claim, where: str, families: set[str]) -> bool:
    name, family = stored.record.model.name, stored.family
    if where == "truth":
        # A ranking that no method made says nothing of a method, whatever its file is called.
        by_method = not claim.scores and claim.ranking.partition(":")[0] in METHODS
        return by_method and name.startswith(TRUTH)
    if where == "other family":
        strange = name.startswith((TRUTH, UNTRAINED))
        return bool(families) and bool(family) and family not in families and not strange
    model = claim.untrained_copy if where == "untrained" else claim.model
    if not model:
        return False
    weights = stored.record.identities.get("model", {}).get("weights")
    return name in (model, record_name(model)) or (
        weights is not None and weights == _known_weights(model)
    )


def _known_weights(model: str) -> str | None:
    """Return the digest of a model's weights if it is cached. Records that were made in another
    working directory have another name of the same model.
    """
    with suppress(MechassayError):
        if known := known_digests(model, "float32"):
            return known["weights"]
    return None


def _is_about(stored: StoredRecord, kind: str) -> bool:
    """Return whether a record measures what rules of a kind ask: that scores were found measures
    no circuit.
    """
    return stored.record.kind == kind and stored.record.measure("scored") is None


def answering(
    part: RecordTest, claim: Claim, records: Iterable[StoredRecord], *, where: str = "own"
) -> list[StoredRecord]:
    """The records that a part is about.

    Args:
        where: "own", "other task", "held out", "truth", "other family" or "untrained".
    """
    rows = list(records)
    own = {
        own_record.family for own_record in rows if _of_model(own_record, claim, "own", set())
    } - {""}
    taken: list[StoredRecord] = []
    for stored in rows:
        if not _is_about(stored, part.kind) or not _of_circuit(stored, claim):
            continue
        if not _of_model(stored, claim, where, own):
            continue
        if where != "truth" and not _of_task(stored, claim, where):
            continue
        if part.test != "conditions" and stored.setting("ablation") not in ("", claim.ablation):
            continue
        tried, trained = stored.setting("split"), stored.setting("train_split")
        # A record that does not say that its circuit is of another split is not held out.
        if where == "held out" and (not tried or not trained or tried == trained):
            continue
        taken.append(stored)
    return taken


def measured(
    part: RecordTest, claim: Claim, taken: Iterable[StoredRecord], of: str = "result"
) -> list[tuple[StoredRecord, Measure]]:
    """The measure of each record that has it, defined or not."""
    sized = part.measure in SIZED and claim.size
    name = f"{part.measure}@{claim.size}" if sized else part.measure
    rows = [(stored, stored.record.measure(name, of)) for stored in taken]
    return [(stored, measure) for stored, measure in rows if measure is not None]


DEAD = "dead"
"""The measure of edges of a circuit that are on no path."""
ONE_FAMILY = "one_family"
"""The flag of methods that are one family: their agreement is no evidence."""


class Answer(NamedTuple):
    """What a part of a rule says, why, and what was read for it.

    Attributes:
        ends: the worst and the best status that the intervals leave open; where nothing is open,
            the status twice.
    """

    status: Status
    reason: str
    read: tuple[tuple[StoredRecord, Measure], ...] = ()
    ends: tuple[Status, Status] | None = None

    @property
    def at_worst(self) -> Status:
        return self.status if self.ends is None else self.ends[0]

    @property
    def at_best(self) -> Status:
        return self.status if self.ends is None else self.ends[1]


def _decided(
    met: bool, missed: bool, reason: str, read: tuple[tuple[StoredRecord, Measure], ...]
) -> Answer:
    """YES where the interval lies on the side that must be shown, NO on the other, else open."""
    if met:
        return Answer("YES", reason, read)
    return Answer("NO", reason, read) if missed else Answer("PARTIAL", reason, read, ("NO", "YES"))


def of_pairs(read: Iterable[tuple[StoredRecord, Measure]]) -> str:
    """The fewest pairs, and groups of pairs, that what was read is of; "" if it is of none."""
    held = [stored.record for stored, _ in read if has_values(stored.record)]
    if not held:
        return ""
    fewest = min(held, key=n_groups)
    return f"n = {fewest.n} pairs in {n_groups(fewest)} groups."


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
    where = {
        "other task": " on another task",
        "held out": " on a split it was not found on",
        "other family": " of a model of another family",
    }
    place = where.get(part.where, f" on {part.where}" if part.where else "")
    return Answer("NOT TESTED", f"No record has {part.measure}{place}{about}.")


def _of_each(
    part: RecordTest,
    rows: Sequence[tuple[StoredRecord, Measure]],
    one: Callable[[StoredRecord, Measure], Answer],
) -> Answer:
    """The answer of the record that does worst, of those that have the measure."""
    return _worst([one(*row) for row in rows]) if rows else _nothing(part)


def _worst(answers: Sequence[Answer]) -> Answer:
    """The answer of the record that does worst, with all that was read."""
    tested = [answer for answer in answers if answer.status in JUDGED]
    if not tested:
        return answers[0]
    lowest = min(tested, key=lambda answer: JUDGED.index(answer.status))
    more = f" (the worst of {len(tested)} records)" if len(tested) > 1 else ""
    read = tuple(row for answer in tested for row in answer.read)
    ends = (
        JUDGED[min(JUDGED.index(answer.at_worst) for answer in tested)],
        JUDGED[min(JUDGED.index(answer.at_best) for answer in tested)],
    )
    return Answer(lowest.status, f"{lowest.reason.rstrip('.')}{more}.", read, ends)


# The tests


def _against(part: RecordTest, stored: StoredRecord, measure: Measure) -> Answer:
    """A bound against `least`."""
    ends, least = _bounds(part, measure), part.least or 0.0
    if math.isnan(ends.value) or math.isnan(ends.low):
        lacking = "is undefined" if math.isnan(ends.value) else "has no interval"
        return Answer("NOT TESTED", f"{_what(part)} {lacking} in {stored.file}.")
    reason = f"{_what(part)} is {ends}, with {least:g} needed."
    return _decided(ends.low >= least, ends.high < least, reason, ((stored, measure),))


def by_interval(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The lower bound is at least the threshold; missed if the upper bound is below."""
    rows = measured(part, claim, answering(part, claim, records, where=part.where or "own"))
    return _worst([_against(part, *row) for row in rows]) if rows else _nothing(part)


def by_conditions(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The lower bound is at least the threshold under several conditions."""
    rows = measured(part, claim, answering(part, claim, records))
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
    reasons = "; ".join(f"{', '.join(key)}: {answer.reason}" for key, answer in tested.items())

    def under(statuses: list[Status]) -> Status:
        some = any(status != "NO" for status in statuses)
        return "YES" if statuses.count("YES") >= part.n else "PARTIAL" if some else "NO"

    answers = list(tested.values())
    met = sum(answer.status == "YES" for answer in answers)
    read = tuple(row for answer in answers for row in answer.read)
    ends = (
        under([answer.at_worst for answer in answers]),
        under([tested_answer.at_best for tested_answer in answers]),
    )
    status = under([answer.status for answer in answers])
    return Answer(status, f"Met under {met} of {part.n} needed. {reasons}", read, ends)


def by_spread(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The upper bound of the standard deviation over samples of prompts is at most the threshold.

    With s of k samples, the 95 % interval of a standard deviation is s sqrt((k - 1) / q), q the
    quantiles .975 and .025 of chi-squared with k - 1 degrees of freedom.
    """
    rows = measured(part, claim, answering(part, claim, records))
    samples: dict[str, tuple[StoredRecord, Measure]] = {}
    # The same prompts again, under another seed too, are no other sample: the worst of them counts.
    for stored, measure in sorted(rows, key=lambda row: -_bounds(part, row[1]).value):
        if not math.isnan(measure.value):
            samples[_sample(stored)] = (stored, measure)
    defined = list(samples.values())
    if len(defined) < 2:
        return _nothing(part, f" of a second sample of prompts ({len(defined)} there)")
    spread = float(np.std([_bounds(part, measure).value for _, measure in defined], ddof=1))
    degrees, most = len(defined) - 1, part.most or 0.0
    low, high = spread * np.sqrt(degrees / chi2.ppf([(1 + LEVEL) / 2, (1 - LEVEL) / 2], degrees))
    sentence = (
        f"Standard deviation {number(spread, low, high)} [{number(low)}, {number(high)}] over"
        f" {len(defined)} samples, with {most:g} allowed."
    )
    if len(defined) < part.n:
        status: Status = "NO" if low > most else "PARTIAL"
        return Answer(status, f"{sentence} {part.n} samples are needed.", tuple(defined))
    return _decided(high <= most, low > most, sentence, tuple(defined))


def _sample(stored: StoredRecord) -> str:
    """Which prompts it is of: the hash of what they are."""
    data = stored.record.data.get("test")
    return data.hash if data else stored.file


def by_width(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The interval is at most so wide."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        width = measure.high - measure.low
        if math.isnan(width):
            return Answer("NOT TESTED", f"{_what(part)} has no interval in {stored.file}.")
        status: Status = "YES" if width <= (part.most or 0.0) else "NO"
        sentence = f"The interval of {_what(part)} is {width:.3f} wide, with {part.most:g} allowed."
        return Answer(status, sentence, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_ratio(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """On the task it is at least so many times as much as on any other."""
    own = measured(part, claim, answering(part, claim, records))
    others = measured(part, claim, answering(part, claim, records, where="other task"))
    if not own or not others:
        return _nothing(part, "" if not own else " on another task")

    def one(mine: tuple[StoredRecord, Measure], other: tuple[StoredRecord, Measure]) -> Answer:
        a, b, least = _bounds(part, mine[1]), _bounds(part, other[1]), part.least or 0.0
        if any(map(math.isnan, (*a, *b))):
            lacking = f"{_what(part)} is undefined, or has no interval, in {other[0].file}."
            return Answer("NOT TESTED", lacking)
        met = a.low > 0 and a.low >= least * max(b.high, 0.0)
        missed = a.high <= 0 or a.high < least * max(b.low, 0.0)
        task = other[0].record.task.name
        sentence = f"{_what(part)} is {a}, and {b} on {task}; {least:g} times is needed."
        return _decided(met, missed, sentence, (mine, other))

    return _worst([one(mine, other) for mine in own for other in others])


def by_margin(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """It lies above the controls of the same record, or above an untrained model.

    Of random circuits the interval holds what another one may reach: the hardest control counts.
    """
    own = measured(part, claim, answering(part, claim, records))
    pairs: list[tuple[tuple[StoredRecord, Measure], tuple[StoredRecord, Measure], Bounds]]
    if part.against == "untrained":
        others = measured(part, claim, answering(part, claim, records, where="untrained"))
        pairs = [
            (mine, other, _in_the_models_unit(part, mine[0], other))
            for mine in own
            for other in others
        ]
        what = "an untrained copy"
    else:
        answers = answering(part, claim, records)
        controls = {
            stored.file: [
                (stored, measure)
                for of in dict.fromkeys(measure.of for measure in stored.record.measures)
                if fnmatchcase(of, part.control)
                for _, measure in measured(part, claim, [stored], of)
            ]
            for stored in answers
        }
        pairs = [
            (mine, other, _bounds(part, other[1]))
            for mine in own
            for other in controls.get(mine[0].file, [])
        ]
        what = part.control.removeprefix("control:").replace("-", " ").replace("*", " circuits")
    if not pairs:
        return _nothing(part, f" beside {what}")

    def one(
        mine: tuple[StoredRecord, Measure], other: tuple[StoredRecord, Measure], b: Bounds
    ) -> Answer:
        a, least = _bounds(part, mine[1]), part.least or 0.0
        if any(map(math.isnan, (*a, *b))):
            lacking = f"{_what(part)} is undefined, or has no interval, beside {what}."
            return Answer("NOT TESTED", lacking)
        met, missed = a.low - b.high >= least, a.high - b.low < least
        text = f"{_what(part)} is {a}, of {what} {b}; {least:g} more is needed."
        return _decided(met, missed, text, (mine, other))

    return _worst([one(*row) for row in pairs])


def _in_the_models_unit(
    part: RecordTest, own: StoredRecord, other: tuple[StoredRecord, Measure]
) -> Bounds:
    """What an untrained copy does, as a share of what the model does of its task.

    A recovery is a share of its own model's behaviour, m(N) - m(0). An untrained model hardly has
    any: a share of that may be large, and is undefined where it cannot be told from none. So it is
    taken times the copy's behaviour over the model's; where it is undefined, the whole behaviour of
    the copy stands for it, in either direction.
    """
    stored, measure = other
    ours, theirs = _behaviour(own), _behaviour(stored)
    if math.isnan(ours.value) or ours.value == 0 or math.isnan(theirs.value):
        return Bounds(math.nan, math.nan, math.nan)
    if not math.isnan(measure.value):
        share, ends = theirs.value / ours.value, _bounds(part, measure)
        low, high = sorted((share * ends.low, share * ends.high))
        return Bounds(share * ends.value, low, high)
    whole = [abs(end / ours.value) for end in theirs]
    if math.isnan(theirs.low):
        return Bounds(whole[0], math.nan, math.nan)
    return Bounds(whole[0], 0.0 if theirs.low <= 0 <= theirs.high else min(whole), max(whole))


def _behaviour(stored: StoredRecord) -> Bounds:
    """m(N) - m(0) over the pairs of a record; NaN if it does not have their values."""
    values = stored.record.values
    columns = values.columns if values else {}
    if values is None or not values.ids or not {"clean", "empty"} <= set(columns):
        return Bounds(math.nan, math.nan, math.nan)
    ends = np.array([columns["clean"], columns["empty"]], dtype=float)
    groups = tuple(values.groups or values.ids)
    gap, least = ends[0] - ends[1], least_size(stored.record.metric.name)
    drawn = resampled_means(gap[None], groups, np.random.default_rng(0))[:, 0]
    gaps = resolved_difference(np.append(drawn, gap.mean()), 0.0, ends, least=least)
    low, high, _ = percentile_interval(gaps[:-1], n_groups=len(set(groups)))
    return Bounds(float(gaps[-1]), low, high)


def alternative_name(claim: Claim) -> str:
    """What records call the circuit that a claim is held against."""
    return f"{cell_name(claim.id)}.alternative"


def by_alternative(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """Pair by pair it is more than the alternative's: the difference lies above 0.

    An alternative that does the same on every pair, as the claim's own circuit would, or no more
    than random circuits of its size may, is none: to do more than it shows nothing.
    """
    stated = claim.alternative
    if stated is None or bool(stated.task) != (part.against == "other task"):
        text = "" if part.optional else "The claim names no alternative on its own task."
        return Answer("NOT TESTED", text)
    other = claim.model_copy(
        update={"circuit": f"{alternative_name(claim)}@{claim.size}", "scores": ""}
    )
    rows = [
        (own, theirs)
        for own in measured(part, claim, answering(part, claim, records))
        for theirs in measured(part, other, answering(part, other, records))
        if _same_pairs(own[0], theirs[0])
    ]
    if not rows:
        return _nothing(part, f" of the alternative ({_named(claim)}) on the claim's pairs")
    return _worst([_beside(part, claim, *row) for row in rows])


def beside_alternative(claim: Claim, records: Sequence[StoredRecord]) -> str:
    """What the claim's circuit recovers beside its alternative, in words; "" if it names none."""
    if claim.alternative is None:
        return ""
    against = "other task" if claim.alternative.task else ""
    part = RecordTest(test="alternative", measure="circuit", against=against)
    answer = by_alternative(part, claim, records)
    return " ".join(filter(None, (answer.reason, of_pairs(answer.read))))


def _named(claim: Claim) -> str:
    """The alternative of a claim that names one, in words."""
    stated = claim.alternative
    assert stated is not None
    if stated.circuit:
        return CircuitSpec.name_in_results(stated.circuit)
    task = task_name(stated.task or claim.task)
    return f"what {stated.method or claim.ranking} finds on {task}"


def _same_pairs(a: StoredRecord, b: StoredRecord) -> bool:
    own, other = a.record.values, b.record.values
    held = own is not None and other is not None and bool(own.ids) and own.ids == other.ids
    return held and _sample(a) == _sample(b) and a.record.metric.name == b.record.metric.name


def _beside(
    part: RecordTest,
    claim: Claim,
    own: tuple[StoredRecord, Measure],
    theirs: tuple[StoredRecord, Measure],
) -> Answer:
    """What is said of the claim's circuit beside its alternative, by records of the same pairs."""
    difference, room = _paired(part, own, theirs)
    alternative, name = _bounds(part, theirs[1]), theirs[1].name
    if any(map(math.isnan, (*difference, *room, *alternative))):
        text = f"{_what(part)} beside the alternative is undefined, or has no interval, in"
        return Answer("NOT TESTED", f"{text} {theirs[0].file}.")
    read = (own, theirs)
    value, low, high = difference
    less = value < 0
    size = interval(-value, -high, -low) if less else str(difference)
    does, than = ("Without it the model loses", "without ") if part.loss else ("It recovers", "")
    text = (
        f"{does} {size} {'less' if less else 'more'} than {than}the alternative"
        f" ({_named(claim)}: {alternative}), pair by pair."
    )
    if difference == (0.0, 0.0, 0.0):
        same = "That is none: it does the same on every pair."
        return Answer("NOT TESTED", f"{text} {same}", read)
    if not room.low > 0:
        return _decided(False, False, f"{text} Which of them is nearer to 1 is open.", read)
    by_chance = [
        _bounds(part, measure).high
        for measure in theirs[0].record.measures
        if measure.name == name and fnmatchcase(measure.of, RANDOM)
    ]
    chance = max(by_chance, default=math.nan)
    if difference.high >= 0 and not alternative.low > chance:
        none = f"That is none: random circuits of its size may reach {number(chance)}."
        return Answer("NOT TESTED", f"{text} {none}", read)
    return _decided(difference.low > 0, difference.high < 0, text, read)


def _paired(
    part: RecordTest, own: tuple[StoredRecord, Measure], theirs: tuple[StoredRecord, Measure]
) -> tuple[Bounds, Bounds]:
    """f(C) - f(A), and 2 - f(C) - f(A), of a circuit and its alternative; NaN if undefined.

    Both are resampled by groups, all four runs together. Where the second is above 0, the larger of
    the two is the nearer to 1: overshoot is no recovery. A loss is 1 - f of what is left.
    """
    nothing = Bounds(math.nan, math.nan, math.nan)
    values, other = own[0].record.values, theirs[0].record.values
    assert values is not None and other is not None, "they were matched by their pairs"
    name, wanted = own[1].name, ("clean", "empty", own[1].name)
    if not set(wanted) <= set(values.columns) or name not in other.columns:
        return nothing, nothing
    runs = np.array(
        [*(values.columns[own_name] for own_name in wanted), other.columns[name]], dtype=float
    )
    if part.loss:
        runs[2:] = runs[0] + runs[1] - runs[2:]
    groups, least = tuple(values.groups or values.ids), least_size(own[0].record.metric.name)
    drawn = resampled_means(runs, groups, np.random.default_rng(0))
    full, empty, ours, its = np.vstack((drawn, runs.mean(axis=1))).T
    n_groups = len(set(groups))
    gap = resolved_difference(full, empty, runs[:2], least=least)
    low, high, _ = percentile_interval(gap[:-1], n_groups=n_groups)
    if not (low > 0 or high < 0) or (gap == 0).any():
        return nothing, nothing
    apart = resolved_difference(ours, its, runs[2:], least=least) / gap

    def bounds(draws: np.ndarray) -> Bounds:
        return Bounds(float(draws[-1]), *percentile_interval(draws[:-1], n_groups=n_groups)[:2])

    return bounds(apart), bounds(2 - (ours + its - 2 * empty) / gap)


def by_above(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The number lies above its control's; neither needs an interval."""
    answers = answering(part, claim, records, where=part.where or "own")
    controls = {stored.file: row for stored, row in measured(part, claim, answers, part.control)}

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        control = controls[stored.file]
        margin = measure.value - control.value
        if math.isnan(margin):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        status: Status = "YES" if margin > (part.least or 0.0) else "NO"
        sentence = f"{_what(part)} is {number(measure.value)}, by chance {number(control.value)}."
        return Answer(status, sentence, ((stored, measure), (stored, control)))

    rows = [row for row in measured(part, claim, answers) if row[0].file in controls]
    return _of_each(part, rows, one)


def by_share(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The upper bound of a share is at most so large; missed if the lower bound lies above."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value) or measure.n < 1 or math.isnan(measure.low):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        most, share = part.most or 0.0, interval(measure.value, measure.low, measure.high)
        sentence = f"{_what(part)} is {share} of {measure.n} parts, with {most:g} allowed."
        rows = [row for row in stored.record.measures if row.name.partition("@")[0] == DEAD]
        if dead := [row for row in rows if row.of == "result" and row.value > 0]:
            sentence += f" {dead[0].value:.0f} of {dead[0].n} edges carry nothing."
        return _decided(measure.high <= most, measure.low > most, sentence, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_value(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The upper bound of a share of pairs is at most so large.

    The pairs of a grid share prompts: it counts as many independent ones as its shorter side has.
    """

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        counts = [chosen.counts for chosen in stored.record.data.values()]
        sides = [count_of[side] for count_of in counts for side in SIDES if side in count_of]
        most, n = part.most or 0.0, float(min([measure.n, *sides]))
        low, high, _ = clopper_pearson(measure.value * n, n)
        share = interval(measure.value, low, high)
        sentence = f"{_what(part)} is {share} of {n:.0f} independent pairs, with {most:g} allowed."
        needed = math.ceil(math.log((1 - LEVEL) / 2) / math.log(1 - most)) if most > 0 else 0
        if n < needed:
            sentence += f" With none, {needed} are needed."
        return _decided(high <= most, low > most, sentence, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_most(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The lower bound of a share is at least so large; missed if the upper bound is below.

    Where all parts of the circuit were looked at, the share is known.
    """

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value) or measure.n < 1:
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        least, own = part.least or 0.0, measure.value
        whole = stored.record.value(f"{part.measure}_left_out") == 0
        low, high, _ = clopper_pearson(own * measure.n, float(measure.n))
        low, high = (own, own) if whole else (low, high)
        sentence = (
            f"{_what(part)} is {interval(own, low, high)} of {measure.n}, with {least:g} needed."
        )
        return _decided(low >= least, high < least, sentence, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_known(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """Where a known circuit is found as a whole, it recovers 1 and the rest 0, nearly."""

    def one(stored: StoredRecord) -> Answer:
        ends = [stored.record.measure(name) for name in ("circuit", "complement")]
        measures = [measure for measure in ends if measure is not None]
        if len(measures) < 2 or any(math.isnan(measure.low) for measure in measures):
            return Answer("NOT TESTED", f"circuit and complement are undefined in {stored.file}.")
        expected = {"circuit": 1.0, "complement": 0.0}
        far, near = (
            max(side(measure, expected[measure.name]) for measure in measures)
            for side in (_farthest, _nearest)
        )
        most = part.most or 0.0
        sentence = f"Known effects are met within {near:.3f} to {far:.3f}, with {most:g} allowed."
        read = tuple((stored, measure) for measure in measures)
        return _decided(far <= most, near > most, sentence, read)

    answers = answering(part, claim, records, where=part.where or "truth")
    whole = [stored for stored in answers if stored.record.value("r_precision") == 1]
    if not whole:
        sentence = "No record has a known circuit that the method finds as a whole."
        return Answer("NOT TESTED", sentence)
    return _worst([one(stored) for stored in whole])


def _farthest(measure: Measure, expected: float) -> float:
    return max(abs(end - expected) for end in (measure.low, measure.high))


def _nearest(measure: Measure, expected: float) -> float:
    inside = measure.low <= expected <= measure.high
    return 0.0 if inside else min(abs(end - expected) for end in (measure.low, measure.high))


def by_verdict(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """A metric of measurement passes, in its repaired definition."""
    if part.task and task_name(claim.task) != part.task:
        return Answer("NOT TESTED", f"{part.measure} is about {part.task} alone.")

    def one(stored: StoredRecord) -> Answer:
        record = stored.record
        flags = record.table("flags").columns.get("flag", []) if record.has_table("flags") else []
        if ONE_FAMILY in flags:
            return Answer("NOT TESTED", f"{part.measure} compared methods of one family.")
        rows = record.table("verdicts").rows() if record.has_table("verdicts") else []
        verdict = next((row["verdict"] for row in rows if row["variant"] == "repaired"), None)
        read = tuple((stored, measure) for measure in record.measures if measure.of == "result")
        if verdict not in ("passes", "fails"):
            return Answer("NOT TESTED", f"{part.measure} has no verdict in {stored.file}.")
        status: Status = "YES" if verdict == "passes" else "NO"
        return Answer(status, f"{part.measure} {verdict}.", read)

    measures = [
        stored
        for stored in answering(part, claim, records)
        if stored.record.method.name == part.measure
    ]
    return _worst([one(stored) for stored in measures]) if measures else _nothing(part)


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
    "most": by_most,
    "known": by_known,
    "verdict": by_verdict,
    "alternative": by_alternative,
}
"""The tests of records by their names."""
