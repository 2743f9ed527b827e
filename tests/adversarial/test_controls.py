"""Controls pass where the engine is right and fail where it is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mechassay.adversarial.controls import (
    ControlCircuits,
    control_seed,
    first_part,
    random_circuit,
    random_paths,
    run_controls,
)
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.circuits.circuit import Circuit
from mechassay.models.graph import Graph
from mechassay.stats.bounds import PartialGrid
from mechassay.truth.ground_truth import Truth
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module")
def pools(truth: Truth) -> tuple[Pool, Pool]:
    return draw_pools(truth.model, truth.task, 10, 8)


@pytest.fixture(scope="module")
def corrupted(truth: Truth, pools: tuple[Pool, Pool]) -> np.ndarray:
    return evaluate_pairs(
        truth.model, [Circuit.empty(truth.model.graph)], *pools, progress=SILENT
    ).corrupted


def test_they_pass(truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray) -> None:
    circuits = [random_circuit(truth.model.graph, size, 7) for size in (50, 200)]
    live = [len(circuit.pruned()) for circuit in circuits]
    found = run_controls(truth.model, circuits, *pools, corrupted, side=5, progress=SILENT)
    assert found.passed and [check.name for check in found.checks] == ["full", "empty"]
    assert all(check.n == 25 and check.largest < 1e-4 for check in found.checks)
    assert {size: values.shape for size, values in found.random.items()} == {
        50: (5, 5),
        200: (5, 5),
    }
    # As many live edges as the circuits have, not as many edges.
    assert list(found.paths) == sorted(set(live)) and all(
        values.shape == (5, 5) for values in found.paths.values()
    )


def test_a_wrong_main_run_is_found(
    truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray
) -> None:
    """As when rows and columns of the main run were mixed up, or another model had been run."""
    rolled = np.roll(corrupted, 1, axis=1)
    found = run_controls(truth.model, [], *pools, rolled, progress=SILENT)
    assert not found.passed
    assert [check.passed for check in found.checks] == [True, False]
    assert found.checks[1].n_wrong == int((np.abs(rolled - corrupted) > 0.02).sum()) > 0


def test_a_wrong_circuit_forward_is_found(
    truth: Truth, pools: tuple[Pool, Pool], corrupted: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the published code, where no edge of a circuit was among those that were kept:
    all circuits are the empty one.
    """
    from mechassay.adversarial import evaluation

    runner = evaluation.circuit_runner
    monkeypatch.setattr(
        evaluation,
        "circuit_runner",
        lambda decoder, graph, edges, neurons: runner(decoder, graph, edges & False),
    )
    found = run_controls(truth.model, [], *pools, corrupted, progress=SILENT)
    assert [check.passed for check in found.checks] == [False, True]


def test_pairs_are_controlled_too(truth: Truth) -> None:
    pools = draw_pools(truth.model, truth.task, 12, 12, matched=True)
    main = evaluate_pairs(
        truth.model, [Circuit.empty(truth.model.graph)], *pools, grid=False, progress=SILENT
    ).corrupted
    found = run_controls(
        truth.model, [random_paths(truth.model.graph, 30, 0)], *pools, main, side=3, progress=SILENT
    )
    assert found.passed and found.random[30].shape == (9,) and found.paths[30].shape == (9,)


def test_random_circuits_have_the_size_and_the_seed(truth: Truth) -> None:
    graph = truth.model.graph
    one, again, other = (
        random_circuit(graph, 40, 0),
        random_circuit(graph, 40, 0),
        random_circuit(graph, 40, 1),
    )
    assert len(one) == len(other) == 40 and one == again and one != other
    assert random_circuit(graph, graph.n_edges, 3) == Circuit.full(graph)


@pytest.mark.parametrize("draw", [random_circuit, random_paths])
def test_a_random_circuit_is_not_its_own_control(
    truth: Truth,
    pools: tuple[Pool, Pool],
    corrupted: np.ndarray,
    draw: Callable[[Graph, int, int], Circuit],
) -> None:
    graph, size, seed = truth.model.graph, 200, 3
    own = draw(graph, size, seed)
    drawn = ControlCircuits.of([own], graph, seed)
    control = drawn.random[size] if draw is random_circuit else drawn.paths[size]
    assert (
        control == draw(graph, size, control_seed(seed)) and len(control) == size and control != own
    )
    assert len({control_seed(each) for each in range(-2, 5)} - set(range(-2, 5))) == 7
    if draw is random_circuit:
        # As many edges in common as two independent draws have: a share of size / n_edges, give or
        # take four standard errors.
        common, expected = int((own.edges & control.edges).sum()), size**2 / graph.n_edges
        assert abs(common - expected) < 4 * np.sqrt(expected)
    found = run_controls(truth.model, [own], *pools, corrupted, seed=seed, side=5, progress=SILENT)
    part = [pool.select(range(5)) for pool in pools]
    wanted = evaluate_pairs(truth.model, [control], *part, progress=SILENT).circuits[0]
    assert np.allclose(
        (found.random if draw is random_circuit else found.paths)[size], wanted, atol=1e-4
    )


def test_random_paths_are_live_where_random_edges_are_not(truth: Truth) -> None:
    """What a sparse circuit is compared with:
    uniformly drawn edges are the empty circuit, paths are not.
    """
    graph = truth.model.graph
    own = random_paths(graph, 12, 1)
    drawn = ControlCircuits.of([own], graph, 0)
    assert (
        len(drawn.random[12].pruned()) == 0
        and len(drawn.paths[12]) == len(drawn.paths[12].pruned()) == 12
    )
    # A circuit whose edges are on no path is compared with no path.
    dead = random_circuit(graph, 12, 0)
    assert len(dead.pruned()) == 0 and list(ControlCircuits.of([dead], graph, 0).paths) == [0]


def test_the_first_part_has_pairs() -> None:
    part = PartialGrid.of("xaab", "bxxxa")
    rows, columns = first_part(part, part.shape, 2)
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 2]
    assert [axis.tolist() for axis in first_part(None, (3, 5), 4)] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [axis.tolist() for axis in first_part(None, (30,), 4)] == [list(range(16))]
