"""RAVEL: "Paris is on the continent of" -> " Europe", and the same for countries and languages.

The task is that of Huang et al. (2024), as MIB uses it (Mueller et al. 2025, appendix G.5.3, table
5 and figure 16): a prompt asks for one of three attributes of a city. The causal model has the
variables

    city, queried attribute               read from the prompt
    Country, Continent, Language          three facts about the city
    answer                                the fact that is asked for

and the question is whether a model keeps the three facts apart: an intervention on Country changes
the answer of a prompt that asks for the country, and of no other.

An example is a city, a template that asks for an attribute, and another city of the split for which
the right answer is another one. All counterfactuals are about that other city; they differ in what
stands around it:

- city: the same template. The only kind that a tokenizer can usually align, and so the default and
  the one for circuits; it is not in MIB;
- prompt_template: another template for the same attribute;
- attribute: a template for another attribute;
- wikipedia: a sentence that asks for nothing. Its prompt has no answer.

As one city is behind all kinds, the foil is the same for all: what the original's template would
have as answer for the other city. It is what an intervention on the queried attribute should make
the model say; after one on another attribute, the original answer should stay.

A split has every pair of a city and a template once, in an order that depends on the seed. The
attributes take turns, so that any beginning of a split has equally many of each. With `variable`,
every second prompt asks for that attribute and the others share the rest, which is how MIB balances
the prompts for interventions on that variable; such a split ends when the variable's prompts do.

Choices, for scoring by ranked choice: the right answer, the foil, and others of the same attribute
drawn from the split, ten in all, in alphabetical order. There are five continents.

Parts of a prompt: entity, the city; "entity.last" is MIB's entity_last_token. Examples of one city
are one group. Tags: city, attribute, country, continent, language, template.

*Facts.* `data/ravel.json` has 554 cities of at least 100,000 people in 63 countries. Cities,
populations, countries and continents are those of GeoNames (https://www.geonames.org, licensed
under CC BY 4.0). The language of a city is the only official one of its country, by Unicode CLDR.
Left out are cities whose name another city shares, countries on two continents or in dispute, those
with more than one official language, those with an article before their name (so that " United
States" is no answer), and Australia, whose continent has two names: no city is in Oceania.
`tools/ravel_facts.py` makes the table and states the rules.

Where this deviates from MIB:

- Cities, templates and sentences are our own. The four splits share none of them; train and
  validation are smaller than in table 5, as there are as many examples as cities times templates.
- The wikipedia sentences are not from Wikipedia. They are written so that they are true or false of
  no city in particular.
- City and template of a counterfactual are drawn by us; the paper does not say how. Half attribute
  and half wikipedia counterfactuals, as there, are had by taking both kinds of the same examples.

*Public rows.* Columns are template, prompt, entity, attribute, Country, Continent, Language, and
one such struct for each kind of counterfactual, in which the attribute of a sentence is
"wikipedia". The paper does not define them: these names are taken from users of the data set.
Inferred are: that a fact which a row leaves empty may be taken from our table; that the last
mention of the city is the one asked about; that an answer after a quotation mark, a bracket or a
space has no space of its own. A column `label`, where there is one, is the answer. A value with
commas ("Arabic,Berberi") is several right answers; tags have it as it is.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import Any, ClassVar, TypeVar

import numpy as np

from mechassay.alignment import encode
from mechassay.errors import BadUsage, one_of
from mechassay.examples import Example, Prompt, Unreadable, filled
from mechassay.pairs import EMPTY
from mechassay.tasks.mib_scoring import VALUED, Scoring
from mechassay.tasks.public import BadRow, PublicData, PublicTask
from mechassay.tasks.task import split_rng

ATTRIBUTES = ("Country", "Continent", "Language")
CITY, TEMPLATE = "city_counterfactual", "prompt_template_counterfactual"
ATTRIBUTE, WIKIPEDIA = "attribute_counterfactual", "wikipedia_counterfactual"
# What the attribute of a sentence is called.
NOTHING = "wikipedia"
ENTITY = "entity"
SIZES = {"train": 9_972, "validation": 1_380, "test": 1_000, "private": 1_000}
# With a variable, half of the prompts ask for it, so it decides how many there are.
VARIABLE_SIZES = {"train": 6_648, "validation": 920, "test": 1_000, "private": 1_000}
N_CHOICES = 10
NO_FACT = "a fact that nobody says"
# After these a public prompt is continued without a space.
OPENING = ('"', "'", "“", "‘", "(", "[")

T = TypeVar("T")


@dataclass(frozen=True)
class Query(Prompt):
    """A prompt about a city, with what the public schema says of it.

    Attributes:
        columns: template, prompt, entity, attribute, and the facts by attribute; a fact may be
            empty.
    """

    columns: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True)
class Ravel(PublicTask):
    """Facts about cities: their country, continent and language.

    A split has 9,972 (train), 1,380 (validation), 1,000 (test) and 1,000 (private) examples; with a
    `variable`, train has 6,648 and validation 920. The public data set has 100,347 and 15,950
    there.

    Public rows have no city counterfactual: another kind has to be named for them.

    With a tokenizer, the other city is one that leaves the number of tokens of the original's
    template as it is, if the split has one. Where it has none, the city counterfactual is dropped
    and counted by `pairs`, as most counterfactuals of the other kinds are.

    Attributes:
        source: "own", "hub", or a folder with rows of the public schema.
        variable: "Country", "Continent" or "Language", which half of the prompts ask for; "": a
            third each (and public rows in their own order).

    Raises:
        UnknownName: another variable.
    """

    source: str = "own"
    variable: str = ""

    name: ClassVar[str] = "ravel"
    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = (CITY, ATTRIBUTE, WIKIPEDIA, TEMPLATE)
    default_counterfactual: ClassVar[str] = CITY
    public: ClassVar[PublicData] = PublicData("mib-bench/ravel", splits={"validation": "val"})
    mib_scoring: ClassVar[Scoring] = VALUED

    def __post_init__(self) -> None:
        if self.variable:
            one_of("variable", self.variable, ATTRIBUTES)

    @property
    def sizes(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return VARIABLE_SIZES if self.variable else SIZES

    @property
    def turns(self) -> tuple[str, ...]:
        """The order in which prompts ask for the attributes, again and again."""
        if not self.variable:
            return ATTRIBUTES
        one, other = (attribute for attribute in ATTRIBUTES if attribute != self.variable)
        return (self.variable, one, self.variable, other)

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        """The examples of one split, balanced for `variable`;
        what cannot be read stands where a next example was looked for.
        """
        found = super().readings(split, seed, tokenizer)
        if not self.variable or self.source == "own":
            yield from found
            return
        passed: list[Unreadable] = []
        for example in _in_turn(
            _read_ones(found, passed), lambda example: example.tags["attribute"], self.turns
        ):
            yield from passed
            passed.clear()
            yield example
        yield from passed

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Every template of a split with every city.
        Which those are does not depend on the tokenizer.
        """
        words, rng = _data().splits[split], split_rng(split, seed)
        questions = [
            (attribute, template, city)
            for attribute in ATTRIBUTES
            for template in words.templates[attribute]
            for city in words.cities
        ]
        order: list[int] = rng.permutation(len(questions)).tolist()
        draw = _Drawer(words, rng, tokenizer)
        for number, question in enumerate(
            _in_turn((questions[place] for place in order), lambda each: each[0], self.turns)
        ):
            prompt, others = draw.prompts(*question)
            yield _example(f"{self.name}-{split}-{number:06d}", prompt, others)

    def template(self, tags: Mapping[str, str]) -> str | None:
        """None: some counterfactuals have another template than their original."""
        return None

    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        """The example of a public row.
        Counterfactuals that ask for something that nobody says are left out.

        Its foils are what its counterfactuals' cities have as answer instead, and its choices are
        the answer and the foils. Where no other city has another answer, the foils and choices are
        all values of the attribute in our table.

        Raises:
            BadRow: neither the row nor our table says what the original asks for.
        """
        prompt = _read(row)
        if not prompt.answers:
            city, attribute = prompt.columns[ENTITY], prompt.columns["attribute"]
            raise BadRow(
                NO_FACT,
                f"neither the row nor the cities of ravel say what the {attribute} of {city!r} is",
            )
        others, unread = self.read_counterfactuals(row, _read)
        asked = {
            kind: other
            for kind, other in others.items()
            if other.answers or other.columns["attribute"] not in ATTRIBUTES
        }
        unread |= {kind: f"its counterfactual: {NO_FACT}" for kind in others.keys() - asked.keys()}
        return replace(_example(id, prompt, asked), unread=unread)

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema, which has our city counterfactual besides."""
        return {
            **_columns(example.prompt),
            **{kind: _columns(prompt) for kind, prompt in example.counterfactuals.items()},
        }


@dataclass(frozen=True)
class _RavelWords:
    """What the examples of one split are made of; templates by attribute."""

    cities: tuple[str, ...]
    templates: Mapping[str, tuple[str, ...]]
    sentences: tuple[str, ...]

    def values(self, attribute: str) -> list[str]:
        """What an attribute can be in this split, in alphabetical order."""
        return sorted({_data().facts[city][attribute] for city in self.cities})


@dataclass(frozen=True)
class _Data:
    """The contents of data/ravel.json: facts by city and attribute, and the splits."""

    facts: Mapping[str, Mapping[str, str]]
    splits: Mapping[str, _RavelWords]


@cache
def _data() -> _Data:
    found = json.loads(
        files("mechassay.tasks").joinpath("data/ravel.json").read_text(encoding="utf-8")
    )
    countries = {
        country: {"Continent": continent, "Country": country, "Language": language}
        for country, continent, language in found["countries"]
    }
    facts = {
        city: countries[country]
        for cities in found["cities"].values()
        for city, country, _, _ in cities
    }
    splits = {
        split: _RavelWords(
            cities=tuple(city for city, *_ in cities),
            templates={
                attribute: tuple(found["templates"][split][attribute]) for attribute in ATTRIBUTES
            },
            sentences=tuple(found["sentences"][split]),
        )
        for split, cities in found["cities"].items()
    }
    return _Data(facts, splits)


class _Drawer:
    """Draws what stands beside a city and a template, for one split and one tokenizer."""

    def __init__(self, words: _RavelWords, rng: np.random.Generator, tokenizer: Any) -> None:
        self.words, self.rng, self.tokenizer = words, rng, tokenizer
        self.facts = _data().facts
        self.values = {attribute: words.values(attribute) for attribute in ATTRIBUTES}
        self._lengths: dict[str, dict[str, int]] = {}

    def prompts(self, attribute: str, template: str, city: str) -> tuple[Query, dict[str, Query]]:
        """The original and its counterfactuals by kind."""
        other = self._other(attribute, template, city)
        choices = self._choices(attribute, city, other)
        second = self._one([each for each in ATTRIBUTES if each != attribute])
        same = [each for each in self.words.templates[attribute] if each != template]
        others = {
            CITY: _query(template, attribute, other, choices),
            ATTRIBUTE: _query(
                self._one(self.words.templates[second]),
                second,
                other,
                self._choices(second, city, other),
            ),
            WIKIPEDIA: _query(self._one(self.words.sentences), NOTHING, other, ()),
            TEMPLATE: _query(self._one(same), attribute, other, choices),
        }
        return _query(template, attribute, city, choices), others

    def _other(self, attribute: str, template: str, city: str) -> str:
        """A city with another answer: the first drawn that makes a prompt of equally many tokens,
        or else the very first.
        """
        # Without a tokenizer there are no lengths, and all fit.
        lengths = self._tokens(template)
        drawn = [
            self.words.cities[place]
            for place in self.rng.permutation(len(self.words.cities)).tolist()
        ]
        others = [
            each for each in drawn if self.facts[each][attribute] != self.facts[city][attribute]
        ]
        return next((each for each in others if lengths.get(each) == lengths.get(city)), others[0])

    def _tokens(self, template: str) -> Mapping[str, int]:
        """How many tokens a template has with each city; nothing without a tokenizer."""
        if self.tokenizer is None:
            return {}
        if template not in self._lengths:
            rows = encode(
                self.tokenizer,
                [filled(template, {ENTITY: city}).text for city in self.words.cities],
            )
            self._lengths[template] = {
                city: len(row) for city, row in zip(self.words.cities, rows, strict=True)
            }
        return self._lengths[template]

    def _choices(self, attribute: str, *cities: str) -> tuple[str, ...]:
        """The values that some cities have, and others of the split up to `N_CHOICES`."""
        needed = {self.facts[city][attribute] for city in cities}
        # All values are drawn, so that what is drawn next does not depend on the cities, which a
        # tokenizer may choose.
        drawn = [
            self.values[attribute][place]
            for place in self.rng.permutation(len(self.values[attribute])).tolist()
        ]
        others = [value for value in drawn if value not in needed][: N_CHOICES - len(needed)]
        return tuple(f" {value}" for value in sorted([*needed, *others]))

    def _one(self, items: Sequence[str]) -> str:
        return items[int(self.rng.integers(len(items)))]


def _query(template: str, attribute: str, city: str, choices: tuple[str, ...]) -> Query:
    facts = _data().facts[city]
    prompt = filled(
        template, {ENTITY: city}, (f" {facts[attribute]}",) if attribute in facts else (), choices
    )
    columns = {
        "template": template,
        "prompt": prompt.text,
        ENTITY: city,
        "attribute": attribute,
        **facts,
    }
    return Query(prompt.text, prompt.answers, prompt.choices, prompt.spans, columns)


def _read(row: Mapping[str, Any]) -> Query:
    """The prompt of a row or of one of its structs. It has no answer where nobody says one,
    and no part where its city is not in it.
    """
    text, city, attribute = row["prompt"], row[ENTITY], row["attribute"]
    known = _data().facts.get(city, {})
    facts = {
        each: row.get(each) or known.get(each, "") for each in ("Continent", "Country", "Language")
    }
    if row.get("label") and attribute in ATTRIBUTES:
        facts[attribute] = row["label"]
    begin = text.rfind(city)
    spans = {ENTITY: (begin, begin + len(city))} if begin >= 0 else {}
    template = row.get("template") or (
        text[:begin] + f"{{{ENTITY}}}" + text[begin + len(city) :] if spans else text
    )
    columns = {"template": template, "prompt": text, ENTITY: city, "attribute": attribute, **facts}
    return Query(text, _continuations(text, [facts.get(attribute, "")]), (), spans, columns)


def _continuations(text: str, values: Iterable[str]) -> tuple[str, ...]:
    """Values as they continue a text, each once;
    of "Arabic,Berberi" each of the two, and of an empty one none.
    """
    space = "" if text.endswith(OPENING) or text[-1:].isspace() else " "
    each = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(f"{space}{part}" for part in each if part))


def _example(id: str, prompt: Query, others: Mapping[str, Query]) -> Example:
    """The example of an original and its counterfactuals."""
    attribute = prompt.columns["attribute"]
    said = _continuations(prompt.text, [other.columns[attribute] for other in others.values()])
    foils = tuple(text for text in said if text not in prompt.answers)
    tags = {
        "city": prompt.columns[ENTITY],
        "attribute": attribute,
        **{each.lower(): prompt.columns[each] for each in ATTRIBUTES},
        "template": prompt.columns["template"],
    }
    return Example(id, _with_choices(prompt, foils), others, foils or None, tags["city"], tags)


def _with_choices(prompt: Query, foils: tuple[str, ...]) -> Query:
    """A prompt that chooses at least between its answer and its foils, or,
    without any, between all values that we know.
    """
    if prompt.choices:
        return prompt
    known = sorted({facts[prompt.columns["attribute"]] for facts in _data().facts.values()})
    choices = {*prompt.answers, *(foils or _continuations(prompt.text, known))}
    return replace(prompt, choices=tuple(sorted(choices)))


def _columns(prompt: Prompt) -> dict[str, str]:
    if not isinstance(prompt, Query):
        raise BadUsage(
            f"A row of ravel is made of prompts of ravel; got a {type(prompt).__name__}."
        )
    return dict(prompt.columns)


def _read_ones(
    found: Iterable[Example | Unreadable], passed: list[Unreadable]
) -> Iterator[Example]:
    """The examples; what stands between them is put into `passed`."""
    for each in found:
        if isinstance(each, Example):
            yield each
        else:
            passed.append(each)


def _in_turn(
    items: Iterable[T], attribute: Callable[[T], str], turns: Sequence[str]
) -> Iterator[T]:
    """Items by the turn of their attribute, each as soon as its turn comes,
    until one is missing.
    """
    waiting: dict[str, deque[T]] = {each: deque() for each in ATTRIBUTES}
    source = iter(items)
    for turn in cycle(turns):
        while not waiting[turn]:
            item = next(source, None)
            if item is None:
                return
            waiting[attribute(item)].append(item)
        yield waiting[turn].popleft()
