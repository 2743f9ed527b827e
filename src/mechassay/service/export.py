"""The boards of a service as a folder of pages that need no server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mechassay.errors import BadUsage
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.facts import CellNotes
from mechassay.leaderboard.folder import write_pages
from mechassay.service.boards import ServedBoards
from mechassay.service.database import Database
from mechassay.service.settings import ServiceSettings
from mechassay.service.store import Store
from mechassay.service.track import ServiceTrack


def export_boards(
    settings: ServiceSettings, folder: Path, address: str = ""
) -> Mapping[str, Board]:
    """Write the pages, the data and the public records; the boards that these are of.

    Args:
        address: of the server, for the commands that compute a cell again.

    Raises:
        BadUsage: no submission is done.
        DatabaseAway, StoreAway: database or store do not answer.
    """
    db = Database(settings.database)
    try:
        db.upgrade()
        kept = settings.folder / "records"
        track = ServiceTrack.read(settings.track)
        boards = ServedBoards(db, Store.of(settings.store), kept, track, address)
        found = boards.newer()
    finally:
        db.close()
    if found is None or not found.pages.boards:
        raise BadUsage("No submission is done: there is nothing to export.")
    pages = found.pages

    def notes(cell: BoardCell) -> CellNotes:
        # Links to pages of the server lead nowhere from here.
        told = pages.notes(cell).commands if pages.notes and address else ()
        return CellNotes((("submission", found.submissions[cell.row]),), told)

    plain = replace(pages, served=False, nav=None, notes=notes)
    write_pages(plain, folder)
    for sha256 in sorted(found.public):
        shutil.copyfile(boards.record_file(sha256), folder / "records" / f"{sha256}.json")
    return plain.boards
