"""Directions that others hand in: what is read of a folder, and every mistake at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.errors import BadFile
from mechassay.features.featurizer import Affine, Directions, Identity, PrincipalAxes
from mechassay.features.fit import Fit
from mechassay.files import write_tensors
from mechassay.graph import Graph
from mechassay.gym.given_directions import GivenDirections, given_directions, read_directions
from mechassay.interventions.model_shape import ModelShape
from mechassay.interventions.site import load_site
from mechassay.submissions import Problems

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
        (lambda folder: None, "there is no folder"),
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
