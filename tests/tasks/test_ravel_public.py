"""The RAVEL task: public rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.errors import BadFile
from mechassay.tasks import SPLITS
from mechassay.tasks.ravel import Ravel
from ravel_facts_read import (
    ATTRIBUTE,
    TEMPLATE,
    WIKIPEDIA,
)

DATA = Path(__file__).parent / "data" / "ravel.jsonl"


COLUMNS = ["template", "prompt", "entity", "attribute", "Continent", "Country", "Language"]


# --- public rows
# --------------------------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        shutil.copy(DATA, tmp_path / f"{split}.jsonl")
    return tmp_path


def test_public_rows(public: Path) -> None:
    task = Ravel(str(public))
    first, rome, third = task.examples("train")
    pair = first.pair(WIKIPEDIA)
    assert (pair.id, pair.clean, pair.answers, pair.foils) == (
        "ravel-train-000000",
        "Paris is on the continent of",
        (" Europe",),
        (" North America",),
    )
    assert (pair.counterfactual, pair.counterfactual_answers) == (
        "The band played twice in Toronto before the tour ended.",
        (),
    )
    assert pair.clean[slice(*pair.spans["entity"])] == "Paris"
    assert pair.counterfactual[slice(*pair.counterfactual_spans["entity"])] == "Toronto"
    assert pair.tags == {
        "city": "Paris",
        "attribute": "Continent",
        "country": "France",
        "continent": "Europe",
        "language": "French",
        "template": "%s is on the continent of",
    }
    assert pair.group == "Paris"
    assert list(first.counterfactuals) == [ATTRIBUTE, WIKIPEDIA, TEMPLATE]
    assert first.counterfactuals[ATTRIBUTE].answers == (" Canada",)
    assert first.prompt.choices == (" Europe", " North America")
    # The last mention counts, the fact is ours, and an open quotation mark takes no space.
    assert (
        rome.prompt.spans["entity"][0]
        == rome.prompt.text.rindex("Rome")
        > rome.prompt.text.index("Rome")
    )
    assert (rome.prompt.answers, rome.foils) == (("Italy",), ("Japan",))
    assert list(rome.counterfactuals) == [
        WIKIPEDIA,
        TEMPLATE,
    ], "nobody says what is spoken in Gotham"
    assert rome.counterfactuals[TEMPLATE].answers == (" Japan",)
    assert rome.counterfactuals[WIKIPEDIA].spans == {}, "a sentence without its city"
    # A counterfactual with the same answer gives no foil; a column without a value is a kind that
    # is not there.
    assert (third.prompt.answers, third.foils) == ((" English",), (" Spanish",))
    assert list(third.counterfactuals) == [ATTRIBUTE, TEMPLATE]
    pairs = task.pairs("validation", counterfactual=WIKIPEDIA)
    assert [each.id for each in pairs] == ["ravel-validation-000000", "ravel-validation-000001"]
    assert pairs.dropped == {"no such counterfactual": 1}


def test_public_rows_are_balanced_for_a_variable(tmp_path: Path) -> None:
    first, second, third = (
        json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
    )
    # Asked for: Continent x 4, Country x 3, Language x 2.
    lines = [first] * 2 + [second] + [third] * 2 + [second] * 2 + [first] * 2
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    asked = [
        example.tags["attribute"] for example in Ravel(str(tmp_path), "Country").examples("train")
    ]
    assert asked == ["Country", "Continent", "Country", "Language", "Country", "Continent"]
    plain = [example.tags["attribute"] for example in Ravel(str(tmp_path)).examples("train")]
    assert plain == [line["attribute"] for line in lines]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"entity": "Gotham", "Continent": None}, "a fact that nobody says"),
        ({"attribute": "Mayor"}, "a fact that nobody says"),
        ({"entity": None}, "a row of another form"),
        ({"prompt": None}, "a row of another form"),
        ({WIKIPEDIA: {"prompt": "x"}}, "its counterfactual: a row without 'entity'"),
        ({WIKIPEDIA: "Paris is old."}, "its counterfactual: a row of another form"),
        ({WIKIPEDIA: None}, "no such counterfactual"),
    ],
)
def test_rows_that_say_too_little_are_dropped(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    row = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])
    lines = "".join(f"{json.dumps(each)}\n" for each in (row | change, row))
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    pairs = Ravel(str(tmp_path)).pairs("train", counterfactual=WIKIPEDIA)
    assert [pair.id for pair in pairs] == ["ravel-train-000001"] and pairs.dropped == {reason: 1}
    if reason in ("a fact that nobody says", "a row of another form"):
        balanced = Ravel(str(tmp_path), row["attribute"])
        assert balanced.pairs("train", counterfactual=WIKIPEDIA).dropped == {reason: 1}


def test_a_split_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    row = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0]) | {
        "entity": "Gotham",
        "Continent": None,
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row), encoding="utf-8")
    said = (
        r"none of 1 rows is one of mib-bench/ravel: 1 a fact that nobody says \(row 1: neither .*"
        r" the Continent of 'Gotham' is\)\.$"
    )
    with pytest.raises(BadFile, match=said):
        Ravel(str(tmp_path)).pairs("train", counterfactual=WIKIPEDIA)


def test_a_value_with_commas_is_several_right_answers() -> None:
    """As MIB's checker takes them, also where the counterfactual shares one of them."""
    row = {
        "prompt": "People in Tizi speak",
        "entity": "Tizi",
        "attribute": "Language",
        "Language": "Arabic,Berberi",
    }
    other = {
        "prompt": "People in Nowhere speak",
        "entity": "Nowhere",
        "attribute": "Language",
        "Language": "French, Arabic",
    }
    example = Ravel().from_row({**row, TEMPLATE: other}, "x")
    assert example.prompt.answers == (" Arabic", " Berberi")
    assert example.counterfactuals[TEMPLATE].answers == (" French", " Arabic")
    assert example.foils == (" French",) and example.tags["language"] == "Arabic,Berberi"
    assert example.prompt.choices == (" Arabic", " Berberi", " French")
    assert Ravel().to_row(example)["Language"] == "Arabic,Berberi"


