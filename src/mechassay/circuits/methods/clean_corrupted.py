"""Clean-corrupted: the mean of the gradients at the clean and at the counterfactual input.

    S[u, v] = - mean_examples <a'_u - a_u, (dm/dx_v at clean + dm/dx_v at counterfactual) / 2>

The trapezoidal rule with one interval along the path that EAP-IG-inputs follows (Hanna et al.
2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mechassay.circuits.attribution import interpolated_scores
from mechassay.circuits.methods.method import mean_over_examples
from mechassay.circuits.scores import EdgeScores
from mechassay.graph import Graph
from mechassay.models.gradient_rules import backward_model, check_backward
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings


@dataclass(frozen=True)
class CleanCorrupted:
    """Attribution with gradients at both ends.

    Attributes:
        backward: "plain", or "gim" (`mechassay.models.gradient_rules`).
    """

    backward: str = "plain"
    name: ClassVar[str] = "clean-corrupted"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        check_backward(self.backward)

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`."""
        model = backward_model(model, self.backward)
        return mean_over_examples(
            self,
            model,
            pairs,
            objective,
            lambda chunk, m, into: interpolated_scores(
                model, chunk, m, (0.0, 1.0), (0.5, 0.5), into
            ),
            copies=2,
            progress=progress,
            checkpoint=checkpoint,
        )

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and a forward and a backward pass at each end."""
        return 6.0 * n_pairs
