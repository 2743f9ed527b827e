"""Prompts that differ from a prompt in one field, and fit its template as it does.

The fields of a prompt are its parts (`Prompt.spans`). Parts with the same text are one field: a
name that comes twice is changed at both places, so a prompt keeps what makes it one of its task
(the last name is one of the first two, the century is written twice). A field takes the values that
each of its parts has in some prompt, but none that another part of the prompt has already: two
people do not become one. A part that contains other parts is not changed itself; they are.

What is right after the changed prompt is not known here: it has no answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from mechassay.adversarial.pools import tokenized
from mechassay.alignment import Span
from mechassay.examples import Prompt
from mechassay.models.model import Model

FieldValues = Mapping[str, Sequence[str]]
"""The possible texts of prompts' parts, by name."""
NO_VALUES: FieldValues = MappingProxyType({})


@dataclass(frozen=True)
class Edit:
    """A changed prompt, and the change in words: "name_A, name_C: Ann -> Bob"."""

    prompt: Prompt
    change: str


def field_values(
    prompts: Iterable[Prompt], more: FieldValues = NO_VALUES
) -> dict[str, tuple[str, ...]]:
    """The texts that every part has in some prompt, and more, by name, in order of appearance."""
    values: dict[str, dict[str, None]] = {}
    for prompt in prompts:
        for name in prompt.spans:
            values.setdefault(name, {})[prompt.part(name)] = None
    for name, texts in more.items():
        values.setdefault(name, {}).update(dict.fromkeys(texts))
    return {name: tuple(texts) for name, texts in values.items()}


def single_field_edits(prompt: Prompt, values: FieldValues) -> list[Edit]:
    """All prompts that differ from a prompt in one field."""
    spans = set(prompt.spans.values())
    fields: dict[str, set[Span]] = {}
    for begin, end in spans:
        fields.setdefault(prompt.text[begin:end], set()).add((begin, end))
    edits: list[Edit] = []
    for old in dict.fromkeys(prompt.part(name) for name in prompt.spans):
        if not all(_is_innermost(span, spans) for span in fields[old]):
            continue
        names = [name for name, span in prompt.spans.items() if span in fields[old]]
        common = set.intersection(*(set(values.get(name, ())) for name in names))
        edits += [
            Edit(_with_text(prompt, fields[old], new), f"{', '.join(names)}: {old} -> {new}")
            for new in dict.fromkeys(values.get(names[0], ()))
            if new and new in common and new not in fields
        ]
    return edits


def _is_innermost(span: Span, spans: set[Span]) -> bool:
    """Whether no other part begins or ends inside."""
    begin, end = span
    overlapping = (
        other for other in spans if other != span and other[0] < end and begin < other[1]
    )
    return begin < end and all(a <= begin and end <= b for a, b in overlapping)


def _with_text(prompt: Prompt, places: set[Span], new: str) -> Prompt:
    """The prompt with a new text at some places; its other parts move along."""

    def moved(place: int) -> int:
        return place + sum(len(new) - (end - begin) for begin, end in places if end <= place)

    text, rest = "", 0
    for begin, end in sorted(places):
        text, rest = text + prompt.text[rest:begin] + new, end
    return Prompt(
        text + prompt.text[rest:],
        spans={name: (moved(begin), moved(end)) for name, (begin, end) in prompt.spans.items()},
    )


class TokenizedPrompt(NamedTuple):
    """A prompt and its tokens."""

    prompt: Prompt
    tokens: tuple[int, ...]


class Neighbours:
    """Edits of a prompt that have as many tokens as it, and no more that are unknown."""

    def __init__(self, model: Model, values: FieldValues) -> None:
        self.model, self.values = model, values
        self._known: dict[str, list[tuple[str, TokenizedPrompt]]] = {}

    def of(self, text: TokenizedPrompt) -> list[tuple[str, TokenizedPrompt]]:
        """Each with the change in words."""
        if text.prompt.text not in self._known:
            self._known[text.prompt.text] = self._new(text)
        return self._known[text.prompt.text]

    def _new(self, text: TokenizedPrompt) -> list[tuple[str, TokenizedPrompt]]:
        edits = single_field_edits(text.prompt, self.values)
        assert self.model.tokenizer is not None
        unknown = self.model.tokenizer.unk_token_id
        assert unknown is None or isinstance(unknown, int)
        ids = tokenized(self.model, [edit.prompt.text for edit in edits])
        return [
            (edit.change, TokenizedPrompt(edit.prompt, tuple(tokens)))
            for edit, tokens in zip(edits, ids, strict=True)
            if len(tokens) == len(text.tokens)
            and (unknown is None or tokens.count(unknown) <= text.tokens.count(unknown))
        ]
