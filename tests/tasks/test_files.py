"""Files of pairs: what is read, and what is refused and with which rows."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
from pathlib import Path

import pytest

from helpers.pairs import as_csv, everything, jsonl, read, refused, row, write
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.prompts.pairs import content_hash
from mechassay.tasks import load_task
from mechassay.tasks.load import FileTask
from mechassay.tasks.task import SPLITS, settings_of

PLACES = {
    "Paris": "Eiffel Tower",
    "Berlin": "Brandenburg Gate",
    "Rome": "Colosseum",
    "Athens": "Acropolis",
    "London": "Tower Bridge",
}


CSV_KEYS = ["clean", "counterfactual", "answer", "foil", "id", "group", "split", "town", "note"]


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
        3,
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
            "towns has no split 'test', only train: ask for 'train' .--split train., or say in a"
            " column 'split' which rows are"
        ),
    ):
        task.pairs("test")
    with pytest.raises(UnknownName, match="counterfactual"):
        task.pairs("train", counterfactual="other_row")
    assert copy.deepcopy(task).pairs("train") == task.pairs("train")


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
    task, late = FileTask(path), FileTask(path)
    before = task.pairs("train")
    write(tmp_path, jsonl([row(n, split="train") for n in range(4)]))
    assert task.pairs("train") == before, "a file is read once"
    with pytest.raises(BadFile, match="has changed"):
        late.pairs("train")


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
