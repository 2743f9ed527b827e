"""The slow, obvious circuit evaluator: hooks on the unmodified Hugging Face model.

For every reader v, in the order of computation,

    x_v = R'_v + sum_u M[u, v] (a_u - a'_u) + sum_u N[u, v] delta_u,

with a dense coefficient matrix M over all writers, where R'_v and a'_u are recorded from a plain
run of the original model on the reference prompts. Each attention head is run on its own, through
the original attention module, with its own query, key and value inputs. Nothing is cached or
compiled: it costs about heads x layers forwards, and the fast evaluator has to agree with it to
1e-9 in fp64. M may hold any numbers and carry gradients: the derivative of an objective by M at
M = 1 is attribution patching by definition. N adds a small part of given vectors to the edges, for
gradients at points other than the clean run. Neuron masks n_u multiply a_u - a'_u on all edges of
u: of a head, what W_O gives; of an MLP, what enters the stream.

Hugging Face models round norms, softmaxes, rotated queries or routers to fp32 even in fp64;
`exact_precision` lifts that, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mechassay.errors import UnsupportedModel
from mechassay.models.graph import Graph


@dataclass(frozen=True)
class ModuleNames:
    """Names of an architecture's modules, relative to the model or to a block.

    A norm is None where a sublayer reads the stream itself. An MLP is several modules if they
    stand in the block.
    """

    embed: str
    blocks: str
    final_norm: str
    head_norm: str | None
    mlp_norm: str | None
    attention: str
    projections: tuple[str, ...]
    out: str
    mlp: str | tuple[str, ...]
    post_attention: str | None = None
    post_mlp: str | None = None


_LLAMA = ModuleNames(
    "model.embed_tokens",
    "model.layers",
    "model.norm",
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn",
    ("q_proj", "k_proj", "v_proj"),
    "o_proj",
    "mlp",
)
_GEMMA = replace(
    _LLAMA,
    mlp_norm="pre_feedforward_layernorm",
    post_attention="post_attention_layernorm",
    post_mlp="post_feedforward_layernorm",
)
_OLMO = replace(
    _LLAMA,
    head_norm=None,
    mlp_norm=None,
    post_attention="post_attention_layernorm",
    post_mlp="post_feedforward_layernorm",
)
_ONE_NORM = replace(_LLAMA, mlp_norm="input_layernorm")
_FALCON = ModuleNames(
    "transformer.word_embeddings",
    "transformer.h",
    "transformer.ln_f",
    "input_layernorm",
    "input_layernorm",
    "self_attention",
    ("query_key_value",),
    "dense",
    "mlp",
)
LAYOUTS = {
    "gpt2": ModuleNames(
        "transformer.wte",
        "transformer.h",
        "transformer.ln_f",
        "ln_1",
        "ln_2",
        "attn",
        ("c_attn",),
        "c_proj",
        "mlp",
    ),
    "gpt_neox": ModuleNames(
        "gpt_neox.embed_in",
        "gpt_neox.layers",
        "gpt_neox.final_layer_norm",
        "input_layernorm",
        "post_attention_layernorm",
        "attention",
        ("query_key_value",),
        "dense",
        "mlp",
    ),
    "gpt_neo": ModuleNames(
        "transformer.wte",
        "transformer.h",
        "transformer.ln_f",
        "ln_1",
        "ln_2",
        "attn.attention",
        ("q_proj", "k_proj", "v_proj"),
        "out_proj",
        "mlp",
    ),
    "gptj": ModuleNames(
        "transformer.wte",
        "transformer.h",
        "transformer.ln_f",
        "ln_1",
        "ln_1",
        "attn",
        ("q_proj", "k_proj", "v_proj"),
        "out_proj",
        "mlp",
    ),
    "opt": ModuleNames(
        "model.decoder.embed_tokens",
        "model.decoder.layers",
        "model.decoder.final_layer_norm",
        "self_attn_layer_norm",
        "final_layer_norm",
        "self_attn",
        ("q_proj", "k_proj", "v_proj"),
        "out_proj",
        ("fc1", "activation_fn", "fc2"),
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma"), _LLAMA),
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe", "granite"), _LLAMA),
    "stablelm": _LLAMA,
    "stablelm parallel": _ONE_NORM,
    "cohere": _ONE_NORM,
    "cohere2": _ONE_NORM,
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "phi3": replace(_LLAMA, projections=("qkv_proj",)),
    "falcon": _FALCON,
    "falcon of two norms": replace(_FALCON, head_norm="ln_attn", mlp_norm="ln_mlp"),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
}


class _NoRounding(TorchFunctionMode):
    """Numbers in fp64 stay so where code asks for fp32; tables of the model (buffers) aside."""

    def __init__(self, hf: nn.Module) -> None:
        super().__init__()
        self.tables = {id(buffer) for buffer in hf.buffers()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ROUNDING and args[0].dtype == torch.float64 and id(args[0]) not in self.tables:
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if x is torch.float32 else x for x in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


_ROUNDING = frozenset({Tensor.float, Tensor.to, F.softmax})
"""Functions that can be asked for fp32."""


@contextmanager
def exact_precision(hf: Any) -> Iterator[None]:
    """Run norms, softmaxes, rotations and routers in the model's own dtype while inside."""
    before = hf.config._attn_implementation
    hf.config._attn_implementation = "eager"
    try:
        with _NoRounding(hf):
            yield
    finally:
        hf.config._attn_implementation = before


