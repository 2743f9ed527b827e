"""Figures over models and checkpoints: accuracies, odds by training step, maps side by side.

Steps stand on a logarithmic axis, on which step 0 has a place left of the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from mechassay.figures import GREY, INK, SETTINGS, SIZE, Picture
from mechassay.interventions.heat_map import as_grid, look_of_line
from mechassay.stats.intervals import Estimate
from mechassay.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Scale = Literal["training step", "parameters"]
Points = Sequence[tuple[float, Estimate]]
ACROSS = 4
"""Panels beside each other at most."""
TICKS = 8
"""Ticks of an axis at most."""
APART = 0.055
"""Nearest that two ticks with names stand, as a share of the axis."""


@dataclass(frozen=True)
class OddsMap:
    """Mean odds of cells: one panel of `draw_maps`; NaN is grey."""

    title: str
    layers: Sequence[int]
    regions: Sequence[str]
    values: Sequence[float]


def draw_by_scale(
    lines: Mapping[str, Points], title: str, axis: Scale, *, ax: Axes | None = None
) -> Figure:
    """Draw estimates with intervals over steps or sizes, a line for each name.

    Args:
        title: of the vertical axis.
    """
    with rc_context(SETTINGS):
        figure: Any = Picture(figsize=(7.4, 4.0), layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        for number, (name, points) in enumerate(lines.items()):
            _line(ax, points, look_of_line(number), name)
        _scale(ax, [x for points in lines.values() for x, _ in points], axis)
        ax.set_ylabel(title, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.axhline(0, color=GREY, lw=0.8, ls=":", zorder=1)
        if len(lines) > 1:
            where: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
            ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 1, **where)
        return figure


def draw_accuracies_by_scale(
    panels: Mapping[str, Mapping[str, Points]], axis: Scale, *, ax: Axes | None = None
) -> Figure:
    """Draw accuracies over steps or sizes: a panel each family, a line each task.

    Guessing (50 %) is dashed. On `ax` if given, which then has the first panel alone.
    """
    with rc_context(SETTINGS):
        n = len(panels) if ax is None else 1
        across = min(3, n)
        rows = -(-n // across)
        size = (3.2 * across + 0.6, 2.9 * rows + 0.3)
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        places: Any = (
            figure.subplots(rows, across, squeeze=False, sharey=True).ravel()
            if ax is None
            else np.array([ax])
        )
        every = [x for tasks in panels.values() for points in tasks.values() for x, _ in points]
        for place, (family, tasks) in zip(places, panels.items(), strict=False):
            for number, (task, points) in enumerate(tasks.items()):
                _line(place, points, look_of_line(number), shortened(task, 26))
            place.axhline(0.5, color=GREY, lw=1, ls="--", zorder=1)
            place.set_ylim(-0.03, 1.03)
            _scale(place, every, axis)
            place.set_title(family, fontsize=SIZE, loc="left", color=INK)
            place.spines[["top", "right"]].set_visible(False)
            place.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 4, loc="lower right")
        for place in places[::across]:
            place.set_ylabel("accuracy", color=INK)
        for place in places[n:]:
            place.set_visible(False)
        return figure


def draw_maps(maps: Sequence[OddsMap], top: float) -> Figure:
    """Draw heat maps of layers and regions side by side, on one scale of -top to top nats."""
    with rc_context(SETTINGS):
        rows = -(-len(maps) // ACROSS)
        across = -(-len(maps) // rows)
        columns = max(len(set(each.regions)) for each in maps)
        height = max(len(set(each.layers)) for each in maps)
        wide = min(max(1.5, 0.2 * columns + 0.3), 2.6)
        size = (wide * across + 1.6, rows * (0.6 + max(1.2, 0.11 * height)) + 1.1)
        figure = Picture(figsize=size, layout="constrained")
        places: Any = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
        cmap = colormaps["RdBu_r"].with_extremes(bad="#d9d9d9")
        image: Any = None
        for place, each in zip(places.ravel(), maps, strict=False):
            cells, layers, regions = as_grid(each.layers, each.regions, each.values)
            image = place.imshow(
                np.ma.masked_invalid(cells),
                cmap=cmap,
                vmin=-top,
                vmax=top,
                aspect="auto",
                origin="lower",
                interpolation="nearest",
            )
            place.set_title(each.title, fontsize=SIZE - 1.5, loc="left", color=INK)
            place.title.set_parse_math(False)
            told = [f" {shortened(name, 18)}" for name in regions]
            look: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
            place.set_xticks(range(len(regions)), told, fontsize=SIZE - 3, **look)
            step = max(1, -(-len(layers) // 8))
            shown = range(0, len(layers), step)
            place.set_yticks(shown, [str(layers[i]) for i in shown], fontsize=SIZE - 3)
            place.spines[:].set_color(GREY)
            place.tick_params(length=2, colors=GREY, labelcolor=INK)
            for text in place.get_xticklabels():
                text.set_parse_math(False)
        for row in places:
            row[0].set_ylabel("layer", color=INK)
        for number in range(len(maps), places.size):
            places.ravel()[number].set_visible(False)
            # The panel above has no neighbour below that carries the names of regions.
            places.ravel()[number - across].tick_params(labelbottom=True)
        bar = figure.colorbar(image, ax=places.ravel().tolist(), shrink=0.7, pad=0.02, aspect=24)
        bar.set_label("log odds-ratio, nats", color=INK)
        bar.ax.tick_params(colors=INK)
        return figure


def _line(ax: Axes, points: Points, look: Mapping[str, Any], name: str) -> None:
    some = sorted(points, key=lambda point: point[0])
    x = [place for place, _ in some]
    values = np.array([[e.value, e.low, e.high] for _, e in some]).T
    ax.plot(x, values[0], **look, label=f" {name}")
    ax.fill_between(x, values[1], values[2], color=look["color"], alpha=0.15, linewidth=0)


def _scale(ax: Axes, every: Sequence[float], axis: Scale) -> None:
    """A logarithmic axis with a place for step 0, and names of what there is."""
    values = sorted(set(every))
    positive = [x for x in values if x > 0] or [1.0]
    if values[0] > 0:
        ax.set_xscale("log")
        ax.set_xlim(positive[0] / 1.3, positive[-1] * 1.3)
    else:
        # From 0 to the first step is as far as a factor of ten; at least as far as to the next.
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.6)
        ax.set_xlim(-0.12 * positive[0], positive[-1] * 1.3)
    ax.xaxis.set_major_locator(FixedLocator(_apart(ax, values)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: brief_number(float(x))))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(axis, color=INK)
    ax.tick_params(labelsize=SIZE - 2)


def _apart(ax: Axes, values: Sequence[float]) -> list[float]:
    """The values whose names have room beside each other: the last one, and those before it."""
    transform = ax.get_xaxis_transform() + ax.transAxes.inverted()
    kept: list[float] = []
    places: list[float] = []
    for x in reversed(values):
        place = float(transform.transform((x, 0.0))[0])
        if not places or places[-1] - place > max(APART, 1 / (2 * TICKS)):
            kept.append(x)
            places.append(place)
    return kept[::-1]


def brief_number(x: float) -> str:
    """A step or a number of parameters in few letters: 512, 10k, 1.4B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}{letter}"
    return f"{x:g}"
