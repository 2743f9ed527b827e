"""Interventions on the features of one run, where an interchange needs the features of two.

    ScaleFeatures   b -> b + decode(f') - decode(f),   f' = factor f where chosen, f elsewhere
    Splice          b -> decode(encode(b)): the error of an SAE is left out

A factor of 0 ablates features, 1 changes nothing, to the last bit, and 2 doubles what they write.
The error term stays, as with an interchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from mechassay.display import OneLine
from mechassay.features.featurizer import Featurizer, Mask, Values, check_mask, moved_by
from mechassay.models.decoder import at_least_fp32


@dataclass(frozen=True, eq=False, repr=False)
class ScaleFeatures(OneLine):
    """Some features of a value, or all, times a factor; computed in fp32 at least.

    Attributes:
        chosen: a mask of the features; None: all.

    Raises:
        BadUsage: when called, a mask of another number of features.
    """

    featurizer: Featurizer
    factor: float
    chosen: Mask | None = None

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        if self.factor == 1.0 or (self.chosen is not None and not bool(self.chosen.any())):
            return base
        wide = at_least_fp32(base)
        f = self.featurizer.encode(wide)
        moved = (self.factor - 1.0) * f
        if self.chosen is not None:
            check_mask(self.chosen, f.shape[1])
            moved = moved.where(self.chosen.to(moved.device), torch.zeros_like(moved))
        return moved_by(self.featurizer, wide, f, moved).to(base.dtype)


@dataclass(frozen=True, eq=False, repr=False)
class Splice(OneLine):
    """What a featurizer makes of a value, in its place: an SAE is put into the model."""

    featurizer: Featurizer

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        wide = at_least_fp32(base)
        f = self.featurizer.encode(wide)
        beside = getattr(self.featurizer, "decode_beside", None)
        made = self.featurizer.decode(f) if beside is None else beside(f, wide)
        return made.to(base.dtype)
