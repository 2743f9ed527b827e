"""The steps of an assay: the jobs whose records a claim's criteria ask for.

own            the claim's circuit on its task: sufficiency, minimality, random paths
ABLATION       the same edges under another ablation
validation, another-seed   on other samples of prompts
other-task     on a second behaviour, where the claim names one
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

from mechassay.circuits.methods import METHODS
from mechassay.claims.answering import task_name
from mechassay.claims.claim import Claim
from mechassay.claims.claimed_circuit import claimed_circuit
from mechassay.claims.commands import n_circuits, other_ablation
from mechassay.claims.dossier import check_claim
from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.circuits_study import forward_seconds
from mechassay.runs.command_line import command_line
from mechassay.runs.execute import batches_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import cell_name
from mechassay.runs.measure import MeasureJob
from mechassay.runs.own_tasks import ALL_TRUTHS
from mechassay.tasks import load_task

OWN = "own"
EX2_TASK = "ioi"
SCALED, CONTROLS, SCALES, SCALED_ON = 6, 1, 31, 20
"""Heads of the circuit, and outside of it, that EX11 scales; the scales of each, and prompts."""
COMPOSED = 20.0
"""What products of all heads' weights cost, in runs of the model on a pair, about."""
SMALL = 0.001
"""What a run of a ground truth costs of one of the claim's model, about."""


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
    grid: int = 50
    left_out: int = 60
    other_method: str = ""
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("limit", "train_limit", "grid", "left_out"):
            if getattr(self, name) < 2:
                raise BadUsage(f"{name} must be 2 or more; got {getattr(self, name)}.")


@dataclass(frozen=True, repr=False)
class AssayStep(OneLine):
    """A job of an assay.

    Attributes:
        folder: of its run.
        criteria: that its records are evidence for.
        forwards: about how many runs of the claim's model it takes, each of one pair.
    """

    name: str
    folder: Path
    job: Any
    criteria: tuple[str, ...]
    forwards: float

    @property
    def command(self) -> str:
        """What makes the same records by hand."""
        return command_line(self.job, self.folder)

    @property
    def is_done(self) -> bool:
        """Whether all its cells have records."""
        return not batches_of(self.job, RunFolder(self.folder))


class ClaimSteps:
    """The steps of one claim."""

    def __init__(self, claim: Claim, folder: Path, settings: AssaySettings, device: str) -> None:
        self.asked, self.folder, self.settings, self.device = claim, folder, settings, device

    @cached_property
    def loaded(self) -> Model:
        return load_model(self.asked.model, dtype=self.settings.dtype, device=self.device)

    @cached_property
    def graph(self) -> Graph:
        return self.loaded.graph

    @cached_property
    def _circuit(self) -> Any:
        file = self.folder / f"{cell_name(self.asked.id)}.safetensors"
        found = claimed_circuit(self.asked, file, lambda: self.loaded)
        check_claim(found.claim)
        return found

    @property
    def claim(self) -> Claim:
        """The claim with its circuit as records name it."""
        return self._circuit.claim

    @property
    def by_method(self) -> bool:
        return self._circuit.by_method

    def seconds_per_forward(self) -> float:
        """Seconds of a forward pass of one pair of the claim's task."""
        task = load_task(self.asked.task)
        pairs = task.pairs("test", self.loaded, limit=min(8, self.settings.limit))
        return forward_seconds(self.loaded, self.loaded.batch(pairs))

    @cached_property
    def steps(self) -> list[AssayStep]:
        """What there is to run, in order."""
        found = [self._own(), *self._again()]
        if self.by_method:
            found.append(self._truth())
        graded = (f"EX11:most={SCALED},controls={CONTROLS}",)
        found += [self._adversarial(), self._measure("graded", graded, ("E2",))]
        found.append(self._measure("composition", ("B10",), ("C2",)))
        if task_name(self.claim.task) == EX2_TASK:
            found.append(self._measure("invariance", ("EX2",), ("M2",)))
        if self.settings.other_method and self.by_method:
            found.append(self._measure("convergence", ("F03",), ("C5",)))
        if self.claim.other_model and self.by_method:
            found.append(self._other_family())
        return found

    # What circuits are measured by

    @cached_property
    def _base(self) -> CircuitsJob:
        """Measures the circuit on the claim's task; the other steps change it."""
        settings, claim = self.settings, self.claim
        return CircuitsJob(
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
        job = replace(self._base, **{"methods": (), "scores": (self.scores,), **changes})
        forwards = float(n_circuits(name, self.claim) * self.settings.limit)
        return AssayStep(name, self.folder / name, job, tuple(criteria.split()), forwards)

    def _own(self) -> AssayStep:
        minimality = f"{self._at('minimality')},most={self.settings.left_out}"
        job = replace(self._base, metrics=(*self._base.metrics, minimality))
        n = n_circuits(OWN, self.claim, self.settings.left_out)
        forwards = float(n * self.settings.limit)
        if self.by_method:
            method = METHODS.make(self.claim.ranking)
            forwards += method.forwards(self.graph, self.settings.train_limit)
        criteria = ("I1", "I2", "I4", "I5", "C4", "M1", "M3", "E1", "E4", "E5")
        return AssayStep(OWN, self.folder / OWN, job, criteria, forwards)

    def _again(self) -> list[AssayStep]:
        other, seed = other_ablation(self.claim), self.settings.seed
        found = [
            self._circuits(other, "I1 I5", ablation=other),
            self._circuits("validation", "I4 M1", test_split="validation"),
        ]
        if load_task(self.claim.task).seeded:
            found.append(self._circuits("another-seed", "I4 M1", seed=seed + 1))
        if self.claim.other_task:
            found.append(self._circuits("other-task", "I3 C3 E3", tasks=(self.claim.other_task,)))
        copy = (self.claim.untrained_copy,)
        # A ground truth has its task by name; its copy is a model like any other.
        found.append(self._circuits("untrained", "M3", models=copy))
        return found

    def _truth(self) -> AssayStep:
        job = replace(self._base, models=(ALL_TRUTHS,), tasks=(), metrics=(), dtype="float32")
        forwards = SMALL * len(job.models) * n_circuits("", self.claim) * self.settings.limit
        return AssayStep("truth", self.folder / "truth", job, ("M4", "M5"), forwards)

    def _other_family(self) -> AssayStep:
        job = replace(self._base, models=(self.claim.other_model,))
        method = METHODS.make(self.claim.ranking)
        forwards = float(n_circuits("", self.claim) * self.settings.limit)
        forwards += method.forwards(self.graph, self.settings.train_limit)
        return AssayStep("other-family", self.folder / "other-family", job, ("E6",), forwards)

    def _adversarial(self) -> AssayStep:
        settings, claim = self.settings, self.claim
        job = AdversarialJob(
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
        return AssayStep("adversarial", self.folder / "adversarial", job, ("E5",), 3.0 * pairs)

    def _measure(self, name: str, metrics: tuple[str, ...], criteria: tuple[str, ...]) -> AssayStep:
        settings, claim = self.settings, self.claim
        methods = (claim.ranking, settings.other_method) if name == "convergence" else ()
        n_prompts = min(settings.limit, SCALED_ON) if name == "graded" else settings.limit
        job = MeasureJob(
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
        return AssayStep(name, self.folder / name, job, criteria, forwards)
