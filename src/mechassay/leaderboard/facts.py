"""What a page says of a cell: number, interval, controls, conditions, where it is from."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.links import Links
from mechassay.report.tables import NOTHING, TextTable
from mechassay.text import interval, number

MARK = "✓"
"""Beside a number that somebody recomputed."""


@dataclass(frozen=True)
class Repetition:
    """That somebody recomputed a record.

    Attributes:
        text: what came of it, when and where.
        value: the number of one cell of the record, and that cell.
    """

    agrees: bool
    text: str
    value: str = ""
    cell: str = ""


@dataclass(frozen=True)
class CellNotes:
    """What else a page says of a cell: facts by name, and commands that make it again."""

    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()


def plain_number(value: float) -> str:
    """A number; a dash where there is none."""
    return NOTHING if math.isnan(value) else number(value)


def numbers_markup(value: float, low: float, high: float, reason: str = "") -> Markup:
    """A number with its interval, or why it has none, under it in small print."""
    shown, bracket, ends = interval(value, low, high).partition(" [")
    small = f"[{ends}" if bracket else ""
    return _with_small(NOTHING if math.isnan(value) else shown, small, reason)


def cell_markup(cell: BoardCell, again: Sequence[Repetition], beside: Collection[str]) -> Markup:
    """A cell as a table has it: the number, under it the interval, controls, what is lacking.

    Args:
        beside: controls that do not stand in rows of their own.
    """
    shown, bracket, ends = number_text(cell, again).partition(" [")
    ends, _, said = ends.partition("]")
    said = f"[{ends}]{said}" if bracket else ""
    held = [
        f"{name}\u00a0{plain_number(value)}".replace(" ", "\u00a0")
        for name, value in cell.controls.items()
        if name in beside
    ]
    return _with_small(shown, said, ", ".join(held), cell.reason)


def _with_small(text: str, said: str, *notes: str) -> Markup:
    parts = [Markup('<span class="interval">{}</span>').format(said)] if said else []
    parts += [
        Markup('<span class="interval note">{}</span>').format(note) for note in notes if note
    ]
    return Markup(" ").join([Markup("{}").format(text), *parts])


def number_text(cell: BoardCell, again: Sequence[Repetition]) -> str:
    """A cell's number with its interval; marked if it was recomputed, or only reported."""
    text = interval(cell.value, cell.low, cell.high)
    if cell.origin == "as reported":
        return f"{text} (as reported)"
    held = any(each.agrees for each in again)
    value, bracket, rest = text.partition(" [")
    return f"{value}{' ' + MARK if held else ''}{bracket}{rest}"


def cell_facts(
    cell: BoardCell, again: Sequence[Repetition], links: Links, notes: CellNotes
) -> TextTable:
    """All that is known of a cell."""
    rows: list[tuple[str, str]] = [
        ("value", interval(cell.value, cell.low, cell.high)),
        *([("lacking", cell.reason)] if cell.reason else []),
        *([("test examples", f"{cell.examples:,}")] if cell.examples else []),
        ("n", f"{cell.n:,}, {cell.n_undefined:,} undefined"),
        *((f"control: {name}", number(value)) for name, value in cell.controls.items()),
        ("made with", cell.settings or NOTHING),
        *((name, value) for name, value in cell.conditions.items()),
        ("origin", cell.source or cell.origin),
        ("seconds", plain_number(cell.seconds)),
        ("made", cell.created or NOTHING),
        *notes.facts,
    ]
    rows += [
        ("earlier", f"{number(old.value)}, {old.created[:10]}, {old.settings or NOTHING}")
        for old in cell.earlier
    ]
    if cell.private:
        rows.append(("record", "kept back: its examples are private"))
    elif cell.sha256:
        download = Markup('<a href="{}" download>{}</a>')
        rows.append(("record", download.format(links.record(cell.sha256), cell.sha256[:16])))
    for each in again:
        value = f"{each.value}; " if each.value and each.cell == cell.full_id else ""
        rows.append(("recomputed", f"{value}{each.text}"))
    return TextTable.of("", ("", ""), rows, words=True)
