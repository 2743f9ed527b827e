"""`mechassay leaderboard worker`: checks and evaluates what was handed in."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from mechassay.cli.command import DeviceOption
from mechassay.cli.service import (
    DatabaseOption,
    FolderOption,
    SeedFileOption,
    StoreOption,
    TrackOption,
    opened,
)
from mechassay.text import counted

ENGINES = ("here", "ray")


def worker(
    folder: FolderOption = Path("service"),
    database: DatabaseOption = "",
    store: StoreOption = "",
    track: TrackOption = None,
    private_seed_file: SeedFileOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Cells at once, each in a process of its own.")
    ] = 1,
    device: DeviceOption = "cpu",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Where public cells run: here, or ray, a cluster whose nodes see the folder"
            " (pip install 'mechassay\\[ray]').",
        ),
    ] = "here",
    address: Annotated[
        str, typer.Option("--address", help="Of the Ray cluster: auto, or its head's host:port.")
    ] = "auto",
    num_gpus: Annotated[
        float, typer.Option("--num-gpus", min=0, help="GPUs of a cell on the Ray cluster.")
    ] = 0.0,
    num_cpus: Annotated[
        int, typer.Option("--num-cpus", min=1, help="CPUs of a cell on the Ray cluster.")
    ] = 1,
) -> None:
    """Check and evaluate submissions, within the track's limits of time and memory, until stopped.

    SIGTERM and Ctrl-C give back what was begun.
    """
    from mechassay.errors import one_of
    from mechassay.models.model import check_device
    from mechassay.service.settings import ServiceSettings
    from mechassay.service.worker import WorkerOptions
    from mechassay.service.workers import run_workers

    if engine == "here" or private_seed_file is not None:  # Private cells are always run here.
        check_device(device)
    opened(folder, database).close()
    settings = ServiceSettings(folder, database, store, track, private_seed_file)
    options = WorkerOptions(device, one_of("engine", engine, ENGINES), address, num_gpus, num_cpus)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = threading.Event()

    def ended(*_: Any) -> None:
        stop.set()

    before = {name: signal.signal(name, ended) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        n = run_workers(settings, workers, options=options, once=once, stop=stop)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    typer.echo(f"{counted(n, 'piece')} of work done")
