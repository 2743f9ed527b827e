"""Cells with limits of time and memory: each in a process of its own, whatever it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mechassay.errors import DiskFull
from mechassay.progress import SILENT
from mechassay.runs.execute import CellLimits, Processes
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench
from misbehaving_job import MisbehavingJob

WIDE = CellLimits(seconds=120, memory_gb=8)


def done(folder: Path, *does: str, limits: CellLimits = WIDE, workers: int = 1) -> RunFolder:
    """The folder of cells that were done."""
    job, bench = MisbehavingJob(does), Bench(RunFolder(folder), progress=SILENT)
    Processes(workers, limits).map(job, [job.cells()], bench)
    return bench.folder


def failure(folder: RunFolder, cell: str) -> tuple[str, str]:
    """The kind of a failure, and what it says."""
    told = folder.failure(cell)
    assert told is not None and folder.record(cell) is None
    return told.error, told.message


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.guard
def test_a_cell_is_ended_when_its_time_is_over_and_what_is_done_is_kept(tmp_path: Path) -> None:
    done(tmp_path, "is done")
    folder = done(tmp_path, "sleeps", limits=CellLimits(seconds=4, memory_gb=8))
    assert failure(folder, "sleeps") == ("TimeLimit", "took longer than 4 s, the limit of time.")
    assert folder.record("is done") is not None
    begun = tmp_path / "sleeps.pid"
    assert not begun.exists() or is_gone(int(begun.read_text()))


@pytest.mark.guard
@pytest.mark.parametrize("does", ["holds", "starts one that holds"])
def test_memory_is_that_of_a_process_and_all_that_it_starts(does: str, tmp_path: Path) -> None:
    limits = CellLimits(seconds=120, memory_gb=0.9)
    folder = done(tmp_path, does, "is done", limits=limits)
    kind, message = failure(folder, does)
    assert kind == "MemoryLimit" and message.endswith("GB, more than 0.9 GB, the limit of memory.")
    assert folder.record("is done") is not None
    assert is_gone(int((tmp_path / f"{does}.pid").read_text()))
    assert not [
        p for p in psutil.Process().children(recursive=True) if "bytearray" in str(p.cmdline())
    ]


@pytest.mark.guard
def test_a_cell_that_dies_or_raises_fails_alone(tmp_path: Path) -> None:
    folder = done(tmp_path, "dies", "raises", "is done", workers=3)
    assert failure(folder, "dies") == (
        "Died",
        "its process ended with signal 9; memory may have run out.",
    )
    assert failure(folder, "raises") == ("ValueError", "a mistake of its own")
    assert folder.record("is done") is not None


@pytest.mark.guard
def test_a_full_disk_is_not_the_fault_of_a_cell(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="had no room"):
        done(tmp_path, "is full")
    assert not (tmp_path / "failures").exists()


@pytest.mark.guard
def test_processes_of_a_killed_parent_end(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from tests.runs.test_limits import done\n"
        "if __name__ == '__main__':\n"
        "    done(Path(sys.argv[1]), 'sleeps', 'is done', workers=2)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root / "tests"), str(root)]
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), *paths])
    try:
        pid = tmp_path / "sleeps.pid"
        deadline = time.monotonic() + 90
        while not (pid.is_file() and pid.read_text() and (tmp_path / "records").is_dir()):
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 30
    while not is_gone(int(pid.read_text())):
        assert time.monotonic() < deadline, "the process of a cell goes on"
        time.sleep(0.1)
    # What was done is kept, and the same command does the rest.
    assert RunFolder(tmp_path).record("is done") is not None
    assert not multiprocessing.active_children()
