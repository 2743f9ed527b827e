"""Metrics of measurement as a run: a cell is one metric on one task with one model.

The cells of a model and task share the pairs, the rankings that methods found on the train pairs,
and the circuit. A metric whose input was not given is skipped, and its row says which it lacks. The
number of prompts is that of the page's usage lines, by metric, unless another is asked for.

Metrics of dictionaries, texts and words of their own are about no task: their cells are of the
model alone, and their records name the dictionary and the texts. Activations of texts are kept in
`activations/`, and dictionaries that metrics train on them in `dictionaries/`: a run that goes on
has them already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage
from mechassay.features.sae import SAE, load_sae
from mechassay.features.sae_releases import is_release, sae_of_site
from mechassay.interventions.site import load_site
from mechassay.measurement.gauges import ALL_GAUGES, all_gauges, gauge_name, metric_of
from mechassay.measurement.metric import (
    SOURCES,
    GaugeInputs,
    Store,
    Trainer,
    load_gauge,
    missing_inputs,
)
from mechassay.measurement.options import MeasureOptions
from mechassay.models.model import Model
from mechassay.models.origin import found_in
from mechassay.models.sources import with_truths
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Pair, Pairs
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Selection, Spec
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.worker import Worker, draw, made_by
from mechassay.tasks import TASKS
from mechassay.tasks.task import Task, settings_of
from mechassay.truth.ground_truth import (
    check_tasks,
    is_truth,
    own_task_notes,
    tasks_of,
    truth_circuit,
)
from mechassay.utils.files import path_hash

N_PROMPTS = 40
"""Where the page's usage line of a metric has no number of prompts."""
MISSING = "missing input"
TRUTH, FOUND, TRAINED = "truth", "eap@0.01", "trained on the texts"
BUILT_IN = "docstrings"
"""Texts of a metric that is named and needs some."""
EITHER = "circuit|sae"
ABLATION = "counterfactual"
ANSWER = "answer"
DICTIONARIES = frozenset(("site", "sae", "other sae", "texts", "trainer"))
"""Inputs that are of a site."""
OF_NO_TASK = DICTIONARIES | {"model", "names", "records"}
"""Inputs that have nothing to do with prompts of a task."""


