"""Writes the tables of runs as one CSV file, a row a cell:

    python tools/tables.py runs/suite/tables.md docs/results/suite.csv
    python tools/tables.py runs/suite/{tables.md,differences.json} --page docs/suite.md suite.csv

    run      the folder of the run
    table    the headings that the table stands under
    row      as many of the row's first cells as tell the rows apart
    column   the column's heading
    value    the cell; where it is 0.95 [0.89, 0.98], 0.95
    low      lower end of this interval, or of the one in the next cell
    high     upper end
    n        how many pairs, prompts or values the row is of, where the table has it

Verdicts and lists are taken too: warnings, which say what is undefined and why, and what the names
mean. Of a run's differences those of CMA are taken, with their simultaneous intervals. On a page,
what stands between `<!-- table: NAME -->` and `<!-- end -->` becomes the run's table of that name,
or, for `Which to run`, the sentences that the run begins with.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

N_COLUMNS = ("n", "test pairs")
NUMBER = r"[-+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?"
INTERVAL = re.compile(rf"[†‡]?({NUMBER})? ?\[({NUMBER}), ({NUMBER})\]")
FROM_RUN = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


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


def differences_of(run: str, text: str) -> Iterator[Cell]:
    """The differences of CMA in a run's `differences.json`."""
    for row in json.loads(text):
        if row["area"] == "cma":
            table = f"differences of CMA, {row['task']}, {row['model']}"
            ends = (f"{row[name]:.4g}" for name in ("difference", "low", "high"))
            yield Cell(run, table, row["a"], f"less {row['b']}", *ends)


def with_tables(page: str, text: str) -> str:
    """A page with the tables of a run's Markdown in place of those that it had."""

    def block(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name == "Which to run":
            first = re.split(r"^(?:#|\*\*)", text, maxsplit=1, flags=re.MULTILINE)[0]
            sentences = " ".join(filter(None, first.splitlines()))
            if not sentences:
                sys.exit("tables.py: the run begins with no sentence on the method to run.")
            return f"{start}\n> {sentences}\n\n{end}"
        rows = r"\n+((?:\|.*\n)+(?:\n[^#|\n].*\n)?)"  # and a caption, if there is one
        if not (found := re.search(rf"^#+ {re.escape(name)}{rows}", text, re.MULTILINE)):
            sys.exit(f"tables.py: the run has no table {name!r}, which the page asks for.")
        return f"{start}\n{found[1]}\n{end}"

    return FROM_RUN.sub(block, page)


def main() -> None:
    """Reads the runs' files, and writes the CSV file and the page."""
    parser = argparse.ArgumentParser(description="Writes the tables of runs as one CSV file.")
    parser.add_argument("runs", nargs="+", type=Path, help="tables.md or differences.json of runs")
    parser.add_argument("target", type=Path, help="the .csv file")
    parser.add_argument("--page", type=Path, help="a page that has tables of the first run")
    given = parser.parse_args()
    if given.target.suffix != ".csv":
        sys.exit(f"tables.py writes a .csv file; got {given.target}.")
    with given.target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Cell._fields)
        for path in given.runs:
            cells = differences_of if path.suffix == ".json" else cells_of
            writer.writerows(cells(path.parent.name, path.read_text("utf-8")))
    if given.page:
        page = given.page.read_text("utf-8")
        given.page.write_text(with_tables(page, given.runs[0].read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
