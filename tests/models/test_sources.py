"""Models are fetched whole or not at all, dequantised right, and never read from a pickle."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mechassay.errors import (
    BadFile,
    BadUsage,
    DiskFull,
    MechassayError,
    MissingExtra,
    ModelNotFetched,
    UnknownName,
    UnsupportedModel,
)
from mechassay.models import sources

TOKENS = ["<|end|>", "M", "a", "r", "y", "Ġ", "ĠM", "Ma", "1", "2", "ĠĠ"]
MERGES = ["Ġ M", "M a", "Ġ Ġ"]
IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
TERMS = {
    "title": "Tiny",
    "licence": "MIT",
    "terms_url": "https://example.org/terms",
    "notice": "Be kind.",
}


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def write_gguf(model: LlamaForCausalLM, path: Path, *, rope_scaling: bool = False) -> Path:
    """What llama.cpp's converter writes for `model`, unquantised,
    with a byte-level vocabulary split digit by digit.
    """
    config, writer = model.config, GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if rope_scaling:
        writer.add_string("llama.rope.scaling.type", "linear")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def add(name: str, weight: torch.Tensor, heads: int = 0) -> None:
        if heads:  # llama.cpp interleaves the two halves of each rotary head
            weight = (
                weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
            )
        writer.add_tensor(f"{name}.weight", weight.detach().contiguous().numpy())

    add("token_embd", model.model.embed_tokens.weight)
    add("output_norm", model.model.norm.weight)
    for number, layer in enumerate(model.model.layers):
        block = f"blk.{number}."
        add(block + "attn_norm", layer.input_layernorm.weight)
        add(block + "attn_q", layer.self_attn.q_proj.weight, config.num_attention_heads)
        add(block + "attn_k", layer.self_attn.k_proj.weight, config.num_key_value_heads)
        add(block + "attn_v", layer.self_attn.v_proj.weight)
        add(block + "attn_output", layer.self_attn.o_proj.weight)
        add(block + "ffn_norm", layer.post_attention_layernorm.weight)
        add(block + "ffn_gate", layer.mlp.gate_proj.weight)
        add(block + "ffn_up", layer.mlp.up_proj.weight)
        add(block + "ffn_down", layer.mlp.down_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def load(source: str) -> tuple[Any, Any]:
    return sources.load_hf(sources.resolve(source), dtype=torch.float32, device="cpu")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test, but for those that use a real model."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    return sources.cache_folder()


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tiny_llama(), tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def shelf(
    gguf_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, sources.Packaged]:
    """A package index with one model, "tiny", cut over two wheels;
    tests may change what is pinned.
    """
    cut, wheels, folder = len(gguf_bytes) // 3, [], tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate((gguf_bytes[:cut], gguf_bytes[cut:])):
        file = folder / f"tiny{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("tiny/part", part)
            archive.writestr("../../escaped", b"must never be written")
        wheels.append(sources.Wheel(f"tiny{number}", "1.0", sha256(file.read_bytes()), "tiny/part"))
    models = {
        "tiny": sources.Packaged(
            **TERMS, gguf="tiny.gguf", gguf_sha256=sha256(gguf_bytes), wheels=tuple(wheels)
        )
    }

    def download(package: str, version: str, target: Path) -> Path:
        return Path(shutil.copy(folder / f"{package}-{version}-py3-none-any.whl", target))

    monkeypatch.setattr(sources, "pip_download", download)
    monkeypatch.setattr(sources, "packaged_models", lambda: models)
    return models


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- fetch
# -------------------------------------------------------------------------------------------


def test_fetch_joins_the_parts_and_shows_the_terms(
    shelf: dict[str, sources.Packaged], cache: Path
) -> None:
    said: list[str] = []
    folder = sources.fetch("tiny", say=said.append)
    assert "MIT" in said[0] and TERMS["terms_url"] in said[0] and said[1] == TERMS["notice"]
    assert folder == cache / "models" / "tiny" and sources.is_fetched("tiny")
    assert (
        files_in(cache / "tmp") == []
        and not list(cache.rglob("*.gguf"))
        and not list(cache.parent.rglob("escaped"))
    )
    model, tokenizer = load("tiny")
    torch.testing.assert_close(logits(model), logits(tiny_llama()))
    assert (
        tokenizer is not None
        and not model.training
        and not any(p.requires_grad for p in model.parameters())
    )


def test_a_model_that_does_not_fit_is_refused_before_it_is_downloaded(
    shelf: dict[str, sources.Packaged], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(cache.parent).free
    shelf["tiny"] = replace(shelf["tiny"], room=2 * free)
    monkeypatch.setattr(sources, "pip_download", lambda *about: pytest.fail("downloaded"))
    with pytest.raises(DiskFull, match="fetching tiny needs .*B; .*B are free") as found:
        sources.fetch("tiny", say=lambda text: None)
    assert str(cache) in str(found.value) and files_in(cache) == []


def test_the_packaged_models_know_their_room() -> None:
    # The model in float32, its GGUF file and the wheel, in bytes.
    assert all(5e8 < model.room < 2e9 for model in sources.packaged_models().values())


def test_a_fetched_model_is_not_fetched_again(
    shelf: dict[str, sources.Packaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sources.fetch("tiny", say=lambda _: None)
    monkeypatch.setattr(sources, "pip_download", lambda *_: pytest.fail("downloaded again"))
    assert sources.fetch("tiny", say=pytest.fail) == first


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_another_file_than_the_pinned_one_is_refused(
    shelf: dict[str, sources.Packaged], cache: Path, which: str
) -> None:
    tiny, wrong = shelf["tiny"], "0123456789abcdef" * 4
    if which == "wheel":
        wheel = tiny.wheels[1]
        got, name = wheel.sha256, "tiny1-1.0-py3-none-any.whl"
        wheels = (tiny.wheels[0], sources.Wheel(wheel.package, wheel.version, wrong, wheel.member))
        shelf["tiny"] = sources.Packaged(
            **TERMS, gguf=tiny.gguf, gguf_sha256=tiny.gguf_sha256, wheels=wheels
        )
    else:
        got, name = tiny.gguf_sha256, "tiny.gguf"
        shelf["tiny"] = sources.Packaged(
            **TERMS, gguf=tiny.gguf, gguf_sha256=wrong, wheels=tiny.wheels
        )
    with pytest.raises(BadFile, match=f"{name} .*expected SHA-256 0123456789ab, got {got[:12]}"):
        sources.fetch("tiny", say=lambda _: None)
    assert not sources.is_fetched("tiny") and files_in(cache) == []


def test_the_gguf_file_alone_is_joined_checked_and_kept(
    shelf: dict[str, sources.Packaged], gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    file = sources.fetch_gguf("tiny", say=said.append)
    assert file == sources.gguf_file("tiny") and file.read_bytes() == gguf_bytes
    assert shelf["tiny"].notice in said and not sources.is_fetched("tiny")
    monkeypatch.setattr(sources, "pip_download", lambda *_: pytest.fail("downloaded again"))
    assert sources.fetch_gguf("tiny") == file
    with pytest.raises(UnknownName):
        sources.fetch_gguf("tinny")


def test_a_gguf_file_that_is_not_the_pinned_one_is_not_kept(
    shelf: dict[str, sources.Packaged],
) -> None:
    shelf["tiny"] = replace(shelf["tiny"], gguf_sha256="0" * 64)
    with pytest.raises(BadFile, match="not the pinned file"):
        sources.fetch_gguf("tiny", say=lambda text: None)
    assert not sources.gguf_file("tiny").exists()


def test_an_interrupted_fetch_leaves_nothing(
    shelf: dict[str, sources.Packaged], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "_dequantise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.fetch("tiny", say=lambda _: None)
    assert not sources.is_fetched("tiny") and files_in(cache) == []


def test_a_killed_fetch_does_not_look_finished(cache: Path) -> None:
    """The process dies without any clean-up while the folder is half written."""
    script = """
