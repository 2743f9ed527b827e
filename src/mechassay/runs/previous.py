"""Folders of runs that an earlier version made, whose plan does not say what kind of run it is.

    circuits    records/<method>.json, scores/<method>.safetensors, failures.json
    suite       cells/<model>--<task>/ with a folder like that in each
    accuracy    records/<model>--<task>.json, failures.json

They are read and reported; they are not gone on with.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile
from mechassay.records import Failure, Record
from mechassay.runs.folder import RunFolder, read_json
from mechassay.runs.job import JOBS, Cell, Results, job_of

SINGULAR = {"models": "model", "tasks": "task"}


def opened(path: Path) -> tuple[Any, Results]:
    """The job of a folder and all that it holds.

    Raises:
        BadFile: no folder of a run, or a file of it is damaged.
    """
    folder = RunFolder.existing(path)
    plan = folder.plan()
    if "kind" in plan:
        job = job_of(plan)
        return job, Results.stored(job, folder)
    parts = sorted((path / "cells").glob("*/")) or [path]
    done = [pair for part in parts for pair in _done(RunFolder(part), path)]
    left = tuple((Cell("", row.cell), row) for row in _failures(path / "failures.json"))
    if not done and (path / "repeats").is_dir():
        raise BadFile(
            f"{path}: a run of robust discovery by an earlier version; its report.html can be read,"
            " but not be made again."
        )
    if not done:
        raise BadFile(f"{path}: the run has no finished cells yet.")
    kind = {"faithfulness": "circuits"}.get(done[0][1].kind, done[0][1].kind)
    return _job(kind, plan), Results(folder, tuple(done), left)


def _done(part: RunFolder, path: Path) -> list[tuple[Cell, Record]]:
    done: list[tuple[Cell, Record]] = []
    group = "" if part.path == path else part.path.name
    for file in sorted((part.path / "records").glob("*.json")):
        record = part.record(file.stem)
        assert record is not None
        name = str((part.path / "x").relative_to(path).parent / file.stem)
        done.append((Cell(name, {"method": file.stem}, group, {"method": file.stem}), record))
    return done


def _failures(file: Path) -> list[Failure]:
    if not file.is_file():
        return []
    try:
        return [Failure.model_validate(row) for row in read_json(file, "list of failures", list)]
    except ValidationError as error:
        raise BadFile(f"{file}: not a list of failures ({error.errors()[0]['msg']}).") from None


def _job(kind: str, plan: dict[str, Any]) -> Any:
    """A job with the settings of an old plan, for its pages alone."""
    known = {field.name for field in dataclasses.fields(JOBS.load(kind))}
    named = dict(plan)
    for name, single in SINGULAR.items():
        if single in named and name in known:
            named[name] = [named.pop(single)]
    return job_of({"kind": kind, **{key: named[key] for key in named if key in known}})
