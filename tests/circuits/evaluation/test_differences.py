"""Paired differences of areas: worked by hand, against resampling by hand,
and how often they are wrong.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tools.area_coverage import KEPT, RIVALS, SHAPES, family_wise_errors

import mechassay as ma
from mechassay.circuits import FaithfulnessCurve, differences_of
from mechassay.circuits.evaluation.differences import Differences, simultaneous
from mechassay.circuits.series import FRACTIONS, FaithfulnessMetric
from mechassay.errors import BadUsage
from mechassay.results.records import Spec
from mechassay.stats.intervals import FEW_GROUPS, BootstrapEstimate
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module")
def curves() -> list[FaithfulnessCurve]:
    truth = load_truth("truth-ioi-trained")
    train, test = (truth.task.pairs(split, truth.model, limit=40) for split in ("train", "test"))
    controls = ma.circuits.run_controls(truth.model, test, progress=SILENT)
    methods = (
        ma.circuits.EAP(),
        ma.circuits.CleanCorrupted(),
        ma.circuits.EAPIGInputs(steps=5),
        ma.circuits.Random(),
    )
    return [
        ma.circuits.faithfulness_curve(
            truth.model,
            method.score(truth.model, train, progress=SILENT),
            test,
            controls=controls,
            label=method.name,
            progress=SILENT,
        )
        for method in methods
    ]


def test_intervals_overlap_and_the_difference_is_resolved(curves: list[FaithfulnessCurve]) -> None:
    """The same method, but for 2 % of what ablation changes, less of it on every pair."""
    eap = curves[0]
    less = 0.02 * float((eap.controls.full - eap.controls.empty).mean())
    smaller = np.array([less] * (len(eap.fractions) - 1) + [0.0])[:, None]
    other = replace(eap, label="less", values={by: v - smaller for by, v in eap.values.items()})
    assert (
        eap.cmd_interval.low < other.cmd_interval.high
        and other.cmd_interval.low < eap.cmd_interval.high
    )
    pair = differences_of([eap, other], "cmd")
    assert pair.values[0, 1] == pytest.approx(eap.cmd - other.cmd) and pair.n_resolved == 1
    width = pair.high[0, 1] - pair.low[0, 1]
    assert width < 0.5 * (eap.cmd_interval.high - eap.cmd_interval.low)


def test_a_difference_is_resampled_as_by_hand(curves: list[FaithfulnessCurve]) -> None:
    """Every resample drawn with a loop: the mean difference of CPR and its spread."""
    a, b = curves[0], curves[2]
    rng = np.random.default_rng(1)
    draws: list[float] = []
    for _ in range(2000):
        rows = rng.integers(0, len(a.ids), len(a.ids))
        areas = []
        for curve in (a, b):
            sweep = curve.sweeps["value"]
            empty, full = curve.controls.empty[rows].mean(), curve.controls.full[rows].mean()
            f = [0.0, *((sweep.per_example[:, rows].mean(axis=1) - empty) / (full - empty))]
            sizes = [0.0, *(kept / curve.n_edges for kept in sweep.n_edges_kept), 1.0]
            area = 0.0
            for value, begin, end in zip(f, sizes, sizes[1:], strict=False):
                area += value * (max(end, 0.001) - max(begin, 0.001)) / 0.999
            areas.append(area)
        draws.append(areas[0] - areas[1])
    found = differences_of([a, b], "cpr")
    assert found.values[0, 1] == pytest.approx(a.cpr - b.cpr)
    # One pair of methods: the simultaneous interval is that of the pair alone, about two standard
    # errors either way.
    assert found.high[0, 1] - found.values[0, 1] == pytest.approx(2.0 * np.std(draws), rel=0.15)


def test_records_give_what_curves_give(curves: list[FaithfulnessCurve]) -> None:
    records = [each.record({"model": Spec(name="m"), "task": Spec(name="t")}) for each in curves]
    for area in ("cpr", "cmd"):
        ours, theirs = differences_of(curves, area), differences_of(records, area)
        assert ours.names == theirs.names == ("eap", "clean-corrupted", "eap-ig-inputs", "random")
        np.testing.assert_allclose(ours.low, theirs.low)
        np.testing.assert_array_equal(ours.better, theirs.better)


def test_a_method_that_finds_the_circuit_is_better_than_random(
    curves: list[FaithfulnessCurve],
) -> None:
    found = differences_of(curves, "cmd")
    assert bool(found.better[2, 3]) and not bool(found.better[3, 2])
    ranks = found.ranks()
    assert ranks[2] == (1, 1) and ranks[3] == (4, 4)


def test_other_examples_are_refused(curves: list[FaithfulnessCurve]) -> None:
    from dataclasses import replace

    names = tuple(f"x{name}" for name in curves[1].ids)
    other = replace(curves[1], controls=replace(curves[1].controls, ids=names))
    with pytest.raises(BadUsage, match="same examples"):
        differences_of([curves[0], other])
    with pytest.raises(BadUsage, match="at least one"):
        differences_of([])


def estimate(
    value: float, errors: np.ndarray, bias: tuple[float, float] = (0.0, 0.0)
) -> BootstrapEstimate:
    return BootstrapEstimate(value, errors, 40, bias)


def test_ranks_by_hand() -> None:
    """A is better than B and C; B and C are not told apart; D is undefined."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 2000)) * 0.01
    made = [estimate(value, noise[place]) for place, value in enumerate((0.1, 0.500, 0.501))] + [
        estimate(math.nan, noise[0])
    ]
    found = simultaneous("cmd", ("A", "B", "C", "D"), made)
    assert found.ranks() == [(1, 1), (2, 3), (2, 3), None]
    assert (found.n_resolved, found.n_pairs) == (2, 3)
    assert [(row["a"], row["b"], row["resolved"]) for row in found.rows()] == [
        ("A", "B", True),
        ("A", "C", True),
        ("A", "D", False),
        ("B", "C", False),
        ("B", "D", False),
        ("C", "D", False),
    ]
    # Higher is better of the other area.
    assert simultaneous("cpr", ("A", "B", "C", "D"), made).ranks() == [
        (3, 3),
        (1, 2),
        (1, 2),
        None,
    ]


