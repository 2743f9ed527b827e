"""Figures of log odds-ratios: layers from the bottom up, regions along the axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from mechassay.interventions.heat_map import as_grid, draw_cells, draw_lines
from mechassay.stats.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    cells, rows, columns = as_grid(layers, regions, values)
    if top is None:
        top = max(1e-9, float(np.nanmax(np.abs(cells), initial=0.0)))
    return draw_cells(
        cells,
        rows,
        columns,
        axis="region",
        bar="log odds-ratio, nats",
        top=top,
        rotation=45,
        title=title,
        ax=ax,
    )


def draw_layers(
    lines: Mapping[str, Sequence[tuple[int, float, float, float]]], *, ax: Axes | None = None
) -> Figure:
    """Draw odds against layers, a line each method: (layer, mean, low, high) of every point."""
    points = {
        name: [(layer, Estimate(value, low, high)) for layer, value, low, high in line]
        for name, line in lines.items()
    }
    return draw_lines(points, "log odds-ratio, nats", ax=ax)
