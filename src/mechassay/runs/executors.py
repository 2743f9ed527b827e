"""Where cells are measured: in one process or several, or on a Ray cluster.

An executor gives lists of cells to workers. The cells of one list have the same inputs, and one
worker measures them in order (`measure_cells`). An executor need not be reliable: the folder has
what is done, and the same command measures the rest. A worker keeps its last model. Lists of one
model stand together, so that a worker loads it once.

Cells with limits of time or memory have a process each, which is ended at its limit. Memory is
the resident memory of that process and of all that it started, measured ten times a second. A
cell may be above its limit for that long.

On Ray a worker is an actor. All nodes have to see the folder of the run, as on a shared file
system. A list whose worker is lost goes to another worker, up to `TRIES` times in all. If the
cluster is lost, the same command measures what is left.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil
import torch

from mechassay.errors import BadUsage, DiskFull, MechassayError, MissingExtra, first_line
from mechassay.models.computing import Computing, chosen, computing
from mechassay.models.replicas import start_worker
from mechassay.results.records import IDENTITY, Failure, Record, failure_of
from mechassay.runs.cells import Cell, by_inputs
from mechassay.runs.equal_content import equal_record
from mechassay.runs.experiment import settings_source
from mechassay.runs.folder import RunFolder
from mechassay.runs.identities import MODEL, TASK
from mechassay.runs.names import is_task_file
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT

CellLists = Sequence[Sequence[Cell]]
PAUSE = 0.1
"""Seconds between two looks at the processes of cells with limits."""
NO_ROOM = 75
"""What the process of a cell exits with where a disk is full (EX_TEMPFAIL)."""


class Executor(Protocol):
    """Gives lists of cells to workers; the folder of the experiment is open.

    Attributes:
        remote: whether devices are those of other machines.
    """

    remote: ClassVar[bool]

    def map(self, experiment: Any, lists: CellLists, worker: Worker) -> None:
        """Measure all cells; each ends as a file of the folder."""
        ...


def measure_cells(experiment: Any, cells: Sequence[Cell], worker: Worker) -> None:
    """Measure cells with a worker: every cell ends as a record or a failure.

    Raises:
        DiskFull: there is no room for a result.
    """
    for cell in cells:
        if worker.folder.record_of(cell, recompute=False) is not None:
            continue  # Another worker measured it in the meantime.
        worker.turn_to(cell)
        failure, begin = None, time.perf_counter()
        try:
            sources = {**experiment.sources(cell), "settings": settings_source(experiment)}
            states = worker.begin(sources.values())
            record = equal_record(experiment, cell, worker)
            reason = None if record else experiment.skip(cell, worker)
            if reason is None:
                record = record or experiment.run(cell, worker)
                about = {
                    "kind": experiment.kind,
                    "cell": {**record.cell, **cell.stored},
                    "cell_digest": cell.digest,
                    "identities": worker.end(sources, states),
                    "spent": record.spent or {"seconds": round(time.perf_counter() - begin, 3)},
                }
                made = _named(record.changed(**about))
                if made.conclusion:  # Its sentences have the names of the run's page.
                    own = labelled(made, cell).concluded()
                    made = made.changed(verdict=own.verdict, conclusion=own.conclusion)
                worker.folder.save_record(cell.name, made)
            else:
                kind, message = reason
                about: dict[str, Any] = {"error": kind, "message": message, "status": "skipped"}
                failure = Failure(cell=cell.stored, **about)
        except DiskFull:
            raise  # No cell could leave anything; the same command goes on once there is room.
        except Exception as error:
            failure = failure_of(cell.stored, error)
        worker.folder.save_failure(cell.name, failure)


def _named(record: Record) -> Record:
    """Return a record whose model and task, if they are paths, have the names of the record's cell.
    The model has the digest of the measured weights, because a model in memory may differ from its
    files.
    """
    specs, identity = dict(record.specs), record.identities.get(MODEL)
    model, task = specs.get(MODEL), specs.get(TASK)
    if model is not None and identity is not None and IDENTITY in model.args:
        args = {**model.args, IDENTITY: identity["weights"]}
        name = record.cell.get(MODEL, model.name)
        specs[MODEL] = model.model_copy(update={"name": name, "args": args})
    if task is not None and is_task_file(record.cell.get(TASK, "")):
        specs[TASK] = task.model_copy(update={"name": record.cell[TASK]})
    return record.changed(**specs)


def labelled(record: Record, cell: Cell) -> Record:
    """Return a record with the labels of its cell, which are unique in the run, as the names of its
    model and task. A task of this package keeps its name, unless its label has settings.
    """
    specs, task = dict(record.specs), cell.labels.get(TASK, "")
    if MODEL in specs and MODEL in cell.labels:
        specs[MODEL] = specs[MODEL].model_copy(update={"name": cell.labels[MODEL]})
    if TASK in specs and (is_task_file(task) or task.partition(":")[0] == specs[TASK].name):
        specs[TASK] = specs[TASK].model_copy(update={"name": task})
    return record.changed(cell={**record.cell, **cell.labels}, **specs)


class Here:
    """One cell after the other, in this process.

    Attributes:
        measured: is called after each cell that has a record, with the cell and its seconds.
    """

    remote: ClassVar[bool] = False

    def __init__(self, measured: Callable[[Cell, float], None] | None = None) -> None:
        self.measured = measured

    def map(self, experiment: Any, lists: CellLists, worker: Worker) -> None:
        for cell in (cell for cells in lists for cell in cells):
            began = time.monotonic()
            measure_cells(experiment, [cell], worker)
            if self.measured and worker.folder.record_of(cell, recompute=False) is not None:
                self.measured(cell, time.monotonic() - began)


@dataclass(frozen=True)
class CellLimits:
    """What one cell may take at most.

    Attributes:
        seconds: of wall time, from the start of its process.
        memory_gb: resident memory of its process and all that it started, in 10^9 bytes.
    """

    seconds: float
    memory_gb: float

    def fault(self, process: psutil.Process, began: float) -> tuple[str, str] | None:
        """Return the exceeded limit's kind and a sentence; None if the process may continue."""
        if time.monotonic() - began > self.seconds:
            return "TimeLimit", f"took longer than {self.seconds:g} s, the limit of time."
        held = sum(map(_resident, _family(process)))
        if held > self.memory_gb * 1e9:
            limit = f"{self.memory_gb:g} GB, the limit of memory."
            return "MemoryLimit", f"held {held / 1e9:.3g} GB, more than {limit}"
        return None


