"""`mechassay measure`: the list, how often thresholds err, a run."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from mechassay.cli.main import app_for


def invoke(*words: str) -> str:
    done = CliRunner().invoke(app_for(list(words)), list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_metrics_are_listed() -> None:
    rows = json.loads(invoke("measure", "list", "--json"))
    assert len(rows) == 24 and rows[0]["metric"] == "M09"
    assert {row["script"]: row["metric"] for row in rows}["EX2_dif"] == "EX2"


def test_rates_of_errors_are_shown() -> None:
    rows = json.loads(invoke("measure", "null", "F08", "--simulations", "5", "--json"))
    assert {row["rate"] for row in rows} == {"false alarm", "power"}
    assert "delta_low > 0" in invoke("measure", "null", "f08", "--simulations", "5")


def test_a_run(tmp_path: Path) -> None:
    words = ["measure", "run", "F01", "-m", "truth-ioi", "--n-prompts", "6"]
    said = invoke(*words, "--train-limit", "6", "-o", str(tmp_path / "run"))
    assert "Reliability" in said and (tmp_path / "run" / "report.html").is_file()
