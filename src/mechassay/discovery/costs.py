"""What a run of circuits takes (`runs.costs`), from the config, the tokenizer and the task.

The steps of one model and task, each with the engine's own budgets for its chunks:

    load        weights
    pairs       the model on the test pairs
    METHOD      `Method.forwards` passes of a train pair, and for gradients two operations an edge,
                dimension and token; of "auto" half a curve on validation pairs for each candidate
    controls    random rankings of both kinds at nine sizes, the empty and the full circuit
    measuring   two rankings of each method, one on the validation pairs, one for each resample

Prompts are those of the task: the first pairs of a split say how long they are, and from
which column on they differ. Without a tokenizer on this machine words are counted
(`sample_pairs`), and prompts are taken to differ from the first column on. Metrics beside the
curve, bootstraps and pages are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mechassay.circuits.evaluation.ablation import OptimalAblation
from mechassay.circuits.methods.attribution import CONTRACTION_BYTES, contracted_bytes
from mechassay.circuits.methods.eap import EdgeGradientMethod, GradientMethod
from mechassay.circuits.methods.mask_learning import MaskMethod
from mechassay.circuits.methods.method import Method, token_bytes
from mechassay.circuits.methods.stability import N_PARTS, scored_again
from mechassay.discovery.job import CircuitsJob
from mechassay.discovery.study import MOST_VALIDATION, TypedMethod, optimal_ablation
from mechassay.models.decoder import Decoder
from mechassay.models.memory import (
    SPAN_SHARE,
    changed_share,
    copies_within,
    kept_run_bytes,
    may_be_kept,
    past_bytes,
    prefix_bytes,
    trace_bytes,
)
from mechassay.models.model import Model, outline
from mechassay.runs.costs import (
    PRODUCTS,
    RANKINGS,
    SIZES,
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
    token_operations,
)
from mechassay.runs.job import Cell, shown_model
from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.truth.ground_truth import is_truth

NOT_COUNTED = "Not counted: bootstraps, pages, and metrics beside the curve."


def circuits_cost(job: CircuitsJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run of circuits take on a device of this machine.

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


def prompts_of(job: CircuitsJob, model: Model, task: Task, split: str, n: int) -> PromptSizes:
    """How long the pairs of a split are, by the first of them."""
    settings: dict[str, Any] = {
        "counterfactual": job.counterfactual,
        "seed": job.seed,
        "private_seed": job.private_seed,
    }
    batch = sample_pairs(task, model, split, n, **settings)
    return PromptSizes.like(batch, n, differ=job.ablation == "counterfactual")


def scoring_bytes(
    method: Method,
    decoder: Decoder,
    prompts: PromptSizes,
    budget: int,
    room: int,
    device: torch.device,
) -> float:
    """What a method holds beyond the weights: its largest chunk, and what it is contracted in.

    Args:
        budget: bytes of a chunk of several examples.
        room: those of one example; a longer one is run in spans of columns by some methods.
    """
    columns, per_token = prompts.columns, token_bytes(method, decoder, prompts.columns)
    if (
        isinstance(method, GradientMethod)
        and method.in_spans
        and (per_token * columns > max(room, budget))
    ):
        copies = copies_within(decoder, method.copies, columns, room)
        return SPAN_SHARE * room + past_bytes(decoder, copies) * columns + CONTRACTION_BYTES
    # Gradients at the clean run go through all columns where pairs share few (`differentiate`).
    if (
        isinstance(method, GradientMethod)
        and method.in_spans
        and (method.path or 3 * (1 - prompts.share) > 1)
    ):
        changed = changed_share(decoder, method.copies, columns)
        per_token = round(per_token * (1 - changed * (1 - prompts.share)))
    runs = 0.0
    if isinstance(method, MaskMethod) and not _inner(method):
        # A step is on a batch of the pairs, whose runs are kept: one of them whole at first.
        run = float(prompts.n * columns * kept_run_bytes(decoder))
        runs = run if may_be_kept(int(run), device) else 0.0
        prompts = prompts.of(min(method.batch_size, prompts.n))
    chunk = chunk_tokens(per_token, prompts, budget)
    held = chunk * per_token + runs
    for part in (method, *_inner(method)):
        if isinstance(part, EdgeGradientMethod):
            block = contracted_bytes(decoder, part.copies) * chunk * prompts.share
            held = max(held, chunk * per_token + runs + min(block, CONTRACTION_BYTES))
        if isinstance(part, MaskMethod):
            n_masks = part.samples * (min(part.batch_size, prompts.n) if part.per_example else 1)
            # Drawn, by hard concrete's steps, and the optimiser's state.
            held += (4 + 3 * n_masks) * _table_bytes(decoder)
    return held


def measuring_bytes(
    decoder: Decoder, prompts: PromptSizes, budget: int, room: int, n_circuits: int
) -> float:
    """What circuits hold that are run together: the largest chunk, and which edges each has.

    Args:
        budget, room: see `scoring_bytes`.
    """
    per_token, edges = trace_bytes(decoder), n_circuits * _table_bytes(decoder) / 4
    if per_token * prompts.columns > max(room, budget):
        kept = (past_bytes(decoder) + prefix_bytes(decoder)) * prompts.columns
        return 2 * SPAN_SHARE * room + kept + edges
    return chunk_tokens(per_token, prompts, budget) * per_token + edges


def _table_bytes(decoder: Decoder) -> float:
    """Of a number for every writer and reader, in fp32."""
    return 4.0 * decoder.graph.n_writers * decoder.graph.n_readers


def _inner(method: Method) -> Sequence[Method]:
    return getattr(method, "inner", tuple)()


def _model_cost(
    job: CircuitsJob, cells: Sequence[Cell], model: Model, memory: FreeMemory
) -> ModelCost:
    source, decoder = cells[0].typed["model"], model.decoder
    size, task = model_size(model, source), load_task(cells[0].of["task"])
    budget, room = memory.beside(size)
    train = prompts_of(job, model, task, job.train_split, job.train_limit)
    steps = [load_step(size)]
    typed = [
        TypedMethod.of(text, job.ablation)
        for cell in cells
        if (text := cell.typed["method"]) not in job.scores
    ]
    measured = job.stage == "all"
    test = prompts_of(job, model, task, job.test_split, job.test_limit) if measured else train
    plain, circuit = token_operations(size, test.share)
    validation = test.of(min(job.test_limit, MOST_VALIDATION))
    runs = 2.0 * size.body * test.columns * (1 + test.share)
    """Operations of a pair's two runs."""

    def measuring(name: str, pairs: PromptSizes, n_circuits: float) -> CostStep:
        operations = pairs.n * (runs + n_circuits * circuit * pairs.columns)
        return CostStep(
            name, measuring_bytes(decoder, pairs, budget, room, int(n_circuits)), operations
        )

    if "optimal" in {job.ablation, *(own.ablation for own in typed)}:
        learned: OptimalAblation = optimal_ablation(job.optimal, job.seed)
        passes = learned.forwards(model.graph, train.n)
        steps.append(CostStep("constants", float(budget), passes * 2.0 * size.body * train.columns))
    for own in typed:
        held = scoring_bytes(own.method, decoder, train, budget, room, memory.device)
        steps.append(
            CostStep(
                own.name, held, scoring_operations(own.method, size, train, _scorings(job, own))
            )
        )
        candidates: Sequence[Method] = getattr(own.method, "candidates", tuple)()
        if candidates:
            n_tried = len(candidates) * (SIZES + 2)
            steps.append(measuring(f"{own.name}: candidates", validation, n_tried))
    if measured and job.curve:
        known = is_truth(source) or bool(job.known)
        n_tried = len(job.methods) + len(job.scores)
        n_random = job.random_rankings or (DRAWS_PER_TRY * n_tried if known else FEW_DRAWS)
        steps.append(CostStep("pairs", 0.0, test.n * plain * test.columns / test.share))
        steps.append(measuring("controls", test, 2 * n_random * SIZES + 2))
        curves = RANKINGS * SIZES * (1 + job.resamples) + 1
        for cell in cells:
            name = cell.of["method"]
            steps.append(measuring(f"{name}: size", validation, SIZES + 2))
            steps.append(measuring(f"{name}: curves", test, curves))
    scores = (N_PARTS + 3) * 4.0 * model.graph.n_edges
    return ModelCost(shown_model(source), size, scores, tuple(steps))


def _scorings(job: CircuitsJob, typed: TypedMethod) -> int:
    """How often a method runs, its resamples or other seeds with it."""
    return 1 + job.resamples * scored_again(typed.method, job.over)


def scoring_operations(
    method: Method, size: ModelSize, train: PromptSizes, times: int = 1
) -> float:
    """Of the passes that a method says it takes: one is whole, others where prompts differ.

    Args:
        times: how often the method runs.
    """
    passes = times * method.forwards(size.graph, train.n) / train.n
    token = 2.0 * size.body * (min(passes, 1.0) + max(0.0, passes - 1.0) * train.share)
    if isinstance(method, EdgeGradientMethod):
        token += 2.0 * size.graph.n_edges * size.width * train.share
    return train.n * train.columns * token


def total_bytes(size: ModelSize, libraries: float, step: float) -> float:
    """The peak of a process that loads a model and does one step."""
    return libraries + PRODUCTS + size.bytes + max(size.file_bytes, step)
