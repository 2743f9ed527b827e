"""Tolerances in units of rounding, for numbers that two orders of the same sums lead to."""

from __future__ import annotations

import torch

FACTOR = 32
"""Rounding of a gradient, in eps of the size of the losses that it comes from."""
ADAM_EPS = 1e-8


def after_steps(
    steps: int,
    size: float,
    lr: float,
    least_gradient: float = 1e-4,
    dtype: torch.dtype = torch.float64,
) -> float:
    """How far rounding alone may take two trainings by Adam apart.

    A step is lr g / (|g| + eps): an error of a gradient moves a parameter by lr / |g| times as
    much. Errors of steps add up.

    Args:
        size: of the losses.
        least_gradient: the smallest entries of a gradient; no smaller than Adam's eps counts.
    """
    amplified = max(1.0, lr / max(least_gradient, ADAM_EPS))
    return FACTOR * torch.finfo(dtype).eps * steps * size * amplified
