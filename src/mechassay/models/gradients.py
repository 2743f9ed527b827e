"""Gradients of circuits: by real-valued masks of edges, and by other rules for the backward pass.

`masked_readout` evaluates circuits with a coefficient m[u, v] on every edge, differentiable by
the mask. Every reader v, in the order of computation, sees

    x_v = R'_v + sum_u m[u, v] (a_u - a'_u),

the definition of a circuit, with a_u computed from masked inputs and R'_v, a'_u
of the reference run; m = 1 is an edge of the circuit, m = 0 an ablated one, and anything else is
between. In post-norm models (Gemma) a layer's heads enter a reader through the post-norm P, as
P(o' + sum_h m[h, v] (a_h - a'_h)) - P(o'), where o' is their sum in the reference run.

`with_rules` gives a decoder with the same weights, and whatever differentiates it follows the
rules (`BackwardRules`); the forward pass stays what it is. Gradients say little of parts that
compensate for one another, such as two redundant attention scores, and nothing of a saturated
activation: the rules share out what a part contributes instead.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.models.computing import compiled
from mechassay.models.decoder import (
    Attention,
    Context,
    Decoder,
    Mlp,
    Norm,
    Projection,
    Readout,
)
from mechassay.models.forward import (
    Contrast,
    LayerTrace,
    constants_of,
    continued,
    first_run_column,
    trace,
)
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch


def masked_readout(
    decoder: Decoder, contrast: Contrast, mask: Float[Tensor, "masks writers readers"]
) -> Readout:
    """Logits at the last column with the coefficient mask[., u, v] on every edge.

    All readers of a layer are computed from one product of the mask with what was written before
    the layer; what its heads add to its MLP's stream is a second one. Under grouped-query
    attention every query head has keys and values of its own stream, by the shared weights. Only
    the columns from the contrast's `start` on are computed; in the last layer queries, the MLP
    and the logits at the last column only.

    A writer that no edge of the circuit reaches changes nothing if the reference is a run of
    the model. If it is made of constants, give a mask that is zero wherever an edge is on no
    path from `input` to `logits` (`Graph.on_paths`).

    Args:
        contrast: the two runs; gradients flow to the reference where it is differentiable.
        mask: one mask for all examples, or one for each. Places without an edge are not read.

    Raises:
        GraphMismatch: a mask of another graph's shape, or neither one mask nor one an example.
        BadUsage: post-norms that are trained: they would have no gradient.
    """
    graph, n = decoder.graph, len(contrast.batch)
    if tuple(mask.shape[1:]) != (graph.n_writers, graph.n_readers) or len(mask) not in (1, n):
        allowed = f"[1 or {n}, {graph.n_writers}, {graph.n_readers}]"
        raise GraphMismatch(
            f"A mask of edges on this graph and batch needs shape {allowed}; got"
            f" {list(mask.shape)}."
        )
    return _MaskedRun(decoder, contrast, mask.to(contrast.other.embed)).readout()


class KeptContrasts:
    """What `masked_readout` reads of both runs of every pair, kept for a training that meets each
    pair many times: of the clean run keys and values, of the other all but these.

    Args:
        width: see `Contrast.run`.
    """

    @torch.no_grad()
    def __init__(self, decoder: Decoder, batch: Batch, width: Callable[[int], int] = int) -> None:
        batch = batch.widened(width(batch.n_tokens))
        ctx = decoder.context(batch.mask)
        whole = trace(decoder, decoder.embed(batch.clean), ctx)
        ends = {"embed": whole.embed, "final": whole.final}
        clean = replace(whole.keys_and_values(), **ends)
        # Else two whole runs would be held at once.
        del whole
        self.decoder, self.width, self.clean = decoder, width, clean
        other = Contrast.beside(decoder, batch, ctx, clean, width).other
        self.other = other.without_keys_and_values()

    def of(self, rows: Sequence[int], chunk: Batch) -> Contrast:
        """The contrast of the pairs at `rows`, which are those of the chunk, up to rounding."""
        index = torch.as_tensor(rows, device=chunk.clean.device)
        start = 0 if constants_of(chunk) is not None else first_run_column(chunk, self.width)
        clean = self.clean.last_columns(index, chunk.n_tokens, 0)
        other = self.other.last_columns(index, chunk.n_tokens, start)
        return Contrast(chunk, self.decoder.context(chunk.mask), start, clean, other)


class _MaskedChanges:
    """What every writer changed, in one buffer, and in the backward pass the gradients by it.

    The readers of a stage see one product of the mask with all that was written before them. The
    gradients of all stages are added up in place, so that autograd keeps no partial sums.
    `_Enter`, `_Write` and `_Read` pass on an empty tensor, the order: by it autograd comes to a
    write after all reads that follow it, and to the mask last.

    Examples that share a mask are columns of one product: values are [masks, writers, examples of
    a mask, pos, d_model]. `attended` is what the layers' post-norms read in the reference run.
    """

    def __init__(
        self, decoder: Decoder, mask: Float[Tensor, "masks writers readers"], embed: Tensor
    ) -> None:
        graph, shape = decoder.graph, (len(embed) // len(mask), *embed.shape[1:])
        self.graph, self.mask, self.n_written = graph, mask.detach(), 0
        self.values = embed.new_empty(len(mask), graph.n_writers, *shape)
        norms = [layer.attention.post_norm for layer in decoder.layers]
        posts = [norm for norm in norms if norm is not None]
        self.attended = embed.new_empty(len(mask), len(posts), *shape)
        self.learns_attended = False
        self.post: Norm | None = None
        if posts:
            weights = torch.stack([norm.weight for norm in posts])
            if weights.requires_grad:
                raise BadUsage("Masks of edges have no gradient by the weights of post-norms.")
            self.post = replace(posts[0], weight=weights[:, None, None, None])

    def begin_gradients(self) -> None:
        """Zeros, to which the stages add."""
        self.by_mask, self.by_values = torch.zeros_like(self.mask), torch.zeros_like(self.values)
        self.by_attended = torch.zeros_like(self.attended)

    def of_masks(self, x: Tensor) -> Tensor:
        """[batch, some, ...] as [masks, some, examples of a mask, ...]."""
        return x.unflatten(0, (len(self.mask), -1)).transpose(1, 2)

    def seen(
        self, rows: slice, readers: slice, n_pos: int
    ) -> Float[Tensor, "batch readers pos d_model"]:
        """What neighbouring writers add to the streams of some readers, in the last columns."""
        plain = self._plain(rows)
        values = self.values[:, plain, :, -n_pos:]
        product = torch.bmm(self.mask[:, plain, readers].mT, values.flatten(2))
        sums = product.unflatten(2, values.shape[2:])
        if self._layers(rows):
            norm, before, mixed = self._mixed(rows, readers, n_pos)
            sums = sums + (_of_layers(norm, mixed) - _of_layers(norm, before)).sum(1)
        return sums.transpose(1, 2).flatten(0, 1)

    def add_gradient(
        self, rows: slice, readers: slice, gradient: Float[Tensor, "batch readers pos d_model"]
    ) -> None:
        """Add what follows from a gradient by `seen`."""
        plain, n_pos = self._plain(rows), gradient.shape[2]
        by_sums = self.of_masks(gradient)
        flat = by_sums.flatten(2)
        values = self.values[:, plain, :, -n_pos:]
        self.by_mask[:, plain, readers] = torch.bmm(values.flatten(2), flat.mT)
        by_values, weights = self.by_values[:, plain, :, -n_pos:], self.mask[:, plain, readers]
        if n_pos == self.values.shape[3]:
            by_values.flatten(2).baddbmm_(weights, flat)
        else:
            by_values += torch.bmm(weights, flat).view(values.shape)
        if self._layers(rows):
            self._add_gradient_of_heads(rows, readers, by_sums)

    def _add_gradient_of_heads(
        self, rows: slice, readers: slice, by_sums: Float[Tensor, "masks readers ..."]
    ) -> None:
        layers, n_pos = self._layers(rows), by_sums.shape[-2]
        norm, before, mixed = self._mixed(rows, readers, n_pos)
        by_normed = by_sums[:, None].expand_as(mixed)
        by_mixed = norm.pull_back(by_normed, norm.statistics(mixed))
        if self.learns_attended:
            every = by_normed.sum(2, keepdim=True)
            by_before = by_mixed.sum(2, keepdim=True)
            by_before = by_before - norm.pull_back(every, norm.statistics(before))
            self.by_attended[:, layers.start : layers.stop, :, -n_pos:] += by_before[:, :, 0]
        flat = by_mixed.to(by_sums.dtype).flatten(3)
        heads, by_heads = (
            self._heads(x, layers)[..., -n_pos:, :] for x in (self.values, self.by_values)
        )
        weights, by_mask = (self._heads(x, layers)[..., readers] for x in (self.mask, self.by_mask))
        by_mask.copy_(heads.flatten(3) @ flat.mT)
        by_heads += (weights @ flat).view(heads.shape)

    def _plain(self, rows: slice) -> slice:
        """Those of the writers that enter the stream as they are: not heads that are normed."""
        if self.post is None:
            return rows
        step = self.graph.writers_per_layer if self.graph.mlp else self.graph.n_writers
        return slice(-(-rows.start // step) * step, rows.stop, step)

    def _layers(self, rows: slice) -> range:
        """The layers of the writers whose heads pass a post-norm."""
        if self.post is None:
            return range(0)
        ends = (rows.start, rows.stop)
        return range(*((end - 1 + self.graph.mlp) // self.graph.writers_per_layer for end in ends))

    def _heads(self, x: Tensor, layers: range) -> Float[Tensor, "masks layers heads ..."]:
        """The heads of some layers, of something by mask and writer: a view."""
        begin, step = self.graph.head(layers.start, 0), self.graph.writers_per_layer
        rows = x[:, begin : begin + len(layers) * step]
        return rows.unflatten(1, (len(layers), step))[:, :, : self.graph.n_heads]

    def _mixed(self, rows: slice, readers: slice, n_pos: int) -> tuple[Norm, Tensor, Tensor]:
        """Post-norms of the writers' layers, and what they read: in the reference run, and for each
        reader [masks, layers, readers, examples of a mask, pos, d_model].
        """
        assert self.post is not None
        layers = self._layers(rows)
        norm = replace(self.post, weight=self.post.weight[layers.start : layers.stop])
        before = self.attended[:, layers.start : layers.stop, None, :, -n_pos:]
        heads = self._heads(self.values, layers)[..., -n_pos:, :]
        mixed = self._heads(self.mask, layers)[..., readers].mT @ heads.flatten(3)
        return norm, before, before + mixed.unflatten(3, heads.shape[3:])


def _of_layers(
    norm: Norm, x: Float[Tensor, "masks layers ..."]
) -> Float[Tensor, "masks layers ..."]:
    """A norm of each layer's own weight."""
    return norm.scaled(norm.normalise(x)).to(x.dtype)


