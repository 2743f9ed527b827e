"""Figures: faithfulness against circuit size, the areas, differences, and divergences.

`draw_faithfulness`: f at every circuit size, one panel for each ranking of the edges. A band is
the interval over examples; grey lines are means of random rankings (dashes: of edges, dots: of
paths), their bands the range of seeds. Sizes are shares of the model's edges on a log axis; empty
circuits stand left of the break, at 0. Where a method leaves the panel, a triangle at its edge
carries the value. Undefined values (NaN) are gaps.

Figures are made with matplotlib's object interface: nothing global is set, nothing is shown. Text
in the SVG is text, in the colour of the page (`currentColor`).
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from mechassay.results.curves import (
    Curve,
    RecordLike,
    control_kinds,
    control_name,
    is_random,
    random_curves,
    short_labels,
)
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import share, shortened

# Okabe and Ito's colours, in an order in which neighbours differ most; yellow is left out, it
# vanishes on white.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "D", "^", "v", "P")
GREY = "#8a8a8a"
BINS = 60
"""Of a histogram of scores."""
Dashes = tuple[int, tuple[int, ...]]
DASHES: dict[str, Dashes] = {"random": (0, (5, 2)), "random-paths": (0, (1, 1))}
SOLID: Dashes = (0, ())
INK = "#1f2328"
SIZE = 10.5
MARKED = ("95%", "99%", "99.9%", "99.99%", "max")
"""Percentiles that a histogram names."""
NAME_WIDTH = 0.04
"""What a name written upwards takes of a panel's width."""
LEGEND_LETTERS = 84
"""Letters, over the columns, up to which a legend has three of them."""
SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "font.family": ["sans-serif"]}
SETTINGS["font.size"] = SIZE
AREAS: tuple[Literal["cpr", "cmd"], ...] = ("cpr", "cmd")
PANELS: tuple[tuple[Literal["value", "magnitude"], str], ...] = (
    ("value", "edges ranked by value (CPR)"),
    ("magnitude", "edges ranked by magnitude (CMD)"),
)


class Picture(Figure):
    """A figure that shows itself in a notebook, with or without pyplot."""

    def _repr_svg_(self) -> str:
        return svg(self)


def colours(records: Sequence[RecordLike]) -> list[str]:
    """The colour of every record in figures and tables; random scores are grey."""
    palette = cycle(PALETTE)
    return [GREY if is_random(record) else next(palette) for record in records]


# Faithfulness


def draw_faithfulness(records: Sequence[RecordLike]) -> Figure:
    """Return the figure of faithfulness against circuit size, to save or change."""
    with rc_context(SETTINGS):
        n_rows = math.ceil((len(records) + 3) / 3)
        figure = Picture(figsize=(9.2, 3.9 + 0.24 * n_rows), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True)
        controls = _distinct_controls(records)
        zero = _zero_place(records, controls)
        for ax, (by, title) in zip(axes, PANELS, strict=True):
            _panel(ax, records, by, controls, zero)
            ax.set_title(title, fontsize=SIZE + 1, loc="left", color=INK)
        axes[0].set_ylabel("faithfulness f", color=INK)
        _legend(figure, records, controls)
        return figure


Controls = dict[str, list[list[Curve]]]
"""The random rankings of a figure: of each kind, the curves of all seeds of every set of them."""


def _zero_place(records: Sequence[RecordLike], controls: Controls) -> float:
    """Where empty circuits stand on the log axis: a little left of the smallest circuit drawn."""
    curves = [Curve.of(record, by) for record in records for by, _ in PANELS]
    curves += [curve for sets in controls.values() for seeds in sets for curve in seeds]
    x = np.concatenate([c.x[(c.x > 0) & (c.kept > 0)] for c in curves] or [np.empty(0)])
    return float(min(x.min(), 0.01)) / 2.5 if len(x) else 0.001


