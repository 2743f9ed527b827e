"""An SAE of ours on disk: it says who trained it, and is read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mechassay.errors import BadFile
from mechassay.progress import SILENT
from mechassay.saes import SAESettings, TrainedSAE, load_sae, provenance_of, save_sae, train_sae
from planted_store import ACTIVE, N, planted


def test_what_is_saved_says_who_trained_it(tmp_path: Path) -> None:
    store, _ = planted(1000)
    settings = SAESettings(n_features=N, k=ACTIVE, steps=5, batch_size=128)
    found = train_sae(store, settings, progress=SILENT)
    folder = found.save(tmp_path / "sae")
    again = load_sae(folder)
    assert torch.equal(again.encode(store.held), found.sae.encode(store.held))
    told = provenance_of(folder)
    assert told["trained_by"].startswith("mechassay ")
    assert told["settings"]["lr"] == 3e-3 and told["values_seen"] == 5 * 128
    config = json.loads((folder / "cfg.json").read_text())
    assert config["metadata"]["hook_name"] == "blocks.1.hook_resid_post"
    whole = TrainedSAE.load(folder)
    assert torch.equal(whole.losses, found.losses) and torch.equal(whole.dead, found.dead)
    assert torch.equal(whole.initial, found.initial)


def test_an_sae_of_others_is_refused(tmp_path: Path) -> None:
    store, _ = planted(300)
    found = train_sae(store, SAESettings(n_features=N, k=1, steps=1, batch_size=9), progress=SILENT)
    found.save(tmp_path)
    save_sae(found.sae, tmp_path)
    with pytest.raises(BadFile, match="does not say how it was trained"):
        TrainedSAE.load(tmp_path)
    (tmp_path / "training.safetensors").unlink()
    with pytest.raises(BadFile, match="no such file"):
        TrainedSAE.load(tmp_path)
