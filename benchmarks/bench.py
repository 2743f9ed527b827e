"""How long the jobs take, in multiples of one plain Hugging Face forward of the clean batch.

Absolute times are not stable from machine to machine; ratios measured in one process are. Every
job is timed several times, alternating with the plain forward, and the median ratio is printed
beside what it must reach. Memory is the peak of the process above the loaded model's; of long
prompts it is that of the whole process, beside the time in multiples of plain forwards of the same
prompts one by one.

    python benchmarks/bench.py [--model NAME ...] [--pairs 10] [--tokens 20] [--repeats 5]
                               [--device cuda] [--dtype bfloat16]

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
from typing import NamedTuple

import numpy as np
import torch

from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.methods.exact_patching import ExactPatching, Patching
from mechassay.circuits.methods.mask_learning import SubnetworkProbing
from mechassay.circuits.methods.random import RandomPaths
from mechassay.circuits.series import FRACTIONS
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.models.generation import final_streams
from mechassay.models.identity import ModelIdentity
from mechassay.models.model import Model, load_model, make_model
from mechassay.models.objectives import LogitDiff
from mechassay.prompts.batch import Batch
from mechassay.utils.display import SILENT

SAMPLED_BLOCKS = 12
LONG = 2, 2000
"""Pairs, and their tokens."""


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


def plain_model(name: str, device: str = "cpu", dtype: str = "float32") -> Model:
    """The model by name; `gpt2-small-random` is GPT-2 small's shape with random weights."""
    if name != "gpt2-small-random":
        return load_model(name, device=device, dtype=dtype)
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        hf = GPT2LMHeadModel(GPT2Config())
    return make_model(hf.to(device=device, dtype=getattr(torch, dtype)), name=name)


def random_pairs(model: Model, n_pairs: int, n_tokens: int) -> Batch:
    """Random prompts whose counterfactuals differ everywhere:
    no work can be shared between the two runs.
    """
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.decoder.embedding.shape[0]
    clean, other = torch.randint(0, vocabulary, (2, n_pairs, n_tokens), generator=generator)
    answers, foils = torch.randperm(vocabulary, generator=generator)[: 2 * n_pairs].view(2, -1)
    return model.batch(Batch.from_tokens(clean, other, answers, foils))


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
    step, n_steps = mask_step(model, batch, len(batch))
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
        Job("a step of a trained mask on every edge", step, 6, 4.5, "", divide_by=n_steps),
        Job(
            "the digests of the model",
            lambda: ModelIdentity.of(model.hf, model.tokenizer),
            2,
            1,
            "",
        ),
        Job("a look for edits of the weights", model.read_again, 0.02, 0.012, ""),
        Job("a hundred continuations of two tokens", years(model, batch), 2, 1.7, "100"),
    ]


def mask_step(model: Model, batch: Batch, n_pairs: int) -> tuple[Callable[[], object], int]:
    """Steps of subnetwork probing on some pairs, and how many."""
    pairs = batch.select(range(n_pairs))
    method = SubnetworkProbing(steps=4, batch_size=n_pairs)
    return lambda: method.score(model, pairs, progress=SILENT), method.steps


def years(model: Model, batch: Batch) -> Callable[[], object]:
    """What scores all two-digit years after each prompt where digits are tokens: log-probabilities
    after the prompt and after each of ten first digits. The public way is a row a year.
    """
    decoder = model.decoder
    contexts = [
        (*prompt, *rest)
        for prompt in batch.clean.tolist()
        for rest in ((), *((digit,) for digit in range(10)))
    ]

    def run() -> object:
        with torch.no_grad():
            return [
                decoder.readout(part).all().logsumexp(dim=-1)
                for _, streams in final_streams(decoder, contexts)
                for part in streams.split(64)
            ]

    return run


