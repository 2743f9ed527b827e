"""What methods on gym tasks take (`runs.costs`), from the config, the tokenizer and the task.

Of every task, with sites at all tested regions of the layers:

    values    bases of all splits once, sources once a training and once a split
    METHOD    for every draw, kind of labels and candidate that is trained: steps x rows of a batch
              x sites, three passes of what is behind a site (forwards, and twice that back)
    odds      every site's exchange for every fit, on validation and test items
    untrained the same in a model of random weights, without control labels and shuffled ones; its
              weights are held beside the others

Behind a site are the layers after its own and the columns from its region on, which the first
pairs tell. What finders do with values on the CPU (probes, k-means, axes) is not counted; it is
most of a run of probes on a small model.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.features.das import TrainedFinder
from mechassay.features.finder import ValueFinder
from mechassay.gym.jobs import GymJob
from mechassay.gym.methods import GymMethod, gym_method
from mechassay.interventions.costs import BACKWARD, layers_behind, stack_held
from mechassay.interventions.intervention import tokens_of
from mechassay.interventions.site import Site, blocks
from mechassay.models.memory import kept_run_bytes, may_be_kept
from mechassay.models.model import Model, outline
from mechassay.runs.costs import (
    SAMPLE,
    Cost,
    CostStep,
    FreeMemory,
    ModelCost,
    ModelSize,
    cost_of,
    load_step,
    model_size,
)
from mechassay.runs.job import Cell, layers_of

NOT_COUNTED = "Not counted: what finders do with values, such as probes; intervals and pages."
FP64 = 8.0


def gym_cost(job: GymJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run on gym tasks take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little, or that has no tokenizer here.
        MechassayError: the model's config or the task is not there.
    """

    def outlined(cell: Cell) -> Model:
        name = cell.typed["model"]
        return outline(name, dtype=job.dtype_of(name), prepend_bos=job.prepend_bos)

    return cost_of(cells, device, outlined, lambda *part: _model_cost(job, *part), [NOT_COUNTED])


def _model_cost(job: GymJob, cells: Sequence[Cell], model: Model, memory: FreeMemory) -> ModelCost:
    size = model_size(model, cells[0].typed["model"])
    steps = [step for cell in cells for step in _task_steps(job, cell, model, size, memory)]
    return ModelCost(model.name, size, 0.0, (load_step(size), *steps))


def _task_steps(
    job: GymJob, cell: Cell, model: Model, size: ModelSize, memory: FreeMemory
) -> list[CostStep]:
    task, decoder = job.gym_task(cell.typed["task"]), model.decoder
    limits = {"train": job.train_limit, "validation": job.validation_limit, "test": job.test_limit}
    train, *others = (min(n, task.sizes[split]) for split, n in limits.items())
    n_items = sum(others)
    pairs = task.interchanges("train", model, limit=min(train, SAMPLE), seed=job.seed)
    batch = pairs.batch(model)
    columns = batch.base.shape[1]
    at = [tokens_of(batch, Site(0, region))[1].double().mean() for region in pairs.tested]
    layers = blocks(model, layers_of(job.layers, model.graph.n_layers))
    behind = sum(layers_behind(size, layer, "resid") for layer in layers)
    n_sites, row = len(at) * len(layers), float(sum(columns - column for column in at)) * behind
    """Sites, and operations of one row's exchanges at all of them."""
    plain = 2.0 * (size.body * columns + size.unembedding)
    kept = train * columns * kept_run_bytes(decoder)
    kept = kept if may_be_kept(kept, memory.device) else 0
    values = (train + n_items) * n_sites * decoder.d_model * FP64
    budget, _ = memory.beside(size)
    forward, backward = (
        stack_held(decoder, columns, memory, budget, gradients=gradients)
        for gradients in (False, True)
    )

    def of_methods(
        name: str, methods: Sequence[GymMethod], n_kinds: int, held: float
    ) -> list[CostStep]:
        steps, n_fits = [CostStep(f"{name}: values", held + forward, (train + n_items) * plain)], 0
        for method in methods:
            draws, trained = len(job.seeds) if method.seeded else 1, 0.0
            for finder in method.candidates.values():
                of_values = isinstance(finder, ValueFinder) and not finder.needs_source
                fits = draws * (1 if of_values or method.shuffled else n_kinds)
                n_fits += fits
                if isinstance(finder, TrainedFinder):
                    plan = finder.plan(train)
                    exchanges = row + 2.0 * size.unembedding * n_sites
                    once = 2 * train * plain + BACKWARD * plan.steps * plan.size * exchanges
                    trained += fits * once
            if trained:
                steps.append(CostStep(f"{name}: {method.name}", held + backward + kept, trained))
        odds = n_items * (2 * plain + n_fits * row)
        return [*steps, CostStep(f"{name}: odds", held + forward, odds)]

    methods = [gym_method(text, decoder.d_model) for text in job.every_method]
    steps = of_methods(cell.of["task"], methods, 2 if "labels" in job.controls else 1, values)
    if "untrained" in job.controls:
        own = [method for method in methods if not method.shuffled]
        held = 2 * values + size.bytes
        steps += of_methods(f"{cell.of['task']}, untrained", own, 1, held)
    return steps
