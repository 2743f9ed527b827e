"""The tables of a paper beside ours: what runs for each published number, and what is not run.

A cell is one of four things:

    calculated  numbers that follow from others of the paper (`reproduction.recomputed`)
    run         one method on one column of the paper's tables: ordinary runs, each in a folder of
                its own below `runs`, whose records are read. Tables that print different measures
                of it (CPR and CMD) share the cell
    given       circuits or features of others, measured on one column by the same experiments
                (`reproduction.artefacts`)
    not run     a table for which no experiment exists here, with the reason

Published weights run on the paper's own data, read from the hub. A model that is given in place of
them (NAME=MODEL) runs on this package's prompts of the same task, and never reproduces a number.
What a cell would take here is estimated from shapes (`runs.costs`), before anything is
downloaded; cells that --hours has no room for are not run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName, one_of
from mechassay.models.memory import CPU_BUDGET, available_bytes
from mechassay.models.model import check_device
from mechassay.models.sources import find_source
from mechassay.reproduction.artefacts import Artefact, artefacts_in, converted
from mechassay.reproduction.comparison import (
    NUMBERS,
    PaperComparison,
    comparison_table,
    of_tables,
)
from mechassay.reproduction.given import circuits_table, gains_table
from mechassay.reproduction.options import ReproductionOptions
from mechassay.reproduction.published import (
    PAPERS,
    Paper,
    Published,
    PublishedPaper,
    PublishedTable,
    place_of,
    published,
)
from mechassay.reproduction.recomputed import CALCULATIONS
from mechassay.reproduction.runners import GIVEN as GIVEN_RUNNERS
from mechassay.reproduction.runners import RUNNERS, Piece, Wish
from mechassay.reproduction.status import STATUSES, Ours
from mechassay.results.measures import measure_texts
from mechassay.results.page import Report
from mechassay.results.records import Record, Spec, Table, provenance
from mechassay.runs import costs
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.costs import Cost
from mechassay.runs.experiment import Experiment
from mechassay.runs.identities import MODEL, Source
from mechassay.runs.names import model_label
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.tasks import load_task
from mechassay.tasks.hub_datasets import reachable

NOT_RUN = "not run"
CALCULATED, RUN, UNMAPPED, GIVEN = "calculated", "run", "unmapped", "given"
RUNS = "runs"
"""The folder of the ordinary runs."""


@dataclass(frozen=True)
class ReproductionExperiment(ReproductionOptions, Experiment):
    """A cell is one method on one column of a paper's tables; see `ReproductionOptions`."""

    @property
    def source(self) -> PublishedPaper:
        return published(self.paper)

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("reproduce", self.paper), ("paper",)

    def check(self, worker: Worker) -> None:
        one_of("paper", self.paper, PAPERS)
        if not self.source.tables and (self.tables or self.columns):
            raise BadUsage(
                f"{self.source.source}: there are statements in place of tables; name no table."
            )
        self.source.chosen(self.tables, self.columns)
        for text in self.given:
            name, equals, source = text.partition("=")
            if not (name and equals and source):
                raise BadUsage(f"A model is given as NAME=MODEL; got {text!r}.")
            if name not in self.source.models:
                raise UnknownName(f"model of {self.source.source}", name, self.source.models)
            find_source(source)
        for text in self.artefacts:
            name, equals, source = text.partition("=")
            if not (name and equals and source):
                raise BadUsage(f"Circuits of others are given as NAME=FOLDER; got {text!r}.")
            if self.paper != "mib":
                raise BadUsage(
                    f"Circuits of others stand in tables of mib alone; got {self.paper}."
                )
            artefacts_in(name, source)
        chosen = self.source.chosen(self.tables, self.columns)
        rows = {value.row for table in chosen for value in table.values}
        names = {text.partition("=")[0] for text in self.artefacts}
        for row in self.rows:
            if row not in rows | names:
                raise UnknownName("row", row, sorted(rows | names))

    def notes(self) -> Sequence[str]:
        lines = [
            f"{text} stands in for the published model: no number of it is called reproduced."
            for text in self.given
        ]
        others = dict.fromkeys(a.column for a in self._artefacts() if not self._column(a))
        if others:
            lines.append(f"No chosen table has {', '.join(others)}: not measured.")
        return lines

    def _artefacts(self) -> list[Artefact]:
        """All that the folders of others hold."""
        named = (text.partition("=") for text in self.artefacts)
        return [held for name, _, source in named for held in artefacts_in(name, source)]

    def _wants(self, row: str) -> bool:
        return not self.rows or row in self.rows

    def _column(self, artefact: Artefact) -> list[Published]:
        """The published numbers of an artefact's column, of the chosen tables."""
        return [
            value
            for table in self.source.chosen(self.tables, self.columns)
            if table.experiment == artefact.kind
            for value in table.values
            if value.column == artefact.column
        ]

    def cells(self) -> list[Cell]:
        """Return the cells in the order of models, so that each model is loaded once."""
        chosen = self.source.chosen(self.tables, self.columns)
        numbers = {table.table for table in chosen}
        calculated = [
            Cell(f"{CALCULATED}/{cell_name(own.name)}", {"what": own.name}, CALCULATED)
            for own in CALCULATIONS[self.paper]
            if not (self.columns or self.rows) and (not self.tables or numbers & set(own.tables))
        ]
        reasons = Counter(
            (table.table, table.title, value.unmapped or table.unmapped)
            for table in chosen
            for value in table.values
            if (value.unmapped or table.unmapped) and self._wants(value.row)
        )
        unmapped = [
            Cell(
                f"{UNMAPPED}/{cell_name(number, title, reason)}",
                {"what": f"{place_of(number)}: {title}", NUMBERS: f"{n}"},
                UNMAPPED,
                {"reason": reason},
            )
            for (number, title, reason), n in reasons.items()
        ]
        return [*calculated, *self._run_cells(chosen), *unmapped]

    def _run_cells(self, chosen: Sequence[PublishedTable]) -> list[Cell]:
        """What is run: each column and method once, whichever tables print numbers of it."""
        keys = Counter(
            (
                value.of["model"],
                value.column,
                RUNNERS[table.experiment].key(value),
                table.experiment,
            )
            for table in chosen
            if table.experiment
            for value in table.values
            if value.of and not value.unmapped and self._wants(value.row)
        )
        models = list(self.source.models)
        run = [
            Cell(
                "/".join((RUN, experiment, cell_name(column), cell_name(key or "all"))),
                {
                    "what": " ".join(filter(None, (column, key))),
                    "column": column,
                    NUMBERS: f"{n}",
                },
                f"{RUN} {model}",
                {"column": column, "key": key, "experiment": experiment},
            )
            for (model, column, key, experiment), n in keys.items()
        ]
        given = [
            Cell(
                f"{GIVEN}/{cell_name(own.column, own.row, own.sha256[:8])}",
                {"what": f"{own.column} {own.row}", "column": own.column, NUMBERS: "0"},
                f"{RUN} {published_values[0].of['model']}",
                {"column": own.column, "key": own.row, "experiment": own.kind, GIVEN: own.sha256},
            )
            for own in self._artefacts()
            if (published_values := self._column(own)) and self._wants(own.row.partition("/")[0])
        ]
        return sorted(
            [*run, *given], key=lambda cell: models.index(cell.inputs.removeprefix(f"{RUN} "))
        )

    def values(self, cell: Cell) -> list[Published]:
        """The published numbers of a cell that is run, of all tables: another choice of tables is
        no other plan.
        """
        about = cell.typed
        if GIVEN in about:
            return [
                value
                for (experiment, column, _), values in _values(self.paper).items()
                if (experiment, column) == (about["experiment"], about["column"])
                for value in values
            ]
        return list(_values(self.paper)[about["experiment"], about["column"], about["key"]])

    def wish(self, cell: Cell) -> Wish:
        """What a cell is to run."""
        value = self.values(cell)[0]
        name = value.of["model"]
        shape = self.source.models[name]
        given = dict(text.split("=", 1) for text in self.given).get(name, "")
        hub = value.of.get("id", shape["id"])
        return Wish(value, shape, given or hub, bool(given), self.limit, self.seed)

    def sources(self, cell: Cell) -> dict[str, Source]:
        """Return the model that runs in a cell; given circuits and features are in its name."""
        if cell.inputs in (CALCULATED, UNMAPPED):
            return {}
        wish = self.wish(cell)
        return {MODEL: Source(MODEL, wish.source, str(wish.shape["dtype"]))}

    def skip(self, cell: Cell, worker: Worker) -> tuple[str, str] | None:
        """Return why a cell is not run: no runner, no model or no time; None if it is run."""
        if cell.inputs == CALCULATED:
            return None
        if cell.inputs == UNMAPPED:
            return NOT_RUN, cell["reason"]
        wish = self.wish(cell)
        minutes, gigabytes = self.cost(cell, worker.device)
        cost = costs.cost_text(minutes, gigabytes)
        # Whether a hub answers takes seconds to learn.
        asked = f"missing {wish.source}"
        missing = "" if wish.own else worker.shared(asked, lambda: why_missing(wish))
        if missing:
            return NOT_RUN, f"{missing}; it would take {cost}"
        if self.hours is not None and cell.name not in _within(self, worker.device):
            return NOT_RUN, f"{cost}, for which {self.hours:g} h have no room"
        return None

    def cost(self, cell: Cell, device: str) -> tuple[float, float]:
        """Minutes and GB that the published cell would take on this machine."""
        size = self.wish(cell).size
        return costs.minutes(self.operations(cell), device), costs.gigabytes(size)

    def operations(self, cell: Cell) -> float:
        """Return the operations of the published cell, or of measuring the given file instead."""
        wish, experiment = self.wish(cell), cell["experiment"]
        if GIVEN in cell.typed:
            return GIVEN_RUNNERS[experiment].measuring(wish)
        return RUNNERS[experiment].operations(wish)

    def run(self, cell: Cell, worker: Worker) -> Record:
        if cell.inputs == CALCULATED:
            own = next(c for c in CALCULATIONS[self.paper] if c.name == cell.labels["what"])
            return _record(cell, list(own.run()), [])
        if GIVEN in cell.typed:
            return self._run_given(cell, worker)
        wish, runner = self.wish(cell), RUNNERS[cell["experiment"]]
        records = [_inner(piece, worker) for piece in runner.pieces(wish)]
        minutes, gigabytes = self.cost(cell, worker.device)
        stand_in = _stand_in(wish)
        comparisons = [
            comparison(value, runner.ours(value, records), stand_in, minutes, gigabytes)
            for value in self.values(cell)
        ]
        tables = [
            gains_table(wish.value.row, wish.value.column, record, stand_in, given=False)
            for record in records
            if cell["experiment"] == "variables"
        ]
        return _record(cell, comparisons, records, tables)

    def _run_given(self, cell: Cell, worker: Worker) -> Record:
        """The record of circuits or features of others; of a published row's own files beside it
        too.
        """
        (artefact,) = (
            own
            for own in self._artefacts()
            if (own.column, own.row, own.sha256) == (cell["column"], cell["key"], cell[GIVEN])
        )
        wish, values = self.wish(cell), self.values(cell)
        model = worker.model(wish.source, dtype=wish.shape["dtype"], prepend_bos=False)
        name = "-".join((GIVEN, cell_name(artefact.row), artefact.sha256[:8]))
        target = worker.folder.path / GIVEN / cell_name(artefact.column) / name
        held = artefact.path
        if artefact.kind == "circuits":
            held = converted(artefact, model, target)
        runner = GIVEN_RUNNERS[artefact.kind]
        records = [_inner(piece, worker) for piece in runner.given(wish, str(held))]
        stand_in = _stand_in(wish)
        table = (
            circuits_table(artefact, values, records[0], records[1], stand_in)
            if artefact.kind == "circuits"
            else gains_table(artefact.row, artefact.column, records[0], stand_in, given=True)
        )
        minutes, gigabytes = self.cost(cell, worker.device)
        comparisons = [
            replace(
                comparison(
                    replace(value, role="result", deviation=value.of.get("deviation", "")),
                    runner.ours(replace(value, role="result"), records[:1]),
                    stand_in,
                    minutes,
                    gigabytes,
                ),
                row=f"{value.row}, its files",
            )
            for value in values
            if value.row == artefact.row.partition("/")[0]
        ]
        return _record(cell, comparisons, records, [table])

    def show(self, report: Report, console: Console) -> None:
        super().show(self._asked(report), console)

    def _asked(self, report: Report) -> Report:
        """Return the report with the comparisons of the tables that were named."""
        if not self.tables:
            return report
        return replace(report, records=[of_tables(own, self.tables) for own in report.records])

    def write(self, report: Report) -> Path:
        return super().write(self._asked(report))


