"""Submissions to MIB's circuit track (Mueller et al. 2025, appendix D):
writing and checking their folders.

    submission/
        ioi_gpt2/importances.json          one file of scores, or
        arc-easy_llama3/0.1pct.pt ...      nine circuits, of at most .1, .2, .5, 1, 2, 5, 10, 20
                                           and 50 % of the edges

A submission covers at least two tasks and two models. A circuit's size is its weighted edge count
divided by the number of edges of the model's graph. The board's evaluator does not look at the
names of circuit files: it sorts them by size and takes the smallest for the .1 % circuit, and so
on; a file too few or too many shifts all others. Files named by `write_submission`, "0.1pct.json",
are held to the size in their name; files with other names to their rank.

The paper's prose names other bounds for some circuits; the sizes above are those of the public
code. The board accepts what it can load; this module also refuses what it would load and misjudge:
names of edges that do not match, scores that are NaN or all equal, circuits above their size.

Only regular files inside the folder are opened. A link that leads out of it is a problem and is not
followed; nothing in a file is executed (`circuits.formats`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from mechassay.circuits.formats import ENDINGS, GraphFile, read_graph_file, write_graph_file
from mechassay.circuits.scores import By, EdgeScores
from mechassay.errors import BadUsage, GraphMismatch, MechassayError, UnknownName
from mechassay.graph import Graph

Form = Literal["importances", "circuits"]
FORMS: tuple[str, ...] = get_args(Form)
# What else belongs to a repository on the Hugging Face hub.
BESIDE = frozenset({"README.md", "LICENSE", ".gitattributes", ".gitignore", ".git", ".cache"})
_SIZE_NAME = re.compile(r"(\d+(?:\.\d+)?)pct")
# Sizes are compared with this slack: .1 * 70 is a little more than 7.
SLACK = 1e-9


@dataclass(frozen=True)
class TrackModel:
    """A model of the track: its graph, its width, and the tasks it is evaluated on."""

    graph: Graph
    d_model: int
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Track:
    """What a submission may contain.

    Attributes:
        models: by the name that folders use.
        sizes: of the circuits, as fractions of all edges, rising.
        least: how many tasks and how many models it needs.
    """

    models: Mapping[str, TrackModel]
    sizes: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    least: int = 2

    @property
    def tasks(self) -> list[str]:
        return sorted({task for model in self.models.values() for task in model.tasks})

    @property
    def folders(self) -> dict[str, tuple[str, str]]:
        """Every folder a submission may have, and its task and model."""
        return {
            f"{task}_{name}": (task, name)
            for name, model in self.models.items()
            for task in model.tasks
        }


# The columns of MIB's tables 2 and 17: 32,491, 179,749, 74,218, 1,592,881 and 1,108 edges.
MIB = Track(
    {
        "gpt2": TrackModel(Graph(12, 12), 768, ("ioi",)),
        "qwen2.5": TrackModel(Graph(24, 14), 896, ("ioi", "mcqa")),
        "gemma2": TrackModel(Graph(26, 8), 2304, ("ioi", "mcqa", "arc-easy")),
        "llama3": TrackModel(
            Graph(32, 32),
            4096,
            (
                "ioi",
                "mcqa",
                "arithmetic-addition",
                "arithmetic-subtraction",
                "arc-easy",
                "arc-challenge",
            ),
        ),
        "interpbench": TrackModel(Graph(6, 4), 64, ("ioi",)),
    }
)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a part of a submission; `path` is relative to its folder."""

    path: str
    message: str


# Writing


def write_submission(
    folder: str | Path,
    scores: Mapping[tuple[str, str], EdgeScores],
    form: Form = "importances",
    *,
    by: By = "value",
    ending: str = ".json",
    track: Track = MIB,
) -> list[Path]:
    """Write the scores of tasks and models as a submission; returns the files.
    `validate_submission` checks the whole.

    Args:
        scores: by (task, model), named as in folders: ("arc-easy", "llama3").
        form: "importances": the scores, which the board cuts itself; "circuits": nine circuits, cut
            here and pruned.
        by: how circuits are cut: "value" or "magnitude".
        ending: ".json" or ".pt".

    Raises:
        UnknownName: a task, model, form or ending that the track does not have.
        BadUsage: a model that the track does not evaluate on the task, a folder that has files
            already, or edges without a score.
        GraphMismatch: scores about another graph than the model's.
    """
    folder = Path(folder)
    if form not in FORMS:
        raise UnknownName("form of a submission", form, FORMS)
    if ending not in ENDINGS:
        raise UnknownName("ending of graph files", ending, ENDINGS)
    for (task, name), each in scores.items():
        _check_scores(folder, task, name, each, track)
    written: list[Path] = []
    for (task, name), each in scores.items():
        inside, d_model = folder / f"{task}_{name}", track.models[name].d_model
        if form == "importances":
            written.append(inside / f"importances{ending}")
            write_graph_file(written[-1], each, d_model=d_model)
            continue
        for size in track.sizes:
            written.append(inside / f"{size_name(size)}{ending}")
            write_graph_file(written[-1], circuit=each.top(size, by=by).pruned(), d_model=d_model)
    return written


