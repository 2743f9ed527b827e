"""Adversarial runs on a model in memory, for tests that look at their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_records import RecordMaker
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.execute import prepare

TRUTH = "truth-ioi"
FAST: dict[str, Any] = {"n_resamples": 50, "n_permutations": 50, "worst": 3}


def small_grid(out: Path, model: Model) -> AdversarialStudy:
    """Three circuits of the ground truth on thirty by twenty prompts."""
    circuits = ("truth", "random@0.5", "full")
    return study(
        AdversarialJob(TRUTH, TRUTH, circuits, n_clean=30, n_corrupted=20, **FAST), out, model
    )


def values_of(record: Record) -> dict[str, float]:
    """The measures of a record by name."""
    return {each.name: each.value for each in record.measures}


def study(job: AdversarialJob, out: Path, model: Model | None) -> AdversarialStudy:
    """What the cells of a job share; without a model, it is loaded by its name."""
    models = {} if model is None else {job.model: model}
    return AdversarialStudy(job, prepare(job, out, models=models, progress=SILENT))


def records_of(study: AdversarialStudy) -> list[Record]:
    """The record of every circuit; those in the folder are read, the others made and kept."""
    job, folder, maker = study.run, study.folder, None
    assert isinstance(job, AdversarialJob)
    records: list[Record] = []
    for number, cell in enumerate(job.cells()):
        record = folder.record(cell.name)
        if record is None:
            maker = maker or RecordMaker(study)
            folder.save_record(cell.name, maker.record(number))
            record = folder.record(cell.name)
        assert record is not None
        records.append(record)
    return records
