"""The ground truth that most of these tests look at."""

from __future__ import annotations

import pytest

from mechassay.truth.ground_truth import Truth, load_truth


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth("truth-ioi")
