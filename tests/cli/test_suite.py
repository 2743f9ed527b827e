"""`mechassay suite run` on tiny models: one table over cells, resumed and with failures as cells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def words(folder: Path, out: Path, *more: object) -> list[object]:
    return ["suite", "run", "-m", folder, "-t", "ioi", "--train-limit", "6", "--limit", "12", "-o", out, *more]


def test_a_table_over_cells_that_is_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    line = words(folder, out, "--method", "eap", "--method", "nap-ig:steps=2", "--method", "ifr", "-t", "ioi:source=own")
    done = run(*line)
    assert done.code == 0, done.err
    tables = (out / "tables.md").read_text()
    assert "## CMD (lower is better)" in tables and "## CPR (higher is better)" in tables
    for method in ("eap", "nap-ig steps=2", "ifr", "random control"):
        assert f"| {method} |" in tables
    assert tables.count("| ioi, ") >= 2 and "Accuracy of the model itself" in tables
    assert "<script" not in (out / "report.html").read_text()
    files = sorted(out.glob("cells/*/records/*.json"))
    assert len(files) == 6
    before = [os.stat(file).st_mtime_ns for file in files]
    files[0].unlink()
    assert run(*line).code == 0
    after = [os.stat(file).st_mtime_ns for file in files]
    assert after[1:] == before[1:] and after[0] > before[0]


def test_what_fails_is_a_cell_with_its_reason(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    done = run(*words(folder, out, "--method", "eap", "-t", "docstring", "-m", tmp_path / "no-model"))
    assert done.code == 1
    tables = (out / "tables.md").read_text()
    assert "| eap |" in tables and "failed" in tables and "Failed and skipped cells" in tables
    assert "docstring" in done.err and "no-model" in done.err
    assert len(list(out.glob("cells/*/records/eap.json"))) == 1


def test_wrong_names_are_found_before_anything_runs(folder: Path, tmp_path: Path, run: Run) -> None:
    assert "Did you mean 'eap'?" in run(*words(folder, tmp_path / "out", "--method", "eapp")).line
    assert "Did you mean 'strict'?" in run(*words(folder, tmp_path / "out", "--profile", "stricd")).line
    assert "Did you mean 'ioi'?" in run(*words(folder, tmp_path / "out", "-t", "iio")).line
    assert not (tmp_path / "out").exists()
