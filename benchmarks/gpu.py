"""What jobs cost on a GPU: multiples of a plain forward, seconds and memory, for four shapes.

The shapes are those of GPT-2 small, Qwen2.5-0.5B, Gemma-2-2B and Llama-3-8B, with random weights.
A job runs once to warm up, and its multiple is the median of some repeats, each over the plain
forwards timed before and after it. Memory is the peak of the allocator above what was held before.
Pairs are random tokens that differ everywhere, so clean and other runs share no work; pairs of a
task share their first tokens, and cost less.

    python benchmarks/gpu.py [--shape gpt2 qwen2.5-0.5b gemma-2-2b llama-3-8b] [--pairs 100]
                             [--tokens 20] [--repeats 3] [--dtype bfloat16] [--agreement]

The share of peak is that of a plain forward: its matrix products against a large one in the same
dtype. `--agreement` compares rankings of EAP-IG-inputs in bf16 with those in fp32, of the same
weights: Jaccard of the circuits of 1 % and the differences of CPR and CMA.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench import (
    device_name,
    forward_gflop,
    gemm_speed,
    mask_step,
    peak_memory,
    random_pairs,
    ratio,
    sampled_exact_patching,
    timed,
)

from mechassay.circuits.evaluation.faithfulness import evaluate, faithfulness_curve
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.series import FRACTIONS
from mechassay.errors import MechassayError
from mechassay.features.das import DAS
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.site import Site
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.computing import computing
from mechassay.models.forward import Contrast
from mechassay.models.model import Model, make_model
from mechassay.models.objectives import LogitDiff
from mechassay.prompts.batch import Batch
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.utils.display import SILENT

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {}),
    "qwen2.5-0.5b": (
        "Qwen2Config",
        {
            "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-2-2b": (
        "Gemma2Config",
        {
            "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256,
        },
    ),
    "llama-3-8b": (
        "LlamaConfig",
        {
            "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip


def random_model(shape: str, device: str, dtype: str) -> Model:
    """A model of a shape with random weights, drawn on its device."""
    import transformers

    kind, settings = SHAPES[shape]
    config = getattr(transformers, kind)(**settings)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        hf = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return make_model(hf.requires_grad_(False), name=shape)


def das_step(model: Model, batch: Batch, n_rows: int) -> tuple[Callable[[], object], int]:
    """Steps of DAS at the last token of the middle layer, and how many."""
    interchanges = InterchangeBatch.from_tokens(
        batch.clean[:n_rows].cpu(),
        batch.counterfactual[:n_rows].cpu(),
        batch.answers[:n_rows, 0].cpu(),
    )
    site = Site(len(model.decoder.layers) // 2, batch.clean.shape[1] - 1)
    finder = DAS(k=16, steps=8, batch_size=n_rows)
    return lambda: finder.fit(model, interchanges, [site], progress=SILENT), 8


Row = tuple[str, Callable[[], object], float, int]


def rows(model: Model, batch: Batch) -> Iterator[Row]:
    """Of each job: its name, the job, what its seconds are divided by, and its pairs."""
    n_pairs = len(batch)
    yield "EAP", lambda: EAP().score(model, batch, progress=SILENT), 1, n_pairs
    attribution = EAPIGInputs(steps=5)
    yield "EAP-IG-5", lambda: attribution.score(model, batch, progress=SILENT), 1, n_pairs
    scores = attribution.score(model, batch, progress=SILENT)
    circuit = scores.top(0.01, by="magnitude").pruned()
    plan = compile_circuit(model.graph, circuit.edges, post_norm=model.decoder.has_post_norm)
    few = batch.select(range(min(n_pairs, 10)))
    contrast = Contrast.run(model.decoder, few)

    @torch.no_grad()
    def one_circuit() -> object:
        return LogitDiff()(run_circuit(model.decoder, contrast, plan), few)

    yield "one circuit of 1 %, caches warm", one_circuit, 1, len(few)
    circuits = [scores.top(size, by="magnitude").pruned() for size in FRACTIONS]
    yield (
        "ten sizes of one ranking",
        lambda: evaluate(model, circuits, few, progress=SILENT),
        1,
        len(few),
    )
    exact, n_edges = sampled_exact_patching(model, few)
    yield "exact patching, an edge", exact, n_edges, len(few)
    training, steps = mask_step(model, batch, 4)
    yield "mask step (4 pairs)", training, steps, 4

    def compiled_training() -> object:
        with computing(compiled=True):
            return training()

    yield "mask step (4 pairs), compiled", compiled_training, steps, 4
    fit, steps = das_step(model, batch, 16)
    yield "DAS step (16 rows, one site)", fit, steps, 16
    yield (
        "patching map, all layers x tokens",
        lambda: patch(model, few, progress=SILENT),
        1,
        len(few),
    )


def plain_forward(model: Model, tokens: torch.Tensor) -> Callable[[], object]:
    """A plain forward of Hugging Face's model with the logits of all positions."""

    def run() -> object:
        with torch.no_grad():
            return model.hf(tokens, use_cache=False).logits

    return run


