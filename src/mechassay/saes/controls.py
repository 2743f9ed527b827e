"""Dictionaries made for comparison: what a number has to beat before it says something of an SAE.

random      unit rows drawn uniformly, read by their transpose around the mean of values; of
            each value, as many features as the SAE has on average (topk)
permuted    the SAE, its decoder rows in another order: the same features, other directions
prefix      the SAE's first features alone, as of a Matryoshka SAE (Bussmann et al. 2025,
            2503.17547), whose prefixes are dictionaries of their own
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes.agreement import unit_rows

APART = 2_000_003
"""What is added to seeds of random rows. Trainings draw rows with their seed, and planted features
with theirs and another number: a control must be neither."""


def random_sae(
    d_in: int, n_features: int, k: int, mean: Float[Tensor, "d"], *, seed: int = 0
) -> SAE:
    """A random dictionary that keeps the k largest features of each value.

    Args:
        seed: of the rows, which are not those that a training with this seed begins with.

    Raises:
        BadUsage: k is not between 1 and the number of features; a mean of another width.
    """
    if tuple(mean.shape) != (d_in,):
        raise BadUsage(f"The mean of values has {d_in} numbers; got shape {tuple(mean.shape)}.")
    drawn = torch.Generator().manual_seed(seed + APART)
    rows = unit_rows(torch.randn(n_features, d_in, generator=drawn))
    b_dec = mean.detach().float().cpu()
    zeros = torch.zeros(n_features)
    return SAE(rows.mT.contiguous(), rows, zeros, b_dec, "topk", k=k, centred=True)


def permuted_sae(sae: SAE, *, seed: int = 0) -> SAE:
    """The SAE with its decoder rows in a random order, the encoder as it is."""
    drawn = torch.Generator().manual_seed(seed)
    order = torch.randperm(sae.n_features, generator=drawn)
    return replace(sae, w_dec=sae.w_dec[order.to(sae.w_dec.device)])


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
