"""The worst pairs: which they are, and that running one alone finds a wrong stored value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.worst import WorstCase, cases_at, disagreements, largest
from mechassay.circuits.ablation import ablate, ablated_values
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadUsage
from mechassay.models.constants import Constants
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import SILENT
from mechassay.truth.models import Truth


@pytest.fixture(scope="module")
def pools(truth: Truth) -> tuple[Pool, Pool]:
    return draw_pools(truth.task, truth.model, 9, 7)


@pytest.fixture(scope="module")
def circuit(truth: Truth) -> Circuit:
    return Random(seed=1).draw(truth.model.graph).top(0.5)


@pytest.fixture(scope="module")
def grid(truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool]) -> np.ndarray:
    return evaluate_pairs(truth.model, [circuit], *pools, progress=SILENT).circuits[0]


def worst_cases(
    model: Model,
    circuit: Circuit,
    clean: Pool,
    corrupted: Pool,
    values: np.ndarray,
    k: int,
    ablated: Constants | None = None,
) -> tuple[WorstCase, ...]:
    places = largest(values.reshape(-1), k)
    return cases_at(model, circuit, clean, corrupted, values, places, ablated=ablated)


def test_the_largest_come_first_and_ties_by_place() -> None:
    values = np.array([2.0, 5.0, 1.0, 5.0, 2.0, math.nan, 2.0])
    assert largest(values, 5).tolist() == [1, 3, 0, 4, 6]
    assert largest(values, 4).tolist() == [1, 3, 0, 4]
    # NaN is no value: a pair that was not run is never among the worst.
    assert largest(values, 99).tolist() == [1, 3, 0, 4, 6, 2]
    assert largest(values, 0).tolist() == []
    with pytest.raises(BadUsage, match="0 or more; got -1"):
        largest(values, -1)


def test_the_largest_are_those_of_a_sort() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 50, size=2000).astype(np.float32)
    slow = sorted(range(len(values)), key=lambda place: (-values[place], place))
    for k in (1, 17, 400):
        assert largest(values, k).tolist() == slow[:k]


def test_each_is_run_again_and_agrees(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    cases = worst_cases(truth.model, circuit, *pools, grid, 5)
    assert len(cases) == 5 and not disagreements(cases)
    assert (
        cases[0].value == grid.max() > 1 and grid[cases[0].clean, cases[0].corrupted] == grid.max()
    )
    assert [case.value for case in cases] == sorted(grid.reshape(-1), reverse=True)[:5]
    for case in cases:
        assert case.again == pytest.approx(case.value, abs=1e-4)


def test_the_tokens_are_those_of_the_model_and_of_the_circuit(
    truth: Truth, pools: tuple[Pool, Pool]
) -> None:
    """The empty circuit is the model on the corrupted prompt:
    its tokens are that run's, by the original model.
    """
    model, (clean, corrupted) = truth.model, pools
    values = evaluate_pairs(
        model, [Circuit.empty(model.graph)], clean, corrupted, progress=SILENT
    ).circuits[0]
    for case in worst_cases(model, Circuit.empty(model.graph), clean, corrupted, values, 3):
        for tokens, row, found in (
            (clean.tokens, case.clean, case.model),
            (corrupted.tokens, case.corrupted, case.circuit),
        ):
            logits = model.hf(tokens[row][None]).logits[0, -1]
            best = logits.topk(3)
            assert [token.logit for token in found] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert found[0].text == model.tokenizer.decode([int(best.indices[0])])  # pyright: ignore[reportOptionalMemberAccess]


def test_a_wrong_stored_value_is_found(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    spoiled = grid.copy()
    spoiled[3, 2] = grid.max() + 0.1
    wrong = disagreements(worst_cases(truth.model, circuit, *pools, spoiled, 2))
    assert [(case.clean, case.corrupted) for case in wrong] == [(3, 2)]
    assert wrong[0].again == pytest.approx(float(grid[3, 2]), abs=1e-4)


def test_pairs_are_run_with_their_own_prompt(truth: Truth, circuit: Circuit) -> None:
    clean, corrupted = draw_pools(truth.task, truth.model, 8, 8, matched=True)
    values = evaluate_pairs(
        truth.model, [circuit], clean, corrupted, grid=False, progress=SILENT
    ).circuits[0]
    cases = worst_cases(truth.model, circuit, clean, corrupted, values, 8)
    assert not disagreements(cases) and all(case.clean == case.corrupted for case in cases)


def test_constants_take_the_place_of_the_corrupted_prompt(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool]
) -> None:
    model, clean = truth.model, pools[0]
    batch = Batch.from_tokens(clean.tokens, clean.tokens, [0] * len(clean), [1] * len(clean))
    constants: Constants = ablated_values(model, batch, "mean", progress=SILENT)
    values = evaluate(model, circuit, ablate(model, batch, constants), "kl", progress=SILENT)
    cases = worst_cases(model, circuit, clean, clean, values, 3, ablated=constants)
    assert not disagreements(cases) and cases[0].value == values.max()


def test_values_of_other_pools_are_refused(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    with pytest.raises(
        BadUsage, match=r"9 clean and 7 corrupted prompts cannot have the shape \(9, 6\)"
    ):
        worst_cases(truth.model, circuit, *pools, grid[:, :6], 1)
    with pytest.raises(BadUsage, match="cannot have the shape"):
        worst_cases(truth.model, circuit, *pools, grid[:, 0], 1)
