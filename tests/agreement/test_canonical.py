"""The circuits of the literature, run in graphs of their models' shapes
with tiny widths and random weights, in fp64.

GPT-2's shape against the dense reference by hooks; the attention-only shape against `attn_only`,
which goes head by head from the checkpoint's tensors. Attribution and exact patching of
attention-only models against the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mechassay as ma
from helpers.attn_only import State, batch_logits
from helpers.hooks_reference import ReferenceModel, exact_precision
from helpers.tiny_models import write_attn_only
from mechassay.circuits.canonical import canonical
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.eap import EAP
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import subject, token_pairs


@dataclass(frozen=True)
class Case:
    """A model with pairs, and for an attention-only one its weights."""

    model: Model
    batch: Batch
    state: State


@pytest.fixture(scope="module")
def gpt2_shape() -> Case:
    tiny = subject("gpt2_12x12", torch.float64, n_pairs=2)
    return Case(tiny.model, tiny.batch, {})


@pytest.fixture(scope="module")
def attn_only_4l(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("attn-only-4l")
    state = write_attn_only(folder, n_layers=4, n_heads=8, d_head=4)
    return Case(ma.load_model(str(folder), dtype="float64"), token_pairs(n_pairs=2), state)


def compiled(case: Case, circuit: Circuit) -> Tensor:
    contrast = Contrast.run(case.model.decoder, case.batch)
    return run_circuit(
        case.model.decoder, contrast, compile_circuit(case.model.graph, circuit.edges)
    ).all()


def check_it_matters(case: Case, circuit: Circuit) -> None:
    """The agreement would be empty if the circuit were as good as no or all edges."""
    ours, graph = compiled(case, circuit), case.model.graph
    for other in (Circuit.empty(graph), Circuit.full(graph)):
        assert float((ours - compiled(case, other)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["ioi", "greater-than"])
def test_compiled_is_the_dense_reference_in_the_shape_of_gpt2(gpt2_shape: Case, name: str) -> None:
    model, batch = gpt2_shape.model, gpt2_shape.batch
    circuit = canonical(name, model.graph).circuit
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, model.graph)
        dense = reference.run(
            batch.clean,
            batch.mask,
            reference.record(batch.counterfactual, batch.mask),
            circuit.edges.double(),
        )
    torch.testing.assert_close(compiled(gpt2_shape, circuit), dense, rtol=0, atol=1e-9)
    check_it_matters(gpt2_shape, circuit)


def test_compiled_is_the_dense_reference_in_the_shape_of_attn_only_4l(attn_only_4l: Case) -> None:
    graph = attn_only_4l.model.graph
    generator = torch.Generator().manual_seed(0)
    docstring = canonical("docstring", graph).circuit
    random = Circuit(
        graph, (torch.rand(graph.legal.shape, generator=generator) < 0.3) & graph.legal
    )
    for circuit in (docstring, random, Circuit.full(graph), Circuit.empty(graph)):
        dense = batch_logits(attn_only_4l.state, attn_only_4l.batch, circuit.edges.double())
        torch.testing.assert_close(compiled(attn_only_4l, circuit), dense, rtol=0, atol=1e-9)
    check_it_matters(attn_only_4l, docstring)


# --- attribution on attention-only models
# ------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder: Path = tmp_path_factory.mktemp("attn-only-2l")
    state = write_attn_only(folder, n_layers=2, n_heads=2)
    return Case(ma.load_model(str(folder), dtype="float64"), token_pairs(), state)


def logit_diff(case: Case, coefficients: Tensor) -> Tensor:
    """Mean over the pairs of the answer's logit minus the foil's."""
    logits, rows = batch_logits(case.state, case.batch, coefficients), torch.arange(len(case.batch))
    return (
        logits[rows, case.batch.answers.flatten()] - logits[rows, case.batch.foils.flatten()]
    ).mean()


def test_eap_is_the_derivative_by_the_edges(small: Case) -> None:
    graph = small.model.graph
    edges = graph.legal.double().requires_grad_(True)
    (slope,) = torch.autograd.grad(logit_diff(small, edges), edges)
    scores = EAP().score(small.model, small.batch)
    torch.testing.assert_close(
        scores.values[graph.legal], slope[graph.legal].float(), rtol=1e-5, atol=1e-6
    )
    # Where the prompts agree at the last position, what is read there alone has no effect.
    assert float((slope[graph.legal] != 0).float().mean()) > 0.8


def test_exact_patching_leaves_out_one_edge_after_another(small: Case) -> None:
    graph = small.model.graph
    scores = ExactPatching().score(small.model, small.batch)
    whole = logit_diff(small, graph.legal.double())
    for writer, reader in graph.legal.nonzero().tolist():
        without = graph.legal.double()
        without[writer, reader] = 0
        wanted = float(whole - logit_diff(small, without))
        assert float(scores.values[writer, reader]) == pytest.approx(wanted, rel=1e-5, abs=1e-6)
