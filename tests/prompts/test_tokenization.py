"""Continuations and positions under tokenizers that cut text in different places."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mechassay.errors import UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Pair, filled
from mechassay.prompts.tokenization import (
    ALIKE,
    LENGTHS,
    MERGES,
    NOTHING,
    UNKNOWN,
    Aligned,
    Misaligned,
    align,
    continued,
    n_merged,
    part_tokens,
    token_position,
    usual_merging,
)

NUMBERS = [str(n) for n in range(1000)]


def tokenizer_of(vocabulary: list[str], split: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the given strings where `split` finds them;
    the space is part of a token.
    """
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(dict.fromkeys(["[UNK]", *vocabulary]))},
            unk_token="[UNK]",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(split or r" ?\w+| ?[^\w\s]|\s"), behavior="isolated"
    )  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def words(*texts: str) -> PreTrainedTokenizerFast:
    return tokenizer_of([piece for text in texts for piece in [text, " " + text]])


DIGITS = tokenizer_of([*"0123456789", " ", "+", "=", "is", " is"], r"\d| |\w+|[^\w\s]")
WHOLE = tokenizer_of(
    [*NUMBERS, *(f" {n}" for n in NUMBERS), "+", " +", "=", " =", " "], r" ?\d+| ?[^\w\s]|\s"
)


def shown(tokenizer: PreTrainedTokenizerFast, found: Aligned | Misaligned) -> dict[str, Any]:
    assert isinstance(found, Aligned)
    return {
        "clean": [tokenizer.decode([i]) for i in found.clean],
        "answers": [tokenizer.decode([i]) for i in found.answers],
        "foils": [tokenizer.decode([i]) for i in found.foils],
        "cut": found.cut,
        "forced": found.forced,
        "partial": found.partial,
    }


def one(
    tokenizer: PreTrainedTokenizerFast, clean: str, other: str, answers: list[str], foils: list[str]
) -> Aligned | Misaligned:
    return align([(clean, other)], [answers], [foils], tokenizer)[0]


def test_digits_are_compared_at_the_first_that_differs() -> None:
    found = one(DIGITS, "27+61=", "21+60=", ["88"], ["81"])
    assert shown(DIGITS, found) == {
        "clean": [*"27+61=8"],
        "answers": ["8"],
        "foils": ["1"],
        "cut": 0,
        "forced": 1,
        "partial": False,
    }
    assert isinstance(found, Aligned)
    assert [DIGITS.decode([i]) for i in found.counterfactual] == [*"21+60=8"]


def test_the_space_before_a_number_is_written_on_where_it_is_a_token() -> None:
    found = shown(DIGITS, one(DIGITS, "27+64=", "42+29=", [" 91"], [" 71"]))
    assert found == {
        "clean": [*"27+64= "],
        "answers": ["9"],
        "foils": ["7"],
        "cut": 0,
        "forced": 1,
        "partial": True,
    }


def test_whole_numbers_need_nothing() -> None:
    found = shown(WHOLE, one(WHOLE, "27+64=", "42+29=", ["91"], ["71"]))
    assert found == {
        "clean": ["27", "+", "64", "="],
        "answers": ["91"],
        "foils": ["71"],
        "cut": 0,
        "forced": 0,
        "partial": False,
    }


def test_a_space_that_the_answer_takes_is_cut_from_both_prompts() -> None:
    """ "= " + "91" is one token " 91"; a model never saw the space alone there."""
    found = one(WHOLE, "27+64= ", "42+29= ", ["91"], ["71"])
    assert shown(WHOLE, found) == {
        "clean": ["27", "+", "64", "="],
        "answers": [" 91"],
        "foils": [" 71"],
        "cut": 1,
        "forced": 0,
        "partial": False,
    }
    assert isinstance(found, Aligned) and [WHOLE.decode([i]) for i in found.counterfactual] == [
        "42",
        "+",
        "29",
        "=",
    ]


