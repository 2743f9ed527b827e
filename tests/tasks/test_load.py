"""The check of pairs: it counts what `Task.pairs` drops, and notes what is unusual.

Every built-in task keeps the contract, in its default settings and in others.

Fields of users' files: which columns become parts of the prompts,
where, and what a row may say itself.

Files of pairs: what is refused, and with which rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers.pairs import everything, jsonl, refused
from helpers.pairs import row as file_mistakes_row
from helpers.pairs import write as file_mistakes_write
from mechassay.errors import BadFile, BadPairs, BadUsage, MechassayError, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import ABSENT, Example, Pair, Prompt
from mechassay.prompts.rows import LONGEST_LINE
from mechassay.results.verdict import Verdict
from mechassay.tasks import TASKS, load_task
from mechassay.tasks.load import FileTask, check_pairs, parts_of, places
from mechassay.tasks.task import SPLITS, Task, split_rng
from mechassay.testing.checks import check_task
from mechassay.utils.display import counted

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h"]


def letters() -> PreTrainedTokenizerFast:
    """One token a letter, one a space; other letters are unknown."""
    tokenizer = Tokenizer(
        models.WordLevel(
            {each: i for i, each in enumerate(["[UNK]", "▁", *"abcdefgh"])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Metaspace(prepend_scheme="never", split=True),
            pre_tokenizers.Split("", "isolated"),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def words(*more: str) -> PreTrainedTokenizerFast:
    """One token a word."""
    tokenizer = Tokenizer(
        models.WordLevel(
            {each: i for i, each in enumerate(["[UNK]", *WORDS, *more])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    path = folder / "my.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return str(path)


def row(
    clean: str, other: str, answer: str = " a", foil: str = " b", **more: Any
) -> dict[str, Any]:
    return {"clean": clean, "counterfactual": other, "answer": answer, "foil": foil, **more}


@dataclass(frozen=True)
class Endless(Task):
    """Examples without end; every third lacks one of the kinds."""

    name = "endless"
    counterfactuals = ("one", "two")
    default_counterfactual = "one"
    sizes = {"train": 90, "test": 30, "private": 9}  # noqa: RUF012 - as tasks have it

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Any:
        rng, number = split_rng(split, seed), 0
        while True:
            number += 1
            text = " ".join(rng.choice(WORDS, size=int(rng.integers(1, 4))))
            kinds = {
                "one": Prompt(text + " a", (" b",)),
                "two": Prompt("x " * (number % 2) + text + " b", (" b",)),
            }
            if number % 3 == 0:
                del kinds["two"]
            yield Example(f"e{number}", Prompt(text + " c", (" a",)), kinds)


def test_what_is_counted(tmp_path: Path) -> None:
    rows = [
        row("c d", "c e", split="train"),
        row("c c", "c c d", split="train"),
        row("d e", "e e", answer="a", foil="b", split="train"),
        row("e ", "f ", answer="a", foil="b", split="test"),
        row("f", "c d e", split="test", id="long"),
        row("g", "h", answer=" x", split="test", id="x"),
        row("h h h h", "h h h d", answer=" a c", foil=" a d", split="test", id="common"),
    ]
    check = check_pairs(write(tmp_path, rows), words("ea", "eb"))
    assert (check.task, check.counterfactual, list(check.splits)) == (
        "my",
        "counterfactual",
        ["train", "test"],
    )
    train, test, total = check.splits["train"], check.splits["test"], check.total
    assert (train.rows, train.usable, test.rows, test.usable, total.rows, total.usable) == (
        3,
        1,
        4,
        2,
        7,
        3,
    )
    dropped, merging = train.dropped.values()
    assert merging.message == "'a' changes the tokens of 'd e' before it"
    assert (dropped.count, dropped.ids) == (1, ("my-000002",))
    assert dropped.message == "clean has 2 tokens, counterfactual has 3; they must be equally long"
    assert {reason: (found.count, found.ids) for reason, found in total.dropped.items()} == {
        "unequal lengths": (2, ("my-000002", "long")),
        "a word unknown to the tokenizer": (1, ("x",)),
        "merges with the end of the prompt": (1, ("my-000003",)),
    }
    assert {name: (note.count, note.ids, note.message) for name, note in total.notes.items()} == {
        "forced": (
            1,
            ("common",),
            "tokens that answers and foils share are written after the prompt (1 here)",
        ),
    }
    assert (train.lengths, test.lengths, total.lengths) == ((2, 2.0, 2), (1, 3.0, 5), (1, 2.0, 5))
    assert json.loads(json.dumps(check.as_dict()))["splits"]["train"]["dropped"][
        "unequal lengths"
    ] == {
        "count": 1,
        "ids": ["my-000002"],
        "message": dropped.message,
    }
    assert check.as_dict()["total"]["lengths"] == [1, 2.0, 5]


def test_without_a_tokenizer_only_text_is_looked_at(tmp_path: Path) -> None:
    rows = [row(f"c {n}", "c d e", answer="a" if n > 20 else " a", split="test") for n in range(90)]
    check = check_pairs(write(tmp_path, rows))
    assert (check.total.rows, check.total.usable, check.total.dropped, check.total.lengths) == (
        90,
        90,
        {},
        None,
    )
    (note,) = check.total.notes.values()
    assert note.count == 69 and note.ids == tuple(f"my-{n:06d}" for n in range(22, 27)), (
        "the first five"
    )


def test_joined_answers_are_cut_or_partial(tmp_path: Path) -> None:
    """Where letters are tokens, nothing is joined;
    where words are, "c" + "a" would be another word.
    """
    path = write(tmp_path, [row("c d", "c e", answer="ab", foil="cd", split="test")])
    check = check_pairs(path, letters())
    assert set(check.total.notes) == {"no leading space", "partial"} and check.total.usable == 1
    tokenizer = words("da", "db")
    path = write(tmp_path, [row("c d", "c e", answer="a", foil="b", split="test")])
    check = check_pairs(path, tokenizer)
    assert set(check.total.notes) == {"no leading space", "cut"}
    assert check.total.notes["cut"].message.startswith(
        "tokens at the end of the prompt are left out"
    )
    (pair,) = FileTask(path).pairs("test", tokenizer)
    assert Batch.from_pairs([pair], tokenizer).alignment == {
        "partial": 0,
        "forced": 0,
        "cut": 1,
        "special": 0,
    }


parts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
ends = st.sampled_from([" a", " b", " a c", " a d", "a", "b", " x", " c d e"])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=st.lists(st.tuples(parts, parts, ends, ends), min_size=1, max_size=90),
    kind=st.sampled_from(["words", "letters", "none"]),
)
def test_it_agrees_with_the_pairs_of_a_file(
    tmp_path: Path, table: list[tuple[str, str, str, str]], kind: str
) -> None:
    """Split by split: what is dropped, by which reason, what is left, how it is aligned."""
    rows = [
        row(f"{a} {n}", f"{b} {n}", c, d)
        for n, (a, b, c, d) in enumerate(table)
        if a != b and c != d
    ]
    if not rows:
        return
    tokenizer = {"words": words, "letters": letters, "none": lambda: None}[kind]()
    path = write(tmp_path, rows)
    check, task = check_pairs(path, tokenizer), FileTask(path)
    assert {split: found.rows for split, found in check.splits.items()} == task.sizes
    usable: list[Any] = []
    for split, found in check.splits.items():
        if not found.usable:
            reasons = ", ".join(
                f"{each.count} {reason}" for reason, each in sorted(found.dropped.items())
            )
            with pytest.raises(
                BadPairs, match=f"has 0 usable pairs of {found.rows} asked for; dropped: {reasons}"
            ):
                task.pairs(split, tokenizer)
            continue
        pairs = task.pairs(split, tokenizer)
        assert found.usable == len(pairs)
        assert {reason: each.count for reason, each in found.dropped.items()} == dict(pairs.dropped)
        dropped = {name for each in found.dropped.values() for name in each.ids}
        assert not dropped & {pair.id for pair in pairs}
        usable += pairs
    if tokenizer is None or not usable:
        assert check.total.lengths is None
        return
    batch = Batch.from_pairs(usable, tokenizer)
    notes = {
        name: check.total.notes[name].count if name in check.total.notes else 0
        for name in ("cut", "forced", "partial", "special")
    }
    assert notes == batch.alignment
    lengths = batch.lengths.tolist()
    assert check.total.lengths == (min(lengths), median(lengths), max(lengths))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    kind=st.sampled_from(["one", "two"]),
    split=st.sampled_from(SPLITS),
    limit=st.none() | st.integers(1, 100),
)
def test_it_agrees_with_the_pairs_of_a_generated_task(
    seed: int, kind: str, split: str, limit: int | None
) -> None:
    task, tokenizer = Endless(), words()
    check = check_pairs(
        task, tokenizer, counterfactual=kind, seed=seed, private_seed=seed, limit=limit
    )
    if split == "validation":
        assert split not in check.splits
        return
    found = check.splits[split]
    assert found.rows == min(limit or task.sizes[split], task.sizes[split])
    assert found.rows == found.usable + sum(each.count for each in found.dropped.values())
    if found.usable:
        pairs = task.pairs(
            split, tokenizer, limit=found.usable, counterfactual=kind, seed=seed, private_seed=seed
        )
        # The stream is not looked at beyond the last pair that is taken.
        assert all(count <= found.dropped[reason].count for reason, count in pairs.dropped.items())
        looked_at = found.usable + sum(pairs.dropped.values())
        assert looked_at <= found.rows
        more = task.pairs(
            split,
            tokenizer,
            limit=found.usable + 1,
            counterfactual=kind,
            seed=seed,
            private_seed=seed,
        )
        assert len(more) + sum(more.dropped.values()) > found.rows


def test_what_an_example_cannot_have() -> None:
    check = check_pairs(Endless(), counterfactual="two", limit=30)
    assert list(check.splits) == ["train", "test"], "without its seed the private split is left out"
    found = check.splits["test"].dropped[ABSENT]
    assert (found.count, found.ids, found.message) == (
        10,
        ("e3", "e6", "e9", "e12", "e15"),
        "there is no 'two' of this example",
    )
    assert check_pairs(Endless()).total.dropped == {}


def test_a_registered_task() -> None:
    check = check_pairs("ioi", limit=70)
    assert {split: found.rows for split, found in check.splits.items()} == {
        "train": 70,
        "validation": 70,
        "test": 70,
    }
    assert check.total.usable == 210 and not check.total.notes


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[Any] = []

    class Told:
        @contextmanager
        def track(self, label: str, total: int) -> Any:
            told.append((label, total))
            yield told.append

    check_pairs(
        write(tmp_path, [row(f"c {n}", "d", split="test") for n in range(300)]), progress=Told()
    )
    assert told[0] == ("checking pairs", 300) and sum(told[1:]) == 300 and len(told) > 3


def test_wrong_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, [row("c", "d")])
    with pytest.raises(UnknownName, match="counterfactual 'other'"):
        check_pairs(path, counterfactual="other")
    with pytest.raises(BadUsage, match="limit must be 1 or more; got 0"):
        check_pairs(path, limit=0)
    for seeds in ({"seed": -1}, {"private_seed": -1}):
        with pytest.raises(BadUsage, match="A seed must be 0 or more; got -1"):
            check_pairs(path, **seeds)
    with pytest.raises(BadUsage, match="needs a tokenizer"):
        check_pairs(path, object())
    with pytest.raises(BadFile, match="no such file"):
        check_pairs(tmp_path / "no.csv")
    with pytest.raises(UnknownName, match="Unknown task"):
        check_pairs("no")
    path = write(tmp_path, [{"clean": "a", "corrupted": "b", "correct_idx": 1, "incorrect_idx": 2}])
    with pytest.raises(BadUsage, match="token ids"):
        check_pairs(path)
    assert check_pairs(path, words()).total.usable == 1


VARIANTS = ["greater-than:digit=last", "ravel:variable=Country"]
OTHER_VARIANTS = [
    "mcqa:n_choices=2",
    "mcqa:n_choices=10,labels=mib-2025",
    "arithmetic-addition:digits=2",
    "arithmetic-subtraction:labels=mib-2025",
    "ioi:words=paper",
    "ioi:words=paper-matched",
    "greater-than:words=paper",
    "greater-than:words=paper,digit=last",
    "docstring:words=paper",
]


@pytest.mark.parametrize(
    "name",
    [
        *TASKS.names(),
        *VARIANTS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_VARIANTS),
    ],
)
def test_a_task_keeps_the_contract(name: str) -> None:
    check_task(load_task(name))


BASE = {
    "clean": "Ann gave the ring to",
    "counterfactual": "Ben gave the ring to",
    "answer": " Bob",
    "foil": " Al",
    "split": "test",
}


def one(folder: Path, row: dict[str, Any]) -> Pair:
    (folder / "my.jsonl").write_text(json.dumps({**BASE, **row}), encoding="utf-8")
    (pair,) = load_task(str(folder / "my.jsonl")).pairs("test")
    return pair


def file_fields_parts(pair: Pair) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the parts of both prompts."""
    clean = {name: pair.clean[begin:end] for name, (begin, end) in pair.spans.items()}
    return clean, {
        name: pair.counterfactual[begin:end]
        for name, (begin, end) in pair.counterfactual_spans.items()
    }


