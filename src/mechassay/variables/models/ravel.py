"""RAVEL: recall three facts about a city, then say the one that is asked for (MIB, figure 16).

    entity                        the city, with what is known of it
    query            A_Query      Continent, Country or Language; "wikipedia": nothing is asked
    Continent, Country, Language  the facts
    answer           O            the fact that is asked for

An interchange of Country changes the answer of a base that asks for the country, and of no other.
A prompt that asks for nothing has no answer, so the variables query and answer of a Wikipedia
sentence cannot be exchanged; its facts can. Facts are those that the task knows of each prompt's
city. One with commas ("Arabic,Berberi") has several right continuations.

*Reading of Mueller et al. 2025.* Appendix G.5.3 has all counterfactuals either ask for another
attribute or be sentences; which attribute they ask for makes no difference to a fact's label. In
the public code a sentence's answer is "", which is compared with what the model writes; here it is
no label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mechassay.examples import Prompt
from mechassay.tasks.ravel import ATTRIBUTES, ENTITY, NO_FACT, NOTHING, Query, continuations
from mechassay.variables.causal_model import CausalModel, Undecided, Variable


class City(NamedTuple):
    """A city and its facts; an empty one is not known."""

    name: str
    Continent: str
    Country: str
    Language: str


def ravel_model() -> CausalModel:
    """The causal model of `ravel`."""
    return CausalModel(
        "ravel",
        {
            "entity": City,
            "query": (*ATTRIBUTES, NOTHING),
            **{name: Variable(str, _fact(name), parents=("entity",)) for name in ATTRIBUTES},
            "answer": Variable(str, _answer, parents=("query", *ATTRIBUTES)),
        },
        read=_read,
        write=_write,
    )


def _fact(attribute: str) -> Callable[[City], str]:
    def fact(entity: City) -> str:
        return str(getattr(entity, attribute))

    return fact


def _answer(query: str, *facts: str) -> str:
    if query == NOTHING:
        raise Undecided("a prompt that asks for nothing")
    known = facts[list[str](ATTRIBUTES).index(query)]
    if not known:
        raise Undecided(NO_FACT)
    return known


def _read(prompt: Prompt) -> Mapping[str, Any]:
    if not isinstance(prompt, Query):
        raise Undecided("a prompt without facts")
    columns = prompt.columns
    if columns["attribute"] not in (*ATTRIBUTES, NOTHING):
        raise Undecided("a prompt that asks for something else")
    facts = {name: columns.get(name, "") for name in ATTRIBUTES}
    return {"entity": City(columns[ENTITY], **facts), "query": columns["attribute"]}


def _write(value: str, base: Prompt) -> tuple[str, ...]:
    return continuations(base.text, [value])
