"""Evaluation and curves: sharing, controls, and what is refused.

Complements and parts of circuits, against `evaluate` and by hand.

Circuits of neurons: both ways of running them against hooks on the unmodified model,
circuits of edges, and both ends.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import ReferenceModel, exact_precision
from mechassay.circuits import (
    EAP,
    Circuit,
    Controls,
    EAPIGInputs,
    EdgeScores,
    ExactPatching,
    Random,
    ablate,
    evaluate,
    faithfulness_curve,
    run_controls,
)
from mechassay.circuits.evaluation import faithfulness as necessity
from mechassay.circuits.evaluation.curve import recomputed
from mechassay.circuits.evaluation.faithfulness import complement, completeness, minimality
from mechassay.circuits.methods.eap import NAP
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, OutOfMemory, UnknownName
from mechassay.models import circuit_forward, memory
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit, run_shared, shared_by_all_readers
from mechassay.models.forward import Contrast
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.results.reading import read_record
from mechassay.results.records import Measure, Record, Spec
from mechassay.testing.tiny import Subject, build, subject
from mechassay.utils.display import SILENT


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
    assert set(alone.drawn["random"]) == {0, 1, 2, 3, 4}


def test_controls_of_other_examples_are_refused(case: Subject, scores: EdgeScores) -> None:
    controls = run_controls(case.model, case.batch.select([0, 1]))
    with pytest.raises(BadUsage, match="other examples"):
        faithfulness_curve(case.model, scores, case.batch, controls=controls)


def test_in_sample_evaluation_is_named(case: Subject, scores: EdgeScores) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch)
    assert curve.ranking is not None and curve.ranking.shared == len(case.batch)
    other = subject("llama", n_pairs=12, seed=5)
    apart = faithfulness_curve(case.model, scores, other.batch)
    assert apart.ranking is not None and apart.ranking.known and apart.ranking.shared == 0


def test_record_of_a_curve_survives_json(case: Subject, scores: EdgeScores) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch)
    record = curve.record(
        {"model": Spec(name="tiny", args={"family": "x"}), "method": Spec(name="eap-ig-inputs")}
    )
    assert record.model.args == {"family": "x", "n_edges": case.model.graph.n_edges}
    assert (record.method.name, record.task.name) == ("eap-ig-inputs", curve.task)
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


def test_a_record_has_the_ends_and_what_recomputing_gives(
    case: Subject, scores: EdgeScores, tmp_path: Path
) -> None:
    curve = faithfulness_curve(case.model, scores, case.batch, profile="mib-2025")
    record = read_record(curve.save(tmp_path / "curve.json"))
    assert record.values is not None
    ends = {name: np.mean(record.values.columns[name]) for name in ("clean", "empty")}
    between = record.measure("denominator", "control:full")
    assert between is not None
    assert between.value == pytest.approx(ends["clean"] - ends["empty"])
    again = {(x.name, x.of): x.value for x in recomputed(record) if isinstance(x, Measure)}
    for kind in ("random", "random-paths"):
        for name in ("cpr", "cmd"):
            control, difference = (
                record.measure(name, f"{of}:{kind}") for of in ("control", "difference")
            )
            assert control is not None
            assert difference is not None
            assert again[name, control.of] == pytest.approx(control.value)
            assert again[name, difference.of] == pytest.approx(difference.value)
            assert difference.value == pytest.approx(record.value(name) - control.value)


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

    monkeypatch.setattr("mechassay.models.forward.Contrast.run", fail)
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


@pytest.fixture(scope="module")
def necessity_case() -> Subject:
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


def test_a_circuit_and_its_complement_are_all_edges(necessity_case: Subject) -> None:
    circuit = EAP().score(necessity_case.model, necessity_case.batch, progress=SILENT).top(60)
    other = complement(circuit)
    assert len(circuit) + len(other) == necessity_case.model.graph.n_edges
    assert not bool((circuit.edges & other.edges).any())
    assert complement(other) == circuit


def test_the_complement_of_neurons_has_the_others(necessity_case: Subject) -> None:
    graph = necessity_case.model.graph
    neurons = (
        torch.rand(
            graph.n_writers,
            necessity_case.model.decoder.d_model,
            generator=torch.Generator().manual_seed(2),
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
    found = completeness(necessity_case.model, mixed, necessity_case.batch, progress=SILENT)
    assert found.complement == pytest.approx(f(necessity_case, rest))
    edges[3, graph.logits] = False
    with pytest.raises(BadUsage, match=r"a0\.h2 has some neurons on some of its edges"):
        complement(Circuit(graph, edges, neurons))


def test_minimality_keeps_the_neurons(necessity_case: Subject) -> None:
    graph = necessity_case.model.graph
    neurons = (
        torch.rand(
            graph.n_writers,
            necessity_case.model.decoder.d_model,
            generator=torch.Generator().manual_seed(3),
        )
        < 0.7
    )
    circuit = Circuit(
        graph,
        EAP().score(necessity_case.model, necessity_case.batch, progress=SILENT).top(30).edges,
        neurons,
    ).pruned()
    found = minimality(necessity_case.model, circuit, necessity_case.batch, progress=SILENT)
    edges = circuit.edges.clone()
    edges[graph.index(found.parts[0])] = False
    assert found.drops[0] == pytest.approx(
        f(necessity_case, circuit) - f(necessity_case, Circuit(graph, edges, circuit.neurons))
    )


def test_completeness_is_f_of_the_complement(necessity_case: Subject) -> None:
    circuit = EAP().score(necessity_case.model, necessity_case.batch, progress=SILENT).top(0.3)
    found = completeness(necessity_case.model, circuit, necessity_case.batch, progress=SILENT)
    assert found.circuit == pytest.approx(
        f(necessity_case, circuit)
    ) and found.complement == pytest.approx(f(necessity_case, complement(circuit)))
    assert found.complement_interval.contains(found.complement)
    whole = completeness(
        necessity_case.model,
        Circuit.full(necessity_case.model.graph),
        necessity_case.batch,
        progress=SILENT,
    )
    assert (whole.circuit, whole.complement) == (1.0, 0.0)


def test_minimality_is_the_drop_of_f(necessity_case: Subject) -> None:
    circuit = (
        EAP().score(necessity_case.model, necessity_case.batch, progress=SILENT).top(40).pruned()
    )
    found = minimality(necessity_case.model, circuit, necessity_case.batch, progress=SILENT)
    assert found.parts == tuple(circuit.names()) and len(found.parts) == len(circuit)
    for name in (found.parts[0], found.parts[-1]):
        edges = circuit.edges.clone()
        edges[necessity_case.model.graph.index(name)] = False
        drop = f(necessity_case, circuit) - f(
            necessity_case, Circuit(necessity_case.model.graph, edges)
        )
        assert found.drops[found.parts.index(name)] == pytest.approx(drop)
    by_node = minimality(
        necessity_case.model, circuit, necessity_case.batch, unit="node", progress=SILENT
    )
    assert by_node.parts[0] == "input" and by_node.drops[0] == pytest.approx(
        f(necessity_case, circuit)
    )
    assert set(by_node.parts) == {name.split("->")[0] for name in circuit.names()}


def test_minimality_of_a_sample_has_the_drops_of_the_whole(necessity_case: Subject) -> None:
    circuit = (
        EAP().score(necessity_case.model, necessity_case.batch, progress=SILENT).top(40).pruned()
    )
    whole = minimality(necessity_case.model, circuit, necessity_case.batch, progress=SILENT)
    every = dict(zip(whole.parts, whole.drops, strict=True))
    found = minimality(
        necessity_case.model, circuit, necessity_case.batch, most=5, seed=3, progress=SILENT
    )
    assert len(found.parts) == 5 and list(found.parts) == [x for x in every if x in found.parts]
    np.testing.assert_allclose(found.drops, [every[name] for name in found.parts])
    other = minimality(
        necessity_case.model, circuit, necessity_case.batch, most=5, seed=4, progress=SILENT
    )
    assert other.parts != found.parts
    more = minimality(
        necessity_case.model, circuit, necessity_case.batch, most=len(every) + 1, progress=SILENT
    )
    assert more.parts == whole.parts
    with pytest.raises(BadUsage, match="one part or more"):
        minimality(necessity_case.model, circuit, necessity_case.batch, most=0, progress=SILENT)


def test_an_edge_on_no_path_is_worth_nothing(necessity_case: Subject) -> None:
    names = ["input->a0.h1<v>", "a0.h1->logits", "a1.h0->a2.h1<q>"]
    found = minimality(
        necessity_case.model,
        Circuit.from_names(necessity_case.model.graph, names),
        necessity_case.batch,
        progress=SILENT,
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


def test_what_is_undefined_and_what_is_refused(necessity_case: Subject) -> None:
    same = necessity_case.batch.select([0, 0])
    found = completeness(
        necessity_case.model,
        Circuit.full(necessity_case.model.graph),
        same.__class__.from_tokens(same.clean, same.clean, [1, 1], [2, 2]),
        progress=SILENT,
    )
    assert np.isnan(found.circuit) and np.isnan(found.complement_interval.low)
    with pytest.raises(BadUsage, match="empty"):
        minimality(
            necessity_case.model, Circuit.empty(necessity_case.model.graph), necessity_case.batch
        )
    unit: Any = "egde"
    with pytest.raises(UnknownName, match="Did you mean 'edge'"):
        minimality(
            necessity_case.model,
            Circuit.full(necessity_case.model.graph),
            necessity_case.batch,
            unit=unit,
        )


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def node_evaluation_case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


@pytest.fixture(params=["on one stream", "by reader"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neuron circuits are run in one of two ways, by their share of live writers:
    here all in the same.
    """
    monkeypatch.setattr(
        circuit_forward, "SHARED_ABOVE", -1 if request.param == "on one stream" else 2
    )


