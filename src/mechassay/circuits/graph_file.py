"""What a graph file of EAP-IG or MIB holds, and how it is written; `formats` reads it.

Edges stand in the order of their files: heads before queries, keys and values, by layer. Values are
written as they are: their scale is a sum over batches of batch means divided by the number of
examples, ours a mean over examples.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.display import OneLine
from mechassay.errors import BadUsage, NonFinite
from mechassay.files import whole, write_bytes
from mechassay.graph import Graph

ENDINGS = (".json", ".pt")


@dataclass(frozen=True, eq=False, repr=False)
class GraphFile(OneLine):
    """What a graph file holds.

    Attributes:
        graph: what its cfg describes.
        d_model: width of the residual stream.
        scores: None where all are 0: a graph that nobody scored.
        circuit: None where no edge is in; with neurons, if it was cut by neuron.
        node_scores, neuron_scores: NaN where there is none.
    """

    graph: Graph
    d_model: int
    scores: EdgeScores | None = None
    circuit: Circuit | None = None
    node_scores: Float[Tensor, "writers"] | None = None
    neuron_scores: Float[Tensor, "writers d_model"] | None = None

    def weighted_edge_count(self) -> float:
        """The size of the circuit; 0 without one."""
        return 0.0 if self.circuit is None else self.circuit.weighted_edge_count()

    @property
    def neurons(self) -> Bool[Tensor, "writers d_model"] | None:
        """The circuit's neurons, if it was cut by neuron."""
        return None if self.circuit is None else self.circuit.neurons

    def write(self, path: str | Path) -> None:
        """Write everything in the form that the ending of `path` names, whole or not at all.

        Raises:
            BadUsage: another ending, nothing to write, an attention-only model, or edges without a
                score that the file has no place for.
            NonFinite: an infinite score.
        """
        path = Path(path)
        ending = ending_of(path)
        _check_writable(self, ending)
        if ending == ".json":
            with whole(path) as file, file.open("w", encoding="utf-8") as out:
                out.writelines(_json_pieces(self))
        else:
            # Not into the file itself: an archive repeats the name of its file.
            archive = io.BytesIO()
            torch.save(_pt_content(self), archive)
            write_bytes(path, archive.getvalue())


@dataclass(frozen=True, eq=False)
class _EdgeRun:
    """Edges written together: the first `seen` writers into each of `readers`, writer by writer."""

    seen: int
    readers: np.ndarray

    def places(self, n_readers: int) -> np.ndarray:
        """Flat indices into a [writers, readers] tensor."""
        return (np.arange(self.seen)[:, None] * n_readers + self.readers).ravel()

    def names(self, writers: Sequence[str], readers: Sequence[str]) -> list[str]:
        targets = [f"->{readers[reader]}" for reader in self.readers.tolist()]
        return [writer + target for writer in writers[: self.seen] for target in targets]


def edge_runs(graph: Graph) -> Iterator[_EdgeRun]:
    """All edges, in the order of their files: heads before queries, keys and values, by layer."""
    for layer in range(graph.n_layers):
        slots = np.arange(graph.slots(layer).start, graph.slots(layer).stop)
        heads = slots.reshape(3, graph.n_heads).T.ravel()
        mlp = np.array([graph.mlp_reader(layer)])
        if graph.parallel:
            yield _EdgeRun(graph.seen_by_heads(layer), np.concatenate([heads, mlp]))
        else:
            yield _EdgeRun(graph.seen_by_heads(layer), heads)
            yield _EdgeRun(graph.seen_by_mlp(layer), mlp)
    yield _EdgeRun(graph.n_writers, np.array([graph.logits]))


def node_names(graph: Graph) -> tuple[list[str], list[str]]:
    """Names of writers and of readers."""
    return (
        [graph.writer_name(u) for u in range(graph.n_writers)],
        [graph.reader_name(v) for v in range(graph.n_readers)],
    )


def _check_writable(file: GraphFile, ending: str) -> None:
    graph = file.graph
    if not graph.mlp:
        raise BadUsage(
            "EAP-IG and MIB graph files know no attention-only models: every layer in them has an"
            " MLP."
        )
    if file.d_model < 1:
        raise BadUsage(f"d_model must be at least 1; got {file.d_model}.")
    if file.neurons is not None and file.neurons.shape[1] != file.d_model:
        raise BadUsage(
            f"d_model is {file.d_model}, but the circuit has {file.neurons.shape[1]} neurons a"
            " node."
        )
    if file.scores is None:
        return
    infinite = (file.scores.values.isinf() & graph.legal).nonzero()
    if len(infinite):
        raise NonFinite(
            f"{len(infinite)} edge scores are infinite, the first is"
            f" {graph.edge_name(*infinite[0].tolist())}."
        )
    missing = graph.legal & ~file.scores.scored()
    if ending == ".pt" and bool(missing.any()):
        raise BadUsage(
            f"{int(missing.sum())} edges have no score, and a .pt file has a place for every edge:"
            " write a .json file."
        )
    if file.circuit is not None and bool((missing & file.circuit.edges).any()):
        raise BadUsage(
            f"{int((missing & file.circuit.edges).sum())} edges of the circuit have no score: write"
            " the circuit alone."
        )


