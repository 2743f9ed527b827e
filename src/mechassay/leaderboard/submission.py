"""Submissions: a folder, or a repository of the hub, read with distrust.

A submission is of one board:

    circuits     folders TASK_MODEL of scores or circuits, in our layout or in MIB's
    variables    alignments of causal variables, in our layout or in MIB's
    gym          folders TASK_MODEL of directions for gym tasks

What it declares of itself stands in `submission.yaml` (`declaration`). All mistakes are told at
once. Nothing in a submission is executed, and no link out of it is followed.

On the Hugging Face hub it is `hub:OWNER/NAME`, with `@REVISION` if it is not the newest. A folder
whose declaration names a commit of the hub holds nothing else: the files are there. The list of
files is asked for first: what is too much is refused before anything is downloaded. Files of
data of one commit are downloaded, and no others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mechassay.circuits.graph_files import ENDINGS
from mechassay.circuits.series import CIRCUIT_ENDINGS
from mechassay.leaderboard.submission_parts import (
    AlignmentParts,
    CircuitParts,
    DirectionParts,
    PartReader,
    SubmissionPart,
    content_of,
    is_mib,
)
from mechassay.leaderboard.track import FILES, BoardTrack, Declaration, SubmissionKind
from mechassay.utils.display import OneLine
from mechassay.utils.files import BESIDE, LEADS_OUT, Problem, Problems, leads_out, no_folder, whole
from mechassay.utils.hub import HUB, download
from mechassay.variables.alignment import HEADER

DEEPEST = 8
"""Folders in folders that are looked into."""
IGNORED = (".git", ".cache")
DATA_ENDINGS = (".safetensors", *ENDINGS, ".yaml", "_featurizer", "_indices", "README.md")
"""How the files of the hub end that are downloaded; MIB's causal folders have no endings."""


@dataclass(frozen=True, eq=False, repr=False)
class Submission(OneLine):
    """A submission that was read.

    Attributes:
        kind: the board that it is for; "" where it holds nothing.
        files: all regular files in it, sorted by path.
        declaration: None if there is none, or it cannot be read.
        problems: all mistakes, and warnings.
    """

    folder: Path
    kind: SubmissionKind | Literal[""]
    parts: tuple[SubmissionPart, ...]
    files: tuple[Path, ...] = ()
    declaration: Declaration | None = None
    problems: Problems = field(default_factory=Problems)

    @property
    def valid(self) -> bool:
        """Whether there is no mistake; warnings may be."""
        return not self.problems.errors

    def repr_fields(self) -> dict[str, Any]:
        about = {"kind": self.kind or "nothing", "parts": len(self.parts)}
        return {**about, "files": len(self.files), "problems": len(self.problems.errors)}

    def content(self, track: BoardTrack) -> str:
        """Return the SHA-256 of all numbers in the submission. File names do not change the hash.

        Raises:
            BadFile: the submission has mistakes.
        """
        self.problems.refuse(self.folder, "mechassay leaderboard validate")
        lines = [
            [self.kind, part.model, part.task, part.variable, content_of(part, self.folder, track)]
            for part in self.parts
        ]
        return hashlib.sha256(json.dumps(sorted(lines)).encode()).hexdigest()

    def copied_to(self, folder: Path, track: BoardTrack) -> Submission:
        """The same submission in a folder that is made, or is there from an earlier copy.

        Raises:
            DiskFull: there is no room.
        """
        if not folder.is_dir():
            with whole(folder) as partial_folder:
                for file in self.files:
                    if any(part.startswith(".") for part in file.relative_to(self.folder).parts):
                        continue  # What a repository says to git is no part of the content.
                    copy = partial_folder / file.relative_to(self.folder)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
        return read_submission(folder, track)


def read_submission(
    folder: str | Path, track: BoardTrack, problems: Sequence[Problem] = ()
) -> Submission:
    """Read a submission's folder; mistakes are in it, and nothing is executed.

    Args:
        problems: Problems that are known before the folder is read.
    """
    folder, noted = Path(folder), Problems(problems)
    if not folder.is_dir():
        noted.note(".", f"{no_folder(folder)}: {folder}.")
        return Submission(folder, "", (), problems=noted)
    files = _files_in(folder, track, noted)
    reader = _Reader(folder, track, noted)
    declaration = reader.declaration()
    kind, parts = reader.parts()
    if kind and kind not in track.boards:
        noted.note(".", f"this track takes no submissions of {kind}.")
    reader.check_twice(parts)
    return Submission(folder, kind, tuple(parts), tuple(files), declaration, noted.short())


