"""The run that tries metrics on subjects of known worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.measurement import gauges, metric
from mechassay.measurement.gauges import GAUGES, all_gauges
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import SILENT
from mechassay.utils.registry import Registry
from studies.measure_trial import __main__ as study
from studies.measure_trial.experiment import MeasureTrialExperiment

JOB = MeasureTrialExperiment(
    ("EX1", "M07", "F03", "EX2"),
    ("truth-ioi", "truth-induction"),
    seeds=(0,),
    # Fewer that all agree have no interval, and no verdict.
    n_prompts=FEW_GROUPS,
    train_limit=6,
)


@pytest.mark.slow
def test_metrics_are_tried_on_what_they_look_at(tmp_path: Path) -> None:
    results = run(JOB, tmp_path, progress=SILENT)
    circuits, dictionaries = results.records
    assert circuits.model.name == "ground truths"
    assert dictionaries.model.name == "planted dictionaries"
    told = {each.cell["metric"]: each for each in results.failures}
    assert told["F03"].error == "no subject" and "English names" in told["EX2"].message
    random = circuits.measure("auroc_random_edges")
    assert random is not None and random.value == 1 and random.low < 1, "two worlds"
    rows = circuits.table("subjects").where(variant="repaired", kind="true").rows()
    assert [row["passed"] for row in rows] == [True, True]
    table = dictionaries.table("discrimination").where(variant="repaired", against="random")
    assert table.rows()[0]["passes_wrong"] == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Ground truths" in page and "Without a result" in page
    assert "decoder permuted" in (tmp_path / "tables.md").read_text("utf-8")


def test_all_metrics_by_default_and_the_command() -> None:
    assert len(MeasureTrialExperiment().gauges()) == len(all_gauges())
    assert "EX25 metric=ablation-recovery" in MeasureTrialExperiment().gauges()
    assert "EX25 n_runs=3" in MeasureTrialExperiment(("EX25:n_runs=3",)).gauges()
    assert command_line(MeasureTrialExperiment()).startswith("mechassay measure-trial run")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"metrics": ("M99",)}, UnknownName, "M99"),
        ({"truths": ("truth-io",)}, UnknownName, "truth-ioi"),
        ({"seeds": (0, 0)}, BadUsage, "each once"),
        ({"seeds": ()}, BadUsage, "one or more"),
    ],
)
def test_what_is_wrong_is_said_first(
    tmp_path: Path, changes: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


MINE = """
from mechassay.measurement.metrics.dprime import DPrime


class Mine(DPrime):
    id = "MINE"


class Taken(DPrime):
    pass
"""


def test_a_metric_of_ones_own_is_tried_without_being_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that measures what EX1 does has the numbers of EX1."""
    (tmp_path / "my_metric.py").write_text(MINE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(study, "GAUGES", Registry("metric of measurement", dict(GAUGES.built_in)))
    for module in (gauges, metric):
        monkeypatch.setattr(module, "GAUGES", study.GAUGES)
    folder = study.main(["my_metric:Mine"], JOB, tmp_path / "trial")
    assert folder == tmp_path / "trial-MINE"
    mine = RunFolder(folder).record("MINE")
    known = run(replace(JOB, metrics=("EX1",)), tmp_path / "known", progress=SILENT).records[0]
    assert mine is not None and mine.measures == known.measures
    with pytest.raises(BadUsage, match="the package has a metric EX1"):
        study.main(["my_metric:Taken"], JOB, tmp_path / "trial")
    for wrong in ("my_metric:Absent", "absent_module:X", "my_metric", ":X"):
        with pytest.raises(BadUsage, match="a class that can be imported"):
            study.main([wrong], JOB, tmp_path / "trial")
    with pytest.raises(BadUsage, match="One metric is tried at a time"):
        study.main(["EX1", "EX11"], JOB, tmp_path / "trial")
