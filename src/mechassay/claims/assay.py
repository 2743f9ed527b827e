"""From a claim to a verdict: run what its criteria ask for, and judge it by the records.

Every step is an experiment in a folder of its own, so that what is done stays done: a step whose
cells all have records costs nothing, and a step that fails leaves its criteria NOT TESTED and the
others as they are. The claims are written down before the first record, which is what makes
predictions of them. Then `claims.link` judges; a reader's judgments may fill in the rest. The
steps are

    own            the claim's circuit on its task: sufficiency, minimality, random paths
    ABLATION       the same edges under another ablation
    validation, another-seed   on other samples of prompts
    other-task     on a second behaviour, where the claim names one
    alternative    another circuit of as many edges on the same pairs, where the claim names one
    untrained      in an untrained copy of the model
    truth          the claim's method on models whose circuit is known
    adversarial    on a grid of clean and corrupted prompts
    graded, composition, invariance, convergence   metrics of measurement
    other-family   the claim's method in a model of another family, where the claim names one

A folder of another claim, of other settings, or of other weights and files is refused. Without a
named folder the assay has a default folder NAME, and NAME-2, NAME-3 and so on for other content.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mechassay.adversarial.divergence import arrow
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.spec import OURS, CircuitSpec, number_or_share
from mechassay.circuits.scores import EdgeScores
from mechassay.claims.claim import Claim, ClaimFile, read_plain
from mechassay.claims.document import PagedDocument
from mechassay.claims.dossier import (
    REGISTERED,
    PredictionOutcome,
    check_claim,
    completed,
    link,
    n_circuits,
    other_ablation,
    outcome_table,
    outcomes,
)
from mechassay.claims.evidence import ScoredJudgments, score_judgments
from mechassay.claims.judgments import Judgments, Scope, now
from mechassay.claims.pages import write_form
from mechassay.claims.record_rules import (
    StoredRecord,
    alternative_name,
    beside_alternative,
    record_name,
    records_below,
    task_name,
)
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import (
    BadFile,
    BadUsage,
    DiskFull,
    MechassayError,
    MissingExtra,
    OtherContent,
    first_line,
)
from mechassay.measurement.experiment import MeasureExperiment
from mechassay.measurement.measurement import Measurement
from mechassay.models.graph import Graph
from mechassay.models.model import Model, check_device, load_model, outline
from mechassay.models.sources import ALL_TRUTHS
from mechassay.results.page import Report
from mechassay.results.reading import recomputed
from mechassay.results.records import Record, Table
from mechassay.results.report import write_page
from mechassay.runs.cells import cell_name, shown_model
from mechassay.runs.costs import SLOWER, ModelSize, speed
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import RunFolder, read_run_file
from mechassay.runs.identities import FILE
from mechassay.runs.resuming import numbered
from mechassay.runs.run import opened, run
from mechassay.runs.worker import Worker
from mechassay.tasks import MOST_PAIRS, load_task
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.display import BAR, OneLine, Progress, counted
from mechassay.utils.files import file_hash, write_text


@dataclass(frozen=True)
class ClaimedCircuit:
    """How to get at the circuit of a claim.

    Attributes:
        claim: with a circuit that is a ranking and a size, and with the file if there is one.
        by_method: whether a method finds it.
    """

    claim: Claim
    by_method: bool


def claimed_circuit(claim: Claim, file: Path, load: Callable[[], Model]) -> ClaimedCircuit:
    """The circuit of a claim, ready to be run: a method with a size, or a file of scores.

        eap@60                     stays what it is: the method finds it
        scores.safetensors@60      the best of stored scores
        a file of a circuit, canonical:NAME, truth, random@60
                                   those edges
        components                 the edges that are named, and all edges out of the nodes that
                                   are named; with a node, also those out of the input

    The last two are written as a file of scores in which these edges have 1 and all others 0:
    so every command takes them, and their circuit is cut to its own size. Beside the file
    stands what it was written of, and its hash: neither another claim nor a file that was
    edited is taken for it.

    Args:
        file: where edges that no method finds are written, once; its stem is their name.
        load: the claim's model, if its edges have to be looked up.

    Raises:
        BadUsage: the claim names neither a circuit nor components, or a circuit that grows from
            the logits or has neurons.
        BadUsage: the file holds the circuit of another claim.
        BadFile: the file was edited.
        UnknownName, BadFile, GraphMismatch: what it names does not exist, or not in this model.
    """
    if claim.scores:
        return ClaimedCircuit(claim, by_method=False)
    if not claim.circuit and not claim.components:
        raise BadUsage(
            f"The claim {claim.id} names neither a circuit (eap@60, a file) nor components: there"
            " is nothing to run."
        )
    spec = CircuitSpec.parse(claim.circuit) if claim.circuit else None
    if spec is not None and spec.greedy:
        raise BadUsage(
            f"{claim.circuit}: a circuit that grows from the logits is assayed from its file: save"
            " it, and name the file."
        )
    if spec is not None and spec.kind == "method":
        return ClaimedCircuit(claim, by_method=True)
    if spec is not None and spec.size is not None and Path(spec.name).suffix == OURS:
        named = f"{Path(spec.name).stem}@{spec.size}"
        held = claim.model_copy(update={"circuit": named, "scores": spec.name})
        return ClaimedCircuit(held, by_method=False)
    source, about = _written_of(claim, spec), file.with_name(f"{file.name}.json")
    if file.is_file() and about.is_file():
        _check_written(file, about, source)
    else:
        model = load()
        circuit = _circuit(claim, spec, model)
        if circuit.neurons is not None:
            raise BadUsage(f"The circuit of {claim.id} has neurons: whole edges are assayed.")
        write_circuit(circuit, file)
        write_text(about, json.dumps({**source, "sha256": file_hash(file)}, indent=1) + "\n")
    n = int(EdgeScores.load(file).values.nan_to_num().sum())
    held = claim.model_copy(update={"circuit": f"{file.stem}@{n}", "scores": str(file)})
    return ClaimedCircuit(held, by_method=False)


def _written_of(claim: Claim, spec: CircuitSpec | None) -> dict[str, Any]:
    """What of a claim says which edges its circuit has."""
    return {
        "model": claim.model,
        "circuit": claim.circuit,
        "components": [] if claim.circuit else list(claim.components),
        "ablation": claim.ablation,
        "source": "" if spec is None else spec.file_hash or "",
    }


def _check_written(file: Path, about: Path, source: dict[str, Any]) -> None:
    """Refuse a file that was written of something else, or edited."""
    held = read_plain(about)
    if not isinstance(held, dict):
        raise BadFile(f"{about}: does not say what the circuit beside it was written of.")
    digest = held.pop("sha256", "")
    if held != source:
        other = [key for key in source if held.get(key) != source[key]]
        raise BadUsage(
            f"{file}: holds the circuit of another claim (other {', '.join(other)}); choose another"
            " folder for this one."
        )
    if digest != file_hash(file):
        raise BadFile(f"{file}: was edited after it was written; choose another folder.")


def write_circuit(circuit: Circuit, file: Path) -> None:
    """Write a circuit as scores: 1 for its edges, 0 for all others.

    Raises:
        BadUsage: it has no edges.
    """
    if not len(circuit):
        raise BadUsage("A circuit without edges cannot be assayed.")
    graph = circuit.graph
    values = torch.where(graph.legal, circuit.edges.float(), torch.nan)
    file.parent.mkdir(parents=True, exist_ok=True)
    EdgeScores(graph, values, {"method": file.stem}).save(file)


def write_alternative(claim: Claim, file: Path, load: Callable[[], Model]) -> None:
    """Write the circuit that a claim names as its alternative, as a file of scores.

    Raises:
        BadUsage: it is found by a method, or has another number of edges than the claim's circuit.
            Others are those of `claimed_circuit`.
    """
    assert claim.alternative is not None
    other = claim.model_copy(
        update={"circuit": claim.alternative.circuit, "scores": "", "components": ()}
    )
    other_circuit = claimed_circuit(other, file, load)
    if other_circuit.by_method:
        raise BadUsage(
            f"The alternative of {claim.id} is {other.circuit}, which a method finds: name it as"
            f" method: {other_circuit.claim.ranking}; it gets as many edges as the claim's circuit."
        )
    graph = load().graph
    every = EdgeScores.of(graph, graph.legal.float())
    n, n_claimed = (
        every.size(number_or_share(claimed.size)) for claimed in (other_circuit.claim, claim)
    )
    if n != n_claimed:
        raise BadUsage(
            f"The alternative of {claim.id} has {n:,} edges and the claim's circuit {n_claimed:,}:"
            " name one of as many."
        )
    if Path(other_circuit.claim.scores) != file:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other_circuit.claim.scores, file)


def _circuit(claim: Claim, spec: CircuitSpec | None, model: Model) -> Circuit:
    if spec is None:
        return circuit_of_components(model.graph, claim.components)
    known = spec.find(model.graph, truth=lambda: truth_circuit(claim.model, claim.ablation))
    return known.circuit


def circuit_of_components(graph: Graph, names: Sequence[str]) -> Circuit:
    """The edges of these names, and all edges out of the nodes of these names.

    A node is included as node methods include it: with all edges out of it. As nothing reaches a
    node without the input, a circuit with a node has the edges out of the input too.

    Raises:
        UnknownName: a name is neither an edge nor a node of the graph.
    """
    edges = [name for name in names if "->" in name]
    nodes = [name for name in names if "->" not in name]
    circuit = Circuit.from_names(graph, edges)
    if not nodes:
        return circuit
    mask = torch.zeros(graph.n_writers, dtype=torch.bool)
    for name in ("input", *nodes):
        mask[graph.writer(name)] = True
    return circuit | Circuit.of_nodes(graph, mask)


OWN, ADVERSARIAL = "own", "adversarial"
EX2_TASK = "ioi"
SCALED, CONTROLS, SCALES, SCALED_ON = 6, 1, 31, 20
"""Heads of the circuit, and outside of it, that EX11 scales; the scales of each, and prompts."""
SHOWN_FILES = 3
"""Files that a warning names."""
COMPOSED = 20.0
"""What products of all heads' weights cost, in runs of the model on a pair, about."""
SMALL = 0.001
"""What a run of a ground truth costs of one of the claim's model, about."""


