"""The boards as pages that need no server: a folder of HTML, JSON and CSV.

    index.html                what boards there are
    BOARD.html                a table for each column: rows, average, score, places
    rows/BOARD/ROW.html       every cell of a row: number, interval, controls, conditions, command
    data/BOARD.json, .csv     everything
    records/SHA256.json       the records, by the hash of their bytes
    recomputed/*.json         what others recomputed (`recompute`); a cell with one has a mark

The board's page has one script of ours. It hides places and rows, computes averages and scores of
what is left with all digits, sorts, and shows the paired difference of two rows.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage
from mechassay.files import write_text
from mechassay.leaderboard.board import Board, BoardPlace
from mechassay.leaderboard.cells import BoardCell, read_cells
from mechassay.leaderboard.paired import Pairs, paired_differences
from mechassay.leaderboard.recomputation import Recomputation
from mechassay.leaderboard.rules import BoardColumn, board_rules
from mechassay.records import read_record
from mechassay.report.page import Block, Command, Fold, Notice, Section, Text, render
from mechassay.report.tables import NOTHING, Column, Row, TextTable
from mechassay.runs.job import cell_name
from mechassay.text import interval, number

RECOMPUTED = "recomputed"
RECOMPUTE = ("mechassay", "leaderboard", "recompute")
EQUAL = 1e-5
"""Differences within it are rounding: f is a ratio of differences of logits in fp32."""
MARK = "✓"
"""Beside a number that somebody recomputed."""


@dataclass(frozen=True)
class BoardsFolder:
    """The boards of a folder of runs, and the folder that their pages go to.

    Attributes:
        boards: by name, those that have a cell.
        unreadable: records that could not be read.
    """

    runs: Path
    path: Path
    boards: Mapping[str, Board]
    unreadable: tuple[str, ...]

    @staticmethod
    def of(runs: Path, path: Path, reported: Sequence[BoardCell] = ()) -> BoardsFolder:
        """Boards of all runs in a folder.

        Args:
            reported: numbers as others reported them, of any board.

        Raises:
            BadFile: there is no such folder. BadUsage: it has no record that a board reads, or
                two files report one number.
        """
        names = [cell.full_id for cell in reported]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadUsage(f"Two files report {sorted(twice)[0]}: give one of them.")
        boards: dict[str, Board] = {}
        unreadable: dict[str, None] = {}
        for name, rules in board_rules().items():
            cells, wrong = read_cells(rules, runs)
            unreadable |= dict.fromkeys(wrong)
            cells += [cell for cell in reported if cell.board == name]
            if cells:
                boards[name] = Board.of(rules, cells)
        if not boards:
            kinds = ", ".join(rules.kind for rules in board_rules().values())
            raise BadUsage(f"{runs} has no record that a board reads (of the kinds {kinds}).")
        return BoardsFolder(runs, path, boards, tuple(unreadable))

    def write(self) -> Path:
        """Write all pages; the path of the first.

        Raises:
            BadFile: a file in `recomputed` is none.
        """
        again = self.recomputations()
        for name, board in self.boards.items():
            write_text(self.path / "data" / f"{name}.json", board.to_json())
            write_text(self.path / "data" / f"{name}.csv", board.to_csv())
            write_text(self.path / f"{name}.html", self._board_page(board, again))
            for row in board.rows():
                page = self.path / "rows" / name / f"{cell_name(row)}.html"
                write_text(page, self._row_page(board, row, again))
        self._copy_records()
        return write_text(self.path / "index.html", self._index())

    def recomputations(self) -> dict[str, list[Recomputation]]:
        """What was recomputed, by the hash of the record.

        Raises:
            BadFile: a file there is no recomputation.
        """
        found: dict[str, list[Recomputation]] = {}
        for file in sorted((self.path / RECOMPUTED).glob("*.json")):
            try:
                each = Recomputation.model_validate_json(file.read_bytes())
            except ValidationError as error:
                raise BadFile(f"{file}: no recomputation ({error.error_count()} errors).") from None
            found.setdefault(each.sha256, []).append(each)
        return found

    def _copy_records(self) -> None:
        folder = self.path / "records"
        folder.mkdir(parents=True, exist_ok=True)
        for board in self.boards.values():
            for cell in board.cells:
                if cell.file and not cell.private:
                    shutil.copyfile(self.runs / cell.file, folder / f"{cell.sha256}.json")

    # --- pages ------------------------------------------------------------------------------------

    def _index(self) -> str:
        rows = [
            Row(
                (
                    Markup('<a href="{}.html">{}</a>').format(name, board.rules.title),
                    board.rules.asks,
                    f"{len(board.rows())}",
                    f"{len(board.cells)}",
                    Markup('<a href="data/{}.json">JSON</a> <a href="data/{}.csv">CSV</a>').format(
                        name, name
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
        blocks.append(TextTable("", columns, tuple(rows)))
        return render("Leaderboard", [Section("", tuple(blocks))])

    def _board_page(self, board: Board, again: Mapping[str, list[Recomputation]]) -> str:
        sections = [Section("", self._opening(board))]
        data: dict[str, object] = {}
        for name in board.columns:
            column, places = board.rules.column(name), board.places(name)
            pairs, wrong = self._pairs(board, column, places)
            rows = board.ranked(name)
            blocks: list[Block] = [Text(f"{column.says} {_better(column)}", "soft")]
            blocks += [Notice("Not compared", tuple((text, "") for text in wrong))] if wrong else []
            blocks.append(_column_table(board, name, places, rows, again))
            sections.append(Section(column.title, tuple(blocks)))
            data[name] = _data(board, name, places, rows, pairs)
        script = files("mechassay.leaderboard").joinpath("data/board.js").read_text("utf-8")
        return render(board.rules.title, sections, script=script, top=_controls(board, data))

    def _opening(self, board: Board) -> tuple[Block, ...]:
        blocks: list[Block] = [Text(board.rules.asks, "verdict")]
        failing = {
            f"{cell.row}, {', '.join(cell.place.values())}: {text}": ""
            for cell in board.cells
            for text in cell.failing
        }
        if failing:
            lines = tuple(failing.items())
            blocks.append(Notice("Controls fail: do not use these numbers.", lines, "broken"))
        return tuple(blocks)

    def _pairs(
        self, board: Board, column: BoardColumn, places: Sequence[BoardPlace]
    ) -> tuple[list[Pairs], list[str]]:
        """Paired differences of each place, and why there are none where there are none."""
        found: list[Pairs] = []
        wrong: list[str] = []
        for place in places:
            cells = {row: board.cell(row, place, column.name) for row in board.rows()}
            records = {
                row: read_record(self.runs / cell.file)
                for row, cell in cells.items()
                if cell is not None and cell.file and not math.isnan(cell.value)
            }
            try:
                found.append(paired_differences(column, records))
            except BadUsage as error:
                found.append({})
                wrong.append(f"{place.title}: {error}")
        return found, wrong

    def _row_page(self, board: Board, row: str, again: Mapping[str, list[Recomputation]]) -> str:
        cells = [cell for cell in board.cells if cell.row == row]
        back = Markup('<p><a href="../../{}.html">{}</a></p>').format(
            board.rules.name, board.rules.title
        )
        sections = [self._cell_section(board, cell, again) for cell in cells]
        return render(row, sections, top=back)

    def _cell_section(
        self, board: Board, cell: BoardCell, again: Mapping[str, list[Recomputation]]
    ) -> Section:
        blocks: list[Block] = [_facts(cell, again.get(cell.sha256, []))]
        if cell.command and not cell.private:
            words = [*RECOMPUTE, board.rules.name, cell.full_id, "--runs", self.runs.name]
            blocks += [Command(cell.command), Command(shlex.join(words))]
        if cell.warnings:
            blocks.append(Fold("Warnings", tuple(Text(text) for text in cell.warnings)))
        title = f"{board.rules.column(cell.column).title}: {_place(cell)}"
        return Section(title, tuple(blocks))


def _better(column: BoardColumn) -> str:
    way = "Higher" if column.better == "up" else "Lower"
    return f"{way} is better. Brackets: 95 % interval. Definition {column.name}@{column.version}."


def _column_table(
    board: Board,
    name: str,
    places: Sequence[BoardPlace],
    rows: Sequence[str],
    again: Mapping[str, list[Recomputation]],
) -> TextTable:
    columns = [Column(board.rules.row, numeric=False), Column("average"), Column("score")]
    columns += [Column(place.title) for place in places]
    lines: list[Row] = []
    for row in rows:
        link = Markup('<a href="rows/{}/{}.html">{}</a>').format(
            board.rules.name, quote(cell_name(row)), row
        )
        cells = [board.cell(row, place, name) for place in places]
        texts = [NOTHING if cell is None else _number(cell, again) for cell in cells]
        summary = (board.average(row, name), board.score(row, name))
        lines.append(Row((link, *map(_plain, summary), *texts)))
    return TextTable("", tuple(columns), tuple(lines))


def _plain(value: float) -> str:
    return NOTHING if math.isnan(value) else number(value)


def _number(cell: BoardCell, again: Mapping[str, list[Recomputation]]) -> str:
    """A cell's number with its interval; marked if it was recomputed, or only reported."""
    text = interval(cell.value, cell.low, cell.high)
    if cell.origin == "as reported":
        return f"{text} (as reported)"
    held = any(each.agrees for each in again.get(cell.sha256, []))
    value, bracket, rest = text.partition(" [")
    return f"{value}{' ' + MARK if held else ''}{bracket}{rest}"


