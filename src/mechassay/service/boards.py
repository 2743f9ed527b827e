"""The boards of the service: records of submissions that are done, and pages made of them.

Records are read from the store once, into a folder by the hash of their bytes. The boards are made
anew when their generation has changed: which submissions are done, and what was recomputed. Until
the new pages are there, the old ones are given out; also while database or store are away.

A row is a submission: its name with the beginning of its id; on the board of adversarial evaluation
with the size of the circuit, as the rows of methods have it. A submission that is withdrawn
vanishes. Records about private examples show their numbers alone. A cell says so if its submitter
declared the test examples as training data, or if the track has changed since.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mechassay.errors import BadFile, UnknownName
from mechassay.files import write_bytes
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import (
    OF_SUBMISSION,
    BoardCell,
    PrivateSets,
    cells_of,
    is_private,
    numbered,
)
from mechassay.leaderboard.facts import CellNotes, Repetition
from mechassay.leaderboard.folder import RECOMPUTE
from mechassay.leaderboard.links import link
from mechassay.leaderboard.pages import BoardPages
from mechassay.leaderboard.rules import board_rules
from mechassay.leaderboard.stored import StoredBoards
from mechassay.records import Record, read_record
from mechassay.service.adversarial import row_ending
from mechassay.service.database import Database
from mechassay.service.lookups import SubmissionView, row_name
from mechassay.service.other_track import other_track
from mechassay.service.pages import served_nav
from mechassay.service.store import Store
from mechassay.service.tables import Evaluation, Recomputed, Submission
from mechassay.service.track import ServiceTrack

LOG = logging.getLogger("mechassay.service.boards")
Generation = tuple[int, datetime | None, int, datetime | None]
"""Submissions that are done and recomputations: how many, and when the last of them was."""
NOT_LOOKED: Generation = (-1, None, -1, None)


@dataclass(frozen=True, eq=False)
class DoneRecord:
    """A record of a submission that is done."""

    submission: str
    name: str
    declaration: Mapping[str, Any]
    key: str
    finished: datetime


@dataclass(frozen=True, eq=False)
class BoardsSnapshot:
    """The boards at one moment.

    Attributes:
        pages: of a server.
        submissions: ids by row.
        public: hashes of the records that anybody may have.
        hashes: of all records by their key in the store.
    """

    generation: Generation
    pages: BoardPages
    submissions: Mapping[str, str] = field(default_factory=dict)
    public: frozenset[str] = frozenset()
    hashes: Mapping[str, str] = field(default_factory=dict)

    def cell(self, name: str, sha256: str) -> BoardCell | None:
        """The cell of a name and of a record that anybody may have, if a board shows it."""
        if sha256 not in self.public:
            return None
        cells = (cell for board in self.pages.boards.values() for cell in board.cells)
        return next((each for each in cells if (each.full_id, each.sha256) == (name, sha256)), None)


class ServedBoards:
    """The boards of a database and a store.

    Args:
        folder: where records are kept by their hash.
        address: of the server, for commands.
        beside: boards whose rows stand beside the submissions.
    """

    def __init__(
        self,
        db: Database,
        store: Store,
        folder: Path,
        track: ServiceTrack,
        address: str = "",
        beside: StoredBoards | None = None,
    ) -> None:
        self._db, self._store, self._folder, self._track = db, store, folder, track
        self._address, self._beside = address, beside
        self._known: dict[tuple[str, datetime], tuple[str, Record]] = {}
        self.snapshot = BoardsSnapshot(
            NOT_LOOKED, BoardPages({}, self._record, served=True, nav=served_nav)
        )

    def generation(self) -> Generation:
        """What the boards depend on.

        Raises:
            DatabaseAway: the database does not answer.
        """
        return self._db.read(_generation)

    def newer(self) -> BoardsSnapshot | None:
        """The boards made anew, if their generation has changed. The caller puts them in place.

        Raises:
            DatabaseAway: the database does not answer. StoreAway: the store does not.
        """
        if self.generation() == self.snapshot.generation:
            return None
        return self._made(*self._db.read(_read_all))

    def record_file(self, sha256: str) -> Path:
        """The file of a record by its hash."""
        if self._beside is not None and sha256 in self._beside.hashes:
            return self._beside.record_file(sha256)
        return self._folder / f"{sha256}.json"

    def plan_file(self, sha256: str) -> Path | None:
        """The plan of a record of the static board, if it is there."""
        return None if self._beside is None else self._beside.plan(sha256)

    def artefact_file(self, sha256: str) -> Path | None:
        """A file of the static board that its plans name, packed, if it is there."""
        return None if self._beside is None else self._beside.artefact(sha256)

    def records_of(self, view: SubmissionView) -> dict[str, Record]:
        """The records of a submission that the boards have, by their key in the store."""
        keys = [each.record for each in view.evaluations if each.record]
        hashes = {key: self.snapshot.hashes.get(key) for key in keys}
        return {
            key: read_record(self.record_file(sha256)) for key, sha256 in hashes.items() if sha256
        }

    def _made(
        self,
        generation: Generation,
        done: Sequence[DoneRecord],
        again: Mapping[str, Sequence[Repetition]],
    ) -> BoardsSnapshot:
        unreadable: list[str] = []
        cells: list[BoardCell] = []
        submissions: dict[str, str] = {}
        hashes: dict[str, str] = {}
        public: set[str] = set()
        private: PrivateSets = {}
        known: dict[tuple[str, datetime], tuple[str, Record]] = {}
        if self._beside is not None:
            cells += map(self._named, self._beside.cells)
            public |= self._beside.hashes
        for each in done:
            try:
                sha256, record = known[each.key, each.finished] = self._read(each)
            except BadFile as error:
                LOG.warning("A record of submission %s: %s", each.submission, error)
                unreadable.append(f"A record of submission {each.submission} cannot be read.")
                continue
            hashes[each.key] = sha256
            row = row_name(each.name, each.submission, row_ending(record))
            submissions[row] = each.submission
            if not is_private(record):
                public.add(sha256)
            about: dict[str, Any] = {"row": row, "source": f"{OF_SUBMISSION}{each.submission}"}
            if not is_private(record):
                said = (*_in_sample(record, each.declaration), *_other_track(record, self._track))
                about["warnings"] = [*record.warnings, *said]
            cells += self._cells(numbered(record, private), sha256, about)
        self._known = known
        boards = {
            name: Board.of(rules, held)
            for name, rules in board_rules().items()
            if (held := [cell for cell in cells if cell.board == name])
        }
        pages = BoardPages(
            boards,
            self._record,
            again=again,
            notes=lambda cell: self._notes(cell, submissions),
            unreadable=tuple(unreadable),
            served=True,
            nav=served_nav,
        )
        return BoardsSnapshot(generation, pages, submissions, frozenset(public), hashes)

    def _cells(self, record: Record, sha256: str, about: Mapping[str, Any]) -> Iterator[BoardCell]:
        for rules in board_rules().values():
            if rules.kind != record.kind:
                continue
            for cell in cells_of(rules, record, sha256=sha256, file=f"{sha256}.json"):
                yield self._named(cell).model_copy(update=about)

    def _named(self, cell: BoardCell) -> BoardCell:
        """The cell with the public name of its model; that of another track keeps what it has."""
        place = dict(cell.place)
        with suppress(UnknownName):
            if "model" in place:
                place["model"] = self._track.public_name(place["model"])
        return cell.model_copy(update={"place": place})

    def _read(self, each: DoneRecord) -> tuple[str, Record]:
        """The hash and the content of a record, from the store if it is not known yet."""
        held = self._known.get((each.key, each.finished))
        if held is not None:
            return held
        content = self._store.read(each.key)
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.record_file(sha256)
        if not path.is_file():
            write_bytes(path, content)
        record = read_record(path)
        # Values of examples are read again when two rows are compared.
        return sha256, record.changed(values=None)

    def _notes(self, cell: BoardCell, submissions: Mapping[str, str]) -> CellNotes:
        submission = submissions.get(cell.row)
        again = shlex.join([*RECOMPUTE, cell.board, cell.full_id, "--server", self._address])
        if submission is None:
            kept = not cell.private and self.plan_file(cell.sha256) is not None
            return CellNotes(commands=tuple(filter(None, (cell.command, again if kept else ""))))
        facts = (("submission", link(f"/submissions/{submission}", submission)),)
        return CellNotes(facts, () if cell.private else (again,))

    def _record(self, cell: BoardCell) -> Record | None:
        file = self.record_file(cell.sha256)
        return read_record(file) if cell.sha256 and file.is_file() else None


def _read_all(
    session: Session,
) -> tuple[Generation, Sequence[DoneRecord], dict[str, list[Repetition]]]:
    """What boards are made of, read in one transaction."""
    return _generation(session), _done(session), _again(session)


def _generation(session: Session) -> Generation:
    done = select(func.count(), func.max(Submission.finished)).where(Submission.state == "done")
    n, last = session.execute(done).one()
    again = select(func.count(Recomputed.id), func.max(Recomputed.created))
    n_again, last_again = session.execute(again).one()
    return n, last, n_again, last_again


def _done(session: Session) -> Sequence[DoneRecord]:
    found = session.execute(
        select(
            Submission.id,
            Submission.name,
            Submission.declaration,
            Evaluation.record,
            Evaluation.finished,
        )
        .join(Evaluation, Evaluation.submission_id == Submission.id)
        .where(Submission.state == "done", Evaluation.state == "done")
        .where(Evaluation.record.is_not(None))
        .order_by(Evaluation.finished, Evaluation.id)
    )
    return [DoneRecord(*row) for row in found]


def _in_sample(record: Record, declaration: Mapping[str, Any]) -> Iterator[str]:
    """A line if the declared training data are the test examples, by the hash of their content."""
    declared = set(declaration.get("train_hashes") or ())
    test = record.data.get("test")
    if declared & {record.provenance.data_hash, "" if test is None else test.hash}:
        yield "In-sample: the declared training data are the examples that this is evaluated on."


def _other_track(record: Record, track: ServiceTrack) -> Iterator[str]:
    """A line if a record was made under another track, which a recomputation would need."""
    if other := other_track(record, track):
        yield (
            f"Measured under an earlier track ({other}): to compute it again from this server,"
            " that track is needed."
        )


def _again(session: Session) -> dict[str, list[Repetition]]:
    found: dict[str, list[Repetition]] = {}
    for each in session.scalars(select(Recomputed).order_by(Recomputed.id)):
        said = "agrees" if each.agrees else "differs"
        value = "" if each.value is None else f"{each.value:.9g}"
        text = f"the record {said}; {each.created:%Y-%m-%d}, {each.by}"
        found.setdefault(each.sha256, []).append(Repetition(each.agrees, text, value, each.cell))
    return found
