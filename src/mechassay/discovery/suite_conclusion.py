"""Conclusions from methods on several tasks and models: which method to run, and on what evidence.

A task of a model counts for no method if it breaks a precondition whatever the method: the model
does not do it, the ablation changes nothing, its test pairs are too few (`conclusion.excluded`).

A method gets an average if it has a sound result on every task that counts. A method that failed,
or whose scores rank nothing or were found on the test pairs, gets no average, so that no method
gains by failing where a task is hard. Averages cover the same tasks. Rankings that are copies of
others count as one method.

The method to run is chosen by CMA on validation pairs: the highest mean, or of the methods close to
it the one that takes the least time. Tasks of models and ground truths count one half each. Test
pairs say what the choice loses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechassay.circuits.evaluation.curve import SMALLEST
from mechassay.discovery.methods_by_column import MethodsByColumn, ModelTask
from mechassay.models.sources import truth_names
from mechassay.results.curves import is_random
from mechassay.results.page import NOTHING
from mechassay.results.records import Record
from mechassay.results.verdict import Case, Conclusion
from mechassay.stats.chance import DRAWS_PER_TRY
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import counted, interval

SHORT = 60.0
"""Seconds that are no reason for another method: measuring its circuits takes longer."""
CLOSE = 0.01
"""A difference of CMA for which no user should pay: of methods this close a cheap one is run."""
NAMED = 4
"""Methods or tasks up to which a sentence names them; others are counted."""
BESIDE_RANDOM = {"better": "better", "worse": "worse", "few rankings": "few", "none": "without"}
"""The case for each verdict on a method; the others cannot be told from chance."""


GOOD = ("better", "few rankings", "none")
"""The verdicts of methods that may be called first."""


@dataclass(frozen=True)
class Candidates:
    """The methods with a sound result on every task that counts, and what chooses among them.

    Attributes:
        columns: the tasks that count by kind: tasks on models, ground truths.
        records: of each method, in the order of `columns`.
        cma: on validation pairs, the mean over each kind's tasks.
        seconds: to find a circuit, the median over tasks of the first kind; NaN for scores of a
            file, of which the time is not known.
        without: for each method without an average, the case that says why.
    """

    columns: Mapping[str, Sequence[ModelTask]]
    records: Mapping[str, Sequence[Record]]
    cma: Mapping[str, tuple[float, ...]]
    seconds: Mapping[str, float]
    without: Mapping[str, Case]

    @property
    def every(self) -> list[ModelTask]:
        return [column for own in self.columns.values() for column in own]

    @property
    def on(self) -> str:
        """The tasks in words: "2 tasks and 3 ground truths"."""
        return " and ".join(counted_tasks(own, kind) for kind, own in self.columns.items())

    def mean(self, method: str) -> float:
        """The CMA by which methods are compared: each kind counts as much as the other."""
        return float(np.mean(self.cma[method]))

    @classmethod
    def of(cls, cells: MethodsByColumn) -> Candidates:
        truths = set(truth_names())
        there = [column for column, reason in cells.excluded.items() if not reason]
        kinds = {"task": [c for c in there if c.model not in truths]}
        kinds["ground truth"] = [c for c in there if c.model in truths]
        kinds = {kind: own for kind, own in kinds.items() if own}
        columns = [column for own in kinds.values() for column in own]
        held, cma, seconds = dict[str, list[Record]](), {}, {}
        without = dict[str, Case]()
        # Only the columns of the first kind count for the cost of a method.
        n_first = len(next(iter(kinds.values()), []))
        for method in cells.methods:
            records = [r for (_, name), r in cells.records.items() if name == method]
            if any(map(is_random, records)) or method in cells.copies or not columns:
                continue
            reason = _without_average(cells, columns, method)
            if reason is not None:
                without[method] = reason
                continue
            own = [cells.records[column, method] for column in columns]
            held[method], chosen = own, list(map(_chosen_cma, own))
            parts = [(columns[:n_first], chosen[:n_first])]
            parts += [(columns[n_first:], chosen[n_first:])] if len(kinds) > 1 else []
            cma[method] = tuple(_mean_of_models(*part) for part in parts)
            seconds[method] = float(np.median(list(map(_cost, own))[:n_first]))
        return cls(kinds, held, cma, seconds, without)


def conclude_suite(cells: MethodsByColumn, candidates: Candidates) -> Conclusion:
    """Return which method to run, which tasks and methods do not count, and which methods are first
    by CMA and better than random rankings.
    """
    reasons = {column: reason for column, reason in cells.excluded.items() if reason}
    why = [Case("left out", "task", {"cell": c.words, "reason": x}) for c, x in reasons.items()]
    numbers = {"excluded": len(reasons), "cells": len(cells.excluded)}
    if not candidates.columns:
        first = [case.text({}) for case in why[:NAMED]] or ["There are no results."]
        return Conclusion((Case("cells", "none", {**numbers, "why": " ".join(first)}),))
    preconditions = [
        Case("cells", "excluded" if reasons else "met", numbers),
        *cells.copies.values(),
        *candidates.without.values(),
    ]
    answers = [*_to_run(cells, candidates), *why[:NAMED]]
    if len(why) > NAMED:
        answers.append(Case("left out", "more", {"more": len(why) - NAMED}))
    for name, columns in cells.groups():
        own = [column for column in columns if column in candidates.every]
        answers += _of_group(cells, name, own) if own else []
    return Conclusion(tuple(preconditions), tuple(answers))


def _without_average(
    cells: MethodsByColumn, columns: Sequence[ModelTask], method: str
) -> Case | None:
    """Return why a method gets no average; None if it has a sound result on every task."""
    missing = list[str]()
    for column in columns:
        record = cells.records.get((column, method))
        if record is None:
            missing.append(column.words)
            continue
        broken = cells.broken.get((column, method))
        if broken is not None:
            numbers = {"method": method, "cell": column.words, "reason": broken.text({})}
            return Case("average", "broken", numbers, of=method)
        if math.isnan(_chosen_cma(record)):
            numbers = {"method": method, "cell": column.words, "needed": FEW_GROUPS}
            return Case("average", "not chosen", numbers, of=method)
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    names = ", ".join(missing[:NAMED]) + more
    numbers = {"method": method, "cells": names}
    return Case("average", "missing", numbers, of=method) if missing else None


def _mean_of_models(columns: Sequence[ModelTask], values: Sequence[float]) -> float:
    """Return the mean over models of the means over the tasks of each model; ground truths have a
    task each and count as tasks.
    """
    truths, by_model = set(truth_names()), dict[str, list[float]]()
    for column, value in zip(columns, values, strict=True):
        by_model.setdefault("" if column.model in truths else column.model, []).append(value)
    return float(np.mean([np.mean(own) for own in by_model.values()]))


def counted_tasks(columns: Sequence[ModelTask], kind: str) -> str:
    """Return the number of tasks, and of the models, if several models have them."""
    models, tasks = ({getattr(column, axis) for column in columns} for axis in ("model", "task"))
    if kind != "task" or len(models) == 1:
        return counted(len(columns), kind)
    return f"{counted(len(tasks), kind)} on {counted(len(models), 'model')}"


def _to_run(cells: MethodsByColumn, candidates: Candidates) -> Iterator[Case]:
    """Yield the cases on the method to run, its time, and the tasks where another is better."""
    held, cost = candidates.records, candidates.seconds
    if len(held) < 2:
        names = {"method": next(iter(held), ""), "on": candidates.on}
        yield Case("to run", "one method" if held else "no method", names)
        return
    cma = {method: candidates.mean(method) for method in held}
    best = max(cma, key=lambda method: cma[method])
    close = [m for m in held if cma[m] >= cma[best] - CLOSE and not math.isnan(cost[m])]
    chosen = best
    if best in close:
        least = min(cost[method] for method in close)
        chosen = max((m for m in close if cost[m] <= least + SHORT), key=lambda method: cma[method])
    timed = [method for method in held if not math.isnan(cost[method])]
    cheapest = min(timed, key=lambda method: (cost[method], -cma[method]), default=chosen)
    beside = [cells.chance(column, chosen, "cma") for column in candidates.every]
    n_better, n_few = beside.count("better"), beside.count("few rankings")
    sizes = [int(chosen_number(record, "n")) for record in held[chosen]]
    of_what = " of one core" if all(_on_cpu(r) for own in held.values() for r in own) else ""
    numbers: dict[str, Any] = {
        "method": chosen,
        "methods": len(held),
        "on": candidates.on,
        "cells": len(candidates.every),
        "cma": f"{cma[chosen]:.3f}",
        "pairs": " to ".join(f"{n:,}" for n in dict.fromkeys((min(sizes), max(sizes)))),
        "seconds": f"{seconds_text(cost[chosen])}{of_what}",
        "close": CLOSE,
        "highest": f"{cma[best]:.3f}",
        "other": best,
        "longer": seconds_text(cost[best]),
        "better": n_better,
        "few": n_few,
        "tried": (tried := max(map(cells.n_tried, candidates.every))),
        "enough": DRAWS_PER_TRY * tried,
    }
    if not n_better + n_few:
        yield Case("to run", "not distinguishable", numbers)
        return
    yield Case("to run", "highest" if chosen == best else "close", numbers)
    if chosen == best:
        yield Case("to run", "time" if chosen in timed else "no time", numbers)
    if cheapest != chosen:
        own = {"method": cheapest, "seconds": seconds_text(cost[cheapest])}
        yield Case("to run", "cheapest", {**own, "cma": f"{cma[cheapest]:.3f}"})
    if n_better:
        yield Case("to run", "better than random", numbers)
    if n_few:
        yield Case("to run", "few rankings", numbers)
    yield from _where_worse(cells, candidates.every, chosen)


def _where_worse(
    cells: MethodsByColumn, columns: Sequence[ModelTask], chosen: str
) -> Iterator[Case]:
    """Return where a method is resolved to be worse than another on the test pairs, and by how much
    than the best there.
    """
    parts, n_compared, n_little = list[str](), 0, 0
    for column in columns:
        differences = cells.differences(column, "cma")
        if differences is None or chosen not in differences.names:
            continue
        n_compared += 1
        own = differences.names.index(chosen)
        ahead = np.flatnonzero(differences.better[:, own])
        if not len(ahead):
            continue
        place = ahead[np.argmax(differences.values[ahead, own])]
        by = float(differences.values[place, own])
        if by < CLOSE:
            n_little += 1
            continue
        ends = (float(m[place, own]) for m in (differences.low, differences.high))
        name = f"than {differences.names[place]} on {column.words}"
        parts.append(f"{name} by {interval(by, *ends)}")
    numbers = {"method": chosen, "compared": n_compared, "cells": len(columns), "close": CLOSE}
    if parts:
        yield Case("to run", "worse", {**numbers, "others": ", ".join(parts)})
    if n_little:
        yield Case("to run", "a little worse", {**numbers, "little": n_little})
    if n_compared and not parts and not n_little:
        yield Case("to run", "not worse", numbers)


def _of_group(cells: MethodsByColumn, name: str, judged: Sequence[ModelTask]) -> Iterator[Case]:
    """Return which methods are first by CMA in a group of tasks, as far as paired differences tell,
    and which are better than random rankings.
    """
    ranks: dict[str, list[tuple[int, int]]] = {}
    verdicts: dict[str, list[str]] = {}
    n_compared = 0
    for column in judged:
        differences = cells.differences(column, "cma")
        if differences is not None:
            n_compared = max(n_compared, len(differences.names))
            for method, rank in zip(differences.names, differences.ranks(), strict=True):
                # A ranking that is not better than random rankings is not called first.
                if rank is not None and cells.chance(column, method, "cma") in GOOD:
                    ranks.setdefault(method, []).append(rank)
        for method in cells.methods:
            record = cells.records.get((column, method))
            out = (column, method) in cells.broken or method in cells.copies
            if record is not None and not out and not is_random(record):
                verdicts.setdefault(method, []).append(cells.chance(column, method, "cma"))
    sizes = [head.n for column in judged if (head := cells.head(column)) is not None]
    numbers = {
        "group": name,
        "cells": len(judged),
        "pairs": " to ".join(f"{n:,}" for n in dict.fromkeys((min(sizes), max(sizes)))),
    }
    good = any(own in GOOD for verdict in verdicts.values() for own in verdict)
    if ranks and n_compared > 1:
        yield Case("group", "first", {**numbers, "methods": _leaders(ranks)})
    for verdict, case in BESIDE_RANDOM.items():
        n = {method: own.count(verdict) for method, own in verdicts.items()}
        if not any(n.values()):
            if verdict == "better" and not good:
                yield Case("group", "none better", numbers)
            continue
        named = {
            f"on {some}": [method for method in n if n[method] == some]
            for some in sorted(set(n.values()), reverse=True)
            if some
        }
        yield Case("group", case, {**numbers, "methods": _methods(named)})


def _leaders(ranks: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return which methods are first on how many tasks, and on how many more they may be."""
    surely = {method: sum(last == 1 for _, last in own) for method, own in ranks.items()}
    perhaps = {method: sum(first == 1 for first, _ in own) for method, own in ranks.items()}
    leaders = sorted(filter(perhaps.get, ranks), key=lambda m: (-surely[m], -perhaps[m]))
    named: dict[str, list[str]] = {}
    for method in leaders:
        sure, more = surely[method], perhaps[method] - surely[method]
        if sure:
            words = f"first on {sure}" + f", perhaps on {more} more" * bool(more)
        else:
            words = f"perhaps first on {more}"
        named.setdefault(words, []).append(method)
    return _methods(named)


