"""What records of circuits answer: each question by its cases, and what each case needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from helpers.record_fixtures import able, of_test, ranking_of
from mechassay.circuits.evaluation.differences import AreaName
from mechassay.discovery.conclusion import by_value, chance, conclude, small, stable
from mechassay.results.records import Measure, Record, Table, Values
from mechassay.results.verdict import Standing, Verdict

Make = Callable[..., Record]


def smallest(record: Record, chosen: float | None, here: float = 0.93) -> Record:
    """A record with a smallest circuit of 90 edges of 1,000, or with none."""
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


def with_column(record: Record, name: str, change: Callable[[dict[str, Any]], Any]) -> Record:
    """The record with another column of its curve."""
    curve = record.table("curve")
    columns = {**curve.columns, name: [change(row) for row in curve.rows()]}
    tables = [curve.model_copy(update={"columns": columns}), *record.tables[1:]]
    return record.changed(tables=tables)


# --- preconditions


def test_a_good_record_meets_all_preconditions(make_record: Make) -> None:
    conclusion = conclude([smallest(make_record("eap"), 0.1)])
    assert {case.standing for case in conclusion.preconditions} == {Standing.MET}
    assert conclusion.verdict is Verdict.YES and conclusion.broken is None
    assert conclusion.headline == (
        "eap's circuits keep at least 90\u00a0% of what ablation changes from 90 edges on"
        " (9\u00a0%, by magnitude; 3 sizes tried): A 0.93 [0.88, 0.96] on 30 test pairs. The best"
        " of 10 random circuits of this size keeps 4\u00a0%; without these edges f = 0.030 [0.010,"
        " 0.050] is left."
    )


@pytest.mark.parametrize("n", [1, 2, 19, 20])
def test_twenty_groups_are_needed(make_record: Make, n: int) -> None:
    names = [f"pair-{place}" for place in range(n)]
    conclusion = conclude([smallest(make_record(ids=names), 0.1)])
    assert (conclusion.broken is None) == (n == 20)
    if n < 20:
        assert f"only {n} independent test pair" in conclusion.headline


@pytest.mark.parametrize("n", [0, 1, 2, 19, 20])
@pytest.mark.parametrize("how", ["good", "alike", "nothing changes", "wrong"])
def test_no_number_of_groups_breaks_a_conclusion(make_record: Make, n: int, how: str) -> None:
    """Whatever the values are, and also where pairs are fewer than their groups."""
    names = [f"pair-{place}" for place in range(n)]
    good = smallest(make_record("eap"), 0.1)
    columns = {"clean": [1.0 + 0.1 * place for place in range(n)], "empty": [0.0] * n}
    if how == "alike":
        columns["clean"] = [1.0] * n
    elif how == "nothing changes":
        columns["empty"] = columns["clean"]
    tables = [table for table in good.tables if table.name != "does the task"]
    right = 0.0 if how == "wrong" else 1.0
    values = Values(unit="pair", ids=names, groups=names, columns=columns)
    record = good.changed(
        values=values, tables=[*tables, able(names, right)], data={"test": of_test(n)}
    )
    lines = conclude([record]).lines
    assert lines and "nan" not in " ".join(lines)
    if 0 < n < 20:
        assert lines[0].startswith("No verdict: only ")
    one = record.changed(values=values.model_copy(update={"groups": ["one"] * n}))
    assert conclude([one]).lines


def test_no_values_of_pairs_are_not_known(make_record: Make) -> None:
    headline = conclude([smallest(make_record(values=None), 0.1)]).headline
    assert headline.endswith(
        "This record does not say whether the test pairs share prompts with each other or with the"
        " training pairs, nor whether the ablation changes the objective."
    )


def test_what_is_missing_is_not_known_and_what_breaks_is_not_met(make_record: Make) -> None:
    """An older record has accuracy and chance, but neither prompts nor scores."""
    good = smallest(make_record("eap"), 0.1)
    tables = [table for table in good.tables if table.name != "does the task"]
    specs = {role: spec for role, spec in good.specs.items() if role != "ranking"}
    old = good.model_copy(update={"tables": tables, "specs": specs, "data": {}})

    def of_model(name: str, value: float, low: float = math.nan, high: float = math.nan) -> Measure:
        return Measure(name=name, of="model", value=value, low=low, high=high, n=30)

    right = [of_model("accuracy", 0.9, 0.8, 0.95), of_model("chance", 0.5)]
    headline = conclude([old.changed(measures=[*old.measures, *right])]).headline
    assert headline.startswith("eap's circuits keep at least")
    assert headline.endswith(
        "This record does not say whether the test pairs share prompts with each other or with the"
        " training pairs, nor whether tiny-model reads the prompt or prefers some answers whatever"
        " the prompt, nor which pairs the scores were found on."
    )
    wrong = [of_model("accuracy", 0.1, 0.05, 0.2), of_model("chance", 0.5)]
    broken = conclude([old.changed(measures=[*old.measures, *wrong])])
    assert broken.headline.startswith("No verdict: tiny-model prefers the answer in 0.10 [0.05,")
    unsure = [of_model("accuracy", 0.6, 0.4, 0.8), of_model("chance", 0.5)]
    broken = conclude([old.changed(measures=[*old.measures, *unsure])])
    assert broken.headline.startswith("No verdict: tiny-model is not shown to do ioi.")


def test_a_precondition_that_is_not_met_leaves_no_answer(
    make_record: Make, undefined: Record
) -> None:
    names = [f"pair-{place}" for place in range(30)]
    good = smallest(make_record("eap"), 0.1)
    tables = [table for table in good.tables if table.name != "does the task"]
    cases = {
        "prefers the foil in 30 of 30": good.changed(tables=[*tables, able(names, 0.0)]),
        "they tie in 30 of 30": good.changed(tables=[*tables, able(names, 0.5)]),
        "not shown to read the prompts": good.changed(tables=[*tables, able(names, 0.8, 0.78)]),
        "have a prompt of the training": good.changed(
            data={"test": of_test(30, **{"shared with training pairs": 9})}
        ),
        "full model cannot be told": undefined,
        "ranks nothing": good.changed(ranking=ranking_of("eap", different=1)),
        "found on. Evaluate on other": good.changed(ranking=ranking_of("eap", shared=30)),
    }
    for words, record in cases.items():
        (line,) = conclude([record]).lines
        assert words in line and line.startswith(("No verdict: ", "Nothing to explain: "))


def test_limits_stand_before_the_answer(make_record: Make) -> None:
    good = smallest(make_record("eap"), 0.1)
    values = good.values
    assert values is not None
    ends = {"clean": values.columns["empty"], "empty": values.columns["clean"]}
    raised = good.changed(values=values.model_copy(update={"columns": {**values.columns, **ends}}))
    conclusion = conclude([raised])
    assert conclusion.headline.startswith(
        "The counterfactual raises the objective: m(N) − m(0) = -1"
    )
    assert any(line.startswith("By value there is no verdict") for line in conclusion.lines)
    # An objective of which less is better has such a difference where it is as it should be.
    down = raised.metric.model_copy(update={"args": {**raised.metric.args, "better": "down"}})
    assert conclude([raised.changed(metric=down)]).headline.startswith("eap's circuits keep")
    few = good.changed(data={"test": of_test(30, **{"shared with training pairs": 1})})
    assert conclude([few]).headline.startswith("1 of the 30 test pairs have a prompt of the")


def test_methods_that_rank_nothing_or_are_copies_are_left_out(make_record: Make) -> None:
    good = smallest(make_record("eap"), 0.1)
    nothing = make_record("zero").changed(ranking=ranking_of("zero", different=1))
    conclusion = conclude([good, smallest(nothing, 0.01)])
    assert conclusion.headline.startswith("eap's circuits keep")
    assert conclusion.lines[1] == (
        "zero ranks nothing: all 1,000 scores are equal, so circuits are cut in the order of the"
        " file."
    )
    copy = make_record("twin").changed(ranking=good.specs["ranking"])
    assert conclude([good, copy]).headline.startswith(
        "eap and twin have the same scores to a thousandth and count as one method. eap's circuits"
    )
    assert not conclude([nothing, nothing]).lines[0].startswith("zero's")


# --- questions


def test_there_may_be_no_small_circuit(make_record: Make) -> None:
    asked = [(smallest(make_record(name), None), name) for name in "ab"]
    case = small(asked)
    assert (case.name, case.verdict) == ("no", Verdict.NO)
    assert case.text({}) == (
        "None of the circuits cut from the ranking of 2 methods (3 sizes, up to 20\u00a0% of the"
        " edges, by magnitude) keeps at least 90\u00a0% of what ablation changes, on 50 validation"
        " pairs. Another ranking may have one."
    )
    low = with_column(
        asked[0][0],
        "agreement",
        lambda row: (
            0.2
            if row["of"] == "result" and row["ranking"] == "magnitude" and row["fraction"] < 1
            else row["agreement"]
        ),
    )
    assert small([(low, "a")]).name == "no, but by value"
    one = [asked[0], (smallest(make_record("b"), 0.1), "b")]
    assert small(one).name == "yes" and small(one).numbers["method"] == "b"


def test_a_small_circuit_may_fail_in_other_ways(make_record: Make) -> None:
    def case(chosen: float, here: float = 0.93, **settings: Any) -> str:
        return small([(smallest(make_record("eap", **settings), chosen, here), "eap")]).name

    assert case(0.1) == "yes"
    assert case(0.1, 0.7) == "only where chosen"
    assert case(1.0) == "not distinguishable", "random circuits of all edges are the model too"
    assert case(0.1, seeds=0) == "no control"
    tied = with_column(make_record("eap"), "tied", lambda row: 3)
    assert small([(smallest(tied, 0.1), "eap")]).name == "tied"
    assert small([(make_record("eap"), "eap")]).name == "not tested"


def test_circuits_by_value_that_collapse_point_to_magnitudes(make_record: Make) -> None:
    record = make_record("eap")
    low = with_column(
        record,
        "agreement",
        lambda row: (
            0.1
            if row["of"] == "result" and row["ranking"] == "value" and row["fraction"] < 1
            else row["agreement"]
        ),
    )
    (case,) = by_value(low, "eap")
    assert case.text({}) == (
        "Read the circuits of eap by magnitude: they keep 90\u00a0% of what ablation changes; those"
        " by value keep 10\u00a0% at best."
    )
    assert by_value(record, "eap") == []


def of(record: Record, area: Any = "cpr") -> str:
    return chance([(record, "eap")], area, raised=False).name


def test_better_than_random_rankings(make_record: Make) -> None:
    case = chance([(make_record("eap"), "eap")], "cpr", raised=False)
    assert case.text({}) == (
        "By value, circuits of eap recover more of the objective than random rankings: CPR 0.90"
        " [0.80, 1.00]; random rankings have 0.21, and chance reaches 0.42."
    )


def test_the_spread_of_random_rankings_counts(make_record: Make) -> None:
    """Resampling examples says nothing of how far another random ranking may lie."""
    near = (0.5, 0.45, 0.55)
    assert of(make_record(cpr=near)) == "yes"
    assert of(make_record(cpr=near, spread=0.1)) == "few rankings"
    assert of(make_record(cpr=near, spread=0.2)) == "not distinguishable"
    # With many methods, one is likelier to be far out by chance.
    many = [(make_record(f"m{n}", cpr=near, spread=0.03), f"m{n}") for n in range(16)]
    case = chance(many, "cpr", raised=False)
    assert case.name == "few rankings" and "--random-rankings 320" in case.text({})


@pytest.mark.parametrize(
    ("cpr", "expected"),
    [
        ((0.25, 0.1, 0.4), "not distinguishable"),
        ((0.6, 0.21, 1.0), "not distinguishable"),  # The difference may be 0.
        ((0.6, 0.55, 0.65), "yes"),
        ((-0.4, -0.5, -0.3), "no"),
        ((0.3, math.nan, math.nan), "not tested"),
    ],
)
def test_overlap_is_said(make_record: Make, cpr: tuple[float, float, float], expected: str) -> None:
    assert of(make_record(cpr=cpr)) == expected


def test_what_is_not_measured_is_not_said(make_record: Make) -> None:
    nothing = (math.nan,) * 3
    assert of(make_record(cpr=(0.5, 0.4, 0.6), random_cpr=nothing, gain=nothing)) == "not tested"
    assert of(make_record(seeds=0)) == of(make_record(seeds=4)) == "not tested"


def test_a_limit_that_no_circuit_can_reach_is_no_control(make_record: Make) -> None:
    """Of many methods and few random rankings the limit of CMA is above 1, and of CMD below 0."""
    near = {"cma": (0.3, 0.25, 0.35), "cmd": (0.75, 0.7, 0.8)}
    many: list[tuple[Record, str]] = []
    for n in range(30):
        own = make_record(f"m{n}", spread=0.15)
        measures = [
            m.model_copy(update=dict(zip(("value", "low", "high"), near[m.name], strict=True)))
            if m.of == "result" and m.name in near
            else m
            for m in own.measures
        ]
        many.append((own.changed(measures=measures), f"m{n}"))
    for area in near:
        case = chance(many, cast("AreaName", area), raised=False)
        assert case.name == "too few rankings" and "best of 30 methods" in case.text({})
        assert "--random-rankings 600" in case.text({})
    assert of(make_record(spread=0.01), "cma") == "yes"


def test_what_harms_less_than_random_rankings_recovers_nothing(make_record: Make) -> None:
    """Random circuits may have a CPR below 0, which the empty circuit has not."""
    record = make_record(
        cpr=(0.01, -0.01, 0.03), random_cpr=(-0.5, -0.6, -0.4), gain=(0.51, 0.4, 0.6)
    )
    assert of(record) == "not distinguishable"


def test_overshoot_is_called_so(make_record: Make) -> None:
    def said(record: Record) -> str:
        return chance([(record, "eap")], "cpr", raised=False).text({})

    overshoot = said(make_record(cpr=(2.4, 2.2, 2.6)))
    assert "A CPR above 1 is overshoot" in overshoot and "keep at most 90\u00a0%." in overshoot
    assert "overshoot" not in said(make_record())


def test_the_best_of_several_is_called_so(make_record: Make, undefined: Record) -> None:
    records = [
        make_record("a", cpr=(0.8, 0.7, 0.9)),
        make_record("b"),
        make_record("random", cpr=(2.0, 1.9, 2.1)),
        undefined,
    ]
    lines = conclude(records).lines
    assert any("circuits of b (the best of 3 by CPR) recover more" in line for line in lines)


def with_cmd(record: Record, cmd: tuple[float, float, float], less: float) -> Record:
    """A record with another CMD, and random rankings whose CMD is so much larger."""
    ends = ("value", "low", "high")
    kept: list[Measure] = []
    for m in record.measures:
        near = (less, less - 0.05, less + 0.05)
        new = cmd if m.of == "result" else near if m.of.startswith("difference") else None
        kept.append(
            m.model_copy(update=dict(zip(ends, new, strict=True))) if m.name == "cmd" and new else m
        )
    return record.changed(measures=kept)


@pytest.mark.parametrize(
    ("cmd", "less", "expected"),
    [
        ((0.02, 0.01, 0.03), -0.77, "yes"),
        ((0.8, 0.7, 0.9), 0.0, "not distinguishable"),
        ((1.5, 1.4, 1.6), 0.3, "no"),
        # Closer than random rankings that do harm, but no closer than the empty circuit.
        ((1.0, 0.95, 1.05), -0.5, "not distinguishable"),
    ],
)
def test_cmd_is_compared_the_other_way(
    make_record: Make, cmd: tuple[float, float, float], less: float, expected: str
) -> None:
    assert of(with_cmd(make_record(), cmd, less), "cmd") == expected


def test_stability_of_a_record_that_does_not_have_it(make_record: Make) -> None:
    assert stable([(smallest(make_record("eap"), 0.1), "eap")]) == []
