"""Ranks as text, which records can be ranked, and what a suite says first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mechassay.discovery.methods_by_column import MethodsByColumn
from mechassay.discovery.page import (
    ability_text,
    baseline_text,
    comparable,
    rank_text,
    ranked,
    resolved_text,
    results_table,
)
from mechassay.discovery.suite_conclusion import Candidates, conclude_suite
from mechassay.discovery.suite_page import SuitePage, suite_differences
from mechassay.results.page import BEST, OVERSHOT, Report
from mechassay.results.records import Measure, Record, Spec, Values

Make = Callable[..., Record]
FRACTIONS = (0.01, 0.1, 0.2, 1.0)
RANDOM_GAPS = ("difference:random", "difference:random-paths")


def with_values(record: Record, f: tuple[float, ...], seed: int, n: int = 24) -> Record:
    """Examples whose faithfulness is f on average, by both rankings."""
    rng = np.random.default_rng(seed)
    ids = [f"pair-{i}" for i in range(n)]
    values = {
        f"{by}@{p:g}": (each + 0.02 * rng.normal(size=n)).tolist()
        for by in ("value", "magnitude")
        for p, each in zip(FRACTIONS, f, strict=True)
    }
    ends = {"clean": [1.0] * n, "empty": [0.0] * n}
    return record.changed(
        values=Values(unit="pair", ids=ids, groups=ids, columns={**ends, **values})
    )


@pytest.fixture
def records(make_record: Make) -> list[Record]:
    """Two that are alike and one that is worse."""
    f = {"a": (0.9, 0.95, 1.0, 1.0), "b": (0.9, 0.95, 1.0, 1.0), "c": (0.1, 0.2, 0.3, 1.0)}
    return [
        with_values(make_record(name), each, seed) for seed, (name, each) in enumerate(f.items())
    ]


@pytest.mark.parametrize(("rank", "text"), [(None, "–"), ((1, 1), "1"), ((2, 4), "2–4")])
def test_text(rank: tuple[int, int] | None, text: str) -> None:
    assert rank_text(rank) == text


def test_ranks_stand_in_the_table(records: list[Record]) -> None:
    table = results_table(records)
    for area in ("CMD", "CPR"):
        place = table.headings.index(f"rank by {area}")
        assert [row.cells[place] for row in table.rows[:3]] == ["1–2", "1–2", "3"]
    # The worthless case: a method alone, or records of other examples, have no rank.
    assert "rank by CMD" not in results_table(records[:1]).headings
    values = records[1].values
    assert values is not None
    ids = [f"x-{i}" for i in range(24)]
    other = records[1].changed(values=values.model_copy(update={"ids": ids}))
    assert not comparable([records[0], other]) and ranked([records[0], other], "cmd") is None


def test_ranks_and_counts_stand_in_the_suite(records: list[Record]) -> None:
    (grid,) = (
        grid for grid in SuitePage().tables(Report(records)) if grid.title.startswith("Rank by CMD")
    )
    assert grid.texts == (
        ("a", "1–2"),
        ("b", "1–2"),
        ("c", "3"),
        ("differences resolved", "2 of 3"),
    )
    found = ranked(records, "cmd")
    assert found is not None and resolved_text(found) == "2 of 3"
    rows = suite_differences(records)
    assert len(rows) == 9 and sum(row["resolved"] for row in rows) == 6


def test_ranks_of_what_is_not_better_than_random_have_a_star(make_record: Make) -> None:
    good, bad = make_record("a"), make_record("b", cpr=(0.22, 0.2, 0.24))
    records = [
        with_values(each, (0.9, 0.95, 1.0, 1.0), seed) for seed, each in enumerate((good, bad))
    ]
    (grid,) = (
        each for each in SuitePage().tables(Report(records)) if each.title.startswith("Rank by CPR")
    )
    assert [rank.endswith("*") for _, rank in grid.texts[:2]] == [False, True]
    table = results_table(records)
    place = table.headings.index("better than random")
    assert [row.cells[place] for row in table.rows[:2]] == ["CPR, CMD", "CMD"]


def test_the_whole_model_and_the_empty_circuit(make_record: Make) -> None:
    record = make_record()
    assert baseline_text(record) == ""
    ends = [
        Measure(name="objective", of=f"control:{end}", value=value)
        for end, value in (("full", 1.6), ("empty", 0.1))
    ]
    assert baseline_text(record.changed(measures=[*record.measures, *ends])) == (
        "The mean of tiny-model's logit difference is m(N) = 1.6 for the whole model and"
        " m(0) = 0.1 for the empty circuit; m(N) − m(0) = 1.5 [1.0, 2.0]."
    )


def test_a_suite_says_who_is_nearest_and_what_has_too_few_pairs(records: list[Record]) -> None:
    other = Spec(name="other", args={})
    few = [
        with_values(record, (0.9, 0.95, 1.0, 1.0), 3, n=19).changed(
            task=other, cell={**record.cell, "task": "other"}
        )
        for record in records
    ]
    left = (
        "No method is judged on other (tiny-model): only 19 independent test pairs of other, fewer"
        " than 20. The numbers hold for these pairs; use more prompts."
    )
    none = "No verdict: no task is left on which methods can be compared. "
    assert answers(few) == [none + left]
    made = answers([*records, *few])
    assert made[0].startswith("No method is judged on 1 of 2 tasks. ") and left in made
    assert made[-2:] == [
        "Nearest to the model by CMA, tiny-model, 1 task of 24 test pairs: a, b perhaps first on"
        " 1.",
        "Better than random rankings, tiny-model: a, b, c on 1.",
    ]
    alone = " ".join(answers(records[:1]))
    assert "Nearest" not in alone, "one method has nobody to be nearer than"


def test_a_suite_says_what_was_not_compared_and_what_is_worth_nothing(make_record: Make) -> None:
    f = (0.9, 0.95, 1.0, 1.0)
    alone, few = (with_values(make_record("m", seeds=n), f, 7) for n in (0, 2))
    without = "Without random rankings to compare with, tiny-model: m on 1."
    assert without in answers([alone])
    too_few = "Above all random rankings, which are too few for a test, tiny-model: m on 1."
    assert too_few in answers([few])
    good = with_values(make_record("m"), f, 7)
    # As far from the model as random rankings are.
    ends = {"result": (0.21, 0.1, 0.3), **dict.fromkeys(RANDOM_GAPS, (0.0, -0.1, 0.1))}
    worthless = good.changed(
        measures=[
            m.model_copy(update=dict(zip(("value", "low", "high"), ends[m.of], strict=True)))
            if m.name == "cma" and m.of in ends
            else m
            for m in good.measures
        ]
    )
    assert "Better than random rankings, tiny-model: m on 1." in answers([good])
    none = "No method is shown to be better than random rankings, tiny-model, 1 task."
    assert none in answers([worthless])


def test_many_methods_of_which_a_page_says_the_same_are_counted(make_record: Make) -> None:
    f = (0.9, 0.95, 1.0, 1.0)
    methods = [with_values(make_record(name), f, 7) for name in "abcde"]
    few = with_values(make_record("few", seeds=2), f, 7)
    better = "Better than random rankings, tiny-model: {} on 1."
    assert better.format("a, b, c, d") in answers([*methods[:4], few])
    assert better.format("5 methods") in answers([*methods, few])
    too_few = "Above all random rankings, which are too few for a test, tiny-model: few on 1."
    assert too_few in answers([*methods, few])


def test_a_random_method_that_is_nearest_is_named(records: list[Record], make_record: Make) -> None:
    random = with_values(make_record("random"), (1.0, 1.0, 1.0, 1.0), 9)
    (nearest,) = (x for x in answers([records[2], random]) if x.startswith("Nearest"))
    assert nearest.endswith("1 task of 24 test pairs: random first on 1.")


def answers(records: list[Record]) -> list[str]:
    """The sentences that a suite's page begins with."""
    cells = MethodsByColumn(Report(records))
    return conclude_suite(cells, Candidates.of(cells)).lines


