"""A circuit as a layered graph, in one SVG string that needs nothing else.

How to read it: the computation runs upwards, from `input` to `logits`; only layers with nodes in
the circuit are drawn, their numbers stand at the left. A rounded box is an attention head, a
hexagon an MLP. A line is an edge: its colour is the sign of its score (blue helps: the objective
drops when the edge is ablated; orange hurts), its width grows with the square root of |score|
(scores are heavy-tailed), dashed grey means not scored. It enters a head at the mark q, k or v
of the input it feeds. Pointing at a line or a node shows its name and numbers.

Text takes the colour of the page (`currentColor`); a page may set `--mechassay-helps` and
`--mechassay-hurts`. Where each thing goes is decided in `layout`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.graph import SLOTS, Graph
from mechassay.report.layout import Layout, Link, lay_out

MAX_EDGES = 1000
HELPS, HURTS, UNKNOWN = "#0072b2", "#d55e00", "#808080"

HEAD_WIDTH, MLP_WIDTH, BOX_HEIGHT = 58.0, 50.0, 30.0
MARGIN, LABELS, LEGEND, TITLE = 14.0, 60.0, 62.0, 30.0
MIN_WIDTH = 720.0
GAP_WITHIN, GAP_BETWEEN = 24.0, 34.0
THINNEST, THICKEST = 1.0, 5.5
MAX_LEAN = 0.4

STYLE = f"""
.mechassay-circuit {{ font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: inherit; }}
.mechassay-circuit text {{ fill: currentColor; }}
.mechassay-circuit .edge {{ fill: none; opacity: .8; }}
.mechassay-circuit .hit {{ fill: none; stroke: transparent; stroke-width: 9; pointer-events: stroke; }}
.mechassay-circuit .helps {{ stroke: var(--mechassay-helps, {HELPS}); }}
.mechassay-circuit .hurts {{ stroke: var(--mechassay-hurts, {HURTS}); }}
.mechassay-circuit .edges:hover .edge {{ opacity: .16; }}
.mechassay-circuit .edges g.link:hover .edge {{ opacity: 1; stroke-width: 6; }}
.mechassay-circuit .node:hover rect, .mechassay-circuit .node:hover polygon {{ fill-opacity: .22; }}
"""


@dataclass(frozen=True)
class _Node:
    """A head or an MLP of the circuit, in a row of the drawing."""

    writer: int
    name: str
    layer: int
    row: int
    is_head: bool

    @property
    def width(self) -> float:
        return HEAD_WIDTH if self.is_head else MLP_WIDTH


@dataclass(frozen=True)
class _Edge:
    """An edge of the circuit; a writer or owner of None is the bar of `input` or `logits`."""

    name: str
    score: float
    writer: int | None
    owner: int | None
    slot: int | None
    width: float

    @property
    def kind(self) -> str:
        return "unknown" if math.isnan(self.score) else "hurts" if self.score < 0 else "helps"

    @property
    def text(self) -> str:
        return f"{self.name}  {'not scored' if math.isnan(self.score) else format(self.score, '+.3g')}"


def draw_circuit(scores: EdgeScores, circuit: Circuit, *, title: str = "") -> str:
    """A circuit as a self-contained SVG; see the module's description for how to read it.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the scores.
        BadUsage: more edges than anybody could see apart (1,000).
    """
    if scores.graph != circuit.graph:
        raise GraphMismatch(f"The circuit belongs to {circuit.graph}; the scores were made on {scores.graph}.")
    if len(circuit) > MAX_EDGES:
        raise BadUsage(f"A drawing holds at most {MAX_EDGES:,} edges; the circuit has {len(circuit):,}. Cut a smaller one with scores.top.")
    edges = _edges(scores, circuit)
    nodes, kept = _nodes(circuit.graph, edges), len(circuit.pruned())
    paths = f"{'all' if kept == len(edges) else kept} of them on a path from input to logits" if edges else "an empty circuit"
    about = f"{len(edges)} edges between input, logits, and {len(nodes)} heads and MLPs; {paths}."
    return _Canvas(circuit.graph, edges, nodes, title, about).svg()


def _edges(scores: EdgeScores, circuit: Circuit) -> list[_Edge]:
    graph = circuit.graph
    owner = graph.reader_owner.tolist()
    found = [(u, v, float(scores.values[u, v])) for u, v in circuit.edges.nonzero().tolist()]
    largest = max((abs(score) for *_, score in found if not math.isnan(score)), default=0.0)
    return [
        _Edge(
            name=graph.edge_name(writer, reader),
            score=score,
            writer=writer or None,
            owner=None if reader == graph.logits else owner[reader],
            slot=_slot(graph, reader),
            width=_width(score, largest),
        )
        for writer, reader, score in found
    ]


def _slot(graph: Graph, reader: int) -> int | None:
    """0, 1 or 2 for a head's query, key or value; None for an MLP and the logits."""
    slot = reader % graph.readers_per_layer // graph.n_heads
    return None if reader == graph.logits or slot == 3 else slot


