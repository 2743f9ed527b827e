"""How values show themselves: one line where they are printed, small HTML in a notebook.

`OneLine` is the base of values that would print their arrays. HTML is built from text that is
escaped here, and from SVGs of ours; its colours are those of the page around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from typing import Any

from mechassay.errors import MissingExtra
from mechassay.text import shortened

LONGEST = 160
"""Characters of a value's line, roughly."""


class Told(str):
    """Words that stand in a line as they are."""

    __slots__ = ()


class OneLine:
    """A dataclass that prints as one line: arrays by their shape, collections by their length."""

    def __repr__(self) -> str:
        return line(type(self).__name__, self.shown())

    def shown(self) -> dict[str, Any]:
        """What the line says: names and values."""
        if not is_dataclass(self):
            return {}
        return {each.name: getattr(self, each.name) for each in fields(self) if each.repr}


def line(kind: str, shown: Mapping[str, Any]) -> str:
    """A value in one line: `Recovery(auroc=0.91, n_true=9)`."""
    parts: list[str] = []
    for name, value in shown.items():
        if sum(map(len, parts)) > LONGEST:
            parts.append("…")
            break
        parts.append(f"{name}={briefly(value)}")
    return f"{kind}({', '.join(parts)})"


def briefly(value: Any) -> str:
    """A value within a line."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype = ", ".join(map(str, value.shape)), str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{shape}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Told):
        return f"<{value}>"
    if isinstance(value, str):
        return repr(shortened(value, 48))
    if isinstance(value, tuple) and hasattr(value, "low") and hasattr(value, "high"):
        low, high = value[:2]
        return f"[{low:.3g}, {high:.3g}]"
    if isinstance(value, Mapping):
        return f"<{len(value)} items>" if len(value) else "{}"
    if isinstance(value, Sequence | set | frozenset):
        shown = [briefly(each) for each in value] if len(value) <= 4 else []
        text = f"({', '.join(shown)}{',' * (len(shown) == 1)})"
        return text if shown and len(text) <= 48 else f"<{len(value):,} items>"
    return shortened(" ".join(repr(value).split()), 80)


# Tables


def data_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a pandas DataFrame.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise MissingExtra("to_pandas()", "pandas", "pandas") from None
    return pandas.DataFrame(dict(columns))


class Tabular:
    """A value that is a table: its columns, and those as a pandas DataFrame."""

    def columns(self) -> Mapping[str, Sequence[Any]]:
        """The columns by name, all of one length."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns())


# HTML

_CELL = 'style="text-align: left; padding: 0.15em 0.8em 0.15em 0"'


def html_facts(title: str, facts: Mapping[str, Any], *more: str) -> str:
    """A heading, names with their values, and more markup of ours below them."""
    rows = "".join(
        f"<tr><th {_CELL}>{escape(str(name))}</th><td {_CELL}>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<div><strong>{escape(title)}</strong>{table}{''.join(more)}</div>"


def html_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> str:
    """A table of text, with a note below it."""
    head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" + html_note(note)


def html_note(text: str) -> str:
    """A small line."""
    return f"<div><small>{escape(text)}</small></div>" if text else ""


def signed(value: float) -> str:
    """A score for people."""
    return "not scored" if math.isnan(value) else format(value, "+.3g")
