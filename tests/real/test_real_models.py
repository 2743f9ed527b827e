"""Real weights: the decoder is exact, and the IOI circuit is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.models import memory
from mechassay.models.model import Model
from mechassay.models.weight_files import is_fetched
from mechassay.utils.display import SILENT

pytestmark = pytest.mark.real


@pytest.fixture(
    scope="module", params=["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)]
)
def model(request: pytest.FixtureRequest) -> Model:
    if not is_fetched(request.param):
        pytest.skip(f"{request.param} is not fetched: mechassay models fetch {request.param}")
    return ma.load_model(request.param)


@pytest.fixture(scope="module")
def smollm() -> Model:
    if not is_fetched("smollm2-135m"):
        pytest.skip("smollm2-135m is not fetched: mechassay models fetch smollm2-135m")
    return ma.load_model("smollm2-135m")


def test_logits_equal_the_original(model: Model) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer(
        "When Mary and John went to the store, John gave a drink to", return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        theirs = model.hf(ids).logits[0, -1]
    batch = ma.Batch.from_tokens(ids, ids, [0], [1])
    ours = model.run(batch)[0].readout(model.decoder).all()[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    assert model.tokenizer.decode([int(ours.argmax())]) == " Mary"


@pytest.mark.slow
def test_bfloat16(model: Model) -> None:
    """Streams of real models have numbers forty times their spread: it is still the same model."""
    narrow = ma.load_model(model.name, dtype="bfloat16")
    assert narrow.self_check is not None and narrow.self_check.passed
    pairs = ma.load_task("ioi").pairs("test", model, limit=4)
    wide, ours = (
        ma.circuits.evaluate(m, ma.circuits.Circuit.full(m.graph), pairs, progress=SILENT)
        for m in (model, narrow)
    )
    np.testing.assert_allclose(ours, wide, atol=0.5)
    assert np.abs(ours - wide).max() > 0


@pytest.mark.slow
def test_ioi_is_solved_and_empty_and_full_circuits_are_the_two_runs(model: Model) -> None:
    pairs = ma.load_task("ioi").pairs("test", model, limit=20)
    full, empty = ma.circuits.Circuit.full(model.graph), ma.circuits.Circuit.empty(model.graph)
    assert ma.circuits.evaluate(model, full, pairs, "accuracy", progress=SILENT).mean() > 0.9
    differences = ma.circuits.evaluate(model, [full, empty], pairs, progress=SILENT).mean(axis=1)
    # The counterfactual swaps which name is right.
    assert differences[0] > 1
    assert differences[1] < -1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ioi", "greater-than", "docstring"])
def test_a_real_model_does_three_tasks_better_than_chance(
    smollm: Model, tmp_path: Path, task: str
) -> None:
    experiment = ma.AccuracyExperiment((smollm.name,), (task,), limit=40)
    models = {smollm.name: smollm}
    report = ma.run(experiment, tmp_path / "run", models=models, progress=SILENT)
    assert report.answers[0].startswith(
        f"{smollm.name} does {task} better than chance: it is right"
    )


@pytest.mark.slow
def test_ioi_circuit_of_smollm2(smollm: Model) -> None:
    """Integrated gradients find a small circuit that does the task;
    a random one of that size does nothing.
    """
    task = ma.load_task("ioi")
    train, test = task.pairs("train", smollm, limit=12), task.pairs("test", smollm, limit=12)
    scores = ma.circuits.EAPIGInputs(steps=5).score(smollm, train, progress=SILENT)
    circuits = [
        ma.circuits.Circuit.empty(smollm.graph),
        ma.circuits.Circuit.full(smollm.graph),
        scores.top(0.02),
        scores.top(0.1, by="magnitude"),
        ma.circuits.Random().draw(smollm.graph).top(0.1),
    ]
    values = ma.circuits.evaluate(smollm, circuits, test, progress=SILENT).mean(axis=1)
    faithfulness = (values - values[0]) / (values[1] - values[0])
    assert faithfulness[2] > 1.5
    assert faithfulness[3] == pytest.approx(1.0, abs=0.1)
    assert np.abs(faithfulness[4]) < 0.1


@pytest.mark.slow
def test_long_prompts_in_spans_are_those_that_are_run_whole(
    smollm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, where sums in another order differ in the last digits: a score is a sum of 230,000
    products (400 columns, 576 dimensions), which are rounded to 6e-8 of themselves.
    """
    generator = torch.Generator().manual_seed(1)
    clean, other = torch.randint(0, 49152, (2, 1, 400), generator=generator)
    batch = smollm.batch(ma.Batch.from_tokens(clean, other, [260], [261]))
    experiments = (ma.circuits.EAP(), ma.circuits.EAPIGInputs(steps=5))
    circuit = ma.circuits.RandomPaths().draw(smollm.graph).top(0.01).pruned()

    def run() -> tuple[list[torch.Tensor], float]:
        scores = [method.score(smollm, batch, progress=SILENT).values for method in experiments]
        return scores, float(ma.circuits.evaluate(smollm, circuit, batch, progress=SILENT)[0])

    whole, of_circuit = run()
    monkeypatch.setattr(memory, "EXAMPLE_BUDGET", 390 * memory.trace_bytes(smollm.decoder))
    assert memory.gradient_share(smollm.decoder, 1, 400, smollm.device).tokens < 200
    in_spans, again = run()
    for expected, found in zip(whole, in_spans, strict=True):
        largest = float(expected.nan_to_num().abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * largest, equal_nan=True)
    assert again == pytest.approx(of_circuit, abs=1e-3)


@pytest.mark.slow
def test_attribution_agrees_with_patching_on_the_strongest_edges(smollm: Model) -> None:
    """Verified by intervening: the edges into the logits, exactly patched one by one."""
    pairs = ma.load_task("ioi").pairs("train", smollm, limit=6)
    exact = (
        ma.circuits.ExactPatching(layers=(-1,))
        .score(smollm, pairs, progress=SILENT)
        .values[:, smollm.graph.logits]
    )
    estimated = (
        ma.circuits.EAPIGInputs(steps=5, points="midpoint")
        .score(smollm, pairs, progress=SILENT)
        .values[:, smollm.graph.logits]
    )
    assert float(torch.corrcoef(torch.stack((exact, estimated)))[0, 1]) > 0.8


@pytest.mark.slow
def test_patching_heads_finds_what_exact_node_patching_finds(smollm: Model) -> None:
    pairs = ma.load_task("ioi").pairs("test", smollm, limit=4)
    found = ma.patch(smollm, pairs, part="heads", direction="noising", progress=SILENT)
    exact = ma.circuits.ExactNodePatching().score(smollm, pairs, progress=SILENT)
    graph = smollm.graph
    for layer in range(graph.n_layers):
        ours = found.base.mean() - found.values[:, layer].mean(axis=0)
        np.testing.assert_allclose(ours, exact.values[graph.heads(layer)].numpy(), atol=2e-4)
    # The head that takes most away when it carries the counterfactual.
    largest = np.unravel_index(int(found.share.argmax()), found.share.shape)
    scores = exact.values[1:].unflatten(0, (graph.n_layers, graph.n_heads + 1))[:, :-1]
    assert largest == np.unravel_index(int(scores.argmax()), scores.shape)
