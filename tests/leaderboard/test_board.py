"""Boards of cells made by hand.

Averages and scores of numbers made by hand.

Paired differences of records made by hand.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.leaderboard import Board, BoardCell
from mechassay.leaderboard.board import paired_differences, sigmoid, summarised
from mechassay.leaderboard.cells import told_apart
from mechassay.leaderboard.rules import board_rules
from mechassay.results.records import Record, Values, provenance
from mechassay.stats.intervals import Estimate

RULES = board_rules()["circuits"]


def made(row: str, task: str, value: float, column: str = "cpr", **more: object) -> BoardCell:
    about: dict[str, object] = {"conditions": {"examples": "x"}, "created": "2026-01-01", **more}
    place = {"model": about.pop("model", "gpt2"), "task": task}
    return BoardCell(
        board="circuits", column=column, version=1, row=row, place=place, value=value, **about
    )


def test_average_and_score_are_those_worked_by_hand() -> None:
    board = Board.of(RULES, [made("eap", "ioi", 1.0), made("eap", "mcqa", 0.0)])
    assert board.average("eap", "cpr") == 0.5
    assert board.score("eap", "cpr") == pytest.approx((1 / (1 + math.exp(-1)) + 0.5) / 2)


def test_only_the_places_that_are_shown_count() -> None:
    board = Board.of(RULES, [made("eap", "ioi", 1.0), made("eap", "mcqa", 0.0)])
    shown = [place for place in board.places("cpr") if dict(place.roles)["task"] == "ioi"]
    assert board.average("eap", "cpr", shown) == 1.0


def test_a_row_that_lacks_a_place_has_no_average_and_comes_last() -> None:
    cells = [made("all", "ioi", 0.2), made("all", "mcqa", 0.1), made("some", "ioi", 0.9)]
    board = Board.of(RULES, cells)
    assert math.isnan(board.average("some", "cpr"))
    assert math.isnan(board.score("some", "cpr"))
    assert board.ranked("cpr") == ["all", "some"]


def test_an_undefined_number_is_no_zero() -> None:
    board = Board.of(RULES, [made("eap", "ioi", math.nan), made("eap", "mcqa", 1.0)])
    assert math.isnan(board.average("eap", "cpr"))


@pytest.mark.parametrize(("column", "first"), [("cpr", "high"), ("cmd", "low")])
def test_the_better_direction_is_that_of_the_column(column: str, first: str) -> None:
    cells = [made("low", "ioi", 0.1, column), made("high", "ioi", 0.9, column)]
    assert Board.of(RULES, cells).ranked(column)[0] == first


def test_cells_of_other_conditions_stand_in_places_of_their_own() -> None:
    cells = [
        made("a", "ioi", 0.1, conditions={"definition": "cpr@1", "examples": "x"}),
        made("b", "ioi", 0.9, conditions={"definition": "cpr@2", "examples": "x"}),
    ]
    board = Board.of(RULES, cells)
    places = board.places("cpr")
    assert len(places) == 2 and len({place.title for place in places}) == 2
    assert {place.differs for place in places} == {"cpr@1", "cpr@2"}
    held = [[board.cell(row, place, "cpr") is not None for place in places] for row in "ab"]
    assert sorted(map(tuple, held)) == [(False, True), (True, False)]


def test_averages_are_of_one_set_of_conditions_for_each_task() -> None:
    other = {"conditions": {"examples": "y"}}
    cells = [
        made("a", "ioi", 1.0),
        made("b", "ioi", 0.5),
        made("a", "ioi", 0.0, **other),
        made("c", "ioi", 0.9, origin="as reported", conditions={"definition": "reported"}),
        made("d", "ioi", 0.9, origin="as reported", conditions={"definition": "reported"}),
        made("e", "ioi", 0.9, origin="as reported", conditions={"definition": "reported"}),
    ]
    board = Board.of(RULES, cells)
    assert len(board.places("cpr")) == 3 and len(board.comparable("cpr")) == 1
    assert board.average("a", "cpr") == 1.0 and board.average("b", "cpr") == 0.5
    assert math.isnan(board.average("c", "cpr"))
    assert board.ranked("cpr")[:2] == ["a", "b"]
    alone = Board.of(RULES, cells[3:])
    assert alone.average("c", "cpr") == 0.9


def test_two_models_of_one_name_are_two_places() -> None:
    """Each counts in averages, and stands in a column that names its weights."""
    cells = [
        made("a", "ioi", value, conditions={"examples": "x", "weights": weights})
        for value, weights in ((1.0, "0123abcd"), (0.5, "fedc4567"))
    ]
    board = Board.of(RULES, cells)
    places = board.comparable("cpr")
    assert len(places) == 2 and len({place.title for place in places}) == 2
    assert {place.weights for place in places} == {"0123abcd", "fedc4567"}
    assert board.average("a", "cpr") == 0.75


def test_the_newest_of_equal_cells_stands() -> None:
    old, new = made("a", "ioi", 0.1), made("a", "ioi", 0.2, created="2026-02-01")
    for cells in ([old, new], [new, old]):
        [cell] = Board.of(RULES, cells).cells
        assert cell.value == 0.2 and [old.value for old in cell.earlier] == [0.1]


def test_a_board_does_not_depend_on_the_order_of_its_cells() -> None:
    cells = [
        made(row, task, v) for row, task, v in zip("aabb", ["ioi", "x"] * 2, range(4), strict=True)
    ]
    forth, back = Board.of(RULES, cells), Board.of(RULES, cells[::-1])
    assert forth.ranked("cpr") == back.ranked("cpr")
    assert forth.places("cpr") == back.places("cpr")


def test_an_unknown_cell_is_named_with_the_nearest() -> None:
    board = Board.of(RULES, [made("eap", "ioi", 1.0)])
    assert board.find("eap/gpt2/ioi/cpr").value == 1.0
    with pytest.raises(UnknownName, match="eap/gpt2/ioi/cpr"):
        board.find("eap/gpt2/ioi/cpt")
    twice = [made("eap", "ioi", 1.0), made("eap", "ioi", 0.0, conditions={"examples": "y"})]
    board = Board.of(RULES, twice)
    with pytest.raises(BadUsage, match="several conditions"):
        board.find("eap/gpt2/ioi/cpr")
    assert [board.find(cell.full_id).value for cell in twice] == [1.0, 0.0]


def test_known_cells_are_told_apart_by_their_conditions() -> None:
    twice = [made("eap", "ioi", 1.0), made("eap", "ioi", 0.0, conditions={"examples": "y"})]
    board = Board.of(RULES, [*twice, made("eap", "x", 1.0)])
    with pytest.raises(UnknownName) as error:
        board.find("random")
    known = str(error.value).rpartition("Known: ")[2].removesuffix(".").split(", ")
    assert set(known) == {*(cell.full_id for cell in twice), "eap/gpt2/x/cpr"}
    assert all(board.find(name).id == name.partition("@")[0] for name in known)


def test_conditions_stand_behind_the_last_at() -> None:
    full = ["eap@0.1/cpr@a", "eap@0.1/cpr@b", "eap@0.1/cmd@a"]
    assert told_apart(full) == ["eap@0.1/cpr@a", "eap@0.1/cpr@b", "eap@0.1/cmd"]


def test_json_and_csv_hold_every_cell_with_all_digits() -> None:
    board = Board.of(RULES, [made("eap", "ioi", 1 / 3), made("=cmd()", "ioi", math.nan)])
    told = json.loads(board.to_json())
    assert [cell["value"] for cell in told["cells"]] == [1 / 3, None]
    rows = list(csv.DictReader(io.StringIO(board.to_csv())))
    assert float(rows[0]["value"]) == 1 / 3 and rows[0]["task"] == "ioi"
    assert rows[1]["value"] == "" and rows[1]["row"] == "'=cmd()"


TEXTS = st.text(st.sampled_from("=+-@\t\r\n'\",;a ") | st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(allow_infinity=False)


@given(
    st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS, NUMBERS, st.integers(0, 10**6)), max_size=4),
)
def test_a_csv_is_read_back_as_it_was_written(
    lines: list[tuple[str, str, str, str, float, int]],
) -> None:
    cells = [
        made(row, task, value, reason=reason, source=source, n=n)
        for row, task, reason, source, value, n in lines
    ]
    read = list(csv.DictReader(io.StringIO(Board(RULES, tuple(cells)).to_csv(), newline="")))
    assert len(read) == len(cells)
    for line, cell in zip(read, cells, strict=True):
        assert None not in line  # No cell has more fields than the head.
        for name in ("row", "reason", "source", "command", "created"):
            text = re.sub("\r\n?", "\n", getattr(cell, name))
            assert line[name] == (f"'{text}" if re.match(r"[=+\-@\t\n]", text) else text)
        assert line["n"] == str(cell.n)
        for name in ("value", "low", "high"):
            number = getattr(cell, name)
            assert line[name] == "" if math.isnan(number) else float(line[name]) == number


def test_language_models_and_ground_truths_are_never_averaged_together() -> None:
    cells = [
        made("a", "ioi", 0.5),
        made("a", "mcqa", 0.7),
        made("a", "truth-ioi", 3.0, model="truth-ioi"),
        made("b", "truth-ioi", 4.0, model="truth-ioi"),
    ]
    board = Board.of(RULES, cells)
    assert {kind: len(places) for kind, places in board.kinds("cpr").items()} == {
        "language models": 2,
        "ground truths": 1,
    }
    assert board.average("a", "cpr") == pytest.approx(0.6)
    truths = board.comparable("cpr", "ground truths")
    assert board.average("a", "cpr", truths) == 3.0
    assert board.ranked("cpr") == ["a"] and board.ranked("cpr", "ground truths") == ["b", "a"]
    alone = Board.of(RULES, cells[2:])
    assert alone.average("b", "cpr") == 4.0 and alone.ranked("cpr") == ["b", "a"]
    with pytest.raises(UnknownName, match="kind of models 'language models'"):
        alone.comparable("cpr", "language models")


def test_every_column_of_the_rules_is_found_by_name() -> None:
    for rules in board_rules().values():
        assert [rules.column(column.name) for column in rules.columns] == list(rules.columns)
    with pytest.raises(UnknownName, match="cpr"):
        RULES.column("cpx")


@pytest.mark.parametrize(("column", "best"), [("cpr", 0.9), ("cmd", 0.1)])
def test_a_higher_score_is_better_in_every_column(column: str, best: float) -> None:
    cells = [made(f"{value}", "ioi", value, column) for value in (0.1, 0.5, 0.9)]
    board = Board.of(RULES, cells)
    assert max(board.rows(), key=lambda row: board.score(row, column)) == f"{best}"
    assert board.ranked(column) == sorted(board.rows(), key=lambda row: -board.score(row, column))


def test_the_score_as_published_is_lower_for_the_better_row_of_cmd() -> None:
    board = Board.of(RULES, [made("good", "ioi", 0.1, "cmd"), made("bad", "ioi", 0.9, "cmd")])
    published = [board.score(row, "cmd", formula="mib-2025") for row in ("good", "bad")]
    assert published == pytest.approx([1 / (1 + math.exp(-0.1)), 1 / (1 + math.exp(-0.9))])
    assert published[0] < published[1]
    assert board.score("good", "cmd") == pytest.approx(1 / (1 + math.exp(0.1)))
    with pytest.raises(UnknownName, match="mib-2025"):
        board.score("good", "cmd", formula="mib")  # pyright: ignore


def test_a_summary_has_the_intervals_of_its_cells() -> None:
    cells = [made("a", "x", 1.0, low=0.4, high=1.3), made("a", "y", 0.0, low=-0.8, high=0.4)]
    found = Board.of(RULES, cells).summary("a", "cpr")
    assert found.average == Estimate(0.5, 0.5 - 0.5, pytest.approx(0.5 + 0.25))
    assert found.lacks == ""
    one = Board.of(RULES, cells[:1]).summary("a", "cpr")
    assert (one.average.low, one.average.high) == pytest.approx((0.4, 1.3))


def test_places_are_headed_by_what_differs() -> None:
    given = {"task": "ioi@3", "dtype": "float32", "examples": "0" * 64}
    small = made("a", "ioi", 0.1, conditions=given, examples=40)
    large = made("a", "ioi", 0.1, conditions={**given, "examples": "1" * 64}, examples=100)
    half = made("a", "ioi", 0.1, conditions={**given, "dtype": "bfloat16"}, examples=40)
    places = Board.of(RULES, [small, large, half]).places("cpr")
    assert [place.title for place in places] == [
        "ioi, gpt2 (fp32, 40 examples)",
        "ioi, gpt2 (100 examples)",
        "ioi, gpt2 (bf16)",
    ]
    assert f"examples {'1' * 64}" in places[1].conditions
    [alone] = Board.of(RULES, [small]).places("cpr")
    assert alone.title == "ioi, gpt2" and alone.conditions == ""


def test_controls_that_all_rows_share_are_told_apart() -> None:
    cells = [
        made("a", "ioi", 0.1, controls={"random": 0.2, "full vector": 0.5}),
        made("b", "ioi", 0.1, controls={"random": 0.2 + 1e-9, "full vector": 0.9}),
        made("a", "mcqa", 0.1, controls={"random": 0.3}),
    ]
    board = Board.of(RULES, cells)
    shared = board.shared_controls("cpr")
    assert {name: list(at.values()) for name, at in shared.items()} == {"random": [0.2, 0.3]}
    lacking = Board.of(RULES, [*cells, made("c", "ioi", 0.1)])
    assert lacking.shared_controls("cpr") == {}


def averages_made(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def test_the_score_of_one_number_has_the_interval_of_the_number() -> None:
    given = Estimate(0.3, -0.2, 0.9)
    up = summarised([given], ["x"], "up").score
    assert (up.value, up.low, up.high) == tuple(map(sigmoid, (0.3, -0.2, 0.9)))
    down = summarised([given], ["x"], "down").score
    assert (down.value, down.low, down.high) == pytest.approx(
        tuple(map(sigmoid, (-0.3, -0.9, 0.2)))
    )


def test_where_higher_is_better_both_formulas_are_one() -> None:
    numbers, tasks = [averages_made(0.3, 0.1), averages_made(1.2, 0.2)], ["x", "y"]
    assert summarised(numbers, tasks, "up") == summarised(numbers, tasks, "up", "mib-2025")
    assert summarised(numbers, tasks, "down") != summarised(numbers, tasks, "down", "mib-2025")


def test_what_is_lacking_is_said() -> None:
    nothing, no_ends = Estimate(math.nan), Estimate(1.0)
    found = summarised([averages_made(1.0, 0.1), nothing], ["x", "y"], "up")
    assert math.isnan(found.average.value) and math.isnan(found.average.low)
    assert found.lacks == "lacks 1 of 2 places"
    found = summarised([averages_made(1.0, 0.1), no_ends], ["x", "y"], "up")
    assert found.average.value == 1.0 and math.isnan(found.average.low + found.score.high)
    assert found.lacks == "no interval: 1 of 2 numbers have none"
    assert summarised([], [], "up").lacks == "no place is shown"
    with pytest.raises(BadUsage, match="a task"):
        summarised([no_ends], [], "up")


@pytest.mark.parametrize(("equal", "least", "most"), [(False, 0.935, 0.965), (True, 0.935, 0.965)])
def test_intervals_hold_the_truth_as_often_as_they_say(
    equal: bool, least: float, most: float
) -> None:
    """Errors of tasks are independent; those of one task may be the same."""
    rng, truth, errors = np.random.default_rng(1), 0.4, np.array([0.05, 0.2, 0.1, 0.1])
    tasks = ["x", "x", "y", "y"] if equal else ["w", "x", "y", "z"]
    hits = np.zeros(2)
    for _ in range(3000):
        z = rng.standard_normal(4)
        z = z[[0, 0, 2, 2]] if equal else z
        numbers = [
            averages_made(x, 1.96 * e) for x, e in zip(truth + errors * z, errors, strict=True)
        ]
        found = summarised(numbers, tasks, "down")
        hits += [
            found.average.low <= truth <= found.average.high,
            found.score.low <= sigmoid(-truth) <= found.score.high,
        ]
    assert (least <= hits / 3000).all() and (hits / 3000 <= most).all()


def test_sigmoid_of_large_numbers_is_finite() -> None:
    assert sigmoid(0.0) == 0.5 and sigmoid(1e6) == 1 and sigmoid(-1e6) == 0
    assert math.isnan(sigmoid(math.nan))


ODDS = board_rules()["gym"].column("odds")
IIA = board_rules()["variables"].column("iia")


def paired_made(columns: dict[str, list[float]], ids: list[str] | None = None) -> Record:
    n = len(next(iter(columns.values())))
    names = ids or [str(number) for number in range(n)]
    return Record(
        kind="gym",
        specs={},
        measures=[],
        values=Values(unit="pair", ids=names, groups=names, columns=columns),
        provenance=provenance(device="", dtype="", seed=0),
    )


def test_the_difference_is_of_means_and_what_is_common_cancels() -> None:
    hard = np.random.default_rng(0).normal(0, 100, 60)
    record = paired_made({"a": (hard + 1).tolist(), "b": hard.tolist()})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert found.value == pytest.approx(1) and found.low == pytest.approx(1)
    assert found.high == pytest.approx(1)


def test_two_worthless_rows_are_not_told_apart() -> None:
    rng = np.random.default_rng(1)
    record = paired_made({name: rng.normal(size=80).tolist() for name in "ab"})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert found.low < 0 < found.high


def test_records_may_be_others_but_not_about_other_examples() -> None:
    first, second = (
        paired_made({"features": [1.0, 0.0, 1.0]}),
        paired_made({"features": [0.0, 0.0, 1.0]}),
    )
    found = paired_differences(IIA, {"das": first, "pca": second})["das", "pca"]
    assert found.value == pytest.approx(1 / 3)
    other = paired_made({"features": [0.0, 0.0, 1.0]}, ids=["x", "y", "z"])
    with pytest.raises(BadUsage, match="other examples"):
        paired_differences(IIA, {"das": first, "pca": other})


def test_an_undefined_value_leaves_the_difference_undefined() -> None:
    record = paired_made({"a": [1.0, math.nan], "b": [0.0, 0.0]})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert math.isnan(found.value) and math.isnan(found.low)


def test_nothing_is_paired_where_a_column_has_no_values() -> None:
    record = paired_made({"a": [1.0], "b": [0.0]})
    assert paired_differences(replace(ODDS, paired=""), {"a": record, "b": record}) == {}
    assert paired_differences(ODDS, {"a": record}) == {}
    with pytest.raises(BadUsage, match="no values of examples named c"):
        paired_differences(ODDS, {"a": record, "c": record})
