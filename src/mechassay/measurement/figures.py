"""Figures of metrics of measurement, of what their records have.

EX1    the ROC of logit differences: the model against the model without the circuit
EX11   the output with each head at scales, with its just-noticeable difference
M13    packing of each layer between the boundaries of its regimes
MIB    faithfulness against size, by the published rule and by ours
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.results.plots import (
    GREY,
    INK,
    PALETTE,
    SETTINGS,
    SIZE,
    Picture,
    figure_of,
    plain_axes,
)
from mechassay.results.records import Record

SIZES = (6.4, 3.8)
WEAK_UP_TO, STRONG_FROM = 0.8, 1.2


def draw_measurement(record: Record, ax: Axes | None = None) -> Figure | None:
    """The figure of a metric's record; None if there is none of its kind."""
    draw = _DRAWN.get(record.method.name)
    if draw is None:
        return None
    with rc_context(SETTINGS):
        if ax is None:
            ax = Picture(figsize=SIZES, layout="constrained").subplots()
        if not draw(record, ax):
            return None
        plain_axes(ax)
        if ax.get_legend_handles_labels()[0]:
            place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
            ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 1.5, **place)
        return figure_of(ax)


Rates = Float[np.ndarray, "points two"]


def roc(signal: Float[np.ndarray, "n"], noise: Float[np.ndarray, "m"]) -> Rates:
    """False alarms and hits of every criterion, from the strictest to the loosest."""
    criteria = np.unique(np.concatenate((signal, noise)))[::-1]
    rates = [(0.0, 0.0)]
    rates += [(float((noise >= c).mean()), float((signal >= c).mean())) for c in criteria]
    return np.array(rates)


def _roc(record: Record, ax: Axes) -> bool:
    columns = record.values.columns if record.values else {}
    if "full" not in columns:
        return False
    full = np.array(columns["full"], dtype=float)
    for number, name in enumerate(name for name in columns if name != "full"):
        points = roc(full, np.array(columns[name], dtype=float))
        ax.plot(points[:, 0], points[:, 1], color=PALETTE[number], lw=1.8, label=f" {name}")
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label=" no difference")
    ax.set_xlabel("false alarms: share above a criterion without the circuit", color=INK)
    ax.set_ylabel("hits: share in the model", color=INK)
    ax.set_aspect("equal")
    return True


def _responses(record: Record, ax: Axes) -> bool:
    if not record.has_table("responses") or not len(record.table("responses")):
        return False
    table = record.table("responses").where(level=1.0)
    jnds = {str(row["head"]): row["jnd"] for row in record.table("heads").rows()}
    colours = iter([*PALETTE, *PALETTE])
    for head in dict.fromkeys(map(str, table.columns["head"])):
        own = table.where(head=head)
        scales, outputs = own.numbers("scale"), own.numbers("output")
        order = np.argsort(scales)
        control = own.columns["of"][0] == "control"
        colour = GREY if control else next(colours, INK)
        jnd = jnds.get(head)
        noticed = "no JND" if jnd is None else f"JND {float(jnd):.2f}"
        name = f" {head}{', not in the circuit' if control else ''}: {noticed}"
        ax.plot(scales[order], outputs[order], color=colour, lw=1.5, marker=".", label=name)
        if jnd is not None:
            at = 1 - float(jnd)
            ax.plot([at], [np.interp(at, scales[order], outputs[order])], "o", color=colour, ms=6)
    ax.set_xlabel("scale of the head's output", color=INK)
    ax.set_ylabel("mean logit difference", color=INK)
    return True


def _layers(record: Record, ax: Axes) -> bool:
    if not record.has_table("layers"):
        return False
    table = record.table("layers")
    names, packing = list(map(str, table.columns["layer"])), table.numbers("packing")
    for boundary, words in ((WEAK_UP_TO, "weak below"), (STRONG_FROM, "strong above")):
        ax.axhline(boundary, color=INK, lw=0.9, ls=":", alpha=0.6)
        ax.text(0, boundary, f" {words}", fontsize=SIZE - 2, va="bottom", color=INK)
    ax.plot(range(len(names)), packing, "o-", color=PALETTE[0], lw=1.2, label=" published packing")
    step = max(1, -(-len(names) // 12))
    ax.set_xticks(range(0, len(names), step), names[::step], fontsize=SIZE - 2, rotation=45)
    ax.set_ylabel("effective rank over dimensions", color=INK)
    ax.set_ylim(0, 1.1 * max(STRONG_FROM, float(np.nanmax(packing, initial=0))))
    return True


def _curves(record: Record, ax: Axes) -> bool:
    if not record.has_table("published faithfulness"):
        return False
    lines = {"by the published rule": "published faithfulness", "repaired": "faithfulness"}
    for number, (name, table_name) in enumerate(lines.items()):
        if record.has_table(table_name) and len(record.table(table_name)):
            table = record.table(table_name)
            ax.plot(
                table.numbers("size"),
                table.numbers("f"),
                "o-",
                color=PALETTE[number],
                lw=1.5,
                ms=4,
                label=f" {name}",
            )
    ax.axhline(1, color=GREY, lw=1, ls=":")
    ax.axhline(0, color=GREY, lw=1, ls=":")
    ax.set_xscale("log")
    ax.set_xlabel("share of the edges that are kept", color=INK)
    ax.set_ylabel("faithfulness", color=INK)
    return True


_DRAWN: Mapping[str, Callable[[Record, Axes], bool]] = {
    "EX1": _roc,
    "EX11": _responses,
    "M13": _layers,
    "MIB": _curves,
}

ABOUT = {
    "EX1": (
        "The ROC of logit differences, the model against the model with the circuit ablated and"
        " against other arms: on the diagonal nothing tells them apart."
    ),
    "EX11": (
        "The mean logit difference with each head at scales of its output; the point is its"
        " just-noticeable difference."
    ),
    "M13": "Packing of each layer by the published definition, and the boundaries of its regimes.",
    "MIB": "Faithfulness of circuits of all sizes, by the published rule and by the repaired one.",
}
