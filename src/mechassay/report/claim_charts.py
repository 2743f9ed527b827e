"""Charts of an evaluation: scores and labels, dimensions of claims, tiers against labels.

`draw_scores`: a row a paper; its score on the scale of tiers, the range of the label's tier as a
band, the range of single runs as a line. It has what figures 2 and 4 of Tower (2026) show.
`draw_dimensions`: levels of the system claim, and means of the others (figure 3).
`draw_confusion`: labels in rows, tiers in columns (figure 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mechassay.claims.rubric import Rubric
from mechassay.figures import GREY, INK, PALETTE, SETTINGS, SIZE, Picture, figure_of, plain_axes
from mechassay.records import Record, Scalar
from mechassay.report.nats import plain_number
from mechassay.text import shortened

TOP = 10.0
EXACT, HIGH, LOW = PALETTE[0], PALETTE[1], PALETTE[2]
LEVELS = 3
PANELS = 3
"""Papers beside each other in the chart of dimensions."""
LETTERS = 26


def draw_scores(record: Record, rubric: Rubric, ax: Axes | None = None) -> Figure:
    """Scores on the scale of tiers, with labels and single runs; papers as in the record."""
    rows = record.table("papers").rows()
    least = [tier.least for tier in rubric.tiers]
    names = [tier.name for tier in rubric.tiers]
    with rc_context(SETTINGS):
        if ax is None:
            size = (9.2, 1.5 + 0.36 * max(len(rows), 1))
            ax = Picture(figsize=size, layout="constrained").subplots()
        for boundary in least[1:]:
            ax.axvline(boundary, color=INK, lw=0.8, alpha=0.35, zorder=1)
        ends = [*least[1:], TOP]
        for y, row in enumerate(rows):
            place = names.index(str(row["expected"]))
            band: dict[str, Any] = {"color": GREY, "alpha": 0.28, "lw": 0, "zorder": 0}
            ax.barh(y, ends[place] - least[place], left=least[place], height=0.72, **band)
            low, high = plain_number(row["lowest"]), plain_number(row["highest"])
            if high > low:
                ax.plot([low, high], [y, y], color=INK, lw=2.2, alpha=0.55, zorder=2)
            score, error = plain_number(row["cvs"]), plain_number(row["error"])
            if math.isnan(score):
                look: dict[str, Any] = {"color": INK, "va": "center", "fontsize": SIZE - 1.5}
                ax.text(0.1, y, "no score", **look)
            else:
                colour, marker = _look(error)
                ax.plot([score], [y], marker=marker, color=colour, ms=8.5, zorder=3)
        _scores_axis(ax, rows, names, least)
        return figure_of(ax)


def _scores_axis(
    ax: Axes, rows: Sequence[dict[str, Scalar]], names: Sequence[str], least: Sequence[float]
) -> None:
    ax.set_xlim(0, TOP)
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [f" {shortened(str(r['paper']), LETTERS)}" for r in rows])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.set_xlabel("Claim Validity Score", color=INK)
    above = ax.secondary_xaxis("top")
    middles = [(a + b) / 2 for a, b in zip(least, [*least[1:], TOP], strict=True)]
    above.set_xticks(middles, [name.replace(" ", "\n", 1) for name in names], fontsize=SIZE - 1.5)
    above.tick_params(length=0, colors=INK)
    above.spines[:].set_visible(False)
    plain_axes(ax)
    marks: list[Any] = [
        _mark(EXACT, "o", "tier of the label"),
        _mark(HIGH, "^", "above it"),
        _mark(LOW, "v", "below it"),
        Line2D([], [], color=INK, lw=2.2, alpha=0.55, label="single runs"),
        Patch(color=GREY, alpha=0.28, lw=0, label="range of the label's tier"),
    ]
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 1.5}
    figure_of(ax).legend(handles=marks, loc="outside lower center", ncols=5, **look)


def _look(error: float) -> tuple[str, str]:
    return (EXACT, "o") if error == 0 else (HIGH, "^") if error > 0 else (LOW, "v")


def _mark(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ls="", ms=7, label=label)


def draw_dimensions(record: Record, rubric: Rubric) -> Figure:
    """Levels of each paper's system claim, and means of its other claims; a panel a paper."""
    table = record.table("dimensions")
    papers = list(dict.fromkeys(map(str, table.columns.get("paper", []))))
    codes = [each.code for each in rubric.dimensions]
    names = [f"{each.name} ({each.weight:g})" for each in rubric.dimensions]
    with rc_context(SETTINGS):
        n_rows = max(1, math.ceil(len(papers) / PANELS))
        n_columns = min(PANELS, max(1, len(papers)))
        size = (3.6 if n_columns == 1 else 9.2, 0.5 + 1.9 * n_rows)
        figure = Picture(figsize=(max(size[0], 5.4), size[1]), layout="constrained")
        axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, paper in zip(axes, papers, strict=False):
            rows = {row["dimension"]: row for row in table.where(paper=paper).rows()}
            for y, code in enumerate(codes):
                own, others = (plain_number(rows[code][key]) for key in ("system", "others"))
                if not math.isnan(others):
                    ax.plot([others, own], [y, y], color=GREY, lw=1.8, zorder=1)
                    ax.plot([others], [y], "s", color=HIGH, ms=6.5, zorder=2)
                ax.plot([own], [y], "o", color=EXACT, ms=7.5, zorder=3)
            ax.set_title(f" {shortened(paper, LETTERS)}", fontsize=SIZE, loc="left", color=INK)
            ax.title.set_parse_math(False)
            ax.set_xlim(-0.2, LEVELS + 0.2)
            ax.set_xticks(range(LEVELS + 1))
            ax.set_yticks(range(len(codes)), names)
            ax.set_ylim(len(codes) - 0.5, -0.5)
            ax.grid(axis="x", color=INK, alpha=0.1, lw=0.7)
            plain_axes(ax)
        for ax in axes[len(papers) :]:
            ax.set_visible(False)
        marks = [_mark(EXACT, "o", "system claim"), _mark(HIGH, "s", "mean of other claims")]
        look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 1.5}
        figure.legend(handles=marks, loc="outside lower center", ncols=2, **look)
        return figure


def draw_confusion(record: Record, rubric: Rubric) -> Figure:
    """How often papers of each label (rows) were given each tier (columns)."""
    names = [tier.name for tier in rubric.tiers]
    counts = np.zeros((len(names),) * 2)
    for row in record.table("confusion").rows():
        place = names.index(str(row["expected"])), names.index(str(row["tier"]))
        counts[place] = plain_number(row["n"])
    with rc_context(SETTINGS):
        ax = Picture(figsize=(6.2, 3.9), layout="constrained").subplots()
        colours = LinearSegmentedColormap.from_list("counts", ("#ffffff", PALETTE[0]))
        ax.imshow(counts, cmap=colours, vmin=0, vmax=max(1.6 * counts.max(), 1), aspect="auto")
        for (row, column), value in np.ndenumerate(counts):
            if value or row == column:
                look: dict[str, Any] = {"ha": "center", "va": "center", "color": "#1a1a1a"}
                ax.text(column, row, f"{value:.0f}", **look)
            if row == column:
                corner = (column - 0.5, row - 0.5)
                ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=INK, lw=1.1))
        told = [name.replace(" ", "\n", 1) for name in names]
        ax.set_xticks(range(len(names)), told, fontsize=SIZE - 1.5)
        ax.set_yticks(range(len(names)), told, fontsize=SIZE - 1.5)
        ax.set_xlabel("tier by the judge", color=INK)
        ax.set_ylabel("label", color=INK)
        plain_axes(ax)
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        return figure_of(ax)
