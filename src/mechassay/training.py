"""The loop of steps that every training here is, which a killed job goes on with.

All tensors that steps change are kept in a checkpoint (`mechassay.checkpoint`): the parameters, the
optimiser's moments, the state of the generator, and those that the caller names. So a training that
goes on ends bit for bit as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mechassay.checkpoint import checkpointed
from mechassay.errors import BadUsage
from mechassay.progress import Advance


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
            "step": torch.zeros(()),
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
