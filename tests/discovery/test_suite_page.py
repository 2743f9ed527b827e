"""The suite's tables: which cells stand together, and what is said of cells without a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mechassay.circuits.drawing import Drawing
from mechassay.discovery.suite_page import MANY_FIGURES, MOST_COLUMNS, SuitePage
from mechassay.models.sources import truth_names
from mechassay.results.page import Fold, Section, TextTable, markdown, render
from mechassay.results.records import Failure, Measure, PairTokens, Record, Selection, Spec

Make = Callable[..., Record]


def cell(
    make: Make, model: str, task: str, method: str = "eap", auroc: float | None = None
) -> Record:
    measures: list[Measure] = []
    if auroc is not None:
        made = Measure(
            name="auroc", title="AUROC", better="up", value=auroc, low=auroc - 0.1, high=auroc + 0.1
        )
        chance = {"of": "control:random", "value": 0.5, "low": 0.31, "high": 0.69}
        measures = [made, made.model_copy(update=chance)]
    spec = Spec(name=task, args={"counterfactual": "other"})
    return make(method, model=model, task=spec, measures=measures)


def skipped(method: str, message: str, task: str = "mcqa") -> Failure:
    return Failure(
        cell={"method": method, "task": task, "model": "one"},
        error="too dear",
        message=message,
        status="skipped",
    )


def titled(grids: Sequence[TextTable], start: str) -> list[TextTable]:
    return [grid for grid in grids if grid.title.startswith(start)]


def test_each_model_has_its_tables_and_ground_truths_have_theirs(make_record: Make) -> None:
    truth = truth_names()[0]
    records = [cell(make_record, "one", "ioi"), cell(make_record, truth, truth, auroc=0.9)]
    records += [cell(make_record, "two", "ioi"), cell(make_record, "one", "docstring", "nap")]
    grids = SuitePage().tables(records, [])
    assert [(grid.title, grid.headings) for grid in titled(grids, "CMD")] == [
        ("CMD (lower is better), one", ("method", "ioi", "docstring")),
        ("CMD (lower is better), two", ("method", "ioi")),
        ("CMD (lower is better), ground truths", ("method", truth)),
    ]
    (auroc,) = titled(grids, "AUROC")
    assert auroc.texts == (("eap", "0.90 [0.80, 1.00]"), ("random edges", "0.50 [0.31, 0.69]"))
    assert [row[:3] for row in titled(grids, "CPR")[0].texts[:2]] == [
        ("eap", "0.90 [0.80, 1.00]", "–"),
        ("nap", "–", "0.90 [0.80, 1.00]"),
    ]


def test_no_table_is_too_wide_and_no_column_is_lost(make_record: Make) -> None:
    tasks = [f"task-{number}" for number in range(2 * MOST_COLUMNS + 1)]
    grids = titled(
        SuitePage().tables([cell(make_record, "one", task) for task in tasks], []), "CPR"
    )
    assert len(grids) == 3 and all(len(grid.columns) <= 1 + MOST_COLUMNS for grid in grids)
    assert [name for grid in grids for name in grid.headings[1:]] == tasks
    assert grids[1].title.endswith("one (2 of 3)")


def test_each_task_and_model_has_a_pair_and_the_strongest_edges(make_record: Make) -> None:
    words = {"clean": ["a", " b"], "counterfactual": ["a", " <c>"]}
    first = PairTokens(id="p-3", **words, answers=[" x"], foils=[" y"])
    records = [cell(make_record, "one", "ioi"), cell(make_record, "one", "mcqa", "nap")]
    held = {"test": Selection(hash="h", kept=7, first=first)}
    records = [records[0].changed(data=held), *records[1:]]
    edges = tuple((f"a0.h{number}->m<{number}>", 1.0 - number) for number in range(9))
    of = {"model": "one", "task": "ioi", "method": "eap"}
    drawings = [Drawing("<svg/>", "t", "a", edges, of), Drawing("<svg/>", "t", "a", (), of)]
    ioi, mcqa = (
        markdown([Section("", fold.blocks)])
        for more in SuitePage().sections(records, [], drawings)[-1].blocks
        if isinstance(more, Fold) and more.title == "Each task and model"
        for fold in more.blocks
        if isinstance(fold, Fold)
    )
    assert "An example pair" in ioi and "p-3, the first of 7 pairs" in ioi
    assert "Strongest edges" in ioi and "a0.h4->m" in ioi and "a0.h5->m" not in ioi
    assert "-3" in ioi and "eap" in ioi
    # No pair is held of a private split, and nothing is drawn of nodes.
    assert "An example pair" not in mcqa and "Strongest edges" not in mcqa
    html = render("t", SuitePage().sections(records, [], drawings))
    assert "a0.h0-&gt;m&lt;0&gt;" in html and "<mark> &lt;c&gt;</mark>" in html
    assert "<svg/>" not in html


def test_figures_of_many_are_left_out_but_not_their_pairs(make_record: Make) -> None:
    first = PairTokens(id="p", clean=["a"], counterfactual=["b"], answers=[" x"], foils=[" y"])
    held = {"test": Selection(hash="h", kept=7, first=first)}
    records = [
        cell(make_record, "one", f"task-{number}").changed(data=held)
        for number in range(MANY_FIGURES + 1)
    ]
    html = render("t", SuitePage().sections(records, []))
    assert f"Figures of {MANY_FIGURES + 1} tasks and models are left out" in html
    assert html.count("An example pair") == MANY_FIGURES + 1 and "<svg" not in html


def test_cells_without_a_number_stand_together_by_reason(make_record: Make) -> None:
    failures = [
        skipped("exact", "about 7 h"),
        skipped("ugs", "about 30 h"),
        skipped("a", "same", "ioi"),
        skipped("b", "same", "ioi"),
    ]
    failures.append(
        Failure(
            cell={"method": "eap", "task": "mcqa", "model": "one"},
            error="BadUsage",
            message="no gradient",
        )
    )
    grids = SuitePage().tables([], failures)
    assert titled(grids, "Failed")[0].texts == (
        ("mcqa, one", "skipped: too dear", "exact, ugs", "exact: about 7 h; ugs: about 30 h"),
        ("ioi, one", "skipped: too dear", "a, b", "same"),
        ("mcqa, one", "failed: BadUsage", "eap", "no gradient"),
    )
    cmd = dict((row[0], row[1:]) for row in titled(grids, "CMD")[0].texts)
    assert (
        cmd["exact"] == ("skipped", "–")
        and cmd["b"] == ("–", "skipped")
        and cmd["eap"][0] == "failed"
    )


def test_what_was_run_has_a_row_for_each_cell(make_record: Make) -> None:
    records = [
        cell(make_record, "one", task, m) for task in ("ioi", "mcqa") for m in ("eap", "nap")
    ]
    page = SuitePage().sections(records)
    run = markdown(page).split("## What was run")[1]
    assert run.count("| ioi, one |") == 1 and "| eap, nap | other |" in run
    assert "T&lt;" in render("T<", page)


def test_each_task_and_model_has_its_figures_folded(make_record: Make) -> None:
    page = render("T", SuitePage().sections([cell(make_record, "one", t) for t in ("a", "b")]))
    assert page.count("<details") >= 3 and page.count("<svg") == 5
    assert page.count("recover more of one&#39;s logit difference") == 2


def test_a_failure_from_before_there_was_a_status_has_failed() -> None:
    assert Failure.model_validate({"cell": {}, "error": "E", "message": "m"}).status == "failed"


def with_cmd(
    make: Make, task: str, method: str, value: float, half: float, shift: float = 0.0
) -> Record:
    """A record with a CMD of this value and interval."""
    record = cell(make, "one", task, method)
    measures = [
        m.model_copy(update={"value": value, "low": value - half, "high": value + half})
        if m.name == "cmd" and m.of == "result"
        else m
        for m in record.measures
    ]
    return record.changed(measures=measures)


def test_both_operators_have_a_mean(make_record: Make) -> None:
    """Of .2 +- .03 and .4 +- .04: .3 +- .05 / 2; of random rankings too; not of one operator."""
    plus, minus = "arithmetic-addition", "arithmetic-subtraction"
    records = [
        with_cmd(make_record, plus, "eap", 0.2, 0.03),
        with_cmd(make_record, minus, "eap", 0.4, 0.04),
        with_cmd(make_record, plus, "nap", 0.2, 0.03),
    ]
    (table,) = titled(SuitePage().tables(records, []), "CMD")
    assert table.headings == ("method", plus, minus, "arithmetic (mean)")
    cells = {row.cells[0]: row.cells[-1] for row in table.rows}
    assert cells["eap"] == "0.300 [0.275, 0.325]" and cells["nap"] == "–"
    assert "mean of both operators" in table.caption
    random = {row.cells[0]: row.cells[1:] for row in table.rows if row.kind == "control"}
    assert random and all(cells[0] == cells[1] != "–" for cells in random.values())
    (alone,) = titled(SuitePage().tables(records[:1], []), "CMD")
    assert alone.headings == ("method", plus)
