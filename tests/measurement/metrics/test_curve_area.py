"""MIB curve: known areas of the published definition, and where it is vacuous."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.circuits.series import FRACTIONS
from mechassay.measurement.catalogue import Quantity
from mechassay.measurement.metrics.curve_area import curve_area, null, page_cmd, page_cpr

SIZES = np.array(FRACTIONS)
ABOVE = ("cpr_above_edges_low", "cpr_above_paths_low", "cpr_above_chance")
OURS = {name: Quantity(0.1) for name in ABOVE}


@pytest.mark.parametrize(
    ("f", "cpr"),
    [
        (np.ones(10), 0.999),
        (np.zeros(10), 0.0),
        (SIZES, 0.4999995),
        # Nothing below a size, all from it on.
        (np.where(SIZES < 0.2, 0.0, 1.0), 0.85),
        (np.where(SIZES < 0.5, 0.0, 1.0), 0.65),
        (np.where(SIZES < 1.0, 0.0, 1.0), 0.25),
    ],
)
def test_known_areas(f: np.ndarray, cpr: float) -> None:
    assert page_cpr(f) == pytest.approx(cpr, abs=1e-6)
    # The published CMD says nothing that CPR does not.
    assert page_cmd(f) == pytest.approx(0.999 - cpr, abs=1e-6)


def test_without_absolute_values_deficits_and_excess_cancel() -> None:
    f = np.where(np.arange(10) % 2 == 0, 0.5, 1.5)
    f = np.interp(SIZES, SIZES, f)
    assert abs(page_cmd(f)) < 0.1  # |1 - f| is .5 everywhere


def test_circuits_that_do_nothing_at_small_sizes_pass_the_page() -> None:
    found = curve_area(np.where(SIZES < 0.2, 0.0, 1.0), OURS, mib={}, n=40)
    assert found.page.passed is True and found.page["cpr"] > 0.7
    assert found.flagged("nothing_at_small_sizes")
    assert not curve_area(np.ones(10), OURS, mib={}).flagged("nothing_at_small_sizes")


@pytest.mark.parametrize("better", ABOVE)
def test_a_ranking_has_to_be_above_both_random_ones(better: str) -> None:
    """A random ranking of either kind may be the better one, so that being above it counts."""
    assert curve_area(np.ones(10), OURS, mib={}).repaired.passed is True
    below = {**OURS, better: Quantity(-0.1)}
    assert curve_area(np.ones(10), below, mib={}).repaired.passed is False


def test_an_undefined_curve_does_not_pass() -> None:
    found = curve_area(np.full(10, np.nan), OURS, mib={})
    assert found.page["cpr"] is None and found.page.passed is None


def test_a_random_ranking_is_at_the_published_threshold() -> None:
    assert 0.4 < null(40).false_alarm("page") < 0.6
    assert null(40).false_alarm("repaired") < 0.06 and null(40).power("repaired") == 1
