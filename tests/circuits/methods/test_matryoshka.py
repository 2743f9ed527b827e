"""Matryoshka attribution: masks and their gradient by hand, a known circuit, nothing to find, and
what a loss that rewards overshoot buys.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mechassay as ma
from helpers.planted import ALIVE, can_matter, two_heads
from mechassay.circuits import EdgeScores, NodeScores
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.matryoshka import Loss, Matryoshka, top_mask
from mechassay.circuits.scores import By
from mechassay.errors import BadUsage, UnknownName
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

SHORT = Matryoshka(steps=4, batch_size=2)
LOSSES = ("overshoot", "match", "squared", "agreement", "kl", "both")


def scores(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=12), st.floats(0.01, 0.99))
def test_a_mask_has_its_size_and_the_order_of_the_scores(values: list[float], share: float) -> None:
    x = scores(*values)
    mask = top_mask(x, torch.tensor(share * len(x), dtype=torch.float64), 0.5)
    assert float(mask.sum()) == pytest.approx(share * len(x), abs=1e-9)
    order = x.argsort()
    assert bool((mask[order].diff() >= -1e-12).all())


def test_masks_by_hand() -> None:
    k = torch.tensor(1.5, dtype=torch.float64)
    torch.testing.assert_close(top_mask(scores(7, 7, 7), k, 0.5), scores(0.5, 0.5, 0.5))
    # Of two scores and k = 1, tau lies in the middle.
    mask = top_mask(scores(0, 3), torch.tensor(1.0, dtype=torch.float64), 0.5)
    right = 1 / (1 + math.exp(-1.5 / 0.5))
    torch.testing.assert_close(mask, scores(1 - right, right))


def test_the_implicit_gradient_is_that_of_a_solution_that_is_differentiated() -> None:
    """One Newton step from the solution does not move tau and has its derivative."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    k, temperature = torch.tensor(3.7, dtype=torch.float64), 0.5
    with torch.enable_grad():
        mask = top_mask(x, k, temperature)
        (fast,) = torch.autograd.grad((mask * weights).sum(), x)
        logit = torch.logit(mask.detach())
        solution = (x - temperature * logit).detach()[0]
        p = (mask * (1 - mask)).detach()
        start = torch.sigmoid((x - solution) / temperature)
        tau = solution + (start.sum() - k) * temperature / p.sum()
        (slow,) = torch.autograd.grad((torch.sigmoid((x - tau) / temperature) * weights).sum(), x)
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)
        assert torch.autograd.gradcheck(lambda s: top_mask(s, k, temperature), (x,))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("overshoot", [-5.0, -1.0, 4.0]),
        ("match", [2.0, 2.0, 7.0]),
        ("squared", [4.0, 4.0, 49.0]),
        ("agreement", [2.0, 1.0, 2.0]),
        ("kl", [-5.0, -1.0, 4.0]),
        ("both", [2.0, 2.0, 7.0]),
    ],
)
def test_losses_by_hand(loss: Any, expected: list[float]) -> None:
    value, full, empty = scores(5, 1, -4), scores(3, 3, 3), scores(0, 2, 1)
    method = Matryoshka(loss=loss, samples=2)
    torch.testing.assert_close(method.losses(value, lambda: (full, empty), 0), scores(*expected))
    if loss == "both":
        rest = method.losses(value, lambda: (full, empty), 1)
        torch.testing.assert_close(rest, scores(5, 1, 5))


