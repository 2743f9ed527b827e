"""`mechassay report DIR`: the pages of a run, or an index over runs; `run-cells`: a part of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.command import CompiledOption, Tf32Option
from mechassay.utils.display import counted


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or one that holds runs.")],
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables", help="A folder for every table of the page as CSV and LaTeX (booktabs)."
        ),
    ] = None,
) -> None:
    """Print a run's tables and write its report again; over several runs, write an index.

    The index has a row for each result, which leads to its run's report. It can be sorted and
    filtered.
    """
    from mechassay.cli.execution import show, stored_experiment
    from mechassay.errors import BadFile
    from mechassay.results.report import reports_below, write_each_table, write_index
    from mechassay.runs.folder import RunFolder
    from mechassay.runs.run import read_report

    if not (folder / "plan.json").is_file() and next(reports_below(folder), None) is not None:
        typer.echo(f"Index: {write_index(folder)}")
        return
    experiment = stored_experiment(folder)
    stored = read_report(RunFolder(folder), experiment.cells())
    if not stored.records:
        refused = [
            failure.message for failure in stored.failures if failure.error == BadFile.__name__
        ]
        raise BadFile(refused[0] if refused else f"{folder}: the run has no finished cells yet.")
    if tables is not None:
        written = write_each_table(tables, stored)
        typer.echo(f"{tables}: {counted(len(written), 'table')}, as CSV and LaTeX")
    show(experiment, replace(stored, page=experiment.write(stored)))


def run_cells(
    folder: Annotated[Path, typer.Argument(help="A folder with plan.json (--only-plan).")],
    part: Annotated[str, typer.Option("--part", help="3/16: the third of sixteen parts.")] = "1/1",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")] = "cpu",
    tf32: Tf32Option = "auto",
    compiled: CompiledOption = False,
    private_seed: Annotated[
        int | None, typer.Option("--private-seed", help="Seed of the private split; never stored.")
    ] = None,
) -> None:
    """Run a part of the cells of a folder, as in an array job; `mechassay report` shows all."""
    from mechassay.cli.execution import stored_experiment
    from mechassay.models.computing import computing
    from mechassay.runs.executors import Here
    from mechassay.runs.run import opened, part_of

    secrets = {} if private_seed is None else {"private_seed": private_seed}
    experiment = stored_experiment(folder, **secrets)
    # The parts are those of the whole experiment, whatever is done already.
    worker = opened(experiment, folder, device=device)
    mine = part_of(worker.cells, part)
    for note in worker.notes:
        typer.echo(f"note: {note}", err=True)
    with computing(tf32, compiled=compiled):
        Here().map(experiment, mine, worker)
    failed = [
        failure
        for cells in mine
        for cell in cells
        if (failure := worker.folder.failure(cell.name)) and failure.status == "failed"
    ]
    n = sum(map(len, mine))
    typer.echo(f"{folder}: part {part}, {counted(n, 'cell')}, {len(failed):,} failed")
    for failure in failed:
        typer.echo(f"mechassay: {', '.join(failure.cell.values())}: {failure.message}", err=True)
    if failed:
        raise typer.Exit(1)