INDEPENDENT = 72
"""Independent prompts of which none may be worse than empty, for 5 % to lie above the interval."""


@dataclass(frozen=True)
class AssaySettings:
    """How much is run.

    Attributes:
        limit, train_limit: pairs that circuits are measured on, and found on.
        grid: clean prompts of the adversarial grid, and as many corrupted ones.
        left_out: edges of the circuit that are left out in turn, a sample where it has more.
        other_method: that ranks edges by evidence of another kind than the claim's (exact).
        dtype, seed: as of any run.
    """

    limit: int = 100
    train_limit: int = 100
    grid: int = INDEPENDENT
    left_out: int = 60
    other_method: str = ""
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("limit", "train_limit", "grid", "left_out"):
            if not 2 <= (given := getattr(self, name)) <= MOST_PAIRS:
                raise BadUsage(f"{name} must be between 2 and {MOST_PAIRS:,}; got {given:,}.")


@dataclass(frozen=True, repr=False)
class AssayStep(OneLine):
    """An experiment of an assay.

    Attributes:
        folder: of its run.
        criteria: that its records are evidence for.
        forwards: about how many runs of the claim's model it takes, each of one pair.
        copied: scores that an earlier step finds, and where this step takes them from.
    """

    name: str
    folder: Path
    experiment: Any
    criteria: tuple[str, ...]
    forwards: float
    copied: tuple[Path, Path] | None = None

    @property
    def command(self) -> str:
        """What makes the same records by hand."""
        return command_line(self.experiment, self.folder)

    @property
    def is_done(self) -> bool:
        """Whether all its cells have records."""
        return not RunFolder(self.folder).cells_left(self.experiment.cells())


