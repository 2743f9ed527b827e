"""Packaged models are fetched whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.tiny_gguf import files_in, load, logits, sha256, tiny_llama
from mechassay.errors import (
    BadFile,
    DiskFull,
    MechassayError,
    MissingExtra,
    ModelNotFetched,
    UnknownName,
)
from mechassay.models import loading, sources
from mechassay.models import weight_files as gguf
from mechassay.models import weight_files as packaged

pytestmark = pytest.mark.usefixtures("cache")


TERMS = {
    "title": "Tiny",
    "licence": "MIT",
    "terms_url": "https://example.org/terms",
    "notice": "Be kind.",
}


@pytest.fixture
def shelf(
    gguf_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, packaged.Packaged]:
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
        wheels.append(
            packaged.Wheel(f"tiny{number}", "1.0", sha256(file.read_bytes()), "tiny/part")
        )
    models = {
        "tiny": packaged.Packaged(
            **TERMS, gguf="tiny.gguf", gguf_sha256=sha256(gguf_bytes), wheels=tuple(wheels)
        )
    }

    def download(package: str, version: str, target: Path) -> Path:
        return Path(shutil.copy(folder / f"{package}-{version}-py3-none-any.whl", target))

    monkeypatch.setattr(packaged, "pip_download", download)
    for module in (packaged, sources):
        monkeypatch.setattr(module, "packaged_models", lambda: models)
    return models


def test_fetch_joins_the_parts_and_shows_the_terms(
    shelf: dict[str, packaged.Packaged], cache: Path
) -> None:
    said: list[str] = []
    folder = packaged.fetch("tiny", say=said.append)
    assert "MIT" in said[0] and TERMS["terms_url"] in said[0] and said[1] == TERMS["notice"]
    assert folder == cache / "models" / "tiny" and packaged.is_fetched("tiny")
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
    shelf: dict[str, packaged.Packaged], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(cache.parent).free
    shelf["tiny"] = replace(shelf["tiny"], room=2 * free)
    monkeypatch.setattr(packaged, "pip_download", lambda *about: pytest.fail("downloaded"))
    with pytest.raises(DiskFull, match="fetching tiny needs .*B; .*B are free") as found:
        packaged.fetch("tiny", say=lambda text: None)
    assert str(cache) in str(found.value) and files_in(cache) == []


def test_the_packaged_models_know_their_room() -> None:
    # The model in float32, its GGUF file and the wheel, in bytes.
    assert all(5e8 < model.room < 2e9 for model in packaged.packaged_models().values())


def test_a_fetched_model_is_not_fetched_again(
    shelf: dict[str, packaged.Packaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packaged.fetch("tiny", say=lambda _: None)
    monkeypatch.setattr(packaged, "pip_download", lambda *_: pytest.fail("downloaded again"))
    assert packaged.fetch("tiny", say=pytest.fail) == first


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_another_file_than_the_pinned_one_is_refused(
    shelf: dict[str, packaged.Packaged], cache: Path, which: str
) -> None:
    tiny, wrong = shelf["tiny"], "0123456789abcdef" * 4
    if which == "wheel":
        wheel = tiny.wheels[1]
        got, name = wheel.sha256, "tiny1-1.0-py3-none-any.whl"
        wheels = (tiny.wheels[0], packaged.Wheel(wheel.package, wheel.version, wrong, wheel.member))
        shelf["tiny"] = packaged.Packaged(
            **TERMS, gguf=tiny.gguf, gguf_sha256=tiny.gguf_sha256, wheels=wheels
        )
    else:
        got, name = tiny.gguf_sha256, "tiny.gguf"
        shelf["tiny"] = packaged.Packaged(
            **TERMS, gguf=tiny.gguf, gguf_sha256=wrong, wheels=tiny.wheels
        )
    with pytest.raises(BadFile, match=f"{name} .*expected SHA-256 0123456789ab, got {got[:12]}"):
        packaged.fetch("tiny", say=lambda _: None)
    assert not packaged.is_fetched("tiny") and files_in(cache) == []


def test_the_gguf_file_alone_is_joined_checked_and_kept(
    shelf: dict[str, packaged.Packaged], gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    file = packaged.fetch_gguf("tiny", say=said.append)
    assert file == packaged.gguf_file("tiny") and file.read_bytes() == gguf_bytes
    assert shelf["tiny"].notice in said and not packaged.is_fetched("tiny")
    monkeypatch.setattr(packaged, "pip_download", lambda *_: pytest.fail("downloaded again"))
    assert packaged.fetch_gguf("tiny") == file
    with pytest.raises(UnknownName):
        packaged.fetch_gguf("tinny")


def test_a_gguf_file_that_is_not_the_pinned_one_is_not_kept(
    shelf: dict[str, packaged.Packaged],
) -> None:
    shelf["tiny"] = replace(shelf["tiny"], gguf_sha256="0" * 64)
    with pytest.raises(BadFile, match="not the pinned file"):
        packaged.fetch_gguf("tiny", say=lambda text: None)
    assert not packaged.gguf_file("tiny").exists()


def test_an_interrupted_fetch_leaves_nothing(
    shelf: dict[str, packaged.Packaged], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged, "dequantise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        packaged.fetch("tiny", say=lambda _: None)
    assert not packaged.is_fetched("tiny") and files_in(cache) == []


def test_a_killed_fetch_does_not_look_finished(cache: Path) -> None:
    """The process dies without any clean-up while the folder is half written."""
    script = """
