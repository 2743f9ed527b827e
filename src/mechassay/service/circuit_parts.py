"""Scores and circuits in a submission: folders TASK_MODEL, or MODEL--TASK as a run has them.

A folder has one file of scores, or circuits of any sizes, in our layout or in MIB's; a file of
scores may stand alone. Every file is read as it will be when it is evaluated, so that all that is
wrong with it is said before. One that is larger than any about its model can be is not opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from mechassay.circuits.formats import ENDINGS
from mechassay.circuits.node_scores import NeuronScores, Scores, load_scores
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.circuits.series import CIRCUIT, CIRCUIT_ENDINGS
from mechassay.circuits.submission import TrackModel, graph_file_problems
from mechassay.errors import BadUsage
from mechassay.files import kind_of
from mechassay.service.bundle_part import BundlePart, Form, PartReader, task_and_model
from mechassay.submissions import BESIDE, CODE, leads_out

_NO_FILE = f"is no file of scores or of circuits ({', '.join(CIRCUIT_ENDINGS)})."


class CircuitParts(PartReader):
    """The scores and circuits of a submission."""

    def read(self, path: Path) -> Iterator[BundlePart]:
        """The part that a folder or a file is, if it is one."""
        name = self.name_of(path)
        if leads_out(path, self.folder):
            return  # Said already.
        if path.is_file() and path.suffix not in CIRCUIT_ENDINGS:
            said = CODE if path.suffix == ".py" else _NO_FILE
            self.problems.note(name, said)
            return
        task, model = task_and_model(path.name if path.is_dir() else path.stem)
        if not task:
            self.problems.note(name, "is not named TASK_MODEL, such as ioi_gpt2.")
            return
        found = self.problems.tried(name, partial(self._about, model, task))
        if found is None:
            return
        task, about = found
        files = list(self._graph_files(path, about, model))
        if not files:
            if path.is_dir() and not any(path.iterdir()):
                self.problems.note(name, "no file of scores or of circuits.")
            return
        form = self._form(path, files, about)
        if form is not None:
            held = path if form == "circuits" else files[0]
            yield BundlePart(model, task, self.name_of(held), form)

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
