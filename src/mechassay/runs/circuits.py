"""Find circuits with several methods on tasks and models, and measure how faithful they are.

A cell is one method on one task with one model. It finds scores, which stay in the folder, then
measures them. The cells of one model and task share the pairs, the controls, and the constants that
ablated edges carry: means and learned ones are those of the train pairs, for the test pairs too. A
ground truth is a model that runs on its own task alone; there records also say how well the known
circuit is found (`circuits.metrics`).

What is skipped is a cell with its reason, before anything of it is run:

    at chance       the model does not do the task: on the test pairs the interval of its accuracy
                    reaches chance (unless `even_at_chance`)
    too expensive   finding the circuit would take more than `max_minutes`: the forwards that the
                    method says it takes (`Method.forwards`), and those that learning the constants
                    of optimal ablation takes, times the seconds of one forward, which is timed on
                    train pairs. Measuring is not counted: it is about the same for all methods.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from rich.console import Console
from torch import Tensor

from mechassay.circuits.ablation import (
    ABLATIONS,
    ablate,
    ablated_values,
    load_ablated,
    save_ablated,
)
from mechassay.circuits.areas import VERSIONS
from mechassay.circuits.behaviour import Preference, preference_of
from mechassay.circuits.drawable import DRAWN_EDGES, largest_drawable
from mechassay.circuits.faithfulness import (
    Controls,
    Profile,
    evaluate,
    faithfulness_curve,
    run_controls,
)
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import Method, method_name, settings
from mechassay.circuits.metrics import METRICS, Metric, Scored, with_metrics
from mechassay.circuits.node_scores import Scores, load_scores
from mechassay.circuits.optimal_ablation import OptimalAblation
from mechassay.circuits.pairing import check_pairing, paired
from mechassay.circuits.scores import SCORES_SHA256, Circuit, EdgeScores
from mechassay.circuits.series import (
    CircuitSeries,
    Ranked,
    is_series,
    load_ranked,
    ranked_hash,
    ranked_name,
)
from mechassay.drawing.canvas import Drawing
from mechassay.drawing.circuit import draw_circuit
from mechassay.errors import BadFile, BadUsage, one_of
from mechassay.models.constants import Constants
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model, check_dtype
from mechassay.objectives import load_objective
from mechassay.pairs import NO_TOKEN, Batch
from mechassay.records import Measure, PairTokens, Record, Spec, Values
from mechassay.report.kinds.suite import suite_differences
from mechassay.report.reports import print_report, write_markdown, write_page
from mechassay.runs import options
from mechassay.runs.command_line import command_line
from mechassay.runs.folder import write_text
from mechassay.runs.job import Bench, Cell, Job, Results, cell_name, option
from mechassay.runs.names import made_by, shown_model
from mechassay.runs.own_tasks import check_tasks, own_task_notes, tasks_of, with_truths
from mechassay.tasks import load_task
from mechassay.tasks.task import PRIVATE, Keep, settings_of
from mechassay.truth.models import is_truth, load_truth

AT_CHANCE, TOO_EXPENSIVE = "at chance", "too expensive"
KIND, SUITE, ONE_SIZE = "faithfulness", "suite", "one-size"
OF_TRUTHS = ("recovery", "completeness", "minimality")
"""What is measured wherever a circuit is known."""
Stage = Literal["all", "localize"]


@dataclass(frozen=True)
class CircuitsJob(Job):
    """Find circuits with every method on every task and model, and measure how faithful they are.

    Attributes:
        models: "truth" stands for all ground truths.
        tasks: of the models that are no ground truth.
        scores: score files to measure, instead of methods; or folders of circuits.
        stage: "localize" only finds scores.
    """

    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS] = ()
    methods: Annotated[tuple[str, ...], options.METHODS] = ()
    scores: Annotated[
        tuple[str, ...], option("Score files, or folders of circuits.", complete="files")
    ] = ()
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    objective: Annotated[str | None, options.OBJECTIVE] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    ablation: Annotated[str, options.ABLATION] = "counterfactual"
    pairing: Annotated[str, options.PAIRING] = "matched"
    train_split: Annotated[str, option("Split to find circuits on.")] = "train"
    train_limit: Annotated[int, option("Pairs to find circuits on.", least=1)] = 100
    test_split: Annotated[str, option("Split to measure circuits on.", "--split")] = "test"
    test_limit: Annotated[int, option("Pairs to measure circuits on.", "--limit", least=1)] = 100
    profile: Annotated[Profile, options.PROFILE] = "strict"
    metrics: Annotated[tuple[str, ...], options.METRICS] = ()
    curve: Annotated[
        bool,
        option(
            "Measure circuits of all sizes; else what the metrics are alone.", "--curve/--no-curve"
        ),
    ] = True
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    max_minutes: Annotated[
        float | None,
        option(
            "Skip a cell whose circuit would take longer to find, by its method's forwards.",
            least=0,
            role="free",
        ),
    ] = None
    even_at_chance: Annotated[
        bool,
        option(
            "Run tasks that the model does not do.",
            "--even-at-chance/--skip-at-chance",
            role="free",
        ),
    ] = True
    stage: Annotated[Stage, option("What to do.", role="free")] = "all"

    kind: ClassVar[str] = "circuits"
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "methods", "scores")

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", with_truths(self.models))

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        """See `Job.words`."""
        said = ("scores", "stage")
        if self.scores and self.methods:
            return (), said
        if not self.scores:
            return ("circuits", "run" if self.stage == "all" else self.stage), said
        return ("circuits", "evaluate", *self.scores), said

    def versions(self, bench: Bench) -> dict[str, int]:
        """Versions of definitions, which are part of the plan."""
        return {"profile_version": VERSIONS[self.profile]}

    def definitions(self) -> dict[str, int]:
        """See `Job.definitions`: of methods and metrics."""
        methods = [METHODS.make(text) for text in self.methods]
        metrics = [METRICS.make(text) for text in self.metrics]
        return {
            **{f"method {each.name}": each.version for each in methods},
            **{f"metric {each.name}": each.version for each in metrics},
        }

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("profile", self.profile, get_args(Profile))
        one_of("stage", self.stage, get_args(Stage))
        if not (self.curve or self.metrics or any(map(is_truth, self.models))):
            raise BadUsage("Without a curve there is nothing to measure: name a metric.")
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        one_of("ablation", self.ablation, ABLATIONS)
        check_dtype(self.dtype)
        check_pairing(self.pairing)
        if self.pairing != "matched" and self.ablation != "counterfactual":
            raise BadUsage(
                f"Only counterfactual ablation pairs prompts; got the pairing {self.pairing} with"
                f" {self.ablation} ablation."
            )
        if self.objective is not None:
            load_objective(self.objective)
        self._check_plugins()
        self._check_unchanged(bench)
        for task in self.tasks:
            bench.task(task)
        check_tasks(self.models, self.tasks)

    def _check_plugins(self) -> None:
        for text in self.methods:
            METHODS.make(text)
        for text in self.metrics:
            if METRICS.make(text).needs_truth and not any(map(is_truth, self.models)):
                raise BadUsage(
                    f"The metric {text} needs a known circuit, which only ground truths have;"
                    " completeness and minimality take a size instead: completeness:size=0.01."
                )
        for file in self.scores:
            load_ranked(file)
        names = [name for name, _ in self.rankings()]
        if not names:
            raise BadUsage("Name a method or a score file: there is nothing to do.")
        for name in names:
            if names.count(name) > 1:
                raise BadUsage(f"Two rankings are called {name!r}; rename the file of one.")

    def _check_unchanged(self, bench: Bench) -> None:
        """Refuse files of scores that have changed since the folder's records were made of them."""
        of_files = [cell for cell in self.cells() if cell.typed["method"] in self.scores]
        for cell in of_files if bench.folder.plan_file.is_file() else ():
            record, typed = bench.folder.record(cell.name), cell.typed["method"]
            if record is None or record.method.args.get(SCORES_SHA256) == ranked_hash(Path(typed)):
                continue
            raise BadUsage(
                f"{typed} has changed since {bench.folder.path} was made of it. Name another"
                " --output, or remove the folder."
            )

    def _kept_scores(self, cell: Cell, results: Results) -> Path:
        """Where the scores of a finished cell are: as given, or as its method found them."""
        typed = cell.typed["method"]
        return Path(typed) if typed in self.scores else results.folder.scores_file(cell.name)

    def notes(self) -> Sequence[str]:
        """See `Job.notes`: ground truths have tasks of their own."""
        return own_task_notes(self.models, self.tasks)

    def rankings(self) -> list[tuple[str, str]]:
        """What is measured: the name of each method or score file, and how it was typed."""
        # A method that is spelled in two ways, as with a default setting, is one method.
        methods = {method_name(METHODS.make(text)): text for text in self.methods}
        files = dict.fromkeys((ranked_name(file), file) for file in self.scores)
        return [*methods.items(), *files]

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        ending = ".scores" if self.stage == "localize" else ""
        return [
            Cell(
                f"{group}/{cell_name(name)}{ending}",
                {"method": name, "task": task, "model": shown_model(model)},
                group,
                {"method": typed, "model": model},
            )
            for model in self.models
            for task in tasks_of(model, self.tasks)
            for group in [cell_name(model, task)]
            for name, typed in self.rankings()
        ]

    def skip(self, cell: Cell, bench: Bench) -> tuple[str, str] | None:
        """See `Job.skip`."""
        study = self.study(cell, bench)
        if not self.even_at_chance:
            warnings = study.preference.warnings()
            if warnings:
                return AT_CHANCE, warnings[0]
        if self.max_minutes is None or self.scores or study.scores_file(cell).is_file():
            return None
        model, n_pairs = study.model, len(study.train)
        forwards = METHODS.make(cell.typed["method"]).forwards(model.graph, n_pairs)
        if self.ablation == "optimal" and not study.constants_file.is_file():
            forwards += OptimalAblation(seed=self.seed).forwards(model.graph, n_pairs)
        seconds = forwards * study.forward_seconds
        if seconds <= 60 * self.max_minutes:
            return None
        return (
            TOO_EXPENSIVE,
            f"{_duration(seconds)}: {forwards / n_pairs:,.0f} forwards a pair x {n_pairs} pairs",
        )

    def study(self, cell: Cell, bench: Bench) -> Study:
        """What the cells of one model and task share."""
        model, task = cell.typed["model"], cell.of["task"]
        return bench.shared("study", lambda: Study(self, bench, model, task, cell.shares))

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        study = self.study(cell, bench)
        scores = study.ranking(cell)
        if self.stage == "all":
            return study.measured(cell, scores)
        if isinstance(scores, CircuitSeries):
            raise BadUsage(f"{cell.of['method']} are circuits: there is nothing to localize.")
        return study.localized(cell, scores)

    def show(self, results: Results, console: Console) -> None:
        """See `Job.show`."""
        if self.stage == "localize":
            for cell, _ in results.done:
                file = results.folder.scores_file(cell.name.removesuffix(".scores"))
                scores = load_scores(file)
                best = scores.ranking("magnitude")[:3]
                names = ", ".join(scores.place_name(int(flat)) for flat in best)
                n_scores = len(scores.ranking("value"))
                line = f"{cell.of['method']}: {n_scores:,} scores in {file}; strongest: {names}"
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            return
        kind = SUITE if len(results.groups) > 1 else KIND
        if not self.curve:
            kind = ONE_SIZE
        print_report(results.records, results.failures, console, kind)

    def report(self, results: Results) -> Path:
        """A page for each model and task, and one over all; tables.md; differences.json."""
        folder, page = results.folder.path, results.folder.path / "report.html"
        if self.stage == "localize":
            return folder / "scores"
        if not self.curve:
            return super().report(results)
        groups, command = results.groups, command_line(self, Path(folder.name))
        every: list[Drawing] = []
        for group in groups:
            part = results.of(group)
            drawings = [
                drawing
                for cell, _ in part.done
                for drawing in _drawings(cell, self._kept_scores(cell, results))
            ]
            every += drawings
            target = page if len(groups) == 1 else folder / "pages" / f"{group}.html"
            write_page(target, part.records, drawings, part.failures, kind=KIND, command=command)
        records, failures = results.records, results.failures
        write_markdown(folder / "tables.md", records, failures, SUITE)
        differences = json.dumps(suite_differences(records), indent=1)
        write_text(folder / "differences.json", differences)
        if len(groups) > 1:
            write_page(page, records, every, failures, kind=SUITE, command=command)
        return page


