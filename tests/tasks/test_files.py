"""Files of pairs: what is read, what is refused and with which rows,
how rows are split, how much memory it takes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadFile, BadPairs, BadUsage, MechassayError, UnknownName
from mechassay.pairs import Batch, content_hash
from mechassay.tasks import SPLITS, load_task
from mechassay.tasks.check import check_pairs
from mechassay.tasks.files import FileTask
from mechassay.tasks.rows import LONGEST_LINE
from mechassay.tasks.task import settings_of

PLACES = {
    "Paris": "Eiffel Tower",
    "Berlin": "Brandenburg Gate",
    "Rome": "Colosseum",
    "Athens": "Acropolis",
    "London": "Tower Bridge",
}
CSV_KEYS = ["clean", "counterfactual", "answer", "foil", "id", "group", "split", "town", "note"]


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A right row; `changes` replace values, None takes a column away."""
    made: dict[str, Any] = {
        "clean": f"Visitor {number} of the Eiffel Tower is in",
        "counterfactual": f"Visitor {number} of the Colosseum is in",
        "answer": " Paris",
        "foil": " Rome",
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def jsonl(rows: Sequence[Any]) -> str:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)


def as_csv(rows: Sequence[dict[str, Any]], header: Sequence[str] | None = None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        header or list(dict.fromkeys(name for each in rows for name in each)),
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(folder: Path, content: str | bytes, name: str = "my.jsonl") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(path: str, **options: Any) -> dict[str, list[Any]]:
    """The pairs of every split that has any."""
    task = FileTask(path, **options)
    return {split: list(task.pairs(split)) for split in SPLITS if split in task.sizes}


def everything(path: str, **options: Any) -> list[Any]:
    return [example.pair("counterfactual") for _, example in FileTask(path, **options).located()]


def refused(path: str, kind: type[MechassayError], **options: Any) -> str:
    """The one line with which a file is refused, the path left out."""
    with pytest.raises(MechassayError) as caught:
        everything(path, **options)
    assert type(caught.value) is kind, caught.value
    assert "\n" not in str(caught.value) and path in str(caught.value)
    return str(caught.value).replace(path, "my")


def byte_level(texts: list[str], size: int = 400) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_level(words: Sequence[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def metaspace(texts: list[str]) -> PreTrainedTokenizerFast:
    """A Llama-like tokenizer: it puts a space before every text,
    and takes it away again from what it decodes.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


# --- what is read
# ------------------------------------------------------------------------------------


def test_a_row_becomes_a_pair(tmp_path: Path) -> None:
    rows = [
        row(
            1,
            id="first",
            group="paris",
            split="test",
            town="Paris",
            year=1889,
            tall=True,
            height=330.5,
            more={"a": [1]},
            none=None,
        ),
        row(2, split="test", answer=[" Paris", " France"], foil=[" Rome"], id=7, group=3),
        row(3, split="test", id="", group=""),
    ]
    pairs = FileTask(write(tmp_path, jsonl(rows))).pairs("test")
    first, second, third = pairs
    assert (first.id, first.clean, first.counterfactual) == (
        "first",
        rows[0]["clean"],
        rows[0]["counterfactual"],
    )
    assert (first.answers, first.foils, first.group, first.counterfactual_answers) == (
        (" Paris",),
        (" Rome",),
        "paris",
        (),
    )
    assert dict(first.tags) == {
        "town": "Paris",
        "year": "1889",
        "tall": "true",
        "height": "330.5",
        "more": '{"a": [1]}',
    }
    assert (second.id, second.group, second.answers, second.foils) == (
        "7",
        "3",
        (" Paris", " France"),
        (" Rome",),
    )
    assert (third.id, third.group) == (
        "my-000003",
        None,
    ), "a row without an id is known by its number"


def test_null_is_nothing(tmp_path: Path) -> None:
    lines = [json.dumps({**row(1), "id": None, "group": None, "split": None, "town": None})]
    (pair,) = everything(write(tmp_path, jsonl(lines)))
    assert (pair.id, pair.group, dict(pair.tags)) == ("my-000001", None, {})


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".JSONL", ".CSV"])
def test_both_kinds_say_the_same(tmp_path: Path, ending: str) -> None:
    rows = [
        row(
            n,
            id=f"r{n}",
            split=SPLITS[n % 4],
            town="Zürich, “old” town",
            note='a "quote", and\na line',
        )
        for n in range(1, 30)
    ]
    text = jsonl(rows) if ending.lower() == ".jsonl" else as_csv(rows)
    found = read(write(tmp_path, text, "my" + ending))
    assert [pair.id for split in SPLITS for pair in found[split]] == [
        f"r{n}" for split in SPLITS for n in range(1, 30) if SPLITS[n % 4] == split
    ]
    assert all(
        pair.tags["note"] == 'a "quote", and\na line' for pairs in found.values() for pair in pairs
    )
    assert {content_hash(found["test"])} == {
        content_hash(read(write(tmp_path, jsonl(rows), "other.jsonl"))["test"])
    }


@pytest.mark.parametrize("name", ["my.jsonl", "my.csv"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n\n"])
def test_marks_and_line_ends_do_not_matter(
    tmp_path: Path, name: str, mark: bytes, last: str
) -> None:
    rows = [row(n, note="two\nlines") for n in range(9)]
    text = jsonl(rows) if name == "my.jsonl" else as_csv(rows)
    plain = everything(write(tmp_path, text, name))
    other = (text.rstrip("\n") + last).encode()
    assert everything(write(tmp_path, mark + other, name)) == plain
    assert everything(write(tmp_path, mark + other.replace(b"\n", b"\r\n"), name)) == plain
    assert [pair.tags["note"] for pair in plain] == ["two\nlines"] * 9


def test_several_answers_in_a_cell(tmp_path: Path) -> None:
    rows = [
        row(1, answer=" Paris| France", foil=" Rome"),
        row(2, answer=r" a\|b| c", foil=r" \|"),
        row(3, answer=" \\", foil=" back\\slash"),
    ]
    found = [
        (pair.answers, pair.foils) for pair in everything(write(tmp_path, as_csv(rows), "my.csv"))
    ]
    assert found == [
        ((" Paris", " France"), (" Rome",)),
        ((" a|b", " c"), (" |",)),
        ((" \\",), (" back\\slash",)),
    ]
    (pair,) = everything(write(tmp_path, jsonl([row(1, answer=" a|b")])))
    assert pair.answers == (" a|b",), "a string in JSONL is one answer"


def test_aliases(tmp_path: Path) -> None:
    plain = everything(write(tmp_path, jsonl([row(1)])))
    for old, new in (("counterfactual", "corrupted"), ("answer", "answers"), ("foil", "foils")):
        assert (
            everything(write(tmp_path, jsonl([row(1, **{old: None, new: row(1)[old]})]))) == plain
        )
        assert everything(
            write(tmp_path, as_csv([row(1, **{old: None, new: row(1)[old]})]), "my.csv")
        )[0].as_dict() | {"id": ""} == plain[0].as_dict() | {"id": ""}


def test_what_is_written_is_kept(tmp_path: Path) -> None:
    """No stripping, no normal form:
    a leading space and a combined letter are what the model sees.
    """
    texts = {
        "clean": "  Cafe\u0301 \t",
        "counterfactual": "Caf\u00e9 ",
        "answer": "Paris ",
        "foil": "\n",
    }
    for name, text in (("my.jsonl", jsonl([texts])), ("my.csv", as_csv([texts]))):
        (pair,) = everything(write(tmp_path, text, name))
        assert (pair.clean, pair.counterfactual, pair.answers, pair.foils) == (
            "  Cafe\u0301 \t",
            "Caf\u00e9 ",
            ("Paris ",),
            ("\n",),
        )


def test_rows_of_a_csv_are_the_lines_they_begin_on(tmp_path: Path) -> None:
    rows = [row(1, note="one\ntwo\nthree"), row(2, note=""), row(3, note="")]
    path = write(tmp_path, as_csv(rows).replace("\nVisitor 2", "\n\nVisitor 2"), "my.csv")
    assert [pair.id for pair in everything(path)] == ["my-000002", "my-000006", "my-000007"]


def test_a_column_without_a_name_is_no_tag(tmp_path: Path) -> None:
    """As pandas writes its row numbers."""
    (pair,) = everything(
        write(tmp_path, ",clean,corrupted,answer,foil,town,,\n826,a b,a c, d, e,Rome,,\n", "my.csv")
    )
    assert dict(pair.tags) == {"town": "Rome"}


# --- the task
# ----------------------------------------------------------------------------------------


def test_the_task(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl([row(n, split="train") for n in range(5)]), "towns.jsonl")
    task = load_task(path)
    assert isinstance(task, FileTask)
    assert (task.name, task.version, task.counterfactuals, task.default_counterfactual) == (
        "towns",
        2,
        ("counterfactual",),
        "counterfactual",
    )
    assert task.sizes == {"train": 5}
    assert [pair.id for pair in task.pairs("train", limit=2)] == ["towns-000001", "towns-000002"]
    assert task.pairs("train", seed=5) == task.pairs("train"), "the seed changes nothing"
    with pytest.raises(BadPairs, match="'train' of towns has 5 usable pairs of 6 asked for"):
        task.pairs("train", limit=6)
    with pytest.raises(
        BadUsage,
        match=(
            "towns has no split 'test', only train: ask for 'train', or say in a column 'split'"
            " which rows are"
        ),
    ):
        task.pairs("test")
    with pytest.raises(UnknownName, match="counterfactual"):
        task.pairs("train", counterfactual="other_row")
    assert pickle.loads(pickle.dumps(task)).pairs("train") == task.pairs("train")


def test_what_is_stored_names_the_content_and_no_folder(tmp_path: Path) -> None:
    text = jsonl([row(n, split="train") for n in range(5)])
    task = load_task(write(tmp_path, text))
    stored = {
        "split_column": "split",
        "file": "my.jsonl",
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    assert settings_of(task) == stored == task.pairs("train").source["settings"]
    assert str(tmp_path) not in repr(task) and str(tmp_path) not in json.dumps(
        task.pairs("train").selection()
    )
    (tmp_path / "copy").mkdir()
    assert (
        FileTask(write(tmp_path / "copy", text))
        == task
        != FileTask(write(tmp_path, text + jsonl([row(9, split="train")]), "x.jsonl"))
    )


def test_the_private_split_of_a_file_needs_no_seed(tmp_path: Path) -> None:
    task = FileTask(write(tmp_path, jsonl([row(n, split="private") for n in range(3)])))
    assert len(task.pairs("private")) == 3
    assert task.pairs("private", private_seed=8) == task.pairs("private")


def test_a_split_column_of_another_name(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl([row(n, fold=SPLITS[n % 2], split="x") for n in range(6)]))
    assert {split: len(pairs) for split, pairs in read(path, split_column="fold").items()} == {
        "train": 3,
        "validation": 3,
    }
    assert everything(path, split_column="fold")[0].tags == {"split": "x"}
    assert "no row has the column 'fould'" in refused(path, BadFile, split_column="fould")
    with pytest.raises(BadUsage, match="split_column must be a column of its own; got 'clean'"):
        FileTask(path, split_column="clean")


def test_a_file_that_changes_is_not_mixed(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl([row(n, split="train") for n in range(3)]))
    task = FileTask(path)
    assert task.sizes
    write(tmp_path, jsonl([row(n, split="train") for n in range(4)]))
    with pytest.raises(BadFile, match="has changed"):
        task.pairs("train")


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
            "my: row 2 is not UTF-8 (invalid continuation byte at byte 9 of the line).",
        ),
        ("my.jsonl", jsonl([row(1)]).encode("utf-16"), "my: row 1 is not UTF-8"),
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
            HEADER.replace(",", ";"),
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


def test_a_line_without_an_end_is_not_held(tmp_path: Path) -> None:
    assert "row 1 has more than 16,777,216 bytes" in refused(
        write(tmp_path, b"x" * (LONGEST_LINE + 1)), BadFile
    )


MISTAKES: list[tuple[type[MechassayError], dict[str, Any], str]] = [
    (BadFile, {"clean": 3}, "'clean' must be text (got 3)"),
    (BadFile, {"answer": 3}, "'answer' must be text or a list of texts (got 3)"),
    (BadFile, {"answer": [" a", None]}, "'answer' must be text or a list of texts (got a list)"),
    (BadFile, {"foil": {"a": 1}}, "'foil' must be text or a list of texts (got an object)"),
    (BadFile, {"id": True}, "'id' must be text or a whole number (got True)"),
    (BadFile, {"group": [1]}, "'group' must be text or a whole number (got a list)"),
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
        ("[1, 2]", "a row is a JSON object (got a list)"),
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


def test_cells_that_are_wrong(tmp_path: Path) -> None:
    for cells, kind, message in (
        ("a,b, c\n", BadFile, "row 2: another number of cells than the header (3 for 4)"),
        ("a,b, c, d, e\n", BadFile, "row 2: another number of cells than the header (5 for 4)"),
        ("a,b,, d\n", BadPairs, "row 2: 'answer' is empty"),
        ("a,b, c|, d\n", BadPairs, r"row 2: 'answer' is empty (a bar that is meant is written \|)"),
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


def test_splits_have_known_names(tmp_path: Path) -> None:
    rows = [row(n, split="tset" if n in (2, 4, 5, 9) else "test") for n in range(1, 10)]
    message = refused(write(tmp_path, jsonl(rows)), UnknownName)
    assert (
        message == "Unknown split (my, rows 2, 4, 5 and 1 more) 'tset'. Did you mean 'test'? Known:"
        " private, test, train, validation."
    )
    rows = [row(1, split="test"), row(2), row(3, split="test"), row(4, split="")]
    assert (
        refused(write(tmp_path, jsonl(rows)), BadFile)
        == "my: rows 2 and 4: no 'split', which other rows have."
    )


@pytest.mark.parametrize(
    "shared",
    [
        {"clean": row(1)["clean"]},
        {"counterfactual": row(1)["clean"]},
        {"clean": row(1)["counterfactual"]},
    ],
)
def test_splits_share_no_prompt(tmp_path: Path, shared: dict[str, str]) -> None:
    rows = [row(1, split="train"), row(2, split="test"), row(3, split="test", **shared)]
    message = "my: row 3 (test) has a prompt of row 1 (train); splits must not share prompts."
    assert refused(write(tmp_path, jsonl(rows)), BadPairs) == message
    rows[2]["split"] = "train"
    assert read(write(tmp_path, jsonl(rows))).keys() == {"train", "test"}


# --- splits without a column
# -------------------------------------------------------------------------


def where(path: str) -> dict[str, str]:
    """The split of every id."""
    return {example.id: split for split, example in FileTask(path).located()}


def test_rows_are_allotted_by_shares(tmp_path: Path) -> None:
    sizes = FileTask(write(tmp_path, jsonl([row(n) for n in range(4000)]))).sizes
    # Five standard deviations of a binomial of 4,000 are 155 and 126.
    assert (
        abs(sizes["train"] - 2400) < 155
        and abs(sizes["validation"] - 800) < 126
        and abs(sizes["test"] - 800) < 126
    )
    assert sum(sizes.values()) == 4000 and "private" not in sizes


def test_the_allotment_is_pinned(tmp_path: Path) -> None:
    """Another allotment of the same file would change every result on it:
    raise FileTask.version.
    """
    assert FileTask.version == 2
    path = write(
        tmp_path, jsonl([row(n, group=str(n // 2) if n > 20 else None) for n in range(40)])
    )
    letters = "".join(
        {"train": "r", "validation": "v", "test": "t"}[split] for split in where(path).values()
    )
    assert letters == "rtrrrrrrrrrrrrvvtrrtrrrrvvttrrrrrrttttrr"


words = st.integers(0, 30).map(lambda n: f"prompt {n}")
tables = st.lists(
    st.tuples(words, words, st.none() | st.integers(0, 6).map(str)).filter(lambda t: t[0] != t[1]),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=tables,
    order=st.randoms(use_true_random=False),
    ending=st.sampled_from([".jsonl", ".csv"]),
)
def test_allotment(
    tmp_path: Path, table: list[tuple[str, str, str | None]], order: Any, ending: str
) -> None:
    """No prompt or group in two splits, connected rows together,
    and no row moves when the rows are shuffled.
    """
    rows = [
        {
            "clean": a,
            "counterfactual": b,
            "answer": " x",
            "foil": " y",
            "id": f"r{n}",
            "group": g or "",
        }
        for n, (a, b, g) in enumerate(table)
    ]
    text = jsonl if ending == ".jsonl" else as_csv
    split = where(write(tmp_path, text(rows), "my" + ending))
    found: dict[tuple[str, str], set[str]] = {}
    for each in rows:
        for key in (
            ("prompt", each["clean"]),
            ("prompt", each["counterfactual"]),
            ("group", each["group"]),
        ):
            if key[1]:
                found.setdefault(key, set()).add(split[each["id"]])
    assert all(len(splits) == 1 for splits in found.values())
    shuffled = order.sample(rows, len(rows))
    assert where(write(tmp_path, text(shuffled), "other" + ending)) == split


def test_a_chain_of_rows_stays_together(tmp_path: Path) -> None:
    """Rows that share nothing themselves are connected through others; swapped pairs too."""
    chain = [
        {"clean": f"p{n}", "counterfactual": f"p{n + 1}", "answer": " x", "foil": " y"}
        for n in range(60)
    ]
    assert len(FileTask(write(tmp_path, jsonl(chain))).sizes) == 1
    swapped = [
        each
        for n in range(200)
        for each in (row(n), row(n, clean=row(n)["counterfactual"], counterfactual=row(n)["clean"]))
    ]
    splits = [split for _, split in sorted(where(write(tmp_path, jsonl(swapped))).items())]
    assert (
        all(a == b for a, b in zip(splits[::2], splits[1::2], strict=True))
        and len(set(splits)) == 3
    )
    assert any(a != b for a, b in pairwise(splits))


def test_a_group_is_no_prompt(tmp_path: Path) -> None:
    """A group that is spelt like a prompt connects nothing."""
    rows = [row(n, group=row(n + 1)["clean"]) for n in range(40)]
    assert len(FileTask(write(tmp_path, jsonl(rows))).sizes) == 3


def test_rows_without_a_group_are_not_one_group(tmp_path: Path) -> None:
    rows = [row(n, group="g" if n % 2 else None) for n in range(80)]
    splits = list(where(write(tmp_path, jsonl(rows))).values())
    assert len(set(splits[1::2])) == 1 and len(set(splits[::2])) == 3


# --- token ids
# ---------------------------------------------------------------------------------------

PROMPT, OTHER = "The Eiffel Tower is in", "The old Colosseum is in"
TEXTS = [
    f"{text} {town}" for text in (PROMPT, OTHER) for town in ("Paris", "Rome", "France", "Italy")
] * 8


def idx_rows(tokenizer: Any, answers: list[str], foils: list[str]) -> str:
    ids = [
        [tokenizer(PROMPT + text)["input_ids"][-1] for text in texts] for texts in (answers, foils)
    ]
    cells = [str(each[0] if len(each) == 1 else each) for each in ids]
    return as_csv(
        [
            {
                "": 826,
                "clean": PROMPT,
                "corrupted": OTHER,
                "corrupted_hard": "x",
                "correct_idx": cells[0],
                "incorrect_idx": cells[1],
            }
        ]
    )


@pytest.mark.parametrize("kind", ["byte level", "metaspace", "word level"])
def test_token_ids_are_read_as_text(tmp_path: Path, kind: str) -> None:
    tokenizer = {
        "byte level": lambda: byte_level(TEXTS),
        "metaspace": lambda: metaspace(TEXTS),
        "word level": lambda: word_level(sorted({word for text in TEXTS for word in text.split()})),
    }[kind]()
    for answers, foils in (([" Paris"], [" Rome"]), ([" Paris", " France"], [" Rome", " Italy"])):
        path = write(tmp_path, idx_rows(tokenizer, answers, foils), "my.csv")
        ((_, example),) = FileTask(path).located(tokenizer)
        pair = example.pair("counterfactual")
        assert (pair.answers, pair.foils) == (tuple(answers), tuple(foils))
        assert dict(pair.tags) == {"corrupted_hard": "x"}
        if kind == "word level":
            batch = Batch.from_pairs([pair], tokenizer)
            assert batch.answers.tolist() == [
                [tokenizer.convert_tokens_to_ids(text.strip()) for text in answers]
            ]


def test_token_ids_in_jsonl_and_beside_texts(tmp_path: Path) -> None:
    tokenizer = word_level(
        ["The", "Eiffel", "Tower", "is", "in", "Colosseum", "Paris", "Rome", "old"]
    )
    base, old = {"clean": PROMPT, "corrupted": OTHER}, {"clean": OTHER, "corrupted": PROMPT}
    rows = [
        {**base, "correct_idx": 7, "incorrect_idx": [8]},
        {**old, "answer": " Rome", "foil": " Paris"},
        {**old, "correct_idx": "8", "incorrect_idx": "[ 7 ]"},
    ]
    found = [
        example.prompt.answers
        for _, example in FileTask(write(tmp_path, jsonl(rows))).located(tokenizer)
    ]
    assert found == [(" Paris",), (" Rome",), (" Rome",)]


def test_token_ids_need_their_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_level(TEXTS)
    path = write(tmp_path, idx_rows(tokenizer, [" Paris"], [" Rome"]), "my.csv")
    task = FileTask(path)
    (split,) = task.sizes
    with pytest.raises(BadUsage, match="token ids; reading them needs the model"):
        task.pairs(split)
    assert task.examples(split, tokenizer)[0].prompt.answers == (" Paris",)
    other = byte_level(["something else"] * 5, size=260)
    with pytest.raises(
        BadPairs, match=r"my\.csv: row 2: there is no token \d+; the tokenizer has 260"
    ):
        task.examples(split, other)
    # Half a letter has no text of its own.
    half = tokenizer("é")["input_ids"][0]
    path = write(
        tmp_path,
        as_csv([{"clean": PROMPT, "corrupted": OTHER, "correct_idx": half, "incorrect_idx": 0}]),
        "half.csv",
    )
    with pytest.raises(
        BadPairs,
        match=(
            rf"half\.csv: row 2: token {half} is .* which this tokenizer does not read as that"
            r" token"
        ),
    ):
        list(FileTask(path).located(tokenizer))


@pytest.mark.parametrize(
    "cell", ["Paris", "1.0", "-3", "[]", "[1, 2", "[1 2]", "__import__('os')", "9" * 5000, "²"]
)
def test_token_ids_are_numbers(tmp_path: Path, cell: str) -> None:
    path = write(
        tmp_path,
        as_csv([{"clean": "a", "corrupted": "b", "correct_idx": cell, "incorrect_idx": "3"}]),
        "my.csv",
    )
    assert refused(path, BadFile).startswith(
        "my: row 2: 'correct_idx' must be a token id or a list of them, as 7 or [7, 8] (got "
    )


def test_token_ids_of_both_sides_differ(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        as_csv([{"clean": "a", "corrupted": "b", "correct_idx": "[1, 2]", "incorrect_idx": "2"}]),
        "my.csv",
    )
    assert refused(path, BadPairs) == "my: row 2: an answer equals a foil (2)."


def test_token_ids_of_another_tokenizer(tmp_path: Path) -> None:
    """Its words mix those with a space before them and those without."""
    whole = [
        "The Eiffel Tower is in",
        *(f" {town}" for town in ("Paris", "Rome", "Oslo")),
        "offers",
    ]
    tokenizer = byte_level([*TEXTS, *whole * 20], size=420)
    ids = {text: tokenizer(PROMPT + text)["input_ids"][-1] for text in (" Paris", " Rome")}
    joined = tokenizer(PROMPT + "offers")["input_ids"]
    assert len(joined) == len(tokenizer(PROMPT)["input_ids"]) + 1
    rows = [
        {
            "clean": PROMPT,
            "corrupted": OTHER,
            "correct_idx": ids[" Paris"],
            "incorrect_idx": ids[" Rome"],
        },
        {
            "clean": OTHER,
            "corrupted": PROMPT,
            "correct_idx": ids[" Rome"],
            "incorrect_idx": joined[-1],
        },
    ]
    said = (
        rf"row 2: {ids[' Paris']} is ' Paris'; row 3: {joined[-1]} is 'offers'\): was the file made"
        r" for another model\?"
    )
    with pytest.raises(BadPairs, match=said):
        list(FileTask(write(tmp_path, as_csv(rows), "my.csv")).located(tokenizer))
    path = write(tmp_path, as_csv([{**rows[0], "split": "test"}]), "one.csv")
    pairs, check = FileTask(path).pairs("test", tokenizer), check_pairs(path, tokenizer)
    note = pairs.notes["token ids"]
    assert note.startswith(
        "answers and foils are token ids; row 2 is read as ' Paris' against ' Rome'."
    )
    assert pairs.selection()["notes"] == dict(pairs.notes) == dict(check.remarks)


@pytest.mark.parametrize(
    ("right", "wrong", "more"),
    [
        ("clean_answer_idx", "corrupted_answer_idx", {"label": 0}),
        (
            "country_idx",
            "corrupted_country_idx",
            {"capital": "Tower", "corrupted_capital": "Colosseum"},
        ),
        (
            "answers_idx",
            "corrupted_answers_idx",
            {"answers": "['x']", "corrupted_answers": "['y']"},
        ),
    ],
)
def test_other_names_of_token_ids(
    tmp_path: Path, right: str, wrong: str, more: dict[str, Any]
) -> None:
    """The files of the paper's code; what stands beside the ids are tags."""
    tokenizer = byte_level(TEXTS)
    ids = [str([tokenizer(PROMPT + text)["input_ids"][-1]]) for text in (" Paris", " Rome")]
    path = write(
        tmp_path,
        as_csv([{"clean": PROMPT, "corrupted": OTHER, right: ids[0], wrong: ids[1], **more}]),
        "my.csv",
    )
    ((_, example),) = FileTask(path).located(tokenizer)
    pair = example.pair("counterfactual")
    assert (pair.answers, pair.foils) == ((" Paris",), (" Rome",))
    assert dict(pair.tags) == {name: str(value) for name, value in more.items()}
    assert (
        ("capital" in pair.spans) == ("capital" in more) == ("capital" in pair.counterfactual_spans)
    )


# --- years
# -------------------------------------------------------------------------------------------

WAR = {
    "clean": "The war lasted from the year 1352 to the year 13",
    "corrupted": "The war lasted from the year 1301 to the year 13",
}


@pytest.mark.parametrize("column", ["label", "correct_idx"])
@pytest.mark.parametrize("name", ["my.csv", "my.jsonl"])
def test_a_year_is_compared_with_those_up_to_it(tmp_path: Path, column: str, name: str) -> None:
    rows = [
        {**WAR, column: 52},
        {"clean": "1208, 1216, 12", "corrupted": "1208, 1301, 13", column: 8},
    ]
    path = write(tmp_path, as_csv(rows) if name == "my.csv" else jsonl(rows), name)
    first, second = everything(path)
    years = tuple(f"{year:02d}" for year in range(100))
    assert (first.answers, first.foils) == (years[53:], years[:53])
    assert (second.answers, second.foils) == (years[9:], years[:9])
    assert dict(first.tags) == {"century": "13", "year": "52"} and second.tags["year"] == "08"
    parts = {part: first.clean[begin:end] for part, (begin, end) in first.spans.items()}
    assert parts == {"century": "13", "year": "52", "century_2": "13"}
    assert {
        part: first.counterfactual[begin:end]
        for part, (begin, end) in first.counterfactual_spans.items()
    } == {**parts, "year": "01"}
    assert first.id == "my-000002" if name == "my.csv" else "my-000001"
    assert FileTask(path).objective == "prob_diff"
    assert FileTask(write(tmp_path, jsonl([row(1)]), "other.jsonl")).objective == "logit_diff"


@pytest.mark.parametrize(
    "change",
    [
        {"label": 53},
        {"label": 99},
        {"label": "x"},
        {"label": 152},
        {"clean": "The year 1352 to 13 "},
    ],
)
def test_years_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    message = refused(write(tmp_path, jsonl([{**WAR, "label": 52, **change}])), BadFile)
    assert message.startswith(
        "my: row 1: 'label' without a foil is a year YY, 0 to 98, of a prompt with CCYY that ends"
        " in CC (got "
    )


def test_a_label_beside_answer_and_foil_is_a_tag(tmp_path: Path) -> None:
    (pair,) = everything(write(tmp_path, jsonl([row(1, label=1)])))
    assert (pair.answers, pair.foils, pair.tags["label"]) == ((" Paris",), (" Rome",), "1")


def test_years_are_those_that_the_tokenizer_writes_in_its_usual_way(tmp_path: Path) -> None:
    """Here 1399 is a word of its own, which would take the century away from the prompt."""
    vocabulary = [
        "The",
        "war",
        "lasted",
        "from",
        "the",
        "year",
        "to",
        *map(str, range(10, 100)),
        *(f"0{n}" for n in range(10)),
    ]
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["[UNK]", *vocabulary, "1399"])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"1399|\d\d|[a-zA-Z]+|\s"), behavior="isolated"
    )  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    (pair,) = FileTask(write(tmp_path, jsonl([{**WAR, "label": 52, "split": "test"}]))).pairs(
        "test", fast
    )
    assert pair.answers == tuple(map(str, range(53, 99))) and len(pair.foils) == 53


