"""DAS stopped in the middle of its training, as table 2c of Arora et al. (2024) has it.

The learning rate goes up and down as in the whole training; only the steps after `stop` are not
made. The published step s is after s + 1 updates, the first of which has a learning rate of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.errors import BadUsage
from mechassay.features.das import DAS
from mechassay.features.stacked_training import TrainingPlan


@dataclass(frozen=True)
class StoppedPlan(TrainingPlan):
    """The first steps of a longer training.

    Attributes:
        whole: steps of the whole training.
    """

    whole: int = 0

    def factor(self, step: int) -> float:
        whole = TrainingPlan(self.n, self.size, self.whole, self.shuffle, self.linear, self.warmup)
        return whole.factor(step)


@dataclass(frozen=True, kw_only=True)
class StoppedDAS(DAS):
    """Directions of DAS after some updates.

    Attributes:
        stop: how many updates are made.
    """

    name: ClassVar[str] = "das-stopped"

    stop: int = 100

    def plan(self, n: int) -> TrainingPlan:
        """The first steps of a training on n rows.

        Raises:
            BadUsage: more than the training has.
        """
        plan = super().plan(n)
        if not 1 <= self.stop <= plan.steps:
            raise BadUsage(f"{self.name} stops after 1 to {plan.steps} steps; got {self.stop}.")
        return StoppedPlan(
            plan.n,
            plan.size,
            self.stop,
            plan.shuffle,
            plan.linear,
            plan.warmup,
            whole=plan.steps,
        )
