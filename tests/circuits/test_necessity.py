"""Complements and parts of circuits, against `evaluate` and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.circuits import EAP, Circuit, evaluate, necessity
from mechassay.circuits.necessity import complement, completeness, minimality
from mechassay.errors import BadUsage, UnknownName
from mechassay.progress import SILENT
from mechassay.testing.tiny import Subject, subject


@pytest.fixture(scope="module")
def case() -> Subject:
    """Answers are what the clean prompt raises most over its counterfactual,
    foils what it lowers most: a clear difference.
    """
    tiny = subject("gpt2", torch.float64, n_pairs=40)
    logits = [
        tiny.model.run(tiny.batch, counterfactual=other)[0].readout(tiny.model.decoder).all()
        for other in (False, True)
    ]
    change = logits[0] - logits[1]
    batch = replace(
        tiny.batch, answers=change.argmax(1, keepdim=True), foils=change.argmin(1, keepdim=True)
    )
    return Subject(tiny.model, batch)


def f(case: Subject, circuit: Circuit) -> float:
    graph = case.model.graph
    full, empty, m = (
        evaluate(case.model, each, case.batch, progress=SILENT).mean()
        for each in (Circuit.full(graph), Circuit.empty(graph), circuit)
    )
    return (m - empty) / (full - empty)


def test_a_circuit_and_its_complement_are_all_edges(case: Subject) -> None:
    circuit = EAP().score(case.model, case.batch, progress=SILENT).top(60)
    other = complement(circuit)
    assert len(circuit) + len(other) == case.model.graph.n_edges
    assert not bool((circuit.edges & other.edges).any())
    assert complement(other) == circuit


def test_the_complement_of_neurons_has_the_others(case: Subject) -> None:
    graph = case.model.graph
    neurons = (
        torch.rand(
            graph.n_writers, case.model.decoder.d_model, generator=torch.Generator().manual_seed(2)
        )
        < 0.6
    )
    neurons[1], neurons[2] = True, False
    circuit = Circuit.of_neurons(graph, neurons)
    other = complement(circuit)
    assert other == Circuit.of_neurons(graph, ~neurons) and complement(other) == circuit
    assert circuit.size + other.size == pytest.approx(1)
    # Mixed: the whole writer 1 keeps a single edge, the empty writer 2 has edges that carry
    # nothing.
    edges = circuit.edges.clone()
    edges[1] = False
    edges[1, graph.logits] = edges[2, graph.logits] = True
    mixed, rest = Circuit(graph, edges, neurons), complement(Circuit(graph, edges, neurons))
    assert mixed.weighted_edge_count() + rest.weighted_edge_count() == graph.n_edges
    assert (
        rest.edges[1].sum() == graph.legal[1].sum() - 1
        and rest.edges[2].sum() == graph.legal[2].sum()
    )
    found = completeness(case.model, mixed, case.batch, progress=SILENT)
    assert found.complement == pytest.approx(f(case, rest))
    edges[3, graph.logits] = False
    with pytest.raises(BadUsage, match=r"a0\.h2 has some neurons on some of its edges"):
        complement(Circuit(graph, edges, neurons))


def test_minimality_keeps_the_neurons(case: Subject) -> None:
    graph = case.model.graph
    neurons = (
        torch.rand(
            graph.n_writers, case.model.decoder.d_model, generator=torch.Generator().manual_seed(3)
        )
        < 0.7
    )
    circuit = Circuit(
        graph, EAP().score(case.model, case.batch, progress=SILENT).top(30).edges, neurons
    ).pruned()
    found = minimality(case.model, circuit, case.batch, progress=SILENT)
    edges = circuit.edges.clone()
    edges[graph.index(found.parts[0])] = False
    assert found.drops[0] == pytest.approx(
        f(case, circuit) - f(case, Circuit(graph, edges, circuit.neurons))
    )


def test_completeness_is_f_of_the_complement(case: Subject) -> None:
    circuit = EAP().score(case.model, case.batch, progress=SILENT).top(0.3)
    found = completeness(case.model, circuit, case.batch, progress=SILENT)
    assert found.circuit == pytest.approx(f(case, circuit)) and found.complement == pytest.approx(
        f(case, complement(circuit))
    )
    assert found.complement_interval.contains(found.complement)
    whole = completeness(case.model, Circuit.full(case.model.graph), case.batch, progress=SILENT)
    assert (whole.circuit, whole.complement) == (1.0, 0.0)


def test_minimality_is_the_drop_of_f(case: Subject) -> None:
    circuit = EAP().score(case.model, case.batch, progress=SILENT).top(40).pruned()
    found = minimality(case.model, circuit, case.batch, progress=SILENT)
    assert found.parts == tuple(circuit.names()) and len(found.parts) == len(circuit)
    for name in (found.parts[0], found.parts[-1]):
        edges = circuit.edges.clone()
        edges[case.model.graph.index(name)] = False
        drop = f(case, circuit) - f(case, Circuit(case.model.graph, edges))
        assert found.drops[found.parts.index(name)] == pytest.approx(drop)
    by_node = minimality(case.model, circuit, case.batch, unit="node", progress=SILENT)
    assert by_node.parts[0] == "input" and by_node.drops[0] == pytest.approx(f(case, circuit))
    assert set(by_node.parts) == {name.split("->")[0] for name in circuit.names()}


def test_minimality_of_a_sample_has_the_drops_of_the_whole(case: Subject) -> None:
    circuit = EAP().score(case.model, case.batch, progress=SILENT).top(40).pruned()
    whole = minimality(case.model, circuit, case.batch, progress=SILENT)
    every = dict(zip(whole.parts, whole.drops, strict=True))
    found = minimality(case.model, circuit, case.batch, most=5, seed=3, progress=SILENT)
    assert len(found.parts) == 5 and list(found.parts) == [x for x in every if x in found.parts]
    np.testing.assert_allclose(found.drops, [every[name] for name in found.parts])
    other = minimality(case.model, circuit, case.batch, most=5, seed=4, progress=SILENT)
    assert other.parts != found.parts
    more = minimality(case.model, circuit, case.batch, most=len(every) + 1, progress=SILENT)
    assert more.parts == whole.parts
    with pytest.raises(BadUsage, match="one part or more"):
        minimality(case.model, circuit, case.batch, most=0, progress=SILENT)


def test_an_edge_on_no_path_is_worth_nothing(case: Subject) -> None:
    names = ["input->a0.h1<v>", "a0.h1->logits", "a1.h0->a2.h1<q>"]
    found = minimality(
        case.model, Circuit.from_names(case.model.graph, names), case.batch, progress=SILENT
    )
    worth = dict(zip(found.parts, found.drops, strict=True))
    assert worth["a1.h0->a2.h1<q>"] == pytest.approx(0, abs=1e-12)
    assert (
        worth["input->a0.h1<v>"] == pytest.approx(worth["a0.h1->logits"])
        and worth["a0.h1->logits"] != 0
    )
    assert found.n_unneeded >= 1


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", ["logit_diff", "prob_diff", "kl"])
@pytest.mark.parametrize(
    ("dtype", "rounding", "small"), [(torch.float64, 1e-15, 1e-9), (torch.float32, 1e-7, 1e-3)]
)
def test_what_rounding_alone_has_made_is_undefined(
    dtype: torch.dtype,
    rounding: float,
    small: float,
    objective: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of equal prompts every circuit does the same, whatever the order of sums says."""
    tiny = subject("gpt2", dtype, n_pairs=2)
    alike = tiny.batch.select([0, 0])
    alike = alike.__class__.from_tokens(alike.clean, alike.clean, [1, 1], [2, 2])
    circuit = Circuit.from_names(tiny.model.graph, ["input->a0.h1<v>", "a0.h1->logits"])
    type_ = np.float64 if dtype == torch.float64 else np.float32

    def found(part: float) -> tuple[necessity.Completeness, necessity.Minimality]:
        def shifted(*given: Any, **settings: Any) -> np.ndarray:
            values = evaluate(*given, **settings)
            # A divergence is a sum of terms of about 1.
            size = 1.0 if objective == "kl" else np.abs(values[0])
            values[0] = (values[0] + part * size).astype(type_)
            return values

        monkeypatch.setattr(necessity, "evaluate", shifted)
        given = (tiny.model, circuit, alike, objective)
        return completeness(*given, progress=SILENT), minimality(*given, progress=SILENT)

    for part in (0.0, rounding, -rounding):
        whole, parts = found(part)
        assert np.isnan([whole.circuit, whole.complement, *whole.complement_interval[:2]]).all()
        assert np.isnan(parts.drops).all() and np.isnan(parts.intervals[0].low)
    for part in (small, -small):
        whole, parts = found(part)
        assert np.isfinite([whole.circuit, whole.complement]).all()
        assert np.isfinite(parts.drops).all()


def test_what_is_undefined_and_what_is_refused(case: Subject) -> None:
    same = case.batch.select([0, 0])
    found = completeness(
        case.model,
        Circuit.full(case.model.graph),
        same.__class__.from_tokens(same.clean, same.clean, [1, 1], [2, 2]),
        progress=SILENT,
    )
    assert np.isnan(found.circuit) and np.isnan(found.complement_interval.low)
    with pytest.raises(BadUsage, match="empty"):
        minimality(case.model, Circuit.empty(case.model.graph), case.batch)
    unit: Any = "egde"
    with pytest.raises(UnknownName, match="Did you mean 'edge'"):
        minimality(case.model, Circuit.full(case.model.graph), case.batch, unit=unit)
