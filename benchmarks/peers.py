"""Activation patching in other packages: CPU seconds, memory and lines of the same job.

    make bench-peers

The job: which layer carries the answer, on six IOI pairs of SmolLM2-135M with prompts of equal
length; 1 is the clean run's logit difference and 0 the counterfactual's. mechassay makes the whole
map, all layers and all tokens. The others run the cells of two tokens, the first that differs and
the last one, in a loop as their documentation has it; a whole map has as many cells as layers and
tokens. All get token ids, so that no tokenizer adds anything. Each runs in a process of its own,
on one thread, in an environment with the package alone, and maps must agree to 1e-3.
"""

from __future__ import annotations

import argparse
import inspect
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


# --8<-- [start:mechassay]
def by_mechassay(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """The whole map, at the two tokens."""
    import mechassay as ma

    model = ma.load_model(folder)
    begin()
    whole = ma.patch(model, ma.Batch.from_tokens(**job["pairs"]))
    base, source = whole.base.mean(), whole.source.mean()
    return (whole.values.mean(0)[:, job["tokens"]] - base) / (source - base)


# --8<-- [end:mechassay]


# --8<-- [start:transformer-lens]
def by_transformer_lens(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """A run for each cell."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(folder, device="cpu")
    begin()
    clean, other, right, wrong = (torch.tensor(ids) for ids in job["pairs"].values())

    def difference(logits):
        last = logits[:, -1]
        return (last.gather(1, right[:, None]) - last.gather(1, wrong[:, None])).mean()

    with torch.no_grad():
        logits, cache = model.run_with_cache(clean)
        top, bottom = difference(logits), difference(model(other))
        effects = torch.zeros(model.cfg.n_layers, len(job["tokens"]))
        for layer in range(model.cfg.n_layers):
            name = f"blocks.{layer}.hook_resid_post"
            for number, token in enumerate(job["tokens"]):

                def patch(stream, hook, token=token, name=name):
                    stream[:, token] = cache[name][:, token]
                    return stream

                patched = model.run_with_hooks(other, fwd_hooks=[(name, patch)])
                effects[layer, number] = (difference(patched) - bottom) / (top - bottom)
    return effects


# --8<-- [end:transformer-lens]


# --8<-- [start:nnsight]
def by_nnsight(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """A trace for each cell."""
    import torch
    from nnsight import TransformersModel

    task = {"task": "text-generation"}
    model = TransformersModel(folder, **task, dtype=torch.float32, dispatch=True)
    begin()
    clean, other, right, wrong = (torch.tensor(ids) for ids in job["pairs"].values())
    n_layers, streams = len(model.model.layers), []

    def difference(logits):
        last = logits[:, -1]
        return (last.gather(1, right[:, None]) - last.gather(1, wrong[:, None])).mean()

    with torch.no_grad():
        with model.trace(clean):
            for layer in range(n_layers):
                streams.append(model.model.layers[layer].output.save())
            top = model.lm_head.output.save()
        with model.trace(other):
            bottom = model.lm_head.output.save()
        top, bottom = difference(top), difference(bottom)
        effects = torch.zeros(n_layers, len(job["tokens"]))
        for layer in range(n_layers):
            for number, token in enumerate(job["tokens"]):
                with model.trace(other):
                    model.model.layers[layer].output[:, token] = streams[layer][:, token]
                    patched = model.lm_head.output.save()
                effects[layer, number] = (difference(patched) - bottom) / (top - bottom)
    return effects


# --8<-- [end:nnsight]


BY: dict[str, Callable[[str, dict[str, Any], Callable[[], None]], Any]] = {
    "mechassay": by_mechassay,
    "transformer-lens": by_transformer_lens,
    "nnsight": by_nnsight,
}


def cpu_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_job(folder: str, n_pairs: int = 6) -> dict[str, Any]:
    """Token ids of pairs whose prompts have one length, and the two tokens that are patched."""
    import mechassay as ma

    model, task = ma.load_model(folder), ma.load_task("ioi")
    batch = model.batch(task.pairs("test", model, limit=100))
    length = int(batch.lengths.mode().values)
    pairs = batch.select((batch.lengths == length).nonzero()[:n_pairs, 0].tolist())
    return {
        "tokens": [pairs.first_difference(), length - 1],
        "cells": model.graph.n_layers * length,
        "pairs": {
            "clean": pairs.clean.tolist(),
            "counterfactual": pairs.counterfactual.tolist(),
            "answers": pairs.answers[:, 0].tolist(),
            "foils": pairs.foils[:, 0].tolist(),
        },
    }


def run(package: str, folder: str, job: dict[str, Any]) -> None:
    """Run one package's job in this process; print its result and what it took as JSON."""
    import torch

    torch.set_num_threads(1)
    loaded: list[float] = []
    effects = np.asarray(
        BY[package](folder, job, lambda: loaded.append(cpu_seconds())), dtype=float
    )
    seconds = cpu_seconds() - loaded[0]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([seconds, memory, np.asarray(effects, dtype=float).tolist()]))


def main() -> None:
    """Run the job in each environment, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder, or a packaged model")
    parser.add_argument("--python", nargs="*", default=[], help="PACKAGE=PYTHON of each other one")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.model, json.load(sys.stdin))
        return
    from mechassay.models.sources import find_source

    folder = find_source(options.model).location
    job = make_job(folder)
    n_run = len(job["tokens"]) * job["cells"] // len(job["pairs"]["clean"][0])
    ours: np.ndarray | None = None
    print("| package | lines | cells | CPU s | CPU s of the whole map | memory | difference |")
    print("|---|---|---|---|---|---|---|")
    for package, python in [("mechassay", sys.executable), *(x.split("=") for x in options.python)]:
        command = [python, __file__, "--model", folder, "--run", package]
        done = subprocess.run(
            command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True
        )
        seconds, memory, effects = json.loads(done.stdout.splitlines()[-1])
        cells = job["cells"] if ours is None else n_run
        ours = np.asarray(effects) if ours is None else ours
        difference = np.abs(np.asarray(effects) - ours).max()
        lines = len(inspect.getsource(BY[package]).splitlines()) - 2
        whole = seconds * job["cells"] / cells
        print(
            f"| {package} | {lines} | {cells} | {seconds:.1f} | {whole:.0f} | {memory:.1f} GB"
            f" | {difference:.0e} |"
        )


if __name__ == "__main__":
    main()
