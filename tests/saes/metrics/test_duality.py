"""M07: the same dictionary in another order, random ones, and what the page makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.features.featurizer import Directions
from mechassay.measurement import Measurement, measure, null_table
from mechassay.saes.feature_matching import unit_rows
from mechassay.saes.metrics.duality import duality, index_overlap, matched_overlap, whole_overlap
from mechassay.saes.synthetic import SITE, plant


def measured(planted: Any, sae: Any, *others: Any, **more: Any) -> Measurement:
    given = {"sae": sae, "other sae": others, "texts": planted.store()}
    return measure("M07", site=SITE, more=given, **more)


def of_random(n: int, d: int) -> Measurement:
    drawn = torch.Generator().manual_seed(0)
    a, b = (unit_rows(torch.randn(n, d, generator=drawn)) for _ in range(2))
    codes = [(torch.rand(200, n, generator=drawn) < 0.1).float() for _ in range(2)]
    return duality(*codes, a, b, a, b)


def test_overlaps_by_hand() -> None:
    a = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]).bool()
    b = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]]).bool()
    # 1 of 3, undefined, 1 of 1.
    assert index_overlap(a, b) == pytest.approx(2 / 3)
    assert math.isnan(index_overlap(a[1:2], b[1:2]))
    assert index_overlap(a, torch.cat((b, b), 1)) == pytest.approx((1 / 5 + 1 / 2) / 2)
    # Of all values together: 0 and 1 against 0, 1 and 2.
    assert whole_overlap(a, b) == pytest.approx(2 / 3) and math.isnan(whole_overlap(a[1:2], b[1:2]))
    assert whole_overlap(a[:1], b[:1]) == pytest.approx(1 / 3)
    assert matched_overlap(a[:, :2], b[:, :2]).tolist() == pytest.approx([0.5, 1.0])


def test_another_order_is_the_same_dictionary_and_the_page_does_not_see_it() -> None:
    planted = plant()
    true, again = planted.sae("true"), planted.sae("true", seed=4)
    same = measured(planted, true, true)
    assert same.page["architecture_agreement"] == pytest.approx(1, abs=1e-5)
    found = measured(planted, true, again)
    # The defect: the agreement of a dictionary with itself falls to about a half.
    assert found.page["feature_overlap"] < 0.2 and found.flagged("numbers_of_features")
    assert found.page["architecture_agreement"] < 0.6
    # All features are active somewhere: read that way, the overlap of any two is 1.
    assert found.page["feature_overlap_of_all"] == 1 and found.flagged("overlap_of_what")
    assert found.repaired["shared"] == 1 and found.passed is True
    assert found.repaired["matched_overlap"] == pytest.approx(1)
    assert found.repaired.values == pytest.approx(same.repaired.values, abs=0.1)


def test_random_dictionaries_of_few_numbers_pass_the_page() -> None:
    found = of_random(64, 8)
    # The defect: the largest of many random cosines exceeds the threshold twice over.
    assert found.page.passed is True and found.flagged("direction_by_chance")
    assert found.repaired.passed is False
    assert found.repaired["shared_above_chance"] < 0.1
    wide = of_random(64, 64)
    assert wide.page.passed is False and wide.repaired["shared"] == 0


def test_a_permuted_decoder_passes_the_page_alone() -> None:
    planted = plant()
    # The defect: only encoders are compared.
    found = measured(planted, planted.sae("permuted", seed=2), planted.sae("true"))
    assert found.page.passed is True and found.repaired.passed is False
    assert found.repaired["shared"] < 0.2


def test_opposite_and_noisy_dictionaries() -> None:
    planted = plant(d=64)
    near = measured(planted, planted.sae("true"), planted.sae("noisy", cosine=0.9, seed=5))
    far = measured(planted, planted.sae("true"), planted.sae("noisy", cosine=0.4, seed=5))
    assert near.passed is True and far.passed is False
    assert near.repaired["matched_cosine"] == pytest.approx(0.9, abs=0.02)


def test_merged_features_have_no_counterpart_of_their_own() -> None:
    planted = plant(orthogonal=True)
    found = measured(planted, planted.sae("merged"), planted.sae("true"))
    assert found.passed is False and found.flagged("other_widths")
    assert found.repaired["shared"] <= 24 / 36


def test_dead_features_are_left_out() -> None:
    rows, codes = torch.eye(6), (torch.rand(100, 6) < 0.5).float()
    codes[:, 5] = 0
    found = duality(codes, codes, rows, rows, rows, rows)
    assert found.repaired["shared"] == 1 and found.flagged("dead_features")
    nothing = duality(codes * 0, codes, rows, rows, rows, rows)
    assert nothing.repaired.passed is None and nothing.repaired["shared"] is None
    both = duality(codes * 0, codes * 0, rows, rows, rows, rows)
    assert both.page["feature_overlap"] is None and both.page.passed is None


def test_bad_inputs_are_said() -> None:
    planted = plant(documents=4)
    true = planted.sae()
    with pytest.raises(BadUsage, match="got Directions"):
        measured(planted, Directions(torch.eye(32)), true)
    with pytest.raises(BadUsage, match="second sparse autoencoder"):
        measured(planted, true)
    given = {"sae": true, "other sae": (true,), "texts": planted.store()}
    with pytest.raises(BadUsage, match="trained on resid.0"):
        measure("M07", site="resid.1@all", more=given)
    with pytest.raises(BadUsage, match="rows of at least 2"):
        measure("M07:rows=1", site=SITE, more={"sae": 1, "other sae": 1, "texts": 1})


def test_how_often_thresholds_err() -> None:
    found = null_table("M07", 32, n_simulations=20)
    assert found.false_alarm("page") == 1 and found.false_alarm("repaired") == 0
    assert found.power("repaired") == 1
