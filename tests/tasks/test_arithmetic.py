"""Addition and subtraction: results, what counterfactuals change, closed splits."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mechassay.tasks.arithmetic as arithmetic
from arithmetic_read import TASKS, solve, some
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Example, Prompt
from mechassay.pairs import content_hash
from mechassay.tasks import SPLITS, Task, load_task
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
from mechassay.tasks.task import ABSENT


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
