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
from contextlib import suppress
from importlib import import_module
from typing import Any

from mechassay.claims.file_text import NO_TEXT, FileText, needed
from mechassay.claims.hidden_text import (
    HiddenText,
    hidden,
    merged,
    without_shapeless,
)
from mechassay.claims.web_style import TextLook, declared, unseen_because
from mechassay.errors import BadFile, first_line

UNSEEN = ("template", "noscript", "script", "style", "head", "title", "meta", "link")
"""Elements whose text no browser shows as text."""
MUTE = ("script", "style", "head", "title", "meta", "link")
"""Those whose text is none that anybody wrote for readers: it is not counted as hidden."""
_RULE = re.compile(r"([^{}@;]+)\{([^{}]*)\}")
_AT = re.compile(r"@[^{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")


def web_text(content: bytes, name: str) -> FileText:
    """The article of an HTML page, as one page of text.

    Raises:
        BadFile: it is no HTML, or has no text that can be seen.
        MissingExtra: what reads it is not installed.
    """
    modules = ("lxml.html", "trafilatura", "lxml.cssselect")
    html, trafilatura, select = (needed(each, name, "papers") for each in modules)
    try:
        root = html.document_fromstring(_decoded(content))
    except (ValueError, import_module("lxml.etree").LxmlError) as error:
        raise BadFile(f"{name}: is no HTML that can be read ({first_line(error)}).") from None
    title = " ".join("".join(root.xpath("//title[1]//text()")).split())
    cut = _Unseen(_rules(root, select)).cut(root)
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


def _rules(root: Any, select: Any) -> list[tuple[Any, dict[str, str]]]:
    """Of each rule of the page's own sheets, what selects elements and what it declares."""
    found: list[tuple[Any, dict[str, str]]] = []
    for sheet in root.xpath("//style"):
        text = re.sub(r"/\*.*?\*/", "", sheet.text or "", flags=re.S)
        for selectors, body in _RULE.findall(_AT.sub("", text)):
            for selector in selectors.split(","):
                try:
                    found.append((select.CSSSelector(selector.strip()), declared(body)))
                except select.SelectorError:
                    continue  # States and parts of elements (`a:hover`, `p::before`) hide no text.
    return found


class _Unseen:
    """Cuts what cannot be seen from a tree, and keeps what it was."""

    def __init__(self, rules: list[tuple[Any, dict[str, str]]]) -> None:
        self.rules = rules
        self.styles: dict[Any, dict[str, str]] = {}
        self.found: list[HiddenText] = []

    def cut(self, root: Any) -> list[HiddenText]:
        """Cut it; what it was, in the order of the page."""
        for select, style in self.rules:
            for element in select(root):
                self.styles.setdefault(element, {}).update(style)
        self._walk(root, TextLook())
        for element in root.iter():
            # What is left is seen: trafilatura drops some of it by such a style.
            element.attrib.pop("style", None)
        return self.found

    def _walk(self, element: Any, look: TextLook) -> None:
        style = self._style(element)
        look = look.within(style)
        self._own(element, look)
        for child in list(element):
            if not isinstance(child.tag, str):
                self._drop(child, "comment", child.text or "")
                continue
            gone = "not shown" if child.tag in UNSEEN else unseen_because(child, self._style(child))
            if gone:
                words = "" if child.tag in MUTE else "".join(child.itertext())
                self._drop(child, gone, words)
                continue
            before = len(self.found)
            self._walk(child, look)
            if len(self.found) > before and not len(child) and not (child.text or "").strip():
                self._drop(child, "", "")

    def _style(self, element: Any) -> dict[str, str]:
        return {**self.styles.get(element, {}), **declared(element.get("style", ""))}

    def _own(self, element: Any, look: TextLook) -> None:
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
