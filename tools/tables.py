"""Writes the tables of runs as one CSV file, a row a cell:

    python tools/tables.py runs/suite/tables.md docs/results/suite.csv

    run      the folder of the run
    table    the headings that the table stands under
    row      as many of the row's first cells as tell the rows apart
    column   the column's heading
    value    the cell; where it is 0.95 [0.89, 0.98], 0.95
    low      lower end of this interval, or of the one in the next cell
    high     upper end
    n        how many pairs, prompts or values the row is of, where the table has it

Verdicts and lists are taken too: warnings, which say what is undefined and why, and what the names
mean.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

N_COLUMNS = ("n", "test pairs")
NUMBER = r"[-+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?"
INTERVAL = re.compile(rf"({NUMBER})? ?\[({NUMBER}), ({NUMBER})\]")


class Cell(NamedTuple):
    """A row of the CSV file."""

    run: str
    table: str
    row: str
    column: str
    value: str
    low: str = ""
    high: str = ""
    n: str = ""


def cells_of(run: str, text: str) -> Iterator[Cell]:
    """All cells of the tables and lists in a run's Markdown."""
    headings: dict[int, str] = {}
    lines: list[list[str]] = []
    list_name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            lines.append([cell.strip().replace("\\|", "|") for cell in cells])
            continue
        if lines:
            header, _, *rows = lines
            yield from _cells_of_table(run, " / ".join(headings.values()), header, rows)
            lines = []
        if heading := re.match(r"(#+) (.*)", line):
            level = len(heading[1])
            headings = {depth: name for depth, name in headings.items() if depth < level}
            headings[level] = list_name = heading[2]
        elif name := re.fullmatch(r"\*\*(\w+)\*\*", line):
            list_name = name[1]
        elif item := re.match(r"- (?:\*\*(.+?)\*\*: )?(.*)", line):
            yield Cell(run, list_name, item[1] or "", "", item[2])
        elif line and not headings:
            yield Cell(run, "Verdict", "", "", line)


def _cells_of_table(
    run: str, name: str, header: list[str], rows: list[list[str]]
) -> Iterator[Cell]:
    n_labels = 1
    while n_labels < len(header) and len({tuple(row[:n_labels]) for row in rows}) < len(rows):
        n_labels += 1
    for row in rows:
        label = " / ".join(row[:n_labels])
        at = {column: _plain(cell) for column, cell in zip(header, row, strict=True)}
        n = next((at[column] for column in N_COLUMNS if column in at), "").replace("not said", "")
        cells: list[Cell] = []
        for column, text in list(zip(header, row, strict=True))[n_labels:]:
            interval = INTERVAL.fullmatch(text)
            if column in N_COLUMNS:
                continue
            if interval is None:
                cells.append(Cell(run, name, label, column, _plain(text), n=n))
                continue
            value, low, high = (_plain(part or "") for part in interval.groups())
            if not value and cells:
                cells[-1] = cells[-1]._replace(low=low, high=high)
            else:
                cells.append(Cell(run, name, label, column, value, low, high, n))
        yield from cells


def _plain(text: str) -> str:
    """A number without commas between its thousands; nothing for a dash; other text as it is."""
    if text == "–":
        return ""
    return text.replace(",", "") if re.fullmatch(NUMBER, text) else text


if __name__ == "__main__":
    *tables, target = map(Path, sys.argv[1:])
    if target.suffix != ".csv":
        sys.exit(f"tables.py writes a .csv file; got {target}.")
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Cell._fields)
        for path in tables:
            writer.writerows(cells_of(path.parent.name, path.read_text("utf-8")))
