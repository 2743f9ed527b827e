"""Ablations other than the counterfactual:
against the slow definition on the unmodified model, and by hand.

Optimal ablation: against means, by the evaluation of circuits and by hooks;
components without effect; seeds; refusals.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.hooks_reference import Recording, ReferenceModel, exact_precision
from mechassay.circuits import (
    EAP,
    Circuit,
    EAPIGInputs,
    EdgeScores,
    ExactPatching,
    Random,
    ablate,
    evaluate,
)
from mechassay.circuits.evaluation.ablation import OptimalAblation, ablated_values
from mechassay.errors import BadPairs, BadUsage, NonFinite, UnknownName
from mechassay.models.forward import Constants, constants_of
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, build, subject
from mechassay.utils.checkpoint import Order
from mechassay.utils.display import SILENT

KINDS = ["zero", "mean", "positional-mean"]


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64, n_pairs=2)


def constants_as_recording(case: Subject, values: Constants) -> Recording:
    """What the reference evaluator would have recorded if every writer had written its constant."""
    model, batch = case.model, case.batch
    reference = ReferenceModel(model.hf, model.graph)
    plain = reference.record(batch.clean, batch.mask)
    at = (batch.mask.long().cumsum(1) - 1).clamp(min=0)
    decoder, graph = model.decoder, model.graph
    embed = values.embed_at(at)
    writers, attended, before, middle = [embed], [], [], []
    # Learned positions and biases belong to no writer: what the plain run has beyond its writers.
    x = embed if decoder.positions is None else embed + decoder.positions[at]
    for layer in range(graph.n_layers):
        attention = decoder.layers[layer].attention
        heads = decoder.head_outputs(layer, values.z_at(layer, at))
        total = heads.sum(0) + (0 if attention.out_bias is None else attention.out_bias)
        writers += [*heads]
        attended.append(total)
        before.append(x)
        wrote = total if attention.post_norm is None else attention.post_norm(total)
        middle.append(x if graph.parallel else x + wrote)
        mlp = values.mlp_at(layer, at)
        writers.append(mlp)
        x = x + wrote + mlp
    return replace(
        plain,
        writers=torch.stack(writers),
        attended=attended,
        before=before,
        middle=middle,
        final=x,
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_circuits_equal_the_dense_definition(case: Subject, kind: str) -> None:
    model = case.model
    batch = ablate(model, case.batch, kind, progress=SILENT)
    assert constants_of(batch) is not None
    scores = Random(seed=3).draw(model.graph)
    circuits = [Circuit.empty(model.graph), *(scores.top(p).pruned() for p in (0.3, 0.7))]
    fast = evaluate(model, circuits, batch, progress=SILENT)
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, model.graph)
        recording = constants_as_recording(case, constants_of(batch))
        for circuit, values in zip(circuits, fast, strict=True):
            logits = reference.run(batch.clean, batch.mask, recording, circuit.edges.double())
            slow = logits.gather(1, batch.answers) - logits.gather(1, batch.foils)
            np.testing.assert_allclose(values, slow[:, 0].numpy(), atol=1e-9, rtol=1e-9)


def test_attribution_is_the_derivative_under_any_ablation() -> None:
    """EAP = the derivative of the dense definition by each edge's coefficient,
    with constants too.
    """
    case = subject("gemma2", torch.float64, n_pairs=1)
    model = case.model
    batch = ablate(model, case.batch, "mean", progress=SILENT)
    assert constants_of(batch) is not None
    scores = EAP().score(model, batch, progress=SILENT)
    with exact_precision(model.hf):
        m = torch.ones(
            model.graph.n_writers, model.graph.n_readers, dtype=torch.float64, requires_grad=True
        )
        logits = ReferenceModel(model.hf, model.graph).run(
            batch.clean, batch.mask, constants_as_recording(case, constants_of(batch)), m
        )
        (slope,) = torch.autograd.grad(
            (logits.gather(1, batch.answers) - logits.gather(1, batch.foils)).mean(), m
        )
    legal = model.graph.legal
    torch.testing.assert_close(scores.values[legal].double(), slope[legal], atol=1e-6, rtol=1e-5)


def test_means_by_hand() -> None:
    case = subject("llama", torch.float64, n_pairs=3)
    model, batch = case.model, case.batch
    taken, _ = model.run(batch)
    real = batch.mask
    mean = constants_of(ablate(model, batch, "mean", progress=SILENT))
    assert mean is not None and mean.mlp is not None and len(mean.embed) == 1
    torch.testing.assert_close(mean.embed[0], taken.embed[real].mean(0))
    torch.testing.assert_close(mean.z[1, 2, 0], taken.layers[1].z[:, 2][real].mean(0))
    mlp = taken.layers[2].mlp
    assert mlp is not None
    torch.testing.assert_close(mean.mlp[2, 0], mlp[real].mean(0))
    by_place = constants_of(ablate(model, batch, "positional-mean", progress=SILENT))
    assert by_place is not None
    # The first pair is shorter by two: its first token stands in the third column.
    second = torch.stack([taken.embed[0, 3], taken.embed[1, 1], taken.embed[2, 1]]).mean(0)
    torch.testing.assert_close(by_place.embed[1], second)
    torch.testing.assert_close(by_place.embed[6], taken.embed[1:, 6].mean(0))


def test_padding_and_chunks_do_not_change_means(monkeypatch: pytest.MonkeyPatch) -> None:
    case = subject("gpt2", torch.float64, n_pairs=5)
    whole = constants_of(ablate(case.model, case.batch, "positional-mean", progress=SILENT))
    monkeypatch.setattr("mechassay.models.memory.CPU_BUDGET", 1)
    single = constants_of(ablate(case.model, case.batch, "positional-mean", progress=SILENT))
    assert whole is not None and single is not None
    torch.testing.assert_close(whole.z, single.z)
    assert whole.content[:8] != ablate(case.model, case.batch, "mean", progress=SILENT).content[:8]


def test_resampling_takes_another_example_of_equal_length() -> None:
    case = subject("llama", n_pairs=6)
    batch = case.batch.select([1, 2, 3, 4, 5])
    drawn = ablate(case.model, batch, "resample", seed=1)
    rows = [
        next(i for i in range(5) if torch.equal(batch.clean[i], other))
        for other in drawn.counterfactual
    ]
    assert sorted(rows) == [0, 1, 2, 3, 4] and all(row != place for place, row in enumerate(rows))
    assert torch.equal(
        drawn.counterfactual, ablate(case.model, batch, "resample", seed=1).counterfactual
    )
    assert drawn.content != batch.content
    with pytest.raises(BadPairs, match="the only one of 5 tokens"):
        ablate(case.model, case.batch, "resample")


def test_every_method_takes_every_ablation() -> None:
    case = subject("gemma2", n_pairs=4)
    rows = case.batch.select([1, 2, 3])
    seen: list[EdgeScores] = []
    for kind in ("counterfactual", "zero", "mean", "positional-mean", "resample"):
        batch = ablate(case.model, rows, kind, progress=SILENT)
        for method in (EAP(), EAPIGInputs(steps=2), ExactPatching(layers=(1,))):
            scores = method.score(case.model, batch, progress=SILENT)
            assert torch.isfinite(scores.values[:, case.model.graph.slots(1)][0]).all()
            seen.append(scores)
        assert (
            isinstance(batch, Batch)
            and len(evaluate(case.model, Circuit.full(case.model.graph), batch, progress=SILENT))
            == 3
        )
    assert not any(
        torch.equal(a.values.nan_to_num(), b.values.nan_to_num())
        for i, a in enumerate(seen)
        for b in seen[:i]
    )


def test_full_circuit_is_clean_whatever_is_ablated() -> None:
    case = subject("neox", torch.float64)
    plain = evaluate(case.model, Circuit.full(case.model.graph), case.batch, progress=SILENT)
    for kind in KINDS:
        batch = ablate(case.model, case.batch, kind, progress=SILENT)
        np.testing.assert_allclose(
            evaluate(case.model, Circuit.full(case.model.graph), batch, progress=SILENT),
            plain,
            atol=1e-12,
        )


def test_bad_ablations() -> None:
    case = subject("llama")
    with pytest.raises(UnknownName, match="Did you mean 'zero'"):
        ablate(case.model, case.batch, "zeros")
    with pytest.raises(BadUsage, match="learned"):
        ablate(case.model, case.batch, "optimal")


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


def prompt_losses(case: Subject, values: Constants) -> float:
    """The mean of -log P over the tokens of the prompts and the answers after them, with the
    embeddings replaced, one prompt after another.
    """
    hf: Any = case.model.hf
    hook = hf.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: values.embed.expand_as(output)
    )
    terms: list[float] = []
    try:
        for row, mask, answer in zip(
            case.batch.clean, case.batch.mask, case.batch.answers[:, 0], strict=True
        ):
            tokens = row[mask].tolist()
            with exact_precision(hf), torch.no_grad():
                logits = hf(torch.tensor([tokens]), use_cache=False).logits[0]
            for place, token in enumerate([*tokens[1:], int(answer)]):
                terms.append(-float(logits[place].log_softmax(-1)[token]))
    finally:
        hook.remove()
    return float(np.mean(terms))


def test_the_loss_of_the_language_model_is_over_all_tokens() -> None:
    """What is learned for all tokens is better for them than the mean, and than what is learned
    for the answers alone.
    """
    case = subject("gpt2", torch.float64)
    settings = replace(QUICK, steps=40, batch_size=8)
    of_all, of_answers = (
        replace(settings, loss=loss).learn(case.model, case.batch, progress=SILENT)
        for loss in ("language-model", "answers")
    )
    mean = ablated_values(case.model, case.batch, "mean", progress=SILENT)
    best, other, start = (prompt_losses(case, values) for values in (of_all, of_answers, mean))
    assert best < start - 1e-3 and best < other - 1e-3
    with pytest.raises(BadUsage, match="Known: answers, language-model"):
        OptimalAblation(loss=cast("Any", "perplexity"))


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
    with pytest.raises(BadUsage, match="share above 0 and at most 1"):
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

    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
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
