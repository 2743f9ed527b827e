"""KL(M(x) || C(x, x~)) for every pair of a clean and a corrupted prompt, for several circuits at once.

What depends on one prompt alone is done once for it, not once for each of its pairs:

    for a block of clean prompts:      their runs, the model's distributions (`divergence.Target`)
        for a block of corrupted ones: their runs, and from these KL(M(x) || M(x~)), one matrix product
            for each corrupted prompt: every circuit on the whole clean block, compiled (`models.circuit_plan`)

A batch is a block of clean prompts against one corrupted prompt, whose run is broadcast, not copied. Runs of corrupted prompts are
repeated for each block of clean ones, a few percent of the work at the most. Columns before the first difference are shared
by all; attention is causal, so that what follows is shared too by clean prompts that begin alike: where they part is chosen
for each block (`_Beginnings`), and the columns before it are run once for each beginning.
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
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.divergence import Target, divergence, divergences_from
from mechassay.adversarial.pools import Pool
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite
from mechassay.models.capture import Contrast, LayerTrace, Trace, trace
from mechassay.models.circuit_forward import CircuitRunner, circuit_runner
from mechassay.models.decoder import Context
from mechassay.models.memory import out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress

BLOCK_TOKENS = 4096
"""Tokens of a block at the most: more than these are no faster."""
GPU_BUDGET = 4 * 2**30
"""Bytes of a block on a GPU."""
REFERENCES = 32
"""Corrupted prompts that are run at once."""

SHARING = 0.9
"""Beginnings are shared if that leaves at most this share of the columns to run."""


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
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to another width.
        BadUsage: prompts of different lengths, or pools of different sizes that are no grid.
        NonFinite: a divergence is NaN or infinite.
        BadFile: the store holds something else.
        OutOfMemory: one pair does not fit.
    """
    for circuit in circuits:
        if circuit.graph != model.graph:
            raise GraphMismatch(f"A circuit belongs to {circuit.graph}; the model's graph is {model.graph}.")
        if circuit.neurons is not None and circuit.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(f"A circuit has {circuit.neurons.shape[1]} neurons a node; the model has {model.decoder.d_model}.")
    if clean.tokens.shape[1] != corrupted.tokens.shape[1]:
        raise BadUsage(f"Prompts must have one length; got {clean.tokens.shape[1]} and {corrupted.tokens.shape[1]} tokens.")
    if not grid and len(clean) != len(corrupted):
        raise BadUsage(f"Pairs need pools of one size; got {len(clean)} clean and {len(corrupted)} corrupted prompts.")
    shape = (len(clean), len(corrupted)) if grid else (len(clean),)
    values = _Store(store, (len(circuits) + 1, *shape))
    runs = [circuit_runner(model.decoder, model.graph, circuit.edges, circuit.neurons) for circuit in circuits]
    work = Work(model, runs, clean.tokens.to(model.device), corrupted.tokens.to(model.device))
    with (
        torch.no_grad(),
        progress.track(f"running {len(circuits)} circuits on pairs", int(np.prod(shape))) as advance,
        out_of_memory_is_an_error("Adversarial evaluation"),
    ):
        for block in work.grid_blocks() if grid else work.pair_blocks():
            block.fill(values.array, advance)
            _check_finite(values.array[:, block.rows], block.rows.start)
    values.flush()
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
            # Looked at before it is opened for writing, which would fill up a truncated file with zeros.
            found = np.lib.format.open_memmap(file, mode="r")
        except (ValueError, OSError) as error:
            raise BadFile(f"{file}: not an array of divergences: {error}.") from None
        if found.shape != shape or found.dtype != np.float32:
            raise BadFile(f"{file}: holds {found.dtype} {found.shape}; this run makes float32 {shape}.")
        self.array = np.lib.format.open_memmap(file, mode="r+")

    def flush(self) -> None:
        """Write what is in memory to the disk."""
        if isinstance(self.array, np.memmap):
            self.array.flush()


