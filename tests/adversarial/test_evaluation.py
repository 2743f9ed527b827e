"""The grid of divergences: against `evaluate(..., "kl")` pair by pair,
its controls, and experiments that are killed anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechassay as ma
from helpers.adversarial import LENGTH, N_CLEAN, N_CORRUPTED, circuits, pool, pools
from helpers.models import families
from helpers.tiny_models import write_attn_only
from mechassay.adversarial import evaluation as batching
from mechassay.adversarial import evaluation as prefixes
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits.canonical import canonical
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.errors import (
    BadUsage,
    GraphMismatch,
)
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clean prompts a block, one of them at once if all columns are run,
    and two corrupted ones: several blocks, the last not full.
    """
    monkeypatch.setattr(batching, "BLOCK_TOKENS", 2 * LENGTH + 1)
    monkeypatch.setattr(batching, "RUN_TOKENS", LENGTH)
    monkeypatch.setattr(batching, "REFERENCES", 2)


def unrounded(
    model: Model, chosen: list[Circuit], clean: Pool, corrupted: Pool, *, grid: bool = True
) -> np.ndarray:
    """All values as they are before they are stored in fp32:
    row 0 of the corrupted run, then one for each circuit.
    """
    runs = [circuit_runner(model.decoder, model.graph, each.edges, each.neurons) for each in chosen]
    work = batching.Schedule(model, runs, clean.tokens, corrupted.tokens)
    values = np.full((len(chosen) + 1, len(clean), *([len(corrupted)] if grid else [])), np.nan)
    with torch.no_grad():
        for block in work.grid_blocks() if grid else work.pair_blocks():
            block.fill(values, lambda done: None)
    return values


def one_by_one(model: Model, chosen: list[Circuit], clean: Pool, corrupted: Pool) -> np.ndarray:
    """The objective `kl` of every combination, as ordinary pairs."""
    n, m = len(clean), len(corrupted)
    batch = Batch.from_tokens(
        clean.tokens.repeat_interleave(m, 0),
        corrupted.tokens.repeat(n, 1),
        [0] * n * m,
        [1] * n * m,
    )
    return np.asarray(evaluate(model, chosen, batch, "kl", progress=SILENT)).reshape(
        len(chosen), n, m
    )


@dataclass(frozen=True)
class Case:
    """A family's grid: the corrupted run, four circuits, the empty and the full one."""

    model: Model
    circuits: list[Circuit]
    clean: Pool
    corrupted: Pool
    grid: np.ndarray


