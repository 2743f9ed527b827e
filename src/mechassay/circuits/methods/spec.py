"""Circuits as they are typed: by name, by a file, or by the method that is to find them.

    canonical:ioi                  a circuit of the literature, on the model it was found in
    truth                          the verified circuit of a ground-truth model
    full, empty                    every edge, or none
    random@500                     edges drawn at random, of which few may be live
    random-paths@500               edges on random paths from input to logits, all of them live
    eap-ig-inputs@0.01             what a method finds on the train split; its settings may
                                   follow its name (eap-ig-inputs:steps=10@500)
    scores.safetensors@500         the best of stored scores
    circuit.safetensors            a circuit that `Circuit.save` wrote
    circuit.json, circuit.pt       the circuit in a file of EAP-IG or MIB; with a size, the best
                                   of its scores
    FOLDER@0.01                    of a folder of circuits the largest that is not larger, pruned;
                                   the empty circuit if all are larger (`circuits.series`)

A size is a number of edges (500), or a share of all (0.01); of scores of nodes and neurons, both
are what whole nodes are fitted into. Circuits are cut by magnitude and pruned; `:greedy` after the
size grows them from the logits instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mechassay.circuits.canonical import CANONICAL, canonical
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import ENDINGS, load_scores, read_graph_file, scores_of
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.circuits.scores import SCORES_SHA256, By, EdgeScores, Scores
from mechassay.circuits.series import CircuitSeries, is_series
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.origin import accepted, found_in
from mechassay.utils.display import OneLine
from mechassay.utils.files import kind_of, path_hash

DRAWN = ("random", "random-paths")
PLAIN: tuple[Literal["truth", "full", "empty"], ...] = ("truth", "full", "empty")
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
    "FOLDER@SIZE",
)
OURS = ".safetensors"
GREEDY = "greedy"

Kind = Literal["canonical", "truth", "full", "empty", "random", "file", "series", "method"]
GIVEN: tuple[Kind, ...] = ("file", "series")
"""Kinds that are read from files."""


@dataclass(frozen=True, repr=False)
class FoundCircuit(OneLine):
    """A circuit, what results call it (`text`), and its origin as plain values (`about`).

    Attributes:
        found_in: the model in which the circuit of a file was found, if that model differs or is
            not known (`models.origin`).
    """

    text: str
    circuit: Circuit
    about: Mapping[str, Any]
    found_in: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CircuitSpec:
    """A circuit as it was typed.

    Attributes:
        text: all of it.
        name: what comes before the size: of the literature's circuit, of the file or folder, or the
            method with its settings.
        size: edges, a share of them, or None.
    """

    text: str
    kind: Kind
    name: str
    size: int | float | None = None
    greedy: bool = False

    @staticmethod
    def parse(text: str, *, sized: bool = True) -> CircuitSpec:
        """Read a circuit's text; nothing is loaded.

        Args:
            sized: whether a file of scores needs a size.

        Raises:
            UnknownName: none of the forms, no such circuit of the literature, no such method, or no
                such way to cut.
            BadUsage: a method without a size, or what is no size.
            BadFile: there is no such file.
        """
        for name in PLAIN:
            if text == name:
                return CircuitSpec(text, name, name)
        if text.startswith("canonical:"):
            name = text.removeprefix("canonical:")
            CANONICAL.load(name)
            return CircuitSpec(text, "canonical", name)
        text = CircuitSpec.full_text(text)
        name, at, rest = text.rpartition("@")
        # An "@" may belong to a path.
        if not at or Path(text).suffix in ENDINGS or (not sized and Path(text).suffix == OURS):
            return CircuitSpec._without_size(text, sized)
        typed, colon, way = rest.partition(":")
        if colon and way != GREEDY:
            raise UnknownName("way to cut", way, (GREEDY,))
        size, greedy = number_or_share(typed, "edges", text), way == GREEDY
        if name in DRAWN and not greedy:
            return CircuitSpec(text, "random", name, size)
        if Path(name).suffix in (OURS, *ENDINGS):
            return CircuitSpec(text, "file", _existing(name), size, greedy)
        of_method = name.partition(":")[0] in METHODS
        if not of_method and Path(name).is_dir():
            return CircuitSpec._series(text, name, size, greedy)
        METHODS.make(name)
        return CircuitSpec(text, "method", name, size, greedy)

    @staticmethod
    def full_text(text: str) -> str:
        """Return a circuit's text with the full name of its method: "eap-ig-inputs@500".

        A file or folder that has the name of an alias is meant before the method.
        """
        name, at, size = text.rpartition("@")
        if not at or Path(name).exists():
            return text
        return f"{METHODS.full_name(name)}@{size}"

    @staticmethod
    def may_be_file(text: str) -> bool:
        """Whether `parse` would look for a file or a folder; nothing is looked at here."""
        name = text.rpartition("@")[0]
        if text in PLAIN or text.startswith("canonical:"):
            return False
        if {Path(text).suffix, Path(name).suffix} & {OURS, *ENDINGS}:
            return True
        return name not in DRAWN and name.partition(":")[0] not in METHODS

    @staticmethod
    def _series(text: str, name: str, size: int | float, greedy: bool) -> CircuitSpec:
        if not is_series(Path(name)):
            raise BadFile(f"{name}: is no folder of circuits.")
        if greedy:
            raise BadUsage(f"{text}: greedy grows edges by their scores; circuits have none.")
        return CircuitSpec(text, "series", name, size)

    @staticmethod
    def _without_size(text: str, sized: bool) -> CircuitSpec:
        if text.partition(":")[0] in METHODS:
            raise BadUsage(
                f"What a method finds needs a size: {text}@500 for edges, or {text}@0.01 for a"
                " share of them."
            )
        whole = not sized or kind_of(Path(text)) == "circuit"
        if Path(text).suffix not in ((OURS, *ENDINGS) if whole else ENDINGS):
            raise UnknownName("circuit", text, FORMS)
        return CircuitSpec(text, "file", _existing(text))

    @property
    def called(self) -> str:
        """What results call it; see `name_in_results`."""
        return CircuitSpec.name_in_results(self.text)

    @staticmethod
    def name_in_results(text: str) -> str:
        """What results call it: as it was typed, but files and folders by their own names.

        Nothing is looked at: plans are made before there is a file.
        """
        path = CircuitSpec.path_in(text)
        return Path(path).name + text[len(path) :] if path else text

    @staticmethod
    def path_in(text: str) -> str:
        """The path that a circuit's text begins with; "" if it names no file and no folder.

        Nothing is looked at.
        """
        if not CircuitSpec.may_be_file(text):
            return ""
        name, at, rest = text.rpartition("@")
        return text if not at or "/" in rest or Path(text).suffix in ENDINGS else name

    @property
    def file_hash(self) -> str | None:
        """SHA-256 of the file or the folder that it comes from, if it comes from one."""
        return path_hash(Path(self.name)) if self.kind in GIVEN else None

    def find(
        self,
        graph: Graph | None = None,
        *,
        seed: int = 0,
        scores: Mapping[str, Scores] | None = None,
        truth: Callable[[], FoundCircuit] | None = None,
        by: By = "magnitude",
    ) -> FoundCircuit:
        """The circuit on a graph.

        Args:
            graph: the model's. A file and a circuit of the literature have one without it.
            seed: of random circuits.
            scores: of methods, by their text.
            truth: finds the circuit of a ground truth.
            by: how scores rank.

        Raises:
            BadUsage: the circuit needs a model, scores or a graph that is not given; or a size that
                the graph does not have.
            GraphMismatch, BadFile: a circuit of another graph, or a damaged file.
        """
        if self.kind == "canonical":
            known = canonical(self.name, graph or CANONICAL.load(self.name).graph)
            return self._as_found(known.circuit, {"found in": known.model, "paper": known.paper})
        if self.kind in GIVEN:
            return self._given(graph, by)
        if self.kind == "truth" and truth is not None:
            return truth()
        if self.kind == "method" and scores is not None:
            about = scores[self.name].provenance
            keys = ("split", "n_examples", "objective", "pairing", "left out", "seconds")
            kept = {key: about[key] for key in keys if key in about}
            return self._as_found(self.cut(scores[self.name], by), kept)
        if graph is None or self.kind in ("truth", "method"):
            raise BadUsage(f"The circuit {self.text!r} needs a model, which is not given here.")
        if self.kind == "random":
            assert self.size is not None
            n_edges = EdgeScores.of(graph, graph.legal.float()).size(self.size)
            if self.name == "random":
                return self._as_found(Random(seed=seed).draw(graph).top(n_edges), {"seed": seed})
            return self._as_found(RandomPaths(seed=seed).circuit(graph, n_edges), {"seed": seed})
        return self._as_found(
            Circuit.full(graph) if self.kind == "full" else Circuit.empty(graph), {}
        )

    def find_in(
        self, model: Model, *, transfer: bool = False, label: str = "", **about: Any
    ) -> FoundCircuit:
        """The circuit on a model's graph. The model of a circuit of a file is compared with it.

        Args:
            transfer: whether the circuit of a file may have been found in another model.
            label: what results call it; `called` if not given.
            about: see `find`, also for errors.

        Raises:
            BadUsage: the circuit was found in another model, and no transfer is asked for.
        """
        own = replace(self.find(model.graph, **about), text=label or self.called)
        if self.kind not in GIVEN:
            return own
        origin = own.circuit.provenance
        elsewhere = found_in(f"circuit {own.text}", origin, model, transfer=transfer)
        circuit = replace(own.circuit, provenance=accepted(origin))
        return replace(own, circuit=circuit, found_in=elsewhere)

    def _given(self, graph: Graph | None, by: By) -> FoundCircuit:
        about: dict[str, Any] = {SCORES_SHA256: self.file_hash}
        if self.size is not None:
            about["size"] = self.size
        if self.kind == "file":
            held = read_scores_or_circuit(Path(self.name), graph)
            return self._as_found(self.chosen(*held, by), about)
        assert self.size is not None, "a folder has a size"
        file, circuit = CircuitSeries.load(self.name, graph).named_within(self.size)
        return self._as_found(circuit, {**about, "file": file or "none is so small"})

    def _as_found(self, circuit: Circuit, about: Mapping[str, Any]) -> FoundCircuit:
        return FoundCircuit(self.called, circuit, about)

    def chosen(self, scores: Scores | None, circuit: Circuit | None, by: By) -> Circuit:
        """The circuit that a file holds, or with a size that of its scores."""
        if self.size is None:
            if circuit is None:
                raise BadFile(
                    f"{self.name}: holds no circuit, only scores: give a size, as in"
                    f" {self.name}@500."
                )
            return circuit
        if scores is None:
            raise BadFile(
                f"{self.name}: holds a circuit without scores to cut {self.size} by; without a"
                " size it is the circuit in the file."
            )
        return self.cut(scores, by)

    def cut(self, scores: Scores, by: By = "magnitude") -> Circuit:
        """The circuit of these scores that has this size, pruned."""
        return self.unpruned(scores, by).pruned()

    def unpruned(self, scores: Scores, by: By = "magnitude") -> Circuit:
        """The same with what is on no path."""
        assert self.size is not None
        if isinstance(scores, EdgeScores):
            # Some methods say that their scores are to be cut greedily.
            grow = self.greedy or scores.grows
            return (scores.greedy if grow else scores.top)(self.size, by=by)
        if self.greedy:
            raise BadUsage(
                f"{self.text}: greedy grows edges by their scores; these are scores of"
                f" {scores.unit}s."
            )
        share = self.size if isinstance(self.size, float) else self.size / scores.graph.n_edges
        return scores.within(share, by=by)


def _existing(name: str) -> str:
    if not Path(name).is_file():
        raise BadFile(f"{name}: there is no such file.")
    return name


def read_scores_or_circuit(
    path: Path, graph: Graph | None = None
) -> tuple[Scores | None, Circuit | None]:
    """A file's scores, those of edges first, and the circuit that it holds beside or without them.

    Raises:
        BadFile: damaged, or it holds neither. GraphMismatch: about another graph than `graph`.
    """
    if path.suffix == OURS:
        if kind_of(path) == "circuit":
            return None, Circuit.load(path, graph)
        return load_scores(path, graph), None
    file = read_graph_file(path, graph)
    scores = scores_of(file)
    if scores is None and file.circuit is None:
        raise BadFile(f"{path}: has no scores and no circuit.")
    return scores, file.circuit


def number_or_share(text: str, things: str = "edges", within: str = "") -> int | float:
    """A size as it is typed: 500 is a number of things, 0.01 (or 1.0, or 1e-3) a share of all.

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
