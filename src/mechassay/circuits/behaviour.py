"""Whether the model itself does what its circuits are to explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from mechassay.display import OneLine
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.objectives import Accuracy
from mechassay.pairs import NO_TOKEN, Batch
from mechassay.records import Measure
from mechassay.stats.intervals import proportion_interval

ACCURACY = Accuracy()


@dataclass(frozen=True, eq=False, repr=False)
class Preference(OneLine):
    """Whether the model prefers the answers of pairs to their foils (`right`, 1 or 0).

    `chance` is the share of the compared tokens that are answers.
    """

    right: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    groups: tuple[str, ...]

    def measures(self) -> list[Measure]:
        """Accuracy with its interval, and chance."""
        n = len(self.right)
        accuracy = Measure(
            name="accuracy",
            of="model",
            title="accuracy of the model",
            better="up",
            value=float(self.right.mean()),
            n=n,
            **proportion_interval(self.right, self.groups)._asdict(),
        )
        return [accuracy, Measure(name="chance", of="model", value=float(self.chance.mean()), n=n)]

    def warnings(self) -> list[str]:
        """A line if the accuracy may be chance or less: there is no behaviour to explain."""
        accuracy, chance = self.measures()
        if accuracy.low > chance.value:
            return []
        return [
            "The model itself is not above chance: its answer beats the foils in"
            f" {accuracy.value:.0%} of {accuracy.n} pairs ({accuracy.low:.0%} to"
            f" {accuracy.high:.0%}), guessing does in {chance.value:.0%}. Its circuits explain how"
            " it prefers tokens, not how it does the task."
        ]


@torch.no_grad()
def preference_of(model: Model, batch: Batch) -> Preference:
    """Run the clean prompts of a batch and compare answers with foils."""
    right = np.full(len(batch), np.nan)
    budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    for rows, chunk in batch.chunks(budget):
        taken, _ = model.run(chunk)
        right[rows] = ACCURACY(taken.readout(model.decoder), chunk).double().cpu().numpy()
    n_answers, n_foils = (
        (tokens != NO_TOKEN).sum(dim=1).double().cpu().numpy()
        for tokens in (batch.answers, batch.foils)
    )
    return Preference(right, n_answers / (n_answers + n_foils), batch.groups)
