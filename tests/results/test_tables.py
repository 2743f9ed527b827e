"""Tables as CSV and LaTeX: numbers that other programs read, and text that LaTeX takes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given
from markupsafe import Markup

from mechassay.results.page import BEST, OVERSHOT, Report, TextTable
from mechassay.results.records import Record
from mechassay.results.report import write_each_table

TABLE = TextTable.of(
    "CMD_1 & more",
    ("method", "ioi", "note", "note"),
    [
        (
            "eap #1",
            f"{BEST}0.03 [-0.01, 0.07]",
            "1,234",
            "50% of {a|b}",
        ),
        ("nap", "–", "-2.5e-05", Markup("<b>x</b>~^\\")),
        ("acdc", f"{OVERSHOT}2.5 [2, 3]", "1", "a"),
        ("ugs", "skipped: too long"),
    ],
    caption="A caption.",
)


def test_numbers_and_their_intervals_are_columns() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [
        ["method", "ioi", "ioi, low", "ioi, high", "note", "note (4)"],
        ["eap #1", "0.03", "-0.01", "0.07", "1234.0", "50% of {a|b}"],
        ["nap", "–", "", "", "-2.5e-05", "x~^\\"],
        ["acdc", "2.5", "2.0", "3.0", "1.0", "a"],
        ["ugs", "skipped: too long", "", "", "", ""],
    ]


def test_latex_has_the_rules_of_booktabs_and_no_sign_of_its_own() -> None:
    text = TABLE.latex()
    assert text.splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{CMD\_1 \& more. A caption.}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"method & ioi & note & note \\",
        r"\midrule",
        r"eap \#1 & \textbf{0.03} {\scriptsize [-0.01, 0.07]} & 1,234"
        r" & 50\% of \{a\textbar{}b\} \\",
        r"nap & – & -2.5e-05 & x\textasciitilde{}\textasciicircum{}\textbackslash{} \\",
        r"acdc & $\ddagger$2.5 {\scriptsize [2, 3]} & 1 & a \\",
        r"ugs & \multicolumn{3}{l}{skipped: too long} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_what_only_looks_like_a_number_stays_text() -> None:
    words = [",", "3 [a, b]", "1 [2, 3] of 4", "٣", "1,234 [1,000, 2,000]"]
    table = TextTable.of("", ("token", "value"), [("x", word) for word in words], words=True)
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert [row[1] for row in rows[1:]] == [*words[:-1], "1234.0"]
    assert rows[-1][2:] == ["1000.0", "2000.0"]


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4))
def test_no_cell_breaks_a_row(cells: list[str]) -> None:
    """Whatever a cell says, a row is one line with as many separators as columns."""
    table = TextTable.of("", [f"c{place}" for place in range(len(cells))], [cells])
    held = list(csv.reader(io.StringIO(table.csv())))
    assert len(held) >= 2 and len({len(line) for line in held}) == 1
    row = table.latex().split("\\midrule\n")[1].split("\n\\bottomrule")[0]
    bare = row.replace("\\&", "").replace("\\textbackslash{}", "")
    assert "\n" not in row and bare.count("&") == len(cells) - 1
    assert bare.count("{") - bare.count("\\{") == bare.count("}") - bare.count("\\}")


def test_every_table_of_a_page_is_written(
    make_record: Callable[..., Record], tmp_path: Path
) -> None:
    records = [make_record("eap"), make_record("nap")]
    files = write_each_table(tmp_path, Report(records))
    assert len(files) > 2 and {file.suffix for file in files} == {".tex"}
    for file in files:
        rows = list(csv.reader(io.StringIO(file.with_suffix(".csv").read_text("utf-8"))))
        assert len(rows) > 1 and r"\toprule" in file.read_text("utf-8")
    assert any("eap" in file.read_text("utf-8") for file in files)
