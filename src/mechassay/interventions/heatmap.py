"""Heat maps of sites: layers from the bottom up, tokens, positions or heads along the axis.

The colours of what has a sign are symmetric around 0: white changes nothing. Of a patching full red
carries all of the difference (a share of 1), full blue its opposite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib import colormaps, rc_context
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from mechassay.interventions.site import Site
from mechassay.results.plots import GREY, INK, PALETTE, SETTINGS, SIZE, Picture
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WRITTEN = 260
"""Cells up to which a map has its numbers written in."""
SWEPT = {
    "written": "share of labels written",
    "log_odds": "log-odds towards the label, nats",
    "log_prob": "log p(label), nats",
}
HATCH = "#aab1b9"
STROKES = (("-", "o"), ("--", "s"), (":", "^"))
LONGEST = 22
"""Letters of a token's label."""


def draw_patch_map(
    share: Float[np.ndarray, "layers columns"],
    layers: Sequence[int],
    headings: Sequence[str],
    part: str,
    by_construction: Bool[np.ndarray, "layers columns"],
    *,
    ax: Axes | None = None,
) -> Figure:
    """Draw shares [layers, columns], hatched where they are known by construction; on `ax` if
    given, else in a figure of its own.
    """
    heads = part == "heads"
    return draw_cells(
        share,
        layers,
        headings,
        axis="head" if heads else "token",
        bar="share of the difference"
        + (" (hatched: 0 or 1 by construction)" if by_construction.any() else ""),
        top=max(1.0, float(np.nanmax(np.abs(share), initial=0.0))),
        width=0.34,
        rotation=0 if heads else 60,
        least=0.05,
        hatched=by_construction,
        ax=ax,
    )


def draw_accuracies(
    layers: Sequence[int],
    positions: Sequence[str],
    values: Sequence[float],
    *,
    ax: Axes | None = None,
) -> Figure:
    """Draw shares of 0 to 1 by layer and position.

    Args:
        layers, positions, values: of each cell.
    """
    cells, rows, columns = as_grid(layers, positions, values)
    return draw_cells(
        cells,
        rows,
        columns,
        axis="position",
        bar="accuracy",
        top=1.0,
        signed=False,
        decimals=2,
        width=0.75,
        ax=ax,
    )


def as_grid(
    layers: Sequence[int], names: Sequence[str], values: Sequence[float]
) -> tuple[Float[np.ndarray, "rows columns"], list[int], list[str]]:
    """Cells as an array of layers and names, and these; NaN where there is no cell."""
    rows, columns = sorted(set(layers)), list(dict.fromkeys(names))
    cells = np.full((len(rows), len(columns)), np.nan)
    for layer, name, value in zip(layers, names, values, strict=True):
        cells[rows.index(layer), columns.index(name)] = value
    return cells, rows, columns