def _panel(
    ax: Axes,
    records: Sequence[RecordLike],
    by: Literal["value", "magnitude"],
    controls: Controls,
    zero: float,
) -> None:
    lines = [Curve.of(record, by) for record in records]
    bottom, top = _limits(lines)
    for y, style in ((0.0, ":"), (1.0, "-")):
        ax.axhline(y, color=INK, lw=0.9, ls=style, alpha=0.55, zorder=1)
    for kind, sets in controls.items():
        for seeds in sets:
            _control(ax, seeds, zero, DASHES.get(kind, SOLID))
    clipped = False
    for line, colour, marker in zip(lines, colours(records), _markers(len(lines)), strict=True):
        x = _on_axis(line, zero)
        ax.fill_between(x, line.low, line.high, color=colour, alpha=0.16, lw=0, zorder=2)
        ax.plot(x, line.f, color=colour, marker=marker, ms=4.6, lw=1.9, zorder=3)
        clipped |= _mark_clipped(ax, x, line.f, colour, bottom, top)
    ax.set_ylim(bottom, top)
    beyond = " (triangles: f outside of the panel)" if clipped else ""
    _axis(ax, zero, f"circuit size, share of edges{beyond}")


def _markers(count: int) -> list[str]:
    return [MARKERS[number % len(MARKERS)] for number in range(count)]


def _on_axis(line: Curve, zero: float) -> np.ndarray:
    """Circuit sizes, with empty circuits at the place of zero whatever was asked for."""
    return np.where((line.kept > 0) & (line.x > 0), line.x, zero)


def _distinct_controls(records: Sequence[RecordLike]) -> Controls:
    """The random rankings of every record by kind, those that records share only once."""
    kinds: dict[str, dict[bytes, list[Curve]]] = {}
    for record in records:
        for kind in control_kinds(record):
            if lines := list(random_curves(record, kind).values()):
                # Chunks of another size may change last bits.
                drawn = [np.array((line.x, line.f), dtype=np.float32) for line in lines]
                key = b"".join(array.tobytes() for array in drawn)
                kinds.setdefault(kind, {}).setdefault(key, lines)
    return {kind: list(sets.values()) for kind, sets in kinds.items()}


def _control(ax: Axes, seeds: list[Curve], zero: float, dashes: Dashes) -> None:
    # Seeds keep slightly different numbers of edges: their mean f stands at their mean size.
    x = np.mean([_on_axis(line, zero) for line in seeds], axis=0)
    f = np.array([line.f for line in seeds])
    ax.fill_between(x, f.min(axis=0), f.max(axis=0), color=GREY, alpha=0.22, lw=0, zorder=1)
    ax.plot(x, f.mean(axis=0), color=GREY, ls=dashes, lw=1.6, zorder=2)


def _limits(lines: Sequence[Curve]) -> tuple[float, float]:
    """y limits that hold 0, 1 and all values, but not those of a method that explodes."""
    f = np.concatenate([line.f for line in lines] or [np.empty(0)])
    f = f[np.isfinite(f)]
    # Three times what most values reach.
    cap = max(3.0, 3 * float(np.quantile(np.abs(f), 0.75))) if len(f) else 3.0
    bands = np.concatenate([f, *(line.low for line in lines), *(line.high for line in lines)])
    bands = np.clip(bands[np.isfinite(bands)], -cap, cap)
    low, high = min(0.0, *bands, 0.0), max(1.0, *bands, 1.0)
    pad = 0.06 * (high - low)
    return low - pad, high + pad


def _mark_clipped(
    ax: Axes, x: np.ndarray, f: np.ndarray, colour: str, bottom: float, top: float
) -> bool:
    """A triangle and the value at the edge of the panel, for points beyond it."""
    outside = (f > top) | (f < bottom)
    for place, value in zip(x[outside], f[outside], strict=True):
        edge, way, marker = (top, -1, "^") if value > top else (bottom, 1, "v")
        ax.plot([place], [edge], marker=marker, color=colour, ms=9, clip_on=False, zorder=5)
        look: dict[str, Any] = {"fontsize": SIZE - 1.5, "color": colour, "va": "center"}
        beside = (8, 9 * way)
        text = f"{value:.3g}"
        ax.annotate(text, (place, edge), beside, textcoords="offset points", zorder=5, **look)
    return bool(outside.any())


