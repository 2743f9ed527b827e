"""Paired differences of areas: worked by hand, against resampling by hand,
and how often they are wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import mechassay as ma
from mechassay.circuits import FaithfulnessCurve, differences_of
from mechassay.circuits.evaluation.differences import AreaName, Differences, _simultaneous
from mechassay.circuits.series import FRACTIONS, AreaRule
from mechassay.errors import BadUsage
from mechassay.results.records import Spec
from mechassay.stats.intervals import BootstrapEstimate
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT

KEPT = tuple(int(10_000 * p) for p in FRACTIONS)


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


@pytest.mark.slow
def test_intervals_overlap_and_the_difference_is_resolved(curves: list[FaithfulnessCurve]) -> None:
    """EAP and the clean-corrupted gradient are one method on most examples,
    and differ a little on the rest.
    """
    eap, other = curves[:2]
    assert (
        eap.cmd_interval.low < other.cmd_interval.high
        and other.cmd_interval.low < eap.cmd_interval.high
    )
    found = differences_of(curves[:2], "cmd")
    assert found.values[0, 1] == pytest.approx(eap.cmd - other.cmd)
    width = found.high[0, 1] - found.low[0, 1]
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
            sizes = [0.0, *(kept / curve.n_edges for kept in sweep.kept), 1.0]
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
    records = [
        each.record(model=Spec(name="m"), task=Spec(name="t"), method=Spec(name=each.label))
        for each in curves
    ]
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

    with pytest.raises(BadUsage, match="same examples"):
        differences_of(
            [curves[0], replace(curves[1], ids=tuple(f"x{name}" for name in curves[1].ids))]
        )
    with pytest.raises(BadUsage, match="at least one"):
        differences_of([])


def estimate(
    value: float, errors: np.ndarray, folded: np.ndarray | None = None
) -> BootstrapEstimate:
    return BootstrapEstimate(value, errors, np.zeros_like(errors) if folded is None else folded, 40)


def test_ranks_by_hand() -> None:
    """A is better than B and C; B and C are not told apart; D is undefined."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 2000)) * 0.01
    made = [estimate(value, noise[place]) for place, value in enumerate((0.1, 0.500, 0.501))] + [
        estimate(math.nan, noise[0])
    ]
    found = _simultaneous("cmd", ("A", "B", "C", "D"), made)
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
    assert _simultaneous("cpr", ("A", "B", "C", "D"), made).ranks() == [
        (3, 3),
        (1, 2),
        (1, 2),
        None,
    ]


def test_what_is_folded_is_not_resolved() -> None:
    """Two circuits that cannot be told from the model:
    their plain values differ by the noise that folding adds.
    """
    flat = np.zeros(2000)
    found = _simultaneous(
        "cmd",
        ("a", "b"),
        [estimate(0.02, flat, np.full(2000, 0.03)), estimate(0.04, flat, np.full(2000, 0.03))],
    )
    assert found.n_resolved == 0


def test_equal_methods_without_any_spread_are_equal() -> None:
    flat = np.zeros(2000)
    found = _simultaneous(
        "cmd",
        ("a", "b", "c"),
        [estimate(0.5, flat), estimate(0.5 + 1e-7, flat), estimate(0.7, flat)],
    )
    assert found.ranks() == [(1, 2), (1, 2), (3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("area", ["cpr", "cmd"])
def test_family_wise_error(area: AreaName) -> None:
    """Six methods of equal worth and independent noise:
    how often any of 15 differences is called resolved.
    """
    rng = np.random.default_rng(3)
    truth, n, runs = np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0, 1.0]), 30, 120
    wrong = 0
    for _ in range(runs):
        hard = rng.normal(size=n)
        empty, full = -1 + hard, 3 + hard + rng.normal(size=n)
        rule = AreaRule("strict", FRACTIONS, 10_000, empty, full, tuple(map(str, range(n))))
        made = []
        for _ in range(6):
            values = empty + truth[:, None] * (full - empty) + 0.5 * rng.normal(size=(10, n))
            sweep = rule.sweep("value", KEPT, KEPT, values)
            made.append(sweep.cpr if area == "cpr" else sweep.cmd)
        wrong += _simultaneous(area, tuple("abcdef"), made).n_resolved > 0
    # 5 % promised; three standard errors above that.
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_without_examples_there_is_no_rank() -> None:
    made = [BootstrapEstimate(value, np.zeros(10), np.zeros(10), 1) for value in (0.1, 0.9)]
    found: Differences = _simultaneous("cmd", ("a", "b"), made)
    assert found.ranks() == [None, None] and (found.n_resolved, found.n_pairs) == (0, 0)
