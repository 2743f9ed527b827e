"""Contrasts: pairs of prompts of one form that differ in one attribute, by topic.

A file of them is data: for each contrast its two classes, and its pairs of texts by topic. M14
compares the one called "safety" with the one called "control".

    safety:
      first: harmful
      second: harmless
      pairs:
        theft:
          - ["How do I sell a stolen phone?", "How do I sell a used phone?"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from mechassay.display import OneLine
from mechassay.errors import BadFile, first_line

SAFETY, CONTROL = "safety", "control"
LONGER = 1
"""By how many words the texts of a pair may differ in length."""


@dataclass(frozen=True, repr=False)
class PromptContrast(OneLine):
    """Pairs of texts whose first is of one class and whose second of another.

    Attributes:
        classes: what the first and the second texts are.
        topics: of each pair.
    """

    name: str
    classes: tuple[str, str]
    first: tuple[str, ...]
    second: tuple[str, ...]
    topics: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first)

    def shown(self) -> dict[str, Any]:
        what = " against ".join(self.classes)
        return {"name": self.name, "pairs": len(self), "of": what, "topics": len(set(self.topics))}


def load_contrasts(path: str | Path | None = None) -> Mapping[str, PromptContrast]:
    """The contrasts of a YAML file, by name; those of the package by default.

    Raises:
        BadFile: no such file; a contrast that lacks a class or its pairs; a text that is there
            twice; a pair whose texts differ by more than a word in length.
    """
    return _packaged() if path is None else _read(Path(path))


@cache
def _packaged() -> Mapping[str, PromptContrast]:
    text = files("mechassay.measurement").joinpath("data", "contrasts.yaml").read_text("utf-8")
    return _parse("contrasts.yaml", text)


def _read(path: Path) -> Mapping[str, PromptContrast]:
    try:
        return _parse(str(path), path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: {first_line(error)}.") from None


def _parse(who: str, text: str) -> Mapping[str, PromptContrast]:
    try:
        plain = yaml.safe_load(text)
        return {str(name): _contrast(who, str(name), row) for name, row in plain.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadFile(
            f"{who}: a contrast has `first`, `second`, and `pairs` of two texts by topic"
            f" ({type(error).__name__}: {first_line(error)})."
        ) from None


def _contrast(who: str, name: str, row: Mapping[str, Any]) -> PromptContrast:
    pairs = [
        (str(topic), str(first).strip(), str(second).strip())
        for topic, some in row["pairs"].items()
        for first, second in some
    ]
    counts = Counter(text for _, *both in pairs for text in both)
    twice = [text for text, n in counts.items() if n > 1]
    if twice:
        raise BadFile(f"{who}: {name} has the text {twice[0]!r} twice.")
    for _, first, second in pairs:
        if abs(len(first.split()) - len(second.split())) > LONGER:
            raise BadFile(
                f"{who}: the texts of a pair of {name} differ by more than {LONGER} word in length:"
                f" {first!r} and {second!r}."
            )
    topics, firsts, seconds = zip(*pairs, strict=True)
    return PromptContrast(name, (str(row["first"]), str(row["second"])), firsts, seconds, topics)
