"""A submission as a folder of data: what it holds, and every mistake in it at once.

    circuits     TASK_MODEL/                    or a run's scores: MODEL--TASK/
                     one file of scores         .safetensors of ours; .json or .pt of MIB
                     or circuits                .safetensors of ours, of any sizes; MIB's nine
                 TASK_MODEL.json                a file of scores may stand alone
    variables    FOLDER/alignment.json ...      our alignments, in folders of any name
                 TASK_MODELCLASS_VARIABLE/...   MIB's causal folders (`variables.mib_folder`)
    gym          TASK_MODEL/, MODEL--TASK/      directions of one method (`service.direction_parts`)

One folder may stand around all, as archives have it. Models have the public names of the track;
`submission.yaml` declares the rest. Nothing in a file is executed: see `circuits.formats`,
`variables.mib_folder`. A file that is larger than any about its model can be is not opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mechassay.circuits.formats import ENDINGS
from mechassay.circuits.node_scores import NeuronScores, Scores, load_scores
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.circuits.series import CIRCUIT, CIRCUIT_ENDINGS
from mechassay.circuits.submission import TrackModel, graph_file_problems
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.files import kind_of
from mechassay.runs.alignments import AlignmentsJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.service.archive import unpack
from mechassay.service.bundle_files import DEEPEST, digest_of, files_in
from mechassay.service.declaration import FILES, Declaration
from mechassay.service.direction_parts import DirectionParts, directions_job
from mechassay.service.hub import PREFIX, download
from mechassay.service.track import TEST, ServiceTrack, SubmissionKind
from mechassay.submissions import BESIDE, CODE, Problem, Problems, leads_out
from mechassay.tasks.task import PRIVATE
from mechassay.truth.models import is_truth
from mechassay.variables.mib_board import MIB_BOARD
from mechassay.variables.mib_folder import PARAMETERS, mib_problems
from mechassay.variables.variable_alignment import HEADER, read_alignment

Form = Literal["scores", "circuits", "alignment", "mib-alignment", "directions"]
SCORES_FILE = ".safetensors"
_RUN_FOLDER = re.compile(r"(?P<model>[a-z0-9.-]+?)--(?P<task>[a-z0-9._-]+)")


@dataclass(frozen=True)
class BundlePart:
    """What is evaluated of a submission on one task with one model.

    Attributes:
        model: its public name.
        path: a file of scores, or a folder of circuits, of an alignment or of directions, relative
            to the bundle.
        variable: of an alignment, as the folder calls it.
    """

    model: str
    task: str
    path: str
    form: Form
    variable: str = ""


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
            (str(bundle.folder / part.path),),
            model,
            (part.task,),
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


@dataclass(frozen=True, eq=False)
class _Reader:
    """A folder that is read; what is wrong goes to `problems`, and the rest is read on."""

    folder: Path
    track: ServiceTrack
    problems: Problems

    def root(self) -> Path:
        """The folder of the submission: the given one, or the only one in it."""
        root = self.folder
        for _ in range(DEEPEST):
            inside = self._entries(root)
            alone = len(inside) == 1 and inside[0].is_dir() and not leads_out(inside[0], root)
            if not alone or self._is_part(inside[0]):
                return root
            root = inside[0]
        return root

    def _entries(self, folder: Path) -> list[Path]:
        """What is in a folder beside what every repository has."""
        return [
            path
            for path in sorted(folder.iterdir())
            if path.name not in BESIDE and path.name not in FILES
        ]

    def _is_part(self, path: Path) -> bool:
        """Whether a folder is itself of one model, and no folder around such folders."""
        if _is_causal(path.name) or (path / HEADER).is_file():
            return True
        return any(file.suffix in CIRCUIT_ENDINGS for file in path.iterdir())

    def split(self, name: str) -> tuple[str, str]:
        """Task and model of a folder's name; both "" where it has not the form of one."""
        run = _RUN_FOLDER.fullmatch(name)
        if run is not None:
            return run["task"], run["model"]
        task, _, model = name.rpartition("_")
        return (task, model) if task and model else ("", "")

    def name_of(self, path: Path) -> str:
        """A path as problems name it."""
        return path.relative_to(self.folder).as_posix()

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
        root = self.root()
        headers = [
            path
            for depth in ("", "*/", "*/*/")
            for path in sorted(root.glob(depth + HEADER))
            if not leads_out(path, self.folder)
        ]
        entries = self._entries(root)
        causal = any(_is_causal(path.name) or path.name == PARAMETERS for path in entries)
        if headers or causal:
            found = [*self._alignments(headers), *(self._causal(root) if causal else ())]
            if not found and not self.problems.errors:
                self.problems.note(".", "holds no alignment.")
            inside = {path.parent for path in headers}
            self._left(path for path in entries if not causal and not _around(path, inside))
            return "variables", found
        directions = DirectionParts(self.folder, self.track, self.problems)
        if any(directions.is_one(path, *self.split(path.name)) for path in entries):
            return "gym", [
                BundlePart(model, task, self.name_of(path), "directions")
                for path in entries
                for task, model in [self.split(path.name)]
                if directions.read(path, task, model)
            ]
        found = [part for path in entries for part in self._circuits(path)]
        if not entries:
            self.problems.note(
                ".",
                "holds nothing to evaluate: folders TASK_MODEL of scores, circuits or directions,"
                f" or alignments ({HEADER}).",
            )
        return ("circuits" if entries else ""), found

    def _left(self, paths: Iterable[Path]) -> None:
        for path in paths:
            said = CODE if path.suffix == ".py" else "belongs to no alignment and is not read."
            self.problems.note(self.name_of(path), said, warning=path.suffix != ".py")

    def check_twice(self, parts: Sequence[BundlePart]) -> None:
        """Note every part that is evaluated on what another one is."""
        first: dict[tuple[str, ...], BundlePart] = {}
        for part in parts:
            before = first.setdefault((part.model, part.task, part.variable), part)
            if before is not part:
                on = " ".join(filter(None, (part.variable, part.task, "on", part.model)))
                self.problems.note(part.path, f"a second one for {on}, beside {before.path}.")

    # --- circuits -------------------------------------------------------------------------------

    def _circuits(self, path: Path) -> Iterator[BundlePart]:
        """The part that a folder or a file is, if it is one."""
        name = self.name_of(path)
        if leads_out(path, self.folder):
            return  # Said already.
        if path.is_file() and path.suffix not in CIRCUIT_ENDINGS:
            said = CODE if path.suffix == ".py" else _NO_FILE
            self.problems.note(name, said)
            return
        task, model = self.split(path.name if path.is_dir() else path.stem)
        if not task:
            self.problems.note(name, "is not named TASK_MODEL, such as ioi_gpt2.")
            return
        about = self.problems.tried(name, partial(self._about, model, task))
        if about is None:
            return
        files = list(self._graph_files(path, about, model))
        if not files:
            if path.is_dir() and not any(path.iterdir()):
                self.problems.note(name, "no file of scores or of circuits.")
            return
        form = self._form(path, files, about)
        if form is not None:
            held = path if form == "circuits" else files[0]
            yield BundlePart(model, task, self.name_of(held), form)

    def _about(self, model: str, task: str) -> TrackModel:
        self.track.check(model, task)
        return self.track.circuit_model(model)

    def _graph_files(self, path: Path, about: TrackModel, model: str) -> Iterator[Path]:
        """The files of a part that may be opened."""
        largest = largest_file(about)
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            name = self.name_of(file)
            if leads_out(file, self.folder):
                continue  # Said already.
            if file.suffix == ".py":
                self.problems.note(name, CODE)
            elif not file.is_file() or file.suffix not in CIRCUIT_ENDINGS:
                if file.name not in BESIDE:
                    self.problems.note(name, _NO_FILE)
            elif file.stat().st_size > largest:
                self.problems.note(
                    name,
                    f"has {file.stat().st_size / 10**6:,.1f} MB; a file about {model} has at most"
                    f" {largest / 10**6:,.1f}: it was not opened.",
                )
            else:
                yield file

    def _form(self, path: Path, files: Sequence[Path], about: TrackModel) -> Form | None:
        """What files hold; None, with the problems, if anything is wrong with them."""
        before, name = len(self.problems.errors), self.name_of(path)
        theirs = [file for file in files if file.suffix in ENDINGS]
        if theirs and len(theirs) < len(files):
            self.problems.note(name, "holds files of ours and of MIB; one form is needed.")
            return None
        if theirs:
            here = self.name_of(theirs[0].parent).removeprefix(".")
            self.problems.extend(graph_file_problems(here, theirs, about))
            # Of one file the problems say that it must hold scores.
            form: Form = "scores" if len(theirs) == 1 else "circuits"
        else:
            kinds = {file: kind_of(file) for file in files}
            cut = [file for file, kind in kinds.items() if kind == CIRCUIT]
            if not cut and len(files) > 1:
                names = ", ".join(file.name for file in files[:3])
                self.problems.note(
                    name, f"{len(files)} rankings ({names}); a submission has one of each model."
                )
                return None
            if cut and path.is_file():
                self.problems.note(name, "a circuit alone; circuits come in a folder TASK_MODEL.")
                return None
            for file in files:
                read = self._circuit if cut else self._scores
                self.problems.tried(self.name_of(file), partial(read, file, about), file)
            form = "circuits" if cut else "scores"
        return form if len(self.problems.errors) == before else None

    def _circuit(self, file: Path, about: TrackModel) -> Circuit:
        circuit = Circuit.load(file, about.graph)
        if circuit.neurons is not None:
            _check_width(file, circuit.neurons.shape[1], about)
        if not len(circuit.pruned()):
            lost = "no edge of it is on a path from input to logits: it is the empty circuit."
            self.problems.note(self.name_of(file), lost, warning=True)
        return circuit

    def _scores(self, file: Path, about: TrackModel) -> Scores:
        scores = load_scores(file, about.graph)
        if isinstance(scores, NeuronScores):
            _check_width(file, scores.values.shape[1], about)
        known = scores.values[scores.scored()]
        if not len(known):
            raise BadUsage(f"{file}: no {scores.unit} has a score (all are NaN).")
        if bool((known == known[0]).all()):
            raise BadUsage(
                f"{file}: all scores of {scores.unit}s are equal ({float(known[0]):g}): they rank"
                " nothing."
            )
        if isinstance(scores, EdgeScores) and (n := scores.graph.n_edges - len(known)):
            self.problems.note(
                self.name_of(file),
                f"{n:,} of {scores.graph.n_edges:,} edges have no score; they are in the full"
                " circuit alone.",
                warning=True,
            )
        return scores

    # --- variables ------------------------------------------------------------------------------

    def _alignments(self, headers: Iterable[Path]) -> Iterator[BundlePart]:
        for header in headers:
            folder, inner = header.parent, Problems()
            read = read_alignment(folder, inner)
            self._take(folder, inner)
            if read is None:
                continue
            at = self.name_of(header)
            model = self.problems.tried(at, partial(self.track.public_name, read.model))
            if model is None:
                continue
            fits = self.problems.tried(at, partial(self._fits, model, read.task, read.shape))
            if fits:
                yield BundlePart(model, read.task, self.name_of(folder), "alignment", read.variable)

    def _fits(self, model: str, task: str, shape: object) -> bool:
        self.track.check(model, task)
        expected = self.track.shape(model)
        if shape not in (None, expected):
            raise BadUsage(f"is about a model of {shape}; {model} has {expected}.")
        return True

    def _causal(self, root: Path) -> Iterator[BundlePart]:
        """The folders of MIB's causal track."""
        board = self.problems.tried(self.name_of(root), self.track.causal_board)
        if board is None:
            return
        if not board.models:
            self.problems.note(".", "this track names no models of MIB's causal track.")
            return
        self._take(root, mib_problems(root, board=board))
        for folder in self._entries(root):
            try:
                task, kind, variable = board.parsed(folder.name)
            except MechassayError:
                continue  # Said already.
            name = self.name_of(folder)
            ours = board.tasks[task]
            variable = ours.variables[variable]
            model = board.models[kind].name
            yield BundlePart(model, ours.name, name, "mib-alignment", variable)

    def _take(self, root: Path, inner: Problems) -> None:
        """Problems of a folder inside, as those of the whole; links that lead out were noted."""
        said = {(problem.path, problem.message) for problem in self.problems}
        before = "" if root == self.folder else f"{self.name_of(root)}/"
        for problem in inner:
            path = (before + problem.path).removesuffix("/.")
            known = (path, problem.message) in said or Path(path).name in FILES
            if not known:
                self.problems.note(path, problem.message, warning=problem.warning)


_NO_FILE = f"is no file of scores or of circuits ({', '.join(CIRCUIT_ENDINGS)})."


def _is_causal(name: str) -> bool:
    """Whether a folder's name is one of MIB's causal track, whether or not a track has it."""
    return any(f"_{kind}_" in name for kind in MIB_BOARD.models) and any(
        name.startswith(f"{task}_") for task in MIB_BOARD.tasks
    )


def _around(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of some folders, or stands around or inside one."""
    return any(each == path or path in each.parents or each in path.parents for each in folders)


def _check_width(file: Path, width: int, about: TrackModel) -> None:
    if width != about.d_model:
        raise BadUsage(f"{file}: has {width} neurons a node; the model has {about.d_model}.")


def largest_file(about: TrackModel) -> int:
    """Bytes that no file about a model needs: as JSON, 300 an edge and 64 a neuron, and 1 MB."""
    graph = about.graph
    return 10**6 + 300 * graph.n_edges + 64 * graph.n_writers * about.d_model
