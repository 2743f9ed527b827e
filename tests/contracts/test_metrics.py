"""Every registered metric keeps the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.evaluation.metrics import Measured, Scored
from mechassay.results.records import Measure
from mechassay.testing import check_metric


@pytest.mark.parametrize("name", METRICS.names())
def test_a_metric_keeps_its_promises(name: str) -> None:
    check_metric(METRICS.make(name))


@dataclass(frozen=True)
class Alone:
    """A number without a control."""

    name: ClassVar[str] = "alone"
    version: ClassVar[int] = 1
    needs_truth: ClassVar[bool] = False

    def measure(self, scored: Scored) -> Measured:
        return Measured((Measure(name="alone", value=1, title="alone", meaning="one"),))


def test_the_contract_can_fail() -> None:
    with pytest.raises(AssertionError, match="alone stands beside no control"):
        check_metric(Alone())