def reproduction_cost(
    experiment: ReproductionExperiment, cells: Sequence[Cell], worker: Worker
) -> Cost:
    """Return what the cells take, each as long as the published one; see
    `ReproductionExperiment.cost`.
    """
    place, held = check_device(worker.device), costs.CHUNK * CPU_BUDGET
    works = tuple(
        costs.Work(
            experiment.wish(cell).source,
            experiment.wish(cell).size,
            experiment.operations(cell),
            held,
        )
        for cell in cells
        if cell.inputs.startswith(f"{RUN} ")
    )
    libraries = float(psutil.Process().memory_info().rss)
    return Cost(works, place.type, libraries, available_bytes(place))


@cache
def _values(paper: Paper) -> Mapping[tuple[str, str, str], Sequence[Published]]:
    """Return the numbers of every cell that can be run, by experiment, column and what the
    experiment tells apart.
    """
    cells: dict[tuple[str, str, str], list[Published]] = {}
    for table in published(paper).tables:
        for value in table.values if table.experiment else ():
            key = (table.experiment, value.column, RUNNERS[table.experiment].key(value))
            cells.setdefault(key, []).append(value)
    return cells


@cache
def _within(experiment: ReproductionExperiment, device: str) -> frozenset[str]:
    """The names of the cells that --hours has room for: of all in their order, those that fit in
    what those before them leave.
    """
    left, kept = 60 * (experiment.hours or 0.0), set[str]()
    for cell in experiment.cells():
        minutes = (
            experiment.cost(cell, device)[0] if cell.inputs.startswith(f"{RUN} ") else math.inf
        )
        if minutes <= left:
            left -= minutes
            kept.add(cell.name)
    return frozenset(kept)


