"""The decoder's forward pass: the one loop over layers, open at named places.

A layer, with the place of each value and its shape (`pos`: the columns that are run):

    stream    x = what enters the layer                      [stack, pos, d_model]
    q k v     projections of norm(x)                         [stack, pos, heads, d_head]
    keys      ready to attend, after those of earlier        [stack, heads, all_pos, d_head]
      values  columns
    z         each head's mix of values                      [stack, heads, pos, d_head]
    attended  sum over heads of W_O z, and the output bias   [stack, pos, d_model]
    middle    x + attended, after its post-norm if any       [stack, pos, d_model]
    mlp_in    what the MLP reads: middle; in parallel blocks x
    mlp       what the MLP writes, after its post-norm if any

and the next layer's x is middle + mlp. q, k and v are those before rotary, and before a norm that
heads share; k and v have key/value heads, but an `edit` may give each query head its own. What an
edit returns takes the value's place from there on. `given` puts a value at z or mlp that is then
not computed.

A run may enter at any layer, or at its MLP. Copies of a batch may be stacked along the first
axis. A run may be of the last columns alone, attention being causal: the keys and values of
earlier columns are then another run's (`past`). Gradients flow wherever autograd is on.

A `Trace` keeps what a run's nodes read and wrote, a `Contrast` a clean and a reference run.
Where the reference is no run of the model, every writer writes `Constants`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.models.decoder import Context, Decoder, Readout
from mechassay.prompts.batch import Batch

Place = Literal[
    "stream", "q", "k", "v", "keys", "values", "z", "attended", "middle", "mlp_in", "mlp"
]
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
        attention, mlp = decoder.layers[index].attention, decoder.layers[index].mlp
        post_norm = attention.post_norm
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
            z = edit("z", index, attention.attend(q, k, v, ctx) if z is None else z)
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
    q = attention.rotate(q, ctx, is_key=False, start=begin)
    k = attention.rotate(k, ctx, is_key=True, start=start)
    if start:
        k, v = continued(past[layer].k, k, start), continued(past[layer].v, v, start)
    return q, edit("keys", layer, k), edit("values", layer, v)


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


@dataclass(frozen=True, eq=False)
class Constants:
    """A constant for every writer, by the kind of ablation (`name`); `known` is 1, or positions.

    It is what ablated writers write when that is no run of the model: zeros, means, learned
    vectors. A constant is the same for all examples, either at every position or one for each
    position, counted from the first real token; beyond the last one known, the last is taken. A
    head's constant is its mix of values z, d_head wide, so what it writes is W_O z.
    """

    name: str
    embed: Float[Tensor, "known d_model"]
    z: Float[Tensor, "layers heads known d_head"]
    mlp: Float[Tensor, "layers known d_model"] | None

    def embed_at(self, positions: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.embed[self._index(positions)]

    def z_at(
        self, layer: int, positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch heads pos d_head"]:
        return self.z[layer][:, self._index(positions)].transpose(0, 1)

    def mlp_at(
        self, layer: int, positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        assert self.mlp is not None
        return self.mlp[layer][self._index(positions)]

    def _index(self, positions: Tensor) -> Tensor:
        return positions.clamp(max=len(self.embed) - 1)

    def to(self, device: torch.device | str) -> Constants:
        """The same values on `device`."""
        return replace(
            self,
            embed=self.embed.to(device),
            z=self.z.to(device),
            mlp=None if self.mlp is None else self.mlp.to(device),
        )

    @property
    def content(self) -> str:
        """SHA-256 of the name and the values."""
        digest = hashlib.sha256(self.name.encode())
        for values in (self.embed, self.z, self.mlp):
            if values is not None:
                digest.update(values.detach().cpu().float().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class ConstantBatch(Batch):
    """Pairs whose ablated edges carry constants in place of the counterfactual run."""

    # Made by `mechassay.circuits.ablate`; everything that takes a `Batch` takes it.

    constants: Constants

    @staticmethod
    def of(batch: Batch, constants: Constants) -> ConstantBatch:
        """The pairs of a batch with these constants, on the batch's device."""
        constants = constants.to(batch.clean.device)
        own = _own(batch)
        own["content"] = f"{batch.content}-{constants.content[:16]}"
        return ConstantBatch(**own, constants=constants)

    def first_difference(self) -> int:
        """0: constants differ from the clean run from the first column on."""
        return 0

    def to(self, device: torch.device | str) -> ConstantBatch:
        """The same batch with its tensors on `device`."""
        return replace(self, **_own(super().to(device)), constants=self.constants.to(device))


def constants_of(batch: Batch) -> Constants | None:
    """What ablated edges carry in place of the counterfactual run, if anything."""
    return batch.constants if isinstance(batch, ConstantBatch) else None


def counterfactual_batch(batch: Batch) -> Batch:
    """The pairs with their counterfactual runs."""
    return Batch(**_own(batch)) if isinstance(batch, ConstantBatch) else batch


