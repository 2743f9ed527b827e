"""Streams of prompts that come to an end."""

from __future__ import annotations

from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest

from mechassay.examples import Prompt
from mechassay.truth import tasks
from mechassay.truth.tasks import CompiledTask, split_of

WORDS = ("oak", "elm", "ash", "yew")


class Short(CompiledTask):
    """Three different words of four: the first of them."""

    name = "short"
    words: ClassVar[tuple[str, ...]] = WORDS
    others: ClassVar[tuple[str, ...]] = ()

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        words = [WORDS[number] for number in rng.permutation(4)[:3]]
        return Prompt(" ".join(words), (f" {words[0]}",), tuple(f" {word}" for word in WORDS)), ()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_split_ends_when_all_of_its_prompts_have_come(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ENOUGH", 500)
    for split in ("train", "test"):
        found = [example.prompt.text for example in Short().generate(split, seed)]
        assert sorted(found) == sorted(
            text for text in map(" ".join, permutations(WORDS, 3)) if split_of(text) == split
        )
