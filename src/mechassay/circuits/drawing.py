"""A circuit as a layered graph, in one SVG string that needs nothing else.

The computation runs upwards, from the bar `input` to the bar `logits`. Each layer that has nodes
in the circuit has a row of heads (rounded boxes) with its MLP (a hexagon) above; other layers
are not drawn. `circuits.graph_layout` decides the places within a row.

A line is an edge. Its colour is the sign of its score (blue helps: the objective drops when the
edge is ablated; orange hurts), its width grows with the square root of |score|. A grey line has
the score 0, a dashed grey one has none. Where no edge has a score all lines are plain and grey.
Where it is known which edges depend on the pairs (`circuits.methods.stability`), these are dashed.
The legend names those of these lines that are there. Edges whose |score| is a small share of the
largest are left out and counted: most are rounding. A line enters a head at the mark q, k or v of
the input it feeds. Pointing at a line or a node shows its name and numbers.

Text takes the colour of the page (`currentColor`). A colour that has a class is set by a rule in
the drawing's own style, so that a page can change it by a variable (`--mechassay-helps`,
`--mechassay-hurts`); viewers without CSS see the attribute.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import Protocol

from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.graph_layout import Link, Placement, lay_out
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import SLOTS, Graph
from mechassay.utils.display import share, signed

MAX_EDGES = 1000

HEAD_WIDTH, MLP_WIDTH, BOX_HEIGHT = 58.0, 50.0, 30.0
MARGIN, LABELS, LEGEND, TITLE = 14.0, 60.0, 62.0, 30.0
LEGEND_ROW, CAPTION_ROW = 21.0, 17.0
LETTER = 6.1
"""Width of a letter of the caption, roughly."""
MIN_WIDTH = 720.0
GAP_WITHIN, GAP_BETWEEN = 24.0, 34.0
THINNEST, THICKEST = 1.0, 5.5
MAX_LEAN = 0.4

STYLE = """
.mechassay-circuit { color: inherit;
  font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.mechassay-circuit text { fill: currentColor; }
.mechassay-circuit .edge { fill: none; opacity: .8; }
.mechassay-circuit .hit { fill: none; stroke: transparent; stroke-width: 9;
  pointer-events: stroke; }
.mechassay-circuit .edges:hover .edge { opacity: .16; }
.mechassay-circuit .edges g.link:hover .edge { opacity: 1; stroke-width: 6; }
.mechassay-circuit .node:hover rect, .mechassay-circuit .node:hover polygon { fill-opacity: .22; }
"""


class Drawable(Protocol):
    """A set of edges of a graph, as circuits are."""

    @property
    def graph(self) -> Graph: ...
    @property
    def edges(self) -> Bool[Tensor, "writers readers"]: ...
    def __len__(self) -> int: ...
    def pruned(self) -> Drawable: ...


@dataclass(frozen=True)
class Paint:
    """A line's class, colour and `stroke-dasharray`; "" for no class or dashes."""

    kind: str
    colour: str
    dash: str = ""

    @property
    def dashes(self) -> str:
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


@dataclass(frozen=True)
class Sample:
    """An entry of the legend: a piece of line, and what it means."""

    paint: Paint
    text: str
    width: float = 3.0


@dataclass(frozen=True)
class Legend:
    """What stands under a drawing.

    Attributes:
        rows: samples of lines, row by row.
        caption: text below them; it is wrapped.
        style: CSS rules of the classes of paints.
    """

    rows: Sequence[Sequence[Sample]]
    caption: str = ""
    style: str = ""


@dataclass(frozen=True)
class Line:
    """An edge to draw; a writer or owner of None is the bar of `input` or `logits`.

    Attributes:
        name: of the edge.
        slot: 0, 1 or 2 where it enters a head's query, key or value; None at an MLP and the logits.
        width: of the line.
        text: what pointing at it shows.
    """

    name: str
    writer: int | None
    owner: int | None
    slot: int | None
    width: float
    paint: Paint
    text: str

    @staticmethod
    def of(graph: Graph, writer: int, reader: int, width: float, paint: Paint, text: str) -> Line:
        """The line of an edge; its text begins with its name."""
        slot = reader % graph.readers_per_layer // graph.n_heads
        owner = None if reader == graph.logits else int(graph.reader_owner[reader])
        name = graph.edge_name(writer, reader)
        entered = None if owner is None or slot == 3 else slot
        return Line(name, writer or None, owner, entered, width, paint, f"{name}  {text}")


@dataclass(frozen=True)
class Node:
    """A head or an MLP, in a row of the drawing.

    Attributes:
        text: what pointing at it shows.
        paint: of its outline; None for the plain one.
    """

    writer: int
    name: str
    layer: int
    row: int
    is_head: bool
    text: str
    paint: Paint | None

    @property
    def width(self) -> float:
        return HEAD_WIDTH if self.is_head else MLP_WIDTH


@dataclass(frozen=True)
class Drawing:
    """A finished drawing: its SVG, which needs nothing else, and its title and description.

    Attributes:
        strongest: names and scores of the edges drawn that have one, the largest |score| first.
        of: the cell of a run that it belongs to, as its record names it: model, task, method.
    """

    svg: str
    title: str
    about: str
    strongest: tuple[tuple[str, float], ...] = ()
    of: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Drawing({self.title!r}: {self.about})"

    def _repr_svg_(self) -> str:
        return self.svg


def check_drawable(circuit: Drawable, what: str = "the circuit has") -> None:
    """Refuse more edges than anybody could see apart.

    Raises:
        BadUsage: more than 1,000.
    """
    if len(circuit) > MAX_EDGES:
        raise BadUsage(
            f"A drawing holds at most {MAX_EDGES:,} edges; {what} {len(circuit):,}. Cut a smaller"
            " one with scores.top."
        )


def line_width(share: float) -> float:
    """Width of a line whose |score| is this share of the largest; the thinnest where undefined."""
    return THINNEST if math.isnan(share) else THINNEST + (THICKEST - THINNEST) * math.sqrt(share)


def nodes_between(
    graph: Graph,
    lines: Sequence[Line],
    look: Callable[[str, list[Line], list[Line]], tuple[str, Paint | None]],
) -> list[Node]:
    """The heads and MLPs at the ends of lines; a layer's heads share a row, its MLP stands above.

    Args:
        look: text and paint of a node, given its name and the lines into and out of it.
    """
    into, out = defaultdict[int | None, list[Line]](list), defaultdict[int | None, list[Line]](list)
    for line in lines:
        into[line.owner].append(line)
        out[line.writer].append(line)
    writers = sorted({end for end in (*into, *out) if end is not None})
    places = [divmod(writer - 1, graph.writers_per_layer) for writer in writers]
    levels = sorted({(layer, place == graph.n_heads) for layer, place in places})
    row = {level: number for number, level in enumerate(levels, start=1)}
    nodes: list[Node] = []
    for writer, (layer, place) in zip(writers, places, strict=True):
        name, is_head = graph.writer_name(writer), place != graph.n_heads
        text, paint = look(name, into[writer], out[writer])
        nodes.append(Node(writer, name, layer, row[layer, not is_head], is_head, text, paint))
    return nodes


def draw(
    lines: Sequence[Line],
    nodes: Sequence[Node],
    legend: Legend,
    bar_text: Callable[[str, list[Line]], str],
    title: str,
    about: str,
) -> Drawing:
    """Place everything and draw it.

    Args:
        nodes: `nodes_between` the lines.
        bar_text: what pointing at a bar shows, given its name and the lines that end at it.
        about: what the drawing shows, for whoever cannot see it.
    """
    canvas = _Canvas(lines, nodes, bool(title))
    width, inputs = canvas.width, [line for line in lines if line.writer is None]
    caption = textwrap.wrap(legend.caption, int(canvas.inner / LETTER))
    below = LEGEND + LEGEND_ROW * (len(legend.rows) - 1) + CAPTION_ROW * len(caption)
    height = canvas.row_y[0] + BOX_HEIGHT / 2 + below + MARGIN
    middle = (canvas.row_y[0] + canvas.row_y[-1]) / 2 + 4
    outputs = [line for line in lines if line.owner is None]
    # The strongest lines last, on top of the others.
    order = sorted(range(len(lines)), key=lambda number: lines[number].width)
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" class="mechassay-circuit" role="img"'
            f' aria-label="{escape(title or "circuit")}" width="{width:.0f}"'
            f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        ),
        f"<desc>{escape(about)}</desc><style>{STYLE}{legend.style}</style>",
        *([_text(MARGIN, MARGIN + 13, title, size=15.0, weight=600)] if title else []),
        *canvas.bands(),
        '<g class="edges">',
        *(canvas.link(lines[number], canvas.layout.link_x[number]) for number in order),
        "</g>",
        canvas.bar("logits", canvas.n_rows - 1, bar_text("logits", outputs)),
        canvas.bar("input", 0, bar_text("input", inputs)),
        *(canvas.node(node, x) for node, x in zip(nodes, canvas.layout.node_x, strict=True)),
        *([] if lines else [_text(width / 2, middle, "no edges", anchor="middle")]),
        *_legend(legend.rows, caption, canvas.row_y[0] + BOX_HEIGHT / 2 + 26),
        "</svg>",
    ]
    return Drawing("\n".join(parts), title or "circuit", about)


