"""Ground-truth models that come with the package: a model, its task, and its circuit for each ablation.

A folder under `data` holds a model like any other (config.json, model.safetensors, tokenizer files), and truth.json:

    {"format": 1, "graph": fingerprint, "split": ..., "seed": ..., "n_pairs": ...,
     "ablations": {ablation: {"edges": [...], "smallest_inside": ..., "largest_outside": ...}}}

with the verified edges (`mechassay.truth.verify`), the smallest largest effect of an edge of the circuit, and the largest of
another, over the first `n_pairs` pairs of the split. `tools/truth_models.py` writes the folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mechassay.circuits.scores import Circuit
from mechassay.errors import BadFile, GraphMismatch
from mechassay.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.registry import Registry
from mechassay.tasks.task import Task

DATA = Path(__file__).parent / "data"
FORMAT = 1
TRUTHS = Registry(
    "ground truth",
    {
        "truth-induction": "mechassay.truth.tasks:Induction",
        "truth-ioi": "mechassay.truth.tasks:CompiledIOI",
        "truth-previous-token": "mechassay.truth.tasks:PreviousToken",
    },
    plural="truths",
)


@dataclass(frozen=True)
class Verified:
    """What truth.json says about one ablation.

    Attributes:
        circuit: the edges that have an effect.
        smallest_inside, largest_outside: the extremes of the edges' largest effects, in the circuit and out of it.
    """

    circuit: Circuit
    smallest_inside: float
    largest_outside: float

    @property
    def margin(self) -> float:
        """How many times the least effect inside the circuit exceeds the greatest outside."""
        return self.smallest_inside / self.largest_outside


@dataclass(frozen=True, eq=False)
class Truth:
    """A model whose circuit is known.

    Attributes:
        name: its name in `TRUTHS`.
        model: a model like any other.
        task: what it does.
        verified: the circuit and the effects that verified it, by ablation.
        split, seed, n_pairs: the pairs that it was verified on.
    """

    name: str
    model: Model
    task: Task
    verified: Mapping[str, Verified]
    split: str
    seed: int
    n_pairs: int

    @property
    def circuits(self) -> dict[str, Circuit]:
        """The circuit that an ablation shows, by ablation."""
        return {ablation: each.circuit for ablation, each in self.verified.items()}

    @property
    def margins(self) -> dict[str, float]:
        """How clear the circuit is, by ablation."""
        return {ablation: each.margin for ablation, each in self.verified.items()}


def truth_names() -> list[str]:
    """The models whose circuit is known."""
    return TRUTHS.names()


def truth_folder(name: str) -> Path:
    """Where the model of a ground truth is: a folder that `load_model` takes.

    Raises:
        UnknownName: there is none of that name.
    """
    TRUTHS.load(name)
    return DATA / name


def load_truth(name: str, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu") -> Truth:
    """A model whose circuit is known, by name.

    Raises:
        UnknownName: there is none of that name; the message has the nearest one.
        BadFile: its files are damaged.
        GraphMismatch: its circuit was verified on another graph than the model's.
    """
    folder = truth_folder(name)
    model = load_model(str(folder), dtype=dtype, device=device)
    record = _read(folder / "truth.json")
    try:
        if record["format"] != FORMAT:
            raise BadFile(f"{folder / 'truth.json'}: format must be {FORMAT}; got {record['format']!r}.")
        if record["graph"] != model.graph.fingerprint:
            raise GraphMismatch(f"{name} was verified on the graph {record['graph']}; the model's is {model.graph.fingerprint}.")
        found = {ablation: _verified(model.graph, row) for ablation, row in record["ablations"].items()}
        return Truth(name, model, TRUTHS.make(name), found, record["split"], record["seed"], record["n_pairs"])
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{folder / 'truth.json'}: not a ground truth: {type(error).__name__} {error}.") from error


def _verified(graph: Graph, row: Mapping[str, Any]) -> Verified:
    return Verified(Circuit.from_names(graph, row["edges"]), float(row["smallest_inside"]), float(row["largest_outside"]))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be read as JSON: {error}.") from error
