"""SAEs of other projects: folders written by hand, SAELens's own numbers, what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechassay.errors import BadFile, BadUsage
from mechassay.features.sae import SAE
from mechassay.saes import load_sae, provenance_of, save_sae

GOLDEN = Path(__file__).parents[1] / "golden" / "saelens"
ANSWERS: dict[str, Any] = json.loads((GOLDEN / "answers.json").read_text())

# Two numbers, three features. By hand below: h W_enc = (1, -2, 3) for h = (1, -2).
W_ENC = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -1.0]])
W_DEC = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
B_ENC = torch.tensor([0.5, 0.0, -1.0])
B_DEC = torch.tensor([1.0, -1.0])
H = torch.tensor([[1.0, -2.0]])
ARRAYS = {"W_enc": W_ENC, "W_dec": W_DEC, "b_enc": B_ENC, "b_dec": B_DEC}


def saelens(folder: Path, arrays: dict[str, Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(ARRAYS if arrays is None else arrays), folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"d_in": 2, "d_sae": 3, **config}))
    return folder


def dictionary_learning(folder: Path, held: Any, **trainer: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(held, folder / "ae.pt")
    trainer = {"layer": 4, "lm_name": "tiny", **trainer}
    (folder / "config.json").write_text(json.dumps({"trainer": trainer}))
    return folder


def transposed() -> dict[str, Tensor]:
    return {
        "encoder.weight": W_ENC.mT.contiguous(),
        "encoder.bias": B_ENC,
        "decoder.weight": W_DEC.mT.contiguous(),
        "b_dec": B_DEC,
    }


@pytest.mark.parametrize("name", ANSWERS["cases"])
def test_saelens_encodes_and_decodes_the_same(name: str) -> None:
    sae, h = load_sae(GOLDEN / name), torch.tensor(ANSWERS["values"])
    wanted = ANSWERS["cases"][name]
    features = torch.tensor(wanted["features"])
    assert torch.allclose(sae.encode(h), features, atol=1e-5, rtol=0)
    assert torch.allclose(sae.reconstruct(h), torch.tensor(wanted["decoded"]), atol=1e-5, rtol=0)
    assert 0 < float((features > 0).double().mean()) < 1, "a case that tests an activation"
    assert sae.hook == "resid.1"


def test_every_architecture_of_saelens_by_hand(tmp_path: Path) -> None:
    # (1, -2, 3) + b_enc = (1.5, -2, 2)
    plain = {"apply_b_dec_to_input": False}
    standard = load_sae(saelens(tmp_path / "a", architecture="standard", **plain))
    assert standard.encode(H).tolist() == [[1.5, 0.0, 2.0]]
    assert standard.decode(standard.encode(H)).tolist() == [[1.0 + 3.0, -1.0 + 6.0]]
    top = load_sae(saelens(tmp_path / "b", architecture="topk", k=1, **plain))
    assert top.encode(H).tolist() == [[0.0, 0.0, 2.0]]
    jump = ARRAYS | {"threshold": torch.tensor([1.5, -9.0, 1.9])}
    jumped = load_sae(saelens(tmp_path / "c", jump, architecture="jumprelu", **plain))
    assert jumped.encode(H).tolist() == [[0.0, 0.0, 2.0]]
    # The gate is open for the first two, whose magnitudes are relu(2 * 1 + .5), relu(2 * -2 + 5).
    gate = torch.tensor([-0.5, 3.0, -4.0])
    gated = {name: x for name, x in ARRAYS.items() if name != "b_enc"} | {"b_gate": gate}
    gated |= {"b_mag": torch.tensor([0.5, 5.0, 1.0]), "r_mag": torch.full((3,), 2.0).log()}
    opened = load_sae(saelens(tmp_path / "d", gated, architecture="gated", **plain))
    assert torch.allclose(opened.encode(H), torch.tensor([[2.5, 1.0, 0.0]]))
    # h - b_dec = (0, -1): read as (0, -1, 1).
    centred = load_sae(saelens(tmp_path / "e"))
    assert centred.encode(H).tolist() == [[0.5, 0.0, 0.0]]


def test_older_configurations_of_saelens(tmp_path: Path) -> None:
    old = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 2}}
    sae = load_sae(saelens(tmp_path / "a", hook_point="blocks.3.hook_resid_pre", **old))
    assert (sae.activation, sae.k, sae.centred, sae.hook) == ("topk", 2, True, "resid.2")
    ones = ARRAYS | {"scaling_factor": torch.ones(3)}
    assert load_sae(saelens(tmp_path / "b", ones, normalize_activations=False)).activation == "relu"
    with pytest.raises(BadFile, match="scaling_factor, which is not read"):
        load_sae(saelens(tmp_path / "c", ARRAYS | {"scaling_factor": torch.zeros(3)}))


def test_decoder_norms_and_the_scale_of_values_are_folded_in(tmp_path: Path) -> None:
    # Rows of W_dec have norms 2, 1, 3: pre (1.5, -2, 2) becomes (3, -2, 6), and k = 1 takes 6.
    scaled = {"architecture": "topk", "k": 1, "apply_b_dec_to_input": False}
    sae = load_sae(saelens(tmp_path / "a", rescale_acts_by_decoder_norm=True, **scaled))
    assert sae.encode(H).tolist() == [[0.0, 0.0, 6.0]]
    assert sae.reconstruct(H).tolist() == [[1.0, 5.0]]
    folder = saelens(tmp_path / "b", normalize_activations="expected_average_only_in")
    with pytest.raises(BadUsage, match="pass norm_scale"):
        load_sae(folder)
    plain, twice = load_sae(saelens(tmp_path / "c")), load_sae(folder, norm_scale=2.0)
    assert torch.equal(twice.encode(H), plain.encode(2 * H))
    assert torch.allclose(2 * twice.reconstruct(H), plain.reconstruct(2 * H))
    with pytest.raises(BadUsage, match="norm_scale is a positive number"):
        load_sae(tmp_path / "c", norm_scale=2.0)


def test_gemma_scope(tmp_path: Path) -> None:
    arrays = ARRAYS | {"threshold": torch.tensor([1.6, 0.0, 1.0])}
    folder = tmp_path / "gemma-scope-2b-pt-mlp" / "layer_12" / "width_16k" / "average_l0_71"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **{name: x.numpy() for name, x in arrays.items()})
    for path in (folder, folder / "params.npz"):
        sae = load_sae(path)
        assert sae.encode(H).tolist() == [[0.0, 0.0, 2.0]] and sae.hook == "mlp.12"
    objects = tmp_path / "objects"
    objects.mkdir()
    np.savez(objects / "params.npz", W_enc=np.array([{}], dtype=object))
    with pytest.raises(BadFile, match="not a readable file of arrays"):
        load_sae(objects)
    inside = tmp_path / "gemma-scope-2b-pt-res" / "embedding" / "width_4k"
    inside.mkdir(parents=True)
    np.savez(inside / "params.npz", **{name: x.numpy() for name, x in arrays.items()})
    root, embedding = 2**0.5, load_sae(inside)
    assert torch.allclose(embedding.encode(root * H), sae.encode(H))
    assert torch.allclose(embedding.reconstruct(root * H), root * sae.reconstruct(H))


def test_gemma_scope_2(tmp_path: Path) -> None:
    lower = {name.replace("W", "w"): x for name, x in ARRAYS.items()}
    save_file(lower | {"threshold": torch.ones(3)}, tmp_path / "params.safetensors")
    assert load_sae(tmp_path).hook == ""
    told = {"architecture": "jump_relu", "model_name": "gemma-3-270m"}
    told["hf_hook_point_in"] = "model.layers.5.self_attn.o_proj.input"
    (tmp_path / "config.json").write_text(json.dumps(told))
    sae = load_sae(tmp_path)
    assert (sae.hook, sae.model) == ("heads.5", "gemma-3-270m")
    assert sae.encode(H).tolist() == [[1.5, 0.0, 2.0]]
    told["hf_hook_point_out"] = "model.layers.5.post_feedforward_layernorm.output"
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(BadFile, match="a transcoder"):
        load_sae(tmp_path)


def test_sparsify(tmp_path: Path) -> None:
    folder = tmp_path / "layers.7.mlp"
    folder.mkdir()
    arrays = {"encoder.weight": W_ENC.mT.contiguous(), "encoder.bias": B_ENC}
    save_file(arrays | {"W_dec": W_DEC, "b_dec": B_DEC}, folder / "sae.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"d_in": 2, "k": 1, "normalize_decoder": True}))
    sae = load_sae(folder)
    # h - b_dec is read as (0, -1, 1), with b_enc (.5, -1, 0).
    assert sae.encode(H).tolist() == [[0.5, 0.0, 0.0]] and sae.hook == "mlps_output[7]"
    assert sae.reconstruct(H).tolist() == [[2.0, -1.0]]
    for told, match in (
        ({"transcode": True}, "with transcode"),
        ({"activation": "groupmax"}, "'groupmax'; those that are read are topk"),
        ({"k": "many"}, "k is 'many'"),
    ):
        (folder / "cfg.json").write_text(json.dumps({"d_in": 2, **told}))
        with pytest.raises(BadFile, match=match):
            load_sae(folder)


def test_dictionary_learning(tmp_path: Path) -> None:
    arrays = transposed()
    bias = {"bias": arrays["b_dec"]} | {k: x for k, x in arrays.items() if k != "b_dec"}
    standard = load_sae(dictionary_learning(tmp_path / "a", bias, dict_class="AutoEncoder"))
    assert standard.encode(H).tolist() == [[0.5, 0.0, 0.0]]
    assert (standard.hook, standard.model) == ("resid.4", "tiny")
    buffers = {"k": torch.tensor(2, dtype=torch.int), "threshold": torch.tensor(0.4)}
    top = load_sae(
        dictionary_learning(tmp_path / "b", arrays | buffers, dict_class="AutoEncoderTopK")
    )
    assert top.k == 2 and top.encode(2 * H).tolist() == [[1.5, 0.0, 3.0]]
    batch = load_sae(
        dictionary_learning(tmp_path / "c", arrays | buffers, dict_class="BatchTopKSAE")
    )
    assert batch.encode(H).tolist() == [[0.5, 0.0, 0.0]] and batch.activation == "jumprelu"
    other = {"decoder.bias": B_DEC} | {k: x for k, x in arrays.items() if k != "b_dec"}
    new = load_sae(dictionary_learning(tmp_path / "d", other, dict_class="AutoEncoderNew"))
    assert new.encode(H).tolist() == [[1.5, 0.0, 2.0]]


def test_features_of_dictionary_learning_in_units_of_the_decoder(tmp_path: Path) -> None:
    jump = ARRAYS | {"threshold": torch.tensor([1.6, 0.0, 1.0])}
    sae = load_sae(dictionary_learning(tmp_path / "a", jump, dict_class="JumpReluAutoEncoder"))
    # 2 above its threshold of 1, times the norm 3 of its decoder.
    assert sae.encode(H).tolist() == [[0.0, 0.0, 6.0]]
    assert sae.reconstruct(H).tolist() == [[1.0, 5.0]]
    held = {"encoder.weight": W_ENC.mT.contiguous(), "decoder.weight": W_DEC.mT.contiguous()}
    held |= {"decoder_bias": torch.zeros(2), "r_mag": torch.zeros(3)}
    held |= {"gate_bias": torch.tensor([0.0, 0.0, -9.0]), "mag_bias": torch.ones(3)}
    gated = load_sae(dictionary_learning(tmp_path / "b", held, dict_class="GatedAutoEncoder"))
    # Reads (1, -2, 3); the gate is open for the first alone: (1 + 1) times the norm 2.
    assert torch.allclose(gated.encode(H), torch.tensor([[4.0, 0.0, 0.0]]))
    assert torch.allclose(gated.reconstruct(H), torch.tensor([[4.0, 0.0]]))


class Ran:
    """A pickle that would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_pickles_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = dictionary_learning(tmp_path / "a", {"x": Ran(mark)}, dict_class="AutoEncoder")
    with pytest.raises(BadFile, match="refused"):
        load_sae(folder)
    (folder / "ae.pt").write_bytes(pickle.dumps(Ran(mark)))
    with pytest.raises(BadFile, match="bare pickle"):
        load_sae(folder)
    assert not mark.exists()


