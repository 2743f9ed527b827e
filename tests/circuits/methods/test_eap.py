"""Scores of nodes and neurons: against hooks on the unmodified model,
edge scores, and what must not change them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import ReferenceModel, exact_precision
from mechassay.circuits import EAP, Conductance, EAPIGActivations, EAPIGInputs, ablate, evaluate
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.attribution import (
    ReaderGradients,
    WriterGradients,
    add_products,
    at_clean_run,
    at_interpolations,
    contract,
    tapped_forward,
)
from mechassay.circuits.methods.eap import NAP, NAPIG, quadrature
from mechassay.circuits.scores import NeuronScores, NodeScores
from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.models.decoder import Norm
from mechassay.models.forward import Contrast, trace
from mechassay.models.model import Model
from mechassay.models.objectives import LogitDiff, Objective
from mechassay.prompts.batch import Batch
from mechassay.testing.checks import check_method_configuration as check_configuration
from mechassay.testing.tiny import Subject, subject
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def clean_node_scores(model: Model, batch: Batch, objective: Objective, into: Tensor) -> None:
    add_products(model, *at_clean_run(model, batch, objective, WriterGradients.of), into)


def interpolated_node_scores(
    model: Model,
    batch: Batch,
    objective: Objective,
    alphas: tuple[float, ...],
    weights: tuple[float, ...],
    into: Tensor,
) -> None:
    found = at_interpolations(model, batch, objective, alphas, weights, WriterGradients.of)
    add_products(model, *found, into)


def zeros(case: Subject) -> Tensor:
    return torch.zeros(case.model.graph.n_writers, case.model.decoder.d_model, dtype=torch.float64)


def by_hooks(case: Subject, alpha: float) -> Tensor:
    """The definition, on the original model:
    zeros added to each writer's output, and their gradients.
    """
    model, batch, graph = case.model, case.batch, case.model.graph
    with exact_precision(model.hf):
        reference = ReferenceModel(model.hf, graph)
        layout = reference.layout
        clean, other = (
            reference.record(batch.clean, batch.mask),
            reference.record(batch.counterfactual, batch.mask),
        )
        leaves = torch.zeros_like(clean.writers, requires_grad=True)
        embeds = other.writers[0] + alpha * (clean.writers[0] - other.writers[0])
        handles = [
            model.hf.get_submodule(layout.embed).register_forward_hook(
                lambda m, a, out: embeds + leaves[0]
            )
        ]

        def add(module: torch.nn.Module, rows: slice) -> None:
            handles.append(
                module.register_forward_hook(lambda m, a, out: out + leaves[rows].sum(0))
            )

        for layer in range(graph.n_layers):
            row = graph.mlp_writer(layer)
            add(
                reference.blocks[layer].get_submodule(f"{layout.attention}.{layout.out}"),
                graph.heads(layer),
            )
            add(
                reference.blocks[layer].get_submodule(layout.post_mlp or layout.mlp),
                slice(row, row + 1),
            )
        position_ids = (batch.mask.long().cumsum(1) - 1).clamp(min=0)
        logits = model.hf(
            batch.clean,
            attention_mask=batch.mask.long(),
            position_ids=position_ids,
            use_cache=False,
        ).logits[:, -1]
        (gradient,) = torch.autograd.grad(
            (logits.gather(1, batch.answers) - logits.gather(1, batch.foils)).sum(), leaves
        )
        for handle in handles:
            handle.remove()
    return -((other.writers - clean.writers) * gradient).sum((1, 2))


def test_gradients_are_those_at_the_outputs(case: Subject) -> None:
    total, again, expected = zeros(case), zeros(case), by_hooks(case, 1.0)
    clean_node_scores(case.model, case.batch, LogitDiff(), total)
    interpolated_node_scores(case.model, case.batch, LogitDiff(), (1.0,), (1.0,), again)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(again, expected, rtol=1e-9, atol=1e-9)
    scores = NAP().score(case.model, case.batch, progress=SILENT)
    torch.testing.assert_close(scores.values, (expected / len(case.batch)).float())


def test_integrated_gradients_are_those_at_interpolated_inputs(case: Subject) -> None:
    alphas, weights = (0.0, 0.3, 0.8), (0.5, 0.2, 0.3)
    total = zeros(case)
    interpolated_node_scores(case.model, case.batch, LogitDiff(), alphas, weights, total)
    expected = torch.stack(
        [weight * by_hooks(case, alpha) for alpha, weight in zip(alphas, weights, strict=True)]
    ).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)


def test_a_node_has_the_sum_of_its_edges(case: Subject) -> None:
    """The gradient at an output is the sum of the gradients at all its readers."""
    model, graph = case.model, case.model.graph
    alphas, weights = quadrature("left", 3)
    edges = torch.zeros(2, graph.n_writers, graph.n_readers, dtype=torch.float64)
    clean = at_clean_run(model, case.batch, LogitDiff(), ReaderGradients.of)
    contract(model, *clean, edges[0])
    along = at_interpolations(model, case.batch, LogitDiff(), alphas, weights, ReaderGradients.of)
    contract(model, *along, edges[1])
    neurons = torch.stack([zeros(case), zeros(case)])
    clean_node_scores(model, case.batch, LogitDiff(), neurons[0])
    interpolated_node_scores(model, case.batch, LogitDiff(), alphas, weights, neurons[1])
    torch.testing.assert_close(
        neurons.sum(-1), torch.where(graph.legal, edges, 0.0).sum(-1), rtol=1e-9, atol=1e-9
    )
    scores = NAP(level="node").score(model, case.batch, progress=SILENT)
    assert isinstance(scores, NodeScores)
    torch.testing.assert_close(
        scores.values,
        EAP().score(model, case.batch, progress=SILENT).values.nansum(1),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_node_has_the_sum_of_its_edges_under_constants(kind: str) -> None:
    case = subject("gemma2", torch.float64)
    batch = ablate(case.model, case.batch, kind, progress=SILENT)
    nodes = NAP(level="node").score(case.model, batch, progress=SILENT)
    torch.testing.assert_close(
        nodes.values,
        EAP().score(case.model, batch, progress=SILENT).values.nansum(1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_attention_only_models_and_narrow_dtypes() -> None:
    case = subject("gpt2", torch.float64)
    decoder = replace(
        case.model.decoder,
        layers=tuple(replace(layer, mlp=None) for layer in case.model.decoder.layers),
    )
    model = replace(case.model, decoder=decoder)
    for method, edges in ((NAP(level="node"), EAP()), (NAPIG(level="node"), EAPIGInputs())):
        expected = edges.score(model, case.batch, progress=SILENT).values.nansum(1)
        torch.testing.assert_close(
            method.score(model, case.batch, progress=SILENT).values, expected, rtol=1e-4, atol=1e-5
        )
    narrow, wide = subject("gemma2", torch.bfloat16), subject("gemma2")
    rough, fine = (
        NAP().score(each.model, each.batch, progress=SILENT).values.flatten()
        for each in (narrow, wide)
    )
    assert float(torch.corrcoef(torch.stack((rough, fine)))[0, 1]) > 0.95


@pytest.mark.few(2)
def test_integrated_gradients_of_the_input_add_up_to_the_whole_change(case: Subject) -> None:
    model, batch = case.model, case.batch
    scores = NAPIG(steps=256, points="gauss-legendre").score(model, batch, progress=SILENT)
    values = [
        LogitDiff()(model.run(batch, counterfactual=other)[0].readout(model.decoder), batch)
        for other in (False, True)
    ]
    assert float(scores.values[0].sum()) == pytest.approx(
        float((values[0] - values[1]).mean()), rel=1e-5
    )


@pytest.mark.few(1)
def test_conductance_adds_up_at_the_logits_and_is_one_gradient_in_one_step(case: Subject) -> None:
    """Edges into the logits carry the whole difference, with an error that falls as 1 / steps^2;
    the mean gradient times the whole change does not.
    """
    model, batch, logits = case.model, case.batch, case.model.graph.logits
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    empty, full = evaluate(model, ends, batch, progress=SILENT).mean(axis=1)

    def error(method: Any) -> float:
        values = method.score(model, batch, progress=SILENT).values
        return abs(float(values[:, logits].sum()) - float(full - empty))

    coarse, fine = (error(Conductance(steps=steps)) for steps in (64, 256))
    assert fine < 0.1 * coarse + 1e-6 and fine < 1e-3
    assert error(EAPIGInputs(steps=128, points="midpoint")) > 10 * fine
    one, gradient = (
        method.score(model, batch, progress=SILENT).values.nan_to_num()
        for method in (Conductance(steps=1), EAPIGInputs(steps=1, points="midpoint"))
    )
    if not model.decoder.has_post_norm:
        torch.testing.assert_close(one, gradient, rtol=1e-6, atol=1e-7)


def test_two_prompts_that_are_one_have_no_conductance() -> None:
    case = subject("gemma2", torch.float64)
    same = replace(case.batch, counterfactual=case.batch.clean)
    values = Conductance().score(case.model, same, progress=SILENT).values
    assert float(values[case.model.graph.legal].abs().max()) < 1e-12


def test_conductance_of_two_steps_by_parts() -> None:
    """Each step is the estimate of one gradient between two prompts that lie on the path."""
    case = subject("gpt2", torch.float64)
    model, batch = case.model, case.batch
    decoder, into = model.decoder, torch.zeros_like(model.graph.legal, dtype=torch.float64)
    ctx = decoder.context(batch.mask)
    clean, other = decoder.embed(batch.clean), decoder.embed(batch.counterfactual)
    for begin, end in ((0.0, 0.5), (0.5, 1.0)):
        runs = [trace(decoder, other + alpha * (clean - other), ctx) for alpha in (end, begin)]
        with torch.enable_grad():
            x = (other + (begin + end) / 2 * (clean - other)).requires_grad_()
            taps = tapped_forward(decoder, decoder.add_positions(x, ctx), ctx)
            total = LogitDiff()(taps.readout, batch).sum()
            gradients = ReaderGradients.of(decoder, taps, total, times=1, columns=batch.n_tokens)
        contract(model, Contrast(batch, ctx, 0, *runs), gradients, into)
    values = Conductance(steps=2).score(model, batch, progress=SILENT).values
    legal = model.graph.legal
    torch.testing.assert_close(
        values[legal], (into / len(batch))[legal].float(), rtol=1e-6, atol=1e-7
    )
    constants = ablate(model, batch, "mean", progress=SILENT)
    with pytest.raises(BadUsage, match="needs the counterfactual run; constants have none"):
        Conductance().score(model, constants, progress=SILENT)


def test_random_points_are_each_examples_own_and_of_no_batch(case: Subject) -> None:
    """One example alone has the gradient at its point; others beside it change nothing."""
    model, batch, legal = case.model, case.batch, case.model.graph.legal
    method = EAPIGInputs(steps=2, points="random")
    total = torch.zeros_like(legal, dtype=torch.float64)
    drawn: set[float] = set()
    for row, digits in enumerate(batch.prompt_hashes()):
        within = int(digits[:8], 16) / 16**8
        drawn.add(within)
        alphas = (within / 2, (1 + within) / 2)
        one, gradients_of = batch.select([row]), ReaderGradients.of
        found = at_interpolations(model, one, LogitDiff(), alphas, (0.5, 0.5), gradients_of)
        contract(model, *found, total)
    assert len(drawn) == len(batch) and all(0 <= within < 1 for within in drawn)
    values = method.score(model, batch, progress=SILENT).values
    torch.testing.assert_close(
        values[legal], (total / len(batch))[legal].float(), rtol=1e-5, atol=1e-7
    )


def test_auto_names_what_validation_pairs_decide_between() -> None:
    case = subject("gpt2")
    method = EAPIGInputs(steps=2, backward="auto")
    names = [candidate.backward for candidate in method.candidates()]
    assert names == ["plain", "gim", "attnlrp", "relp"] and EAP().candidates() == ()
    for plain in (EAP(), EAPIGInputs(steps=2), Conductance(), EAPIGActivations()):
        auto = replace(plain, backward="auto")
        assert auto.forwards(case.model.graph, 3) == 5 * plain.forwards(case.model.graph, 3)
    with pytest.raises(BadUsage, match="backward=auto is chosen on validation pairs"):
        method.score(case.model, case.batch, progress=SILENT)


def test_padding_and_chunks_do_not_change_scores(
    case: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = case.model, case.batch
    whole = [
        method.score(model, batch, progress=SILENT).values for method in (NAP(), NAPIG(steps=2))
    ]
    alone = [
        NAP().score(model, batch.select([row]), progress=SILENT).values for row in range(len(batch))
    ]
    torch.testing.assert_close(torch.stack(alone).mean(0), whole[0])
    monkeypatch.setattr("mechassay.models.memory.CPU_BUDGET", 1)
    chunked = [
        method.score(model, batch, progress=SILENT).values for method in (NAP(), NAPIG(steps=2))
    ]
    torch.testing.assert_close(chunked, whole)


def test_what_pads_does_not_matter(case: Subject) -> None:
    batch = case.batch
    rows = {
        name: getattr(batch, name)
        for name in ("clean", "counterfactual", "answers", "foils", "mask")
    }
    padded = (
        torch.where(batch.mask, batch.clean, (batch.clean + 1) % 97),
        torch.where(batch.mask, batch.counterfactual, 5),
    )
    other = Batch(
        **{**rows, "clean": padded[0], "counterfactual": padded[1]},
        ids=batch.ids,
        groups=batch.groups,
    )
    torch.testing.assert_close(
        NAP().score(case.model, other, progress=SILENT).values,
        NAP().score(case.model, batch).values,
    )


@pytest.mark.parametrize("centred", [True, False])
def test_pulling_back_is_the_transpose_of_pushing_forward(centred: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gradient, weight, bias = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    norm = Norm(weight, bias, 1e-5, centred)
    expected = torch.autograd.functional.vjp(norm, x, gradient)[1]
    torch.testing.assert_close(norm.pull_back(gradient, norm.statistics(x)), expected)


@pytest.mark.parametrize(
    "method", [NAP(), NAP(level="node"), NAPIG(), NAPIG(steps=2, points="right", level="node")]
)
def test_contract(method: NAP | NAPIG) -> None:
    check_configuration(method)  # pyright: ignore[reportArgumentType]
    case = subject("llama")
    scores = method.score(case.model, case.batch, progress=SILENT)
    assert type(scores) is (NeuronScores if method.level == "neuron" else NodeScores)
    assert scores.graph == case.model.graph and scores.values.dtype == torch.float32
    assert bool(torch.isfinite(scores.values).all())
    assert torch.equal(scores.values, method.score(case.model, case.batch, progress=SILENT).values)
    assert (
        scores.provenance["method"] == method.name
        and scores.provenance["settings"]["level"] == method.level
    )
    assert scores.provenance["n_examples"] == len(case.batch)


def test_levels_agree() -> None:
    case = subject("gemma2")
    neurons, nodes = (
        NAPIG().score(case.model, case.batch),
        NAPIG(level="node").score(case.model, case.batch),
    )
    assert isinstance(neurons, NeuronScores)
    torch.testing.assert_close(neurons.nodes().values, nodes.values, rtol=1e-4, atol=1e-5)


def test_a_small_step_of_the_input_is_predicted() -> None:
    """Sign and size: moving the input a little towards the counterfactual
    drops the objective by that much of its score.
    """
    case = subject("gpt2", torch.float64)
    model, batch, step = case.model, case.batch, 1e-5
    score = float(NAP(level="node").score(model, batch, progress=SILENT).values[0])
    clean, _ = model.run(batch)
    other, ctx = model.run(batch, counterfactual=True)
    moved = trace(model.decoder, clean.embed + step * (other.embed - clean.embed), ctx)
    drop = LogitDiff()(clean.readout(model.decoder), batch) - LogitDiff()(
        moved.readout(model.decoder), batch
    )
    assert float(drop.mean()) / step == pytest.approx(score, rel=1e-3)


def test_checkpoints_are_removed_when_done(tmp_path: Path) -> None:
    case, path = subject("gpt2"), tmp_path / "nap.safetensors"
    plain = NAP().score(case.model, case.batch, progress=SILENT)
    assert torch.equal(
        NAP().score(case.model, case.batch, progress=SILENT, checkpoint=path).values, plain.values
    )
    assert not path.exists()


def test_what_is_refused() -> None:
    case = subject("gpt2")
    with pytest.raises(UnknownName, match="neuron"):
        NAP(level="neurons")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="left"):
        NAPIG(points="lef")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="at least 1"):
        NAPIG(steps=0)
    with pytest.raises(BadUsage, match="nap-ig"):
        NAP().score(case.model, case.batch, "kl", progress=SILENT)
    with pytest.raises(BadUsage, match="differentiable"):
        NAPIG().score(case.model, case.batch, "accuracy", progress=SILENT)
    assert isinstance(NAPIG().score(case.model, case.batch, "kl", progress=SILENT), NeuronScores)


def test_overflow_is_named() -> None:
    case = subject("gpt2")
    with torch.no_grad():
        case.model.decoder.layers[2].attention.out[1, 0, 0] = float("inf")
    with pytest.raises(NonFinite, match="not finite"):
        NAP().score(case.model, case.batch, progress=SILENT)
