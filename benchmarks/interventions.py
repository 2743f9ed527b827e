"""What interventions cost, in multiples of one plain Hugging Face forward of the same batch.

Each row is timed alternating with the plain forward (last-position logits, no cache) in one
process; the median ratio stands beside the floor by arithmetic, which no exact method can go below,
and what it must and should reach. A site at layer l and column t costs (T - t)(L - l) of a
forward's T L token-layers, and twice that with gradients, as weights are frozen.

    python benchmarks/interventions.py [--shape llama gpt2 neox] [--layers 24] [--rows 16]
                                       [--tokens 30] [--k 16] [--repeats 3] [--no-map]

Where pyvene is installed (`make bench-pyvene`), its steps of the same training are a row.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from mechassay.features.das import DAS
from mechassay.features.featurizer import orthonormal, random_basis
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.site import Site
from mechassay.models.model import Model, load_model, make_model
from mechassay.models.weight_files import is_fetched
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.tasks.load import load_task
from mechassay.utils.display import SILENT

VOCABULARY = 8192


def shape(kind: str, layers: int, d_model: int = 512) -> Any:
    """A configuration of one family, all of one size."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": d_model,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=d_model, n_layer=layers, n_head=8, bos_token_id=0,
            eos_token_id=0,
        )  # fmt: skip
    if kind == "neox":
        return transformers.GPTNeoXConfig(**common, intermediate_size=4 * d_model)
    return transformers.LlamaConfig(**common, intermediate_size=4 * d_model)


def model_of(kind: str, layers: int) -> Model:
    """A model of a family with random weights."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        hf = AutoModelForCausalLM.from_config(shape(kind, layers))
    return make_model(hf.requires_grad_(False), name=kind)


def interchanges(rows: int, tokens: int) -> InterchangeBatch:
    """Random prompts without padding."""
    generator = torch.Generator().manual_seed(1)
    base, source = torch.randint(0, VOCABULARY, (2, rows, tokens), generator=generator)
    labels = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    return InterchangeBatch.from_tokens(base, source, labels)


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def plain(model: Model, tokens: torch.Tensor) -> Callable[[], object]:
    """One forward of the original with the logits of the last position."""

    def run() -> object:
        with torch.no_grad():
            return model.hf(tokens, use_cache=False, logits_to_keep=1)

    return run


def ratio(cost: Callable[[], float], forward: Callable[[], object], repeats: int) -> float:
    """The median of a cost in seconds over that of a forward, alternating."""
    seconds(forward)
    pairs = [(seconds(forward), cost(), seconds(forward)) for _ in range(repeats)]
    return statistics.median(2 * c / (before + after) for before, c, after in pairs)


def step_seconds(model: Model, batch: InterchangeBatch, sites: Sequence[Site], k: int) -> float:
    """Seconds of a DAS step of all sites: a training of some steps more, less one without."""
    more = 1 if len(sites) > 2 * len(model.decoder.layers) else 2

    def fit(steps: int) -> Callable[[], object]:
        finder = DAS(k=k, steps=steps, batch_size=len(batch), optimizer="adamw")
        return lambda: finder.fit(model, batch, sites, progress=SILENT)

    return (seconds(fit(1 + more)) - seconds(fit(1))) / more


def floor(sites: Sequence[Site], layers: int, tokens: int) -> float:
    """Forward and backward of what stands behind each site, in forwards, of the mean site."""
    costs = [
        2 * (tokens - int(site.position)) * (layers - 1 - site.layer) / (tokens * layers)
        for site in sites
    ]
    return statistics.fmean(costs)


Row = tuple[str, float, float, float | None, float | None]


def training_rows(model: Model, args: argparse.Namespace) -> Iterator[Row]:
    """Steps of DAS at many columns, at the last one, and of one site alone."""
    batch, layers = interchanges(args.rows, args.tokens), len(model.decoder.layers)
    forward = plain(model, batch.base)
    columns = [round(i * (args.tokens - 1) / 4) for i in range(5)]
    every = [Site(layer, column) for layer in range(layers) for column in columns]
    last = [Site(layer, args.tokens - 1) for layer in range(layers)]
    for name, sites, must, stretch in (
        ("DAS step: all layers x 5 columns, a site", every, 0.60, 0.50),
        ("DAS step: all layers at the last token, a site", last, 0.12, 0.07),
    ):
        cost = ratio(
            lambda sites=sites: step_seconds(model, batch, sites, args.k) / len(sites),
            forward,
            # Many sites take minutes, and are a mean by themselves.
            1 if len(sites) > 2 * layers else args.repeats,
        )
        yield name, cost, floor(sites, layers, args.tokens), must, stretch
    alone = [
        ratio(lambda site=site: step_seconds(model, batch, [site], args.k), forward, args.repeats)
        for site in last[:: max(1, layers // 6)]
    ]
    bound = floor(last[:: max(1, layers // 6)], layers, args.tokens)
    yield "DAS step: one site at the last token", statistics.fmean(alone), bound, 0.20, 0.12
    if find_spec("pyvene") is not None:
        yield from pyvene_rows(model, batch, forward, columns, args)


def pyvene_rows(
    model: Model,
    batch: InterchangeBatch,
    forward: Callable[[], object],
    columns: Sequence[int],
    args: argparse.Namespace,
) -> Iterator[Row]:
    """The same step with pyvene: one site after another, a sample of the layers."""
    pyvene: Any = import_module("pyvene")
    rows, layers = len(batch), len(model.decoder.layers)
    labels = batch.labels[:, 0]

    def step(layer: int, column: int) -> Callable[[], object]:
        plan: Any = {
            "layer": layer,
            "component": "block_output",
            "low_rank_dimension": args.k,
            "intervention_type": pyvene.LowRankRotatedSpaceIntervention,
        }
        config = pyvene.IntervenableConfig([plan])
        wrapped = pyvene.IntervenableModel(config, model.hf, use_fast=True)
        wrapped.disable_model_gradients()
        optimiser = torch.optim.AdamW(wrapped.get_trainable_parameters(), lr=1e-2)
        at = [[[column]] * rows]

        def run() -> object:
            optimiser.zero_grad()
            _, out = wrapped(
                {"input_ids": batch.base},
                [{"input_ids": batch.source}],
                {"sources->base": (at, at)},
            )
            loss = torch.nn.functional.cross_entropy(out.logits[:, -1].float(), labels)
            loss.backward()
            return optimiser.step()

        run()
        return run

    some = [(layer, column) for layer in (0, layers // 2, layers - 2) for column in columns[::2]]
    steps = [step(*at) for at in some]
    costs = [ratio(lambda run=run: seconds(run), forward, args.repeats) for run in steps]
    yield "pyvene's step: mean of 9 sites, one at a time", statistics.fmean(costs), 0.0, None, None


def direction_rows(repeats: int, d: int = 2048, k: int = 16) -> Iterator[Row]:
    """Orthonormal directions, forward and backward, against torch's parametrization."""
    basis = random_basis(d, torch.Generator().manual_seed(0))
    raw = torch.zeros(1, d, k).requires_grad_()

    def ours() -> object:
        return torch.autograd.grad(orthonormal(raw, basis[None]).square().sum(), raw)

    layer = torch.nn.Linear(d, k, bias=False)
    torch.nn.utils.parametrizations.orthogonal(layer, orthogonal_map="householder")

    def theirs() -> object:
        return torch.autograd.grad(layer.weight.square().sum(), list(layer.parameters()))

    for run in (ours, theirs):
        run()
    times = [(seconds(theirs), seconds(ours)) for _ in range(3 * repeats)]
    faster = statistics.median(a / b for a, b in times)
    yield f"directions, d {d}, k {k}: times faster than torch's", faster, 0.0, 10.0, 20.0


