"""What a search for worse pairs found: climbs from one pair to another,
and what random sampling finds beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from mechassay.examples import Prompt


@dataclass(frozen=True)
class Step:
    """One change of a climb.

    Attributes:
        change: in words; empty for the start.
        kl: of the pair it led to, in nats.
        evaluations: pairs evaluated so far, in the whole search.
    """

    change: str
    kl: float
    evaluations: int


@dataclass(frozen=True)
class Climb:
    """One start and the changes that led from it to worse pairs.

    Attributes:
        clean, corrupted: the pair where it ended.
        steps: the start, and then every change.
        is_local_maximum: no change of one field leads to a worse pair; False where the search ended
            first.
    """

    clean: Prompt
    corrupted: Prompt
    steps: tuple[Step, ...]
    is_local_maximum: bool

    @property
    def kl(self) -> float:
        """The divergence of the pair, in nats."""
        return self.steps[-1].kl

    def as_dict(self) -> dict[str, Any]:
        """The climb as plain JSON values."""
        steps = [
            {"change": step.change, "kl": step.kl, "evaluations": step.evaluations}
            for step in self.steps
        ]
        pair = {"clean": self.clean.text, "corrupted": self.corrupted.text}
        return {**pair, "kl": self.kl, "is_local_maximum": self.is_local_maximum, "steps": steps}


class RandomBest(NamedTuple):
    """The largest divergence of random pairs of the pools, and how many; NaN if not asked for."""

    kl: float
    pairs: int


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        climbs: one for each start, the worst pair first.
        evaluations: pairs evaluated, those of the halving included.
        random: what random sampling finds with as many evaluations.
        finished: False if it was interrupted.
    """

    climbs: tuple[Climb, ...]
    evaluations: int
    random: RandomBest
    finished: bool

    @property
    def best(self) -> Climb:
        """The climb that ended at the worst pair."""
        return self.climbs[0]

    @property
    def lower_bound(self) -> float:
        """The largest divergence found, in nats: the maximum over all pairs is at least this."""
        return self.best.kl

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON values; without a comparison `random` is null."""
        random = None if math.isnan(self.random.kl) else self.random._asdict()
        found = {
            "lower_bound": self.lower_bound,
            "evaluations": self.evaluations,
            "random": random,
            "finished": self.finished,
        }
        return {**found, "climbs": [climb.as_dict() for climb in self.climbs]}

    def __str__(self) -> str:
        said = (
            f"lower bound on the maximum: {self.lower_bound:.6g} nats, after {self.evaluations:,}"
            " pairs"
        )
        if not math.isnan(self.random.kl):
            said += f" (random sampling: {self.random.kl:.6g} with {self.random.pairs:,})"
        return said if self.finished else f"{said}; interrupted"
