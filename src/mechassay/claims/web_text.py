"""The text of a web page, without what a reader cannot see and without what stands around it.

Hidden elements are cut from the tree first, by their attributes, their own style and the rules of
the page's `<style>` elements: display: none, visibility: hidden, opacity 0, letters below 2 px,
boxes without room, places off the page, the colour of the background, `hidden`, `aria-hidden`,
`<template>` and `<noscript>`, and comments. What one cut leaves empty goes too, so that what
trafilatura then sees is the page as it is without them. trafilatura keeps the article and drops
menus and footers.

Style sheets in files of their own are not loaded: a class that only such a sheet hides is seen.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from mechassay.claims.hidden_text import (
    SMALLEST,
    HiddenText,
    hidden,
    merged,
    same_colour,
    without_shapeless,
)
from mechassay.claims.pdf_text import NO_TEXT, FileText
from mechassay.errors import BadFile, MissingExtra, first_line

Style = Mapping[str, str]
Colour = tuple[int, int, int]
UNSEEN = ("template", "noscript", "script", "style", "head", "title", "meta", "link", "svg")
"""Elements whose text no browser shows as text."""
MUTE = ("script", "style", "head", "title", "meta", "link", "svg")
"""Those whose text is none that anybody wrote for readers: it is not counted as hidden."""
OFF = 400
"""Pixels that a box is moved by to be off the page."""
_RULE = re.compile(r"([^{}@;]+)\{([^{}]*)\}")
_AT = re.compile(r"@[^{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")
_NUMBER = re.compile(r"(-?\d*\.?\d+)\s*(px|pt|em|rem|%|vw|vh)?\Z")
_RGB = re.compile(r"rgba?\(([^)]*)\)")


def web_text(content: bytes, name: str) -> FileText:
    """The article of an HTML page, as one page of text.

    Raises:
        BadFile: it is no HTML, or has no text that can be seen.
        MissingExtra: what reads it is not installed.
    """
    html, trafilatura = _needed("lxml.html", name), _needed("trafilatura", name)
    try:
        root = html.document_fromstring(_decoded(content))
    except (ValueError, import_module("lxml.etree").LxmlError) as error:
        raise BadFile(f"{name}: is no HTML that can be read ({first_line(error)}).") from None
    title = " ".join("".join(root.xpath("//title[1]//text()")).split())
    cut = _Unseen(_rules(root)).cut(root)
    heading = " ".join("".join(root.xpath("(//h1)[1]//text()")).split())
    every = "\n".join(root.itertext())
    article = _article(trafilatura, root)
    told = f"trafilatura {trafilatura.__version__}" if article else f"lxml {_version()}, all text"
    text, shapeless = without_shapeless(_spaced(article or every))
    if not text:
        raise BadFile(f"{name}: {NO_TEXT}{' that can be seen' * bool(cut)}.")
    return FileText((text,), 1, heading or title, told, merged([*cut, *shapeless]))


def _article(trafilatura: Any, root: Any) -> str:
    """The article of a page; "" if it is too short for one to be told."""
    logger = logging.getLogger("trafilatura")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # It warns of what is told here by the extractor's name.
    try:
        text = trafilatura.extract(
            root, output_format="txt", include_comments=False, favor_recall=True
        )
    finally:
        logger.setLevel(level)
    return text or ""


def _version() -> str:
    return ".".join(map(str, import_module("lxml.etree").LXML_VERSION[:3]))


def _needed(package: str, name: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtra(f"Reading {name}", package.partition(".")[0], "papers") from None


def _decoded(content: bytes) -> str:
    """A page as text: by its mark, by what it declares, as UTF-8, else as pages used to be."""
    declared = re.search(rb"charset=[\"']?([\w-]+)", content[:2048], re.I)
    names = ["utf-8-sig", "windows-1252"]
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        names.insert(0, "utf-16")
    elif declared:
        names.insert(0, declared[1].decode())
    for name in names:
        with suppress(LookupError, UnicodeDecodeError):
            # lxml refuses text that declares how its bytes are to be read.
            return re.sub(r"^\s*<\?xml[^>]*\?>", "", content.decode(name))
    return content.decode("utf-8", "replace")


def _spaced(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


# Styles


def _declared(text: str) -> dict[str, str]:
    """Declarations by their property: "color: red" is {"color": "red"}."""
    pairs = (each.partition(":") for each in text.split(";"))
    values = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    return {name: value.removesuffix("!important").strip() for name, value in values.items()}


def _rules(root: Any) -> list[tuple[Any, dict[str, str]]]:
    """Of each rule of the page's own sheets, what selects elements and what it declares."""
    select = import_module("lxml.cssselect")
    wrong = import_module("cssselect").SelectorError
    found: list[tuple[Any, dict[str, str]]] = []
    for sheet in root.xpath("//style"):
        text = re.sub(r"/\*.*?\*/", "", sheet.text or "", flags=re.S)
        for selectors, body in _RULE.findall(_AT.sub("", text)):
            for selector in selectors.split(","):
                try:
                    found.append((select.CSSSelector(selector.strip()), _declared(body)))
                except wrong:
                    continue  # States and parts of elements (`a:hover`, `p::before`) hide no text.
    return found


def _colour(value: str) -> Colour | None:
    """Red, green and blue to 255; None if it names none."""
    found = _RGB.search(value)
    if found:
        parts = [float(each) for each in re.findall(r"\d*\.?\d+", found[1])]
        return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) >= 3 else None
    colours = import_module("matplotlib.colors")
    for word in value.split():
        if word != "none" and colours.is_color_like(word) and not word[0].isdigit():
            red, green, blue = (round(255 * part) for part in colours.to_rgb(word))
            return red, green, blue
    return None


