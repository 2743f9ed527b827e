"""The parts of a submission: what is evaluated on one task with one model, read by form.

    scores, circuits     folders TASK_MODEL, or MODEL--TASK as a run has them: a file of scores, or
                         circuits of any sizes, in our layout or in MIB's; a file of scores alone
    alignments           ours, in folders of any name (`variables.alignment`), and MIB's
                         folders TASK_MODELCLASS_VARIABLE (`variables.mib_submission`)
    directions           folders TASK_MODEL of one method for gym tasks (`gym.directions`), as
                         many at a site as the track allows: the whole vector may be above them all.
                         Sentences of gym tasks are drawn from public templates, so directions are
                         evaluated on public examples alone

Every file is read as it will be when it is evaluated, so that all that is wrong with it is said
before. One that is larger than any about its model can be is not opened. What is wrong goes to the
problems of the whole submission, and the rest is read on.

The content of a part is the hash of its parsed numbers, as float64: the same numbers have the same
hash in any file format and under any file name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import ENDINGS, load_scores
from mechassay.circuits.mib_submission import TrackModel, graph_file_problems
from mechassay.circuits.scores import KEPT, EdgeScores, NeuronScores, Scores
from mechassay.circuits.series import CIRCUIT, CIRCUIT_ENDINGS, CircuitSeries, load_ranked
from mechassay.errors import BadUsage, MechassayError
from mechassay.features.finder import KIND, Fit
from mechassay.gym.causalgym import load_gym_task
from mechassay.gym.directions import given_directions, read_directions
from mechassay.interventions.site import ModelShape
from mechassay.leaderboard.track import FILES, BoardTrack
from mechassay.utils.files import BESIDE, CODE, Problems, kind_of, leads_out
from mechassay.variables.alignment import HEADER, VariableAlignment, read_alignment
from mechassay.variables.mib_format import MIB_BOARD
from mechassay.variables.mib_submission import PARAMETERS, mib_problems, read_mib_folder

_NO_FILE = f"is no file of scores or of circuits ({', '.join(CIRCUIT_ENDINGS)})."
Form = Literal["scores", "circuits", "alignment", "mib-alignment", "directions"]
_RUN_FOLDER = re.compile(r"(?P<model>[a-z0-9.-]+?)--(?P<task>[a-z0-9._-]+)")


@dataclass(frozen=True)
class SubmissionPart:
    """What is evaluated of a submission on one task with one model.

    Attributes:
        model, task: by the names that the track has for them.
        path: a file of scores, or a folder of circuits, of an alignment or of directions, relative
            to the submission.
        variable: of an alignment, as the folder calls it.
    """

    model: str
    task: str
    path: str
    form: Form
    variable: str = ""


@dataclass(frozen=True, eq=False)
class PartReader:
    """A submission's folder as readers of its parts see it.

    Attributes:
        folder: of the submission.
        problems: of all of it.
    """

    folder: Path
    track: BoardTrack
    problems: Problems

    def name_of(self, path: Path) -> str:
        """A path as problems name it."""
        return path.relative_to(self.folder).as_posix()

    def entries(self, folder: Path) -> list[Path]:
        """What is in a folder beside what every repository has."""
        return [
            path
            for path in sorted(folder.iterdir())
            if path.name not in BESIDE and path.name not in FILES
        ]

    def take(self, folder: Path, inner: Problems) -> None:
        """Problems of a folder inside as those of the whole, but what was said already."""
        reported = {(problem.path, problem.message) for problem in self.problems}
        before = "" if folder == self.folder else f"{self.name_of(folder)}/"
        for problem in inner:
            path = (before + problem.path).removesuffix("/.")
            known = (path, problem.message) in reported or Path(path).name in FILES
            if not known:
                self.problems.note(path, problem.message, warning=problem.warning)


def task_and_model(name: str) -> tuple[str, str]:
    """Those of a folder's name; both "" where it has not the form of one."""
    run = _RUN_FOLDER.fullmatch(name)
    if run is not None:
        return run["task"], run["model"]
    task, _, model = name.rpartition("_")
    return (task, model) if task and model else ("", "")


