"""Where cells are done: in this process, in several, on a Ray cluster, or as parts of an array job.

An executor does batches of cells, each batch in one worker and in order. It need not be reliable:
the folder knows what is done, and the same command does the rest. A worker keeps its last model;
batches of one model stand together, so it is loaded once a worker. For Ray see `runs.ray`.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from mechassay import errors
from mechassay.errors import BadUsage, DiskFull, MechassayError
from mechassay.models.model import Model, check_device
from mechassay.models.sources import find_source
from mechassay.progress import BAR, SILENT, Progress
from mechassay.records import Failure, failure_of
from mechassay.runs.command_line import check_ranges
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Cell, Results, free_fields, plan_of
from mechassay.tasks.task import Task

Batches = Sequence[Sequence[Cell]]


class Executor(Protocol):
    """Does batches of cells of a job whose folder is open.

    Attributes:
        remote: whether devices are those of other machines.
    """

    remote: ClassVar[bool]

    def map(self, job: Any, batches: Batches, bench: Bench) -> None:
        """Do all batches; each cell ends as a file of the folder."""
        ...


def run(
    job: Any,
    output: str | Path,
    *,
    executor: Executor | None = None,
    device: str = "cpu",
    models: Mapping[str, Model] | None = None,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress = BAR,
) -> Results:
    """Do what the folder does not hold yet, and write the report.

    Args:
        job: such as `CircuitsJob(models=("gpt2",), tasks=("ioi",), methods=("eap",))`.
        output: the folder of the run; one that holds this job already is gone on with.
        executor: where cells are done; in this process by default.
        models, tasks: objects for names of the plan that cannot be loaded by name.

    Raises:
        BadUsage, UnknownName: something is wrong with the job, or the folder holds another one.
    """
    executor = executor or Here()
    if not executor.remote:
        check_device(device)
    about: dict[str, Any] = {"models": models, "tasks": tasks, "progress": progress}
    bench = prepare(job, output, device=device, here=not executor.remote, **about)
    results = done(job, bench, executor)
    job.report(results)
    return results


def check_models(job: Any, given: Collection[str] = ()) -> None:
    """Refuse a job none of whose models is on this machine, before anything is written.

    If some are, those that are not end as failures beside their results.

    Args:
        given: names for which there are objects.

    Raises:
        UnknownName, BadFile, ModelNotFetched: what is wrong with the first model.
    """
    names = getattr(job, "models", None) or filter(None, (getattr(job, "model", ""),))
    wrong: list[MechassayError] = []
    for name in names:
        if name in given:
            return
        try:
            find_source(str(name))
        except MechassayError as error:
            wrong.append(error)
        else:
            return
    if wrong:
        raise wrong[0]


def done(job: Any, bench: Bench, executor: Executor) -> Results:
    """Do what the folder does not hold yet, and read all that it holds then.

    Raises:
        BadUsage: nothing could be done, and for one reason, as when a model does not exist.
    """
    executor.map(job, batches_of(job, bench.folder), bench)
    results = Results.stored(job, bench.folder)
    reasons = {(failure.status, failure.error, failure.message) for failure in results.failures}
    if not results.done and len(reasons) == 1:
        (status, error, message), *_ = reasons
        if status == "failed" and getattr(getattr(errors, error, None), "usage", False):
            raise BadUsage(message)
    return results


def prepare(
    job: Any,
    output: str | Path,
    *,
    device: str = "cpu",
    models: Mapping[str, Model] | None = None,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress = BAR,
    here: bool = False,
) -> Bench:
    """Check a job and open its folder; nothing is run.

    Args:
        here: whether its models have to be on this machine.
    """
    names = {"models": frozenset(models or ()), "tasks": frozenset(tasks or ())}
    known = {field.name for field in dataclasses.fields(job)}
    for what, given in names.items():
        asked = getattr(job, what, ()) if what in known else (getattr(job, what[:-1], ""),)
        for name in sorted(given - set(asked)):
            raise BadUsage(f"{what} has {name!r}, which the job does not name.")
    bench = Bench(RunFolder(Path(output)), device, progress, models=models, tasks=tasks)
    check_ranges(job)
    job.check(bench)
    if here:
        check_models(job, models or ())
    RunFolder.open(Path(output), plan_of(job, bench), growing=job.grows, free=free_fields(job))
    return bench


def batches_of(job: Any, folder: RunFolder | None = None) -> list[list[Cell]]:
    """The cells without a record in the folder, if one is given; those of one key are a batch."""
    cells = [cell for cell in job.cells() if folder is None or folder.record(cell.name) is None]
    return [list(batch) for _, batch in groupby(cells, key=lambda cell: cell.shares)]


def part_of(batches: Batches, part: str) -> list[Sequence[Cell]]:
    """The batches of part "3/16": the third, the nineteenth and so on.

    Raises:
        BadUsage: the part is not written so.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise BadUsage(f"A part is written 3/16: the third of sixteen; got {part!r}.")
    return list(batches)[int(number) - 1 :: int(count)]


