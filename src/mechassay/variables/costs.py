"""What a run for causal variables takes (`runs.costs`), from the config, tokenizer and task.

    examples    every example and counterfactual once, as if the model answered all of them
    heads       of IOI: every head exchanged at all tokens, on the train examples
    VARIABLE    whole vectors exchanged at every site, on test pairs
    FEATURIZER  for every k: steps x rows of a batch x sites, three passes of what is behind a site
                (forwards, and twice that back); then every site on validation and test pairs
    controls    the same at one site: of a random variable, and of a model with random weights,
                which is held beside the other; three draws of random directions

Behind a site are the layers after its own, and its column's: the last one, or half of them where
it is at another part. A pair is an example with one of its counterfactuals. Bases and sources are
run once a training and once a scoring. Principal components, answers of several tokens, examples
that the model answers wrong and others are drawn for, and pages are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.causal_models.hypothesis import defaults_of
from mechassay.errors import one_of
from mechassay.interventions.costs import BACKWARD, layers_behind, stack_held
from mechassay.interventions.site import ALL, LAST, PARTS, Site, sites
from mechassay.models.memory import kept_run_bytes, may_be_kept, trace_bytes
from mechassay.models.model import Model, outline
from mechassay.runs.costs import (
    SHARED,
    Cost,
    CostStep,
    FreeMemory,
    ModelCost,
    ModelSize,
    PromptSizes,
    chunk_tokens,
    columns_of,
    cost_of,
    load_step,
    model_size,
    sample_examples,
)
from mechassay.runs.job import Cell, layers_of
from mechassay.tasks import load_task
from mechassay.variables.featurizers import SIZED, n_features_of
from mechassay.variables.jobs import VariablesJob
from mechassay.variables.localization import DRAWS
from mechassay.variables.study import training_settings, variables_of

NOT_COUNTED = (
    "Not counted: examples that the model answers wrong, principal components, answers of several"
    " tokens, pages."
)


def variables_cost(job: VariablesJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run for variables take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little.
        MechassayError: the model's config or the task is not there.
    """

    def outlined(cell: Cell) -> Model:
        return outline(cell.typed["model"], dtype=job.dtype, prepend_bos=job.prepend_bos)

    return cost_of(cells, device, outlined, lambda *part: _model_cost(job, *part), [NOT_COUNTED])


def site_operations(size: ModelSize, places: Sequence[Site], columns: int) -> float:
    """Of one row's interventions at every site, each in a run of its own."""
    return sum(
        layers_behind(size, site.layer, site.part)
        * (1.0 if site.position == LAST else SHARED * columns)
        for site in places
    )


def _model_cost(
    job: VariablesJob, cells: Sequence[Cell], model: Model, memory: FreeMemory
) -> ModelCost:
    size, task = model_size(model, cells[0].typed["model"]), load_task(cells[0].of["task"])
    defaults, known = defaults_of(task.name), variables_of(job, cells[0].of["task"])
    examples = defaults.prepared(
        sample_examples(task, model, "train", job.train_limit, seed=job.seed)
    )
    columns = columns_of(model, [example.prompt.text for example in examples])
    n_kinds = len(job.kinds or defaults.kinds or examples[0].counterfactuals)
    train, validation, test = (
        n * n_kinds for n in (job.train_limit, job.validation_limit, job.test_limit)
    )
    n_examples = job.train_limit + job.validation_limit + job.test_limit
    plain = 2.0 * (size.body * columns + size.unembedding)
    budget, _ = memory.beside(size)
    swept = chunk_tokens(trace_bytes(model.decoder), PromptSizes(test, columns, 1.0), budget)
    forward = stack_held(model.decoder, columns, memory, budget, gradients=False)
    forward += swept * kept_run_bytes(model.decoder)
    kept = train * columns * kept_run_bytes(model.decoder)
    kept = kept if may_be_kept(kept, memory.device) else swept * kept_run_bytes(model.decoder)
    backward = stack_held(model.decoder, columns, memory, budget, gradients=True) + kept
    again = size.bytes if "untrained" in job.controls else 0.0
    steps = [load_step(size)]
    steps.append(CostStep("examples", forward, n_examples * (1 + n_kinds) * plain))
    settings = training_settings(job, task.name, model.family)
    rows = settings.n_steps(train) * min(settings.batch_size, train)
    layers = layers_of(job.layers, model.graph.n_layers)
    positions = job.positions or defaults.positions
    part = one_of("part of a site", job.part, PARTS)
    of_heads = {name for name, own in known.items() if own.model.contrast is not None}
    if of_heads:
        heads = sites(model, positions=ALL, layers=layers, parts="heads")
        operations = job.train_limit * (2 * plain + site_operations(size, heads, columns))
        steps.append(CostStep("heads", forward, operations))
    for variable in dict.fromkeys(cell.of["variable"] for cell in cells):
        places = sites(model, positions=positions, layers=layers, parts=part)
        if variable in of_heads:
            # All are exchanged in one run: it begins at the first of them.
            places = (Site(model.graph.n_layers // 2, ALL, "heads", (0,)),)
        if variable not in of_heads:
            one = site_operations(size, places, columns) + 2 * plain
            steps.append(CostStep(f"{variable}: whole vectors", forward, test * one))
        for cell in (cell for cell in cells if cell.of["variable"] == variable):
            name = cell.of["featurizer"]
            searched = places
            if job.train_at is not None and name != "full-vector" and variable not in of_heads:
                searched = places[:: -(-len(places) // job.train_at)]
            width = places[0].width(model.decoder)
            ks = job.ks or n_features_of(job.profile, task.name, variable, width)
            n_fits = len(ks) if name in SIZED else 1
            own = site_operations(size, searched, columns) + 2.0 * size.unembedding
            scored = (validation + test) * (2 * plain + own)
            trained = 0.0 if name == "full-vector" else 2 * train * plain + BACKWARD * rows * own
            controls = 0.0 if name == "full-vector" else trained / len(searched) * len(job.controls)
            if variable in of_heads:
                controls = 0.0
            drawn = DRAWS * test * own / len(searched)
            steps.append(
                CostStep(
                    f"{variable}: {name}",
                    (backward if trained else forward) + again,
                    n_fits * (trained + scored) + controls + drawn,
                )
            )
    return ModelCost(model.name, size, 0.0, tuple(steps))