@dataclass(frozen=True)
class _Canvas:
    """Coordinates and pieces of one drawing: y grows downwards, rows count from the bottom."""

    lines: Sequence[Line]
    nodes: Sequence[Node]
    titled: bool

    @property
    def n_rows(self) -> int:
        return 2 + max((node.row for node in self.nodes), default=0)

    @cached_property
    def row_of(self) -> dict[int | None, int]:
        """Row of every writer; None is `input`."""
        return {None: 0} | {node.writer: node.row for node in self.nodes}

    @cached_property
    def layer_of_row(self) -> dict[int, int]:
        return {node.row: node.layer for node in self.nodes}

    @cached_property
    def inner(self) -> float:
        """Width of the bars."""
        return max(self.layout.width, MIN_WIDTH - LABELS - 2 * MARGIN)

    @property
    def left(self) -> float:
        return MARGIN + LABELS + (self.inner - self.layout.width) / 2

    @property
    def width(self) -> float:
        return LABELS + 2 * MARGIN + self.inner

    @cached_property
    def layout(self) -> Placement:
        number = {node.writer: place for place, node in enumerate(self.nodes)}
        links = [
            Link(
                source=None if line.writer is None else number[line.writer],
                target=None if line.owner is None else number[line.owner],
                source_port=0.0,
                target_port=0.0 if line.slot is None else (line.slot - 1) * HEAD_WIDTH / 3,
                width=line.width,
            )
            for line in self.lines
        ]
        rows, widths = [node.row for node in self.nodes], [node.width for node in self.nodes]
        return lay_out(rows, widths, links, self.n_rows, 5.0 if len(links) <= 100 else 3.0)

    @cached_property
    def row_y(self) -> list[float]:
        """Middle of every row; there is more room where layers change and where lines move
        sideways.
        """
        moving = [0] * self.n_rows
        for line, xs in zip(self.lines, self.layout.link_x, strict=True):
            first = self.row_of[line.writer]
            for step, (x, next_x) in enumerate(pairwise(xs)):
                moving[first + step + 1] += abs(next_x - x) > 20
        y, tops = MARGIN + (TITLE if self.titled else 0.0) + BOX_HEIGHT / 2, [0.0] * self.n_rows
        for row in reversed(range(self.n_rows)):
            tops[row] = y
            same = row > 0 and self.layer_of_row.get(row) == self.layer_of_row.get(row - 1, -1)
            y += BOX_HEIGHT + (GAP_WITHIN if same else GAP_BETWEEN) + min(1.5 * moving[row], 40.0)
        return tops

    def bands(self) -> list[str]:
        """A faint band and a number for every layer drawn."""
        rows: dict[int, list[int]] = defaultdict(list)
        for row, layer in sorted(self.layer_of_row.items()):
            rows[layer].append(row)
        parts: list[str] = []
        for layer, held in rows.items():
            top = self.row_y[held[-1]] - BOX_HEIGHT / 2 - 6
            bottom = self.row_y[held[0]] + BOX_HEIGHT / 2 + 6
            faint = 'fill="currentColor" fill-opacity=".035"'
            parts.append(_rect(MARGIN, top, self.width - 2 * MARGIN, bottom - top, faint))
            middle = (top + bottom) / 2 + 4
            parts.append(_text(MARGIN + 8, middle, f"layer {layer}", size=11.0, opacity=0.65))
        return parts

    def link(self, line: Line, xs: list[float]) -> str:
        paint, path = line.paint, self._path(self.row_of[line.writer], xs)
        return (
            f'<g class="link"><title>{escape(line.text)}</title><path class="edge {paint.kind}"'
            f' stroke="{paint.colour}" fill="none" stroke-width="{line.width:.2f}"{paint.dashes}'
            f' d="{path}"/><path class="hit" fill="none" d="{path}"/></g>'
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
                f"C{x + slope * third:.1f} {begin - third:.1f} {enter - next_slope * third:.1f}"
                f" {end + third:.1f} {enter:.1f} {end:.1f}"
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
        gaps = zip(pairwise(xs), pairwise(ys), strict=True)
        steps = [(x1 - x0) / (y0 - y1) for (x0, x1), (y0, y1) in gaps]
        inner = [2 * a * b / (a + b) if a * b > 0 else 0.0 for a, b in pairwise(steps)]
        return [0.0, *(max(-MAX_LEAN, min(MAX_LEAN, slope)) for slope in inner), 0.0]

    def bar(self, name: str, row: int, text: str) -> str:
        y, x, width = self.row_y[row], MARGIN + LABELS, self.inner
        box = _rect(x, y - BOX_HEIGHT / 2, width, BOX_HEIGHT, SHAPE)
        label = _text(x + width / 2, y + 4.5, name, size=13.0, weight=600, anchor="middle")
        return f'<g class="node"><title>{escape(text)}</title>{box}{label}</g>'

    def node(self, node: Node, x: float) -> str:
        x, y = self.left + x, self.row_y[node.row]
        shape = SHAPE if node.paint is None else _outline(node.paint)
        inside = _head(x, y, shape) if node.is_head else _hexagon(x, y, shape)
        slots = {line.slot for line in self.lines if line.owner == node.writer} - {None}
        # The letter q, k or v above the place where its lines enter.
        low, step = y + BOX_HEIGHT / 2 - 3.5, HEAD_WIDTH / 3
        marks = "".join(
            _text(x + (slot - 1) * step, low, letter, size=9.5, anchor="middle", opacity=0.8)
            for slot, letter in enumerate(SLOTS)
            if slot in slots
        )
        label = _text(x, y + (0 if marks else 4), node.name, size=12.0, weight=600, anchor="middle")
        return f'<g class="node"><title>{escape(node.text)}</title>{inside}{label}{marks}</g>'


def _legend(rows: Sequence[Sequence[Sample]], caption: Sequence[str], y: float) -> list[str]:
    """Under the drawing: what the lines mean, what the shapes mean, and the caption."""
    parts: list[str] = []
    for number, row in enumerate(rows):
        x, y = MARGIN + LABELS, y + LEGEND_ROW * (number > 0)
        for sample in row:
            paint = sample.paint
            parts.append(
                f'<path class="{paint.kind}" stroke="{paint.colour}"'
                f' stroke-width="{sample.width:.2f}"{paint.dashes} d="M{x:.0f} {y:.0f}h26"/>'
            )
            parts.append(_text(x + 33, y + 4, sample.text, size=11.5))
            x += 33 + 6.4 * len(sample.text) + 22
    x, y = MARGIN + LABELS + HEAD_WIDTH / 2 * 0.62, y + 26
    entered = "attention head; a line ends at the q, k or v it feeds"
    parts.append(f'<g transform="translate({x:.1f} {y:.1f}) scale(.62)">{_head(0.0, 0.0)}</g>')
    parts.append(_text(x + 24, y + 4, entered, size=11.5))
    x += 24 + 330
    parts.append(f'<g transform="translate({x:.1f} {y:.1f}) scale(.62)">{_hexagon(0.0, 0.0)}</g>')
    parts.append(_text(x + 22, y + 4, "MLP", size=11.5))
    parts.append(_text(x + 75, y + 4, "computation runs upwards", size=11.5, opacity=0.7))
    x, y = MARGIN + LABELS, y + 11
    for number, line in enumerate(caption, start=1):
        parts.append(_text(x, y + CAPTION_ROW * number, line, size=11.5))
    return parts


FILL = 'fill="currentColor" fill-opacity=".07"'
SHAPE = f'{FILL} stroke="currentColor" stroke-opacity=".6" stroke-width="1.2"'


def _outline(paint: Paint) -> str:
    return f'class="{paint.kind}" {FILL} stroke="{paint.colour}" stroke-width="2"{paint.dashes}'


def _head(x: float, y: float, shape: str = SHAPE) -> str:
    return _rect(x - HEAD_WIDTH / 2, y - BOX_HEIGHT / 2, HEAD_WIDTH, BOX_HEIGHT, shape)


def _rect(x: float, y: float, width: float, height: float, paint: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="6" {paint}/>'


def _hexagon(x: float, y: float, shape: str = SHAPE) -> str:
    half, high, cut = MLP_WIDTH / 2, BOX_HEIGHT / 2, 9.0
    inner = half - cut
    corners = [
        (-half, 0),
        (-inner, -high),
        (inner, -high),
        (half, 0),
        (inner, high),
        (-inner, high),
    ]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {shape}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 12.0,
    weight: int = 400,
    anchor: str = "start",
    opacity: float = 1.0,
) -> str:
    font = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {font} fill="currentColor"'
        f' fill-opacity="{opacity}">{escape(text)}</text>'
    )


