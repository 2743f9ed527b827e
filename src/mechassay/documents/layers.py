"""Layers of a PDF that are switched off: marked, so that what stands on them is not read.

A layer is an optional content group (ISO 32000-1, section 8.11). It is off if the default
configuration says so, by its base state and its lists, or if its usage says that it is off where
it is viewed: readers of PDF differ in what they follow, and off in one is off here. A membership
dictionary is evaluated by its expression, else by its policy.

PDFium draws by layers and reads text without them, but tells what keys the dictionary of a piece
of marked content has. So dictionaries of what is off get a key (`OFF_LAYER`), and forms that are
on it as a whole are emptied; pypdf does both. A file without a layer that is off stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

OFF_LAYER = "OffLayer"


def mark_layers(content: bytes, pypdf: Any) -> tuple[bytes, bool]:
    """A PDF whose layers that are off are marked, and whether its layers could be read at all.

    Args:
        pypdf: the module.
    """
    try:
        reader = pypdf.PdfReader(BytesIO(content))
        if reader.is_encrypted:
            reader.decrypt("")
        if not _Layers(reader.trailer["/Root"]).any_off():
            return content, True
        writer = pypdf.PdfWriter(clone_from=reader)
        layers = _Layers(writer.root_object)
        for page in writer.pages:
            layers.mark(page.get("/Resources"), pypdf)
        made = BytesIO()
        writer.write(made)
    except (
        # What pypdf raises on files that PDFium reads.
        *(pypdf.errors.PyPdfError, AttributeError, IndexError, KeyError),
        *(OSError, RecursionError, TypeError, ValueError),
    ):
        return content, False
    return made.getvalue(), True


class _Layers:
    """The layers of a document by its catalogue."""

    def __init__(self, root: Any) -> None:
        properties = _plain(root.get("/OCProperties")) or {}
        default = _plain(properties.get("/D")) or {}
        self.groups = _items(properties, "/OCGs")
        self.base_off = default.get("/BaseState") == "/OFF"
        self.on = {_number(group) for group in _items(default, "/ON")}
        self.off = {_number(group) for group in _items(default, "/OFF")}
        self.seen: set[int] = set()

    def any_off(self) -> bool:
        """Whether a layer is off."""
        return bool(self.off) or any(map(self._is_off, self.groups))

    def _is_off(self, group: Any) -> bool:
        number, usage = _number(group), _plain(_plain(group).get("/Usage")) or {}
        view = _plain(usage.get("/View")) or {}
        off = number in self.off or (self.base_off and number not in self.on)
        return off or view.get("/ViewState") == "/OFF"

    def hides(self, content: Any) -> bool:
        """Whether a group or a membership dictionary hides what is on it."""
        own = _plain(content)
        if own.get("/Type") != "/OCMD":
            return self._is_off(content)
        if "/VE" in own:
            return not self._holds(own.raw_get("/VE"))
        groups = own.get("/OCGs")
        one = [own.raw_get("/OCGs")] if isinstance(groups, dict) else _items(own, "/OCGs")
        off = [self._is_off(group) for group in one if _plain(group) is not None]
        if not off:
            return False
        policy = own.get("/P", "/AnyOn")
        visible = {"/AllOn": not any(off), "/AnyOff": any(off), "/AllOff": all(off)}
        return not visible.get(policy, not all(off))

    def _holds(self, expression: Any) -> bool:
        """Whether an expression of a membership dictionary is true."""
        plain = _plain(expression)
        if isinstance(plain, dict):
            return not self._is_off(expression)
        how, *parts = plain
        values = [self._holds(operand) for operand in parts]
        return {"/Not": not any(values), "/Or": any(values)}.get(how, all(values))

    def mark(self, resources: Any, pypdf: Any) -> None:
        """Mark what is off in the resources of a page or a form, and of the forms in it."""
        own = _plain(resources)
        if own is None or id(own) in self.seen:
            return
        self.seen.add(id(own))
        for content in _values(own.get("/Properties")):
            plain = _plain(content)
            if hasattr(plain, "raw_get") and self.hides(content):
                plain[pypdf.generic.NameObject(f"/{OFF_LAYER}")] = pypdf.generic.BooleanObject(True)
        for form in map(_plain, _values(own.get("/XObject"))):
            if not hasattr(form, "raw_get") or form.get("/Subtype") != "/Form":
                continue
            if "/OC" in form and self.hides(form.raw_get("/OC")):
                form.set_data(b"")
            else:
                self.mark(form.get("/Resources"), pypdf)


def _plain(value: Any) -> Any:
    return value.get_object() if hasattr(value, "get_object") else value


def _number(reference: Any) -> int:
    """Of the object that a reference means; -1 of an object that stands where it is used."""
    return getattr(reference, "idnum", -1)


def _items(holder: Any, key: str) -> list[Any]:
    """References in an array, as they are."""
    return list(_plain(holder.get(key)) or ())


def _values(holder: Any) -> Iterator[Any]:
    """References in a dictionary, as they are."""
    own = _plain(holder)
    return (own.raw_get(key) for key in own or ())