def _axis(ax: Axes, zero: float, label: str) -> None:
    """A log axis in per cent, with a break between the place of the empty circuit and the sizes."""
    ax.set_xscale("log")
    ax.set_xlim(zero / 1.5, 1.25)
    first = math.floor(math.log10(zero * 2.5) + 1e-9)
    ticks = [10.0**power for power in range(first, 1) if 10.0**power >= zero * 2]
    ax.set_xticks([zero, *ticks])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < zero * 1.01 else share(x)))
    ax.xaxis.set_minor_locator(NullLocator())
    look: dict[str, Any] = {"ms": 9, "color": INK, "mew": 1.1, "clip_on": False, "zorder": 6}
    stroke, along = [(-1, -1.6), (1, 1.6)], ax.get_xaxis_transform()
    for place in (zero * 1.6, zero * 1.72):
        ax.plot([place], [0], marker=stroke, transform=along, **look)
    ax.set_xlabel(label, color=INK)
    plain_axes(ax)
    ax.grid(axis="y", color=INK, alpha=0.1, lw=0.7)


def plain_axes(ax: Axes) -> None:
    """No ground of its own, two spines, all in the colour of the page."""
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK)


def _legend(figure: Figure, records: Sequence[RecordLike], controls: Controls) -> None:
    names, drawn, marks = short_labels(records), colours(records), _markers(len(records))
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, marker=marker, ms=5, lw=1.9)
        for colour, marker in zip(drawn, marks, strict=True)
    ]
    for kind in controls:
        handles.append(Line2D([], [], color=GREY, ls=DASHES.get(kind, SOLID), lw=1.6))
        names.append(f"{control_name(kind)} (mean and range of seeds)")
    handles += [
        Line2D([], [], color=INK, lw=0.9, alpha=0.55),
        Line2D([], [], color=INK, lw=0.9, ls=":", alpha=0.55),
    ]
    names += ["full circuit, f = 1", "empty circuit, f = 0"]
    level = {m.level for record in records for m in record.measures}
    if len(level) == 1:
        handles.append(Patch(color=INK, alpha=0.16, lw=0))
        names.append(f"{share(level.pop())} interval over examples")
    # A name that begins with an underscore would be left out.
    labels = [f" {name}" for name in names]
    width = sum(max(map(len, column), default=0) for column in np.array_split(labels, 3))
    look: dict[str, Any] = {"frameon": False, "fontsize": SIZE - 0.5, "ncols": 3}
    if width > LEGEND_LETTERS:
        look["ncols"] = 2
        more_rows = math.ceil(len(labels) / 2) - math.ceil(len(labels) / 3)
        figure.set_figheight(figure.get_figheight() + 0.24 * more_rows)
    legend = figure.legend(handles, labels, loc="outside lower center", **look)
    for text in legend.get_texts():
        _literal(text)


def _literal(text: Text) -> None:
    """Show a name as it is: dollar signs are no formula."""
    text.set_parse_math(False)
    text.set_color(INK)


def draw_ranking(
    records: Sequence[RecordLike], by: Literal["value", "magnitude"], ax: Axes
) -> Figure:
    """One ranking's faithfulness on axes that are given; the figure that they belong to."""
    with rc_context(SETTINGS):
        controls = _distinct_controls(records)
        _panel(ax, records, by, controls, _zero_place(records, controls))
        ax.set_title(dict(PANELS)[by], fontsize=SIZE + 1, loc="left", color=INK)
        ax.set_ylabel("faithfulness f", color=INK)
    return figure_of(ax)


# Scores


