"""Reports of runs: the page of a run by its kind, the page of any records, and an index of runs.

Each kind of record has a title, tables and sections (`Kind`). Records of a kind that is not
known are shown with their measures, checks, tables and values.

`write_index` writes one page over a folder, with a row for each record of each run below it. A
row has the record's first result with its interval, what random rankings have, and leads to the
run's report. Rows are sorted by a click on a heading and filtered by what is typed. That is the
page's only script, and the page allows no other (its hash stands in the
Content-Security-Policy).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from rich.console import Console

from mechassay.errors import BadFile
from mechassay.prompts.tokenization import alignment_notes
from mechassay.results.console import print_tables, standard_output
from mechassay.results.curves import CONTROL, control_name
from mechassay.results.page import (
    Block,
    Column,
    Command,
    Fold,
    Heading,
    Notice,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
    markdown,
    render,
)
from mechassay.results.reading import read_record
from mechassay.results.records import Failure, Measure, Record, page_of
from mechassay.results.sections import (
    checks_section,
    failed_checks,
    framed,
    meanings,
    measured,
    measures_table,
    tables_section,
)
from mechassay.results.text import measure_text
from mechassay.utils.display import counted, number
from mechassay.utils.files import csv_text, no_folder, write_text


def _page_of(report: Report, kind: str) -> Page:
    """Return the page of a kind; if none is given, the page of the records' kind or of any kind."""
    kinds = {kind} if kind else {record.kind for record in report.records}
    return page_of(kinds.pop() if len(kinds) == 1 else "")


def _sections(report: Report, kind: str) -> list[Section]:
    """Return the sections of a report's page, which begins with the models of a transfer."""
    sections = _page_of(report, kind).sections(report)
    texts = [Text(text, "verdict") for text in report.transfers]
    if not texts or not sections or sections[0].title:
        return [Section("", tuple(texts)), *sections] if texts else sections
    first, *others = sections
    return [replace(first, blocks=(*texts, *first.blocks)), *others]


def write_page(
    path: Path, report: Report, *, title: str = "", kind: str = "", command: str = ""
) -> Path:
    """Write the page of a run as one self-contained HTML file.

    Args:
        path: of the file; its folder is made.
        title: of the page; by default the title of its kind.
        kind: of the records, where there may be none.
        command: that makes this run again; it is shown below the verdict.

    Returns:
        The path.
    """
    page, sections = _page_of(report, kind), _sections(report, kind)
    if command:
        again = Fold("The command that makes this run again", (Command(command),))
        # At the end of the first section, or in one of its own if that has a title.
        if sections and not sections[0].title:
            first, *others = sections
            sections = [replace(first, blocks=(*first.blocks, again)), *others]
        else:
            sections = [Section("", (again,)), *sections]
    html = render(title or page.title(report), sections, about=_about(report.records))
    return write_text(path, html)


def _about(records: Sequence[Record]) -> list[str]:
    """Name the weights of packaged and converted models, say if the measured content is not known,
    and add `alignment_lines`.
    """
    models = {record.model.name: record.model for record in records}
    weights = [
        f"{name}: {model.args['checkpoint']}."
        for name, model in models.items()
        if model.args.get("checkpoint")
    ]
    measured = [record for record in records if record.cell and "model" in record.specs]
    if any(not record.cell_digest for record in measured):
        weights.append(
            "Which weights and files were measured is not known: records of an earlier version have"
            " no identities."
        )
    return [*weights, *notes_on(records)]


def notes_on(records: Sequence[Record]) -> list[str]:
    """Return notes on the content of all records: models that are not known, equal content, what
    is compared and how, and what was left out of files.
    """
    return [
        *unknown_models(records),
        *equal_content_lines(records),
        *pairs_lines(records),
        *alignment_lines(records),
    ]


