"""Which measure ranks as the truth does: measures, scorings and cells against known answers."""

from __future__ import annotations

import numpy as np
import pytest

import mechassay as ma
from mechassay.circuits.evaluation.faithfulness import run_controls
from mechassay.circuits.methods import load_method
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from studies.which_metric import measures, study
from studies.which_metric.measures import Area, CutCircuits, Ends, Smallest

QUICK = study.Settings(
    n_train=6, n_test=12, methods={name: name for name in ("eap", "exact", "eap-ig-inputs")}
)


def circuits_of(objective: list[list[float]], **others: list[list[float]]) -> measures.Values:
    """Circuits by their objective of each pair; what is not given is 0."""
    values = np.zeros((len(objective), 4, len(objective[0])))
    values[:, measures.OBJECTIVE] = objective
    for name, rows in others.items():
        values[:, getattr(measures, name)] = rows
    return values


def two_pairs(objective: list[list[float]]) -> dict[str, np.ndarray]:
    """Quantities where m(0) = (0, 0) and m(N) = (4, 2)."""
    empty, full = circuits_of([[0, 0], [4, 2]])
    return measures.quantities(circuits_of(objective), Ends(empty, full, 3.0))


def test_quantities_by_hand() -> None:
    """Overshoot, errors that cancel, half, perfect, and empty."""
    worked = two_pairs([[8, 4], [6, 0], [2, 1], [4, 2], [0, 0]])
    expected = {
        "f": [2, 1, 0.5, 1, 0],
        "closeness": [0, 1, 0.5, 1, 0],
        "tent": [0, 1, 0.5, 1, 0],
        "clipped": [1, 1, 0.5, 1, 0],
        "agreement": [0, 1 / 3, 0.5, 1, 0],
        # Errors (2, -2) against effects (4, 2): the root of 8 / 20.
        "rms": [0, 1 - 0.4**0.5, 0.5, 1, 0],
    }
    for name, values in expected.items():
        assert worked[name] == pytest.approx(values), name


def test_tokens_by_hand() -> None:
    empty, full = circuits_of(
        [[0, 0], [4, 2]], DIVERGENCE=[[3, 1], [0, 0]], RIGHT=[[0, 0], [1, 1]], SAME=[[0, 1], [1, 1]]
    )
    half = circuits_of([[4, 0]], DIVERGENCE=[[1, 0]], RIGHT=[[1, 0]], SAME=[[1, 0]])
    worked = measures.quantities(half, Ends(empty, full, 3.0))
    assert worked["kl"] == pytest.approx([0.75])
    assert worked["accuracy"] == pytest.approx([0.5])
    assert worked["same token"] == pytest.approx([0.5])


def test_what_is_divided_by_nothing_is_undefined() -> None:
    still = circuits_of([[1, 1]])[0]
    worked = measures.quantities(circuits_of([[1, 1]]), Ends(still, still, np.nan))
    for name in ("f", "agreement", "rms", "accuracy", "kl"):
        assert np.isnan(worked[name]).all(), name


def test_areas_by_hand() -> None:
    """A = 0, .5, 1, 1 at sizes .001, .01, .1 and 1: the area is .009 * 0 + .09 * .5 + .9."""
    sizes = np.array([0.001, 0.01, 0.1, 1.0])
    circuits = CutCircuits(sizes, sizes, circuits_of([[0], [1], [2], [2]]))
    heights = {"agreement": np.array([0, 0, 0.5, 1, 1])}
    assert Area("agreement").value(circuits, heights) == pytest.approx(0.945946, abs=1e-6)
    log = Area("agreement", log=True).value(circuits, heights)
    assert log == pytest.approx((0 + 0.5 + 1) / 3)
    # From .1 on it stays at .9 or more.
    assert Smallest("agreement").value(circuits, heights) == pytest.approx(0.9)
    dips = {"agreement": np.array([0, 0.95, 0.5, 0.5, 1])}
    assert Smallest("agreement").value(circuits, dips) == 0, "only the full circuit stays"
    whole = {"agreement": np.ones(5)}
    assert Smallest("agreement").value(circuits, whole) == 1, "nothing is needed"


@pytest.mark.parametrize("objective", ["logit_diff", "prob_diff"])
@pytest.mark.parametrize("method", ["eap", "ifr", "exact-nodes", "random-paths"])
def test_areas_are_those_of_the_package(method: str, objective: str) -> None:
    truth = load_truth("truth-induction-trained")
    train, test = (
        truth.model.batch(truth.task.pairs(split, truth.model, limit=12))
        for split in ("train", "test")
    )
    scores = load_method(method).score(truth.model, train, objective, progress=SILENT)
    circuits = {(by, kind): study.cut(scores, by, kind) for by, kind in study.RANKINGS}
    values = {
        key: study.run_circuits(truth.model, series, test, objective)
        for key, series in circuits.items()
    }
    n = truth.model.graph.n_edges
    ends_run = study.run_circuits(
        truth.model, study.end_circuits(truth.model.graph), test, objective
    )
    worked = measures.all_measures(
        {
            key: CutCircuits(
                np.array(study.sizes_of(n, key[1])),
                np.array([circuit.weighted_edge_count() for circuit in series]) / n,
                values[key],
            )
            for key, series in circuits.items()
        },
        study.ends_of(ends_run, test, n, objective),
    )
    controls = run_controls(truth.model, test, objective, seeds=(0, 1), progress=SILENT)
    strict, published = (
        ma.circuits.faithfulness_curve(
            truth.model,
            scores,
            test,
            objective,
            profile=profile,
            controls=controls,
            progress=SILENT,
        )
        for profile in ("strict", "mib-2025")
    )
    package = {
        "CMA": strict.cma,
        "CMA by value": strict.sweeps["value"].cma.value,
        "CPR": strict.cpr,
        "CMD": 1 - strict.cmd,
        "f by magnitude": strict.sweeps["magnitude"].cpr.value,
        "CPR, mib-2025": published.cpr,
        "CMD, mib-2025": 0.999 - published.cmd,
    }
    if isinstance(scores, ma.circuits.EdgeScores):
        # Of nodes the package has kept sizes of whole edges.
        dense = ma.circuits.faithfulness_curve(
            truth.model,
            scores,
            test,
            objective,
            fractions=study.sizes_of(n, "dense"),
            progress=SILENT,
        )
        package["CMA, 24 sizes"] = dense.cma
    assert {name: worked[name] for name in package} == pytest.approx(package, abs=1e-9)
