"""Activation patching of models on tasks as a run, and the page on it.

A cell is one model, task and part. Its record has the shares of all cells of the map with
intervals. The objective of every pair after every patch stands beside it in `maps/`, as a file
of tensors that `PatchMap.load` reads.

The page has heat maps of shares, and the cells that carry most. The first map of a record is of
the parts of all prompts, where the task names parts; below it are maps of single templates with
the prompts' own tokens along the axis.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.errors import one_of
from mechassay.interventions.activation_patching import (
    ALL_PROMPTS,
    COLUMNS,
    DIRECTIONS,
    Direction,
    patch,
)
from mechassay.interventions.heatmap import draw_patch_map
from mechassay.interventions.site import PARTS
from mechassay.models.model import check_dtype
from mechassay.models.objectives import load_objective
from mechassay.results.page import Block, Figure, Fold, Page, Section, Terms, Text, TextTable
from mechassay.results.plots import svg
from mechassay.results.records import Failure, Record, Selection, Spec, Table, Values
from mechassay.results.sections import (
    all_numbers,
    checks_table,
    facts_section,
    measures_table,
    opening,
    values_section,
)
from mechassay.results.text import objective
from mechassay.runs import options
from mechassay.runs.job import Bench, Cell, Job, cell_name, made_by, option, shown_model
from mechassay.tasks.task import PRIVATE, Keep, settings_of
from mechassay.utils.display import interval


@dataclass(frozen=True)
class PatchJob(Job):
    """Patch every site of a part between the prompts of pairs, one at a time: heat maps over layers
    and tokens, or layers and heads.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    parts: Annotated[
        tuple[str, ...],
        option(
            "What is patched: resid, heads or mlp. Repeat for several.", "--part", "-p", first=True
        ),
    ] = ("resid",)
    direction: Annotated[
        Direction,
        option("Clean values into counterfactual runs, or the other way."),
    ] = "denoising"
    objective: Annotated[str | None, options.OBJECTIVE] = None
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    split: Annotated[str, option("Split to patch.")] = "test"
    limit: Annotated[int, option("Pairs of each task.", least=1, first=True)] = 40
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "patch"
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "parts")

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("direction of patching", self.direction, DIRECTIONS)
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        check_dtype(self.dtype)
        for part in self.parts:
            one_of("part of a site", part, PARTS)
        if self.objective is not None:
            load_objective(self.objective)
        for task in self.tasks:
            bench.task(task)

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
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

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        model = bench.model(cell.typed["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = bench.task(cell.of["task"])
        pairs = bench.shared(
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
        found = patch(
            model,
            pairs,
            parts=one_of("part of a site", cell.of["part"], PARTS),
            direction=self.direction,
            objective=self.objective or task.objective,
            seed=self.seed,
            progress=bench.progress,
        )
        if self.split == PRIVATE:
            found = found.without_tokens()
        bench.folder.save_data("test", pairs.selection(), cell.shares)
        file = found.save(map_file(bench.folder.path, cell.name))
        chosen = Selection.of(pairs.selection())
        about = {"split": self.split, "limit": self.limit, **settings_of(task)}
        return found.record(
            {
                "model": model.spec(),
                "task": Spec(name=task.name, version=task.version, args=about),
            },
            made_by(model, self.seed, chosen.hash),
            cell=dict(cell.of),
            values=Values(
                unit="pair",
                ids=list(found.ids),
                groups=list(found.groups),
                columns={"base": found.base.tolist(), "source": found.source.tolist()},
                file=str(file.relative_to(bench.folder.path)),
                sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            ),
            realised={"seconds": round(time.perf_counter() - begin, 3)},
            data={"test": chosen},
        )


def map_file(folder: Path, cell: str) -> Path:
    """Where the map of a cell stands in the folder of its run."""
    return folder / "maps" / f"{cell}.safetensors"


TABLE = "patches"
LARGEST = 12
"""Cells of the table of what carries most."""
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
        "95 % intervals over groups of pairs, of each cell by itself: of many cells some are far"
        " off by chance."
    ),
}


class PatchPage(Page):
    """Maps of activation patching."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in records))
        return f"Activation patching{f': {tasks}' if tasks else ''}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """The measures of all records, and the cells that carry most of each."""
        return [measures_table(records, failures), *(_largest(record) for record in records)]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Verdict; a section for each record with its maps; how to read them; facts; values."""
        said: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        checks = checks_table(records)
        return [
            opening(records, said, failures),
            *(Section(_name(record), tuple(_maps(record))) for record in records),
            Section("Measures", (measures_table(records, failures),)),
            *([Section("Controls", (checks,))] if checks.rows else []),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The first map of a record."""
        shown = _of(record.table(TABLE), _templates(record)[0], record.method.name)
        return draw_patch_map(shown.share, shown.layers, shown.headings, shown.part, ax=ax)


@dataclass(frozen=True)
class _Map:
    """One template's cells, as arrays."""

    template: str
    part: str
    layers: list[int]
    headings: list[str]
    share: np.ndarray


def _of(table: Table, template: str, part: str) -> _Map:
    rows = table.where(template=template)
    layers = list(dict.fromkeys(int(str(x)) for x in rows.columns["layer"]))
    share = rows.numbers("share").reshape(len(layers), -1)
    headings = [str(x) for x in rows.columns[COLUMNS[part]][: share.shape[1]]]
    return _Map(template, part, layers, headings, share)


def _templates(record: Record) -> list[str]:
    return list(dict.fromkeys(str(x) for x in record.table(TABLE).columns["template"]))


def _name(record: Record) -> str:
    return f"{record.model.name}, {record.task.name}: {NAMES[record.method.name]}"


def _maps(record: Record) -> list[Block]:
    """The first map, the cells that carry most, and maps of templates."""
    table, part, names = record.table(TABLE), record.method.name, _templates(record)
    first, *others = (_figure(_of(table, name, part), record) for name in names[: TEMPLATES + 1])
    left = len(names) - len(others) - 1
    more: list[Block] = (
        [Text(f"{left:,} more templates are in the record.", "soft")] if left else []
    )
    blocks: list[Block] = [first, _largest(record)]
    return [*blocks, *([Fold("Maps of single templates", (*others, *more))] if others else [])]


def _figure(shown: _Map, record: Record) -> Figure:
    direction = record.method.args.get("direction", "")
    title = shown.template or "all pairs"
    drawn = draw_patch_map(shown.share, shown.layers, shown.headings, shown.part)
    about = (
        f"Shares of {NAMES[shown.part]} by layer and {COLUMNS[shown.part]}, {direction}; the table"
        " has the largest."
    )
    return Figure(svg(drawn), title=title, name=f"Patching: {title}", about=about)


def _largest(record: Record) -> TextTable:
    """The cells of the first map with the largest shares, either way."""
    table, part = record.table(TABLE), record.method.name
    names = _templates(record)
    rows = table.where(template=names[0]).rows() if names else []
    known = [row for row in rows if row["share"] is not None]
    best = sorted(known, key=lambda row: -abs(float(str(row["share"]))))[:LARGEST]
    cells = [
        (
            str(row["layer"]) if int(str(row["layer"])) >= 0 else "embedding",
            str(row[COLUMNS[part]]),
            interval(*(float("nan") if row[x] is None else float(str(row[x])) for x in ENDS)),
        )
        for row in best
    ]
    where = ALL_PROMPTS if names and names[0] == ALL_PROMPTS else "the first template"
    return TextTable.of(
        f"The cells that carry most, {_name(record)}",
        ("layer", COLUMNS[part], "share"),
        cells,
        caption=f"Of {where}: {len(cells)} of {len(known):,} cells.",
    )


ENDS = ("share", "low", "high")


def _verdict(record: Record) -> str:
    """What carries most, in a sentence."""
    largest = _largest(record)
    ends = [record.measure(name, "model") for name in ("m_base", "m_source")]
    told = ", ".join(f"{m.heading} {interval(m.value, m.low, m.high)}" for m in ends if m)
    if not largest.rows:
        return f"{_name(record)}: no cell is defined ({told})."
    layer, column, share = largest.rows[0].cells
    where = f"layer {layer}, {COLUMNS[record.method.name]} {column}"
    return (
        f"{_name(record)}: patching {where} alone carries {share} of the difference in"
        f" {objective(record)} ({told})."
    )