@dataclass(frozen=True, eq=False)
class Work:
    """The prompts, the circuits, and how they are divided; the division depends on nothing but the plan."""

    model: Model
    runs: Sequence[CircuitRunner]
    clean: Int[Tensor, "clean pos"]
    corrupted: Int[Tensor, "corrupted pos"]

    @property
    def size(self) -> int:
        """Clean prompts, or pairs, of a block."""
        length, per_token, device = self.clean.shape[1], self.model.bytes_per_token, self.model.device
        budget = token_budget(per_token, length, device)
        if device.type != "cpu":
            # The free memory is not the same twice, and a job that goes on has to divide pairs as before.
            budget = GPU_BUDGET // per_token
        return max(1, min(BLOCK_TOKENS, budget) // length)

    def grid_blocks(self) -> list[_GridBlock]:
        return [_GridBlock(self, slice(begin, min(begin + self.size, len(self.clean)))) for begin in range(0, len(self.clean), self.size)]

    def pair_blocks(self) -> list[_PairBlock]:
        return [_PairBlock(self, slice(begin, min(begin + self.size, len(self.clean)))) for begin in range(0, len(self.clean), self.size)]

    def context(self, n: int) -> Context:
        return self.model.decoder.context(torch.ones(n, self.clean.shape[1], dtype=torch.bool, device=self.clean.device))

    def batch(self, clean: Int[Tensor, "pairs pos"], corrupted: Int[Tensor, "pairs pos"]) -> Batch:
        """Pairs of tokens; answers and foils are not looked at."""
        nothing = torch.zeros(len(clean), 1, dtype=torch.long, device=clean.device)
        ids = tuple(map(str, range(len(clean))))
        return Batch(
            clean=clean,
            counterfactual=corrupted,
            mask=torch.ones_like(clean, dtype=torch.bool),
            answers=nothing,
            foils=nothing,
            ids=ids,
            groups=ids,
        )


@dataclass(frozen=True, eq=False)
class _GridBlock:
    """Some clean prompts, with each corrupted prompt."""

    work: Work
    rows: slice

    def fill(self, values: Float[np.ndarray, "rows clean corrupted"], advance: Callable[[int], None]) -> None:
        mine = values[:, self.rows]
        todo = np.atleast_1d(np.isnan(mine).any(axis=(0, 1)))
        n = mine.shape[1]
        advance(n * int((~todo).sum()))
        if not todo.any():
            return
        work, decoder = self.work, self.work.model.decoder
        tokens, ctx = work.clean[self.rows], work.context(n)
        clean = trace(decoder, decoder.embed(tokens), ctx)
        target, batch = Target.of(clean.readout(decoder)), work.batch(tokens, tokens)
        beginnings = _Beginnings.of(work, tokens, clean)
        for begin in range(0, len(work.corrupted), REFERENCES):
            columns = slice(begin, min(begin + REFERENCES, len(work.corrupted)))
            if not todo[columns].any():
                continue
            others = work.corrupted[columns]
            references = trace(decoder, decoder.embed(others), work.context(len(others)))
            logq = references.readout(decoder).all().log_softmax(dim=-1)
            mine[0][:, columns] = divergences_from(target, logq).cpu().numpy()
            for place, start in enumerate(first_differences(tokens, others)):
                if not todo[begin + place]:
                    continue
                # The whole block against one corrupted prompt, whose run is the same for all of it.
                pairs = replace(batch, counterfactual=others[place].expand_as(tokens))
                shared = None if beginnings is None or beginnings.stop <= start else beginnings
                whole = Contrast(pairs, ctx, start, clean, one_of(references, place, n, start))
                rest = whole if shared is None else Contrast(pairs, ctx, shared.stop, clean, one_of(references, place, n, shared.stop))
                before = None if shared is None else shared.contrast(references, others[place], place, start)
                for number, run in enumerate(work.runs, start=1):
                    if shared is None or before is None or not run.takes_prefixes:
                        readout = run(whole)
                    else:
                        readout = run(rest, run.prefix(before, shared.rows))
                    mine[number][:, begin + place] = divergence(target, readout).cpu().numpy()
                advance(n)


@dataclass(frozen=True, eq=False)
class _Beginnings:
    """The different beginnings of a block's clean prompts, and their run up to where they end.

    Attributes:
        stop: the first column that is not theirs.
        rows: which beginning each prompt has.
    """

    work: Work
    stop: int
    rows: Int[Tensor, "clean"]
    tokens: Int[Tensor, "beginnings pos"]
    clean: Trace

    @staticmethod
    def of(work: Work, tokens: Int[Tensor, "clean pos"], clean: Trace) -> _Beginnings | None:
        """The beginnings that leave the fewest columns to run; None if they save too little."""
        n, length = tokens.shape
        counts = [len(torch.unique(tokens[:, :stop], dim=0)) for stop in range(1, length)]
        # The first column in which the prompts differ among themselves: before it there is one beginning.
        columns = [count * stop + n * (length - stop) for stop, count in enumerate(counts, start=1)]
        stop = 1 + int(np.argmin(columns)) if columns else 0
        if not columns or columns[stop - 1] > SHARING * n * length:
            return None
        found, rows = torch.unique(tokens[:, :stop], dim=0, return_inverse=True)
        first = torch.full((len(found),), n, device=rows.device).scatter_reduce(0, rows, torch.arange(n, device=rows.device), "amin")
        return _Beginnings(work, stop, rows, found, shortened(clean, stop, first))

    def contrast(self, references: Trace, other: Int[Tensor, "pos"], place: int, start: int) -> Contrast:
        """The beginnings against that of one corrupted prompt."""
        n = len(self.tokens)
        mask = torch.ones(n, self.stop, dtype=torch.bool, device=self.tokens.device)
        ctx = self.work.model.decoder.context(mask)
        pairs = self.work.batch(self.tokens, other[: self.stop].expand_as(self.tokens))
        return Contrast(pairs, ctx, start, self.clean, one_of(shortened(references, self.stop), place, n, start))


@dataclass(frozen=True, eq=False)
class _PairBlock:
    """Some pairs."""

    work: Work
    rows: slice

    def fill(self, values: Float[np.ndarray, "rows pairs"], advance: Callable[[int], None]) -> None:
        mine = values[:, self.rows]
        if np.isnan(mine).any():
            work, decoder = self.work, self.work.model.decoder
            contrast = Contrast.run(decoder, work.batch(work.clean[self.rows], work.corrupted[self.rows]))
            target = Target.of(contrast.clean.readout(decoder))
            mine[0] = divergence(target, contrast.other.readout(decoder)).cpu().numpy()
            for number, run in enumerate(work.runs, start=1):
                mine[number] = divergence(target, run(contrast)).cpu().numpy()
        advance(mine.shape[1])


def first_differences(clean: Int[Tensor, "clean pos"], corrupted: Int[Tensor, "corrupted pos"]) -> list[int]:
    """For each corrupted prompt the first column in which a clean one differs from it; the last column if none does."""
    differs = (clean[:, None] != corrupted[None]).any(dim=0)
    differs[:, -1] = True
    return differs.int().argmax(dim=1).tolist()


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


def shortened(run: Trace, stop: int, rows: Int[Tensor, "some"] | None = None) -> Trace:
    """A run of beginnings: only the columns before `stop`, of all prompts or of those at `rows`."""

    def cut(x: Tensor, columns: int) -> Tensor:
        x = x.narrow(columns, 0, stop)
        return x if rows is None else x[rows]

    def layer(each: LayerTrace) -> LayerTrace:
        streams = {name: getattr(each, name) for name in ("before", "middle", "attended", "mlp")}
        cuts = {name: None if x is None else cut(x, 1) for name, x in streams.items()}
        return replace(each, **cuts, **{name: cut(getattr(each, name), 2) for name in ("q", "k", "v", "z")})

    return Trace(cut(run.embed, 1), tuple(map(layer, run.layers)), cut(run.final, 1), run.start)


def _check_finite(values: Float[np.ndarray, "rows *pairs"], begin: int) -> None:
    """Refuse what is not finite in the block that begins with that pair."""
    if not np.isfinite(values).all():
        row, pair, *rest = np.argwhere(~np.isfinite(values))[0].tolist()
        where, value = (pair + begin, *rest), values[(row, pair, *rest)]
        circuit = "the corrupted run" if row == 0 else f"circuit {row - 1}"
        raise NonFinite(f"The divergence of {circuit} for pair {', '.join(map(str, where))} is {value}: activations overflow or hold NaN.")
