"""Circuits as they are typed: each form gives its circuit,
and what is none of them is said in one line.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import write_graph_file
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.circuits.methods.spec import CircuitSpec, number_or_share
from mechassay.circuits.scores import SCORES_SHA256, EdgeScores, NodeScores, Scores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, MechassayError, UnknownName
from mechassay.models.model import Model, load_model, make_model
from mechassay.testing.tiny import build
from mechassay.truth.ground_truth import load_truth, truth_circuit
from mechassay.utils.files import folder_hash


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("truth-ioi")


@pytest.fixture(scope="module")
def scores(model: Model) -> EdgeScores:
    return Random(seed=5).draw(model.graph)


def find(
    model: Model, *texts: str, scores: Scores | None = None, ablation: str = "counterfactual"
) -> list[Circuit]:
    specs = [CircuitSpec.parse(text) for text in texts]
    known = {} if scores is None else {spec.name: scores for spec in specs}
    truth = partial(truth_circuit, load_truth("truth-ioi").model, ablation)
    return [spec.find(model.graph, scores=known, truth=truth).circuit for spec in specs]


def test_circuits_by_name(model: Model) -> None:
    graph = model.graph
    truth, full, empty, drawn, share = find(
        model, "truth", "full", "empty", "random@30", "random@0.5"
    )
    assert truth == load_truth("truth-ioi").circuits["counterfactual"]
    assert full == Circuit.full(graph) and empty == Circuit.empty(graph)
    assert drawn == Random(seed=0).draw(graph).top(30)
    assert len(share) == graph.n_edges // 2
    (paths,) = find(model, "random-paths@30")
    assert (
        paths == RandomPaths(seed=0).circuit(graph, 30) and len(paths) == len(paths.pruned()) == 30
    )


def test_methods_share_one_scoring(model: Model, scores: EdgeScores) -> None:
    top, greedy, few = find(
        model, "eap-ig-inputs:steps=3@0.5", "eap@20:greedy", "eap@40", scores=scores
    )
    assert top == scores.top(0.5, by="magnitude").pruned()
    assert greedy == scores.greedy(20, by="magnitude").pruned() and len(greedy)
    assert few == scores.top(40, by="magnitude").pruned()


def test_circuits_in_files(model: Model, scores: EdgeScores, tmp_path: Path) -> None:
    graph, circuit = model.graph, scores.top(50)
    ours, theirs, alone = tmp_path / "s@1.safetensors", tmp_path / "g.json", tmp_path / "c.json"
    scores.save(ours)
    write_graph_file(theirs, scores, circuit, d_model=model.decoder.d_model)
    write_graph_file(alone, circuit=circuit, d_model=model.decoder.d_model)
    nodes = NodeScores(graph, torch.arange(graph.n_writers, dtype=torch.float32))
    nodes.save(tmp_path / "n.safetensors")
    found = find(
        model,
        f"{ours}@40",
        f"{theirs}@40:greedy",
        str(theirs),
        str(alone),
        f"{tmp_path}/n.safetensors@0.5",
    )
    assert found[0] == scores.top(40, by="magnitude").pruned()
    assert found[1] == scores.greedy(40, by="magnitude").pruned()
    assert found[2] == found[3] == circuit
    assert found[4] == nodes.within(0.5, by="magnitude").pruned()
    for text, message in (
        (f"{tmp_path}/n.safetensors@0.5:greedy", "scores of nodes"),
        (f"{alone}@5", "a circuit without scores to cut 5 by"),
    ):
        with pytest.raises(MechassayError, match=message):
            find(model, text)


def test_a_changed_file_is_another_plan(tmp_path: Path, scores: EdgeScores) -> None:
    scores.save(tmp_path / "s.safetensors")
    named = CircuitSpec.parse(f"{tmp_path}/s.safetensors@3")
    before = named.file_hash
    EdgeScores(scores.graph, scores.values * 2).save(tmp_path / "s.safetensors")
    assert before and named.file_hash != before
    assert CircuitSpec.parse("full").file_hash is None


def test_of_a_folder_the_largest_circuit_that_fits(
    model: Model, scores: EdgeScores, tmp_path: Path
) -> None:
    small, large = scores.top(60).pruned(), scores.top(120).pruned()
    assert 0 < len(small) < len(large)
    small.save(tmp_path / "own" / "b.safetensors")
    large.save(tmp_path / "own" / "a.safetensors")
    for size, file, circuit in (
        (len(large), "a.safetensors", large),
        (len(large) - 1, "b.safetensors", small),
        (len(small) - 1, "none is so small", Circuit.empty(model.graph)),
    ):
        spec = CircuitSpec.parse(f"{tmp_path}/own@{size}")
        found = spec.find(model.graph)
        assert found.circuit == circuit and found.about["file"] == file
        assert found.text == spec.called == f"own@{size}"
        assert found.about[SCORES_SHA256] == spec.file_hash == folder_hash(tmp_path / "own")
    share = CircuitSpec.parse(f"{tmp_path}/own@1.0").find(model.graph)
    assert share.circuit == large and share.about["size"] == 1.0
    (tmp_path / "none").mkdir()
    scores.save(tmp_path / "ranking" / "s.safetensors")
    for text, message in (
        ("own@9:greedy", "circuits have none"),
        ("none@9", "is no folder of circuits"),
        ("ranking@9", "is no folder of circuits"),
    ):
        with pytest.raises(MechassayError, match=message):
            CircuitSpec.parse(f"{tmp_path}/{text}")


def test_a_method_is_not_taken_for_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eap").mkdir()
    monkeypatch.chdir(tmp_path)
    assert CircuitSpec.parse("eap@5").kind == "method"


def test_results_call_a_file_by_its_own_name(scores: EdgeScores, tmp_path: Path) -> None:
    scores.save(tmp_path / "s@1.safetensors")
    spec = CircuitSpec.parse(f"{tmp_path}/s@1.safetensors@3:greedy")
    assert spec.called == "s@1.safetensors@3:greedy" and spec.find(scores.graph).text == spec.called
    for text in ("full", "random@3", "eap-ig-inputs:steps=3@0.01", "canonical:ioi"):
        assert CircuitSpec.parse(text).called == text


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("ioi", UnknownName, "Unknown circuit 'ioi'. Known: .*METHOD@SIZE"),
        ("truht", UnknownName, "Unknown circuit 'truht'. Did you mean 'truth'"),
        ("eap@5:greddy", UnknownName, "Unknown way to cut 'greddy'. Did you mean 'greedy'"),
        ("eap@5:", UnknownName, "Unknown way to cut"),
        ("scores.safetensors", UnknownName, "Did you mean 'FILE.safetensors@SIZE'"),
        ("eap-ig-inputs:steps=3", BadUsage, "needs a size: eap-ig-inputs:steps=3@500 for edges"),
        ("eap@many", BadUsage, "got 'many' in 'eap@many'"),
        ("eap@1.5", BadUsage, r"between 0 and 1 \(0.01\); got '1.5' in 'eap@1.5'"),
        ("eeap@5", UnknownName, "Did you mean 'eap'"),
        ("canonical:ioo", UnknownName, "Did you mean 'ioi'"),
        ("missing.json", BadFile, "missing.json: there is no such file"),
        ("missing.safetensors@4", BadFile, "there is no such file"),
    ],
)
def test_what_is_no_circuit_is_one_line(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        CircuitSpec.parse(text)
    assert "\n" not in str(raised.value)


def test_sizes_as_text() -> None:
    found = [number_or_share(text) for text in ("1", "1.0", "0", "0.01", "1e-3", "500")]
    assert [repr(each) for each in found] == ["1", "1.0", "0", "0.01", "0.001", "500"]
    for text in ("nan", "inf", "7.9", "-0.1", "", "five"):
        with pytest.raises(BadUsage, match=f"number of pairs .* got '{text}'.$"):
            number_or_share(text, "pairs")


def test_what_the_model_does_not_have(model: Model) -> None:
    with pytest.raises(BadUsage, match="must be between 0 and"):
        find(model, "random@999999")
    with pytest.raises(BadUsage, match="verified for .* ablation, not for optimal"):
        find(model, "truth", ablation="optimal")
    with pytest.raises(BadUsage, match="gpt2 is none"):
        truth_circuit(make_model(build("gpt2"), name="gpt2"), "counterfactual")
    with pytest.raises(BadUsage, match="'truth' needs a model"):
        CircuitSpec.parse("truth").find(model.graph)
    with pytest.raises(GraphMismatch, match="GPT-2 small"):
        find(model, "canonical:ioi")


def test_the_fields_name_of_a_method_and_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CircuitSpec.full_text("EAP-IG@500") == "eap-ig-inputs@500"
    assert CircuitSpec.parse("EAP-IG:steps=3@0.1").name == "eap-ig-inputs:steps=3"
    assert CircuitSpec.full_text("truth") == "truth"
    (tmp_path / "EAP-IG").mkdir()
    assert CircuitSpec.full_text("EAP-IG@500") == "EAP-IG@500"
    with pytest.raises(BadFile, match="EAP-IG: is no folder of circuits"):
        CircuitSpec.parse("EAP-IG@500")
