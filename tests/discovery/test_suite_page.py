"""The suite's tables: which cells stand together, and what is said of cells without a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest

from mechassay.circuits.drawing import Drawing
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.methods_by_column import MOST_COLUMNS, MethodsByColumn
from mechassay.discovery.suite_conclusion import CLOSE, Candidates, conclude_suite
from mechassay.discovery.suite_page import CHOSEN_BY, MANY_FIGURES, SuitePage
from mechassay.models.sources import truth_names
from mechassay.results.page import Fold, Report, Section, TextTable, markdown, render
from mechassay.results.records import Failure, Measure, PairTokens, Record, Selection, Spec, Table
from mechassay.results.verdict import Conclusion, Verdict
from mechassay.runs.run import run
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import SILENT

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
    grids = SuitePage().tables(Report(records))
    assert [(grid.title, grid.headings) for grid in titled(grids, "CMD")] == [
        ("CMD (by magnitude) (lower is better), one", ("method", "ioi", "docstring")),
        ("CMD (by magnitude) (lower is better), two", ("method", "ioi")),
        ("CMD (by magnitude) (lower is better), ground truths", ("method", truth)),
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
        SuitePage().tables(Report([cell(make_record, "one", task) for task in tasks])), "CPR"
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
        for more in SuitePage().sections(Report(records, [], drawings))[-1].blocks
        if isinstance(more, Fold) and more.title == "Each task and model"
        for fold in more.blocks
        if isinstance(fold, Fold)
    )
    assert "An example pair" in ioi and "p-3, the first of 7 pairs" in ioi
    assert "Strongest edges" in ioi and "a0.h4->m" in ioi and "a0.h5->m" not in ioi
    assert "-3" in ioi and "eap" in ioi
    # No pair is held of a private split, and nothing is drawn of nodes.
    assert "An example pair" not in mcqa and "Strongest edges" not in mcqa
    html = render("t", SuitePage().sections(Report(records, [], drawings)))
    assert "a0.h0-&gt;m&lt;0&gt;" in html and "<mark> &lt;c&gt;</mark>" in html
    assert "<svg/>" not in html


def test_figures_of_many_are_left_out_but_not_their_pairs(make_record: Make) -> None:
    first = PairTokens(id="p", clean=["a"], counterfactual=["b"], answers=[" x"], foils=[" y"])
    held = {"test": Selection(hash="h", kept=7, first=first)}
    records = [
        cell(make_record, "one", f"task-{number}").changed(data=held)
        for number in range(MANY_FIGURES + 1)
    ]
    html = render("t", SuitePage().sections(Report(records)))
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
    grids = SuitePage().tables(Report([], failures))
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
    page = SuitePage().sections(Report(records))
    run = markdown(page).split("## What was run")[1]
    assert run.count("| ioi, one |") == 1 and "| eap, nap | other |" in run
    assert "T&lt;" in render("T<", page)


def test_each_task_and_model_has_its_figures_folded(make_record: Make) -> None:
    page = render(
        "T", SuitePage().sections(Report([cell(make_record, "one", t) for t in ("a", "b")]))
    )
    assert page.count("<details") >= 3 and page.count("<svg") == 5
    assert page.count("recover more of the objective than random rankings") == 2


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
    (table,) = titled(SuitePage().tables(Report(records)), "CMD")
    assert table.headings == ("method", plus, minus, "arithmetic (mean)")
    cells = {row.cells[0]: row.cells[-1] for row in table.rows}
    assert cells["eap"] == "0.300 [0.275, 0.325]" and cells["nap"] == "–"
    assert "mean of both operators" in table.caption
    random = {row.cells[0]: row.cells[1:] for row in table.rows if row.kind == "control"}
    assert random and all(cells[0] == cells[1] != "–" for cells in random.values())
    (alone,) = titled(SuitePage().tables(Report(records[:1])), "CMD")
    assert alone.headings == ("method", plus)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Three methods and random scores on two ground truths."""
    experiment = CircuitsExperiment(
        ("truth-ioi-trained", "truth-greater-than-trained"),
        methods=("eap", "eap-ig-inputs", "ifr", "random"),
        metrics=("recovery",),
        train_limit=20,
        limit=20,
        random_rankings=5,
    )
    return run(experiment, tmp_path_factory.mktemp("suite"), progress=SILENT).records


