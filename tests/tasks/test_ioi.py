"""The IOI task: its words, its stream of rows, and its counterfactuals."""

from __future__ import annotations

import json
import random
import re
import string
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mechassay.tasks.ioi
from ioi_words import ALL_NAMES, NAMES, WORDS, mentions, solve
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.pairs import content_hash
from mechassay.tasks import SPLITS, Task, load_task
from mechassay.tasks.ioi import ABC, CHANGES, IOI

PRIVATE = 987


FIELDS = ["name_A", "name_B", "name_C", "object", "place"]


@pytest.mark.parametrize("kind", ["templates", "names", "objects", "places"])
def test_words_are_many_different_and_split(kind: str) -> None:
    words = [word for split in SPLITS for word in WORDS[split][kind]]
    assert (
        len(words)
        == len(set(words))
        >= {"templates": 48, "names": 166, "objects": 319, "places": 247}[kind]
    )


def test_words_of_one_kind_are_not_of_another() -> None:
    everything = [
        word
        for split in SPLITS
        for kind in ("names", "objects", "places")
        for word in WORDS[split][kind]
    ]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize("template", [t for split in SPLITS for t in WORDS[split]["templates"]])
def test_templates_are_grammatical_by_construction(template: str) -> None:
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field]
    assert sorted(fields) == FIELDS
    assert [f for f in fields if f.startswith("name")] == ["name_A", "name_B", "name_C"]
    assert fields[-2:] == [
        "name_C",
        "object",
    ], "the second clause has the last name, then the object"
    assert "{name_A} and {name_B}" in template
    assert "the {place}" in template
    assert " a {object} " in template
    assert all(f" {{name_{n}}}" in template for n in "ABC"), (
        "a space before each name, so none begins the prompt"
    )
    assert template.endswith(" to")
    assert template[0].isupper()
    assert not ALL_NAMES & set(re.findall(r"\w+", template))
    assert re.fullmatch(r"[\w ,.{}]+", template) and "  " not in template


# What a person would write of every place, whatever stands in it: nobody works at a lagoon or sits
# down inside a quarry.
PLACES_OF_THEIR_OWN = {
    "inside",
    "outside",
    "worked",
    "jobs",
    "explored",
    "cleaning",
    "tour",
    "guide",
    "entered",
    "crowded",
}


# What nobody does with every object: a chair is not mailed, and a banana is not lent.
ACTS_OF_THEIR_OWN = {
    "mailed",
    "shipped",
    "sent",
    "delivered",
    "threw",
    "tossed",
    "slid",
    "lent",
    "lend",
    "returned a",
    "sold",
    "presented",
}


def test_every_template_fits_every_place_and_object() -> None:
    wild = {
        "lagoon",
        "quarry",
        "glacier",
        "volcano",
        "desert",
        "valley",
        "swamp",
        "mountain",
        "tunnel",
        "rooftop",
        "alley",
        "wedding",
    }
    bulky = {
        "chair",
        "bicycle",
        "ladder",
        "surfboard",
        "harp",
        "tent",
        "wheel",
        "scooter",
        "statue",
    }
    for split in SPLITS:
        assert not wild & set(WORDS[split]["places"]) and not bulky & set(WORDS[split]["objects"])
        for template in WORDS[split]["templates"]:
            assert not [
                word
                for word in PLACES_OF_THEIR_OWN | ACTS_OF_THEIR_OWN
                if re.search(rf"\b{word}\b", template.lower())
            ], template
            assert re.search(
                r"(at|to|from|near|left|leave|reached|found|passing) the \{place\}",
                template.lower(),
            ), template


def test_objects_take_the_article_a() -> None:
    assert not [
        w
        for split in SPLITS
        for w in WORDS[split]["objects"]
        if w[0].lower() in "aeiou" or w.startswith(("hour", "heir", "honor"))
    ]


def test_words_are_clean() -> None:
    assert all(re.fullmatch(r"[A-Z][a-z]{1,10}", name) for name in ALL_NAMES)
    assert all(
        re.fullmatch(r"[a-z][a-z -]*[a-z]", w)
        for split in SPLITS
        for kind in ("objects", "places")
        for w in WORDS[split][kind]
    )


@pytest.mark.parametrize("split", SPLITS)
def test_rows_solve(split: str) -> None:
    for row in IOI().rows(split, limit=300, private_seed=PRIVATE):
        people = row["metadata"]
        assert solve(row["prompt"]) == people["indirect_object"] == row["choices"][row["answerKey"]]
        assert mentions(row["prompt"])[2] == people["subject"]
        five = [
            people[key]
            for key in ("subject", "indirect_object", "random_a", "random_b", "random_c")
        ]
        assert len(set(five)) == 5 and set(five) <= NAMES[split]
        for kind in CHANGES:
            column = row[kind]
            if kind == ABC:
                assert solve(column["prompt"]) is None
                assert column["choices"] == [
                    people["indirect_object"],
                    people["subject"],
                    people["random_c"],
                ]
                assert column["answerKey"] == 1
            else:
                assert column["choices"][column["answerKey"]] == solve(column["prompt"])


