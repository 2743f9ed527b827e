"""Ground-truth models wherever a run names a model or a task.

The name of a ground truth ("truth-ioi") stands for its model, and where a task is named for its
task. On its own task its circuit is known, for the ablations that it was verified for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechassay.circuits.spec import FoundCircuit
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, load_model
from mechassay.models.sources import packaged_models
from mechassay.records import Provenance, provenance
from mechassay.tasks import TASKS, Task, load_task
from mechassay.truth.models import TRUTHS, load_truth, truth_folder, truth_names


def is_truth(name: str) -> bool:
    """Whether a model of that name has a known circuit."""
    return name in TRUTHS.targets()


def shown_model(name: str) -> str:
    """What tables call a model: folders and files by their own names."""
    path = Path(name)
    return path.name if path.exists() else name


def made_by(model: Model, seed: int, data_hash: str) -> Provenance:
    """How a record of a model came about."""
    device, dtype = str(model.device), str(model.dtype).removeprefix("torch.")
    return provenance(device=device, dtype=dtype, seed=seed, data_hash=data_hash)


def load_named(
    name: str, *, dtype: str = "float32", device: str = "cpu", prepend_bos: bool = False
) -> Model:
    """A model by any name that a command takes; see `load_model` for errors."""
    if not is_truth(name):
        try:
            return load_model(name, dtype=dtype, device=device, prepend_bos=prepend_bos)
        except UnknownName:
            raise UnknownName("model", name, [*packaged_models(), *truth_names()]) from None
    return replace(
        load_model(str(truth_folder(name)), dtype=dtype, device=device, prepend_bos=prepend_bos),
        name=name,
    )


def task_named(name: str) -> Task:
    """A task by any name that a command takes, or a ground truth's; errors as `load_task`."""
    if is_truth(name):
        return TRUTHS.make(name)
    try:
        return load_task(name)
    except UnknownName:
        if name.partition(":")[0] in TASKS.names():
            raise  # of a known task, a setting is not
        raise UnknownName("task", name, [*TASKS.names(), *truth_names()]) from None


def truth_circuit(model: str, ablation: str) -> FoundCircuit:
    """The circuit of a ground truth, by the model's name, that is verified for an ablation.

    Raises:
        BadUsage: no ground truth has this name, or its circuit is verified for other ablations.
    """
    if not is_truth(model):
        raise BadUsage(
            f"The circuit 'truth' is that of a ground-truth model (mechassay truth list); {model}"
            " is none."
        )
    circuits = load_truth(model).circuits
    if ablation not in circuits:
        raise BadUsage(
            f"The circuit of {model} is verified for {', '.join(circuits)} ablation, not for"
            f" {ablation}."
        )
    return FoundCircuit("truth", circuits[ablation], {"verified for": f"{ablation} ablation"})