COMPARED = "compared"
SAID_FIRST = (
    *("columns", COMPARED, "token ids", "fewer pairs"),
    *("exchanged counterfactuals", "shared counterfactuals"),
)
"""Notes on pairs that stand above the first table (`tasks.task`, `tasks.file_splits`)."""
MOST_COMPARED = 2
"""Tasks for which a page begins with the tokens that the first pair compares."""


def pairs_lines(records: Sequence[Record]) -> list[str]:
    """Return sentences on the pairs of records: the tokens that the first pair of a task compares,
    notes on files, and the number of rows of a file that were dropped.
    """
    compared: dict[str, str] = {}
    lines: dict[str, None] = {}
    for record in records:
        dropped, kept, task = Counter[str](), 0, ""
        for data in sorted(record.data.values(), key=lambda own: own.split != "test"):
            if COMPARED in data.notes:
                compared.setdefault(data.task, f"{data.task}: {data.notes[COMPARED]}.")
            notes = [data.notes[x] for x in SAID_FIRST if x != COMPARED and x in data.notes]
            lines |= dict.fromkeys(f"{data.task}: {note}." for note in notes)
            if "file" in data.settings:
                dropped, kept, task = dropped + Counter(data.dropped), kept + data.kept, data.task
        if n := dropped.total():
            [(reason, most)] = dropped.most_common(1)
            count = "" if most == n else f"{most:,} for "
            lines[f"{task}: {n:,} of {n + kept:,} rows dropped: {count}{reason}."] = None
    return [*list(compared.values())[:MOST_COMPARED], *lines]


def unknown_models(records: Sequence[Record]) -> list[str]:
    """Name what was found in a model that is not known."""
    names = dict.fromkeys(
        what for record in records for what, there in record.found_in.items() if not there
    )
    text = f"It is not known in which model these were found: {', '.join(names)}."
    return [text] if names else []


def equal_content_lines(records: Sequence[Record]) -> list[str]:
    """Name the models, and the tasks, that have equal content under different names."""
    lines: list[str] = []
    for role, what, parts in (("model", "weights", MODEL_PARTS), ("task", "pairs", ("content",))):
        names: dict[tuple[str, ...], dict[str, None]] = {}
        for record in records:
            identity, name = record.identities.get(role, {}), record.cell.get(role, "")
            if identity and name:
                content = tuple(identity.get(part, "") for part in parts)
                names.setdefault(content, {})[name] = None
        for first, *others in map(list, names.values()):
            lines += [f"{', '.join(others)}: the same {what} as {first}."] if others else []
    return lines


def alignment_lines(records: Sequence[Record]) -> list[str]:
    """Say that answers of several tokens are compared by their first token, and that prompts begin
    with special tokens, if the records' pairs are so.
    """
    chosen = {data.hash: data for record in records for data in record.data.values()}
    counts = sum((Counter(data.alignment) for data in chosen.values()), Counter[str]())
    n = sum(data.kept for data in chosen.values() if data.alignment)
    notes = alignment_notes(counts, n)
    lines = [notes[how] for how in ("partial", "special") if how in notes]
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def markdown_page(report: Report, kind: str = "") -> str:
    """The words and tables of the page as Markdown; its first sentence is the answer."""
    lines = [line for text in _about(report.records) for line in (text, "")]
    return "\n".join([markdown(_sections(report, kind)), *lines])


def write_tables(path: Path, report: Report, kind: str = "") -> None:
    """Write the words and tables of the page as Markdown, and beside it, as CSV, every measure
    of every record, a line each.
    """
    write_text(path, markdown_page(report, kind))
    rows: list[Mapping[str, Any]] = []
    for record in report.records:
        columns = record.columns()
        columns = {"measure": columns.pop("name"), **columns}
        rows += [
            {**record.cell, **dict(zip(columns, values, strict=True))}
            for values in zip(*columns.values(), strict=True)
        ]
    head = list(dict.fromkeys(name for row in rows for name in row))
    write_text(path.with_suffix(".csv"), csv_text(head, rows))


