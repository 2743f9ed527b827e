"""Compare a decoder with the Hugging Face model that it was read from, on loading and at use.

Logits are compared in four settings, and the writers have to sum to the residual stream:

    plain          two prompts of six tokens
    left-padded    one of them with padding before it
    at limits      six tokens whose positions begin just below each limit that the configuration
                   names, where rotary frequencies or the scale of queries may change
    small          a copy with a layer of each kind, at least two, whose windows and limits are
                   8 tokens (limits of 20 with a table of positions), on prompts of 6, 12 and 20
                   tokens

The small copy has the class, the configuration and the weights of the model (its first layer of
each kind) and a vocabulary of 256. Weights that do not fit are drawn at random.

If the check fails, the error names the cause that was found: autocast, hooks, replaced modules, or
overflow. `Watch` notices hooks and modules that came after the check.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechassay.errors import (
    MechassayError,
    SelfCheckFailed,
    UnsupportedModel,
    first_line,
)
from mechassay.models.computing import float32_products
from mechassay.models.decoder import Context, Decoder, at_least_fp32
from mechassay.models.devices import main_device
from mechassay.models.edits import Edits
from mechassay.models.families import FAMILIES, MISREAD, unlike_llama
from mechassay.models.forward import Trace, trace
from mechassay.models.identity import ModelIdentity
from mechassay.models.weight_files import UNREADABLE, quiet
from mechassay.utils.display import OneLine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 2e-2}
"""Largest allowed difference, relative to the spread of the values. Hugging Face models round their
RMSNorms to fp32 even in fp64. In 16 bits single numbers differ by more: streams have numbers forty
times their spread, and rounding goes with the size."""

N_TOKENS = 6
SMALL_VOCABULARY = 256
SMALL_LIMIT = 8
"""Windows and limits of the small copy, in tokens."""
SMALL_LENGTHS = (6, 12, 20)


@dataclass(frozen=True, repr=False)
class SelfCheck(OneLine):
    """Differences between decoder and original: root mean squares by the spread of the values."""

    logits: float
    logits_left_padded: float
    logits_at_limits: float
    logits_of_small_copy: float
    writers_sum: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Return whether every difference is at most the tolerance; NaN is not."""
        return not self.failures

    @property
    def failures(self) -> dict[str, float]:
        """Return the differences that are larger than the tolerance or NaN, by name."""
        return {name: x for name, x in self.differences.items() if not x <= self.tolerance}

    @property
    def differences(self) -> dict[str, float]:
        """Return the difference of each comparison, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[:-1]}

    @property
    def largest(self) -> float:
        """Return the largest difference."""
        return max(self.differences.values(), key=_order)


PARTS = {
    "writers_sum": "the writers do not sum to the residual stream",
    "logits": "the logits differ",
    "logits_left_padded": "the logits differ under left padding",
    "logits_at_limits": "the logits differ near or beyond a limit of the configuration ({})",
    "logits_of_small_copy": (
        f"the logits of a small copy (windows and limits of {SMALL_LIMIT} tokens) differ"
    ),
}
"""What is wrong, by the number that shows it; the first one is named."""

Decode = Callable[["PreTrainedModel"], Decoder]


@torch.no_grad()
def self_check(name: str, hf: PreTrainedModel, decoder: Decoder, decode: Decode) -> SelfCheck:
    """Compare a decoder with the original, which is in evaluation mode meanwhile.

    Args:
        name: of the model, for messages.
        decode: makes the decoder of the small copy.

    Raises:
        SelfCheckFailed: they differ by more than rounding; the message says which part, and what
            was found to cause it.
        UnsupportedModel: the original does not run, or the small copy cannot be built.
    """
    modes = [(module, module.training) for module in hf.modules()]
    hf.eval()
    # A lower precision that the user set rounds both runs, each in its own way: on CPUs with
    # AMX, "medium" multiplies in bfloat16.
    try:
        with float32_products("highest"):
            at_ends = {
                f"{key} = {end:,}": _at_limit(name, hf, decoder, end)
                for end, key in _ends(hf, decoder).items()
            }
            # After long positions, a few tokens: dynamic rotary tables go back to where they were.
            plain, padded, writers = _plain(name, hf, decoder)
            small = _of_small_copy(name, hf, decode, decoder)
    except MISREAD as error:
        kind = hf.config.model_type
        if kind in FAMILIES or isinstance(error, MechassayError):
            raise
        raise unlike_llama(kind, f"{type(error).__name__}: {first_line(error)}") from error
    finally:
        for module, training in modes:
            module.training = training
    allowed = TOLERANCE.get(decoder.embedding.dtype, 0.1)
    at_limits = max(at_ends.values(), key=_order, default=0.0)
    limit = next((key for key, x in at_ends.items() if not x <= allowed), "")
    check = SelfCheck(plain, padded, at_limits, small, writers, allowed)
    if check.passed:
        return check
    part = next(part for part in PARTS if part in check.failures)
    difference = check.failures[part]
    raise SelfCheckFailed(
        f"{name} ({hf.config.model_type}): {PARTS[part].format(limit)}: {difference:.2g} relative"
        f" to their spread, allowed {allowed:.2g}. {_cause(hf, decoder, check)}"
    )


def _order(difference: float) -> float:
    return math.inf if math.isnan(difference) else difference


def _plain(name: str, hf: Any, decoder: Decoder) -> tuple[float, float, float]:
    """Compare the logits, the logits of a padded prompt, and the sum of the writers."""
    tokens = _tokens(decoder, 2, N_TOKENS)
    full = torch.ones_like(tokens, dtype=torch.bool)
    ctx = decoder.context(full)
    taken = trace(decoder, decoder.embed(tokens), ctx)
    logits = _relative(taken.readout(decoder).all(), _original(name, hf, tokens))
    writers = _relative(sum_of_writers(decoder, taken, ctx), taken.final)
    # A padded prompt must be as the original without its padding.
    mask = full.clone()
    mask[0, :2] = False
    padded = trace(decoder, decoder.embed(tokens), decoder.context(mask)).readout(decoder).all()[:1]
    return logits, _relative(padded, _original(name, hf, tokens[:1, 2:])), writers


def _original(name: str, hf: Any, tokens: Tensor, **named: Tensor) -> Float[Tensor, "batch vocab"]:
    """Return the original's logits after the last token."""
    try:
        return hf(tokens, use_cache=False, **named).logits[:, -1]
    except (NotImplementedError, KeyError) as error:
        # A quantised tensor lacks some operations that its model's modules call. A weight that is
        # tied to a weight on another device was never written to disk.
        raise UnsupportedModel(
            f"{name}: the model itself does not run as it is quantised or placed:"
            f" {type(error).__name__}: {first_line(error)}"
        ) from error


