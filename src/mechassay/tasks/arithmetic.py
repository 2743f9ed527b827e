"""Two-operand arithmetic: "The sum of 27 and 64 is:" -> " 91".

Addition and subtraction of MIB (Mueller et al. 2025, section 2.1, appendix D.2, tables 5, 7 and 8),
after Stolfo et al. (2023). Both operands have one digit (0 to 9) or both have two (10 to 99), and
each pair comes in all six templates of table 7. Results of subtractions are above 0.

A counterfactual has the same template and other operands with the same numbers of digits. "random"
has another pair; ones_op1, ones_op2, tens_op1 and tens_op2 another digit in that place; ones_carry
other ones digits, such that a carry (a borrow) out of the ones appears or disappears; tens_carry
another tens digit in operand 1, with the same for the tens. A subtraction with a positive result
never borrows there, and one-digit operands have no tens: they lack these kinds.

*Splits.* No pair of operands, in either order, is in two splits, as an example or as a
counterfactual. Each digit has a colour, one of two for tens and one of two for ones, so a number of
two digits has one of four classes. Three sets {class, other class} are those of validation, test
and private; all other pairs of numbers are train's. Of one-digit numbers three sets of three digits
are those of validation, test and private, where both operands are of the set. A split is a
permutation of its pairs of operands with all templates. Examples with the same operands are one
group.

Deviations from MIB: counterfactuals keep to their split; a result never begins with its
counterfactual's, nor the other way round (9 and 91), so that a digit tells them apart; there is a
carry at 10 or more (the figure of MIB's causal model: more than 10); template 3 of subtraction ends
in " A:", which table 7 cuts off; answers begin with a space, not prompts end in one, unless
labels="mib-2025" (public rows are read as they are).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.prompts.pairs import Example, Prompt, Unreadable, filled
from mechassay.tasks.hub_datasets import BadRow, PublicData, PublicTask
from mechassay.tasks.scoring import NUMBERED, Scoring
from mechassay.tasks.task import split_rng

Operands = tuple[int, int]

STRICT, MIB = "strict", "mib-2025"
# What our own prompts end in.
ENDS = {STRICT: "", MIB: " "}
RANDOM = "random_counterfactual"
TENS_CARRY = "tens_carry_counterfactual"
# In the order and spelling of MIB's columns.
COLUMNS = (
    RANDOM,
    "ones_op1_counterfactual",
    "ones_op2_counterfactual",
    "tens_op1_counterfactual",
    "tens_op2_counterfactual",
    "ones_carry_counterfactual",
    TENS_CARRY,
)
ADDITION_SIZES = {"train": 31_038, "validation": 4_920, "test": 1_000, "private": 1_000}
SUBTRACTION_SIZES = {"train": 15_246, "validation": 2_484, "test": 1_000, "private": 1_000}
# The digits of the first colour; the others are of the second.
TENS, ONES = frozenset((1, 3, 4, 6, 7)), frozenset((0, 1, 4, 7, 9))
# Classes are numbered 2 * (colour of the tens) + colour of the ones.
HELD_OUT: dict[frozenset[int], str] = {
    frozenset((0, 2)): "validation",
    frozenset((0, 3)): "test",
    frozenset((1, 3)): "private",
}
HELD_OUT_DIGITS = {
    "validation": frozenset((1, 6, 7)),
    "test": frozenset((0, 5, 8)),
    "private": frozenset((2, 3, 9)),
}


def split_of(a: int, b: int) -> str:
    """The split of two operands that both have one digit, or both two, in either order."""
    if _digits((a, b)) == 1:
        return next(
            (split for split, digits in HELD_OUT_DIGITS.items() if {a, b} <= digits), "train"
        )
    classes = [2 * (n // 10 not in TENS) + (n % 10 not in ONES) for n in (a, b)]
    return HELD_OUT.get(frozenset(classes), "train")


@cache
def carries(operator: str, a: int, b: int) -> bool:
    """Whether the ones carry, or in a subtraction borrow."""
    return a % 10 + b % 10 >= 10 if operator == "+" else a % 10 < b % 10


@dataclass(frozen=True)
class Arithmetic(PublicTask):
    """What addition and subtraction share.

    Tags: template (its number in table 7; of a public row with another one, its text), operand_1,
    operand_2, num_digit, carry ("1" if the ones carry or borrow, else "0"), operator.

    Attributes:
        source: "own", "hub", or a folder with rows of the public schema.
        digits: 1 or 2 for operands of that many digits only; 0 for both.
        labels: "strict" for answers like " 91"; "mib-2025" for "91", after a prompt that ends in a
            space. Public rows are read as they are.
        operator: "+" or "-".
        templates: those of table 7.
    """

    source: str = "own"
    digits: int = 0
    labels: str = STRICT
    operator: ClassVar[str]
    templates: ClassVar[tuple[str, ...]]

    mib_scoring: ClassVar[Scoring] = NUMBERED

    def __post_init__(self) -> None:
        if self.digits not in (0, 1, 2):
            raise BadUsage(f"digits must be 1, 2, or 0 for both; got {self.digits}.")
        one_of("labels", self.labels, ENDS)

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        for reading in super().readings(split, seed, tokenizer):
            if isinstance(reading, Unreadable) or self.digits in (
                0,
                int(reading.tags["num_digit"]),
            ):
                yield reading

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """All operands of the split with all templates, in an order drawn once."""
        rng = split_rng(split, seed)
        operands = [*operands_of(split, self.operator, 1), *operands_of(split, self.operator, 2)]
        order: list[int] = rng.permutation(len(operands) * len(self.templates)).tolist()
        for number, place in enumerate(order):
            which, number_of_template = divmod(place, len(self.templates))
            template = self.templates[number_of_template] + ENDS[self.labels]
            changed = _draw(split, self.operator, operands[which], rng)
            others = {kind: self._prompt(template, *map(str, x)) for kind, x in changed.items()}
            id, prompt = (
                f"{self.name}-{split}-{number:06d}",
                self._prompt(template, *map(str, operands[which])),
            )
            yield self._example(id, prompt, others, str(number_of_template + 1))

    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        if row["operator"] != self.operator:
            raise BadRow(
                "another operator", f"the operator is {row['operator']!r}, not {self.operator!r}"
            )
        template, *_ = _parsed(row["prompt"])
        others, unread = self.read_counterfactuals(row, self._read)
        if template.rstrip() in self.templates:
            template = str(self.templates.index(template.rstrip()) + 1)
        return replace(self._example(id, self._read(row), others, template), unread=unread)

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema.

        It has prompt, label (text), operator, num_digit, operand1, operand2, and the seven
        counterfactuals as {prompt, label, operand1, operand2} (all numbers), null where there is
        none.
        """
        others = example.counterfactuals
        whole = _column(example.prompt)
        return {
            **whole,
            "label": str(whole["label"]),
            "operator": self.operator,
            "num_digit": int(example.tags["num_digit"]),
            **{kind: _column(others[kind]) if kind in others else None for kind in COLUMNS},
        }

    def _prompt(self, template: str, a: str, b: str) -> Prompt:
        # No space where the prompt ends in one, or is written without any.
        space = "" if template.endswith((" ", "}=")) else " "
        result = f"{space}{_result(self.operator, (int(a), int(b)))}"
        return filled(template, {"op1": a, "op2": b}, (result,))

    def _read(self, row: Mapping[str, Any]) -> Prompt:
        """The prompt of a row or of one of its counterfactuals."""
        template, a, b = _parsed(row["prompt"])
        if _result(self.operator, (int(a), int(b))) != int(row["label"]):
            raise BadRow(
                "a label that is not the result",
                f"the label of {row['prompt']!r} is {row['label']!r}",
            )
        return self._prompt(template, a, b)

    def _example(
        self, id: str, prompt: Prompt, others: Mapping[str, Prompt], template: str
    ) -> Example:
        a, b = prompt.part("op1"), prompt.part("op2")
        tags = {
            "template": template,
            "operand_1": a,
            "operand_2": b,
            "num_digit": str(max(len(a), len(b))),
            "carry": str(int(carries(self.operator, int(a), int(b)))),
            "operator": self.operator,
        }
        return Example(id, prompt, others, group=f"{a}{self.operator}{b}", tags=tags)


