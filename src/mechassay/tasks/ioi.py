"""Indirect object identification: "After Nick and John left the zoo, Nick gave a ball to" -> " John".

The task is that of Wang et al. (2023), with the splits and the eight counterfactuals of MIB
(Mueller et al. 2025, appendix D.1, tables 5 and 6). Each row draws, uniformly and independently,
a template, an object, a place, five different names (subject, indirect object, random a, b, c)
and which of the two people the first clause names first. Rows whose prompt came before are
dropped, so a split is one endless stream of different rows, of which `limit` takes the first.

A counterfactual puts other people in the template's three places (A and B in the first clause,
C in the second), by up to three changes that compose:

- random names: random a and random b stand for the subject and the indirect object;
- S1 flip: names A and B change places;
- S2 flip: name C becomes the other person.

"abc" instead puts random c, who is not in the first clause, at C, so nothing completes it.

Where this deviates from MIB:

- Templates and words are our own (`data/ioi.json`); as in MIB, the four splits share none.
- The subject is name A in half of the rows and name B in the others; in table 6 it is always name A.
  The tag `order` has the names of Wang et al.: "ABBA" when the indirect object comes first, "BABA"
  when the subject does.
- For random names with both flips (Fred, Max, Fred) table 6 prints the completion "Fred"; the name
  that the second clause does not repeat is "Max", as in all its other rows, and this is what we give.
- The words of the private split are public; its rows are private through their seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import numpy as np

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.pairs import Pair
from mechassay.tasks.task import SPLITS

SIZES = {"train": 10_000, "validation": 10_000, "test": 1_000, "private": 1_000}
ABC = "abc_counterfactual"
# (random names, S1 flip, S2 flip), in the order and spelling of MIB's columns.
CHANGES = {
    "s1_io_flip_counterfactual": (False, True, False),
    "s2_io_flip_counterfactual": (False, False, True),
    "s1_ioi_flip_s2_ioi_flip_counterfactual": (False, True, True),
    ABC: (False, False, False),
    "random_names_counterfactual": (True, False, False),
    "random_names_s1_ioi_flip_counterfactual": (True, True, False),
    "random_names_s2_ioi_flip_counterfactual": (True, False, True),
    "random_names_s1_ioi_flip_s2_ioi_flip_counterfactual": (True, True, True),
}
NAMES_PER_ROW = 5
MIN_NAMES = 6
# Part of the stream's definition: rows are drawn in blocks of this many.
BLOCK = 1024


@dataclass(frozen=True)
class IOI:
    """The indirect object identification task; a `mechassay.tasks.Task`."""

    # Unannotated, so of the class and no fields: an IOI has no settings of its own.
    name = "ioi"
    version = 1
    counterfactuals = tuple(CHANGES)
    default_counterfactual = "s2_io_flip_counterfactual"

    def pairs(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        counterfactual: str | None = None,
        seed: int = 0,
        private_seed: int | None = None,
    ) -> list[Pair]:
        """The pairs of one split: answer is the indirect object, foil the subject of the clean prompt.

        The answer and the foil are the clean prompt's whatever the counterfactual. Clean prompts do
        not depend on the counterfactual. Tags: template (its index within the split), order,
        subject, indirect_object, place, object.

        Args:
            split: "train", "validation" (10,000 pairs each), "test" or "private" (1,000 each).
            model: a model with a `tokenizer`, or a tokenizer: only names that it writes as one token.
            limit: how many pairs, the first of the stream; may exceed the split's own size.
            counterfactual: one of `counterfactuals`. None: `default_counterfactual`.
            seed: another seed, other pairs. The private split does not use it.
            private_seed: takes the place of `seed` for the split "private", where it is required.

        Raises:
            UnknownName: no such split or counterfactual.
            BadUsage: a limit below 1 or beyond the number of different prompts, a negative seed, no
                seed for the private split, or a model that has no tokenizer.
            BadPairs: the tokenizer leaves fewer than 6 names, or makes the prompts of a pair unequally long.
        """
        kind = self.default_counterfactual if counterfactual is None else counterfactual
        if kind not in CHANGES:
            raise UnknownName("counterfactual", kind, CHANGES)
        tokenizer = _tokenizer(model)
        rows = _rows(split, tokenizer, limit, seed, private_seed)
        if tokenizer is not None:
            _check_lengths(rows, [kind], tokenizer)
        return [
            Pair(
                id=row.id,
                clean=row.clean,
                counterfactual=row.counterfactual(kind),
                answers=(" " + row.indirect_object,),
                foils=(" " + row.subject,),
                tags={
                    "template": str(row.template_index),
                    "order": "BABA" if row.subject_first else "ABBA",
                    "subject": row.subject,
                    "indirect_object": row.indirect_object,
                    "place": row.place,
                    "object": row.object,
                },
            )
            for row in rows
        ]

    def examples(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        seed: int = 0,
        private_seed: int | None = None,
    ) -> list[dict[str, Any]]:
        """The same rows as `pairs`, as plain JSON values in the schema of MIB's public data set.

        Each row has prompt, template, metadata, choices, answerKey (an index into choices), and the
        eight counterfactuals as {prompt, choices, answerKey}. Arguments and errors are those of
        `pairs`; all eight counterfactuals are checked for their length.
        """
        tokenizer = _tokenizer(model)
        rows = _rows(split, tokenizer, limit, seed, private_seed)
        if tokenizer is not None:
            _check_lengths(rows, self.counterfactuals, tokenizer)
        return [row.example() for row in rows]


@dataclass(frozen=True)
class _Words:
    """What the rows of one split are made of."""

    templates: tuple[str, ...]
    names: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """One draw: everything that the clean prompt and its counterfactuals are made of."""

    id: str
    template_index: int
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
    def clean(self) -> str:
        first = (self.subject, self.indirect_object) if self.subject_first else (self.indirect_object, self.subject)
        return self._fill(*first, self.subject)

    def counterfactual(self, kind: str) -> str:
        random, flip_s1, flip_s2 = CHANGES[kind]
        subject, other = (self.random_a, self.random_b) if random else (self.subject, self.indirect_object)
        first = (subject, other) if self.subject_first != flip_s1 else (other, subject)
        if kind == ABC:
            return self._fill(*first, self.random_c)
        return self._fill(*first, other if flip_s2 else subject)

    def example(self) -> dict[str, Any]:
        choices = [self.indirect_object, self.subject]
        return {
            "prompt": self.clean,
            "template": self.template,
            "metadata": {
                "subject": self.subject,
                "indirect_object": self.indirect_object,
                "object": self.object,
                "place": self.place,
                "random_a": self.random_a,
                "random_b": self.random_b,
                "random_c": self.random_c,
            },
            "choices": choices,
            "answerKey": 0,
            **{kind: self._column(kind) for kind in CHANGES},
        }

    def _column(self, kind: str) -> dict[str, Any]:
        random, _, flip_s2 = CHANGES[kind]
        if kind == ABC:
            # Table 6 says N/A: no name completes it. The released rows say 1 (figure 3), so we do.
            choices, answer = [self.indirect_object, self.subject, self.random_c], 1
        elif random:
            choices, answer = [self.random_a, self.random_b], 0 if flip_s2 else 1
        else:
            choices, answer = [self.indirect_object, self.subject], 1 if flip_s2 else 0
        return {"prompt": self.counterfactual(kind), "choices": choices, "answerKey": answer}

    def _fill(self, a: str, b: str, c: str) -> str:
        return self.template.format(name_A=a, name_B=b, name_C=c, place=self.place, object=self.object)


@cache
def _words() -> dict[str, _Words]:
    text = files("mechassay.tasks").joinpath("data/ioi.json").read_text(encoding="utf-8")
    return {split: _Words(**{field: tuple(words) for field, words in group.items()}) for split, group in json.loads(text).items()}


def _rows(split: str, tokenizer: Any, limit: int | None, seed: int, private_seed: int | None) -> list[_Row]:
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    if split == "private":
        if private_seed is None:
            raise BadUsage("The private split of 'ioi' needs private_seed, which only the keeper of the private test knows; got none.")
        seed = private_seed
    if seed < 0:
        raise BadUsage(f"A seed must be 0 or more; got {seed}.")
    words = _words()[split]
    names = words.names if tokenizer is None else _single_token_names(words.names, tokenizer)
    n = SIZES[split] if limit is None else limit
    possible = 2 * len(names) * (len(names) - 1) * len(words.templates) * len(words.objects) * len(words.places)
    if not 1 <= n <= possible:
        raise BadUsage(f"limit must be between 1 and {possible}, the number of different prompts in split {split!r}; got {n}.")
    # The split's index goes into the spawn key, so that no two (seed, split) share a stream.
    sequence = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split),))
    return list(islice(_stream(split, words, names, np.random.default_rng(sequence)), n))


def _stream(split: str, words: _Words, names: Sequence[str], rng: np.random.Generator) -> Iterator[_Row]:
    seen: set[str] = set()
    while True:
        people: list[list[int]] = rng.random((BLOCK, len(names))).argsort(axis=1, kind="stable")[:, :NAMES_PER_ROW].tolist()
        sizes = (len(words.templates), len(words.objects), len(words.places), 2)
        draws: list[list[int]] = rng.integers(sizes, size=(BLOCK, len(sizes))).tolist()
        for who, (template, thing, place, first) in zip(people, draws, strict=True):
            subject, indirect_object, random_a, random_b, random_c = [names[i] for i in who]
            row = _Row(
                id=f"ioi-{split}-{len(seen):06d}",
                template_index=template,
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
            if row.clean not in seen:
                seen.add(row.clean)
                yield row


def _tokenizer(model: Any) -> Any:
    if model is None:
        return None
    tokenizer = getattr(model, "tokenizer", model)
    # A bare network is callable too; only a tokenizer can tell its special tokens.
    if not hasattr(tokenizer, "unk_token_id"):
        raise BadUsage(f"IOI needs a tokenizer, or a model with a .tokenizer, to choose names by; got {type(model).__name__} without one.")
    return tokenizer


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), padding=False, return_attention_mask=False)["input_ids"]


def _single_token_names(names: Sequence[str], tokenizer: Any) -> list[str]:
    """Names that add exactly one known token to "I am"; unknown ones would all look alike to the model.

    This covers every place of a template: none begins with a name, so a space stands before each.
    """
    base, *encoded = _encode(tokenizer, ["I am", *(f"I am {name}" for name in names)])
    unknown = tokenizer.unk_token_id
    kept = [
        name for name, ids in zip(names, encoded, strict=True) if len(ids) == len(base) + 1 and ids.count(unknown) == base.count(unknown)
    ]
    if len(kept) < MIN_NAMES:
        label = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise BadPairs(f"IOI needs at least {MIN_NAMES} names that are single tokens; tokenizer {label!r} has {len(kept)} of {len(names)}.")
    return kept


def _check_lengths(rows: Sequence[_Row], kinds: Sequence[str], tokenizer: Any) -> None:
    lengths = [len(ids) for ids in _encode(tokenizer, [row.clean for row in rows])]
    for kind in kinds:
        others = [len(ids) for ids in _encode(tokenizer, [row.counterfactual(kind) for row in rows])]
        for row, length, other in zip(rows, lengths, others, strict=True):
            if length != other:
                raise BadPairs(f"Row {row.id}: clean has {length} tokens, {kind} has {other}; they must be equally long.")