def draw_cells(
    cells: Float[np.ndarray, "layers columns"],
    layers: Sequence[int],
    headings: Sequence[str],
    *,
    axis: str,
    bar: str,
    top: float,
    signed: bool = True,
    decimals: int = 1,
    width: float = 0.6,
    rotation: int = 0,
    least: float = 0.0,
    title: str = "",
    hatched: Bool[np.ndarray, "layers columns"] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw cells [layers, columns], NaN in grey; on `ax` if given, else in a figure of its own.

    Args:
        axis, bar: what columns and colours are.
        top: the end of the colour scale, which begins at -top, or at 0 if not `signed`.
        decimals: of the numbers in cells, where there are not too many.
        width: of a column, in inches.
        rotation: of the headings, in degrees.
        least: numbers below it are not written.
        hatched: cells that were not measured; their numbers are not written.
    """
    n_layers, n_columns = cells.shape
    with rc_context(SETTINGS):
        size = (min(11.0, 2.4 + width * max(n_columns, 5)), 1.8 + 0.25 * n_layers)
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        cmap = colormaps["RdBu_r" if signed else "Blues"].with_extremes(bad="#d9d9d9")
        image = ax.imshow(
            np.ma.masked_invalid(cells),
            cmap=cmap,
            vmin=-top if signed else 0.0,
            vmax=top,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        labels = [_label(text) for text in headings]
        ax.set_xticks(
            range(n_columns), labels, rotation=rotation, ha="right" if rotation else "center"
        )
        step = max(1, -(-n_layers // 32))
        ticks = range(0, n_layers, step)
        ax.set_yticks(ticks, ["embed" if layers[i] < 0 else str(layers[i]) for i in ticks])
        ax.set_xlabel(axis, color=INK)
        ax.set_ylabel("layer", color=INK)
        if title:
            ax.set_title(title, fontsize=SIZE, loc="left", color=INK)
        measured = cells
        if hatched is not None and hatched.any():
            _hatch(ax, hatched)
            measured = np.where(hatched, np.nan, cells)
        if cells.size <= WRITTEN:
            _write(ax, measured, top, decimals, least)
        for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
            text.set_color(INK)
            text.set_parse_math(False)
        ax.spines[:].set_color(GREY)
        colours = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
        colours.set_label(bar, color=INK)
        colours.ax.tick_params(colors=INK)
        return figure


def draw_sweep(
    sites: Sequence[Site], estimates: Sequence[Estimate], of: str, *, ax: Axes | None = None
) -> Figure:
    """Means of sites against layers with intervals, a line for each part, head and position."""
    lines: dict[str, list[tuple[int, Estimate]]] = {}
    for site, estimate in zip(sites, estimates, strict=True):
        heads = f" head {','.join(map(str, site.heads))}" if site.heads else ""
        lines.setdefault(f"{site.part}{heads} @{site.position}", []).append((site.layer, estimate))
    return draw_lines(lines, SWEPT[of], ax=ax)


def draw_lines(
    lines: Mapping[str, Sequence[tuple[int, Estimate]]], title: str, *, ax: Axes | None = None
) -> Figure:
    """Estimates against layers with intervals, a line for each label."""
    with rc_context(SETTINGS):
        figure: Any = Picture(figsize=(7.4, 4.0), layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        for number, (label, points) in enumerate(lines.items()):
            layers, look = [layer for layer, _ in points], look_of_line(number)
            values = np.array([[e.value, e.low, e.high] for _, e in points]).T
            ax.plot(layers, values[0], **look, label=label)
            low, high = values[1:]
            ax.fill_between(layers, low, high, color=look["color"], alpha=0.18, linewidth=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer", color=INK)
        ax.set_ylabel(title, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 1)
        return figure


def look_of_line(number: int) -> dict[str, Any]:
    """How a line is drawn; those of one colour have other strokes and markers."""
    turn, place = divmod(number, len(PALETTE))
    style, marker = STROKES[turn % len(STROKES)]
    return {"color": PALETTE[place], "ls": style, "marker": marker, "ms": 3.5, "lw": 1.5}


def _hatch(ax: Axes, cells: Bool[np.ndarray, "layers columns"]) -> None:
    """Hatch cells; those above each other in a column as one box."""
    turns = np.diff(cells.T.astype(int), axis=1, prepend=0, append=0)
    columns, begins = np.nonzero(turns == 1)
    ends = np.nonzero(turns == -1)[1]
    boxes = [
        Rectangle((column - 0.5, begin - 0.5), 1, float(end - begin))
        for column, begin, end in zip(columns, begins, ends, strict=True)
    ]
    looks: dict[str, Any] = {"facecolor": "none", "edgecolor": HATCH, "linewidth": 0}
    ax.add_collection(PatchCollection(boxes, hatch="///", **looks))


def _write(ax: Axes, cells: np.ndarray, top: float, decimals: int, least: float) -> None:
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value) and abs(value) >= least:
            ax.text(
                column,
                row,
                f"{value:.{decimals}f}",
                ha="center",
                va="center",
                fontsize=SIZE - 3,
                color="white" if abs(value) > 0.6 * top else "#1f2328",
            )


def _label(token: str) -> str:
    """A token for an axis: without the spaces around it, its line breaks shown."""
    return shortened(" ".join(token.replace("\n", "⏎").split()), LONGEST) or "␣"
