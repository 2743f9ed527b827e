"""Children of a worker: limits of time and memory, stops, deaths, and what they are told."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from mechassay.errors import DiskFull
from mechassay.records import Failure
from mechassay.service import cell
from mechassay.service.cell import CHECKED, NO_ROOM, CellOrders, job_folder
from mechassay.service.evaluation import (
    ChildEnd,
    Evaluated,
    check_submission,
    evaluate,
    run_child,
)
from mechassay.leaderboard.track import CellLimits, Track

SEED = 4_611_686_018_427_388_777
ORDERS = CellOrders(track=Track.read(), seed=SEED, epoch="now")
WIDE = CellLimits(seconds=60, memory_gb=4)
FIRST_LINE = "import sys; told = sys.stdin.readline()\n"


def ran(
    code: str, limits: CellLimits = WIDE, stop: threading.Event | None = None, orders=ORDERS
) -> tuple[ChildEnd, float]:
    """How a child that runs `code` ends, and the seconds that this took."""
    begin = time.monotonic()
    command = (sys.executable, "-c", FIRST_LINE + code)
    end = run_child(["run"], orders, limits, stop or threading.Event(), command=command)
    return end, time.monotonic() - begin


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def test_a_cell_that_sleeps_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    end, seconds = ran(code, CellLimits(seconds=3, memory_gb=4))
    assert (end.how, end.message) == ("too long", "took longer than 3 s, the limit of time.")
    assert 3 <= seconds < 30 and gone(int(file.read_text()))


def test_a_cell_that_allocates_is_killed_above_the_limit_of_memory() -> None:
    code = "import time; held = b'x' * 400_000_000; time.sleep(600)"
    end, seconds = ran(code, CellLimits(seconds=60, memory_gb=0.2))
    assert end.how == "too large" and end.message.endswith("the limit is 0.2 GB.")
    assert "held 0.4" in end.message or "held 0.3" in end.message or "held 0.2" in end.message
    assert seconds < 60
    below, _ = ran("held = b'x' * 400_000_000", CellLimits(seconds=60, memory_gb=2))
    assert below.how == "ended" and not below.message


def test_memory_counts_that_of_what_a_cell_starts(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    inner = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid()));"
    inner += "held = b'x' * 400_000_000; time.sleep(600)"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {inner!r}])"
    end, _ = ran(code, CellLimits(seconds=60, memory_gb=0.2))
    assert end.how == "too large"
    deadline = time.monotonic() + 10
    while not gone(int(file.read_text())):
        assert time.monotonic() < deadline, "what a killed cell has started goes on"
        time.sleep(0.05)


def test_a_cell_that_nobody_wants_is_stopped() -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    end, seconds = ran("import time; time.sleep(600)", stop=stop)
    assert end.how == "stopped" and seconds < 30


@pytest.mark.parametrize(
    ("code", "how", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "died", "its process ended with signal 9"),
        ("import os; os._exit(3)", "died", "its process ended with code 3"),
        ("sys.exit('no such cell')", "ended", "no such cell"),
        ("raise ValueError('a\\nb')", "ended", "b"),
        ("", "ended", ""),
    ],
)
def test_how_a_child_ends_is_told(code: str, how: str, said: str) -> None:
    end, _ = ran(code)
    assert end.how == how and end.message.startswith(said) and bool(end.message) == bool(said)


def test_a_seed_in_what_a_child_says_is_not_repeated() -> None:
    end, _ = ran("import json; sys.exit('seed ' + str(json.loads(told)['seed']))")
    assert end.message == "seed (private seed)" and str(SEED) not in repr(ORDERS)


def test_the_seed_is_neither_an_argument_nor_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-1")
    monkeypatch.setenv("MECHASSAY_DATABASE", "hidden-2")
    monkeypatch.setenv("HF_TOKEN", "hidden-3")
    monkeypatch.setenv("HF_HOME", "shown")
    file = tmp_path / "seen"
    code = f"""
