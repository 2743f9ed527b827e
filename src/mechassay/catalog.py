"""What there is by name: models, tasks, methods, metrics, objectives, and circuits as typed.

Each list has what the commands list, ground truths and plug-ins of other packages included.
"""

from __future__ import annotations

from functools import partial
from os import PathLike, fspath

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.objectives import OBJECTIVES
from mechassay.models.sources import gym_model_names, truth_names
from mechassay.models.weight_files import packaged_names
from mechassay.tasks import TASKS, TRUTHS
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.arguments import checked


def list_models() -> list[str]:
    """Models that have a name: packaged ones, which `fetch` fetches, ground truths, and those
    that were trained on the gym tasks.
    """
    return [*packaged_names(), *truth_names(), *gym_model_names()]


def list_tasks() -> list[str]:
    """Tasks, and the ground truths, each of which names its task too."""
    return [*TASKS.names(), *TRUTHS.names()]


def list_methods() -> list[str]:
    """Methods that score edges, nodes or neurons."""
    return METHODS.names()


def list_metrics() -> list[str]:
    """Metrics beside faithfulness."""
    return METRICS.names()


def list_objectives() -> list[str]:
    """What a circuit can be asked to preserve."""
    return OBJECTIVES.names()


@checked
def load_circuit(
    name: str | PathLike[str],
    of: Model | Graph | None = None,
    *,
    ablation: str = "counterfactual",
    seed: int = 0,
) -> Circuit:
    """A circuit as the commands take it: "canonical:ioi", "truth", "random@500", or a file.

    Args:
        name: see `mechassay.circuits.methods.spec`.
        of: the model, or its graph. Files and circuits of the literature have a graph of their own,
            and fit this one if it is given.
        ablation: of a ground truth, what its circuit is verified for.
        seed: of random circuits.

    Raises:
        UnknownName, BadFile, GraphMismatch; BadUsage: a circuit that needs a model which is not
            given, or that a method would have to find.
    """
    spec = CircuitSpec.parse(fspath(name))
    if spec.kind == "method":
        raise BadUsage(
            f"The circuit {spec.text!r} is cut from scores: load_method({spec.name!r}).score(model,"
            f" pairs).top({spec.size})."
        )
    if isinstance(of, Model):
        truth = partial(truth_circuit, of, ablation)
        return spec.find(of.graph, seed=seed, truth=truth).circuit
    return spec.find(of, seed=seed).circuit
