"""How the losses of many pairs become one: a mean, or one in which bad pairs count for more.

    mean           (1/n) sum_i L_i
    cvar           the mean of the worst share alpha of the losses    (Rockafellar and Uryasev 2000)
    mixture        weight * mean + (1 - weight) * cvar
    worst-group    sum_g q_g mean of group g,  q_g <- q_g exp(step * mean of g) (Sagawa et al. 2020)

Each is a weighted mean, and its weights are its gradient by the losses: in cvar and mixture by
Danskin's theorem, in worst-group because the groups' weights are constants within an update. So a
caller computes losses, asks for weights, and descends sum_i w_i L_i.

Cvar of n losses takes alpha n of them, the last in part where that is no whole number. Losses that
tie at its edge share what is left there evenly: of equal losses every pair counts alike.

The weights q of the groups are the only state: uniform at first, they come in with each update and
go out with the result. A group without a loss in an update keeps its weight, and the others' are
scaled up for that update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.utils.registry import Registry


class Weights(NamedTuple):
    """How much each loss and, for the next update, each group counts; both with sum 1."""

    losses: Float[Tensor, "n"]
    groups: Float[Tensor, "groups"]


class Tail(ABC):
    """One loss of many. Implementations are frozen dataclasses, named in `TAILS`."""

    name: ClassVar[str]

    def weights(
        self,
        losses: Float[Tensor, "n"],
        groups: Int[Tensor, "n"],
        standing: Float[Tensor, "groups"],
    ) -> Weights:
        """How much each loss counts.

        Args:
            losses: larger is worse.
            groups: the number of each loss's group.
            standing: the groups' weights so far; `even` at first.

        Raises:
            BadUsage: no losses, or one that is not finite.
        """
        if not len(losses) or not bool(torch.isfinite(losses).all()):
            raise BadUsage(
                f"A tail needs one finite loss or more; got {losses.tolist()[:5] or 'none'}."
            )
        return self._weights(losses, groups, standing)

    @abstractmethod
    def _weights(self, losses: Tensor, groups: Tensor, standing: Tensor) -> Weights: ...


@dataclass(frozen=True)
class Mean(Tail):
    """Every loss alike."""

    name: ClassVar[str] = "mean"

    def _weights(self, losses: Tensor, groups: Tensor, standing: Tensor) -> Weights:
        return Weights(torch.full_like(losses, 1 / len(losses)), standing)


@dataclass(frozen=True)
class CVaR(Tail):
    """The worst share `alpha` of the losses alone (expected shortfall); 1 is the mean."""

    alpha: float = 0.2
    name: ClassVar[str] = "cvar"

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def _weights(self, losses: Tensor, groups: Tensor, standing: Tensor) -> Weights:
        return Weights(_worst(losses, self.alpha), standing)


@dataclass(frozen=True)
class Mixture(Tail):
    """The mean, by `weight`, and the worst share `alpha` together."""

    weight: float = 0.5
    alpha: float = 0.2
    name: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        if not 0 <= self.weight <= 1:
            raise BadUsage(
                f"The weight of the mean in a mixture must be between 0 and 1; got {self.weight}."
            )

    def _weights(self, losses: Tensor, groups: Tensor, standing: Tensor) -> Weights:
        worst = (1 - self.weight) * _worst(losses, self.alpha)
        return Weights(self.weight / len(losses) + worst, standing)


@dataclass(frozen=True)
class WorstGroup(Tail):
    """The groups' means, of which those that have been bad count for more.

    `step` is how fast the groups' weights follow their losses, a nat and update.
    """

    step: float = 1.0
    name: ClassVar[str] = "worst-group"

    def __post_init__(self) -> None:
        if not 0 <= self.step < float("inf"):
            raise BadUsage(
                f"The step of worst-group must be finite and 0 or more; got {self.step}."
            )

    def _weights(self, losses: Tensor, groups: Tensor, standing: Tensor) -> Weights:
        present, member, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
        means = losses.new_zeros(len(present)).index_add(0, member, losses) / sizes
        before = standing[present]
        # Scaled to what these groups had together: an absent group keeps its weight.
        after = before * torch.exp(self.step * (means - means.max()))
        after = after * (before.sum() / after.sum())
        weights = (after / after.sum() / sizes)[member]
        return Weights(weights, standing.index_copy(0, present, after))


MEAN = Mean()
TAILS = Registry(
    "tail", {each.name: f"{__name__}:{each.__name__}" for each in (Mean, CVaR, Mixture, WorstGroup)}
)


def even(n_groups: int, like: Tensor) -> Float[Tensor, "groups"]:
    """The groups' weights before the first update, on the device and in the precision of `like`."""
    return like.new_full((n_groups,), 1 / n_groups)


def _worst(losses: Float[Tensor, "n"], alpha: float) -> Float[Tensor, "n"]:
    """Weights of the mean of the worst share `alpha`."""
    count = alpha * len(losses)
    # 0.1 * 30 is above 3 in floating point, and the fourth would be the edge.
    place = min(len(losses), int(count - 1e-9) + 1)
    edge = losses.topk(place).values[-1]
    above, at = (losses > edge).to(losses), (losses == edge).to(losses)
    left = (count - above.sum()) / at.sum()
    return (above + at * left) / count


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise BadUsage(f"The worst share, alpha, must be above 0 and at most 1; got {alpha}.")
