"""Overlaps of rankings worked by hand, their slow version, and features without tokens."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.formulas.token_rankings import (
    Described,
    agreement_quantities,
    jaccard,
    token_agreement,
    top_tokens,
)


def described(seed: int = 0, n: int = 6, tokens: int = 30) -> Described:
    rng = np.random.default_rng(seed)
    return Described(rng.standard_normal((n, tokens)), rng.standard_normal((n, tokens)))


def test_the_first_tokens_of_equal_scores() -> None:
    assert top_tokens(np.array([[1.0, 3.0, 2.0, 3.0]]), 3).tolist() == [[1, 3, 2]]
    assert top_tokens(np.array([[1.0, 3.0]]), 5).tolist() == [[1, 0]]


def test_jaccard_by_hand() -> None:
    a = np.array([[1, 2, 3], [1, 2, 3], [-1, -1, -1], [1, -1, -1]])
    b = np.array([[3, 4, -1], [3, 1, 2], [-1, -1, -1], [-1, -1, -1]])
    assert jaccard(a, b).tolist()[:2] == [0.25, 1.0]
    # Two empty lists neither agree nor disagree.
    assert np.isnan(jaccard(a, b)[2]) and jaccard(a, b)[3] == 0


def test_overlap_and_rank_biased_overlap_by_hand() -> None:
    of = Described(np.array([[5.0, 4.0, 3.0, 0.0]]), np.array([[5.0, 0.0, 3.0, 0.0]]))
    found = token_agreement(of, 2)
    assert found.matched.tolist() == [0.5]
    # Common tokens at depths 1 and 2: 1 and 1. .5 x .81 + .1 / .9 x (.9 + .5 x .81).
    assert found.rbo[0] == pytest.approx(0.55)
    assert np.isnan(found.mismatched[0]) and len(found.gain) == 0


def test_equal_rankings_agree_wholly_however_few_tokens_a_feature_has() -> None:
    scores = np.array([[3.0, 2.0, 1.0, -1.0, -2.0], [-1.0, -2.0, -3.0, 4.0, -5.0]])
    found = token_agreement(Described(scores, scores), 5)
    assert found.matched.tolist() == [1, 1] and found.rbo == pytest.approx([1, 1])
    # Feature 0 has 3 tokens, 1 has one: by the weights of 1, the first 3 tokens are 3, 0 and 1.
    assert found.mismatched == pytest.approx([2 / 3, 0])


def test_agreement_is_that_of_sets_one_feature_at_a_time() -> None:
    of, k = described(), 7
    found = token_agreement(of, k)
    n = len(of.measured)
    expected = np.zeros((n, n))
    for j in range(n):
        m = min(k, int((of.measured[j] > 0).sum()))
        theirs = set(np.argsort(-of.measured[j])[:m])
        for i in range(n):
            expected[i, j] = len(theirs & set(np.argsort(-of.by_weights[i])[:m])) / m
    assert found.matched == pytest.approx(np.diagonal(expected))
    off = (expected.sum(axis=0) - np.diagonal(expected)) / (n - 1)
    assert found.mismatched == pytest.approx(off)


def test_the_order_of_tokens_does_not_matter() -> None:
    of = described(1)
    order = np.random.default_rng(2).permutation(30)
    turned = token_agreement(Described(of.by_weights[:, order], of.measured[:, order]), 5)
    assert turned.matched == pytest.approx(token_agreement(of, 5).matched)


def test_a_feature_without_tokens_is_undefined() -> None:
    of = described(3, n=3)
    of.measured[1] = 0
    found = token_agreement(of, 5)
    assert np.isnan(found.matched).tolist() == [False, True, False]
    assert np.isnan(found.rbo[1]) and len(found.gain) == 2
    told = agreement_quantities("input", found, "two lists")
    assert told["input_agreement"].n == 2
    assert told["input_random_gain"].value is None


def test_tokens_that_all_features_have_are_no_gain() -> None:
    rng = np.random.default_rng(4)
    common = 10 * rng.standard_normal(200)
    noise = [common + rng.standard_normal((30, 200)) for _ in range(2)]
    found = token_agreement(Described(*noise), 20)
    assert found.matched.mean() > 0.7 and abs(found.gain.mean()) < 0.05
