"""Keeps the pages that the tests build, and renders them again, to compare two states of the code.

    PYTHONPATH=src:tools python -m pytest -p harvest --harvest CORPUS tests/results tests/gym
    PYTHONPATH=src python tools/harvest.py render CORPUS BEFORE
    (change the code)
    PYTHONPATH=src python tools/harvest.py render CORPUS AFTER
    diff -r BEFORE AFTER

A case is what a page is built of: the kind, records, failures and drawings, as JSON in the format
in which they are stored. The plug-in wraps title, tables, sections and draw of every kind's page;
equal cases are kept once, and of each kind the first 60. Rendering writes one file each for the
title, the tables on a console of 110 columns, the Markdown, the HTML, and the figures of
`record.plot()` of the first records; a page that refuses a case is written as its error.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.results.page import Report

MOST = 60
"""Cases kept of a kind."""
PLOTTED = 2
"""Records of a case whose figures are drawn."""
DRAWING = ("svg", "title", "about", "of", "strongest")
"""What pages read of a drawing that is no plain SVG."""


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--harvest", help="the folder of the cases")


def pytest_configure(config: Any) -> None:
    """Wrap the methods of all pages, once the tests' checks of array shapes can be imported."""
    from mechassay.results.records import PAGES

    folder = Path(config.getoption("harvest"))
    for name in PAGES.names():
        page = PAGES.load(name)
        for part in ("title", "tables", "sections", "draw"):
            setattr(page, part, _keeping(getattr(page, part), name, folder))


def _keeping(function: Callable[..., Any], kind: str, folder: Path) -> Callable[..., Any]:
    from mechassay.results.page import Report

    @functools.wraps(function)
    def kept(page: Any, shown: Any, *rest: Any, **named: Any) -> Any:
        run = Report([shown]) if function.__name__ == "draw" else shown
        keep(folder, kind, run)
        return function(page, shown, *rest, **named)

    return kept


def keep(folder: Path, kind: str, run: Report) -> None:
    """Write a case, unless it is there already or there are enough of its kind."""
    from mechassay.results.records import PAGES

    # One page shows two kinds: the records say which.
    own = {record.kind for record in run.records}
    targets = PAGES.targets()
    if len(own) == 1 and targets.get(next(iter(own))) == targets[kind]:
        (kind,) = own
    case = {
        "kind": kind,
        "records": [json.loads(record.model_dump_json()) for record in run.records],
        "failures": [json.loads(failure.model_dump_json()) for failure in run.failures],
        "drawings": [
            drawing
            if isinstance(drawing, str)
            else {key: getattr(drawing, key) for key in DRAWING if hasattr(drawing, key)}
            for drawing in run.drawings
        ],
    }
    text = json.dumps(case, sort_keys=True, default=dict)
    path = folder / (kind or "any") / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() and len(list(path.parent.iterdir())) < MOST:
        path.write_text(text, "utf-8")


def render(corpus: Path, target: Path) -> int:
    """Write what every case of a corpus shows; the number of cases."""
    target.mkdir(parents=True)
    paths = sorted(corpus.rglob("*.json"))
    for path in paths:
        for ending, text in rendered(json.loads(path.read_text("utf-8"))):
            (target / f"{path.parent.name}-{path.stem}.{ending}").write_text(text, "utf-8")
    return len(paths)


def rendered(case: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The files of a case: their endings, and what they hold."""
    from matplotlib import pyplot
    from rich.console import Console

    from mechassay.results import page
    from mechassay.results.console import print_tables
    from mechassay.results.page import Report
    from mechassay.results.plots import svg
    from mechassay.results.records import Failure, Record, page_of

    records = [Record.model_validate_json(json.dumps(record)) for record in case["records"]]
    failures = [Failure.model_validate(failure) for failure in case["failures"]]
    drawings = [d if isinstance(d, str) else SimpleNamespace(**d) for d in case["drawings"]]
    run, shown = Report(records, failures, drawings), page_of(case["kind"])

    def console() -> str:
        out = io.StringIO()
        print_tables(shown.tables(run), Console(width=110, file=out))
        return out.getvalue()

    def figure(record: Record) -> str:
        drawn = svg(record.plot())
        pyplot.close("all")
        return drawn

    yield "title.txt", _text(lambda: shown.title(run))
    yield "console.txt", _text(console)
    for ending, write in (("md", page.markdown), ("html", functools.partial(page.render, "Page"))):
        yield ending, _text(lambda write=write: write(shown.sections(run)))
    for number, record in enumerate(records[:PLOTTED]):
        yield f"{number}.svg", _text(functools.partial(figure, record))


def _text(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:  # A refusal is what the case shows.
        return f"{type(error).__name__}: {error}\n"


if __name__ == "__main__":
    _, _, corpus, target = sys.argv
    print(render(Path(corpus), Path(target)), "cases")
