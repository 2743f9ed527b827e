"""Tolerances in units of rounding, for numbers that two orders of the same sums lead to."""

from __future__ import annotations

import torch

FACTOR = 32
"""Rounding errors of one step, in eps of the size of its sums: ten are measured, on one machine."""
ADAM_EPS = 1e-8


def after_steps(
    steps: int, size: float, lr: float | None = None, dtype: torch.dtype = torch.float64
) -> float:
    """How far rounding alone may take two trainings apart.

    Args:
        steps: of the training; errors add up.
        size: of the losses, whose sums the gradients come from.
        lr: Adam's, where gradients get as small as its eps. A step is lr g / (|g| + eps), so an
            error of g is then taken times lr / eps; that of a larger g cancels.
    """
    amplified = 1.0 if lr is None else max(1.0, lr / ADAM_EPS)
    return FACTOR * torch.finfo(dtype).eps * steps * size * amplified
