"""Odds of given directions, in a model of which the right ones are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from gym_planted import NUISANCE, U, V, planted_model, planted_task
from mechassay.errors import BadUsage
from mechassay.features.featurizer import Directions, Identity, PrincipalAxes
from mechassay.features.fit import Fit
from mechassay.gym import evaluate
from mechassay.gym.choice_of_regions import best_mean
from mechassay.gym.given_directions import GivenDirections, given_directions
from mechassay.gym.given_odds import NO_CONTROL, measure_directions
from mechassay.gym.method_odds import MethodOdds
from mechassay.gym.task_odds import RANDOM_DIRECTIONS, WHOLE_VECTOR, TaskOdds
from mechassay.interventions.site import load_site
from mechassay.progress import SILENT
from mechassay.runs.gym import save_fits

LIMITS = {"train": 40, "validation": 16, "test": 16}
REGIONS = ("noun", "place", "time")
RIGHT = {"resid.0@noun": V, "resid.1@time": U, "resid.2@time": U}


def saved(folder: Path, given: Mapping[str, torch.Tensor], *kinds: str) -> GivenDirections:
    """Directions by site, for original labels and those of `kinds`."""
    fit = Fit({load_site(site): Directions.of(each) for site, each in given.items()})
    for kind in ("", *kinds):
        fit.save(folder / f"mine-0{kind}.safetensors")
    [found] = given_directions(folder, REGIONS)
    return found


MODEL = cache(planted_model)


def measured(given: GivenDirections, dtype: torch.dtype = torch.float64, **more: Any) -> TaskOdds:
    limits = {"validation": LIMITS["validation"], "test": LIMITS["test"]}
    return measure_directions(
        MODEL(dtype), planted_task(), given, limits=limits, progress=SILENT, **more
    )


def test_the_right_directions_do_what_the_whole_vector_does(tmp_path: Path) -> None:
    found = measured(saved(tmp_path, RIGHT, "-control"))
    own, whole = found.estimate("mine"), found.estimate(WHOLE_VECTOR)
    assert own.value > 3 and own.value == pytest.approx(whole.value, abs=1e-6)
    assert found.estimate(RANDOM_DIRECTIONS).high < 0.2 * own.low
    assert found.chosen("mine") == {0: "noun", 1: "time", 2: "time"}
    # Nothing but is and are is read from the stream.
    assert found.estimate("mine", "control").value == pytest.approx(0, abs=1e-9)
    assert found.estimate("mine", "selectivity").value == pytest.approx(own.value, abs=1e-9)


def test_signs_and_turns_within_a_space_change_nothing_and_an_orthogonal_one_does_nothing(
    tmp_path: Path,
) -> None:
    right = measured(saved(tmp_path / "right", RIGHT)).items("mine")
    turned = {site: -3 * each for site, each in RIGHT.items()}
    np.testing.assert_allclose(
        measured(saved(tmp_path / "turned", turned)).items("mine"), right, atol=1e-9
    )
    both = {
        site: torch.stack((each + NUISANCE[:, 0], each - 2 * NUISANCE[:, 0]), dim=1)
        for site, each in RIGHT.items()
    }
    np.testing.assert_allclose(
        # The last norm is nearly linear.
        *(measured(saved(tmp_path / "both", both)).items("mine"), right),
        rtol=1e-4,
    )
    none = dict.fromkeys(RIGHT, NUISANCE[:, 1])
    nothing = measured(saved(tmp_path / "none", none))
    assert np.abs(nothing.items("mine")).max() < 1e-4
    assert nothing.difference("mine", RANDOM_DIRECTIONS).value <= 0


def test_a_layer_without_directions_counts_nothing(tmp_path: Path) -> None:
    whole = measured(saved(tmp_path / "whole", RIGHT))
    part = measured(saved(tmp_path / "part", {"resid.1@time": U}))
    assert part.layers == (0, 1, 2)
    np.testing.assert_allclose(
        part.items("mine")[0], whole["mine"].odds("odds")[0, :, 1, 2] / 3, atol=1e-12
    )
    assert "finds nothing at 8 of 9 sites" in part.warnings()[0]
    assert not any(line.startswith((WHOLE_VECTOR, RANDOM_DIRECTIONS)) for line in part.warnings())
    # The control is at the same site alone.
    assert part.estimate(WHOLE_VECTOR).value == pytest.approx(part.estimate("mine").value, abs=1e-6)
    alone = measured(saved(tmp_path / "alone", RIGHT), layers=[1]).by_layer("mine")[1]
    assert alone.value == pytest.approx(3 * part.estimate("mine").value)
    with pytest.raises(BadUsage, match=r"no directions in layers \(0,\)"):
        measured(saved(tmp_path / "part", {"resid.1@time": U}), layers=[0])


def test_a_region_that_was_declared_counts_though_it_is_below_nothing() -> None:
    # One seed, one item, two layers, two regions; of the second layer nothing was given.
    odds = np.array([[[[-2.0, 0.0], [0.0, 0.0]]]])
    offered = np.array([[True, False], [True, True]])
    given: dict[str, Any] = {"validation": {"odds": odds}, "test": {"odds": odds}, "fits": {}}

    def overall(mask: Any) -> float:
        found = MethodOdds("mine", "", {}, **given, offered=mask)
        task = TaskOdds(
            *("model", "task", (0, 1), ("a", "b"), ("1",), ("1",), np.array([True])),
            MappingProxyType({"mine": found}),
            {},
        )
        return float(task.items("mine").mean())

    assert overall(offered) == -1.0 and overall(None) == 0.0
    assert best_mean(np.where(offered, odds, -np.inf)) == -1.0


def test_the_published_rule_too_chooses_among_regions_with_directions() -> None:
    # Worked by hand: of the first layer -2 was declared; "b" has nothing, and its 0 is no result.
    odds = np.array([[[[-2.0, 0.0], [3.0, 1.0]]]])
    control = np.array([[[[-1.0, 0.0], [1.0, 0.0]]]])
    both = {"odds": odds, "control": control}
    offered = np.array([[True, False], [True, True]])
    given: dict[str, Any] = {"validation": both, "test": both, "fits": {}}
    found = MethodOdds("mine", "", {}, **given, offered=offered)
    task = TaskOdds(
        *("model", "task", (0, 1), ("a", "b"), ("1",), ("1",), np.array([True])),
        MappingProxyType({"mine": found}),
        {"one": " dog", "many": " give"},
    )
    for rule in ("validation", "causalgym-2024"):
        assert task.chosen("mine", rule=rule) == {0: "a", 1: "a"}
        assert task.items("mine", rule=rule).mean() == 0.5
        assert task.items("mine", "selectivity", rule).mean() == 0.5
    anywhere = replace(task, methods={"mine": replace(found, offered=None)})
    assert anywhere.items("mine", rule="causalgym-2024").mean() == 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "scale"), [(1e30, 1.0), (0.0, 1e-45), (5.0, 3e38)])
def test_mean_and_scale_of_a_featurizer_do_nothing(
    mean: float, scale: float, tmp_path: Path
) -> None:
    # In fp32, where the smallest scale divides by nothing.
    plain = measured(saved(tmp_path / "plain", RIGHT, "-control"), torch.float32)
    assert plain.estimate("mine").value > 3
    odd = Fit(
        {
            load_site(site): PrincipalAxes(
                Directions.of(each).vectors, torch.full((32,), mean), torch.tensor([scale])
            )
            for site, each in RIGHT.items()
        }
    )
    for kind in ("", "-control"):
        odd.save(tmp_path / "odd" / f"mine-0{kind}.safetensors")
    found = measured(given_directions(tmp_path / "odd", REGIONS)[0], torch.float32)
    for of in found.of:
        np.testing.assert_array_equal(found.items("mine", of), plain.items("mine", of))


def test_without_directions_for_control_labels_selectivity_is_undefined(tmp_path: Path) -> None:
    record = measured(saved(tmp_path, RIGHT)).record()
    unknown = record.measure("selectivity_mine")
    assert unknown is not None and np.isnan(unknown.value)
    assert (unknown.n, unknown.n_undefined) == (0, 16)
    assert NO_CONTROL in record.warnings
    for control in (WHOLE_VECTOR, RANDOM_DIRECTIONS):
        beside = record.measure("odds_mine", f"control:{control}")
        less = record.measure("odds_mine", f"difference:{control}")
        assert beside is not None and less is not None
        assert record.measure(f"odds_{control}") is None
    known = measured(saved(tmp_path, RIGHT, "-control")).record()
    assert known.measure("selectivity_mine", f"control:{WHOLE_VECTOR}") is not None


@pytest.mark.slow
def test_what_a_method_found_gives_its_odds_again(tmp_path: Path) -> None:
    found = evaluate(
        MODEL(),
        planted_task(),
        ("das:lr=0.1,steps=10", "mean"),
        limits=LIMITS,
        seeds=(0, 1),
        progress=SILENT,
    )
    save_fits(found, tmp_path)
    das, mean = given_directions(tmp_path, REGIONS)
    for method, given in (("das:lr=0.1,steps=10", das), ("mean", mean)):
        again = measured(given)
        assert again[given.method].seeds == found[method].seeds
        for of in again.of:
            np.testing.assert_allclose(
                again.items(given.method, of), found.items(method, of), atol=1e-9
            )
            one, other = again.estimate(given.method, of), found.estimate(method, of)
            assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=1e-9)
    assert measured(das).of == ("odds", "control", "selectivity") and measured(mean).of == ("odds",)


def test_the_whole_vector_as_given_is_the_control(tmp_path: Path) -> None:
    fit = Fit({load_site("resid.0@noun"): Identity(32)})
    fit.save(tmp_path / "mine-0.safetensors")
    found = measured(given_directions(tmp_path, REGIONS)[0])
    np.testing.assert_array_equal(found.items("mine"), found.items(WHOLE_VECTOR))
    np.testing.assert_allclose(
        found.items(RANDOM_DIRECTIONS).mean(axis=0), found.items("mine")[0], atol=1e-9
    )
