"""What the cells of a static board are computed again from, kept in its folder.

    plans/RECORD.json      the plan of the run, the name of the record's cell, its files by hash
    artefacts/SHA256.gz    these files, packed: scores that the cell's method found; files and
                           folders that the experiment was given, as scores, alignments or SAEs

RECORD is the hash of a record. What is found again with the same seed is not kept: featurizers,
directions of gym tasks, circuits that methods find in adversarial runs. A record has no plan
here if its run read something else of the machine that it was made on: a folder of a model, a
file of pairs.

Artefacts are packed with gzip, and named by the hash of what they hold, which is compared
whenever one is unpacked. Links out of the board are not followed.

A board is data of others. The files that a plan was given unpack to at most `LARGEST` bytes
together, and so does its ranking. `check_plan` says which plans are refused: nothing outside of
the folder is read but models and tasks by their names. The cell has to be the one that its
record has (`check_shown`).
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from pydantic import Field, ValidationError

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.recomputation import (
    MadeRecord,
    check_plan,
    check_public,
    given_files,
    made_in_runs,
    shown_record,
    with_paths,
)
from mechassay.results.records import Stored, first_mistake
from mechassay.utils.files import SHA256, file_hash, leads_out, read_json, whole, write_text

ARTEFACTS = "artefacts"
CHUNK = 2**20
LARGEST = 4 * 10**9
"""Bytes that an artefact, or all files of a plan together, unpack to at most."""


def artefact_file(board: Path, sha256: str) -> Path:
    """Where an artefact is, by its hash."""
    return board / ARTEFACTS / f"{sha256}.gz"


def keep_artefact(path: Path, board: Path) -> str:
    """Pack a file into the board; its hash."""
    sha256 = file_hash(path)
    packed = artefact_file(board, sha256)
    if not packed.is_file():
        with (
            whole(packed) as partial,
            path.open("rb") as source,
            partial.open("wb") as stream,
            # Without time and name: the same file is packed to the same bytes.
            gzip.GzipFile("", "wb", 9, stream, mtime=0) as target,
        ):
            shutil.copyfileobj(source, cast("IO[bytes]", target), CHUNK)
    return sha256


def unpack_artefact(board: Path, sha256: str, path: Path, most: int | None = None) -> Path:
    """Write an artefact to a file.

    Args:
        most: bytes that it may have; `LARGEST` if not given.

    Raises:
        BadFile: it is not there, not what its hash says, or has more bytes.
    """
    file = inside(board, artefact_file(board, sha256))
    with whole(path) as partial, partial.open("wb") as stream:
        _check_hash(file, sha256, stream, LARGEST if most is None else most)
    return path


def inside(board: Path, file: Path) -> Path:
    """A file of a board, which is no link out of it.

    Raises:
        BadFile: it is one.
    """
    if leads_out(file, board):
        raise BadFile(f"{file}: a link that leads out of the board; it was not followed.")
    return file


def _check_hash(file: Path, sha256: str, target: IO[bytes] | None, most: int) -> None:
    """Unpack a file, to a stream if there is one, and compare the hash of what comes out."""
    if not file.is_file():
        raise BadFile(f"{file}: is not there; the board lacks an artefact.")
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with gzip.open(file, "rb") as stream:
            while chunk := stream.read(CHUNK):
                n_bytes += len(chunk)
                if n_bytes > most:
                    raise BadFile(f"{file}: holds more than the {most:,} bytes that it may have.")
                digest.update(chunk)
                if target is not None:
                    target.write(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(f"{file}: cannot be unpacked ({first_line(error)}).") from None
    if digest.hexdigest() != sha256:
        raise BadFile(f"{file}: is not what its name says; it was changed since.")


PLANS = "plans"


class CellPlan(Stored):
    """What a record is computed again from.

    Attributes:
        plan: of the run; in the place of files that it was given, their names in `files`.
        cell: the name of the record's cell there.
        scores: the hash of the scores that the method found; "" without any.
        files: hashes of all files that the experiment was given, by name.
    """

    plan: dict[str, Any]
    cell: str
    scores: str = ""
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def hashes(self) -> list[str]:
        """Of all artefacts."""
        return [*filter(None, [self.scores]), *self.files.values()]


def plan_file(board: Path, sha256: str) -> Path:
    """Where the plan of a record is, by the record's hash."""
    return board / PLANS / f"{sha256}.json"


