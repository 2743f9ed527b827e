"""A submission as a folder of data: what it holds, and every mistake in it at once.

    circuits     TASK_MODEL/                    or a run's scores: MODEL--TASK/
                     one file of scores         .safetensors of ours; .json or .pt of MIB
                     or circuits                .safetensors of ours, of any sizes; MIB's nine
                 TASK_MODEL.json                a file of scores may stand alone
    variables    FOLDER/alignment.json ...      our alignments, in folders of any name
                 TASK_MODELCLASS_VARIABLE/...   MIB's causal folders (`variables.mib_folder`)
    gym          TASK_MODEL/, MODEL--TASK/      directions of one method (`service.direction_parts`)

One folder may stand around all, as archives have it. Models have the public names of the track;
`submission.yaml` declares the rest. Nothing in a file is executed: see `circuit_parts`,
`alignment_parts` and `direction_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mechassay.circuits.series import CIRCUIT_ENDINGS
from mechassay.display import OneLine
from mechassay.errors import BadFile
from mechassay.runs.alignments import AlignmentsJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.service.alignment_parts import AlignmentParts, is_mib
from mechassay.service.archive import unpack
from mechassay.service.bundle_files import DEEPEST, digest_of, files_in
from mechassay.service.bundle_part import BundlePart, PartReader
from mechassay.service.circuit_parts import CircuitParts
from mechassay.service.declaration import FILES, Declaration
from mechassay.service.direction_parts import DirectionParts, directions_job
from mechassay.service.hub import PREFIX, download
from mechassay.service.track import TEST, ServiceTrack, SubmissionKind
from mechassay.submissions import Problem, Problems, leads_out
from mechassay.tasks.task import PRIVATE
from mechassay.truth.models import is_truth
from mechassay.variables.variable_alignment import HEADER


@dataclass(frozen=True, eq=False, repr=False)
class Bundle(OneLine):
    """A submission that was read.

    Attributes:
        kind: the board that it is for; "" where it holds nothing.
        digest: the SHA-256 of all files and their paths.
        declaration: None if there is none, or it cannot be read.
        problems: all mistakes, and warnings.
    """

    folder: Path
    kind: SubmissionKind | Literal[""]
    parts: tuple[BundlePart, ...]
    digest: str
    n_files: int
    n_bytes: int
    declaration: Declaration | None = None
    problems: Problems = field(default_factory=Problems)

    @property
    def valid(self) -> bool:
        """Whether there is no mistake; warnings may be."""
        return not self.problems.errors

    def shown(self) -> dict[str, Any]:
        told = {"kind": self.kind or "nothing", "parts": len(self.parts), "files": self.n_files}
        return {**told, "problems": len(self.problems.errors), "digest": self.digest[:12]}

    def jobs(self, track: ServiceTrack, private_seed: int | None = None) -> list[Any]:
        """The jobs that evaluate it: one for each part, on public examples and then on private;
        then the adversarial ones, which are public. The number of a job is the same everywhere.

        Args:
            private_seed: of the private examples; without it, their jobs can only be listed.

        Raises:
            BadFile: the bundle has mistakes.
        """
        self.problems.refuse(self.folder)
        splits = [split for split in (TEST, PRIVATE) if split in track.splits]
        jobs = [
            job_of_part(self, part, track, split, private_seed if split == PRIVATE else None)
            for split in splits
            for part in self.parts
            # Sentences of gym tasks are public: there is no private split.
            if split == TEST or part.form != "directions"
        ]
        circuits = [(x.path, x.model, x.task) for x in self.parts if self.kind == "circuits"]
        return [*jobs, *track.adversarial_jobs(self.folder, circuits)]


def job_of_part(
    bundle: Bundle, part: BundlePart, track: ServiceTrack, split: str, private_seed: int | None
) -> Any:
    """The job that evaluates one part of a bundle on one split."""
    model = track.loaded_from(part.model)
    if part.form in ("alignment", "mib-alignment"):
        return AlignmentsJob(
            # Of any task: the folder holds one alignment, which may call its task otherwise.
            (str(bundle.folder / part.path),),
            model,
            test_split=split,
            test_limit=track.examples_of(part.task),
            dtype=track.dtype,
            seed=track.seed,
            private_seed=private_seed,
        )
    if part.form == "directions":
        return directions_job(bundle.folder / part.path, model, part.task, track)
    return CircuitsJob(
        models=(model,),
        # A ground truth runs on its own task where none is named.
        tasks=() if is_truth(model) and part.task == model else (part.task,),
        scores=(str(bundle.folder / part.path),),
        test_split=split,
        test_limit=track.examples_of(part.task),
        profile=track.profile,
        dtype=track.dtype,
        seed=track.seed,
        private_seed=private_seed,
    )


def read_bundle(folder: str | Path, track: ServiceTrack, found: Sequence[Problem] = ()) -> Bundle:
    """Read a submission's folder; mistakes are in it, and nothing is executed.

    Args:
        found: what was wrong already, as when it was unpacked.
    """
    folder, problems = Path(folder), Problems(found)
    if not folder.is_dir():
        problems.note(".", f"there is no folder {folder}.")
        return Bundle(folder, "", (), "", 0, 0, problems=problems)
    files = files_in(folder, track, problems)
    reader = _Reader(folder, track, problems)
    declaration = reader.declaration()
    kind, parts = reader.parts()
    if kind and kind not in track.boards:
        problems.note(".", f"this track takes no submissions of {kind}.")
    reader.check_twice(parts)
    sizes = [file.stat().st_size for file in files]
    digest = digest_of(folder, files)
    told = problems.short()
    return Bundle(folder, kind, tuple(parts), digest, len(files), sum(sizes), declaration, told)


def open_bundle(
    source: str | Path, folder: str | Path, track: ServiceTrack, name: str = ""
) -> Bundle:
    """Read a submission that is a file, or an id of the hub, in an empty folder; a folder as it is.

    Args:
        name: what a single file of data is called.

    Raises:
        BadUsage, MissingExtra: see `hub.download`; the folder is not empty.
        DiskFull: there is no room.
    """
    if str(source).startswith(PREFIX):
        return read_bundle(download(str(source), Path(folder), track.upload), track)
    if Path(source).is_dir():
        return read_bundle(source, track)
    try:
        if not Path(source).exists():
            raise BadFile(f"{source}: there is no such file or folder.")
        return read_bundle(folder, track, unpack(source, folder, track.upload, name))
    except BadFile as error:
        found = Problems([Problem(".", str(error))])
        return Bundle(Path(folder), "", (), "", 0, 0, problems=found)


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

    def parts(self) -> tuple[SubmissionKind | Literal[""], list[BundlePart]]:
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

    def check_twice(self, parts: Sequence[BundlePart]) -> None:
        """Note every part that is evaluated on what another one is."""
        first: dict[tuple[str, ...], BundlePart] = {}
        for part in parts:
            before = first.setdefault((part.model, part.task, part.variable), part)
            if before is not part:
                on = " ".join(filter(None, (part.variable, part.task, "on", part.model)))
                self.problems.note(part.path, f"a second one for {on}, beside {before.path}.")
