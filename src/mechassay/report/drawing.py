"""A circuit as a layered graph, in one SVG string that needs nothing else.

How to read it: the computation runs upwards, from `input` to `logits`; only layers with nodes in
the circuit are drawn, their numbers stand at the left. A rounded box is an attention head, a
hexagon an MLP. A line is an edge: its colour is the sign of its score (blue helps: the objective
drops when the edge is ablated; orange hurts), its width grows with the square root of |score|
(scores are heavy-tailed), dashed grey means not scored. It enters a head at the mark q, k or v
of the input it feeds. Pointing at a line or a node shows its name and numbers.

A page may set the colours `--mechassay-helps` and `--mechassay-hurts`. Where each thing goes is
decided in `canvas` and `layout`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.errors import GraphMismatch
from mechassay.report.canvas import (
    STYLE,
    Canvas,
    Line,
    Node,
    Paint,
    Sample,
    check_drawable,
    line_ends,
    line_width,
    nodes_between,
)

HELPS, HURTS, UNKNOWN = "#0072b2", "#d55e00", "#808080"
PAINTS = {
    "helps": Paint("helps", HELPS),
    "hurts": Paint("hurts", HURTS),
    "unknown": Paint("unknown", UNKNOWN, "5 4"),
}


@dataclass(frozen=True)
class _Edge(Line):
    """An edge of the circuit and its score."""

    score: float

    @property
    def paint(self) -> Paint:
        return PAINTS[
            "unknown" if math.isnan(self.score) else "hurts" if self.score < 0 else "helps"
        ]

    @property
    def text(self) -> str:
        return f"{self.name}  {score_text(self.score)}"


def score_text(score: float) -> str:
    """A score for people."""
    return "not scored" if math.isnan(score) else format(score, "+.3g")


def draw_circuit(scores: EdgeScores, circuit: Circuit, *, title: str = "") -> str:
    """A circuit as a self-contained SVG; see the module's description for how to read it.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the scores.
        BadUsage: more edges than anybody could see apart (1,000).
    """
    if scores.graph != circuit.graph:
        raise GraphMismatch(
            f"The circuit belongs to {circuit.graph}; the scores were made on {scores.graph}."
        )
    check_drawable(circuit)
    edges = _edges(scores, circuit)
    nodes, kept = nodes_between(circuit.graph, edges), len(circuit.pruned())
    paths = (
        f"{'all' if kept == len(edges) else kept} of them on a path from input to logits"
        if edges
        else "an empty circuit"
    )
    about = f"{len(edges)} edges between input, logits, and {len(nodes)} heads and MLPs; {paths}."
    return _Drawing(edges, nodes, title, about).svg()


def _edges(scores: EdgeScores, circuit: Circuit) -> list[_Edge]:
    found = [(u, v, float(scores.values[u, v])) for u, v in circuit.edges.nonzero().tolist()]
    largest = _largest([score for *_, score in found])
    return [
        _Edge(*line_ends(circuit.graph, u, v), width=_width(score, largest), score=score)
        for u, v, score in found
    ]


def _largest(scores: list[float]) -> float:
    return max((abs(score) for score in scores if not math.isnan(score)), default=0.0)


def _width(score: float, largest: float) -> float:
    return line_width(abs(score) / largest if largest else 0.0)


class _Drawing(Canvas[_Edge]):
    """A circuit with the scores of its edges."""

    style: ClassVar[str] = f"""{STYLE}\
.mechassay-circuit .helps {{ stroke: var(--mechassay-helps, {HELPS}); }}
.mechassay-circuit .hurts {{ stroke: var(--mechassay-hurts, {HURTS}); }}
"""

    def bar_text(self, name: str, ends: list[_Edge]) -> str:
        return f"{name}: {len(ends)} edges (sum {_sum(ends):+.3g})"

    def node_text(self, node: Node, into: list[_Edge], out: list[_Edge]) -> str:
        return (
            f"{node.name}: {len(into)} in (sum {_sum(into):+.3g}), {len(out)} out (sum"
            f" {_sum(out):+.3g})"
        )

    def samples(self) -> list[list[Sample]]:
        largest = _largest([edge.score for edge in self.lines])
        widths = [
            (largest * share, _width(largest * share, largest))
            for share in (1.0, 0.1)
            if largest > 0
        ]
        signs = [
            Sample(PAINTS["helps"], "helps (score > 0)"),
            Sample(PAINTS["hurts"], "hurts (score < 0)"),
        ]
        return [
            [
                *signs,
                *(
                    Sample(Paint("", "currentColor"), f"|score| {score:.2g}", width)
                    for score, width in widths
                ),
            ]
        ]


def _sum(edges: list[_Edge]) -> float:
    return math.fsum(edge.score for edge in edges if not math.isnan(edge.score))
