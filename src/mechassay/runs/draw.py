"""Circuits cut from score files, and their drawings as files.

A file of edge scores gives the circuit of its best edges, one of node scores that of its best nodes
(all edges out of them), one of neuron scores that of the best nodes by the sum of their neurons.
All are pruned: what is on no path from `input` to `logits` cannot change the output. A graph file
without scores gives the circuit that it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from mechassay.circuits.formats import ENDINGS, read_graph_file
from mechassay.circuits.node_scores import NeuronScores, NodeScores, load_scores
from mechassay.circuits.overlap import nodes_of, overlap_of
from mechassay.circuits.scores import By, Circuit, EdgeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName
from mechassay.report.comparison import draw_comparison, overlap_grid
from mechassay.report.drawing import draw_circuit
from mechassay.report.page import Figure, render
from mechassay.report.sections import parts, table_sections
from mechassay.report.tables import Table
from mechassay.runs.circuits import DRAWN_EDGES, legible
from mechassay.runs.folder import write_text

OURS = ".safetensors"
DRAWINGS = (".svg", ".html")
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
    """A circuit cut from a file.

    Attributes:
        path: of the file.
        circuit: what is drawn; pruned, unless the file held it as a circuit.
        scores: of its edges; None where only nodes have scores, or nothing has.
        how: how it was cut.
        provenance: of the scores.
    """

    path: Path
    circuit: Circuit
    scores: EdgeScores | None
    how: str
    provenance: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def title(self) -> str:
        return f"{self.name}: {self.how}"

    def drawing(self, title: str = "") -> str:
        """The circuit alone."""
        graph = self.circuit.graph
        unknown = EdgeScores(graph, torch.full((graph.n_writers, graph.n_readers), torch.nan))
        return draw_circuit(
            unknown if self.scores is None else self.scores, self.circuit, title=title
        )


def cut_circuit(
    path: Path, n_edges: int | None = None, *, by: By = "magnitude", greedy: bool = False
) -> Cut:
    """The circuit of a score file's best edges or nodes.

    Args:
        path: scores of ours (.safetensors), or a graph file of EAP-IG or MIB (.json, .pt).
        n_edges: edges to cut before pruning; of nodes, at most so many edges after it. If not
            given, what `legible` finds.
        greedy: grow the edges from the logits.

    Raises:
        BadFile: missing, foreign, or nothing in it to draw.
        BadUsage: another ending; more edges than the graph has; options that do not go with what
            the file holds.
        UnknownName: no such ranking.
    """
    if by not in get_args(By):
        raise UnknownName("ranking", by, get_args(By))
    scores, circuit = _read(path)
    if isinstance(scores, EdgeScores):
        how, found = _cut_edges(scores, n_edges, by, greedy)
        return Cut(path, found, scores, how, scores.provenance)
    if greedy:
        raise BadUsage(f"{path}: --greedy grows edges by their scores; the file has none of edges.")
    if scores is not None:
        how, found = _cut_nodes(path, scores, DRAWN_EDGES if n_edges is None else n_edges, by)
        return Cut(path, found, None, how, scores.provenance)
    if n_edges is not None:
        raise BadUsage(
            f"{path}: holds a circuit of {len(circuit)} edges without scores to cut {n_edges} by:"
            " leave out --edges."
        )
    return Cut(path, circuit, None, "the circuit in the file", {})


def _read(path: Path) -> tuple[EdgeScores | NodeScores | NeuronScores | None, Circuit]:
    """A file's scores, those of edges first,
    and the circuit that it holds beside or instead of them.
    """
    if path.suffix == OURS:
        scores = load_scores(path)
        return scores, Circuit.empty(scores.graph)
    if path.suffix not in ENDINGS:
        raise BadUsage(f"{path}: a score file ends in {OURS}, {' or '.join(ENDINGS)}.")
    file = read_graph_file(path)
    circuit = Circuit.empty(file.graph) if file.circuit is None else file.circuit
    if circuit.neurons is not None:
        # Edges out of a writer without a neuron carry nothing.
        circuit = Circuit(
            file.graph, circuit.edges & circuit.neurons.any(dim=1)[:, None], circuit.neurons
        )
    if file.scores is not None:
        return file.scores, circuit
    if file.node_scores is not None and not bool(file.node_scores.isnan().all()):
        return NodeScores(file.graph, file.node_scores), circuit
    if file.neuron_scores is not None and not bool(file.neuron_scores.isnan().all()):
        return NeuronScores(file.graph, file.neuron_scores), circuit
    if file.circuit is None:
        raise BadFile(f"{path}: has no scores and no circuit.")
    return None, circuit


def _cut_edges(
    scores: EdgeScores, n_edges: int | None, by: By, greedy: bool
) -> tuple[str, Circuit]:
    if n_edges is not None:
        scores.size(n_edges)  # Too many or too few is wrong, greedily too.
    if greedy or scores.grows:
        n = min(DRAWN_EDGES, scores.graph.n_edges) if n_edges is None else n_edges
        return (
            f"{n:,} edges grown from the logits by {by}, pruned",
            scores.greedy(n, by=by).pruned(),
        )
    if n_edges is None:
        return "the strongest connected edges" + (" by value" if by == "value" else ""), legible(
            scores, by=by
        )
    return f"the {n_edges:,} best edges by {by}, pruned", scores.top(n_edges, by=by).pruned()


def _cut_nodes(
    path: Path, given: NodeScores | NeuronScores, n_edges: int, by: By
) -> tuple[str, Circuit]:
    graph = given.graph
    if not 0 <= n_edges <= graph.n_edges:
        raise BadUsage(
            f"{path}: a circuit's size must be between 0 and {graph.n_edges} edges; got {n_edges}."
        )
    scores = given.nodes() if isinstance(given, NeuronScores) else given
    found = legible(scores, n_edges, by)
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


def write_drawing(output: Path, cuts: Sequence[Cut]) -> None:
    """Draw one circuit, or compare two, as an SVG or as a page, by the ending of `output`.

    Args:
        cuts: one or two.

    Raises:
        BadUsage: another ending, or more edges than a drawing holds.
        GraphMismatch: two circuits of different graphs.
    """
    check_output(output)
    if len(cuts) == 2 and cuts[0].circuit.graph != cuts[1].circuit.graph:
        a, b = cuts
        raise GraphMismatch(
            f"{a.path} is about {a.circuit.graph}; {b.path} is about {b.circuit.graph}."
        )
    if output.suffix == ".html":
        write_text(output, _page(cuts))
    else:
        write_text(
            output,
            (
                cuts[0].drawing(cuts[0].title)
                if len(cuts) == 1
                else _comparison(*cuts, title=TITLE_TWO)
            )
            + "\n",
        )


def check_output(output: Path) -> None:
    """Refuse an ending that no drawing has.

    Raises:
        BadUsage: neither .svg nor .html.
    """
    if output.suffix not in DRAWINGS:
        raise BadUsage(f"{output}: a drawing ends in {' or '.join(DRAWINGS)}.")


def _comparison(a: Cut, b: Cut, title: str = "") -> str:
    return draw_comparison(
        a.circuit, b.circuit, names=_names(a, b), scores_a=a.scores, scores_b=b.scores, title=title
    )


def _names(a: Cut, b: Cut) -> tuple[str, str]:
    """The files' names; with their folders where they are called alike."""
    return (a.name, b.name) if a.name != b.name else (str(a.path), str(b.path))


