"""Graph files of EAP-IG and MIB: what they hold, and how they are read and written.

Format of Hanna et al. 2024 and Mueller et al. 2025:

    .json   {"cfg": {n_layers, n_heads, parallel_attn_mlp, d_model},
             "nodes": {name: {in_graph[, score][, neurons][, neurons_scores]}},
             "edges": {name: {score, in_graph}}}
    .pt     a PyTorch archive of cfg, src_nodes, dst_nodes, edges_scores, edges_in_graph,
            nodes_in_graph [, nodes_scores, neurons_in_graph, neurons_scores]; scores and flags
            are [writers, readers]

Their nodes are numbered and their scores signed as ours. Their scale is a sum over batches of
batch means divided by the number of examples, ours a mean over examples; values are kept as they
are. Edges are written heads before queries, keys and values, by layer.

Their graphs begin with all scores 0 and no edge in: both are None here. A score may be missing
for single edges of a JSON file (NaN here); one that is NaN or infinite is an error. Scores of
nodes and neurons may be NaN, "not scored": their evaluator keeps these in every circuit
(`scores.KEPT`), as the input of node rankings that give it no score. The flags of nodes follow
from those of edges and are not used, nor are places of the tensors without an edge.

Files are read by the names they carry, which their code for .pt ignores. Nothing in a file is
executed: see `models.weight_files`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import KEPT, EdgeScores, NeuronScores, NodeScores, Scores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, first_line
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.weight_files import checked_tensor, load_archive
from mechassay.results.records import Record
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine
from mechassay.utils.files import kind_of, whole, write_bytes

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
    legal, values, flags = (
        file.graph.legal,
        torch.zeros(file.graph.legal.shape, dtype=torch.float32),
        None,
    )
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
    values, flags = (tensor.flatten().numpy() for tensor in _edge_values(file))
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


# Names that a message lists before it counts the rest.
NAMED = 3
# Largest [writers, readers] tensor that a file may ask for: 4 GB of scores, above a 405B model's.
MAX_PLACES = 2**30


def read_graph_file(path: str | Path, graph: Graph | None = None) -> GraphFile:
    """Read an EAP-IG or MIB graph file; nothing in it is executed.

    Args:
        path: ends in .json or .pt.
        graph: what the file must be about; if not given, what it says.

    Raises:
        BadFile: missing, truncated, foreign or unsafe, or with wrong edges or values; the message
            says what is wrong first.
        GraphMismatch: about another graph than `graph`.
        BadUsage: another ending.
    """
    path = Path(path)
    read = (_read_json, _read_pt)[ENDINGS.index(ending_of(path))]
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file or folder.")
    return read(path, graph)


def write_graph_file(
    path: str | Path,
    scores: EdgeScores | None = None,
    circuit: Circuit | None = None,
    *,
    d_model: int,
) -> None:
    """Write edge scores, a circuit or both as an EAP-IG or MIB graph file, by the ending of `path`.

    Raises:
        GraphMismatch: scores and circuit are about different graphs.
        BadUsage, NonFinite: see `GraphFile.write`.
    """
    given = [stored.graph for stored in (scores, circuit) if stored is not None]
    if not given:
        raise BadUsage("A graph file needs scores, a circuit or both; got neither.")
    if given[0] != given[-1]:
        raise GraphMismatch(
            f"The scores are about {given[0]}, the circuit about {given[-1]}; one file holds one"
            " graph."
        )
    GraphFile(given[0], d_model, scores, circuit).write(path)


def convert_graph_file(
    source: str | Path, target: str | Path, graph: Graph | None = None
) -> GraphFile:
    """Read `source`, write everything in it to `target` in the form of its ending, and return it.

    Errors are those of `read_graph_file` and of `GraphFile.write`.
    """
    ending_of(Path(target))
    file = read_graph_file(source, graph)
    file.write(target)
    return file


# Reading


def _refuse(path: Path, names: Iterable[str], wrong: Iterable[bool], what: str) -> None:
    """Refuse a file for what is wrong with some of the names in it."""
    bad = list(compress(names, wrong))
    if bad:
        bad_names = ", ".join(name[:80] for name in bad[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        raise BadFile(f"{path}: {len(bad)} {what}: {bad_names}{more}.")


def _graph_file(
    path: Path,
    graph: Graph,
    d_model: int,
    values: Float[np.ndarray, "writers readers"],
    flags: Bool[np.ndarray, "writers readers"],
    node_scores: Tensor | None,
    neurons: Tensor | None,
    neuron_scores: Tensor | None,
) -> GraphFile:
    """What was read, without scores where all are 0 and without a circuit where no edge is in."""
    scores = EdgeScores(graph, torch.from_numpy(values), {"source": path.name})
    circuit = Circuit(graph, torch.from_numpy(flags), neurons)
    return GraphFile(
        graph,
        d_model,
        scores if np.nan_to_num(values).any() else None,
        circuit if flags.any() else None,
        node_scores,
        neuron_scores,
    )


def _read_json(path: Path, expected: Graph | None) -> GraphFile:
    try:
        text = path.read_bytes()
        arrows, data = text.count(b"->"), json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not readable as JSON ({first_line(error)[:160]}).") from None
    del text
    parts = _parts(path, data, ("cfg", "nodes", "edges"))
    edges, nodes = parts["edges"], parts["nodes"]
    if not isinstance(nodes, dict) or not isinstance(edges, dict):
        raise BadFile(f"{path}: nodes and edges must be objects that map names to values.")
    graph, d_model = _cfg(path, parts["cfg"], expected)
    # A name twice: JSON keeps the last. Arrows stand nowhere but in the names of edges.
    if arrows > len(edges):
        raise BadFile(
            f"{path}: {arrows - len(edges)} edges occur more than once, or an arrow stands outside"
            " the names of edges."
        )
    values, flags = _json_edges(path, graph, edges)
    return _graph_file(
        path, graph, d_model, values, flags, *_json_nodes(path, graph, d_model, nodes)
    )


def _json_edges(
    path: Path, graph: Graph, edges: dict[str, Any]
) -> tuple[Float[np.ndarray, "writers readers"], Bool[np.ndarray, "writers readers"]]:
    names, entries = list(edges), list(edges.values())
    no_object = (type(entry) is not dict for entry in entries)
    _refuse(path, names, no_object, "edges are not objects with score and in_graph")
    nodes = node_names(graph)
    expected = [name for run in edge_runs(graph) for name in run.names(*nodes)]
    # Flat index of every named edge; -1 for a name that is none.
    places = np.concatenate([run.places(graph.n_readers) for run in edge_runs(graph)])
    if names != expected:
        lookup = dict(zip(expected, places.tolist(), strict=True))
        places = np.array([lookup.get(name, -1) for name in names], dtype=np.int64)
    _refuse(path, names, places < 0, "edges are not in the graph")
    values = np.full(graph.n_writers * graph.n_readers, np.nan, dtype=np.float32)
    flags = np.zeros(values.shape, dtype=bool)
    scores = [entry.get("score") for entry in entries]
    values[places] = _numbers(path, names, scores, "scores of edges are")
    inside = [entry.get("in_graph") for entry in entries]
    flags[places] = _booleans(path, names, inside, "in_graph of edges are")
    shape = (graph.n_writers, graph.n_readers)
    return values.reshape(shape), flags.reshape(shape)


def _numbers(
    path: Path, names: Sequence[str], raw: list[Any], what: str, nan: bool = False
) -> Float[np.ndarray, "k"]:
    """Numbers as fp32, NaN for None; refused are infinite ones, and NaN unless `nan`."""
    no_number = (type(value) not in (float, int, type(None)) for value in raw)
    _refuse(path, names, no_number, f"{what} not numbers")
    try:
        with np.errstate(over="ignore"):
            values = np.array(raw, dtype=np.float64).astype(np.float32)
    except OverflowError:
        raise BadFile(f"{path}: some {what} too large.") from None
    wrong = np.isinf(values) if nan else ~np.isfinite(values)
    if wrong.any():
        wrong &= np.array([value is not None for value in raw])
    _refuse(path, names, wrong, f"{what} not finite")
    return values


def _booleans(path: Path, names: Sequence[str], raw: list[Any], what: str) -> Bool[np.ndarray, "k"]:
    """Flags; all false where all are None."""
    if all(value is None for value in raw):
        return np.zeros(len(raw), dtype=bool)
    _refuse(path, names, (type(value) is not bool for value in raw), f"{what} not true or false")
    return np.array(raw, dtype=bool)


def _json_nodes(
    path: Path, graph: Graph, d_model: int, nodes: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Scores of nodes, neurons of the circuit, and scores of neurons."""
    writer_of = {graph.writer_name(u): u for u in range(graph.n_writers)}
    unknown = (name not in writer_of and name != "logits" for name in nodes)
    _refuse(path, nodes, unknown, "nodes are not in the graph")
    entries = {name: entry for name, entry in nodes.items() if name in writer_of}
    no_object = (type(entry) is not dict for entry in entries.values())
    _refuse(path, entries, no_object, "nodes are not objects with in_graph")
    names = list(entries)
    inside = [entry.get("in_graph") for entry in entries.values()]
    _booleans(path, names, inside, "in_graph of nodes are")

    def rows(
        key: str, read: Callable[..., np.ndarray], what: str, empty: bool | float
    ) -> Tensor | None:
        given = {name: entry[key] for name, entry in entries.items() if entry.get(key) is not None}
        no_row = (type(row) is not list or len(row) != d_model for row in given.values())
        no_lists = f"nodes have {key} that are not lists of d_model = {d_model} values"
        _refuse(path, given, no_row, no_lists)
        kind = torch.bool if isinstance(empty, bool) else torch.float32
        values = torch.full((graph.n_writers, d_model), empty, dtype=kind)
        for name, row in given.items():
            values[writer_of[name]] = torch.from_numpy(read(path, [name] * d_model, row, what))
        return values if given else None

    scores = [entry.get("score") for entry in entries.values()]
    node_scores = torch.full((graph.n_writers,), float("nan"), dtype=torch.float32)
    numbers = _numbers(path, names, scores, "scores of nodes are", nan=True)
    node_scores[[writer_of[name] for name in names]] = torch.from_numpy(numbers)
    return (
        node_scores if any(score is not None for score in scores) else None,
        rows("neurons", _booleans, "neurons are", False),
        rows("neurons_scores", partial(_numbers, nan=True), "scores of neurons are", float("nan")),
    )


