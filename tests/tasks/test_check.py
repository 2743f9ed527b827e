"""The check of pairs: it counts what `Task.pairs` drops, and notes what is unusual."""

from __future__ import annotations

import json
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

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.examples import Example, Prompt
from mechassay.pairs import Batch
from mechassay.tasks import SPLITS
from mechassay.tasks.check import check_pairs
from mechassay.tasks.files import FileTask
from mechassay.tasks.task import ABSENT, Task, split_rng

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
        2,
        4,
        2,
        7,
        4,
    )
    (dropped,) = train.dropped.values()
    assert (dropped.count, dropped.ids) == (1, ("my-000002",))
    assert dropped.message == "clean has 2 tokens, counterfactual has 3; they must be equally long"
    assert {reason: (found.count, found.ids) for reason, found in total.dropped.items()} == {
        "unequal lengths": (2, ("my-000002", "long")),
        "a word unknown to the tokenizer": (1, ("x",)),
    }
    assert {name: (note.count, note.ids, note.message) for name, note in total.notes.items()} == {
        "no leading space": (1, ("my-000003",), "'a' directly follows 'd e'"),
        "cut": (
            1,
            ("my-000003",),
            "tokens at the end of the prompt are left out, as what follows changes them (1 here)",
        ),
        "forced": (
            1,
            ("common",),
            "tokens that answers and foils share are written after the prompt (1 here)",
        ),
    }
    assert (train.lengths, test.lengths, total.lengths) == ((1, 1.5, 2), (1, 3.0, 5), (1, 1.5, 5))
    assert json.loads(json.dumps(check.as_dict()))["splits"]["train"]["dropped"][
        "unequal lengths"
    ] == {
        "count": 1,
        "ids": ["my-000002"],
        "message": dropped.message,
    }
    assert check.as_dict()["total"]["lengths"] == [1, 1.5, 5]


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
    assert Batch.from_pairs([pair], tokenizer).alignment == {"cut": 1, "forced": 0, "partial": 0}


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
        for name in ("cut", "forced", "partial")
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
