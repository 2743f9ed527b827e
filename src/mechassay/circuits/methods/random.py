"""Random scores: uniform in [-1, 1], the control of Mueller et al. 2025, section 3.2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from mechassay.circuits.methods.method import provenance_of, seeded
from mechassay.circuits.scores import EdgeScores
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import ObjectiveLike, load_objective
from mechassay.pairs import PairsLike
from mechassay.progress import BAR, Progress


class DrawnMethod(ABC):
    """A control whose scores are drawn for a graph, whatever the model does."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    seed: int

    @abstractmethod
    def draw(self, graph: Graph) -> EdgeScores:
        """Random scores of a graph, with no model."""

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`; the pairs only enter the provenance."""
        about = provenance_of(self, model, model.batch(pairs), load_objective(objective))
        return replace(self.draw(model.graph), provenance=about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: none."""
        return 0.0


@dataclass(frozen=True)
class Random(DrawnMethod):
    """Uniform random edge scores."""

    seed: int = 0
    name: ClassVar[str] = "random"

    def draw(self, graph: Graph) -> EdgeScores:
        values = torch.rand(graph.legal.shape, generator=seeded(self.seed)) * 2 - 1
        return EdgeScores.of(graph, values, {"method": self.name, "settings": {"seed": self.seed}})
