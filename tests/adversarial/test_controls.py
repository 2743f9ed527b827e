"""Controls pass where the engine is right and fail where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.adversarial.controls import control_circuit, random_circuit, run_controls
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.circuits.scores import Circuit
from mechassay.progress import SILENT
from mechassay.truth.models import Truth, load_truth


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth("truth-ioi")


@pytest.fixture(scope="module")
def pools(truth: Truth) -> tuple[Pool, Pool]:
    return draw_pools(truth.task, truth.model, 10, 8)


@pytest.fixture(scope="module")
def corrupted(truth: Truth, pools: tuple[Pool, Pool]) -> np.ndarray:
    return evaluate_pairs(truth.model, [Circuit.empty(truth.model.graph)], *pools, progress=SILENT).corrupted


def test_they_pass(truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray) -> None:
    found = run_controls(truth.model, [50, 200], *pools, corrupted, side=5, progress=SILENT)
    assert found.passed and [check.name for check in found.checks] == ["full", "empty"]
    assert all(check.n == 25 and check.largest < 1e-4 for check in found.checks)
    assert {size: values.shape for size, values in found.random.items()} == {50: (5, 5), 200: (5, 5)}


def test_a_wrong_main_run_is_found(truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray) -> None:
    """As when rows and columns of the main run were mixed up, or another model had been run."""
    rolled = np.roll(corrupted, 1, axis=1)
    found = run_controls(truth.model, [], *pools, rolled, progress=SILENT)
    assert not found.passed
    assert [check.passed for check in found.checks] == [True, False]
    assert found.checks[1].n_wrong == int((np.abs(rolled - corrupted) > 0.02).sum()) > 0


def test_a_wrong_circuit_forward_is_found(
    truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the published code, where no edge of a circuit was among those that were kept: all circuits are the empty one."""
    from mechassay.adversarial import evaluation

    runner = evaluation.circuit_runner
    monkeypatch.setattr(evaluation, "circuit_runner", lambda decoder, graph, edges, neurons: runner(decoder, graph, edges & False))
    found = run_controls(truth.model, [], *pools, corrupted, progress=SILENT)
    assert [check.passed for check in found.checks] == [False, True]


def test_pairs_are_controlled_too(truth: Truth) -> None:
    pools = draw_pools(truth.task, truth.model, 12, 12, matched=True)
    main = evaluate_pairs(truth.model, [Circuit.empty(truth.model.graph)], *pools, grid=False, progress=SILENT).corrupted
    found = run_controls(truth.model, [30], *pools, main, side=3, progress=SILENT)
    assert found.passed and found.random[30].shape == (9,)


def test_random_circuits_have_the_size_and_the_seed(truth: Truth) -> None:
    graph = truth.model.graph
    one, again, other = random_circuit(graph, 40, 0), random_circuit(graph, 40, 0), random_circuit(graph, 40, 1)
    assert len(one) == len(other) == 40 and one == again and one != other
    assert random_circuit(graph, graph.n_edges, 3) == Circuit.full(graph)


def test_a_random_circuit_is_not_its_own_control(truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray) -> None:
    graph, size, seed = truth.model.graph, 200, 3
    own, control = random_circuit(graph, size, seed), control_circuit(graph, size, seed)
    assert control == control_circuit(graph, size, seed) and len(control) == size
    assert len({frozenset(control_circuit(graph, size, each).edges.flatten().nonzero()[:, 0].tolist()) for each in range(-2, 5)}) == 7
    # As many edges in common as two independent draws have: a share of size / n_edges, give or take four standard errors.
    common, expected = int((own.edges & control.edges).sum()), size**2 / graph.n_edges
    assert abs(common - expected) < 4 * np.sqrt(expected)
    found = run_controls(truth.model, [size], *pools, corrupted, seed=seed, side=5, progress=SILENT)
    wanted = evaluate_pairs(truth.model, [own, control], pools[0].select(range(5)), pools[1].select(range(5)), progress=SILENT).circuits
    assert np.allclose(found.random[size], wanted[1], atol=1e-4) and not np.allclose(found.random[size], wanted[0], atol=1e-4)