HELPS, HURTS, UNKNOWN = "#0072b2", "#d55e00", "#808080"
PLAIN_SHARE = 0.15
"""Where there are no scores, all lines are as wide as this share of the largest score would be."""
PLAIN = Sample(Paint("plain", UNKNOWN), "edge (no edge has a score)")
"""The lines of a circuit of which no edge has a score."""
SAMPLES = {
    "helps": Sample(Paint("helps", HELPS), "helps (score > 0)"),
    "hurts": Sample(Paint("hurts", HURTS), "hurts (score < 0)"),
    "zero": Sample(Paint("zero", UNKNOWN), "score 0"),
    "unknown": Sample(Paint("unknown", UNKNOWN, "5 4"), "not scored"),
}
"""The lines of a circuit with scores, in the order of the legend."""
CONTINGENT = Sample(Paint("", "currentColor", "6 3"), "depends on the pairs")
"""Edges that fewer than 95 % of halves of the pairs have."""
LEAST_SHARE = 0.01
"""Edges are left out whose |score| is a smaller share of the largest."""
SCORE_STYLE = f"""\
.mechassay-circuit .helps {{ stroke: var(--mechassay-helps, {HELPS}); }}
.mechassay-circuit .hurts {{ stroke: var(--mechassay-hurts, {HURTS}); }}
"""


