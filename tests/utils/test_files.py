"""Files appear whole or not at all, and a full disk is one line with the path and the sizes.

What folders of others have in common.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, DiskFull
from mechassay.models.graph import Graph
from mechassay.runs.run import run
from mechassay.utils.display import SILENT
from mechassay.utils.files import (
    Problem,
    Problems,
    folder_hash,
    leads_out,
    parsed_json,
    read_json,
    whole,
    write_bytes,
    write_tensors,
    write_text,
)

REAL_WRITE = Path.write_bytes


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Disk:
    """A disk with room for files up to some size: what does not fit is written in part."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, room: int, code: int = errno.ENOSPC
    ) -> None:
        self.room, self.code = room, code
        monkeypatch.setattr(Path, "write_bytes", lambda path, content: self._write(path, content))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(room, 0, self.room))

    def _write(self, path: Path, content: bytes) -> int:
        written = REAL_WRITE(path, content[: self.room])
        if len(content) > self.room:
            raise OSError(self.code, os.strerror(self.code))
        return written


def test_a_text_has_the_same_bytes_everywhere(tmp_path: Path) -> None:
    assert write_text(tmp_path / "a" / "b.txt", "é\n").read_bytes() == b"\xc3\xa9\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_the_file_what_it_needs_and_what_is_free(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "a.txt"
    Disk(monkeypatch, 1_400, code)
    with pytest.raises(DiskFull) as found:
        write_text(file, "x" * 84_200)
    assert str(found.value) == (
        f"{file}: the disk is full: the file needs 84.2 kB; 1.4 kB are free."
    )
    assert list(file.parent.iterdir()) == []
    # Worker processes hand it on.
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_a_file_of_unknown_size_needs_more_than_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, 100)
    said = "needs more than 100 bytes; 100 bytes are free"
    with pytest.raises(DiskFull, match=said), whole(tmp_path / "a.parquet") as partial:
        partial.write_bytes(b"x" * 101)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_fit_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_bytes(tmp_path / "a", b"old")
    Disk(monkeypatch, 2)
    with pytest.raises(DiskFull):
        write_tensors(file, {"a": torch.zeros(4)}, {"kind": "test"})
    assert file.read_bytes() == b"old"


def test_other_errors_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), whole(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no")


def test_a_command_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    Disk(monkeypatch, 1_000)
    with pytest.raises(SystemExit) as stopped:
        main(["tasks", "export", "ioi", "--limit", "20", "-o", str(file)])
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert said.count("\n") == 1 and said.startswith(f"mechassay: {file}: the disk is full:")


@pytest.mark.parametrize("save", [Circuit.save, EdgeScores.save])
def test_what_is_written_ends_as_what_it_is(save: Any, tmp_path: Path) -> None:
    graph = Graph(2, 2)
    held = Circuit.full(graph) if save is Circuit.save else Random().draw(graph)
    with pytest.raises(BadUsage, match=r"c\.json: a file to write ends in \.safetensors"):
        save(held, tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.guard
def test_a_run_ends_with_the_line_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = CircuitsExperiment(
        ("truth-previous-token",), methods=("eap", "random"), train_limit=4, limit=4
    )
    with monkeypatch.context() as inside:
        # Scores are smaller than records.
        Disk(inside, 5_000)
        with pytest.raises(DiskFull, match="the disk is full: the file needs .* kB; 5 kB are free"):
            run(experiment, tmp_path, progress=SILENT)
    results = run(experiment, tmp_path, progress=SILENT)
    assert (len(results.records), results.failures) == (2, [])
    file = tmp_path / "scores" / "eap.safetensors"
    found = EdgeScores.load(next(tmp_path.rglob(file.name)))
    assert isinstance(found.graph, Graph)


def test_the_hash_of_a_folder_is_that_of_what_sha256sum_writes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2")
    (tmp_path / "link").symlink_to(tmp_path / "two")
    lines = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in (("b/one", b"1"), ("two", b"2"))
    )
    assert folder_hash(tmp_path) == hashlib.sha256(lines.encode()).hexdigest()
    before = folder_hash(tmp_path)
    (tmp_path / "two").rename(tmp_path / "three")
    assert folder_hash(tmp_path) != before


def test_what_a_json_file_lacks_is_said_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "data.json"

    def refuse(data: object) -> None:
        raise BadUsage(f"no use for {data}.")

    with pytest.raises(BadFile, match=r"data\.json: No such file or directory\."):
        parsed_json(path, len)
    path.write_text("[1, 2]", "utf-8")
    assert parsed_json(path, len) == 2
    with pytest.raises(BadFile, match=r"data\.json: no use for \[1, 2\]\."):
        parsed_json(path, refuse)
    path.write_text("[1, 2", "utf-8")
    with pytest.raises(BadFile, match=r"data\.json: is not JSON \("):
        parsed_json(path, len)


def test_links_out_of_a_folder_are_told_from_those_within(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "in").symlink_to(root / "a")
    (root / "out").symlink_to(tmp_path)
    (root / "nowhere").symlink_to(tmp_path / "none")
    assert not leads_out(root / "in", root) and not leads_out(root / "a", root)
    assert leads_out(root / "out", root) and leads_out(root / "nowhere", root)
    assert leads_out(root / ".." / "other", root)


def test_problems_are_collected_and_the_first_refuses(tmp_path: Path) -> None:
    found = Problems()
    found.note("a", "may be skipped.", warning=True)
    found.refuse(tmp_path)
    assert found.tried("b", lambda: 3) == 3
    file = tmp_path / "none.json"
    assert found.tried("none.json", lambda: read_json(file), file) is None
    assert found == [
        Problem("a", "may be skipped.", warning=True),
        Problem("none.json", "there is no such file."),
    ]
    found.note("c", "is wrong.")
    with pytest.raises(BadFile) as error:
        found.refuse(tmp_path)
    assert str(error.value) == (
        f"{file}: there is no such file. (1 more: `mechassay variables validate` lists all.)"
    )


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "\ud800"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "it.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadFile, match="JSON"):
        read_json(tmp_path / "it.json")
