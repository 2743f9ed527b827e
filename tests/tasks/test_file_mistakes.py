"""Files of pairs: what is refused, and with which rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import BadFile, BadPairs, MechassayError
from mechassay.rows import LONGEST_LINE
from mechassay.tasks import load_task
from mechassay.tasks.files import FileTask
from pair_files import everything, jsonl, refused, row, write

# --- what is refused
# ---------------------------------------------------------------------------------


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, message in (
        ("no.jsonl", "there is no such file"),
        ("a.xlsx", r"end in \.jsonl, \.json, \.csv, \.tsv"),
        ("a", r"end in "),
    ):
        with pytest.raises(BadFile, match=message):
            FileTask(str(tmp_path / name))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadFile, match="no such file"):
        load_task(str(tmp_path / "folder.csv"))
    with pytest.raises(BadFile, match="no such file"):
        load_task("https://example.org/pairs.jsonl")


HEADER = "clean,counterfactual,answer,foil\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("my.jsonl", "", "my: there are no rows."),
        ("my.jsonl", "\n \n", "my: there are no rows."),
        ("my.csv", "", "my: there are no rows."),
        ("my.csv", HEADER, "my: there are no rows."),
        (
            "my.csv",
            HEADER.encode() + b"a,b, c, \xe9\n",
            "my: line 2 is not UTF-8 (invalid continuation byte at its byte 9).",
        ),
        ("my.jsonl", jsonl([row(1)]).encode("utf-16"), "my: line 1 is not UTF-8"),
        (
            "my.csv",
            HEADER + 'a,b, c, d\n"a,b, c, d\nx,y, z, w\n',
            "my: row 3 is not CSV (unexpected end of data).",
        ),
        ("my.csv", HEADER + 'a,b, c, d\n\n"a"b,b, c, d\n', "my: row 4 is not CSV ("),
        (
            "my.csv",
            HEADER + "a" * 200_000 + ",b, c, d\n",
            "my: row 2 is not CSV (field larger than field limit",
        ),
        (
            "my.csv",
            "clean,clean,answer,foil\na,b, c, d\n",
            "my: row 1 names the column 'clean' twice.",
        ),
        (
            "my.csv",
            HEADER.replace(",", ";") + "a;b; c; d\n",
            (
                "my: row 1: no columns 'clean', 'counterfactual', 'answer', 'foil' (there are"
                " 'clean;counterf"
            ),
        ),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    assert refused(write(tmp_path, content, name), BadFile).startswith(message)


def test_a_line_without_an_end_is_none(tmp_path: Path) -> None:
    assert "row 1: more than 16,777,216 characters" in refused(
        write(tmp_path, b"x" * (LONGEST_LINE + 1)), BadFile
    )


MISTAKES: list[tuple[type[MechassayError], dict[str, Any], str]] = [
    (BadFile, {"clean": 3}, "'clean' must be text (got 3)"),
    (BadFile, {"answer": 3}, "'answer' must be text or a list of texts (got 3)"),
    (BadFile, {"answer": [" a", None]}, "'answer' must be text or a list of texts (got None)"),
    (BadFile, {"foil": {"a": 1}}, "'foil' must be text or a list of texts (got {'a': 1})"),
    (BadFile, {"id": True}, "'id' must be text or a whole number (got True)"),
    (BadFile, {"group": [1]}, "'group' must be text or a whole number (got [1])"),
    (BadFile, {"split": 1}, "'split' must be text (got 1)"),
    (BadFile, {"foil": None}, "no column 'foil' (there are 'clean', 'counterfactual', 'answer')"),
    (
        BadFile,
        {"corrupted": "x"},
        "the columns 'counterfactual' and 'corrupted' mean the same (keep one of them)",
    ),
    (
        BadFile,
        {"answers": " x"},
        "the columns 'answer' and 'answers' mean the same (keep one of them)",
    ),
    (
        BadFile,
        {"answer": None, "correct_idx": 7},
        "'correct_idx' and 'foil' are not of one kind (both must be texts, or both token ids)",
    ),
    (BadPairs, {"clean": " \n"}, "'clean' is empty"),
    (BadPairs, {"counterfactual": ""}, "'counterfactual' is empty"),
    (
        BadPairs,
        {"counterfactual": row(1)["clean"]},
        "'clean' equals 'counterfactual' ('Visitor 1 of the Eiffel Tower is in')",
    ),
    (BadPairs, {"answer": ""}, "'answer' is empty"),
    (BadPairs, {"answer": []}, "'answer' is empty"),
    (BadPairs, {"foil": [" a", ""]}, "'foil' is empty"),
    (BadPairs, {"foil": " Paris"}, "an answer equals a foil (' Paris')"),
    (BadPairs, {"answer": [" x", " Rome"]}, "an answer equals a foil (' Rome')"),
]


@pytest.mark.parametrize(("kind", "change", "message"), MISTAKES)
def test_rows_that_are_wrong(
    tmp_path: Path, kind: type[MechassayError], change: dict[str, Any], message: str
) -> None:
    bad = {name: value for name, value in {**row(1), **change}.items() if value is not None}
    lines = [row(2), "", bad, row(3)]
    assert refused(write(tmp_path, jsonl(lines)), kind) == f"my: row 3: {message}."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "{'clean': 1}",
            "not JSON (Expecting property name enclosed in double quotes at character 2)",
        ),
        ("[1, 2]", "a row is a JSON object (got [1, 2])"),
        ("7", "a row is a JSON object (got 7)"),
        ('{"clean": "a", "clean": "b"}', "not JSON ('clean' comes twice)"),
        ("[" * 100_000, "not JSON (nested too deeply)"),
        (
            json.dumps(row(1, note="X")).replace("X", "\\ud800"),
            "half of a surrogate pair, which is no text",
        ),
        ('{"clean": ' + "9" * 5000 + "}", "not JSON (Exceeds the limit (4300 digits)"),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, line: str, message: str) -> None:
    assert refused(write(tmp_path, jsonl([row(1), line])), BadFile).startswith(
        f"my: row 2: {message}"
    )


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    (pair,) = everything(write(tmp_path, jsonl([row(1, note="\U0001f600")])))
    assert pair.tags["note"] == "\U0001f600"


ONE_EMPTY = r"row 2: one of several answers or foils is empty (a bar that is meant is written \|)"


def test_cells_that_are_wrong(tmp_path: Path) -> None:
    for cells, kind, message in (
        ("a,b, c\n", BadFile, "row 2: another number of cells than the header (3 for 4)"),
        ("a,b, c, d, e\n", BadFile, "row 2: another number of cells than the header (5 for 4)"),
        ("a,b,, d\n", BadPairs, "row 2: 'answer' is empty"),
        ("a,b, c|, d\n", BadPairs, ONE_EMPTY),
        ("a,b, c| d, d\n", BadPairs, "row 2: an answer equals a foil (' d')"),
    ):
        assert refused(write(tmp_path, HEADER + cells, "my.csv"), kind) == f"my: {message}."


def test_a_misspelt_column_is_found(tmp_path: Path) -> None:
    for wrong in ("counterfactal", "Counterfactual", " counterfactual", "corupted"):
        message = refused(
            write(tmp_path, f"clean,{wrong},answer,foil\na,b, c, d\n", "my.csv"), BadFile
        )
        right = "corrupted" if wrong == "corupted" else "counterfactual"
        there = (
            f"there are 'clean', {wrong!r}, 'answer', 'foil'; did you mean {right!r} by {wrong!r}?"
        )
        assert message == f"my: row 1: no column 'counterfactual' ({there})."


def test_many_wrong_rows_are_counted(tmp_path: Path) -> None:
    bad = {3, 17, 20, *range(30, 71)}
    rows = [
        row(n, foil=" Paris") if n in bad else row(n, clean="") if n in (5, 9) else row(n)
        for n in range(1, 100)
    ]
    message = refused(write(tmp_path, jsonl(rows)), BadPairs)
    assert (
        message
        == "my: rows 3, 17, 20 and 41 more: an answer equals a foil (row 3: ' Paris'); rows 5 and"
        " 9: 'clean' is empty."
    )
    rows[10] = row(11, clean=1)
    assert (
        refused(write(tmp_path, jsonl(rows)), BadFile)
        == "my: row 11: 'clean' must be text (got 1)."
    ), "the format comes first"


def test_the_message_stays_short(tmp_path: Path) -> None:
    rows = [{f"column{n}{m}" * 5: 1 for m in range(3)} for n in range(300)] + [
        row(1, **{key: 1}) for key in ("clean", "answer", "foil", "counterfactual", "split")
    ]
    message = refused(write(tmp_path, jsonl(rows)), BadFile)
    assert len(message) < 1000 and message.endswith("and 2 other kinds of mistakes.")


def test_ids_differ(tmp_path: Path) -> None:
    rows = [row(1, id="a"), row(2, id="b"), row(3, id="a"), row(4)]
    assert (
        refused(write(tmp_path, jsonl(rows)), BadPairs)
        == "my: row 3 has the id of row 1; ids must differ."
    )
    rows += [row(5, id="b"), row(6, id="my-000004"), row(7, id=7), row(8, id="7")]
    assert (
        refused(write(tmp_path, jsonl(rows)), BadPairs)
        == "my: row 3 has the id of row 1; ids must differ (3 more such rows)."
    )
    rows = [row(1, id="my-000002"), row(2)]
    assert "row 2 has the id of row 1" in refused(write(tmp_path, jsonl(rows)), BadPairs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "my: a .json file of rows is a list of objects; got {}."),
        ("[1]", "my: row 1: a row is a JSON object (got 1)."),
        ("[", "my is not JSON (Expecting value at character 2)."),
        ("[" * 100_000, "my is not JSON (nested too deeply)."),
        (
            "[\n{,}]",
            "my is not JSON (Expecting property name enclosed in double quotes at line 2, "
            "character 2).",
        ),
        (b"\xff", "my: line 1 is not UTF-8 (invalid start byte at its byte 1)."),
        ('[{"clean": 1, "clean": 2}]', "my is not JSON ('clean' comes twice)."),
        ('[{"clean": "\\ud800"}]', "my: row 1: half of a surrogate pair, which is no text."),
        ("[]", "my: there are no rows."),
    ],
)
def test_json_that_is_wrong(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refused(write(tmp_path, content, "my.json"), BadFile) == message
