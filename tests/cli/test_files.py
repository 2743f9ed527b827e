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
            "no column 'counterfactual' (the sentences give clean, answer and foil where one word"
            " differs).",
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


ONE = {
    "clean": "At the mall Jenny and Linda brought a ring to",
    "counterfactual": "At the mall Linda and Jenny brought a ring to",
    "answer": " Jenny",
    "foil": " Linda",
}
PROMPTS_ONLY = {name: ONE[name] for name in ("clean", "counterfactual")}


def without(*names: str) -> dict[str, Any]:
    return {name: text for name, text in ONE.items() if name not in names}


ADVICE: list[tuple[str, Any, str, Any]] = [
    (
        "pairs.jsonl",
        without("foil") | {"foill": " Linda"},
        "did you mean 'foil' by 'foill'?",
        ONE,
    ),
    (
        "pairs.jsonl",
        ONE | {"foils": [" Linda"]},
        "the columns 'foil' and 'foils' mean the same (keep one of them)",
        ONE,
    ),
    (
        "pairs.jsonl",
        {"counterfactual": ONE["counterfactual"]}
        | {"sentence_good": f"{ONE['clean']} Jenny.", "sentence_bad": f"{ONE['clean']} Linda and."},
        "the sentences must differ in exactly one word",
        {"counterfactual": ONE["counterfactual"]}
        | {"sentence_good": f"{ONE['clean']} Jenny.", "sentence_bad": f"{ONE['clean']} Linda."},
    ),
    (
        "pairs.jsonl",
        {"sentence_good": f"{ONE['clean']} Jenny.", "sentence_bad": f"{ONE['clean']} Linda."},
        "no column 'counterfactual'",
        {"counterfactual": ONE["counterfactual"]}
        | {"sentence_good": f"{ONE['clean']} Jenny.", "sentence_bad": f"{ONE['clean']} Linda."},
    ),
    (
        "pairs.jsonl",
        PROMPTS_ONLY | {"correct_idx": 3, "foil": " Linda"},
        "both must be texts, or both token ids",
        ONE,
    ),
    (
        "pairs.jsonl",
        PROMPTS_ONLY | {"correct_idx": 999999, "incorrect_idx": 1},
        "there is no token 999999",
        ONE | {"correct_idx": 999999, "incorrect_idx": 1},
    ),
    (
        "pairs.jsonl",
        PROMPTS_ONLY | {"label": 1},
        "no column 'foil'",
        ONE | {"label": 1},
    ),
    (
        "pairs.csv",
        "clean,counterfactual,answer,foil\n{clean},{counterfactual}, Jenny| ,| Linda\n",
        "a bar that is meant is written \\|",
        "clean,counterfactual,answer,foil\n{clean},{counterfactual}, Jenny, Linda\n",
    ),
    (
        "pairs.json",
        {"cases": ONE},
        "a list of objects, or an object with one such list",
        {"data": [ONE]},
    ),
]


@pytest.mark.parametrize(("name", "wrong", "advice", "right"), ADVICE)
def test_following_the_advice_of_a_refusal_compares_the_right_words(
    name: str, wrong: Any, advice: str, right: Any, folder: Path, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / name
    path.write_text(wrong.format(**ONE) if isinstance(wrong, str) else json.dumps(wrong), "utf-8")
    refused = run("tasks", "check", path, "--model", folder)
    assert refused.code == 2 and advice in refused.line, refused.err
    path.write_text(right.format(**ONE) if isinstance(right, str) else json.dumps(right), "utf-8")
    remarks = checked(str(path), folder, tmp_path, run)["remarks"]
    assert remarks["compared"].startswith(f"{FIRST} (id "), remarks["compared"]
    assert "against 'Linda' (id " in remarks["compared"]


def test_following_the_advice_on_an_empty_split_scores_the_rows(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(ONE | {"split": "train"}), "utf-8")
    words = ("tasks", "score", path, "--model", folder, "--output", tmp_path / "run")
    refused = run(*words)
    assert refused.code == 2
    assert "ask for 'train' (--split train)" in refused.line
    assert "say in a column 'split' which rows are test" in refused.line
    asked = run(*words, "--split", "train")
    assert asked.code == 0 and f"pairs: {FIRST}" in asked.err
    path.write_text(json.dumps(ONE | {"split": "test"}), "utf-8")
    said = run(*words[:-1], tmp_path / "said")
    assert said.code == 0 and f"pairs: {FIRST}" in said.err
