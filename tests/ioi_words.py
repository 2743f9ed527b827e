"""The words of the IOI task, and an independent reader of its prompts."""

from __future__ import annotations

import json
import re
from importlib.resources import files

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS: dict[str, dict[str, list[str]]] = json.loads(
    files("mechassay.tasks").joinpath("data/ioi.json").read_text(encoding="utf-8")
)


NAMES = {split: set(words["names"]) for split, words in WORDS.items()}


ALL_NAMES = set().union(*NAMES.values())


def mentions(prompt: str) -> list[str]:
    """The names in a prompt, in order: A, B, C."""
    return [word for word in re.findall(r"\w+", prompt) if word in ALL_NAMES]


def solve(prompt: str) -> str | None:
    """The name of the first clause that the second does not repeat; None if it repeats neither."""
    a, b, c = mentions(prompt)
    return {a: b, b: a}.get(c)


def word_level(words: set[str]) -> PreTrainedTokenizerFast:
    """One token a word; words it has not are [UNK]."""
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["[UNK]", *sorted(words)])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def all_words(split: str) -> set[str]:
    return {
        w for words in WORDS[split].values() for text in words for w in re.findall(r"\w+", text)
    } | {"I", "am"}