def map_rows(args: argparse.Namespace) -> Iterator[Row]:
    """A heat map of SmolLM2-135M on IOI, a cell that is run, and the whole map a prompt."""
    model = load_model("smollm2-135m")
    pairs = load_task("ioi").pairs("test", model, limit=16)
    batch = model.batch(pairs)
    forward = plain(model, batch.clean)
    n, tokens = batch.clean.shape
    layers = model.graph.n_layers
    differs = (batch.clean != batch.counterfactual) & batch.mask
    first = differs.int().argmax(dim=1).tolist()
    cells = [
        (tokens - column) * (layers - 1 - layer) / (tokens * layers)
        for begin in first
        for layer in range(layers)
        for column in range(begin, tokens)
        if layer + 1 < layers or column + 1 == tokens
    ]
    whole = ratio(
        lambda: seconds(lambda: patch(model, batch, progress=SILENT)), forward, args.repeats
    )
    name = f"patching map, {layers} layers x {tokens} tokens: a cell that is run"
    yield name, whole * n / len(cells), statistics.fmean(cells), 0.20, 0.12
    yield "the whole map, a prompt", whole, sum(cells) / n + 2, None, None


def print_rows(title: str, rows: Iterator[Row]) -> None:
    print(f"\n{title}")
    print("| job | multiples of a forward | floor | must reach | stretch |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name, value, bound, must, stretch in rows:
        told = [f"{x:g}" if x else "" for x in (must, stretch)]
        print(
            f"| {name} | {value:.3g} | {f'{bound:.3g}' if bound else ''} | {told[0]} | {told[1]} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", nargs="+", default=["llama", "gpt2", "neox"])
    for name, default in (("layers", 24), ("rows", 16), ("tokens", 30), ("k", 16), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-map", action="store_true")
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    if not args.no_map:
        print_rows("Directions", direction_rows(args.repeats))
    if not args.no_map and is_fetched("smollm2-135m"):
        print_rows("SmolLM2-135M, IOI", map_rows(args))
    for kind in args.shape:
        title = f"{kind}: {args.layers} layers, {args.rows} rows x {args.tokens} tokens, k {args.k}"
        print_rows(title, training_rows(model_of(kind, args.layers), args))


if __name__ == "__main__":
    main()
