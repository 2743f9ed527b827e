from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from mechassay.service.unpacked import FOLDERS, UnpackedSubmissions, sweep


def test_of_several_folders_the_longest_unused_goes(tmp_path: Path) -> None:
    unpacked = UnpackedSubmissions(tmp_path)
    names = [f"s{i}" for i in range(FOLDERS)]
    for name in names:
        unpacked.of(name).mkdir()
    assert unpacked.of("s0") == tmp_path / "s0"
    unpacked.of("new").mkdir()
    assert {each.name for each in tmp_path.iterdir()} == {*names, "new"} - {"s1"}
    unpacked.clear()
    assert not list(tmp_path.iterdir())


def test_folders_of_dead_workers_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f"{socket.gethostname()}.{pid}.ab" for pid in (dead.pid, os.getpid())]
    for name in (*names, "elsewhere.1.ab"):
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {names[1], "elsewhere.1.ab"}
