"""Pages of the service beside its boards: submissions, one of them, its figures, the form, errors.

All text is of others, and escaped by the template. No page needs its script: that of a submission
only follows what becomes of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from markupsafe import Markup

from mechassay.leaderboard.cells import is_private
from mechassay.leaderboard.facts import plain_number
from mechassay.leaderboard.folder import RECOMPUTE
from mechassay.leaderboard.links import link
from mechassay.leaderboard.rules import BoardRules, board_rules
from mechassay.records import Record
from mechassay.report.kinds.circuits import faithfulness_chart
from mechassay.report.page import Block, Command, Figure, Notice, Section, Text, render
from mechassay.report.tables import NOTHING, Row, TextTable
from mechassay.report.text import setting_name, settings
from mechassay.runs.job import cell_name
from mechassay.service.adversarial import row_ending
from mechassay.service.declaration import LONGEST_LINE, LONGEST_NAME, LONGEST_TEXT
from mechassay.service.lookups import PAGE, SubmissionView, row_name
from mechassay.text import counted, interval

NAV = Markup(
    '<a href="/">Boards</a> <a href="/submissions">Submissions</a> <a href="/submit">Submit</a>'
)

DECLARED = {
    "method": ("Method", LONGEST_LINE),
    "url": ("Address of a paper or of code (https://)", LONGEST_LINE),
    "compute": ("Compute, in words", LONGEST_LINE),
    "gpu_hours": ("GPU hours", 20),
    "description": ("Description", LONGEST_TEXT),
    "training_data": ("Training data, in words", LONGEST_TEXT),
    "train_hashes": ("SHA-256 of training data, one a line", LONGEST_TEXT),
}
LONG = ("description", "training_data", "train_hashes")
STATES = {"waiting": "waits", "running": "runs"}


def served_nav(_: str) -> Markup:
    """The links before every page of a server."""
    return NAV


@cache
def watch_script() -> str:
    """The one script of a submission's page."""
    return files("mechassay.service").joinpath("data/watch.js").read_text("utf-8")


def submissions_page(views: Sequence[SubmissionView], total: int, page: int = 1) -> str:
    """The newest submissions."""
    sections = [submissions_section(views, total, lambda each: f"/submissions/{each}")]
    last = max(1, ceil(total / PAGE))
    around = [
        link(f"/submissions?page={number}", text)
        for number, text in ((page - 1, "Newer"), (page + 1, "Older"))
        if 1 <= number <= last
    ]
    top = Markup("<p>{}</p>").format(Markup(" ").join(around)) if around else None
    return render("Submissions", sections, top=top, nav=NAV)


def submissions_section(
    views: Sequence[SubmissionView], total: int, place: Callable[[str], str]
) -> Section:
    """A table of submissions.

    Args:
        total: how many there are in all.
        place: where the page of an id is.
    """
    rows = [
        (
            link(place(view.submission.id), view.submission.name),
            view.submitter,
            view.submission.kind or NOTHING,
            view.submission.state,
            view.progress,
            f"{view.submission.created:%Y-%m-%d %H:%M}",
        )
        for view in views
    ]
    head = ("name", "by", "kind", "state", "how far", "received (UTC)")
    blocks: list[Block] = [Text(f"{counted(total, 'submission')}, the newest first.", "verdict")]
    blocks.append(TextTable.of("", head, rows, words=True) if rows else Text("There are none yet."))
    return Section("", tuple(blocks))


def _nowhere(board: str, row: str) -> str:
    return ""


@dataclass(frozen=True)
class SubmissionPlaces:
    """Where what belongs to a submission is, from its page; "" where there is none.

    Attributes:
        file: the uploaded file.
        row: where a row of a board is, by their names.
        figures: their page, if there is one.
        command: that computes a cell of a row of a board again.
        status: where a page asks what became of the submission.
        nav: before the page.
    """

    file: str = ""
    row: Callable[[str, str], str] = _nowhere
    figures: str = ""
    command: Callable[[str, str], str] = _nowhere
    status: str = ""
    nav: Markup | None = None

    @staticmethod
    def served(view: SubmissionView, address: str) -> SubmissionPlaces:
        """Of a server at an address."""
        held = view.submission
        here, api = f"/submissions/{held.id}", f"/api/submissions/{held.id}"
        if held.state != "done":
            return SubmissionPlaces(status=api, nav=NAV)
        return SubmissionPlaces(
            f"{api}/file",
            lambda board, row: f"/boards/{board}/rows/{cell_name(row)}",
            f"{here}/figures",
            lambda board, _: again_command(board, "--server", address),
            api,
            NAV,
        )


