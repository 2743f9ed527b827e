"""BatchTopK: of a batch of b values, the b k largest features (Bussmann, Leask and Nanda 2024,
2412.06410).

A value may have more features than another; k is their mean. A batch is no part of inference: there
a feature is active above one threshold, the smallest positive feature that a batch keeps, averaged
over `BATCHES` batches of the trained SAE. So the SAE is one of jumprelu.

The b k largest of b n numbers are found by way of a lower bound: every `STRIDE`-th number is looked
at, and only numbers above the bound are sorted. The result is that of sorting all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mechassay.saes.learners.learner import Learner
from mechassay.saes.learners.sparse import Places
from mechassay.saes.learners.topk import Chosen, TopKLearner

BATCHES = 32
"""That the threshold is averaged over."""
STRIDE = 61
"""Of the numbers that the bound is of; it divides no usual number of features."""
SPARE = 1.3
"""How many times as many numbers as needed are to be above the bound."""


class BatchTopKLearner(TopKLearner):
    """A BatchTopK SAE in training.

    Attributes:
        threshold: of inference, in scaled values; 0 until `finish`.
    """

    needs_batches = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.threshold = 0.0

    def choose(self, pre: Tensor) -> Chosen:
        """See `TopKLearner.choose`."""
        return largest_of_batch(pre, self.settings.k)

    def finish(self, batches: Iterable[Tensor]) -> None:
        """See `Learner.finish`: the mean smallest feature that is kept."""
        self.threshold = mean_smallest(self, batches, self.settings.k)

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        return jumping_at(self.threshold / scale, self.b_enc)


@torch.no_grad()
def mean_smallest(learner: Learner, batches: Iterable[Tensor], k: int) -> float:
    """The smallest positive feature of a batch's b k largest, averaged over batches; 0 if there is
    none.
    """
    smallest: list[float] = []
    for x in batches:
        found = largest_of_batch(learner.read(x), k)[1]
        positive = found[found > 0]
        if len(positive):
            smallest.append(float(positive.min()))
    return sum(smallest) / len(smallest) if smallest else 0.0


def jumping_at(threshold: float, like: Tensor) -> dict[str, Any]:
    """jumprelu with one threshold for all features."""
    return {"activation": "jumprelu", "threshold": torch.full_like(like.detach(), threshold)}


def largest_of_batch(pre: Tensor, k: int) -> Chosen:
    """The b k largest of all, ordered by row; ties are broken by place."""
    b, n = pre.shape
    flat, wanted = pre.flatten(), b * k
    some = flat[::STRIDE]
    at = round(SPARE * wanted * len(some) / len(flat)) + 8
    above = flat.new_zeros(0, dtype=torch.long)
    if at <= len(some):
        above = (flat > some.topk(at).values[-1]).nonzero()[:, 0]
    if len(above) >= wanted:
        kept = above[flat[above].topk(wanted, sorted=False).indices]
    else:
        kept = flat.topk(wanted, sorted=False).indices
    kept = kept.sort().values
    return Places(kept // n, kept % n, b, n), flat[kept]