def write_each_table(folder: Path, report: Report, kind: str = "") -> list[Path]:
    """Write every table of the page, folded ones too, as CSV and as LaTeX (booktabs).

    Returns:
        The LaTeX files, in the order of the page.
    """
    page, written = _page_of(report, kind), list[Path]()
    tables = [
        table
        for section in page.sections(report)
        for table in _tables_in(section.blocks, section.title)
    ]
    unfolded = {table.texts for table in tables}
    tables += [table for table in page.tables(report) if table.texts not in unfolded]
    for place, table in enumerate(filter(lambda table: table.rows, tables), 1):
        words = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")[:60].rstrip("-")
        target = folder / f"{place:02d}-{words or 'table'}.tex"
        write_text(target.with_suffix(".csv"), table.csv())
        written.append(write_text(target, table.latex()))
    return written


def _tables_in(blocks: Sequence[Block], title: str) -> Iterator[TextTable]:
    """The tables of blocks, each with a title: its own, or the nearest heading above it."""
    for block in blocks:
        match block:
            case Heading():
                title = block.text
            case TextTable():
                yield replace(block, title=block.title or title)
            case Fold():
                yield from _tables_in(block.blocks, block.title)
            case _:
                pass


def print_report(report: Report, console: Console | None = None, kind: str = "") -> None:
    """Print the terminal's tables of the records' kind; to standard output without a console."""
    print_tables(_page_of(report, kind).terminal_tables(report), console or standard_output())


MODEL_PARTS = ("weights", "config", "tokenizer", "dtype")
"""The digests of a model that are equal if the content is equal."""
REPORT = "report.html"
HEADINGS = (
    *("run", "kind", "model", "task", "method", "result"),
    *("value", "control", "n", "date", "checks"),
)
NUMERIC = ("value", "n")

SCRIPT = """
const rows = () => [...document.querySelectorAll("tbody tr")];
const key = (row, i) => row.cells[i]?.innerText.trim() ?? "";
const number = text => parseFloat(text.replace(/,/g, ""));
document.querySelectorAll("thead th").forEach((head, i) => {
  let up = false;
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    up = !up;
    document.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const sorted = rows().sort((a, b) => {
      const [x, y] = [key(a, i), key(b, i)], [p, q] = [number(x), number(y)];
      const numeric = head.className === "numeric";
      const order = numeric
        ? (isNaN(p) - isNaN(q)) * (up ? 1 : -1) || (p - q || 0) : x.localeCompare(y);
      return up ? order : -order;
    });
    document.querySelector("tbody").append(...sorted);
  });
});
document.querySelector("#filter").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\\s+/);
  for (const row of rows())
    row.hidden = !words.every(word => row.innerText.toLowerCase().includes(word));
});
"""
FILTER = Markup('<input id="filter" type="search" placeholder="Filter" aria-label="Filter rows">')


