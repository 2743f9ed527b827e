"""Submissions to MIB's circuit track (Mueller et al. 2025, appendix D): writing and checking them.

    submission/
        ioi_gpt2/importances.json          one file of scores, or
        arc-easy_llama3/0.1pct.pt ...      nine circuits, of at most .1, .2, .5, 1, 2, 5, 10, 20
                                           and 50 % of the edges

A submission covers at least two tasks and two models. A circuit's size is its weighted edge count
divided by the number of edges of the model's graph. The board's evaluator sorts circuit files by
size and takes the smallest for the .1 % circuit, and so on: a file too few or too many shifts all
others. Files named as `write_submission` does, "0.1pct.json", are held to the size in their name;
files with other names to their rank. Sizes are those of the public code, not of the paper's prose.
Files of more than 50 MB are skipped by the board.

The board accepts what it can load; this module also refuses names of edges that do not match,
scores that are NaN or all equal, and circuits above their size. Only regular files inside the
folder are opened, no link that leads out of it; nothing in a file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from mechassay.circuits.graph_files import ENDINGS, GraphFile, read_graph_file, write_graph_file
from mechassay.circuits.scores import By, EdgeScores, NeuronScores, NodeScores, Scores
from mechassay.circuits.series import SIZE_ROUNDING
from mechassay.errors import BadUsage, GraphMismatch, MechassayError, UnknownName, one_of
from mechassay.models.graph import Graph
from mechassay.utils.files import BESIDE, LEADS_OUT, Problem, leads_out, no_folder

Form = Literal["importances", "circuits"]
FORMS: tuple[str, ...] = get_args(Form)
_SIZE_NAME = re.compile(r"(\d+(?:\.\d+)?)pct")
LARGEST_FILE = 50 * 10**6
"""Bytes of a file from which on the board's validator skips it."""


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
        pairs = ((task, name) for name, model in self.models.items() for task in model.tasks)
        return {f"{task}_{name}": (task, name) for task, name in pairs}


ARITHMETIC = ("arithmetic-addition", "arithmetic-subtraction")
"""Tasks whose mean is a column (Mueller et al. 2025, tables 2 and 14 to 16)."""
# The columns of MIB's tables 2 and 17: 32,491, 179,749, 74,218, 1,592,881 and 1,108 edges.
MIB = Track(
    {
        "gpt2": TrackModel(Graph(12, 12), 768, ("ioi",)),
        "qwen2.5": TrackModel(Graph(24, 14), 896, ("ioi", "mcqa")),
        "gemma2": TrackModel(Graph(26, 8), 2304, ("ioi", "mcqa", "arc-easy")),
        "llama3": TrackModel(
            Graph(32, 32), 4096, ("ioi", "mcqa", *ARITHMETIC, "arc-easy", "arc-challenge")
        ),
        "interpbench": TrackModel(Graph(6, 4), 64, ("ioi",)),
    }
)


# Writing


def write_submission(
    folder: str | Path,
    scores: Mapping[tuple[str, str], Scores],
    form: Form = "importances",
    *,
    by: By = "value",
    ending: str = ".json",
    track: Track = MIB,
) -> list[Path]:
    """Write the scores of tasks and models as a submission; returns the files.

    Args:
        scores: by (task, model), named as in folders: ("arc-easy", "llama3"). Files of scores of
            nodes or neurons have no edges.
        form: "importances": the scores, which the board cuts itself; "circuits": nine circuits, cut
            here and pruned.
        by: how circuits are cut: "value" or "magnitude".
        ending: ".json" or ".pt".

    Raises:
        UnknownName: a task, model, form or ending that the track does not have.
        BadUsage: a model that the track does not evaluate on the task, a folder that has files
            already, edges without a score, or circuits or .pt files of scores of nodes or neurons.
        GraphMismatch: scores about another graph than the model's.
    """
    folder = Path(folder)
    one_of("form of a submission", form, FORMS)
    one_of("ending of graph files", ending, ENDINGS)
    for (task, name), held in scores.items():
        _check_scores(folder, task, name, held, track)
        if not isinstance(held, EdgeScores) and (form != "importances" or ending != ".json"):
            raise BadUsage(
                f"{task} on {name}: scores of {held.unit}s are written as importances in .json"
                f" files; got {form} in {ending} files."
            )
    written: list[Path] = []
    sizes = [None] if form == "importances" else track.sizes
    for (task, name), held in scores.items():
        inside, d_model = folder / f"{task}_{name}", track.models[name].d_model
        for size in sizes:
            path = inside / f"{'importances' if size is None else size_name(size)}{ending}"
            if not isinstance(held, EdgeScores):
                _node_file(held, d_model).write(path)
            elif size is None:
                write_graph_file(path, held, d_model=d_model)
            else:
                write_graph_file(path, circuit=held.top(size, by=by).pruned(), d_model=d_model)
            written.append(path)
    return written