@dataclass(frozen=True)
class MeasureExperiment(MeasureOptions, Experiment):
    """A cell is one metric on one task with one model; see `MeasureOptions` for the fields."""

    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "metrics")
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", with_truths(self.models))
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))
        object.__setattr__(self, "methods", METHODS.full_names(self.methods))
        object.__setattr__(self, "circuit", CircuitSpec.full_text(self.circuit))

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("measure", "run", *self.metrics), ("metrics",)

    def check(self, worker: Worker) -> None:
        super().check(worker)
        for text in self.gauges().values():
            load_gauge(text)
        for text in self.methods:
            METHODS.make(text)
        if self.circuit:
            CircuitSpec.parse(self.circuit)
        if self.site:
            load_site(self.site)
        if (self.sae or self.other_saes) and not self.site:
            raise BadUsage("A sparse autoencoder has a site: give both --sae and --site.")
        if self.texts:
            if not self.site:
                raise BadUsage("Texts are read at a site: give both --texts and --site.")
            self.dictionaries(self.site).check()
        if self.other_task:
            worker.task(self.other_task)
        for file in filter(None, (*self.other_saes, self.records)):
            if not Path(file).exists():
                raise BadFile(f"{file}: there is no such file or folder.")
        if self.sae and not Path(self.sae).exists() and not is_release(self.sae):
            raise BadFile(f"{self.sae}: there is no such file or folder, and it is no hub id.")
        if any(map(needs_task, self.gauges().values())):
            check_tasks(self.models, self.tasks)

    def dictionaries(self, site: str) -> Any:
        """What makes the activations of the texts, and what trains dictionaries on them."""
        names = ("tokens", "window", "seed", "architecture", "n_features", "k", "steps")
        chosen = {name: getattr(self, name) for name in names}
        texts = self.texts or BUILT_IN
        return SOURCES.load("dictionaries")(texts=texts, site=site, **chosen)

    def gauges(self) -> dict[str, str]:
        """The metrics, "all" written out: what each is called, and how it was typed."""
        typed = [
            name
            for text in self.metrics
            for name in (all_gauges() if text == ALL_GAUGES else [text])
        ]
        return {gauge_name(text): text for text in typed}

    def definitions(self) -> dict[str, int]:
        """Return the versions of metrics, and of the methods that rank for them."""
        gauges = [load_gauge(text) for text in self.gauges().values()]
        methods = [METHODS.make(text) for text in self.methods]
        return {
            **{f"metric {gauge.id}": gauge.version for gauge in gauges},
            **{f"method {method.name}": method.version for method in methods},
        }

    def notes(self) -> Sequence[str]:
        """Return notes on ground truths, which have tasks of their own."""
        return own_task_notes(self.models, self.tasks)

    def cells(self) -> list[Cell]:
        """Return the cells of each task, then those of metrics that need no task."""
        gauges = self.gauges()
        alone = {name: text for name, text in gauges.items() if not needs_task(text)}
        about_tasks = {name: text for name, text in gauges.items() if name not in alone}
        labels = self.labels()
        return [
            Cell(
                f"{group}/{cell_name(name)}",
                {
                    "metric": name,
                    **{axis: labels.get((axis, task), task) for axis, task in about.items()},
                    "model": labels["model", model],
                },
                group,
                {"metric": text, **about, "model": model},
            )
            for model in self.models
            for group, about, chosen in (
                *(
                    (cell_name(model, task), {"task": task}, about_tasks)
                    for task in tasks_of(model, self.tasks)
                ),
                (cell_name(model), {}, alone),
            )
            for name, text in chosen.items()
        ]

    def given(self, model: str, metric: str = "") -> tuple[str, ...]:
        """Return the names of the inputs that a metric has; see `RUN_INPUTS`.

        A metric that is named has what it needs of the package: texts, the site in the middle, a
        dictionary that is trained there, a circuit that a method finds. "all" are those that have
        what was given.
        """
        needs = load_gauge(metric).needs if metric in self.metrics else ()
        asked = AskedMetric(self, is_truth(model), needs)
        return tuple(name for name, own in RUN_INPUTS.items() if own.given(asked))

    def skip(self, cell: Cell, worker: Worker) -> tuple[str, str] | None:
        """Return which inputs the metric lacks; None if it lacks none."""
        gauge = load_gauge(cell["metric"])
        missing = missing_inputs(gauge.needs, self.given(cell["model"], cell["metric"]))
        return (MISSING, f"needs {', and '.join(missing)}") if missing else None

    def run(self, cell: Cell, worker: Worker) -> Record:
        task = cell["task"] if "task" in cell.labels else None
        inputs = worker.shared(
            "inputs", lambda: MeasureInputs(self, worker, cell["model"], task or "")
        )
        gauge: Any = load_gauge(cell["metric"])
        pairs = None if task is None else inputs.test(self.size(gauge.id))
        given = inputs.inputs(pairs, cell["metric"])
        measurement = gauge.measure(given)
        specs, data = inputs.named(gauge.needs, pairs, cell["metric"])
        specs["method"] = Spec(name=gauge.id, version=gauge.version, args=dataclasses.asdict(gauge))
        specs["metric"] = Spec(name="" if pairs is None else given.objective.name)
        used = inputs.used(gauge.needs, cell["metric"])
        elsewhere = {what: x for name in used for what, x in inputs.elsewhere.get(name, {}).items()}
        return measurement.record(
            specs,
            made_by(inputs.model, self.seed, data["test"].hash if data else ""),
            data=data,
            found_in=elsewhere,
        )

    def size(self, id: str) -> int:
        """Prompts that a metric is measured on: as asked for, or as in the page's usage line."""
        if self.n_prompts is not None:
            return self.n_prompts
        page = metric_of(id)
        return int(page.defaults.get("n_prompts", N_PROMPTS)) if page else N_PROMPTS


def needs_task(text: str) -> bool:
    """Whether a metric is about the prompts of a task."""
    return not set(load_gauge(text).needs) <= OF_NO_TASK


def label_of(pair: Pair, by: str) -> str | None:
    """Return the value of a pair's field: a tag, the answer, or a part of the clean prompt; None if
    the pair does not have the field.
    """
    if by in pair.tags:
        return pair.tags[by]
    if by == ANSWER:
        return pair.answers[0].strip()
    if by not in pair.spans:
        return None
    begin, end = pair.spans[by]
    return pair.clean[begin:end]


