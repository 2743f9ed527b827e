"""How many features of a dictionary a value needs, whatever its encoder would activate.

Matching pursuit (Mallat and Zhang 1993) with coefficients that are not negative, over rows d_i of
length 1: from r = x, take the row with the largest c = <r, d_i> > 0, and r <- r - c d_i, until
|r|^2 is small enough. A value needs as many features as distinct rows were taken. Greedy choices
are not the best ones: the number is an upper bound of the smallest.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes.agreement import unit_rows

PASSES = 4
"""Steps of the pursuit for each feature that may be taken; rows can be taken again."""


@torch.no_grad()
def needed_features(
    x: Float[Tensor, "n d"], rows: Float[Tensor, "k _"], within: Float[Tensor, "n"], most: int
) -> Int[Tensor, "n"]:
    """Features that values need until the square of what is left is `within`.

    Args:
        x: values, less the dictionary's constant.
        rows: of the dictionary, of any length; rows of zeros are never taken.
        most: where the search ends: most + 1 stands for more, and for what no number reaches.

    Raises:
        BadUsage: values of another width, or a search of less than one feature.
    """
    if x.shape[1] != rows.shape[1] or most < 1:
        raise BadUsage(
            f"Rows of {rows.shape[1]} numbers describe values of as many, by one or more; got"
            f" values of {x.shape[1]} and most={most}."
        )
    unit = unit_rows(rows)
    rest, bound = x.detach().float().cpu().clone(), within.detach().float().cpu()
    found = torch.full((len(x),), most + 1)
    taken = torch.zeros(len(x), len(unit), dtype=torch.bool)
    going = torch.arange(len(x))
    for _ in range(PASSES * most + 1):
        count = taken[going].sum(dim=1)
        done = rest[going].square().sum(dim=1) <= bound[going]
        found[going[done & (count <= most)]] = count[done & (count <= most)]
        going = going[~done & (count <= most)]
        if not len(going):
            break
        best, at = (rest[going] @ unit.mT).max(dim=1)
        going, best, at = going[best > 0], best[best > 0], at[best > 0]
        rest[going] -= best[:, None] * unit[at]
        taken[going, at] = True
    return found


@torch.no_grad()
def needed_by(
    sae: SAE, h: Float[Tensor, "n d"], most: int
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Features that values have, and that they need to be as near as the SAE brings half of them.

    Near is the share of a value's squared distance from the mean that is left. It is the median
    over values, since large values are reconstructed better and would set the bar for all. Both are
    taken of values as the SAE normalises them.
    """
    wide = h.detach().float()
    x = sae.normalized(wide)
    f = sae.encode(wide)
    around = (x - x.mean(0)).square().sum(dim=1)
    left = (x - sae.decode(f)).square().sum(dim=1) / around.clamp(min=1e-12)
    need = needed_features(x - sae.b_dec.to(x), sae.w_dec, left.median() * around, most)
    return (f != 0).sum(dim=1), need
