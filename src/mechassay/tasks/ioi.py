"""IOI, indirect object identification: its prompts, counterfactuals and public rows.

    "After Nick and John left the zoo, Nick gave a ball to" -> " John"

The task is that of Wang et al. (2023), with the splits and the eight counterfactuals of MIB
(Mueller et al. 2025, appendix D.1, tables 5 and 6). Each row draws, uniformly and independently,
a template, an object, a place, five different names (subject, indirect object, random a, b, c)
and which of the two people the first clause names first. No prompt comes twice; a split ends
when every prompt has come.

A counterfactual puts other people in the template's three places (A and B in the first clause, C
in the second), by up to three changes that compose: random a and b for the two people; S1 flip,
names A and B change places; S2 flip, name C becomes the other person. "abc" instead puts random
c at C, so nothing completes it.

Deviations from MIB: templates and words are our own (`data/ioi.json`), those of the private
split are public, its rows private through their seed; the subject is name A in half of the rows,
in table 6 in all (the tag `order`: "ABBA" when the indirect object comes first, else "BABA");
for random names with both flips table 6 prints the repeated name as completion, here it is the
other one, as in all its other rows, so that the completion of a public row is read from its
prompt, not from its answerKey.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.tasks.hub_datasets import BadRow, PublicData, PublicTask
from mechassay.tasks.scoring import NAMED, Scoring
from mechassay.tasks.task import (
    OWN,
    PAPER,
    PAPER_MATCHED,
    PAPER_SIZES,
    owner,
    single_tokens,
    split_rng,
    word_lists,
)

NAMES = ("name_A", "name_B", "name_C")
PEOPLE = ("subject", "indirect_object", "random_a", "random_b", "random_c")
THINGS = ("place", "object")

Known = tuple[tuple[str, tuple[str, ...]], ...]
"""What each slot may be."""


def fields_of(template: str, text: str, metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """What fills the slots of a template to make a text; None if nothing does."""
    for known in (_known(metadata), ()):
        match = _pattern(template, known).fullmatch(text)
        if match is not None:
            return match.groupdict()
    return None


def template_of(given: str | None, text: str, metadata: Mapping[str, Any]) -> str:
    """A row's template if it has one that fits its prompt, or one made of the prompt.

    A public row's metadata says what its people, place and object are, its template where they
    stand: {name_A}, {name_B}, {name_C}, and {place} and {object} where it has them. A slot
    takes the value that the metadata has for it, a name any of its people; so a place of two
    words is never cut. Where the metadata does not fit the text, the template alone decides: as
    few characters as fit. A row without a template, or whose prompt does not fit it, gets one
    made of its prompt: the first three mentions of people, and every mention of the place and
    of the object, as whole words.

    Raises:
        BadRow: the prompt fits no template, and does not mention three people.
    """
    stated = set(re.findall(r"\{(\w+)\}", given or ""))
    if given and set(NAMES) <= stated and fields_of(given, text, metadata) is not None:
        return given
    known = dict(_known(metadata))
    people = list(_whole_words(known["name_A"]).finditer(text)) if "name_A" in known else []
    if len(people) != len(NAMES):
        fit = f"does not fit its template {given!r}" if given else "has no template"
        raise BadRow(
            "a prompt that is not its template",
            f"the prompt {text!r} {fit}, and mentions {len(people)} of its people, not 3",
        )
    slots = {match.span(): name for match, name in zip(people, NAMES, strict=True)}
    for thing in THINGS:
        for match in _whole_words(known[thing]).finditer(text) if thing in known else ():
            if not any(match.start() < end and begin < match.end() for begin, end in slots):
                slots[match.span()] = thing
    made, rest = "", 0
    for (begin, end), slot in sorted(slots.items()):
        made, rest = made + text[rest:begin] + f"{{{slot}}}", end
    return made + text[rest:]


def _known(metadata: Mapping[str, Any]) -> Known:
    """What the metadata says of each slot."""
    people = tuple(dict.fromkeys(str(metadata[role]) for role in PEOPLE if metadata.get(role)))
    things = tuple((thing, (str(metadata[thing]),)) for thing in THINGS if metadata.get(thing))
    return (*((name, people) for name in NAMES if people), *things)


def _whole_words(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Any of some texts as whole words, the longest first."""
    return re.compile(rf"(?<!\w)(?:{_any(texts)})(?!\w)")


