"""The parts of rules: each is a question to records, and a function of this module answers it.

Which records it is put to is `claims.answering`'s. A part is met (YES), missed (NO), or open
(PARTIAL) where an interval contains the threshold; it is NOT TESTED if no record answers it, or
what the record has is undefined. A part that several records answer has the worst of their answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mechassay.claims.answering import answering, measured, task_name
from mechassay.claims.claim import Claim
from mechassay.claims.rubric import RecordTest
from mechassay.claims.scoring import JUDGED, Status
from mechassay.claims.stored import StoredRecord
from mechassay.objectives import least_size
from mechassay.records import Measure
from mechassay.stats.intervals import clopper_pearson, percentile_interval, resampled_means
from mechassay.stats.rounding import resolved_difference
from mechassay.text import interval, number

ONE_FAMILY = "one_family"
"""The flag of methods that are one family: their agreement is no evidence."""


class Answer(NamedTuple):
    """What a part of a rule says, why, and what was read for it."""

    status: Status
    reason: str
    read: tuple[tuple[StoredRecord, Measure], ...] = ()


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
    said = "; ".join(f"{', '.join(key)}: {answer.reason}" for key, answer in tested.items())
    met = sum(answer.status == "YES" for answer in tested.values())
    some = any(answer.status != "NO" for answer in tested.values())
    status: Status = "YES" if met >= part.n else "PARTIAL" if some else "NO"
    read = tuple(row for answer in tested.values() for row in answer.read)
    return Answer(status, f"Met under {met} of {part.n} needed. {said}", read)


def by_spread(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The standard deviation over samples of prompts is at most the threshold."""
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
    enough = len(defined) >= part.n
    status: Status = "NO" if spread > (part.most or 0.0) else "YES" if enough else "PARTIAL"
    few = "" if enough else f", {part.n} are needed"
    said = f"Standard deviation {spread:.3f} over {len(defined)} samples{few}."
    return Answer(status, said, tuple(defined))


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
        said = f"The interval of {_what(part)} is {width:.3f} wide, with {part.most:g} allowed."
        return Answer(status, said, ((stored, measure),))

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
        controls = measured(part, claim, answering(part, claim, records), part.control)
        by_file = {stored.file: (stored, measure) for stored, measure in controls}
        rows = [(mine, by_file[mine[0].file]) for mine in own if mine[0].file in by_file]
        pairs = [(mine, other, _bounds(part, other[1])) for mine, other in rows]
        what = part.control.removeprefix("control:").replace("-", " ")
    if not pairs:
        return _nothing(part, f" beside {what}")

    def one(
        mine: tuple[StoredRecord, Measure], other: tuple[StoredRecord, Measure], b: Bounds
    ) -> Answer:
        a, least = _bounds(part, mine[1]), part.least or 0.0
        if any(map(math.isnan, (*a, *b))):
            return Answer("NOT TESTED", f"{_what(part)} is undefined beside {what}.")
        met, missed = a.low - b.high >= least, a.high - b.low < least
        status: Status = "YES" if met else "NO" if missed else "PARTIAL"
        said = f"{_what(part)} is {a}, of {what} {b}; {least:g} more is needed."
        return Answer(status, said, (mine, other))

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
    return Bounds(whole[0], 0.0 if theirs.low <= 0 <= theirs.high else min(whole), max(whole))


def _behaviour(stored: StoredRecord) -> Bounds:
    """m(N) - m(0) over the pairs of a record; NaN if it does not have their values."""
    values = stored.record.values
    columns = values.columns if values else {}
    if values is None or not values.ids or not {"clean", "empty"} <= set(columns):
        return Bounds(math.nan, math.nan, math.nan)
    ends = np.array([columns["clean"], columns["empty"]], dtype=float)
    groups = tuple(values.groups or values.ids)
    each, least = ends[0] - ends[1], least_size(stored.record.metric.name)
    drawn = resampled_means(each[None], groups, np.random.default_rng(0))[:, 0]
    gaps = resolved_difference(np.append(drawn, each.mean()), 0.0, ends, least=least)
    low, high, _ = percentile_interval(gaps[:-1], n_groups=len(set(groups)))
    return Bounds(float(gaps[-1]), low, high)


def by_above(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """The number lies above its control's; neither needs an interval."""
    found = answering(part, claim, records, where=part.where or "own")
    controls = {stored.file: row for stored, row in measured(part, claim, found, part.control)}

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        control = controls[stored.file]
        margin = measure.value - control.value
        if math.isnan(margin):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        status: Status = "YES" if margin > (part.least or 0.0) else "NO"
        said = f"{_what(part)} is {number(measure.value)}, by chance {number(control.value)}."
        return Answer(status, said, ((stored, measure), (stored, control)))

    rows = [row for row in measured(part, claim, found) if row[0].file in controls]
    return _of_each(part, rows, one)


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

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_value(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """A number without an interval is at most so large."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        status: Status = "YES" if measure.value <= (part.most or 0.0) else "NO"
        said = f"{_what(part)} is {measure.value:.3g}, with {part.most:g} allowed."
        return Answer(status, said, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_most(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """A share is at least so large; missed if it is 0."""

    def one(stored: StoredRecord, measure: Measure) -> Answer:
        if math.isnan(measure.value):
            return Answer("NOT TESTED", f"{_what(part)} is undefined in {stored.file}.")
        least = part.least or 0.0
        status: Status = "YES" if measure.value >= least else "PARTIAL" if measure.value else "NO"
        said = f"{_what(part)} is {measure.value:.2f} of {measure.n}, with {least:g} needed."
        return Answer(status, said, ((stored, measure),))

    return _of_each(part, measured(part, claim, answering(part, claim, records)), one)


def by_known(part: RecordTest, claim: Claim, records: Sequence[StoredRecord]) -> Answer:
    """Where a known circuit is found as a whole, it recovers 1 and the rest 0, nearly."""

    def one(stored: StoredRecord) -> Answer:
        found = [stored.record.measure(name) for name in ("circuit", "complement")]
        measures = [each for each in found if each is not None]
        if len(measures) < 2 or any(math.isnan(each.value) for each in measures):
            return Answer("NOT TESTED", f"circuit and complement are undefined in {stored.file}.")
        off = max(abs(measures[0].value - 1), abs(measures[1].value))
        status: Status = "YES" if off <= (part.most or 0.0) else "NO"
        said = f"Known effects are met within {off:.3f}, with {part.most:g} allowed."
        return Answer(status, said, tuple((stored, each) for each in measures))

    found = answering(part, claim, records, where=part.where or "truth")
    whole = [stored for stored in found if stored.record.value("r_precision") == 1]
    if not whole:
        said = "No record has a known circuit that the method finds as a whole."
        return Answer("NOT TESTED", said)
    return _worst([one(stored) for stored in whole])


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
        read = tuple((stored, each) for each in record.measures if each.of == "result")
        if verdict not in ("passes", "fails"):
            return Answer("NOT TESTED", f"{part.measure} has no verdict in {stored.file}.")
        status: Status = "YES" if verdict == "passes" else "NO"
        return Answer(status, f"{part.measure} {verdict}.", read)

    found = [
        stored
        for stored in answering(part, claim, records)
        if stored.record.method.name == part.measure
    ]
    return _worst([one(stored) for stored in found]) if found else _nothing(part)


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
}
"""The tests of records by their names."""
