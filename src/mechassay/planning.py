"""The work of each kind of run (`runs.costs`), from the config, the tokenizer and the task.

A function for each kind returns the `Work` of the cells that share a model: operations, as forward
passes of prompts, and the bytes that are held beyond the weights. Prompts are those of the task:
the first pairs of a split tell how long they are, and from which column on they differ. An
intervention at a site runs the layers behind the site, and the columns from the site's on. Where
sites are not known, half of the columns are behind them.

Not counted: statistics, metrics next to the curve, principal components of featurizers, and
examples that the model answers wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mechassay.adversarial.evaluation import BLOCK_TOKENS, count_prefixes
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.causal_models.hypothesis import defaults_of
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.eap import EdgeGradientMethod
from mechassay.circuits.methods.mask_learning import MaskMethod
from mechassay.circuits.methods.method import AnyMethod, token_bytes
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.circuits.methods.stability import scored_again
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.inputs import MOST_VALIDATION, TypedMethod, optimal_ablation
from mechassay.errors import BadPairs, BadUsage
from mechassay.features.das import TrainedFinder
from mechassay.features.finder import ValueFinder
from mechassay.gym.experiments import GymExperiment
from mechassay.gym.methods import gym_method
from mechassay.interventions.patching import PatchExperiment
from mechassay.interventions.site import blocks
from mechassay.models.decoder import Decoder
from mechassay.models.memory import kept_run_bytes, may_be_kept
from mechassay.models.model import Model, outline
from mechassay.prompts.pairs import Examples, Prompt
from mechassay.prompts.tokenization import encode
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.cells import Cell
from mechassay.runs.costs import (
    BACKWARD,
    RANKINGS,
    SHARED,
    SIZES,
    Cost,
    FreeMemory,
    ModelSize,
    PromptSizes,
    Work,
    columns_of,
    cost_of,
    sample_batch,
    token_operations,
)
from mechassay.runs.options import layers_of
from mechassay.runs.worker import SAMPLE, Worker
from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS
from mechassay.tasks.accuracy import FEW_EXCHANGED
from mechassay.tasks.task import ALL
from mechassay.truth.ground_truth import is_truth
from mechassay.variables.experiments import VariablesExperiment
from mechassay.variables.featurizers import SIZED, n_features_of
from mechassay.variables.inputs import training_settings, variables_of
from mechassay.variables.localization import DRAWS

MEAN_SIZE = 0.19
"""Mean fraction of edges in circuits of .001, .002, .005, .01, ..., .5 and 1 of all edges."""

MASKED = 1.4
"""Passes that a mask step takes for each pass that the method counts, as its batches are small."""
SCORED = 0.5
"""Part of the products of prompts that scoring runs: equal prompts run once, without padding."""
STEP, FIT = 0.002, 0.01
"""Seconds of a training step at one site besides its products, and of a finder that looks at the
values of one site, such as a probe or k-means.
"""

WorkOf = Callable[[Any, Sequence[Cell], Model, Worker], Work]


def _planned(work_of: WorkOf) -> Callable[[Any, Sequence[Cell], Worker], Cost]:
    """Return the function that estimates the cost of cells on the device of a worker."""

    def cost(experiment: Any, cells: Sequence[Cell], worker: Worker) -> Cost:
        def outlined(cell: Cell) -> Model:
            name = cell["model"]
            is_gym = isinstance(experiment, GymExperiment)
            dtype = experiment.dtype_of(name) if is_gym else experiment.dtype
            return outline(name, dtype=dtype, prepend_bos=experiment.prepend_bos)

        def work(own: Sequence[Cell], model: Model) -> Work:
            return work_of(experiment, own, model, worker)

        return cost_of(cells, worker.device, outlined, work)

    return cost


def _circuits(
    experiment: CircuitsExperiment, cells: Sequence[Cell], model: Model, worker: Worker
) -> Work:
    """Count the passes of methods, the random rankings at all sizes, and the curves."""
    memory = FreeMemory.of(worker.device)
    source = cells[0]["model"]
    size = ModelSize.of(model, source)

    def prompts(split: str, n: int) -> PromptSizes:
        about = {
            "counterfactual": experiment.counterfactual,
            "private_seed": experiment.private_seed,
        }
        about |= {"seed": experiment.seed, "keep": experiment.keep}
        of = (source, cells[0]["task"])
        batch = sample_batch(worker.sample("pairs", of, model, split, n, **about), model)
        return PromptSizes.like(batch, n, differ=experiment.ablation == "counterfactual")

    train = prompts(experiment.train_split, experiment.train_limit)
    typed = [
        TypedMethod.of(text, experiment.ablation)
        for cell in cells
        if (text := cell["method"]) not in experiment.scores
    ]
    held = memory.working_set(size, model.decoder, train.columns)
    operations = n_runs = 0.0
    for own in typed:
        times = 1 + experiment.resamples * scored_again(own.method, experiment.over)
        operations += times * scoring_operations(own.method, size, train)
        n_runs += times * scoring_runs(own.method, size, train)
        held = max(held, scoring_bytes(own.method, size, model.decoder, train, memory))
    if "optimal" in {experiment.ablation, *(own.ablation for own in typed)}:
        learned = optimal_ablation(experiment.optimal, experiment.seed)
        operations += learned.forwards(model.graph, train.n) * size.plain(train.columns)
    if experiment.stage != "all" or not experiment.curve:
        return Work(model.name, size, operations, held, n_runs)
    test = prompts(experiment.split, experiment.limit)
    n_tried = len(experiment.methods) + len(experiment.scores)
    known = is_truth(source) or bool(experiment.known)
    n_random = experiment.random_rankings or (DRAWS_PER_TRY * n_tried if known else FEW_DRAWS)
    n_candidates = sum(len(getattr(own.method, "candidates", tuple)()) for own in typed)
    curves = len(cells) * (RANKINGS * SIZES * (1 + experiment.resamples) + 1)
    _, circuit = token_operations(size, test.share)
    for n, n_circuits in (
        (test.n, 2 * n_random * SIZES + 2 + curves),
        (min(test.n, MOST_VALIDATION), (len(cells) + n_candidates) * (SIZES + 2)),
    ):
        operations += n * (2 * size.plain(test.columns) + n_circuits * circuit * test.columns)
        n_runs += n_circuits
    held = max(held, memory.working_set(size, model.decoder, test.columns))
    return Work(model.name, size, operations, held, n_runs)


def scoring_operations(method: AnyMethod, size: ModelSize, train: PromptSizes) -> float:
    """Return the operations of a method: one pass of whole prompts, the other passes from the first
    differing column on.
    """
    passes = method.forwards(size.graph, train.n) / train.n
    if isinstance(method, MaskMethod):
        passes *= MASKED
    token = 2.0 * size.body * (min(passes, 1.0) + max(0.0, passes - 1.0) * train.share)
    if isinstance(method, EdgeGradientMethod):
        token += 2.0 * size.graph.n_edges * size.width * train.share
    return train.n * train.columns * token


def scoring_runs(method: AnyMethod, size: ModelSize, train: PromptSizes) -> float:
    """Return how many forward passes a method starts, each of all pairs or of one batch."""
    n_rows = min(method.batch_size, train.n) if isinstance(method, MaskMethod) else train.n
    return method.forwards(size.graph, train.n) / n_rows


def scoring_bytes(
    method: AnyMethod, size: ModelSize, decoder: Decoder, train: PromptSizes, memory: FreeMemory
) -> float:
    """Return the bytes that a method holds beyond the weights.

    A mask has one number for every writer and reader. Training a mask holds several tables of this
    size, and keeps the forward passes of the train pairs.
    """
    columns = train.columns
    held = memory.working_set(size, decoder, columns, token_bytes(method, decoder, columns))
    for part in (method, *getattr(method, "inner", tuple)()):
        if isinstance(part, MaskMethod):
            n_rows = min(part.batch_size, train.n) if part.per_example else 1
            table = 4.0 * decoder.graph.n_writers * decoder.graph.n_readers
            held += (4 + 3 * part.samples * n_rows) * table
            held += _kept(decoder, train.n * columns, memory)
    return held


def _kept(decoder: Decoder, n_tokens: int, memory: FreeMemory) -> float:
    """Return the bytes of runs that are kept whole; 0 if there is no room for them."""
    n_bytes = n_tokens * kept_run_bytes(decoder)
    return float(n_bytes if may_be_kept(n_bytes, memory.device) else 0)


def _adversarial(
    experiment: AdversarialExperiment, cells: Sequence[Cell], model: Model, worker: Worker
) -> Work:
    """Count every circuit on every pair, random circuits on `controls` squared pairs, and methods.

    In a grid, a prefix that several prompts share is run once.

    Raises:
        BadUsage: `--enumerate`, whose pairs are known once they are drawn.
    """
    memory = FreeMemory.of(worker.device)
    if experiment.enumerate_all:
        raise BadUsage("How many pairs --enumerate takes is known once they are drawn.")
    size = ModelSize.of(model, experiment.model)
    about = {"counterfactual": experiment.counterfactual, "seed": experiment.seed}
    of = (experiment.model, experiment.task)
    n = min(experiment.n_clean, SAMPLE)
    drawn = worker.sample("pairs", of, model, experiment.split, n, **about)
    batch = sample_batch(drawn, model)
    columns, is_grid = batch.n_tokens, experiment.paired and experiment.design == "grid"
    share = PromptSizes.like(batch, 1, differ=experiment.paired).share
    if is_grid:
        sides = [
            np.array(count_prefixes(x)[1:]) / len(x) for x in (batch.clean, batch.counterfactual)
        ]
        share = float((sides[0] * sides[1]).mean())
    specs = [CircuitSpec.parse(text) for text in experiment.circuits]
    sizes = [edges_of(spec, size.graph.n_edges) for spec in specs]

    def divergences(n_clean: int, n_corrupted: int, n_edges: Sequence[float]) -> float:
        n_pairs = n_clean * n_corrupted if is_grid else n_clean
        shares = [min(1.0, n / (MEAN_SIZE * size.graph.n_edges)) for n in n_edges]
        of_pair = sum(
            token_operations(size, share, x)[1] * columns + 2.0 * size.unembedding for x in shares
        )
        return (n_clean + n_corrupted) * size.plain(columns) + n_pairs * of_pair

    n_corrupted = experiment.n_corrupted or experiment.n_clean
    most = experiment.controls if is_grid else experiment.controls**2
    drawn = [size.graph.n_edges, 0.0, *sizes, *sizes]
    operations = divergences(experiment.n_clean, n_corrupted, sizes)
    operations += divergences(min(experiment.n_clean, most), min(n_corrupted, most), drawn)
    n_rows = max(1, BLOCK_TOKENS // columns)
    n_runs = -(-experiment.n_clean // n_rows) * (n_corrupted if is_grid else 1) * (1 + len(specs))
    n_runs += min(n_corrupted, most) * (1 + len(drawn))
    held = memory.working_set(size, model.decoder, columns)
    for name in dict.fromkeys(spec.name for spec in specs if spec.kind == "method"):
        method = METHODS.make(name)
        n_train = min(experiment.train_limit, SAMPLE)
        pairs = sample_batch(worker.sample("pairs", of, model, "train", n_train, **about), model)
        train = PromptSizes.like(pairs, experiment.train_limit, differ=experiment.paired)
        operations += scoring_operations(method, size, train)
        n_runs += scoring_runs(method, size, train)
        held = max(held, scoring_bytes(method, size, model.decoder, train, memory))
    return Work(model.name, size, operations, held, n_runs)


def edges_of(spec: CircuitSpec, n_edges: int) -> float:
    """Return the number of edges of a circuit; `n_edges` if the circuit does not state a size."""
    if spec.kind == "empty":
        return 0.0
    if spec.size is None:
        return float(n_edges)
    return spec.size * n_edges if isinstance(spec.size, float) else float(spec.size)


def _patch(
    experiment: PatchExperiment, cells: Sequence[Cell], model: Model, worker: Worker
) -> Work:
    """Count both runs of a pair, and every cell of a map where prompts differ."""
    memory = FreeMemory.of(worker.device)
    size = ModelSize.of(model, cells[0]["model"])
    about = {"counterfactual": experiment.counterfactual, "private_seed": experiment.private_seed}
    about |= {"seed": experiment.seed, "keep": experiment.keep}
    of = (cells[0]["model"], cells[0]["task"])
    split = experiment.split or worker.task(of[1]).unfitted_split
    drawn = worker.sample("pairs", of, model, split, experiment.limit, **about)
    batch = sample_batch(drawn, model)
    pairs, layers = PromptSizes.like(batch, experiment.limit), range(size.graph.n_layers)
    n_columns, operations = pairs.columns * pairs.share, 0.0
    for cell in cells:
        heads = cell.labels["part"] == "heads"
        # Per layer: every head at all columns, or every column alone.
        n_each = size.graph.n_heads if heads else n_columns
        behind = n_each * size.behind(layers, heads=heads) * n_columns * (1 if heads else SHARED)
        logits = n_each * len(layers) * 2.0 * size.unembedding
        operations += pairs.n * (2 * size.plain(pairs.columns) + behind + logits)
    return Work(
        model.name, size, operations, memory.working_set(size, model.decoder, pairs.columns)
    )


def _variables(
    experiment: VariablesExperiment, cells: Sequence[Cell], model: Model, worker: Worker
) -> Work:
    """Count every example and counterfactual once; for every k, trainings as steps x rows x sites;
    every site on validation and test pairs; and controls at one site.
    """
    memory = FreeMemory.of(worker.device)
    size, task = ModelSize.of(model, cells[0]["model"]), worker.task(cells[0]["task"])
    defaults, known = defaults_of(task.name), variables_of(experiment, cells[0]["task"])
    of, n = (cells[0]["model"], cells[0]["task"]), min(experiment.train_limit, SAMPLE)
    drawn = worker.sample("examples", of, model, "train", n, seed=experiment.seed)
    examples = defaults.prepared(Examples(drawn, {}))
    columns = columns_of(model, [example.prompt.text for example in examples])
    n_kinds = len(experiment.kinds or defaults.kinds or examples[0].counterfactuals)
    limits = (experiment.train_limit, experiment.validation_limit, experiment.limit)
    train, validation, test = (n * n_kinds for n in limits)
    plain, logits = size.plain(columns), 2.0 * size.unembedding
    operations, n_steps = sum(limits) * (1 + n_kinds) * plain, 0
    settings = training_settings(experiment, task.name, model.family)
    rows = settings.n_steps(train) * min(settings.batch_size, train)
    layers = blocks(model, layers_of(experiment.layers, size.graph.n_layers))
    positions = experiment.positions or defaults.positions
    n_columns = [1.0 if position == "last" else SHARED * columns for position in positions]
    of_heads = {name for name, own in known.items() if own.model.contrast is not None}
    n_sites, site = len(layers) * len(positions), size.behind(layers)
    if of_heads:
        heads = size.graph.n_heads * size.behind(layers, heads=True) * columns
        operations += experiment.train_limit * (2 * plain + heads)
    for variable in dict.fromkeys(cell.labels["variable"] for cell in cells):
        is_heads = variable in of_heads
        # All heads are exchanged in one run, which begins at the first of them.
        all_sites = plain / 2 if is_heads else site * sum(n_columns)
        n_places = 1 if is_heads else n_sites
        operations += 0.0 if is_heads else test * (all_sites + 2 * plain)
        for cell in (cell for cell in cells if cell.labels["variable"] == variable):
            name = cell.labels["featurizer"]
            n_searched = n_places
            if experiment.train_at is not None and name != "full-vector" and not is_heads:
                n_searched = min(n_places, experiment.train_at)
            ks = experiment.ks or n_features_of(experiment.profile, task.name, variable, size.width)
            own = all_sites * n_searched / n_places + logits * n_searched
            trained = 0.0 if name == "full-vector" else 2 * train * plain + BACKWARD * rows * own
            scored = (validation + test) * (2 * plain + own) + DRAWS * test * own / n_searched
            n_fits = len(ks) if name in SIZED else 1
            controls = 0.0 if is_heads else trained / n_searched * len(experiment.controls)
            operations += n_fits * (trained + scored) + controls
            if name != "full-vector":
                n_steps += settings.n_steps(train) * (
                    n_fits * n_searched + len(experiment.controls)
                )
    held = memory.working_set(size, model.decoder, columns) + _kept(
        model.decoder, train * columns, memory
    )
    # The model of random weights, a control, is loaded next to the model.
    held += size.bytes if "untrained" in experiment.controls else 0.0
    return Work(model.name, size, operations, held, fixed=STEP * n_steps)


def _gym(experiment: GymExperiment, cells: Sequence[Cell], model: Model, worker: Worker) -> Work:
    """Count, for every task, the values of all items, the training steps of every draw, kind of
    labels and candidate, and the exchange at every site for every fit; then the same in a model of
    random weights.
    """
    memory = FreeMemory.of(worker.device)
    size, operations, held = ModelSize.of(model, cells[0]["model"]), 0.0, 0.0
    n_steps = n_values = 0
    layers = blocks(model, layers_of(experiment.layers, size.graph.n_layers))
    methods = [gym_method(text, size.width) for text in experiment.every_method]
    for cell in cells:
        task = experiment.gym_task(cell["task"])
        limits = {
            "train": experiment.train_limit,
            "validation": experiment.validation_limit,
            "test": experiment.limit,
        }
        train, *others = (min(n, task.sizes[split]) for split, n in limits.items())
        pairs = task.interchanges("train", model, limit=min(train, SAMPLE), seed=experiment.seed)
        columns = pairs.batch(model).base.shape[1]
        n_regions = len(pairs.tested)
        row = n_regions * size.behind(layers) * SHARED * columns
        plain, n_sites = size.plain(columns), n_regions * len(layers)
        exchanges = row + 2.0 * size.unembedding * n_sites
        for n_kinds, shuffled in ((2 if "labels" in experiment.controls else 1, True), (1, False)):
            if not shuffled and "untrained" not in experiment.controls:
                continue
            n_fits = 0
            operations += (train + sum(others)) * plain
            for method in methods:
                if method.shuffled and not shuffled:
                    continue
                for finder in method.candidates.values():
                    of_values = isinstance(finder, ValueFinder) and not finder.needs_source
                    fits = len(experiment.seeds) if method.seeded else 1
                    fits *= 1 if of_values or method.shuffled else n_kinds
                    n_fits += fits
                    if isinstance(finder, TrainedFinder):
                        plan = finder.plan(train)
                        once = BACKWARD * plan.steps * plan.size * exchanges
                        operations += fits * (2 * train * plain + once)
                        n_steps += fits * n_sites * plan.steps
                    else:
                        n_values += fits * n_sites
            operations += sum(others) * (2 * plain + n_fits * row)
        values = (train + sum(others)) * n_sites * size.width * 8.0
        kept = _kept(model.decoder, train * columns, memory) + 2 * values
        held = max(held, memory.working_set(size, model.decoder, columns) + kept)
    held += size.bytes if "untrained" in experiment.controls else 0.0
    return Work(model.name, size, operations, held, fixed=STEP * n_steps + FIT * n_values)


def _accuracy(
    experiment: AccuracyExperiment, cells: Sequence[Cell], model: Model, worker: Worker
) -> Work:
    """Count every prompt of an example, each token of a choice but the last, and the same after
    the prompts that are exchanged with an original one.

    Raises:
        BadUsage: a task that does not say its size.
    """
    memory = FreeMemory.of(worker.device)
    size, operations, longest = ModelSize.of(model, cells[0]["model"]), 0.0, 1
    for cell in cells:
        task = worker.task(cell["task"])
        split = experiment.split or task.unfitted_split
        known = sum(task.sizes.values()) if split == ALL else task.sizes.get(split, 0)
        n = min(experiment.limit or known, known or experiment.limit or 0)
        if not n:
            raise BadUsage(f"How many examples {task.name} has is known once it is read: --limit.")
        about = {"seed": experiment.seed, "private_seed": experiment.private_seed}
        of = (cell["model"], cell["task"])
        examples = worker.sample("examples", of, model, split, n, **about)
        if not examples:
            raise BadPairs(f"Split {split!r} of {task.name} has no readable example.")
        prompts = [x for y in examples for x in (y.prompt, *y.counterfactuals.values())]
        columns = columns_of(model, [prompt.text for prompt in prompts])
        own = _further(model, [example.prompt for example in examples])
        n_more = (_further(model, prompts) + FEW_EXCHANGED * own) / len(examples)
        n_each = len(prompts) / len(examples)
        operations += SCORED * n * (n_each * size.plain(columns) + n_more * size.plain(1))
        longest = max(longest, columns)
    return Work(model.name, size, operations, memory.working_set(size, model.decoder, longest))


def _further(model: Model, prompts: Sequence[Prompt]) -> int:
    """Return how many beginnings of choices are run after the prompts."""
    assert model.tokenizer is not None
    n = 0
    for prompt in prompts:
        choices = encode(model.tokenizer, prompt.choices) if prompt.choices else []
        n += len({tuple(own[:end]) for own in choices for end in range(1, len(own))})
    return n


circuits_cost = _planned(_circuits)
accuracy_cost = _planned(_accuracy)
adversarial_cost = _planned(_adversarial)
gym_cost = _planned(_gym)
patch_cost = _planned(_patch)
variables_cost = _planned(_variables)
