"""What scoring models on tasks takes (`runs.costs`): every context once (`tasks.accuracy`).

A context is a prompt, or what one of its continuations looks like before one of its tokens. What
contexts begin with in common is run once (`models.generation`): the first examples say how many
contexts an example has and of how many different tokens. What two examples have in common is
counted twice. MIB's scoring beside, which writes a few tokens, intervals and pages are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.errors import BadUsage
from mechassay.models.model import Model, outline
from mechassay.runs.accuracy import AccuracyJob
from mechassay.runs.costs import (
    Cost,
    CostStep,
    FreeMemory,
    ModelCost,
    columns_of,
    cost_of,
    load_step,
    model_size,
    sample_examples,
)
from mechassay.runs.job import Cell
from mechassay.tasks import load_task
from mechassay.tasks.accuracy import ROWS_OF_LOGITS, contexts_of

NOT_COUNTED = "Not counted: MIB's scoring, intervals and pages."


def accuracy_cost(job: AccuracyJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run that scores models take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little; a task that does not say its size.
        MechassayError: the model's config or the task is not there.
    """

    def outlined(cell: Cell) -> Model:
        return outline(cell.typed["model"], dtype=job.dtype, prepend_bos=job.prepend_bos)

    return cost_of(cells, device, outlined, lambda *part: _model_cost(job, *part), [NOT_COUNTED])


def _model_cost(
    job: AccuracyJob, cells: Sequence[Cell], model: Model, memory: FreeMemory
) -> ModelCost:
    size = model_size(model, cells[0].typed["model"])
    budget, _ = memory.beside(size)
    logits = 2 * 4.0 * ROWS_OF_LOGITS * size.unembedding / size.width
    steps = [load_step(size)]
    for cell in cells:
        task = load_task(cell.of["task"])
        known = task.sizes.get(job.split, 0)
        n = min(job.limit or known, known or job.limit or 0)
        if not n:
            raise BadUsage(f"How many examples {task.name} has is known once it is read: --limit.")
        examples = sample_examples(
            task, model, job.split, n, seed=job.seed, private_seed=job.private_seed
        )
        operations = 0.0
        for example in examples:
            prompts = [example.prompt, *example.counterfactuals.values()]
            if model.tokenizer is None:
                n_contexts = len(prompts)
                n_tokens = sum(columns_of(model, [prompt.text]) for prompt in prompts)
            else:
                contexts = contexts_of(model, prompts)
                begun = {context[:end] for context in contexts for end in range(len(context))}
                n_contexts, n_tokens = len(contexts), len({*begun, *contexts}) - 1
            operations += 2.0 * (size.body * n_tokens + size.unembedding * n_contexts)
        steps.append(CostStep(task.name, budget + logits, n / len(examples) * operations))
    return ModelCost(model.name, size, 0.0, tuple(steps))
