"""Names of gauges, which run metrics of measurement, and the table of all metrics of the page.

A gauge is found by the metric's name or its script's. Other packages register theirs under the
entry point group `mechassay.measurements`.

`list_gauges` is the table, with or without a gauge. Nothing is loaded here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mechassay.errors import BadUsage, UnknownName
from mechassay.measurement.catalogue import PageMetric, catalogue, page_metric, read_metric
from mechassay.utils.display import Tabular, html_facts, html_table
from mechassay.utils.registry import Registry

_HERE = "mechassay.measurement.metrics"
ALL_GAUGES = "all"
GAUGES = Registry(
    "metric of measurement",
    {
        "EX1": f"{_HERE}.dprime:DPrime",
        "EX2": f"{_HERE}.differential_items:DifferentialItems",
        "EX11": f"{_HERE}.weber:WeberFechner",
        "EX24": f"{_HERE}.discriminability:Audit",
        "EX25": f"{_HERE}.reproducibility:Reproducibility",
        "M13": "mechassay.saes.metrics.superposition:SuperpositionRegime",
        "M14": f"{_HERE}.safety_subspace:SafetySubspace",
        "F01": f"{_HERE}.prompt_sampling:PromptBootstrap",
        "F02": f"{_HERE}.prompt_sampling:SeedVariance",
        "F03": f"{_HERE}.method_agreement:Convergence",
        "F04": f"{_HERE}.method_agreement:Discrimination",
        "F05": f"{_HERE}.consistency:InternalConsistency",
        "F06": f"{_HERE}.method_agreement:RaterAgreement",
        "F07": f"{_HERE}.consistency:GroupInvariance",
        "F08": f"{_HERE}.incremental_validity:IncrementalValidity",
        "EX34": "mechassay.saes.metrics.nla_convergence:NlaConvergence",
        "M08": "mechassay.saes.metrics.weight_lens:WeightLens",
        "M10": "mechassay.saes.metrics.polysemanticity:Polysemanticity",
        "M12": "mechassay.saes.metrics.adaptive_sparsity:AdaptiveSparsity",
        "M07": "mechassay.saes.metrics.duality:Duality",
        "M09": "mechassay.saes.metrics.core_stability:CoreStability",
        "M11": "mechassay.saes.metrics.width_consistency:WidthConsistency",
        "MIB": f"{_HERE}.curve_area:FaithfulnessArea",
        "B10": f"{_HERE}.k_composition:KComposition",
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
        scripts = [metric.script for metric in catalogue().values() if metric.script]
        raise UnknownName("metric of measurement", name, [*known, *scripts]) from None
    if about.id not in known:
        raise BadUsage(
            f"{about.id} ({about.title}) is on the page and has no gauge in this version; those"
            f" that do: {', '.join(known)}."
        )
    return about.id


def metric_of(id: str) -> PageMetric | None:
    """Return the description of a metric, or None if no installed package has the metric."""
    if id not in catalogue() and id in GAUGES:
        return getattr(GAUGES.load(id), "about", None)
    return catalogue().get(id)


def _files_of_others() -> list[PageMetric]:
    """Return metrics of other packages whose file ID.yaml is next to the gauge's module."""
    metrics: list[PageMetric] = []
    for id, target in GAUGES.targets().items():
        if id not in GAUGES.built_in:
            spec = find_spec(target.partition(":")[0])
            if spec is not None and spec.origin is not None:
                file = Path(spec.origin).with_name(f"{id}.yaml")
                metrics += [read_metric(file)] if file.is_file() else []
    return metrics


def gauge_name(text: str) -> str:
    """How a gauge is called in tables: the metric's name, and the settings that were typed."""
    name, colon, rest = text.partition(":")
    return f"{gauge_id(name)}{' ' if colon else ''}{rest}"


def all_gauges() -> list[str]:
    """The identifiers of all gauges: those of the page in its order, then others."""
    known = GAUGES.targets()
    page = [id for id in catalogue() if id in known]
    return [*page, *(id for id in known if id not in page)]


class GaugeList(Tabular, tuple[PageMetric, ...]):
    """Metrics; a row of the table for each."""

    def columns(self) -> dict[str, list[Any]]:
        """The metrics by column; `here` says whether there is a gauge for it."""
        known = GAUGES.targets()
        return {
            "metric": [metric.id for metric in self],
            "title": [metric.title for metric in self],
            "script": [metric.script for metric in self],
            "here": ["yes" if metric.id in known else "not yet" for metric in self],
            "evidence for": [f"{x.criterion} {x.criterion.name}" for x in self],
            "page's criteria": [", ".join(metric.labels) for metric in self],
            "needs": [", ".join(x.replace("|", " or ") for x in metric.needs) for metric in self],
            "page passes if": [
                " and ".join(map(str, x.conditions)) or "it only reports" for x in self
            ],
        }

    def __repr__(self) -> str:
        known = GAUGES.targets()
        return f"GaugeList(n={len(self)}, here={sum(metric.id in known for metric in self)})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        table = html_table(tuple(columns), list(zip(*columns.values(), strict=True)))
        return html_facts(f"{len(self):,} metrics of measurement", {}, table)


def list_gauges() -> GaugeList:
    """Return the metrics of this package in catalogue order, then metrics of other packages.

    Metrics of other packages are listed if their data file is next to the module of the gauge.
    """
    return GaugeList([*catalogue().values(), *_files_of_others()])