def test_a_row_may_have_labels() -> None:
    row = {
        "prompt": "Gotham is in the country of",
        "entity": "Gotham",
        "attribute": "Country",
        "label": "New Jersey",
    }
    plain = {"prompt": "Paris is in the country of", "entity": "Paris", "attribute": "Country"}
    example = Ravel().from_row({**row, TEMPLATE: plain}, "x")
    assert (example.prompt.answers, example.foils, example.tags["language"]) == (
        (" New Jersey",),
        (" France",),
        "",
    )
    assert example.tags["template"] == "{entity} is in the country of"


def test_a_row_without_another_answer_has_all_others_as_foils() -> None:
    other = {"prompt": "She likes Lyon.", "entity": "Lyon", "attribute": "wikipedia"}
    row = {
        "prompt": "Paris is on the continent of",
        "entity": "Paris",
        "attribute": "Continent",
        WIKIPEDIA: other,
    }
    example = Ravel().from_row(row, "x")
    assert example.foils is None and " Europe" in example.prompt.choices
    assert example.pair(WIKIPEDIA).foils == (" Africa", " Asia", " North America", " South America")


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_rows_round_trip(split: str, seed: int) -> None:
    task = Ravel()
    for example in task.examples(split, limit=5, seed=seed, private_seed=seed):
        row = task.to_row(example)
        assert list(row) == [*COLUMNS, *task.counterfactuals]
        assert all(list(row[kind]) == COLUMNS for kind in task.counterfactuals)
        assert row[WIKIPEDIA]["attribute"] == "wikipedia"
        back = task.from_row(json.loads(json.dumps(row)), example.id)
        for kind in task.counterfactuals:
            assert back.pair(kind) == example.pair(kind)
        assert task.to_row(back) == row


def test_public_rows_round_trip(public: Path) -> None:
    task = Ravel(str(public))
    for example in task.examples("train"):
        row = task.to_row(example)
        again = task.from_row(json.loads(json.dumps(row)), example.id)
        assert again == example
