"""Docstring: a function whose docstring has described two parameters; the next one is asked for.

    def load(self, size, path, files, index, mode, limit):
        '''tiger bread lamp

        :param files: river coat
        :param index: stone cup
        :param                                                       -> " mode"

The task is that of Heimersheim and Janiak (2023), with the corrupted prompts of Uit de Bos and
Garriga-Alonso (2024, table 2 and appendix B). The parameters are p1, p2, a, b, c and s1; a and b
are described, so c is right. The foils are the other five. All names and words of a prompt are
drawn uniformly and all different, and five more names make the counterfactuals:

- matched: two of them stand for a and b in the docstring, so it does not say which comes next;
- random random: and the other three for a, b and c in the first line;
- unmatched: a random random prompt drawn independently of the clean prompt.

No continuation of a counterfactual is right. Choices are the six parameters of the first line. With
a tokenizer, only names and words are drawn that it writes as one token wherever a prompt has them,
so that all prompts are equally long.

Deviations from the papers (docs/tasks/docstring.md): names and words are our own
(`data/docstring.json`), splits share none; foils do not depend on the counterfactual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from mechassay.errors import one_of
from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.tasks.task import (
    OWN,
    PAPER,
    PAPER_SIZES,
    Task,
    owner,
    single_tokens,
    split_rng,
    word_lists,
)

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
    """The docstring task. Tags: the fields of the clean prompt (name, p1, p2, a, b, c, s1, w1 to
    w7).

    Parts of a prompt: its fields, the six parameters meaning those of the first line; and a_2 and
    b_2, the two that the docstring describes.

    Attributes:
        words: "own", or "paper" for those of Heimersheim and Janiak (2023), see
            `mechassay.tasks.task`: every split has all of them, and no two splits share a
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
        one_of("words", self.words, (OWN, PAPER))
        if self.words == PAPER:
            object.__setattr__(self, "sizes", PAPER_SIZES)

    def template(self, tags: Mapping[str, str]) -> str | None:
        return self.name

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Different examples without end; with a tokenizer, of what it writes as one token.

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
            others, theirs = _draw(words, rng), _draw(words, rng)
            prompt = others.pop("clean")
            if prompt.text in seen:
                continue
            others[UNMATCHED] = theirs[RANDOM]
            id = f"{self.name}-{split}-{len(seen):06d}"
            foils = tuple(choice for choice in prompt.choices if choice not in prompt.answers)
            tags = {name: prompt.part(name) for name in (*NAMES, *WORDS)}
            yield Example(id, prompt, others, foils=foils, tags=tags)
            seen.add(prompt.text)


@dataclass(frozen=True)
class _DocstringWords:
    """Words of a split; `first` may be w1, `functions` are names of functions (empty: any)."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    first: tuple[str, ...]
    functions: tuple[str, ...] = ()


def _draw(words: _DocstringWords, rng: np.random.Generator) -> dict[str, Prompt]:
    """A clean prompt ("clean") and its own counterfactuals, with the names they bring in."""
    drawn = _some(words.names, len(NAMES) + len(OTHERS), rng)
    if words.functions:
        name = words.functions[int(rng.integers(len(words.functions)))]
        drawn = [name, *[other for other in drawn if other != name]][: len(drawn)]
    first = words.first[int(rng.integers(len(words.first)))]
    # One too many, so that there are enough without the first.
    rest = [word for word in _some(words.words, len(WORDS), rng) if word != first][: len(WORDS) - 1]
    fields: dict[str, str] = dict(
        zip((*NAMES, *WORDS), (*drawn[: len(NAMES)], first, *rest), strict=True)
    )
    others = dict(zip(OTHERS, drawn[len(NAMES) :], strict=True))
    return {
        "clean": _prompt(fields, answers=(f" {fields['c']}",)),
        MATCHED: _prompt({**fields, "a_2": others["a_2"], "b_2": others["b_2"]}),
        RANDOM: _prompt({**fields, **others}),
    }


def _some(words: Sequence[str], n: int, rng: np.random.Generator) -> list[str]:
    """`n` different words, in random order."""
    places: list[int] = rng.permutation(len(words))[:n].tolist()
    return [words[place] for place in places]


def _prompt(fields: Mapping[str, str], answers: tuple[str, ...] = ()) -> Prompt:
    """A prompt whose docstring describes a and b, unless `fields` has other names for them."""
    choices = tuple(f" {fields[parameter]}" for parameter in PARAMETERS)
    return filled(TEMPLATE, {"a_2": fields["a"], "b_2": fields["b"], **fields}, answers, choices)


@cache
def _words() -> dict[str, _DocstringWords]:
    return {
        split: _DocstringWords(tuple(group["names"]), tuple(group["words"]), tuple(group["words"]))
        for split, group in word_lists("docstring").items()
    }


@cache
def _paper_words(split: str) -> _DocstringWords:
    names, words = (tuple(word_lists("paper")["docstring"][kind]) for kind in ("names", "words"))
    functions = tuple(name for place, name in enumerate(names) if owner(place) == split)
    return _DocstringWords(names, words, words, functions)


def _single_tokens(words: _DocstringWords, tokenizer: Any) -> _DocstringWords:
    """The words that a tokenizer writes as one token wherever a prompt has them."""

    def fit(
        kind: str, texts: Sequence[str], before: Sequence[str], least: int, space: str = " "
    ) -> tuple[str, ...]:
        what = f"The docstring task needs {kind}"
        spaced = [f"{space}{text}" for text in texts]
        return single_tokens(spaced, before, tokenizer, what=what, least=least)

    functions = words.functions and fit("names of functions", words.functions, BEFORE_NAME, 1)
    return _DocstringWords(
        fit("names", words.names, BEFORE_NAME, len(NAMES) + len(OTHERS)),
        fit("words", words.words, BEFORE_WORD, len(WORDS)),
        fit("words without a space before them", words.first, BEFORE_FIRST, 1, space=""),
        functions,
    )
