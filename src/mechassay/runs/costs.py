"""Estimates of the memory (GB at the peak) and time (a range) of runs, from sizes alone.

Memory is the process without a model, `CLASSES`, the weights, and a working set. The working set is
one chunk of the engine (`models.memory`), or one prompt if the prompt is longer than a chunk, and
the forward passes that a training keeps. If the file of the weights has another dtype, the process
holds the file while it reads the weights.

Time is a number of operations over the speed of this machine, which a product of matrices of the
model's width measures. A pass of a token multiplies every weight between embedding and unembedding
once, two operations a weight. A method states how many passes it takes (`Method.forwards`). Of ten
circuits of all sizes one takes, on average, `LIVE` of a pass, and `SUMS` times two operations an
edge and dimension. Only columns from the first one on in which the prompts of a pair differ are run
again. Passes are slower than products by `SLOWER`. In small models, starting a layer takes longer
than its products (`LAYER`). The true time may be `RANGE` times shorter or longer than an estimate.
After the first cell, the command line corrects the estimate by the measured time.

GB are 10^9 bytes. docs/plan.md compares both with measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from mechassay.models.decoder import Decoder
from mechassay.models.graph import Graph
from mechassay.models.memory import (
    CPU_BUDGET,
    available_bytes,
    budget_of,
    example_budget,
    trace_bytes,
)
from mechassay.models.model import Model, check_device, check_dtype
from mechassay.models.sources import find_source
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Pair
from mechassay.prompts.tokenization import encode
from mechassay.runs.cells import Cell, by_inputs

GB = 1e9
LIBRARIES, CLASSES = 0.36e9, 0.13e9
"""Bytes of a process once the libraries are imported, and of a model's classes and first products.
"""
CHUNK = 4 / 3
"""Bytes of a chunk and of the block that it is contracted in, by the budget of a chunk."""
LIVE, SUMS = 0.2, 3.0
SIZES = 9
"""Sizes of circuits between the empty and the whole one."""
RANKINGS = 2
"""By value and by magnitude."""
CONTROLS = 10
"""Random rankings, five of each kind."""
SHARED = 0.5
"""Part of the columns that are run again, where prompts are not known."""
BACKWARD = 3.0
"""Passes of a differentiated one: forwards, and twice that back."""
SLOWER = 1.7
RANGE, RANGE_MEASURED = 2.0, 1.5
"""The estimate is divided and multiplied by these, before and after a cell was measured."""
START, BEGIN, READ = 8.0, 1.0, 0.4e9
"""Seconds of a command without its cells (imports and the report), and before a model is
read; bytes read a second.
"""
LAYER = 1e-3
"""Seconds of a layer that is started, whatever it computes: most of the time of small models."""
TOKENS_A_WORD = 1.4


@dataclass(frozen=True)
class ModelSize:
    """What costs depend on.

    Attributes:
        weights: numbers of the model, tied embeddings once.
        body: of these, the numbers that every token is multiplied with.
        unembedding: those that a last token is multiplied with.
        width: d_model.
        bytes_each: of a number.
        file_bytes: of weights on disk in another dtype, which are held while they are read.
    """

    weights: int
    body: int
    unembedding: int
    graph: Graph
    width: int
    bytes_each: float
    file_bytes: int = 0

    @staticmethod
    def published(shape: Mapping[str, Any]) -> ModelSize:
        """Of a shape as `reproduction` has it; norms and biases are left out."""
        width, heads = shape["width"], shape["heads"]
        key_heads = shape.get("key_heads", heads)
        attention = width * shape["head"] * (2 * heads + 2 * key_heads)
        mlp = width * shape["hidden"] * (3 if shape["gated"] else 2)
        body, words = shape["layers"] * (attention + mlp), width * shape["vocabulary"]
        graph = Graph(shape["layers"], heads, mlp=shape["hidden"] > 0)
        bytes_each = torch.finfo(check_dtype(shape["dtype"])).bits / 8
        return ModelSize(
            body + words * (1 if shape["tied"] else 2), body, words, graph, width, bytes_each
        )

    @staticmethod
    def of(model: Model, source: str) -> ModelSize:
        """Of an outline; `source` is what the model was asked for by."""
        hf: Any = model.hf
        embeddings = {
            id(part.weight): part.weight.numel()
            for part in (hf.get_input_embeddings(), hf.get_output_embeddings())
            if part is not None
        }
        decoder, weights = model.decoder, model.n_parameters
        size = ModelSize(
            weights,
            weights - sum(embeddings.values()),
            decoder.unembedding.numel(),
            model.graph,
            decoder.d_model,
            decoder.embedding.element_size(),
        )
        known_source = find_source(source)
        if known_source.untrained:
            return size
        file_bytes = weights * hf.config.dtype.itemsize
        if known_source.kind != "hub":
            files = Path(known_source.location).glob("*.safetensors")
            file_bytes = sum(path.stat().st_size for path in files) or file_bytes
        # Headers and tensors that are no parameters are a small part of a file.
        same = 0.9 < file_bytes / size.bytes < 1.1
        return size if same else replace(size, file_bytes=file_bytes)

    @property
    def bytes(self) -> float:
        """Of all weights."""
        return self.weights * self.bytes_each

    @property
    def layer_bytes(self) -> float:
        """Of the weights that are held where layers come one at a time (`--device-map`)."""
        return (self.weights - self.body + self.body / self.graph.n_layers) * self.bytes_each

    def plain(self, columns: float) -> float:
        """Operations of a forward pass of one prompt, with its logits."""
        return 2.0 * (self.body * columns + self.unembedding)

    def behind(self, layers: Sequence[int], *, heads: bool = False) -> float:
        """Operations of a token in the layers behind each of some layers, added up; of a head
        about half of its own layer too.
        """
        n_layers = self.graph.n_layers
        return 2.0 * self.body / n_layers * sum(n_layers - 1 - x + heads / 2 for x in layers)


@dataclass(frozen=True)
class Work:
    """The operations and bytes of the cells of one model.

    Attributes:
        model: its name.
        operations: multiplications and additions.
        held: bytes beyond the weights at most.
        n_runs: forward passes that are started, each of a chunk of prompts.
        fixed: seconds besides, whatever the speed.
    """

    model: str
    size: ModelSize
    operations: float
    held: float
    n_runs: float = 0.0
    fixed: float = 0.0

    @property
    def bytes(self) -> float:
        """At the peak, beyond the libraries."""
        return CLASSES + self.size.bytes + max(self.size.file_bytes, self.held)

    def seconds(self, device: str) -> float:
        """Of reading the weights and of all operations."""
        read = BEGIN + (self.size.file_bytes or self.size.bytes) / READ
        started = LAYER * self.n_runs * self.size.graph.n_layers
        products = SLOWER * self.operations / speed(device, self.size.width)
        return read + self.fixed + started + products


@dataclass(frozen=True)
class Cost:
    """The estimate of a run, which loads its models one after the other.

    Attributes:
        works: the work on each model.
        device: kind of the device of the models.
        libraries: bytes of this process before a model is loaded.
        free: free bytes of the device; None if the platform does not tell.
        processes: number of processes, each with its own libraries and model.
    """

    works: tuple[Work, ...]
    device: str
    libraries: float
    free: int | None
    processes: int = 1

    @property
    def gigabytes(self) -> float:
        """At the peak: of all processes, or on a GPU of what one puts there."""
        own, n = (self.libraries, self.processes) if self.device == "cpu" else (0.0, 1)
        return n * (own + max((work.bytes for work in self.works), default=0.0)) / GB

    @property
    def free_gigabytes(self) -> float | None:
        """What the process holds and what it may still take."""
        own = self.libraries if self.device == "cpu" else 0.0
        return None if self.free is None else (own + self.free) / GB

    @property
    def fits(self) -> bool:
        """Whether the peak is free; True where the platform does not say."""
        return self.free_gigabytes is None or self.gigabytes <= self.free_gigabytes

    @property
    def cell_seconds(self) -> float:
        """Of all cells, and of loading their models."""
        return sum(work.seconds(self.device) for work in self.works) / self.processes

    @property
    def seconds(self) -> float:
        """Of the whole command: the estimate that the range is around."""
        return START + self.cell_seconds

    @property
    def line(self) -> str:
        """The answer in one sentence."""
        free = "" if self.free_gigabytes is None else f" of {self.free_gigabytes:.1f} GB free"
        head = "fits" if self.fits else "does not fit"
        where = "" if self.device == "cpu" else f" on {self.device}"
        if self.processes > 1:
            where += f" in {self.processes} processes"
        return f"{head}: needs {self.gigabytes:.1f} GB{free}{where}, {duration(self.seconds)}"


class PromptSizes(NamedTuple):
    """So many pairs: columns of the longest, and the share of them from where prompts differ."""

    n: int
    columns: int
    share: float

    def of(self, n: int) -> PromptSizes:
        """As long prompts of another number of pairs."""
        return self._replace(n=n)

    @staticmethod
    def like(batch: Batch, n: int, *, differ: bool = True) -> PromptSizes:
        """So many pairs as long as those of a batch.

        Args:
            differ: whether columns before the first difference are run once.
        """
        first, columns = batch.first_difference() if differ else 0, batch.n_tokens
        return PromptSizes(n, columns, max(1, columns - first) / columns)


class FreeMemory(NamedTuple):
    """A device and the bytes that are free there; None where the platform does not say."""

    device: torch.device
    free: int | None

    @staticmethod
    def of(device: str) -> FreeMemory:
        """Return the memory of a named device."""
        place = check_device(device)
        return FreeMemory(place, available_bytes(place))

    def working_set(
        self, size: ModelSize, decoder: Decoder, columns: int, per_token: float = 0.0
    ) -> float:
        """Return the bytes of a chunk, or of the longest prompt if the prompt needs more.

        Args:
            columns: tokens of the longest prompt.
            per_token: bytes of a token, if a method needs more than `trace_bytes`.
        """
        left = None if self.free is None else max(0, int(self.free - size.bytes))
        budget, most = budget_of(left, self.device), example_budget(left, self.device)
        prompt = max(per_token, trace_bytes(decoder)) * columns
        return max(CHUNK * budget, min(prompt, float(most)))


def sample_batch(pairs: Sequence[Pair], model: Model) -> Batch:
    """Return pairs as a batch. Without a tokenizer it is one pair of as many tokens as the longest
    prompt has words (`TOKENS_A_WORD`), which differs in all of them.
    """
    if model.tokenizer is None:
        tokens = torch.zeros(1, columns_of(model, [pair.clean for pair in pairs]), dtype=torch.long)
        return Batch.from_tokens(tokens, tokens + 1, [0], [1])
    return Batch.from_pairs(pairs, model.tokenizer, prepend=model.prepend)


def columns_of(model: Model, texts: Sequence[str]) -> int:
    """Tokens of the longest text; without a tokenizer `TOKENS_A_WORD` times its words."""
    if model.tokenizer is None:
        return round(max(len(text.split()) for text in texts) * TOKENS_A_WORD) + 1
    return len(model.prepend) + max(map(len, encode(model.tokenizer, texts)))


def cost_of(
    cells: Sequence[Cell],
    device: str,
    outlined: Callable[[Cell], Model],
    work_of: Callable[[Sequence[Cell], Model], Work],
) -> Cost:
    """Return the cost of cells. Cells that share a model are counted together.

    Args:
        outlined: returns the outline of a cell's model.
        work_of: returns the work of the cells that share a model.

    Raises:
        MechassayError: `outlined` or `work_of` raised the error.
    """
    place, free = FreeMemory.of(device)
    libraries = float(psutil.Process().memory_info().rss)
    works = tuple(work_of(own, outlined(own[0])) for own in by_inputs(cells))
    return Cost(works, place.type, libraries, free)


def gigabytes(size: ModelSize) -> float:
    """Return the GB of a run on a CPU whose prompts are not longer than a chunk."""
    return (LIBRARIES + CLASSES + size.bytes + CHUNK * CPU_BUDGET) / GB


def token_operations(
    size: ModelSize, share: float = SHARED, edges_share: float = 1.0
) -> tuple[float, float]:
    """Return the operations of a pass of one token, and of a circuit's pass (mean over sizes).

    Args:
        share: of the columns that are run.
        edges_share: number of a circuit's edges, divided by the mean over sizes.
    """
    plain, edges = 2.0 * size.body, 2.0 * size.graph.n_edges * size.width
    return share * plain, share * (LIVE * plain + SUMS * edges * edges_share)


def circuit_operations(
    size: ModelSize, forwards: float, n_test: int, tokens: int, *, controls: bool = False
) -> float:
    """Return the operations of finding a circuit by `forwards` passes and of measuring it.

    Args:
        controls: with the random rankings that all methods of a column share.
    """
    plain, circuit = token_operations(size)
    measuring = n_test * SIZES * (RANKINGS + CONTROLS * controls)
    return tokens * (forwards * plain + measuring * circuit)


@cache
def speed(device: str, width: int = 1024) -> float:
    """Return the operations per second of this machine in products of a model's width."""
    # Narrower products wait for threads; small models wait for Python (`LAYER`).
    width = max(width, 512)
    rows = torch.rand(512, width, device=device, dtype=torch.float32)
    weights = torch.rand(width, min(4 * width, 4096), device=device, dtype=torch.float32)
    took: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        (rows @ weights).sum().item()
        took.append(time.perf_counter() - begin)
    return 2.0 * rows.shape[0] * weights.numel() / min(took)


def minutes(operations: float, device: str) -> float:
    """Return the minutes that operations take on this machine."""
    return SLOWER * operations / speed(device) / 60


def duration(seconds: float, off: float = RANGE) -> str:
    """Return an estimate in words, as a range: "5 to 20 min".

    Args:
        off: what the estimate is divided and multiplied by.
    """
    units = (("s", 1.0, 240.0), ("min", 60.0, 14400.0), ("h", 3600.0, math.inf))
    unit, size = next((name, size) for name, size, below in units if seconds * off < below)
    low, high = seconds / off / size, seconds * off / size
    # Rounded inwards, so that the ends are not further apart than `off` says.
    low, high = (
        rounded(x * 10) / 10 if x < 10 else rounded(x)
        for x, rounded in ((low, math.ceil), (high, math.floor))
    )
    if high < low:  # Such as an estimate of some milliseconds.
        return f"at most {low:g} {unit}"
    return f"{low:,g} to {high:,g} {unit}"


def cost_text(minutes: float, gigabytes: float) -> str:
    """Return an estimate of time and memory in words."""
    return f"{duration(60 * minutes)} and {gigabytes:.1f} GB on this machine"
