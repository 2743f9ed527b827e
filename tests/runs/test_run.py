"""The life of a cell: a folder has one content of each model, task and set of pairs, a record is
that of its cell, and what is done, loaded or drawn once is not done again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import torch

import mechassay as ma
from helpers.experiments import SMALL_EXPERIMENTS
from helpers.tiny_models import with_words
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.planning import accuracy_cost, circuits_cost, patch_cost
from mechassay.results.records import Measure, Record
from mechassay.results.result import RecordContents
from mechassay.runs import EXPERIMENTS, options
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.cells import Cell, Inputs
from mechassay.runs.experiment import Experiment
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import opened
from mechassay.runs.worker import Worker
from mechassay.tasks.task import Task
from mechassay.utils.display import SILENT


def model_folder(path: Path, seed: int) -> Path:
    """A folder with a tiny model and its tokenizer; each seed has other weights."""
    hf, tokenizer = with_words()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    hf.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def pairs_file(path: Path, names: tuple[str, ...] = ("Mary", "John")) -> Path:
    one, other = names
    rows = [
        {"clean": f"When {a} and {b} went to the store , {b} gave a drink to"}
        | {"counterfactual": f"When {a} and {b} went to the store , {a} gave a drink to"}
        | {"answer": f" {a}", "foil": f" {b}", "split": "test"}
        for a, b in ((one, other), (other, one)) * 3
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


# --- one folder, one content


@pytest.mark.parametrize("kind", ["accuracy", "patch", "circuits"])
def test_a_named_folder_with_other_content_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured, with what changed and a command; also if lists grow."""
    model, file = model_folder(tmp_path / "one", 1), pairs_file(tmp_path / "own.jsonl")
    other = str(model_folder(tmp_path / "two", 2))
    limits = {"train_limit": 4, "limit": 4, "methods": ("random",), "even_at_chance": True}
    about: dict[str, Any] = limits if kind == "circuits" else {"limit": 4}
    about |= {"train_split": "test"} if kind == "circuits" else {}
    experiment = EXPERIMENTS.load(kind)((str(model),), (str(file),), **about)
    folder = tmp_path / "run"
    assert len(ma.run(experiment, folder, progress=SILENT).records) == 1
    plan = (folder / "plan.json").read_bytes()
    measured: list[object] = []
    monkeypatch.setattr(type(experiment), "run", lambda *of: measured.append(of))
    pairs_file(file, ("Tom", "James"))
    grown = replace(experiment, models=(str(model), other))
    with pytest.raises(BadUsage, match=r"own\.jsonl has other content than on .*-o .*/run-2"):
        ma.run(grown, folder, progress=SILENT)
    pairs_file(file)
    shutil.rmtree(model)
    model_folder(model, 2)
    with pytest.raises(BadUsage, match="one has other weights than on"):
        ma.run(grown, folder, progress=SILENT)
    assert not measured and (folder / "plan.json").read_bytes() == plan


def test_two_folders_of_one_name_are_two_models(tmp_path: Path) -> None:
    models = tuple(str(model_folder(tmp_path / f"seed{n}" / "final", n)) for n in (0, 1))
    file = str(pairs_file(tmp_path / "own.jsonl"))
    report = ma.run(AccuracyExperiment(models, (file,), limit=4), tmp_path / "run", progress=SILENT)
    assert not report.failures
    one, two = (record.specs["model"].args["identity"] for record in report.records)
    assert [record.identities["model"]["weights"] for record in report.records] == [one, two]
    assert one != two and [record.cell["model"] for record in report.records] == [
        "seed0/final",
        "seed1/final",
    ]


def edited(file: Path, change: Callable[[Record], Record]) -> None:
    """Change a record and give it the hash of its new content."""
    file.write_text(change(ma.read_record(file)).stored_text())


# --- a record is that of its cell


def test_a_record_under_the_name_of_another_cell_is_refused(tmp_path: Path) -> None:
    experiment = SMALL_EXPERIMENTS["patch"]
    ma.run(experiment, tmp_path, progress=SILENT)
    heads, resid = (RunFolder(tmp_path).record_file(cell.name) for cell in experiment.cells())
    shutil.copy(heads, resid)
    for _ in range(2):
        with pytest.raises(BadFile, match=r"resid\.json: is the record of another cell .*heads"):
            ma.run(experiment, tmp_path, progress=SILENT)


