"""The order of lines on a page: bands, columns, rows."""

from __future__ import annotations

import pytest

from mechassay.documents.pdf import PageLine, between_columns, in_order, page_text, title_of


def line(text: str, left: float, top: float, right: float, **more: object) -> PageLine:
    return PageLine(text, float(left), top - 10.0, float(right), float(top), **more)  # type: ignore[arg-type]


def rows(top: float, n: int = 5, name: str = "") -> list[PageLine]:
    """Two columns of n lines, drawn row by row."""
    return [
        line(f"{name}{side}{k}", left, top - 12 * k, left + 230, goes_on=side == "R")
        for k in range(n)
        for side, left in (("L", 50), ("R", 310))
    ]


def told(lines: list[PageLine]) -> str:
    return " ".join(each.text for each in in_order(lines))


def test_rows_become_columns() -> None:
    assert told(rows(700)) == "L0 L1 L2 L3 L4 R0 R1 R2 R3 R4"
    assert page_text(rows(700)) == "L0\nL1\nL2\nL3\nL4\nR0\nR1\nR2\nR3\nR4"


def in_three(top: float, n: int = 6, name: str = "", width: float = 160) -> list[PageLine]:
    """Three columns of n lines, drawn row by row."""
    return [
        line(f"{name}{side}{k}", left, top - 12 * k, left + width, goes_on=side != "L")
        for k in range(n)
        for side, left in (("L", 50), ("M", 220), ("R", 390))
    ]


def test_rows_become_three_columns() -> None:
    page = in_three(700)
    first, second = between_columns(page)
    assert 210 < first < 220 and 380 < second < 390
    expected = "L0 L1 L2 L3 L4 L5 M0 M1 M2 M3 M4 M5 R0 R1 R2 R3 R4 R5"
    assert told(page) == expected
    one_by_one = sorted(page, key=lambda each: each.left)
    assert told(one_by_one) == expected


def test_three_columns_between_lines_across() -> None:
    title, caption = line("T", 100, 760, 500), line("C", 50, 620, 550)
    page = [title, *in_three(700), caption, *in_three(600, name="b")]
    parts = told(page).split()
    assert parts[0] == "T" and parts.index("R5") < parts.index("C") < parts.index("bL0")
    assert parts.index("bL5") < parts.index("bM0") < parts.index("bR0")


def test_three_columns_with_ragged_and_short_ends() -> None:
    page = [
        line(f"{side}{k}", left, 700 - 12 * k, left + 160 - 7 * (k % 3))
        for side, left, n in (("L", 50, 14), ("M", 220, 12), ("R", 390, 7))
        for k in range(n)
    ]
    mixed = sorted(page, key=lambda each: (-each.top, each.left))
    assert told(mixed) == told(page) == " ".join(each.text for each in page)


def test_a_small_table_of_three_texts_does_not_make_two_columns_three() -> None:
    """Twenty rows of two columns, and a table across the page with four of three."""
    page = [*rows(700, 20), *in_three(420, 4, "t", 155)]
    (place,) = between_columns(page)
    assert 280 <= place <= 310


def test_lines_across_cut_bands() -> None:
    title, caption = line("T", 100, 760, 500), line("C", 50, 600, 540)
    page = [title, *rows(700), *rows(580, name="b"), caption]
    expected = "T L0 L1 L2 L3 L4 R0 R1 R2 R3 R4 C bL0 bL1 bL2 bL3 bL4 bR0 bR1 bR2 bR3 bR4"
    assert told(page) == expected


def test_columns_of_unequal_length_and_offset_lines() -> None:
    left = [line(f"L{k}", 50, 700 - 12 * k, 290) for k in range(8)]
    right = [line(f"R{k}", 310, 695 - 13 * k, 540) for k in range(5)]
    mixed = [each for pair in zip(left, right, strict=False) for each in pair] + left[5:]
    assert told(mixed) == "L0 L1 L2 L3 L4 L5 L6 L7 R0 R1 R2 R3 R4"


@pytest.mark.parametrize("lines", [[], rows(700, 2), [line("a", 50, 700, 540)] * 20])
def test_pages_without_columns_keep_the_order_of_drawing(lines: list[PageLine]) -> None:
    assert between_columns(lines) == () and in_order(lines) == lines


def test_a_table_of_short_cells_is_read_row_by_row() -> None:
    cells = [
        line(f"{k}{n}", 60 + 120 * n, 700 - 12 * k, 90 + 120 * n, goes_on=n > 0)
        for k in range(8)
        for n in range(4)
    ]
    assert page_text(cells).splitlines()[0] == "00 01 02 03"


def test_the_title_is_what_is_largest() -> None:
    body = [line(f"word{k} word", 50, 600 - 12 * k, 540) for k in range(9)]
    stamp = PageLine("arXiv:2211.00593v1", 10.0, 200.0, 30.0, 500.0, 20.0)
    large = [
        line("A Circuit", 100, 760, 500, size=17.0),
        line("for Names", 100, 740, 500, size=17.0),
    ]
    assert title_of([stamp, *large, *body]) == "A Circuit for Names"
    assert title_of(body) == "" and title_of([]) == ""
