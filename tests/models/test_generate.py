"""Writing with cached keys and values against Hugging Face's, and against whole runs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from families import families
from mechassay.errors import BadUsage
from mechassay.models.decoder import Decoder
from mechassay.models.forward import Edit, Place, forward, unchanged
from mechassay.models.generate import generate, until_end
from mechassay.models.model import Model, load_model, make_model
from mechassay.models.reference import exact_precision
from mechassay.testing.tiny import VOCABULARY, build, write_attn_only

N = 9


@pytest.fixture(scope="module", params=families())
def model(request: pytest.FixtureRequest) -> Model:
    return make_model(build(request.param, torch.float64), check=False)


@pytest.fixture(scope="module", params=[*families(), "attn-only"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    if request.param == "attn-only":
        folder: Path = tmp_path_factory.mktemp("attn-only")
        write_attn_only(folder)
        return load_model(str(folder), dtype="float64").decoder
    return make_model(build(request.param, torch.float64), check=False).decoder


def prompts(n: int = 4, width: int = 7, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Left-padded prompts, the first of one token."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (n, width), generator=generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :-1] = False
    mask[1, :3] = False
    return tokens, mask


def last_logits(decoder: Decoder, row: list[int], edit: Edit = unchanged) -> Tensor:
    tokens = torch.tensor([row])
    ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    return decoder.readout(forward(decoder, x, ctx, edit=edit)[:, -1]).all()[0]


def bare(tokens: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)]


def test_greedy_is_what_hugging_face_generates(model: Model) -> None:
    tokens, mask = prompts()
    with exact_precision(model.hf), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = model.hf.generate(
            tokens,
            attention_mask=mask.long(),
            max_new_tokens=N,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[:, tokens.shape[1] :]
    assert generate(model.decoder, tokens, mask, N).tolist() == theirs.tolist()


def test_greedy_is_the_likeliest_token_of_whole_runs(decoder: Decoder) -> None:
    tokens, mask = prompts()
    written = generate(decoder, tokens, mask, N).tolist()
    for row, said in zip(bare(tokens, mask), written, strict=True):
        for token in said:
            assert int(last_logits(decoder, row).argmax()) == token
            row.append(token)


def test_edits_of_prompts_and_of_new_tokens(decoder: Decoder) -> None:
    """A vector added at the last position of a prompt and at every new token, in one layer: as in
    runs of the whole row in which it is added at all these positions.
    """
    tokens, mask = prompts()
    vector = 30 * torch.randn(
        decoder.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    starts: list[int] = []

    def edits(start: int) -> Edit:
        starts.append(start)

        def edit(place: Place, layer: int, value: Tensor) -> Tensor:
            if (place, layer) != ("stream", 2):
                return value
            assert value.shape[1] == (7 if start == 0 else 1)
            return torch.cat((value[:, :-1], value[:, -1:] + vector), dim=1)

        return edit

    written = generate(decoder, tokens, mask, N, edits=edits).tolist()
    assert starts == [0, *range(7, 7 + N - 1)]
    assert written != generate(decoder, tokens, mask, N).tolist()
    for row, said in zip(bare(tokens, mask), written, strict=True):
        n_prompt = len(row)

        def steered(place: Place, layer: int, value: Tensor, begin: int = n_prompt - 1) -> Tensor:
            if (place, layer) != ("stream", 2):
                return value
            return torch.cat((value[:, :begin], value[:, begin:] + vector), dim=1)

        for token in said:
            assert int(last_logits(decoder, row, steered).argmax()) == token
            row.append(token)


def test_writing_stops_at_the_end_of_text(decoder: Decoder) -> None:
    tokens, mask = prompts()
    free = generate(decoder, tokens, mask, N)
    end = {int(free[2, 1]), int(free[1, 4])}
    ended = generate(decoder, tokens, mask, N, end=end)
    for said, all_said in zip(ended.tolist(), free.tolist(), strict=True):
        kept = until_end(all_said, end)
        assert until_end(said, end) == kept
        assert len(set(said[len(kept) :])) <= 1
    alone = generate(decoder, tokens[2:3], mask[2:3], N, end=end)
    assert alone.shape[1] == len(until_end(free[2].tolist(), end)) + 1 <= 2


# Sampling.


def test_a_sampled_row_depends_on_its_generator_alone(decoder: Decoder) -> None:
    tokens, mask = prompts()

    def drawn(seed: int, **settings: float) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return generate(decoder, tokens, mask, N, generator=generator, **settings).tolist()

    assert drawn(0) == drawn(0) != drawn(1)
    assert drawn(0, temperature=1e-9) == generate(decoder, tokens, mask, N).tolist()


def test_samples_have_the_probabilities_of_the_model() -> None:
    """4000 draws of the next token: each share within five standard errors."""
    model, n = make_model(build("llama"), check=False), 4000
    row, temperature = [5, 17, 33], 2.0
    tokens = torch.tensor([row]).repeat(n, 1)
    generator = torch.Generator().manual_seed(0)
    said = generate(
        model.decoder,
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        1,
        generator=generator,
        temperature=temperature,
    )
    share = torch.bincount(said[:, 0], minlength=VOCABULARY) / n
    p = (last_logits(model.decoder, row) / temperature).softmax(-1)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / n).sqrt() + 1 / n).all()
    assert (share > 0).sum() > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = make_model(build("llama", dtype), check=False)
    tokens, mask = prompts()
    for generator in (None, torch.Generator().manual_seed(0)):
        said = generate(model.decoder, tokens, mask, 3, generator=generator)
        assert said.shape == (4, 3) and said.dtype == torch.long


# What is refused.


def test_bad_usage() -> None:
    decoder = make_model(build("gpt2"), check=False).decoder
    tokens, mask = prompts()
    with pytest.raises(BadUsage, match="at least one token; got n=0"):
        generate(decoder, tokens, mask, 0)
    with pytest.raises(BadUsage, match=r"above 0; got 0\.0"):
        generate(decoder, tokens, mask, 1, temperature=0.0)
    empty = mask.clone()
    empty[2] = False
    with pytest.raises(BadUsage, match="row 2 has none"):
        generate(decoder, tokens, empty, 1)
    assert generate(decoder, tokens, mask, 58).shape == (4, 58)
    with pytest.raises(BadUsage, match="need 65 positions; the model has 64"):
        generate(decoder, tokens, mask, 59)
