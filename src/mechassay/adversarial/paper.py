"""The evaluation of Uit de Bos and Garriga-Alonso (2024) of three circuits, run again.

    unmatched  1000 clean x 1000 corrupted prompts, one template   figures 1 to 3, tables 3 to 6
    matched    1,000,000 prompts, each with its own corrupted one  figures 4 to 6, tables 7 to 10

A cell is one of the six, an adversarial run in a folder of its own. Both prompts of a pair have
one template in the paper, so unmatched pairs are of one template here. Matched pairs are fewer
where a task has fewer: at most 300,000 of IOI, all of greater-than. Other differences are in
docs/adversarial.md. The page puts our distributions beside the printed ones, and ends with a
verdict: is table 3 closer to the circuit or to the empty circuit, that is, the model on
corrupted prompts?

A printed table has some percentiles of a distribution. The distance of a distribution from it is
the mean of

    |ln(percentile here / percentile printed)|

over the percentiles that both have; 0.1 is a difference of about 10 % at a typical percentile.
Both are taken to be at least `LEAST_NATS`, the precision of the print. Only percentiles that the
sample reaches are compared (`stats.bootstrap.within_reach`). The table is closer to one of the
two if the interval of the difference of their distances excludes 0: two-way resampling, the same
prompts for both. There is no verdict for another model than the table's, for a sample that does
not reach the 95th percentile, and where the two distances do not differ by more than their
noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar

import numpy as np
import torch
import yaml
from jaxtyping import Float
from markupsafe import Markup
from rich.console import Console

from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.adversarial.inputs import AdversarialInputs
from mechassay.adversarial.options import PaperOptions
from mechassay.adversarial.pages import AdversarialPage
from mechassay.errors import MechassayError
from mechassay.models.model import Model
from mechassay.results.console import print_text
from mechassay.results.curves import EMPTY
from mechassay.results.page import NOTHING, Report, Section, Text, TextTable
from mechassay.results.records import Record, Table
from mechassay.results.sections import checks_section, failed_checks, framed, run_section
from mechassay.results.text import nats, plain_number, summary
from mechassay.runs.cells import Cell
from mechassay.runs.experiment import Experiment
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.stats import distribution
from mechassay.stats.bootstrap import N_RESAMPLES, two_way_draws, within_reach
from mechassay.stats.intervals import percentile_interval
from mechassay.tasks.docstring import RANDOM
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import NEW_NAMES
from mechassay.tasks.task import PAPER

PERCENTILES = {f"{100 * p:g}%": p for p in distribution.PERCENTILES}
NEEDED = "95%"
LEAST_NATS = 0.01
GPT2_SHAPE, GPT2_VOCABULARY = (12, 12, 768), 50257
GPT2_WEIGHTS = (-0.1101, -0.0393, 0.0331)
"""Of the first token's embedding, to four digits: models of this shape are many,
with these numbers just the one (and copies of it).
"""
ATTN_ONLY_SHAPE, ATTN_ONLY_VOCABULARY = (4, 8, 512), 48262


@dataclass(frozen=True)
class Closeness:
    """How far a table is from a circuit and from the empty circuit.

    Attributes:
        why_not: why nothing can be told, else "".
        circuit, empty: the two distances.
        low, high: of the first minus the second; NaN where nothing can be told.
        compared: names of the percentiles.
    """

    why_not: str
    circuit: float = math.nan
    empty: float = math.nan
    low: float = math.nan
    high: float = math.nan
    compared: tuple[str, ...] = ()

    @property
    def closer_to(self) -> str:
        """The circuit, the empty circuit, or that it cannot be told, and why."""
        if self.why_not:
            return f"cannot be told: {self.why_not}"
        if self.low > 0 or self.high < 0:
            return "the empty circuit" if self.low > 0 else "the circuit"
        return "cannot be told: it is about as far from the one as from the other"


def closeness(
    values: Float[np.ndarray, "clean corrupted"],
    empty: Float[np.ndarray, "clean corrupted"],
    printed: Mapping[str, float],
    units: int | float,
    seed: int,
    n_resamples: int = N_RESAMPLES,
) -> Closeness:
    """The distances of a circuit's and the empty circuit's divergences from a printed table.

    Args:
        values, empty: NaN is no pair.
        printed: percentiles by name ("95%").
        units: independent pairs that the grid is worth, see `Design.n_units`.
    """
    names = tuple(
        name for name, p in PERCENTILES.items() if name in printed and within_reach((units,), p)
    )
    if NEEDED not in names:
        return Closeness(
            f"{units:.0f} prompts a side are too few for the {NEEDED[:-1]}th percentile, which"
            " takes 100"
        )
    shares = [PERCENTILES[name] for name in names]
    table = np.array([printed[name] for name in names])
    points = [
        _distance(
            np.quantile(divergences[~np.isnan(divergences)].astype(float), shares)[None], table
        )[0]
        for divergences in (values, empty)
    ]
    # The same seed draws the same prompts for both.
    draws = [
        _distance(
            two_way_draws(
                divergences, np.random.default_rng(seed), shares, (), n_resamples
            ).percentiles,
            table,
        )
        for divergences in (values, empty)
    ]
    low, high, _ = percentile_interval(draws[0] - draws[1])
    if math.isnan(low):
        return Closeness("some resamples have no pair")
    return Closeness("", float(points[0]), float(points[1]), low, high, names)


def _distance(
    percentiles: Float[np.ndarray, "draws p"], printed: Float[np.ndarray, "p"]
) -> Float[np.ndarray, "draws"]:
    return np.abs(
        np.log(np.maximum(percentiles, LEAST_NATS) / np.maximum(printed, LEAST_NATS))
    ).mean(axis=1)


def other_model(model: Model, task: str) -> str:
    """Why a model is not the one that the paper's table of a task is of; nothing if it is."""
    graph, decoder = model.graph, model.decoder
    shape, words = (graph.n_layers, graph.n_heads, decoder.d_model), decoder.embedding.shape[0]
    if task == "docstring":
        # Its weights are in no checkpoint that we could have compared with.
        same = (shape, words) == (ATTN_ONLY_SHAPE, ATTN_ONLY_VOCABULARY) and not graph.mlp
        return "" if same else f"{model.name} has not the shape of attn-only-4l"
    same = (shape, words) == (GPT2_SHAPE, GPT2_VOCABULARY) and model.family == "gpt2"
    if same:
        weights = decoder.embedding[0, : len(GPT2_WEIGHTS)].float().cpu()
        same = bool(torch.allclose(weights, weights.new_tensor(GPT2_WEIGHTS), atol=1e-3))
    return "" if same else f"{model.name} is not GPT-2 small"