def sampled_exact_patching(model: Model, batch: Batch) -> tuple[Callable[[], object], float]:
    """Exact patching of evenly spread blocks of edges, and how many edges
    (of the whole batch) that is.
    """
    method = ExactPatching()
    blocks = list(method.blocks(model, batch, method.stack_tokens))
    step = max(1, len(blocks) // SAMPLED_BLOCKS)
    blocks = blocks[step // 2 :: step]
    shape = model.graph.n_writers, model.graph.n_readers
    total = torch.zeros(shape, dtype=model.accumulator, device=model.device)

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
    """Seconds of one call, to the end of what it started on a GPU."""
    begin = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
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


def held_memory(device: torch.device) -> float:
    """Bytes of the process, or those that the GPU's allocator has given out."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak_memory(run: Callable[[], object], device: torch.device) -> float:
    """Most bytes held above what was held before: of the GPU, as its allocator counts them, or of
    the process, sampled every 5 ms.
    """
    gc.collect()
    base, peak, stop = held_memory(device), 0.0, threading.Event()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - base

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.005):
            peak = max(peak, held_memory(device))

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    stop.set()
    thread.join()
    return max(0.0, peak - base)


def gemm_speed(model: Model) -> float:
    """GFLOP/s of a large matrix product in the model's dtype, the ceiling of its device."""
    size = 8192 if model.device.type == "cuda" else 2048
    a = torch.randn(size, size, device=model.device, dtype=model.dtype)
    a @ a
    return 2 * size**3 / min(timed(lambda: a @ a) for _ in range(5)) / 1e9


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


MEASURED: dict[str, Callable[[Model, Batch], object]] = {
    "EAP": lambda model, batch: EAP().score(model, batch, progress=SILENT),
    "EAP-IG": lambda model, batch: EAPIGInputs(steps=5).score(model, batch, progress=SILENT),
    "one circuit of 1 % of edges": lambda model, batch: evaluate(
        model, RandomPaths().draw(model.graph).top(0.01).pruned(), batch, progress=SILENT
    ),
}
"""Jobs whose memory is measured; the circuit is of random paths, all of whose edges are live."""


class Measured(NamedTuple):
    """Bytes beyond the model's and of the whole process, and seconds of the job and of forwards."""

    beyond: float
    whole: float
    seconds: float
    forwards: float


def in_new_process(
    name: str, args: argparse.Namespace, job: str, pairs: int, tokens: int
) -> Measured:
    """What a job needs in a process of its own, so that nothing is left over from other jobs."""
    command = [
        sys.executable,
        __file__,
        "--model",
        name,
        "--pairs",
        str(pairs),
        "--tokens",
        str(tokens),
        "--device",
        args.device,
        "--dtype",
        args.dtype,
        "--memory",
        job,
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Measured(*map(float, lines.strip().splitlines()[-1].split()))


def device_name(model: Model) -> str:
    """The GPU's name, or "cpu"."""
    if model.device.type != "cuda":
        return str(model.device)
    return torch.cuda.get_device_name(model.device)


def print_table(name: str, args: argparse.Namespace) -> None:
    """One model's table, row by row as it is measured."""
    model = plain_model(name, args.device, args.dtype)
    batch = random_pairs(model, args.pairs, args.tokens)

    def forward() -> object:
        with torch.no_grad():
            return model.hf(batch.clean, use_cache=False).logits

    gemm = gemm_speed(model)
    seconds = min(timed(forward) for _ in range(5))
    share = forward_gflop(model, batch) / seconds / gemm
    out = sys.stdout.write
    out(
        f"\n{name}: {args.pairs} pairs of {args.tokens} tokens, {args.dtype} on"
        f" {device_name(model)}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, "
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
    gigabytes = in_new_process(name, args, "EAP-IG", args.pairs, args.tokens).beyond / 2**30
    out(
        f"| peak memory over the model's own, EAP-IG | 3.8 GB | 0.8 GB | 0.4 GB | **{gigabytes:.2f}"
        " GB** |\n"
    )
    known, (pairs, tokens) = model.decoder.positions, LONG
    for job in MEASURED if known is None or len(known) >= tokens else ():
        found = in_new_process(name, args, job, pairs, tokens)
        out(
            f"| {job}, {pairs} pairs of {tokens:,} tokens: peak of the process, time | | 12 GB | |"
            f" **{found.whole / 2**30:.1f} GB, {found.seconds / found.forwards:.1f}x** |\n"
        )
        sys.stdout.flush()


def print_memory(name: str, args: argparse.Namespace) -> None:
    """What a job needs (`Measured`), after plain forwards of one example at a time."""
    model = plain_model(name, args.device, args.dtype)
    batch = random_pairs(model, args.pairs, args.tokens)

    def forwards() -> None:
        with torch.no_grad():
            for row in batch.clean:
                model.hf(row[None], use_cache=False)

    forwards()
    plain, held = timed(forwards), held_memory(model.device)
    begin = time.perf_counter()
    beyond = peak_memory(lambda: MEASURED[args.memory](model, batch), model.device)
    seconds = time.perf_counter() - begin
    sys.stdout.write(f"{beyond} {held + beyond} {seconds} {plain}\n")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["gpt2-small-random", "smollm2-135m"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--memory", choices=MEASURED, help="print what this job needs, in bytes and s, and stop"
    )
    args = parser.parse_args()
    for name in args.model:
        if args.memory:
            print_memory(name, args)
        else:
            print_table(name, args)


if __name__ == "__main__":
    main()
