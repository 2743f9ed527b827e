"""Arbitrary labels: whether a featurizer can make a model say anything at all.

The labels of pairs are exchanged for each other by one fixed permutation of the different labels,
drawn without a fixed point, in train and in test pairs alike. A featurizer that is trained on them
and then has them written found a lever on the output, not a variable (control tasks of Hewitt and
Liang 2019, for interchanges).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from mechassay.errors import BadPairs
from mechassay.interchange import InterchangeBatch
from mechassay.pairs import NO_TOKEN

LEAST = 3
"""Different labels."""


def with_arbitrary_labels(
    batches: Sequence[InterchangeBatch], generator: torch.Generator
) -> list[InterchangeBatch]:
    """Batches whose labels went through one permutation.

    Raises:
        BadPairs: there are fewer than three: of two, the other one is often the base's own, which
            is written without any interchange.
    """
    width = max(batch.labels.shape[1] for batch in batches)
    labels = [
        F.pad(batch.labels, (0, width - batch.labels.shape[1]), value=NO_TOKEN).cpu()
        for batch in batches
    ]
    kinds, number = torch.unique(torch.cat(labels), dim=0, return_inverse=True)
    if len(kinds) < LEAST:
        raise BadPairs(
            f"Arbitrary labels need at least {LEAST} different ones; there are {len(kinds)}. Leave"
            " that control out."
        )
    # Each goes to the next one around a random circle, so that none stays.
    circle = torch.randperm(len(kinds), generator=generator)
    to = torch.empty_like(circle)
    to[circle] = circle.roll(-1)
    new = kinds[to[number]].split([len(batch) for batch in batches])
    return [
        replace(batch, labels=some.to(batch.labels.device))
        for batch, some in zip(batches, new, strict=True)
    ]
