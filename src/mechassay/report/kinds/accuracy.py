"""Accuracy of models on tasks, as tables and figures.

The first table has a task in each row and, for each model, greedy and ranked-choice accuracy of the
original prompts (MIB, tables 1 and 11). Then each task has its own table and figure, with the
original and every kind of counterfactual (MIB, tables 12 and 13). Chance is that of ranked choice.
Where a record has MIB's own scoring, that is a column "mib-2025" beside the two; figures leave it
out. Brackets hold 95 % intervals over groups of examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from mechassay.records import Failure, Record
from mechassay.report import page
from mechassay.report.figures import GREY, INK, MARKERS, PALETTE, SETTINGS, svg
from mechassay.report.page import Section, Terms
from mechassay.report.sections import all_numbers, measured, values_section, warnings_notice
from mechassay.report.tables import NOTHING, Table
from mechassay.report.text import CHANCE_DECIMALS, chance_text
from mechassay.tasks.paper import OWN

ORIGINAL = "original"
SCORES = {"greedy": "greedy", "ranked": "ranked choice"}
MIB = "mib-2025"

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


def title(records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
    """What the page is called."""
    return "Accuracy of models on tasks"


def tables(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[Table]:
    """All tasks first, then one for each task."""
    models = list(dict.fromkeys(record.model.name for record in records))
    tasks = _tasks(records)
    scores = _scores(records)
    by_model = {
        name: {record.model.name: record for record in group} for name, group in tasks.items()
    }
    overall = [(name, *_cells(of, models, ORIGINAL, scores)) for name, of in by_model.items()]
    overall += [
        (each.cell.get("task", ""), f"{each.cell.get('model', '')} failed: {each.message}")
        for each in failures
    ]
    found = [Table.of("Original prompts", _columns("task", models, scores), overall)]
    for name, group in tasks.items():
        rows = [
            (short(kind), *_cells(by_model[name], models, kind, scores))
            for kind in _kinds(group[0])
        ]
        found.append(Table.of(name, _columns("prompts", models, scores), rows))
    return found if overall else []


def sections(
    records: Sequence[Record], failures: Sequence[Failure] = (), drawings: Sequence[object] = ()
) -> list[Section]:
    """A section for all tasks and one for each, with its figure."""
    overall, *each = tables(records, failures) or [None]
    figures = [
        page.Figure(svg(draw_accuracy(group))) if _kinds(group[0]) else None
        for group in _tasks(records).values()
    ]
    facts = [_facts(record) for record in records]
    run = Table.of(
        "", tuple(facts[0]) if facts else (), [tuple(f.values()) for f in facts], words=True
    )
    return [
        Section("", tuple(warnings_notice(records))),
        *([Section(overall.title, (overall,))] if overall else []),
        *(
            Section(table.title, (*([figure] if figure else []), table))
            for table, figure in zip(each, figures, strict=True)
            if table
        ),
        Section("How to read this", (Terms(READING),)),
        *([Section("What was run on what", (run,))] if facts else []),
        *values_section(records),
        *all_numbers(records),
    ]


def draw_accuracy(records: Sequence[Record]) -> Figure:
    """Accuracy of one task's prompts: a row for each kind,
    greedy filled and ranked choice hollow, chance as a dotted line.
    """
    kinds = _kinds(records[0])
    with rc_context(SETTINGS):
        figure = Figure(figsize=(8.6, 0.9 + 0.36 * len(kinds)), layout="constrained")
        axes = figure.subplots()
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
        figure.legend(
            loc="outside upper center",
            ncols=2 * len(records) + 1,
            frameon=False,
            labelcolor=INK,
            fontsize=9,
        )
    return figure


def _draw_line(
    axes: Any, record: Record, kinds: Sequence[str], name: str, offset: float, number: int
) -> None:
    found = [(row + offset, record.measure(f"{name}@{kind}")) for row, kind in enumerate(kinds)]
    there = [(row, each) for row, each in found if each is not None and math.isfinite(each.value)]
    if not there:
        return
    rows, values = [row for row, _ in there], [each.value for _, each in there]
    # Rounding may put an end a hair inside the value.
    errors = [
        [max(0.0, each.value - each.low) for _, each in there],
        [max(0.0, each.high - each.value) for _, each in there],
    ]
    colour = PALETTE[number % len(PALETTE)]
    axes.errorbar(
        values,
        rows,
        xerr=errors,
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
    found: dict[str, list[Record]] = {}
    for record in records:
        changed = [
            f"{key}={record.task.args[key]}"
            for key in ("n_choices", "variable", "digit", "digits")
            if record.task.args.get(key)
        ]
        words = record.task.args.get("words", OWN)
        changed += [f"words={words}"] if words != OWN else []
        changed += [
            f"labels={labels}"
            for labels in [record.task.args.get("labels", "strict")]
            if labels != "strict"
        ]
        name = record.task.name + (f" ({', '.join(changed)})" if changed else "")
        found.setdefault(name, []).append(record)
    return found


def _kinds(record: Record) -> list[str]:
    """Kinds of prompts of which at least one has a right answer."""
    return [
        each.name.removeprefix("greedy@")
        for each in record.measures
        if each.name.startswith("greedy@") and each.n
    ]


def _scores(records: Sequence[Record]) -> dict[str, str]:
    """The scores that some record has, with their titles."""
    lax = any(record.measure(f"{MIB}@{ORIGINAL}") is not None for record in records)
    return {**SCORES, **({MIB: MIB} if lax else {})}


def _columns(first: str, models: Sequence[str], scores: dict[str, str]) -> tuple[str, ...]:
    return (
        first,
        *(f"{model}: {name}" for model in models for name in scores.values()),
        "chance",
        "n",
    )


def _cells(
    records: dict[str, Record], models: Sequence[str], kind: str, scores: dict[str, str]
) -> tuple[str, ...]:
    cells = [
        _cell(records[model], f"{name}@{kind}") if model in records else NOTHING
        for model in models
        for name in scores
    ]
    some = next(iter(records.values()))
    chance, greedy = some.measure(f"chance@{kind}"), some.measure(f"greedy@{kind}")
    return (
        *cells,
        NOTHING if chance is None or not chance.n else chance_text(chance.value),
        "0" if greedy is None else f"{greedy.n:,}",
    )


def _cell(record: Record, name: str) -> str:
    found = record.measure(name)
    return measured(found, least=CHANCE_DECIMALS) if found and found.n else NOTHING


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
        "seconds": f"{record.realised.get('seconds', math.nan):,.3g}",
    }
