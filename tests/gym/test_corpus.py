"""Sentences to train on: those of the train split alone, each with a label of its type."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

import numpy as np
import pytest

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.gym import FAMILIES, GymCorpus, GymTask, gym_tasks, load_gym_task
from mechassay.gym.corpus import PAD, words_of
from mechassay.tasks.splits import share_of
from mechassay.truth.folders import word_tokenizer

SIZE = 60


@cache
def tasks_of_the_package() -> list[GymTask]:
    """The 29, and eight of them with a filler."""
    tasks = [load_gym_task(name) for names in FAMILIES.values() for name in names]
    return [*tasks, *(task.with_filler() for task in tasks if task.filler is not None)]


@cache
def corpus() -> GymCorpus:
    return GymCorpus.of(tasks_of_the_package(), SIZE, 0)


def sentences_and_labels(found: GymCorpus) -> list[tuple[str, str]]:
    """As the tasks write them: no space before punctuation."""
    rows = [text.rpartition(" ") for text in found.texts()]
    return [(re.sub(r" ([.,])", r"\1", sentence), label) for sentence, _, label in rows]


def test_every_task_has_equally_many_sentences_of_the_train_split() -> None:
    tasks = tasks_of_the_package()
    assert len(tasks) == 29 + 8 and len(corpus()) == SIZE * len(tasks)
    assert corpus().tasks == tuple(task.name for task in tasks)
    assert {share_of(sentence) for sentence, _ in sentences_and_labels(corpus())} == {"train"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_sentence_of_another_split_is_in_the_corpus(split: str) -> None:
    seen = {sentence for sentence, _ in sentences_and_labels(corpus())}
    for task in tasks_of_the_package()[::3]:
        assert not seen & task.interchanges(split, limit=20).sentences()
    # What is compared is written the same way: some train sentences are found.
    assert seen & load_gym_task("agr_gender").interchanges("train").sentences()


def test_labels_are_those_of_the_sentence() -> None:
    rows = dict(zip(corpus().tasks, range(0, len(corpus()), SIZE), strict=False))
    told = sentences_and_labels(corpus())
    for sentence, label in told[rows["npi_ever_obj-relc"] :][:SIZE]:
        assert label == ("ever" if sentence.startswith("No ") else "never"), sentence
    for sentence, label in told[rows["garden_npz_obj"] :][:SIZE]:
        assert label == ("was" if "," in sentence else "for"), sentence
    labels = {label for _, label in told[rows["agr_sv_num_pp"] :][:SIZE]}
    assert labels == {"are", "were", "have", "is", "was", "has"}


def test_words_are_the_tokens_of_a_tokenizer_of_them() -> None:
    found = corpus()
    tokenizer = word_tokenizer(found.words, 64)
    for text, row in zip(found.texts()[::50], found.ids[::50].tolist(), strict=True):
        assert tokenizer(text).input_ids == [each for each in row if each != PAD]
    assert {"dog", "give", "Soon", "themselves", ",", "."} <= set(found.words)
    assert found.words[0] == "[UNK]" and len(set(found.words)) == len(found.words)
    assert 0 not in found.ids


def test_the_seed_decides() -> None:
    tasks = tasks_of_the_package()[:2]
    first, same, other = (GymCorpus.of(tasks, 20, seed).texts() for seed in (0, 0, 1))
    assert first == same != other
    assert words_of(tasks) == list(GymCorpus.of(tasks, 1, 5).words)


def test_sentences_of_a_split_never_end_and_have_its_types_equally() -> None:
    task = load_gym_task("agr_gender")
    drawn = list(islice(task.sentences("train", np.random.default_rng(0)), 2000))
    assert {each.sentence for each in drawn} < {
        f"{name} {did} because"
        for name in [row[0] for rows in task.choices[0].rows.values() for row in rows]
        for did in [row[0].strip() for rows in task.choices[1].rows.values() for row in rows]
    }
    assert abs(np.mean([each.type == "he" for each in drawn]) - 0.5) < 0.05
    assert all(each.label == f" {each.type}" for each in drawn)


def test_what_there_is_not_is_one_line() -> None:
    (two,) = gym_tasks(
        {"tasks": {"two": {"template": "{a}", "labels": {"x": "u", "y": "v"}, "options": {
            "a": {"x": ["one"], "y": ["two"]}}}}}
    ).values()  # fmt: skip
    missing = {"train", "validation", "test"} - {share_of("one"), share_of("two")}
    with pytest.raises(BadPairs, match="of two has no sentence"):
        next(two.sentences(missing.pop(), np.random.default_rng(0)))
    with pytest.raises(UnknownName, match="split 'tset'"):
        next(two.sentences("tset", np.random.default_rng(0)))
    for tasks, size in (([], 3), ([two], 0)):
        with pytest.raises(BadUsage, match="A corpus has tasks and sentences"):
            GymCorpus.of(tasks, size, 0)
