"""A page and its tables: sections made of blocks, as one HTML file or as Markdown.

The HTML file needs nothing else. It forbids itself loads of any kind, and all scripts but one of
ours, which `render` may be given and which is named by its hash. The template escapes all text.
The only markup that enters as it is are our own SVGs and cells of type `markupsafe.Markup`.

Tables of text are what every page, Markdown file and console table is made of. A cell is text;
an interval after a number, "0.81 [0.77, 0.85]", is set in small print or under it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import webbrowser
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from mechassay.errors import BadUsage
from mechassay.utils.display import OneLine, Tabular, html_facts, html_table, interval
from mechassay.utils.files import csv_text

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

    from mechassay.results.records import Failure, Measure, Record, Table
    from mechassay.results.verdict import Conclusion


NOTHING = "–"
BEST = "†"
"""Before a number: the best of its column, or one that cannot be told from the best."""
OVERSHOT = "‡"
"""Before a number, or after a rank: more than the model itself does, which is no merit."""
PAGE_LETTERS = 128
"""Letters beside each other in the table of a page, with two between columns."""
WRAPPED = 24
"""Letters at which words of a cell go on in the next line."""

RowKind = Literal["", "method", "control", "failure", "more"]


@dataclass(frozen=True)
class Column:
    """A heading, and how its cells are set.

    Attributes:
        optional: left out of a console that is too narrow, and hidden on a page that is, the
            highest number first.
    """

    heading: str
    numeric: bool = True
    optional: int = 0


@dataclass(frozen=True)
class Row:
    """Cells; fewer than there are columns are a message, whose last cell spans the rest.

    Attributes:
        swatch: a colour beside the first cell, as in figures.
    """

    cells: tuple[str, ...]
    kind: RowKind = ""
    swatch: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table whose rows are named by their first cell."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    @staticmethod
    def of(
        title: str,
        headings: Sequence[str],
        rows: Iterable[Sequence[str] | Row],
        *,
        words: bool = False,
        caption: str = "",
        leave_out: Sequence[str] = (),
    ) -> TextTable:
        """A table of plain rows; cells are numbers, but for the first, unless they are words.

        A row with fewer cells than columns is a failure.

        Args:
            leave_out: headings whose columns a narrow console goes without, the first one first.
        """
        n = len(headings)
        optional = {name: len(leave_out) - place for place, name in enumerate(leave_out)}
        columns = tuple(
            Column(name, place > 0 and not words, optional.get(name, 0))
            for place, name in enumerate(headings)
        )
        made = (
            row if isinstance(row, Row) else Row(tuple(row), "failure" if len(row) < n else "")
            for row in rows
        )
        return TextTable(title, columns, tuple(made), caption)

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(column.heading for column in self.columns)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The cells of all rows."""
        return tuple(row.cells for row in self.rows)

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Places of the optional columns that a page shows when asked, as it is too narrow."""
        whole = [row.cells for row in self.rows if len(row.cells) == len(self.columns)]
        widths = [
            _letters(column, [cells[place] for cells in whole])
            for place, column in enumerate(self.columns)
        ]
        optional = [place for place, column in enumerate(self.columns) if column.optional]
        optional.sort(key=lambda place: (self.columns[place].optional, place))
        hidden = set[int]()
        while optional and sum(widths) > PAGE_LETTERS:
            hidden.add(optional[-1])
            widths[optional.pop()] = 0
        return frozenset(hidden)

    def markdown(self) -> list[str]:
        """The lines of the table in Markdown."""
        headings = [_one_line(heading) for heading in self.headings]
        lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
        for row in self.rows:
            padded = [*row.cells, *[""] * (len(headings) - len(row.cells))]
            lines.append("| " + " | ".join(map(_one_line, padded)) + " |")
        return [*lines, *(["", self.caption] if self.caption else [])]

    def csv(self) -> str:
        """The table as CSV: a number, low and high of a cell with an interval, others as shown."""
        rows: list[dict[str, Any]] = [{} for _ in self.rows]
        names: list[str] = []
        for place, heading in enumerate(self.headings):
            name = heading if heading not in names else f"{heading} ({place + 1})"
            cells = [
                plain_text(row.cells[place]) if place < len(row.cells) else "" for row in self.rows
            ]
            parts = [_NUMBER.fullmatch(cell) for cell in cells]
            columns = [name]
            if any(match and match["low"] for match in parts):
                columns += [f"{name}, low", f"{name}, high"]
            for row, cell, match in zip(rows, cells, parts, strict=True):
                texts = [cell] if match is None else match.groups()
                numbers = [text if match is None else _as_float(text) for text in texts]
                row |= dict(zip(columns, numbers, strict=False))
            names += columns
        return csv_text(names, rows)

    def latex(self) -> str:
        """The table in LaTeX, with the rules of booktabs; a marked cell (`BEST`) is bold and an
        interval small.
        """
        letters = "".join("r" if column.numeric else "l" for column in self.columns[1:])
        lines = [" & ".join(map(_latex, self.headings)) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [_latex_cell(plain_text(cell)) for cell in row.cells]
            if len(cells) < len(self.columns):
                span = len(self.columns) - len(cells) + 1
                cells[-1] = rf"\multicolumn{{{span}}}{{l}}{{{cells[-1]}}}"
            lines.append(" & ".join(cells) + r" \\")
        caption = ". ".join(filter(None, (self.title, self.caption))).replace("..", ".")
        return "\n".join(
            (
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                *([rf"\caption{{{_latex(caption)}}}"] if caption else []),
                rf"\begin{{tabular}}{{l{letters}}}",
                r"\toprule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            )
        )


_DIGITS = r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_NUMBER = re.compile(
    rf"[{BEST}{OVERSHOT}]?({_DIGITS})(?: \[(?P<low>{_DIGITS}), (?P<high>{_DIGITS})\])?", re.ASCII
)


def _as_float(text: str | None) -> float | None:
    return None if text is None else float(text.replace(",", ""))


_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
    "−": "$-$",
    "±": r"$\pm$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "→": r"$\to$",
    "×": r"$\times$",
    OVERSHOT: r"$\ddagger$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex_cell(text: str) -> str:
    is_best, text = text.startswith(BEST), text.removeprefix(BEST)
    value, bracket, low_high = text.partition(" [")
    number = rf"\textbf{{{_latex(value)}}}" if is_best else _latex(value)
    # A line that begins with a bracket would be an option of the line break before it.
    number = f"{{{number}}}" if number.startswith("[") else number
    return rf"{number} {{\scriptsize [{_latex(low_high)}}}" if bracket else number


def plain_text(cell: str) -> str:
    """A cell without markup."""
    return cell.striptags() if isinstance(cell, Markup) else cell


def _letters(column: Column, cells: Sequence[str]) -> int:
    """About how wide a column is: numbers stay on a line, with their interval under them; words
    wrap.
    """
    words = [len(word) for word in column.heading.split()]
    if column.numeric:
        parts = [len(part) for cell in cells for part in plain_text(cell).split(" [")]
    else:
        parts = [min(len(plain_text(cell)), WRAPPED) for cell in cells]
    return max([*words, *parts], default=0) + 2


def _one_line(cell: str) -> str:
    return " ".join(plain_text(cell).split("\n")).replace("|", "\\|")


@dataclass(frozen=True)
class Text:
    """A paragraph, with a bold beginning if there is a `lead`."""

    text: str
    kind: Literal["", "soft", "verdict", "warnings"] = ""
    lead: str = ""


@dataclass(frozen=True)
class Notice:
    """Lines in a box, each with what it is about: warnings, or what is broken."""

    title: str
    lines: tuple[tuple[str, str], ...]
    kind: Literal["warnings", "broken"] = "warnings"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Figure:
    """An SVG of ours, which enters the page as it is: a chart, or the drawing of a circuit.

    Attributes:
        drawn: an SVG, or a figure of matplotlib's, or what makes one, which becomes one when a
            page shows it: Markdown and consoles do not.
        name, about: what a chart is called and what it shows, for whoever cannot see it; a drawing
            says it itself.
    """

    drawn: str | MatplotlibFigure | Callable[[], MatplotlibFigure]
    title: str = ""
    caption: str = ""
    kind: Literal["chart", "drawing"] = "chart"
    name: str = ""
    about: str = ""

    @cached_property
    def svg(self) -> str:
        """The SVG itself."""
        if isinstance(self.drawn, str):
            return self.drawn
        from mechassay.results.plots import svg

        return svg(self.drawn)

    @property
    def markup(self) -> Markup:
        """The SVG with its name and description."""
        if not self.name:
            return Markup(self.svg)
        head, _, rest = self.svg.removeprefix("<svg").partition(">")
        return Markup('<svg role="img" aria-label="{}"{}><desc>{}</desc>{}').format(
            self.name, Markup(head), self.about, Markup(rest)
        )


@dataclass(frozen=True)
class Terms:
    """What words mean."""

    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Facts:
    """Names, and for each what it is for every column; equal neighbours are one cell."""

    rows: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens.

    Attributes:
        in_markdown: whether Markdown has its blocks; of most folds it has nothing.
    """

    title: str
    blocks: tuple[Block, ...]
    in_markdown: bool = False


