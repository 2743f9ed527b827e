"""The page of causal variables: verdicts, tables with controls, what sites were chosen on."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.experiments import SMALL_EXPERIMENTS
from mechassay.results.console import print_tables
from mechassay.results.page import Report, render
from mechassay.results.records import Failure, Record, Spec
from mechassay.runs.run import run
from mechassay.utils.display import SILENT
from mechassay.variables.page import VariablesPage
from mechassay.variables.verdicts import verdict_of

STARTED = time.perf_counter()
JOB = replace(
    SMALL_EXPERIMENTS["variables"],
    models=("truth-ioi-trained",),
    layers="1,2",
    train_limit=20,
    limit=30,
    steps=20,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(JOB, tmp_path_factory.mktemp("run") / "page", progress=SILENT)


def test_the_best_has_the_largest_accuracy_or_the_least_error(results: Report) -> None:
    def validated(name: str, value: float, better: str) -> Record:
        measures = [
            m.model_copy(update={"value": value, "better": better}) if m.name == "validation" else m
            for m in das.measures
        ]
        return das.changed(measures=measures, method=Spec(name=name, args=das.method.args))

    das = next(r for r in results.records if r.method.name == "das")
    for better, name in (("up", "more"), ("down", "less")):
        of = [validated("less", 0.1, better), validated("more", 0.9, better)]
        (first, *_) = VariablesPage().sections(Report(of))
        said = next(block.text for block in first.blocks if hasattr(block, "text"))
        assert f" by {name}, " in said, said


def test_a_narrow_console_shows_controls_longest(results: Report) -> None:
    (table, *_) = VariablesPage().tables(Report(results.records))
    optional = {column.heading: column.optional for column in table.columns}
    first, last = (list(optional).index(name) for name in ("accuracy", "gain"))
    controls, others = [*optional.values()][first + 1 : last], ("gain", "features", "steps")
    assert len(controls) > 1 and 0 < max(controls) < min(optional[name] for name in others)


def test_seconds_are_those_of_the_run(results: Report) -> None:
    seconds = [float(record.spent["seconds"]) for record in results.records]
    assert 0 < sum(seconds) < time.perf_counter() - STARTED


@pytest.mark.slow
def test_every_variable_has_a_sentence_with_its_verdict_and_pairs(results: Report) -> None:
    (first, *_) = VariablesPage().sections(Report(results.records))
    said = [block.text for block in first.blocks if hasattr(block, "text")]
    for variable in ("duplicate", "answer", "name_place"):
        (sentence,) = [text for text in said if f"truth-ioi: {variable}" in text]
        of = [r for r in results.records if r.specs["variable"].name == variable]
        assert any(f" is {verdict_of(r)} at {r.method.args['site']}" in sentence for r in of)
        assert "test pairs in" in sentence and "; without intervention" in sentence
    wrong = next(text for text in said if "name_place (a wrong hypothesis)" in text)
    assert " is not found at " in wrong or " is not trained at " in wrong
    assert VariablesPage().title(Report(results.records)) == "Causal variables: truth-ioi"


def test_of_equal_featurizers_the_one_of_fewer_features_is_told(results: Report) -> None:
    def with_validation(record: Record, value: float) -> Record:
        measures = [
            m.model_copy(update={"value": value}) if m.name == "validation" else m
            for m in record.measures
        ]
        return record.model_copy(update={"measures": measures})

    even = [with_validation(r, 1.0) for r in results.records]
    of = [r for r in even if r.specs["variable"].name == "answer"]
    (sentence,) = [
        b.text for b in VariablesPage().sections(Report(of))[0].blocks if hasattr(b, "text")
    ][:1]
    assert " by das, 3 features, " in sentence, "of 48"
    assert "wrong hypothesis" not in sentence
    few = [
        r.changed(method=Spec(name=r.method.name, args={**r.method.args, "train_at": 1}))
        for r in of
    ]
    (sentence,) = [
        b.text for b in VariablesPage().sections(Report(few))[0].blocks if hasattr(b, "text")
    ][:1]
    assert "20 steps of training at the best site of whole vectors: accuracy" in sentence


def test_the_full_vector_is_a_ceiling_and_named_where_it_alone_has_the_variable(
    results: Report,
) -> None:
    def sentence(*records: Record) -> str:
        blocks = VariablesPage().sections(Report(records))[0].blocks
        (said,) = [block.text for block in blocks if getattr(block, "kind", "") == "verdict"]
        return said

    own = {r.method.name: r for r in results.records if r.specs["variable"].name == "answer"}

    def with_ends(record: Record, low: float) -> Record:
        ends = [
            m.model_copy(update={"low": low})
            if m.name == "gain" or m.of.startswith("difference:")
            else m
            for m in record.measures
        ]
        return record.model_copy(update={"measures": ends})

    whole, das = own["full-vector"], own["das"]
    assert verdict_of(whole) == "found, not isolated"
    assert " by full-vector, " in sentence(whole)
    has_it = sentence(whole, with_ends(das, 0.9))
    assert " is isolated at " in has_it and " by das, " in has_it
    assert "It is in the full vector" not in has_it
    lost = sentence(whole, with_ends(das, 0.1))
    assert " is not " in lost and " by das, " in lost
    assert f"It is in the full vector at {whole.method.args['site']}" in lost


def test_the_tables_have_all_featurizers_and_controls(results: Report) -> None:
    controls, accuracies = VariablesPage().tables(Report(results.records))
    assert [row.cells[0] for row in accuracies.rows] == ["full-vector", "das", "no intervention"]
    assert len(controls.rows) == len(results.records)
    headings = [column.heading for column in controls.columns]
    for control in ("no intervention", "full vector", "random", "random variable"):
        assert control in headings
    for row, record in zip(controls.rows, results.records, strict=True):
        cells = dict(zip(headings, row.cells, strict=True))
        assert cells["verdict"] == verdict_of(record)
        assert cells["untrained model"] and cells["full vector"]
        # Whole vectors are not trained, on any variable.
        assert bool(cells["random variable"]) == (cells["featurizer"] == "das")
    assert accuracies.caption is not None and "chosen on validation pairs" in accuracies.caption


def test_what_was_chosen_on_test_pairs_is_said_to_be(results: Report) -> None:
    record = results.records[0]
    method = record.method.model_copy(update={"args": {**record.method.args, "choose_on": "test"}})
    other = record.model_copy(update={"specs": {**record.specs, "method": method}})
    assert all(
        "chosen on test pairs" in (t.caption or "") for t in VariablesPage().tables(Report([other]))
    )
    assert "was chosen on these pairs" in render("t", VariablesPage().sections(Report([other])))
    assert "was chosen on these pairs" not in render(
        "t", VariablesPage().sections(Report([record]))
    )


@pytest.mark.parametrize("width", [78, 100, 300])
def test_a_console_keeps_names_and_verdicts_whole(results: Report, width: int) -> None:
    out = io.StringIO()
    print_tables(VariablesPage().tables(Report(results.records)), Console(file=out, width=width))
    said = out.getvalue()
    for record in results.records:
        assert str(record.method.args["site"]) in said and record.method.name in said
    assert "name_place" in said and "not found" in said
    # Every control has a column, or the line below the table says that it has none.
    assert " ".join(said.split()).count("random variable") == 1 and ("Not shown" in said) == (
        width < 300
    )


def test_the_page_is_whole(results: Report) -> None:
    page = unescape((results.folder / "report.html").read_text("utf-8"))
    assert page.count('<svg role="img"') >= len(results.records)
    assert "Accuracy on test pairs by layer and position" in page
    for term in ("Gain", "Random variable", "Untrained model", "Found", "Not trained"):
        assert term in page
    assert "mechassay variables run" in page and "nan" not in page.lower().replace("nance", "")


def test_a_record_draws_its_sites(results: Report) -> None:
    (axes, _) = VariablesPage().draw(results.records[0]).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["last"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "2"]


def test_runs_of_several_models_have_tables_of_their_own(results: Report, tmp_path: Path) -> None:
    def renamed(record: Record, name: str) -> Record:
        specs: dict[str, Any] = {
            **record.specs,
            "model": record.model.model_copy(update={"name": name}),
        }
        return record.model_copy(update={"specs": specs})

    both = [*results.records, *(renamed(r, "other") for r in results.records)]
    titles = [table.title for table in VariablesPage().tables(Report(both))]
    assert titles == [
        "truth-ioi, truth-ioi-trained",
        "truth-ioi, other",
        "truth-ioi, truth-ioi-trained",
        "truth-ioi, other",
    ]


def test_cells_without_a_result_are_rows_with_their_reasons(results: Report) -> None:
    failure = Failure(
        cell={"model": "gpt2", "task": "ioi", "variable": "subject_token", "featurizer": "das"},
        error="BadPairs",
        message="gpt2 answers none of 12 examples",
    )
    for records in (results.records, []):
        last = VariablesPage().tables(Report(records, [failure]))[-1]
        assert last.title == "Without a result" and last.rows[0].cells[0] == "subject_token"
        page = render("t", VariablesPage().sections(Report(records, [failure])))
        assert "gpt2 answers none of 12 examples" in page and "1 cell failed" in page