def test_a_column_whose_value_is_a_word_of_the_prompt(tmp_path: Path) -> None:
    pair = one(
        tmp_path,
        {
            "object": "ring",
            "giver": "Ann",
            "source": "web",
            "many": ["ring"],
            "sure": True,
            "nothing": None,
        },
    )
    assert file_fields_parts(pair) == ({"object": "ring", "giver": "Ann"}, {"object": "ring"}), (
        "Ann is not in the counterfactual"
    )
    assert pair.spans == {"object": (13, 17), "giver": (0, 3)}
    assert dict(pair.tags) == {
        "object": "ring",
        "giver": "Ann",
        "source": "web",
        "many": '["ring"]',
        "sure": "true",
    }


@pytest.mark.parametrize("beginning", ["counterfactual_", "corrupted_"])
def test_the_value_of_the_counterfactual_may_be_given(tmp_path: Path, beginning: str) -> None:
    pair = one(tmp_path, {"giver": "Ann", f"{beginning}giver": "Ben"})
    assert file_fields_parts(pair) == ({"giver": "Ann"}, {"giver": "Ben"})
    assert dict(pair.tags) == {"giver": "Ann", f"{beginning}giver": "Ben"}
    assert file_fields_parts(one(tmp_path, {"giver": "Ann", f"{beginning}giver": "Cid"})) == (
        {"giver": "Ann"},
        {},
    )


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("a ring, a ring; rings", "ring", [(2, 6), (10, 14)]),
        ("earrings", "ring", []),
        ("ring_2 ring", "ring", [(7, 11)]),
        ("27+64=", "64", [(3, 5)]),
        ("the year 1752", "52", []),
        ("in C++, C++11", "C++", [(3, 6)]),
        ("Zürich-Nord", "Zürich", [(0, 6)]),
        ("Zürich", "rich", []),
        ("a ring", "Ring", []),
        ("a b a b a b", "a b a", [(0, 5)]),
        ("x", "", []),
    ],
)
def test_whole_words(text: str, value: str, found: list[tuple[int, int]]) -> None:
    assert places(text, value) == found


