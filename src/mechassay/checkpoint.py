"""Keeping what is done of a long sum, so that a killed job goes on where it was.

A job adds parts to tensors in a fixed order: it computes a part and calls `add(cursor, name=part)`,
which puts new sums and the new cursor in place at once, so that an interrupt finds a part counted
in full or not at all. (`done` only moves the cursor.) The state is written at most every few
seconds, and when the job is interrupted. A job with the same key (method, settings, model,
examples, chunking) skips the parts before the cursor: the result is bit for bit that of an
undisturbed run.
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

from mechassay.errors import BadFile
from mechassay.files import read_tensors, write_tensors

EVERY_SECONDS = 10.0


def key_of(description: Mapping[str, Any]) -> str:
    """A digest of what a job computes."""
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class State:
    """The progress of one job: `held` is a cursor, and tensors that the parts before it are in."""

    held: tuple[int, Mapping[str, Tensor]]
    path: Path | None
    key: str
    saved: float = field(default_factory=time.monotonic)

    @property
    def cursor(self) -> int:
        """The first part that is not in the tensors."""
        return self.held[0]

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The sums of the parts before the cursor."""
        return self.held[1]

    def add(self, cursor: int, **parts: Tensor) -> None:
        """Add a part to every tensor; all parts before `cursor` are then added."""
        # One assignment, of new tensors: there is no moment between them and the cursor.
        self.held = cursor, {name: tensor + parts[name] for name, tensor in self.tensors.items()}
        self.done(cursor)

    def done(self, cursor: int) -> None:
        """All parts before `cursor` are in the tensors."""
        self.held = cursor, self.tensors
        if time.monotonic() - self.saved >= EVERY_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the state now."""
        if self.path is not None:
            cursor, tensors = self.held
            header = {"kind": "checkpoint", "key": self.key, "cursor": cursor}
            stored = {name: tensor.cpu() for name, tensor in tensors.items()}
            write_tensors(self.path, stored, header)
        self.saved = time.monotonic()


def key_in(path: Path | None) -> str | None:
    """The key of the job whose progress a file keeps; None without a readable file."""
    try:
        return None if path is None else read_tensors(path, "checkpoint")[1].get("key")
    except BadFile:
        return None


@contextmanager
def checkpointed(
    path: Path | None,
    key: str,
    tensors: Mapping[str, Tensor],
    *,
    sums: bool = True,
    keep: bool = False,
) -> Iterator[State]:
    """The state of a job, from `path` where it has the same key; the file is removed at the end.

    Args:
        tensors: filled with what was done; written when the job is interrupted.
        sums: whether the tensors are whole between two calls of `done`. If they are not, as in
            training, an interrupted job keeps what was written last.
        keep: write the state at the end instead of removing the file, for a job that something else
            follows.
    """
    cursor = _take_up(path, key, tensors) if path is not None and path.is_file() else 0
    state = State((cursor, tensors), path, key)
    try:
        yield state
    except BaseException:
        if sums:
            state.save()
        raise
    if keep:
        state.save()
    elif path is not None:
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