def test_the_best_of_a_column_are_marked(records: list[Record], make_record: Make) -> None:
    """Both that are alike, not the worse one; and nobody who is not better than random."""

    def marks(rows: list[Record]) -> list[bool]:
        (grid,) = (
            each for each in SuitePage().tables(Report(rows)) if each.title.startswith("CPR")
        )
        assert ("paired differences" in grid.caption) == any(
            cell.startswith(BEST) for row in grid.texts for cell in row
        )
        return [row.cells[1].startswith(BEST) for row in grid.rows if row.kind != "control"]

    assert marks(records) == [True, True, False]
    worthless = [
        with_values(make_record(name, cpr=(0.22, 0.2, 0.24)), (0.9, 0.95, 1.0, 1.0), seed)
        for seed, name in enumerate("ab")
    ]
    assert marks(worthless) == [False, False]
    assert marks(records[:1]) == [False], "one alone is the best of nobody"


def test_a_cpr_that_overshoots_is_marked_and_never_the_best(make_record: Make) -> None:
    f = (0.9, 0.95, 1.0, 1.0)
    areas = {"over": (2.4, 2.3, 2.5), "perhaps": (1.1, 0.9, 1.3), "near": (0.9, 0.85, 0.95)}
    rows = [with_values(make_record(name, cpr=area), f, 7) for name, area in areas.items()]
    tables = {table.title.split(",")[0]: table for table in SuitePage().tables(Report(rows))}
    cpr = tables["CPR (by value) (higher is better up to 1; more is overshoot)"]
    texts = [row.cells[1] for row in cpr.rows if row.kind != "control"]
    assert [text[0] for text in texts] == [OVERSHOT, BEST, BEST]
    assert "‡ overshoots" in cpr.caption and "† the best" in cpr.caption
    ranks = [row.cells[1] for row in tables["Rank by CPR"].rows if row.kind != "control"]
    assert [OVERSHOT in rank for rank in ranks] == [True, False, False]
    assert not any(OVERSHOT in text for row in tables["Rank by CMA"].texts for text in row)


def test_the_accuracy_of_the_model_stands_beside_what_it_is_compared_with(
    make_record: Make,
) -> None:
    record = make_record()
    assert ability_text(record) == ""
    of_model = [
        Measure(name="accuracy", of="model", value=0.98, low=0.91, high=1.0, n=60),
        Measure(name="chance", of="model", value=0.5, n=60),
        Measure(name="exchanged", of="model", value=0.49, n=60),
    ]
    assert ability_text(record.changed(measures=[*record.measures, *of_model])) == (
        "tiny-model is right on 0.98 [0.91, 1.00] of 60 pairs; guessing is right on 0.50, and"
        " exchanged prompts on 0.49."
    )
