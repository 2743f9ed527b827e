"""An example of a task: a prompt with what continues it, and its counterfactual prompts.

The foils of a pair are what the counterfactual run is expected to say: the counterfactual's
answers. Where those are the original's own (a counterfactual that keeps the answer), or there are
none, the foils are the original's other choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mechassay.alignment import Span
from mechassay.display import OneLine, line
from mechassay.pairs import EMPTY, NO_SPANS, Pair

ABSENT = "no such counterfactual"


@dataclass(frozen=True, repr=False)
class Prompt(OneLine):
    """A text and what continues it.

    Attributes:
        text: the prompt.
        answers: right continuations, with their leading space; empty where nothing is right.
        choices: what ranked-choice scoring picks from, the answers included; empty where an answer
            is free.
        spans: parts of the text by name, in characters.
    """

    text: str
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)

    def part(self, name: str) -> str:
        """The text of one of `spans`."""
        begin, end = self.spans[name]
        return self.text[begin:end]


@dataclass(frozen=True, repr=False)
class Example(OneLine):
    """An original prompt and its counterfactuals.

    Attributes:
        id: unique within its task and split.
        prompt: the original.
        counterfactuals: by kind; a kind that this example cannot have is not there.
        foils: what answers are compared with, if not what the module's rule says.
        group: the unit that error bars respect; None: the example itself.
        tags: template fields, for group-by.
        unread: why a kind of counterfactual that was to be read is not there, by kind.
    """

    id: str
    prompt: Prompt
    counterfactuals: Mapping[str, Prompt]
    foils: tuple[str, ...] | None = None
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    unread: Mapping[str, str] = field(default_factory=lambda: EMPTY, compare=False)

    def shown(self) -> dict[str, Any]:
        kinds = tuple(self.counterfactuals)
        return {"id": self.id, "prompt": self.prompt.text, "counterfactuals": kinds}

    def pair(self, kind: str) -> Pair:
        """The pair of the original and its counterfactual of one kind.

        Raises:
            KeyError: the example has no counterfactual of that kind.
        """
        other = self.counterfactuals[kind]
        return Pair(
            id=self.id,
            clean=self.prompt.text,
            counterfactual=other.text,
            answers=self.prompt.answers,
            foils=self._foils(other),
            group=self.group,
            tags=self.tags,
            counterfactual_answers=other.answers,
            spans=self.prompt.spans,
            counterfactual_spans=other.spans,
        )

    def _foils(self, other: Prompt) -> tuple[str, ...]:
        if self.foils is not None:
            return self.foils
        right = self.prompt.answers
        changed = tuple(answer for answer in other.answers if answer not in right)
        return changed or tuple(choice for choice in self.prompt.choices if choice not in right)


class Examples(list[Example]):
    """Examples as a task chose them; `dropped` counts those that could not be read, by reason."""

    def __init__(self, examples: Iterable[Example], dropped: Mapping[str, int]) -> None:
        super().__init__(examples)
        self.dropped = MappingProxyType(dict(dropped))

    def __repr__(self) -> str:
        return line("Examples", {"n": len(self), "dropped": sum(self.dropped.values())})


@dataclass(frozen=True)
class Unreadable:
    """An example that could not be read: its id, a reason to count by, and what is wrong."""

    id: str
    reason: str
    message: str


def filled(
    template: str,
    fields: Mapping[str, str],
    answers: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Prompt:
    """A template with its {fields} filled in, each a span of the prompt under its name.

    A field that comes twice has the span of its first place under its name, and of the others under
    name_2, name_3 and so on. The template has no other braces.
    """
    text, spans, count = "", {}, dict.fromkeys(fields, 0)
    for number, piece in enumerate(template.replace("}", "{").split("{")):
        if number % 2 == 0:
            text += piece
            continue
        count[piece] += 1
        name = piece if count[piece] == 1 else f"{piece}_{count[piece]}"
        spans[name] = (len(text), len(text) + len(fields[piece]))
        text += fields[piece]
    return Prompt(text, answers, choices, spans)
