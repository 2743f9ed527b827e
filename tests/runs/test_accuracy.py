"""Tables and figures of accuracy, from records made without a model.

Accuracy of a task: all kinds of prompts are scored together, and told apart again.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import mechassay as ma
from helpers.edits import unnoticed
from helpers.tiny_models import with_words
from mechassay.models.model import make_model
from mechassay.results.page import Report, markdown, render
from mechassay.results.plots import svg
from mechassay.results.preconditions import ABILITY
from mechassay.results.records import Failure, Measure, Record, Spec, Table, Values, provenance
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.accuracy_page import AccuracyPage, draw_accuracy, short
from mechassay.tasks import load_task
from mechassay.tasks.accuracy import ORIGINAL, score_prompts
from mechassay.utils.display import SILENT


def record(model: str, task: str = "mcqa", *, ranked: bool = True, **args: object) -> Record:
    measures = [
        Measure(name="greedy@original", value=0.9, low=0.8, high=0.95, n=50),
        Measure(name="chance@original", value=0.25, n=50),
    ]
    measures += [
        Measure(
            name="greedy@noun_counterfactual", value=1.0, low=0.93, high=1.0, n=48, n_undefined=2
        )
    ]
    measures += [Measure(name="greedy@abc_counterfactual", value=float("nan"), n=0, n_undefined=50)]
    if ranked:
        measures += [Measure(name="ranked@original", value=0.96, low=0.86, high=0.99, n=50)]
    about = provenance(device="cpu", dtype="float32", seed=0, data_hash="abc")
    spec = Spec(name=task, args=dict(args))
    ids = [str(i) for i in range(50)]
    return Record(
        kind="accuracy",
        specs={
            "model": Spec(name=model),
            "task": spec,
            "method": Spec(name="behaviour"),
            "metric": Spec(name="accuracy"),
        },
        measures=measures,
        values=Values(unit="example", ids=ids, groups=ids),
        provenance=about,
    )


def test_grids() -> None:
    failure = Failure(
        cell={"model": "c", "task": "ioi"}, error="BadPairs", message="too few | pairs"
    )
    overall, mcqa = AccuracyPage().tables(
        Report([record("a"), record("b", ranked=False)], [failure])
    )
    assert overall.headings == (
        "task",
        "a: greedy",
        "a: ranked choice",
        "b: greedy",
        "b: ranked choice",
        "chance",
        "n",
    )
    assert overall.texts[0] == (
        "mcqa",
        "0.90 [0.80, 0.95]",
        "0.96 [0.86, 0.99]",
        "0.90 [0.80, 0.95]",
        "–",
        "0.25",
        "50",
    )
    assert overall.texts[1] == ("ioi", "c failed: too few | pairs")
    assert [row[0] for row in mcqa.texts] == [
        "original",
        "noun",
    ], "a kind without a right answer has no row"
    assert mcqa.texts[1][-1] == "48"


def test_settings_make_another_task() -> None:
    grids = AccuracyPage().tables(Report([record("a", n_choices=4), record("a", n_choices=6)]))
    assert [grid.title for grid in grids] == [
        "Original prompts",
        "mcqa (n_choices=4)",
        "mcqa (n_choices=6)",
    ]
    grids = AccuracyPage().tables(
        Report([record("a", labels="strict"), record("a", labels="mib-2025")])
    )
    assert [grid.title for grid in grids] == ["Original prompts", "mcqa", "mcqa (labels=mib-2025)"]


def test_the_scoring_of_mib_is_a_column_where_a_record_has_it() -> None:
    lax = record("b")
    measures = [
        *lax.measures,
        Measure(name="mib-2025@original", value=0.5, low=0.4, high=0.6, n=50),
    ]
    overall, mcqa = AccuracyPage().tables(
        Report([record("a"), lax.model_copy(update={"measures": measures})])
    )
    columns = [
        f"{model}: {name}" for model in "ab" for name in ("greedy", "ranked choice", "mib-2025")
    ]
    assert overall.headings == ("task", *columns, "chance", "n") == ("task", *mcqa.headings[1:])
    assert overall.texts[0][3] == "–" and overall.texts[0][6] == "0.50 [0.40, 0.60]"


def test_another_word_set_makes_another_task() -> None:
    grids = AccuracyPage().tables(
        Report([record("a", "ioi", words="own"), record("a", "ioi", words="paper")])
    )
    assert [grid.title for grid in grids] == ["Original prompts", "ioi", "ioi (words=paper)"]


def test_few_examples_are_not_rounded_below_chance() -> None:
    """One of four right: its interval supports one digit,
    but "0.2" beside a chance of "0.25" would look worse than guessing.
    """
    few = [
        Measure(name="greedy@original", value=0.25, low=0.0456, high=0.6994, n=4),
        Measure(name="chance@original", value=0.25, n=4),
    ]
    overall, *_ = AccuracyPage().tables(Report([record("a").model_copy(update={"measures": few})]))
    assert overall.texts[0] == ("mcqa", "0.25 [0.05, 0.70]", "–", "0.25", "4")


def test_page_and_markdown() -> None:
    failure = Failure(cell={"model": "c", "task": "x"}, error="E", message="a | b")
    made = AccuracyPage().sections(Report([record("<a>")], [failure]))
    page, text = render("T", made), markdown(made)
    assert "&lt;a&gt;" in page and "<a>" not in page and "<svg" in page
    assert "a \\| b" in text and "| mcqa | 0.90 [0.80, 0.95] |" in text
    assert "c failed: a | b" in render("T", AccuracyPage().sections(Report([], [failure])))


def test_the_figure_shows_every_kind() -> None:
    drawn = svg(draw_accuracy([record("a"), record("b")]))
    ElementTree.fromstring(drawn)
    for text in ("original", "noun", "a, greedy", "b, ranked choice", "chance"):
        assert f">{text}<" in drawn


@pytest.mark.parametrize(
    ("kind", "name"),
    [("original", "original"), ("answerPosition_symbol_counterfactual", "answerPosition symbol")],
)
def test_short_names(kind: str, name: str) -> None:
    assert short(kind) == name


def test_columns_are_those_of_each_kind_by_itself(tmp_path: Path) -> None:
    model, task = make_model(*with_words(), name="tiny"), load_task("ioi")
    experiment = AccuracyExperiment(models=("tiny",), tasks=("ioi",), limit=20)
    about = {"models": {"tiny": model}, "progress": SILENT}
    (record,) = ma.run(experiment, tmp_path / "run", **about).records
    assert record.values is not None
    examples = task.examples("test", model, limit=20, seed=0)
    kinds = (ORIGINAL, *task.counterfactuals)
    assert set(record.values.columns) == {f"{n}@{k}" for n in ("greedy", "ranked") for k in kinds}
    seen: set[float] = set()
    for kind in kinds:
        prompts = [x.prompt if kind == ORIGINAL else x.counterfactuals.get(kind) for x in examples]
        there = [row for row, prompt in enumerate(prompts) if prompt is not None and prompt.answers]
        alone = score_prompts(model, [prompt for prompt in prompts if prompt and prompt.answers])
        for name in ("greedy", "ranked"):
            expected = np.full(len(examples), np.nan)
            expected[there] = getattr(alone, name)
            column = np.array(record.values.columns[f"{name}@{kind}"], dtype=float)
            np.testing.assert_array_equal(column, expected)
            seen |= set(column[~np.isnan(column)])
    assert seen == {0.0, 1.0}
    chance = {(f"chance@{kind}", "result") for kind in kinds}
    assert unnoticed(record, tmp_path) == chance, "chance has no values of examples"


def test_a_record_of_accuracy_draws_itself(tmp_path: Path) -> None:
    experiment = AccuracyExperiment(("truth-ioi",), ("truth-ioi",), limit=4)
    record = ma.run(experiment, tmp_path / "run", progress=SILENT).records[0]
    figure = record.plot()
    assert figure.axes[0].get_xlabel() == "accuracy" and "<svg" in record.html()
    axes = Figure().subplots()
    assert record.plot(axes) is axes.figure and axes.get_xlabel() == "accuracy"


def test_examples_without_an_answer_are_no_groups() -> None:
    """Of 40 examples 12 have a right answer, and 12 are too few for a verdict."""
    own, ids = record("a"), [str(n) for n in range(40)]
    columns = {name: [1.0] * 12 for name in ("right", "exchanged", "tied", "chance")}
    columns |= {"exchanged": [0.25] * 12, "tied": [0.0] * 12, "chance": [0.25] * 12}
    able = Table(
        name=ABILITY,
        keys=("pair",),
        columns={"pair": ids[:12], "group": ids[:12], "contrast": ids[:12], **columns},
    )
    values = Values(unit="example", ids=ids, groups=ids)
    made = own.model_copy(update={"values": values, "tables": [able]})
    (answer,) = AccuracyPage().answers([made])
    assert answer.startswith("No verdict: only 12 independent test examples of mcqa")
    (missing,) = AccuracyPage().answers([own])
    assert missing.startswith(
        "This record does not say whether a reads the prompts of mcqa or prefers some answers"
        " whatever the prompt."
    )
