"""Indirect object identification: "After Nick and John left the zoo,
Nick gave a ball to" -> " John".

The task is that of Wang et al. (2023), with the splits and the eight counterfactuals of MIB
(Mueller et al. 2025, appendix D.1, tables 5 and 6). Each row draws, uniformly and independently,
a template, an object, a place, five different names (subject, indirect object, random a, b, c)
and which of the two people the first clause names first. Rows whose prompt came before are
dropped, so a split is one stream of different rows, which ends when every prompt has come.

A counterfactual puts other people in the template's three places (A and B in the first clause,
C in the second), by up to three changes that compose:

- random names: random a and random b stand for the subject and the indirect object;
- S1 flip: names A and B change places;
- S2 flip: name C becomes the other person.

"abc" instead puts random c, who is not in the first clause, at C, so nothing completes it.

The parts of a prompt are its fields (name_A, name_B, name_C, place, object) and, by their meaning,
subject and subject_2 (its first and second mention) and indirect_object; a prompt of "abc" has no
parts of the second sort. They are the prompt's own: a counterfactual's subject is the person whom
the counterfactual names twice.

Where this deviates from MIB:

- Templates and words are our own (`data/ioi.json`), each template made to fit every place and
  object of its split; as in MIB, the four splits share none.
- The subject is name A in half of the rows and name B in the others; in table 6 it is always name
  A. The tag `order` has the names of Wang et al.: "ABBA" when the indirect object comes first,
  "BABA" when the subject does.
- For random names with both flips (Fred, Max, Fred) table 6 prints the completion "Fred"; the name
  that the second clause does not repeat is "Max", as in all its other rows, and this is what we
  give. So the completion of a public row is read from its prompt, not from its answerKey.
- The words of the private split are public; its rows are private through their seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from mechassay.alignment import encode
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Example, Prompt, filled
from mechassay.tasks.ioi_rows import fields_of, template_of
from mechassay.tasks.mib_scoring import NAMED, Scoring
from mechassay.tasks.paper import OWN, PAPER, PAPER_MATCHED, check_words, owner, paper_words
from mechassay.tasks.paper import SIZES as PAPER_SIZES
from mechassay.tasks.public import BadRow, PublicData, PublicTask
from mechassay.tasks.task import split_rng

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

    The foil is the subject of the clean prompt, whatever the counterfactual. Clean prompts do not
    depend on the counterfactual. Tags: template, order, subject, indirect_object, place, object; a
    public row has place and object only where its prompt does.

    Attributes:
        source: "own", "hub", or a folder with rows of the public schema.
        words: "own"; "paper" or "paper-matched" for those of Uit de Bos and Garriga-Alonso (2024),
            see `mechassay.tasks.paper`: one template, the indirect object always first, and a ninth
            kind of counterfactual, "new_names_abc", in which three other people stand for all
            names.

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
    public: ClassVar[PublicData] = PublicData("mib-bench/ioi")
    mib_scoring: ClassVar[Scoring] = NAMED

    def __post_init__(self) -> None:
        check_words(self.words, (OWN, PAPER, PAPER_MATCHED))
        if self.words == OWN:
            return
        if self.source != "own":
            raise BadUsage(
                f'ioi takes words only with source="own"; got source={self.source!r},'
                f" words={self.words!r}."
            )
        object.__setattr__(self, "sizes", PAPER_SIZES)
        object.__setattr__(self, "counterfactuals", (*CHANGES, NEW_NAMES))

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The rows of one split; with a tokenizer, only names that it writes as one token.

        Raises:
            BadPairs: the tokenizer leaves fewer than 6 names, or no two pairs of them.
        """
        words = _words()[split] if self.words == OWN else _paper_words(self.words)
        names = words.names if tokenizer is None else _single_token_names(words.names, tokenizer)
        rng = split_rng(split, seed)
        rows = (
            _rows(words, names, rng) if self.words == OWN else _paper_rows(words, names, split, rng)
        )
        for number, row in enumerate(rows):
            yield row.example(f"{self.name}-{split}-{number:06d}", self.counterfactuals)

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
        return replace(
            _example(id=id, template=template, prompt=prompt, others=others), unread=unread
        )

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
class _IOIWords:
    """What the rows of one split are made of."""

    templates: tuple[str, ...]
    names: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]

    def possible(self, n_names: int) -> int:
        """How many different clean prompts there are."""
        return (
            2 * n_names * (n_names - 1) * len(self.templates) * len(self.objects) * len(self.places)
        )


