"""Featurizers: a site's values as features, which can be exchanged between two runs.

    encode(h) -> f        decode(f) -> h         h [n, d], f [n, k]
    change(b, s) = b + decode(f') - decode(f_b),      f' = f_s where chosen, f_b elsewhere

What decode(encode(b)) loses of the base stays as it is: the error term of an SAE, and the part
of b outside a subspace (Mueller et al. 2025, section 4.1). For a decode that is linear up to a
constant, with the matrix M, the change is (f' - f_b) M, which is how it is computed. A
featurizer whose decode needs the value beside which features stand also has `decode_beside(f,
h)`.

    Identity          f = h
    Directions        f = h V                    V orthonormal (one: Arora et al. 2024, eq. 11)
    PrincipalAxes     f = (h - mean) V / scale
    Affine            f = h W + bias             decoded by the pseudo-inverse of W
    SAE               a sparse autoencoder

If nothing is chosen the base itself is returned, bit for bit. All of an identity is the source
itself; all d directions give it to rounding, about d eps |s - b|, as b + (s - b) V V' is
computed.

Two interventions work on one run alone:

    ScaleFeatures     b -> b + decode(f') - decode(f),   f' = factor f where chosen, f elsewhere
    Splice            b -> decode(encode(b)): the error of an SAE is left out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import at_least_fp32
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

TOLERANCE = 1e-4
"""How far V'V may be from the identity for directions to count as orthonormal."""


def orthonormal(
    raw: Float[Tensor, "sites d k"], basis: Float[Tensor, "some d d"]
) -> Float[Tensor, "sites d k"]:
    """The orthonormal directions of raw parameters.

    With a raw parameter [d, k], whose strict lower triangle A is what counts, and a fixed
    orthonormal basis B [d, d],

        V = A + the first k columns of the identity        V1 = its first k rows
        S = striu(V'V) + diag(V'V) / 2
        Q = B V S^-1 V1' - B[:, :k]

    are k orthonormal directions, B[:, :k] where A is 0. This is the product of the k
    Householder reflections along the columns of V in compact WY form (Schreiber and Van Loan
    1989). All of it is matrix products and one triangular system, so many sites cost one batched
    call. A whole rotation, k = d, is

        Q = B exp(A - A')

    Both are the functions of A that `torch.nn.utils.parametrizations.orthogonal` (trivialised)
    has with the base B, and that pyvene's rotations are: the same steps lead to the same
    directions.

    Torch also keeps a diagonal of -1 in its parameter, which weight decay would shrink and
    which it rounds to 0. So the trajectory is torch's only without weight decay. Here weight
    decay draws towards B.

    Args:
        raw: entries on and above the diagonal have no effect and no gradient.
        basis: of each site, or one that all share.
    """
    d, k = raw.shape[1:]
    if k == d:
        below = raw.tril(-1)
        return basis @ torch.matrix_exp(below - below.mT)
    v = raw.tril(-1) + torch.eye(d, k, dtype=raw.dtype, device=raw.device)
    gram = v.mT @ v
    s = gram.triu(1) + torch.diag_embed(gram.diagonal(dim1=1, dim2=2) / 2)
    turned = v @ torch.linalg.solve_triangular(s, v[:, :k].mT, upper=True)
    if len(basis) == 1:
        # One product with all sites' columns, whatever a batched one would do with a shared factor.
        flat = basis[0] @ turned.permute(1, 0, 2).flatten(1)
        return flat.unflatten(1, (len(raw), k)).permute(1, 0, 2) - basis[:, :, :k]
    return basis @ turned - basis[:, :, :k]


def random_basis(
    d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "d d"]:
    """An orthonormal basis, uniform over all (the Haar measure); the same on every device."""
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return (q * r.diagonal().sign()).to(dtype)


