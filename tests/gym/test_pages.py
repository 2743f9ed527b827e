"""Sweeps in the form of the paper's table 2, and what was chosen on validation items."""

from __future__ import annotations

from typing import Any

import pytest

from mechassay.gym.names import SWEEPS
from mechassay.gym.pages import GymPage
from mechassay.gym.paper_tables import chosen_table, sweep_sections
from mechassay.results.page import Report, TextTable, plain_text
from mechassay.results.records import Record, Spec, Table, provenance


def record(rows: list[dict[str, Any]], task: str = "t") -> Record:
    """A record that has nothing but the table of candidates."""
    specs = {name: Spec(name=task if name == "task" else "m") for name in ("model", "task")}
    return Record(
        kind="gym",
        specs=specs,
        measures=[],
        tables=[Table.of("candidates", ("method", "setting"), rows)],
        provenance=provenance(device="", dtype="", seed=0),
    )


def candidate(method: str, setting: str, score: float, chosen: bool = True) -> dict[str, Any]:
    """A row without intervals, of validation items whose number is not known."""
    row: dict[str, Any] = {"method": method, "setting": setting, "chosen": chosen}
    for name, value in (("validation", score), ("odds", score / 2), ("selectivity", score / 4)):
        row |= {name: value, f"{name}_low": None, f"{name}_high": None}
    return {**row, "n_validation": 0, "n": 40}


def table_of(found: list[Any], number: int) -> TextTable:
    table = found[0].blocks[number]
    assert isinstance(table, TextTable)
    return table


def test_sweeps_have_the_form_of_the_paper() -> None:
    methods = [method for sweep in SWEEPS.values() for method in sweep]
    tasks = [
        record([candidate(m, "", shift + n) for n, m in enumerate(methods)], f"t{shift}")
        for shift in (0, 2)
    ]
    found = sweep_sections({"m": tasks})
    probes, axes, trainings = (table_of(found, number) for number in range(3))
    assert len(probes.rows) == 8 and probes.headings[4:] == (
        "none",
        "1",
        "10",
        "100",
        "1,000",
        "10,000",
    )
    # The mean of the two tasks, each in its place.
    place = methods.index("probe-saga:penalty=l2,intercept=True,l2=1000")
    (row,) = (row for row in probes.rows if row.cells[2:4] == ("L2", "yes"))
    assert row.cells[8] == f"{place + 1:.2f}" and all(row.cells[5:])
    assert [row.cells[4] != "" for row in probes.rows] == [True, True] + [False] * 6
    assert axes.headings == ("model", "method", "1", "2", "3", "4", "5") and len(axes.rows) == 1
    best = axes.rows[0].cells[6]
    assert "<strong>" in best and plain_text(best) == f"{22 + 4 + 1:.2f}"
    assert trainings.headings[:3] == ("model", "method", "learning rate")
    assert trainings.headings[3:] == ("0", "25", "50", "75", "99")
    assert {row.cells[1] for row in trainings.rows} == {"DAS, stopped"}
    assert [row.cells[2] for row in trainings.rows] == ["0.001", "0.005", "0.01"]
    assert sum(bool(cell) for row in trainings.rows for cell in row.cells[3:]) == 15


def test_settings_that_not_all_tasks_have_are_left_out() -> None:
    method = SWEEPS["table-2b"][0]
    have, lack = record([candidate(method, "", 1.0)]), record([candidate("mean", "", 1.0)])
    assert sweep_sections({"m": [have]}) and sweep_sections({"m": [have, lack]}) == []
    assert sweep_sections({"m": []}) == []


@pytest.mark.parametrize("first", [True, False])
def test_what_was_chosen(first: bool) -> None:
    some = [
        record([candidate("probe", "l2=1", 3.0, True), candidate("probe", "l2=2", 1.0, False)]),
        record(
            [candidate("probe", "l2=1", 1.0, first), candidate("probe", "l2=2", 2.0, not first)]
        ),
    ]
    (table,) = chosen_table(some, ["probe"], "m")
    chosen = "2 of 2" if first else "1 of 2"
    assert table.rows[0].cells == ("probe", "l2=1", "2.00", "1.00", "0.50", chosen)
    assert "n:" not in table.caption, "how many validation items there are is not known"
    assert "Means over tasks have no interval" in table.caption
    assert chosen_table(some, ["mean"], "m") == []


def test_the_choice_of_one_task_has_intervals_and_how_many_items() -> None:
    more = {"validation_low": 2.0, "validation_high": 4.0, "odds_low": 1.0, "odds_high": 2.0}
    more |= {"n_validation": 60, "n": 40}
    one = record([{**candidate("probe", "l2=1", 3.0), **more}])
    (table,) = chosen_table([one], ["probe"], "m")
    cells = dict(zip(table.headings, table.rows[0].cells, strict=True))
    assert cells["validation items"] == "3.0 [2.0, 4.0]"
    assert cells["test items"] == "1.5 [1.0, 2.0]"
    assert "n: 60 validation items and 40 test items" in table.caption
    assert cells["test items, selectivity"] == "0.75" and "Brackets" in table.caption
    (both,) = chosen_table([one, one], ["probe"], "m")
    assert both.rows[0].cells[2] == "3.00"


def test_a_sweep_of_one_task_has_intervals() -> None:
    method = SWEEPS["table-2b"][0]
    row = {**candidate(method, "", 3.0), "validation_low": 2.0, "validation_high": 4.0}
    table = table_of(sweep_sections({"m": [record([row])]}), 0)
    assert plain_text(table.rows[0].cells[2]) == "3.0 [2.0, 4.0]"


def test_titles_say_whose_indices_were_used() -> None:
    plain = record([])
    mixed = plain.model_copy(
        update={"specs": {**plain.specs, "method": Spec(name="", args={"compat": "code"})}}
    )
    assert GymPage().title(Report([plain])) == "Gym tasks: t"
    assert GymPage().title(Report([mixed])) == "Gym tasks: t, with the indices of code"
