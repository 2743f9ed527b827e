"""Sparse autoencoders as featurizers: their features can be exchanged, the error term stays.

    x   = n(h) - b_dec if `centred`, else n(h)         n: the normalisation, see below
    pre = x W_enc + b_enc
    f   = relu(pre)                                                      relu
          relu(pre) where pre > threshold, else 0                        jumprelu
          the largest k of relu(pre), else 0                             topk
          relu(exp(r) x W_enc + b_enc) where x W_enc + b_gate > 0        gated
    h~  = m(f W_dec + b_dec)                            m: n undone

    n(h) = h | sqrt(d) h / |h| (constant_norm_rescale) | (h - mean) / (std + 1e-5) (layer_norm)

m is that of the value that is encoded: features change a base b by m_b((f' - f_b) W_dec), and
`decode`, which knows features alone, gives the values before m.

Weights are arrays, read as data from safetensors (names of SAELens: W_enc, W_dec, b_enc, b_dec,
threshold) or from Gemma Scope's npz files; nothing of a file is run. Folders with a configuration
are read by `mechassay.saes.load_sae`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.features.featurizer import Features, Featurizer, Values
from mechassay.interventions.site import SiteLike, load_site
from mechassay.models.decoder import at_least_fp32

Activation = Literal["relu", "jumprelu", "topk", "gated"]
Architecture = Literal["topk", "jumprelu"]
"""Those that can be trained."""
Normalization = Literal["none", "constant_norm_rescale", "layer_norm"]
EPSILON = 1e-5
"""What SAELens adds to the standard deviation of a value's numbers."""
_NAMES = ("W_enc", "W_dec", "b_enc", "b_dec")


@dataclass(frozen=True, eq=False, repr=False)
class SAE(OneLine, Featurizer):
    """A sparse autoencoder of a site's values.

    Attributes:
        threshold: of "jumprelu", for each feature.
        k: of "topk".
        centred: whether b_dec is taken from values before they are encoded.
        b_gate, r_mag: of "gated", for each feature.
        normalization: what is done to values before, and undone afterwards.
        hook: the site that it was trained on, as `resid.12`; "" where that is not known.
        model: what it was trained on, in the words of its file.

    Raises:
        BadUsage: arrays that do not fit each other; "jumprelu" without thresholds, "topk" without
            k, "gated" without b_gate and r_mag, or one of these with another activation.
    """

    w_enc: Float[Tensor, "d k"]
    w_dec: Float[Tensor, "_ _"]
    b_enc: Float[Tensor, "_"]
    b_dec: Float[Tensor, "_"]
    activation: Activation = "relu"
    threshold: Float[Tensor, "_"] | None = None
    k: int | None = None
    centred: bool = False
    b_gate: Float[Tensor, "_"] | None = None
    r_mag: Float[Tensor, "_"] | None = None
    normalization: Normalization = "none"
    hook: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        one_of("activation of an SAE", self.activation, get_args(Activation))
        one_of("normalization of an SAE", self.normalization, get_args(Normalization))
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
        for name in ("b_gate", "r_mag"):
            if (getattr(self, name) is None) == (self.activation == "gated"):
                raise BadUsage(f"An SAE has {name} if and only if its activation is 'gated'.")
        for name in ("threshold", "b_gate", "r_mag"):
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != (k,):
                raise BadUsage(
                    f"An SAE of {k} features has {name} of shape {(k,)}; got {tuple(array.shape)}."
                )

    @property
    def d_in(self) -> int:
        """Numbers of a value."""
        return self.w_enc.shape[0]

    @property
    def n_features(self) -> int:
        return self.w_enc.shape[1]

    @property
    def decoder(self) -> Float[Tensor, "k d"] | None:
        """The matrix by which features change values; None where that depends on the value."""
        return self.w_dec if self.normalization == "none" else None

    def shown(self) -> dict[str, Any]:
        told: dict[str, Any] = {"d": self.d_in, "n_features": self.n_features}
        told["activation"] = self.activation
        more = {"k": self.k, "hook": self.hook, "model": self.model}
        if self.normalization != "none":
            more["normalization"] = self.normalization
        return told | {name: value for name, value in more.items() if value}

    def check_site(self, site: SiteLike) -> SAE:
        """The SAE, if it may be used at the site: its hook is that of the site, or not known.

        Raises:
            BadUsage: it was trained on another.
        """
        at = load_site(site)
        if self.hook and load_site(self.hook).place != at.place:
            raise BadUsage(f"This SAE was trained on {self.hook}; got the site {at}.")
        return self

    def encode(self, h: Values) -> Features:
        if h.shape[1] != self.d_in:
            raise BadUsage(
                f"This SAE reads values of {self.d_in} numbers; the site's have {h.shape[1]}."
            )
        x = self.normalized(h)
        x = x - self.b_dec.to(h) if self.centred else x
        read = x @ self.w_enc.to(h)
        if self.b_gate is not None and self.r_mag is not None:
            f = (self.r_mag.to(h).exp() * read + self.b_enc.to(h)).relu()
            return f.where(read + self.b_gate.to(h) > 0, torch.zeros_like(f))
        f = (read + self.b_enc.to(h)).relu()
        if self.threshold is not None:
            return f.where(f > self.threshold.to(f), torch.zeros_like(f))
        if self.k is None:
            return f
        top = f.topk(self.k, dim=1)
        return torch.zeros_like(f).scatter(1, top.indices, top.values)

    def decode(self, f: Features) -> Values:
        return f @ self.w_dec.to(f) + self.b_dec.to(f)

    def decode_beside(self, f: Features, h: Values) -> Values:
        """Values of features, in the units of the values h that they stand beside."""
        return self._restored(self.decode(f), h)

    def reconstruct(self, h: Values) -> Values:
        """What the SAE makes of values: h less its error; computed in fp32 at least."""
        wide = at_least_fp32(h)
        return self.decode_beside(self.encode(wide), wide).to(h.dtype)

    def normalized(self, h: Values) -> Values:
        """Values as they are before b_dec and the encoder: n(h)."""
        if self.normalization == "none":
            return h
        if self.normalization == "constant_norm_rescale":
            return h * (self.d_in**0.5 / h.norm(dim=1, keepdim=True))
        return (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + EPSILON)

    def _restored(self, x: Values, h: Values) -> Values:
        if self.normalization == "none":
            return x
        if self.normalization == "constant_norm_rescale":
            return x * (h.norm(dim=1, keepdim=True) / self.d_in**0.5)
        return x * h.std(1, keepdim=True) + h.mean(1, keepdim=True)

    @staticmethod
    def load(
        path: str | Path,
        *,
        activation: Activation | None = None,
        k: int | None = None,
        centred: bool = False,
    ) -> SAE:
        """An SAE from one safetensors or npz file of bare arrays.

        Args:
            activation: "topk" where k is given, else "jumprelu" where the file has thresholds, else
                "relu".

        Raises:
            BadFile: missing, truncated, or without the arrays of an SAE.
        """
        path = Path(path)
        arrays = read_arrays(path)
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


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of a safetensors or npz file by name; no objects of Python are built.

    Raises:
        BadFile: missing, truncated, or of another kind.
    """
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: torch.from_numpy(file[name]) for name in file.files}
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"{path}: not a readable file of arrays ({first_line(error)}).") from None
