"""Runs a checkout of the public CausalGym code on a job, and writes down what it did.

Run by `causalgym.py` in an environment of its own, which has pyvene 0.1.6 but not this package:

    python causalgym_public.py job.json

The public code is left as it is: its `experiment` is called as its own `test_all.py` calls it, in a
working folder of its own (importing it makes and empties folders). Clocks are put around the three
functions that it calls for every region and layer. To measure a part of a task, these functions do
nothing at the other regions and layers; all else is done whole. Its log is read back, and written
as JSON (times, pairs) and safetensors (odds of every item, directions).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GPTNeoXForCausalLM, PreTrainedTokenizerFast

MODEL = "EleutherAI/pythia-70m"
"""The name by which the public code chooses the penalty of its probe."""
KINDS = {"original": None, "control": "dog-give"}
EVALUATION, TRAINING, FITS = "evaluation", "das", "fits"


class Clock:
    """Seconds inside of calls by part; a call within another counts as its own part alone."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.within: list[str] = []
        self.now, self.since = now, now()

    def turn(self) -> None:
        now = self.now()
        if self.within:
            self.seconds[self.within[-1]] += now - self.since
        self.since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.turn()
        self.within.append(name)
        try:
            yield
        finally:
            self.turn()
            self.within.pop()


class Part:
    """One in `share` of the regions and layers of a task, spread evenly over both."""

    def __init__(self, share: int, number: int, layers: int) -> None:
        self.share, self.number, self.layers = share, number, layers
        self.seen: dict[int, int] = {}
        self.cells: set[tuple[int, int]] = set()
        self.skipped: set[tuple[int, int]] = set()

    def has(self, layer: int, position: int) -> bool:
        place = self.seen.setdefault(position, len(self.seen))
        # Diagonal by diagonal, so that cells at equal distances are of many layers.
        cell = place * self.layers + (layer + place) % self.layers
        chosen = cell % self.share == self.number % self.share
        (self.cells if chosen else self.skipped).add((layer, position))
        return chosen


def watched(
    das: Any, train: Any, clock: Clock, part: Part, starts: dict[str, Any], batches: int | None
) -> None:
    """Put clocks around what the public code calls at every region and layer.

    Args:
        starts: gets the basis that each training begins with.
        batches: of test items that are evaluated; all if None.
    """
    evaluate, train_das = train.eval, train.train_das
    train_direction = train.train_feature_direction

    def own_eval(wrapped: Any, evalset: Any, layer: int, position: int, strategy: str) -> Any:
        if not part.has(layer, position):
            return [], {}, []
        with clock.part(EVALUATION):
            return evaluate(wrapped, evalset[:batches], layer, position, strategy)

    def own_das(wrapped: Any, *args: Any, **more: Any) -> Any:
        layer, position = args[2], args[3]
        if not part.has(layer, position):
            return wrapped, [], [], [], None
        for intervention, _ in wrapped.interventions.values():
            if hasattr(intervention, "rotate_layer"):
                layer_ = intervention.rotate_layer.parametrizations.weight[0]
                starts[f"{layer}.{position}"] = layer_.base.detach().clone()
        with clock.part(TRAINING):
            return train_das(wrapped, *args, **more)

    def own_direction(method: str, *args: Any) -> Any:
        layer, position = args[4], args[5]
        if not part.has(layer, position):
            return [], {}, None
        with clock.part(FITS):
            return train_direction(method, *args)

    das.eval = train.eval = own_eval
    das.train_das, das.train_feature_direction = own_das, own_direction


def rows_of(task: str, batches: Sequence[Any]) -> list[dict[str, Any]]:
    """Pairs in the form of the public data set, in the order in which they are used."""
    names = ("base", "src", "base_type", "src_type", "base_label", "src_label")
    return [
        {"task": task, **{name: getattr(pair, name) for name in names}}
        for batch in batches
        for pair in batch.pairs
    ]


