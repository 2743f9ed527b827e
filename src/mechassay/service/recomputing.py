"""A cell of a service's board, computed again on this machine.

    1  the cell, its record and the submission's file are asked of the server; the record has to
       have the hash that the board shows
    2  the file is unpacked and read with the same distrust as by the server, under its track
    3  the cell of the job is run here, and the whole record is compared, see
       `leaderboard.recomputation`

What the server says is data: no path of it is used. The model is loaded by the name in the track.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.files import write_bytes
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.recomputation import Recomputation, compare_records
from mechassay.leaderboard.rules import rules_of
from mechassay.progress import BAR, Progress
from mechassay.records import Record, first_mistake, read_record
from mechassay.runs.execute import prepare, run_cells
from mechassay.runs.job import Cell
from mechassay.service.bundle import open_bundle
from mechassay.service.client import ServiceClient
from mechassay.service.track import ServiceTrack

SOURCE = "submission "


@dataclass(frozen=True, eq=False)
class ServedCell:
    """A cell of a service's board, with what it was computed from.

    Attributes:
        submission: its id.
        file: the uploaded file.
    """

    cell: BoardCell
    record: Record
    submission: str
    file: Path
    track: ServiceTrack


def fetch_cell(client: ServiceClient, board: str, name: str, folder: Path) -> ServedCell:
    """A cell by its name, and all that computes it again.

    Raises:
        UnknownName: the board has no such cell. BadUsage: it is about private examples, or its name
            is that of several. BadFile: the record is not the one that the board shows, or what
            the server says is none.
        ServerRefused: the server does not answer.
    """
    rules_of(board)
    told = client.asked(f"/api/boards/{board}.json")
    cell = _found(told.get("cells"), name)
    if cell.private:
        raise BadUsage(f"{name} is about private examples: only the server computes it.")
    content = client.content(f"/api/records/{cell.sha256}.json")
    if sha256(content).hexdigest() != cell.sha256:
        raise BadFile(f"{client.server}: the record of {name} is not the one that the board shows.")
    record = read_record(write_bytes(folder / "record.json", content))
    submission = cell.source.removeprefix(SOURCE)
    if not (submission.isascii() and submission.isalnum()):
        raise BadFile(f"{client.server}: does not say which submission {name} is of.")
    file = folder / "upload"
    write_bytes(file, client.content(f"/api/submissions/{submission}/file"))
    try:
        track = ServiceTrack.model_validate(client.asked("/api/track"))
    except ValidationError as error:
        raise BadFile(f"{client.server}: its track is none ({first_mistake(error)}).") from None
    return ServedCell(cell, record, submission, file, track)


def recompute_served(
    served: ServedCell, folder: Path, *, device: str = "cpu", progress: Progress = BAR
) -> Recomputation:
    """Compute a cell again in an empty folder, and compare the whole record.

    Raises:
        BadFile: the file is no submission that the track reads.
        BadUsage: no job of it makes the record, or the job does not end in one.
    """
    bundle = open_bundle(served.file, folder / "bundle", served.track)
    job, cell = _job_of(bundle.jobs(served.track), served.record)
    bench = prepare(job, folder / "run", device=device, progress=progress, here=True)
    begin = time.perf_counter()
    run_cells(job, [cell], bench)
    again = bench.folder.record(cell.name)
    if again is None:
        failure = bench.folder.failure(cell.name)
        reason = failure.message if failure else "no record"
        raise BadUsage(f"{served.cell.id} could not be computed again: {reason}")
    compared = compare_records(served.record, again)
    column = rules_of(served.cell.board).column(served.cell.column)
    number = again.measure(column.measure_of(served.cell.row_in_record))
    return Recomputation(
        cell=served.cell.full_id,
        sha256=served.cell.sha256,
        stored=served.cell.value,
        again=math.nan if number is None else number.value,
        largest=compared.largest,
        n=compared.n,
        differs=compared.differs,
        anew=False,
        seconds=round(time.perf_counter() - begin, 3),
        provenance=again.provenance,
    )


def _found(cells: object, name: str) -> BoardCell:
    if not isinstance(cells, list):
        raise BadFile("The board is none: it has no cells.")
    named = [each for each in cells if isinstance(each, dict)]
    # The conditions stand behind the last "@"; a row may have one too, before a size.
    ids = [str(each.get("id")) for each in named]
    found = [each for each, id_ in zip(named, ids, strict=True) if name in (id_, _without(id_))]
    if not found:
        raise UnknownName("cell", name, ids)
    if len(found) > 1:
        names = ", ".join(str(each["id"]) for each in found)
        raise BadUsage(f"{name} is measured under several conditions: name one of {names}.")
    try:
        own = {key: value for key, value in found[0].items() if key != "id"}
        return BoardCell.model_validate_json(json.dumps(own))
    except ValidationError as error:
        raise BadFile(f"The cell {name} is none ({first_mistake(error)}).") from None


def _without(name: str) -> str:
    """A cell's name without its conditions."""
    return name.rpartition("@")[0]


def _job_of(jobs: list[Any], record: Record) -> tuple[Any, Cell]:
    """The job and the cell that make a record."""
    for job in jobs:
        for cell in job.cells():
            if cell.of.items() <= record.cell.items():
                return job, cell
    raise BadUsage("No job of the submission makes this record.")
