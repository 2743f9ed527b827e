"""Gym tasks of public rows and templates: written, read back, run, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.experiments import SMALL_EXPERIMENTS
from helpers.planted_gym import planted_model, planted_task
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.gym.causalgym import BEGIN, load_gym_task, read_causalgym_rows
from mechassay.gym.experiments import GymCheckExperiment, GymExperiment
from mechassay.gym.sources import RowsTask, export_rows, source_tasks
from mechassay.runs.run import run
from mechassay.utils.display import SILENT

FILES = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}


def written(folder: Path, *names: str) -> Path:
    """A folder of rows of tasks, one file a split."""
    tasks = [load_gym_task(name) for name in names]
    folder.mkdir(exist_ok=True)
    for split, file in FILES.items():
        rows = export_rows(tasks, split, limit=24)
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_rows_that_are_written_are_read_back_as_the_same_interchanges(tmp_path: Path) -> None:
    for name in ("agr_gender", "garden_mvrr", "npi_any_obj-relc"):
        task = load_gym_task(name)
        written(tmp_path, name)
        for split, file in FILES.items():
            own = task.interchanges(split, limit=24)
            read = read_causalgym_rows(tmp_path / file)[name]
            assert [(a.base, a.source, a.labels) for a in own] == [
                (a.base, a.source, a.labels) for a in read
            ]
            assert own.tested == read.tested
            assert [a.base_spans for a in own] == [a.base_spans for a in read]
    row = json.loads((tmp_path / "test.jsonl").read_text().splitlines()[0])
    assert row["base"][0] == BEGIN and set(row) == {
        "base", "src", "base_type", "src_type", "base_label", "src_label", "task"
    }  # fmt: skip


def test_a_source_has_its_tasks_by_name(tmp_path: Path) -> None:
    tasks = source_tasks(str(written(tmp_path / "rows", "agr_gender", "cleft")))
    assert list(tasks) == ["agr_gender", "cleft"]
    task = tasks["agr_gender"]
    assert isinstance(task, RowsTask) and task.family == "agreement" and task.types == ("he", "she")
    assert task.sizes == {"train": 24, "validation": 24, "test": 24}
    assert len(task.interchanges("dev", limit=6)) == 6


def test_labels_of_several_tokens_are_dropped_and_counted() -> None:
    planted, model = planted_task(), planted_model()
    pairs = planted.interchanges("train", model, limit=8)
    long = [replace(pair, label=" is not") if n == 0 else pair for n, pair in enumerate(pairs)]
    task = RowsTask("planted", {"train": type(pairs)(
        long, task="planted", split="train", seed=None, tested=pairs.tested)})  # fmt: skip
    kept = task.interchanges("train", model)
    assert len(kept) == 7 and sum(kept.dropped.values()) == 1


def test_a_run_on_rows_gives_what_a_run_on_the_task_gives(tmp_path: Path) -> None:
    experiment: GymCheckExperiment = SMALL_EXPERIMENTS["gym-check"]
    name = "agr_gender"
    plain = replace(experiment, models=("gym-neox",), tasks=(name,), limit=24)
    rows = str(written(tmp_path / "rows", name))
    one, other = (
        run(each, tmp_path / str(n), progress=SILENT).records[0]
        for n, each in enumerate((plain, replace(plain, source=rows)))
    )
    assert one.value("accuracy") == other.value("accuracy")
    assert other.task.name == name and other.task.args["lengths"] == "unequal"


def test_a_source_that_changed_is_another_plan(tmp_path: Path) -> None:
    experiment: GymCheckExperiment = SMALL_EXPERIMENTS["gym-check"]
    rows = written(tmp_path / "rows", "agr_gender")
    own = replace(experiment, models=("gym-neox",), tasks=("all",), limit=8, source=str(rows))
    run(own, tmp_path / "run", progress=SILENT)
    file = rows / "test.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[2:]) + "\n")
    with pytest.raises(BadUsage, match="has other content than on"):
        run(replace(own), tmp_path / "run", progress=SILENT)


def test_what_is_no_source_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="A source of gym tasks is hub, a folder"):
        source_tasks(str(tmp_path / "nothing"))
    with pytest.raises(BadFile, match="no train.jsonl"):
        source_tasks(str(tmp_path))
    rows = written(tmp_path / "rows", "agr_gender")
    experiment: GymCheckExperiment = SMALL_EXPERIMENTS["gym-check"]
    with pytest.raises(UnknownName, match="agr_gender"):
        run(
            replace(experiment, tasks=("agr_gendre",), source=str(rows)),
            tmp_path / "r",
            progress=SILENT,
        )


def test_a_file_of_one_type_alone_is_one_line(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows", "agr_gender")
    for file in rows.iterdir():
        own = [json.loads(line) for line in file.read_text().splitlines()]
        one = [{**row, "base_type": "he", "src_type": "he"} for row in own]
        file.write_text("".join(json.dumps(row) + "\n" for row in one))
    with pytest.raises(BadUsage, match="agr_gender has sentences of one type alone, 'he'") as error:
        source_tasks(str(rows))
    assert "\n" not in str(error.value)


def test_dtypes_by_model_in_one_run() -> None:
    experiment = GymExperiment(
        ("gym-neox", "gym-neox@step128"), dtype="float32,gym-neox@step128=bfloat16"
    )
    assert experiment.dtype_of("gym-neox") == "float32"
    assert experiment.dtype_of("gym-neox@step128") == "bfloat16"
    both = replace(experiment, dtype="float32,gym-neox=float64")
    assert both.dtype_of("gym-neox@step128") == "float64"
    with pytest.raises(UnknownName, match="model with a dtype"):
        replace(experiment, dtype="float32,gym-neo=float64").dtype_of("gym-neox")
    with pytest.raises(BadUsage, match="dtype must be one of"):
        replace(experiment, dtype="float33").dtype_of("gym-neox")


def test_the_command_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    with pytest.raises(SystemExit) as done:
        main(["gym", "export", "-t", "agreement", "--limit", "4", "-o", str(file)])
    assert done.value.code == 0 and "16 rows of 4 tasks" in capsys.readouterr().out
    assert len(read_causalgym_rows(file)) == 4
