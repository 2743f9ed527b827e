"""The text of a web page, without what a reader cannot see and without what stands around it.

Hidden elements are cut from the tree first: by their attributes, their own style and the rules of
the page's `<style>` elements (`web_sheets`, `web_style`), comments, closed `<details>` but for its
summary, and elements whose text no browser shows. One rule that hides is enough, whichever wins.
Rules under a condition, such as `@media`, are tried one condition after the other, and all
together. What one cut leaves empty goes too, so that what trafilatura then sees is the page as it
is without them. trafilatura keeps the article and drops menus and footers.

Style sheets in files of their own are not loaded: a class that only such a sheet hides is seen.
"""

from __future__ import annotations

import codecs
import logging
import re
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from mechassay.claims.file_text import NO_TEXT, FileText, needed
from mechassay.claims.hidden_text import (
    HiddenText,
    hidden,
    merged,
    without_shapeless,
)
from mechassay.claims.web_sheets import declared, for_paper, sheet_rules
from mechassay.claims.web_style import (
    Style,
    TextLook,
    looks_within,
    reason_of,
    unseen_because,
    with_values,
)
from mechassay.errors import BadFile, first_line

MUTE = ("script", "style", "head", "title", "meta", "link")
"""Elements whose text is none that anybody wrote for readers: it is not counted as hidden."""
UNSEEN = (
    *MUTE,
    *("template", "noscript", "noframes", "noembed", "iframe", "canvas", "audio", "video"),
    *("datalist", "annotation", "annotation-xml"),
)
"""Elements whose text no browser shows as text."""
_CLASSES = re.compile(r":not\([^()]*\)")
_ANY_CASE = re.compile(r"\s+[is]\s*\]", re.I)
_HEX = re.compile(r"[0-9a-f]{3}(?:[0-9a-f]{3})?\Z")


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
    cut = _Unseen(root, select).cut(root)
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


class _Matched(NamedTuple):
    """What a rule declares for an element; ordered as rules win, apart from conditions."""

    important: bool
    specificity: tuple[int, int, int, int]
    place: int
    condition: str
    style: Style


def _selected(root: Any, select: Any, selector: str) -> tuple[list[Any], tuple[int, int, int, int]]:
    """The elements of a selector, and how specific it is.

    Of what is not known, `:not(...)` and the case of a value are left out, which selects more.
    States and parts of elements (`a:hover`, `p::before`) select nothing.
    """
    wider = _ANY_CASE.sub("]", _CLASSES.sub("", selector))
    for each in (selector, wider):
        with suppress(select.SelectorError):
            found = select.CSSSelector(each, translator="html")(root)
            parse = import_module("cssselect").parse
            return found, (0, *max(one.specificity() for one in parse(each)))
    return [], (0, 0, 0, 0)


class _Unseen:
    """Cuts what cannot be seen from a tree, and keeps what it was."""

    def __init__(self, root: Any, select: Any) -> None:
        self.matched: dict[Any, list[_Matched]] = {}
        self.conditions: dict[str, None] = {}
        self.holding: str | None = ""
        self.found: list[HiddenText] = []
        place = 0
        for sheet in root.xpath("//style"):
            media = sheet.get("media", "")
            if for_paper(media):
                continue
            condition = "" if media.lower() in ("", "all") else f"media {media.lower()}"
            for rule in sheet_rules(sheet.text or "", condition):
                place += 1
                elements, specificity = _selected(root, select, rule.selector)
                matched = _Matched(
                    rule.important, specificity, place, rule.condition, rule.declares
                )
                for element in elements:
                    self.matched.setdefault(element, []).append(matched)
                    self.conditions.setdefault(rule.condition)

    def cut(self, root: Any) -> list[HiddenText]:
        """Cut it; what it was, in the order of the page for each condition."""
        conditions = [each for each in self.conditions if each]
        for self.holding in ("", *conditions, *([None] if len(conditions) > 1 else [])):
            self._walk(root, self._styles(root), [TextLook()], {})
        for element in root.iter():
            # What is left is seen: trafilatura drops some of it by such a style.
            element.attrib.pop("style", None)
        return self.found

    def _walk(
        self, element: Any, styles: list[Style], looks: list[TextLook], values: Style
    ) -> None:
        styles, values = with_values(styles, values)
        looks = looks_within(looks, styles)
        closed = element.tag == "details" and "open" not in element.attrib
        self._own(element, "closed" if closed else reason_of(looks))
        summary = element.find("summary") if closed else None
        for child in list(element):
            if not isinstance(child.tag, str):
                self._drop(child, "comment", child.text or "")
                continue
            own = self._styles(child)
            gone = "not shown" if child.tag in UNSEEN else ""
            gone = gone or unseen_because(child.attrib, with_values(own, values)[0])
            if not gone and closed and child is not summary:
                gone = "closed"
            if not gone and child.tag == "dialog" and "open" not in child.attrib:
                gone = "closed"
            if gone:
                words = "" if child.tag in MUTE else "".join(child.itertext())
                self._drop(child, gone, words)
                continue
            before = len(self.found)
            self._walk(child, own, looks, values)
            if len(self.found) > before and not len(child) and not (child.text or "").strip():
                self._drop(child, "", "")

    def _styles(self, element: Any) -> list[Style]:
        """The styles of an element under the conditions that hold, the strongest last."""
        inline = element.get("style", "")
        own = ((1, 0, 0, 0), 0, "")
        found = [
            *self.matched.get(element, []),
            *(
                _Matched(important, *own, style)
                for important in (False, True)
                for style in declared(inline, important)
            ),
        ]
        holding = ("", self.holding) if self.holding is not None else self.conditions
        ordered = sorted(
            (
                each
                for each in found
                if each.style and (not each.condition or each.condition in holding)
            ),
            key=lambda each: each[:3],
        )
        return [each for each in (_hints(element), *(each.style for each in ordered)) if each]

    def _own(self, element: Any, reason: str) -> None:
        """Cut an element's own text, and what stands between its children, if it is not seen."""
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


def _hints(element: Any) -> Style:
    """What the attributes of an element say of its style."""
    names = {"bgcolor": "background-color"}
    names["text" if element.tag == "body" else "color"] = "color"
    values = {names[each]: element.get(each).strip().lower() for each in names if element.get(each)}
    return {name: f"#{each}" if _HEX.match(each) else each for name, each in values.items()}


def _joined(before: str, after: str) -> str:
    """Two texts that nothing stands between any more: white space at their seam is one."""
    if before[-1:].isspace() and after[:1].isspace():
        return before + after.lstrip()
    return before + after
