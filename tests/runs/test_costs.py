"""What work takes: sizes, operations and the sentence, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.models.graph import Graph
from mechassay.runs import costs
from mechassay.runs.costs import Cost, ModelSize, Work

SHAPE = {
    "layers": 2,
    "heads": 3,
    "key_heads": 1,
    "width": 12,
    "head": 4,
    "hidden": 20,
    "gated": True,
    "vocabulary": 100,
    "tied": True,
    "dtype": "bfloat16",
}


def test_numbers_of_a_shape_by_hand() -> None:
    # A layer: queries and outputs 2 x 12 x 12, keys and values 2 x 12 x 4, an MLP 3 x 12 x 20.
    size = ModelSize.published(SHAPE)
    assert size.body == 2 * (288 + 96 + 720)
    assert size.weights == size.body + 1200
    assert ModelSize.published({**SHAPE, "tied": False}).weights == size.body + 2400
    assert size.bytes == 2 * size.weights
    # Readers of layer 0: nine see 1, the MLP 4; of layer 1: nine see 5, the MLP 8; logits 9.
    assert size.graph.n_edges == 9 + 4 + 45 + 8 + 9


def test_operations_by_hand() -> None:
    size = ModelSize(1000, 600, 400, Graph(1, 1), 10, 4)
    assert size.graph.n_edges == 3 + 2 + 3
    plain, circuit = costs.token_operations(size, share=0.5)
    assert plain == 0.5 * 1200
    assert circuit == pytest.approx(0.5 * (costs.LIVE * 1200 + costs.SUMS * 160))
    once = costs.circuit_operations(size, 4, 0, 10)
    assert once == 10 * 4 * costs.token_operations(size)[0]
    assert costs.circuit_operations(size, 4, 3, 10) > once


def _cost(free: int | None) -> Cost:
    size = ModelSize(1_000_000_000, 600_000_000, 400_000_000, Graph(2, 2), 10, 4)
    return Cost((Work("m", size, 0.0, 5e8),), "cpu", 3e8, free)


def test_the_peak_is_the_working_set_beside_the_weights() -> None:
    cost = _cost(free=10_000_000_000)
    assert cost.gigabytes == pytest.approx(0.3 + 0.13 + 4 + 0.5)
    assert cost.cell_seconds == costs.BEGIN + 4e9 / costs.READ == 11
    assert cost.seconds == costs.START + 11
    assert cost.line == "fits: needs 4.9 GB of 10.3 GB free, 9.5 to 38 s"
    # What is read in another dtype is held with the file, and then let go.
    read = replace(cost.works[0], size=replace(cost.works[0].size, file_bytes=2_000_000_000))
    assert replace(cost, works=(read,)).gigabytes == pytest.approx(0.3 + 0.13 + 4 + 2)
    # Models are loaded one after the other.
    assert replace(cost, works=cost.works * 2).gigabytes == cost.gigabytes
    assert replace(cost, works=cost.works * 2).seconds == 30
    # Two processes share what there is to do.
    assert replace(cost, works=cost.works * 2, processes=2).seconds == 19


def test_operations_are_seconds_at_the_speed_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "speed", lambda device, width: 1e9 * width)
    size = ModelSize(0, 0, 0, Graph(1, 1), 10, 4)
    assert Work("m", size, 1e10, 0.0).seconds("cpu") == costs.BEGIN + costs.SLOWER
    started = Work("m", size, 0.0, 0.0, n_runs=50, fixed=7).seconds("cpu")
    assert started == costs.BEGIN + 7 + 50 * costs.LAYER


def test_what_does_not_fit_and_what_is_not_known() -> None:
    assert not _cost(free=4_000_000_000).fits
    assert _cost(free=4_000_000_000).line.startswith("does not fit: needs 4.9 GB of 4.3 GB free")
    assert _cost(free=None).fits
    assert _cost(free=None).line == "fits: needs 4.9 GB, 9.5 to 38 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2, "1 to 4 s"),
        (40, "20 to 80 s"),
        (100, "50 to 200 s"),
        (600, "5 to 20 min"),
        (3601, "31 to 120 min"),
        (7200, "1 to 4 h"),
        (9e5, "125 to 500 h"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert costs.duration(seconds) == text


@given(st.floats(0.1, 1e7), st.sampled_from([costs.RANGE, costs.RANGE_MEASURED]))
def test_a_range_is_no_wider_than_it_says(seconds: float, off: float) -> None:
    low, _, high, _ = costs.duration(seconds, off).replace(",", "").split()
    assert float(high) <= off**2 * float(low) * (1 + 1e-9) or float(low) < 1


def test_a_product_tells_the_speed() -> None:
    assert 1e8 < costs.speed("cpu") < 1e14
    assert 1e7 < costs.speed("cpu", 32) < 1e14
