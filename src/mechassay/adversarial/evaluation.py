"""KL(M(x) || C(x, x~)) for every pair of prompts, and for several circuits at once.

KL(M(x) || M(x~)) is the divergence of the empty circuit: with every edge ablated, C(x,
x~) = M(x~). What depends on one prompt alone is computed once for it, not once for each of its
pairs:

    for a block of clean prompts:         their runs, the model's distributions (`Target`)
        for a group of corrupted ones:    their runs, and from these KL(M(x) || M(x~))
            for each corrupted prompt:    every circuit on the whole block, compiled

A batch is a block of clean prompts against one corrupted prompt, whose run is broadcast, not
copied. Pairs that are no grid are run in batches of pairs. The division into batches depends on
the plan alone. Values go to a memory-mapped file of fp32 as they are computed; NaN is still to
be done. After an interruption an unfinished block is recomputed in the same batches, so results
are bit-identical.

Prefixes that several prompts share are run once. Attention is causal: what a circuit computes at
position t of a pair depends on both prompts up to t alone. So the positions of a block are cut
into stages. In each stage only the distinct prefixes are run, and the next stage takes the
circuit's keys and values of them (`models.circuit_forward.Prefix`). A corrupted prompt keeps the
stages that lie within the prefix it shares with the corrupted prompt before it. Prompts are
taken in lexicographic order, so that there are few prefixes. Where to cut is a shortest path: a
stage from position a to position b costs b - a tokens for each distinct prefix, and
`STAGE_TOKENS` to start.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.divergence import Target, divergence, divergences_from
from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadFile, BadUsage, DiskFull, GraphMismatch, NonFinite
from mechassay.models.circuit_forward import CircuitRunner, Prefix, circuit_runner
from mechassay.models.decoder import Context, Decoder, Readout
from mechassay.models.forward import Contrast, Trace, trace
from mechassay.models.memory import check_fits, out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.stats.bounds import PartialGrid
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Advance, OneLine, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        self.decoder = decoder
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
        self.stages = stages[::-1]
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


BLOCK_TOKENS = 4096
"""Most tokens of a block: more are no faster."""
RUN_TOKENS = 1024
"""Most tokens a circuit is run on at once on a CPU, to keep a layer's streams near the caches."""
BUDGET = 2 * 2**30
"""Bytes of a block. Free memory varies, and a resumed run has to divide pairs as before."""
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
        rows = max((run.plan.rows[0] for run in self.runs if run.plan is not None), default=0)
        # A run keeps four streams and as much in queries, keys, values and mixes a layer; a circuit
        # its writers' differences.
        vectors = 8 * self.model.graph.n_layers + rows
        per_token = vectors * decoder.d_model * decoder.embedding.element_size()
        check_fits(per_token, length, self.model.device)
        return max(1, min(BLOCK_TOKENS, BUDGET // per_token) // length)

    def grid_blocks(self, part: PartialGrid | None = None) -> list[GridBlock]:
        """Blocks of the whole grid, or of one grid for each stratum of a part."""
        whole = (np.arange(len(self.clean)), np.arange(len(self.corrupted)))
        blocks: list[GridBlock] = []
        for clean, corrupted in [whole] if part is None else part.blocks():
            order = clean[lexicographic(self.clean[torch.from_numpy(clean)])]
            columns = corrupted[lexicographic(self.corrupted[torch.from_numpy(corrupted)])]
            groups = [columns[group] for group in _slices(len(columns), REFERENCES)]
            distinct = torch.tensor([count_prefixes(self.corrupted[group]) for group in groups])
            shares = (distinct.sum(dim=0) / len(columns)).tolist()
            blocks += [
                GridBlock(self, order[rows], groups, shares)
                for rows in _slices(len(order), self.size)
            ]
        return blocks

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


@dataclass(frozen=True, eq=False, repr=False)
class Divergences(OneLine):
    """KL of the model's output from that of each circuit, in nats, fp32.

    Attributes:
        circuits: [circuits, clean, corrupted] for a grid, else [circuits, pairs].
        corrupted: KL(M(x) || M(x~)), the empty circuit, of the same pairs.
    """

    circuits: Float[np.ndarray, "circuits *pairs"]
    corrupted: Float[np.ndarray, "*pairs"]

    def plot(self, ax: Axes | None = None, *, names: Sequence[str] = ()) -> Figure:
        """How many pairs are how bad: the share at least so far from the model, for each circuit.

        The empty circuit's line is grey; the right end of a line is the worst pair.

        Args:
            ax: where to draw; without it, the picture gets a figure of its own.
            names: what circuits are called; their numbers by default.

        Raises:
            BadUsage: as many names as circuits are needed.
        """
        from mechassay.results.plots import draw_divergences

        n = len(self.circuits)
        if names and len(set(names)) != n:
            raise BadUsage(f"names must be {n}, one a circuit, all different; got {list(names)}.")
        called = names or [f"circuit {number}" for number in range(n)]
        return draw_divergences(dict(zip(called, self.circuits, strict=True)), self.corrupted, ax)


@checked
def evaluate_pairs(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Pool,
    corrupted: Pool,
    *,
    grid: bool = True,
    part: PartialGrid | None = None,
    folder: Path | None = None,
    progress: Progress = BAR,
) -> Divergences:
    """The divergence of every pair: each clean prompt with each corrupted one, or i with i.

    Args:
        circuits: one or more, of the model's graph.
        grid: all combinations; otherwise the pools are of one size and pair i is (clean i,
            corrupted i).
        part: which of the combinations; the values of all others are NaN.
        folder: of finished values, from which a killed run resumes; None keeps them in memory.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to
            another width.
        BadUsage: prompts of different lengths, or pools of different sizes that are no grid.
        NonFinite: a divergence is NaN or infinite.
        BadFile: the folder holds something else, or the values of other circuits or prompts.
        OutOfMemory: one pair does not fit.
        DiskFull: the values would not fit on the disk.
    """
    for circuit in circuits:
        if circuit.graph != model.graph:
            raise GraphMismatch(
                f"A circuit belongs to {circuit.graph}; the model's graph is {model.graph}."
            )
        if circuit.neurons is not None and circuit.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(
                f"A circuit has {circuit.neurons.shape[1]} neurons a node; the model has"
                f" {model.decoder.d_model}."
            )
    if clean.tokens.shape[1] != corrupted.tokens.shape[1]:
        raise BadUsage(
            f"Prompts must have one length; got {clean.tokens.shape[1]} and"
            f" {corrupted.tokens.shape[1]} tokens."
        )
    if not grid and len(clean) != len(corrupted):
        raise BadUsage(
            f"Pairs need pools of one size; got {len(clean)} clean and {len(corrupted)} corrupted"
            " prompts."
        )
    shape = (len(clean), len(corrupted)) if grid else (len(clean),)
    if part is not None and part.shape != shape:
        raise BadUsage(
            f"A part of a grid is of its prompts, here {part.shape}; got values of shape {shape}."
        )
    values = _KeptValues(
        folder, (len(circuits) + 1, *shape), _identity(circuits, clean, corrupted, part)
    )
    runs = [
        circuit_runner(model.decoder, model.graph, circuit.edges, circuit.neurons)
        for circuit in circuits
    ]
    device = model.device
    schedule = Schedule(model, runs, clean.tokens.to(device), corrupted.tokens.to(device))
    with (
        torch.no_grad(),
        progress.track(
            f"running {len(circuits)} circuits on pairs",
            math.prod(shape) if part is None else part.n_values,
        ) as advance,
        out_of_memory_is_an_error("Adversarial evaluation"),
    ):
        for block in schedule.grid_blocks(part) if grid else schedule.pair_blocks():
            block.fill(values.array, advance)
            _check_finite(values.array[(slice(None), *block.place)], block.place)
    values.flush()
    return Divergences(values.array[1:], values.array[0])


class _KeptValues:
    """The values: row 0 is the empty circuit, then one a circuit. NaN is still to be done."""

    def __init__(self, folder: Path | None, shape: tuple[int, ...], identity: str) -> None:
        if folder is None:
            self.array: np.ndarray = np.full(shape, np.nan, dtype=np.float32)
            return
        folder.mkdir(parents=True, exist_ok=True)
        file, belongs = folder / "divergences.npy", folder / "of.txt"
        if not file.is_file():
            # A memory-mapped file on a full disk kills the process.
            size = 4 * math.prod(shape)
            free = shutil.disk_usage(folder).free
            # The parquet file is written beside it before it is removed.
            if 2 * size > free:
                raise DiskFull.of(folder, 2 * size, free, what="the file of divergences")
            partial = file.with_suffix(".new.npy")
            new = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            new[:] = np.nan
            new.flush()
            belongs.write_text(identity, encoding="ascii")
            partial.replace(file)
        if not belongs.is_file() or belongs.read_bytes() != identity.encode():
            raise BadFile(
                f"{file}: holds the divergences of other circuits or prompts. Take another folder,"
                " or remove this one."
            )
        try:
            # Read first: opening for writing would fill up a truncated file with zeros.
            stored = np.lib.format.open_memmap(file, mode="r")
        except (ValueError, OSError) as error:
            raise BadFile(f"{file}: not an array of divergences: {error}.") from None
        if stored.shape != shape or stored.dtype != np.float32:
            raise BadFile(
                f"{file}: holds {stored.dtype} {stored.shape}; this run makes float32 {shape}."
            )
        self.array = np.lib.format.open_memmap(file, mode="r+")

    def flush(self) -> None:
        """Write what is in memory to the disk."""
        if isinstance(self.array, np.memmap):
            self.array.flush()


def _identity(
    circuits: Sequence[Circuit], clean: Pool, corrupted: Pool, part: PartialGrid | None
) -> str:
    """A hash of everything the values depend on, except the model."""
    digest = hashlib.sha256()
    for circuit in circuits:
        parts = (circuit.edges,) if circuit.neurons is None else (circuit.edges, circuit.neurons)
        digest.update(
            b"".join(part.cpu().numpy().tobytes() for part in parts) + bytes([len(parts)])
        )
    for pool in (clean, corrupted):
        digest.update(pool.tokens.cpu().numpy().tobytes())
    if part is not None:
        digest.update(part.clean.tobytes() + part.corrupted.tobytes())
    return digest.hexdigest()


def _check_finite(values: Float[np.ndarray, "rows *block"], place: tuple[np.ndarray, ...]) -> None:
    """Refuse values that are not finite, in the block at this place of the grid or the pairs."""
    if not np.isfinite(values).all():
        row, *at = np.argwhere(~np.isfinite(values))[0].tolist()
        pair = [int(axis.reshape(-1)[index]) for axis, index in zip(place, at, strict=True)]
        circuit = "the corrupted run" if row == 0 else f"circuit {row - 1}"
        raise NonFinite(
            f"The divergence of {circuit} for pair {', '.join(map(str, pair))} is"
            f" {values[(row, *at)]}: activations overflow or hold NaN."
        )