def _width(score: float, largest: float) -> float:
    if math.isnan(score) or largest == 0:
        return THINNEST
    return THINNEST + (THICKEST - THINNEST) * math.sqrt(abs(score) / largest)


def _nodes(graph: Graph, edges: list[_Edge]) -> list[_Node]:
    """The circuit's heads and MLPs; in each layer the heads share a row and the MLP stands above them."""
    writers = sorted({end for edge in edges for end in (edge.writer, edge.owner) if end is not None})
    places = [divmod(writer - 1, graph.writers_per_layer) for writer in writers]
    levels = sorted({(layer, place == graph.n_heads) for layer, place in places})
    row = {level: number for number, level in enumerate(levels, start=1)}
    return [
        _Node(writer, graph.writer_name(writer), layer, row[layer, place == graph.n_heads], place != graph.n_heads)
        for writer, (layer, place) in zip(writers, places, strict=True)
    ]


class _Canvas:
    """Coordinates and SVG of one drawing. y grows downwards, rows are counted from the bottom."""

    def __init__(self, graph: Graph, edges: list[_Edge], nodes: list[_Node], title: str, about: str) -> None:
        self.graph, self.edges, self.nodes, self.title, self.about = graph, edges, nodes, title, about
        self.n_rows = 2 + max((node.row for node in nodes), default=0)
        self.row_of = {node.writer: node.row for node in nodes}
        self.layer_of_row = {node.row: node.layer for node in nodes}
        self.layout = self._lay_out()
        self.inner = max(self.layout.width, MIN_WIDTH - LABELS - 2 * MARGIN)
        self.left = MARGIN + LABELS + (self.inner - self.layout.width) / 2
        self.width = LABELS + 2 * MARGIN + self.inner
        self.row_y = self._rows()
        self.height = self.row_y[0] + BOX_HEIGHT / 2 + LEGEND + MARGIN

    def _lay_out(self) -> Layout:
        number = {node.writer: place for place, node in enumerate(self.nodes)}
        links = [
            Link(
                source=None if edge.writer is None else number[edge.writer],
                target=None if edge.owner is None else number[edge.owner],
                source_port=0.0,
                target_port=0.0 if edge.slot is None else (edge.slot - 1) * HEAD_WIDTH / 3,
                width=edge.width,
            )
            for edge in self.edges
        ]
        gap = 5.0 if len(links) <= 100 else 3.0
        return lay_out([node.row for node in self.nodes], [node.width for node in self.nodes], links, self.n_rows, gap)

    def _rows(self) -> list[float]:
        """Middle of every row: layers stand apart, an MLP close above its heads, more room where many lines move sideways."""
        moving = [0] * self.n_rows
        for edge, xs in zip(self.edges, self.layout.link_x, strict=True):
            first = self._first_row(edge)
            for step, (x, next_x) in enumerate(pairwise(xs)):
                moving[first + step + 1] += abs(next_x - x) > 20
        y, found = MARGIN + (TITLE if self.title else 0.0) + BOX_HEIGHT / 2, [0.0] * self.n_rows
        for row in reversed(range(self.n_rows)):
            found[row] = y
            same = row > 0 and self.layer_of_row.get(row) == self.layer_of_row.get(row - 1, -1)
            y += BOX_HEIGHT + (GAP_WITHIN if same else GAP_BETWEEN) + min(1.5 * moving[row], 40.0)
        return found

    def _first_row(self, edge: _Edge) -> int:
        return 0 if edge.writer is None else self.row_of[edge.writer]

    # Pieces

    def svg(self) -> str:
        size = f"{self.width:.0f} {self.height:.0f}"
        width, height = size.split()
        # The strongest lines last, on top of the others.
        order = sorted(range(len(self.edges)), key=lambda number: self.edges[number].width)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="mechassay-circuit" role="img" aria-label="{escape(self.title or "circuit")}" '
            f'width="{width}" height="{height}" viewBox="0 0 {size}">',
            f"<desc>{escape(self.about)}</desc><style>{STYLE}</style>",
            *([_text(MARGIN, MARGIN + 13, self.title, size=15.0, weight=600)] if self.title else []),
            *self._bands(),
            '<g class="edges">',
            *(self._link(self.edges[number], self.layout.link_x[number]) for number in order),
            "</g>",
            self._bar("logits", self.n_rows - 1, [edge for edge in self.edges if edge.owner is None]),
            self._bar("input", 0, [edge for edge in self.edges if edge.writer is None]),
            *(self._node(node, x) for node, x in zip(self.nodes, self.layout.node_x, strict=True)),
            *([] if self.edges else [_text(self.width / 2, (self.row_y[0] + self.row_y[-1]) / 2 + 4, "no edges", anchor="middle")]),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts)

    def _bands(self) -> list[str]:
        """A faint band and a number for every layer drawn."""
        rows: dict[int, list[int]] = defaultdict(list)
        for row, layer in sorted(self.layer_of_row.items()):
            rows[layer].append(row)
        parts: list[str] = []
        for layer, held in rows.items():
            top, bottom = self.row_y[held[-1]] - BOX_HEIGHT / 2 - 6, self.row_y[held[0]] + BOX_HEIGHT / 2 + 6
            parts.append(_rect(MARGIN, top, self.width - 2 * MARGIN, bottom - top, 'fill="currentColor" fill-opacity=".035"'))
            parts.append(_text(MARGIN + 8, (top + bottom) / 2 + 4, f"layer {layer}", size=11.0, opacity=0.65))
        return parts

    def _link(self, edge: _Edge, xs: list[float]) -> str:
        colour = {"helps": HELPS, "hurts": HURTS, "unknown": UNKNOWN}[edge.kind]
        dash = ' stroke-dasharray="5 4"' if edge.kind == "unknown" else ""
        path = self._path(self._first_row(edge), xs)
        return (
            f'<g class="link"><title>{escape(edge.text)}</title><path class="edge {edge.kind}" stroke="{colour}" fill="none" '
            f'stroke-width="{edge.width:.2f}"{dash} d="{path}"/><path class="hit" fill="none" d="{path}"/></g>'
        )

    def _path(self, first_row: int, xs: list[float]) -> str:
        """Through every row nearly straight up, S-curves in the gaps between."""
        rows = range(first_row, first_row + len(xs))
        lean = self._lean(xs, [self.row_y[row] for row in rows])
        half, x, slope = BOX_HEIGHT / 2, self.left + xs[0], 0.0
        parts = [f"M{x:.1f} {self.row_y[first_row] - half:.1f}"]
        for row, place, next_slope in zip(rows[1:], xs[1:], lean[1:], strict=True):
            begin, end = self.row_y[row - 1] - half, self.row_y[row] + half
            third = (begin - end) * 0.45
            enter = self.left + place - next_slope * half
            parts.append(
                f"C{x + slope * third:.1f} {begin - third:.1f} {enter - next_slope * third:.1f} {end + third:.1f} {enter:.1f} {end:.1f}"
            )
            x, slope = self.left + place + next_slope * half, next_slope
            if row != rows[-1]:
                parts.append(f"L{x:.1f} {end - 2 * half:.1f}")
        return "".join(parts)

    @staticmethod
    def _lean(xs: list[float], ys: list[float]) -> list[float]:
        """Slope of a line in each row it passes.

        The harmonic mean of the slopes in the two gaps beside the row, 0 where they lean apart
        (Fritsch and Carlson 1980: no overshoot), and small enough to miss the row's nodes.
        """
        steps = [(x1 - x0) / (y0 - y1) for x0, x1, y0, y1 in zip(xs, xs[1:], ys, ys[1:], strict=False)]
        inner = [2 * a * b / (a + b) if a * b > 0 else 0.0 for a, b in pairwise(steps)]
        return [0.0, *(max(-MAX_LEAN, min(MAX_LEAN, slope)) for slope in inner), 0.0]

    def _bar(self, name: str, row: int, ends: list[_Edge]) -> str:
        y, x, width = self.row_y[row], MARGIN + LABELS, self.inner
        box = _rect(x, y - BOX_HEIGHT / 2, width, BOX_HEIGHT, SHAPE)
        label = _text(x + width / 2, y + 4.5, name, size=13.0, weight=600, anchor="middle")
        return f'<g class="node"><title>{name}: {len(ends)} edges (sum {_sum(ends):+.3g})</title>{box}{label}</g>'

    def _node(self, node: _Node, x: float) -> str:
        into = [edge for edge in self.edges if edge.owner == node.writer]
        out = [edge for edge in self.edges if edge.writer == node.writer]
        about = f"{node.name}: {len(into)} in (sum {_sum(into):+.3g}), {len(out)} out (sum {_sum(out):+.3g})"
        x, y = self.left + x, self.row_y[node.row]
        inside = _head(x, y) if node.is_head else _hexagon(x, y)
        marks = "".join(_mark(x, y, slot) for slot in sorted({edge.slot for edge in into if edge.slot is not None}))
        label = _text(x, y + (0 if marks else 4), node.name, size=12.0, weight=600, anchor="middle")
        return f'<g class="node"><title>{escape(about)}</title>{inside}{label}{marks}</g>'

    def _legend(self) -> list[str]:
        """Two lines under the drawing: what the lines mean, what the shapes mean."""
        x, y = MARGIN + LABELS, self.row_y[0] + BOX_HEIGHT / 2 + 26
        parts: list[str] = []
        largest = max((abs(edge.score) for edge in self.edges if not math.isnan(edge.score)), default=0.0)
        samples = [("helps", HELPS, "helps (score > 0)", 3.0), ("hurts", HURTS, "hurts (score < 0)", 3.0)]
        samples += [
            ("", "currentColor", f"|score| {largest * share:.2g}", _width(largest * share, largest)) for share in (1.0, 0.1) if largest > 0
        ]
        for kind, colour, text, width in samples:
            parts.append(f'<path class="{kind}" stroke="{colour}" stroke-width="{width:.2f}" d="M{x:.0f} {y:.0f}h26"/>')
            parts.append(_text(x + 33, y + 4, text, size=11.5))
            x += 33 + 6.4 * len(text) + 22
        x, y = MARGIN + LABELS + HEAD_WIDTH / 2 * 0.62, y + 26
        parts.append(f'<g transform="translate({x:.1f} {y:.1f}) scale(.62)">{_head(0.0, 0.0)}</g>')
        parts.append(_text(x + 24, y + 4, "attention head; a line ends at the q, k or v it feeds", size=11.5))
        x += 24 + 330
        parts.append(f'<g transform="translate({x:.1f} {y:.1f}) scale(.62)">{_hexagon(0.0, 0.0)}</g>')
        parts.append(_text(x + 22, y + 4, "MLP", size=11.5))
        parts.append(_text(x + 75, y + 4, "computation runs upwards", size=11.5, opacity=0.7))
        return parts