def test_a_record_of_other_content_or_of_another_cell_is_refused(tmp_path: Path) -> None:
    """A record of another folder, of another cell with the same labels, or without identities."""
    experiment = SMALL_EXPERIMENTS["patch"]
    ma.run(experiment, tmp_path, progress=SILENT)
    file = RunFolder(tmp_path).record_file(experiment.cells()[0].name)
    right = file.read_text()
    other = {"model": {**ma.read_record(file).identities["model"], "weights": "0" * 16}}
    for changes, message in (
        ({"identities": other}, "is a record of another model than the folder's other results"),
        ({"cell_digest": "0" * 16}, "is the record of another cell of this name"),
        ({"identities": {}, "cell_digest": ""}, "is a record without identities"),
    ):
        edited(file, lambda record, changes=changes: record.changed(**changes))
        with pytest.raises(BadFile, match=message):
            ma.run(experiment, tmp_path, progress=SILENT)
        file.write_text(right)
    assert len(ma.run(experiment, tmp_path, progress=SILENT).records) == 2


def test_a_record_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    experiment = SMALL_EXPERIMENTS["patch"]
    ma.run(experiment, tmp_path, progress=SILENT)
    file = RunFolder(tmp_path).record_file(experiment.cells()[0].name)
    edited(file, lambda record: record.changed(kind="circuits"))
    with pytest.raises(BadFile, match="is a record of the kind circuits in a run of the kind pat"):
        ma.run(experiment, tmp_path, progress=SILENT)


def test_records_have_the_kind_and_the_labels_of_their_cells(tmp_path: Path) -> None:
    for kind in ("circuits", "alignments", "directions", "assess"):
        experiment = SMALL_EXPERIMENTS[kind]
        report = ma.run(experiment, tmp_path / kind, progress=SILENT)
        cells = {cell.name: cell for cell in experiment.cells()}
        assert report.by_name.keys() == cells.keys()
        for name, record in report.by_name.items():
            assert record.kind == kind
            assert cells[name].labels.items() <= record.cell.items()


# --- once


@dataclass(frozen=True)
class Small:
    """An experiment with what is counted while it runs."""

    experiment: Any
    pairs: int
    examples: int
    cost: Callable[..., Any]


@pytest.mark.parametrize(
    "small",
    [
        Small(replace(SMALL_EXPERIMENTS["patch"]), 1, 0, patch_cost),
        Small(replace(SMALL_EXPERIMENTS["accuracy"], tasks=("truth-ioi",)), 0, 1, accuracy_cost),
        Small(replace(SMALL_EXPERIMENTS["circuits"], models=("truth-ioi",)), 3, 0, circuits_cost),
    ],
    ids=["patch", "accuracy", "circuits"],
)
def test_cells_tasks_and_pairs_are_made_once(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*given, **named)

        monkeypatch.setattr(owner, name, call)

    counted(type(small.experiment), "cells")
    for name in ("pairs", "examples"):
        counted(Task, name)
    counted(sys.modules["mechassay.runs.worker"], "load_task")
    counted(sys.modules["mechassay.runs.worker"], "load_model")

    def begin(worker: Worker, left: list[Cell]) -> None:
        assert small.cost(small.experiment, left, worker).works  # As the command line prints it.

    ma.run(small.experiment, tmp_path, progress=SILENT, begin=begin)
    assert counts["cells"] == counts["load_task"] == counts["load_model"] == 1
    assert (counts["pairs"], counts["examples"]) == (small.pairs, small.examples)


