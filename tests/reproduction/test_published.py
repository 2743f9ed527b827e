"""Tables of papers as data: shapes, the place of every number, readings of some by hand."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean

import pytest

from mechassay.adversarial.paper import ROWS, TASKS, printed_column
from mechassay.errors import UnknownName
from mechassay.gym.names import FAMILY_OF, SWEPT
from mechassay.reproduction.published import AVERAGE, PAPERS, Paper, Published, published
from mechassay.reproduction.runners import RUNNERS


def values(paper: Paper, table: str, measure: str = "") -> list[Published]:
    return [
        value
        for own in published(paper).tables
        if own.table == table
        for value in own.values
        if not measure or value.measure == measure
    ]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_has_a_place_and_something_that_runs_it_or_a_reason(paper: Paper) -> None:
    for table in published(paper).tables:
        assert table.values
        places = Counter((value.row, value.column) for value in table.values)
        assert max(places.values()) == 1
        assert not (table.experiment and table.unmapped)
        assert table.experiment in (*RUNNERS, "")
        for value in table.values:
            assert math.isfinite(value.value) or value.printed == "?"
            if table.experiment and value.of:
                assert value.of["model"] in published(paper).models


@pytest.mark.parametrize(
    ("table", "n", "row", "column", "printed"),
    [
        ("2", 108, "EAP-IG-act. (CF)", "interpbench", "0.81"),
        ("2", 108, "EActP (CF)", "ioi/gpt2", "0.02"),
        ("2", 108, "IFR", "arc-challenge/llama3.1", "0.76"),
        ("14", 97, "EAP-IG-inputs (CF)", "ioi/gemma2", "3.20"),
        ("14", 97, "UGS", "mcqa/qwen2.5", "1.17"),
        ("1", 24, "accuracy", "arithmetic-subtraction/gpt2", "0.10"),
        ("12", 36, "AP+C", "mcqa/llama3.1", "0.72"),
        ("18", 28, "8.10", "STok", "2.82"),
    ],
)
def test_numbers_of_mib(table: str, n: int, row: str, column: str, printed: str) -> None:
    own = values("mib", table)
    assert len(own) == n
    (value,) = (v for v in own if (v.row, v.column) == (row, column))
    assert value.printed == printed


def test_mean_cpr_of_integrated_gradients_is_that_of_the_table() -> None:
    # By hand: 17.15 / 11, the mean over the columns of table 14.
    row = [v.value for v in values("mib", "14") if v.method == "eap-ig-inputs"]
    assert len(row) == 11
    assert fmean(row) == pytest.approx(1.56, abs=0.005)


@pytest.mark.parametrize(("table", "pairs"), [("3", "unmatched"), ("7", "matched")])
def test_divergences_are_those_that_the_adversarial_paper_experiment_compares(
    table: str, pairs: str
) -> None:
    printed = {(v.row, v.column): v.value for v in values("adversarial", table, "kl")}
    for task in TASKS:
        column = [printed[row, f"{task}-{pairs}"] for row in ROWS]
        assert column == list(printed_column(pairs, task)) and len(column) == 11
    mean, std, *_, largest = printed_column("matched", "ioi")
    assert (mean, std, largest) == (0.59, 0.53, 8.83)


def test_gym_tables_have_all_tasks_and_averages() -> None:
    for number in range(3, 21):
        own = values("causalgym", str(number))
        tasks = {v.of["task"] for v in own if v.of}
        assert tasks == set(FAMILY_OF)
        assert any(v.column.startswith(AVERAGE) for v in own)


def test_few_numbers_of_the_gym_are_not_legible() -> None:
    tables = published("causalgym").tables
    unread = [v for table in tables for v in table.values if v.printed == "?"]
    assert len([v for v in unread if v.table != "2"]) == 4


def test_the_sweeps_of_the_gym_have_every_setting_and_what_is_legible() -> None:
    own = values("causalgym", "2")
    assert {v.method for v in own} == SWEPT and len(own) == 3 * len(SWEPT) == 126
    # 22 settings of probes, 5 of PCA, 15 of DAS; points are lost in 55 of their numbers.
    assert sum(math.isnan(v.value) for v in own) == 55
    by = {(v.row, v.column): v.printed for v in own}
    assert by["probe, L2, no intercept, 10", "sweep/pythia-31m"] == "2.14"
    assert by["PCA, mean of 1", "sweep/pythia-70m"] == "1.18"
    assert by["DAS, 0.01, step 25", "sweep/pythia-14m"] == "3.17"
    assert by["DAS, 0.005, step 0", "sweep/pythia-70m"] == "0.02"


def test_tables_and_cells_are_chosen_by_name() -> None:
    mib = published("mib")
    (table,) = mib.chosen(["2"], ["ioi/gpt2"])
    assert {value.column for value in table.values} == {"ioi/gpt2"}
    with pytest.raises(UnknownName, match="Known: 1, 11"):
        mib.chosen(["41"], [])
    with pytest.raises(UnknownName, match="ioi/gpt2"):
        mib.chosen(["2"], ["ioi/gpt"])
