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

Files of other projects are read as data, and nothing of a file is run: folders with a
configuration (`load_sae`), and arrays alone in safetensors or npz files (`SAE.load`; names of
SAELens: W_enc, W_dec, b_enc, b_dec, threshold). One format, SAELens's, is written (`save_sae`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.features.featurizer import Features, Featurizer, Values
from mechassay.interventions.site import SiteLike, load_site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.origin import DIGESTS, NAME
from mechassay.models.weight_files import load_archive
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine
from mechassay.utils.files import read_json, write_bytes, write_text

if TYPE_CHECKING:
    from mechassay.models.model import Model

Activation = Literal["relu", "jumprelu", "topk", "gated"]
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
        hook: what it was trained on, as `resid.12`, or another project's name; "" where that is
            not known.
        model: which model it was trained on, in the words of its file.
        identity: the digests of that model, see `models.origin`; empty if they are not known.
        mean_free: whether the mean of a value's numbers is taken from it first, and added to what
            is decoded: it was trained in a LayerNorm model whose writing weights were centred.
        first: the first token of a text that it was trained on.

    Raises:
        BadUsage: arrays that do not fit each other; "jumprelu" without thresholds, "topk" without
            k, "gated" without b_gate and r_mag, or one of these with another activation.
    """

    obtained_by: ClassVar[str] = "saes.load_sae(path) loads one."

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
    identity: Mapping[str, str] = field(default_factory=dict)
    mean_free: bool = False
    first: int = 0

    def __post_init__(self) -> None:
        one_of("activation of an SAE", self.activation, get_args(Activation))
        one_of("normalization of an SAE", self.normalization, get_args(Normalization))
        d, k = self.w_enc.shape
        shapes = [tuple(x.shape) for x in (self.w_dec, self.b_enc, self.b_dec)]
        if shapes != [(k, d), (k,), (d,)]:
            raise BadUsage(
                f"An SAE with W_enc of shape {(d, k)} has W_dec, b_enc and b_dec of shapes"
                f" {(k, d)}, {(k,)}, {(d,)}; got {', '.join(map(str, shapes))}."
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

    @property
    def provenance(self) -> dict[str, Any]:
        """The model that it was trained on, as `models.origin` reads it."""
        return {NAME: self.model, DIGESTS: self.identity}

    def repr_fields(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"d": self.d_in, "n_features": self.n_features}
        facts["activation"] = self.activation
        more = {"k": self.k, "hook": self.hook, "model": self.model}
        if self.normalization != "none":
            more["normalization"] = self.normalization
        return facts | {name: value for name, value in more.items() if value}

    @checked
    def check_site(self, site: SiteLike, model: Model | None = None) -> SAE:
        """Return the SAE if it was trained on this site, or if its site is not known.

        Args:
            model: the model in which the SAE is used. The SAE's hook may mean another tensor in
                this model, see `Site.check`.

        Raises:
            BadUsage: the SAE was trained on another site, on a place that is not a site, or in a
                model that TransformerLens changes in another way.
        """
        at = load_site(site)
        if self.mean_free and model is not None and not model.decoder.final_norm.centred:
            raise BadUsage(
                "This SAE was trained in a model whose writing weights were centred, which"
                f" TransformerLens does for LayerNorm models alone; {model.name} has RMSNorms."
            )
        if not self.hook:
            return self
        try:
            own = load_site(self.hook)
        except BadUsage:
            raise BadUsage(
                f"This SAE was trained on {self.hook}, which is no site here; got {at}."
            ) from None
        if model is not None:
            own.check(model)
        if own.place != at.place:
            raise BadUsage(f"This SAE was trained on {self.hook}; got the site {at}.")
        return self

    def encode(self, h: Values) -> Features:
        if h.shape[1] != self.d_in:
            raise BadUsage(
                f"This SAE reads values of {self.d_in} numbers; the site's have {h.shape[1]}."
            )
        # Thresholds decide in fp32: in 16 bits some features would switch.
        h = at_least_fp32(h)
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
        x, mean = self.decode(f), h.mean(1, keepdim=True)
        if self.mean_free:
            h = h - mean
        if self.normalization == "constant_norm_rescale":
            x = x * (h.norm(dim=1, keepdim=True) / self.d_in**0.5)
        if self.normalization == "layer_norm":
            x = x * h.std(1, keepdim=True) + h.mean(1, keepdim=True)
        return x + mean if self.mean_free else x

    def reconstruct(self, h: Values) -> Values:
        """What the SAE makes of values: h less its error; computed in fp32 at least."""
        wide = at_least_fp32(h)
        return self.decode_beside(self.encode(wide), wide).to(h.dtype)

    def normalized(self, h: Values) -> Values:
        """Values as they are before b_dec and the encoder: n(h)."""
        if self.mean_free:
            h = h - h.mean(1, keepdim=True)
        if self.normalization == "none":
            return h
        if self.normalization == "constant_norm_rescale":
            return h * (self.d_in**0.5 / h.norm(dim=1, keepdim=True))
        return (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + EPSILON)

    @staticmethod
    @checked
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


LAYOUT = "6.0.0"
"""The first version of SAELens whose cfg.json has the layout that is written here."""
ARCHITECTURES = ("standard", "gated", "jumprelu", "topk")
NORMALIZATIONS = ("none", "constant_norm_rescale", "layer_norm")
SCALED = "expected_average_only_in"
DICTIONARIES = (
    "AutoEncoder",
    "AutoEncoderNew",
    "GatedAutoEncoder",
    "AutoEncoderTopK",
    "BatchTopKSAE",
    "MatryoshkaBatchTopKSAE",
    "JumpReluAutoEncoder",
)
Arrays = Mapping[str, Tensor]


@checked
def load_sae(path: str | Path, *, norm_scale: float | None = None) -> SAE:
    """An SAE from a folder, or a file, of any of these formats, in fp32.

        SAELens              cfg.json, sae_weights.safetensors   standard, gated, jumprelu, topk
        Gemma Scope          params.npz                          jumprelu
        Gemma Scope 2        params.safetensors, config.json     jumprelu
        sparsify             cfg.json, sae.safetensors           topk
        dictionary_learning  ae.pt, config.json                  standard, gated, jumprelu, topk
        Llama Scope          hyperparams.json,                   jumprelu, topk, relu
                             checkpoints/final.safetensors

    Features are those that each project's own `encode` gives. So these scales are folded into
    weights:

    - `rescale_acts_by_decoder_norm` of SAELens: pre and f in units in which rows of W_dec have
      norm 1;
    - gated and jumprelu SAEs of dictionary_learning have their features in these units too;
    - `expected_average_only_in` of SAELens: values times a factor s, which its files do not
      hold (`norm_scale`): W_enc s, W_dec / s, b_dec / s.

    A BatchTopK SAE is one of jumprelu with one threshold for all features. PyTorch archives are
    read with weights_only. Only files of these names in the folder given are opened.

    Args:
        path: the folder with the files above, one of these files, or one safetensors or npz
            file of bare arrays (see `SAE.load`).
        norm_scale: the factor of values, of SAELens's `expected_average_only_in`.

    Raises:
        BadFile: none of these formats, an architecture that is not read, arrays that are
            missing or do not fit; nothing of a file is run.
        BadUsage: `norm_scale` where the format has none, or not where it is needed.
    """
    path = Path(path)
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name)
    if not path.exists():
        raise BadFile(f"{path}: there is no such file or folder.")
    held = {file for file in READERS if (folder / file).is_file() and name in ("", file)}
    if not held and path.is_file() and path.suffix in (".safetensors", ".npz"):
        return _finished(SAE.load(path), path)
    if len(held) != 1:
        _refuse(path, folder, held, name)
    [weights] = held
    _check_scale(folder, weights, norm_scale)
    try:
        return _finished(READERS[weights](folder, norm_scale), path)
    except BadUsage as error:  # Arrays that do not fit each other.
        raise BadFile(f"{path}: {error}") from None


def _finished(sae: SAE, path: Path) -> SAE:
    for array in ("w_enc", "w_dec", "b_enc", "b_dec", "threshold", "b_gate", "r_mag"):
        held = getattr(sae, array)
        if held is not None and not bool(torch.isfinite(held).all()):
            raise BadFile(f"{path}: {array} has NaN or infinite values.")
    return sae


def _check_scale(folder: Path, weights: str, norm_scale: float | None) -> None:
    """Refuse a factor of values that is not needed, and none where it is."""
    config = read_json(folder / "cfg.json") if weights == "sae_weights.safetensors" else {}
    scaled = config.get("normalize_activations") in (SCALED, True)
    if scaled and norm_scale is None:
        raise BadUsage(
            f"{folder}: values are scaled by a factor ({SCALED}), which its files do not hold: pass"
            " norm_scale, the square root of d_in over the mean norm of values in training."
        )
    if norm_scale is not None and not (scaled and norm_scale > 0):
        raise BadUsage(
            f"{folder}: norm_scale is a positive number, for SAEs of SAELens with {SCALED}; got"
            f" {norm_scale!r}."
        )


def _refuse(path: Path, folder: Path, held: set[str], name: str) -> None:
    if held:
        raise BadFile(f"{path}: has files of several SAEs ({', '.join(sorted(held))}); name one.")
    names = [name] if name else sorted(x.name for x in folder.iterdir())
    some = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    raise BadFile(
        f"{path}: no SAE: there is {some or 'nothing'}; what is read is {', '.join(READERS)}, with"
        " cfg.json or config.json beside it, and .safetensors or .npz files of bare arrays."
    )


# --- one reader a format --------------------------------------------------------------------------


def read_saelens(folder: Path, norm_scale: float | None = None) -> SAE:
    """cfg.json and sae_weights.safetensors, of SAELens 6 and of versions before."""
    path = folder / "cfg.json"
    config = read_json(path)
    about = config.get("metadata")
    about = about if isinstance(about, dict) else config
    arrays = _arrays(folder / "sae_weights.safetensors")
    kwargs = config.get("activation_fn_kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    function = config.get("activation_fn", config.get("activation_fn_str", "relu"))
    kind = str(config.get("architecture", "standard"))
    if kind == "standard" and function == "topk":  # before version 6
        kind = "topk"
    _one_of(path, "architecture", kind, ARCHITECTURES)
    if kind == "standard" and function != "relu":
        raise BadFile(f"{path}: the activation function {function!r}; relu and topk are read.")
    for name in ("scaling_factor", "finetuning_scaling_factor"):
        if name in arrays and not bool((arrays[name] == 1).all()):
            raise BadFile(f"{path}: an SAE with {name}, which is not read.")
    normalization, scale = config.get("normalize_activations") or "none", 1.0
    if normalization in (SCALED, True):
        normalization, scale = "none", 1.0 if norm_scale is None else norm_scale
    _one_of(path, "normalize_activations", str(normalization), NORMALIZATIONS)
    gated = kind == "gated"
    hook = _hook(about.get("site") or about.get("hook_name", about.get("hook_point", "")))
    sae = _made(
        folder,
        {**arrays, "b_enc": arrays["b_mag"]} if gated and "b_mag" in arrays else arrays,
        kind,
        k=config.get("k", kwargs.get("k")),
        centred=bool(config.get("apply_b_dec_to_input", True)),
        normalization=normalization,
        hook=hook,
        model=str(about.get("model_name") or ""),
        identity=_identity_in(about),
        mean_free=_mean_free(path, about.get("model_from_pretrained_kwargs"), hook),
        first=_first_token(path, about),
    )
    if bool(config.get("rescale_acts_by_decoder_norm", False)) and kind == "topk":
        sae = _in_decoder_norms(sae)
    if scale == 1.0:
        return sae
    w_enc, w_dec, b_dec = sae.w_enc * scale, sae.w_dec / scale, sae.b_dec / scale
    # b_dec is taken from values in their own units now, and W_enc scales the difference.
    return replace(sae, w_enc=w_enc, w_dec=w_dec, b_dec=b_dec)


_WITHOUT_EFFECT = {
    *("fold_ln", "center_unembed", "dtype", "torch_dtype", "device", "n_devices", "n_ctx"),
    *("move_to_device", "default_prepend_bos", "default_padding_side", "first_n_layers"),
    *("revision", "checkpoint_index", "checkpoint_value", "cache_dir", "trust_remote_code"),
}
"""Settings of TransformerLens's loading that leave the values of our sites as they are."""


