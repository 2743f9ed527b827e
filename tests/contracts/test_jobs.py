"""Every kind of run keeps the promises of a job, in this process and in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechassay.runs.accuracy import AccuracyJob
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.job import JOBS
from mechassay.testing import check_job

JOBS_TO_CHECK: dict[str, Any] = {
    "circuits": CircuitsJob(
        ("truth-ioi", "truth-induction"), methods=("random",), train_limit=4, test_limit=6
    ),
    "accuracy": AccuracyJob(("truth-ioi",), ("truth-ioi", "truth-induction"), limit=4),
    "adversarial": AdversarialJob(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=6,
        n_corrupted=5,
        n_resamples=20,
        n_permutations=20,
        worst=1,
    ),
}


@pytest.mark.parametrize("kind", JOBS_TO_CHECK)
def test_a_job_keeps_its_promises(kind: str, tmp_path: Path) -> None:
    check_job(JOBS_TO_CHECK[kind], tmp_path, workers=2 if kind == "circuits" else 0)


def test_all_kinds_of_run_are_checked() -> None:
    assert set(JOBS_TO_CHECK) == set(JOBS.names())