def test_what_is_no_sae_is_said_in_one_line(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "model.bin").write_text("x")
    several = saelens(tmp_path / "several")
    np.savez(several / "params.npz", W_enc=W_ENC.numpy())
    short = {name: x for name, x in ARRAYS.items() if name != "W_dec"}
    nan = ARRAYS | {"b_enc": torch.tensor([0.0, torch.nan, 0.0])}
    wide = ARRAYS | {"b_enc": torch.zeros(4)}
    cases: list[tuple[Path, str]] = [
        (tmp_path / "none", "no such file or folder"),
        (foreign, "no SAE: there is model.bin; what is read is sae_weights.safetensors"),
        (foreign / "model.bin", "there is model.bin"),
        (several, "files of several SAEs"),
        (saelens(tmp_path / "b", architecture="temporal"), "'temporal'; those that are read are"),
        (saelens(tmp_path / "c", short), "a standard SAE that lacks W_dec"),
        (saelens(tmp_path / "d", nan), "NaN or infinite"),
        (saelens(tmp_path / "e", wide), r"b_dec of shapes"),
        (saelens(tmp_path / "f", architecture="topk"), "k is None"),
        (saelens(tmp_path / "g", architecture="topk", k=9), "keeps 1 to 3; got k=9"),
        (saelens(tmp_path / "h", architecture="jumprelu"), "lacks threshold"),
        (saelens(tmp_path / "i", normalize_activations="covariance_whitening"), "those that are"),
        (saelens(tmp_path / "j", activation_fn="tanh"), "'tanh'; relu and topk"),
        (dictionary_learning(tmp_path / "k", {}, dict_class="CrossCoder"), "'CrossCoder'"),
        (dictionary_learning(tmp_path / "l", [1], dict_class="AutoEncoder"), "no dictionary"),
    ]
    for path, match in cases:
        with pytest.raises(BadFile, match=match) as error:
            load_sae(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["standard-layer-norm", "topk", "jumprelu", "gated", "jumprelu-constant-norm"]
)
def test_what_is_saved_is_read_back(name: str, tmp_path: Path) -> None:
    sae = load_sae(GOLDEN / name)
    folder = save_sae(sae, tmp_path / "out", provenance={"trained_by": "mechassay"})
    again, h = load_sae(folder), torch.tensor(ANSWERS["values"])
    assert torch.equal(again.encode(h), sae.encode(h))
    assert torch.equal(again.reconstruct(h), sae.reconstruct(h))
    assert again.hook == "resid.1" and provenance_of(folder) == {"trained_by": "mechassay"}
    assert provenance_of(GOLDEN / name) == {}


