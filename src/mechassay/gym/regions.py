"""Sentences made of regions: their text, and where each region stands in it.

    The {subject} that | the {object} {verb}

A region is a field, or a run of fixed text; a bar divides a run in two. A fixed region is named by
its words in lower case ("that"); the second of one name is "the_2", the third "the_3". A region
takes the space before it along, so that one that is empty leaves none behind; punctuation has no
space before it. A sentence never begins with a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mechassay.alignment import Span
from mechassay.errors import BadUsage

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

    Raises:
        BadUsage: no regions; a brace that belongs to no {field}; a field that comes twice, or whose
            name is taken.
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
    found: dict[str, Span] = {}
    for name, text in zip(names, texts, strict=True):
        begin, stop = shift + len(text) - len(text.lstrip()), shift + len(text.rstrip())
        if begin < stop:
            found[name] = (begin, stop)
        shift += len(text)
    return found