@given(text=st.text("ab _1é-"), value=st.text("ab _1é-", min_size=1, max_size=3))
def test_places_are_those_of_a_pattern(text: str, value: str) -> None:
    assert places(text, value) == [
        match.span() for match in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    ]


def test_a_word_that_comes_again_is_numbered_unless_a_column_has_that_name() -> None:
    text = "ring a ring a ring, kiss"
    found = parts_of(text, {"object": " ring ", "object_2": "kiss"}, {})
    assert found == {"object": (0, 4), "object_3": (14, 18), "object_2": (20, 24)}


def test_parts_and_tags_that_a_row_gives_itself(tmp_path: Path) -> None:
    pair = one(tmp_path, {"tags": {"object": "ring", "year": 3}, "colour": "the"})
    assert file_fields_parts(pair)[0] == {"colour": "the", "object": "ring"} and dict(
        pair.tags
    ) == {
        "colour": "the",
        "object": "ring",
        "year": "3",
    }
    pair = one(
        tmp_path,
        {"tags": {"object": "ring"}, "spans": {"colour": [0, 3]}, "colour": "the", "verb": "gave"},
    )
    assert pair.spans == {"colour": (0, 3), "verb": (4, 8)}, (
        "what is given comes first, and tags are then only tags"
    )
    assert dict(pair.tags) == {"colour": "the", "verb": "gave", "object": "ring"}
    assert one(tmp_path, {"counterfactual_spans": {"x": [0, 3]}}).counterfactual_spans == {
        "x": (0, 3)
    }


