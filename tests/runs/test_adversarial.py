"""Adversarial runs: what is stored is what was computed, and a run that was killed ends the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from mechassay.adversarial import blocks
from mechassay.adversarial.bounds import upper_bound
from mechassay.adversarial.values import Values
from mechassay.circuits.ablation import ablate
from mechassay.circuits.faithfulness import evaluate
from mechassay.errors import BadFile, BadUsage, MissingExtra, UnknownName
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.adversarial import AdversarialJob, AdversarialRun, cell_name, stored_records, write_report
from mechassay.runs.truths import load_named
from mechassay.truth.models import load_truth

TRUTH = "truth-ioi"
FAST: dict[str, Any] = {"n_resamples": 50, "n_permutations": 50, "worst": 3}

SLOW = """
import sys, time
import torch
from pathlib import Path
torch.set_num_threads(int(sys.argv[2]))
from mechassay.adversarial import blocks
from mechassay.runs.adversarial import AdversarialJob, AdversarialRun
from mechassay.runs.truths import load_named

# Blocks of four clean prompts of ten tokens, and time to be killed after each.
blocks.BLOCK_TOKENS = 40
fill = blocks.GridBlock.fill
blocks.GridBlock.fill = lambda *given: (fill(*given), time.sleep(0.2))[0]
run = AdversarialRun("truth-ioi", "truth-ioi", ("truth", "random@0.5"), n_clean=40, n_corrupted=6)
AdversarialJob(run, Path(sys.argv[1]), lambda: load_named("truth-ioi")).values
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return load_named(TRUTH)


@pytest.fixture(scope="module")
def job(model: Model, tmp_path_factory: pytest.TempPathFactory) -> AdversarialJob:
    run = AdversarialRun(TRUTH, TRUTH, ("truth", "random@0.5", "full"), n_clean=30, n_corrupted=20, **FAST)
    return AdversarialJob(run, tmp_path_factory.mktemp("runs") / "grid", lambda: model, progress=SILENT)


@pytest.fixture(scope="module")
def records(job: AdversarialJob) -> list[Record]:
    return job.records()


def values_of(record: Record) -> dict[str, float]:
    return {each.name: each.value for each in record.measures}


def test_the_file_holds_every_pair(job: AdversarialJob, records: list[Record]) -> None:
    table = pyarrow.parquet.read_table(job.values_file)
    assert [str(field.type) for field in table.schema] == ["uint8", "uint8", *["float"] * 4]
    assert table.column_names == ["clean", "corrupted", "empty circuit", "truth", "random@0.5", "full"]
    prompts = json.loads((job.folder.path / "prompts.json").read_text("utf-8"))
    assert (len(prompts["clean"]), len(prompts["corrupted"])) == (30, 20)
    # A few rows, from the prompts alone.
    tokenizer, n = job.model.tokenizer, 7
    assert tokenizer is not None
    rows = np.linspace(0, 599, n).astype(int).tolist()
    sides = [[tokenizer(prompts[side][table[side][row].as_py()]["text"])["input_ids"] for row in rows] for side in ("clean", "corrupted")]
    batch = Batch.from_tokens(*sides, [0] * n, [1] * n)
    for found in job.circuits:
        slow = evaluate(job.model, found.circuit, batch, "kl", progress=SILENT)
        assert [table[found.text][row].as_py() for row in rows] == pytest.approx(slow.tolist(), abs=1e-4)


def test_the_record_says_what_the_file_holds(job: AdversarialJob, records: list[Record]) -> None:
    table = pyarrow.parquet.read_table(job.values_file)
    for record in records:
        column, empty = (table[name].to_numpy() for name in (record.method.name, "empty circuit"))
        found = values_of(record)
        assert record.kind == "adversarial" and {each.n for each in record.measures} == {600}
        assert found["mean"] == pytest.approx(column.mean(dtype=float)) and found["max"] == column.max()
        assert found["99%"] == pytest.approx(np.quantile(column.astype(float), 0.99))
        assert found["above 1"] == (column > 1).mean()
        assert found["worse than empty"] == pytest.approx((column > empty + 0.02).mean())
        assert [case["value"] for case in record.curves["worst"]] == sorted(column.tolist(), reverse=True)[:3]
        assert sum(record.curves["histogram"]["circuit"]) == 600
        control = {row["name"]: row["value"] for row in record.controls["corrupted"]["summary"]}
        assert control["mean"] == pytest.approx(empty.mean(dtype=float))
        assert record.controls["random"]["edges"] == record.method.args["edges"]
        assert record.controls["random_paths"]["live"] == record.method.args["live edges"]
        assert not record.warnings and not record.controls["failures"]


def test_the_true_circuit_does_what_the_model_does(records: list[Record]) -> None:
    truth, drawn, full = map(values_of, records)
    assert truth["max"] < 0.05 and full["max"] < 1e-4
    assert drawn["mean"] > 0.5
    assert {row["name"]: row["value"] for row in records[0].controls["corrupted"]["summary"]}["mean"] > 5


