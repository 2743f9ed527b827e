"""Sparse codes of a batch: reading and writing cost what their active features cost.

A code is a list of places (row of the batch, feature) with a value each, ordered by row. With m
places, d numbers a value and n features, decoding and all gradients take O(m d) where dense ones
take O(b n d): values are sums of few decoder rows, and the gradient of a feature's encoder row is a
sum of the few x that activate it. Both sums are `embedding_bag`s, the second over places ordered
by feature. Only pre itself is dense: which of its numbers are largest is not known before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Active features of a batch.

    Attributes:
        rows, features: of each place, ordered by row.
        n_rows, n_features: of the batch and the dictionary.
    """

    rows: Int[Tensor, "m"]
    features: Int[Tensor, "m"]
    n_rows: int
    n_features: int

    @cached_property
    def row_offsets(self) -> Int[Tensor, "b"]:
        """Where each row's places begin."""
        return _offsets(self.rows, self.n_rows)

    @cached_property
    def by_feature(self) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
        """The order of places by feature, and where each feature's begin."""
        order = self.features.argsort(stable=True)
        return order, _offsets(self.features, self.n_features)

    def of_first(self, n: int, begin: int = 0) -> tuple[Places, Tensor]:
        """Places of features from `begin` to n, and which these are."""
        kept = ((self.features >= begin) & (self.features < n)).nonzero()[:, 0]
        some = Places(self.rows[kept], self.features[kept], self.n_rows, self.n_features)
        return some, kept


def _offsets(numbers: Tensor, n: int) -> Tensor:
    counts = torch.bincount(numbers, minlength=n)
    return counts.cumsum(0) - counts


def read_at(
    x: Float[Tensor, "b d"],
    encoder: Float[Tensor, "n d"],
    b_enc: Float[Tensor, "n"],
    b_dec: Float[Tensor, "d"],
    found: Float[Tensor, "m"],
    places: Places,
) -> Float[Tensor, "m"]:
    """pre at some places, where it is known already, with its gradients."""
    apply: Any = _ReadAt.apply
    return apply(x, encoder, b_enc, b_dec, found, places)


def write(
    values: Float[Tensor, "m"], decoder: Float[Tensor, "n d"], places: Places
) -> Float[Tensor, "b d"]:
    """Sums of decoder rows, weighted by the values at their places."""
    return F.embedding_bag(
        places.features,
        decoder,
        places.row_offsets,
        mode="sum",
        per_sample_weights=values,
    )


class _ReadAt(torch.autograd.Function):
    """pre at places: forward is known, backward is sparse."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        encoder: Tensor,
        b_enc: Tensor,
        b_dec: Tensor,
        found: Tensor,
        places: Places,
    ) -> Tensor:
        ctx.save_for_backward(x, encoder, b_dec)
        ctx.places = places
        return found.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, encoder, b_dec = ctx.saved_tensors
        places, grad = ctx.places, grads[0]
        order, offsets = places.by_feature
        d_bias = torch.zeros_like(encoder[:, 0]).index_add(0, places.features, grad)
        d_encoder = F.embedding_bag(
            places.rows[order], x, offsets, mode="sum", per_sample_weights=grad[order]
        )
        d_encoder -= d_bias[:, None] * b_dec
        return None, d_encoder, d_bias, -(d_bias @ encoder), None, None
