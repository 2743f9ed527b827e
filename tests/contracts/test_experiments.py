"""Every kind of run keeps the promises of an experiment, in this process and in others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.experiments import SMALL_EXPERIMENTS
from helpers.models import write_small_gpt2
from mechassay.runs import EXPERIMENTS
from mechassay.runs.options import options_of
from mechassay.testing import check_experiment

LESS = {
    "variables": {"featurizers": ("das",), "steps": 5},
    "circuits": {"models": ("truth-previous-token", "truth-induction")},
}
LONG = {"adversarial-paper", "adversarial-search"}
"""Their commands are tested in tests/cli too."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow) if kind in LONG else kind
        for kind in SMALL_EXPERIMENTS
    ],
)
def test_a_experiment_keeps_its_promises(kind: str, tmp_path: Path) -> None:
    experiment = replace(SMALL_EXPERIMENTS[kind], **LESS.get(kind, {}))
    if kind == "adversarial-paper":
        experiment = replace(experiment, model=str(write_small_gpt2(tmp_path / "model")))
    check_experiment(experiment, tmp_path, workers=0)


@pytest.mark.guard
def test_a_experiment_keeps_its_promises_in_other_processes(tmp_path: Path) -> None:
    check_experiment(SMALL_EXPERIMENTS["circuits"], tmp_path, workers=2)


def test_all_kinds_of_run_are_checked() -> None:
    assert set(SMALL_EXPERIMENTS) == set(EXPERIMENTS.built_in)


@pytest.mark.parametrize("kind", list(EXPERIMENTS.built_in))
def test_no_number_of_examples_is_without_a_limit(kind: str) -> None:
    """A number that was mistyped ends with a line, not with all memory."""
    unlimited = [
        name
        for name, about in options_of(EXPERIMENTS.load(kind)).items()
        if name.endswith("limit") or name.startswith(("n_clean", "n_corrupted", "n_matched"))
        if about.most is None
    ]
    assert not unlimited
