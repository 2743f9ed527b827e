"""Strict interchange intervention training: it lowers its loss, is the same twice and when killed;
what ships was verified.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.evaluation.metrics import recovery_of
from mechassay.errors import BadFile, BadUsage, NonFinite, UnknownName
from mechassay.models.families import decode
from mechassay.models.graph import Graph
from mechassay.models.sources import MADE_TRUTHS
from mechassay.truth.ground_truth import load_truth, truth_folder
from mechassay.truth.summary import FILE, read_truth_file
from mechassay.truth.tasks import CAUSAL, LOGIT, CausalIOI, CausalPreviousToken
from mechassay.truth.training import (
    Prompts,
    Training,
    make_truth,
    train,
    trainable,
    untrained,
)
from mechassay.truth.verification import (
    ABLATIONS,
    LEAST_SHARE,
    MARGIN,
    Backup,
    Verification,
    verify,
)

truth_of = cache(load_truth)
NAMES = [name for name in CAUSAL.names() if name not in MADE_TRUTHS]
SHORT = Training(steps=20, batch_size=36, pool=300, seed=3)
# Trained once; no test changes the model.
trained = cache(lambda: train(CausalPreviousToken(), SHORT))


# --- training
# --------------------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_is_the_same_for_the_same_seed() -> None:
    model, losses = trained()
    again, same = train(CausalPreviousToken(), SHORT)
    torch.testing.assert_close(losses, same, atol=0, rtol=0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert float(losses[-5:].mean()) < float(losses[:3].mean())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    _, other = train(CausalPreviousToken(), dataclasses.replace(SHORT, steps=2, seed=4))
    assert float(other[0]) != float(losses[0])


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, losses = trained()
    right = Prompts.loss

    def until(self: Prompts, decoder: object, size: int, step: int) -> torch.Tensor:
        if step == 13:
            raise Killed
        return right(self, decoder, size, step)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr(Prompts, "loss", until)
    with pytest.raises(Killed):
        train(CausalPreviousToken(), SHORT, checkpoint=tmp_path / "state.safetensors")
    monkeypatch.setattr(Prompts, "loss", right)
    resumed, again = train(CausalPreviousToken(), SHORT, checkpoint=tmp_path / "state.safetensors")
    torch.testing.assert_close(again, losses, atol=0, rtol=0)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert not (tmp_path / "state.safetensors").exists()


def test_a_training_goes_on_from_a_model(tmp_path: Path) -> None:
    first, losses = trained()
    first.save_pretrained(tmp_path / "first")
    more = dataclasses.replace(SHORT, steps=2, seed=4, rate=1e-4)
    _, further = train(CausalPreviousToken(), more, start=tmp_path / "first")
    assert float(further[0]) < float(losses[:5].mean())
    still = dataclasses.replace(more, steps=1, rate=1e-30, last_rate=1e-30)
    same, _ = train(CausalPreviousToken(), still, start=tmp_path / "first")
    for name, value in first.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
    with pytest.raises(BadFile, match="holds no trained model"):
        train(CausalPreviousToken(), still, start=tmp_path / "none")
    with pytest.raises(BadUsage, match="has other weights than the one"):
        train(CausalIOI(), still, start=tmp_path / "first")


def test_all_parameters_of_the_original_are_trained_in_place() -> None:
    model = untrained(CausalIOI(), 0)
    parameters = trainable(decode(model))
    assert sum(each.numel() for each in parameters) == sum(
        each.numel() for each in model.parameters()
    )
    with torch.no_grad():
        for each in parameters:
            each.fill_(2.0)
    assert all(bool((each == 2).all()) for each in model.parameters())


def test_the_loss_is_that_of_the_untrained_logits_by_hand() -> None:
    """All logits 0: the error is LOGIT^2 for each right answer,
    over the vocabulary, whatever is cut.
    """
    causal = CausalPreviousToken()
    decoder = decode(untrained(causal, 0))
    decoder.unembedding.zero_()
    loss = Prompts(causal, Training(pool=200)).loss(decoder, 64, step=0)
    assert float(loss) == pytest.approx(LOGIT**2 / len(causal.task.vocabulary))


def test_bad_settings_and_a_loss_that_diverges_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="steps of at least 1; got 0"):
        Training(steps=0)
    with pytest.raises(NonFinite, match="Try a lower rate"):
        train(CausalPreviousToken(), dataclasses.replace(SHORT, rate=1e30))
    with pytest.raises(UnknownName, match="truth-ioi-trained"):
        CAUSAL.make("truth-ioi-traind")


def test_circuits_that_hold_are_written_without_those_that_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(CausalPreviousToken.n_layers, CausalPreviousToken.n_heads)
    claimed = Circuit.from_names(graph, list(CausalPreviousToken.edges))
    clear = torch.where(graph.legal, claimed.edges.double() + 1e-3, float("nan"))[None]
    found = {name: Verification(name, claimed, clear, 0.001) for name in ABLATIONS}

    def write(folder: Path, *failing: str) -> Path:
        now = {
            name: replace(each, together=1.0) if name in failing else each
            for name, each in found.items()
        }
        monkeypatch.setattr("mechassay.truth.training.verified", lambda *_, **__: now)
        make_truth(CausalPreviousToken(), dataclasses.replace(SHORT, steps=2), folder, limit=4)
        return folder

    assert set(load_truth(write(tmp_path / "all")).circuits) == set(ABLATIONS)
    partly = load_truth(write(tmp_path / "partly", "mean"))
    assert set(partly.circuits) == {"counterfactual", "zero"} and partly.circuits["zero"] == claimed
    assert (
        partly.verified["zero"].shares == (1.0,) * len(claimed)
        and partly.verified["zero"].together == 0.001
    )
    assert not (write(tmp_path / "none", "counterfactual") / "truth.json").exists()
    assert not partly.verified["zero"].backups and not partly.verified["zero"].contingent
    values = np.array([[8.0] * 4, [4.0] * 4, [8.0] * 4, [-8.0] * 4])
    silent = torch.where(claimed.edges, 0.0, clear)
    for each in found:
        pair = (Backup("a1.h2", "a0.h1", values),)
        found[each] = replace(found[each], backups=pair, alone=silent)
    known = load_truth(write(tmp_path / "backup")).verified["counterfactual"]
    assert known.backups == {"a1.h2": "a0.h1"} and known.contingent == tuple(claimed.names())
    record = read_truth_file(tmp_path / "backup" / FILE)["ablations"]["counterfactual"]
    expected = {"primary": "a0.h1", "survives": 1.0, "lost": 1.0, "heard": 0.0}
    assert record["backups"] == {"a1.h2": expected}


@pytest.mark.slow
def test_a_circuit_that_does_not_hold_is_not_written(tmp_path: Path) -> None:
    _, found = make_truth(
        CausalPreviousToken(), dataclasses.replace(SHORT, steps=2), tmp_path, limit=20
    )
    assert not found["counterfactual"].holds
    assert (tmp_path / "model.safetensors").is_file() and not (tmp_path / "truth.json").exists()


# --- what ships
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_circuit_is_that_of_the_causal_model(name: str) -> None:
    truth, causal = truth_of(name), CAUSAL.make(name)
    assert "counterfactual" in truth.circuits and set(truth.circuits) <= set(ABLATIONS)
    for ablation in truth.circuits:
        names = set(truth.circuits[ablation].names())
        also = () if ablation == "counterfactual" else causal.constant_edges
        assert set(causal.edges) <= names <= {*causal.edges, *causal.free_edges, *also}
        assert truth.margins[ablation] >= MARGIN
    assert sum(file.stat().st_size for file in truth_folder(name).iterdir()) < 1_000_000
    assert (
        json.loads((truth_folder(name) / "truth.json").read_text("utf-8"))["training"]["steps"]
        >= 1000
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_model_always_gives_the_answer_and_so_does_its_circuit(name: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("test", truth.model, limit=100, seed=5)
    whole = evaluate(truth.model, Circuit.full(truth.model.graph), pairs, "logit_diff")
    assert whole.min() > 0.9 * LOGIT
    for ablation, circuit in truth.circuits.items():
        alone = evaluate(truth.model, circuit, ablate(truth.model, pairs, ablation), "logit_diff")
        assert np.abs(alone - whole).max() < 0.05 * LOGIT, ablation


@pytest.mark.slow
def test_circuits_that_few_pairs_show_were_withdrawn() -> None:
    """Under constants the IOI model needs a key in few prompts only:
    its margin is 32 or 2, as the pairs happen to be.
    """
    truth = truth_of("truth-ioi-trained")
    assert set(truth.circuits) == {"counterfactual"}
    claimed = Circuit.from_names(
        truth.model.graph, [*CausalIOI.edges, *CausalIOI.free_edges, *CausalIOI.constant_edges]
    )
    pairs = truth.task.pairs("validation", truth.model, limit=200, seed=4)
    done = verify(truth.model, pairs, claimed, "mean", data=truth.pairs())
    assert done.recovered == claimed and done.margin >= MARGIN and done.joint_margin >= MARGIN
    assert not done.holds and done.least_share < LEAST_SHARE / 2
    key = truth.model.graph.index("input->a1.h3<k>")
    assert float(done.shares[key]) == done.least_share
    # In the pairs that do not show the key, the same claim has no margin.
    without = [
        row for row in range(len(pairs)) if float(done.by_pair[row][key]) <= done.largest_outside
    ]
    assert replace(done, by_pair=done.by_pair[without]).margin <= 1


# Every edge in every pair takes seconds: each ablation once, on small models.
@pytest.mark.parametrize(
    ("name", "ablation"),
    [
        ("truth-fraction-trained", "mean"),
        ("truth-induction-trained", "counterfactual"),
        ("truth-greater-than-trained", "zero"),
    ],
)
def test_the_shipped_circuit_holds_on_other_pairs(name: str, ablation: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("validation", truth.model, limit=40, seed=7)
    done = verify(truth.model, pairs, truth.circuits[ablation], ablation, data=truth.pairs())
    assert done.recovered == truth.circuits[ablation]
    assert done.holds


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_interchanges_of_variables_have_the_causal_models_answers(name: str) -> None:
    """The node of a variable carries the other prompt: the best word is the causal model's."""
    truth, causal = truth_of(name), CAUSAL.make(name)
    graph, pairs = truth.model.graph, truth.task.pairs("test", truth.model, limit=100, seed=6)
    own, other = (
        np.array([[causal.token(word) for word in text.split()] for text in texts])
        for texts in _texts(pairs)
    )
    for variable, home in causal.nodes.items():
        right = causal.answers(own, other, variable)
        rows = np.flatnonzero(right.any(axis=1))
        edges = graph.legal.clone()
        edges[graph.writer(home)] = False
        best = _best(
            truth.model, Circuit(graph, edges), truth.model.batch(pairs).select(rows.tolist())
        )
        assert right[rows, best - 1].mean() > 0.99, variable