@pytest.mark.parametrize(
    "wrong",
    [[0, 3], "ring", {"a": [3, 0]}, {"a": [0, 99]}, {"a": [0.0, 3]}, {"a": 3}, {"a": [0, 1, 2]}],
)
def test_parts_that_are_none(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        BadFile,
        match=r"row 1: 'spans' must be an object of \[begin, end\] in characters of the prompt",
    ):
        one(tmp_path, {"spans": wrong})


@pytest.mark.parametrize("name", ["ioi", "arithmetic-addition", "ravel", "mcqa"])
def test_pairs_of_a_task_written_and_read_back(tmp_path: Path, name: str) -> None:
    pairs = load_task(name).pairs("test", limit=20)
    lines = "".join(json.dumps({**pair.as_dict(), "split": "test"}) + "\n" for pair in pairs)
    (tmp_path / "my.jsonl").write_text(lines, encoding="utf-8")
    read = load_task(str(tmp_path / "my.jsonl")).pairs("test")
    assert [each.as_dict() for each in read] == [each.as_dict() for each in pairs]


def test_pairs_know_their_fields(tmp_path: Path) -> None:
    rows = [
        {**BASE, "clean": f"{who} gave the ring to", "object": "ring", "giver": who}
        for who in ("Ann", "Cid")
    ]
    (tmp_path / "my.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    assert load_task(str(tmp_path / "my.jsonl")).pairs("test").fields == {"object": 2, "giver": 2}
    plain = [{key: row[key] for key in BASE} for row in rows]
    (tmp_path / "my.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in plain), encoding="utf-8"
    )
    assert load_task(str(tmp_path / "my.jsonl")).pairs("test").fields == {}
    assert load_task("greater-than").pairs("test", limit=3).fields == {
        "noun": 3,
        "century": 3,
        "year": 3,
        "century_2": 3,
    }


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
        ("my.jsonl", jsonl([file_mistakes_row(1)]).encode("utf-16"), "my: line 1 is not UTF-8"),
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
            HEADER.replace(",", ":") + "a:b: c: d\n",
            (
                "my: row 1: no columns 'clean', 'counterfactual', 'answer', 'foil' (there are"
                " 'clean:counterf"
            ),
        ),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    assert refused(file_mistakes_write(tmp_path, content, name), BadFile).startswith(message)


