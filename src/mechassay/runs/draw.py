"""Circuits as they are typed, and their drawings as files.

Whatever `circuits.spec` takes and needs no model can be drawn. Random circuits, the full and the
empty one are drawn on the graph of the circuit beside them. A file without a size gives what a
drawing has room for: of edge scores the largest circuit of the best edges, of node scores that of
the best nodes (all edges out of them), of neuron scores that of the best nodes by the sum of their
neurons. All are pruned: what is on no path from `input` to `logits` cannot change the output. A
graph file without scores gives the circuit that it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.drawable import DRAWN_EDGES, largest_drawable
from mechassay.circuits.node_scores import NeuronScores, NodeScores
from mechassay.circuits.overlap import nodes_of, overlap_of
from mechassay.circuits.scores import By, EdgeScores
from mechassay.circuits.spec import CircuitSpec, read_scores_or_circuit
from mechassay.drawing.canvas import Drawing
from mechassay.drawing.circuit import LEAST_SHARE, draw_circuit
from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.graph import Graph
from mechassay.report.comparison import draw_comparison, overlap_grid
from mechassay.report.page import Figure as PageFigure
from mechassay.report.page import render
from mechassay.report.pictures import write_picture
from mechassay.report.sections import parts, table_sections
from mechassay.report.tables import TextTable
from mechassay.runs.folder import write_text

PICTURES = (".png", ".pdf")
DRAWINGS = (".svg", *PICTURES, ".html")
TITLE_TWO = "Two circuits and what they share"
READING = {
    "Boxes and lines": (
        "A rounded box is an attention head, a hexagon an MLP; a line is an edge. The computation"
        " runs upwards. Point at a line or a box for its name and numbers."
    ),
    "Scores": (
        "Positive: the objective drops when the edge is ablated, so the edge helps. Lines grow with"
        " the square root of |score|; dashed grey lines have no score."
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
        provenance: of the scores.
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
        return f"{self.name}: {self.how}"

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
    """Circuits as they are typed, see `circuits.spec`.

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
    found = spec.find(graph)
    how = "; ".join(f"{key} {value}" for key, value in found.about.items()) or "every edge or none"
    return Cut(spec, found.circuit, None, how, {})


def _of_file(spec: CircuitSpec, n_edges: int | None, by: By, greedy: bool) -> Cut:
    scores, circuit = read_scores_or_circuit(Path(spec.name))
    size = n_edges if spec.size is None else spec.size
    sized = replace(spec, size=size, greedy=greedy or spec.greedy)
    if isinstance(scores, EdgeScores):
        how, found = _cut_edges(sized, scores, by)
        return Cut(spec, found, scores, how, scores.provenance)
    if sized.greedy:
        raise BadUsage(
            f"{spec.text}: greedy grows edges by their scores; the file has none of edges."
        )
    if scores is not None and spec.size is None:
        how, found = _cut_nodes(spec, scores, DRAWN_EDGES if n_edges is None else n_edges, by)
        return Cut(spec, found, None, how, scores.provenance)
    found = sized.chosen(scores, circuit, by)
    if found.neurons is not None:
        # Edges out of a writer without a neuron carry nothing.
        edges = found.edges & found.neurons.any(dim=1)[:, None]
        found = Circuit(found.graph, edges, found.neurons)
    if scores is None:
        return Cut(spec, found, None, "the circuit in the file", {})
    room = f"{size:,} edges" if isinstance(size, int) else f"{size:g} of the edges"
    return Cut(spec, found, None, f"the best nodes by {by} within {room}", scores.provenance)


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
    found = largest_drawable(scores, n_edges, by)
    if n_edges and not len(found):
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
    return f"the best nodes by {by}{summed}, pruned", found


def write_drawing(output: Path, cuts: Sequence[Cut], *, least: float = LEAST_SHARE) -> None:
    """Draw one circuit, or compare two, as an SVG, a picture or a page, by the ending of `output`.

    Args:
        cuts: one or two.
        least: of one circuit, edges are left out whose |score| is a smaller share of the largest.

    Raises:
        BadUsage: another ending, or more edges than a drawing holds.
        GraphMismatch: two circuits of different graphs.
    """
    check_output(output)
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
    sizes = [_sizes(cut) for cut in cuts]
    drawn = [_figure(cut.drawing(least=least)) for cut in cuts]
    facts = [_facts(cut) for cut in cuts]
    if len(cuts) == 1:
        return render(f"Circuit of {cuts[0].name}", table_sections(sizes, READING, facts, drawn))
    a, b = cuts
    names = _names(a, b)
    overlap = overlap_grid(overlap_of(a.circuit, b.circuit), names)
    drawn = [_figure(_comparison(a, b)), *drawn]
    return render(
        f"Circuits of {names[0]} and {names[1]}",
        table_sections([overlap, *sizes], READING_TWO | READING, facts, drawn),
    )


def _figure(drawing: object) -> PageFigure:
    svg, _, _ = parts(drawing)
    return PageFigure(svg, kind="drawing")


def _sizes(cut: Cut) -> TextTable:
    """The size of one circuit."""
    graph, n = cut.circuit.graph, len(cut.circuit)
    counts = (
        f"{n:,}",
        f"{graph.n_edges:,}",
        f"{n / graph.n_edges:.2%}",
        f"{int(nodes_of(cut.circuit).sum()):,}",
    )
    columns = ("", "edges", "in the graph", "share", "heads and MLPs")
    return TextTable.of(cut.title, columns, ((cut.name, *counts),))


def _facts(cut: Cut) -> dict[str, str]:
    about = cut.provenance
    keys = ("method", "settings", "model", "task", "split", "objective", "n_examples")
    return {
        "circuit": cut.spec.text,
        "cut": cut.how,
        **{key.replace("n_", ""): _shown(about.get(key, "")) for key in keys},
    }


def _shown(value: Any) -> str:
    return (
        ", ".join(f"{key}={each}" for key, each in value.items())
        if isinstance(value, Mapping)
        else str(value)
    )
