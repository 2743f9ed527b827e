"""Interventions: what a site's value becomes, given its own and, for some, another prompt's.

    Interchange   b -> s                     activation patching; alpha: b + alpha (s - b)
                  b -> b + decode(f_s) - decode(f_b) in the chosen features of a featurizer
    Add           b -> b + scale v           steering
    Ablate        b -> b - V V'(b - m)       the directions V zeroed (m = 0) or set to a mean m
    Replace       b -> v                     with a vector of one's own; alpha as above
    Scale         b -> scale b               a writer's output, more or less of it

b and s are [n, d]: the values of n tokens at the site in the base and in the source run. An
interpolation by alpha is exact at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of

Values = Float[Tensor, "n d"]
Target = Literal["zero", "mean"]


class Intervention(Protocol):
    """A function of a site's values; your own has these attributes and this call. It is called for
    some rows of a batch at a time, in an order of their lengths.

    Attributes:
        needs_source: whether it reads the source run's values.
        keeps_equal: whether equal values of base and source are left as they are.
    """

    @property
    def needs_source(self) -> bool: ...

    @property
    def keeps_equal(self) -> bool: ...

    def __call__(self, base: Values, source: Values | None) -> Values:
        """New values [n, d] for n tokens."""
        ...


class Features(Protocol):
    """Features of a site's values that can be exchanged, see `mechassay.features`."""

    def change(self, base: Values, source: Values) -> Values:
        """The base's values with the source's features."""
        ...


@dataclass(frozen=True, repr=False)
class Interchange(OneLine):
    """The source's value in place of the base's: wholly, in some features, or part of the way.

    Attributes:
        features: what is exchanged; None: the whole vector.
        alpha: 0 the base's value, 1 the exchanged one.
    """

    features: Features | None = None
    alpha: float = 1.0

    needs_source: bool = field(default=True, init=False, repr=False)
    keeps_equal: bool = field(default=True, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        assert source is not None
        new = source if self.features is None else self.features.change(base, source)
        return interpolated(base, new, self.alpha)


@dataclass(frozen=True, repr=False, eq=False)
class Add(OneLine):
    """A vector [d], or one a token [n, d] in the order of a batch's rows, added `scale` times."""

    vector: Float[Tensor, "*n d"]
    scale: float = 1.0

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return base + self.scale * _as(self.vector, base, "Add")


@dataclass(frozen=True, repr=False, eq=False)
class Ablate(OneLine):
    """What the value has along some directions is set to zero, or to what a mean has.

    Attributes:
        directions: [d, k], or one direction [d]; independent, and need not be orthonormal.
        to: "zero", or "mean", which needs `mean` [d].
    """

    directions: Float[Tensor, "d *k"]
    to: Target = "zero"
    mean: Float[Tensor, "d"] | None = None

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        one_of("target of an ablation", self.to, get_args(Target))
        if (self.mean is None) != (self.to == "zero"):
            raise BadUsage("Ablate(to='mean') needs mean=[d], and to='zero' needs none.")
        # The directions of a space of fewer dimensions would be filled up with arbitrary ones.
        wide = self._columns.detach().double().cpu()
        if not bool(torch.isfinite(wide).all()):
            raise BadUsage("Ablate needs finite directions; got NaN or infinity.")
        lengths = wide.norm(dim=0).clamp(min=torch.finfo(wide.dtype).tiny)
        if int(torch.linalg.matrix_rank(wide / lengths, rtol=1e-7)) < wide.shape[1]:
            raise BadUsage(
                f"Ablate needs independent directions, none of them 0; {wide.shape[1]} of"
                f" {wide.shape[0]} numbers are not."
            )

    @property
    def _columns(self) -> Float[Tensor, "d k"]:
        return self.directions if self.directions.ndim == 2 else self.directions[:, None]

    def __call__(self, base: Values, source: Values | None) -> Values:
        directions = self._columns
        if directions.shape[0] != base.shape[1]:
            raise BadUsage(
                f"Ablate needs directions of {base.shape[1]} numbers at this site; got"
                f" {directions.shape[0]}."
            )
        wide = torch.linalg.qr(directions.to(base.device, _at_least_fp32(base)))[0].to(base.dtype)
        mean = 0.0 if self.mean is None else _as(self.mean, base, "Ablate")
        return base - ((base - mean) @ wide) @ wide.mT


@dataclass(frozen=True, repr=False, eq=False)
class Replace(OneLine):
    """A vector [d], or one a token [n, d] in the order of a batch's rows, in place of the value;
    `alpha` of the way to it.
    """

    vector: Float[Tensor, "*n d"]
    alpha: float = 1.0

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return interpolated(base, _as(self.vector, base, "Replace").expand_as(base), self.alpha)


@dataclass(frozen=True, repr=False)
class Scale(OneLine):
    """The value times a factor: 0 takes a writer out, 1 changes nothing."""

    factor: float

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return base * self.factor


def interpolated(base: Tensor, new: Tensor, alpha: float) -> Tensor:
    """`alpha` of the way from `base` to `new`, exact at both ends."""
    if alpha == 0.0:
        return base
    return new if alpha == 1.0 else torch.lerp(base, new, alpha)


def _as(vector: Tensor, base: Tensor, who: str) -> Tensor:
    if vector.shape[-1] != base.shape[1] or (vector.ndim == 2 and len(vector) != len(base)):
        raise BadUsage(
            f"{who} needs a vector of {base.shape[1]} numbers at this site, or {len(base)} of"
            f" them; got shape {tuple(vector.shape)}."
        )
    return vector.to(base.device, base.dtype)


def _at_least_fp32(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
