"""A Markdown text without what its page would not show.

    comments       `<!-- ... -->`; one without an end at a line's beginning hides the rest, and is
                   plain text elsewhere
    definitions    of links, such as `[//]: # (...)`: no page shows them; footnotes are shown
    elements       of HTML that are hidden by their attributes or their own style (`web_style`), and
                   closed `<details>` but for its summary; one without an end hides the rest

All are cut in code as well, where a page shows them. Style sheets are not applied, and titles of
links and what stands for a picture are left.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

from mechassay.claims.hidden_text import HiddenText, hidden
from mechassay.claims.web_sheets import declared
from mechassay.claims.web_style import (
    Style,
    TextLook,
    looks_within,
    reason_of,
    unseen_because,
    with_values,
)

VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
NEVER = ("template", "noscript", "script", "style", "title", "iframe", "canvas")
"""Elements whose text no browser shows as text."""
_COMMENT = re.compile(r"<!--(.*?)-->|^[ \t>]{0,8}<!--(.*)", re.S | re.M)
_LABEL = r"\[(?!\^)(?:[^\[\]\\]|\\.)+\]:"
_TITLE = (
    r"\"(?:(?!\n[ \t]*\n)(?:[^\"\\]|\\.))*\"|'(?:(?!\n[ \t]*\n)(?:[^'\\]|\\.))*'"
    r"|\((?:(?!\n[ \t]*\n)(?:[^()\\]|\\.))*\)"
)
_DEFINITION = re.compile(
    rf"^(?:[ \t]|>|[-*+][ \t]|\d+[.)][ \t])*({_LABEL}[ \t]*\n?[ \t]*(?:<[^<>\n]*>|[^\s<]\S*)"
    rf"(?:(?:[ \t]+|[ \t]*\n[ \t]*)(?:{_TITLE}))?)[ \t]*$\n?",
    re.M | re.S,
)
_EMPTY = re.compile(r"\n(?:[ \t]*\n){2,}")


def markdown_text(text: str) -> tuple[str, tuple[HiddenText, ...]]:
    """A Markdown text without what its page would not show, and what that was.

    Several empty lines become one, so that what was cut leaves none.
    """
    text = text.replace("\r\n", "\n")
    comments = tuple(
        hidden("comment", words)
        for each in _COMMENT.finditer(text)
        if (words := each[1] or each[2] or "").strip()
    )
    text = _COMMENT.sub("", text)
    elements = _Elements(text)
    text = elements.seen()
    definitions = tuple(
        hidden("definition of a link", each[1]) for each in _DEFINITION.finditer(text)
    )
    text = _DEFINITION.sub("", text)
    return _EMPTY.sub("\n\n", text), (*comments, *elements.found, *definitions)


class _Open(NamedTuple):
    """An element that has begun: its tag, and what its text inherits."""

    tag: str
    looks: list[TextLook]
    values: Style
    reason: str
    closed: bool = False


class _Elements(HTMLParser):
    """Finds the elements of a text, and keeps what is seen of it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.text = text
        self.starts = [0, *(each.end() for each in re.finditer("\n", text))]
        self.open = [_Open("", [TextLook()], {}, "")]
        self.kept: list[str] = []
        self.found: list[HiddenText] = []
        self.at = 0

    def seen(self) -> str:
        """The text without what is hidden."""
        self.feed(self.text)
        self._upto(len(self.text))
        return "".join(self.kept)

    def _upto(self, end: int) -> None:
        """Keep or cut what stands between the last tag and a place."""
        part, self.at = self.text[self.at : end], max(self.at, end)
        if not self.open[-1].reason:
            self.kept.append(part)
        elif part.strip():
            self.found.append(hidden(self.open[-1].reason, part))

    def _tag(self, size: int) -> None:
        """Go to the tag that is read now, and, if it is in hidden text, beyond it."""
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        if self.open[-1].reason:
            self.at = begin + size

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        size = len(self.get_starttag_text() or "")
        if tag in VOID:
            self._tag(size)
            return
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        self.open.append(self._inside(tag, {name: value or "" for name, value in attrs}))
        if self.open[-1].reason:
            self.at = begin + size  # What hides goes with what it hides.

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            self._tag(len(self.get_starttag_text() or ""))
        else:
            self.handle_starttag(tag, attrs)  # `<p/>` begins an element in HTML.

    def handle_endtag(self, tag: str) -> None:
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        tags = [each.tag for each in self.open]
        self.at = (self.text.find(">", begin) + 1) or len(self.text)
        if not self.open[-1].reason:
            self.kept.append(self.text[begin : self.at])
        if tag in tags:
            del self.open[len(tags) - 1 - tags[::-1].index(tag) :]

    def _inside(self, tag: str, attributes: dict[str, str]) -> _Open:
        outer = self.open[-1]
        inline = attributes.get("style", "")
        styles = [*declared(inline), *declared(inline, important=True)]
        for name, meant in (("color", "color"), ("bgcolor", "background-color")):
            value = attributes.get(name, "").strip().lower()
            styles.insert(0, {meant: f"#{value}" if re.fullmatch("[0-9a-f]{6}", value) else value})
        given, values = with_values([each for each in styles if any(each.values())], outer.values)
        looks = looks_within(outer.looks, given)
        closed = tag in ("details", "dialog") and "open" not in attributes
        reason = "not shown" if tag in NEVER else unseen_because(attributes, given)
        # Text of a closed element is hidden, and its summary is not.
        shown = tag == "summary" and outer.closed
        gone = outer.reason if outer.reason not in _LOOKS and not shown else ""
        reason = gone or reason or reason_of(looks) or ("closed" if closed else "")
        return _Open(tag, looks, values, reason, closed and not gone)


_LOOKS = ("visibility: hidden", "the colour of the background")
"""Reasons that an element inside may end."""
