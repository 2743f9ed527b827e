"""How long the jobs take, in multiples of one plain Hugging Face forward of the clean batch.

Absolute times are not stable from machine to machine; ratios measured in one process are. Every
job is timed several times, alternating with the plain forward, and the median ratio is printed
beside what it must reach. Memory is the peak of the process above the loaded model's.

    python benchmarks/bench.py [--model NAME ...] [--pairs 10] [--tokens 20] [--repeats 5]

Exact patching is timed on a systematic sample of all edges: twelve blocks of edges, evenly spread
over layers, examples and kinds of reader.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mechassay.circuits.faithfulness import FRACTIONS, evaluate
from mechassay.circuits.methods.eap import EAP
from mechassay.circuits.methods.eap_ig_inputs import EAPIGInputs
from mechassay.circuits.methods.exact import ExactPatching
from mechassay.circuits.methods.patching import Patching
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.circuit_plan import compile_circuit
from mechassay.models.model import Model, load_model, make_model
from mechassay.models.trace import Contrast
from mechassay.objectives import LogitDiff
from mechassay.pairs import Batch
from mechassay.progress import SILENT

SAMPLED_BLOCKS = 12


@dataclass(frozen=True)
class Job:
    """One row of the table:
    what to run, and the multiples of a forward it must and should reach.
    """

    name: str
    run: Callable[[], object]
    must: float
    stretch: float
    public: str
    divide_by: float = 1.0


def plain_model(name: str) -> Model:
    """The model by name; `gpt2-small-random` is GPT-2 small's shape with random weights."""
    if name != "gpt2-small-random":
        return load_model(name)
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        return make_model(GPT2LMHeadModel(GPT2Config()), name=name)


def random_pairs(model: Model, n_pairs: int, n_tokens: int) -> Batch:
    """Random prompts whose counterfactuals differ everywhere:
    no work can be shared between the two runs.
    """
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.decoder.embedding.shape[0]
    clean, other = torch.randint(0, vocabulary, (2, n_pairs, n_tokens), generator=generator)
    answers, foils = torch.randperm(vocabulary, generator=generator)[: 2 * n_pairs].view(2, -1)
    return Batch.from_tokens(clean, other, answers, foils)


def jobs(model: Model, batch: Batch) -> list[Job]:
    """The table's rows."""
    scores = EAPIGInputs(steps=5).score(model, batch, progress=SILENT)
    contrast = Contrast.run(model.decoder, batch)
    plans = {
        p: compile_circuit(
            model.graph,
            scores.top(p, by="magnitude").pruned().edges,
            post_norm=model.decoder.has_post_norm,
        )
        for p in (0.01, 0.5)
    }
    circuits = [scores.top(p, by="magnitude").pruned() for p in FRACTIONS]
    objective = LogitDiff()

    def circuit(p: float) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return objective(run_circuit(model.decoder, contrast, plans[p]), batch)

        return run

    exact, n_edges = sampled_exact_patching(model, batch)
    return [
        Job(
            f"EAP, all {model.graph.n_edges:,} edges",
            lambda: EAP().score(model, batch, progress=SILENT),
            5,
            4,
            "42",
        ),
        Job(
            "EAP-IG-inputs, 5 steps",
            lambda: EAPIGInputs(steps=5).score(model, batch, progress=SILENT),
            15,
            12,
            "150",
        ),
        Job("one circuit of 1 % of edges, caches warm", circuit(0.01), 0.7, 0.2, "12-19"),
        Job("one circuit of 50 % of edges, caches warm", circuit(0.5), 2.5, 1.8, "13"),
        Job(
            "ten sizes of one ranking, caches included",
            lambda: evaluate(model, circuits, batch, progress=SILENT),
            14,
            10,
            "about 150",
        ),
        Job("exact patching, per edge", exact, 0.6, 0.4, "about 26", divide_by=n_edges),
    ]