def test_a_line_without_an_end_is_none(tmp_path: Path) -> None:
    assert "row 1: more than 16,777,216 characters" in refused(
        file_mistakes_write(tmp_path, b"x" * (LONGEST_LINE + 1)), BadFile
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
        {"counterfactual": file_mistakes_row(1)["clean"]},
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
    bad = {
        name: value
        for name, value in {**file_mistakes_row(1), **change}.items()
        if value is not None
    }
    lines = [file_mistakes_row(2), "", bad, file_mistakes_row(3)]
    assert refused(file_mistakes_write(tmp_path, jsonl(lines)), kind) == f"my: row 3: {message}."


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
            json.dumps(file_mistakes_row(1, note="X")).replace("X", "\\ud800"),
            "half of a surrogate pair, which is no text",
        ),
        ('{"clean": ' + "9" * 5000 + "}", "not JSON (Exceeds the limit (4300 digits)"),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, line: str, message: str) -> None:
    assert refused(
        file_mistakes_write(tmp_path, jsonl([file_mistakes_row(1), line])), BadFile
    ).startswith(f"my: row 2: {message}")


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    (pair,) = everything(
        file_mistakes_write(tmp_path, jsonl([file_mistakes_row(1, note="\U0001f600")]))
    )
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
        assert (
            refused(file_mistakes_write(tmp_path, HEADER + cells, "my.csv"), kind)
            == f"my: {message}."
        )


