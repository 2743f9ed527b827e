"""Models in TransformerLens' layout: attention-only ones, and InterpBench's with MLPs.

    x_0     = W_E[token] + W_pos[position]
    y_l     = x_l + b_O + sum over heads h of  softmax(q_h k_h^T / sqrt(d_head) | causal) v_h W_O[h]
              with q_h = LN(x_l) W_Q[h] + b_Q[h], and k_h and v_h alike
    x_{l+1} = y_l + act(LN(y_l) W_in + b_in) W_out + b_out        (y_l in an attention-only model)
    logits  = LN(x_L) W_U + b_U

A checkpoint is a folder with

    config.json              sizes: n_layers, n_heads, d_model, d_head, n_ctx, d_vocab, and with
                             MLPs d_mlp and act_fn; "attn_only"; no model_type
    *.safetensors, or *.pth  one state dict, that whose name ends in "final" if there are several,
                             with the tensors of `LensConfig.shapes`; b_U may be missing

(Neel Nanda's have the causal mask and the value of masked scores as buffers.) Layer norms have
weight and bias (normalization "LN") or neither ("LNPre"); positions are learned and added once.

`mib-worker/interpbench` (Mueller et al. 2025, appendix F) has its weights and its circuit, but its
sizes in a pickle, which is not opened: they are `INTERPBENCH`.

transformers has no class for these models. `LensModel` is the original that the decoder is checked
against when it is loaded: the equations above as they stand, with no regard to cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mechassay.errors import BadFile, UnsupportedModel
from mechassay.models.decoder import (
    Attention,
    Decoder,
    Layer,
    Mlp,
    Norm,
    Projection,
    at_least_fp32,
)
from mechassay.models.families.weights import activation
from mechassay.models.weight_files import checked_tensor, load_archive

_COMPUTED_HERE: dict[str, Any] = {
    "positional_embedding_type": "standard",
    "shortformer_pos": False,
    "attention_dir": "causal",
    "use_attn_scale": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_local_attn": False,
    "final_rms": False,
    "gated_mlp": False,
    "parallel_attn_mlp": False,
}
"""Settings that change the computation, with the one value that is known here and meant without."""

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
_BUFFERS = ("attn.mask", "attn.IGNORE")
"""Ends of names that checkpoints have for what is no weight."""


_NORMALIZATIONS = ("LN", "LNPre")


@dataclass(frozen=True)
class LensConfig:
    """Sizes of a model, and the hub id of its tokenizer if known.

    Attributes:
        d_mlp: 0 in an attention-only model.
        act_fn: by its name in transformers.
        normalized: whether norms have a weight and a bias.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    n_ctx: int
    d_vocab: int
    ln_eps: float = 1e-5
    tokenizer_name: str | None = None
    d_mlp: int = field(default=0, kw_only=True)
    act_fn: str = "gelu_new"
    normalized: bool = True
    model_type: ClassVar[str] = "transformer-lens"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its name; `unembed.b_U` may be missing."""
        width, bias = (self.d_model,), (self.n_heads, self.d_head)
        split = (self.n_heads, self.d_model, self.d_head)
        shapes: dict[str, tuple[int, ...]] = {
            "embed.W_E": (self.d_vocab, self.d_model),
            "pos_embed.W_pos": (self.n_ctx, self.d_model),
        }
        for layer in range(self.n_layers):
            block = f"blocks.{layer}."
            shapes |= self._norm(f"{block}ln1")
            for slot in "QKV":
                shapes |= {f"{block}attn.W_{slot}": split, f"{block}attn.b_{slot}": bias}
            shapes[f"{block}attn.W_O"] = (self.n_heads, self.d_head, self.d_model)
            shapes[f"{block}attn.b_O"] = width
            if self.d_mlp:
                shapes |= {
                    **self._norm(f"{block}ln2"),
                    f"{block}mlp.W_in": (self.d_model, self.d_mlp),
                    f"{block}mlp.b_in": (self.d_mlp,),
                    f"{block}mlp.W_out": (self.d_mlp, self.d_model),
                    f"{block}mlp.b_out": width,
                }
        return {
            **shapes,
            **self._norm("ln_final"),
            "unembed.W_U": (self.d_model, self.d_vocab),
            "unembed.b_U": (self.d_vocab,),
        }

    def _norm(self, name: str) -> dict[str, tuple[int, ...]]:
        width = (self.d_model,)
        return {f"{name}.w": width, f"{name}.b": width} if self.normalized else {}


INTERPBENCH = LensConfig(
    n_layers=6,
    n_heads=4,
    d_model=64,
    d_head=16,
    n_ctx=1024,
    d_vocab=50257,
    tokenizer_name="gpt2",
    d_mlp=3072,
    normalized=False,
)
"""The sizes of mib-worker/interpbench, by the code that trained it: GPT-2's configuration (norms
folded), with six layers of four heads, 64 wide.
"""
INTERPBENCH_HUB = "mib-worker/interpbench"
INTERPBENCH_WEIGHTS = "ioi_all_splits/ll_model_100_100_80.pth"
INTERPBENCH_GRAPH = "interpbench_graph.json"
"""Its circuit, in EAP-IG's form."""


