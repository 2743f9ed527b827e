"""Recompute a cell of a board: the same command, for this cell alone, in a folder of its own.

    1  the record is what the board says: the hash of its bytes is compared
    2  the plan of its run is cut down to the cell
    3  what the method found (a file of scores) is copied, so that the number of this artefact is
       recomputed; `anew` lets the method find it again
    4  the job runs, and each result of the new record is compared with the stored one

The difference may be `TOLERANCE` of the larger of 1 and the stored number: in fp32 on a CPU the
numbers of two machines agree so far. What was found is data, and nothing of it is executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.leaderboard.cells import RECORDS, BoardCell
from mechassay.leaderboard.rules import rules_of
from mechassay.progress import BAR, Progress
from mechassay.records import Measure, Number, Provenance, Stored, read_record
from mechassay.runs.execute import Here, done, prepare
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import job_of

TOLERANCE = 1e-6


class Recomputation(Stored):
    """What came of recomputing a cell.

    Attributes:
        cell, sha256: of the board, and of the record that it shows.
        stored, again: the number on the board, and the new one.
        largest: the largest difference of any result of the record, as a share of the larger of
            1 and the stored number; `n` results were compared.
        anew: whether the method found its scores again.
    """

    cell: str
    sha256: str
    stored: Number
    again: Number
    largest: Number
    n: int
    anew: bool
    seconds: float
    provenance: Provenance
    tolerance: float = Field(default=TOLERANCE)

    @property
    def agrees(self) -> bool:
        """Whether all results are the stored ones."""
        return self.n > 0 and self.largest <= self.tolerance


def recompute(
    cell: BoardCell,
    runs: Path,
    folder: Path,
    *,
    anew: bool = False,
    device: str = "cpu",
    progress: Progress = BAR,
) -> Recomputation:
    """Recompute a cell in an empty folder.

    Args:
        runs: the folder of runs that the board was made of.
        folder: where the new run goes.

    Raises:
        BadFile: the record is not there, or not the one that the board shows.
        BadUsage: a number as reported, which nothing recomputes; the cell did not end in a record.
    """
    if cell.origin == "as reported":
        raise BadUsage(f"{cell.id} is a number as reported ({cell.source}): nothing recomputes it.")
    file = runs / cell.file
    if not file.is_file():
        raise BadFile(f"{file}: the record of {cell.id} is not there.")
    if hashlib.sha256(file.read_bytes()).hexdigest() != cell.sha256:
        raise BadFile(f"{file}: is not the record that the board shows; it was changed since.")
    source = RunFolder(_run_of(file))
    name = file.relative_to(source.path / "records").with_suffix("").as_posix()
    job = only(job_of(source.plan()), name)
    bench = prepare(job, folder, device=device, progress=progress, here=True)
    scores = source.scores_file(name)
    found_before = scores.is_file() and not anew
    if found_before:
        copy = bench.folder.scores_file(name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scores, copy)
    begin = time.perf_counter()
    results = done(job, bench, Here())
    again = results.folder.record(name)
    if again is None:
        reason = results.failures[0].message if results.failures else "no record"
        raise BadUsage(f"{cell.id} could not be recomputed: {reason}")
    stored = read_record(file)
    differences = {
        measure.name: _difference(measure.value, again.measure(measure.name))
        for measure in stored.measures
        if measure.of == "result"
    }
    measure = rules_of(cell.board).column(cell.column).measure_of(cell.row)
    number = again.measure(measure)
    return Recomputation(
        cell=cell.id,
        sha256=cell.sha256,
        stored=cell.value,
        again=math.nan if number is None else number.value,
        largest=max(differences.values(), default=math.nan),
        n=len(differences),
        anew=not found_before,
        seconds=round(time.perf_counter() - begin, 3),
        provenance=again.provenance,
    )


def only(job: Any, cell: str) -> Any:
    """The job with as little in each of its growing lists as still has the cell.

    Raises:
        BadUsage: the job has no such cell.
    """
    if cell not in {each.name for each in job.cells()}:
        raise BadUsage(f"The plan of the run has no cell {cell!r}.")
    for name in job.grows:
        for value in getattr(job, name):
            less = dataclasses.replace(job, **{name: (value,)})
            if cell in _cells(less):
                job = less
                break
        else:
            less = dataclasses.replace(job, **{name: ()})
            job = less if cell in _cells(less) else job
    return job


def _cells(job: Any) -> set[str]:
    """Names of cells; none of a job that cannot list them without what was left out."""
    try:
        return {each.name for each in job.cells()}
    except MechassayError:
        return set()


def _difference(stored: float, again: Measure | None) -> float:
    """As a share of the larger of 1 and the stored number; infinite where only one is defined."""
    if again is None or math.isnan(stored) != math.isnan(again.value):
        return math.inf
    if math.isnan(stored):
        return 0.0
    return abs(stored - again.value) / max(1.0, abs(stored))


def _run_of(file: Path) -> Path:
    """The folder of the run that a record belongs to."""
    for folder in file.parents:
        if folder.name == RECORDS and (folder.parent / "plan.json").is_file():
            return folder.parent
    raise BadFile(f"{file}: belongs to no run (no plan.json beside its folder {RECORDS}).")
