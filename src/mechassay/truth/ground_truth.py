"""Ground-truth models that come with the package: a model, its task, and its circuits.

A folder under `data` holds truth.json (`mechassay.truth.verification`) and, where the model was
trained, the model like any other; `mechassay.truth.compiled` makes the others.

In a run a ground truth is run on its own task. Where tasks of ground truths are named it runs on
these, as one may know the words of another's task. A model that is no ground truth runs on all
tasks that are named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.spec import FoundCircuit
from mechassay.errors import BadFile, BadUsage, GraphMismatch, MechassayError, UnknownName, one_of
from mechassay.models.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.models.sources import MADE_TRUTHS, TRUTH_FOLDERS, find_source
from mechassay.models.weight_files import is_model_folder
from mechassay.prompts.pairs import Pairs
from mechassay.tasks import TRUTHS, Task
from mechassay.truth.compiled import compiled_folder
from mechassay.truth.summary import FILE, FORMAT, ratio, read_truth_file
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine


@dataclass(frozen=True, repr=False)
class Verified(OneLine):
    """What truth.json says about one ablation; three are missing in older versions.

    Attributes:
        circuit: the edges that have an effect.
        smallest_inside, largest_outside: the extremes of the edges' largest effects, in it and out
            of it.
        together: the largest effect of all edges outside at once.
        shares, shares_in_pair: of each edge, in the order of `circuit.names()`, the share of pairs
            in which it exceeds the largest effect outside in any pair, and in the same pair.
        backups: the primary head of each backup head.
        contingent: the edges whose effect is clear only where a head of such a pair is ablated.
    """

    circuit: Circuit
    smallest_inside: float
    largest_outside: float
    together: float = math.nan
    shares: tuple[float, ...] = ()
    shares_in_pair: tuple[float, ...] = ()
    backups: Mapping[str, str] = field(default_factory=dict)
    contingent: tuple[str, ...] = ()

    @property
    def margin(self) -> float:
        """How many times the least effect inside exceeds the greatest outside; see `ratio`."""
        return ratio(self.smallest_inside, self.largest_outside)

    @property
    def joint_margin(self) -> float:
        """How many times it exceeds the effect of everything outside at once."""
        return ratio(self.smallest_inside, self.together)

    @property
    def least_share(self) -> float:
        """The least of `shares`; NaN if there are none."""
        return min(self.shares, default=math.nan)


@dataclass(frozen=True, eq=False, repr=False)
class Truth(OneLine):
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
        return {ablation: verification.circuit for ablation, verification in self.verified.items()}

    @property
    def margins(self) -> dict[str, float]:
        """How clear the circuit is, by ablation: maxima over `n_pairs` pairs."""
        return {ablation: verification.margin for ablation, verification in self.verified.items()}

    def pairs(self) -> Pairs:
        """The pairs that the circuits were verified on, and whose means `mean` stands for."""
        return self.task.pairs(self.split, self.model, limit=self.n_pairs, seed=self.seed)


def is_truth(name: str) -> bool:
    """Whether a model of that name has a known circuit."""
    return name in TRUTHS


def truth_folder(name: str) -> Path:
    """Where the model of a ground truth is: a folder that `load_model` takes.

    Raises:
        UnknownName: there is none of that name.
        ModelNotFetched: it has to be made first, see `mechassay.truth.training.make_from_recipe`.
        MechassayError: it has to be compiled, and the cache cannot be written to.
    """
    TRUTHS.load(name)
    if name in MADE_TRUTHS:
        return Path(find_source(name).location)
    folder = TRUTH_FOLDERS / name
    return folder if is_model_folder(folder) else compiled_folder(name)


def truth_of(model: Model) -> Truth:
    """Return the ground truth whose name and weights a model has.

    Raises:
        BadUsage: no ground truth has this name, or the weights of the model differ from those of
            the ground truth, as after an edit in memory.
    """
    if not is_truth(model.name):
        raise BadUsage(
            "The circuit 'truth' is that of a ground-truth model (mechassay truth list);"
            f" {model.name} is none."
        )
    truth = load_truth(model.name, dtype=model.dtype)
    if truth.model.known_identity.weights != model.known_identity.weights:
        raise BadUsage(
            f"The weights of this model differ from those of the ground truth {model.name}, so its"
            " circuit is not known."
        )
    return truth


def truth_circuit(model: Model, ablation: str) -> FoundCircuit:
    """Return the circuit of a ground truth that is verified for an ablation.

    Raises:
        BadUsage: see `truth_of`; or the circuit is verified for other ablations.
    """
    circuits = truth_of(model).circuits
    if ablation not in circuits:
        raise BadUsage(
            f"The circuit of {model.name} is verified for {', '.join(circuits)} ablation, not for"
            f" {ablation}."
        )
    return FoundCircuit("truth", circuits[ablation], {"verified for": f"{ablation} ablation"})


@checked
def load_truth(
    name: str | Path, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
) -> Truth:
    """A model whose circuit is known, by name, or from a folder that `mechassay truth train` wrote.

    Raises:
        UnknownName: there is none of that name, nor such a folder; the message has the nearest
            name.
        BadFile: its files are damaged.
        GraphMismatch: its circuit was verified on another graph than the model's.
    """
    given = isinstance(name, Path) or (Path(name) / FILE).is_file()
    folder = Path(name) if given else truth_folder(str(name))
    record = read_truth_file(folder / FILE)
    model = load_model(str(folder), dtype=dtype, device=device)
    try:
        if record["format"] != FORMAT:
            raise BadFile(f"{folder / FILE}: format must be {FORMAT}; got {record['format']!r}.")
        if record["graph"] != model.graph.fingerprint:
            raise GraphMismatch(
                f"{name} was verified on the graph {record['graph']}; the model's is"
                f" {model.graph.fingerprint}."
            )
        tasks = {task.name: task for task in map(TRUTHS.make, TRUTHS.names())}
        one_of("task of a ground truth", record["task"], tasks)
        if not record["ablations"]:
            raise BadFile(f"{folder / FILE}: no ablation has a circuit.")
        rows: Mapping[str, Any] = record["ablations"]
        verified = {ablation: _verified(model.graph, row) for ablation, row in rows.items()}
        about = (record["split"], int(record["seed"]), int(record["n_pairs"]))
        return Truth(folder.name, model, tasks[record["task"]], verified, *about)
    except BadUsage as error:
        raise BadFile(f"{folder / FILE}: not a ground truth: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadFile(
            f"{folder / FILE}: not a ground truth: {type(error).__name__} {error}."
        ) from error


def _verified(graph: Graph, row: Mapping[str, Any]) -> Verified:
    circuit = Circuit.from_names(graph, row["edges"])
    shares, in_pair = (tuple(map(float, row.get(key, ()))) for key in ("shares", "shares_in_pair"))
    if any(len(values) not in (0, len(circuit)) for values in (shares, in_pair)):
        raise ValueError(f"{len(circuit)} edges, but {len(shares)} and {len(in_pair)} shares")
    inside, outside = float(row["smallest_inside"]), float(row["largest_outside"])
    together = float(row.get("together", math.nan))
    backups = {str(head): str(row["primary"]) for head, row in row.get("backups", {}).items()}
    contingent = tuple(map(str, row.get("contingent", ())))
    return Verified(circuit, inside, outside, together, shares, in_pair, backups, contingent)


def tasks_of(model: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """What a model runs on, of the tasks that are named."""
    if not is_truth(model):
        return tuple(tasks)
    return tuple(task for task in tasks if is_truth(task)) or (model,)


def check_tasks(models: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse models without a task, and tasks without a model.

    Raises:
        UnknownName: a model without a task is none that can be named.
        BadUsage: a model that is no ground truth has no task; or all models are ground truths, and
            one of the tasks is none of theirs.
    """
    for model in models:
        if not tasks_of(model, tasks):
            _check_known(model)
            raise BadUsage(
                f"{model} needs a task to run on; only ground truths have one of their own."
            )
    others = _of_others(tasks)
    if others and models and all(map(is_truth, models)):
        which = models[0] if len(models) == 1 else "Ground truths"
        own = f"its own task, {models[0]}" if len(models) == 1 else "their own tasks"
        raise BadUsage(
            f"{which} run{'s' * (len(models) == 1)} on {own}, or on one of another ground truth;"
            f" got {', '.join(others)}. Leave --task out."
        )


def own_task_notes(models: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """What to say where ground truths are among the models, and the tasks are for the others."""
    truths, others = [name for name in models if is_truth(name)], _of_others(tasks)
    if not truths or not others:
        return ()
    who = truths[0] if len(truths) == 1 else f"{len(truths)} ground truths"
    runs, own = ("runs", "its own task") if len(truths) == 1 else ("run", "their own tasks")
    if named := [task for task in tasks if is_truth(task)]:
        own = ", ".join(named)
    return (f"{who} {runs} on {own}, not on {', '.join(others)}.",)


def _check_known(model: str) -> None:
    """Refuse a name that is no model's, such as a ground truth's with a letter wrong."""
    try:
        find_source(model)
    except UnknownName:
        raise
    except MechassayError:
        return  # A model that is not here, which has no task either.


def _of_others(tasks: Sequence[str]) -> list[str]:
    """The tasks that no ground truth runs on."""
    return [task for task in tasks if not is_truth(task)]