def _facts(cell: BoardCell, again: Sequence[Recomputation]) -> TextTable:
    rows: list[tuple[str, str]] = [
        ("value", interval(cell.value, cell.low, cell.high)),
        ("examples", f"{cell.n:,}, {cell.n_undefined:,} undefined"),
        *((f"control: {name}", number(value)) for name, value in cell.controls.items()),
        ("method", cell.settings or NOTHING),
        *((name, value) for name, value in cell.conditions.items()),
        ("origin", cell.source or cell.origin),
        ("seconds", _plain(cell.seconds)),
        ("made", cell.created or NOTHING),
    ]
    rows += [
        ("earlier", f"{number(old.value)}, {old.created[:10]}, {old.settings or NOTHING}")
        for old in cell.earlier
    ]
    if cell.private:
        rows.append(("record", "kept back: its examples are private"))
    elif cell.sha256:
        link = Markup('<a href="../../records/{}.json" download>{}</a>').format(
            cell.sha256, cell.sha256[:16]
        )
        rows.append(("record", link))
    for each in again:
        number_again = f"{each.again:.9g}; " if each.cell == cell.full_id else ""
        said = "agree" if each.agrees else f"differ, first at {each.differs}"
        rows.append(
            (
                "recomputed",
                f"{number_again}{each.n:,} numbers of the record {said} (by {each.largest:.1g});"
                f" {each.provenance.created[:10]}, {each.provenance.machine}",
            )
        )
    return TextTable.of("", ("", ""), rows, words=True)