@dataclass(frozen=True, eq=False)
class Recording:
    """A plain run: what every writer wrote, and each norm's input stream."""

    writers: Float[Tensor, "writers batch pos d_model"]
    attended: list[Tensor]
    before: list[Tensor]
    middle: list[Tensor]
    final: Tensor
    attention_kwargs: list[dict[str, Any]]
    logits: Tensor


class ReferenceModel:
    """A Hugging Face model with a mechassay graph, evaluated by hooks.

    Raises:
        UnsupportedModel: the architecture has no layout here.
    """

    def __init__(self, hf: Any, graph: Graph) -> None:
        config, kind = hf.config, hf.config.model_type
        kind += " parallel" * getattr(config, "use_parallel_residual", False) * (kind != "gpt_neox")
        kind += " of two norms" * (getattr(config, "num_ln_in_parallel_attn", None) == 2)
        if kind not in LAYOUTS:
            raise UnsupportedModel(
                f"The reference evaluator has no layout for {kind!r}; known: {', '.join(LAYOUTS)}."
            )
        self.hf, self.graph, self.layout = hf, graph, LAYOUTS[kind]
        self.blocks = list(hf.get_submodule(self.layout.blocks))
        # Granite's and Cohere's numbers.
        self.embed_scale = getattr(config, "embedding_multiplier", 1.0)
        self.written_scale = getattr(config, "residual_multiplier", 1.0)
        self.logit_scale = getattr(config, "logit_scale", 1 / getattr(config, "logits_scaling", 1))

    def part(self, layer: int, path: str) -> nn.Module:
        """A module of a block."""
        return self.blocks[layer].get_submodule(path)

    def _normed(self, layer: int, norm: str | None, x: Tensor) -> Tensor:
        return x if norm is None else self.part(layer, norm)(x)

    @property
    def mlp_modules(self) -> tuple[str, ...]:
        """Those that its MLP is, in order."""
        mlp = self.layout.mlp
        return (mlp,) if isinstance(mlp, str) else mlp

    def record(
        self,
        tokens: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"],
        embeds: Tensor | None = None,
    ) -> Recording:
        """Run the original model, from `embeds` if given, and record its nodes."""
        seen: dict[str, Any] = {}
        names, embedding = self.layout, self.hf.get_submodule(self.layout.embed)
        with ExitStack() as stack:

            def keep(name: str) -> Callable[..., None]:
                def hook(module: nn.Module, args: tuple[Tensor, ...], out: Any = None) -> None:
                    value = args[0] if out is None else out
                    # Copied: Falcon adds to what its MLP wrote. OPT's reads all tokens in a row.
                    seen[name] = value.clone().view(*tokens.shape, -1)

                return hook

            def output(module: nn.Module, name: str) -> None:
                stack.callback(module.register_forward_hook(keep(name)).remove)

            def entering(module: nn.Module, name: str) -> None:
                stack.callback(module.register_forward_pre_hook(keep(name)).remove)

            if embeds is not None:
                given = embeds / self.embed_scale
                stack.callback(embedding.register_forward_hook(lambda m, a, out: given).remove)
            output(embedding, "embed")
            entering(self.hf.get_submodule(names.final_norm), "final")
            for layer in range(self.graph.n_layers):
                out = self.part(layer, f"{names.attention}.{names.out}")
                first, last = self.mlp_modules[0], self.mlp_modules[-1]
                if names.head_norm is not None:
                    entering(self.part(layer, names.head_norm), f"before{layer}")
                entering(self.part(layer, names.mlp_norm or first), f"middle{layer}")
                entering(out, f"z{layer}")
                output(out, f"attended{layer}")
                output(self.part(layer, names.post_mlp or last), f"mlp{layer}")
                hook = self.part(layer, names.attention).register_forward_pre_hook(
                    lambda m, args, kwargs, layer=layer: seen.__setitem__(
                        f"kwargs{layer}", (args, kwargs)
                    ),
                    with_kwargs=True,
                )
                stack.callback(hook.remove)
            position_ids = (mask.long().cumsum(1) - 1).clamp(min=0)
            logits = self.hf(
                tokens, attention_mask=mask.long(), position_ids=position_ids, use_cache=False
            ).logits
        writers = [embeds if embeds is not None else seen["embed"] * self.embed_scale]
        for layer in range(self.graph.n_layers):
            writers += [
                self._head_output(layer, seen[f"z{layer}"], head)
                for head in range(self.graph.n_heads)
            ]
            writers.append(seen[f"mlp{layer}"] * self.written_scale)
            if names.head_norm is None:
                seen[f"before{layer}"] = seen[f"kwargs{layer}"][1]["hidden_states"]
        layers = range(self.graph.n_layers)
        return Recording(
            torch.stack(writers),
            [seen[f"attended{layer}"] for layer in layers],
            [seen[f"before{layer}"] for layer in layers],
            [seen[f"middle{layer}"] for layer in layers],
            seen["final"],
            [self._other_arguments(*seen[f"kwargs{layer}"]) for layer in layers],
            logits,
        )

    @staticmethod
    def _other_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        # GPT-2 passes the cache by position; everything but the hidden states goes on by name.
        named = dict(zip(("past_key_values", "attention_mask"), args[1:], strict=False))
        return {key: x for key, x in (kwargs | named).items() if key != "hidden_states"}

    def _head_output(self, layer: int, z: Float[Tensor, "batch pos width"], head: int) -> Tensor:
        """What one head writes: W_O on its part of the mix alone, without the bias."""
        out = self.part(layer, f"{self.layout.attention}.{self.layout.out}")
        width = z.shape[-1] // self.graph.n_heads
        alone = torch.zeros_like(z)
        alone[..., head * width : (head + 1) * width] = z[..., head * width : (head + 1) * width]
        return (out(alone) - out(torch.zeros_like(z))) * self.written_scale

    def _run_head(
        self, layer: int, head: int, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]
    ) -> Tensor:
        """One head of the original attention module, on separate query, key and value inputs."""
        attention = self.part(layer, self.layout.attention)
        caught: dict[str, Tensor] = {}
        with ExitStack() as stack:
            first, *others = map(attention.get_submodule, self.layout.projections)
            hooks = [
                (module, _replace_by(module, x)) for module, x in zip(others, (k, v), strict=False)
            ]
            for module, hook in hooks or [(first, self._fused_hook(first, k, v))]:
                stack.callback(module.register_forward_hook(hook).remove)
            out = attention.get_submodule(self.layout.out)
            stack.callback(
                out.register_forward_pre_hook(lambda m, a: caught.__setitem__("z", a[0])).remove
            )
            attention(hidden_states=q, **kwargs)
        return self._head_output(layer, caught["z"], head)

    @property
    def fused_slots(self) -> Int[Tensor, "heads"]:
        """Of what one matrix projects, head by head: query (0), key (1) or value (2)."""
        config, n = self.hf.config, self.graph.n_heads
        shared = getattr(config, "num_key_value_heads", None) or n
        if config.model_type == "falcon":
            shared = 1 if config.multi_query else n
            shared = config.num_kv_heads if config.new_decoder_architecture else shared
        if config.model_type in ("gpt_neox", "falcon"):
            # Key and value heads stand beside the queries that share them.
            return torch.tensor(([0] * (n // shared) + [1, 2]) * shared)
        return torch.tensor([0] * n + [1] * shared + [2] * shared)

    def _fused_hook(self, module: nn.Module, k: Tensor, v: Tensor) -> Callable[..., Tensor]:
        """Queries from the module's own output, keys and values from other inputs, fused."""
        slots = self.fused_slots

        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            forward = type(module).forward
            values = torch.stack((output, forward(module, k), forward(module, v)))
            by_heads = values.unflatten(-1, (len(slots), -1))
            return torch.cat([by_heads[slot, ..., i, :] for i, slot in enumerate(slots)], dim=-1)

        return hook

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"],
        reference: Recording,
        coefficients: Float[Tensor, "writers readers"],
        *,
        embeds: Tensor | None = None,
        noise: Float[Tensor, "writers readers"] | None = None,
        deltas: Float[Tensor, "writers batch pos d_model"] | None = None,
        neurons: Float[Tensor, "writers d_model"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Logits at the last column with coefficient M[u, v] on every edge."""
        graph, layout = self.graph, self.layout
        legal = graph.legal.to(coefficients)
        m = coefficients * legal
        keep = torch.ones(graph.n_writers, 1).to(coefficients) if neurons is None else neurons
        embedded = embeds
        if embedded is None:
            embedded = self.hf.get_submodule(layout.embed)(tokens) * self.embed_scale
        changes: list[Tensor] = [keep[0] * (embedded - reference.writers[0])]

        def stream(reader: int, base: Tensor) -> Tensor:
            x = base
            for writer in range(int(graph.visible[reader])):
                layer, place = divmod(writer - 1, graph.writers_per_layer)
                if writer == 0 or place == graph.n_heads or layout.post_attention is None:
                    x = x + self._edge(writer, reader, m, changes, noise, deltas)
                elif place == 0:
                    total = reference.attended[layer]
                    for head in range(graph.n_heads):
                        total = total + self._edge(writer + head, reader, m, changes, noise, deltas)
                    post = self.part(layer, layout.post_attention)
                    x = x + post(total) - post(reference.attended[layer])
            return x

        for layer in range(graph.n_layers):
            kwargs = reference.attention_kwargs[layer]
            outputs: list[Tensor] = []
            for head in range(graph.n_heads):
                q, k, v = (
                    self._normed(
                        layer,
                        layout.head_norm,
                        stream(graph.slot(layer, slot, head), reference.before[layer]),
                    )
                    for slot in range(3)
                )
                writer = graph.head(layer, head)
                wrote = self._run_head(layer, head, q, k, v, kwargs)
                outputs.append(keep[writer] * (wrote - reference.writers[writer]))
            if graph.parallel:
                mlp = self._mlp(layer, stream(graph.mlp_reader(layer), reference.middle[layer]))
                changes += outputs
            else:
                changes += outputs
                mlp = self._mlp(layer, stream(graph.mlp_reader(layer), reference.middle[layer]))
            writer = graph.mlp_writer(layer)
            changes.append(keep[writer] * (mlp - reference.writers[writer]))
        final = self.hf.get_submodule(layout.final_norm)(stream(graph.logits, reference.final))
        logits = self.hf.get_output_embeddings()(final)[:, -1] * self.logit_scale
        cap = getattr(self.hf.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @staticmethod
    def _edge(
        writer: int,
        reader: int,
        m: Tensor,
        changes: list[Tensor],
        noise: Tensor | None,
        deltas: Tensor | None,
    ) -> Tensor:
        carried = m[writer, reader] * changes[writer]
        if noise is None or deltas is None:
            return carried
        return carried + noise[writer, reader] * deltas[writer]

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        y = self._normed(layer, self.layout.mlp_norm, x)
        for name in self.mlp_modules:
            y = self.part(layer, name)(y)
        return self._normed(layer, self.layout.post_mlp, y) * self.written_scale


def _replace_by(module: nn.Module, x: Tensor) -> Callable[..., Tensor]:
    # The class's forward, not the module: calling the module again would run this hook again.
    return lambda _, args, output: type(module).forward(module, x)
