"""What became of a claim's predictions: each is held against the records of the claim's circuit.

A prediction holds if the whole interval of its measure is on the side that it names, fails if the
whole interval is on the other, and is open else. Of several records the worst counts. A prediction
that fails refutes the claim, whatever its score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mechassay.claims.answering import SIZED, answering, kind_of
from mechassay.claims.claim import Claim, Prediction
from mechassay.claims.rubric import RecordTest
from mechassay.claims.stored import StoredRecord
from mechassay.display import OneLine
from mechassay.records import Measure, Table
from mechassay.text import interval

Outcome = Literal["holds", "open", "fails", "not measured"]
WORST: tuple[Outcome, ...] = ("fails", "open", "holds")


@dataclass(frozen=True, repr=False)
class PredictionOutcome(OneLine):
    """A prediction, what was measured, and what that says; `found` is "" if nothing was."""

    prediction: Prediction
    outcome: Outcome
    found: str = ""


def outcomes(claim: Claim, records: Sequence[StoredRecord]) -> list[PredictionOutcome]:
    """What became of each prediction of a claim."""
    return [_outcome(each, claim, records) for each in claim.predictions]


def outcome_table(found: Sequence[PredictionOutcome]) -> Table:
    """A row for each prediction."""
    rows = [
        {"prediction": str(each.prediction), "outcome": each.outcome, "found": each.found}
        for each in found
    ]
    return Table.of("predictions", ("prediction",), rows)


def _outcome(
    prediction: Prediction, claim: Claim, records: Sequence[StoredRecord]
) -> PredictionOutcome:
    own = [
        stored
        for kind in dict.fromkeys(map(kind_of, records))
        for stored in answering(
            RecordTest(test="interval", measure=prediction.measure, kind=kind), claim, records
        )
    ]
    sized = prediction.measure in SIZED and claim.size
    name = f"{prediction.measure}@{claim.size}" if sized else prediction.measure
    measures = [stored.record.measure(name, prediction.of) for stored in own]
    said = [(each, _said(prediction, each)) for each in measures if each is not None]
    known = [(WORST.index(outcome), each) for each, outcome in said if outcome in WORST]
    if not known:
        return PredictionOutcome(prediction, "not measured")
    place, measure = min(known, key=lambda row: row[0])
    outcome = WORST[place]
    return PredictionOutcome(
        prediction, outcome, interval(measure.value, measure.low, measure.high)
    )


def _said(prediction: Prediction, measure: Measure) -> Outcome:
    """Without an interval, the number itself decides."""
    if math.isnan(measure.value):
        return "not measured"
    bare = math.isnan(measure.low)
    low, high = (measure.value, measure.value) if bare else (measure.low, measure.high)
    above = prediction.direction == "above"
    if low > prediction.threshold if above else high < prediction.threshold:
        return "holds"
    failed = high <= prediction.threshold if above else low >= prediction.threshold
    return "fails" if failed else "open"