def why_missing(wish: Wish) -> str:
    """Why published weights cannot be loaded here; "" if they can, as far as it can be told."""
    if not wish.source:
        return f"{wish.value.of['model']} is on no hub that is read: give it as NAME=FOLDER"
    if find_source(wish.source).kind != "hub":
        return ""
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(wish.source, "config.json"), str):
        return ""
    if constants.HF_HUB_OFFLINE:
        return f"{wish.source} is not in the cache, and HF_HUB_OFFLINE is set"
    try:
        reachable(wish.source, constants.ENDPOINT)
    except BadFile as error:
        # What follows is advice about data sets.
        return str(error).partition(";")[0]
    return ""


def _stand_in(wish: Wish) -> str:
    """The weights that run in place of the published ones, in words; "" if these run."""
    named = wish.value.of["model"]
    if wish.own:
        return f"{model_label(wish.source)} in place of {named}, on prompts of this package"
    # A folder of this name in the working directory comes before the hub.
    return "" if find_source(wish.source).kind == "hub" else f"the folder {wish.source}"


def comparison(
    value: Published, ours: Ours, stand_in: str, minutes: float, gigabytes: float
) -> PaperComparison:
    """A published number beside one of ours."""
    deviations = (*ours.deviations, *filter(None, (value.deviation,)))
    return PaperComparison(
        value.table,
        value.row,
        value.column,
        value.measure,
        value.printed,
        ours=replace(ours, stand_in=stand_in, deviations=deviations),
        n=value.n,
        span=value.span,
        explained=value.deviation,
        minutes=minutes,
        gigabytes=gigabytes,
    )


