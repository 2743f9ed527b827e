"""What touches a submission, in a process of its own: `python -m mechassay.service.cell`.

    check FOLDER               unpacks FOLDER/upload, reads it, and writes FOLDER/checked.json and
                               the plan of each job, FOLDER/jobs/JOB/plan.json
    run FOLDER JOB CELL        does one cell of a job; its record or failure is in the job's folder

The first line of the standard input is JSON, `CellOrders`. It has what nobody else may see, the
private seed: arguments and environment are shown to others, and files stay. The process ends when
its standard input does, so that none outlives the worker that watches its time and memory.

A private record names the epoch of its seed. Hashes of private examples in it are keyed with the
seed: equal for equal examples, and of no use to who has examples and looks for them here. Whoever
reads such a record could still try seeds by its hashes and numbers. What protects the seed is that
private records are not published, and that it is one of more than 2^40.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from mechassay.errors import BadUsage, DiskFull, MechassayError, UnknownName, first_line, one_of
from mechassay.files import is_full, write_text
from mechassay.progress import SILENT
from mechassay.records import Record, Stored
from mechassay.runs.execute import Here, prepare
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Cell, job_of
from mechassay.service.bundle import open_bundle
from mechassay.service.track import TEST, ServiceTrack
from mechassay.submissions import Problem
from mechassay.tasks.task import PRIVATE

UPLOAD, CHECKED, JOBS, BUNDLE = "upload", "checked.json", "jobs", "bundle"
Engine = Literal["here", "ray"]
FIRST_TO_GO = "1000"
"""For Linux, where memory runs out: this process before the worker."""
PLACE = ("model", "task", "variable")
NO_ROOM = 75
"""What it exits with where a disk is full: `EX_TEMPFAIL`, the same may go well later."""


class CellOrders(Stored):
    """What a child is told on its standard input.

    Attributes:
        name: of the uploaded file.
        engine: where public cells are run: here, or on a Ray cluster (`service.cluster`).
        address, num_gpus, num_cpus: of the cluster, and of a cell on it.
        threads: of this process; 0: as many as it likes.
        seed, epoch: of private examples; None where there are none.
    """

    track: ServiceTrack
    name: str = ""
    device: str = "cpu"
    engine: Engine = "here"
    address: str = "auto"
    num_gpus: float = 0.0
    num_cpus: int = 1
    threads: int = 0
    seed: int | None = Field(default=None, repr=False)
    epoch: str = ""


class CheckedCell(Stored):
    """A cell of one of the jobs that evaluate a submission.

    Attributes:
        called: what people know it by, see `named`.
    """

    job: int
    cell: str
    split: str = TEST
    called: str = ""


class CheckedSubmission(Stored):
    """What a check found; see `checks.checked`."""

    kind: str
    name: str = ""
    declaration: dict[str, Any] | None = None
    problems: list[Problem]
    cells: list[CheckedCell]


def check(folder: Path, orders: CellOrders) -> CheckedSubmission:
    """Unpack and read a submission, and plan its jobs; what is wrong is in what it returns."""
    track, bundle_folder = orders.track, folder / BUNDLE
    shutil.rmtree(bundle_folder, ignore_errors=True)
    bundle = open_bundle(folder / UPLOAD, bundle_folder, track, orders.name)
    cells: list[CheckedCell] = []
    problems = bundle.problems
    for number, job in enumerate(bundle.jobs(track) if bundle.valid else ()):
        try:
            prepare(job, folder / JOBS / str(number), progress=SILENT)
            cells += [
                # Adversarial jobs have no private examples.
                CheckedCell(
                    job=number,
                    cell=cell.name,
                    split=getattr(job, "test_split", TEST),
                    called=_place(cell, track),
                )
                for cell in job.cells()
            ]
        except DiskFull:
            raise  # It is not the submission that is wrong.
        except MechassayError as error:
            problems.note("", str(error).replace(f"{bundle_folder}{os.sep}", ""))
    said = bundle.declaration
    checked = CheckedSubmission(
        kind=bundle.kind,
        name="" if said is None else said.name,
        # By way of JSON, in which what is not said is null.
        declaration=None if said is None else json.loads(said.model_dump_json()),
        problems=list(problems),
        cells=[] if problems.errors else named(cells),
    )
    write_text(folder / CHECKED, checked.model_dump_json(indent=1))
    return checked


def named(cells: Sequence[CheckedCell]) -> list[CheckedCell]:
    """The cells, each with a name of its own among those of its split.

    It is what the boards call the cell, without row and column: MODEL/TASK[/VARIABLE], with @SIZE
    for a circuit of that size. Where several cells of a split have it, the name in their plan
    follows.
    """
    held = [(cell.called, cell.split) for cell in cells]
    return [
        cell.model_copy(update={"called": f"{cell.called} ({cell.cell})"})
        if held.count((cell.called, cell.split)) > 1
        else cell
        for cell in cells
    ]


def _place(cell: Cell, track: ServiceTrack) -> str:
    """What a cell of a job is done on, with the public name of the model."""
    of = dict(cell.of)
    with suppress(UnknownName):
        of["model"] = track.public_name(of["model"])
    _, at, size = of.get("circuit", "").rpartition("@")
    return "/".join(of[role] for role in PLACE if role in of) + at + size * bool(at)


def job_folder(folder: Path, job: int, epoch: str = "") -> RunFolder:
    """Where the cells of a job are done: those of each epoch of private examples apart."""
    return RunFolder(folder / JOBS / (f"{job}-{epoch}" if epoch else str(job)))


def run_cell(folder: Path, number: int, name: str, orders: CellOrders) -> None:
    """Do a cell of a job whose plan was written by `check`.

    Raises:
        BadUsage: the job has no such cell; a private one without a seed.
    """
    plan = job_folder(folder, number)
    private = plan.plan().get("test_split") == PRIVATE
    if private and orders.seed is None:
        raise BadUsage("This worker has no seed of private examples.")
    job = job_of(plan.plan(), **({"private_seed": orders.seed} if private else {}))
    run = job_folder(folder, number, orders.epoch if private else "")
    write_text(run.plan_file, plan.plan_file.read_text("utf-8"))
    cells = {cell.name: cell for cell in job.cells()}
    cell = cells[one_of("cell of the job", name, cells)]
    Here().map(job, [[cell]], Bench(run, orders.device, SILENT))
    record = run.record(name)
    if private and record is not None and orders.seed is not None:
        run.save_record(name, without_hashes(record, orders.seed, orders.epoch))


def without_hashes(record: Record, seed: int, epoch: str) -> Record:
    """A private record with its epoch, and with keyed hashes of its private examples."""
    if record.task.args.get("epoch") == epoch:
        return record  # Done before, by a worker that did not come to say so.
    about, data = record.provenance, dict(record.data)
    keyed: dict[str, str] = {}
    for role, chosen in record.data.items():
        if chosen.split == PRIVATE:
            keyed[chosen.hash] = _keyed(chosen.hash, seed)
            data[role] = chosen.model_copy(update={"hash": keyed[chosen.hash]})
    told = about.model_copy(update={"data_hash": keyed.get(about.data_hash, about.data_hash)})
    task = record.task.model_copy(update={"args": {**record.task.args, "epoch": epoch}})
    return record.changed(task=task, data=data, provenance=told)


def _keyed(text: str, seed: int) -> str:
    return hmac.new(str(seed).encode(), text.encode(), hashlib.sha256).hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say, with the orders that are on the standard input; see `work`."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, "ascii")
    return work(arguments, read_orders())


def read_orders() -> CellOrders:
    """The orders of this process, which ends when its standard input does."""
    orders = CellOrders.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with, args=(sys.stdin.read,), daemon=True).start()
    if orders.threads:
        torch.set_num_threads(orders.threads)
    return orders


def work(arguments: Sequence[str], orders: CellOrders) -> int:
    """Do what the arguments say; 0 if it ended in a file, else there is one line on stderr.

    It is `NO_ROOM` where a disk is full, and 1 where anything else is wrong.
    """
    try:
        what, folder, *rest = arguments
        if what == "check":
            check(Path(folder), orders)
        else:
            number, name = rest
            run_cell(Path(folder), int(number), name, orders)
    except (MechassayError, OSError) as error:
        sys.stderr.write(f"{first_line(error)}\n")
        return NO_ROOM if is_full(error) else 1
    return 0


def _end_with(read: Callable[[], object]) -> None:
    """End this process when what `read` waits for is over."""
    read()
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: it would wait for the thread that reads.
    os._exit(code)
