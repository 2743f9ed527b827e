"""What every featurizer and every finder has to satisfy; authors may run it on their own.

from mechassay.testing import check_featurizer, check_finder, tiny

check_featurizer(MyFeaturizer(), values, others)
check_finder(MyFinder(), model, interchanges, ["resid.0@last", "resid.1@last"])
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.features.featurizer import ChosenFeatures, Featurizer, exchanged
from mechassay.features.finder import Finder
from mechassay.features.fit import STORED, Fit
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.site import SiteLike, load_site
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.testing.methods import check_configuration


def check_featurizer(
    featurizer: Featurizer,
    values: Float[Tensor, "n d"],
    others: Float[Tensor, "n d"],
    *,
    tolerance: float = 1e-4,
) -> None:
    """Raise AssertionError at the first promise that the featurizer breaks.

    Args:
        values: a site's values in some runs, at least two.
        others: in others.
        tolerance: of rounding, relative to the largest value.
    """
    state = torch.random.get_rng_state()
    before, beside = values.clone(), others.clone()
    scale = tolerance * float(torch.cat((values, others)).abs().max())
    features = featurizer.encode(values)
    assert features.ndim == 2 and len(features) == len(values), "features are [n, k]"
    decoded = featurizer.decode(features)
    assert decoded.shape == values.shape, "decode gives values [n, d]"
    assert bool(torch.isfinite(decoded).all()), "what is decoded is finite"
    alone = featurizer.encode(values[:1])
    assert torch.allclose(alone, features[:1], atol=scale), "a value's features are its own"
    everything = torch.ones(features.shape[1], dtype=torch.bool)
    whole = exchanged(featurizer, values, others, everything)
    assert whole.shape == values.shape and whole.dtype == values.dtype, "a change keeps the shape"
    assert torch.equal(whole, exchanged(featurizer, values, others, everything)), (
        "two calls gave different values"
    )
    assert torch.allclose(whole, ChosenFeatures(featurizer).change(values, others), atol=scale), (
        "all features chosen by a mask are all features"
    )
    same = exchanged(featurizer, values, values, everything)
    assert torch.allclose(same, values, atol=scale), "equal values are changed"
    assert exchanged(featurizer, values, others, ~everything) is values, (
        "nothing chosen returns the base itself"
    )
    assert torch.equal(values, before) and torch.equal(others, beside), "its arguments were changed"
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"


def check_finder(
    finder: Finder, model: Model, interchanges: InterchangeBatch, sites: Sequence[SiteLike]
) -> Fit:
    """Raise AssertionError at the first promise that the finder breaks; what it found.

    Args:
        sites: at least two.
    """
    check_configuration(_as_method(finder))
    assert len(sites) > 1, "a finder is checked on two sites or more"
    tensors = ("base", "base_mask", "source", "source_mask", "labels")
    before = {name: getattr(interchanges, name).clone() for name in tensors}
    weights = {name: value.clone() for name, value in model.hf.state_dict().items()}
    state = torch.random.get_rng_state()
    fit = finder.fit(model, interchanges, sites, progress=SILENT)
    assert torch.equal(torch.random.get_rng_state(), state), (
        "the global generator was used or seeded"
    )
    for name, value in before.items():
        assert torch.equal(getattr(interchanges, name), value), f"the batch's {name} was changed"
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, weights[name]), f"the weight {name} was changed"
    assert fit.sites == tuple(map(load_site, sites)), "sites are in the order they were asked for"
    assert fit.provenance["finder"] == finder.name
    assert fit.provenance["settings"] == asdict(_as_method(finder))
    assert fit.provenance["n_examples"] == len(interchanges)
    if len(fit.losses):
        assert fit.losses.shape[1] == len(sites), "losses are [steps, sites]"
        assert bool(torch.isfinite(fit.losses).all()), "losses are finite"
    again = finder.fit(model, interchanges, sites, progress=SILENT)
    for site in fit.sites:
        values, others = _values(model, site)
        found = fit.features(site).change(values, others)
        assert bool(torch.isfinite(found).all()), f"new values at {site} are not finite"
        assert torch.equal(found, again.features(site).change(values, others)), (
            "two fits gave different features"
        )
        single = finder.fit(model, interchanges, [site], progress=SILENT)
        one = single.features(site).change(values, others)
        assert torch.allclose(found, one, rtol=1e-3, atol=1e-3 * float(values.abs().max())), (
            f"{site} alone and beside other sites has different features"
        )
        _check_file(fit, site, values, others)
    return fit


def _check_file(fit: Fit, site: SiteLike, values: Tensor, others: Tensor) -> None:
    if any(type(each) not in STORED.values() for each in fit.featurizers.values()):
        return
    with tempfile.TemporaryDirectory() as folder:
        loaded = Fit.load(fit.save(Path(folder) / "fit.safetensors"))
    assert loaded.sites == fit.sites and torch.equal(loaded.losses, fit.losses)
    stored, kept = (each.features(site).change(values, others) for each in (loaded, fit))
    assert torch.equal(stored, kept), "a fit that was stored has other features"


def _values(model: Model, site: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 4, site.width(model.decoder), generator=generator, dtype=torch.float64)
    values, others = drawn.to(model.decoder.embedding).unbind()
    return values, others


def _as_method(finder: Finder) -> Any:
    return finder
