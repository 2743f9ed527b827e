"""`mechassay adversarial robust`: tables and files, and what is wrong as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
SMALL = ("-m", "truth-ioi", "-t", "truth-ioi", "--edges", "6", "--size", ".03", "--rounds", "1", "--worst", "2",
         "--base", "4", "--discovery", "5", "--held-out", "6")  # fmt: skip


def test_tables_and_files(run: Run, tmp_path: Path) -> None:
    done = run("adversarial", "robust", *SMALL, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "KL, 3\u00a0% of the edges" in done.out and "Report: " in done.out
    stored = json.loads((tmp_path / "out/result.json").read_text("utf-8"))
    assert stored["run"]["edges"] == 6 and stored["run"]["sizes"] == [0.03]
    assert {cell["edges"] for cell in stored["repeats"][0]["cells"]} == {7}  # 3 % of 262
    assert "<table" in (tmp_path / "out/report.html").read_text("utf-8")
    assert run("adversarial", "robust", *SMALL, "-o", tmp_path / "out").out == done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "eap"], "use eap-ig-inputs"),
        (["--cut", "gredy"], "Did you mean 'greedy'"),
        (["--worst", "6"], "a grid of 5 x 5 prompts has no 6 pairs"),
        (["--repeats", "0"], "Repeats must be 1 or more"),
        (["--weight", "2"], "must be between 0 and 1; got 2.0"),
        (["--method", "nope"], "Unknown method 'nope'"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, words: list[str], message: str) -> None:
    done = run("adversarial", "robust", *SMALL, *words, "-o", tmp_path / "out")
    assert done.code == 2 and message.lower() in done.line.lower()
