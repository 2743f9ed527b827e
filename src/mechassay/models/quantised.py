"""Quantised models: which are read, and how the values of a quantised weight are made.

A format that rounds weights alone stores small numbers q with scales s and offsets z. Its module
computes x @ W.T with

    W = s (q - z)

and its gradient by x is that of the matrix W. So the decoder uses W, which is made when it is used
(`stored_weights`), in bitsandbytes' 4 bits and in torchao's formats (int8 and others with a
`dequantize`). The check on loading compares this with the model's own kernels.

On a CPU with AVX-512 BF16, bitsandbytes repacks a 4-bit weight in place at its first forward pass.
The packed kernel reads scales and activations in bfloat16, so the model's numbers would depend on
the CPU and on whether the model has run before. `keep_quantised_layout` prevents this.

A format that rounds activations too is no linear map, and torchao's kernels give it no gradient. It
is refused, and so are methods whose weights nothing here reads: before any weight is loaded where
the configuration names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from mechassay.errors import MissingExtra, UnsupportedModel

_ROUNDS = re.compile(r"\w*(?:Dynamic|Static)Activation\w*")
_TAKEN = (
    "weights alone by torchao (Int8WeightOnlyConfig) or bitsandbytes (load_in_4bit=True) are read"
)
_ADVICE = {
    "gguf": "load the .gguf file itself, which is dequantised",
    "mxfp4": "load it with Mxfp4Config(dequantize=True)",
    "fp8": "load it with FineGrainedFP8Config(dequantize=True)",
    "compressed-tensors": "load it with CompressedTensorsConfig(dequantize=True)",
}
"""What helps, by method, where transformers dequantises while it loads."""


def check_quantisation(name: str, settings: Any, method: str | None = None) -> None:
    """Refuse a model that is quantised in a way that is not read.

    Args:
        name: of the model, for the message.
        settings: the `quantization_config` of its configuration, or None.
        method: by which it is quantised, if `settings` does not say so.

    Raises:
        UnsupportedModel: another method, or one that rounds activations.
        MissingExtra: the package whose formats these are is not installed.
    """
    if settings is None and method is None:
        return
    given: Mapping[str, Any] = (
        settings if isinstance(settings, Mapping) else settings.to_dict() if settings else {}
    )
    if given.get("dequantize"):
        return
    bits = {"load_in_8bit": "bitsandbytes", "load_in_4bit": "bitsandbytes"}
    named = next((bits[key] for key in bits if given.get(key)), None)
    kind = named or method or given.get("quant_method") or "an unknown method"
    kind = str(getattr(kind, "value", kind))
    package = "bitsandbytes" if kind.startswith("bitsandbytes") else kind
    if package == "bitsandbytes":
        if given.get("load_in_8bit") or kind.endswith("8bit"):
            _refuse(name, "bitsandbytes in 8 bits, which rounds activations too")
    elif kind == "torchao":
        text = json.dumps(given.get("quant_type"), default=lambda x: type(x).__name__)
        if rounds := _ROUNDS.search(text):
            _refuse(name, f"torchao's {rounds[0]}, which rounds activations: they have no gradient")
    else:
        _refuse(name, kind, _ADVICE.get(kind))
    if find_spec(package) is None:
        raise MissingExtra(f"{name}, a model quantised by {package},", package, "quantised")


def _refuse(name: str, what: str, advice: str | None = None) -> None:
    advice = advice or "load it in float32, bfloat16 or float16, or call its dequantize()"
    raise UnsupportedModel(f"{name} is quantised by {what}; {_TAKEN}: else {advice}.")


def maker(
    name: str, module: nn.Module, parameter: Tensor, dtype: torch.dtype
) -> tuple[torch.Size, Callable[[], Tensor]] | None:
    """The shape of a quantised parameter as the family reads it, and what makes its values, in the
    model's type; None for a parameter that is not quantised.

    Raises:
        UnsupportedModel: a format that rounds or scales activations, that is not read, or that is
            of another type than the model.
    """
    kind = type(parameter)
    if kind.__name__ == "Params4bit":
        return _of_bitsandbytes(name, module, parameter, dtype)
    if kind.__module__.startswith("torchao."):
        names = ("act_quant_kwargs", "activation_quantization", "input_quant_func")
        if any(getattr(parameter, attribute, None) is not None for attribute in names):
            _refuse(name, f"torchao ({kind.__name__}), which rounds activations: no gradient")
        if getattr(parameter, "act_pre_scale", None) is not None:
            _refuse(name, f"torchao ({kind.__name__}), which scales activations")
        if not hasattr(parameter, "dequantize"):
            _refuse(name, f"torchao ({kind.__name__}), which does not dequantise")
        _same_type(name, parameter.dtype, dtype)
        return parameter.shape, parameter.dequantize
    if not parameter.is_floating_point():
        _refuse(name, str(parameter.dtype))
    return None


def _same_type(name: str, own: torch.dtype, dtype: torch.dtype) -> None:
    if own == dtype:
        return
    wanted, given = (str(kind).removeprefix("torch.") for kind in (own, dtype))
    raise UnsupportedModel(
        f"{name}: its quantised weights are of {wanted}, and the model is in {given}: load it with"
        f" dtype={wanted!r}."
    )


def _of_bitsandbytes(
    name: str, module: Any, parameter: Any, dtype: torch.dtype
) -> tuple[torch.Size, Callable[[], Tensor]]:
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]
    from transformers.pytorch_utils import Conv1D

    state = parameter.quant_state
    if state is None:
        raise UnsupportedModel(f"{name}: a weight of bitsandbytes that is not quantised yet.")
    computes = getattr(module, "compute_dtype", None) or dtype
    if torch.finfo(computes).eps > torch.finfo(dtype).eps:
        raise UnsupportedModel(
            f"{name}: bitsandbytes rounds activations to {str(computes).removeprefix('torch.')}:"
            f" load it with bnb_4bit_compute_dtype={dtype}."
        )
    transposed = issubclass(getattr(module, "source_cls", nn.Linear), Conv1D)
    keep_quantised_layout(module)

    def make() -> Tensor:
        whole = dequantize_4bit(parameter.data, state).to(dtype)
        return whole.t() if transposed else whole

    shape = shape_of(parameter)
    return torch.Size(reversed(shape)) if transposed else shape, make


def keep_quantised_layout(module: Any) -> None:
    """Switch off the repacking of a 4-bit module of bitsandbytes, and undo it if it has happened.

    After this call, forward passes multiply the dequantised weight in the model's own dtype on
    every CPU. If an earlier forward pass repacked the weight, the weight is unpacked in place; the
    scales keep the 8 significant bits of bfloat16 to which packing rounded them.

    Args:
        module: a `Linear4bit`, changed in place.
    """
    # bitsandbytes repacks only where this attribute is true.
    module.support_avx512bf16_for_cpu = False
    weight = module.weight
    state = weight.quant_state
    if not getattr(state, "packing_format_for_cpu", False):
        return
    from bitsandbytes.functional import (  # pyright: ignore[reportMissingImports]
        _convert_weight_packed_for_cpu_inverse as unpack,  # pyright: ignore[reportPrivateUsage]
    )

    # The inverse would quantise nested scales once more, and leaves the others transposed.
    state.original_nested = False
    weight.data, state = unpack(weight.data, state)
    state.absmax = state.absmax.T.reshape(-1).float()


def shape_of(parameter: Any) -> torch.Size:
    """The shape of the matrix that a parameter stands for."""
    state = getattr(parameter, "quant_state", None)
    return parameter.shape if state is None else torch.Size(state.shape)


def tensors_of(parameter: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a parameter is stored as, with their names."""
    if type(parameter).__module__.startswith("torchao."):
        for name in parameter.__tensor_flatten__()[0]:
            yield from ((f".{name}{more}", x) for more, x in tensors_of(getattr(parameter, name)))
        return
    yield "", parameter
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        for name, value in state.as_dict(packed=True).items():
            yield f".{name}", value
