"""Metrics of measurement that can be run: gauges, and what they are given.

A gauge runs models for a metric (`measurement.gauges` has their names). It is a frozen dataclass,
so that settings may follow its name: "EX25:n_runs=5".

A metric names what it needs (`NEEDS`): a model, prompts, circuits, and what some need beside.
`GaugeInputs` holds what is given. Anything may be a function without arguments that makes it: it is
called once, when a metric first asks. What is missing is an error that says how to give it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, one_of
from mechassay.features.featurizer import Featurizer
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.measurement.catalogue import PageMetric
from mechassay.measurement.gauges import GAUGES, gauge_id
from mechassay.measurement.measurement import N_SIMULATIONS, Measurement, NullTable
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, load_objective
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.results.records import Record
from mechassay.utils.arguments import checked
from mechassay.utils.display import SILENT, Progress
from mechassay.utils.registry import Registry

NEEDS: Mapping[str, str] = {
    "model": "a model (--model)",
    "pairs": "pairs of prompts (--task)",
    "train": "pairs to find things on (--task)",
    "circuit": "a circuit (--circuit)",
    "ranking": "edges ranked by a method (--method)",
    "rankings": "edges ranked by two methods or more (--method, twice)",
    "other task": "a second behaviour (--other-task)",
    "labels": "a field of the prompts that groups them (--by)",
    "sae": "a sparse autoencoder and its site (--sae, --site)",
    "other sae": "a second sparse autoencoder of the site (--other-sae)",
    "site": "a site (--site)",
    "names": "a model with a tokenizer that knows English names (--model)",
    "texts": "texts, and a site to take activations at (--texts, --site)",
    "trainer": "texts to train dictionaries on, and a site (--texts, --site)",
    "records": "the folder of a run of circuits on several tasks (--records)",
}
"""GaugeInputs, and how they are given."""
SOURCES = Registry(
    "source of inputs", {"dictionaries": "mechassay.saes.inputs:DictionarySource"}, plural="inputs"
)
"""What makes stores and trainers for a run: named, not imported."""
Given = Any
"""A value, or a function without arguments that makes it."""


class Store(Protocol):
    """Activations of a site over texts, as far as measurement itself looks at them.

    Attributes:
        corpus: what the texts are called.
        settings: a dataclass of plain values.
        key: a hash of all that the activations depend on.
    """

    @property
    def site(self) -> Site: ...
    @property
    def corpus(self) -> str: ...
    @property
    def settings(self) -> Any: ...
    @property
    def key(self) -> str: ...

    def n_rows(self, split: Literal["train", "test"]) -> int:
        """How many values a split has."""
        ...


class Trainer(Protocol):
    """Trains dictionaries on the train values of one store."""

    def train(self, *, seed: int = 0, **changes: Any) -> Any:
        """A dictionary by its `sae`; `changes` are what it begins with, and other settings."""
        ...


class GaugeInputs:
    """What a metric of measurement may ask for.

    Args:
        pairs: to measure on.
        train: to find means and probes on; never measured on.
        circuit: the circuit in question.
        rankings: scores of edges by the name of the method that found them.
        other_rankings: the same of another behaviour.
        labels: a label for each pair, in their order: groups that are compared.
        sae: a featurizer of the values at `site`.
        other_saes: further SAEs of the site, to compare the first with.
        texts: the site's activations over a corpus.
        trainer: trains dictionaries on the train values of `texts`.
        records: of several tasks, methods and baselines.
        more: other inputs by name; see `get`.
        seed: of everything that is drawn.

    Raises:
        BadUsage: a site that cannot be read.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model] | None = None,
        *,
        pairs: PairsLike | Callable[[], Batch] | None = None,
        train: PairsLike | Callable[[], Batch] | None = None,
        circuit: Circuit | Callable[[], Circuit] | None = None,
        rankings: Given = None,
        other_rankings: Given = None,
        labels: Given = None,
        sae: Given = None,
        other_saes: Given = None,
        texts: Store | Callable[[], Store] | None = None,
        trainer: Trainer | Callable[[], Trainer] | None = None,
        site: SiteLike | None = None,
        records: Given = None,
        more: Mapping[str, Given] | None = None,
        objective: ObjectiveLike = "logit_diff",
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> None:
        given: dict[str, Any] = {
            "model": model,
            "pairs": pairs,
            "train": train,
            "circuit": circuit,
            "ranking": rankings,
            "rankings": rankings,
            "other task": other_rankings,
            "labels": labels,
            "sae": sae,
            "other sae": other_saes,
            "texts": texts,
            "trainer": trainer,
            "records": records,
            "site": None if site is None else load_site(site),
            "names": model,
            **(more or {}),
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        self._made: dict[str, Any] = {}
        self.objective: Objective = load_objective(objective)
        self.seed, self.progress = seed, progress

    def has(self, need: str) -> bool:
        """Whether there is an input; "a|b" is either."""
        return any(name in self._given for name in need.split("|"))

    def missing(self, needs: Sequence[str]) -> list[str]:
        """Those of some inputs that are not there, in words."""
        return missing_inputs(needs, tuple(self._given))

    def get(self, name: str) -> Any:
        """An input by its name.

        Raises:
            BadUsage: it was not given.
        """
        if name not in self._given:
            raise BadUsage(f"This metric needs {NEEDS.get(name, name)}, which is missing.")
        if name not in self._made:
            value: Any = self._given[name]
            self._made[name] = value() if inspect.isroutine(value) else value
        return self._made[name]

    @property
    def model(self) -> Model:
        return self.get("model")

    @property
    def site(self) -> Site:
        return self.get("site")

    @property
    def circuit(self) -> Circuit:
        return self.get("circuit")

    @property
    def sae(self) -> Featurizer:
        """The featurizer of the site's values.

        Raises:
            BadUsage: an SAE of another site or width.
        """
        sae = self.get("sae")
        return self._checked(sae) if isinstance(sae, SAE) else sae

    @property
    def dictionary(self) -> SAE:
        """The featurizer, whose weights the metric reads.

        Raises:
            BadUsage: it is no SAE, or one of another site.
        """
        return self._checked(self.get("sae"))

    @property
    def other_saes(self) -> tuple[SAE, ...]:
        """Further SAEs of the site; one or more.

        Raises:
            BadUsage: none, or not of the site.
        """
        saes = tuple(self._checked(sae) for sae in self.get("other sae"))
        if not saes:
            raise BadUsage(f"This metric needs {NEEDS['other sae']}, which is missing.")
        return saes

    @property
    def texts(self) -> Store:
        return self.get("texts")

    @property
    def batch(self) -> Batch:
        """The pairs to measure on."""
        return self._batch("pairs")

    @property
    def train(self) -> Batch:
        """The pairs to find things on; those to measure on if there are no others."""
        return self._batch("train" if self.has("train") else "pairs")

    @property
    def ranking(self) -> tuple[str, EdgeScores]:
        """The first method, and its scores of edges."""
        rankings: dict[str, EdgeScores] = dict(self.get("ranking"))
        return next(iter(rankings.items()))

    @property
    def rankings(self) -> dict[str, EdgeScores]:
        """Scores of edges by method; two or more.

        Raises:
            BadUsage: fewer than two.
        """
        return _several(self.get("rankings"))

    @property
    def other_rankings(self) -> dict[str, EdgeScores]:
        """Scores of another behaviour, by the same methods."""
        return _several(self.get("other task"))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.get("labels"))

    @property
    def records(self) -> list[Record]:
        return list(self.get("records"))

    def _checked(self, sae: Any) -> SAE:
        """An SAE that reads the values of the site."""
        if not isinstance(sae, SAE):
            raise BadUsage(
                f"This metric reads the weights of a sparse autoencoder; got {type(sae).__name__}."
            )
        if not self.has("site"):
            return sae
        sae.check_site(self.site, self.model if self.has("model") else None)
        if self.has("model"):
            width = self.site.check(self.model).width(self.model.decoder)
            if sae.d_in != width:
                raise BadUsage(
                    f"The dictionary reads values of {sae.d_in} numbers; those of {self.site} in"
                    f" {self.model.name} have {width}."
                )
        return sae

    def _batch(self, name: str) -> Batch:
        pairs = self.get(name)
        batch = self.model.batch(pairs)
        self._made[name] = batch
        return batch


