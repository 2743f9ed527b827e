"""The decoder's forward pass: the one loop over layers, open at named places.

A layer, with the place of each value and its shape (`pos`: the columns that are run):

    stream    x = what enters the layer                      [stack, pos, d_model]
    q k v     projections of norm(x)                         [stack, pos, heads, d_head]
    z         each head's mix of values                      [stack, heads, pos, d_head]
    attended  sum over heads of W_O z, and the output bias   [stack, pos, d_model]
    middle    x + attended, after its post-norm if any       [stack, pos, d_model]
    mlp_in    what the MLP reads: middle; in parallel blocks x
    mlp       what the MLP writes, after its post-norm if any

and the next layer's x is middle + mlp. q, k and v are those before norm and rotary; k and v have
key/value heads, but an `edit` may give each query head its own. What an edit returns takes the
value's place from there on. `given` puts a value at z or mlp that is then not computed.

A run may enter at any layer, or at its MLP; copies of a batch may be stacked along the first axis;
and it may be of the last columns alone, attention being causal: the keys and values of earlier
columns are then another run's (`past`). Gradients flow wherever autograd is on.

Circuits whose readers see different streams are not one forward pass; they share its pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.models.decoder import Context, Decoder

Place = Literal["stream", "q", "k", "v", "z", "attended", "middle", "mlp_in", "mlp"]
Edit = Callable[[Place, int, Tensor], Tensor]
"""(place, layer, value) -> the value that the run goes on with."""
Given = Callable[[Literal["z", "mlp"], int], Tensor | None]
"""(place, layer) -> a value that is not computed, or None."""


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """What one layer read and wrote in a run, from the run's `start` on (k and v: everywhere).

    Attributes:
        before: stream read by the heads.
        middle: stream read by the MLP (`before` itself in parallel blocks).
        q, k, v: ready to attend (normed, rotated); k and v per key/value head.
        z: each head's mix of values.
        attended: sum of heads and output bias before a post-norm; None where there is none.
        mlp: what the MLP wrote; None in attention-only models.
    """

    before: Float[Tensor, "batch pos d_model"]
    middle: Float[Tensor, "batch pos d_model"]
    q: Float[Tensor, "batch heads pos d_head"]
    k: Float[Tensor, "batch kv_heads all_pos d_head"]
    v: Float[Tensor, "batch kv_heads all_pos d_head"]
    z: Float[Tensor, "batch heads pos d_head"]
    attended: Float[Tensor, "batch pos d_model"] | None
    mlp: Float[Tensor, "batch pos d_model"] | None


def unchanged(place: Place, layer: int, value: Tensor) -> Tensor:
    """The edit that changes nothing."""
    return value


def computed(place: Place, layer: int) -> None:
    """Nothing is given."""


def forward(
    decoder: Decoder,
    x: Float[Tensor, "stack pos d_model"],
    ctx: Context,
    *,
    layer: int = 0,
    at_mlp: bool = False,
    start: int = 0,
    past: Sequence[LayerTrace] = (),
    last_only: bool = False,
    edit: Edit = unchanged,
    given: Given = computed,
    keep: list[LayerTrace] | None = None,
) -> Float[Tensor, "stack _ d_model"]:
    """The stream after the last layer of a run that enters at `layer`.

    Args:
        x: the stream entering `layer` at the columns from `start` on; if `at_mlp`, the stream
            that its MLP reads (blocks in sequence only).
        ctx: context of the whole stack, all columns.
        past: the layers of a run that agrees before `start`, of one copy of the batch.
        last_only: run the last layer's queries and MLP at the last column only, and return that.
        edit: sees, and may replace, every value in the order of the table above.
        given: values that stand at z and mlp without being computed; edits see them.
        keep: filled with a `LayerTrace` of each layer that is run whole, of the edited values.
    """
    for index in range(layer, len(decoder.layers)):
        post_norm, mlp = decoder.layers[index].attention.post_norm, decoder.layers[index].mlp
        last = last_only and index + 1 == len(decoder.layers)
        mixed: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None] | None = None
        if index == layer and at_mlp:
            before = x = x[:, -1:] if last else x
        else:
            x = edit("stream", index, x)
            q, k, v = queries_keys_values(
                decoder, index, x, ctx, start=start, past=past, last_only=last, edit=edit
            )
            z = given("z", index)
            z = edit("z", index, decoder.attend(index, q, k, v, ctx) if z is None else z)
            attended = edit("attended", index, decoder.attention_sum(index, z))
            mixed = (q, k, v, z, None if post_norm is None else attended)
            before = x[:, -1:] if last else x
            x = before + (attended if post_norm is None else post_norm(attended))
        x = edit("middle", index, x)
        read, wrote = before if decoder.parallel else x, None
        if mlp is not None:
            # A tensor of its own: its gradient is that of what the MLP reads, without the skip.
            read = edit("mlp_in", index, read.view_as(read))
            wrote = given("mlp", index)
            wrote = edit("mlp", index, mlp(read) if wrote is None else wrote)
            x = x + wrote
        if keep is not None and mixed is not None:
            keep.append(LayerTrace(before, read, *mixed, wrote))
    return x[:, -1:] if last_only else x


def queries_keys_values(
    decoder: Decoder,
    layer: int,
    x: Float[Tensor, "stack pos d_model"],
    ctx: Context,
    *,
    start: int = 0,
    past: Sequence[LayerTrace] = (),
    last_only: bool = False,
    edit: Edit = unchanged,
) -> tuple[
    Float[Tensor, "stack heads _ d_head"],
    Float[Tensor, "stack some_heads all_pos d_head"],
    Float[Tensor, "stack some_heads all_pos d_head"],
]:
    """A layer's queries, keys and values, ready to attend, from the stream from `start` on.

    Keys and values before it are the past's. Queries are of the last column if `last_only`.
    """
    attention = decoder.layers[layer].attention
    y = attention.norm(x)
    q = edit("q", layer, attention.q(y[:, -1:] if last_only else y))
    k = edit("k", layer, attention.k(y))
    v = edit("v", layer, attention.v(y)).transpose(1, 2)
    begin = start + x.shape[1] - q.shape[1]
    q = decoder.rotate(layer, q, ctx, is_key=False, start=begin)
    k = decoder.rotate(layer, k, ctx, is_key=True, start=start)
    if start:
        k, v = continued(past[layer].k, k, start), continued(past[layer].v, v, start)
    return q, k, v


def continued(
    past: Float[Tensor, "batch kv_heads past_pos d_head"],
    new: Float[Tensor, "stack some_heads pos d_head"],
    start: int,
) -> Float[Tensor, "stack some_heads all_pos d_head"]:
    """Keys or values after those of a past run, repeated for copies of its batch or heads."""
    copies, group = len(new) // len(past), new.shape[1] // past.shape[1]
    old = past[:, :, :start]
    old = old if group == 1 else old.repeat_interleave(group, dim=1)
    return torch.cat((old if copies == 1 else old.repeat(copies, 1, 1, 1), new), dim=2)
