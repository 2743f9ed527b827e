"""One whole gym task beside the public CausalGym code with pyvene 0.1.6: seconds, and odds.

The public code runs in an environment and a process of its own (`causalgym_public.py`), and draws
the pairs. Both sides have the same pairs, the same GPT-NeoX of pythia-70m's shape (random weights)
and as many threads: all regions and layers, the methods of table 1, original and control labels.
Runs alternate. The public code takes hours for many tasks, so each of its runs measures one in
`--share` of the regions and layers, another part each time, and times of these are multiplied;
what does not depend on regions and layers is measured whole. `--share 1` measures everything.

    python benchmarks/causalgym.py --checkout PATH --python .venv-causalgym/bin/python
        [--task npi_any_subj-relc] [--share 8] [--repeats 3] [--threads 2] [--tokenizer FILE]

The odds of our code with the directions of the public one are compared on every measured item.
`--golden tests/golden` writes the files of tests/agreement/test_causalgym.py instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

import mechassay as ma
from mechassay.features.das import DAS
from mechassay.features.featurizer import Directions
from mechassay.features.finder import Fit
from mechassay.gym import evaluation
from mechassay.gym.evaluation import BaseValues
from mechassay.gym.interchanges import control_labels, with_control_labels
from mechassay.gym.pairs import GymPairs
from mechassay.interventions.site import Site
from mechassay.models.model import Model
from mechassay.utils.display import SILENT

BEGIN = "<|endoftext|>"
METHODS = ("das", "probe", "mean", "pca", "k-means", "lda", "random", "vanilla")
PYTHIA_70M = {
    "vocab_size": 50304,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
TINY = {
    **PYTHIA_70M,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
GOLDEN_TASKS = {
    "number": {
        "templates": ["The {subject} {where} the {object}"],
        "label": "subject",
        "labels": {"one": ["is", "was"], "many": ["are", "were"]},
        "result_prepend_space": True,
        "variables": {
            "subject": {"one": ["fox", "owl", "crow"], "many": ["foxes", "owls", "crows"]},
            "where": ["near", "behind", "above"],
            "object": ["river", "barn", "hill", "tree"],
        },
    },
    "passive": {
        "templates": ["The {animal}{insert} {verb} {place}"],
        "label": "insert",
        "labels": {"passive": [" by"], "active": ["."]},
        "result_prepend_space": False,
        "variables": {
            "animal": ["fox", "owl", "crow", "hen", "goose"],
            "insert": {"passive": [" that was"], "active": [""]},
            "verb": ["fed", "led", "moved"],
            "place": ["in the barn", "near the river", "behind the tree", "on the hill"],
        },
    },
}
"""Of our own, in the public form: one of equal lengths, and one in which nothing is."""
GOLDEN_STEPS, GOLDEN_ITEMS = 40, 40
MUST = {"whole task": (20, 35), "DAS alone": (10, None), "evaluation alone": (30, None)}


# --- a model that both sides read ---------------------------------------------------------------


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value, and a second time as what follows a space."""
    if isinstance(value, str):
        yield from (value, " " + value.strip())
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


