"""The one forward pass against hooks on the unmodified Hugging Face model, for every family.

Tokens by meaning, in the columns of a batch: whatever the padding,
tokens put before, or tokens written on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from helpers.hooks import on_mlp_input
from helpers.hooks_reference import ReferenceModel, exact_precision
from helpers.models import USUAL, families
from helpers.tiny_models import write_attn_only
from mechassay.circuits.methods.attribution import tapped_forward
from mechassay.errors import BadPairs, UnknownName
from mechassay.models.decoder import Context
from mechassay.models.forward import LayerTrace, Place, continued, forward, trace
from mechassay.models.model import Model, load_model, make_model
from mechassay.prompts.pairs import Pair, filled
from mechassay.testing.tiny import Subject, build, subject

PLACES: tuple[Place, ...] = get_args(Place)
EDITED = 1
"""The layer that edits are made in: one before it, one after it."""


@pytest.fixture(scope="module", params=families(quick=USUAL))
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, dtype=torch.float64)


def entering(case: Subject) -> tuple[Tensor, Context]:
    """The stream that enters layer 0, and the batch's context."""
    decoder, batch = case.model.decoder, case.batch
    ctx = decoder.context(batch.mask)
    return decoder.add_positions(decoder.embed(batch.clean), ctx), ctx


def logits(model: Model, stream: Tensor) -> Tensor:
    return model.decoder.readout(stream[:, -1]).all()


# What a plain run holds at every place.


