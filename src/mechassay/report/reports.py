"""Reports of runs: which tables and sections a kind of record has, and the page as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from mechassay.files import write_text
from mechassay.records import Failure, Record, page_of
from mechassay.report.console import print_tables, standard_output
from mechassay.report.page import Command, Fold, Page, Section, markdown, render


def _page_of_records(records: Sequence[Record], kind: str = "") -> Page:
    """How records are shown: by the kind that is named, or their own, or as any records are."""
    kinds = {kind} if kind else {record.kind for record in records}
    return page_of(kinds.pop() if len(kinds) == 1 else "")


def write_page(
    path: Path,
    records: Sequence[Record],
    drawings: Sequence[object] = (),
    failures: Sequence[Failure] = (),
    title: str | None = None,
    kind: str = "",
    command: str = "",
) -> Path:
    """Write records as one self-contained HTML file.

    Args:
        path: of the file; its folder is made.
        drawings: of circuits: an SVG of `draw_circuit`, or anything with svg, title and about.
            SVGs enter the page as they are.
        failures: cells that failed, shown as rows.
        kind: of the records, where there may be none.
        command: that makes this run again; it is shown below the verdict.

    Returns:
        The path.
    """
    page = _page_of_records(records, kind)
    sections = page.sections(records, failures, drawings)
    if command:
        sections = _with_command(sections, command)
    return write_text(path, render(title or page.title(records, failures), sections))


def _with_command(sections: Sequence[Section], command: str) -> list[Section]:
    """The sections, the first of which ends with the command; a first one if there is none."""
    again = Fold("The command that makes this run again", (Command(command),))
    if sections and not sections[0].title:
        first, *others = sections
        return [replace(first, blocks=(*first.blocks, again)), *others]
    return [Section("", (again,)), *sections]


def write_markdown(
    path: Path, records: Sequence[Record], failures: Sequence[Failure] = (), kind: str = ""
) -> Path:
    """Write the words and tables of the page as Markdown."""
    return write_text(path, markdown(_page_of_records(records, kind).sections(records, failures)))


def print_report(
    records: Sequence[Record],
    failures: Sequence[Failure] = (),
    console: Console | None = None,
    kind: str = "",
) -> None:
    """Print the tables of the records' kind; to standard output if no console is given."""
    tables = _page_of_records(records, kind).tables(records, failures)
    print_tables(tables, console or standard_output())
