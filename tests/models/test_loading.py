"""Names of checkpoints and their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechassay.models.sources import split_revision, training_step


@pytest.mark.parametrize(
    ("revision", "step"),
    [
        ("step512", 512),
        ("step0", 0),
        ("checkpoint-512", 512),
        ("global_step_143000", 143_000),
        ("stage1-step140000-tokens294B", 140_000),
        ("main", None),
        ("512", None),
        ("", None),
    ],
)
def test_steps(revision: str, step: int | None) -> None:
    assert training_step(revision) == step


def test_a_revision_stands_after_the_last_at(tmp_path: Path) -> None:
    assert split_revision("EleutherAI/pythia-70m@step512") == (
        "EleutherAI/pythia-70m",
        "step512",
    )
    assert split_revision("gpt2") == ("gpt2", "")
    folder = tmp_path / "mine@home"
    folder.mkdir()
    assert split_revision(str(folder)) == (str(folder), "")
    assert split_revision(f"{folder}@step1") == (str(folder), "step1")
