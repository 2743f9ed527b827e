"""Ranks as text, and which records can be ranked.

The verdict: a sentence for each of CPR and CMD, which claims no more than the numbers do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mechassay.discovery.page import (
    baseline_text,
    comparable,
    rank_text,
    ranked,
    resolved_text,
    results_table,
    verdict,
    verdicts,
)
from mechassay.discovery.suite_page import SuitePage, suite_differences
from mechassay.results.page import BEST, OVERSHOT, Report, Text
from mechassay.results.records import Measure, Record, Spec, Table, Values

Make = Callable[..., Record]
FRACTIONS = (0.01, 0.1, 0.2, 1.0)
RANDOM_GAPS = ("difference:random", "difference:random-paths")


def with_values(record: Record, f: tuple[float, ...], seed: int) -> Record:
    """24 examples whose faithfulness is f on average, by both rankings."""
    rng = np.random.default_rng(seed)
    ids = [f"pair-{i}" for i in range(24)]
    values = {
        f"{by}@{p:g}": (each + 0.02 * rng.normal(size=24)).tolist()
        for by in ("value", "magnitude")
        for p, each in zip(FRACTIONS, f, strict=True)
    }
    ends = {"clean": [1.0] * 24, "empty": [0.0] * 24}
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


def smallest(record: Record, chosen: float | None, here: float = 0.93) -> Record:
    """A record with a smallest circuit of 100 edges, or with none."""
    about = {"target": 0.9, "fraction": chosen, "kept": 90, "largest": 0.2, "split": "validation"}
    numbers = {"chosen": (0.92, 0.88, 0.95, 50)}
    if chosen is not None:
        numbers |= {
            "result": (here, here - 0.05, here + 0.03, 30),
            "without": (0.03, 0.01, 0.05, 30),
        }
    rows = [
        {"of": of, **about, "value": value, "low": low, "high": high, "n": n}
        for of, (value, low, high, n) in numbers.items()
    ]
    return record.changed(tables=[*record.tables, Table.of("smallest circuit", ("of",), rows)])


def test_the_first_sentence_is_on_the_smallest_circuit(make_record: Make) -> None:
    said = verdicts([smallest(make_record("eap"), 0.1)])
    assert said[0] == (
        "The smallest circuit that keeps at least 90\u00a0% of what ablation changes (A 0.93 [0.88,"
        " 0.96]) has 90 edges, 10\u00a0%; 10 random circuits of that size keep 2 %, the best of"
        " them 4 %; without it f = 0.030 [0.010, 0.050] is left. It was chosen on 50 validation"
        " pairs and measured on 30 others."
    )
    assert len(said) == 3


def test_a_circuit_that_does_not_hold_on_other_pairs_is_said_to(make_record: Make) -> None:
    (said, *_) = verdicts([smallest(make_record("eap"), 0.1, here=0.7)])
    assert "keeps less on other pairs: A 0.70 [0.65, 0.73]" in said


def test_there_may_be_no_such_circuit(make_record: Make) -> None:
    records = [smallest(make_record("a"), None), smallest(make_record("b"), None)]
    assert verdicts(records)[0] == (
        "No circuit that 2 methods found up to 20\u00a0% of the edges keeps at least 90\u00a0% of"
        " what ablation changes (50 validation pairs)."
    )
    one = [records[0], smallest(make_record("b"), 0.1)]
    assert ", found by b; 10 random circuits" in verdicts(one)[0]


def test_random_circuits_that_keep_as_much_are_said_to(make_record: Make) -> None:
    record = smallest(make_record("eap"), 1.0)  # where even random ones are the full circuit
    assert "the best of them 100 %, as much" in verdicts([record])[0]


def agreeing_by_value(record: Record, agreement: float) -> Record:
    """The record with this agreement at every size by value but that of the full circuit."""
    curve = record.table("curve")
    low = [
        agreement if of == "result" and by == "value" and p < 1 else a
        for of, by, p, a in zip(
            *(curve.columns[name] for name in ("of", "ranking", "fraction", "agreement")),
            strict=True,
        )
    ]
    columns = {**curve.columns, "agreement": low}
    tables = [curve.model_copy(update={"columns": columns}), *record.tables[1:]]
    return record.changed(tables=tables)


def test_circuits_by_value_that_collapse_point_to_magnitudes(make_record: Make) -> None:
    record = make_record("eap")
    collapsed = agreeing_by_value(record, 0.1)
    assert verdicts([collapsed])[-1] == (
        "Read the circuits of eap by magnitude: they keep 90 % of what ablation changes; those by"
        " value keep 10 % at best."
    )
    assert not any("by magnitude" in said for said in verdicts([record]))


def test_better_than_random_rankings(make_record: Make) -> None:
    said = verdict([make_record("eap")])
    assert (
        said == "On 30 test pairs of ioi, circuits found by eap recover more of tiny-model's logit"
        " difference than random ones: CPR 0.90 [0.80, 1.00] against 0.210 [0.200, 0.220] of random"
        " edges (5 drawn; chance may reach 0.42) and 0.210 [0.200, 0.220] of random paths (5 drawn;"
        " chance may reach 0.42)."
    )


def test_the_spread_of_random_rankings_counts(make_record: Make) -> None:
    """Resampling examples says nothing of how far another random ranking may lie."""
    assert "recover more" in verdict([make_record(cpr=(0.5, 0.45, 0.55))])
    wide = verdict([make_record(cpr=(0.5, 0.45, 0.55), spread=0.1)])
    assert "better than all random rankings that were drawn, which are too few" in wide
    assert "--random-rankings 20 are enough" in wide
    wider = verdict([make_record(cpr=(0.5, 0.45, 0.55), spread=0.2)])
    assert "cannot be told from random ones" in wider
    # With many methods, one is likelier to be far out by chance.
    many = [make_record(f"m{n}", cpr=(0.5, 0.45, 0.55), spread=0.03) for n in range(16)]
    assert "recover more" in verdict(many[:1]) and "--random-rankings 320" in verdict(many)


def test_few_groups_of_pairs_get_no_verdict(make_record: Make) -> None:
    few = [make_record(ids=[f"pair-{n}" for n in range(19)])]
    (said,) = verdicts(few)
    assert "no verdict: 19 independent groups" in said and results_table(few).rows
    assert len(verdicts([make_record(ids=[f"pair-{n}" for n in range(20)])])) == 2


def test_what_is_not_known_is_not_said(make_record: Make) -> None:
    """Four random rankings say nothing, nor does a record without values of single pairs."""
    said = verdict([make_record(seeds=4)])
    assert "too few random rankings" in said and "better than all" not in said
    (bare,) = verdicts([make_record(values=None)])
    assert "values of single pairs" in bare and "0 independent" not in bare


def test_overshoot_is_called_so(make_record: Make) -> None:
    assert "A CPR above 1 is overshoot" in verdict([make_record(cpr=(2.4, 2.2, 2.6))])
    assert "overshoot" not in verdict([make_record()])
    trained_for_it = agreeing_by_value(make_record(cpr=(4.7, 4.3, 5.0)), 0.02)
    assert "Pair by pair they keep at most 2 % of what ablation changes." in verdict(
        [trained_for_it]
    )


@pytest.mark.parametrize(
    ("cpr", "expected"),
    [
        ((0.25, 0.1, 0.4), "cannot be told from random ones"),
        ((0.6, 0.21, 1.0), "cannot be told from random ones"),  # the difference may be 0
        ((0.6, 0.55, 0.65), "recover more"),
        ((-0.4, -0.5, -0.3), "recover less"),
        ((0.3, float("nan"), float("nan")), "without an interval"),
    ],
)
def test_overlap_is_said(make_record: Make, cpr: tuple[float, float, float], expected: str) -> None:
    assert expected in verdict([make_record(cpr=cpr)])


def test_what_harms_less_than_random_rankings_recovers_nothing(make_record: Make) -> None:
    """Random circuits may have a CPR below 0, which the empty circuit has not."""
    record = make_record(
        cpr=(0.01, -0.01, 0.03), random_cpr=(-0.5, -0.6, -0.4), gain=(0.51, 0.4, 0.6)
    )
    assert "cannot be told from random ones" in verdict([record])


def test_the_best_of_several_is_called_so(make_record: Make, undefined: Record) -> None:
    records = [
        make_record("a", cpr=(0.8, 0.7, 0.9)),
        make_record("b"),
        make_record("random", cpr=(2.0, 1.9, 2.1)),
        undefined,
    ]
    assert "found by b (the best of 3 methods by CPR) recover more" in verdict(records)


def test_no_control_and_no_denominator(make_record: Make, undefined: Record) -> None:
    assert "there is no random control" in verdict([make_record(seeds=0)])
    doubtful = make_record(profile="mib-2025", denominator=(-1.0, 1.0))
    assert "These numbers mean little" in verdicts([doubtful])[-1]
    assert "faithfulness is undefined: tiny-model's logit difference cannot be told" in verdict(
        [undefined]
    )


def test_undefined_random_areas_give_no_verdict(make_record: Make) -> None:
    nothing = (float("nan"),) * 3
    record = make_record(cpr=(0.5, 0.4, 0.6), random_cpr=nothing, gain=nothing)
    assert "without an interval, against undefined of random edges" in verdict([record])


# CMD


def with_cmd(record: Record, cmd: tuple[float, float, float], less: float) -> Record:
    """A record with another CMD, and random rankings whose CMD is so much larger."""
    ends = ("value", "low", "high")
    kept: list[Measure] = []
    for m in record.measures:
        if m.name == "cmd" and m.of == "result":
            kept.append(m.model_copy(update=dict(zip(ends, cmd, strict=True))))
        elif m.name == "cmd" and m.of.startswith("difference"):
            near = (less, less - 0.05, less + 0.05)
            kept.append(m.model_copy(update=dict(zip(ends, near, strict=True))))
        else:
            kept.append(m)
    return record.changed(measures=kept)


def test_each_area_has_a_sentence(make_record: Make) -> None:
    by_cpr, by_cmd = verdicts([make_record("eap")])
    assert "recover more" in by_cpr
    assert by_cmd == (
        "On 30 test pairs of ioi, circuits found by eap stay closer to tiny-model's logit"
        " difference than random ones: CMD 0.12 [0.05, 0.20] against 0.790 [0.780, 0.800] of random"
        " edges (5 drawn; chance may reach 0.61) and 0.790 [0.780, 0.800] of random paths (5 drawn;"
        " chance may reach 0.61)."
    )


def test_one_area_may_be_better_while_the_other_is_not(make_record: Make) -> None:
    record = make_record(cpr=(0.25, 0.1, 0.4))
    by_cpr, by_cmd = verdicts([record])
    assert "cannot be told from random ones in how much" in by_cpr and "stay closer" in by_cmd


@pytest.mark.parametrize(
    ("cmd", "less", "expected"),
    [
        ((0.8, 0.7, 0.9), 0.0, "cannot be told from random ones in how close they stay"),
        ((1.5, 1.4, 1.6), 0.3, "stray farther from"),
        # Closer than random rankings that do harm, but no closer than the empty circuit.
        ((1.0, 0.95, 1.05), -0.5, "cannot be told from random ones"),
    ],
)
def test_a_cmd_that_is_no_better(
    make_record: Make, cmd: tuple[float, float, float], less: float, expected: str
) -> None:
    assert expected in verdicts([with_cmd(make_record(), cmd, less)])[1]


def test_the_best_by_cmd_is_the_lowest(make_record: Make) -> None:
    records = [make_record("a"), with_cmd(make_record("b"), (0.02, 0.01, 0.03), -0.77)]
    assert "found by b (the best of 2 methods by CMD)" in verdict(records, "cmd")


def test_an_undefined_setting_has_one_sentence(undefined: Record) -> None:
    assert len(verdicts([undefined])) == 1


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
        record.changed(task=other, cell={**record.cell, "task": "other"}, values=None)
        for record in records
    ]
    left = "No verdict on 1 task with fewer than 20 independent groups of test pairs."
    assert _said(few) == left
    assert _said([*records, *few]) == (
        "3 methods on 1 task, 24 test pairs each. Nearest to the model (CMA): a, b perhaps first in"
        f" 1. Better than random rankings: a, b, c in 1. {left}"
    )
    assert "Nearest" not in _said(records[:1]), "one method has nobody to be nearer than"


def test_a_suite_says_what_was_not_compared_and_what_is_worth_nothing(make_record: Make) -> None:
    f = (0.9, 0.95, 1.0, 1.0)
    alone, few = (with_values(make_record("m", seeds=n), f, 7) for n in (0, 2))
    assert "Without random rankings to compare with: m in 1." in _said([alone])
    assert "Too few of these to tell: m in 1." in _said([few])
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
    assert "Better than random rankings: m in 1." in _said([good])
    assert "None is better than random rankings." in _said([worthless])


def test_many_methods_of_which_a_page_says_the_same_are_counted(make_record: Make) -> None:
    f = (0.9, 0.95, 1.0, 1.0)
    methods = [with_values(make_record(name), f, 7) for name in "abcde"]
    few = with_values(make_record("few", seeds=2), f, 7)
    assert "Better than random rankings: a, b, c, d in 1; few in none." in _said(
        [*methods[:4], few]
    )
    assert "Better than random rankings: 5 methods in 1; few in none." in _said([*methods, few])
    assert "Too few of these to tell: few in 1." in _said([*methods, few])


def test_a_random_method_that_is_nearest_is_named(records: list[Record], make_record: Make) -> None:
    random = with_values(make_record("random"), (1.0, 1.0, 1.0, 1.0), 9)
    said = _said([records[2], random])
    assert "1 method on 1 task" in said and "(CMA): random first in 1." in said


def _said(records: list[Record]) -> str:
    """The first sentences of a suite's page."""
    block = SuitePage().sections(Report(records))[0].blocks[0]
    assert isinstance(block, Text)
    return block.text


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
    cpr = tables["CPR (higher is better up to 1; more is overshoot)"]
    texts = [row.cells[1] for row in cpr.rows if row.kind != "control"]
    assert [text[0] for text in texts] == [OVERSHOT, BEST, BEST]
    assert "‡ overshoots" in cpr.caption and "† the best" in cpr.caption
    ranks = [row.cells[1] for row in tables["Rank by CPR"].rows if row.kind != "control"]
    assert [OVERSHOT in rank for rank in ranks] == [True, False, False]
    assert not any(OVERSHOT in text for row in tables["Rank by CMA"].texts for text in row)
