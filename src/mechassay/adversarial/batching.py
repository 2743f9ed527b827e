"""How an evaluation is divided: clean prompts in blocks, or pairs in blocks.

What depends on one prompt alone is computed once for it, not once for each of its pairs:

    for a block of clean prompts:         their runs, the model's distributions (`Target`)
        for a group of corrupted ones:    their runs, and from these KL(M(x) || M(x~))
            for each corrupted prompt:    every circuit on the whole block, compiled

A batch is a block of clean prompts against one corrupted prompt, whose run is broadcast, not
copied. Positions before the first difference are shared by all, and each distinct prefix is run
once (`prefixes`); prompts are taken in lexicographic order, so that there are few. Pairs that are
no grid are run in batches of pairs. The division depends on the plan alone. After an interruption,
an unfinished block is recomputed in the same batches, so results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.divergence import Target, divergence, divergences_from
from mechassay.adversarial.prefixes import (
    STAGE_TOKENS,
    PrefixCache,
    count_prefixes,
    lexicographic,
    stage_stops,
    without_answers,
)
from mechassay.models.circuit_forward import CircuitRunner
from mechassay.models.decoder import Context, Readout
from mechassay.models.memory import check_fits
from mechassay.models.model import Model
from mechassay.models.trace import Contrast, Trace, trace
from mechassay.pairs import Batch
from mechassay.progress import Advance
from mechassay.stats.partial_grid import PartialGrid

BLOCK_TOKENS = 4096
"""Most tokens of a block: more are no faster."""
RUN_TOKENS = 1024
"""Most tokens a circuit is run on at once on a CPU, to keep a layer's streams near the caches."""
BUDGET = 2 * 2**30
"""Bytes of a block. Free memory varies, and a resumed job has to divide pairs as before."""
REFERENCES = 32
"""Corrupted prompts that are run at once."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """The prompts, the circuits, and how they are divided."""

    model: Model
    runs: Sequence[CircuitRunner]
    clean: Int[Tensor, "clean pos"]
    corrupted: Int[Tensor, "corrupted pos"]

    @property
    def size(self) -> int:
        """Clean prompts, or pairs, of a block.

        Raises:
            OutOfMemory: one does not fit.
        """
        length, decoder = self.clean.shape[1], self.model.decoder
        rows = max((run.plan.rows_wide for run in self.runs if run.plan is not None), default=0)
        # A run keeps four streams and as much in queries, keys, values and mixes a layer; a circuit
        # its writers' differences.
        vectors = 8 * self.model.graph.n_layers + rows
        per_token = vectors * decoder.d_model * decoder.embedding.element_size()
        check_fits(per_token, length, self.model.device)
        return max(1, min(BLOCK_TOKENS, BUDGET // per_token) // length)

    def grid_blocks(self, part: PartialGrid | None = None) -> list[GridBlock]:
        """Blocks of the whole grid, or of one grid for each stratum of a part."""
        whole = (np.arange(len(self.clean)), np.arange(len(self.corrupted)))
        return [
            block
            for rows, columns in ([whole] if part is None else part.blocks())
            for block in self._blocks_of(rows, columns)
        ]

    def _blocks_of(
        self, clean: Int[np.ndarray, "rows"], corrupted: Int[np.ndarray, "columns"]
    ) -> list[GridBlock]:
        order = clean[lexicographic(self.clean[torch.from_numpy(clean)])]
        columns = corrupted[lexicographic(self.corrupted[torch.from_numpy(corrupted)])]
        groups = [columns[group] for group in _slices(len(columns), REFERENCES)]
        distinct = torch.tensor([count_prefixes(self.corrupted[group]) for group in groups])
        shares = (distinct.sum(dim=0) / len(columns)).tolist()
        return [
            GridBlock(self, order[rows], groups, shares) for rows in _slices(len(order), self.size)
        ]

    def pair_blocks(self) -> list[PairBlock]:
        """Blocks of pairs of the same place in both pools."""
        rows = np.arange(len(self.clean))
        return [PairBlock(self, rows[block]) for block in _slices(len(rows), self.size)]

    def run_slices(self, n: int, begin: int) -> list[slice]:
        """Which of `n` prompts a circuit is run on at once, from the position `begin` on."""
        tokens = RUN_TOKENS if self.model.device.type == "cpu" else BLOCK_TOKENS
        return _slices(n, max(1, tokens // (self.clean.shape[1] - begin)))

    def context(self, n: int) -> Context:
        """The context of `n` prompts without padding."""
        return self.model.decoder.context(
            torch.ones(n, self.clean.shape[1], dtype=torch.bool, device=self.clean.device)
        )


@dataclass(frozen=True, eq=False)
class GridBlock:
    """Some clean prompts, with each corrupted prompt.

    Attributes:
        rows: the clean prompts.
        groups: the corrupted prompts that are run at once.
        shares: see `prefixes.stage_stops`.
    """

    schedule: Schedule
    rows: Int[np.ndarray, "rows"]
    groups: Sequence[Int[np.ndarray, "columns"]]
    shares: Sequence[float]

    @property
    def place(self) -> tuple[np.ndarray, ...]:
        """Where its values are in the grid."""
        return np.ix_(self.rows, np.concatenate(self.groups))

    def fill(self, values: Float[np.ndarray, "rows clean corrupted"], advance: Advance) -> None:
        """Compute what is missing of this block: row 0 of the corrupted runs, one a circuit."""
        todo = [
            group for group in self.groups if np.isnan(values[:, self.rows[:, None], group]).any()
        ]
        advance(len(self.rows) * (sum(map(len, self.groups)) - sum(map(len, todo))))
        if not todo:
            return
        schedule, decoder = self.schedule, self.schedule.model.decoder
        tokens = schedule.clean[self.rows]
        clean = trace(decoder, decoder.embed(tokens), schedule.context(len(tokens)))
        target, parts = Target.of(clean.readout(decoder)), _BlockParts(schedule, tokens, clean)
        stops = stage_stops(count_prefixes(tokens), self.shares, STAGE_TOKENS)
        cache = PrefixCache(decoder, tokens, clean, stops)
        for group in todo:
            others = schedule.corrupted[group]
            references = trace(decoder, decoder.embed(others), schedule.context(len(others)))
            logq = references.readout(decoder).all().log_softmax(dim=-1)
            corrupted = divergences_from(target, logq).cpu().numpy()
            cache.forget()
            starts = first_differences(tokens, others)
            for row, (column, start) in enumerate(zip(group, starts, strict=True)):
                values[0, self.rows, column] = corrupted[:, row]
                prefixes = cache.prefixes(schedule.runs, references, row, others[row], start)
                for number, (run, prefix) in enumerate(zip(schedule.runs, prefixes, strict=True)):
                    begin = start if prefix is None else prefix.stop
                    hidden = torch.cat(
                        [
                            run(
                                part.contrast(references, row, begin),
                                None if prefix is None else prefix.select(part.rows),
                            ).hidden
                            for part in parts.after(begin)
                        ]
                    )
                    kl = divergence(target, Readout(hidden, decoder))
                    values[number + 1, self.rows, column] = kl.cpu().numpy()
                advance(len(self.rows))


@dataclass(frozen=True, eq=False)
class _BlockPart:
    """Neighbouring prompts of a block that are run at once."""

    rows: slice
    batch: Batch
    ctx: Context
    clean: Trace

    def contrast(self, references: Trace, row: int, begin: int) -> Contrast:
        """Against one corrupted prompt, from the position `begin` on."""
        reference = references.one(row, len(self.batch), begin)
        return Contrast(self.batch, self.ctx, begin, self.clean, reference)


class _BlockParts:
    """A block's prompts in parts, for each position from which they may be run."""

    def __init__(self, schedule: Schedule, tokens: Int[Tensor, "clean pos"], clean: Trace) -> None:
        self.schedule, self.tokens, self.clean = schedule, tokens, clean
        self._made: dict[int, list[_BlockPart]] = {}

    def after(self, begin: int) -> list[_BlockPart]:
        """The parts for a run from the position `begin` on."""
        if begin not in self._made:
            slices = self.schedule.run_slices(len(self.tokens), begin)
            self._made[begin] = [self._part(rows) for rows in slices]
        return self._made[begin]

    def _part(self, rows: slice) -> _BlockPart:
        tokens = self.tokens[rows]
        context = self.schedule.context(len(tokens))
        return _BlockPart(rows, without_answers(tokens, tokens), context, self.clean.select(rows))


