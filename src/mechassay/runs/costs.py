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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from mechassay.models.graph import Graph
from mechassay.models.memory import CPU_BUDGET
from mechassay.models.model import Model, check_dtype

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
    """

    models: tuple[ModelCost, ...]
    device: str
    libraries: float
    free: int | None
    notes: tuple[str, ...] = ()

    @property
    def gigabytes(self) -> float:
        """At the peak: of the whole process, or on a GPU of what it puts there."""
        own = self.libraries if self.device == "cpu" else 0.0
        return (own + max((part.held for part in self.models), default=0.0)) / GB

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


def step_seconds(step: CostStep, device: str) -> float:
    """Seconds of a step on this machine."""
    return step.seconds + (step.operations / speed(device) if step.operations else 0.0)


def gigabytes(size: ModelSize) -> float:
    """Memory of a run on a CPU whose chunks are as large as they may be."""
    return (LIBRARIES + PRODUCTS + size.bytes + LARGEST_STEP) / GB


def token_operations(size: ModelSize, share: float = SHARED) -> tuple[float, float]:
    """Of a pass of one token, and of a circuit's, the mean over sizes.

    Args:
        share: of the columns that are run.
    """
    plain, edges = 2.0 * size.body, 2.0 * size.graph.n_edges * size.width
    return share * plain, share * (LIVE * plain + SUMS * edges)


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
