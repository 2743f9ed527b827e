"""Two jobs in other packages: CPU seconds, memory and lines of the same job.

    make bench-peers [EAP_IG=path]

Six IOI pairs of SmolLM2-135M, with prompts of equal length. Each package runs in a process of its
own, on one thread, in an environment with the package alone, and numbers must agree to 1e-3.

Layers: which layer carries the answer; 1 is the clean run's logit difference and 0 the
counterfactual's. mechassay makes the whole map, all layers and all tokens. The others run the cells
of two tokens, the first that differs and the last one, in a loop as their documentation has it; a
whole map has as many cells as layers and tokens. All get token ids, so that no tokenizer adds any.

Edges: scores of all edges by integrated gradients, and the logit difference that circuits of three
sizes keep, pair by pair. EAP-IG gets texts, and prepends a token to each; so does mechassay here.
Its code is not on PyPI, so its checkout is named. It makes its scores on a GPU, whatever the
model's device is; here such tensors are made on the CPU.
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
def layers_by_mechassay(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """The whole map, at the two tokens."""
    import mechassay as ma

    model = ma.load_model(folder)
    begin()
    whole = ma.patch(model, ma.Batch.from_tokens(**job["pairs"]))
    base, source = whole.base.mean(), whole.source.mean()
    return (whole.values.mean(0)[:, job["tokens"]] - base) / (source - base)


# --8<-- [end:mechassay]


# --8<-- [start:transformer-lens]
def layers_by_transformer_lens(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
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
def layers_by_nnsight(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
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


# --8<-- [start:pyvene]
def layers_by_pyvene(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """An intervenable model for each layer, a call for each cell."""
    import pyvene
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    begin()
    clean, other, right, wrong = (torch.tensor(ids) for ids in job["pairs"].values())
    base, source = {"input_ids": other}, {"input_ids": clean}

    def difference(logits):
        last = logits[:, -1]
        return (last.gather(1, right[:, None]) - last.gather(1, wrong[:, None])).mean()

    with torch.no_grad():
        top, bottom = difference(model(**source).logits), difference(model(**base).logits)
        effects = torch.zeros(len(model.model.layers), len(job["tokens"]))
        for layer in range(len(effects)):
            place = {"layer": layer, "component": "block_output"}
            patched = pyvene.IntervenableModel(place, model)
            for number, token in enumerate(job["tokens"]):
                _, out = patched(base, [source], {"sources->base": token})
                effects[layer, number] = (difference(out.logits) - bottom) / (top - bottom)
    return effects


# --8<-- [end:pyvene]


# --8<-- [start:edges-mechassay]
def edges_by_mechassay(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """Scores, and circuits of some sizes."""
    import mechassay as ma

    model = ma.load_model(folder, prepend_bos=True)
    begin()
    pairs = [ma.Pair.from_dict(pair) for pair in job["texts"]]
    scores = ma.circuits.EAPIGInputs(steps=5).score(model, pairs, objective="logit_diff")
    circuits = [scores.top(size, by="magnitude") for size in job["sizes"]]
    return scores.values[model.graph.legal], ma.circuits.evaluate(model, circuits, pairs)


# --8<-- [end:edges-mechassay]


# --8<-- [start:edges-eap-ig]
def edges_by_eap_ig(folder: str, job: dict[str, Any], begin: Callable[[], None]) -> Any:
    """Scores, and circuits of some sizes."""
    import torch
    from eap.attribute import attribute
    from eap.evaluate import evaluate_graph
    from eap.graph import Graph
    from transformer_lens import HookedTransformer, loading_from_pretrained

    loading_from_pretrained.OFFICIAL_MODEL_NAMES.append(folder)  # it knows no other folders
    model = HookedTransformer.from_pretrained_no_processing(folder, device="cpu")
    for setting in ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in"):
        setattr(model.cfg, setting, True)
    model.cfg.ungroup_grouped_query_attention = True
    begin()
    prompts = [[pair[key] for pair in job["texts"]] for key in ("clean", "counterfactual")]
    tokens = torch.tensor([job["pairs"]["answers"], job["pairs"]["foils"]]).T
    loader = [(*prompts, tokens)]

    def differences(logits, clean_logits, lengths, labels):
        last = logits[torch.arange(len(logits)), lengths - 1].gather(1, labels)
        return last[:, 0] - last[:, 1]

    def loss(*values):
        return -differences(*values).sum()  # they divide by the number of pairs

    graph, kept = Graph.from_model(model), []
    attribute(model, graph, loader, loss, "EAP-IG-inputs", ig_steps=5, quiet=True)
    for size in job["sizes"]:
        graph.apply_topn(size, absolute=True)
        kept.append(evaluate_graph(model, graph, loader, differences, quiet=True))
    return graph.scores[graph.real_edge_mask], torch.stack(kept)


# --8<-- [end:edges-eap-ig]


Run = Callable[[str, dict[str, Any], Callable[[], None]], Any]
LAYERS: dict[str, Run] = {
    "mechassay": layers_by_mechassay,
    "transformer-lens": layers_by_transformer_lens,
    "nnsight": layers_by_nnsight,
    "pyvene": layers_by_pyvene,
}
EDGES: dict[str, Run] = {"mechassay": edges_by_mechassay, "eap-ig": edges_by_eap_ig}


def cpu_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_experiment(folder: str, n_pairs: int = 6) -> dict[str, Any]:
    """Pairs whose prompts have one length, as texts and as token ids; the two tokens that are
    patched, and the sizes of circuits.
    """
    import mechassay as ma

    model, task = ma.load_model(folder), ma.load_task("ioi")
    drawn = list(task.pairs("test", model, limit=100))
    batch = model.batch(drawn)
    length = int(batch.lengths.mode().values)
    rows = (batch.lengths == length).nonzero()[:n_pairs, 0].tolist()
    pairs = batch.select(rows)
    by_id = {pair.id: pair for pair in drawn}
    return {
        "tokens": [pairs.first_difference(), length - 1],
        "cells": model.graph.n_layers * length,
        "sizes": [100, 1000, 10_000],
        "texts": [by_id[name].as_dict() for name in pairs.ids],
        "pairs": {
            "clean": pairs.clean.tolist(),
            "counterfactual": pairs.counterfactual.tolist(),
            "answers": pairs.answers[:, 0].tolist(),
            "foils": pairs.foils[:, 0].tolist(),
        },
    }


def run(by: Run, folder: str, job: dict[str, Any]) -> None:
    """Run one package's job in this process; print its results and what it took as JSON."""
    import torch

    torch.set_num_threads(1)
    zeros = torch.zeros

    # EAP-IG asks for "cuda" by name.
    def zeros_on_cpu(*shape: Any, **options: Any) -> Any:
        return zeros(*shape, **(options | {"device": "cpu"}))

    torch.zeros = zeros_on_cpu
    loaded: list[float] = []
    result = by(folder, job, lambda: loaded.append(cpu_seconds()))
    seconds = cpu_seconds() - loaded[0]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    results = [
        np.asarray(values, dtype=float).tolist()
        for values in (result if isinstance(result, tuple) else (result,))
    ]
    print(json.dumps([seconds, memory, results]))