def draw_scores(values: np.ndarray, x: str, y: str, ax: Axes | None = None) -> Figure:
    """A histogram of scores, counts on a log axis."""
    with rc_context(SETTINGS):
        if ax is None:
            ax = Picture(figsize=(6.0, 3.6), layout="constrained").subplots()
        ax.hist(values, bins=BINS, color=PALETTE[0], alpha=0.75)
        ax.set_yscale("log")
        ax.set_xlabel(x, color=INK)
        ax.set_ylabel(y, color=INK)
        plain_axes(ax)
    return figure_of(ax)


# Divergences


def draw_divergences(
    values: Mapping[str, np.ndarray], empty: np.ndarray, ax: Axes | None = None
) -> Figure:
    """Shares of pairs whose divergence is at least so large: a line a circuit, the empty one grey.

    Both axes are logarithmic: the right end of a line is the worst pair. NaN is no pair.
    """
    with rc_context(SETTINGS):
        if ax is None:
            ax = Picture(figsize=(6.6, 4.0), layout="constrained").subplots()
        lines = [*zip(values, cycle(PALETTE), cycle(("-",)), strict=False), ("", GREY, "--")]
        least, most = math.inf, 0.0
        for (name, colour, style), points in zip(lines, (*values.values(), empty), strict=True):
            there = np.sort(points[~np.isnan(points)].astype(float))
            shares = 1 - np.arange(len(there)) / max(len(there), 1)
            x, y = np.insert(there, 0, 0.0), np.insert(shares, 0, 1.0)
            ax.step(x, y, where="pre", color=colour, ls=style, lw=1.8)
            ax.lines[-1].set_label(f" {name or 'empty circuit'}")
            if len(there):
                ax.plot(there[-1:], shares[-1:], "o", color=colour, ms=5, label="_worst")
                least, most = min(least, float(shares[-1])), max(most, float(there[-1]))
        ax.set_xscale("symlog", linthresh=1e-4)
        ax.set_yscale("log")
        ax.set_xlim(0, max(1.3 * most, 1e-3))
        ax.set_ylim(0.6 * min(least, 0.5), 1.3)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: share(y)))
        ax.set_xlabel("KL of the model from the circuit, nats", color=INK)
        ax.set_ylabel("share of pairs at least so far", color=INK)
        plain_axes(ax)
        ax.grid(color=INK, alpha=0.1, lw=0.7)
        legend = ax.legend(frameon=False, fontsize=SIZE - 1.5, loc="lower left")
        for text in legend.get_texts():
            _literal(text)
    return figure_of(ax)


def draw_distribution(record: RecordLike, colour: str = PALETTE[0]) -> Figure:
    """Histograms of an adversarial record, linear and logarithmic; the empty circuit's in grey."""
    with rc_context(SETTINGS):
        figure = Picture(figsize=(9.2, 3.5), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, name in zip(axes, ("own", "all"), strict=True):
            _histogram(ax, record.table("histogram").where(range=name), colour)
        _logarithmic(axes[1], record)
        axes[0].set_ylabel(f"pairs a bin, of {record.n:,}", color=INK)
        # The empty circuit may be far outside of the circuit's own range, or pile up in it.
        own = record.table("histogram").where(range="own")
        axes[0].set_ylim(0, 1.25 * max(1, own.numbers("circuit").max()))
        rows = record.table("summary").where(of="result").rows()
        values = {row["statistic"]: row["value"] for row in rows}
        _mark(axes[0], [(name, float(values[name])) for name in MARKED if name in values])
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": 3, "frameon": False}
        legend = axes[0].get_legend_handles_labels()
        figure.legend(*legend, **place, labelcolor=INK, fontsize=SIZE - 1)
        return figure


def draw_histograms(records: Sequence[RecordLike]) -> Figure:
    """All divergences of adversarial records, one panel below the other."""
    with rc_context(SETTINGS):
        figure = Picture(figsize=(6.6, 0.4 + 2.6 * len(records)), layout="constrained")
        axes = figure.subplots(len(records), 1, sharex=True, squeeze=False).ravel()
        for ax, record, colour in zip(axes, records, cycle(PALETTE), strict=False):
            draw_histogram(record, ax, colour)
        return figure


def draw_histogram(record: RecordLike, ax: Axes, colour: str = PALETTE[0]) -> Figure:
    """All divergences of an adversarial record on axes that are given, counts on a log axis."""
    with rc_context(SETTINGS):
        _histogram(ax, record.table("histogram").where(range="all"), colour)
        _logarithmic(ax, record)
        ax.set_title(record.method.name, fontsize=SIZE, loc="left", color=INK)
        _literal(ax.title)
        ax.set_ylabel(f"pairs a bin, of {record.n:,}", color=INK)
        ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 2)
    return figure_of(ax)