def _node_file(scores: NodeScores | NeuronScores, d_model: int) -> GraphFile:
    if isinstance(scores, NodeScores):
        return GraphFile(scores.graph, d_model, node_scores=scores.values)
    return GraphFile(scores.graph, d_model, neuron_scores=scores.values)


def _check_scores(folder: Path, task: str, name: str, scores: Scores, track: Track) -> None:
    for wrong in _wrong_names(task, name, track):
        raise wrong
    graph = track.models[name].graph
    if scores.graph != graph:
        raise GraphMismatch(
            f"{task} on {name}: the scores are about {scores.graph} ({scores.graph.n_edges} edges);"
            f" the track's {name} is {graph} ({graph.n_edges} edges)."
        )
    missing = graph.n_edges - int(scores.scored().sum())
    if missing and isinstance(scores, EdgeScores):
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


def _wrong(path: Path, root: Path, *, within: bool) -> str | None:
    """The first problem of a path in a submission, or within a folder of it."""
    if leads_out(path, root):
        return LEADS_OUT
    if not within:
        extra = not path.is_dir() and path.name not in BESIDE
        return "an extra file: a submission holds folders named task_model." if extra else None
    if not path.is_file():
        return "an extra folder, or no regular file: only graph files belong here."
    if path.suffix not in ENDINGS:
        return f"an extra file: only graph files ({', '.join(ENDINGS)}) belong here."
    return None


def validate_submission(folder: str | Path, track: Track = MIB) -> list[Problem]:
    """All that is wrong with a submission's folder, warnings too, in the order of paths."""
    folder = Path(folder)
    if not folder.is_dir():
        return [Problem(".", f"{no_folder(folder)}: {folder}.")]
    return list(_problems(folder, track))


def _problems(folder: Path, track: Track) -> Iterator[Problem]:
    covered: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir()):
        message = _wrong(entry, folder, within=False)
        if message is not None:
            yield Problem(entry.name, message)
        elif entry.name not in BESIDE:
            task, _, name = entry.name.rpartition("_")
            wrong = _wrong_names(task, name, track)
            for error in wrong:
                message = f"{error} Folders are named task_model, such as ioi_gpt2."
                yield Problem(entry.name, message)
            if not wrong:
                covered.append((task, name))
                yield from _folder_problems(folder, entry, track.models[name], track.sizes)
    for place, kind in enumerate(("tasks", "models")):
        names = sorted({pair[place] for pair in covered})
        if len(names) < track.least:
            text = f"{len(names)} {kind} ({', '.join(names) or 'none'})"
            yield Problem(".", f"{text}; at least {track.least} are needed.")


def _folder_problems(
    root: Path, folder: Path, model: TrackModel, sizes: Sequence[float]
) -> Iterator[Problem]:
    """Of the folder of one task and model."""
    here, paths = folder.name, list[Path]()
    for path in sorted(folder.iterdir()):
        message = _wrong(path, root, within=True)
        if message is None:
            paths.append(path)
            size = path.stat().st_size
            if size > LARGEST_FILE:
                message = (
                    f"has {size / 10**6:,.0f} MB; the board skips files of more than"
                    f" {LARGEST_FILE // 10**6} MB: write a .pt file, or circuits."
                )
                yield Problem(f"{here}/{path.name}", message, warning=True)
        else:
            yield Problem(f"{here}/{path.name}", message)
    yield from graph_file_problems(here, paths, model, sizes)


