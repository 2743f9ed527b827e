"""What edges cost without a model: the graph of Llama-3.1-8B's shape,
scored at random, cut, saved, loaded, translated.

    python benchmarks/graphs.py

1,592,881 edges. Every line is timed on its own; memory is that of the whole process, libraries
included.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from mechassay.circuits.graph_files import read_graph_file, write_graph_file
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.series import FRACTIONS
from mechassay.models.graph import Graph

N_LAYERS, N_HEADS, D_MODEL = 32, 32, 4096
T = TypeVar("T")


def timed(label: str, work: Callable[[], T]) -> T:
    """Do some work and print how long it took."""
    begin = time.perf_counter()
    done = work()
    sys.stdout.write(f"| {label} | {time.perf_counter() - begin:.2f} s |\n")
    return done


def say_memory(when: str) -> None:
    """Print the peak memory of the process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**30 if sys.platform == "darwin" else 2**20
    )
    sys.stdout.write(f"| peak memory of the process, {when} | {peak:.2f} GB |\n")


def main() -> None:
    """Print the table."""
    sys.stdout.write("| job | time |\n| --- | --- |\n")
    graph = timed("build the graph", lambda: Graph(N_LAYERS, N_HEADS))
    edges = timed("all edges and their shares of readers", lambda: int(graph.legal.sum()))
    values = torch.randn(
        graph.n_writers, graph.n_readers, generator=torch.Generator().manual_seed(0)
    )
    scores = timed("random scores", lambda: EdgeScores.of(graph, values))
    timed(
        "ten circuits by magnitude",
        lambda: [scores.top(fraction, by="magnitude") for fraction in FRACTIONS],
    )
    timed(
        "ten circuits by value, pruned",
        lambda: [scores.top(fraction).pruned() for fraction in FRACTIONS],
    )
    timed("one circuit of 1 %, grown from the logits", lambda: scores.greedy(0.01, by="magnitude"))
    with tempfile.TemporaryDirectory() as folder:
        own, theirs = Path(folder) / "scores.safetensors", Path(folder) / "importances.json"
        timed("save the scores", lambda: scores.save(own))
        timed("load the scores", lambda: EdgeScores.load(own, graph))
        say_memory("so far")
        timed(
            "write MIB's importances.json",
            lambda: write_graph_file(theirs, scores, d_model=D_MODEL),
        )
        timed("read it again", lambda: read_graph_file(theirs))
        say_memory("with MIB's file")
    sys.stdout.write(f"\n{edges:,} edges\n")


if __name__ == "__main__":
    main()
