"""The ARC tasks: the sample of questions, their counterfactuals,
and questions from files and the hub.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.prompts.pairs import Prompt, content_hash
from mechassay.tasks import load_task
from mechassay.tasks.arc import ARC, KINDS, ARCChallenge, ARCEasy
from mechassay.tasks.task import SPLITS

DATA = Path(__file__).parent / "data"
SAMPLE: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(
    files("mechassay.tasks").joinpath("data/science.json").read_text(encoding="utf-8")
)
ROWS = {
    row["question"]: row for splits in SAMPLE.values() for rows in splits.values() for row in rows
}
LEVEL = {"arc-easy": "easy", "arc-challenge": "challenge"}
SIZES = {
    "arc-easy": {"train": 28, "validation": 12, "test": 12, "private": 12},
    "arc-challenge": {"train": 16, "validation": 8, "test": 8, "private": 8},
}
CALL: dict[str, Any] = {"private_seed": 5}
both = pytest.mark.parametrize("name", LEVEL)


def read(prompt: Prompt) -> tuple[str, list[str], list[str]]:
    """Stem, labels and choices of a prompt, from its text alone."""
    question, *lines, last = prompt.text.split("\n")
    assert last == "Answer:"
    labels, choices = zip(*(line.split(". ", 1) for line in lines), strict=True)
    return question.removeprefix("Question: "), list(labels), list(choices)


def solve(prompt: Prompt) -> str:
    """The label of the right text, which is looked up by the question."""
    stem, labels, choices = read(prompt)
    return labels[choices.index(ROWS[stem]["answer"])]


# --- the sample
# --------------------------------------------------------------------------------------


@both
def test_the_sample_has_its_sizes(name: str) -> None:
    assert {split: len(rows) for split, rows in SAMPLE[LEVEL[name]].items()} == SIZES[name]
    task = load_task(name)
    assert task.sizes == SIZES[name] and tuple(task.sizes) == SPLITS
    for split, size in SIZES[name].items():
        assert len(task.pairs(split, **CALL)) == size
        with pytest.raises(BadUsage, match=f"has {size} examples; asked for {size + 1}"):
            task.examples(split, limit=size + 1, **CALL)
        with pytest.raises(BadPairs, match=f"has {size} usable pairs of {size + 1}"):
            task.pairs(split, limit=size + 1, **CALL)


def test_the_questions_of_the_sample_are_different_and_sound() -> None:
    rows = [row for splits in SAMPLE.values() for rows in splits.values() for row in rows]
    assert len(ROWS) == len(rows) == len({row["id"] for row in rows}) == 104
    for row in rows:
        assert len(set(row["choices"])) == 4 and row["answer"] in row["choices"]
        assert row["question"][0].isupper() and row["question"].endswith("?")
        assert all(
            text == text.strip() and "\n" not in text for text in (row["question"], *row["choices"])
        )
        # All choices of a question are sentences, or none is.
        assert len({choice.endswith(".") for choice in row["choices"]}) == 1, row["question"]


@pytest.mark.parametrize("level", SAMPLE)
@pytest.mark.parametrize("split", SPLITS)
def test_right_choices_are_in_every_place_equally_often(level: str, split: str) -> None:
    rows = SAMPLE[level][split]
    places = Counter(row["choices"].index(row["answer"]) for row in rows)
    assert places == dict.fromkeys(range(4), len(rows) // 4)


def test_the_right_choice_does_not_show_by_its_length() -> None:
    for level in SAMPLE:
        rows = [row for rows in SAMPLE[level].values() for row in rows]
        longest = sum(max(row["choices"], key=len) == row["answer"] for row in rows) / len(rows)
        shortest = sum(min(row["choices"], key=len) == row["answer"] for row in rows) / len(rows)
        # A guess is right in a quarter of the questions; by length, not in many more.
        assert longest < 0.45 and shortest < 0.45


# --- examples
# ----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(list(LEVEL)), split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_prompts_solve_and_counterfactuals_keep_the_question(
    name: str, split: str, seed: int
) -> None:
    examples = load_task(name).examples(split, seed=seed, private_seed=seed)
    assert sorted(example.tags["question_id"] for example in examples) == sorted(
        row["id"] for row in SAMPLE[LEVEL[name]][split]
    )
    for example in examples:
        stem, labels, choices = read(example.prompt)
        row = ROWS[stem]
        assert (labels, choices) == (list("ABCD"), row["choices"]), "as it is in the file"
        assert (
            example.tags
            == {
                "question_id": row["id"],
                "position": str(choices.index(row["answer"])),
            }
            and example.group is None
        )
        assert tuple(example.counterfactuals) == KINDS
        for prompt in (example.prompt, *example.counterfactuals.values()):
            assert (
                prompt.answers == (" " + solve(prompt),)
                and prompt.part("correct_choice") == row["answer"]
            )
            assert prompt.part("question") == stem
        moved = read(example.counterfactuals["answerPosition_counterfactual"])[2]
        assert sorted(moved) == sorted(choices) and all(
            a != b for a, b in zip(moved, choices, strict=True)
        ), "no choice stays"


@both
def test_another_seed_is_another_order_of_the_same_questions(name: str) -> None:
    task = load_task(name)
    a, b = task.examples("train", seed=0), task.examples("train", seed=1)
    assert a != b and {each.prompt.text for each in a} == {each.prompt.text for each in b}
    private = [task.examples("private", seed=seed, private_seed=7) for seed in (0, 1)]
    assert private[0] == private[1] != task.examples("private", private_seed=8)
    with pytest.raises(BadUsage, match="private_seed"):
        task.examples("private")


def test_the_streams_are_pinned() -> None:
    """A change of these hashes changes every result on the sample: raise ARC.version."""
    assert ARCEasy.version == ARCChallenge.version == 2
    assert (
        content_hash(ARCEasy().pairs("test"))
        == "506671552b3ab66ffd514b9e282cb9e1cbbcd381a9afd5a05c5975fe30a07d5d"
    )
    assert (
        content_hash(ARCChallenge().pairs("test"))
        == "33ea0dc3844692a0e30c748dd05eb97f55d74a298a2512916352ce94c9bea0fe"
    )


def test_load_task() -> None:
    assert load_task("arc-easy") == ARCEasy() != ARCChallenge()
    assert isinstance(load_task("arc-challenge:labels=mib-2025"), ARC)
    assert (ARCEasy.public.repo, ARCChallenge.public.repo) == (
        "mib-worker/arc_easy",
        "mib-worker/arc_challenge",
    )
    with pytest.raises(UnknownName, match="Did you mean 'questions'"):
        load_task("arc-easy", question="hub")


# --- questions from files
# ----------------------------------------------------------------------------


def question(number: int, **changes: Any) -> dict[str, Any]:
    choices = {
        "text": [f"{number} {word}" for word in ("north", "south", "east", "west")],
        "label": ["A", "B", "C", "D"],
    }
    return {
        "id": f"q{number}",
        "question": f"Where does path {number} lead?",
        "choices": choices,
        "answerKey": "ABCD"[number % 4],
        **changes,
    }


def written(path: Path, rows: list[Any], name: str = "questions.jsonl") -> str:
    text = (
        json.dumps(rows)
        if name.endswith(".json")
        else "".join(json.dumps(row) + "\n" for row in rows)
    )
    (path / name).write_text(text, encoding="utf-8")
    return str(path / name)


def everything(task: Any) -> dict[str, list[Any]]:
    return {split: list(task.generate(split, 3)) for split in task.sizes}


@pytest.mark.parametrize("file", ["arc_questions_hub.jsonl", "arc_questions_ai2.jsonl"])
def test_both_original_formats(file: str) -> None:
    task = ARCEasy(questions=str(DATA / file))
    found = {
        each.tags["question_id"]: each for split in everything(task).values() for each in split
    }
    assert set(found) == {"Made_up_7", "Made_up_2012_8", "Made_up_9"}
    assert (
        found["Made_up_7"].prompt.text
        == "Question: Which animal can fly?\nA. a bat\nB. a dog\nC. a mole\nD. a trout\nAnswer:"
    )
    assert found["Made_up_7"].prompt.answers == (" A",)
    # Labels 1 to 4 become letters.
    assert (
        found["Made_up_2012_8"].prompt.text
        == "Question: What do cows eat?\nA. sand\nB. steel\nC. grass\nD. glass\nAnswer:"
    )
    assert found["Made_up_2012_8"].prompt.answers == (" C",)
    assert (
        found["Made_up_9"].prompt.text
        == "Question: Which of these is hot?\nA. ice\nB. a flame\nC. snow\nAnswer:"
    )
    assert found["Made_up_9"].counterfactuals == {} and len(found["Made_up_7"].counterfactuals) == 4
    other = ARCEasy(
        questions=str(
            DATA / ("arc_questions_ai2.jsonl" if "hub" in file else "arc_questions_hub.jsonl")
        )
    )
    assert everything(task) == everything(other)


def test_the_three_kinds_of_file(tmp_path: Path) -> None:
    rows = [question(i, split="test") for i in range(6)]
    expected = ARCEasy(questions=written(tmp_path, rows)).pairs("test")
    assert ARCEasy(questions=written(tmp_path, rows, "questions.json")).pairs("test") == expected
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "questions.parquet")
    assert ARCEasy(questions=str(tmp_path / "questions.parquet")).pairs("test") == expected


def test_questions_that_do_not_count_are_dropped_and_counted(tmp_path: Path) -> None:
    three = question(7, choices={"text": ["a", "b", "c"], "label": ["A", "B", "C"]}, answerKey="B")
    five = question(8, choices={"text": list("abcde"), "label": list("12345")}, answerKey="5")
    same = question(9, choices={"text": ["a", "b", "a", "c"], "label": list("ABCD")}, answerKey="B")
    rows = [{**row, "split": "train"} for row in (question(1), three, five, question(2), same)]
    task = ARCEasy(questions=written(tmp_path, rows))
    assert task.sizes == {"train": 5}
    for kind in KINDS:
        pairs = task.pairs("train", counterfactual=kind)
        assert {pair.tags["question_id"] for pair in pairs} == {"q1", "q2"}
        assert pairs.dropped == {"no such counterfactual": 3}
        assert pairs.selection()["dropped"] == {"no such counterfactual": 3}
    with pytest.raises(
        BadPairs, match="has 2 usable pairs of 3 asked for; dropped: 3 no such counterfactual"
    ):
        task.pairs("train", limit=3)


def test_a_hash_allots_questions_to_splits(tmp_path: Path) -> None:
    rows = [question(i) for i in range(1000)]
    task = ARCEasy(questions=written(tmp_path, rows))
    where = {
        each.tags["question_id"]: split
        for split, found in everything(task).items()
        for each in found
    }
    assert len(where) == sum(task.sizes.values()) == 1000
    counts = Counter(where.values())
    # The proportions of table 5; one standard deviation is at most 16.
    for split, share in {"train": 2251, "validation": 570, "test": 1188, "private": 1188}.items():
        assert abs(counts[split] - 1000 * share / 5197) < 65
    # Another hash would move questions from one split to another: raise ARC.version.
    assert [where[f"q{i}"] for i in range(6)] == [
        "validation",
        "train",
        "test",
        "test",
        "train",
        "test",
    ]
    # The split of a question depends on its text alone.
    few = [question(i, id=f"other-{i}", answerKey="A") for i in range(900, 940)]
    again = ARCEasy(questions=written(tmp_path, few, "few.jsonl"))
    for split, found in everything(again).items():
        assert all(
            where[each.tags["question_id"].replace("other-", "q")] == split for each in found
        )
    assert sum(again.sizes.values()) == 40


def test_the_same_stem_with_other_choices_is_another_question_of_the_same_split(
    tmp_path: Path,
) -> None:
    choices = {"text": ["a", "b", "c", "d"], "label": list("ABCD")}
    rows = [
        question(i, id=f"{which}{i}", **more)
        for i in range(20)
        for which, more in (("a", {}), ("b", {"choices": choices}))
    ]
    found = everything(ARCEasy(questions=written(tmp_path, rows)))
    for each in found.values():
        ids = [example.tags["question_id"] for example in each]
        assert {i[1:] for i in ids if i[0] == "a"} == {i[1:] for i in ids if i[0] == "b"}


def test_rows_may_say_their_split(tmp_path: Path) -> None:
    names = ["train", "Dev", "test", "validation"]
    task = ARCChallenge(
        questions=written(tmp_path, [question(i, split=name) for i, name in enumerate(names)])
    )
    assert task.sizes == {"train": 1, "validation": 2, "test": 1}
    assert {pair.tags["question_id"] for pair in task.pairs("validation")} == {"q1", "q3"}
    for call in ({}, {"limit": 1}):
        with pytest.raises(
            BadUsage, match="arc-challenge has no split 'private', only train, validation, test"
        ):
            task.pairs("private", private_seed=1, **call)


def test_ids_are_row_numbers_where_there_are_none(tmp_path: Path) -> None:
    rows = [
        {key: value for key, value in question(i, split="test").items() if key != "id"}
        for i in range(3)
    ]
    task = ARCEasy(questions=written(tmp_path, rows))
    assert {each.tags["question_id"] for each in task.examples("test")} == {"1", "2", "3"}


def test_line_breaks_of_a_question_become_spaces(tmp_path: Path) -> None:
    row = question(1, question=" Look:\n  a path.\nWhere does it lead? ", split="test")
    (example,) = ARCEasy(questions=written(tmp_path, [row])).examples("test")
    assert example.prompt.part("question") == "Look: a path. Where does it lead?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question(1, answerKey="E"), "row 3 is not a question of ARC: BadRow .*got 'E'"),
        (question(1, answerKey=None), "row 3 .*got 'None'"),
        (question(1, question="  "), "row 3 .*are texts; got '  '"),
        (question(1, question=None), "row 3 .*are texts; got None"),
        (question(1, question={"stem": "Why?"}), "row 3 .*KeyError 'choices'"),
        (question(1, choices={"text": ["a", "b"], "label": ["A"]}), "row 3 .*one label each"),
        (
            question(1, choices={"text": ["a", "b"], "label": ["A", "A"]}, answerKey="A"),
            "row 3 .*all different",
        ),
        (
            question(1, choices={"text": ["a", ""], "label": ["A", "B"]}, answerKey="A"),
            "row 3 .*are texts; got ''",
        ),
        (question(1, choices=["a", "b", "c", "d"]), "row 3 .*TypeError"),
        (question(1, choices=[]), "row 3 .*two choices or more"),
        (
            question(1, split="exam"),
            (
                "row 3 .*a split is one of train, validation, test, private or a usual name of one"
                " .val, dev.; got 'exam'"
            ),
        ),
        ({"prompt": "Question: ?"}, "row 3 .*KeyError 'question'"),
        (
            question(5),
            (
                "rows 2 and 3 have the same question with the same choices: 'Where does path 5"
                " lead\\?'"
            ),
        ),
        (
            question(1, split="test"),
            "either all rows have a field split or none has; row 1 has none",
        ),
    ],
)
def test_malformed_rows(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    task = ARCEasy(questions=written(tmp_path, [question(4), question(5), row]))
    for use in (lambda: task.pairs("test", limit=1), lambda: task.sizes):
        with pytest.raises(BadFile, match=message):
            use()


def test_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has no questions"):
        ARCEasy(questions=written(tmp_path, [])).pairs("test")
    with pytest.raises(BadFile, match="absent.jsonl"):
        ARCEasy(questions=str(tmp_path / "absent.jsonl")).pairs("test")
    with pytest.raises(BadFile, match=r"row 1: a row is a JSON object \(got 'why\?'\)"):
        ARCEasy(questions=written(tmp_path, ["why?"], "words.json")).pairs("test")
    (tmp_path / "broken.jsonl").write_text('{"id": 1', encoding="utf-8")
    with pytest.raises(BadFile, match="broken.jsonl: row 1: not JSON"):
        ARCEasy(questions=str(tmp_path / "broken.jsonl")).pairs("test")


def test_contradictory_settings() -> None:
    with pytest.raises(
        BadUsage,
        match=(
            "questions of arc-easy is 'sample', 'hub' or a file .jsonl, .json, .parquet; got"
            " 'samples'"
        ),
    ):
        ARCEasy(questions="samples")
    with pytest.raises(
        BadUsage, match="questions only with source=\"own\"; got source='hub', questions='a.jsonl'"
    ):
        ARCEasy(source="hub", questions="a.jsonl")


# --- the hub
# -----------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for the hub that serves the miniatures; the list has what was asked for."""
    asked: list[Any] = []

    def load_dataset(repo: str, config: str | None, split: str) -> list[Any]:
        asked.append((repo, config, split))
        file = "arc_questions_hub.jsonl" if repo.startswith("allenai") else "arc.jsonl"
        rows = [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]
        return [*rows, rows[0]] if repo.startswith("allenai") else rows

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=True)),
    )
    return asked


