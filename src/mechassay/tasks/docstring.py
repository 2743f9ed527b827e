'''Docstring: a function whose docstring has described two parameters; the next one is asked for.

    def load(self, size, path, files, index, mode, limit):
        """tiger bread lamp

        :param files: river coat
        :param index: stone cup
        :param                                                       -> " mode"

The task is that of Heimersheim and Janiak (2023), with the corrupted prompts under which Uit de Bos
and Garriga-Alonso (2024, table 2 and appendix B) evaluate its circuit. The parameters are, in
order, p1, p2, a, b, c and s1; a and b are described, so c is right. The foils are the other five
parameters of the clean prompt's first line: two that come before the described ones (p1, p2), the
described ones themselves (a, b), and the one after the answer (s1).

Seven names (the function and its parameters) and seven words are drawn for each prompt, uniformly
and all different. Five more names, different from these and from one another, make the
counterfactuals:

- matched: two of them stand for a and b in the docstring; the first line stays, so it has the
  answer, but the docstring does not say which parameter comes next;
- random random: the same two in the docstring, and the other three for a, b and c in the first
  line: neither has anything to do with the answer, nor with the other;
- unmatched: a random random prompt of names and words of its own, drawn independently of the clean
  prompt from the same split (so that single ones may happen to be the same).

No continuation of a counterfactual is right: it has no answers. Its choices, as those of the clean
prompt, are the six parameters of its first line.

With a tokenizer given, only names and words are drawn that it writes as one token wherever a prompt
has them, so that all prompts are equally long: names after "def", "," and ":param"; words after
another word or ":" for w2 to w7, and directly after the quotation marks for w1, which has no space
before it.

Where this deviates from the papers:

- Names and words are our own (`data/docstring.json`), and no name is among the words.
- There are splits, which share no name and no word.
- Heimersheim and Janiak count the names that a corrupted prompt brings in among the wrong answers;
  here the foils are names that the clean prompt has, so that they do not depend on the
  counterfactual.
- Appendix B says that matched prompts differ in the docstring only, and so they do here; the rows
  of its table 9 differ in the first line as well, which is "random random".
- The words of the private split are public; its examples are private through their seed.
'''

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np

from mechassay.alignment import encode
from mechassay.errors import BadPairs
from mechassay.examples import Example, Prompt, filled
from mechassay.tasks.paper import OWN, PAPER, check_words, owner, paper_words
from mechassay.tasks.paper import SIZES as PAPER_SIZES
from mechassay.tasks.task import Task, split_rng

SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000, "private": 1_000}
TEMPLATE = (
    "\ndef {name}(self, {p1}, {p2}, {a}, {b}, {c}, {s1}):\n"
    '    """{w1} {w2} {w3}\n'
    "\n"
    "    :param {a_2}: {w4} {w5}\n"
    "    :param {b_2}: {w6} {w7}\n"
    "    :param"
)
PARAMETERS = ("p1", "p2", "a", "b", "c", "s1")
NAMES = ("name", *PARAMETERS)
WORDS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7")
# What the other names stand for in a random random prompt.
OTHERS = ("a", "b", "c", "a_2", "b_2")
MATCHED, RANDOM, UNMATCHED = (
    "matched_counterfactual",
    "random_random_counterfactual",
    "unmatched_counterfactual",
)
# What stands before a name, before a word and before w1 in a prompt.
BEFORE_NAME = ("\ndef", "\ndef f(self,", "\n    :param")
BEFORE_WORD = ("\n    :param x:",)
BEFORE_FIRST = ('\n    """',)


@dataclass(frozen=True)
class Docstring(Task):
    """The docstring task. Tags: the fields of the clean prompt
    (name, p1, p2, a, b, c, s1, w1 to w7).

    Parts of a prompt: its fields, the six parameters meaning those of the first line; and a_2 and
    b_2, the two that the docstring describes.

    Attributes:
        words: "own", or "paper" for the names and words of Heimersheim and Janiak (2023), see
            `mechassay.tasks.paper`: every split has all of them, and no two splits share a
            function's name; a word may be one of the prompt's names.

    Raises:
        UnknownName: no such `words`.
    """

    words: str = OWN

    name: ClassVar[str] = "docstring"
    version: ClassVar[int] = 1
    counterfactuals: ClassVar[tuple[str, ...]] = (MATCHED, RANDOM, UNMATCHED)
    default_counterfactual: ClassVar[str] = MATCHED
    sizes: ClassVar[Mapping[str, int]] = SIZES

    def __post_init__(self) -> None:
        check_words(self.words)
        if self.words == PAPER:
            object.__setattr__(self, "sizes", PAPER_SIZES)

    def template(self, tags: Mapping[str, str]) -> str | None:
        """All prompts are built alike."""
        return self.name

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Different examples without end; with a tokenizer,
        of names and words that it writes as one token.

        Raises:
            BadPairs: the tokenizer leaves fewer than 12 names, 7 words, 1 word for w1 or 1 name for
                the function.
        """
        words = _words()[split] if self.words == OWN else _paper_words(split)
        if tokenizer is not None:
            words = _single_tokens(words, tokenizer)
        rng = split_rng(split, seed)
        seen: set[str] = set()
        while True:
            ours, theirs = _draw(words, rng), _draw(words, rng)
            prompt = ours.clean
            if prompt.text in seen:
                continue
            others = {MATCHED: ours.matched, RANDOM: ours.random, UNMATCHED: theirs.random}
            foils = tuple(choice for choice in prompt.choices if choice not in prompt.answers)
            yield Example(
                f"{self.name}-{split}-{len(seen):06d}",
                prompt,
                others,
                foils=foils,
                tags=ours.fields,
            )
            seen.add(prompt.text)


@dataclass(frozen=True)
class _DocstringWords:
    """What the prompts of one split are made of; `first` are the words that may be w1.

    Attributes:
        functions: the names that a function may have; empty where any may.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    first: tuple[str, ...]
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _DocstringDraw:
    """Everything that a clean prompt and its own counterfactuals are made of."""

    fields: Mapping[str, str]
    others: Mapping[str, str]

    @property
    def clean(self) -> Prompt:
        return _prompt(self.fields, answers=(f" {self.fields['c']}",))

    @property
    def matched(self) -> Prompt:
        return _prompt({**self.fields, "a_2": self.others["a_2"], "b_2": self.others["b_2"]})

    @property
    def random(self) -> Prompt:
        return _prompt({**self.fields, **self.others})


