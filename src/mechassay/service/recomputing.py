"""A cell of a service's board, computed again on this machine.

    1  the cell, its record and the submission's file are asked of the server, or read from the
       folder that it exported; the record has to have the hash that the board shows, and what else
       the cell shows has to follow from it (`leaderboard.shown`)
    2  the file is unpacked and read with the same distrust as by the server, under its track; of a
       row of the server's static board, plan and artefacts are asked for in its place, and read as
       those of a static board here (`leaderboard.plans`)
    3  the cell of the job is run here, and the whole record is compared, see
       `leaderboard.recomputation`

What server or folder say is data: no path of it is used. The model is loaded by the name in the
track, which may stand for no folder or file of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.files import file_hash, write_bytes
from mechassay.leaderboard.artefacts import SHA256, artefact_file, inside
from mechassay.leaderboard.cells import BoardCell, told_apart, without_conditions
from mechassay.leaderboard.foreign_plan import is_local, is_path
from mechassay.leaderboard.plans import made_on_board, plan_file, read_plan
from mechassay.leaderboard.recomputation import (
    MadeRecord,
    Recomputation,
    check_public,
    recompute_made,
    shown_record,
)
from mechassay.leaderboard.rules import rules_of
from mechassay.leaderboard.shown import CalledOtherwise
from mechassay.leaderboard.stored import TRACK, StoredBoards
from mechassay.progress import BAR, Progress
from mechassay.records import Record, first_mistake, read_record
from mechassay.runs.job import Cell
from mechassay.service.adversarial import row_ending
from mechassay.service.bundle import open_bundle
from mechassay.service.client import ServiceClient
from mechassay.service.lookups import ENDINGS, SUBMISSION_ID, row_name
from mechassay.service.other_track import other_track
from mechassay.service.track import ServiceTrack
from mechassay.submissions import read_json

FILES, KEPT_FILES = "files", "data/files.json"
"""Of an export: the submitted files, their names and hashes."""


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
    return _fetched(client, _asked_cell(client, board, name), folder)


def recompute_asked(
    client: ServiceClient,
    board: str,
    name: str,
    folder: Path,
    *,
    device: str = "cpu",
    progress: Progress = BAR,
) -> tuple[Recomputation, str]:
    """Compute a cell that a server shows again; what came of it, and the submission, if any.

    Args:
        folder: an empty one.

    Raises:
        UnknownName, BadUsage, BadFile, ServerRefused: see `fetch_cell` and `made_on_board`.
    """
    cell = _asked_cell(client, board, name)
    if cell.submission:
        served = _fetched(client, cell, folder)
        return recompute_served(served, folder, device=device, progress=progress), cell.submission
    made = fetch_kept(client, cell, folder)
    return recompute_made(cell, made, folder / "run", device=device, progress=progress), ""


def fetch_kept(client: ServiceClient, cell: BoardCell, folder: Path) -> MadeRecord:
    """A cell of the static board that a server shows, with all that computes it again.

    Raises:
        BadUsage, BadFile: see `made_on_board`. ServerRefused: the server does not have it.
    """
    check_public(cell)
    board = folder / "board"
    write_bytes(board / "records" / f"{cell.sha256}.json", _record_of(client, cell))
    plan = client.content(f"/api/plans/{cell.sha256}.json")
    write_bytes(plan_file(board, cell.sha256), plan)
    for digest in dict.fromkeys(read_plan(board, cell.sha256).hashes):
        packed = client.content(f"/api/artefacts/{digest}.gz")
        write_bytes(artefact_file(board, digest), packed)
    models = _public_names(_track(client.asked("/api/track"), client.server))
    return made_on_board(cell, board, folder / "files", models)


def _asked_cell(client: ServiceClient, board: str, name: str) -> BoardCell:
    rules_of(board)
    told = client.asked(f"/api/boards/{board}.json")
    cell = _found(told.get("cells"), name)
    if cell.board != board:
        raise BadFile(f"{client.server}: {name} is of the board {cell.board}.")
    if cell.private:
        raise BadUsage(f"{name} is about private examples: only the server computes it.")
    return cell


def _record_of(client: ServiceClient, cell: BoardCell) -> bytes:
    """The bytes of a cell's record."""
    if not SHA256.fullmatch(cell.sha256):
        raise BadFile(f"{client.server}: {cell.id} has no record.")
    content = client.content(f"/api/records/{cell.sha256}.json")
    if sha256(content).hexdigest() != cell.sha256:
        said = f"the record of {cell.full_id} is not the one that the board shows"
        raise BadFile(f"{client.server}: {said}.")
    return content


def _fetched(client: ServiceClient, cell: BoardCell, folder: Path) -> ServedCell:
    record = read_record(write_bytes(folder / "record.json", _record_of(client, cell)))
    if not SUBMISSION_ID.fullmatch(cell.submission):
        raise BadFile(f"{client.server}: does not say which submission {cell.full_id} is of.")
    file = folder / "upload"
    write_bytes(file, client.content(f"/api/submissions/{cell.submission}/file"))
    track = _track(client.asked("/api/track"), client.server)
    return ServedCell(cell, record, cell.submission, file, track)


