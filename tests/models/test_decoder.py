"""The functional decoder against the unmodified Hugging Face model, for every family."""

from __future__ import annotations

import pytest
import torch

from helpers.hooks_reference import exact_precision
from helpers.models import USUAL, families
from mechassay.models.families import decode
from mechassay.models.forward import forward, trace
from mechassay.models.model import Model, make_model
from mechassay.models.self_check import sum_of_writers
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, build, subject


@pytest.fixture(scope="module", params=families(quick=USUAL))
def exact(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, dtype=torch.float64)


def original_logits(model: Model, row: torch.Tensor) -> torch.Tensor:
    """The Hugging Face model on one prompt without padding, all positions."""
    with torch.no_grad():
        return model.hf(row[None], use_cache=False).logits[0]


@pytest.mark.parametrize("name", families(quick=USUAL))
def test_logits_in_fp32(name: str) -> None:
    tiny = subject(name)
    taken, _ = tiny.model.run(tiny.batch)
    ours = taken.readout(tiny.model.decoder).all()
    for row in range(len(tiny.batch)):
        theirs = original_logits(tiny.model, tiny.batch.clean[row][tiny.batch.mask[row]])[-1]
        torch.testing.assert_close(
            ours[row], theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max())
        )


def test_logits_in_fp64_with_and_without_padding(exact: Subject) -> None:
    """Row 0 is left-padded in the batch; the original runs it bare."""
    model, batch = exact.model, exact.batch
    with exact_precision(model.hf):
        for row in range(len(batch)):
            theirs = original_logits(model, batch.clean[row][batch.mask[row]])[-1]
            ours = model.run(batch)[0].readout(model.decoder).all()[row]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_right_padded_tokens_are_the_same_batch(exact: Subject) -> None:
    model, batch = exact.model, exact.batch
    right = torch.nn.functional.pad(batch.clean[1:], (0, 3), value=4)
    other = torch.nn.functional.pad(batch.counterfactual[1:], (0, 3), value=4)
    mask = torch.nn.functional.pad(batch.mask[1:], (0, 3), value=False)
    same = Batch.from_tokens(right, other, batch.answers[1:], batch.foils[1:], mask=mask)
    a, b = (model.run(each)[0].readout(model.decoder).all() for each in (batch, same))
    torch.testing.assert_close(a[1:], b, rtol=0, atol=1e-10)


def test_every_position_of_the_stream_is_the_original(exact: Subject) -> None:
    model, batch = exact.model, exact.batch.select([1, 2])
    taken, _ = model.run(batch)
    with exact_precision(model.hf):
        for column in range(1, batch.n_tokens):
            theirs = torch.stack([original_logits(model, row)[column] for row in batch.clean])
            torch.testing.assert_close(
                model.decoder.readout(taken.final[:, column]).all(), theirs, rtol=0, atol=1e-10
            )


def test_writers_sum_to_the_stream(exact: Subject) -> None:
    taken, ctx = exact.model.run(exact.batch)
    torch.testing.assert_close(
        sum_of_writers(exact.model.decoder, taken, ctx), taken.final, rtol=0, atol=1e-11
    )


def test_a_run_from_a_later_column_continues_the_first(exact: Subject) -> None:
    decoder, batch = exact.model.decoder, exact.batch
    ctx = decoder.context(batch.mask)
    whole = trace(decoder, decoder.embed(batch.clean), ctx)
    for start in (1, 3, 6):
        rest = trace(decoder, decoder.embed(batch.clean[:, start:]), ctx, past=whole, start=start)
        torch.testing.assert_close(rest.final, whole.final[:, start:], rtol=0, atol=1e-11)


@pytest.mark.parametrize("start", [0, 3])
def test_resuming_at_any_layer_gives_the_same_logits(exact: Subject, start: int) -> None:
    decoder, batch = exact.model.decoder, exact.batch
    ctx = decoder.context(batch.mask)
    whole = trace(decoder, decoder.embed(batch.clean), ctx)
    expected = whole.readout(decoder).all()
    for layer, seen in enumerate(whole.layers):
        for at_mlp, stream in ((False, seen.before), (True, seen.middle)):
            if at_mlp and decoder.parallel:
                continue
            stack = stream[:, start:].repeat(2, 1, 1)
            final = forward(
                decoder,
                stack,
                ctx.repeat(2),
                layer=layer,
                at_mlp=at_mlp,
                past=whole.layers,
                start=start,
                last_only=True,
            )
            again = decoder.readout(final[:, -1]).all()
            torch.testing.assert_close(again, expected.repeat(2, 1), rtol=0, atol=1e-10)


def test_logits_of_some_tokens_are_those_of_all(exact: Subject) -> None:
    readout = exact.model.run(exact.batch)[0].readout(exact.model.decoder)
    tokens = torch.tensor([[3, 50], [0, 96], [7, 7]])
    torch.testing.assert_close(readout.at(tokens), readout.all().gather(1, tokens))


@pytest.mark.parametrize("name", families(quick=USUAL))
def test_weights_are_shared_with_the_original(name: str) -> None:
    hf = build(name)
    decoder = decode(hf)
    assert decoder.embedding.data_ptr() == hf.get_input_embeddings().weight.data_ptr()


@pytest.mark.parametrize("name", ["gpt2", "llama31", "gemma3"])
def test_bf16_runs_and_is_close(name: str) -> None:
    """The same code in bf16, accumulating in fp32."""
    wide, narrow = build(name), build(name).to(torch.bfloat16)
    tiny = subject(name)
    a = make_model(wide).run(tiny.batch)[0].readout(decode(wide)).all()
    b = make_model(narrow).run(tiny.batch)[0].readout(decode(narrow)).all()
    assert b.dtype == torch.float32
    assert float((a - b).abs().max() / a.std()) < 0.5
