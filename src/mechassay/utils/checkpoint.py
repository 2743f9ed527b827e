"""Checkpoints of long sums and of trainings, so that a killed job goes on where it was.

A job adds parts to tensors in a fixed order: it computes a part and calls `add(cursor,
name=part)`, which puts new sums and the new cursor in place at once, so that an interrupt finds
a part counted in full or not at all. (`done` only moves the cursor.) The state is written at
most every few seconds, and when the job is interrupted. A job with the same key (method,
settings, model, examples, chunking) skips the parts before the cursor: the result is bit for bit
that of an undisturbed run. The file also has the seconds that these parts took (`Clock`), so that a
resumed job can say what it took in all.

`descend` is the loop of steps that every training here is. All tensors that steps change are
kept: the parameters, the optimiser's moments, the state of the generator, and those that the
caller names. So a training that goes on ends bit for bit as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechassay.errors import BadFile, BadUsage
from mechassay.utils.display import Advance
from mechassay.utils.files import read_tensors, write_tensors

EVERY_SECONDS = 10.0


def key_of(description: Mapping[str, Any]) -> str:
    """A digest of what a job computes."""
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


class Clock:
    """Seconds since it was made, by the clock and of this process's CPU."""

    def __init__(self) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def add(self, earlier: Mapping[str, Any]) -> None:
        """Count what an earlier process took too, from a header or a provenance."""
        begin, begin_cpu = self.begin
        self.begin = (
            begin - float(earlier.get("seconds", 0)),
            begin_cpu - float(earlier.get("cpu_seconds", 0)),
        )

    def seconds(self) -> dict[str, float]:
        """Of all processes so far."""
        begin, begin_cpu = self.begin
        return {
            "seconds": round(time.perf_counter() - begin, 3),
            "cpu_seconds": round(time.process_time() - begin_cpu, 3),
        }


@dataclass
class State:
    """The progress of one job: `held` is a cursor, and tensors that the parts before it are in."""

    held: tuple[int, Mapping[str, Tensor]]
    path: Path | None
    key: str
    clock: Clock = field(default_factory=Clock)
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
            header |= self.clock.seconds()
            stored = {name: tensor.cpu() for name, tensor in tensors.items()}
            write_tensors(self.path, stored, header)
        self.saved = time.monotonic()


def header_in(path: Path | None) -> Mapping[str, Any]:
    """The `key` of the job whose progress a file keeps, its `cursor`, and the `seconds` and
    `cpu_seconds` that it took until then; empty without a readable file.
    """
    try:
        return {} if path is None else read_tensors(path, "checkpoint")[1]
    except BadFile:
        return {}


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
    state = State((0, tensors), path, key)
    if path is not None and path.is_file():
        header = _take_up(path, key, tensors)
        state.held = int(header.get("cursor", 0)), tensors
        state.clock.add(header)
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


def _take_up(path: Path, key: str, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    try:
        stored, header = read_tensors(path, "checkpoint")
    except BadFile:
        # A checkpoint is only a saving of time: an unreadable one means starting over.
        return {}
    if header.get("key") != key or set(stored) != set(tensors):
        return {}
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
    return header


def descend(
    differentiate: Callable[[int], None],
    optimiser: torch.optim.Optimizer,
    steps: int,
    *,
    advance: Advance,
    key: str = "",
    checkpoint: Path | None = None,
    keep: bool = False,
    generator: torch.Generator | None = None,
    also: Mapping[str, Tensor] | None = None,
    clip: float | None = None,
    schedule: Callable[[int], float] | None = None,
    stop: Callable[[int], bool] | None = None,
) -> None:
    """Train the parameters that an optimiser holds, in place.

    Args:
        differentiate: leaves the gradients of a step, counted from 0, on the parameters.
        key: of what is trained; only a checkpoint with the same key is taken up.
        checkpoint: a file that keeps what is done; None keeps nothing.
        keep: leave the file there at the end, with all steps done.
        generator: what `differentiate` and `stop` draw from.
        also: further tensors that they change, in place.
        clip: largest norm of a step's gradient, of each of the optimiser's groups of parameters.
        schedule: the learning rate of a step.
        stop: asked after each step whether it was the last.

    Raises:
        BadUsage: a checkpoint, and an optimiser other than Adam and AdamW.
    """
    kept = dict(also or {})
    if checkpoint is not None:
        kept |= _state_of(optimiser)
    if generator is not None:
        kept["generator"] = generator.get_state()
    with checkpointed(checkpoint, key, kept, sums=False, keep=keep) as state:
        if generator is not None:
            generator.set_state(kept["generator"])
        advance(state.cursor)
        for step in range(state.cursor, steps):
            optimiser.zero_grad()
            differentiate(step)
            for group in optimiser.param_groups:
                if schedule is not None:
                    group["lr"] = schedule(step)
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(group["params"], clip)
            optimiser.step()
            stopped = stop is not None and stop(step)
            if generator is not None:
                kept["generator"].copy_(generator.get_state())
            state.done(steps if stopped else step + 1)
            advance(steps - step if stopped else 1)
            if stopped:
                break


def _state_of(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters and what Adam keeps of each, made as it would make it in its first step."""
    if not isinstance(optimiser, torch.optim.Adam):
        raise BadUsage(
            f"Only a training by Adam or AdamW can be kept in a checkpoint; got"
            f" {type(optimiser).__name__}."
        )
    parameters = [tensor for group in optimiser.param_groups for tensor in group["params"]]
    kept: dict[str, Tensor] = {}
    for number, parameter in enumerate(parameters):
        state = optimiser.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
        kept |= {f"{number}.{name}": tensor for name, tensor in state.items()}
        kept[f"{number}.parameter"] = parameter.detach()
    return kept


class Order:
    """Row numbers, step by step: random orders cut into batches; a draw changes `kept`."""

    def __init__(self, n: int, size: int) -> None:
        self.size = min(size, n)
        self.kept = {"rows": torch.zeros(n, dtype=torch.long), "drawn": torch.tensor(n)}

    def draw(self, generator: torch.Generator) -> list[int]:
        """The rows of the next batch; the last ones of an order that fill none are left out."""
        rows, drawn = self.kept["rows"], self.kept["drawn"]
        if int(drawn) + self.size > len(rows):
            rows.copy_(torch.randperm(len(rows), generator=generator))
            drawn.zero_()
        drawn += self.size
        return rows[int(drawn) - self.size : int(drawn)].tolist()
