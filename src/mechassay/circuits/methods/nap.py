"""Node attribution patching, at the clean input and with integrated gradients.

    NAP      S[u, d] = - mean_examples sum_positions (a'_u - a_u)[d] * dm/da_u[d] at the clean run
    NAP-IG   the same with dm/da_u averaged over runs on a'_input + alpha_k (a_input - a'_input)

Mueller et al. 2025, eq. 3 with dm/da_u and appendix E.2, where NAP is always reported by neuron:
one dimension d of a node's output. `level="node"` sums over d. See `circuits.node_attribution` for
how, and for the bug in MIB's code (MLPs were scored with the gradient at their input).

The rule for the points alpha_k is a field. MIB's code takes k/Z for k = 1..Z here (`right`: the
clean end is in, the counterfactual end is not) but k = 0..Z-1 for edges; the default here is
`left`, as for edges, so that node scores are sums of the edge scores of EAP-IG-inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor

from mechassay.circuits.methods.eap_ig_inputs import Points, quadrature
from mechassay.circuits.methods.method import mean_of_shape
from mechassay.circuits.node_attribution import clean_node_scores, interpolated_node_scores
from mechassay.circuits.node_scores import NeuronScores, NodeScores
from mechassay.errors import BadUsage, UnknownName
from mechassay.graph import Graph
from mechassay.models.gradient_rules import backward_model, check_backward
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

Level = Literal["neuron", "node"]
LEVELS = ("neuron", "node")


@dataclass(frozen=True)
class NAP:
    """Node attribution patching.

    Attributes:
        level: "neuron" for `NeuronScores`, "node" for `NodeScores`.
        backward: "plain", or "gim" (`mechassay.models.gradient_rules`).
    """

    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        check_backward(self.backward)
        _check_level(self.level)

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> NeuronScores | NodeScores:
        """See `Method.score`; scores of neurons or nodes instead of edges.

        Raises:
            BadUsage: also for a divergence from the clean run (kl, js): it is smallest there and
                has no gradient.
        """
        model = backward_model(model, self.backward)
        chosen = load_objective(objective)
        if chosen.needs_clean:
            raise BadUsage(
                f"{self.name} takes gradients at the clean run, where {chosen.name!r} has none; use"
                " nap-ig."
            )
        return _scored(
            self,
            model,
            pairs,
            chosen,
            lambda chunk, m, into: clean_node_scores(model, chunk, m, into),
            copies=1,
            progress=progress,
            checkpoint=checkpoint,
        )

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: the clean and the counterfactual run, and one backward pass."""
        return 3.0 * n_pairs


@dataclass(frozen=True)
class NAPIG:
    """Node attribution patching with gradients integrated along the inputs.

    Attributes:
        steps: gradient evaluations along the path.
        points: where they are taken.
        level: "neuron" for `NeuronScores`, "node" for `NodeScores`.
        backward: "plain", or "gim" (`mechassay.models.gradient_rules`).
    """

    steps: int = 5
    points: Points = "left"
    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap-ig"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        check_backward(self.backward)
        quadrature(self.points, self.steps)
        _check_level(self.level)

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> NeuronScores | NodeScores:
        """See `Method.score`; scores of neurons or nodes instead of edges."""
        model = backward_model(model, self.backward)
        alphas, weights = quadrature(self.points, self.steps)
        return _scored(
            self,
            model,
            pairs,
            objective,
            lambda chunk, m, into: interpolated_node_scores(model, chunk, m, alphas, weights, into),
            copies=self.steps,
            progress=progress,
            checkpoint=checkpoint,
        )

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and a forward and a backward pass a step."""
        return (2.0 + 2.0 * self.steps) * n_pairs


def _check_level(level: str) -> None:
    if level not in LEVELS:
        raise UnknownName("level", level, LEVELS)


def _scored(
    method: NAP | NAPIG,
    model: Model,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective,
    add: Callable[[Batch, Objective, Tensor], None],
    *,
    copies: int,
    progress: Progress,
    checkpoint: Path | None,
) -> NeuronScores | NodeScores:
    shape = (model.graph.n_writers, model.decoder.d_model)
    mean, about = mean_of_shape(
        method,
        model,
        pairs,
        objective,
        add,
        shape,
        copies=copies,
        progress=progress,
        checkpoint=checkpoint,
    )
    if method.level == "neuron":
        return NeuronScores.of(model.graph, mean, about)
    return NodeScores.of(model.graph, mean.sum(1), about)