def open_submission(source: str | Path, folder: str | Path, track: BoardTrack) -> Submission:
    """Read the submission in a folder, or download and read a submission on the hub.

    Args:
        source: Folder, or `hub:OWNER/NAME[@REVISION]`.
        folder: Folder that files from the hub are downloaded to.

    Raises:
        BadUsage, BadFile, MissingExtra: the hub's files cannot be downloaded; see `download`.
    """
    if str(source).startswith(HUB):
        return read_submission(_downloaded(str(source), Path(folder), track), track)
    submission = read_submission(source, track)
    declared = submission.declaration
    if declared is None or not declared.hub:
        return submission
    problems = Problems()
    for file in submission.files:
        if file.name not in (*FILES, *BESIDE):
            name = file.relative_to(source).as_posix()
            problems.note(name, f"the files are those of hub:{declared.hub}; remove this one.")
    where = _downloaded(f"{HUB}{declared.hub}", Path(folder), track)
    held = read_submission(where, track, problems)
    # The declaration in the given folder takes precedence over the declaration on the hub.
    return dataclasses.replace(held, declaration=declared)


def _downloaded(name: str, folder: Path, track: BoardTrack) -> Path:
    limits = track.upload
    return download(name, folder, DATA_ENDINGS, limits.files, limits.n_bytes)


def _files_in(folder: Path, track: BoardTrack, problems: Problems) -> list[Path]:
    """All files below a folder, sorted by path; what is none, or too much, is a problem."""
    files: list[Path] = []
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            name = path.relative_to(folder)
            if name.parts[0] in IGNORED:
                continue
            if leads_out(path, folder):
                problems.note(name.as_posix(), LEADS_OUT)
            elif path.is_dir():
                if path.is_symlink():
                    problems.note(name.as_posix(), "a link to a folder; copy the folder here.")
                elif len(name.parts) > DEEPEST:
                    problems.note(name.as_posix(), f"more than {DEEPEST} folders deep.")
                else:
                    waiting.append(path)
            elif path.is_file():
                files.append(path)
            else:
                problems.note(name.as_posix(), "is no regular file.")
    limits, total = track.upload, sum(path.stat().st_size for path in files)
    if len(files) > limits.files:
        problems.note(".", f"{len(files):,} files; at most {limits.files:,} are allowed.")
    if total > limits.n_bytes:
        size = f"{total / 10**6:,.0f} MB; at most {limits.megabytes:,.0f} MB are allowed."
        problems.note(".", size)
    return sorted(files)


class _Reader(PartReader):
    """A folder that is read as a whole."""

    def root(self) -> Path:
        """The folder of the submission: the given one, or the only one in it."""
        root = self.folder
        for _ in range(DEEPEST):
            inside = self.entries(root)
            alone = len(inside) == 1 and inside[0].is_dir() and not leads_out(inside[0], root)
            if not alone or self._is_part(inside[0]):
                return root
            root = inside[0]
        return root

    def _is_part(self, path: Path) -> bool:
        """Whether a folder is itself of one model, and no folder around such folders."""
        if is_mib(path.name) or (path / HEADER).is_file():
            return True
        return any(file.suffix in CIRCUIT_ENDINGS for file in path.iterdir())

    def declaration(self) -> Declaration | None:
        """What the folder declares of itself."""
        for root in dict.fromkeys((self.folder, self.root())):
            for path in (root / name for name in FILES):
                if path.is_file() and not leads_out(path, self.folder):
                    name = self.name_of(path)
                    return self.problems.tried(name, partial(Declaration.read, path), path)
        return None

    def parts(self) -> tuple[SubmissionKind | Literal[""], list[SubmissionPart]]:
        """The board that it is for, and what is to be evaluated."""
        about, root = (self.folder, self.track, self.problems), self.root()
        if (alignments := AlignmentParts(*about).in_root(root)) is not None:
            return "variables", alignments
        entries, directions = self.entries(root), DirectionParts(*about)
        if any(map(directions.is_one, entries)):
            return "gym", [part for path in entries for part in directions.read(path)]
        if not entries:
            self.problems.note(
                ".",
                "holds nothing to evaluate: folders TASK_MODEL of scores, circuits or directions,"
                f" or alignments ({HEADER}).",
            )
            return "", []
        circuits = CircuitParts(*about)
        return "circuits", [part for path in entries for part in circuits.read(path)]

    def check_twice(self, parts: Sequence[SubmissionPart]) -> None:
        """Note every part that is evaluated on what another one is."""
        first: dict[tuple[str, ...], SubmissionPart] = {}
        for part in parts:
            before = first.setdefault((part.model, part.task, part.variable), part)
            if before is not part:
                on = " ".join(filter(None, (part.variable, part.task, "on", part.model)))
                self.problems.note(part.path, f"a second one for {on}, beside {before.path}.")
