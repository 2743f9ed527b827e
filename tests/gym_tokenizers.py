"""Tokenizers for gym tasks, made in code: of bytes, and of words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mechassay.models.packaged import is_fetched
from mechassay.models.sources import resolve

REAL = "smollm2-135m"


def of_bytes() -> PreTrainedTokenizerFast:
    """Every byte is a token, the space before a word too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def of_words(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every word, and every mark of punctuation, is a token."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})
    ids = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def real() -> Any:
    """The tokenizer of a packaged model, where it is fetched."""
    if not is_fetched(REAL):
        pytest.skip(f"{REAL} is not fetched: mechassay models fetch {REAL}")
    return AutoTokenizer.from_pretrained(resolve(REAL).location)
