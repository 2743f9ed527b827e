"""Attribution against its definition:
derivatives of the reference by each edge's coefficient, in fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.hooks import on_mlp_input
from helpers.hooks_reference import Recording, ReferenceModel, exact_precision
from helpers.models import USUAL, families
from mechassay.circuits.methods.attribution import (
    ReaderGradients,
    at_clean_run,
    at_interpolations,
    contract,
)
from mechassay.circuits.methods.eap import EAPIGActivations
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.models.objectives import CrossEntropy, LogitDiff
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, subject


@pytest.fixture(scope="module", params=families(quick=USUAL))
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, dtype=torch.float64)


def fast_scores(case: Subject, alphas: Sequence[float], weights: Sequence[float]) -> Tensor:
    graph = case.model.graph
    total = torch.zeros(graph.n_writers, graph.n_readers, dtype=torch.float64)
    found = at_interpolations(
        case.model, case.batch, LogitDiff(), alphas, weights, ReaderGradients.of
    )
    contract(case.model, *found, total)
    return torch.where(graph.legal, total, 0.0)


def logit_diff(logits: Tensor, batch: Batch) -> Tensor:
    return (logits.gather(1, batch.answers) - logits.gather(1, batch.foils)).sum()


def test_eap_is_the_derivative_by_each_edge(case: Subject) -> None:
    model, batch = case.model, case.batch
    m = torch.ones(model.graph.legal.shape, dtype=torch.float64, requires_grad=True)
    with exact_precision(model.hf):
        reference = ReferenceModel(model.hf, model.graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        (gradient,) = torch.autograd.grad(
            logit_diff(reference.run(batch.clean, batch.mask, recorded, m), batch), m
        )
    torch.testing.assert_close(
        fast_scores(case, (1.0,), (1.0,)), gradient * model.graph.legal, rtol=1e-9, atol=1e-9
    )
    total = torch.zeros_like(gradient)
    contract(model, *at_clean_run(model, batch, LogitDiff(), ReaderGradients.of), total)
    torch.testing.assert_close(
        torch.where(model.graph.legal, total, 0.0),
        gradient * model.graph.legal,
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.few(3)
def test_integrated_gradients_are_derivatives_at_interpolated_inputs(case: Subject) -> None:
    model, batch, alphas, weights = case.model, case.batch, (0.0, 0.3, 0.8), (0.5, 0.2, 0.3)
    expected = torch.zeros(model.graph.legal.shape, dtype=torch.float64)
    with exact_precision(model.hf):
        reference = ReferenceModel(model.hf, model.graph)
        clean, other = (
            reference.record(batch.clean, batch.mask),
            reference.record(batch.counterfactual, batch.mask),
        )
        for alpha, weight in zip(alphas, weights, strict=True):
            embeds = other.writers[0] + alpha * (clean.writers[0] - other.writers[0])
            expected -= weight * _derivative(
                reference,
                case,
                reference.record(batch.clean, batch.mask, embeds),
                embeds,
                other.writers - clean.writers,
            )
    torch.testing.assert_close(fast_scores(case, alphas, weights), expected, rtol=1e-9, atol=1e-9)


def _derivative(
    reference: ReferenceModel, case: Subject, at: Recording, embeds: Tensor, deltas: Tensor
) -> Tensor:
    """d objective / d (a small part of each writer's change added to each edge), at a given run."""
    graph, batch = case.model.graph, case.batch
    noise = torch.zeros(graph.legal.shape, dtype=torch.float64, requires_grad=True)
    logits = reference.run(
        batch.clean,
        batch.mask,
        at,
        torch.ones_like(noise),
        embeds=embeds,
        noise=noise,
        deltas=deltas,
    )
    return torch.autograd.grad(logit_diff(logits, batch), noise)[0] * graph.legal


@pytest.mark.few(3)
def test_exact_patching_removes_one_edge_at_a_time(case: Subject) -> None:
    model, batch, graph = case.model, case.batch, case.model.graph
    scores = ExactPatching().score(model, batch)
    edges = [
        "input->a0.h1<k>",
        "input->m1",
        "a0.h3->a1.h2<q>",
        "m0->a2.h0<v>",
        "a1.h1->m1",
        "a1.h1->a2.h1<k>",
        "a2.h2->logits",
        "m2->logits",
        "input->logits",
    ]
    edges = [edge for edge in edges if not (graph.parallel and edge == "a1.h1->m1")]
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        full = logit_diff(
            reference.run(batch.clean, batch.mask, recorded, graph.legal.double()), batch
        )
        for edge in edges:
            without = graph.legal.double()
            without[graph.index(edge)] = 0
            drop = (
                full - logit_diff(reference.run(batch.clean, batch.mask, recorded, without), batch)
            ) / len(batch)
            assert float(scores.values[graph.index(edge)]) == pytest.approx(
                float(drop), rel=1e-5, abs=1e-6
            ), edge


@pytest.mark.few(3)
def test_exact_patching_of_some_layers_is_part_of_all(case: Subject) -> None:
    graph = case.model.graph
    everything, some = (
        ExactPatching().score(case.model, case.batch).values,
        ExactPatching(layers=(1, -1)).score(case.model, case.batch).values,
    )
    wanted = torch.zeros(graph.n_readers, dtype=torch.bool)
    wanted[graph.slots(1)] = wanted[graph.mlp_reader(1)] = wanted[graph.logits] = True
    assert bool(some[:, ~wanted].isnan().all())
    torch.testing.assert_close(some[:, wanted], everything[:, wanted], equal_nan=True)


def test_a_small_step_along_all_edges_is_predicted(case: Subject) -> None:
    """The sum of all scores is the slope of the objective when every edge
    moves towards the counterfactual at once.
    """
    model, batch, graph, step = case.model, case.batch, case.model.graph, 1e-5
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        values = [
            logit_diff(
                reference.run(
                    batch.clean, batch.mask, recorded, graph.legal.double() * (1 + sign * step)
                ),
                batch,
            )
            for sign in (-1, 1)
        ]
    slope = float(values[1] - values[0]) / (2 * step)
    assert float(fast_scores(case, (1.0,), (1.0,)).sum()) == pytest.approx(slope, rel=1e-4)


@pytest.mark.few(5)
@pytest.mark.parametrize("reading", ["paper", "mib-2025"])
def test_activation_gradients_by_hooks_on_the_original(case: Subject, reading: str) -> None:
    """EAP-IG-activations into MLPs and logits, one interpolation at a time,
    by hooks and autograd on the original model.
    """
    model, batch, graph = case.model, case.batch, case.model.graph
    alphas = (0.5, 1.0)
    ours = (
        EAPIGActivations(steps=2, reading="paper" if reading == "paper" else "mib-2025")
        .score(model, batch)
        .values
    )
    with exact_precision(model.hf):
        reference = ReferenceModel(model.hf, graph)
        clean, other = (
            reference.record(batch.clean, batch.mask),
            reference.record(batch.counterfactual, batch.mask),
        )
        expected = torch.zeros(graph.legal.shape, dtype=torch.float64)
        for source in range(1 + 2 * graph.n_layers):
            for alpha in alphas:
                grads, post = _hooked(case, reference, clean, other, source, alpha)
                own = _own_writers(case, source) if reading == "paper" else slice(None)
                deltas = _through_post_norms(case, reference, other.writers - clean.writers, post)
                share = 1 / len(alphas) / (1 if reading == "paper" else 1 + 2 * graph.n_layers)
                for reader, gradient in grads.items():
                    expected[own, reader] -= (
                        share * torch.einsum("wbtd,btd->w", deltas, gradient)[own] / len(batch)
                    )
    readers = [graph.mlp_reader(layer) for layer in range(graph.n_layers)] + [graph.logits]
    expected = torch.where(graph.legal, expected, torch.nan)
    torch.testing.assert_close(
        ours[:, readers], expected[:, readers].float(), rtol=1e-4, atol=1e-5, equal_nan=True
    )


def _own_writers(case: Subject, source: int) -> slice:
    graph = case.model.graph
    layer, kind = divmod(source - 1, 2)
    if source == 0:
        return slice(0, 1)
    return (
        graph.heads(layer)
        if kind == 0
        else slice(graph.mlp_writer(layer), graph.mlp_writer(layer) + 1)
    )


def _hooked(
    case: Subject,
    reference: ReferenceModel,
    clean: Recording,
    other: Recording,
    source: int,
    alpha: float,
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Run the original with one sublayer's output replaced;
    gradients at MLP and logits inputs, and post-norm inputs.
    """
    hf, graph, batch, layout = case.model.hf, case.model.graph, case.batch, reference.layout
    handles, leaves, seen = [], {}, {}

    def replaced(module: torch.nn.Module, value: Tensor) -> None:
        handles.append(
            module.register_forward_hook(lambda m, a, out: value.clone().view(out.shape))
        )

    def with_leaf(x: Tensor, reader: int) -> Tensor:
        leaves[reader] = torch.zeros_like(other.final, requires_grad=True)
        return x + leaves[reader].view(x.shape)

    for layer in range(graph.n_layers):
        handles += on_mlp_input(
            reference, layer, partial(with_leaf, reader=graph.mlp_reader(layer))
        )
        if layout.post_attention:
            handles.append(
                reference.part(layer, layout.post_attention).register_forward_pre_hook(
                    lambda m, a, layer=layer: seen.__setitem__(layer, a[0].detach())
                )
            )
    handles.append(
        hf.get_submodule(layout.final_norm).register_forward_pre_hook(
            lambda m, args: (with_leaf(args[0], graph.logits), *args[1:])
        )
    )
    layer, kind = divmod(source - 1, 2)
    if source == 0:
        replaced(
            hf.get_submodule(layout.embed),
            (other.writers[0] + alpha * (clean.writers[0] - other.writers[0]))
            / reference.embed_scale,
        )
    elif kind == 0:
        replaced(
            reference.part(layer, f"{layout.attention}.{layout.out}"),
            other.attended[layer] + alpha * (clean.attended[layer] - other.attended[layer]),
        )
    else:
        row = graph.mlp_writer(layer)
        replaced(
            reference.part(layer, layout.post_mlp or reference.mlp_modules[-1]),
            (other.writers[row] + alpha * (clean.writers[row] - other.writers[row]))
            / reference.written_scale,
        )
    position_ids = case.model.decoder.context(batch.mask).position_ids
    logits = hf(
        batch.clean, attention_mask=batch.mask.long(), position_ids=position_ids, use_cache=False
    ).logits[:, -1]
    grads = torch.autograd.grad(
        logit_diff(logits, batch), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    for handle in handles:
        handle.remove()
    return dict(zip(leaves, grads, strict=True)), seen


def _through_post_norms(
    case: Subject, reference: ReferenceModel, deltas: Tensor, post: dict[int, Tensor]
) -> Tensor:
    """Head changes through their layer's post-norm, by autograd."""
    changed = deltas.clone()
    for layer, at in post.items():
        norm = reference.part(layer, str(reference.layout.post_attention))
        for head in range(case.model.graph.n_heads):
            row = case.model.graph.head(layer, head)
            changed[row] = torch.autograd.functional.jvp(norm, at, deltas[row])[1]
    return changed


@pytest.mark.few(3)
def test_cross_entropy_scores_have_the_sign_of_help(case: Subject) -> None:
    """Lower-is-better objectives are turned around:
    a positive score still means that the edge helps.
    """
    model, batch, graph = case.model, case.batch, case.model.graph
    exact = ExactPatching().score(model, batch, CrossEntropy())
    edge = "m2->logits"
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        without = graph.legal.double()
        without[graph.index(edge)] = 0
        losses = [
            -reference.run(batch.clean, batch.mask, recorded, m)
            .log_softmax(-1)
            .gather(1, batch.answers)
            .mean()
            for m in (graph.legal.double(), without)
        ]
    assert float(exact.values[graph.index(edge)]) == pytest.approx(
        float(losses[1] - losses[0]), rel=1e-5
    )