class Output(NamedTuple):
    """What the model returns, named as transformers names it."""

    logits: Float[Tensor, "batch pos vocab"]


class LensModel(nn.Module):
    """The model by its definition; its parameters have the checkpoint's names.

    `circuit_file` is the circuit that it is known to have, of InterpBench.
    """

    def __init__(self, config: LensConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.circuit_file: Path | None = None
        for name, tensor in weights.items():
            *path, last = name.split(".")
            node: nn.Module = self
            for part in path:
                if part not in dict(node.named_children()):
                    node.add_module(part, nn.Module())
                node = node.get_submodule(part)
            node.register_parameter(last, nn.Parameter(tensor, requires_grad=False))

    def weight(self, name: str) -> Tensor:
        """A tensor by its name in the checkpoint."""
        return self.get_parameter(name).data

    @property
    def unembed_bias(self) -> Tensor | None:
        """`unembed.b_U`, if there is one."""
        return self.weight("unembed.b_U") if hasattr(self.get_submodule("unembed"), "b_U") else None

    def forward(self, tokens: Int[Tensor, "batch pos"], use_cache: bool = False) -> Output:
        """Logits at every position of prompts without padding. There is no cache to use."""
        del use_cache
        n, weight = tokens.shape[1], self.weight
        x = weight("embed.W_E")[tokens] + weight("pos_embed.W_pos")[:n]
        unseen = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        for layer in range(self.config.n_layers):
            block = f"blocks.{layer}.attn"
            y = self._layer_norm(x, f"blocks.{layer}.ln1")
            q, k, v = (
                torch.einsum("bpd,hde->bhpe", y, weight(f"{block}.W_{slot}"))
                + weight(f"{block}.b_{slot}")[:, None]
                for slot in "QKV"
            )
            scores = q @ k.transpose(2, 3) / self.config.d_head**0.5
            scores = at_least_fp32(scores.masked_fill(unseen, float("-inf")))
            z = torch.softmax(scores, dim=-1).to(v.dtype) @ v
            x = (
                x
                + torch.einsum("bhpe,hed->bpd", z, weight(f"{block}.W_O"))
                + weight(f"{block}.b_O")
            )
            if self.config.d_mlp:
                mlp = f"blocks.{layer}.mlp"
                inner = self._layer_norm(x, f"blocks.{layer}.ln2") @ weight(f"{mlp}.W_in")
                inner = activation(self.config.act_fn)(inner + weight(f"{mlp}.b_in"))
                x = x + inner @ weight(f"{mlp}.W_out") + weight(f"{mlp}.b_out")
        logits = self._layer_norm(x, "ln_final") @ weight("unembed.W_U")
        return Output(logits if self.unembed_bias is None else logits + self.unembed_bias)

    def _layer_norm(
        self, x: Float[Tensor, "batch pos d_model"], name: str
    ) -> Float[Tensor, "batch pos d_model"]:
        wide = at_least_fp32(x)
        centred = wide - wide.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + self.config.ln_eps).sqrt()
        scaled = centred / scale
        if self.config.normalized:
            scaled = scaled * self.weight(f"{name}.w") + self.weight(f"{name}.b")
        return scaled.to(x.dtype)


