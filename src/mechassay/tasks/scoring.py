"""MIB's scoring of what a model writes ("mib-2025"): which texts are right, by laxer rules than
equality. `tasks.accuracy.mib_scores` lets models write, and says which rules are whose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAME = "mib-2025"


@dataclass(frozen=True)
class Scoring:
    """How MIB scores a task.

    Attributes:
        tokens: how many tokens the model writes.
        right: whether a text is right, given the right continuations.
    """

    tokens: int
    right: Callable[[str, Sequence[str]], bool]


def names_it(text: str, answers: Sequence[str]) -> bool:
    """An answer is in the text, with or without its space."""
    return any(answer.strip() in text for answer in answers)


def labels_it(text: str, answers: Sequence[str]) -> bool:
    """An answer is in the text, with a space before it."""
    return any(f" {answer.strip()}" in text for answer in answers)


def first_number(text: str, answers: Sequence[str]) -> bool:
    """The first number in the text is an answer, which may be written with three digits."""
    match = re.search(r"\d+", text)
    right = [answer.strip() for answer in answers]
    return match is not None and match[0] in {*right, *(number.zfill(3) for number in right)}


def any_value(text: str, answers: Sequence[str]) -> bool:
    """A value of a city's attribute is in the text, or another name for it."""
    words = re.sub(r"[^\w\s]+", "", text.lower()).strip()
    return any(
        value.strip().lower() in words
        or _other_name(value.strip().lower(), words, text.strip().lower())
        for value in answers
    )


# What the text may begin with instead.
BEGINNINGS = {
    "south korea": ("korea", "south korea"),
    "persian": ("persian", "farsi"),
    "farsi": ("persian", "farsi"),
    "oceania": ("australia",),
    "north america": ("america",),
}
# What it may have anywhere instead.
INSIDE = {"mandarin": ("chinese", "mandarin"), "chinese": ("chinese", "mandarin")}
# Countries that may stand without their article.
WITH_ARTICLE = ("united states", "united kingdom", "czech republic")


def _other_name(value: str, answer: str, raw: str) -> bool:
    """Whether a text begins with, has or is another name of a value.

    Args:
        value, raw: in lower case.
        said: the text in lower case without punctuation.
    """
    if any(country in value for country in WITH_ARTICLE):
        plain = raw.replace("the ", "")
        if plain == "us" or plain.startswith((value.replace("the ", ""), "england")):
            return True
    if "north america" in value and answer == "na":
        return True
    beginnings = (name for known, names in BEGINNINGS.items() if known in value for name in names)
    inside = (name for known, names in INSIDE.items() if known in value for name in names)
    return answer.startswith(tuple(beginnings)) or any(name in answer for name in inside)


NAMED = Scoring(1, names_it)
LABELLED = Scoring(1, labels_it)
NUMBERED = Scoring(3, first_number)
VALUED = Scoring(2, any_value)
