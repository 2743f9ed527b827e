"""Quality: answers worked by hand, worthless dictionaries, and losses of hooked runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.texts import word_corpus, word_model
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.sae import SAE
from mechassay.interventions.site import load_site
from mechassay.models.model import untrained
from mechassay.saes import (
    ActivationStore,
    SAEQuality,
    StoreSettings,
    sae_quality,
    store_activations,
)
from mechassay.saes.activations import Windows
from mechassay.saes.feature_matching import cosine_to, permuted_sae, random_sae, seed_agreement
from mechassay.saes.quality import spliced_loss
from mechassay.testing import check_record
from mechassay.utils.display import SILENT

SETTINGS = StoreSettings(window=12, test=0.3, dtype="float32")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ActivationStore:
    folder = tmp_path_factory.mktemp("stores")
    return store_activations(
        word_model(), "resid.0", word_corpus(), folder, SETTINGS, progress=SILENT
    )


def exact(d: int) -> SAE:
    """2 d features that lose nothing: the positive and the negative part of every number."""
    both = torch.cat([torch.eye(d), -torch.eye(d)])
    return SAE(both.mT.contiguous(), both, torch.zeros(2 * d), torch.zeros(d))


def nothing(d: int, to: Tensor) -> SAE:
    """Features that are never active, around a vector."""
    return SAE(torch.zeros(d, 5), torch.ones(5, d), torch.full((5,), -1.0), to)


def measured(store: ActivationStore, sae: SAE, **settings: Any) -> SAEQuality:
    return sae_quality(word_model(), sae, store, progress=SILENT, **settings)


def test_a_dictionary_that_loses_nothing(store: ActivationStore) -> None:
    d = word_model().decoder.d_model
    found = measured(store, exact(d))
    values = store.values("test")
    assert found.measure("explained_variance").value == pytest.approx(1.0, abs=1e-9)
    assert found.measure("explained_variance_without_pc1").value == pytest.approx(1.0, abs=1e-9)
    assert found.measure("l0").value == pytest.approx(float((values != 0).sum(1).double().mean()))
    assert found.measure("recovered_zero").value == pytest.approx(1.0, abs=1e-4)
    model = found.measure("cross_entropy", "model").value
    assert found.measure("cross_entropy").value == pytest.approx(model, abs=1e-5)
    assert found.measure("pca_explained_variance").value == pytest.approx(1.0, abs=1e-6)
    # All features are active on each of a few documents, which agree.
    assert math.isnan(found.measure("l0").low) and math.isnan(found.measure("l0").high)


def test_a_dictionary_without_features(store: ActivationStore) -> None:
    values = store.values("test")
    d, mean = values.shape[1], values.double().mean(0).float()
    found = measured(store, nothing(d, mean))
    assert found.measure("explained_variance").value == pytest.approx(0.0, abs=1e-6)
    assert found.measure("l0").value == 0 and found.measure("dead").value == 1
    windows = store.windows("test").first(64)
    loss = spliced_loss(word_model(), store.site, windows, mean).mean()
    assert found.measure("cross_entropy").value == pytest.approx(float(loss), abs=1e-5)
    # Words are random here: the mean of values is no worse than they are, so nothing is recovered.
    assert loss < found.measure("cross_entropy", "model").value
    recovered = found.measure("recovered_mean")
    assert recovered.value != recovered.value and recovered.n_undefined == recovered.n > 0
    zero = measured(store, nothing(d, torch.zeros(d)), controls=())
    assert zero.measure("recovered_zero").value == pytest.approx(0.0, abs=1e-6)
    assert zero.measure("explained_variance").value < 0 or float(mean.norm()) == 0


def test_explained_variance_by_hand_and_its_invariance(store: ActivationStore) -> None:
    values = store.values("test").double()
    d = values.shape[1]
    drawn = torch.Generator().manual_seed(0)
    w = torch.randn(d, 9, generator=drawn)
    sae = SAE(w, 0.1 * w.mT.contiguous(), torch.zeros(9), values.mean(0).float(), centred=True)
    found = measured(store, sae, controls=())
    left = sum(
        float((h - sae.reconstruct(h.float()[None])[0].double()).square().sum()) for h in values
    )
    total = float((values - values.mean(0)).square().sum())
    assert found.measure("explained_variance").value == pytest.approx(1 - left / total, rel=1e-4)
    fewer = measured(store, sae, controls=(), rows=None, windows=3)
    assert fewer.measure("explained_variance") == found.measure("explained_variance")
    assert fewer.measure("cross_entropy").n == 3


def test_controls_stand_beside_the_result(store: ActivationStore) -> None:
    d = word_model().decoder.d_model
    found = measured(store, exact(d))
    kinds = {m.of for m in found.measures}
    assert kinds == {"result", "model", "control:random", "control:permuted"}
    own = found.measure("explained_variance").value
    for control in ("control:random", "control:permuted"):
        assert found.measure("explained_variance", control).value < own
    permuted = found.measure("l0", "control:permuted").value
    assert permuted == found.measure("l0").value
    # The random dictionary keeps as many features as the SAE has on average.
    assert found.measure("l0", "control:random").value <= round(found.measure("l0").value)


def test_seeds_initialisation_and_the_untrained_model(
    store: ActivationStore, tmp_path: Path
) -> None:
    d = word_model().decoder.d_model
    sae = exact(d)
    bare = untrained(word_model(), seed=3)
    beside = store_activations(bare, "resid.0", word_corpus(), tmp_path, SETTINGS, progress=SILENT)
    found = measured(
        store,
        sae,
        initial=sae.w_dec,
        seeds=[permuted_sae(sae, seed=4)],
        untrained=(bare, sae, beside),
    )
    assert found.measure("init_cosine").value == pytest.approx(1.0)
    assert found.measure("shared").value == 1 > found.measure("shared", "control:random").value
    assert found.measure("explained_variance", "control:untrained").value == pytest.approx(1.0)
    with pytest.raises(BadUsage, match="not of this model"):
        sae_quality(bare, sae, store, progress=SILENT)


def test_a_record_holds_all_of_it(store: ActivationStore) -> None:
    found = measured(store, exact(word_model().decoder.d_model))
    record = found.record(cell={"model": "tiny", "site": "resid.0"})
    check_record(record)
    assert record.measures == list(found.measures) and record.kind == "saes"
    assert any("No other seed" in each for each in record.warnings)
    assert "explained variance" in found._repr_html_() and "SAEQuality(site=" in repr(found)
    assert len(found.to_pandas()) == len(found.measures)
    with pytest.raises(UnknownName, match="measure"):
        found.measure("explained")


@pytest.mark.parametrize(
    "site", ["resid.-1", "resid.0", "resid.1", "mlp.0", "heads.1", "heads.0.1"]
)
def test_losses_are_those_of_hooked_runs(site: str) -> None:
    model, at = word_model(torch.float64), load_site(site)
    tokens = torch.arange(36).view(3, 12) % 50
    windows = Windows(tokens, torch.arange(3))
    vector = torch.randn(at.width(model.decoder), generator=torch.Generator().manual_seed(1))
    path, inputs = {
        "resid.-1": ("model.embed_tokens", False),
        "resid.0": ("model.layers.0", False),
        "resid.1": ("model.layers.1", False),
        "mlp.0": ("model.layers.0.mlp", False),
        "heads.1": ("model.layers.1.self_attn.o_proj", True),
        "heads.0.1": ("model.layers.0.self_attn.o_proj", True),
    }[site]
    width = len(vector)
    begin = width * at.heads[0] if at.heads else 0

    def changed(value: Tensor) -> Tensor:
        new = value.clone()
        new[:, 1:, begin : begin + width] = vector.to(value)
        return new

    def after(module: Any, args: Any, out: Any) -> Any:
        return (changed(out[0]), *out[1:]) if isinstance(out, tuple) else changed(out)

    def before(module: Any, args: Any) -> Any:
        return (changed(args[0]), *args[1:])

    part = model.hf.get_submodule(path)
    for put in (vector, None):
        handles = []
        if put is not None:
            hook: Any = part.register_forward_pre_hook if inputs else part.register_forward_hook
            handles = [hook(before if inputs else after)]
        with torch.no_grad():
            logits = model.hf(tokens, use_cache=False).logits[:, 1:-1]
        for handle in handles:
            handle.remove()
        wanted = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 2:].flatten(), reduction="none"
        )
        found = torch.from_numpy(spliced_loss(model, at, windows, put, batch=2))
        assert torch.allclose(found, wanted.view(3, -1).double().mean(1), atol=1e-6)


def test_matching_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    zeros = torch.zeros(2)
    a = SAE(rows.mT.contiguous(), rows, zeros, zeros)
    turned = torch.tensor([[0.6, 0.8], [3.0, 0.0]])
    b = SAE(turned.mT.contiguous(), turned, zeros, zeros)
    found = seed_agreement(a, b)
    # Row 0 is row 1 of the other; row 1 has a cosine of .8 with row 0.
    assert found.others.tolist() == [1, 0]
    assert torch.allclose(found.cosines, torch.tensor([1.0, 0.8]))
    assert found.matched == pytest.approx(0.9) and found.shared == 1.0
    flipped = SAE(a.w_enc, -rows, zeros, zeros)
    assert seed_agreement(a, flipped).shared == 0.0
    assert cosine_to(a, turned).tolist() == pytest.approx([0.6, 0.0])
    wide = random_sae(3, 4, 2, torch.zeros(3))
    with pytest.raises(BadUsage, match="one width"):
        seed_agreement(a, wide)
    with pytest.raises(BadUsage, match="Rows of shape"):
        cosine_to(a, torch.zeros(3, 2))


def test_random_dictionaries_share_nothing_and_have_a_known_largest_cosine() -> None:
    one, two = (random_sae(64, 512, 8, torch.zeros(64), seed=seed) for seed in (0, 1))
    found = seed_agreement(one, two)
    assert found.shared == 0 and found.random_shared == 0
    assert found.mean_max == pytest.approx(0.37, abs=0.02)
    assert found.random_mean_max == pytest.approx(found.mean_max, abs=0.01)
    same = seed_agreement(one, permuted_sae(one, seed=2))
    assert same.shared == 1 and same.matched == pytest.approx(1.0)


def test_mistakes_are_one_line(store: ActivationStore) -> None:
    d = word_model().decoder.d_model
    with pytest.raises(BadUsage, match="reads values of 5 numbers; resid.0@all has"):
        measured(store, exact(5))
    with pytest.raises(BadUsage, match="trained on resid.1"):
        measured(store, replace(exact(d), hook="resid.1"))
    with pytest.raises(UnknownName, match="controls of sae_quality 'shuffled'"):
        measured(store, exact(d), controls=("shuffled",))
    with pytest.raises(BadUsage, match="has 3 numbers"):
        random_sae(3, 4, 2, torch.zeros(2))
