"""What the cells of a static board are computed again from, kept in its folder.

    plans/RECORD.json      the plan of the run, the name of the record's cell, its files by hash
    artefacts/SHA256.gz    these files, packed: scores that the cell's method found; files and
                           folders that the job was given, as scores, alignments or SAEs

RECORD is the hash of a record. What is found again with the same seed is not kept: featurizers,
directions of gym tasks, circuits of adversarial runs. A record has no plan here if its run read
something else of the machine that it was made on: a folder of a model, a file of pairs.

A board is data of others. Hashes are compared, and a plan that names a path is refused: nothing
outside of the folder is read but models and tasks by their names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import Field, ValidationError

from mechassay.errors import BadFile, MechassayError, first_line
from mechassay.files import write_text
from mechassay.leaderboard.artefacts import (
    SHA256,
    copy_artefact,
    inside,
    keep_artefact,
    unpack_artefact,
)
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.recomputation import (
    GIVEN,
    MadeRecord,
    check_public,
    given_files,
    made_in_runs,
    shown_record,
)
from mechassay.models.sources import find_source
from mechassay.records import Stored, first_mistake

PLANS = "plans"
KINDS = ("adversarial", "alignments", "circuits", "directions", "gym", "variables")
"""Kinds of runs whose records boards read."""
MODELS = ("model", "models")
_PART = re.compile(r"[\w,:;+=@()\[\]-][\w .,:;+=@()\[\]-]{0,199}")
_HUB_ID = re.compile(r"(untrained:)?[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
_FILE = re.compile(r"\.(jsonl?|[ct]sv|ya?ml|pt|npz|gguf|safetensors)($|[@:,])", re.IGNORECASE)
"""The ending of a file, also before settings."""


class CellPlan(Stored):
    """What a record is computed again from.

    Attributes:
        plan: of the run; in the place of files that it was given, their names in `files`.
        cell: the name of the record's cell there.
        scores: the hash of the scores that the method found; "" without any.
        files: hashes of all files that the job was given, by name.
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
    made, told = made_in_runs(cell, runs)
    plan, given = _portable(told, made)
    files = {name: keep_artefact(path, board) for name, path in given.items()}
    scores = "" if made.scores is None else keep_artefact(made.scores, board)
    found = CellPlan(plan=plan, cell=made.cell.name, scores=scores, files=files)
    write_text(plan_file(board, cell.sha256), found.model_dump_json(indent=1))


def read_plan(board: Path, sha256: str) -> CellPlan:
    """The plan of a record, by the record's hash.

    Raises:
        BadFile: it is not there, or none.
    """
    file = plan_file(board, sha256)
    if not SHA256.fullmatch(sha256) or not file.is_file():
        raise BadFile(
            f"{board}: has no plan of the record {sha256[:16]!r}. Its folder of runs is needed"
            " (--runs), or the server that it is of (--server)."
        )
    try:
        found = CellPlan.model_validate_json(inside(board, file).read_bytes())
    except (ValidationError, OSError) as error:
        said = first_mistake(error) if isinstance(error, ValidationError) else first_line(error)
        raise BadFile(f"{file}: no plan of a record ({said}).") from None
    if not all(map(SHA256.fullmatch, found.hashes)):
        raise BadFile(f"{file}: what it calls a hash is none.")
    return found


def made_on_board(cell: BoardCell, board: Path, folder: Path) -> MadeRecord:
    """The record of a cell of a static board, with all that computes it again.

    Args:
        folder: an empty one, for the files.

    Raises:
        BadFile: something is not there, or not what its hash says; or it names a path.
        UnknownName, BadUsage: see `check_public`; the plan is none of this version, or has no such
            cell.
    """
    check_public(cell)
    if not SHA256.fullmatch(cell.sha256):
        raise BadFile(f"{board}: {cell.id} has no record.")
    record = shown_record(cell, inside(board, board / "records" / f"{cell.sha256}.json"))
    held = read_plan(board, cell.sha256)
    plan = _checked(held, plan_file(board, cell.sha256))
    for name, sha256 in held.files.items():
        unpack_artefact(board, sha256, folder / "given" / name)
    for name in GIVEN:
        if paths := plan.get(name):
            plan[name] = _each(paths, lambda path: str(folder / "given" / path))
    scores = None
    if held.scores:
        scores = unpack_artefact(board, held.scores, folder / "scores.safetensors")
    try:
        return MadeRecord.of(record, plan, held.cell, scores)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise BadFile(
            f"{plan_file(board, cell.sha256)}: no plan of a run ({first_line(error)})."
        ) from None


