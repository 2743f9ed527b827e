"""What must not change scores and evaluations, and what must change exactly as said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import mechassay as ma
from helpers.models import USUAL, families
from mechassay.circuits import Circuit, EdgeScores, evaluate
from mechassay.circuits.methods import attribution
from mechassay.circuits.methods.attribution import tapped_forward
from mechassay.circuits.methods.method import AnyMethod
from mechassay.models.decoder import Readout
from mechassay.models.forward import Contrast
from mechassay.models.model import Model
from mechassay.models.objectives import LogitDiff
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, subject

METHODS: dict[str, AnyMethod] = {
    "eap": ma.circuits.EAP(),
    "eap-ig-inputs": ma.circuits.EAPIGInputs(steps=3),
    "eap-ig-activations": ma.circuits.EAPIGActivations(steps=2),
    "eap-ig-activations mib": ma.circuits.EAPIGActivations(steps=2, reading="mib-2025"),
    "clean-corrupted": ma.circuits.CleanCorrupted(),
    "exact": ma.circuits.ExactPatching(),
}


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma3"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, dtype=torch.float64, n_pairs=5)


def circuits(model: Model) -> list[Circuit]:
    generator = torch.Generator().manual_seed(7)
    return [
        Circuit(
            model.graph,
            (torch.rand(model.graph.legal.shape, generator=generator) < p) & model.graph.legal,
        )
        for p in (0.2, 0.6)
    ]


def padded(batch: Batch, left: int, right: int) -> Batch:
    """The same pairs handed in with more padding, on either side."""

    def pad(tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(tokens, (left, right), value=5)

    return Batch.from_tokens(
        pad(batch.clean),
        pad(batch.counterfactual),
        batch.answers,
        batch.foils,
        mask=pad(batch.mask.long()).eq(1) & _real(batch, left, right),
    )


def _real(batch: Batch, left: int, right: int) -> Tensor:
    return torch.nn.functional.pad(batch.mask, (left, right), value=False)


def assert_same(a: EdgeScores, b: EdgeScores) -> None:
    torch.testing.assert_close(a.values, b.values, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_the_blocks_of_the_contraction_change_no_scores(
    case: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a block is a part of its free memory; here as little as one token."""
    whole = ma.circuits.EAP().score(case.model, case.batch)
    monkeypatch.setattr(attribution, "available_bytes", lambda device: 16 * 2**40)
    assert attribution._contraction_bytes(torch.device("cuda")) == 2**40
    assert attribution._contraction_bytes(torch.device("cpu")) == attribution.CONTRACTION_BYTES
    monkeypatch.setattr(attribution, "_contraction_bytes", lambda device: 1)
    assert_same(ma.circuits.EAP().score(case.model, case.batch), whole)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", METHODS)
def test_order_and_batch_size_do_not_change_scores(case: Subject, name: str) -> None:
    model, batch, method = case.model, case.batch, METHODS[name]
    together = method.score(model, batch)
    assert_same(together, method.score(model, batch.select([3, 1, 4, 0, 2])))
    alone = [method.score(model, batch.select([row])).values for row in range(len(batch))]
    assert_same(together, EdgeScores(model.graph, torch.stack(alone).double().mean(0).float()))


@pytest.mark.few(12)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 4)])
def test_padding_does_not_change_scores(case: Subject, name: str, left: int, right: int) -> None:
    method = METHODS[name]
    assert_same(
        method.score(case.model, case.batch),
        method.score(case.model, padded(case.batch, left, right)),
    )


def test_order_batch_size_and_padding_do_not_change_evaluation(case: Subject) -> None:
    model, batch = case.model, case.batch
    together = evaluate(model, circuits(model), batch)
    order = [3, 1, 4, 0, 2]
    np.testing.assert_allclose(
        evaluate(model, circuits(model), batch.select(order)), together[:, order], rtol=0, atol=1e-9
    )
    alone = np.concatenate(
        [evaluate(model, circuits(model), batch.select([row])) for row in range(len(batch))], axis=1
    )
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-9)
    for left, right in ((4, 0), (0, 3)):
        np.testing.assert_allclose(
            evaluate(model, circuits(model), padded(batch, left, right)),
            together,
            rtol=0,
            atol=1e-9,
        )