def run_cells(job: Any, cells: Sequence[Cell], bench: Bench) -> None:
    """What a worker does: every cell ends as a record or a failure, whatever goes wrong in it.

    Raises:
        DiskFull: there is no room for a result.
    """
    for cell in cells:
        if bench.folder.record(cell.name) is not None:
            continue  # Done by another worker in the meantime.
        bench.turn_to(cell)
        failure = None
        try:
            reason = job.skip(cell, bench)
            if reason is None:
                bench.folder.save_record(cell.name, job.run(cell, bench))
            else:
                kind, message = reason
                failure = Failure(cell=dict(cell.of), status="skipped", error=kind, message=message)
        except DiskFull:
            raise  # No cell could leave anything; the same command goes on once there is room.
        except Exception as error:
            failure = failure_of(dict(cell.of), error)
        bench.folder.save_failure(cell.name, failure)


class Here:
    """One batch after the other, in this process."""

    remote: ClassVar[bool] = False

    def map(self, job: Any, batches: Batches, bench: Bench) -> None:
        """See `Executor.map`."""
        for cells in batches:
            run_cells(job, cells, bench)


@dataclass(frozen=True)
class Processes:
    """Worker processes on this machine; each takes the next batch when it is done.

    Raises:
        BadUsage: fewer than one worker.
    """

    workers: int
    remote: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadUsage(f"workers must be 1 or more; got {self.workers}.")

    def map(self, job: Any, batches: Batches, bench: Bench) -> None:
        """See `Executor.map`.

        Raises:
            BadUsage: models or tasks that are objects: they do not travel.
            MechassayError: a worker died, as when memory ran out.
        """
        if not batches:
            return
        threads = max(1, torch.get_num_threads() // self.workers)
        context = multiprocessing.get_context("spawn")
        start = (bench.folder.path, named_device(bench), threads)
        with (
            bench.progress.track("cells", sum(map(len, batches))) as advance,
            ProcessPoolExecutor(
                min(self.workers, len(batches)), context, initializer=_start, initargs=start
            ) as pool,
        ):
            waiting: dict[Future[None], int] = {
                pool.submit(_work, job, list(cells)): len(cells) for cells in batches
            }
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_EXCEPTION, timeout=0.5)
                    for future in done:
                        future.result()
                        advance(waiting.pop(future))
            except BrokenProcessPool as error:
                raise MechassayError(
                    "A worker process ended without a word; the same command goes on with what is"
                    " left. If memory was short, name fewer --workers."
                ) from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def named_device(bench: Bench) -> str:
    """The device for workers elsewhere, which load what they need by name.

    Raises:
        BadUsage: the bench holds objects, which do not travel.
    """
    if bench.holds_objects:
        raise BadUsage(
            "Models and tasks that are objects stay in this process: run with the executor Here,"
            " or save them and give their names."
        )
    return bench.device


_BENCH: list[Bench] = []
"""The bench of a worker process: what it holds stays from batch to batch."""


def _start(folder: Path, device: str, threads: int) -> None:
    # Ctrl-C is for the parent, which ends its workers; a worker whose parent was killed ends too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _BENCH[:] = [Bench(RunFolder(folder), device, SILENT)]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(job: Any, cells: Sequence[Cell]) -> None:
    run_cells(job, cells, _BENCH[0])
