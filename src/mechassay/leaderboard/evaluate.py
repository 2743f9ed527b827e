"""A submission evaluated under a track: ordinary runs, each cell within the track's limits.

    DIR/submission.json          what the results are of: `leaderboard.track.SubmissionHeader`
    DIR/submission/              a copy of the submission, which the plans of the runs name
    DIR/runs/RUN/                a run for each part, split and track, as any run (`runs.folder`)
    DIR/tables.md                all numbers
    SEEDS/private/EPOCH/NAME/    runs on private examples, beside the file of seeds

Each cell has a process of its own, which is ended at `cell.seconds` and `cell.memory_gb` of the
track. What is done is kept: the same command goes on. A changed submission is another
submission: it needs another DIR. Other submissions are those whose results stand beside DIR. The
same content is refused under another name, and so is a name that looks like that of another.

A seed makes private examples that nobody else can make (`PrivateSeeds`). Runs on them stay
beside the file of seeds and have its rights. DIR gets what may be published of their records
(`published`), once an epoch. A record that is there is never made again.

Somebody who hands in again and again could climb the numbers on private examples. So a
submission is evaluated on them once an epoch, and numbers are rounded. Rounding limits what one
evaluation tells, not what many do. The Ladder (Blum and Hardt, ICML 2015) also releases nothing
that is not better than all before; here every number is released, so a seed has to be rotated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError, first_line
from mechassay.gym.experiments import DirectionsExperiment
from mechassay.leaderboard.cells import COPY, RUNS, BoardCell, read_cells
from mechassay.leaderboard.recomputation import CIRCUITS, GIVEN
from mechassay.leaderboard.rules import board_rules
from mechassay.leaderboard.submission import Submission, open_submission
from mechassay.leaderboard.submission_parts import SubmissionPart
from mechassay.leaderboard.track import (
    HEADER_FILE,
    TEST,
    BoardTrack,
    Declaration,
    SplitName,
    SubmissionHeader,
    skeleton,
)
from mechassay.results.page import Report
from mechassay.results.records import Failure, Measure, Record
from mechassay.runs.cells import by_inputs, cell_name
from mechassay.runs.executors import CellLimits, Executor, Processes
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import opened, read_report
from mechassay.runs.worker import Worker
from mechassay.stats.chance import DRAWS_PER_TRY
from mechassay.tasks.task import PRIVATE
from mechassay.truth.ground_truth import is_truth
from mechassay.utils.display import BAR, Progress, interval, number
from mechassay.utils.files import Problems, write_text
from mechassay.variables.experiments import AlignmentsExperiment

PRIVATE_RUNS = "private"
"""The folder of private runs, beside the file of seeds."""
EPOCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
LEAST_SEED = 2**40
"""Seeds below are refused: somebody could try them all."""
MOST_SEED = 2**63
OTHERS = 0o077
"""The rights of a file that others than its owner have."""


@dataclass(frozen=True)
class PrivateSeed:
    """The seed of private examples, and the name of the time in which it holds."""

    epoch: str
    seed: int = field(repr=False)


@dataclass(frozen=True)
class PrivateSeeds:
    """Seeds that only the keeper of a board has, the current one last.

    A seed makes examples that nobody else can make. Rotation adds a seed with the name of a new
    epoch. Results keep the name of the epoch they were measured in, so that each epoch has
    columns of its own. Whoever has the numbers could still try seeds: a seed is at least 2^40.
    """

    epochs: tuple[PrivateSeed, ...]

    @classmethod
    def read(cls, file: Path) -> PrivateSeeds:
        """Read a file of lines `EPOCH SEED`; lines that begin with # are comments.

        Raises:
            BadFile: others can read it, or a line is none; the message never holds a seed.
        """
        try:
            mode = file.stat().st_mode
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            # A decoding error would repeat bytes of the file.
            why = first_line(error.strerror) if isinstance(error, OSError) else "it is no text"
            raise BadFile(f"{file}: cannot be read ({why}).") from None
        if os.name == "posix" and mode & OTHERS:
            raise BadFile(f"{file}: others can read it: chmod 600 {file}")
        failures = [
            _seed_of(words, f"{file}: line {number}")
            for number, line in enumerate(lines, 1)
            if (words := line.split()) and not words[0].startswith("#")
        ]
        if not failures:
            raise BadFile(f"{file}: has no seed; a line is: EPOCH SEED.")
        names = [seed.epoch for seed in failures]
        again = sorted({name for name in names if names.count(name) > 1})
        if again:
            raise BadFile(f"{file}: has the epoch {again[0]} twice.")
        return cls(tuple(failures))

    @property
    def current(self) -> PrivateSeed:
        """The one that holds now."""
        return self.epochs[-1]


def _seed_of(words: list[str], where: str) -> PrivateSeed:
    if len(words) != 2 or not EPOCH.fullmatch(words[0]):
        raise BadFile(f"{where}: is not EPOCH SEED, as: 2026-11 SEED.")
    if not (words[1].isascii() and words[1].isdigit() and len(words[1]) < 20):
        raise BadFile(f"{where}: its seed is no whole number below 2^63.")
    if not LEAST_SEED <= int(words[1]) < MOST_SEED:
        raise BadFile(
            f"{where}: a seed is at least 2^40, so that nobody finds it by trying, and below 2^63;"
            " `mechassay leaderboard seed` draws one."
        )
    return PrivateSeed(words[0], int(words[1]))


def add_seed(file: Path, epoch: str) -> int:
    """Draw a seed and put it at the end of a file of seeds; how many there are then.

    Raises:
        BadUsage: the epoch's name is none, or has a seed.
        BadFile: the file cannot be used.
    """
    known = PrivateSeeds.read(file).epochs if file.exists() else ()
    if not EPOCH.fullmatch(epoch):
        raise BadUsage(f"{epoch!r}: the name of an epoch is letters, digits, dots, - and _.")
    if epoch in {seed.epoch for seed in known}:
        raise BadUsage(f"{file}: has a seed of {epoch} already.")
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = LEAST_SEED + secrets.randbelow(MOST_SEED - LEAST_SEED)
    # Nobody else can read it at any moment; a line before may lack its end.
    with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as stream:
        text = stream.read()
        stream.write(b"\n" * (text[-1:] not in (b"", b"\n")) + f"{epoch} {drawn}\n".encode())
    return len(known) + 1


def resolved_digits(low: float, high: float) -> int | None:
    """Decimal places that an interval resolves: its half width is at least 1 in the last of them.

    None where there is no interval, or an infinite one. One of no width resolves 15 places.
    """
    half = (high - low) / 2
    if math.isnan(half) or math.isinf(half):
        return None
    return min(15, -math.floor(math.log10(half))) if half > 0 else 15


def published(record: Record, seed: PrivateSeed) -> Record:
    """What may be published of a record on private examples.

        measures    the number, its interval and its controls, rounded to the digit that the
                    interval resolves: a power of ten that is not above half its width. A number
                    without an interval resolves nothing and is withheld (NaN)
        examples    how many they are. Their hash is keyed with the seed: equal for equal
                    examples, and of no use to who has examples and looks for them here

    Tables, values of examples, warnings and times are left out.
    """
    places = {
        measure.name: resolved_digits(measure.low, measure.high)
        for measure in record.measures
        if measure.of == "result"
    }
    data, keyed = dict(record.data), dict[str, str]()
    for role, selection in record.data.items():
        if selection.split == PRIVATE:
            code = hmac.new(str(seed.seed).encode(), selection.hash.encode(), hashlib.sha256)
            keyed[selection.hash] = code.hexdigest()
            data[role] = selection.model_copy(update={"hash": code.hexdigest()})
    about = record.provenance
    task = record.task.model_copy(update={"args": {**record.task.args, "epoch": seed.epoch}})
    return record.changed(
        task=task,
        data=data,
        provenance=about.model_copy(
            update={"data_hash": keyed.get(about.data_hash, about.data_hash)}
        ),
        measures=[_rounded(measure, places.get(measure.name)) for measure in record.measures],
        tables=[],
        values=None,
        warnings=[],
        spent={},
    )


def _rounded(measure: Measure, places: int | None) -> Measure:
    names = ("value", "low", "high")
    if places is None:
        return measure.model_copy(update=dict.fromkeys(names, math.nan))
    return measure.model_copy(
        update={name: round(getattr(measure, name), places) for name in names}
    )


TABLES = "tables.md"
WITHHELD = "The reason is withheld: it may repeat private examples."


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came of evaluating a submission.

    Attributes:
        problems: mistakes and warnings of the submission; nothing was run if there are mistakes.
        results: of each run, by its name.
        failures: cells without a number, by the name of their run.
    """

    folder: Path
    problems: Problems
    results: dict[str, Report]

    @property
    def failures(self) -> list[tuple[str, Failure]]:
        """Cells that failed, with the name of their run; what was skipped is none."""
        return [
            (name, failure)
            for name, results in self.results.items()
            for failure in results.failures
            if failure.status == "failed"
        ]