class _Enter(torch.autograd.Function):
    """The mask: what follows it in the order reads it."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, changes: _MaskedChanges) -> Tensor:
        # Saved, so that autograd refuses a mask that was changed in place.
        ctx.save_for_backward(mask)
        ctx.changes = changes
        return mask.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors
        return ctx.changes.by_mask, None


class _Write(torch.autograd.Function):
    """Put into the buffer what the next writers changed, in the last columns."""

    @staticmethod
    def forward(
        ctx: Any, order: Tensor, change: Tensor, attended: Tensor | None, changes: _MaskedChanges
    ) -> Tensor:
        begin, end = changes.n_written, changes.n_written + change.shape[1]
        ctx.place = slice(None), slice(begin, end), slice(None), slice(-change.shape[2], None)
        changes.values[ctx.place] = changes.of_masks(change)
        ctx.changes, ctx.layer = changes, (begin - 1) // changes.graph.writers_per_layer
        if attended is not None:
            changes.learns_attended |= ctx.needs_input_grad[2]
            changes.attended[:, ctx.layer] = attended.view_as(changes.attended[:, ctx.layer])
        changes.n_written = end
        return order.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, order: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        changes, by_change, by_attended = ctx.changes, None, None
        if ctx.needs_input_grad[1]:
            by_change = changes.by_values[ctx.place].transpose(1, 2).flatten(0, 1)
        if ctx.needs_input_grad[2]:
            by_attended = changes.by_attended[:, ctx.layer].flatten(0, 1)
        return order, by_change, by_attended, None


class _Read(torch.autograd.Function):
    """What some neighbouring writers add to the streams of some readers, in the last columns."""

    @staticmethod
    def forward(
        ctx: Any, order: Tensor, changes: _MaskedChanges, rows: slice, readers: slice, n_pos: int
    ) -> Float[Tensor, "batch readers pos d_model"]:
        ctx.changes, ctx.rows, ctx.readers = changes, rows, readers
        return changes.seen(rows, readers, n_pos)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        changes: _MaskedChanges = ctx.changes
        if ctx.readers.stop == changes.graph.n_readers:
            changes.begin_gradients()
        changes.add_gradient(ctx.rows, ctx.readers, gradient)
        return gradient.new_empty(0), None, None, None, None


class _MaskedRun:
    """One batch of masks on one batch of examples."""

    def __init__(
        self, decoder: Decoder, contrast: Contrast, mask: Float[Tensor, "masks writers readers"]
    ) -> None:
        self.decoder, self.graph, self.contrast = decoder, decoder.graph, contrast
        self.reference, self.columns = contrast.other, contrast.other.embed.shape[1]
        self.changes = _MaskedChanges(decoder, mask, self.reference.embed)
        self.order = _Enter.apply(mask, self.changes)

    def readout(self) -> Readout:
        graph, reference = self.graph, self.reference
        self._write((self.contrast.clean.embed[:, -self.columns :] - reference.embed)[:, None])
        for index in range(graph.n_layers):
            self._layer(index)
        logits = slice(graph.logits, graph.logits + 1)
        stream = reference.final[:, None, -1:] + self._seen(logits, 1)
        return self.decoder.readout(stream[:, 0, 0])

    def _layer(self, index: int) -> None:
        """Write what the heads and the MLP of a layer change.

        What writers before the layer add is one product for all its readers, the MLP too; what
        its heads add to the MLP's stream comes later. In the last layer columns differ.
        """
        graph, reference, begin = self.graph, self.reference.layers[index], self.changes.n_written
        slots, n_heads, n_pos = graph.slots(index), graph.n_heads, self.columns
        if index == graph.n_layers - 1:
            n_pos, queries = 1, slice(slots.start, slots.start + n_heads)
            others = self._seen(slice(queries.stop, slots.stop), self.columns)
            streams = (self._seen(queries, 1), *others.chunk(2, dim=1))
            of_mlp = None
        else:
            every = self._seen(slice(slots.start, slots.stop + graph.mlp), n_pos)
            *streams, of_mlp = every.split((n_heads, n_heads, n_heads, graph.mlp), dim=1)
        runs = reference, self.contrast.clean.layers[index], self.contrast.ctx, self.contrast.start
        heads = compiled(_heads_change)(self.decoder.layers[index].attention, *runs, *streams)
        mlp, reader = self.decoder.layers[index].mlp, slice(slots.stop, slots.stop + 1)
        if mlp is None or reference.mlp is None:
            self._write(heads, reference.attended)
            return
        if of_mlp is None:
            of_mlp = self._seen(reader, n_pos)
        self._write(heads, reference.attended)
        if not graph.parallel:
            of_mlp = of_mlp + self._seen(reader, n_pos, begin)
        self._write(compiled(_mlp_change)(mlp, reference.middle, reference.mlp, of_mlp))

    def _seen(
        self, readers: slice, n_pos: int, begin: int = 0
    ) -> Float[Tensor, "batch readers pos d_model"]:
        """What writers so far, from one on, add to the streams of readers in the last columns."""
        rows = slice(begin, self.changes.n_written)
        return _Read.apply(self.order, self.changes, rows, readers, n_pos)

    def _write(
        self, change: Float[Tensor, "batch writers pos d_model"], attended: Tensor | None = None
    ) -> None:
        self.order = _Write.apply(self.order, change, attended, self.changes)


def _heads_change(
    attention: Attention,
    reference: LayerTrace,
    clean: LayerTrace,
    ctx: Context,
    start: int,
    of_queries: Float[Tensor, "batch heads queries d_model"],
    of_keys: Float[Tensor, "batch heads pos d_model"],
    of_values: Float[Tensor, "batch heads pos d_model"],
) -> Float[Tensor, "batch heads queries d_model"]:
    """What a layer's heads change, by what is added to the streams of queries, keys, values."""
    q_in, k_in, v_in = (
        reference.before[:, None, -x.shape[2] :] + x for x in (of_queries, of_keys, of_values)
    )
    end = start + k_in.shape[2]
    q = _project(attention.q, attention.norm(q_in))
    q = attention.rotate(q, ctx, is_key=False, start=end - q_in.shape[2])
    k = _project(attention.k, attention.norm(k_in))
    k = attention.rotate(k, ctx, is_key=True, start=start)
    v = _project(attention.v, attention.norm(v_in)).transpose(1, 2)
    if start:
        k, v = continued(clean.k, k, start), continued(clean.v, v, start)
    z = attention.attend(q, k, v, ctx)
    change = z - reference.z[:, :, -z.shape[2] :]
    return torch.einsum("bhtk,hkd->bhtd", change, attention.out)


