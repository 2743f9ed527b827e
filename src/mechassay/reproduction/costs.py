"""What a cell takes on this machine, estimated from shapes before anything is downloaded.

A forward pass of a token multiplies every weight but the embedding once: two operations a weight. A
circuit's pass besides adds up what every edge carries, two operations an edge and dimension. Passes
are those that a method says it takes (`Method.forwards`) and those of measuring:

    sizes x rankings (by value and by magnitude); with the row Random ten controls of its column

over the speed of this machine, which a product of matrices tells, times `EFFICIENCY`. That is above
1 because beginnings of prompts are computed once and small circuits take less. It was measured on
random weights of GPT-2's shape and 16 pairs of IOI: EAP took 53 s and its controls 141 s where the
count says 49 and 214. An estimate is right to a factor of about three on a CPU. On a GPU, which
waits for Python, a cell takes longer. Memory is the weights in the dtype of the cell, plus the
working set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from mechassay.models.graph import Graph
from mechassay.models.model import check_dtype

EFFICIENCY = 2.0
SIZES = 9
"""Sizes of circuits between the empty and the whole one."""
RANKINGS = 2
CONTROLS = 10
"""Random rankings, five of each kind."""
SIDE = 1024
WORKING_SET = 1.0
"""GB that a run takes beside the weights, about."""


def weights(shape: Mapping[str, Any]) -> int:
    """Numbers of a decoder of this shape, norms and biases left out."""
    width, heads = shape["width"], shape["heads"]
    key_heads = shape.get("key_heads", heads)
    attention = width * shape["head"] * (2 * heads + 2 * key_heads)
    mlp = width * shape["hidden"] * (3 if shape["gated"] else 2)
    embeddings = width * shape["vocabulary"] * (1 if shape["tied"] else 2)
    return shape["layers"] * (attention + mlp) + embeddings


def graph_of(shape: Mapping[str, Any]) -> Graph:
    """Writers, readers and edges of a decoder of this shape."""
    return Graph(shape["layers"], shape["heads"], mlp=shape["hidden"] > 0)


def gigabytes(shape: Mapping[str, Any]) -> float:
    """Memory of a run."""
    return weights(shape) * torch.finfo(check_dtype(shape["dtype"])).bits / 8e9 + WORKING_SET


def token_operations(shape: Mapping[str, Any]) -> tuple[float, float]:
    """Of a plain pass of one token, and of a circuit's."""
    embedding = shape["width"] * shape["vocabulary"]
    plain = 2.0 * (weights(shape) - embedding * (0 if shape["tied"] else 1))
    return plain, plain + 2.0 * graph_of(shape).n_edges * shape["width"]


def circuit_operations(
    shape: Mapping[str, Any], forwards: float, n_test: int, tokens: int, *, controls: bool = False
) -> float:
    """Of finding a circuit by so many passes of one example, and of measuring it on n_test pairs.

    Args:
        controls: with the random rankings that all methods of a column share.
    """
    plain, circuit = token_operations(shape)
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
    return operations / (speed(device) * EFFICIENCY) / 60


def cost_text(minutes: float, gigabytes: float) -> str:
    """An estimate in words."""
    hours = minutes / 60
    long = f"{max(1, round(minutes))} min"
    if minutes >= 90:
        long = f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
    return f"about {long} and {gigabytes:.1f} GB on this machine"
