"""Greater-than: any year is right that is later than the one said before (Hanna et al. 2023).

    year               YY of the first year
    tens, ones         its digits
    endings, written   what may follow the base, and the tens digit that it has already
    answers            the endings that make a year with more than 10 tens + ones

Several endings are right, so a label is all of them, and 99 is right after any year: to write it is
no sign of a variable. `prompt` gives the prompt with the year that the interchange amounts to, and
what the language model writes after that one is the label (`variable_pairs`). In all
counterfactuals of the task the year is 01, so that an interchange of the tens allows nearly every
ending. `with_other_years` adds a kind whose year is that of another example of the same century.

The model is ours; MIB has none. It does not say in which century a year is: the base says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mechassay.examples import Example, Examples, Prompt
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
        prompt=_prompt_before,
    )


def _prompt_before(endings: tuple[str, ...], base: Prompt) -> str:
    """The base with the year after which the endings begin."""
    written = base.part("digit") if "digit" in base.spans else ""
    begin, end = base.spans["year"]
    year = int(written + endings[0]) - 1
    return f"{base.text[:begin]}{year:02d}{base.text[end:]}"


OTHER_YEAR = "other_year_counterfactual"


def with_other_years(examples: Sequence[Example]) -> Examples:
    """The examples of `greater-than` with a counterfactual whose year is another example's.

    It is that of the next example of the same century whose year is another one; nothing is drawn.
    An example that is alone in its century has none.
    """
    years: dict[str, list[tuple[int, str]]] = {}
    for number, each in enumerate(examples):
        years.setdefault(each.tags["century"], []).append((number, each.tags["year"]))
    made: list[Example] = []
    for number, each in enumerate(examples):
        after = sorted(years[each.tags["century"]], key=lambda x: (x[0] <= number, x[0]))
        other = next((year for _, year in after if year != each.tags["year"]), None)
        more = {} if other is None else {OTHER_YEAR: _with_year(each.prompt, other)}
        made.append(replace(each, counterfactuals={**each.counterfactuals, **more}))
    return Examples(made, getattr(examples, "dropped", {}))


def _with_year(prompt: Prompt, year: str) -> Prompt:
    begin, end = prompt.spans["year"]
    written = prompt.part("digit") if "digit" in prompt.spans else ""
    return replace(
        prompt,
        text=prompt.text[:begin] + year + prompt.text[end:],
        answers=_later(prompt.choices, written, int(year[0]), int(year[1])),
    )


def _later(endings: tuple[str, ...], written: str, tens: int, ones: int) -> tuple[str, ...]:
    return tuple(ending for ending in endings if int(written + ending) > 10 * tens + ones)


def _read(prompt: Prompt) -> Mapping[str, Any]:
    if "year" not in prompt.spans:
        raise Undecided("a prompt without a year")
    written = prompt.part("digit") if "digit" in prompt.spans else ""
    return {"year": int(prompt.part("year")), "endings": prompt.choices, "written": written}
