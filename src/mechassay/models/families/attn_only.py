"""Attention-only models in TransformerLens' layout, such as `NeelNanda/Attn_Only_4L512W_C4_Code`.

    x_0     = W_E[token] + W_pos[position]
    x_{l+1} = x_l + b_O + sum over heads h of  softmax(q_h k_h^T / sqrt(d_head) | causal) v_h W_O[h]
              with q_h = LN(x_l) W_Q[h] + b_Q[h], and k_h and v_h alike
    logits  = LN(x_L) W_U + b_U

A checkpoint is a folder with

    config.json              sizes: n_layers, n_heads, d_model, d_head, n_ctx, d_vocab;
                             "attn_only": true; no model_type
    *.safetensors, or *.pth  one state dict, that whose name ends in "final" if there are several,
                             with the tensors of `AttnOnlyConfig.shapes`; b_U may be missing

(Neel Nanda's have the causal mask and the value of masked scores as buffers.) Layer norms have
weight and bias ("normalization": "LN"); positions are learned and added once.

transformers has no class for these models. `AttnOnlyModel` is the original that the decoder is
checked against when it is loaded: the equations above as they stand, with no regard to cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mechassay.errors import BadFile, UnsupportedModel
from mechassay.models.decoder import Attention, Decoder, Layer, Norm, Projection, at_least_fp32
from mechassay.models.weight_files import checked_tensor, load_archive

_COMPUTED_HERE: dict[str, Any] = {
    "normalization": "LN",
    "normalization_type": "LN",
    "positional_embedding_type": "standard",
    "shortformer_pos": False,
    "attention_dir": "causal",
    "use_attn_scale": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_local_attn": False,
    "final_rms": False,
}
"""Settings that change the computation, with the one value that is known here and meant without."""

_BUFFERS = ("attn.mask", "attn.IGNORE")
"""Ends of names that checkpoints have for what is no weight."""


@dataclass(frozen=True)
class AttnOnlyConfig:
    """Sizes of an attention-only model, and the hub id of its tokenizer if known."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    n_ctx: int
    d_vocab: int
    ln_eps: float = 1e-5
    tokenizer_name: str | None = None
    model_type: ClassVar[str] = "attn-only"

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
            shapes |= {f"{block}ln1.w": width, f"{block}ln1.b": width}
            for slot in "QKV":
                shapes |= {f"{block}attn.W_{slot}": split, f"{block}attn.b_{slot}": bias}
            shapes[f"{block}attn.W_O"] = (self.n_heads, self.d_head, self.d_model)
            shapes[f"{block}attn.b_O"] = width
        return {
            **shapes,
            "ln_final.w": width,
            "ln_final.b": width,
            "unembed.W_U": (self.d_model, self.d_vocab),
            "unembed.b_U": (self.d_vocab,),
        }


class Output(NamedTuple):
    """What the model returns, named as transformers names it."""

    logits: Float[Tensor, "batch pos vocab"]


class AttnOnlyModel(nn.Module):
    """The model by its definition; its parameters have the checkpoint's names."""

    def __init__(self, config: AttnOnlyConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
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
        logits = self._layer_norm(x, "ln_final") @ weight("unembed.W_U")
        return Output(logits if self.unembed_bias is None else logits + self.unembed_bias)

    def _layer_norm(
        self, x: Float[Tensor, "batch pos d_model"], name: str
    ) -> Float[Tensor, "batch pos d_model"]:
        wide = at_least_fp32(x)
        centred = wide - wide.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + self.config.ln_eps).sqrt()
        return (centred / scale * self.weight(f"{name}.w") + self.weight(f"{name}.b")).to(x.dtype)


def decode(hf: AttnOnlyModel) -> Decoder:
    """The decoder of an `AttnOnlyModel`."""
    config, weight = hf.config, hf.weight

    def norm(name: str) -> Norm:
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
        return Layer(attention, None)

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


def is_checkpoint(config: Path) -> bool:
    """Whether a config.json is TransformerLens' (of any model), and not transformers'."""
    read = _read_json(config)
    return (
        isinstance(read, dict)
        and "model_type" not in read
        and {"n_heads", "d_head", "attn_only"} <= read.keys()
    )


def read_checkpoint(folder: Path, dtype: torch.dtype) -> AttnOnlyModel:
    """The model of a folder; nothing in it is executed.

    Raises:
        BadFile: a config or weights that are missing, damaged, unsafe, or not those of one another.
        UnsupportedModel: a model with MLPs, or with norms, positions or attention of another kind.
    """
    config, file = read_config(folder / "config.json"), _weights_file(folder)
    weights = _checked(file, _state(file), config)
    return AttnOnlyModel(config, {name: x.to(dtype) for name, x in weights.items()})


def read_config(path: Path) -> AttnOnlyConfig:
    """Sizes from a config.json.

    Raises:
        BadFile: a size is missing or no positive number.
        UnsupportedModel: a model that is computed in another way than here.
    """
    read: dict[str, Any] = _read_json(path)
    if read.get("attn_only") is not True:
        raise UnsupportedModel(
            f"{path}: a TransformerLens checkpoint with MLPs; only attention-only ones are"
            " supported."
        )
    for key, known in _COMPUTED_HERE.items():
        if read.get(key, known) != known:
            raise UnsupportedModel(f"{path}: {key} must be {known!r}; got {read[key]!r}.")
    sizes: dict[str, Any] = {
        field.name: read.get(field.name) for field in fields(AttnOnlyConfig) if field.type == "int"
    }
    for key, value in sizes.items():
        if type(value) is not int or value < 1:
            raise BadFile(f"{path}: {key} must be a positive whole number; got {value!r}.")
    epsilon, tokenizer = read.get("ln_eps", read.get("eps", 1e-5)), read.get("tokenizer_name")
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise BadFile(f"{path}: ln_eps must be a number between 0 and 1; got {epsilon!r}.")
    if tokenizer is not None and not isinstance(tokenizer, str):
        raise BadFile(f"{path}: tokenizer_name must be a hub id; got {tokenizer!r}.")
    return AttnOnlyConfig(**sizes, ln_eps=epsilon, tokenizer_name=tokenizer)


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


def _checked(file: Path, state: dict[str, Any], config: AttnOnlyConfig) -> dict[str, Tensor]:
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