# --- prompts that come again
# -------------------------------------------------------------------------


def test_repeated_rows_are_one_group_and_said(tmp_path: Path) -> None:
    """As in a file of 38 prompts that has each of them twice."""
    rows = [row(n, split="test") for n in range(38)]
    pairs = FileTask(write(tmp_path, jsonl(rows * 2))).pairs("test")
    groups = [pair.group for pair in pairs]
    assert (
        len(pairs) == 76
        and len(set(groups)) == 38
        and groups[:38] == groups[38:]
        and groups[0] == "my, rows like 1"
    )
    note = (
        "rows 39, 40, 41 and 35 more have the clean prompt of a row before (38 of them repeat a"
        " whole row); "
    )
    note += "rows with one prompt are one group"
    assert pairs.notes == {"repeated prompts": note} == pairs.selection()["notes"]
    assert check_pairs(FileTask(write(tmp_path, jsonl(rows * 2)))).remarks == pairs.notes
    plain = FileTask(write(tmp_path, jsonl(rows))).pairs("test")
    assert (
        {pair.group for pair in plain} == {None}
        and not plain.notes
        and "notes" not in plain.selection()
    )


def test_one_prompt_joins_groups(tmp_path: Path) -> None:
    same = row(1)["clean"]
    rows = [
        row(1, group="a"),
        row(2, group="a"),
        row(3, group="b", clean=same, counterfactual="other"),
        row(4, group="b"),
        row(5, group="c"),
        row(6),
        row(7, clean=row(6)["clean"]),
        row(8, group="d"),
        row(9, group="d", clean=row(8)["clean"]),
    ]
    groups = [pair.group for pair in everything(write(tmp_path, jsonl(rows)))]
    assert groups == [*["my, rows like 1"] * 4, "c", *["my, rows like 6"] * 2, "d", "d"]


