"""TopK: of each value, the k largest features (Gao et al. 2024, 2406.04093).

f = the largest k of relu(pre), loss = |x - x~|^2 / d. There is no penalty. Decoding and gradients
are sparse (`learners.sparse`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mechassay.saes.learners.learner import Coded, Learner
from mechassay.saes.learners.sparse import Places, read_at, write

Chosen = tuple[Places, Tensor]
"""Places, and pre at them."""


class TopKLearner(Learner):
    """A TopK SAE in training."""

    def choose(self, pre: Tensor) -> Chosen:
        """The places that are kept of a batch's features."""
        return largest_of_rows(pre, self.settings.k)

    def code(self, x: Tensor, step: int) -> Coded:
        """See `Learner.code`."""
        values, places, fired = self.sparse_code(x)
        return Coded(write(values, self.decoder, places) + self.b_dec, fired)

    def sparse_code(self, x: Tensor) -> tuple[Tensor, Places, Tensor]:
        """Features at the places that are kept, these places, and which features fired."""
        with torch.no_grad():
            places, found = self.choose(self.read(x))
        pre = read_at(x, self.encoder, self.b_enc, self.b_dec, found, places)
        fired = torch.zeros_like(self.b_enc, dtype=torch.bool)
        fired[places.features[found > 0]] = True
        return pre.relu(), places, fired

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        return {"activation": "topk", "k": self.settings.k}


def largest_of_rows(pre: Tensor, k: int) -> Chosen:
    """The k largest of each row."""
    b, n = pre.shape
    top = pre.topk(k, dim=1, sorted=False)
    rows = torch.arange(b, device=pre.device).repeat_interleave(k)
    return Places(rows, top.indices.flatten(), b, n), top.values.flatten()
