"""Orthonormal directions: as parameters to train, as given by a file, and how two sets compare.

With a raw parameter [d, k] whose strict lower triangle A is what counts, and a fixed orthonormal
basis B [d, d],

    V = A + the first k columns of the identity        V1 = its first k rows
    S = striu(V'V) + diag(V'V) / 2
    Q = B V S^-1 V1' - B[:, :k]

are k orthonormal directions, B[:, :k] where A is 0. This is the product of the k Householder
reflections along the columns of V in compact WY form (Schreiber and Van Loan 1989), and the same
function of A as `torch.nn.utils.parametrizations.orthogonal` (householder, trivialised) with the
base B, which pyvene's rotations are: the same steps lead to the same directions. All of it is
matrix products and one triangular system, so many sites cost one batched call. k = d is a whole
rotation; its last column of A is empty.

Torch also keeps a diagonal of -1 in its parameter, which weight decay would shrink and which it
rounds to 0: only without weight decay is the trajectory torch's. Here decay draws towards B.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import at_least_fp32

TOLERANCE = 1e-4
"""How far V'V may be from the identity for directions to count as orthonormal."""


def orthonormal(
    raw: Float[Tensor, "sites d k"], basis: Float[Tensor, "some d d"]
) -> Float[Tensor, "sites d k"]:
    """The directions of raw parameters.

    Args:
        raw: entries on and above the diagonal have no effect and no gradient.
        basis: of each site, or one that all share.
    """
    d, k = raw.shape[1:]
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
