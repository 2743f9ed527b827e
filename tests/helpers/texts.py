"""A tiny model that reads words, and texts of its words."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from helpers import tiny_models
from mechassay.models.model import Model, make_model
from mechassay.saes.activations import Corpus, Document


@cache
def word_model(dtype: torch.dtype = torch.float32) -> Model:
    """A tiny Llama with the words of IOI."""
    hf, tokenizer = tiny_models.with_words()
    hf = hf.to(dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return make_model(hf, tokenizer)


def word_corpus(documents: int = 8, words: int = 90, seed: int = 0) -> Corpus:
    """Documents of random words that the model knows."""
    tokenizer: Any = word_model().tokenizer
    known = [x for x in sorted(tokenizer.get_vocab()) if x.isalpha() and x != "UNK"]
    drawn = torch.Generator().manual_seed(seed)
    texts = [
        " ".join(known[i] for i in torch.randint(len(known), (words,), generator=drawn).tolist())
        for _ in range(documents)
    ]
    return Corpus("words", tuple(Document(f"d{i}", text) for i, text in enumerate(texts)))
