"""Pages of boards as texts: what boards there are, a board, a row, two rows, a cell over time.

A board's page has a table for each column, and one script of ours (`data/board.js`). The pages of a
folder need no server; those of a server have forms and links to pages of two rows and of a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from mechassay.errors import BadUsage, one_of
from mechassay.leaderboard.averages import summarised
from mechassay.leaderboard.board import Board, BoardPlace
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.choice import BoardChoice
from mechassay.leaderboard.controls import (
    column_data,
    compare_form,
    control_row,
    controls,
    resolved,
)
from mechassay.leaderboard.facts import (
    MARK,
    CellNotes,
    Repetition,
    cell_facts,
    cell_markup,
    numbers_markup,
    place_text,
    plain_number,
)
from mechassay.leaderboard.history import cell_history
from mechassay.leaderboard.links import FileLinks, Links, ServedLinks, history_link, link
from mechassay.leaderboard.paired import Pairs, paired_differences
from mechassay.leaderboard.rules import BoardColumn
from mechassay.records import Record
from mechassay.report.page import Block, Command, Fold, Notice, Section, Text, render
from mechassay.report.tables import NOTHING, Column, Row, TextTable
from mechassay.runs.job import cell_name
from mechassay.stats.intervals import Estimate
from mechassay.text import interval

TITLE = "Leaderboard"
ROW_UP = "../../"
"""The way from the page of a row to the first one."""
SUMMARISED = "A higher score is better."
BENEATH = "Beneath a number stand its interval and the controls of its row."
PAIRED = 50
"""Rows of a column, best first, whose pairs a page that needs no server holds."""
SHOWN = 200
"""Rows of a column, best first, that a page of a server shows until it is asked for all."""


@dataclass(frozen=True, eq=False)
class BoardPages:
    """The pages of boards.

    Attributes:
        record: reads the record of a cell; None where it has none.
        again: who recomputed what, by the hash of the record.
        notes: what else is said of a cell.
        unreadable: records that could not be read.
        served: whether a server answers.
        nav: links of ours before a page, by the way from it to the first one.
    """

    boards: Mapping[str, Board]
    record: Callable[[BoardCell], Record | None]
    again: Mapping[str, Sequence[Repetition]] = field(default_factory=dict)
    notes: Callable[[BoardCell], CellNotes] | None = None
    unreadable: tuple[str, ...] = ()
    served: bool = False
    nav: Callable[[str], Markup] | None = None

    def names(self) -> Iterator[str]:
        """The names of all files that need no server; records are not among them."""
        yield "index.html"
        for name, board in self.boards.items():
            yield from (f"{name}.html", f"data/{name}.json", f"data/{name}.csv")
            yield from (f"rows/{name}/{cell_name(row)}.html" for row in board.rows())

    def text(self, name: str) -> str:
        """A page or a file of data by its name.

        Raises:
            UnknownName: there is none of this name.
        """
        one_of("page", name, list(self.names()))
        folder, _, file = name.rpartition("/")
        stem, _, ending = file.rpartition(".")
        if folder == "data":
            board = self.boards[stem]
            return board.to_json() if ending == "json" else board.to_csv()
        if folder:
            of = folder.removeprefix("rows/")
            row = next(row for row in self.boards[of].rows() if cell_name(row) == stem)
            return self.row(of, row)
        return self.index() if stem == "index" else self.board(stem)

    def find(self, name: str) -> Board:
        """A board.

        Raises:
            UnknownName: there is none of this name, or nothing in it.
        """
        return self.boards[one_of("board", name, list(self.boards))]

    def index(self) -> str:
        """What boards there are."""
        links = self._links()
        rows = [
            Row(
                (
                    link(links.board(name), board.rules.title),
                    board.rules.asks,
                    f"{len(board.rows())}",
                    f"{len(board.cells)}",
                    Markup("{} {}").format(
                        link(links.data(name, "json"), "JSON"), link(links.data(name, "csv"), "CSV")
                    ),
                )
            )
            for name, board in self.boards.items()
        ]
        columns = (
            Column("board", numeric=False),
            Column("what it asks", numeric=False),
            Column("rows"),
            Column("cells"),
            Column("data", numeric=False),
        )
        said = (
            "Every number was computed from a record that can be downloaded, and has the command"
            f" that computes it again. {MARK} stands beside numbers that somebody recomputed."
        )
        blocks: list[Block] = [Text(said, "verdict")]
        wrong = tuple((text, "") for text in self.unreadable)
        blocks += [Notice("Files that cannot be read", wrong)] if wrong else []
        blocks.append(TextTable("", columns, tuple(rows)) if rows else Text("No results yet."))
        return self._render(TITLE, [Section("", tuple(blocks))])

    def board(self, name: str, choice: BoardChoice | None = None) -> str:
        """A table for each column of a board.

        Raises:
            UnknownName: no such board, role or value of a role.
        """
        whole, chosen = self.find(name), choice or BoardChoice()
        board = chosen.part_of(whole)
        sections = [Section("", _opening(board, chosen))]
        data: dict[str, object] = {}
        for column in map(board.rules.column, board.columns):
            places, comparable = board.places(column.name), board.comparable(column.name)
            ranked = [row for row in board.ranked(column.name, comparable) if chosen.shows(row)]
            rows = ranked[:SHOWN] if self.served and not chosen.every else ranked
            # A server compares two rows when it is asked.
            pairs, wrong = self._pairs(board, column, [] if self.served else places, rows)
            said = f"{column.says} {_better(column)} {SUMMARISED}"
            shared = board.shared_controls(column.name).keys()
            cells = [each for each in board.cells if each.column == column.name]
            if any(each.controls.keys() - shared for each in cells):
                said += f" {BENEATH}"
            blocks: list[Block] = [Text(said, "soft")]
            blocks += [Notice("Not compared", tuple((text, "") for text in wrong))] if wrong else []
            blocks.append(self._table(board, column.name, places, rows, comparable))
            if len(rows) < len(ranked):
                every = link(f"{self._links().board(name)}?rows=all", "show all")
                said = Markup("The {} best of {} rows; {}.").format(len(rows), len(ranked), every)
                blocks.append(Text(said, "soft"))
            sections.append(Section(column.title, tuple(blocks)))
            data[column.name] = column_data(board, column.name, places, rows, pairs)
        top = controls(board, data, self._links(), whole=whole, words=chosen.words)
        return self._render(board.rules.title, sections, script=board_script(), top=top)

    def row(self, name: str, row: str) -> str:
        """Every cell of a row.

        Raises:
            UnknownName: no such board or row.
        """
        board = self.find(name)
        one_of("row", row, board.rows())
        links = self._links(ROW_UP)
        sections = [
            self._cell_section(board, cell, links) for cell in board.cells if cell.row == row
        ]
        return self._render(row, sections, top=_back(links, board), up=ROW_UP)

    def compared(self, name: str, column: str = "", first: str = "", second: str = "") -> str:
        """Two rows of a column, place by place, with their paired differences.

        Raises:
            UnknownName: no such board, column or row. BadUsage: a row and itself.
        """
        board = self.find(name)
        shown = one_of("column", column, board.columns) if column else board.columns[0]
        form = compare_form(board, shown, (first, second))
        top = Markup("{}{}").format(_back(self._links(), board), form)
        title = f"{board.rules.title}: two rows"
        if not (first or second):
            return self._render(title, [Section("", (Text("Choose two rows."),))], top=top)
        for row in (first, second):
            one_of("row", row, board.rows())
        if first == second:
            raise BadUsage(f"Two rows are compared; got {first} twice.")
        return self._render(title, [self._two(board, shown, first, second)], top=top)

    def history(self, name: str, cell: str) -> str:
        """What stood in a cell, and what its row has at the same place under other conditions.

        Raises:
            UnknownName: no such board or cell. BadUsage: the cell has several conditions.
        """
        board, links = self.find(name), self._links()
        found = board.find(cell)
        row = link(links.row(name, found.row), found.row)
        top = Markup("{}<p>{}</p>").format(_back(links, board), row)
        title = f"{board.rules.column(found.column).title}: {found.row}, {place_text(found)}"
        return self._render(title, [Section("", cell_history(board, found, links))], top=top)

    # --- parts of pages ---------------------------------------------------------------------------

    def _render(
        self,
        title: str,
        sections: Sequence[Section],
        *,
        script: str = "",
        top: Markup | None = None,
        up: str = "",
    ) -> str:
        nav = self.nav(up) if self.nav else None
        return render(title, sections, script=script, top=top, nav=nav)

    def _links(self, up: str = "") -> Links:
        return ServedLinks() if self.served else FileLinks(up)

    def _repeated(self, cell: BoardCell) -> Sequence[Repetition]:
        return self.again.get(cell.sha256, ())

    def _pairs(
        self,
        board: Board,
        column: BoardColumn,
        places: Sequence[BoardPlace],
        rows: Sequence[str],
    ) -> tuple[list[Pairs], list[str]]:
        """Paired differences of each place, and why there are none where there are none."""
        found: list[Pairs] = []
        wrong: list[str] = []
        for place in places:
            cells = {row: board.cell(row, place, column.name) for row in rows[:PAIRED]}
            records = {
                row: record
                for row, cell in cells.items()
                if cell is not None and not math.isnan(cell.value) and (record := self.record(cell))
            }
            try:
                found.append(paired_differences(column, records))
            except BadUsage as error:
                found.append({})
                wrong.append(f"{place.title}: {error}")
        if len(rows) > PAIRED and any(found):
            wrong.append(f"Pairs of rows: only the {PAIRED} best of {len(rows):,} are compared.")
        return found, wrong

    def _two(self, board: Board, name: str, first: str, second: str) -> Section:
        column = board.rules.column(name)
        lines: list[tuple[str, ...]] = []
        notes: list[str] = []
        for place in board.places(name):
            cells = [board.cell(row, place, name) for row in (first, second)]
            if not any(cells):
                continue
            pairs, wrong = self._pairs(board, column, [place], (first, second))
            notes += wrong
            texts = [self._shown(cell) for cell in cells]
            less = pairs[0].get((first, second))
            lines.append((place.title, *texts, *_difference(less, column)))
        head = ("place", first, second, "first less second", "")
        said = (
            f"{column.says} {_better(column)} Differences are taken example by example; each"
            " interval is for this pair of rows at one place."
        )
        blocks: list[Block] = [Text(said, "soft"), TextTable.of("", head, lines)]
        blocks += [Notice("Not compared", tuple((text, "") for text in notes))] if notes else []
        return Section(column.title, tuple(blocks))

    def _cell_section(self, board: Board, cell: BoardCell, links: Links) -> Section:
        notes = self.notes(cell) if self.notes else CellNotes()
        if links.served:
            address = history_link(board.rules.name, cell.full_id)
            history = ("history", link(address, "what stood here"))
            notes = CellNotes((*notes.facts, history), notes.commands)
        blocks: list[Block] = [cell_facts(cell, self._repeated(cell), links, notes)]
        blocks += [Command(text) for text in notes.commands]
        if cell.warnings:
            blocks.append(Fold("Warnings", tuple(Text(text) for text in cell.warnings)))
        title = f"{board.rules.column(cell.column).title}: {board.place_of(cell).title}"
        return Section(title, tuple(blocks))

    def _table(
        self,
        board: Board,
        name: str,
        places: Sequence[BoardPlace],
        rows: Sequence[str],
        comparable: Sequence[BoardPlace],
    ) -> TextTable:
        links, shared = self._links(), board.shared_controls(name)
        columns = [Column(board.rules.row, numeric=False), Column("average"), Column("score")]
        columns += [Column(_heading(place)) for place in places]
        lines: list[Row] = []
        for row in rows:
            cells = [board.cell(row, place, name) for place in places]
            texts = [self._shown(cell, shared) for cell in cells]
            summary = board.summary(row, name, comparable)
            numbers = [
                numbers_markup(each.value, each.low, each.high, lacks)
                for each, lacks in ((summary.average, summary.lacks), (summary.score, ""))
            ]
            named = link(links.row(board.rules.name, row), row)
            lines.append(Row((named, *numbers, *texts)))
        for control, at in shared.items():
            values = [at.get(place, math.nan) for place in places]
            of = [Estimate(at.get(place, math.nan)) for place in comparable]
            tasks = [place.examples_of for place in comparable]
            summary = summarised(of, tasks, board.rules.column(name).better)
            told = map(plain_number, (summary.average.value, summary.score.value, *values))
            lines.append(Row((control_row(control), *told), "control"))
        return TextTable("", tuple(columns), tuple(lines))

    def _shown(self, cell: BoardCell | None, shared: Collection[str] = ()) -> str:
        """A cell of a table; controls that are shared have rows of their own."""
        if cell is None:
            return NOTHING
        return cell_markup(cell, self._repeated(cell), cell.controls.keys() - set(shared))


@cache
def board_script() -> str:
    """The one script of a board's page."""
    return files("mechassay.leaderboard").joinpath("data/board.js").read_text("utf-8")


