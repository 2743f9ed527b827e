"""The items of a gym task as token ids, by split, with original and with control labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mechassay.errors import BadUsage
from mechassay.gym.control_labels import control_labels, with_control_labels
from mechassay.gym.gym_task import GymTask
from mechassay.gym.index_mix_up import compat_batches
from mechassay.gym.pairs import GymPairs
from mechassay.gym.published import load_gym_task
from mechassay.interchange import InterchangeBatch
from mechassay.models.model import Model


@dataclass(frozen=True, eq=False)
class TaskItems:
    """The items of a task.

    Attributes:
        task: its name.
        regions: at which interventions are tried.
        items, control: of each split, with original and with control labels.
        fitted: of each split, with base columns where values are taken for fits.
        labels: the control label of each type; none without control labels.
    """

    task: str
    regions: tuple[str, ...]
    items: Mapping[str, InterchangeBatch]
    control: Mapping[str, InterchangeBatch]
    fitted: Mapping[str, InterchangeBatch]
    labels: Mapping[str, str]

    @staticmethod
    def of(
        who: str,
        model: Model,
        pairs: Mapping[str, GymPairs],
        splits: Sequence[str],
        types: tuple[str, ...],
        control: Mapping[str, str] | Sequence[str] | bool,
        compat: str | None = None,
    ) -> TaskItems:
        """The items of some splits.

        Args:
            who: needs them; said where a split is missing.
            types: of the task's sentences, in its order.
            control, compat: see `evaluate`.

        Raises:
            BadUsage: a split is missing; no control label for each type.
            BadPairs: pairs that cannot be aligned, labels that are not one token each.
        """
        missing = [split for split in splits if split not in pairs]
        if missing:
            raise BadUsage(f"{who} needs pairs of {', '.join(splits)}; no {missing[0]}.")
        labels = (
            {} if control is False else control_labels(types, None if control is True else control)
        )
        plain = {split: pairs[split].batch(model) for split in splits}
        made = {split: compat_batches(batch, compat) for split, batch in plain.items()}
        of_control = {
            split: with_control_labels(pairs[split], labels, made[split].intervened, model)
            if compat is None
            else replace(
                made[split].intervened,
                **_labels(with_control_labels(pairs[split], labels, plain[split], model)),
            )
            for split in (splits if labels else ())
        }
        first = pairs[splits[0]]
        return TaskItems(
            first.task,
            first.tested,
            {split: model.interchanges(each.intervened) for split, each in made.items()},
            {split: model.interchanges(each) for split, each in of_control.items()},
            {split: model.interchanges(each.fitted) for split, each in made.items()},
            MappingProxyType(labels),
        )

    def on(self, model: Model) -> TaskItems:
        """The same items for another model with the same tokens."""
        items, control, fitted = (
            {split: model.interchanges(batch) for split, batch in batches.items()}
            for batches in (self.items, self.control, self.fitted)
        )
        return replace(self, items=items, control=control, fitted=fitted)


def types_of(task: Any, pairs: Mapping[str, GymPairs]) -> tuple[str, ...]:
    """The types of sentences in the order of the task; of pairs alone, as they come."""
    if isinstance(task, GymTask):
        return task.types
    if isinstance(task, str):
        return load_gym_task(task).types
    every = (pair.tags.get("type", "") for split in pairs.values() for pair in split)
    return tuple(dict.fromkeys(every))


def _labels(batch: InterchangeBatch) -> dict[str, Any]:
    return {"labels": batch.labels, "base_labels": batch.base_labels}