import json, os
seen = " ".join(sys.argv) + repr(dict(os.environ))
assert str(json.loads(told)["seed"]) == "{str(SEED)[:9]}" + "{str(SEED)[9:]}"
open({str(file)!r}, "w").write(seen)
"""
    end, _ = ran(code)
    seen = file.read_text()
    assert end.how == "ended" and not end.message
    assert str(SEED) not in seen and "hidden" not in seen and "'HF_HOME': 'shown'" in seen


def test_a_child_ends_with_its_worker() -> None:
    """Its standard input holds it: whoever kills the worker cuts it."""
    code = "import sys; from mechassay.service.cell import _end_with\n"
    code += "print('begun', flush=True); _end_with(sys.stdin.read)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == b"begun\n" and child.poll() is None
    child.stdin.close()
    assert child.wait(timeout=60) == 1
    child.stdout.close()


def evaluated(folder: Path, code: str, *, private: bool = False) -> Evaluated:
    """What comes of a cell whose child runs `code`."""
    command = (sys.executable, "-c", FIRST_LINE + code)
    return evaluate(folder, 0, "a", ORDERS, threading.Event(), private=private, command=command)


def test_a_record_counts_only_if_its_child_says_that_all_is_well(tmp_path: Path) -> None:
    file = job_folder(tmp_path, 0).record_file("a")
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    good = evaluated(tmp_path, "")
    assert (good.state, good.record) == ("done", file)
    bad = evaluated(tmp_path, "sys.exit('the epoch could not be written')")
    assert (bad.state, bad.record) == ("failed", None) and "the epoch" in bad.message
    (tmp_path / CHECKED).write_text("{}")
    command = (sys.executable, "-c", FIRST_LINE + "sys.exit('no')")
    end = check_submission(tmp_path, ORDERS, WIDE, threading.Event(), command=command)
    assert isinstance(end, ChildEnd) and end.code == 1


def test_messages_hold_no_folder_of_the_server(tmp_path: Path) -> None:
    said = f"{tmp_path}/jobs/0/plan.json: not a readable plan (/srv/cache/hub/x.json), see a/b."
    shown = "jobs/0/plan.json: not a readable plan (x.json), see a/b."
    assert evaluated(tmp_path, f"sys.exit({said!r})").message == shown
    failure = Failure(cell={}, error="BadFile", message=said)
    job_folder(tmp_path, 0).save_failure("a", failure)
    assert evaluated(tmp_path, "").message == shown


def test_of_private_cells_only_the_kind_of_a_failure_is_told(tmp_path: Path) -> None:
    failure = Failure(cell={}, error="BadTask", message="'When Mary and John went' has no answer")
    for epoch in ("", ORDERS.epoch):
        job_folder(tmp_path, 0, epoch).save_failure("a", failure)
    assert "Mary" in evaluated(tmp_path, "").message
    hidden = evaluated(tmp_path, "", private=True)
    assert (hidden.state, hidden.message) == ("failed", "BadTask")
    raised = evaluated(tmp_path, "raise ValueError('When Mary')", private=True)
    assert (raised.state, raised.message) == ("failed", "it left no result.")


def test_a_full_disk_is_not_the_fault_of_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DiskFull, match="no room"):
        ran(f"import os; sys.stderr.write('no room'); sys.stderr.flush(); os._exit({NO_ROOM})")
    errors = [DiskFull("full"), OSError(errno.ENOSPC, "No space left"), OSError(5, "broken")]

    def check(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(cell, "check", check)
    codes = [cell.work(["check", str(tmp_path)], ORDERS) for _ in range(3)]
    assert codes == [NO_ROOM, NO_ROOM, 1]
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_child_without_a_plan_says_so_in_one_line(tmp_path: Path) -> None:
    end = run_child(["run", str(tmp_path), "0", "none"], ORDERS, WIDE, threading.Event())
    assert end.how == "ended" and "not a readable plan" in end.message
