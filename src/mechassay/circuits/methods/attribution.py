"""Attribution of edges and of nodes: gradients at readers and writers, contracted with changes.

For a writer u and a reader v, attribution patching estimates the drop in the objective m when
u -> v carries the counterfactual activation (Syed et al. 2024; Mueller et al. 2025, eq. 3):

    S[u, v] = - sum_{positions} <a'_u - a_u, dm/dx_v>,   averaged over examples.

Inputs are not split: a head's q, k and v readers all see the stream x through one norm, so
autograd is asked only for the gradients at the projected q, k, v (per query head), and these are
pulled back:

    dm/dx_{h,q} = J^T W_{q,h}^T dq_h,    J^T y = s (w*y - [mean(w*y)] - xhat mean(w*y*xhat))

(the bracket only for LayerNorm). With W' = W_{q,h} diag(w), the two means are W'1/d . dq and
(q - c) . dq / d, where c is the projection's constant part: both are sums over d_head alone. MLP
and logits readers are views of the stream, whose gradients autograd gives directly.

Integrated gradients take gradients at stacked interpolations of the input, in one batch, and sum
them BEFORE the contraction: any number of steps costs one. With a post-norm P (Gemma), a head's
change reaches the stream as J_P times it, and J_P depends on the step: the steps stay separate.

Only columns from the first one in which a pair differs are run, with the clean run's keys and
values as past: before it, activations are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mechassay.models.computing import products_of_changes
from mechassay.models.decoder import (
    Context,
    Decoder,
    NormStatistics,
    Projection,
    Readout,
    at_least_fp32,
)
from mechassay.models.forward import (
    Contrast,
    Edit,
    LayerTrace,
    Place,
    Trace,
    forward,
    unchanged,
)
from mechassay.models.memory import available_bytes
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, signed
from mechassay.prompts.batch import Batch

CONTRACTION_BYTES = 128 * 2**20
GROUPED_LAYERS = 4
TAPPED: tuple[Place, ...] = ("stream", "q", "k", "v", "middle", "mlp_in", "mlp")
Gradients = TypeVar("Gradients")


@dataclass(eq=False)
class TappedLayer:
    """One layer's activations at which a pass is differentiated, called as in `forward`.

    None where the pass did not run that part. The leading axis is steps times batch. In the last
    layer q and the MLP have the last column only.

    Attributes:
        q, k, v: projected, a key and a value for each query head.
        norm, post: statistics of the norm before, and of the post-norm after its heads.
    """

    stream: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    middle: Tensor | None = None
    mlp_in: Tensor | None = None
    mlp: Tensor | None = None
    norm: NormStatistics | None = None
    post: NormStatistics | None = None

    @property
    def readers(self) -> list[Tensor]:
        """What its heads and its MLP read: all or none of q, k and v, then the MLP's stream."""
        return [x for x in (self.q, self.k, self.v, self.mlp_in) if x is not None]


@dataclass(frozen=True, eq=False)
class Taps:
    """Where a forward pass is to be differentiated, and what the pull-back needs.

    Attributes:
        final: the stream that the logits read, at the last column.
        stream: the residual stream at the end.
    """

    layers: tuple[TappedLayer, ...]
    final: Tensor
    readout: Readout
    stream: Tensor


def tapped_forward(
    decoder: Decoder,
    x: Float[Tensor, "stack pos d_model"],
    ctx: Context,
    *,
    start: int = 0,
    past: Trace | None = None,
    layer: int = 0,
    at_mlp: bool = False,
    keep: list[LayerTrace] | None = None,
    watch: Edit = unchanged,
) -> Taps:
    """Run layers from `layer` on, keeping the points of differentiation; arguments as in `forward`.

    `keep` is filled with the run's trace, for which the last layer is computed at all columns.
    `watch` sees all values, with a key and a value for each query head.
    """
    layers, taps = list[LayerTrace](), tuple(TappedLayer() for _ in decoder.layers)

    def edit(place: Place, index: int, value: Tensor) -> Tensor:
        attention = decoder.layers[index].attention
        if place in ("k", "v"):
            # One key and value reader per query head: the copies are made before norm and rotary,
            # so that each has its own gradient.
            value = value.repeat_interleave(attention.group, dim=2)
        elif place == "stream":
            with torch.no_grad():
                taps[index].norm = attention.norm.statistics(value)
        elif place == "attended" and attention.post_norm is not None:
            with torch.no_grad():
                taps[index].post = attention.post_norm.statistics(value)
        if place in TAPPED:
            setattr(taps[index], place, value)
        return watch(place, index, value)

    stream = forward(
        decoder,
        x,
        ctx,
        layer=layer,
        at_mlp=at_mlp,
        start=start,
        past=() if past is None else past.layers,
        last_only=keep is None,
        edit=edit,
        keep=None if keep is None else layers,
    )
    if keep is None:
        taps[-1].post = _pad_statistics(taps[-1].post, x.shape[1])
    else:
        keep += [_detached(layer, decoder.layers[0].attention.group) for layer in layers]
    final = stream[:, -1].view_as(stream[:, -1])
    return Taps(taps, final, decoder.readout(final), stream)


