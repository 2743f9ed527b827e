"""Tables, histograms and fields of made-up values, the file of values, and whole populations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.adversarial.statistics import (
    Statistics,
    chosen_maps,
    heat_map,
    histogram,
)
from mechassay.stats.distribution import Field

SMALL = Statistics("grid", above=(1.0,), n_resamples=50, n_permutations=200)


def test_a_histogram_counts_everything_up_to_its_end() -> None:
    values, empty = np.array([-1e-6, 0.0, 0.5, 1.0, 2.0]), np.array([1.999, 2.0, 2.0, 3.0, 4.0])
    found = histogram(values, empty, np.array([0.25, np.nan, 1.25]), 2.0)
    assert len(found["edges"]) == 101 and found["edges"][-1] == 2.0
    assert (
        sum(found["circuit"]) == 5
        and found["circuit"][0] == 2
        and found["circuit"][25] == found["circuit"][50] == 1
    )
    assert sum(found["corrupted"]) == 3 and found["corrupted"][-1] == 3
    # The random circuit was run on two pairs of five: each stands for two and a half.
    assert (
        sum(found["random_paths"]) == 5
        and found["random_paths"][12] == found["random_paths"][62] == 2.5
    )
    assert sum(histogram(np.zeros(4), np.zeros(4), np.zeros(4), 0.0)["circuit"]) == 4


def test_a_population_has_no_intervals() -> None:
    values = np.arange(1000.0)
    population = Statistics("matched", population=True, percentiles=(0.99,), above=(899.5,))
    sample = Statistics("matched", percentiles=(0.99,), above=(899.5,))
    rng = np.random.default_rng(0)
    tables = [
        {row["name"]: row for row in each.table(values, rng)} for each in (population, sample)
    ]
    assert tables[0]["99%"]["value"] == tables[1]["99%"]["value"] == pytest.approx(989.01)
    assert math.isnan(tables[0]["99%"]["bound"]) and math.isnan(tables[0]["mean"]["low"])
    assert tables[1]["99%"]["bound"] == 995  # the 996th of 1000 values
    (exact,), (guessed,) = population.exceedance(values, rng), sample.exceedance(values, rng)
    assert exact["value"] == guessed["value"] == 0.1
    assert math.isnan(exact["bound"]) and guessed["low"] < 0.1 < guessed["bound"] <= guessed["high"]


def test_a_worse_label_is_found_and_p_counts_the_fields() -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(size=(40, 30))
    values[:10] *= 20
    fields = [
        Field("place", ["zoo"] * 10 + ["bar"] * 30),
        Field("thing", [("ring", "bone")[row % 2] for row in range(40)]),
    ]
    empty = np.full((40, 30), 50.0)
    one = SMALL.groups(values, empty, fields[:1], np.random.default_rng(1))
    two = SMALL.groups(values, empty, fields, np.random.default_rng(1))
    place = two[0]
    assert place["labels"] == ["bar", "zoo"] and place["inputs"] == [30, 10]
    assert place["p"][1] == pytest.approx(2 * one[0]["p"][1]) and place["p"][1] < 0.05 < min(
        two[1]["p"]
    )
    assert place["max"][1] == values[:10].max() and place["rest"][0] > place["99%"][0]
    assert place["worse"] == [False, True] and not any(two[1]["worse"])
    assert place["effect"][1] == pytest.approx(place["tested"][1] - place["rest"][1])
    assert place["share"][1] == pytest.approx(place["effect"][1] / 50) and place["mean_share"][
        1
    ] == pytest.approx(place["mean_effect"][1] / 50)
    assert place["mean_effect"][1] == pytest.approx(values[:10].mean() - values[10:].mean())
    assert place["mean_low"][1] < place["mean_effect"][1] < place["mean_high"][1]
    # The same difference is nothing beside an empty circuit that is a hundred times further away.
    far = SMALL.groups(values, 100 * empty, fields, np.random.default_rng(1))
    assert far[0]["p"] == place["p"] and far[0]["worse"] == [False, False]
    ((one_field, other),) = chosen_maps(fields, two, 2)
    assert (one_field.name, other.name) == ("place", "thing")


def test_heat_maps_have_inputs_for_their_cells() -> None:
    fields = [
        Field("a", list("wwxxyyzz")),
        Field("b", list("ppqqrrpp")),
        Field("c", list("stststst")),
        Field("d", list("ssuuvvttxx"), "corrupted"),
    ]
    p = [{"p": [0.1]}, {"p": [0.2]}, {"p": [0.9]}, {"p": [1.0]}]
    # a and b have twelve cells for eight inputs; a clean and a corrupted field have all pairs.
    assert [(one.name, two.name) for one, two in chosen_maps(fields, p, 2)] == [
        ("a", "c"),
        ("a", "d"),
        ("b", "c"),
    ]
    # What is asked for is drawn whatever its size, first, and once.
    asked = [(fields[1], fields[0]), (fields[2], fields[0])]
    assert [(one.name, two.name) for one, two in chosen_maps(fields, p, 2, asked)] == [
        ("b", "a"),
        ("c", "a"),
        ("a", "d"),
        ("b", "c"),
    ]


def test_a_heat_map_has_the_largest_labels_and_says_what_it_leaves_out() -> None:
    rng = np.random.default_rng(0)
    labels = [f"n{row:02}" for row in range(40)]
    values = rng.exponential(size=(80, 6))
    values[[labels[row % 40] == "n07" for row in range(80)]] += 10
    empty = values + 3
    rows, columns = Field("noun", labels * 2), Field("year", list("aabbcc"), "corrupted")
    found = heat_map(values, empty, (rows, columns))
    assert (
        found["labels"][0][0] == "n07"
        and len(found["labels"][0]) == 30
        and found["left_out"] == [10, 0]
    )
    hidden = [row for row in range(80) if labels[row % 40] not in found["labels"][0]]
    assert found["largest_left_out"][0] == values[hidden].max() and math.isnan(
        found["largest_left_out"][1]
    )
    high = [np.quantile(values[[row, row + 40]], 0.999) for row in range(40)]
    assert found["labels"][0] == [labels[place] for place in np.argsort(np.negative(high))[:30]]
    for number, row in enumerate(found["labels"][0]):
        for other, column in enumerate(found["labels"][1]):
            cell = values[[labels[place % 40] == row for place in range(80)]][
                :, [each == column for each in "aabbcc"]
            ]
            assert found["max"][number][other] == cell.max()
            assert found["99.9%"][number][other] == pytest.approx(np.quantile(cell, 0.999))
            assert found["99.99%"][number][other] == pytest.approx(np.quantile(cell, 0.9999))
    assert found["empty"]["max"] == empty.max() and found["empty"]["mean"] == pytest.approx(
        empty.mean()
    )