KIND = "adversarial-paper"
VERDICT = "verdict on table 3"
"""The table of a record that has the distances from the printed one."""
ROWS = ("mean", "std", "min", "25%", "50%", "75%", "95%", "99%", "99.9%", "99.99%", "max")
TASKS = ("ioi", "greater-than", "docstring")
SCALED = {"docstring": 50257 / 48262}
"""What the printed numbers of table 3 are too large by."""
TITLES = {"unmatched": "Unmatched pairs (table 3)", "matched": "Matched pairs (table 7)"}
READING = {
    "Here": "The circuit, run again.",
    "Population": (
        "As in the paper, both prompts of every pair have the same template. Prompts of different"
        " ones are in no pair with each other."
    ),
    "Empty": "KL(M(x) ‖ M(x̃)): the model itself on the corrupted prompt, without any circuit.",
    "Printed": (
        "What the paper says. Its numbers for unmatched pairs are probably those of the empty"
        " circuit, and those for docstring are 4 % too large in table 3, because all were scaled by"
        " the vocabulary of GPT-2."
    ),
    "Distance": (
        "The mean of |ln(percentile here / percentile printed)| over the percentiles that the"
        " sample reaches to: 0.1 is a difference of about 10 % at a typical percentile. Docstring's"
        " printed numbers are divided by what they are too large by. Table 3 is called closer to"
        " one of the two if the 95 % interval of the difference of the distances excludes 0."
        " Whether docstring's model is the paper's is told by its shape alone."
    ),
}


