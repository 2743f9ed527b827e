"""The identity of a model: digests of its weights, its configuration and its tokenizer.

The digest of weights depends on values alone. Each tensor is hashed in the narrowest floating-point
type that holds all of its values exactly, so that a bfloat16 file has the same digest when it is
loaded in float32:

    weights = sha256(sorted lines "name shape type sha256(values)")

The loaded class gives the names and shapes: a tied tensor counts once, and buffers that the class
does not save do not count. `rounded` is the digest of the values rounded to bfloat16. The rounded
digests of a float32 folder are equal, whether the folder is loaded in float32 or in bfloat16.

The configuration counts without names, versions, types, caching, special token ids and training
settings. The tokenizer counts without padding, truncation, the padding token and the chat template.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mechassay.models.devices import loader, parameters_of
from mechassay.models.quantised import tensors_of

DIGITS = 16
"""Hexadecimal digits of a digest: 64 bits."""
CHUNK = 1 << 18
"""Elements that are hashed at once: a chunk of float32 numbers fits into a CPU's cache."""
CANDIDATE_TYPES: Mapping[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.bfloat16,),
    # float16 is no candidate: its values are exact in float32, and need no further pass.
    torch.float16: (torch.bfloat16, torch.float32),
    torch.float32: (torch.bfloat16, torch.float32),
    torch.float64: (torch.bfloat16, torch.float32, torch.float64),
}
"""The types in which a tensor of a type may be hashed, narrowest first."""


@dataclass(frozen=True)
class ModelIdentity:
    """The digests of a model, each with `DIGITS` hexadecimal digits.

    Attributes:
        weights: of the values of the weights.
        rounded: of the values rounded to bfloat16.
        dtype: the widest type of the weights in memory, such as "float32".
        config: of the configuration.
        tokenizer: of the tokenizer; "" without a tokenizer.
    """

    weights: str
    rounded: str
    dtype: str
    config: str
    tokenizer: str

    @staticmethod
    def of(hf: nn.Module, tokenizer: Any) -> ModelIdentity:
        """Hash a model in memory. The weights of a model quantised to 4 bits have to be hashed
        before a forward pass that repacks them.
        """
        floating = [x.dtype for x in hf.parameters() if x.is_floating_point()]
        widest = max(floating, key=lambda x: torch.finfo(x).bits, default=torch.float32)
        lines = _weight_lines(hf, rounded=False)
        exact = _digest("\n".join(lines))
        # Values that are exact in bfloat16 are their own rounded values.
        wider = any(f" {kind} " in line for line in lines for kind in (torch.float32, torch.double))
        rounded = _digest("\n".join(_weight_lines(hf, rounded=True))) if wider else exact
        dtype = str(widest).removeprefix("torch.")
        return ModelIdentity(
            exact, rounded, dtype, config_digest(hf.config), tokenizer_digest(tokenizer)
        )

    @property
    def key(self) -> str:
        """One digest of the weights, the configuration and the tokenizer."""
        return _digest(f"{self.weights} {self.config} {self.tokenizer}")

    def as_dict(self) -> dict[str, str]:
        """Return the digests by their names, as records and run folders store them."""
        return asdict(self)


# Weights


def _weight_lines(hf: nn.Module, *, rounded: bool) -> list[str]:
    """Return a line for each tensor, sorted: name, shape, type, and SHA-256 of the values."""
    return sorted(
        f"{name}{part} {tuple(stored.shape)} {_values_digest(stored, rounded)}"
        for name, tensor in _saved_tensors(hf)
        for part, stored in tensors_of(tensor)
    )


