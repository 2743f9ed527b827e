"""Columns that pairs share, run once.

Attention is causal: what a circuit computes at column t of a pair depends on both prompts up to t
alone. So the columns of a block of clean prompts are cut into stages, and in each only its
different beginnings are run; what follows needs no more of them than the circuit's keys and values
(`models.circuit_forward.Prefix`). A corrupted prompt that begins like the one before it takes over
its stages.

Where to cut is a shortest path: a stage from column a to column b costs as many tokens as it runs,
b - a for each different beginning, and what starting it costs (`STAGE_TOKENS`).
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
    """The order of prompts in which those that begin alike stand together."""
    rows = tokens.tolist()
    return sorted(range(len(rows)), key=rows.__getitem__)


def n_beginnings(tokens: Int[Tensor, "prompts pos"]) -> list[int]:
    """How many different beginnings there are, before each column and at the end: [length + 1]."""
    return [
        1,
        *(len(torch.unique(tokens[:, :stop], dim=0)) for stop in range(1, tokens.shape[1] + 1)),
    ]


def unanswered(clean: Int[Tensor, "pairs pos"], corrupted: Int[Tensor, "pairs pos"]) -> Batch:
    """Pairs of tokens whose answers and foils are not looked at."""
    nothing = torch.zeros(len(clean), 1, dtype=torch.long, device=clean.device)
    ids = tuple(map(str, range(len(clean))))
    mask = torch.ones_like(clean, dtype=torch.bool)
    return Batch(
        clean=clean,
        counterfactual=corrupted,
        mask=mask,
        answers=nothing,
        foils=nothing,
        ids=ids,
        groups=ids,
    )


def cuts(clean: Sequence[int], corrupted: Sequence[float], stage_tokens: int) -> tuple[int, ...]:
    """The columns at which stages end, the last of which is not the end of the prompts;
    none if nothing is saved.

    Args:
        clean: different beginnings of clean prompts, before each column and at the end.
        corrupted: share of the corrupted prompts whose beginning is another than that of the one
            before.
    """
    length = len(clean) - 1
    # Before this column there is one beginning, and mostly nothing to run.
    first = max(stop for stop in range(length) if clean[stop] == 1)
    # For each column the fewest tokens up to it, with as few stages as that takes.
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {first: (0.0, 0, ())}
    for stop in range(first + 1, length):
        options = (
            (
                cost + corrupted[stop] * (clean[stop] * (stop - begin) + stage_tokens),
                n + 1,
                (*before, stop),
            )
            for begin, (cost, n, before) in best.items()
        )
        best[stop] = min(options)
    return min(
        (cost + clean[length] * (length - begin), n, stops)
        for begin, (cost, n, stops) in best.items()
    )[2]


@dataclass(frozen=True, eq=False)
class Stage:
    """The different beginnings of a block's clean prompts.

    Attributes:
        clean: their run.
        rows: which of them each beginning of the next stage (or each prompt, after the last) goes
            on from.
    """

    begin: int
    stop: int
    batch: Batch
    clean: Trace
    rows: Int[Tensor, "next"]

    def contrast(
        self, decoder: Decoder, references: Trace, place: int, other: Int[Tensor, "pos"], start: int
    ) -> Contrast:
        """Against one corrupted prompt, from the column `start` on."""
        n, begin = len(self.batch.clean), max(start, self.begin)
        batch = unanswered(self.batch.clean, other[: self.stop].expand(n, -1))
        reference = references.beginning(self.stop).one(place, n, begin)
        return Contrast(batch, decoder.context(batch.mask), begin, self.clean, reference)


class Beginnings:
    """The stages of one block, and what the circuits computed
    in them for the last corrupted prompt.
    """

    def __init__(
        self, decoder: Decoder, tokens: Int[Tensor, "clean pos"], clean: Trace, stops: Sequence[int]
    ) -> None:
        self.decoder, self.stages = decoder, _stages(tokens, clean, stops)
        self.forget()

    def forget(self) -> None:
        """Nothing is taken over from the last corrupted prompt."""
        self._other: Tensor | None = None
        self._prefixes: dict[tuple[int, int], Prefix] = {}

    def stop(self, start: int) -> int:
        """From where on all prompts are run, if their first difference is at `start`."""
        return max([start, *(stage.stop for stage in self.stages)])

    def prefixes(
        self,
        runs: Sequence[CircuitRunner],
        references: Trace,
        place: int,
        other: Int[Tensor, "pos"],
        start: int,
    ) -> list[Prefix | None]:
        """For each circuit what the prompts of the block go on from, against one corrupted prompt.

        Args:
            references: the run of several corrupted prompts; `other`, the one at `place`, are its
                tokens.
            start: the first column in which it differs from a clean prompt.
        """
        same = 0 if self._other is None else int((self._other == other).int().cumprod(0).sum())
        self._other = other
        found: list[Prefix | None] = [None for _ in runs]
        for number, stage in enumerate(self.stages):
            if stage.stop <= start:
                continue
            if stage.stop > same:
                contrast = stage.contrast(self.decoder, references, place, other, start)
                for which, run in enumerate(runs):
                    if run.takes_prefixes:
                        self._prefixes[number, which] = run.prefix(
                            contrast, stage.rows, found[which]
                        )
            found = [self._prefixes.get((number, which)) for which in range(len(runs))]
        return found


def _stages(tokens: Int[Tensor, "clean pos"], clean: Trace, stops: Sequence[int]) -> list[Stage]:
    stages: list[Stage] = []
    prompts = torch.arange(len(tokens), device=tokens.device)
    # From the last stage to the first: each has to know the prompts that stand for the beginnings
    # of the next.
    following = prompts
    for number in reversed(range(len(stops))):
        stop = stops[number]
        found, which = torch.unique(tokens[:, :stop], dim=0, return_inverse=True)
        first = torch.full((len(found),), len(tokens), device=tokens.device).scatter_reduce(
            0, which, prompts, "amin"
        )
        begin = stops[number - 1] if number else 0
        stages.append(
            Stage(
                begin,
                stop,
                unanswered(found, found),
                clean.beginning(stop).select(first),
                which[following],
            )
        )
        following = first
    return stages[::-1]