@dataclass(frozen=True)
class Processes:
    """Worker processes on this machine; each takes the next list when it is done.

    On `cuda` each has a GPU of its own, as far as they reach (`devices_of_workers`). Where there
    are more workers than lists, pairs of a cell are spread over several (`models.replicas`).

    Attributes:
        limits: of each cell, which then has a process of its own. One that is over a limit, or
            whose process dies, ends as a failure; the others go on, and what is done is kept.

    Raises:
        BadUsage: fewer than one worker.
    """

    workers: int
    limits: CellLimits | None = None
    remote: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadUsage(f"workers must be 1 or more; got {self.workers}.")

    def map(self, experiment: Any, lists: CellLists, worker: Worker) -> None:
        """Measure all cells in processes of this machine.

        Raises:
            BadUsage: models or tasks that are objects: they do not travel.
            MechassayError: workers died, as when memory ran out, each time that what was left was
                begun (`TRIES`).
        """
        if not lists:
            return
        threads = max(1, torch.get_num_threads() // self.workers)
        devices = devices_of_workers(named_device(worker), self.workers)
        start = (worker.folder.path, chosen(), threads)
        if self.limits is not None:
            cells = [cell for own in lists for cell in own]
            self._map_limited(experiment, cells, worker, self.limits, devices, start)
            return
        for attempt in range(1, TRIES + 1):
            try:
                self._map_once(experiment, lists, worker, devices, start)
            except BrokenProcessPool as error:
                if attempt == TRIES:
                    raise MechassayError(
                        f"Worker processes ended without a word, {TRIES} times; the same command"
                        " goes on with what is left. If memory was short, name fewer --workers."
                    ) from error
                lists = by_inputs(worker.folder.cells_left([x for y in lists for x in y]))
            else:
                return
            if not lists:
                return

    def _map_once(
        self,
        experiment: Any,
        lists: CellLists,
        worker: Worker,
        devices: Sequence[str],
        start: tuple[Path, Computing, int],
    ) -> None:
        """Begin all lists once."""
        context = multiprocessing.get_context("spawn")
        n_workers, free = min(self.workers, len(lists)), context.SimpleQueue()
        for number in range(n_workers):
            free.put(devices[number::n_workers])
        with (
            worker.progress.track("cells", sum(map(len, lists))) as advance,
            ProcessPoolExecutor(
                n_workers, context, initializer=_start_with_next, initargs=(free, *start)
            ) as pool,
        ):
            waiting: dict[Future[None], int] = {
                pool.submit(_work, experiment, list(cells)): len(cells) for cells in lists
            }
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_EXCEPTION, timeout=0.5)
                    for future in done:
                        future.result()
                        advance(waiting.pop(future))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise

    def _map_limited(
        self,
        experiment: Any,
        cells: Sequence[Cell],
        worker: Worker,
        limits: CellLimits,
        devices: Sequence[str],
        start: tuple[Path, Computing, int],
    ) -> None:
        """Do each cell in a process of its own, one of them at a time for each of the devices."""
        context, waiting = multiprocessing.get_context("spawn"), list(reversed(cells))
        running: dict[str, tuple[Cell, Any, float, Sequence[str]]] = {}
        free = list[Sequence[str]]([device] for device in reversed(devices))
        try:
            with worker.progress.track("cells", len(cells)) as advance:
                while waiting or running:
                    while waiting and free:
                        cell, mine = waiting.pop(), free.pop()
                        process = context.Process(
                            target=_alone, args=(experiment, cell, mine, *start)
                        )
                        process.start()
                        running[cell.name] = cell, process, time.monotonic(), mine
                    time.sleep(PAUSE)
                    for name, (cell, process, began, mine) in list(running.items()):
                        if _has_ended(process, began, cell, worker, limits):
                            del running[name]
                            free.append(mine)
                            advance(1)
        finally:
            for _, process, *_ in running.values():
                _kill(process)


