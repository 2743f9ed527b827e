"""EX34: true directions that the page rejects, random ones, shuffled pairs, and hand-made means."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.measurement import Measurement
from mechassay.saes.metrics.feature_tokens import Described, top_tokens
from mechassay.saes.metrics.nla_convergence import (
    TwoDirections,
    choose,
    excess,
    main_axis_cosine,
    mean_differences,
    nla_convergence,
    null,
    permutation_p,
)

D, TOKENS, N, K = 64, 300, 20, 10


def planted(strength: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Directions, and a value for each token: those of feature j are tokens 10 j to 10 j + 9."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N, D))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    values = rng.standard_normal((TOKENS, D))
    for j, row in enumerate(rows):
        values[K * j : K * j + K] += strength * row
    return rows, values


def measured(
    rows: np.ndarray, values: np.ndarray, *, follow: bool = True, shuffle: bool = False
) -> Measurement:
    rng = np.random.default_rng(1)
    lists = top_tokens(rows @ values.T, K)
    axes = np.array([main_axis_cosine(values[x], y) for x, y in zip(lists, rows, strict=True)])
    own = np.zeros((N, TOKENS), dtype=bool)
    for j in range(N):
        own[j, K * j : K * j + K] = True
    means = mean_differences(values, np.ones(TOKENS), own)
    control = rng.standard_normal((N, D))
    drawn = choose(control @ rng.standard_normal((D, TOKENS)), K)
    random = TwoDirections(control, mean_differences(values, np.ones(TOKENS), drawn))
    writes = rng.standard_normal((N, TOKENS))
    tokens = Described(writes, writes if follow else rng.standard_normal((N, TOKENS)))
    order = np.roll(np.arange(N), 1) if shuffle else np.arange(N)
    two = TwoDirections(rows[order], means)
    return nla_convergence(top_tokens(writes, K), lists, axes, two, tokens, random=random, k=K)


def test_the_page_rejects_the_true_direction() -> None:
    # The defect: among values chosen by their projection, the projection varies least.
    found = measured(*planted(8.0))
    assert (found.page["mean_direction_cosine"] or 0) < 0.3 and found.page.passed is False
    assert (found.repaired["direction_cosine"] or 0) > 0.9
    assert found.repaired["permutation_p"] == 0.001 and found.repaired.passed is True
    assert found.flagged("proxy") and found.flagged("selection")


def test_on_values_without_features_the_published_axis_is_any_axis() -> None:
    rows, values = planted(0.0)
    found = measured(rows, values)
    # A random axis of 64 numbers has a mean |cosine| of .1; choosing leaves less.
    assert (found.page["mean_direction_cosine"] or 1) < 0.12
    assert abs(found.repaired["direction_cosine"] or 1) < 0.1
    assert found.repaired.passed is False


def test_shuffled_pairs_differ_by_nothing() -> None:
    found = measured(*planted(8.0), shuffle=True)
    assert (found.repaired["direction_gain"] or 1) < 0.05 and found.repaired.passed is False
    assert (found.repaired["permutation_p"] or 0) > 0.2


def test_what_follows_is_compared_with_what_is_promoted() -> None:
    assert measured(*planted(8.0), follow=False).repaired.passed is False
    # The defect: the page compares what is promoted with what activates, which are others.
    found = measured(*planted(8.0))
    assert (found.page["mean_token_overlap"] or 0) < 0.1
    assert found.repaired["token_agreement"] == 1


def test_main_axes_by_hand() -> None:
    line = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    assert main_axis_cosine(line, np.array([-3.0, 0.0])) == pytest.approx(1), "no sign"
    assert main_axis_cosine(line, np.array([1.0, 1.0])) == pytest.approx(np.sqrt(0.5))
    assert np.isnan(main_axis_cosine(np.ones((3, 2)), np.array([1.0, 0.0])))


def test_mean_differences_one_value_at_a_time() -> None:
    rng = np.random.default_rng(0)
    values, index = rng.standard_normal((50, 3)), rng.integers(6, size=50)
    sums = np.stack([values[index == t].sum(axis=0) for t in range(6)])
    counts = np.bincount(index, minlength=6).astype(float)
    own = np.array([[1, 0, 1, 0, 0, 0], [0] * 6, [1] * 6], dtype=bool)
    found = mean_differences(sums, counts, own)
    inside = np.isin(index, [0, 2])
    expected = values[inside].mean(axis=0) - values[~inside].mean(axis=0)
    assert found[0] == pytest.approx(expected)
    assert np.isnan(found[1:]).all(), "no tokens, or no others"


def test_tokens_that_follow_more_often_than_elsewhere() -> None:
    # 8 followers, of which 2 of each of four tokens were expected.
    found = excess(np.array([[4.0, 2.0, 2.0, 0.0]]), np.full(4, 0.25))
    assert found == pytest.approx(np.array([[2**0.5, 0, 0, -(2**0.5)]]))
    assert choose(found, 3).tolist() == [[True, False, False, False]]


def test_permutations_of_few_features() -> None:
    rng = np.random.default_rng(0)
    assert permutation_p(np.eye(20), rng) == 0.001
    # Of two orders of two features one is as good.
    assert permutation_p(np.eye(2), rng) == pytest.approx(0.5, abs=0.06)
    assert permutation_p(np.ones((5, 5)), rng) == 1
    assert np.isnan(permutation_p(np.ones((1, 1)), rng))


def test_without_features_or_a_control_nothing_passes() -> None:
    two = TwoDirections(np.eye(3), np.eye(3))
    tokens = Described(np.eye(3), np.eye(3))
    ids, cosines = np.arange(3)[:, None], np.ones(3)
    bare = nla_convergence(ids, ids, cosines, two, tokens, k=1)
    assert bare.repaired["direction_cosine"] == 1 and bare.repaired.passed is None
    nothing = TwoDirections(np.empty((0, 3)), np.empty((0, 3)))
    empty = Described(np.empty((0, 3)), np.empty((0, 3)))
    found = nla_convergence(ids[:0], ids[:0], cosines[:0], nothing, empty, k=1)
    assert found.page.passed is None and found.repaired.passed is None


def test_how_often_thresholds_err() -> None:
    rates = null()
    assert rates.power("page") == 0, "no true direction ever passes"
    assert rates.false_alarm("repaired") < 0.1 and rates.power("repaired") > 0.95
