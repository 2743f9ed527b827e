"""Gradients of circuits: by real-valued masks of edges, and by other rules for the backward pass.

`masked_readout` evaluates circuits with a coefficient m[u, v] on every edge, differentiable by
the mask. Every reader v, in the order of computation, sees

    x_v = R'_v + sum_u m[u, v] (a_u - a'_u),

the definition of `models.hooks_reference`, with a_u computed from masked inputs and R'_v, a'_u
of the reference run; m = 1 is an edge of the circuit, m = 0 an ablated one, and anything else is
between. In post-norm models (Gemma) a layer's heads enter a reader through the post-norm P, as
P(o' + sum_h m[h, v] (a_h - a'_h)) - P(o'), where o' is their sum in the reference run.

`with_rules` gives a decoder with the same weights, and whatever differentiates it follows the
rules (`BackwardRules`); the forward pass stays what it is. The rules are those of GIM, Gradient
Interaction Modifications (Edin et al. 2025). GIM changes what gradients say about parts that
compensate for one another: of two redundant attention scores both have small gradients.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import GraphMismatch, one_of
from mechassay.models.decoder import Attention, Decoder, Mlp, Norm, Projection, Readout
from mechassay.models.forward import Contrast, continued
from mechassay.models.model import Model


def masked_readout(
    decoder: Decoder, contrast: Contrast, mask: Float[Tensor, "masks writers readers"]
) -> Readout:
    """Logits at the last column with the coefficient mask[., u, v] on every edge.

    All readers of a stage (a layer's queries, keys and values) are computed at once, from sums
    that are one batched product for each layer's writers. Under grouped-query attention every
    query head has keys and values of its own stream, by the shared weights. Only the columns
    from the contrast's `start` on are computed; in the last layer queries, the MLP and the
    logits at the last column only.

    A writer that no edge of the circuit reaches changes nothing if the reference is a run of
    the model. If it is made of constants, give a mask that is zero wherever an edge is on no
    path from `input` to `logits` (`Graph.on_paths`).

    Args:
        contrast: the two runs; gradients flow to the reference where it is differentiable.
        mask: one mask for all examples, or one for each. Places without an edge are not read.

    Raises:
        GraphMismatch: a mask of another graph's shape, or neither one mask nor one an example.
    """
    graph, n = decoder.graph, len(contrast.batch)
    if tuple(mask.shape[1:]) != (graph.n_writers, graph.n_readers) or len(mask) not in (1, n):
        allowed = f"[1 or {n}, {graph.n_writers}, {graph.n_readers}]"
        raise GraphMismatch(
            f"A mask of edges on this graph and batch needs shape {allowed}; got"
            f" {list(mask.shape)}."
        )
    mask = mask.to(contrast.other.embed).expand(n, -1, -1)
    return _MaskedRun(decoder, contrast, mask).readout()


class _Written(NamedTuple):
    """What some neighbouring writers changed, and the post-norm they pass, with its old input."""

    first: int
    changes: Float[Tensor, "batch writers pos d_model"]
    post: Norm | None = None
    base: Float[Tensor, "batch pos d_model"] | None = None


class _MaskedRun:
    """One batch of masks on one batch of examples."""

    def __init__(
        self,
        decoder: Decoder,
        contrast: Contrast,
        mask: Float[Tensor, "batch writers readers"],
    ) -> None:
        self.decoder, self.graph, self.contrast, self.mask = decoder, decoder.graph, contrast, mask
        self.reference, self.columns = contrast.other, contrast.other.embed.shape[1]
        self.written: list[_Written] = []

    def readout(self) -> Readout:
        graph, reference = self.graph, self.reference
        change = self.contrast.clean.embed[:, -self.columns :] - reference.embed
        self.written.append(_Written(0, change[:, None]))
        for index in range(graph.n_layers):
            if graph.parallel:
                mlp = self._mlp_change(index)
                self._write_heads(index)
            else:
                self._write_heads(index)
                mlp = self._mlp_change(index)
            if mlp is not None:
                self.written.append(_Written(graph.mlp_writer(index), mlp))
        final = self._streams(slice(graph.logits, graph.logits + 1), reference.final, last=True)
        return self.decoder.readout(final[:, 0, 0])

    def _streams(
        self, readers: slice, reference: Float[Tensor, "batch all_pos d_model"], *, last: bool
    ) -> Float[Tensor, "batch readers pos d_model"]:
        """What some readers of one stage see, given the reference stream there."""
        columns = slice(-1, None) if last else slice(None)
        base = reference[:, None, columns].expand(-1, readers.stop - readers.start, -1, -1)
        x = base.flatten(2)
        for part in self.written:
            changes = part.changes[:, :, columns].flatten(2)
            writers = slice(part.first, part.first + changes.shape[1])
            weights = self.mask[:, writers, readers].transpose(1, 2)
            if part.post is None:
                x = torch.baddbmm(x, weights, changes)
            else:
                assert part.base is not None
                before = part.base[:, None, columns]
                mixed = before + torch.bmm(weights, changes).view(base.shape)
                x = x + (part.post(mixed) - part.post(before)).flatten(2)
        return x.view(base.shape)

    def _write_heads(self, index: int) -> None:
        decoder, graph, contrast = self.decoder, self.graph, self.contrast
        attention, reference = decoder.layers[index].attention, self.reference.layers[index]
        last = index == graph.n_layers - 1
        slots, n_heads = graph.slots(index).start, graph.n_heads
        if last:
            q_in = self._streams(slice(slots, slots + n_heads), reference.before, last=True)
            rest = slice(slots + n_heads, slots + 3 * n_heads)
            k_in, v_in = self._streams(rest, reference.before, last=False).chunk(2, dim=1)
        else:
            streams = self._streams(graph.slots(index), reference.before, last=False)
            q_in, k_in, v_in = streams.chunk(3, dim=1)
        q = self._ready(index, attention.q, q_in, is_key=False)
        k = self._ready(index, attention.k, k_in, is_key=True)
        v = _project(attention.v, attention.norm(v_in)).transpose(1, 2)
        if contrast.start:
            past = contrast.clean.layers[index]
            k = continued(past.k, k, contrast.start)
            v = continued(past.v, v, contrast.start)
        z = decoder.attend(index, q, k, v, contrast.ctx)
        change = z - reference.z[:, :, -z.shape[2] :]
        wrote = torch.einsum("bhtk,hkd->bhtd", change, attention.out).contiguous()
        first, post = graph.head(index, 0), attention.post_norm
        self.written.append(_Written(first, wrote, post, reference.attended))

    def _ready(
        self,
        index: int,
        projection: Projection,
        x: Float[Tensor, "batch heads pos d_model"],
        *,
        is_key: bool,
    ) -> Tensor:
        start = self.contrast.start + self.columns - x.shape[2]
        raw = _project(projection, self.decoder.layers[index].attention.norm(x))
        return self.decoder.rotate(index, raw, self.contrast.ctx, is_key=is_key, start=start)

    def _mlp_change(self, index: int) -> Float[Tensor, "batch 1 pos d_model"] | None:
        mlp, reference = self.decoder.layers[index].mlp, self.reference.layers[index]
        if mlp is None or reference.mlp is None:
            return None
        last, reader = index == self.graph.n_layers - 1, self.graph.mlp_reader(index)
        wrote = mlp(self._streams(slice(reader, reader + 1), reference.middle, last=last))
        return wrote - reference.mlp[:, None, -wrote.shape[2] :]


def _project(
    projection: Projection, x: Float[Tensor, "batch heads pos d_model"]
) -> Float[Tensor, "batch pos heads d_head"]:
    """Each head's own input by its weights, which several query heads may share."""
    shared = projection.weight.shape[0]
    raw = torch.einsum("bngtd,nkd->btngk", x.unflatten(1, (shared, -1)), projection.weight)
    if projection.bias is not None:
        raw = raw + projection.bias[:, None]
    return raw.flatten(2, 3)


BACKWARD = ("plain", "gim")


@dataclass(frozen=True)
class BackwardRules:
    """How gradients are changed; the defaults are GIM's (Edin et al. 2025).

        norms        the scale of every norm is a constant (a LayerNorm's mean is not)
        softmax      its Jacobian is taken at scores / T; no factor 1/T
        q, k, v      gradients are multiplied by 1/4, 1/4, 1/2: factors of a product share their
                     credit
        gate, up     gradients are multiplied by 1/2 each, in gated MLPs

    Their published code freezes only LayerNorms and RMSNorms of PyTorch's own in its Hugging
    Face mode, not Llama's and Gemma's; here all norms are frozen, as in its TransformerLens
    mode.
    """

    freeze_norm: bool = True
    temperature: float = 2.0
    q: float = 0.25
    k: float = 0.25
    v: float = 0.5
    gate: float = 0.5
    up: float = 0.5


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


class _SoftmaxAt(torch.autograd.Function):
    """The softmax over the last axis, with the Jacobian at x / temperature, times temperature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(torch.softmax(x / temperature, dim=-1))
        return torch.softmax(x, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (at,) = ctx.saved_tensors
        return at * (gradient - (gradient * at).sum(-1, keepdim=True)), None


def with_rules(decoder: Decoder, rules: BackwardRules) -> Decoder:
    """A decoder with the same weights whose gradients follow the rules."""

    def norm(own_norm: Norm) -> Norm:
        return replace(own_norm, frozen=rules.freeze_norm)

    def maybe(own_norm: Norm | None) -> Norm | None:
        return None if own_norm is None else norm(own_norm)

    softmax: Any = _SoftmaxAt.apply

    def attention(own_attention: Attention) -> Attention:
        return replace(
            own_attention,
            norm=norm(own_attention.norm),
            q_norm=maybe(own_attention.q_norm),
            k_norm=maybe(own_attention.k_norm),
            post_norm=maybe(own_attention.post_norm),
            softmax=lambda x: softmax(x, rules.temperature),
            credit=lambda q, k, v: tuple(
                _Scaled.apply(x, by) for x, by in ((q, rules.q), (k, rules.k), (v, rules.v))
            ),  # pyright: ignore[reportArgumentType]
        )

    def mlp(own_mlp: Mlp) -> Mlp:
        def credit(gate: Tensor, up: Tensor) -> Any:
            return _Scaled.apply(gate, rules.gate), _Scaled.apply(up, rules.up)

        gated = None if own_mlp.gate is None else credit
        return replace(
            own_mlp, norm=norm(own_mlp.norm), post_norm=maybe(own_mlp.post_norm), credit=gated
        )

    layers = tuple(
        replace(layer, attention=attention(layer.attention), mlp=layer.mlp and mlp(layer.mlp))
        for layer in decoder.layers
    )
    return replace(decoder, layers=layers, final_norm=norm(decoder.final_norm))


def backward_model(model: Model, backward: str) -> Model:
    """The model itself ("plain"), or one whose gradients follow other rules ("gim").

    Raises:
        UnknownName: no such rules.
    """
    if one_of("backward rules", backward, BACKWARD) == "plain":
        return model
    return replace(model, decoder=with_rules(model.decoder, BackwardRules()))