def _read_pt(path: Path, expected: Graph | None) -> GraphFile:
    data = _parts(path, load_archive(path), ("cfg", "src_nodes", "dst_nodes", "edges_in_graph"))
    graph, d_model = _cfg(path, data["cfg"], expected)
    writers, readers = node_names(graph)
    rows = _order(path, data["src_nodes"], "src_nodes", writers)
    columns = _order(path, data["dst_nodes"], "dst_nodes", readers)
    grid = (rows[:, None], columns)

    def tensor(key: str, *width: int, floating: bool) -> Tensor | None:
        """A tensor with a row for each of our writers: NaN or false where the file has none."""
        if data.get(key) is None:
            return None
        given = checked_tensor(path, key, data[key], (len(rows), *width), floating=floating)
        if floating and bool(given.float().isinf().any()):
            raise BadFile(f"{path}: {key} has infinite values.")
        empty, kind = (float("nan"), torch.float32) if floating else (False, torch.bool)
        values = torch.full((graph.n_writers, *width), empty, dtype=kind)
        values[torch.from_numpy(rows)] = given.to(values.dtype)
        return values

    shape, legal = (len(rows), len(columns)), graph.legal.numpy()
    inside = checked_tensor(path, "edges_in_graph", data["edges_in_graph"], shape, floating=False)
    flags, values = np.zeros_like(legal), np.full(legal.shape, np.nan, dtype=np.float32)
    flags[grid] = inside.numpy() & legal[grid]
    if data.get("edges_scores") is not None:
        given = checked_tensor(path, "edges_scores", data["edges_scores"], shape, floating=True)
        # Not to numpy before fp32: it knows no bfloat16.
        scores = given.float().numpy()
        bad = np.argwhere(~np.isfinite(scores) & legal[grid])
        names = (graph.edge_name(int(rows[i]), int(columns[j])) for i, j in bad)
        _refuse(path, names, repeat(True), "scores of edges are not finite")
        values[grid] = np.where(legal[grid], scores, np.nan)
    tensor("nodes_in_graph", floating=False)
    return _graph_file(
        path,
        graph,
        d_model,
        values,
        flags,
        tensor("nodes_scores", floating=True),
        tensor("neurons_in_graph", d_model, floating=False),
        tensor("neurons_scores", d_model, floating=True),
    )