def test_a_grid_of_twenty_has_no_bound_of_high_percentiles(records: list[Record]) -> None:
    found = values_of(records[1])
    assert found["bound 50%"] > found["50%"] and np.isnan(found["bound 99%"])


def test_a_finished_run_is_read(job: AdversarialJob, records: list[Record]) -> None:
    def never() -> Model:
        raise AssertionError("there is nothing to run")

    again = AdversarialJob(job.run, job.folder.path, never, progress=SILENT)
    assert [record.model_dump_json() for record in again.records()] == [record.model_dump_json() for record in records]
    assert [record.method.name for record in stored_records(job.folder)] == ["truth", "random@0.5", "full"]
    assert write_report(job.folder, records[:1]).read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_lost_record_is_made_again_from_the_file(job: AdversarialJob, records: list[Record], model: Model) -> None:
    job.folder.record_file(cell_name("random@0.5")).unlink()
    again = AdversarialJob(job.run, job.folder.path, lambda: model, progress=SILENT)
    made = again.records()[1]
    for part in ("curves", "measures", "controls"):
        assert made.model_dump_json(include={part}) == records[1].model_dump_json(include={part})


def test_another_plan_is_refused(job: AdversarialJob, model: Model) -> None:
    other = AdversarialRun(TRUTH, TRUTH, ("truth", "random@0.5", "full"), n_clean=31, n_corrupted=20, **FAST)
    with pytest.raises(BadUsage, match="holds a run with n_clean = 30; this one has 31"):
        AdversarialJob(other, job.folder.path, lambda: model)


