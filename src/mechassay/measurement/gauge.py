"""Gauges: what runs models for a metric of measurement, by the metric's name or its script's.

Other packages register theirs under the entry point group `mechassay.measurements`. A gauge is a
frozen dataclass, so that settings may follow its name: "EX25:n_runs=5".
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from mechassay.errors import BadUsage, UnknownName
from mechassay.measurement.catalogue import catalogue, page_metric
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.registry import Registry

_HERE = "mechassay.measurement.gauges"
ALL_GAUGES = "all"


class Gauge(Protocol):
    """A metric of measurement as something that can be run.

    A gauge may also have what the study `studies/measure_trial` reads: `uses`, inputs that it takes
    where they are there; `score`, by variant the quantity that says right from wrong, where that is
    not the one of the first condition; `tried_as`, settings with which it looks at a circuit.

    Attributes:
        id: of the metric.
        version: rises when a definition changes.
        needs: inputs, see `inputs.NEEDS`; "a|b" is either.
    """

    id: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[tuple[str, ...]]

    def measure(self, inputs: Inputs) -> Measurement:
        """Both variants.

        Raises:
            BadUsage: an input is missing, or not of the kind that the metric needs.
        """
        ...

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """How often the thresholds err on inputs of size `n`; the gauge's default if None."""
        ...


GAUGES = Registry(
    "metric of measurement",
    {
        "EX1": f"{_HERE}.ex1:DPrime",
        "EX2": f"{_HERE}.ex2:DifferentialItems",
        "EX11": f"{_HERE}.ex11:WeberFechner",
        "EX24": f"{_HERE}.ex24:Audit",
        "EX25": f"{_HERE}.ex25:Reproducibility",
        "M13": f"{_HERE}.m13:SuperpositionRegime",
        "M14": f"{_HERE}.m14:SafetySubspace",
        "F01": f"{_HERE}.prompts:PromptBootstrap",
        "F02": f"{_HERE}.prompts:SeedVariance",
        "F03": f"{_HERE}.methods:Convergence",
        "F04": f"{_HERE}.methods:Discrimination",
        "F05": f"{_HERE}.circuits:InternalConsistency",
        "F06": f"{_HERE}.methods:RaterAgreement",
        "F07": f"{_HERE}.circuits:GroupInvariance",
        "F08": f"{_HERE}.f08:IncrementalValidity",
        "EX34": f"{_HERE}.ex34:NlaConvergence",
        "M08": f"{_HERE}.m08:WeightLens",
        "M10": f"{_HERE}.m10:Polysemanticity",
        "M12": f"{_HERE}.m12:AdaptiveSparsity",
        "M07": f"{_HERE}.m07:Duality",
        "M09": f"{_HERE}.m09:CoreStability",
        "M11": f"{_HERE}.m11:WidthConsistency",
        "MIB": f"{_HERE}.mib:FaithfulnessArea",
        "B10": f"{_HERE}.b10:KComposition",
    },
    plural="measurements",
)
"""By the metric's identifier."""


def gauge_id(name: str) -> str:
    """The identifier of a metric that has a gauge: itself in any case, or its script's name.

    Raises:
        UnknownName: there is no such metric.
        BadUsage: the page has it, and this version no gauge for it.
    """
    known = GAUGES.targets()
    if name in known:
        return name
    try:
        about = page_metric(name)
    except UnknownName:
        raise UnknownName("metric of measurement", name, [*known, *_scripts()]) from None
    if about.id not in known:
        raise BadUsage(
            f"{about.id} ({about.title}) is on the page and has no gauge in this version; those"
            f" that do: {', '.join(known)}."
        )
    return about.id


def load_gauge(text: str, **settings: Any) -> Gauge:
    """A gauge by its metric's name or its script's, with settings if wanted: "EX25:n_runs=5".

    Raises:
        UnknownName: no such metric, or setting. BadUsage: it has no gauge, or a setting is of
            another type.
    """
    name, colon, rest = text.partition(":")
    return GAUGES.make(f"{gauge_id(name)}{colon}{rest}", **settings)


def gauge_name(text: str) -> str:
    """How a gauge is called in tables: the metric's name, and the settings that were typed."""
    name, colon, rest = text.partition(":")
    return f"{gauge_id(name)}{' ' if colon else ''}{rest}"


def all_gauges() -> list[str]:
    """The identifiers of all gauges: those of the page in its order, then others."""
    known = GAUGES.targets()
    page = [id for id in catalogue() if id in known]
    return [*page, *(id for id in known if id not in page)]


def measure(metric: str, model: Any = None, **inputs: Any) -> Measurement:
    """Run a metric of measurement: `measure("EX1", model, pairs=pairs, circuit=circuit)`.

    Args:
        metric: its name or its script's, with settings if wanted.
        inputs: see `Inputs`.

    Raises:
        UnknownName: no such metric.
        BadUsage: an input is missing; the message says which and how it is given.
    """
    gauge, given = load_gauge(metric), Inputs(model, **inputs)
    if missing := given.missing(gauge.needs):
        raise BadUsage(f"{gauge.id} needs {', and '.join(missing)}.")
    return gauge.measure(given)


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


def _scripts() -> list[str]:
    return [each.script for each in catalogue().values() if each.script]
