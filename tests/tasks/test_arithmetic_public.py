"""Addition and subtraction: public rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithmetic_read import TASKS, some
from mechassay.errors import UnknownName
from mechassay.tasks import SPLITS
from mechassay.tasks.arithmetic import (
    COLUMNS,
    RANDOM,
    TENS_CARRY,
    Addition,
    Arithmetic,
    Subtraction,
)
from mechassay.tasks.task import ABSENT

DATA = Path(__file__).parent / "data"


# Public rows


def public_folder(folder: Path, task: Arithmetic, *change: tuple[str, Any]) -> Path:
    """The miniature of the public data as a folder, with fields of its first row changed."""
    name = task.name.replace("-", "_")
    first, *rest = map(
        json.loads, (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    )
    folder.mkdir(exist_ok=True)
    (folder / "test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in ({**first, **dict(change)}, *rest)),
        encoding="utf-8",
    )
    return folder


def test_public_additions(tmp_path: Path) -> None:
    source = str(public_folder(tmp_path, Addition()))
    first, second, third = Addition(source).examples("test")
    assert first.pair(RANDOM).as_dict() == {
        "id": "arithmetic-addition-test-000000",
        "clean": "The sum of 27 and 64 is: ",
        "counterfactual": "The sum of 42 and 29 is: ",
        "answers": ["91"],
        "foils": ["71"],
        "group": "27+64",
        "tags": {
            "template": "4",
            "operand_1": "27",
            "operand_2": "64",
            "num_digit": "2",
            "carry": "1",
            "operator": "+",
        },
        "counterfactual_answers": ["71"],
        "spans": {"op1": [11, 13], "op2": [18, 20]},
        "counterfactual_spans": {"op1": [11, 13], "op2": [18, 20]},
    }
    results = {kind: prompt.answers for kind, prompt in first.counterfactuals.items()}
    assert results == dict(
        zip(COLUMNS, [("71",), ("88",), ("88",), ("111",), ("71",), ("81",), ("141",)], strict=True)
    ), "table 8"
    assert (second.prompt.text, second.prompt.answers, second.tags["template"]) == (
        "3+5=",
        ("8",),
        "5",
    )
    assert set(COLUMNS) - set(second.counterfactuals) == {
        kind for kind in COLUMNS if kind.startswith("tens")
    }, "null, or all fields null"
    assert third.tags[
        "template"
    ] == "Add {op1} to {op2}. The result is" and third.prompt.answers == (" 62",)
    assert len(Addition(source, digits=2).pairs("test")) == 2
    assert dict(Addition(source).pairs("test", counterfactual=TENS_CARRY).dropped) == {ABSENT: 2}


def test_public_subtractions(tmp_path: Path) -> None:
    first, second = Subtraction(str(public_folder(tmp_path, Subtraction()))).examples("test")
    assert (first.prompt.text, first.prompt.answers, first.tags["template"]) == (
        "Q: How much is 81 minus 26? A: ",
        ("55",),
        "1",
    )
    assert list(first.counterfactuals) == list(COLUMNS[:-1])
    assert (second.prompt.answers, second.tags["template"], second.tags["carry"]) == (
        (" 7",),
        "6",
        "0",
    )
    assert list(second.counterfactuals) == list(COLUMNS[:3])


def test_written_rows_are_those_of_the_public_schema(tmp_path: Path) -> None:
    for task in TASKS:
        rows = [
            json.loads(line)
            for line in (public_folder(tmp_path, task) / "test.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        ]
        for row in rows:
            written = task.to_row(task.from_row(row, "x"))
            theirs = {
                key: None if isinstance(value, dict) and value["prompt"] is None else value
                for key, value in row.items()
            }
            assert written == {
                key: value for key, value in theirs.items() if key not in ("idx", "template")
            }


@settings(max_examples=25, deadline=None)
@given(task=st.sampled_from(TASKS), split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_rows_round_trip(task: Arithmetic, split: str, seed: int) -> None:
    for example, row in zip(
        some(task, split, 10, seed),
        task.rows(split, limit=10, seed=seed, private_seed=seed),
        strict=True,
    ):
        assert task.from_row(json.loads(json.dumps(row)), example.id) == example


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("label", "92"), "a label that is not the result"),
        (("operator", "-"), "another operator"),
        (("prompt", "The sum of 27 is: "), "a prompt without two numbers"),
        (("prompt", "1: 27+64="), "a prompt without two numbers"),
        (("prompt", "{27}+64="), "a prompt with braces"),
        (
            (RANDOM, {"prompt": "27+61=", "label": 91}),
            "its counterfactual: a label that is not the result",
        ),
        ((RANDOM, {"label": 91}), "no such counterfactual"),
        ((RANDOM, {"prompt": "27+61="}), "its counterfactual: a row without 'label'"),
        (("label", None), "a row of another form"),
    ],
)
def test_broken_public_rows(tmp_path: Path, change: tuple[str, Any], reason: str) -> None:
    """They are dropped and counted."""
    whole = Addition(str(public_folder(tmp_path / "whole", Addition()))).pairs("test")
    broken = Addition(str(public_folder(tmp_path / "broken", Addition(), change))).pairs("test")
    assert list(broken) == list(whole)[1:] and broken.dropped == {reason: 1}


# --- labels as MIB has them
# --------------------------------------------------------------------------


def test_labels_as_mib_has_them() -> None:
    """The same examples in the same order; every prompt ends in a space,
    and every answer is the bare number.
    """
    for strict, lax in (
        (Addition(), Addition(labels="mib-2025")),
        (Subtraction(), Subtraction(labels="mib-2025")),
    ):
        ours, theirs = strict.pairs("test", limit=60), lax.pairs("test", limit=60)
        for a, b in zip(ours, theirs, strict=True):
            assert (b.clean, b.counterfactual) == (a.clean + " ", a.counterfactual + " ")
            assert (b.answers, b.foils) == (
                tuple(x.strip() for x in a.answers),
                tuple(x.strip() for x in a.foils),
            )
            assert (b.id, b.tags, b.spans, b.group) == (a.id, a.tags, a.spans, a.group)
    assert ours != theirs


def test_a_public_row_is_read_as_it_is_whatever_the_labels(tmp_path: Path) -> None:
    folder = str(public_folder(tmp_path, Addition()))
    assert Addition(folder).pairs("test") == Addition(folder, labels="mib-2025").pairs("test")
    assert Addition(folder).pairs("test")[0].clean == "The sum of 27 and 64 is: "
    with pytest.raises(UnknownName, match="labels 'lax'"):
        Addition(labels="lax")


def test_rows_in_the_labels_of_mib_are_those_of_its_data(tmp_path: Path) -> None:
    """A row of ours is then what the miniature of the public data has."""
    row = Addition(labels="mib-2025").rows("test", limit=1)[0]
    theirs = Addition(str(public_folder(tmp_path, Addition()))).rows("test", limit=1)[0]
    assert (
        row.keys() == theirs.keys()
        and row["prompt"].endswith(" ")
        and theirs["prompt"].endswith(" ")
    )