def _inner(piece: Piece, worker: Worker) -> Record:
    """The record of an ordinary run of one cell, done in a folder of its own.

    Raises:
        MechassayError: it has no record.
    """
    experiment: Any = piece.experiment
    names = getattr(experiment, "models", ()) or (experiment.model,)
    model = worker.model(names[0], dtype=experiment.dtype, prepend_bos=experiment.prepend_bos)
    report = run(
        experiment,
        worker.folder.path / RUNS / piece.folder,
        models=dict.fromkeys(names, model),
        tasks={name: load_task(text) for name, text in piece.tasks.items()},
        progress=worker.progress,
    )
    for failure in report.failures:
        raise MechassayError(failure.message)
    (record,) = report.records
    return record


def _record(
    cell: Cell,
    comparisons: Sequence[PaperComparison],
    records: Sequence[Record],
    tables: Sequence[Table] = (),
) -> Record:
    """The record of a cell: its comparisons, and how many there are of each status."""
    statuses = [comparison.verdict().status for comparison in comparisons]
    first = records[0] if records else None
    specs = {} if first is None else {role: first.specs[role] for role in first.specs}
    return Record(
        kind="reproduction",
        specs=specs or {"method": Spec(name=cell.labels["what"])},
        measures=[
            measure_texts("reproduction").measure(
                "{status}", statuses.count(status), n=len(statuses), status=status
            )
            for status in STATUSES
        ],
        tables=[comparison_table(comparisons), *tables],
        warnings=list(dict.fromkeys(text for record in records for text in record.warnings)),
        provenance=(
            provenance(device="cpu", dtype="float64", seed=0) if first is None else first.provenance
        ),
    )
