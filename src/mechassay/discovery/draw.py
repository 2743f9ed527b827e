"""Drawings of circuits as files: one circuit, or two circuits of one graph and what they share.

Whatever a circuit specification names and needs no model can be drawn (`cut_circuits`), as SVG,
PNG, PDF, an HTML page, or the JSON of an attribution graph (`write_drawing`). Of a file that is
typed without a size, this is drawn:

    edge scores     the largest circuit of the best edges that a drawing has room for
    node scores     that of the best nodes, with all edges out of them
    neuron scores   that of the best nodes by the sum of their neurons
    a circuit       the circuit as it is

What is cut from scores is pruned: what is on no path from `input` to `logits` cannot change the
output. Random circuits, the full and the empty one are drawn on the graph of the circuit beside
them.

Two circuits share one layered drawing of all their edges (`draw_comparison`); colour and dashes
say whose an edge is. The caption says how much the circuits share, and how much random circuits
of the same sizes would. PNG and PDF are drawn by matplotlib from our own SVGs (`picture`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from mechassay.circuits.attribution_graph import attribution_graph
from mechassay.circuits.circuit import Circuit, Overlap, nodes_of, overlap_of
from mechassay.circuits.drawing import (
    LEAST_SHARE,
    PLAIN_SHARE,
    Drawing,
    Legend,
    Line,
    Paint,
    Sample,
    check_drawable,
    draw,
    draw_circuit,
    line_width,
    nodes_between,
    signed,
)
from mechassay.circuits.methods.spec import GIVEN, CircuitSpec, read_scores_or_circuit
from mechassay.circuits.picture import write_picture
from mechassay.circuits.scores import (
    DRAWN_EDGES,
    By,
    EdgeScores,
    NeuronScores,
    NodeScores,
    largest_drawable,
)
from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.models.graph import Graph
from mechassay.models.origin import origin_text
from mechassay.results.page import NOTHING, Report, Section, Text, TextTable, render
from mechassay.results.page import Figure as PageFigure
from mechassay.results.sections import framed, run_section, svg_parts
from mechassay.utils.display import counted, number, share, shortened
from mechassay.utils.files import write_text

Held = Literal["both", "only-a", "only-b"]
HELD: tuple[Held, ...] = ("both", "only-a", "only-b")
ONLY_A, ONLY_B = "#8040c0", "#0a8a5f"
PAINTS: dict[Held, Paint] = {
    "both": Paint("both", "currentColor"),
    "only-a": Paint("only-a", ONLY_A, "9 4"),
    "only-b": Paint("only-b", ONLY_B, "2.5 3"),
}
THIN = 1.8
"""Width below which dashes and dots are hard to tell apart."""
SHORT = 40
"""Letters of a circuit's name in the drawing; pointing at a line shows all of it."""


WIDTHS = "The width of a line is |score| as a share of the largest of its circuit."
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
    """Two circuits as one self-contained SVG.

    Colour and dashes say whose an edge is: the page's own colour and a solid line in both,
    purple and long dashes only in the first circuit, green and dots only in the second.
    Outlines of heads and MLPs say the same: a node is in a circuit that has an edge into or out
    of it. No common form of colour blindness confuses the colours. A page may set
    `--mechassay-only-a` and `--mechassay-only-b`.

    With scores of both circuits, a line's width grows with the square root of |score| as a
    share of the circuit's largest. Scores themselves are not compared, as methods differ in
    scale.

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
        values = ", ".join(f"{name} {signed(float(s.values[u, v]))}" for name, _, s in given)
        text = "; ".join(filter(None, (_held_text(held, names), values)))
        largest = max((share_of.get((u, v), 0.0) for share_of in shares), default=PLAIN_SHARE)
        lines.append(Line.of(a.graph, u, v, max(THIN, line_width(largest)), PAINTS[held], text))
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
    widths = f" {WIDTHS}" if shares and lines else ""
    return draw(
        lines,
        nodes_between(a.graph, lines, look),
        Legend(_samples(overlap, short), overlap_text(overlap, short) + widths, STYLE),
        lambda name, ends: f"{name}: {len(ends)} edges{counts(ends)}",
        title,
        overlap_text(overlap, names),
    )


def _shares(circuit: Circuit, scores: EdgeScores) -> dict[tuple[int, int], float]:
    """score| of each of the circuit's edges as a share of the largest; 0 without a score."""
    strength = {
        (u, v): abs(float(scores.values[u, v])) for u, v in circuit.edges.nonzero().tolist()
    }
    known = {edge: 0.0 if math.isnan(score) else score for edge, score in strength.items()}
    largest = max(known.values(), default=0.0)
    return {edge: score / largest for edge, score in known.items()} if largest else known