def _heading(place: BoardPlace) -> Markup:
    """A column's heading: the task, under it the rest, and all conditions for who points at it."""
    first, *rest = place.names
    lines = [", ".join(rest), place.differs]
    small = Markup("").join(
        Markup(' <span class="interval">{}</span>').format(line) for line in lines if line
    )
    shape = '<span title="{}">{}{}</span>' if place.conditions else "{}{}{}"
    return Markup(shape).format(place.conditions, first, small)


def _opening(board: Board, chosen: BoardChoice) -> tuple[Block, ...]:
    blocks: list[Block] = [Text(board.rules.asks, "verdict")]
    failing = {
        f"{cell.row}, {', '.join(cell.place.values())}: {text}": ""
        for cell in board.cells
        for text in cell.failing
    }
    if failing:
        lines = tuple(failing.items())
        blocks.append(Notice("Controls fail: do not use these numbers.", lines, "broken"))
    if not board.cells:
        blocks.append(Text("Nothing was measured there."))
    elif not any(map(chosen.shows, board.rows())):
        blocks.append(Text("No row has all of these words."))
    return tuple(blocks)


def _back(links: Links, board: Board) -> Markup:
    return Markup("<p>{}</p>").format(link(links.board(board.rules.name), board.rules.title))


def _better(column: BoardColumn) -> str:
    way = "Higher" if column.better == "up" else "Lower"
    return f"{way} is better. Brackets: 95 % interval. Definition {column.name}@{column.version}."


def _difference(less: Estimate | None, column: BoardColumn) -> tuple[str, str]:
    """A difference with its interval, and which row is better."""
    if less is None:
        return NOTHING, "not compared"
    text = interval(less.value, less.low, less.high)
    if math.isnan(less.low):
        return text, "undefined"
    if not resolved(less.low, less.high):
        return text, "not resolved"
    return text, "first is better" if (less.value > 0) == (
        column.better == "up"
    ) else "second is better"
