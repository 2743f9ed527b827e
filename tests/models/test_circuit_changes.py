"""A circuit that is kept, against the compiled circuits of the same edges, in every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechassay.circuits import ablate
from mechassay.models.circuit_changes import CircuitChanges
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, subject
from mechassay.utils.display import SILENT

FAMILIES = ["gpt2", "neox", "llama", "gemma2", "qwen2"]
ENOUGH = 2**30


def hidden(case: Subject, batch: Batch, edges: np.ndarray) -> torch.Tensor:
    """What the unembedding reads, by a circuit compiled for these edges alone."""
    model = case.model
    plan = compile_circuit(
        model.graph, torch.from_numpy(edges), post_norm=model.decoder.has_post_norm
    ).to(model.device, model.dtype)
    return run_circuit(model.decoder, Contrast.run(model.decoder, batch), plan).hidden


@torch.no_grad()
def check(case: Subject, batch: Batch, share: float, n_bytes: int, seed: int) -> None:
    """Take in-edges from one reader after the other, from the logits down and back again."""
    model, rng = case.model, np.random.default_rng(seed)
    graph = model.graph
    edges = graph.legal.numpy() & (rng.random(graph.legal.shape) < share)
    kept = CircuitChanges(model.decoder, Contrast.run(model.decoder, batch), edges)
    down = list(range(graph.n_readers))[::-1]
    for reader in [*down, *rng.permutation(down)[:6].tolist()]:
        sets = edges[:, [reader] * 3] & (rng.random((graph.n_writers, 3)) < 0.6)
        if reader == graph.logits or rng.random() < 0.4:
            sets[:, 1] = edges[:, reader]
            for number, got in enumerate(kept.readouts(reader, sets, n_bytes)):
                other = edges.copy()
                other[:, reader] = sets[:, number]
                torch.testing.assert_close(
                    got.hidden, hidden(case, batch, other), rtol=0, atol=1e-9
                )
        if rng.random() < 0.7:
            edges[:, reader] = sets[:, 0]
            kept.keep(reader, edges[:, reader])
    (last,) = kept.readouts(graph.logits, edges[:, [graph.logits]], n_bytes)
    torch.testing.assert_close(last.hidden, hidden(case, batch, edges), rtol=0, atol=1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("share", "n_bytes"), [(0.15, ENOUGH), (0.5, 1), (1.0, ENOUGH)])
def test_any_removals_are_those_of_compiled_circuits(
    family: str, share: float, n_bytes: int
) -> None:
    case = subject(family, torch.float64)
    check(case, case.batch, share, n_bytes, seed=int(10 * share))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_constants_on_ablated_edges(family: str) -> None:
    case = subject(family, torch.float64)
    check(case, ablate(case.model, case.batch, "zero", progress=SILENT), 0.5, ENOUGH, seed=3)


@torch.no_grad()
def test_an_empty_circuit_has_nothing_to_change() -> None:
    case = subject("gpt2", torch.float64)
    edges = np.zeros(case.model.graph.legal.shape, dtype=bool)
    decoder = case.model.decoder
    kept = CircuitChanges(decoder, Contrast.run(decoder, case.batch), edges)
    for reader in (0, case.model.graph.logits):
        (got,) = kept.readouts(reader, edges[:, [reader]], ENOUGH)
        torch.testing.assert_close(got.hidden, hidden(case, case.batch, edges), rtol=0, atol=1e-12)
