"""Ground-truth models wherever a run names a model or a task,
and how well scores recover their circuit.

The name of a ground truth ("truth-ioi") stands for its model, and where a task is named for its
task. A record of such a model on its own task also says how well the scores tell the edges of the
verified circuit from the others: AUROC with its interval, AUPRC and R-precision, by magnitude, or
in the order in which circuits of these scores grow, where they are grown from the logits
(`mechassay.circuits.recovery`). The circuit is the one that was verified for the run's ablation;
for another ablation there is no truth, and the measures are undefined.

Scores of nodes are compared too. To include a node is to include all edges out of it, so an edge
has its writer's score, and the edges out of one node are tied; a node's score is the sum over its
neurons. It is what a method that cannot tell edges apart can say about them: one that finds exactly
the right nodes gets less than 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import norm

from mechassay.circuits.node_scores import NeuronScores, Scores
from mechassay.circuits.recovery import recovery_of
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.spec import FoundCircuit
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, load_model
from mechassay.models.sources import packaged_models
from mechassay.records import Measure, Provenance, Record, provenance
from mechassay.stats.intervals import LEVEL, Interval
from mechassay.tasks import TASKS, Task, load_task
from mechassay.truth.models import TRUTHS, load_truth, truth_folder, truth_names

MEASURES = {
    "auroc": (
        "AUROC",
        "How well scores tell the edges of a circuit that is known from all others, edges by"
        " magnitude: the probability that one of the first lies above one of the second. Random"
        " rankings have 0.5, and the interval beside it is what 95 % of them are between; other"
        " intervals are over edges. Methods that score nodes give all edges out of a node its"
        " score. Edges of information flow routes rank in the order in which their circuit grows.",
    ),
    "auprc": ("AUPRC", "Average precision: the area under precision over recall of those edges."),
    "r_precision": (
        "R-precision",
        "The share of the known circuit's edges among as many edges of the highest scores.",
    ),
}
"""How well a known circuit is found: headings and meanings."""


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


def by_edge(scores: Scores) -> EdgeScores:
    """Scores of edges as they are; of nodes or neurons, each edge with its writer's."""
    if isinstance(scores, EdgeScores):
        return scores
    graph, nodes = scores.graph, scores.nodes() if isinstance(scores, NeuronScores) else scores
    return EdgeScores(
        graph, torch.where(graph.legal, nodes.values[:, None], torch.nan), scores.provenance
    )


def with_recovery(record: Record, scores: Scores, truth: str, ablation: str) -> Record:
    """The record with `MEASURES` against a ground truth's circuit,
    and among its controls what random rankings have of each.

    Raises:
        GraphMismatch: the scores belong to another graph than the truth.
    """
    known = load_truth(truth).circuits
    if ablation not in known:
        why = (
            f"The circuit of {truth} is verified for {', '.join(known)} ablation, not for"
            f" {ablation}: recovery is undefined."
        )
        undefined = [_measure(name, math.nan) for name in MEASURES]
        return record.changed(
            measures=[*record.measures, *undefined], warnings=[*record.warnings, why]
        )
    found = recovery_of(by_edge(scores), known[ablation], by="magnitude")
    n_true, n_false = found.n_true, found.n_false
    measures = [
        _measure("auroc", found.auroc, found.auroc_interval, n=found.n_true),
        _measure("auprc", found.auprc, n=found.n_true),
        _measure("r_precision", found.r_precision, n=found.n_true),
        _measure("auroc", 0.5, by_chance(n_true, n_false), of="control:random"),
        _measure("auprc", auprc_by_chance(n_true, n_false), of="control:random"),
        _measure("r_precision", n_true / (n_true + n_false), of="control:random"),
    ]
    return record.changed(measures=[*record.measures, *measures])


def by_chance(n_true: int, n_false: int) -> Interval:
    """What the AUROC of 95 % of random rankings is between; its mean is 1/2.

    The Mann-Whitney statistic of n and m without ties has the variance (n + m + 1) / (12 n m), and
    is about normal.
    """
    half = float(norm.ppf((1 + LEVEL) / 2)) * math.sqrt(
        (n_true + n_false + 1) / (12 * n_true * n_false)
    )
    return Interval(0.5 - half, 0.5 + half)


def auprc_by_chance(n_true: int, n_false: int) -> float:
    """The mean average precision over all orders of n_true true and n_false other edges.

    At place i an edge is true with probability K / N, and then each of the i - 1 before it with
    (K - 1) / (N - 1). So the mean is H / N + (K - 1) / (N - 1) (1 - H / N), H the N-th harmonic
    number: a little more than the share of true edges, K / N.
    """
    n = n_true + n_false
    share = sum(1 / place for place in range(1, n + 1)) / n
    return share + (n_true - 1) / max(1, n - 1) * (1 - share)


def _measure(
    name: str, value: float, interval: Interval | None = None, *, of: str = "result", n: int = 0
) -> Measure:
    low, high, level = interval or Interval(math.nan, math.nan)
    title, meaning = MEASURES[name]
    return Measure(
        name=name,
        of=of,
        title=title,
        meaning=meaning,
        better="up",
        value=value,
        low=low,
        high=high,
        level=level,
        n=n,
    )
