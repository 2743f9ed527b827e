"""Contrasts as data: counts, lengths, and that no word tells the classes apart."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.naive_bayes import MultinomialNB

from mechassay.errors import BadFile
from mechassay.measurement.contrasts import CONTROL, SAFETY, PromptContrast, load_contrasts

NAMES = (SAFETY, CONTROL)


def contrast(name: str) -> PromptContrast:
    return load_contrasts()[name]


@pytest.mark.parametrize("name", NAMES)
def test_there_are_sixty_matched_pairs_of_ten_topics(name: str) -> None:
    pairs = contrast(name)
    assert len(pairs) == 60 and set(Counter(pairs.topics).values()) == {6}
    assert len(set(pairs.topics)) == 10


def test_both_contrasts_are_of_one_size() -> None:
    assert set(load_contrasts()) == {SAFETY, CONTROL}
    assert len(contrast(SAFETY)) == len(contrast(CONTROL))


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_questions_of_one_length_and_none_is_there_twice(name: str) -> None:
    pairs = contrast(name)
    every = [*pairs.first, *pairs.second]
    assert len({text.lower() for text in every}) == len(every)
    assert all(text.endswith("?") and text.count("?") == 1 for text in every)
    for first, second in zip(pairs.first, pairs.second, strict=True):
        one, other = first.split(), second.split()
        assert abs(len(one) - len(other)) <= 1
        changed = sum((Counter(one) - Counter(other)).values())
        assert 1 <= changed <= 3, (first, second)
        assert one[0] == other[0], "questions of a pair begin alike"


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w']+", text.lower()))


@pytest.mark.parametrize("name", NAMES)
def test_no_word_is_of_one_class_alone_in_more_than_three_pairs(name: str) -> None:
    pairs = contrast(name)
    first, second = (
        Counter(w for t in texts for w in words(t)) for texts in (pairs.first, pairs.second)
    )
    apart = {w: first[w] - second[w] for w in {*first, *second}}
    assert max(map(abs, apart.values())) <= 3, Counter(apart).most_common(3)


@pytest.mark.parametrize("name", NAMES)
def test_words_alone_do_not_tell_the_classes_of_other_topics(name: str) -> None:
    pairs = contrast(name)
    counts = CountVectorizer(token_pattern=r"[\w']+").fit_transform([*pairs.first, *pairs.second])
    classes = np.repeat([0, 1], len(pairs))
    found = cross_val_predict(
        MultinomialNB(), counts, classes, groups=[*pairs.topics] * 2, cv=LeaveOneGroupOut()
    )
    assert np.mean(found == classes) < 0.6


def test_harmful_requests_give_nothing_away() -> None:
    # Questions alone: nothing is described, named or answered.
    assert max(len(text.split()) for text in contrast(SAFETY).first) <= 10


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("safety:\n  first: a\n  second: b\n  pairs:\n    t:\n    - [x y, x z]\n")
    found = load_contrasts(path)["safety"]
    assert (found.first, found.second, found.topics) == (("x y",), ("x z",), ("t",))
    assert repr(found).startswith("PromptContrast(name=")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("safety:\n  first: a\n  pairs: {t: [[x, y]]}\n", "a contrast has"),
        ("safety: 3\n", "a contrast has"),
        ("[1, 2]\n", "a contrast has"),
        ("safety: [\n", "a contrast has"),
        ("safety:\n  first: a\n  second: b\n  pairs: {t: [[x, y, z]]}\n", "a contrast has"),
        ("safety:\n  first: a\n  second: b\n  pairs: {t: [[x, y], [x, z]]}\n", "'x' twice"),
        ("safety:\n  first: a\n  second: b\n  pairs: {t: [[x, y z w]]}\n", "more than 1 word"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(BadFile, match=says) as raised:
        load_contrasts(path)
    assert "\n" not in str(raised.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="none.yaml"):
        load_contrasts(tmp_path / "none.yaml")