class ClaimSteps:
    """The steps of one claim."""

    def __init__(
        self, claim: Claim, folder: Path, settings: AssaySettings, device: str, base: Path
    ) -> None:
        self.asked, self.folder, self.settings, self.device = claim, folder, settings, device
        self.base = base

    @cached_property
    def loaded(self) -> Model:
        return load_model(self.asked.model, dtype=self.settings.dtype, device=self.device)

    @cached_property
    def outline(self) -> Model:
        """The model without its weights; the model itself if it has no outline."""
        try:
            return outline(self.asked.model, dtype=self.settings.dtype)
        except MechassayError:  # Such as a layout whose sizes are read with the weights.
            return self.loaded

    @property
    def graph(self) -> Graph:
        return self.outline.graph

    @cached_property
    def _circuit(self) -> Any:
        file = self.folder / f"{cell_name(self.asked.id)}.safetensors"
        circuit = claimed_circuit(self.asked, file, lambda: self.loaded)
        check_claim(circuit.claim)
        return circuit

    @property
    def claim(self) -> Claim:
        """The claim with its circuit as records name it."""
        return self._circuit.claim

    @property
    def by_method(self) -> bool:
        return self._circuit.by_method

    def seconds_per_forward(self) -> float:
        """Estimate the seconds of a forward pass of one pair of the claim's task. No weights are
        read.
        """
        task, model = load_task(self.asked.task), self.outline
        assert model.tokenizer is not None, "a task has texts"
        pairs = task.pairs("test", model.tokenizer, limit=min(8, self.settings.limit))
        size = ModelSize.of(model, self.asked.model)
        n_tokens = max(len(model.tokenizer(pair.clean)["input_ids"]) for pair in pairs)
        operations = size.plain(n_tokens)
        return SLOWER * operations / speed(str(check_device(self.device).type), size.width)

    @cached_property
    def steps(self) -> list[AssayStep]:
        """What there is to run, in order."""
        steps = [self._own(), *self._again(), *self._alternative()]
        if self.by_method:
            steps.append(self._truth())
        graded = (f"EX11:most={SCALED},controls={CONTROLS}",)
        steps += [self._adversarial(), self._measure("graded", graded, ("E2",))]
        steps.append(self._measure("composition", ("B10",), ("C2",)))
        if task_name(self.claim.task) == EX2_TASK:
            steps.append(self._measure("invariance", ("EX2",), ("M2",)))
        if self.settings.other_method and self.by_method:
            steps.append(self._measure("convergence", ("F03",), ("C5",)))
        if self.claim.other_model and self.by_method:
            steps.append(self._other_family())
        return steps

    # What circuits are measured by

    @cached_property
    def _base(self) -> CircuitsExperiment:
        """Measures the circuit on the claim's task; the other steps change it."""
        settings, claim = self.settings, self.claim
        return CircuitsExperiment(
            models=(claim.model,),
            tasks=(claim.task,),
            methods=(claim.ranking,) if self.by_method else (),
            scores=() if self.by_method else (claim.scores,),
            ablation=claim.ablation,
            train_limit=settings.train_limit,
            test_limit=settings.limit,
            metrics=(self._at("completeness"),),
            curve=False,
            dtype=settings.dtype,
            seed=settings.seed,
        )

    def _at(self, metric: str) -> str:
        return f"{metric}:size={self.claim.size}" if self.claim.size else metric

    @cached_property
    def scores(self) -> str:
        """The file of scores that the circuit is cut from; a method makes it in the first step."""
        if not self.by_method:
            return self.claim.scores
        return str(RunFolder(self.folder / OWN).scores_file(self._base.cells()[0].name))

    @property
    def _file(self) -> str:
        """The circuit as measurements and adversarial evaluation take it."""
        return f"{self.scores}@{self.claim.size}"

    def _circuits(self, name: str, criteria: str, **changes: Any) -> AssayStep:
        """A step that measures the scores again."""
        experiment = replace(self._base, **{"methods": (), "scores": (self.scores,), **changes})
        forwards = float(n_circuits(name, self.claim) * self.settings.limit)
        return AssayStep(name, self.folder / name, experiment, tuple(criteria.split()), forwards)

    def _own(self) -> AssayStep:
        minimality = f"{self._at('minimality')},most={self.settings.left_out}"
        experiment = replace(self._base, metrics=(*self._base.metrics, minimality))
        n = n_circuits(OWN, self.claim, self.settings.left_out)
        forwards = float(n * self.settings.limit)
        if self.by_method:
            method = METHODS.make(self.claim.ranking)
            forwards += method.forwards(self.graph, self.settings.train_limit)
        criteria = ("I1", "I2", "I4", "I5", "C4", "M1", "M3", "E1", "E4", "E5")
        return AssayStep(OWN, self.folder / OWN, experiment, criteria, forwards)

    def _again(self) -> list[AssayStep]:
        other, seed = other_ablation(self.claim), self.settings.seed
        predictions = [
            self._circuits(other, "I1 I5", ablation=other),
            self._circuits("validation", "I4 M1", test_split="validation"),
        ]
        if load_task(self.claim.task).seeded:
            predictions.append(self._circuits("another-seed", "I4 M1", seed=seed + 1))
        if self.claim.other_task:
            predictions.append(
                self._circuits("other-task", "I3 C3 E3", tasks=(self.claim.other_task,))
            )
        copy = (self.claim.untrained_copy,)
        # A ground truth has its task by name; its copy is a model like any other.
        predictions.append(self._circuits("untrained", "M3", models=copy))
        return predictions

    @property
    def alternative_file(self) -> Path:
        """Where the scores of the claim's alternative are kept."""
        return self.folder / f"{alternative_name(self.asked)}{OURS}"

    def _alternative(self) -> list[AssayStep]:
        """The claim's alternative on the claim's pairs; if a method finds it, that comes first."""
        claim, file = self.claim, self.alternative_file
        if claim.alternative is None:
            return []
        if not claim.size:
            raise BadUsage(f"The circuit of {claim.id} has no size that an alternative could have.")
        stated, criteria = claim.alternative, "C3 E3" if claim.alternative.task else "V4"
        beside = self._circuits("alternative", criteria, scores=(str(file),))
        if stated.circuit:
            write_alternative(claim, file, lambda: self.loaded)
            return [beside]
        if not stated.method and not self.by_method:
            raise BadUsage(f"The alternative of {claim.id} names no method that finds it.")
        method, task = stated.method or claim.ranking, stated.task or claim.task
        load_task(task)
        about = {"tasks": (task,), "methods": (method,), "scores": (), "stage": "localize"}
        experiment = replace(self._base, **about)
        folder = self.folder / "alternative-found"
        forwards = METHODS.make(method).forwards(self.graph, self.settings.train_limit)
        scores = RunFolder(folder).scores_file(experiment.cells()[0].name.removesuffix(".scores"))
        step = AssayStep(folder.name, folder, experiment, tuple(criteria.split()), float(forwards))
        return [step, replace(beside, copied=(scores, file))]

    def _truth(self) -> AssayStep:
        experiment = replace(
            self._base, models=(ALL_TRUTHS,), tasks=(), metrics=(), dtype="float32"
        )
        forwards = SMALL * len(experiment.models) * n_circuits("", self.claim) * self.settings.limit
        return AssayStep("truth", self.folder / "truth", experiment, ("M4", "M5"), forwards)

    def _other_family(self) -> AssayStep:
        experiment = replace(self._base, models=(self.claim.other_model,))
        method = METHODS.make(self.claim.ranking)
        forwards = float(n_circuits("", self.claim) * self.settings.limit)
        forwards += method.forwards(self.graph, self.settings.train_limit)
        return AssayStep(
            "other-family", self.folder / "other-family", experiment, ("E6",), forwards
        )

    def _adversarial(self) -> AssayStep:
        settings, claim = self.settings, self.claim
        experiment = AdversarialExperiment(
            claim.model,
            claim.task,
            (self._file,),
            n_clean=settings.grid,
            ablation=claim.ablation,
            train_limit=settings.train_limit,
            controls=min(settings.grid, 16),
            dtype=settings.dtype,
            seed=settings.seed,
        )
        pairs = settings.grid**2
        folder = self.folder / ADVERSARIAL
        return AssayStep(ADVERSARIAL, folder, experiment, ("E5",), 3.0 * pairs)

    def _measure(self, name: str, metrics: tuple[str, ...], criteria: tuple[str, ...]) -> AssayStep:
        settings, claim = self.settings, self.claim
        methods = (claim.ranking, settings.other_method) if name == "convergence" else ()
        n_prompts = min(settings.limit, SCALED_ON) if name == "graded" else settings.limit
        experiment = MeasureExperiment(
            metrics,
            (claim.model,),
            (claim.task,),
            circuit=self._file,
            methods=methods,
            train_limit=settings.train_limit,
            n_prompts=n_prompts,
            dtype=settings.dtype,
            seed=settings.seed,
        )
        heads = SCALED + CONTROLS
        costs = {
            "graded": 0.5 * heads * SCALES * n_prompts,
            "invariance": 240.0,
            "composition": COMPOSED,
        }
        forwards = costs.get(name, 0.0)
        for method in methods:
            forwards += METHODS.make(method).forwards(self.graph, settings.train_limit)
        return AssayStep(name, self.folder / name, experiment, criteria, forwards)