def test_a_folder_that_is_done_loads_no_model_and_imports_no_page(tmp_path: Path) -> None:
    code = (
        "import sys\nimport mechassay as ma\n"
        "from mechassay.discovery.experiment import CircuitsExperiment\n"
        "from mechassay.runs.folder import RunFolder\n"
        "experiment = CircuitsExperiment(('truth-ioi',), methods=('random',), train_limit=4,"
        " limit=6, random_rankings=5)\n"
    )
    run = f"ma.run(experiment, {str(tmp_path)!r})\n"
    look = (
        "from pathlib import Path\n"
        f"left = RunFolder(Path({str(tmp_path)!r})).cells_left(experiment.cells())\n"
        "pages = {name for name in sys.modules if name.startswith('mechassay.discovery')}\n"
        "assert not left and 'mechassay.discovery.suite_page' not in pages, pages\n"
    )
    for text in (code + run, code + look):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# --- what follows from fields


@dataclass(frozen=True)
class LengthExperiment(Experiment):
    """The mean length of prompts."""

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    ends: tuple[Literal["clean", "counterfactual"], ...] = ("clean",)
    limit: Annotated[int, options.limit("Pairs.")] = 6
    dtype: Annotated[str, options.DTYPE] = "float32"
    objective: Annotated[str | None, options.OBJECTIVE] = None

    kind: ClassVar[str] = "length"
    axes: ClassVar[dict[str, str]] = {"model": "models", "task": "tasks", "end": "ends"}

    def preconditions(self, cell: Cell, inputs: Inputs) -> Iterator[tuple[str, str]]:
        if len(inputs.pairs["test"]) < 3:
            yield "too few", "3 are needed"

    def measure(self, cell: Cell, inputs: Inputs) -> RecordContents:
        values = [len(getattr(pair, cell["end"])) for pair in inputs.pairs["test"]]
        return {"measures": [Measure(name="length", value=float(np.mean(values)), n=len(values))]}


LENGTH = LengthExperiment(("truth-ioi",), ("truth-ioi",), ("clean", "counterfactual"))


def test_cells_are_the_combinations_of_the_axes() -> None:
    two = replace(LENGTH, models=("truth-ioi", "some/folder"))
    assert [cell.name for cell in two.cells()[:2]] == [
        "truth-ioi--truth-ioi/clean",
        "truth-ioi--truth-ioi/counterfactual",
    ]
    assert LengthExperiment.grows == ("models", "tasks", "ends")
    cell = two.cells()[-1]
    assert (cell["model"], cell["end"]) == ("some/folder", "counterfactual")
    assert len({cell.inputs for cell in two.cells()}) == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"ends": ("cleam",)},
            UnknownName,
            "ends of length run 'cleam'.*Did you mean 'clean'",
        ),
        ({"tasks": ("ioj",)}, UnknownName, "Unknown task 'ioj'"),
        ({"dtype": "float31"}, BadUsage, "dtype must be one of float32"),
        ({"objective": "logit"}, UnknownName, "Unknown objective 'logit'"),
        ({"limit": 0}, BadUsage, "limit must be"),
    ],
)
def test_checks_follow_from_the_fields(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        ma.run(replace(LENGTH, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_a_precondition_skips_a_cell_with_its_reason(tmp_path: Path) -> None:
    report = ma.run(replace(LENGTH, limit=2), tmp_path / "few", progress=SILENT)
    assert not report.records and str(report).startswith("skipped: 3 are needed")
    (one, _) = report.failures
    assert (one.status, one.error, one.message) == ("skipped", "too few", "3 are needed")
    assert len(ma.run(LENGTH, tmp_path / "enough", progress=SILENT).records) == 2


def test_without_preconditions_nothing_is_loaded_before_the_measurement(tmp_path: Path) -> None:
    experiment = AccuracyExperiment(("no/such/model",), ("truth-ioi",))
    worker = opened(experiment, tmp_path, progress=SILENT)
    assert experiment.skip(experiment.cells()[0], worker) is None


def test_a_report_is_a_table_and_opens_only_if_a_page_was_written(tmp_path: Path) -> None:
    report = ma.run(LENGTH, tmp_path, progress=SILENT)
    assert report.page == tmp_path / "report.html" and report.page.is_file()
    assert report.columns()["end"] == ["clean", "counterfactual"]
    assert list(report.by_name) == list(report.names)
    with pytest.raises(BadUsage, match="No page"):
        replace(report, page=None).open()
