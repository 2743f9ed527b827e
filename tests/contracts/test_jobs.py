"""Every kind of run keeps the promises of a job, in this process and in others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechassay.runs.accuracy import AccuracyJob
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_paper import PaperJob
from mechassay.runs.adversarial_search import SearchJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.job import JOBS
from mechassay.runs.robust import RobustJob
from mechassay.testing import check_job
from small_gpt2 import write_small_gpt2

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
    "adversarial-search": SearchJob(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=4,
        n_corrupted=4,
        budget=30,
        starts=1,
        restarts=1,
    ),
    "robust": RobustJob(
        "truth-ioi",
        "truth-ioi",
        tails=("cvar",),
        edges=6,
        sizes=(6,),
        rounds=1,
        n_base=4,
        n_held_out=5,
        repeats=2,
    ),
    "adversarial-paper": PaperJob("small-gpt2", n_clean=4, n_corrupted=3, n_matched=3, worst=1),
}


@pytest.mark.parametrize("kind", JOBS_TO_CHECK)
def test_a_job_keeps_its_promises(kind: str, tmp_path: Path) -> None:
    job = JOBS_TO_CHECK[kind]
    if kind == "adversarial-paper":
        job = replace(job, model=str(write_small_gpt2(tmp_path / "model")))
    check_job(job, tmp_path, workers=2 if kind == "circuits" else 0)


def test_all_kinds_of_run_are_checked() -> None:
    assert set(JOBS_TO_CHECK) == set(JOBS.names())