def write_plan(cell: BoardCell, runs: Path, board: Path) -> None:
    """Keep what a cell's record is computed again from.

    Args:
        runs: the folder of runs that the board is made of.
        board: the folder of its pages.

    Raises:
        BadFile, BadUsage, UnknownName: the run is of another version, or read what only its
            machine has.
    """
    made, why_not = made_in_runs(cell, runs)
    plan, given = _portable(why_not, made)
    files = {name: keep_artefact(path, board) for name, path in given.items()}
    scores = "" if made.scores is None else keep_artefact(made.scores, board)
    cell_plan = CellPlan(plan=plan, cell=made.cell.name, scores=scores, files=files)
    write_text(plan_file(board, cell.sha256), cell_plan.model_dump_json(indent=1))


def read_plan(board: Path, sha256: str) -> CellPlan:
    """The plan of a record, by the record's hash.

    Raises:
        BadFile: it is not there, or none.
    """
    file = plan_file(board, sha256)
    if not SHA256.fullmatch(sha256) or not file.is_file():
        raise BadFile(
            f"{board}: has no plan of the record {sha256[:16]!r}. Its folder of runs is needed"
            " (--runs)."
        )
    try:
        cell_plan = CellPlan.model_validate(read_json(inside(board, file)))
    except ValidationError as error:
        raise BadFile(f"{file}: no plan of a record ({first_mistake(error)}).") from None
    if not all(map(SHA256.fullmatch, cell_plan.hashes)):
        raise BadFile(f"{file}: what it calls a hash is none.")
    return cell_plan


def made_on_board(cell: BoardCell, board: Path, folder: Path) -> MadeRecord:
    """The record of a cell of a static board, with all that computes it again.

    Args:
        folder: an empty one, for the files.

    Raises:
        BadFile: something is not there, or not what its hash says, or too large; or the plan is one
            that `check_plan` refuses.
        UnknownName, BadUsage: see `check_public`; the plan is none of this version, or has no such
            cell.
    """
    check_public(cell)
    if not SHA256.fullmatch(cell.sha256):
        raise BadFile(f"{board}: {cell.id} has no record.")
    record = shown_record(cell, inside(board, board / "records" / f"{cell.sha256}.json"))
    held = read_plan(board, cell.sha256)
    plan = check_plan(held.plan, held.files, plan_file(board, cell.sha256))
    left = LARGEST
    for name, sha256 in held.files.items():
        file = unpack_artefact(board, sha256, folder / "given" / name, left)
        left -= file.stat().st_size
    plan = with_paths(plan, lambda _, path: str(folder / "given" / path))
    scores = None
    if held.scores:
        scores = unpack_artefact(board, held.scores, folder / "scores.safetensors")
    try:
        return MadeRecord.of(record, plan, held.cell, scores)
    except BadUsage:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise BadFile(
            f"{plan_file(board, cell.sha256)}: no plan of a run ({first_line(error)})."
        ) from None


def _portable(plan: Mapping[str, Any], made: MadeRecord) -> tuple[dict[str, Any], dict[str, Path]]:
    """The plan with names in the place of files that it was given, and these files."""
    fields = {"kind", *(option.name for option in dataclasses.fields(made.experiment))}
    kept = {name: value for name, value in plan.items() if name in fields}
    given = given_files(plan, made.cell)
    files: dict[str, Path] = {}
    names: dict[str, list[str]] = {}

    def portable(field: str, path: str) -> str | None:
        if path not in given.get(field, []):
            return None
        paths = names.setdefault(field, [])
        if path not in paths:
            paths.append(path)
        name = f"{field}-{paths.index(path)}/{Path(path).name}"
        if Path(path).is_file():
            files[name] = Path(path)
        for file in sorted(Path(path).rglob("*")):
            if file.is_file() and not file.is_symlink():
                files[f"{name}/{file.relative_to(path).as_posix()}"] = file
        return name

    kept = with_paths(kept, portable)
    plain = json.loads(json.dumps(kept))  # As it is read: an experiment in memory has tuples.
    if (n_bytes := sum(file.stat().st_size for file in files.values())) > LARGEST:
        raise BadFile(f"The files of the run have {n_bytes:,} bytes; at most {LARGEST:,}.")
    return check_plan(plain, files, "The plan of the run"), files