def decode(hf: LensModel) -> Decoder:
    """The decoder of a `LensModel`."""
    config, weight = hf.config, hf.weight

    def norm(name: str) -> Norm:
        if not config.normalized:
            ones = torch.ones_like(weight("unembed.W_U")[:, 0])
            return Norm(ones, None, config.ln_eps, centred=True)
        return Norm(weight(f"{name}.w"), weight(f"{name}.b"), config.ln_eps, centred=True)

    def projection(name: str, slot: str) -> Projection:
        # Copied once: heads stored as [heads, d_model, d_head] cannot be flattened to one matrix.
        stored = weight(f"{name}.W_{slot}").transpose(1, 2).contiguous()
        return Projection(stored, weight(f"{name}.b_{slot}"))

    def layer(block: str) -> Layer:
        attention = Attention(
            norm=norm(f"{block}.ln1"),
            q=projection(f"{block}.attn", "Q"),
            k=projection(f"{block}.attn", "K"),
            v=projection(f"{block}.attn", "V"),
            out=weight(f"{block}.attn.W_O"),
            out_bias=weight(f"{block}.attn.b_O"),
            scale=config.d_head**-0.5,
        )
        if not config.d_mlp:
            return Layer(attention, None)
        mlp = Mlp(
            norm=norm(f"{block}.ln2"),
            up=weight(f"{block}.mlp.W_in").t(),
            up_bias=weight(f"{block}.mlp.b_in"),
            act=activation(config.act_fn),
            down=weight(f"{block}.mlp.W_out").t(),
            down_bias=weight(f"{block}.mlp.b_out"),
        )
        return Layer(attention, mlp)

    return Decoder(
        embedding=weight("embed.W_E"),
        embed_scale=None,
        positions=weight("pos_embed.W_pos"),
        layers=tuple(layer(f"blocks.{number}") for number in range(config.n_layers)),
        final_norm=norm("ln_final"),
        unembedding=weight("unembed.W_U").t(),
        unembed_bias=hf.unembed_bias,
        rotaries={},
    )