@pytest.fixture(params=families(), scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    model = subject(request.param, torch.float64).model
    chosen, (clean, corrupted) = (
        [*circuits(model), Circuit.empty(model.graph), Circuit.full(model.graph)],
        pools(),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batching, "BLOCK_TOKENS", 2 * LENGTH + 1)
        patched.setattr(batching, "RUN_TOKENS", LENGTH)
        patched.setattr(batching, "REFERENCES", 2)
        return Case(model, chosen, clean, corrupted, unrounded(model, chosen, clean, corrupted))


@pytest.mark.slow
def test_every_pair_is_the_ordinary_kl_of_that_pair(case: Case) -> None:
    slow = one_by_one(case.model, case.circuits, case.clean, case.corrupted)
    np.testing.assert_allclose(case.grid[1:], slow, rtol=0, atol=1e-9)
    # The agreement would be empty if circuits or pairs made no difference.
    first = slow[:-1, 0, :-1]
    assert (
        np.abs(first[:, None] - first[None])[~np.eye(len(first), dtype=bool)].max(axis=-1).min()
        > 1e-4
    )
    assert slow[:-1, :-1].min() > 1e-6


def test_controls(case: Case) -> None:
    *_, empty, full = case.grid
    np.testing.assert_allclose(empty, case.grid[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(full, 0, rtol=0, atol=1e-9)
    # The last prompt of both pools is the same.
    np.testing.assert_allclose(case.grid[:, -1, -1], 0, rtol=0, atol=1e-9)
    assert empty[:-1].min() > 1e-2


def test_pairs_are_the_diagonal_of_the_grid(case: Case) -> None:
    pairs = unrounded(
        case.model, case.circuits, case.clean.select(range(N_CORRUPTED)), case.corrupted, grid=False
    )
    np.testing.assert_allclose(
        pairs, case.grid[:, range(N_CORRUPTED), range(N_CORRUPTED)], rtol=0, atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
def test_prompts_that_begin_alike_share_their_beginnings(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = subject(family, torch.float64).model
    clean, corrupted = pools(9, 4)
    clean.tokens[:, 2] = clean.tokens[torch.arange(9) % 2, 2]
    clean.tokens[:, 3:5] = clean.tokens[torch.arange(9) % 4, 3:5]
    corrupted.tokens[1:3, 2:4] = corrupted.tokens[1, 2:4]
    clean.tokens[-1] = corrupted.tokens[-1]
    chosen = [*circuits(model), Circuit.full(model.graph)]
    monkeypatch.setattr(batching, "BLOCK_TOKENS", 9 * LENGTH)
    monkeypatch.setattr(batching, "STAGE_TOKENS", 0)
    monkeypatch.setattr(batching, "REFERENCES", 4)
    run: list[tuple[int, int]] = []
    right = prefixes.Stage.contrast

    def counted(self: prefixes.Stage, *args: Any) -> object:
        run.append((self.stop, len(self.batch)))
        return right(self, *args)

    monkeypatch.setattr(prefixes.Stage, "contrast", counted)
    together = unrounded(model, chosen, clean, corrupted)
    # Two words and then four, and those of the last prompt. Two of the four corrupted prompts begin
    # alike.
    assert run == [(3, 3), (5, 5)] * 3
    np.testing.assert_allclose(
        together[1:], one_by_one(model, chosen, clean, corrupted), rtol=0, atol=1e-9
    )
    monkeypatch.setattr(batching, "STAGE_TOKENS", 10**6)
    run.clear()
    np.testing.assert_allclose(
        together, unrounded(model, chosen, clean, corrupted), rtol=0, atol=1e-12
    )
    assert not run


@pytest.mark.parametrize("name", ["ioi", "greater-than"])
def test_circuits_of_the_literature_in_the_shape_of_gpt2(name: str) -> None:
    model = subject("gpt2_12x12", torch.float64).model
    check_canonical(model, name)


def test_the_docstring_circuit_in_the_shape_of_attn_only_4l(tmp_path: Path) -> None:
    write_attn_only(tmp_path, n_layers=4, n_heads=8, d_head=4)
    check_canonical(ma.load_model(str(tmp_path), dtype="float64"), "docstring")


def check_canonical(model: Model, name: str) -> None:
    clean, corrupted = pools(4, 3)
    chosen = [canonical(name, model.graph).circuit]
    slow, fast = (
        one_by_one(model, chosen, clean, corrupted),
        unrounded(model, chosen, clean, corrupted),
    )
    np.testing.assert_allclose(fast[1:], slow, rtol=0, atol=1e-9)
    assert slow[0, :3].min() > 1e-4 and np.abs(fast[0] - fast[1])[:3].max() > 1e-3


@pytest.mark.parametrize("tokens", [1, 1000])
def test_the_same_in_blocks_of_any_size(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject("gpt2", torch.float64).model
    chosen = circuits(model)[1:3]
    wanted = unrounded(model, chosen, *pools())
    monkeypatch.setattr(batching, "BLOCK_TOKENS", tokens)
    monkeypatch.setattr(batching, "RUN_TOKENS", tokens)
    monkeypatch.setattr(batching, "REFERENCES", 32 if tokens == 1000 else 1)
    np.testing.assert_allclose(unrounded(model, chosen, *pools()), wanted, rtol=0, atol=1e-9)


def test_prompts_in_another_order_give_the_same_values() -> None:
    model, (clean, corrupted) = subject("gemma2", torch.float64).model, pools()
    rows, columns = [4, 0, 3, 1, 2], [2, 0, 1]
    wanted = unrounded(model, circuits(model)[1:3], clean, corrupted)[:, rows][:, :, columns]
    moved = unrounded(model, circuits(model)[1:3], clean.select(rows), corrupted.select(columns))
    np.testing.assert_allclose(moved, wanted, rtol=0, atol=1e-9)


def test_where_prompts_part() -> None:
    clean = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 4]])
    corrupted = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [7, 2, 3, 4]])
    assert batching.first_differences(clean, corrupted) == [2, 2, 0]
    assert batching.first_differences(clean[:1], corrupted) == [3, 3, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_fewer_digits(dtype: torch.dtype) -> None:
    clean, corrupted = pools()
    exact = unrounded(subject("gpt2", torch.float64).model, [], clean, corrupted)
    model = subject("gpt2", dtype).model
    found = evaluate_pairs(
        model, [*circuits(model), Circuit.full(model.graph)], clean, corrupted, progress=SILENT
    )
    assert found.circuits.dtype == found.corrupted.dtype == np.float32
    assert found.circuits.shape == (5, N_CLEAN, N_CORRUPTED)
    near = 1e-4 if dtype == torch.float32 else 0.3
    np.testing.assert_allclose(found.corrupted, exact[0], atol=near, rtol=near)
    np.testing.assert_allclose(found.circuits[-1], 0, atol=1e-5)
    np.testing.assert_allclose(
        found.circuits[:-1],
        one_by_one(model, circuits(model), clean, corrupted),
        atol=near,
        rtol=near,
    )


# --- stores
# -------------------------------------------------------------------------------------------


# --- what is refused
# ----------------------------------------------------------------------------------


def test_foreign_circuits_and_unequal_pools() -> None:
    model, (clean, corrupted) = subject("gpt2").model, pools()
    other = subject("gpt2_12x12").model.graph
    with pytest.raises(GraphMismatch, match="A circuit belongs to"):
        evaluate_pairs(model, [Circuit.full(other)], clean, corrupted, progress=SILENT)
    wide = Circuit.of_neurons(model.graph, torch.ones(model.graph.n_writers, 7, dtype=torch.bool))
    with pytest.raises(GraphMismatch, match="7 neurons a node; the model has 32"):
        evaluate_pairs(model, [wide], clean, corrupted, progress=SILENT)
    with pytest.raises(BadUsage, match="got 6 and 4 tokens"):
        evaluate_pairs(model, [], clean, pool(corrupted.tokens[:, 2:]), progress=SILENT)
    with pytest.raises(BadUsage, match="got 5 clean and 3 corrupted prompts"):
        evaluate_pairs(model, [], clean, corrupted, grid=False, progress=SILENT)
