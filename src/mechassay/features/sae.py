"""Sparse autoencoders as featurizers: their features can be exchanged, the error term stays.

    pre = (h - b_dec if `centred` else h) W_enc + b_enc
    f   = relu(pre) | pre where pre > threshold, else 0 | the largest k of relu(pre), else 0
    h~  = f W_dec + b_dec

Weights are arrays, read as data from safetensors (names of SAELens: W_enc, W_dec, b_enc, b_dec,
threshold) or from Gemma Scope's npz files; nothing of a file is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.features.featurizer import Features, Featurizer, Values

Activation = Literal["relu", "jumprelu", "topk"]
_NAMES = ("W_enc", "W_dec", "b_enc", "b_dec")


@dataclass(frozen=True, eq=False, repr=False)
class SAE(OneLine, Featurizer):
    """A sparse autoencoder of a site's values.

    Attributes:
        threshold: of "jumprelu", for each feature.
        k: of "topk".
        centred: whether b_dec is taken from values before they are encoded.

    Raises:
        BadUsage: arrays that do not fit each other; "jumprelu" without thresholds or "topk" without
            k.
    """

    w_enc: Float[Tensor, "d k"]
    w_dec: Float[Tensor, "_ _"]
    b_enc: Float[Tensor, "_"]
    b_dec: Float[Tensor, "_"]
    activation: Activation = "relu"
    threshold: Float[Tensor, "_"] | None = None
    k: int | None = None
    centred: bool = False

    def __post_init__(self) -> None:
        one_of("activation of an SAE", self.activation, get_args(Activation))
        d, k = self.w_enc.shape
        found = [tuple(x.shape) for x in (self.w_dec, self.b_enc, self.b_dec)]
        if found != [(k, d), (k,), (d,)]:
            raise BadUsage(
                f"An SAE with W_enc of shape {(d, k)} has W_dec, b_enc and b_dec of shapes"
                f" {(k, d)}, {(k,)}, {(d,)}; got {', '.join(map(str, found))}."
            )
        if (self.threshold is None) == (self.activation == "jumprelu"):
            raise BadUsage("An SAE has thresholds if and only if its activation is 'jumprelu'.")
        if (self.k is None) == (self.activation == "topk"):
            raise BadUsage("An SAE has k if and only if its activation is 'topk'.")
        if self.k is not None and not 1 <= self.k <= k:
            raise BadUsage(f"An SAE of {k} features keeps 1 to {k}; got k={self.k}.")

    @property
    def decoder(self) -> Float[Tensor, "k d"]:
        return self.w_dec

    def encode(self, h: Values) -> Features:
        h = h - self.b_dec.to(h) if self.centred else h
        pre = h @ self.w_enc.to(h) + self.b_enc.to(h)
        if self.threshold is not None:
            return pre.where(pre > self.threshold.to(pre), torch.zeros_like(pre))
        f = pre.relu()
        if self.k is None:
            return f
        top = f.topk(self.k, dim=1)
        return torch.zeros_like(f).scatter(1, top.indices, top.values)

    def decode(self, f: Features) -> Values:
        return f @ self.w_dec.to(f) + self.b_dec.to(f)

    @staticmethod
    def load(
        path: str | Path,
        *,
        activation: Activation | None = None,
        k: int | None = None,
        centred: bool = False,
    ) -> SAE:
        """An SAE from a safetensors or npz file.

        Args:
            activation: "topk" where k is given, else "jumprelu" where the file has thresholds, else
                "relu".

        Raises:
            BadFile: missing, truncated, or without the arrays of an SAE.
        """
        path = Path(path)
        arrays = _arrays(path)
        lacking = [name for name in _NAMES if name not in arrays]
        if lacking:
            raise BadFile(f"{path}: no SAE: it lacks {', '.join(lacking)}.")
        threshold = arrays.get("threshold")
        guess = "topk" if k is not None else "relu" if threshold is None else "jumprelu"
        kind = activation or guess
        try:
            return SAE(
                *(arrays[name] for name in _NAMES),
                activation=kind,
                threshold=threshold if kind == "jumprelu" else None,
                k=k,
                centred=centred,
            )
        except BadUsage as error:
            raise BadFile(f"{path}: {error}") from None


def _arrays(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: torch.from_numpy(file[name]) for name in file.files}
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"{path}: not a readable file of arrays ({first_line(error)}).") from None
