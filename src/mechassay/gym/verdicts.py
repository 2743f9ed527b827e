"""What a run on gym tasks supports, in sentences: the best method beside its own control.

A method that reads labels stands against itself on labels that are dealt out anew:

    gain = min(odds, odds of the whole vector) - odds with shuffled labels

on validation items; the method with the highest is the best, and its numbers are those of test
items. So the whole vector is a ceiling: odds above it count as much as it, and what has them moves
the output further than all of the source does. The whole vector, random directions and what is
found on shuffled labels are controls and never the best; methods that read no labels are named
beside it.

Of several tasks numbers are means over those that the model does better than 60 %; of the others
no odds say how the model does them. A method is better than its control where the 95 % interval of
their difference, item by item, is above 0. One that is not, and whose loss still falls
(`features.training.still_falling`), is not trained. Fewer than `FEW_GROUPS` pairs have no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mechassay.gym.names import (
    RANDOM,
    SWEPT,
    VANILLA,
    WITHOUT_LABELS,
    in_words,
    is_control,
    shuffled_of,
)
from mechassay.gym.task_accuracy import LEAST_ACCURACY
from mechassay.gym.task_odds import CANDIDATES, METHODS_TABLE, ORIGINAL, UNTRAINED
from mechassay.results.records import Measure, Record
from mechassay.results.sections import measured
from mechassay.stats.intervals import FEW_GROUPS

MOST = 0.5
"""A control that has more of a method's odds than this is named beside it."""


def value_of(measure: Measure | None) -> float:
    """A measure's value; NaN if there is none."""
    return math.nan if measure is None else measure.value


def methods_of(record: Record) -> list[str]:
    """The methods of a record, in their order, those of controls too."""
    return [str(name) for name in record.table(METHODS_TABLE).columns["method"]]


def mean_text(measures: Sequence[Measure | None]) -> str:
    """The mean over tasks, which has no interval; of a single task its number and interval."""
    if len(measures) == 1:
        (one,) = measures
        return "" if one is None or math.isnan(one.value) else measured(one)
    values = [value_of(measure) for measure in measures]
    return f"{np.mean(values):.2f}" if np.isfinite(values).all() else ""


def done(records: Sequence[Record]) -> list[Record]:
    """The tasks that the model does better than 60 %; all if it does none."""
    some = [r for r in records if value_of(r.measure("accuracy")) > LEAST_ACCURACY]
    return some or list(records)


@dataclass(frozen=True)
class Beside:
    """A method on some tasks of one model, beside its controls.

    Attributes:
        records: of the tasks that numbers are means over.
    """

    method: str
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """What pages call it."""
        return in_words(self.method)

    @property
    def shuffled(self) -> str:
        """Its control on shuffled labels where every task has it; else ""."""
        own = shuffled_of(self.method)
        return own if own and all(own in methods_of(record) for record in self.records) else ""

    @property
    def reads_labels(self) -> bool:
        """Whether it has anything from labels; what is not known is taken to."""
        return self.method.partition(":")[0] not in WITHOUT_LABELS

    def measures(self, of: str = "result", what: str = ORIGINAL) -> list[Measure | None]:
        """One measure of each task."""
        return [record.measure(f"{what}_{self.method}", of) for record in self.records]

    def mean(self, of: str = "result", what: str = ORIGINAL) -> float:
        """The mean over tasks; NaN where one has none."""
        return float(np.mean([value_of(measure) for measure in self.measures(of, what)]))

    def text(self, of: str = "result", what: str = ORIGINAL) -> str:
        """The mean, of a single task with its interval; "" where it is not known."""
        return mean_text(self.measures(of, what))

    @property
    def better(self) -> int:
        """In how many tasks it is better than its control on shuffled labels."""
        less = self.measures(f"difference:{self.shuffled}")
        return sum(difference is not None and difference.low > 0 for difference in less)

    @property
    def gain(self) -> float:
        """What it is compared by, see the module; of a method without such a control, random
        directions are the control, and nothing where there are none.
        """
        gains: list[float] = []
        for record in self.records:
            own, whole = (on_validation(record, name) for name in (self.method, VANILLA))
            control = on_validation(record, self.shuffled or RANDOM)
            above = 0.0 if math.isnan(control) else control
            gains.append((own if math.isnan(whole) else min(own, whole)) - above)
        return float(np.mean(gains))

    @property
    def falls(self) -> bool | None:
        """Whether the loss of its training still falls in some task; None if it is not trained."""
        still_falling = [training_falls(record, self.method) for record in self.records]
        return None if all(falls is None for falls in still_falling) else any(still_falling)


