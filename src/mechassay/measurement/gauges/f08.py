"""F08, incremental validity: CPR of a method and of others, from records of circuits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.measurement.formulas import incremental as formula
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.records import Record


@dataclass(frozen=True)
class IncrementalValidity:
    """Is a method better than the others, over the models and tasks of a run?

    Attributes:
        method: the one in question; the first of the records by default.
        measure_name: what is compared, of which more is better.
    """

    method: str = ""
    measure_name: str = "cpr"

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("records",)

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        table = self._table(inputs.records)
        methods = list(dict.fromkeys(name for row in table.values() for name in row))
        if len(methods) < 2:
            raise BadUsage(f"F08 compares two methods or more; the records have {len(methods)}.")
        method = one_of("method of the records", self.method or methods[0], methods)
        tasks = [task for task, row in table.items() if len(row) == len(methods)]
        results = {name: np.array([table[task][name] for task in tasks]) for name in methods}
        baselines = {name: x for name, x in results.items() if name != method}
        return formula.incremental(results[method], baselines, tasks)

    def _table(self, records: Sequence[Record]) -> dict[str, dict[str, float]]:
        """The measure by model and task, then by method; undefined ones are left out."""
        table: dict[str, dict[str, float]] = {}
        for record in records:
            value = record.value(self.measure_name)
            if np.isfinite(value):
                row = table.setdefault(f"{record.model.name}, {record.task.name}", {})
                row[record.method.name] = value
        return table

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is tasks."""
        return formula.null(6 if n is None else n, 1, n_simulations, seed)
