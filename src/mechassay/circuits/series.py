"""Circuits of one method at several sizes: what a folder of circuits is, such as MIB's nine.

A ranking is cut at every size; a series has been cut already. Both become a curve of faithfulness:

    strict      at a size p the circuit is the largest of the series that has at most p of the
                edges, pruned, and none if all are larger. The area is over the circuits' own sizes,
                as it is for rankings (`areas`). Of circuits that lie between two of the sizes that
                are measured the largest stands for all, so that no series has more sizes than a
                ranking.
    mib-2025    the benchmark's evaluator: exactly nine circuits, sorted by their weighted edge
                counts before pruning; the k-th stands for the k-th size, however large it is

The circuit of size 1 is the full one. Nothing ranks the edges of a series but how many of its
circuits have them (`counts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mechassay.circuits.areas import FRACTIONS, Profile
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.formats import read_graph_file
from mechassay.circuits.graph_file import ENDINGS
from mechassay.circuits.node_scores import Scores, load_scores, scores_of
from mechassay.circuits.scores import EdgeScores
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, GraphMismatch
from mechassay.files import file_hash, folder_hash, kind_of
from mechassay.graph import Graph
from mechassay.submissions import LEADS_OUT, leads_out

CIRCUIT = "circuit"
"""The kind that our files of circuits say they have."""
SLACK = 1e-9
"""Shares are compared with it: .1 * 70 is a little more than 7."""


@dataclass(frozen=True, eq=False, repr=False)
class CircuitSeries(OneLine):
    """Circuits of one graph, at least one, the smallest first.

    Attributes:
        circuits: by their weighted edge counts, as they were given.
        provenance: how they came about, as scores say it.
        names: of the circuits, in the same order: those of their files. None has one if empty.

    Raises:
        BadUsage: there is none.
        GraphMismatch: circuits of several graphs.
    """

    graph: Graph
    circuits: tuple[Circuit, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.circuits:
            raise BadUsage("A series of circuits needs at least one.")
        if self.names and len(self.names) != len(self.circuits):
            raise BadUsage(f"{len(self.circuits)} circuits have {len(self.names)} names.")
        for circuit in self.circuits:
            if circuit.graph != self.graph:
                raise GraphMismatch(
                    f"A series has circuits of one graph; got {circuit.graph} beside {self.graph}."
                )
        order = sorted(
            range(len(self.circuits)), key=lambda i: self.circuits[i].weighted_edge_count()
        )
        object.__setattr__(self, "circuits", tuple(self.circuits[i] for i in order))
        if self.names:
            object.__setattr__(self, "names", tuple(self.names[i] for i in order))

    def shown(self) -> dict[str, Any]:
        counts = [circuit.weighted_edge_count() for circuit in self.circuits]
        return {"circuits": len(counts), "smallest": counts[0], "largest": counts[-1]}

    @cached_property
    def _pruned(self) -> tuple[tuple[str, Circuit], ...]:
        """Name and circuit of each without what is on no path, the smallest first."""
        names = self.names or ("",) * len(self.circuits)
        held = [(name, c.pruned()) for name, c in zip(names, self.circuits, strict=True)]
        return tuple(sorted(held, key=lambda each: each[1].weighted_edge_count()))

    @cached_property
    def pruned(self) -> tuple[Circuit, ...]:
        """The circuits without what is on no path, the smallest first."""
        return tuple(circuit for _, circuit in self._pruned)

    def within(self, n: int | float) -> Circuit:
        """The largest circuit, pruned, that has at most n edges, or that share of all of them as a
        float; the empty one if all are larger.
        """
        return self.named_within(n)[1]

    def named_within(self, n: int | float) -> tuple[str, Circuit]:
        """The circuit of `within`, and its name; "" if it has none, or if all are larger."""
        allowed = n * self.graph.n_edges if isinstance(n, float) else n
        fit = [each for each in self._pruned if each[1].weighted_edge_count() <= allowed + SLACK]
        return fit[-1] if fit else ("", Circuit.empty(self.graph))

    def cut(self, fractions: Sequence[float], profile: Profile = "strict") -> list[Circuit]:
        """The circuit at each size, by a profile; the last size is 1.

        Raises:
            BadUsage: "mib-2025" needs a circuit for each size below 1.
        """
        below, full = fractions[:-1], Circuit.full(self.graph)
        if profile == "strict":
            return [*(self.within(float(p)) for p in below), full]
        if len(self.circuits) != len(below):
            raise BadUsage(
                f"The profile mib-2025 takes {len(below)} circuits, one of each size; got"
                f" {len(self.circuits)}."
            )
        return [*(circuit.pruned() for circuit in self.circuits), full]

    def left_out(self, fractions: Sequence[float] = FRACTIONS) -> int:
        """How many different circuits stand for none of the sizes by the profile "strict"."""
        taken = set(self.cut(fractions))
        return len({circuit for circuit in self.pruned if len(circuit)} - taken)

    def counts(self) -> EdgeScores:
        """How many of the circuits have each edge, as scores."""
        held = torch.stack([circuit.pruned().edges for circuit in self.circuits]).sum(dim=0)
        values = torch.where(self.graph.legal, held.float(), torch.nan)
        return EdgeScores(self.graph, values, self.provenance)

    @staticmethod
    def load(folder: str | Path, graph: Graph | None = None) -> CircuitSeries:
        """Read the circuits of a folder, ours (.safetensors) or EAP-IG's and MIB's (.json, .pt).

        Raises:
            BadFile: no such folder, none in it, something else in it, or a file that is truncated,
                foreign, or holds no circuit.
            GraphMismatch: of another graph than `graph`, or of several.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BadFile(f"{folder}: there is no such folder of circuits.")
        paths = circuit_files(folder)
        if not paths:
            raise BadFile(f"{folder}: the folder has no circuits ({', '.join(CIRCUIT_ENDINGS)}).")
        circuits: list[Circuit] = []
        with_scores: list[Path] = []
        for path in paths:
            circuit, has_scores = _circuit(path, graph)
            circuits.append(circuit)
            with_scores += [path] if has_scores and not len(circuit) else []
            graph = circuit.graph
        # Of the smallest sizes nothing may be left after pruning, but not of all.
        if with_scores and not any(map(len, circuits)):
            raise BadFile(
                f"{with_scores[0]}: holds scores and no circuit: no edge is in its graph."
            )
        names = tuple(path.name for path in paths)
        return CircuitSeries(circuits[0].graph, tuple(circuits), {"source": folder.name}, names)


