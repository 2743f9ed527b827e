"""What commands say of things that are there, but are not what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ("variables", "validate"),
        ("circuits", "validate"),
        ("models", "check"),
        ("leaderboard", "build"),
    ],
    ids=" ".join,
)
def test_a_file_is_not_called_a_missing_folder(
    run: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "there.txt"
    file.write_text("x")
    said = run(*words, file)
    assert said.code != 0 and "a file, not a folder" in said.out + said.err
    nowhere = run(*words, tmp_path / "nowhere")
    assert "there is no such folder" in nowhere.out + nowhere.err


def test_an_unknown_task_names_the_files_that_are_read(run: Any) -> None:
    assert (
        "A file of pairs ends in .jsonl, .json, .csv, .tsv, .ndjson, .jsonl.gz, .parquet."
        in run("tasks", "show", "nosuch").line
    )


def test_devices_and_claims_are_refused_in_our_own_words(run: Any, tmp_path: Path) -> None:
    line = run("circuits", "run", "-m", "truth-ioi", "--device", "tpu", "-o", tmp_path / "r").line
    assert line.endswith("on this machine; got 'tpu'.")
    empty = tmp_path / "empty.yaml"
    empty.write_text("\n")
    assert "the file holds nothing" in run("assay", empty, "-o", tmp_path / "a").line
