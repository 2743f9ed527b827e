"""SAEs in every part of the model and under every intervention, against values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mechassay.features as features
from helpers.pairs import token_interchanges
from mechassay.errors import BadUsage
from mechassay.features.featurizer import ChosenFeatures
from mechassay.features.sae import SAE
from mechassay.interventions.intervene import intervene, site_values
from mechassay.interventions.intervention import Ablate, Interchange, Replace, tokens_of
from mechassay.interventions.site import Site, load_site
from mechassay.interventions.sweep import sweep
from mechassay.models.model import Model, make_model
from mechassay.testing import tiny

SITES = ("resid.-1@x", "resid.0@x", "heads.1@x", "heads.0.1@x", "mlp.1@x")
KINDS: dict[str, dict[str, Any]] = {
    "relu": {},
    "centred": {"centred": True},
    "topk": {"activation": "topk", "k": 3},
    "jumprelu": {"activation": "jumprelu"},
    "gated": {"activation": "gated"},
    "layer-norm": {"normalization": "layer_norm", "activation": "topk", "k": 4},
    "constant-norm": {"normalization": "constant_norm_rescale"},
}
N = 12


def made(width: int, kind: str) -> SAE:
    drawn = torch.Generator().manual_seed(3)
    noise = torch.randn(4 + 2 * width, N, generator=drawn, dtype=torch.float64)
    w_enc, w_dec = noise[4 : 4 + width], noise[4 + width :].mT.contiguous()
    settings = dict(KINDS[kind])
    if kind == "jumprelu":
        settings["threshold"] = noise[1].abs() * 0.2
    if kind == "gated":
        settings |= {"b_gate": noise[1] * 0.3, "r_mag": noise[2] * 0.3}
    return SAE(w_enc, w_dec, noise[0] * 0.1, w_dec[0] * 0.1, **settings)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(tiny.build("llama", torch.float64))


def values(model: Model, batch: Any, site: Site) -> tuple[Tensor, Tensor]:
    row, base, source = tokens_of(batch, site)
    assert source is not None
    [ours] = site_values(model, batch.base, batch.base_mask, [(site, row, base)])
    [theirs] = site_values(model, batch.source, batch.source_mask, [(site, row, source)])
    return ours, theirs


def by_hand(sae: SAE, base: Tensor, new: Tensor) -> Tensor:
    """The base with features `new`, a value at a time: what decodes stands in the base's units."""
    rows: list[Tensor] = []
    for h, f, old in zip(base, new, sae.encode(base), strict=True):
        unit = torch.tensor(1.0).double()
        if sae.normalization == "layer_norm":
            unit = h.std()
        if sae.normalization == "constant_norm_rescale":
            unit = h.norm() / len(h) ** 0.5
        rows.append(h + unit * sum((f - old)[i] * sae.w_dec[i] for i in range(N)))
    return torch.stack(rows)


PAIRS = [(SITES[number % len(SITES)], kind) for number, kind in enumerate(KINDS)]
"""Every site and every kind of SAE."""


@pytest.mark.few(3)
@pytest.mark.parametrize(("where", "kind"), PAIRS)
def test_interventions_on_features(where: str, kind: str, model: Model) -> None:
    site, batch = load_site(where), token_interchanges()
    sae, chosen = made(site.width(model.decoder), kind), torch.arange(N) % 2 == 0
    base, source = values(model, batch, site)
    ours, theirs = sae.encode(base), sae.encode(source)
    assert bool((ours != theirs).any())
    ablated = torch.where(chosen, 0.0, ours)
    cases: list[tuple[Any, Tensor]] = [
        (Interchange(ChosenFeatures(sae, chosen)), torch.where(chosen, theirs, ours)),
        (Interchange(sae), theirs),
        (features.ScaleFeatures(sae, 0.0, chosen), ablated),
        (features.ScaleFeatures(sae, 3.0), 3.0 * ours),
    ]
    for intervention, new in cases:
        found = intervene(model, batch, {site: intervention})
        wanted = intervene(model, batch, {site: Replace(by_hand(sae, base, new))})
        assert torch.allclose(found.log_probs, wanted.log_probs, atol=1e-9)
        assert bool((found.log_probs != found.base_log_probs).any())
        swept = sweep(model, batch, [site], {site: intervention})
        assert torch.allclose(torch.tensor(swept.log_probs[:, 0]), found.log_probs, atol=1e-9)
    spliced = intervene(model, batch, {site: features.Splice(sae)})
    wanted = intervene(model, batch, {site: Replace(sae.reconstruct(base))})
    assert torch.allclose(spliced.log_probs, wanted.log_probs, atol=1e-9)
    same = intervene(model, batch, {site: features.ScaleFeatures(sae, 1.0)})
    none = intervene(model, batch, {site: features.ScaleFeatures(sae, 0.0, ~chosen & chosen)})
    assert not bool(same.changed.any() or none.changed.any())


@pytest.mark.parametrize("kind", ["topk", "gated", "layer-norm"])
def test_masks_over_features_are_trained(kind: str, model: Model) -> None:
    batch, where = token_interchanges(), ("resid.0@x", "resid.1@x")
    sae = made(model.decoder.d_model, kind)
    finder = features.DBM(steps=3, batch_size=6, lr=0.1)
    fit = finder.fit(model, batch, where, init=dict.fromkeys(where, sae))
    assert all(0 <= (fit.n_features(site) or 0) <= N for site in where)
    assert bool(torch.isfinite(fit.losses).all()) and fit.featurizer(where[0]) is sae
    together = finder.fit(model, batch, where, init=dict.fromkeys(where, sae), together=True)
    assert bool(torch.isfinite(together.losses).all())


def test_a_decoder_direction_is_ablated_like_any_other(model: Model) -> None:
    sae, batch = made(model.decoder.d_model, "relu"), token_interchanges()
    direction = sae.w_dec[4] / sae.w_dec[4].norm()
    found = intervene(model, batch, {"resid.0@x": Ablate(sae.w_dec[4])})
    base, _ = values(model, batch, load_site("resid.0@x"))
    wanted = base - (base @ direction)[:, None] * direction
    same = intervene(model, batch, {"resid.0@x": Replace(wanted)})
    assert torch.allclose(found.log_probs, same.log_probs, atol=1e-9)


def test_mistakes_are_one_line(model: Model) -> None:
    batch, sae = token_interchanges(), made(model.decoder.d_model + 1, "relu")
    for intervention in (Interchange(sae), features.Splice(sae), features.ScaleFeatures(sae, 0.0)):
        with pytest.raises(BadUsage, match="This SAE reads values of"):
            intervene(model, batch, {"resid.0@x": intervention})
    wrong = features.ScaleFeatures(made(model.decoder.d_model, "relu"), 0.0, torch.ones(3).bool())
    with pytest.raises(BadUsage, match="mask of 12"):
        intervene(model, batch, {"resid.0@x": wrong})