def test_rows_that_contradict_one_another(tmp_path: Path) -> None:
    rows = [row(1), row(2), row(3), row(2, answer=" Rome", foil=" Paris", counterfactual="another")]
    message = refused(write(tmp_path, jsonl(rows)), BadPairs)
    assert (
        message
        == "my: rows 2 and 4 have the same clean prompt, with answer and foil exchanged; one of"
        " them is wrong."
    )
    both = [row(1, answer=[" a", " b"], foil=" c"), row(1, answer=" c", foil=[" b", " a"])]
    assert "rows 1 and 2 have the same clean prompt" in refused(
        write(tmp_path, jsonl(both)), BadPairs
    )
    rows[3] = row(2, answer=" Rome", foil=" Oslo")
    assert len(everything(write(tmp_path, jsonl(rows)))) == 4, (
        "another question about the same prompt"
    )


# --- other files
# -------------------------------------------------------------------------------------


def test_json_and_tsv_say_the_same(tmp_path: Path) -> None:
    rows = [
        row(n, id=f"r{n}", split=SPLITS[n % 4], note='a "quote", and\na line') for n in range(12)
    ]
    plain = read(write(tmp_path, jsonl(rows)))
    assert read(write(tmp_path, json.dumps(rows, indent=1), "my.json")) == plain
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    assert read(write(tmp_path, text.getvalue(), "my.TSV")) == plain
    assert (
        load_task(str(tmp_path / "my.json")).name
        == load_task(str(tmp_path / "my.TSV")).name
        == "my"
    )
    (pair,) = everything(
        write(tmp_path, "clean\tcorrupted\tanswer\tfoil\na\tb\t c| d\t e\n", "bar.tsv")
    )
    assert pair.answers == (" c", " d")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "my: a .json file of pairs is a list of objects; got an object."),
        ("[1]", "my: row 1: a row is a JSON object (got 1)."),
        ("[", "my is not JSON (Expecting value at line 1, character 2)."),
        ("[" * 100_000, "my is not JSON (nested too deeply)."),
        (b"\xff", "my is not UTF-8 (invalid start byte at byte 1)."),
        ('[{"clean": 1, "clean": 2}]', "my is not JSON ('clean' comes twice)."),
        ('[{"clean": "\\ud800"}]', "my: row 1: half of a surrogate pair, which is no text."),
        ("[]", "my: there are no rows."),
    ],
)
def test_json_that_is_wrong(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refused(write(tmp_path, content, "my.json"), BadFile) == message


def test_usual_names_of_splits(tmp_path: Path) -> None:
    names = {
        "train": ["Train", "training"],
        "validation": ["dev", "val", "Valid", "DEVELOPMENT"],
        "test": [" test ", "testing"],
    }
    rows = [
        row(n, split=name)
        for n, name in enumerate(name for each in names.values() for name in each)
    ]
    assert FileTask(write(tmp_path, jsonl(rows))).sizes == {"train": 2, "validation": 4, "test": 2}


# --- with a tokenizer, and at length
# -----------------------------------------------------------------


def test_alignment_and_choices(tmp_path: Path) -> None:
    tokenizer = word_level(
        [
            *[
                "Visitor",
                "of",
                "the",
                "Eiffel",
                "Tower",
                "Colosseum",
                "Louvre",
                "is",
                "in",
                "Paris",
                "Rome",
                "Oslo",
            ],
            *map(str, range(40)),
        ]
    )
    places = ["Colosseum Tower", "Louvre", "Eiffel Louvre"]
    rows = [
        row(n, split="train", counterfactual=f"Visitor {n} of the {places[n % 3]} is in")
        for n in range(30)
    ]
    rows += [
        row(
            n,
            split="train",
            counterfactual=f"Visitor {n} of the Louvre Tower is in",
            foil=" Nowhere",
        )
        for n in range(30, 40)
    ]
    task = FileTask(write(tmp_path, jsonl(rows)))
    pairs = task.pairs("train", tokenizer)
    assert [pair.id for pair in pairs] == [f"my-{n + 1:06d}" for n in range(30) if n % 3 != 1]
    assert pairs.dropped == {"unequal lengths": 10, "a word unknown to the tokenizer": 10}
    assert len(Batch.from_pairs(pairs, tokenizer)) == 20
    example = task.examples("train", limit=1)[0]
    assert (
        example.prompt.choices == (" Paris", " Rome")
        and not example.counterfactuals["counterfactual"].choices
    )


def test_long_files_are_not_held(tmp_path: Path) -> None:
    """In a process of its own: the memory taken is a fraction of the file."""
    n = 200_000
    filler = "and then there was more of it " * 10
    sizes: list[int] = []
    for name, lines in (("long.jsonl", n), ("long.csv", n // 4)):
        with (tmp_path / name).open("w", encoding="utf-8") as file:
            if name.endswith(".csv"):
                file.write("clean,counterfactual,answer,foil,note\n")
            for number in range(lines):
                clean, other = (
                    f"Visitor {number} of the {place} is in"
                    for place in ("Eiffel Tower", "Colosseum")
                )
                if name.endswith(".csv"):
                    file.write(f"{clean},{other}, Paris, Rome,{filler}\n")
                else:
                    file.write(
                        f'{{"clean": "{clean}", "corrupted": "{other}", "answer": " Paris", "foil":'
                        f' " Rome", "note": "{filler}"}}\n'
                    )
        sizes.append((tmp_path / name).stat().st_size)
    script = f"""
import resource, sys
import scipy.sparse.csgraph
from mechassay.tasks.check import check_pairs
from mechassay.tasks.files import FileTask
unit = 1 if sys.platform == "darwin" else 1024
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
before = peak()
for name, lines in (("long.csv", {n // 4}), ("long.jsonl", {n})):
    task = FileTask({str(tmp_path)!r} + "/" + name)
    assert sum(1 for _ in task.located()) == sum(task.sizes.values()) == lines
    print(peak() - before)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert done.returncode == 0, done.stderr
    assert sizes[0] > 75_000_000
    for taken, lines in zip(map(int, done.stdout.split()), (n // 4, n), strict=True):
        # Some tens of bytes a row to keep, a few hundred while rows are sorted; and what Python
        # itself takes once.
        assert taken < 300 * lines + 10_000_000, f"{taken:,} bytes for {lines:,} rows of 450"
