"""Greater-than: any year is right that is later than the one said before (Hanna et al. 2023).

    year               YY of the first year
    tens, ones         its digits
    endings, written   what may follow the base, and the tens digit that it has already
    answers            the endings that make a year with more than 10 tens + ones

Several endings are right, so a label is all of them: an `InterchangeBatch`, which holds the first,
is not enough to score one. In all counterfactuals of the task the year is 01, so an interchange of
the year allows every ending but 00 and 01, one of the tens those above the ones digit alone, and
one of the ones those above 10 tens + 1.

The model is ours; MIB has none. It does not say in which century a year is: the base says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechassay.examples import Prompt
from mechassay.variables.causal_model import CausalModel, Undecided, Variable


def greater_than_model() -> CausalModel:
    """The causal model of `greater-than`."""
    return CausalModel(
        "greater-than",
        {
            "year": range(100),
            "endings": tuple,
            "written": ("", *"0123456789"),
            "tens": Variable(range(10), lambda year: year // 10),
            "ones": Variable(range(10), lambda year: year % 10),
            "answers": Variable(tuple, _later),
        },
        read=_read,
        write=lambda value, base: value,
    )


def _later(endings: tuple[str, ...], written: str, tens: int, ones: int) -> tuple[str, ...]:
    return tuple(ending for ending in endings if int(written + ending) > 10 * tens + ones)


def _read(prompt: Prompt) -> Mapping[str, Any]:
    if "year" not in prompt.spans:
        raise Undecided("a prompt without a year")
    written = prompt.part("digit") if "digit" in prompt.spans else ""
    return {"year": int(prompt.part("year")), "endings": prompt.choices, "written": written}