def test_a_bare_file_of_arrays(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "resid.1.safetensors")
    assert load_sae(tmp_path / "resid.1.safetensors").encode(H).tolist() == [[1.5, 0.0, 2.0]]


def test_another_width_and_another_hook_are_one_line() -> None:
    sae = SAE(W_ENC, W_DEC, B_ENC, B_DEC, hook="resid.3")
    assert sae.check_site("resid.3@last") is sae
    for site in ("resid.4@last", "mlp.3@all"):
        with pytest.raises(BadUsage, match=r"trained on resid\.3; got the site"):
            sae.check_site(site)
    with pytest.raises(BadUsage, match="reads values of 2 numbers; the site's have 3"):
        sae.encode(torch.zeros(1, 3))


def llama_scope(folder: Path, **changes: Any) -> Path:
    """Random weights in Llama Scope's layout: 4 wide, 6 features, mean norm 5."""
    drawn = torch.Generator().manual_seed(3)
    shapes = {
        "encoder.weight": (6, 4),
        "encoder.bias": (6,),
        "decoder.weight": (4, 6),
        "decoder.bias": (4,),
    }
    arrays = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    config = {
        "hook_point_in": "blocks.7.hook_resid_post",
        "hook_point_out": "blocks.7.hook_resid_post",
        "d_model": 4,
        "d_sae": 6,
        "act_fn": "jumprelu",
        "jump_relu_threshold": 0.6,
        "norm_activation": "dataset-wise",
        "dataset_average_activation_norm": {"in": 5.0, "out": 5.0},
        "apply_decoder_bias_to_pre_encoder": False,
        "sparsity_include_decoder_norm": True,
        "top_k": 2,
        **changes,
    }
    (folder / "checkpoints").mkdir(parents=True)
    save_file(arrays, folder / "checkpoints" / "final.safetensors")
    (folder / "hyperparams.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_llama_scope_is_as_in_its_own_units(
    tmp_path: Path, with_norms: bool, centred: bool
) -> None:
    """Scaled to the root of the width by hand, gated by pre-activations times decoder norms, and
    scaled back; features are in the units of the values.
    """
    folder = llama_scope(
        tmp_path / "a",
        sparsity_include_decoder_norm=with_norms,
        apply_decoder_bias_to_pre_encoder=centred,
    )
    arrays = load_file(folder / "checkpoints" / "final.safetensors")
    values = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)) * 5
    scale = 4**0.5 / 5.0
    seen = values * scale - (arrays["decoder.bias"] if centred else 0.0)
    pre = seen @ arrays["encoder.weight"].T + arrays["encoder.bias"]
    norms = arrays["decoder.weight"].norm(dim=0) if with_norms else torch.ones(6)
    features = pre * norms * (pre * norms > 0.6)
    back = (features / norms) @ arrays["decoder.weight"].T + arrays["decoder.bias"]
    sae = load_sae(folder)
    assert sae.hook == "resid.7" and 5 < int((features > 0).sum()) < 50
    torch.testing.assert_close(sae.encode(values), features / scale)
    torch.testing.assert_close(sae.reconstruct(values), back / scale)


