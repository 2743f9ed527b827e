"""M11: identical, split, merged and lost features, and identical dictionaries on the page."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mechassay.measurement import Measurement, measure, null_table
from mechassay.saes.feature_matching import random_sae
from mechassay.saes.metrics import width_consistency as formula
from mechassay.saes.metrics.width_consistency import (
    FATES,
    children_of,
    fates,
    matryoshka,
    page_consistency,
)
from mechassay.saes.synthetic import SITE, plant

N, VALUES = 6, 400


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often thresholds err is asked for by name below."""
    null = formula.null

    def of_few(n: int = 32, n_simulations: int = 4, seed: int = 0) -> Any:
        return null(n, n_simulations, seed)

    monkeypatch.setattr(formula, "null", of_few)


def sparse(n: int = N, seed: int = 0, share: float = 0.15) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    on = torch.rand(VALUES, n, generator=drawn) < share
    return on * (1 + torch.rand(VALUES, n, generator=drawn))


def measured(planted: Any, sae: Any, *others: Any) -> Measurement:
    given = {"sae": sae, "other sae": others, "texts": planted.store()}
    return measure("M11", site=SITE, more=given)


def told(found: Any) -> list[str]:
    return [FATES[int(place)] for place in found.of]


@pytest.mark.slow
def test_identical_dictionaries_fail_the_page_alone() -> None:
    codes, rows = sparse(), torch.eye(N)
    page = page_consistency(codes, codes, rows)
    # The defect: rows of unrelated features have no cosine, so every feature counts as split.
    assert (page.splitting, page.absorption, page.consistency) == (1.0, 0.0, 0.5)
    found = matryoshka(codes, codes, rows, rows)
    assert found.page.passed is False and found.repaired["consistency"] == 1
    assert found.flagged("unrelated_matches") and found.flagged("nested")
    assert told(fates(codes, codes, rows, rows)) == ["same"] * N


def test_the_page_by_hand() -> None:
    # Two narrow features with the same best match; one wide feature never varies.
    narrow = torch.tensor([[0.0, 0], [1, 1], [2, 2], [0, 0]])
    wide = torch.tensor([[0.0, 3, 1], [1, 3, 0], [2, 3, 0], [0, 3, 1]])
    rows = torch.tensor([[1.0, 0], [1.0, 0], [0.0, 1]])
    page = page_consistency(narrow, wide, rows, top_k=2)
    assert page.absorption == pytest.approx(1 / 3)
    assert page.splitting == 0, "the two best rows of each feature are the same"
    assert math.isnan(page_consistency(narrow, wide[:, :1], rows[:1]).splitting)


def test_absorption_of_the_page_cannot_exceed_a_half() -> None:
    # The defect: all narrow features on one wide one, of twice as many, and hardly any absorption.
    codes = sparse()
    wide = torch.cat((codes.sum(1, keepdim=True), 1e-3 * sparse(2 * N - 1, 1)), dim=1)
    page = page_consistency(codes, wide, torch.eye(2 * N))
    assert page.absorption <= 0.25
    found = fates(codes, wide, torch.eye(2 * N)[:N], torch.eye(2 * N))
    assert found.share("absorbed", "incoherent", "lost") == 1


def test_an_exact_split_is_coherent() -> None:
    codes, rows = sparse(), torch.eye(2 * N)[:N]
    first = torch.rand(VALUES, N, generator=torch.Generator().manual_seed(3)) < 0.5
    wide = torch.cat((codes * first, codes * ~first), dim=1)
    beside = torch.eye(2 * N)[N:]
    wide_rows = torch.cat((rows + 0.7 * beside, rows - 0.7 * beside))
    found = matryoshka(codes, wide, rows, wide_rows)
    assert found.repaired["consistency"] == 1 and found.repaired["split_share"] == 1
    # Two kinds with rows of cosine 1/3 are what the page calls incoherent.
    assert found.page["splitting_rate"] == 1