def _mlp_change(
    mlp: Mlp,
    read: Float[Tensor, "batch columns d_model"],
    wrote: Float[Tensor, "batch columns d_model"],
    added: Float[Tensor, "batch 1 pos d_model"],
) -> Float[Tensor, "batch 1 pos d_model"]:
    """What an MLP changes, by what is added to the stream that it read in the reference run."""
    n_pos = added.shape[2]
    return mlp(read[:, None, -n_pos:] + added) - wrote[:, None, -n_pos:]


def _project(
    projection: Projection, x: Float[Tensor, "batch heads pos d_model"]
) -> Float[Tensor, "batch pos heads d_head"]:
    """Each head's own input by its weights, which several query heads may share."""
    shared = projection.weight.shape[0]
    if projection.norm is not None:
        # It may be over the numbers of all heads together: all are projected from each input.
        heads = torch.arange(x.shape[1], device=x.device)
        every = projection(x)[:, heads, :, heads // (len(heads) // shared)]
        return every.permute(1, 2, 0, 3)
    raw = torch.einsum("bngtd,nkd->btngk", x.unflatten(1, (shared, -1)), projection.weight)
    if projection.bias is not None:
        raw = raw + projection.bias[:, None]
    return raw.flatten(2, 3)


@dataclass(frozen=True)
class BackwardRules:
    """How gradients are changed.

        norms        the scale of every norm is a constant (a LayerNorm's mean is not)
        softmax      its Jacobian is taken at scores / T; no factor 1/T
        q, k, v      gradients are multiplied by these: factors of a product share their credit
        gate, up     likewise, in gated MLPs
        activation   "slope": its derivative; "ratio": act(x) / x, as if it were linear

    GIM (Edin et al. 2025), the defaults: 1/4, 1/4, 1/2 for q, k and v, halves in MLPs, T = 2.
    Their published code freezes only LayerNorms and RMSNorms of PyTorch's own in its Hugging
    Face mode, not Llama's and Gemma's; here all norms are frozen, as in its TransformerLens mode.

    AttnLRP (Achtibat et al. 2024) is the same at T = 1 with ratios: relevance is halved at each
    product of two activations, and a softmax is expanded where it is. RelP (Jafari et al. 2025)
    holds attention patterns constant: nothing reaches queries and keys, values get all.
    """

    freeze_norm: bool = True
    temperature: float = 2.0
    q: float = 0.25
    k: float = 0.25
    v: float = 0.5
    gate: float = 0.5
    up: float = 0.5
    activation: Literal["slope", "ratio"] = "slope"


RULES = {
    "gim": BackwardRules(),
    "attnlrp": BackwardRules(temperature=1.0, activation="ratio"),
    "relp": BackwardRules(temperature=1.0, q=0.0, k=0.0, v=1.0, activation="ratio"),
}
BACKWARD = ("plain", *RULES)


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


class _Ratio(torch.autograd.Function):
    """An activation function whose slope is act(x) / x; near 0, that at a small x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.act = act
        return act(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        small = 1e-6 if x.dtype in (torch.float32, torch.float64) else 1e-3
        away = torch.where(x.abs() < small, torch.full_like(x, small), x)
        return gradient * ctx.act(away) / away, None


def with_rules(decoder: Decoder, rules: BackwardRules) -> Decoder:
    """A decoder with the same weights whose gradients follow the rules."""

    def norm(own_norm: Norm) -> Norm:
        return replace(own_norm, frozen=rules.freeze_norm)

    def maybe(own_norm: Norm | None) -> Norm | None:
        return None if own_norm is None else norm(own_norm)

    def projection(own_projection: Projection) -> Projection:
        return replace(own_projection, norm=maybe(own_projection.norm))

    softmax: Any = _SoftmaxAt.apply

    def attention(own_attention: Attention) -> Attention:
        return replace(
            own_attention,
            norm=norm(own_attention.norm),
            q=projection(own_attention.q),
            k=projection(own_attention.k),
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

        def ratio(x: Tensor) -> Any:
            return _Ratio.apply(x, own_mlp.act)

        return replace(
            own_mlp,
            norm=norm(own_mlp.norm),
            post_norm=maybe(own_mlp.post_norm),
            credit=None if own_mlp.gate is None else credit,
            act=ratio if rules.activation == "ratio" else own_mlp.act,
        )

    layers = tuple(
        replace(layer, attention=attention(layer.attention), mlp=layer.mlp and mlp(layer.mlp))
        for layer in decoder.layers
    )
    return replace(decoder, layers=layers, final_norm=norm(decoder.final_norm))


def backward_model(model: Model, backward: str) -> Model:
    """The model itself ("plain"), or one whose gradients follow the `RULES` of that name.

    Raises:
        UnknownName: no such rules.
    """
    if one_of("backward rules", backward, BACKWARD) == "plain":
        return model
    return replace(model, decoder=with_rules(model.decoder, RULES[backward]), replicas=None)
