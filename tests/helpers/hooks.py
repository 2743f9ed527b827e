"""Hooks on what one sublayer of an original model reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.hooks_reference import ReferenceModel


def on_mlp_input(
    reference: ReferenceModel, layer: int, change: Callable[[Tensor], Tensor]
) -> list[RemovableHandle]:
    """Let a layer's MLP alone read a changed stream, also where attention reads the same norm."""
    name = reference.layout.mlp_norm
    norm: Any = None if name is None else reference.part(layer, name)
    seen: list[Tensor] = []

    def reads(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if norm is None:
            return (change(args[0]), *args[1:])
        return (type(norm).forward(norm, change(seen.pop())), *args[1:])

    handles = [reference.part(layer, reference.mlp_modules[0]).register_forward_pre_hook(reads)]
    if norm is not None:
        handles.append(norm.register_forward_pre_hook(lambda _, args: seen.append(args[0])))
    return handles
