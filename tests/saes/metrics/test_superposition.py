"""M13: spectra and dictionaries worked by hand, planted features, values without any.

M13 as a gauge: a store of a tiny model, dictionaries, sums over layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.texts import word_corpus, word_model
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.sae import SAE
from mechassay.measurement import measure
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.metric import load_gauge
from mechassay.models.memory import token_budget
from mechassay.saes import ActivationStore, StoreSettings, store_activations
from mechassay.saes.feature_matching import random_sae
from mechassay.saes.metrics.superposition import (
    STRONG,
    DictionaryFit,
    Moments,
    distinct,
    fitted,
    gaussian_values,
    in_use,
    interference,
    layer_moments,
    neighbours,
    null,
    overlap,
    participation_ratio,
    random_rows,
    regime,
    sparse_values,
    superposition,
    welch,
)
from mechassay.utils.display import SILENT

RNG = np.random.default_rng
D = 24


def simplex(d: int) -> np.ndarray:
    """d + 1 unit vectors of d numbers whose cosines are all -1 / d."""
    rows = np.eye(d + 1) - 1 / (d + 1)
    axes = np.linalg.svd(rows)[2][:d]
    made = rows @ axes.T
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def made(rows: np.ndarray, values: np.ndarray, k: int = 3) -> DictionaryFit:
    rng, groups = RNG(5), [str(i // 20) for i in range(len(values))]
    return fitted(rows, values, gaussian_values(values, rng), k, groups)


def layers(values: np.ndarray) -> dict[str, Moments]:
    return {"resid.0": Moments.of(values)}


def test_participation_ratio_by_hand() -> None:
    assert participation_ratio(np.ones(7)) == pytest.approx(7)
    assert participation_ratio(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert participation_ratio(np.array([3.0, 3.0, 0])) == pytest.approx(2)
    # Squares 4 and 1: 25 / 17.
    assert participation_ratio(np.array([4.0, 1.0])) == pytest.approx(25 / 17)
    assert math.isnan(participation_ratio(np.zeros(3)))


def test_regimes_of_the_page() -> None:
    assert [regime(x) for x in (0.0, 0.8, 0.81, 1.2, 1.21)] == [0, 0, 1, 1, 2]
    assert regime(0.5, 0.2) == 2 and regime(0.5, 0.12) == 1
    assert math.isnan(regime(math.nan))
    axes = np.array([[1.0, 0.6], [0.0, 0.8]])
    assert interference(axes) == pytest.approx(0.6) and math.isnan(interference(axes[:, :1]))


def test_overlaps_by_hand() -> None:
    assert overlap(np.eye(6)) == pytest.approx(0) and math.isnan(overlap(np.eye(6)[:1]))
    # Three rows at 120 degrees: squared cosines of 1/4, in two dimensions.
    assert overlap(simplex(2)) == pytest.approx(2 / 4)
    assert overlap(random_rows(4000, D, RNG(0))) == pytest.approx(1, abs=0.01)
    rows = random_rows(50, D, RNG(1))
    slow = [float(a @ b) ** 2 for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    assert overlap(rows) == pytest.approx(D * np.mean(slow))


@pytest.mark.parametrize("d", [2, 3, 8])
def test_a_simplex_meets_the_welch_bound(d: int) -> None:
    rows = simplex(d)
    assert neighbours(rows, RNG(0))[1] == pytest.approx([1 / d] * (d + 1))
    assert welch(d + 1, d) == pytest.approx(1 / d) and welch(d, d) == 0
    assert overlap(rows) == pytest.approx((d + 1 - d) / d)


def test_rows_that_are_the_same_are_one() -> None:
    rows = np.repeat(np.eye(4), [1, 2, 3, 6], axis=0)
    counts, _ = neighbours(rows, RNG(0))
    assert distinct(counts, len(rows)) == pytest.approx(4)
    # A row and its opposite are two features.
    assert distinct(neighbours(np.array([[1.0, 0], [-1.0, 0]]), RNG(0))[0], 2) == 2
    assert distinct(np.ones(0), 0) == 0


def test_short_and_silent_rows_are_not_in_use() -> None:
    rows = np.array([[2.0, 0], [0, 2.0], [0.4, 0], [0, 0], [3.0, 4.0]])
    assert in_use(rows).tolist() == [[1, 0], [0, 1], [0.6, 0.8]]
    active = np.array([True, False, True, True, True])
    assert in_use(rows, active).tolist() == [[1, 0], [0.6, 0.8]]
    assert len(in_use(np.zeros((0, 2)))) == 0


def test_gaussian_values_have_the_same_moments() -> None:
    values = RNG(0).standard_normal((20_000, 4)) @ RNG(1).standard_normal((4, 4)) + 3
    drawn = gaussian_values(values, RNG(2))
    assert drawn.mean(axis=0) == pytest.approx(values.mean(axis=0), abs=0.1)
    assert np.cov(drawn.T) == pytest.approx(np.cov(values.T), abs=0.35)


def test_superposed_features_are_weak_as_published_and_strong_as_repaired() -> None:
    """The defect: six features a dimension, which the page reads as weak or in transition."""
    rows = random_rows(6 * D, D, RNG(0))
    values = sparse_values(rows, 600, 3, RNG(1))
    found = superposition(layers(values), rows, made(rows, values))
    assert found.page["regime"] < 2 and found.flagged("strong_unreachable")
    assert found.page["interference"] < 1e-12
    assert found.repaired["packing"] == pytest.approx(6, abs=0.1)
    assert found.repaired["regime"] == 2 and found.repaired["gain_over_gaussian"] > 0.05
    assert found.passed is None and found.page.passed is None, "the metric only reports"
    assert str(found.criterion) == "mv-27@1:M6"


def test_one_large_direction_makes_everything_weak_as_published() -> None:
    """The defect: all the other features count for nothing."""
    rows = random_rows(6 * D, D, RNG(0))
    values = sparse_values(rows, 600, 3, RNG(1)) + 50 * np.eye(D)[0]
    assert superposition(layers(values), rows).page["effective_rank"] < 1.1


def test_values_without_features_have_no_regime() -> None:
    rows = random_rows(6 * D, D, RNG(0))
    values = RNG(1).standard_normal((600, D))
    found = superposition(layers(values), rows, made(rows, values))
    assert found.flagged("no_features") and found.repaired["regime"] is None
    assert abs(found.repaired["gain_over_gaussian"]) < 0.03
    assert found.repaired["packing"] > 5, "any dictionary may have more rows than dimensions"


def test_orthogonal_features_are_not_strong_however_often_they_are_there() -> None:
    values = sparse_values(np.eye(D), 600, 2, RNG(1))
    rows = np.concatenate([np.eye(D)] * 5)
    fit = made(np.eye(D), values, 2)
    found = superposition(layers(values), rows, replace(fit, active=np.tile(fit.active, 5)))
    assert found.repaired["packing"] == pytest.approx(1) and found.repaired["regime"] == 1
    assert found.flagged("same_rows")
    fewer = sparse_values(np.eye(D)[:12], 600, 2, RNG(1))
    once = superposition(layers(fewer), np.eye(D)[:12], made(np.eye(D)[:12], fewer, 2))
    assert once.repaired["packing"] == pytest.approx(0.5) and once.repaired["regime"] == 0
    assert once.repaired["overlap"] == pytest.approx(0)


def test_rows_of_the_models_own_weights_need_no_values() -> None:
    values = RNG(1).standard_normal((10, D))
    found = superposition(layers(values), random_rows(100, D, RNG(0)))
    assert found.repaired["regime"] == 2 and found.repaired["gain_over_gaussian"] is None
    assert found.flagged("few_samples")
    assert found.repaired["nearest"] == pytest.approx(found.repaired["nearest_random"], abs=0.05)


def test_a_dictionary_of_which_nothing_is_in_use() -> None:
    values = RNG(1).standard_normal((100, D))
    found = superposition(layers(values), np.zeros((5, D)), made(np.zeros((5, D)), values))
    assert found.repaired["regime"] is None and found.repaired["overlap"] is None
    assert found.repaired["in_use"] == 0
    still = superposition(layers(np.zeros((4, D))), np.eye(D))
    assert still.page["regime"] is None and still.page["effective_rank"] is None


def test_layers_are_rows_of_the_table() -> None:
    values = RNG(0).standard_normal((300, D))
    skewed = values * np.r_[100.0, np.ones(D - 1)]
    found = superposition({"resid.0": Moments.of(values), "resid.1": Moments.of(skewed)}, np.eye(D))
    rows = found.tables[0].rows()
    assert [row["regime"] for row in rows] == ["transition", "weak"]
    mean = np.mean([row["effective rank"] for row in rows])
    assert found.page["effective_rank"] == pytest.approx(mean)
    with pytest.raises(BadUsage, match="one layer or more"):
        superposition({}, np.eye(D))
    with pytest.raises(BadUsage, match="widths"):
        superposition(layers(values), np.eye(D + 1))


def test_centred_moments_are_those_of_values_less_their_mean() -> None:
    values = RNG(0).standard_normal((50, 3)) + 4
    centred = values - values.mean(axis=0)
    assert Moments.of(values).centred == pytest.approx(centred.T @ centred)


def test_how_often_a_layer_is_read_as_strong() -> None:
    table = null()  # the one that measurements show
    assert table.power("page", STRONG) == 0 and table.false_alarm("page", STRONG) == 0
    assert table.power("repaired", STRONG) > 0.9
    assert table.false_alarm("repaired", STRONG) < 0.15


SETTINGS = StoreSettings(window=12, test=0.4, dtype="float32")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ActivationStore:
    folder = tmp_path_factory.mktemp("stores")
    corpus = word_corpus(documents=12, words=200)
    return store_activations(word_model(), "resid.0", corpus, folder, SETTINGS, progress=SILENT)


def measured(store: ActivationStore, metric: str = "M13", **given: Any) -> Measurement:
    return measure(metric, word_model(), more={"texts": store}, **given)


def exact(d: int) -> SAE:
    """2 d features that lose nothing: the positive and the negative part of every number."""
    both = torch.cat([torch.eye(d), -torch.eye(d)])
    return SAE(both.mT.contiguous(), both, torch.zeros(2 * d), torch.zeros(d), hook="resid.0")


@pytest.mark.slow
def test_a_dictionary_that_loses_nothing_of_any_value_shows_no_features(
    store: ActivationStore,
) -> None:
    found = measured(store, sae=exact(word_model().decoder.d_model))
    assert found.repaired["explained_variance"] == pytest.approx(1)
    assert found.repaired["gain_over_gaussian"] == pytest.approx(0, abs=1e-6)
    assert found.repaired["packing"] == pytest.approx(2)
    assert found.flagged("no_features") and found.repaired["regime"] is None


def test_a_dictionary_of_the_values_themselves_has_features(store: ActivationStore) -> None:
    # Behind the embedding there are as many values as words, and no more than that.
    values = store.values("train").float()
    rows = values.unique(dim=0)
    unit = rows / rows.norm(dim=1, keepdim=True)
    zeros = torch.zeros(len(unit))
    sae = SAE(unit.mT.contiguous(), unit, zeros, torch.zeros(unit.shape[1]), "topk", k=1)
    found = measured(store, sae=sae)
    random = measured(store, sae=random_sae(sae.d_in, sae.n_features, 1, torch.zeros(sae.d_in)))
    assert found.repaired["gain_over_gaussian"] > random.repaired["gain_over_gaussian"]
    assert found.repaired["explained_variance"] > random.repaired["explained_variance"]


def test_without_an_sae_the_unembedding_is_the_dictionary(store: ActivationStore) -> None:
    decoder = word_model().decoder
    found = measured(store)
    told = found.tables[1].rows()[0]
    assert told["dictionary"] == "unembedding" and told["rows"] == len(decoder.unembedding)
    assert found.repaired["gain_over_gaussian"] is None and found.repaired["regime"] is not None
    other = measured(store, "M13:dictionary=embedding")
    assert other.tables[1].rows()[0]["dictionary"] == "embedding"


def test_layers_are_those_of_the_store(store: ActivationStore) -> None:
    """The slow way: the store's own values."""
    windows, drop = store.windows("test"), store.settings.drop
    found = layer_moments(word_model(), windows.tokens, drop, SILENT)
    values = store.values("test").double().numpy()
    assert list(found) == [f"resid.{i}" for i in range(len(word_model().decoder.layers))]
    assert found["resid.0"].n == len(values)
    assert found["resid.0"].total == pytest.approx(values.sum(axis=0), abs=1e-3)
    assert found["resid.0"].products == pytest.approx(values.T @ values, abs=1e-2)