def _place(cell: BoardCell) -> str:
    return ", ".join(dict.fromkeys(reversed(cell.place.values())))


def _data(
    board: Board,
    name: str,
    places: Sequence[BoardPlace],
    rows: Sequence[str],
    pairs: Sequence[Pairs],
) -> dict[str, object]:
    """What the script computes with: all digits, NaN as null."""

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def values(row: str) -> list[float | None]:
        cells = [board.cell(row, place, name) for place in places]
        return [None if cell is None else plain(cell.value) for cell in cells]

    comparable = board.comparable(name)
    return {
        "better": board.rules.column(name).better,
        "places": [
            dict(place.roles) | {"title": place.title, "shown": place in comparable}
            for place in places
        ],
        "rows": {row: values(row) for row in rows},
        "pairs": [
            [
                [a, b, *map(plain, (e.value, e.low, e.high)), e.low > EQUAL or e.high < -EQUAL]
                for (a, b), e in each.items()
            ]
            for each in pairs
        ],
    }


def _controls(board: Board, data: Mapping[str, object]) -> Markup:
    """The data of the page, and what its script listens to."""
    # No "<" in the data can end the element that holds it.
    text = json.dumps(data).replace("<", "\\u003c")
    parts = [
        Markup('<script type="application/json" id="board">'),
        Markup(text),
        Markup("</script>"),
    ]
    for role in board.rules.place:
        held = sorted({cell.place[role] for cell in board.cells if role in cell.place})
        boxes = Markup("").join(
            Markup(
                '<label><input type="checkbox" class="place" data-role="{}" value="{}" checked> {}'
                "</label> "
            ).format(role, value, value)
            for value in held
        )
        parts.append(Markup("<fieldset><legend>{}</legend>{}</fieldset>").format(role, boxes))
    parts.append(_condition_boxes(board))
    parts.append(
        Markup(
            '<p><label>Rows <input id="filter" type="search" placeholder="Filter"></label>'
            ' <label>Compare <select id="first"></select></label>'
            ' <label>with <select id="second"></select></label></p>'
            '<div id="difference" role="status"></div>'
        )
    )
    return Markup("").join(parts)


def _condition_boxes(board: Board) -> Markup:
    """A box for each place of those that share a task and model; one of them is ticked."""
    shown: dict[str, bool] = {}
    for name in board.columns:
        places, comparable = board.places(name), board.comparable(name)
        roles = [place.roles for place in places]
        for place in places:
            if roles.count(place.roles) > 1:
                shown[place.title] = shown.get(place.title, False) or place in comparable
    boxes = Markup("").join(
        Markup(
            '<label><input type="checkbox" class="place" data-role="title" value="{}"{}> {}'
            "</label> "
        ).format(title, Markup(" checked") if on else "", title)
        for title, on in shown.items()
    )
    legend = Markup("<fieldset><legend>conditions</legend>{}</fieldset>")
    return legend.format(boxes) if shown else Markup("")
