"""Directions of others as a run: the numbers of the run that found them, pages, and refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.features import Fit
from mechassay.features.featurizer import Directions
from mechassay.interventions.site import load_site
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.paired import paired_differences
from mechassay.leaderboard.rules import rules_of
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.report.kinds.directions import DirectionsPage
from mechassay.runs.command_line import command_line
from mechassay.runs.directions import GIVEN_CONTROL, DirectionsJob
from mechassay.runs.execute import run
from mechassay.runs.gym import GymJob
from small_jobs import SMALL_JOBS

JOB: DirectionsJob = SMALL_JOBS["directions"]
NEOX, TASK = "gym-neox", "agr_gender"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, dict[str, Record]]:
    """A run of methods on gym-neox, and what it found handed in, by method."""
    folder = tmp_path_factory.mktemp("found")
    about: dict[str, Any] = {"validation_limit": 12, "test_limit": 12, "layers": "::3"}
    methods = ("das:steps=8", "mean", "random", "vanilla")
    job = GymJob((NEOX,), (TASK,), methods, controls=("labels",), train_limit=16, **about)
    [record] = run(job, folder / "run", progress=SILENT).records
    given = str(folder / "run" / "features" / f"{NEOX}--{TASK}")
    again = run(
        DirectionsJob((given,), NEOX, TASK, **about), folder / "again", progress=SILENT
    ).records
    return record, {each.method.name: each for each in again}


def value(record: Record, name: str, of: str = "result") -> float:
    measure = record.measure(name, of)
    assert measure is not None, name
    return measure.value


@pytest.mark.slow
def test_what_a_run_found_handed_in_gives_the_numbers_of_its_record(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    assert list(given) == ["das steps=8", "mean", "random", "vanilla"]
    for method, record in given.items():
        typed = method.replace(" ", ":")
        assert value(record, f"odds_{method}") == pytest.approx(
            value(run_record, f"odds_{typed}"), abs=1e-6
        )
        assert record.values is not None and run_record.values is not None
        assert record.values.ids == run_record.values.ids
        np.testing.assert_allclose(
            np.array(record.values.columns[method], dtype=float),
            np.array(run_record.values.columns[typed], dtype=float),
            atol=1e-4,
        )
    das = given["das steps=8"]
    for name in ("selectivity", "control"):
        ours, theirs = value(das, f"{name}_das steps=8"), value(run_record, f"{name}_das:steps=8")
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert GIVEN_CONTROL in das.warnings and GIVEN_CONTROL not in given["mean"].warnings
    assert np.isnan(value(given["mean"], "selectivity_mean"))


def test_a_random_direction_does_about_nothing(found: tuple[Record, dict[str, Record]]) -> None:
    _, given = found
    whole = value(given["mean"], "odds_mean", "control:whole vector")
    assert value(given["vanilla"], "odds_vanilla") == pytest.approx(whole, abs=1e-6)
    assert abs(value(given["random"], "odds_random")) < 0.1 * whole
    assert value(given["mean"], "odds_mean") > 0.7 * whole


def test_on_the_board_it_stands_beside_the_run_as_a_row_of_its_own(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    rules = rules_of("gym")
    theirs = {(cell.row, cell.column): cell for cell in cells_of(rules, run_record)}
    for method in ("mean", "random", "vanilla"):
        odds, selectivity = cells_of(rules, given[method])
        sha256 = str(given[method].method.args["features_sha256"])
        assert odds.row == selectivity.row == f"{method} (file {sha256[:8]})"
        assert odds.row_in_record == method
        beside = theirs[method, "odds"]
        assert odds.under == beside.under and odds.place == beside.place
        assert odds.value == pytest.approx(beside.value, abs=1e-6)
        assert set(odds.controls) == {"whole vector", "random directions"}
        assert np.isnan(selectivity.value) and selectivity.n_undefined == 12
    column = rules.column("odds")
    pair = {"mean": run_record, "mean (file 01234567)": given["mean"], "any": given["random"]}
    differences = paired_differences(column, pair)
    assert differences["mean", "mean (file 01234567)"].value == pytest.approx(0, abs=1e-6)
    assert differences["mean", "any"].low > 0


def test_the_page_says_what_is_not_told_apart_from_random_directions(
    found: tuple[Record, dict[str, Record]], tmp_path: Path
) -> None:
    _, given = found
    [table] = DirectionsPage().tables(list(given.values()))
    assert len(table.rows) == 4 and "undefined" in table.rows[1].cells[-1]
    results = run(JOB, tmp_path / "run", progress=SILENT)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Directions for small" in page and page.count("<svg") >= 2
    assert results.records[0].plot() is not None
    markdown = (tmp_path / "run" / "tables.md").read_text("utf-8")
    assert "whole vector" in markdown
    for method, said in (("random", "not told apart from"), ("mean", "more than")):
        assert said in str(DirectionsPage().sections([given[method]])[0].blocks[0])


def test_more_than_one_direction_and_chance_are_warned_of(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    said = {method: "\n".join(record.warnings) for method, record in given.items()}
    assert given["vanilla"].method.args["k"] == 48 and given["mean"].method.args["k"] == 1
    assert "vanilla exchanges up to 48 directions at a site" in said["vanilla"]
    assert all("directions at a site" not in said[name] for name in ("mean", "random"))
    assert "random is not told apart from as many random directions" in said["random"]
    assert "not told apart" not in said["mean"] + "".join(run_record.warnings)
    # A board shows them beside the number.
    odds, _ = cells_of(rules_of("gym"), given["vanilla"])
    assert "k=48" in odds.settings and odds.warnings == given["vanilla"].warnings


# --- what is refused ------------------------------------------------------------------------------


def saved(folder: Path, name: str, site: str, vector: torch.Tensor) -> str:
    Fit({load_site(site): Directions.of(vector)}).save(folder / f"{name}-0.safetensors")
    return str(folder)


def test_the_command_is_typed_with_the_folders() -> None:
    text = command_line(replace(JOB, directions=("a b", "c"), task="agr_gender"), Path("out"))
    assert text.startswith("mechassay gym evaluate 'a b' c --model truth-ioi --task agr_gender")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"directions": ("nowhere",)}, "there is no folder nowhere"),
        ({"task": "agr_gendre"}, "Did you mean 'agr_gender'"),
        ({"task": TASK}, "the task has the regions name, completion, because"),
        ({"layers": "first"}, "such as 0,3,6"),
        ({"dtype": "float8"}, "float8"),
        ({"control_labels": (" Ann",)}, "Control labels are"),
        ({"directions": JOB.directions * 2}, "are both 'mean'"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(MechassayError, match=said) as error:
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_directions_of_another_model_fail_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "wide", "wide", "resid.0@who", torch.ones(48))
    results = run(
        replace(JOB, directions=(*JOB.directions, folder)), tmp_path / "run", progress=SILENT
    )
    assert len(results.records) == 1
    [failure] = results.failures
    assert failure.error == "BadFile" and "truth-ioi has 64 numbers there" in failure.message


def test_changed_directions_are_another_plan(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(JOB.directions[0], folder)
    job = replace(JOB, directions=(str(folder),))
    run(job, tmp_path / "run", progress=SILENT)
    (folder / "mean-0-control.safetensors").unlink()
    with pytest.raises(BadUsage, match="holds a run with files"):
        run(replace(job), tmp_path / "run", progress=SILENT)
    (folder / "mean-0.safetensors").write_bytes(b"PK")
    with pytest.raises(BadFile, match="not a readable safetensors file"):
        run(replace(job), tmp_path / "other", progress=SILENT)
