"""Reports of runs: which tables and sections a kind of record has, and the page as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from rich.console import Console

from mechassay.files import write_text
from mechassay.records import Failure, Record
from mechassay.report.console import print_tables, standard_output
from mechassay.report.kinds import (
    accuracy,
    adversarial,
    assessments,
    circuits,
    claims,
    claims_comparison,
    claims_evaluation,
    claims_vote,
    directions,
    generic,
    gym,
    gym_check,
    measure,
    paper,
    patch,
    search,
    suite,
    variables,
)
from mechassay.report.page import Command, Fold, Section, markdown, render
from mechassay.report.tables import TextTable


class Kind(Protocol):
    """What a module of `report.kinds` has."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str: ...

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]: ...

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]: ...


KINDS: dict[str, Kind] = {
    "faithfulness": circuits,
    "suite": suite,
    "accuracy": accuracy,
    "adversarial": adversarial,
    "adversarial-paper": paper,
    "adversarial-search": search,
    "alignments": variables,
    "assess": assessments,
    "claims": claims,
    "claims-comparison": claims_comparison,
    "claims-evaluation": claims_evaluation,
    "claims-vote": claims_vote,
    "directions": directions,
    "gym": gym,
    "gym-check": gym_check,
    "measure": measure,
    "patch": patch,
    "variables": variables,
}


def kind_of(records: Sequence[Record], failures: Sequence[Failure] = (), kind: str = "") -> Kind:
    """How records are shown: by the kind that is named, or their own, or as any records are.

    Other packages register modules for their kinds under the entry point group `mechassay.pages`.
    """
    kinds = {kind} if kind else {record.kind for record in records}
    if len(kinds) != 1:
        return generic
    (name,) = kinds
    if name not in KINDS:
        added = entry_points(group="mechassay.pages", name=name)
        return next((point.load() for point in added), generic)
    return suite if name == "faithfulness" and suite.is_many(records, failures) else KINDS[name]


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
    shown = kind_of(records, failures, kind)
    sections = shown.sections(records, failures, drawings)
    if command:
        sections = _with_command(sections, command)
    return write_text(path, render(title or shown.title(records, failures), sections))


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
    return write_text(path, markdown(kind_of(records, failures, kind).sections(records, failures)))


def print_report(
    records: Sequence[Record],
    failures: Sequence[Failure] = (),
    console: Console | None = None,
    kind: str = "",
) -> None:
    """Print the tables of the records' kind; to standard output if no console is given."""
    print_tables(
        kind_of(records, failures, kind).tables(records, failures), console or standard_output()
    )
