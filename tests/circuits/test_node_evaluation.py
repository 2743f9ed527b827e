"""Circuits of neurons: both ways of running them against hooks on the unmodified model,
circuits of edges, and both ends.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mechassay.circuits import Circuit, ablate, evaluate
from mechassay.circuits.methods.nap import NAP
from mechassay.errors import GraphMismatch, NonFinite
from mechassay.models import circuit_forward, memory
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.circuit_plan import compile_circuit
from mechassay.models.node_forward import run_shared, shared_by_all_readers
from mechassay.models.reference import ReferenceModel, exact_precision
from mechassay.models.trace import Contrast
from mechassay.progress import SILENT
from mechassay.testing.tiny import Subject, subject


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
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
def test_any_neurons_equal_the_definition(case: Subject) -> None:
    circuits = [drawn(case, 0.5), drawn(case, 0.03, seed=1), drawn_nodes(case, 0.5)]
    # Whole sublayers out, and nothing but the input.
    graph = case.model.graph
    gaps = mask(drawn(case, 0.7, seed=2))
    gaps[graph.heads(1)] = gaps[graph.mlp_writer(0)] = gaps[graph.mlp_writer(2)] = False
    circuits += [Circuit.of_neurons(graph, gaps), drawn_nodes(case, 0.0)]
    fast = evaluate(case.model, circuits, case.batch, progress=SILENT)
    for circuit, values in zip(circuits, fast, strict=True):
        np.testing.assert_allclose(values, by_hooks(case, circuit), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("both_ways")
def test_both_ends(case: Subject) -> None:
    model, graph = case.model, case.model.graph
    almost = mask(full(case))
    almost[graph.mlp_writer(0), 3] = False
    nothing = torch.zeros_like(almost)
    circuits = [
        full(case),
        Circuit.of_neurons(graph, nothing),
        Circuit(graph, graph.legal, nothing),
        Circuit.of_neurons(graph, almost),
    ]
    whole, empty, no_neurons, rest = evaluate(model, circuits, case.batch, progress=SILENT)
    ends = evaluate(model, [Circuit.full(graph), Circuit.empty(graph)], case.batch, progress=SILENT)
    np.testing.assert_array_equal(np.stack((whole, empty)), ends)
    np.testing.assert_array_equal(no_neurons, empty)
    assert not np.allclose(whole, rest) and not np.allclose(whole, empty)
    # All of one writer's neurons but none of the input's: nothing of the clean run is left.
    alone = mask(full(case))
    alone[0] = False
    np.testing.assert_array_equal(
        evaluate(model, Circuit.of_neurons(graph, alone), case.batch, progress=SILENT), empty
    )


@pytest.mark.few(4)
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", ["counterfactual", "zero", "positional-mean"])
def test_whole_nodes_equal_the_circuit_of_their_edges(case: Subject, kind: str) -> None:
    batch = ablate(case.model, case.batch, kind, progress=SILENT)
    circuits = [drawn_nodes(case, share, seed) for seed, share in enumerate((0.2, 0.5, 0.9))]
    without_input = mask(circuits[1])
    without_input[0] = False
    circuits.append(Circuit.of_neurons(case.model.graph, without_input))
    np.testing.assert_allclose(
        evaluate(case.model, circuits, batch, progress=SILENT),
        evaluate(
            case.model,
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
def test_both_ways_of_running_agree_on_some_neurons(case: Subject, kind: str) -> None:
    """Pruned circuits too, which lack the edges into nodes that lead nowhere."""
    model, graph = case.model, case.model.graph
    contrast = Contrast.run(model.decoder, ablate(model, case.batch, kind, progress=SILENT))
    circuits = [
        Circuit.of_neurons(
            graph, mask(drawn_nodes(case, nodes, seed=3)) & mask(drawn(case, neurons))
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


def test_pruning_changes_nothing(case: Subject) -> None:
    circuits = [drawn_nodes(case, 0.4), drawn(case, 0.02), drawn(case, 0.5)]
    graph, generator = case.model.graph, torch.Generator().manual_seed(5)
    circuits += [
        Circuit(
            graph,
            graph.legal & (torch.rand(graph.legal.shape, generator=generator) < 0.3),
            mask(drawn(case, 0.5)),
        )
    ]
    before, after = (
        evaluate(case.model, each, case.batch, progress=SILENT)
        for each in (circuits, [each.pruned() for each in circuits])
    )
    np.testing.assert_allclose(before, after, atol=1e-12)


def test_padding_and_chunks_do_not_change_values(
    case: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuits = [drawn(case, 0.5), drawn(case, 0.5).pruned(), drawn(case, 0.02)]
    whole = evaluate(case.model, circuits, case.batch, progress=SILENT)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    np.testing.assert_allclose(
        evaluate(case.model, circuits, case.batch, progress=SILENT), whole, atol=1e-9
    )


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