def experiments_of(
    submission: Submission, track: BoardTrack, seed: PrivateSeed | None = None
) -> Iterator[tuple[str, SplitName, Any]]:
    """Yield the experiments that evaluate a submission, each with the name and split of its run.

    Args:
        seed: of private examples; without it the private split is left out.
    """
    for part in submission.parts:
        yield _named(part, TEST, experiment_of_part(part, submission.folder, track))
        if submission.kind == "circuits" and track.has_adversarial(part.model, part.task):
            place = submission.folder / part.path, track.loaded_from(part.model), part.task
            experiment = track.adversarial.experiment(*place, track.dtype, track.seed)
            yield _named(part, TEST, experiment, "adversarial")
    if seed is None or PRIVATE not in track.splits:
        return
    for part in submission.parts:
        if part.form != "directions":  # Sentences of gym tasks are public.
            experiment = experiment_of_part(part, submission.folder, track, seed)
            yield _named(part, PRIVATE, experiment, f"{PRIVATE}-{seed.epoch}")


def _named(
    part: SubmissionPart, split: SplitName, experiment: Any, begins: str = TEST
) -> tuple[str, SplitName, Any]:
    """Return the name of an experiment's run, which ends in a hash of the track's settings, its
    split and the experiment.

    Under another track a part has another run, and its earlier numbers stay.
    """
    settings = {
        field.name: getattr(experiment, field.name)
        for field in dataclasses.fields(experiment)
        if field.name not in (*GIVEN, CIRCUITS, "private_seed")
    }
    text = json.dumps(settings, sort_keys=True, default=list)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return (
        cell_name(begins, *filter(None, (part.model, part.task, part.variable)), digest),
        split,
        experiment,
    )