@dataclass(frozen=True)
class Addition(Arithmetic):
    """Addition of two operands, see `Arithmetic`."""

    name: ClassVar[str] = "arithmetic-addition"
    counterfactuals: ClassVar[tuple[str, ...]] = COLUMNS
    default_counterfactual: ClassVar[str] = RANDOM
    sizes: ClassVar[Mapping[str, int]] = ADDITION_SIZES
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType({"train": 34400})
    public: ClassVar[PublicData] = PublicData("mib-worker/arithmetic_addition")
    operator = "+"
    templates = (
        "Q: How much is {op1} plus {op2}? A:",
        "Q: What is {op1} plus {op2}? A:",
        "Q: What is the result of {op1} plus {op2}? A:",
        "The sum of {op1} and {op2} is:",
        "{op1}+{op2}=",
        "{op1} + {op2} =",
    )


@dataclass(frozen=True)
class Subtraction(Arithmetic):
    """Subtraction with a positive result, see `Arithmetic`."""

    name: ClassVar[str] = "arithmetic-subtraction"
    counterfactuals: ClassVar[tuple[str, ...]] = tuple(
        kind for kind in COLUMNS if kind != TENS_CARRY
    )
    default_counterfactual: ClassVar[str] = RANDOM
    sizes: ClassVar[Mapping[str, int]] = SUBTRACTION_SIZES
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType({"train": 17400})
    public: ClassVar[PublicData] = PublicData("mib-worker/arithmetic_subtraction")
    operator = "-"
    templates = (
        "Q: How much is {op1} minus {op2}? A:",
        "Q: What is {op1} minus {op2}? A:",
        "Q: What is the result of {op1} minus {op2}? A:",
        "The difference between {op1} and {op2} is:",
        "{op1}-{op2}=",
        "{op1} - {op2} =",
    )


