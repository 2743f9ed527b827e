"""Adversarial runs: what is stored is what was computed,
and a run that was killed ends the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from adversarial_runs import FAST, TRUTH, records_of, small_grid, study, values_of
from mechassay.circuits import EAPIGInputs
from mechassay.circuits.ablation import ablate
from mechassay.circuits.faithfulness import evaluate
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, load_model
from mechassay.pairs import Batch
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.report.nats import summary
from mechassay.report.reports import write_page
from mechassay.report.sections import broken
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.execute import run
from mechassay.runs.job import Bench, cell_name
from mechassay.stats.bounds import upper_bound
from mechassay.tasks.template import Template
from mechassay.truth.models import load_truth


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TRUTH)


@pytest.fixture(scope="module")
def job(model: Model, tmp_path_factory: pytest.TempPathFactory) -> AdversarialStudy:
    return small_grid(tmp_path_factory.mktemp("runs") / "grid", model)


@pytest.fixture(scope="module")
def records(job: AdversarialStudy) -> list[Record]:
    return records_of(job)


def test_the_file_holds_every_pair(job: AdversarialStudy, records: list[Record]) -> None:
    table = pyarrow.parquet.read_table(job.values_file)
    assert [str(field.type) for field in table.schema] == ["uint8", "uint8", *["float"] * 4]
    assert table.column_names == [
        "clean",
        "corrupted",
        "empty circuit",
        "truth",
        "random@0.5",
        "full",
    ]
    prompts = json.loads((job.folder.path / "prompts.json").read_text("utf-8"))
    assert (len(prompts["clean"]), len(prompts["corrupted"])) == (30, 20)
    # A few rows, from the prompts alone.
    tokenizer, n = job.model.tokenizer, 7
    assert tokenizer is not None
    rows = np.linspace(0, 599, n).astype(int).tolist()
    sides = [
        [tokenizer(prompts[side][table[side][row].as_py()]["text"])["input_ids"] for row in rows]
        for side in ("clean", "corrupted")
    ]
    batch = Batch.from_tokens(*sides, [0] * n, [1] * n)
    for found in job.circuits:
        slow = evaluate(job.model, found.circuit, batch, "kl", progress=SILENT)
        assert [table[found.text][row].as_py() for row in rows] == pytest.approx(
            slow.tolist(), abs=1e-4
        )


def test_the_record_says_what_the_file_holds(job: AdversarialStudy, records: list[Record]) -> None:
    table = pyarrow.parquet.read_table(job.values_file)
    for record in records:
        column, empty = (table[name].to_numpy() for name in (record.method.name, "empty circuit"))
        found = values_of(record)
        assert record.kind == "adversarial" and {each.n for each in record.measures} == {600}
        assert (
            found["mean"] == pytest.approx(column.mean(dtype=float))
            and found["max"] == column.max()
        )
        assert found["99%"] == pytest.approx(np.quantile(column.astype(float), 0.99))
        assert found["above 1"] == (column > 1).mean()
        assert found["worse than empty"] == pytest.approx((column > empty + 0.02).mean())
        worst = record.table("worst pairs").where(list="all")
        assert worst.columns["value"] == sorted(column.tolist(), reverse=True)[:3]
        assert record.table("histogram").where(range="own").numbers("circuit").sum() == 600
        control = summary(record, "control:empty")
        assert control["mean"]["value"] == pytest.approx(empty.mean(dtype=float))
        drawn = {row["of"]: row for row in record.table("random circuits").rows()}
        assert drawn["control:random"]["edges"] == record.method.args["edges"]
        assert drawn["control:random-paths"]["live"] == record.method.args["live edges"]
        assert not record.warnings and not broken(record)


def test_the_true_circuit_does_what_the_model_does(records: list[Record]) -> None:
    truth, drawn, full = map(values_of, records)
    assert truth["max"] < 0.05 and full["max"] < 1e-4
    assert drawn["mean"] > 0.5
    assert summary(records[0], "control:empty")["mean"]["value"] > 5


def test_a_grid_of_twenty_has_no_bound_of_high_percentiles(records: list[Record]) -> None:
    found = values_of(records[1])
    assert found["bound 50%"] > found["50%"] and np.isnan(found["bound 99%"])


def test_a_finished_run_is_read(
    job: AdversarialStudy, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> Model:
        raise AssertionError("there is nothing to run")

    monkeypatch.setattr(Bench, "model", never)
    results = run(job.run, job.folder.path, progress=SILENT)
    assert [record.model_dump_json() for record in results.records] == [
        record.model_dump_json() for record in records
    ]
    assert [record.method.name for record in results.records] == ["truth", "random@0.5", "full"]
    page = job.folder.path / "report.html"
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_a_lost_record_is_made_again_from_the_file(
    job: AdversarialStudy, records: list[Record], model: Model
) -> None:
    job.folder.record_file(cell_name("random@0.5")).unlink()
    again = study(job.run, job.folder.path, model)
    made = records_of(again)[1]
    for part in ("curves", "measures", "controls"):
        assert made.model_dump_json(include={part}) == records[1].model_dump_json(include={part})


def test_another_plan_is_refused(job: AdversarialStudy, model: Model) -> None:
    other = AdversarialJob(
        TRUTH, TRUTH, ("truth", "random@0.5", "full"), n_clean=31, n_corrupted=20, **FAST
    )
    with pytest.raises(BadUsage, match="holds a run with n_clean = 30; this one has 31"):
        study(other, job.folder.path, model)


@pytest.mark.parametrize("design", ["matched", "independent"])
def test_pairs_have_exact_bounds(design: str, model: Model, tmp_path: Path) -> None:
    plan = AdversarialJob(
        TRUTH, TRUTH, ("random@0.5",), design=design, n_clean=64, n_corrupted=64, **FAST
    )
    job = study(plan, tmp_path, model)
    (record,) = records_of(job)
    column = pyarrow.parquet.read_table(job.values_file)["random@0.5"].to_numpy()
    assert values_of(record)["bound 95%"] == upper_bound(column, 0.95).value
    prompts = json.loads((tmp_path / "prompts.json").read_text("utf-8"))
    own = [
        example.counterfactuals["other-prompt"].text
        for example in job.task.examples("test", limit=64)
    ]
    assert ([each["text"] for each in prompts["corrupted"]] == own) is (design == "matched")


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_constants_have_one_value_a_clean_prompt(
    ablation: str, model: Model, tmp_path: Path
) -> None:
    plan = AdversarialJob(
        TRUTH,
        TRUTH,
        ("random@0.8",),
        n_clean=40,
        n_corrupted=30,
        ablation=ablation,
        train_limit=20,
        **FAST,
    )
    job = study(plan, tmp_path, model)
    (record,) = records_of(job)
    table = pyarrow.parquet.read_table(job.values_file)
    assert table.column_names == ["clean", "empty circuit", "random@0.8"] and table.num_rows == 40
    clean = job.pools[0].tokens
    batch = Batch.from_tokens(clean, clean, [0] * 40, [1] * 40)
    data = job.task.pairs("train", model, limit=20)
    slow = evaluate(
        model,
        job.circuits[0].circuit,
        ablate(model, batch, ablation, data=data, progress=SILENT),
        "kl",
        progress=SILENT,
    )
    assert table["random@0.8"].to_numpy() == pytest.approx(slow, abs=1e-4)
    assert not record.warnings and record.task.args["design"] == "clean prompts"
    assert set(record.table("worst pairs").columns["corrupted prompt"]) == {None}
    write_page(tmp_path / "page.html", [record])


def test_the_truth_is_that_of_the_ablation(model: Model, tmp_path: Path) -> None:
    circuits = load_truth(TRUTH).circuits
    plan = AdversarialJob(
        TRUTH, TRUTH, ("truth",), n_clean=10, n_corrupted=10, ablation="zero", **FAST
    )
    job = study(plan, tmp_path, model)
    assert job.circuits[0].circuit == circuits["zero"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"design": "cube"}, UnknownName, "Unknown design 'cube'"),
        ({"ablation": "noise"}, UnknownName, "Unknown ablation 'noise'"),
        ({"ablation": "resample"}, BadUsage, "--design independent"),
        ({"circuits": ()}, BadUsage, "one or more different circuits; got none"),
        ({"circuits": ("full", "full")}, BadUsage, "different circuits; got full, full"),
        (
            {"design": "matched", "n_clean": 3, "n_corrupted": 1000},
            BadUsage,
            "Matched pairs need pools of one size; got 3 and 1000 prompts",
        ),
        ({"enumerate_all": True, "design": "grid"}, BadUsage, "--design matched"),
        (
            {"enumerate_all": True, "design": "matched"},
            BadUsage,
            "The examples of truth-ioi cannot be enumerated",
        ),
        ({"worst": -1}, BadUsage, "worst must be 0 or more; got -1"),
        ({"n_permutations": 0}, BadUsage, "n_permutations must be 1 or more; got 0"),
        ({"task": "io"}, UnknownName, "Unknown task 'io'"),
    ],
)
def test_what_cannot_be_run_is_said_before_the_model_is_loaded(
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> Model:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Bench, "model", never)
    plan: dict[str, Any] = {"model": TRUTH, "task": TRUTH, "circuits": ("full",), **changes}
    with pytest.raises(error, match=message):
        run(AdversarialJob(**plan), tmp_path / "out", progress=SILENT)
    assert not (tmp_path / "out").exists()


def test_names_of_files_are_told_apart() -> None:
    assert cell_name("canonical_ioi@0.01") == "canonical_ioi@0.01"
    assert (
        len({cell_name(text) for text in ("canonical:ioi", "canonical/ioi", "canonical_ioi")}) == 3
    )
    assert "/" not in cell_name("/a/b.safetensors@5")


def own_task(first: str = "Ann") -> Template:
    """A task of one's own for the ground truth: ten of its words."""
    names = ("Bob", "Cid", "Dan", "Eve", "Fay")
    rows = [
        {"one": first, "other": name, "filler": filler}
        for name in names
        for filler in ("so", "and", ",")
    ]
    return Template("own", "then {one} {other} {filler} so so so . {one} to", " {other}", rows)