def again_command(board: str, *where: str) -> str:
    """The command that computes a cell of a board again; CELL stands for its name."""
    return shlex.join([*RECOMPUTE, board, "CELL", *where])


def submission_page(
    view: SubmissionView,
    records: Mapping[str, Record],
    places: SubmissionPlaces,
    figures: Sequence[Section] = (),
) -> str:
    """A submission: what it is, how it was made, every cell, and how to compute it again.

    Args:
        records: of its evaluations that are on a board, by key in the store.
        figures: that stand on the page itself.
    """
    held = view.submission
    progress = Markup(
        '<p id="progress" role="status" data-version="{}" data-address="{}">{}</p>'
    ).format(view.version, places.status, view.progress)
    boards, rows = _boards(view, records), _rows(view, records)
    sections = [Section("", tuple(_what(view, places, rows)))]
    if view.evaluations:
        sections.append(Section("Cells", (_cells_table(view, records, boards),)))
    sections += figures
    again = dict.fromkeys(places.command(board, row) for board, _, row in rows)
    if commands := [Command(each) for each in again if each]:
        said = "The page of a row on the board has the command that computes each number again:"
        sections.append(Section("Compute it again", (Text(said), *commands)))
    script = "" if view.ended else watch_script()
    return render(
        held.name, sections, top=progress, script=script, nav=places.nav, connects=bool(script)
    )


def figures_page(
    view: SubmissionView, records: Sequence[Record], drawings: Sequence[Figure] = ()
) -> str:
    """Curves of a submission's public cells, and drawings of its circuits."""
    shown = figure_sections(records, drawings)
    nothing = Section("", (Text("There is nothing to draw."),))
    held = view.submission
    back = Markup("<p>{}</p>").format(link(f"/submissions/{held.id}", held.name))
    return render(f"Figures of {held.name}", shown or [nothing], top=back, nav=NAV)


def figure_sections(records: Sequence[Record], drawings: Sequence[Figure] = ()) -> list[Section]:
    """Curves of public cells, and drawings of circuits."""
    public = [each for each in records if each.kind == "faithfulness" and not is_private(each)]
    curves = [
        Section(setting_name(group[0]), (faithfulness_chart(group),)) for group in settings(public)
    ]
    return [*curves, *([Section("Circuits", tuple(drawings))] if drawings else [])]


def submit_page(megabytes: float, given: Mapping[str, str] | None = None, wrong: str = "") -> str:
    """The form of a submission.

    Args:
        given: what was typed before; never the token.
        wrong: why it was not taken.
    """
    typed = given or {}
    said = (
        "A submission is a .zip or .tar(.gz) of scores, circuits, alignments or directions, or one"
        f" file TASK_MODEL.json, .pt or .safetensors, of at most {megabytes:,g} MB. It is read as"
        " data; nothing in it is executed. Its name and what you declare are shown to everybody."
    )
    parts = [
        _field("token", "Token", '<input {} type="password" required autocomplete="off">'),
        _field(
            "name", "Name", '<input {} required maxlength="{}" value="{}">', LONGEST_NAME, typed
        ),
    ]
    for name, (label, most) in DECLARED.items():
        shape = (
            '<textarea {} rows="3" maxlength="{}">{}</textarea>'
            if name in LONG
            else '<input {} maxlength="{}" value="{}">'
        )
        parts.append(_field(name, label, shape, most, typed))
    parts.append(_field("file", "File", '<input {} type="file" required>'))
    form = Markup(
        '<form method="post" action="/submit" enctype="multipart/form-data">{}'
        "<p><button>Submit</button></p></form>"
    ).format(Markup("").join(parts))
    notice = (
        [Section("", (Notice("It was not taken.", ((wrong, ""),), "broken"),))] if wrong else []
    )
    intro = Markup('<p class="soft">{}</p>').format(said)
    return render("Submit", notice, top=Markup("{}{}").format(intro, form), nav=NAV)


