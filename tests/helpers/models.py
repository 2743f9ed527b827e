"""Families of tiny models as parameters of a test: three by default, the others marked `slow`.

A random GPT-2 of the graph of GPT-2 small, which can read the tasks of the paper's circuits, and
models with long prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from helpers import tiny_models
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import IOI
from mechassay.tasks.task import PAPER, PAPER_MATCHED, Task
from mechassay.testing import tiny
from mechassay.testing.tiny import FAMILIES, Subject

QUICK = ("gpt2", "llama", "gemma2")
"""They differ in most of what a decoder can get wrong."""
USUAL = (*FAMILIES[: FAMILIES.index("gptj")], "olmoe", "cohere_plus", "olmo2")
"""Those that tests of decoders run by default: with the others' parts, or like them."""


def families(names: Sequence[str] = FAMILIES, quick: Sequence[str] = QUICK) -> list[Any]:
    """The names, those of other families than the quick ones marked."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in names]


def long_subject(name: str) -> Subject:
    """A tiny model in fp64 with two examples, of 400 tokens and of 390, which differ from column 30
    on.
    """
    config = tiny.configs()[name]
    learned = hasattr(config, "n_positions")
    setattr(config, "n_positions" if learned else "max_position_embeddings", 512)
    generator = torch.Generator().manual_seed(7)
    clean, other = torch.randint(0, tiny.VOCABULARY, (2, 2, 400), generator=generator)
    other[:, :30] = clean[:, :30]
    mask = torch.ones_like(clean, dtype=torch.bool)
    mask[1, :10] = False
    answers, foils = torch.randperm(tiny.VOCABULARY, generator=generator)[:4].view(2, -1)
    batch = Batch.from_tokens(clean, other, answers, foils, mask=mask)
    return Subject(make_model(tiny.random_model(config, torch.float64)), batch)


def word_tokenizer(
    *tasks: Task, splits: Sequence[str] = ("test",)
) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of the words of some tasks' examples, and one that begins prompts."""
    words: set[str] = set()
    for task, split in product(tasks, splits):
        for example in islice(task.generate(split, 0), 5000):
            for prompt in (example.prompt, *example.counterfactuals.values()):
                words |= set(re.findall(r"\w+|[^\w\s]+", prompt.text))
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[BOS]", *sorted(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="[BOS]"
    )


def write_reading_gpt2(folder: Path) -> Path:
    """Write a random GPT-2 of two layers and two heads that reads IOI."""
    hf, tokenizer = tiny_models.with_words()
    config = transformers.GPT2Config(
        vocab_size=hf.config.vocab_size,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=64,
        n_embd=24,
        n_layer=2,
        n_head=2,
    )
    tiny.random_model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_small_gpt2(folder: Path) -> Path:
    """Write the model; its tokenizer knows the words of IOI and greater-than."""
    ioi = (IOI(), IOI(words=PAPER), IOI(words=PAPER_MATCHED))
    tokenizer = word_tokenizer(*ioi, GreaterThan(), GreaterThan(words=PAPER))
    config = tiny.configs()["gpt2_12x12"]
    config.vocab_size = len(tokenizer)
    tiny.random_model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
