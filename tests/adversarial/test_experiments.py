"""Adversarial runs: what is stored is what was computed,
and a run that was killed ends the same.

Adversarial runs that are killed, damaged or wrong: they end the same, or say what is wrong.

Adversarial runs on a part of the pairs: of one template, of one value, or none at all.

Search inputs_of: a task by its name or itself, prompts without fields,
and circuits found on other pairs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from helpers.adversarial import FAST, adversarial_inputs, records_of, small_grid, values_of
from helpers.adversarial import TRUTH as adversarial_TRUTH
from helpers.adversarial import TRUTH as adversarial_faults_TRUTH
from helpers.adversarial import TRUTH as adversarial_restricted_TRUTH
from helpers.tiny_models import with_words
from mechassay.adversarial import evaluation as batching
from mechassay.adversarial.divergence import DivergenceFile
from mechassay.adversarial.experiments import AdversarialExperiment, SearchExperiment
from mechassay.adversarial.field_tables import halves
from mechassay.adversarial.inputs import AdversarialInputs
from mechassay.adversarial.pages import BOUND
from mechassay.adversarial.pools import draw_pools
from mechassay.circuits import EAPIGInputs
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.errors import BadFile, BadUsage, MissingExtra, UnknownName
from mechassay.models.model import Model, load_model, make_model
from mechassay.prompts.batch import Batch
from mechassay.results.page import Report
from mechassay.results.records import Check, Record
from mechassay.results.report import write_page
from mechassay.results.sections import failed_checks
from mechassay.results.text import summary
from mechassay.runs.cells import cell_name
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.stats.bounds import upper_bound
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.tasks.template import Template
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(adversarial_TRUTH)


@pytest.fixture(scope="module")
def inputs(model: Model, tmp_path_factory: pytest.TempPathFactory) -> AdversarialInputs:
    return small_grid(tmp_path_factory.mktemp("runs") / "grid", model)


@pytest.fixture(scope="module")
def records(inputs: AdversarialInputs) -> list[Record]:
    return records_of(inputs)


def test_the_file_holds_every_pair(inputs: AdversarialInputs, records: list[Record]) -> None:
    table = pyarrow.parquet.read_table(inputs.values_file)
    assert [str(field.type) for field in table.schema] == ["uint8", "uint8", *["float"] * 4]
    assert table.column_names == [
        "clean",
        "corrupted",
        "empty circuit",
        "truth",
        "random@0.5",
        "full",
    ]
    prompts = json.loads((inputs.folder.path / "prompts.json").read_text("utf-8"))
    assert (len(prompts["clean"]), len(prompts["corrupted"])) == (30, 20)
    # A few rows, from the prompts alone.
    tokenizer, n = inputs.model.tokenizer, 7
    assert tokenizer is not None
    rows = np.linspace(0, 599, n).astype(int).tolist()
    sides = [
        [tokenizer(prompts[side][table[side][row].as_py()]["text"])["input_ids"] for row in rows]
        for side in ("clean", "corrupted")
    ]
    batch = Batch.from_tokens(*sides, [0] * n, [1] * n)
    for found in inputs.circuits:
        slow = evaluate(inputs.model, found.circuit, batch, "kl", progress=SILENT)
        assert [table[found.text][row].as_py() for row in rows] == pytest.approx(
            slow.tolist(), abs=1e-4
        )


def test_the_record_says_what_the_file_holds(
    inputs: AdversarialInputs, records: list[Record]
) -> None:
    table = pyarrow.parquet.read_table(inputs.values_file)
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
        assert not record.warnings and not failed_checks(record)


def test_the_true_circuit_does_what_the_model_does(records: list[Record]) -> None:
    truth, drawn, full = map(values_of, records)
    assert truth["max"] < 0.05 and full["max"] < 1e-4
    assert drawn["mean"] > 0.5
    assert summary(records[0], "control:empty")["mean"]["value"] > 5


def test_a_grid_of_twenty_has_no_bound_of_high_percentiles(records: list[Record]) -> None:
    found = values_of(records[1])
    assert found["bound 50%"] > found["50%"] and np.isnan(found["bound 99%"])


def test_a_finished_run_is_read(
    inputs: AdversarialInputs, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> Model:
        raise AssertionError("there is nothing to run")

    monkeypatch.setattr(Worker, "model", never)
    results = run(inputs.run, inputs.folder.path, progress=SILENT)
    assert [record.model_dump_json() for record in results.records] == [
        record.model_dump_json() for record in records
    ]
    assert [record.method.name for record in results.records] == ["truth", "random@0.5", "full"]
    page = inputs.folder.path / "report.html"
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_a_lost_record_is_made_again_from_the_file(
    inputs: AdversarialInputs, records: list[Record], model: Model
) -> None:
    inputs.folder.record_file(cell_name("random@0.5")).unlink()
    again = adversarial_inputs(inputs.run, inputs.folder.path, model)
    made = records_of(again)[1]
    for part in ("curves", "measures", "controls"):
        assert made.model_dump_json(include={part}) == records[1].model_dump_json(include={part})


def test_another_plan_is_refused(inputs: AdversarialInputs, model: Model) -> None:
    other = AdversarialExperiment(
        adversarial_TRUTH,
        adversarial_TRUTH,
        ("truth", "random@0.5", "full"),
        n_clean=31,
        n_corrupted=20,
        **FAST,
    )
    with pytest.raises(BadUsage, match="holds a run with n_clean = 30; this one has 31"):
        adversarial_inputs(other, inputs.folder.path, model)


@pytest.mark.parametrize("design", ["matched", "independent"])
def test_pairs_have_exact_bounds(design: str, model: Model, tmp_path: Path) -> None:
    plan = AdversarialExperiment(
        adversarial_TRUTH,
        adversarial_TRUTH,
        ("random@0.5",),
        design=design,
        n_clean=64,
        n_corrupted=64,
        **FAST,
    )
    inputs = adversarial_inputs(plan, tmp_path, model)
    (record,) = records_of(inputs)
    column = pyarrow.parquet.read_table(inputs.values_file)["random@0.5"].to_numpy()
    assert values_of(record)["bound 95%"] == upper_bound(column, 0.95).value
    prompts = json.loads((tmp_path / "prompts.json").read_text("utf-8"))
    own = [
        example.counterfactuals["other-prompt"].text
        for example in inputs.task.examples("test", limit=64)
    ]
    assert ([each["text"] for each in prompts["corrupted"]] == own) is (design == "matched")


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_constants_have_one_value_a_clean_prompt(
    ablation: str, model: Model, tmp_path: Path
) -> None:
    plan = AdversarialExperiment(
        adversarial_TRUTH,
        adversarial_TRUTH,
        ("random@0.8",),
        n_clean=40,
        n_corrupted=30,
        ablation=ablation,
        train_limit=20,
        **FAST,
    )
    inputs = adversarial_inputs(plan, tmp_path, model)
    (record,) = records_of(inputs)
    table = pyarrow.parquet.read_table(inputs.values_file)
    assert table.column_names == ["clean", "empty circuit", "random@0.8"] and table.num_rows == 40
    clean = inputs.pools[0].tokens
    batch = Batch.from_tokens(clean, clean, [0] * 40, [1] * 40)
    data = inputs.task.pairs("train", model, limit=20)
    slow = evaluate(
        model,
        inputs.circuits[0].circuit,
        ablate(model, batch, ablation, data=data, progress=SILENT),
        "kl",
        progress=SILENT,
    )
    assert table["random@0.8"].to_numpy() == pytest.approx(slow, abs=1e-4)
    assert not record.warnings and record.task.args["design"] == "clean prompts"
    assert set(record.table("worst pairs").columns["corrupted prompt"]) == {None}
    write_page(tmp_path / "page.html", Report([record]))


def test_the_truth_is_that_of_the_ablation(model: Model, tmp_path: Path) -> None:
    circuits = load_truth(adversarial_TRUTH).circuits
    plan = AdversarialExperiment(
        adversarial_TRUTH,
        adversarial_TRUTH,
        ("truth",),
        n_clean=10,
        n_corrupted=10,
        ablation="zero",
        **FAST,
    )
    inputs = adversarial_inputs(plan, tmp_path, model)
    assert inputs.circuits[0].circuit == circuits["zero"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"design": "cube"}, UnknownName, "Unknown design of adversarial run 'cube'"),
        ({"ablation": "noise"}, UnknownName, "Unknown ablation 'noise'"),
        ({"ablation": "resample"}, BadUsage, "--design independent"),
        ({"circuits": ()}, BadUsage, "one or more circuits; got none"),
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

    monkeypatch.setattr(Worker, "model", never)
    plan: dict[str, Any] = {
        "model": adversarial_TRUTH,
        "task": adversarial_TRUTH,
        "circuits": ("full",),
        **changes,
    }
    with pytest.raises(error, match=message):
        run(AdversarialExperiment(**plan), tmp_path / "out", progress=SILENT)
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
    inputs = AdversarialExperiment(
        adversarial_TRUTH,
        "own",
        ("truth", "eap@9"),
        n_clean=2,
        n_corrupted=1,
        train_limit=4,
        **FAST,
    )
    given: dict[str, Any] = {"models": {adversarial_TRUTH: model}, "progress": SILENT}
    truth, found = run(inputs, tmp_path, tasks={"own": own_task()}, **given).records
    assert values_of(truth)["max"] < 0.05 and truth.task.name == found.task.name == "own"
    # The same task goes on; one with other rows is another task.
    run(inputs, tmp_path, tasks={"own": own_task()}, **given)
    with pytest.raises(BadUsage, match="own has other content than on"):
        run(inputs, tmp_path, tasks={"own": own_task("Eve")}, **given)


@pytest.mark.parametrize("pairing", ["random", "same-template"])
def test_circuits_are_found_on_the_pairs_and_by_the_objective_asked_for(
    model: Model, tmp_path: Path, pairing: str
) -> None:
    plan = AdversarialExperiment(
        adversarial_TRUTH,
        adversarial_TRUTH,
        ("eap-ig-inputs@9",),
        objective="kl",
        pairing=pairing,
        n_clean=4,
        n_corrupted=3,
        train_limit=20,
        **FAST,
    )
    inputs = adversarial_inputs(plan, tmp_path, model)
    (record,) = records_of(inputs)
    assert record.method.args["objective"] == "kl" and record.method.args["pairing"] == pairing
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert (plan["objective"], plan["pairing"]) == ("kl", pairing)
    assert f"pairing={pairing}" in write_page(tmp_path / "page.html", Report([record])).read_text(
        "utf-8"
    )
    # The scores are those of the method on the pairs made anew by hand.
    train = inputs.finder.train
    pairs = inputs.task.pairs("train", model, limit=20)
    plain = model.batch(pairs)
    assert (
        torch.equal(train.clean, plain.clean)
        and not (train.counterfactual == plain.counterfactual).all(dim=1).any()
    )
    assert sorted(train.counterfactual.tolist()) == sorted(plain.counterfactual.tolist())
    slow = EAPIGInputs().score(model, train, "kl", progress=SILENT).top(9, by="magnitude").pruned()
    assert inputs.circuits[0].circuit == slow or torch.equal(
        inputs.circuits[0].circuit.edges, slow.edges
    )


def alone(record: Record, which: str) -> Check:
    (found,) = (check for check in record.checks if check.name.startswith(f"{which} pairs"))
    return found


SLOW = """
import sys, time
import torch
from pathlib import Path
torch.set_num_threads(int(sys.argv[2]))
from mechassay.adversarial import evaluation as batching
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.adversarial.inputs import AdversarialInputs
from mechassay.runs.run import opened

