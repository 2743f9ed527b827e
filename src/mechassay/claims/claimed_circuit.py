"""The circuit of a claim, ready to be run: a method with a size, or a file of scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.spec import GIVEN, OURS, CircuitSpec, number_or_share
from mechassay.circuits.scores import EdgeScores
from mechassay.claims.claim import Claim, read_plain
from mechassay.errors import (
    BadFile,
    BadUsage,
)
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.origin import found_in, origin_of
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.files import file_hash, write_text


@dataclass(frozen=True)
class ClaimedCircuit:
    """How to get at the circuit of a claim.

    Attributes:
        claim: with a circuit that is a ranking and a size, and with the file if there is one.
        by_method: whether a method finds it.
    """

    claim: Claim
    by_method: bool


def claimed_circuit(
    claim: Claim, file: Path, load: Callable[[], Model], *, transfer: bool = False
) -> ClaimedCircuit:
    """The circuit of a claim, ready to be run: a method with a size, or a file of scores.

        eap@60                     stays what it is: the method finds it
        scores.safetensors@60      the best of stored scores
        a file of a circuit, canonical:NAME, truth, random@60
                                   those edges
        components                 the edges that are named, and all edges out of the nodes that
                                   are named; with a node, also those out of the input

    The last two are written as a file of scores in which these edges have 1 and all others 0:
    so every command takes them, and their circuit is cut to its own size. Beside the file
    stands what it was written of, and its hash: neither another claim nor a file that was
    edited is taken for it.

    Args:
        file: where edges that no method finds are written, once; its stem is their name.
        load: the claim's model, if its edges have to be looked up.
        transfer: whether the circuit of a file may have been found in another model.

    Raises:
        BadUsage: the claim names neither a circuit nor components, or a circuit that grows from
            the logits or has neurons.
        BadUsage: the file holds the circuit of another claim, or the circuit was found in another
            model and no transfer is asked for.
        BadFile: the file was edited.
        UnknownName, BadFile, GraphMismatch: what it names does not exist, or not in this model.
    """
    if claim.scores:
        return ClaimedCircuit(claim, by_method=False)
    if not claim.circuit and not claim.components:
        raise BadUsage(
            f"The claim {claim.id} names neither a circuit (eap@60, a file) nor components: there"
            " is nothing to run."
        )
    spec = CircuitSpec.parse(claim.circuit) if claim.circuit else None
    if spec is not None and spec.greedy:
        raise BadUsage(
            f"{claim.circuit}: a circuit that grows from the logits is assayed from its file: save"
            " it, and name the file."
        )
    if spec is not None and spec.kind == "method":
        return ClaimedCircuit(claim, by_method=True)
    if spec is not None and spec.size is not None and Path(spec.name).suffix == OURS:
        named = f"{Path(spec.name).stem}@{spec.size}"
        held = claim.model_copy(update={"circuit": named, "scores": spec.name})
        return ClaimedCircuit(held, by_method=False)
    source, about = _written_of(claim, spec), file.with_name(f"{file.name}.json")
    if file.is_file() and about.is_file():
        _check_written(file, about, source)
    else:
        model = load()
        circuit = _circuit(claim, spec, model, transfer)
        if circuit.neurons is not None:
            raise BadUsage(f"The circuit of {claim.id} has neurons: whole edges are assayed.")
        write_circuit(circuit, file)
        write_text(about, json.dumps({**source, "sha256": file_hash(file)}, indent=1) + "\n")
    n = int(EdgeScores.load(file).values.nan_to_num().sum())
    held = claim.model_copy(update={"circuit": f"{file.stem}@{n}", "scores": str(file)})
    return ClaimedCircuit(held, by_method=False)


def _written_of(claim: Claim, spec: CircuitSpec | None) -> dict[str, Any]:
    """What of a claim says which edges its circuit has."""
    return {
        "model": claim.model,
        "circuit": claim.circuit,
        "components": [] if claim.circuit else list(claim.components),
        "ablation": claim.ablation,
        "source": "" if spec is None else spec.file_hash or "",
    }


def _check_written(file: Path, about: Path, source: dict[str, Any]) -> None:
    """Refuse a file that was written of something else, or edited."""
    held = read_plain(about)
    if not isinstance(held, dict):
        raise BadFile(f"{about}: does not say what the circuit beside it was written of.")
    digest = held.pop("sha256", "")
    if held != source:
        other = [key for key in source if held.get(key) != source[key]]
        raise BadUsage(
            f"{file}: holds the circuit of another claim (other {', '.join(other)}); choose another"
            " folder for this one."
        )
    if digest != file_hash(file):
        raise BadFile(f"{file}: was edited after it was written; choose another folder.")


def write_circuit(circuit: Circuit, file: Path) -> None:
    """Write a circuit as scores: 1 for its edges, 0 for all others.

    Raises:
        BadUsage: it has no edges.
    """
    if not len(circuit):
        raise BadUsage("A circuit without edges cannot be assayed.")
    graph = circuit.graph
    values = torch.where(graph.legal, circuit.edges.float(), torch.nan)
    file.parent.mkdir(parents=True, exist_ok=True)
    EdgeScores(graph, values, {"method": file.stem, **circuit.provenance}).save(file)


def write_alternative(
    claim: Claim, file: Path, load: Callable[[], Model], *, transfer: bool = False
) -> None:
    """Write the circuit that a claim names as its alternative, as a file of scores.

    Raises:
        BadUsage: it is found by a method, or has another number of edges than the claim's circuit.
            Others are those of `claimed_circuit`.
    """
    assert claim.alternative is not None
    other = claim.model_copy(
        update={"circuit": claim.alternative.circuit, "scores": "", "components": ()}
    )
    other_circuit = claimed_circuit(other, file, load, transfer=transfer)
    if other_circuit.by_method:
        raise BadUsage(
            f"The alternative of {claim.id} is {other.circuit}, which a method finds: name it as"
            f" method: {other_circuit.claim.ranking}; it gets as many edges as the claim's circuit."
        )
    graph = load().graph
    every = EdgeScores.of(graph, graph.legal.float())
    n, n_claimed = (
        every.size(number_or_share(claimed.size)) for claimed in (other_circuit.claim, claim)
    )
    if n != n_claimed:
        raise BadUsage(
            f"The alternative of {claim.id} has {n:,} edges and the claim's circuit {n_claimed:,}:"
            " name one of as many."
        )
    if Path(other_circuit.claim.scores) != file:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other_circuit.claim.scores, file)


def _circuit(claim: Claim, spec: CircuitSpec | None, model: Model, transfer: bool) -> Circuit:
    """The circuit of a claim, with the model in which it was found; a circuit that is not of a file
    is about the claim's model.
    """
    if spec is None:
        circuit = circuit_of_components(model.graph, claim.components)
        return replace(circuit, provenance=origin_of(model))
    known = spec.find(model.graph, truth=lambda: truth_circuit(model, claim.ablation))
    if spec.kind not in GIVEN:
        return replace(known.circuit, provenance=origin_of(model))
    found_in(f"circuit {known.text}", known.circuit.provenance, model, transfer=transfer)
    return known.circuit


def circuit_of_components(graph: Graph, names: Sequence[str]) -> Circuit:
    """The edges of these names, and all edges out of the nodes of these names.

    A node is included as node methods include it: with all edges out of it. As nothing reaches a
    node without the input, a circuit with a node has the edges out of the input too.

    Raises:
        UnknownName: a name is neither an edge nor a node of the graph.
    """
    edges = [name for name in names if "->" in name]
    nodes = [name for name in names if "->" not in name]
    circuit = Circuit.from_names(graph, edges)
    if not nodes:
        return circuit
    mask = torch.zeros(graph.n_writers, dtype=torch.bool)
    for name in ("input", *nodes):
        mask[graph.writer(name)] = True
    return circuit | Circuit.of_nodes(graph, mask)