def print_table(shape: str, args: argparse.Namespace) -> None:
    """One shape's table, row by row as it is measured."""
    model = random_model(shape, args.device, args.dtype)
    batch = random_pairs(model, args.pairs, args.tokens)
    forward = plain_forward(model, batch.clean)
    gemm = gemm_speed(model)
    forward()
    seconds = min(timed(forward) for _ in range(5))
    share = forward_gflop(model, batch) / seconds / gemm
    print(
        f"\n{shape}, {model.graph.n_edges:,} edges: {args.pairs} pairs of {args.tokens} tokens,"
        f" {args.dtype} on {device_name(model)}, torch {torch.__version__}; a plain forward of all"
        f" pairs takes {1000 * seconds:.1f} ms, {100 * share:.0f} % of {gemm / 1000:,.0f} TFLOP/s\n"
    )
    print("| job | pairs | forwards of as many pairs | seconds | GB |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name, run, divide_by, n_pairs in rows(model, batch):
        plain = plain_forward(model, batch.clean[:n_pairs])
        try:
            held = peak_memory(run, model.device) / 2**30
            taken = [timed(run) / divide_by for _ in range(args.repeats)]
            multiple = ratio(run, plain, args.repeats) / divide_by
        except (MechassayError, torch.OutOfMemoryError) as error:
            print(f"| {name} | {n_pairs} | | {str(error).splitlines()[0]} | |", flush=True)
            continue
        cost = f"{multiple:.2f} | {statistics.median(taken):.3g}"
        print(f"| {name} | {n_pairs} | {cost} | {held:.2f} |", flush=True)
        if "exact" in name:
            seconds_of_all = statistics.median(taken) * model.graph.n_edges
            print(f"| exact patching, all edges | {n_pairs} | | {seconds_of_all:.0f} | |")


def print_agreement(shape: str, args: argparse.Namespace) -> None:
    """How the ranking of EAP-IG-inputs in bf16 agrees with that in fp32."""
    half = random_model(shape, args.device, "bfloat16")
    batch = random_pairs(half, 20, args.tokens)
    attribution = EAPIGInputs(steps=5)
    measured = []
    rankings = [attribution.score(half, batch, progress=SILENT)]
    full = make_model(half.hf.float(), name=shape)
    rankings.append(attribution.score(full, batch, progress=SILENT))
    for scores in rankings:
        curve = faithfulness_curve(full, scores, batch, progress=SILENT)
        measured.append({"CPR": curve.cpr, "CMA": curve.cma})
    one, other = (scores.top(0.01, by="magnitude").edges for scores in rankings)
    jaccard = float((one & other).sum() / (one | other).sum())
    differences = {name: measured[0][name] - measured[1][name] for name in measured[0]}
    texts = (
        f"{name} {'undefined' if math.isnan(value) else f'{value:+.2g}'}"
        for name, value in differences.items()
    )
    print(f"| {shape} | {len(batch)} | Jaccard {jaccard:.3f} | {' | '.join(texts)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--agreement", action="store_true", help="bf16 against fp32 instead")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no GPU here; --device cpu runs the same jobs on the processor.")
    for shape in args.shape:
        (print_agreement if args.agreement else print_table)(shape, args)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