MANY_ROWS = 10
"""Rows of a board that a cell on a ground truth may be the best of, see `stats.chance`."""


def experiment_of_part(
    part: SubmissionPart, folder: Path, track: BoardTrack, seed: PrivateSeed | None = None
) -> Any:
    """The experiment that evaluates one part of a submission.

    Args:
        folder: of the submission.
        seed: of private examples; without it the experiment is about the public ones.
    """
    model, path, n = track.loaded_from(part.model), str(folder / part.path), track.examples_of
    if part.form == "directions":
        # Regions are chosen on as many items as the directions are tested on.
        limits = {"validation_limit": n(part.task), "limit": n(part.task)}
        precision: dict[str, Any] = {"dtype": track.dtype, "seed": track.seed}
        return DirectionsExperiment((path,), model, part.task, **limits, **precision)
    about: dict[str, Any] = {
        "split": TEST if seed is None else PRIVATE,
        "limit": n(part.task),
        "dtype": track.dtype,
        "seed": track.seed,
        "private_seed": None if seed is None else seed.seed,
    }
    if part.form in ("alignment", "mib-alignment"):
        # Of any task: the folder holds one alignment, which may call its task otherwise.
        return AlignmentsExperiment((path,), model, **about)
    # A ground truth runs on its own task where none is named.
    if is_truth(model) and part.task == model:
        # Cheap there; enough for the best of `MANY_ROWS` to be told from the best of random ones.
        about["random_rankings"] = DRAWS_PER_TRY * MANY_ROWS
        return CircuitsExperiment((model,), (), scores=(path,), profile=track.profile, **about)
    return CircuitsExperiment(
        (model,), (part.task,), scores=(path,), profile=track.profile, **about
    )


