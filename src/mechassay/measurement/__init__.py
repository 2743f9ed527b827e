"""Is the instrument itself trustworthy? Metrics of measurement, as published and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.measurement.bands import Band, BandScale, Range, Reading
    from mechassay.measurement.catalogue import PageMetric, page_metric
    from mechassay.measurement.gauge import GAUGES, Gauge, load_gauge, measure, null_table
    from mechassay.measurement.inputs import NEEDS, Inputs
    from mechassay.measurement.listing import GaugeList, list_gauges
    from mechassay.measurement.measurement import Measurement
    from mechassay.measurement.nulls import NullTable, PassRate, Scenario, simulate
    from mechassay.measurement.variant import Condition, Flag, MetricCriterion, Quantity, Variant

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
        "bands": "Band BandScale Range Reading",
        "catalogue": "PageMetric page_metric",
        "gauge": "GAUGES Gauge load_gauge measure null_table",
        "inputs": "NEEDS Inputs",
        "listing": "GaugeList list_gauges",
        "measurement": "Measurement",
        "nulls": "NullTable PassRate Scenario simulate",
        "variant": "Condition MetricCriterion Flag Quantity Variant",
    },
)
