"""Cells on a Ray cluster: one actor a worker, which keeps its model from batch to batch.

All nodes have to see the folder of the run, as on a shared file system. What a lost worker had not
finished is given to another one; what a lost cluster had not finished is done by the same command.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mechassay.errors import BadUsage, MechassayError, MissingExtra, first_line
from mechassay.progress import SILENT
from mechassay.runs.execute import Batches, named_device, run_cells
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Cell

TRIES = 3
"""How often a batch is begun: a batch that kills every worker is not begun for ever."""
HEARD = 10.0
"""Seconds in which the head of a cluster takes a connection."""


class Worker:
    """What an actor is: a bench and what it does with it."""

    def __init__(self, folder: Path, device: str) -> None:
        self.bench = Bench(RunFolder(folder), device, SILENT)

    def work(self, job: Any, cells: Sequence[Cell]) -> None:
        """Do a batch; see `run_cells`."""
        run_cells(job, cells, self.bench)

    def ready(self) -> None:
        """Answer: the worker has a place on a node."""


@dataclass(frozen=True)
class Ray:
    """Workers on a cluster.

    Attributes:
        address: "auto", the head's "host:port", or "local" for a cluster of this machine alone.
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

    def map(self, job: Any, batches: Batches, bench: Bench) -> None:
        """See `Executor.map`.

        Raises:
            BadUsage: no cluster at the address, or models and tasks that are objects.
            MechassayError: a batch was lost too often, or the cluster is gone.
        """
        device = named_device(bench)
        ray = connected(self.address)
        actor = ray.remote(num_gpus=self.num_gpus, num_cpus=self.num_cpus)(Worker)
        folder = bench.folder.path.resolve()
        waiting = deque((cells, 1) for cells in batches)
        working: dict[Any, tuple[Any, Sequence[Cell], int]] = {}
        starting: dict[Any, Any] = {}
        idle: list[Any] = []

        def start() -> None:
            worker = actor.remote(folder, device)
            starting[worker.ready.remote()] = worker

        for _ in range(min(self.workers, len(batches))):
            start()
        with bench.progress.track("cells", sum(map(len, batches))) as advance:
            while waiting or working:
                while waiting and idle:
                    worker, (cells, tries) = idle.pop(), waiting.popleft()
                    working[worker.work.remote(job, list(cells))] = worker, cells, tries
                # A worker that finds no place, as after a node was lost, is not waited for.
                (done,), _ = ray.wait([*working, *(starting if waiting else ())])
                if done in starting:
                    idle.append(starting.pop(done))
                    continue
                worker, cells, tries = working.pop(done)
                try:
                    ray.get(done)
                except ray.exceptions.RayActorError as error:
                    if tries == TRIES:
                        raise MechassayError(
                            f"The batch of {cells[0].name} lost its worker {tries} times; the same"
                            " command goes on with what is left."
                        ) from error
                    waiting.append((cells, tries + 1))
                    start()
                    continue
                idle.append(worker)
                advance(len(cells))
        for worker in (*idle, *starting.values()):
            ray.kill(worker)


def connected(address: str) -> Any:
    """The module `ray`, with this process as a driver of the cluster at an address.

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
        ray.init(address=address, log_to_driver=False, logging_level="error")
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