def _texts(pairs: ma.Pairs) -> tuple[list[str], list[str]]:
    return [pair.clean for pair in pairs], [pair.counterfactual for pair in pairs]


def _best(model: ma.Model, circuit: Circuit, batch: ma.Batch) -> np.ndarray:
    from mechassay.models.forward import Contrast
    from mechassay.models.gradients import masked_readout

    with torch.no_grad():
        mask = circuit.edges.float()[None]
        return (
            masked_readout(model.decoder, Contrast.run(model.decoder, batch), mask)
            .all()
            .argmax(dim=1)
            .numpy()
        )


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_methods_find_the_trained_circuit(name: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("train", truth.model, limit=20)
    circuit = truth.circuits["counterfactual"]
    found = {
        method: recovery_of(made.score(truth.model, pairs), circuit, by="magnitude").auroc
        for method, made in {
            "exact": ma.circuits.ExactPatching(),
            "ig": ma.circuits.EAPIGInputs(steps=5),
        }.items()
    }
    assert found["exact"] > 0.99 and found["ig"] > 0.9


@pytest.mark.guard
def test_an_interrupt_while_verifying_keeps_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mechassay.truth.training.verified", stop)
        with pytest.raises(KeyboardInterrupt):
            make_truth(CausalPreviousToken(), SHORT, tmp_path / "a", limit=4)
        # All steps are kept: none is done again.
    with pytest.raises(BadUsage, match="an interrupted training with other settings"):
        make_truth(
            CausalPreviousToken(), dataclasses.replace(SHORT, seed=4), tmp_path / "a", limit=4
        )
    with monkeypatch.context() as patch:
        patch.setattr(Prompts, "loss", stop)
        losses, _ = make_truth(CausalPreviousToken(), SHORT, tmp_path / "a", limit=4)
    torch.testing.assert_close(losses, trained()[1], atol=0, rtol=0)
    assert not (tmp_path / "a" / "training.safetensors").exists()