def _any(texts: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


@lru_cache(maxsize=64)
def _pattern(template: str, known: Known) -> re.Pattern[str]:
    """A template as a pattern with a group a slot; a slot that comes twice must be the same."""
    possible = dict(known)
    pattern, seen = "", set[str]()
    for number, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if number % 2 == 0:
            pattern += re.escape(piece)
        elif piece in seen:
            pattern += f"(?P={piece})"
        else:
            seen.add(piece)
            pattern += f"(?P<{piece}>{_any(possible[piece]) if piece in possible else '.+?'})"
    return re.compile(pattern)


SIZES = {"train": 10_000, "validation": 10_000, "test": 1_000, "private": 1_000}
ABC = "abc_counterfactual"
RANDOM_NAMES = "random_names_counterfactual"
# (random names, S1 flip, S2 flip), in the order and spelling of MIB's columns.
CHANGES = {
    "s1_io_flip_counterfactual": (False, True, False),
    "s2_io_flip_counterfactual": (False, False, True),
    "s1_ioi_flip_s2_ioi_flip_counterfactual": (False, True, True),
    ABC: (False, False, False),
    RANDOM_NAMES: (True, False, False),
    "random_names_s1_ioi_flip_counterfactual": (True, True, False),
    "random_names_s2_ioi_flip_counterfactual": (True, False, True),
    "random_names_s1_ioi_flip_s2_ioi_flip_counterfactual": (True, True, True),
}
# Three other people: the corrupted prompts of Uit de Bos and Garriga-Alonso (2024), with their
# words only.
NEW_NAMES = "new_names_abc_counterfactual"
# Table 6 says N/A for the answer of "abc": no name completes it. The released rows say 1 (figure
# 3), so we do.
ABC_KEY = 1
NAMES_PER_ROW = 5
MIN_NAMES = 6
# Part of the stream's definition: rows are drawn in blocks of this many.
BLOCK = 1024


@dataclass(frozen=True)
class IOI(PublicTask):
    """The indirect object identification task.

    The foil is the subject of the clean prompt, whatever the counterfactual. Clean prompts do
    not depend on the counterfactual. Tags: template, order, subject, indirect_object, place,
    object; a public row has place and object only where its prompt does.

    The parts of a prompt are its fields (name_A, name_B, name_C, place, object) and, by their
    meaning, subject and subject_2 (its two mentions) and indirect_object; a prompt of "abc" has
    none of the second sort. A counterfactual's subject is the person whom the counterfactual
    names twice.

    Attributes:
        source: "own", "hub", or a folder with rows of the public schema.
        words: "own"; "paper" or "paper-matched" for those of Uit de Bos and Garriga-Alonso
            (2024), see `mechassay.tasks.task.owner`: one template, the indirect object always
            first, and a ninth kind of counterfactual, "new_names_abc", in which three other
            people stand for all names.

    Raises:
        UnknownName: no such `words`.
        BadUsage: `words` together with a source that brings its own.
    """

    source: str = "own"
    words: str = OWN

    name: ClassVar[str] = "ioi"
    version: ClassVar[int] = 3
    counterfactuals: ClassVar[tuple[str, ...]] = tuple(CHANGES)
    default_counterfactual: ClassVar[str] = "s2_io_flip_counterfactual"
    sizes: ClassVar[Mapping[str, int]] = SIZES
    public: ClassVar[PublicData] = PublicData("mib-worker/ioi")
    mib_scoring: ClassVar[Scoring] = NAMED

    def __post_init__(self) -> None:
        one_of("words", self.words, (OWN, PAPER, PAPER_MATCHED))
        if self.words == OWN:
            return
        if self.source != "own":
            raise BadUsage(
                f'ioi takes words only with source="own"; got source={self.source!r},'
                f" words={self.words!r}."
            )
        object.__setattr__(self, "sizes", PAPER_SIZES)
        object.__setattr__(self, "counterfactuals", (*CHANGES, NEW_NAMES))

    def split_words(self, split: str) -> IOIWords:
        """What the rows of a split are made of."""
        return ioi_words(split) if self.words == OWN else _paper_words(self.words)

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The rows of one split; with a tokenizer, only names that it writes as one token.

        Raises:
            BadPairs: the tokenizer leaves fewer than 6 names, or no two pairs of them.
        """
        words = self.split_words(split)
        names = words.names
        if tokenizer is not None:
            # No template begins with a name, so a space stands before each.
            spaced = [f" {name}" for name in names]
            names = single_tokens(
                spaced, ["I am"], tokenizer, what="IOI needs names", least=MIN_NAMES
            )
        rng = split_rng(split, seed)
        if self.words == OWN:
            n_pairs, rows = comb(len(names), 2), _rows(words, names, rng)
            possible = 2 * n_pairs * 2 * len(words.templates)
        else:
            pairs, people = _paper_pairs(words, names, split)
            possible, rows = 2 * len(people), _paper_rows(words, pairs, people, names, rng)
        possible *= len(words.objects) * len(words.places)
        seen: set[tuple[str | bool, ...]] = set()
        while len(seen) < possible:
            row = next(rows)
            if row.key not in seen:
                yield row.example(f"{self.name}-{split}-{len(seen):06d}", self.counterfactuals)
                seen.add(row.key)

    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        people = row["metadata"]
        template = template_of(row.get("template"), row["prompt"], people)
        prompt = _read(template, row, people)
        # Who is who decides answer and foil, so the text must agree.
        for role in ("subject", "indirect_object"):
            if role not in prompt.spans or prompt.part(role) != people[role]:
                raise BadRow(
                    "people of another role",
                    f"the {role} of {prompt.text!r} is not {people[role]!r}",
                )
        others, unread = self.read_counterfactuals(
            row, lambda struct: _read(template, struct, people)
        )
        return replace(_example(id, template, prompt, others), unread=unread)

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema.

        It has prompt, template, metadata, choices, answerKey (an index into choices), and the eight
        counterfactuals as {prompt, choices, answerKey}.
        """
        random, abc = example.counterfactuals[RANDOM_NAMES], example.counterfactuals[ABC]
        whole = _column(example.prompt)
        return {
            "prompt": whole.pop("prompt"),
            "template": example.tags["template"],
            "metadata": {
                **{
                    role: example.tags.get(role)
                    for role in ("subject", "indirect_object", "object", "place")
                },
                "random_a": random.part("subject"),
                "random_b": random.part("indirect_object"),
                "random_c": abc.part("name_C"),
            },
            **whole,
            **{kind: _column(example.counterfactuals[kind]) for kind in CHANGES},
        }


@dataclass(frozen=True)
class IOIWords:
    """What the rows of one split are made of."""

    templates: tuple[str, ...]
    names: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class _IOIRow:
    """One draw: all that a clean prompt and its counterfactuals are made of.

    Attributes:
        people: the subject, the indirect object, and random a, b and c.
    """

    template: str
    people: tuple[str, ...]
    object: str
    place: str
    subject_first: bool

    @property
    def key(self) -> tuple[str | bool, ...]:
        """What the clean prompt is made of."""
        return (self.template, *self.people[:2], self.subject_first, self.object, self.place)

    def example(self, id: str, kinds: Sequence[str]) -> Example:
        others = {kind: self._prompt(kind) for kind in kinds}
        return _example(id, self.template, self._prompt(None), others)

    def _prompt(self, kind: str | None) -> Prompt:
        """The clean prompt, or a counterfactual."""
        people, strangers, third = self.people[:2], self.people[2:4], self.people[4]
        random, flip_s1, flip_s2 = CHANGES.get(kind or "", (kind == NEW_NAMES, False, False))
        subject, other = strangers if random else people
        a, b = (subject, other) if self.subject_first != flip_s1 else (other, subject)
        choices = strangers if random else people[::-1]
        c = other if flip_s2 else subject
        if kind in (ABC, NEW_NAMES):
            c, choices = third, (*choices, third)
        things = {"place": self.place, "object": self.object}
        return ioi_prompt(self.template, {"name_A": a, "name_B": b, "name_C": c, **things}, choices)


def ioi_prompt(template: str, fields: Mapping[str, str], choices: Sequence[str]) -> Prompt:
    """A filled template with its answer, and the parts that its people are by meaning."""
    a, b, c = (fields[f"name_{letter}"] for letter in "ABC")
    offered = tuple(f" {name}" for name in choices)
    plain = filled(template, fields, choices=offered)
    if c not in (a, b):
        return plain
    subject, other = ("name_A", "name_B") if c == a else ("name_B", "name_A")
    spans = plain.spans
    meaning = {
        "subject": spans[subject],
        "indirect_object": spans[other],
        "subject_2": spans["name_C"],
    }
    return Prompt(plain.text, (f" {fields[other]}",), offered, {**spans, **meaning})


def _read(template: str, struct: Mapping[str, Any], metadata: Mapping[str, Any]) -> Prompt:
    """The prompt of a public row or of one of its counterfactuals."""
    text = struct["prompt"]
    fields = fields_of(template, text, metadata)
    if fields is None:
        raise BadRow(
            "a prompt that is not its template",
            f"the prompt {text!r} does not fit its template {template!r}",
        )
    prompt = ioi_prompt(template, fields, struct["choices"])
    if not set(prompt.answers) <= set(prompt.choices):
        raise BadRow(
            "choices without the right one",
            f"the choices of {text!r} do not have {prompt.answers[0]!r}",
        )
    return prompt


def _example(id: str, template: str, prompt: Prompt, others: Mapping[str, Prompt]) -> Example:
    tags = {
        "template": template,
        "order": "BABA" if prompt.part("name_A") == prompt.part("subject") else "ABBA",
        **{
            part: prompt.part(part)
            for part in ("subject", "indirect_object", "place", "object")
            if part in prompt.spans
        },
    }
    return Example(id, prompt, others, foils=(f" {tags['subject']}",), tags=tags)


def _column(prompt: Prompt) -> dict[str, Any]:
    key = prompt.choices.index(prompt.answers[0]) if prompt.answers else ABC_KEY
    return {
        "prompt": prompt.text,
        "choices": [choice.removeprefix(" ") for choice in prompt.choices],
        "answerKey": key,
    }


@cache
def _words() -> dict[str, IOIWords]:
    return {
        split: IOIWords(**{field: tuple(words) for field, words in group.items()})
        for split, group in word_lists("ioi").items()
    }


def ioi_words(split: str) -> IOIWords:
    """The words of a split."""
    return _words()[split]


def _rows(words: IOIWords, names: Sequence[str], rng: np.random.Generator) -> Iterator[_IOIRow]:
    """Draws of a template, five names, an object, a place and an order, without end."""
    sizes = (len(words.templates), len(words.objects), len(words.places), 2)
    while True:
        order = rng.random((BLOCK, len(names))).argsort(axis=1, kind="stable")
        people: list[list[int]] = order[:, :NAMES_PER_ROW].tolist()
        draws: list[list[int]] = rng.integers(sizes, size=(BLOCK, len(sizes))).tolist()
        for who, (template, thing, place, first) in zip(people, draws, strict=True):
            yield _IOIRow(
                words.templates[template],
                tuple(names[i] for i in who),
                words.objects[thing],
                words.places[place],
                subject_first=bool(first),
            )


@cache
def _paper_words(words: str) -> IOIWords:
    lists = word_lists("paper")["ioi"]
    names, objects, places = (tuple(lists[kind]) for kind in ("names", "objects", "places"))
    return IOIWords((lists["templates"][words],), names, objects, places)


NamePairs = list[tuple[str, str]]


def _paper_pairs(words: IOIWords, names: Sequence[str], split: str) -> tuple[NamePairs, NamePairs]:
    """The pairs of names of a split, and those of them that have strangers."""
    place = {name: number for number, name in enumerate(words.names)}
    pairs = [(a, b) for a, b in combinations(names, 2) if owner(place[a], place[b]) == split]
    met = Counter(name for pair in pairs for name in pair)
    # A pair that touches all others has no strangers.
    people = [(a, b) for a, b in pairs if met[a] + met[b] - 1 < len(pairs)]
    if not people:
        raise BadPairs(
            f"IOI needs two pairs of different names in split {split!r}; of these words, the"
            f" tokenizer leaves {len(names)} names."
        )
    return pairs, people


def _paper_rows(
    words: IOIWords,
    pairs: Sequence[tuple[str, str]],
    people: Sequence[tuple[str, str]],
    names: Sequence[str],
    rng: np.random.Generator,
) -> Iterator[_IOIRow]:
    """Draws of people and strangers, both pairs of names of the split, without end."""
    sizes = (len(people), 2, len(pairs), 2, len(names), len(words.objects), len(words.places))
    while True:
        draws: list[list[int]] = rng.integers(sizes, size=(BLOCK, len(sizes))).tolist()
        for ours, turn, theirs, other_turn, third, thing, where in draws:
            known = people[ours][::-1] if turn else people[ours]
            strangers = pairs[theirs][::-1] if other_turn else pairs[theirs]
            five = (*known, *strangers, names[third])
            if len(set(five)) == NAMES_PER_ROW:
                place = words.places[where]
                yield _IOIRow(words.templates[0], five, words.objects[thing], place, False)