def test_a_trace_is_what_hooks_see(case: Subject) -> None:
    model, batch, graph = case.model, case.batch, case.model.graph
    x, ctx = entering(case)
    layers: list[LayerTrace] = []
    final = forward(model.decoder, x, ctx, keep=layers)
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, graph)
        hooked = reference.record(batch.clean, batch.mask)

    def same(ours: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(ours[batch.mask], theirs[batch.mask], rtol=0, atol=1e-10)

    same(final, hooked.final)
    for index, layer in enumerate(layers):
        same(layer.before, hooked.before[index])
        same(layer.middle, hooked.middle[index])
        heads = model.decoder.head_outputs(index, layer.z)
        for ours, theirs in zip(heads, hooked.writers[graph.heads(index)], strict=True):
            same(ours * reference.written_scale, theirs)
        assert layer.mlp is not None
        same(layer.mlp, hooked.writers[graph.mlp_writer(index)])
        if layer.attended is not None:
            same(layer.attended, hooked.attended[index])


# Edits: something is added at one place, here and by hooks on the original.


@pytest.mark.parametrize("place", ["keys", "values"])
def test_keys_and_values_are_edited_as_they_attend(case: Subject, place: Place) -> None:
    """After the key's norm and rotary, heads before columns; of a value nothing else changes."""
    decoder, (x, ctx) = case.model.decoder, entering(case)
    heads = decoder.layers[EDITED].attention.k.weight.shape[:2]
    generator = torch.Generator().manual_seed(2)
    delta = torch.randn(*x.shape[:2], *heads, generator=generator, dtype=torch.float64)
    seen: list[Tensor] = []

    def before(where: Place, layer: int, value: Tensor) -> Tensor:
        if (where, layer) != (place[0], EDITED):
            return value
        seen.append(value + delta)
        return seen[-1]

    def attending(where: Place, layer: int, value: Tensor) -> Tensor:
        if (where, layer) != (place, EDITED):
            return value
        if place == "values":
            return value + delta.transpose(1, 2)
        return decoder.layers[layer].attention.rotate(seen[-1], ctx, is_key=True)

    ours, theirs = (
        logits(case.model, forward(decoder, x, ctx, last_only=True, edit=edit))
        for edit in (before, attending)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    plain = logits(case.model, forward(decoder, x, ctx, last_only=True))
    assert not torch.allclose(ours, plain, atol=1e-3)


def shape(model: Model, place: Place, n: int, columns: int) -> tuple[int, ...]:
    attention = model.decoder.layers[EDITED].attention
    width = attention.out.shape[1]
    if place == "z":
        return n, attention.n_heads, columns, width
    if place in ("q", "k", "v"):
        heads = attention.n_heads if place == "q" else attention.n_heads // attention.group
        return n, columns, heads, width
    return n, columns, model.decoder.d_model


def added_to_output(delta: Tensor) -> Callable[..., Any]:
    return lambda module, args, output: (
        (output[0] + delta, *output[1:])
        if isinstance(output, tuple)
        else output + delta.view(output.shape)
    )


def added_to_input(delta: Tensor) -> Callable[..., Any]:
    return lambda module, args: (args[0] + delta, *args[1:])


def projected(model: Model, reference: ReferenceModel, place: Place, delta: Tensor) -> Any:
    """The module that gives what a projection's norm gives, and what its output gains: one module
    may hold all three projections.
    """
    layout, attention = reference.layout, reference.part(EDITED, reference.layout.attention)
    norm = getattr(model.decoder.layers[EDITED].attention, place).norm
    if norm is None and len(layout.projections) > 1:
        return attention.get_submodule(f"{place}_proj"), delta.flatten(2)
    if norm is None:
        slots = reference.fused_slots
        gained = delta.new_zeros(*delta.shape[:2], len(slots), delta.shape[3])
        gained[:, :, slots == "qkv".index(place)] += delta
        return attention.get_submodule(layout.projections[0]), gained.flatten(2)
    if hasattr(attention, f"{place}_layernorm"):
        return attention.get_submodule(f"{place}_layernorm"), delta.transpose(1, 2)
    module = attention.get_submodule(f"{place}_norm")
    return module, delta if norm.weight.ndim == 2 else delta.flatten(2)


def hook(model: Model, reference: ReferenceModel, place: Place, delta: Tensor) -> list[Any]:
    """Put the hooks of an edit on the original model."""
    layout = reference.layout
    block = model.hf.get_submodule(layout.blocks).get_submodule(str(EDITED))
    attention = block.get_submodule(layout.attention)

    def after(module: nn.Module, change: Tensor = delta) -> Any:
        return [module.register_forward_hook(added_to_output(change))]

    def before(module: nn.Module, change: Tensor = delta) -> Any:
        return [module.register_forward_pre_hook(added_to_input(change))]

    out = attention.get_submodule(layout.out)
    if place == "stream":
        return before(block)
    if place in ("q", "k", "v"):
        return after(*projected(model, reference, place, delta))
    if place == "z":
        return before(out, delta.transpose(1, 2).flatten(2))
    if place == "attended":
        return after(out)
    if place == "middle":
        after_heads = block.get_submodule(layout.post_attention) if layout.post_attention else out
        return after(after_heads, delta / reference.written_scale)
    if place == "mlp_in":
        return on_mlp_input(reference, EDITED, lambda x: x + delta.view(x.shape))
    last = block.get_submodule(layout.post_mlp or reference.mlp_modules[-1])
    return after(last, delta / reference.written_scale)


@pytest.mark.parametrize("place", [x for x in PLACES if x not in ("keys", "values")])
def test_an_edit_and_its_gradient_are_those_of_a_hooked_module(case: Subject, place: Place) -> None:
    model, batch = case.model, case.batch
    x, ctx = entering(case)
    delta = torch.randn(
        shape(model, place, *batch.clean.shape),
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    ).requires_grad_()

    def edit(where: Place, layer: int, value: Tensor) -> Tensor:
        return value + delta if (where, layer) == (place, EDITED) else value

    ours = logits(model, forward(model.decoder, x, ctx, last_only=True, edit=edit))
    reference = ReferenceModel(model.hf, model.graph)
    with exact_precision(model.hf), ExitStack() as stack:
        for handle in hook(model, reference, place, delta):
            stack.callback(handle.remove)
        theirs = model.hf(
            batch.clean,
            attention_mask=batch.mask.long(),
            position_ids=ctx.position_ids,
            use_cache=False,
        ).logits[:, -1]
    assert not torch.allclose(ours, logits(model, forward(model.decoder, x, ctx)), atol=1e-3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    weights = torch.linspace(-1, 1, ours.shape[1], dtype=ours.dtype)
    gradients = [torch.autograd.grad((each @ weights).sum(), delta)[0] for each in (ours, theirs)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-9)


def test_edits_come_in_the_order_of_computation(case: Subject) -> None:
    x, ctx = entering(case)
    seen: list[tuple[Place, int]] = []

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        seen.append((place, layer))
        return value

    forward(case.model.decoder, x, ctx, edit=edit)
    assert seen == [(place, layer) for layer in range(3) for place in PLACES]


def test_what_is_kept_and_read_later_is_the_edited_value(case: Subject) -> None:
    x, ctx = entering(case)
    layers: list[LayerTrace] = []
    forward(
        case.model.decoder,
        x,
        ctx,
        edit=lambda place, layer, value: torch.zeros_like(value) if place == "mlp" else value,
        keep=layers,
    )
    assert all(layer.mlp is not None and not layer.mlp.any() for layer in layers)
    if not case.model.decoder.parallel:
        assert torch.equal(layers[1].before, layers[0].middle)


def test_keys_and_values_may_be_given_to_each_query_head(case: Subject) -> None:
    """The copies change nothing, with a past of key/value heads and without."""
    decoder = case.model.decoder
    x, ctx = entering(case)

    def copied(place: Place, layer: int, value: Tensor) -> Tensor:
        group = decoder.layers[layer].attention.group
        return value.repeat_interleave(group, dim=2) if place in ("k", "v") else value

    layers: list[LayerTrace] = []
    whole = forward(decoder, x, ctx, keep=layers)
    again = forward(decoder, x, ctx, edit=copied)
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-11)
    rest = forward(decoder, x[:, 3:], ctx, start=3, past=layers, edit=copied)
    torch.testing.assert_close(rest, whole[:, 3:], rtol=0, atol=1e-11)


# Parts of a run.


@pytest.mark.parametrize("start", [0, 3])
def test_a_part_of_a_run_is_the_whole_one_from_there_on(case: Subject, start: int) -> None:
    """Stacked copies, from any layer or MLP and from a column on: the same streams at the end, and
    the same gradients at the stream that is entered.
    """
    decoder = case.model.decoder
    x, ctx = entering(case)
    streams: dict[tuple[Place, int], Tensor] = {}
    layers: list[LayerTrace] = []

    def seen(place: Place, layer: int, value: Tensor) -> Tensor:
        if place == "stream" or (place == "middle" and not decoder.parallel):
            streams[place, layer] = value
        return value

    whole = forward(decoder, x.requires_grad_(), ctx, edit=seen, keep=layers)
    gradients = torch.autograd.grad(logits(case.model, whole)[:, 5].sum(), [*streams.values()])
    for (place, layer), gradient in zip(streams, gradients, strict=True):
        entry = streams[place, layer].detach()[:, start:].repeat(2, 1, 1).requires_grad_()

        def part(
            last_only: bool, entry: Tensor = entry, at: tuple[str, int] = (place, layer)
        ) -> Tensor:
            return forward(
                decoder,
                entry,
                ctx.repeat(2),
                layer=at[1],
                at_mlp=at[0] == "middle",
                start=start,
                past=layers,
                last_only=last_only,
            )

        torch.testing.assert_close(
            part(False), whole[:, start:].repeat(2, 1, 1), rtol=0, atol=1e-10
        )
        last = part(True)
        torch.testing.assert_close(last, whole[:, -1:].repeat(2, 1, 1), rtol=0, atol=1e-10)
        at_entry = torch.autograd.grad(logits(case.model, last)[:, 5].sum(), entry)[0]
        expected = gradient[:, start:].repeat(2, 1, 1)
        torch.testing.assert_close(at_entry, expected, rtol=1e-9, atol=1e-10)


def test_nothing_is_left_to_run_after_the_last_layer(case: Subject) -> None:
    x, ctx = entering(case)
    end = forward(case.model.decoder, x, ctx, layer=3, last_only=True)
    assert torch.equal(end, x[:, -1:])


def test_a_past_is_repeated_for_copies_and_query_heads() -> None:
    past, new = torch.randn(2, 3, 5, 4), torch.randn(4, 6, 1, 4)
    whole = continued(past, new, 2)
    assert whole.shape == (4, 6, 3, 4)
    assert torch.equal(whole[:, :, 2:], new)
    assert torch.equal(whole[3, 5, :2], past[1, 2, :2])
    assert torch.equal(whole[2, 1, :2], past[0, 0, :2])


# Values that are given.


def test_given_values_stand_where_computed_ones_would_and_those_are_not_computed(
    case: Subject,
) -> None:
    decoder = case.model.decoder
    x, ctx = entering(case)
    other = trace(decoder, decoder.embed(case.batch.counterfactual), ctx).layers

    def there(place: str, layer: int) -> Tensor:
        value = other[layer].z if place == "z" else other[layer].mlp
        assert value is not None
        return value

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        return there(place, layer) if place in ("z", "mlp") else value

    def never(_: Tensor) -> Tensor:
        raise AssertionError("an MLP ran")

    idle = replace(
        decoder,
        layers=tuple(
            replace(layer, mlp=layer.mlp and replace(layer.mlp, act=never))
            for layer in decoder.layers
        ),
    )
    assert torch.equal(forward(idle, x, ctx, given=there), forward(decoder, x, ctx, edit=edit))


# Runs that are differentiated.


def test_a_differentiated_run_is_a_plain_one(case: Subject) -> None:
    decoder = case.model.decoder
    x, ctx = entering(case)
    layers: list[LayerTrace] = []
    taps = tapped_forward(decoder, x.requires_grad_(), ctx, keep=layers)
    plain = trace(decoder, decoder.embed(case.batch.clean), ctx)
    torch.testing.assert_close(taps.stream, plain.final, rtol=0, atol=1e-12)
    for ours, expected in zip(layers, plain.layers, strict=True):
        for name, value in vars(expected).items():
            kept = getattr(ours, name)
            if value is None:
                assert kept is None
            else:
                assert kept.shape == value.shape and not kept.requires_grad
                torch.testing.assert_close(kept, value, rtol=0, atol=1e-12)


def test_attention_only_models_have_no_places_of_an_mlp(tmp_path: Path) -> None:
    write_attn_only(tmp_path)
    decoder = load_model(str(tmp_path)).decoder
    tokens = torch.tensor([[1, 2, 3, 4]])
    ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
    places: set[Place] = set()

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        places.add(place)
        return value

    layers: list[LayerTrace] = []
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    forward(decoder, x, ctx, edit=edit, keep=layers)
    assert places == set(PLACES) - {"mlp_in", "mlp"}
    assert all(layer.mlp is None for layer in layers)


def digit_model(*prepend: int) -> Model:
    words = ["[UNK]", *"0123456789", "+", "=", "[BOS]", " ="]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" =|."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return make_model(
        build("gpt2"),
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"),
        prepend=prepend,
        check=False,
    )


def sums(*operands: tuple[str, str]) -> list[Pair]:
    """27+61= against 61+27=; both sides' answers begin alike, so a token is written on."""
    pairs: list[Pair] = []
    for number, (a, b) in enumerate(operands):
        clean, other = filled("{a}+{b}=", {"a": a, "b": b}), filled("{a}+{b}=", {"a": b, "b": a})
        pairs.append(
            Pair(
                str(number),
                clean.text,
                other.text,
                ("88",),
                ("81",),
                spans=clean.spans,
                counterfactual_spans=other.spans,
            )
        )
    return pairs


@pytest.mark.parametrize("prepend", [(), (13,), (13, 13)])
def test_columns_hold_the_tokens_of_the_part(prepend: tuple[int, ...]) -> None:
    model, pairs = digit_model(*prepend), sums(("27", "61"), ("5", "314"), ("999", "10"))
    batch = model.batch(pairs)
    assert model.tokenizer is not None
    for name, side, parts in (
        ("a", False, ["27", "5", "999"]),
        ("b", False, ["61", "314", "10"]),
        ("b", True, ["27", "5", "999"]),
    ):
        tokens = batch.counterfactual if side else batch.clean
        first = model.positions(pairs, f"{name}.first", counterfactual=side)
        last = model.positions(pairs, name, counterfactual=side)
        for row, part in enumerate(parts):
            assert [
                model.tokenizer.decode([t])
                for t in tokens[row, int(first[row]) : int(last[row]) + 1].tolist()
            ] == [*part]
    assert model.positions(pairs, "last").tolist() == [batch.n_tokens - 1] * 3
    assert [model.tokenizer.decode([t]) for t in batch.clean[:, -1].tolist()] == ["8"] * 3, (
        "the token that was written on"
    )


def test_what_has_no_position() -> None:
    model, pairs = digit_model(), sums(("27", "61"), ("5", "31"))
    with pytest.raises(UnknownName, match="'op1'"):
        model.positions(pairs, "op1")
    bare = Pair("bare", "27+61=", "61+27=", ("88",), ("81",))
    with pytest.raises(BadPairs, match="Pair bare has no token 'a'"):
        model.positions([*pairs, bare], "a")
