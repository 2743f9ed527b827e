"""Drawing from gym tasks: splits, seeds, swaps, tokens.

Sentences of regions.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mechassay as ma
from helpers.tiny_gguf import of_bytes, of_words
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.gym import FAMILIES, GymTask, gym_tasks, load_gym_task
from mechassay.gym.gym_task import SEVERAL, joined, regions_of, spaced, spans_of
from mechassay.tasks.task import share_of

ALL = [name for names in FAMILIES.values() for name in names]


def small(**changes: Any) -> GymTask:
    data = {
        "template": "The {animal} {place}",
        "labels": {"one": ["is", "was"], "many": ["are", "were"]},
        "options": {
            "animal": {"one": ["cat", "dog", "hen"], "many": ["cats", "dogs", "hens"]},
            "place": ["here", "there", "over there", "at home", "outside", "in the garden"],
        },
    }
    return gym_tasks({"tasks": {"small": data | changes}})["small"]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_no_sentence_is_in_two_splits_whatever_the_seeds(
    name: str, seed: int, other: int, filler: bool
) -> None:
    task = load_gym_task(name)
    if filler and task.filler is not None:
        task = task.with_filler()
    splits = [
        task.interchanges("train", limit=24, seed=seed),
        task.interchanges("dev", limit=12, seed=other),
        task.interchanges("test", limit=12, seed=seed),
    ]
    texts = [pairs.sentences() for pairs in splits]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    for pairs in splits:
        for pair, swap in zip(pairs[::2], pairs[1::2], strict=True):
            assert (pair.base, pair.base_label) == (swap.source, swap.label)
            assert (pair.source, pair.label) == (swap.base, swap.base_label)
            assert pair.base_spans == swap.source_spans and pair.group == swap.group
            assert swap.id == f"{pair.id}-swap" and pair.kind == swap.kind == "other_type"
            assert (pair.tags["type"], pair.tags["source_type"]) == (
                swap.tags["source_type"],
                swap.tags["type"],
            )
        assert len(pairs.sentences()) == len(pairs)


def test_the_same_arguments_give_the_same_pairs() -> None:
    task = load_gym_task("agr_sv_num_pp")
    assert task.interchanges("test") == load_gym_task("agr_sv_num_pp").interchanges("test")
    assert task.interchanges("test", limit=10) == task.interchanges("test")[:10]
    assert task.interchanges("test", limit=10) != task.interchanges("test", limit=10, seed=1)
    assert task.interchanges("dev", limit=4) == task.interchanges("validation", limit=4)


def test_sizes_count_swaps() -> None:
    splits = load_gym_task("cleft").splits()
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        "train": 400,
        "validation": 100,
        "test": 100,
    }
    some = load_gym_task("cleft").splits(limits={"train": 8, "dev": 4, "test": 2})
    assert [len(pairs) for pairs in some.values()] == [8, 4, 2]
    with pytest.raises(UnknownName, match="Unknown split 'tset'. Did you mean 'test'"):
        load_gym_task("cleft").splits(limits={"tset": 2})


def test_types_and_labels_are_balanced() -> None:
    pairs = load_gym_task("agr_sv_num_pp").interchanges("train")
    kinds = [pair.tags["type"] for pair in pairs]
    assert kinds.count("plural") == kinds.count("singular") == 200
    labels = {label for pair in pairs for label in pair.base_labels}
    assert labels == {" is", " was", " has", " are", " were", " have"}


def test_a_task_of_few_sentences_has_small_splits() -> None:
    task = small()
    assert task.n_sentences == 36
    assert 2 <= len(task.interchanges("train")) <= 36
    with pytest.raises(BadUsage, match="Split 'train' of small has .* examples; asked for 400"):
        task.interchanges("train", limit=400)
    tiny = small(options={"animal": {"one": ["cat"], "many": ["cats"]}, "place": ["here"]})
    # The two sentences of the only pair belong to one split, or to two.
    lacking = [split for split in tiny.sizes if not tiny.examples(split)]
    assert len(lacking) in (2, 3)
    with pytest.raises(BadPairs, match=f"Split '{lacking[0]}' of small has no pair; dropped: none"):
        tiny.interchanges(lacking[0])


def test_continuations_of_several_tokens_are_dropped_and_counted() -> None:
    task = small()
    tokenizer = of_words(
        text
        for choice in task.choices
        for rows in choice.rows.values()
        for row in rows
        for text in (*row, "is are was were")
    )
    plain = task.interchanges("train")
    kept = task.interchanges("train", tokenizer)
    assert kept == plain and not kept.dropped
    with pytest.raises(BadPairs, match=rf"no pair; dropped: \d+ {SEVERAL}. It has 36 sentences"):
        task.interchanges("train", of_bytes())
    # " a" is two bytes, the comma and the full stop are one.
    marks = small(labels={"one": [".", "a"], "many": [","]})
    some = marks.interchanges("train", of_bytes())
    assert {pair.label for pair in some} == {(".",), (",",)}
    assert set(some.dropped) == {SEVERAL} and some.dropped[SEVERAL] % 2 == 0


def test_labels_that_a_tokenizer_does_not_know_are_dropped() -> None:
    tokenizer = of_words(["The cat dog hen cats dogs hens here there over is are"])
    with pytest.raises(BadPairs, match="a word unknown to the tokenizer"):
        small(labels={"one": "was", "many": "were"}).interchanges("train", tokenizer)


def test_batches_have_regions_as_columns() -> None:
    pairs = load_gym_task("garden_npz_obj").interchanges("test", limit=6)
    batch = pairs.batch(of_bytes())
    assert {"verb", "the_2", "npz", "npz.first", "last"} <= set(batch.names)
    assert "comma" in batch.absent and "comma" not in batch.names
    for row, pair in enumerate(pairs):
        base, source = batch.columns["npz"]
        assert int(base[row]) == batch.base.shape[1] - 1
        assert int(source[row]) == batch.source.shape[1] - 1
        text = "".join(chr(b) for b in pair.base.encode())
        first = int(batch.columns["npz.first"][0][row] - (batch.base.shape[1] - len(text)))
        assert text[first:] == pair.base[slice(*pair.base_spans["npz"])]
    # " was" and " for" are four bytes each.
    assert batch.base_labels is not None and batch.base_labels.shape == (6, 4)
    assert batch.groups[0] == batch.groups[1] != batch.groups[2]


def test_gym_tasks_are_tasks() -> None:
    task = load_gym_task("agr_gender")
    pairs = task.pairs("test", limit=4)
    assert isinstance(pairs[0], ma.Pair)
    assert pairs[0].answers == task.interchanges("test", limit=4)[0].base_label
    batch = ma.InterchangeBatch.from_pairs(pairs, of_bytes())
    assert batch.columns.keys() >= set(task.tested)
    with pytest.raises(BadUsage, match="agr_gender has no split 'private', only train"):
        task.interchanges("private")
    with pytest.raises(UnknownName, match="Unknown split 'trian'"):
        task.interchanges("trian")


def test_they_show_themselves() -> None:
    task = load_gym_task("gss_subord")
    assert "regions=3" in repr(task) and "\n" not in repr(task)
    assert "subordinate" in task._repr_html_() and "10,240" in task._repr_html_()
    pairs = task.interchanges("test", limit=12)
    assert repr(pairs) == (
        "GymPairs(task='gss_subord', split='test', n=12, sentences=12, dropped=0)"
    )
    assert "2 more" in pairs._repr_html_()
    columns = pairs.columns()
    assert columns["base"][0] == columns["source"][1] and len(set(map(len, columns.values()))) == 1
    assert list(pairs.to_pandas().columns) == list(columns)


def names(template: str) -> list[str]:
    return [region.name for region in regions_of(template)]


def test_regions_of_a_template() -> None:
    template = "The {subject} that | the {object} {verb} the thing"
    assert names(template) == ["the", "subject", "that", "the_2", "object", "verb", "the_thing"]
    assert [region.text for region in regions_of(template)] == [
        "The",
        None,
        " that",
        " the",
        None,
        None,
        " the thing",
    ]
    assert names("{the} the {x}, and") == ["the", "the_2", "x", "and"]
    assert names("All of {last_one}") == ["all_of", "last_one"]
    assert names("All | {x}") == ["all_2", "x"]
    assert names("... {x}") == ["text", "x"]


def test_a_field_without_a_space_before_it_has_none() -> None:
    noun, ending = regions_of("{noun}{ending}")
    assert noun.written("cat") + ending.written("s") == "cats"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("The {subject", "has a brace that belongs to no {field}: 'The {subject'"),
        ("The } x", "has a brace"),
        ("{a} and {a}", "has the field 'a' twice; a field is one region"),
        ("{last}", "has the field 'last'; that name is taken"),
        ("  ", "has no regions"),
        ("|", "has no regions"),
    ],
)
def test_templates_that_are_refused(template: str, message: str) -> None:
    with pytest.raises(BadUsage, match=message.replace("{", r"\{")):
        regions_of(template)


def test_spaces() -> None:
    assert [spaced(text) for text in ("is", ",", ".", "", " is", "'s", "(a")] == [
        " is",
        ",",
        ".",
        "",
        " is",
        "'s",
        " (a",
    ]


def test_empty_regions_leave_nothing_behind() -> None:
    parts = ["", " The", " cat", "", " sat", ",", " down"]
    assert joined(parts) == "The cat sat, down"
    spans = spans_of(list("abcdefg"), parts)
    assert spans == {"b": (0, 3), "c": (4, 7), "e": (8, 11), "f": (11, 12), "g": (13, 17)}


words = st.text("abc,. ", max_size=4)


@given(st.lists(words, min_size=1, max_size=6))
def test_spans_are_where_their_texts_are(parts: list[str]) -> None:
    whole = joined(parts)
    spans = spans_of([str(n) for n in range(len(parts))], parts)
    for number, text in enumerate(parts):
        if text.strip():
            begin, end = spans[str(number)]
            assert whole[begin:end] == text.strip()
        else:
            assert str(number) not in spans


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


def test_a_split_without_sentences_is_refused() -> None:
    (two,) = gym_tasks(
        {"tasks": {"two": {"template": "{a}", "labels": {"x": "u", "y": "v"}, "options": {
            "a": {"x": ["one"], "y": ["two"]}}}}}
    ).values()  # fmt: skip
    missing = {"train", "validation", "test"} - {share_of("one"), share_of("two")}
    with pytest.raises(BadPairs, match="of two has no sentence"):
        next(two.sentences(missing.pop(), np.random.default_rng(0)))
    with pytest.raises(UnknownName, match="split 'tset'"):
        next(two.sentences("tset", np.random.default_rng(0)))
