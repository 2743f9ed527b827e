"""Pools of prompts: how many, how long, from which examples, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from mechassay.adversarial.pools import Pool, draw_pools, enumerate_pools, tokenized, worst_apart
from mechassay.adversarial.worst import largest
from mechassay.alignment import encode
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Example, Prompt
from mechassay.models.model import Model, make_model
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import IOI
from mechassay.tasks.task import Task
from mechassay.testing.tiny import build, with_words
from mechassay.truth.models import Truth, load_truth

SIZES = MappingProxyType({"train": 10, "test": 10})


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@dataclass(frozen=True)
class Listed(Task):
    """A task that ends: prompts of Ann, each with the same of Bob,
    by their numbers of words before "to".
    """

    lengths: tuple[int, ...] = ()
    others: tuple[int | None, ...] = ()

    name = "listed"
    counterfactuals = ("other", "none")
    default_counterfactual = "other"
    sizes = SIZES

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        for number, (length, other) in enumerate(
            zip(self.lengths, self.others or self.lengths, strict=True)
        ):
            found = {} if other is None else {"other": prompt("Bob", other)}
            yield Example(str(number), prompt("Ann", length), found)


def prompt(name: str, n_words: int) -> Prompt:
    return Prompt(f"{name} " + "and " * n_words + "to", spans={"name": (0, 3)})


def texts(pool: Pool) -> list[str]:
    return [each.text for each in pool.prompts]


def test_pools_have_the_sizes_and_one_length(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.task, truth.model, 30, 20)
    assert (len(clean), len(corrupted)) == (30, 20)
    assert clean.tokens.shape == (30, 10) and corrupted.tokens.shape == (20, 10)
    assert truth.model.tokenizer is not None
    for pool in (clean, corrupted):
        assert pool.tokens.tolist() == encode(truth.model.tokenizer, texts(pool))
    assert clean.dropped == corrupted.dropped == {}


def test_the_pools_come_from_different_examples(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.task, truth.model, 30, 20, split="train", seed=3)
    stream = list(islice(truth.task.generate("train", 3), 50))
    assert texts(clean) == [each.prompt.text for each in stream[:30]]
    assert texts(corrupted) == [each.counterfactuals["other-prompt"].text for each in stream[30:]]


def test_matched_pools_come_from_the_same_examples(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.task, truth.model, 25, 25, matched=True)
    stream = list(islice(truth.task.generate("test", 0), 25))
    assert texts(clean) == [each.prompt.text for each in stream]
    assert texts(corrupted) == [each.counterfactuals["other-prompt"].text for each in stream]


def test_a_larger_pool_begins_with_the_smaller_one_and_seeds_differ(truth: Truth) -> None:
    small, large, other = (
        draw_pools(truth.task, truth.model, n, 5, seed=seed)[0]
        for n, seed in ((10, 0), (20, 0), (10, 1))
    )
    assert texts(large)[:10] == texts(small) and not set(texts(other)) & set(texts(small))


def test_other_lengths_are_dropped_and_counted(truth: Truth) -> None:
    task = Listed((3, 5, 3, 3, 4, 3, 3, 3, 3), (3, 3, 3, 3, 3, 2, None, 3, 3))
    # Rows 0, 2 and 3 are clean; of the rest 4 and 7 are corrupted, 5 is too short and 6 has none.
    clean, corrupted = draw_pools(task, truth.model, 3, 1)
    assert texts(clean) == [prompt("Ann", 3).text] * 3 and clean.dropped == {"not 5 tokens": 1}
    assert texts(corrupted) == [prompt("Bob", 3).text] and corrupted.dropped == {}
    clean, corrupted = draw_pools(task, truth.model, 3, 2)
    assert corrupted.dropped == {"not 5 tokens": 1, "no such counterfactual": 1}
    clean, corrupted = draw_pools(task, truth.model, 5, 5, matched=True)
    assert clean.dropped == {"not 5 tokens": 2} and corrupted.dropped == {
        "not 5 tokens": 1,
        "no such counterfactual": 1,
    }


@dataclass(frozen=True)
class Strangers(Listed):
    """A name that no tokenizer knows, in every second prompt."""

    name = "strangers"

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        for number in range(12):
            yield Example(
                str(number), prompt("Zed" if number % 2 else "Ann", 3), {"other": prompt("Bob", 3)}
            )


def test_words_that_the_tokenizer_does_not_know_are_dropped_and_counted(truth: Truth) -> None:
    clean, corrupted = draw_pools(Strangers(), truth.model, 4, 3)
    assert texts(clean) == [prompt("Ann", 3).text] * 4 and clean.dropped == {
        "words unknown to the tokenizer": 3
    }
    assert len(corrupted) == 3 and corrupted.dropped == {}
    with pytest.raises(
        BadPairs, match=r"asked for 7 and 7 \(left out: 6 words unknown to the tokenizer\)"
    ):
        draw_pools(Strangers(), truth.model, 7, 7, matched=True)
    # Some tokenizers have one token for what is unknown and for the beginning of a text.
    unknown = truth.model.tokenizer.unk_token_id  # pyright: ignore[reportOptionalMemberAccess]
    assert unknown is not None
    assert len(draw_pools(truth.task, replace(truth.model, prepend=(unknown,)), 4, 3)[0]) == 4


@pytest.mark.slow
def test_a_task_in_another_language_has_no_population(truth: Truth) -> None:
    with pytest.raises(BadPairs, match=r"left out: [\d,]+ words unknown to the tokenizer"):
        enumerate_pools(GreaterThan(), truth.model)
    with pytest.raises(BadPairs, match=r"left out: [\d,]+ words unknown to the tokenizer"):
        draw_pools(truth.task, load_truth("truth-induction").model, 5, 5)


def test_prompts_of_several_templates(reader: Model) -> None:
    """IOI's templates have different lengths: one is taken, whatever the kind of counterfactual."""
    clean, corrupted = draw_pools(IOI(), reader, 40, 30, counterfactual="abc_counterfactual")
    lengths = [len(row) for row in tokenized(reader, texts(clean) + texts(corrupted))]
    assert set(lengths) == {clean.tokens.shape[1]} and sum(clean.dropped.values()) > 0
    assert "subject" in clean.fields and "subject" not in corrupted.fields
    assert set(clean.fields["name_C"]) <= set(clean.fields["name_A"]) | set(clean.fields["name_B"])


