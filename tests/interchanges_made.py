"""Interchanges of random tokens for tiny models."""

from __future__ import annotations

import torch

from mechassay.interchange import InterchangeBatch
from mechassay.testing.tiny import VOCABULARY


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
