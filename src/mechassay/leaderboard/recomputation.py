"""Recomputing a cell of a board: the same command, for this cell alone, in a folder of its own.

    1  the record is what the board says: the hash of its bytes is compared, and all that the
       board shows of it (`check_shown`)
    2  a ranking that a method found is copied, so that the number of this artefact is
       recomputed; `anew` lets the method find it again. Methods of other kinds of run are always
       run again. Plan and ranking are those of the run, or of a static board
       (`leaderboard.plans`)
    3  the cell of the experiment is run, and the whole record is compared with the stored one
       (`compare_records`): what was measured on what, all measures with their intervals, tables,
       checks, values of examples

Numbers may differ by `TOLERANCE` of the larger of 1 and the stored one: in fp32 on a CPU, with
as many threads, those of two machines agree so far. All else is the same or differs.

A board and its plans are data of others. What was found is data, and nothing of it is executed.
A plan runs here what somebody else wrote down, so it is checked first (`check_plan`).
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.circuits.methods.stability import STABILITY
from mechassay.errors import (
    BadFile,
    BadUsage,
    MechassayError,
    ModelNotFetched,
    UnknownName,
    first_line,
)
from mechassay.leaderboard.cells import (
    COPY,
    RECORDS,
    BoardCell,
    cells_of,
    given_hash,
    is_private,
    submission_of,
)
from mechassay.leaderboard.rules import rules_of
from mechassay.leaderboard.track import row_of
from mechassay.models.sources import find_source
from mechassay.results.reading import read_record
from mechassay.results.records import IDENTITY, Number, Provenance, Record, Stored
from mechassay.runs import EXPERIMENTS
from mechassay.runs.cells import Cell
from mechassay.runs.executors import measure_cells
from mechassay.runs.experiment import experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.options import options_of
from mechassay.runs.run import opened
from mechassay.tasks.task import PRIVATE
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Progress
from mechassay.utils.files import file_hash, path_hash

BESIDE = ("file", "sha256", "command", "source", "origin", "earlier")
"""Fields of a cell that do not follow from its record."""


def check_shown(cell: BoardCell, record: Record) -> None:
    """Refuse a cell that is not the one that its record has on the board.

    A board is data of others: a cell may have another row, place, condition or number than its
    record. So the cells of the record are made again by the board's own function, and all that
    follows from a record has to be equal. Of a submission the row is its name, with the size of
    an adversarial record, and a warning may stand behind those of the record.

    Raises:
        BadFile: it is not; the fields that differ are named.
        BadUsage: the record is about private examples.
    """
    if is_private(record):
        raise BadUsage(f"{cell.id} is about private examples, which need the seed of their owner.")
    try:
        own = [
            own_cell
            for own_cell in cells_of(rules_of(cell.board), record)
            if own_cell.column == cell.column
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{cell.id}: its record has no cells ({first_line(error)}).") from None
    if not own:
        raise BadFile(f"{cell.id}: its record has no number of the column {cell.column}.")
    differing = [_differing(cell, _of_submission(result, cell, record)) for result in own]
    if all(differing):
        names = ", ".join(min(differing, key=len))
        raise BadFile(f"{cell.id}: the board shows something else than its record has ({names}).")


def _of_submission(own: BoardCell, cell: BoardCell, record: Record) -> BoardCell:
    """The cell of a record as the board calls it where the board says that it is a submission's."""
    if not (cell.submission and given_hash(record)):
        return own  # A submission's record measures files.
    warned = cell.warnings[: len(own.warnings)] == own.warnings
    return own.model_copy(
        update={
            "row": row_of(cell.submission, record),
            "warnings": cell.warnings if warned else own.warnings,
        }
    )


def _differing(cell: BoardCell, own: BoardCell) -> list[str]:
    """The fields that differ; undefined numbers are equal."""
    one, other = (
        board_cell.model_dump(mode="json", exclude=set(BESIDE)) for board_cell in (cell, own)
    )
    return [name for name in one if repr(one[name]) != repr(other[name])]


