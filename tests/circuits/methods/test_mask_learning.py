"""Trained masks: gradients by hand, a planted circuit, what the loss does, and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.planted import can_matter, two_heads
from mechassay.circuits import EdgeScores, ExactPatching, ablate
from mechassay.circuits.methods import mask_learning as mask_training
from mechassay.circuits.methods.mask_learning import (  # pyright: ignore[reportPrivateUsage]  # pyright: ignore[reportPrivateUsage]
    CLIP,
    EdgePruning,
    MaskMethod,
    SubnetworkProbing,
    UniformGradientSampling,
    _Priced,
    _Uniform,
    connected,
    straight_through,
    summary,
)
from mechassay.circuits.methods.method import ScoreInputs
from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.models.decoder import Decoder
from mechassay.models.forward import Contrast
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.models.objectives import Kl, LogitDiff
from mechassay.prompts.batch import Batch
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import Subject, build, subject
from mechassay.utils.checkpoint import Order
from mechassay.utils.display import SILENT

SHORT: list[Any] = [
    UniformGradientSampling(steps=6, batch_size=2, samples=2, lr=0.1),
    SubnetworkProbing(steps=6, lr=0.1),
    EdgePruning(steps=6, target=0.5),
]


def names(methods: list[Any]) -> list[str]:
    return [method.name for method in methods]


@pytest.fixture(scope="module")
def planted() -> Subject:
    return two_heads()


@pytest.mark.parametrize("method", SHORT, ids=names(SHORT))
def test_contract(method: Any) -> None:
    tiny = subject("neox")
    check_method(method, tiny.model, tiny.batch)


TRAINED: list[Any] = [
    UniformGradientSampling(steps=45, batch_size=4, samples=2, lr=0.25, sparsity=0.003),
    SubnetworkProbing(steps=80, lr=0.1, sparsity=3.0),
    EdgePruning(steps=160, target=0.95),
]


@pytest.fixture(scope="module")
def trained(planted: Subject) -> dict[str, EdgeScores]:
    return {
        method.name: method.score(planted.model, planted.batch, progress=SILENT)
        for method in TRAINED
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", names(TRAINED))
def test_a_planted_circuit_is_found(
    name: str, planted: Subject, trained: dict[str, EdgeScores]
) -> None:
    """q, k, v of both heads from the input, those of the second from the first,
    and the three writers into the logits.
    """
    graph, scores, true = planted.model.graph, trained[name], can_matter(planted.model.graph)
    assert int(true.sum()) == 3 + 3 + 3 + 3
    # Exact patching gives three of them no effect; the best are among them, and those that matter
    # most are kept.
    assert not bool((scores.top(8).edges & ~true).any())
    effects = ExactPatching().score(planted.model, planted.batch, "kl", progress=SILENT)
    assert float(scores.values[effects.top(4).edges].min()) > 0.9
    assert float(scores.values[graph.legal & ~true].mean()) < 0.05


def test_the_loss_falls(trained: dict[str, EdgeScores]) -> None:
    for name in names(TRAINED)[:2]:
        thirds = trained[name].provenance["losses"]["loss"]["thirds"]
        assert thirds[2] < thirds[1] < thirds[0]


def test_edge_pruning_reaches_its_target(trained: dict[str, EdgeScores]) -> None:
    assert trained["edge-pruning"].provenance["sparsity"] == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("method", SHORT, ids=names(SHORT))
def test_seeds(method: Any) -> None:
    tiny = subject("gpt2")

    def scores(seed: int) -> EdgeScores:
        return replace(method, seed=seed).score(tiny.model, tiny.batch, progress=SILENT)

    with torch.no_grad():
        first, again, other = scores(1), scores(1), scores(2)
    assert torch.equal(first.values.nan_to_num(9), again.values.nan_to_num(9))
    assert not torch.equal(first.values.nan_to_num(9), other.values.nan_to_num(9))


def test_the_model_gets_no_gradients() -> None:
    tiny = subject("gpt2")
    tiny.model.hf.requires_grad_(True)
    SHORT[1].score(tiny.model, tiny.batch, progress=SILENT)
    assert all(parameter.grad is None for parameter in tiny.model.hf.parameters())


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
def test_empty_stays_empty(ablation: str) -> None:
    """A price that nothing is worth: every mask ends at zero,
    and the loss is that of the ablated run.
    """
    tiny = subject("gpt2")
    batch = ablate(tiny.model, tiny.batch, ablation, progress=SILENT)
    scores = SubnetworkProbing(steps=25, lr=1.0, sparsity=1e5).score(
        tiny.model, batch, progress=SILENT
    )
    contrast = Contrast.run(tiny.model.decoder, batch)
    empty = Kl()(
        contrast.other.readout(tiny.model.decoder),
        batch,
        contrast.clean.readout(tiny.model.decoder),
    ).mean()
    assert float(scores.values[tiny.model.graph.legal].max()) < 1e-3
    assert scores.provenance["losses"]["fidelity"]["last"] == pytest.approx(float(empty), rel=1e-5)


def test_what_is_not_connected_is_zeroed() -> None:
    graph = Graph(2, 2)
    masks = torch.zeros(1, graph.n_writers, graph.n_readers)
    for name in ("input->a0.h1<v>", "a0.h1->logits", "m0->logits", "input->a1.h0<q>"):
        masks[0][graph.index(name)] = 0.3
    kept = connected(graph, masks)[0].nonzero().tolist()
    assert kept == sorted(list(graph.index(name)) for name in ("input->a0.h1<v>", "a0.h1->logits"))


def test_uniform_masks_by_hand() -> None:
    """p = 1/2, so w = 1/4: alpha is 1 below u = 3/8, 0 above 5/8, and falls in a line between."""
    p = torch.tensor([[0.5]], requires_grad=True)
    alpha = straight_through(p, torch.tensor([0.1, 0.45, 0.5, 0.9])[:, None, None])
    assert alpha.flatten().tolist() == pytest.approx([1.0, 0.7, 0.5, 0.0])
    # Two of four samples are inside, so each slope counts twice: over four samples that is the mean
    # over those inside.
    (slope,) = torch.autograd.grad(
        (alpha * torch.tensor([5.0, 1.0, 3.0, 7.0])[:, None, None]).mean(), p
    )
    assert float(slope) == pytest.approx(2.0)


def test_samples_next_to_zero_and_one_have_a_slope_but_do_not_count() -> None:
    """p = 1/2, w = 1/4: a column an edge, a row a sample; alpha as written, 1 and 0 beyond."""
    alpha = torch.tensor(
        [[0.5, 0.3, 1e-4, 0.9999], [0.2, 2e-4, 1e-4, 0.5], [1.3, 0.7, -1.0, 0.4]],
        dtype=torch.float64,
    )
    slopes = torch.tensor(
        [[5.0, 1.0, 3.0, 2.0], [4.0, 2.0, 6.0, 7.0], [1.0, 8.0, 2.0, 3.0]], dtype=torch.float64
    )
    p = torch.full((1, 4), 0.5, dtype=torch.float64, requires_grad=True)
    drawn = straight_through(p, (0.5 + (0.5 - alpha) / 4)[:, None])
    torch.testing.assert_close(drawn[:, 0].detach(), alpha.clamp(0, 1), rtol=0, atol=1e-12)
    (found,) = torch.autograd.grad((drawn[:, 0] * slopes).sum(dim=1).mean(), p)
    # Inside: the first two of the first edge; 0.3 and 0.7; none; 0.5 and 0.4. The others' slopes
    # are added all the same.
    assert found[0].tolist() == pytest.approx([(5 + 4) / 2, (1 + 2 + 8) / 2, 0.0, (2 + 7 + 3) / 2])


@pytest.fixture
def uniform() -> _Uniform:
    """Masks on a graph of two layers, with probabilities that differ."""
    masks = _Uniform(
        Graph(2, 2),
        UniformGradientSampling(sparsity=0.01, node_penalty=0.003),
        torch.device("cpu"),
        torch.float64,
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for theta in masks.thetas:
            theta.copy_(torch.randn(theta.shape, generator=generator))
    return masks


def test_groups_of_uniform_masks_are_all_edges_by_what_they_connect(uniform: _Uniform) -> None:
    graph = Graph(2, 2)
    groups = [
        {graph.edge_name(*divmod(place, graph.n_readers)) for place in places.tolist()}
        for places in uniform.places
    ]
    assert sorted(name for group in groups for name in group) == sorted(
        name for name in _names(graph)
    )

    def kind(name: str) -> tuple[bool, bool]:
        source, target = name.split("->")
        return source.startswith("a"), target.startswith("a")

    assert [{kind(name) for name in group} for group in groups] == [
        {(True, True)},
        {(True, False)},
        {(False, True)},
        {(False, False)},
    ]
    p = uniform.probabilities().detach()
    for theta, places in zip(uniform.thetas, uniform.places, strict=True):
        assert torch.equal(p.flatten()[places], theta.detach().sigmoid())
    assert float(p[~graph.legal].abs().max()) == 0
    assert (
        len(_Uniform(Graph(1, 1), uniform.settings, torch.device("cpu"), torch.float64).thetas) == 3
    )  # no head before a head


def _names(graph: Graph) -> list[str]:
    return [graph.edge_name(*place) for place in graph.legal.nonzero().tolist()]


def test_the_penalty_of_uniform_masks_by_loops_over_names(uniform: _Uniform) -> None:
    """Edges at .01, and .003 or less, here half of .01 at most, for heads alone:
    of MLPs and the input only edges count.
    """
    graph, p = Graph(2, 2), uniform.probabilities().detach()
    value = {name: float(p[graph.index(name)]) for name in _names(graph)}
    expected = 0.01 * sum(value.values())
    for head in ("a0.h0", "a0.h1", "a1.h0", "a1.h1"):
        n = sum(
            each
            for name, each in value.items()
            if name.startswith(f"{head}->") or f"->{head}<" in name
        )
        expected += 0.003 * (4 / 2) * math.tanh(2 * n / 4)
    assert float(uniform.penalty(0).detach()) == pytest.approx(expected, rel=1e-12)


def test_gradients_of_uniform_masks_are_clipped_in_each_group_alone(
    uniform: _Uniform, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = subject("gpt2", torch.float64)
    plain = UniformGradientSampling(steps=3, batch_size=2, samples=2)
    steps: list[list[Tensor]] = []
    for price in (0.0, 1e6):
        masks = _Uniform(tiny.model.graph, plain, tiny.model.device, torch.float64)
        before = [theta.detach().clone() for theta in masks.thetas]
        penalty = masks.penalty
        monkeypatch.setattr(
            masks,
            "penalty",
            lambda step, m=masks, price=price, own=penalty: own(step) + price * m.thetas[1].sum(),
        )
        groups = [{"params": [theta]} for theta in masks.thetas]
        # The rate is so small that later steps see the same masks.
        optimiser = torch.optim.SGD(groups, lr=1e-6)
        inputs = ScoreInputs(tiny.model, tiny.batch, Kl(), SILENT)
        mask_training.train(inputs, masks, optimiser, plain, about={})
        steps.append(
            [(theta.detach() - old) / 1e-6 for theta, old in zip(masks.thetas, before, strict=True)]
        )
    for group in (0, 2, 3):
        torch.testing.assert_close(steps[1][group], steps[0][group], rtol=1e-3, atol=1e-6)
    assert (
        float(steps[1][1].norm()) == pytest.approx(3 * CLIP, rel=1e-3)
        and float(steps[0][1].norm()) < CLIP
    )


def test_uniform_masks_estimate_the_slope_of_the_expected_loss() -> None:
    """With p fixed in w, dE[L]/dp = L(1) - L(0), here of L(a) = a^3: 1."""
    p = torch.full((1, 1), 0.8, requires_grad=True)
    u = torch.rand(40_000, 1, 1, generator=torch.Generator().manual_seed(0))
    alpha = straight_through(p, u)
    assert float(alpha.detach().mean()) == pytest.approx(0.8, abs=0.01)
    (slope,) = torch.autograd.grad(alpha.pow(3).mean(), p)
    assert float(slope) == pytest.approx(1.0, abs=0.03)


def test_hard_concrete_masks_are_nonzero_as_often_as_they_say() -> None:
    graph = Graph(1, 1)
    masks = _Priced(graph, torch.full(graph.legal.shape, -0.5), 1.0)
    drawn = masks.draw(20_000, torch.Generator().manual_seed(0)).detach()[:, graph.legal]
    assert float((drawn > 0).float().mean()) == pytest.approx(
        float(masks.mean_kept().detach()), abs=0.01
    )
    assert float(drawn.min()) == 0 and float(drawn.max()) == 1


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
@pytest.mark.parametrize("method", [SubnetworkProbing, UniformGradientSampling])
def test_runs_that_are_kept_train_the_same_mask(
    monkeypatch: pytest.MonkeyPatch, method: type[MaskMethod[Any]], ablation: str
) -> None:
    tiny = subject("qwen2", torch.float64)
    batch = ablate(tiny.model, tiny.batch, ablation, progress=SILENT)
    trained = partial(method(steps=4, batch_size=2).score, tiny.model, batch, progress=SILENT)
    runs: list[int] = []
    own = Contrast.run

    def counted(decoder: Decoder, chunk: Batch, width: Callable[[int], int]) -> Contrast:
        runs.append(len(chunk))
        return own(decoder, chunk, width)

    monkeypatch.setattr(Contrast, "run", counted)
    kept, n_kept = trained(), len(runs)
    monkeypatch.setattr(mask_training, "may_be_kept", lambda *_: False)
    again = trained()
    assert not n_kept and sum(runs) == 8
    torch.testing.assert_close(kept.values, again.values, rtol=0, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
def test_a_small_memory_budget_changes_nothing(ablation: str) -> None:
    """Examples one at a time, shorter ones without their padding, or all together:
    the same loss and gradient.
    """
    tiny = subject("qwen2", torch.float64)
    batch = ablate(tiny.model, tiny.batch, ablation, progress=SILENT)
    method = UniformGradientSampling(samples=2)
    masks = torch.rand(
        6,
        *tiny.model.graph.legal.shape,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    masks = (masks * 1.4 - 0.2).clamp(0, 1)
    (small, slopes), (large, expected) = (
        mask_training.fidelity_and_gradient(tiny.model, batch, Kl(), masks, method, budget)
        for budget in (1, 10**6)
    )
    assert small == pytest.approx(large, rel=1e-10)
    torch.testing.assert_close(slopes, expected, rtol=1e-9, atol=1e-12)
    assert int((slopes != 0).sum()) > 100


@pytest.mark.parametrize(
    ("ablation", "per_example"),
    [("counterfactual", False), ("counterfactual", True), ("mean", True)],
)
def test_weighted_losses_have_the_weighted_slope(ablation: str, per_example: bool) -> None:
    """Against one example at a time; the third has no weight, and is not run."""
    tiny = subject("qwen2", torch.float64)
    batch = ablate(tiny.model, tiny.batch, ablation, progress=SILENT)
    method = (UniformGradientSampling if per_example else SubnetworkProbing)(samples=2)
    drawn = torch.rand(
        6 if per_example else 2,
        *tiny.model.graph.legal.shape,
        generator=torch.Generator().manual_seed(1),
    ).double()
    weights = torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64)
    total, slope = mask_training.fidelity_and_gradient(
        tiny.model, batch, Kl(), drawn, method, 1, weights
    )
    losses = mask_training.losses_of(tiny.model, batch, Kl(), drawn, method, 10**6)
    expected, by_hand = torch.zeros_like(drawn), 0.0
    for row, weight in enumerate(weights.tolist()):
        places = [row, 3 + row] if per_example else [0, 1]
        one, its = mask_training.fidelity_and_gradient(
            tiny.model, batch.select([row]), Kl(), drawn[places], method, 10**6
        )
        assert one == pytest.approx(float(losses[row]), rel=1e-9)
        expected[places] += weight * its
        by_hand += weight * one
    assert total == pytest.approx(by_hand, rel=1e-9)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-12)
    assert not per_example or not slope[[2, 5]].any()


def even(losses: Tensor) -> Tensor:
    return torch.full_like(losses, 1 / len(losses))


def worst(losses: Tensor) -> Tensor:
    return torch.eye(len(losses), dtype=losses.dtype)[losses.argmax()]


@pytest.mark.slow
@pytest.mark.parametrize("method", SHORT, ids=names(SHORT))
def test_even_weights_train_alike_and_others_do_not(method: Any) -> None:
    tiny = subject("gpt2", torch.float64)
    if isinstance(method, EdgePruning):
        method = replace(method, steps=40)  # its masks are all one at first, and nothing has a loss
    inputs = ScoreInputs(tiny.model, tiny.batch, LogitDiff(), SILENT)
    plain, whole, one = (
        method.find_scores(inputs, weigh=weigh).values.nan_to_num(7.0)
        for weigh in (None, even, worst)
    )
    torch.testing.assert_close(whole, plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(one, plain, rtol=1e-6, atol=1e-9)


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("method", SHORT, ids=names(SHORT))
def test_a_killed_training_goes_on_and_ends_bit_for_bit_the_same(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second epoch, by what leaves no time to write anything down."""
    tiny, file = subject("gpt2", n_pairs=5), tmp_path / "a.checkpoint"
    method = replace(method, steps=9, batch_size=2)
    whole = method.score(tiny.model, tiny.batch, progress=SILENT)
    draw, calls = Order.draw, []

    def killed_at_the_sixth(self: Order, generator: torch.Generator) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise Killed
        return draw(self, generator)

    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr(Order, "draw", killed_at_the_sixth)
    with pytest.raises(Killed):
        method.score(tiny.model, tiny.batch, progress=SILENT, checkpoint=file)
    assert file.is_file()
    again = method.score(tiny.model, tiny.batch, progress=SILENT, checkpoint=file)
    assert len(calls) == 6 + 4 and not file.exists()
    assert torch.equal(again.values.nan_to_num(7.0), whole.values.nan_to_num(7.0))
    assert again.provenance == whole.provenance