def test_counterfactuals_are_those_of_table_6() -> None:
    table = {
        "s1_io_flip_counterfactual": "John Nick Nick",
        "s2_io_flip_counterfactual": "Nick John John",
        "s1_ioi_flip_s2_ioi_flip_counterfactual": "John Nick John",
        "abc_counterfactual": "Nick John Bob",
        "random_names_counterfactual": "Max Fred Max",
        "random_names_s1_ioi_flip_counterfactual": "Fred Max Max",
        "random_names_s2_ioi_flip_counterfactual": "Max Fred Fred",
        "random_names_s1_ioi_flip_s2_ioi_flip_counterfactual": "Fred Max Fred",
    }
    pairs = IOI().pairs("test", limit=50)
    for pair, row in zip(pairs, IOI().rows("test", limit=50), strict=True):
        assert tuple(table) == tuple(CHANGES)
        people = row["metadata"]
        cast = dict(
            zip(
                ["Nick", "John", "Max", "Fred", "Bob"],
                list(people.values())[:2] + list(people.values())[4:],
                strict=True,
            )
        )
        if pair.tags["order"] == "BABA":
            assert mentions(pair.clean) == [cast["Nick"], cast["John"], cast["Nick"]]
            swap = (0, 1, 2)
        else:
            assert mentions(pair.clean) == [cast["John"], cast["Nick"], cast["Nick"]]
            swap = (1, 0, 2)
        for kind, names in table.items():
            people_there = [cast[names.split()[i]] for i in swap]
            assert mentions(row[kind]["prompt"]) == people_there
            # Nothing but the names changes.
            template = row["template"].format(
                name_A=people_there[0],
                name_B=people_there[1],
                name_C=people_there[2],
                place=people["place"],
                object=people["object"],
            )
            assert row[kind]["prompt"] == template


def test_schema_is_mibs() -> None:
    (row,) = IOI().rows("train", limit=1)
    assert list(row) == ["prompt", "template", "metadata", "choices", "answerKey", *CHANGES]
    assert list(row["metadata"]) == [
        "subject",
        "indirect_object",
        "object",
        "place",
        "random_a",
        "random_b",
        "random_c",
    ]
    assert all(list(row[kind]) == ["prompt", "choices", "answerKey"] for kind in CHANGES)
    assert json.loads(json.dumps(row)) == row


def test_pair_fields() -> None:
    task = IOI()
    pairs, rows = task.pairs("test", limit=20), task.rows("test", limit=20)
    assert pairs[17].id == "ioi-test-000017"
    for pair, row in zip(pairs, rows, strict=True):
        people = row["metadata"]
        assert (
            pair.clean == row["prompt"]
            and pair.counterfactual == row["s2_io_flip_counterfactual"]["prompt"]
        )
        assert pair.answers == (" " + people["indirect_object"],) and pair.foils == (
            " " + people["subject"],
        )
        assert pair.counterfactual_answers == pair.foils
        assert pair.group is None
        assert pair.tags["template"] == row["template"] in WORDS["test"]["templates"]
        a, b, c = mentions(pair.clean)
        assert (pair.tags["order"] == "BABA") == (a == c) == (b != c)
        assert {k: v for k, v in pair.tags.items() if k not in ("template", "order")} == {
            k: people[k] for k in ("subject", "indirect_object", "place", "object")
        }


@pytest.mark.parametrize("kind", CHANGES)
def test_the_counterfactual_changes_nothing_else(kind: str) -> None:
    for default, other in zip(
        IOI().pairs("test", limit=40),
        IOI().pairs("test", limit=40, counterfactual=kind),
        strict=True,
    ):
        assert (default.id, default.clean, default.answers, default.foils, default.tags) == (
            other.id,
            other.clean,
            other.answers,
            other.foils,
            other.tags,
        )
        assert other.counterfactual != other.clean


