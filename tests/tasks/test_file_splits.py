"""Files of pairs: how rows are split, and prompts that come again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechassay.errors import BadFile, BadPairs, UnknownName
from mechassay.tasks.check import check_pairs
from mechassay.tasks.files import FileTask
from pair_files import as_csv, everything, jsonl, read, refused, row, write


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
