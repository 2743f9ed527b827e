"""An empty cache, and a GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.tiny_gguf import tiny_llama, write_gguf
from mechassay.models.weight_files import cache_folder


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test, but for those that use a real model."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tiny_llama(), tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()