TOLERANCE = 1e-6
LEFT_OUT = {
    "provenance": True,
    "spent": True,
    "sha256": True,
    "cell_digest": True,
    "identities": True,
    "values": {"sha256"},
}
ORDERED_BY_LAST_BITS = ("worst pairs", "tokens", "parts")
"""Tables of adversarial records that illustrate their numbers."""
GIVEN = ("scores", "alignments", "directions", "saes")
"""Fields of experiments that name files and folders."""
CIRCUITS = "circuits"
"""A field that names files beside methods, each with a size (`circuits.methods.spec`)."""
FOR_ALL = ("saes", CIRCUITS)
"""Those of them that all cells of an experiment read."""


class Recomputation(Stored):
    """What came of recomputing a cell.

    Attributes:
        cell, sha256: of the board, and of the record that it shows.
        stored, again: the number on the board, and the new one.
        largest: the largest difference of any number of the record, as a share of the larger of 1
            and the stored one; infinite where something else differs, or a number is missing.
        n: numbers that were compared.
        differs: where the first difference is that is not allowed.
        anew: whether the method was run again.
    """

    cell: str
    sha256: str
    stored: Number
    again: Number
    largest: Number
    n: int
    differs: str = ""
    anew: bool
    seconds: float
    provenance: Provenance

    @property
    def agrees(self) -> bool:
        """Whether the record is the stored one."""
        return self.n > 0 and not self.differs and self.largest <= TOLERANCE


@dataclass(frozen=True, eq=False)
class MadeRecord:
    """A record of a board, and what it is computed again from.

    Attributes:
        cell: of the experiment, which makes the record.
        scores: the file of scores that the experiment's method found, if it is there.
        given: whether the experiment measures files that it was given; then no method is run again.
    """

    record: Record
    experiment: Any
    cell: Cell
    scores: Path | None = None
    given: bool = False

    @staticmethod
    def of(
        record: Record, plan: Mapping[str, Any], name: str, scores: Path | None = None
    ) -> MadeRecord:
        """A record by the plan of its run, and by the name of its cell there.

        Raises:
            UnknownName, BadUsage: the plan is none of this version, or has no such cell.
        """
        experiment = experiment_of(plan)
        cells = experiment.cells()
        wanted = [own_cell for own_cell in cells if own_cell.name == name]
        # The files of a board have other paths than those of the run.
        wanted = wanted or [own_cell for own_cell in cells if _measures_file(own_cell, record)]
        if not wanted:
            raise BadUsage(f"The plan of the run has no cell {name!r}.")
        given = set(given_files(plan, wanted[0])) - set(FOR_ALL)
        return MadeRecord(record, experiment, wanted[0], scores, bool(given))


