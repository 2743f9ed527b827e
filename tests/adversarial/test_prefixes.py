"""Stages of shared columns: their places against all possible ones,
and whose beginning they are.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.adversarial.evaluation import (
    PrefixCache,
    count_prefixes,
    lexicographic,
    stage_stops,
    without_answers,
)
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.forward import Contrast, trace
from mechassay.testing.tiny import VOCABULARY, subject

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=12)


def cost(
    stops: tuple[int, ...], clean: list[int], corrupted: list[float], stage_tokens: int
) -> float:
    """Tokens that stages ending at these columns run,
    the columns in which all prompts agree aside.
    """
    length = len(clean) - 1
    begin, total = max(stop for stop in range(length) if clean[stop] == 1), 0.0
    for stop in stops:
        total += corrupted[stop] * (clean[stop] * (stop - begin) + stage_tokens)
        begin = stop
    return total + clean[length] * (length - begin)


@settings(deadline=None, max_examples=60)
@given(PROMPTS, PROMPTS, st.integers(0, 8))
def test_no_other_cuts_cost_less(
    clean: list[list[int]], corrupted: list[list[int]], stage_tokens: int
) -> None:
    counts = count_prefixes(torch.tensor(clean))
    assert counts == [len({tuple(row[:stop]) for row in clean}) for stop in range(6)]
    shares = [each / len(corrupted) for each in count_prefixes(torch.tensor(corrupted))]
    found = stage_stops(counts, shares, stage_tokens)
    first = max(stop for stop in range(5) if counts[stop] == 1)
    others = [stops for size in range(5) for stops in combinations(range(first + 1, 5), size)]
    assert found in others
    assert cost(found, counts, shares, stage_tokens) == pytest.approx(
        min(cost(stops, counts, shares, stage_tokens) for stops in others)
    )


def test_cuts_by_hand() -> None:
    # Two beginnings of ten prompts up to column 3, all different after it; every corrupted prompt
    # begins in its own way.
    counts, shares = [1, 2, 2, 2, 10, 10], [0.1, *[1.0] * 5]
    assert stage_stops(counts, shares, 0) == (3,)
    # Without a stage 50 tokens are run, with it 2 * 3 + 10 * 2 and what a stage costs.
    assert stage_stops(counts, shares, 23) == (3,)
    assert stage_stops(counts, shares, 25) == ()
    assert stage_stops([1, 1, 1, 1, 1, 10], shares, 0) == ()


@settings(deadline=None, max_examples=40)
@given(PROMPTS)
def test_prompts_that_begin_alike_stand_together(rows: list[list[int]]) -> None:
    order = lexicographic(torch.tensor(rows))
    assert sorted(order) == list(range(len(rows)))
    for stop in range(1, 6):
        beginnings = [tuple(rows[row][:stop]) for row in order]
        changes = sum(a != b for a, b in pairwise(beginnings))
        assert changes == len(set(beginnings)) - 1


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_stages_are_the_beginnings_of_their_prompts(family: str) -> None:
    decoder = subject(family, torch.float64).model.decoder
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (7, 6), generator=generator)
    tokens[:, :2] = tokens[torch.arange(7) % 2, :2]
    tokens[:, 2:4] = tokens[torch.arange(7) % 3, 2:4]
    clean = trace(
        decoder, decoder.embed(tokens), decoder.context(torch.ones_like(tokens, dtype=torch.bool))
    )
    stages = PrefixCache(decoder, tokens, clean, (2, 4)).stages
    assert [(stage.begin, stage.stop, len(stage.batch)) for stage in stages] == [
        (0, 2, 2),
        (2, 4, 6),
    ]
    first, second = stages
    assert torch.equal(second.batch.clean[second.rows], tokens[:, :4])
    assert torch.equal(first.batch.clean[first.rows[second.rows]], tokens[:, :2])
    for layer, shared in zip(clean.layers, second.clean.layers, strict=True):
        torch.testing.assert_close(shared.k[second.rows], layer.k[:, :, :4])
        torch.testing.assert_close(shared.before[second.rows], layer.before[:, :4])


def test_a_corrupted_prompt_takes_over_what_it_shares_with_the_one_before() -> None:
    model = subject("gpt2", torch.float64).model
    decoder, graph = model.decoder, model.graph
    generator = torch.Generator().manual_seed(4)
    tokens, others = (torch.randint(0, VOCABULARY, (4, 6), generator=generator) for _ in range(2))
    others[1, :4], others[2, :3] = others[0, :4], others[1, :3]
    everything = torch.ones_like(tokens, dtype=torch.bool)
    clean, references = (
        trace(decoder, decoder.embed(each), decoder.context(everything))
        for each in (tokens, others)
    )
    edges = (torch.rand(graph.legal.shape, generator=generator) < 0.7) & graph.legal
    runs = [circuit_runner(decoder, graph, edges)]
    beginnings = PrefixCache(decoder, tokens, clean, (2, 4))
    taken = [
        beginnings.prefixes(runs, references, place, others[place], 0)[0] for place in range(4)
    ]
    # The second prompt shares both stages, the third the first one.
    assert taken[1] is taken[0] and taken[2] is not taken[1]
    for place in range(4):
        beginnings.forget()
        (anew,) = beginnings.prefixes(runs, references, place, others[place], 0)
        assert anew is not None and taken[place] is not anew
        whole, rest = (
            Contrast(
                without_answers(tokens, tokens),
                decoder.context(everything),
                begin,
                clean,
                references.one(place, 4, begin),
            )
            for begin in (0, 4)
        )
        for prefix in (anew, taken[place]):
            torch.testing.assert_close(
                runs[0](rest, prefix).hidden, runs[0](whole).hidden, rtol=0, atol=1e-12
            )
