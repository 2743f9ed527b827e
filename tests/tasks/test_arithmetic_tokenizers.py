"""Addition and subtraction: what tokenizers make of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from arithmetic_read import TASKS, solve
from mechassay.alignment import LENGTHS, token_position
from mechassay.pairs import Batch
from mechassay.tasks import SPLITS
from mechassay.tasks.arithmetic import (
    COLUMNS,
    RANDOM,
    Addition,
    Arithmetic,
)
from mechassay.tasks.task import ABSENT

PRIVATE = 987


# Tokenizers


WORDS = sorted(
    {
        word
        for task in TASKS
        for text in task.templates
        for word in re.findall(r"[A-Za-z]+|[^\w\s]", text)
    }
    - {"{", "}", "op"}
)


def digit_level() -> PreTrainedTokenizerFast:
    """Words, signs, spaces, and numbers digit by digit."""
    vocabulary = ["[UNK]", *map(str, range(10)), " ", *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def word_level() -> PreTrainedTokenizerFast:
    """One token a word, number or sign; spaces are dropped."""
    vocabulary = ["[UNK]", *map(str, range(200)), *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def byte_level(texts: list[str]) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained in a moment, that knows some numbers as one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def row_of(task: Arithmetic, text: str, other: str) -> dict[str, Any]:
    struct = {"prompt": other, "label": solve(other)[2]}
    return {
        "prompt": text,
        "label": str(solve(text)[2]),
        "operator": task.operator,
        **dict.fromkeys(COLUMNS, struct),
    }


@pytest.mark.parametrize(
    ("text", "other", "forced", "answer", "foil"),
    [
        ("The sum of 27 and 64 is:", "The sum of 27 and 61 is:", " ", "9", "8"),
        ("The sum of 27 and 64 is:", "The sum of 28 and 64 is:", " 9", "1", "2"),
        ("27+64=", "77+64=", "", "9", "1"),
        ("27+64=", "26+64=", "9", "1", "0"),
        ("86 + 64 =", "87 + 64 =", " 15", "0", "1"),
    ],
)
def test_compared_digits_worked_by_hand(
    text: str, other: str, forced: str, answer: str, foil: str
) -> None:
    tokenizer = digit_level()
    pair = Addition().from_row(row_of(Addition(), text, other), "x").pair(RANDOM)
    batch = Batch.from_pairs([pair], tokenizer)
    shown = "".join(tokenizer.convert_ids_to_tokens(batch.clean[0].tolist()))
    assert shown == text + forced
    assert (
        "".join(tokenizer.convert_ids_to_tokens(batch.counterfactual[0].tolist())) == other + forced
    )
    assert tokenizer.convert_ids_to_tokens(batch.answers[0].tolist()) == [answer]
    assert tokenizer.convert_ids_to_tokens(batch.foils[0].tolist()) == [foil]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("make", [digit_level, word_level])
def test_digit_and_word_tokenizers_align_everything(task: Arithmetic, make: Any) -> None:
    tokenizer = make()
    for kind, split in zip(task.counterfactuals, SPLITS * 2, strict=False):
        pairs = task.pairs(split, tokenizer, limit=40, counterfactual=kind, private_seed=PRIVATE)
        assert pairs == task.pairs(split, limit=40, counterfactual=kind, private_seed=PRIVATE)
        assert set(pairs.dropped) <= {ABSENT}
        batch = Batch.from_pairs(pairs, tokenizer)
        assert batch.alignment["cut"] == 0
        forced = [pair for pair in pairs if pair.answers[0][0] in (" ", pair.foils[0][0])]
        assert batch.alignment["forced"] == (0 if make is word_level else len(forced))
        if make is word_level:
            assert tokenizer.batch_decode(batch.answers) == [
                pair.answers[0].strip() for pair in pairs
            ]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_tokenizer_of_uneven_numbers_drops_and_counts(task: Arithmetic) -> None:
    tokenizer = byte_level(
        [f"The result is {n} {m}" for n in range(10, 100, 3) for m in range(10, 60)]
    )
    pairs = task.pairs("train", tokenizer, limit=100)
    assert pairs.dropped[LENGTHS] > 20 and set(pairs.dropped) == {LENGTHS}
    batch = Batch.from_pairs(pairs, tokenizer)
    for row, pair in enumerate(pairs):
        text = tokenizer.decode(batch.clean[row][batch.mask[row]])
        answer, foil = tokenizer.decode(batch.answers[row]), tokenizer.decode(batch.foils[row])
        assert (pair.clean + pair.answers[0]).startswith(text + answer)
        assert (pair.clean + pair.foils[0]).startswith(text + foil) and answer != foil


def test_token_positions() -> None:
    pairs = Addition(digits=2).pairs("test", limit=60)
    texts, spans = [pair.clean for pair in pairs], [pair.spans for pair in pairs]
    tokenizer = digit_level()
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    for name, tag in (("op1", "operand_1"), ("op2", "operand_2")):
        firsts, lasts = (
            token_position(texts, spans, f"{name}.{end}", tokenizer) for end in ("first", "last")
        )
        found = [
            row[a] + row[b]
            for row, a, b in zip(tokens, firsts, lasts, strict=True)
            if a is not None and b is not None
        ]
        assert found == [pair.tags[tag] for pair in pairs]