def _saved_tensors(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, of tied parameters the first, and the buffers that the class saves."""
    for name, tensor in (*parameters_of(hf), *saved_buffers(hf)):
        values = loader(hf, name)().to(tensor.dtype) if tensor.is_meta else tensor
        # torch.compile puts the model into another module.
        yield name.replace("_orig_mod.", ""), values


def saved_buffers(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that `save_pretrained` writes."""
    for prefix, module in hf.named_modules():
        for key, buffer in vars(module)["_buffers"].items():
            if buffer is not None and key not in vars(module)["_non_persistent_buffers_set"]:
                yield f"{prefix}.{key}".lstrip("."), buffer


def _values_digest(tensor: Tensor, rounded: bool) -> str:
    """Return the type in which a tensor is hashed, and the SHA-256 of its values."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype not in CANDIDATE_TYPES:
        return f"{flat.dtype} {hashlib.sha256(_bytes(flat.cpu())).hexdigest()}"
    for kind in (torch.bfloat16,) if rounded else CANDIDATE_TYPES[flat.dtype]:
        digest = hashlib.sha256()
        for chunk in flat.split(CHUNK):
            values = chunk.cpu()
            exact = values.bfloat16() if rounded else _exact_in(values, kind)
            if exact is None:
                break
            digest.update(_bytes(exact))
        else:
            return f"{kind} {digest.hexdigest()}"
    raise AssertionError("the values of a tensor are exact in its own type")


def _exact_in(values: Tensor, kind: torch.dtype) -> Tensor | None:
    """Return the values in a type; None if a value is not exact in that type."""
    if values.dtype == kind:
        return values
    if values.dtype == torch.float16:
        values = values.float()
    elif values.dtype == torch.float64:
        narrow = values.float()
        if not torch.equal(narrow.double().view(torch.int64), values.view(torch.int64)):
            return None
        values = narrow
    if kind == torch.float32:
        return values
    # The upper half of a float32 number is a bfloat16 number.
    halves = values.contiguous().view(torch.int16).view(-1, 2)
    return None if bool(halves[:, 0].any()) else halves[:, 1].contiguous()


def _bytes(values: Tensor) -> memoryview:
    return values.contiguous().view(torch.uint8).numpy().data


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


# Configuration

_NOT_OF_THE_MODEL = frozenset(
    {
        *("_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype"),
        *("architectures", "auto_map", "use_cache", "cache_implementation"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
        *("output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate"),
        *("problem_type", "id2label", "label2id", "num_labels", "chunk_size_feed_forward"),
        *("_attn_implementation", "attn_implementation", "_experts_implementation"),
        *("_attn_implementation_internal", "_experts_implementation_internal"),
    }
)
_OF_TRAINING = re.compile(r"dropout|pdrop|layerdrop|initializer|init_std|aux_loss|jitter")
_ROTARY = frozenset({"partial_rotary_factor", "rope_theta", "rope_scaling"})
"""Settings that some versions of transformers write next to `rope_parameters`, which repeats them.
Below the top level they count."""


def config_digest(config: Any) -> str:
    """Return the digest of a configuration: of the settings that decide what the model computes."""
    as_dict = getattr(config, "to_dict", None)
    stored = as_dict() if as_dict is not None else dict(vars(config))
    repeated = _ROTARY if stored.get("rope_parameters") else frozenset[str]()
    settings = {key: value for key, value in stored.items() if key not in repeated}
    return _digest(json.dumps(_settings_of_model(settings), sort_keys=True, default=str))


def _settings_of_model(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): _settings_of_model(inner)
            for key, inner in value.items()
            if key not in _NOT_OF_THE_MODEL and not _OF_TRAINING.search(str(key))
        }
    if isinstance(value, list | tuple):
        return [_settings_of_model(inner) for inner in value]
    # 1 and 1.0 are the same number.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


# Tokenizer

_MODEL = '"model":'
"""The begin of the last part of a stored tokenizer. In a text its quotation marks are escaped."""


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the digest of how a tokenizer turns texts into ids; "" without a tokenizer."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None) or getattr(
        tokenizer, "_tokenizer", None
    )
    special = {
        name: str(value)
        for name in ("bos_token", "eos_token", "unk_token")
        if (value := getattr(tokenizer, name, None)) is not None
    }
    splits_special = bool(getattr(tokenizer, "split_special_tokens", False))
    if backend is None:
        model: dict[str, Any] = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab()}
        if (processor := getattr(tokenizer, "sp_model", None)) is not None:
            model["proto"] = hashlib.sha256(processor.serialized_model_proto()).hexdigest()
        return _digest(json.dumps([model, special, splits_special], sort_keys=True, default=str))
    text = backend.to_str()
    # The vocabulary has megabytes. It is hashed as the backend writes it: by id, merges by rank.
    begin = text.index(_MODEL)
    vocabulary = hashlib.sha256(text[begin:].encode()).hexdigest()
    head = json.loads(text[:begin].rstrip(", ") + "}")
    pad = str(getattr(tokenizer, "pad_token", None))
    used = {*special.values(), *map(str, getattr(tokenizer, "extra_special_tokens", None) or ())}
    added = [
        token
        for token in sorted(head["added_tokens"], key=lambda token: token["id"])
        # A token that was added to pad with does not change how texts are split.
        if token["content"] != pad
        or token["content"] in used
        or backend.model.token_to_id(token["content"]) is not None
    ]
    parts = [head.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor")]
    rest = json.dumps([parts, added, special, splits_special], sort_keys=True)
    return _digest(f"{vocabulary} {rest}")