def _ends(hf: Any, decoder: Decoder) -> dict[int, str]:
    """Return the limits of positions that the configuration names, the lowest first, with one of
    their names. No limit is beyond the end of a table of positions.
    """
    if "position_ids" not in inspect.signature(hf.forward).parameters:
        return {}
    end = math.inf if decoder.longest is None else decoder.longest
    named = {int(min(n, end)): key for _, key, n in _numbers(hf.config) if _is_limit(key)}
    return {limit: named[limit] for limit in sorted(named) if limit >= N_TOKENS}


def _at_limit(name: str, hf: Any, decoder: Decoder, limit: int) -> float:
    """Compare the logits of six tokens whose positions begin just below a limit."""
    tokens = _tokens(decoder, 1, N_TOKENS)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    first = limit - N_TOKENS // 2
    if decoder.longest is not None:
        first = min(first, decoder.longest - N_TOKENS)
    ctx = decoder.context(mask, first)
    theirs = _original(name, hf, tokens, position_ids=ctx.position_ids)
    return _relative(_logits(decoder, tokens, ctx), theirs)


def _of_small_copy(name: str, hf: Any, decode: Decode, decoder: Decoder) -> float:
    """Return the largest difference of the logits of the small copy.

    It is 0 for a class that is not of transformers, whose configuration cannot be changed.
    """
    from transformers import PreTrainedModel

    if not isinstance(hf, PreTrainedModel):
        return 0.0
    # A table of positions has to be longer than the windows, to see them.
    limit = SMALL_LIMIT if decoder.longest is None else max(SMALL_LENGTHS)
    try:
        small = small_copy(hf, limit)
    except (*UNREADABLE, AttributeError) as error:
        raise UnsupportedModel(
            f"{name}: no copy with fewer layers and shorter windows can be built to check them:"
            f" {type(error).__name__}: {first_line(error)}"
        ) from error
    decoder = decode(small)
    differences: list[float] = []
    for n in SMALL_LENGTHS:
        tokens = _tokens(decoder, 1, n)
        ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
        theirs = _original(name, small, tokens)
        differences.append(_relative(_logits(decoder, tokens, ctx), theirs))
    return max(differences, key=_order)


