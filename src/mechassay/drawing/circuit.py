"""A circuit as a layered graph, in one SVG string that needs nothing else.

The computation runs upwards, from `input` to `logits`; only layers with nodes in the circuit are
drawn. A rounded box is an attention head, a hexagon an MLP. A line is an edge: its colour is the
sign of its score (blue helps: the objective drops when the edge is ablated; orange hurts), its
width grows with the square root of |score|, dashed grey means not scored. It enters a head at the
mark q, k or v of the input it feeds. Pointing at a line or a node shows its name and numbers. A
page may set the colours `--mechassay-helps` and `--mechassay-hurts`.
"""

from __future__ import annotations

import math
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
from mechassay.errors import GraphMismatch
from mechassay.graph import Graph

HELPS, HURTS, UNKNOWN = "#0072b2", "#d55e00", "#808080"
PAINTS = {
    "helps": Paint("helps", HELPS),
    "hurts": Paint("hurts", HURTS),
    "unknown": Paint("unknown", UNKNOWN, "5 4"),
}
STYLE = f"""\
.mechassay-circuit .helps {{ stroke: var(--mechassay-helps, {HELPS}); }}
.mechassay-circuit .hurts {{ stroke: var(--mechassay-hurts, {HURTS}); }}
"""


class Scored(Protocol):
    """Scores of the edges of a graph."""

    @property
    def graph(self) -> Graph: ...
    @property
    def values(self) -> Float[Tensor, "writers readers"]: ...


def score_text(score: float) -> str:
    """A score for people."""
    return "not scored" if math.isnan(score) else format(score, "+.3g")


def draw_circuit(scores: Scored | None, circuit: Drawable, *, title: str = "") -> Drawing:
    """A circuit as a self-contained SVG; see the module's description for how to read it.

    Args:
        scores: None if no edge has one.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the scores.
        BadUsage: more edges than anybody could see apart (1,000).
    """
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
    by_name = {graph.edge_name(*edge): score for edge, score in score_of.items()}
    scored = [abs(score) for score in score_of.values() if not math.isnan(score)]
    largest = max(scored, default=0.0)

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
        f"{'all' if kept == len(lines) else kept} of them on a path from input to logits"
        if lines
        else "an empty circuit"
    )
    sizes = [largest, largest * 0.1] if largest else []
    legend = [
        Sample(PAINTS["helps"], "helps (score > 0)"),
        Sample(PAINTS["hurts"], "hurts (score < 0)"),
        *(Sample(Paint("", "currentColor"), f"|score| {size:.2g}", width(size)) for size in sizes),
    ]
    return draw(
        lines,
        nodes,
        Legend([legend], style=STYLE),
        lambda name, ends: f"{name}: {len(ends)} edges {total(ends)}",
        title,
        f"{len(lines)} edges between input, logits, and {len(nodes)} heads and MLPs; {paths}.",
    )


def _paint(score: float) -> Paint:
    return PAINTS["unknown" if math.isnan(score) else "hurts" if score < 0 else "helps"]
