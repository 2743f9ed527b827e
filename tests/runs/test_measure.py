"""The run of metrics of measurement: what is skipped and why, circuits, prompts, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.measurement.gauge import all_gauges
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.command_line import command_line
from mechassay.runs.execute import run
from mechassay.runs.measure import MeasureJob

JOB = MeasureJob(("EX1_dprime", "F06", "EX2"), ("truth-ioi",), n_prompts=6, train_limit=6)


def test_what_is_missing_is_said_and_the_rest_is_run(tmp_path: Path) -> None:
    results = run(JOB, tmp_path, progress=SILENT)
    assert [record.method.name for record in results.records] == ["EX1"]
    said = {each.cell["metric"]: each for each in results.failures}
    assert said["F06"].status == "skipped" and "--method, twice" in said["F06"].message
    assert "English names" in said["EX2"].message
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "false alarm" in page and "missing input" in page
    record: Record = results.records[0]
    assert record.n == 6 and record.task.args["n_prompts"] == 6
    assert record.specs["circuit"].name == "truth"


def test_rankings_are_found_once_and_kept(tmp_path: Path) -> None:
    job = replace(JOB, metrics=("F06", "F03"), methods=("eap", "random"), circuit="eap@0.1")
    results = run(job, tmp_path, progress=SILENT)
    assert len(results.records) == 2
    files = sorted(path.name for path in (tmp_path / "scores").rglob("*.safetensors"))
    assert files == ["eap.safetensors", "random.safetensors"]


def test_the_number_of_prompts_is_that_of_the_page() -> None:
    free = replace(JOB, n_prompts=None)
    assert (free.size("EX1"), free.size("EX25"), free.size("F01")) == (40, 50, 40)
    assert JOB.size("EX25") == 6


def test_all_stands_for_all_gauges() -> None:
    every = replace(JOB, metrics=("all",))
    assert list(every.gauges()) == all_gauges()
    assert command_line(every).startswith("mechassay measure all --model")
    assert command_line(JOB).startswith("mechassay measure run EX1_dprime F06 EX2")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"metrics": ("M99",)}, UnknownName, "M99"),
        ({"models": ("gpt2",)}, BadUsage, "needs a task"),
        ({"sae": "no.npz"}, BadUsage, "both --sae and --site"),
        ({"other_saes": ("no.npz",)}, BadUsage, "both --sae and --site"),
        ({"texts": "sotu"}, BadUsage, "both --texts and --site"),
        ({"texts": "sotus", "site": "resid.1@last"}, UnknownName, "Did you mean 'sotu'"),
        ({"sae": "no.npz", "site": "resid.1@last"}, BadFile, "no such file"),
        ({"circuit": "eap"}, BadUsage, "needs a size"),
        ({"methods": ("epa",)}, UnknownName, "Did you mean 'eap'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(
    tmp_path: Path, changes: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


def test_a_field_that_prompts_do_not_have(tmp_path: Path) -> None:
    job = replace(JOB, metrics=("F07",), methods=("eap", "random"), by="color")
    with pytest.raises(BadUsage, match="answer.*got 'color'"):
        run(job, tmp_path, progress=SILENT)
