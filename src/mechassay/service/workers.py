"""Several workers in one process, each with a child of its own."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from mechassay.errors import BadUsage
from mechassay.service.settings import ServiceSettings
from mechassay.service.worker import ServiceWorker, WorkerOptions


def run_workers(
    settings: ServiceSettings,
    n: int = 1,
    *,
    options: WorkerOptions | None = None,
    once: bool = False,
    stop: threading.Event | None = None,
) -> int:
    """Run several workers until `stop` is set; how much they did.

    Raises:
        BadUsage: fewer than one. Others as `ServiceWorker`; the first error that ended one.
    """
    if n < 1:
        raise BadUsage(f"workers must be 1 or more; got {n}.")
    options = options or WorkerOptions()
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