def small_copy(hf: PreTrainedModel, limit: int = SMALL_LIMIT) -> PreTrainedModel:
    """Build a copy with the first layer of each kind (at least two), 256 token ids, windows of
    8 tokens, and limits of `limit`. Its weights are views of the model's weights if these fit, and
    random otherwise.
    """
    from transformers.initialization import no_init_weights

    config, n_layers = copy.deepcopy(hf.config), hf.config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [""] * n_layers)
    first = {kinds.index(kind) for kind in kinds}
    others = [layer for layer in range(n_layers) if layer not in first]
    chosen = sorted([*first, *others[: max(0, 2 - len(first))]])
    for key, value in vars(config).items():
        # Settings by layer; ids of tokens may be as many by chance.
        by_layer = isinstance(value, list | tuple) and len(value) == n_layers
        if by_layer and not key.endswith(("_id", "_ids")) and key != "architectures":
            setattr(config, key, [value[layer] for layer in chosen])
    config.num_hidden_layers, config.vocab_size = len(chosen), SMALL_VOCABULARY
    config.pad_token_id = None
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    for owner, key, _ in list(_numbers(config)):
        if _is_limit(key) or _is_window(key):
            new = SMALL_LIMIT if _is_window(key) else limit
            if isinstance(owner, dict):
                owner[key] = new
            else:
                setattr(owner, key, new)
    kind: Any = type(hf)
    dtype = next(x.dtype for x in hf.parameters() if x.is_floating_point())
    with quiet(), no_init_weights(), torch.device("cpu"):
        small = kind._from_config(config, dtype=dtype)
    if hasattr(small, "set_experts_implementation") and dtype == torch.float64:
        small.set_experts_implementation("eager")
    small = small.eval().requires_grad_(False)
    weights, stack = dict(hf.named_parameters()), _layer_list(hf, n_layers)
    generator = torch.Generator().manual_seed(0)
    for key, parameter in small.named_parameters():
        source = weights.get(_key_of(key, stack, chosen))
        parameter.data = _fitting(source, parameter, generator)
    return small.to(main_device(hf))


def _layer_list(hf: nn.Module, n_layers: int) -> str:
    """Return the name of the list of layers, such as `model.layers`."""
    lists = [
        name
        for name, module in hf.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == n_layers
    ]
    return min(lists, key=lambda name: name.count("."), default="")


def _key_of(key: str, stack: str, chosen: list[int]) -> str:
    """Return the model's name of a parameter of the copy."""
    if not stack or not key.startswith(f"{stack}."):
        return key
    number, _, rest = key.removeprefix(f"{stack}.").partition(".")
    return f"{stack}.{chosen[int(number)]}.{rest}"