def test_forced_padding_columns_do_not_change_the_run(case: Subject) -> None:
    """`from_tokens` strips padding; here the columns are really there when the model runs."""
    model, batch = case.model, case.batch
    wide = replace(
        batch,
        clean=torch.nn.functional.pad(batch.clean, (6, 0), value=9),
        counterfactual=torch.nn.functional.pad(batch.counterfactual, (6, 0), value=9),
        mask=torch.nn.functional.pad(batch.mask, (6, 0), value=False),
    )
    a, b = (model.run(each)[0].readout(model.decoder).all() for each in (batch, wide))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "objective", ["logit_diff", "prob_diff", "kl", "js", "cross_entropy", "accuracy"]
)
def test_adding_a_constant_to_all_logits_changes_no_objective(
    case: Subject, objective: str
) -> None:
    class Shifted(Readout):
        def at(self, tokens: Tensor) -> Tensor:
            return super().at(tokens) + 3.7

        def all(self) -> Tensor:
            return super().all() + 3.7

    from mechassay.models.objectives import load_objective

    model, batch, chosen = case.model, case.batch, load_objective(objective)
    taken, other = (
        model.run(batch, counterfactual=which)[0].readout(model.decoder) for which in (False, True)
    )
    plain = chosen(other, batch, taken)
    torch.testing.assert_close(
        chosen(Shifted(other.hidden, other.decoder), batch, Shifted(taken.hidden, taken.decoder)),
        plain,
    )


def test_empty_circuit_is_the_counterfactual_run_and_full_the_clean_run(case: Subject) -> None:
    model, batch = case.model, case.batch
    for circuit, counterfactual in (
        (Circuit.full(model.graph), False),
        (Circuit.empty(model.graph), True),
    ):
        plain = LogitDiff()(
            model.run(batch, counterfactual=counterfactual)[0].readout(model.decoder), batch
        )
        np.testing.assert_allclose(
            evaluate(model, circuit, batch), plain.numpy(), rtol=0, atol=1e-10
        )


def test_pruning_does_not_change_what_a_circuit_computes(case: Subject) -> None:
    model = case.model
    for circuit in circuits(model):
        np.testing.assert_allclose(
            evaluate(model, circuit, case.batch),
            evaluate(model, circuit.pruned(), case.batch),
            rtol=0,
            atol=1e-10,
        )


@pytest.mark.parametrize("name", families(quick=USUAL))
def test_scores_of_a_writers_edges_sum_to_its_first_order_change(name: str) -> None:
    """sum_v S[u, v] = - <a'_u - a_u, dm/da_u>:
    the gradient at an output is the sum of those at all its readers.
    """
    tiny = subject(name, dtype=torch.float64)
    model, batch, graph = tiny.model, tiny.batch, tiny.model.graph
    scores = ma.circuits.EAP().score(model, batch).values.nan_to_num()
    contrast = Contrast.run(model.decoder, batch)
    change = contrast.other.embed - contrast.clean.embed[:, contrast.start :]
    embeds = contrast.clean.embed[:, contrast.start :].clone().requires_grad_()
    x = model.decoder.add_positions(embeds, contrast.ctx, contrast.start)
    taps = tapped_forward(model.decoder, x, contrast.ctx, start=contrast.start, past=contrast.clean)
    total = LogitDiff()(taps.readout, batch).sum()
    outputs = [layer.mlp for layer in taps.layers if layer.mlp is not None]
    at_input, *at_mlps = torch.autograd.grad(total, [embeds, *outputs])
    assert float(scores[0].sum()) == pytest.approx(
        -float((change * at_input).sum()) / len(batch), rel=1e-5, abs=1e-6
    )
    for layer, gradient in enumerate(at_mlps):
        clean, other = contrast.clean.layers[layer].mlp, contrast.other.layers[layer].mlp
        assert clean is not None and other is not None
        columns = gradient.shape[1]
        expected = -float(
            ((other - clean[:, contrast.start :])[:, -columns:] * gradient).sum()
        ) / len(batch)
        assert float(scores[graph.mlp_writer(layer)].sum()) == pytest.approx(
            expected, rel=1e-5, abs=1e-6
        )


@pytest.mark.few(3)
def test_integrated_gradients_converge_to_the_whole_change(case: Subject) -> None:
    """Completeness: the input's scores, integrated finely, sum to m(clean) - m(counterfactual)."""
    model, batch = case.model, case.batch
    scores = (
        ma.circuits.EAPIGInputs(steps=300, points="gauss-legendre").score(model, batch).values[0]
    )
    ends = [
        evaluate(model, circuit, batch).mean()
        for circuit in (Circuit.full(model.graph), Circuit.empty(model.graph))
    ]
    assert float(scores.nansum()) == pytest.approx(ends[0] - ends[1], rel=1e-3)
