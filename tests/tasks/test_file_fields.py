"""Fields of users' files: which columns become parts of the prompts,
where, and what a row may say itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadFile
from mechassay.pairs import Pair
from mechassay.tasks import load_task
from mechassay.tasks.fields import parts_of, places

BASE = {
    "clean": "Ann gave the ring to",
    "counterfactual": "Ben gave the ring to",
    "answer": " Bob",
    "foil": " Al",
    "split": "test",
}


def one(folder: Path, row: dict[str, Any]) -> Pair:
    (folder / "my.jsonl").write_text(json.dumps({**BASE, **row}), encoding="utf-8")
    (pair,) = load_task(str(folder / "my.jsonl")).pairs("test")
    return pair


def parts(pair: Pair) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the parts of both prompts."""
    clean = {name: pair.clean[begin:end] for name, (begin, end) in pair.spans.items()}
    return clean, {
        name: pair.counterfactual[begin:end]
        for name, (begin, end) in pair.counterfactual_spans.items()
    }


def test_a_column_whose_value_is_a_word_of_the_prompt(tmp_path: Path) -> None:
    pair = one(
        tmp_path,
        {
            "object": "ring",
            "giver": "Ann",
            "source": "web",
            "many": ["ring"],
            "sure": True,
            "nothing": None,
        },
    )
    assert parts(pair) == ({"object": "ring", "giver": "Ann"}, {"object": "ring"}), (
        "Ann is not in the counterfactual"
    )
    assert pair.spans == {"object": (13, 17), "giver": (0, 3)}
    assert dict(pair.tags) == {
        "object": "ring",
        "giver": "Ann",
        "source": "web",
        "many": '["ring"]',
        "sure": "true",
    }


@pytest.mark.parametrize("beginning", ["counterfactual_", "corrupted_"])
def test_the_value_of_the_counterfactual_may_be_given(tmp_path: Path, beginning: str) -> None:
    pair = one(tmp_path, {"giver": "Ann", f"{beginning}giver": "Ben"})
    assert parts(pair) == ({"giver": "Ann"}, {"giver": "Ben"})
    assert dict(pair.tags) == {"giver": "Ann", f"{beginning}giver": "Ben"}
    assert parts(one(tmp_path, {"giver": "Ann", f"{beginning}giver": "Cid"})) == (
        {"giver": "Ann"},
        {},
    )


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("a ring, a ring; rings", "ring", [(2, 6), (10, 14)]),
        ("earrings", "ring", []),
        ("ring_2 ring", "ring", [(7, 11)]),
        ("27+64=", "64", [(3, 5)]),
        ("the year 1752", "52", []),
        ("in C++, C++11", "C++", [(3, 6)]),
        ("Zürich-Nord", "Zürich", [(0, 6)]),
        ("Zürich", "rich", []),
        ("a ring", "Ring", []),
        ("a b a b a b", "a b a", [(0, 5)]),
        ("x", "", []),
    ],
)
def test_whole_words(text: str, value: str, found: list[tuple[int, int]]) -> None:
    assert places(text, value) == found


@given(text=st.text("ab _1é-"), value=st.text("ab _1é-", min_size=1, max_size=3))
def test_places_are_those_of_a_pattern(text: str, value: str) -> None:
    assert places(text, value) == [
        match.span() for match in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    ]


def test_a_word_that_comes_again_is_numbered_unless_a_column_has_that_name() -> None:
    text = "ring a ring a ring, kiss"
    found = parts_of(text, {"object": " ring ", "object_2": "kiss"}, {})
    assert found == {"object": (0, 4), "object_3": (14, 18), "object_2": (20, 24)}


def test_parts_and_tags_that_a_row_gives_itself(tmp_path: Path) -> None:
    pair = one(tmp_path, {"tags": {"object": "ring", "year": 3}, "colour": "the"})
    assert parts(pair)[0] == {"colour": "the", "object": "ring"} and dict(pair.tags) == {
        "colour": "the",
        "object": "ring",
        "year": "3",
    }
    pair = one(
        tmp_path,
        {"tags": {"object": "ring"}, "spans": {"colour": [0, 3]}, "colour": "the", "verb": "gave"},
    )
    assert pair.spans == {"colour": (0, 3), "verb": (4, 8)}, (
        "what is given comes first, and tags are then only tags"
    )
    assert dict(pair.tags) == {"colour": "the", "verb": "gave", "object": "ring"}
    assert one(tmp_path, {"counterfactual_spans": {"x": [0, 3]}}).counterfactual_spans == {
        "x": (0, 3)
    }


@pytest.mark.parametrize(
    "wrong",
    [[0, 3], "ring", {"a": [3, 0]}, {"a": [0, 99]}, {"a": [0.0, 3]}, {"a": 3}, {"a": [0, 1, 2]}],
)
def test_parts_that_are_none(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        BadFile,
        match=r"row 1: 'spans' must be an object of \[begin, end\] in characters of the prompt",
    ):
        one(tmp_path, {"spans": wrong})


@pytest.mark.parametrize("name", ["ioi", "arithmetic-addition", "ravel", "mcqa"])
def test_pairs_of_a_task_written_and_read_back(tmp_path: Path, name: str) -> None:
    pairs = load_task(name).pairs("test", limit=20)
    lines = "".join(json.dumps({**pair.as_dict(), "split": "test"}) + "\n" for pair in pairs)
    (tmp_path / "my.jsonl").write_text(lines, encoding="utf-8")
    read = load_task(str(tmp_path / "my.jsonl")).pairs("test")
    assert [each.as_dict() for each in read] == [each.as_dict() for each in pairs]


def test_pairs_know_their_fields(tmp_path: Path) -> None:
    rows = [
        {**BASE, "clean": f"{who} gave the ring to", "object": "ring", "giver": who}
        for who in ("Ann", "Cid")
    ]
    (tmp_path / "my.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    assert load_task(str(tmp_path / "my.jsonl")).pairs("test").fields == {"object": 2, "giver": 2}
    plain = [{key: row[key] for key in BASE} for row in rows]
    (tmp_path / "my.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in plain), encoding="utf-8"
    )
    assert load_task(str(tmp_path / "my.jsonl")).pairs("test").fields == {}
    assert load_task("greater-than").pairs("test", limit=3).fields == {
        "noun": 3,
        "century": 3,
        "year": 3,
        "century_2": 3,
    }
