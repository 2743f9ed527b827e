"""Directions that others hand in: what is read of a folder, and every mistake at once.

Odds of given directions, in a model of which the right ones are known.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from helpers.planted_gym import NUISANCE, U, V, planted_model, planted_task
from mechassay.errors import BadFile, BadUsage
from mechassay.features.featurizer import Affine, Directions, Identity, PrincipalAxes
from mechassay.features.finder import Fit
from mechassay.gym import evaluate
from mechassay.gym.directions import (
    NO_CONTROL,
    GivenDirections,
    given_directions,
    measure_directions,
    read_directions,
)
from mechassay.gym.experiments import save_fits
from mechassay.gym.task_odds import RANDOM_DIRECTIONS, WHOLE_VECTOR, MethodOdds, TaskOdds, best_mean
from mechassay.interventions.site import ModelShape, load_site
from mechassay.models.graph import Graph
from mechassay.utils.display import SILENT
from mechassay.utils.files import Problems, write_tensors

WIDTH = 6
REGIONS = ("noun", "time")
SHAPE = ModelShape(Graph(2, 2), WIDTH, 3)
AXES = torch.eye(WIDTH)


def fit(*sites: str, k: int = 1, **more: Any) -> Fit:
    """A fit whose directions are the first axes."""
    found = {load_site(site): Directions(AXES[:, :k]) for site in sites or ("resid.0@noun",)}
    return Fit(found, **more)


def written(path: Path, sites: list[Any], **tensors: torch.Tensor) -> None:
    """A file of features that `Fit.save` would not write."""
    header = {"kind": "features", "sites": sites, "together": False, "provenance": {}}
    write_tensors(path, {"losses": torch.zeros(0, 0), **tensors}, header)


def told(folder: Path) -> list[tuple[str, str]]:
    found = Problems()
    read_directions(folder, REGIONS, SHAPE, "mine", found)
    assert not any(problem.warning for problem in found)
    return [(problem.path, problem.message) for problem in found]


def test_the_methods_of_a_folder_with_their_seeds_and_kinds_of_labels(tmp_path: Path) -> None:
    for name in ("das k=2-1", "das k=2-0", "das k=2-0-control", "das k=2-1-control", "mean-0"):
        fit("resid.0@noun", "resid.1@time", k=2).save(tmp_path / f"{name}.safetensors")
    (tmp_path / "README.md").write_text("mine")
    das, mean = given_directions(tmp_path, REGIONS, SHAPE, "mine")
    assert (das.method, mean.method) == ("das k=2", "mean")
    assert [path.name for path in das.files["control"]] == [
        "das k=2-0-control.safetensors",
        "das k=2-1-control.safetensors",
    ]
    assert das.has_control and not mean.has_control
    assert [len(each) for each in das.fits().values()] == [2, 2]
    assert das.typed == str(tmp_path / "das k=2")


def test_the_hash_is_of_the_files_of_the_method_alone(tmp_path: Path) -> None:
    fit().save(tmp_path / "mine-0.safetensors")
    [first] = given_directions(tmp_path, REGIONS)
    before = first.sha256
    fit().save(tmp_path / "other-0.safetensors")
    assert first.sha256 == before and GivenDirections(tmp_path, "x", first.files).sha256 == before
    fit("resid.1@noun").save(tmp_path / "mine-0.safetensors")
    assert first.sha256 != before


def test_orthonormal_coordinates_are_directions_and_nothing_else_is(tmp_path: Path) -> None:
    site = load_site("resid.0@noun")
    axes = PrincipalAxes(AXES[:, :2], torch.zeros(WIDTH), torch.ones(2))
    Fit({site: axes}).save(tmp_path / "pca-0.safetensors")
    Fit({site: Identity(WIDTH)}).save(tmp_path / "whole-0.safetensors")
    assert told(tmp_path) == []
    Fit({site: Affine.of(2 * AXES[:, :1])}).save(tmp_path / "affine-0.safetensors")
    none = torch.zeros(2, dtype=torch.bool)
    Fit({site: axes}, chosen={site: none}).save(tmp_path / "none-0.safetensors")
    assert told(tmp_path) == [
        (
            "affine-0.safetensors",
            "Features of a Affine at resid.0@noun are no coordinates along orthonormal directions.",
        ),
        ("none-0.safetensors", "no direction is meant at resid.0@noun."),
    ]


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    fit("resid.5@noun", "resid.0@verb", "mlp.0@noun").save(tmp_path / "a-0.safetensors")
    wide = {load_site("resid.0@noun"): Directions(torch.eye(8)[:, :1])}
    Fit(wide).save(tmp_path / "b-0.safetensors")
    found = dict.fromkeys(("resid.0@noun", "resid.1@time"))
    sites = [{"site": site, "featurizer": "Directions"} for site in found]
    nan, zero = AXES[:, :1].clone(), torch.zeros(WIDTH, 1)
    nan[2] = torch.nan
    written(tmp_path / "c-0.safetensors", sites, **{"0.vectors": nan, "1.vectors": zero})
    (tmp_path / "d-0.safetensors").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "e.pt").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "f.py").write_text("raise SystemExit")
    fit(together=True).save(tmp_path / "g-0.safetensors")
    fit().save(tmp_path / "whole vector-0.safetensors")
    said = told(tmp_path)
    assert [path for path, _ in said] == [
        "e.pt",
        "f.py",
        "whole vector-0.safetensors",
        *["a-0.safetensors"] * 3,
        "b-0.safetensors",
        *["c-0.safetensors"] * 2,
        "d-0.safetensors",
        "g-0.safetensors",
    ]
    for (_, message), part in zip(
        said,
        (
            "no file of directions",
            "code, which is never run",
            "cannot be called 'whole vector'",
            "mine has layers -1 to 1; got 5",
            "the task has the regions noun, time",
            "at the residual stream after a block",
            "mine has 6 numbers there; the features are of 8",
            "resid.0@noun: numbers that are NaN or infinite",
            "resid.1@time: a direction that is zero",
            "not a readable safetensors file",
            "meant together",
        ),
        strict=True,
    ):
        assert part in message and "\n" not in message, message
    with pytest.raises(BadFile, match=r"e\.pt: is no file .* \(10 more: `mechassay gym validate`"):
        given_directions(tmp_path, REGIONS, SHAPE, "mine")


def test_directions_that_are_not_orthonormal_or_no_features_are_refused(tmp_path: Path) -> None:
    sites = [{"site": "resid.0@noun", "featurizer": "Directions"}]
    written(tmp_path / "a-0.safetensors", sites, **{"0.vectors": 2 * AXES[:, :1]})
    written(tmp_path / "b-0.safetensors", sites * 2, **{"0.vectors": AXES[:, :1]})
    written(tmp_path / "c-0.safetensors", [])
    written(tmp_path / "d-0.safetensors", ["resid.0@noun"])
    write_tensors(tmp_path / "e-0.safetensors", {}, {"kind": "features", "sites": 7})
    messages = [message for _, message in told(tmp_path)]
    assert "no file of features" in messages[4]
    assert "must be orthonormal" in messages[0] and "names a site twice" in messages[1]
    assert messages[2] == "has no site." and "no file of features" in messages[3]


def test_seeds_and_sites_have_to_be_the_same_for_both_kinds_of_labels(tmp_path: Path) -> None:
    fit().save(tmp_path / "a-0.safetensors")
    fit("resid.1@noun").save(tmp_path / "a-1.safetensors")
    fit().save(tmp_path / "a-1-control.safetensors")
    fit().save(tmp_path / "b-0-control.safetensors")
    fit().save(tmp_path / "c-1.safetensors")
    fit().save(tmp_path / "c-01.safetensors")
    said = dict(reversed(told(tmp_path)))
    assert "a has the seeds 0, 1 for original labels and 1 for control" in said["a-0.safetensors"]
    assert said["a-1.safetensors"] == "has other sites than a-0.safetensors."
    assert "b has the seeds none for original labels and 0" in said["b-0-control.safetensors"]
    assert said["c-1.safetensors"] == "is of the same seed as c-01.safetensors."


def test_all_files_of_a_method_have_as_many_directions_at_a_site(tmp_path: Path) -> None:
    both = ("resid.0@noun", "resid.1@time")
    fit(*both).save(tmp_path / "a-0.safetensors")
    fit(*both, k=WIDTH).save(tmp_path / "a-1.safetensors")
    fit(*both).save(tmp_path / "a-0-control.safetensors")
    fit(*both, k=2).save(tmp_path / "a-1-control.safetensors")
    wanted = "Site resid.0@noun: all files of a method need as many directions; got {}, and 1 in {}"
    assert told(tmp_path) == [
        ("a-1.safetensors", wanted.format(6, "a-0.safetensors.")),
        ("a-1-control.safetensors", wanted.format(2, "a-0.safetensors.")),
    ]


def test_what_is_meant_of_a_featurizer_is_what_is_counted(tmp_path: Path) -> None:
    site = load_site("resid.0@noun")
    mask = torch.arange(WIDTH) == 2
    Fit({site: Identity(WIDTH)}, chosen={site: mask}).save(tmp_path / "a-0.safetensors")
    fit().save(tmp_path / "a-1.safetensors")
    Fit({site: Identity(WIDTH)}).save(tmp_path / "b-0.safetensors")
    fit(k=2).save(tmp_path / "c-0.safetensors")
    fit("resid.0@noun", "resid.1@time", k=3).save(tmp_path / "d-0.safetensors")
    assert told(tmp_path) == []
    found = Problems()
    read_directions(tmp_path, REGIONS, SHAPE, "mine", found, most=2)
    line = "Site resid.0@noun: got {} directions; a site may have at most 2 here{}."
    assert [(problem.path, problem.message) for problem in found] == [
        ("b-0.safetensors", line.format(6, "")),
        ("d-0.safetensors", line.format(3, " (too many at 1 more)")),
    ]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda folder: None, "there is no such folder"),
        (lambda folder: folder.mkdir(), "holds no directions"),
        (
            lambda folder: (folder.mkdir(), (folder / "a-0.safetensors").mkdir()),
            "no file of directions",
        ),
        (
            lambda folder: (
                folder.mkdir(),
                (folder / "a-0.safetensors").symlink_to(folder.parent / "secret"),
            ),
            "a link that leads out",
        ),
    ],
)
def test_folders_that_hold_none(made: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    made(tmp_path / "mine")
    [(_, message)] = told(tmp_path / "mine")
    assert said in message


def test_one_mistake_at_many_sites_is_said_once_with_their_number(tmp_path: Path) -> None:
    fit("resid.0@verb", "resid.1@verb", "resid.-1@verb").save(tmp_path / "a-0.safetensors")
    fit("resid.0@verb").save(tmp_path / "b-0.safetensors")
    said = [message for _, message in told(tmp_path) if "has the regions" in message]
    assert said == [
        "Site resid.0@verb: the task has the regions noun, time (3 sites in all).",
        "Site resid.0@verb: the task has the regions noun, time.",
    ]


LIMITS = {"train": 40, "validation": 16, "test": 16}
GIVEN_ODDS_REGIONS = ("noun", "place", "time")
RIGHT = {"resid.0@noun": V, "resid.1@time": U, "resid.2@time": U}


def saved(folder: Path, given: Mapping[str, torch.Tensor], *kinds: str) -> GivenDirections:
    """Directions by site, for original labels and those of `kinds`."""
    fit = Fit({load_site(site): Directions.of(each) for site, each in given.items()})
    for kind in ("", *kinds):
        fit.save(folder / f"mine-0{kind}.safetensors")
    [found] = given_directions(folder, GIVEN_ODDS_REGIONS)
    return found


MODEL = cache(planted_model)


def measured(given: GivenDirections, dtype: torch.dtype = torch.float64, **more: Any) -> TaskOdds:
    limits = {"validation": LIMITS["validation"], "test": LIMITS["test"]}
    return measure_directions(
        MODEL(dtype), planted_task(), given, limits=limits, progress=SILENT, **more
    )


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> TaskOdds:
    """Of the right directions, without any for control labels."""
    return measured(saved(tmp_path_factory.mktemp("right"), RIGHT))


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
    tmp_path: Path, right: TaskOdds
) -> None:
    own = right.items("mine")
    turned = {site: -3 * each for site, each in RIGHT.items()}
    np.testing.assert_allclose(
        measured(saved(tmp_path / "turned", turned)).items("mine"), own, atol=1e-9
    )
    both = {
        site: torch.stack((each + NUISANCE[:, 0], each - 2 * NUISANCE[:, 0]), dim=1)
        for site, each in RIGHT.items()
    }
    np.testing.assert_allclose(
        # The last norm is nearly linear.
        *(measured(saved(tmp_path / "both", both)).items("mine"), own),
        rtol=1e-4,
    )
    none = dict.fromkeys(RIGHT, NUISANCE[:, 1])
    nothing = measured(saved(tmp_path / "none", none))
    assert np.abs(nothing.items("mine")).max() < 1e-4
    assert nothing.difference("mine", RANDOM_DIRECTIONS).value <= 0


def test_a_layer_without_directions_counts_nothing(tmp_path: Path, right: TaskOdds) -> None:
    part = measured(saved(tmp_path / "part", {"resid.1@time": U}))
    assert part.layers == (0, 1, 2)
    np.testing.assert_allclose(
        part.items("mine")[0], right["mine"].odds("odds")[0, :, 1, 2] / 3, atol=1e-12
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
    found = measured(given_directions(tmp_path / "odd", GIVEN_ODDS_REGIONS)[0], torch.float32)
    for of in found.of:
        np.testing.assert_array_equal(found.items("mine", of), plain.items("mine", of))


def test_without_directions_for_control_labels_selectivity_is_undefined(
    tmp_path: Path, right: TaskOdds
) -> None:
    record = right.record()
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
    das, mean = given_directions(tmp_path, GIVEN_ODDS_REGIONS)
    for method, given in (("das:lr=0.1,steps=10", das), ("mean", mean)):
        again = measured(given)
        assert again[given.method].seeds == found[method].seeds
        for of in again.of:
            np.testing.assert_allclose(
                again.items(given.method, of), found.items(method, of), atol=1e-9
            )
            one, other = again.estimate(given.method, of), found.estimate(method, of)
            # Both or neither: few items that agree have no interval.
            ends = pytest.approx((other.low, other.high), abs=1e-9, nan_ok=True)
            assert (one.low, one.high) == ends
    assert measured(das).of == ("odds", "control", "selectivity") and measured(mean).of == ("odds",)


def test_the_whole_vector_as_given_is_the_control(tmp_path: Path) -> None:
    fit = Fit({load_site("resid.0@noun"): Identity(32)})
    fit.save(tmp_path / "mine-0.safetensors")
    found = measured(given_directions(tmp_path, GIVEN_ODDS_REGIONS)[0])
    np.testing.assert_array_equal(found.items("mine"), found.items(WHOLE_VECTOR))
    np.testing.assert_allclose(
        found.items(RANDOM_DIRECTIONS).mean(axis=0), found.items("mine")[0], atol=1e-9
    )