import os
from pathlib import Path
from mechassay.models import sources
def dies(gguf, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    os._exit(9)
sources._download = lambda model, gguf, say: None
sources._dequantise = dies
sources.fetch("smollm2-135m", say=lambda _: None)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert [path.name for path in files_in(cache)] == ["config.json"]
    assert not sources.is_fetched("smollm2-135m")
    with pytest.raises(ModelNotFetched):
        sources.resolve("smollm2-135m")


def test_a_killed_fetch_is_swept_up_a_day_later(
    shelf: dict[str, sources.Packaged], cache: Path
) -> None:
    for name, age in (("old", 2 * 86_400), ("young", 60)):
        (cache / "tmp" / name).mkdir(parents=True)
        os.utime(cache / "tmp" / name, (time.time() - age,) * 2)
    sources.fetch("tiny", say=lambda _: None)
    assert [path.name for path in (cache / "tmp").iterdir()] == ["young"]


def test_pip_s_last_line_is_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.extend(command)
        return subprocess.CompletedProcess(
            command, 1, "Looking\n", "WARNING: retrying\nERROR: No matching distribution found\n"
        )

    monkeypatch.setattr(sources.subprocess, "run", run)
    with pytest.raises(
        MechassayError,
        match="^pip could not download tiny==1.0: ERROR: No matching distribution found$",
    ):
        sources.pip_download("tiny", "1.0", tmp_path)
    assert "download" in seen and "install" not in seen and "--no-deps" in seen
    assert seen[seen.index("--only-binary") + 1] == ":all:"


def test_a_missing_extra_is_told_before_any_download(
    shelf: dict[str, sources.Packaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sources, "find_spec", lambda package: None if package == "accelerate" else object()
    )
    monkeypatch.setattr(sources, "pip_download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(MissingExtra, match=r"'accelerate'.*mechassay\[gguf\]"):
        sources.fetch("tiny", say=lambda _: None)


def test_an_unwritable_cache_names_the_variable(
    shelf: dict[str, sources.Packaged], cache: Path
) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(MechassayError, match="MECHASSAY_CACHE"):
        sources.fetch("tiny", say=lambda _: None)


def test_thepackaged_models_are_pinned_and_have_terms() -> None:
    assert sources.packaged_names() == ["gemma3-270m", "smollm2-135m"]
    for model in sources.packaged_models().values():
        assert model.licence and model.notice and model.terms_url.startswith("https://")
        assert all(
            len(pin) == 64 for pin in (model.gguf_sha256, *(wheel.sha256 for wheel in model.wheels))
        )


# --- resolve
# -----------------------------------------------------------------------------------------


def test_a_packaged_model_must_be_fetched_first() -> None:
    with pytest.raises(ModelNotFetched) as caught:
        sources.resolve("smollm2-135m")
    assert (
        str(caught.value)
        == "Model 'smollm2-135m' is not on this machine yet: run `mechassay models fetch"
        " smollm2-135m`."
    )


@pytest.mark.parametrize("source", ["gpt2", "EleutherAI/pythia-70m"])
def test_hub_ids(source: str) -> None:
    assert sources.resolve(source) == sources.Resolved("hub", source, source)


@pytest.mark.parametrize("source", ["/nowhere/at/all", "a/b/c", "../a", "~nobody/a"])
def test_paths_without_a_folder(source: str) -> None:
    with pytest.raises(BadFile, match=f"There is no folder '{source}' with a model"):
        sources.resolve(source)


@pytest.mark.parametrize("source", ["smolm2-135m", "no such model", ""])
def test_other_names_are_unknown(source: str) -> None:
    with pytest.raises(UnknownName) as caught:
        sources.resolve(source)
    assert ("Did you mean 'smollm2-135m'?" in str(caught.value)) == (source == "smolm2-135m")


def test_fetching_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gemma3-270m'"):
        sources.fetch("gemma-270m")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no config\.json"):
        sources.resolve(str(tmp_path))


# --- folders
# -----------------------------------------------------------------------------------------


def test_a_folder_without_tokenizer_files(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "m")
    model, tokenizer = load(str(tmp_path / "m"))
    assert tokenizer is None
    torch.testing.assert_close(logits(model), logits(tiny_llama()), rtol=0, atol=0)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    tiny_llama().config.save_pretrained(tmp_path)
    torch.save(tiny_llama().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(BadFile, match="convert them to safetensors"):
        load(str(tmp_path))
    (tmp_path / "stray.safetensors").write_bytes(
        b""
    )  # not the model's weights, so the pickle is all there is
    with pytest.raises(BadFile, match="cannot be loaded"):
        load(str(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "no weights", "not a config", "remote code"])
def test_a_damaged_folder_is_one_line(tmp_path: Path, damage: str) -> None:
    tiny_llama().save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:2000])
        case "no weights":
            weights.unlink()
        case "not a config":
            config.write_text("{")
        case _:
            config.write_text(
                '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.C",'
                ' "AutoModelForCausalLM": "mine.M"}}'
            )
            (tmp_path / "mine.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(BadFile) as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_not_filled_with_noise(tmp_path: Path) -> None:
    model = tiny_llama()
    kept = {
        name: tensor for name, tensor in model.state_dict().items() if "layers.1.mlp" not in name
    }
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(BadFile, match="lack 3 of the model's tensors"):
        load(str(tmp_path))


def test_the_hub_s_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("We couldn't connect to the hub.\nMore lines.")

    monkeypatch.setattr(sources, "_load_whole", unreachable)
    with pytest.raises(ModelNotFetched) as caught:
        load("HuggingFaceTB/SmolLM2-135M")
    message = str(caught.value)
    assert (
        "'HuggingFaceTB/SmolLM2-135M'" in message
        and "models fetch smollm2-135m" in message
        and "\n" not in message
    )


def test_loading_leaves_the_log_settings_alone(tmp_path: Path) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    def settings() -> tuple[Any, ...]:
        return (
            logging.get_verbosity(),
            logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
        )

    tiny_llama().save_pretrained(tmp_path)
    before = settings()
    load(str(tmp_path))
    assert settings() == before


# --- revisions
# ---------------------------------------------------------------------------------------


def write_checkpoints(folder: Path, steps: Sequence[int | str]) -> dict[str, torch.Tensor]:
    """A folder with a tokenizer and checkpoints of different weights; the logits of each."""
    found: dict[str, torch.Tensor] = {}
    for number, step in enumerate(steps):
        model = tiny_llama()
        with torch.no_grad():
            model.model.norm.weight += number
        name = f"step{step}" if isinstance(step, int) else step
        model.save_pretrained(folder / name)
        found[name] = logits(model)
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return found


def test_a_checkpoint_is_a_subfolder(tmp_path: Path) -> None:
    expected = write_checkpoints(tmp_path / "run", [0, 64, 8, "best"])
    for name, right in expected.items():
        source = f"{tmp_path / 'run'}@{name}"
        model, tokenizer = load(source)
        torch.testing.assert_close(logits(model), right, rtol=0, atol=0)
        assert tokenizer("b").input_ids == [1]
        assert sources.resolve(source).name == f"run@{name}"
    assert sources.checkpoints(tmp_path / "run") == ["step0", "step8", "step64"]


def test_a_folder_of_checkpoints_is_the_last_step(tmp_path: Path) -> None:
    expected = write_checkpoints(tmp_path / "run", [0, 64, 8, "best"])
    model, tokenizer = load(str(tmp_path / "run"))
    torch.testing.assert_close(logits(model), expected["step64"], rtol=0, atol=0)
    assert tokenizer("b").input_ids == [1] and sources.resolve(str(tmp_path / "run")).name == "run"
    # A model of its own is what the folder stands for; its checkpoints have other names.
    tiny_llama().save_pretrained(tmp_path / "run")
    torch.testing.assert_close(logits(load(str(tmp_path / "run"))[0]), logits(tiny_llama()))
    model, _ = load(f"{tmp_path / 'run'}@step8")
    torch.testing.assert_close(logits(model), expected["step8"], rtol=0, atol=0)


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    write_checkpoints(tmp_path / "run", [0, 64])
    with pytest.raises(UnknownName, match=r"checkpoint of run 'step65'.*'step64'.*step0, step64"):
        sources.resolve(f"{tmp_path / 'run'}@step65")
    # Nothing outside of the folder is a checkpoint of it.
    write_checkpoints(tmp_path / "other", [1])
    for outside in ("../other/step1", "..", ".", str(tmp_path / "other/step1")):
        with pytest.raises(UnknownName, match="checkpoint of run"):
            sources.resolve(f"{tmp_path / 'run'}@{outside}")
    with pytest.raises(BadUsage, match="the name of a revision; got 'run@'"):
        sources.resolve(f"{tmp_path / 'run'}@")
    tiny_llama().save_pretrained(tmp_path / "single")
    with pytest.raises(UnknownName, match="Known: none"):
        sources.resolve(f"{tmp_path / 'single'}@step1")


def test_a_path_with_an_at_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoints(tmp_path / "run@home", [0, 64])
    tiny_llama().save_pretrained(tmp_path / "run@step8")
    write_checkpoints(tmp_path / "run", [8])
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("run@home").location == str(tmp_path / "run@home/step64")
    assert sources.resolve("run@home@step0").location == str(tmp_path / "run@home/step0")
    assert sources.resolve("run@step8").location == str(tmp_path / "run@step8")
    with pytest.raises(BadFile, match="There is no folder 'me@home/run' with a model"):
        sources.resolve("me@home/run")


def test_a_revision_of_a_hub_id_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(source: str, *_: Any, revision: str | None = None, **__: Any) -> Any:
        asked.append((source, revision))
        raise OSError("not today")

    for name, revision in (("EleutherAI/pythia-70m", "step64"), ("gpt2", "refs/pr/1")):
        found = sources.resolve(f"{name}@{revision}")
        assert found == sources.Resolved("hub", f"{name}@{revision}", name, revision=revision)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", listen)
        with pytest.raises(ModelNotFetched, match=f"'{name}@{revision}' did not come"):
            load(f"{name}@{revision}")
        monkeypatch.setattr(sources, "_attn_only_folder", lambda _: None)
        monkeypatch.setattr(sources, "_load_whole", listen)
        with pytest.raises(ModelNotFetched):
            load(f"{name}@{revision}")
        assert asked == [(name, revision)] * 2
        asked.clear()
        monkeypatch.undo()


def test_the_tokenizer_of_a_hub_id_has_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(source: str, *_: Any, revision: str | None = None, **__: Any) -> Any:
        asked.append((source, revision))
        return "words"

    monkeypatch.setattr(sources, "_attn_only_folder", lambda _: None)
    monkeypatch.setattr(sources, "_load_whole", lambda *_, **__: tiny_llama())
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", listen)
    assert load("EleutherAI/pythia-70m@step64")[1] == "words"
    assert load("EleutherAI/pythia-70m")[1] == "words"
    assert asked == [("EleutherAI/pythia-70m", "step64"), ("EleutherAI/pythia-70m", None)]


def test_a_gguf_has_no_revisions(gguf_bytes: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes)
    with pytest.raises(BadUsage, match="has no revisions; got 'm@step1'"):
        sources.resolve(f"{file}@step1")


# --- GGUF files
# --------------------------------------------------------------------------------------


def test_a_gguf_is_dequantised_once(
    gguf_bytes: bytes, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Foreign"}'
    )  # must not be looked at
    first = sources.resolve(str(file))
    assert first.kind == "gguf" and first.location == str(cache / "gguf" / sha256(gguf_bytes)[:16])
    monkeypatch.setattr(sources, "_dequantise", lambda *_: pytest.fail("dequantised again"))
    assert sources.resolve(str(file)) == first
    torch.testing.assert_close(logits(load(str(file))[0]), logits(tiny_llama()))


def test_the_gguf_s_config_and_tokenizer(gguf_bytes: bytes, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes)
    model, tokenizer = load(str(file))
    assert (
        model.config.rms_norm_eps == 1e-5 and model.config.rope_parameters["rope_theta"] == 5000.0
    )
    assert (
        model.config.tie_word_embeddings
        and getattr(model.config, "quantization_config", None) is None
    )
    assert tokenizer("Mary").input_ids == [7, 3, 4]
    # Digits stand alone: the two spaces before them are one token, where GPT-2's split would part
    # them.
    assert tokenizer("Mary  12").input_ids == [7, 3, 4, 10, 8, 9]
    assert tokenizer.decode([7, 3, 4, 10, 8, 9]) == "Mary  12"


@pytest.mark.parametrize("keep", [0, 3, 100, 1500, -1])
def test_a_truncated_gguf(gguf_bytes: bytes, tmp_path: Path, cache: Path, keep: int) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf_bytes[:keep])
    with pytest.raises(BadFile, match="^cut.gguf"):
        sources.resolve(str(file))
    assert files_in(cache) == []


def test_a_foreign_and_a_missing_gguf(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model at all " * 100)
    with pytest.raises(BadFile, match="not a GGUF file"):
        sources.resolve(str(tmp_path / "text.gguf"))
    with pytest.raises(BadFile, match="no file"):
        sources.resolve(str(tmp_path / "none.gguf"))


def test_lost_rope_scaling_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tiny_llama(), tmp_path / "scaled.gguf", rope_scaling=True)
    with pytest.raises(UnsupportedModel, match="rotary"):
        sources.resolve(str(file))


# --- real models
# -------------------------------------------------------------------------------------

PARAGRAPH = (
    "The history of the town goes back to the twelfth century, when a small group of merchants"
    " built a wooden bridge across the river. Over the following decades the settlement grew, and"
    " by 1250 it had a market, a church and a stone wall."
)


@pytest.fixture(params=["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def real(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    if not sources.is_fetched(request.param):
        pytest.skip(f"{request.param} is not fetched: mechassay models fetch {request.param}")
    return (request.param, *load(request.param))


@pytest.mark.real
def test_real_models(real: tuple[str, Any, Any]) -> None:
    """The published shapes, a tokenizer that round-trips,
    and predictions no wrongly converted model makes.
    """
    name, model, tokenizer = real
    config, gemma = model.config, name == "gemma3-270m"
    shape = (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
        config.rms_norm_eps,
    )
    assert (
        config.tie_word_embeddings and model.lm_head.weight is model.get_input_embeddings().weight
    )
    special = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    if gemma:
        assert shape == (18, 640, 4, 1, 256, 2048, 262144, 1e-6) and special == (2, 1, 0)
        assert (
            config.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 3
            and config.sliding_window == 512
        )
        theta = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
        assert (
            theta == {"full_attention": 1e6, "sliding_attention": 1e4}
            and config.query_pre_attn_scalar == 256
        )
        assert config.attn_logit_softcapping is None and config.final_logit_softcapping is None
    else:
        assert shape == (30, 576, 9, 3, 64, 1536, 49152, 1e-5) and special == (1, 2, 2)
        assert config.rope_parameters["rope_theta"] == 1e5

    start = [tokenizer.bos_token_id] if gemma else []
    mary = tokenizer(" Mary").input_ids
    assert mary[:-1] == start and len(mary) == len(start) + 1
    for text in ("When Mary went,  12 men\n\n left.", "naïve 日本語 🙂", " leading", "x     1234"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text

    with torch.no_grad():
        ioi = tokenizer(
            "When Mary and John went to the store, John gave a drink to", return_tensors="pt"
        ).input_ids
        assert model(ioi).logits[0, -1].argmax().item() == mary[-1]
        ids = tokenizer(PARAGRAPH, return_tensors="pt").input_ids
        assert torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).item() < 3.0
