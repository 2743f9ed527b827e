"""Two circuits of one graph as one layered drawing of all their edges.

As `drawing`, except that colour and dashes say whose an edge is: the page's own colour and a solid
line in both, purple and long dashes only in the first circuit, green and dots only in the second.
Outlines of heads and MLPs say the same: a node is in a circuit that has an edge into or out of it.
With scores of both circuits, a line's width grows with the square root of |score| as a share of the
circuit's largest; methods differ in scale, so scores themselves are not compared. The caption says
how much the circuits share and how much random ones would (`circuits.overlap`).

No common form of colour blindness confuses the colours. A page may set `--mechassay-only-a` and
`--mechassay-only-b`.
"""

from __future__ import annotations

import math
from typing import Literal

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.overlap import Overlap, overlap_of
from mechassay.circuits.scores import EdgeScores
from mechassay.drawing.canvas import (
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
from mechassay.drawing.circuit import score_text
from mechassay.errors import GraphMismatch
from mechassay.report.tables import NOTHING, TextTable
from mechassay.text import number, shortened

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


STYLE = f"""\
.mechassay-circuit .both {{ stroke: currentColor; }}
.mechassay-circuit .only-a {{ stroke: var(--mechassay-only-a, {ONLY_A}); }}
.mechassay-circuit .only-b {{ stroke: var(--mechassay-only-b, {ONLY_B}); }}
"""


def draw_comparison(
    a: Circuit,
    b: Circuit,
    *,
    names: tuple[str, str] = ("A", "B"),
    scores_a: EdgeScores | None = None,
    scores_b: EdgeScores | None = None,
    title: str = "",
) -> Drawing:
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
    circuits = zip(names, (a, b), (scores_a, scores_b), strict=True)
    given = [(name, circuit, scores) for name, circuit, scores in circuits if scores is not None]
    # Without the scores of one circuit, widths would say nothing about its lines.
    shares = [_shares(circuit, scores) for _, circuit, scores in given] if len(given) == 2 else []
    held_by: dict[str, Held] = {}
    lines: list[Line] = []
    for u, v in union.edges.nonzero().tolist():
        held: Held = "both" if a.edges[u, v] and b.edges[u, v] else "only-a"
        if not a.edges[u, v]:
            held = "only-b"
        values = ", ".join(f"{name} {score_text(float(s.values[u, v]))}" for name, _, s in given)
        text = "; ".join(filter(None, (_held_text(held, names), values)))
        share = max((each.get((u, v), 0.0) for each in shares), default=PLAIN_SHARE)
        lines.append(Line.of(a.graph, u, v, max(THIN, line_width(share)), PAINTS[held], text))
        held_by[lines[-1].name] = held

    def counts(lines: list[Line]) -> str:
        held = [held_by[line.name] for line in lines]
        return "".join(
            f"; {held.count(kind)} {_held_text(kind, names)}" for kind in HELD if kind in held
        )

    def look(name: str, into: list[Line], out: list[Line]) -> tuple[str, Paint]:
        held: set[Held] = {held_by[line.name] for line in (*into, *out)}
        whose: Held = held.pop() if len(held) == 1 else "both"
        text = f"{len(into)} in, {len(out)} out{counts([*into, *out])}"
        return f"{name}, {_held_text(whose, names)}: {text}", PAINTS[whose]

    short = (shortened(names[0], SHORT), shortened(names[1], SHORT))
    return draw(
        lines,
        nodes_between(a.graph, lines, look),
        Legend(_samples(overlap, short), overlap_text(overlap, short), STYLE),
        lambda name, ends: f"{name}: {len(ends)} edges{counts(ends)}",
        title,
        overlap_text(overlap, names),
    )


def _shares(circuit: Circuit, scores: EdgeScores) -> dict[tuple[int, int], float]:
    """score| of each of the circuit's edges as a share of the largest; 0 without a score."""
    found = {(u, v): abs(float(scores.values[u, v])) for u, v in circuit.edges.nonzero().tolist()}
    known = {edge: 0.0 if math.isnan(score) else score for edge, score in found.items()}
    largest = max(known.values(), default=0.0)
    return {edge: score / largest for edge, score in known.items()} if largest else known


def _held_text(held: Held, names: tuple[str, str]) -> str:
    return "in both" if held == "both" else f"only in {names[0] if held == 'only-a' else names[1]}"


def _samples(overlap: Overlap, names: tuple[str, str]) -> list[list[Sample]]:
    """The legend: a row for each kind of line, with how many edges and nodes it stands for."""
    edges = (overlap.edges_both, overlap.edges_a, overlap.edges_b)
    nodes = (overlap.nodes_both, overlap.nodes_a, overlap.nodes_b)
    rows: list[list[Sample]] = []
    for held, n, k in zip(HELD, edges, nodes, strict=True):
        if held != "both":
            n, k = n - overlap.edges_both, k - overlap.nodes_both
        counts = f"{n:,} edge{'s' * (n != 1)}, {k:,} node{'s' * (k != 1)}"
        rows.append([Sample(PAINTS[held], f"{_held_text(held, names)}: {counts}")])
    return rows


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


def overlap_grid(overlap: Overlap, names: tuple[str, str]) -> TextTable:
    """The same numbers as a table: a row for edges, one for heads and MLPs."""
    columns = ("", "in the graph", *names, "both", "Jaccard overlap")
    columns += ("both, if random", "P(as many, if random)")
    edges = (overlap.n_edges, overlap.edges_a, overlap.edges_b, overlap.edges_both)
    nodes = (overlap.n_nodes, overlap.nodes_a, overlap.nodes_b, overlap.nodes_both)
    edge_numbers = (number(overlap.jaccard), _expected(overlap), _probability(overlap.p_value))
    node_numbers = (number(overlap.node_jaccard), NOTHING, NOTHING)
    rows = (
        ("edges", *(f"{n:,}" for n in edges), *edge_numbers),
        ("heads and MLPs", *(f"{n:,}" for n in nodes), *node_numbers),
    )
    return TextTable.of("Overlap", columns, rows)


def _expected(overlap: Overlap) -> str:
    return f"{overlap.expected:.2g}" if overlap.expected < 100 else f"{overlap.expected:,.0f}"


def _probability(p: float) -> str:
    # Below the smallest double.
    return "below 1e-300" if p == 0 else f"{p:.2g}"