@dataclass(frozen=True)
class Command:
    """A command to copy."""

    text: str


Block = Text | Notice | Heading | Figure | Terms | Facts | Fold | Command | TextTable


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; the first section of a page has none.

    Attributes:
        swatch: a colour beside the heading, as in figures.
    """

    title: str
    blocks: tuple[Block, ...]
    swatch: str = ""


@dataclass(frozen=True, repr=False)
class Report(OneLine, Tabular):
    """The records and failures of a run, in the order of its cells.

    Attributes:
        failures: cells without a record, and why: skipped, or failed. A page shows all of them.
        drawings: of circuits. A drawing is an SVG of `draw_circuit`, or anything with `svg`,
            `title` and `about`. SVGs enter the page as they are.
        folder: of the run.
        page: the first page that was written of it, if any.
        names: of the cells, those of the records and then those of the failures.
        unreadable: what is wrong with files that cannot be read.
    """

    records: Sequence[Record] = ()
    failures: Sequence[Failure] = ()
    drawings: Sequence[object] = ()
    folder: Path = field(default_factory=Path)
    page: Path | None = None
    names: Sequence[str] = ()
    unreadable: Sequence[str] = ()

    @property
    def by_name(self) -> dict[str, Record]:
        """The records by the names of their cells."""
        return dict(zip(self.names, self.records, strict=False))  # The names of failures follow.

    @property
    def conclusion(self) -> str:
        """The models of a transfer and the first answer; the reason if there is no answer."""
        reasons = [
            f"{failure.status}: {failure.error}: {failure.message}"
            if failure.traceback
            else f"{failure.status}: {failure.message}"
            for failure in self.failures
        ]
        return "\n".join((self.answers or reasons)[: 1 + len(self.transfers)])

    @property
    def tables(self) -> dict[str, TextTable]:
        """The tables of the page, by title; `csv()` and `latex()` write one."""
        from mechassay.results.records import page_of

        kinds = dict.fromkeys(record.kind for record in self.records)
        every = [
            table
            for kind in kinds
            for table in page_of(kind).tables(
                replace(self, records=[r for r in self.records if r.kind == kind])
            )
        ]
        titles = [table.title or "table" for table in every]
        return {
            f"{title} ({place + 1})" if titles.count(title) > 1 else title: table
            for place, (title, table) in enumerate(zip(titles, every, strict=True))
        }

    @property
    def curves(self) -> dict[str, Table]:
        """The faithfulness curve of each record that has one, by the name of its cell."""
        return {
            name: record.table("curve")
            for name, record in self.by_name.items()
            if record.has_table("curve")
        }

    @cached_property
    def scores(self) -> dict[str, Any]:
        """The scores (`EdgeScores`, `NodeScores`, `NeuronScores`) in the run's folder, by the names
        of their cells.
        """
        from mechassay.results.records import FILES_OF_RUNS

        files = {
            name: self.folder / "scores" / f"{name.removesuffix('.scores')}.safetensors"
            for name in self.by_name
        }
        load = FILES_OF_RUNS.load("scores")
        return {name: load(file) for name, file in files.items() if file.is_file()}

    @cached_property
    def circuits(self) -> dict[str, Any]:
        """The smallest circuit (`Circuit`) of each record that has scores and such a circuit, by
        the name of its cell.
        """
        from mechassay.results.records import FILES_OF_RUNS

        make = FILES_OF_RUNS.load("circuit")
        made = {name: make(self.by_name[name], own) for name, own in self.scores.items()}
        return {name: circuit for name, circuit in made.items() if circuit is not None}

    def by_group(self) -> dict[str, Report]:
        """Return the rows of cells that stand in one folder, by the name of that folder."""
        rows = (*self.records, *self.failures)
        groups = dict.fromkeys(name.rpartition("/")[0] for name in self.names)
        parts: dict[str, Report] = {}
        for group in groups:
            own = [place for place, name in enumerate(self.names) if name.startswith(f"{group}/")]
            n = sum(place < len(self.records) for place in own)
            mine = [rows[place] for place in own]
            names = [self.names[place] for place in own]
            parts[group] = replace(self, records=mine[:n], failures=mine[n:], names=names)
        return parts

    def repr_fields(self) -> dict[str, Any]:
        kinds = tuple(dict.fromkeys(record.kind for record in self.records))
        count = {"records": len(self.records), "failures": len(self.failures)}
        return {"folder": str(self.folder), "kinds": kinds, **count}

    @property
    def answers(self) -> list[str]:
        """The sentences that the page begins with; none if there is no record."""
        from mechassay.results.records import page_of  # Only people who look at it need it.

        kinds = dict.fromkeys(record.kind for record in self.records)
        answers = [
            sentence
            for kind in kinds
            for sentence in page_of(kind).answers(
                [record for record in self.records if record.kind == kind], self.failures
            )
        ]
        return [*self.transfers, *answers]

    @property
    def transfers(self) -> list[str]:
        """A sentence for each result that was found in another model than the measured one."""
        return list(dict.fromkeys(text for record in self.records for text in record.transfers))

    def __str__(self) -> str:
        """Return the conclusion, and the page's path."""
        page = [f"Report: {self.page}"] if self.page else []
        return "\n".join(filter(None, (self.conclusion, *page)))

    def open(self) -> None:
        """Open the page in a browser.

        Raises:
            BadUsage: no page was written.
        """
        if self.page is None:
            raise BadUsage(f"No page of {self.folder} was written.")
        webbrowser.open(self.page.resolve().as_uri())

    def _repr_html_(self) -> str:
        roles = self._roles()
        rows = [
            (*(record.cell.get(x, "") for x in roles), _measures_text(record))
            for record in self.records
        ]
        rows += [
            (*(failure.cell.get(x, "") for x in roles), f"{failure.status}: {failure.message}")
            for failure in self.failures
        ]
        table = html_table((*roles, "result"), rows)
        return html_facts(f"Report of {self.folder}", {}, table)

    def _roles(self) -> list[str]:
        """Return what cells are called by: model, task, method."""
        rows = (*self.records, *self.failures)
        return list(dict.fromkeys(name for row in rows for name in row.cell))

    def columns(self) -> dict[str, list[Any]]:
        """Return every measure of every record as columns, beside the names of its cell."""
        roles = self._roles()
        columns: dict[str, list[Any]] = {name: [] for name in roles}
        for record in self.records:
            for role in roles:
                columns[role] += [record.cell.get(role, "")] * len(record.measures)
            for name, values in record.columns().items():
                columns.setdefault(name, []).extend(values)
        return columns

    def plot(self) -> MatplotlibFigure:
        """Return the figure of all records, if the page of their kind has one; of a single record
        its own.

        Raises:
            BadUsage: there is nothing to draw.
        """
        from mechassay.results.records import page_of

        kinds = {record.kind for record in self.records}
        figure = page_of(kinds.pop()).draw_all(self.records) if len(kinds) == 1 else None
        if figure is None:
            raise BadUsage(
                f"{self.folder} has no records that one figure draws; see records[0].plot()."
            )
        return figure


