"""M10: blobs of contexts, an odd one, what all contexts share, and cuts by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mechassay.saes.metrics.polysemanticity import (
    FeatureContexts,
    best_cut,
    common_axes,
    first_scores,
    null,
    one_kind,
    page_clusters,
    polysemanticity,
    without_common,
)

WIDTH = 24


def blob(at: int, n: int, rng: np.random.Generator, spread: float = 0.05) -> np.ndarray:
    return np.eye(WIDTH)[at] + spread * rng.standard_normal((n, WIDTH))


def kinds(*sizes: int, seed: int = 0, shared: float = 0.0) -> np.ndarray:
    """Contexts of several orthogonal kinds."""
    rng = np.random.default_rng(seed)
    parts = [blob(place, n, rng) for place, n in enumerate(sizes)]
    return np.concatenate(parts) + shared * np.eye(WIDTH)[-1]


def p_of(x: np.ndarray) -> float:
    return one_kind(x, np.random.default_rng(0))[1]


def test_two_orthogonal_blobs_are_two_and_one_is_one() -> None:
    assert page_clusters(kinds(10, 10)) == 2 and p_of(kinds(10, 10)) <= 0.05
    assert page_clusters(kinds(20)) == 1 and p_of(kinds(20)) > 0.05
    assert page_clusters(kinds(8, 8, 8)) == 3


def test_one_odd_context_makes_two_on_the_page_alone() -> None:
    # The defect: there is no smallest size of a cluster.
    x = kinds(19, 1)
    assert page_clusters(x) == 2 and p_of(x) > 0.05
    each = FeatureContexts("1", x, x)
    found = polysemanticity([each] * 3)
    assert found.page["polysemanticity_rate"] == 1 and found.repaired["polysemanticity_rate"] == 0


def test_what_all_contexts_share_makes_one_on_the_page() -> None:
    # The defect: cosines of unrelated contexts are above .9.
    x = kinds(10, 10, shared=5.0)
    rng = np.random.default_rng(1)
    background = np.concatenate([blob(i, 10, rng) for i in range(12)]) + 5 * np.eye(WIDTH)[-1]
    near = without_common(x, *common_axes(background, 1))
    assert page_clusters(x) == 1 and p_of(near) <= 0.05
    found = polysemanticity([FeatureContexts(str(i), x, near) for i in range(2)])
    assert found.page["polysemanticity_rate"] == 0 and found.flagged("all_alike")
    assert found.repaired["polysemanticity_rate"] == 1
    assert found.readings[0].says.startswith("most features have one meaning")


def test_all_dead_is_undefined_and_not_monosemantic() -> None:
    found = polysemanticity([], n_dead=7)
    assert found.page["polysemanticity_rate"] is None and found.repaired.passed is None
    assert found.repaired["polysemanticity_rate"] is None and found.flagged("dead_features")
    assert found.page["n_dead"] == 7
    of_many = polysemanticity([], n_dead=7, n_features=100)
    assert of_many.page.quantities["n_dead"].n == 100
    flag = next(flag for flag in of_many.flags if flag.name == "dead_features")
    assert "7 of 100 features are dead: 7%" in flag.says


def test_a_single_context_is_one_cluster_and_undecided() -> None:
    assert page_clusters(kinds(1)) == 1 and page_clusters(np.zeros((3, 4))) == 0
    one = FeatureContexts("1", kinds(1), kinds(1))
    found = polysemanticity([one, FeatureContexts("2", kinds(10, 10), kinds(10, 10))])
    assert found.repaired["n_undecided"] == 1 and found.flagged("undecided")
    assert found.repaired["polysemanticity_rate"] == 1
    assert found.repaired.quantities["polysemanticity_rate"].n == 1
    assert np.isnan(one_kind(np.ones((12, 4)), np.random.default_rng(0))[1])


def test_cuts_by_hand_and_by_trying_all() -> None:
    assert best_cut(np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(1)
    # 2 against 2 numbers with sums of -1 and 1: 1/2 + 1/2 of 2.
    assert best_cut(np.array([-1.0, 0.0, 0.0, 1.0])) == pytest.approx(0.5)
    assert best_cut(np.array([-1.0, 0.0, 1.0])) == 0, "one number is no part"
    assert np.isnan(best_cut(np.ones(5)))
    x = np.random.default_rng(0).standard_normal(9)
    total = ((x - x.mean()) ** 2).sum()
    tried = [
        1 - sum(((part - part.mean()) ** 2).sum() for part in (x[list(a)], np.delete(x, a))) / total
        for size in range(2, 8)
        for a in itertools.combinations(range(9), size)
    ]
    # Of all partitions with two numbers or more, the best one is a cut.
    assert best_cut(x, 0.2) == pytest.approx(max(tried))


def test_the_first_axis_and_turned_embeddings() -> None:
    x = np.random.default_rng(0).standard_normal((12, 5)) * [5, 1, 1, 1, 1]
    u, s, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    assert np.abs(first_scores(x)) == pytest.approx(np.abs(u[:, 0] * s[0]))
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 5)))[0]
    assert one_kind(x @ turn, np.random.default_rng(2)) == pytest.approx(
        one_kind(x, np.random.default_rng(2))
    )


def test_two_features_together_show_the_power() -> None:
    rng = np.random.default_rng(0)
    apart = [FeatureContexts(str(i), blob(i, 20, rng), blob(i, 20, rng)) for i in range(10)]
    found = polysemanticity(apart)
    assert (found.repaired["polysemanticity_rate"] or 0) <= 0.2 and found.repaired["power"] == 1
    same = [FeatureContexts(str(i), blob(0, 20, rng), blob(0, 20, rng)) for i in range(10)]
    assert polysemanticity(same).flagged("blind"), "the features cannot be told apart"


@pytest.mark.slow
def test_how_often_features_are_called_polysemantic() -> None:
    rates = null(20, n_simulations=200)
    assert rates.false_alarm("repaired") < 0.12 and rates.power("repaired") > 0.8
    # Among eight contexts, an odd one is more than a tenth, and no kind.
    assert null(8, n_simulations=200).false_alarm("repaired") < 0.15
    assert rates.false_alarm("page") > 0.9, "one odd context"
    assert rates.power("page") == 0, "what all contexts share"
