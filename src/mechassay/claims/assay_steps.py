"""The steps of an assay: the experiments that the criteria of a claim ask for.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.spec import OURS
from mechassay.claims.claim import Claim
from mechassay.claims.claimed_circuit import claimed_circuit, write_alternative
from mechassay.claims.dossier import (
    check_claim,
    n_circuits,
    other_ablation,
)
from mechassay.claims.record_rules import (
    alternative_name,
    task_name,
)
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import (
    BadUsage,
    MechassayError,
)
from mechassay.measurement.experiment import MeasureExperiment
from mechassay.models.graph import Graph
from mechassay.models.model import Model, check_device, load_model, outline
from mechassay.models.sources import ALL_TRUTHS
from mechassay.runs.cells import cell_name
from mechassay.runs.costs import SLOWER, ModelSize, speed
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import RunFolder
from mechassay.tasks import MOST_PAIRS, load_task
from mechassay.utils.display import OneLine

OWN, ADVERSARIAL = "own", "adversarial"
EX2_TASK = "ioi"
SCALED, CONTROLS, SCALES, SCALED_ON = 6, 1, 31, 20
"""Heads of the circuit, and outside of it, that EX11 scales; the scales of each, and prompts."""
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
        transfer: whether the circuit of a claim may have been found in another model.
        dtype, seed: as of any run.
    """

    limit: int = 100
    train_limit: int = 100
    grid: int = INDEPENDENT
    left_out: int = 60
    other_method: str = ""
    transfer: bool = False
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
        transfer = self.settings.transfer
        circuit = claimed_circuit(self.asked, file, lambda: self.loaded, transfer=transfer)
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
            limit=settings.limit,
            metrics=(self._at("completeness"),),
            curve=False,
            transfer=settings.transfer,
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
            self._circuits("validation", "I4 M1", split="validation"),
        ]
        if load_task(self.claim.task).seeded:
            predictions.append(self._circuits("another-seed", "I4 M1", seed=seed + 1))
        if self.claim.other_task:
            predictions.append(
                self._circuits("other-task", "I3 C3 E3", tasks=(self.claim.other_task,))
            )
        copy = (self.claim.untrained_copy,)
        # A ground truth has its task by name; its copy is a model like any other.
        predictions.append(self._circuits("untrained", "M3", models=copy, transfer=True))
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
            write_alternative(claim, file, lambda: self.loaded, transfer=self.settings.transfer)
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
            transfer=settings.transfer,
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
            transfer=settings.transfer,
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
