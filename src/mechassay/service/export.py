"""The boards of a service as a folder of pages that need no server.

    as `leaderboard.folder` has them: boards, rows, data, records
    submissions/ID.html       what the server's page says of a submission, with curves and circuits
    files/ID.zip, .tar(.gz)   the bytes that were handed in
    track.json                what is evaluated
    data/submissions.json     what was declared of each submission
    data/files.json           the name, hash and size of each file

All is written to a new folder, which then takes the place of the old one: what was withdrawn since
is in none of its files. With the files, each public cell is computed again from the folder alone
(`recomputing`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from mechassay.errors import BadUsage
from mechassay.files import file_hash, write_text
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.facts import CellNotes
from mechassay.leaderboard.folder import HERE, RECOMPUTE, SAID_HERE, kept_notes, write_pages
from mechassay.leaderboard.links import link
from mechassay.leaderboard.plans import copy_plan, plan_file
from mechassay.leaderboard.stored import TRACK
from mechassay.progress import BAR, Progress
from mechassay.report.page import render
from mechassay.runs.job import cell_name
from mechassay.service.boards import BoardsSnapshot
from mechassay.service.figures import submission_figures
from mechassay.service.lookups import (
    NotFound,
    SubmissionView,
    done_submissions,
    file_ending,
    find_submission,
)
from mechassay.service.pages import (
    SubmissionPlaces,
    again_command,
    figure_sections,
    submission_page,
    submissions_section,
)
from mechassay.service.parts import ServiceParts
from mechassay.service.recomputing import FILES, KEPT_FILES
from mechassay.service.settings import ServiceSettings

PAGE, SUBMISSIONS = "index.html", "submissions"


@dataclass(frozen=True, eq=False)
class ExportedBoards:
    """What was written.

    Attributes:
        submissions: how many have a page.
        files: what was handed in, by submission: name, SHA-256 and bytes.
    """

    boards: Mapping[str, Board]
    submissions: int
    files: Mapping[str, Mapping[str, Any]]

    @property
    def n_bytes(self) -> int:
        """Of all files that were handed in."""
        return sum(int(each["bytes"]) for each in self.files.values())


def export_boards(
    settings: ServiceSettings,
    folder: Path,
    address: str = "",
    *,
    with_files: bool = True,
    progress: Progress = BAR,
) -> ExportedBoards:
    """Write the pages, the data, the public records and the files; what was written.

    Args:
        folder: a new one, an empty one, or one that was exported before.
        address: of the server, for the commands that compute a cell again.
        with_files: whether what was handed in is copied, by which cells are computed again.

    Raises:
        BadUsage: no submission is done, one was withdrawn meanwhile, or the folder has something
            else.
        BadFile: the track or the static board cannot be read.
        DatabaseAway, StoreAway: database or store do not answer.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / PAGE).is_file():
        raise BadUsage(f"{folder}: has files that are no board ({PAGE}); name another folder.")
    parts = ServiceParts(settings, address)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    new = Path(mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}-"))
    try:
        parts.db.upgrade()
        found = parts.boards.newer()
        if found is None or not found.pages.boards:
            raise BadUsage("No submission is done: there is nothing to export.")
        parts.boards.snapshot = found
        pages = new / "new"
        try:
            export = _Export.of(parts, found, pages, with_files)
            export.write(progress)
            for view in export.views:
                find_submission(parts.db, view.submission.id)
        except NotFound:
            raise BadUsage(
                "A submission was withdrawn while the boards were written, or ended just then:"
                " export them again."
            ) from None
        _swap(pages, folder, new / "old")
    finally:
        parts.db.close()
        shutil.rmtree(new, ignore_errors=True)
    return ExportedBoards(found.pages.boards, len(export.views), export.files)


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