@dataclass(frozen=True, eq=False)
class MeasureInputs:
    """The inputs that metrics of one model and at most one task share.

    Attributes:
        task_name: "" for metrics that are about no task.
        elsewhere: the models in which given inputs were found, if these are other models or are not
            known, by the name of the input.
    """

    experiment: MeasureExperiment
    worker: Worker
    model_name: str
    task_name: str
    elsewhere: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        experiment = self.experiment
        return self.worker.model(
            self.model_name, dtype=experiment.dtype, prepend_bos=experiment.prepend_bos
        )

    @cached_property
    def task(self) -> Task:
        return self.worker.task(self.task_name)

    def pairs(self, task: Task, split: str, limit: int) -> Pairs:
        """Pairs of a task."""
        experiment = self.experiment
        own = task.name == self.task.name
        return draw(
            task,
            "pairs",
            split,
            self.model,
            limit=limit,
            counterfactual=experiment.counterfactual if own else None,
            keep=experiment.keep,
            seed=experiment.seed,
            private_seed=experiment.private_seed,
        )

    def test(self, size: int) -> Pairs:
        """Pairs to measure on."""
        return self.pairs(self.task, self.experiment.split, size)

    def labels(self, pairs: Pairs) -> tuple[str, ...]:
        """What each pair has in the field that is compared.

        Raises:
            BadUsage: some pair has no such field.
        """
        by = self.experiment.by
        known = [label_of(pair, by) for pair in pairs]
        if None in known:
            fields = dict.fromkeys((ANSWER, *(tag for pair in pairs for tag in pair.tags)))
            raise BadUsage(
                f"Prompts of {self.task_name} are compared by a field that they all have,"
                f" {', '.join((*fields, *pairs.fields))}; got {by!r}."
            )
        return tuple(map(str, known))

    @cached_property
    def train(self) -> Batch:
        """Pairs to find rankings, means and probes on."""
        return self.model.batch(
            self.pairs(self.task, self.experiment.train_split, self.experiment.train_limit)
        )

    @property
    def circuit_name(self) -> str:
        """How the circuit is spelled."""
        return self.experiment.circuit or (TRUTH if is_truth(self.model_name) else FOUND)

    @cached_property
    def site(self) -> str:
        """Where dictionaries are: the middle block if nothing else was asked for."""
        return self.experiment.site or f"resid.{max(0, self.model.graph.n_layers // 2 - 1)}"

    @cached_property
    def sae(self) -> Any:
        """The dictionary in question: the given one, of a release that of the site, or one that is
        trained.
        """
        experiment = self.experiment
        if not experiment.sae:
            return self.trainer.train(seed=experiment.seed).sae
        site = load_site(self.site)
        sae = (
            load_sae(experiment.sae)
            if Path(experiment.sae).exists()
            else sae_of_site(experiment.sae, site)
        )
        self._compare("sae", {experiment.sae: sae})
        return sae

    @cached_property
    def other_saes(self) -> tuple[SAE, ...]:
        """The other dictionaries of the site."""
        saes = {file: load_sae(file) for file in self.experiment.other_saes}
        self._compare("other sae", saes)
        return tuple(saes.values())

    def _compare(self, name: str, saes: Mapping[str, SAE]) -> None:
        """Compare the models of dictionaries with this one.

        Raises:
            BadUsage: a dictionary of another model, and no transfer is asked for.
        """
        transfer = self.experiment.transfer
        for file, sae in saes.items():
            what = f"dictionary {Path(file).name}"
            own = found_in(what, sae.provenance, self.model, transfer=transfer)
            self.elsewhere.setdefault(name, {}).update(own)

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit in question."""
        spec = CircuitSpec.parse(self.circuit_name)
        held = (
            {spec.name: self.ranked(self.task_name, spec.name)} if spec.kind == "method" else None
        )
        circuit = spec.find_in(
            self.model,
            transfer=self.experiment.transfer,
            seed=self.experiment.seed,
            scores=held,
            truth=lambda: truth_circuit(self.model, ABLATION),
        )
        self.elsewhere["circuit"] = dict(circuit.found_in)
        return circuit.circuit

    def ranked(self, task: str, method: str) -> EdgeScores:
        """The edges as a method ranks them, found now or before.

        Raises:
            BadUsage: the method does not rank edges.
        """
        group = cell_name(self.model_name, task)
        return self.worker.kept(
            f"scores/{group}/{cell_name(method)}.safetensors",
            lambda: self._scores_of(task, method),
            lambda path: EdgeScores.load(path, self.model.graph),
            EdgeScores.save,
        )

    def _scores_of(self, task: str, method: str) -> EdgeScores:
        own = task == self.task_name
        train = (
            self.train
            if own
            else self.model.batch(
                self.pairs(
                    self.worker.task(task), self.experiment.train_split, self.experiment.train_limit
                )
            )
        )
        scores = METHODS.make(method).score(
            self.model, train, self.experiment.objective, progress=self.worker.progress
        )
        if not isinstance(scores, EdgeScores):
            raise BadUsage(
                f"Metrics of measurement compare rankings of edges; {method} ranks {scores.unit}s."
            )
        return scores

    def rankings(self, task: str) -> dict[str, EdgeScores]:
        """The edges as each method ranks them."""
        return {method: self.ranked(task, method) for method in self.experiment.methods}

    @cached_property
    def store(self) -> Store:
        """The activations of the site over the texts, taken now or before."""
        folder = self.worker.folder.path / "activations"
        return self.experiment.dictionaries(self.site).store(
            self.model, folder, self.worker.progress
        )

    @property
    def trainer(self) -> Trainer:
        """What trains dictionaries on these activations, and keeps them in the folder."""
        worker, folder = self.worker, self.worker.folder.path / "dictionaries"
        source = self.experiment.dictionaries(self.site)
        return source.trainer(self.store, folder, worker.device, worker.progress)

    def records(self) -> list[Record]:
        """The records of the folder of a run.

        Raises:
            BadFile: it has none.
        """
        files = sorted((Path(self.experiment.records) / "records").rglob("*.json"))
        if not files:
            raise BadFile(f"{self.experiment.records}: the folder has no records of a run.")
        return [read_record(file) for file in files]

    def used(self, needs: Sequence[str], metric: str) -> set[str]:
        """Return the names of the inputs that a metric uses."""
        given = self.experiment.given(self.model_name, metric)
        return {name for need in needs for name in need.split("|") if name in given}

    def named(
        self, needs: Sequence[str], pairs: Pairs | None, metric: str
    ) -> tuple[dict[str, Spec], dict[str, Selection]]:
        """What took part in a metric: by role, and the pairs or values that it was measured on."""
        experiment, given = self.experiment, self.experiment.given(self.model_name, metric)
        used = self.used(needs, metric)
        specs: dict[str, Spec] = {"model": self.model.spec()}
        data: dict[str, Selection] = {}
        if "texts" in used:
            store = self.store
            data["test"] = Selection(hash=store.key, task=store.corpus, kept=store.n_rows("test"))
        if pairs is not None:
            task = self.task
            about = {"split": experiment.split, "n_prompts": len(pairs), **settings_of(task)}
            specs["task"] = Spec(name=task.name, version=task.version, args=about)
            specs["circuit"] = Spec(name=self.circuit_name if "circuit" in given else "")
            data["test"] = Selection.of(pairs.selection())
        if used & DICTIONARIES:
            specs["site"] = Spec(name=self.site)
        for name in filter(used.__contains__, RUN_INPUTS):
            specs |= RUN_INPUTS[name].specs(self)
        return specs, data

    def inputs(self, pairs: Pairs | None, metric: str) -> GaugeInputs:
        """Return the inputs of a metric; each one is made when the metric reads it."""

        def maker(own: RunInput) -> Callable[[], Any]:
            return lambda: own.make(self, pairs)

        known = self.experiment.given(self.model_name, metric)
        return GaugeInputs(
            more={
                name: maker(RUN_INPUTS[name])
                for name in known
                if pairs is not None or name not in OF_PAIRS
            },
            objective=self.experiment.objective,
            seed=self.experiment.seed,
            progress=self.worker.progress,
        )

    # What stands in records

    def corpus_spec(self) -> dict[str, Spec]:
        """Return the texts whose activations are read."""
        args = dataclasses.asdict(self.store.settings)
        return {"corpus": Spec(name=self.store.corpus, args=args)}

    def trainer_spec(self) -> dict[str, Spec]:
        """Return the settings by which dictionaries are trained."""
        args = dataclasses.asdict(self.experiment.dictionaries(self.site).training())
        return {"trainer": Spec(name=self.experiment.architecture, args=args)}

    def sae_spec(self) -> dict[str, Spec]:
        """Return the dictionary in question, and its training if it was trained in this run."""
        if self.experiment.sae:
            return {"sae": _of_file(self.experiment.sae)}
        return {"sae": Spec(name=TRAINED), **self.trainer_spec()}

    def other_sae_spec(self) -> dict[str, Spec]:
        """Return the other dictionaries and their hashes."""
        files = {file: path_hash(Path(file)) for file in self.experiment.other_saes}
        return {"other sae": Spec(name=", ".join(files), args={"sha256": list(files.values())})}


@dataclass(frozen=True)
class AskedMetric:
    """A metric that a run is asked for.

    Attributes:
        of_truth: whether the model is a ground truth.
        needs: inputs that a metric named by the user needs; () for a metric of "all".
    """

    experiment: MeasureExperiment
    of_truth: bool
    needs: Sequence[str]

    @property
    def has_defaults(self) -> bool:
        """Whether the package gives what the metric needs and the user did not give."""
        return bool(self.needs) and not self.of_truth

    @property
    def is_of_either(self) -> bool:
        """Whether the metric looks at a circuit or a dictionary, of which one is enough."""
        return EITHER in self.needs


@dataclass(frozen=True)
class RunInput:
    """How `mechassay measure run` provides one input of metrics.

    Attributes:
        given: returns a true value if the run provides the input to a metric.
        make: makes the input, given the pairs of prompts that the metric is measured on.
        specs: returns the entries of `Record.specs` for a metric that uses the input.
    """

    given: Callable[[AskedMetric], object]
    make: Callable[[MeasureInputs, Any], Any]
    specs: Callable[[MeasureInputs], dict[str, Spec]] = lambda inputs: {}


RUN_INPUTS: Mapping[str, RunInput] = {
    "model": RunInput(lambda asked: True, lambda inputs, _: inputs.model),
    # Ground truths know the words of their own task alone.
    "names": RunInput(lambda asked: not asked.of_truth, lambda inputs, _: inputs.model),
    "pairs": RunInput(lambda asked: True, lambda _, pairs: pairs),
    "train": RunInput(lambda asked: True, lambda inputs, _: inputs.train),
    "labels": RunInput(
        lambda asked: asked.experiment.by, lambda inputs, pairs: inputs.labels(pairs)
    ),
    "circuit": RunInput(
        lambda asked: (
            asked.experiment.circuit
            or asked.of_truth
            or (asked.has_defaults and asked.is_of_either and not asked.experiment.sae)
        ),
        lambda inputs, _: inputs.circuit,
    ),
    "ranking": RunInput(
        lambda asked: asked.experiment.methods, lambda inputs, _: inputs.rankings(inputs.task_name)
    ),
    "rankings": RunInput(
        lambda asked: len(asked.experiment.methods) > 1,
        lambda inputs, _: inputs.rankings(inputs.task_name),
    ),
    "other task": RunInput(
        lambda asked: asked.experiment.other_task and len(asked.experiment.methods) > 1,
        lambda inputs, _: inputs.rankings(inputs.experiment.other_task),
    ),
    "site": RunInput(
        lambda asked: asked.experiment.site or asked.has_defaults,
        lambda inputs, _: load_site(inputs.site),
    ),
    "sae": RunInput(
        lambda asked: asked.experiment.sae or (asked.has_defaults and not asked.is_of_either),
        lambda inputs, _: inputs.sae,
        lambda inputs: inputs.sae_spec(),
    ),
    "other sae": RunInput(
        lambda asked: asked.experiment.other_saes,
        lambda inputs, _: inputs.other_saes,
        lambda inputs: inputs.other_sae_spec(),
    ),
    "texts": RunInput(
        lambda asked: asked.experiment.texts or asked.has_defaults,
        lambda inputs, _: inputs.store,
        lambda inputs: inputs.corpus_spec(),
    ),
    "trainer": RunInput(
        lambda asked: asked.experiment.texts or asked.has_defaults,
        lambda inputs, _: inputs.trainer,
        lambda inputs: inputs.trainer_spec(),
    ),
    "records": RunInput(lambda asked: asked.experiment.records, lambda inputs, _: inputs.records()),
}
"""How `mechassay measure` gets each input of `NEEDS`."""
OF_PAIRS = {"pairs", "train", "labels"}
"""Inputs that are not there without pairs."""


def _of_file(file: str) -> Spec:
    """A dictionary, by the file or folder that it was read from and what that holds; of a release
    by its name.
    """
    path = Path(file)
    return Spec(name=file, args={"sha256": path_hash(path)} if path.exists() else {})
