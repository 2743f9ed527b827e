"""EX11: linear, Weber and Stevens heads, exact steps of the grid, heads that do nothing."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.metrics.weber import (
    LEVELS,
    PAGE_SCALES,
    SCALES,
    exponent,
    fits,
    jnd,
    page_jnd,
    weber,
    weber_consistency,
)

GRID = np.outer(LEVELS, SCALES)
SHARES = (0.05, 0.1, 0.2, 0.5, 0.9)


def linear(share: float) -> np.ndarray:
    """The output with a head at each level and scale, of 1 with the head whole."""
    return 1 - share * (1 - GRID)


def logarithmic(share: float = 0.8) -> np.ndarray:
    return 1 + share * np.log(0.01 + GRID)


def test_linear_heads_on_the_page_grid() -> None:
    scales = np.array(PAGE_SCALES)
    assert [page_jnd(1 - share * (1 - scales)) for share in SHARES] == [None, None, 0.3, 0.2, 0.1]


def test_interpolated_differences_of_linear_heads() -> None:
    # A linear head of share p is noticed at a change of .05 / p, whatever its level.
    for share in SHARES[1:]:
        found = [jnd(row, SCALES, b, 0.05) for b, row in zip(LEVELS, linear(share), strict=True)]
        known = [x for x in found if x is not None]
        assert known == pytest.approx([0.05 / share] * len(known))
    assert jnd(linear(0.04)[0], SCALES, 1.0, 0.05) is None


def test_exponents() -> None:
    assert exponent(LEVELS, [0.1] * 4) == pytest.approx(0)
    assert exponent(LEVELS, [0.1 * b for b in LEVELS]) == pytest.approx(1)
    assert np.isnan(exponent(LEVELS, [0.1, None, None, None]))


def test_weber_heads_pass_and_linear_heads_do_not() -> None:
    log = weber({f"h{i}": logarithmic(s) for i, s in enumerate((0.3, 0.5, 0.8))})
    assert log.repaired["weber_exponent"] == pytest.approx(1, abs=0.1)
    assert log.repaired.passed is True
    line = weber({f"h{i}": linear(s) for i, s in enumerate((0.4, 0.6, 0.9))})
    assert line.repaired["weber_exponent"] == pytest.approx(0, abs=1e-9)
    assert line.repaired.passed is False
    # The defect: the published condition has nothing to do with Weber's law.
    assert line.page.passed is True and line.flagged("weber_by_construction")
    assert line.repaired["linear_fit"] == pytest.approx(1)
    assert log.repaired["logarithmic_fit"] > log.repaired["linear_fit"]


def test_dividing_by_the_level_doubles_a_multiplicative_difference() -> None:
    # The defect: an exactly Weber system has fractions x and 2 x, and a consistency of 2/3.
    assert weber_consistency([0.2, 0.4]) == pytest.approx(2 / 3)
    assert weber_consistency([0.2]) == 1 and np.isnan(weber_consistency([]))


def test_heads_that_lower_the_output_are_noticed_here_only() -> None:
    found = weber({"a": linear(-0.5), "b": linear(-0.3)})
    assert found.page["all_detectable"] == 0 and found.repaired["n_undetectable"] == 0


def test_heads_that_do_nothing() -> None:
    found = weber({"a": linear(0.0), "b": linear(0.0)}, controls={"c": linear(0.5)})
    assert found.page["weber_consistency"] is None and found.page["all_detectable"] == 0
    assert found.repaired["weber_exponent"] is None and found.repaired.passed is False
    assert found.repaired["n_undetectable"] == 2 and found.repaired["control_detectable"] == 1
    assert np.isnan(fits(np.ones(len(SCALES)), SCALES)["linear"])


def test_a_circuit_without_heads_is_undefined() -> None:
    found = weber({})
    assert found.page["all_detectable"] is None and found.page.passed is None


def test_heads_are_graded_if_they_are_noticed_and_rise_or_fall() -> None:
    """A linear head, one that lowers the output, one that is too small, one that goes up and down.

    The last has eight values in order of the scale but for a peak in the middle.
    """
    bent = 1 - 0.9 * np.abs(GRID - 0.6)
    heads = {"up": linear(0.5), "down": 2 - linear(0.5), "small": linear(0.01), "bent": bent}
    for names, graded in ((("up", "down"), 1.0), (tuple(heads), 0.5), (("small", "bent"), 0.0)):
        found = weber({name: heads[name] for name in names})
        assert found.repaired["graded"] == graded
    assert weber({}).repaired["graded"] is None
