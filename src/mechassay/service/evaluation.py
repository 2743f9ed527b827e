"""A process that touches a submission, watched: its time, its memory, and whether it may go on.

The limit of memory is of the process and all that it starts, as the system counts it (resident). It
is looked at ten times a second, so a process may be above it for that long; where memory runs out,
Linux ends it before its worker. A process over a limit is killed, and so is one that nobody wants
any longer. A cell on a Ray cluster is watched in the same way on its node (`service.cluster`); what
is run here for it is its driver, which ends when it is killed, and all that it began with it.

The child (`service.cell`) gets its orders, with the private seed if there is one, on its standard
input, which stays open as long as this process lives. Its environment has no keys and passwords:
it needs none, and opens files of others.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Literal

import psutil
from pydantic import TypeAdapter

from mechassay.errors import BadFile, DiskFull, MechassayError, first_line
from mechassay.records import Failure
from mechassay.runs.folder import RunFolder
from mechassay.service.cell import CHECKED, NO_ROOM, CellOrders, CheckedSubmission, job_folder
from mechassay.service.track import CellLimits

COMMAND = (sys.executable, "-m", "mechassay.service.cell")
DRIVER = (sys.executable, "-m", "mechassay.service.cluster")
SENT = "sent.json"
"""In the folder of a submission: how the child of a cell ended that was sent to a cluster."""
PLACE, ANSWER = 600.0, 60.0
"""Seconds that a cell waits for a place on a cluster, and that a node has to answer in."""
PAUSE = 0.1
"""Seconds between two looks at a process."""
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "USERPROFILE", "VIRTUAL_ENV")
KEPT_AS = (
    "PYTHON",
    "LC_",
    "MECHASSAY_CACHE",
    "HF_",
    "OMP_",
    "MKL_",
    "CUDA_",
    "LD_",
    "XDG_",
    "RAY_",
)
"""Names of the environment, and beginnings of names, that a child is given."""
SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY")
"""Parts of names that it is not given."""
LONGEST = 500
FOLDERS_ABOVE = re.compile(r"(?<![\w.:/\\-])/(?:[^\s/:'\"]+/)+")
"""The folders of an absolute path."""

Ending = Literal["ended", "too long", "too large", "stopped", "died"]


class ClusterAway(MechassayError):
    """The Ray cluster cannot do a cell now; no submission is to blame."""


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended.

    Attributes:
        how: it "ended" itself, was killed as it took "too long" or was "too large", was "stopped"
            as nobody wants it any longer, or "died" without a word.
        message: one line of it that says why; empty if all is well.
        code: its exit code, if it ended itself.
    """

    how: Ending
    message: str
    seconds: float
    code: int | None = None


@dataclass(frozen=True)
class Evaluated:
    """What came of a cell.

    Attributes:
        how: as of `ChildEnd`.
        state: "done", "failed" or "skipped".
        record: the file of the record.
    """

    how: Ending
    state: Literal["done", "failed", "skipped"]
    message: str
    seconds: float
    record: Path | None = None


def evaluate(
    folder: Path,
    job: int,
    cell: str,
    orders: CellOrders,
    stop: threading.Event,
    *,
    private: bool = False,
    command: Sequence[str] = COMMAND,
) -> Evaluated:
    """Do one cell of a checked submission, within the limits of the track.

    Args:
        folder: of the submission, as `check_submission` left it.
        stop: the cell is given up when this is set.
        private: the message is no more than the kind of a failure, as what an error says may
            repeat examples.

    Raises:
        DiskFull: the child had no room.
        ClusterAway: the cell was for a cluster, which did not begin it or did not answer.
    """
    words = ("run", str(folder), str(job), cell)
    # Nothing private is sent: a cluster would keep the seed with the work it is given.
    if orders.engine == "here" or private:
        end = run_child(words, orders, orders.track.cell, stop, command=command)
    else:
        end = _send(words, orders, stop)
    run = job_folder(folder, job, orders.epoch if private else "")
    # A child that says 1 may have left a record that is not as it should be.
    if end.code == 0 and run.record_file(cell).is_file():
        return Evaluated("ended", "done", "", end.seconds, run.record_file(cell))
    failure = _failure(run, cell)
    if end.code == 0 and failure is not None:
        state = "skipped" if failure.status == "skipped" else "failed"
        said = failure.error if private else failure.message
        return Evaluated("ended", state, _short(said, orders, folder), end.seconds)
    said = "" if private and end.how == "ended" else end.message
    return Evaluated(end.how, "failed", said or "it left no result.", end.seconds)


def _send(words: Sequence[str], orders: CellOrders, stop: threading.Event) -> ChildEnd:
    """How a child ended on the cluster, as its driver wrote down."""
    file = Path(words[1]) / SENT
    file.unlink(missing_ok=True)
    # Memory and time of the child are watched on its node; its driver has nothing of strangers.
    seconds = PLACE + orders.track.cell.seconds + 3 * ANSWER
    limits = CellLimits(seconds=seconds, memory_gb=math.inf)
    driver = run_child(words, orders, limits, stop, command=DRIVER)
    if driver.how == "stopped":
        return driver
    if not file.is_file():
        raise ClusterAway(f"Driver of a cell on Ray: {driver.message or 'it left no result.'}")
    return _with_room(TypeAdapter(ChildEnd).validate_json(file.read_bytes()))