def test_a_killed_run_ends_bit_for_bit_the_same(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, threads = tmp_path / "killed", torch.get_num_threads()
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(out), str(threads)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    store, deadline = out / "values" / "divergences.npy", time.monotonic() + 120
    while not (store.is_file() and np.isfinite(np.load(store)).mean() > 0.2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run stored nothing in time"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    kept = np.load(store)
    assert np.isfinite(kept).any() and np.isnan(kept).any() and not (out / "values.parquet").exists()

    monkeypatch.setattr(blocks, "BLOCK_TOKENS", 40)
    run = AdversarialRun(TRUTH, TRUTH, ("truth", "random@0.5"), n_clean=40, n_corrupted=6)
    jobs = {name: AdversarialJob(run, tmp_path / name, lambda: model, progress=SILENT) for name in ("killed", "undisturbed")}
    for each in jobs.values():
        assert each.values.circuits.shape == (2, 40, 6)
        assert not (each.folder.path / "values").exists()
    assert jobs["killed"].values_file.read_bytes() == jobs["undisturbed"].values_file.read_bytes()


@pytest.mark.parametrize("design", ["matched", "independent"])
def test_pairs_have_exact_bounds(design: str, model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.5",), design=design, n_clean=64, n_corrupted=64, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    (record,) = job.records()
    column = pyarrow.parquet.read_table(job.values_file)["random@0.5"].to_numpy()
    assert values_of(record)["bound 95%"] == upper_bound(column, 0.95).value
    prompts = json.loads((tmp_path / "prompts.json").read_text("utf-8"))
    own = [example.counterfactuals["other-prompt"].text for example in job.task.examples("test", limit=64)]
    assert ([each["text"] for each in prompts["corrupted"]] == own) is (design == "matched")


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_constants_have_one_value_a_clean_prompt(ablation: str, model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.8",), n_clean=40, n_corrupted=30, ablation=ablation, train_limit=20, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    (record,) = job.records()
    table = pyarrow.parquet.read_table(job.values_file)
    assert table.column_names == ["clean", "empty circuit", "random@0.8"] and table.num_rows == 40
    clean = job.pools[0].tokens
    batch = Batch.from_tokens(clean, clean, [0] * 40, [1] * 40)
    data = job.task.pairs("train", model, limit=20)
    slow = evaluate(model, job.circuits[0].circuit, ablate(model, batch, ablation, data=data, progress=SILENT), "kl", progress=SILENT)
    assert table["random@0.8"].to_numpy() == pytest.approx(slow, abs=1e-4)
    assert not record.warnings and record.task.args["design"] == "clean prompts"
    assert "corrupted_prompt" not in record.curves["worst"][0]
    write_report(job.folder, [record])


def test_the_truth_is_that_of_the_ablation(model: Model, tmp_path: Path) -> None:
    circuits = load_truth(TRUTH).circuits
    run = AdversarialRun(TRUTH, TRUTH, ("truth",), n_clean=10, n_corrupted=10, ablation="zero", **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    assert job.circuits[0].circuit == circuits["zero"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"design": "cube"}, UnknownName, "Unknown design 'cube'"),
        ({"ablation": "noise"}, UnknownName, "Unknown ablation 'noise'"),
        ({"ablation": "resample"}, BadUsage, "--design independent"),
        ({"circuits": ()}, BadUsage, "one or more different circuits; got none"),
        ({"circuits": ("full", "full")}, BadUsage, "different circuits; got full, full"),
        ({"design": "matched", "n_clean": 3}, BadUsage, "Matched pairs need pools of one size; got 3 and 1000 prompts"),
        ({"enumerate_all": True}, BadUsage, "--design matched"),
        ({"enumerate_all": True, "design": "matched"}, BadUsage, "The examples of truth-ioi cannot be enumerated"),
        ({"percentiles": (0.5, 1.0)}, BadUsage, "A percentile must be between 0 and 1, both excluded; got 1"),
        ({"percentiles": (0.5, 0.5)}, BadUsage, "Give each of percentiles once; got 0.5, 0.5"),
        ({"above": (1.0, float("nan"))}, BadUsage, "A threshold must be a number of nats, 0 or more; got nan"),
        ({"above": (float("inf"),)}, BadUsage, "got inf"),
        ({"above": (-1.0,)}, BadUsage, "got -1"),
        ({"worst": -1}, BadUsage, "worst must be 0 or more; got -1"),
        ({"n_permutations": 0}, BadUsage, "n_permutations must be 1 or more; got 0"),
        ({"task": "io"}, UnknownName, "Unknown task 'io'"),
    ],
)
def test_what_cannot_be_run_is_said_before_the_model_is_loaded(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    def never() -> Model:
        raise AssertionError("the model was loaded")

    plan: dict[str, Any] = {"model": TRUTH, "task": TRUTH, "circuits": ("full",), **changes}
    with pytest.raises(error, match=message):
        AdversarialJob(AdversarialRun(**plan), tmp_path / "out", never)
    assert not (tmp_path / "out").exists()


def test_without_pyarrow_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[parquet\]'"):
        AdversarialJob(AdversarialRun(TRUTH, TRUTH, ("full",)), tmp_path / "out", lambda: load_named(TRUTH))


def test_names_of_files_are_told_apart() -> None:
    assert cell_name("canonical_ioi@0.01") == "canonical_ioi@0.01"
    assert len({cell_name(text) for text in ("canonical:ioi", "canonical/ioi", "canonical_ioi")}) == 3
    assert "/" not in cell_name("/a/b.safetensors@5")


def test_wrong_values_break_the_run(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    job.values.circuits[0, 2, 3] += 20
    (record,) = job.records()
    assert record.controls["worst"] == {"n": 3, "n_wrong": 1}
    assert "pairs that were run again have another divergence" in record.controls["failures"][0]
    assert record.warnings == record.controls["failures"]


def test_values_that_are_too_small_break_the_run_too(model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    flat = job.values.circuits[0].reshape(-1)
    flat[np.argsort(flat)[:-3]] = 0
    (record,) = job.records()
    assert record.controls["worst"] == {"n": 3, "n_wrong": 0}
    assert record.controls["drawn"]["n"] == 10 and record.controls["drawn"]["n_wrong"] > 5 and record.controls["drawn"]["largest"] > 1
    assert record.controls["failures"]


def test_a_model_that_says_the_same_after_all_prompts_breaks_the_run(model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    clean, corrupted = job.pools
    vars(job)["pools"] = clean.select([0] * 8), clean.select([0] * 6)
    (record,) = job.records()
    assert "every circuit would pass" in record.controls["failures"][0] and len(corrupted) == 6


def test_records_of_another_file_are_refused(model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("random@0.5", "truth"), n_clean=8, n_corrupted=6, **FAST)
    job = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    job.records()
    job.folder.record_file("truth").unlink()
    changed = Values(job.values.names, job.values.circuits * 2, job.values.corrupted)
    changed.save(job.values_file)
    again = AdversarialJob(run, tmp_path, lambda: model, progress=SILENT)
    with pytest.raises(BadFile, match=r"values.parquet: is not the file that the record of random@0.5 was made of"):
        again.records()


def test_divergences_that_are_not_finite_are_refused(job: AdversarialJob, records: list[Record], tmp_path: Path) -> None:
    circuits = job.values.circuits.copy()
    circuits[1, 2, 3] = np.nan
    Values(job.values.names, circuits, job.values.corrupted).save(tmp_path / "values.parquet")
    with pytest.raises(BadFile, match="1 of its divergences are not finite"):
        Values.load(tmp_path / "values.parquet", job.values.names)


def test_a_truncated_list_of_prompts_is_written_again(model: Model, tmp_path: Path) -> None:
    run = AdversarialRun(TRUTH, TRUTH, ("truth",), n_clean=8, n_corrupted=6, **FAST)
    file, texts = tmp_path / "prompts.json", []
    for _ in range(2):
        assert AdversarialJob(run, tmp_path, lambda: model, progress=SILENT).pools
        texts.append(file.read_text("utf-8"))
        file.write_text(texts[0][:50], encoding="utf-8")
    assert texts[0] == texts[1] and len(json.loads(texts[0])["clean"]) == 8