def message_page(title: str, text: str) -> str:
    """A page that says one thing: an error."""
    return render(title, [Section("", (Text(text),))], nav=NAV)


def _field(
    name: str, label: str, shape: str, most: int = 0, typed: Mapping[str, str] | None = None
) -> Markup:
    named = Markup('id="{}" name="{}"').format(name, name)
    filled = () if typed is None else (most, typed.get(name, ""))
    control = Markup(shape).format(named, *filled)
    return Markup('<p><label for="{}">{}</label><br>{}</p>').format(name, label, control)


def _what(
    view: SubmissionView, places: SubmissionPlaces, on_boards: Iterable[tuple[str, str, str]]
) -> list[Block]:
    held = view.submission
    declared = {
        label: _declared(held.declaration.get(name)) for name, (label, _) in DECLARED.items()
    }
    rows: list[tuple[str, str]] = [
        ("submission", held.id),
        ("by", view.submitter),
        ("received (UTC)", f"{held.created:%Y-%m-%d %H:%M:%S}"),
        ("kind", held.kind or NOTHING),
        ("state", held.state),
        *((f"declared: {label}", text) for label, text in declared.items() if text),
        ("file", f"{held.n_bytes:,} bytes, SHA-256 {held.digest}"),
    ]
    if places.file:
        download = Markup('<a href="{}" download>download</a>').format(places.file)
        rows.append(("file", download))
    if places.figures:
        rows.append(("figures", link(places.figures, "curves and circuits")))
    rows += [
        ("on the board", link(place, f"{title}: {row}"))
        for board, title, row in on_boards
        if (place := places.row(board, row))
    ]
    blocks: list[Block] = [TextTable.of("", ("", ""), rows, words=True)]
    for kind, title, warning in (
        ("broken", "What is wrong with it", False),
        ("warnings", "Warnings", True),
    ):
        lines = tuple(
            (str(each.get("message", "")), str(each.get("path", "")))
            for each in held.report
            if bool(each.get("warning")) is warning
        )
        if lines:
            blocks.append(Notice(title, lines, "broken" if kind == "broken" else "warnings"))
    return blocks


def _declared(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None or value != value else str(value)


def _cells_table(
    view: SubmissionView, records: Mapping[str, Record], boards: Sequence[BoardRules]
) -> TextTable:
    """Every cell with the numbers of the boards that read its record."""
    columns = [column for board in boards for column in board.columns]
    kinds = [board.kind for board in boards for _ in board.columns]
    rows: list[Row] = []
    for each in view.evaluations:
        record = records.get(each.record or "")
        found = [
            column.measure_in(record) if record and record.kind == kind else None
            for column, kind in zip(columns, kinds, strict=True)
        ]
        numbers = [
            NOTHING if measure is None else interval(measure.value, measure.low, measure.high)
            for measure in found
        ]
        state = STATES.get(each.state, each.state)
        said = each.message or NOTHING
        kind = "failure" if each.state == "failed" else ""
        spent = plain_number(float("nan") if each.seconds is None else each.seconds)
        rows.append(Row((each.title, each.split, state, *numbers, spent, said), kind))
    head = ("cell", "examples", "state", *(each.title for each in columns), "seconds", "message")
    return TextTable.of("", head, rows, words=True)


def _rows(view: SubmissionView, records: Mapping[str, Record]) -> dict[tuple[str, str, str], None]:
    """Name and title of each board that has a submission, and its row there."""
    held = view.submission
    own = board_rules().get(held.kind)
    found = {} if own is None else {(own.name, own.title, view.row): None}
    for board in board_rules().values():
        for record in records.values():
            if record.kind == board.kind and board is not own:
                row = row_name(held.name, held.id, row_ending(record))
                found[board.name, board.title, row] = None
    return found


def _boards(view: SubmissionView, records: Mapping[str, Record]) -> list[BoardRules]:
    """The board that a submission is for, and others that read records of it."""
    kinds = {record.kind for record in records.values()}
    return [
        board
        for name, board in board_rules().items()
        if name == view.submission.kind or board.kind in kinds
    ]