def test_other_activations_and_refusals_of_llama_scope(tmp_path: Path) -> None:
    values = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    top = load_sae(llama_scope(tmp_path / "a", act_fn="topk", jump_relu_threshold=0.0))
    assert top.activation == "topk" and top.k == 2
    later = load_sae(llama_scope(tmp_path / "b", act_fn="topk"))
    assert later.activation == "jumprelu"
    plain = load_sae(llama_scope(tmp_path / "c", norm_activation="inference", act_fn="relu"))
    scaled = load_sae(llama_scope(tmp_path / "d", act_fn="relu"))
    assert torch.equal(plain.w_dec, scaled.w_dec) and plain.activation == "relu"
    assert not torch.allclose(plain.encode(values), scaled.encode(values))
    out = "blocks.7.hook_mlp_out"
    for name, changes, match in (
        ("e", {"hook_point_out": out}, "a transcoder"),
        ("f", {"norm_activation": "batch-wise"}, "'batch-wise'; those that are read"),
        ("g", {"dataset_average_activation_norm": {"in": 0}}, "no norm"),
        ("h", {"act_fn": "tanh"}, "'tanh'; those that are read"),
        ("i", {"use_glu_encoder": True}, "use_glu_encoder"),
    ):
        with pytest.raises(BadFile, match=match) as error:
            load_sae(llama_scope(tmp_path / name, **changes))
        assert "\n" not in str(error.value)
