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

Hugging Face models round some norms and softmaxes to fp32 even in fp64; `exact_precision` lifts
that with hooks, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mechassay.errors import UnsupportedModel
from mechassay.models.graph import Graph


@dataclass(frozen=True)
class ModuleNames:
    """Names of an architecture's modules, relative to the model or to a block."""

    embed: str
    blocks: str
    final_norm: str
    head_norm: str
    mlp_norm: str
    attention: str
    projections: tuple[str, ...]
    out: str
    mlp: str
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
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
}


@contextmanager
def exact_precision(hf: Any) -> Iterator[None]:
    """Run RMSNorms and attention softmaxes in the model's own dtype while inside."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register("mechassay_exact", _exact_attention)
    AttentionMaskInterface.register("mechassay_exact", eager_mask)
    before = hf.config._attn_implementation
    handles = [
        module.register_forward_hook(_exact_rms_norm)
        for module in hf.modules()
        if type(module).__name__.endswith("RMSNorm")
    ]
    hf.config._attn_implementation = "mechassay_exact"
    try:
        yield
    finally:
        hf.config._attn_implementation = before
        for handle in handles:
            handle.remove()


def _exact_rms_norm(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    x = args[0]
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    weight = module.weight + 1 if type(module).__name__.startswith("Gemma") else module.weight
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _exact_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ value.repeat_interleave(groups, 1)).transpose(1, 2), None


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
        kind = hf.config.model_type
        if kind not in LAYOUTS:
            raise UnsupportedModel(
                f"The reference evaluator has no layout for {kind!r}; known: {', '.join(LAYOUTS)}."
            )
        self.hf, self.graph, self.layout = hf, graph, LAYOUTS[kind]
        self.blocks = list(hf.get_submodule(self.layout.blocks))

    def _part(self, layer: int, path: str) -> nn.Module:
        return self.blocks[layer].get_submodule(path)

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
                return lambda module, args, out=None: seen.__setitem__(
                    name, args[0] if out is None else out
                )

            def output(module: nn.Module, name: str) -> None:
                stack.callback(module.register_forward_hook(keep(name)).remove)

            def entering(module: nn.Module, name: str) -> None:
                stack.callback(module.register_forward_pre_hook(keep(name)).remove)

            if embeds is not None:
                stack.callback(embedding.register_forward_hook(lambda m, a, out: embeds).remove)
            output(embedding, "embed")
            entering(self.hf.get_submodule(names.final_norm), "final")
            for layer in range(self.graph.n_layers):
                out = self._part(layer, f"{names.attention}.{names.out}")
                entering(self._part(layer, names.head_norm), f"before{layer}")
                entering(self._part(layer, names.mlp_norm), f"middle{layer}")
                entering(out, f"z{layer}")
                output(out, f"attended{layer}")
                output(self._part(layer, names.post_mlp or names.mlp), f"mlp{layer}")
                hook = self._part(layer, names.attention).register_forward_pre_hook(
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
        writers = [embeds if embeds is not None else seen["embed"]]
        for layer in range(self.graph.n_layers):
            writers += [
                self._head_output(layer, seen[f"z{layer}"], head)
                for head in range(self.graph.n_heads)
            ]
            writers.append(seen[f"mlp{layer}"])
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
        out = self._part(layer, f"{self.layout.attention}.{self.layout.out}")
        width = z.shape[-1] // self.graph.n_heads
        alone = torch.zeros_like(z)
        alone[..., head * width : (head + 1) * width] = z[..., head * width : (head + 1) * width]
        return out(alone) - out(torch.zeros_like(z))

    def _run_head(
        self, layer: int, head: int, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]
    ) -> Tensor:
        """One head of the original attention module, on separate query, key and value inputs."""
        attention = self._part(layer, self.layout.attention)
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

    def _fused_hook(self, module: nn.Module, k: Tensor, v: Tensor) -> Callable[..., Tensor]:
        """Queries from the module's own output, keys and values from other inputs, fused."""
        interleaved = self.hf.config.model_type == "gpt_neox"

        def parts(x: Tensor) -> list[Tensor]:
            if interleaved:
                return list(x.unflatten(-1, (self.graph.n_heads, 3, -1)).unbind(-2))
            return list(x.chunk(3, dim=-1))

        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            forward = type(module).forward
            values = (output, forward(module, k), forward(module, v))
            q_k_v = [parts(value)[slot] for slot, value in enumerate(values)]
            return torch.stack(q_k_v, dim=-2).flatten(-3) if interleaved else torch.cat(q_k_v, -1)

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
        embedded = self.hf.get_submodule(layout.embed)(tokens) if embeds is None else embeds
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
                    post = self._part(layer, layout.post_attention)
                    x = x + post(total) - post(reference.attended[layer])
            return x

        for layer in range(graph.n_layers):
            norm, kwargs = self._part(layer, layout.head_norm), reference.attention_kwargs[layer]
            outputs: list[Tensor] = []
            for head in range(graph.n_heads):
                q, k, v = (
                    norm(stream(graph.slot(layer, slot, head), reference.before[layer]))
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
        logits = self.hf.get_output_embeddings()(final)[:, -1]
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
        y = self._part(layer, self.layout.mlp)(self._part(layer, self.layout.mlp_norm)(x))
        return y if self.layout.post_mlp is None else self._part(layer, self.layout.post_mlp)(y)


def _replace_by(module: nn.Module, x: Tensor) -> Callable[..., Tensor]:
    # The class's forward, not the module: calling the module again would run this hook again.
    return lambda _, args, output: type(module).forward(module, x)
