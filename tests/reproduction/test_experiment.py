"""A reproduction end to end: a stand-in runs and reproduces nothing, what cannot run says why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from helpers.models import write_reading_gpt2
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.reproduction.comparison import comparisons_of
from mechassay.reproduction.experiment import (
    NOT_RUN,
    ReproductionExperiment,
    _record,
    _stand_in,
    comparison,
)
from mechassay.reproduction.page import ReproductionPage
from mechassay.reproduction.published import Paper, published
from mechassay.reproduction.recomputed import CALCULATIONS
from mechassay.reproduction.runners import RUNNERS, mean_of
from mechassay.reproduction.status import Ours
from mechassay.results.page import Report
from mechassay.results.reading import read_record
from mechassay.results.records import Measure
from mechassay.runs import costs
from mechassay.runs.costs import ModelSize
from mechassay.runs.executors import Here
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import opened, read_report, run
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT

OFFLINE = "HF_HUB_OFFLINE"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 that reads IOI."""
    return write_reading_gpt2(tmp_path_factory.mktemp("models") / "random-gpt2")


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, OFFLINE, True)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)


def cells_run(experiment: ReproductionExperiment, output: Path, keys: tuple[str, ...]) -> Report:
    """The results of some of an experiment's cells."""
    worker = opened(experiment, output, progress=SILENT)
    kept = [cell for cell in experiment.cells() if cell.typed.get("key") in keys]
    assert len(kept) == len(keys)
    Here().map(experiment, [kept], worker)
    return read_report(worker.folder, experiment.cells())


def test_a_stand_in_ends_with_numbers_and_reproduces_nothing(folder: Path, tmp_path: Path) -> None:
    experiment = ReproductionExperiment(
        "mib", ("2",), ("ioi/gpt2",), given=(f"gpt2={folder}",), limit=6
    )
    results = cells_run(experiment, tmp_path / "run", ("random", "eap"))
    assert not results.failures
    rows = comparisons_of(results.records)
    # Both tables that print a number of the cell, whichever was asked for.
    assert {(own.table, own.measure) for own in rows} == {("2", "cmd"), ("14", "cpr")}
    for own in rows:
        assert math.isfinite(own.ours.value) and own.ours.low <= own.ours.value <= own.ours.high
        assert own.verdict().status == "other model"
        assert "random-gpt2" in own.verdict().reason
        assert own.n == 1000 and own.ours.n <= 6
        assert own.minutes > 0 and own.gigabytes > 0.5
    inner = tmp_path / "run" / "runs" / "ioi--gpt2"
    experiment.write(results)
    assert (inner / "report.html").is_file()
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "other model" in page and "0.03" in page and "Table 14" not in page
    # The same command does nothing again.
    again = cells_run(experiment, tmp_path / "run", ("random", "eap"))
    assert again.records == results.records


def test_numbers_of_a_record_are_those_of_the_ordinary_run(folder: Path, tmp_path: Path) -> None:
    experiment = ReproductionExperiment("mib", ("2",), ("ioi/gpt2",), (f"gpt2={folder}",), limit=6)
    (record,) = cells_run(experiment, tmp_path / "run", ("eap",)).records
    (wished,) = [cell for cell in experiment.cells() if cell.typed.get("key") == "eap"]
    assert experiment.wish(wished).own
    inner = next((tmp_path / "run" / "runs" / "ioi--gpt2" / "records").rglob("eap.json"))
    ordinary = read_record(inner)
    for own in comparisons_of([record]):
        assert own.ours.value == ordinary.value(own.measure)
        assert ordinary.specs["metric"].args["profile"] == "mib-2025"


def test_without_weights_a_cell_says_what_it_would_take(tmp_path: Path, no_hub: None) -> None:
    experiment = ReproductionExperiment("mib", ("2",), ("ioi/gpt2",))
    results = run(experiment, tmp_path / "run", progress=SILENT)
    assert not results.records and len(results.failures) == 11
    for failure in results.failures:
        assert (failure.status, failure.error) == ("skipped", NOT_RUN)
        assert "gpt2 is not in the cache" in failure.message
        assert failure.message.endswith("GB on this machine")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "not in the cache" in page


