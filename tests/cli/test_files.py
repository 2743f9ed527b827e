"""Small files in the formats of public files of pairs, used as a user would.

What is right was worked by hand: eight pairs, of which each compares the names of one sentence
("At the mall Jenny and Linda brought a ring to": Jenny against Linda), are four rows to train on,
two to validate on, and two to test on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).parents[1] / "files"
FIRST = "after '... mall Jenny and Linda brought a ring to' the model is asked for 'Jenny'"
Run = Callable[..., Any]


def checked(file: str, folder: Path, tmp_path: Path, run: Run) -> dict[str, Any]:
    """What `tasks check` says of a file."""
    path = tmp_path / "check.json"
    done = run("tasks", "check", FILES / file, "--model", folder, "--output", path)
    assert done.code == 0, done.err
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        (
            "prefix_patch.json",
            "read clean_prefix as clean, patch_prefix as counterfactual, clean_answer as answer,"
            " patch_answer as foil",
        ),
        (
            "prompts.json",
            "read clean as clean, corrupt as counterfactual, answers as answer, wrong_answers as"
            " foil",
        ),
        (
            "correct_token.ndjson",
            "read clean_prompt as clean, corrupted_prompt as counterfactual, correct_token as"
            " answer, incorrect_token as foil",
        ),
        ("splits.json", None),
        ("rows.json", None),
        ("lists.csv", "read the texts of answers and foils as lists"),
        ("semicolons.csv", None),
        ("bars.tsv", None),
    ],
)
def test_a_public_format_is_read(
    file: str, columns: str | None, folder: Path, tmp_path: Path, run: Run
) -> None:
    check = checked(file, folder, tmp_path, run)
    rows = {split: held["usable"] for split, held in check["splits"].items()}
    assert rows == {"train": 4, "validation": 2, "test": 2}
    assert check["total"]["dropped"] == {}
    assert check["remarks"].get("columns") == columns
    assert "'Jenny' (id " in check["remarks"]["compared"]
    if file != "bars.tsv":
        assert "against 'Linda' (id " in check["remarks"]["compared"]


def test_the_score_is_of_all_rows_and_says_what_is_compared(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    """Nothing is fitted, so that a file without a split column is used whole."""
    words = ("--task", FILES / "prompts.json", "--model", folder, "-o", tmp_path / "run")
    done = run("tasks", "score", *words)
    assert done.code == 0, done.err
    assert "note: prompts: read clean as clean, corrupt as counterfactual, answers as" in done.err
    assert f"note: prompts: {FIRST}" in done.err
    assert "note: prompts: the rows of the file give 8 examples; the limit is 200." in done.err
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "the model is asked for" in page and "wrong_answers as foil" in page
    assert page.index("the model is asked for") < page.index("<table")
    one = run("tasks", "score", *words[:-1], tmp_path / "one", "--split", "test")
    assert "the split test gives 2 examples; the limit is 200" in one.err


def test_permuted_facts_keep_to_their_split(folder: Path, tmp_path: Path, run: Run) -> None:
    """Rows 3 and 6 have counterfactuals of the other split, and get those of their own."""
    check = checked("permuted.jsonl", folder, tmp_path, run)
    rows = {split: held["usable"] for split, held in check["splits"].items()}
    assert rows == {"train": 3, "test": 3}
    note = check["remarks"]["exchanged counterfactuals"]
    assert "4 are of the row's split and were kept, 2 were exchanged" in note


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        (
            "pointer.csv",
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
            "a Git LFS pointer, which stands for the file; git lfs pull gets the file.",
        ),
        ("suite.json", '{"meta": {}, "items": []}', "mechassay gym suite reads it."),
        (
            "graph.json",
            '{"cfg": {}, "nodes": {}, "edges": {}}',
            "mechassay circuits evaluate reads it.",
        ),
        ("other.json", '{"a": [], "b": 1}', "this object has 'a', 'b'."),
        (
            "mixed.csv",
            "clean,corrupted,answer,foil\na b,a c,\"['x']\",\"['y']\"\nd e,d f,x,\"['y']\"\n",
            "'answer' of row 3 is no list, and other rows have lists such as \"['x']\".",
        ),
        (
            "label.csv",
            "clean,corrupted,label\na b,a c,0\nd e,d f,1\n",
            "no column 'foil' (row 2: 'label' is '0', an answer alone).",
        ),
        (
            "minimal.jsonl",
            '{"sentence_good": "A b.", "sentence_bad": "A c."}\n',
            "no column 'counterfactual' (the sentences give a prompt, an answer and a foil where"
            " one word differs).",
        ),
    ],
)
def test_a_file_that_is_no_pairs_gets_one_line(
    name: str, content: str, line: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    done = run("tasks", "check", tmp_path / name)
    assert done.code == 2 and done.line.endswith(line), done.err


def test_what_is_not_there_is_called_so(tmp_path: Path, run: Run) -> None:
    for words, line in (
        (("tasks", "check", "./nowhere/pairs"), "there is no such file; a task is a name, or"),
        (("tasks", "check", tmp_path), "there is a folder; a task is a name, or a file of pairs."),
        (("report", tmp_path / "none"), "there is no such folder."),
    ):
        done = run(*words)
        assert done.code == 2 and line in done.line