# Checkpoints


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is InterpBench's, or has a config.json of TransformerLens' (of any model),
    and not of transformers'.
    """
    if not (folder / "config.json").is_file():
        return is_interpbench(folder)
    read = _read_json(folder / "config.json")
    return (
        isinstance(read, dict)
        and "model_type" not in read
        and {"n_heads", "d_head", "attn_only"} <= read.keys()
    )


def is_interpbench(folder: Path) -> bool:
    """Whether a folder is laid out as mib-worker/interpbench."""
    return (folder / INTERPBENCH_GRAPH).is_file()


def read_checkpoint(folder: Path, dtype: torch.dtype) -> LensModel:
    """The model of a folder; nothing in it is executed.

    Raises:
        BadFile: a config or weights that are missing, damaged, unsafe, or not those of one another.
        UnsupportedModel: a model with norms, positions, attention or MLPs of another kind.
    """
    if is_interpbench(folder) and not (folder / "config.json").is_file():
        config, file = INTERPBENCH, folder / INTERPBENCH_WEIGHTS
        if not file.is_file():
            raise BadFile(f"{folder}: InterpBench's weights are {INTERPBENCH_WEIGHTS}; not there.")
    else:
        config, file = read_config(folder / "config.json"), _weights_file(folder)
    weights = _checked(file, _state(file), config)
    model = LensModel(config, {name: x.to(dtype) for name, x in weights.items()})
    if is_interpbench(folder):
        model.circuit_file = folder / INTERPBENCH_GRAPH
    return model


def read_config(path: Path) -> LensConfig:
    """Sizes from a config.json.

    Raises:
        BadFile: a size is missing or no positive number.
        UnsupportedModel: a model that is computed in another way than here.
    """
    read: dict[str, Any] = _read_json(path)
    for key, known in _COMPUTED_HERE.items():
        if read.get(key, known) != known:
            raise UnsupportedModel(f"{path}: {key} must be {known!r}; got {read[key]!r}.")
    kinds = [read.get(key, "LN") for key in ("normalization", "normalization_type")]
    wrong = [kind for kind in kinds if kind not in _NORMALIZATIONS]
    if wrong:
        known = " or ".join(_NORMALIZATIONS)
        raise UnsupportedModel(f"{path}: normalization must be {known}; got {wrong[0]!r}.")
    attn_only = read.get("attn_only") is True
    act_fn = read.get("act_fn", "")
    if not attn_only and not (isinstance(act_fn, str) and act_fn in ACTIVATIONS):
        raise UnsupportedModel(
            f"{path}: act_fn must be one of {', '.join(ACTIVATIONS)}; got {act_fn!r}."
        )
    sizes: dict[str, Any] = {
        size.name: read.get(size.name) for size in fields(LensConfig) if size.type == "int"
    }
    if attn_only:
        del sizes["d_mlp"]
    for key, value in sizes.items():
        if type(value) is not int or value < 1:
            raise BadFile(f"{path}: {key} must be a positive whole number; got {value!r}.")
    epsilon, tokenizer = read.get("ln_eps", read.get("eps", 1e-5)), read.get("tokenizer_name")
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise BadFile(f"{path}: ln_eps must be a number between 0 and 1; got {epsilon!r}.")
    if tokenizer is not None and not isinstance(tokenizer, str):
        raise BadFile(f"{path}: tokenizer_name must be a hub id; got {tokenizer!r}.")
    return LensConfig(
        **sizes,
        ln_eps=epsilon,
        tokenizer_name=tokenizer,
        act_fn="" if attn_only else act_fn,
        normalized="LNPre" not in kinds,
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be read as JSON ({error}).") from None


def _weights_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted([*folder.glob("*.pth"), *folder.glob("*.pt")])
    chosen = files if len(files) == 1 else [file for file in files if file.stem.endswith("final")]
    if len(chosen) != 1:
        raise BadFile(
            f"The folder {str(folder)!r} must have one file of weights (*.safetensors or *.pth), or"
            " one whose name ends in 'final'; got"
            f" {', '.join(file.name for file in files) or 'none'}."
        )
    return chosen[0]


def _state(file: Path) -> dict[str, Any]:
    if file.suffix == ".safetensors":
        try:
            return dict(load_file(file))
        except (SafetensorError, OSError, ValueError) as error:
            raise BadFile(f"{file}: not a readable safetensors file ({error}).") from None
    state = load_archive(file)
    if not isinstance(state, dict):
        raise BadFile(f"{file}: must hold a dictionary of tensors; got a {type(state).__name__}.")
    return state


def _checked(file: Path, state: dict[str, Any], config: LensConfig) -> dict[str, Tensor]:
    """The weights, if they are those that the config asks for and no others."""
    if config.n_layers > len(state):  # before a name is made for each of their tensors
        raise BadFile(
            f"{file}: holds {len(state)} tensors, too few for the {config.n_layers} layers of its"
            " config."
        )
    shapes = config.shapes
    unknown = [name for name in state if name not in shapes and not str(name).endswith(_BUFFERS)]
    missing = [name for name in shapes if name not in state and name != "unembed.b_U"]
    for kind, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            raise BadFile(
                f"{file}: {kind} {len(names)} tensors of this config's model, for example"
                f" {names[0]}."
            )
    for name, tensor in state.items():
        if str(name).endswith("attn.mask") and not _is_causal(tensor):
            raise BadFile(
                f"{file}: {name} is not a causal mask, so this model attends in another way."
            )
        if name in shapes:
            checked_tensor(file, name, tensor, shapes[name], floating=True)
    return {name: state[name] for name in shapes if name in state}


def _is_causal(mask: Any) -> bool:
    return (
        isinstance(mask, Tensor)
        and mask.ndim == 2
        and mask.dtype == torch.bool
        and torch.equal(mask, torch.ones_like(mask).tril())
    )
