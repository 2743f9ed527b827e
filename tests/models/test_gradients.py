"""GIM's backward rules: the forward stays, identity rules change nothing,
and each rule is what autograd on a surrogate says.

The forward with real-valued masks: against the compiled one,
the dense definition, attribution and finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.hooks_reference import ReferenceModel, exact_precision
from mechassay.circuits import EAP, NAP, EAPIGInputs, Random, ablate, evaluate
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.decoder import Norm
from mechassay.models.forward import Contrast, constant_trace, constants_of, trace
from mechassay.models.gradients import (
    RULES,
    BackwardRules,
    KeptContrasts,
    backward_model,
    masked_readout,
    with_rules,
)
from mechassay.models.objectives import LogitDiff
from mechassay.testing.tiny import Subject, subject
from mechassay.utils.display import SILENT

IDENTITY = BackwardRules(freeze_norm=False, temperature=1.0, q=1.0, k=1.0, v=1.0, gate=1.0, up=1.0)


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen3", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def test_the_forward_pass_is_the_same(case: Subject) -> None:
    gim = backward_model(case.model, "gim")
    for circuit in (Circuit.full(case.model.graph), Circuit.empty(case.model.graph)):
        ours, plain = (
            evaluate(model, circuit, case.batch, progress=SILENT) for model in (gim, case.model)
        )
        torch.testing.assert_close(
            torch.from_numpy(ours), torch.from_numpy(plain), atol=1e-10, rtol=1e-10
        )


def test_rules_that_change_nothing_change_nothing(case: Subject) -> None:
    same = replace(case.model, decoder=with_rules(case.model.decoder, IDENTITY))
    for method in (EAP(), EAPIGInputs(steps=2), NAP()):
        ours, plain = (
            method.score(model, case.batch, progress=SILENT).values.nan_to_num()
            for model in (same, case.model)
        )
        torch.testing.assert_close(ours, plain, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("rules", RULES)
def test_node_scores_are_sums_of_edge_scores_under_all_rules(case: Subject, rules: str) -> None:
    """The hand-written Jacobians of edges and the gradients of nodes follow the same rules,
    or this breaks.
    """
    edges = EAP(backward=rules).score(case.model, case.batch, progress=SILENT)
    nodes = NAP(level="node", backward=rules).score(case.model, case.batch, progress=SILENT)
    torch.testing.assert_close(edges.values.nan_to_num().sum(1), nodes.values, atol=1e-5, rtol=1e-4)
    plain = EAP().score(case.model, case.batch, progress=SILENT)
    assert not torch.allclose(edges.values.nan_to_num(), plain.values.nan_to_num(), rtol=1e-2)


def test_relevance_is_conserved_by_relp() -> None:
    """Without biases the model is linear in its input under these rules: what all dimensions of the
    embeddings contribute is the logit itself. By plain gradients it is not.
    """
    tiny = subject("llama", torch.float64)
    batch, plain = tiny.batch, tiny.model.decoder
    mask = batch.mask[:, :, None]
    for rules, conserved in (("relp", True), ("plain", False)):
        decoder = backward_model(tiny.model, rules).decoder
        with torch.enable_grad():
            embeds = plain.embed(batch.clean).detach().requires_grad_()
            run = trace(decoder, embeds, decoder.context(batch.mask))
            logits = run.readout(decoder).at(batch.answers[:, :1])[:, 0]
            (gradient,) = torch.autograd.grad(logits.sum(), embeds)
        relevance = (gradient * embeds.detach() * mask).sum(dim=(1, 2))
        assert torch.allclose(relevance, logits, rtol=1e-9) == conserved


def test_relp_gives_queries_and_keys_nothing_and_attnlrp_does(case: Subject) -> None:
    graph, n_heads = case.model.graph, case.model.graph.n_heads
    patterns = torch.cat(
        [torch.arange(graph.slot(i, 0, 0), graph.slot(i, 2, 0)) for i in range(graph.n_layers)]
    )
    for rules, reached in (("relp", False), ("attnlrp", True), ("gim", True)):
        values = EAP(backward=rules).score(case.model, case.batch, progress=SILENT).values
        assert bool(values[:, patterns].nan_to_num().any()) == reached
    assert len(patterns) == 2 * n_heads * graph.n_layers


@pytest.mark.parametrize(
    ("act", "slopes"),
    [(F.silu, [0.11920292, 0.5, 0.95257413]), (F.relu, [0.0, 1.0, 1.0])],
)
def test_an_activation_has_the_slope_of_its_ratio(act: Any, slopes: list[float]) -> None:
    """act(x) / x; at 0 that of a small x above it."""
    mlp = replace(subject("gpt2", torch.float64).model.decoder.layers[0].mlp, act=act)
    layer = replace(subject("gpt2", torch.float64).model.decoder.layers[0], mlp=mlp)
    decoder = replace(subject("gpt2", torch.float64).model.decoder, layers=(layer,))
    ratio = with_rules(decoder, RULES["relp"]).layers[0].mlp.act
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        torch.testing.assert_close(ratio(x), act(x))
        (gradient,) = torch.autograd.grad(ratio(x).sum(), x)
    torch.testing.assert_close(
        gradient, torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("centred", [True, False])
def test_a_frozen_norm_is_linear_to_its_gradient(centred: bool) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64)
    norm = Norm(weight, None, 1e-6, centred, frozen=True)
    x = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm(x), replace(norm, frozen=False)(x), atol=1e-12, rtol=1e-12)
    (gradient,) = torch.autograd.grad(
        (norm(x) * torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)).sum(), x
    )
    scale = (x - x.mean() if centred else x).detach().square().mean().add(1e-6).rsqrt()
    by_hand = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64) - (0.25 if centred else 0.0)
    torch.testing.assert_close(gradient, by_hand * scale)


def test_the_softmax_is_differentiated_at_a_higher_temperature() -> None:
    decoder = with_rules(subject("gpt2", torch.float64).model.decoder, BackwardRules())
    softmax = decoder.layers[0].attention.softmax
    assert softmax is not None
    x = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([[1.0, 3.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(softmax(x), x.softmax(-1))
    (gradient,) = torch.autograd.grad((softmax(x) * g).sum(), x)
    at = (x / 2).softmax(-1)
    torch.testing.assert_close(gradient, at * (g - (g * at).sum()))


def test_unknown_rules() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gim'"):
        EAP(backward="gimm")


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2", "gemma3"])
def masked_forward_case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def values(case: Subject, mask: Tensor) -> Tensor:
    contrast = Contrast.run(case.model.decoder, case.batch)
    return LogitDiff()(masked_readout(case.model.decoder, contrast, mask), case.batch)


def test_binary_masks_equal_the_compiled_forward(masked_forward_case: Subject) -> None:
    scores = Random(seed=2).draw(masked_forward_case.model.graph)
    circuits = [scores.top(p) for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    fast = evaluate(masked_forward_case.model, circuits, masked_forward_case.batch, progress=SILENT)
    for circuit, expected in zip(circuits, fast, strict=True):
        got = values(masked_forward_case, circuit.edges.double()[None])
        torch.testing.assert_close(
            got, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9
        )


def test_binary_masks_equal_the_compiled_forward_under_constants(
    masked_forward_case: Subject,
) -> None:
    """The compiled forward prunes; a mask is used as it is."""
    batch = ablate(
        masked_forward_case.model, masked_forward_case.batch, "positional-mean", progress=SILENT
    )
    circuit = Random(seed=5).draw(masked_forward_case.model.graph).top(0.3).pruned()
    assert len(circuit)
    (expected,) = evaluate(masked_forward_case.model, [circuit], batch, progress=SILENT)
    contrast = Contrast.run(masked_forward_case.model.decoder, batch)
    got = LogitDiff()(
        masked_readout(masked_forward_case.model.decoder, contrast, circuit.edges.double()[None]),
        batch,
    )
    torch.testing.assert_close(
        got, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_real_masks_equal_the_dense_definition(masked_forward_case: Subject) -> None:
    model, batch = masked_forward_case.model, masked_forward_case.batch
    mask = (
        torch.rand(
            model.graph.legal.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        * 1.5
    )
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, model.graph)
        slow = reference.run(
            batch.clean, batch.mask, reference.record(batch.counterfactual, batch.mask), mask
        )
    fast = masked_readout(model.decoder, Contrast.run(model.decoder, batch), mask[None]).all()
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


def test_gradients_equal_those_of_the_dense_definition(masked_forward_case: Subject) -> None:
    """Of masks that examples share, of one for each, and when they are taken a second time."""
    model, batch, legal = (
        masked_forward_case.model,
        masked_forward_case.batch,
        masked_forward_case.model.graph.legal,
    )
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(legal.shape, generator=generator, dtype=torch.float64) * 1.5
    mask.requires_grad_()
    with exact_precision(model.hf), torch.enable_grad():
        reference = ReferenceModel(model.hf, model.graph)
        ablated = reference.record(batch.counterfactual, batch.mask)
        slow = reference.run(batch.clean, batch.mask, ablated, mask)
        weights = torch.rand(slow.shape, generator=generator, dtype=torch.float64)
        by_example = torch.stack(
            [
                torch.autograd.grad((row * weight).sum(), mask, retain_graph=True)[0]
                for row, weight in zip(slow, weights, strict=True)
            ]
        )
        contrast = Contrast.run(model.decoder, batch)
        for masks, expected in (
            (mask[None], by_example.sum(0, keepdim=True)),
            (mask.expand(len(batch), -1, -1), by_example),
        ):
            leaf = masks.detach().clone().requires_grad_()
            fast = (masked_readout(model.decoder, contrast, leaf).all() * weights).sum()
            for _ in range(2):
                (gradient,) = torch.autograd.grad(fast, leaf, retain_graph=True)
                torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)
            assert not gradient[:, ~legal].any()


def test_a_mask_that_was_changed_in_between_is_refused() -> None:
    case = subject("gpt2", torch.float64)
    leaf = case.model.graph.legal.double()[None].requires_grad_()
    with torch.enable_grad():
        mask = leaf * 1.0
        loss = masked_readout(
            case.model.decoder, Contrast.run(case.model.decoder, case.batch), mask
        ).all()
        mask.mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.sum().backward()


def test_gradients_reach_weights_where_the_mask_is_constant() -> None:
    """Each entry of a weight's gradient against a central difference."""
    case = subject("qwen2", torch.float64)
    decoder, batch = case.model.decoder, case.batch
    up = decoder.layers[1].mlp.up.detach().clone().requires_grad_()
    mask = case.model.graph.legal.double()[None] * 0.7

    def objective(weight: Tensor) -> Tensor:
        first, layer, *rest = decoder.layers
        changed = replace(layer, mlp=replace(layer.mlp, up=weight))
        contrast = Contrast.run(decoder, batch)
        run = masked_readout(replace(decoder, layers=(first, changed, *rest)), contrast, mask)
        return LogitDiff()(run, batch).mean()

    with torch.enable_grad():
        (slope,) = torch.autograd.grad(objective(up), up)
    step = torch.zeros_like(up)
    step[2, 3] = 1e-5
    with torch.no_grad():
        numeric = (objective(up + step) - objective(up - step)) / 2e-5
    torch.testing.assert_close(slope[2, 3], numeric, rtol=1e-5, atol=1e-9)
    assert abs(float(numeric)) > 1e-6


