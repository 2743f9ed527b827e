"""Circuits of neurons: against hooks on the unmodified model, circuits of edges, and both ends."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mechassay.circuits import Circuit, ablate, evaluate
from mechassay.circuits.methods.nap import NAP
from mechassay.circuits.node_evaluation import evaluate_neurons
from mechassay.circuits.node_scores import NodeSelection
from mechassay.errors import GraphMismatch, NonFinite
from mechassay.models import memory
from mechassay.models.reference import ReferenceModel, exact_precision
from mechassay.progress import SILENT
from tiny import Subject, subject


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def drawn(case: Subject, share: float, seed: int = 0) -> NodeSelection:
    """Random neurons, some of every node."""
    generator = torch.Generator().manual_seed(seed)
    graph = case.model.graph
    return NodeSelection(graph, torch.rand(graph.n_writers, case.model.decoder.d_model, generator=generator) < share)


def drawn_nodes(case: Subject, share: float, seed: int = 0) -> NodeSelection:
    """Random whole nodes, the input among them."""
    graph = case.model.graph
    nodes = torch.rand(graph.n_writers, generator=torch.Generator().manual_seed(seed)) < share
    nodes[0] = True
    return NodeSelection.of_nodes(graph, nodes, case.model.decoder.d_model)


def by_hooks(case: Subject, selection: NodeSelection) -> np.ndarray:
    """The original model with every writer's output replaced by a' + n (a - a'), where it is written."""
    model, batch, graph = case.model, case.batch, case.model.graph
    keep = selection.neurons.double()
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
                # Each head alone through W_O: the class's forward, so that this hook does not run again.
                forward, z = type(module).forward, args[0]
                total, width = other.attended[layer], z.shape[-1] // graph.n_heads
                for head in range(graph.n_heads):
                    part = torch.zeros_like(z)
                    part[..., head * width : (head + 1) * width] = z[..., head * width : (head + 1) * width]
                    row = graph.head(layer, head)
                    total = total + keep[row] * (forward(module, part) - forward(module, torch.zeros_like(z)) - other.writers[row])
                return total

            stack.callback(module.register_forward_hook(hook).remove)

        masked(model.hf.get_submodule(layout.embed), 0)
        for layer in range(graph.n_layers):
            masked_heads(layer)
            masked(reference.blocks[layer].get_submodule(layout.post_mlp or layout.mlp), graph.mlp_writer(layer))
        position_ids = (batch.mask.long().cumsum(1) - 1).clamp(min=0)
        logits = model.hf(batch.clean, attention_mask=batch.mask.long(), position_ids=position_ids, use_cache=False).logits[:, -1]
    return (logits.gather(1, batch.answers) - logits.gather(1, batch.foils))[:, 0].numpy()


def test_any_neurons_equal_the_definition(case: Subject) -> None:
    selections = [drawn(case, 0.5), drawn(case, 0.03, seed=1), drawn_nodes(case, 0.5)]
    # Whole sublayers out, and nothing but the input.
    graph = case.model.graph
    gaps = drawn(case, 0.7, seed=2).neurons
    gaps[graph.heads(1)] = gaps[graph.mlp_writer(0)] = gaps[graph.mlp_writer(2)] = False
    selections += [NodeSelection(graph, gaps), drawn_nodes(case, 0.0)]
    fast = evaluate_neurons(case.model, selections, case.batch, progress=SILENT)
    for selection, values in zip(selections, fast, strict=True):
        np.testing.assert_allclose(values, by_hooks(case, selection), rtol=1e-9, atol=1e-9)


def test_both_ends(case: Subject) -> None:
    model, graph, d_model = case.model, case.model.graph, case.model.decoder.d_model
    almost = NodeSelection.full(graph, d_model).neurons
    almost[graph.mlp_writer(0), 3] = False
    selections = [NodeSelection.full(graph, d_model), NodeSelection.empty(graph, d_model), NodeSelection(graph, almost)]
    full, empty, rest = evaluate_neurons(model, selections, case.batch, progress=SILENT)
    ends = evaluate(model, [Circuit.full(graph), Circuit.empty(graph)], case.batch, progress=SILENT)
    np.testing.assert_array_equal(np.stack((full, empty)), ends)
    assert not np.allclose(full, rest) and not np.allclose(full, empty)
    # All of one writer's neurons but none of the input's: nothing of the clean run is left.
    alone = NodeSelection.full(graph, d_model).neurons
    alone[0] = False
    np.testing.assert_array_equal(evaluate_neurons(model, NodeSelection(graph, alone), case.batch, progress=SILENT), empty)


@pytest.mark.parametrize("kind", ["counterfactual", "zero", "positional-mean"])
def test_whole_nodes_equal_the_circuit_of_their_edges(case: Subject, kind: str) -> None:
    batch = ablate(case.model, case.batch, kind, progress=SILENT)
    selections = [drawn_nodes(case, share, seed) for seed, share in enumerate((0.2, 0.5, 0.9))]
    without_input = selections[1].neurons.clone()
    without_input[0] = False
    selections.append(NodeSelection(case.model.graph, without_input))
    np.testing.assert_allclose(
        evaluate_neurons(case.model, selections, batch, progress=SILENT),
        evaluate(case.model, [each.edges for each in selections], batch, progress=SILENT),
        rtol=1e-9,
        atol=1e-9,
    )


def test_attention_only_models() -> None:
    case = subject("neox", torch.float64)
    decoder = replace(case.model.decoder, layers=tuple(replace(layer, mlp=None) for layer in case.model.decoder.layers))
    bare = Subject(replace(case.model, decoder=decoder, graph=replace(case.model.graph, mlp=False)), case.batch)
    selection = drawn_nodes(bare, 0.5)
    expected = evaluate(bare.model, selection.edges, bare.batch, progress=SILENT)
    np.testing.assert_allclose(evaluate_neurons(bare.model, selection, bare.batch, progress=SILENT), expected, rtol=1e-9, atol=1e-9)


def test_pruning_the_edges_changes_nothing(case: Subject) -> None:
    circuit = drawn_nodes(case, 0.4).edges
    both = evaluate(case.model, [circuit, circuit.pruned()], case.batch, progress=SILENT)
    np.testing.assert_allclose(both[0], both[1], atol=1e-12)


def test_padding_and_chunks_do_not_change_values(case: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = drawn(case, 0.5)
    whole = evaluate_neurons(case.model, selection, case.batch, progress=SILENT)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    np.testing.assert_allclose(evaluate_neurons(case.model, selection, case.batch, progress=SILENT), whole, atol=1e-9)


def test_scores_predict_what_leaving_one_neuron_out_does() -> None:
    """The last MLP is read by the logits alone, where only the final norm is not linear."""
    case = subject("gpt2", torch.float64)
    model, graph, d_model = case.model, case.model.graph, case.model.decoder.d_model
    row = graph.mlp_writer(graph.n_layers - 1)
    masks = NodeSelection.full(graph, d_model).neurons.repeat(d_model + 1, 1, 1)
    masks[torch.arange(d_model), row, torch.arange(d_model)] = False
    values = evaluate_neurons(model, [NodeSelection(graph, mask) for mask in masks], case.batch, progress=SILENT).mean(1)
    scores = NAP().score(model, case.batch, progress=SILENT).values[row].numpy()
    assert np.corrcoef(values[-1] - values[:-1], scores)[0, 1] > 0.95


def test_selections_of_other_models_are_refused() -> None:
    case, other = subject("gpt2"), subject("neox")
    with pytest.raises(GraphMismatch, match="belongs to"):
        evaluate_neurons(case.model, drawn(other, 0.5), case.batch, progress=SILENT)
    with pytest.raises(GraphMismatch, match="8 neurons a node"):
        evaluate_neurons(case.model, NodeSelection.full(case.model.graph, 8), case.batch, progress=SILENT)


def test_overflow_is_named() -> None:
    case = subject("gpt2")
    with torch.no_grad():
        case.model.decoder.layers[1].attention.out[0] = float("nan")
    with pytest.raises(NonFinite, match="example 0"):
        evaluate_neurons(case.model, drawn(case, 0.5), case.batch, progress=SILENT)
