"""How much worse a label is: by hand, against an obvious version, and how often intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.stats.groups import Field
from mechassay.stats.label_effects import label_effects


def slow(
    rows: np.ndarray, labels: np.ndarray, strata: np.ndarray, label: str
) -> tuple[float, float]:
    """D and its variance, input by input and column by column."""
    mean, m = rows.mean(axis=1), rows.shape[1]
    own = [
        i
        for i in range(len(rows))
        if labels[i] == label and ((strata == strata[i]) & (labels != label)).any()
    ]
    others = {
        s: np.flatnonzero((strata == s) & (labels != label)) for s in {strata[i] for i in own}
    }
    apart = np.array([mean[i] - mean[others[strata[i]]].mean() for i in own])
    squares = sum(((mean[rest] - mean[rest].mean()) ** 2).sum() for rest in others.values())
    pooled = squares / sum(len(rest) - 1 for rest in others.values())
    of_rest = 0.0
    for s, rest in others.items():
        share = sum(strata[i] == s for i in own) / len(own)
        of_rest += share**2 * (mean[rest].var(ddof=1) if len(rest) > 1 else pooled) / len(rest)
    columns = sum(
        (
            np.mean(
                [
                    rows[i, j]
                    - mean[i]
                    - (rows[others[strata[i]], j] - mean[others[strata[i]]]).mean()
                    for i in own
                ]
            )
            / m
        )
        ** 2
        for j in range(m)
    )
    return apart.mean(), apart.var(ddof=1) / len(own) + of_rest + columns * m / (m - 1)


def test_by_hand() -> None:
    """Two strata: in the first a is 3 above the mean of b and c, in the second 1;
    the stratum of a alone says nothing.
    """
    values = np.array([5.0, 1.0, 3.0, 11.0, 10.0, 99.0])
    field = Field("f", list("abcaba"), strata=list("xxxyyz"))
    found = label_effects(values, field)
    assert found.labels == ("a", "b", "c")
    assert found.difference == pytest.approx([2.0, (1.0 - 4.0 - 1.0) / 2, 0.0])
    assert np.isnan(found.low).all() and np.isnan(found.high).all()  # two inputs are too few


def test_against_an_obvious_version() -> None:
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(60, 7)) + rng.normal(size=(60, 1))
    labels, strata = rng.choice(list("abc"), 60), rng.choice(list("uvw"), 60)
    strata[:3], labels[:3] = "s", list("aab")  # one other input alone
    strata[3], labels[3] = "lonely", "c"
    for values, side in ((rows, "clean"), (rows.T, "corrupted")):
        found = label_effects(values, Field("f", labels.tolist(), side, strata.tolist()))  # pyright: ignore[reportArgumentType]
        for place, label in enumerate("abc"):
            wanted, variance = slow(rows, labels, strata, label)
            assert found.difference[place] == pytest.approx(wanted)
            # Six degrees of freedom: the other side has seven inputs.
            assert found.high[place] - wanted == pytest.approx(2.446912 * math.sqrt(variance))
            assert wanted - found.low[place] == pytest.approx(found.high[place] - wanted)


def test_the_strata_are_not_in_the_difference() -> None:
    """Adding a number to all inputs of a stratum changes nothing; without strata it does."""
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(40, 6)), rng.choice(list("ab"), 40).tolist()
    strata = ["x" if label == "a" and place % 3 else "y" for place, label in enumerate(labels)]
    strata[0], strata[1] = "x", "x"
    shifted = values + 100 * (np.array(strata) == "x")[:, None]
    one, two = (
        label_effects(each, Field("f", labels, strata=strata)) for each in (values, shifted)
    )
    assert two.difference == pytest.approx(one.difference) and two.high == pytest.approx(one.high)
    assert label_effects(shifted, Field("f", labels)).difference[0] > 20


@pytest.mark.parametrize("column_effects", [0.0, 2.0])
def test_intervals_cover_the_difference(column_effects: float) -> None:
    """Label a is worse by .5 in every stratum, and on some columns more:
    what an interval says 95 % of must hold for 93 %.
    """
    rng, repeats, hits = np.random.default_rng(2), 200, 0
    labels, strata = np.repeat(list("aabbcc"), 8), np.tile(list("uv"), 24)
    for _ in range(repeats):
        values = (
            rng.normal(size=(48, 1))
            + rng.normal(size=(1, 15))
            + rng.normal(size=(48, 15))
            + 3.0 * (strata == "u")[:, None]
        )
        values += (labels == "a")[:, None] * (0.5 + column_effects * rng.normal(size=(1, 15)))
        found = label_effects(values, Field("f", labels.tolist(), strata=strata.tolist()))
        hits += found.low[0] <= 0.5 <= found.high[0]
    assert hits / repeats >= 0.93


def test_what_is_undefined() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 5))
    values[:2] = np.nan
    values[4, :3] = np.nan
    alone = label_effects(values, Field("f", list("aabbbbbccccc"), strata=list("xxyyyyyzzzzz")))
    assert np.isnan(alone.difference).all() and np.isnan(alone.low).all()
    found = label_effects(values, Field("f", list("aabbbbbccccc")))
    assert (
        math.isnan(found.difference[0])
        and np.isfinite(found.difference[1:]).all()
        and np.isfinite(found.low[1:]).all()
    )
    assert found.difference[1] == pytest.approx(
        np.nanmean(values[2:7], axis=1).mean() - values[7:].mean(axis=1).mean()
    )
    gone = label_effects(values * np.nan, Field("f", list("aabbbbbccccc")))
    assert np.isnan(gone.difference).all() and gone.labels == ("a", "b", "c")
    with pytest.raises(BadUsage, match="at least 2"):
        label_effects(values, Field("f", ["a"] * 12))
    with pytest.raises(BadUsage, match="12 labels and 2 strata"):
        label_effects(values, Field("f", list("aabbbbbccccc"), strata=list("xy")))
    with pytest.raises(BadUsage, match="confidence"):
        label_effects(values, Field("f", list("aabbbbbccccc")), level=1.5)
