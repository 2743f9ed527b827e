"""Adversarial runs that are killed, damaged or wrong: they end the same, or say what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from adversarial_runs import FAST, TRUTH, records_of, small_grid, study
from mechassay.adversarial import batching
from mechassay.adversarial.divergence import DivergenceFile
from mechassay.errors import BadFile, MissingExtra
from mechassay.models.model import Model, load_model
from mechassay.records import Check, Record
from mechassay.report.sections import broken
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy


def alone(record: Record, which: str) -> Check:
    (found,) = (check for check in record.checks if check.name.startswith(f"{which} pairs"))
    return found


SLOW = """
import sys, time
import torch
from pathlib import Path
torch.set_num_threads(int(sys.argv[2]))
from mechassay.adversarial import batching
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.execute import prepare

# Blocks of four clean prompts of ten tokens, and time to be killed after each.
batching.BLOCK_TOKENS = 40
fill = batching.GridBlock.fill
batching.GridBlock.fill = lambda *given: (fill(*given), time.sleep(0.2))[0]
run = AdversarialJob("truth-ioi", "truth-ioi", ("truth", "random@0.5"), n_clean=40, n_corrupted=6)
AdversarialStudy(run, prepare(run, Path(sys.argv[1]))).values
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TRUTH)


@pytest.fixture(scope="module")
def job(model: Model, tmp_path_factory: pytest.TempPathFactory) -> AdversarialStudy:
    return small_grid(tmp_path_factory.mktemp("runs") / "grid", model)


@pytest.fixture(scope="module")
def records(job: AdversarialStudy) -> list[Record]:
    return records_of(job)


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
    run = AdversarialJob(TRUTH, TRUTH, ("truth", "random@0.5"), n_clean=40, n_corrupted=6)
    jobs = {name: study(run, tmp_path / name, model) for name in ("killed", "undisturbed")}
    for each in jobs.values():
        assert each.values.circuits.shape == (2, 40, 6)
        assert not (each.folder.path / "values").exists()
    assert jobs["killed"].values_file.read_bytes() == jobs["undisturbed"].values_file.read_bytes()


def test_without_pyarrow_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[parquet\]'"):
        study(AdversarialJob(TRUTH, TRUTH, ("full",)), tmp_path / "out", load_model(TRUTH))


def test_wrong_values_break_the_run(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = AdversarialJob(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = study(run, tmp_path, model)
    job.values.circuits[0, 2, 3] += 20
    (record,) = records_of(job)
    worst = alone(record, "worst")
    assert worst.n >= 3 and worst.n_wrong == 1
    assert "pairs that were run again have another divergence" in broken(record)[0]
    assert record.warnings == broken(record)


def test_values_that_are_too_small_break_the_run_too(model: Model, tmp_path: Path) -> None:
    run = AdversarialJob(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = study(run, tmp_path, model)
    flat = job.values.circuits[0].reshape(-1)
    flat[np.argsort(flat)[:-3]] = 0
    (record,) = records_of(job)
    # The largest three are right; of pairs without a prompt twice, more are looked at.
    worst, drawn = alone(record, "worst"), alone(record, "random")
    assert worst.n >= 3 and worst.n_wrong <= worst.n - 3
    assert drawn.n == 10 and drawn.n_wrong > 5 and drawn.largest > 1
    assert broken(record)


def test_a_model_that_says_the_same_after_all_prompts_breaks_the_run(
    model: Model, tmp_path: Path
) -> None:
    run = AdversarialJob(TRUTH, TRUTH, ("random@0.5",), n_clean=8, n_corrupted=6, **FAST)
    job = study(run, tmp_path, model)
    clean, corrupted = job.pools
    vars(job)["drawn"] = clean.select([0] * 8), clean.select([0] * 6), None
    (record,) = records_of(job)
    assert "every circuit would pass" in broken(record)[0] and len(corrupted) == 6


def test_records_of_another_file_are_refused(model: Model, tmp_path: Path) -> None:
    run = AdversarialJob(TRUTH, TRUTH, ("random@0.5", "truth"), n_clean=8, n_corrupted=6, **FAST)
    job = study(run, tmp_path, model)
    records_of(job)
    job.folder.record_file("truth").unlink()
    changed = DivergenceFile(job.values.names, job.values.circuits * 2, job.values.corrupted)
    changed.save(job.values_file)
    with pytest.raises(
        BadFile, match=r"values.parquet: is not the file that the record of random@0.5 was made of"
    ):
        study(run, tmp_path, model)


@pytest.mark.slow
def test_divergences_that_are_not_finite_are_refused(
    job: AdversarialStudy, records: list[Record], tmp_path: Path
) -> None:
    circuits = job.values.circuits.copy()
    circuits[1, 2, 3] = np.nan
    DivergenceFile(job.values.names, circuits, job.values.corrupted).save(
        tmp_path / "values.parquet"
    )
    with pytest.raises(BadFile, match="1 of its divergences are not finite"):
        DivergenceFile.load(tmp_path / "values.parquet", job.values.names)


def test_a_truncated_list_of_prompts_is_written_again(model: Model, tmp_path: Path) -> None:
    run = AdversarialJob(TRUTH, TRUTH, ("truth",), n_clean=8, n_corrupted=6, **FAST)
    file, texts = tmp_path / "prompts.json", []
    for _ in range(2):
        assert study(run, tmp_path, model).pools
        texts.append(file.read_text("utf-8"))
        file.write_text(texts[0][:50], encoding="utf-8")
    assert texts[0] == texts[1] and len(json.loads(texts[0])["clean"]) == 8
