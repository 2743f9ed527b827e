"""Prompts that differ from a prompt in one field, and fit its template as it does.

The fields of a prompt are its parts (`Prompt.spans`). Parts with the same text are one field: a
name that comes twice is changed at both places, so that a prompt keeps what makes it one of its
task (that its last name is one of the first two, that a century is written twice). A field takes
the values that each of its parts has in some prompt, but no value that another part of the prompt
has
already: two people do not become one. A part that has parts inside stays as it is; they are
    changed.

What is right after the changed prompt is not known here: it has no answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mechassay.alignment import Span
from mechassay.examples import Prompt

Values = Mapping[str, Sequence[str]]
"""What the parts of prompts may be, by their names."""
NO_VALUES: Values = MappingProxyType({})


@dataclass(frozen=True)
class Variant:
    """A changed prompt, and the change in words: "name_A, name_C: Ann -> Bob"."""

    prompt: Prompt
    change: str


def values_of(prompts: Iterable[Prompt], more: Values = NO_VALUES) -> dict[str, tuple[str, ...]]:
    """What every part is in some prompt, and more values for it:
    by its name, in order of appearance.
    """
    found: dict[str, dict[str, None]] = {}
    for prompt in prompts:
        for name in prompt.spans:
            found.setdefault(name, {})[prompt.part(name)] = None
    for name, values in more.items():
        found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in found.items()}


def variants(prompt: Prompt, values: Values) -> list[Variant]:
    """All prompts that differ from a prompt in one field."""
    spans = set(prompt.spans.values())
    fields: dict[str, set[Span]] = {}
    for begin, end in spans:
        fields.setdefault(prompt.text[begin:end], set()).add((begin, end))
    found: list[Variant] = []
    for old in dict.fromkeys(prompt.part(name) for name in prompt.spans):
        if not all(_alone(span, spans) for span in fields[old]):
            continue
        names = [name for name, span in prompt.spans.items() if span in fields[old]]
        possible = dict.fromkeys(values.get(names[0], ()))
        for name in names[1:]:
            others = set(values.get(name, ()))
            possible = {value: None for value in possible if value in others}
        said = f"{', '.join(names)}: {old} -> "
        found += [
            Variant(_changed(prompt, fields[old], new), said + new)
            for new in possible
            if new and new not in fields
        ]
    return found


def _alone(span: Span, spans: set[Span]) -> bool:
    """Nothing else begins or ends inside."""
    begin, end = span
    inside = (other for other in spans if other != span and other[0] < end and begin < other[1])
    return begin < end and all(a <= begin and end <= b for a, b in inside)


def _changed(prompt: Prompt, places: set[Span], new: str) -> Prompt:
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