def _draw(words: _DocstringWords, rng: np.random.Generator) -> _DocstringDraw:
    drawn = _some(words.names, len(NAMES) + len(OTHERS), rng)
    if words.functions:
        name = words.functions[int(rng.integers(len(words.functions)))]
        drawn = [name, *[each for each in drawn if each != name]][: len(drawn)]
    first = words.first[int(rng.integers(len(words.first)))]
    # One too many, so that there are enough without the first.
    rest = [word for word in _some(words.words, len(WORDS), rng) if word != first][: len(WORDS) - 1]
    fields = {
        **dict(zip(NAMES, drawn, strict=False)),
        **dict(zip(WORDS, (first, *rest), strict=True)),
    }
    return _DocstringDraw(fields, dict(zip(OTHERS, drawn[len(NAMES) :], strict=True)))


def _some(words: Sequence[str], n: int, rng: np.random.Generator) -> list[str]:
    """`n` different words, in random order."""
    places: list[int] = rng.permutation(len(words))[:n].tolist()
    return [words[place] for place in places]


def _prompt(fields: Mapping[str, str], answers: tuple[str, ...] = ()) -> Prompt:
    """A prompt whose docstring describes a and b of its first line,
    unless `fields` has other names for them.
    """
    choices = tuple(f" {fields[each]}" for each in PARAMETERS)
    return filled(TEMPLATE, {"a_2": fields["a"], "b_2": fields["b"], **fields}, answers, choices)


@cache
def _words() -> dict[str, _DocstringWords]:
    text = files("mechassay.tasks").joinpath("data/docstring.json").read_text(encoding="utf-8")
    lists = json.loads(text).items()
    return {
        split: _DocstringWords(tuple(group["names"]), tuple(group["words"]), tuple(group["words"]))
        for split, group in lists
    }


@cache
def _paper_words(split: str) -> _DocstringWords:
    names, words = (tuple(paper_words("docstring")[kind]) for kind in ("names", "words"))
    return _DocstringWords(
        names,
        words,
        words,
        tuple(name for place, name in enumerate(names) if owner(place) == split),
    )


def _single_tokens(words: _DocstringWords, tokenizer: Any) -> _DocstringWords:
    """The words that a tokenizer writes as one token wherever a prompt has them."""
    functions = [f" {name}" for name in words.functions]
    return _DocstringWords(
        functions=(
            _fit("names of functions", functions, BEFORE_NAME, 1, tokenizer) if functions else ()
        ),
        names=_fit(
            "names",
            [f" {name}" for name in words.names],
            BEFORE_NAME,
            len(NAMES) + len(OTHERS),
            tokenizer,
        ),
        words=_fit(
            "words", [f" {word}" for word in words.words], BEFORE_WORD, len(WORDS), tokenizer
        ),
        first=_fit("words without a space before them", words.first, BEFORE_FIRST, 1, tokenizer),
    )


def _fit(
    kind: str, texts: Sequence[str], before: Sequence[str], least: int, tokenizer: Any
) -> tuple[str, ...]:
    """Texts that add exactly one known token to whatever stands before them, without their space.

    Raises:
        BadPairs: there are fewer than `least`.
    """
    kept = list(texts)
    for context in before:
        base, *encoded = encode(tokenizer, [context, *(context + text for text in kept)])
        unknown = base.count(tokenizer.unk_token_id)
        # Unknown words would all look alike to the model.
        one = [
            len(ids) == len(base) + 1 and ids.count(tokenizer.unk_token_id) == unknown
            for ids in encoded
        ]
        kept = [text for text, is_one in zip(kept, one, strict=True) if is_one]
    if len(kept) < least:
        label = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise BadPairs(
            f"The docstring task needs at least {least} {kind} that are single tokens; tokenizer"
            f" {label!r} has {len(kept)} of {len(texts)}."
        )
    return tuple(text.removeprefix(" ") for text in kept)
