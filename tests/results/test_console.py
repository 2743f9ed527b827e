"""Tables on a console of any width: words stay whole, and what has no room is named."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from mechassay.results import console as module
from mechassay.results.console import print_tables, print_text, standard_output
from mechassay.results.page import Column, Row, TextTable

WIDTHS = (60, 80, 120, 200)

METHODS = (
    "eap", "eap-ig-activations", "edge-pruning", "subnetwork-probing", "random-paths",
    "probe-shuffled", "mean-shuffled",
)  # fmt: skip
NUMBERS = "0.743 [-0.671, 0.824]"


def wide(n_rows: int, optional: int = 0) -> TextTable:
    """A column a method; the last ones may be optional."""
    columns = [
        Column(name, optional=place if place > len(METHODS) - optional else 0)
        for place, name in enumerate(METHODS, start=1)
    ]
    rows = tuple(Row((f"task_number_{n}", *[NUMBERS] * len(METHODS))) for n in range(n_rows))
    return TextTable("Odds", (Column("task", numeric=False), *columns), rows, "A caption.")


def worded(n_rows: int) -> TextTable:
    """Sentences beside names that have no spaces."""
    about = "An exact effect of ablating each edge alone, 0.95 [0.83, 1.00] of 100 % of all pairs."
    names = "random_names_s1_ioi_flip_s2_ioi_flip_counterfactual, abc_counterfactual"
    rows = [(f"a-method-{n}", about, names, "12") for n in range(n_rows)]
    return TextTable.of("", ("name", "about", "counterfactuals", "n"), rows, words=True)


def printed(table: TextTable, width: int, elsewhere: str = "--json") -> str:
    out = io.StringIO()
    print_tables([table], Console(file=out, width=width), elsewhere)
    return out.getvalue()


def words(table: TextTable) -> set[str]:
    cells = [*table.headings, *(cell for row in table.rows for cell in row.cells)]
    return {word for cell in cells for word in re.sub(r"\[.*?\]", "", cell).split()}


TABLES = [
    wide(1), wide(3), wide(30), wide(3, optional=5), wide(30, optional=3), worded(3), worded(30),
]  # fmt: skip


def parts(text: str) -> set[str]:
    """What stands between spaces, lines of tables, and colons after headings."""
    return set(re.split(r"[\s│┃]+|:(?=\s)", text))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_no_word_is_cut_and_no_column_goes_unsaid(table: TextTable, width: int) -> None:
    text = printed(table, width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.count("[") == len(re.findall(r"\[-?[\d.]+, [\d.]+\]", text)), "an interval is cut"
    above, _, note = text.partition("Not shown: ")
    if not note:
        in_blocks = {table.headings[0]} - parts(text) if "│" not in text else set[str]()
        assert words(table) - in_blocks <= parts(text)
        return
    found = re.match(
        r"(.*?)\. See --json, or a terminal of [\d,]+ columns\.", " ".join(note.split())
    )
    assert found
    left_out = found[1].split("; ")
    assert set(left_out) < set(table.headings)
    shown = [place for place, name in enumerate(table.headings) if name not in left_out]
    columns = tuple(table.columns[place] for place in shown)
    rows = tuple(Row(tuple(row.cells[place] for place in shown)) for row in table.rows)
    assert words(TextTable("", columns, rows)) <= parts(above)
    assert not {word for name in left_out for word in name.split()} & parts(above)


def test_the_terminal_that_is_asked_for_shows_everything() -> None:
    for table in (wide(30), wide(30, optional=5), worded(30)):
        found = re.search(r"terminal\s+of\s+(\d+)", printed(table, 70))
        assert found
        needed = int(found[1])
        assert "Not shown" in printed(table, needed - 1)
        assert "Not shown" not in printed(table, needed)


def test_a_table_of_numbers_with_few_rows_is_turned_on_its_side() -> None:
    text = printed(wide(1), 60)
    for method in METHODS:
        assert re.search(rf"│ {method} +│ +{re.escape(NUMBERS)} │", text)


def test_a_short_table_of_words_is_set_in_blocks() -> None:
    text = printed(worded(2), 60)
    assert "│" not in text and "a-method-0\n  about: An exact effect" in text
    assert "  n: 12\n" in text and "Not shown" not in text


def test_optional_columns_go_first_and_the_highest_number_before_others() -> None:
    columns = (
        Column("name", numeric=False),
        Column("value"),
        Column("more", numeric=False, optional=2),
        Column("less", numeric=False, optional=1),
    )
    table = TextTable("", columns, (Row(("a", "1.00 [0.50, 1.50]", "x" * 20, "y" * 20)),))
    assert "Not shown" not in printed(table, 80)
    assert "Not shown: more. See --json" in printed(table, 50)
    assert "Not shown: more; less. See --json" in " ".join(printed(table, 30).split())


def test_what_is_to_be_left_out_first_is() -> None:
    rows, names = [("a", "x" * 20, "y" * 20)], ("name", "first", "second")
    for order, first in ((("first",), "first"), (("second", "first"), "second")):
        table = TextTable.of("", names, rows, words=True, leave_out=order)
        assert f"Not shown: {first}. See" in " ".join(printed(table, 40).split())


def test_captions_titles_and_messages_end_their_lines_between_words() -> None:
    said = "every-word-of-it-is-whole " * 20
    table = TextTable(said, (Column("a"), Column("b")), (Row(("1", "2")), Row(("c", said))), said)
    text = printed(table, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert set(re.findall(r"[\w-]{4,}", text)) == {"every-word-of-it-is-whole"}


def test_a_word_that_is_too_long_is_left_to_the_terminal() -> None:
    out = io.StringIO()
    print_text(f"See {'x' * 90} for more.", Console(file=out, width=60))
    assert out.getvalue() == f"See\n{'x' * 90}\nfor more.\n"


def test_markup_in_cells_is_text() -> None:
    table = TextTable.of("[red]t", ("[b]a", "b"), [("[bold]x", "1"), ("[i]y", "broke")])
    text = printed(table, 60)
    assert all(part in text for part in ("[red]t", "[b]a", "[bold]x"))


def test_a_pipe_has_room_for_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for table in TABLES:
        print_tables([table], standard_output())
        text = capsys.readouterr().out
        assert "Not shown" not in text and words(table) <= set(re.split(r"[\s│┃]+", text))
        n_lines = sum("│" in line for line in text.splitlines())
        assert n_lines == len(table.rows), "a row is a line"


def test_columns_says_how_wide_a_pipe_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert standard_output().width == 60
    monkeypatch.setenv("COLUMNS", "wide")
    assert standard_output().width == module.ENDLESS
