"""EX2: impact without DIF, DIF without impact, crossing DIF, zero cells, and hand tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from mechassay.errors import BadUsage
from mechassay.measurement.metrics import differential_items as formula
from mechassay.measurement.metrics.differential_items import (
    differential_items,
    holm,
    log_likelihood,
    logistic_dif,
    mantel_haenszel,
    null,
    strata_of,
)


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often thresholds err is asked for by name below."""
    monkeypatch.setattr(formula, "null", lambda n, k: null(n, k, 4))


def cells(*counts: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, first and stratum of prompts from counts: first right, first wrong, other ..."""
    right, first, strata = [], [], []
    for number, (a, b, c, d) in enumerate(counts):
        right += [True] * a + [False] * b + [True] * c + [False] * d
        first += [True] * (a + b) + [False] * (c + d)
        strata += [number] * (a + b + c + d)
    return np.array(right), np.array(first), np.array(strata)


def simulated(n: int, impact: float = 0, dif: float = 0, slope: float = 1, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    ability = {name: 0.5 + rng.standard_normal(n) for name in ("a", "b", "c")}
    ability["a"] = ability["a"] - impact
    score = {name: x + 0.5 * rng.standard_normal(n) for name, x in ability.items()}
    score["a"] = slope * ability["a"] + 0.5 * rng.standard_normal(n) - dif
    return score, ability


def test_mantel_haenszel_worked_by_hand() -> None:
    # Strata 10 5 5 10 and 8 4 4 8: (100 + 64 * 30/24) / (25 + 16 * 30/24) with n 30 and 24.
    found = mantel_haenszel(*cells((10, 5, 5, 10), (8, 4, 4, 8)))
    assert found.odds_ratio == pytest.approx((100 / 30 + 64 / 24) / (25 / 30 + 16 / 24))
    assert found.odds_ratio == pytest.approx(4)
    assert found.delta == pytest.approx(-2.35 * math.log(4)) and found.ets_class == "B"
    swapped = mantel_haenszel(*cells((5, 10, 10, 5), (4, 8, 8, 4)))
    assert swapped.odds_ratio == pytest.approx(1 / 4) and swapped.p == pytest.approx(found.p)


def test_one_stratum_is_the_odds_ratio_of_its_table() -> None:
    found = mantel_haenszel(*cells((12, 3, 6, 9)))
    assert found.odds_ratio == pytest.approx(12 * 9 / (3 * 6))
    # The variance of Robins et al. is Woolf's in a single table.
    assert found.error == pytest.approx(math.sqrt(1 / 12 + 1 / 3 + 1 / 6 + 1 / 9), rel=1e-6)


def test_zero_cells_are_undefined() -> None:
    assert math.isnan(mantel_haenszel(*cells((10, 0, 10, 0))).odds_ratio)
    assert mantel_haenszel(*cells((10, 0, 10, 0))).ets_class == ""
    nothing = logistic_dif(np.ones(20, dtype=bool), np.arange(20) < 10, np.arange(20.0))
    assert math.isnan(nothing.delta_r2)
    separated = logistic_dif(np.arange(40) > 20, np.arange(40) % 2 == 0, np.arange(40.0))
    assert math.isnan(separated.p)


def test_the_likelihood_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2))
    right = rng.random(200) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
    other = LogisticRegression(C=1e10, tol=1e-10, max_iter=1000).fit(x, right)
    p = other.predict_proba(x)[np.arange(200), right.astype(int)]
    ours = log_likelihood(np.column_stack((np.ones(200), x)), right)
    assert ours == pytest.approx(np.log(p).sum(), rel=1e-6)


@pytest.mark.slow
def test_impact_is_no_dif() -> None:
    # The defect: the model itself finds one group harder, and the circuit does as the model.
    found = differential_items(*simulated(300, impact=1.5))
    assert found.page["max_abs_d"] > 1 and found.page.passed is False
    assert found.repaired.passed is True and found.repaired["max_mh_delta"] < 1


def test_planted_dif_is_found() -> None:
    found = differential_items(*simulated(300, dif=1.0))
    assert found.repaired.passed is False
    rows = {row["groups"]: row for row in found.tables[1].rows()}
    assert rows["a, b"]["ets_class"] == "C" and rows["b, c"]["ets_class"] == "A"
    assert rows["a, b"]["p_uniform"] < 1e-6


@pytest.mark.slow
def test_crossing_dif_is_found_where_means_are_equal() -> None:
    score, ability = simulated(400, slope=-1, dif=-1.0)
    found = differential_items(score, ability)
    rows = {row["groups"]: row for row in found.tables[1].rows()}
    assert abs(rows["a, b"]["d"]) < 0.3 and rows["a, b"]["p_crossing"] < 1e-6
    assert found.page.passed is True and found.repaired.passed is False


def test_few_prompts_have_no_verdict() -> None:
    found = differential_items(*simulated(12))
    assert found.repaired.passed is None and found.flagged("few_prompts")
    with pytest.raises(BadUsage, match="two groups"):
        differential_items({"a": np.ones(3)}, {"a": np.ones(3)})


@pytest.mark.slow
def test_how_often_equal_groups_fail_on_the_page() -> None:
    # Research: 43 % at 13 prompts a group, 7.6 % at 40.
    at_13, at_40 = (1 - null(n, 3, 400).power("page") for n in (13, 40))
    shares = {
        row.scenario: row.rate for row in null(40, 3, 400) if row.condition == "max_abs_d < 0.5"
    }
    assert shares["groups do not differ"] == pytest.approx(0.924, abs=0.04)
    assert min(at_13, at_40) > 0.85, "impact fails"
    small = {row.scenario: row.rate for row in null(13, 3, 400) if row.variant == "page"}
    assert small["groups do not differ"] == pytest.approx(0.57, abs=0.08)


def test_holm_and_strata() -> None:
    assert holm([0.01, 0.04, 0.03, math.nan])[:3] == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(holm([math.nan])[0])
    assert np.bincount(strata_of(np.arange(100.0))).tolist() == [20] * 5
    assert len(set(strata_of(np.ones(10)))) == 1