def _logarithmic(ax: Axes, record: RecordLike) -> None:
    every = record.table("histogram").where(range="all")
    few = max(every.numbers(name).max() for name in ("circuit", "empty")) < 50
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(bottom=0.7)


def _histogram(ax: Axes, bins: Any, colour: str) -> None:
    edges = np.append(bins.numbers("low"), bins.numbers("high")[-1])
    circuit, empty, paths = (bins.numbers(name) for name in ("circuit", "empty", "random-paths"))
    ax.stairs(circuit, edges, fill=True, color=colour, alpha=0.75, label="circuit")
    ax.stairs(empty, edges, color=GREY, lw=1.4, label="empty circuit")
    label = "random paths, scaled to as many pairs"
    ax.stairs(paths, edges, color=GREY, lw=1.1, ls=(0, (2, 1.5)), label=label)
    ax.set_xlim(0, edges[-1])
    ax.set_xlabel("KL, nats", color=INK)
    plain_axes(ax)


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


# Methods beside each other


def draw_differences(
    area: str,
    names: Sequence[str],
    values: np.ndarray,
    better: np.ndarray,
    ax: Axes | None = None,
) -> Figure:
    """Differences between methods, row less column: blue is better, orange worse.

    Args:
        better: true where the row's method is better, and this is resolved.
    """
    n, way = len(names), 1 if area == "cpr" else -1
    with rc_context(SETTINGS):
        if ax is None:
            size = 2.2 + 0.62 * n
            ax = Picture(figsize=(size + 0.8, size), layout="constrained").subplots()
        resolved = better | better.T
        top = max((abs(float(x)) for x in values[~np.isnan(values)]), default=0.0) or 1.0
        shades = np.where(resolved, way * values / top, 0.0)
        colours = LinearSegmentedColormap.from_list("better", (PALETTE[1], "#ffffff", PALETTE[0]))
        ax.imshow(shades, cmap=colours, vmin=-1.6, vmax=1.6, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if row == column or math.isnan(value):
                continue
            text = f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
            text = text if resolved[row, column] else f"({text})"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SIZE - 2.5}
            # On a cell that is always light, whatever the page is.
            ax.text(column, row, text, color="#1a1a1a", **look)
        labels = [f" {shortened(name, 24)}" for name in names]
        ax.set_xticks(range(n), labels, rotation=40, ha="right")
        ax.set_yticks(range(n), labels)
        for tick in (*ax.get_xticklabels(), *ax.get_yticklabels()):
            _literal(tick)
        plain_axes(ax)
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        title = f"{area.upper()}: row less column; in brackets: not resolved"
        ax.set_title(title, fontsize=SIZE, loc="left", color=INK)
    return figure_of(ax)


def figure_of(ax: Axes) -> Figure:
    """The figure that axes belong to."""
    figure = ax.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    return figure


# Areas