def test_a_misspelt_column_is_found(tmp_path: Path) -> None:
    for wrong in ("counterfactal", " counterfactual", "corupted"):
        message = refused(
            file_mistakes_write(tmp_path, f"clean,{wrong},answer,foil\na,b, c, d\n", "my.csv"),
            BadFile,
        )
        right = "corrupted" if wrong == "corupted" else "counterfactual"
        there = (
            f"there are 'clean', {wrong!r}, 'answer', 'foil'; did you mean {right!r} by {wrong!r}?"
        )
        assert message == f"my: row 1: no column 'counterfactual' ({there})."


def test_many_wrong_rows_are_counted(tmp_path: Path) -> None:
    bad = {3, 17, 20, *range(30, 71)}
    rows = [
        file_mistakes_row(n, foil=" Paris")
        if n in bad
        else file_mistakes_row(n, clean="")
        if n in (5, 9)
        else file_mistakes_row(n)
        for n in range(1, 100)
    ]
    message = refused(file_mistakes_write(tmp_path, jsonl(rows)), BadPairs)
    assert (
        message
        == "my: rows 3, 17, 20 and 41 more: an answer equals a foil (row 3: ' Paris'); rows 5 and"
        " 9: 'clean' is empty."
    )
    rows[10] = file_mistakes_row(11, clean=1)
    assert (
        refused(file_mistakes_write(tmp_path, jsonl(rows)), BadFile)
        == "my: row 11: 'clean' must be text (got 1)."
    ), "the format comes first"


def test_the_message_stays_short(tmp_path: Path) -> None:
    rows = [{f"column{n}{m}" * 5: 1 for m in range(3)} for n in range(300)] + [
        file_mistakes_row(1, **{key: 1})
        for key in ("clean", "answer", "foil", "counterfactual", "split")
    ]
    message = refused(file_mistakes_write(tmp_path, jsonl(rows)), BadFile)
    assert len(message) < 1000 and message.endswith("and 2 other kinds of mistakes.")


