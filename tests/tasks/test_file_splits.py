"""Files of pairs: how rows are split, and prompts that come again.

Files of pairs: token ids, years, and what a tokenizer makes of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from helpers.pairs import as_csv, everything, jsonl, read, refused, row, write
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example
from mechassay.tasks.load import FileTask, check_pairs


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


def test_splits_share_no_clean_prompt(tmp_path: Path) -> None:
    rows = [row(1, split="train"), row(2, split="test"), row(3, split="test")]
    rows[2]["clean"] = rows[0]["clean"]
    message = "my: row 3 (test) has the clean prompt of row 1 (train); splits must not share clean"
    assert refused(write(tmp_path, jsonl(rows)), BadPairs) == f"{message} prompts."
    rows[2]["split"] = "train"
    assert read(write(tmp_path, jsonl(rows))).keys() == {"train", "test"}


def fact(number: int, other: int, **changes: Any) -> dict[str, Any]:
    """A fact whose counterfactual is the prompt of another fact."""
    about: dict[str, Any] = {"clean": f"The town of land {number} is", "answer": f" t{number}"}
    about |= {"counterfactual": f"The town of land {other} is", "foil": f" t{other}"}
    return {**about, "id": f"f{number}", **changes}


def test_a_counterfactual_of_another_split_is_exchanged(tmp_path: Path) -> None:
    """Facts in a circle, worked by hand: rows 3 and 6 cross the border of the splits."""
    splits = ["train"] * 3 + ["test"] * 3
    rows = [fact(n, n % 6 + 1, split=splits[n - 1]) for n in range(1, 7)]
    task = FileTask(write(tmp_path, jsonl(rows)))
    train, test = task.pairs("train"), task.pairs("test")
    assert [(pair.id, pair.counterfactual[-4:], pair.foils) for pair in (*train, *test)] == [
        ("f1", "2 is", (" t2",)),
        ("f2", "3 is", (" t3",)),
        ("f3", "1 is", (" t1",)),  # Row 4 is of the other split: the next of its own.
        ("f4", "5 is", (" t5",)),
        ("f5", "6 is", (" t6",)),
        ("f6", "4 is", (" t4",)),
    ]
    note = task.notes("train")["exchanged counterfactuals"]
    assert "of 6 rows are clean prompts of other rows: 4 are of the row's split" in note
    assert "2 were exchanged" in note and note.endswith("0 rows were dropped")


def test_a_counterfactual_that_no_row_can_replace_drops_its_row(tmp_path: Path) -> None:
    rows = [
        fact(1, 2, split="train", foil=" elsewhere"),  # Its foil is not the answer of fact 2.
        fact(2, 3, split="test"),
        fact(3, 2, split="test"),
        fact(4, 2, split="validation"),  # No other row of the split.
    ]
    task = FileTask(write(tmp_path, jsonl(rows)))
    check = check_pairs(task)
    assert {split: held.usable for split, held in check.splits.items()} == {
        "train": 0,
        "validation": 0,
        "test": 2,
    }
    (dropped,) = check.total.dropped.values()
    assert dropped.ids == ("f1", "f4")
    assert dropped.message.startswith("its foils are not the answers of that prompt")
    assert "2 rows were dropped" in task.notes("test")["exchanged counterfactuals"]


def test_splits_that_share_a_counterfactual_are_noted(tmp_path: Path) -> None:
    """One corrupted prompt for all rows links nothing, and stands in all splits."""
    rows = [row(n, counterfactual="Nothing is in") for n in range(6)]
    task = FileTask(write(tmp_path, jsonl(rows)))
    assert set(task.sizes.values()) == {3, 2, 1}
    note = task.notes("test")["shared counterfactuals"]
    assert note == "6 rows of different splits share a counterfactual prompt"
    assert "shared counterfactuals" not in FileTask(
        write(tmp_path, jsonl([row(n) for n in range(6)]), "own.jsonl")
    ).notes("test")


def test_all_rows_are_all_but_the_private_ones(tmp_path: Path) -> None:
    rows = [row(n, split="private" if n < 2 else "test") for n in range(5)]
    task = FileTask(write(tmp_path, jsonl(rows)))
    assert [pair.id[-1] for pair in task.pairs("all")] == ["3", "4", "5"]
    assert task.unfitted_split == "test"


def test_what_one_text_is_cut_into_is_no_other_prompt(tmp_path: Path) -> None:
    """ "a" + "b c" and "a b" + " c" are one text, but "b c" alone starts its prompt as "ab"."""
    vocabulary = {piece: number for number, piece in enumerate(["[UNK]", *"abcdefx ", "ab"])}
    pieces = models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(pieces), unk_token="[UNK]")
    rows = [
        {"clean": "a", "counterfactual": "x", "answer": "b c", "foil": "d"},
        {"clean": "ab", "counterfactual": "xx", "answer": " c", "foil": " d"},
        {"clean": "e", "counterfactual": "x", "answer": " c", "foil": " d"},
    ]
    rows = [{**one, "split": "test"} for one in rows]
    for order in (rows, rows[::-1]):
        check = check_pairs(write(tmp_path, jsonl(order)), tokenizer)
        merging = check.total.dropped["merges with the end of the prompt"]
        assert merging.count == 1 and merging.message == "'b c' changes the tokens of 'a' before it"


# --- splits without a column
# -------------------------------------------------------------------------


def where(path: str) -> dict[str, str]:
    """The split of every id."""
    return {example.id: split for split, example in FileTask(path).located()}


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (3, (1, 1, 1)),
        (4, (2, 1, 1)),
        (24, (12, 6, 6)),
        (39, (19, 10, 10)),
        (40, (10, 10, 20)),
        (59, (20, 19, 20)),
        (60, (20, 20, 20)),
        (75, (35, 20, 20)),
        (99, (59, 20, 20)),
        (100, (60, 20, 20)),
        (4000, (2400, 800, 800)),
    ],
)
def test_rows_are_allotted_by_their_number(
    tmp_path: Path, n: int, sizes: tuple[int, int, int]
) -> None:
    task = FileTask(write(tmp_path, jsonl([row(number) for number in range(n)])))
    assert task.sizes == dict(zip(("train", "validation", "test"), sizes, strict=True))
    assert ("splits" in task.notes("test")) == (n < 40)


def test_groups_are_allotted_whole(tmp_path: Path) -> None:
    """Three groups of 20 rows are a group a split; of 150 rows in 100 groups each split has 20
    groups or more, and about its share of the rows.
    """
    three = [row(n, group=f"g{n % 3}") for n in range(60)]
    task = FileTask(write(tmp_path, jsonl(three)))
    assert set(task.sizes.values()) == {20}
    assert "the file has 3 groups of rows" in task.notes("test")["splits"]
    assert "below 40 (37 more are needed)" in task.notes("test")["splits"]
    rows = [row(n, group=f"g{min(n, 99)}") for n in range(150)]
    path = write(tmp_path, jsonl(rows))
    splits = where(path)
    by_split: dict[str, set[str]] = {}
    for number, split in enumerate(splits.values()):
        by_split.setdefault(split, set()).add(str(rows[number]["group"]))
    assert min(map(len, by_split.values())) >= 20
    assert sum(map(len, by_split.values())) == 100
    one = FileTask(write(tmp_path, jsonl([row(n, group="g") for n in range(40)])))
    assert one.sizes == {"train": 40}


def test_the_allotment_is_pinned(tmp_path: Path) -> None:
    """Another allotment of the same file would change every result on it:
    raise FileTask.version.
    """
    assert FileTask.version == 3
    path = write(
        tmp_path, jsonl([row(n, group=str(n // 2) if n > 20 else None) for n in range(40)])
    )
    letters = "".join(
        {"train": "r", "validation": "v", "test": "t"}[split] for split in where(path).values()
    )
    assert letters == "rrrrvtrtrvtrrttvvtvtvvttrrrrvvrrrrrrrrrr"


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
    """No clean prompt or group in two splits, no pair of prompts of two splits, and no row moves
    when the rows are shuffled.
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
        for key in (("prompt", each["clean"]), ("group", each["group"])):
            if key[1]:
                found.setdefault(key, set()).add(split[each["id"]])
    assert all(len(splits) == 1 for splits in found.values())
    of_prompt = {key[1]: splits for key, splits in found.items() if key[0] == "prompt"}
    for its_split, example in FileTask(write(tmp_path, text(rows), "my" + ending)).located():
        if isinstance(example, Example):
            other = example.counterfactuals["counterfactual"].text
            assert of_prompt.get(other, {its_split}) == {its_split}
    shuffled = order.sample(rows, len(rows))
    assert where(write(tmp_path, text(shuffled), "other" + ending)) == split


