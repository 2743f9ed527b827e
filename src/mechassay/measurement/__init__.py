"""Is the instrument itself trustworthy? Metrics of measurement, as published and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.measurement.catalogue import (
        Band,
        BandScale,
        Condition,
        Flag,
        MetricCriterion,
        PageMetric,
        Quantity,
        Range,
        Reading,
        Variant,
        page_metric,
    )
    from mechassay.measurement.gauges import GAUGES
    from mechassay.measurement.measurement import (
        Measurement,
        NullTable,
        Scenario,
    )
    from mechassay.measurement.metric import NEEDS, Gauge, Inputs, measure, null_table

__all__ = [
    "GAUGES",
    "NEEDS",
    "Band",
    "BandScale",
    "Condition",
    "Flag",
    "Gauge",
    "Inputs",
    "Measurement",
    "MetricCriterion",
    "NullTable",
    "PageMetric",
    "Quantity",
    "Range",
    "Reading",
    "Scenario",
    "Variant",
    "measure",
    "null_table",
    "page_metric",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "catalogue": "Band BandScale Condition Flag MetricCriterion PageMetric Quantity Range"
        " Reading Variant page_metric",
        "measurement": "Measurement NullTable Scenario",
        "gauges": "GAUGES",
        "metric": "Gauge Inputs NEEDS measure null_table",
    },
)
