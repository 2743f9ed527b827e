"""How numbers are computed, where results do not depend on it but by rounding: TF32, compiled code.

A GPU's tensor cores multiply fp32 numbers with the 10 bits of TF32, and add them up in fp32, some
eight times as fast as in fp32. PyTorch has one flag for it, of the whole process, which is put back
at the end of a block.

    auto    products of changes and gradients of a model in half precision, on a GPU: such numbers
            have fewer bits than TF32, or as many (bf16 7, fp16 10); else PyTorch's flag holds
    on      every product of fp32 numbers, those of the model too
    off     none

Compiled code is torch.compile's. Masked runs (`models.gradients`) have two functions of a layer,
one of its heads and one of its MLP. Layers of one shape share their code, which is made anew for
other numbers of examples or columns; `bucket` makes the latter few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Literal, ParamSpec, TypeVar, get_args

import torch

from mechassay.errors import BadUsage, first_line, one_of
from mechassay.utils.arguments import checked

Tf32 = Literal["auto", "on", "off"]
BACKEND = "inductor"
MOST_SHAPES = 256
"""Versions of one compiled function; PyTorch's own limit, of 8, is of layers that differ."""
LEAST_BUCKET = 8
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Computing:
    """See the module."""

    tf32: Tf32 = "auto"
    compiled: bool = False


_CHOSEN: ContextVar[Computing] = ContextVar("computing", default=Computing())  # noqa: B039


def chosen() -> Computing:
    """What holds now."""
    return _CHOSEN.get()


@checked
@contextmanager
def computing(tf32: str = "auto", *, compiled: bool = False) -> Iterator[None]:
    """Choose how numbers are computed in a block: `with ma.computing(tf32="on"): ...`.

    Args:
        tf32: auto, on or off. On a CPU it changes nothing where products have no TF32.
        compiled: compile steps of trained masks, and pad their prompts to few lengths.

    Raises:
        UnknownName: tf32 is none of these.
    """
    choice = Computing(one_of("tf32", tf32, get_args(Tf32)), compiled)  # pyright: ignore
    token = _CHOSEN.set(choice)
    try:
        with ExitStack() as undo:
            if choice.tf32 != "auto":
                undo.enter_context(float32_products("high" if choice.tf32 == "on" else "highest"))
            if compiled:
                from torch._dynamo import config

                # Before torch 2.6 there is but this name for it.
                undo.enter_context(config.patch(cache_size_limit=MOST_SHAPES))
            yield
    finally:
        _CHOSEN.reset(token)


@contextmanager
def products_of_changes(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Where changes of a model of this type are multiplied with gradients."""
    half = dtype in (torch.bfloat16, torch.float16)
    with ExitStack() as undo:
        if half and device.type == "cuda" and chosen().tf32 == "auto":
            undo.enter_context(float32_products("high"))
        yield


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Set PyTorch's precision of float32 products ("highest", "high" or "medium"), and restore the
    former one at the end.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, or its compiled code where that was chosen.

    Raises:
        BadUsage: when called: it cannot be compiled for what it is given, or on this machine.
    """
    return _compiled(function, BACKEND) if chosen().compiled else function


@cache
def _compiled(function: Callable[P, R], backend: str) -> Callable[P, R]:
    code = torch.compile(function, backend=backend, dynamic=False, fullgraph=True)

    from torch._dynamo.exc import TorchDynamoException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return code(*args, **kwargs)
        except (TorchDynamoException, GuardOnDataDependentSymNode) as error:
            raise BadUsage(
                "compiled: torch.compile refuses this model, or this machine has no compiler for it"
                f" (without it all methods run): {first_line(error)}"
            ) from error

    return run


def bucket(n: int) -> int:
    """The length that n columns are padded to: multiples of 8 up to 64, then four lengths for each
    doubling; n itself where nothing is compiled.
    """
    if not chosen().compiled:
        return n
    step = max(LEAST_BUCKET, 2 ** ((n - 1).bit_length() - 3))
    return -(-n // step) * step