def trained_tokenizer(texts: Sequence[str], size: int) -> Tokenizer:
    """A byte-level BPE of some texts; token 0 begins texts, as in Pythia."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BEGIN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_folder(folder: Path, tokenizer: Tokenizer, sizes: Mapping[str, Any], std: float) -> None:
    """A GPT-NeoX with random weights, and its tokenizer, as files that both sides read."""
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=BEGIN)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        hf = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, initializer_range=std))
        # Biases that are 0 would hide mistakes.
        for name, tensor in hf.named_parameters():
            if name.endswith("bias"):
                tensor.data.normal_(0, std)
        hf.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    # The releases of transformers spell the rotary settings differently.
    config = json.loads((folder / "config.json").read_text())
    config |= {"rotary_pct": 0.25, "rotary_emb_base": 10000}
    (folder / "config.json").write_text(json.dumps(config))


# --- the public code ----------------------------------------------------------------------------


def run_public(python: str, job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A job done by the public code: what it says, and its numbers."""
    folder = Path(job["folder"])
    path, out = folder / "job.json", folder / "public.safetensors"
    path.write_text(json.dumps({**job, "out": str(out)}))
    threads = str(job["threads"])
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    env |= {"TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    script = Path(__file__).with_name("causalgym_public.py")
    done = subprocess.run(
        [python, str(script), str(path)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"The public code failed:\n{done.stderr[-3000:]}")
    return json.loads(out.with_suffix(".json").read_text()), load_file(out)


def public_seconds(told: Mapping[str, Any], parts: Sequence[str] | None = None) -> float:
    """Seconds of a whole task, from those of some of its regions and layers."""
    total = 0.0
    for kind in told["kinds"].values():
        found = kind["parts"]
        every = len(kind["cells"]) + kind["skipped"]
        some = sum(found[name] for name in (found if parts is None else parts))
        total += some * every / len(kind["cells"])
        if parts is None:
            total += kind["seconds"] - sum(found.values())
    return total


# --- ours ---------------------------------------------------------------------------------------


def split_pairs(told: Mapping[str, Any], folder: Path) -> dict[str, GymPairs]:
    """The public code's pairs, by split."""
    found: dict[str, GymPairs] = {}
    for split, rows in told["rows"].items():
        path = folder / f"{split}.json"
        path.write_text(json.dumps(rows))
        [found[split]] = ma.gym.read_causalgym_rows(path, split=split).values()
    return found


@contextlib.contextmanager
def clocks(seconds: dict[str, float], now: Callable[[], float]) -> Iterator[None]:
    """Clocks around the parts of `evaluate`; the last run of token_logits is that of test items."""
    runs: list[float] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            begin = now()
            try:
                return function(*args, **more)
            finally:
                spent = now() - begin
                seconds[name] += spent
                if name == "evaluation":
                    runs.append(spent)

        return call

    watched: list[tuple[Any, str, str]] = [
        (DAS, "fit", "DAS"),
        (BaseValues, "fit", "fits of values"),
        (GymPairs, "batch", "tokens"),
        (evaluation, "token_logits", "evaluation"),
    ]
    before = [getattr(owner, name) for owner, name, _ in watched]
    for (owner, name, part), function in zip(watched, before, strict=True):
        setattr(owner, name, timed(part, function))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(watched, before, strict=True):
            setattr(owner, name, function)
        seconds["evaluation, test items"] = runs[-1] if runs else 0.0


def run_ours(
    model: Model,
    pairs: Mapping[str, GymPairs],
    types: Sequence[str],
    compat: str | None,
    now: Callable[[], float],
) -> dict[str, float]:
    """The whole task as a user runs it: seconds, and those of its parts."""
    control = dict(zip(types, (" dog", " give"), strict=True))
    seconds: dict[str, float] = defaultdict(float)
    begin = now()
    with clocks(seconds, now):
        ma.gym.evaluate(model, pairs, METHODS, control=control, compat=compat, progress=SILENT)
    return {"whole": now() - begin, **seconds}


# --- the same numbers? --------------------------------------------------------------------------


def differences(
    model: Model,
    pairs: Mapping[str, GymPairs],
    told: Mapping[str, Any],
    numbers: Mapping[str, torch.Tensor],
    compat: str | None,
) -> dict[str, dict[str, float]]:
    """By labels and method, the largest difference of an item's odds under the same direction."""
    plain = pairs["test"].batch(model)
    batch = ma.gym.compat_batches(plain, compat).intervened
    labels = control_labels(told["types"])
    batches = {
        "original": batch,
        "control": with_control_labels(pairs["test"], labels, batch, model),
    }
    regions = pairs["test"].tested
    begin = len(told["spans"]) - len(regions)
    worst: dict[str, dict[str, float]] = {kind: {} for kind in batches}
    for name, theirs in numbers.items():
        kind, what, method, layer, span = name.split(".")
        if what != "odds":
            continue
        site = Site(int(layer), regions[int(span) - begin])
        key = f"{kind}.direction.{method}.{layer}.{span}"
        found = Directions(numbers[key][:, None].to(model.dtype)) if key in numbers else None
        fit = Fit({site: found}) if found else ma.features.FullVector().fit(model, batch, [site])
        odds = ma.gym.odds(fit, batches[kind], model=model, progress=SILENT)[site]
        most = float((torch.from_numpy(odds) - theirs).abs().max())
        worst[kind][method] = max(worst[kind].get(method, 0.0), most)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--checkout", required=True, help="a checkout of the public code")
    parser.add_argument("--python", default=".venv-causalgym/bin/python")
    parser.add_argument("--task", default="npi_any_subj-relc")
    parser.add_argument(
        "--tokenizer", help="a tokenizer.json; else one is trained on the templates"
    )
    parser.add_argument("--golden", help="a folder for the files of a test, instead of a benchmark")
    parser.add_argument("--compat", choices=("causalgym-2024",), help="run ours in this mode")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: seconds of the processor, for a machine that others use (with --threads 1)",
    )
    for name, default in (("share", 8), ("repeats", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    checkout = Path(args.checkout).resolve()
    if not (checkout / "das.py").is_file():
        sys.exit(f"{checkout} is no checkout of the public CausalGym code: it has no das.py.")
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as name:
        (write_golden if args.golden else compare)(args, checkout, Path(name))


def compare(args: argparse.Namespace, checkout: Path, folder: Path) -> None:
    """Run both sides in turn, and print the table."""
    if args.tokenizer:
        tokenizer = Tokenizer.from_file(args.tokenizer)
    else:
        data = json.loads((checkout / "data" / "templates" / "syntaxgym.json").read_text())
        tokenizer = trained_tokenizer([*texts_of(data), *[" dog", " give"] * 9], 6000)
    make_folder(folder / "model", tokenizer, PYTHIA_70M, 0.02)
    model = ma.load_model(folder / "model", prepend_bos=True)
    job = {
        "checkout": str(checkout),
        "folder": str(folder),
        "dataset": f"syntaxgym/{args.task}",
        "steps": 100,
        "kinds": ["original", "control"],
        "share": args.share,
        "threads": args.threads,
        "clock": args.clock,
        "seed": 0,
    }
    now = time.process_time if args.clock == "cpu" else time.perf_counter
    print(
        f"{args.task}, {args.threads} threads, {args.clock} time, torch {torch.__version__}",
        flush=True,
    )
    runs: list[tuple[dict[str, float], dict[str, float]]] = []
    worst: dict[str, dict[str, float]] = {}
    for repeat in range(args.repeats):
        told, numbers = run_public(args.python, {**job, "part": repeat})
        pairs = split_pairs(told, folder)
        ours = run_ours(model, pairs, told["types"], args.compat, now)
        theirs = {
            "whole task": public_seconds(told),
            "DAS alone": public_seconds(told, ["das"]),
            "evaluation alone": public_seconds(told, ["evaluation"]),
            "fits of values": public_seconds(told, ["fits"]),
        }
        mine = {
            "whole task": ours["whole"],
            "DAS alone": ours["DAS"],
            "evaluation alone": ours["evaluation, test items"],
            "fits of values": ours["fits of values"],
        }
        runs.append((theirs, mine))
        for kind, found in differences(model, pairs, told, numbers, args.compat).items():
            known = worst.setdefault(kind, {})
            known |= {name: max(most, known.get(name, 0.0)) for name, most in found.items()}
        print(
            f"run {repeat + 1}: public {told['kinds']}\n  ours {ours}", file=sys.stderr, flush=True
        )
    print_table(runs, args)
    print("\nLargest difference of an item's odds under the public code's own directions:")
    for kind, found in worst.items():
        print(f"{kind} labels: " + ", ".join(f"{name} {most:.1g}" for name, most in found.items()))


def write_golden(args: argparse.Namespace, checkout: Path, folder: Path) -> None:
    """Numbers of the public code on a tiny model, as the files of a test."""
    (folder / "templates").mkdir()
    (folder / "templates" / "own.json").write_text(json.dumps(GOLDEN_TASKS))
    texts = [*texts_of(GOLDEN_TASKS), *[" dog", " give", "The"] * 9] * 2
    tokenizer = trained_tokenizer(texts, 600)
    sizes = {**TINY, "vocab_size": tokenizer.get_vocab_size()}
    make_folder(folder / "model", tokenizer, sizes, 0.3)
    tensors = {
        f"model.{name}": x for name, x in load_file(folder / "model" / "model.safetensors").items()
    }
    tasks: dict[str, Any] = {}
    for task in GOLDEN_TASKS:
        job = {
            "checkout": str(checkout),
            "folder": str(folder),
            "templates": str(folder / "templates"),
            "dataset": f"own/{task}",
            "steps": GOLDEN_STEPS,
            "kinds": ["original"],
            "test_batches": GOLDEN_ITEMS // 4,
            "share": 1,
            "part": 0,
            "threads": 1,
            "clock": "cpu",
            "seed": 0,
        }
        told, numbers = run_public(args.python, job)
        for name, found in numbers.items():
            kept = found[:GOLDEN_ITEMS] if ".odds." in name else found
            tensors[f"{task}.{name}"] = kept.float().contiguous()
        tasks[task] = {
            "spans": told["spans"],
            "types": told["types"],
            "methods": told["kinds"]["original"]["methods"],
            "train": [list(row.values())[1:] for row in told["rows"]["train"]],
            "test": [list(row.values())[1:] for row in told["rows"]["test"][:GOLDEN_ITEMS]],
        }
    out = Path(args.golden)
    save_file(tensors, out / "causalgym.safetensors")
    made = {
        "config": sizes,
        "tokenizer": json.loads(tokenizer.to_str()),
        "steps": GOLDEN_STEPS,
        "tasks": tasks,
    }
    (out / "causalgym.json").write_text(json.dumps(made, separators=(",", ":")))


def print_table(
    runs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], args: argparse.Namespace
) -> None:
    """Medians of the runs, and the ratio."""
    if args.share > 1:
        print(f"public code: measured on 1 in {args.share} regions and layers a run, multiplied")
    print("| | public, s | ours, s | times faster | by run | must reach | stretch |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for part in runs[0][0]:
        theirs, ours = ([side[part] for side in sides] for sides in zip(*runs, strict=True))
        ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
        must, stretch = MUST.get(part, (None, None))
        told = (
            f"{statistics.median(theirs):.1f}",
            f"{statistics.median(ours):.2f}",
            f"{statistics.median(ratios):.1f}",
            ", ".join(f"{ratio:.1f}" for ratio in ratios),
            str(must or ""),
            str(stretch or ""),
        )
        print(f"| {part} | {' | '.join(told)} |")


if __name__ == "__main__":
    main()
