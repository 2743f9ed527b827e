"""M13 as a gauge: a store of a tiny model, dictionaries, sums over layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mechassay.errors import BadUsage, UnknownName
from mechassay.features.sae import SAE
from mechassay.measurement import load_gauge, measure
from mechassay.measurement.gauges.m13 import layer_moments
from mechassay.measurement.measurement import Measurement
from mechassay.models.memory import token_budget
from mechassay.progress import SILENT
from mechassay.saes import ActivationStore, StoreSettings, random_sae, store_activations
from sae_texts import word_corpus, word_model

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
    from mechassay.measurement.gauges import m13

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
    with pytest.raises(BadUsage, match="one text"):
        load_gauge("M13:n_samples=0")
