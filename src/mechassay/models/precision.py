"""TF32: whether products of fp32 matrices may be rounded on the way in.

A GPU's tensor cores multiply fp32 numbers with the 10 bits of TF32, and add them up in fp32, some
eight times as fast as in fp32. PyTorch has one flag for it, of the whole process, which is left
here as it was before.

    auto    products of changes and gradients of a model in half precision, on a GPU: such numbers
            have fewer bits than TF32 (7 in bf16, 10 in fp16); all else follows PyTorch's flag
    on      every product of fp32 numbers, those of the model too
    off     none
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from mechassay.errors import one_of

CHOICES = {"auto": None, "on": "high", "off": "highest"}
"""PyTorch's name for what is chosen; `auto` leaves its flag."""
_CHOSEN: ContextVar[str] = ContextVar("tf32", default="auto")


def chosen_tf32() -> str:
    """What holds now: auto, on or off."""
    return _CHOSEN.get()


@contextmanager
def tf32(choice: str) -> Iterator[None]:
    """Let products be in TF32 in a block: `with ma.tf32("on"): ...`.

    Args:
        choice: auto, on or off. On a CPU it changes nothing where products have no TF32.

    Raises:
        UnknownName: none of these.
    """
    flag = CHOICES[one_of("tf32", choice, tuple(CHOICES))]
    token = _CHOSEN.set(choice)
    try:
        with _flag(flag):
            yield
    finally:
        _CHOSEN.reset(token)


@contextmanager
def products_of_changes(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Where changes of a model of this type are multiplied with gradients."""
    half = dtype in (torch.bfloat16, torch.float16)
    with _flag("high" if half and device.type == "cuda" and chosen_tf32() == "auto" else None):
        yield


@contextmanager
def _flag(precision: str | None) -> Iterator[None]:
    """PyTorch's flag, put back at the end; None leaves it."""
    before = torch.get_float32_matmul_precision()
    if precision is not None:
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
