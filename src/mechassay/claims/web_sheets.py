r"""The rules of style sheets, each alone: what it selects, declares, and under which condition.

tinycss2 parses them as browsers do: escapes (`di\splay`), comments, rules inside rules, and sheets
that end early. Rules inside `@media`, `@supports`, `@container`, `@layer` and `@scope` are rules.
The first three are conditions; those that only hold for paper or speech are left out, as are
`@keyframes`, `@font-face` and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tinycss2

CONDITIONS = ("media", "supports", "container")
UNWRAPPED = (*CONDITIONS, "layer", "scope")
_PAPER = re.compile(r"(?:only\s+)?(?:print|speech|aural|braille|embossed|tty)\b", re.I)


@dataclass(frozen=True)
class SheetRule:
    """What elements of a selector are told, under a condition ("" for none)."""

    selector: str
    declares: dict[str, str]
    condition: str = ""
    important: bool = False


@lru_cache(maxsize=4096)
def declared(text: str, important: bool = False) -> tuple[Mapping[str, str], ...]:
    """Declarations by their property: "color: red" is ({"color": "red"},).

    A browser ignores values that it does not know, so that of a property with several values any
    may count: each further one begins another dict.

    Args:
        important: those that are marked so, else the others.
    """
    return tuple(_declared(tinycss2.parse_blocks_contents(_tokens(text)), important))


def for_paper(query: str) -> bool:
    """Whether a media query holds for paper or speech alone."""
    return bool(query.strip()) and all(_PAPER.match(each.strip()) for each in query.split(","))


def sheet_rules(text: str, condition: str = "") -> list[SheetRule]:
    """The rules of a sheet in its order; a rule with several selectors is several."""
    rules: list[SheetRule] = []
    # Nodes that are still to be read, the next one last, with the selectors around them.
    ahead: list[tuple[Any, list[str], str]] = [
        (node, [], condition) for node in reversed(tinycss2.parse_stylesheet(_tokens(text)))
    ]
    while ahead:
        node, selectors, condition = ahead.pop()
        if node.type == "qualified-rule":
            selectors = _nested(selectors, _selectors(node.prelude))
        elif node.type == "at-rule" and node.content is not None:
            name, query = node.lower_at_keyword, _serialized(node.prelude) or ""
            if name not in UNWRAPPED or (name == "media" and for_paper(query)):
                continue
            if name in CONDITIONS:
                condition = " ".join(f"{condition} {name} {query}".lower().split())
        else:
            continue
        parse = tinycss2.parse_blocks_contents if selectors else tinycss2.parse_rule_list
        inside = parse(node.content)
        rules += [
            SheetRule(selector, declares, condition, important)
            for important in (False, True)
            for declares in _declared(inside, important)
            for selector in selectors
        ]
        ahead += [(each, selectors, condition) for each in reversed(inside)]
    return rules


def _tokens(text: str) -> list[Any]:
    return tinycss2.parse_component_value_list(text, skip_comments=True)


def _declared(nodes: Iterable[Any], important: bool) -> list[dict[str, str]]:
    styles: list[dict[str, str]] = [{}]
    for node in nodes:
        if node.type != "declaration" or node.important != important:
            continue
        name = "background-color" if node.lower_name == "background" else node.lower_name
        value = _serialized(node.value)
        if value is not None:
            if name in styles[-1]:
                styles.append({})
            styles[-1][name] = value.lower()
    return [style for style in styles if style]


def _selectors(prelude: Sequence[Any]) -> list[str]:
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    texts = [_serialized(part) for part in parts]
    # A selector that is nested too deeply may select anything.
    return ["*" if text is None else text for text in texts]


def _nested(outer: list[str], own: list[str]) -> list[str]:
    if not outer:
        return own
    return [
        inner.replace("&", around) if "&" in inner else f"{around} {inner}"
        for around in outer
        for inner in own
    ]


def _serialized(tokens: Sequence[Any]) -> str | None:
    """Tokens as text; None if brackets are nested deeper than Python's stack."""
    try:
        return tinycss2.serialize(tokens).strip()
    except RecursionError:
        return None