def _mean_free(path: Path, kwargs: Any, hook: str) -> bool:
    """Return whether an SAE reads values less their mean, by its model's changes on loading.

    Raises:
        BadFile: a change that alters the site's values in another way.
    """
    changes = kwargs if isinstance(kwargs, dict) else {}
    of_heads = hook.startswith("heads.")
    others = {name for name, value in changes.items() if value not in (None, False)}
    others -= _WITHOUT_EFFECT | {"center_writing_weights"}
    if not of_heads:
        others -= {"fold_value_biases", "refactor_factored_attn_matrices"}
    if others:
        raise BadFile(
            f"{path}: an SAE of a model that was changed on loading ({', '.join(sorted(others))}),"
            " which is not read."
        )
    return bool(changes.get("center_writing_weights")) and not of_heads


def _first_token(path: Path, about: Mapping[str, Any]) -> int:
    """Return the first token that an SAE of SAELens was trained on; 1 without special tokens.

    Raises:
        BadFile: a slice of positions that does not go to the end.
    """
    positions = about.get("seqpos_slice") or [None]
    first = 0
    if isinstance(positions, list) and len(positions) == 2 and type(positions[0]) is int:
        first = positions[0]
    if first < 0 or positions not in ([None], [None, None], [first, None]):
        raise BadFile(f"{path}: an SAE of the positions {positions!r}, which is not read.")
    return max(first, int(bool(about.get("exclude_special_tokens"))))


