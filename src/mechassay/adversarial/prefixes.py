"""Prefixes that several prompts share are run once.

Attention is causal: what a circuit computes at position t of a pair depends on both prompts up to t
alone. So the positions of a block of clean prompts are cut into stages. In each stage only the
distinct prefixes are run, and the next stage needs the circuit's keys and values of them
(`models.circuit_forward.Prefix`). A corrupted prompt keeps the stages that lie within the prefix it
shares with the corrupted prompt before it.

Where to cut is a shortest path. A stage from position a to position b costs b - a tokens for each
distinct prefix, and `STAGE_TOKENS` to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.models.circuit_forward import CircuitRunner, Prefix
from mechassay.models.decoder import Decoder
from mechassay.models.trace import Contrast, Trace
from mechassay.pairs import Batch

STAGE_TOKENS = 128
"""What starting a stage costs, in tokens: layers of few tokens are no cheaper than this."""


def lexicographic(tokens: Int[Tensor, "prompts pos"]) -> list[int]:
    """The order in which prompts with a common prefix are neighbours."""
    rows = tokens.tolist()
    return sorted(range(len(rows)), key=rows.__getitem__)


def count_prefixes(tokens: Int[Tensor, "prompts pos"]) -> list[int]:
    """The number of distinct prefixes of each length, from 0 to the whole prompt."""
    lengths = range(1, tokens.shape[1] + 1)
    return [1, *(len(torch.unique(tokens[:, :stop], dim=0)) for stop in lengths)]


def without_answers(clean: Int[Tensor, "pairs pos"], corrupted: Int[Tensor, "pairs pos"]) -> Batch:
    """Pairs of tokens whose answers and foils are not used."""
    unused = torch.zeros(len(clean), 1, dtype=torch.long, device=clean.device)
    ids = tuple(map(str, range(len(clean))))
    return Batch(
        clean=clean,
        counterfactual=corrupted,
        mask=torch.ones_like(clean, dtype=torch.bool),
        answers=unused,
        foils=unused,
        ids=ids,
        groups=ids,
    )


def stage_stops(
    clean: Sequence[int], corrupted: Sequence[float], stage_tokens: int
) -> tuple[int, ...]:
    """The positions before which the shared stages end; none if sharing saves nothing.

    Args:
        clean: `count_prefixes` of the clean prompts.
        corrupted: for each length the share of corrupted prompts whose prefix differs from that of
            the one before.
    """
    length = len(clean) - 1
    # Up to here there is one prefix, and mostly nothing to run.
    first = max(stop for stop in range(length) if clean[stop] == 1)
    # For each position the fewest tokens up to it, with as few stages as that takes.
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {first: (0.0, 0, ())}
    for stop in range(first + 1, length):
        best[stop] = min(
            (
                cost + corrupted[stop] * (clean[stop] * (stop - begin) + stage_tokens),
                n + 1,
                (*before, stop),
            )
            for begin, (cost, n, before) in best.items()
        )
    return min(
        (cost + clean[length] * (length - begin), n, stops)
        for begin, (cost, n, stops) in best.items()
    )[2]


@dataclass(frozen=True, eq=False)
class Stage:
    """The distinct prefixes of a block's clean prompts.

    Attributes:
        clean: their run.
        rows: the prefix that each prefix of the next stage (after the last stage, each prompt)
            continues.
    """

    begin: int
    stop: int
    batch: Batch
    clean: Trace
    rows: Int[Tensor, "next"]

    def contrast(
        self, decoder: Decoder, references: Trace, row: int, other: Int[Tensor, "pos"], start: int
    ) -> Contrast:
        """Against one corrupted prompt, from the position `start` on."""
        n, begin = len(self.batch.clean), max(start, self.begin)
        batch = without_answers(self.batch.clean, other[: self.stop].expand(n, -1))
        reference = references.beginning(self.stop).one(row, n, begin)
        return Contrast(batch, decoder.context(batch.mask), begin, self.clean, reference)


class PrefixCache:
    """A block's stages, and the keys and values of its circuits for the last corrupted prompt."""

    def __init__(
        self, decoder: Decoder, tokens: Int[Tensor, "clean pos"], clean: Trace, stops: Sequence[int]
    ) -> None:
        self.decoder, self.stages = decoder, _stages(tokens, clean, stops)
        self.forget()

    def forget(self) -> None:
        """Drop what was computed for the last corrupted prompt."""
        self._other: Tensor | None = None
        self._prefixes: dict[tuple[int, int], Prefix] = {}

    def prefixes(
        self,
        runs: Sequence[CircuitRunner],
        references: Trace,
        row: int,
        other: Int[Tensor, "pos"],
        start: int,
    ) -> list[Prefix | None]:
        """For each circuit the prefix that the block's prompts continue.

        Args:
            references: the run of several corrupted prompts.
            row: the corrupted prompt among them; `other` are its tokens.
            start: the first position at which it differs from a clean prompt.
        """
        same = 0 if self._other is None else int((self._other == other).int().cumprod(0).sum())
        self._other = other
        prefixes: list[Prefix | None] = [None for _ in runs]
        for number, stage in enumerate(self.stages):
            if stage.stop <= start:
                continue
            if stage.stop > same:
                contrast = stage.contrast(self.decoder, references, row, other, start)
                for which, run in enumerate(runs):
                    if run.takes_prefixes:
                        self._prefixes[number, which] = run.prefix(
                            contrast, stage.rows, prefixes[which]
                        )
            prefixes = [self._prefixes.get((number, which)) for which in range(len(runs))]
        return prefixes


def _stages(tokens: Int[Tensor, "clean pos"], clean: Trace, stops: Sequence[int]) -> list[Stage]:
    stages: list[Stage] = []
    prompts = torch.arange(len(tokens), device=tokens.device)
    # From the last stage to the first: a stage has to know the prompts that stand for the next
    # stage's prefixes.
    following = prompts
    for begin, stop in reversed(list(zip((0, *stops), stops, strict=False))):
        prefixes, which = torch.unique(tokens[:, :stop], dim=0, return_inverse=True)
        first = torch.full((len(prefixes),), len(tokens), device=tokens.device).scatter_reduce(
            0, which, prompts, "amin"
        )
        run = clean.beginning(stop).select(first)
        batch = without_answers(prefixes, prefixes)
        stages.append(Stage(begin, stop, batch, run, which[following]))
        following = first
    return stages[::-1]
