"""Streams of prompts that come to an end."""

from __future__ import annotations

from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest

from mechassay.errors import BadPairs
from mechassay.examples import Prompt
from mechassay.tasks import SPLITS
from mechassay.truth.tasks import CompiledTask, split_of

WORDS = ("oak", "elm", "ash", "yew")


class Short(CompiledTask):
    """Three different words of four: the first of them."""

    name = "short"
    words: ClassVar[tuple[str, ...]] = WORDS
    others: ClassVar[tuple[str, ...]] = ()
    patience: ClassVar[int] = 500

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        words = [WORDS[number] for number in rng.permutation(4)[:3]]
        return Prompt(" ".join(words), (f" {words[0]}",), tuple(f" {word}" for word in WORDS)), ()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_split_ends_when_all_of_its_prompts_have_come(seed: int) -> None:
    for split in ("train", "test"):
        found = [example.prompt.text for example in Short().generate(split, seed)]
        assert sorted(found) == sorted(
            text for text in map(" ".join, permutations(WORDS, 3)) if split_of(text) == split
        )


class Single(Short):
    """One prompt, which belongs to one split."""

    name = "single"

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        return Prompt("oak elm ash", (" oak",), tuple(f" {word}" for word in WORDS)), ()


def test_a_split_without_any_prompt_is_an_error_and_no_endless_search() -> None:
    for split in SPLITS:
        if split == split_of("oak elm ash"):
            assert not list(Single().generate(split, 0)), "no other prompt to compare it with"
            continue
        with pytest.raises(BadPairs, match=f"single: none of 500 prompts drawn .* split '{split}'"):
            list(Single().generate(split, 0))
