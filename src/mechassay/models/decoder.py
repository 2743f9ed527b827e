"""A functional decoder over the weights of an unmodified Hugging Face causal LM.

    embed -> for each layer: norm, q/k/v per head, rotary, attention mix, W_O, [post-norm],
             norm, MLP, [post-norm] -> final norm -> unembed

Families differ by data alone. Attribution and circuit evaluation put the pieces together in their
own order; biases of W_O belong to no writer and are constants. Weights are views of the original
parameters (except where a fused layout forbids it). Batches are left-padded: every prompt ends in
the last column (see `pairs.Batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.models.graph import Graph
from mechassay.models.rotary import Rotary, RotaryTable


def at_least_fp32(x: Tensor) -> Tensor:
    """`x` in fp32, or in its own dtype where that is wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class NormStatistics(NamedTuple):
    """What a norm's Jacobian needs: the normalised input and the reciprocal scale."""

    xhat: Float[Tensor, "... d_model"]
    rscale: Float[Tensor, "... 1"]


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm (`centred`) or RMSNorm; computed in fp32 at least, returned in the input's dtype.

    `weight` is what the normalised vector is multiplied with (Gemma's stored w enters as 1 + w).
    Without `eps` nothing is divided: the input is multiplied by the weight alone. A `frozen` norm
    has the same value, but its scale is a constant to whatever differentiates it. Norms of several
    heads, or RMSNorms of several layers, may be applied at once, each to its own values.
    """

    weight: Float[Tensor, "*several d"]
    bias: Float[Tensor, "d"] | None
    eps: float | None
    centred: bool
    frozen: bool = False

    @property
    def scale_is_constant(self) -> bool:
        """The scale does not depend on the input, or is taken as if it did not."""
        return self.frozen or self.eps is None

    def __call__(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
        if self.centred and self.eps is not None and not self.frozen and self.weight.ndim == 1:
            wide = at_least_fp32(x)
            weight = self.weight.to(wide.dtype)
            bias = None if self.bias is None else self.bias.to(wide.dtype)
            return F.layer_norm(wide, wide.shape[-1:], weight, bias, self.eps).to(x.dtype)
        return self.scaled(self.normalise(x)).to(x.dtype)

    def normalise(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
        """The input without its scale (and mean), before weight and bias."""
        wide = at_least_fp32(x)
        if self.eps is None:
            return wide
        if self.frozen:
            wide = wide - wide.mean(-1, keepdim=True) if self.centred else wide
            return wide * torch.rsqrt(wide.detach().square().mean(-1, keepdim=True) + self.eps)
        if self.centred:
            return F.layer_norm(wide, wide.shape[-1:], None, None, self.eps)
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)

    def scaled(self, xhat: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
        """Weight and bias on a normalised input."""
        scaled = xhat * self.weight.to(xhat.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(xhat.dtype)

    def statistics(self, x: Float[Tensor, "*lead d"]) -> NormStatistics:
        """Normalised input and reciprocal scale, for Jacobians."""
        wide = at_least_fp32(x)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        if self.eps is None:
            return NormStatistics(wide, torch.ones_like(wide[..., :1]))
        rscale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return NormStatistics(wide * rscale, rscale)

    def push_forward(
        self, delta: Float[Tensor, "*lead d"], at: NormStatistics
    ) -> Float[Tensor, "*lead d"]:
        """J delta: the first-order change of the norm's output.

        With s = 1/scale: J = diag(w) s (I - [11^T/d] - xhat xhat^T/d); the bracket only for
        LayerNorm, the last term only where the scale depends on the input.
        """
        flat = delta
        if not self.scale_is_constant:
            flat = delta - at.xhat * (delta * at.xhat).mean(-1, keepdim=True)
        if self.centred:
            flat = flat - delta.mean(-1, keepdim=True)
        return flat * at.rscale * self.weight.to(flat.dtype)

    def pull_back(
        self, gradient: Float[Tensor, "*lead d"], at: NormStatistics
    ) -> Float[Tensor, "*lead d"]:
        """J^T gradient, with the J of `push_forward`: from the norm's output to its input."""
        weighted = flat = gradient * self.weight.to(at.xhat.dtype)
        if not self.scale_is_constant:
            flat = weighted - at.xhat * (weighted * at.xhat).mean(-1, keepdim=True)
        if self.centred:
            flat = flat - weighted.mean(-1, keepdim=True)
        return flat * at.rscale


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map into heads: weight [heads, d_head, d_model], bias [heads, d_head] or None.

    `norm` follows it where it is not one norm that all heads share: one over the numbers of all
    heads together (a weight [heads * d_head]), or one of each head's own (weights [heads, d_head]).
    """

    weight: Float[Tensor, "heads d_head d_model"]
    bias: Float[Tensor, "heads d_head"] | None
    norm: Norm | None = None

    def __call__(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead heads d_head"]:
        return self.normed(self.linear(x))

    def linear(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead heads d_head"]:
        """The map without its norm."""
        heads, width, d_model = self.weight.shape
        bias = None if self.bias is None else self.bias.reshape(-1)
        out = F.linear(x, self.weight.reshape(heads * width, d_model), bias)
        return out.unflatten(-1, (heads, width))

    def normed(
        self, raw: Float[Tensor, "*lead heads d_head"]
    ) -> Float[Tensor, "*lead heads d_head"]:
        """The norm of what `linear` gives."""
        if self.norm is None:
            return raw
        if self.norm.weight.ndim == 2:
            return self.norm(raw)
        return self.norm(raw.flatten(-2)).unflatten(-1, raw.shape[-2:])

    def of_heads(
        self, x: Float[Tensor, "*lead d_model"], heads: Int[Tensor, "n"]
    ) -> Float[Tensor, "*lead n d_head"]:
        """For some heads alone."""
        if self.norm is not None:
            return self(x)[..., heads, :]
        # Several times as fast as an index in brackets.
        weight = self.weight.index_select(0, heads).flatten(0, 1)
        bias = None if self.bias is None else self.bias.index_select(0, heads).flatten()
        return F.linear(x, weight, bias).unflatten(-1, (len(heads), -1))

    def of_own_heads(
        self, x: Float[Tensor, "n batch pos d_model"], heads: Int[Tensor, "n"]
    ) -> Float[Tensor, "batch pos n d_head"]:
        """Project input `x[i]` into head `heads[i]`. A norm over all heads is that of `x[i]`."""
        if self.norm is not None:
            pairs = zip(x, heads.split(1), strict=True)
            return torch.cat([self.of_heads(own, head) for own, head in pairs], dim=-2)
        raw = torch.bmm(x.flatten(1, 2), self.weight.index_select(0, heads).transpose(1, 2))
        if self.bias is not None:
            raw += self.bias.index_select(0, heads)[:, None]
        return raw.unflatten(1, x.shape[1:3]).permute(1, 2, 0, 3)


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer's attention. `out` maps head h's mix z_h to z_h @ out[h]; `out_bias` is no head's.

    `rotary` names a table of the decoder, or is None where positions rotate nothing. It turns
    dimensions i and i + n/2 of the first n together, or 2i and 2i + 1 where `interleaved`.
    `softmax` and `credit` (of queries, keys and values) are set where gradients follow other rules.
    """

    norm: Norm
    q: Projection
    k: Projection
    v: Projection
    out: Float[Tensor, "heads d_head d_model"]
    out_bias: Float[Tensor, "d_model"] | None
    scale: float
    softcap: float | None = None
    window: int | None = None
    rotary: str | None = None
    interleaved: bool = False
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    post_norm: Norm | None = None
    softmax: Callable[[Tensor], Tensor] | None = None
    credit: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None

    @property
    def n_heads(self) -> int:
        return self.q.weight.shape[0]

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.k.weight.shape[0]

    def rotate(
        self, raw: Tensor, ctx: Context, *, is_key: bool, start: int = 0
    ) -> Float[Tensor, "batch heads pos d_head"]:
        """Projected queries or keys [batch, pos, heads, d_head] after q/k norm and rotary."""
        norm = self.k_norm if is_key else self.q_norm
        x = (raw if norm is None else norm(raw)).transpose(1, 2)
        if self.rotary is None:
            return x
        columns = slice(start, start + x.shape[2])
        cos, sin = (table[:, None, columns] for table in ctx.rotary[self.rotary])
        width = cos.shape[-1]
        turned = x[..., :width]
        if self.interleaved:
            other = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
        else:
            first, second = turned.chunk(2, dim=-1)
            other = torch.cat((-second, first), dim=-1)
        turned = turned * cos + other * sin
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)

    def attend(
        self,
        q: Float[Tensor, "batch heads query d_head"],
        k: Float[Tensor, "batch kv_heads pos d_head"],
        v: Float[Tensor, "batch kv_heads pos d_head"],
        ctx: Context,
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Each head's mix of values, for queries of the last columns and keys of all columns."""
        n_query, n_key = q.shape[2], k.shape[2]
        mask = ctx.allowed[self.window]
        if mask is not None:
            mask = mask[:, :, n_key - n_query :]
        elif 1 < n_query < n_key:
            rows = torch.arange(n_key - n_query, n_key, device=q.device)
            mask = (rows[:, None] >= torch.arange(n_key, device=q.device)[None, :])[None, None]
        repeats = q.shape[1] // k.shape[1]
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        if self.credit is not None:
            q, k, v = self.credit(q, k, v)
        if self.softcap is None and self.softmax is None:
            causal = mask is None and n_query > 1
            dtype = v.dtype
            if q.device.type == "cpu":
                # Of 16 bits, its gradients take seven times as long as those of 32.
                q, k, v = at_least_fp32(q), at_least_fp32(k), at_least_fp32(v)
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=self.scale
            ).to(dtype)
        scores = q @ k.transpose(2, 3) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is None and n_query > 1:
            mask = torch.ones(n_query, n_key, dtype=torch.bool, device=q.device)
            mask = mask.tril(n_key - n_query)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        softmax = self.softmax or (lambda x: torch.softmax(x, dim=-1))
        return softmax(at_least_fp32(scores)).to(v.dtype) @ v


