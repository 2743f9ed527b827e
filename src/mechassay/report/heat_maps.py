"""Heat maps of two fields: a panel for each percentile and the maximum, with one colour scale.

The scale begins at 0 nats and ends at the largest cell of any panel. The mean of the empty circuit,
which is what no circuit at all gives, is marked on it; its percentiles stand in the panels' titles.
Cells without pairs are hatched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mechassay.adversarial.statistics import MAP_NAMES
from mechassay.figures import GREY, INK, SETTINGS, SIZE
from mechassay.records import Record
from mechassay.report.nats import ROUNDING, nats, plain_number

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
    found: list[HeatMap] = []
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
        found.append(HeatMap(fields, (rows, columns), panels, numbers, others))
    return found


def draw_heat_map(found: HeatMap) -> Figure:
    """The panels of a heat map."""
    n_rows, n_columns = (len(labels) for labels in found.labels)
    beside = n_columns <= BESIDE
    with rc_context({**SETTINGS, "hatch.linewidth": 0.5}):
        panel = max(ROW * n_rows, 0.9) + 0.35
        names = 0.065 * max(map(len, map(_cut, found.labels[1])), default=1)
        height = (panel if beside else panel * len(MAP_NAMES)) + names + 0.75
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        shape = (1, len(MAP_NAMES)) if beside else (len(MAP_NAMES), 1)
        axes = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
        cells = found.cells
        finite = [values for values in cells.values() if np.isfinite(values).any()]
        top = max((float(np.nanmax(values)) for values in finite), default=1.0)
        top = top if top >= ROUNDING else 1.0
        images: list[Any] = []
        for ax, name in zip(axes, MAP_NAMES, strict=True):
            images.append(_panel(ax, found, name, cells[name], top))
            if n_columns <= (BESIDE if beside else WRITTEN):
                _write(ax, cells[name], top)
        shrink = 0.9 if beside else 0.4
        bar = figure.colorbar(images[0], ax=list(axes), shrink=shrink, pad=0.02, aspect=24)
        bar.ax.tick_params(colors=INK, labelsize=SIZE - 2)
        bar.set_label("KL, nats", color=INK, fontsize=SIZE - 1)
        mean = found.empty["mean"]
        if 0 < mean < top:
            bar.ax.axhline(mean, color="#ffffff", lw=3)
            bar.ax.axhline(mean, color="#d55e00", lw=1.6)
        _explain(figure, found, mean, top)
        return figure


def map_words(found: HeatMap) -> str:
    """Which labels a heat map leaves out; nothing if it has them all."""
    said = [
        f"{count:,} more of {name}, whose largest value is {nats(largest)}"
        for name, count, largest in found.left_out
        if count
    ]
    order = "Labels are in the order of their 99.9th percentiles, the largest first."
    return f"{order} Not drawn: {'; '.join(said)} nats." if said else ""


def _panel(ax: Axes, found: HeatMap, name: str, values: np.ndarray, top: float) -> Any:
    rows, columns = found.labels
    ax.patch.set(facecolor="#ffffff", edgecolor="#c4c4c4", hatch="//////")
    shown, colours = np.ma.masked_invalid(values), matplotlib.colormaps["viridis"]
    image = ax.imshow(shown, cmap=colours, aspect="auto", interpolation="none", vmin=0.0, vmax=top)
    title = f"{name.replace('%', ' %')} (empty circuit {nats(found.empty[name])})"
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


def _explain(figure: Figure, found: HeatMap, mean: float, top: float) -> None:
    """The names of the fields, and what marks mean."""
    rows, columns = found.fields
    for text in (figure.supylabel(rows, fontsize=SIZE), figure.supxlabel(columns, fontsize=SIZE)):
        text.set_parse_math(False)
        text.set_color(INK)
    beyond = "" if mean < top else ", beyond the scale"
    marks: list[Any] = [Patch(color="#d55e00", label=f"empty circuit's mean, {nats(mean)}{beyond}")]
    if any(np.isnan(values).any() for values in found.cells.values()):
        marks.append(Patch(facecolor="#ffffff", edgecolor=GREY, hatch="//////", label="no pairs"))
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 2}
    figure.legend(handles=marks, loc="outside upper right", ncols=2, **look)


def _cut(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