def _has_ended(process: Any, began: float, cell: Cell, worker: Worker, limits: CellLimits) -> bool:
    """Whether the process of a cell is over; it is ended here where it is over a limit."""
    fault: tuple[str, str] | None = None
    try:
        if process.is_alive():
            fault = limits.fault(psutil.Process(process.pid), began)
            if fault is None:
                return False
    except psutil.NoSuchProcess:
        return False  # It is over since; the next look says how.
    _kill(process)
    if process.exitcode == NO_ROOM:
        raise DiskFull(f"{worker.folder.path}: a cell had no room for what it had to write.")
    if fault is None and process.exitcode:
        code = process.exitcode
        how = f"signal {-code}" if code < 0 else f"code {code}"
        fault = "Died", f"its process ended with {how}; memory may have run out."
    if fault is not None and worker.folder.record_of(cell, recompute=False) is None:
        failure = Failure(cell=dict(cell.labels), error=fault[0], message=fault[1])
        worker.folder.save_failure(cell.name, failure)
    return True


def _family(process: psutil.Process) -> Iterator[psutil.Process]:
    """A process and all that it started, as far as they are there."""
    yield process
    try:
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _resident(process: psutil.Process) -> int:
    """Bytes of memory that a process holds; 0 if it is gone."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _kill(process: Any) -> None:
    """End the process of a cell, and all that it started."""
    if process.is_alive():
        for member in list(_family(psutil.Process(process.pid))):
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.join()


def named_device(worker: Worker) -> str:
    """The device for workers elsewhere, which load what they need by name.

    Raises:
        BadUsage: the worker holds objects, which do not travel, or has a device map.
    """
    if worker.device_map:
        raise BadUsage(
            "A device map places a model over the devices of this process: run it here, with one"
            f" worker; got device_map={worker.device_map!r}."
        )
    if worker.holds_objects:
        raise BadUsage(
            "Models and tasks that are objects stay in this process: run with the executor Here,"
            " or save them and give their names."
        )
    return worker.device


def devices_of_workers(device: str, n: int) -> list[str]:
    """A device for each of n workers of this machine: of `cuda`, or `auto`, its GPUs in turn."""
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return [f"cuda:{number % n_gpus}" if n_gpus else device for number in range(n)]


_PROCESS: list[WorkerProcess] = []
"""Of a worker process: what its worker holds stays from list to list."""


def _start_with_next(free: Any, folder: Path, how: Computing, threads: int) -> None:
    _start(free.get(), folder, how, threads)


def _start(devices: Sequence[str], folder: Path, how: Computing, threads: int) -> None:
    start_worker(threads)
    _PROCESS[:] = [WorkerProcess(folder, devices, how)]


def _alone(
    experiment: Any, cell: Cell, devices: Sequence[str], folder: Path, how: Computing, threads: int
) -> None:
    """Measure the only cell of this process."""
    _start(devices, folder, how, threads)
    try:
        _PROCESS[0].work(experiment, [cell])
    except DiskFull:
        raise SystemExit(NO_ROOM) from None


def _work(experiment: Any, cells: Sequence[Cell]) -> None:
    _PROCESS[0].work(experiment, cells)


TRIES = 3
"""How often a list is begun: one that kills every worker is not begun for ever."""
HEARD = 10.0
"""Seconds in which the head of a cluster takes a connection."""


class WorkerProcess:
    """A worker in an actor or a process of its own, with the settings of its computations."""

    def __init__(self, folder: Path, devices: Sequence[str], how: Computing) -> None:
        self.worker = Worker(RunFolder(folder), devices[0], SILENT, devices=devices)
        self.how = how

    def work(self, experiment: Any, cells: Sequence[Cell]) -> None:
        """Measure cells with the same inputs; see `measure_cells`."""
        with computing(self.how.tf32, compiled=self.how.compiled):
            try:
                measure_cells(experiment, cells, self.worker)
            finally:
                self.worker.close()

    def ready(self) -> None:
        """Answer: the worker has a place on a node."""


@dataclass(frozen=True)
class Ray:
    """Workers on a cluster.

    Attributes:
        address: "auto", the head's "host:port", or "local" for a cluster of this machine alone,
            which "auto" starts too where there is none.
        workers: how many actors.
        num_gpus: GPUs of each; 0.5 shares one between two.
        num_cpus: CPUs of each.

    Raises:
        MissingExtra: Ray is not installed.
        BadUsage: fewer than one worker.
    """

    remote: ClassVar[bool] = True
    address: str = "auto"
    workers: int = 1
    num_gpus: float = 0.0
    num_cpus: float = 1.0

    def __post_init__(self) -> None:
        ray_module()
        if self.workers < 1:
            raise BadUsage(f"workers must be 1 or more; got {self.workers}.")

    def map(self, experiment: Any, lists: CellLists, worker: Worker) -> None:
        """Measure all cells on the cluster.

        Raises:
            BadUsage: no cluster at the address, or models and tasks that are objects.
            MechassayError: a list was lost too often, or the cluster is gone.
        """
        device = named_device(worker)
        ray = connected(self.address)
        kind = ray.remote(num_gpus=self.num_gpus, num_cpus=self.num_cpus)(WorkerProcess)
        folder = worker.folder.path.resolve()
        waiting = deque((cells, 1) for cells in lists)
        working: dict[Any, tuple[Any, Sequence[Cell], int]] = {}
        starting: dict[Any, Any] = {}
        idle: list[Any] = []

        def start() -> None:
            actor = kind.remote(folder, [device], chosen())
            starting[actor.ready.remote()] = actor

        for _ in range(min(self.workers, len(lists))):
            start()
        with worker.progress.track("cells", sum(map(len, lists))) as advance:
            while waiting or working:
                while waiting and idle:
                    actor, (cells, tries) = idle.pop(), waiting.popleft()
                    working[actor.work.remote(experiment, list(cells))] = actor, cells, tries
                # A worker that finds no place, as after a node was lost, is not waited for.
                (done,), _ = ray.wait([*working, *(starting if waiting else ())])
                if done in starting:
                    idle.append(starting.pop(done))
                    continue
                actor, cells, tries = working.pop(done)
                try:
                    ray.get(done)
                except ray.exceptions.RayActorError as error:
                    if tries == TRIES:
                        raise MechassayError(
                            f"The worker of {cells[0].name} was lost {tries} times; the same"
                            " command goes on with what is left."
                        ) from error
                    waiting.append((cells, tries + 1))
                    start()
                    continue
                idle.append(actor)
                advance(len(cells))
        for actor in (*idle, *starting.values()):
            ray.kill(actor)


def connected(address: str) -> Any:
    """The module `ray`, with this process as a driver of the cluster at an address; of one that is
    started on this machine where "auto" finds none.

    Raises:
        MissingExtra: Ray is not installed.
        BadUsage: no cluster at the address.
    """
    ray = ray_module()
    if ray.is_initialized():
        return ray
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal() and "://" not in host:
            # Where nothing listens, Ray waits for minutes and ends this process without a word.
            socket.create_connection((host.strip("[]"), int(port)), timeout=HEARD).close()
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError:
            if address != "auto":
                raise
            sys.stderr.write("No Ray cluster runs here: a local one is started.\n")
            ray.init(address="local", log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError, SystemExit) as error:
        reason = "Ray gave up" if isinstance(error, SystemExit) else first_line(error)
        raise BadUsage(f"No Ray cluster at {address!r}: {reason}") from None
    return ray


def ray_module() -> Any:
    """The module `ray`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("Running on a cluster", "ray", "ray") from error
    return ray
