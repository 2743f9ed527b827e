"""A task of minimal pairs: sentences of different types, each of which is continued in its own way.

    The {subject} that | the {object} {verb}

A template is made of regions: a region is a field, or a run of fixed text, which a bar divides
in two (`regions_of`). A pair is drawn so (Arora et al. 2024, section 3.2 and appendix B): first
the types of base and source, at random but different; then, from left to right, what fills each
region, for base and source apart where options are listed by type, else for both at once
(`Choice`); then a continuation of each. Every pair is followed by its swap, source as base and
base as source.

*Splits.* A hash of a sentence says its split (60 % train, 20 % validation, 20 % test), and both
sentences of a pair belong to the pair's. So no sentence is in two splits, as base or as source,
whatever the seeds; the published code compared bases alone. Nor is a sentence in two pairs.
Sizes count swaps: 400 train, 100 validation ("dev" means the same) and 100 test.

*Tokens.* With a tokenizer, a pair counts only if each of its two continuations is one token
after each of its two sentences; others are dropped and counted. Lengths of sentences are never a
reason for `interchanges`: regions are aligned by characters. `pairs` leaves those of unequal
length out, like that of every task.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.gym.pairs import GymPairs
from mechassay.prompts.interchanges import InterchangePair, interchange_tokens
from mechassay.prompts.pairs import Example, Examples, Prompt, Unreadable
from mechassay.prompts.tokenization import Misaligned, Span
from mechassay.tasks.task import PATIENCE, Task, share_of, split_named, split_rng
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, html_facts, html_table

TAKEN = ("last", "all")
"""Names that mean something in every batch of interchanges."""

_PIECE = re.compile(r"\{(?P<field>\w+)\}|(?P<bar>\|)|(?P<fixed>[^{}|]+)|(?P<brace>[{}])")
_CLOSING = re.compile(r"[.,;:!?)\]}'’]")


class Region(NamedTuple):
    """One region of a template.

    Attributes:
        name: unique within the template.
        text: of a fixed region, with its space; None: a field.
        space: whether the template has a space before it.
    """

    name: str
    text: str | None
    space: bool

    def written(self, text: str) -> str:
        """A text as it stands in this region: with its space, if it has one."""
        return spaced(text) if self.space else text


def spaced(text: str) -> str:
    """A text with the space that stands before it: none before punctuation, or before nothing."""
    return text if not text or text[0].isspace() or _CLOSING.match(text) else " " + text


def regions_of(template: str) -> tuple[Region, ...]:
    """The regions of a template, in order.

    A fixed region is named by its words in lower case ("that"); the second of one name is
    "the_2", the third "the_3". A region takes the space before it along, so that an empty one
    leaves none behind. Punctuation has no space before it, and a sentence never begins with a
    space.

    Raises:
        BadUsage: no regions; a brace that belongs to no {field}; a field that comes twice, or
            whose name is taken.
    """
    pieces = [(str(match.lastgroup), match) for match in _PIECE.finditer(template)]
    if any(kind == "brace" for kind, _ in pieces):
        raise BadUsage(f"has a brace that belongs to no {{field}}: {template!r}")
    fields = [match["field"] for kind, match in pieces if kind == "field"]
    for name in fields:
        if fields.count(name) > 1:
            raise BadUsage(f"has the field {name!r} twice; a field is one region")
        if name in TAKEN:
            raise BadUsage(f"has the field {name!r}; that name is taken")
    used, regions, space = set(fields) | set(TAKEN), list[Region](), False
    for kind, match in pieces:
        text = match[0]
        if kind == "field":
            regions.append(Region(match["field"], None, space and bool(regions)))
            space = False
        elif kind == "bar" or not text.strip():
            space = True
        else:
            before = bool(regions) and (space or text[0].isspace())
            fixed = Region(_unused(text, used), None, before)
            regions.append(fixed._replace(text=fixed.written(" ".join(text.split()))))
            space = text[-1].isspace()
    if not regions:
        raise BadUsage(f"has no regions: {template!r}")
    return tuple(regions)


def _unused(text: str, used: set[str]) -> str:
    """A name for a fixed text, which is used from now on."""
    plain = re.sub(r"\W+", "_", text.lower()).strip("_") or "text"
    name, number = plain, 1
    while name in used:
        number += 1
        name = f"{plain}_{number}"
    used.add(name)
    return name


def joined(texts: Iterable[str]) -> str:
    """A sentence of the texts of its regions, each with its space."""
    return "".join(texts).lstrip()


def spans_of(names: Sequence[str], texts: Sequence[str]) -> dict[str, Span]:
    """Where the regions of `joined(texts)` are, without the space around them; an empty one is
    nowhere.
    """
    whole = "".join(texts)
    shift = len(whole.lstrip()) - len(whole)
    spans: dict[str, Span] = {}
    for name, text in zip(names, texts, strict=True):
        begin, stop = shift + len(text) - len(text.lstrip()), shift + len(text.rstrip())
        if begin < stop:
            spans[name] = (begin, stop)
        shift += len(text)
    return spans


Row = tuple[str, ...]
EVERY = ""
"""Stands for all types."""


@dataclass(frozen=True, repr=False)
class Choice(OneLine):
    """One draw for a sentence: the texts of one region, or of several that go together.

    Options that are listed by type differ between base and source, which are of different
    types: each draws its own. All others are drawn once, for both. An option that comes twice
    is drawn twice as often.

    Attributes:
        regions: whose texts a row has, in the order of the template.
        rows: options by type; under `EVERY` where they are the same for all types.
    """

    regions: tuple[str, ...]
    rows: Mapping[str, tuple[Row, ...]]

    @property
    def typed(self) -> bool:
        """Whether base and source draw their own."""
        return EVERY not in self.rows

    def options(self, kind: str) -> tuple[Row, ...]:
        """What a sentence of a type may have."""
        return self.rows[kind if self.typed else EVERY]

    def empty(self, region: str) -> bool:
        """Whether a region of this choice may have no text."""
        at = self.regions.index(region)
        return any(not row[at].strip() for rows in self.rows.values() for row in rows)


KIND = "other_type"
SEVERAL = "a continuation of several tokens"
Lengths = Literal["equal", "filler", "unequal"]
LENGTHS: tuple[Lengths, ...] = get_args(Lengths)
# Draws without a pair of new sentences, after which there are no more.
TRIES = 4_000
CHUNK = 64


class Drawn(NamedTuple):
    """A sentence of a pair: its type, the texts of its regions, and what continues it."""

    type: str
    texts: tuple[str, ...]
    sentence: str
    label: str


@dataclass(frozen=True, eq=False, repr=False)
class GymTask(OneLine, Task):
    """A template with options, from which minimal pairs are drawn; see the module.

    Tasks are read from files (`load_gym_task`, `read_gym_tasks`).

    Attributes:
        name: of the task; begins the ids of the examples.
        family: the family of tasks that it belongs to.
        about: what it is about, in a line.
        regions: names, in order.
        labels: by type, what may continue a sentence of it, with its space. The order of the types
            is that of the file.
        choices: what is drawn for a sentence.
        lengths: whether options of different types are meant to have equally many tokens ("equal"),
            have so by a filler in place of nothing ("filler"), or do not ("unequal").
        filler: the choices with a filler, where there is one.
        sha256: of labels and choices.
    """

    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    family: str
    about: str
    regions: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    choices: tuple[Choice, ...] = field(repr=False)
    lengths: Lengths = "equal"
    filler: tuple[Choice, ...] | None = field(default=None, repr=False)
    sha256: str = field(init=False)

    version: ClassVar[int] = 1
    counterfactuals: ClassVar[tuple[str, ...]] = (KIND,)
    default_counterfactual: ClassVar[str] = KIND
    sizes: ClassVar[Mapping[str, int]] = {"train": 400, "validation": 100, "test": 100}

    def __post_init__(self) -> None:
        one_of("lengths", self.lengths, LENGTHS)
        data = [
            list(self.labels.items()),
            [(c.regions, list(c.rows.items())) for c in self.choices],
        ]
        digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()
        object.__setattr__(self, "sha256", digest)

    # --- what it is made of -----------------------------------------------------------------------

    @property
    def types(self) -> tuple[str, ...]:
        """The types of sentences, in order."""
        return tuple(self.labels)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The regions in which base and source differ."""
        typed = {name for choice in self.choices if choice.typed for name in choice.regions}
        return tuple(name for name in self.regions if name in typed)

    @cached_property
    def tested(self) -> tuple[str, ...]:
        """The regions at which interventions are tried: from the first in which base and source
        differ, without those that may be empty.
        """
        empty = {name for choice in self.choices for name in choice.regions if choice.empty(name)}
        begin = self.regions.index(self.varied[0])
        return tuple(name for name in self.regions[begin:] if name not in empty)

    @property
    def n_sentences(self) -> int:
        """How many sentences can be drawn: for each type, the product of its different options."""
        return sum(
            prod(len(set(choice.options(kind))) for choice in self.choices) for kind in self.types
        )

    def with_filler(self) -> GymTask:
        """The task with a filler in place of its empty options, so that regions are aligned.

        Raises:
            BadUsage: it has none.
        """
        if self.filler is None:
            raise BadUsage(f"{self.name} has no filler: its lengths are {self.lengths!r}.")
        return replace(self, choices=self.filler, lengths="filler", filler=None)

    def template(self, tags: Mapping[str, str]) -> str:
        return " ".join(f"{{{name}}}" for name in self.regions)

    # --- drawing ----------------------------------------------------------------------------------

    @checked
    def interchanges(
        self, split: str = "train", model: Any = None, *, limit: int | None = None, seed: int = 0
    ) -> GymPairs:
        """Pairs of one split, each followed by its swap.

        Args:
            split: "train", "validation" (or "dev") or "test".
            model: a model with a tokenizer, or a tokenizer: only continuations of one token. None:
                no check.
            limit: how many, swaps included; the split's size by default, or as many as there are.
            seed: another seed, other pairs, of the same split's sentences.

        Raises:
            UnknownName: no such split.
            BadUsage: a limit below 1 or above what there is, a negative seed.
            BadPairs: no pair is left; the message has the counts.
        """
        split = split_named(split) or split
        examples = self.examples(split, model, limit=limit, seed=seed)
        if not examples:
            reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(examples.dropped.items()))
            raise BadPairs(
                f"Split {split!r} of {self.name} has no pair; dropped: {reasons or 'none'}. It has"
                f" {self.n_sentences} sentences in all."
            )
        return GymPairs(
            map(_interchange, examples),
            task=self.name,
            split=split,
            seed=seed,
            tested=self.tested,
            dropped=examples.dropped,
        )

    @checked
    def splits(
        self, model: Any = None, *, seed: int = 0, limits: Mapping[str, int] | None = None
    ) -> dict[str, GymPairs]:
        """`interchanges` of every split.

        Args:
            limits: how many, by split, where that is not the split's size.
        """
        sizes = {split_named(split) or split: n for split, n in (limits or {}).items()}
        for split in sizes:
            one_of("split", split, self.sizes)
        return {
            split: self.interchanges(split, model, limit=sizes.get(split), seed=seed)
            for split in self.sizes
        }

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        for reading in self.readings(split, seed, tokenizer):
            if isinstance(reading, Example):
                yield reading

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        """Both directions of every pair that is drawn, in order."""
        pairs = enumerate(self._pairs(split, split_rng(split, seed)), 1)
        lost, ahead = 0, 1 if tokenizer is None else CHUNK
        while lost < PATIENCE * CHUNK and (chunk := list(islice(pairs, ahead))):
            for (number, drawn), misfit in zip(chunk, _misfits(chunk, tokenizer), strict=True):
                lost = lost + 1 if misfit else 0
                pair, (first, second) = f"{self.name}-{split}-{number:06d}", drawn
                for name, base, source in ((pair, first, second), (f"{pair}-swap", second, first)):
                    if misfit is not None:
                        yield Unreadable(name, misfit.reason, misfit.message)
                    else:
                        yield self._example(name, pair, base, source)

    def _example(self, name: str, group: str, base: Drawn, source: Drawn) -> Example:
        other = self._prompt(source)
        return Example(
            id=name,
            prompt=replace(self._prompt(base), choices=(base.label, source.label)),
            counterfactuals={KIND: other},
            foils=other.answers,
            group=group,
            tags={"type": base.type, "source_type": source.type},
        )

    def _prompt(self, drawn: Drawn) -> Prompt:
        spans = spans_of(self.regions, drawn.texts)
        return Prompt(drawn.sentence, (drawn.label,), spans=spans)

    def _pairs(self, split: str, rng: np.random.Generator) -> Iterator[tuple[Drawn, Drawn]]:
        """Pairs of a split's sentences, as long as new ones are found."""
        seen: set[str] = set()
        misses, kinds = 0, self.types
        while misses < TRIES:
            misses += 1
            # Two types, two labels, and for each choice a number for the base and the source.
            first, second, *labels = rng.random(4).tolist()
            numbers = rng.random((2, len(self.choices))).tolist()
            base = kinds[int(first * len(kinds))]
            others = [kind for kind in kinds if kind != base]
            source = others[int(second * len(others))]
            pair: list[Drawn] = []
            for kind, own, label in zip((base, source), numbers, labels, strict=True):
                texts = self._texts(kind, own, numbers[0])
                sentence = joined(texts)
                # Most draws end here, before the source is made.
                if sentence in seen or share_of(sentence) != split:
                    break
                of_type = self.labels[kind]
                pair.append(Drawn(kind, tuple(texts), sentence, of_type[int(label * len(of_type))]))
            if len(pair) == 2 and pair[0].sentence != pair[1].sentence:
                seen |= {side.sentence for side in pair}
                misses = 0
                yield pair[0], pair[1]

    def sentences(self, split: str, rng: np.random.Generator) -> Iterator[Drawn]:
        """Sentences of a split, each by itself, without end: one may come again.

        Raises:
            UnknownName: no such split.
            BadPairs: it seems to have none.
        """
        split = one_of("split", split_named(split) or split, tuple(self.sizes))
        misses = 0
        while misses < TRIES:
            kind, label, *numbers = rng.random(2 + len(self.choices)).tolist()
            name = self.types[int(kind * len(self.types))]
            texts = self._texts(name, numbers, numbers)
            sentence = joined(texts)
            misses += 1
            if share_of(sentence) == split:
                misses, labels = 0, self.labels[name]
                yield Drawn(name, tuple(texts), sentence, labels[int(label * len(labels))])
        raise BadPairs(f"Split {split!r} of {self.name} has no sentence in {TRIES:,} draws.")

    def _texts(self, kind: str, own: Sequence[float], common: Sequence[float]) -> list[str]:
        """The texts of a sentence's regions, by a number in [0, 1) for each choice."""
        texts = [""] * len(self.regions)
        for number, (places, typed, rows) in enumerate(self._table):
            options = rows[kind if typed else EVERY]
            row = options[int((own if typed else common)[number] * len(options))]
            for place, text in zip(places, row, strict=True):
                texts[place] = text
        return texts

    @cached_property
    def _table(self) -> list[tuple[tuple[int, ...], bool, Mapping[str, tuple[Row, ...]]]]:
        """Of each choice the places of its regions, whether it is typed, and its rows."""
        index = {name: place for place, name in enumerate(self.regions)}
        return [
            (tuple(index[name] for name in choice.regions), choice.typed, choice.rows)
            for choice in self.choices
        ]

    # --- as people see it -------------------------------------------------------------------------

    def repr_fields(self) -> dict[str, Any]:
        """What a line says of it."""
        return {
            "name": self.name,
            "family": self.family,
            "types": self.types,
            "regions": len(self.tested),
            "lengths": self.lengths,
            "sentences": self.n_sentences,
        }

    def _repr_html_(self) -> str:
        examples = Examples(islice(self.generate("train", 0), 6), {})
        rows = [
            (example.tags["type"], example.prompt.text, example.prompt.answers[0].strip())
            for example in examples
        ]
        facts = {
            "family": self.family,
            "regions": ", ".join(self.tested),
            "lengths": self.lengths,
            "sentences": f"{self.n_sentences:,}",
        }
        return html_facts(self.name, facts, html_table(("type", "sentence", "label"), rows))


