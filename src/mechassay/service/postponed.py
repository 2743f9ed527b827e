"""What a worker has no room for, or no cluster, and when its turn comes again.

A submission without room keeps its place in line, which may be the first one: it would be taken
again and again, and nothing else ever. So would a public cell while the Ray cluster is away, and
private cells, which need none, would wait behind it. So the worker that gave it back passes it
over: for a minute, and each time for twice as long, up to an hour. Other workers may have the room
or the cluster now: each finds out for itself, and nothing of this is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic

FIRST, LONGEST = 60.0, 3600.0
"""Seconds that something is passed over: the first time, and at most."""
CLUSTER = "public cells, for a Ray cluster"
"""What is postponed where the cluster is away; all else are ids of submissions."""


@dataclass
class PostponedWork:
    """What one worker passes over: ids of submissions, and `CLUSTER`.

    Attributes:
        clock: seconds.
    """

    clock: Callable[[], float] = monotonic
    _waits: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Until when, and for how long."""

    def add(self, name: str) -> float:
        """Pass it over from now on; for how many seconds."""
        _, before = self._waits.get(name, (0.0, FIRST / 2))
        wait = min(2 * before, LONGEST)
        self._waits[name] = self.clock() + wait, wait
        return wait

    def remove(self, name: str) -> None:
        """Something of it went well: the next time is the first one."""
        self._waits.pop(name, None)

    def resume(self, names: Collection[str]) -> None:
        """Pass them over no longer; the next time lasts as if they had waited."""
        for name in names:
            self._waits[name] = self.clock(), self._waits[name][1]

    def now(self) -> frozenset[str]:
        """What is passed over at this moment."""
        time = self.clock()
        return frozenset(each for each, (until, _) in self._waits.items() if until > time)