def _fitting(source: Tensor | None, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return the first rows of the source in the shape of `like`, or random values."""
    plain = source is not None and type(source.data) is Tensor and not source.is_meta
    if source is not None and plain and source.dtype == like.dtype and source.ndim == like.ndim:
        rows = source.data[: len(like)]
        if rows.shape == like.shape:
            return rows
    # All experts of a layer are one, so that a large mixture takes the memory of one.
    drawn = torch.randn(like.shape[-2:], generator=generator, dtype=torch.float32)
    return (drawn / math.sqrt(like.shape[-1])).to(like.dtype).expand(like.shape)


def _numbers(config: Any) -> Iterator[tuple[Any, str, int]]:
    """Yield owner, name and value of the positive integers of a configuration, at every depth."""
    values = config if isinstance(config, dict) else vars(config)
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            yield config, str(key), value


def _is_limit(key: str) -> bool:
    """Return whether a setting is a number of positions."""
    words = ("max_position", "n_positions", "original_max", "floor_scale", "max_seq_len")
    return any(word in key for word in words)


def _is_window(key: str) -> bool:
    """Return whether a setting is the width of a window of attention."""
    names = ("sliding_window", "window_size", "attention_window", "attention_chunk_size")
    return key in names


def _tokens(decoder: Decoder, n_rows: int, n: int) -> Int[Tensor, "rows pos"]:
    """Return fixed token ids, spread over the vocabulary."""
    vocabulary = decoder.embedding.shape[0]
    tokens = torch.arange(n_rows * n) * 7919 % vocabulary
    return tokens.view(n_rows, n).to(decoder.embedding.device)


def _logits(
    decoder: Decoder, tokens: Int[Tensor, "batch pos"], ctx: Context
) -> Float[Tensor, "batch vocab"]:
    return trace(decoder, decoder.embed(tokens), ctx).readout(decoder).all()


def sum_of_writers(
    decoder: Decoder, taken: Trace, ctx: Context
) -> Float[Tensor, "batch pos d_model"]:
    """Rebuild the final residual stream from the writers' outputs and the constants."""
    stream = decoder.add_positions(taken.embed, ctx, taken.start)
    for index, layer in enumerate(taken.layers):
        attention = decoder.layers[index].attention
        heads = decoder.head_outputs(index, layer.z).sum(0)
        if attention.out_bias is not None:
            heads = heads + attention.out_bias
        stream = stream + (heads if attention.post_norm is None else attention.post_norm(heads))
        if layer.mlp is not None:
            stream = stream + layer.mlp
    return stream


def _relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the root mean square difference, relative to the standard deviation of `theirs`."""
    ours, theirs = at_least_fp32(ours), at_least_fp32(theirs)
    if not bool(torch.isfinite(theirs).all()):
        return math.inf
    return float((ours - theirs).square().mean().sqrt() / theirs.std().clamp(min=1e-6))


# Causes of a difference.


def _cause(hf: Any, decoder: Decoder, check: SelfCheck) -> str:
    """Name what changes the computation of the original, and the remedy."""
    if torch.is_autocast_enabled(decoder.embedding.device.type):
        return "torch.autocast is on: load and use the model outside of it."
    hooked = hooked_modules(hf)
    if hooked:
        names = ", ".join(name or "the model" for name in hooked[:3])
        return f"Hooks of other code run in {len(hooked)} modules ({names}): remove them."
    if _global_hooks():
        return "Hooks that torch runs in every module are registered: remove them."
    foreign = [
        f"{name} ({type(module).__name__})"
        for name, module in hf.named_modules()
        if name and not type(module).__module__.startswith(_LIBRARIES)
    ]
    if foreign and type(hf).__module__.startswith("transformers."):
        return f"It contains modules that are not transformers' own: {', '.join(foreign[:3])}."
    overflows = not all(map(math.isfinite, check.failures.values()))
    if decoder.embedding.dtype == torch.float16 and overflows:
        return "Its values are too large for float16: load it in bfloat16 or float32."
    return (
        "The decoder does not describe this model: “Your own model family” in the documentation"
        " shows how to write one."
    )


_LIBRARIES = ("torch.", "transformers.", "bitsandbytes.", "torchao.")
"""Where the classes of a model's own modules stand, quantised ones too."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Where a module keeps the hooks of its forward pass, by numbers."""


def hooked_modules(hf: nn.Module) -> list[str]:
    """Return the names of the modules that have forward hooks."""
    return [
        name for name, module in hf.named_modules() if any(vars(module)[kind] for kind in _HOOKS)
    ]


def _global_hooks() -> list[int]:
    """Return the numbers of the hooks that torch runs in the forward pass of every module."""
    return [number for kind in _HOOKS for number in vars(nn.modules.module)[f"_global{kind}"]]


def check_adapters(name: str, hf: nn.Module) -> None:
    """Refuse adapters (PEFT) that are not merged into the weights, fresh ones too.

    Raises:
        UnsupportedModel: there are some.
    """
    unmerged = [
        key
        for key, module in hf.named_modules()
        if any(kind.__module__.startswith("peft.tuners") for kind in type(module).__mro__)
        and hasattr(module, "base_layer")
        and not getattr(module, "merged", False)
    ]
    if unmerged:
        raise UnsupportedModel(
            f"{name} has adapters (PEFT) that are not merged into its weights, on"
            f" {len(unmerged)} modules such as {unmerged[0]}: pass what merge_and_unload() of the"
            " PEFT model returns."
        )


class Watch:
    """Notices changes of an original model since the last check and the last reading of weights.
    All `Model`s of one original share one watch.

    Attributes:
        checked: hooks, modules and autocast at the last check.
        decoder: the decoder that was read from the original; None if the model's decoder was made
            in another way.
        edits: the weights that the decoder has.
        identity: the digests of these weights, once the digests are known.
    """

    def __init__(self) -> None:
        self.checked: tuple[object, ...] | None = None
        self.decoder: Decoder | None = None
        self.edits: Edits | None = None
        self.identity: ModelIdentity | None = None

    def __reduce__(self) -> tuple[type[Watch], tuple[()]]:
        return Watch, ()  # Modules of a copy, or in another process, are others.

    def differs(self, hf: nn.Module, device: torch.device) -> bool:
        """Return whether hooks, modules or autocast differ from those at the last check."""
        return self.checked != _identity(hf, device)

    def accept(self, hf: nn.Module, device: torch.device) -> None:
        """Remember the present hooks, modules and autocast as checked."""
        self.checked = _identity(hf, device)

    def read(self, hf: nn.Module, decoder: Decoder) -> None:
        """Remember the present weights as those of a decoder."""
        self.decoder, self.edits, self.identity = decoder, Edits(hf), None


def _identity(hf: nn.Module, device: torch.device) -> tuple[object, ...]:
    """Identify hooks by their numbers, which are never used twice, and modules by their address."""
    seen: list[object] = [torch.is_autocast_enabled(device.type), *_global_hooks()]
    for module in hf.modules():
        own = vars(module)
        hooks = [number for kind in _HOOKS for number in own[kind]]
        seen.append((id(module), id(own.get("forward")), *hooks))
    return tuple(seen)
