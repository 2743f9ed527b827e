"""Which prompts are worse: labels of fields, pairs by template, and heat maps of two fields.

The functions read the tables of a record and make sentences, tables and figures for its page.
Labels of a field are listed worst first, with their tests. Pairs of a grid are split by
template: the same for both prompts, or different.

A heat map has a panel for each percentile and for the maximum, with one colour scale. The scale
begins at 0 nats and ends at the largest cell of any panel. The mean of the empty circuit, which
is the value without any circuit, is marked on it; the empty circuit's percentiles stand in the
panels' titles. Cells without pairs are hatched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mechassay.adversarial.statistics import ALPHA, ENDS, MAP_NAMES
from mechassay.results.curves import EMPTY as OF_EMPTY
from mechassay.results.page import NOTHING, Row, TextTable
from mechassay.results.plots import GREY, INK, SETTINGS, SIZE
from mechassay.results.records import Record
from mechassay.results.text import ROUNDING, nats, plain_number, with_interval
from mechassay.utils.display import share

SHOWN_LABELS = 12


@dataclass(frozen=True)
class Group:
    """A field and what was found of its labels.

    Attributes:
        strata, used: strata of prompts, and those in which labels could be compared.
    """

    name: str
    labels: list[dict[str, Any]]
    strata: int
    used: int

    @property
    def has_worse(self) -> bool:
        return any(label["worse"] for label in self.labels)


def groups_of(record: Record) -> list[Group]:
    """The fields of a record, those with worse labels first."""
    labels = record.table("labels").rows()
    groups = [
        Group(
            str(row["field"]),
            [label for label in labels if label["field"] == row["field"]],
            int(plain_number(row["strata"])),
            int(plain_number(row["strata used"])),
        )
        for row in record.table("fields").rows()
    ]
    return sorted(
        groups, key=lambda group: (not group.has_worse, min(label["p"] for label in group.labels))
    )


def worse_labels_text(record: Record) -> str:
    """Which labels are worse, by the test and by how much."""
    names = [row["field"] for row in record.table("fields").rows()]
    groups = sorted(groups_of(record), key=lambda group: names.index(group.name))
    if not groups:
        why = "too few prompts, or too many different labels"
        return f"No part of the prompts has labels to compare: {why}."
    labels = [label for group in groups for label in group.labels]
    worse = [label for label in labels if label["worse"]]
    small = sum(label["p"] <= ALPHA and not label["worse"] for label in labels)
    least = share(float(str(record.task.args["least_effect"])))
    least = f"the least effect worth reporting ({least} of the empty circuit's 99th percentile)"
    has = "has" if small == 1 else "have"
    alone = _alone(groups)
    if not worse:
        below = f" {small} {has} p ≤ {ALPHA}, by less than {least}." if small else ""
        sentence = f"No label of any of {len(groups)} fields is found to be worse than the rest"
        return f"{sentence} of its strata.{below}{alone}"
    listed = "; ".join(map(_worse_label, worse[:SHOWN_LABELS]))
    more = f"; and {len(worse) - SHOWN_LABELS} more" if len(worse) > SHOWN_LABELS else ""
    below = f" {small} more {has} p ≤ {ALPHA}, but by less than {least}." if small else ""
    return f"Found to be worse than the rest of their strata: {listed}{more}.{below}{alone}"


def _worse_label(label: Mapping[str, Any]) -> str:
    beyond, rest, effect = (nats(label[key]) for key in ("tested", "rest", "effect"))
    high = (
        f"99th percentile {beyond} against {rest}, {effect} more: {share(label['share'])} of"
        " the empty circuit's"
    )
    return f"{label['field']} = {label['label']!r} ({high}; means differ by {_mean_effect(label)})"


def _alone(groups: Sequence[Group]) -> str:
    """How many prompts could not be compared, where a field has some."""
    clauses: list[str] = []
    for group in groups:
        inputs = sum(label["inputs"] for label in group.labels)
        left_out = inputs - sum(label["compared"] for label in group.labels)
        if left_out:
            strata = group.strata - group.used
            clauses.append(f"{group.name}: {left_out:,} of {inputs:,} prompts in {strata} strata")
    sentence = "Not compared, as no other label is in their stratum"
    return f" {sentence}: {'; '.join(clauses)}." if clauses else ""


def label_table(group: Group) -> TextTable:
    """The labels of a field, worst first."""
    order = sorted(group.labels, key=lambda label: (label["p"], -plain_number(label["tested"])))
    rows = [
        Row(
            (
                label["label"],
                _compared(label),
                *(nats(label[key]) for key in ("tested", "rest", "effect")),
                NOTHING if math.isnan(part := plain_number(label["share"])) else share(part),
                _mean_effect(label),
                nats(label["99.9%"]),
                nats(label["max"]),
                f"{label['p']:.2g}",
            )
        )
        for label in order[:SHOWN_LABELS]
    ]
    if len(order) > SHOWN_LABELS:
        n = len(order) - SHOWN_LABELS
        note = f"{n} more labels, none with a smaller p; the record has them all."
        rows.append(Row(("", note), "more"))
    heads = (group.name, "prompts", "99%", "99% of the rest", "more", "of the empty circuit's")
    heads += ("means differ by", "99.9%", "max", "p, adjusted")
    return TextTable.of(group.name, heads, rows)


def _compared(label: Mapping[str, Any]) -> str:
    """How many prompts were compared, of how many where some were not."""
    inputs, compared = label["inputs"], label["compared"]
    return f"{inputs:,}" if compared == inputs else f"{compared:,} of {inputs:,}"


def _mean_effect(label: Mapping[str, Any]) -> str:
    keys = ("effect", "low", "high")
    return with_interval({key: plain_number(label[f"mean_{key}"]) for key in keys}, "effect")


STATISTICS = ("mean", "99%", "max")
EMPTY = "empty circuit"
ROUNDED = 5e-4
"""A share below this is shown as none."""


def template_table(records: Sequence[Record]) -> TextTable | None:
    """Every circuit and the empty one, on pairs of the same and of different templates, if any."""
    rows: list[tuple[str, ...]] = []
    for record in records:
        rows += [
            _row(record.method.name, half, "result", _percent(half["left", "mean"]))
            for half in halves(record)
        ]
    if not rows:
        return None
    rows += [_row(EMPTY, half, OF_EMPTY, NOTHING) for half in halves(records[0])]
    columns = ("circuit", "templates", "pairs", *STATISTICS, "left of empty")
    return TextTable.of("By template", columns, rows)


def template_text(records: Sequence[Record]) -> str:
    """What can be said about templates, in a sentence; nothing for pairs that are no grid."""
    args = records[0].task.args
    if "templates" not in args or args["design"] != "grid":
        return ""
    n = args["templates"]
    if n is None:
        return (
            f"The task {records[0].task.name} does not say how its prompts are built, so pairs are"
            " not split by template."
        )
    if n == 1:
        return "All prompts have one template."
    if [half["pairs"] for half in halves(records[0])] == ["same"]:
        return f"Both prompts of every pair have the same of {n} templates."
    return (
        f"The prompts have {n} templates. Pairs of different templates are another population than"
        " those of the same: what the circuit leaves out then carries other words at other places."
    )


def halves(record: Record) -> list[dict[Any, Any]]:
    """What is known of pairs of one template, and of two: rows by what and which statistic."""
    cells: dict[str, dict[Any, Any]] = {}
    for row in record.table("templates").rows():
        pairs = str(row["pairs"])
        half = cells.setdefault(pairs, {"pairs": pairs, "n": row["n"]})
        half[row["of"], row["statistic"]] = [row[key] for key in ENDS]
    return list(cells.values())


def _row(name: str, half: Mapping[Any, Any], of: str, left: str) -> tuple[str, ...]:
    cells = (
        with_interval(dict(zip(ENDS, map(plain_number, half[of, statistic]), strict=True)))
        for statistic in STATISTICS
    )
    return (name, half["pairs"], f"{half['n']:,}", *cells, left)


def _percent(values: Sequence[Any]) -> str:
    value, low, high = map(plain_number, values)
    if math.isnan(value):
        return NOTHING
    if abs(value) < ROUNDED:
        return "≈ 0"
    has_interval = not (math.isnan(low) or math.isnan(high))
    return f"{share(value)} [{share(low)}, {share(high)}]" if has_interval else share(value)


WIDTH = 9.2
BESIDE = 8
"""Columns up to which the panels stand beside one another."""
WRITTEN = 16
"""Columns of a panel by itself up to which the numbers are written into the cells."""
ROW = 0.19


@dataclass(frozen=True)
class HeatMap:
    """A heat map of a record.

    Attributes:
        fields: of the rows and of the columns.
        labels: of each, in their order.
        cells: of each panel; NaN where there are no pairs.
        empty: the empty circuit's number of each panel, and its mean.
        left_out: of each field how many labels are not shown, and the largest value among them.
    """

    fields: tuple[str, str]
    labels: tuple[list[str], list[str]]
    cells: dict[str, Float[np.ndarray, "rows columns"]]
    empty: dict[str, float]
    left_out: tuple[tuple[str, int, float], ...]

    @property
    def is_flat(self) -> bool:
        """Whether it shows nothing but rounding."""
        return not any((np.abs(values) >= ROUNDING).any() for values in self.cells.values())


def heat_maps_of(record: Record) -> list[HeatMap]:
    """The heat maps of a record."""
    cells, left_out = record.table("heat maps"), record.table("labels left out of heat maps")
    empty = record.table("empty circuit in heat maps")
    numbers = {str(row["statistic"]): plain_number(row["value"]) for row in empty.rows()}
    places = dict.fromkeys((str(row["rows"]), str(row["columns"])) for row in cells.rows())
    maps: list[HeatMap] = []
    for fields in places:
        part, rest = (table.where(rows=fields[0], columns=fields[1]) for table in (cells, left_out))
        rows, columns = (
            list(dict.fromkeys(map(str, part.columns[name]))) for name in ("row", "column")
        )
        shape = (len(rows), len(columns))
        panels = {name: part.numbers(name).reshape(shape) for name in MAP_NAMES}
        others = tuple(
            (str(row["field"]), int(plain_number(row["count"])), plain_number(row["largest"]))
            for row in rest.rows()
        )
        maps.append(HeatMap(fields, (rows, columns), panels, numbers, others))
    return maps


def draw_heat_map(heat: HeatMap) -> Figure:
    """The panels of a heat map."""
    n_rows, n_columns = (len(labels) for labels in heat.labels)
    beside = n_columns <= BESIDE
    with rc_context({**SETTINGS, "hatch.linewidth": 0.5}):
        panel = max(ROW * n_rows, 0.9) + 0.35
        names = 0.065 * max(map(len, map(_cut, heat.labels[1])), default=1)
        height = (panel if beside else panel * len(MAP_NAMES)) + names + 0.75
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        shape = (1, len(MAP_NAMES)) if beside else (len(MAP_NAMES), 1)
        axes = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
        cells = heat.cells
        finite = [values for values in cells.values() if np.isfinite(values).any()]
        top = max((float(np.nanmax(values)) for values in finite), default=1.0)
        top = top if top >= ROUNDING else 1.0
        images: list[Any] = []
        for ax, name in zip(axes, MAP_NAMES, strict=True):
            images.append(_panel(ax, heat, name, cells[name], top))
            if n_columns <= (BESIDE if beside else WRITTEN):
                _write(ax, cells[name], top)
        shrink = 0.9 if beside else 0.4
        bar = figure.colorbar(images[0], ax=list(axes), shrink=shrink, pad=0.02, aspect=24)
        bar.ax.tick_params(colors=INK, labelsize=SIZE - 2)
        bar.set_label("KL, nats", color=INK, fontsize=SIZE - 1)
        mean = heat.empty["mean"]
        if 0 < mean < top:
            bar.ax.axhline(mean, color="#ffffff", lw=3)
            bar.ax.axhline(mean, color="#d55e00", lw=1.6)
        _explain(figure, heat, mean, top)
        return figure


def map_words(heat: HeatMap) -> str:
    """Which labels a heat map leaves out; nothing if it has them all."""
    clauses = [
        f"{count:,} more of {name}, whose largest value is {nats(largest)}"
        for name, count, largest in heat.left_out
        if count
    ]
    order = "Labels are in the order of their 99.9th percentiles, the largest first."
    return f"{order} Not drawn: {'; '.join(clauses)} nats." if clauses else ""


def _panel(ax: Axes, heat: HeatMap, name: str, values: np.ndarray, top: float) -> Any:
    rows, columns = heat.labels
    ax.patch.set(facecolor="#ffffff", edgecolor="#c4c4c4", hatch="//////")
    cells, colours = np.ma.masked_invalid(values), matplotlib.colormaps["viridis"]
    image = ax.imshow(cells, cmap=colours, aspect="auto", interpolation="none", vmin=0.0, vmax=top)
    title = f"{name.replace('%', ' %')} (empty circuit {nats(heat.empty[name])})"
    ax.set_title(title, fontsize=SIZE - 0.5, loc="left", color=INK)
    size = SIZE - 2.5
    ax.set_xticks(range(len(columns)), list(map(_cut, columns)), rotation=90, fontsize=size)
    ax.set_yticks(range(len(rows)), list(map(_cut, rows)), fontsize=size)
    ax.tick_params(colors=INK, length=0)
    for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        text.set_parse_math(False)
    return image


def _write(ax: Axes, values: np.ndarray, top: float) -> None:
    """The numbers into their cells, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            colour = "#000000" if value > 0.6 * top else "#ffffff"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SIZE - 3.5}
            ax.text(column, row, nats(value), color=colour, **look)


def _explain(figure: Figure, heat: HeatMap, mean: float, top: float) -> None:
    """The names of the fields, and what marks mean."""
    rows, columns = heat.fields
    for text in (figure.supylabel(rows, fontsize=SIZE), figure.supxlabel(columns, fontsize=SIZE)):
        text.set_parse_math(False)
        text.set_color(INK)
    beyond = "" if mean < top else ", beyond the scale"
    marks: list[Any] = [Patch(color="#d55e00", label=f"empty circuit's mean, {nats(mean)}{beyond}")]
    if any(np.isnan(values).any() for values in heat.cells.values()):
        marks.append(Patch(facecolor="#ffffff", edgecolor=GREY, hatch="//////", label="no pairs"))
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 2}
    figure.legend(handles=marks, loc="outside upper right", ncols=2, **look)


def _cut(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