def test_a_token_that_begins_both_an_answer_and_a_foil_counts_for_neither() -> None:
    years = [f"{n:02d}" for n in range(100)]
    found = shown(DIGITS, one(DIGITS, "17", "17", years[35:], years[:35]))
    assert found["answers"] == [*"456789"] and found["foils"] == [*"012"]
    nothing = one(DIGITS, "17", "17", years[96:], years[:96])
    assert isinstance(nothing, Misaligned) and nothing.reason == ALIKE


def test_reasons() -> None:
    ab = words("Ann", "Bob", "met")
    cases = {
        LENGTHS: ("Ann met", "Bob Bob met", [" Ann"], [" Bob"]),
        NOTHING: ("Ann met", "Bob met", [" Ann"], [" Ann Bob"]),
        UNKNOWN: ("Ann met", "Bob met", [" Zoe"], [" Ann"]),
    }
    for reason, (clean, other, answers, foils) in cases.items():
        found = one(ab, clean, other, answers, foils)
        assert isinstance(found, Misaligned) and found.reason == reason


def test_without_foils_nothing_is_forced() -> None:
    found = shown(DIGITS, one(DIGITS, "27+61=", "21+60=", ["88", "81"], []))
    assert found == {
        "clean": [*"27+61="],
        "answers": ["8"],
        "foils": [],
        "cut": 0,
        "forced": 0,
        "partial": True,
    }


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    rests=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
    merged=st.integers(0, 2),
    force=st.booleans(),
)
def test_continued_puts_every_continuation_together_again(
    prompt: list[int], rests: list[list[int]], merged: int, force: bool
) -> None:
    """Whatever is cut and forced: kept + forced + rest is the continuation,
    and nothing more could be kept or forced.
    """
    whole = [prompt[: len(prompt) - merged] + rest for rest in rests]
    split = continued(prompt, whole, force=force)
    assert split.kept + split.cut == len(prompt)
    for row, rest in zip(whole, split.rests, strict=True):
        assert [*prompt[: split.kept], *split.forced, *rest] == row
    if force:
        firsts = {tuple(rest[:1]) for rest in split.rests}
        assert len(firsts) > 1 or () in firsts, "they part here"
    else:
        assert split.forced == ()
    if split.cut:
        assert any(row[split.kept : split.kept + 1] != [prompt[split.kept]] for row in whole), (
            "no more was cut than had to be"
        )


def test_batches_count_what_was_done() -> None:
    pairs = [
        Pair("a", "27+61=", "21+60=", ("88",), ("81",)),
        Pair("b", "27+64=", "42+29=", ("91",), ("71",)),
    ]
    batch = Batch.from_pairs(pairs, DIGITS)
    assert batch.alignment == {"partial": 1, "forced": 1, "cut": 0, "special": 0}
    assert batch.lengths.tolist() == [7, 6]