def _failure(run: RunFolder, cell: str) -> Failure | None:
    try:
        return run.failure(cell)
    except BadFile:
        return None


def check_submission(
    folder: Path,
    orders: CellOrders,
    limits: CellLimits,
    stop: threading.Event,
    *,
    command: Sequence[str] = COMMAND,
) -> CheckedSubmission | ChildEnd:
    """What a check of FOLDER/upload finds; how its process ended if it finds nothing.

    Raises:
        DiskFull: the child had no room.
    """
    end = run_child(("check", str(folder)), orders, limits, stop, command=command)
    file = folder / CHECKED
    if end.code != 0 or not file.is_file():
        return end
    return CheckedSubmission.model_validate_json(file.read_bytes())


def run_child(
    words: Sequence[str],
    orders: CellOrders,
    limits: CellLimits,
    stop: threading.Event,
    *,
    command: Sequence[str] = COMMAND,
) -> ChildEnd:
    """Run `command words` until it ends, is over a limit, or `stop` is set.

    Args:
        words: of a child; the second one, its folder, is cut from what it says.

    Raises:
        DiskFull: it had no room. That is nobody's fault who handed something in.
    """
    return _with_room(watch_child(words, orders, limits, stop, command=command))


def _with_room(end: ChildEnd) -> ChildEnd:
    if end.code == NO_ROOM:
        raise DiskFull(end.message)
    return end


def watch_child(
    words: Sequence[str],
    orders: CellOrders,
    limits: CellLimits,
    stop: threading.Event,
    *,
    command: Sequence[str] = COMMAND,
) -> ChildEnd:
    """As `run_child`; no room is the code `NO_ROOM`."""
    begin, how, message = time.monotonic(), "ended", ""
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=_environment(os.environ),
            # Ctrl-C is for the worker, which decides.
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            _tell(process.stdin, orders)
            while process.poll() is None:
                how, message = _fault(process.pid, begin, limits, stop)
                if how != "ended":
                    break
                stop.wait(PAUSE)
        finally:
            _kill(process)
            _close(process.stdin)
        seconds = round(time.monotonic() - begin, 3)
        code = process.returncode if how == "ended" else None
        if code:
            how, message = _died(code, _last_line(said))
    message = _short(message, orders, *words[1:2])
    return ChildEnd(how, message, seconds, code if how == "ended" else None)


def _fault(pid: int, begin: float, limits: CellLimits, stop: threading.Event) -> tuple[Ending, str]:
    """Why a process that runs has to end; "ended" if it need not."""
    if stop.is_set():
        return "stopped", "it was stopped."
    if time.monotonic() - begin > limits.seconds:
        return "too long", f"took longer than {limits.seconds:g} s, the limit of time."
    held = _resident(pid)
    if held > limits.memory_gb * 1e9:
        return (
            "too large",
            f"held {held / 1e9:.3g} GB of memory; the limit is {limits.memory_gb:g} GB.",
        )
    return "ended", ""


def _resident(pid: int) -> int:
    """Bytes of a process and all that it started; 0 if it is gone."""
    held = 0
    for each in _family(pid):
        try:
            held += each.memory_info().rss
        except psutil.Error:
            continue
    return held


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for each in _family(process.pid):
            try:
                each.kill()
            except psutil.Error:
                continue
    process.wait()


def _tell(stream: IO[bytes], orders: CellOrders) -> None:
    try:
        # Secret fields are no part of its repr, but of what a child is told.
        stream.write(orders.model_dump_json().encode() + b"\n")
        stream.flush()
    except OSError:
        return  # It is gone already; its end says why.


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:
        return  # What was not written yet has no reader.


def _died(code: int, said: str) -> tuple[Ending, str]:
    """A child that says why has ended itself; one that was ended from elsewhere died."""
    if code > 0 and said:
        return "ended", said
    why = f"signal {-code}" if code < 0 else f"code {code}"
    return "died", f"its process ended with {why}; memory may have run out."


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _short(message: str, orders: CellOrders, folder: str | Path = "") -> str:
    """One line that holds no seed and no folder of this machine, whatever it is from."""
    line = first_line(message) if message else ""
    if folder:
        line = line.replace(f"{folder}{os.sep}", "").replace(str(folder), "its folder")
    line = FOLDERS_ABOVE.sub("", line)
    if orders.seed is not None:
        line = line.replace(str(orders.seed), "(private seed)")
    return line[:LONGEST]


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment without what is secret or not needed."""
    names = [name for name in own if name.upper() in KEPT or name.upper().startswith(KEPT_AS)]
    return {name: own[name] for name in names if not any(x in name.upper() for x in SECRET)}
