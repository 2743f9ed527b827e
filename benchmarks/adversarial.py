"""What a pair of a clean and a corrupted prompt costs,
in multiples of a plain forward of the clean prompt.

    python benchmarks/adversarial.py [--clean 160] [--corrupted 16] [--repeats 3]

GPT-2 small's shape with random weights. Prompts are of two kinds, and neighbours in the order in
which a pool of 1000 is run:

- the paper's: one template, random tokens in its fields, each with as many values as the paper has
  words;
- the task's: the IOI task's own test prompts and `abc_counterfactual` ones, in SmolLM2's tokens
  (`mechassay models fetch smollm2-135m`): its templates, names, places and objects, 19 tokens a
  prompt.

The plain forward is Hugging Face's, with logits at the last position alone, at the batch size that
suits it best. A pair is one of a grid: what depends on the clean prompt alone is done once for all
its corrupted ones, so that grids with two numbers of corrupted prompts are timed and their
difference is divided by the difference in pairs. The run of the corrupted prompt (one for every
clean block), the KL and the empty circuit are in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from bench import plain_model, timed
from torch import Tensor

import mechassay as ma
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.circuits.canonical import canonical
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.eap import EAPIGInputs
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Prompt
from mechassay.tasks.ioi import ABC
from mechassay.utils.display import SILENT

# Letters are fields, dots are words that all prompts share: "<BOS> When A and B went to the P, B
# gave a O to", "The N lasted from the year YZ to Y", and how many names, places, objects, nouns,
# centuries and years there are.
IOI = "..a.b...p.b..o."
GREATER_THAN = ".n....yz.y"
VALUES = {"a": 100, "b": 100, "p": 8, "o": 8, "n": 120, "y": 7, "z": 97}
POOL, BATCHES = 1000, (8, 32, 128)


def prompts(shape: str, n: int, seed: int) -> Pool:
    """Random prompts of a shape: the middle of a pool, which is in the order of its tokens."""
    generator = torch.Generator().manual_seed(seed)
    fields = {
        name: torch.randint(0, VALUES[name], (POOL,), generator=generator) + 100 * ord(name)
        for name in sorted(set(shape) - {"."})
    }
    fixed = torch.arange(len(shape)).expand(POOL, -1)
    columns = [fixed[:, place] if name == "." else fields[name] for place, name in enumerate(shape)]
    begin = (POOL - n) // 2
    rows = sorted(torch.stack(columns, dim=1).tolist())[begin : begin + n]
    return Pool(tuple(Prompt(str(row)) for row in range(n)), torch.tensor(rows))


def task_prompts() -> Callable[[int, int], Pool]:
    """The middle of the IOI task's own pools, in the order of their tokens:
    of the clean one for odd seeds, else of the corrupted one.
    """
    reader = ma.load_model("smollm2-135m")
    pools = draw_pools(reader, ma.load_task("ioi"), POOL, POOL, counterfactual=ABC)
    ordered = [sorted(pool.tokens.tolist()) for pool in pools]

    def middle(n: int, seed: int) -> Pool:
        begin = (POOL - n) // 2
        rows = ordered[(seed + 1) % 2][begin : begin + n]
        return Pool(tuple(Prompt(str(row)) for row in range(n)), torch.tensor(rows))

    return middle


def top_edges(model: Model, draw: Callable[[int, int], Pool], share: float) -> Circuit:
    """The strongest edges by EAP-IG on some pairs."""
    clean, other = (draw(8, seed).tokens for seed in (5, 6))
    batch = Batch.from_tokens(clean, other, list(range(8)), list(range(8, 16)))
    return (
        EAPIGInputs(steps=5)
        .score(model, batch, progress=SILENT)
        .top(share, by="magnitude")
        .pruned()
    )


def forward_seconds(model: Model, tokens: Tensor) -> float:
    """A plain forward of one prompt, at the best of some batch sizes."""

    def run(size: int) -> float:
        with torch.no_grad():
            return timed(lambda: model.hf(tokens[:size], use_cache=False, logits_to_keep=1)) / size

    return min(run(size) for size in BATCHES for _ in range(3))


def one_ratio(model: Model, circuit: Circuit, clean: Pool, corrupted: Pool) -> float:
    """A pair of a grid, in forwards timed right before and after."""

    def grid(n: int) -> float:
        few = corrupted.select(range(n))
        return timed(lambda: evaluate_pairs(model, [circuit], clean, few, progress=SILENT))

    before = forward_seconds(model, clean.tokens)
    seconds = grid(len(corrupted)) - grid(2)
    after = forward_seconds(model, clean.tokens)
    return seconds / (len(clean) * (len(corrupted) - 2)) / ((before + after) / 2)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", type=int, default=160)
    parser.add_argument("--corrupted", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    model = plain_model("gpt2-small-random")
    ioi, greater_than = partial(prompts, IOI), partial(prompts, GREATER_THAN)
    task = task_prompts()
    literature = {name: canonical(name, model.graph).circuit for name in ("ioi", "greater-than")}
    rows = [
        ("IOI, canonical, the paper's prompts", ioi, literature["ioi"], "0.8x", "0.6x"),
        ("IOI, canonical, the task's prompts", task, literature["ioi"], "", ""),
        ("greater-than, canonical", greater_than, literature["greater-than"], "0.4x", "0.25x"),
        (
            "1 % of edges, EAP-IG, greater-than's prompts",
            greater_than,
            top_edges(model, greater_than, 0.01),
            "0.3x",
            "",
        ),
        (
            "1 % of edges, EAP-IG, IOI, the paper's prompts",
            ioi,
            top_edges(model, ioi, 0.01),
            "0.3x",
            "",
        ),
        (
            "1 % of edges, EAP-IG, IOI, the task's prompts",
            task,
            top_edges(model, task, 0.01),
            "",
            "",
        ),
    ]
    out = sys.stdout.write
    out(
        "| circuit | edges | live heads + MLPs | must reach | stretch | a pair |\n| --- | --- | ---"
        " | --- | --- | --- |\n"
    )
    for name, draw, circuit, must, stretch in rows:
        clean, corrupted = draw(args.clean, 1), draw(args.corrupted, 2)
        ratios = [one_ratio(model, circuit, clean, corrupted) for _ in range(args.repeats)]
        live = circuit.live()
        mlps = int(
            live[[model.graph.mlp_writer(layer) for layer in range(model.graph.n_layers)]].sum()
        )
        heads = int(live.sum()) - mlps - int(live[0])
        out(
            f"| {name} | {len(circuit)} | {heads} + {mlps} | {must} | {stretch} |"
            f" **{statistics.median(ratios):.2f}x** |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