# Blocks of four clean prompts of ten tokens, and time to be killed after each.
batching.BLOCK_TOKENS = 40
fill = batching.GridBlock.fill
batching.GridBlock.fill = lambda *given: (fill(*given), time.sleep(0.2))[0]
about = {"n_clean": 40, "n_corrupted": 6}
run = AdversarialExperiment("truth-ioi", "truth-ioi", ("truth", "random@0.5"), **about)
AdversarialInputs(run, opened(run, Path(sys.argv[1]))).values
"""


@pytest.mark.guard
def test_a_killed_run_ends_bit_for_bit_the_same(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, threads = tmp_path / "killed", torch.get_num_threads()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(out), str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    store, deadline = out / "values" / "divergences.npy", time.monotonic() + 120
    while not (store.is_file() and np.isfinite(np.load(store)).mean() > 0.2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run stored nothing in time"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    kept = np.load(store)
    assert (
        np.isfinite(kept).any() and np.isnan(kept).any() and not (out / "values.parquet").exists()
    )

    monkeypatch.setattr(batching, "BLOCK_TOKENS", 40)
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("truth", "random@0.5"),
        n_clean=40,
        n_corrupted=6,
    )
    inputs_of = {
        name: adversarial_inputs(run, tmp_path / name, model) for name in ("killed", "undisturbed")
    }
    for each in inputs_of.values():
        assert each.values.circuits.shape == (2, 40, 6)
        assert not (each.folder.path / "values").exists()
    assert (
        inputs_of["killed"].values_file.read_bytes()
        == inputs_of["undisturbed"].values_file.read_bytes()
    )


def test_without_pyarrow_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[parquet\]'"):
        adversarial_inputs(
            AdversarialExperiment(adversarial_faults_TRUTH, adversarial_faults_TRUTH, ("full",)),
            tmp_path / "out",
            load_model(adversarial_faults_TRUTH),
        )


def test_wrong_values_break_the_run(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("random@0.5",),
        n_clean=8,
        n_corrupted=6,
        **FAST,
    )
    inputs = adversarial_inputs(run, tmp_path, model)
    inputs.values.circuits[0, 2, 3] += 20
    (record,) = records_of(inputs)
    worst = alone(record, "worst")
    assert worst.n >= 3 and worst.n_wrong == 1
    assert "pairs that were run again have another divergence" in failed_checks(record)[0]
    assert record.warnings == failed_checks(record)


def test_values_that_are_too_small_break_the_run_too(model: Model, tmp_path: Path) -> None:
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("random@0.5",),
        n_clean=8,
        n_corrupted=6,
        **FAST,
    )
    inputs = adversarial_inputs(run, tmp_path, model)
    flat = inputs.values.circuits[0].reshape(-1)
    flat[np.argsort(flat)[:-3]] = 0
    (record,) = records_of(inputs)
    # The largest three are right; of pairs without a prompt twice, more are looked at.
    worst, drawn = alone(record, "worst"), alone(record, "random")
    assert worst.n >= 3 and worst.n_wrong <= worst.n - 3
    assert drawn.n == 10 and drawn.n_wrong > 5 and drawn.largest > 1
    assert failed_checks(record)


def test_a_model_that_says_the_same_after_all_prompts_breaks_the_run(
    model: Model, tmp_path: Path
) -> None:
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("random@0.5",),
        n_clean=8,
        n_corrupted=6,
        **FAST,
    )
    inputs = adversarial_inputs(run, tmp_path, model)
    clean, corrupted = inputs.pools
    vars(inputs)["drawn"] = clean.select([0] * 8), clean.select([0] * 6), None
    (record,) = records_of(inputs)
    assert "every circuit would pass" in failed_checks(record)[0] and len(corrupted) == 6


def test_records_of_another_file_are_refused(model: Model, tmp_path: Path) -> None:
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("random@0.5", "truth"),
        n_clean=8,
        n_corrupted=6,
        **FAST,
    )
    inputs = adversarial_inputs(run, tmp_path, model)
    records_of(inputs)
    inputs.folder.record_file("truth").unlink()
    changed = DivergenceFile(
        inputs.values.names, inputs.values.circuits * 2, inputs.values.corrupted
    )
    changed.save(inputs.values_file)
    with pytest.raises(
        BadFile, match=r"values.parquet: is not the file that the record of random@0.5 was made of"
    ):
        adversarial_inputs(run, tmp_path, model)


@pytest.mark.slow
def test_divergences_that_are_not_finite_are_refused(
    inputs: AdversarialInputs, records: list[Record], tmp_path: Path
) -> None:
    circuits = inputs.values.circuits.copy()
    circuits[1, 2, 3] = np.nan
    DivergenceFile(inputs.values.names, circuits, inputs.values.corrupted).save(
        tmp_path / "values.parquet"
    )
    with pytest.raises(BadFile, match="1 of its divergences are not finite"):
        DivergenceFile.load(tmp_path / "values.parquet", inputs.values.names)


def test_a_truncated_list_of_prompts_is_written_again(model: Model, tmp_path: Path) -> None:
    run = AdversarialExperiment(
        adversarial_faults_TRUTH,
        adversarial_faults_TRUTH,
        ("truth",),
        n_clean=8,
        n_corrupted=6,
        **FAST,
    )
    file, texts = tmp_path / "prompts.json", []
    for _ in range(2):
        assert adversarial_inputs(run, tmp_path, model).pools
        texts.append(file.read_text("utf-8"))
        file.write_text(texts[0][:50], encoding="utf-8")
    assert texts[0] == texts[1] and len(json.loads(texts[0])["clean"]) == 8


IOI_READER: dict[str, Any] = {
    "counterfactual": "abc_counterfactual",
    "n_clean": 12,
    "n_corrupted": 10,
    **FAST,
}


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.mark.slow
def test_a_grid_of_one_template_runs_nothing_else(reader: Model, tmp_path: Path) -> None:
    plans = {
        same: AdversarialExperiment(
            "reader", "ioi", ("random@0.5",), same=same, controls=3, **IOI_READER
        )
        for same in ((), ("template",))
    }
    inputs_of = {
        same: adversarial_inputs(plan, tmp_path / f"{len(same)}", reader)
        for same, plan in plans.items()
    }
    (whole,), (some,) = (records_of(inputs) for inputs in inputs_of.values())
    inputs = inputs_of["template",]
    part, table = inputs.part, pyarrow.parquet.read_table(inputs.values_file)
    assert (
        part is not None
        and table.num_rows == part.n_values == some.measures[0].n < 120 == whole.measures[0].n
    )
    prompts = json.loads((inputs.folder.path / "prompts.json").read_text("utf-8"))
    templates = [pool.labels("template") for pool in inputs.pools]
    assert [len(prompts[side]) for side in ("clean", "corrupted")] == [
        len(pool) for pool in inputs.pools
    ]
    assert templates[0] is not None and templates[1] is not None
    rows, columns = (table[side].to_pylist() for side in ("clean", "corrupted"))
    assert [templates[0][row] for row in rows] == [templates[1][column] for column in columns]
    # The split of the whole grid says of the same pairs what the restricted run says of all of its
    # own.
    same, different = halves(whole)
    found = values_of(some)
    assert (
        (same["pairs"], different["pairs"]) == ("same", "different")
        and same["n"] + different["n"] == 120
        and same["n"] == part.n_values
    )
    assert same["result", "mean"][0] == pytest.approx(found["mean"], abs=1e-5)
    assert same["result", "max"][0] == pytest.approx(found["max"], abs=1e-5)
    assert [half["pairs"] for half in halves(some)] == ["same"]
    assert some.task.args["same"] == "template" and whole.task.args.get("same") is None
    assert max(some.table("random circuits").numbers("pairs")) <= 9
    assert all(check.n <= 9 for check in some.checks if check.name.endswith("circuit"))
    bins = some.table("histogram").where(range="own")
    assert not failed_checks(some) and bins.numbers("circuit").sum() == part.n_values
    page = write_page(
        inputs.folder.path / "page.html", Report([some]), kind="adversarial"
    ).read_text("utf-8")
    assert (
        "those that agree in template" in page
        and "Both prompts of every pair have the same of" in page
    )
    # Labels are compared among prompts with the same partners: the template itself cannot be.
    labels = some.table("labels").rows()
    templates_compared = [x["compared"] for x in labels if str(x["field"]).endswith("template")]
    assert labels and not any(templates_compared)
    assert "By template" in write_page(
        inputs_of[()].folder.path / "page.html", Report([whole]), kind="adversarial"
    ).read_text("utf-8")


def test_pairs_that_all_agree_are_a_grid_like_any_other(model: Model, tmp_path: Path) -> None:
    plain, same = (
        adversarial_inputs(
            AdversarialExperiment(
                adversarial_restricted_TRUTH,
                adversarial_restricted_TRUTH,
                ("random@0.5",),
                same=fields,
                n_clean=9,
                n_corrupted=8,
                **FAST,
            ),
            tmp_path / f"{len(fields)}",
            model,
        )
        for fields in ((), ("template",))
    )
    assert same.part is None
    (one,), (other,) = records_of(plain), records_of(same)
    assert one.model_dump_json(include={"curves", "measures"}) == other.model_dump_json(
        include={"curves", "measures"}
    )


def test_where_is_of_all_prompts(reader: Model, tmp_path: Path) -> None:
    place = draw_pools(reader, load_task("ioi"), 1, 1)[0].prompts[0].part("place")
    run = AdversarialExperiment(
        "reader",
        "ioi",
        ("random@0.5",),
        where=(f"place={place}",),
        **{**IOI_READER, "n_clean": 3, "n_corrupted": 2},
    )
    inputs = adversarial_inputs(run, tmp_path, reader)
    (record,) = records_of(inputs)
    assert {prompt.part("place") for pool in inputs.pools for prompt in pool.prompts} == {place}
    assert record.task.args["where"] == f"place={place}" and record.measures[0].n == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"same": ("template",), "design": "matched"}, "--same chooses among the pairs of a grid"),
        ({"same": ("template",), "ablation": "zero"}, "--same chooses among the pairs of a grid"),
        ({"same": ("template", "template")}, "--same takes FIELD"),
        ({"where": ("object",)}, "--where takes FIELD=VALUE"),
        (
            {"where": ("object=x",), "design": "matched", "enumerate_all": True},
            "--enumerate takes all",
        ),
        ({"pairing": "random"}, "of circuits that a method finds"),
        ({"objective": "kl"}, "of circuits that a method finds"),
        (
            {"circuits": ("eap@9",), "pairing": "random", "ablation": "mean"},
            "Only counterfactual ablation pairs prompts",
        ),
        ({"controls": 0}, "controls must be 1 or more"),
    ],
)
def test_restrictions_that_no_design_has_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        AdversarialExperiment(
            **{
                "model": adversarial_restricted_TRUTH,
                "task": adversarial_restricted_TRUTH,
                "circuits": ("truth",),
                **settings,
            }
        ).refuse()
    with pytest.raises(UnknownName, match="pairing"):
        AdversarialExperiment(
            adversarial_restricted_TRUTH,
            adversarial_restricted_TRUTH,
            ("eap@9",),
            pairing="unmatched",
        ).refuse()


def test_prompts_without_fields_are_said(model: Model, tmp_path: Path) -> None:
    names = (("Ann", "Bob"), ("Cid", "Dan"), ("Eve", "Fay"), ("Ann", "Dan"))
    text = "then {} {} so so so so . {} to"
    rows = [
        json.dumps(
            {
                "clean": text.format(a, b, a),
                "counterfactual": text.format(b, a, b),
                "answer": f" {b}",
                "foil": f" {a}",
                "split": "test",
            }
        )
        for a, b in names
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    run = AdversarialExperiment(
        adversarial_restricted_TRUTH, str(file), ("truth",), n_clean=2, n_corrupted=2, **FAST
    )
    (record,) = records_of(adversarial_inputs(run, tmp_path / "out", model))
    assert any("have no fields: no label can be compared" in text for text in record.warnings)
    assert record.task.args["templates"] is None


TRUTH = "truth-ioi"
JOB = SearchExperiment(
    TRUTH,
    TRUTH,
    ("eap-ig-inputs@4",),
    n_clean=6,
    n_corrupted=6,
    budget=60,
    starts=1,
    restarts=0,
    compare=False,
    train_limit=8,
)


def searched(
    inputs: SearchExperiment, folder: Path, model: Model, task: Task | None = None
) -> Record:
    tasks = {} if task is None else {inputs.task: task}
    results = run(inputs, folder, models={TRUTH: model}, tasks=tasks, progress=SILENT)
    (record,) = results.records
    return record


def test_a_task_is_searched_like_its_name(model: Model, tmp_path: Path) -> None:
    named = searched(JOB, tmp_path / "name", model)
    given = searched(JOB, tmp_path / "itself", model, load_task(TRUTH))
    assert named.tables == given.tables and not named.warnings and not given.warnings
    assert len(named.table("steps").where(climb=1)) > 1
    assert named.measure(BOUND, "control:random") is None


def test_a_task_of_ones_own(model: Model, tmp_path: Path) -> None:
    rows = [
        {"one": "Ann", "other": name, "filler": filler}
        for name in ("Bob", "Cid", "Dan", "Eve")
        for filler in ("so", "and", ",", ".")
    ]
    own = Template("own", "then {one} {other} {filler} so so so . {one} to", " {other}", rows)
    inputs = replace(JOB, task="own", n_clean=2, n_corrupted=1, train_limit=3)
    record = searched(inputs, tmp_path, model, own)
    first = {str(text).split()[1] for text in record.table("climbs").columns["clean"]}
    assert not record.warnings and first == {"Ann"}
    assert record.task.name == "own" and record.task.args["sha256"]


def test_no_fields_are_said_in_a_line(model: Model, tmp_path: Path) -> None:
    text = "then {} {} so so so so . {} to"
    pairs = [("Ann", "Bob"), ("Cid", "Dan"), ("Eve", "Fay"), ("Ann", "Dan")]
    rows = [
        {
            "clean": text.format(a, b, a),
            "counterfactual": text.format(b, a, b),
            "answer": f" {b}",
            "foil": f" {a}",
        }
        for a, b in pairs
    ]
    file = tmp_path / "own.jsonl"
    file.write_text(
        "\n".join(json.dumps({**row, "split": "test"}) for row in rows), encoding="utf-8"
    )
    inputs = replace(JOB, task=str(file), circuits=("random@0.5",), n_clean=2, n_corrupted=2)
    record = searched(inputs, tmp_path / "out", model)
    assert record.warnings[0].endswith(
        "have no fields, so nothing was changed: the search compared pairs of the prompts as they"
        " are."
    )
    assert set(record.table("climbs").columns["changes"]) == {0}


def test_the_circuit_may_be_found_on_other_pairs(model: Model, tmp_path: Path) -> None:
    for pairing in ("matched", "same-template"):
        inputs = replace(JOB, objective="kl", pairing=pairing)
        record = searched(inputs, tmp_path / pairing, model)
        assert record.value(BOUND) > 0
        about = record.specs["search"].args
        assert (about["objective"], about["pairing"]) == ("kl", pairing)


def test_what_is_wrong_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    for inputs, error in (
        (replace(JOB, circuits=("eap",)), BadUsage),
        (replace(JOB, circuits=()), BadUsage),
        (replace(JOB, pairing="unmatched"), UnknownName),
        (replace(JOB, objective="nope"), UnknownName),
        (replace(JOB, task="nope"), UnknownName),
    ):
        with pytest.raises(error):
            run(replace(inputs, model="no such model"), tmp_path / "out", progress=SILENT)
        assert not (tmp_path / "out").exists()
