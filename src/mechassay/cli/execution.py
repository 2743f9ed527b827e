"""Running an experiment from the command line: where its cells are done, and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from mechassay.cli.names import ENGINES
from mechassay.errors import BadFile, BadPairs, MechassayError, NoSuchSplit, first_line, one_of
from mechassay.models.devices import read_device_map
from mechassay.results.console import print_text, standard_output
from mechassay.results.page import Report
from mechassay.results.report import notes_on
from mechassay.results.sections import failed_checks
from mechassay.runs import COSTS
from mechassay.runs.cells import Cell, by_inputs
from mechassay.runs.executors import Executor, Here, Processes, Ray
from mechassay.runs.experiment import Interrupted, experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import opened, run
from mechassay.runs.worker import Worker
from mechassay.utils.display import counted


def run_and_show(
    experiment: Any,
    *,
    output: Path | None,
    device: str,
    device_map: str,
    workers: int,
    engine: str,
    address: str,
    num_gpus: float,
    only_plan: bool,
) -> None:
    """Run an experiment, print what it found and where its page is, and exit with 1 if a cell or a
    control failed.

    Args:
        output: None: see `default_folder`.
    """
    executor = executor_of(engine, workers, address, num_gpus)
    if device_map:
        read_device_map(device_map)

    where: dict[str, Any] = {"device": device, "device_map": device_map}

    def begin(worker: Worker, left: list[Cell]) -> None:
        for note in (*worker.notes, *experiment.notes()):
            typer.echo(f"note: {note}", err=True)
        if not (only_plan or executor.remote):
            measured = print_cost(experiment, left, worker, workers)
            if isinstance(executor, Here):
                executor.measured = measured

    if only_plan:
        worker = opened(experiment, output, **where, load=False)
        output = worker.folder.path
        left = worker.folder.cells_left(worker.cells)
        begin(worker, left)
        n = len(by_inputs(left))
        command = f": mechassay run-cells {output} --part 1/{n}" if n else ""
        typer.echo(f"{output}: {counted(n, 'part')} to run{command}")
        return
    try:
        report = run(experiment, output, executor=executor, **where, begin=begin)
    except Interrupted as stopped:
        # The common message, that the same command goes on, is not for such a cell.
        typer.echo(f"mechassay: interrupted; {stopped}", err=True)
        raise SystemExit(stopped.code) from None
    show(experiment, report)


def print_cost(
    experiment: Any, left: list[Cell], worker: Worker, n_processes: int = 1
) -> Callable[[Cell, float], None]:
    """Print the cost of the remaining cells in one line, if the kind of run has an estimate.

    Returns:
        A function of a cell and its seconds, which corrects the estimate after the first cell.
    """
    if not left or experiment.kind not in COSTS:
        return lambda *_: None
    cost_of = COSTS.load(experiment.kind)
    try:
        cost = replace(cost_of(experiment, left, worker), processes=n_processes)
    except MechassayError as error:
        # The cells give the reason if the pairs cannot be used. Cells of other models may run.
        about_pairs = isinstance(error, BadPairs | BadFile | NoSuchSplit)
        reason = "." if about_pairs else f": {first_line(error)}"
        typer.echo(f"plan: not known before it is run{reason}", err=True)
        return lambda *_: None
    typer.echo(f"plan: {cost.line}", err=True)
    corrected = False

    def measured(cell: Cell, seconds: float) -> None:
        nonlocal corrected
        if corrected or len(left) == 1:
            return
        from mechassay.runs.costs import RANGE_MEASURED, duration

        once = cost_of(experiment, [cell], worker).cell_seconds
        rest = cost.cell_seconds - once
        if not once or rest <= 0:
            return  # Calculations are estimated at 0 s: they correct nothing, and need no estimate.
        corrected = True
        others = counted(len(left) - 1, "other cell")
        line = duration(seconds * rest / once, RANGE_MEASURED)
        typer.echo(f"plan: {others}: {line}", err=True)

    return measured


def show(experiment: Any, report: Report) -> None:
    """Print a report and where its page is; exit with 1 if a cell or a control failed."""
    wrong = [(record, text) for record in report.records for text in failed_checks(record)]
    for record, text in wrong:
        typer.echo(f"mechassay: controls fail: {record.method.name}: {text}", err=True)
    for text in report.transfers:
        print_text(text, standard_output())
    experiment.show(report, standard_output())
    for line in notes_on(report.records):
        typer.echo(f"note: {line}", err=True)
    typer.echo(f"Report: {report.page}")
    failed = [failure for failure in report.failures if failure.status == "failed"]
    for failure in failed:
        cell = ", ".join(dict.fromkeys(failure.cell.values()))
        typer.echo(f"mechassay: {cell}: {failure.message}", err=True)
    if failed or wrong:
        raise typer.Exit(1)


def executor_of(engine: str, workers: int, address: str, num_gpus: float) -> Executor:
    """Where cells are done; several workers are processes unless an engine is named.

    Raises:
        UnknownName: no such engine.
    """
    chosen = one_of("engine", engine or ("here" if workers == 1 else "processes"), ENGINES)
    if chosen == "ray":
        return Ray(address, workers, num_gpus)
    return Here() if chosen == "here" else Processes(workers)


def stored_experiment(folder: Path, **changes: Any) -> Any:
    """The experiment of a folder; see `experiment_of`."""
    return experiment_of(RunFolder.existing(folder).plan(), **changes)