import os
from pathlib import Path
from mechassay.models import weight_files as packaged
def dies(gguf, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    os._exit(9)
packaged._download = lambda model, gguf, say: None
packaged.dequantise = dies
packaged.fetch("smollm2-135m", say=lambda _: None)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert [path.name for path in files_in(cache)] == ["config.json"]
    assert not packaged.is_fetched("smollm2-135m")
    with pytest.raises(ModelNotFetched):
        loading.resolve("smollm2-135m")


def test_a_killed_fetch_is_swept_up_a_day_later(
    shelf: dict[str, packaged.Packaged], cache: Path
) -> None:
    for name, age in (("old", 2 * 86_400), ("young", 60)):
        (cache / "tmp" / name).mkdir(parents=True)
        os.utime(cache / "tmp" / name, (time.time() - age,) * 2)
    packaged.fetch("tiny", say=lambda _: None)
    assert [path.name for path in (cache / "tmp").iterdir()] == ["young"]


def test_pip_s_last_line_is_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.extend(command)
        return subprocess.CompletedProcess(
            command, 1, "Looking\n", "WARNING: retrying\nERROR: No matching distribution found\n"
        )

    monkeypatch.setattr(packaged.subprocess, "run", run)
    with pytest.raises(
        MechassayError,
        match="^pip could not download tiny==1.0: ERROR: No matching distribution found$",
    ):
        packaged.pip_download("tiny", "1.0", tmp_path)
    assert "download" in seen and "install" not in seen and "--no-deps" in seen
    assert seen[seen.index("--only-binary") + 1] == ":all:"


def test_a_missing_extra_is_told_before_any_download(
    shelf: dict[str, packaged.Packaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gguf, "find_spec", lambda package: None if package == "accelerate" else object()
    )
    monkeypatch.setattr(packaged, "pip_download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(MissingExtra, match=r"'accelerate'.*mechassay\[gguf\]"):
        packaged.fetch("tiny", say=lambda _: None)


def test_an_unwritable_cache_names_the_variable(
    shelf: dict[str, packaged.Packaged], cache: Path
) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(MechassayError, match="MECHASSAY_CACHE"):
        packaged.fetch("tiny", say=lambda _: None)


def test_thepackaged_models_are_pinned_and_have_terms() -> None:
    assert packaged.packaged_names() == ["gemma3-270m", "smollm2-135m"]
    for model in packaged.packaged_models().values():
        assert model.licence and model.notice and model.terms_url.startswith("https://")
        assert all(
            len(pin) == 64 for pin in (model.gguf_sha256, *(wheel.sha256 for wheel in model.wheels))
        )


def test_a_packaged_model_must_be_fetched_first() -> None:
    with pytest.raises(ModelNotFetched) as caught:
        loading.resolve("smollm2-135m")
    assert (
        str(caught.value)
        == "Model 'smollm2-135m' is not on this machine yet: run `mechassay models fetch"
        " smollm2-135m`."
    )


def test_fetching_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gemma3-270m'"):
        packaged.fetch("gemma-270m")