def graph_file_problems(
    here: str, paths: Sequence[Path], model: TrackModel, sizes: Sequence[float] = MIB.sizes
) -> Iterator[Problem]:
    """What is wrong with the graph files of one task and model: one of scores, or circuits.

    Args:
        here: their folder, as problems name it.
        paths: regular files that may be opened, named `.json` or `.pt`.
        sizes: of the circuits; see `Track`.
    """
    alone = len(paths) == 1 and _size_of(paths[0].name, sizes) is None
    # Weighted edge counts: the tensors of nine circuits of a large graph may not fit together.
    counts: dict[str, float | None] = {path.name: None for path in paths}
    for path in paths:
        at = f"{here}/{path.name}" if here else path.name
        try:
            file = read_graph_file(path, model.graph)
        except MechassayError as error:
            yield Problem(at, str(error).removeprefix(f"{path}: "))
            continue
        if file.d_model != model.d_model:
            message = f"cfg says d_model = {file.d_model}; the model's is {model.d_model}."
            yield Problem(at, message)
            continue
        counts[path.name] = file.weighted_edge_count()
        for fault in _score_faults(file) if alone else ():
            yield Problem(at, fault)
    if not paths:
        yield Problem(here, f"no graph file: one of scores or {len(sizes)} circuits are needed.")
    elif not alone:
        yield from _circuit_problems(here, counts, model.graph.n_edges, sizes)


def _score_faults(file: GraphFile) -> Iterator[str]:
    """What is wrong with scores: those of edges, or if there are none, of neurons or nodes."""
    edges = None if file.scores is None else file.scores.values[file.graph.legal]
    given = {"edges": edges, "neurons": file.neuron_scores, "nodes": file.node_scores}
    for kind, values in given.items():
        if values is None or bool(values.isnan().all()):
            continue
        known = values[~values.isnan()]
        if kind == "edges" and len(known) < file.graph.n_edges:
            missing = file.graph.n_edges - len(known)
            yield f"{missing} of {file.graph.n_edges} edges have no score."
        # The board keeps what has no score in every circuit, of which the input alone may be one.
        if kind != "edges" and (missing := int(values[1:].isnan().sum())):
            of = f"{missing} of {values.numel()} {kind}"
            yield f"{of} have no score; only the input may have none."
        if bool((known == known[0]).all()):
            yield f"all scores of {kind} are equal ({float(known[0]):g}): they rank nothing."
        return
    yield "has no scores (all are 0); a single file must hold scores, circuits come in nine files."


def _circuit_problems(
    here: str, counts: Mapping[str, float | None], n_edges: int, sizes: Sequence[float]
) -> Iterator[Problem]:
    """Sizes of circuit files, by their names if any has a size, else by rank; None: unreadable."""
    named = {name: _size_of(name, sizes) for name in counts}
    known = {name: count for name, count in counts.items() if count is not None}

    def oversize(name: str, size: float, why: str = "") -> Iterator[Problem]:
        share = known[name] / n_edges
        if share > size + SIZE_ROUNDING:
            has = f"has {known[name]:g} edges, {100 * share:.4g} % of {n_edges}"
            yield Problem(f"{here}/{name}", f"{has}; at most {_percent(size)} are allowed{why}.")

    if all(size is None for size in named.values()):
        if len(counts) != len(sizes):
            needed = f"{len(sizes)} are needed ({_percent(*sizes)} of the edges)"
            yield Problem(here, f"{len(counts)} circuits; {needed}.")
        elif len(known) == len(sizes):
            for name, size in zip(sorted(known, key=known.__getitem__), sizes, strict=True):
                yield from oversize(name, size, " for its rank")
        return
    for name, size in named.items():
        if size is None:
            all_sizes = ", ".join(map(size_name, sizes))
            yield Problem(f"{here}/{name}", f"is named after none of the sizes ({all_sizes}).")
    for size in sizes:
        having = [name for name, of in named.items() if of == size]
        what = f"of {_percent(size)} of the edges"
        if not having:
            yield Problem(here, f"no circuit {what} ({size_name(size)}).")
        elif len(having) > 1:
            yield Problem(here, f"{len(having)} circuits {what}: {', '.join(having)}.")
    smaller = ""
    for size, name in sorted((size, name) for name, size in named.items() if size is not None):
        if name not in known:
            continue
        yield from oversize(name, size)
        if smaller and known[name] < known[smaller] - SIZE_ROUNDING:
            yield Problem(
                f"{here}/{name}",
                f"has {known[name]:g} edges, fewer than the smaller size's {smaller}"
                f" ({known[smaller]:g}): circuits are sorted by edges.",
            )
        smaller = name


def _size_of(name: str, sizes: Sequence[float]) -> float | None:
    """The size that a file's name says, if it is one of `sizes`."""
    named = _SIZE_NAME.fullmatch(Path(name).stem)
    if named is None:
        return None
    return next((size for size in sizes if abs(float(named[1]) / 100 - size) < SIZE_ROUNDING), None)


def _percent(*sizes: float) -> str:
    return ", ".join(f"{100 * size:.6g}" for size in sizes) + " %"
