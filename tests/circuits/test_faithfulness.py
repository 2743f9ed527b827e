"""Evaluation and curves: sharing, controls, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechassay.circuits import (
    EAP,
    Circuit,
    Controls,
    EAPIGInputs,
    EdgeScores,
    ExactPatching,
    Random,
    evaluate,
    faithfulness_curve,
    run_controls,
)
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, OutOfMemory, UnknownName
from mechassay.graph import Graph
from mechassay.models import memory
from mechassay.models.model import make_model
from mechassay.records import Record, Spec
from mechassay.testing.tiny import Subject, build, subject


@pytest.fixture(scope="module")
def case() -> Subject:
    return subject("llama", n_pairs=12)


@pytest.fixture(scope="module")
def scores(case: Subject) -> EdgeScores:
    return EAPIGInputs().score(case.model, case.batch)


def test_several_circuits_are_evaluated_as_one_by_one(case: Subject, scores: EdgeScores) -> None:
    circuits = [scores.top(n) for n in (10, 60, 150)]
    together = evaluate(case.model, circuits, case.batch)
    for row, circuit in zip(together, circuits, strict=True):
        np.testing.assert_allclose(row, evaluate(case.model, circuit, case.batch), atol=1e-5)


def test_chunks_do_not_change_values(
    case: Subject, scores: EdgeScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(case.model, scores.top(80), case.batch)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    np.testing.assert_allclose(evaluate(case.model, scores.top(80), case.batch), whole, atol=1e-5)
    torch.testing.assert_close(
        EAPIGInputs().score(case.model, case.batch).values,
        scores.values,
        equal_nan=True,
        rtol=1e-4,
        atol=1e-6,
    )


def test_controls_may_be_shared(case: Subject, scores: EdgeScores, tmp_path: Path) -> None:
    controls = run_controls(case.model, case.batch)
    controls.save(tmp_path / "controls.safetensors")
    alone = faithfulness_curve(case.model, scores, case.batch, profile="mib-2025")
    shared = faithfulness_curve(
        case.model,
        scores,
        case.batch,
        profile="mib-2025",
        controls=Controls.load(tmp_path / "controls.safetensors"),
    )
    assert alone.cpr == shared.cpr
    assert alone.cpr_interval == shared.cpr_interval
    assert alone.random_cpr == shared.random_cpr
    assert set(alone.random) == {0, 1, 2}


def test_controls_of_other_examples_are_refused(case: Subject, scores: EdgeScores) -> None:
    controls = run_controls(case.model, case.batch.select([0, 1]))
    with pytest.raises(BadUsage, match="other examples"):
        faithfulness_curve(case.model, scores, case.batch, controls=controls)


def test_in_sample_evaluation_is_named(case: Subject, scores: EdgeScores) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch)
    assert any("in-sample" in warning for warning in curve.warnings)
    other = subject("llama", n_pairs=12, seed=5)
    assert not any(
        "in-sample" in warning
        for warning in faithfulness_curve(case.model, scores, other.batch).warnings
    )


def test_record_of_a_curve_survives_json(case: Subject, scores: EdgeScores) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch)
    record = curve.record(
        model=Spec(name="tiny"), task=Spec(name="none"), method=Spec(name="eap-ig-inputs")
    )
    again = Record.model_validate_json(record.model_dump_json())
    assert again.model_dump_json() == record.model_dump_json()
    assert again.values is not None
    values = again.values.columns
    assert values["clean"] == pytest.approx(curve.controls.full.tolist())
    f = (np.mean(values["value@0.5"]) - np.mean(values["empty"])) / (
        np.mean(values["clean"]) - np.mean(values["empty"])
    )
    stored = again.table("curve").where(of="result", ranking="value").columns["f"][8]
    assert stored is None or stored == pytest.approx(f)


def test_curve_to_html(case: Subject, scores: EdgeScores, tmp_path: Path) -> None:
    page = faithfulness_curve(case.model, scores, case.batch, profile="mib-2025").to_html(
        tmp_path / "report.html"
    )
    assert "<svg" in page.read_text()


def test_greedy_circuits_are_connected(case: Subject, scores: EdgeScores) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch, greedy=True, profile="mib-2025")
    assert curve.sweeps["value"].faithfulness[-1] == pytest.approx(1.0)
    grown = scores.greedy(40)
    assert len(grown) == 40
    # With every edge from the input added, each grown edge is on a path: its reader leads to the
    # logits.
    from_input = grown.graph.legal & (torch.arange(grown.graph.n_writers) == 0)[:, None]
    assert bool(grown.graph.on_paths(grown.edges | from_input)[grown.edges].all())


def test_scores_and_circuits_of_another_graph(case: Subject) -> None:
    other = Random().draw(Graph(2, 2))
    with pytest.raises(GraphMismatch, match="the model's graph is"):
        faithfulness_curve(case.model, other, case.batch)
    with pytest.raises(GraphMismatch):
        evaluate(case.model, other.top(3), case.batch)


def test_unknown_profile_and_ranking(case: Subject, scores: EdgeScores) -> None:
    with pytest.raises(UnknownName, match="mib-2025"):
        faithfulness_curve(case.model, scores, case.batch, profile="mib-2026")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="magnitude"):
        scores.top(3, by="magnitud")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("n", [-1, 10**6, 1.5, -0.1])
def test_sizes_outside_the_graph(scores: EdgeScores, n: float) -> None:
    with pytest.raises(BadUsage, match="size"):
        scores.top(n)


def test_an_illegal_edge_is_refused() -> None:
    graph = Graph(2, 2)
    mask = torch.zeros(graph.n_writers, graph.n_readers, dtype=torch.bool)
    mask[graph.mlp_writer(1), graph.slot(0, 0, 0)] = True
    with pytest.raises(GraphMismatch, match=r"m1->a0\.h0<q>"):
        Circuit(graph, mask)


def test_nan_activations_are_named() -> None:
    """A NaN that the self-check's tokens do not touch: one token's embedding."""
    hf = build("llama")
    tiny = subject("llama")
    poisoned = int(tiny.batch.clean[1, 2])
    hf.get_input_embeddings().weight[poisoned, 0] = float("nan")
    model = make_model(hf, check=False)
    with pytest.raises(NonFinite, match="example 1"):
        evaluate(model, Circuit.full(model.graph), tiny.batch)
    for method in (EAP(), ExactPatching()):
        with pytest.raises(NonFinite, match="edge scores are not finite"):
            method.score(model, tiny.batch)


def test_not_enough_memory_for_one_example(
    case: Subject, scores: EdgeScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemory, match="One example of 7 tokens needs"):
        EAP().score(case.model, case.batch)
    with pytest.raises(OutOfMemory):
        evaluate(case.model, scores.top(5), case.batch)


def test_the_allocators_failure_is_one_line(case: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"
            " to allocate 9 bytes"
        )

    monkeypatch.setattr("mechassay.circuits.evaluation.Contrast.run", fail)
    with pytest.raises(OutOfMemory, match="ran out of memory"):
        evaluate(case.model, Circuit.full(case.model.graph), case.batch)


@pytest.mark.parametrize("objective", ["kl", "js"])
def test_eap_refuses_an_objective_without_gradient_at_the_clean_run(
    case: Subject, objective: str
) -> None:
    with pytest.raises(BadUsage, match="use eap-ig-inputs"):
        EAP().score(case.model, case.batch, objective)
    values = EAPIGInputs(steps=2).score(case.model, case.batch, objective).values
    assert float(values.nan_to_num().abs().max()) > 0


def test_a_file_of_another_kind(case: Subject, tmp_path: Path) -> None:
    run_controls(case.model, case.batch).save(tmp_path / "controls.safetensors")
    with pytest.raises(BadFile, match="holds 'controls'; expected 'edge_scores'"):
        EdgeScores.load(tmp_path / "controls.safetensors")