def test_the_slope_at_the_full_circuit_is_eap(masked_forward_case: Subject) -> None:
    """Mean over examples, with its sign: the drop when the coefficient falls from 1."""
    legal = masked_forward_case.model.graph.legal
    mask = legal.double()[None].requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(values(masked_forward_case, mask).mean(), mask)
    eap = EAP().score(masked_forward_case.model, masked_forward_case.batch, progress=SILENT).values
    # Scores are stored in fp32.
    torch.testing.assert_close(slope[0][legal].float(), eap[legal], rtol=1e-6, atol=1e-7)
    assert float(slope[0][legal].abs().max()) > 1e-2


def test_a_mask_for_each_example(masked_forward_case: Subject) -> None:
    generator = torch.Generator().manual_seed(4)
    masks = torch.rand(
        len(masked_forward_case.batch),
        *masked_forward_case.model.graph.legal.shape,
        generator=generator,
        dtype=torch.float64,
    )
    together = values(masked_forward_case, masks)
    for row in range(len(masks)):
        torch.testing.assert_close(
            together[row],
            values(masked_forward_case, masks[row : row + 1])[row],
            rtol=0,
            atol=1e-10,
        )


def test_gradients_reach_constants() -> None:
    """The derivative of a masked run by a mean's entry, against a central difference."""
    case = subject("gemma2", torch.float64)
    model = case.model
    batch = ablate(model, case.batch, "mean", progress=SILENT)
    known = Contrast.run(model.decoder, batch)
    mask = model.graph.legal.double()[None] * 0.6
    assert constants_of(batch) is not None
    values, z = constants_of(batch), constants_of(batch).z

    def objective(z: Tensor) -> Tensor:
        contrast = Contrast(
            batch,
            known.ctx,
            0,
            known.clean,
            constant_trace(model.decoder, replace(values, z=z), known.ctx),
        )
        return LogitDiff()(masked_readout(model.decoder, contrast, mask), batch).mean()

    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(leaf), leaf)
    step = torch.zeros_like(z)
    step[1, 2, 0, 3] = 1e-5
    numeric = (objective(z + step) - objective(z - step)) / 2e-5
    torch.testing.assert_close(slope[1, 2, 0, 3], numeric, rtol=1e-5, atol=1e-8)
    assert abs(float(numeric)) > 1e-5