def test_ids_differ(tmp_path: Path) -> None:
    rows = [
        file_mistakes_row(1, id="a"),
        file_mistakes_row(2, id="b"),
        file_mistakes_row(3, id="a"),
        file_mistakes_row(4),
    ]
    assert (
        refused(file_mistakes_write(tmp_path, jsonl(rows)), BadPairs)
        == "my: row 3 has the id of row 1; ids must differ."
    )
    rows += [
        file_mistakes_row(5, id="b"),
        file_mistakes_row(6, id="my-000004"),
        file_mistakes_row(7, id=7),
        file_mistakes_row(8, id="7"),
    ]
    assert (
        refused(file_mistakes_write(tmp_path, jsonl(rows)), BadPairs)
        == "my: row 3 has the id of row 1; ids must differ (3 more such rows)."
    )
    rows = [file_mistakes_row(1, id="my-000002"), file_mistakes_row(2)]
    assert "row 2 has the id of row 1" in refused(
        file_mistakes_write(tmp_path, jsonl(rows)), BadPairs
    )


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
    assert refused(file_mistakes_write(tmp_path, content, "my.json"), BadFile) == message


PLACES = [f"{a} {b} {c}" for a in "cdefgh" for b in "cdefgh" for c in "cdefgh"]


def rows_of(n: int, split: str, start: int = 0) -> list[dict[str, Any]]:
    """So many rows with prompts of their own."""
    texts = PLACES[start : start + n]
    return [row(f"{text} c", f"{text} d", split=split) for text in texts]


@pytest.mark.parametrize("n", [1, 2, 19, 20])
def test_twenty_groups_of_test_pairs_can_have_a_verdict(tmp_path: Path, n: int) -> None:
    rows = [*rows_of(20, "train", 40), *rows_of(20, "validation", 80), *rows_of(n, "test")]
    check = check_pairs(write(tmp_path, rows), words())
    if n == 20:
        assert check.verdict == Verdict.YES and check.conclusion == (
            "Each split of my (train, validation, test) has enough prompts for a verdict: 20"
            " independent groups or more (20 are needed)."
        )
    else:
        assert check.verdict == Verdict.NO_VERDICT
        have = f"{counted(n, 'usable test pair')} in {counted(n, 'independent group')}"
        assert check.conclusion == f"No verdict: my has {have}, fewer than 20. Add prompts."


def test_spellings_of_one_prompt_are_one_group_by_tokens(tmp_path: Path) -> None:
    rows = [
        {**one, "clean": one["clean"].replace(" ", " " * (2 + n), 1)}
        for n in range(8)
        for one in rows_of(3, "test")
    ]
    path = write(tmp_path, rows)
    by_tokens, by_text = check_pairs(path, words()), check_pairs(path)
    assert by_tokens.conclusion == (
        "No verdict: my has 24 usable test pairs with 3 different prompts, fewer than 20. Add"
        " prompts."
    )
    assert by_tokens.splits["test"].groups == by_tokens.splits["test"].prompts == 3
    assert by_text.splits["test"].prompts == 3 and by_text.verdict == Verdict.NO_VERDICT


def test_what_a_check_did_not_look_at(tmp_path: Path) -> None:
    rows = [*rows_of(5, "train", 40), *rows_of(30, "test")]
    path = write(tmp_path, rows)
    few = check_pairs(path, words()).conclusion
    assert few.startswith(
        "The test pairs of my are enough for a verdict. Its train pairs are 5 ind"
    )
    by_text = check_pairs(write(tmp_path, rows_of(30, "test"))).conclusion
    assert by_text.startswith(
        "Prompts were compared by their words; --model compares their tokens."
    )
    limited = check_pairs(path, words(), limit=10)
    assert limited.verdict == Verdict.NOT_TESTED
    assert limited.conclusion.startswith("Only the first 10 examples of each split were looked at")
    groups = [{**row, "group": str(n // 10)} for n, row in enumerate(rows_of(200, "test"))]
    path = write(tmp_path, groups)
    assert check_pairs(path, words()).verdict == Verdict.YES
    assert check_pairs(path, words(), limit=50).verdict == Verdict.NOT_TESTED
    none = check_pairs(write(tmp_path, rows_of(30, "train")), words())
    assert none.conclusion.startswith("No verdict: my has no test pairs.")