@dataclass(frozen=True)
class _IOIRow:
    """One draw: everything that the clean prompt and its counterfactuals are made of."""

    template: str
    subject: str
    indirect_object: str
    random_a: str
    random_b: str
    random_c: str
    object: str
    place: str
    subject_first: bool

    @property
    def key(self) -> tuple[str | bool, ...]:
        """What the clean prompt is made of."""
        return (
            self.template,
            self.subject,
            self.indirect_object,
            self.subject_first,
            self.object,
            self.place,
        )

    def example(self, id: str, kinds: Sequence[str]) -> Example:
        return _example(
            id, self.template, self._prompt(None), {kind: self._prompt(kind) for kind in kinds}
        )

    def _prompt(self, kind: str | None) -> Prompt:
        """The clean prompt, or a counterfactual."""
        people, strangers = (self.subject, self.indirect_object), (self.random_a, self.random_b)
        random, flip_s1, flip_s2 = CHANGES.get(kind or "", (kind == NEW_NAMES, False, False))
        subject, other = strangers if random else people
        a, b = (subject, other) if self.subject_first != flip_s1 else (other, subject)
        choices = strangers if random else (self.indirect_object, self.subject)
        c = other if flip_s2 else subject
        if kind in (ABC, NEW_NAMES):
            c, choices = self.random_c, (*choices, self.random_c)
        return _prompt(
            self.template,
            {"name_A": a, "name_B": b, "name_C": c, "place": self.place, "object": self.object},
            choices,
        )


def _prompt(template: str, fields: Mapping[str, str], choices: Sequence[str]) -> Prompt:
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
    """The prompt of a public row or of one of its counterfactuals.

    Raises:
        BadRow: the text is not the template filled in, or its completion is no choice.
    """
    text = struct["prompt"]
    fields = fields_of(template, text, metadata)
    if fields is None:
        raise BadRow(
            "a prompt that is not its template",
            f"the prompt {text!r} does not fit its template {template!r}",
        )
    prompt = _prompt(template, fields, struct["choices"])
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
def _words() -> dict[str, _IOIWords]:
    text = files("mechassay.tasks").joinpath("data/ioi.json").read_text(encoding="utf-8")
    return {
        split: _IOIWords(**{field: tuple(words) for field, words in group.items()})
        for split, group in json.loads(text).items()
    }


def _rows(words: _IOIWords, names: Sequence[str], rng: np.random.Generator) -> Iterator[_IOIRow]:
    """Different draws until there is none left."""
    seen: set[tuple[str | bool, ...]] = set()
    possible = words.possible(len(names))
    while len(seen) < possible:
        for row in _block(words, names, rng):
            if row.key not in seen:
                seen.add(row.key)
                yield row


def _block(words: _IOIWords, names: Sequence[str], rng: np.random.Generator) -> Iterator[_IOIRow]:
    people: list[list[int]] = (
        rng.random((BLOCK, len(names))).argsort(axis=1, kind="stable")[:, :NAMES_PER_ROW].tolist()
    )
    sizes = (len(words.templates), len(words.objects), len(words.places), 2)
    draws: list[list[int]] = rng.integers(sizes, size=(BLOCK, len(sizes))).tolist()
    for who, (template, thing, place, first) in zip(people, draws, strict=True):
        subject, indirect_object, random_a, random_b, random_c = [names[i] for i in who]
        yield _IOIRow(
            template=words.templates[template],
            subject=subject,
            indirect_object=indirect_object,
            random_a=random_a,
            random_b=random_b,
            random_c=random_c,
            object=words.objects[thing],
            place=words.places[place],
            subject_first=bool(first),
        )


@cache
def _paper_words(words: str) -> _IOIWords:
    lists = paper_words("ioi")
    return _IOIWords(
        (lists["templates"][words],),
        tuple(lists["names"]),
        tuple(lists["objects"]),
        tuple(lists["places"]),
    )


def _paper_rows(
    words: _IOIWords, names: Sequence[str], split: str, rng: np.random.Generator
) -> Iterator[_IOIRow]:
    """Different draws whose people, and whose strangers, are pairs of names of the split;
    until there is none left.

    Raises:
        BadPairs: no two such pairs have four names.
    """
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
    sizes = (len(people), 2, len(pairs), 2, len(names), len(words.objects), len(words.places))
    possible = 2 * len(people) * len(words.objects) * len(words.places)
    seen: set[tuple[str | bool, ...]] = set()
    while len(seen) < possible:
        draws: list[list[int]] = rng.integers(sizes, size=(BLOCK, len(sizes))).tolist()
        for ours, turn, theirs, other_turn, third, thing, where in draws:
            subject, indirect_object = people[ours][::-1] if turn else people[ours]
            random_a, random_b = pairs[theirs][::-1] if other_turn else pairs[theirs]
            five = (subject, indirect_object, random_a, random_b, names[third])
            row = _IOIRow(
                words.templates[0],
                *five,
                words.objects[thing],
                words.places[where],
                subject_first=False,
            )
            if len(set(five)) == NAMES_PER_ROW and row.key not in seen:
                seen.add(row.key)
                yield row


def _single_token_names(names: Sequence[str], tokenizer: Any) -> list[str]:
    """Names that add exactly one known token to "I am";
    unknown ones would all look alike to the model.

    This covers every place of a template: none begins with a name, so a space stands before each.
    """
    base, *encoded = encode(tokenizer, ["I am", *(f"I am {name}" for name in names)])
    unknown = tokenizer.unk_token_id
    kept = [
        name
        for name, ids in zip(names, encoded, strict=True)
        if len(ids) == len(base) + 1 and ids.count(unknown) == base.count(unknown)
    ]
    if len(kept) < MIN_NAMES:
        label = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise BadPairs(
            f"IOI needs at least {MIN_NAMES} names that are single tokens; tokenizer {label!r} has"
            f" {len(kept)} of {len(names)}."
        )
    return kept
