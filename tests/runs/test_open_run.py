"""Reopening a run: what is there is what `run` returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mechassay as ma
from mechassay.errors import BadFile
from mechassay.results.page import Report
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module", name="first")
def of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Report:
    experiment = ma.CircuitsExperiment(
        ("truth-ioi-trained",),
        methods=("eap-ig-inputs", "nap", "random"),
        train_limit=20,
        limit=40,
        random_rankings=20,
    )
    return ma.run(experiment, tmp_path_factory.mktemp("run") / "out", progress=SILENT)


def test_a_reopened_run_is_what_run_returned(first: Report) -> None:
    again = ma.open_run(first.folder)
    texts = ([x.model_dump_json() for x in run.records] for run in (again, first))
    assert next(texts) == next(texts)
    assert str(again) == str(first) and again.page == first.page and again.names == first.names
    assert again.conclusion and str(again).startswith(again.conclusion)
    assert again.columns() == first.columns()
    assert {name: table.csv() for name, table in again.tables.items()} == {
        name: table.csv() for name, table in first.tables.items()
    }
    assert len(again.tables) >= 1


def test_scores_circuits_and_curves_are_read_by_cell(first: Report) -> None:
    run = ma.open_run(str(first.folder))
    ig, nap, random = run.by_name
    assert list(run.scores) == [ig, nap, random] and list(run.curves) == [ig, nap, random]
    assert (run.scores[ig].unit, run.scores[nap].unit) == ("edge", "neuron")
    row = run.by_name[ig].table("smallest circuit").where(of="chosen").rows()[0]
    assert isinstance(row["fraction"], float)
    circuit = run.circuits[ig]
    assert circuit == run.scores[ig].top(row["fraction"], by="magnitude").pruned()
    # Its edges are those that the page speaks of: the curve has their number at this size.
    curve = run.curves[ig].where(of="result", ranking="magnitude", fraction=row["fraction"])
    assert curve.rows()[0]["kept"] == len(circuit) > 0
    assert circuit.provenance["model"] == "truth-ioi-trained"
    assert all(name in run.scores for name in run.circuits)


def test_a_run_that_is_not_finished(first: Report, tmp_path: Path) -> None:
    for file in first.folder.rglob("*"):
        if file.is_file() and file.suffix != ".html":
            place = tmp_path / file.relative_to(first.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    (*_, last) = first.by_name
    (tmp_path / "records" / f"{last}.json").unlink()
    run = ma.open_run(tmp_path)
    assert list(run.by_name) == list(first.by_name)[:-1] and run.page is None
    for file in (tmp_path / "records").rglob("*.json"):
        file.unlink()
    assert not ma.open_run(tmp_path).records and ma.open_run(tmp_path).conclusion == ""


def test_other_kinds_of_runs(tmp_path: Path) -> None:
    experiment = AccuracyExperiment(("truth-ioi",), ("truth-ioi",), limit=6)
    first = ma.run(experiment, tmp_path, progress=SILENT)
    run = ma.open_run(tmp_path)
    assert run.records == first.records and not run.scores and not run.circuits and not run.curves
    assert "Original prompts" in run.tables and "of truth-ioi, fewer than 20" in run.conclusion


@pytest.mark.parametrize("plan", ["{", "[]", '{"kind": "no such kind"}', '{"kind": "circuits"}'])
def test_a_folder_that_is_no_run_of_this_version(plan: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"not the folder of a run \(no plan\.json\)"):
        ma.open_run(tmp_path)
    with pytest.raises(BadFile, match="there is no such folder"):
        ma.open_run(tmp_path / "nowhere")
    (tmp_path / "plan.json").write_text(plan)
    with pytest.raises(BadFile) as error:
        ma.open_run(tmp_path)
    assert "\n" not in str(error.value)


def test_a_plan_with_an_unknown_field(first: Report, tmp_path: Path) -> None:
    plan = json.loads((first.folder / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "methods": ["no-such-method"]}))
    with pytest.raises(BadFile, match="of another version cannot be reopened"):
        ma.open_run(tmp_path)
