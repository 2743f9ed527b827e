"""An independent reader of the prompts of arithmetic."""

from __future__ import annotations

import re

from mechassay.examples import Example
from mechassay.tasks.arithmetic import (
    Addition,
    Arithmetic,
    Subtraction,
)

TASKS: list[Arithmetic] = [Addition(), Subtraction()]


ADDING, TAKING = ("plus", "sum", "+"), ("minus", "difference", "-")


def solve(text: str) -> tuple[int, int, int]:
    """Operands and result, read from the text alone."""
    a, b = (int(number) for number in re.findall(r"\d+", text))
    (adds,) = {any(word in text for word in ADDING)}
    assert adds != any(word in text for word in TAKING)
    return a, b, a + b if adds else a - b


def some(task: Arithmetic, split: str, n: int, seed: int = 0) -> list[Example]:
    return task.examples(split, limit=n, seed=seed, private_seed=seed)