SECONDS = "seconds.json"


@dataclass(frozen=True, repr=False)
class Assayed(OneLine):
    """What an assay found.

    Attributes:
        judgments: of all claims; with a reader's for the rest, if there were any.
        predictions: of each claim, what became of them in the model that was run.
        scope: "other model" if that is not the model that the claims are about.
        failed: steps that left no record, by their folders, with the reason.
        page, form: the report, and the form in which a reader judges the rest.
    """

    judgments: Judgments
    scored: ScoredJudgments
    records: tuple[Record, ...]
    predictions: dict[str, list[PredictionOutcome]]
    scope: Scope
    failed: dict[str, str]
    page: Path
    form: Path

    @property
    def refuted(self) -> list[str]:
        """Predictions that fail, with their claims; another model refutes none."""
        if self.scope == "other model":
            return []
        return [
            f"{name}: {prediction.prediction} ({prediction.measured})"
            for name, own_predictions in self.predictions.items()
            for prediction in own_predictions
            if prediction.outcome == "fails"
        ]


class Assay:
    """The assay of a file of claims in a folder.

    Args:
        model: that is run instead of the claims' own; the judgments are then of another model.

    Raises:
        BadUsage, UnknownName, BadFile: a claim names no model or task, or what does not exist.
    """

    def __init__(
        self,
        claims: ClaimFile,
        folder: str | Path,
        settings: AssaySettings | None = None,
        *,
        model: str = "",
        device: str = "cpu",
        progress: Progress = BAR,
    ) -> None:
        self.claims, self.folder = claims, Path(folder)
        self.settings, self.model = settings or AssaySettings(), model
        self.device, self.progress = device, progress
        self.notes: dict[str, None] = {}
        parts: list[ClaimSteps] = []
        for claim in claims.claims:
            own = claim
            if model and model != claim.model:
                own = claim.model_copy(update={"model": model, "untrained": ""})
            for name in ("model", "task"):
                if not getattr(own, name):
                    raise BadUsage(f"The claim {claim.id} names no {name} to run.")
            alone = len(claims.claims) == 1
            place = self.folder if alone else self.folder / cell_name(claim.id)
            parts.append(ClaimSteps(own, place, self.settings, device, self.folder))
        self.parts = tuple(parts)

    @staticmethod
    def resumed(
        claims: ClaimFile, name: str, settings: AssaySettings, *, load: bool = True, **about: Any
    ) -> tuple[Assay, str]:
        """Return the assay in the newest default folder with the same claims and content, and a
        note if the content changed. In a new folder, steps whose content did not change are copied.

        Args:
            name: of the claims' file, without its ending.
            load: whether models whose digests are not cached may be loaded.
            about: of `Assay`.
        """
        model = about.get("model") or claims.claims[0].model
        text = json.dumps([asdict(settings), model, len(claims.claims)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        base = Path("runs") / cell_name("-".join(("assay", shown_model(model), name, digest)))
        others: list[tuple[Assay, list[str]]] = []
        assay = Assay(claims, base, settings, **about)
        while assay.folder.exists():
            others.append((assay, assay.changes(load=load)))
            assay = Assay(claims, numbered(base, len(others) + 1), settings, **about)
        for earlier, changes in reversed(others):
            if not changes:
                return earlier, ""
        if not others:
            return assay, ""
        earlier, changes = others[-1]
        if load:
            assay._take_over(earlier)
        return assay, f"{'; '.join(changes)}: the results are in {assay.folder} now."

    def changes(self, *, load: bool = True) -> list[str]:
        """Return how the folder's results differ from this assay: phrases of changed models, tasks
        and files, and why a step's folder is refused. Notes on the folders are added to `notes`.

        Args:
            load: whether models whose digests are not cached may be loaded.
        """
        changes, refused = dict[str, None](), ""
        try:
            self._follow()
            held = [step for step in self.steps if (step.folder / "plan.json").is_file()]
        except BadUsage as error:  # The folder holds the circuit of another claim.
            return [first_line(error).rstrip(".")]
        about: dict[str, Any] = {"device": self.device, "progress": self.progress, "load": load}
        for step in held:
            try:
                for note in opened(step.experiment, step.folder, **about).notes:
                    _, resumed, condition = note.partition(" is resumed ")
                    self.notes[f"steps are done {condition}" if resumed else note] = None
            except OtherContent as error:
                changes |= dict.fromkeys(error.changes)
            except BadUsage as error:
                refused = refused or first_line(error).partition(". Name another")[0]
            except BadFile:
                continue  # Scores that an earlier step has to find first; the step looks again.
        return [*changes, *filter(None, [refused])]

    def _take_over(self, earlier: Assay) -> None:
        """Copy the folders of equal steps whose models, tasks and files did not change."""
        about: dict[str, Any] = {"device": self.device, "progress": self.progress}
        with suppress(BadUsage):  # The earlier folder is of another claim.
            before = {step.folder.relative_to(earlier.folder): step for step in earlier.steps}
            for step in self.steps:
                own = before.get(step.folder.relative_to(self.folder))
                if own is None or not (own.folder / "plan.json").is_file():
                    continue
                # The steps name scores by their place in the folder.
                same = own.command.replace(str(earlier.folder), str(self.folder)) == step.command
                if not same or not all(path.exists() for path in self._read_by(step)):
                    continue
                partial = step.folder.with_name(f".{step.folder.name}.{secrets.token_hex(4)}")
                try:
                    opened(own.experiment, own.folder, **about)
                    shutil.copytree(own.folder, partial)
                    partial.rename(step.folder)
                except OtherContent:
                    continue
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
        self._follow()

    def _read_by(self, step: AssayStep) -> list[Path]:
        """Return the files of scores in this folder that a step reads."""
        words = shlex.split(command_line(step.experiment))
        inside = [word for word in words if word.startswith(str(self.folder))]
        return [Path(CircuitSpec.path_in(word) or word) for word in inside]

    @property
    def steps(self) -> list[AssayStep]:
        """All steps, those of a claim after another."""
        return [step for part in self.parts for step in part.steps]

    def seconds_per_forward(self) -> float:
        """Estimate the seconds of a forward pass of the first claim's model on one pair."""
        return self.parts[0].seconds_per_forward()

    def run(
        self,
        read: Judgments | None = None,
        say: Callable[[str], object] = lambda text: None,
        documents: Sequence[PagedDocument] = (),
    ) -> Assayed:
        """Run what has no record yet, judge, and write judgments.json, score.json, report.html and
        form.html.

        Args:
            read: a reader's judgments, for what no record decides.
            say: is given a line for each step.
            documents: that the reader's quotes are from.

        Raises:
            MissingExtra: a step needs a package that is not installed.
            BadUsage: the folder holds a run of another claim, with other settings, or of other
                weights or files; the reader judged another claim.
            MechassayError: a circuit could not be found at all; there is no room.
        """
        if any(not step.is_done and step.name == ADVERSARIAL for step in self.steps):
            arrow()  # Else its step would fail after hours of others.
        if changes := self.changes():
            raise BadUsage(f"{self.folder}: {'; '.join(changes)}. Name another --output.")
        if not self.folder.is_dir() or not records_below(self.folder):
            # The claims are written down with their circuits before there is a record.
            held = self._held().model_copy(update={"registered": now()})
            write_text(self.folder / REGISTERED, held.model_dump_json(indent=1) + "\n")
        failed = self._run(say)
        return self._judge(read, documents, failed)

    def _follow(self) -> None:
        """Let the plans of steps name files of this folder where it is now.

        Plans and identities name the scores that a step measures by their path. The identities have
        the digest of the scores, so that other scores in the same place are refused all the same.
        """
        for part in self.parts:
            for scores in (part.scores, str(part.alternative_file)):
                if Path(scores).is_relative_to(part.folder):
                    self._follow_one(part, scores)

    def _follow_one(self, part: ClaimSteps, scores: str) -> None:
        within = Path(scores).relative_to(part.folder).as_posix()
        pattern = re.compile(rf'"(file )?[^"]*/{re.escape(within)}')
        here = json.dumps(scores)[1:-1]
        for step in part.steps:
            for file in (step.folder / "plan.json", step.folder / FILE):
                if file.is_file():
                    text = file.read_text("utf-8")
                    moved = pattern.sub(lambda match: f'"{match[1] or ""}{here}', text)
                    if moved != text:
                        write_text(file, moved)

    def _held(self) -> ClaimFile:
        """The claims with their circuits as records name them, of the model that they are about."""
        held = [
            part.claim.model_copy(update={"model": claim.model or part.claim.model})
            for part, claim in zip(self.parts, self.claims.claims, strict=True)
        ]
        return self.claims.model_copy(update={"claims": tuple(held)})

    def _run(self, say: Callable[[str], object]) -> dict[str, str]:
        failed: dict[str, str] = {}
        steps = self.steps
        open_steps = [step for step in steps if not step.is_done]
        left, spent, run_for = sum(step.forwards for step in open_steps), 0.0, 0.0
        for place, step in enumerate(steps, start=1):
            head = f"{place}/{len(steps)} {step.name} ({', '.join(step.criteria)})"
            if step not in open_steps:
                # Its records are of this claim and of these scores, or the folder is refused.
                opened(step.experiment, step.folder, device=self.device, progress=self.progress)
                say(f"{head}: done before")
                continue
            rest = f", about {_minutes(left * run_for / spent)} left" if spent else ""
            say(f"{head}: about {step.forwards:,.0f} runs of a pair{rest}")
            begin = time.perf_counter()
            reason = self._do(step)
            seconds = time.perf_counter() - begin
            file, key = self.folder / SECONDS, str(step.folder.relative_to(self.folder))
            times = read_run_file(file, "times of steps", dict) if file.is_file() else {}
            times[key] = round(float(times.get(key, 0.0)) + seconds, 1)
            write_text(file, json.dumps(times, indent=1))
            left, spent, run_for = left - step.forwards, spent + step.forwards, run_for + seconds
            if reason:
                failed[str(step.folder)] = reason
                say(f"{head}: no record: {reason}")
                if step.name == OWN:
                    raise MechassayError(f"{step.folder}: {reason}")
        return failed

    def _do(self, step: AssayStep) -> str:
        """Run a step; why it left no record, if it did."""
        if step.copied is not None:
            folder, file = step.copied
            if not folder.is_file():
                return f"{folder} is not there, as no step found it."
            shutil.copyfile(folder, file)
        begun: list[Worker] = []
        about: dict[str, Any] = {"device": self.device, "progress": self.progress}
        try:
            report = run(
                step.experiment, step.folder, **about, begin=lambda worker, _: begun.append(worker)
            )
        except DiskFull:
            raise
        except MechassayError as error:
            if not begun and not isinstance(error, MissingExtra):
                raise
            return str(error)
        lacking = [failure for failure in report.failures if failure.status == "failed"]
        return lacking[0].message if lacking else ""

    def _judge(
        self, read: Judgments | None, documents: Sequence[PagedDocument], failed: dict[str, str]
    ) -> Assayed:
        executed = link(self._held(), self.folder, model=self.model)
        judgments = executed if read is None else completed(executed, read)
        scored = score_judgments(judgments, documents, self.folder)
        stored = records_below(self.folder)
        predicted = {part.claim.id: outcomes(part.claim, stored) for part in self.parts}
        # Another model says nothing of what was predicted of the claim's own.
        predictions = predicted if executed.scope == "claim" else {}
        records = tuple(
            self._with_tables(record, predictions.get(record.cell["claim"]), stored)
            for record in scored.records()
        )
        if lacking := [
            stored_record.file for stored_record in stored if not recomputed(stored_record.record)
        ]:
            count_text = f"{len(lacking)} of {counted(len(stored), 'record')}"
            warning = (
                f"The numbers of {count_text} were not recomputed, as the records hold no values of"
                f" single examples that give them: {', '.join(lacking[:SHOWN_FILES])}"
                f"{f' and {n_more} more' if (n_more := len(lacking) - SHOWN_FILES) > 0 else ''}."
            )
            records = (
                records[0].changed(warnings=[*records[0].warnings, warning]),
                *records[1:],
            )
        records = tuple(
            _with_warnings(record, part, failed, stored)
            for record in records
            for part in self.parts
            if part.claim.id == record.cell["claim"]
        )
        judgments.save(self.folder / "judgments.json")
        records[0].save(self.folder / "score.json")
        page = write_page(self.folder / "report.html", Report(records))
        form = write_form(self.folder / "form.html", initial=judgments)
        scope = executed.scope
        return Assayed(judgments, scored, records, predicted, scope, failed, page, form)

    def _with_tables(
        self,
        record: Record,
        predicted: Sequence[PredictionOutcome] | None,
        stored: Sequence[StoredRecord],
    ) -> Record:
        """The record with what became of predictions and of an alternative, if any, and with what
        was run for it.
        """
        part = next(
            claim_part for claim_part in self.parts if claim_part.claim.id == record.cell["claim"]
        )
        file = self.folder / SECONDS
        known = read_run_file(file, "times of steps", dict) if file.is_file() else {}
        rows = [
            {
                "step": step.name,
                "criteria": " ".join(step.criteria),
                "records": "there" if step.is_done else "missing",
                "seconds": known.get(str(step.folder.relative_to(self.folder))),
                "command": step.command,
            }
            for step in part.steps
        ]
        steps = Table.of("steps", ("step",), rows)
        tables = [] if predicted is None else [outcome_table(predicted)]
        if beside := beside_alternative(part.claim, stored):
            tables.append(Table.of("alternative", ("says",), [{"says": beside}]))
        return record.changed(tables=[*record.tables, *tables, steps])


def _with_warnings(
    record: Record, part: ClaimSteps, failed: Mapping[str, str], stored: Sequence[StoredRecord]
) -> Record:
    """The record with a warning for each step of its claim that left none, and each warning of the
    circuit's records in the claim's own model, once. Metrics of measurement have pages of theirs.
    """
    steps = {step.folder: step.name for step in part.steps}
    lines = [
        f"The step {name} left no record: {failed[str(folder)]}"
        for folder, name in steps.items()
        if str(folder) in failed
    ]
    by_warning: dict[str, dict[str, None]] = {}
    for stored_record in stored:
        file = part.base / stored_record.file
        step = next((name for folder, name in steps.items() if file.is_relative_to(folder)), "")
        own = stored_record.record.model.name == record_name(part.claim.model)
        if step and own and stored_record.record.kind != Measurement.kind:
            for warning in stored_record.record.warnings:
                by_warning.setdefault(warning, {})[step] = None
    order = list(steps.values())
    lines += [
        f"{warning} (in {', '.join(sorted(names, key=order.index))})"
        for warning, names in by_warning.items()
    ]
    return record.changed(warnings=[*record.warnings, *lines])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
