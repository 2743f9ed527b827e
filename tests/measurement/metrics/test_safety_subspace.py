"""M14: planted contrasts, worthless ones, and what the published definition makes of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.measurement.measurement import ALL, Measurement
from mechassay.measurement.metrics.contrast_directions import LayerContrast, explained
from mechassay.measurement.metrics.safety_subspace import null, page_subspace, safety_subspace

N, LAYERS, D, GROWTH = 60, 12, 24, 1.15
GROUPS = tuple(str(i % 10) for i in range(N))
Pairs = tuple[np.ndarray, np.ndarray]


def wandering(rng: np.random.Generator, k: int, layers: int = LAYERS) -> np.ndarray:
    """Streams that carry on most of what they hold, and grow."""
    steps = rng.standard_normal((k, layers, D)) / math.sqrt(D)
    for layer in range(1, layers):
        steps[:, layer] = 0.9 * steps[:, layer - 1] + 0.44 * steps[:, layer]
    return steps * GROWTH ** np.arange(layers)[:, None]


def pairs(shift: np.ndarray | float, seed: int = 0, layers: int = LAYERS) -> Pairs:
    """Texts of a form whose differences are noise and a shift."""
    rng = np.random.default_rng(seed)
    forms, noise = wandering(rng, N, layers), 0.5 * wandering(rng, N, layers)
    return forms + shift / 2 + noise, forms - shift / 2 - noise


def one_direction(layers: int = LAYERS) -> np.ndarray:
    """The same direction at all layers."""
    return 2 * np.tile(np.eye(D)[0], (layers, 1)) * GROWTH ** np.arange(layers)[:, None]


def own_directions(layers: int = LAYERS) -> np.ndarray:
    """A direction of its own at each layer."""
    return 2 * np.eye(D)[:layers] * GROWTH ** np.arange(layers)[:, None]


def measured(own: Pairs, control: Pairs, **more: Any) -> Measurement:
    return safety_subspace(*own, *control, groups=GROUPS, control_groups=GROUPS, **more)


def test_a_compact_contrast_passes() -> None:
    found = measured(pairs(one_direction()), pairs(own_directions(), 1))
    assert found.passed is True
    assert found.repaired["agreement"] > 0.5 and found.repaired["p_shuffled"] <= 0.002
    assert found.repaired["held_out_accuracy"] > 0.95 and found.repaired["stability"] > 0.9
    half = found.repaired["stability"]
    assert found.repaired["stability_of_all"] == pytest.approx(half / ((1 + half) / 2))
    assert found.repaired["sve"] < 0.3 and found.repaired["effective_rank"] <= 2
    assert found.repaired["sve_control"] > 0.8
    # Directions of half the topics are in the space of the other half's, and in no other.
    assert found.repaired["explained"] > 0.9
    assert found.repaired["explained_control"] < 0.5
    assert found.repaired["explained_random"] == found.repaired["effective_rank"] / D
    assert str(found.criterion) == "mv-27@1:M1"


def test_a_contrast_like_the_control_does_not() -> None:
    found = measured(pairs(one_direction()), pairs(one_direction(), 1))
    assert found.repaired["p_shuffled"] < 0.05 and found.passed is False
    assert found.flagged("like_the_control")
    spread = measured(pairs(own_directions()), pairs(one_direction(), 1))
    assert spread.passed is False and spread.repaired["sve_above_control"] > 0.5


def test_labels_that_mean_nothing_pass_as_published_and_not_as_repaired() -> None:
    """The defect: the stream carries noise from layer to layer, and grows."""
    found = measured(pairs(0.0), pairs(own_directions(), 1))
    assert found.page.passed is True
    assert found.repaired.passed is False and found.flagged("no_contrast")
    assert found.flagged("shuffled_labels_pass") and found.flagged("norm_growth")
    assert found.repaired["p_shuffled"] > 0.05 and abs(found.repaired["stability"]) < 0.6
    gap = found.repaired["explained"] - found.repaired["explained_shuffled"]
    assert abs(gap) < 0.15


def test_a_control_that_is_not_there_is_nothing_to_compare_with() -> None:
    found = measured(pairs(one_direction()), pairs(0.0, 1))
    assert found.flagged("no_control") and found.repaired["sve_above_control_high"] is None
    assert found.passed is None


def test_up_to_seven_layers_everything_is_compact_as_published() -> None:
    """The defect: seven directions of which no two share anything have an SVE of 1.95."""
    shift = 2 * np.eye(D)[:7]
    found = measured(pairs(shift, layers=7), pairs(one_direction(7), 1, layers=7))
    assert found.flagged("always_compact") and found.page.passed is True
    assert found.repaired["sve"] > 0.8 and found.passed is False
    assert math.log(7) < 2 < math.log(8)


def test_growing_norms_make_random_directions_compact_as_published() -> None:
    """The defect: rows of lengths up to e^4 times the first."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, LAYERS, 400)) * np.exp(np.linspace(0, 4, LAYERS))[:, None]
    first = np.repeat(rows, N, axis=0)
    directions, _ = page_subspace(first, np.zeros_like(first), 4, 2, rng)
    assert directions == pytest.approx(rows[0])
    both = first, np.zeros_like(first)
    found = measured(both, both)
    assert found.page["safety_sve"] < 1.5 and found.repaired["sve"] > 0.95