def sampled_exact_patching(model: Model, batch: Batch) -> tuple[Callable[[], object], float]:
    """Exact patching of evenly spread blocks of edges, and how many edges
    (of the whole batch) that is.
    """
    method = ExactPatching()
    blocks = list(method.blocks(model, batch, method.stack_tokens))
    step = max(1, len(blocks) // SAMPLED_BLOCKS)
    blocks = blocks[step // 2 :: step]
    total = torch.zeros(model.graph.n_writers, model.graph.n_readers)

    @torch.no_grad()
    def run() -> object:
        for block in blocks:
            method.add(
                Patching(model, Contrast.run(model.decoder, batch.select(block.rows)), LogitDiff()),
                block,
                total,
            )
        return total

    return run, sum(block.n_scores for block in blocks) / len(batch)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def ratio(run: Callable[[], object], forward: Callable[[], object], repeats: int) -> float:
    """Median over repeats of a job's time,
    each divided by the forwards timed right before and after it.
    """
    ratios: list[float] = []
    for _ in range(repeats):
        before = min(timed(forward) for _ in range(3))
        taken = timed(run)
        ratios.append(taken / min(before, *(timed(forward) for _ in range(3))))
    return float(np.median(ratios))


def peak_memory(run: Callable[[], object]) -> float:
    """Most bytes that the process held above what it held before, sampled every 5 ms."""
    page = resource.getpagesize()

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * page

    gc.collect()
    base, peak, stop = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.005):
            peak = max(peak, resident())

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    stop.set()
    thread.join()
    return max(0, peak - base)


def gemm_speed() -> float:
    """GFLOP/s of a large fp32 matrix product, the ceiling of this machine."""
    a = torch.randn(2048, 2048)
    a @ a
    return 2 * 2048**3 / min(timed(lambda: a @ a) for _ in range(5)) / 1e9


def forward_gflop(model: Model, batch: Batch) -> float:
    """Floating-point operations of a plain forward's matrix products, in units of 1e9."""
    weights = (
        sum(p.numel() for p in model.hf.parameters() if p.ndim == 2)
        - model.decoder.embedding.numel()
    )
    tied = model.decoder.embedding.data_ptr() == model.decoder.unembedding.data_ptr()
    return (
        2
        * (weights + (model.decoder.unembedding.numel() if tied else 0))
        * batch.clean.numel()
        / 1e9
    )


def memory_in_new_process(name: str, args: argparse.Namespace) -> float:
    """Peak memory of EAP-IG, in a process of its own so
    that nothing is left over from other jobs.
    """
    command = [
        sys.executable,
        __file__,
        "--model",
        name,
        "--pairs",
        str(args.pairs),
        "--tokens",
        str(args.tokens),
        "--memory",
    ]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True)
        .stdout.strip()
        .splitlines()[-1]
    )


def print_table(name: str, args: argparse.Namespace) -> None:
    """One model's table, row by row as it is measured."""
    model = plain_model(name)
    batch = random_pairs(model, args.pairs, args.tokens)

    def forward() -> object:
        with torch.no_grad():
            return model.hf(batch.clean, use_cache=False).logits

    gemm = gemm_speed()
    seconds = min(timed(forward) for _ in range(5))
    share = forward_gflop(model, batch) / seconds / gemm
    out = sys.stdout.write
    out(
        f"\n{name}: {args.pairs} pairs of {args.tokens} tokens, fp32, {torch.get_num_threads()}"
        f" threads, {os.cpu_count()} cores, "
    )
    out(
        f"{platform.machine()}, torch {torch.__version__}; one plain forward: {seconds * 1000:.0f}"
        " ms, "
    )
    out(f"{100 * share:.0f} % of the machine's GEMM speed ({gemm:.0f} GFLOP/s)\n\n")
    out(
        "| job | public code | must reach | stretch | measured |\n| --- | --- | --- | --- | --- |\n"
    )
    for job in jobs(model, batch):
        measured = ratio(job.run, forward, 1 if job.divide_by > 1 else args.repeats) / job.divide_by
        out(
            f"| {job.name} | {job.public}x | {job.must}x | {job.stretch}x | **{measured:.2f}x** |\n"
        )
        sys.stdout.flush()
    gigabytes = memory_in_new_process(name, args) / 2**30
    out(
        f"| peak memory over the model's own, EAP-IG | 3.8 GB | 0.8 GB | 0.4 GB | **{gigabytes:.2f}"
        " GB** |\n"
    )


def print_memory(name: str, args: argparse.Namespace) -> None:
    """Peak memory of EAP-IG in bytes, after a plain forward."""
    model = plain_model(name)
    batch = random_pairs(model, args.pairs, args.tokens)
    with torch.no_grad():
        model.hf(batch.clean)
    sys.stdout.write(
        f"{peak_memory(lambda: EAPIGInputs(steps=5).score(model, batch, progress=SILENT))}\n"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["gpt2-small-random", "smollm2-135m"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--memory", action="store_true", help="print the peak memory of EAP-IG in bytes and stop"
    )
    args = parser.parse_args()
    for name in args.model:
        if args.memory:
            print_memory(name, args)
        else:
            print_table(name, args)


if __name__ == "__main__":
    main()
