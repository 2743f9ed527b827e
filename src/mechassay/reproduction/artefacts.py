"""Others' circuits and features in folders, and the columns of MIB's tables that they stand in.

    [.../]TASK_MODEL/                   importances.json or .pt, or circuits of nine sizes
    [.../]TASK_MODEL_importances.json   as scripts leave it before it is handed in
    [.../]TASK_MODELCLASS_VARIABLE/     units of MIB's causal track (`variables.mib_submission`)

Names are the benchmark's, with hyphens or underscores: arc-easy_llama3, arc_easy_llama3. A folder
around them is a row of its own, and may say more:

    METHOD_ABLATION_LEVEL   what MIB's public code calls its baselines, EAP_patching_edge
    node, edge, neuron      of releases that rank several, as Matryoshka attribution's

The level says which scores of a file count; without one those of edges come before those of nodes.
Circuits of information-flow-routes grow from the logits, as in MIB's own evaluation. All files are
data (`circuits.graph_files`): nothing in them is executed, and no link out of the folder is
followed. `hub:OWNER/NAME[@REVISION]` is downloaded into the cache once.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from mechassay.circuits.graph_files import ENDINGS, read_graph_file, scores_of
from mechassay.circuits.mib_submission import MIB
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.series import CIRCUIT_ENDINGS, CircuitSeries, load_ranked
from mechassay.errors import BadFile, BadUsage, GraphMismatch
from mechassay.models.model import Model
from mechassay.models.weight_files import cache_folder
from mechassay.utils.files import BESIDE, LEADS_OUT, leads_out, no_folder, path_hash, whole
from mechassay.utils.hub import HUB, check_hub_name, download
from mechassay.variables.mib_format import MIB_BOARD
from mechassay.variables.mib_submission import given_alignments

DEEPEST = 4
"""Folders in folders that are looked into."""
IMPORTANCES = "_importances"
LEVELS = ("edge", "node", "neuron")
GROWN = "information-flow-routes"
"""How folders of MIB's baselines begin whose circuits are grown."""
MODELS: Mapping[str, str] = {"llama3": "llama3.1"}
"""Names of models in folders that are others in the tables."""
CLASSES: Mapping[str, str] = {
    "Qwen2ForCausalLM": "qwen2.5",
    "Gemma2ForCausalLM": "gemma2",
    "LlamaForCausalLM": "llama3.1",
}
MOST_FILES, MOST_BYTES = 5000, 20 * 10**9
"""Of a repository on the hub."""


@dataclass(frozen=True)
class Artefact:
    """What a folder holds of one column.

    Attributes:
        row: its name, with the folders around it.
        column: of a table, "ioi/gpt2" or "mcqa.answer/gemma2".
        kind: the experiment of the tables that have the column.
        path: a file of scores, a folder of circuits, or one of units.
        level: which scores of a file count; "" if the folder does not say.
    """

    row: str
    column: str
    kind: Literal["circuits", "variables"]
    path: Path
    level: str = ""
    grown: bool = False

    @property
    def sha256(self) -> str:
        """Of the bytes of its files."""
        return _hash(self.path)


@cache
def _hash(path: Path) -> str:
    return path_hash(path)


@cache
def folder_of(source: str) -> Path:
    """The folder that a source names; one of the hub is downloaded, unless it was before.

    Raises:
        BadUsage, BadFile, MissingExtra: see `utils.hub.download`. BadFile: no such folder.
    """
    if not source.startswith(HUB):
        folder = Path(source)
        if not folder.is_dir():
            raise BadFile(f"{source}: {no_folder(folder)}.")
        return folder
    repo, revision = check_hub_name(source)
    name = f"{repo}@{revision or 'newest'}".replace("/", "--")
    target = cache_folder() / "artefacts" / name
    if revision is None and target.is_dir():
        shutil.rmtree(target)  # What is newest today is not so tomorrow.
    if not target.is_dir():
        endings = (*CIRCUIT_ENDINGS, "_featurizer", "_indices")
        with whole(target) as partial:
            download(source, partial, endings, MOST_FILES, MOST_BYTES)
    return target


@cache
def artefacts_in(name: str, source: str) -> tuple[Artefact, ...]:
    """What a folder holds, sorted by path.

    Args:
        name: of the row.
        source: a folder, or `hub:OWNER/NAME[@REVISION]`.

    Raises:
        BadFile: it holds nothing that is read, or a link that leads out of it. Others as
            `folder_of`.
    """
    root = folder_of(source)
    every = tuple(_inside(root, root, name))
    if not every:
        raise BadFile(
            f"{source}: holds no circuits (folders TASK_MODEL such as ioi_gpt2, or files"
            " TASK_MODEL_importances.json) and no alignments (TASK_MODELCLASS_VARIABLE)."
        )
    return every


