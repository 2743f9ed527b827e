"""Optimal ablation: against means, by the evaluation of circuits and by hooks;
components without effect; seeds; refusals.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.circuits import Circuit, ablate, evaluate
from mechassay.circuits.ablation import ablated_values
from mechassay.circuits.optimal_ablation import OptimalAblation
from mechassay.errors import BadUsage, NonFinite
from mechassay.graph import Graph
from mechassay.models.constants import Constants
from mechassay.models.model import make_model
from mechassay.models.reference import exact_precision
from mechassay.progress import SILENT
from mechassay.testing.tiny import Subject, build, subject
from mechassay.training import Order

QUICK = OptimalAblation(steps=12, lr=0.1, batch_size=2, check_every=4)


class Killed(Exception):
    pass


def without_each_writer(graph: Graph) -> list[Circuit]:
    circuits = []
    for writer in range(1, graph.n_writers):
        edges = graph.legal.clone()
        edges[writer] = False
        circuits.append(Circuit(graph, edges))
    return circuits


def losses(case: Subject, values: Constants) -> np.ndarray:
    """Cross-entropy with each writer alone at its constant:
    the input by a hook, the others by the evaluator of circuits.
    """
    batch = ablate(case.model, case.batch, values)
    found = evaluate(
        case.model, without_each_writer(case.model.graph), batch, "cross_entropy", progress=SILENT
    )
    return np.stack([input_losses(case, values), *(np.asarray(each) for each in found)]).mean(
        axis=1
    )


def input_losses(case: Subject, values: Constants) -> np.ndarray:
    """A circuit without the input would be the empty one,
    so the original model is run with its embeddings replaced.
    """
    hf: Any = case.model.hf
    mask = case.batch.mask.long()
    hook = hf.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: values.embed.expand_as(output)
    )
    try:
        with exact_precision(hf), torch.no_grad():
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            logits = hf(
                case.batch.clean, attention_mask=mask, position_ids=positions, use_cache=False
            ).logits[:, -1]
    finally:
        hook.remove()
    return torch.nn.functional.cross_entropy(
        logits, case.batch.answers[:, 0], reduction="none"
    ).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["neox", "gemma2"])
def test_no_component_is_worse_off_than_with_its_mean(family: str) -> None:
    case = subject(family, torch.float64)
    with torch.no_grad():
        learned = QUICK.learn(case.model, case.batch, progress=SILENT)
    assert learned.name == "optimal" and learned.z.shape == (
        3,
        4,
        1,
        case.model.decoder.layers[0].attention.out.shape[1],
    )
    best, mean = (
        losses(case, learned),
        losses(case, ablated_values(case.model, case.batch, "mean", progress=SILENT)),
    )
    assert (best <= mean + 1e-9).all()
    assert (best < mean - 1e-3).mean() > 0.8


def test_together_is_better_than_means_when_much_is_ablated() -> None:
    case = subject("gpt2", torch.float64, n_pairs=4)
    joint = replace(QUICK, joint=True, steps=30, batch_size=4).learn(
        case.model, case.batch, progress=SILENT
    )
    mean = ablated_values(case.model, case.batch, "mean", progress=SILENT)
    rng = np.random.default_rng(0)
    circuits = []
    for _ in range(20):
        edges = case.model.graph.legal.clone()
        edges[torch.from_numpy(rng.random(case.model.graph.n_writers) < 0.5)] = False
        circuits.append(Circuit(case.model.graph, edges))
    joint_loss, mean_loss = (
        np.mean(
            [
                np.asarray(each).mean()
                for each in evaluate(
                    case.model,
                    circuits,
                    ablate(case.model, case.batch, values),
                    "cross_entropy",
                    progress=SILENT,
                )
            ]
        )
        for values in (joint, mean)
    )
    assert joint_loss < mean_loss - 0.1


def test_a_component_without_effect_keeps_its_mean() -> None:
    """No gradient, no improvement: after `patience` looks the mean is what is left."""
    hf: Any = build("gpt2")
    with torch.no_grad():
        hf.transformer.h[1].attn.c_proj.weight[:8] = 0
    case = replace(subject("gpt2"), model=make_model(hf))
    learned = QUICK.learn(case.model, case.batch, progress=SILENT)
    mean = ablated_values(case.model, case.batch, "mean", progress=SILENT)
    assert torch.equal(learned.z[1, 0], mean.z[1, 0])
    assert not torch.equal(learned.z[1, 1], mean.z[1, 1])


def test_seeds_and_the_global_generator() -> None:
    case = subject("gpt2")
    state = torch.random.get_rng_state()
    few = replace(QUICK, steps=4)
    for settings in (few, replace(few, joint=True)):
        first, again, other = (
            replace(settings, seed=seed).learn(case.model, case.batch, progress=SILENT).content
            for seed in (0, 0, 1)
        )
        assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in case.model.hf.parameters())


def test_validation_decides_what_is_kept() -> None:
    """On other examples than those trained on, too,
    nothing is worse than the mean of the training examples.
    """
    case, other = subject("gpt2", torch.float64), subject("gpt2", torch.float64, seed=7)
    learned = QUICK.learn(case.model, case.batch, other.batch, progress=SILENT)
    mean = ablated_values(case.model, case.batch, "mean", progress=SILENT)
    on_validation = Subject(case.model, other.batch)
    assert (losses(on_validation, learned) <= losses(on_validation, mean) + 1e-9).all()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(BadUsage, match="steps of at least 1; got 0"):
        OptimalAblation(steps=0)
    with pytest.raises(BadUsage, match="share in"):
        OptimalAblation(share=0.0)
    hf: Any = build("gpt2")
    with torch.no_grad():
        hf.transformer.h[1].mlp.c_proj.weight.fill_(float("nan"))
    with pytest.raises(NonFinite, match="step 0"):
        QUICK.learn(make_model(hf, check=False), subject("gpt2").batch, progress=SILENT)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    "share",
    [pytest.param(0.1, marks=pytest.mark.slow), 0.5, pytest.param(0.9, marks=pytest.mark.slow)],
)
def test_a_killed_search_goes_on_and_ends_bit_for_bit_the_same(
    joint: bool, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the first group of components, and in later ones after one that stopped early."""
    case, file = subject("gpt2", n_pairs=5), tmp_path / "a.checkpoint"
    search = replace(QUICK, joint=joint, check_every=2, patience=2, steps=30 if joint else 20)
    draw, calls, killed_at = Order.draw, list[int](), 0

    def killed(self: Order, generator: torch.Generator) -> list[int]:
        calls.append(1)
        if len(calls) == killed_at:
            raise Killed
        return draw(self, generator)

    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr(Order, "draw", killed)
    expected = search.learn(case.model, case.batch, progress=SILENT)
    n_steps = len(calls)
    killed_at = n_steps + int(share * n_steps)
    with pytest.raises(Killed):
        search.learn(case.model, case.batch, progress=SILENT, checkpoint=file)
    assert file.is_file()
    found = search.learn(case.model, case.batch, progress=SILENT, checkpoint=file)
    # No step was taken twice but the one that was killed.
    assert len(calls) == 2 * n_steps + 1 and not file.exists()
    assert found.content == expected.content