def llama(prepend: str) -> PreTrainedTokenizerFast:
    """Like Llama 2's: a mark of a space before the text,
    digits and bytes as tokens, " is" as one.
    """
    alphabet = [
        "<unk>",
        "<s>",
        "▁",
        *"0123456789+=iso",
        "▁is",
        "▁so",
        "is",
        "so",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    merges = [("▁", "is"), ("▁", "so"), ("i", "s"), ("s", "o")]
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(alphabet)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    if prepend == "normalizer":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


@pytest.mark.parametrize("prepend", ["normalizer", "first", "always"])
def test_the_mark_before_a_text_is_no_part_of_its_first_word(prepend: str) -> None:
    """Llama 2 writes "27+6=" as ▁|2|7|+|6|=, with the mark at the place of the 2."""
    tokenizer = llama(prepend)
    cases = {
        "{a}+{b}=": ("27", "6", ["<s>", "▁", "2", "7", "+", "6", "="], (2, 3)),
        "{a} is {b}": ("so", "4", ["<s>", "▁so", "▁is", "▁", "4"], (1, 1)),
        "{a}={b}": ("ü", "4", ["<s>", "▁", "<0xC3>", "<0xBC>", "=", "4"], (2, 3)),
    }
    for template, (a, b, tokens, places) in cases.items():
        prompt = filled(template, {"a": a, "b": b})
        assert tokenizer.convert_ids_to_tokens(tokenizer(prompt.text)["input_ids"]) == tokens
        ends = [
            token_position([prompt.text], [prompt.spans], f"a.{end}", tokenizer)
            for end in ("first", "last")
        ]
        assert ends == [[places[0]], [places[1]]]
        assert token_position([prompt.text], [prompt.spans], "b.first", tokenizer) == [
            tokens.index(b)
        ]


@pytest.mark.parametrize("tokenizer", [DIGITS, WHOLE], ids=["digits", "whole"])
def test_positions_are_found_by_meaning(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = [
        filled("{a}+{b}=", {"a": "27", "b": "6"}),
        filled("{a}+{b}=", {"a": "3", "b": "140"}),
    ]
    texts, spans = [prompt.text for prompt in prompts], [prompt.spans for prompt in prompts]
    for name, parts in (("b", ["6", "140"]), ("a", ["27", "3"])):
        last, first = (
            token_position(texts, spans, name, tokenizer),
            token_position(texts, spans, f"{name}.first", tokenizer),
        )
        assert last == token_position(texts, spans, f"{name}.last", tokenizer)
        for text, begin, end, part in zip(texts, first, last, parts, strict=True):
            assert begin is not None and end is not None
            assert tokenizer.decode(tokenizer(text)["input_ids"][begin : end + 1]).strip() == part
    with pytest.raises(UnknownName, match=r"token position 'c'.*Known: a, a\.first"):
        token_position(texts, spans, "c", tokenizer)
    assert token_position([*texts, "5="], [*spans, {}], "a", tokenizer)[-1] is None


def test_the_tokens_of_all_parts_are_those_found_one_by_one() -> None:
    prompts = [filled("{a}+{b}=", {"a": "27", "b": "6"}), filled("{a}=", {"a": "140"})]
    texts, spans = [prompt.text for prompt in prompts], [prompt.spans for prompt in prompts]
    found = part_tokens(texts, spans, DIGITS)
    assert found == [{"a": (0, 1), "b": (3, 3)}, {"a": (0, 2)}]
    for place, end in enumerate(("first", "last")):
        one_by_one = token_position(texts, spans, f"a.{end}", DIGITS)
        assert one_by_one == [parts["a"][place] for parts in found]
    assert part_tokens([], [], DIGITS) == []


@pytest.mark.parametrize(
    ("counts", "usual"), [([], 0), ([0, 0, 1], 0), ([1, 1, 0], 1), ([0, 1], 0), ([2, 1, 1, 2], 1)]
)
def test_the_usual_way_of_merging_keeps_more_of_the_prompt(counts: list[int], usual: int) -> None:
    assert usual_merging(counts) == usual


def test_what_a_continuation_changes_is_counted_from_the_end_of_the_prompt() -> None:
    assert n_merged([1, 2, 3], [1, 2, 3, 4]) == 0
    assert n_merged([1, 2, 3], [1, 2, 9]) == 1
    assert n_merged([1, 2, 3], [8, 2, 3, 4]) == 3


def test_continuations_that_merge_otherwise_than_most_are_left_out() -> None:
    """The vocabulary has "ab" and "ac": "a" with "b" or "c" is one token, with "d" it is two."""
    vocabulary = {piece: number for number, piece in enumerate(["[UNK]", *"abcde ", "ab", "ac"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(
            models.BPE(vocabulary, [("a", "b"), ("a", "c")], unk_token="[UNK]")
        ),
        unk_token="[UNK]",
    )
    pair, worse, alone = align(
        [("e a", "d a")] * 3,
        [("d", "b"), ("b",), ("b",)],
        [("e", "c"), ("d", "e"), ("c",)],
        tokenizer,
    )
    assert isinstance(pair, Aligned) and (pair.cut, pair.forced) == (0, 0)
    names = [tokenizer.convert_ids_to_tokens(ids) for ids in (pair.answers, pair.foils)]
    assert names == [["d"], ["e"]]
    assert isinstance(worse, Misaligned) and worse.reason == MERGES
    assert worse.message == "'b' changes the last token of the prompt"
    assert isinstance(alone, Aligned) and alone.cut == 1  # All of the pair merge: as before.
