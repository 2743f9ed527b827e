"""Digests of weights, configurations and tokenizers: equal for every form of one model, and
different for another model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import mechassay as ma
from helpers.tiny_gguf import of_bytes, of_words, tiny_llama, write_gguf
from mechassay.errors import BadFile
from mechassay.models import loading
from mechassay.models.identity import (
    ModelIdentity,
    config_digest,
    tokenizer_digest,
)
from mechassay.models.sources import find_source, known_digests, source_files
from mechassay.testing import tiny
from mechassay.utils.digests import compare_weights

TOKENS = tiny.token_pairs(3)
MIXTURES = ("mixtral", "qwen3_moe", "olmoe")
TIED = ("llama", "gpt2", "gemma2", "granite", "cohere")


def weights(hf: Any) -> str:
    return ModelIdentity.of(hf, None).weights


def saved(hf: Any, folder: Path, **options: Any) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    hf.save_pretrained(folder, **options)
    return folder


def loaded(folder: Path, dtype: str = "float32") -> Any:
    return ma.load_model(folder, dtype=dtype).hf


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


# Weights


@pytest.mark.few(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_digest_for_every_form(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    hf = tiny.build(family, dtype)
    right = weights(hf)
    folder = saved(hf, tmp_path / "a")
    stored = tensors_in(folder)
    assert weights(loaded(folder)) == right, "in float32, whatever the file has"
    assert weights(loaded(folder, "float64")) == right, "wider than the file"
    assert weights(loaded(saved(loaded(folder), tmp_path / "b"))) == right, "saved again"
    shards = saved(hf, tmp_path / "c", max_shard_size="20kB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    assert weights(loaded(shards)) == right, "shards"
    as_loaded = saved(hf, tmp_path / "d", save_original_format=False)
    assert weights(loaded(as_loaded)) == right, "with the names of the loaded class"
    if family in MIXTURES:
        assert set(tensors_in(as_loaded)) != set(stored), "experts are fused on loading"
    prefix = f"{hf.base_model_prefix}."
    bare = {name.removeprefix(prefix): x for name, x in stored.items()}
    assert set(bare) != set(stored)
    assert weights(loaded(with_tensors(saved(hf, tmp_path / "e"), bare))) == right
    assert weights(copy.deepcopy(hf)) == right
    hf(TOKENS.clean)
    assert weights(hf) == right, "after use"
    other = copy.deepcopy(hf)
    last = list(other.parameters())[-1].data.view(-1)
    last[-1] = torch.nextafter(last[-1], last[-1] + 1)
    assert weights(other) != right, "the last bit of one number"


def one_vector(values: list[float], dtype: torch.dtype) -> Any:
    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = torch.nn.Parameter(torch.tensor(values, dtype=dtype))
            self.register_buffer("unsaved", torch.ones(3), persistent=False)
            self.config = transformers.GPT2Config()

    return One()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_digest_by_hand() -> None:
    """1 and -2 are exact in bfloat16 (3f80, c000), 1 + 2^-23 needs float32 (3f800001)."""
    short = bytes.fromhex("803f00c0")
    right = sha(f"v (2,) torch.bfloat16 {sha(short)}".encode())[:16]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        own = ModelIdentity.of(one_vector([1.0, -2.0], dtype), None)
        assert own.weights == own.rounded == right
    for dtype in (torch.float32, torch.float64):
        own = ModelIdentity.of(one_vector([1 + 2**-23, -2.0], dtype), None)
        exact = bytes.fromhex("0100803f000000c0")
        assert own.weights == sha(f"v (2,) torch.float32 {sha(exact)}".encode())[:16]
        assert own.rounded == right


@pytest.mark.few(3)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_digest_by_another_calculation(family: str) -> None:
    """By NumPy, from what `save_pretrained` would have: the state without a tied tensor twice."""
    hf = tiny.build(family)
    lines: list[str] = []
    for name, parameter in hf.named_parameters():
        bits = parameter.detach().numpy().view(np.uint32)
        short = not (bits & 0xFFFF).any()
        kept = (bits >> 16).astype("<u2") if short else bits.astype("<u4")
        kind = "torch.bfloat16" if short else "torch.float32"
        lines.append(f"{name} {tuple(parameter.shape)} {kind} {sha(kept.tobytes())}")
    assert weights(hf) == sha("\n".join(sorted(lines)).encode())[:16]


@pytest.mark.few(2)
@pytest.mark.parametrize("family", TIED)
def test_tied_with_and_without_the_head_in_the_file(family: str, tmp_path: Path) -> None:
    hf = tiny.build(family)
    folder = saved(hf, tmp_path / "a")
    stored = tensors_in(folder)
    head: Any = hf.get_output_embeddings()
    shared = {name for name, x in hf.named_parameters(remove_duplicate=False) if x is head.weight}
    (name,) = shared - set(stored)
    both = {**stored, name: head.weight.detach().clone()}
    with_head = saved(hf, tmp_path / "b")
    assert weights(loaded(with_tensors(with_head, both))) == weights(hf)
    (other,) = shared - {name}
    alone = {name: x for name, x in both.items() if name != other}
    assert weights(loaded(with_tensors(with_head, alone))) == weights(hf)
    # transformers unties what the file has twice, with other values: this is another model.
    unequal = {**both, name: both[name] + 1}
    assert weights(loaded(with_tensors(with_head, unequal))) != weights(hf)


def test_types_of_numbers(tmp_path: Path) -> None:
    hf = tiny.build("llama")
    assert weights(copy.deepcopy(hf).double()) == weights(hf)
    zero, minus = copy.deepcopy(hf), copy.deepcopy(hf)
    zero.lm_head.weight.data[0, 0], minus.lm_head.weight.data[0, 0] = 0.0, -0.0
    assert weights(zero) != weights(minus)
    half = tiny.build("llama", torch.float16)
    assert weights(copy.deepcopy(half).float()) == weights(half)
    # Matrices in bfloat16 and norms in float32, as some files are.
    folder = saved(tiny.build("llama", torch.bfloat16), tmp_path / "a")
    mixed = {k: x.float() + 1e-4 if "norm" in k else x for k, x in tensors_in(folder).items()}
    first = loaded(with_tensors(folder, mixed))
    assert weights(loaded(saved(first, tmp_path / "b"))) == weights(first)
    # `dtype="auto"` follows the configuration, which says bfloat16, and not the file.
    auto = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert weights(auto) != weights(first)


def test_rounded_digests(tmp_path: Path) -> None:
    def of(hf: Any) -> dict[str, str]:
        return ModelIdentity.of(hf, None).as_dict()

    folder = saved(tiny.build("llama"), tmp_path / "a")
    single, double, half = (of(loaded(folder, x)) for x in ("float32", "float64", "bfloat16"))
    assert compare_weights(single, double) == "same"
    assert compare_weights(single, half) == "same but for rounding"
    assert half["weights"] == half["rounded"]
    assert compare_weights(of(loaded(folder, "float16")), single) == "not known"
    other = tiny.build("llama", seed=1)
    assert compare_weights(of(other), single) == "different"
    assert compare_weights(of(other.bfloat16()), single) == "different"
    rounded = saved(tiny.build("llama", torch.bfloat16), tmp_path / "b")
    assert compare_weights(of(loaded(rounded)), single) == "same but for rounding"


def test_gguf_quantised_offloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    hf = tiny_llama()
    assert weights(loaded(write_gguf(hf, tmp_path / "x.gguf"))) == weights(hf)
    above = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", "model.layers.0")
    names = {**dict.fromkeys(above, "cpu"), "model.layers.1": "disk"}
    (tmp_path / "map.json").write_text(json.dumps(names), "utf-8")
    folder = saved(hf, tmp_path / "a")
    away = ma.load_model(folder, device_map=str(tmp_path / "map.json")).hf
    assert any(x.is_meta for x in away.parameters())
    assert weights(away) == weights(hf)
    torchao = pytest.importorskip("torchao.quantization")
    small = [tiny.build("llama", seed=seed) for seed in (0, 0, 1)]
    for one in small:
        torchao.quantize_(one, torchao.Int8WeightOnlyConfig())
    digests = [weights(one) for one in small]
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] != weights(tiny.build("llama")), "rounded to int8: another model"


# Configuration and tokenizer


@pytest.mark.few(8)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_configurations(family: str, tmp_path: Path) -> None:
    hf = tiny.build(family)
    right = config_digest(hf.config)
    folder = saved(hf, tmp_path / "a")
    assert config_digest(loaded(folder).config) == right
    assert config_digest(loaded(folder, "bfloat16").config) == right
    assert config_digest(loaded(saved(loaded(folder), tmp_path / "b")).config) == right
    model = ma.load_model(copy.deepcopy(hf))
    ma.circuits.evaluate(model, ma.circuits.Circuit.full(model.graph), TOKENS)
    assert config_digest(model.hf.config) == right, "after use"
    for name, value in {"use_cache": False, "pad_token_id": 1, "eos_token_id": 5}.items():
        setattr(hf.config, name, value)
    hf.config.output_hidden_states = True
    assert config_digest(loaded(saved(hf, tmp_path / "c")).config) == right
    written = json.loads((folder / "config.json").read_text("utf-8"))
    defaults = type(hf.config)().to_dict()
    short = {k: v for k, v in written.items() if defaults.get(k, "?") != v}
    short |= {k: written[k] for k in ("model_type", "architectures")}
    (folder / "config.json").write_text(json.dumps(short), "utf-8")
    assert config_digest(loaded(folder).config) == right, "without what is a default"
    rope = getattr(hf.config, "rope_parameters", None)
    if rope:
        rope = rope if "rope_theta" in rope else rope["full_attention"]
        rope["rope_theta"] = 77.0
        assert config_digest(loaded(saved(hf, tmp_path / "d")).config) != right
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"):
        if hasattr(hf.config, name):
            changed = copy.deepcopy(tiny.build(family).config)
            setattr(changed, name, 0.5)
            assert config_digest(changed) != right


def again(tokenizer: Any, folder: Path) -> Any:
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_tokenizers(tmp_path: Path) -> None:
    def make() -> Any:
        return of_words(["a b c the"])

    right = tokenizer_digest(make())
    assert tokenizer_digest(None) == ""
    assert tokenizer_digest(again(make(), tmp_path / "a")) == right
    used = make()
    used.pad_token = used.unk_token
    used(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert json.loads(used.backend_tokenizer.to_str())["padding"] is not None
    assert tokenizer_digest(used) == right
    assert tokenizer_digest(again(used, tmp_path / "b")) == right
    padded = make()
    padded.add_special_tokens({"pad_token": "<pad>"})
    padded.chat_template = "{{ messages }}"
    padded.model_max_length = 17
    assert tokenizer_digest(again(padded, tmp_path / "c")) == right
    changed = json.loads((tmp_path / "a" / "tokenizer.json").read_text("utf-8"))
    vocabulary = changed["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "a" / "tokenizer.json").write_text(json.dumps(changed), "utf-8")
    assert tokenizer_digest(transformers.AutoTokenizer.from_pretrained(tmp_path / "a")) != right
    begun = make()
    begun.add_special_tokens({"bos_token": "<s>"})
    assert tokenizer_digest(begun) != right
    assert tokenizer_digest(of_bytes()) != right


# The hub, and models in memory


def test_a_snapshot_in_the_cache_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is a key of the cache; a snapshot of links has the digest of its files."""
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    plain = saved(tiny.build("llama"), tmp_path / "plain")
    snapshot = hub / "models--own--name" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for file in plain.iterdir():
        (snapshot / file.name).symlink_to(file)
    refs = hub / "models--own--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("c0ffee")
    source = find_source("own/name")
    files = source_files(source, "float32")
    assert files is not None and files.path == snapshot and len(files.states) >= 2
    assert source_files(find_source("own/other"), "float32") is None
    assert weights(loaded(snapshot)) == weights(loaded(plain))


