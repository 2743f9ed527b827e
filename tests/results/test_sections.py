"""Sections of any record: every measure is on its page, every block escapes what it is given."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from mechassay.results.console import print_tables
from mechassay.results.page import (
    PAGE_LETTERS,
    Block,
    Column,
    Facts,
    Figure,
    Fold,
    Heading,
    Notice,
    Report,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
    markdown,
    render,
)
from mechassay.results.records import PAGES, Check, Failure, Measure, Record, Spec, Table, page_of
from mechassay.results.report import print_report, write_page, write_tables
from mechassay.results.sections import (
    MOST_NAMED,
    MOST_TABLES,
    MOST_WARNINGS,
    framed,
    warnings_notice,
)

Make = Callable[..., Record]
HOSTILE = '<script>alert("1")</script>'
TEXT = "&lt;script&gt;"
BLOCKS: list[Block] = [
    Text(HOSTILE),
    Text("", lead=HOSTILE),
    Notice(HOSTILE, ((HOSTILE, HOSTILE),)),
    Heading(HOSTILE),
    Figure("<svg></svg>", HOSTILE, HOSTILE),
    Terms({HOSTILE: HOSTILE}),
    Facts(((HOSTILE, ((HOSTILE, 1),)),)),
    Fold(HOSTILE, (Text(HOSTILE),)),
    TextTable.of(HOSTILE, (HOSTILE, HOSTILE), [(HOSTILE, HOSTILE)], caption=HOSTILE),
    TextTable.of("", ("a", "b"), [Row((HOSTILE, "1 [2, 3]"), swatch=HOSTILE)]),
]


def strange(record: Record, **more: object) -> Record:
    """A record of a kind that nobody knows."""
    return record.changed(kind="strange", **more)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_every_block_escapes_what_it_is_given(block: Block) -> None:
    page = render(HOSTILE, [Section(HOSTILE, (block,), swatch=HOSTILE)])
    assert "<script" not in page and page.count(TEXT) >= 4
    assert "script-src" not in page and "default-src 'none'" in page


def test_markdown_has_the_words_and_tables() -> None:
    text = markdown([Section("One", tuple(BLOCKS)), Section("Two", (Figure("<svg>"),))])
    for part in ("## One", "### <script>", f"- **{HOSTILE}**: {HOSTILE}", f"| {HOSTILE} |"):
        assert part in text
    assert "svg" not in text and "## Two" not in text
    table = TextTable.of("Inner", ("a", "b"), [("x", "1")])
    folds = [Fold("Shut", (table, Figure("<svg>")), in_markdown=kept) for kept in (False, True)]
    left_out, kept = (markdown([Section("One", (fold,))]) for fold in folds)
    assert left_out == "\n" and "### Inner" in kept and "| x | 1 |" in kept and "svg" not in kept


@pytest.mark.parametrize("kind", ["circuits", "accuracy", "strange"])
def test_every_measure_appears_on_its_page(make_record: Make, kind: str) -> None:
    """A metric needs no page of its own: its numbers are there because they are measures."""
    numbers = {"result": 0.8125, "model": 0.4375, "control:empty": 0.3125, "judge": 0.6875}
    measures = [
        Measure(name="brand_new", title="Newness", of=of, value=value, n=77)
        for of, value in numbers.items()
    ]
    record = make_record(measures=measures).changed(kind=kind)
    page = render("T", page_of(record.kind).sections(Report([record])))
    for measure in record.measures:
        assert measure.heading in page
    for value in numbers.values():
        assert f"{value:.4g}" in page


def test_a_kind_that_nobody_knows_has_a_page(make_record: Make) -> None:
    long = Table.of("layers", ("layer",), [{"layer": n, "score": n / 7} for n in range(40)])
    short = Table.of("parts", ("part",), [{"part": HOSTILE, "works": True, "x": None}])
    checks = [
        Check(name="identity", must_be="0", largest=0.0, n=9, n_wrong=0),
        Check(name="swap", must_be="1", largest=0.25, n=9, n_wrong=2),
    ]
    meaning = Measure(name="m", title="Em", value=3.0, meaning="What it means.", better="down")
    record = strange(
        make_record(measures=[meaning], warnings=["Mind this."]),
        tables=[long, short],
        checks=checks,
    )
    judge = {**record.specs, "judge": Spec(name="a-judge", args={"votes": 5})}
    record = record.model_copy(update={"specs": judge})
    failure = Failure(cell={"method": "slow"}, error="OutOfMemory", message="Too big.")
    page = render("T", page_of(record.kind).sections(Report([record], [failure])))
    places = [
        page.index(part)
        for part in (
            "Controls fail: do not use these results.",
            "swap must be 1: 2 of 9 are not",
            "CPR 0.90 [0.80, 1.00]",
            "1 cell failed",
            "Mind this.",
            "<h2>Measures",
            "OutOfMemory: Too big.",
            "<summary>Controls",
            "layers</summary>",
            "What it means.",
            "a-judge",
            "pair-4",
        )
    ]
    assert places == sorted(places)
    assert "CMD, Em: lower is better." in page and "<script" not in page and "votes=5" in page
    console = Console(width=120, file=io.StringIO(), record=True)
    print_report(Report([record], [failure]), console)
    text = console.export_text()
    assert "0.90" in text and "slow: failed: OutOfMemory: Too big." in text


def test_records_of_several_kinds_share_a_page(make_record: Make, tmp_path: Path) -> None:
    records = [make_record("a"), strange(make_record("b"))]
    page = write_page(tmp_path / "page.html", Report(records)).read_text("utf-8")
    assert (
        "<h2>Measures" in page
        and '<th scope="row">a</th>' in page
        and '<th scope="row">b</th>' in page
    )


def test_a_drawing_may_be_a_value(make_record: Make, tmp_path: object) -> None:
    class Drawing:
        svg, title, about = "<svg></svg>", "A & B", "Two circuits."

    page = render(
        "T", page_of(make_record().kind).sections(Report([make_record()], (), [Drawing()]))
    )
    assert "<strong>A &amp; B.</strong> Two circuits. Point at" in page
    assert callable(write_page)


def test_a_narrow_console_leaves_out_what_it_may() -> None:
    from mechassay.results.page import Column

    columns = (Column("name", numeric=False), Column("value"), Column("more", optional=1))
    table = TextTable("T", columns, (Row(("a", "1.0 [0.5, 1.5]", "x" * 30)), Row(("b", "broke"))))
    for width, shown in ((40, False), (80, True)):
        console = Console(width=width, file=io.StringIO(), record=True)
        print_tables([table], console)
        text = console.export_text()
        assert ("xxx" in text) == shown and "b: broke" in text and "[0.5, 1.5]" in text


def test_a_page_shows_the_answer_and_six_tables_at_most(make_record: Make) -> None:
    record = make_record(warnings=["Mind this."])
    tables = [TextTable.of(f"t{n}", ("a", "b"), [("x", "1")]) for n in range(MOST_TABLES + 3)]
    shown = [Section(table.title, (table,)) for table in tables]
    first, *kept, more = framed(Report([record]), [Text("So it is.", "verdict")], shown)
    assert first.title == "" and first.blocks[0] == Text("So it is.", "verdict")
    assert isinstance(first.blocks[-1], Notice)
    assert [section.title for section in kept] == [f"t{n}" for n in range(MOST_TABLES)]
    folds = [block for block in more.blocks if isinstance(block, Fold)]
    assert len(folds) == len(more.blocks)
    assert [fold.title for fold in folds][:3] == ["t6", "t7", "t8"]
    assert any(fold.title == "What was run on what" for fold in folds)
    # Markdown has all tables, under their names.
    text = markdown([first, *kept, more])
    assert all(text.count(f" t{n}\n") == 1 for n in range(MOST_TABLES + 3))


def test_a_page_of_nothing_says_so() -> None:
    assert framed(Report(), [], []) == [Section("", (Text("There are no results.", "verdict"),))]


@pytest.mark.parametrize("kind", PAGES.names())
def test_every_kind_of_page_begins_with_a_sentence(kind: str) -> None:
    first = page_of(kind).sections(Report([]))[0]
    assert any(isinstance(block, Text) and block.kind == "verdict" for block in first.blocks)


def test_columns_that_do_not_fit_are_hidden_the_least_wanted_first() -> None:
    wide = "0.123 [0.100, 0.150]"
    columns = (Column("method", numeric=False), *(Column(f"c{i}", optional=i) for i in range(12)))
    table = TextTable("T", columns, (Row(("a", *[wide] * 12)), Row(("b", "it failed"))))
    # Each takes the 13 letters below its number and two between columns; the name takes 8.
    n_fit = (PAGE_LETTERS - 8) // 15
    assert table.hidden == frozenset(range(n_fit + 1, 13))
    page = render("title", [Section("", (table,))])
    assert page.count('class="numeric extra"') == 2 * len(table.hidden)
    assert f"All columns: also {', '.join(f'c{i}' for i in range(n_fit, 12))}" in page
    kept = TextTable("T", tuple(Column(column.heading) for column in columns), table.rows)
    assert not kept.hidden, "columns that nobody may leave out stay"


def test_words_with_an_interval_stay_in_one_piece_and_numbers_have_theirs_below() -> None:
    table = TextTable.of("T", ("what", "why"), [("a", "f is 0.5 [0.4, 0.6] of 9")], words=True)
    assert "f is 0.5 [0.4, 0.6] of 9" in render("title", [Section("", (table,))])
    table = TextTable.of("T", ("what", "f"), [("a", "0.5 [0.4, 0.6]")])
    assert '<span class="interval">[0.4, 0.6]</span>' in render("title", [Section("", (table,))])


def test_many_warnings_fold_and_none_is_lost(make_record: Make) -> None:
    warnings = [f"warning {number}" for number in range(MOST_WARNINGS + 2)]
    first, *folds = warnings_notice([make_record().changed(warnings=warnings)])
    assert isinstance(first, Notice) and len(first.lines) == MOST_WARNINGS
    text = markdown([Section("", (first, *folds))])
    assert all(warning in text for warning in warnings) and "2 more warnings" in text


def test_a_warning_about_many_records_names_a_few_and_counts_the_rest(make_record: Make) -> None:
    some = [make_record(f"m{i}").changed(warnings=["odd"]) for i in range(MOST_NAMED + 2)]
    fine = make_record("fine").changed(warnings=[])
    ((text, about),) = _lines(warnings_notice([*some, fine]))
    assert text == "odd" and about.endswith(f"m{MOST_NAMED - 1}; and 2 more")
    assert about.count(";") == MOST_NAMED
    ((_, about),) = _lines(warnings_notice([*some[:MOST_NAMED], fine]))
    assert about.endswith(f"m{MOST_NAMED - 1}"), "as many as are named leave none to count"
    ((_, about),) = _lines(warnings_notice(some))
    assert about == "", "of all records none is named"


def _lines(blocks: Sequence[object]) -> tuple[tuple[str, str], ...]:
    return tuple(line for block in blocks if isinstance(block, Notice) for line in block.lines)


def test_every_measure_is_in_a_csv_file_beside_the_tables(
    make_record: Make, tmp_path: Path
) -> None:
    records = [make_record("eap"), make_record("nap", cpr=(math.nan, math.nan, math.nan))]
    write_tables(tmp_path / "tables.md", Report(records))
    with (tmp_path / "tables.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(record.measures) for record in records)
    first = records[0].measures[0]
    assert rows[0]["method"] == "eap" and rows[0]["measure"] == first.name
    assert float(rows[0]["value"]) == first.value and rows[0]["n"] == str(first.n)
    assert any(row["method"] == "nap" and row["value"] == "" for row in rows), "undefined is empty"
