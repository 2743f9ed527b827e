"""A worker for tests, until nothing is left to do: FOLDER DATABASE SEEDS LEASE [CHILD ...].

CHILD is a script, and its first words, that stands in for the child that does a cell.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path

from mechassay.service.evaluation import COMMAND
from mechassay.service.settings import ServiceSettings
from mechassay.service.worker import WorkerOptions
from mechassay.service.workers import run_workers


def main() -> None:
    folder, database, seeds, lease, *child = sys.argv[1:]
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    where = Path(folder)
    settings = ServiceSettings(
        where,
        database,
        track=where / "track.yaml",
        private_seed_file=Path(seeds) if seeds else None,
    )
    command = (sys.executable, *child) if child else COMMAND
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = WorkerOptions(lease=float(lease), threads=1, command=command)
    run_workers(settings, options=options, once=True, stop=stop)


if __name__ == "__main__":
    main()
