"""Featurizers: a site's values as features, which can be exchanged between two runs.

    encode(h) -> f        decode(f) -> h         h [n, d], f [n, k]
    change(b, s) = b + decode(f') - decode(f_b),      f' = f_s where chosen, f_b elsewhere

What decode(encode(b)) loses of the base stays as it is: the error term of an SAE, and the part of b
outside a subspace (Mueller et al. 2025, section 4.1). For a decode that is linear up to a constant,
with the matrix M, the change is (f' - f_b) M, which is how it is computed. A featurizer whose
decode needs the value beside which features stand also has `decode_beside(f, h)`.

    Identity          f = h
    Directions        f = h V                    V orthonormal (one: Arora et al. 2024, eq. 11)
    PrincipalAxes     f = (h - mean) V / scale
    Affine            f = h W + bias             decoded by the pseudo-inverse of W
    SAE               see `features.sae`

If nothing is chosen the base itself is returned, bit for bit. All of an identity is the source
itself; all d directions give it to rounding, about d eps |s - b|, as b + (s - b) V V' is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.features.directions import is_orthonormal, orthonormalised
from mechassay.models.decoder import at_least_fp32

Values = Float[Tensor, "n d"]
Features = Float[Tensor, "n k"]
Mask = Bool[Tensor, "k"]


class Featurizer(Protocol):
    """Features of a site's values; your own has `encode` and `decode`.

    A class that inherits from this one gets `change`, so that `Interchange(features=...)` takes it;
    for any other there is `ChosenFeatures(featurizer)`.
    """

    def encode(self, h: Values) -> Features:
        """Features of values."""
        ...

    def decode(self, f: Features) -> Values:
        """Values of features."""
        ...

    def change(self, base: Values, source: Values, chosen: Mask | None = None) -> Values:
        """The base's values with the source's features: those chosen, or all."""
        return exchanged(self, base, source, chosen)


def decoder_of(featurizer: Featurizer) -> Float[Tensor, "k d"] | None:
    """The matrix M of a featurizer that decodes to f M + a constant; None of any other."""
    return getattr(featurizer, "decoder", None)


def n_features_of(featurizer: Featurizer) -> int | None:
    """How many features a featurizer has; None where it does not say."""
    if isinstance(featurizer, Identity):
        return featurizer.width
    matrix = decoder_of(featurizer)
    return getattr(featurizer, "n_features", None) if matrix is None else len(matrix)


def exchanged(
    featurizer: Featurizer,
    base: Values,
    source: Values,
    chosen: Mask | None = None,
    gate: Float[Tensor, "k"] | None = None,
) -> Values:
    """The base's values with features of the source; computed in fp32 at least.

    Args:
        chosen: which features; all if not given.
        gate: how much of each, from 0 to 1, instead.
    """
    if chosen is not None and not bool(chosen.any()):
        return base
    if isinstance(featurizer, Identity) and gate is None:
        # Not b + (s - b), which rounds.
        return featurizer.change(base, source, chosen)
    wide, other = at_least_fp32(base), at_least_fp32(source)
    ours, theirs = featurizer.encode(wide), featurizer.encode(other)
    moved = theirs - ours
    if gate is not None:
        moved = moved * gate
    elif chosen is not None:
        check_mask(chosen, moved.shape[1])
        moved = moved.where(chosen.to(moved.device), torch.zeros_like(moved))
    return moved_by(featurizer, wide, ours, moved).to(base.dtype)


def moved_by(featurizer: Featurizer, h: Values, f: Features, moved: Features) -> Values:
    """Values h, whose features are f, with features f + moved."""
    matrix = decoder_of(featurizer)
    if matrix is not None:
        return h + moved @ matrix.to(moved)
    beside = getattr(featurizer, "decode_beside", None)
    if beside is not None:
        return h + beside(f + moved, h) - beside(f, h)
    return h + featurizer.decode(f + moved) - featurizer.decode(f)


def check_mask(chosen: Mask, k: int) -> None:
    """Refuse a mask that is not one of k features."""
    if tuple(chosen.shape) != (k,):
        raise BadUsage(
            f"A choice among {k} features is a mask of {k}; got shape {tuple(chosen.shape)}."
        )


@dataclass(frozen=True, eq=False, repr=False)
class ChosenFeatures(OneLine):
    """Some features of a featurizer, as `Interchange(features=...)` takes them; None: all."""

    featurizer: Featurizer
    chosen: Mask | None = None

    def change(self, base: Values, source: Values) -> Values:
        """The base's values with the source's chosen features."""
        return exchanged(self.featurizer, base, source, self.chosen)


@dataclass(frozen=True, eq=False, repr=False)
class Identity(OneLine, Featurizer):
    """The value's own numbers; `width` is how many, where that is known."""

    width: int | None = None

    def encode(self, h: Values) -> Features:
        return h

    def decode(self, f: Features) -> Values:
        return f

    def change(self, base: Values, source: Values, chosen: Mask | None = None) -> Values:
        """The source's numbers where chosen, exactly."""
        if chosen is None:
            return source
        check_mask(chosen, base.shape[1])
        return source.where(chosen.to(base.device), base)


