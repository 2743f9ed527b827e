"""Pictures of divergences: their distribution beside the empty circuit's, and heat maps of two fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.records import Record
from mechassay.report.figures import GREY, INK, PALETTE, SETTINGS, SIZE
from mechassay.report.nats import ROUNDING, plain_number

MARKED = ("95%", "99%", "99.9%", "99.99%", "max")
MAPPED = ("99%", "99.9%", "max")
CELL_TEXT = 12
"""Labels up to which a heat map has its numbers written in."""


def draw_distribution(record: Record, colour: str = PALETTE[0]) -> Figure:
    """Histograms of the divergences, linear and logarithmic, the empty circuit's as a grey outline."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(9.2, 3.5), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, name in zip(axes, ("histogram", "histogram_all"), strict=True):
            _histogram(ax, record.curves[name], colour)
            ax.set_xlabel("KL, nats", color=INK)
        axes[1].set_yscale("log")
        axes[1].set_ylim(bottom=0.7)
        axes[0].set_ylabel(f"pairs a bin, of {n_pairs(record):,}", color=INK)
        # The empty circuit may be far outside of the circuit's own range, or pile up in it.
        axes[0].set_ylim(0, 1.25 * max(1, *record.curves["histogram"]["circuit"]))
        rows = by_name(record.curves["summary"])
        _mark(axes[0], [(name, rows[name]["value"]) for name in MARKED if name in rows])
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, labelcolor=INK, fontsize=SIZE - 1)
        return figure


def _histogram(ax: Axes, found: Mapping[str, Any], colour: str) -> None:
    ax.stairs(found["circuit"], found["edges"], fill=True, color=colour, alpha=0.75, label="circuit")
    ax.stairs(found["corrupted"], found["edges"], color=GREY, lw=1.4, label="empty circuit")
    ax.set_xlim(0, found["edges"][-1])
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK)


def _mark(ax: Axes, marks: Sequence[tuple[str, float]]) -> None:
    """Vertical lines at percentiles, named where there is room."""
    places = [value for _, value in marks]
    width = ax.get_xlim()[1]
    for (name, value), (before, after) in zip(marks, pairwise([-math.inf, *places]), strict=True):
        ax.axvline(value, color=INK, lw=0.8, ls=(0, (4, 3)), alpha=0.7)
        if after - before > 0.035 * width or name == "max":
            ax.annotate(
                name,
                (value, 1.0),
                (-2, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="top",
                fontsize=SIZE - 2.5,
                color=INK,
            )


def draw_heat_map(found: Mapping[str, Any]) -> Figure:
    """Maximum and percentiles of all pairs with two labels; cells without pairs are blank.

    What is rounding has no scale: such a panel has one colour and no bar.
    """
    rows, columns = found["labels"]
    with rc_context(SETTINGS):
        height = 1.5 + min(max(0.17 * len(rows), 1.2), 9)
        figure = Figure(figsize=(9.2, height), layout="constrained")
        axes = figure.subplots(1, len(MAPPED), sharey=True)
        for ax, name in zip(axes, MAPPED, strict=True):
            values = _cells(found, name)
            flat = _is_rounding(values)
            scale = {"vmin": 0.0, "vmax": 1.0} if flat else {}
            image = ax.imshow(values, cmap="viridis", aspect="auto", interpolation="none", **scale)
            ax.set_title(name, fontsize=SIZE, loc="left", color=INK)
            ax.set_xticks(range(len(columns)), [_cut(label) for label in columns], rotation=90, fontsize=_font(len(columns)))
            ax.set_yticks(range(len(rows)), [_cut(label) for label in rows], fontsize=_font(len(rows)))
            ax.tick_params(colors=INK, length=0)
            for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
                text.set_parse_math(False)
            if not flat:
                bar = figure.colorbar(image, ax=ax, shrink=0.85, pad=0.02)
                bar.ax.tick_params(colors=INK, labelsize=SIZE - 2.5)
                bar.ax.ticklabel_format(useOffset=False)
            if len(rows) <= CELL_TEXT and len(columns) <= CELL_TEXT:
                _write(ax, values)
        for text in (figure.supylabel(found["fields"][0], fontsize=SIZE), figure.supxlabel(found["fields"][1], fontsize=SIZE)):
            text.set_parse_math(False)
            text.set_color(INK)
        return figure


def flat_map(found: Mapping[str, Any]) -> bool:
    """Whether a heat map shows nothing but rounding."""
    return all(_is_rounding(_cells(found, name)) for name in MAPPED)


def _cells(found: Mapping[str, Any], name: str) -> np.ndarray:
    return np.array([[plain_number(each) for each in row] for row in found[name]])


def _is_rounding(values: np.ndarray) -> bool:
    return not (np.abs(values) >= ROUNDING).any()


def _write(ax: Axes, values: np.ndarray) -> None:
    """The numbers into their cells, dark on light and light on dark."""
    shown = values[np.isfinite(values)]
    middle = (shown.min() + shown.max()) / 2 if shown.size else 0.0
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            colour = "#000000" if value > middle else "#ffffff"
            text = "≈ 0" if abs(value) < ROUNDING else f"{value:.2g}"
            ax.text(column, row, text, ha="center", va="center", fontsize=SIZE - 3.5, color=colour)


def _font(n: int) -> float:
    return SIZE - 2 if n <= 20 else SIZE - 4


def _cut(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def by_name(table: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The rows of a record's table by their names."""
    return {row["name"]: {key: plain_number(value) for key, value in row.items() if key != "name"} for row in table}


def n_pairs(record: Record) -> int:
    """Pairs that a record is about."""
    return max((each.n for each in record.measures), default=0)
