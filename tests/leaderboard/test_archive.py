"""Archives of strangers: what is unpacked, what is refused, and that nothing gets out."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import archive as archives
from mechassay.leaderboard.archive import pack, sort_of, unpack
from mechassay.leaderboard.track import UploadLimits

SMALL = UploadLimits(megabytes=1, files=5, ratio=2)
"""Of 1 MB in all; the ratio counts from `FREE` on."""


def zipped(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def tarred(file: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(file, mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def held(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


FILES = {"a_b/x.json": b"{}", "a_b/y.pt": b"why", "submission.yaml": b"name: x"}


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz"])
def test_archives_are_unpacked(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "given"
    (zipped if mode == "zip" else lambda f, m: tarred(f, m, mode))(file, FILES)
    assert not unpack(file, tmp_path / "out", SMALL)
    assert held(tmp_path / "out") == FILES


def test_what_a_file_is_is_told_by_its_content(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(2)}
    torch.save(tensors, tmp_path / "x.zip")
    assert sort_of(tmp_path / "x.zip") == ".pt"
    assert not unpack(tmp_path / "x.zip", tmp_path / "one", SMALL, name="ioi_gpt2.pt")
    assert list(held(tmp_path / "one")) == ["ioi_gpt2.pt"]
    (tmp_path / "y").write_text('{"cfg": 1}')
    assert not unpack(tmp_path / "y", tmp_path / "two", SMALL)
    assert held(tmp_path / "two") == {"y.json": b'{"cfg": 1}'}
    (tmp_path / "text").write_text('{"cfg": {"n_layers": 1}}')
    assert sort_of(tmp_path / "text") == ".json"
    (tmp_path / "z").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert sort_of(tmp_path / "z") == ".safetensors"
    # The name of a single file is a name and no path.
    assert not unpack(tmp_path / "y", tmp_path / "three", SMALL, name="../../ioi_gpt2.json")
    assert list(held(tmp_path / "three")) == ["ioi_gpt2.json"]


def test_a_pickle_is_no_submission(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"scores": 1}))
    with pytest.raises(BadFile, match="bare pickles are refused, and nothing was run"):
        unpack(tmp_path / "x.pkl", tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists() or not held(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../out.json", "a path that leads out"),
        ("a/../../out.json", "a path that leads out"),
        ("/tmp/out.json", "an absolute path"),
        ("C:/out.json", "an absolute path"),
        ("<script>alert(1)</script>.json", "a name with other signs"),
        ("a\\..\\b.json", "a name with other signs"),
        ("a/\x1b[31m.json", "a name with other signs"),
        ("x" * 300, "a path of more than 200"),
        ("/".join("abcdefghijkl"), "a path of more than 200"),
    ],
)
@pytest.mark.parametrize("make", [zipped, tarred])
def test_paths_out_of_the_folder_and_odd_names(
    make: Callable[[Path, dict[str, bytes]], Path], name: str, said: str, tmp_path: Path
) -> None:
    file = make(tmp_path / "given", {name: b"bad", "fine.json": b"{}"})
    (problem,) = unpack(file, tmp_path / "deep" / "out", SMALL)
    assert said in problem.message and problem.path.isprintable()
    assert held(tmp_path) == {"given": file.read_bytes(), "deep/out/fine.json": b"{}"}
    assert not Path("/tmp/out.json").exists()


def test_every_bad_member_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    with tarfile.open(file, "w") as archive:
        for name, kind in (
            ("link", tarfile.SYMTYPE),
            ("hard", tarfile.LNKTYPE),
            ("pipe", tarfile.FIFOTYPE),
            ("device", tarfile.CHRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name in ("A.json", "a.json", "A.json", "a.json/b"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"{}"))
    problems = unpack(file, tmp_path / "out", SMALL)
    said = {(each.path, each.message.split(";")[0]) for each in problems}
    no_file, twice = "is a link or no regular file", "a name that the archive has twice."
    assert said == {
        *((name, no_file) for name in ("link", "hard", "pipe", "device")),
        ("a.json", twice),
        ("A.json", twice),
        ("a.json/b", "in a folder that is also a file."),
    }
    assert held(tmp_path / "out") == {"A.json": b"{}"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice_and_a_link_in_a_zip(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.json", "1")
        archive.writestr("a.json", "2")
        link = zipfile.ZipInfo("link.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    found = unpack(file, tmp_path / "out", SMALL)
    assert [each.path for each in found] == ["a.json", "link.json"]
    assert held(tmp_path / "out") == {"a.json": b"1"}


def test_an_encrypted_member(tmp_path: Path) -> None:
    file = zipped(tmp_path / "x.zip", {"a.json": b"{}"})
    content = bytearray(file.read_bytes())
    content[6] |= 1  # The flag of the member, and of its entry in the directory.
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(bytes(content))
    (problem,) = unpack(file, tmp_path / "out", SMALL)
    assert problem.message == "is encrypted."


@pytest.mark.parametrize("make", [zipped, lambda f, m: tarred(f, m, "w:gz")])
def test_a_bomb_is_stopped_where_the_limit_is(
    make: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path
) -> None:
    file = make(tmp_path / "bomb", {"a.json": bytes(900_000), "b.json": bytes(900_000)})
    assert file.stat().st_size < 10_000
    with pytest.raises(BadFile, match="bomb: unpacks to more than 1 MB, the largest submission"):
        unpack(file, tmp_path / "out", SMALL)
    assert not held(tmp_path / "out")


def test_a_high_ratio_is_a_bomb_below_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1000)
    file = zipped(tmp_path / "bomb", {"a.json": bytes(500_000)})
    with pytest.raises(BadFile, match="2 times its size"):
        unpack(file, tmp_path / "out", SMALL)
    assert not held(tmp_path / "out")


def test_what_a_header_says_of_a_size_is_not_believed(tmp_path: Path) -> None:
    file = zipped(tmp_path / "x.zip", {"a.json": bytes(3_000_000)})
    content = bytearray(file.read_bytes())
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(signature) + place
        content[at : at + 4] = struct.pack("<I", 10)
    file.write_bytes(bytes(content))
    with pytest.raises(BadFile):
        unpack(file, tmp_path / "out", SMALL)
    assert not held(tmp_path / "out")


def test_a_tar_archive_of_endless_headers_or_folders(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.json")
    info.pax_headers = {"comment": "x" * 3_000_000}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    file = tmp_path / "x.tar.gz"
    file.write_bytes(gzip.compress(content.getvalue()))
    with pytest.raises(BadFile, match="a header of the archive is too large"):
        unpack(file, tmp_path / "out", SMALL)
    with tarfile.open(file, "w:gz") as archive:
        for i in range(100):
            folder = tarfile.TarInfo(f"folder{i}")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
    with pytest.raises(BadFile, match="more than 5 files"):
        unpack(file, tmp_path / "out", SMALL)


def test_too_many_files_and_too_large_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = zipped(tmp_path / "x.zip", {f"{i}.json": b"{}" for i in range(6)})
    with pytest.raises(BadFile, match="more than 5 files"):
        unpack(file, tmp_path / "out", SMALL)
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 100)
    with pytest.raises(BadFile, match="the directory of the archive is too large"):
        unpack(file, tmp_path / "out", SMALL)
    assert not held(tmp_path / "out")


@pytest.mark.parametrize("make", [zipped, lambda f, m: tarred(f, m, "w:gz")])
def test_a_cut_off_archive(make: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(50_000)
    file = make(tmp_path / "given", {"a.json": noise, "b.json": noise})
    file.write_bytes(file.read_bytes()[:60_000])
    with pytest.raises(BadFile, match="given: cannot be unpacked"):
        unpack(file, tmp_path / "out", SMALL)
    assert not held(tmp_path / "out")


def test_only_an_empty_folder_is_written(tmp_path: Path) -> None:
    file = zipped(tmp_path / "x.zip", {"a.json": b"{}"})
    with pytest.raises(BadUsage, match="needs an empty folder"):
        unpack(file, tmp_path, SMALL)


def test_what_is_packed_is_the_same_bytes_and_is_unpacked(tmp_path: Path) -> None:
    for name, content in {**FILES, ".git/config": b"x", ".DS_Store": b"y"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    first = pack(tmp_path / "in", tmp_path / "1.zip").read_bytes()
    for path in (tmp_path / "in").rglob("*.json"):
        path.touch()
    assert pack(tmp_path / "in", tmp_path / "2.zip").read_bytes() == first
    assert not unpack(tmp_path / "1.zip", tmp_path / "out", SMALL)
    assert held(tmp_path / "out") == FILES
    pack(tmp_path / "in" / "a_b" / "x.json", tmp_path / "3.zip")
    assert not unpack(tmp_path / "3.zip", tmp_path / "single", SMALL)
    assert held(tmp_path / "single") == {"x.json": b"{}"}


def test_what_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file or folder"):
        pack(tmp_path / "none", tmp_path / "x.zip")
    (tmp_path / "in").mkdir()
    with pytest.raises(BadFile, match="the folder is empty"):
        pack(tmp_path / "in", tmp_path / "x.zip")
    for i in range(6):
        (tmp_path / "in" / f"{i}.json").write_text(json.dumps(i))
    with pytest.raises(BadUsage, match="6 files, 0 MB; a submission has at most 5 files, 1 MB"):
        pack(tmp_path / "in", tmp_path / "x.zip", SMALL)
    (tmp_path / "in" / "out.json").symlink_to("/etc/passwd")
    with pytest.raises(BadFile, match="leads out"):
        pack(tmp_path / "in", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_many_zeros_are_packed_so_that_they_are_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(bytes(500_000))
    pack(tmp_path / "in", tmp_path / "x.zip", SMALL)
    assert not unpack(tmp_path / "x.zip", tmp_path / "out", SMALL)