def chosen_by(
    records: Sequence[Record],
    cma: Mapping[str, float],
    seconds: Mapping[str, float],
    n: int = 20,
) -> list[Record]:
    """The records of these methods as if their rankings had such CMAs on n validation pairs, and
    random ones hardly any.
    """
    changed: list[Record] = []
    for record in records:
        method = record.cell["method"]
        if method in cma:
            rows = record.table("smallest circuit").rows()
            rows[0] |= {"cma": cma[method], "n": n}
            areas = record.table("random areas").rows()
            areas = [{**row, "cma": 0.1 + 0.001 * place} for place, row in enumerate(areas)]
            names = ("smallest circuit", "random areas")
            others = [table for table in record.tables if table.name not in names]
            tables = [
                *others,
                Table.of("smallest circuit", ("of",), rows),
                Table.of("random areas", ("of", "seed"), areas),
            ]
            spent = {**record.spent, "localize_cpu_seconds": seconds.get(method, 1.0)}
            changed.append(record.changed(tables=tables, spent=spent))
    return changed


def to_run(records: Sequence[Record]) -> str:
    """The sentences on the method to run, all of which are on the page."""
    conclusion = concluded(records)
    lines = [case.text({}) for case in conclusion.answers if case.part == "to run"]
    if lines:
        assert set(lines[1:]) < set(SuitePage().answers(records))
    return " ".join(lines)


def concluded(records: Sequence[Record]) -> Conclusion:
    cells = MethodsByColumn(Report(records))
    return conclude_suite(cells, Candidates.of(cells))


def test_the_method_to_run_is_chosen_on_validation_pairs(measured: list[Record]) -> None:
    text = to_run(chosen_by(measured, {"eap": 0.97, "eap-ig-inputs": 0.9}, {"eap": 3.0}))
    assert text.startswith(
        "Run eap: of 2 methods with a result on 2 ground truths it has the highest CMA on"
        " validation pairs, 0.970 (mean over 2 ground truths, 20 pairs each). eap takes 3 s of"
        " one core to find a circuit (median). eap-ig-inputs takes the least time, 1 s, with a CMA"
        " of 0.900. eap is better than random rankings on 1 of 2 tasks. On 1 of 2 tasks eap is"
        " above all random rankings that were drawn, which are too few for a test of the best of 2"
        " methods: draw 40 (--random-rankings 40). On test pairs eap is worse than "
    )
    # On the test pairs it is the worse one, and the page says where and by how much.
    lost = re.search(r"worse than eap-ig-inputs on truth-ioi-trained by (0\.\d+) \[(0\.\d+)", text)
    assert lost and 0.02 < float(lost[2]) < float(lost[1])


def test_of_methods_that_are_close_the_cheapest_is_run(measured: list[Record]) -> None:
    cost = {"eap-ig-inputs": 500.0, "ifr": 0.5}
    close = to_run(chosen_by(measured, {"eap-ig-inputs": 0.95, "ifr": 0.95 - CLOSE / 2}, cost))
    assert close.startswith("Run ifr: of 2 methods with a result on 2 ground truths it has a CMA")
    assert "against 0.950 of eap-ig-inputs" in close
    # Less than a minute is no reason to take another than the best.
    short = {"eap-ig-inputs": 50.0, "ifr": 0.5}
    best = to_run(chosen_by(measured, {"eap-ig-inputs": 0.95, "ifr": 0.95 - CLOSE / 2}, short))
    highest = "of 2 methods with a result on 2 ground truths it has the highest CMA"
    assert best.startswith(f"Run eap-ig-inputs: {highest}")
    far = to_run(chosen_by(measured, {"eap-ig-inputs": 0.95, "ifr": 0.95 - 2 * CLOSE}, cost))
    assert far.startswith("Run eap-ig-inputs: ") and "ifr takes the least time" in far
    assert far.endswith(
        "On test pairs no method is resolved to be better than eap-ig-inputs (2 of 2 tasks"
        " compared)."
    )


