"""Holding what was claimed: beats renew its lease while somebody works on it.

A beat that gets no answer loses nothing at once: what is held is lost when nobody could have
renewed it for the whole of a lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

from mechassay.errors import MechassayError

LOG = logging.getLogger("mechassay.service.leases")
LEASE, BEATS = 60.0, 4
"""Seconds of a lease, and how often it is renewed in that time."""


@contextmanager
def held(
    beat: Callable[[], bool], stop: threading.Event, *, lease: float = LEASE, worker: str = ""
) -> Generator[threading.Event]:
    """Hold something by `beat`, which says whether it still is this worker's.

    Args:
        stop: of the worker.
        worker: its name, for the log.

    Yields:
        An event that is set when what is held is lost, or `stop` is set.
    """
    wanted, done = threading.Event(), threading.Event()

    def renew() -> None:
        last = renewed = monotonic()
        while not done.wait(min(0.2, lease / BEATS)):
            if stop.is_set():
                wanted.set()
            if monotonic() - last < lease / BEATS:
                continue
            last = monotonic()
            try:
                mine = beat()
            except MechassayError as error:
                LOG.warning("%s: %s", worker, error)
                mine = monotonic() - renewed < lease
            else:
                renewed = last  # The lease counts from before the beat, which may be slow.
            if not mine:
                wanted.set()

    thread = threading.Thread(target=renew, daemon=True, name=f"beat {worker}")
    thread.start()
    try:
        yield wanted
    finally:
        done.set()
        thread.join()