@pytest.mark.few(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", ["edge", "node"])
def test_contract(loss: Any, level: Any) -> None:
    tiny = subject("neox")
    samples = 2 if loss == "both" else 1
    method = replace(SHORT, loss=loss, level=level, samples=samples, sizes="uniform")
    check_method(method, tiny.model, tiny.batch)


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", ["overshoot", "match", "both"])
def test_the_known_circuit_of_a_truth_comes_first(loss: Any) -> None:
    truth = ma.load_truth("truth-induction")
    method = Matryoshka(steps=60, loss=loss, samples=2)
    pairs = truth.task.pairs("train", truth.model, limit=16)
    found = method.score(truth.model, pairs, progress=SILENT)
    assert isinstance(found, EdgeScores)
    recovery = ma.circuits.recovery_of(found, truth.circuits["counterfactual"])
    assert recovery.auroc > 0.97


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", ["overshoot", "match", "both"])
def test_edges_that_can_do_nothing_stay_together_below_those_that_do(loss: Any) -> None:
    """Two heads write and nothing else: edges of silent writers have no gradient, and one score."""
    planted, graph = two_heads(), subject("gpt2").model.graph
    found = Matryoshka(steps=60, loss=loss, samples=2, lr=0.1).score(
        planted.model, planted.batch, progress=SILENT
    )
    silent = graph.legal.clone()
    silent[[graph.writer(name) for name in ALIVE]] = False
    values = found.values[silent]
    assert float(values.max() - values.min()) < 1e-6
    assert bool((found.top(6).edges & ~can_matter(graph)).sum() == 0)


@pytest.mark.slow
def test_only_a_loss_that_rewards_it_overshoots() -> None:
    tiny = subject("gpt2", n_pairs=6)
    whole = Circuit.full(tiny.model.graph)
    full = float(ma.circuits.evaluate(tiny.model, whole, tiny.batch, progress=SILENT).mean())
    largest: dict[str, float] = {}
    losses: tuple[Loss, ...] = ("overshoot", "match")
    for loss in losses:
        method = Matryoshka(steps=60, batch_size=6, loss=loss, samples=2, lr=0.2)
        found = method.score(tiny.model, tiny.batch, progress=SILENT)
        circuits = [found.top(share) for share in (0.1, 0.2, 0.5, 0.8)]
        values = ma.circuits.evaluate(tiny.model, circuits, tiny.batch, progress=SILENT)
        largest[loss] = float(values.mean(axis=1).max())
    assert largest["overshoot"] > largest["match"] > full - 0.5
    assert largest["overshoot"] - full > 2 * abs(largest["match"] - full)


def test_a_warm_start_begins_at_the_ranking_of_another_method() -> None:
    tiny = subject("qwen2")
    first = ma.circuits.EAP().score(tiny.model, tiny.batch, progress=SILENT)
    starts: tuple[tuple[Loss, By], ...] = (("overshoot", "value"), ("match", "magnitude"))
    for loss, by in starts:
        method = Matryoshka(steps=3, lr=1e-9, warm="eap", loss=loss)
        begun = method.score(tiny.model, tiny.batch, progress=SILENT)
        assert begun.ranking("value").tolist() == first.ranking(by).tolist()
    warm, cold = Matryoshka(warm="eap"), Matryoshka()
    assert warm.forwards(tiny.model.graph, 3) == cold.forwards(tiny.model.graph, 3) + 3 * 3


def test_a_node_is_masked_in_all_its_edges() -> None:
    """In a model whose nodes have one edge each, nodes are trained as edges are."""
    tiny = subject("gpt2")
    found = Matryoshka(steps=30, batch_size=6, level="node", loss="match", samples=2).score(
        tiny.model, tiny.batch, progress=SILENT
    )
    assert isinstance(found, NodeScores)
    assert float(found.values.min()) > 0 and float(found.values.max()) < 1
    assert len(found.values.unique()) == tiny.model.graph.n_writers


def test_a_training_that_is_taken_up_ends_the_same(tmp_path: Path) -> None:
    """After a kill in the middle, with a warm start."""
    tiny, method = subject("gpt2"), replace(SHORT, warm="eap", steps=6)

    class Killed(Exception):
        pass

    file = tmp_path / "kept"
    seen: list[int] = []

    def bad(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        seen.append(1)
        if len(seen) == 9:
            raise Killed
        return logits[:, 0] - logits[:, 1]

    import mechassay.utils.checkpoint as checkpoint

    every, checkpoint.EVERY_SECONDS = checkpoint.EVERY_SECONDS, 0.0
    try:
        with pytest.raises(Killed):
            method.score(tiny.model, tiny.batch, bad, progress=SILENT, checkpoint=file)
        assert file.is_file()
        again = method.score(tiny.model, tiny.batch, bad, progress=SILENT, checkpoint=file)
    finally:
        checkpoint.EVERY_SECONDS = every
    whole = method.score(tiny.model, tiny.batch, bad, progress=SILENT)
    assert torch.equal(again.values.nan_to_num(9), whole.values.nan_to_num(9))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(BadUsage, match="even number of samples"):
        Matryoshka(loss="both")
    with pytest.raises(UnknownName, match="match"):
        Matryoshka(loss="mach")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="temperature above 0"):
        Matryoshka(temperature=0)
    tiny = subject("gpt2")
    with pytest.raises(BadUsage, match="warm=nap gives scores of neurons"):
        replace(SHORT, warm="nap").score(tiny.model, tiny.batch, progress=SILENT)
    with pytest.raises(UnknownName, match="eap"):
        Matryoshka(warm="eapp")
