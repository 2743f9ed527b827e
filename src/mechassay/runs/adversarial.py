"""Adversarial evaluation of circuits: divergences of all pairs, controls, statistics.

The folder of a run holds, beside plan and records,

    prompts.json       both pools: texts, parts, what was dropped
    values.parquet     the divergence of every pair from every circuit, and from the empty one
    found/             scores of the methods that found circuits

A cell is a circuit. The divergences of all circuits are made together, in the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console

from mechassay.adversarial.divergence import arrow
from mechassay.adversarial.pools import check_finite
from mechassay.circuits.spec import CircuitSpec
from mechassay.records import Record
from mechassay.report.console import print_tables, print_text
from mechassay.report.kinds.adversarial import AdversarialPage
from mechassay.report.kinds.adversarial_templates import template_text
from mechassay.runs.adversarial_plan import AdversarialPlan, circuit_versions
from mechassay.runs.adversarial_records import KIND, RecordMaker
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.job import Bench, Cell, Job, Results, cell_name
from mechassay.runs.names import shown_model


@dataclass(frozen=True)
class AdversarialJob(AdversarialPlan, Job):
    """How far circuits are from the model on every pair of prompts: percentiles with bounds, worst
    pairs, which prompts are worse.
    """

    kind: ClassVar[str] = KIND
    for_boards: ClassVar[bool] = True
    markdown: ClassVar[str] = ""

    def versions(self, bench: Bench) -> dict[str, Any]:
        """See `circuit_versions`."""
        return circuit_versions(bench.task(self.task), self.circuits)

    def check(self, bench: Bench) -> None:
        """See `Job.check`.

        Raises:
            MissingExtra: pyarrow is not installed.
            BadFile: the divergences of the folder are not those that its records were made of.
        """
        self.refuse()
        task = bench.task(self.task)
        if self.enumerate_all:
            check_finite(task)
        arrow()
        stored = [bench.folder.record(cell.name) for cell in self.cells()]
        study = AdversarialStudy(self, bench)
        study.check_file([record for record in stored if record is not None])

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        of: Mapping[str, str] = {"model": shown_model(self.model), "task": self.task}
        called = {text: CircuitSpec.name_in_results(text) for text in self.circuits}
        return [
            Cell(cell_name(name), {"circuit": name, **of}, KIND, {"circuit": text})
            for text, name in called.items()
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        maker = bench.shared("records", lambda: RecordMaker(AdversarialStudy(self, bench)))
        record = maker.record(self.circuits.index(cell.typed["circuit"]))
        return record.changed(cell={**record.cell, **cell.of})

    def show(self, results: Results, console: Console) -> None:
        """See `Job.show`."""
        print_tables(AdversarialPage().tables(results.records, results.failures), console)
        if results.records:
            text = template_text(results.records)
            print_text(text, console)
