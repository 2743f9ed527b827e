"""Edge attribution patching: one linear estimate at the clean input.

    S[u, v] = - mean_examples <a'_u - a_u, dm/dx_v at the clean run>

Syed et al. 2024; Mueller et al. 2025, eq. 3. Two forwards and one backward for all edges; see
`circuits.attribution` for how. In post-norm models (Gemma) a head's change is taken through the
post-norm's Jacobian, which MIB's code leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mechassay.circuits.attribution import clean_scores
from mechassay.circuits.methods.method import mean_over_examples
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.gradient_rules import backward_model, check_backward
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings


@dataclass(frozen=True)
class EAP:
    """Edge attribution patching.

    Attributes:
        backward: "plain", or "gim" (`mechassay.models.gradient_rules`).
    """

    backward: str = "plain"
    name: ClassVar[str] = "eap"
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
        """See `Method.score`.

        Raises:
            BadUsage: also for a divergence from the clean run (kl, js): it is smallest there and
                has no gradient.
        """
        model = backward_model(model, self.backward)
        if load_objective(objective).needs_clean:
            raise BadUsage(
                f"{self.name} takes gradients at the clean run, where"
                f" {load_objective(objective).name!r} has none; use eap-ig-inputs."
            )
        return mean_over_examples(
            self,
            model,
            pairs,
            objective,
            lambda chunk, m, into: clean_scores(model, chunk, m, into),
            copies=1,
            progress=progress,
            checkpoint=checkpoint,
        )

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: the clean and the counterfactual run, and one backward pass."""
        return 3.0 * n_pairs