def recorded(log: dict[str, Any], part: Part) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Odds [items] and directions by method, layer and span, of a log; and the methods."""
    items: dict[str, list[float]] = defaultdict(list)
    for row in log["data"]:
        if row["method"] == "das" and row["step"] != log["metadata"]["steps"] - 1:
            continue
        odds = row["base_p_base"] - row["base_p_src"] + row["p_src"] - row["p_base"]
        items[f"odds.{row['method']}.{row['layer']}.{row['pos']}"].append(odds)
    tensors = {name: torch.tensor(odds, dtype=torch.float64) for name, odds in items.items()}
    for each in log["vec"]:
        if (each["layer"], each["pos"]) in part.cells and each["vec"] is not None:
            vector = torch.tensor(each["vec"], dtype=torch.float64).flatten()
            tensors[f"direction.{each['method']}.{each['layer']}.{each['pos']}"] = vector
    return tensors, list(dict.fromkeys(row["method"] for row in log["data"]))


def run(job: dict[str, Any]) -> None:
    torch.set_num_threads(job["threads"])
    checkout, folder = Path(job["checkout"]), Path(job["folder"])
    working = folder / "working"
    (working / "data").mkdir(parents=True, exist_ok=True)
    templates = working / "data" / "templates"
    if not templates.exists():
        templates.symlink_to(Path(job.get("templates", checkout / "data" / "templates")))
    os.chdir(working)
    sys.path.insert(0, str(checkout))
    loud: Callable[[], Any] = lambda: contextlib.redirect_stdout(io.StringIO())  # noqa: E731
    with loud():
        das, train, data = (importlib.import_module(name) for name in ("das", "train", "data"))

    model = GPTNeoXForCausalLM.from_pretrained(folder / "model", torch_dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "model" / "tokenizer.json"))
    tokenizer.pad_token = tokenizer.eos_token = "<|endoftext|>"
    task = job["dataset"].split("/")[-1]

    source = data.Dataset.load_from(job["dataset"])
    trainset = source.sample_batches(tokenizer, 4, job["steps"], seed=42)
    discard = {"".join(pair.base) for batch in trainset for pair in batch.pairs}
    splits = {
        "train": trainset,
        "validation": source.sample_batches(tokenizer, 4, 25, seed=420, discard=discard),
        "test": source.sample_batches(tokenizer, 4, 25, seed=1, discard=discard),
    }
    told: dict[str, Any] = {
        "spans": source.span_names,
        "types": source.types,
        "rows": {name: rows_of(task, batches) for name, batches in splits.items()},
        "kinds": {},
    }
    tensors: dict[str, torch.Tensor] = {}
    now = time.process_time if job["clock"] == "cpu" else time.perf_counter
    original = train.eval, train.train_das, train.train_feature_direction
    for kind in job["kinds"]:
        torch.manual_seed(job["seed"])
        clock, part, starts = (
            Clock(now),
            Part(job["share"], job["part"], model.config.num_hidden_layers),
            {},
        )
        train.eval, train.train_das, train.train_feature_direction = original
        watched(das, train, clock, part, starts, job.get("test_batches"))
        (working / "logs" / kind).mkdir(parents=True, exist_ok=True)
        begin = now()
        with loud():
            das.experiment(
                model=MODEL,
                dataset=job["dataset"],
                steps=job["steps"],
                eval_steps=100,
                grad_steps=1,
                batch_size=4,
                intervention_site="block_output",
                strategy="last",
                lr=5e-3,
                log_folder=kind,
                manipulate=KINDS[kind],
                tokenizer=tokenizer,
                gpt=model,
            )
        seconds = now() - begin
        [log] = (working / "logs" / kind).glob("*.json")
        found, methods = recorded(json.loads(log.read_text()), part)
        log.unlink()
        tensors |= {f"{kind}.{name}": each for name, each in found.items()}
        tensors |= {f"{kind}.start.das.{name}": each for name, each in starts.items()}
        told["kinds"][kind] = {
            "seconds": seconds,
            "parts": dict(clock.seconds),
            "cells": sorted(part.cells),
            "skipped": len(part.skipped),
            "methods": methods,
        }
    save_file({name: each.contiguous() for name, each in tensors.items()}, job["out"])
    Path(job["out"]).with_suffix(".json").write_text(json.dumps(told))


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