@dataclass(frozen=True, eq=False)
class PairBlock:
    """Some pairs."""

    schedule: Schedule
    rows: Int[np.ndarray, "rows"]

    @property
    def place(self) -> tuple[np.ndarray, ...]:
        """Where its values are."""
        return (self.rows,)

    def fill(self, values: Float[np.ndarray, "rows pairs"], advance: Advance) -> None:
        """Compute what is missing of this block: row 0 of the corrupted runs, one a circuit."""
        if np.isnan(values[:, self.rows]).any():
            schedule, decoder = self.schedule, self.schedule.model.decoder
            batch = without_answers(schedule.clean[self.rows], schedule.corrupted[self.rows])
            whole = Contrast.run(decoder, batch)
            target = Target.of(whole.clean.readout(decoder))
            values[0, self.rows] = divergence(target, whole.other.readout(decoder)).cpu().numpy()
            slices = schedule.run_slices(len(self.rows), whole.start)
            parts = [self._part(whole, rows) for rows in slices]
            for number, run in enumerate(schedule.runs, start=1):
                hidden = torch.cat([run(part).hidden for part in parts])
                kl = divergence(target, Readout(hidden, decoder))
                values[number, self.rows] = kl.cpu().numpy()
        advance(len(self.rows))

    def _part(self, whole: Contrast, rows: slice) -> Contrast:
        batch = without_answers(whole.batch.clean[rows], whole.batch.counterfactual[rows])
        context = self.schedule.context(len(batch))
        clean, other = whole.clean.select(rows), whole.other.select(rows)
        return Contrast(batch, context, whole.start, clean, other)


def _slices(n: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


def first_differences(
    clean: Int[Tensor, "clean pos"], corrupted: Int[Tensor, "corrupted pos"]
) -> list[int]:
    """For each corrupted prompt the first position where a clean one differs, else the last."""
    differs = (clean[:, None] != corrupted[None]).any(dim=0)
    differs[:, -1] = True
    return differs.int().argmax(dim=1).tolist()