def exported_cell(stored: StoredBoards, cell: BoardCell) -> ServedCell:
    """A cell of boards that a service exported, and all that computes it again.

    Raises:
        BadUsage: it is about private examples. BadFile: the record or the file is not there, or not
            the one that the board shows; the track is none.
    """
    check_public(cell)
    board = stored.folder
    record = shown_record(cell, inside(board, stored.record_file(cell.sha256)))
    if not SUBMISSION_ID.fullmatch(cell.submission):
        raise BadFile(f"{board}: does not say which submission {cell.id} is of.")
    told = _told(board, cell.submission)
    name, digest = str(told.get("name")), str(told.get("sha256"))
    if name not in [f"{cell.submission}{ending}" for ending in ENDINGS]:
        raise BadFile(f"{board}: has no file of the submission {cell.submission}.")
    file = inside(board, board / FILES / name)
    if not file.is_file():
        raise BadFile(f"{file}: is not there; the boards were exported without files.")
    if file_hash(file) != digest:
        raise BadFile(f"{file}: is not the file of the submission; it was changed since.")
    track = _track(read_json(inside(board, board / TRACK)), str(board))
    return ServedCell(cell, record, cell.submission, file, track)


def exported_models(board: Path) -> dict[str, str]:
    """What an export calls models, by their names in records.

    Raises:
        BadFile: the track is none.
    """
    return _public_names(_track(read_json(inside(board, board / TRACK)), str(board)))


def made_by_submission(served: ServedCell, folder: Path) -> MadeRecord:
    """The record of a cell, with the job of its submission that makes it.

    Args:
        folder: an empty one, for what the submission unpacks to.

    Raises:
        BadFile: the file is no submission that the track reads. BadUsage: the record was measured
            under another track; no job of the submission makes it.
    """
    if other := other_track(served.record, served.track):
        raise BadUsage(
            f"{served.cell.id} was measured under another track ({other}): to compute it again,"
            " that track is needed."
        )
    bundle = open_bundle(served.file, folder, served.track)
    job, cell = _job_of(bundle.jobs(served.track), served.record)
    row_end = row_name("", served.submission, row_ending(served.record))
    called = CalledOtherwise(_public_names(served.track), row_end)
    return MadeRecord(served.record, job, cell, given=True, called=called)


def recompute_served(
    served: ServedCell, folder: Path, *, device: str = "cpu", progress: Progress = BAR
) -> Recomputation:
    """Compute a cell again in an empty folder, and compare the whole record.

    Raises:
        BadFile, BadUsage: see `made_by_submission`; the job does not end in a record.
    """
    made = made_by_submission(served, folder / "bundle")
    return recompute_made(served.cell, made, folder / "run", device=device, progress=progress)


def _told(board: Path, submission: str) -> Mapping[str, Any]:
    """What an export says of the file of a submission."""
    told = read_json(inside(board, board / KEPT_FILES)) if (board / KEPT_FILES).is_file() else {}
    file = told.get(submission)
    return file if isinstance(file, dict) else {}


def _track(told: dict[str, Any], where: str) -> ServiceTrack:
    """The track of a server, whose models are no paths of this machine."""
    try:
        track = ServiceTrack.model_validate(told)
    except ValidationError as error:
        raise BadFile(f"{where}: its track is none ({first_mistake(error)}).") from None
    for name, about in track.models.items():
        load = track.loaded_from(name)
        if is_path(load) or is_local(load):
            raise BadFile(f"{where}: its track loads {name} from a path or folder ({load!r}).")
        for task in (*about.tasks, *about.gym):
            if is_path(task):
                raise BadFile(f"{where}: its track has a task that is a path ({task!r}).")
    return track


def _public_names(track: ServiceTrack) -> dict[str, str]:
    return {track.loaded_from(name): name for name in track.models}


def _found(cells: object, name: str) -> BoardCell:
    if not isinstance(cells, list):
        raise BadFile("The board is none: it has no cells.")
    named = [each for each in cells if isinstance(each, dict)]
    ids = [str(each.get("id")) for each in named]
    found = [
        each for each, id_ in zip(named, ids, strict=True) if name in (id_, without_conditions(id_))
    ]
    if not found:
        raise UnknownName("cell", name, told_apart(ids))
    if len(found) > 1:
        names = ", ".join(str(each["id"]) for each in found)
        raise BadUsage(f"{name} is measured under several conditions: name one of {names}.")
    try:
        own = {key: value for key, value in found[0].items() if key != "id"}
        cell = BoardCell.model_validate_json(json.dumps(own))
    except ValidationError as error:
        raise BadFile(f"The cell {name} is none ({first_mistake(error)}).") from None
    if cell.full_id != found[0]["id"]:
        raise BadFile(f"The cell {name} is another: {cell.full_id}.")
    return cell


def _job_of(jobs: list[Any], record: Record) -> tuple[Any, Cell]:
    """The job and the cell that make a record."""
    for job in jobs:
        for cell in job.cells():
            if cell.of.items() <= record.cell.items():
                return job, cell
    raise BadUsage("No job of the submission makes this record.")
