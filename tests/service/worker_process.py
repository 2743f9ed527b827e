"""A worker for tests: `worker_process.py FOLDER DATABASE SEEDS LEASE [CHILD]`, until it is stopped.

CHILD is a script that stands in for the child that does a cell; `{python} CHILD` gets its words.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path

from mechassay.service.evaluation import COMMAND
from mechassay.service.settings import ServiceSettings
from mechassay.service.worker import WorkerOptions, run_workers


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