def _held_text(held: Held, names: tuple[str, str]) -> str:
    return "in both" if held == "both" else f"only in {names[0] if held == 'only-a' else names[1]}"


def _samples(overlap: Overlap, names: tuple[str, str]) -> list[list[Sample]]:
    """The legend: a row for each kind of line there is, with its numbers of edges and nodes."""
    edges = (overlap.edges_both, overlap.edges_a, overlap.edges_b)
    nodes = (overlap.nodes_both, overlap.nodes_a, overlap.nodes_b)
    rows: list[list[Sample]] = []
    for held, n, k in zip(HELD, edges, nodes, strict=True):
        if held != "both":
            n, k = n - overlap.edges_both, k - overlap.nodes_both
        counts = f"{n:,} edge{'s' * (n != 1)}, {k:,} node{'s' * (k != 1)}"
        if n or k:
            rows.append([Sample(PAINTS[held], f"{_held_text(held, names)}: {counts}")])
    return rows or [[]]


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


PICTURES = (".png", ".pdf")
GRAPH = ".json"
DRAWINGS = (".svg", *PICTURES, ".html", GRAPH)
TITLE_TWO = "Two circuits and what they share"
READING = {
    "Boxes and lines": (
        "A rounded box is an attention head, a hexagon an MLP; a line is an edge. The computation"
        " runs upwards. Point at a line or a box for its name and numbers."
    ),
    "Scores": (
        "Positive: the objective drops when the edge is ablated, so the edge helps. Lines grow with"
        " the square root of |score|. A dashed grey line has no score; where no edge has one, all"
        " lines are plain and grey."
    ),
}
READING_TWO = {
    "Comparison": (
        "Solid lines in the colour of the text are in both circuits, coloured ones in only one. A"
        " node is in a circuit that has an edge into or out of it. Where both have scores, width is"
        " |score| as a share of the circuit's largest."
    ),
    "Jaccard overlap": "What both have, as a share of what either has.",
    "If random": (
        "For circuits of the same sizes, all sets of edges alike (hypergeometric). Connected"
        " circuits share edges near the input and the logits anyway: a small probability says that"
        " the circuits are related, not that they are one mechanism."
    ),
}


@dataclass(frozen=True)
class Cut:
    """A circuit to draw.

    Attributes:
        spec: how it was typed.
        circuit: what is drawn; pruned, unless it was given as a circuit.
        scores: of its edges; None where only nodes have scores, or nothing has.
        how: how it was cut.
        provenance: of the scores, or of the circuit.
    """

    spec: CircuitSpec
    circuit: Circuit
    scores: EdgeScores | None
    how: str
    provenance: Mapping[str, Any]

    @property
    def name(self) -> str:
        return Path(self.spec.name).stem if self.spec.kind == "file" else self.spec.text

    @property
    def title(self) -> str:
        of = f" of {self.model}" if self.model else ""
        return f"{self.name}{of}: {self.how}"

    @property
    def model(self) -> str:
        """The model in which it was found, with the digest of its weights; "" if that is not
        known.
        """
        return origin_text(self.provenance)

    def drawing(self, title: str = "", least: float = LEAST_SHARE) -> Drawing:
        """The circuit alone; see `draw_circuit`."""
        return draw_circuit(self.scores, self.circuit, title=title, least=least)


def cut_circuits(
    texts: Sequence[str],
    n_edges: int | None = None,
    *,
    by: By = "magnitude",
    greedy: bool = False,
) -> list[Cut]:
    """Circuits as they are typed, see `circuits.methods.spec`.

    Args:
        n_edges: edges to cut from files without a size of their own, before pruning; of nodes, at
            most so many edges after it. If not given, what `largest_drawable` finds.
        greedy: grow the edges of all files from the logits.

    Raises:
        BadFile: missing, foreign, or nothing in it to draw.
        BadUsage: a circuit that needs a model; more edges than the graph has; options that do not
            go with what a file holds.
        UnknownName: no such circuit or ranking.
    """
    one_of("ranking", by, get_args(By))
    specs = [CircuitSpec.parse(text, sized=False) for text in texts]
    cuts = [
        _of_file(spec, n_edges, by, greedy) if spec.kind == "file" else _of_name(spec, None)
        for spec in specs
        if spec.kind in ("file", "canonical")
    ]
    graph = cuts[0].circuit.graph if cuts else None
    known = {cut.spec: cut for cut in cuts}
    return [known.get(spec) or _of_name(spec, graph) for spec in specs]


