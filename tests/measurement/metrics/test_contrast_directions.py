"""Contrasts as data: counts, lengths, and that no word tells the classes apart.

SVE worked by hand, its invariances, planted contrasts and none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.naive_bayes import MultinomialNB

from mechassay.errors import BadFile
from mechassay.measurement.metrics.contrast_directions import (
    CONTROL,
    SAFETY,
    LayerContrast,
    PromptContrast,
    above_control,
    effective_rank,
    entropy,
    explained,
    load_contrasts,
    normalised_entropy,
    shares,
    shuffle_test,
    stability,
    unit_rows,
)

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


RNG = np.random.default_rng


def planted(size: float, n: int = 40, layers: int = 5, d: int = 16, seed: int = 0) -> LayerContrast:
    """Pairs of eight topics that differ by a direction of a length, and by noise of length 1."""
    rng = RNG(seed)
    shift = unit_rows(rng.standard_normal((1, 1, d)))
    noise = rng.standard_normal((n, layers, d)) / math.sqrt(d)
    return LayerContrast(size * shift + noise, tuple(str(i % 8) for i in range(n)))


def test_equal_rows_have_no_entropy_and_orthogonal_ones_the_most() -> None:
    assert entropy(np.tile([3.0, 4.0], (5, 1))) == pytest.approx(0, abs=1e-12)
    assert entropy(np.eye(10)) == pytest.approx(math.log(10))
    assert normalised_entropy(np.eye(10, 30)) == pytest.approx(1)
    assert [effective_rank(np.eye(n)) for n in (1, 2, 9, 10, 20)] == [1, 2, 9, 9, 18]


def test_two_directions_by_hand() -> None:
    # Squares 9 and 1: p = .9 and .1.
    rows = np.array([[3.0, 0.0], [0.0, 1.0]])
    assert shares(rows) == pytest.approx([0.9, 0.1])
    assert entropy(rows) == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)))
    assert effective_rank(rows) == 1 and normalised_entropy(rows) == pytest.approx(1)


def test_entropy_is_that_of_singular_values() -> None:
    rows = RNG(0).standard_normal((3, 7, 4))
    p = np.linalg.svd(rows, compute_uv=False) ** 2
    p /= p.sum(axis=-1, keepdims=True)
    assert entropy(rows) == pytest.approx(-(p * np.log(p)).sum(axis=-1))


def test_neither_scale_nor_rotation_changes_it() -> None:
    rows = RNG(1).standard_normal((6, 9))
    turned = rows @ np.linalg.qr(RNG(2).standard_normal((9, 9)))[0]
    assert entropy(7.5 * turned) == pytest.approx(float(entropy(rows)))
    lengths = RNG(3).uniform(0.1, 10, (6, 1))
    assert normalised_entropy(lengths * rows) == pytest.approx(float(normalised_entropy(rows)))
    assert entropy(lengths * rows) != pytest.approx(float(entropy(rows)), rel=1e-3)


def test_what_is_zero_is_undefined() -> None:
    nothing = np.zeros((4, 3))
    assert np.isnan(entropy(nothing)) and np.isnan(normalised_entropy(nothing))
    assert effective_rank(nothing) is None and not unit_rows(nothing).any()
    assert math.isnan(explained(np.eye(3), nothing, 1))
    one = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert np.isnan(normalised_entropy(one)), "one direction has no largest entropy to compare with"
    contrast = LayerContrast(np.zeros((6, 2, 3)), tuple("aabbcc"))
    assert all(map(math.isnan, shuffle_test(contrast, 9, RNG(0))))
    assert math.isnan(stability(contrast, 3, RNG(0)))
    assert (contrast.held_out_accuracy() == 0.5).all()


def test_explained_by_hand() -> None:
    space = np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    wanted = np.array([[5.0, 0.0, 0.0], [3.0, 0.0, 4.0]])
    assert explained(space, wanted, 2) == pytest.approx((1 + 9 / 25) / 2)
    # k random dimensions of d explain k / d on average.
    rng = RNG(0)
    draws = [
        explained(rng.standard_normal((4, 20)), rng.standard_normal((4, 20)), 4) for _ in range(300)
    ]
    assert np.mean(draws) == pytest.approx(4 / 20, abs=0.01)


def test_agreement_is_the_mean_cosine_of_pairs_of_two_topics() -> None:
    contrast = planted(0.7, n=8, layers=3, d=5)
    contrast = LayerContrast(contrast.differences, tuple("aabbccdd"))
    found: list[float] = []
    for i in range(8):
        for j in range(8):
            if contrast.groups[i] != contrast.groups[j]:
                one, other = contrast.differences[i], contrast.differences[j]
                norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
                found.append(float(((one * other).sum(axis=1) / norms).mean()))
    assert contrast.agreement(np.ones((1, 8)))[0] == pytest.approx(np.mean(found))


def test_a_planted_contrast_is_found_on_other_topics() -> None:
    contrast = planted(2.0)
    own, p = shuffle_test(contrast, 199, RNG(0))
    # Two differences share 4 of 4 + 1 squares; of eight topics there are 128 ways to shuffle.
    assert own == pytest.approx(0.8, abs=0.05) and p == pytest.approx(1 / 128)
    assert contrast.held_out_accuracy().mean() > 0.99
    # Halves of 20 pairs: 4 of 4 + 1 / 20.
    assert stability(contrast, 20, RNG(0)) == pytest.approx(4 / (4 + 1 / 20), abs=0.01)


def test_labels_that_mean_nothing_pass_the_test_at_its_level() -> None:
    found = [shuffle_test(planted(0.0, n=24, seed=seed), 99, RNG(seed))[1] for seed in range(300)]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.035)
    nothing = planted(0.0)
    assert abs(stability(nothing, 50, RNG(0))) < 0.3
    assert nothing.held_out_accuracy().mean() == pytest.approx(0.5, abs=0.15)


def test_topics_with_directions_of_their_own_pass_the_test_at_its_level() -> None:
    # The defect: labels exchanged pair by pair destroy what pairs of a topic share, and p was too
    # small: below .05 in more than a third of these.
    found: list[float] = []
    for seed in range(200):
        rng = RNG(seed)
        shifts = rng.standard_normal((8, 5, 16)) / 4
        contrast = planted(0.0, seed=seed)
        moved = contrast.differences + shifts[np.arange(40) % 8]
        found.append(shuffle_test(LayerContrast(moved, contrast.groups), 99, rng)[1])
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.045)


def test_all_ways_to_shuffle_few_topics_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.measurement.metrics import contrast_directions as module

    # Topic b has two pairs: agreements of pairs of two topics sum to 2 - 1 - 2 of 5. Of the four
    # shuffles one has as little, one less (-3 / 5), and one has 1.
    difference = np.array([1.0, 1.0, -1.0, 1.0])[:, None, None] * np.ones((4, 2, 3))
    mixed = LayerContrast(difference, tuple("abcb"))
    assert shuffle_test(mixed, 9, RNG(0)) == pytest.approx((-0.2, 0.75))
    assert shuffle_test(LayerContrast(np.abs(difference), tuple("abcb")), 9, RNG(0))[1] == 0.25
    signs = mixed.shuffles(50, RNG(0))
    assert (signs[:, 1] == signs[:, 3]).all() and set(np.unique(signs)) == {-1.0, 1.0}
    # More topics than that are drawn, and agree.
    contrast = planted(0.3)
    exact = shuffle_test(contrast, 9, RNG(0))[1]
    monkeypatch.setattr(module, "EXACT", 3)
    assert shuffle_test(contrast, 4000, RNG(0))[1] == pytest.approx(exact, abs=0.02)


def test_held_out_directions_are_of_other_topics() -> None:
    # Two topics whose pairs differ in opposite senses: none is right about the other.
    difference = np.ones((6, 2, 4))
    difference[3:] = -1
    assert LayerContrast(difference, tuple("aaabbb")).held_out_accuracy().max() == 0
    assert LayerContrast(np.abs(difference), tuple("aaabbb")).held_out_accuracy().min() == 1


def test_a_contrast_is_as_compact_as_itself() -> None:
    contrast = planted(1.0)
    gap = above_control(contrast, contrast, 100, RNG(0))
    assert gap.value == 0 and gap.interval.low < 0 < gap.interval.high


def test_weighted_sums_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.measurement.metrics import contrast_directions as module

    contrast, signs = planted(1.0), planted(1.0).shuffles(7, RNG(0))
    whole = contrast.entropies(signs)
    monkeypatch.setattr(module, "BLOCK", 1)
    assert contrast.entropies(signs) == pytest.approx(whole)
    assert set(np.unique(signs)) == {-1.0, 1.0}