@dataclass(frozen=True, eq=False)
class Mlp:
    """One layer's MLP: down(act(up(x))), or down(act(gate(x)) * up(x)) where gated.

    Weights are [out, in]. `credit` (of the gate's and the up projection's outputs) is set where
    gradients follow other rules.
    """

    norm: Norm
    up: Float[Tensor, "*experts d_mlp d_model"]
    down: Float[Tensor, "*experts d_model d_mlp"]
    act: Callable[[Tensor], Tensor]
    gate: Float[Tensor, "*experts d_mlp d_model"] | None = None
    up_bias: Float[Tensor, "d_mlp"] | None = None
    gate_bias: Float[Tensor, "d_mlp"] | None = None
    down_bias: Float[Tensor, "d_model"] | None = None
    post_norm: Norm | None = None
    credit: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    @property
    def width(self) -> int:
        """Hidden numbers of a token."""
        return self.up.shape[-2]

    def __call__(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """What the MLP writes, given the residual stream (its norms included)."""
        out = self.inside(self.norm(x))
        return out if self.post_norm is None else self.post_norm(out)

    def inside(self, y: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """The MLP between its norms."""
        up = F.linear(y, self.up, self.up_bias)
        if self.gate is None:
            inner = self.act(up)
        else:
            gate = F.linear(y, self.gate, self.gate_bias)
            gate, up = (gate, up) if self.credit is None else self.credit(gate, up)
            inner = self.act(gate) * up
        return F.linear(inner, self.down, self.down_bias)


@dataclass(frozen=True, eq=False, kw_only=True)
class Experts(Mlp):
    """A mixture of experts, one node of the graph: the router's best `top_k` by softmax, weighted.

        p = softmax(W_r y),   sum over the k largest p_e of p_e * down_e(act(gate_e(y)) * up_e(y))

    with p divided by the sum of those k if `normalised`. The router reads what the experts read:
    in a circuit it chooses anew. Gradients pass through p, not through the choice.
    """

    router: Float[Tensor, "experts d_model"]
    top_k: int
    normalised: bool

    @property
    def width(self) -> int:
        return self.up.shape[-2] * self.top_k

    def inside(self, y: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        tokens = y.reshape(-1, y.shape[-1])
        shares, chosen = at_least_fp32(F.linear(tokens, self.router)).softmax(-1).topk(self.top_k)
        if self.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        # Sorted by expert, so that each is run once, on its tokens.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.router)).tolist()
        groups = tokens[order // self.top_k].split(counts)
        outs = [self._expert(e, own) for e, own in enumerate(groups) if len(own)]
        wrote = torch.cat(outs)[order.argsort()].unflatten(0, (-1, self.top_k))
        return (wrote * shares[..., None]).sum(1).to(y.dtype).view_as(y)

    def _expert(
        self, number: int, y: Float[Tensor, "tokens d_model"]
    ) -> Float[Tensor, "tokens d_model"]:
        assert self.gate is not None
        own = Mlp(
            self.norm,
            up=self.up[number],
            gate=self.gate[number],
            down=self.down[number],
            act=self.act,
            credit=self.credit,
        )
        return own.inside(y)


@dataclass(frozen=True, eq=False)
class Layer:
    """Attention and MLP; `mlp` is None in attention-only models."""

    attention: Attention
    mlp: Mlp | None


@dataclass(frozen=True, eq=False)
class Context:
    """What depends on padding alone: positions, rotary tables and attention masks of a batch."""

    position_ids: Int[Tensor, "batch pos"]
    rotary: Mapping[str, tuple[Tensor, Tensor]]
    allowed: Mapping[int | None, Bool[Tensor, "batch 1 pos pos"] | None]

    def repeat(self, times: int) -> Context:
        """The context of the batch repeated `times` times along its first axis."""
        rotary = {
            kind: (cos.repeat(times, 1, 1), sin.repeat(times, 1, 1))
            for kind, (cos, sin) in self.rotary.items()
        }
        allowed = {
            window: None if mask is None else mask.repeat(times, 1, 1, 1)
            for window, mask in self.allowed.items()
        }
        return Context(self.position_ids.repeat(times, 1), rotary, allowed)

    def beginning(self, stop: int) -> Context:
        """The context of the columns before `stop` alone; nothing is copied."""
        rotary = {kind: (cos[:, :stop], sin[:, :stop]) for kind, (cos, sin) in self.rotary.items()}
        allowed = {
            window: None if mask is None else mask[:, :, :stop, :stop]
            for window, mask in self.allowed.items()
        }
        return Context(self.position_ids[:, :stop], rotary, allowed)


@dataclass(frozen=True, eq=False)
class Decoder:
    """All weights of a causal LM and the pieces of its forward pass."""

    embedding: Float[Tensor, "vocab d_model"]
    embed_scale: float | None
    positions: Float[Tensor, "n_positions d_model"] | None
    layers: tuple[Layer, ...]
    final_norm: Norm
    unembedding: Float[Tensor, "vocab d_model"]
    rotaries: Mapping[str, Rotary]
    parallel: bool = False
    unembed_bias: Float[Tensor, "vocab"] | None = None
    logit_softcap: float | None = None
    n_rotations: int | None = None
    """How many positions a rotary table of a fixed length has."""

    @property
    def longest(self) -> int | None:
        """Return how many tokens a prompt may have: the length of the table of positions, or None
        if the model has no table.
        """
        return self.n_rotations if self.positions is None else len(self.positions)

    @property
    def d_model(self) -> int:
        return self.embedding.shape[1]

    @property
    def n_heads(self) -> int:
        return self.layers[0].attention.n_heads

    @cached_property
    def graph(self) -> Graph:
        """Writers, readers and edges of this decoder."""
        mlp = self.layers[0].mlp is not None
        return Graph(len(self.layers), self.n_heads, parallel=self.parallel, mlp=mlp)

    @property
    def has_post_norm(self) -> bool:
        """A layer's heads are summed and normed before they enter the stream (Gemma-2, OLMo-2)."""
        return any(layer.attention.post_norm is not None for layer in self.layers)

    def embed(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """What the `input` node writes: token embeddings."""
        rows = F.embedding(tokens, self.embedding)
        if self.embed_scale is None:
            return rows
        return rows * torch.tensor(self.embed_scale, dtype=rows.dtype, device=rows.device)

    @cached_property
    def rotary_tables(self) -> Mapping[str, RotaryTable]:
        """Return the rotary tables by name; a prompt has the same values alone and in a batch."""
        return {kind: RotaryTable.of(table) for kind, table in self.rotaries.items()}

    def rotary(
        self, position_ids: Int[Tensor, "batch pos"], lengths: Int[Tensor, "batch"]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Compute cosines and sines by name; `lengths` are each prompt's last position plus 1."""
        like = self.embedding[:1]
        tables = self.rotary_tables.items()
        return {kind: table(like, position_ids, lengths) for kind, table in tables}

    def rotary_key(self, length: int) -> tuple[int, ...]:
        """Return a key that is equal for prompt lengths with the same rotary frequencies."""
        return tuple(table.key(length) for table in self.rotary_tables.values())

    def context(self, mask: Bool[Tensor, "batch pos"], first: int = 0) -> Context:
        """Positions, rotary tables and masks for a left-padded batch.

        Columns behind a row's last token, if there are any, are padding too: their positions go on,
        they see the prompt alone, and nothing sees them.

        Args:
            first: the position of every prompt's first token.
        """
        n = mask.shape[1]
        columns = torch.arange(n, device=mask.device)
        position_ids = (columns - mask.int().argmax(1, keepdim=True)).clamp(min=0) + first
        rotary = self.rotary(position_ids, mask.sum(1) + first)
        distance = columns[:, None] - columns[None, :]
        padded = not bool(mask.all())
        allowed: dict[int | None, Tensor | None] = {}
        for window in {layer.attention.window for layer in self.layers}:
            if not padded and (window is None or n <= window):
                allowed[window] = None
                continue
            seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            seen = seen & mask[:, None, :]
            # Padding before a prompt sees itself, so that no row of the softmax is empty.
            empty = ~seen.any(dim=2, keepdim=True)
            allowed[window] = (seen | (empty & (distance == 0)))[:, None]
        return Context(position_ids, rotary, allowed)

    def add_positions(
        self, embeds: Float[Tensor, "batch pos d_model"], ctx: Context, start: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream entering layer 0; learned positions belong to no writer."""
        if self.positions is None:
            return embeds
        return embeds + F.embedding(ctx.position_ids[:, start:], self.positions)

    def head_outputs(
        self,
        layer: int,
        z: Float[Tensor, "batch n pos d_head"],
        heads: slice | Tensor = slice(None),
        *,
        out: Float[Tensor, "n batch pos d_model"] | None = None,
    ) -> Float[Tensor, "n batch pos d_model"]:
        """What each of the chosen heads writes, before any post-norm; into `out` if given."""
        weight = self.layers[layer].attention.out
        weight = weight[heads] if isinstance(heads, slice) else weight.index_select(0, heads)
        n_batch, n_heads, n_pos, width = z.shape
        flat = z.transpose(0, 1).reshape(n_heads, n_batch * n_pos, width)
        if out is not None:
            torch.bmm(flat, weight, out=out.flatten(1, 2))
            return out
        return torch.bmm(flat, weight).view(n_heads, n_batch, n_pos, self.d_model)

    def attention_sum(
        self, layer: int, z: Float[Tensor, "batch heads pos d_head"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The sum of all heads and the output bias, before any post-norm."""
        attention = self.layers[layer].attention
        heads, width, d_model = attention.out.shape
        weight = attention.out.reshape(heads * width, d_model).t()
        return F.linear(z.transpose(1, 2).flatten(2), weight, attention.out_bias)

    def readout(self, stream: Float[Tensor, "batch d_model"]) -> Readout:
        """Logits, on demand, of final residual-stream vectors."""
        return Readout(self.final_norm(stream), self)


@dataclass(frozen=True, eq=False)
class Readout:
    """Logits of some normed final vectors, in fp32 at least, computed only where asked for."""

    hidden: Float[Tensor, "batch d_model"]
    decoder: Decoder

    def at(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        """Logits of the given tokens."""
        rows = at_least_fp32(F.embedding(tokens, self.decoder.unembedding))
        logits = (rows @ at_least_fp32(self.hidden)[:, :, None]).squeeze(-1)
        if self.decoder.unembed_bias is not None:
            logits = logits + self.decoder.unembed_bias[tokens]
        return self._capped(logits)

    def all(self) -> Float[Tensor, "batch vocab"]:
        """Logits of the whole vocabulary."""
        decoder = self.decoder
        logits = F.linear(self.hidden, decoder.unembedding, decoder.unembed_bias)
        return self._capped(at_least_fp32(logits))

    def repeat(self, times: int) -> Readout:
        """The readout of the batch repeated `times` times, copy after copy."""
        return Readout(self.hidden.repeat(times, 1), self.decoder)

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self.decoder.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