def _page(cuts: Sequence[Cut]) -> str:
    sizes, drawn = [_sizes(cut) for cut in cuts], [_figure(cut.drawing()) for cut in cuts]
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


def _figure(drawing: object) -> Figure:
    svg, _, _ = parts(drawing)
    return Figure(svg)


def _sizes(cut: Cut) -> Table:
    """The size of one circuit."""
    graph, n = cut.circuit.graph, len(cut.circuit)
    counts = (
        f"{n:,}",
        f"{graph.n_edges:,}",
        f"{n / graph.n_edges:.2%}",
        f"{int(nodes_of(cut.circuit).sum()):,}",
    )
    columns = ("", "edges", "in the graph", "share", "heads and MLPs")
    return Table.of(cut.title, columns, ((cut.name, *counts),))


def _facts(cut: Cut) -> dict[str, str]:
    about = cut.provenance
    keys = ("method", "settings", "model", "task", "split", "objective", "n_examples")
    return {
        "file": str(cut.path),
        "cut": cut.how,
        **{key.replace("n_", ""): _shown(about.get(key, "")) for key in keys},
    }


def _shown(value: Any) -> str:
    return (
        ", ".join(f"{key}={each}" for key, each in value.items())
        if isinstance(value, Mapping)
        else str(value)
    )
