"""Whether a model does the task of pairs: does it prefer answers to foils, and by the prompt?

The model reads the clean and the counterfactual prompt of each pair once. A pair is right if the
best answer has a larger logit than the best foil. If tokens tie for the largest logit, the pair is
right by the fraction of these tokens that are answers: one half of an answer and a foil. Then the
answers and foils of a pair are compared after the prompts of all pairs of other groups, but for
clean prompts with the same answers, after which a model that reads the prompt is right. The mean of
these exchanges is the accuracy of a model that ignores the prompt, whatever tokens the model
prefers. A model does the task if the lower end of its accuracy exceeds both the exchanges and
guessing.

If one of few words decides each answer (`Batch.contrasts`), some models with random weights react
to this word in the right direction and are right on many pairs. `results.preconditions.task` then
asks for half of the way from the exchanges to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from mechassay.models.forward import forward
from mechassay.models.memory import stream_bytes, token_budget
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.results.measures import measure_texts
from mechassay.results.preconditions import ABILITY
from mechassay.results.records import Measure, Table
from mechassay.stats.intervals import proportion_interval
from mechassay.utils.display import OneLine

TEXTS = measure_texts("circuits")


@dataclass(frozen=True, eq=False, repr=False)
class Ability(OneLine):
    """Preference of a model for the answers of pairs over the foils.

    Attributes:
        right: after the clean prompt: 1 or 0, or between them if an answer ties with a foil.
        counterfactual: the same, of the same tokens, after the counterfactual prompt; None if it
            was not measured.
        exchanged: the mean of the same after the prompts of pairs of other groups, but for clean
            prompts with the same answers; NaN if all pairs are one group.
        tied: 1 where the best answer and the best foil have the same logit.
        chance: share of the compared tokens that are answers.
        contrasts: what decides each answer (`Batch.contrasts`).
    """

    right: Float[np.ndarray, "n"]
    exchanged: Float[np.ndarray, "n"]
    tied: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    contrasts: tuple[str, ...]
    groups: tuple[str, ...]
    ids: tuple[str, ...]
    counterfactual: Float[np.ndarray, "n"] | None = None

    def measures(self) -> list[Measure]:
        """Return the accuracy with its interval, guessing, and accuracy with exchanged prompts."""
        n = len(self.right)
        interval = proportion_interval(self.right, self.groups)
        means = {"chance": self.chance, "exchanged": self.exchanged}
        return [
            TEXTS.measure("accuracy", float(self.right.mean()), interval, of="model", n=n),
            *(TEXTS.measure(x, float(own.mean()), of="model", n=n) for x, own in means.items()),
        ]

    def table(self) -> Table:
        """Return the numbers of each pair. If `keep` chose pairs by the model's answers, these are
        the pairs before the choice.
        """
        names = ("right", "counterfactual", "exchanged", "tied", "chance")
        columns: dict[str, Any] = {"pair": list(self.ids), "group": list(self.groups)}
        values = {name: getattr(self, name) for name in names}
        columns |= {name: own.tolist() for name, own in values.items() if own is not None}
        # Numbers in the order of appearance: tokens of private prompts are not stored.
        number = {name: place for place, name in enumerate(dict.fromkeys(self.contrasts))}
        columns |= {"contrast": [number[name] for name in self.contrasts]}
        return Table(name=ABILITY, keys=("pair",), columns=columns)


@torch.no_grad()
def ability_of(model: Model, batch: Batch) -> Ability:
    """Run both prompts of each pair and compare the answers with the foils. No layer is kept."""
    tokens = torch.cat([batch.answers, batch.foils], dim=1)
    real = (tokens != NO_TOKEN).cpu().numpy()
    choices, place = tokens.clamp(min=0).unique(return_inverse=True)
    places = place.view(tokens.shape).cpu().numpy()
    n_answers = batch.answers.shape[1]
    clean, other = (_logits(model, batch, x, choices) for x in (batch.clean, batch.counterfactual))
    is_answer = real & (np.arange(real.shape[1]) < n_answers)
    own, counterfactual = (
        fraction_right(np.where(real, np.take_along_axis(x, places, 1), -np.inf), is_answer)
        for x in (clean, other)
    )
    every, groups = np.concatenate([clean, other]), np.array(batch.groups)
    of, n = np.tile(groups, 2), len(batch)
    # After a clean prompt with the same answers a model that reads is right, too.
    keys = np.array([str(sorted(own)) for own in batch.answers.tolist()])
    exchanged = np.full(n, np.nan)
    for row in range(n):
        asked = of != groups[row]
        asked[:n] &= keys != keys[row]
        others = every[asked]
        if len(others):
            values = np.where(real[row], others[:, places[row]], -np.inf)
            exchanged[row] = fraction_right(values, is_answer[row]).mean()
    tied = ((own > 0) & (own < 1)).astype(float)
    chance = is_answer.sum(axis=1) / real.sum(axis=1)
    of_batch = batch.contrasts(), batch.groups, batch.ids
    return Ability(own, exchanged, tied, chance, *of_batch, counterfactual=counterfactual)


def fraction_right(
    values: Float[np.ndarray, "rows choices"], is_answer: Bool[np.ndarray, "..."]
) -> Float[np.ndarray, "rows"]:
    """Return 1 if the choice of the largest value is an answer, 0 if it is none; of choices that
    tie, the fraction that are answers.
    """
    best = values == values.max(axis=1, keepdims=True)
    return (best & is_answer).sum(axis=1) / best.sum(axis=1)


def _logits(
    model: Model, batch: Batch, prompts: Int[torch.Tensor, "n pos"], choices: torch.Tensor
) -> Float[np.ndarray, "n choices"]:
    """Return the logits of some tokens after one prompt of each pair."""
    decoder, logits = model.decoder, np.full((len(batch), len(choices)), np.nan)
    budget = token_budget(stream_bytes(decoder, batch.n_tokens), batch.n_tokens, model.device)
    for rows, chunk in batch.with_clean(prompts).chunks(budget):
        ctx = decoder.context(chunk.mask)
        stream = decoder.add_positions(decoder.embed(chunk.clean), ctx, 0)
        final = forward(decoder, stream, ctx, last_only=True)
        every = decoder.readout(final[:, -1]).all()
        logits[rows] = every[:, choices.to(every.device)].double().cpu().numpy()
    return logits
