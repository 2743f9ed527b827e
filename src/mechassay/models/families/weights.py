"""Finding modules by name and reading their weights; shared by all families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mechassay.errors import UnsupportedModel
from mechassay.models.decoder import Norm, Projection, at_least_fp32


def find(root: nn.Module, path: str) -> Any:
    """The sub-module or parameter at a dotted path.

    Raises:
        UnsupportedModel: there is none; the message says which part of the path was not found.
    """
    node: Any = root
    for depth, name in enumerate(path.split(".")):
        following = getattr(node, name, None)
        if following is None:
            missing = ".".join(path.split(".")[: depth + 1])
            raise UnsupportedModel(f"{type(root).__name__} has no module {missing!r}.")
        node = following
    return node


def layer_norm(module: nn.Module) -> Norm:
    """A LayerNorm's data; some have no bias."""
    eps = getattr(module, "eps", None)
    eps = find(module, "variance_epsilon") if eps is None else eps
    return Norm(find(module, "weight").data, optional(module, "bias"), float(eps), centred=True)


def rms_norm(module: nn.Module, *, offset: float = 0.0) -> Norm:
    """An RMSNorm's data; `offset` is added to the stored weight (Gemma: 1)."""
    weight, eps = find(module, "weight").data, getattr(module, "variance_epsilon", None)
    eps = float(find(module, "eps") if eps is None else eps)
    return Norm(weight + offset if offset else weight, None, eps, centred=False)


def multiplied_by(factor: float, like: Tensor) -> Norm:
    """A norm that only multiplies: what is read as it is (1), or written times a number."""
    return Norm(torch.full_like(at_least_fp32(like), factor), None, None, centred=False)


def times(norm: Norm, factor: float) -> Norm:
    """A norm (without bias) whose output is multiplied; its weight is not rounded to 16 bits."""
    return replace(norm, weight=at_least_fp32(norm.weight) * factor)


def projection(
    weight: Tensor, bias: Tensor | None, d_head: int, norm: Norm | None = None
) -> Projection:
    """A projection into heads from a [heads * d_head, d_model] weight."""
    heads = weight.shape[0] // d_head
    own_bias = None if bias is None else bias.view(heads, d_head)
    return Projection(weight.unflatten(0, (heads, d_head)), own_bias, norm)


def optional(module: nn.Module, name: str) -> Tensor | None:
    """A parameter that may be absent or None."""
    value = getattr(module, name, None)
    return None if value is None else value.data


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its Hugging Face name; the common ones are one fused kernel."""
    if name in _FUSED:
        return _FUSED[name]
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise UnsupportedModel(f"The activation {name!r} is not known to transformers.")
    return ACT2FN[name]
