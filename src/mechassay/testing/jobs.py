"""What every job has to satisfy; authors of jobs may run it on their own.

from mechassay.testing import check_job

check_job(MyJob(models=("truth-ioi",)), tmp_path)
"""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mechassay.progress import SILENT
from mechassay.records import Failure
from mechassay.runs.execute import Executor, Here, Processes, batches_of, prepare, run
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import JOBS, Results, job_of, options_of
from mechassay.testing.records import check_record


def check_job(job: Any, folder: Path, *, workers: int = 2) -> Results:
    """Raise AssertionError at the first promise that the job breaks; its results otherwise.

    Args:
        folder: an empty folder to run in.
        workers: processes of the second run; 0 leaves it out.
    """
    check_plan(job)
    threads = torch.get_num_threads()
    # As many as each worker will have: sums depend on it in their last bits.
    torch.set_num_threads(max(1, threads // max(1, workers)))
    try:
        return _checked(job, folder, workers)
    finally:
        torch.set_num_threads(threads)


def _checked(job: Any, folder: Path, workers: int) -> Results:
    results = run(job, folder / "here", progress=SILENT)
    assert not results.failures, f"a cell has no result: {results.failures[0].message}"
    assert len(results.records) == len(job.cells()), "every cell ends in a record"
    check_plan_file(job, results.folder)
    check_record(results.records[0])
    before = _times(folder / "here")
    again = run(job, folder / "here", progress=SILENT)
    assert _times(folder / "here") == before, "what is done is not done again"
    assert numbers(again) == numbers(results), "stored results are read as they were"
    if workers:
        elsewhere = run(job, folder / "there", executor=Processes(workers), progress=SILENT)
        assert numbers(elsewhere) == numbers(results), "other processes give other results"
    check_taken_up(job, folder / "part", numbers(results), Here())
    check_without_results(job, folder / "none")
    return results


def check_plan(job: Any) -> None:
    """A frozen dataclass whose fields are options, and cells that are told apart."""
    params: Any = getattr(type(job), "__dataclass_params__", None)
    assert params is not None and params.frozen, "jobs are values: frozen dataclasses"
    assert set(job.grows) <= {field.name for field in dataclasses.fields(job)}
    names = [cell.name for cell in job.cells()]
    assert names, "a job has cells"
    assert len(set(names)) == len(names), "cells have names of their own"
    for name in names:
        assert ".." not in Path(name).parts and not Path(name).is_absolute(), name
    batches = [cell.shares for cells in batches_of(job) for cell in cells[:1]]
    assert len(set(batches)) == len(batches), "cells that share something stand together"


def check_plan_file(job: Any, folder: RunFolder) -> None:
    """The stored plan is the job again, without what is secret."""
    plan = folder.plan()
    secret = {name for name, about in options_of(job).items() if about.role == "secret"}
    assert not secret & set(plan), "secrets are never stored"
    if job.kind in JOBS.names():
        assert job_of(plan, **{name: getattr(job, name) for name in secret}) == job


def check_without_results(job: Any, folder: Path) -> None:
    """Tables and page of a run whose cells all failed."""
    folder.mkdir(parents=True)
    (cell, *_) = job.cells()
    failure = Failure(cell=dict(cell.of), error="NonFinite", message="a loss is NaN")
    nothing = Results(RunFolder(folder), (), ((cell, failure),))
    console = Console(file=io.StringIO(), width=200)
    job.show(nothing, console)
    page = job.report(nothing)
    if page.suffix == ".html":
        assert "a loss is NaN" in page.read_text("utf-8"), "the page does not say what failed"


def check_taken_up(job: Any, folder: Path, whole: dict[str, Any], executor: Executor) -> None:
    """A run that ended after its first batch is taken up."""
    bench = prepare(job, folder, progress=SILENT)
    executor.map(job, batches_of(job)[:1], bench)
    assert numbers(run(job, folder, progress=SILENT)) == whole, "a run that ended early"


def numbers(results: Results) -> dict[str, Any]:
    """Everything of the records but when and how fast they were made, by cell."""
    found: dict[str, Any] = {}
    for cell, record in results.done:
        plain = json.loads(record.model_dump_json())
        for name in ("provenance", "realised"):
            plain.pop(name)
        found[cell.name] = plain
    return found


def _times(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in sorted(folder.glob("records/**/*.json"))}