def write_index(folder: Path) -> Path:
    """Write index.html over all runs in a folder and the folders below it.

    Raises:
        BadFile: there is no such folder.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder}: {no_folder(folder)}.")
    reports = list(reports_below(folder))
    rows = [row for report in reports for row in _rows(report, folder)]
    columns = tuple(Column(name, name in NUMERIC) for name in HEADINGS)
    counts = f"{counted(len(rows), 'result')} of {counted(len(reports), 'run')}."
    wrong = [(text, "") for report in reports for text in report.unreadable]
    blocks: list[Block] = [Text(counts, "verdict")]
    blocks += [Notice("Files that cannot be read", tuple(wrong))] if wrong else []
    section = Section("", (*blocks, TextTable("", columns, tuple(rows))))
    page = render(f"Runs in {folder.resolve().name}", [section], script=SCRIPT, top=FILTER)
    return write_text(folder / "index.html", page)


def reports_below(folder: Path) -> Iterator[Report]:
    """Read the runs in a folder and below it: where there is a plan.json and a record or a
    failure.
    """
    for root, folders, files in os.walk(folder):
        folders.sort()
        if "plan.json" not in files:
            continue
        report = _read(Path(root))
        if report.records or report.failures or report.unreadable:
            yield report


def _read(folder: Path) -> Report:
    """Read all records and failures of a folder."""
    records: list[Record] = []
    failures: list[Failure] = []
    unreadable: list[str] = []
    for file in sorted((folder / "records").rglob("*.json")):
        try:
            records.append(read_record(file))
        except BadFile as error:
            unreadable.append(str(error))
    for file in sorted((folder / "failures").rglob("*.json")):
        try:
            failures.append(Failure.model_validate_json(file.read_bytes()))
        except ValueError as error:
            unreadable.append(f"{file}: not a failure ({str(error).splitlines()[0]}).")
    return Report(records, failures, folder=folder, unreadable=unreadable)


def _controls(record: Record, result: Measure | None) -> str:
    """What controls have of a result."""
    of = [] if result is None else [m for m in record.measures if m.name == result.name]
    kinds = [(m.of.removeprefix(CONTROL), m) for m in of if m.of.startswith(CONTROL)]
    return "; ".join(f"{control_name(kind)} {number(m.value, m.low, m.high)}" for kind, m in kinds)


def _rows(report: Report, folder: Path) -> Iterator[Row]:
    name = report.folder.relative_to(folder).as_posix()
    link = Markup('<a href="{}">{}</a>').format(quote(f"{name}/{REPORT}"), name)
    label = link if (report.folder / REPORT).is_file() else name
    for record in report.records:
        names = {role: record.cell.get(role, spec.name) for role, spec in record.specs.items()}
        result = next((m for m in record.measures if m.of == "result"), None)
        wrong = len(failed_checks(record))
        heading = "" if result is None else ", ".join(filter(None, (result.heading, result.unit)))
        cells = (
            label,
            record.kind,
            *(names.get(role, "") for role in ("model", "task", "method")),
            heading,
            measured(result),
            _controls(record, result),
            f"{record.n:,}",
            record.provenance.created[:10],
            f"{wrong} failed" if wrong else "passed" if record.checks else "",
        )
        yield Row(cells, "failure" if wrong else "")
    for failure in report.failures:
        names = tuple(failure.cell.get(role, "") for role in ("model", "task", "method"))
        text = f"{failure.error}: {failure.message}"
        yield Row((label, failure.status, *names, text), "failure")


class GenericPage(Page):
    """Records of any kind."""

    def title(self, report: Report) -> str:
        kinds = dict.fromkeys(record.kind for record in report.records)
        return f"Results: {', '.join(kinds) or 'none'}"

    def tables(self, report: Report) -> list[TextTable]:
        return [measures_table(report)]

    def sentences(self, records: Sequence[Record]) -> list[str]:
        """What the page begins with: the first measure of the first record."""
        return [_verdict(records)]

    def sections(self, report: Report) -> list[Section]:
        """Verdict, failing checks and warnings; measures, checks, tables; facts; values."""
        records = report.records
        return framed(
            report,
            [Text(text, "verdict") for text in self.sentences(records)],
            [Section("Measures", (measures_table(report),))],
            folded=[*checks_section(records), *tables_section(records)],
            reading=meanings(records),
        )


def _verdict(records: Sequence[Record]) -> str:
    """The first measure of the first record, in a sentence."""
    measures = [m for record in records[:1] for m in record.measures if m.of == "result"]
    if not measures:
        return "There are no results."
    record, headline = records[0], measures[0]
    of = " ".join(filter(None, (record.model.name, record.task.name, record.method.name)))
    more = f", the first of {len(records)} results" if len(records) > 1 else ""
    text = f"{headline.heading} {measure_text(record, headline.name)}"
    return f"{of}{more}: {text}{f' {headline.unit}' if headline.unit else ''}."
