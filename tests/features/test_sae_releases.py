"""Which SAE of a release is a site's: on folders of the same layout, and from a stand-in hub."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import save_file

from mechassay.errors import BadFile, BadUsage, ModelNotFetched
from mechassay.features.sae import save_sae
from mechassay.features.sae_releases import chosen_file, sae_of_site
from mechassay.interventions.site import load_site

SITE = load_site("resid.12@last")
GEMMA = [
    f"layer_{layer}/{width}/average_l0_{l0}/params.npz"
    for layer in (2, 12)
    for width, l0s in (("width_16k", (22, 82, 445)), ("width_65k", (141,)))
    for l0 in l0s
]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Gemma Scope's layout; the first threshold of each SAE is its L0."""
    folder = tmp_path / "gemma-scope-2b-pt-res"
    for name in GEMMA:
        (folder / name).parent.mkdir(parents=True)
        l0 = float(name.split("average_l0_")[1].split("/")[0])
        np.savez(
            folder / name,
            W_enc=np.ones((4, 3), np.float32),
            W_dec=np.ones((3, 4), np.float32),
            b_enc=np.zeros(3, np.float32),
            b_dec=np.zeros(4, np.float32),
            threshold=np.full(3, l0, np.float32),
        )
    return folder


def l0_of(sae: Any) -> float:
    return float(sae.threshold[0])


def test_the_one_nearest_to_a_hundred_features_is_taken(release: Path) -> None:
    assert l0_of(sae_of_site(str(release), SITE)) == 82
    assert str(chosen_file(GEMMA, SITE, "width_65k", "x")) == GEMMA[-1]
    assert str(chosen_file(GEMMA, SITE, "average_l0_445", "x")).endswith("445/params.npz")


def test_a_release_comes_from_the_hub(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repo: str, name: str) -> str:
        asked.append(f"{repo}/{name}")
        return str(release / name)

    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repo: GEMMA)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub = "google/gemma-scope-2b-pt-res"
    assert l0_of(sae_of_site(f"{hub}/width_65k", SITE)) == 141
    assert asked == [f"{hub}/layer_12/width_65k/average_l0_141/params.npz"]
    with pytest.raises(BadUsage, match=r"resid.5@last.*it has layers 2 to 12"):
        sae_of_site(hub, load_site("resid.5@last"))
    with pytest.raises(BadUsage, match="with 'width_1m' in its path"):
        sae_of_site(f"{hub}/width_1m", SITE)


def test_a_hub_that_gives_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(repo: str) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", fail)
    with pytest.raises(ModelNotFetched, match="did not come from the Hugging Face hub") as error:
        sae_of_site("google/gemma-scope-2b-pt-res", SITE)
    assert "\n" not in str(error.value)
    with pytest.raises(BadFile, match="no such folder, and it is no hub id"):
        sae_of_site("./nowhere", SITE)


def test_llama_scope_and_gemma_scope_2_are_known_by_layer() -> None:
    files = [
        "Llama3_1-8B-Base-L12R-8x/hyperparams.json",
        "Llama3_1-8B-Base-L2R-8x/hyperparams.json",
        "Llama3_1-8B-Base-L2R-8x/checkpoints/final.safetensors",
    ]
    assert str(chosen_file(files, SITE, "", "x")) == files[0]
    newer = [
        "resid_post/layer_12_width_16k_l0_small/params.safetensors",
        "resid_post/layer_12_width_16k_l0_big/params.safetensors",
    ]
    assert str(chosen_file(newer, SITE, "l0_big", "x")) == newer[1]
    with pytest.raises(BadUsage, match="has 2 SAEs of resid.12@last: .*; name more of the path"):
        chosen_file(newer, SITE, "", "x")


def test_a_run_of_trainings_is_a_folder_of_saes(release: Path, tmp_path: Path) -> None:
    sae = sae_of_site(str(release), SITE)
    run = tmp_path / "run"
    for seed in (0, 1):
        save_sae(sae, run / f"saes/one--resid.12/seed-{seed}", site="resid.12")
    assert sae_of_site(str(run), SITE).hook == "resid.12"
    save_sae(sae, run / "saes/two--resid.12/seed-0", site="resid.12")
    with pytest.raises(BadUsage, match="several models: one--resid.12, two--resid.12"):
        sae_of_site(str(run), SITE)
    save_sae(sae, run / "saes/one--resid.3/seed-0", site="resid.12")
    with pytest.raises(BadUsage, match=r"resid\.12"):
        sae_of_site(str(run), load_site("resid.3@last"))
    shutil.rmtree(run / "saes")
    with pytest.raises(BadUsage, match="has no SAE of resid.12@last: no folder"):
        sae_of_site(str(run), SITE)
    save_file({"W_enc": np.ones((4, 3), np.float32)}, run / "resid.12.safetensors")
    with pytest.raises(BadFile, match="lacks"):
        sae_of_site(str(run), SITE)
