"""How right `mechassay plan` is: planned and measured memory and time, for docs/plan.md.

    python benchmarks/plan.py [--others] [--shape gpt2 ...]     single steps on random weights
    python benchmarks/plan.py --commands small | documented     whole commands
    python benchmarks/plan.py --commands circuits run ...       one command

Each step is a process of its own, which plans first, from the config alone, then loads a model with
random weights from a folder and does one step. Prompts are random tokens that differ everywhere.
`--others` has settings that no constant was measured on: other numbers of pairs and tokens, another
dtype, post-norms. Memory is the peak resident memory of the process (VmHWM, on Linux). The time of
a step is without imports and without loading; that of a command is the whole process.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.methods.mask_learning import SubnetworkProbing
from mechassay.circuits.methods.random import Random
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.models.memory import available_bytes
from mechassay.models.model import Model, load_model, outline
from mechassay.planning import scoring_bytes, scoring_operations
from mechassay.prompts.batch import Batch
from mechassay.runs.costs import (
    RANGE,
    Cost,
    FreeMemory,
    ModelSize,
    PromptSizes,
    Work,
    duration,
    token_operations,
)
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
    """Plan a step, do it, and return what was planned and measured."""
    # As a run does: its experiment is imported and made before anything is estimated.
    _ = CircuitsExperiment((folder,), methods=("eap",))
    libraries = float(psutil.Process().memory_info().rss)
    empty, prompts = outline(folder, dtype=dtype), PromptSizes(n_pairs, n_tokens, 1.0)
    methods = {
        STEPS[0]: EAP(),
        STEPS[1]: EAPIGInputs(steps=5),
        STEPS[3]: SubnetworkProbing(steps=3, batch_size=min(n_pairs, MASKED)),
    }
    method, size, cpu = methods.get(step), ModelSize.of(empty, folder), torch.device("cpu")
    memory = FreeMemory(cpu, available_bytes(cpu))
    if method is None:
        held = memory.working_set(size, empty.decoder, n_tokens)
        circuit = 2.0 * size.body + token_operations(size, 1.0)[1]
        operations = n_pairs * (size.plain(n_tokens) + circuit * n_tokens)
    else:
        held = scoring_bytes(method, size, empty.decoder, prompts, memory)
        operations = scoring_operations(method, size, prompts)
    work = Work(folder, size, operations, held)
    planned = Cost((work,), "cpu", libraries, memory.free).gigabytes
    seconds = work.seconds("cpu") - replace(work, operations=0.0).seconds("cpu")
    model = load_model(folder, dtype=dtype)
    batch = random_pairs(model, n_pairs, n_tokens)
    begin = time.perf_counter()
    if method is None:
        drawn = Random(seed=0).draw(model.graph).top(0.5).pruned()
        evaluate(model, drawn, batch, progress=SILENT)
    else:
        method.score(model, batch, progress=SILENT)
    took = time.perf_counter() - begin
    return {"planned": planned, "measured": peak() / 1e9, "seconds": seconds, "took": took}


def peak(process: int | str = "self") -> float:
    """Bytes that a process has held at most; `ru_maxrss` begins with its parent's."""
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        return next(1024.0 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


SMALL = (
    "patch run -m smollm2-135m -t ioi -p resid -p heads --limit 4",
    "variables run -m smollm2-135m -t greater-than -f das --variable tens --layers ::10 --steps 20"
    " --train-limit 8 --validation-limit 4 --limit 4",
    "gym run -m smollm2-135m -t agr_gender -M das --layers ::10 --steps 20 --train-limit 16"
    " --validation-limit 4 --limit 4",
    "adversarial run -m smollm2-135m -t ioi -c eap@500 -c random@500 --n-clean 16 --controls 8"
    " --train-limit 10",
    "adversarial run -m smollm2-135m -t ioi -c random@0.1 --n-clean 16 --controls 8",
    "tasks score -m smollm2-135m -t mcqa --limit 20",
)
PLANNED = ("circuits", "adversarial", "patch", "variables", "gym", "tasks score")


def documented_commands() -> list[str]:
    """Return the commands of docs/commands.md that can be planned, without their folders."""
    text = (Path(__file__).parents[1] / "docs" / "commands.md").read_text("utf-8")
    lines = re.findall(r"^mechassay (.*?)(?: -o \S+)?$", text, flags=re.MULTILINE)
    return [line for line in lines if line.startswith(PLANNED)]


def command(words: str) -> dict[str, float]:
    """Plan a command, run it in a new folder, and return what was planned and measured."""
    program = [sys.executable, "-m", "mechassay"]
    done = subprocess.run(
        [*program, "plan", "--json", *words.split()], capture_output=True, text=True, check=True
    )
    plan = json.loads(done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        begin, most = time.perf_counter(), 0.0
        process = subprocess.Popen(
            [*program, *words.split(), "-o", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            with suppress(OSError, StopIteration):
                most = peak(process.pid)
            time.sleep(0.2)
        took = time.perf_counter() - begin
    seconds = 60 * plan["minutes"][0] * RANGE
    return {"planned": plan["gb"], "measured": most / 1e9, "seconds": seconds, "took": took}


def print_rows(rows: Iterable[tuple[str, dict[str, float]]]) -> None:
    """A row for each setting, as it is measured, and how many are within what was planned."""
    out = sys.stdout.write
    out("| what | planned, GB | measured, GB | ratio | planned | measured | ratio |\n")
    out("| --- " * 7 + "|\n")
    of_memory: list[float] = []
    of_time: list[float] = []
    for name, own in rows:
        of_memory.append(own["planned"] / own["measured"])
        of_time.append(own["took"] / own["seconds"])
        took = f"{own['took']:.1f} s" if own["took"] < 240 else f"{own['took'] / 60:.1f} min"
        out(
            f"| {name} | {own['planned']:.2f} | {own['measured']:.2f} | {of_memory[-1]:.2f} |"
            f" {duration(own['seconds'])} | {took} | {of_time[-1]:.2f} |\n"
        )
        sys.stdout.flush()
    right = sum(1 / RANGE <= x <= RANGE for x in of_time)
    out(f"\nMemory: planned / measured is {min(of_memory):.2f} to {max(of_memory):.2f}.\n")
    out(f"Time: {right} of {len(of_time)} are within the range.\n")


def of_steps(
    settings: Sequence[tuple[str, str, int, int, str]],
) -> Iterator[tuple[str, dict[str, float]]]:
    """Each setting in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        for shape, step, n_pairs, n_tokens, dtype in settings:
            folder = Path(place) / shape
            if not folder.is_dir():
                hugging_face(shape).save_pretrained(folder)
            words = [sys.executable, __file__, "--one", str(folder), step]
            words += [str(n_pairs), str(n_tokens), dtype]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            name = f"{shape}, {step}, {n_pairs} x {n_tokens}, {dtype}"
            yield name, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--shape", nargs="+", default=[])
    parser.add_argument("--one", nargs=5, help="in a process of its own: one setting")
    parser.add_argument(
        "--commands", nargs=argparse.REMAINDER, help="small, documented, or a command"
    )
    args = parser.parse_args()
    if args.one:
        folder, step, n_pairs, n_tokens, dtype = args.one
        sys.stdout.write(json.dumps(one(folder, step, int(n_pairs), int(n_tokens), dtype)) + "\n")
        return
    if args.commands:
        known = {"small": lambda: list(SMALL), "documented": documented_commands}
        words = " ".join(args.commands)
        lines = known[words]() if words in known else [words]
        print_rows((f"`{line}`", command(line)) for line in lines)
        return
    settings = OTHERS if args.others else TWELVE
    print_rows(of_steps([row for row in settings if not args.shape or row[0] in args.shape]))


if __name__ == "__main__":
    main()
