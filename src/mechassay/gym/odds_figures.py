"""Figures of log odds-ratios: layers from the bottom up, regions along the axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure

from mechassay.figures import GREY, INK, SETTINGS, SIZE, Picture
from mechassay.interventions.heat_map import draw_lines
from mechassay.stats.intervals import Estimate
from mechassay.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WRITTEN = 200
"""Cells up to which a map has its numbers written in."""
LONGEST = 18


def draw_odds(
    layers: Sequence[int],
    regions: Sequence[str],
    values: Sequence[float],
    *,
    title: str = "",
    top: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw mean log odds-ratios by layer and region, in nats; red towards the label.

    Args:
        layers, regions, values: of each cell; NaN is grey.
        top: the end of the colour scale, to compare maps; that of these values by default.
    """
    rows, columns = sorted(set(layers)), list(dict.fromkeys(regions))
    cells = np.full((len(rows), len(columns)), np.nan)
    for layer, region, value in zip(layers, regions, values, strict=True):
        cells[rows.index(layer), columns.index(region)] = value
    if top is None:
        top = max(1e-9, float(np.nanmax(np.abs(cells), initial=0.0)))
    with rc_context(SETTINGS):
        size = (min(11.0, 2.4 + 0.6 * max(len(columns), 3)), 1.8 + 0.26 * len(rows))
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        cmap = colormaps["RdBu_r"].with_extremes(bad="#d9d9d9")
        image = ax.imshow(
            np.ma.masked_invalid(cells),
            cmap=cmap,
            vmin=-top,
            vmax=top,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        names = [shortened(name, LONGEST) for name in columns]
        ax.set_xticks(range(len(columns)), names, rotation=45, ha="right")
        ax.set_yticks(range(len(rows)), ["embed" if x < 0 else str(x) for x in rows])
        ax.set_xlabel("region", color=INK)
        ax.set_ylabel("layer", color=INK)
        if title:
            ax.set_title(title, fontsize=SIZE, loc="left", color=INK)
        if cells.size <= WRITTEN:
            for (row, column), value in np.ndenumerate(cells):
                if np.isfinite(value):
                    colour = "white" if abs(value) > 0.6 * top else "#1f2328"
                    told, small = f"{value:.1f}", SIZE - 2.5
                    ax.text(
                        column, row, told, ha="center", va="center", fontsize=small, color=colour
                    )
        for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
            text.set_color(INK)
            text.set_parse_math(False)
        ax.spines[:].set_color(GREY)
        bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
        bar.set_label("log odds-ratio, nats", color=INK)
        bar.ax.tick_params(colors=INK)
        return figure


def draw_layers(
    lines: Mapping[str, Sequence[tuple[int, float, float, float]]], *, ax: Axes | None = None
) -> Figure:
    """Draw odds against layers, a line each method: (layer, mean, low, high) of every point."""
    points = {
        name: [(layer, Estimate(value, low, high)) for layer, value, low, high in line]
        for name, line in lines.items()
    }
    return draw_lines(points, "log odds-ratio, nats", ax=ax)
