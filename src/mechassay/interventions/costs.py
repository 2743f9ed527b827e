"""What activation patching takes (`runs.costs`), and what an intervention at a site does.

An intervention at layer l and column c runs the columns from c on and the layers behind l
(`interventions.intervene`); at a head, about half of its own layer too. For each part of a map:

    runs      of both prompts of every pair
    cells     those whose share is not known before they are run (`known_shares`), which the first
              pairs of the split tell; the others cost nothing
    logits    of every cell, where the objective reads all of them

Keys and values that attention reads, the choice of pairs (--keep), intervals and pages are not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechassay.errors import one_of
from mechassay.interventions.activation_patching import READOUTS, known_shares
from mechassay.interventions.intervene import STACK_TOKENS
from mechassay.interventions.job import PatchJob
from mechassay.interventions.site import PARTS, Part, blocks
from mechassay.models.decoder import Decoder
from mechassay.models.memory import kept_run_bytes, suffix_bytes, trace_bytes
from mechassay.models.model import Model, outline
from mechassay.runs.costs import (
    Cost,
    CostStep,
    FreeMemory,
    ModelCost,
    ModelSize,
    PromptSizes,
    chunk_tokens,
    cost_of,
    load_step,
    model_size,
    sample_pairs,
)
from mechassay.runs.job import Cell
from mechassay.tasks import load_task

NOT_COUNTED = "Not counted: intervals and pages."
BACKWARD = 3.0
"""Passes of a differentiated one: forwards, and twice that back."""
TWO_TOKENS = "logit_diff"
"""The objective that does not read all logits."""


def patch_cost(job: PatchJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run of activation patching take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little, or pairs that the model has to choose.
        MechassayError: the model's config or the task is not there.
    """

    def outlined(cell: Cell) -> Model:
        return outline(cell.typed["model"], dtype=job.dtype, prepend_bos=job.prepend_bos)

    notes = [NOT_COUNTED]
    if job.keep != "all":
        notes.append(f"The pairs are not those that the model chooses (--keep {job.keep}).")
    return cost_of(cells, device, outlined, lambda *part: _model_cost(job, *part), notes)


def layers_behind(size: ModelSize, layer: int, part: Part) -> float:
    """Operations of a token in the layers behind a site: two a weight."""
    n_layers = size.graph.n_layers
    return 2.0 * size.body * (n_layers - 1 - layer + (0.5 if part == "heads" else 0)) / n_layers


def stack_held(
    decoder: Decoder, columns: int, memory: FreeMemory, budget: int, *, gradients: bool
) -> float:
    """Bytes of interventions that are run together (`BaseRun`): a chunk, which is small on a
    CPU.
    """
    token, row = suffix_bytes(decoder, columns, gradients=gradients)
    small = STACK_TOKENS * (token + row) if memory.device.type == "cpu" else budget
    return float(max(token * columns + row, min(budget, small)))


def _model_cost(
    job: PatchJob, cells: Sequence[Cell], model: Model, memory: FreeMemory
) -> ModelCost:
    source, task, decoder = cells[0].typed["model"], load_task(cells[0].of["task"]), model.decoder
    size = model_size(model, source)
    budget, _ = memory.beside(size)
    batch = sample_pairs(
        task,
        model,
        job.split,
        job.limit,
        counterfactual=job.counterfactual,
        seed=job.seed,
        private_seed=job.private_seed,
    )
    pairs = PromptSizes.like(batch, job.limit)
    traced = 2 * trace_bytes(decoder)
    chunk = chunk_tokens(traced, pairs, budget)
    readout = 0 if (job.objective or task.objective) == TWO_TOKENS else size.unembedding
    stack = stack_held(decoder, pairs.columns, memory, budget, gradients=False)
    runs = pairs.n * 2 * 2.0 * (size.body * pairs.columns + readout)
    layers, steps, scores = blocks(model, None), [load_step(size)], 0.0
    for cell in cells:
        part = one_of("part of a site", cell.of["part"], PARTS)
        run = known_shares(model, batch, part, layers) != 0
        # A head changes all columns from the first one on that differs.
        begins = np.arange(run.shape[2])
        if part == "heads":
            begins = np.full(run.shape[2], pairs.columns * (1 - pairs.share))
        behind = np.array([layers_behind(size, layer, part) for layer in layers])
        of_cells = run.mean(axis=0) * behind[:, None] * (pairs.columns - begins)
        n_run = float(run.sum() / len(run))
        operations = runs + pairs.n * (float(of_cells.sum()) + 2.0 * readout * n_run)
        rows = chunk / pairs.columns * n_run
        logits = 4.0 * min(rows, READOUTS) * readout / size.width
        finals = 2.0 * rows * size.width * size.bytes_each
        held = chunk * 2 * kept_run_bytes(decoder) + finals + max(stack, 2 * logits)
        steps.append(CostStep(part, held, operations))
        scores += 16.0 * pairs.n * run[0].size
    return ModelCost(model.name, size, scores, tuple(steps))
