"""Trees of tokens against every sequence run by itself, for every family.

Writing with cached keys and values against Hugging Face's, and against whole runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import exact_precision
from helpers.models import families
from helpers.tiny_models import write_attn_only
from mechassay.errors import BadUsage
from mechassay.models import generation as continuations
from mechassay.models.decoder import Decoder
from mechassay.models.forward import Edit, LayerTrace, Place, forward, unchanged
from mechassay.models.generation import (
    Tokens,
    final_streams,
    generate,
    token_trees,
    tree_context,
    until_end,
)
from mechassay.models.model import Model, load_model, make_model
from mechassay.testing.tiny import VOCABULARY, build


@pytest.fixture(scope="module", params=[*families(), "attn-only"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    if request.param == "attn-only":
        folder: Path = tmp_path_factory.mktemp("attn-only")
        write_attn_only(folder)
        return load_model(str(folder), dtype="float64").decoder
    return make_model(build(request.param, torch.float64), check=False).decoder


def drawn(*shape: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, shape, generator=generator).tolist()


def family_tree() -> list[Tokens]:
    """Prompts longer than the windows (4), with continuations that part at several depths; two
    prompts share a beginning, one is a beginning of another, and one is unlike all others.
    """
    first, second, third = (tuple(row) for row in drawn(3, 9))
    prompts = [first, (*first[:5], *second[:4]), first[:6], third[:2]]
    rests = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 4), (5,), (5, 2), (6, 6, 6, 6, 6, 6)]
    return [prompt + rest for prompt in prompts for rest in rests]


def one_by_one(decoder: Decoder, sequences: Sequence[Tokens]) -> Tensor:
    """The slow, obvious way: a run for every sequence."""
    rows: list[Tensor] = []
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
        stream = forward(decoder, decoder.add_positions(decoder.embed(tokens), ctx), ctx)
        rows.append(stream[0, -1])
    return torch.stack(rows)


def together(decoder: Decoder, sequences: Sequence[Tokens]) -> Tensor:
    found = torch.full((len(sequences), decoder.d_model), float("nan"), dtype=torch.float64)
    for members, streams in final_streams(decoder, sequences):
        assert found[members].isnan().all()
        found[members] = streams
    return found


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_equals_a_run_for_every_sequence(decoder: Decoder) -> None:
    sequences = family_tree()
    same(together(decoder, sequences), one_by_one(decoder, sequences))


def test_rows_of_any_width_are_the_same(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each first token, a row for each sequence, and rows in between."""
    sequences = family_tree()
    whole = one_by_one(decoder, sequences)
    for worth, budget, n_rows in ((10**9, 10**6, 2), (-(10**9), 10**6, 32), (3, 40, None)):
        monkeypatch.setattr(continuations, "SCORES_PER_VECTOR", worth)
        monkeypatch.setattr(continuations, "token_budget", lambda *_, budget=budget: budget)
        rows = token_trees(sequences, decoder.d_model, budget)
        assert n_rows is None or len(rows) == n_rows
        same(together(decoder, sequences), whole)


def test_a_tree_goes_on_from_a_run_of_padded_prompts(decoder: Decoder) -> None:
    """Continuations of prompts that are run already: their keys and values are the past."""
    tokens = torch.tensor(drawn(2, 7, seed=1))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :3] = False
    ctx, past = decoder.context(mask), list[LayerTrace]()
    forward(decoder, decoder.add_positions(decoder.embed(tokens), ctx), ctx, keep=past)
    # 8 -> 9 -> 10, 8 -> 11, 12
    nodes, below = torch.tensor([[8, 9, 10, 11, 12]] * 2), torch.tensor([0, 1, 2, 1, 0])
    depths = torch.cat((ctx.position_ids, mask.sum(1, keepdim=True) + below), dim=1)
    tree = tree_context(decoder, depths)
    x = decoder.add_positions(decoder.embed(nodes), tree, 7)
    streams = forward(decoder, x, tree, start=7, past=past)
    paths = [(8,), (8, 9), (8, 9, 10), (8, 11), (12,)]
    for row, prompt in enumerate((tokens[0, 3:].tolist(), tokens[1].tolist())):
        same(streams[row], one_by_one(decoder, [(*prompt, *path) for path in paths]))


