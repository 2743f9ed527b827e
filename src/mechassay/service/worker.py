"""Workers of the service: they check what was handed in, evaluate its cells, and store the records.

    received  -> downloaded, unpacked and read in a child (`service.cell`) -> queued, or refused
    waiting   -> one cell in a child -> its record in the store -> done, failed or skipped

The database is the queue, so there may be any number of workers on any number of machines. What one
holds it holds by a lease, which it renews as long as it lives; where a worker is killed, another
one begins the cell anew. Each attempt stores its record under a key of its own, and only that which
the database counts is kept: so a cell has exactly one result.

A submission cannot stop a worker: its files are opened in children alone. A child that dies without
a word is tried again, as memory may have run out for another's sake; one over a limit is not. Where
database, store or cluster are away or a disk is full, what was begun waits again and is not
counted. Others come before what has no room, and before public cells without their cluster
(`service.postponed`). A cell that is done waits for store and database to take its result. SIGTERM
and Ctrl-C give back what was begun, and end the worker.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from mechassay.errors import BadFile, DiskFull, MechassayError, first_line
from mechassay.files import is_full
from mechassay.runs.ray import ray_module
from mechassay.service import checks, queue
from mechassay.service.cell import CHECKED, UPLOAD, CellOrders, CheckedSubmission, Engine
from mechassay.service.changes import ATTEMPTS
from mechassay.service.checks import unread
from mechassay.service.database import Database, DatabaseAway
from mechassay.service.evaluation import (
    COMMAND,
    ChildEnd,
    ClusterAway,
    Evaluated,
    check_submission,
    evaluate,
)
from mechassay.service.leases import LEASE, held
from mechassay.service.postponed import CLUSTER, PostponedWork
from mechassay.service.settings import PrivateSeed, PrivateSeeds, ServiceSettings
from mechassay.service.store import Store, StoreAway
from mechassay.service.tables import Evaluation, Submission
from mechassay.service.track import CellLimits, ServiceTrack
from mechassay.service.unpacked import UnpackedSubmissions, sweep
from mechassay.service.work import Outcome, PlannedEvaluation
from mechassay.tasks.task import PRIVATE

LOG = logging.getLogger("mechassay.service.worker")
IDLE, AWAY = 2.0, 5.0
"""Seconds to wait where nothing is to be done, and where database or store are away."""
CHECK_SECONDS = 900.0


FoundT = TypeVar("FoundT")


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
        self._unpacked = UnpackedSubmissions(self.folder)
        self._postponed = PostponedWork()
        self._checks_next = True

    @property
    def folder(self) -> Path:
        """Where submissions are unpacked; nobody else works in it."""
        return self.settings.scratch.absolute() / self.name

    def run(self, *, once: bool = False) -> int:
        """Work until `stop` is set; how many pieces were done.

        Args:
            once: end as soon as nothing is left to do. A submission without room is tried once
                more then; what is away, as a cluster, is waited for.
        """
        n, tried = 0, set[str]()
        sweep(self.settings.scratch)
        try:
            while not self.stop.is_set():
                try:
                    found = self.step()
                except _PASSING as error:
                    LOG.warning("%s: %s", self.name, first_line(error))
                    if isinstance(error, DiskFull | OSError):
                        self._unpacked.clear()
                    self.stop.wait(AWAY)
                    continue
                n += found
                if not found and once:
                    again = self._postponed.now() - tried
                    if not again:
                        break
                    self._postponed.resume(again)
                    tried |= again - {CLUSTER}
                elif not found:
                    self.stop.wait(IDLE)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.db.close()
        return n

    def step(self) -> bool:
        """Check a submission or evaluate a cell, in turn; whether there was one.

        Raises:
            DatabaseAway, StoreAway, ClusterAway, DiskFull, SeedsAway, OSError: what was begun waits
                again, and is not counted. A submission without room, and public cells without
                their cluster, are passed over for a while then.
        """
        turn = (self._next_check, self._next_cell)
        turn = turn if self._checks_next else turn[::-1]
        postponed = self._postponed.now()
        for work in turn:
            # So neither many uploads nor many cells stand before everything else, and no cell that
            # waits for a cluster before a check.
            self._checks_next = work == self._next_cell
            if work(postponed):
                return True
        return False

    def _next_check(self, without: Collection[str]) -> bool:
        found = checks.claim_check(self.db, self.name, self.options.lease, without=without)
        if found is not None:
            give_back = partial(checks.give_back_check, self.db, found, self.name)
            with self._given_back(found.id, give_back):
                self._check(found)
        return found is not None

    def _next_cell(self, without: Collection[str]) -> bool:
        split = PRIVATE if CLUSTER in without else None
        found = queue.claim(self.db, self.name, self.options.lease, without=without, split=split)
        if found is not None:
            give_back = partial(queue.give_back, self.db, found, self.name)
            with self._given_back(found.submission_id, give_back):
                self._evaluate(found)
        return found is not None

    @contextmanager
    def _given_back(self, submission: str, give_back: Callable[[], bool]) -> Generator[None]:
        """What a worker cannot do now waits again, as if it had not been begun."""
        try:
            yield
        except _PASSING as error:
            # All else is away for every submission alike.
            if is_full(error) or isinstance(error, ClusterAway):
                what = submission if is_full(error) else CLUSTER
                LOG.info("%s: others before %s, %g s", self.name, what, self._postponed.add(what))
            give_back()
            raise
        self._postponed.remove(submission)

    def _seeds(self) -> PrivateSeeds | None:
        try:
            return self.settings.seeds()
        except BadFile as error:
            raise SeedsAway(str(error)) from None

    # --- checks ---------------------------------------------------------------------------------

    def _check(self, submission: Submission) -> None:
        LOG.info("%s: checks submission %s", self.name, submission.id)
        beat = partial(checks.beat_check, self.db, submission, self.name, self.options.lease)
        has_seed = self._seeds() is not None
        with held(beat, self.stop, lease=self.options.lease, worker=self.name) as stop:
            found = self._checked(submission, stop)
            if isinstance(found, ChildEnd):
                died = found.how == "died" and submission.deaths + 1 < ATTEMPTS
                if found.how == "stopped" or died:
                    checks.give_back_check(self.db, submission, self.name, died=died)
                    return
                LOG.warning("%s: submission %s: %s", self.name, submission.id, found.message)
                problems = [unread(found.message)]
                found = CheckedSubmission(kind="", problems=problems, cells=[])
            planned = [
                PlannedEvaluation(cell.job, cell.cell, cell.split, cell.called or None)
                for cell in found.cells
                if has_seed or cell.split != PRIVATE
            ]
            told = {"kind": found.kind, "name": found.name, "declaration": found.declaration}
            end = partial(checks.checked, self.db, submission, self.name, found.problems, planned)
            self._waited(partial(end, **told), self.stop)

    def _checked(
        self, submission: Submission, stop: threading.Event
    ) -> CheckedSubmission | ChildEnd:
        """Download a submission and check it; it stays in the folder for its cells."""
        folder = self._unpacked.of(submission.id)
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
        beat = partial(queue.beat, self.db, evaluation, self.name, self.options.lease)
        with held(beat, self.stop, lease=self.options.lease, worker=self.name) as stop:
            found, key = self._evaluated(evaluation, stop), None
            if found.record is not None:
                key = self._stored(evaluation, found.record, stop)
                found = found if key else replace(found, how="stopped")
            died = found.how == "died" and evaluation.deaths + 1 < ATTEMPTS
            if found.how == "stopped" or died:
                queue.give_back(self.db, evaluation, self.name, died=died)
                return
            outcome = Outcome(found.state, found.message or None, key, found.seconds)
            self._tell(evaluation, outcome)
        LOG.info("%s: evaluation %d: %s", self.name, evaluation.id, found.state)

    def _stored(self, evaluation: Evaluation, record: Path, stop: threading.Event) -> str | None:
        """Put a record into the store; its key, or None if `stop` was set before."""
        # Drawn, as the number of an evaluation may be given again when it is removed.
        key = f"records/{evaluation.submission_id}/{secrets.token_hex(16)}.json"

        def put() -> str:
            self.store.put_file(key, record)
            return key

        return self._waited(put, stop)

    def _tell(self, evaluation: Evaluation, outcome: Outcome) -> None:
        """Say how a cell ended; where that does not count, its record goes.

        It waits for the database although the lease may be over meanwhile: nobody else may have
        taken the cell. Where the worker has to end before, nobody knows whether it counted, as a
        connection may be lost in a commit: then the record stays.
        """
        finish = partial(queue.finish, self.db, evaluation, self.name, outcome)
        counted = self._waited(finish, self.stop)
        record = outcome.record
        if counted is False and record is not None:
            LOG.info("%s: evaluation %d: it did not count", self.name, evaluation.id)
            self._waited(lambda: self.store.delete(record), self.stop)

    def _waited(self, work: Callable[[], FoundT], stop: threading.Event) -> FoundT | None:
        """Do what needs store or database, however long that is away; None if `stop` was set."""
        while True:
            try:
                return work()
            except (DatabaseAway, StoreAway, DiskFull) as error:
                LOG.warning("%s: %s", self.name, first_line(error))
                if stop.wait(AWAY):
                    return None

    def _evaluated(self, evaluation: Evaluation, stop: threading.Event) -> Evaluated:
        private = evaluation.split == PRIVATE
        seed: PrivateSeed | None = None
        if private:
            seeds = self._seeds()
            if seeds is None:
                message = "The worker has no seed of private examples."
                return Evaluated("ended", "failed", message, 0.0)
            seed = seeds.current
        folder = self._unpacked.of(evaluation.submission_id)
        if not (folder / CHECKED).is_file():  # Written last: what lacks it may be half of it.
            submission = self._submission(evaluation.submission_id)
            found = self._checked(submission, stop)
            if isinstance(found, ChildEnd):
                shutil.rmtree(folder, ignore_errors=True)
                message = f"Its submission could not be read again: {found.message}"
                return Evaluated(found.how, "failed", message, found.seconds)
        done = evaluate(
            folder,
            evaluation.job,
            evaluation.cell,
            self._orders(seed),
            stop,
            private=private,
            command=self.options.command,
        )
        if not private:
            self._postponed.remove(CLUSTER)
        return done

    def _orders(self, seed: PrivateSeed | None = None) -> CellOrders:
        options = self.options
        names = ("device", "engine", "address", "num_gpus", "num_cpus", "threads")
        orders = CellOrders(track=self.track, **{name: getattr(options, name) for name in names})
        if seed is None:
            return orders
        return orders.model_copy(update={"seed": seed.seed, "epoch": seed.epoch})

    def _submission(self, submission: str) -> Submission:
        return self.db.read(lambda session: session.get_one(Submission, submission))
