"""Files of pairs for tests, and small tokenizers.

A tiny model with pairs of two lengths.

Interchanges of random tokens for tiny models.

The words of the IOI task, and an independent reader of its prompts.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import MechassayError
from mechassay.prompts.batch import Batch
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.tasks.load import FileTask
from mechassay.tasks.task import SPLITS
from mechassay.testing.tiny import VOCABULARY, Subject, subject


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A right row; `changes` replace values, None takes a column away."""
    made: dict[str, Any] = {
        "clean": f"Visitor {number} of the Eiffel Tower is in",
        "counterfactual": f"Visitor {number} of the Colosseum is in",
        "answer": " Paris",
        "foil": " Rome",
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def jsonl(rows: Sequence[Any]) -> str:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)


def as_csv(rows: Sequence[dict[str, Any]], header: Sequence[str] | None = None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        header or list(dict.fromkeys(name for each in rows for name in each)),
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(folder: Path, content: str | bytes, name: str = "my.jsonl") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(path: str, **options: Any) -> dict[str, list[Any]]:
    """The pairs of every split that has any."""
    task = FileTask(path, **options)
    return {split: list(task.pairs(split)) for split in SPLITS if split in task.sizes}


def everything(path: str, **options: Any) -> list[Any]:
    return [example.pair("counterfactual") for _, example in FileTask(path, **options).located()]


def refused(path: str, kind: type[MechassayError], **options: Any) -> str:
    """The one line with which a file is refused, the path left out."""
    with pytest.raises(MechassayError) as caught:
        everything(path, **options)
    assert type(caught.value) is kind, caught.value
    assert "\n" not in str(caught.value) and path in str(caught.value)
    return str(caught.value).replace(path, "my")


def unequal_pairs() -> Subject:
    """In double precision: which pair is worst must not hang on rounding.
    Six pairs of 5 and 7 tokens.
    """
    found = subject("llama", torch.float64)
    rng = np.random.default_rng(0)
    lengths = (5, 5, 5, 7, 5, 7)
    clean, other = ([rng.integers(VOCABULARY, size=n).tolist() for n in lengths] for _ in range(2))
    return dataclasses.replace(found, batch=Batch.from_tokens(clean, other, [[]] * 6, [[]] * 6))


def token_interchanges(
    n: int = 6, *, label_tokens: int = 1, classes: int = 2, equal: bool = False, seed: int = 0
) -> InterchangeBatch:
    """Bases of 5 to 8 tokens with sources of other lengths (the same where `equal`), base labels of
    some classes, and a column "x" before the last one, at different places.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()

    bases = [tokens(5 + row % 4) for row in range(n)]
    sources = [tokens(len(base) if equal else 6 + row % 3) for row, base in enumerate(bases)]
    places = ([2 + row % 2 for row in range(n)], [3 - row % 2 for row in range(n)])
    labels = [tokens(1 + (row % label_tokens)) for row in range(n)]
    return InterchangeBatch.from_tokens(
        base=bases,
        source=sources,
        labels=labels,
        base_labels=[[11 + row % classes] for row in range(n)],
        columns={"x": places},
    )


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