def content_of(part: SubmissionPart, folder: Path, track: BoardTrack) -> str:
    """The SHA-256 of the numbers of a part that was read without a mistake; see the module.

    Args:
        folder: of the submission.
    """
    lines: list[str] = []
    for name, numbers in _numbers(part, folder / part.path, track):
        plain = numbers.detach().to("cpu", torch.float64).contiguous()
        # All NaN are one, whatever their bits are; -0 is 0.
        plain = torch.where(plain.isnan(), torch.nan, plain) + 0.0
        digest = hashlib.sha256(plain.numpy().tobytes()).hexdigest()
        lines.append(f"{name} {tuple(plain.shape)} {digest}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _numbers(part: SubmissionPart, path: Path, track: BoardTrack) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a part by name, in any order; circuits have no names of their own."""
    if part.form in ("scores", "circuits"):
        ranked = load_ranked(path, track.shape(part.model).graph)
        if not isinstance(ranked, CircuitSeries):
            # What stands where the graph has no edge means nothing, and formats differ in it.
            held = ranked.values[ranked.graph.legal] if ranked.unit == "edge" else ranked.values
            yield f"scores of {ranked.unit}s", held
            return
        for circuit in ranked.circuits:
            neurons = circuit.edges[:0] if circuit.neurons is None else circuit.neurons
            yield "circuit", torch.cat([circuit.edges.flatten(), neurons.flatten()])
        return
    alignments: Sequence[VariableAlignment] = ()
    if part.form == "alignment":
        alignments = [VariableAlignment.load(path)]
    elif part.form == "mib-alignment":
        alignments = read_mib_folder(path.parent, board=track.causal_board(), only=path.name)
    for alignment in alignments:
        yield from _numbers_of_fit("", alignment.fit)
    if part.form == "directions":
        for given in given_directions(path, load_gym_task(part.task).tested):
            for labels, fits in sorted(given.fits().items()):
                for number, fit in enumerate(fits):
                    yield from _numbers_of_fit(f"{labels} {number} ", fit)


def _numbers_of_fit(name: str, fit: Fit) -> Iterator[tuple[str, Tensor]]:
    for site in sorted(fit.sites, key=str):
        featurizer = fit.featurizer(site)
        for field in fields(featurizer):  # pyright: ignore[reportArgumentType]
            value = getattr(featurizer, field.name)
            if isinstance(value, Tensor):
                yield f"{name}{site} {type(featurizer).__name__} {field.name}", value
        if site in fit.chosen:
            yield f"{name}{site} chosen", fit.chosen[site]


class CircuitParts(PartReader):
    """The scores and circuits of a submission."""

    def read(self, path: Path) -> Iterator[SubmissionPart]:
        """The part that a folder or a file is, if it is one."""
        name = self.name_of(path)
        if leads_out(path, self.folder):
            return  # Said already.
        if path.is_file() and path.suffix not in CIRCUIT_ENDINGS:
            message = CODE if path.suffix == ".py" else _NO_FILE
            self.problems.note(name, message)
            return
        task, model = task_and_model(path.name if path.is_dir() else path.stem)
        if not task:
            self.problems.note(name, "is not named TASK_MODEL, such as ioi_gpt2.")
            return
        submission = self.problems.tried(name, partial(self._about, model, task))
        if submission is None:
            return
        task, about = submission
        files = list(self._graph_files(path, about, model))
        if not files:
            if path.is_dir() and not any(path.iterdir()):
                self.problems.note(name, "no file of scores or of circuits.")
            return
        form = self._form(path, files, about)
        if form is not None:
            held = path if form == "circuits" else files[0]
            yield SubmissionPart(model, task, self.name_of(held), form)

    def _about(self, model: str, task: str) -> tuple[str, TrackModel]:
        return self.track.public_task(model, task), self.track.circuit_model(model)

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
        if scores.provenance.get(KEPT) and (n := int(scores.values[1:].isnan().sum())):
            raise BadUsage(
                f"{file}: {n:,} {scores.unit}s have no score; only the input may have none."
            )
        if isinstance(scores, EdgeScores) and (n := scores.graph.n_edges - len(known)):
            self.problems.note(
                self.name_of(file),
                f"{n:,} of {scores.graph.n_edges:,} edges have no score; they are in the full"
                " circuit alone.",
                warning=True,
            )
        return scores


def _check_width(file: Path, width: int, about: TrackModel) -> None:
    if width != about.d_model:
        raise BadUsage(f"{file}: has {width} neurons a node; the model has {about.d_model}.")


def largest_file(about: TrackModel) -> int:
    """Bytes that no file about a model needs: as JSON, 300 an edge and 64 a neuron, and 1 MB."""
    graph = about.graph
    return 10**6 + 300 * graph.n_edges + 64 * graph.n_writers * about.d_model


class AlignmentParts(PartReader):
    """The alignments of a submission."""

    def headers(self, root: Path) -> list[Path]:
        """The headers of our alignments, up to two folders deep."""
        return [
            path
            for depth in ("", "*/", "*/*/")
            for path in sorted(root.glob(depth + HEADER))
            if not leads_out(path, self.folder)
        ]

    def in_root(self, root: Path) -> list[SubmissionPart] | None:
        """All alignments below a folder; None where it has none, and is of something else."""
        headers, entries = self.headers(root), self.entries(root)
        mib = any(is_mib(path.name) or path.name == PARAMETERS for path in entries)
        if not (headers or mib):
            return None
        alignments = [*self.read(headers), *(self.read_mib(root) if mib else ())]
        if not alignments and not self.problems.errors:
            self.problems.note(".", "holds no alignment.")
        inside = {path.parent for path in headers}
        for path in entries:
            around = any(at == path or path in at.parents or at in path.parents for at in inside)
            if not mib and not around:
                message = (
                    CODE if path.suffix == ".py" else "belongs to no alignment and is not read."
                )
                self.problems.note(self.name_of(path), message, warning=path.suffix != ".py")
        return alignments

    def read(self, headers: Iterable[Path]) -> Iterator[SubmissionPart]:
        """Our alignments, by their headers."""
        for header in headers:
            folder, inner = header.parent, Problems()
            read = read_alignment(folder, inner)
            self.take(folder, inner)
            if read is None:
                continue
            at = self.name_of(header)
            model = self.problems.tried(at, partial(self.track.public_name, read.model))
            if model is None:
                continue
            task = self.problems.tried(at, partial(self._task, model, read.task, read.shape))
            if task is not None:
                yield SubmissionPart(model, task, self.name_of(folder), "alignment", read.variable)

    def _task(self, model: str, task: str, shape: object) -> str:
        task = self.track.public_task(model, task)
        expected = self.track.shape(model)
        if shape not in (None, expected):
            raise BadUsage(f"is about a model of {shape}; {model} has {expected}.")
        return task

    def read_mib(self, root: Path) -> Iterator[SubmissionPart]:
        """The folders of MIB's causal track in a folder."""
        board = self.problems.tried(self.name_of(root), self.track.causal_board)
        if board is None:
            return
        if not board.models:
            self.problems.note(".", "this track names no models of MIB's causal track.")
            return
        self.take(root, mib_problems(root, board=board))
        for folder in self.entries(root):
            try:
                task, kind, variable = board.parsed(folder.name)
            except MechassayError:
                continue  # Said already.
            name = self.name_of(folder)
            ours = board.tasks[task]
            variable = ours.variables[variable]
            model = board.models[kind].name
            yield SubmissionPart(model, ours.name, name, "mib-alignment", variable)


def is_mib(name: str) -> bool:
    """Whether a folder's name is one of MIB's causal track, whether or not a track has it."""
    return any(f"_{kind}_" in name for kind in MIB_BOARD.models) and any(
        name.startswith(f"{task}_") for task in MIB_BOARD.tasks
    )


class DirectionParts(PartReader):
    """The folders of directions of a submission."""

    def is_one(self, path: Path) -> bool:
        """Whether a path is a folder of directions, by its name or by a file in it."""
        task, model = task_and_model(path.name)
        if leads_out(path, self.folder) or not path.is_dir():
            return False
        about = self.track.models.get(model)
        if about is not None and task in about.gym:
            return True
        files = (file for file in path.iterdir() if file.suffix == ".safetensors")
        return any(not leads_out(file, self.folder) and kind_of(file) == KIND for file in files)

    def read(self, path: Path) -> Iterator[SubmissionPart]:
        """The part that a folder is, if it is one that can be evaluated."""
        name, (task, model) = self.name_of(path), task_and_model(path.name)
        if leads_out(path, self.folder):
            return  # Said already.
        if not path.is_dir():
            message = CODE if path.suffix == ".py" else "belongs to no directions and is not read."
            self.problems.note(name, message, warning=path.suffix != ".py")
            return
        if not task:
            self.problems.note(name, "is not named TASK_MODEL, such as agr_gender_gym-neox.")
            return
        about = self.problems.tried(name, partial(self._about, task, model))
        if about is None:
            return
        regions, shape = about
        inner = Problems()
        given = read_directions(path, regions, shape, model, inner, self.track.gym_k)
        self.take(path, inner)
        if len(given) > 1:
            methods = ", ".join(directions.method for directions in given[:3])
            message = (
                f"directions of {len(given)} methods ({methods}); a submission has those of one."
            )
            self.problems.note(name, message)
        if len(given) == 1 and not inner.errors:
            yield SubmissionPart(model, task, name, "directions")

    def _about(self, task: str, model: str) -> tuple[tuple[str, ...], ModelShape]:
        self.track.check_gym(model, task)
        return load_gym_task(task).tested, self.track.shape(model)
