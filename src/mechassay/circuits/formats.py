"""Graph files of EAP-IG and MIB (Hanna et al. 2024; Mueller et al.
2025), and auto-circuit's scores.

    .json   {"cfg": {n_layers, n_heads, parallel_attn_mlp, d_model},
             "nodes": {name: {in_graph[, score][, neurons][, neurons_scores]}},
             "edges": {name: {score, in_graph}}}
    .pt     a PyTorch archive of cfg, src_nodes, dst_nodes, edges_scores, edges_in_graph,
            nodes_in_graph [, nodes_scores, neurons_in_graph, neurons_scores]; scores and flags are
            [writers, readers]

*Meaning.* Both number nodes as `mechassay.graph` does. Their scores are of the loss, minus the
metric, so that positive means that ablating the edge hurts: our sign. Their scale is a sum over
batches of batch means divided by the number of examples, ours a mean over examples; values are kept
as they are.

*Nothing there.* Their graphs begin with all scores 0 and no edge in. So scores that are all 0 are
no scores (None), and flags that are all false are no circuit (None), whatever the neurons say. A
score may be missing for single edges of a JSON file (NaN here); one that is NaN or infinite is an
error. Scores of nodes and neurons may be NaN, which there means "not scored". The circuit is what
the flags of the edges say; those of nodes follow from them, and their code derives them anew before
every use. Places of the tensors without an edge are not looked at: circuits cut by node have flags
there.

*Reading by name.* Files are read by the names they carry, which their code for .pt ignores. Names
are built once in the order in which their code writes them and compared as lists; only where that
order differs is every name looked up.

*Safety.* A .pt file is a pickle. Only archives of stored (not compressed) records are opened, with
weights_only, which builds tensors, containers, numbers and text and calls nothing else; PyTorch's
older formats are refused, because some versions unpickle them without that limit.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite
from mechassay.graph import SLOTS, Graph
from mechassay.models.archive import load_archive

ENDINGS = (".json", ".pt")
# Names that a message lists before it counts the rest.
NAMED = 3
# Largest [writers, readers] tensor that a file may ask for: 4 GB of scores, above a 405B model's.
MAX_PLACES = 2**30


@dataclass(frozen=True, eq=False)
class GraphFile:
    """What a graph file holds.

    Attributes:
        graph: what its cfg describes.
        d_model: width of the residual stream.
        scores: None where all are 0: a graph that nobody scored.
        circuit: None where no edge is in; with neurons, if it was cut by neuron. node_scores,
        neuron_scores: NaN where there is none; a neuron is one of the d_model numbers a writer
        writes.
    """

    graph: Graph
    d_model: int
    scores: EdgeScores | None = None
    circuit: Circuit | None = None
    node_scores: Float[Tensor, "writers"] | None = None
    neuron_scores: Float[Tensor, "writers d_model"] | None = None

    def weighted_edge_count(self) -> float:
        """Edges of the circuit, each counted by the share of its writer's neurons that is in;
        0 without a circuit.
        """
        return 0.0 if self.circuit is None else self.circuit.weighted_edge_count()

    @property
    def neurons(self) -> Bool[Tensor, "writers d_model"] | None:
        """The circuit's neurons, if it was cut by neuron."""
        return None if self.circuit is None else self.circuit.neurons

    def write(self, path: str | Path) -> None:
        """Write everything in the form that the ending of `path` names;
        a reader never sees half a file.

        Raises:
            BadUsage: another ending, nothing to write, an attention-only model, or edges without a
                score that the file has no place for.
            NonFinite: an infinite score.
        """
        path = Path(path)
        ending = _ending(path)
        _check_writable(self, ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
        if ending == ".json":
            with partial.open("w", encoding="utf-8") as out:
                out.writelines(_json_pieces(self))
        else:
            archive = io.BytesIO()
            torch.save(_pt_content(self), archive)
            partial.write_bytes(archive.getbuffer())
        os.replace(partial, path)


def read_graph_file(path: str | Path, graph: Graph | None = None) -> GraphFile:
    """Read an EAP-IG or MIB graph file; nothing in it is executed.

    Args:
        path: ends in .json or .pt.
        graph: what the file must be about; if not given, what it says.

    Raises:
        BadFile: missing, truncated, foreign or unsafe, or with wrong edges or values; the message
            names the first few.
        GraphMismatch: about another graph than `graph`.
        BadUsage: another ending.
    """
    path = Path(path)
    read = {".json": _read_json, ".pt": _read_pt}[_ending(path)]
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

    Raises:
        See `read_graph_file` and `GraphFile.write`.
    """
    _ending(Path(target))
    file = read_graph_file(source, graph)
    file.write(target)
    return file


def read_auto_circuit(path: str | Path, graph: Graph, within: Sequence[str] = ()) -> EdgeScores:
    """Read auto-circuit's PruneScores, saved by torch.save:
    destination module -> [heads, sources] or [sources].

    Its sources are ours, in our order, except that `blocks.0.hook_resid_pre` is `input` with
    learned positions added. Its scores by mask gradients have our sign and are summed over batches;
    it ranks them by magnitude.

    Args:
        path: a PyTorch archive, whatever its ending.
        within: keys that lead to the scores, where the file holds those of several tasks and
            algorithms.

    Raises:
        BadFile: missing, foreign or unsafe, made per token or without separate queries, keys and
            values.
        GraphMismatch: other modules or sizes than the graph's.
    """
    path = Path(path)
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    data = load_archive(path)
    for key in within:
        if not isinstance(data, dict) or key not in data:
            raise BadFile(f"{path}: has no {key!r}{_beside(data)}.")
        data = data[key]
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise BadFile(
            f"{path}: not a dictionary of module names and tensors; give `within`{_beside(data)}."
        )
    readers = _auto_circuit_readers(graph)
    if any(str(name).endswith("hook_attn_in") for name in data):
        raise BadFile(
            f"{path}: made without separate queries, keys and values (separate_qkv=False), so its"
            " edges are other ones."
        )
    if set(data) != set(readers):
        differing = sorted(str(name) for name in set(data) ^ set(readers))
        raise GraphMismatch(
            f"{path}: its modules are not those of {graph}; in only one of them: {_few(differing)}."
        )
    values = torch.full((graph.n_writers, graph.n_readers), float("nan"))
    for name, columns in readers.items():
        seen, heads = int(graph.visible[columns.start]), columns.stop - columns.start
        shape = (
            (heads, seen)
            if "hook_mlp_in" not in name and "hook_resid_post" not in name
            else (seen,)
        )
        if data[name].ndim == len(shape) + 1:
            raise BadFile(
                f"{path}: scored per token position (seq_len), which edge scores here are not."
            )
        scores = _checked_tensor(path, name, data[name], shape, floating=True)
        if not bool(torch.isfinite(scores).all()):
            raise BadFile(f"{path}: {name} has scores that are NaN or infinite.")
        values[:seen, columns] = scores.float().reshape(heads, seen).T
    return EdgeScores(graph, values, {"source": path.name})


def _auto_circuit_readers(graph: Graph) -> dict[str, slice]:
    """auto-circuit's name for the module of one or several readers, and their indices."""
    found: dict[str, slice] = {}
    for layer in range(graph.n_layers):
        for number, slot in enumerate(SLOTS):
            first = graph.slot(layer, number, 0)
            found[f"blocks.{layer}.hook_{slot}_input"] = slice(first, first + graph.n_heads)
        if graph.mlp:
            found[f"blocks.{layer}.hook_mlp_in"] = slice(
                graph.mlp_reader(layer), graph.mlp_reader(layer) + 1
            )
    found[f"blocks.{graph.n_layers - 1}.hook_resid_post"] = slice(graph.logits, graph.logits + 1)
    return found


def _beside(data: Any) -> str:
    return f"; there are {_few([str(key) for key in data])}" if isinstance(data, dict) else ""


# Edges in the order of their files


@dataclass(frozen=True, eq=False)
class _Block:
    """Edges written together: the first `seen` writers into each of `readers`, writer by writer."""

    seen: int
    readers: np.ndarray

    def places(self, n_readers: int) -> np.ndarray:
        """Flat indices into a [writers, readers] tensor."""
        return (np.arange(self.seen)[:, None] * n_readers + self.readers).ravel()

    def names(self, writers: Sequence[str], readers: Sequence[str]) -> list[str]:
        here = [f"->{readers[reader]}" for reader in self.readers.tolist()]
        return [writer + reader for writer in writers[: self.seen] for reader in here]


def _blocks(graph: Graph) -> Iterator[_Block]:
    """All edges, in the order of their files:
    heads before queries, keys and values, layer by layer.
    """
    for layer in range(graph.n_layers):
        heads = (
            np.arange(graph.slots(layer).start, graph.slots(layer).stop)
            .reshape(3, graph.n_heads)
            .T.ravel()
        )
        mlp = np.array([graph.mlp_reader(layer)])
        if graph.parallel:
            yield _Block(graph.seen_by_heads(layer), np.concatenate([heads, mlp]))
        else:
            yield _Block(graph.seen_by_heads(layer), heads)
            yield _Block(graph.seen_by_mlp(layer), mlp)
    yield _Block(graph.n_writers, np.array([graph.logits]))


def _node_names(graph: Graph) -> tuple[list[str], list[str]]:
    return [graph.writer_name(u) for u in range(graph.n_writers)], [
        graph.reader_name(v) for v in range(graph.n_readers)
    ]


def _places_of(graph: Graph, names: list[str]) -> np.ndarray:
    """Flat index of every named edge; -1 for a name that is none."""
    writers, readers = _node_names(graph)
    done, places = 0, list[np.ndarray]()
    for block in _blocks(graph):
        expected = block.names(writers, readers)
        if names[done : done + len(expected)] != expected:
            break
        places.append(block.places(graph.n_readers))
        done += len(expected)
    else:
        if done == len(names):
            return np.concatenate(places)
    lookup: dict[str, int] = {}
    for block in _blocks(graph):
        lookup.update(
            zip(block.names(writers, readers), block.places(graph.n_readers).tolist(), strict=True)
        )
    return np.fromiter((lookup.get(name, -1) for name in names), dtype=np.int64, count=len(names))


# Reading


@dataclass(eq=False)
class _Draft:
    """A file being read: values by place, and what is wrong with it."""

    path: Path
    graph: Graph
    d_model: int
    values: np.ndarray = field(init=False)
    flags: np.ndarray = field(init=False)
    node_scores: Tensor | None = None
    neuron_scores: Tensor | None = None
    neurons: Tensor | None = None
    mistakes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        places = self.graph.n_writers * self.graph.n_readers
        self.values = np.full(places, np.nan, dtype=np.float32)
        self.flags = np.zeros(places, dtype=bool)

    def wrong(self, names: Sequence[str], what: str) -> None:
        """Note a mistake if there are names that have it."""
        if names:
            self.mistakes.append(f"{len(names)} {what}: {_few(names)}.")

    def finish(self) -> GraphFile:
        if self.mistakes:
            raise BadFile(f"{self.path}: {' '.join(self.mistakes)}")
        shape = (self.graph.n_writers, self.graph.n_readers)
        scored = bool(np.nan_to_num(self.values).any())
        values, flags = (
            torch.from_numpy(self.values).view(shape),
            torch.from_numpy(self.flags).view(shape),
        )
        return GraphFile(
            self.graph,
            self.d_model,
            EdgeScores(self.graph, values, {"source": self.path.name}) if scored else None,
            Circuit(self.graph, flags, self.neurons) if bool(flags.any()) else None,
            self.node_scores,
            self.neuron_scores,
        )


def _read_json(path: Path, expected: Graph | None) -> GraphFile:
    try:
        text = path.read_bytes()
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not readable as JSON ({_first_line(error)}).") from None
    parts = _parts(path, data, ("cfg", "nodes", "edges"))
    if not isinstance(parts["nodes"], dict) or not isinstance(parts["edges"], dict):
        raise BadFile(f"{path}: nodes and edges must be objects that map names to values.")
    draft = _Draft(path, *_cfg(path, parts["cfg"], expected))
    # A name twice: JSON keeps the last. Arrows stand nowhere but in the names of edges.
    twice = text.count(b"->") - len(parts["edges"])
    if twice > 0:
        draft.mistakes.append(
            f"{twice} edges occur more than once, or an arrow stands outside the names of edges."
        )
    _read_json_edges(draft, parts["edges"])
    _read_json_nodes(draft, parts["nodes"])
    return draft.finish()


def _read_json_edges(draft: _Draft, edges: dict[str, Any]) -> None:
    names, entries = list(edges), list(edges.values())
    if set(map(type, entries)) - {dict}:
        draft.wrong(
            [n for n, entry in edges.items() if not isinstance(entry, dict)],
            "edges are not objects with score and in_graph",
        )
        return
    places = _places_of(draft.graph, names)
    known = places >= 0
    draft.wrong(_at(names, ~known), "edges are not in the graph")
    scores = _numbers(
        draft, names, [entry.get("score") for entry in entries], "scores of edges are"
    )
    flags = _booleans(
        draft, names, [entry.get("in_graph") for entry in entries], "in_graph of edges are"
    )
    draft.values[places[known]] = scores[known]
    draft.flags[places[known]] = flags[known]


def _numbers(
    draft: _Draft, names: Sequence[str], raw: list[Any], what: str, nan: bool = False
) -> np.ndarray:
    """Numbers as fp32, NaN for None;
    whatever else is no finite number is a mistake (NaN unless `nan`).
    """
    kinds = set(map(type, raw))
    if kinds - {float, int, type(None)}:
        bad = [i for i, value in enumerate(raw) if type(value) not in (float, int, type(None))]
        draft.wrong([names[i] for i in bad], f"{what} not numbers")
        return np.full(len(raw), np.nan, dtype=np.float32)
    try:
        with np.errstate(over="ignore"):
            values = np.array(raw, dtype=np.float64).astype(np.float32)
    except OverflowError:
        draft.mistakes.append(f"Some {what} too large.")
        return np.full(len(raw), np.nan, dtype=np.float32)
    bad = np.isinf(values) if nan else ~np.isfinite(values)
    if type(None) in kinds:
        bad &= np.fromiter((value is not None for value in raw), dtype=bool, count=len(raw))
    draft.wrong(_at(names, bad), f"{what} not finite")
    return values


def _booleans(draft: _Draft, names: Sequence[str], raw: list[Any], what: str) -> np.ndarray:
    """Flags; all false where all are None."""
    kinds = set(map(type, raw))
    if kinds <= {bool}:
        return np.array(raw, dtype=bool)
    if kinds != {type(None)}:
        draft.wrong(
            [name for name, value in zip(names, raw, strict=True) if type(value) is not bool],
            f"{what} not true or false",
        )
    return np.zeros(len(raw), dtype=bool)


def _read_json_nodes(draft: _Draft, nodes: dict[str, Any]) -> None:
    graph = draft.graph
    writer_of = {graph.writer_name(u): u for u in range(graph.n_writers)}
    draft.wrong(
        [name for name in nodes if name not in writer_of and name != "logits"],
        "nodes are not in the graph",
    )
    entries = {name: entry for name, entry in nodes.items() if name in writer_of}
    wrong = [name for name, entry in entries.items() if not isinstance(entry, dict)]
    if wrong:
        draft.wrong(wrong, "nodes are not objects with in_graph")
        return
    names = list(entries)
    writers = torch.tensor([writer_of[name] for name in names], dtype=torch.long)
    _booleans(
        draft, names, [entry.get("in_graph") for entry in entries.values()], "in_graph of nodes are"
    )
    raw = [entry.get("score") for entry in entries.values()]
    if any(value is not None for value in raw):
        draft.node_scores = torch.full((graph.n_writers,), float("nan"))
        draft.node_scores[writers] = torch.from_numpy(
            _numbers(draft, names, raw, "scores of nodes are", nan=True)
        )
    for key in ("neurons", "neurons_scores"):
        given = {name: entry[key] for name, entry in entries.items() if entry.get(key) is not None}
        wrong = [
            name
            for name, row in given.items()
            if not isinstance(row, list) or len(row) != draft.d_model
        ]
        draft.wrong(
            wrong, f"nodes have {key} that are not lists of d_model = {draft.d_model} values"
        )
        if given and not wrong:
            _read_json_neurons(draft, key, given, writer_of)


def _read_json_neurons(
    draft: _Draft, key: str, given: dict[str, list[Any]], writer_of: Mapping[str, int]
) -> None:
    shape = (draft.graph.n_writers, draft.d_model)
    if key == "neurons":
        draft.neurons = torch.zeros(shape, dtype=torch.bool)
    else:
        draft.neuron_scores = torch.full(shape, float("nan"))
    for name, row in given.items():
        names = [name] * len(row)
        if draft.neurons is not None and key == "neurons":
            draft.neurons[writer_of[name]] = torch.from_numpy(
                _booleans(draft, names, row, "neurons are")
            )
        elif draft.neuron_scores is not None:
            draft.neuron_scores[writer_of[name]] = torch.from_numpy(
                _numbers(draft, names, row, "scores of neurons are", nan=True)
            )


def _read_pt(path: Path, expected: Graph | None) -> GraphFile:
    data = _parts(path, load_archive(path), ("cfg", "src_nodes", "dst_nodes", "edges_in_graph"))
    draft = _Draft(path, *_cfg(path, data["cfg"], expected))
    graph = draft.graph
    rows = _order(draft, data["src_nodes"], "src_nodes", _node_names(graph)[0])
    columns = _order(draft, data["dst_nodes"], "dst_nodes", _node_names(graph)[1])
    if draft.mistakes:
        return draft.finish()
    shape = (len(rows), len(columns))
    grid = (rows[:, None], columns)
    legal = graph.legal.numpy()
    flags = _checked_tensor(
        path, "edges_in_graph", data["edges_in_graph"], shape, floating=False
    ).numpy()
    draft.flags.reshape(legal.shape)[grid] = flags & legal[grid]
    if data.get("edges_scores") is not None:
        # Not to numpy before fp32: it knows no bfloat16.
        scores = (
            _checked_tensor(path, "edges_scores", data["edges_scores"], shape, floating=True)
            .float()
            .numpy()
        )
        bad = np.argwhere(~np.isfinite(scores) & legal[grid])
        draft.wrong(
            [graph.edge_name(int(rows[i]), int(columns[j])) for i, j in bad],
            "scores of edges are not finite",
        )
        draft.values.reshape(legal.shape)[grid] = np.where(legal[grid], scores, np.nan)
    _read_pt_nodes(draft, data, rows)
    return draft.finish()


def _read_pt_nodes(draft: _Draft, data: Mapping[str, Any], rows: np.ndarray) -> None:
    graph, n = draft.graph, len(rows)

    def tensor(key: str, shape: tuple[int, ...], floating: bool) -> Tensor | None:
        if data.get(key) is None:
            return None
        given = _checked_tensor(draft.path, key, data[key], shape, floating=floating)
        if floating and bool(given.float().isinf().any()):
            draft.mistakes.append(f"{key} has infinite values.")
        whole = (
            torch.full((graph.n_writers, *shape[1:]), float("nan"))
            if floating
            else torch.zeros(graph.n_writers, *shape[1:]).bool()
        )
        whole[torch.from_numpy(rows)] = given.to(whole.dtype)
        return whole

    tensor("nodes_in_graph", (n,), False)
    draft.node_scores = tensor("nodes_scores", (n,), True)
    draft.neuron_scores = tensor("neurons_scores", (n, draft.d_model), True)
    draft.neurons = tensor("neurons_in_graph", (n, draft.d_model), False)


def _order(draft: _Draft, names: Any, key: str, known: list[str]) -> np.ndarray:
    """Where each named node stands in our order."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        draft.mistakes.append(f"{key} must be a list of names.")
        return np.empty(0, dtype=np.int64)
    if names == known:
        return np.arange(len(known))
    place = {name: i for i, name in enumerate(known)}
    draft.wrong([name for name in names if name not in place], f"{key} are not in the graph")
    if len(set(names)) < len(names):
        draft.mistakes.append(f"{key} has a name twice.")
    return np.array([place.get(name, -1) for name in names], dtype=np.int64)


def _checked_tensor(
    path: Path, name: str, given: Any, shape: tuple[int, ...], *, floating: bool
) -> Tensor:
    """The tensor, if it is one of this shape and kind that is really stored in full."""
    kind = "floating-point" if floating else "boolean"
    if not isinstance(given, Tensor) or given.layout != torch.strided or given.device.type != "cpu":
        raise BadFile(f"{path}: {name} is not an ordinary tensor.")
    if tuple(given.shape) != shape:
        raise BadFile(
            f"{path}: {name} has shape {tuple(given.shape)}; its cfg and names ask for {shape}."
        )
    if given.is_floating_point() != floating or (not floating and given.dtype != torch.bool):
        raise BadFile(
            f"{path}: {name} holds {str(given.dtype).removeprefix('torch.')}; expected {kind}"
            " values."
        )
    if given.untyped_storage().nbytes() < given.numel() * given.element_size():
        raise BadFile(f"{path}: {name} claims more values than the file holds.")
    return given.detach().contiguous()


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
    given = {key: cfg.get(key) for key in ("n_layers", "n_heads", "d_model", "parallel_attn_mlp")}
    *counts, parallel = given.values()
    if any(type(count) is not int or count < 1 for count in counts) or type(parallel) is not bool:
        raise BadFile(
            f"{path}: cfg needs n_layers, n_heads and d_model as positive integers and"
            f" parallel_attn_mlp as true or false; got {str(given)[:120]}."
        )
    graph = Graph(int(given["n_layers"] or 0), int(given["n_heads"] or 0), parallel=parallel)
    if expected is not None and graph != expected:
        raise GraphMismatch(
            f"{path}: is about {_describe(graph)}; the graph asked for is {_describe(expected)}."
        )
    if graph.n_writers * max(graph.n_readers, int(given["d_model"] or 0)) > MAX_PLACES:
        raise BadFile(
            f"{path}: cfg describes a graph of {graph.n_writers} writers, more than any model that"
            " this version can hold."
        )
    return graph, int(given["d_model"] or 0)


def _describe(graph: Graph) -> str:
    kind = ("parallel " if graph.parallel else "") + ("" if graph.mlp else "attention-only ")
    return f"a {kind}model of {graph.n_layers} layers and {graph.n_heads} heads"


# Writing


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
    shape = (file.graph.n_writers, file.graph.n_readers)
    values = (
        torch.zeros(shape)
        if file.scores is None
        else torch.where(file.graph.legal, file.scores.values, torch.tensor(0.0))
    )
    return values, (
        torch.zeros(shape, dtype=torch.bool) if file.circuit is None else file.circuit.edges
    )


def _pt_content(file: GraphFile) -> dict[str, Any]:
    writers, readers = _node_names(file.graph)
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
        f'{{"cfg": {json.dumps(_cfg_of(file))}, "nodes": {json.dumps(_json_nodes(file))},'
        ' "edges": {'
    )
    graph = file.graph
    writers, readers = _node_names(graph)
    values, flags = (each.flatten().numpy() for each in _edge_values(file))
    between = ""
    for block in _blocks(graph):
        places = block.places(graph.n_readers)
        entries = [
            f'"{name}": {{"score": {value!r}, "in_graph": {"true" if flag else "false"}}}'
            for name, value, flag in zip(
                block.names(writers, readers),
                values[places].tolist(),
                flags[places].tolist(),
                strict=True,
            )
            if value == value  # not NaN
        ]
        if entries:
            yield between + ", ".join(entries)
            between = ", "
    yield "}}"


def _json_nodes(file: GraphFile) -> dict[str, dict[str, Any]]:
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


# Small words


def _ending(path: Path) -> str:
    if path.suffix not in ENDINGS:
        raise BadUsage(f"{path}: a graph file ends in {' or '.join(ENDINGS)}.")
    return path.suffix


def _at(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [names[i] for i in np.flatnonzero(chosen).tolist()]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