def test_questions_from_the_hub(hub: list[Any]) -> None:
    task = ARCChallenge(questions="hub")
    assert task.sizes == {"train": 1119, "validation": 299, "test": 1172}
    pairs = task.pairs("validation")
    assert hub == [("allenai/ai2_arc", "ARC-Challenge", "validation")]
    assert {pair.tags["question_id"] for pair in pairs} == {"Made_up_7", "Made_up_2012_8"}
    assert pairs.dropped == {"no such counterfactual": 2}, "one has three choices, one came before"
    assert sorted(ARCEasy(questions="hub").sizes.items()) == [
        ("test", 2376),
        ("train", 2251),
        ("validation", 570),
    ]


def test_the_public_questions_have_no_private_split(hub: list[Any]) -> None:
    task = ARCEasy(questions="hub")
    for call in (task.pairs, task.examples, task.rows):
        for limit in (None, 2):
            with pytest.raises(
                BadUsage, match="arc-easy has no split 'private', only train, validation, test"
            ):
                call("private", private_seed=1, limit=limit)
    with pytest.raises(BadUsage, match="no split 'private'"):
        list(task.generate("private", 1))
    assert not hub, "nothing is asked for"


def test_rows_from_the_hub(hub: list[Any]) -> None:
    task = ARCEasy(source="hub")
    assert task.sizes == {"train": 2251, "validation": 570, "test": 1188, "private": 1188}
    assert ARCChallenge(source="hub").sizes == {
        "train": 1119,
        "validation": 299,
        "test": 586,
        "private": 586,
    }
    pairs = task.pairs("private", private_seed=1)
    assert hub == [("mib-worker/arc_easy_private_test", None, "test")]
    assert len(pairs) == 1 and pairs.dropped == {"no such counterfactual": 1}


