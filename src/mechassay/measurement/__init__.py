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
    from mechassay.measurement.gauges import GAUGES, GaugeList, list_gauges
    from mechassay.measurement.measurement import (
        Measurement,
        NullTable,
        PassRate,
        Scenario,
        simulate,
    )
    from mechassay.measurement.metric import NEEDS, Gauge, Inputs, load_gauge, measure, null_table

__all__ = [
    "GAUGES",
    "NEEDS",
    "Band",
    "BandScale",
    "Condition",
    "Flag",
    "Gauge",
    "GaugeList",
    "Inputs",
    "Measurement",
    "MetricCriterion",
    "NullTable",
    "PageMetric",
    "PassRate",
    "Quantity",
    "Range",
    "Reading",
    "Scenario",
    "Variant",
    "list_gauges",
    "load_gauge",
    "measure",
    "null_table",
    "page_metric",
    "simulate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "catalogue": "Band BandScale Condition Flag MetricCriterion PageMetric Quantity Range"
        " Reading Variant page_metric",
        "measurement": "Measurement NullTable PassRate Scenario simulate",
        "gauges": "GAUGES GaugeList list_gauges",
        "metric": "Gauge Inputs NEEDS load_gauge measure null_table",
    },
)