def _detached(layer: LayerTrace, group: int) -> LayerTrace:
    """A layer of a differentiated run as one of a plain run: keys and values per key/value head."""

    def each(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach()

    q, k, v, z = (x.detach() for x in (layer.q, layer.k[:, ::group], layer.v[:, ::group], layer.z))
    before, middle = layer.before.detach(), layer.middle.detach()
    return LayerTrace(before, middle, q, k, v, z, each(layer.attended), each(layer.mlp))


def _pad_statistics(at: NormStatistics | None, columns: int) -> NormStatistics | None:
    # Only the last column of the last layer is read: the others may hold any value.
    if at is None:
        return None
    missing = columns - at.xhat.shape[1]
    return NormStatistics(F.pad(at.xhat, (0, 0, missing, 0)), F.pad(at.rscale, (0, 0, missing, 0)))


@dataclass(frozen=True, eq=False)
class ReaderGradients:
    """Gradients of the objective at every reader of a tapped pass, before the pull-back.

    Leading axes [steps, tokens] where steps stay separate, tokens = batch x columns from `start`.
    """

    decoder: Decoder
    taps: Taps
    layers: list[list[Tensor]]
    final: Tensor
    entry: Tensor | None
    times: int
    columns: int

    @staticmethod
    def of(
        decoder: Decoder,
        taps: Taps,
        total: Tensor,
        *,
        times: int,
        columns: int,
        entry: Tensor | None = None,
    ) -> ReaderGradients:
        """Differentiate `total`, a sum over stacked examples, at all taps (and at `entry`)."""
        readers = [layer.readers for layer in taps.layers]
        wanted = [x for part in readers for x in part] + [taps.final]
        wanted += [] if entry is None else [entry]
        # A cotangent put in below the top leaves what is above it without a gradient: zeros.
        grads = iter(torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True))
        layers = [[next(grads) for _ in part] for part in readers]
        final = next(grads)
        return ReaderGradients(decoder, taps, layers, final, next(grads, None), times, columns)

    def heads(
        self, layer: int, block: slice, keep_steps: bool, out: Float[Tensor, "slots tokens d_model"]
    ) -> None:
        """Gradients at a layer's q, k and v readers, in graph order, for a block of tokens."""
        tapped, grads = self.taps.layers[layer], self.layers[layer]
        if tapped.q is None or tapped.norm is None:
            out.zero_()
            return
        attention = self.decoder.layers[layer].attention
        norm, n_heads = attention.norm, attention.n_heads
        d_model = out.shape[-1]
        xhat, rscale = (self._tokens(part, block) for part in tapped.norm)
        weights = norm.weight.to(out.dtype)
        for slot, (value, grad) in enumerate(zip(tapped.readers[:3], grads[:3], strict=True)):
            projection = (attention.q, attention.k, attention.v)[slot]
            folded = at_least_fp32(projection.weight) * weights
            constant = _constant(projection.weight, projection.bias, norm.bias)
            if slot:
                folded = folded.repeat_interleave(attention.group, dim=0)
                if constant is not None:
                    constant = constant.repeat_interleave(attention.group, dim=0)
            value, grad = self._tokens(value.detach(), block), self._tokens(grad.detach(), block)
            shared: tuple[Tensor, Tensor] | None = None
            if projection.norm is not None:
                read = norm.scaled(xhat)
                value, grad, shared = _before_norm(projection, read, value, grad)
            grad = grad * rscale[..., None]
            centred = value if constant is None else value - constant
            along = (centred * grad).sum(-1) / d_model  # [steps, tokens, heads]
            summed = grad if keep_steps else grad.sum(0, keepdim=True)
            target = out[slot * n_heads : (slot + 1) * n_heads]
            torch.bmm(summed.flatten(0, 1).transpose(0, 1), folded, out=target)
            if norm.centred:
                mean = torch.einsum("sthe,he->hst", summed, folded.mean(-1)).flatten(1)
                target -= mean[..., None]
            products = [] if norm.scale_is_constant else [(along, xhat)]
            if shared is not None:
                at = NormStatistics(xhat, rscale)
                products.append((shared[0], norm.pull_back(shared[1], at)))
            for factors, vectors in products:
                if keep_steps or self.times == 1:
                    factors, vectors = factors.flatten(0, 1), vectors.flatten(0, 1)
                    target.addcmul_(factors.T[..., None], vectors, value=-1)
                else:
                    target.transpose(0, 1).baddbmm_(
                        factors.permute(1, 2, 0), vectors.transpose(0, 1), alpha=-1
                    )

    def mlp_at(self, layer: int, block: slice, keep_steps: bool) -> Tensor | None:
        """Gradient at a layer's MLP reader for a block of tokens, or None where it was not run."""
        if self.taps.layers[layer].mlp_in is None:
            return None
        return self._stream(self.layers[layer][-1], block, keep_steps)

    def final_at(self, block: slice, keep_steps: bool) -> Tensor:
        """Gradient at the logits reader for a block of tokens."""
        return self._stream(self.final[:, None], block, keep_steps)

    def post_at(self, layer: int, block: slice) -> NormStatistics | None:
        """Statistics of a layer's post-norm, steps kept, for a block of tokens."""
        at = self.taps.layers[layer].post
        if at is None:
            return None
        return NormStatistics(*(self._tokens(part, block).flatten(0, 1) for part in at))

    def _tokens(self, x: Tensor, block: slice) -> Tensor:
        # Zeros stand in front where a tensor holds fewer columns.
        missing = self.columns - x.shape[1]
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (missing, 0)) if missing > 0 else x[:, -self.columns :]
        return at_least_fp32(x.unflatten(0, (self.times, -1)).flatten(1, 2)[:, block])

    def _stream(self, x: Tensor, block: slice, keep_steps: bool) -> Tensor:
        tokens = self._tokens(x, block)
        return tokens.flatten(0, 1) if keep_steps else tokens.sum(0)


