"""Reading tables: values inside a band, on an edge, in a gap."""

from __future__ import annotations

import pytest

from mechassay.errors import BadUsage
from mechassay.measurement.catalogue import BandScale, Range, catalogue

CORE = catalogue()["M09"].scales
DPRIME = catalogue()["EX1"].scales[1]


def test_a_value_is_inside_on_an_edge_or_in_a_gap() -> None:
    fraction, overlap = CORE
    assert fraction.read({"core_fraction": 0.2}).at == "inside"
    assert fraction.read({"core_fraction": 0.03}).at == "gap"
    assert overlap.read({"mean_overlap": 0.6}).at == "gap"
    edge = DPRIME.read({"dprime": 2.0})
    assert edge.at == "edge" and edge.says.count(";") == 1


def test_what_is_undefined_is_said() -> None:
    reading = DPRIME.read({"dprime": None})
    assert reading.at == "undefined" and "dprime" in reading.says


def test_a_remark_says_nothing_elsewhere() -> None:
    remark = catalogue()["EX11"].scales[1]
    assert remark.read({"all_detectable": 1.0}) is None
    assert remark.read({"all_detectable": None}) is None
    assert remark.read({"all_detectable": 0.0}).at == "inside"


def test_several_quantities_have_a_range_each() -> None:
    scale = catalogue()["EX24"].scales[0]
    assert "blind" in scale.read({"cv": 0.01, "discriminability_d": 0.1}).says
    assert "noisy" in scale.read({"cv": 0.3, "discriminability_d": 9.0}).says
    # Low and high are words of the page, for which the thresholds stand.
    assert "threshold" in scale.read({"cv": 0.01, "discriminability_d": 0.1}).says


@pytest.mark.parametrize("text", ["0.5", "> x", "high", "1 - 2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="range"):
        Range.parse(text)


def test_a_band_has_as_many_ranges_as_quantities() -> None:
    with pytest.raises(BadUsage, match="2 ranges"):
        BandScale.parse(["a", "b"], {"> 1": "x"})
