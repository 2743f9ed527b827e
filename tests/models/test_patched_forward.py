"""Stacks of interventions against the whole forward with edits, and hooks on the original model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.hooks_reference import ReferenceModel, exact_precision
from helpers.models import families
from helpers.tiny_models import write_attn_only
from mechassay.models.decoder import Context
from mechassay.models.forward import Place, Trace, forward
from mechassay.models.model import Model, load_model
from mechassay.models.patched_forward import (
    ENTRIES,
    Entry,
    Stack,
    TokenEdit,
    depth_of,
    suffix_forward,
)
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import subject, token_pairs

COLUMNS = 7


@dataclass(frozen=True, eq=False)
class Case:
    """A model and the base run of three prompts, the first of them padded."""

    model: Model
    batch: Batch
    base: Trace
    ctx: Context


def case_of(model: Model) -> Case:
    batch = token_pairs()
    base, ctx = model.run(batch)
    return Case(model, batch, base, ctx)


@pytest.fixture(scope="module", params=[*families(), "attn_only"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param != "attn_only":
        return case_of(subject(request.param, dtype=torch.float64).model)
    folder = tmp_path_factory.mktemp("attn_only")
    write_attn_only(folder)
    return case_of(load_model(str(folder), dtype="float64"))


class Change(NamedTuple):
    """A vector that is added at one place, layer and column of a row's prompt."""

    place: Entry
    layer: int
    column: int


class Row(NamedTuple):
    prompt: int
    changes: tuple[Change, ...]


def usable(model: Model, place: Entry, layer: int) -> bool:
    if layer == len(model.decoder.layers):
        return place == "stream"
    if place in ("middle", "mlp") and model.decoder.layers[0].mlp is None:
        return False
    return not (place == "middle" and model.decoder.parallel)


def vectors(model: Model, rows: list[Row]) -> list[list[Tensor]]:
    """What is added, row by row."""
    generator = torch.Generator().manual_seed(5)
    attention = model.decoder.layers[0].attention
    shapes: dict[str, tuple[int, ...]] = {"z": (attention.n_heads, attention.out.shape[1])}
    return [
        [
            torch.randn(
                shapes.get(change.place, (model.decoder.d_model,)),
                generator=generator,
                dtype=torch.float64,
            )
            for change in row.changes
        ]
        for row in rows
    ]


def stacked(case: Case, rows: list[Row], added: list[list[Tensor]], read: int) -> Tensor:
    """All rows in one stack, in the order given."""
    depths = [min(depth_of(c.place, c.layer) for c in row.changes) for row in rows]
    order = sorted(range(len(rows)), key=depths.__getitem__)
    stack = Stack(
        torch.tensor([rows[i].prompt for i in order]),
        torch.tensor([min(c.column for c in rows[i].changes) for i in order]),
        torch.tensor([depths[i] for i in order]),
        COLUMNS,
    )
    edits: list[TokenEdit] = []
    for number, i in enumerate(order):
        for change, vector in zip(rows[i].changes, added[i], strict=True):
            token = stack.tokens(torch.tensor([number]), torch.tensor([change.column]))

            def add(value: Tensor, vector: Tensor = vector) -> Tensor:
                return value + vector

            edits.append(TokenEdit(change.place, change.layer, token, add))
    out = suffix_forward(case.model.decoder, case.base, case.ctx, stack, edits, read=read)
    return out[torch.tensor(order).argsort()]


def one_by_one(case: Case, rows: list[Row], added: list[list[Tensor]], read: int) -> Tensor:
    """Each row as a whole forward with edits."""
    decoder, layers = case.model.decoder, len(case.model.decoder.layers)
    outs: list[Tensor] = []
    for row, of_row in zip(rows, added, strict=True):

        def edit(
            place: Place, layer: int, value: Tensor, row: Row = row, of: Any = of_row
        ) -> Tensor:
            for change, vector in zip(row.changes, of, strict=True):
                if (change.place, change.layer) == (place, layer):
                    where = torch.zeros(COLUMNS, dtype=value.dtype)
                    where[change.column] = 1
                    if place == "z":
                        value = value + where[:, None] * vector[:, None]
                    else:
                        value = value + where[:, None] * vector
            return value

        mask = case.batch.mask[row.prompt : row.prompt + 1]
        tokens = case.batch.clean[row.prompt : row.prompt + 1]
        ctx = decoder.context(mask)
        x = decoder.add_positions(decoder.embed(tokens), ctx)
        x = edit("stream", layers, forward(decoder, x, ctx, edit=edit))
        outs.append(x[0, -read:])
    return torch.stack(outs)


def every_row(model: Model, columns: tuple[int, ...]) -> list[Row]:
    """Every place of every layer at some columns, prompts in turn."""
    layers = len(model.decoder.layers)
    places: list[tuple[Entry, int]] = [
        (place, layer)
        for layer in range(layers + 1)
        for place in ENTRIES
        if usable(model, place, layer)
    ]
    return [
        Row(number % 3, (Change(place, layer, column),))
        for number, (column, (place, layer)) in enumerate(
            (column, at) for column in columns for at in places
        )
    ]