def test_merged_lost_and_incoherent_features() -> None:
    codes, rows = sparse(), torch.eye(8)[:N]
    wide, wide_rows = codes.clone(), rows.clone()
    wide[:, 0] = codes[:, 0] + codes[:, 1]  # 0 and 1 on one row
    wide_rows[0] = (rows[0] + rows[1]) / 2**0.5
    wide[:, 1] = sparse(1, 9)[:, 0]
    wide[:, 2] = 0.0  # 2 is lost
    wide_rows[3] = torch.eye(8)[7]  # 3 writes something else
    assert told(fates(codes, wide, rows, wide_rows)) == [
        "absorbed",
        "absorbed",
        "lost",
        "incoherent",
        "same",
        "same",
    ]
    found = matryoshka(codes, wide, rows, wide_rows)
    assert found.repaired["absorbed_share"] == pytest.approx(2 / 6)
    assert found.repaired["lost_share"] == pytest.approx(1 / 6)
    assert found.repaired.passed is False


def test_rare_children_are_known_by_their_parent() -> None:
    parent = sparse(1, share=0.3)
    on = parent[:, 0] > 0
    drawn = torch.rand(VALUES, generator=torch.Generator().manual_seed(2))
    child = (on & (drawn < 0.1)).float()[:, None]
    never = (torch.rand(VALUES, 1) < 0.05).float() * ~on[:, None]
    found = children_of(parent, torch.cat((child, never), dim=1))
    assert found.tolist() == [[True, False]]


def test_dead_features_are_left_out_and_make_no_absorption() -> None:
    codes, rows = sparse(), torch.eye(N)
    codes[:, 4:] = 0
    found = matryoshka(codes, codes, rows, rows)
    assert found.repaired["consistency"] == 1 and found.flagged("dead_features")
    # The defect: features that never vary all match the first one.
    assert found.page["absorption_rate"] == pytest.approx(1 / N)
    nothing = matryoshka(codes * 0, codes, rows, rows)
    assert nothing.repaired["consistency"] is None and nothing.passed is None
    lost = matryoshka(codes, codes * 0, rows, rows)
    assert lost.repaired["lost_share"] == 1 and lost.passed is False


def test_planted_splits_and_hierarchies_are_kept_by_a_wide_dictionary() -> None:
    for changes in ({"splits": 8, "children": 2}, {"parents": 5}):
        planted = plant(d=48, n_features=16, **changes)
        narrow, wide = planted.sae(), planted.sae(wide=True, seed=3)
        found = measured(planted, narrow, narrow, wide)
        assert found.passed is True and found.page.passed is False, changes
        assert found.repaired["consistency_random"] < 0.3
        assert not found.flagged("equal_widths"), "the first of another width is taken"
        assert measured(planted, wide, narrow).repaired.values == found.repaired.values
    random = measured(planted, narrow, planted.sae("random", wide=True))
    assert random.passed is False
    assert measured(planted, narrow, narrow).flagged("equal_widths")


def test_how_often_thresholds_err() -> None:
    found = null_table("M11", 24, n_simulations=10)
    assert found.false_alarm("repaired") == 0 and found.power("repaired") == 1
    assert found.power("page") == 0


def test_a_random_wide_dictionary_is_no_evidence() -> None:
    planted = plant(d=64, n_features=48)
    values = planted.values.flatten(0, 1)
    found = measured(planted, planted.sae(), random_sae(64, 1024, 8, values.mean(0), seed=7))
    # The defect: with so many random features, most narrow ones have some that lean their way.
    assert found.repaired["consistency_low"] > 0.7
    assert found.repaired["consistency_random"] > 0.7
    assert found.repaired["consistency_low_above_random"] <= 0 and found.passed is False
    # Without a random dictionary there is no verdict.
    alone = matryoshka(sparse(24), sparse(24), torch.eye(24), torch.eye(24))
    assert alone.repaired["consistency_low_above_random"] is None and alone.passed is None


def test_random_dictionaries_of_the_same_values_are_a_null() -> None:
    found = null_table("M11", 32, n_simulations=20)
    rates = {(x.condition, x.scenario): x.rate for x in found if x.variant == "repaired"}
    scenario = "a random dictionary of 512 features that encodes the same values, in 32 numbers"
    assert rates["consistency_low > 0.7", scenario] > 0.5
    assert rates["all conditions", scenario] <= 0.1