def draw_areas(records: Sequence[RecordLike]) -> Figure:
    """Return the figure of the areas of methods and random rankings, to save or change."""
    with rc_context(SETTINGS):
        shared = {
            (kind, repr([record.measure(name, f"control:{kind}") for name in AREAS])): record
            for record in records
            for kind in control_kinds(record)
        }
        controls = [(kind, record) for (kind, _), record in shared.items()]
        n_rows = len(records) + len(controls)
        figure = Picture(figsize=(9.2, 1.15 + 0.34 * max(n_rows, 1)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, name in zip(axes, AREAS, strict=True):
            ideal, note = (1.0, "higher") if name == "cpr" else (0.0, "lower")
            _forest(ax, records, controls, name)
            ax.axvline(ideal, color=INK, lw=0.9, alpha=0.55, zorder=1)
            about = f"{note} is better; line: f = 1 at every size"
            ax.set_xlabel(f"{name.upper()} ({about})", color=INK)
        names = [*short_labels(records), *(control_name(kind) for kind, _ in controls)]
        axes[0].set_yticks(range(n_rows), names)
        for tick in axes[0].get_yticklabels():
            _literal(tick)
        axes[0].set_ylim(n_rows - 0.4, -0.6)
        return figure


def _forest(
    ax: Axes,
    records: Sequence[RecordLike],
    controls: Sequence[tuple[str, RecordLike]],
    name: Literal["cpr", "cmd"],
) -> None:
    looks = zip(records, colours(records), _markers(len(records)), strict=True)
    for y, (record, colour, marker) in enumerate(looks):
        m = record.measure(name)
        if m is None or math.isnan(m.value):
            look: dict[str, Any] = {"color": INK, "alpha": 0.7, "va": "center"}
            place = ("axes fraction", "data")
            ax.annotate("undefined", (0.02, y), xycoords=place, fontsize=SIZE - 1, **look)
            continue
        ends = [m.low, m.high]
        ax.plot(ends, [y, y], color=colour, lw=2.2, solid_capstyle="butt", zorder=2)
        ax.plot([m.value], [y], color=colour, marker=marker, ms=7, zorder=3)
    for y, (kind, record) in enumerate(controls, start=len(records)):
        mean = record.measure(name, f"control:{kind}")
        if mean is None:
            continue
        ax.plot([mean.low, mean.high], [y, y], color=GREY, lw=2.2, zorder=2)
        ax.plot([mean.value], [y], color=GREY, marker="o", ms=7, zorder=3)
        ax.axvline(mean.value, color=GREY, lw=1, ls=DASHES.get(kind, SOLID), zorder=1)
    plain_axes(ax)
    ax.grid(axis="x", color=INK, alpha=0.1, lw=0.7)


def draw_points(
    points: Mapping[str, Sequence[Estimate]],
    names: Sequence[str],
    title: str,
    *,
    ax: Axes | None = None,
) -> Figure:
    """Estimates of named things with intervals, the first at the top; a colour for each label."""
    with rc_context(SETTINGS):
        apart = min(0.18, 0.8 / len(points))
        size = (7.0, 1.3 + max(0.34, 0.15 * len(points)) * max(3, len(names)))
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        for number, (label, estimates) in enumerate(points.items()):
            y = np.arange(len(names)) + apart * (number - (len(points) - 1) / 2)
            colour = PALETTE[number % len(PALETTE)]
            x = np.array([estimate.value for estimate in estimates])
            ax.hlines(
                y, [e.low for e in estimates], [e.high for e in estimates], colors=colour, lw=1.6
            )
            ax.plot(x, y, "o", color=colour, markersize=5, label=label)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlabel(title, color=INK)
        for text in ax.get_yticklabels():
            text.set_color(INK)
            text.set_parse_math(False)
        ax.spines[["top", "right"]].set_visible(False)
        if len(points) > 1:
            beside: dict[str, Any] = {}
            if len(points) > 3:
                beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 1, **beside)
        return figure


# Files


def svg(figure: Figure | Callable[[], Figure]) -> str:
    """The figure, or what makes it, as an SVG element that can stand in a page beside others, with
    ids of its own.
    """
    figure = figure() if callable(figure) else figure
    buffer = io.StringIO()
    with rc_context({**SETTINGS, "svg.hashsalt": "mechassay"}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'(\bid="|\burl\(#|href="#)', rf"\g<1>{prefix}", text)
    return text.replace(INK, "currentColor")
