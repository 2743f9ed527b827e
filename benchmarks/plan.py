"""How right `mechassay plan` is of memory: predicted and measured peaks of twelve settings.

    python benchmarks/plan.py [--others] [--shape gpt2 ...]

Each setting is a process of its own, which predicts first, from the config alone, then loads a
model with random weights from a folder and does one step; what is measured is its peak resident
memory (VmHWM, on Linux). Prompts are random tokens that differ everywhere. `--others` has settings
that no constant was measured on: other numbers of pairs and tokens, another dtype, post-norms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.methods.mask_learning import SubnetworkProbing
from mechassay.circuits.methods.random import Random
from mechassay.discovery.costs import measuring_bytes, scoring_bytes, total_bytes
from mechassay.discovery.job import CircuitsJob
from mechassay.models.memory import CPU_BUDGET, EXAMPLE_BUDGET
from mechassay.models.model import Model, load_model, outline
from mechassay.prompts.batch import Batch
from mechassay.runs.costs import PromptSizes, model_size
from mechassay.utils.display import SILENT

STEPS = ("EAP", "EAP-IG-inputs, 5 steps", "a circuit of 50 % of edges", "mask step")
MASKED = 10
"""Pairs of a mask step, of all that it draws from."""
SHAPES = ("gpt2", "smollm2-135m", "qwen2.5-0.5b")
TWELVE = [
    (shape, step, 20 if shape == SHAPES[2] else 100, 20, "float32")
    for shape in SHAPES
    for step in STEPS
]
OTHERS = [
    ("gpt2", STEPS[0], 4, 20, "float32"),
    ("gpt2", STEPS[1], 6, 200, "float32"),
    ("smollm2-135m", STEPS[0], 100, 7, "float32"),
    ("smollm2-135m", STEPS[2], 30, 60, "float32"),
    ("smollm2-135m", STEPS[3], 8, 40, "float32"),
    ("smollm2-135m", STEPS[0], 20, 20, "bfloat16"),
    ("gemma-2-small", STEPS[1], 40, 20, "float32"),
    ("gemma-2-small", STEPS[3], 20, 20, "float32"),
]


def hugging_face(shape: str) -> Any:
    """A model with random weights; `gemma-2-small` is half as deep and wide as Gemma-2-2B."""
    import transformers as tf

    makers: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config()),
        "smollm2-135m": lambda: tf.LlamaForCausalLM(
            tf.LlamaConfig(
                vocab_size=49152,
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                tie_word_embeddings=True,
            )
        ),
        "qwen2.5-0.5b": lambda: tf.Qwen2ForCausalLM(
            tf.Qwen2Config(
                vocab_size=151936,
                hidden_size=896,
                intermediate_size=4864,
                num_hidden_layers=24,
                num_attention_heads=14,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            )
        ),
        "gemma-2-small": lambda: tf.Gemma2ForCausalLM(
            tf.Gemma2Config(
                vocab_size=64000,
                hidden_size=1152,
                intermediate_size=4608,
                num_hidden_layers=13,
                num_attention_heads=8,
                num_key_value_heads=4,
                head_dim=128,
            )
        ),
    }
    torch.manual_seed(0)
    return makers[shape]()


def random_pairs(model: Model, n_pairs: int, n_tokens: int) -> Batch:
    """Random prompts whose counterfactuals differ everywhere."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.decoder.embedding.shape[0]
    clean, other = torch.randint(0, vocabulary, (2, n_pairs, n_tokens), generator=generator)
    answers, foils = torch.randperm(vocabulary, generator=generator)[: 2 * n_pairs].view(2, -1)
    return Batch.from_tokens(clean, other, answers, foils)


def one(folder: str, step: str, n_pairs: int, n_tokens: int, dtype: str) -> dict[str, float]:
    """Predict a step, do it, and say both."""
    # As a run does: its job is imported and made before anything is estimated.
    _ = CircuitsJob((folder,), methods=("eap",))
    libraries = float(psutil.Process().memory_info().rss)
    empty, prompts = outline(folder, dtype=dtype), PromptSizes(n_pairs, n_tokens, 1.0)
    methods = {
        STEPS[0]: EAP(),
        STEPS[1]: EAPIGInputs(steps=5),
        STEPS[3]: SubnetworkProbing(steps=3, batch_size=min(n_pairs, MASKED)),
    }
    method = methods.get(step)
    if method is None:
        held = measuring_bytes(empty.decoder, prompts, CPU_BUDGET, EXAMPLE_BUDGET, 1)
    else:
        place = torch.device("cpu")
        held = scoring_bytes(method, empty.decoder, prompts, CPU_BUDGET, EXAMPLE_BUDGET, place)
    predicted = total_bytes(model_size(empty, folder), libraries, held)
    model = load_model(folder, dtype=dtype)
    batch, before = random_pairs(model, n_pairs, n_tokens), peak()
    begin = time.perf_counter()
    if method is None:
        circuit = Random(seed=0).draw(model.graph).top(0.5).pruned()
        evaluate(model, circuit, batch, progress=SILENT)
    else:
        method.score(model, batch, progress=SILENT)
    seconds = time.perf_counter() - begin
    return {
        "predicted": predicted,
        "measured": peak(),
        "held": held,
        "beyond": peak() - before,
        "seconds": seconds,
    }


def peak() -> float:
    """Bytes that this process has held at most; `ru_maxrss` begins with its parent's."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024.0 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def print_table(settings: Sequence[tuple[str, str, int, int, str]]) -> None:
    """A row for each setting, as it is measured."""
    out = sys.stdout.write
    out("| shape | step | pairs x tokens | dtype | predicted, GB | measured, GB | error |")
    out(" beyond the model: predicted, measured |\n" + "| --- " * 8 + "|\n")
    errors: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        for shape, step, n_pairs, n_tokens, dtype in settings:
            folder = Path(place) / shape
            if not folder.is_dir():
                hugging_face(shape).save_pretrained(folder)
            command = [sys.executable, __file__, "--one", str(folder), step]
            command += [str(n_pairs), str(n_tokens), dtype]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            own = json.loads(done.stdout.splitlines()[-1])
            error = own["predicted"] / own["measured"] - 1
            errors.append(abs(error))
            out(
                f"| {shape} | {step} | {n_pairs} x {n_tokens} | {dtype} |"
                f" {own['predicted'] / 1e9:.2f} | {own['measured'] / 1e9:.2f} | {error:+.0%} |"
                f" {own['held'] / 1e9:.2f}, {own['beyond'] / 1e9:.2f} |\n"
            )
            sys.stdout.flush()
    out(f"\nLargest error: {max(errors):.0%}\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--shape", nargs="+", default=[])
    parser.add_argument("--one", nargs=5, help="in a process of its own: one setting")
    args = parser.parse_args()
    if args.one:
        folder, step, n_pairs, n_tokens, dtype = args.one
        sys.stdout.write(json.dumps(one(folder, step, int(n_pairs), int(n_tokens), dtype)) + "\n")
        return
    settings = OTHERS if args.others else TWELVE
    print_table([row for row in settings if not args.shape or row[0] in args.shape])


if __name__ == "__main__":
    main()