@dataclass(frozen=True, eq=False)
class _Export:
    """What is written to a new folder.

    Attributes:
        views: of the submissions of the boards.
        files: name, hash and size of what was handed in, by submission.
    """

    parts: ServiceParts
    found: BoardsSnapshot
    folder: Path
    views: Sequence[SubmissionView]
    files: Mapping[str, Mapping[str, Any]]

    @staticmethod
    def of(parts: ServiceParts, found: BoardsSnapshot, folder: Path, with_files: bool) -> _Export:
        """The submissions that were done when the boards were made; their files are copied."""
        _, last, _, _ = found.generation
        # Not those that ended since: the boards do not have them.
        views = done_submissions(parts.db, last or datetime.now(UTC))
        if set(found.submissions.values()) - {view.submission.id for view in views}:
            raise NotFound("submission")  # The boards have a row of one that is gone.
        files = {
            view.submission.id: _copied(parts, view, folder / FILES)
            for view in (views if with_files else ())
        }
        return _Export(parts, found, folder, views, files)

    def write(self, progress: Progress) -> None:
        """Write pages, data and records."""
        pages = replace(self.found.pages, served=False, nav=_nav, notes=self._notes)
        boards, beside = self.parts.boards, self.parts.settings.board
        (self.folder / "records").mkdir(parents=True)
        for sha256 in sorted(self.found.public):
            shutil.copyfile(boards.record_file(sha256), self.folder / "records" / f"{sha256}.json")
            if beside is not None:
                copy_plan(sha256, beside, self.folder)
        write_pages(pages, self.folder)
        with progress.track("submissions", len(self.views)) as advance:
            for view in self.views:
                write_text(
                    self.folder / SUBMISSIONS / f"{view.submission.id}.html", self._page(view)
                )
                advance(1)
        newest = sorted(self.views, key=lambda each: each.submission.created, reverse=True)
        listed = submissions_section(newest, len(newest), lambda each: f"{each}.html")
        write_text(
            self.folder / SUBMISSIONS / PAGE, render("Submissions", [listed], nav=_nav("../"))
        )
        told = [view.plain() for view in self.views]
        for name, data in (
            (f"data/{SUBMISSIONS}.json", told),
            (KEPT_FILES, self.files),
            (TRACK, self.parts.public_track()),
        ):
            write_text(self.folder / name, json.dumps(data, indent=1))

    def _page(self, view: SubmissionView) -> str:
        held = view.submission
        file = self.files.get(held.id)

        def on_board(board: str, row: str) -> bool:
            found = self.found.pages.boards.get(board)
            return found is not None and row in found.rows()

        def place(board: str, row: str) -> str:
            page = f"../rows/{board}/{quote(cell_name(row))}.html"
            return page if on_board(board, row) else ""

        def again(board: str, row: str) -> str:
            if on_board(board, row) and file:
                return again_command(board, "--board", HERE)
            if on_board(board, row) and self.parts.address:
                return again_command(board, "--server", self.parts.address)
            return ""

        places = SubmissionPlaces(
            f"../{FILES}/{file['name']}" if file else "", place, command=again, nav=_nav("../")
        )
        records, drawings = submission_figures(self.parts, view)
        of_key = self.parts.boards.records_of(view)
        return submission_page(view, of_key, places, figure_sections(records, drawings))

    def _notes(self, cell: BoardCell) -> CellNotes:
        submission = self.found.submissions.get(cell.row)
        if submission is None:
            if plan_file(self.folder, cell.sha256).is_file() and not cell.private:
                return kept_notes(cell)
            return CellNotes(commands=(cell.command,) if cell.command else ())
        facts: tuple[tuple[str, str], ...] = (
            ("submission", link(f"../../{SUBMISSIONS}/{submission}.html", submission)),
        )
        commands: list[str] = []
        words = [*RECOMPUTE, cell.board, cell.full_id]
        if self.parts.address and not cell.private:
            commands.append(shlex.join([*words, "--server", self.parts.address]))
        if submission in self.files and not cell.private:
            facts += (("again", SAID_HERE),)
            commands.append(shlex.join([*words, "--board", HERE]))
        return CellNotes(facts, tuple(commands))


def _nav(up: str) -> Markup:
    """The links before every page."""
    boards, every = link(f"{up}{PAGE}", "Boards"), link(f"{up}{SUBMISSIONS}/{PAGE}", "Submissions")
    return Markup("{} {}").format(boards, every)


def _copied(parts: ServiceParts, view: SubmissionView, folder: Path) -> dict[str, Any]:
    """Copy what was handed in; its name, hash and size."""
    held = view.submission
    copy = parts.store.get_file(held.file, folder / held.id)
    with copy.open("rb") as stream:
        ending = file_ending(stream.read(2))
    named = copy.rename(folder / f"{held.id}{ending}")
    return {"name": named.name, "sha256": file_hash(named), "bytes": named.stat().st_size}