def orthonormalised(vectors: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """Orthonormal directions of the space that vectors span; the first one keeps its sense.

    Raises:
        BadUsage: vectors that are not independent, or not finite.
    """
    wide = vectors.double()
    if not bool(torch.isfinite(wide).all()):
        raise BadUsage("Directions must be finite; got NaN or infinity.")
    lengths = wide.norm(dim=0)
    q, r = torch.linalg.qr(wide / lengths.clamp(min=torch.finfo(torch.float64).tiny))
    if wide.shape[1] > wide.shape[0] or bool((r.diagonal().abs() < 1e-10).any()):
        raise BadUsage(
            f"{wide.shape[1]} vectors of {wide.shape[0]} numbers span fewer than"
            f" {wide.shape[1]} dimensions."
        )
    return (q * r.diagonal().sign()).to(vectors.dtype).contiguous()


def is_orthonormal(vectors: Float[Tensor, "d k"]) -> bool:
    """Whether the columns are orthonormal, to 1e-4."""
    wide = vectors.double()
    eye = torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
    close = (wide.mT @ wide - eye).abs() < TOLERANCE  # Of no column at all nothing is far.
    return bool(torch.isfinite(wide).all()) and bool(close.all())


@checked
def principal_angles(a: Float[Tensor, "d k"], b: Float[Tensor, "_ m"]) -> Float[Tensor, "least"]:
    """The principal angles between two column spaces, in radians, ascending; fp64.

    There are min(k, m). Small angles are taken from sines and large ones from cosines, so that all
    are accurate (Björck and Golub 1973; Knyazev and Argentati 2002).

    Raises:
        BadUsage: columns of different lengths, or that are not independent.
    """
    if a.shape[0] != b.shape[0]:
        raise BadUsage(
            f"Principal angles are between columns of one length; got {a.shape[0]} and"
            f" {b.shape[0]}."
        )
    p, q = (orthonormalised(x.detach().double().cpu()) for x in (a, b))
    if p.shape[1] < q.shape[1]:
        p, q = q, p
    product = p.mT @ q
    cosines = torch.linalg.svdvals(product).clamp(max=1.0)
    sines = torch.linalg.svdvals(q - p @ product).flip(0).clamp(max=1.0)
    return torch.where(cosines**2 < 0.5, cosines.arccos(), sines.arcsin())


def check_basis(who: str, basis: Float[Tensor, "..."], d: int) -> Float[Tensor, "d d"]:
    """A basis of d numbers, if it is one.

    Raises:
        BadUsage: another shape, or not orthonormal.
    """
    if tuple(basis.shape) != (d, d):
        raise BadUsage(
            f"{who} needs an initial basis of shape ({d}, {d}); got {tuple(basis.shape)}."
        )
    if not is_orthonormal(basis):
        raise BadUsage(f"{who} needs an orthonormal initial basis; its columns are not.")
    return at_least_fp32(basis)


def check_k(who: str, k: int, d: int) -> None:
    """Refuse more directions than there are dimensions.

    Raises:
        BadUsage: k is not in 1 to d.
    """
    if not 1 <= k <= d:
        raise BadUsage(f"{who} has {d} dimensions, so k is 1 to {d}; got {k}.")


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
    @checked
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
    @checked
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


@dataclass(frozen=True, eq=False, repr=False)
class ScaleFeatures(OneLine):
    """Some features of a value, or all, times a factor; computed in fp32 at least.

    A factor of 0 ablates features, 1 changes nothing, to the last bit, and 2 doubles what they
    write. The error term stays, as with an interchange.

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
    """Replace a value by the featurizer's reconstruction, such as that of an SAE.

    At the position "all", tokens before `first` keep their values, because the SAE was trained
    without these tokens.
    """

    featurizer: Featurizer

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    @property
    def first(self) -> int:
        """The first token that is changed at "all"."""
        return int(getattr(self.featurizer, "first", 0))

    def __call__(self, base: Values, source: Values | None) -> Values:
        wide = at_least_fp32(base)
        f = self.featurizer.encode(wide)
        beside = getattr(self.featurizer, "decode_beside", None)
        made = self.featurizer.decode(f) if beside is None else beside(f, wide)
        return made.to(base.dtype)
