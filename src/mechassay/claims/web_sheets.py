r"""The rules of style sheets, each alone: what it selects, declares, and under which condition.

Rules inside `@media`, `@supports`, `@container`, `@layer` and `@scope` are rules, and so are rules
inside rules. The first three are conditions; those that only hold for paper or speech are left out,
as are `@keyframes`, `@font-face` and the like. A sheet that ends early ends what is open, as in a
browser. Comments go, and characters that are written as codes (`\64`) are those characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

CONDITIONS = ("media", "supports", "container")
UNWRAPPED = (*CONDITIONS, "layer", "scope")
_TOKEN = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{};]", re.S)
_PAPER = re.compile(r"(?:only\s+)?(?:print|speech|aural|braille|embossed|tty)\b", re.I)
_CODE = re.compile(r"\\([0-9a-fA-F]{1,6})\s?")
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.S)
_COMMA = re.compile(r",(?![^()]*\))")
IMPORTANT = "!important"


@dataclass(frozen=True)
class SheetRule:
    """What elements of a selector are told, under a condition ("" for none)."""

    selector: str
    declares: dict[str, str]
    condition: str = ""
    important: bool = False


@dataclass
class _Block:
    condition: str
    selectors: list[str]
    body: list[str] = field(default_factory=list[str])
    dead: bool = False


def declared(text: str, important: bool = False) -> dict[str, str]:
    """Declarations by their property: "color: red" is {"color": "red"}.

    Args:
        important: those that are marked so, else the others.
    """
    text = _COMMENT.sub("", text)
    text = _CODE.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF) or 0xFFFD), text)
    values: dict[str, str] = {}
    for each in text.split(";"):
        name, _, value = each.partition(":")
        value = re.sub(r"!\s*important", IMPORTANT, value.strip().lower())
        if value and value.endswith(IMPORTANT) == important:
            name = name.strip().lower()
            values["background-color" if name == "background" else name] = value.removesuffix(
                IMPORTANT
            ).strip()
    return values


def for_paper(query: str) -> bool:
    """Whether a media query holds for paper or speech alone."""
    return bool(query.strip()) and all(_PAPER.match(each.strip()) for each in query.split(","))


def sheet_rules(text: str, condition: str = "") -> list[SheetRule]:
    """The rules of a sheet in its order; a rule with several selectors is several."""
    text = _COMMENT.sub("", text).replace("<!--", " ").replace("-->", " ")
    found: list[SheetRule] = []
    open_blocks = [_Block(condition, [])]
    begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] not in "{};":
            continue
        words, begin = text[begin : token.start()].strip(), token.end()
        if token[0] == "{":
            open_blocks.append(_inside(open_blocks[-1], words))
            continue
        open_blocks[-1].body.append(words)
        if token[0] == "}" and len(open_blocks) > 1:
            found += _rules_of(open_blocks.pop())
    open_blocks[-1].body.append(text[begin:])
    while len(open_blocks) > 1:
        found += _rules_of(open_blocks.pop())
    return found


def _inside(outer: _Block, words: str) -> _Block:
    """A block that begins: of a rule, or of an at-rule."""
    if not words.startswith("@"):
        own = [each.strip() for each in _COMMA.split(words)]
        return _Block(outer.condition, _nested(outer.selectors, own), dead=outer.dead)
    name, _, query = words[1:].replace("(", " (", 1).partition(" ")
    name = name.lower()
    dead = outer.dead or name not in UNWRAPPED or (name == "media" and for_paper(query))
    condition = outer.condition
    if name in CONDITIONS:
        condition = " ".join(f"{condition} {name} {query}".lower().split())
    return _Block(condition, outer.selectors, dead=dead)


def _nested(outer: list[str], own: list[str]) -> list[str]:
    if not outer:
        return own
    return [
        inner.replace("&", around) if "&" in inner else f"{around} {inner}"
        for around in outer
        for inner in own
    ]


def _rules_of(block: _Block) -> list[SheetRule]:
    if block.dead:
        return []
    text = ";".join(block.body)
    kinds = ((declared(text, important), important) for important in (False, True))
    return [
        SheetRule(selector, declares, block.condition, important)
        for declares, important in kinds
        if declares
        for selector in block.selectors
    ]
