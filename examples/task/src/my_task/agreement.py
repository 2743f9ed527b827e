"""Subject-verb agreement: "The keys near the cabinet" -> " are", not " is".

The noun before the verb, the attractor, has a number of its own (Linzen et al. 2016). The
counterfactual has the subject in its other number, so nothing changes but what the verb agrees
with. Splits share no noun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, ClassVar

from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.tasks.task import Task, split_rng

TEMPLATE = "The {subject} {place} the {attractor}"
PLACES = ("near", "behind", "beside", "above", "below")
NOUNS = {
    "train": ("key", "table", "picture", "door", "tree", "book", "car", "river"),
    "validation": ("lamp", "chair", "house", "cup"),
    "test": ("boat", "wall", "bird", "garden", "stone", "bridge"),
}
VERBS = {"singular": " is", "plural": " are"}
OTHER = {"singular": "plural", "plural": "singular"}


@dataclass(frozen=True)
class Agreement(Task):
    """Agreement of a verb with its subject. Tags: subject, number, attractor, and attractor_number.

    Attributes:
        attractor: "any", or "other" for nouns before the verb of another number than the subject.
    """

    attractor: str = "any"

    name: ClassVar[str] = "agreement"
    counterfactuals: ClassVar[tuple[str, ...]] = ("number",)
    default_counterfactual: ClassVar[str] = "number"
    sizes: ClassVar[Mapping[str, int]] = {"train": 500, "validation": 100, "test": 300}

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        pairs, numbers = permutations(NOUNS[split], 2), tuple(product(VERBS, VERBS))
        cases = list(product(pairs, numbers, PLACES))
        for number, row in enumerate(split_rng(split, seed).permutation(len(cases)).tolist()):
            (subject, attractor), (own, other), place = cases[row]
            if self.attractor == "other" and own == other:
                continue
            rest = (subject, place, attractor, other)
            yield Example(
                id=f"{self.name}-{split}-{number:04d}",
                prompt=prompt(own, *rest),
                counterfactuals={"number": prompt(OTHER[own], *rest)},
                group=subject,
                tags={
                    "subject": subject,
                    "number": own,
                    "attractor": attractor,
                    "attractor_number": other,
                },
            )


def prompt(number: str, subject: str, place: str, attractor: str, other: str) -> Prompt:
    """A prompt whose subject and attractor have these numbers."""
    fields = {
        "subject": inflected(subject, number),
        "place": place,
        "attractor": inflected(attractor, other),
    }
    return filled(TEMPLATE, fields, (VERBS[number],), tuple(VERBS.values()))


def inflected(noun: str, number: str) -> str:
    """A noun in a number."""
    return noun if number == "singular" else f"{noun}s"
