"""What the queue is told, and what it tells: uploads, cells to evaluate, how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mechassay.service.tables import EvaluationState, SubmissionState


@dataclass(frozen=True)
class Upload:
    """A file that was handed in and is in the store.

    Attributes:
        digest: SHA-256 of its bytes, in hex.
        file: its key in the store.
        name: what the board calls the submission.
        kind: "circuits", "variables" or "gym"; "" if only the file says it.
    """

    digest: str
    file: str
    n_bytes: int
    name: str
    declaration: Mapping[str, Any]
    kind: str = ""


@dataclass(frozen=True)
class PlannedEvaluation:
    """A cell that a submission is evaluated in: of which of its jobs, and on which split.

    Attributes:
        called: what status and pages call it; `cell` if not given.
    """

    job: int
    cell: str
    split: str = "test"
    called: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How an evaluation ended.

    Attributes:
        state: "done", "failed" or "skipped".
        message: why it failed or was skipped.
        record: key of its record in the store.
        seconds: that it took.
    """

    state: EvaluationState
    message: str | None = None
    record: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Counts:
    """How many evaluations of a submission are in each state."""

    of: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, state: EvaluationState) -> int:
        return self.of.get(state, 0)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.of.values())


@dataclass(frozen=True)
class Retried:
    """What of a submission waits again.

    Attributes:
        state: of the submission now.
        check: whether it is received again, for a check anew.
        cells: how many of its cells wait again.
    """

    state: SubmissionState
    check: bool
    cells: int
