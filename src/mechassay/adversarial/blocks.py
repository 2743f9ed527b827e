"""How an evaluation is divided:
blocks of clean prompts against all corrupted ones, or blocks of pairs.

What depends on one prompt alone is done once for it, not once for each of its pairs:

    for a block of clean prompts:      their runs, the model's distributions (`divergence.Target`)
        for some corrupted ones:    their runs, and from these KL(M(x) || M(x~)), one matrix product
            for each corrupted prompt: every circuit on the whole clean block, compiled
            (`models.circuit_plan`)

A batch is a block of clean prompts against one corrupted prompt, whose run is broadcast, not
copied. Columns before the first difference are shared by all; those in which prompts begin alike
are run once for each beginning (`beginnings`), and prompts of both pools are taken in lexicographic
order, so that there are few. Runs of corrupted prompts are repeated for each block of clean ones, a
few percent of the work at the most. Pairs that are no grid (matched, independent) are run pair by
pair, in batches.

The division depends on the plan alone. What a killed job has not finished of a block (with some
corrupted prompts) is done again as a whole, in the same batches, so that the result is bit for bit
that of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.beginnings import (
    STAGE_TOKENS,
    Beginnings,
    cuts,
    lexicographic,
    n_beginnings,
    unanswered,
)
from mechassay.adversarial.divergence import Target, divergence, divergences_from
from mechassay.models.circuit_forward import CircuitRunner
from mechassay.models.decoder import Context, Readout
from mechassay.models.memory import check_fits
from mechassay.models.model import Model
from mechassay.models.trace import Contrast, Trace, trace
from mechassay.pairs import Batch
from mechassay.stats.partial_grid import PartialGrid

BLOCK_TOKENS = 4096
"""Tokens of a block at the most: more than these are no faster."""
RUN_TOKENS = 1024
"""Tokens that circuits are run on at once on a CPU:
the streams of a layer's readers should stay near the caches.
"""
BUDGET = 2 * 2**30
"""Bytes of a block. The free memory is not the same twice,
and a job that goes on has to divide pairs as before.
"""
REFERENCES = 32
"""Corrupted prompts that are run at once."""


@dataclass(frozen=True, eq=False)
class Work:
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
        per_token = (
            (8 * self.model.graph.n_layers + rows)
            * decoder.d_model
            * decoder.embedding.element_size()
        )
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
        columns = corrupted[lexicographic(self.corrupted[torch.from_numpy(corrupted)])].tolist()
        groups = [
            columns[begin : begin + REFERENCES] for begin in range(0, len(columns), REFERENCES)
        ]
        different = torch.tensor([n_beginnings(self.corrupted[group]) for group in groups])
        shares = (different.sum(dim=0) / len(columns)).tolist()
        blocks = (order[rows] for rows in _slices(len(order), self.size))
        return [
            GridBlock(self, rows, [np.array(group) for group in groups], shares) for rows in blocks
        ]

    def pair_blocks(self) -> list[PairBlock]:
        return [
            PairBlock(self, np.arange(rows.start, rows.stop))
            for rows in _slices(len(self.clean), self.size)
        ]

    def parts(self, n: int, begin: int) -> list[slice]:
        """Those of `n` prompts or pairs that circuits are run on at once,
        at the columns from `begin` on.
        """
        tokens = RUN_TOKENS if self.model.device.type == "cpu" else BLOCK_TOKENS
        return _slices(n, max(1, tokens // (self.clean.shape[1] - begin)))

    def context(self, n: int) -> Context:
        return self.model.decoder.context(
            torch.ones(n, self.clean.shape[1], dtype=torch.bool, device=self.clean.device)
        )


@dataclass(frozen=True, eq=False)
class GridBlock:
    """Some clean prompts, with each corrupted prompt.

    Attributes:
        rows: the clean prompts.
        groups: the corrupted prompts that are run at once.
        shares: see `beginnings.cuts`.
    """

    work: Work
    rows: Int[np.ndarray, "rows"]
    groups: Sequence[Int[np.ndarray, "columns"]]
    shares: Sequence[float]

    @property
    def place(self) -> tuple[np.ndarray, ...]:
        """Where its values are in the grid."""
        return np.ix_(self.rows, np.concatenate(self.groups))

    def fill(
        self, values: Float[np.ndarray, "rows clean corrupted"], advance: Callable[[int], None]
    ) -> None:
        """Make what is missing of this block's values:
        row 0 of the corrupted runs, then one for each circuit.
        """
        n = len(self.rows)
        todo = [
            group for group in self.groups if np.isnan(values[:, self.rows[:, None], group]).any()
        ]
        advance(n * sum(len(group) for group in self.groups) - n * sum(map(len, todo)))
        if not todo:
            return
        work, decoder = self.work, self.work.model.decoder
        tokens = work.clean[self.rows]
        clean = trace(decoder, decoder.embed(tokens), work.context(n))
        target, parts = Target.of(clean.readout(decoder)), _Parts(work, tokens, clean)
        beginnings = Beginnings(
            decoder, tokens, clean, cuts(n_beginnings(tokens), self.shares, STAGE_TOKENS)
        )
        for group in todo:
            others = work.corrupted[group]
            references = trace(decoder, decoder.embed(others), work.context(len(others)))
            logq = references.readout(decoder).all().log_softmax(dim=-1)
            corrupted = divergences_from(target, logq).cpu().numpy()
            beginnings.forget()
            for place, (column, start) in enumerate(
                zip(group, first_differences(tokens, others), strict=True)
            ):
                values[0, self.rows, column] = corrupted[:, place]
                prefixes = beginnings.prefixes(work.runs, references, place, others[place], start)
                for number, (run, prefix) in enumerate(
                    zip(work.runs, prefixes, strict=True), start=1
                ):
                    begin = start if prefix is None else prefix.stop
                    hidden = torch.cat(
                        [
                            run(
                                part.contrast(references, place, begin),
                                None if prefix is None else prefix.select(part.rows),
                            ).hidden
                            for part in parts.from_column(begin)
                        ]
                    )
                    values[number, self.rows, column] = (
                        divergence(target, Readout(hidden, decoder)).cpu().numpy()
                    )
                advance(n)


@dataclass(frozen=True, eq=False)
class _Part:
    """Neighbouring prompts of a block that are run at once."""

    rows: slice
    batch: Batch
    ctx: Context
    clean: Trace

    def contrast(self, references: Trace, place: int, begin: int) -> Contrast:
        """Against one corrupted prompt, from the column `begin` on."""
        return Contrast(
            self.batch, self.ctx, begin, self.clean, references.one(place, len(self.batch), begin)
        )


class _Parts:
    """A block's prompts in parts, for each column from which on they may be run."""

    def __init__(self, work: Work, tokens: Int[Tensor, "clean pos"], clean: Trace) -> None:
        self.work, self.tokens, self.clean = work, tokens, clean
        self._found: dict[int, list[_Part]] = {}

    def from_column(self, begin: int) -> list[_Part]:
        if begin not in self._found:
            self._found[begin] = [
                self._part(rows) for rows in self.work.parts(len(self.tokens), begin)
            ]
        return self._found[begin]

    def _part(self, rows: slice) -> _Part:
        tokens = self.tokens[rows]
        return _Part(
            rows,
            unanswered(tokens, tokens),
            self.work.context(len(tokens)),
            self.clean.select(rows),
        )