def _cfg_of(file: GraphFile) -> dict[str, Any]:
    graph = file.graph
    return {
        "n_layers": graph.n_layers,
        "n_heads": graph.n_heads,
        "parallel_attn_mlp": graph.parallel,
        "d_model": file.d_model,
    }


def _nodes_in(file: GraphFile) -> Bool[Tensor, "writers"]:
    """Writers with an edge out and, except for `input`, one in."""
    graph = file.graph
    if file.circuit is None:
        return torch.zeros(graph.n_writers, dtype=torch.bool)
    fed = torch.zeros(graph.n_writers + 1, dtype=torch.bool)
    fed[0] = True
    fed[graph.reader_owner[file.circuit.edges.any(dim=0)]] = True
    return fed[:-1] & file.circuit.edges.any(dim=1)


def _edge_values(
    file: GraphFile,
) -> tuple[Float[Tensor, "writers readers"], Bool[Tensor, "writers readers"]]:
    """Scores and flags at every place, 0 and false where there are none."""
    legal, values, flags = file.graph.legal, torch.zeros(file.graph.legal.shape), None
    if file.scores is not None:
        values = torch.where(legal, file.scores.values, values)
    flags = torch.zeros_like(legal) if file.circuit is None else file.circuit.edges
    return values, flags


def _pt_content(file: GraphFile) -> dict[str, Any]:
    writers, readers = node_names(file.graph)
    values, flags = _edge_values(file)
    optional = {
        "nodes_scores": file.node_scores,
        "neurons_in_graph": file.neurons,
        "neurons_scores": file.neuron_scores,
    }
    return {
        "cfg": _cfg_of(file),
        "src_nodes": writers,
        "dst_nodes": readers,
        "edges_scores": values.contiguous(),
        "edges_in_graph": flags.contiguous(),
        "nodes_in_graph": _nodes_in(file),
        **{key: value.contiguous() for key, value in optional.items() if value is not None},
    }


def _json_pieces(file: GraphFile) -> Iterator[str]:
    """The file in pieces, one for each block of edges; edges without a score are left out."""
    yield (
        f'{{"cfg": {json.dumps(_cfg_of(file))}, "nodes": {json.dumps(_node_entries(file))},'
        ' "edges": {'
    )
    if file.scores is None and file.circuit is None:
        # Of nodes or neurons alone: a place for every edge would be most of the file.
        yield "}}"
        return
    graph = file.graph
    writers, readers = node_names(graph)
    values, flags = (each.flatten().numpy() for each in _edge_values(file))
    between = ""
    for run in edge_runs(graph):
        places = run.places(graph.n_readers)
        names = run.names(writers, readers)
        edges = zip(names, values[places].tolist(), flags[places].tolist(), strict=True)
        entries = [
            f'"{name}": {{"score": {value!r}, "in_graph": {"true" if flag else "false"}}}'
            for name, value, flag in edges
            if value == value  # not NaN
        ]
        if entries:
            yield between + ", ".join(entries)
            between = ", "
    yield "}}"


def _node_entries(file: GraphFile) -> dict[str, dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = {}
    for writer, flag in enumerate(_nodes_in(file).tolist()):
        entry: dict[str, Any] = {"in_graph": flag}
        if file.node_scores is not None and not bool(file.node_scores[writer].isnan()):
            entry["score"] = float(file.node_scores[writer])
        if file.neurons is not None:
            entry["neurons"] = file.neurons[writer].tolist()
        if file.neuron_scores is not None:
            entry["neurons_scores"] = file.neuron_scores[writer].tolist()
        nodes[file.graph.writer_name(writer)] = entry
    return {**nodes, "logits": {"in_graph": True}}


def ending_of(path: Path) -> str:
    """The ending of a graph file's name.

    Raises:
        BadUsage: it is another.
    """
    if path.suffix not in ENDINGS:
        raise BadUsage(f"{path}: a graph file ends in {' or '.join(ENDINGS)}.")
    return path.suffix