def copy_plan(sha256: str, source: Path, target: Path) -> None:
    """Copy what a record is computed again from to another board, if it is there.

    Raises:
        BadFile: it is none, or not what its hash says.
    """
    if not plan_file(source, sha256).is_file():
        return
    found = read_plan(source, sha256)
    for each in found.hashes:
        copy_artefact(each, source, target)
    write_text(plan_file(target, sha256), found.model_dump_json(indent=1))


def is_path(text: str) -> bool:
    """Whether a text names a file or a folder rather than a model, a task or a method."""
    if _HUB_ID.fullmatch(text):
        # A folder of this name would be taken before the hub's model.
        return ".." in text or Path(text.removeprefix("untrained:")).exists()
    return bool(re.search(r"[/\\]|^~|\.\.", text) or _FILE.search(text))


# --- writing --------------------------------------------------------------------------------------


def _portable(plan: Mapping[str, Any], made: MadeRecord) -> tuple[dict[str, Any], dict[str, Path]]:
    """The plan with names in the place of files that it was given, and these files.

    Raises:
        BadFile: the plan names what other machines do not have.
    """
    fields = {"kind", *(each.name for each in dataclasses.fields(made.job))}
    kept = {name: value for name, value in plan.items() if name in fields}
    given = given_files(plan, made.cell)
    files: dict[str, Path] = {}
    for field in GIVEN:
        if field not in kept:
            continue
        names: list[str] = []
        for path in map(Path, given.get(field, [])):
            name = f"{field}-{len(names)}/{path.name}"
            names.append(name)
            found = [path] if path.is_file() else sorted(each for each in path.rglob("*"))
            below = [each for each in found if each.is_file() and not each.is_symlink()]
            files |= {
                name if each == path else f"{name}/{each.relative_to(path).as_posix()}": each
                for each in below
            }
        kept[field] = names if isinstance(kept[field], list) else "".join(names)
    held = CellPlan(plan=kept, cell=made.cell.name, files=dict.fromkeys(files, ""))
    _checked(held, "The plan of the run")
    return kept, files


def _is_local(model: str) -> bool:
    """Whether a model is a folder of this machine and none of the package's."""
    try:
        return find_source(model).own
    except MechassayError:
        return False  # It is not fetched here; the name is all that counts.


# --- reading --------------------------------------------------------------------------------------


def _checked(held: CellPlan, file: Path | str) -> dict[str, Any]:
    """A copy of the plan, none of whose texts is a path but names of files that it was given.

    Raises:
        BadFile: one is; or it is of another kind.
    """
    plan = dict(held.plan)
    if plan.get("kind") not in KINDS:
        raise BadFile(f"{file}: {plan.get('kind')!r} is no kind of run of a board.")
    for name in held.files:
        if not all(map(_PART.fullmatch, name.split("/"))):
            raise BadFile(f"{file}: {name!r} is no name of a file.")
    heads = {head for name in held.files for head in _heads(name)}
    for text in _texts([plan.get(field) for field in GIVEN]):
        if text and text not in heads:
            raise BadFile(f"{file}: {text!r} is none of its files.")
    for text in _texts({name: value for name, value in plan.items() if name not in GIVEN}):
        if is_path(text):
            raise BadFile(f"{file}: names {text!r}, which is a path.")
    for name in _texts([plan.get(field) for field in MODELS]):
        if _is_local(name):
            raise BadFile(f"{file}: names {name!r}, which is a folder of this machine.")
    return plan


def _heads(name: str) -> Iterator[str]:
    """The name of a file, and of the folders that it is in."""
    parts = name.split("/")
    yield from ("/".join(parts[: n + 1]) for n in range(len(parts)))


def _texts(value: object) -> Iterator[str]:
    """All texts in a plain value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[object, object]", value).items():
            yield from (text for each in pair for text in _texts(each))
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from _texts(each)


def _each(paths: object, change: Any) -> Any:
    return change(paths) if isinstance(paths, str) else [change(path) for path in _texts(paths)]
