"""A submission evaluated under a track: ordinary runs, each cell within the track's limits.

    DIR/submission.json          what the results are of: `declaration.SubmissionHeader`
    DIR/submission/              a copy of the submission, which the plans of the runs name
    DIR/runs/RUN/                a run for each part, split and track, as any run (`runs.folder`)
    DIR/tables.md                all numbers
    SEEDS/private/EPOCH/NAME/    runs on private examples, beside the file of seeds

Each cell has a process of its own, which is ended at `cell.seconds` and `cell.memory_gb` of the
track. What is done is kept: the same command goes on. A changed submission is another submission:
it needs another DIR. Other submissions are those whose results stand beside DIR; the same content
is refused under another name, and so is a name that looks like that of another.

Private examples: the runs stay beside the seeds, of whose file they have the rights. DIR gets what
may be published of their records (`private_split`), once an epoch. A record that is there is never
made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mechassay.errors import BadUsage, DiskFull, MechassayError
from mechassay.files import write_text
from mechassay.leaderboard.cells import COPY, RUNS, BoardCell, read_cells
from mechassay.leaderboard.declaration import HEADER_FILE, Declaration, SubmissionHeader, skeleton
from mechassay.leaderboard.private_split import PrivateSeed, published
from mechassay.leaderboard.recomputation import CIRCUITS, GIVEN
from mechassay.leaderboard.rules import board_rules
from mechassay.leaderboard.submission import Submission, open_submission
from mechassay.leaderboard.submission_parts import SubmissionPart
from mechassay.leaderboard.track import TEST, BoardTrack, SplitName
from mechassay.progress import BAR, Progress
from mechassay.records import Failure
from mechassay.runs.alignments import AlignmentsJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.directions import DirectionsJob
from mechassay.runs.execute import CellLimits, Executor, Processes, batches_of, prepare
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Results, cell_name
from mechassay.submissions import Problems
from mechassay.tasks.task import PRIVATE
from mechassay.text import interval, number
from mechassay.truth.models import is_truth

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
    results: dict[str, Results]

    @property
    def failures(self) -> list[tuple[str, Failure]]:
        """Cells that failed, with the name of their run; what was skipped is none."""
        return [
            (name, failure)
            for name, results in self.results.items()
            for failure in results.failures
            if failure.status == "failed"
        ]


def jobs_of(
    submission: Submission, track: BoardTrack, seed: PrivateSeed | None = None
) -> Iterator[tuple[str, SplitName, Any]]:
    """The jobs that evaluate a submission: the name of each run, its split, and the job.

    Args:
        seed: of private examples; without it the private split is left out.
    """
    for part in submission.parts:
        yield _named(part, TEST, job_of_part(part, submission.folder, track))
        if submission.kind == "circuits" and track.has_adversarial(part.model, part.task):
            place = submission.folder / part.path, track.loaded_from(part.model), part.task
            job = track.adversarial.job(*place, track.dtype, track.seed)
            yield _named(part, TEST, job, "adversarial")
    if seed is None or PRIVATE not in track.splits:
        return
    for part in submission.parts:
        if part.form != "directions":  # Sentences of gym tasks are public.
            job = job_of_part(part, submission.folder, track, seed)
            yield _named(part, PRIVATE, job, f"{PRIVATE}-{seed.epoch}")


def _named(
    part: SubmissionPart, split: SplitName, job: Any, begins: str = TEST
) -> tuple[str, SplitName, Any]:
    """A job with its split and the name of its run, which ends in a hash of the track's settings.

    Under another track a part has another run, and its earlier numbers stay.
    """
    settings = {
        field.name: getattr(job, field.name)
        for field in dataclasses.fields(job)
        if field.name not in (*GIVEN, CIRCUITS, "private_seed")
    }
    text = json.dumps(settings, sort_keys=True, default=list)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return (
        cell_name(begins, *filter(None, (part.model, part.task, part.variable)), digest),
        split,
        job,
    )


def job_of_part(
    part: SubmissionPart, folder: Path, track: BoardTrack, seed: PrivateSeed | None = None
) -> Any:
    """The job that evaluates one part of a submission.

    Args:
        folder: of the submission.
        seed: of private examples; without it the job is about the public ones.
    """
    model, path, n = track.loaded_from(part.model), str(folder / part.path), track.examples_of
    if part.form == "directions":
        # Regions are chosen on as many items as the directions are tested on.
        limits = {"validation_limit": n(part.task), "test_limit": n(part.task)}
        precision: dict[str, Any] = {"dtype": track.dtype, "seed": track.seed}
        return DirectionsJob((path,), model, part.task, **limits, **precision)
    about: dict[str, Any] = {
        "test_split": TEST if seed is None else PRIVATE,
        "test_limit": n(part.task),
        "dtype": track.dtype,
        "seed": track.seed,
        "private_seed": None if seed is None else seed.seed,
    }
    if part.form in ("alignment", "mib-alignment"):
        # Of any task: the folder holds one alignment, which may call its task otherwise.
        return AlignmentsJob((path,), model, **about)
    # A ground truth runs on its own task where none is named.
    tasks = () if is_truth(model) and part.task == model else (part.task,)
    return CircuitsJob((model,), tasks, scores=(path,), profile=track.profile, **about)


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
        source: a folder, an archive, a file, or `hub:OWNER/NAME@COMMIT`.
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
        # What has no submission.yaml, as a single file, is called as the folder of its results.
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
    runs: list[tuple[str, Any, Bench, Executor]] = []
    for name, split, job in jobs_of(submission, track, seed):
        where, by = folder / RUNS / name, executor or limited
        if split == PRIVATE:
            assert seed is not None and private_folder is not None, "a seed lies in a folder"
            where, by = private_folder / seed.epoch / folder.resolve().name / name, limited
        try:
            bench = prepare(job, where, device=device, progress=progress, here=not by.remote)
            runs.append((name, job, bench, by))
        except DiskFull:
            raise  # It is not the submission that is wrong.
        except MechassayError as error:
            submission.problems.note("", str(error).replace(f"{submission.folder}{os.sep}", ""))
    if not submission.valid:
        return Evaluation(folder, submission.problems, {})
    results: dict[str, Results] = {}
    for name, job, bench, by in runs:
        public = RunFolder(folder / RUNS / name)
        is_private = bench.folder.path != public.path
        if not all(public.record(cell.name) for cell in job.cells()):
            by.map(job, batches_of(job, bench.folder), bench)
            if is_private:
                assert seed is not None
                _publish(job, bench.folder, public, seed)
            else:
                job.report(Results.stored(job, public))
        results[name] = Results.stored(job, public)
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


def _publish(job: Any, hidden: RunFolder, public: RunFolder, seed: PrivateSeed) -> None:
    """Write what may be published of a private run to a folder of its own."""
    write_text(public.plan_file, hidden.plan_file.read_text("utf-8"))
    for cell in job.cells():
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
        f"- {file.relative_to(folder / RUNS).parts[0]}: {told.status}: {told.message}"
        for file in sorted((folder / RUNS).glob("*/failures/**/*.json"))
        for told in [Failure.model_validate_json(file.read_bytes())]
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
