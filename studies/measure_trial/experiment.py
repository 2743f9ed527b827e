"""Do metrics tell right from wrong? A run over subjects of known worth: a cell is one metric.

Metrics that look at a circuit are tried on the circuits of the ground truths, those that look at a
dictionary on planted ones (`subjects`), each with every seed. Which metrics do is read
from the registry: from what a gauge needs, and from the inputs that it takes where they are there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from mechassay.errors import BadUsage, one_of
from mechassay.measurement.catalogue import VariantName
from mechassay.measurement.gauges import ALL_GAUGES, all_gauges, gauge_name
from mechassay.measurement.metric import load_gauge, missing_inputs
from mechassay.results.records import Record, Spec, provenance
from mechassay.runs import options
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.options import option
from mechassay.runs.worker import Worker
from mechassay.tasks import TRUTHS
from mechassay.truth.ground_truth import load_truth
from studies.measure_trial.discrimination import (
    TrialScore,
    deciding_quantity,
    discriminate,
    discrimination_record,
    scored,
)
from studies.measure_trial.subjects import (
    CIRCUITS,
    DICTIONARIES,
    GIVEN,
    WORLDS,
    KnownSubject,
    circuit_subjects,
    dictionary_subjects,
    sort_of_subject,
)

NO_SUBJECT, MISSING = "no subject", "missing input"
NAMES: Mapping[str, str] = {CIRCUITS: "ground truths", DICTIONARIES: "planted dictionaries"}


@dataclass(frozen=True)
class MeasureTrialExperiment(Experiment):
    """Try metrics of measurement on circuits and dictionaries of known worth: how well does each
    tell right from wrong?

    Attributes:
        metrics: names of metrics or of their scripts, with settings; "all" stands for all.
        truths: ground truths; none stands for all.
        seeds: of prompts, and of everything that is drawn.
    """

    metrics: Annotated[
        tuple[str, ...],
        option("Metric, with settings if wanted; `all` stands for all. Repeat for several.", "-M"),
    ] = (ALL_GAUGES,)
    truths: Annotated[
        tuple[str, ...],
        option("Ground truth for metrics of circuits; all if none. Repeat for several.", "--truth"),
    ] = ()
    seeds: Annotated[
        tuple[int, ...],
        option("Seed of prompts, and of subjects that are drawn. Repeat for several.", "--draw"),
    ] = (0, 1)
    n_prompts: Annotated[int, option("Pairs to measure circuits on.", least=2)] = 40
    train_limit: Annotated[int, option("Pairs to find means and probes on.", least=2)] = 40
    seed: Annotated[int, options.seed_of("the bootstrap")] = 0

    kind: ClassVar[str] = "measure-trial"
    grows: ClassVar[tuple[str, ...]] = ("metrics",)

    def check(self, worker: Worker) -> None:
        for text in self.gauges().values():
            load_gauge(text)
        for name in self.truths:
            one_of("ground truth", name, TRUTHS.targets())
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise BadUsage(f"Draws are seeds from 0 on, one or more, each once; got {self.seeds}.")

    def gauges(self) -> dict[str, str]:
        """The metrics, "all" written out: what each is called, and how it is made."""
        typed = [
            name
            for text in self.metrics
            for name in (all_gauges() if text == ALL_GAUGES else [text])
        ]
        return {gauge_name(text): text for text in map(_tried, typed)}

    def definitions(self) -> dict[str, int]:
        """Return the versions of metrics."""
        gauges = [load_gauge(text) for text in self.gauges().values()]
        return {f"metric {each.id}": each.version for each in gauges}

    def cells(self) -> list[Cell]:
        found = [
            Cell(cell_name(name), {"metric": name}, sort, {"metric": text})
            for name, text in self.gauges().items()
            for sort in [sort_of_subject(load_gauge(text))]
        ]
        # Those of one sort stand together; those without a subject at the end.
        return sorted(found, key=lambda cell: (not cell.inputs, cell.inputs))

    def skip(self, cell: Cell, worker: Worker) -> tuple[str, str] | None:
        """Return why no subject of known worth suits the metric; None if one does."""
        if not cell.inputs:
            return NO_SUBJECT, "looks at neither a single circuit nor a dictionary"
        needs = load_gauge(cell["metric"]).needs
        missing = missing_inputs(needs, GIVEN[cell.inputs])
        if not missing:
            return None
        return MISSING, f"needs {', and '.join(missing)}, which {NAMES[cell.inputs]} do not have"

    def run(self, cell: Cell, worker: Worker) -> Record:
        begin = time.perf_counter()
        subjects = worker.shared("subjects", lambda: self._subjects(cell.inputs, worker))
        gauge: Any = load_gauge(cell["metric"])
        rows: list[TrialScore] = []
        quantities: dict[VariantName, str] = {}
        with worker.progress.track(gauge.id, len(subjects)) as advance:
            for each in subjects:
                found = gauge.measure(each.inputs)
                rows += scored(gauge, found, each.world, each.seed, each.kind, right=each.right)
                for part in (found.page, found.repaired):
                    if (decided := deciding_quantity(gauge, part)) is not None:
                        quantities[part.name] = decided[0]
                advance(1)
        if not rows:
            raise BadUsage(f"{gauge.id} only reports: it has no quantity that says right or wrong.")
        specs = {
            "model": Spec(name=NAMES[cell.inputs]),
            "task": Spec(name="right from wrong", args=self._about(cell.inputs)),
            "method": Spec(name=gauge.id, version=gauge.version, args=dataclasses.asdict(gauge)),
            "metric": Spec(name="auroc"),
        }
        return discrimination_record(
            discriminate(rows, quantities, seed=self.seed),
            rows,
            self.kind,
            specs,
            provenance(device=worker.device, dtype="float32", seed=self.seed),
            cell=cell.labels,
            spent={"seconds": round(time.perf_counter() - begin, 3)},
        )

    def _about(self, sort: str) -> dict[str, Any]:
        about: dict[str, Any] = {"worlds": self.worlds(sort), "seeds": self.seeds}
        return about | ({"n_prompts": self.n_prompts} if sort == CIRCUITS else {})

    def worlds(self, sort: str) -> Sequence[str]:
        """Ground truths, or planted values, by name."""
        return tuple(self.truths or TRUTHS.names()) if sort == CIRCUITS else tuple(WORLDS)

    def _subjects(self, sort: str, worker: Worker) -> list[KnownSubject]:
        if sort == DICTIONARIES:
            return [
                subject
                for name, settings in WORLDS.items()
                for seed in self.seeds
                for subject in dictionary_subjects(name, settings, seed)
            ]
        return [
            subject
            for name in self.worlds(sort)
            for truth in [load_truth(name, device=worker.device)]
            for seed in self.seeds
            for subject in circuit_subjects(
                truth, seed, n_prompts=self.n_prompts, train_limit=self.train_limit
            )
        ]


def _tried(text: str) -> str:
    """A metric as it looks at a subject, where it was named without settings."""
    name, colon, _ = text.partition(":")
    settings = getattr(load_gauge(text), "tried_as", "")
    return f"{name}:{settings}" if settings and not colon else text
