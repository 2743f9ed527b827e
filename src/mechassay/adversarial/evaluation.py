"""KL(M(x) || C(x, x~)) for every pair of prompts, and for several circuits at once.

How the work is divided, and what pairs share, is in `batching`. KL(M(x) || M(x~)) is the empty
circuit: with every edge ablated, C(x, x~) = M(x~). Values go to a memory-mapped file of fp32 as
they are computed; NaN is still to be done. After an interruption, unfinished blocks are recomputed.
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
from jaxtyping import Float

from mechassay.adversarial.batching import Schedule
from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, DiskFull, GraphMismatch, NonFinite
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.partial_grid import PartialGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        from mechassay.figures import draw_divergences

        n = len(self.circuits)
        if names and len(set(names)) != n:
            raise BadUsage(f"names must be {n}, one a circuit, all different; got {list(names)}.")
        called = names or [f"circuit {number}" for number in range(n)]
        return draw_divergences(dict(zip(called, self.circuits, strict=True)), self.corrupted, ax)


def evaluate_pairs(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Pool,
    corrupted: Pool,
    *,
    grid: bool = True,
    part: PartialGrid | None = None,
    store: Path | None = None,
    progress: Progress = BAR,
) -> Divergences:
    """The divergence of every pair: each clean prompt with each corrupted one, or i with i.

    Args:
        circuits: one or more, of the model's graph.
        grid: all combinations; otherwise the pools are of one size and pair i is (clean i,
            corrupted i).
        part: which of the combinations; the values of all others are NaN.
        store: a folder for finished values, so that a killed job can resume; None: in memory.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to
            another width.
        BadUsage: prompts of different lengths, or pools of different sizes that are no grid.
        NonFinite: a divergence is NaN or infinite.
        BadFile: the store holds something else, or the values of other circuits or prompts.
        OutOfMemory: one pair does not fit.
        DiskFull: the store would not fit.
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
        store, (len(circuits) + 1, *shape), _identity(circuits, clean, corrupted, part)
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
            _check_room(folder, 4 * math.prod(shape))
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


def _check_room(folder: Path, size: int) -> None:
    """Refuse what does not fit: a memory-mapped file on a full disk kills the process."""
    free = shutil.disk_usage(folder).free
    # The parquet file is written beside it before it is removed.
    if 2 * size > free:
        raise DiskFull.of(folder, 2 * size, free, what="the file of divergences")


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