def test_a_space_that_turns_is_stable_as_published() -> None:
    """The defect: only the SVE of subsets is compared, not their directions."""
    # Topics whose directions have nothing in common: each subset has another mix of them.
    rng = np.random.default_rng(0)
    shifts = 4 * rng.standard_normal((10, 1, D)) / math.sqrt(D)
    shift = np.stack([shifts[int(g)] for g in GROUPS])
    found = measured(pairs(shift), pairs(one_direction(), 1))
    assert found.page["stability"] > 0.8
    assert found.repaired["stability"] < 0.5 and found.passed is False


def test_equal_classes_are_undefined() -> None:
    texts, _ = pairs(0.0)
    found = measured((texts, texts), pairs(one_direction(), 1))
    assert found.repaired["agreement"] is None and found.repaired["sve"] is None
    assert found.repaired["explained"] is None and found.passed is None
    # The page takes means of subsets of either class, which differ.
    assert found.page["safety_sve"] is None and found.page.passed is None
    assert found.flagged("no_contrast")


@pytest.mark.slow
def test_one_topic_has_nothing_to_be_tested_on() -> None:
    own, control = pairs(one_direction()), pairs(own_directions(), 1)
    found = safety_subspace(*own, *control, groups=["a"] * N, control_groups=GROUPS)
    for name in ("agreement", "p_shuffled", "stability", "held_out_accuracy", "explained"):
        assert found.repaired[name] is None, name
    assert found.passed is None


def test_the_order_and_the_sense_of_classes_do_not_matter() -> None:
    own, control = pairs(one_direction()), pairs(own_directions(), 1)
    found, swapped = measured(own, control), measured(own[::-1], control[::-1])
    for name in ("agreement", "stability", "sve", "sve_above_control", "explained_control"):
        assert found.repaired[name] == pytest.approx(swapped.repaired[name]), name
    assert found.page["safety_sve"] == pytest.approx(swapped.page["safety_sve"])


def test_draws_are_those_of_the_seed() -> None:
    given = pairs(one_direction()), pairs(own_directions(), 1)
    one, same, other = (measured(*given, seed=seed) for seed in (0, 0, 1))
    assert one.repaired.values == same.repaired.values
    assert one.repaired.values != other.repaired.values
    assert one.repaired["sve"] == other.repaired["sve"]


def test_bad_arrays_are_refused() -> None:
    own, control = pairs(one_direction()), pairs(own_directions(), 1)
    with pytest.raises(BadUsage, match="two pairs or more"):
        safety_subspace(*own, *control, groups=GROUPS[:3], control_groups=GROUPS)
    with pytest.raises(BadUsage, match="two pairs or more"):
        safety_subspace(own[0][:1], own[1][:1], *control, groups="a", control_groups=GROUPS)


def test_how_often_the_thresholds_err() -> None:
    table = null(N, 10)  # the one that measurements show
    assert table.false_alarm("page", ALL) > 0.9
    assert table.false_alarm("repaired", ALL) < 0.12
    assert table.power("repaired", ALL) > 0.8
    own = {x.condition: x.rate for x in table if x.scenario.startswith("a direction of its own")}
    # Where labels were exchanged pair by pair it was above a third.
    assert own["p_shuffled < 0.05"] < 0.12


def test_what_the_control_explains_is_of_as_few_topics() -> None:
    # A noisy contrast as its own control: a half explains a half as the other's does.
    given = pairs(0.3 * one_direction())
    found = measured(given, given)
    other, own = found.repaired["explained_control"], found.repaired["explained"]
    # All of its topics have the half that is to be explained among them.
    contrast = LayerContrast(given[0] - given[1], GROUPS)
    rank, first = found.repaired["effective_rank"], np.array([int(g) < 5 for g in GROUPS])
    wanted = contrast.differences[first].mean(axis=0)
    assert explained(contrast.directions, wanted, int(rank)) > other > own
    single = safety_subspace(*given, *given, groups=GROUPS, control_groups=["a"] * N)
    assert single.repaired["explained_control"] is None
    assert single.repaired["explained"] is not None