def test_what_folding_may_have_added_is_not_resolved() -> None:
    """Of circuits that cannot be told from the model, and others that are far from it, only the
    former's CMD may be too large: one direction of their difference is bounded.
    """
    flat = np.zeros(2000)
    near = estimate(0.04, flat, (0.0, 0.03))
    assert simultaneous("cmd", ("a", "b"), [near, estimate(0.02, flat)]).n_resolved == 0
    lower = simultaneous("cmd", ("a", "b"), [near, estimate(0.06, flat)])
    assert (lower.low[0, 1], lower.high[0, 1]) == pytest.approx((-0.05, -0.02))
    assert lower.ranks() == [(1, 1), (2, 2)]


def test_few_pairs_that_agree_do_not_rank() -> None:
    """Two pairs on which each method has the same CMD: their difference has no interval."""
    made = [BootstrapEstimate(value, np.zeros(10), 2) for value in (0.1, 0.9)]
    few = simultaneous("cmd", ("a", "b"), made)
    assert few.ranks() == [(1, 2), (1, 2)] and (few.n_resolved, few.n_pairs) == (0, 1)
    assert few.values[0, 1] == pytest.approx(-0.8) and np.isnan(few.low[0, 1])
    enough = [BootstrapEstimate(value, np.zeros(10), FEW_GROUPS) for value in (0.1, 0.9)]
    assert simultaneous("cmd", ("a", "b"), enough).ranks() == [(1, 1), (2, 2)]


def test_equal_methods_without_any_spread_are_equal() -> None:
    flat = np.zeros(2000)
    found = simultaneous(
        "cmd",
        ("a", "b", "c"),
        [estimate(0.5, flat), estimate(0.5 + 1e-7, flat), estimate(0.7, flat)],
    )
    assert found.ranks() == [(1, 2), (1, 2), (3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_family_wise_error(name: str) -> None:
    """Six methods of equal worth and independent noise:
    how often any of 15 differences is called resolved.
    """
    runs = 120
    shares = family_wise_errors(RIVALS[name], 30, runs)
    # 5 % promised; three standard errors above that.
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert shares["CMD"] <= most
    assert shares["CPR"] <= most or name.startswith("evenly off")
    # Were the bias not bounded, methods whose bias differs would be called different.
    assert shares["without bounds"] > 0.05 or not name.startswith("evenly off")


@pytest.mark.slow
def test_cmd_that_differs_is_resolved() -> None:
    """CMD of 0 and .067, 100 examples: some four standard errors of the difference."""
    rng, truth, n = np.random.default_rng(0), np.array(SHAPES["rising"]), 100
    resolved = 0
    for _ in range(50):
        full, empty = 3 + rng.normal(size=n), -1 + rng.normal(size=n)
        rule = FaithfulnessMetric(
            "strict", FRACTIONS, 10_000, empty, full, tuple(map(str, range(n)))
        )
        made = [
            rule.sweep(
                "value",
                KEPT,
                KEPT,
                empty + f[:, None] * (full - empty) + 0.5 * rng.normal(size=(10, n)),
            ).cmd
            for f in (np.ones(10), truth)
        ]
        resolved += simultaneous("cmd", ("perfect", "rising"), made).n_resolved
    assert resolved >= 45


def test_without_examples_there_is_no_rank() -> None:
    made = [BootstrapEstimate(value, np.zeros(10), 1) for value in (0.1, 0.9)]
    found: Differences = simultaneous("cmd", ("a", "b"), made)
    assert found.ranks() == [None, None] and (found.n_resolved, found.n_pairs) == (0, 0)