@dataclass(frozen=True, eq=False)
class PairBlock:
    """Some pairs."""

    work: Work
    rows: Int[np.ndarray, "rows"]

    @property
    def place(self) -> tuple[np.ndarray, ...]:
        """Where its values are."""
        return (self.rows,)

    def fill(self, values: Float[np.ndarray, "rows pairs"], advance: Callable[[int], None]) -> None:
        """Make what is missing of this block's values:
        row 0 of the corrupted runs, then one for each circuit.
        """
        if np.isnan(values[:, self.rows]).any():
            work, decoder = self.work, self.work.model.decoder
            whole = Contrast.run(
                decoder, unanswered(work.clean[self.rows], work.corrupted[self.rows])
            )
            target = Target.of(whole.clean.readout(decoder))
            values[0, self.rows] = divergence(target, whole.other.readout(decoder)).cpu().numpy()
            parts = [self._part(whole, rows) for rows in work.parts(len(self.rows), whole.start)]
            for number, run in enumerate(work.runs, start=1):
                hidden = torch.cat([run(part).hidden for part in parts])
                values[number, self.rows] = (
                    divergence(target, Readout(hidden, decoder)).cpu().numpy()
                )
        advance(len(self.rows))

    def _part(self, whole: Contrast, rows: slice) -> Contrast:
        batch = unanswered(whole.batch.clean[rows], whole.batch.counterfactual[rows])
        return Contrast(
            batch,
            self.work.context(len(batch)),
            whole.start,
            whole.clean.select(rows),
            whole.other.select(rows),
        )


def _slices(n: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


def first_differences(
    clean: Int[Tensor, "clean pos"], corrupted: Int[Tensor, "corrupted pos"]
) -> list[int]:
    """For each corrupted prompt the first column in which a clean one differs from it;
    the last column if none does.
    """
    differs = (clean[:, None] != corrupted[None]).any(dim=0)
    differs[:, -1] = True
    return differs.int().argmax(dim=1).tolist()
