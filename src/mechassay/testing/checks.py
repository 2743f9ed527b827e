"""What plug-ins have to satisfy; their authors may run the checks on their own.

    from mechassay.testing import check_method, check_task, ...

    check_task(MyTask())
    check_method(MyMethod(), model, batch)
    check_metric(MyMetric())
    check_featurizer(MyFeaturizer(), values, others)
    check_finder(MyFinder(), model, interchanges, ["resid.0@last", "resid.1@last"])
    check_experiment(MyExperiment(models=("truth-ioi",)), tmp_path)
    check_record(record)

Each raises AssertionError at the first promise that is broken. `mechassay.testing.tiny` has
models to check with.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.metrics import Measured, Metric, Scored
from mechassay.circuits.methods.method import AnyMethod, settings
from mechassay.circuits.methods.random import Random
from mechassay.circuits.scores import EdgeScores, Scores
from mechassay.features.featurizer import ChosenFeatures, Featurizer, exchanged
from mechassay.features.finder import STORED, Finder, Fit
from mechassay.interventions.site import SiteLike, load_site
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.models.model import Model
from mechassay.models.objectives import load_objective
from mechassay.prompts.batch import Batch
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.pairs import Example, Prompt, content_hash
from mechassay.results.page import Report, render
from mechassay.results.reading import read_record
from mechassay.results.records import Failure, Record, Spec, page_of, provenance
from mechassay.runs import EXPERIMENTS
from mechassay.runs.cells import by_inputs
from mechassay.runs.executors import Executor, Here, Processes
from mechassay.runs.experiment import experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.options import options_of
from mechassay.runs.run import opened, run
from mechassay.tasks import Task
from mechassay.tasks.task import SPLITS
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT


def check_method(method: AnyMethod, model: Model, batch: Batch) -> None:
    """Raise AssertionError at the first promise that the method breaks."""
    check_method_configuration(method)
    before = {
        name: getattr(batch, name).clone()
        for name in ("clean", "counterfactual", "mask", "answers", "foils")
    }
    weights = {name: value.clone() for name, value in model.hf.state_dict().items()}
    state = torch.random.get_rng_state()
    assert 0 <= method.forwards(model.graph, len(batch)) < float("inf")
    scores = method.score(model, batch)
    assert torch.equal(torch.random.get_rng_state(), state), (
        "the global generator was used or seeded"
    )
    for name, value in before.items():
        assert torch.equal(getattr(batch, name), value), f"the batch's {name} was changed"
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, weights[name]), f"the weight {name} was changed"
    check_scores(scores, model)
    again = method.score(model, batch)
    assert torch.equal(again.values.nan_to_num(9.0), scores.values.nan_to_num(9.0)), (
        "two calls gave different scores"
    )
    assert scores.provenance["method"] == method.name
    assert scores.provenance["n_examples"] == len(batch)


def check_method_configuration(method: AnyMethod) -> None:
    """A frozen dataclass whose repr gives it back, with a name and a version."""
    assert isinstance(method.name, str)
    assert isinstance(method.version, int)
    kind: Any = type(method)
    assert dataclasses.is_dataclass(kind), "methods are dataclasses"
    params: Any = getattr(kind, "__dataclass_params__")  # noqa: B009
    assert params.frozen, "methods are values: frozen dataclasses"
    known: Any = type(method)
    assert eval(repr(method), {known.__name__: known}) == method
    assert known(**settings(method)) == method


def check_scores(scores: Scores, model: Model) -> None:
    """One finite fp32 score for every edge (node, neuron), NaN where there is no edge."""
    assert scores.graph == model.graph
    assert scores.values.dtype == torch.float32
    if not isinstance(scores, EdgeScores):
        assert len(scores.values) == model.graph.n_writers and bool(
            torch.isfinite(scores.values).all()
        )
        return
    assert bool(torch.isfinite(scores.values[model.graph.legal]).all())
    assert bool(scores.values[~model.graph.legal].isnan().all())


def check_featurizer(
    featurizer: Featurizer,
    values: Float[Tensor, "n d"],
    others: Float[Tensor, "n d"],
    *,
    tolerance: float = 1e-4,
) -> None:
    """Raise AssertionError at the first promise that the featurizer breaks.

    Args:
        values: a site's values in some runs, at least two.
        others: in others.
        tolerance: of rounding, relative to the largest value.
    """
    state = torch.random.get_rng_state()
    before, beside = values.clone(), others.clone()
    scale = tolerance * float(torch.cat((values, others)).abs().max())
    features = featurizer.encode(values)
    assert features.ndim == 2 and len(features) == len(values), "features are [n, k]"
    decoded = featurizer.decode(features)
    assert decoded.shape == values.shape, "decode gives values [n, d]"
    assert bool(torch.isfinite(decoded).all()), "what is decoded is finite"
    alone = featurizer.encode(values[:1])
    assert torch.allclose(alone, features[:1], atol=scale), "a value's features are its own"
    everything = torch.ones(features.shape[1], dtype=torch.bool)
    whole = exchanged(featurizer, values, others, everything)
    assert whole.shape == values.shape and whole.dtype == values.dtype, "a change keeps the shape"
    assert torch.equal(whole, exchanged(featurizer, values, others, everything)), (
        "two calls gave different values"
    )
    assert torch.allclose(whole, ChosenFeatures(featurizer).change(values, others), atol=scale), (
        "all features chosen by a mask are all features"
    )
    same = exchanged(featurizer, values, values, everything)
    assert torch.allclose(same, values, atol=scale), "equal values are changed"
    assert exchanged(featurizer, values, others, ~everything) is values, (
        "nothing chosen returns the base itself"
    )
    assert torch.equal(values, before) and torch.equal(others, beside), "its arguments were changed"
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"


def check_finder(
    finder: Finder, model: Model, interchanges: InterchangeBatch, sites: Sequence[SiteLike]
) -> Fit:
    """Raise AssertionError at the first promise that the finder breaks; what it found.

    Args:
        sites: at least two.
    """
    check_method_configuration(_as_method(finder))
    assert len(sites) > 1, "a finder is checked on two sites or more"
    tensors = ("base", "base_mask", "source", "source_mask", "labels")
    before = {name: getattr(interchanges, name).clone() for name in tensors}
    weights = {name: value.clone() for name, value in model.hf.state_dict().items()}
    state = torch.random.get_rng_state()
    fit = finder.fit(model, interchanges, sites, progress=SILENT)
    assert torch.equal(torch.random.get_rng_state(), state), (
        "the global generator was used or seeded"
    )
    for name, value in before.items():
        assert torch.equal(getattr(interchanges, name), value), f"the batch's {name} was changed"
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, weights[name]), f"the weight {name} was changed"
    assert fit.sites == tuple(map(load_site, sites)), "sites are in the order they were asked for"
    assert fit.provenance["finder"] == finder.name
    assert fit.provenance["settings"] == asdict(_as_method(finder))
    assert fit.provenance["n_examples"] == len(interchanges)
    if len(fit.losses):
        assert fit.losses.shape[1] == len(sites), "losses are [steps, sites]"
        assert bool(torch.isfinite(fit.losses).all()), "losses are finite"
    again = finder.fit(model, interchanges, sites, progress=SILENT)
    for site in fit.sites:
        values, others = _values(model, site)
        change = fit.features(site).change(values, others)
        assert bool(torch.isfinite(change).all()), f"new values at {site} are not finite"
        assert torch.equal(change, again.features(site).change(values, others)), (
            "two fits gave different features"
        )
        single = finder.fit(model, interchanges, [site], progress=SILENT)
        one = single.features(site).change(values, others)
        assert torch.allclose(change, one, rtol=1e-3, atol=1e-3 * float(values.abs().max())), (
            f"{site} alone and beside other sites has different features"
        )
        _check_file(fit, site, values, others)
    return fit


def _check_file(fit: Fit, site: SiteLike, values: Tensor, others: Tensor) -> None:
    if any(type(featurizer) not in STORED.values() for featurizer in fit.featurizers.values()):
        return
    with tempfile.TemporaryDirectory() as folder:
        loaded = Fit.load(fit.save(Path(folder) / "fit.safetensors"))
    assert loaded.sites == fit.sites and torch.equal(loaded.losses, fit.losses)
    stored, kept = (own_fit.features(site).change(values, others) for own_fit in (loaded, fit))
    assert torch.equal(stored, kept), "a fit that was stored has other features"


def _values(model: Model, site: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 4, site.width(model.decoder), generator=generator, dtype=torch.float64)
    values, others = drawn.to(model.decoder.embedding).unbind()
    return values, others


def _as_method(finder: Finder) -> Any:
    return finder


def check_record(record: Record) -> None:
    """Raise AssertionError at the first promise that the record breaks."""
    text = record.model_dump_json()
    assert read_record(text).model_dump_json() == text, "it is not what its file says"
    places = [(measure.name, measure.of) for measure in record.measures]
    assert len(set(places)) == len(places), "two measures of the same thing share a name"
    tables = [table.name for table in record.tables]
    assert len(set(tables)) == len(tables), "two tables share a name"
    for measure in record.measures:
        assert 0 <= measure.n_undefined <= max(measure.n, 1), f"{measure.name}: {measure}"
        if not math.isnan(measure.low) and not math.isnan(measure.value):
            assert measure.low <= measure.high, f"{measure.name}: the interval is empty"
    for table in record.tables:
        keys = list(zip(*(table.columns.get(key, []) for key in table.keys), strict=True))
        assert len(set(keys)) == len(keys), f"the keys of {table.name} do not tell its rows apart"
    kind, contents = page_of(record.kind), Report([record])
    page = render(kind.title(contents), kind.sections(contents))
    for measure in record.measures:
        assert escape(measure.heading) in page, f"{measure.name} is not on the page"
    for check in record.checks:
        assert escape(check.name) in page, f"the check {check.name!r} is not on the page"
    for warning in record.warnings:
        assert escape(warning[:40]) in page, f"a warning is not on the page: {warning}"


def check_experiment(experiment: Any, folder: Path, *, workers: int = 2) -> Report:
    """Raise AssertionError at the first promise that the experiment breaks; its results otherwise.

    Args:
        folder: an empty folder to run in.
        workers: processes of the second run; 0 leaves it out.
    """
    check_plan(experiment)
    threads = torch.get_num_threads()
    # As many as each worker will have: sums depend on it in their last bits.
    torch.set_num_threads(max(1, threads // max(1, workers)))
    try:
        results = run(experiment, folder / "here", progress=SILENT)
        assert not results.failures, f"a cell has no result: {results.failures[0].message}"
        assert len(results.records) == len(experiment.cells()), "every cell ends in a record"
        check_plan_file(experiment, RunFolder(results.folder))
        check_record(results.records[0])
        before = _times(folder / "here")
        again = run(experiment, folder / "here", progress=SILENT)
        assert _times(folder / "here") == before, "what is done is not done again"
        assert numbers(again) == numbers(results), "stored results are read as they were"
        if workers:
            elsewhere = run(
                experiment, folder / "there", executor=Processes(workers), progress=SILENT
            )
            assert numbers(elsewhere) == numbers(results), "other processes give other results"
        check_taken_up(experiment, folder / "part", numbers(results), Here())
        check_without_results(experiment, folder / "none")
        return results
    finally:
        torch.set_num_threads(threads)


def check_plan(experiment: Any) -> None:
    """A frozen dataclass whose fields are options, and cells that are told apart."""
    params: Any = getattr(type(experiment), "__dataclass_params__", None)
    assert params is not None and params.frozen, "experiments are values: frozen dataclasses"
    assert set(experiment.grows) <= {field.name for field in dataclasses.fields(experiment)}
    names = [cell.name for cell in experiment.cells()]
    assert names, "an experiment has cells"
    assert len(set(names)) == len(names), "cells have names of their own"
    for name in names:
        assert ".." not in Path(name).parts and not Path(name).is_absolute(), name
    names = [cells[0].inputs for cells in by_inputs(experiment.cells())]
    assert len(set(names)) == len(names), "cells with the same inputs stand together"


def check_plan_file(experiment: Any, folder: RunFolder) -> None:
    """The stored plan is the experiment again, without what is secret."""
    plan = folder.plan()
    secret = {name for name, about in options_of(experiment).items() if about.role == "secret"}
    assert not secret & set(plan), "secrets are never stored"
    if experiment.kind in EXPERIMENTS:
        assert (
            experiment_of(plan, **{name: getattr(experiment, name) for name in secret})
            == experiment
        )


def check_without_results(experiment: Any, folder: Path) -> None:
    """Tables and page of a run whose cells all failed."""
    folder.mkdir(parents=True)
    (cell, *_) = experiment.cells()
    failure = Failure(cell=dict(cell.labels), error="NonFinite", message="a loss is NaN")
    nothing = Report((), [failure], folder=folder)
    console = Console(file=io.StringIO(), width=200)
    experiment.show(nothing, console)
    page = experiment.write(nothing)
    if page.suffix == ".html":
        assert "a loss is NaN" in page.read_text("utf-8"), "the page does not say what failed"


def check_taken_up(
    experiment: Any, folder: Path, whole: dict[str, Any], executor: Executor
) -> None:
    """A run that ended after its first batch is taken up."""
    worker = opened(experiment, folder, progress=SILENT)
    executor.map(experiment, by_inputs(worker.cells)[:1], worker)
    assert numbers(run(experiment, folder, progress=SILENT)) == whole, "a run that ended early"


def numbers(report: Report) -> dict[str, Any]:
    """Return everything of the records but when and how fast they were made, by cell."""
    plain_cells: dict[str, Any] = {}
    for cell, record in report.by_name.items():
        plain = json.loads(record.model_dump_json())
        for name in ("provenance", "spent"):
            plain.pop(name)
        plain_cells[cell] = plain
    return plain_cells


def _times(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in sorted(folder.glob("records/**/*.json"))}


def check_metric(metric: Metric, truth: str = "truth-previous-token") -> None:
    """Raise AssertionError at the first promise that the metric breaks.

    It is tried on the scores that say exactly which edges are in a known circuit, on random ones,
    on scores that are all equal, and where no circuit is known.
    """
    params: Any = getattr(type(metric), "__dataclass_params__", None)
    assert params is not None and params.frozen, "metrics are values: frozen dataclasses"
    assert metric.name and metric.version >= 1
    known = load_truth(truth)
    circuit, graph = known.circuits["zero"], known.circuits["zero"].graph
    pairs = known.task.pairs("test", known.model, limit=6)
    batch = ablate(known.model, known.model.batch(pairs), "zero")
    every = {
        "exact scores": EdgeScores.of(graph, circuit.edges.float()),
        "random scores": Random(seed=1).draw(graph),
        "equal scores": EdgeScores.of(graph, graph.legal.float()),
    }
    for name, scores in every.items():
        before = scores.values.clone()
        scored = Scored(
            known.model, scores, batch, load_objective("logit_diff"), circuit, progress=SILENT
        )
        result = metric.measure(scored)
        check_measures(result, name)
        assert repr(metric.measure(scored)) == repr(result), f"{name}: two calls differ"
        assert torch.equal(before.nan_to_num(9), scores.values.nan_to_num(9)), "scores were changed"
        if metric.needs_truth:
            unknown = metric.measure(dataclasses.replace(scored, truth=None))
            assert unknown.measures, "without a truth its measures are undefined, not missing"
            assert all(math.isnan(measure.value) for measure in unknown.measures)


def check_measures(result: Measured, name: str) -> None:
    """Measures that say what they are, each beside a control, all of them on the page."""
    assert result.measures, f"{name}: no measures"
    own = [measure for measure in result.measures if measure.of == "result"]
    controls = {measure.name for measure in result.measures if measure.of.startswith("control:")}
    assert len({measure.name for measure in own}) == len(own), f"{name}: measures share a name"
    for measure in own:
        assert measure.title and measure.meaning, f"{measure.name} has no title, or no meaning"
        assert measure.name in controls, f"{measure.name} stands beside no control"
        if math.isnan(measure.value):
            assert result.warnings or measure.n_undefined, f"{measure.name}: undefined, and no why"
        elif not math.isnan(measure.low):
            assert measure.low <= measure.value <= measure.high, f"{measure.name}: {measure}"
    specs = {role: Spec(name=role) for role in ("model", "task", "method", "metric")}
    about = provenance(device="cpu", dtype="float32", seed=0)
    check_record(
        Record(
            kind="metric",
            specs=specs,
            measures=list(result.measures),
            tables=list(result.tables),
            warnings=list(result.warnings),
            provenance=about,
        )
    )


def check_gauge(gauge: Gauge, **inputs: Any) -> None:
    """Raise AssertionError at the first promise that the metric of measurement breaks.

    Args:
        inputs: what the gauge needs, for example `model`, `pairs` and `circuit`; see
            `mechassay.measurement.GaugeInputs`.
    """
    params: Any = getattr(type(gauge), "__dataclass_params__", None)
    assert params is not None and params.frozen, "gauges are values: frozen dataclasses"
    assert gauge.id and gauge.version >= 1
    given = GaugeInputs(**inputs)
    assert not given.missing(gauge.needs), f"{gauge.id} needs {given.missing(gauge.needs)}"
    results = [gauge.measure(GaugeInputs(**inputs)) for _ in range(2)]
    records = [result.record() for result in results]
    first, again = (record.model_dump(include={"measures", "tables"}) for record in records)
    assert repr(first) == repr(again), "two calls differ"
    assert results[0].id == gauge.id, f"the result is of {results[0].id}, not of {gauge.id}"
    check_record(records[0])
    null = gauge.null(n_simulations=20)
    if results[0].repaired.conditions:
        kinds = {rate.worthless for rate in null}
        assert kinds == {True, False}, "a threshold is simulated on worthless and on sound inputs"
    for condition in results[0].repaired.conditions:
        rate = null.false_alarm("repaired", condition)
        assert not math.isnan(rate), f"no simulation says how often {condition} errs"


PRIVATE_SEED = 31_415


def check_task(task: Task, *, limit: int = 40, seeded: bool = True) -> None:
    """Raise AssertionError at the first promise that the task breaks.

    Args:
        task: the task.
        limit: examples of each split to look at; all are looked at where a split has fewer.
        seeded: whether another seed gives other examples.
    """
    check_task_configuration(task)
    state = _generators()
    splits = {split: _examples(task, split, limit) for split in SPLITS if task.sizes.get(split)}
    assert _generators() == state, "a global generator was used or seeded"
    for split, examples in splits.items():
        check_examples(task, examples)
        assert _examples(task, split, limit) == examples, (
            f"two calls gave other examples of {split}"
        )
        assert _examples(task, split, max(1, limit // 3)) == examples[: max(1, limit // 3)], (
            "limit does not take the first ones"
        )
        if seeded and len(examples) > 1:
            assert _examples(task, split, limit, seed=1) != examples, (
                f"the seed changes nothing in {split}"
            )
        check_pairs(task, split, examples)
    for (one, some), (other, more) in combinations(splits.items(), 2):
        shared = _texts(some) & _texts(more)
        assert not shared, f"{one} and {other} share a prompt: {next(iter(shared))!r}"


def check_task_configuration(task: Task) -> None:
    """A frozen dataclass with a name, a version, kinds of counterfactuals and sizes."""
    assert dataclasses.is_dataclass(task) and not isinstance(task, type), "a task is a dataclass"
    kind: Any = type(task)
    assert kind.__dataclass_params__.frozen, "a task is frozen"
    assert task.name and isinstance(task.version, int) and task.version >= 1
    assert task.default_counterfactual in task.counterfactuals
    assert len(set(task.counterfactuals)) == len(task.counterfactuals)
    assert set(task.sizes) <= set(SPLITS) and all(size >= 0 for size in task.sizes.values())


def check_examples(task: Task, examples: list[Example]) -> None:
    """Unique, with answers, and with counterfactuals that differ from the original."""
    assert len({example.id for example in examples}) == len(examples), "ids repeat"
    assert len({example.prompt.text for example in examples}) == len(examples), "prompts repeat"
    for example in examples:
        assert example.prompt.answers, f"{example.id} has no answer"
        assert set(example.counterfactuals) <= set(task.counterfactuals)
        assert all(isinstance(value, str) for value in example.tags.values())
        for prompt in (example.prompt, *example.counterfactuals.values()):
            check_prompt(prompt, example.id)
        for kind, prompt in example.counterfactuals.items():
            assert prompt.text != example.prompt.text, f"{example.id}: {kind} changes nothing"


def check_prompt(prompt: Prompt, id: str) -> None:
    """Spans inside the text, and answers among the choices."""
    for name, (begin, end) in prompt.spans.items():
        assert 0 <= begin < end <= len(prompt.text), (
            f"{id}: the part {name} is outside the text, or empty"
        )
    if prompt.choices and prompt.answers:
        assert set(prompt.answers) <= set(prompt.choices), f"{id}: an answer is no choice"
    assert len(set(prompt.choices)) == len(prompt.choices), f"{id}: a choice comes twice"
    assert "" not in prompt.answers


def check_pairs(task: Task, split: str, examples: list[Example]) -> None:
    """Without a tokenizer, pairs are the examples with the counterfactual; others are counted."""
    for kind in task.counterfactuals:
        there = [example.pair(kind) for example in examples if kind in example.counterfactuals]
        if not there:
            continue
        private = PRIVATE_SEED if split == "private" else None
        n = len(there)
        pairs = task.pairs(split, limit=n, counterfactual=kind, private_seed=private)
        assert content_hash(pairs) == content_hash(there)
        assert sum(pairs.dropped.values()) <= len(examples) - len(there)
        for pair in pairs:
            assert pair.foils, f"{pair.id}: nothing to compare the answers with in {kind}"
            assert not set(pair.answers) & set(pair.foils), f"{pair.id}: an answer is a foil"


def _examples(task: Task, split: str, limit: int, seed: int = 0) -> list[Example]:
    wanted, private = min(limit, task.sizes[split]), PRIVATE_SEED + seed
    private_seed = private if split == "private" else None
    return task.examples(split, limit=wanted, seed=seed, private_seed=private_seed)


def _texts(examples: list[Example]) -> set[str]:
    prompts = ((example.prompt, *example.counterfactuals.values()) for example in examples)
    return {prompt.text for pair in prompts for prompt in pair}


def _generators() -> tuple[Any, ...]:
    """The states of the global generators."""
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), torch.random.get_rng_state().tolist()
