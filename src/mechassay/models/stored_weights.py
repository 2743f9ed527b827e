"""Weights that are kept in a smaller form or in another place, and made when they are used.

A `StoredWeight` has the shape, type and device of a weight, and none of its values. Views of it are
stored weights too: a family takes heads out of fused matrices as ever. Copies are made as late as
the weight itself. Any other operation first makes the values, on the decoder's device:

    x @ W.T   ->   x @ made(W).T

This happens below autograd. So the graph of a differentiated run keeps the stored weights, and its
backward pass makes the values anew. What was made is kept while weights of the same part of the
model (a layer, the embedding) are used: one part at a time has values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mechassay.errors import BadUsage, OutOfMemory
from mechassay.models.devices import loader
from mechassay.models.memory import available_bytes
from mechassay.models.quantised import maker

_LAYER = re.compile(r"(.*?\.\d+)\.")


def part_of(name: str) -> str:
    """The part of a model that a parameter is in: its layer, or the module above the blocks."""
    layer = _LAYER.match(name)
    return layer[1] if layer else name.rpartition(".")[0]


class MadeValues:
    """The values of one part's weights, of that whose weights were used last."""

    def __init__(self) -> None:
        # One tuple, which a thread of a backward pass replaces as a whole.
        self._now: tuple[str, MutableMapping[Origin, Tensor]] = ("", WeakKeyDictionary())

    def of(self, origin: Origin) -> Tensor:
        """Those of a whole weight, made unless they are there."""
        part, made = self._now
        if part != origin.part:
            made.clear()
            made = WeakKeyDictionary()
            self._now = (origin.part, made)
        values = made.get(origin)
        if values is None:
            # Not in inference mode, whose tensors later runs could not use.
            with torch.inference_mode(False), torch.no_grad():
                values = made[origin] = origin.make()
        return values


class Origin:
    """One whole weight: what makes its values, and in which part of the model it is."""

    def __init__(self, make: Callable[[], Tensor], part: str, values: MadeValues) -> None:
        self.make, self.part, self.values = make, part, values


class StoredWeight(Tensor):
    """A view of a weight whose values are made when they are used; see the module."""

    _origin: Origin

    def __new__(cls, like: Tensor, origin: Origin, device: torch.device) -> StoredWeight:
        """A view with the shape, strides, offset and type of `like`, which may be on meta."""
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=device,
        )

    def __init__(self, like: Tensor, origin: Origin, device: torch.device) -> None:
        self._origin = origin

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"StoredWeight({list(self.shape)}, {self.dtype}, {self.device})"

    def made(self) -> Tensor:
        """The view's values; not to be kept or changed."""
        values = self._origin.values.of(self._origin)
        return values.as_strided(self.shape, self.stride(), self.storage_offset())

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, StoredWeight):
            if func.is_view or func is torch.ops.aten._unsafe_view.default:
                return first._viewed(func, args[1:], kwargs)
            # As `contiguous` copies, to take a fused matrix apart; `clone` has values.
            rows = kwargs.get("memory_format") is torch.contiguous_format
            if func is torch.ops.aten.clone.default and rows:
                return first._copied(kwargs)
        for about, value in zip(func._schema.arguments, args, strict=False):
            written = about.alias_info is not None and about.alias_info.is_write
            if written and isinstance(value, StoredWeight):
                raise BadUsage(
                    "A weight that is quantised or elsewhere cannot be changed in place; change its"
                    f" clone(). Asked for: {func}."
                )
        plain, named = tree_map_only(StoredWeight, StoredWeight.made, (args, dict(kwargs)))
        return func(*plain, **named)

    def _outline(self) -> Tensor:
        """A tensor without values of this view's shape, strides and offset."""
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.stride(), strict=True))
        storage = torch.empty(
            self.storage_offset() + reach + 1 if self.numel() else 0,
            dtype=self.dtype,
            device="meta",
        )
        return storage.as_strided(self.shape, self.stride(), self.storage_offset())

    def _viewed(self, func: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        outlines = func(self._outline(), *rest, **kwargs)
        return tree_map_only(Tensor, lambda x: StoredWeight(x, self._origin, self.device), outlines)

    def _copied(self, kwargs: Mapping[str, Any]) -> StoredWeight:
        origin = Origin(lambda: self.made().clone(**kwargs), self._origin.part, self._origin.values)
        return StoredWeight(self._outline().clone(**kwargs), origin, self.device)


@contextmanager
def standing_in(
    hf: nn.Module, name: str, dtype: torch.dtype, device: torch.device
) -> Iterator[None]:
    """Within it, a model's matrices that are quantised or elsewhere are stored weights.

    Vectors (norms, biases) and buffers that are elsewhere are copies on the device.

    Args:
        name: of the model, for messages.
        dtype: what the model computes in.
        device: where the decoder computes.

    Raises:
        UnsupportedModel: see `quantised.maker` and `devices.loader`.
        OutOfMemory: the values of one part do not fit.
    """
    values, replaced = MadeValues(), list[tuple[dict[str, Any], str, Any]]()
    sizes = Counter[str]()

    def stands_in(make: Callable[[], Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        outline = torch.empty(shape, dtype=dtype, device="meta")
        sizes[part_of(path)] += outline.numel() * outline.element_size()
        # Views are taken of the whole weight row by row, as which it must then be made.
        origin = Origin(lambda: make().to(device, dtype).contiguous(), part_of(path), values)
        return StoredWeight(outline, origin, device)

    try:
        for prefix, module in hf.named_modules():
            parameters, buffers = vars(module)["_parameters"], vars(module)["_buffers"]
            for own, key, tensor in [
                (x, *item) for x in (parameters, buffers) for item in x.items()
            ]:
                path = f"{prefix}.{key}".lstrip(".")
                is_parameter, stored = own is parameters, tensor
                if tensor is None:
                    continue
                load = loader(hf, path) if tensor.is_meta else partial(tensor.to, device)
                small = None
                if is_parameter and not tensor.is_meta:
                    small = maker(name, module, tensor, dtype)
                if small is not None:
                    stored = stands_in(small[1], small[0], dtype)
                elif tensor.device != device and is_parameter and tensor.ndim > 1:
                    stored = stands_in(load, tensor.shape, tensor.dtype)
                elif tensor.is_meta or (tensor.device != device and is_parameter):
                    stored = load().to(device, tensor.dtype)
                if stored is not tensor:
                    replaced.append((own, key, tensor))
                    own[key] = stored
        free = available_bytes(device)
        for part, size in sizes.items():
            if free is not None and size > free:
                raise OutOfMemory(
                    f"{name}: the weights of {part} take {size / 2**30:.1f} GB when they are used;"
                    f" {free / 2**30:.1f} GB are free on {device}."
                )
        yield
    finally:
        for own, key, tensor in replaced:
            own[key] = tensor
