"""Finders on other devices and in other precisions give what the CPU gives in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interchanges_made import token_interchanges
from mechassay.features import DAS, DBM, LDA, PCA, BoundlessDAS, DiffInMeans, KMeans, Probe
from mechassay.models.model import make_model
from mechassay.progress import SILENT
from mechassay.testing.tiny import build

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
