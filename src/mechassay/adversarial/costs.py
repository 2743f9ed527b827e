"""What adversarial evaluation takes (`runs.costs`), from the config, the tokenizer and the task.

    METHOD     the passes of a method that finds a circuit, as in `discovery.costs`
    pairs      every circuit on every pair: of a grid n_clean x n_corrupted, else n_clean; and the
               logits of each, which a divergence reads all of
    controls   the full and the empty circuit, and two random ones for each, on `controls` squared
               pairs

A circuit takes what one takes on average of ten sizes (`runs.costs`). One that is known to be
smaller than their mean, `MEAN_SIZE` of all edges, has less for its edges, in proportion. Of a grid,
prefixes that prompts share are run once: what is left of the tokens are the distinct prefixes of
both sides among the first pairs, of which more prompts share more. `--same` and `--where` leave out
pairs that are counted here. Statistics and pages are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechassay.adversarial.evaluation import BLOCK_TOKENS, BUDGET, count_prefixes
from mechassay.adversarial.jobs import AdversarialJob
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.discovery.costs import scoring_bytes, scoring_operations
from mechassay.errors import BadUsage
from mechassay.models.model import Model, outline
from mechassay.runs.costs import (
    Cost,
    CostStep,
    FreeMemory,
    ModelCost,
    PromptSizes,
    cost_of,
    load_step,
    model_size,
    sample_pairs,
    token_operations,
)
from mechassay.runs.job import Cell
from mechassay.tasks import load_task

NOT_COUNTED = "Not counted: statistics and pages; pairs that --same and --where leave out are."


MEAN_SIZE = 0.19
"""Mean share of edges of circuits of .001, .002, .005, .01, ..., .5 and 1 of them."""


def adversarial_cost(job: AdversarialJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of an adversarial run take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little; `--enumerate`, whose pairs are known once
            they are drawn.
        MechassayError: the model's config or the task is not there.
    """
    if job.enumerate_all:
        raise BadUsage("How many pairs --enumerate takes is known once they are drawn.")

    def outlined(_: Cell) -> Model:
        return outline(job.model, dtype=job.dtype, prepend_bos=job.prepend_bos)

    return cost_of(cells, device, outlined, lambda *part: _model_cost(job, *part), [NOT_COUNTED])


def _model_cost(
    job: AdversarialJob, cells: Sequence[Cell], model: Model, memory: FreeMemory
) -> ModelCost:
    size, task, decoder = model_size(model, job.model), load_task(job.task), model.decoder
    budget, room = memory.beside(size)
    about = {"counterfactual": job.counterfactual, "seed": job.seed}
    batch = sample_pairs(task, model, job.split, job.n_clean, **about)
    columns, is_grid = batch.n_tokens, job.paired and job.design == "grid"
    share = PromptSizes.like(batch, 1, differ=job.paired).share
    if is_grid:
        sides = [
            np.array(count_prefixes(x)[1:]) / len(x) for x in (batch.clean, batch.counterfactual)
        ]
        share = float((sides[0] * sides[1]).mean())
    plain, logits = 2.0 * size.body * columns, 2.0 * size.unembedding
    words = size.unembedding / size.width
    per_token = (8 * size.graph.n_layers + size.graph.n_writers) * size.width * size.bytes_each
    block = max(1, int(min(BLOCK_TOKENS, BUDGET // per_token)) // columns)

    def divergences(name: str, n_clean: int, n_corrupted: int, sizes: Sequence[float]) -> CostStep:
        n_pairs = n_clean * n_corrupted if is_grid else n_clean
        runs = n_clean + (-(-n_clean // block) * n_corrupted if is_grid else n_pairs)
        rows = min(block, n_clean)
        held = rows * (columns * per_token + 3 * 4.0 * words) + 4.0 * n_pairs * (len(sizes) + 1)
        shares = [min(1.0, n_edges / (MEAN_SIZE * size.graph.n_edges)) for n_edges in sizes]
        of_pair = sum(token_operations(size, share, x)[1] * columns + logits for x in shares)
        return CostStep(name, held, runs * (plain + logits) + n_pairs * of_pair)

    steps = [load_step(size)]
    specs = [CircuitSpec.parse(text) for text in job.circuits]
    for name in dict.fromkeys(spec.name for spec in specs if spec.kind == "method"):
        method = METHODS.make(name)
        discovery = sample_pairs(task, model, "train", job.train_limit, **about)
        train = PromptSizes.like(discovery, job.train_limit, differ=job.paired)
        held = scoring_bytes(method, decoder, train, budget, room, memory.device)
        steps.append(CostStep(name, held, scoring_operations(method, size, train)))
    n_corrupted = job.n_corrupted or job.n_clean
    sizes = [edges_of(spec, size.graph.n_edges) for spec in specs]
    steps.append(divergences("pairs", job.n_clean, n_corrupted, sizes))
    most = job.controls if is_grid else job.controls**2
    n_clean, n_corrupted = min(job.n_clean, most), min(n_corrupted, most)
    steps.append(
        divergences("controls", n_clean, n_corrupted, [size.graph.n_edges, 0, *sizes, *sizes])
    )
    return ModelCost(model.name, size, 0.0, tuple(steps))


def edges_of(spec: CircuitSpec, n_edges: int) -> float:
    """Edges of a circuit, of a graph that has so many; all of them where it does not say."""
    if spec.kind == "empty":
        return 0.0
    if spec.size is None:
        return float(n_edges)
    return spec.size * n_edges if isinstance(spec.size, float) else float(spec.size)
