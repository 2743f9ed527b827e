"""Every kind of run keeps the promises of a job, in this process and in others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.jobs import SMALL_JOBS
from helpers.models import write_small_gpt2
from mechassay.runs import JOBS
from mechassay.runs.options import options_of
from mechassay.testing import check_job

LESS = {
    "variables": {"featurizers": ("das",), "steps": 5},
    "circuits": {"models": ("truth-previous-token", "truth-induction")},
}
LONG = {"adversarial-paper", "adversarial-search"}
"""Their commands are tested in tests/cli too."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind in LONG else kind for kind in SMALL_JOBS],
)
def test_a_job_keeps_its_promises(kind: str, tmp_path: Path) -> None:
    job = replace(SMALL_JOBS[kind], **LESS.get(kind, {}))
    if kind == "adversarial-paper":
        job = replace(job, model=str(write_small_gpt2(tmp_path / "model")))
    check_job(job, tmp_path, workers=0)


@pytest.mark.guard
def test_a_job_keeps_its_promises_in_other_processes(tmp_path: Path) -> None:
    check_job(SMALL_JOBS["circuits"], tmp_path, workers=2)


def test_all_kinds_of_run_are_checked() -> None:
    assert set(SMALL_JOBS) == set(JOBS.built_in)


@pytest.mark.parametrize("kind", list(JOBS.built_in))
def test_no_number_of_examples_is_without_a_limit(kind: str) -> None:
    """A number that was mistyped ends with a line, not with all memory."""
    unlimited = [
        name
        for name, about in options_of(JOBS.load(kind)).items()
        if name.endswith("limit") or name.startswith(("n_clean", "n_corrupted", "n_matched"))
        if about.most is None
    ]
    assert not unlimited