@cache
def printed_column(pairs: str, task: str) -> tuple[float, ...]:
    """Return a column of table 3 (unmatched pairs) or 7 (matched pairs), in nats, by `ROWS`."""
    file = files("mechassay.adversarial").joinpath("data", "adversarial.yaml")
    tables = yaml.safe_load(file.read_text("utf-8"))["tables"]
    column = f"{task}-{pairs}"
    (table,) = (x for x in tables if x["measure"] == "kl" and column in x["columns"])
    place = table["columns"].index(column)
    return tuple(float(table["rows"][name].split()[place]) for name in ROWS)


class PaperPage(AdversarialPage):
    """Three circuits of the literature under adversarial evaluation."""

    def title(self, report: Report) -> str:
        return "Three circuits of the literature under adversarial evaluation"

    def tables(self, report: Report) -> list[TextTable]:
        """What failed; our distributions beside the printed ones; the verdict."""
        by_run = _by_run(report.records)
        made = [table for pairs in TITLES if (table := paper_table(by_run, pairs)).columns[1:]]
        reasons = [(failure.cell["run"], failure.message) for failure in report.failures]
        reasons += [
            (name, text) for name, record in by_run.items() for text in failed_checks(record)
        ]
        if reasons:
            made.insert(0, TextTable.of("What failed", ("run", "why"), reasons, words=True))
        closeness_of = verdicts(report.records)
        return [*made, verdict_table(closeness_of)] if closeness_of else made

    def sections(self, report: Report) -> list[Section]:
        """What table 3 is closer to, and the tables; each run with its own report."""
        facts = [
            {
                "run": name,
                "model": record.model.name,
                "prompts": record.cell["task"],
                "templates": (
                    "the same in both prompts"
                    if "same" in record.task.args
                    else "the task's own pairs"
                ),
                "circuit": record.method.name,
                "edges": f"{record.method.args['edges']:,}",
                "pairs": f"{record.n:,}{' (all)' if record.task.args['population'] else ''}",
                # Markup is set as it is, and escapes what is put into it.
                "report": Markup('<a href="{0}/report.html">{0}/report.html</a>').format(name),
            }
            for name, record in _by_run(report.records).items()
        ]
        answers = [
            Text(verdict_text(task, distances), "verdict")
            for task, distances in verdicts(report.records).items()
        ]
        return framed(
            report,
            answers,
            [Section(table.title, (table,)) for table in self.tables(report)],
            folded=checks_section(report.records),
            reading=READING,
            facts=run_section(facts),
            values=[],
        )


def _by_run(records: Sequence[Record]) -> dict[str, Record]:
    return {record.cell["run"]: record for record in records}


def paper_table(records: Mapping[str, Record], pairs: str) -> TextTable:
    """One of the two tables; tasks that were not run are left out."""
    run = {task: records[f"{task}-{pairs}"] for task in TASKS if f"{task}-{pairs}" in records}
    columns = ("", *(f"{task}: {what}" for task in run for what in ("here", "empty", "printed")))
    rows: list[tuple[str, ...]] = []
    for place, name in enumerate(ROWS):
        cells = [name]
        for task, record in run.items():
            for numbers in (summary(record), summary(record, EMPTY)):
                cells.append(nats(numbers[name]["value"]) if name in numbers else NOTHING)
            cells.append(f"{printed_column(pairs, task)[place]:.2f}")
        rows.append(tuple(cells))
    return TextTable.of(TITLES[pairs], columns, rows)


def verdicts(records: Sequence[Record]) -> dict[str, Closeness]:
    """What table 3 is closer to, by task."""
    by_task: dict[str, Closeness] = {}
    for record in records:
        for row in record.table(VERDICT).rows() if record.has_table(VERDICT) else ():
            numbers = {
                name: plain_number(row[name]) for name in ("circuit", "empty", "low", "high")
            }
            names = tuple(str(row["compared"]).split())
            by_task[str(row["task"])] = Closeness(str(row["why_not"]), **numbers, compared=names)
    return by_task


