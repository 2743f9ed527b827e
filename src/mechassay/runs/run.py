"""The driver: open a folder, measure the cells that it has no record of, and write the report.

`run` is all there is, from Python and from the command line. It computes the cells once, checks
the experiment (`opened`), gives cells to an executor (`runs.executors`), where a worker measures
them (`measure_cells`), and reads the folder (`read_report`). The folder is the only state: a cell
is done if its record is there, and the same call measures what is left.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechassay import errors
from mechassay.errors import BadFile, BadUsage, MechassayError, first_line
from mechassay.models.model import Model, check_device
from mechassay.models.sources import check_sources, model_name
from mechassay.results.page import Report
from mechassay.results.records import Failure, Record, failure_of
from mechassay.runs.cells import Cell, by_inputs
from mechassay.runs.executors import Executor, Here, labelled
from mechassay.runs.experiment import Experiment, default_folder, experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.names import name_of
from mechassay.runs.options import check_ranges
from mechassay.runs.resuming import open_folder
from mechassay.runs.worker import Worker
from mechassay.tasks.task import Task
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Progress


@checked
def run(
    experiment: Experiment,
    output: str | Path | None = None,
    *,
    executor: Executor | None = None,
    device: str = "cpu",
    device_map: str = "",
    models: Mapping[str, Model] | None = None,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress = BAR,
    begin: Callable[[Worker, list[Cell]], None] | None = None,
) -> Report:
    """Run an experiment: measure the cells that the folder has no record of, and write the report.

        experiment = ma.CircuitsExperiment(models=("gpt2",), tasks=("ioi",), methods=("eap",))
        report = ma.run(experiment, "runs/eap")

    Args:
        experiment: an experiment. Its fields have the names of the command's options.
        output: the folder of the run. A folder that has this experiment already is resumed. By
            default a folder below `runs`, see `runs.resuming`.
        executor: where cells are measured; in this process by default.
        device: where models are loaded: "cpu", "cuda", or "auto" for a GPU if there is one.
        device_map: where modules of models are placed, instead of `device`.
        models, tasks: loaded models and tasks by the names that the experiment gives them:
            `run(CircuitsExperiment(("mine",), ("ioi",)), models={"mine": model})`.
        progress: `SILENT` shows no bar.
        begin: is called with the worker and the cells that are left, before they are measured.

    Returns:
        The report of the folder, with all its records and failures, as `open_run` returns it.

    Raises:
        BadUsage, UnknownName: something is wrong with the experiment, or the folder holds another
            one; or nothing could be measured, and for one reason, as if a model does not exist.
    """
    executor = executor or Here()
    experiment = replace(experiment)  # A copy does not keep what was read of files before.
    if not executor.remote:
        check_device(device)
    about: dict[str, Any] = {"models": models, "tasks": tasks, "progress": progress}
    about |= {"device": device, "device_map": device_map}
    worker = opened(experiment, output, here=not executor.remote, **about)
    left = worker.folder.cells_left(worker.cells)
    if begin is not None:
        begin(worker, left)
    else:
        for note in worker.notes:
            warnings.warn(note, stacklevel=2)
    executor.map(experiment, by_inputs(left), worker)
    report = read_report(worker.folder, worker.cells)
    reasons = {(failure.status, failure.error, failure.message) for failure in report.failures}
    if not report.records and len(reasons) == 1:
        (status, error, message), *_ = reasons
        if status == "failed" and getattr(getattr(errors, error, None), "usage", False):
            raise BadUsage(message)
    return replace(report, page=experiment.write(report))


def opened(
    experiment: Experiment,
    output: str | Path | None = None,
    *,
    device: str = "cpu",
    device_map: str = "",
    models: Mapping[str, Model] | None = None,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress = BAR,
    here: bool = False,
    load: bool = True,
) -> Worker:
    """Check an experiment and open its folder; nothing is measured.

    Args:
        here: whether its models have to be on this machine.
        load: whether models may be loaded to compare their weights with the folder's results.

    Raises:
        BadUsage, UnknownName: see `run`.
    """
    models = {model_name(name): own for name, own in (models or {}).items()}
    tasks = {name_of(name, "tasks"): own for name, own in (tasks or {}).items()}
    names = {"models": frozenset(models), "tasks": frozenset(tasks)}
    known = {field.name for field in dataclasses.fields(experiment)}
    for what, given in names.items():
        asked = (
            getattr(experiment, what, ())
            if what in known
            else (getattr(experiment, what[:-1], ""),)
        )
        for name in sorted(given - set(asked)):
            raise BadUsage(f"{what} has {name!r}, which the experiment does not name.")
    folder = RunFolder(default_folder(experiment) if output is None else Path(output))
    worker = Worker(folder, device, progress, device_map=device_map, models=models, tasks=tasks)
    check_ranges(experiment)
    experiment.check(worker)
    worker.cells = tuple(experiment.cells())
    if not worker.cells:
        raise BadUsage(
            f"The experiment {experiment.kind} has no cells: name a value of each of"
            f" {', '.join(experiment.grows) or 'its lists'}."
        )
    if here:
        asked = getattr(experiment, "models", ()) or filter(
            None, (getattr(experiment, "model", ""),)
        )
        check_sources(map(str, asked), models)
    open_folder(experiment, worker, None if output is None else folder.path, load=load)
    folder = worker.folder
    for cell in worker.cells:
        if moved := folder.set_aside(cell.name):
            worker.notes.append(
                f"{folder.record_file(cell.name)} was cut off: its cell is measured again, and the"
                f" file is {moved.name} now."
            )
    return worker


@checked
def open_run(folder: str | Path) -> Report:
    """Reopen a run: its records, scores, circuits, curves and tables. Nothing is measured.

        run = ma.open_run("runs/circuits-smollm2-135m-ioi-0a1b2c3d")
        print(run)                 the conclusion, and the page
        run.records, run.tables    the numbers; run.scores, run.circuits, run.curves by cell

    Args:
        folder: of the run, as `run` and the commands write it. A run that is not finished has the
            records of the finished cells.

    Raises:
        BadFile: there is no run in the folder, or the run is of another version.
    """
    stored = RunFolder.existing(Path(folder))
    try:
        cells = experiment_of(stored.plan()).cells()
    except (MechassayError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(
            f"{folder}: the run of another version cannot be reopened ({first_line(error)}); its"
            " records are read by ma.read_record."
        ) from None
    report = read_report(stored, cells)
    page = stored.path / "report.html"
    return replace(report, page=page if page.is_file() else None)


def read_report(folder: RunFolder, cells: Sequence[Cell]) -> Report:
    """Read the records and failures of cells, in their order. A record that is refused, as one that
    was edited, is a failure.
    """
    records: dict[str, Record] = {}
    failures: dict[str, Failure] = {}
    for cell in cells:
        try:
            record = folder.record_of(cell)
            failure = folder.failure(cell.name) if record is None else None
        except BadFile as error:
            record, failure = None, failure_of(dict(cell.labels), error)
        if record is not None:
            records[cell.name] = labelled(record, cell)
        elif failure is not None:
            own = {**failure.cell, **cell.labels}
            failures[cell.name] = failure.model_copy(update={"cell": own})
    names = [*records, *failures]
    return Report(list(records.values()), list(failures.values()), folder=folder.path, names=names)


def part_of(cells: Sequence[Cell], part: str) -> list[list[Cell]]:
    """Return part "3/16" of the cells, those with the same inputs in one list: the third list, the
    nineteenth and so on.

    Raises:
        BadUsage: the part is not written so.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise BadUsage(f"A part is written 3/16: the third of sixteen; got {part!r}.")
    return by_inputs(cells)[int(number) - 1 :: int(count)]
