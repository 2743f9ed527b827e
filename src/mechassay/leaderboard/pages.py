"""Pages of a static board as texts: what boards there are, a board, a row of it.

A board's page has a table for each column and kind of models, what its rows were made with, what
its controls are, and one script of ours (`data/board.js`). A row's page has what was declared of
the row and every cell, with the commands that compute it again. Pages need no server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from mechassay.errors import BadUsage, one_of
from mechassay.leaderboard.board import (
    Board,
    BoardPlace,
    ModelKind,
    Pairs,
    paired_differences,
    summarised,
)
from mechassay.leaderboard.cells import NO_VALUES, BoardCell
from mechassay.leaderboard.page_parts import (
    MARK,
    CellNotes,
    Links,
    Repetition,
    cell_facts,
    cell_markup,
    control_row,
    controls,
    link,
    number_or_dash,
    numbers_markup,
    table_data,
)
from mechassay.leaderboard.rules import BoardColumn
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Command,
    Fold,
    Notice,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
    render,
)
from mechassay.results.records import Record
from mechassay.runs.cells import cell_name
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import counted, interval, number, shortened

TITLE = "Leaderboard"
ROW_UP = "../../"
"""The way from the page of a row to the first one."""
BETTER = {
    "up": "Higher is better, and so is a higher score.",
    "down": "Lower is better; the score turns this round, so that a higher score is better.",
}
BENEATH = "Beneath a number stand its interval and the controls of its row."
UNCHECKED = "Declared by whoever handed the row in, and not checked:"
AGAIN = (
    "This computes the first number again, and compares its whole record. The page of a row has"
    " the command of every number of it."
)
PAIRED = 50
"""Rows of a table, best first, whose pairs a page holds."""
LONGEST = 200
"""Letters of what was declared that a board's page shows of a row; the row's page has all."""
SETTING = re.compile(r", (?=[\w ]+=)")
"""What stands between two settings of a method."""


@dataclass(frozen=True, eq=False)
class BoardPages:
    """The pages of boards.

    Attributes:
        record: reads the record of a cell; None where it has none.
        again: who recomputed what, by the hash of the record.
        notes: what else is said of a cell; the last of its commands computes it again.
        unreadable: records that could not be read.
        nav: links of ours before a page, by the way from it to the first one.
        declared: what a submitter said of a row, as its method or training data, by row and by
            name of the fact; not checked.
    """

    boards: Mapping[str, Board]
    record: Callable[[BoardCell], Record | None]
    again: Mapping[str, Sequence[Repetition]] = field(default_factory=dict)
    notes: Callable[[BoardCell], CellNotes] | None = None
    unreadable: tuple[str, ...] = ()
    nav: Callable[[str], Markup] | None = None
    declared: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def texts(self) -> Iterator[tuple[str, str]]:
        """All pages and files of data by their names; records are not among them."""
        yield "index.html", self.index()
        for name, board in self.boards.items():
            yield f"{name}.html", self.board(name)
            yield f"data/{name}.json", board.to_json()
            yield f"data/{name}.csv", board.to_csv()
            for row in board.rows():
                yield f"rows/{name}/{cell_name(row)}.html", self.row(name, row)

    def index(self) -> str:
        """What boards there are."""
        links = Links()
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
        sentence = (
            "Every number was computed from a record that can be downloaded, and has the command"
            f" that computes it again. {MARK} stands beside numbers that somebody recomputed."
        )
        blocks: list[Block] = [Text(sentence, "verdict")]
        wrong = tuple((text, "") for text in self.unreadable)
        blocks += [Notice("Files that cannot be read", wrong)] if wrong else []
        blocks.append(TextTable("", columns, tuple(rows)) if rows else Text("No results yet."))
        commands = (self._first_command(board) for board in self.boards.values())
        if command := next(filter(None, commands), ""):
            blocks += [Text(AGAIN, "soft"), Command(command)]
        return self._render(TITLE, [Section("", tuple(blocks))])

    def board(self, name: str) -> str:
        """A table for each column of a board, and for each kind of models where it has both.

        Raises:
            UnknownName: there is no board of this name, or nothing in it.
        """
        board = self.boards[one_of("board", name, list(self.boards))]
        sections, answers = list[Section](), list[str]()
        data: list[dict[str, object]] = []
        mixed = len({kind for column in board.columns for kind in board.kinds(column)}) > 1
        for column in map(board.rules.column, board.columns):
            text = f"{column.says} {BETTER[column.better]} Brackets: 95 % interval."
            text += f" Definition {column.name}@{column.version}."
            shared = board.shared_controls(column.name).keys()
            text += " Rows in italics are controls, described below." if shared else ""
            if any(
                cell.controls.keys() - shared for cell in board.cells if cell.column == column.name
            ):
                text += f" {BENEATH}"
            blocks: list[Block] = [Text(text, "soft")]
            for kind, places in board.kinds(column.name).items():
                rows = board.ranked(column.name, kind)
                comparable = board.comparable(column.name, kind)
                pairs, wrong = self._pairs(board, column, places, rows)
                title = f"{column.title} on {kind}" if mixed else ""
                at = dict(zip(places, pairs, strict=True))
                answers.append(_answer(board, column, rows, comparable, at, kind if mixed else ""))
                lines = tuple((text, "") for text in wrong)
                blocks += [Notice("Not compared", lines)] if lines else []
                blocks.append(self._table(board, column.name, kind, rows, title))
                data.append(table_data(board, column.name, places, comparable, rows, pairs))
            sections.append(Section(column.title, tuple(blocks)))
        sections += [self._rows(board), *_controls(board)]
        if command := self._first_command(board):
            sections.append(Section("Compute a number again", (Text(AGAIN), Command(command))))
        top = controls(board, data)
        sections = [Section("", _opening(board, answers)), *sections]
        return self._render(board.rules.title, sections, script=board_script(), top=top)

    def row(self, name: str, row: str) -> str:
        """What was declared of a row, and every cell of it.

        Raises:
            UnknownName: no such board or row.
        """
        board = self.boards[one_of("board", name, list(self.boards))]
        one_of("row", row, board.rows())
        links, cells = Links(ROW_UP), [cell for cell in board.cells if cell.row == row]
        facts = [("made with", _made_with(cells))] if any(cell.settings for cell in cells) else []
        blocks: list[Block] = [TextTable.of("", ("", ""), facts, words=True)] if facts else []
        if declared := self.declared.get(row):
            blocks += [Text(UNCHECKED), TextTable.of("", ("", ""), declared.items(), words=True)]
        sections = [Section("", tuple(blocks))] if blocks else []
        for cell in cells:
            notes = self.notes(cell) if self.notes else CellNotes()
            own: list[Block] = [cell_facts(cell, self.again.get(cell.sha256, ()), links, notes)]
            own += [Command(text) for text in notes.commands]
            if cell.warnings:
                own.append(Fold("Warnings", tuple(Text(text) for text in cell.warnings)))
            title = f"{board.rules.column(cell.column).title}: {board.place_of(cell).title}"
            sections.append(Section(title, tuple(own)))
        top = Markup("<p>{}</p>").format(link(links.board(name), board.rules.title))
        return self._render(row, sections, top=top, up=ROW_UP)

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

    def _first_command(self, board: Board) -> str:
        """The command that computes the first cell again that has one."""
        notes = (self.notes(cell) for cell in board.cells) if self.notes else ()
        return next((note.commands[-1] for note in notes if note.commands), "")

    def _pairs(
        self,
        board: Board,
        column: BoardColumn,
        places: Sequence[BoardPlace],
        rows: Sequence[str],
    ) -> tuple[list[Pairs], list[str]]:
        """Paired differences of each place, and why there are none where there are none."""
        differences: list[Pairs] = []
        wrong: list[str] = []
        for place in places:
            cells = {row: board.cell(row, place, column.name) for row in rows[:PAIRED]}
            records = {
                row: record
                for row, cell in cells.items()
                if cell is not None and not math.isnan(cell.value) and (record := self.record(cell))
            }
            try:
                differences.append(paired_differences(column, records))
            except BadUsage as error:
                differences.append({})
                wrong.append(f"{place.title}: {error}")
        if len(rows) > PAIRED and any(differences):
            wrong.append(f"Pairs of rows: only the {PAIRED} best of {len(rows):,} are compared.")
        return differences, wrong

    def _table(
        self, board: Board, name: str, kind: ModelKind, rows: Sequence[str], title: str
    ) -> TextTable:
        """A column of a board on one kind of models: rows, then the controls that all have."""
        links, shared = Links(), board.shared_controls(name)
        places, comparable = board.kinds(name)[kind], board.comparable(name, kind)
        averaged = Markup(' <span class="interval averaged">of {}</span>').format(
            counted(len(comparable), "place")
        )
        columns = [Column(board.rules.row, numeric=False)]
        columns += [Column(Markup("{}{}").format(x, averaged)) for x in ("average", "score")]
        columns += [Column(_heading(place)) for place in places]
        lines: list[Row] = []
        n_rows = [
            sum(board.cell(row, place, name) is not None for row in rows if row not in shared)
            for place in places
        ]
        for row in rows:
            cells = [board.cell(row, place, name) for place in places]
            texts = [
                NOTHING
                if cell is None
                else cell_markup(
                    cell,
                    self.again.get(cell.sha256, ()),
                    cell.controls.keys() - shared.keys(),
                    0 if row in shared else n,
                )
                for cell, n in zip(cells, n_rows, strict=True)
            ]
            summary = board.summary(row, name, comparable)
            numbers = [
                numbers_markup(number.value, number.low, number.high, lacks)
                for number, lacks in ((summary.average, summary.lacks), (summary.score, ""))
            ]
            about = f"as a {board.rules.row}" if row in shared else ""
            named = _named(link(links.row(board.rules.name, row), row), about)
            lines.append(Row((named, *numbers, *texts)))
        for control, at in shared.items():
            if not any(place in at for place in places):
                continue
            values = [at.get(place, math.nan) for place in places]
            of = [Estimate(at.get(place, math.nan)) for place in comparable]
            tasks = [place.examples_of for place in comparable]
            summary = summarised(of, tasks, board.rules.column(name).better)
            texts = map(number_or_dash, (summary.average.value, summary.score.value, *values))
            lines.append(
                Row((_named(Markup("{}").format(control_row(control))), *texts), "control")
            )
        return TextTable(title, tuple(columns), tuple(lines))

    def _rows(self, board: Board) -> Section:
        """What each row was made with, as it was run and as it was declared."""
        lines: list[tuple[str, ...]] = []
        for row in board.rows():
            cells = [cell for cell in board.cells if cell.row == row]
            declared = "; ".join(f"{x}: {text}" for x, text in self.declared.get(row, {}).items())
            page = link(Links().row(board.rules.name, row), row)
            lines.append((page, _made_with(cells), shortened(declared, LONGEST) or NOTHING))
        has_declared = any(row in self.declared for row in board.rows())
        head = (board.rules.row, "made with", "declared, not checked")
        n = 3 if has_declared else 2
        table = TextTable.of("", head[:n], [line[:n] for line in lines], words=True)
        return Section("What the rows were made with", (table,))


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


def _named(name: Markup, about: str = "") -> Markup:
    """The first cell of a row, with what it is in small print."""
    small = Markup(' <span class="interval">{}</span>').format(about) if about else ""
    return Markup('<span class="row-name">{}</span>{}').format(name, small)


def _answer(
    board: Board,
    column: BoardColumn,
    rows: Sequence[str],
    comparable: Sequence[BoardPlace],
    pairs: Mapping[BoardPlace, Pairs],
    kind: str,
) -> str:
    """Which row has the best average, where it is better than the second, and what controls have;
    nothing where no row has a number at all places.

    Args:
        rows: the best first.
        comparable: the places of averages.
        pairs: paired differences, the better of two rows first, of each place.
        kind: of the models, if it is to be said.
    """
    shared = board.shared_controls(column.name)
    averages = {row: board.summary(row, column.name, comparable).average for row in rows}
    names = [row for row in rows if row not in shared and not math.isnan(averages[row].value)]
    if not names:
        return ""
    texts = {
        row: interval(average.value, average.low, average.high)
        for row, average in averages.items()
        if row in names
    }
    at = counted(len(comparable), "place")
    on = f" on {kind}" if kind else ""
    overshoots = column.name == "cpr" and averages[names[0]].value > 1
    best, better = ("highest", "higher") if overshoots else ("best", "better")
    parts = [f"{column.title}{on}: {names[0]} has the {best} average, {texts[names[0]]} over {at}"]
    if overshoots:
        parts.append("more than 1 is overshoot, and no merit")
    if len(names) > 1:
        first, second = names[:2]
        compared = [pairs.get(place, {}).get((first, second)) for place in comparable]
        known = [less for less in compared if less is not None and not math.isnan(less.low)]
        n_better = sum(less.low > 0 if column.better == "up" else less.high < 0 for less in known)
        parts.append(
            f"it is {better} than {second} ({texts[second]}) at {n_better} of the {len(known)}"
            " where the two were compared example by example"
            if known
            else f"{second} has {texts[second]}; their examples were not compared"
        )
    for control, values in shared.items():
        numbers = [Estimate(values.get(place, math.nan)) for place in comparable]
        tasks = [place.examples_of for place in comparable]
        average = summarised(numbers, tasks, column.better).average.value
        if not math.isnan(average):
            parts.append(f"{control_row(control)} {number(average)}")
    return f"{'; '.join(parts)}."


def _opening(board: Board, answers: Sequence[str]) -> tuple[Block, ...]:
    blocks: list[Block] = [Text(board.rules.asks, "soft")]
    blocks += [Text(text, "verdict") for text in answers if text]
    failing = {
        f"{cell.row}, {', '.join(cell.place.values())}: {text}": ""
        for cell in board.cells
        for text in cell.failing
    }
    if failing:
        lines = tuple(failing.items())
        blocks.append(Notice("Controls fail: do not use these numbers.", lines, "broken"))
    if n := sum(NO_VALUES in cell.warnings for cell in board.cells):
        of = counted(len(board.cells), "number")
        sentence = "were not recomputed: their records hold no values of single examples."
        blocks.append(Text(f"{n:,} of {of} {sentence}", "soft"))
    return tuple(blocks)


def _controls(board: Board) -> list[Section]:
    """What each control of a board's cells is, and which rows bear the name of one."""
    names = dict.fromkeys(name for cell in board.cells for name in cell.controls)
    meanings = {
        control_row(name): meaning
        for name, meaning in board.rules.controls.items()
        if name in names
    }
    sentence = (
        "Controls are measured in the run of each row, on the same examples. A number is to be"
        " read beside them."
    )
    blocks: list[Block] = [Text(sentence), Terms(meanings)]
    blocks += [
        Text(
            f"The row {row} is something else: the {board.rules.row} of this name, evaluated like"
            f" every other row. {control_row(row)} is what every row is compared with."
        )
        for row in board.rows()
        if row in names
    ]
    return [Section("Controls", tuple(blocks))] if meanings else []


def _made_with(cells: Sequence[BoardCell]) -> str:
    """The settings of the cells of a row: those of all, and the names of those that differ."""
    settings = [SETTING.split(cell.settings) if cell.settings else [] for cell in cells]
    every = dict.fromkeys(part for parts in settings for part in parts)
    common = [part for part in every if all(part in parts for parts in settings)]
    differing = dict.fromkeys(part.partition("=")[0] for part in every if part not in common)
    sentences = [f"{name} by place" for name in differing]
    return ", ".join([*common, *sentences]) or NOTHING
