"""A value's length and direction as features.

    f = (|h|, h / |h|)          h = f[0] f[1:]

If the length alone is exchanged, the base keeps its direction and gets the source's length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechassay.features import ChosenFeatures, Featurizer


@dataclass(frozen=True)
class LengthAndDirection(Featurizer):
    """d + 1 features of d numbers; the first is the length."""

    def encode(self, h: Tensor) -> Tensor:
        length = h.norm(dim=1, keepdim=True)
        return torch.cat((length, h / length.clamp(min=torch.finfo(h.dtype).tiny)), dim=1)

    def decode(self, f: Tensor) -> Tensor:
        return f[:, :1] * f[:, 1:]


def length_alone(width: int) -> ChosenFeatures:
    """What `Interchange(features=...)` takes to exchange lengths."""
    return ChosenFeatures(LengthAndDirection(), torch.arange(width + 1) == 0)