def _order(path: Path, names: Any, key: str, known: list[str]) -> Int[np.ndarray, "k"]:
    """Where each named node stands in our order."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadFile(f"{path}: {key} must be a list of names.")
    place = {name: i for i, name in enumerate(known)}
    unknown = (name not in place for name in names)
    _refuse(path, names, unknown, f"{key} are not in the graph")
    if len(set(names)) < len(names):
        raise BadFile(f"{path}: {key} has a name twice.")
    return np.array([place[name] for name in names], dtype=np.int64)


def _parts(path: Path, data: Any, needed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise BadFile(
            f"{path}: not a graph file: expected {', '.join(needed)}, got a {type(data).__name__}."
        )
    missing = [key for key in needed if key not in data]
    if missing:
        raise BadFile(f"{path}: not a graph file: it lacks {', '.join(missing)}.")
    return data


def _cfg(path: Path, cfg: Any, expected: Graph | None) -> tuple[Graph, int]:
    """The graph that the file is about, and d_model."""
    if not isinstance(cfg, dict):
        raise BadFile(
            f"{path}: cfg must map n_layers, n_heads, parallel_attn_mlp and d_model to values."
        )
    keys = ("n_layers", "n_heads", "d_model", "parallel_attn_mlp")
    given: dict[str, Any] = {key: cfg.get(key) for key in keys}
    n_layers, n_heads, d_model, parallel = given.values()
    counts = (n_layers, n_heads, d_model)
    if any(type(count) is not int or count < 1 for count in counts) or type(parallel) is not bool:
        raise BadFile(
            f"{path}: cfg needs n_layers, n_heads and d_model as positive integers and"
            f" parallel_attn_mlp as true or false; got {str(given)[:120]}."
        )
    graph = Graph(n_layers, n_heads, parallel=parallel)
    if expected is not None and graph != expected:
        raise GraphMismatch(
            f"{path}: is about {_describe(graph)}; the graph asked for is {_describe(expected)}."
        )
    if graph.n_writers * max(graph.n_readers, d_model) > MAX_PLACES:
        raise BadFile(
            f"{path}: cfg describes a graph of {graph.n_writers} writers, more than any model that"
            " this version can hold."
        )
    return graph, d_model


def _describe(graph: Graph) -> str:
    kind = ("parallel " if graph.parallel else "") + ("" if graph.mlp else "attention-only ")
    return f"a {kind}model of {graph.n_layers} layers and {graph.n_heads} heads"


@checked
def load_scores(path: str | Path, of: Model | Graph | None = None) -> Scores:
    """Load the scores of a file, ours (.safetensors) or EAP-IG's and MIB's (.json, .pt).

    Args:
        of: the model, or its graph, that the scores have to fit.

    Raises:
        BadFile: the file is truncated, foreign, or has no scores.
        GraphMismatch: the scores belong to another graph.
    """
    graph = of.graph if isinstance(of, Model) else of
    if Path(path).suffix in ENDINGS:
        scores = scores_of(read_graph_file(Path(path), graph))
        if scores is None:
            raise BadFile(f"{path}: holds no scores, from which circuits of all sizes are cut.")
        return scores
    kinds: dict[str, type[EdgeScores] | type[NodeScores] | type[NeuronScores]] = {
        "node_scores": NodeScores,
        "neuron_scores": NeuronScores,
    }
    return kinds.get(kind_of(Path(path)), EdgeScores).load(path, graph)


def scores_of(file: GraphFile, unit: str = "") -> Scores | None:
    """The scores of a graph file: of this unit, or those of edges first; None if it has none."""
    scores: Scores | None = file.scores if unit in ("", EdgeScores.unit) else None
    for kind, values in ((NodeScores, file.node_scores), (NeuronScores, file.neuron_scores)):
        asked = scores is None and unit in ("", kind.unit)
        if asked and values is not None and not values.isnan().all():
            scores = kind(file.graph, values, {KEPT: True} if values.isnan().any() else {})
    return scores


def circuit_of_record(record: Record, scores: Scores) -> Circuit | None:
    """Return the smallest circuit of a record, cut from the scores and pruned; None if the record
    has no smallest circuit, or if its circuits do not follow the order of the scores.
    """
    if not record.has_table("smallest circuit"):
        return None
    rows = record.table("smallest circuit").where(of="chosen").rows()
    size, way = rows[0]["fraction"] if rows else None, record.task.args.get("construction", "own")
    if not isinstance(size, float) or way not in ("own", "top", "greedy"):
        return None
    if not isinstance(scores, EdgeScores):
        return scores.within(size, by="magnitude").pruned()
    grows = way == "greedy" or (way == "own" and scores.grows)
    return (scores.greedy if grows else scores.top)(size, by="magnitude").pruned()