def on_validation(record: Record, method: str) -> float:
    """The odds on validation items that choose; NaN where the record has none."""
    if not record.has_table(CANDIDATES):
        return math.nan
    scores = record.table(CANDIDATES).where(method=method, chosen=True).numbers("validation")
    return float(scores[0]) if len(scores) else math.nan


def training_falls(record: Record, method: str) -> bool | None:
    """Whether the loss of a method's training still falls; None where nothing was trained."""
    rows = record.table(METHODS_TABLE).where(method=method).rows()
    falls = rows[0].get("still_falling") if rows else None
    return None if falls is None else bool(falls)


def ranked(records: Sequence[Record]) -> list[Beside]:
    """All methods that are no controls and no sweeps, the best first: those that read labels by
    their gain, with a measured control first; then those that read none.
    """
    names = dict.fromkeys(method for record in records for method in methods_of(record))
    every = [Beside(name, records) for name in names if not is_control(name) and name not in SWEPT]
    here = [method for method in every if not math.isnan(method.mean())]

    def place(method: Beside) -> tuple[bool, bool, float]:
        gain = method.gain
        return not method.reads_labels, not method.shuffled, math.inf if math.isnan(gain) else -gain

    return sorted(here, key=place)


# Sentences


def sentences(records: Sequence[Record]) -> list[str]:
    """What the records of one model say: the best method first, then what may mislead."""
    some = done(records)
    ranking = ranked(some)
    head = _head(records, some)
    if not ranking:
        return [f"{head}: {_controls_alone(some)}"]
    best = ranking[0]
    few, verdict = min(record.n_groups for record in some), ""
    if few < FEW_GROUPS:
        pairs = "pair" if few == 1 else "pairs"
        verdict = f" No verdict: {few} independent {pairs}, fewer than {FEW_GROUPS}."
    first = f"{head}: {_of_best(best)}{verdict}"
    return [first, *_of_controls(best), *_of_others(ranking)]


def _head(records: Sequence[Record], some: Sequence[Record]) -> str:
    """Which model and tasks, how many items, and whether the model does them."""
    model, accuracy = records[0].model.name, [record.measure("accuracy") for record in some]
    sizes = sorted({record.n for record in some})
    items = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    does = value_of(accuracy[0]) > LEAST_ACCURACY
    if len(records) == 1:
        does_it = "accuracy" if does else "which it does not do: accuracy"
        return f"{model}, {some[0].task.name} ({does_it} {mean_text(accuracy)}; {items} test items)"
    counted = f"(accuracy {mean_text(accuracy)}; {items} test items each)"
    if not does:
        return (
            f"{model} does none of {len(records)} tasks better than 60 %, so there is no behaviour"
            f" to explain; means over them {counted}"
        )
    if len(some) == len(records):
        return f"{model}, means over {len(some)} tasks, which it does better than 60 % {counted}"
    which = f"{len(some)} of {len(records)} tasks that it does better than 60 %"
    return f"{model}, means over the {which} {counted}"


def _controls_alone(records: Sequence[Record]) -> str:
    """What a run of controls, or of sweeps, has."""
    swept = [m for m in methods_of(records[0]) if m in SWEPT]
    if swept:
        scores = {m: float(np.mean([on_validation(r, m) for r in records])) for m in swept}
        best = Beside(max(scores, key=lambda m: scores[m]), records)
        return (
            f"of {len(swept)} settings the best on validation items is {best.name}, {best.text()}"
            " nats on test items; no control was measured."
        )
    texts = [f"{in_words(m)} {Beside(m, records).text()}" for m in methods_of(records[0])]
    return f"only controls were measured: {', '.join(texts)}."