def test_foreign_masks_are_refused() -> None:
    case = subject("gpt2")
    with pytest.raises(GraphMismatch, match=r"needs shape \[1 or 3, 16, 40\]; got \[2, 16, 40\]"):
        values(case, torch.ones(2, 16, 40))


def test_trained_post_norms_are_refused() -> None:
    case = subject("gemma2")
    first, *rest = case.model.decoder.layers
    post = first.attention.post_norm
    trained = replace(post, weight=post.weight.clone().requires_grad_())
    layer = replace(first, attention=replace(first.attention, post_norm=trained))
    decoder = replace(case.model.decoder, layers=(layer, *rest))
    contrast, mask = Contrast.run(decoder, case.batch), case.model.graph.legal.float()[None]
    with torch.enable_grad(), pytest.raises(BadUsage, match="weights of post-norms"):
        masked_readout(decoder, contrast, mask)


READ = {"clean": ("k", "v"), "other": ("before", "middle", "z", "attended", "mlp")}
"""What a masked run reads of the layers of both runs."""


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
@pytest.mark.parametrize("width", [int, lambda n: -(-n // 8) * 8], ids=["plain", "bucket"])
def test_a_kept_contrast_is_that_of_some_pairs(
    masked_forward_case: Subject, ablation: str, width: Callable[[int], int]
) -> None:
    """Chunks of one, two and all pairs, in another order, with and without their padding."""
    case = masked_forward_case
    decoder, batch = case.model.decoder, ablate(case.model, case.batch, ablation, progress=SILENT)
    assert len(set(batch.lengths.tolist())) > 1
    kept = KeptContrasts(decoder, batch, width)
    mask = torch.rand(1, *case.model.graph.legal.shape, dtype=torch.float64)
    for rows in ([1], [2, 0], [2, 1, 0]):
        chunk = batch.select(rows)
        chunk = chunk.widened(width(chunk.n_tokens))
        ours, theirs = kept.of(rows, chunk), Contrast.run(decoder, chunk, width)
        assert ours.start == theirs.start == ours.other.start
        for name, fields in READ.items():
            mine, run = getattr(ours, name), getattr(theirs, name)
            at = chunk.mask[:, run.start :]
            for own, other in ((mine.embed, run.embed), (mine.final, run.final)):
                torch.testing.assert_close(own[at], other[at], rtol=0, atol=1e-10)
            for one, layer in zip(mine.layers, run.layers, strict=True):
                pairs = [(getattr(one, field), getattr(layer, field)) for field in fields]
                for own, other in pairs:
                    assert (own is None) == (other is None)
                    if own is None:
                        continue
                    assert own.shape == other.shape
                    own, other = (x if x.ndim == 3 else x.transpose(1, 2) for x in (own, other))
                    torch.testing.assert_close(own[at], other[at], rtol=0, atol=1e-10)
        runs = (masked_readout(decoder, contrast, mask).all() for contrast in (ours, theirs))
        torch.testing.assert_close(*runs, rtol=0, atol=1e-10)
