"""An index of runs: one page over a folder, a row for each record of each run below it.

A row has the record's first result with its interval, what random rankings have, and leads to the
run's report. Rows are sorted by a click on a heading and filtered by what is typed; that is the
page's only script, and the page allows no other (its hash stands in the Content-Security-Policy).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from mechassay.curves import CONTROL, control_name
from mechassay.errors import BadFile
from mechassay.files import write_text
from mechassay.records import Failure, Measure, Record, check_unedited, read_record
from mechassay.report.page import Block, Notice, Section, Text, render
from mechassay.report.sections import broken, measured
from mechassay.report.tables import Column, Row, TextTable
from mechassay.text import counted, number

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


@dataclass(frozen=True)
class Run:
    """The folder of a run: what it holds, and what of it cannot be read."""

    path: Path
    records: list[Record]
    failures: list[Failure]
    unreadable: list[str]


def write_index(folder: Path) -> Path:
    """Write index.html over all runs in a folder and the folders below it.

    Raises:
        BadFile: there is no such folder.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder}: there is no such folder.")
    runs = list(runs_below(folder))
    rows = [row for run in runs for row in _rows(run, folder)]
    columns = tuple(Column(name, name in NUMERIC) for name in HEADINGS)
    said = f"{counted(len(rows), 'result')} of {counted(len(runs), 'run')}."
    wrong = [(text, "") for run in runs for text in run.unreadable]
    blocks: list[Block] = [Text(said, "verdict")]
    blocks += [Notice("Files that cannot be read", tuple(wrong))] if wrong else []
    section = Section("", (*blocks, TextTable("", columns, tuple(rows))))
    page = render(f"Runs in {folder.resolve().name}", [section], script=SCRIPT, top=FILTER)
    return write_text(folder / "index.html", page)


def runs_below(folder: Path) -> Iterator[Run]:
    """The runs in a folder and below it: where there is a plan.json and a record or a failure."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        if "plan.json" not in files:
            continue
        run = _run(Path(root))
        if run.records or run.failures or run.unreadable:
            yield run


def _run(path: Path) -> Run:
    run = Run(path, [], [], [])
    for file in sorted((path / "records").rglob("*.json")):
        try:
            record = read_record(file)
            check_unedited(file)
            run.records.append(record)
        except BadFile as error:
            run.unreadable.append(str(error))
    for file in sorted((path / "failures").rglob("*.json")):
        try:
            run.failures.append(Failure.model_validate_json(file.read_bytes()))
        except ValueError as error:
            run.unreadable.append(f"{file}: not a failure ({str(error).splitlines()[0]}).")
    return run


def _controls(record: Record, result: Measure | None) -> str:
    """What controls have of a result."""
    of = [] if result is None else [m for m in record.measures if m.name == result.name]
    kinds = [(m.of.removeprefix(CONTROL), m) for m in of if m.of.startswith(CONTROL)]
    return "; ".join(f"{control_name(kind)} {number(m.value, m.low, m.high)}" for kind, m in kinds)


def _rows(run: Run, folder: Path) -> Iterator[Row]:
    name = run.path.relative_to(folder).as_posix()
    link = Markup('<a href="{}">{}</a>').format(quote(f"{name}/{REPORT}"), name)
    shown = link if (run.path / REPORT).is_file() else name
    for record in run.records:
        names = {role: record.cell.get(role, spec.name) for role, spec in record.specs.items()}
        result = next((m for m in record.measures if m.of == "result"), None)
        wrong = len(broken(record))
        heading = "" if result is None else ", ".join(filter(None, (result.heading, result.unit)))
        cells = (
            shown,
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
    for failure in run.failures:
        names = tuple(failure.cell.get(role, "") for role in ("model", "task", "method"))
        said = f"{failure.error}: {failure.message}"
        yield Row((shown, failure.status, *names, said), "failure")