def _methods(named: Mapping[str, Sequence[str]]) -> str:
    """Return methods with the words on them; of many methods only the number."""
    clauses: list[str] = []
    for words, methods in named.items():
        few = len(methods) <= NAMED
        clauses.append(f"{', '.join(methods) if few else counted(len(methods), 'method')} {words}")
    return "; ".join(clauses)


def chosen_number(record: Record, name: str) -> float:
    """Return a number of the pairs on which a size was chosen; NaN if no size was chosen."""
    if not record.has_table(SMALLEST):
        return math.nan
    row = record.table(SMALLEST).where(of="chosen")
    return float(row.numbers(name)[0]) if name in row.columns else math.nan


def _chosen_cma(record: Record) -> float:
    """Return a ranking's CMA on these pairs; NaN if it is undefined, or the pairs are few, or the
    circuit was found on them, as where a task has no others.
    """
    if not chosen_number(record, "n") >= FEW_GROUPS:
        return math.nan
    (row,) = record.table(SMALLEST).where(of="chosen").rows()
    is_train = row["split"] == record.task.args.get("train_split")
    return math.nan if is_train else chosen_number(record, "cma")


def _on_cpu(record: Record) -> bool:
    return record.provenance.device == "cpu"


def _cost(record: Record) -> float:
    """Return the seconds of finding a circuit: of one core on a CPU, else by the clock."""
    name = "localize_cpu_seconds" if _on_cpu(record) else "localize_seconds"
    return float(record.spent.get(name, math.nan))


def seconds_text(seconds: float) -> str:
    """Return seconds with their unit, "3 s"; a dash for NaN."""
    if math.isnan(seconds):
        return NOTHING
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
