"""Digests of files by their content, and the cache of digests by what the file system tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mechassay.utils.digests import DigestCache, content_digest, states_of
from mechassay.utils.files import write_tensors


def test_the_content_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1,2")
    first = content_digest(file)
    assert len(first) == 16
    os.utime(file, (1, 1))
    shutil.copy(file, tmp_path / "b.csv")
    assert content_digest(file) == content_digest(tmp_path / "b.csv") == first
    file.write_text("1,3")
    assert content_digest(file) != first


def test_of_a_file_of_tensors_provenance_and_layout_do_not_count(tmp_path: Path) -> None:
    a, b, c = torch.arange(4.0), torch.ones(2, 3), torch.arange(4.0) + 1
    file = tmp_path / "x.safetensors"

    def digest(tensors: dict[str, Any], **header: Any) -> str:
        write_tensors(file, tensors, header)
        return content_digest(file)

    right = digest({"a": a, "b": b}, kind="scores", provenance={"seconds": 1})
    assert digest({"b": b, "a": a}, kind="scores", provenance={"seconds": 2}) == right
    assert digest({"a": c, "b": b}, kind="scores") != right
    assert digest({"a": a.view(2, 2), "b": b}, kind="scores") != right
    assert digest({"a": a.double(), "b": b}, kind="scores") != right
    assert digest({"a": a, "b": b}, kind="circuit") != right
    save_file({"a": a, "b": b}, file, {"format": "pt"})
    plain = content_digest(file)
    save_file({"a": a, "b": b}, file)
    assert content_digest(file) == plain
    file.write_bytes(b"no tensors")
    assert content_digest(file) not in (plain, right)


@pytest.mark.parametrize(
    "header",
    [
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1000000000000000000]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-9, 4]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}',
        '{"a": 3}',
        "[]",
        "[" * 100_000,
    ],
)
def test_of_a_hostile_header_the_bytes_count(header: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"1234")
    first = content_digest(file)
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"1235")
    assert content_digest(file) != first


def test_of_a_folder_only_files_count(tmp_path: Path) -> None:
    """No pipe is waited for, and no link that leads above the folder is followed."""
    (tmp_path / "x.json").write_text("1")
    first = content_digest(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "root").symlink_to("/")
    assert content_digest(tmp_path) == first


def test_settings_beside_a_file_of_a_dictionary_count(tmp_path: Path) -> None:
    file, settings = tmp_path / "sae_weights.safetensors", tmp_path / "cfg.json"
    save_file({"W": torch.ones(2)}, file)
    settings.write_text('{"k": 4}')
    first = content_digest(file)
    settings.write_text('{"k": 1}')
    assert content_digest(file) != first


def test_folders_that_are_links_count(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "saes").mkdir()
    (tmp_path / "store" / "x.json").write_text("1")
    (tmp_path / "saes" / "resid.2").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "above").symlink_to(tmp_path / "saes")
    first = content_digest(tmp_path / "saes")
    (tmp_path / "store" / "x.json").write_text("2")
    assert content_digest(tmp_path / "saes") != first


def test_of_a_run_that_trains_dictionaries_only_these_count(tmp_path: Path) -> None:
    for name in ("plan.json", "records/x.json", "saes/m--resid.1/cfg.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = content_digest(tmp_path)
    (tmp_path / "records/x.json").write_text("2")
    (tmp_path / "saes/m--resid.1/training.safetensors").write_text("2")
    assert content_digest(tmp_path) == first
    (tmp_path / "saes/m--resid.1/cfg.json").write_text("2")
    assert content_digest(tmp_path) != first


def test_of_a_run_the_parts_that_are_written_again_do_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("plan.json", "records/x.json", "activations/k/store.json", "tables.csv"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("1")
    first = content_digest(run)
    for name in ("plan.json", "activations/k/store.json", "report.html"):
        (run / name).write_text("2")
    assert content_digest(run) == first
    (run / "records/x.json").write_text("2")
    assert content_digest(run) != first


# The cache


def states(folder: Path) -> dict[str, Any]:
    return states_of(folder.iterdir())


@pytest.fixture
def digests(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "digests")


class Maker:
    """The content of a folder's weights, and how often it was read."""

    def __init__(self, digests: DigestCache, folder: Path) -> None:
        self.digests, self.folder, self.reads = digests, folder, 0

    def __call__(self) -> str:
        def make() -> dict[str, str]:
            self.reads += 1
            files = sorted(self.folder.glob("*.safetensors"))
            return {"weights": "".join(file.read_text() for file in files)}

        return self.digests.of(self.folder, states(self.folder), make)["weights"]


