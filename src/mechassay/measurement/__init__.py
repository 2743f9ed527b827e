"""Is the instrument itself trustworthy? Metrics of measurement, as published and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.measurement.catalogue import Band as Band
    from mechassay.measurement.catalogue import BandScale as BandScale
    from mechassay.measurement.catalogue import Condition as Condition
    from mechassay.measurement.catalogue import Flag as Flag
    from mechassay.measurement.catalogue import MetricCriterion as MetricCriterion
    from mechassay.measurement.catalogue import PageMetric as PageMetric
    from mechassay.measurement.catalogue import Quantity as Quantity
    from mechassay.measurement.catalogue import Range as Range
    from mechassay.measurement.catalogue import Reading as Reading
    from mechassay.measurement.catalogue import Variant as Variant
    from mechassay.measurement.catalogue import page_metric as page_metric
    from mechassay.measurement.gauges import GAUGES as GAUGES
    from mechassay.measurement.measurement import Measurement as Measurement
    from mechassay.measurement.measurement import NullTable as NullTable
    from mechassay.measurement.measurement import Scenario as Scenario
    from mechassay.measurement.metric import NEEDS as NEEDS
    from mechassay.measurement.metric import Gauge as Gauge
    from mechassay.measurement.metric import GaugeInputs as GaugeInputs
    from mechassay.measurement.metric import measure as measure
    from mechassay.measurement.metric import null_table as null_table


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