def test_an_identity_is_made_once_and_looked_up_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    folder = saved(tiny.build("llama"), tmp_path / "mine")
    now = time.time_ns
    monkeypatch.setattr("mechassay.utils.digests.time.time_ns", lambda: now() + 10**10)
    assert known_digests(str(folder), "float32") is None
    model = ma.load_model(folder)
    identity = model.loaded
    assert identity is not None
    assert known_digests(str(folder), "float32") == identity.as_dict()
    assert known_digests(str(folder), "bfloat16") is None
    with torch.no_grad():
        next(model.hf.parameters()).data.add_(1.0)
    assert model.identity != identity and model.loaded == identity
    assert known_digests(str(folder), "float32") == identity.as_dict(), "the files are as they were"
    code = "from mechassay.models.sources import known_digests; import sys;"
    code += f"print(known_digests({str(folder)!r}, 'float32')['weights'], 'torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [identity.weights, "False"]


def test_a_model_in_memory_follows_a_file_that_is_overwritten(tmp_path: Path) -> None:
    folder, other = saved(tiny.build("llama"), tmp_path / "a"), tiny.build("llama", seed=1)
    file = saved(other, tmp_path / "b") / "model.safetensors"
    model = ma.load_model(folder)
    assert model.files is not None and not model.files.changed()
    shutil.copyfile(file, folder / "model.safetensors")
    assert weights(model.hf) == weights(other), "the file is mapped into memory"
    assert model.files.changed()


def test_files_that_change_while_they_are_loaded_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tiny.build("llama"), tmp_path / "a")
    load = loading.load_hf

    def slowly(*args: Any, **about: Any) -> Any:
        held = load(*args, **about)
        saved(tiny.build("llama", seed=1), folder)
        return held

    monkeypatch.setattr(loading, "load_hf", slowly)
    with pytest.raises(BadFile, match="files changed during loading"):
        ma.load_model(folder)
