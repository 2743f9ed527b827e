"""The page of accuracy of models on tasks: sentences, tables and figures.

The page begins with a sentence for each model and task (`results.preconditions.does`): is the model
better than guessing, and than a model that ignores the prompt? The first table has a task in each
row and, for each model, greedy and ranked-choice accuracy of the original prompts (MIB, tables 1
and 11). Then each task has its own table and figure, with every kind of counterfactual (MIB, tables
12 and 13). Chance is that of ranked choice. MIB's own scoring, where a record has it, is a column
"mib-2025". Brackets hold 95 % intervals over groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.results import page
from mechassay.results.page import NOTHING, Page, Report, Section, TextTable
from mechassay.results.plots import GREY, INK, MARKERS, PALETTE, SETTINGS, Picture, draw_points
from mechassay.results.preconditions import does, groups
from mechassay.results.records import Failure, Measure, Record, estimate_of
from mechassay.results.sections import framed, measured, run_section
from mechassay.results.text import CHANCE_DECIMALS, chance_text
from mechassay.results.verdict import Case, Conclusion, Verdict
from mechassay.runs.accuracy import GROUPS
from mechassay.stats.intervals import Estimate
from mechassay.tasks.accuracy import ORIGINAL, accuracy_measure
from mechassay.tasks.scoring import NAME as MIB
from mechassay.tasks.task import OWN

MOST_SENTENCES = 6
"""Models and tasks up to which each has its sentence at the top."""
SEVERAL = {Verdict.YES: "yes", Verdict.NO: "no", Verdict.NOT_DISTINGUISHABLE: "no"}
"""The case of tasks of one verdict, where there are many."""
SCORES = {"greedy": "greedy", "ranked": "ranked choice"}

READING = {
    "Greedy": "The most likely token at every step spells a right answer exactly.",
    "Ranked choice": (
        "Of the prompt's choices, the one of the highest log-probability is right. If choices tie,"
        " the prompt counts by the fraction of them that is right. Chance is what guessing among"
        " the choices gives. A task with free answers has none."
    ),
    "Exchanged prompts": (
        "How often the model picks a right choice of a prompt after reading another prompt,"
        " original or counterfactual. A model that ignores the prompt reaches as much."
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

    def title(self, report: Report) -> str:
        return "Accuracy of models on tasks"

    def tables(self, report: Report) -> list[TextTable]:
        """All tasks first, then one for each task."""
        models = list(dict.fromkeys(record.model.name for record in report.records))
        has_mib = any(record.measure(f"{MIB}@{ORIGINAL}") is not None for record in report.records)
        scores = {**SCORES, MIB: MIB} if has_mib else SCORES
        tasks = _tasks(report.records)
        by_model = {name: {r.model.name: r for r in group} for name, group in tasks.items()}
        overall = [(name, *_cells(of, models, ORIGINAL, scores)) for name, of in by_model.items()]
        for failure in report.failures:
            model, task = (failure.cell.get(role, "") for role in ("model", "task"))
            overall.append((task, f"{model} failed: {failure.message}"))
        made = [TextTable.of("Original prompts", _column_names("task", models, scores), overall)]
        for name, group in tasks.items():
            kinds, of = _kinds(group[0]), by_model[name]
            rows = [(short(kind), *_cells(of, models, kind, scores)) for kind in kinds]
            made.append(TextTable.of(name, _column_names("prompts", models, scores), rows))
        return made if overall else []

    def terminal_tables(self, report: Report) -> list[TextTable]:
        """The original prompts of all tasks."""
        return self.tables(report)[:1]

    def sections(self, report: Report) -> list[Section]:
        """Whether each model does each task; all tasks; each with its figure, folded."""
        records = report.records
        tables = self.tables(report)
        groups = list(_tasks(records).items())
        figures = [[_chart(name, group)] if _kinds(group[0]) else [] for name, group in groups]
        alone = len(groups) == 1
        return framed(
            report,
            [page.Text(text, "verdict") for text in self.answers(records)],
            [Section(table.title, (table,)) for table in tables[:1]],
            figure=figures[0] if alone else _all_tasks(records) if records else [],
            folded=[
                *_sentences(self.conclusions(records)),
                *(
                    Section(table.title, (*([] if alone else figure), table))
                    for table, figure in zip(tables[1:], figures, strict=True)
                ),
            ],
            reading=READING,
            facts=run_section([_facts(record) for record in records]),
        )

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """The figure of one record, see `draw_accuracy`."""
        return draw_accuracy([record], ax)

    def conclusions(self, records: Sequence[Record]) -> list[Conclusion]:
        """Whether each model does each task, by its original prompts."""
        return [
            Conclusion(
                (groups(record),),
                (does(record),),
                {"model": record.model.name, "task": record.task.name},
            )
            for record in records
        ]

    def answers(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
        """A sentence for each model and task; of many, for each model and verdict."""
        conclusions = self.conclusions(records)
        if len(records) <= MOST_SENTENCES:
            return [line for own in conclusions for line in own.lines]
        tasks: dict[tuple[str, str], list[str]] = {}
        for record, own in zip(records, conclusions, strict=True):
            case = SEVERAL.get(own.verdict, "no verdict")
            tasks.setdefault((record.model.name, case), []).append(record.task.name)
        models = dict.fromkeys(model for model, _ in tasks)
        return [
            Case("several", case, {"model": model, "tasks": ", ".join(tasks[model, case])}).text({})
            for model in models
            for case in ("yes", "no", "no verdict")
            if (model, case) in tasks
        ]

    def recomputed(self, record: Record) -> list[Measure]:
        """Every accuracy with its interval."""
        values = record.values
        columns = {} if values is None else values.columns
        of_kinds = record.table(GROUPS).columns if record.has_table(GROUPS) else {}
        groups = [] if values is None else values.groups
        return [
            accuracy_measure(
                name, np.array(own), [*map(str, of_kinds.get(name.partition("@")[2], groups))]
            )
            for name, own in columns.items()
        ]


def _sentences(conclusions: Sequence[Conclusion]) -> list[Section]:
    """Return the sentences of all models and tasks, if the page begins with summaries."""
    if len(conclusions) <= MOST_SENTENCES:
        return []
    texts = [page.Text(line) for own in conclusions for line in own.lines]
    return [Section("Each model and task", tuple(texts))]


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
        name = record.task.name
        name += f" ({', '.join(changed)})" if changed and ":" not in name else ""
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
