"""Graph files of EAP-IG and MIB (Hanna et al. 2024; Mueller et al. 2025).

    .json   {"cfg": {n_layers, n_heads, parallel_attn_mlp, d_model},
             "nodes": {name: {in_graph[, score][, neurons][, neurons_scores]}},
             "edges": {name: {score, in_graph}}}
    .pt     a PyTorch archive of cfg, src_nodes, dst_nodes, edges_scores, edges_in_graph,
            nodes_in_graph [, nodes_scores, neurons_in_graph, neurons_scores]; scores and flags are
            [writers, readers]

Their nodes are numbered and their scores signed as ours; their scale is a sum over batches of batch
means divided by the number of examples, ours a mean over examples. Values are kept as they are.

Their graphs begin with all scores 0 and no edge in: both are None here. A score may be missing for
single edges of a JSON file (NaN here); one that is NaN or infinite is an error. Scores of nodes and
neurons may be NaN, "not scored". The flags of nodes follow from those of edges and are not used,
nor are places of the tensors without an edge.

Files are read by the names they carry, which their code for .pt ignores. Nothing in a file is
executed: see `models.archive`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_file import ENDINGS, GraphFile, edge_runs, ending_of, node_names
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, first_line
from mechassay.graph import Graph
from mechassay.models.archive import checked_tensor, load_archive

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
        raise BadFile(f"{path}: there is no such file.")
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
    given = [each.graph for each in (scores, circuit) if each is not None]
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


def _places_of(graph: Graph, names: list[str]) -> np.ndarray:
    """Flat index of every named edge; -1 for a name that is none."""
    nodes = node_names(graph)
    expected = [name for run in edge_runs(graph) for name in run.names(*nodes)]
    places = np.concatenate([run.places(graph.n_readers) for run in edge_runs(graph)])
    if names == expected:
        return places
    lookup = dict(zip(expected, places.tolist(), strict=True))
    return np.array([lookup.get(name, -1) for name in names], dtype=np.int64)


# Reading


def _refuse(path: Path, names: Iterable[str], wrong: Iterable[bool], what: str) -> None:
    """Refuse a file for what is wrong with some of the names in it."""
    bad = list(compress(names, wrong))
    if bad:
        shown = ", ".join(name[:80] for name in bad[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        raise BadFile(f"{path}: {len(bad)} {what}: {shown}{more}.")


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
    places = _places_of(graph, names)
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
        values = torch.full((graph.n_writers, d_model), empty)
        for name, row in given.items():
            values[writer_of[name]] = torch.from_numpy(read(path, [name] * d_model, row, what))
        return values if given else None

    scores = [entry.get("score") for entry in entries.values()]
    node_scores = torch.full((graph.n_writers,), float("nan"))
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
        values = torch.full((graph.n_writers, *width), float("nan") if floating else False)
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
