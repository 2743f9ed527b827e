"""Accuracy of several models on several tasks: cells, tables and figures.

A cell is one model on one task. Its record has greedy and ranked-choice accuracy of the original
prompts and of each kind of counterfactual, with intervals. An example that has no counterfactual
of a kind, or whose prompt has no right answer, is undefined there and counted. A cell that fails
is a row like any other; running the same plan again goes on with what is missing.

The first table has a task in each row and, for each model, greedy and ranked-choice accuracy of
the original prompts (MIB, tables 1 and 11). Then each task has its own table and figure, with
every kind of counterfactual (MIB, tables 12 and 13). Chance is that of ranked choice. MIB's own
scoring, where a record has it, is a column "mib-2025". Brackets hold 95 % intervals over groups.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, get_args

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from mechassay.errors import one_of
from mechassay.models.model import Model, check_dtype
from mechassay.prompts.pairs import Example, Examples, content_hash
from mechassay.results import page
from mechassay.results.console import print_text
from mechassay.results.measures import measure_texts
from mechassay.results.page import NOTHING, Page, RunContents, Section, TextTable
from mechassay.results.plots import GREY, INK, MARKERS, PALETTE, SETTINGS, Picture, draw_points
from mechassay.results.records import Measure, Record, Selection, Spec, Values, estimate_of
from mechassay.results.sections import framed, measured, run_section
from mechassay.results.text import CHANCE_DECIMALS, chance_text
from mechassay.runs.accuracy_plan import AccuracyOptions, AccuracyScoring
from mechassay.runs.experiment import (
    Cell,
    Experiment,
    Results,
    Worker,
    cell_name,
    made_by,
    shown_model,
)
from mechassay.stats.intervals import Estimate, proportion_interval
from mechassay.tasks import TASKS, Task
from mechassay.tasks.accuracy import mib_scores, score_prompts
from mechassay.tasks.hub_datasets import PublicTask
from mechassay.tasks.scoring import NAME as MIB
from mechassay.tasks.scoring import Scoring
from mechassay.tasks.task import OWN, settings_of
from mechassay.utils.display import BAR, Progress

ORIGINAL = "original"
SCORES = {"greedy": "greedy", "ranked": "ranked choice"}

READING = {
    "Greedy": "The most likely token at every step spells a right answer exactly.",
    "Ranked choice": (
        "Of the prompt's choices, the one of the highest log-probability is right. Chance is what"
        " guessing among them gives. A task with free answers has none."
    ),
    MIB: (
        "If it is there: what the model writes is right by MIB's laxer rules, such as a right name"
        " anywhere in it."
    ),
    "Intervals": (
        "95 %, Clopper and Pearson's with an effective sample size that respects groups of"
        " examples."
    ),
    "n": (
        "Prompts that have a right answer. An example without a counterfactual of some kind does"
        " not count there."
    ),
}


class AccuracyPage(Page):
    """Accuracy of models on tasks."""

    def title(self, run: RunContents) -> str:
        """What the page is called."""
        return "Accuracy of models on tasks"

    def tables(self, run: RunContents) -> list[TextTable]:
        """All tasks first, then one for each task."""
        models = list(dict.fromkeys(record.model.name for record in run.records))
        has_mib = any(record.measure(f"{MIB}@{ORIGINAL}") is not None for record in run.records)
        scores = {**SCORES, MIB: MIB} if has_mib else SCORES
        tasks = _tasks(run.records)
        by_model = {name: {r.model.name: r for r in group} for name, group in tasks.items()}
        overall = [(name, *_cells(of, models, ORIGINAL, scores)) for name, of in by_model.items()]
        for failure in run.failures:
            model, task = (failure.cell.get(role, "") for role in ("model", "task"))
            overall.append((task, f"{model} failed: {failure.message}"))
        made = [TextTable.of("Original prompts", _column_names("task", models, scores), overall)]
        for name, group in tasks.items():
            kinds, of = _kinds(group[0]), by_model[name]
            rows = [(short(kind), *_cells(of, models, kind, scores)) for kind in kinds]
            made.append(TextTable.of(name, _column_names("prompts", models, scores), rows))
        return made if overall else []

    def sections(self, run: RunContents) -> list[Section]:
        """What each model does better than guessing; all tasks; each with its figure, folded."""
        records = run.records
        tables = self.tables(run)
        groups = list(_tasks(records).items())
        figures = [[_chart(name, group)] if _kinds(group[0]) else [] for name, group in groups]
        alone = len(groups) == 1
        by_model: dict[str, list[Record]] = {}
        for record in records:
            by_model.setdefault(record.model.name, []).append(record)
        answers = [
            f"{model}: {'; '.join(f'{_able(record)} on {record.task.name}' for record in own)}."
            for model, own in by_model.items()
        ]
        return framed(
            run,
            [page.Text(text, "verdict") for text in answers],
            [Section(table.title, (table,)) for table in tables[:1]],
            figure=figures[0] if alone else _all_tasks(records) if records else [],
            folded=[
                Section(table.title, (*([] if alone else figure), table))
                for table, figure in zip(tables[1:], figures, strict=True)
            ],
            reading=READING,
            facts=run_section([_facts(record) for record in records]),
        )

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """The figure of one record, see `draw_accuracy`."""
        return draw_accuracy([record], ax)

    def recomputed(self, record: Record) -> list[Measure]:
        """Every accuracy with its interval."""
        values = record.values
        columns = {} if values is None else values.columns
        groups = [] if values is None else values.groups
        return [_measure(name, np.array(own), groups) for name, own in columns.items()]


def _able(record: Record) -> str:
    """Whether a model does a task, by its original prompts, beside chance."""
    ranked, greedy, chance = (
        record.measure(f"{name}@{ORIGINAL}") for name in ("ranked", "greedy", "chance")
    )
    if ranked is None or not ranked.n or chance is None or not chance.n:
        n = 0 if greedy is None else greedy.n
        return f"writes {measured(greedy, least=CHANCE_DECIMALS)} of {n:,} answers exactly"
    beside = f"{measured(ranked, least=CHANCE_DECIMALS)} of {ranked.n:,}"
    if ranked.low > chance.value:
        return f"better than guessing ({beside}, chance {chance_text(chance.value)})"
    verdict = "worse than guessing" if ranked.high < chance.value else "not told from guessing"
    return f"{verdict} ({beside}, chance {chance_text(chance.value)})"


def _all_tasks(records: Sequence[Record]) -> list[page.Figure]:
    """Greedy and ranked accuracy of every model on the original prompts of every task."""
    tasks, models = (
        list(dict.fromkeys(getattr(record, role).name for record in records))
        for role in ("task", "model")
    )
    at = {(record.model.name, record.task.name): record for record in records}
    points: dict[str, list[Estimate]] = {}
    for model, (name, words) in product(models, SCORES.items()):
        held = [at.get((model, task)) for task in tasks]
        points[f"{model}, {words}"] = [
            estimate_of(record.measure(f"{name}@{ORIGINAL}") if record else None) for record in held
        ]
    points["chance"] = [
        estimate_of(next(r for r in records if r.task.name == task).measure(f"chance@{ORIGINAL}"))
        for task in tasks
    ]
    about = "Accuracy on original prompts with intervals, and chance; the table has the numbers."
    return [
        page.Figure(partial(draw_points, points, tasks, "accuracy"), name="Accuracy", about=about)
    ]


def _chart(title: str, group: Sequence[Record]) -> page.Figure:
    about = "Accuracy of the model by kind of prompt, with intervals and chance; the table has it."
    return page.Figure(partial(draw_accuracy, group), name=f"Accuracy: {title}", about=about)


def draw_accuracy(records: Sequence[Record], ax: Axes | None = None) -> Figure:
    """Accuracy of one task's prompts: a row a kind, greedy filled, ranked choice hollow, chance
    dotted. On `ax` if given, else in a figure of its own.
    """
    kinds = _kinds(records[0])
    with rc_context(SETTINGS):
        size = (8.6, 0.9 + 0.36 * len(kinds))
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        axes: Any = figure.subplots() if ax is None else ax
        step = 0.7 / max(1, 2 * len(records))
        for number, record in enumerate(records):
            for half, name in enumerate(SCORES):
                offset = (2 * number + half + 0.5) * step - 0.35
                _draw_line(axes, record, kinds, name, offset, number)
        chance = records[0].measure(f"chance@{ORIGINAL}")
        if chance is not None and math.isfinite(chance.value):
            axes.axvline(chance.value, color=GREY, linestyle=":", linewidth=1.2, label="chance")
        axes.set(
            xlim=(-0.02, 1.02),
            ylim=(len(kinds) - 0.5, -0.5),
            yticks=range(len(kinds)),
            yticklabels=map(short, kinds),
            xlabel="accuracy",
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.7)
        for text in [axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]:
            text.set_color(INK)
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": 2 * len(records) + 1}
        if ax is None and axes.get_legend_handles_labels()[0]:
            figure.legend(**place, frameon=False, labelcolor=INK, fontsize=9)
    return figure


def _draw_line(
    axes: Any, record: Record, kinds: Sequence[str], name: str, offset: float, number: int
) -> None:
    measures = [(row + offset, record.measure(f"{name}@{kind}")) for row, kind in enumerate(kinds)]
    defined = [(row, m) for row, m in measures if m is not None and math.isfinite(m.value)]
    if not defined:
        return
    # Rounding may put an end a hair inside the value.
    below = [max(0.0, m.value - m.low) for _, m in defined]
    above = [max(0.0, m.high - m.value) for _, m in defined]
    colour = PALETTE[number % len(PALETTE)]
    axes.errorbar(
        [m.value for _, m in defined],
        [row for row, _ in defined],
        xerr=[below, above],
        fmt=MARKERS[number % len(MARKERS)],
        color=colour,
        markerfacecolor=colour if name == "greedy" else "none",
        markersize=5,
        linewidth=1.2,
        label=f"{record.model.name}, {SCORES[name]}",
    )


def short(kind: str) -> str:
    """A kind of counterfactual without the word that all share."""
    return kind.removesuffix("_counterfactual").replace("_", " ")


def _tasks(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    usual = dict.fromkeys(("n_choices", "variable", "digit", "digits"))
    for record in records:
        args = record.task.args
        changed = [f"{key}={args[key]}" for key in usual if args.get(key)]
        for key, own in (("words", OWN), ("labels", "strict")):
            changed += [f"{key}={args[key]}"] if args.get(key, own) != own else []
        name = record.task.name + (f" ({', '.join(changed)})" if changed else "")
        groups.setdefault(name, []).append(record)
    return groups


def _kinds(record: Record) -> list[str]:
    """Kinds of prompts of which at least one has a right answer."""
    greedy = (m for m in record.measures if m.name.startswith("greedy@") and m.n)
    return [m.name.removeprefix("greedy@") for m in greedy]


def _column_names(first: str, models: Sequence[str], scores: dict[str, str]) -> tuple[str, ...]:
    names = (f"{model}: {name}" for model in models for name in scores.values())
    return (first, *names, "chance", "n")


def _cells(
    records: dict[str, Record], models: Sequence[str], kind: str, scores: dict[str, str]
) -> tuple[str, ...]:
    measures = [
        records[model].measure(f"{name}@{kind}") if model in records else None
        for model in models
        for name in scores
    ]
    some = next(iter(records.values()))
    chance, greedy = some.measure(f"chance@{kind}"), some.measure(f"greedy@{kind}")
    return (
        *(measured(m, least=CHANCE_DECIMALS) if m and m.n else NOTHING for m in measures),
        NOTHING if chance is None or not chance.n else chance_text(chance.value),
        "0" if greedy is None else f"{greedy.n:,}",
    )


def _facts(record: Record) -> dict[str, str]:
    about = record.provenance
    return {
        "model": record.model.name,
        "task": f"{record.task.name} (version {record.task.version})",
        "settings": ", ".join(
            f"{key}={value}" for key, value in record.task.args.items() if value != ""
        ),
        "examples": f"{record.n:,} in {record.n_groups:,} groups",
        **({"left out": " ".join(record.warnings)} if record.warnings else {}),
        "seed": str(about.seed),
        "data hash": about.data_hash[:16],
        "dtype": about.dtype,
        "seconds": f"{record.spent.get('seconds', math.nan):,.3g}",
    }


KIND = "accuracy"
EXACT = "exact"


@dataclass(frozen=True)
class AccuracyExperiment(AccuracyOptions, Experiment):
    """A cell is one model on one task; see `AccuracyOptions` for the fields."""

    markdown: ClassVar[str] = "accuracy.md"
    command: ClassVar[tuple[str, ...]] = ("tasks", "score")
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks")

    def __post_init__(self) -> None:
        if not self.tasks:
            object.__setattr__(self, "tasks", tuple(TASKS.names()))
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))

    def check(self, worker: Worker) -> None:
        one_of("scoring", self.scoring, get_args(AccuracyScoring))
        check_dtype(self.dtype)
        for task in self.tasks:
            worker.task(task)

    def cells(self) -> list[Cell]:
        return [
            Cell(
                cell_name(model, task),
                {"model": shown_model(model), "task": task},
                model,
                {"model": model},
            )
            for model in self.models
            for task in self.tasks
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        name = cell["model"]
        model = worker.model(name, dtype=self.dtype, prepend_bos=self.prepend_bos)
        return score_task(model, worker.task(cell.labels["task"]), self, progress=worker.progress)

    def show(self, results: Results, console: Console) -> None:
        super().show(results, console)
        print_text(f"Tables: {results.folder.path / self.markdown}", console)


def score_task(
    model: Model, task: Task, experiment: AccuracyExperiment, *, progress: Progress = BAR
) -> Record:
    """One cell.

    Raises:
        BadUsage: fewer examples than the run's limit.
    """
    begin = time.perf_counter()
    examples = _examples(model, task, experiment)
    groups = [example.group or example.id for example in examples]
    hash_of_examples = _hash(examples)
    lax = task.mib_scoring if experiment.scoring == MIB and isinstance(task, PublicTask) else None
    kinds = (ORIGINAL, *task.counterfactuals)
    columns = _columns(model, examples, kinds, lax, progress)
    # Dropped is only what cannot be read; what an example lacks of a kind is undefined there.
    chosen = Selection(
        task=task.name,
        split=experiment.split,
        kept=len(examples),
        dropped=dict(examples.dropped),
        hash=hash_of_examples,
    )
    return Record(
        kind=KIND,
        cell={"model": model.name, "task": task.name},
        specs={
            "model": model.spec(),
            "task": Spec(
                name=task.name,
                version=task.version,
                args={"split": experiment.split, **settings_of(task)},
            ),
            "method": Spec(name="behaviour"),
            "metric": Spec(name="accuracy"),
        },
        measures=[_measure(name, values, groups) for name, values in columns.items()],
        values=Values(
            unit="example",
            ids=[example.id for example in examples],
            groups=groups,
            columns={
                name: values.tolist()
                for name, values in columns.items()
                if not name.startswith("chance")
            },
        ),
        data={"test": chosen},
        spent={"seconds": round(time.perf_counter() - begin, 3)},
        warnings=[
            f"Examples that could not be read and are left out: {count:,} ({reason})."
            for reason, count in sorted(examples.dropped.items())
        ],
        provenance=made_by(model, experiment.seed, hash_of_examples),
    )


def _examples(model: Model, task: Task, experiment: AccuracyExperiment) -> Examples:
    """As many examples as asked for, or all of a split that has fewer."""
    size = task.sizes.get(experiment.split, 0)
    limit = None if experiment.limit is None or experiment.limit >= size > 0 else experiment.limit
    return task.examples(
        experiment.split,
        model,
        limit=limit,
        seed=experiment.seed,
        private_seed=experiment.private_seed,
    )


def _columns(
    model: Model,
    examples: Sequence[Example],
    kinds: Sequence[str],
    lax: Scoring | None,
    progress: Progress,
) -> dict[str, Float[np.ndarray, "n"]]:
    """Values of each kind of prompt for every example; NaN where it has none.

    All kinds are scored together: an example's prompts have much in common.
    """
    there = [
        (kind, row, prompt)
        for kind in kinds
        for row, example in enumerate(examples)
        if (prompt := example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind))
        and prompt.answers
    ]
    prompts = [prompt for _, _, prompt in there]
    scored = score_prompts(model, prompts, progress=progress)
    scores = {"greedy": scored.greedy, "ranked": scored.ranked, "chance": scored.chance}
    if lax is not None:
        scores[MIB] = mib_scores(model, prompts, lax, progress=progress)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind in kinds:
        mine = [place for place, (other, _, _) in enumerate(there) if other == kind]
        rows = [there[place][1] for place in mine]
        for name, values in scores.items():
            column = columns[f"{name}@{kind}"] = np.full(len(examples), np.nan)
            column[rows] = values[mine]
    return columns


def _measure(name: str, values: Float[np.ndarray, "n"], groups: Sequence[str]) -> Measure:
    defined = ~np.isnan(values)
    n, left_out = int(defined.sum()), int((~defined).sum())
    value = float(values[defined].mean()) if n else float("nan")
    score, _, prompts = name.partition("@")
    interval = None
    if score != "chance":
        interval = proportion_interval(
            values[defined], [group for group, there in zip(groups, defined, strict=True) if there]
        )
    return measure_texts("accuracy").measure(
        f"{score}@{{prompts}}", value, interval, n=n, n_undefined=left_out, prompts=prompts
    )


def _hash(examples: Sequence[Example]) -> str:
    return content_hash(
        [example.pair(kind) for example in examples for kind in example.counterfactuals]
    )