def _see_through(value: str) -> bool:
    found = _RGB.search(value)
    parts = re.findall(r"\d*\.?\d+", found[1]) if found else []
    return value == "transparent" or (len(parts) == 4 and float(parts[3]) <= 0.05)


def _pixels(value: str, whole: float) -> float | None:
    """A length in pixels, of a whole for shares of it; None if it is none."""
    found = _NUMBER.match(value)
    if not found:
        return None
    scale = {"pt": 4 / 3, "em": whole, "rem": 16.0, "%": whole / 100, "vw": 12.0, "vh": 8.0}
    return float(found[1]) * scale.get(found[2] or "px", 1.0)


@dataclass(frozen=True)
class _TextLook:
    """What an element's text inherits."""

    colour: Colour = (0, 0, 0)
    behind: Colour | None = (255, 255, 255)
    size: float = 16.0
    visible: bool = True
    see_through: bool = False

    def within(self, style: Style) -> _TextLook:
        """The look inside an element of this style."""
        look = self
        if "color" in style:
            through = _see_through(style["color"])
            look = replace(look, colour=_colour(style["color"]) or look.colour, see_through=through)
        for name in ("background", "background-color"):
            if name in style and not _see_through(style[name]):
                plain = "url(" not in style[name] and "gradient" not in style[name]
                look = replace(look, behind=(_colour(style[name]) or look.behind) if plain else None)
        size = _pixels(style.get("font-size", ""), look.size)
        if size is not None:
            look = replace(look, size=size)
        if "visibility" in style:
            look = replace(look, visible=style["visibility"] not in ("hidden", "collapse"))
        return look

    @property
    def reason(self) -> str:
        """Why text cannot be seen; "" if it can."""
        if not self.visible:
            return "visibility: hidden"
        if self.size < SMALLEST:
            return f"smaller than {SMALLEST:g} pixels"
        if self.see_through:
            return "transparent"
        if self.behind is not None and same_colour(self.colour, self.behind):
            return "the colour of the background"
        return ""


def _gone(element: Any, style: Style) -> str:
    """Why an element cannot be seen with all that is in it; "" if it can."""
    if "hidden" in element.attrib:
        return "hidden"
    if element.get("aria-hidden", "").lower() == "true":
        return "aria-hidden"
    if style.get("display") == "none":
        return "display: none"
    opacity = _pixels(style.get("opacity", "1"), 1.0)
    if opacity is not None and opacity <= 0.05:
        return "transparent"
    if style.get("overflow") in ("hidden", "clip"):
        sides = [_pixels(style.get(name, ""), 100.0) for name in ("width", "height", "max-height")]
        if any(side is not None and side < SMALLEST for side in sides):
            return "a box without room"
    if re.match(r"rect\(\s*(?:0|1px)\D+(?:0|1px)\D+", style.get("clip", "")):
        return "a box without room"
    moved = [style.get(name, "") for name in ("text-indent", "left", "top", "margin-left")]
    if any((_pixels(each, 100.0) or 0) <= -OFF for each in moved):
        return "off the page"
    return ""


class _Unseen:
    """Cuts what cannot be seen from a tree, and keeps what it was."""

    def __init__(self, rules: list[tuple[Any, dict[str, str]]]) -> None:
        self.rules = rules
        self.styles: dict[Any, dict[str, str]] = {}
        self.found: list[HiddenText] = []

    def cut(self, root: Any) -> list[HiddenText]:
        """Cut it; what it was, in the order of the page."""
        for select, declared in self.rules:
            for element in select(root):
                self.styles.setdefault(element, {}).update(declared)
        self._walk(root, _TextLook())
        for element in root.iter():
            # What is left is seen: trafilatura drops some of it by such a style.
            element.attrib.pop("style", None)
        return self.found

    def _walk(self, element: Any, look: _TextLook) -> None:
        style = self._style(element)
        look = look.within(style)
        self._own(element, look)
        for child in list(element):
            if not isinstance(child.tag, str):
                self._drop(child, "comment", child.text or "")
                continue
            gone = "not shown" if child.tag in UNSEEN else _gone(child, self._style(child))
            if gone:
                words = "" if child.tag in MUTE else "".join(child.itertext())
                self._drop(child, gone, words)
                continue
            before = len(self.found)
            self._walk(child, look)
            if len(self.found) > before and not len(child) and not (child.text or "").strip():
                self._drop(child, "", "")

    def _style(self, element: Any) -> dict[str, str]:
        return {**self.styles.get(element, {}), **_declared(element.get("style", ""))}

    def _own(self, element: Any, look: _TextLook) -> None:
        """Cut an element's own text, and what stands between its children, if it is not seen."""
        reason = look.reason
        if not reason:
            return
        self._note(reason, element.text or "")
        element.text = ""
        for child in element:
            self._note(reason, child.tail or "")
            child.tail = ""

    def _note(self, reason: str, words: str) -> None:
        if words.strip():
            self.found.append(hidden(reason, words))

    def _drop(self, element: Any, reason: str, words: str) -> None:
        """Remove an element; what stands behind it stays, after what stood before it."""
        self._note(reason, words)
        parent, before = element.getparent(), element.getprevious()
        tail = element.tail or ""
        if before is not None:
            before.tail = _joined(before.tail or "", tail)
        else:
            parent.text = _joined(parent.text or "", tail)
        element.tail = None
        parent.remove(element)


def _joined(before: str, after: str) -> str:
    """Two texts that nothing stands between any more: white space at their seam is one."""
    if before[-1:].isspace() and after[:1].isspace():
        return before + after.lstrip()
    return before + after