def test_hours_that_no_cell_fits_in_run_nothing(folder: Path, tmp_path: Path) -> None:
    experiment = ReproductionExperiment(
        "mib", ("2",), ("ioi/gpt2",), (f"gpt2={folder}",), limit=6, hours=0
    )
    results = run(experiment, tmp_path / "run", progress=SILENT)
    assert not results.records
    assert all("0 h have no room" in failure.message for failure in results.failures)


def test_tables_that_nothing_runs_are_listed_with_their_reason(tmp_path: Path) -> None:
    experiment = ReproductionExperiment("mib", ("15",))
    results = run(experiment, tmp_path / "run", progress=SILENT)
    (failure,) = results.failures
    assert "with its authors" in failure.message and "Table 15" in failure.cell["what"]
    measurement = run(ReproductionExperiment("measurement"), tmp_path / "page", progress=SILENT)
    assert len(measurement.failures) == 3 and not measurement.records


def test_a_table_that_was_asked_for_later_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    first = ReproductionExperiment("adversarial", ("1",))
    run(first, tmp_path / "run", progress=SILENT)
    both = replace(first, tables=("1", "Section 2"))
    results = run(both, tmp_path / "run", progress=SILENT)
    assert {own.table for own in comparisons_of(results.records)} == {"1", "Section 2"}


def test_rows_are_chosen_by_name() -> None:
    experiment = ReproductionExperiment("mib", ("2", "14"), ("ioi/gpt2",), rows=("EAP (CF)", "UGS"))
    assert [cell.labels["what"] for cell in experiment.cells()] == ["ioi/gpt2 eap", "ioi/gpt2 ugs"]
    # Nothing that is calculated, or has no experiment, is a row of this name.
    assert len(ReproductionExperiment("mib", rows=("UGS",)).cells()) == 6


