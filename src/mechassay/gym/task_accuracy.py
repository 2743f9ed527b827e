"""Whether a model does a gym task at all: which of a sentence's two labels is more probable.

    accuracy = share of sentences with p(own label) > p(label of the other type)

The sentences are the bases of a split, swaps included, so each pair gives two (Arora et al. 2024,
section 3.4 and figure 3). A model that prefers one label whatever stands before it is right in half
of them: the accuracy of each type says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mechassay.gym.causalgym import load_gym_task
from mechassay.gym.gym_task import GymTask
from mechassay.gym.interchanges import tokens_of_labels
from mechassay.gym.pairs import GymPairs
from mechassay.interventions.sweep import token_logits
from mechassay.models.model import Model
from mechassay.results.measures import measure_texts
from mechassay.results.records import Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import Estimate, proportion_interval
from mechassay.utils.arguments import checked
from mechassay.utils.display import SILENT, Progress

ALL_TYPES = "all"
LEAST_ACCURACY = 0.6
"""The paper greys tasks that a model does no better than this."""


@dataclass(frozen=True, eq=False, repr=False)
class GymAccuracy(Result, kind="gym-check"):
    """The labels of a task's sentences in a model.

    Attributes:
        ids, groups, types: of the sentences.
        margins: log p(own label) - log p(other label), in nats.
        dropped: sentences that were left out, by reason.
        split: whose sentences.
    """

    model: str
    task: str
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    types: tuple[str, ...]
    margins: Float[np.ndarray, "n"]
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    split: str = "test"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def right(self) -> Bool[np.ndarray, "n"]:
        """Whether a sentence's own label is the more probable one."""
        return self.margins > 0

    @property
    def estimate(self) -> Estimate:
        """The share of sentences that are right, with its 95 % interval over pairs."""
        return self._estimate(np.ones(len(self), dtype=bool))

    @property
    def does_it(self) -> bool:
        """Whether the accuracy is above 60 %: below, the paper greys the task."""
        return self.estimate.value > LEAST_ACCURACY

    def _estimate(self, rows: Bool[np.ndarray, "n"]) -> Estimate:
        right = self.right[rows].astype(float)
        groups = [group for group, kept in zip(self.groups, rows, strict=True) if kept]
        low, high, _ = proportion_interval(right, groups)
        return Estimate(float(right.mean()), low, high)

    def columns(self) -> dict[str, list[Any]]:
        """A row for all sentences, and one for those of each type."""
        rows: list[dict[str, Any]] = []
        types = np.array(self.types)
        for kind in (ALL_TYPES, *sorted(set(self.types))):
            some = np.ones(len(self), dtype=bool) if kind == ALL_TYPES else types == kind
            estimate = self._estimate(some)
            rows.append(
                {
                    "type": kind,
                    "accuracy": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "margin": float(self.margins[some].mean()),
                    "n": int(some.sum()),
                }
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    def repr_fields(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "task": self.task,
            "accuracy": self.estimate.value,
            "n": len(self),
            "dropped": sum(self.dropped.values()),
        }

    def warnings(self) -> list[str]:
        """What a reader has to know."""
        if self.does_it:
            return []
        return [no_behaviour(self.model, self.task, self.estimate.value)]

    def contents(self) -> RecordContents:
        values = {"right": self.right.astype(float).tolist(), "margin": self.margins.tolist()}
        accuracy = measure_texts("gym-check").measure("accuracy", self.estimate, n=len(self))
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.task),
                "method": Spec(name="behaviour"),
                "metric": Spec(name="accuracy"),
            },
            "measures": [accuracy],
            "tables": [Table(name="types", keys=("type",), columns=self.columns())],
            "values": Values(
                unit="sentence", ids=list(self.ids), groups=list(self.groups), columns=values
            ),
            "warnings": self.warnings(),
        }


def no_behaviour(model: str, task: str, accuracy: float) -> str:
    """The warning of a task that a model does not do."""
    return (
        f"{model} tells the labels of {task} apart in {accuracy:.0%} of the sentences: there is"
        " hardly a behaviour to explain."
    )


@checked
def accuracy(
    model: Model,
    task: GymTask | str | GymPairs,
    *,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> GymAccuracy:
    """How often a model prefers a sentence's own label; two logits of one run a sentence.

    Args:
        task: a gym task, its name, or its pairs.
        split, limit, seed: see `GymTask.interchanges`; not used with pairs.

    Raises:
        UnknownName: no such task or split.
        BadUsage: a limit that the split does not have.
        BadPairs: no pair whose labels are one token each.
    """
    if isinstance(task, GymPairs):
        pairs = task
    else:
        gym_task = load_gym_task(task) if isinstance(task, str) else task
        pairs = gym_task.interchanges(split, model, limit=limit, seed=seed)
    batch = model.interchanges(pairs.batch(model))
    logits = token_logits(model, batch, [], tokens_of_labels(batch), progress=progress).base
    return GymAccuracy(
        model.name,
        pairs.task,
        batch.ids,
        batch.groups,
        tuple(pair.tags.get("type", "") for pair in pairs),
        logits[:, 0] - logits[:, 1],
        pairs.dropped,
        pairs.split,
    )