def drawn(case: Subject, share: float, seed: int = 0) -> Circuit:
    """Random neurons, some of every node."""
    generator = torch.Generator().manual_seed(seed)
    graph = case.model.graph
    return Circuit.of_neurons(
        graph, torch.rand(graph.n_writers, case.model.decoder.d_model, generator=generator) < share
    )


def mask(circuit: Circuit) -> Tensor:
    """A copy of the circuit's neurons."""
    assert circuit.neurons is not None
    return circuit.neurons.clone()


def full(case: Subject) -> Circuit:
    """All neurons."""
    return Circuit.of_neurons(
        case.model.graph,
        torch.ones(case.model.graph.n_writers, case.model.decoder.d_model, dtype=torch.bool),
    )


def drawn_nodes(case: Subject, share: float, seed: int = 0) -> Circuit:
    """Random whole nodes, the input among them, as neurons."""
    graph = case.model.graph
    nodes = torch.rand(graph.n_writers, generator=torch.Generator().manual_seed(seed)) < share
    nodes[0] = True
    return Circuit.of_neurons(graph, nodes[:, None].expand(-1, case.model.decoder.d_model).clone())


def by_hooks(case: Subject, circuit: Circuit) -> np.ndarray:
    """The original model with every writer's output replaced by a' + n
    (a - a'), where it is written.
    """
    model, batch, graph = case.model, case.batch, case.model.graph
    keep = mask(circuit).double()
    with exact_precision(model.hf), torch.no_grad(), ExitStack() as stack:
        reference = ReferenceModel(model.hf, graph)
        layout, other = reference.layout, reference.record(batch.counterfactual, batch.mask)

        def masked(module: torch.nn.Module, row: int) -> None:
            def hook(m: torch.nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
                return other.writers[row] + keep[row] * (out - other.writers[row])

            stack.callback(module.register_forward_hook(hook).remove)

        def masked_heads(layer: int) -> None:
            module = reference.blocks[layer].get_submodule(f"{layout.attention}.{layout.out}")

            def hook(m: torch.nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
                # Each head alone through W_O: the class's forward, so that this hook does not run
                # again.
                forward, z = type(module).forward, args[0]
                total, width = other.attended[layer], z.shape[-1] // graph.n_heads
                for head in range(graph.n_heads):
                    part = torch.zeros_like(z)
                    part[..., head * width : (head + 1) * width] = z[
                        ..., head * width : (head + 1) * width
                    ]
                    row = graph.head(layer, head)
                    total = total + keep[row] * (
                        forward(module, part)
                        - forward(module, torch.zeros_like(z))
                        - other.writers[row]
                    )
                return total

            stack.callback(module.register_forward_hook(hook).remove)

        masked(model.hf.get_submodule(layout.embed), 0)
        for layer in range(graph.n_layers):
            masked_heads(layer)
            masked(
                reference.blocks[layer].get_submodule(layout.post_mlp or layout.mlp),
                graph.mlp_writer(layer),
            )
        position_ids = (batch.mask.long().cumsum(1) - 1).clamp(min=0)
        logits = model.hf(
            batch.clean,
            attention_mask=batch.mask.long(),
            position_ids=position_ids,
            use_cache=False,
        ).logits[:, -1]
    return (logits.gather(1, batch.answers) - logits.gather(1, batch.foils))[:, 0].numpy()


@pytest.mark.usefixtures("both_ways")
def test_any_neurons_equal_the_definition(node_evaluation_case: Subject) -> None:
    circuits = [
        drawn(node_evaluation_case, 0.5),
        drawn(node_evaluation_case, 0.03, seed=1),
        drawn_nodes(node_evaluation_case, 0.5),
    ]
    # Whole sublayers out, and nothing but the input.
    graph = node_evaluation_case.model.graph
    gaps = mask(drawn(node_evaluation_case, 0.7, seed=2))
    gaps[graph.heads(1)] = gaps[graph.mlp_writer(0)] = gaps[graph.mlp_writer(2)] = False
    circuits += [Circuit.of_neurons(graph, gaps), drawn_nodes(node_evaluation_case, 0.0)]
    fast = evaluate(
        node_evaluation_case.model, circuits, node_evaluation_case.batch, progress=SILENT
    )
    for circuit, values in zip(circuits, fast, strict=True):
        np.testing.assert_allclose(
            values, by_hooks(node_evaluation_case, circuit), rtol=1e-9, atol=1e-9
        )


@pytest.mark.usefixtures("both_ways")
def test_both_ends(node_evaluation_case: Subject) -> None:
    model, graph = node_evaluation_case.model, node_evaluation_case.model.graph
    almost = mask(full(node_evaluation_case))
    almost[graph.mlp_writer(0), 3] = False
    nothing = torch.zeros_like(almost)
    circuits = [
        full(node_evaluation_case),
        Circuit.of_neurons(graph, nothing),
        Circuit(graph, graph.legal, nothing),
        Circuit.of_neurons(graph, almost),
    ]
    whole, empty, no_neurons, rest = evaluate(
        model, circuits, node_evaluation_case.batch, progress=SILENT
    )
    ends = evaluate(
        model,
        [Circuit.full(graph), Circuit.empty(graph)],
        node_evaluation_case.batch,
        progress=SILENT,
    )
    np.testing.assert_array_equal(np.stack((whole, empty)), ends)
    np.testing.assert_array_equal(no_neurons, empty)
    assert not np.allclose(whole, rest) and not np.allclose(whole, empty)
    # All of one writer's neurons but none of the input's: nothing of the clean run is left.
    alone = mask(full(node_evaluation_case))
    alone[0] = False
    np.testing.assert_array_equal(
        evaluate(
            model, Circuit.of_neurons(graph, alone), node_evaluation_case.batch, progress=SILENT
        ),
        empty,
    )


@pytest.mark.few(4)
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", ["counterfactual", "zero", "positional-mean"])
def test_whole_nodes_equal_the_circuit_of_their_edges(
    node_evaluation_case: Subject, kind: str
) -> None:
    batch = ablate(node_evaluation_case.model, node_evaluation_case.batch, kind, progress=SILENT)
    circuits = [
        drawn_nodes(node_evaluation_case, share, seed) for seed, share in enumerate((0.2, 0.5, 0.9))
    ]
    without_input = mask(circuits[1])
    without_input[0] = False
    circuits.append(Circuit.of_neurons(node_evaluation_case.model.graph, without_input))
    np.testing.assert_allclose(
        evaluate(node_evaluation_case.model, circuits, batch, progress=SILENT),
        evaluate(
            node_evaluation_case.model,
            [Circuit(each.graph, each.edges) for each in circuits],
            batch,
            progress=SILENT,
        ),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.usefixtures("both_ways")
def test_attention_only_models() -> None:
    case = subject("neox", torch.float64)
    decoder = replace(
        case.model.decoder,
        layers=tuple(replace(layer, mlp=None) for layer in case.model.decoder.layers),
    )
    bare = Subject(replace(case.model, decoder=decoder), case.batch)
    circuit = drawn_nodes(bare, 0.5)
    expected = evaluate(
        bare.model, Circuit(circuit.graph, circuit.edges), bare.batch, progress=SILENT
    )
    np.testing.assert_allclose(
        evaluate(bare.model, circuit, bare.batch, progress=SILENT), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("kind", ["counterfactual", "positional-mean"])
def test_both_ways_of_running_agree_on_some_neurons(
    node_evaluation_case: Subject, kind: str
) -> None:
    """Pruned circuits too, which lack the edges into nodes that lead nowhere."""
    model, graph = node_evaluation_case.model, node_evaluation_case.model.graph
    contrast = Contrast.run(
        model.decoder, ablate(model, node_evaluation_case.batch, kind, progress=SILENT)
    )
    circuits = [
        Circuit.of_neurons(
            graph,
            mask(drawn_nodes(node_evaluation_case, nodes, seed=3))
            & mask(drawn(node_evaluation_case, neurons)),
        ).pruned()
        for nodes, neurons in ((0.9, 0.5), (0.4, 0.8), (0.2, 0.1))
    ]
    for circuit in circuits:
        shared = shared_by_all_readers(graph, circuit.edges, mask(circuit))
        assert shared is not None
        plan = compile_circuit(
            graph, circuit.edges, circuit.neurons, post_norm=model.decoder.has_post_norm
        )
        torch.testing.assert_close(
            run_shared(model.decoder, contrast, graph, shared).all(),
            run_circuit(model.decoder, contrast, plan).all(),
            rtol=0,
            atol=1e-9,
        )
    # One edge out: its reader sees other writers than the rest.
    edges = circuits[0].edges.clone()
    edges[0, graph.logits] = False
    assert shared_by_all_readers(graph, edges, mask(circuits[0])) is None


def test_pruning_changes_nothing(node_evaluation_case: Subject) -> None:
    circuits = [
        drawn_nodes(node_evaluation_case, 0.4),
        drawn(node_evaluation_case, 0.02),
        drawn(node_evaluation_case, 0.5),
    ]
    graph, generator = node_evaluation_case.model.graph, torch.Generator().manual_seed(5)
    circuits += [
        Circuit(
            graph,
            graph.legal & (torch.rand(graph.legal.shape, generator=generator) < 0.3),
            mask(drawn(node_evaluation_case, 0.5)),
        )
    ]
    before, after = (
        evaluate(node_evaluation_case.model, each, node_evaluation_case.batch, progress=SILENT)
        for each in (circuits, [each.pruned() for each in circuits])
    )
    np.testing.assert_allclose(before, after, atol=1e-12)


def test_padding_and_chunks_do_not_change_values(
    node_evaluation_case: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuits = [
        drawn(node_evaluation_case, 0.5),
        drawn(node_evaluation_case, 0.5).pruned(),
        drawn(node_evaluation_case, 0.02),
    ]
    whole = evaluate(
        node_evaluation_case.model, circuits, node_evaluation_case.batch, progress=SILENT
    )
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    np.testing.assert_allclose(
        evaluate(node_evaluation_case.model, circuits, node_evaluation_case.batch, progress=SILENT),
        whole,
        atol=1e-9,
    )


def test_pairs_run_together_that_differ_in_as_many_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the pairs differ in the last column alone, half in all: the values of each pair are
    those that it has by itself, and chunks are fewer columns of work.
    """
    case = subject("gpt2", torch.float64)
    rng, graph = np.random.default_rng(0), case.model.graph
    width = 6
    clean = rng.integers(5, 20, size=(12, width))
    other = clean.copy()
    other[:, -1] += 1
    other[::2, 0] += 1
    batch = Batch.from_tokens(clean.tolist(), other.tolist(), [1] * 12, [2] * 12)
    circuits = [Random(seed=seed).draw(graph).top(0.5) for seed in range(6)]
    alone = np.hstack(
        [evaluate(case.model, circuits, batch.select([row]), progress=SILENT) for row in range(12)]
    )
    per_token = memory.trace_bytes(case.model.decoder)
    monkeypatch.setattr(memory, "CPU_BUDGET", 3 * width * per_token)
    chunks = necessity._chunks(case.model, batch, 3 * width, in_spans=False)
    columns = [int(chunk.changed_columns().max()) for _, chunk in chunks]
    assert sorted(set(columns)) == [1, width] and len(columns) <= 4
    together = evaluate(case.model, circuits, batch, progress=SILENT)
    np.testing.assert_allclose(together, alone, atol=1e-10)
    assert np.ptp(together) > 0
    # To the last bit whatever runs beside it: a record's numbers follow from two evaluations.
    for n in (1, 2):
        assert (evaluate(case.model, circuits[:n], batch, progress=SILENT) == together[:n]).all()


def test_scores_predict_what_leaving_one_neuron_out_does() -> None:
    """The last MLP is read by the logits alone, where only the final norm is not linear."""
    case = subject("gpt2", torch.float64)
    model, graph, d_model = case.model, case.model.graph, case.model.decoder.d_model
    row = graph.mlp_writer(graph.n_layers - 1)
    masks = mask(full(case)).repeat(d_model + 1, 1, 1)
    masks[torch.arange(d_model), row, torch.arange(d_model)] = False
    values = evaluate(
        model, [Circuit.of_neurons(graph, each) for each in masks], case.batch, progress=SILENT
    ).mean(1)
    scores = NAP().score(model, case.batch, progress=SILENT).values[row].numpy()
    assert np.corrcoef(values[-1] - values[:-1], scores)[0, 1] > 0.95


def test_circuits_of_other_models_are_refused() -> None:
    case, other = subject("gpt2"), subject("neox")
    with pytest.raises(GraphMismatch, match="belongs to"):
        evaluate(case.model, drawn(other, 0.5), case.batch, progress=SILENT)
    graph = case.model.graph
    with pytest.raises(GraphMismatch, match="8 neurons a node"):
        evaluate(
            case.model,
            Circuit.of_neurons(graph, torch.ones(graph.n_writers, 8, dtype=torch.bool)),
            case.batch,
            progress=SILENT,
        )


def test_overflow_is_named() -> None:
    case = subject("gpt2")
    with torch.no_grad():
        case.model.decoder.layers[1].attention.out[0] = float("nan")
    with pytest.raises(NonFinite, match="example 0"):
        evaluate(case.model, drawn(case, 0.5), case.batch, progress=SILENT)