class DrawnScores(Protocol):
    """Scores of the edges of a graph."""

    @property
    def graph(self) -> Graph: ...
    @property
    def values(self) -> Float[Tensor, "writers readers"]: ...


def draw_circuit(
    scores: DrawnScores | None,
    circuit: Drawable,
    *,
    title: str = "",
    least: float = LEAST_SHARE,
    stable: Bool[Tensor, "writers readers"] | None = None,
) -> Drawing:
    """A circuit as a self-contained SVG; see the module's description for how to read it.

    Args:
        scores: None if no edge has one.
        least: edges whose |score| is a smaller share of the largest are left out; 0 draws all.
        stable: which edges do not depend on the pairs (`PartScores.stable`); others are dashed.

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
        return line_width(abs(score) / largest if largest else 0.0 if scored else PLAIN_SHARE)

    def total(lines: list[Line]) -> str:
        known = [by_name[line.name] for line in lines if not math.isnan(by_name[line.name])]
        return f"(sum {math.fsum(known):+.3g})"

    def look(name: str, into: list[Line], out: list[Line]) -> tuple[str, None]:
        return f"{name}: {len(into)} in {total(into)}, {len(out)} out {total(out)}", None

    samples = {name: _sample(score) if scored else PLAIN for name, score in by_name.items()}
    contingent = {
        edge for edge in score_of if stable is not None and not bool(stable[edge[0], edge[1]])
    }

    def paint(name: str, edge: tuple[int, int]) -> Paint:
        own = samples[name].paint
        return replace(own, dash=CONTINGENT.paint.dash) if edge in contingent else own

    lines = [
        Line.of(graph, *edge, width(score), paint(name, edge), signed(score))
        for (name, score), edge in zip(by_name.items(), score_of, strict=True)
    ]
    nodes, kept = nodes_between(graph, lines, look), len(circuit.pruned())
    paths = (
        f"{'all' if kept == len(circuit) else kept} of them on a path from input to logits"
        if lines
        else "an empty circuit"
    )
    left_out = _left_out(len(circuit) - len(lines), least)
    kinds = [sample for sample in (*SAMPLES.values(), PLAIN) if sample in samples.values()]
    kinds += [CONTINGENT] if contingent else []
    sizes = [
        Sample(Paint("", "currentColor"), f"|score| {size:.2g}", width(size))
        for size in ((largest, largest * 0.1) if largest else ())
    ]
    # More than two kinds and the sizes have no room in one row.
    rows = [[*kinds, *sizes]] if len(kinds) < 3 else [kinds, sizes]
    drawing = draw(
        lines,
        nodes,
        Legend(rows, left_out, SCORE_STYLE),
        lambda name, ends: f"{name}: {len(ends)} edges {total(ends)}",
        title,
        f"{len(circuit)} edges, {paths}; {len(lines)} are drawn, between input, logits, and"
        f" {len(nodes)} head{'s and MLPs' if len(nodes) != 1 else ' or MLP'}. {left_out}"
        f"{_depends(len(contingent), len(lines)) if stable is not None else ''}".strip(),
    )
    known = [edge for edge in by_name.items() if not math.isnan(edge[1])]
    return replace(drawing, strongest=tuple(sorted(known, key=lambda edge: -abs(edge[1]))))


def _depends(n_contingent: int, n_drawn: int) -> str:
    """How many of the drawn edges depend on the pairs."""
    if not n_contingent:
        return f" All {n_drawn:,} drawn are in at least 95 % of circuits of halves of the pairs."
    return f" Dashed are {n_contingent:,} that fewer than 95 % of halves of the pairs have."


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


def _sample(score: float) -> Sample:
    if math.isnan(score):
        return SAMPLES["unknown"]
    return SAMPLES["hurts" if score < 0 else "helps" if score > 0 else "zero"]