@pytest.mark.parametrize(
    ("experiment", "error", "message"),
    [
        (ReproductionExperiment("mib", ("2",), rows=("EAP",)), UnknownName, r"EAP \(CF\)"),
        (ReproductionExperiment("mib", ("41",)), UnknownName, "table of Mueller"),
        (ReproductionExperiment("mib", (), ("ioi/gtp2",)), UnknownName, "ioi/gpt2"),
        (ReproductionExperiment("mib", given=("gtp2=x",)), UnknownName, "gpt2"),
        (ReproductionExperiment("mib", given=("gpt2",)), BadUsage, "NAME=MODEL"),
        (ReproductionExperiment("mib", given=("gpt2=no/such/folder",)), BadFile, "no such folder"),
        (ReproductionExperiment("validity", ("3",)), BadUsage, "statements in place of tables"),
    ],
)
def test_what_is_wrong_is_refused_first(
    experiment: ReproductionExperiment, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        opened(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_called_as_the_published_model_is_another_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    experiment = ReproductionExperiment("mib", ("2",), ("ioi/gpt2",), limit=4)
    assert _stand_in(experiment.wish(experiment.cells()[0])) == "the folder gpt2"


def test_two_examples_of_the_published_model_reproduce_nothing() -> None:
    value = next(
        v for t in published("mib").tables for v in t.values if v.method == "eap" and v.n == 1000
    )
    equal = Ours(value.value, value.value, value.value, n=2)
    row = comparison(value, equal, "", 1.0, 1.0)
    assert row.verdict().status == "too few to tell"
    full = comparison(value, replace(equal, n=1000), "", 1.0, 1.0)
    assert full.verdict().status == "reproduced"


def test_a_definition_that_is_not_the_published_one_is_explained_at_best() -> None:
    value = next(v for t in published("mib").tables for v in t.values if v.method == "nap")
    row = comparison(value, Ours(value.value, value.value, value.value, n=1000), "", 1.0, 1.0)
    assert row.verdict().status == "explained"


def test_the_page_counts_statuses_of_what_it_shows() -> None:
    cells = ReproductionExperiment("adversarial", ("1",)).cells()
    rows = list(CALCULATIONS["adversarial"][0].run())
    record = _record(cells[0], rows, [])
    (counts, numbers) = ReproductionPage().tables(Report([record]))
    assert counts.texts[0] == ("Table 1, n", "18", "13", "–", "–", "5", "–", "–")
    assert len(numbers.rows) == 18
    # The verdict is drawn from the row: one that is changed has another.
    other = replace(rows[0], ours=replace(rows[0].ours, stand_in="x"))
    changed = ReproductionPage().tables(Report([_record(cells[0], [other, *rows[1:]], [])]))
    assert changed[0].texts[0][4] == "1"


def test_shapes_give_the_published_numbers_of_weights_and_edges() -> None:
    models = published("mib").models
    # GPT-2 small has 124.4 million weights, .8 of them positions; its graph 32,491 edges.
    assert ModelSize.published(models["gpt2"]).weights == pytest.approx(124.4e6, rel=0.01)
    assert ModelSize.published(models["qwen2.5"]).weights == pytest.approx(494e6, rel=0.01)
    assert ModelSize.published(models["gemma2"]).weights == pytest.approx(2.614e9, rel=0.01)
    assert ModelSize.published(models["llama3.1"]).weights == pytest.approx(8.03e9, rel=0.01)
    edges = {name: ModelSize.published(shape).graph.n_edges for name, shape in models.items()}
    assert edges == {
        "interpbench": 1108,
        "gpt2": 32491,
        "qwen2.5": 179749,
        "gemma2": 74218,
        "llama3.1": 1592881,
    }
    sizes = published("causalgym").models
    assert ModelSize.published(sizes["pythia-70m"]).weights == pytest.approx(70.4e6, rel=0.02)
    assert ModelSize.published(sizes["pythia-6.9b"]).weights == pytest.approx(6.86e9, rel=0.02)


def test_more_pairs_and_larger_models_take_longer() -> None:
    models = published("mib").models
    gpt2, llama = (ModelSize.published(models[name]) for name in ("gpt2", "llama3.1"))
    base = costs.circuit_operations(gpt2, 300, 100, 20)
    assert costs.circuit_operations(gpt2, 600, 100, 20) > base
    assert costs.circuit_operations(gpt2, 300, 200, 20) > base
    assert costs.circuit_operations(llama, 300, 100, 20) > 50 * base
    assert costs.gigabytes(llama) == pytest.approx(17.1, abs=0.2)
    assert costs.cost_text(0.2, 1.5) == "6 to 24 s and 1.5 GB on this machine"
    assert costs.cost_text(6000.0, 17.06) == "50 to 200 h and 17.1 GB on this machine"


@pytest.mark.parametrize("paper", ["mib", "adversarial", "causalgym"])
def test_every_cell_that_is_run_has_a_experiment_that_is_not_refused(
    paper: Paper, tmp_path: Path
) -> None:
    """Names of tasks, variables, methods and settings in the data are those of the package."""
    models = published(paper).models
    experiment = ReproductionExperiment(paper, given=tuple(f"{name}=gym-neox" for name in models))
    runs = [cell for cell in experiment.cells() if cell.inputs.startswith("run ")]
    seen = set[str]()
    for cell in runs:
        for piece in RUNNERS[cell["experiment"]].pieces(experiment.wish(cell)):
            # The dtype is that of the published model, which is no name.
            if (text := repr(replace(piece.experiment, dtype="float32"))) not in seen:
                seen.add(text)
                piece.experiment.check(Worker(RunFolder(tmp_path / "none"), progress=SILENT))
                assert piece.experiment.cells()
    assert len({cell.name for cell in experiment.cells()}) == len(experiment.cells())
    assert runs


def test_the_mean_over_operators_is_that_of_independent_numbers() -> None:
    # By hand: (.2 + .6) / 2, half-widths (.3^2 + .4^2)^.5 / 2 = .25 below and .1 above.
    parts = [
        Measure(name="cpr", value=0.2, low=-0.1, high=0.32, n=10),
        Measure(name="cpr", value=0.6, low=0.2, high=0.76, n=12),
    ]
    mean = mean_of(parts)
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.4, 0.15, 0.5))
    assert mean.n == 22
    assert math.isnan(mean_of([parts[0], Measure(name="cpr", value=math.nan, n=1)]).value)
