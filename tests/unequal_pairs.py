"""A tiny model with pairs of two lengths."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from mechassay.pairs import Batch
from mechassay.testing.tiny import VOCABULARY, Subject, subject


def unequal_pairs() -> Subject:
    """In double precision: which pair is worst must not hang on rounding.
    Six pairs of 5 and 7 tokens.
    """
    found = subject("llama", torch.float64)
    rng = np.random.default_rng(0)
    lengths = (5, 5, 5, 7, 5, 7)
    clean, other = ([rng.integers(VOCABULARY, size=n).tolist() for n in lengths] for _ in range(2))
    return dataclasses.replace(found, batch=Batch.from_tokens(clean, other, [[]] * 6, [[]] * 6))