def print_table(jobs: dict[str, Run], pythons: dict[str, str], folder: str, whole: bool) -> None:
    """Run a job in the environment of each package that has it, and print a row for each.

    Args:
        whole: the job is a map, and the others run only some of its cells.
    """
    job = make_experiment(folder)
    n_run = len(job["tokens"]) * job["cells"] // len(job["pairs"]["clean"][0])
    middle = " cells | CPU s | CPU s of the whole map |" if whole else " CPU s |"
    print(f"| package | lines |{middle} memory | difference |")
    print("|---" * (7 if whole else 5) + "|")
    ours: list[np.ndarray] | None = None
    for package, by in jobs.items():
        if package not in pythons:
            continue
        command = [pythons[package], __file__, "--model", folder, "--run", by.__name__]
        done = subprocess.run(
            command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True
        )
        seconds, memory, plain = json.loads(done.stdout.splitlines()[-1])
        results = [np.asarray(values) for values in plain]
        cells = job["cells"] if ours is None else n_run
        ours = results if ours is None else ours
        lines = len(inspect.getsource(by).splitlines()) - 2
        middle = f" {cells} | {seconds:.1f} | {seconds * job['cells'] / cells:.0f} |"
        if not whole:
            middle = f" {seconds:.1f} |"
        agree = " and ".join(
            f"{np.abs(a - b).max():.0e} of {np.abs(b).max():.2g}"
            for a, b in zip(results, ours, strict=True)
        )
        print(f"| {package} | {lines} |{middle} {memory:.1f} GB | {agree} |", flush=True)


def main() -> None:
    """Run the jobs in each environment, and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder, or a packaged model")
    parser.add_argument("--python", nargs="*", default=[], help="PACKAGE=PYTHON of each other one")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        by = {by.__name__: by for by in (*LAYERS.values(), *EDGES.values())}[options.run]
        run(by, options.model, json.load(sys.stdin))
        return
    from mechassay.models.sources import find_source

    folder = find_source(options.model).location
    pythons = {"mechassay": sys.executable} | dict(x.split("=") for x in options.python)
    print("Which layer carries the answer?\n")
    print_table(LAYERS, pythons, folder, whole=True)
    print("\nWhich edges carry the answer, and what do circuits of them keep?\n")
    print_table(EDGES, pythons, folder, whole=False)


if __name__ == "__main__":
    main()
