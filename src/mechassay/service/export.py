"""The boards of a service as a folder of pages that need no server.

All is written to a new folder, which then takes the place of the old one: what was withdrawn since
is in none of its files. `data/submissions.json` has what was declared of each submission.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from mechassay.errors import BadUsage
from mechassay.files import write_text
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.facts import CellNotes
from mechassay.leaderboard.folder import write_pages
from mechassay.leaderboard.stored import StoredBoards
from mechassay.service.boards import BoardsSnapshot, ServedBoards
from mechassay.service.database import Database
from mechassay.service.lookups import find_submission
from mechassay.service.settings import ServiceSettings
from mechassay.service.store import Store
from mechassay.service.track import ServiceTrack

PAGE = "index.html"


def export_boards(
    settings: ServiceSettings, folder: Path, address: str = ""
) -> Mapping[str, Board]:
    """Write the pages, the data and the public records; the boards that these are of.

    Args:
        folder: a new one, an empty one, or one that was exported before.
        address: of the server, for the commands that compute a cell again.

    Raises:
        BadUsage: no submission is done, or the folder has something else.
        BadFile: the track or the static board cannot be read.
        DatabaseAway, StoreAway: database or store do not answer.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / PAGE).is_file():
        raise BadUsage(f"{folder}: has files that are no board ({PAGE}); name another folder.")
    db = Database(settings.database)
    try:
        db.upgrade()
        kept = settings.folder / "records"
        track = ServiceTrack.read(settings.track)
        beside = StoredBoards.read(settings.board) if settings.board else None
        boards = ServedBoards(db, Store.of(settings.store), kept, track, address, beside)
        found = boards.newer()
        if found is None or not found.pages.boards:
            raise BadUsage("No submission is done: there is nothing to export.")
        told = [find_submission(db, each).plain() for each in found.submissions.values()]
    finally:
        db.close()
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    new = Path(mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}-"))
    try:
        pages = new / "new"
        _write(found, boards, pages, address)
        write_text(pages / "data" / "submissions.json", json.dumps(told, indent=1))
        _swap(pages, folder, new / "old")
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return found.pages.boards


def _swap(new: Path, folder: Path, old: Path) -> None:
    """Put a folder in the place of another, which stays if that fails."""
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(new, folder)
    except OSError:
        if old.exists():
            os.replace(old, folder)
        raise


def _write(found: BoardsSnapshot, boards: ServedBoards, folder: Path, address: str) -> None:
    """Write pages and records to a new folder."""
    pages = found.pages

    def notes(cell: BoardCell) -> CellNotes:
        # Links to pages of the server lead nowhere from here.
        submission = found.submissions.get(cell.row)
        if submission is None:
            return pages.notes(cell) if pages.notes else CellNotes()
        told = pages.notes(cell).commands if pages.notes and address else ()
        return CellNotes((("submission", submission),), told)

    write_pages(replace(pages, served=False, nav=None, notes=notes), folder)
    for sha256 in sorted(found.public):
        shutil.copyfile(boards.record_file(sha256), folder / "records" / f"{sha256}.json")