def _check_scores(folder: Path, task: str, name: str, scores: EdgeScores, track: Track) -> None:
    for wrong in _wrong_names(task, name, track):
        raise wrong
    graph = track.models[name].graph
    if scores.graph != graph:
        raise GraphMismatch(
            f"{task} on {name}: the scores are about {scores.graph} ({scores.graph.n_edges} edges);"
            f" the track's {name} is {graph} ({graph.n_edges} edges)."
        )
    missing = graph.n_edges - int(scores.scored().sum())
    if missing:
        raise BadUsage(
            f"{task} on {name}: {missing} of {graph.n_edges} edges have no score; a submission"
            " needs all."
        )
    inside = folder / f"{task}_{name}"
    if inside.exists() and (not inside.is_dir() or any(inside.iterdir())):
        raise BadUsage(
            f"{inside}: there is something already; a folder holds one submission's files and no"
            " others."
        )


def _wrong_names(task: str, name: str, track: Track) -> list[BadUsage]:
    """Why the track has no such task and model together; empty if it has."""
    wrong: list[BadUsage] = []
    if name not in track.models:
        wrong.append(UnknownName("model of the circuit track", name, track.models))
    if task not in track.tasks:
        wrong.append(UnknownName("task of the circuit track", task, track.tasks))
    if not wrong and task not in track.models[name].tasks:
        known = ", ".join(track.models[name].tasks)
        wrong.append(
            BadUsage(f"The circuit track does not evaluate {name} on {task}; it does on {known}.")
        )
    return wrong


def size_name(size: float) -> str:
    """How a circuit file of that size is named: 0.001 is "0.1pct"."""
    return f"{100 * size:.6g}pct"


# Checking


