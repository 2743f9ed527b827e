"""Two circuits of one graph as one layered drawing of all their edges.

How to read it: as `drawing`, except that colour and dashes say whose an edge is. The page's own
colour and a solid line: in both. Purple and long dashes: only in the first circuit. Green and dots:
only in the second. Outlines of heads and MLPs say the same of nodes: a node is in a circuit that
has an edge into or out of it. With scores of both circuits, a line's width grows with the square
root of |score| as a share of the circuit's largest, the larger share where both hold the edge;
methods differ in scale, so scores themselves are not compared. Pointing at a line shows its scores
under both. The caption says how much the circuits share and how much random ones would
(`circuits.overlap`).

Purple and green differ in lightness and in blueness, so that no common form of colour blindness
confuses them; dashes say the same again. A page may set the colours `--mechassay-only-a` and
`--mechassay-only-b`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from mechassay.circuits.overlap import Overlap, overlap_of
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
from mechassay.report.drawing import score_text
from mechassay.report.tables import NOTHING, Table
from mechassay.report.text import number

Held = Literal["both", "only-a", "only-b"]
HELD: tuple[Held, ...] = ("both", "only-a", "only-b")
ONLY_A, ONLY_B = "#8040c0", "#0a8a5f"
PAINTS: dict[Held, Paint] = {
    "both": Paint("both", "currentColor"),
    "only-a": Paint("only-a", ONLY_A, "9 4"),
    "only-b": Paint("only-b", ONLY_B, "2.5 3"),
}
PLAIN_SHARE = 0.15
"""Where there are no scores, all lines are as wide as this share of the largest score would be."""
THIN = 1.8
"""Width below which dashes and dots are hard to tell apart."""
SHORT = 40
"""Letters of a circuit's name in the drawing; pointing at a line shows all of it."""


@dataclass(frozen=True)
class _Edge(Line):
    """An edge of either circuit.

    Attributes:
        held: who has it.
        about: the circuits that have it, and its scores.
    """

    held: Held
    about: str

    @property
    def paint(self) -> Paint:
        return PAINTS[self.held]

    @property
    def text(self) -> str:
        return f"{self.name}  {self.about}"


def draw_comparison(
    a: Circuit,
    b: Circuit,
    *,
    names: tuple[str, str] = ("A", "B"),
    scores_a: EdgeScores | None = None,
    scores_b: EdgeScores | None = None,
    title: str = "",
) -> str:
    """Two circuits as one self-contained SVG; see the module's description for how to read it.

    Args:
        names: of the circuits, in the legend and in what pointing at a line shows.
        scores_a, scores_b: shown where given; lines have widths where both are.

    Raises:
        GraphMismatch: circuits or scores belong to different graphs.
        BadUsage: more edges in all than anybody could see apart (1,000).
    """
    overlap = overlap_of(a, b)
    for scores in (scores_a, scores_b):
        if scores is not None and scores.graph != a.graph:
            raise GraphMismatch(
                f"The circuits belong to {a.graph}; the scores were made on {scores.graph}."
            )
    union = Circuit(a.graph, a.edges | b.edges)
    check_drawable(union, "the two circuits together have")
    edges = _edges(union, (a, b), names, (scores_a, scores_b))
    about = overlap_text(overlap, names)
    nodes = nodes_between(a.graph, edges)
    return _Comparison(
        edges, nodes, title, about, overlap_text(overlap, _short(names)), overlap, names
    ).svg()


def _edges(
    union: Circuit,
    circuits: Sequence[Circuit],
    names: tuple[str, str],
    scores: tuple[EdgeScores | None, EdgeScores | None],
) -> list[_Edge]:
    given = [(name, each) for name, each in zip(names, scores, strict=True) if each is not None]
    # Without the scores of one circuit, widths would say nothing about its lines.
    scored = [
        (circuit, each) for circuit, each in zip(circuits, scores, strict=True) if each is not None
    ]
    shares = [_shares(*each) for each in scored] if len(scored) == 2 else []
    first, second = (circuit.edges for circuit in circuits)
    found: list[_Edge] = []
    for u, v in union.edges.nonzero().tolist():
        held: Held = (
            "both" if first[u, v] and second[u, v] else "only-a" if first[u, v] else "only-b"
        )
        values = [f"{name} {score_text(float(each.values[u, v]))}" for name, each in given]
        about = (
            "; ".join([_held_text(held, names), ", ".join(values)])
            if values
            else _held_text(held, names)
        )
        share = max((each.get((u, v), 0.0) for each in shares), default=PLAIN_SHARE)
        found.append(
            _Edge(
                *line_ends(union.graph, u, v),
                width=max(THIN, line_width(share)),
                held=held,
                about=about,
            )
        )
    return found


def _shares(circuit: Circuit, scores: EdgeScores) -> dict[tuple[int, int], float]:
    """|score| of each of the circuit's edges as a share of the largest;
    0 where there is no score.
    """
    found = {(u, v): abs(float(scores.values[u, v])) for u, v in circuit.edges.nonzero().tolist()}
    known = {edge: 0.0 if math.isnan(score) else score for edge, score in found.items()}
    largest = max(known.values(), default=0.0)
    return {edge: score / largest for edge, score in known.items()} if largest else known