SHAPE = 'fill="currentColor" fill-opacity=".07" stroke="currentColor" stroke-opacity=".6" stroke-width="1.2"'


def _head(x: float, y: float) -> str:
    return _rect(x - HEAD_WIDTH / 2, y - BOX_HEIGHT / 2, HEAD_WIDTH, BOX_HEIGHT, SHAPE)


def _rect(x: float, y: float, width: float, height: float, paint: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" {paint}/>'


def _hexagon(x: float, y: float) -> str:
    half, high, cut = MLP_WIDTH / 2, BOX_HEIGHT / 2, 9.0
    corners = [(-half, 0), (-half + cut, -high), (half - cut, -high), (half, 0), (half - cut, high), (-half + cut, high)]
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" {SHAPE}/>'


def _mark(x: float, y: float, slot: int) -> str:
    """The letter q, k or v above the place where its lines enter."""
    return _text(x + (slot - 1) * HEAD_WIDTH / 3, y + BOX_HEIGHT / 2 - 3.5, SLOTS[slot], size=9.5, anchor="middle", opacity=0.8)


def _text(x: float, y: float, text: str, *, size: float = 12.0, weight: int = 400, anchor: str = "start", opacity: float = 1.0) -> str:
    font = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {font} fill="currentColor" fill-opacity="{opacity}">{escape(text)}</text>'


def _sum(edges: list[_Edge]) -> float:
    return math.fsum(edge.score for edge in edges if not math.isnan(edge.score))