@checked
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
        BadUsage: a number as reported, or on private examples, which nothing here recomputes; the
            cell did not end in a record.
    """
    made, _ = made_in_runs(cell, runs)
    return recompute_made(cell, made, folder, anew=anew, device=device, progress=progress)


def drawn_cells(cells: Sequence[BoardCell], seed: int) -> list[BoardCell]:
    """A public cell of each submission on a board, drawn by a seed; of none if there is none."""
    drawing = np.random.default_rng(seed)
    of_submission: dict[str, list[BoardCell]] = {}
    for cell in cells:
        if cell.submission and not cell.private and cell.origin == "recomputed":
            of_submission.setdefault(cell.submission, []).append(cell)
    return [own[drawing.integers(len(own))] for _, own in sorted(of_submission.items())]


def check_public(cell: BoardCell) -> None:
    """Refuse a cell that nothing here recomputes.

    Raises:
        BadUsage: a number as reported, or on private examples.
    """
    if cell.origin == "as reported":
        raise BadUsage(f"{cell.id} is a number as reported ({cell.source}): nothing recomputes it.")
    if cell.private:
        raise BadUsage(f"{cell.id} is about private examples, which need the seed of their owner.")


def shown_record(cell: BoardCell, file: Path) -> Record:
    """The record that a board shows a number of.

    Raises:
        BadFile: it is not there, or was changed since.
    """
    if not file.is_file():
        raise BadFile(f"{file}: the record of {cell.id} is not there.")
    if file_hash(file) != cell.sha256:
        raise BadFile(f"{file}: is not the record that the board shows; it was changed since.")
    return read_record(file)


def made_in_runs(cell: BoardCell, runs: Path) -> tuple[MadeRecord, dict[str, Any]]:
    """The record of a cell in the run that made it, and the plan of this run.

    Raises:
        BadFile: it is not there, or was changed since.
        UnknownName, BadUsage: see `check_public` and `MadeRecord.of`.
    """
    check_public(cell)
    file = runs / cell.file
    record = shown_record(cell, file)
    source = RunFolder(_run_of(file))
    name, plan = (
        file.relative_to(source.path / RECORDS).with_suffix("").as_posix(),
        plan_here(source),
    )
    scores = source.scores_file(name)
    return MadeRecord.of(record, plan, name, scores if scores.is_file() else None), plan


def recompute_made(
    cell: BoardCell,
    made: MadeRecord,
    folder: Path,
    *,
    anew: bool = False,
    device: str = "cpu",
    progress: Progress = BAR,
) -> Recomputation:
    """Run the cell of an experiment in an empty folder, and compare its record with the stored one.

    Raises:
        BadFile: the board shows something else than the record has, see `check_shown`.
        BadUsage: the record is about private examples; the cell did not end in a record.
    """
    check_shown(cell, made.record)
    experiment, name = made.experiment, made.cell.name
    worker = opened(experiment, folder, device=device, progress=progress, here=True)
    copied = made.scores is not None and not anew
    if made.scores is not None and copied:
        copy = worker.folder.scores_file(name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made.scores, copy)
    begin = time.perf_counter()
    with _threads(made.record.provenance.threads):
        measure_cells(experiment, [made.cell], worker)
    again = worker.folder.record(name)
    if again is None:
        failure = worker.folder.failure(name)
        reason = failure.message if failure else "no record"
        raise BadUsage(f"{cell.id} could not be recomputed: {reason}")
    compared = compare_records(made.record, again)
    column = rules_of(cell.board).column(cell.column)
    number = column.measure_in(again, cell.row_in_record)
    return Recomputation(
        cell=cell.full_id,
        sha256=cell.sha256,
        stored=cell.value,
        again=math.nan if number is None else number.value,
        largest=compared.largest,
        n=compared.n,
        differs=compared.differs,
        anew=not (copied or made.given),
        seconds=round(time.perf_counter() - begin, 3),
        provenance=again.provenance,
    )


def plan_here(run: RunFolder) -> dict[str, Any]:
    """The plan of a run; files of a submission by where its results are now.

    Raises:
        BadFile: the plan, or what says which submission it is of, is damaged.
    """
    plan, submission = run.plan(), submission_of(run.path)
    if submission is None:
        return plan
    here, before = str(run.path.parent.parent / COPY), submission.folder
    return with_paths(
        plan,
        lambda _, path: here + path.removeprefix(before) if path.startswith(before) else path,
    )


def with_paths(plan: Mapping[str, Any], change: Callable[[str, str], str | None]) -> dict[str, Any]:
    """A copy of a plan with other paths of the files and folders that it was given.

    Args:
        change: the new path of a field's path; None leaves the entry out.
    """
    changed = dict(plan)
    for name in (name for name in (*GIVEN, CIRCUITS) if plan.get(name)):
        entries = [plan[name]] if isinstance(plan[name], str) else list(plan[name])
        new: list[str] = []
        for entry in entries:
            path = CircuitSpec.path_in(entry) if name == CIRCUITS else entry
            to = change(name, path) if path else path
            if to is not None:
                new.append(to + entry[len(path) :])
        changed[name] = "".join(new) if isinstance(plan[name], str) else new
    return changed


def given_files(plan: Mapping[str, Any], cell: Cell) -> dict[str, list[str]]:
    """The files and folders that a cell of a plan reads, by the field that names them."""
    paths: dict[str, list[str]] = {}

    def note(name: str, path: str) -> str:
        # A list has those of other cells too.
        if path and (name in FOR_ALL or _reads(cell, path)):
            paths.setdefault(name, []).append(path)
        return path

    with_paths(plan, note)
    return paths


def _measures_file(cell: Cell, record: Record) -> bool:
    """Return whether a cell measures the file that a record was made of, with the same settings."""
    sha256 = given_hash(record)
    for axis, text in cell.typed.items():
        path = text if Path(text).exists() else CircuitSpec.path_in(text)
        if not sha256 or not path or not Path(path).exists():
            continue
        others = {name: label for name, label in cell.stored.items() if name != axis}
        is_same = record.cell.get(axis, "").endswith(text[len(path) :])
        if is_same and others.items() <= record.cell.items() and path_hash(Path(path)) == sha256:
            return True
    return False


def _reads(cell: Cell, path: str) -> bool:
    typed = map(Path, cell.typed.values())
    return any(one.is_relative_to(path) or Path(path).is_relative_to(one) for one in typed)


@dataclass
class Compared:
    """What came of comparing two plain values."""

    largest: float = 0.0
    n: int = 0
    differs: str = ""

    def look(self, stored: Any, again: Any, where: str) -> None:
        """Compare two values and all that is in them."""
        if isinstance(stored, dict) and isinstance(again, dict):
            for key in dict.fromkeys([*stored, *again]):
                self.look(stored.get(key), again.get(key), f"{where}.{key}")
        elif isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
            for number, (one, other) in enumerate(zip(stored, again, strict=True)):
                self.look(one, other, f"{where}[{number}]")
        elif _is_number(stored) and _is_number(again):
            self.n += 1
            self._note(abs(stored - again) / max(1.0, abs(stored)), where)
        elif stored != again:
            self._note(math.inf, where)

    def _note(self, difference: float, where: str) -> None:
        self.largest = max(self.largest, difference)
        if not self.differs and not difference <= TOLERANCE:
            self.differs = where


def compare_records(stored: Record, again: Record) -> Compared:
    """Everything of two records but what says when, where and how fast they came about.

    Times and versions are left out. So is the hash of a file of values, whose last bits may
    differ; the tables of these values are compared. Which pairs of an adversarial run are shown
    as the worst, and with which tokens, is not compared: the last bits order what is equal.

    Where a ranking was copied, the new record says nothing of the examples that it was found
    on, and not how circuits vary over them. How long a method took is compared nowhere: circuits
    of adversarial records have it among the settings of their method. Weights are compared where
    both records have their digest: a track may load a model from a folder that others have from the
    hub.
    """
    comparison = Compared()
    plain, other = _plain(stored), _plain(again)
    settings = [record["specs"].get("model", {}).get("args", {}) for record in (plain, other)]
    for key in (IDENTITY, "weights"):  # Records of earlier versions have "weights".
        if not all(key in setting for setting in settings):
            for setting in settings:
                setting.pop(key, None)
    for setting in (plain, other):
        setting["specs"].get("method", {}).get("args", {}).pop("seconds", None)
    if plain["data"].keys() - other["data"].keys():
        plain["data"] = {role: of for role, of in plain["data"].items() if role in other["data"]}
        plain["tables"] = [x for x in plain["tables"] if x["name"] != STABILITY]
    comparison.look(plain, other, "record")
    return comparison


def _plain(record: Record) -> dict[str, Any]:
    about = record.provenance
    plain = json.loads(record.model_dump_json(exclude=LEFT_OUT))
    plain["tables"] = [x for x in plain["tables"] if x["name"] not in ORDERED_BY_LAST_BITS]
    return {**plain, "examples": about.data_hash, "dtype": about.dtype}


@contextmanager
def _threads(n: int) -> Generator[None]:
    """Compute with as many threads as a record was made with: the last bits depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(max(1, n), os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _run_of(file: Path) -> Path:
    """The folder of the run that a record belongs to."""
    for folder in file.parents:
        if folder.name == RECORDS and (folder.parent / "plan.json").is_file():
            return folder.parent
    raise BadFile(f"{file}: belongs to no run (no plan.json beside its folder {RECORDS}).")


MODELS = ("model", "models")
SPLITS = ("split", "train_split")
MOST_FILES = 2000
_PART = re.compile(r"[\w,:;+=@()\[\]-][\w .,:;+=@()\[\]-]{0,199}")
_HUB_ID = re.compile(r"(untrained:)?[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
_FILE = re.compile(r"\.(jsonl?|[ct]sv|ya?ml|pt|npz|gguf|safetensors)($|[@:,])", re.IGNORECASE)
"""The ending of a file, also before settings."""


def is_path(text: str) -> bool:
    """Whether a text names a file or a folder rather than a model, a task or a method."""
    if _HUB_ID.fullmatch(text):
        return ".." in text or is_local(text)
    return bool(re.search(r"[/\\]|^~|\.\.", text) or _FILE.search(text))


def is_local(model: str) -> bool:
    """Whether what a model's name stands for here is a folder or file of the user's.

    One of the hub's name is taken before the hub's model, also below a revision or `untrained:`.
    """
    try:
        source = find_source(model)
    except (ModelNotFetched, UnknownName):
        return False  # Nothing here has the name.
    except MechassayError:
        return True  # Something here has it, and is no model.
    return source.own or (source.kind == "hub" and Path(source.location).exists())


def check_plan(
    plan: Mapping[str, Any], files: Collection[str], where: Path | str
) -> dict[str, Any]:
    """A copy of a plan that reads nothing of this machine but `files`.

    A plan is refused if a field has not the type that the experiment's field has, or if it names

        a file or folder of this machine: a path, a model that is found in a folder here
        a file that it does not bring, to measure or to read a circuit from
        files of which one is the folder of another
        a secret field or a private split
        a kind of run that no board reads, or a field that its experiment does not have

    Args:
        files: names of those that come with it.
        where: it is from, for the message.

    Raises:
        BadFile: it is none, or says what is listed here.
    """
    kind = plan.get("kind")
    if (
        not isinstance(kind, str)
        or kind not in EXPERIMENTS
        or not EXPERIMENTS.load(kind).for_boards
    ):
        raise BadFile(f"{where}: {kind!r} is no kind of run of a board.")
    _check_fields(plan, where)
    heads = _check_names(files, where)

    def look(field: str, path: str) -> str | None:
        if path not in heads:
            raise BadFile(f"{where}: {path!r} is none of its files.")
        # Of a circuit the size stays, which may not make a path of what is left.
        return "" if field == CIRCUITS else None

    for text in _texts(with_paths(plan, look)):
        if is_path(text):
            raise BadFile(f"{where}: names {text!r}, which is a path.")
    for name in _texts([plan.get(field) for field in MODELS]):
        if is_local(name):
            raise BadFile(f"{where}: names {name!r}, which is a folder of this machine.")
    return dict(plan)


def _check_fields(plan: Mapping[str, Any], where: Path | str) -> None:
    """Refuse fields that the experiment has not so, secret ones, and private splits."""
    kind = EXPERIMENTS.load(plan["kind"])
    hints, options = get_type_hints(kind), options_of(kind)
    for name in (name for name in plan if name != "kind"):
        if name not in options:
            raise BadFile(f"{where}: no plan of a run (no field {name!r}).")
        if options[name].role == "secret":
            raise BadFile(f"{where}: has {name!r}, which is never stored.")
        if name in SPLITS and plan[name] == PRIVATE:
            raise BadFile(f"{where}: is about private examples.")
        try:
            TypeAdapter[Any](hints[name]).validate_json(json.dumps(plan[name]), strict=True)
        except (ValueError, RecursionError) as error:
            message = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise BadFile(f"{where}: no plan of a run ({name}: {message}).") from None


def _check_names(files: Collection[str], where: Path | str) -> set[str]:
    """The names of files, and of the folders that they are in."""
    if len(files) > MOST_FILES:
        raise BadFile(f"{where}: has {len(files):,} files; at most {MOST_FILES:,}.")
    folders: set[str] = set()
    for name in files:
        parts = name.split("/")
        if not all(map(_PART.fullmatch, parts)):
            raise BadFile(f"{where}: {name!r} is no name of a file.")
        folders |= {"/".join(parts[:n]) for n in range(1, len(parts))}
    if both := folders & set(files):
        raise BadFile(f"{where}: {sorted(both)[0]!r} is a file, and the folder of another.")
    return folders | set(files)


def _texts(value: object) -> Iterator[str]:
    """All texts in a plain value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[object, object]", value).items():
            yield from (text for part in pair for text in _texts(part))
    elif isinstance(value, list | tuple):
        for part in cast("list[object]", value):
            yield from _texts(part)