def test_the_stream_is_pinned() -> None:
    """A change of this hash changes every result on IOI: raise IOI.version."""
    assert IOI.version == 3
    assert (
        content_hash(IOI().pairs("test"))
        == "7048307b4aa82d9f1a8861f05cf61f40b9a244143d1a2ffcffc38665806045f7"
    )


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(1, 60),
    more=st.integers(0, 60),
    kind=st.sampled_from(list(CHANGES)),
)
def test_stream_properties(split: str, seed: int, n: int, more: int, kind: str) -> None:
    task = IOI()
    call: dict[str, Any] = {"seed": seed, "private_seed": seed, "counterfactual": kind}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert len(short) == n and len(long) == n + more
    assert content_hash(short) == content_hash(long[:n])
    assert len({pair.clean for pair in long}) == len({pair.id for pair in long}) == len(long)
    call |= {"seed": seed + 1, "private_seed": seed + 1}
    assert content_hash(task.pairs(split, limit=n, **call)) != content_hash(short)


def test_prefix_holds_across_blocks() -> None:
    long = IOI().pairs("train", limit=2500)
    assert IOI().pairs("train", limit=1500) == long[:1500]


def test_sizes() -> None:
    assert IOI.sizes == {"train": 10_000, "validation": 10_000, "test": 1_000, "private": 1_000}
    assert len(IOI().pairs("test")) == len(IOI().pairs("private", private_seed=PRIVATE)) == 1_000


@pytest.mark.slow
def test_splits_are_apart_and_use_all_their_words() -> None:
    splits = {split: IOI().pairs(split, limit=3_000, private_seed=PRIVATE) for split in SPLITS}
    prompts = [pair.clean for pairs in splits.values() for pair in pairs]
    assert len(set(prompts)) == len(prompts)
    for split, pairs in splits.items():
        # A fair coin: 5 sigma of 3,000 flips is 4.6 points.
        assert abs(np.mean([pair.tags["order"] == "ABBA" for pair in pairs]) - 0.5) < 0.046
        for tag, kind in (
            ("subject", "names"),
            ("indirect_object", "names"),
            ("object", "objects"),
            ("place", "places"),
        ):
            assert {pair.tags[tag] for pair in pairs} == set(WORDS[split][kind])
        assert {pair.tags["template"] for pair in pairs} == set(WORDS[split]["templates"])


def test_nothing_global_is_seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    before = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )  # pyright: ignore[reportArgumentType]
    IOI().examples("test", limit=10)
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
    ) == before  # pyright: ignore[reportArgumentType]


def test_private_rows_follow_the_private_seed_only() -> None:
    task = IOI()
    a = task.pairs("private", limit=5, private_seed=1)
    assert a == task.pairs("private", limit=5, private_seed=1, seed=9)
    assert a != task.pairs("private", limit=5, private_seed=2)
    with pytest.raises(BadUsage, match="private_seed"):
        task.pairs("private")
    with pytest.raises(BadUsage, match="private_seed"):
        task.examples("private", seed=3)


def test_a_stream_ends_when_every_prompt_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    words = mechassay.tasks.ioi._words()["test"]
    few = replace(
        words,
        templates=words.templates[:2],
        names=words.names[:6],
        objects=words.objects[:1],
        places=words.places[:1],
    )
    monkeypatch.setattr(mechassay.tasks.ioi, "_words", lambda: {"test": few})
    examples = list(IOI().generate("test", 0))
    # Two templates, two orders, 6 x 5 (subject, indirect object).
    assert len({example.prompt.text for example in examples}) == len(examples) == 120
    with pytest.raises(BadUsage, match="has 120 examples; asked for 121"):
        IOI().examples("test", limit=121)
    with pytest.raises(BadPairs, match="has 120 usable pairs of 121 asked for"):
        IOI().pairs("test", limit=121)


def test_wrong_arguments() -> None:
    task = IOI()
    with pytest.raises(UnknownName, match=r"split 'tset'.*Did you mean 'test'"):
        task.pairs("tset")
    with pytest.raises(UnknownName, match=r"counterfactual 'abc'.*abc_counterfactual"):
        task.pairs("test", counterfactual="abc")
    for limit in (0, -1):
        with pytest.raises(BadUsage, match="limit"):
            task.pairs("test", limit=limit)
        with pytest.raises(BadUsage, match="limit"):
            task.examples("test", limit=limit)
    with pytest.raises(BadUsage, match="seed"):
        task.pairs("test", seed=-1)
    for thing in (SimpleNamespace(tokenizer=None), object(), len):
        with pytest.raises(BadUsage, match="tokenizer"):
            task.pairs("test", thing)


def test_load_task() -> None:
    built: Task = IOI()
    task = load_task("ioi")
    assert task == built and (task.name, task.version) == ("ioi", 3)
    assert task.default_counterfactual in task.counterfactuals and len(task.counterfactuals) == 8
    assert len(task.pairs("validation", limit=3)) == 3
    with pytest.raises(UnknownName, match="Did you mean 'ioi'"):
        load_task("ioo")