def test_a_task_on_a_model_counts_as_much_as_all_ground_truths(measured: list[Record]) -> None:
    """Of IFR .98 and .7, of EAP .6 and .9, .9: a mean of means of .84 against .75."""
    cost = {"eap": 3.0, "ifr": 1.0}
    truths = chosen_by(measured, {"eap": 0.9, "ifr": 0.7}, cost)
    (first, *_) = (r.model.name for r in truths)
    own = [r for r in truths if r.model.name == first]
    real: list[Record] = []
    for record in chosen_by(own, {"eap": 0.6, "ifr": 0.98}, {"eap": 30.0, "ifr": 10.0}):
        cell = {**record.cell, "model": "real", "task": "ioi"}
        specs = {**record.specs, "model": record.model.model_copy(update={"name": "real"})}
        specs["task"] = record.task.model_copy(update={"name": "ioi"})
        real.append(record.changed(cell=cell, specs=specs))
    text = to_run([*real, *truths])
    assert text.startswith("Run ifr: of 2 methods with a result on 1 task and 2 ground truths it")
    assert "the highest CMA on validation pairs, 0.840 (mean over 1 task and 2 ground tr" in text
    # What it costs is said of the tasks; ground truths are small.
    assert "ifr takes 10 s" in text
    (table,) = (t for t in SuitePage().tables(Report([*real, *truths])) if t.title == CHOSEN_BY)
    heads = [column.heading for column in table.columns]
    assert heads == ["method", "CMA, 1 task", "CMA, 2 ground truths", "mean", "seconds to find"]
    assert [row.cells for row in table.rows] == [
        ("ifr", "0.980", "0.700", "0.840", "10 s"),
        ("eap", "0.600", "0.900", "0.750", "30 s"),
    ]
    assert to_run(truths).startswith("Run eap: ") and to_run(real).startswith("Run ifr: ")


def of_model(records: Sequence[Record], model: str, task: str) -> list[Record]:
    """Records of one column, as if they were of another model and task."""
    return [
        record.changed(
            cell={**record.cell, "model": model, "task": task},
            model=record.model.model_copy(update={"name": model}),
            task=record.task.model_copy(update={"name": task}),
        )
        for record in records
    ]


def test_two_models_are_not_two_tasks(measured: list[Record]) -> None:
    """Of EAP .9 and .9 in one model and .3 in the other: a mean of .6, not of .7."""
    own = [r for r in measured if r.model.name == measured[0].model.name]
    first = chosen_by(own, {"eap": 0.9, "ifr": 0.65}, {})
    second = chosen_by(own, {"eap": 0.3, "ifr": 0.65}, {})
    every = [*of_model(first, "one", "ioi"), *of_model(second, "two", "ioi")]
    assert "(mean over 1 task on 2 models, " in to_run(every)
    every += of_model(first, "one", "mcqa")
    text = to_run(every)
    assert text.startswith("Run ifr: ") and "0.650 (mean over 2 tasks on 2 models, " in text
    (table,) = (t for t in SuitePage().tables(Report(every)) if t.title == CHOSEN_BY)
    assert [row.cells[:2] for row in table.rows] == [("ifr", "0.650"), ("eap", "0.600")]
    assert table.columns[1].heading == "CMA, 2 tasks on 2 models"


def test_what_no_method_to_run_follows_from(measured: list[Record]) -> None:
    cma = {"eap": 0.8, "ifr": 0.9}
    alone = "Only eap has a sound result on 2 ground truths, so no methods are compared."
    none = "No method has a sound result on 2 ground truths, so no methods are compared."
    assert to_run(chosen_by(measured, {"eap": 0.9}, {})) == alone
    assert to_run(chosen_by(measured, cma, {}, n=FEW_GROUPS - 1)) == none
    assert to_run(chosen_by(measured, {**cma, "ifr": float("nan")}, {})) == alone
    # Random scores are a control, whatever they have by chance.
    with_random = to_run(chosen_by(measured, {**cma, "random": 0.99}, {}))
    assert with_random.startswith("Run ifr: of 2 methods")
    # Pairs that circuits were found on choose nothing.
    on_train = list[Record]()
    for record in chosen_by(measured, cma, {}):
        rows = record.table("smallest circuit").rows()
        rows[0]["split"] = "train"
        others = [table for table in record.tables if table.name != "smallest circuit"]
        table = Table.of("smallest circuit", ("of",), rows)
        on_train.append(record.changed(tables=[*others, table]))
    assert to_run(on_train) == none
    # The time of scores in a file is not known, and they are compared nevertheless.
    of_file = to_run(chosen_by(measured, cma, {"ifr": float("nan")}))
    assert of_file.startswith("Run ifr: of 2 methods")
    assert "The time that ifr takes is not known, as its scores are from a file." in of_file
    slow = to_run(chosen_by(measured, {"eap": 0.9, "ifr": 0.895}, {"ifr": float("nan")}))
    assert slow.startswith("Run eap: of 2 methods")
    # A method that one column lacks is none of those compared.
    lacking = [
        record
        for record in chosen_by(measured, {**cma, "eap-ig-inputs": 0.99}, {})
        if (record.cell["method"], record.model.name) != ("eap-ig-inputs", "truth-ioi-trained")
    ]
    assert to_run(lacking).startswith(
        "Run ifr: of 2 methods with a result on 2 ground truths it has"
    )
    assert (
        "eap-ig-inputs gets no average: it has no result on truth-ioi-trained."
        in concluded(lacking).lines
    )