def _of_best(best: Beside) -> str:
    """The best method's odds, what the whole vector has, and its control."""
    whole, own = Beside(VANILLA, best.records), best.text()
    ceiling = f" of at most {whole.text()} by the whole vector"
    above = best.measures(f"difference:{VANILLA}")
    if math.isnan(whole.mean()):
        ceiling = ", the whole vector was not measured"
    elif (
        all(difference is not None and difference.low > 0 for difference in above)
        and best.mean() > whole.mean()
    ):
        ceiling = f", more than the whole vector has ({whole.text()})"
    elif best.mean() >= whole.mean():
        ceiling = f", as much as the whole vector has ({whole.text()})"
    sentence = f"{best.name} {own} nats{ceiling}"
    if not best.reads_labels:
        random = Beside(RANDOM, best.records).text()
        return (
            f"{sentence}; it reads no labels{f', a random direction has {random}' * bool(random)}."
        )
    if not best.shuffled:
        return f"{sentence}; its control with shuffled labels was not measured."
    control = f"{sentence}; with shuffled labels {Beside(best.shuffled, best.records).text()}"
    n = len(best.records)
    if n > 1:
        return f"{control}, and better than that in {best.better} of {n} tasks."
    return f"{control}." if best.better else f"{control}, and not better than that."


def _of_controls(best: Beside) -> Iterator[str]:
    """Controls that have most of the best method's odds."""
    least = MOST * best.mean()
    if best.mean("result", "control") > least > 0:
        yield (
            f"{best.name} makes the model say the control labels too, by"
            f" {best.text('result', 'control')}: it moves the output, whatever the sentence is."
        )
    if best.mean(f"control:{UNTRAINED}") > least > 0:
        yield (
            f"In a model of random weights {best.name} has"
            f" {best.text(f'control:{UNTRAINED}')}: no trained mechanism is needed for it."
        )


def _of_others(methods: Sequence[Beside]) -> Iterator[str]:
    """Methods that labels help not at all or little; those above the whole vector; what needs no
    labels; and trainings that had not levelled off.
    """
    best, n = methods[0], len(methods[0].records)
    against = [method for method in methods if method.shuffled]
    worse = [method for method in against if method.better < n]
    if worse and not (n == 1 and worse[0] is best):
        texts = [
            f"{_pair(method)}{f', in {n - method.better} of {n} tasks' if n > 1 else ''}"
            for method in worse
        ]
        yield f"Not better than its own control with shuffled labels: {'; '.join(texts)}."
    if untrained := [method.name for method in worse if method.falls]:
        yield (
            f"Not trained: {', '.join(untrained)}. The loss still falls; train longer (--steps)"
            " before you say that nothing is there."
        )
    most = [
        method
        for method in against
        if method not in worse
        and Beside(method.shuffled, method.records).mean() > MOST * method.mean()
    ]
    if most:
        yield f"Most of its odds with shuffled labels too: {'; '.join(map(_pair, most))}."
    whole = Beside(VANILLA, best.records).mean()
    if above := [method for method in methods[1:] if _overshoots(method)]:
        texts = [f"{method.name} {method.text()}" for method in above]
        yield f"More than the whole vector ({whole:.2f}): {', '.join(texts)}."
    plain = [method for method in methods if not method.reads_labels and method is not best]
    if plain:
        texts = [f"{method.name} {method.text()}" for method in plain]
        yield f"Without any labels: {', '.join(texts)}."
    if falling := [method.name for method in methods if method.falls and method not in worse]:
        yield (
            f"The training loss of {', '.join(falling)} still falls: with more steps (--steps) the"
            " odds may be higher."
        )


def _pair(method: Beside) -> str:
    control = Beside(method.shuffled, method.records)
    return f"{method.name} {method.text()}, with shuffled labels {control.text()}"


def _overshoots(method: Beside) -> bool:
    """Whether it has more than the whole vector, in every task beyond its interval."""
    less = method.measures(f"difference:{VANILLA}")
    return all(one is not None and one.low > 0 for one in less)
