"""Control labels: the same classes, continued by words that have nothing to do with them.

Each type of sentence gets one word, " dog" for the first type and " give" for the second (Arora et
al. 2024, section 5.2, after Hewitt and Liang 2019). A direction that makes the model say these too
moves the output, whatever it stands for. The order of types is that of the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage
from mechassay.gym.pairs import GymPairs
from mechassay.interchange import InterchangeBatch

DOG_GIVE = (" dog", " give")


def control_labels(
    types: Sequence[str], given: Mapping[str, str] | Sequence[str] | None = None
) -> dict[str, str]:
    """The control label of each type.

    Args:
        given: by type, or in the order of the types; dog and give by default.

    Raises:
        BadUsage: not one different label for each type; more than two types and none given.
    """
    said = DOG_GIVE if given is None else given
    found = dict(said) if isinstance(said, Mapping) else dict(zip(types, said, strict=False))
    right = len(said) == len(types) and set(found) == set(types)
    if not right or len(set(found.values())) < len(types):
        raise BadUsage(
            f"Control labels are a word of its own for each of {', '.join(types)}; got {said!r}."
        )
    return found


def with_control_labels(
    pairs: GymPairs, labels: Mapping[str, str], batch: InterchangeBatch, model: Any
) -> InterchangeBatch:
    """The batch of some pairs with control labels in place of their own.

    Args:
        labels: by type.
        batch: of the pairs.
        model: a model, or a tokenizer.

    Raises:
        BadPairs: a pair without types; a label that is not one token after every sentence.
    """
    changed: list[Any] = []
    for pair in pairs:
        kinds = [pair.tags.get(name, "") for name in ("type", "source_type")]
        if any(kind not in labels for kind in kinds):
            raise BadPairs(
                f"Pair {pair.id}: control labels need the types of base and source; got"
                f" {kinds[0]!r} and {kinds[1]!r}."
            )
        changed.append(replace(pair, base_label=labels[kinds[0]], label=labels[kinds[1]]))
    made = GymPairs(
        changed, task=pairs.task, split=pairs.split, seed=pairs.seed, tested=pairs.tested
    ).batch(model)
    own = made.base_labels
    assert own is not None
    same = made.base.shape == batch.base.shape and torch.equal(made.base.cpu(), batch.base.cpu())
    if not same or made.labels.shape[1] > 1 or own.shape[1] > 1:
        words = " and ".join(map(repr, labels.values()))
        raise BadPairs(
            f"Control labels {words} are not one token each after the sentences of {pairs.task}."
        )
    device = batch.base.device
    return replace(batch, labels=made.labels.to(device), base_labels=own.to(device))


def tokens_of_labels(*batches: InterchangeBatch) -> Int[Tensor, "n t"]:
    """The base label and the label of every row, of one batch after the other."""
    columns: list[Tensor] = []
    for batch in batches:
        assert batch.base_labels is not None
        columns += [batch.base_labels[:, :1], batch.labels[:, :1]]
    return torch.cat(columns, dim=1)
