"""KL(M(x) || C(x, x~)) for every pair of a clean and a corrupted prompt, for several circuits at once.

What depends on one prompt alone is done once for it, not once for each of its pairs:

    for a block of clean prompts:      their runs, the model's distributions (`divergence.Target`)
        for a block of corrupted ones: their runs, and from these KL(M(x) || M(x~)), one matrix product
            for each corrupted prompt: every circuit on the whole clean block, compiled (`models.circuit_plan`)

A batch is a block of clean prompts against one corrupted prompt, whose run is broadcast, not copied. Runs of corrupted prompts are
repeated for each block of clean ones, a few percent of the work at the most. Columns before the first difference are shared.
Pairs that are no grid (matched, independent) are run pair by pair, in batches.

KL(M(x) || M(x~)) is the empty circuit: with every edge ablated, C(x, x~) = M(x~). It is the first control, and costs nothing.

Values go to a memory-mapped file of fp32 as they are made; NaN is what is still to be done. A job that was killed
does the blocks that are not whole again, in the same batches, so that the result is bit for bit that of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.adversarial.divergence import Target, divergence, divergences_from
from mechassay.adversarial.pools import Pool
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite
from mechassay.models.capture import Contrast, LayerTrace, Trace, trace
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.decoder import Context, Readout
from mechassay.models.memory import out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress

LARGEST_BLOCK = 128
REFERENCES = 32
"""Corrupted prompts that are run at once."""

Run = Callable[[Contrast], Readout]


@dataclass(frozen=True, eq=False)
class Divergences:
    """KL of the model's output from that of each circuit, in nats, fp32.

    Attributes:
        circuits: [circuits, clean, corrupted] for a grid, else [circuits, pairs].
        corrupted: KL(M(x) || M(x~)), the empty circuit, of the same pairs.
    """

    circuits: Float[np.ndarray, "circuits *pairs"]
    corrupted: Float[np.ndarray, "*pairs"]


def evaluate_pairs(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Pool,
    corrupted: Pool,
    *,
    grid: bool = True,
    store: Path | None = None,
    progress: Progress = BAR,
) -> Divergences:
    """The divergence of every pair: each clean prompt with each corrupted one, or prompt i with prompt i.

    Args:
        circuits: one or more, of the model's graph.
        grid: all combinations; otherwise the pools are of one size and pair i is (clean i, corrupted i).
        store: a folder for what is done, so that a killed job can go on; None: in memory.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's.
        BadUsage: prompts of different lengths, or pools of different sizes that are no grid.
        NonFinite: a divergence is NaN or infinite.
        BadFile: the store holds something else.
        OutOfMemory: one pair does not fit.
    """
    for circuit in circuits:
        if circuit.graph != model.graph:
            raise GraphMismatch(f"A circuit belongs to {circuit.graph}; the model's graph is {model.graph}.")
    if clean.tokens.shape[1] != corrupted.tokens.shape[1]:
        raise BadUsage(f"Prompts must have one length; got {clean.tokens.shape[1]} and {corrupted.tokens.shape[1]} tokens.")
    if not grid and len(clean) != len(corrupted):
        raise BadUsage(f"Pairs need pools of one size; got {len(clean)} clean and {len(corrupted)} corrupted prompts.")
    shape = (len(clean), len(corrupted)) if grid else (len(clean),)
    values = _Store(store, (len(circuits) + 1, *shape))
    runs = [circuit_runner(model.decoder, model.graph, circuit.edges, circuit.neurons) for circuit in circuits]
    work = _Work(model, runs, clean.tokens.to(model.device), corrupted.tokens.to(model.device))
    with (
        torch.no_grad(),
        progress.track(f"running {len(circuits)} circuits on pairs", int(np.prod(shape))) as advance,
        out_of_memory_is_an_error("Adversarial evaluation"),
    ):
        for block in work.grid_blocks() if grid else work.pair_blocks():
            block.fill(values.array, advance)
    _check_finite(values.array)
    return Divergences(values.array[1:], values.array[0])


class _Store:
    """The values: row 0 is the empty circuit, then one for each circuit. NaN is still to be done."""

    def __init__(self, folder: Path | None, shape: tuple[int, ...]) -> None:
        if folder is None:
            self.array: np.ndarray = np.full(shape, np.nan, dtype=np.float32)
            return
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "divergences.npy"
        if not file.is_file():
            partial = file.with_suffix(".new.npy")
            new = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            new[:] = np.nan
            new.flush()
            partial.replace(file)
        try:
            self.array = np.lib.format.open_memmap(file, mode="r+")
        except (ValueError, OSError) as error:
            raise BadFile(f"{file}: not an array of divergences: {error}.") from None
        if self.array.shape != shape or self.array.dtype != np.float32:
            raise BadFile(f"{file}: holds {self.array.dtype} {self.array.shape}; this run makes float32 {shape}.")


@dataclass(frozen=True, eq=False)
class _Work:
    """The prompts, the circuits, and how they are divided; the division depends on nothing but the plan."""

    model: Model
    runs: Sequence[Run]
    clean: Tensor
    corrupted: Tensor

    @property
    def size(self) -> int:
        # On a GPU the free memory decides, which is not the same twice: pairs are then divided by the largest block alone.
        budget = token_budget(self.model.bytes_per_token, self.clean.shape[1], self.model.device)
        return max(1, min(LARGEST_BLOCK, budget // self.clean.shape[1]))

    def grid_blocks(self) -> list[_GridBlock]:
        return [_GridBlock(self, slice(begin, min(begin + self.size, len(self.clean)))) for begin in range(0, len(self.clean), self.size)]

    def pair_blocks(self) -> list[_PairBlock]:
        return [_PairBlock(self, slice(begin, min(begin + self.size, len(self.clean)))) for begin in range(0, len(self.clean), self.size)]

    def context(self, n: int) -> Context:
        return self.model.decoder.context(torch.ones(n, self.clean.shape[1], dtype=torch.bool, device=self.clean.device))

    def batch(self, clean: Tensor, corrupted: Tensor) -> Batch:
        """Pairs of tokens; answers and foils are not looked at."""
        nothing = torch.zeros(len(clean), 1, dtype=torch.long, device=clean.device)
        ids = tuple(map(str, range(len(clean))))
        return Batch(
            clean=clean,
            counterfactual=corrupted.expand_as(clean),
            mask=torch.ones_like(clean, dtype=torch.bool),
            answers=nothing,
            foils=nothing,
            ids=ids,
            groups=ids,
        )


@dataclass(frozen=True, eq=False)
class _GridBlock:
    """Some clean prompts, with each corrupted prompt."""

    work: _Work
    rows: slice

    def fill(self, values: Float[np.ndarray, "rows clean corrupted"], advance: Callable[[int], None]) -> None:
        mine = values[:, self.rows]
        todo = np.flatnonzero(np.isnan(mine).any(axis=(0, 1)))
        n, done = mine.shape[1], mine.shape[2] - len(todo)
        advance(n * done)
        if not len(todo):
            return
        work, decoder = self.work, self.work.model.decoder
        tokens, ctx = work.clean[self.rows], work.context(n)
        clean = trace(decoder, decoder.embed(tokens), ctx)
        target = Target.of(clean.readout(decoder))
        for begin in range(0, len(work.corrupted), REFERENCES):
            columns = np.arange(begin, min(begin + REFERENCES, len(work.corrupted)))
            if not np.isin(columns, todo).any():
                continue
            others = work.corrupted[columns]
            references = trace(decoder, decoder.embed(others), work.context(len(columns)))
            logq = references.readout(decoder).all().log_softmax(dim=-1)
            mine[0][:, columns] = divergences_from(target, logq).float().cpu().numpy()
            for place, column in enumerate(columns.tolist()):
                if column in todo:
                    contrast = self._contrast(tokens, others[place], clean, references, place, ctx)
                    for number, run in enumerate(work.runs, start=1):
                        mine[number][:, column] = divergence(target, run(contrast)).float().cpu().numpy()
                    advance(n)

    def _contrast(self, tokens: Tensor, other: Tensor, clean: Trace, references: Trace, place: int, ctx: Context) -> Contrast:
        """The whole block against one corrupted prompt, whose run is the same for all of it."""
        differs = (tokens != other).any(dim=0).nonzero()
        start = min(int(differs[0]), len(other) - 1) if len(differs) else len(other) - 1
        batch = self.work.batch(tokens, other[None])
        return Contrast(batch, ctx, start, clean, one_of(references, place, len(tokens), start))


@dataclass(frozen=True, eq=False)
class _PairBlock:
    """Some pairs."""

    work: _Work
    rows: slice

    def fill(self, values: Float[np.ndarray, "rows pairs"], advance: Callable[[int], None]) -> None:
        mine = values[:, self.rows]
        if np.isnan(mine).any():
            work, decoder = self.work, self.work.model.decoder
            contrast = Contrast.run(decoder, work.batch(work.clean[self.rows], work.corrupted[self.rows]))
            target = Target.of(contrast.clean.readout(decoder))
            mine[0] = divergence(target, contrast.other.readout(decoder)).float().cpu().numpy()
            for number, run in enumerate(work.runs, start=1):
                mine[number] = divergence(target, run(contrast)).float().cpu().numpy()
        advance(mine.shape[1])


def one_of(references: Trace, place: int, times: int, start: int) -> Trace:
    """One run of several, as if it were that of `times` prompts, from the column `start` on; nothing is copied."""

    def cut(x: Tensor | None, columns: int) -> Tensor | None:
        if x is None:
            return None
        x = x[place : place + 1]
        return x.narrow(columns, start, x.shape[columns] - start).expand(times, *x.shape[1:columns], -1, *x.shape[columns + 1 :])

    def whole(x: Tensor) -> Tensor:
        return x[place : place + 1].expand(times, *x.shape[1:])

    def layer(each: LayerTrace) -> LayerTrace:
        cuts = {name: cut(getattr(each, name), 1) for name in ("before", "middle", "attended", "mlp")}
        heads = {name: cut(getattr(each, name), 2) for name in ("q", "z")}
        return replace(each, **cuts, **heads, k=whole(each.k), v=whole(each.v))

    embed, final = cut(references.embed, 1), cut(references.final, 1)
    assert embed is not None and final is not None
    return Trace(embed, tuple(map(layer, references.layers)), final, start)


def _check_finite(values: Float[np.ndarray, "rows *pairs"]) -> None:
    if not np.isfinite(values).all():
        where = np.argwhere(~np.isfinite(values))[0].tolist()
        raise NonFinite(
            f"The divergence of pair {tuple(where[1:])} is {values[tuple(where)]} in row {where[0]}: activations overflow or hold NaN."
        )