@pytest.mark.parametrize("read", [1, 3])
@pytest.mark.parametrize("columns", [(2,), (4,), (6,), (2, 4, 6, 5)])
def test_a_stack_is_what_each_row_gives_alone(
    case: Case, columns: tuple[int, ...], read: int
) -> None:
    rows = every_row(case.model, columns)
    added = vectors(case.model, rows)
    ours, slow = stacked(case, rows, added, read), one_by_one(case, rows, added, read)
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)


def test_several_changes_of_one_row_meet_the_values_of_their_time(case: Case) -> None:
    model, last = case.model, len(case.model.decoder.layers) - 1
    wide: list[tuple[Change, ...]] = [
        (Change("z", 0, 3), Change("z", 0, 5), Change("z", last, 4)),
        (Change("stream", 1, 5), Change("stream", last + 1, 6), Change("z", last, 2)),
        (Change("stream", 0, 6), Change("stream", 1, 6), Change("z", 1, 6)),
        (Change("z", last, 2), Change("stream", last + 1, 3)),
    ]
    if model.decoder.layers[0].mlp is not None:
        wide.append((Change("mlp", 0, 2), Change("z", 1, 3), Change("mlp", last, 6)))
    rows = [Row(number % 3, changes) for number, changes in enumerate(wide)]
    added = vectors(model, rows)
    for read in (1, 2, COLUMNS - 2):
        ours, slow = stacked(case, rows, added, read), one_by_one(case, rows, added, read)
        torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)


def test_gradients_flow_through_the_suffix_alone(case: Case) -> None:
    rows = every_row(case.model, (3, 6))
    added = vectors(case.model, rows)
    gradients: list[list[Tensor]] = []
    for run in (stacked, one_by_one):
        leaves = [[vector.clone().requires_grad_() for vector in row] for row in added]
        final = run(case, rows, leaves, 2)
        logits = case.model.decoder.readout(final.flatten(0, 1)).all()
        logits.log_softmax(-1)[:, 7].sum().backward()
        gradients.append([leaf.grad for row in leaves for leaf in row if leaf.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) == len(rows)
    for ours, slow in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_rows_at_all(data: st.DataObject) -> None:
    case = NEOX_AND_GEMMA[data.draw(st.integers(0, 1))]
    places: list[tuple[Entry, int]] = [
        (place, layer)
        for layer in range(4)
        for place in ENTRIES
        if usable(case.model, place, layer)
    ]
    change = st.builds(
        lambda at, column: Change(at[0], at[1], column), st.sampled_from(places), st.integers(2, 6)
    )
    row = st.builds(
        Row,
        st.integers(0, 2),
        st.lists(change, min_size=1, max_size=3, unique=True).map(tuple),
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    added, read = vectors(case.model, rows), data.draw(st.integers(1, 4))
    ours, slow = stacked(case, rows, added, read), one_by_one(case, rows, added, read)
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-9)


NEOX_AND_GEMMA = [case_of(subject(name, dtype=torch.float64).model) for name in ("neox", "gemma3")]


def test_hooks_on_the_original_model_agree(case: Case) -> None:
    """A vector added to a block's output at one column, and its gradient, by hooks."""
    model = case.model
    if model.family == "transformer-lens":
        pytest.skip("transformers has no class of it")
    reference = ReferenceModel(model.hf, model.graph)
    vector = vectors(model, [Row(0, (Change("stream", 0, 0),))])[0][0]
    for layer in range(len(reference.blocks)):
        for column in (2, 4, 6):
            ours, theirs = vector.clone().requires_grad_(), vector.clone().requires_grad_()
            rows = [Row(prompt, (Change("stream", layer + 1, column),)) for prompt in range(3)]
            final = stacked(case, rows, [[ours]] * 3, 1)[:, 0]
            logits = model.decoder.readout(final).all()
            with exact_precision(model.hf), ExitStack() as hooks:
                hooks.callback(
                    reference.blocks[layer].register_forward_hook(_added(theirs, column)).remove
                )
                mask = case.batch.mask
                position_ids = (mask.long().cumsum(1) - 1).clamp(min=0)
                hooked = model.hf(
                    case.batch.clean,
                    attention_mask=mask.long(),
                    position_ids=position_ids,
                    use_cache=False,
                ).logits[:, -1]
            torch.testing.assert_close(logits, hooked, rtol=0, atol=1e-10)
            weights = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
            (logits * weights).sum().backward()
            (hooked * weights).sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-9)


def _added(vector: Tensor, column: int) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        stream = output[0] if isinstance(output, tuple) else output
        where = torch.zeros(stream.shape[1], 1, dtype=stream.dtype)
        where[column] = 1
        changed = stream + where * vector
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook
