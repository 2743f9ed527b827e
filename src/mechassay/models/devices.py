"""Models whose weights are on several devices, in the memory of the CPU, or on disk.

accelerate places a model's modules by a map from their names to devices, "cpu" or "disk". What
would not fit is on `meta`: hooks load it when a module is called. The decoder calls no modules. It
takes a weight from where the hook would (`loader`), to the one device that it computes on (`main_
device`), when it uses it (`stored_weights`).

So weights move and activations do not: an edge connects writers and readers of any two layers, and
what all writers wrote has to be in one place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechassay.errors import BadFile, BadUsage, SelfCheckFailed, UnsupportedModel

PLACINGS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Names of maps that accelerate makes."""
_PROBE = 2**20


def read_device_map(given: str | PathLike[str] | Mapping[str, Any]) -> str | dict[str, Any]:
    """A map by name, or from a JSON file: module -> device, "cpu" or "disk".

    Raises:
        BadUsage: neither a name nor a file.
        BadFile: a file that holds something else.
    """
    if isinstance(given, Mapping):
        return dict(given)
    if str(given) in PLACINGS:
        return str(given)
    path = Path(given)
    if not path.is_file():
        raise BadUsage(
            f"device_map must be {', '.join(PLACINGS)}, or a JSON file from modules to devices; got"
            f" {str(given)!r}."
        )
    try:
        held: Any = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise BadFile(f"{path}: not JSON ({error}).") from None
    if not isinstance(held, dict) or not all(isinstance(x, str | int) for x in held.values()):
        raise BadFile(f"{path}: a device map is an object from modules to devices; got {held!r}.")
    return held


def hooks_of(module: nn.Module) -> list[Any]:
    """accelerate's hooks of a module."""
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))


def main_device(hf: Any) -> torch.device:
    """The device that a model's embedding is used on, where the decoder computes.

    Raises:
        UnsupportedModel: the weights of a model that is none of transformers' are apart.
    """
    if len(devices_of(hf)) == 1 and not next(hf.parameters()).is_meta:
        return next(hf.parameters()).device
    if not hasattr(hf, "get_input_embeddings"):
        raise UnsupportedModel(
            f"{type(hf).__name__} is no model of transformers, and its weights are on several"
            " devices; put it on one."
        )
    embedding = hf.get_input_embeddings()
    device = next(
        (hook.execution_device for hook in hooks_of(embedding) if getattr(hook, "offload", False)),
        embedding.weight.device,
    )
    return torch.empty(0, device=device, dtype=torch.float32).device


def devices_of(hf: nn.Module) -> set[torch.device]:
    """The devices that a model's weights are on; meta for those that hooks load."""
    return {parameter.device for parameter in hf.parameters()}


def loader(hf: nn.Module, name: str) -> Callable[[], Tensor]:
    """What reads a parameter or buffer that is on meta, from where its module's hook would.

    Raises:
        UnsupportedModel: no hook loads it.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        for hook in hooks_of(hf.get_submodule(".".join(parts[:depth]))):
            key, weights = ".".join(parts[depth:]), getattr(hook, "weights_map", None)
            if getattr(hook, "offload", False) and weights is not None and key in weights:
                return lambda weights=weights, key=key: weights[key]
    raise UnsupportedModel(
        f"{type(hf).__name__}: {name} has no values (on meta), and no hook of accelerate loads it."
    )


def parameters_of(hf: Any) -> Iterator[tuple[str, Tensor]]:
    """A model's parameters by name, and of tied ones that are placed apart the first alone."""
    tied = getattr(hf, "all_tied_weights_keys", None) or {}
    apart = devices_of(hf) != {main_device(hf)}
    known = dict(hf.named_parameters())
    for name, parameter in known.items():
        first = known.get(tied.get(name))
        if not (apart and type(first) is type(parameter)):
            yield name, parameter


def check_copies(
    devices: Iterable[torch.device], copy: Callable[[Tensor, torch.device], Tensor] = Tensor.to
) -> None:
    """Copy numbers from each device to each other one, and compare: peer copies of some machines
    change values without an error.

    Raises:
        SelfCheckFailed: they came back changed.
    """
    numbers = torch.arange(_PROBE, dtype=torch.int32)
    for begin, end in permutations(dict.fromkeys(devices), 2):
        back = copy(numbers.to(begin), end).cpu()
        if not torch.equal(back, numbers):
            n = int((back != numbers).sum())
            raise SelfCheckFailed(
                f"A copy from {begin} to {end} changed {n:,} of {_PROBE:,} numbers: no model"
                " can be split over these devices (see whether peer access is broken)."
            )
