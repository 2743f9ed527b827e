"""Figures over steps and models have what they are given, in its place."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.gym.checkpoint_pages import (
    GymCheckPage,
    OddsMap,
    brief_number,
    draw_accuracies_by_scale,
    draw_by_scale,
    draw_maps,
)
from mechassay.results.measures import measure_texts
from mechassay.results.page import Report, Text
from mechassay.results.records import Record, Spec, Table, provenance
from mechassay.stats.intervals import Estimate

POINTS = [(512.0, Estimate(2.0, 1.0, 3.0)), (0.0, Estimate(0.0)), (64.0, Estimate(1.0, 0.5, 1.5))]


def test_steps_are_in_order_on_an_axis_that_has_0() -> None:
    figure = draw_by_scale({"das": POINTS, "mean": POINTS[:1]}, "odds", "training step")
    (ax,) = figure.axes
    assert list(np.asarray(ax.lines[0].get_xdata())) == [0, 64, 512]
    assert list(np.asarray(ax.lines[0].get_ydata())) == [0.0, 1.0, 2.0]
    assert ax.get_xscale() == "symlog" and ax.get_xlabel() == "training step"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [" das", " mean"]
    without = draw_by_scale({"das": POINTS[::2]}, "odds", "training step").axes[0]
    assert without.get_xscale() == "log" and without.get_legend() is None


def test_a_panel_a_family() -> None:
    sizes = [(1.4e7, Estimate(0.6, 0.5, 0.7)), (7e7, Estimate(0.8, 0.7, 0.9))]
    panels = {f"family {n}": {"a": sizes, "b": sizes} for n in range(4)}
    figure = draw_accuracies_by_scale(panels, "parameters")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == list(panels)
    assert all(len(ax.lines) == 3 and ax.get_xscale() == "log" for ax in shown)


@pytest.mark.parametrize(("n", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (8, (2, 4))])
def test_maps_stand_in_rows(n: int, shape: tuple[int, int]) -> None:
    one = OddsMap("step 1", [0, 0, 1, 1], ["x", "y"] * 2, [0.0, 1.0, -2.0, float("nan")])
    figure = draw_maps([one] * n, 3.0)
    shown = [ax for ax in figure.axes if ax.images and ax.get_visible()]
    assert len(shown) == n
    spec = shown[0].get_subplotspec()
    assert spec is not None and spec.get_gridspec().get_geometry() == shape
    image = shown[-1].images[0]
    assert image.get_clim() == (-3.0, 3.0)
    assert image.get_array().filled(9.0).tolist() == [[0.0, 1.0], [-2.0, 9.0]]


def test_numbers_in_few_letters() -> None:
    found = [brief_number(x) for x in (0.0, 512.0, 1e3, 1.43e5, 1.4e7, 1.0e9, 6.9e9)]
    assert found == ["0", "512", "1k", "143k", "14M", "1B", "6.9B"]


def accuracy(value: float, low: float, n: int) -> Record:
    return Record(
        kind="gym-check",
        specs={"model": Spec(name="m"), "task": Spec(name=f"t{n}")},
        measures=[measure_texts("gym-check").measure("accuracy", Estimate(value, low, 1.0), n=n)],
        tables=[Table.of("types", ("type",), [{"type": "all", "accuracy": value}])],
        provenance=provenance(device="", dtype="", seed=0),
    )


def test_two_sentences_that_are_right_are_counted_apart() -> None:
    few = GymCheckPage().sections(Report([accuracy(1.0, 0.16, 2)]))[0].blocks[0]
    assert isinstance(few, Text) and few.text == (
        "m does 1 of 1 tasks better than 60 %, 0 of them with their whole 95 % interval; its mean"
        " accuracy is 1.00, on 2 test sentences of each."
    )
    of_two = Report([accuracy(1.0, 0.16, 2), accuracy(0.9, 0.8, 100)])
    both = GymCheckPage().sections(of_two)[0].blocks[0]
    assert isinstance(both, Text) and both.text.startswith(
        "m does 2 of 2 tasks better than 60 %, 1"
    )
    assert both.text.endswith("is 0.95, on 2 to 100 test sentences of each.")