def read_gemma_scope(folder: Path, norm_scale: float | None = None) -> SAE:
    """params.npz; the path says which layer it is of."""
    arrays = _arrays(folder / "params.npz")
    parts = str(folder.absolute())
    layer = re.search(r"(?:^|[/\\])layer_(\d+)(?=[/\\]|$)", parts)
    kinds = {"res": "resid", "att": "heads", "mlp": "mlp"}
    kind = re.search(r"gemma-scope-[\w.]+-[pi]t-(res|att|mlp)(?=[/\\]|$|-)", parts)
    hook = f"{kinds[kind[1]]}.{layer[1]}" if layer and kind else ""
    if re.search(r"(?:^|[/\\])embedding(?=[/\\]|$)", parts):
        # They read embeddings before Gemma multiplies these by the root of their width.
        root = arrays["W_enc"].shape[0] ** 0.5 if "W_enc" in arrays else 1.0
        scales = {"W_enc": 1 / root, "W_dec": root, "b_dec": root}
        arrays = {name: x * scales.get(name, 1.0) for name, x in arrays.items()}
        hook = "resid.-1"
    return _made(folder, arrays, "jumprelu", hook=hook)


def read_gemma_scope_2(folder: Path, norm_scale: float | None = None) -> SAE:
    """params.safetensors, and config.json where it is there."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {"architecture": "jump_relu"}
    arrays = _arrays(folder / "params.safetensors")
    _one_of(path, "architecture", str(config.get("architecture")), ("jump_relu",))
    reads, writes = config.get("hf_hook_point_in"), config.get("hf_hook_point_out")
    if "affine_skip_connection" in arrays or (writes is not None and writes != reads):
        raise BadFile(f"{folder}: a transcoder; autoencoders are read.")
    hook = _hook(reads)
    return _made(folder, arrays, "jumprelu", hook=hook, model=str(config.get("model_name") or ""))


def read_sparsify(folder: Path, norm_scale: float | None = None) -> SAE:
    """cfg.json and sae.safetensors; the folder is named after the module that it is of."""
    path = folder / "cfg.json"
    config = read_json(path)
    for name in ("transcode", "skip_connection", "embed_skip", "gram_lookup", "signed"):
        if config.get(name):
            raise BadFile(f"{path}: an SAE with {name}, which is not read.")
    _one_of(path, "activation", str(config.get("activation", "topk")), ("topk",))
    arrays = _arrays(folder / "sae.safetensors")
    # b_dec is always taken from the input, whether decoders are normalised or not.
    name = folder.absolute().name
    hook = _hook(name) if re.match(r"(layers|h)[._]\d|embed_tokens$", name) else ""
    return _made(folder, arrays, "topk", k=config.get("k", 32), centred=True, hook=hook)


def read_dictionary_learning(folder: Path, norm_scale: float | None = None) -> SAE:
    """ae.pt, an archive of tensors alone, and config.json."""
    path = folder / "config.json"
    config = read_json(path)
    trainer = config.get("trainer")
    if not isinstance(trainer, dict):
        raise BadFile(f"{path}: has no object `trainer`, as dictionary_learning writes it.")
    kind = _one_of(path, "dict_class", str(trainer.get("dict_class")), DICTIONARIES)
    held = load_archive(folder / "ae.pt")
    if not isinstance(held, dict) or not all(isinstance(x, Tensor) for x in held.values()):
        raise BadFile(f"{folder / 'ae.pt'}: no dictionary of tensors.")
    arrays = {str(name): _plain(x) for name, x in held.items()}
    for theirs in ("bias", "decoder_bias", "decoder.bias"):
        if theirs in arrays and "b_dec" not in arrays:
            arrays["b_dec"] = arrays[theirs]
    for theirs, ours in (("mag_bias", "b_enc"), ("gate_bias", "b_gate")):
        if theirs in arrays:
            arrays[ours] = arrays[theirs]
    hook = _trained_on(trainer.get("layer"), str(trainer.get("submodule_name") or ""))
    about = {"hook": hook, "model": str(trainer.get("lm_name") or "")}
    if kind == "AutoEncoderTopK":
        # Its archive also has a threshold, which its own encode leaves alone.
        k = arrays["k"].item() if "k" in arrays else trainer.get("k")
        return _made(folder, arrays, "topk", k=k, centred=True, **about)
    if kind in ("BatchTopKSAE", "MatryoshkaBatchTopKSAE"):
        return _made(folder, arrays, "jumprelu", centred=True, **about)
    if kind == "GatedAutoEncoder":
        return _in_decoder_norms(_made(folder, arrays, "gated", centred=True, **about))
    if kind == "JumpReluAutoEncoder":
        return _in_decoder_norms(_made(folder, arrays, "jumprelu", **about))
    return _made(folder, arrays, "standard", centred=kind == "AutoEncoder", **about)


def read_llama_scope(folder: Path, norm_scale: float | None = None) -> SAE:
    """hyperparams.json and checkpoints/final.safetensors, of Llama Scope and what OpenMOSS trains.

    Its encoder sees values times s = sqrt(d) / their mean norm. As in its mode for inference,
    features are in the units of the values: s is folded into biases and thresholds.
    """
    path = folder / "hyperparams.json"
    config = read_json(path)
    reads, writes = config.get("hook_point_in"), config.get("hook_point_out")
    if writes is not None and writes != reads:
        raise BadFile(f"{folder}: a transcoder, from {reads} to {writes}; autoencoders are read.")
    if config.get("use_glu_encoder"):
        raise BadFile(f"{path}: an SAE with use_glu_encoder, which is not read.")
    normalizes = str(config.get("norm_activation", "inference"))
    _one_of(path, "norm_activation", normalizes, ("dataset-wise", "token-wise", "inference"))
    arrays = _arrays(folder / "checkpoints" / "final.safetensors")
    if "decoder.weight" not in arrays:
        raise BadFile(f"{folder}: an SAE that lacks decoder.weight.")
    d, n_features = arrays["decoder.weight"].shape
    scale = 1.0
    if normalizes == "dataset-wise":
        norms = config.get("dataset_average_activation_norm")
        norm = norms.get("in", norms.get(reads)) if isinstance(norms, dict) else norms
        if isinstance(norm, bool) or not isinstance(norm, int | float) or not norm > 0:
            raise BadFile(f"{path}: dataset_average_activation_norm is {norm!r}, no norm.")
        scale = d**0.5 / norm
    threshold = config.get("jump_relu_threshold") or 0.0
    kind = _one_of(path, "act_fn", str(config.get("act_fn")), ("jumprelu", "topk", "relu"))
    if kind == "topk" and threshold > 0:  # After training it is taken to be this one.
        kind = "jumprelu"
    logs = arrays.get("log_jumprelu_threshold")
    thresholds = (
        torch.full((n_features,), float(threshold), dtype=torch.float32)
        if logs is None
        else logs.exp()
    )
    arrays["b_dec"] = arrays.get("decoder.bias", torch.zeros(d, dtype=torch.float32))
    arrays["threshold"] = thresholds.expand(n_features).clone()
    sae = _made(
        folder,
        arrays,
        "standard" if kind == "relu" else kind,
        k=config.get("top_k"),
        centred=bool(config.get("apply_decoder_bias_to_pre_encoder", False)),
        normalization="constant_norm_rescale" if normalizes == "token-wise" else "none",
        hook=_hook(reads),
        model=str(config.get("model_name") or ""),
    )
    if config.get("sparsity_include_decoder_norm", True):
        # Thresholds are for features in units of their decoder rows' norms already.
        kept, sae = sae.threshold, _in_decoder_norms(sae)
        sae = sae if kept is None else replace(sae, threshold=kept)
    held = None if sae.threshold is None else sae.threshold / scale
    return replace(sae, b_enc=sae.b_enc / scale, b_dec=sae.b_dec / scale, threshold=held)


READERS: Mapping[str, Callable[[Path, float | None], SAE]] = {
    "sae_weights.safetensors": read_saelens,
    "params.npz": read_gemma_scope,
    "params.safetensors": read_gemma_scope_2,
    "sae.safetensors": read_sparsify,
    "ae.pt": read_dictionary_learning,
    "checkpoints/final.safetensors": read_llama_scope,
}
"""By the file that has the weights."""


# --- what readers share ---------------------------------------------------------------------------


def _arrays(path: Path) -> dict[str, Tensor]:
    """Arrays by the names of SAELens, in fp32."""
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    arrays = read_arrays(path)
    return {name: _plain(x) for name, x in arrays.items()}


def _plain(x: Tensor) -> Tensor:
    return x.detach().float() if x.is_floating_point() and x.dtype != torch.float64 else x.detach()


def _made(folder: Path, arrays: Arrays, kind: str, **settings: Any) -> SAE:
    """An SAE of arrays, under any of the names that the formats have for them."""
    named = dict(arrays)
    for theirs, ours in (("w_enc", "W_enc"), ("w_dec", "W_dec"), ("encoder.bias", "b_enc")):
        if theirs in named and ours not in named:
            named[ours] = named[theirs]
    for theirs, ours in (("encoder.weight", "W_enc"), ("decoder.weight", "W_dec")):
        if theirs in named and ours not in named:
            named[ours] = named[theirs].mT.contiguous()
    extra = {"gated": ("b_gate", "r_mag"), "jumprelu": ("threshold",)}.get(kind, ())
    wanted = ("W_enc", "W_dec", "b_enc", "b_dec", *extra)
    lacking = [name for name in wanted if name not in named]
    if lacking:
        raise BadFile(f"{folder}: a {kind} SAE that lacks {', '.join(lacking)}.")
    for name, n in {
        "W_enc": 2,
        "W_dec": 2,
        "b_enc": 1,
        "b_dec": 1,
        "b_gate": 1,
        "r_mag": 1,
    }.items():
        if name in wanted and (named[name].ndim != n or not named[name].is_floating_point()):
            raise BadFile(f"{folder}: {name} is no array of {n} dimensions of numbers.")
    if kind == "jumprelu" and named["threshold"].ndim == 0:  # of BatchTopK, one for all
        named["threshold"] = named["threshold"].expand(len(named["b_enc"])).clone()
    k = settings.pop("k", None)
    if kind == "topk" and (isinstance(k, bool) or not isinstance(k, int | float) or k != int(k)):
        raise BadFile(f"{folder}: a topk SAE whose k is {k!r}; expected a number.")
    return SAE(
        *(named[name] for name in wanted[:4]),
        activation="relu" if kind == "standard" else kind,  # pyright: ignore[reportArgumentType]
        k=int(k) if kind == "topk" else None,
        **{name: named[name] for name in extra},
        **settings,
    )


def _in_decoder_norms(sae: SAE) -> SAE:
    """The SAE whose features are |row of W_dec| times as large, and that decodes to the same."""
    norms = sae.w_dec.norm(dim=1)
    norms = norms.where(norms > 0, torch.ones_like(norms))
    if sae.r_mag is not None:
        # The gate stays: it reads the same encoder.
        scaled = {"r_mag": sae.r_mag + norms.log(), "b_enc": sae.b_enc * norms}
    else:
        scaled = {"w_enc": sae.w_enc * norms, "b_enc": sae.b_enc * norms}
    if sae.threshold is not None:
        scaled["threshold"] = sae.threshold * norms
    return replace(sae, w_dec=sae.w_dec / norms[:, None], **scaled)


def _one_of(path: Path, what: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise BadFile(
            f"{path}: the {what} {given!r}; those that are read are {', '.join(allowed)}."
        )
    return given


_PARTS = {
    "output": "resid",
    "self_attn.o_proj.input": "heads",
    "post_feedforward_layernorm.output": "mlp",
}


def _hook(name: Any) -> str:
    """A site's spelling for a hook of theirs, without a position; their own name where we have no
    such site, and of outputs of MLPs, as these are another tensor in some models.
    """
    text = str(name or "")
    module = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)", text)
    if module is not None:  # Gemma Scope 2
        part = _PARTS.get(module[2])
        return f"{part}.{module[1]}" if part else text
    if text == "embed_tokens" or text == "hook_embed":
        return "resid.-1"
    layers = re.fullmatch(r"layers[._](\d+)(\.mlp)?", text)
    if layers is not None:  # sparsify
        return f"mlps_output[{layers[1]}]" if layers[2] else f"resid.{layers[1]}"
    try:
        site = load_site(text)
        named = site.part == "mlp" and site.foreign
        return site.foreign if named else str(site).partition("@")[0]
    except BadUsage:
        return text


def _trained_on(layer: Any, module: str) -> str:
    """The site of dictionary_learning's layer: the stream after it, if nothing else is said."""
    if not isinstance(layer, int):
        return module
    if module and not module.startswith(("resid", "mlp")):
        return f"{module} of layer {layer}"
    return f"mlps_output[{layer}]" if module.startswith("mlp") else f"resid.{layer}"


