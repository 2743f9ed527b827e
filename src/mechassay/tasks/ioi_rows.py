"""Where the people, the place and the object of a public row of IOI stand in its prompts.

A row's metadata says what they are, its template where: {name_A}, {name_B}, {name_C}, and {place}
and {object} where it has them. A slot takes the value that the metadata has for it, a name any of
its people; so a place of two words is never cut. Where the metadata does not fit the text, the
template alone decides: as few characters as fit. A row without a template, or whose prompt does not
fit it, gets one made of its prompt: the first three mentions of people, and every mention of the
place and of the object, as whole words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mechassay.tasks.public import BadRow

NAMES = ("name_A", "name_B", "name_C")
PEOPLE = ("subject", "indirect_object", "random_a", "random_b", "random_c")
THINGS = ("place", "object")

Known = tuple[tuple[str, tuple[str, ...]], ...]
"""What each slot may be."""


def fields_of(template: str, text: str, metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """What fills the slots of a template to make a text; None if nothing does."""
    for known in (_known(metadata), ()):
        match = _pattern(template, known).fullmatch(text)
        if match is not None:
            return match.groupdict()
    return None


def template_of(given: str | None, text: str, metadata: Mapping[str, Any]) -> str:
    """A row's template if it has one that fits its prompt, or one made of the prompt.

    Raises:
        BadRow: the prompt fits no template, and does not mention three people.
    """
    if given and set(NAMES) <= set(_slots(given)) and fields_of(given, text, metadata) is not None:
        return given
    known = dict(_known(metadata))
    people = list(_words(known["name_A"]).finditer(text)) if "name_A" in known else []
    if len(people) != len(NAMES):
        fit = f"does not fit its template {given!r}" if given else "has no template"
        raise BadRow(
            "a prompt that is not its template",
            f"the prompt {text!r} {fit}, and mentions {len(people)} of its people, not 3",
        )
    slots = {match.span(): name for match, name in zip(people, NAMES, strict=True)}
    for thing in THINGS:
        for match in _words(known[thing]).finditer(text) if thing in known else ():
            if not any(match.start() < end and begin < match.end() for begin, end in slots):
                slots[match.span()] = thing
    made, rest = "", 0
    for (begin, end), slot in sorted(slots.items()):
        made, rest = made + text[rest:begin] + f"{{{slot}}}", end
    return made + text[rest:]


def _known(metadata: Mapping[str, Any]) -> Known:
    """What the metadata says of each slot."""
    people = tuple(dict.fromkeys(str(metadata[role]) for role in PEOPLE if metadata.get(role)))
    things = tuple((thing, (str(metadata[thing]),)) for thing in THINGS if metadata.get(thing))
    return (*((name, people) for name in NAMES if people), *things)


def _slots(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)


def _words(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Any of some texts as whole words, the longest first."""
    return re.compile(rf"(?<!\w)(?:{_any(texts)})(?!\w)")


def _any(texts: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


@lru_cache(maxsize=64)
def _pattern(template: str, known: Known) -> re.Pattern[str]:
    """A template as a pattern with a group a slot; a slot that comes twice must be the same."""
    possible = dict(known)
    pattern, seen = "", set[str]()
    for number, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if number % 2 == 0:
            pattern += re.escape(piece)
        elif piece in seen:
            pattern += f"(?P={piece})"
        else:
            seen.add(piece)
            pattern += f"(?P<{piece}>{_any(possible[piece]) if piece in possible else '.+?'})"
    return re.compile(pattern)