def verdict_table(by_task: Mapping[str, Closeness]) -> TextTable:
    """For each task what table 3 is closer to."""
    columns = (
        "task",
        "table 3 is closer to",
        "from the circuit",
        "from the empty circuit",
        "the first minus the second",
        "percentiles",
    )
    rows = [
        (task, one.closer_to, *[NOTHING] * 4)
        if not one.compared
        else (
            task,
            one.closer_to,
            f"{one.circuit:.2f}",
            f"{one.empty:.2f}",
            f"[{one.low:.2f}, {one.high:.2f}]",
            ", ".join(one.compared),
        )
        for task, one in by_task.items()
    ]
    return TextTable.of("Verdict on table 3, by distances", columns, rows, words=True)


def verdict_text(task: str, how_close: Closeness) -> str:
    """The verdict on one task in a line."""
    what = "what " if how_close.closer_to.startswith("cannot") else ""
    sentence = f"{task}: {what}table 3 is closer to {how_close.closer_to}"
    if not how_close.compared:
        return f"{sentence}."
    return (
        f"{sentence}; its distance is {how_close.circuit:.2f} from the circuit and"
        f" {how_close.empty:.2f} from the empty circuit."
    )


MAPS = {
    "ioi": ("place,object", "object,corrupted object", "place,corrupted place"),
    "greater-than": ("noun,year", "noun,century+year"),
}
"""Fields of the paper's figures 7 to 9, and 10 by digits and by the full year."""
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
class PaperExperiment(PaperOptions, Experiment):
    """A cell is one of the six adversarial runs; see `PaperOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("adversarial", "paper")
    markdown: ClassVar[str] = ""

    def check(self, worker: Worker) -> None:
        for experiment in self.experiments().values():
            experiment.refuse()

    def cells(self) -> list[Cell]:
        return [
            Cell(
                name,
                {"run": name, "model": experiment.model, "task": experiment.task},
                name.rpartition("-")[0],
            )
            for name, experiment in self.experiments().items()
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        """The record of one run, with the verdict on table 3 if it is of unmatched pairs.

        Raises:
            MechassayError: the run has no record.
        """
        experiment = self.experiments()[cell.name]
        model = worker.model(
            experiment.model, dtype=experiment.dtype, prepend_bos=experiment.prepend_bos
        )
        folder, models = worker.folder.path / cell.name, {experiment.model: model}
        report = run(experiment, folder, models=models, progress=worker.progress)
        for failure in report.failures:
            raise MechassayError(failure.message)
        (record,) = report.records
        task, _, pairs = cell.name.rpartition("-")
        tables = list(record.tables)
        if pairs == "unmatched":
            inner = Worker(RunFolder(folder), models=models, progress=worker.progress)
            outcome = _verdict(AdversarialInputs(experiment, inner), task)
            row = {"task": task, **asdict(outcome), "compared": " ".join(outcome.compared)}
            tables.append(Table.of(VERDICT, ("task",), [row]))
        assert record.values is not None
        file = f"{cell.name}/{record.values.file}"
        values = record.values.model_copy(update={"file": file})
        return record.changed(tables=tables, values=values)

    def show(self, report: Report, console: Console) -> None:
        super().show(report, console)
        sentences = [verdict_text(*verdict) for verdict in verdicts(report.records).items()]
        if self.docstring_model is None:
            sentences.append("Skipped: docstring needs attn-only-4l, --docstring-model.")
        for line in sentences:
            print_text(line, console)

    def experiments(self) -> dict[str, AdversarialExperiment]:
        """The runs by the name of their folder: "ioi-unmatched" and so on."""
        experiments: dict[str, AdversarialExperiment] = {}
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
                experiments[f"{task}-{pairs}"] = AdversarialExperiment(
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
        return experiments


def _verdict(inputs: AdversarialInputs, task: str) -> Closeness:
    """Whether table 3 is closer to the circuit or to the empty circuit."""
    why_not, values = other_model(inputs.model, task), inputs.values
    if why_not:
        return Closeness(why_not)
    printed = {
        name: value / SCALED.get(task, 1.0)
        for name, value in zip(ROWS, printed_column("unmatched", task), strict=True)
    }
    units = inputs.statistics.drawn(values.corrupted).n_units
    return closeness(values.circuits[0], values.corrupted, printed, units, inputs.run.seed)