CIRCUIT_ENDINGS = (".safetensors", *ENDINGS)
Ranked = Scores | CircuitSeries
"""What a curve of faithfulness is of: scores, or circuits that have been cut already."""


def _circuit(path: Path, graph: Graph | None) -> tuple[Circuit, bool]:
    """The circuit of a file, and whether the file has scores too, as EAP-IG's have."""
    if path.suffix == ".safetensors":
        return Circuit.load(path, graph), False
    file = read_graph_file(path, graph)
    circuit = Circuit.empty(file.graph) if file.circuit is None else file.circuit
    return circuit, scores_of(file) is not None


def circuit_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold circuits, sorted by name.

    Raises:
        BadFile: a link that leads out of the folder.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in CIRCUIT_ENDINGS]
    for path in paths:
        if leads_out(path, folder):
            raise BadFile(f"{path}: {LEADS_OUT}")
    return [path for path in paths if path.is_file()]


def is_series(path: Path) -> bool:
    """Whether a path is a folder of circuits, by what its first file says; no file is read whole.

    Several graph files (.json, .pt) in a folder are circuits; one alone may hold scores.
    """
    paths = circuit_files(path) if path.is_dir() else []
    if not paths:
        return False
    return kind_of(paths[0]) == CIRCUIT or (len(paths) > 1 and paths[0].suffix in ENDINGS)


def ranked_name(path: str | Path) -> str:
    """What a file of scores, or a folder of circuits, is called."""
    path = Path(path)
    return path.stem if path.suffix in CIRCUIT_ENDINGS else path.name


def ranked_hash(path: Path) -> str:
    """The SHA-256 of a file of scores; of a folder of circuits, that of its files' names and bytes.

    Raises:
        BadFile: one of them cannot be read.
    """
    return folder_hash(path) if path.is_dir() else file_hash(path)


def load_ranked(path: str | Path, graph: Graph | None = None) -> Ranked:
    """The circuits of a folder, or the scores of a file; errors as those of both."""
    return CircuitSeries.load(path, graph) if Path(path).is_dir() else load_scores(path, graph)
