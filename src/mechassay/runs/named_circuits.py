"""Circuits as they are typed: by name, by a file, or by the method that is to find them.

    canonical:ioi                  a circuit of the literature, on the model it was found in
    truth                          the verified circuit of a ground-truth model
    full, empty                    every edge, or none
    random@500                     edges drawn at random, of which few may be live
    random-paths@500               edges on random paths from input to logits, all of them live
    eap-ig-inputs@0.01             what a method finds on the train split; its settings may
                                   follow its name (eap-ig-inputs:steps=10@500)
    scores.safetensors@500         the best of stored scores
    circuit.json, circuit.pt       the circuit in a file of EAP-IG or MIB; with a size, the best
                                   of its scores

A size is a number of edges (500), or a share of all (0.01); of scores of nodes and neurons, both
are what whole nodes are fitted into. Circuits are cut by magnitude and pruned; `:greedy` after the
size grows them from the logits instead.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechassay.adversarial.controls import random_circuit, random_paths
from mechassay.circuits.canonical import CANONICAL, canonical
from mechassay.circuits.formats import ENDINGS, read_graph_file
from mechassay.circuits.methods import METHODS
from mechassay.circuits.node_scores import NodeScores, Scores, load_scores
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.runs.names import is_truth
from mechassay.truth.models import load_truth

DRAWN = {"random": random_circuit, "random-paths": random_paths}
PLAIN = ("truth", "full", "empty")
FORMS = (
    "canonical:NAME",
    *PLAIN,
    "random@SIZE",
    "random-paths@SIZE",
    "METHOD@SIZE",
    "METHOD@SIZE:greedy",
    "FILE.safetensors@SIZE",
    "FILE.json",
    "FILE.pt",
)
OURS = ".safetensors"
GREEDY = "greedy"

Kind = Literal["canonical", "truth", "full", "empty", "random", "file", "method"]
Score = Callable[[Sequence[str]], Mapping[str, Scores]]
"""Scores of methods by their text."""


@dataclass(frozen=True)
class NamedCircuit:
    """A circuit as it was typed.

    Attributes:
        text: all of it; the circuit's name in results.
        name: what comes before the size: of the literature's circuit, of the file, or the method
            with its settings.
        size: edges, a share of them, or None.
    """

    text: str
    kind: Kind
    name: str
    size: int | float | None = None
    greedy: bool = False

    @staticmethod
    def parse(text: str) -> NamedCircuit:
        """Read a circuit's text; nothing is loaded.

        Raises:
            UnknownName: none of the forms, no such circuit of the literature, no such method, or no
                such way to cut.
            BadUsage: a method without a size, or what is no size.
            BadFile: there is no such file.
        """
        for name in PLAIN:
            if text == name:
                return NamedCircuit(text, name, name)  # pyright: ignore[reportArgumentType] - PLAIN are kinds
        if text.startswith("canonical:"):
            name = text.removeprefix("canonical:")
            CANONICAL.load(name)
            return NamedCircuit(text, "canonical", name)
        name, at, rest = text.rpartition("@")
        # An "@" may belong to a path.
        if not at or Path(text).suffix in ENDINGS:
            return NamedCircuit._of_file(text, text, None, False)
        typed, colon, way = rest.partition(":")
        if colon and way != GREEDY:
            raise UnknownName("way to cut", way, (GREEDY,))
        size, greedy = number_or_share(typed, "edges", text), way == GREEDY
        if name in DRAWN and not greedy:
            return NamedCircuit(text, "random", name, size)
        if Path(name).suffix in (OURS, *ENDINGS):
            return NamedCircuit._of_file(text, name, size, greedy)
        METHODS.make(name)
        return NamedCircuit(text, "method", name, size, greedy)

    @staticmethod
    def _of_file(text: str, name: str, size: int | float | None, greedy: bool) -> NamedCircuit:
        suffix = Path(name).suffix
        if text.partition(":")[0] in METHODS.names():
            raise BadUsage(
                f"What a method finds needs a size: {text}@500 for edges, or {text}@0.01 for a"
                " share of them."
            )
        if suffix not in (OURS, *ENDINGS) or (suffix == OURS and size is None):
            raise UnknownName("circuit", text, FORMS)
        if not Path(name).is_file():
            raise BadFile(f"{name}: there is no such file.")
        return NamedCircuit(text, "file", name, size, greedy)

    @property
    def file_hash(self) -> str | None:
        """SHA-256 of the file it comes from, if it comes from one."""
        return (
            hashlib.sha256(Path(self.name).read_bytes()).hexdigest()
            if self.kind == "file"
            else None
        )


@dataclass(frozen=True)
class FoundCircuit:
    """A circuit, and where it comes from.

    Attributes:
        about: its origin, as plain values.
    """

    text: str
    circuit: Circuit
    about: Mapping[str, Any]


def find_circuits(
    named: Sequence[NamedCircuit],
    model: Model,
    model_name: str,
    ablation: str,
    seed: int,
    score: Score,
) -> list[FoundCircuit]:
    """The circuits on a model's graph.

    Args:
        model_name: as it was typed: "truth" needs that of a ground truth.
        seed: of random circuits.
        score: called at most once, with the methods that are to find circuits.

    Raises:
        BadUsage: "truth" for another model or ablation; a size that the graph does not have.
        GraphMismatch, BadFile: a circuit of another graph, or a damaged file.
    """
    methods = list(dict.fromkeys(each.name for each in named if each.kind == "method"))
    scores = score(methods) if methods else {}
    return [_find(each, model, model_name, ablation, seed, scores) for each in named]


def _find(
    each: NamedCircuit,
    model: Model,
    model_name: str,
    ablation: str,
    seed: int,
    scores: Mapping[str, Scores],
) -> FoundCircuit:
    graph, size = model.graph, each.size
    if each.kind == "canonical":
        found = canonical(each.name, graph)
        return FoundCircuit(
            each.text, found.circuit, {"found in": found.model, "paper": found.paper}
        )
    if each.kind == "truth":
        return FoundCircuit(
            each.text, _true(model_name, ablation), {"verified for": f"{ablation} ablation"}
        )
    if each.kind in ("full", "empty"):
        return FoundCircuit(
            each.text, Circuit.full(graph) if each.kind == "full" else Circuit.empty(graph), {}
        )
    if each.kind == "random":
        assert size is not None
        count = EdgeScores.of(graph, graph.legal.float()).size(size)
        return FoundCircuit(each.text, DRAWN[each.name](graph, count, seed), {"seed": seed})
    if each.kind == "method":
        about = scores[each.name].provenance
        kept = {
            key: about[key]
            for key in ("split", "n_examples", "objective", "pairing", "left out", "seconds")
            if key in about
        }
        return FoundCircuit(each.text, _cut(scores[each.name], each), kept)
    return _of_file(each, graph)


def _of_file(each: NamedCircuit, graph: Graph) -> FoundCircuit:
    path = Path(each.name)
    about = {"file hash": (each.file_hash or "")[:12]}
    if path.suffix == OURS:
        scores = load_scores(path, graph)
        return FoundCircuit(each.text, _cut(scores, each), about)
    file = read_graph_file(path, graph)
    if each.size is not None:
        if file.scores is None:
            raise BadFile(
                f"{path}: has no scores of edges to cut {each.size} by; without a size it is the"
                " circuit in the file."
            )
        return FoundCircuit(each.text, _cut(file.scores, each), about)
    if file.circuit is None:
        raise BadFile(f"{path}: holds no circuit, only scores: give a size, as in {path}@500.")
    return FoundCircuit(each.text, file.circuit, about)


def _cut(scores: Scores, each: NamedCircuit) -> Circuit:
    size = each.size
    assert size is not None
    if isinstance(scores, EdgeScores):
        # Some methods say that their scores are to be cut greedily.
        greedy = each.greedy or scores.grows
        return (scores.greedy if greedy else scores.top)(size, by="magnitude").pruned()
    if each.greedy:
        unit = "node" if isinstance(scores, NodeScores) else "neuron"
        raise BadUsage(
            f"{each.text}: :greedy grows edges by their scores; these are scores of {unit}s."
        )
    share = size if isinstance(size, float) else size / scores.graph.n_edges
    return scores.within(share, by="magnitude").pruned()


def _true(model: str, ablation: str) -> Circuit:
    if not is_truth(model):
        raise BadUsage(
            f"The circuit 'truth' is that of a ground-truth model (mechassay truth list); {model}"
            " is none."
        )
    circuits = load_truth(model).circuits
    if ablation not in circuits:
        raise BadUsage(
            f"The circuit of {model} is verified for {', '.join(circuits)} ablation, not for"
            f" {ablation}."
        )
    return circuits[ablation]


def number_or_share(text: str, things: str = "edges", within: str = "") -> int | float:
    """A size as it is typed: 500 is a number of things, 0.01
    (or 1.0, or 1e-3) a share of all, a float.

    Args:
        within: the whole of what was typed, for the message.

    Raises:
        BadUsage: neither, or a share that is not between 0 and 1.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        where = f" in {within!r}" if within else ""
        raise BadUsage(
            f"A size is a number of {things} (500) or a share of them, between 0 and 1 (0.01); got"
            f" {text!r}{where}."
        )
    return share
