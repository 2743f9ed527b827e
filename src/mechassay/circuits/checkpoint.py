"""Keeping what is done of a long sum, so that a killed job goes on where it was.

A job adds parts to tensors in a fixed order. After each part it calls `done(cursor, tensors)`;
the state is written at most every few seconds, and at once when the job is interrupted. A job
with the same key (method, settings, model, examples, chunking) finds it and skips the parts
before the cursor, so that the result is bit for bit that of an undisturbed run.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mechassay.circuits.files import read_tensors, write_tensors
from mechassay.errors import BadFile

EVERY_SECONDS = 10.0


def key_of(description: Mapping[str, Any]) -> str:
    """A digest of what a job computes."""
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class State:
    """The progress of one job: parts before `cursor` are in the tensors."""

    cursor: int
    tensors: Mapping[str, Tensor]
    path: Path | None
    key: str
    saved: float = field(default_factory=time.monotonic)

    def done(self, cursor: int) -> None:
        """All parts before `cursor` are added."""
        self.cursor = cursor
        if time.monotonic() - self.saved >= EVERY_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the state now."""
        if self.path is not None:
            write_tensors(
                self.path,
                {name: tensor.cpu() for name, tensor in self.tensors.items()},
                {"kind": "checkpoint", "key": self.key, "cursor": self.cursor},
            )
        self.saved = time.monotonic()


@contextmanager
def checkpointed(path: Path | None, key: str, tensors: Mapping[str, Tensor]) -> Iterator[State]:
    """The state of a job, taken up from `path` where it has the same key; the file is removed at the end.

    Args:
        tensors: filled with what was done; written when the job is interrupted.
    """
    state = State(0, tensors, path, key)
    if path is not None and path.is_file():
        state.cursor = _take_up(path, key, tensors)
    try:
        yield state
    except BaseException:
        state.save()
        raise
    if path is not None:
        path.unlink(missing_ok=True)


def _take_up(path: Path, key: str, tensors: Mapping[str, Tensor]) -> int:
    try:
        stored, header = read_tensors(path, "checkpoint")
    except BadFile:
        # A checkpoint is only a saving of time: an unreadable one means starting over.
        return 0
    if header.get("key") != key or set(stored) != set(tensors):
        return 0
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
    return int(header["cursor"])
