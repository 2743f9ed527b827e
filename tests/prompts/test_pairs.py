"""Batches: padding never matters, chunks lose nothing,
and what cannot be compared is refused by name.

Examples: filled templates know where their parts are,
and pairs have the foils that the rule says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.prompts.pairs import Example, Pair, Prompt, content_hash, filled

FIELDS = ("clean", "counterfactual", "mask", "answers", "foils")
tokens = st.integers(0, 50)
rows = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8)
prompts = st.lists(rows, min_size=1, max_size=6)


def parts(batch: Batch) -> dict[str, Any]:
    """Everything a batch holds, as plain values."""
    return {name: getattr(batch, name).tolist() for name in FIELDS} | {
        "ids": batch.ids,
        "groups": batch.groups,
        "content": batch.content,
    }


def make(pairs: list[list[tuple[int, int]]], **options: Any) -> Batch:
    """A batch of prompts given as lists of (clean, counterfactual) tokens;
    row i answers 60 + i, its foil is 80.
    """
    clean, counterfactual = ([[pair[side] for pair in row] for row in pairs] for side in (0, 1))
    return Batch.from_tokens(
        clean, counterfactual, [60 + i for i in range(len(pairs))], [80] * len(pairs), **options
    )


def padded(lists: list[list[int]], *, left: bool, pad: int) -> tuple[Tensor, Tensor]:
    width = max(map(len, lists))
    fill = [[pad] * (width - len(row)) for row in lists]
    values = [gap + row if left else row + gap for gap, row in zip(fill, lists, strict=True)]
    real = [
        [False] * len(gap) + [True] * len(row) if left else [True] * len(row) + [False] * len(gap)
        for gap, row in zip(fill, lists, strict=True)
    ]
    return torch.tensor(values), torch.tensor(real)


@given(prompts, st.booleans(), st.integers(0, 99))
def test_the_side_of_the_padding_and_what_fills_it_are_irrelevant(
    pairs: list[list[tuple[int, int]]], left: bool, pad: int
) -> None:
    clean, mask = padded([[a for a, _ in row] for row in pairs], left=left, pad=pad)
    counterfactual, other_mask = padded([[b for _, b in row] for row in pairs], left=left, pad=pad)
    answers, foils = torch.arange(len(pairs)) + 60, torch.full((len(pairs),), 80)
    batch = Batch.from_tokens(
        clean, counterfactual, answers, foils, mask=mask, counterfactual_mask=other_mask
    )
    assert parts(batch) == parts(make(pairs))


@given(prompts)
def test_every_prompt_ends_in_the_last_column(pairs: list[list[tuple[int, int]]]) -> None:
    batch = make(pairs)
    assert batch.clean[:, -1].tolist() == [row[-1][0] for row in pairs]
    assert batch.lengths.tolist() == [len(row) for row in pairs]
    assert batch.n_tokens == max(map(len, pairs))
    for row, values, real in zip(
        pairs, batch.counterfactual.tolist(), batch.mask.tolist(), strict=True
    ):
        assert [value for value, keep in zip(values, real, strict=True) if keep] == [
            b for _, b in row
        ]
        assert real == sorted(real), "padding stands on the left"


@given(prompts, st.integers(1, 40), st.sampled_from([0.0, 0.75, 1.0]))
def test_chunks_have_every_row_once_and_are_the_rows_alone(
    pairs: list[list[tuple[int, int]]], max_tokens: int, changed: float
) -> None:
    batch = make(pairs)
    seen: list[int] = []
    for numbers, chunk in batch.chunks(max_tokens, changed=changed):
        seen += numbers
        differ = max(1, chunk.n_tokens - chunk.first_difference())
        cost = (1 - changed) * chunk.n_tokens + changed * differ
        assert len(chunk) == len(numbers) == 1 or len(chunk) * cost <= max_tokens
        alone = make([pairs[i] for i in numbers])
        assert parts(chunk) == parts(
            replace(
                alone,
                ids=chunk.ids,
                groups=chunk.groups,
                answers=chunk.answers,
                content=batch.content,
            )
        )
        assert chunk.ids == chunk.groups == tuple(str(i) for i in numbers)
        assert chunk.answers.flatten().tolist() == [60 + i for i in numbers]
    assert sorted(seen) == list(range(len(pairs)))


def test_pairs_that_differ_in_as_many_columns_may_come_together() -> None:
    """Lengths 4 and 6 by turns, one of each length differing early: by hand."""
    late = [[(1, 1)] * (n - 1) + [(2, 3)] for n in (4, 6)]
    early = [[(2, 3)] + [(1, 1)] * (n - 1) for n in (4, 6)]
    batch = make([late[0], early[0], late[1], early[1]])
    assert batch.changed_columns().tolist() == [1, 4, 1, 6]
    assert make([[(1, 1), (2, 2)]]).changed_columns().tolist() == [1]
    by_length = [rows for rows, _ in batch.chunks(12)]
    by_change = [rows for rows, _ in batch.chunks(12, changed=1.0)]
    assert by_length == [[0, 1], [2, 3]] and by_change == [[0, 2, 1], [3]]


@given(prompts, st.data())
def test_select_keeps_the_order_asked_for(
    pairs: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=8))
    batch = make(pairs).select(chosen)
    assert batch.ids == tuple(str(i) for i in chosen)
    assert batch.clean[:, -1].tolist() == [pairs[i][-1][0] for i in chosen]
    assert batch.n_tokens == max(len(pairs[i]) for i in chosen)


@given(prompts)
def test_the_first_difference_is_the_first_column_where_any_pair_differs(
    pairs: list[list[tuple[int, int]]],
) -> None:
    batch = make(pairs)
    width = batch.n_tokens
    columns = [
        width - len(row) + place for row in pairs for place, (a, b) in enumerate(row) if a != b
    ]
    assert batch.first_difference() == min(columns, default=width)


def test_the_first_difference_by_hand() -> None:
    same = [(1, 1), (2, 2), (3, 3)]
    assert make([same]).first_difference() == 3
    assert make([same, [(5, 6)]]).first_difference() == 2
    assert make([same, [(4, 5), (6, 6), (7, 7)]]).first_difference() == 0


# --- what is refused
# ---------------------------------------------------------------------------------


def test_unequal_lengths_name_the_pair_and_both_lengths() -> None:
    with pytest.raises(
        BadPairs,
        match=r"^Pair bob: clean has 2 tokens, counterfactual has 3; they must be equally long\.$",
    ):
        Batch.from_tokens([[1], [1, 2]], [[1], [1, 2, 3]], [4, 4], [5, 5], ids=["ann", "bob"])


def test_an_answer_that_is_a_foil_names_the_pair_and_the_token() -> None:
    with pytest.raises(
        BadPairs, match=r"^Pair bob: an answer and a foil begin with the same token \(id 8\)\.$"
    ):
        Batch.from_tokens([[1], [2]], [[3], [4]], [[6], [7, 8]], [[7], [8, 9]], ids=["ann", "bob"])


def test_an_answer_may_be_another_pair_s_foil() -> None:
    batch = Batch.from_tokens([[1], [2]], [[3], [4]], [[6, 7], [8]], [[8], [6]])
    assert batch.answers.tolist() == [[6, 7], [8, NO_TOKEN]]
    assert batch.foils.tolist() == [[8], [6]]


@pytest.mark.parametrize(
    ("clean", "counterfactual", "answers", "foils", "message"),
    [
        ([], [], [], [], "at least one pair"),
        ([[1], [2]], [[1]], [3, 3], [4, 4], "as many counterfactual as clean prompts; got 1 and 2"),
        ([[]], [[]], [3], [4], "Pair 0: the prompts have no tokens"),
        ([[1], [2]], [[1], [2]], [3], [4, 4], "as many rows of answers and foils; got 1 and 2"),
    ],
)
def test_batches_that_make_no_sense(
    clean: Any, counterfactual: Any, answers: Any, foils: Any, message: str
) -> None:
    with pytest.raises(BadPairs, match=re.escape(message)):
        Batch.from_tokens(clean, counterfactual, answers, foils)


# --- text
# --------------------------------------------------------------------------------------------

WORDS = ["[UNK]", "[BOS]", "Ann", "Bob", "met", "saw", "and"]


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="[BOS]")


def pair(clean: str = "Ann met", counterfactual: str = "Bob met", **options: Any) -> Pair:
    return Pair(
        **{
            "id": "p",
            "clean": clean,
            "counterfactual": counterfactual,
            "answers": (" Bob",),
            "foils": (" Ann",),
            **options,
        }
    )


def test_text_becomes_tokens(words: PreTrainedTokenizerFast) -> None:
    batch = Batch.from_pairs(
        [
            pair(),
            pair("Ann and Bob met", "Bob and Bob met", id="q", group="g", answers=(" Bob", " and")),
        ],
        words,
    )
    assert batch.clean.tolist()[1] == [2, 6, 3, 4]
    assert batch.clean.tolist()[0][2:] == [2, 4]
    assert batch.counterfactual.tolist()[0][2:] == [3, 4]
    assert batch.answers.tolist() == [[3, NO_TOKEN], [3, 6]]
    assert batch.foils.tolist() == [[2], [2]]
    assert batch.ids == ("p", "q")
    assert batch.groups == ("p", "g")


def test_tokens_before_every_prompt(words: PreTrainedTokenizerFast) -> None:
    batch = Batch.from_pairs([pair()], words, prepend=[1])
    assert batch.clean.tolist() == [[1, 2, 4]]
    assert batch.counterfactual.tolist() == [[1, 3, 4]]
    assert batch.answers.tolist() == [[3]]


def test_text_pairs_that_cannot_be_compared(words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadPairs, match=r"Pair p: clean has 2 tokens, counterfactual has 4"):
        Batch.from_pairs([pair(counterfactual="Bob and Ann met")], words)
    with pytest.raises(
        BadPairs, match=r"Pair p: '' written after the prompt adds no token of its own"
    ):
        Batch.from_pairs([pair(answers=("",))], words)
    with pytest.raises(BadPairs, match=r"Pair p: the tokenizer does not know 's'"):
        Batch.from_pairs([pair(answers=("s",))], words)
    with pytest.raises(BadPairs, match="at least one pair"):
        Batch.from_pairs([], words)


def test_the_hash_of_pairs_sees_content_and_order() -> None:
    a, b = pair(), pair(id="q")
    assert content_hash([a, b]) == content_hash([pair(), pair(id="q")])
    changed = [
        [b, a],
        [a],
        [a, pair(id="q", group="g")],
        [a, pair(id="q", tags={"order": "ABBA"})],
        [a, pair(id="q", foils=(" met",))],
    ]
    changed += [
        [a, pair(id="q", spans={"name": (0, 3)})],
        [a, pair(id="q", counterfactual_answers=(" Ann",))],
    ]
    assert len({content_hash(pairs) for pairs in [[a, b], *changed]}) == 1 + len(changed)


def test_the_content_of_a_batch_sees_every_token() -> None:
    base = [[(1, 2), (3, 3)], [(4, 5)]]
    assert make(base).content == make(base).content
    assert (
        len(
            {
                make(other).content
                for other in (
                    base,
                    base[:1],
                    [[(1, 2), (3, 4)], [(4, 5)]],
                    [[(1, 2), (3, 3)], [(4, 6)]],
                )
            }
        )
        == 4
    )


letters = st.text("abc xyz", max_size=5)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), letters, min_size=3, max_size=3),
    st.lists(letters, min_size=4, max_size=4),
)
def test_spans_cut_out_their_fields(fields: dict[str, str], between: list[str]) -> None:
    template = f"{between[0]}{{a}}{between[1]}{{b}}{between[2]}{{a}}{between[3]}{{c}}"
    prompt = filled(template, fields)
    assert prompt.text == template.format(**fields)
    assert {name: prompt.part(name) for name in prompt.spans} == {**fields, "a_2": fields["a"]}
    assert (
        prompt.spans["a"][0]
        <= prompt.spans["b"][0]
        <= prompt.spans["a_2"][0]
        <= prompt.spans["c"][0]
    )


def example(**options: object) -> Example:
    prompt = Prompt("Pick:", (" A",), (" A", " B", " C"))
    others = {
        "moved": Prompt("Pick?", (" B",), (" A", " B", " C")),
        "same": Prompt("Choose:", (" A",)),
        "none": Prompt("Sing:"),
    }
    return Example("x", prompt, others, **options)  # pyright: ignore[reportArgumentType]


def test_foils_are_what_the_counterfactual_says() -> None:
    assert example().pair("moved").foils == (" B",)
    assert example().pair("same").foils == example().pair("none").foils == (" B", " C")
    assert example(foils=(" Z",)).pair("moved").foils == (" Z",)
    assert example().pair("moved").counterfactual_answers == (" B",)
    with pytest.raises(KeyError):
        example().pair("nothing")
