"""Non-linear features as data: declared layers there and back, whose inverse is checked.

    f = encoder(h)        h = inverse(f)        each a list of layers, done one after the other

    linear NAME              x W' + b, with NAME.weight [out, in] and NAME.bias [out] in the file
    leaky_relu SLOPE         x where positive, else SLOPE x       (its inverse: 1 / SLOPE)
    sinh, asinh, tanh, atanh, relu, gelu

So a method may hand in a featurizer that is no rotation without handing in code (Mueller et al.
2025, section 4.1, ask for an invertible F and run what is handed in). A folder has

    featurizer.json          {"encoder": ["linear a", "leaky_relu 0.5"], "inverse": [...],
                              "scale": 1.0}
    featurizer.safetensors   the arrays

The inverse is tried on `DRAWS` values, normal with the standard deviation `scale`: an error of more
than `TOLERANCE` of a value's length is refused, with the largest one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.features.featurizer import Features, Featurizer, Values
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine
from mechassay.utils.files import read_json

DRAWS = 512
TOLERANCE = 1e-3
_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sinh": torch.sinh,
    "asinh": torch.asinh,
    "tanh": torch.tanh,
    "atanh": torch.atanh,
    "relu": torch.relu,
    "gelu": F.gelu,
}
_LAYERS = ("linear", "leaky_relu", *_FUNCTIONS)


@dataclass(frozen=True, eq=False, repr=False)
class FeedForward(OneLine, Featurizer):
    """Declared layers and their inverse; see the module. `load` reads them from a folder.

    Attributes:
        weights: those of all linear layers one after the other, each its matrix, then its bias.
        encoder, inverse: layers; a linear one as "linear IN OUT".
        scale: standard deviation of the values that the inverse is tried on.

    Raises:
        BadUsage: a layer that is not known, widths that do not meet, too few or too many weights,
            or an inverse that does not invert; the message has the error.
    """

    weights: Float[Tensor, "n"]
    encoder: Sequence[str]
    inverse: Sequence[str]
    scale: float = 1.0

    def __post_init__(self) -> None:
        width, n_features, n_encoder = _widths("encoder", self.encoder)
        back_in, back_out, n_inverse = _widths("inverse", self.inverse)
        if (back_in, back_out) != (n_features, width):
            raise BadUsage(
                f"The encoder makes {n_features} features of {width} numbers; its inverse makes"
                f" {back_out} numbers of {back_in} features."
            )
        if self.weights.shape != (n_encoder + n_inverse,) or not self.weights.is_floating_point():
            raise BadUsage(
                f"The layers have {n_encoder + n_inverse:,} weights; got"
                f" {tuple(self.weights.shape)}."
            )
        if not bool(torch.isfinite(self.weights).all()):
            raise BadUsage("Weights must be finite; got NaN or infinity.")
        generator = torch.Generator().manual_seed(0)
        values = self.scale * torch.randn(DRAWS, width, generator=generator, dtype=torch.float32)
        error = self.error(values)
        if not error <= TOLERANCE:
            raise BadUsage(
                f"The inverse does not invert: of {DRAWS} values with a standard deviation of"
                f" {self.scale:g} the worst comes back with an error of {error:.3g} of its length;"
                f" {TOLERANCE:g} is allowed."
            )

    @property
    def width(self) -> int:
        """Numbers of a value."""
        return _widths("encoder", self.encoder)[0]

    @property
    def n_features(self) -> int:
        return _widths("encoder", self.encoder)[1]

    def error(self, values: Values) -> float:
        """The largest distance of a value from what its features decode to, over its length."""
        back = self.decode(self.encode(values))
        return float(((back - values).norm(dim=-1) / values.norm(dim=-1)).max())

    def encode(self, h: Values) -> Features:
        return _run(self.encoder, h, self.weights.to(h))

    def decode(self, f: Features) -> Values:
        _, _, first = _widths("encoder", self.encoder)
        return _run(self.inverse, f, self.weights[first:].to(f))

    @staticmethod
    @checked
    def load(folder: str | Path) -> FeedForward:
        """Read featurizer.json and featurizer.safetensors; nothing in them is executed.

        Raises:
            BadFile: they are missing, damaged, or make no featurizer with an inverse.
        """
        path = Path(folder) / "featurizer.json"
        declared = read_json(path)
        unknown = sorted(declared.keys() - {"encoder", "inverse", "scale"})
        if unknown:
            raise BadFile(f"{path}: has {unknown[0]!r}; known are encoder, inverse and scale.")
        try:
            arrays = load_file(Path(folder) / "featurizer.safetensors")
        except (SafetensorError, OSError, ValueError) as error:
            raise BadFile(f"{folder}/featurizer.safetensors: {first_line(error)}") from None
        flat: list[Tensor] = []
        try:
            encoder, inverse = (
                _packed(declared[key], arrays, flat) for key in ("encoder", "inverse")
            )
            weights = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float32)
            return FeedForward(weights, encoder, inverse, float(declared.get("scale", 1.0)))
        except KeyError as error:
            raise BadFile(f"{path}: lacks {error}.") from None
        except (BadUsage, TypeError, ValueError, AttributeError) as error:
            raise BadFile(f"{path}: {first_line(error)}") from None

    @checked
    def write(self, folder: str | Path) -> Path:
        """Write the two files that `load` reads; the folder."""
        from safetensors.torch import save

        from mechassay.utils.files import write_bytes, write_text

        arrays: dict[str, Tensor] = {}
        declared: dict[str, list[str]] = {}
        place = 0
        for side in ("encoder", "inverse"):
            declared[side] = []
            for number, layer in enumerate(getattr(self, side)):
                kind, *numbers = layer.split()
                if kind != "linear":
                    declared[side].append(layer)
                    continue
                n_in, n_out = map(int, numbers)
                matrix, bias, place = _taken(self.weights, place, n_in, n_out)
                arrays[f"{side}.{number}.weight"] = matrix.contiguous().clone()
                arrays[f"{side}.{number}.bias"] = bias.contiguous().clone()
                declared[side].append(f"linear {side}.{number}")
        target = Path(folder)
        write_bytes(target / "featurizer.safetensors", save(arrays))
        text = json.dumps({**declared, "scale": self.scale}, indent=1)
        write_text(target / "featurizer.json", text + "\n")
        return target


def _packed(layers: Sequence[str], arrays: Mapping[str, Tensor], flat: list[Tensor]) -> list[str]:
    """Layers with widths in the place of names; their weights are added to `flat`."""
    packed: list[str] = []
    for layer in layers:
        kind, *rest = layer.split()
        if kind != "linear" or len(rest) != 1:
            packed.append(layer)
            continue
        weight, bias = arrays[f"{rest[0]}.weight"], arrays[f"{rest[0]}.bias"]
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise BadUsage(
                f"{rest[0]} has a weight of {tuple(weight.shape)} and a bias of"
                f" {tuple(bias.shape)}."
            )
        flat += [weight.float().flatten(), bias.float()]
        packed.append(f"linear {weight.shape[1]} {weight.shape[0]}")
    return packed


def _widths(side: str, layers: Sequence[str]) -> tuple[int, int, int]:
    """What layers take and make, and how many weights they have."""
    first, last, n_weights = 0, 0, 0
    for layer in layers:
        kind, *rest = layer.split()
        one_of(f"layer of the {side}", kind, _LAYERS)
        if kind == "leaky_relu" and not (len(rest) == 1 and _slope(rest[0]) > 0):
            raise BadUsage(f"leaky_relu has one slope above 0; got {layer!r}.")
        if kind != "linear":
            if kind != "leaky_relu" and rest:
                raise BadUsage(f"{kind} has no settings; got {layer!r}.")
            continue
        if len(rest) != 2 or not all(part.isdecimal() and int(part) > 0 for part in rest):
            raise BadUsage(f"A linear layer has two widths; got {layer!r}.")
        n_in, n_out = map(int, rest)
        if last and n_in != last:
            raise BadUsage(f"{layer!r} of the {side} follows a layer that makes {last} numbers.")
        first, last = first or n_in, n_out
        n_weights += n_in * n_out + n_out
    if not first:
        raise BadUsage(f"The {side} has no linear layer, which says how wide values are.")
    return first, last, n_weights


def _slope(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _run(layers: Sequence[str], x: Tensor, weights: Tensor) -> Tensor:
    place = 0
    for layer in layers:
        kind, *rest = layer.split()
        if kind == "linear":
            n_in, n_out = map(int, rest)
            matrix, bias, place = _taken(weights, place, n_in, n_out)
            x = F.linear(x, matrix, bias)
        elif kind == "leaky_relu":
            x = F.leaky_relu(x, float(rest[0]))
        else:
            x = _FUNCTIONS[kind](x)
    return x


def _taken(weights: Tensor, place: int, n_in: int, n_out: int) -> tuple[Tensor, Tensor, int]:
    """The matrix and bias of a linear layer, and the place behind them."""
    middle = place + n_in * n_out
    matrix = weights[place:middle].view(n_out, n_in)
    return matrix, weights[middle : middle + n_out], middle + n_out