def _of_name(spec: CircuitSpec, graph: Graph | None) -> Cut:
    circuit = spec.find(graph)
    how = (
        "; ".join(f"{key} {value}" for key, value in circuit.about.items()) or "every edge or none"
    )
    return Cut(spec, circuit.circuit, None, how, {})


def _of_file(spec: CircuitSpec, n_edges: int | None, by: By, greedy: bool) -> Cut:
    scores, circuit = read_scores_or_circuit(Path(spec.name))
    size = n_edges if spec.size is None else spec.size
    sized = replace(spec, size=size, greedy=greedy or spec.greedy)
    if isinstance(scores, EdgeScores):
        how, drawn = _cut_edges(sized, scores, by)
        return Cut(spec, drawn, scores, how, scores.provenance)
    if sized.greedy:
        raise BadUsage(
            f"{spec.text}: greedy grows edges by their scores; the file has none of edges."
        )
    if scores is not None and spec.size is None:
        how, drawn = _cut_nodes(spec, scores, DRAWN_EDGES if n_edges is None else n_edges, by)
        return Cut(spec, drawn, None, how, scores.provenance)
    circuit_origin = {} if circuit is None else circuit.provenance
    drawn = sized.chosen(scores, circuit, by)
    if drawn.neurons is not None:
        # Edges out of a writer without a neuron carry nothing.
        edges = drawn.edges & drawn.neurons.any(dim=1)[:, None]
        drawn = Circuit(drawn.graph, edges, drawn.neurons)
    if scores is None:
        return Cut(spec, drawn, None, "the circuit in the file", circuit_origin)
    room = f"{size:,} edges" if isinstance(size, int) else f"{size:g} of the edges"
    return Cut(spec, drawn, None, f"the best nodes by {by} within {room}", scores.provenance)


def _cut_edges(spec: CircuitSpec, scores: EdgeScores, by: By) -> tuple[str, Circuit]:
    grows = spec.greedy or scores.grows
    if spec.size is None and not grows:
        how = "the strongest connected edges" + (" by value" if by == "value" else "")
        return how, largest_drawable(scores, by=by)
    n = scores.size(min(DRAWN_EDGES, scores.graph.n_edges) if spec.size is None else spec.size)
    how = (
        f"{n:,} edges grown from the logits by {by}, pruned"
        if grows
        else f"the {n:,} best edges by {by}, pruned"
    )
    return how, replace(spec, size=n).cut(scores, by)


def _cut_nodes(
    spec: CircuitSpec, given: NodeScores | NeuronScores, n_edges: int, by: By
) -> tuple[str, Circuit]:
    graph, path = given.graph, spec.name
    if not 0 <= n_edges <= graph.n_edges:
        raise BadUsage(
            f"{path}: a circuit's size must be between 0 and {graph.n_edges} edges; got {n_edges}."
        )
    scores = given.nodes() if isinstance(given, NeuronScores) else given
    circuit = largest_drawable(scores, n_edges, by)
    if n_edges and not len(circuit):
        ranked = len(scores.ranking(by))
        first = bisect_left(range(ranked + 1), 1, key=lambda n: len(scores.top(n, by=by).pruned()))
        if first > ranked:
            raise BadUsage(f"{path}: no circuit of its scored nodes leads from input to logits.")
        size = len(scores.top(first, by=by).pruned())
        raise BadUsage(
            f"{path}: scores of {given.unit}s give circuits of whole nodes; the smallest connected"
            f" one by {by} has {size:,} edges, more than {n_edges:,}: give --edges {size}."
        )
    summed = ", their neurons summed" if isinstance(given, NeuronScores) else ""
    return f"the best nodes by {by}{summed}, pruned", circuit