def validate_submission(folder: str | Path, track: Track = MIB) -> list[Problem]:
    """All that is wrong with a submission's folder, in the order of paths;
    an empty list if nothing is.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return [Problem(".", f"there is no folder {folder}.")]
    inside = _Inside(folder)
    problems: list[Problem] = []
    tasks, models = set[str](), set[str]()
    for entry in sorted(folder.iterdir()):
        outside = inside.problem(entry)
        if outside is not None:
            problems.append(outside)
        elif not entry.is_dir():
            if entry.name not in BESIDE:
                problems.append(
                    Problem(
                        entry.name, "an extra file: a submission holds folders named task_model."
                    )
                )
        elif entry.name not in BESIDE:
            task, _, name = entry.name.rpartition("_")
            wrong = _wrong_names(task, name, track)
            if wrong:
                problems.extend(
                    Problem(entry.name, f"{error} Folders are named task_model, such as ioi_gpt2.")
                    for error in wrong
                )
                continue
            tasks.add(task)
            models.add(name)
            problems.extend(_check_folder(inside, entry, track.models[name], track.sizes))
    for kind, found in (("tasks", tasks), ("models", models)):
        if len(found) < track.least:
            problems.append(
                Problem(
                    ".",
                    f"{len(found)} {kind} ({', '.join(sorted(found)) or 'none'}); at least"
                    f" {track.least} are needed.",
                )
            )
    return problems


@dataclass(frozen=True)
class _Inside:
    """A folder that nothing may lead out of."""

    folder: Path

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def problem(self, path: Path) -> Problem | None:
        """That a link leads out of the folder; decided without opening what it leads to."""
        real, root = Path(os.path.realpath(path)), Path(os.path.realpath(self.folder))
        if real.is_relative_to(root):
            return None
        return Problem(
            self.name(path),
            "a link that leads out of the submission; it was not followed. Copy the file here.",
        )


def _check_folder(
    inside: _Inside, folder: Path, model: TrackModel, sizes: Sequence[float]
) -> list[Problem]:
    problems: list[Problem] = []
    files: dict[str, GraphFile | None] = {}
    for entry in sorted(folder.iterdir()):
        outside = inside.problem(entry)
        if outside is not None:
            problems.append(outside)
        elif not entry.is_file():
            problems.append(
                Problem(
                    inside.name(entry),
                    "an extra folder, or no regular file: only graph files belong here.",
                )
            )
        elif entry.suffix not in ENDINGS:
            problems.append(
                Problem(
                    inside.name(entry),
                    f"an extra file: only graph files ({', '.join(ENDINGS)}) belong here.",
                )
            )
        else:
            files[entry.name] = None
    one = len(files) == 1 and _size_of(next(iter(files)), sizes) is None
    for name in files:
        read = _read(inside, folder / name, model)
        if isinstance(read, Problem):
            problems.append(read)
        elif one:
            problems.extend(
                Problem(inside.name(folder / name), message) for message in _importance_faults(read)
            )
        else:
            # Its tensors are not kept: nine circuits of a large graph need not be in memory
            # together.
            files[name] = GraphFile(read.graph, read.d_model, None, read.circuit)
    if not files:
        problems.append(
            Problem(
                inside.name(folder),
                f"no graph file: one of scores or {len(sizes)} circuits are needed.",
            )
        )
    elif not one:
        problems.extend(_check_circuits(inside, folder, files, model, sizes))
    return problems


def _read(inside: _Inside, path: Path, model: TrackModel) -> GraphFile | Problem:
    name = inside.name(path)
    try:
        file = read_graph_file(path, model.graph)
    except MechassayError as error:
        return Problem(name, str(error).removeprefix(f"{path}: "))
    if file.d_model != model.d_model:
        return Problem(name, f"cfg says d_model = {file.d_model}; the model's is {model.d_model}.")
    return file


def _importance_faults(file: GraphFile) -> list[str]:
    """What is wrong with a file of scores: those of edges,
    or if it has none, those of nodes or neurons.
    """
    if file.scores is not None:
        scored = file.scores.scored()
        missing = file.graph.n_edges - int(scored.sum())
        faults = [f"{missing} of {file.graph.n_edges} edges have no score."] if missing else []
        return faults + _equal(file.scores.values[scored], "edges")
    for given, kind in ((file.neuron_scores, "neurons"), (file.node_scores, "nodes")):
        if given is not None and not bool(given.isnan().all()):
            return _equal(given[~given.isnan()], kind)
    return [
        "has no scores (all are 0); a single file must hold scores, circuits come in nine files."
    ]


def _equal(values: Tensor, kind: str) -> list[str]:
    if len(values) and bool((values == values[0]).all()):
        return [f"all scores of {kind} are equal ({float(values[0]):g}): they rank nothing."]
    return []


def _check_circuits(
    inside: _Inside,
    folder: Path,
    files: Mapping[str, GraphFile | None],
    model: TrackModel,
    sizes: Sequence[float],
) -> list[Problem]:
    """Sizes of circuit files: by their names if any has a size there, else by rank.
    Unreadable files are None.
    """
    named = {name: _size_of(name, sizes) for name in files}
    here = inside.name(folder)
    problems: list[Problem] = []
    if all(size is None for size in named.values()):
        if len(files) != len(sizes):
            problems.append(
                Problem(
                    here,
                    f"{len(files)} circuits; {len(sizes)} are needed ({_percent(sizes)} of the"
                    " edges).",
                )
            )
        counts = {
            name: file.weighted_edge_count() for name, file in files.items() if file is not None
        }
        ranked = sorted(counts, key=lambda name: counts[name])
        if len(files) == len(sizes) == len(ranked):
            for name, size in zip(ranked, sizes, strict=True):
                problems.extend(
                    _oversize(f"{here}/{name}", counts[name], model, size, " for its rank")
                )
        return problems
    for name, size in named.items():
        if size is None:
            problems.append(
                Problem(
                    f"{here}/{name}",
                    f"is named after none of the sizes ({', '.join(map(size_name, sizes))}).",
                )
            )
    for size in sizes:
        having = [name for name, of in named.items() if of == size]
        if not having:
            problems.append(
                Problem(here, f"no circuit of {_percent([size])} of the edges ({size_name(size)}).")
            )
        elif len(having) > 1:
            problems.append(
                Problem(
                    here,
                    f"{len(having)} circuits of {_percent([size])} of the edges:"
                    f" {', '.join(having)}.",
                )
            )
    before: tuple[str, float] | None = None
    for size, name in sorted((size, name) for name, size in named.items() if size is not None):
        file = files[name]
        if file is None:
            continue
        count = file.weighted_edge_count()
        problems.extend(_oversize(f"{here}/{name}", count, model, size, ""))
        if before is not None and count < before[1] - SLACK:
            problems.append(
                Problem(
                    f"{here}/{name}",
                    f"has {count:g} edges, fewer than the smaller size's {before[0]}"
                    f" ({before[1]:g}): circuits are sorted by edges.",
                )
            )
        before = (name, count)
    return problems


def _oversize(path: str, count: float, model: TrackModel, size: float, why: str) -> list[Problem]:
    share = count / model.graph.n_edges
    if share <= size + SLACK:
        return []
    return [
        Problem(
            path,
            f"has {count:g} edges, {100 * share:.4g} % of {model.graph.n_edges}; at most"
            f" {_percent([size])} are allowed{why}.",
        )
    ]


def _size_of(name: str, sizes: Sequence[float]) -> float | None:
    """The size that a file's name says, if it is one of `sizes`."""
    found = _SIZE_NAME.fullmatch(Path(name).stem)
    if found is None:
        return None
    return next((size for size in sizes if abs(float(found[1]) / 100 - size) < SLACK), None)


def _percent(sizes: Sequence[float]) -> str:
    return ", ".join(f"{100 * size:.6g}" for size in sizes) + " %"