def test_a_method_no_better_than_random_rankings_is_not_to_be_run(measured: list[Record]) -> None:
    records = list[Record]()
    for record in chosen_by(measured, {"eap": 0.9, "ifr": 0.8}, {}):
        rows = [{**row, "cma": 1.0} for row in record.table("random areas").rows()]
        tables = [table for table in record.tables if table.name != "random areas"]
        areas = Table.of("random areas", ("of", "seed"), rows)
        records.append(record.changed(tables=[*tables, areas]))
    assert to_run(records) == (
        "No method to run: of 2 methods eap has the highest CMA on validation pairs, 0.900 (mean"
        " over 2 ground truths, 20 pairs each), and it is not shown to be better than random"
        " rankings on any task."
    )
    assert concluded(records).verdict is Verdict.NOT_DISTINGUISHABLE


def test_smallest_circuits_and_stable_edges_have_tables(measured: list[Record]) -> None:
    tables = SuitePage().tables(Report(measured))
    (holds,), (stable,) = titled(tables, "Smallest circuit that holds"), titled(tables, "Stable")
    rows = {row[0]: row[1:] for row in holds.texts}
    record = next(r for r in measured if r.cell["method"] == "eap-ig-inputs")
    row = record.table("smallest circuit").where(of="result")
    assert rows["eap-ig-inputs"][0].startswith(f"{100 * row.numbers('fraction')[0]:g}\u00a0%: A ")
    assert rows["random"][0].startswith("none up to 50")
    # Information flow routes and random scores are no means over pairs.
    assert {row[0] for row in stable.texts} == {"eap", "eap-ig-inputs"}


def test_few_random_rankings_for_many_methods_are_named(measured: list[Record]) -> None:
    """Five rankings, all of them far below: too few for the best of three methods."""
    records = list[Record]()
    for record in chosen_by(measured, {"eap": 0.7, "eap-ig-inputs": 0.95, "ifr": 0.8}, {}):
        rows = record.table("random areas").rows()
        rows = [{**row, "cma": 0.1 * (place % 5)} for place, row in enumerate(rows)]
        tables = [table for table in record.tables if table.name != "random areas"]
        areas = Table.of("random areas", ("of", "seed"), rows)
        records.append(record.changed(tables=[*tables, areas]))
    text = to_run(records)
    assert "better than random" not in text
    assert "On 2 of 2 tasks eap-ig-inputs is above all random rankings that were drawn" in text


def test_tasks_and_methods_without_any_result_are_named(measured: list[Record]) -> None:
    """No method is judged on a task whose cells were skipped; a method that failed everywhere gets
    no average. The terminal, which has the failures, says the same as the page.
    """
    records = chosen_by(measured, {"eap": 0.9, "ifr": 0.8}, {})
    skipped_task = [
        Failure(
            cell={"method": method, "task": "mcqa", "model": "one"},
            error="at chance",
            message="one is not shown to do mcqa.",
            status="skipped",
        )
        for method in ("eap", "ifr")
    ]
    failed_method = [
        Failure(
            cell={"method": "acdc", "task": r.cell["task"], "model": r.cell["model"]},
            error="BadUsage",
            message="no such objective.",
        )
        for r in records
        if r.cell["method"] == "eap"
    ]
    report = Report(records, [*skipped_task, *failed_method])
    lines = report.answers
    assert lines == SuitePage().answers(records, report.failures)
    assert lines[0].startswith("No method is judged on 1 of 3 tasks. Run eap: of 2 methods")
    why = "skipped (at chance): one is not shown to do mcqa."
    assert f"No method is judged on mcqa (one): {why}" in lines
    assert any(line.startswith("acdc gets no average: it has no result on ") for line in lines)
    alone = SuitePage().answers([], skipped_task)
    none = "No verdict: no task is left on which methods can be compared. No method is judged on"
    assert alone[0].startswith(f"{none} mcqa (one): skipped (at chance)")
