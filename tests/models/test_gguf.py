"""GGUF files are dequantised right, and once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.tiny_gguf import files_in, load, logits, sha256, tiny_llama, write_gguf
from mechassay.errors import BadFile, UnsupportedModel
from mechassay.models import loading

pytestmark = pytest.mark.usefixtures("cache")


def test_a_gguf_is_dequantised_once(
    gguf_bytes: bytes, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Foreign"}'
    )  # must not be looked at
    first = loading.resolve(str(file))
    assert first.kind == "gguf" and first.location == str(cache / "gguf" / sha256(gguf_bytes)[:16])
    monkeypatch.setattr(loading, "dequantise", lambda *_: pytest.fail("dequantised again"))
    assert loading.resolve(str(file)) == first
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
        loading.resolve(str(file))
    assert files_in(cache) == []


def test_a_foreign_and_a_missing_gguf(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model at all " * 100)
    with pytest.raises(BadFile, match="not a GGUF file"):
        loading.resolve(str(tmp_path / "text.gguf"))
    with pytest.raises(BadFile, match="no file"):
        loading.resolve(str(tmp_path / "none.gguf"))


def test_lost_rope_scaling_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tiny_llama(), tmp_path / "scaled.gguf", rope_scaling=True)
    with pytest.raises(UnsupportedModel, match="rotary"):
        loading.resolve(str(file))