def test_batches_do_not_matter(store: ActivationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.saes.metrics import superposition as m13

    windows = store.windows("test").tokens
    whole = layer_moments(word_model(), windows, 1, SILENT)["resid.1"].products
    monkeypatch.setattr(m13, "token_budget", lambda *args: min(30, token_budget(*args)))
    parts = layer_moments(word_model(), windows, 1, SILENT)["resid.1"].products
    assert np.allclose(parts, whole, rtol=1e-4)


def test_few_texts_are_flagged(store: ActivationStore) -> None:
    assert measured(store).flagged("few_texts")
    some = measured(store, "M13:n_samples=3")
    assert not some.flagged("few_texts")
    assert some.page.quantities["effective_rank"].n == 3 * (SETTINGS.window - SETTINGS.drop)


@dataclass(frozen=True)
class WithoutRows:
    def encode(self, h: Tensor) -> Tensor:
        return h

    def decode(self, f: Tensor) -> Tensor:
        return f


def test_bad_input_is_one_clear_line(store: ActivationStore, tmp_path: Path) -> None:
    d = word_model().decoder.d_model
    with pytest.raises(BadUsage, match="texts"):
        measure("M13", word_model())
    with pytest.raises(BadUsage, match="has rows of"):
        measured(
            store,
            sae=SAE(torch.ones(d + 1, 3), torch.ones(3, d + 1), torch.zeros(3), torch.zeros(d + 1)),
        )
    with pytest.raises(BadUsage, match="dictionary with rows; a WithoutRows"):
        measured(store, sae=WithoutRows())
    wrong = exact(d)
    object.__setattr__(wrong, "hook", "resid.1")
    with pytest.raises(BadUsage, match="trained on resid.1"):
        measured(store, sae=wrong)
    with pytest.raises(BadUsage, match="sparse autoencoder"):
        measured(store, "M13:dictionary=sae")
    with pytest.raises(UnknownName, match="dictionary of M13"):
        load_gauge("M13:dictionary=all")
    with pytest.raises(BadUsage, match="n_samples of at least 1"):
        load_gauge("M13:n_samples=0")