def test_swapped_pairs_stay_together_and_circles_do_not(tmp_path: Path) -> None:
    """Counterfactuals link rows unless most of the file would be one component."""
    circle = [fact(n, (n + 1) % 60) for n in range(60)]
    task = FileTask(write(tmp_path, jsonl(circle)))
    assert set(task.sizes.values()) == {20}
    assert sum(len(task.pairs(split)) for split in task.sizes) == 60
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
        "answers and foils are token ids of a tokenizer that is not known; row 2 is read as"
        " ' Paris' against ' Rome'."
    )
    assert pairs.selection()["notes"] == dict(pairs.notes)
    assert check.conclusion.startswith(
        "No verdict: one has 1 usable test pair in 1 independent group,"
    )
    assert pairs.notes == check.remarks
    named = write(tmp_path, as_csv([{**rows[0], "split": "test", "tokenizer": "a/mine"}]), "n.csv")
    with pytest.raises(BadPairs, match="has token ids of the tokenizer a/mine; this one is"):
        FileTask(named).pairs("test", tokenizer)
    tokenizer.name_or_path = "models/mine"
    assert "token ids" not in FileTask(named).pairs("test", tokenizer).notes


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
    ],
)
def test_years_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    message = refused(write(tmp_path, jsonl([{**WAR, "label": 52, **change}])), BadFile)
    assert message.startswith(
        "my: row 1: 'label' without a foil is a year YY, 0 to 98, of a prompt with CCYY that ends"
        " in CC (got "
    )


def test_a_label_after_no_year_lacks_a_foil(tmp_path: Path) -> None:
    rows = [{**WAR, "label": 52, "clean": "The year 1352 to 13 "}]
    message = "my: row 1: no column 'foil' ('label' is 52, an answer alone)."
    assert refused(write(tmp_path, jsonl(rows)), BadFile) == message


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