def test_a_task_of_ones_own_is_its_plan(model: Model, tmp_path: Path) -> None:
    job = AdversarialJob(
        TRUTH, "own", ("truth", "eap@9"), n_clean=2, n_corrupted=1, train_limit=4, **FAST
    )
    given: dict[str, Any] = {"models": {TRUTH: model}, "progress": SILENT}
    truth, found = run(job, tmp_path, tasks={"own": own_task()}, **given).records
    assert values_of(truth)["max"] < 0.05 and truth.task.name == found.task.name == "own"
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert (
        plan["task"] == plan["task_settings"]["name"] == "own"
        and plan["task_settings"]["version"] == 1
        and plan["task_settings"]["settings"]["sha256"]
    )
    # The same task goes on; one with other rows is another task.
    run(job, tmp_path, tasks={"own": own_task()}, **given)
    with pytest.raises(BadUsage, match="holds a run with task_settings"):
        run(job, tmp_path, tasks={"own": own_task("Eve")}, **given)


@pytest.mark.parametrize("pairing", ["random", "same-template"])
def test_circuits_are_found_on_the_pairs_and_by_the_objective_asked_for(
    model: Model, tmp_path: Path, pairing: str
) -> None:
    plan = AdversarialJob(
        TRUTH,
        TRUTH,
        ("eap-ig-inputs@9",),
        objective="kl",
        pairing=pairing,
        n_clean=4,
        n_corrupted=3,
        train_limit=20,
        **FAST,
    )
    job = study(plan, tmp_path, model)
    (record,) = records_of(job)
    assert record.method.args["objective"] == "kl" and record.method.args["pairing"] == pairing
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert (plan["objective"], plan["pairing"]) == ("kl", pairing)
    assert f"pairing={pairing}" in write_page(tmp_path / "page.html", [record]).read_text("utf-8")
    # The scores are those of the method on the pairs made anew by hand.
    train = job.finder.train
    pairs = job.task.pairs("train", model, limit=20)
    plain = model.batch(pairs)
    assert (
        torch.equal(train.clean, plain.clean)
        and not (train.counterfactual == plain.counterfactual).all(dim=1).any()
    )
    assert sorted(train.counterfactual.tolist()) == sorted(plain.counterfactual.tolist())
    slow = EAPIGInputs().score(model, train, "kl", progress=SILENT).top(9, by="magnitude").pruned()
    assert job.circuits[0].circuit == slow or torch.equal(job.circuits[0].circuit.edges, slow.edges)
