"""Compiled models do their tasks, are made once, and their distractors are active."""

from __future__ import annotations

import json
import math
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, GraphMismatch, MechassayError, UnknownName
from mechassay.models.loading import resolve
from mechassay.models.sources import MADE_TRUTHS, truth_names
from mechassay.prompts.pairs import Pair
from mechassay.testing.checks import check_task
from mechassay.truth import compiled
from mechassay.truth import ground_truth as models
from mechassay.truth.compiled import BLUEPRINTS, directions
from mechassay.truth.ground_truth import Truth, load_truth, truth_folder
from mechassay.truth.tasks import CAUSAL, split_of

truth_of = cache(load_truth)
NAMES = sorted(BLUEPRINTS)
GOLDEN = Path(__file__).parents[1] / "golden"


def answer_by_hand(name: str, text: str) -> str:
    """The right answer, worked out from the words."""
    words = text.split()
    if name == "truth-previous-token":
        return words[words.index("#") - 1]
    if name == "truth-induction":
        return words[words.index(words[-1]) + 1]
    names = [word for word in words if word[0].isupper()]
    return next(word for word in names if names.count(word) == 1)


def test_the_names_are_those_of_the_blueprints_and_tasks() -> None:
    trained = [name for name in CAUSAL.names() if name not in MADE_TRUTHS]
    assert truth_names() == sorted([*NAMES, *trained])
    assert [truth_of(name).task for name in NAMES] == [BLUEPRINTS[name]().task for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_task_keeps_its_promises(name: str) -> None:
    check_task(truth_of(name).task, limit=30)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_ten_words_with_the_right_answer_in_their_split(name: str) -> None:
    for example in truth_of(name).task.examples("validation", limit=200):
        for prompt in (example.prompt, example.counterfactuals["other-prompt"]):
            assert prompt.answers == (" " + answer_by_hand(name, prompt.text),)
            assert len(prompt.text.split()) == 10
            assert split_of(prompt.text) == "validation"
            assert all(" " not in prompt.part(span) for span in prompt.spans)
        assert example.prompt.answers != example.counterfactuals["other-prompt"].answers


@pytest.mark.parametrize("name", NAMES)
def test_the_model_always_gives_the_answer(name: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("test", truth.model, limit=300)
    batch = truth.model.batch(pairs)
    taken, _ = truth.model.run(batch)
    logits = taken.readout(truth.model.decoder).all()
    best = logits.topk(2, dim=1)
    assert torch.equal(best.indices[:, :1], batch.answers)
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 9
    assert evaluate(truth.model, Circuit.full(truth.model.graph), pairs).min() > 9


@pytest.mark.parametrize("name", NAMES)
def test_the_circuit_alone_does_the_task(name: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("test", truth.model, limit=100)
    for ablation, circuit in truth.circuits.items():
        values = evaluate(truth.model, circuit, ablate(truth.model, pairs, ablation))
        assert values.min() > 9, ablation


@pytest.mark.parametrize("name", NAMES)
def test_without_any_edge_of_the_circuit_the_answer_is_lost(name: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("test", truth.model, limit=100)
    rest = Circuit(truth.model.graph, truth.model.graph.legal & ~truth.circuits["zero"].edges)
    assert evaluate(truth.model, rest, pairs).max() < 1


@pytest.mark.parametrize("name", NAMES)
def test_distractors_are_active_and_write_nothing_but_junk(name: str) -> None:
    truth, blueprint = truth_of(name), BLUEPRINTS[name]()
    model, batch = truth.model, truth.model.batch(truth.task.pairs("test", truth.model, limit=30))
    basis = torch.from_numpy(directions()).float()
    clean, other = model.run(batch)[0], model.run(batch, counterfactual=True)[0]
    for layer, (a, b) in enumerate(zip(clean.layers, other.layers, strict=True)):
        assert a.mlp is not None and b.mlp is not None
        wrote = {
            head: model.decoder.head_outputs(layer, a.z)[head]
            for head in range(4)
            if (layer, head) not in blueprint.heads
        }
        changed = {
            head: model.decoder.head_outputs(layer, b.z)[head] - wrote[head] for head in wrote
        }
        for out, change in [
            (a.mlp, b.mlp - a.mlp),
            *((wrote[head], changed[head]) for head in wrote),
        ]:
            features = out @ basis.T
            assert float(out.norm(dim=-1).mean()) > 0.2
            assert float(change.norm(dim=-1)[:, -1].mean()) > 0.01
            assert float(features[..., : blueprint.space.at["junk"].start].abs().max()) < 1e-5


def test_directions_are_orthonormal_and_invisible_to_the_mean() -> None:
    found = directions()
    np.testing.assert_allclose(found @ found.T, np.eye(len(found)), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_compiled_once_into_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    folder = truth_folder(name)
    assert tmp_path in folder.parents and folder.name == name
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert {file.name for file in folder.iterdir()} == {*files, "truth.json"}
    assert not any((tmp_path / "tmp").iterdir())
    monkeypatch.setattr(compiled, "compile_model", None)
    assert truth_folder(name) == folder == Path(resolve(name).location)
    assert resolve(f"untrained:{name}").location == str(folder)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_weights_are_those_that_were_verified(name: str) -> None:
    """Of each tensor the shape, the sum, the sum of squares, and a product with cosines."""
    known = json.loads((GOLDEN / "compiled_truths.json").read_text("utf-8"))[name]
    found = load_file(truth_folder(name) / "model.safetensors")
    assert found.keys() == known.keys()
    for key, (shape, *sums) in known.items():
        flat = found[key].double().flatten()
        products = (flat.sum(), flat @ flat, flat @ torch.arange(len(flat)).double().cos())
        assert list(found[key].shape) == shape
        assert [float(each) for each in products] == pytest.approx(sums, rel=1e-6, abs=1e-4), key


def test_another_process_may_be_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    publish = compiled.publish

    def second(finished: Path, target: Path) -> None:
        shutil.copytree(finished, target)
        publish(finished, target)

    monkeypatch.setattr(compiled, "publish", second)
    assert load_truth("truth-induction").circuits == truth_of("truth-induction").circuits


def test_a_cache_that_cannot_be_written_to_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(MechassayError, match="Cannot write to the cache .*MECHASSAY_CACHE names"):
        truth_folder("truth-ioi")


def auroc(scores: EdgeScores, truth: Truth, ablation: str) -> float:
    legal = truth.model.graph.legal
    return float(
        roc_auc_score(
            truth.circuits[ablation].edges[legal].numpy(), scores.values[legal].abs().numpy()
        )
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("ablation", ["counterfactual", "mean", "zero"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_find_the_circuit(name: str, ablation: str) -> None:
    truth = truth_of(name)
    batch = ablate(truth.model, truth.task.pairs("train", truth.model, limit=40), ablation)
    chance = np.mean(
        [
            auroc(ma.circuits.Random(seed=seed).score(truth.model, batch), truth, ablation)
            for seed in range(20)
        ]
    )
    assert 0.3 < chance < 0.7
    assert auroc(
        ma.circuits.ExactPatching().score(truth.model, batch), truth, ablation
    ) == pytest.approx(1)
    assert auroc(ma.circuits.EAPIGInputs(steps=5).score(truth.model, batch), truth, ablation) > 0.95
    # Where attention is saturated there is no gradient: EAP misses queries and keys, but is no
    # worse than chance.
    assert auroc(ma.circuits.EAP().score(truth.model, batch), truth, ablation) > chance


# --- files
# ---------------------------------------------------------------------------------------------


def copied(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a shipped folder that `load_truth` reads in its place; returns its truth.json."""
    (folder / name).mkdir()
    for file in truth_folder(name).iterdir():
        (folder / name / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(models, "TRUTH_FOLDERS", folder)
    return folder / name / "truth.json"


def test_a_circuit_of_another_graph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied("truth-ioi", tmp_path, monkeypatch)
    file.write_text(
        file.read_text("utf-8").replace(truth_of("truth-ioi").model.graph.fingerprint, "0" * 12),
        "utf-8",
    )
    with pytest.raises(GraphMismatch, match="truth-ioi was verified on the graph 000000000000"):
        load_truth("truth-ioi")


def test_a_folder_of_any_other_place_is_read_and_an_unknown_task_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied("truth-induction", tmp_path, monkeypatch)
    for given in (file.parent, str(file.parent)):
        assert load_truth(given).circuits == truth_of("truth-induction").circuits
    file.write_text(
        file.read_text("utf-8").replace('"task": "truth-induction"', '"task": "truth-inductoin"'),
        "utf-8",
    )
    with pytest.raises(BadFile, match="truth.json: .*Did you mean 'truth-induction'"):
        load_truth(file.parent)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "null"])
def test_a_damaged_record_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied("truth-induction", tmp_path, monkeypatch).write_text(text, "utf-8")
    with pytest.raises(BadFile, match=r"truth\.json"):
        load_truth("truth-induction")


@pytest.mark.parametrize(
    ("key", "value"),
    [("smallest_inside", "large"), ("edges", [5]), ("shares", [1.0]), ("together", [])],
)
def test_a_damaged_row_is_refused(
    key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied("truth-induction", tmp_path, monkeypatch)
    record = json.loads(file.read_text("utf-8"))
    record["ablations"]["zero"][key] = value
    file.write_text(json.dumps(record), "utf-8")
    with pytest.raises(BadFile, match=r"truth\.json: not a ground truth"):
        load_truth("truth-induction")
    file.write_text(json.dumps(record | {"ablations": {}}), "utf-8")
    with pytest.raises(BadFile, match="no ablation has a circuit"):
        load_truth("truth-induction")


def test_a_record_of_an_older_version_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied("truth-induction", tmp_path, monkeypatch)
    record = json.loads(file.read_text("utf-8"))
    for row in record["ablations"].values():
        for key in ("together", "shares", "shares_in_pair"):
            row.pop(key, None)
    file.write_text(json.dumps(record), "utf-8")
    old, new = load_truth("truth-induction"), truth_of("truth-induction")
    assert old.circuits == new.circuits and old.margins == new.margins
    row = old.verified["zero"]
    assert (
        math.isnan(row.together)
        and math.isnan(row.joint_margin)
        and row.shares == ()
        and math.isnan(row.least_share)
    )


def test_an_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'truth-ioi'"):
        load_truth("truth-oi")


def test_pairs_can_be_run_by_text() -> None:
    truth = truth_of("truth-induction")
    pair = Pair(
        "mine",
        ": oak elm ash yew fir bay box fig ash",
        ": elm oak yew ash fir bay fig box yew",
        (" yew",),
        (" ash",),
    )
    assert float(evaluate(truth.model, Circuit.full(truth.model.graph), [pair])[0]) > 9