# --- writing --------------------------------------------------------------------------------------


@checked
def save_sae(
    sae: SAE,
    folder: str | Path,
    *,
    site: SiteLike | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write an SAE in SAELens's layout, which its own `SAE.load_from_disk` reads.

    Args:
        site: where it was trained, if the SAE does not say so itself.
        provenance: how it came about; it is kept in the configuration's metadata.

    Returns:
        The folder.

    Raises:
        BadUsage: a site that TransformerLens has no name for.
    """
    foreign, at = "", None
    if site is not None:
        at = load_site(site)
    elif sae.hook:
        try:
            at = load_site(sae.hook)
        except BadUsage:
            foreign = sae.hook
    arrays: dict[str, Tensor] = {"W_enc": sae.w_enc, "W_dec": sae.w_dec, "b_dec": sae.b_dec}
    arrays["b_mag" if sae.activation == "gated" else "b_enc"] = sae.b_enc
    for name in ("threshold", "b_gate", "r_mag"):
        if getattr(sae, name) is not None:
            arrays[name] = getattr(sae, name)
    kept = {**(provenance or {}), **({DIGESTS: dict(sae.identity)} if sae.identity else {})}
    metadata = {
        "sae_lens_version": LAYOUT,
        "model_name": sae.model or None,
        # SAELens would read a hook of an MLP as another tensor in some models.
        "hook_name": (foreign or None if at is None or at.part == "mlp" else at.transformer_lens()),
        **({} if at is None else {"site": at.foreign or str(at).partition("@")[0]}),
        "model_from_pretrained_kwargs": {"center_writing_weights": sae.mean_free},
        "seqpos_slice": [sae.first, None],
        **({"mechassay": kept} if kept else {}),
    }
    config = {
        "architecture": "standard" if sae.activation == "relu" else sae.activation,
        "d_in": sae.d_in,
        "d_sae": sae.n_features,
        "dtype": str(sae.w_enc.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": sae.centred,
        "normalize_activations": sae.normalization,
        "reshape_activations": "hook_z" if at is not None and at.part == "heads" else "none",
        **({"k": sae.k} if sae.k is not None else {}),
        "metadata": metadata,
    }
    folder = Path(folder)
    held = {name: x.detach().cpu().contiguous() for name, x in arrays.items()}
    write_bytes(folder / "sae_weights.safetensors", save(held))
    write_text(folder / "cfg.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
    return folder


@checked
def provenance_of(folder: str | Path) -> dict[str, Any]:
    """What `save_sae` kept of how an SAE came about; empty for SAEs of others.

    Raises:
        BadFile: there is no readable cfg.json.
    """
    about = read_json(Path(folder) / "cfg.json").get("metadata")
    return _kept_in(about) if isinstance(about, dict) else {}


def _kept_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `save_sae` keeps in the metadata of a configuration."""
    kept = metadata.get("mechassay")
    return dict(kept) if isinstance(kept, dict) else {}


def _identity_in(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the model that an SAE was trained on; empty if they are not there."""
    digests = _kept_in(metadata).get(DIGESTS)
    return {str(k): str(v) for k, v in digests.items()} if isinstance(digests, dict) else {}
