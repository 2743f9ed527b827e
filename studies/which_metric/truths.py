"""Models whose circuit is known: the package's, and those with a head copied in the same layer.

    plain    the ground truths of the package, with the circuits that it has verified
    +neg     another head gets the weights of the circuit's last head, with -.5 times its output:
             circuits without it overshoot
    +half    the same, and both write half of the last head's output: redundancy

The last head is the circuit's head with the highest writer number; its copy takes the place of
the first head of that layer that no edge of the circuit names. The circuit of a changed model is
what interventions show (`mechassay.truth.verification`): the edges above the widest gap. It counts
if it holds by the package's rule, has all edges of the plain circuit, and edges of the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.models.decoder import Attention, Projection
from mechassay.models.model import Model
from mechassay.prompts.pairs import Pairs
from mechassay.tasks import Task
from mechassay.truth.ground_truth import Truth, load_truth
from mechassay.truth.verification import Verification, above_the_gap, effects_by_pair
from mechassay.utils.display import SILENT

CHANGES: Mapping[str, tuple[float, float]] = {"neg": (1.0, -0.5), "half": (0.5, 0.5)}
"""What the last head and its copy write, in shares of the last head's output."""
N_VERIFIED = 200
"""Pairs that the circuit of a changed model is looked for on."""


@dataclass(frozen=True, eq=False)
class KnownModel:
    """A model, its task, and its circuit by ablation.

    Attributes:
        name: that of a ground truth; a changed model has the change behind a `+`.
        pairs: those that the circuits were verified on, and whose means `mean` stands for.
        margin: how many times the least effect inside exceeds the greatest outside.
        dropped: why a changed model does not count; empty if it does.
        backups: heads of the circuit that work where another is ablated.
    """

    name: str
    model: Model
    task: Task
    circuits: Mapping[str, Circuit]
    pairs: Pairs
    margin: float
    dropped: str = ""
    backups: tuple[str, ...] = ()


def family_of(name: str) -> str:
    """The plain truth that a model is made from."""
    return name.partition("+")[0]


def change_of(name: str) -> str:
    """What was changed; "plain" if nothing was."""
    return name.partition("+")[2] or "plain"


def load_known(name: str) -> KnownModel:
    """A plain or a changed model with its circuits."""
    truth = load_truth(family_of(name))
    change = change_of(name)
    if change == "plain":
        verified = truth.verified["counterfactual"]
        return KnownModel(
            name,
            truth.model,
            truth.task,
            truth.circuits,
            truth.pairs(),
            verified.margin,
            backups=tuple(verified.backups),
        )
    return changed_model(truth, change)


def without_heads(circuit: Circuit, heads: Sequence[str]) -> Circuit:
    """The circuit less all edges to and from some heads."""
    graph, edges = circuit.graph, circuit.edges.clone()
    writers = torch.tensor([graph.writer(head) for head in heads], dtype=torch.long)
    edges[writers] = False
    edges[:, torch.isin(graph.reader_owner.to(writers.device), writers)] = False
    return Circuit(graph, edges)


def changed_model(truth: Truth, change: str, n_pairs: int = N_VERIFIED) -> KnownModel:
    """A truth with a copied head, and the circuit that interventions show."""
    name, plain = f"{truth.name}+{change}", truth.circuits["counterfactual"]
    layer, head, other = _places(plain)
    pairs = truth.task.pairs(truth.split, truth.model, limit=n_pairs, seed=truth.seed)
    if other is None:
        reason = f"all heads of layer {layer} are in the circuit"
        return KnownModel(name, truth.model, truth.task, {}, pairs, float("nan"), reason)
    model = with_copied_head(truth.model, layer, head, other, CHANGES[change])
    batch = model.batch(pairs)
    by_pair = effects_by_pair(model, batch, progress=SILENT)
    circuit = above_the_gap(model.graph, by_pair.amax(dim=0))
    whole, alone = evaluate(model, [Circuit.full(model.graph), circuit], batch, progress=SILENT)
    verified = Verification(
        "counterfactual", circuit, by_pair, together=float(np.abs(whole - alone).max())
    )
    return KnownModel(
        name,
        replace(model, name=name),
        truth.task,
        {"counterfactual": circuit},
        pairs,
        verified.margin,
        _why_dropped(verified, plain, f"a{layer}.h{other}"),
    )


def _places(circuit: Circuit) -> tuple[int, int, int | None]:
    """Layer and number of the last head, and the head of that layer that becomes its copy."""
    graph = circuit.graph
    writers, readers = circuit.edges.nonzero().T
    named = {*writers.tolist(), *graph.reader_owner[readers].tolist()}
    for layer in reversed(range(graph.n_layers)):
        heads = range(graph.n_heads)
        used = [head for head in heads if graph.head(layer, head) in named]
        if used:
            free = (head for head in heads if head not in used)
            return layer, used[-1], next(free, None)
    raise ValueError(f"{circuit} has no head.")


def with_copied_head(
    model: Model, layer: int, head: int, other: int, shares: tuple[float, float]
) -> Model:
    """The model with head `other` a copy of `head`; the two write these shares of its output."""
    block = model.decoder.layers[layer]
    attention = block.attention
    out = attention.out.clone()
    out[other], out[head] = shares[1] * attention.out[head], shares[0] * attention.out[head]
    copied: Attention = replace(
        attention,
        q=_copied(attention.q, head, other),
        k=_copied(attention.k, head, other),
        v=_copied(attention.v, head, other),
        out=out,
    )
    layers = list(model.decoder.layers)
    layers[layer] = replace(block, attention=copied)
    return replace(model, decoder=replace(model.decoder, layers=tuple(layers)))


def _copied(projection: Projection, head: int, other: int) -> Projection:
    def copy(values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        values[other] = values[head]
        return values

    bias = None if projection.bias is None else copy(projection.bias)
    return Projection(copy(projection.weight), bias)


def _why_dropped(verified: Verification, plain: Circuit, copy: str) -> str:
    circuit = verified.claimed
    if not verified.holds:
        return (
            f"does not hold: margin {verified.margin:.3g}, joint margin"
            f" {verified.joint_margin:.3g}, least share {verified.least_share:.2f}"
        )
    if not bool(circuit.edges[plain.edges].all()):
        return "lacks edges of the plain circuit"
    if not any(copy in edge for edge in circuit.names()):
        return "has no edge of the copy"
    return ""
