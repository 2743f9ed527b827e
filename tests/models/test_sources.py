"""What a name, a path or an id stands for, with its revision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, PreTrainedTokenizerFast

from helpers.tiny_gguf import load, logits, tiny_llama
from mechassay.errors import BadFile, BadUsage, ModelNotFetched, UnknownName
from mechassay.models import loading, sources

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("source", ["gpt2", "EleutherAI/pythia-70m"])
def test_hub_ids(source: str) -> None:
    assert loading.resolve(source) == sources.Resolved("hub", source, source)


@pytest.mark.parametrize("source", ["/nowhere/at/all", "a/b/c", "../a", "~nobody/a"])
def test_paths_without_a_folder(source: str) -> None:
    with pytest.raises(
        BadFile, match=f"{source}: there is no such folder; expected one with a model"
    ):
        loading.resolve(source)


@pytest.mark.parametrize("source", ["smolm2-135m", "no such model", ""])
def test_other_names_are_unknown(source: str) -> None:
    with pytest.raises(UnknownName) as caught:
        loading.resolve(source)
    assert ("Did you mean 'smollm2-135m'?" in str(caught.value)) == (source == "smolm2-135m")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no config\.json"):
        loading.resolve(str(tmp_path))


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
        assert loading.resolve(source).name == f"run@{name}"
    assert sources.checkpoints(tmp_path / "run") == ["step0", "step8", "step64"]


def test_a_folder_of_checkpoints_is_the_last_step(tmp_path: Path) -> None:
    expected = write_checkpoints(tmp_path / "run", [0, 64, 8, "best"])
    model, tokenizer = load(str(tmp_path / "run"))
    torch.testing.assert_close(logits(model), expected["step64"], rtol=0, atol=0)
    assert tokenizer("b").input_ids == [1] and loading.resolve(str(tmp_path / "run")).name == "run"
    # A model of its own is what the folder stands for; its checkpoints have other names.
    tiny_llama().save_pretrained(tmp_path / "run")
    torch.testing.assert_close(logits(load(str(tmp_path / "run"))[0]), logits(tiny_llama()))
    model, _ = load(f"{tmp_path / 'run'}@step8")
    torch.testing.assert_close(logits(model), expected["step8"], rtol=0, atol=0)


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    write_checkpoints(tmp_path / "run", [0, 64])
    with pytest.raises(UnknownName, match=r"checkpoint of run 'step65'.*'step64'.*step0, step64"):
        loading.resolve(f"{tmp_path / 'run'}@step65")
    # Nothing outside of the folder is a checkpoint of it.
    write_checkpoints(tmp_path / "other", [1])
    for outside in ("../other/step1", "..", ".", str(tmp_path / "other/step1")):
        with pytest.raises(UnknownName, match="checkpoint of run"):
            loading.resolve(f"{tmp_path / 'run'}@{outside}")
    with pytest.raises(BadUsage, match="the name of a revision; got 'run@'"):
        loading.resolve(f"{tmp_path / 'run'}@")
    tiny_llama().save_pretrained(tmp_path / "single")
    with pytest.raises(UnknownName, match="Known: none"):
        loading.resolve(f"{tmp_path / 'single'}@step1")


def test_a_path_with_an_at_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoints(tmp_path / "run@home", [0, 64])
    tiny_llama().save_pretrained(tmp_path / "run@step8")
    write_checkpoints(tmp_path / "run", [8])
    monkeypatch.chdir(tmp_path)
    assert loading.resolve("run@home").location == str(tmp_path / "run@home/step64")
    assert loading.resolve("run@home@step0").location == str(tmp_path / "run@home/step0")
    assert loading.resolve("run@step8").location == str(tmp_path / "run@step8")
    with pytest.raises(
        BadFile, match="me@home/run: there is no such folder; expected one with a model"
    ):
        loading.resolve("me@home/run")


def test_a_revision_of_a_hub_id_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(source: str, *_: Any, revision: str | None = None, **__: Any) -> Any:
        asked.append((source, revision))
        raise OSError("not today")

    def config(source: str, *_: Any, revision: str | None = None, **__: Any) -> LlamaConfig:
        asked.append((source, revision))
        return LlamaConfig()

    for name, revision in (("EleutherAI/pythia-70m", "step64"), ("gpt2", "refs/pr/1")):
        found = loading.resolve(f"{name}@{revision}")
        assert found == sources.Resolved("hub", f"{name}@{revision}", name, revision=revision)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", listen)
        with pytest.raises(ModelNotFetched, match=f"'{name}@{revision}' did not come"):
            load(f"{name}@{revision}")
        monkeypatch.setattr(loading, "_lens_folder", lambda _: None)
        monkeypatch.setattr("transformers.AutoConfig.from_pretrained", config)
        monkeypatch.setattr(loading, "load_whole", listen)
        with pytest.raises(ModelNotFetched):
            load(f"{name}@{revision}")
        assert asked == [(name, revision)] * 3
        asked.clear()
        monkeypatch.undo()


def test_a_gguf_has_no_revisions(gguf_bytes: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes)
    with pytest.raises(BadUsage, match="has no revisions; got 'm@step1'"):
        loading.resolve(f"{file}@step1")