def _interchange(example: Example) -> InterchangePair:
    return InterchangePair.from_pair(example.pair(KIND), KIND)


def _misfits(
    chunk: list[tuple[int, tuple[Drawn, Drawn]]], tokenizer: Any
) -> list[Misaligned | None]:
    """Why a pair cannot be used: a continuation that is not one token after a sentence."""
    if tokenizer is None:
        return [None] * len(chunk)
    both = [
        InterchangePair(str(number), a.sentence, b.sentence, label=b.label, base_label=a.label)
        for number, (first, second) in chunk
        for a, b in ((first, second), (second, first))
    ]
    reasons = unusable(both, tokenizer)
    return [a or b for a, b in zip(reasons[::2], reasons[1::2], strict=True)]


def unusable(pairs: Sequence[InterchangePair], tokenizer: Any) -> list[Misaligned | None]:
    """Why an interchange cannot be used: a continuation that is not one token after a sentence."""
    reasons: list[Misaligned | None] = []
    for pair, row in zip(pairs, interchange_tokens(pairs, tokenizer), strict=True):
        if isinstance(row, Misaligned):
            reasons.append(row)
        elif row.cut or max(len(row.label), len(row.base_label)) > 1:
            longest = max((row.label, pair.label), (row.base_label, pair.base_label), key=_length)
            message = f"{longest[1]!r} is {len(longest[0])} tokens after {pair.base!r}"
            reasons.append(Misaligned(SEVERAL, message))
        else:
            reasons.append(None)
    return reasons


def _length(label: tuple[list[int], Any]) -> int:
    return len(label[0])
