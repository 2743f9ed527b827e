"""Matryoshka: every prefix of the dictionary is a dictionary (Bussmann et al. 2025, 2503.17547).

    x~_m = f_1..m W_dec,1..m + b_dec          loss = sum over sizes m of |x - x~_m|^2 / d

The first features have to do without those behind them, so that they stay general where a larger
dictionary would split them. Features are kept by BatchTopK over the whole dictionary, as in the
paper, or by TopK (`inner`); inference is that of these.

Features between two sizes are decoded once, and x~_m is a cumulative sum of their parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes.learners.batch_topk import jumping_at, largest_of_batch, mean_smallest
from mechassay.saes.learners.learner import Coded
from mechassay.saes.learners.sparse import write
from mechassay.saes.learners.topk import Chosen, TopKLearner


class MatryoshkaLearner(TopKLearner):
    """A Matryoshka SAE in training.

    Attributes:
        threshold: of inference with BatchTopK, in scaled values; 0 until `finish`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.needs_batches = self.settings.inner == "batchtopk"
        self.threshold = 0.0

    def choose(self, pre: Tensor) -> Chosen:
        """See `TopKLearner.choose`."""
        if self.settings.inner == "topk":
            return super().choose(pre)
        return largest_of_batch(pre, self.settings.k)

    def code(self, x: Tensor, step: int) -> Coded:
        """See `Learner.code`."""
        values, places, fired = self.sparse_code(x)
        decoded: list[Tensor] = []
        begin, sofar = 0, self.b_dec
        for size in self.settings.nested:
            some, kept = places.of_first(size, begin)
            sofar = sofar + write(values[kept], self.decoder, some)
            decoded.append(sofar)
            begin = size
        return Coded(decoded[-1], fired, prefixes=decoded[:-1])

    def finish(self, batches: Iterable[Tensor]) -> None:
        """See `Learner.finish`."""
        if self.needs_batches:
            self.threshold = mean_smallest(self, batches, self.settings.k)

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        if self.settings.inner == "topk":
            return super().inference(scale)
        return jumping_at(self.threshold / scale, self.b_enc)


def prefix_of(sae: SAE, n: int) -> SAE:
    """The dictionary of an SAE's first n features. One of "topk" keeps the k largest of these.

    Raises:
        BadUsage: the SAE has fewer features, or none is asked for.
    """
    if not 1 <= n <= sae.n_features:
        raise BadUsage(f"A prefix of an SAE has 1 to {sae.n_features} features; got {n}.")
    names = ("b_enc", "w_dec", "threshold", "b_gate", "r_mag")
    arrays = {name: getattr(sae, name) for name in names}
    first = {name: x[:n] for name, x in arrays.items() if x is not None}
    k = None if sae.k is None else min(sae.k, n)
    return replace(sae, w_enc=sae.w_enc[:, :n], k=k, **first)
