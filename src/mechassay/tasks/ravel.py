"""RAVEL: "Paris is on the continent of" -> " Europe", and the same for countries and languages.

The task is that of Huang et al. (2024), as MIB uses it (Mueller et al. 2025, appendix G.5.3, table
5 and figure 16). Is a fact about a city kept apart from others: does an intervention on Country
change the answer of a prompt that asks for the country, and of no other?

An example is a city, a template that asks for an attribute, and another city of the split with
another answer there, which is the foil. All counterfactuals are about that other city: "city" with
the same template (not in MIB; the only kind that a tokenizer can usually align), "prompt_template"
with another one for the same attribute, "attribute" with one for another attribute, "wikipedia" in
a sentence that asks for nothing and has no answer.

A split has every pair of a city and a template once. The attributes take turns; with `variable`,
every second prompt asks for that attribute, which is how MIB balances the prompts for interventions
on it. Choices are the right answer, the foil, and others of the attribute, ten in all. Parts of a
prompt: entity, the city. Examples of one city are one group. Tags: city, attribute, country,
continent, language, template. docs/tasks/ravel.md says where the facts (`data/ravel.json`) are from
and how the task deviates from MIB.

*Public rows.* Columns are template, prompt, entity, attribute, Country, Continent, Language, and
one such struct for each kind of counterfactual. The paper does not define them. Inferred are: that
a fact which a row leaves empty may be taken from our table; that the last mention of the city is
the one asked about; that an answer after a quotation mark, a bracket or a space has no space of its
own. A column `label`, where there is one, is the answer. A value with commas ("Arabic,Berberi") is
several right answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.prompts.pairs import EMPTY, Example, Prompt, Unreadable, filled
from mechassay.prompts.tokenization import encode
from mechassay.tasks.hub_datasets import BadRow, PublicData, PublicTask
from mechassay.tasks.scoring import VALUED, Scoring
from mechassay.tasks.task import split_rng, word_lists

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

    Public rows have no city counterfactual: another kind has to be named for them. With a
    tokenizer, the other city is one that leaves the number of tokens of the original's template as
    it is, if the split has one; else the city counterfactual is dropped and counted by `pairs`.

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
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType(
        {"train": 100_000, "validation": 16_000}
    )
    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = (CITY, ATTRIBUTE, WIKIPEDIA, TEMPLATE)
    default_counterfactual: ClassVar[str] = CITY
    public: ClassVar[PublicData] = PublicData("mib-worker/ravel", splits={"validation": "val"})
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
        """As `Task.readings`, balanced for `variable`."""
        readings = super().readings(split, seed, tokenizer)
        if not self.variable or self.source == "own":
            yield from readings
            return
        unread: list[Unreadable] = []

        def examples() -> Iterator[Example]:
            for reading in readings:
                if isinstance(reading, Example):
                    yield reading
                else:
                    unread.append(reading)

        for example in _in_turn(examples(), lambda example: example.tags["attribute"], self.turns):
            yield from unread
            unread.clear()
            yield example
        yield from unread

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Every template of a split with every city, whatever the tokenizer."""
        words, rng = _data().splits[split], split_rng(split, seed)
        questions = [
            (attribute, template, city)
            for attribute in ATTRIBUTES
            for template in words.templates[attribute]
            for city in words.cities
        ]
        order: list[int] = rng.permutation(len(questions)).tolist()
        drawer, asked = _Drawer(words, rng, tokenizer), (questions[place] for place in order)
        balanced = _in_turn(asked, lambda question: question[0], self.turns)
        for number, question in enumerate(balanced):
            prompt, others = drawer.prompts(*question)
            yield _example(f"{self.name}-{split}-{number:06d}", prompt, others)

    def template(self, tags: Mapping[str, str]) -> str | None:
        """None: some counterfactuals have another template than their original."""
        return None

    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        """The example of a public row, without counterfactuals that ask for something nobody says.

        Its foils are what its counterfactuals' cities have as answer, or all values of the
        attribute in our table where no other city has another answer.

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


@dataclass(frozen=True)
class _Data:
    """The contents of data/ravel.json: facts by city and attribute, and the splits."""

    facts: Mapping[str, Mapping[str, str]]
    splits: Mapping[str, _RavelWords]


@cache
def _data() -> _Data:
    lists = word_lists("ravel")
    countries = {
        country: {"Continent": continent, "Country": country, "Language": language}
        for country, continent, language in lists["countries"]
    }
    facts = {
        city: countries[country]
        for cities in lists["cities"].values()
        for city, country, _, _ in cities
    }
    splits = {
        split: _RavelWords(
            cities=tuple(city for city, *_ in cities),
            templates={name: tuple(lists["templates"][split][name]) for name in ATTRIBUTES},
            sentences=tuple(lists["sentences"][split]),
        )
        for split, cities in lists["cities"].items()
    }
    return _Data(facts, splits)


class _Drawer:
    """Draws what stands beside a city and a template, for one split and one tokenizer."""

    def __init__(self, words: _RavelWords, rng: np.random.Generator, tokenizer: Any) -> None:
        self.words, self.rng, self.tokenizer = words, rng, tokenizer
        self.facts = _data().facts
        self.values = {
            name: sorted({self.facts[city][name] for city in words.cities}) for name in ATTRIBUTES
        }
        self._lengths: dict[str, dict[str, int]] = {}

    def prompts(self, attribute: str, template: str, city: str) -> tuple[Query, dict[str, Query]]:
        """The original and its counterfactuals by kind."""
        other = self._other(attribute, template, city)
        choices = self._choices(attribute, city, other)
        second = self._one([name for name in ATTRIBUTES if name != attribute])
        same = [text for text in self.words.templates[attribute] if text != template]
        asking = self._one(self.words.templates[second])
        others = {
            CITY: _query(template, attribute, other, choices),
            ATTRIBUTE: _query(asking, second, other, self._choices(second, city, other)),
            WIKIPEDIA: _query(self._one(self.words.sentences), NOTHING, other, ()),
            TEMPLATE: _query(self._one(same), attribute, other, choices),
        }
        return _query(template, attribute, city, choices), others

    def _other(self, attribute: str, template: str, city: str) -> str:
        """A city with another answer: the first drawn of equally many tokens, or else the very
        first.
        """
        # Without a tokenizer there are no lengths, and all fit.
        lengths, answer = self._tokens(template), self.facts[city][attribute]
        drawn = self._shuffled(self.words.cities)
        others = [other for other in drawn if self.facts[other][attribute] != answer]
        fit = (other for other in others if lengths.get(other) == lengths.get(city))
        return next(fit, others[0])

    def _tokens(self, template: str) -> Mapping[str, int]:
        """How many tokens a template has with each city; nothing without a tokenizer."""
        if self.tokenizer is None:
            return {}
        if template not in self._lengths:
            cities = self.words.cities
            texts = [filled(template, {ENTITY: city}).text for city in cities]
            lengths = map(len, encode(self.tokenizer, texts))
            self._lengths[template] = dict(zip(cities, lengths, strict=True))
        return self._lengths[template]

    def _choices(self, attribute: str, *cities: str) -> tuple[str, ...]:
        """The values that some cities have, and others of the split up to `N_CHOICES`."""
        needed = {self.facts[city][attribute] for city in cities}
        # All values are drawn, so that what is drawn next does not depend on the cities, which a
        # tokenizer may choose.
        drawn = self._shuffled(self.values[attribute])
        others = [value for value in drawn if value not in needed][: N_CHOICES - len(needed)]
        return tuple(f" {value}" for value in sorted([*needed, *others]))

    def _one(self, items: Sequence[str]) -> str:
        return items[int(self.rng.integers(len(items)))]

    def _shuffled(self, items: Sequence[str]) -> list[str]:
        order: list[int] = self.rng.permutation(len(items)).tolist()
        return [items[place] for place in order]


def _query(template: str, attribute: str, city: str, choices: tuple[str, ...]) -> Query:
    facts = _data().facts[city]
    answers = (f" {facts[attribute]}",) if attribute in facts else ()
    prompt = filled(template, {ENTITY: city}, answers, choices)
    columns = {"template": template, "prompt": prompt.text, ENTITY: city, "attribute": attribute}
    return Query(prompt.text, answers, choices, prompt.spans, {**columns, **facts})


def _read(row: Mapping[str, Any]) -> Query:
    """The prompt of a row or struct, without answer or part where the row does not say them."""
    text, city, attribute = row["prompt"], row[ENTITY], row["attribute"]
    known = _data().facts.get(city, {})
    names = ("Continent", "Country", "Language")
    facts = {name: row.get(name) or known.get(name, "") for name in names}
    if row.get("label") and attribute in ATTRIBUTES:
        facts[attribute] = row["label"]
    begin = text.rfind(city)
    spans = {ENTITY: (begin, begin + len(city))} if begin >= 0 else {}
    made = text[:begin] + f"{{{ENTITY}}}" + text[begin + len(city) :] if spans else text
    template, answers = (
        row.get("template") or made,
        continuations(text, [facts.get(attribute, "")]),
    )
    columns = {"template": template, "prompt": text, ENTITY: city, "attribute": attribute, **facts}
    return Query(text, answers, (), spans, columns)


def continuations(text: str, values: Iterable[str]) -> tuple[str, ...]:
    """Values as they continue a text, each once: of "Arabic,Berberi" two, of an empty one none."""
    space = "" if text.endswith(OPENING) or text[-1:].isspace() else " "
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(f"{space}{part}" for part in parts if part))


def _example(id: str, prompt: Query, others: Mapping[str, Query]) -> Example:
    """The example of an original and its counterfactuals."""
    attribute = prompt.columns["attribute"]
    continuations_of = continuations(
        prompt.text, [other.columns[attribute] for other in others.values()]
    )
    foils = tuple(text for text in continuations_of if text not in prompt.answers)
    tags = {
        "city": prompt.columns[ENTITY],
        "attribute": attribute,
        **{name.lower(): prompt.columns[name] for name in ATTRIBUTES},
        "template": prompt.columns["template"],
    }
    if not prompt.choices:
        # Between its answer and its foils, or else all values we know.
        known = sorted({facts[attribute] for facts in _data().facts.values()})
        choices = {*prompt.answers, *(foils or continuations(prompt.text, known))}
        prompt = replace(prompt, choices=tuple(sorted(choices)))
    return Example(id, prompt, others, foils or None, tags["city"], tags)


def _columns(prompt: Prompt) -> dict[str, str]:
    if not isinstance(prompt, Query):
        raise BadUsage(
            f"A row of ravel is made of prompts of ravel; got a {type(prompt).__name__}."
        )
    return dict(prompt.columns)


def _in_turn(
    items: Iterable[T], attribute: Callable[[T], str], turns: Sequence[str]
) -> Iterator[T]:
    """Items by the turn of their attribute, as soon as it comes, until one is missing."""
    waiting: dict[str, deque[T]] = {name: deque() for name in ATTRIBUTES}
    source = iter(items)
    for turn in cycle(turns):
        while not waiting[turn]:
            item = next(source, None)
            if item is None:
                return
            waiting[attribute(item)].append(item)
        yield waiting[turn].popleft()