def _before_norm(
    projection: Projection,
    read: Float[Tensor, "steps tokens d_model"],
    value: Float[Tensor, "steps tokens heads d_head"],
    grad: Float[Tensor, "steps tokens heads d_head"],
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Queries or keys p before the projection's norm, with gradients there, of p W^T for `read`.

    Under a norm of all D numbers together, n = s p with weight w, a head's gradient is

        s (w dq)_h - n s <q_h, dq_h> / D

    of which the first part is the head's own. The second, of all heads' numbers, is the same
    vector W^T n s / D of the input for every head: it is returned with its factors <q_h, dq_h>.
    """
    norm, raw = projection.norm, at_least_fp32(projection.linear(read.to(projection.weight.dtype)))
    assert norm is not None
    n_shared, d_head = raw.shape[2:]
    group = value.shape[2] // n_shared
    p = raw.repeat_interleave(group, dim=2)
    if norm.weight.ndim == 2:
        own = replace(norm, weight=norm.weight.repeat_interleave(group, dim=0))
        return p, own.pull_back(grad, own.statistics(p)), None
    at = norm.statistics(raw.flatten(2))
    weight = norm.weight.to(raw.dtype).view(n_shared, d_head).repeat_interleave(group, dim=0)
    shared = None
    if not norm.scale_is_constant:
        flat = at_least_fp32(projection.weight).flatten(0, 1)
        vector = (at.xhat * at.rscale / at.xhat.shape[-1]) @ flat
        shared = ((value * grad).sum(-1), vector)
    return p, grad * weight * at.rscale[..., None], shared


def _constant(weight: Tensor, bias: Tensor | None, norm_bias: Tensor | None) -> Tensor | None:
    from_norm = None if norm_bias is None else at_least_fp32(weight) @ at_least_fp32(norm_bias)
    if bias is None:
        return from_norm
    return at_least_fp32(bias) if from_norm is None else from_norm + bias


def _contraction_bytes(device: torch.device) -> int:
    """Of a block of tokens: what stays in a CPU's cache, or a part of a GPU's memory, which is read
    as fast whatever its size, so that fewer blocks are fewer kernels to start.
    """
    free = available_bytes(device) if device.type != "cpu" else None
    return CONTRACTION_BYTES if free is None else max(CONTRACTION_BYTES, free // 16)


def contracted_bytes(decoder: Decoder, times: int) -> int:
    """That one token needs in a block of the contraction, of gradients at so many inputs."""
    graph = decoder.graph
    vectors = graph.n_writers + GROUPED_LAYERS * graph.readers_per_layer
    return vectors * decoder.d_model * 4 * (times if decoder.has_post_norm else 1)


@torch.no_grad()
def contract(
    model: Model,
    contrast: Contrast,
    gradients: ReaderGradients,
    into: Float[Tensor, "writers readers"],
    *,
    writers: slice | None = None,
) -> None:
    """Add -sum <a'_u - a_u, gradient at v> to `into[u, v]`, in blocks of tokens, one GEMM a layer.

    Places without an edge receive garbage. Only the rows `writers` are added, if given.
    """
    decoder = model.decoder
    keep_steps = decoder.has_post_norm
    n_tokens = contrast.other.embed.shape[0] * gradients.columns
    size = max(1, _contraction_bytes(model.device) // contracted_bytes(decoder, gradients.times))
    with products_of_changes(model.device, model.dtype):
        for begin in range(0, n_tokens, size):
            block = slice(begin, min(begin + size, n_tokens))
            _contract_block(model, contrast, gradients, into, block, keep_steps, writers)


class _Products:
    """Changes of writers times gradients of readers, as few large GEMMs.

    Readers come in order; each sees a prefix of the writers, which grows. Writers from before a
    group of layers are multiplied with all of the group's readers at once, the few within it layer
    by layer. The product has few rows on one side and is bound by memory, so that reading the
    changes once for several layers makes it fast.
    """

    def __init__(
        self, into: Tensor, changes: Float[Tensor, "writers tokens d_model"], first: int, group: int
    ) -> None:
        self.into, self.changes, self.first = into, changes, first
        self.held = changes.new_empty((group, *changes.shape[1:]))
        self.begin = self.filled = self.older = 0

    def place(self, n: int) -> Float[Tensor, "n tokens d_model"]:
        """Where to write the gradients of the next `n` readers, before `read`."""
        if self.filled + n > len(self.held):
            self.flush()
        return self.held[self.filled : self.filled + n]

    def read(self, n_seen: int, n: int) -> None:
        """The next `n` readers see the first `n_seen` writers."""
        seen = min(max(n_seen - self.first, 0), len(self.changes))
        if self.filled == 0:
            self.older = seen
        columns = slice(self.begin + self.filled, self.begin + self.filled + n)
        self._multiply(slice(self.older, seen), columns, self.held[self.filled : self.filled + n])
        self.filled += n

    def flush(self) -> None:
        """Multiply the group's readers with the writers from before it."""
        columns = slice(self.begin, self.begin + self.filled)
        self._multiply(slice(0, self.older), columns, self.held[: self.filled])
        self.begin += self.filled
        self.filled = 0

    def _multiply(self, rows: slice, columns: slice, gradients: Tensor) -> None:
        if rows.stop > rows.start:
            target = self.into[self.first + rows.start : self.first + rows.stop, columns]
            target -= self.changes[rows].flatten(1) @ gradients.flatten(1).T


def _contract_block(
    model: Model,
    contrast: Contrast,
    gradients: ReaderGradients,
    into: Tensor,
    block: slice,
    keep_steps: bool,
    writers: slice | None,
) -> None:
    decoder, graph = model.decoder, model.graph
    repeat = gradients.times if keep_steps else 1
    rows = (block.stop - block.start) * repeat
    columns, first = gradients.columns, writers.start if writers is not None else 0
    n_slots, used = 3 * graph.n_heads, int(graph.mlp)
    n_rows = graph.n_writers if writers is None else writers.stop - writers.start
    changes = into.new_zeros((n_rows, rows, decoder.d_model))
    products = _Products(into, changes, first, GROUPED_LAYERS * graph.readers_per_layer)

    def wanted(rows: slice) -> bool:
        return writers is None or rows == writers

    def change(clean: Tensor, other: Tensor) -> Tensor:
        delta = at_least_fp32(other - clean[:, -columns:])
        return delta.flatten(0, 1)[block].repeat(repeat, 1)

    if wanted(slice(0, 1)):
        changes[0] = change(contrast.clean.embed, contrast.other.embed)
    gradients.heads(0, block, keep_steps, products.place(n_slots))
    products.read(1, n_slots)
    for layer in range(graph.n_layers):
        clean, other = contrast.clean.layers[layer], contrast.other.layers[layer]
        heads = graph.heads(layer)
        if wanted(heads):
            attention = decoder.layers[layer].attention
            local = slice(heads.start - first, heads.stop - first)
            delta = at_least_fp32(other.z - clean.z[:, :, -columns:]).transpose(0, 1).flatten(1, 2)
            delta = delta[:, block].repeat(1, repeat, 1)
            torch.bmm(delta, at_least_fp32(attention.out), out=changes[local])
            at = gradients.post_at(layer, block)
            if at is not None and attention.post_norm is not None:
                changes[local] = attention.post_norm.push_forward(changes[local], at)
        # The MLP's reader and what reads next share a product; m_l -> m_l is among the garbage.
        last = layer + 1 == graph.n_layers
        n = used + (1 if last else n_slots)
        place = products.place(n)
        if graph.mlp:
            row = graph.mlp_writer(layer)
            if wanted(slice(row, row + 1)) and clean.mlp is not None and other.mlp is not None:
                changes[row - first] = change(clean.mlp, other.mlp)
            gradient = gradients.mlp_at(layer, block, keep_steps)
            place[0] = 0 if gradient is None else gradient
        if last:
            place[used] = gradients.final_at(block, keep_steps)
            products.read(graph.n_writers, n)
        else:
            gradients.heads(layer + 1, block, keep_steps, place[used:])
            products.read(graph.seen_by_heads(layer + 1), n)
    products.flush()


def at_clean_run(
    model: Model, batch: Batch, objective: Objective, gradients_of: Callable[..., Gradients]
) -> tuple[Contrast, Gradients]:
    """A batch's two runs, and gradients at the clean one, by `ReaderGradients.of` or the like.

    The differentiated run is the clean run: one forward less than `at_interpolations` at alpha 1.
    """
    decoder = model.decoder
    ctx, layers = decoder.context(batch.mask), list[LayerTrace]()
    with torch.enable_grad():
        embeds = decoder.embed(batch.clean).detach().requires_grad_()
        taps = tapped_forward(decoder, decoder.add_positions(embeds, ctx), ctx, keep=layers)
        total = signed(objective, taps.readout, batch).sum()
        columns = batch.n_tokens - min(batch.first_difference(), batch.n_tokens - 1)
        gradients = gradients_of(decoder, taps, total, times=1, columns=columns)
    clean = Trace(embeds.detach(), tuple(layers), taps.stream.detach())
    return Contrast.beside(decoder, batch, ctx, clean), gradients


def at_interpolations(
    model: Model,
    batch: Batch,
    objective: Objective,
    alphas: Sequence[float | Tensor],
    weights: Sequence[float],
    gradients_of: Callable[..., Gradients],
) -> tuple[Contrast, Gradients]:
    """A batch's two runs, and gradients at inputs a' + alpha (a - a'), weighted.

    An alpha is that of all examples, or [batch, 1, 1]. alphas (1,) is EAP; k/Z for k < Z is MIB's
    EAP-IG-inputs; (0, 1) is clean-corrupted.
    """
    decoder = model.decoder
    contrast = Contrast.run(decoder, batch)
    times = len(alphas)
    clean, other = contrast.clean.embed[:, contrast.start :], contrast.other.embed
    points = torch.cat([between(other, clean, alpha) for alpha in alphas])
    with torch.enable_grad():
        ctx = contrast.ctx.repeat(times)
        x = decoder.add_positions(points.detach().requires_grad_(), ctx, contrast.start)
        taps = tapped_forward(decoder, x, ctx, start=contrast.start, past=contrast.clean)
        total = objective_total(decoder, objective, taps.readout, contrast, weights)
        gradients = gradients_of(decoder, taps, total, times=times, columns=clean.shape[1])
    return contrast, gradients


def between(other: Tensor, clean: Tensor, alpha: float | Tensor) -> Tensor:
    """What lies alpha of the way from `other` to `clean`."""
    share = alpha.to(other) if isinstance(alpha, Tensor) else alpha
    return other + share * (clean - other)


def objective_total(
    decoder: Decoder,
    objective: Objective,
    readout: Readout,
    contrast: Contrast,
    weights: Sequence[float],
) -> Tensor:
    """The weighted sum of the objective over stacked copies of a batch, higher being better."""
    times, batch = len(weights), contrast.batch
    with torch.no_grad():
        clean = contrast.clean.readout(decoder).repeat(times) if objective.needs_clean else None
    values = signed(objective, readout, batch.repeat(times), clean)
    return (values.unflatten(0, (times, -1)) * values.new_tensor(weights)[:, None]).sum()


@dataclass(frozen=True, eq=False)
class WriterGradients:
    """Gradients at what the writers wrote, summed over steps, at the last columns only.

    For dimension d of writer u, attribution patching estimates the drop in the objective m when
    that neuron carries the counterfactual activation (Mueller et al. 2025, eq. 3 with dm/da_u,
    appendix E.2):

        S[u, d] = - sum_{positions} (a'_u - a_u)[d] * dm/da_u[d],   averaged over examples.

    dm/da_u is the total derivative at the writer's OUTPUT. All readers see the stream, so it is
    the gradient of the stream right after u was written: one for the input, one for all heads
    of a layer, one for each MLP, by autograd from the plain forward. MIB's code took the
    gradient at the MLP's INPUT for MLPs, which mixes in the MLP's own derivative (a confirmed
    bug in its published rows).

    With a post-norm P (Gemma) the heads' gradient is pulled back through P at each run:
    J_P^T g. With M_h = sum_{positions} dz_h g^T for the change dz_h of head h's mix,

        S[h, d] = - sum_e W_O,h[e, d] M_h[e, d],

    so heads are never expanded. Gradients at several interpolations of the input are summed
    before that. Sums over d are the sums of EAP's edge scores over a writer's outgoing edges.
    """

    embed: Float[Tensor, "batch pos d_model"]
    heads: tuple[Float[Tensor, "batch _ d_model"], ...]
    mlp: tuple[Float[Tensor, "batch _ d_model"], ...]

    @staticmethod
    def of(
        decoder: Decoder, taps: Taps, total: Tensor, *, times: int, columns: int
    ) -> WriterGradients:
        """Differentiate `total`, a sum over `times` stacked copies of the batch, at all writers."""
        layers = taps.layers
        streams = (layers[0].stream, *(x.middle for x in layers), *(x.mlp for x in layers))
        wanted = [x for x in streams if x is not None]
        grads = iter(torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True))

        def summed(x: Tensor) -> Tensor:
            return x.unflatten(0, (times, -1)).sum(0)

        with torch.no_grad():
            embed = summed(at_least_fp32(next(grads))[:, -columns:])
            heads: list[Tensor] = []
            for layer, tapped in zip(decoder.layers, layers, strict=True):
                gradient = at_least_fp32(next(grads))[:, -columns:]
                if tapped.post is not None and layer.attention.post_norm is not None:
                    at = NormStatistics(*(part[:, -gradient.shape[1] :] for part in tapped.post))
                    gradient = layer.attention.post_norm.pull_back(gradient, at)
                heads.append(summed(gradient))
            mlp = tuple(summed(at_least_fp32(gradient)[:, -columns:]) for gradient in grads)
            return WriterGradients(embed, tuple(heads), mlp)