def _own(batch: Batch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(Batch)}


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass, taken apart. `start` is the first column it holds.

    It has what every writer wrote (heads as their mixes z), the stream every reader saw, and
    the queries, keys and values.
    """

    embed: Float[Tensor, "batch pos d_model"]
    layers: tuple[LayerTrace, ...]
    final: Float[Tensor, "batch pos d_model"]
    start: int = 0

    def readout(self, decoder: Decoder) -> Readout:
        """Logits at the last column."""
        return decoder.readout(self.final[:, -1])

    def one(self, row: int, times: int, start: int) -> Trace:
        """The run of one prompt as if it were that of `times`, from column `start` on: a view."""

        def cut(x: Tensor, columns: int) -> Tensor:
            x = x[row : row + 1].narrow(columns, start, x.shape[columns] - start)
            return x.expand(times, *x.shape[1:])

        def whole(x: Tensor) -> Tensor:
            return x[row : row + 1].expand(times, *x.shape[1:])

        return self._with_tensors(cut, whole, start)

    def beginning(self, stop: int) -> Trace:
        """The columns before `stop` alone; nothing is copied."""
        return self._with_tensors(
            lambda x, columns: x.narrow(columns, 0, stop),
            lambda x: x.narrow(2, 0, stop),
            self.start,
        )

    def keys_and_values(self) -> Trace:
        """What a run of later columns needs of this one: of all else no column stays."""
        return self._with_tensors(
            lambda x, columns: x.narrow(columns, 0, 0).clone(), lambda x: x, self.start
        )

    def select(self, rows: Int[Tensor, "some"] | slice) -> Trace:
        """Some of the prompts; a slice copies nothing."""
        return self._with_tensors(lambda x, columns: x[rows], lambda x: x[rows], self.start)

    def without_keys_and_values(self) -> Trace:
        """The run without its keys and values."""
        return self._with_tensors(lambda x, columns: x, lambda x: x[:, :, :0].clone(), self.start)

    def last_columns(self, rows: Int[Tensor, "some"], n: int, start: int) -> Trace:
        """Some of the prompts, cut to their last n columns, held from column `start` of these on; a
        copy.
        """

        def last(x: Tensor, axis: int, n_kept: int) -> Tensor:
            first = max(x.shape[axis] - n_kept, 0)
            return x.narrow(axis, first, x.shape[axis] - first)[rows]

        return self._with_tensors(
            lambda x, axis: last(x, axis, n - start), lambda x: last(x, 2, n), start
        )

    def _with_tensors(
        self, change: Callable[[Tensor, int], Tensor], keys: Callable[[Tensor], Tensor], start: int
    ) -> Trace:
        """Every tensor changed: (tensor, axis of its columns), and keys and values."""

        def layer(one: LayerTrace) -> LayerTrace:
            streams = {name: getattr(one, name) for name in ("before", "middle", "attended", "mlp")}
            changed = {name: None if x is None else change(x, 1) for name, x in streams.items()}
            heads = {name: change(getattr(one, name), 2) for name in ("q", "z")}
            return replace(one, **changed, **heads, k=keys(one.k), v=keys(one.v))

        return Trace(
            change(self.embed, 1), tuple(map(layer, self.layers)), change(self.final, 1), start
        )


def trace(
    decoder: Decoder,
    embeds: Float[Tensor, "batch pos d_model"],
    ctx: Context,
    *,
    past: Trace | None = None,
    start: int = 0,
) -> Trace:
    """Run the decoder from embeddings of the columns from `start` on, after `past`."""
    layers: list[LayerTrace] = []
    x = decoder.add_positions(embeds, ctx, start)
    final = forward(
        decoder, x, ctx, start=start, past=() if past is None else past.layers, keep=layers
    )
    return Trace(embeds, tuple(layers), final, start)


@dataclass(frozen=True, eq=False)
class Contrast:
    """A clean and a reference run of one batch, the reference from the first column that differs.

    Two runs that agree before some column share it: the second starts there, with the first
    one's keys and values as its past.

    Attributes:
        start: columns before it are the same in both runs.
        clean: the run of the clean prompts, all columns.
        other: what ablated edges carry, columns from `start` on: the run of the counterfactual
            prompts, or constants.
    """

    batch: Batch
    ctx: Context
    start: int
    clean: Trace
    other: Trace

    @staticmethod
    @torch.no_grad()
    def run(decoder: Decoder, batch: Batch, width: Callable[[int], int] = int) -> Contrast:
        """Two forwards, the second only over columns that differ; one where there are constants.

        Args:
            width: how many columns are run where so many differ: as many, or more.
        """
        ctx = decoder.context(batch.mask)
        clean = trace(decoder, decoder.embed(batch.clean), ctx)
        return Contrast.beside(decoder, batch, ctx, clean, width)

    @staticmethod
    @torch.no_grad()
    def beside(
        decoder: Decoder,
        batch: Batch,
        ctx: Context,
        clean: Trace,
        width: Callable[[int], int] = int,
    ) -> Contrast:
        """The contrast with a clean run that is there already."""
        constants = constants_of(batch)
        if constants is not None:
            return Contrast(batch, ctx, 0, clean, constant_trace(decoder, constants, ctx))
        start = first_run_column(batch, width)
        other = trace(
            decoder, decoder.embed(batch.counterfactual[:, start:]), ctx, past=clean, start=start
        )
        return Contrast(batch, ctx, start, clean, other)


def first_run_column(batch: Batch, width: Callable[[int], int] = int) -> int:
    """The first column of the counterfactual run: prompts agree before it."""
    differing = max(batch.n_tokens - batch.first_difference(), 1)
    return max(batch.n_tokens - width(differing), 0)


def constant_trace(
    decoder: Decoder, values: Constants, ctx: Context, *, past: Trace | None = None, start: int = 0
) -> Trace:
    """What readers would see and project if every writer wrote its constant; columns as in `trace`.

    No component is run on these streams, the sums of constants, positions and biases.
    """
    at = ctx.position_ids[:, start:]
    embeds, layers = values.embed_at(at), list[LayerTrace]()

    def given(place: Literal["z", "mlp"], layer: int) -> Tensor:
        return values.z_at(layer, at) if place == "z" else values.mlp_at(layer, at)

    final = forward(
        decoder,
        decoder.add_positions(embeds, ctx, start),
        ctx,
        start=start,
        past=() if past is None else past.layers,
        given=given,
        keep=layers,
    )
    return Trace(embeds, tuple(layers), final, start)