def _measures_text(record: Record) -> str:
    """Return the measures of a result in words."""
    own = [m for m in record.measures if m.of == "result"]
    return ", ".join(f"{m.heading} {interval(m.value, m.low, m.high)}" for m in own)


class Page(ABC):
    """The page of one kind of records. `mechassay.results.records.PAGES` lists the classes."""

    @abstractmethod
    def title(self, report: Report) -> str:
        """What the page is called."""

    @abstractmethod
    def tables(self, report: Report) -> list[TextTable]:
        """The tables of the page."""

    def terminal_tables(self, report: Report) -> list[TextTable]:
        """The tables that a terminal shows, below the conclusion."""
        return self.tables(report)

    @abstractmethod
    def sections(self, report: Report) -> list[Section]:
        """The page from top to bottom."""

    def conclusions(self, records: Sequence[Record]) -> Sequence[Conclusion]:
        """The conclusion on each setting; none if the kind has no preconditions yet."""
        return ()

    def answers(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
        """The sentences that the page begins with."""
        blocks = self.sections(Report(records, failures))[0].blocks
        texts = (block for block in blocks if isinstance(block, Text))
        return [text.text for text in texts if text.kind == "verdict"]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure | None:
        """The figure of one record, on `ax` if it is given; None if it has none."""
        return None

    def draw_all(self, records: Sequence[Record]) -> MatplotlibFigure | None:
        """One figure of all records; None if there is no such."""
        return self.draw(records[0]) if len(records) == 1 else None

    def recomputed(self, record: Record) -> Sequence[Measure | Table]:
        """The measures and tables of a record that follow from its values of single examples,
        computed again; none where the kind's numbers do not. A record that has others is refused,
        see `mechassay.results.reading`.
        """
        return ()


def render(
    title: str,
    sections: Sequence[Section],
    *,
    about: Sequence[str] = (),
    script: str = "",
    top: Markup | None = None,
    nav: Markup | None = None,
    connects: bool = False,
) -> str:
    """The page as HTML.

    Args:
        about: lines below the title.
        script: the one script of ours that the page may run, by its hash.
        top: markup of ours that stands before the sections.
        nav: links of ours that stand before the page.
        connects: whether the script may ask the server that the page is from.
    """
    return _template().render(
        title=title,
        sections=sections,
        about=about,
        script=Markup(script),
        digest=script_hash(script),
        top=top or "",
        nav=nav or "",
        connects=connects,
    )


def script_hash(script: str) -> str:
    """The hash by which a Content-Security-Policy allows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def templates(room: str = "results") -> Environment:
    """The templates of pages, which escape all text, and those among the data of a room."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    own = [] if room == "results" else [PackageLoader(f"mechassay.{room}", "data")]
    return Environment(
        loader=ChoiceLoader([PackageLoader("mechassay.results"), *own]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _template() -> Template:
    environment = templates()
    environment.filters |= {"kind": lambda block: type(block).__name__}
    return environment.get_template("page.html")


def markdown(sections: Sequence[Section]) -> str:
    """The words and tables of the sections in Markdown; figures and most folds are left out."""
    lines: list[str] = []
    for section in sections:
        parts = [[*_lines(block, section.title), ""] for block in section.blocks]
        sentences = [line for part in parts if len(part) > 1 for line in part]
        if sentences:
            lines += [*([f"## {section.title}", ""] if section.title else []), *sentences]
    return "\n".join(lines).rstrip() + "\n"


def _lines(block: Block, title: str) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{block.lead}** {block.text}" if block.lead else block.text
        case Notice():
            yield from (f"**{block.title}**", "")
            for text, about in block.lines:
                yield f"- {text}{f' ({about})' if about else ''}"
        case Heading():
            yield f"### {block.text}"
        case Terms():
            for term, meaning in block.meanings.items():
                yield f"- **{term}**: {meaning}"
        case Facts():
            yield from ("| | |", "|---|---|")
            for name, cells in block.rows:
                cell_text = "; ".join(text for text, _ in cells if text)
                yield f"| {name} | {cell_text.replace('|', '&#124;')} |".replace("\n", " ")
        case TextTable():
            if block.title and block.title != title:
                yield from (f"### {block.title}", "")
            yield from block.markdown()
        case Command():
            yield from ("```bash", block.text, "```")
        case Fold(in_markdown=True):
            lines = [line for part in block.blocks for line in (*_lines(part, block.title), "")]
            yield from (f"### {block.title}", "", *lines) if any(lines) else ()
        case Figure() | Fold():
            return