@dataclass(frozen=True, eq=False)
class Study:
    """One model on one task: the pairs, controls and constants that its cells share."""

    job: CircuitsJob
    bench: Bench
    model_name: str
    task_name: str
    group: str = ""

    @cached_property
    def model(self) -> Model:
        job = self.job
        return self.bench.model(self.model_name, dtype=job.dtype, prepend_bos=job.prepend_bos)

    @cached_property
    def task(self) -> Any:
        return self.bench.task(self.task_name)

    @cached_property
    def objective(self) -> Any:
        return load_objective(self.job.objective or self.task.objective)

    def pairs(self, role: str, split: str, limit: int) -> Batch:
        """Pairs of a split as a batch;
        what was chosen is kept in the folder under `role`, "train" or "test".

        Raises:
            BadUsage: the folder holds results on other pairs.
        """
        job = self.job
        pairs = self.task.pairs(
            split,
            self.model,
            limit=limit,
            counterfactual=job.counterfactual,
            keep=job.keep,
            seed=job.seed,
            private_seed=job.private_seed,
        )
        batch = self.model.batch(pairs)
        about = {**pairs.selection(), "alignment": dict(batch.alignment)}
        if role == "train" and job.pairing != "matched":
            templates = [self.task.template(pair.tags) for pair in pairs]
            batch, _, n_alone = paired(
                batch, job.pairing, np.random.default_rng(job.seed), templates
            )
            about |= {"pairing": job.pairing, "kept": len(batch), "alone": n_alone}
        if split != PRIVATE:
            about["first"] = pair_tokens(self.model, batch, 0).model_dump(mode="json")
        self.bench.folder.save_data(role, about, self.group)
        return batch

    @cached_property
    def train(self) -> Batch:
        """The pairs to find circuits on, with their counterfactuals."""
        return self.pairs("train", self.job.train_split, self.job.train_limit)

    @cached_property
    def test(self) -> Batch:
        """The pairs to measure circuits on, with their counterfactuals."""
        return self.pairs("test", self.job.test_split, self.job.test_limit)

    @cached_property
    def preference(self) -> Preference:
        """Whether the model does the task on the test pairs."""
        return preference_of(self.model, self.test)

    @cached_property
    def forward_seconds(self) -> float:
        """Seconds of a forward pass of one train pair."""
        return forward_seconds(self.model, self.train)

    def _kept(self, name: str) -> str:
        return "/".join(filter(None, ("kept", self.group, name)))

    @property
    def constants_file(self) -> Path:
        return self.bench.folder.path / self._kept("constants.safetensors")

    def ablated(self, batch: Batch) -> Batch:
        """The batch with the job's ablation; constants are always those of the train pairs."""
        job, model = self.job, self.model
        if job.ablation == "counterfactual":
            return batch
        if job.ablation == "resample":
            return ablate(model, batch, job.ablation, seed=job.seed)
        constants = self.bench.kept(
            self._kept("constants.safetensors"), self._constants, load_ablated, save_ablated
        )
        return ablate(model, batch, constants)

    def _constants(self) -> Constants:
        job, progress = self.job, self.bench.progress
        if job.ablation == "optimal":
            return OptimalAblation(seed=job.seed).learn(
                self.model,
                self.train,
                progress=progress,
                checkpoint=self.constants_file.with_suffix(".checkpoint"),
            )
        return ablated_values(self.model, self.train, job.ablation, progress=progress)

    @cached_property
    def ablated_train(self) -> Batch:
        return self.ablated(self.train)

    @cached_property
    def ablated_test(self) -> Batch:
        return self.ablated(self.test)

    @cached_property
    def controls(self) -> Controls:
        """The empty and the full circuit and random rankings, on the test pairs."""
        return self.bench.kept(
            self._kept("controls.safetensors"), self._run_controls, Controls.load, Controls.save
        )

    def _run_controls(self) -> Controls:
        progress = self.bench.progress
        return run_controls(self.model, self.ablated_test, self.objective, progress=progress)

    def scores_file(self, cell: Cell) -> Path:
        """Where the scores of a method are kept."""
        return self.bench.folder.scores_file(cell.name.removesuffix(".scores"))

    def ranking(self, cell: Cell) -> Ranked:
        """What a cell measures: scores of a file or a method, or a folder's circuits.

        Raises:
            BadFile, GraphMismatch: a file cannot be read or belongs to another graph.
        """
        typed = cell.typed["method"]
        if typed in self.job.scores:
            return load_ranked(typed, self.model.graph)
        return self.found(cell)

    def found(self, cell: Cell) -> Scores:
        """The scores of a cell's method, found now or before."""
        file = self.scores_file(cell)
        if not file.is_file():
            self.score(METHODS.make(cell.typed["method"]), file).save(file)
        return load_scores(file, self.model.graph)

    def score(self, method: Method, file: Path) -> Scores:
        """The scores that a method finds on the train pairs; a checkpoint stands beside `file`."""
        train, job, begin = self.ablated_train, self.job, time.perf_counter()
        scores = method.score(
            self.model,
            train,
            self.objective,
            progress=self.bench.progress,
            checkpoint=file.with_suffix(".checkpoint"),
        )
        about = {
            **scores.provenance,
            "seconds": round(time.perf_counter() - begin, 3),
            "task": self.task_name,
            "split": job.train_split,
        }
        if job.pairing != "matched":
            alone = self.bench.folder.data(self.group)["train"]["alone"]
            about |= {"pairing": job.pairing, "left out": alone}
        return dataclasses.replace(scores, provenance=about)

    def localized(self, cell: Cell, scores: Scores) -> Record:
        """That scores were found: how many, and in how long."""
        data = self.bench.folder.selections(self.group)
        n_scored = int(scores.scored().sum())
        return Record(
            kind="scores",
            cell=dict(cell.of),
            specs={**self._specs(cell, scores), "metric": Spec(name=self.objective.name)},
            measures=[Measure(name="scored", value=n_scored, n=len(self.train))],
            realised={"localize_seconds": _seconds(scores)},
            data=data,
            provenance=made_by(self.model, self.job.seed, data["train"].hash),
        )

    def measured(self, cell: Cell, scores: Ranked) -> Record:
        """How faithful the circuits of scores are on the test pairs."""
        job = self.job
        # Before the clock starts: what all cells share is not part of the first one's seconds.
        batch = self.ablated_test
        if not job.curve:
            return self._with_metrics(self._bare(cell, scores, batch), scores, batch)
        controls = self.controls
        begin = time.perf_counter()
        curve = faithfulness_curve(
            self.model,
            scores,
            batch,
            self.objective,
            profile=job.profile,
            controls=controls,
            label=cell.of["method"],
            seed=job.seed,
            progress=self.bench.progress,
        )
        realised = {
            "localize_seconds": _seconds(scores),
            "evaluate_seconds": round(time.perf_counter() - begin, 3),
            "peak_memory_gb": round(_peak_memory() / 2**30, 3),
        }
        data = self.bench.folder.selections(self.group)
        about = made_by(self.model, job.seed, data["test"].hash)
        record = curve.record(
            cell=cell.of,
            **self._specs(cell, scores),
            device=about.device,
            dtype=about.dtype,
            seed=job.seed,
            data_hash=about.data_hash,
            realised=realised,
            data=data,
            preference=self.preference,
        )
        return self._with_metrics(record, scores, batch)

    def _bare(self, cell: Cell, scores: Ranked, batch: Batch) -> Record:
        """A record of the full and the empty circuit, which metrics add to."""
        job, model, graph = self.job, self.model, self.model.graph
        begin = time.perf_counter()
        ends = [Circuit.full(graph), Circuit.empty(graph)]
        full, empty = evaluate(model, ends, batch, self.objective, progress=self.bench.progress)
        data = self.bench.folder.selections(self.group)
        return Record(
            kind=ONE_SIZE,
            cell=dict(cell.of),
            specs={**self._specs(cell, scores), "metric": Spec(name=self.objective.name)},
            measures=self.preference.measures(),
            values=Values(
                unit="pair",
                ids=list(batch.ids),
                groups=list(batch.groups),
                columns={"clean": full.tolist(), "empty": empty.tolist()},
            ),
            realised={
                "localize_seconds": _seconds(scores),
                "evaluate_seconds": round(time.perf_counter() - begin, 3),
                "peak_memory_gb": round(_peak_memory() / 2**30, 3),
            },
            data=data,
            warnings=self.preference.warnings(),
            provenance=made_by(model, job.seed, data["test"].hash),
        )

    def _with_metrics(self, record: Record, scores: Ranked, batch: Batch) -> Record:
        """The record with what the metrics say of the scores."""
        job = self.job
        scored = Scored(
            self.model,
            scores,
            batch,
            self.objective,
            self.known.get(job.ablation),
            f"The circuit of {self.model_name} is verified for {', '.join(self.known)} ablation,"
            f" not for {job.ablation}",
            job.seed,
            self.bench.progress,
        )
        record = with_metrics(record, self.metrics, scored)
        # What a task says of its data, as that rows repeat each other.
        notes = dict.fromkeys(
            note for chosen in record.data.values() for note in chosen.notes.values()
        )
        return record.changed(warnings=[*record.warnings, *notes])

    @cached_property
    def on_truth(self) -> bool:
        """Whether the model is a ground truth on its own task."""
        return is_truth(self.model_name) and self.task == load_task(self.model_name)

    @cached_property
    def known(self) -> Mapping[str, Circuit]:
        """The circuit of a ground truth, by the ablations that it is verified for."""
        return load_truth(self.model_name).circuits if self.on_truth else {}

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the job, and on a ground truth those that need one."""
        names = (*(OF_TRUTHS if self.on_truth else ()), *self.job.metrics)
        made = dict.fromkeys(METRICS.make(name) for name in names)
        return tuple(metric for metric in made if self.on_truth or not metric.needs_truth)

    def _specs(self, cell: Cell, scores: Ranked) -> dict[str, Spec]:
        job, name, typed = self.job, cell.of["method"], cell.typed["method"]
        method = None if typed in job.scores else METHODS.make(typed)
        counterfactual = job.counterfactual or self.task.counterfactual_for(self.model.tokenizer)
        # What a file was found on is its own to say; this job finds nothing.
        found_on = (
            job.train_split if method is not None else str(scores.provenance.get("split", ""))
        )
        about = {
            "counterfactual": counterfactual,
            "split": job.test_split,
            "limit": job.test_limit,
            "train_split": found_on,
            "train_limit": job.train_limit,
            "keep": job.keep,
            "ablation": job.ablation,
            **settings_of(self.task),
        }
        return {
            "model": self.model.spec(),
            "task": Spec(name=self.task.name, version=self.task.version, args=about),
            "method": Spec(name=name, args={SCORES_SHA256: ranked_hash(Path(typed))})
            if method is None
            else Spec(name=name, version=method.version, args=settings(method)),
        }


def pair_tokens(model: Model, batch: Batch, row: int) -> PairTokens:
    """A pair of a batch, each token as text; as its id where there is no tokenizer."""

    def texts(tokens: Tensor) -> list[str]:
        ids = [token for token in tokens.tolist() if token != NO_TOKEN]
        if model.tokenizer is None:
            return list(map(str, ids))
        return [str(model.tokenizer.decode([token])) for token in ids]

    real = batch.mask[row]
    return PairTokens(
        id=batch.ids[row],
        clean=texts(batch.clean[row][real]),
        counterfactual=texts(batch.counterfactual[row][real]),
        answers=texts(batch.answers[row]),
        foils=texts(batch.foils[row]),
    )


def forward_seconds(model: Model, batch: Batch) -> float:
    """Seconds that a forward pass takes for one example, among as many as are run at once."""
    budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    rows, chunk = next(iter(batch.chunks(budget)))
    took: list[float] = []
    for _ in range(2):  # The first one may also be the first of the process.
        begin = time.perf_counter()
        taken, _ = model.run(chunk)
        taken.final.sum().item()
        took.append(time.perf_counter() - begin)
    return min(took) / len(rows)


def score_files(given: Sequence[Path]) -> tuple[str, ...]:
    """Score files that were typed as files, or as the folder of a run that found them; folders of
    circuits as they are.

    Raises:
        BadFile: a folder has none.
    """
    files: list[Path] = []
    for path in given:
        found = (path / "scores").is_dir()
        if not found and is_series(path):
            files.append(path)
            continue
        folder = path / "scores" if found else path
        held = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else [path]
        if not held:
            raise BadFile(
                f"{path}: the folder has no score files (.safetensors), neither by itself nor in a"
                " folder named scores; nor circuits."
            )
        files += held
    return tuple(map(str, files))


def _seconds(scores: Ranked) -> float:
    return float(scores.provenance.get("seconds", float("nan")))


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    if hours < 1:
        return f"about {seconds / 60:.2g} min"
    return f"about {hours:,.0f} h" if hours >= 10 else f"about {hours:.1f} h"


def _drawings(cell: Cell, file: Path) -> list[Drawing]:
    """The strongest connected edges of scores of edges, or the largest circuit that fits."""
    name = cell.of["method"]
    if not file.exists() or name.startswith("random"):
        return []
    scores = load_ranked(file)
    if isinstance(scores, CircuitSeries):
        circuit, title = scores.within(DRAWN_EDGES), f"{name}: the circuit at its size"
    elif isinstance(scores, EdgeScores):
        circuit, title = largest_drawable(scores), f"{name}: the strongest connected edges"
    else:
        return []
    if isinstance(scores, CircuitSeries) and not len(circuit):
        return []
    edges = scores if isinstance(scores, EdgeScores) else None
    return [replace(draw_circuit(edges, circuit, title=title), of=dict(cell.of))]


def _peak_memory() -> float:
    """Bytes; NaN on systems that do not count them."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
