"""Docstring: find the parameter described last, and say the next (Heimersheim and Janiak 2023).

    parameters        the six of the function's first line, in their order
    described         those that the docstring has described, in its order
    last_described    the last of them
    answer_pointer    its place in the first line, and one
    answer            parameters[answer_pointer]

The task's own counterfactuals describe names that are no parameters, so none of these variables has
a value there. `with_shifts` adds two kinds that have:

- shifted: another two neighbours are described;
- reordered: the first line has the parameters in reverse, and two neighbours of it are described.

A shifted prompt does not tell `last_described`, `answer_pointer` and `answer` from each other; a
reordered one does (parameters p1, p2, a, b, c, s1 and described s1, c: the base should go on with
what follows c, or with its third parameter, or with the source's answer b).

The model is ours; MIB has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mechassay.examples import Example, Examples, Prompt, filled
from mechassay.tasks.docstring import NAMES, PARAMETERS, TEMPLATE, WORDS
from mechassay.variables.causal_model import CausalModel, Undecided, Variable
from mechassay.variables.models.written import space_before

SHIFTED, REORDERED = "shifted_counterfactual", "reordered_counterfactual"
# The place of the first of the two that are described; the original's is 2.
SHIFTS = (3, 0, 1)
REORDERINGS = (0, 3, 1, 2)


def docstring_model() -> CausalModel:
    """The causal model of `docstring`."""
    return CausalModel(
        "docstring",
        {
            "parameters": tuple,
            "described": tuple,
            "last_described": Variable(str, lambda described: described[-1]),
            "answer_pointer": Variable(range(1, len(PARAMETERS)), _next),
            "answer": Variable(str, lambda parameters, answer_pointer: parameters[answer_pointer]),
        },
        read=_read,
        write=lambda value, base: (f"{space_before(base)}{value}",),
    )


def with_shifts(examples: Sequence[Example]) -> Examples:
    """The examples of `docstring` with the counterfactuals shifted and reordered.

    What is described takes turns over the examples; nothing is drawn.
    """
    made = [
        replace(
            each,
            counterfactuals={
                **each.counterfactuals,
                SHIFTED: _described(each.prompt, SHIFTS[number % len(SHIFTS)], 1),
                REORDERED: _described(each.prompt, REORDERINGS[number % len(REORDERINGS)], -1),
            },
        )
        for number, each in enumerate(examples)
    ]
    return Examples(made, getattr(examples, "dropped", {}))


def _next(parameters: tuple[str, ...], last_described: str) -> int:
    if last_described not in parameters:
        raise Undecided("what is described last is no parameter")
    place = parameters.index(last_described) + 1
    if place == len(parameters):
        raise Undecided("the last parameter is described")
    return place


def _described(base: Prompt, first: int, step: int) -> Prompt:
    """The base with two neighbours described, of its parameters in their order or in reverse."""
    parameters = [base.part(name) for name in PARAMETERS][::step]
    fields = {name: base.part(name) for name in (*NAMES, *WORDS)}
    fields |= dict(zip(PARAMETERS, parameters, strict=True))
    fields |= {"a_2": parameters[first], "b_2": parameters[first + 1]}
    space = space_before(base)
    choices = tuple(f"{space}{name}" for name in parameters)
    return filled(TEMPLATE, fields, (choices[first + 2],), choices)


def _read(prompt: Prompt) -> Mapping[str, Any]:
    if not {*PARAMETERS, "a_2", "b_2"} <= prompt.spans.keys():
        raise Undecided("a prompt without a docstring")
    return {
        "parameters": tuple(prompt.part(name) for name in PARAMETERS),
        "described": (prompt.part("a_2"), prompt.part("b_2")),
    }
