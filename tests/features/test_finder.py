"""Finders on other devices and in other precisions give what the CPU gives in fp32.

What a finder found, as a value and as a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.pairs import token_interchanges
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.features import (
    DAS,
    DBM,
    LDA,
    PCA,
    SAE,
    Affine,
    BoundlessDAS,
    DiffInMeans,
    Fit,
    FullVector,
    Identity,
    KMeans,
    Probe,
)
from mechassay.interventions.site import Site
from mechassay.models.model import make_model
from mechassay.testing import tiny
from mechassay.testing.tiny import build
from mechassay.utils.display import SILENT
from mechassay.utils.files import read_tensors, write_tensors

WHERE = [
    pytest.param("cpu", torch.bfloat16, id="cpu-bf16"),
    pytest.param("cuda", torch.float32, id="cuda-fp32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bf16", marks=pytest.mark.gpu),
]
SITES = ["resid.1@x", "heads.1.1,1.3@last", "mlp.0@last"]
FINDERS: list[Any] = [
    DAS(k=3, steps=5, batch_size=4),
    DBM(steps=5, batch_size=4, lr=0.1),
    BoundlessDAS(steps=5, batch_size=4),
    PCA(k=2),
    DiffInMeans(),
    Probe(),
    LDA(shrinkage=0.5),
    KMeans(),
]


@pytest.mark.parametrize(("device", "dtype"), WHERE)
@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: finder.name)
def test_other_devices(finder: Any, device: str, dtype: torch.dtype) -> None:
    batch = token_interchanges(8)
    plain = finder.fit(make_model(build("llama")), batch, SITES, progress=SILENT)
    model = make_model(build("llama", dtype).to(device), check=False)
    fit = finder.fit(model, batch, SITES, progress=SILENT)
    rounding = 0.1 if dtype == torch.bfloat16 else 1e-3
    assert fit.losses.shape == plain.losses.shape
    assert torch.allclose(fit.losses, plain.losses, rtol=rounding)
    for site in fit.sites:
        width = site.width(model.decoder)
        base, source = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0)).unbind()
        here = fit.features(site).change(base.to(device, dtype), source.to(device, dtype))
        assert here.dtype == dtype and here.device.type == device
        assert bool(torch.isfinite(here).all())
        if dtype == torch.float32:
            there = plain.features(site).change(base, source)
            assert torch.allclose(here.cpu(), there, atol=1e-2)


FIT_SITES = ["resid.0@x", "heads.1.1,1.3@last"]


@pytest.fixture(scope="module")
def fits() -> dict[str, Fit]:
    model = make_model(tiny.build("llama"))
    batch = token_interchanges(6)
    finders: list[Any] = [
        DAS(k=2, steps=3, batch_size=6),
        DBM(steps=3, batch_size=6, lr=0.1),
        PCA(k=3, scaled=True),
        FullVector(),
    ]
    found = {each.name: each.fit(model, batch, FIT_SITES, progress=SILENT) for each in finders}
    noise = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
    sae = SAE(noise, noise.mT.contiguous(), noise[0], noise[:, 0].contiguous(), "topk", k=2)
    found["others"] = Fit({Site(0): sae, Site(1): Affine(noise, noise[0])})
    return found


@pytest.mark.parametrize("name", ["das", "dbm", "pca", "full-vector", "others"])
@pytest.mark.parametrize("place", ["fit.safetensors", "folder"])
def test_files(name: str, place: str, fits: dict[str, Fit], tmp_path: Path) -> None:
    fit = fits[name]
    file = fit.save(tmp_path / place)
    assert file.is_file()
    loaded = Fit.load(tmp_path / place)
    assert loaded.sites == fit.sites
    assert torch.equal(loaded.losses, fit.losses)
    assert dict(loaded.provenance) == json.loads(json.dumps(dict(fit.provenance)))
    for site in fit.sites:
        width = 32 if site.part == "resid" else 16
        base, source = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(1)).unbind()
        ours, theirs = (x.features(site).change(base, source) for x in (fit, loaded))
        assert torch.equal(ours, theirs)
    if place == "folder":
        told = json.loads((tmp_path / "folder" / "fit.json").read_text())
        assert [each["site"] for each in told["sites"]] == list(map(str, fit.sites))


def test_foreign_files_are_refused(fits: dict[str, Fit], tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    with pytest.raises(BadFile, match="no such file"):
        Fit.load(tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(BadFile, match="not a readable safetensors file"):
        Fit.load(path)
    write_tensors(path, {}, {"kind": "circuit"})
    with pytest.raises(BadFile, match="holds 'circuit'; expected 'features'"):
        Fit.load(path)
    changes: list[Callable[[Any, Any], Any]] = [
        lambda tensors, header: tensors.update({"0.vectors": torch.ones(32, 2)}),
        lambda tensors, header: tensors.pop("0.vectors"),
        lambda tensors, header: tensors.update(losses=torch.zeros(3)),
        lambda tensors, header: tensors.update({"0.chosen": torch.ones(7, dtype=torch.bool)}),
        lambda tensors, header: header["sites"][0].update(featurizer="Popen"),
        lambda tensors, header: header["sites"][0].update(site="somewhere"),
        lambda tensors, header: header.pop("provenance"),
        lambda tensors, header: header.update(sites=3),
    ]
    for change in changes:
        fits["das"].save(path)
        tensors, header = read_tensors(path, "features")
        change(tensors, header)
        write_tensors(path, tensors, {k: v for k, v in header.items() if k != "format"})
        with pytest.raises(BadFile, match="no file of features") as error:
            Fit.load(path)
        assert "\n" not in str(error.value)


def test_featurizers_of_ones_own_are_not_stored(tmp_path: Path) -> None:
    class Own(Identity):
        pass

    with pytest.raises(BadUsage, match="resid.0@last has a Own"):
        Fit({Site(0): Own()}).save(tmp_path)


def test_sites_by_spelling(fits: dict[str, Fit]) -> None:
    fit = fits["das"]
    assert "resid.0@x" in fit and Site(0, "x") in fit and "resid.2@x" not in fit
    assert fit.directions("heads.1.1,1.3@last").shape == (16, 2)
    assert fit.directions(Site(0, "x")).shape == (32, 2)
    with pytest.raises(UnknownName, match="Unknown site of the fit 'resid.0@y'. Did you mean"):
        fit.directions("resid.0@y")
    with pytest.raises(BadUsage, match="Features of a SAE at resid.0@last are no coordinates"):
        fits["others"].directions("resid.0@last")
    assert torch.equal(fits["full-vector"].directions("resid.0@x"), torch.eye(32))
    chosen = fits["dbm"].features("resid.0@x").chosen
    assert chosen is not None
    assert torch.equal(fits["dbm"].directions("resid.0@x"), torch.eye(32)[:, chosen])


def test_a_fit_shows_itself(fits: dict[str, Fit]) -> None:
    fit = fits["das"]
    assert repr(fit).startswith("Fit(sites=2, finder='das', model=")
    assert "last_loss=" in repr(fit) and "last_loss" not in repr(fits["pca"])
    html = fit._repr_html_()
    assert "Features of 2 sites" in html and "resid.0@x" in html and "Directions" in html
    columns = fit.columns()
    assert columns["site"] == FIT_SITES and columns["features"] == [2, 2]
    assert columns["last_loss"] == pytest.approx(fit.losses[-1].tolist())
    assert fits["others"].columns()["features"] == [5, 5]
    assert "circuit" not in fits["others"]._repr_html_()
    provenance = fit.provenance
    assert provenance["settings"]["k"] == 2 and provenance["steps"] == 3
    assert provenance["data_hash"] == token_interchanges(6).content_hash
    assert len(fit.to_pandas()) == 2