def test_an_edit_sees_the_nodes(decoder: Decoder) -> None:
    """A change of the stream at every node is that of a run in which all tokens are changed."""

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        return value * 1.5 if (place, layer) == ("stream", 1) else value

    sequences = family_tree()[:8]
    (members, streams), *_ = final_streams(decoder, sequences, edit=edit)
    longest = max(sequences, key=len)
    tokens = torch.tensor([longest])
    ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    same(
        streams[members.index(sequences.index(longest))], forward(decoder, x, ctx, edit=edit)[0, -1]
    )


def test_gradients_flow_where_autograd_is_on(decoder: Decoder) -> None:
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        return value * scale if (place, layer) == ("stream", 0) else value

    ((_, streams),) = final_streams(decoder, [(1, 2), (1, 3)], edit=edit)
    (gradient,) = torch.autograd.grad(streams.sum(), scale)
    assert gradient.abs() > 0
    with torch.no_grad():
        ((_, streams),) = final_streams(decoder, [(1, 2)])
    assert not streams.requires_grad


# What a run costs.


def test_what_sequences_share_is_there_once() -> None:
    """A prompt and a hundred continuations of two tokens, read before each of their tokens."""
    prompt = tuple(range(20))
    contexts = [prompt, *((*prompt, tens) for tens in range(10))]
    (row,) = token_trees(contexts, d_model=64, widest=1000)
    assert len(row.tokens) == 20 + 10
    assert row.depths == [*range(20), *[20] * 10]
    assert [row.tokens[column] for column in row.columns] == [19, *range(10)]
    again = token_trees(contexts * 3, d_model=64, widest=1000)
    assert [len(row.tokens) for row in again] == [30]


def test_a_row_is_no_wider_than_what_is_allowed_and_than_pays() -> None:
    prompt = tuple(range(20))
    contexts = [(*prompt, n, *rest) for n, rest in enumerate(drawn(40, 2))]
    rows = token_trees(contexts, d_model=64, widest=32)
    assert [len(row.tokens) for row in rows] == [32] * 10
    assert sorted(member for row in rows for member in row.members) == list(range(40))
    # What begins alike in nothing pays in no row but its own.
    apart = token_trees([(n, *prompt) for n in range(50, 55)], d_model=64, widest=1000)
    assert [len(row.tokens) for row in apart] == [21] * 5


def test_a_sequence_without_a_token_is_refused() -> None:
    with pytest.raises(BadUsage, match="number 1 has none"):
        token_trees([(1,), ()], 64, 10)


def test_depths_alone_say_what_is_seen() -> None:
    """By hand: 0 -> 1 -> 2, 0 -> 3; a second tree 4 -> 5; padding."""
    decoder = make_model(build("gpt2"), check=False).decoder
    full, windowed = (
        replace(layer, attention=replace(layer.attention, window=window))
        for layer, window in zip(decoder.layers, (None, 2), strict=False)
    )
    decoder = replace(decoder, layers=(full, windowed))
    ctx = tree_context(decoder, torch.tensor([[0, 1, 2, 1, 0, 1, 0]]))
    seen = {
        window: mask[0, 0].int().tolist()
        for window, mask in ctx.allowed.items()
        if mask is not None
    }
    everywhere = [[0], [0, 1], [0, 1, 2], [0, 3], [4], [4, 5], [6]]
    near = [[0], [0, 1], [1, 2], [0, 3], [4], [4, 5], [6]]
    for window, expected in ((None, everywhere), (2, near)):
        assert seen[window] == [[int(a in row) for a in range(7)] for row in expected]


N = 9


@pytest.fixture(scope="module", params=families())
def model(request: pytest.FixtureRequest) -> Model:
    return make_model(build(request.param, torch.float64), check=False)


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
