"""Workers of the service: they check what was handed in, evaluate its cells, and store the records.

    received  -> downloaded, unpacked and read in a child (`service.cell`) -> queued, or refused
    waiting   -> one cell in a child -> its record in the store -> done, failed or skipped

The database is the queue, so there may be any number of workers on any number of machines. What one
holds it holds by a lease, which it renews as long as it lives; where a worker is killed, another
one begins the cell anew. Each attempt stores its record under a key of its own, and only that which
the database counts is kept: so a cell has exactly one result.

A submission cannot stop a worker: its files are opened in children alone. A child that dies without
a word is tried again, as memory may have run out for another's sake; one over a limit is not. Where
store or cluster are away or a disk is full, what was begun waits again and is not counted; a record
that is done waits for the store. SIGTERM and Ctrl-C give back what was begun, and end the worker.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import psutil

from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError, first_line
from mechassay.runs.ray import ray_module
from mechassay.service import queue
from mechassay.service.cell import CHECKED, UPLOAD, CellOrders, CheckedSubmission, Engine
from mechassay.service.database import Database, DatabaseAway
from mechassay.service.evaluation import (
    COMMAND,
    ChildEnd,
    ClusterAway,
    Evaluated,
    check_submission,
    evaluate,
)
from mechassay.service.settings import PrivateSeed, PrivateSeeds, ServiceSettings
from mechassay.service.store import Store, StoreAway
from mechassay.service.tables import Evaluation, Submission
from mechassay.service.track import CellLimits, ServiceTrack
from mechassay.submissions import Problem
from mechassay.tasks.task import PRIVATE

LOG = logging.getLogger("mechassay.service.worker")
LEASE, BEATS = 60.0, 4
"""Seconds of a lease, and how often it is renewed in that time."""
IDLE, AWAY = 2.0, 5.0
"""Seconds to wait where nothing is to be done, and where database or store are away."""
CHECK_SECONDS = 900.0
FOLDERS = 4
"""Submissions that a worker keeps unpacked."""


class SeedsAway(MechassayError):
    """The file of private seeds cannot be used now, as while somebody edits it."""


_PASSING = (DatabaseAway, StoreAway, ClusterAway, DiskFull, SeedsAway, OSError)
"""What is nobody's fault who handed something in."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker works.

    Attributes:
        device: of models: auto, cpu, cuda ...
        engine, address: where public cells are run: here, or on a Ray cluster whose nodes see the
            worker's scratch folder; see `service.cluster`. Private ones are always run here.
        num_gpus, num_cpus: of a cell on the cluster; it has as many threads as CPUs.
        threads: of a child that is run here; 0: as many as it likes.
        lease: seconds until what a silent worker holds is given to others.
        command: that makes a child.
    """

    device: str = "cpu"
    engine: Engine = "here"
    address: str = "auto"
    num_gpus: float = 0.0
    num_cpus: int = 1
    threads: int = 0
    lease: float = LEASE
    command: Sequence[str] = COMMAND


@dataclass
class ServiceWorker:
    """Does one piece of work after the other.

    Attributes:
        stop: set to end it; a cell is given back.
        name: unique among all workers.
    """

    settings: ServiceSettings
    options: WorkerOptions = WorkerOptions()
    stop: threading.Event = field(default_factory=threading.Event)
    name: str = field(
        default_factory=lambda: f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    )

    def __post_init__(self) -> None:
        self.db = Database(self.settings.database)
        self.store = Store.of(self.settings.store)
        self.track = ServiceTrack.read(self.settings.track)
        if self.options.engine == "ray":
            ray_module()
        self.settings.seeds()  # Refused now, and not in the first private cell.
        self._unpacked: dict[str, Path] = {}
        self._checks_next = True

    @property
    def folder(self) -> Path:
        """Where submissions are unpacked; nobody else works in it."""
        return self.settings.scratch.absolute() / self.name

    def run(self, *, once: bool = False) -> int:
        """Work until `stop` is set; how many pieces were done.

        Args:
            once: end as soon as nothing is left to do.
        """
        n = 0
        _sweep(self.settings.scratch)
        try:
            while not self.stop.is_set():
                try:
                    found = self.step()
                except _PASSING as error:
                    LOG.warning("%s: %s", self.name, first_line(error))
                    if isinstance(error, DiskFull | OSError):
                        self._make_room()
                    self.stop.wait(AWAY)
                    continue
                n += found
                if not found and once:
                    break
                if not found:
                    self.stop.wait(IDLE)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.db.close()
        return n

    def step(self) -> bool:
        """Check a submission or evaluate a cell, in turn; whether there was one.

        Raises:
            DatabaseAway, StoreAway, ClusterAway, DiskFull, SeedsAway, OSError: what was begun waits
                again, and is not counted.
        """
        turn = (self._next_check, self._next_cell)
        for work in turn if self._checks_next else reversed(turn):
            # So neither many uploads nor many cells stand before everything else, and no cell that
            # waits for a cluster before a check.
            self._checks_next = work == self._next_cell
            if work():
                return True
        return False

    def _next_check(self) -> bool:
        submission = queue.claim_check(self.db, self.name, self.options.lease)
        if submission is not None:
            with self._given_back(lambda: queue.give_back_check(self.db, submission, self.name)):
                self._check(submission)
        return submission is not None

    def _next_cell(self) -> bool:
        evaluation = queue.claim(self.db, self.name, self.options.lease)
        if evaluation is not None:
            with self._given_back(lambda: queue.give_back(self.db, evaluation, self.name)):
                self._evaluate(evaluation)
        return evaluation is not None

    @contextmanager
    def _given_back(self, give_back: Callable[[], bool]) -> Generator[None]:
        """What a worker cannot do now waits again, as if it had not been begun."""
        try:
            yield
        except _PASSING:
            give_back()
            raise

    def _make_room(self) -> None:
        """Remove what is kept for cells to come: the disk may be full of it."""
        while self._unpacked:
            shutil.rmtree(self._unpacked.popitem()[1], ignore_errors=True)

    def _seeds(self) -> PrivateSeeds | None:
        try:
            return self.settings.seeds()
        except BadFile as error:
            raise SeedsAway(str(error)) from None

    # --- checks ---------------------------------------------------------------------------------

    def _check(self, submission: Submission) -> None:
        LOG.info("%s: checks submission %s", self.name, submission.id)

        def beat() -> bool:
            return queue.beat_check(self.db, submission, self.name, self.options.lease)

        has_seed = self._seeds() is not None
        with self._held(beat, self.stop) as stop:
            found = self._checked(submission, stop)
        if isinstance(found, ChildEnd):
            died = found.how == "died" and submission.deaths + 1 < queue.ATTEMPTS
            if found.how == "stopped" or died:
                queue.give_back_check(self.db, submission, self.name, died=died)
                return
            LOG.warning("%s: submission %s: %s", self.name, submission.id, found.message)
            problems = [Problem("", f"It could not be read: {found.message}")]
            queue.checked(self.db, submission, self.name, problems, [])
            return
        planned = [
            queue.PlannedEvaluation(cell.job, cell.cell, cell.split)
            for cell in found.cells
            if has_seed or cell.split != PRIVATE
        ]
        queue.checked(
            self.db,
            submission,
            self.name,
            found.problems,
            planned,
            kind=found.kind,
            name=found.name,
            declaration=found.declaration,
        )

    def _checked(
        self, submission: Submission, stop: threading.Event
    ) -> CheckedSubmission | ChildEnd:
        """Download a submission and check it; it stays in the folder for its cells."""
        folder = self._folder_of(submission.id)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self.store.get_file(submission.file, folder / UPLOAD)
        except BadFile:
            return ChildEnd("ended", "its file is not in the store.", 0.0)
        limits = CellLimits(seconds=CHECK_SECONDS, memory_gb=self.track.cell.memory_gb)
        command = self.options.command
        return check_submission(folder, self._orders(), limits, stop, command=command)

    # --- cells ----------------------------------------------------------------------------------

    def _evaluate(self, evaluation: Evaluation) -> None:
        LOG.info("%s: evaluation %d, attempt %d", self.name, evaluation.id, evaluation.attempts)

        def beat() -> bool:
            return queue.beat(self.db, evaluation, self.name, self.options.lease)

        key = None
        with self._held(beat, self.stop) as stop:
            found = self._evaluated(evaluation, stop)
            if found.record is not None:
                # Drawn, as the number of an evaluation may be given again when it is removed.
                key = f"records/{evaluation.submission_id}/{secrets.token_hex(16)}.json"
                stored = self._stored(key, found.record, stop)
                found = found if stored else replace(found, how="stopped")
        died = found.how == "died" and evaluation.deaths + 1 < queue.ATTEMPTS
        if found.how == "stopped" or died:
            queue.give_back(self.db, evaluation, self.name, died=died)
            return
        outcome = queue.Outcome(found.state, found.message or None, key, found.seconds)
        counted = queue.finish(self.db, evaluation, self.name, outcome)
        if not counted and key is not None:
            self.store.delete(key)
        LOG.info("%s: evaluation %d: %s", self.name, evaluation.id, found.state)

    def _stored(self, key: str, record: Path, stop: threading.Event) -> bool:
        """Put a record into the store, however long that is away; False if `stop` was set."""
        while True:
            try:
                self.store.put_file(key, record)
            except (StoreAway, DiskFull) as error:
                LOG.warning("%s: %s", self.name, error)
                if stop.wait(AWAY):
                    return False
            else:
                return True

    def _evaluated(self, evaluation: Evaluation, stop: threading.Event) -> Evaluated:
        private = evaluation.split == PRIVATE
        seed: PrivateSeed | None = None
        if private:
            seeds = self._seeds()
            if seeds is None:
                message = "The worker has no seed of private examples."
                return Evaluated("ended", "failed", message, 0.0)
            seed = seeds.current
        folder = self._folder_of(evaluation.submission_id)
        if not (folder / CHECKED).is_file():  # Written last: what lacks it may be half of it.
            submission = self._submission(evaluation.submission_id)
            found = self._checked(submission, stop)
            if isinstance(found, ChildEnd):
                shutil.rmtree(folder, ignore_errors=True)
                message = f"Its submission could not be read again: {found.message}"
                return Evaluated(found.how, "failed", message, found.seconds)
        return evaluate(
            folder,
            evaluation.job,
            evaluation.cell,
            self._orders(seed),
            stop,
            private=private,
            command=self.options.command,
        )

    def _orders(self, seed: PrivateSeed | None = None) -> CellOrders:
        options = self.options
        names = ("device", "engine", "address", "num_gpus", "num_cpus", "threads")
        orders = CellOrders(track=self.track, **{name: getattr(options, name) for name in names})
        if seed is None:
            return orders
        return orders.model_copy(update={"seed": seed.seed, "epoch": seed.epoch})

    def _submission(self, submission: str) -> Submission:
        return self.db.read(lambda session: session.get_one(Submission, submission))

    def _folder_of(self, submission: str) -> Path:
        """The folder of a submission; of several the longest unused goes."""
        folder = self._unpacked.pop(submission, self.folder / submission)
        self._unpacked[submission] = folder
        while len(self._unpacked) > FOLDERS:
            oldest = next(iter(self._unpacked))
            shutil.rmtree(self._unpacked.pop(oldest), ignore_errors=True)
        return folder

    @contextmanager
    def _held(self, beat: Callable[[], bool], stop: threading.Event) -> Generator[threading.Event]:
        """Hold something by `beat`; the event is set when it is lost, or `stop` is set."""
        wanted, done = threading.Event(), threading.Event()
        lease = self.options.lease

        def renew() -> None:
            last = renewed = monotonic()
            while not done.wait(min(0.2, lease / BEATS)):
                if stop.is_set():
                    wanted.set()
                if monotonic() - last < lease / BEATS:
                    continue
                last = monotonic()
                try:
                    held = beat()
                except MechassayError as error:
                    LOG.warning("%s: %s", self.name, error)
                    held = monotonic() - renewed < lease
                else:
                    renewed = monotonic()
                if not held:
                    wanted.set()

        thread = threading.Thread(target=renew, daemon=True, name=f"beat {self.name}")
        thread.start()
        try:
            yield wanted
        finally:
            done.set()
            thread.join()


def run_workers(
    settings: ServiceSettings,
    n: int = 1,
    *,
    options: WorkerOptions = WorkerOptions(),
    once: bool = False,
    stop: threading.Event | None = None,
) -> int:
    """Several workers in this process, each with a child of its own; how much they did.

    Raises:
        BadUsage: fewer than one. Others as `ServiceWorker`; the first error that ended one.
    """
    if n < 1:
        raise BadUsage(f"workers must be 1 or more; got {n}.")
    threads = options.threads or max(1, (os.cpu_count() or 1) // n)
    stop = stop or threading.Event()
    workers = [ServiceWorker(settings, replace(options, threads=threads), stop) for _ in range(n)]
    done: list[int] = []
    errors: list[BaseException] = []

    def work(worker: ServiceWorker) -> None:
        try:
            done.append(worker.run(once=once))
        except BaseException as error:
            errors.append(error)
            stop.set()

    running = [
        threading.Thread(target=work, args=(worker,), name=worker.name) for worker in workers
    ]
    for thread in running:
        thread.start()
    for thread in running:
        # With a limit, so that signals are seen.
        while thread.is_alive():
            thread.join(0.5)
    if errors:
        raise errors[0]
    return sum(done)


def _sweep(scratch: Path) -> None:
    """Remove the folders of workers of this machine that are gone."""
    for folder in scratch.glob(f"{socket.gethostname()}.*.*"):
        pid = folder.name.rsplit(".", 2)[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