@dataclass(frozen=True, eq=False, repr=False)
class Directions(OneLine, Featurizer):
    """Coordinates along orthonormal directions [d, k].

    Raises:
        BadUsage: they are not orthonormal; `Directions.of` makes them so.
    """

    vectors: Float[Tensor, "d k"]

    def __post_init__(self) -> None:
        if not is_orthonormal(self.vectors):
            raise BadUsage(
                "Directions must be orthonormal; Directions.of(vectors) spans any vectors' space."
            )

    @staticmethod
    def of(vectors: Float[Tensor, "d *k"]) -> Directions:
        """The space that vectors [d, k], or one vector [d], span.

        Raises:
            BadUsage: vectors that are not independent, or not finite.
        """
        return Directions(orthonormalised(vectors if vectors.ndim == 2 else vectors[:, None]))

    @property
    def decoder(self) -> Float[Tensor, "k d"]:
        return self.vectors.mT

    def encode(self, h: Values) -> Features:
        return h @ self.vectors.to(h)

    def decode(self, f: Features) -> Values:
        return f @ self.vectors.mT.to(f)


@dataclass(frozen=True, eq=False, repr=False)
class PrincipalAxes(OneLine, Featurizer):
    """Coordinates along orthonormal axes [d, k] around a mean [d], in units of `scale` [k].

    Mean and scale change what features are, and of an exchange its rounding alone: values must not
    vanish beside the mean.
    """

    axes: Float[Tensor, "d k"]
    mean: Float[Tensor, "d"]
    scale: Float[Tensor, "k"]

    def __post_init__(self) -> None:
        if not is_orthonormal(self.axes):
            raise BadUsage("Principal axes must be orthonormal.")
        if not bool((self.scale > 0).all()):
            raise BadUsage("Scales of principal axes must be positive.")

    @property
    def decoder(self) -> Float[Tensor, "k d"]:
        return (self.axes * self.scale).mT

    def encode(self, h: Values) -> Features:
        return (h - self.mean.to(h)) @ self.axes.to(h) / self.scale.to(h)

    def decode(self, f: Features) -> Values:
        return f @ self.decoder.to(f) + self.mean.to(f)


@dataclass(frozen=True, eq=False, repr=False)
class Affine(OneLine, Featurizer):
    """f = h W + bias with any W [d, k], decoded by its pseudo-inverse.

    With linearly independent columns, exchanged features are exactly the source's; W need not be
    square or orthonormal.

    Raises:
        BadUsage: columns of W that are not independent, a bias of another length.
    """

    weight: Float[Tensor, "d k"]
    bias: Float[Tensor, "k"]

    def __post_init__(self) -> None:
        orthonormalised(self.weight)
        object.__setattr__(self, "_decoder", torch.linalg.pinv(self.weight.double()))

    @staticmethod
    def of(weight: Float[Tensor, "d k"]) -> Affine:
        """Without a bias."""
        return Affine(weight, weight.new_zeros(weight.shape[1]))

    @property
    def decoder(self) -> Float[Tensor, "k d"]:
        return getattr(self, "_decoder").to(self.weight)  # noqa: B009 - set once, above

    def encode(self, h: Values) -> Features:
        return h @ self.weight.to(h) + self.bias.to(h)

    def decode(self, f: Features) -> Values:
        return (f - self.bias.to(f)) @ self.decoder.to(f)
