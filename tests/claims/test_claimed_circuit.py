"""The circuit of a claim: by a method, from a file, by its components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.claims.claim import Claim
from mechassay.claims.claimed_circuit import circuit_of_components, claimed_circuit
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.truth.models import load_truth


def claim(**about: Any) -> Claim:
    return Claim(id="a", statement="x", model="truth-ioi", task="truth-ioi", **about)


def never() -> Model:
    raise AssertionError("the model is not needed")


def test_a_method_stays_what_it_is(tmp_path: Path) -> None:
    found = claimed_circuit(claim(circuit="eap:backward=gim@9"), tmp_path / "a.safetensors", never)
    assert found.by_method and found.claim.circuit == "eap:backward=gim@9"
    assert (found.claim.ranking, found.claim.size) == ("eap:backward=gim", "9")


def test_scores_of_a_file_are_cut_where_they_are(tmp_path: Path) -> None:
    graph = Graph(3, 4)
    EdgeScores.of(graph, graph.legal.float()).save(tmp_path / "mine.safetensors")
    about = claim(circuit=f"{tmp_path / 'mine.safetensors'}@9")
    found = claimed_circuit(about, tmp_path / "a.safetensors", never)
    assert not found.by_method and found.claim.circuit == "mine@9"
    assert found.claim.scores == str(tmp_path / "mine.safetensors")


def test_edges_are_written_as_scores_that_are_cut_to_them(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    graph, file = truth.model.graph, tmp_path / "a.safetensors"
    for about in (
        claim(circuit="truth"),
        claim(components=tuple(truth.circuits["counterfactual"].names())),
    ):
        file.unlink(missing_ok=True)
        found = claimed_circuit(about, file, lambda: truth.model)
        assert not found.by_method and found.claim.circuit == "a@9"
        scores = EdgeScores.load(file, graph)
        assert scores.top(9, by="magnitude") == truth.circuits["counterfactual"]
        # Once it is there, the model is not needed.
        assert claimed_circuit(about, file, never).claim == found.claim


def test_a_file_of_another_claim_or_an_edited_one_is_refused(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    names, file = truth.circuits["counterfactual"].names(), tmp_path / "a.safetensors"
    own = claim(components=tuple(names))
    claimed_circuit(own, file, lambda: truth.model)
    for other, changed in (
        (claim(components=tuple(names[1:])), "components"),
        (claim(circuit="truth"), "circuit"),
        (own.model_copy(update={"ablation": "mean"}), "ablation"),
    ):
        with pytest.raises(BadUsage, match=f"circuit of another claim.*{changed}"):
            claimed_circuit(other, file, lambda: truth.model)
    graph = truth.model.graph
    EdgeScores.of(graph, graph.legal.float()).save(file)
    with pytest.raises(BadFile, match="was edited"):
        claimed_circuit(own, file, never)


def test_a_node_brings_its_edges_and_those_out_of_the_input() -> None:
    graph = Graph(2, 2)
    assert set(circuit_of_components(graph, ("input->a0.h1<v>",))) == {"input->a0.h1<v>"}
    found = circuit_of_components(graph, ("a1.h0",))
    mask = torch.zeros(graph.n_writers, dtype=torch.bool)
    mask[[0, graph.head(1, 0)]] = True
    assert found == Circuit.of_nodes(graph, mask)
    assert len(found.pruned()) and "a1.h0->logits" in found
    with pytest.raises(UnknownName, match=r"a9\.h9"):
        circuit_of_components(graph, ("a9.h9",))


def test_what_is_no_circuit(tmp_path: Path) -> None:
    for about, message in (
        (claim(), "names neither a circuit"),
        (claim(circuit="eap@9:greedy"), "grows from the logits"),
        (claim(circuit="empty"), "without edges"),
    ):
        with pytest.raises(BadUsage, match=message):
            claimed_circuit(
                about, tmp_path / "a.safetensors", lambda: load_truth("truth-ioi").model
            )
