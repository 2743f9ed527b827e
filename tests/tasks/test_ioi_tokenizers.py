"""The IOI task: what a tokenizer changes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ioi_words import NAMES, all_words, mentions, word_level
from mechassay.alignment import LENGTHS
from mechassay.errors import BadPairs
from mechassay.pairs import Batch
from mechassay.tasks.ioi import CHANGES, IOI


def byte_level(texts: list[str], size: int = 600) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_tokenizer_that_knows_all_names_changes_nothing() -> None:
    tokenizer = word_level(all_words("test"))
    plain = IOI().pairs("test", limit=100)
    assert IOI().pairs("test", tokenizer, limit=100) == plain
    assert IOI().pairs("test", SimpleNamespace(tokenizer=tokenizer), limit=100) == plain
    assert IOI().rows("test", tokenizer, limit=30) == IOI().rows("test", limit=30)


def test_unknown_names_are_left_out() -> None:
    known = set(sorted(NAMES["test"])[:9])
    tokenizer = word_level(all_words("test") - NAMES["test"] | known)
    used = {
        name
        for row in IOI().rows("test", tokenizer)
        for name in [*mentions(row["prompt"]), row["metadata"]["random_c"]]
    }
    assert used == known


def test_too_few_names() -> None:
    tokenizer = word_level(all_words("test") - NAMES["test"] | set(sorted(NAMES["test"])[:5]))
    tokenizer.name_or_path = "tiny-words"
    with pytest.raises(BadPairs, match=r"'tiny-words' has 5 of"):
        IOI().pairs("test", tokenizer)


@pytest.mark.parametrize("kind", CHANGES)
def test_byte_level_tokenizer(kind: str) -> None:
    names = sorted(NAMES["train"])
    # Half of the names are frequent enough to become one token; the rest stay in pieces.
    tokenizer = byte_level(
        [f"I am {name} and {name}, {name}" for name in names[::2] for _ in range(20)]
    )
    whole = {name for name in names if len(tokenizer(" " + name)["input_ids"]) == 1}
    assert 6 <= len(whole) < len(names)
    pairs = IOI().pairs("train", tokenizer, limit=200, counterfactual=kind)
    used = {name for pair in pairs for name in mentions(pair.clean) + mentions(pair.counterfactual)}
    assert used <= whole and len(used) > len(whole) / 2
    batch = Batch.from_pairs(pairs, tokenizer)
    assert tokenizer.batch_decode(batch.answers) == [pair.answers[0] for pair in pairs]
    assert tokenizer.batch_decode(batch.foils) == [pair.foils[0] for pair in pairs]


class AndSplitter:
    """One token a word, but two for a name A that begins with a letter before "M"."""

    unk_token_id = None

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {
            "input_ids": [
                [hash(word) for word in re.sub(r" ([A-L])(\w+) and ", r" \1 \2 and ", text).split()]
                for text in texts
            ]
        }


def test_unequal_lengths_are_dropped_and_counted() -> None:
    tokenizer = AndSplitter()
    plain, flipped = IOI().pairs("test", limit=50), IOI().pairs("test", tokenizer, limit=50)
    assert flipped == plain and not flipped.dropped, "the S2 flip leaves the first clause alone"
    kept = IOI().pairs("test", tokenizer, limit=50, counterfactual="s1_io_flip_counterfactual")
    assert set(kept.dropped) == {LENGTHS}
    everything = IOI().pairs(
        "test", limit=50 + kept.dropped[LENGTHS], counterfactual="s1_io_flip_counterfactual"
    )
    short = [
        pair
        for pair in everything
        if ("A" <= mentions(pair.clean)[0][0] <= "L") == ("A" <= mentions(pair.clean)[1][0] <= "L")
    ]
    assert kept == tuple(short)
    examples = IOI().examples("test", limit=50)
    assert IOI().examples("test", tokenizer, limit=50) == examples, (
        "examples are not filtered by length"
    )


def test_tokenizer_is_called_in_batches() -> None:
    class Counting(AndSplitter):
        calls = 0

        def __call__(self, texts: list[str], **kwargs: Any) -> dict[str, list[list[int]]]:
            self.calls += 1
            return super().__call__(texts, **kwargs)

    tokenizer = Counting()
    IOI().pairs("test", tokenizer, limit=500)
    # Once for the names, then three times for at most 256 pairs.
    assert tokenizer.calls == 1 + 3 * 2