def write_drawing(output: Path, cuts: Sequence[Cut], *, least: float = LEAST_SHARE) -> None:
    """Draw one circuit, or compare two, as an SVG, a picture or a page, by the ending of `output`;
    one as an attribution graph (`.json`).

    Args:
        cuts: one or two.
        least: of one circuit, edges are left out whose |score| is a smaller share of the largest.

    Raises:
        BadUsage: another ending, more edges than a drawing holds, or two circuits as a graph.
        GraphMismatch: two circuits of different graphs.
    """
    check_output(output)
    if output.suffix == GRAPH:
        if len(cuts) == 2:
            raise BadUsage(f"{output}: an attribution graph (.json) is of one circuit; got two.")
        circuit, scores = cuts[0].circuit, cuts[0].scores
        model = str(cuts[0].provenance.get("model", ""))
        text = attribution_graph(circuit, scores, slug=output.stem, model=model)
        write_text(output, text + "\n")
        return
    if len(cuts) == 2 and cuts[0].circuit.graph != cuts[1].circuit.graph:
        a, b = cuts
        raise GraphMismatch(
            f"{a.spec.text} is about {a.circuit.graph}; {b.spec.text} is about {b.circuit.graph}."
        )
    if output.suffix == ".html":
        write_text(output, _page(cuts, least))
        return
    if len(cuts) == 1:
        drawing = cuts[0].drawing(cuts[0].title, least)
    else:
        drawing = _comparison(*cuts, title=TITLE_TWO)
    if output.suffix in PICTURES:
        write_picture(output, drawing.svg)
    else:
        write_text(output, drawing.svg + "\n")


def check_output(output: Path) -> None:
    """Refuse an ending that no drawing has.

    Raises:
        BadUsage: none of `DRAWINGS`.
    """
    if output.suffix not in DRAWINGS:
        *others, last = DRAWINGS
        raise BadUsage(f"{output}: a drawing ends in {', '.join(others)} or {last}.")


def _comparison(a: Cut, b: Cut, title: str = "") -> Drawing:
    return draw_comparison(
        a.circuit, b.circuit, names=_names(a, b), scores_a=a.scores, scores_b=b.scores, title=title
    )


def _names(a: Cut, b: Cut) -> tuple[str, str]:
    """The circuits' names; as they were typed where they are called alike."""
    return (a.name, b.name) if a.name != b.name else (a.spec.text, b.spec.text)


def _page(cuts: Sequence[Cut], least: float) -> str:
    drawings = [Section(cut.title, (_figure(cut.drawing(least=least)),)) for cut in cuts]
    facts = run_section([_facts(cut) for cut in cuts])
    if len(cuts) == 1:
        (cut,) = cuts
        graph, n = cut.circuit.graph, len(cut.circuit)
        nodes = counted(int(nodes_of(cut.circuit).sum()), "head or MLP", "heads and MLPs")
        size = (
            f"{cut.name} has {n:,} of {graph.n_edges:,} edges ({share(n / graph.n_edges)}),"
            f" between {nodes}: {cut.how}."
        )
        if cut.model:
            size += f" It was found in {cut.model}."
        elif cut.spec.kind in GIVEN:
            size += " It is not known in which model it was found."
        answer = [Text(size, "verdict")]
        sections = framed(Report(), answer, drawings, reading=READING, facts=facts)
        return render(f"Circuit of {cut.name}", sections)
    a, b = cuts
    names = _names(a, b)
    overlap = overlap_of(a.circuit, b.circuit)
    sections = framed(
        Report(),
        [Text(overlap_text(overlap, names), "verdict")],
        [Section("Overlap", (overlap_grid(overlap, names),)), *drawings],
        figure=[_figure(_comparison(a, b))],
        reading=READING_TWO | READING,
        facts=facts,
    )
    return render(f"Circuits of {names[0]} and {names[1]}", sections)


def _figure(drawing: object) -> PageFigure:
    svg, _, _ = svg_parts(drawing)
    return PageFigure(svg, kind="drawing")


def _facts(cut: Cut) -> dict[str, str]:
    about = cut.provenance
    keys = ("method", "settings", "model", "task", "split", "objective", "n_examples")
    return {
        "circuit": cut.spec.text,
        "cut": cut.how,
        **{key.replace("n_", ""): _setting_text(about.get(key, "")) for key in keys},
    }


def _setting_text(value: Any) -> str:
    return (
        ", ".join(f"{key}={part}" for key, part in value.items())
        if isinstance(value, Mapping)
        else str(value)
    )