@torch.no_grad()
def add_products(
    model: Model,
    contrast: Contrast,
    gradients: WriterGradients,
    into: Float[Tensor, "writers d_model"],
) -> None:
    """Add -sum over examples and positions of (a'_u - a_u) * gradient to `into`."""
    graph = model.graph

    def add_stream(row: int, clean: Tensor, other: Tensor, gradient: Tensor) -> None:
        n = gradient.shape[1]
        change = at_least_fp32(other[:, -n:] - clean[:, -n:])
        into[row] -= torch.einsum("btd,btd->d", change, gradient)

    add_stream(0, contrast.clean.embed, contrast.other.embed, gradients.embed)
    for index in range(graph.n_layers):
        clean, other = contrast.clean.layers[index], contrast.other.layers[index]
        gradient = gradients.heads[index]
        n, out = gradient.shape[1], at_least_fp32(model.decoder.layers[index].attention.out)
        change = at_least_fp32(other.z[:, :, -n:] - clean.z[:, :, -n:])
        moments = change.permute(1, 3, 0, 2).flatten(2) @ gradient.flatten(0, 1)
        into[graph.heads(index)] -= (moments * out).sum(1)
        if clean.mlp is not None and other.mlp is not None:
            add_stream(graph.mlp_writer(index), clean.mlp, other.mlp, gradients.mlp[index])
