"""Declared layers: known answers, an inverse that is checked, and files that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mechassay.errors import BadFile, BadUsage
from mechassay.features.featurizer import Directions, exchanged
from mechassay.features.feed_forward import FeedForward
from mechassay.features.finder import Fit
from mechassay.interventions.site import Site
from mechassay.testing.checks import check_featurizer

TURN = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(4)))[0]
SHIFT = torch.arange(5.0) / 10


def packed(*parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.cat([x for weight, bias in parts for x in (weight.flatten(), bias)])


def bent() -> FeedForward:
    """f = leaky(W h + b), back by W' (leaky^-1(f) - b)."""
    weights = packed((TURN, SHIFT), (TURN.T.contiguous(), -TURN.T @ SHIFT))
    return FeedForward(weights, ["linear 5 5", "leaky_relu 0.25"], ["leaky_relu 4", "linear 5 5"])


def test_by_hand() -> None:
    """One number: f = sinh(2 h + 1), h = (asinh(f) - 1) / 2."""
    weights = torch.tensor([2.0, 1.0, 0.5, -0.5])
    one = FeedForward(weights, ["linear 1 1", "sinh"], ["asinh", "linear 1 1"])
    assert (one.width, one.n_features) == (1, 1)
    assert float(one.encode(torch.tensor([[0.5]]))) == pytest.approx(math.sinh(2.0))
    assert float(one.decode(torch.tensor([[math.sinh(2.0)]]))) == pytest.approx(0.5)


def test_it_is_a_featurizer() -> None:
    values = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    check_featurizer(bent(), values[:3], values[3:])
    base, source = values[:3], values[3:]
    # All features are the source itself. What bends each feature alone changes no exchange.
    torch.testing.assert_close(exchanged(bent(), base, source), source)
    one = torch.arange(5) == 2
    linear = exchanged(Directions(TURN.T.contiguous()), base, source, one)
    torch.testing.assert_close(exchanged(bent(), base, source, one), linear)
    wanted = bent().encode(base).where(~one, bent().encode(source))
    torch.testing.assert_close(
        bent().encode(exchanged(bent(), base, source, one)), wanted, rtol=1e-4, atol=1e-5
    )


def test_a_fit_with_it_is_stored(tmp_path: Path) -> None:
    fit = Fit(MappingProxyType({Site(1, "last"): bent()}))
    again = Fit.load(fit.save(tmp_path / "fit")).featurizers[Site(1, "last")]
    assert isinstance(again, FeedForward)
    values = torch.randn(4, 5)
    assert torch.equal(again.encode(values), bent().encode(values))


def test_files_come_back(tmp_path: Path) -> None:
    folder = bent().write(tmp_path / "mine")
    values = torch.randn(4, 5)
    again = FeedForward.load(folder)
    assert torch.equal(again.encode(values), bent().encode(values))
    assert torch.equal(again.decode(values), bent().decode(values))


def declared(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    arrays = {"a.weight": TURN, "a.bias": SHIFT, "b.weight": TURN.T, "b.bias": -TURN.T @ SHIFT}
    save_file(
        {name: x.contiguous() for name, x in arrays.items()}, folder / "featurizer.safetensors"
    )
    known = {"encoder": ["linear a"], "inverse": ["linear b"], **changes}
    (folder / "featurizer.json").write_text(json.dumps(known), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inverse": ["linear a"]}, r"does not invert: .* error of \d"),
        ({"encoder": ["linear a", "relu"]}, "does not invert"),
        (
            {"encoder": ["linear a", "tanh"], "inverse": ["atanh", "linear b"], "scale": 50},
            "invert",
        ),
        ({"encoder": ["linear a", "leaky_relu 0"]}, "one slope above 0; got 'leaky_relu 0'"),
        ({"encoder": ["linear a", "leaky_relu x"]}, "one slope above 0"),
        ({"encoder": ["linear a", "sinh 2"]}, "sinh has no settings"),
        ({"encoder": ["linear a", "exec"]}, "Unknown layer of the encoder 'exec'"),
        ({"encoder": ["sinh"]}, "has no linear layer"),
        ({"encoder": ["linear c"]}, "lacks 'c.weight'"),
        ({"encoder": ["linear 5"]}, r"lacks '5\.weight'"),
        ({"encoder": ["linear 5 -3"]}, "two widths"),
        ({"encoder": "linear a"}, "not enough values|Unknown layer"),
        ({"code": "import os"}, "has 'code'; known are encoder"),
        ({"scale": "wide"}, "could not convert"),
        ({"scale": float("nan")}, "does not invert"),
    ],
)
def test_what_is_no_featurizer_is_one_line(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadFile, match=says) as error:
        FeedForward.load(declared(tmp_path / "x", **changes))
    assert "\n" not in str(error.value)


def test_widths_have_to_meet() -> None:
    with pytest.raises(BadUsage, match="follows a layer that makes 5 numbers"):
        FeedForward(torch.zeros(1), ["linear 5 5", "linear 4 5"], ["linear 5 5"])
    with pytest.raises(BadUsage, match="makes 3 features of 5 numbers; its inverse makes 5"):
        FeedForward(torch.zeros(1), ["linear 5 3"], ["linear 4 5"])
    with pytest.raises(BadUsage, match=r"have 60 weights; got \(1,\)"):
        FeedForward(torch.zeros(1), ["linear 5 5"], ["linear 5 5"])
    with pytest.raises(BadUsage, match="finite"):
        FeedForward(torch.full((60,), torch.nan), ["linear 5 5"], ["linear 5 5"])
    # Three features cannot hold five numbers.
    with pytest.raises(BadUsage, match="does not invert"):
        FeedForward(torch.randn(38), ["linear 5 3"], ["linear 3 5"])
