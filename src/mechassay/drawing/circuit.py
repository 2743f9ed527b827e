"""A circuit as a layered graph, in one SVG string that needs nothing else.

The computation runs upwards, from `input` to `logits`; only layers with nodes in the circuit are
drawn. A rounded box is an attention head, a hexagon an MLP. A line is an edge: its colour is the
sign of its score (blue helps: the objective drops when the edge is ablated; orange hurts), its
width grows with the square root of |score|, dashed grey means not scored. Edges whose |score| is a
small share of the largest are left out and counted: most are rounding. A line enters a head at the
mark q, k or v of the input it feeds. Pointing at a line or a node shows its name and numbers. A
page may set the colours `--mechassay-helps` and `--mechassay-hurts`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from mechassay.drawing.canvas import (
    Drawable,
    Drawing,
    Legend,
    Line,
    Paint,
    Sample,
    check_drawable,
    draw,
    line_width,
    nodes_between,
)
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.graph import Graph
from mechassay.text import share

HELPS, HURTS, UNKNOWN = "#0072b2", "#d55e00", "#808080"
PAINTS = {
    "helps": Paint("helps", HELPS),
    "hurts": Paint("hurts", HURTS),
    "unknown": Paint("unknown", UNKNOWN, "5 4"),
}
LEAST_SHARE = 0.01
"""Edges are left out whose |score| is a smaller share of the largest."""
STYLE = f"""\
.mechassay-circuit .helps {{ stroke: var(--mechassay-helps, {HELPS}); }}
.mechassay-circuit .hurts {{ stroke: var(--mechassay-hurts, {HURTS}); }}
"""


class DrawnScores(Protocol):
    """Scores of the edges of a graph."""

    @property
    def graph(self) -> Graph: ...
    @property
    def values(self) -> Float[Tensor, "writers readers"]: ...


def score_text(score: float) -> str:
    """A score for people."""
    return "not scored" if math.isnan(score) else format(score, "+.3g")


def draw_circuit(
    scores: DrawnScores | None, circuit: Drawable, *, title: str = "", least: float = LEAST_SHARE
) -> Drawing:
    """A circuit as a self-contained SVG; see the module's description for how to read it.

    Args:
        scores: None if no edge has one.
        least: edges whose |score| is a smaller share of the largest are left out; 0 draws all.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the scores.
        BadUsage: more edges than anybody could see apart (1,000); a share outside of 0 to 1.
    """
    check_share(least)
    graph = circuit.graph
    if scores is not None and scores.graph != graph:
        raise GraphMismatch(
            f"The circuit belongs to {graph}; the scores were made on {scores.graph}."
        )
    check_drawable(circuit)
    score_of = {
        (u, v): math.nan if scores is None else float(scores.values[u, v])
        for u, v in circuit.edges.nonzero().tolist()
    }
    scored = [abs(score) for score in score_of.values() if not math.isnan(score)]
    largest = max(scored, default=0.0)
    score_of = {edge: score for edge, score in score_of.items() if not abs(score) < least * largest}
    by_name = {graph.edge_name(*edge): score for edge, score in score_of.items()}

    def width(score: float) -> float:
        return line_width(abs(score) / largest if largest else 0.0)

    def total(lines: list[Line]) -> str:
        known = [by_name[line.name] for line in lines if not math.isnan(by_name[line.name])]
        return f"(sum {math.fsum(known):+.3g})"

    def look(name: str, into: list[Line], out: list[Line]) -> tuple[str, None]:
        return f"{name}: {len(into)} in {total(into)}, {len(out)} out {total(out)}", None

    lines = [
        Line.of(graph, *edge, width(score), _paint(score), score_text(score))
        for edge, score in score_of.items()
    ]
    nodes, kept = nodes_between(graph, lines, look), len(circuit.pruned())
    paths = (
        f"{'all' if kept == len(circuit) else kept} of them on a path from input to logits"
        if lines
        else "an empty circuit"
    )
    left_out = _left_out(len(circuit) - len(lines), least)
    sizes = [largest, largest * 0.1] if largest else []
    legend = [
        Sample(PAINTS["helps"], "helps (score > 0)"),
        Sample(PAINTS["hurts"], "hurts (score < 0)"),
        *(Sample(Paint("", "currentColor"), f"|score| {size:.2g}", width(size)) for size in sizes),
    ]
    drawing = draw(
        lines,
        nodes,
        Legend([legend], left_out, STYLE),
        lambda name, ends: f"{name}: {len(ends)} edges {total(ends)}",
        title,
        f"{len(circuit)} edges, {paths}; {len(lines)} are drawn, between input, logits, and"
        f" {len(nodes)} head{'s and MLPs' if len(nodes) != 1 else ' or MLP'}. {left_out}".strip(),
    )
    known = [edge for edge in by_name.items() if not math.isnan(edge[1])]
    return replace(drawing, strongest=tuple(sorted(known, key=lambda edge: -abs(edge[1]))))


def check_share(least: float) -> None:
    """Refuse what is no share.

    Raises:
        BadUsage: outside of 0 to 1.
    """
    if not 0 <= least <= 1:
        raise BadUsage(
            f"The least |score| drawn is a share of the largest, from 0 to 1; got {least:g}."
        )


def _left_out(n: int, least: float) -> str:
    """How many edges are not drawn; "" if all are."""
    if not n:
        return ""
    return (
        f"{n:,} edge{'s' * (n != 1)} with |score| below {share(least)} of the largest: not drawn."
    )


def _paint(score: float) -> Paint:
    return PAINTS["unknown" if math.isnan(score) else "hurts" if score < 0 else "helps"]
