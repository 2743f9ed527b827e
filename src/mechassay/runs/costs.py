"""What work takes on this machine, GB and minutes, from sizes alone: before anything is loaded.

A pass of a token multiplies every weight between embedding and unembedding once, two operations a
weight; logits are those of the last token. A method says how many passes it takes
(`Method.forwards`). Of ten circuits of all sizes one takes, on average, `LIVE` of a pass and
`SUMS` times two operations an edge and dimension, which what edges carry is summed in. Only columns
from the first one on in which the prompts of a pair differ are run again; where prompts are not
known they are taken as a `SHARED` part. Operations over the speed of this machine, which a product
of matrices tells (`speed`), are seconds. On a GPU, which waits for Python, work takes longer.

Peak memory is what the process holds without a model, `PRODUCTS`, the weights (and their file,
where it has another dtype, while they are read), and the largest step beyond them: of the chunks
that the budgets of `models.memory` choose. GB are 10^9 bytes.

`LIVE`, `SUMS`, `PRODUCTS` and `READ` were measured on two shapes on one machine
(docs/performance.md has what they say of others).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from mechassay.errors import BadPairs
from mechassay.models.graph import Graph
from mechassay.models.memory import CPU_BUDGET, available_bytes, budget_of, example_budget
from mechassay.models.model import Model, check_device, check_dtype
from mechassay.models.sources import find_source
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Examples
from mechassay.prompts.tokenization import encode
from mechassay.runs.job import Cell
from mechassay.tasks.task import Task

LIVE, SUMS = 0.2, 3.0
SIZES = 9
"""Sizes of circuits between the empty and the whole one."""
RANKINGS = 2
"""By value and by magnitude."""
CONTROLS = 10
"""Random rankings, five of each kind."""
SHARED = 0.5
SIDE = 1024
LIBRARIES = 0.36e9
"""Bytes that a process holds once the libraries are imported."""
PRODUCTS = 0.13e9
"""Bytes that the classes of a model and the first products take."""
READ, BEGIN = 0.4e9, 3.0
"""Bytes of weights a second that are read, and seconds before that."""
GB = 1e9
SAMPLE = 64
"""Pairs of a split that say how long its prompts are."""
TOKENS_A_WORD = 1.4
LARGEST_STEP = 4 / 3 * CPU_BUDGET
"""Bytes of a chunk that fills its budget, and of the block that it is contracted in."""


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
    def of(model: Model, file_bytes: int = 0) -> ModelSize:
        """Of a model, which may be an outline."""
        hf: Any = model.hf
        embeddings = {
            id(part.weight): part.weight.numel()
            for part in (hf.get_input_embeddings(), hf.get_output_embeddings())
            if part is not None
        }
        decoder, weights = model.decoder, model.n_parameters
        return ModelSize(
            weights,
            weights - sum(embeddings.values()),
            decoder.unembedding.numel(),
            model.graph,
            decoder.d_model,
            decoder.embedding.element_size(),
            file_bytes,
        )

    @property
    def bytes(self) -> float:
        """Of all weights."""
        return self.weights * self.bytes_each

    @property
    def layer_bytes(self) -> float:
        """Of the weights that are held where layers come one at a time (`--device-map`)."""
        return (self.weights - self.body + self.body / self.graph.n_layers) * self.bytes_each


@dataclass(frozen=True)
class CostStep:
    """A piece of a run.

    Attributes:
        name: what is done.
        held: bytes that it holds at most beyond the weights.
        operations: that it takes.
        seconds: that it takes besides, whatever the speed.
    """

    name: str
    held: float
    operations: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class ModelCost:
    """The steps of a run on one model, and the bytes of what it scores."""

    model: str
    size: ModelSize
    scores: float
    steps: tuple[CostStep, ...]

    @property
    def held(self) -> float:
        """Bytes at the peak beyond the libraries."""
        most = max((step.held for step in self.steps), default=0.0)
        return PRODUCTS + self.size.bytes + max(self.size.file_bytes, most)


@dataclass(frozen=True)
class Cost:
    """What a run takes: models are loaded one after the other.

    Attributes:
        device: where the models are.
        libraries: bytes that this process holds already.
        free: bytes that may still be taken there; None where the platform does not say.
        notes: what the numbers leave out, or take for granted.
        processes: each with the libraries and a model; GPUs are their own.
    """

    models: tuple[ModelCost, ...]
    device: str
    libraries: float
    free: int | None
    notes: tuple[str, ...] = ()
    processes: int = 1

    @property
    def gigabytes(self) -> float:
        """At the peak: of all processes, or on a GPU of what one puts there."""
        own, n = (self.libraries, self.processes) if self.device == "cpu" else (0.0, 1)
        return n * (own + max((part.held for part in self.models), default=0.0)) / GB

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
    def minutes(self) -> float:
        """Of all steps."""
        steps = [step for part in self.models for step in part.steps]
        return sum(step_seconds(step, self.device) for step in steps) / 60

    @property
    def line(self) -> str:
        """The answer in one sentence."""
        free = "" if self.free_gigabytes is None else f" of {self.free_gigabytes:.1f} GB free"
        head = "fits" if self.fits else "does not fit"
        where = "" if self.device == "cpu" else f" on {self.device}"
        if self.processes > 1:
            where += f" in {self.processes} processes"
        return f"{head}: needs {self.gigabytes:.1f} GB{free}{where}, {duration(self.minutes)}"

    def rows(self) -> list[dict[str, Any]]:
        """What takes how many GB and minutes: parts of memory, then the steps of each model."""
        rows: list[dict[str, Any]] = [
            {"model": "", "what": "libraries", "gb": (self.libraries + PRODUCTS) / GB}
        ]
        for part in self.models:
            rows.append({"model": part.model, "what": "weights", "gb": part.size.bytes / GB})
            if part.size.file_bytes:
                more = part.size.file_bytes / GB
                rows.append({"model": part.model, "what": "their file, while read", "gb": more})
            rows.append({"model": part.model, "what": "scores", "gb": part.scores / GB})
            rows += [
                {
                    "model": part.model,
                    "what": step.name,
                    "gb": step.held / GB,
                    "minutes": step_seconds(step, self.device) / 60,
                }
                for step in part.steps
            ]
        return [{"minutes": 0.0, **row} for row in rows]


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

    def beside(self, size: ModelSize) -> tuple[int, int]:
        """Bytes of a chunk, and of one example, once the weights are there."""
        left = None if self.free is None else max(0, int(self.free - size.bytes))
        return budget_of(left, self.device), example_budget(left, self.device)


def model_size(model: Model, source: str) -> ModelSize:
    """The size of an outline; weights in another dtype on disk are held while they are read."""
    known_source = find_source(source)
    size = ModelSize.of(model)
    if known_source.untrained:
        return size
    stored: Any = model.hf.config.dtype
    file_bytes = model.n_parameters * stored.itemsize
    if known_source.kind != "hub":
        files = Path(known_source.location).glob("*.safetensors")
        file_bytes = sum(path.stat().st_size for path in files) or file_bytes
    # Headers and tensors that are no parameters are a small part of a file.
    same = 0.9 < file_bytes / size.bytes < 1.1
    return size if same else ModelSize.of(model, file_bytes)


def sample_pairs(task: Task, model: Model, split: str, n: int, **settings: Any) -> Batch:
    """The first pairs of a split. Without a tokenizer one pair of as many tokens as its longest
    prompt has words (`TOKENS_A_WORD`), which differs in all of them.

    Args:
        settings: of `Task.pairs`.

    Raises:
        BadUsage, BadPairs: see `Task.pairs`.
    """
    pairs = task.pairs(split, model.tokenizer, limit=min(n, SAMPLE), **settings)
    if model.tokenizer is None:
        tokens = torch.zeros(1, columns_of(model, [pair.clean for pair in pairs]), dtype=torch.long)
        return Batch.from_tokens(tokens, tokens + 1, [0], [1])
    return Batch.from_pairs(pairs, model.tokenizer, prepend=model.prepend)


def columns_of(model: Model, texts: Sequence[str]) -> int:
    """Tokens of the longest text; without a tokenizer `TOKENS_A_WORD` times its words."""
    if model.tokenizer is None:
        return round(max(len(text.split()) for text in texts) * TOKENS_A_WORD) + 1
    return len(model.prepend) + max(map(len, encode(model.tokenizer, texts)))


def sample_examples(task: Task, model: Model, split: str, n: int, **settings: Any) -> Examples:
    """The first examples of a split, of n that are asked for or as many as there are.

    Args:
        settings: of `Task.examples`.

    Raises:
        BadPairs: none can be read.
        BadUsage: see `Task.examples`.
    """
    some, size = min(n, SAMPLE), task.sizes.get(split, 0)
    limit = None if some >= size > 0 else some
    examples = task.examples(split, model.tokenizer, limit=limit, **settings)
    if not examples:
        raise BadPairs(f"Split {split!r} of {task.name} has no example that can be read.")
    return examples


def load_step(size: ModelSize) -> CostStep:
    """Reading the weights."""
    return CostStep("load", 0.0, seconds=BEGIN + (size.file_bytes or size.bytes) / READ)


def cost_of(
    cells: Sequence[Cell],
    device: str,
    outlined: Callable[[Cell], Model],
    of_model: Callable[[Sequence[Cell], Model, FreeMemory], ModelCost],
    notes: Sequence[str],
) -> Cost:
    """The cost of cells, those that share a model together.

    Args:
        outlined: the outline of a cell's model.
        of_model: the cost of cells that share one.

    Raises:
        MechassayError: what these say.
    """
    place = check_device(device)
    libraries, free = float(psutil.Process().memory_info().rss), available_bytes(place)
    parts, more = list[ModelCost](), list(notes)
    for _, group in groupby(cells, key=lambda cell: cell.shares):
        own = list(group)
        model = outlined(own[0])
        if model.tokenizer is None:
            more.append(f"{model.name} has no tokenizer here: prompts are {TOKENS_A_WORD} x words.")
        parts.append(of_model(own, model, FreeMemory(place, free)))
    if place.type != "cpu":
        more.append("Minutes are a product's: on a GPU, which waits for Python, it takes longer.")
    return Cost(tuple(parts), place.type, libraries, free, tuple(dict.fromkeys(more)))


def chunk_tokens(per_token: int, prompts: PromptSizes, budget: int) -> int:
    """Tokens of the largest chunk, as `Batch.chunks` takes it within a budget of bytes."""
    room = max(prompts.columns, budget // max(per_token, 1))
    return prompts.columns * min(prompts.n, room // prompts.columns)


def step_seconds(step: CostStep, device: str) -> float:
    """Seconds of a step on this machine."""
    return step.seconds + (step.operations / speed(device) if step.operations else 0.0)


def gigabytes(size: ModelSize) -> float:
    """Memory of a run on a CPU whose chunks are as large as they may be."""
    return (LIBRARIES + PRODUCTS + size.bytes + LARGEST_STEP) / GB


def token_operations(
    size: ModelSize, share: float = SHARED, edges_share: float = 1.0
) -> tuple[float, float]:
    """Of a pass of one token, and of a circuit's, the mean over sizes.

    Args:
        share: of the columns that are run.
        edges_share: of what edges take in that mean, where a circuit has fewer.
    """
    plain, edges = 2.0 * size.body, 2.0 * size.graph.n_edges * size.width
    return share * plain, share * (LIVE * plain + SUMS * edges * edges_share)


def circuit_operations(
    size: ModelSize, forwards: float, n_test: int, tokens: int, *, controls: bool = False
) -> float:
    """Of finding a circuit by so many passes of one example, and of measuring it on n_test pairs.

    Args:
        controls: with the random rankings that all methods of a column share.
    """
    plain, circuit = token_operations(size)
    measuring = n_test * SIZES * (RANKINGS + CONTROLS * controls)
    return tokens * (forwards * plain + measuring * circuit)


@cache
def speed(device: str) -> float:
    """Operations a second of this machine, by products of matrices."""
    a = torch.rand(SIDE, SIDE, device=device)
    took: list[float] = []
    for _ in range(3):
        begin = time.perf_counter()
        (a @ a).sum().item()
        took.append(time.perf_counter() - begin)
    return 2.0 * SIDE**3 / min(took)


def minutes(operations: float, device: str) -> float:
    """Minutes that so many operations take here."""
    return operations / speed(device) / 60


def duration(minutes: float) -> str:
    """Minutes in words."""
    hours = minutes / 60
    if minutes < 90:
        return f"about {max(1, round(minutes))} min"
    return f"about {hours:,.0f} h" if hours >= 10 else f"about {hours:.1f} h"


def cost_text(minutes: float, gigabytes: float) -> str:
    """An estimate in words."""
    return f"{duration(minutes)} and {gigabytes:.1f} GB on this machine"
