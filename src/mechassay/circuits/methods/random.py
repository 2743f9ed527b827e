"""Random scores: uniform in [-1, 1], the control that every method must beat
(Mueller et al. 2025, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from mechassay.circuits.methods.method import provenance_of, seeded
from mechassay.circuits.scores import EdgeScores
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress


@dataclass(frozen=True)
class Random:
    """Uniform random edge scores."""

    seed: int = 0
    name: ClassVar[str] = "random"
    version: ClassVar[int] = 1

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`; the pairs only enter the provenance."""
        drawn = self.draw(model.graph)
        return EdgeScores(
            drawn.graph,
            drawn.values,
            provenance_of(self, model, model.batch(pairs), load_objective(objective)),
        )

    def draw(self, graph: Graph) -> EdgeScores:
        """Random scores of a graph, with no model."""
        generator = seeded(self.seed)
        values = torch.rand(graph.n_writers, graph.n_readers, generator=generator) * 2 - 1
        return EdgeScores.of(graph, values, {"method": self.name, "settings": {"seed": self.seed}})

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: none."""
        return 0.0
