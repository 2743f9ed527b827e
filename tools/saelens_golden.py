"""Writes tests/golden/saelens: small SAEs by SAELens itself, and what it encodes and decodes.

In an environment of its own, where the package stands beside SAELens:

    uv venv /tmp/saelens --python 3.11
    uv pip install --python /tmp/saelens/bin/python -c constraints.txt -e . sae-lens==6.54.12
    /tmp/saelens/bin/python tools/saelens_golden.py

SAEs in the files of Gemma Scope and dictionary_learning are read by SAELens's own loaders, which
are given local folders in place of downloads. What `save_sae` writes is read by SAELens, too, and
so are SAEs that are trained here, one of each architecture (topk and jumprelu).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "saelens"
D, N, ROWS = 6, 10, 5
CASES: dict[str, dict[str, Any]] = {
    "standard": {"architecture": "standard"},
    "standard-plain-input": {"architecture": "standard", "apply_b_dec_to_input": False},
    "standard-layer-norm": {"architecture": "standard", "normalize_activations": "layer_norm"},
    "jumprelu": {"architecture": "jumprelu", "apply_b_dec_to_input": False},
    "jumprelu-constant-norm": {
        "architecture": "jumprelu",
        "normalize_activations": "constant_norm_rescale",
    },
    "topk": {"architecture": "topk", "k": 3},
    "topk-decoder-norms": {"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": True},
    "gated": {"architecture": "gated"},
}


def arrays(architecture: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Weights that no symmetry makes alike."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = {"W_enc": drawn(D, N), "W_dec": drawn(N, D), "b_dec": drawn(D) * 0.3}
    if architecture == "gated":
        return found | {"b_gate": drawn(N), "b_mag": drawn(N), "r_mag": drawn(N) * 0.5}
    found["b_enc"] = drawn(N) * 0.3
    return found | ({"threshold": drawn(N).abs()} if architecture == "jumprelu" else {})


def answers(sae: Any, h: torch.Tensor) -> dict[str, Any]:
    """What SAELens makes of values."""
    with torch.no_grad():
        features = sae.encode(h)
        return {"features": features.tolist(), "decoded": sae.decode(features).tolist()}


def saelens_folders(h: torch.Tensor) -> dict[str, Any]:
    from sae_lens import SAE
    from sae_lens.registry import get_sae_class

    found: dict[str, Any] = {}
    for number, (name, settings) in enumerate(CASES.items()):
        generator = torch.Generator().manual_seed(number)
        held = arrays(settings["architecture"], generator)
        config = {"d_in": D, "d_sae": N, "dtype": "float32", "device": "cpu", **settings}
        kind = get_sae_class(config.pop("architecture"))[0]
        made = get_sae_class(settings["architecture"])[1](**config)
        made.metadata.model_name = "tiny"
        made.metadata.hook_name = "blocks.1.hook_resid_post"
        sae = kind(made)
        sae.load_state_dict(held)
        sae.save_model(GOLDEN / name)
        found[name] = answers(SAE.load_from_disk(GOLDEN / name), h)
        _check_ours(name, h, found[name])
    return found


def _check_ours(name: str, h: torch.Tensor, wanted: dict[str, Any]) -> None:
    """What is read and written again here, SAELens reads with the same result."""
    from sae_lens import SAE

    from mechassay.saes import load_sae, save_sae

    with tempfile.TemporaryDirectory() as folder:
        theirs = SAE.load_from_disk(save_sae(load_sae(GOLDEN / name), folder))
        with torch.no_grad():
            decoded = theirs.decode(theirs.encode(h))
    assert torch.allclose(decoded, torch.tensor(wanted["decoded"]), atol=1e-5), name


def other_folders(h: torch.Tensor) -> dict[str, Any]:
    import sae_lens.loading.pretrained_sae_loaders as loaders
    from sae_lens.registry import get_sae_class

    def local(
        repo_id: str, filename: str, subfolder: str = "", force_download: bool = False
    ) -> str:
        return str(Path(repo_id) / subfolder / filename)

    def shapes(repo_id: str, filename: str) -> dict[str, list[int]]:
        from safetensors import safe_open

        with safe_open(Path(repo_id) / filename, framework="pt") as file:
            return {name: list(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118

    loaders.hf_hub_download, loaders.get_safetensors_tensor_shapes = local, shapes
    found: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(100)

    def read(name: str, folder: str, loader: Any) -> None:
        config, state, _ = loader(str(GOLDEN / name), folder)
        config = loaders.handle_config_defaulting(config)
        kind, made = get_sae_class(config["architecture"])
        sae = kind(made.from_dict(config))
        sae.load_state_dict(state)
        found[f"{name}/{folder}"] = answers(sae, h)

    scope = "layer_1/width_1k/average_l0_3"
    name = "gemma-scope-2b-pt-res"
    (GOLDEN / name / scope).mkdir(parents=True, exist_ok=True)
    held = arrays("jumprelu", generator)
    np.savez(GOLDEN / name / scope / "params.npz", **{k: x.numpy() for k, x in held.items()})
    read(name, scope, _without_finetuning(loaders))

    scope = "resid_post/layer_1_width_1k_l0_small"
    name = "gemma-scope-2-270m-pt"
    (GOLDEN / name / scope).mkdir(parents=True, exist_ok=True)
    held = arrays("jumprelu", generator)
    lower = {k.replace("W_", "w_"): x for k, x in held.items()}
    save_file(lower, GOLDEN / name / scope / "params.safetensors")
    config = {"architecture": "jump_relu", "model_name": "gemma-v3-270m-pt"}
    config["hf_hook_point_in"] = "model.layers.1.output"
    (GOLDEN / name / scope / "config.json").write_text(json.dumps(config))
    read(name, scope, loaders.gemma_3_sae_huggingface_loader)

    for kind in ("AutoEncoder", "AutoEncoderTopK", "BatchTopKSAE"):
        held = arrays("standard", generator)
        told = {"encoder.weight": held["W_enc"].mT.contiguous(), "encoder.bias": held["b_enc"]}
        told["decoder.weight"] = held["W_dec"].mT.contiguous()
        told["bias" if kind == "AutoEncoder" else "b_dec"] = held["b_dec"]
        if kind != "AutoEncoder":
            told |= {"k": torch.tensor(3, dtype=torch.int), "threshold": torch.tensor(0.7)}
        folder = GOLDEN / "dictionary_learning" / kind
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(told, folder / "ae.pt")
        trainer = {"dict_class": kind, "activation_dim": D, "dict_size": N, "layer": 1, "k": 3}
        trainer["lm_name"] = "tiny"
        config = {"trainer": trainer, "buffer": {"ctx_len": 8}}
        (folder / "config.json").write_text(json.dumps(config))
        read("dictionary_learning", kind, loaders.dictionary_learning_sae_huggingface_loader_1)
    return found


def trained_folders(h: torch.Tensor) -> dict[str, Any]:
    """SAEs that are trained here, in every architecture, as SAELens reads them."""
    from sae_lens import SAE

    from mechassay.features.sae import save_sae
    from mechassay.saes.architectures import ARCHITECTURES, SAESettings
    from mechassay.saes.synthetic import plant
    from mechassay.saes.training import train_sae

    store = plant(n_features=N, d=D, documents=20, window=40).store()
    found: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        settings = SAESettings(
            architecture=architecture, n_features=N, k=3, steps=60, batch_size=32, lr=1e-2
        )
        name = f"trained-{architecture}"
        save_sae(train_sae(store, settings).sae, GOLDEN / name, site="resid.1")
        found[name] = answers(SAE.load_from_disk(GOLDEN / name), h)
    return found


def _without_finetuning(loaders: Any) -> Any:
    def load(name: str, folder: str) -> Any:
        return loaders.gemma_2_sae_huggingface_loader(
            name, folder, cfg_overrides={"d_in": D, "d_sae": N}
        )

    return load


def main() -> None:
    h = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(7)) + 0.5
    cases = saelens_folders(h) | other_folders(h) | trained_folders(h)
    text = json.dumps({"values": h.tolist(), "cases": cases}, indent=None)
    (GOLDEN / "answers.json").write_text(text + "\n")
    print(f"{len(cases)} SAEs, as SAELens has them, in {GOLDEN}")


if __name__ == "__main__":
    main()
