"""Features that no value activates, and how they come back (Bricken et al. 2023).

A feature that no value activated for `dead_after` values is dead. Before the last `decay` of the
steps, dead features are drawn again: each gets the error x - x~ of one value of the batch, drawn
with odds |x - x~|^4, as its row of W_dec and, at `revived` of the mean norm of other features, as
its column of W_enc. Its bias, its threshold if there is one, and Adam's moments begin anew.
Features of another SAE that the training began with stay: another one would pass for them.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.saes.architectures import Learner


class DeadFeatures:
    """Counts for how many values each feature was not active.

    Attributes:
        idle: these counts, changed in place.
    """

    def __init__(self, learner: Learner, optimiser: torch.optim.Optimizer) -> None:
        self.learner, self.optimiser = learner, optimiser
        self.settings = learner.settings
        self.idle = torch.zeros_like(learner.b_enc, dtype=torch.long, requires_grad=False)

    @property
    def count(self) -> int:
        """How many are dead."""
        return int((self.idle >= self.settings.dead_after).sum())

    def seen(self, n: int, fired: Bool[Tensor, "n"]) -> None:
        """Count a batch of n values."""
        self.idle.add_(n).masked_fill_(fired, 0)

    @torch.no_grad()
    def revive(self, step: int, x: Float[Tensor, "b d"], generator: torch.Generator) -> None:
        """Draw dead features again; at most one for each value of the batch."""
        settings, learner = self.settings, self.learner
        if settings.revived == 0 or step >= (1 - settings.decay) * settings.steps:
            return
        dead = self.idle >= settings.dead_after
        dead[: learner.n_kept] = False
        which = dead.nonzero()[:, 0][: len(x)]
        if not len(which):
            return
        error = x - learner.code(x, step).decoded
        odds = error.square().sum(dim=1).square()
        if int((odds > 0).sum()) < len(which):
            return
        # The generator is one of the CPU, whatever the parameters are on.
        drawn = torch.multinomial(odds.cpu(), len(which), generator=generator)
        rows = error[drawn.to(error.device)]
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        alive = torch.ones_like(self.idle, dtype=torch.bool).index_fill(0, which, False)
        norm = learner.encoder[alive].norm(dim=1).mean() if bool(alive.any()) else 1.0
        learner.decoder[which] = rows
        learner.encoder[which] = settings.revived * norm * rows
        changed = [learner.encoder, learner.decoder]
        for parameter, fresh in learner.per_feature():
            parameter[which] = fresh
            changed.append(parameter)
        for parameter in changed:
            for name in ("exp_avg", "exp_avg_sq"):
                if name in self.optimiser.state[parameter]:
                    self.optimiser.state[parameter][name][which] = 0.0
        self.idle[which] = 0