def evaluate(
    source: str | Path,
    track: BoardTrack,
    folder: Path,
    *,
    executor: Executor | None = None,
    device: str = "cpu",
    seed: PrivateSeed | None = None,
    private_folder: Path | None = None,
    progress: Progress = BAR,
) -> Evaluation:
    """Evaluate a submission in a folder, or go on with it there.

    Args:
        source: Folder, or `hub:OWNER/NAME[@REVISION]`.
        executor: of public cells; a process at a time, within the track's limits, by default.
            Private cells always run so: nothing private leaves this machine.
        seed, private_folder: of private examples, and where their runs are.

    Raises:
        BadUsage: the folder has results of other content; results beside it are of the same
            content, or of a name that looks the same.
        BadFile: the name of the folder is none for a submission that declares no name.
        DiskFull: there is no room.
    """
    with TemporaryDirectory() as scratch:
        submission = open_submission(source, Path(scratch) / COPY, track)
        if not submission.valid:
            return Evaluation(folder, submission.problems, {})
        # A submission without submission.yaml is named after the folder of its results.
        declaration = submission.declaration or Declaration.of({"name": folder.resolve().name})
        content = submission.content(track)
        header = SubmissionHeader(
            declaration=declaration, content=content, folder=str(folder / COPY)
        )
        _check_others(header, folder)
        submission = submission.copied_to(folder / COPY, track)
    write_text(folder / HEADER_FILE, header.model_dump_json(indent=1))
    if private_folder is not None:
        private_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    limited = Processes(1, CellLimits(track.cell.seconds, track.cell.memory_gb))
    runs: list[tuple[str, Any, Worker, Executor]] = []
    for name, split, experiment in experiments_of(submission, track, seed):
        where, by = folder / RUNS / name, executor or limited
        if split == PRIVATE:
            assert seed is not None and private_folder is not None, "a seed lies in a folder"
            where, by = private_folder / seed.epoch / folder.resolve().name / name, limited
        try:
            worker = opened(experiment, where, device=device, progress=progress, here=not by.remote)
            runs.append((name, experiment, worker, by))
        except DiskFull:
            raise  # It is not the submission that is wrong.
        except MechassayError as error:
            submission.problems.note("", str(error).replace(f"{submission.folder}{os.sep}", ""))
    if not submission.valid:
        return Evaluation(folder, submission.problems, {})
    results: dict[str, Report] = {}
    for name, experiment, worker, by in runs:
        public = RunFolder(folder / RUNS / name)
        is_private = worker.folder.path != public.path
        if public.cells_left(worker.cells):
            left = worker.folder.cells_left(worker.cells)
            by.map(experiment, by_inputs(left), worker)
            if is_private:
                assert seed is not None
                _publish(experiment, worker.folder, public, seed)
            else:
                experiment.write(read_report(public, worker.cells))
        results[name] = read_report(public, worker.cells)
    write_text(folder / TABLES, tables(folder))
    return Evaluation(folder, submission.problems, results)


def _check_others(header: SubmissionHeader, folder: Path) -> None:
    """Refuse a submission whose folder, content or name is that of another one."""
    own = SubmissionHeader.read(folder)
    if own is not None and own.content != header.content:
        if any((folder / RUNS).glob("*/records/**/*.json")):
            raise BadUsage(
                f"{folder} has the results of other content ({own.content[:12]}, now"
                f" {header.content[:12]}): a changed submission is a new one. Name another folder."
            )
        for name in (COPY, RUNS):
            shutil.rmtree(folder / name, ignore_errors=True)
    for file in sorted(folder.parent.glob(f"*/{HEADER_FILE}")):
        other = SubmissionHeader.read(file.parent)
        if other is None or file.parent.resolve() == folder.resolve():
            continue
        if other.content == header.content:
            raise BadUsage(
                f"{folder.name}: has the content of {file.parent.name}, number by number: the same"
                " content is the same submission."
            )
        names = header.declaration.name, other.declaration.name
        if skeleton(names[0]) == skeleton(names[1]):
            raise BadUsage(
                f"{folder.name}: its name {names[0]!r} looks like {names[1]!r}, that of"
                f" {file.parent.name}. Declare another name."
            )


def _publish(experiment: Any, hidden: RunFolder, public: RunFolder, seed: PrivateSeed) -> None:
    """Write what may be published of a private run to a folder of its own."""
    write_text(public.plan_file, hidden.plan_file.read_text("utf-8"))
    for cell in experiment.cells():
        record, failure = hidden.record(cell.name), hidden.failure(cell.name)
        if public.record(cell.name) is None and record is not None:
            public.save_record(cell.name, published(record, seed))
        if failure is not None:
            failure = failure.model_copy(update={"message": WITHHELD, "traceback": ""})
        public.save_failure(cell.name, failure)


def tables(folder: Path) -> str:
    """All numbers of an evaluated submission as Markdown, and what has none."""
    lines = [
        "| row | board | number | model | of | value | n | controls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rules in board_rules().values():
        cells, _ = read_cells(rules, folder)
        lines += [_line(cell, rules.column(cell.column).title) for cell in cells]
    failures = [
        f"- {file.relative_to(folder / RUNS).parts[0]}: {failure.status}: {failure.message}"
        for file in sorted((folder / RUNS).glob("*/failures/**/*.json"))
        for failure in [Failure.model_validate_json(file.read_bytes())]
    ]
    return "\n".join([*lines, "", *failures]).rstrip() + "\n"


def _line(cell: BoardCell, title: str) -> str:
    place = dict(cell.place)
    model = place.pop("model", "")
    private = " (private)" if cell.private else ""
    controls = ", ".join(f"{name} {number(value)}" for name, value in cell.controls.items())
    value = interval(cell.value, cell.low, cell.high) + (f" ({cell.reason})" if cell.reason else "")
    of = ", ".join(place.values()) + private
    words = (cell.row, cell.board, title, model, of, value, f"{cell.n:,}", controls)
    safe = [word.replace("|", "\\|").replace("\n", " ") for word in words]
    return f"| {' | '.join(safe)} |"
