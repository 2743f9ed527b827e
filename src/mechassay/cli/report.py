"""`mechassay report DIR`: write a run's report again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(folder: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Print a run's table and write its report again from the stored records and scores."""
    from rich.console import Console

    from mechassay.circuits.node_scores import load_scores
    from mechassay.errors import BadFile
    from mechassay.report.reports import print_report
    from mechassay.runs import accuracy, adversarial
    from mechassay.runs.adversarial_records import KIND
    from mechassay.runs.circuits import write_report
    from mechassay.runs.folder import RunFolder

    run = RunFolder.existing(folder)
    found = [run.record(file.stem) for file in sorted((folder / "records").glob("*.json"))]
    records = [record for record in found if record is not None]
    if not records and (folder / "cells").is_dir():
        raise BadFile(
            f"{folder}: holds a suite; the same `mechassay suite run` again writes its report."
        )
    if not records:
        raise BadFile(f"{folder}: the run has no finished cells yet.")
    console = Console()
    if records[0].kind == "accuracy":
        print_report(records, run.failures(), console)
        console.print(
            f"Report: {accuracy.write_report(run, records, run.failures())}", soft_wrap=True
        )
        return
    if records[0].kind == KIND:
        ordered = adversarial.stored_records(run)
        print_report(ordered, console=console)
        console.print(f"Report: {adversarial.write_report(run, ordered)}", soft_wrap=True)
        return
    scores = {
        file.stem: load_scores(file) for file in sorted((folder / "scores").glob("*.safetensors"))
    }
    print_report(records, run.failures(), console)
    console.print(f"Report: {write_report(run, records, scores)}", soft_wrap=True)