def _inside(folder: Path, root: Path, name: str) -> Iterator[Artefact]:
    around = folder.relative_to(root)
    row = name if folder == root else f"{name}/{around.as_posix()}"
    level = next((own for own in LEVELS if f"_{folder.name}".endswith(f"_{own}")), "")
    for path in sorted(folder.iterdir()):
        if path.name in BESIDE or path.name.startswith("."):
            continue
        if leads_out(path, root):
            raise BadFile(f"{path}: {LEADS_OUT}")
        is_file = path.is_file() and path.suffix in ENDINGS and path.stem.endswith(IMPORTANCES)
        stem = path.stem.removesuffix(IMPORTANCES) if is_file else path.name
        column = circuit_column(stem) if is_file or path.is_dir() else ""
        if column:
            files = [path] if is_file else _circuit_files(path, root)
            held = path if len(files) > 1 else files[0]
            grown = folder.name.startswith(GROWN)
            yield Artefact(row, column, "circuits", held, level, grown)
        elif path.is_dir() and _is_of_causal_track(path.name):
            for given in given_alignments(path):
                model = CLASSES.get(given.model_class, given.model_class)
                about = f"{given.task}.{given.variable}/{model}"
                inside = given.folder / given.inside
                method = inside.relative_to(path).as_posix()
                own = row if method == "." else f"{row}/{method}"
                yield Artefact(own, about, "variables", inside)
        elif path.is_dir() and len(around.parts) < DEEPEST:
            yield from _inside(path, root, name)


def circuit_column(name: str) -> str:
    """The column of a folder's name, TASK_MODEL; "" if it is none."""
    task, _, model = name.rpartition("_")
    task = task.replace("_", "-")
    if model not in MIB.models or task not in MIB.models[model].tasks:
        return ""
    return model if model == "interpbench" else f"{task}/{MODELS.get(model, model)}"


def _circuit_files(folder: Path, root: Path) -> list[Path]:
    """The files of scores or circuits of a folder.

    Raises:
        BadFile: there is none; a link that leads out of `root`.
    """
    files = [path for path in sorted(folder.iterdir()) if path.suffix in CIRCUIT_ENDINGS]
    for path in files:
        if leads_out(path, root):
            raise BadFile(f"{path}: {LEADS_OUT}")
    if not files:
        raise BadFile(f"{folder}: no file of scores or of circuits ({', '.join(CIRCUIT_ENDINGS)}).")
    return files


def _is_of_causal_track(name: str) -> bool:
    try:
        MIB_BOARD.parsed(name)
    except BadUsage:
        return False
    return True


def converted(artefact: Artefact, model: Model, target: Path) -> Path:
    """Write the scores or the circuits in our form, under a name of their own: a file, or a folder
    of circuits.

    Args:
        target: without an ending.

    Raises:
        BadFile: a file that cannot be read, or without scores of its level.
        GraphMismatch: of another model's graph, or of another width.
    """
    path = artefact.path
    if path.is_dir():
        series = load_ranked(path, model.graph)
        assert isinstance(series, CircuitSeries)
        for circuit, name in zip(series.circuits, series.names, strict=True):
            circuit.save(target / f"{Path(name).stem}.safetensors")
        return target
    scores = None
    if path.suffix in ENDINGS:
        file = read_graph_file(path, model.graph)
        if file.d_model != model.decoder.d_model:
            raise GraphMismatch(
                f"{path}: is about a model {file.d_model} wide; {model.name} is"
                f" {model.decoder.d_model} wide."
            )
        scores = scores_of(file, artefact.level)
    else:
        held = load_ranked(path, model.graph)
        if not isinstance(held, CircuitSeries) and artefact.level in ("", held.unit):
            scores = held
    if scores is None:
        units = f"scores of {artefact.level}s" if artefact.level else "scores"
        raise BadFile(f"{path}: has no {units}; circuits come as a folder of several files.")
    about = {**scores.provenance, "source": path.name, "sha256": artefact.sha256}
    if artefact.grown and isinstance(scores, EdgeScores):
        about["selection"] = "greedy"
    target = target.with_name(f"{target.name}.safetensors")
    dataclasses.replace(scores, provenance=about).save(target)
    return target
