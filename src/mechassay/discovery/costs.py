"""What a run of circuits takes (`runs.costs`), from the config, the tokenizer and the task.

The steps of one model and task, each with the engine's own budgets for its chunks:

    load        weights
    pairs       the model on the test pairs
    METHOD      `Method.forwards` passes of a train pair, and for gradients two operations an edge,
                dimension and token; of "auto" half a curve on validation pairs for each candidate
    controls    random rankings of both kinds at nine sizes, the empty and the full circuit
    measuring   two rankings of each method, one on the validation pairs, one for each resample

Prompts are those of the task: the first `SAMPLE` pairs of a split say how long they are, and from
which column on they differ. Without a tokenizer on this machine words are counted
(`TOKENS_A_WORD`), and prompts are taken to differ from the first column on. Metrics beside the
curve, bootstraps and pages are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from mechassay.circuits.evaluation.ablation import OptimalAblation
from mechassay.circuits.methods.attribution import CONTRACTION_BYTES, contracted_bytes
from mechassay.circuits.methods.eap import EdgeGradientMethod
from mechassay.circuits.methods.mask_learning import MaskMethod
from mechassay.circuits.methods.method import Method, token_bytes
from mechassay.circuits.methods.stability import N_PARTS, is_mean_of_pairs
from mechassay.discovery.job import CircuitsJob
from mechassay.discovery.study import MOST_VALIDATION, TypedMethod, optimal_ablation
from mechassay.models.decoder import Decoder
from mechassay.models.memory import available_bytes, budget_of, trace_bytes
from mechassay.models.model import Model, check_device, outline
from mechassay.models.sources import find_source
from mechassay.prompts.batch import Batch
from mechassay.runs.costs import (
    BEGIN,
    PRODUCTS,
    RANKINGS,
    READ,
    SIZES,
    Cost,
    CostStep,
    ModelCost,
    ModelSize,
    token_operations,
)
from mechassay.runs.job import Cell, shown_model
from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.truth.ground_truth import is_truth

SAMPLE = 64
TOKENS_A_WORD = 1.4
NOT_COUNTED = "Not counted: bootstraps, pages, and metrics beside the curve."


class PromptSizes(NamedTuple):
    """So many pairs: columns of the longest, and the share of them from where prompts differ."""

    n: int
    columns: int
    share: float

    def of(self, n: int) -> PromptSizes:
        """As long prompts of another number of pairs."""
        return self._replace(n=n)


def circuits_cost(job: CircuitsJob, cells: Sequence[Cell], device: str) -> Cost:
    """What cells of a run of circuits take on a device of this machine.

    Raises:
        BadUsage: a model whose config says too little, or pairs that the model has to choose.
        MechassayError: the model's config or the task is not there.
    """
    place = check_device(device)
    libraries = float(psutil.Process().memory_info().rss)
    free = available_bytes(place)
    parts: list[ModelCost] = []
    notes = [NOT_COUNTED]
    for _, group in groupby(cells, key=lambda cell: cell.shares):
        own = list(group)
        name, task = own[0].typed["model"], own[0].of["task"]
        model = outline(name, dtype=job.dtype, prepend_bos=job.prepend_bos)
        if model.tokenizer is None:
            notes.append(
                f"{model.name} has no tokenizer here: prompts are {TOKENS_A_WORD} x words."
            )
        parts.append(_model_cost(job, own, model, load_task(task), place, free))
    if job.keep != "all":
        notes.append(f"The pairs are not those that the model chooses (--keep {job.keep}).")
    if place.type != "cpu":
        notes.append("Minutes are a product's: on a GPU, which waits for Python, it takes longer.")
    return Cost(tuple(parts), place.type, libraries, free, tuple(dict.fromkeys(notes)))


def model_size(model: Model, source: str) -> ModelSize:
    """The size of an outline; weights in another dtype on disk are held while they are read."""
    known_source = find_source(source)
    size = ModelSize.of(model)
    if known_source.untrained:
        return size
    stored: Any = model.hf.config.dtype
    file_bytes = model.n_parameters * stored.itemsize
    if known_source.kind != "hub":
        files = Path(known_source.location).glob("*.safetensors")
        file_bytes = sum(path.stat().st_size for path in files) or file_bytes
    # Headers and tensors that are no parameters are a small part of a file.
    same = 0.9 < file_bytes / size.bytes < 1.1
    return size if same else ModelSize.of(model, file_bytes)


def prompts_of(job: CircuitsJob, model: Model, task: Task, split: str, n: int) -> PromptSizes:
    """How long the pairs of a split are, by the first of them."""
    settings: dict[str, Any] = {
        "limit": min(n, SAMPLE),
        "counterfactual": job.counterfactual,
        "seed": job.seed,
        "private_seed": job.private_seed,
    }
    pairs = task.pairs(split, model.tokenizer, **settings)
    if model.tokenizer is None:
        longest = max(len(pair.clean.split()) for pair in pairs)
        return PromptSizes(n, round(longest * TOKENS_A_WORD) + 1, 1.0)
    batch = Batch.from_pairs(pairs, model.tokenizer, prepend=model.prepend)
    first = batch.first_difference() if job.ablation == "counterfactual" else 0
    columns = batch.n_tokens
    return PromptSizes(n, columns, max(1, columns - first) / columns)


def chunk_tokens(per_token: int, prompts: PromptSizes, budget: int) -> int:
    """Tokens of the largest chunk, as `Batch.chunks` takes it within a budget of bytes."""
    room = max(prompts.columns, budget // max(per_token, 1))
    return prompts.columns * min(prompts.n, room // prompts.columns)


def scoring_bytes(method: Method, decoder: Decoder, prompts: PromptSizes, budget: int) -> float:
    """What a method holds beyond the weights: its largest chunk, and what it is contracted in."""
    per_token = token_bytes(method, decoder)
    if isinstance(method, MaskMethod) and not _inner(method):
        # A step is on a batch of the pairs.
        prompts = prompts.of(min(method.batch_size, prompts.n))
    chunk = chunk_tokens(per_token, prompts, budget)
    held = float(chunk * per_token)
    for part in (method, *_inner(method)):
        if isinstance(part, EdgeGradientMethod):
            block = contracted_bytes(decoder, part.copies) * chunk * prompts.share
            held = max(held, chunk * per_token + min(block, CONTRACTION_BYTES))
        if isinstance(part, MaskMethod):
            n_masks = part.samples * (min(part.batch_size, prompts.n) if part.per_example else 1)
            # Drawn, by hard concrete's steps, and the optimiser's state.
            held += (4 + 3 * n_masks) * _table_bytes(decoder)
    return held


def measuring_bytes(decoder: Decoder, prompts: PromptSizes, budget: int, n_circuits: int) -> float:
    """What circuits hold that are run together: the largest chunk, and which edges each has."""
    per_token = trace_bytes(decoder)
    chunk = chunk_tokens(per_token, prompts, budget) * per_token
    return chunk + n_circuits * _table_bytes(decoder) / 4


def _table_bytes(decoder: Decoder) -> float:
    """Of a number for every writer and reader, in fp32."""
    return 4.0 * decoder.graph.n_writers * decoder.graph.n_readers


def _inner(method: Method) -> Sequence[Method]:
    return getattr(method, "inner", tuple)()


def _model_cost(
    job: CircuitsJob,
    cells: Sequence[Cell],
    model: Model,
    task: Task,
    place: torch.device,
    free: int | None,
) -> ModelCost:
    source, decoder = cells[0].typed["model"], model.decoder
    size = model_size(model, source)
    left = None if free is None else max(0, int(free - size.bytes))
    budget = budget_of(left, place)
    train = prompts_of(job, model, task, job.train_split, job.train_limit)
    steps = [CostStep("load", 0.0, seconds=BEGIN + (size.file_bytes or size.bytes) / READ)]
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
        return CostStep(name, measuring_bytes(decoder, pairs, budget, int(n_circuits)), operations)

    if "optimal" in {job.ablation, *(own.ablation for own in typed)}:
        learned: OptimalAblation = optimal_ablation(job.optimal, job.seed)
        passes = learned.forwards(model.graph, train.n)
        steps.append(CostStep("constants", float(budget), passes * 2.0 * size.body * train.columns))
    for own in typed:
        held = scoring_bytes(own.method, decoder, train, budget)
        steps.append(CostStep(own.name, held, _scoring_operations(job, own.method, size, train)))
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


def _scoring_operations(
    job: CircuitsJob, method: Method, size: ModelSize, train: PromptSizes
) -> float:
    """Of the passes that a method says it takes: one is whole, others where prompts differ."""
    passes = method.forwards(size.graph, train.n) / train.n
    if not is_mean_of_pairs(method):
        passes *= 1 + job.resamples
    token = 2.0 * size.body * (min(passes, 1.0) + max(0.0, passes - 1.0) * train.share)
    if isinstance(method, EdgeGradientMethod):
        token += 2.0 * size.graph.n_edges * size.width * train.share
    return train.n * train.columns * token


def total_bytes(size: ModelSize, libraries: float, step: float) -> float:
    """The peak of a process that loads a model and does one step."""
    return libraries + PRODUCTS + size.bytes + max(size.file_bytes, step)