def _held_text(held: Held, names: tuple[str, str]) -> str:
    return "in both" if held == "both" else f"only in {names[0] if held == 'only-a' else names[1]}"


def _short(names: tuple[str, str]) -> tuple[str, str]:
    """Names without their middle where they are long."""
    first, second = (
        name if len(name) <= SHORT else f"{name[: SHORT // 2]}…{name[1 - SHORT // 2 :]}"
        for name in names
    )
    return first, second


class _Comparison(Canvas[_Edge]):
    """Two circuits, each edge and node marked with whose it is."""

    style: ClassVar[str] = f"""{STYLE}\
.mechassay-circuit .both {{ stroke: currentColor; }}
.mechassay-circuit .only-a {{ stroke: var(--mechassay-only-a, {ONLY_A}); }}
.mechassay-circuit .only-b {{ stroke: var(--mechassay-only-b, {ONLY_B}); }}
"""

    def __init__(
        self,
        lines: Sequence[_Edge],
        nodes: Sequence[Node],
        title: str,
        about: str,
        caption: str,
        overlap: Overlap,
        names: tuple[str, str],
    ) -> None:
        self.overlap, self.names = overlap, names
        super().__init__(lines, nodes, title, about, caption)

    def bar_text(self, name: str, ends: list[_Edge]) -> str:
        return f"{name}: {len(ends)} edges{self._counts(ends)}"

    def node_text(self, node: Node, into: list[_Edge], out: list[_Edge]) -> str:
        whose = _held_text(_holder([*into, *out]), self.names)
        return f"{node.name}, {whose}: {len(into)} in, {len(out)} out{self._counts([*into, *out])}"

    def _counts(self, edges: list[_Edge]) -> str:
        counts = [
            (sum(edge.held == held for edge in edges), _held_text(held, self.names))
            for held in HELD
        ]
        return "".join(f"; {count} {text}" for count, text in counts if count)

    def node_paint(self, into: list[_Edge], out: list[_Edge]) -> Paint:
        return PAINTS[_holder([*into, *out])]

    def samples(self) -> list[list[Sample]]:
        each = self.overlap
        edges = (each.edges_both, each.edges_a - each.edges_both, each.edges_b - each.edges_both)
        nodes = (each.nodes_both, each.nodes_a - each.nodes_both, each.nodes_b - each.nodes_both)
        return [
            [
                Sample(
                    PAINTS[held],
                    f"{_held_text(held, _short(self.names))}: {_edges_text(n)}, {_nodes_text(k)}",
                )
            ]
            for held, n, k in zip(HELD, edges, nodes, strict=True)
        ]


def _holder(edges: list[_Edge]) -> Held:
    """Whose a node with these edges is."""
    held: set[Held] = {edge.held for edge in edges}
    return held.pop() if len(held) == 1 else "both"


def _edges_text(n: int) -> str:
    return f"{n:,} edge{'s' * (n != 1)}"


def _nodes_text(n: int) -> str:
    return f"{n:,} node{'s' * (n != 1)}"


# The overlap in words and as a table


def overlap_text(overlap: Overlap, names: tuple[str, str]) -> str:
    """Sizes, what is shared, and what random circuits would share, in three sentences."""
    return (
        f"Of {overlap.n_edges:,} edges, {names[0]} has {overlap.edges_a:,} and {names[1]}"
        f" {overlap.edges_b:,}; {overlap.edges_both:,} are in both (Jaccard overlap"
        f" {number(overlap.jaccard)}). Two random circuits of these sizes would share"
        f" {_expected(overlap)} on average, and at least {overlap.edges_both:,} with probability"
        f" {_probability(overlap.p_value)}. Of {overlap.n_nodes:,} heads and MLPs, {names[0]}"
        f" touches {overlap.nodes_a:,} and {names[1]} {overlap.nodes_b:,}; {overlap.nodes_both:,}"
        f" are in both (Jaccard overlap {number(overlap.node_jaccard)})."
    )


def overlap_grid(overlap: Overlap, names: tuple[str, str], title: str = "Overlap") -> Table:
    """The same numbers as a table: a row for edges, one for heads and MLPs."""
    columns = (
        "",
        "in the graph",
        *names,
        "both",
        "Jaccard overlap",
        "both, if random",
        "P(as many, if random)",
    )
    counts = (overlap.n_edges, overlap.edges_a, overlap.edges_b, overlap.edges_both)
    nodes = (overlap.n_nodes, overlap.nodes_a, overlap.nodes_b, overlap.nodes_both)
    rows = (
        (
            "edges",
            *(f"{n:,}" for n in counts),
            number(overlap.jaccard),
            _expected(overlap),
            _probability(overlap.p_value),
        ),
        (
            "heads and MLPs",
            *(f"{n:,}" for n in nodes),
            number(overlap.node_jaccard),
            NOTHING,
            NOTHING,
        ),
    )
    return Table.of(title, columns, rows)


def _expected(overlap: Overlap) -> str:
    return f"{overlap.expected:.2g}" if overlap.expected < 100 else f"{overlap.expected:,.0f}"


def _probability(p: float) -> str:
    # Below the smallest double.
    return "below 1e-300" if p == 0 else f"{p:.2g}"