def old(path: Path, text: str, *, seconds: float = 100) -> Path:
    """A file that was modified a while ago; when it was changed cannot be set."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    stamp = time.time_ns() - int(seconds * 1e9)
    os.utime(path, ns=(stamp, stamp))
    return path


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a while had passed since the last change."""
    now = time.time_ns
    monkeypatch.setattr("mechassay.utils.digests.time.time_ns", lambda: now() + 10_000_000_000)


def replace_by_cp(path: Path, text: str) -> None:
    """Another content of the same size and time of modification, by `cp -p` in place."""
    times = path.stat()
    other = path.with_suffix(".other")
    other.write_text(text)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    time.sleep(0.02)
    subprocess.run(["cp", "-p", other, path], check=True)
    other.unlink()
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert path.stat().st_ino == times.st_ino and path.stat().st_size == times.st_size


def replace_by_rename(path: Path, text: str) -> None:
    times = path.stat()
    other = path.with_suffix(".other")
    other.write_text(text)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)


def replace_in_place(path: Path, text: str) -> None:
    times = path.stat()
    time.sleep(0.02)
    with path.open("r+") as file:
        file.write(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [replace_by_cp, replace_by_rename, replace_in_place])
def test_a_file_of_the_same_size_and_time(
    digests: DigestCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, str], None],
) -> None:
    file = old(tmp_path / "m" / "model.safetensors", "one")
    asked = Maker(digests, tmp_path / "m")
    settled(monkeypatch)
    assert asked() == asked() == "one" and asked.reads == 1
    change(file, "two")
    assert asked() == "two" and asked.reads == 2


def test_links_copies_and_touching(
    digests: DigestCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(tmp_path / "a" / "model.safetensors", "one")
    old(tmp_path / "b" / "model.safetensors", "two")
    settled(monkeypatch)
    link = tmp_path / "best"
    link.symlink_to(tmp_path / "a")
    asked = Maker(digests, link)
    assert asked() == "one"
    link.unlink()
    link.symlink_to(tmp_path / "b")
    assert asked() == "two"
    # A link to a file within a folder, as in the hub's cache.
    (tmp_path / "c").mkdir()
    inner = tmp_path / "c" / "model.safetensors"
    inner.symlink_to(tmp_path / "a" / "model.safetensors")
    asked = Maker(digests, tmp_path / "c")
    assert asked() == "one"
    inner.unlink()
    inner.symlink_to(tmp_path / "b" / "model.safetensors")
    assert asked() == "two"
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    asked = Maker(digests, tmp_path / "d")
    assert asked() == "one" and asked.reads == 1, "a copy is read again"
    os.utime(tmp_path / "d" / "model.safetensors")
    assert asked() == "one" and asked.reads == 2, "what is touched is read again"
    old(tmp_path / "d" / "model-2.safetensors", "three")
    assert asked() == "threeone"
    (tmp_path / "d" / "config.json").write_text("{}")
    asked()
    assert asked.reads == 4


def test_two_writes_within_the_clock(digests: DigestCache, tmp_path: Path) -> None:
    file = tmp_path / "m" / "model.safetensors"
    file.parent.mkdir()
    asked = Maker(digests, file.parent)
    for number in range(200):
        file.write_text(f"{number:03}")
        assert asked() == f"{number:03}"
    assert asked.reads == 200 and digests.known(file.parent, states(file.parent)) is None


def test_a_file_that_changes_while_it_is_read(
    digests: DigestCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = old(tmp_path / "m" / "model.safetensors", "one")
    settled(monkeypatch)

    def make() -> dict[str, str]:
        read = file.read_text()
        replace_by_rename(file, "two")
        return {"weights": read}

    digests.of(file.parent, states(file.parent), make)
    assert digests.known(file.parent, states(file.parent)) is None


def test_caches_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old(tmp_path / "m" / "model.safetensors", "one")
    settled(monkeypatch)
    (tmp_path / "file").write_text("")
    asked = Maker(DigestCache(tmp_path / "file" / "digests"), tmp_path / "m")
    assert asked() == asked() == "one" and asked.reads == 2
    asked = Maker(DigestCache(tmp_path / "digests"), tmp_path / "m")
    asked()
    (kept,) = (tmp_path / "digests").iterdir()
    for damaged in ("", "{", "[]", '{"files": 3}', '{"files": {}, "digests": {}}'):
        kept.write_text(damaged)
        assert asked() == "one"
    asked.reads = 0
    assert asked() == "one" and asked.reads == 0
    assert asked.digests.known(tmp_path / "m", states(tmp_path / "m"), about="bfloat16") is None
    assert states_of([tmp_path / "missing"]) == {}