def test_a_training_whose_examples_are_the_callers_keeps_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller drew before the kill is not known to a checkpoint."""
    tiny, method = subject("gpt2", n_pairs=4), SHORT[1]
    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: None)  # as if killed at the end
    more: dict[str, Any]
    for name, more in {
        "plain": {},
        "weigh": {"weigh": worst},
        "examples": {"examples": lambda generator: tiny.batch},
    }.items():
        file = tmp_path / name
        inputs = ScoreInputs(tiny.model, tiny.batch, LogitDiff(), SILENT, file)
        method.find_scores(inputs, **more)
        assert file.is_file() == (name == "plain")


def test_losses_are_summed_up_by_hand() -> None:
    assert summary(torch.tensor([[3.0, 1.0], [2.0, 1.0], [1.0, 0.5]]))["loss"] == {
        "first": 4.0,
        "last": 1.5,
        "thirds": [4.0, 3.0, 1.5],
    }


def test_wrong_settings_are_refused() -> None:
    tiny = subject("gpt2")
    with pytest.raises(BadUsage, match="at least 3 steps; got steps=2"):
        EdgePruning(steps=2).score(tiny.model, tiny.batch)
    with pytest.raises(BadUsage, match="batch_size of at least 1; got 0"):
        SubnetworkProbing(batch_size=0).score(tiny.model, tiny.batch)
    with pytest.raises(UnknownName, match="Did you mean 'objective'"):
        UniformGradientSampling(loss="objectiv").score(tiny.model, tiny.batch)
    with pytest.raises(BadUsage, match="target above 0 and below 1"):
        EdgePruning(target=1.0)
    with pytest.raises(BadUsage, match="differentiable objective; 'accuracy'"):
        SubnetworkProbing(loss="objective").score(tiny.model, tiny.batch, "accuracy")


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    hf: Any = build("gpt2")
    with torch.no_grad():
        hf.transformer.h[1].mlp.c_proj.weight.fill_(float("nan"))
    tiny = subject("gpt2")
    with pytest.raises(NonFinite, match="at step 1 of 6"):
        SHORT[0].score(make_model(hf, check=False), tiny.batch, progress=SILENT)


def test_training_on_the_objective_itself() -> None:
    tiny = subject("gpt2")
    scores = replace(SHORT[1], loss="objective").score(
        tiny.model, tiny.batch, "logit_diff", progress=SILENT
    )
    assert scores.provenance["objective"] == "logit_diff"
    assert (
        SHORT[1]
        .score(tiny.model, tiny.batch, "logit_diff", progress=SILENT)
        .provenance["objective"]
        == "kl"
    )