def _several(rankings: Mapping[str, EdgeScores]) -> dict[str, EdgeScores]:
    if len(rankings) < 2:
        raise BadUsage(
            f"Agreement needs rankings by two methods or more; got {', '.join(rankings) or 'none'}."
        )
    return dict(rankings)


def missing_inputs(needs: Sequence[str], given: Sequence[str]) -> list[str]:
    """The needs that none of the given inputs meets, in words.

    Raises:
        UnknownName: a need that is no input.
    """
    out: list[str] = []
    for need in needs:
        names = [one_of("input", name, NEEDS) for name in need.split("|")]
        if not set(names) & set(given):
            out.append(" or ".join(NEEDS[name] for name in names))
    return out


class Gauge(ABC):
    """Base of metrics of measurement that can be run. A gauge is a frozen dataclass of settings.

    A gauge may also have what the study `studies/measure_trial` reads: `uses`, inputs that it takes
    where they are there; `score`, by variant the quantity that says right from wrong, where that is
    not the one of the first condition; `tried_as`, settings with which it looks at a circuit.

    Attributes:
        about: description of the metric: `page_metric(ID)`, or `read_metric(FILE)` in a package
            of your own. It gives the gauge its `id` and its `needs` ("a|b" is either, see `NEEDS`).
        version: rises when a definition changes.
        default_n: size of the simulated inputs of `null`, such as prompts.
    """

    about: ClassVar[PageMetric]
    version: ClassVar[int] = 1
    default_n: ClassVar[int] = 40
    id: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "about" in vars(cls):
            missing_inputs(cls.about.needs, ())  # Refuses needs that are no inputs.
            cls.id, cls.needs = cls.about.id, cls.about.needs

    @abstractmethod
    def measure(self, inputs: GaugeInputs) -> Measurement:
        """Return both variants of the metric.

        Raises:
            BadUsage: an input is missing, or not of the kind that the metric needs.
        """

    @abstractmethod
    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return how often thresholds err on simulated inputs of size `n`."""

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """Return how often thresholds err on inputs of size `n`; of `default_n` if None."""
        return self.rates(self.default_n if n is None else n, n_simulations, seed)


def load_gauge(text: str, **settings: Any) -> Gauge:
    """A gauge by its metric's name or its script's, with settings if wanted: "EX25:n_runs=5".

    Raises:
        UnknownName: no such metric, or setting. BadUsage: it has no gauge, or a setting is of
            another type.
    """
    name, colon, rest = text.partition(":")
    return GAUGES.make(f"{gauge_id(name)}{colon}{rest}", **settings)


@checked
def measure(metric: str, model: Any = None, **inputs: Any) -> Measurement:
    """Run a metric of measurement: `measure("EX1", model, pairs=pairs, circuit=circuit)`.

    Args:
        metric: its name or its script's, with settings if wanted.
        inputs: see `GaugeInputs`.

    Raises:
        UnknownName: no such metric.
        BadUsage: an input is missing; the message says which and how it is given.
    """
    gauge, given = load_gauge(metric), GaugeInputs(model, **inputs)
    if missing := given.missing(gauge.needs):
        raise BadUsage(f"{gauge.id} needs {', and '.join(missing)}.")
    return gauge.measure(given)


@checked
def null_table(
    metric: str, n: int | None = None, *, n_simulations: int = N_SIMULATIONS, seed: int = 0
) -> NullTable:
    """How often the thresholds of a metric err, by simulation; no model is needed.

    Args:
        n: the size of the inputs (prompts, runs, circuits); the metric's default if None.

    Raises:
        UnknownName: no such metric. BadUsage: it has no gauge; fewer than one simulation.
    """
    if n_simulations < 1 or (n is not None and n < 2):
        raise BadUsage(
            f"A rate needs one simulation or more, of 2 inputs or more; got {n_simulations} of {n}."
        )
    return load_gauge(metric).null(n, n_simulations, seed)