def test_public_rows(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(
        (DATA / "arc.jsonl").read_text(encoding="utf-8"), encoding="utf-8"
    )
    task = ARCEasy(source=str(tmp_path))
    tiger, stone = task.examples("test")
    whence = "A. from its environment\nB. from its food\nC. from its offspring\nD. from its parents"
    assert tiger.prompt.text == f"Question: How does a tiger get stripes?\n{whence}\nAnswer:"
    assert (
        tiger.prompt.part("correct_choice") == "from its parents" and tiger.tags["position"] == "3"
    )
    pair = tiger.pair("symbol_counterfactual")
    assert (pair.answers, pair.foils, pair.counterfactual_answers) == ((" D",), (" 4",), (" 4",))
    # The counterfactuals of table 10, with the answers that it leaves out.
    assert [prompt.answers for prompt in tiger.counterfactuals.values()] == [
        (" B",),
        (" 4",),
        (" E",),
        (" H",),
    ]
    assert stone.counterfactuals == {}, "three choices"
    rows = [
        json.loads(line) for line in (DATA / "arc.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert task.to_row(tiger) == {**rows[0], "arc_id": tiger.tags["question_id"]}
    assert len({tiger.tags["question_id"], stone.tags["question_id"]}) == 2
    with pytest.raises(BadFile, match="no validation.jsonl"):
        task.pairs("validation")


def test_broken_public_rows(tmp_path: Path) -> None:
    first, second = (
        json.loads(line) for line in (DATA / "arc.jsonl").read_text(encoding="utf-8").splitlines()
    )
    for change, reason in (
        ({"answerKey": 3}, "an answer key that is no choice"),
        ({"prompt": "Why?"}, "a prompt of another form"),
        ({"choices": {}}, "a row without 'label'"),
    ):
        (tmp_path / "test.jsonl").write_text(
            json.dumps(first) + "\n" + json.dumps({**second, **change}), encoding="utf-8"
        )
        pairs = ARCEasy(source=str(tmp_path)).pairs("test")
        assert len(pairs) == 1 and pairs.dropped == {reason: 1}


def test_the_id_of_a_public_row(tmp_path: Path) -> None:
    row = json.loads((DATA / "arc.jsonl").read_text(encoding="utf-8").splitlines()[0])
    (tmp_path / "test.jsonl").write_text(
        json.dumps({**row, "arc_id": "Made_up_3"}), encoding="utf-8"
    )
    (example,) = ARCEasy(source=str(tmp_path)).examples("test")
    assert example.tags["question_id"] == "Made_up_3"


def test_a_file_is_read_once(tmp_path: Path) -> None:
    file = written(tmp_path, [question(i, split="test") for i in range(4)])
    task = ARCEasy(questions=file)
    before = task.examples("test")
    written(tmp_path, [question(9, split="test")])
    assert task.examples("test") == before != ARCEasy(questions=file).examples("test")


def test_ids_number_the_stream() -> None:
    ids = [example.id for example in ARCEasy().examples("train")]
    assert ids[0] == "arc-easy-train-000000" and all(a < b for a, b in pairwise(ids))
