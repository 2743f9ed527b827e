"""Pictures of a distribution of divergences, beside those of the empty circuit and random paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mechassay.figures import GREY, INK, PALETTE, SETTINGS, SIZE
from mechassay.records import Record, Table
from mechassay.report.nats import summary

MARKED = ("95%", "99%", "99.9%", "99.99%", "max")
NAME_WIDTH = 0.04
"""What a name written upwards takes of a panel's width."""


def draw_distribution(record: Record, colour: str = PALETTE[0]) -> Figure:
    """Histograms of the divergences, linear and logarithmic; the empty circuit's is outlined in
    grey.
    """
    with rc_context(SETTINGS):
        figure = Figure(figsize=(9.2, 3.5), layout="constrained")
        axes = figure.subplots(1, 2)
        bins = [record.table("histogram").where(range=name) for name in ("own", "all")]
        for ax, found in zip(axes, bins, strict=True):
            _histogram(ax, found, colour)
            ax.set_xlabel("KL, nats", color=INK)
        axes[1].set_yscale("log")
        few = max(bins[1].numbers(name).max() for name in ("circuit", "empty")) < 50
        axes[1].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes[1].yaxis.set_minor_formatter(NullFormatter())
        axes[1].set_ylim(bottom=0.7)
        axes[0].set_ylabel(f"pairs a bin, of {record.n:,}", color=INK)
        # The empty circuit may be far outside of the circuit's own range, or pile up in it.
        axes[0].set_ylim(0, 1.25 * max(1, bins[0].numbers("circuit").max()))
        rows = summary(record)
        _mark(axes[0], [(name, rows[name]["value"]) for name in MARKED if name in rows])
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": 3, "frameon": False}
        legend = axes[0].get_legend_handles_labels()
        figure.legend(*legend, **place, labelcolor=INK, fontsize=SIZE - 1)
        return figure


def _histogram(ax: Axes, bins: Table, colour: str) -> None:
    edges = np.append(bins.numbers("low"), bins.numbers("high")[-1])
    circuit, empty, paths = (bins.numbers(name) for name in ("circuit", "empty", "random-paths"))
    ax.stairs(circuit, edges, fill=True, color=colour, alpha=0.75, label="circuit")
    ax.stairs(empty, edges, color=GREY, lw=1.4, label="empty circuit")
    label = "random paths, scaled to as many pairs"
    ax.stairs(paths, edges, color=GREY, lw=1.1, ls=(0, (2, 1.5)), label=label)
    ax.set_xlim(0, edges[-1])
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK)


def _mark(ax: Axes, marks: Sequence[tuple[str, float]]) -> None:
    """Vertical lines at percentiles; those too near are named together, at the last of them."""
    width = ax.get_xlim()[1]
    for _, value in marks:
        ax.axvline(value, color=INK, lw=0.8, ls=(0, (4, 3)), alpha=0.7)
    for name, value in together(marks, width):
        # A name stands to the left of its line, where there is room.
        right = value > NAME_WIDTH * width
        ax.annotate(
            name,
            (value, 1.0),
            (-2 if right else 2, -2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            ha="right" if right else "left",
            va="top",
            fontsize=SIZE - 2.5,
            color=INK,
        )


def together(marks: Sequence[tuple[str, float]], width: float) -> list[tuple[str, float]]:
    """Names and places of rising marks, those nearer than a name is wide as one ("99% to max")."""
    groups: list[list[tuple[str, float]]] = []
    for mark in marks:
        # The name of a mark at the very left stands to its right: the next one has to leave room
        # for both.
        room = NAME_WIDTH * width * (1 if groups and groups[-1][-1][1] > NAME_WIDTH * width else 2)
        if groups and mark[1] - groups[-1][-1][1] < room:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return [
        (group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}", group[-1][1])
        for group in groups
    ]
