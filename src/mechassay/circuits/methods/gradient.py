"""Methods by gradients: a mean over examples, each chunk of which is differentiated at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.circuits.attribution import clean_scores, interpolated_scores
from mechassay.circuits.methods.method import check_gradients, provenance_of, resumable_sum
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, one_of
from mechassay.graph import Graph
from mechassay.models.gradient_rules import BACKWARD, backward_model
from mechassay.models.memory import gradient_bytes, token_budget
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, load_objective
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

ScoresT = TypeVar("ScoresT", bound=Scores)
Points = Literal["left", "right", "midpoint", "gauss-legendre"]
Quadrature = tuple[tuple[float, ...], tuple[float, ...]]
"""Points in [0, 1], and weights that sum to 1."""


def quadrature(points: str, steps: int) -> Quadrature:
    """The points and weights of an integration rule.

    Raises:
        UnknownName: no such rule. BadUsage: fewer than one step.
    """
    one_of("integration rule", points, get_args(Points))
    if steps < 1:
        raise BadUsage(f"Integrated gradients need at least 1 step; got {steps}.")
    if points == "gauss-legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())
    shift = {"left": 0.0, "right": 1.0, "midpoint": 0.5}[points]
    return tuple((k + shift) / steps for k in range(steps)), (1 / steps,) * steps


class GradientMethod(ABC, Generic[ScoresT]):
    """A frozen dataclass with a field `backward`: "plain", or "gim" (`models.gradient_rules`).

    `instead` names the method for divergences from the clean run, which have no gradient there.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    instead: ClassVar[str] = ""
    backward: str

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        one_of("backward rules", self.backward, BACKWARD)

    @abstractmethod
    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        """Add the summed scores of some examples to `into`."""

    @abstractmethod
    def shape(self, model: Model) -> tuple[int, int]:
        """That of `into`."""

    @abstractmethod
    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> ScoresT:
        """Scores of the mean over all examples."""

    @property
    def path(self) -> Quadrature | None:
        """Where gradients are taken, from counterfactual (0) to clean (1); None: the clean run."""
        return None

    @property
    def copies(self) -> int:
        """Forward passes with gradients that are alive at once for one example."""
        return 1 if self.path is None else len(self.path[0])

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and a forward and a backward pass for each copy."""
        return (3.0 if self.instead else 2.0 + 2.0 * self.copies) * n_pairs

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> ScoresT:
        """See `Method.score`.

        Raises:
            BadUsage: also for a divergence (kl, js), which is smallest at the clean run and has no
                gradient there, if that is where the method takes them.
        """
        model, chosen = backward_model(model, self.backward), load_objective(objective)
        if self.instead and chosen.needs_clean:
            raise BadUsage(
                f"{self.name} takes gradients at the clean run, where {chosen.name!r} has none; use"
                f" {self.instead}."
            )
        batch = model.batch(pairs)
        if not chosen.differentiable:
            raise BadUsage(f"{self.name} needs a differentiable objective; {chosen.name!r} is not.")
        check_gradients(self.name, model)
        zeros = torch.zeros(self.shape(model), dtype=model.accumulator, device=model.device)
        budget = token_budget(
            gradient_bytes(model.decoder, self.copies), batch.n_tokens, model.device
        )
        about = provenance_of(self, model, batch, chosen)
        sums = resumable_sum(
            self.name,
            key_of({**about, "budget": budget, "graph": model.graph.fingerprint}),
            {"total": zeros},
            ((len(rows), chunk) for rows, chunk in batch.chunks(budget)),
            lambda chunk, into: self.add(model, chunk, chosen, into["total"]),
            n_units=len(batch),
            progress=progress,
            checkpoint=checkpoint,
        )
        return self.scores(model.graph, sums["total"] / len(batch), about)


class EdgeGradientMethod(GradientMethod[EdgeScores]):
    """A gradient method that scores edges."""

    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        if self.path is None:
            clean_scores(model, chunk, objective, into)
        else:
            interpolated_scores(model, chunk, objective, *self.path, into)

    def shape(self, model: Model) -> tuple[int, int]:
        return model.graph.n_writers, model.graph.n_readers

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> EdgeScores:
        return EdgeScores.of(graph, mean, provenance)


class IntegratedMethod(GradientMethod[ScoresT]):
    """A gradient method with fields `steps` and `points`: gradients averaged along a path."""

    steps: int
    points: Points

    def __post_init__(self) -> None:
        super().__post_init__()
        quadrature(self.points, self.steps)

    @property
    def path(self) -> Quadrature:
        return quadrature(self.points, self.steps)
