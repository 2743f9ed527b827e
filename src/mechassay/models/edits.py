"""Edits of a model's weights in memory, which are noticed when the model is used.

A decoder shares most tensors with the original, and copies some: a fused matrix, a norm with its
offset. After training, merging or editing it would be a mixture of old and new weights. So two
things are remembered when the weights are read, and compared before each use:

    marks     of each tensor the object, its address and its version counter: an optimizer step,
              `load_state_dict` and a new Parameter change them
    a sample  of the values: all of a vector, and of a matrix at least one element of each row and
              of each column. An edit through `Tensor.data` changes no mark

A matrix is sampled at every s-th element in the order of its memory, where s is the largest step
that is at most the number of rows and of columns, and has no common divisor with the columns. The
sampled elements are one strided view, and all views of a type are compared at once by their bits.

An edit of single elements through `Tensor.data` can be missed. Weights that are on another device
or quantised by torchao are compared by their marks, or not at all if they are loaded when needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mechassay.models.identity import saved_buffers
from mechassay.models.quantised import tensors_of

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
"""The integers with the bits of numbers: NaN equals itself."""


class Edits:
    """The weights of a model as they were read; see the module."""

    def __init__(self, hf: nn.Module) -> None:
        self._marks = _marks(hf)
        self._views = _views(hf)
        self._sample = _sampled(self._views)

    def seen(self, hf: nn.Module) -> bool:
        """Return whether the model has other tensors or values than when it was read."""
        if _marks(hf) != self._marks:
            return True
        now = _sampled(self._views)
        return any(not torch.equal(a, b) for a, b in zip(now, self._sample, strict=True))


def sampled_view(tensor: Tensor) -> Tensor | None:
    """Return a view of all of a vector, or of every s-th element of a matrix or of a stack of
    matrices (see the module); None if the tensor is empty. It never is a copy, which would not show
    a later edit.
    """
    if tensor.numel() == 0:
        return None
    if tensor.ndim < 2:
        return tensor.reshape(-1)
    if not tensor.is_contiguous():
        if not tensor.mT.is_contiguous():
            # No single view of other strides meets each row and column: all elements count.
            return tensor
        tensor = tensor.mT
    rows, columns = tensor.shape[-2:]
    step = min(rows, columns)
    while math.gcd(step, columns) > 1:
        step -= 1
    return tensor.reshape(-1)[::step]


def _tensors(hf: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and saved buffers that are in memory."""
    for _, tensor in (*hf.named_parameters(), *saved_buffers(hf)):
        if not tensor.is_meta:
            yield tensor


def _marks(hf: nn.Module) -> tuple[object, ...]:
    """Return the marks of each tensor: object, address and version counter."""
    return tuple(
        (
            id(tensor),
            0 if _is_wrapped(tensor) else tensor.data_ptr(),
            # Tensors made in inference mode have no version counter.
            -1 if tensor.is_inference() else tensor._version,
        )
        for tensor in _tensors(hf)
    )


def _is_wrapped(tensor: Tensor) -> bool:
    """Return whether a tensor of torchao wraps others, and has no address itself."""
    return type(tensor).__module__.startswith("torchao.")


def _views(hf: nn.Module) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Return the sampled views by device and type: the views of a group are copied at once."""
    views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in _tensors(hf):
        for _, stored in tensors_of(tensor):
            view = sampled_view(stored.detach())
            if view is not None:
                views.setdefault((view.device, view.dtype), []).append(view)
    return views


def _sampled(views: dict[tuple[torch.device, torch.dtype], list[Tensor]]) -> list[Tensor]:
    """Return the bits of the sampled elements, a tensor for each group."""
    with torch.no_grad():
        joined = [
            (kind, torch.cat([view.reshape(-1) for view in group]))
            for (_, kind), group in views.items()
        ]
    return [values.view(_BITS[kind]) if kind in _BITS else values for kind, values in joined]