@cache
def operands_of(split: str, operator: str, digits: int) -> tuple[Operands, ...]:
    """All operands of one split with one or two digits each, in order."""
    numbers = range(10) if digits == 1 else range(10, 100)
    both = [(a, b) for a in numbers for b in numbers if operator == "+" or a > b]
    return tuple(pair for pair in both if split_of(*pair) == split)


def changes(operator: str, operands: Operands) -> dict[str, list[Operands]]:
    """What each kind but the random one could make of two operands, whatever split and result."""
    a, b = operands
    (tens_a, ones_a), (tens_b, ones_b) = divmod(a, 10), divmod(b, 10)
    ones, tens = range(10), range(1, 10) if _digits(operands) == 2 else ()
    possible = {
        "ones_op1_counterfactual": [(10 * tens_a + digit, b) for digit in ones],
        "ones_op2_counterfactual": [(a, 10 * tens_b + digit) for digit in ones],
        "tens_op1_counterfactual": [(10 * digit + ones_a, b) for digit in tens],
        "tens_op2_counterfactual": [(a, 10 * digit + ones_b) for digit in tens],
    }
    carry = carries(operator, a, b)
    return {
        **{kind: [pair for pair in made if pair != operands] for kind, made in possible.items()},
        "ones_carry_counterfactual": [
            (10 * tens_a + x, 10 * tens_b + y)
            for x in ones
            for y in ones
            if carries(operator, x, y) != carry
        ],
        TENS_CARRY: [
            pair
            for pair in possible["tens_op1_counterfactual"]
            if operator == "+" and (sum(pair) >= 100) != (a + b >= 100)
        ],
    }


@cache
def _allowed(split: str, operator: str, operands: Operands) -> dict[str, list[Operands]]:
    """Those of `changes` that are in the split and have another result."""
    results = _results(split, operator, _digits(operands))
    allowed = {
        kind: [x for x in others if x in results and _apart(results[x], results[operands])]
        for kind, others in changes(operator, operands).items()
    }
    return {kind: others for kind, others in allowed.items() if others}


@cache
def _results(split: str, operator: str, digits: int) -> dict[Operands, int]:
    return {
        operands: _result(operator, operands) for operands in operands_of(split, operator, digits)
    }


def _draw(
    split: str, operator: str, operands: Operands, rng: np.random.Generator
) -> dict[str, Operands]:
    """The operands of an example's counterfactuals."""
    results = _results(split, operator, _digits(operands))
    pool = tuple(results)

    def one(pool: Sequence[Operands]) -> Operands:
        return pool[int(rng.integers(len(pool)))]

    other = one(pool)
    while not _apart(results[other], results[operands]):
        other = one(pool)
    allowed = _allowed(split, operator, operands)
    return {RANDOM: other, **{kind: one(others) for kind, others in allowed.items()}}


def _digits(operands: Operands) -> int:
    return 1 if max(operands) < 10 else 2


def _result(operator: str, operands: Operands) -> int:
    a, b = operands
    return a + b if operator == "+" else a - b


def _apart(a: int, b: int) -> bool:
    """Whether a digit tells two results apart, read from the left."""
    return not str(a).startswith(str(b)) and not str(b).startswith(str(a))


def _parsed(text: str) -> tuple[str, str, str]:
    """A prompt's template and its two operands, as they are written."""
    if "{" in text or "}" in text:
        raise BadRow(
            "a prompt with braces",
            f"the prompt {text!r} has braces, which mark the places of its numbers here",
        )
    pieces: Sequence[str] = re.split(r"(\d+)", text)
    if len(pieces) != 5:
        raise BadRow(
            "a prompt without two numbers",
            f"the prompt {text!r} has {len(pieces) // 2} numbers, not 2",
        )
    before, a, between, b, after = pieces
    return f"{before}{{op1}}{between}{{op2}}{after}", a, b


def _column(prompt: Prompt) -> dict[str, Any]:
    a, b = int(prompt.part("op1")), int(prompt.part("op2"))
    return {"prompt": prompt.text, "label": int(prompt.answers[0]), "operand1": a, "operand2": b}
