"""F08, incremental validity: is a method better than what was there before, over several tasks?

The results are those of records of circuits, CPR by default. With x_k of the method and b_k of a
baseline on task k,

    `page`      differences from the best baseline of each task; their mean, Student's t of
                pairs, d as the mean over the pooled spread of both, and tasks on which it loses
    `repaired`  the best baseline of each task is chosen after the fact, which favours it: each
                baseline is compared by itself, and the smallest mean difference counts, with the
                interval of its pairs. d_z is over the spread of differences, which is what t
                has; d_av over the pooled spread of both, which is what d has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.errors import BadUsage, one_of
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.discriminability import pooled_sd
from mechassay.results.records import Table
from mechassay.stats.intervals import resolved_difference, student_interval

ID = "F08"
REPAIRED = (Condition("delta_low", ">", 0.0),)
TaskResults = Float[np.ndarray, "tasks"]


def incremental(
    method: TaskResults, baselines: Mapping[str, TaskResults], tasks: Sequence[str]
) -> Measurement:
    """F08 of a method's results and those of baselines, task by task; higher is better.

    Raises:
        BadUsage: fewer than two tasks, no baseline, or results of other tasks.
    """
    n = len(method)
    if n < 2 or not baselines or any(len(x) != n for x in baselines.values()) or len(tasks) != n:
        raise BadUsage(
            f"F08 needs results of two tasks or more, by a method and a baseline; got {n} tasks and"
            f" {len(baselines)} baselines."
        )
    best = np.max(np.stack(list(baselines.values())), axis=0)
    gaps = method - best
    sd, pooled = _spread(method, best), pooled_sd(method, best)
    flags: list[Flag] = []
    if sd == 0:
        flags.append(flag("constant_gain"))
    if n < 5:
        flags.append(flag("few_tasks", n=n))
    losses = int((gaps < 0).sum())
    page = {
        "delta": quantity(float(gaps.mean()), n=n),
        "t": quantity(_over(float(gaps.mean()) * math.sqrt(n), sd), n=n),
        "d": quantity(_over(float(gaps.mean()), pooled), n=n),
        "n_losses": quantity(float(losses), n=n),
    }
    gains = {name: method - x for name, x in baselines.items()}
    hardest = min(gains, key=lambda name: float(gains[name].mean()))
    gain, ends = gains[hardest], student_interval(gains[hardest])
    repaired = {
        "delta": quantity(float(gain.mean()), interval=ends, n=n),
        "delta_low": quantity(ends.low, n=n),
        "d_z": quantity(_over(float(gain.mean()), _spread(method, baselines[hardest])), n=n),
        "d_av": quantity(_over(float(gain.mean()), pooled_sd(method, baselines[hardest])), n=n),
        "n_losses": quantity(float((gain < 0).sum()), n=n),
    }
    rows = [
        {"baseline": name, "task": task, "method": float(x), "other": float(y)}
        for name, other in baselines.items()
        for task, x, y in zip(tasks, method, other, strict=True)
    ]
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=flags,
        null=null(n, len(baselines)),
        tables=[Table.of("tasks", ("baseline", "task"), rows)],
    )


def _spread(method: TaskResults, baseline: TaskResults) -> float:
    """The standard deviation of the gains; 0 if they differ by rounding alone."""
    sd = (method - baseline).std(ddof=1)
    return float(resolved_difference(sd, 0.0, np.stack((method, baseline))))


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else math.nan


# How often the thresholds err


@cache
def null(
    n: int = 6, baselines: int = 1, n_simulations: int = N_SIMULATIONS, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `n` tasks."""

    def draw(rng: np.random.Generator, size: int, gain: float) -> Drawn:
        d, losses, low = (np.empty(size) for _ in range(3))
        for row in range(size):
            tasks = rng.standard_normal(n)
            x = tasks + gain + 0.5 * rng.standard_normal(n)
            others = tasks + 0.5 * rng.standard_normal((baselines, n))
            best = others.max(axis=0)
            d[row] = _over(float((x - best).mean()), pooled_sd(x, best))
            losses[row] = (x < best).sum()
            hardest = min(others, key=lambda other: float((x - other).mean()))
            low[row] = student_interval(x - hardest).low
        return {"page": {"d": d, "n_losses": losses}, "repaired": {"delta_low": low}}

    scenarios = (
        Scenario("a method like the baselines", True, lambda rng, size: draw(rng, size, 0.0)),
        Scenario(
            "a method that is better by one spread of tasks",
            False,
            lambda rng, size: draw(rng, size, 1.0),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
class IncrementalValidity(Gauge):
    """Is a method better than the others, over the tasks of a run? Of several models, the mean of
    each task over the models counts.

    Attributes:
        method: the one in question; the first of the records by default.
        measure_name: what is compared, of which more is better.
    """

    method: str = ""
    measure_name: str = "cpr"

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 6

    def measure(self, inputs: GaugeInputs) -> Measurement:
        # The measure by model and task, then by method; undefined ones are left out.
        table: dict[tuple[str, str], dict[str, float]] = {}
        for record in inputs.records:
            value = record.value(self.measure_name)
            if np.isfinite(value):
                weights = record.identities.get("model", {}).get("weights", record.model.name)
                row = table.setdefault((weights, record.task.name), {})
                row[record.method.name] = value
        methods = list(dict.fromkeys(name for row in table.values() for name in row))
        if len(methods) < 2:
            raise BadUsage(f"F08 compares two methods or more; the records have {len(methods)}.")
        method = one_of("method of the records", self.method or methods[0], methods)
        whole = [at for at, row in table.items() if len(row) == len(methods)]
        tasks = list(dict.fromkeys(task for _, task in whole))
        # Two models are not two tasks: a task counts once, with the mean over its models.
        results = {
            name: np.array(
                [np.mean([table[at][name] for at in whole if at[1] == task]) for task in tasks]
            )
            for name in methods
        }
        baselines = {name: x for name, x in results.items() if name != method}
        return incremental(results[method], baselines, tasks)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` tasks and one baseline."""
        return null(n, 1, n_simulations, seed)
