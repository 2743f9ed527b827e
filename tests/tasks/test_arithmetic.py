"""Addition and subtraction: results, what counterfactuals change, closed splits.

Addition and subtraction: public rows.

Addition and subtraction: what tokenizers make of them.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import mechassay.tasks.arithmetic as arithmetic
from helpers.read_back import TASKS, solve, some
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import ABSENT, Example, Prompt, content_hash
from mechassay.prompts.tokenization import LENGTHS, token_position
from mechassay.tasks import Task, load_task
from mechassay.tasks.arithmetic import (
    COLUMNS,
    RANDOM,
    TENS_CARRY,
    Addition,
    Arithmetic,
    Subtraction,
    changes,
    operands_of,
    split_of,
)
from mechassay.tasks.task import SPLITS


def carried(a: int, b: int, result: int) -> bool:
    """Whether the ones carry or borrow, by the tens digit that they would leave otherwise."""
    return result // 10 != (a // 10 + b // 10 if result in (a + b,) else a // 10 - b // 10)


def changed_digits(old: tuple[int, int], new: tuple[int, int]) -> set[str]:
    """The places in which two pairs of operands differ."""
    places = {"tens": 10, "ones": 1}
    return {
        f"{name}{n + 1}"
        for name, power in places.items()
        for n in (0, 1)
        if old[n] // power % 10 != new[n] // power % 10
    }


def all_prompts(example: Example) -> list[Prompt]:
    return [example.prompt, *example.counterfactuals.values()]


def test_templates_are_those_of_table_7() -> None:
    texts = {t.format(op1=27, op2=64) for t in Addition.templates}
    assert texts == {
        "Q: How much is 27 plus 64? A:",
        "Q: What is 27 plus 64? A:",
        "Q: What is the result of 27 plus 64? A:",
        "The sum of 27 and 64 is:",
        "27+64=",
        "27 + 64 =",
    }
    assert {t.format(op1=27, op2=14) for t in Subtraction.templates} == {
        "Q: How much is 27 minus 14? A:",
        "Q: What is 27 minus 14? A:",
        "Q: What is the result of 27 minus 14? A:",
        "The difference between 27 and 14 is:",
        "27-14=",
        "27 - 14 =",
    }


@settings(max_examples=25, deadline=None)
@given(task=st.sampled_from(TASKS), split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_answers_spans_and_tags(task: Arithmetic, split: str, seed: int) -> None:
    for example in some(task, split, 12, seed):
        for prompt in all_prompts(example):
            a, b, result = solve(prompt.text)
            assert result > 0 or task.operator == "+"
            lead = "" if re.search(r"\d=", prompt.text) else " "
            assert prompt.answers == (f"{lead}{result}",) and prompt.choices == ()
            assert {"op1", "op2"} == set(prompt.spans)
            assert (prompt.part("op1"), prompt.part("op2")) == (str(a), str(b))
            assert prompt.spans["op1"][1] <= prompt.spans["op2"][0]
            assert not prompt.text.endswith(" ")
        a, b, result = solve(example.prompt.text)
        template = task.templates[int(example.tags["template"]) - 1]
        assert example.tags == {
            "template": example.tags["template"],
            "operand_1": str(a),
            "operand_2": str(b),
            "num_digit": str(len(str(a))),
            "carry": str(int(carried(a, b, result))),
            "operator": task.operator,
        }
        assert example.group == f"{a}{task.operator}{b}"
        for prompt in all_prompts(example):
            x, y, _ = solve(prompt.text)
            assert prompt.text == template.format(op1=x, op2=y), "nothing but the operands changes"


@settings(max_examples=25, deadline=None)
@given(task=st.sampled_from(TASKS), split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_counterfactuals_change_what_they_say(task: Arithmetic, split: str, seed: int) -> None:
    for example in some(task, split, 12, seed):
        a, b, result = solve(example.prompt.text)
        assert RANDOM in example.counterfactuals
        assert list(example.counterfactuals) == [
            kind for kind in task.counterfactuals if kind in example.counterfactuals
        ]
        for kind, prompt in example.counterfactuals.items():
            x, y, other = solve(prompt.text)
            digits = changed_digits((a, b), (x, y))
            assert [len(str(n)) for n in (a, b)] == [len(str(n)) for n in (x, y)]
            assert not str(result).startswith(str(other)) and not str(other).startswith(str(result))
            pair = example.pair(kind)
            assert pair.foils == prompt.answers == pair.counterfactual_answers
            if kind in (
                "ones_op1_counterfactual",
                "ones_op2_counterfactual",
                "tens_op1_counterfactual",
                "tens_op2_counterfactual",
            ):
                assert digits == {kind[:4] + kind[7]}
            elif kind == "ones_carry_counterfactual":
                assert digits and digits <= {"ones1", "ones2"}
                assert carried(x, y, other) != carried(a, b, result)
            elif kind == TENS_CARRY:
                assert digits == {"tens1"} and task.operator == "+"
                assert (other >= 100) != (result >= 100)
            else:
                assert kind == RANDOM and digits


def test_absent_kinds_are_those_that_cannot_be() -> None:
    for task in TASKS:
        for split in SPLITS:
            for example in some(task, split, 50):
                a, b, result = solve(example.prompt.text)
                short = a < 10
                for kind in COLUMNS:
                    possible = [
                        (x, y)
                        for x, y in changes(task.operator, (a, b)).get(kind, [(a, b)])
                        if split_of(x, y) == split and (task.operator == "+" or x > y)
                    ]
                    if kind.startswith("tens") and short:
                        assert kind not in example.counterfactuals
                    elif kind == RANDOM or (
                        task.operator == "+" and not short and kind != TENS_CARRY
                    ):
                        assert kind in example.counterfactuals
                    elif kind == TENS_CARRY and task.operator == "-":
                        assert not possible and kind not in example.counterfactuals
                    else:
                        results = [
                            str(x + y if task.operator == "+" else x - y) for x, y in possible
                        ]
                        apart = [
                            r
                            for r in results
                            if not r.startswith(str(result)) and not str(result).startswith(r)
                        ]
                        assert (kind in example.counterfactuals) == bool(apart)


def test_changes_are_complete() -> None:
    """Against every pair of two digits, told apart by what the kind says."""
    numbers = range(10, 100)
    for operator, (a, b) in product("+-", [(27, 64), (80, 35), (99, 10), (45, 44)]):
        result = (lambda x, y: x + y) if operator == "+" else (lambda x, y: x - y)
        found = changes(operator, (a, b))
        for kind, others in found.items():
            expected: set[tuple[int, int]] = set()
            for x, y in product(numbers, numbers):
                digits = changed_digits((a, b), (x, y))
                if kind == "ones_carry_counterfactual":
                    ones = (
                        (x % 10 + y % 10 > 9) != (a % 10 + b % 10 > 9)
                        if operator == "+"
                        else (x % 10 - y % 10 < 0) != (a % 10 - b % 10 < 0)
                    )
                    fits = digits <= {"ones1", "ones2"} and ones
                elif kind == TENS_CARRY:
                    fits = (
                        digits == {"tens1"}
                        and operator == "+"
                        and (result(x, y) > 99) != (result(a, b) > 99)
                    )
                else:
                    fits = digits == {kind[:4] + kind[7]}
                expected |= {(x, y)} if fits else set()
            assert set(others) == expected and len(others) == len(expected)


def test_table_8() -> None:
    table = {
        "ones_op1_counterfactual": (24, 64),
        "ones_op2_counterfactual": (27, 61),
        "tens_op1_counterfactual": (47, 64),
        "tens_op2_counterfactual": (27, 44),
        "ones_carry_counterfactual": (21, 60),
        TENS_CARRY: (77, 64),
    }
    found = changes("+", (27, 64))
    assert all(operands in found[kind] for kind, operands in table.items()) and list(table) == list(
        found
    )


@pytest.mark.slow
def test_a_carry_is_ten_or_more() -> None:
    pairs = {pair.clean: pair.tags["carry"] for pair in Addition().pairs("train", limit=1_200)}
    tens = [
        carry
        for text, carry in pairs.items()
        if sum(int(n) % 10 for n in re.findall(r"\d+", text)) == 10
    ]
    assert len(tens) > 50 and set(tens) == {"1"}


# Splits


def test_operands_are_divided_among_the_splits() -> None:
    for operator, digits in product("+-", (1, 2)):
        numbers = range(10) if digits == 1 else range(10, 100)
        everything = [(a, b) for a in numbers for b in numbers if operator == "+" or a - b > 0]
        parts = [operands_of(split, operator, digits) for split in SPLITS]
        assert sorted(pair for part in parts for pair in part) == everything
    counts = {
        op: {split: [len(operands_of(split, op, digits)) for digits in (1, 2)] for split in SPLITS}
        for op in "+-"
    }
    assert counts["+"] == {
        "train": [73, 5100],
        "validation": [9, 1000],
        "test": [9, 1000],
        "private": [9, 1000],
    }
    assert counts["-"] == {
        "train": [36, 2505],
        "validation": [3, 500],
        "test": [3, 500],
        "private": [3, 500],
    }


def test_splits_do_not_look_at_the_order_of_operands() -> None:
    assert all(
        split_of(a, b) == split_of(b, a) for n in (range(10), range(10, 100)) for a in n for b in n
    )


def test_splits_are_closed_under_a_digit_of_the_same_colour() -> None:
    for a, b in product(range(10, 100), range(10, 100)):
        tens = {a // 10 in arithmetic.TENS: arithmetic.TENS}.get(
            True, set(range(1, 10)) - arithmetic.TENS
        )
        ones = {b % 10 in arithmetic.ONES: arithmetic.ONES}.get(
            True, set(range(10)) - arithmetic.ONES
        )
        inside = {split_of(10 * t + a % 10, b) for t in tens} | {
            split_of(a, b // 10 * 10 + o) for o in ones
        }
        assert inside == {split_of(a, b)}


def test_colours_are_mixed() -> None:
    for digits in (arithmetic.TENS, arithmetic.ONES):
        assert len(digits) == 5
        assert 2 <= sum(d % 2 for d in digits) <= 3 and 2 <= sum(d < 5 for d in digits) <= 3
    sets = list(arithmetic.HELD_OUT_DIGITS.values())
    assert len(frozenset().union(*sets)) == sum(map(len, sets)) == 9


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_operands_are_in_two_splits(task: Arithmetic) -> None:
    owner: dict[tuple[int, int], str] = {}
    for split in SPLITS:
        for example in some(task, split, 300):
            for prompt in all_prompts(example):
                a, b, _ = solve(prompt.text)
                assert owner.setdefault((min(a, b), max(a, b)), split) == split


@pytest.mark.parametrize("operator", "+-")
def test_splits_are_alike(operator: str) -> None:
    def shape(split: str) -> list[float]:
        a, b = np.array(operands_of(split, operator, 2)).T
        if operator == "+":
            return [(a + b).mean() / 2 / 55, ((a % 10 + b % 10) > 9).mean(), ((a + b) > 99).mean()]
        return [a.mean() / 70, (a - b).mean() / 30, ((a % 10) < (b % 10)).mean()]

    train = shape("train")
    for split in SPLITS[1:]:
        assert np.allclose(shape(split), train, atol=0.16 if operator == "-" else 0.08)


def test_sizes() -> None:
    assert Addition.sizes == {"train": 31_038, "validation": 4_920, "test": 1_000, "private": 1_000}
    assert Subtraction.sizes == {
        "train": 15_246,
        "validation": 2_484,
        "test": 1_000,
        "private": 1_000,
    }
    for task in TASKS:
        for split in SPLITS:
            available = 6 * sum(len(operands_of(split, task.operator, digits)) for digits in (1, 2))
            assert (
                task.sizes[split] == available
                if split == "train"
                else task.sizes[split] < available
            )


# The stream


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Addition(), "8ade5cc8e461c532dc1834f3a35831af5709afaf0f36c1cd2e908cdc814a1e8b"),
        (Subtraction(), "f9656f0e13af4ecb101fb6e69099a51d423df074c47ca37c95c601dbae29111a"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_stream_is_pinned(task: Arithmetic, expected: str) -> None:
    """A change of this hash changes every result on the task: raise its version."""
    assert task.version == 1
    pairs = task.pairs("test")
    assert len(pairs) == task.sizes["test"] == 1_000
    assert content_hash(pairs) == expected


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(3, 30),
    more=st.integers(0, 30),
    kind=st.sampled_from(Subtraction.counterfactuals),
)
def test_stream_properties(
    task: Arithmetic, split: str, seed: int, n: int, more: int, kind: str
) -> None:
    call: dict[str, Any] = {"seed": seed, "private_seed": seed, "counterfactual": kind}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert len(short) == n and len(long) == n + more
    assert content_hash(short) == content_hash(long[:n])
    assert len({pair.clean for pair in long}) == len({pair.id for pair in long}) == len(long)
    default = task.pairs(split, limit=n, seed=seed, private_seed=seed)
    assert set(short.dropped) <= {ABSENT} and not default.dropped
    cleans = [
        example.prompt.text for example in some(task, split, n + short.dropped.get(ABSENT, 0), seed)
    ]
    assert {pair.clean for pair in short} <= set(cleans), (
        "clean prompts do not depend on the counterfactual"
    )
    call |= {"seed": seed + 1, "private_seed": seed + 1}
    assert content_hash(task.pairs(split, limit=n, **call)) != content_hash(short)


@pytest.mark.slow
def test_a_whole_split_has_all_operands_with_all_templates_once() -> None:
    examples = list(Subtraction().generate("test", 0))
    prompts = Counter(example.prompt.text for example in examples)
    operands = operands_of("test", "-", 1) + operands_of("test", "-", 2)
    assert prompts == Counter(
        template.format(op1=a, op2=b) for a, b in operands for template in Subtraction.templates
    )
    assert Counter(example.group for example in examples) == {f"{a}-{b}": 6 for a, b in operands}
    first = [int(example.tags["template"]) for example in examples[:1_000]]
    assert min(Counter(first).values()) > 120, "in no order"
    with pytest.raises(BadUsage, match="has 3018 examples; asked for 3019"):
        Subtraction().examples("test", limit=3_019)


@pytest.mark.parametrize("digits", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_digits_choose_from_the_same_stream(digits: int) -> None:
    everything, chosen = (
        Subtraction().pairs("train", limit=600),
        Subtraction(digits=digits).pairs("train", limit=5),
    )
    assert chosen == tuple(pair for pair in everything if pair.tags["num_digit"] == str(digits))[:5]
    assert {
        len(n) for pair in chosen for n in re.findall(r"\d+", pair.clean + pair.counterfactual)
    } == {digits}
    assert load_task(f"arithmetic-subtraction:digits={digits}") == Subtraction(digits=digits)


@pytest.mark.slow
def test_one_digit_splits_end() -> None:
    with pytest.raises(BadPairs, match="has 18 usable pairs of 19 asked for"):
        Subtraction(digits=1).pairs("test", limit=19)


def test_private_rows_follow_the_private_seed_only() -> None:
    task = Addition()
    a = task.pairs("private", limit=5, private_seed=1)
    assert a == task.pairs("private", limit=5, private_seed=1, seed=9)
    assert a != task.pairs("private", limit=5, private_seed=2)
    with pytest.raises(BadUsage, match="private_seed"):
        task.pairs("private")


def test_nothing_global_is_seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore[reportArgumentType]
    Addition().examples("test", limit=10)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # pyright: ignore[reportArgumentType]


def test_wrong_arguments() -> None:
    for digits in (-1, 3):
        with pytest.raises(BadUsage, match=f"digits must be 1, 2, or 0 for both; got {digits}"):
            Addition(digits=digits)
    with pytest.raises(UnknownName, match="random_counterfactual"):
        Addition().pairs("test", counterfactual="random")
    with pytest.raises(UnknownName, match="tens_carry"):
        Subtraction().pairs("test", counterfactual=TENS_CARRY)


def test_load_task() -> None:
    for task in TASKS:
        built: Task = load_task(task.name)
        assert built == task and built.version == 1
        assert built.default_counterfactual == RANDOM
    assert Addition.counterfactuals == COLUMNS and Subtraction.counterfactuals == COLUMNS[:-1]


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


PRIVATE = 987


# Tokenizers


WORDS = sorted(
    {
        word
        for task in TASKS
        for text in task.templates
        for word in re.findall(r"[A-Za-z]+|[^\w\s]", text)
    }
    - {"{", "}", "op"}
)


def digit_level() -> PreTrainedTokenizerFast:
    """Words, signs, spaces, and numbers digit by digit."""
    vocabulary = ["[UNK]", *map(str, range(10)), " ", *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def word_level() -> PreTrainedTokenizerFast:
    """One token a word, number or sign; spaces are dropped."""
    vocabulary = ["[UNK]", *map(str, range(200)), *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def byte_level(texts: list[str]) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained in a moment, that knows some numbers as one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def row_of(task: Arithmetic, text: str, other: str) -> dict[str, Any]:
    struct = {"prompt": other, "label": solve(other)[2]}
    return {
        "prompt": text,
        "label": str(solve(text)[2]),
        "operator": task.operator,
        **dict.fromkeys(COLUMNS, struct),
    }


@pytest.mark.parametrize(
    ("text", "other", "forced", "answer", "foil"),
    [
        ("The sum of 27 and 64 is:", "The sum of 27 and 61 is:", " ", "9", "8"),
        ("The sum of 27 and 64 is:", "The sum of 28 and 64 is:", " 9", "1", "2"),
        ("27+64=", "77+64=", "", "9", "1"),
        ("27+64=", "26+64=", "9", "1", "0"),
        ("86 + 64 =", "87 + 64 =", " 15", "0", "1"),
    ],
)
def test_compared_digits_worked_by_hand(
    text: str, other: str, forced: str, answer: str, foil: str
) -> None:
    tokenizer = digit_level()
    pair = Addition().from_row(row_of(Addition(), text, other), "x").pair(RANDOM)
    batch = Batch.from_pairs([pair], tokenizer)
    shown = "".join(tokenizer.convert_ids_to_tokens(batch.clean[0].tolist()))
    assert shown == text + forced
    assert (
        "".join(tokenizer.convert_ids_to_tokens(batch.counterfactual[0].tolist())) == other + forced
    )
    assert tokenizer.convert_ids_to_tokens(batch.answers[0].tolist()) == [answer]
    assert tokenizer.convert_ids_to_tokens(batch.foils[0].tolist()) == [foil]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("make", [digit_level, word_level])
def test_digit_and_word_tokenizers_align_everything(task: Arithmetic, make: Any) -> None:
    tokenizer = make()
    for kind, split in zip(task.counterfactuals, SPLITS * 2, strict=False):
        pairs = task.pairs(split, tokenizer, limit=40, counterfactual=kind, private_seed=PRIVATE)
        assert pairs == task.pairs(split, limit=40, counterfactual=kind, private_seed=PRIVATE)
        assert set(pairs.dropped) <= {ABSENT}
        batch = Batch.from_pairs(pairs, tokenizer)
        assert batch.alignment["cut"] == 0
        forced = [pair for pair in pairs if pair.answers[0][0] in (" ", pair.foils[0][0])]
        assert batch.alignment["forced"] == (0 if make is word_level else len(forced))
        if make is word_level:
            assert tokenizer.batch_decode(batch.answers) == [
                pair.answers[0].strip() for pair in pairs
            ]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_tokenizer_of_uneven_numbers_drops_and_counts(task: Arithmetic) -> None:
    tokenizer = byte_level(
        [f"The result is {n} {m}" for n in range(10, 100, 3) for m in range(10, 60)]
    )
    pairs = task.pairs("train", tokenizer, limit=100)
    assert pairs.dropped[LENGTHS] > 20 and set(pairs.dropped) == {LENGTHS}
    batch = Batch.from_pairs(pairs, tokenizer)
    for row, pair in enumerate(pairs):
        text = tokenizer.decode(batch.clean[row][batch.mask[row]])
        answer, foil = tokenizer.decode(batch.answers[row]), tokenizer.decode(batch.foils[row])
        assert (pair.clean + pair.answers[0]).startswith(text + answer)
        assert (pair.clean + pair.foils[0]).startswith(text + foil) and answer != foil


def test_token_positions() -> None:
    pairs = Addition(digits=2).pairs("test", limit=60)
    texts, spans = [pair.clean for pair in pairs], [pair.spans for pair in pairs]
    tokenizer = digit_level()
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    for name, tag in (("op1", "operand_1"), ("op2", "operand_2")):
        firsts, lasts = (
            token_position(texts, spans, f"{name}.{end}", tokenizer) for end in ("first", "last")
        )
        found = [
            row[a] + row[b]
            for row, a, b in zip(tokens, firsts, lasts, strict=True)
            if a is not None and b is not None
        ]
        assert found == [pair.tags[tag] for pair in pairs]
