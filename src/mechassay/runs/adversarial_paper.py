"""The evaluation of Uit de Bos and Garriga-Alonso (2024) of three circuits, run again.

    unmatched  1000 clean x 1000 corrupted prompts, one template   figures 1 to 3, tables 3 to 6
    matched    1,000,000 prompts, each with its own corrupted one    figures 4 to 6, tables 7 to 10

A cell is one of the six, an adversarial run in a folder of its own. The page puts their
distributions beside the printed ones, and ends with a verdict: is table 3 closer to the circuit or
to the empty circuit (`adversarial.verdict`)? In the paper both prompts of a pair have one template,
so unmatched pairs are of one template here. Other differences are in docs/adversarial.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar

from rich.console import Console

from mechassay.adversarial.verdict import Closeness, closeness, other_model
from mechassay.errors import BadUsage, MechassayError
from mechassay.records import Record, Table
from mechassay.report.console import print_text
from mechassay.report.kinds.paper import (
    KIND,
    PRINTED,
    ROWS,
    SCALED,
    TASKS,
    VERDICT,
    verdict_text,
    verdicts,
)
from mechassay.runs import options
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.execute import Here, done, prepare
from mechassay.runs.job import Bench, Cell, Job, Results, option
from mechassay.runs.names import shown_model
from mechassay.tasks.docstring import RANDOM
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import NEW_NAMES
from mechassay.tasks.paper import PAPER

MAPS = {"ioi": ("place,object",), "greater-than": ("noun,year",)}
"""Fields of the paper's figures 7 and 10."""
KINDS = {"ioi": NEW_NAMES, "greater-than": None, "docstring": RANDOM}
"""Counterfactuals of each task."""
PROMPTS: Mapping[str, Mapping[str, str]] = {
    "unmatched": {task: f"{task}:words=paper" for task in TASKS},
    "matched": {
        **{task: f"{task}:words=paper" for task in TASKS},
        "ioi": "ioi:words=paper-matched",
    },
}
"""The task, as commands take it, that the prompts of each table are from."""
IOI_MATCHED = 300_000
"""The most matched pairs of IOI:
the paper's words make 372,480 different clean prompts of the split test.
"""


@dataclass(frozen=True)
class PaperJob(Job):
    """Run the evaluation of Uit de Bos and Garriga-Alonso (2024) again: IOI, greater-than and
    docstring, unmatched and matched pairs.
    """

    model: Annotated[str, replace(options.MODEL, help="GPT-2 small: hub id or local folder.")]
    docstring_model: Annotated[
        str | None,
        option("attn-only-4l (folder with its checkpoint); docstring is left out without it."),
    ] = None
    n_clean: Annotated[int, option("Clean prompts of the grids.")] = 1000
    n_corrupted: Annotated[int, option("Corrupted prompts of the grids.")] = 1000
    n_matched: Annotated[
        int,
        option("Matched pairs; of greater-than, which has fewer than the paper's million, all."),
    ] = 1_000_000
    worst: Annotated[
        int, option("How many of the worst pairs to show, each run again by itself.")
    ] = 10
    dtype: Annotated[str, options.DTYPE] = "float32"
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = KIND
    command: ClassVar[tuple[str, ...]] = ("adversarial", "paper")
    markdown: ClassVar[str] = ""

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        for name in ("n_clean", "n_corrupted", "n_matched"):
            if getattr(self, name) < 1:
                raise BadUsage(f"{name} must be 1 or more; got {getattr(self, name)}.")
        for plan in self.plans().values():
            plan.refuse()

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                name,
                {"run": name, "model": shown_model(plan.model), "task": plan.task},
                name.rpartition("-")[0],
            )
            for name, plan in self.plans().items()
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """The record of one run, with the verdict on table 3 if it is of unmatched pairs.

        Raises:
            MechassayError: the run has no record.
        """
        plan = self.plans()[cell.name]
        model = bench.model(plan.model, dtype=plan.dtype, prepend_bos=plan.prepend_bos)
        folder, models = bench.folder.path / cell.name, {plan.model: model}
        inner = prepare(plan, folder, models=models, progress=bench.progress)
        results = done(plan, inner, Here())
        for failure in results.failures:
            raise MechassayError(failure.message)
        plan.report(results)
        (record,) = results.records
        task, _, pairs = cell.name.rpartition("-")
        tables = list(record.tables)
        if pairs == "unmatched":
            found = _verdict(AdversarialStudy(plan, inner), task)
            row = {"task": task, **asdict(found), "compared": " ".join(found.compared)}
            tables.append(Table.of(VERDICT, ("task",), [row]))
        assert record.values is not None
        file = f"{cell.name}/{record.values.file}"
        values = record.values.model_copy(update={"file": file})
        return record.changed(cell={**record.cell, **cell.of}, tables=tables, values=values)

    def show(self, results: Results, console: Console) -> None:
        """See `Job.show`."""
        super().show(results, console)
        said = [verdict_text(*found) for found in verdicts(results.records).items()]
        if self.docstring_model is None:
            said.append("Skipped: docstring needs attn-only-4l, --docstring-model.")
        for line in said:
            print_text(line, console)

    def plans(self) -> dict[str, AdversarialJob]:
        """The runs by the name of their folder: "ioi-unmatched" and so on."""
        plans: dict[str, AdversarialJob] = {}
        for task in TASKS:
            model = self.docstring_model if task == "docstring" else self.model
            if model is None:
                continue
            every = task == "greater-than" and self.n_matched >= GreaterThan(
                words=PAPER
            ).population("test")
            n_matched = min(self.n_matched, IOI_MATCHED) if task == "ioi" else self.n_matched
            sizes = {
                "unmatched": (self.n_clean, self.n_corrupted),
                "matched": (n_matched, n_matched),
            }
            for pairs, (n_clean, n_corrupted) in sizes.items():
                plans[f"{task}-{pairs}"] = AdversarialJob(
                    model=model,
                    task=PROMPTS[pairs][task],
                    circuits=(f"canonical:{task}",),
                    design="grid" if pairs == "unmatched" else "matched",
                    n_clean=n_clean,
                    n_corrupted=n_corrupted,
                    same=("template",) if pairs == "unmatched" else (),
                    enumerate_all=every and pairs == "matched",
                    counterfactual=KINDS[task],
                    # In the paper prompts of docstring begin with BOS, others do not.
                    prepend_bos=task == "docstring",
                    dtype=self.dtype,
                    seed=self.seed,
                    worst=self.worst,
                    heat_maps=MAPS.get(task, ()),
                )
        return plans


def _verdict(study: AdversarialStudy, task: str) -> Closeness:
    """Whether table 3 is closer to the circuit or to the empty circuit."""
    why_not, values = other_model(study.model, task), study.values
    if why_not:
        return Closeness(why_not)
    printed = {
        name: value / SCALED.get(task, 1.0)
        for name, value in zip(ROWS, PRINTED["unmatched"][task], strict=True)
    }
    units = study.statistics.drawn(values.corrupted).n_units
    return closeness(values.circuits[0], values.corrupted, printed, units, study.run.seed)