def test_what_the_model_puts_before_every_prompt(truth: Truth) -> None:
    model = replace(truth.model, prepend=(2,))
    clean, _ = draw_pools(truth.task, model, 3, 1)
    assert clean.tokens.shape == (3, 11) and clean.tokens[:, 0].tolist() == [2, 2, 2]


def test_fields_and_selections() -> None:
    task = Listed((3, 3))
    clean, _ = draw_pools(task, load_truth("truth-ioi").model, 1, 1)
    assert clean.fields == {"name": ("Ann",)}
    mixed = Pool((*clean.prompts, Prompt("and to")), clean.tokens.repeat(2, 1))
    assert mixed.fields == {"name": ("Ann", "-")}
    assert texts(mixed.select([1, 0])) == ["and to", prompt("Ann", 3).text]
    assert mixed.select([1, 1]).tokens.shape == (2, 5)


def test_a_split_that_runs_out_is_an_error(truth: Truth) -> None:
    task = Listed((3, 3, 4, 3, 3))
    assert len(draw_pools(task, truth.model, 2, 2)[1]) == 2
    with pytest.raises(
        BadPairs,
        match=(
            r"'test' of listed has 2 clean and 2 corrupted prompts of 5 tokens for .*; asked for 2"
            r" and 3"
        ),
    ):
        draw_pools(task, truth.model, 2, 3)
    with pytest.raises(BadPairs, match="has 0 clean and 0 corrupted prompts of 0 tokens"):
        draw_pools(Listed(), truth.model, 2, 3)
    with pytest.raises(BadPairs, match="has 2 clean and 0 corrupted"):
        draw_pools(Listed((3,) * 400), truth.model, 2, 2, counterfactual="none")


def test_what_cannot_be_drawn(truth: Truth) -> None:
    with pytest.raises(
        UnknownName, match=r"counterfactual 'othr-prompt'. Did you mean 'other-prompt'"
    ):
        draw_pools(truth.task, truth.model, 2, 2, counterfactual="othr-prompt")
    for split in ("private", "tset"):
        with pytest.raises(UnknownName, match="Unknown split"):
            draw_pools(truth.task, truth.model, 2, 2, split=split)
    with pytest.raises(UnknownName, match="Known: test, train"):
        draw_pools(Listed((3,)), truth.model, 1, 1, split="validation")
    for sizes, matched in (((0, 2), False), ((2, -1), False), ((2, 3), True)):
        with pytest.raises(BadUsage, match=f"got {sizes[0]} clean and {sizes[1]} corrupted"):
            draw_pools(truth.task, truth.model, *sizes, matched=matched)
    with pytest.raises(BadUsage, match="seed must be 0 or more; got -1"):
        draw_pools(truth.task, truth.model, 2, 2, seed=-1)
    with pytest.raises(BadPairs, match="no tokenizer"):
        draw_pools(truth.task, make_model(build("gpt2")), 2, 2)


def test_the_worst_pairs_apart() -> None:
    values = np.array([[9.0, 8.0, 1.0], [7.0, 5.0, np.nan], [3.0, 2.0, 4.0]])
    assert worst_apart(values, 2).tolist() == [0, 4]
    assert worst_apart(values, 9).tolist() == [0, 4, 8]
    assert worst_apart(np.full((2, 2), np.nan), 1).tolist() == []


def test_no_prompt_comes_twice() -> None:
    """The worst list may be one prompt with many others;
    the other one takes each prompt, clean or corrupted, once.
    """
    prompts = "abc", "bcd"
    values = np.array([[9.0, 8.0, 7.0], [6.0, 1.0, 2.0], [3.0, 4.0, np.nan]])
    # (a, b) first; it takes b's row too. Of the rest (c, c) is the worst, and (c, d) is undefined.
    assert largest(values.reshape(-1), 3).tolist() == [0, 1, 2]
    assert worst_apart(values, 3, *prompts).tolist() == [0, 7]
    # (b, c) shares a prompt with both others.
    assert worst_apart(np.array([1.0, 3.0, 2.0]), 5, *prompts).tolist() == [1]
    assert worst_apart(values, 0, *prompts).tolist() == []
    with pytest.raises(BadUsage, match="0 or more; got -1"):
        worst_apart(values, -1, *prompts)


def test_distinct_pairs_against_a_slow_version() -> None:
    rng = np.random.default_rng(0)
    clean, corrupted = ([f"{name}{rng.integers(9)}" for _ in range(12)] for name in "xy")
    values, used, wanted = rng.normal(size=(12, 12)), set[str](), []
    for place in np.argsort(-values.reshape(-1)):
        texts = {clean[place // 12], corrupted[place % 12]}
        if not texts & used:
            used |= texts
            wanted.append(place)
    assert worst_apart(values, 100, clean, corrupted).tolist() == wanted
