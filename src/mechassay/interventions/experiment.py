"""Activation patching of models on tasks as a run, and the page on it.

A cell is one model, task and part. Its record has the shares of all cells of the map with
intervals. The objective of every pair after every patch stands beside it in `maps/`, as a file
of tensors that `PatchMap.load` reads.

The page begins with what the maps say (`interventions.patch_verdict`). It has heat maps of
shares and the numbers behind that sentence. The first map of a record is of the parts of all
prompts, where the task names parts; below it are maps of single templates with the prompts' own
tokens along the axis.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from rich.console import Console

from mechassay.errors import one_of
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.heatmap import draw_patch_map
from mechassay.interventions.options import DIRECTIONS, PatchOptions
from mechassay.interventions.patch_verdict import (
    COLUMNS,
    MapCells,
    answer_table,
    templates,
    verdict,
)
from mechassay.interventions.site import PARTS
from mechassay.models.model import check_dtype
from mechassay.models.objectives import load_objective
from mechassay.results.console import print_text
from mechassay.results.page import Block, Figure, Fold, Page, RunContents, Section, Text, TextTable
from mechassay.results.records import Record, Selection, Spec, Values
from mechassay.results.report import print_report
from mechassay.results.sections import checks_section, framed, measures_table
from mechassay.runs.experiment import (
    Cell,
    Experiment,
    Results,
    Worker,
    cell_name,
    made_by,
    shown_model,
)
from mechassay.tasks import TASKS, Keep
from mechassay.tasks.task import PRIVATE, settings_of
from mechassay.utils.display import counted


@dataclass(frozen=True)
class PatchExperiment(PatchOptions, Experiment):
    """A cell is one model, task and part; see `PatchOptions` for the fields."""

    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "parts")

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))

    def check(self, worker: Worker) -> None:
        one_of("direction of patching", self.direction, DIRECTIONS)
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        check_dtype(self.dtype)
        for part in self.parts:
            one_of("part of a site", part, PARTS)
        if self.objective is not None:
            load_objective(self.objective)
        for task in self.tasks:
            worker.task(task)

    def cells(self) -> list[Cell]:
        return [
            Cell(
                f"{group}/{part}",
                {"model": shown_model(model), "task": task, "part": part},
                group,
                {"model": model},
            )
            for model in self.models
            for task in self.tasks
            for group in [cell_name(model, task)]
            for part in self.parts
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        begin = time.perf_counter()
        model = worker.model(cell["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = worker.task(cell.labels["task"])
        pairs = worker.shared(
            "pairs",
            lambda: task.pairs(
                self.split,
                model,
                limit=self.limit,
                counterfactual=self.counterfactual,
                keep=self.keep,
                seed=self.seed,
                private_seed=self.private_seed,
            ),
        )
        patched = patch(
            model,
            pairs,
            parts=one_of("part of a site", cell.labels["part"], PARTS),
            direction=self.direction,
            objective=self.objective or task.objective,
            seed=self.seed,
            progress=worker.progress,
        )
        if self.split == PRIVATE:
            patched = patched.without_tokens()
        worker.folder.save_data("test", pairs.selection(), cell.inputs)
        file = patched.save(map_file(worker.folder.path, cell.name))
        chosen = Selection.of(pairs.selection())
        about = {"split": self.split, "limit": self.limit, **settings_of(task)}
        return patched.record(
            {
                "model": model.spec(),
                "task": Spec(name=task.name, version=task.version, args=about),
            },
            made_by(model, self.seed, chosen.hash),
            cell=dict(cell.labels),
            values=Values(
                unit="pair",
                ids=list(patched.ids),
                groups=list(patched.groups),
                columns={"base": patched.base.tolist(), "source": patched.source.tolist()},
                file=str(file.relative_to(worker.folder.path)),
                sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            ),
            spent={"seconds": round(time.perf_counter() - begin, 3)},
            data={"test": chosen},
        )

    def show(self, results: Results, console: Console) -> None:
        for name, text in _verdicts(results.records):
            print_text(f"{name}. {text}\n", console)
        print_report(results.contents, console, self.kind)


def map_file(folder: Path, cell: str) -> Path:
    """Where the map of a cell stands in the folder of its run."""
    return folder / "maps" / f"{cell}.safetensors"


TEMPLATES = 6
"""Maps of single templates on a page."""
NAMES = {"resid": "residual stream", "heads": "attention heads", "mlp": "MLPs"}

READING = {
    "Share": (
        "(m(patched) - m(base)) / (m(source) - m(base)), of means over pairs: 0 where the patch"
        " changes nothing, 1 where it carries all of the difference. It may be negative, or more"
        " than 1."
    ),
    "Denoising": (
        "The base is the counterfactual prompt; one site gets the clean run's value. A share is"
        " what the site alone restores."
    ),
    "Noising": (
        "The base is the clean prompt; one site gets the counterfactual run's value. A share is"
        " what the model loses without the site. Where a model has two ways to the answer, either"
        " restores it, and neither is missed alone."
    ),
    "Brackets": (
        "95 % intervals over groups of pairs. Those of shares hold for all measured cells of a map"
        " at once, so the largest may be named. The record has those of each cell alone too."
    ),
    "Above one half": (
        "The whole interval of a share lies above one half. Between the last layer at which the"
        " first place is, and the first at which the last token is, the answer moves."
    ),
    "By construction": (
        "Shares that tokens and the model's structure fix before anything is run: 0 where the"
        " prompts cannot differ yet or nothing after it is read, 1 where one stream alone carries"
        " the difference, as the last block at the last token. They are no result; maps hatch them."
    ),
}


class PatchPage(Page):
    """Maps of activation patching."""

    def title(self, run: RunContents) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in run.records))
        return f"Activation patching{f': {tasks}' if tasks else ''}"

    def tables(self, run: RunContents) -> list[TextTable]:
        """The numbers behind the verdict of each record, and the measures of all."""
        tables = [answer_table(record, _name(record)) for record in run.records]
        return [*tables, measures_table(run)]

    def sections(self, run: RunContents) -> list[Section]:
        """Verdict; a section for each record with its maps; how to read them; facts; values."""
        blocks: list[Block] = [
            Text(text, "verdict", lead=f"{name}.") for name, text in _verdicts(run.records)
        ]
        return framed(
            run,
            blocks,
            [Section(_name(record), tuple(_maps(record))) for record in run.records],
            folded=[
                Section("Measures", (measures_table(run),)),
                *checks_section(run.records),
            ],
            reading=READING,
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The first map of a record."""
        return _drawn(MapCells.of(record, templates(record)[0]), ax)


