"""What any finder and any featurizer must satisfy, on all of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import mechassay.features as features
from helpers.pairs import token_interchanges
from mechassay.features.featurizer import Affine, Directions, Identity, PrincipalAxes
from mechassay.features.sae import SAE
from mechassay.models.model import make_model
from mechassay.testing import check_featurizer, check_finder, tiny

FINDERS: list[Any] = [
    features.FullVector(),
    features.DAS(k=3, steps=4, batch_size=4),
    features.DAS(k=2, epochs=2, batch_size=4, shuffle=True, optimizer="adamw", schedule="linear"),
    features.BoundlessDAS(steps=4, batch_size=4),
    features.DBM(steps=4, batch_size=4, lr=0.1),
    features.Probe(l2=0.5),
    features.DiffInMeans(),
    features.PCA(k=2),
    features.LDA(shrinkage=0.5),
    features.KMeans(),
    features.RandomDirections(k=2),
]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.few(3)
@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: f"{finder.name}")
def test_finders(finder: Any) -> None:
    model = make_model(tiny.build("llama", torch.float64))
    fit = check_finder(finder, model, token_interchanges(), ["resid.1@x", "mlp.0@last"])
    assert len(fit) == 2 and "resid.1@x" in fit and "resid.0@x" not in fit


def test_every_finder_is_checked() -> None:
    named = {type(finder).__name__ for finder in FINDERS}
    known = {
        name
        for name in features.__all__
        if hasattr(getattr(features, name), "fit") and name != "Finder"
    }
    assert named == known


def featurizers() -> list[Any]:
    noise = torch.randn(6, 9, generator=generator())
    axes = torch.linalg.qr(noise[:, :4])[0]
    arrays = noise, noise.mT.contiguous(), noise[0] * 0.1, noise[:, 0] * 0.1
    return [
        Identity(),
        Directions(axes),
        PrincipalAxes(axes, noise[:, 5], noise[0, :4].abs()),
        Affine(noise[:, :4], noise[0, :4]),
        SAE(*arrays),
        SAE(*arrays, "jumprelu", threshold=noise[1].abs()),
        SAE(*arrays, "topk", k=3, centred=True),
        SAE(*arrays, "gated", b_gate=noise[2], r_mag=noise[3]),
        SAE(*arrays, "topk", k=3, normalization="layer_norm"),
        SAE(*arrays, normalization="constant_norm_rescale", centred=True),
    ]


@pytest.mark.parametrize("featurizer", featurizers(), ids=lambda each: type(each).__name__)
def test_featurizers(featurizer: Any) -> None:
    values, others = torch.randn(2, 5, 6, generator=generator()).unbind()
    check_featurizer(featurizer, values, others)


def test_a_featurizer_that_mixes_rows_is_refused() -> None:
    class Mixing(Identity):
        def encode(self, h: torch.Tensor) -> torch.Tensor:
            return h - h.mean(0)

    values, others = torch.randn(2, 5, 6, generator=generator()).unbind()
    with pytest.raises(AssertionError, match="a value's features are its own"):
        check_featurizer(Mixing(), values, others)


@dataclass(frozen=True)
class Careless(features.RandomDirections):
    """Draws from the global generator."""

    def find(self, values: Any) -> Any:
        torch.rand(1)
        return super().find(values)


def test_a_finder_that_uses_the_global_generator_is_refused() -> None:
    model = make_model(tiny.build("llama"))
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError, match="generator"):
        check_finder(Careless(), model, token_interchanges(), ["resid.0@x", "resid.1@x"])
