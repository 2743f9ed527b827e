"""An independent reader of the prompts of arithmetic.

The facts of the RAVEL task, and an independent reader of its prompts.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from mechassay.prompts.pairs import Example, Prompt
from mechassay.tasks.arithmetic import Addition, Arithmetic, Subtraction
from mechassay.tasks.ravel import ATTRIBUTES

TASKS: list[Arithmetic] = [Addition(), Subtraction()]


ADDING, TAKING = ("plus", "sum", "+"), ("minus", "difference", "-")


def solve(text: str) -> tuple[int, int, int]:
    """Operands and result, read from the text alone."""
    a, b = (int(number) for number in re.findall(r"\d+", text))
    (adds,) = {any(word in text for word in ADDING)}
    assert adds != any(word in text for word in TAKING)
    return a, b, a + b if adds else a - b


def some(task: Arithmetic, split: str, n: int, seed: int = 0) -> list[Example]:
    return task.examples(split, limit=n, seed=seed, private_seed=seed)


TEXT = files("mechassay.tasks").joinpath("data/ravel.json").read_text(encoding="utf-8")


WORDS: dict[str, Any] = json.loads(TEXT)


COUNTRIES = {
    country: {"Country": country, "Continent": continent, "Language": language}
    for country, continent, language in WORDS["countries"]
}


CITIES = {
    split: {city: COUNTRIES[country] for city, country, _, _ in rows}
    for split, rows in WORDS["cities"].items()
}


FACTS = {city: facts for cities in CITIES.values() for city, facts in cities.items()}


CITY, TEMPLATE = "city_counterfactual", "prompt_template_counterfactual"


ATTRIBUTE, WIKIPEDIA = "attribute_counterfactual", "wikipedia_counterfactual"


# --- an independent reader of prompts
# -----------------------------------------------------------------


@cache
def patterns(split: str) -> list[tuple[str, str, re.Pattern[str]]]:
    """Each template and sentence of a split, with what it asks for ("" for nothing)."""
    asked = [
        (attribute, text)
        for attribute, texts in WORDS["templates"][split].items()
        for text in texts
    ]
    asked += [("", text) for text in WORDS["sentences"][split]]
    return [
        (attribute, text, re.compile("(.+)".join(map(re.escape, text.split("{entity}")))))
        for attribute, text in asked
    ]


def parse(split: str, text: str) -> tuple[str, str, str]:
    """The attribute that a text asks for, its template, and its city."""
    found = [
        (attribute, template, match[1])
        for attribute, template, p in patterns(split)
        if (match := p.fullmatch(text))
    ]
    found = [each for each in found if each[2] in FACTS]
    assert len(found) == 1, (text, found)
    return found[0]


def ravel_facts_read_solve(split: str, text: str) -> tuple[str, ...]:
    attribute, _, city = parse(split, text)
    return (f" {FACTS[city][attribute]}",) if attribute else ()


# --- examples
# -----------------------------------------------------------------------------------------


def check_prompt(split: str, prompt: Prompt) -> tuple[str, str]:
    """Answer, choices and part of one prompt; returns its attribute and city."""
    attribute, _, city = parse(split, prompt.text)
    assert prompt.answers == ravel_facts_read_solve(split, prompt.text)
    assert (
        list(prompt.spans) == ["entity"]
        and prompt.part("entity") == city
        and prompt.text.count(city) == 1
    )
    if attribute:
        assert len(prompt.choices) == (5 if attribute == "Continent" else 10)
        assert list(prompt.choices) == sorted(set(prompt.choices))
        assert {choice.strip() for choice in prompt.choices} <= {
            facts[attribute] for facts in CITIES[split].values()
        }
        assert set(prompt.answers) <= set(prompt.choices)
    else:
        assert prompt.choices == ()
    return attribute, city


def check_example(split: str, example: Example) -> None:
    attribute, template, city = parse(split, example.prompt.text)
    facts = FACTS[city]
    assert example.group == city
    assert example.tags == {
        "city": city,
        "attribute": attribute,
        "country": facts["Country"],
        "continent": facts["Continent"],
        "language": facts["Language"],
        "template": template,
    }
    assert check_prompt(split, example.prompt) == (attribute, city)
    assert list(example.counterfactuals) == [CITY, ATTRIBUTE, WIKIPEDIA, TEMPLATE]
    others = {kind: check_prompt(split, prompt) for kind, prompt in example.counterfactuals.items()}
    (other,) = {named for _, named in others.values()}
    assert other != city and FACTS[other][attribute] != facts[attribute]
    assert others[CITY][0] == others[TEMPLATE][0] == attribute
    assert others[ATTRIBUTE][0] in set(ATTRIBUTES) - {attribute} and others[WIKIPEDIA][0] == ""
    assert example.counterfactuals[CITY].text == template.replace("{entity}", other), (
        "only the city changes"
    )
    assert parse(split, example.counterfactuals[TEMPLATE].text)[1] != template
    foil = f" {FACTS[other][attribute]}"
    assert example.foils == (foil,) and foil in example.prompt.choices
    for kind in others:
        pair = example.pair(kind)
        assert (pair.answers, pair.foils) == ((f" {facts[attribute]}",), (foil,))
