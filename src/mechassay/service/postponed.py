"""Submissions for which a worker had no room, or no store, and when their turn comes again.

Such a submission keeps its place in line, which may be the first one: it would be taken again and
again, and nothing else ever. So the worker that gave it back takes all others before it: for a
minute, and each time for twice as long, up to an hour. Where nothing else is left to do it is tried
at once, as the disk may have room again. Other workers may have the room now: each finds out for
itself, and nothing of this is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

FIRST, LONGEST = 60.0, 3600.0
"""Seconds that a submission is passed over: the first time, and at most."""


@dataclass
class PostponedSubmissions:
    """What one worker passes over, by ids of submissions.

    Attributes:
        clock: seconds.
    """

    clock: Callable[[], float] = monotonic
    _waits: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Until when, and for how long."""

    def add(self, submission: str) -> float:
        """Pass it over from now on; for how many seconds."""
        _, before = self._waits.get(submission, (0.0, FIRST / 2))
        wait = min(2 * before, LONGEST)
        self._waits[submission] = self.clock() + wait, wait
        return wait

    def remove(self, submission: str) -> None:
        """Something of it went well: the next time is the first one."""
        self._waits.pop(submission, None)

    def now(self) -> frozenset[str]:
        """What is passed over at this moment."""
        time = self.clock()
        return frozenset(each for each, (until, _) in self._waits.items() if until > time)