def _verdicts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What is said of each record by its name; of residual streams first."""
    ordered = sorted(records, key=lambda record: record.method.name != "resid")
    return [(_name(record), verdict(record)) for record in ordered]


def _drawn(cells: MapCells, ax: Axes | None = None) -> MatplotlibFigure:
    return draw_patch_map(cells.share, cells.layers, cells.headings, cells.part, cells.known, ax=ax)


def _name(record: Record) -> str:
    direction = record.method.args["direction"]
    return f"{record.model.name}, {record.task.name}, {NAMES[record.method.name]}, {direction}"


def _maps(record: Record) -> list[Block]:
    """The first map, the numbers behind the verdict, and maps of templates."""
    names = templates(record)
    first, *others = (_figure(record, name) for name in names[: TEMPLATES + 1])
    left = len(names) - len(others) - 1
    more: list[Block] = (
        [Text(f"{left:,} more templates are in the record.", "soft")] if left else []
    )
    blocks: list[Block] = [first, answer_table(record, "")]
    return [*blocks, *([Fold("Maps of single templates", (*others, *more))] if others else [])]


def _figure(record: Record, template: str) -> Figure:
    cells = MapCells.of(record, template)
    title = template or "all pairs"
    n = f"{counted(cells.n_pairs, 'pair')} in {counted(cells.n_groups, 'group')}"
    about = (
        f"Shares of {NAMES[cells.part]} by layer and {COLUMNS[cells.part]},"
        f" {record.method.args['direction']}, {n}; the table has the numbers behind the verdict."
    )
    return Figure(
        partial(_drawn, cells), title=f"{title}, {n}", name=f"Patching: {title}", about=about
    )
