"""The IOI task: its words, its stream of rows, and its counterfactuals.

The IOI task: public rows, and prompts read from them.

The IOI task: what a tokenizer changes.
"""

from __future__ import annotations

import json
import random
import re
import string
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import mechassay.tasks.ioi
from helpers.pairs import ALL_NAMES, NAMES, WORDS, all_words, mentions, solve, word_level
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example, Prompt, content_hash
from mechassay.prompts.tokenization import LENGTHS, token_position
from mechassay.tasks import Task, load_task
from mechassay.tasks.ioi import ABC, CHANGES, IOI
from mechassay.tasks.task import SPLITS

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
    "experiments",
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


DATA = Path(__file__).parent / "data" / "ioi.jsonl"


def check_parts(prompt: Prompt, example: Example) -> None:
    """The spans of a prompt, found again by searching its text for names."""
    tags, text = example.tags, prompt.text
    found = [match for match in re.finditer(r"\w+", text) if match.group() in ALL_NAMES]
    expected = {f"name_{letter}": match.span() for letter, match in zip("ABC", found, strict=True)}
    repeated = [match for match in found[:2] if match.group() == found[2].group()]
    if repeated:
        (subject,) = repeated
        (other,) = [match for match in found[:2] if match is not subject]
        expected |= {
            "subject": subject.span(),
            "indirect_object": other.span(),
            "subject_2": found[2].span(),
        }
    assert {
        name: span for name, span in prompt.spans.items() if name not in ("place", "object")
    } == expected
    assert prompt.part("place") == tags["place"] and prompt.part("object") == tags["object"]
    assert text[: prompt.spans["place"][0]].endswith("the ") and text[
        : prompt.spans["object"][0]
    ].endswith(" a ")


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_prompts_know_their_parts_answers_and_choices(split: str, seed: int) -> None:
    for example in IOI().examples(split, limit=20, seed=seed, private_seed=seed):
        assert tuple(example.counterfactuals) == tuple(CHANGES)
        for kind, prompt in [("", example.prompt), *example.counterfactuals.items()]:
            check_parts(prompt, example)
            answer = solve(prompt.text)
            assert prompt.answers == (() if answer is None else (f" {answer}",))
            assert (kind == ABC) == (not prompt.answers) == ("subject" not in prompt.spans)
            if kind == ABC:
                assert len(prompt.choices) == 3 and prompt.choices[2] == " " + prompt.part("name_C")
                assert set(prompt.choices[:2]) == {
                    " " + prompt.part("name_A"),
                    " " + prompt.part("name_B"),
                }
            else:
                assert len(prompt.choices) == 2
                assert set(prompt.choices) == {
                    " " + prompt.part("subject"),
                    " " + prompt.part("indirect_object"),
                }
            assert (
                example.pair(kind).foils == (" " + example.prompt.part("subject"),)
                if kind
                else True
            )


def test_a_prompt_worked_by_hand() -> None:
    row = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])
    example = IOI().from_row(row, "x")
    assert example.prompt == Prompt(
        "After Nick and John left the car park, Nick gave a ball to",
        answers=(" John",),
        choices=(" John", " Nick"),
        spans={
            "name_A": (6, 10),
            "name_B": (15, 19),
            "place": (29, 37),
            "name_C": (39, 43),
            "object": (51, 55),
            "subject": (6, 10),
            "indirect_object": (15, 19),
            "subject_2": (39, 43),
        },
    )
    flipped = example.counterfactuals["s2_io_flip_counterfactual"]
    assert flipped.answers == (" Nick",)
    assert (flipped.spans["subject"], flipped.spans["indirect_object"]) == (
        (15, 19),
        (6, 10),
    ), "its own subject, who is named twice"


def test_token_positions_by_meaning() -> None:
    tokenizer = word_level(all_words("test"))
    pairs = IOI().pairs("test", tokenizer, limit=50)
    texts, spans = [pair.clean for pair in pairs], [pair.spans for pair in pairs]
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    for name, tag in (
        ("subject", "subject"),
        ("subject_2", "subject"),
        ("indirect_object", "indirect_object"),
        ("name_C", "subject"),
    ):
        found = token_position(texts, spans, name, tokenizer)
        assert [row[i] for row, i in zip(tokens, found, strict=True) if i is not None] == [
            pair.tags[tag] for pair in pairs
        ]
    firsts = token_position(texts, spans, "subject", tokenizer)
    seconds = token_position(texts, spans, "subject_2", tokenizer)
    assert all(
        a is not None and b is not None and a < b for a, b in zip(firsts, seconds, strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_rows_round_trip(split: str, seed: int) -> None:
    task = IOI()
    for example in task.examples(split, limit=10, seed=seed, private_seed=seed):
        row = task.to_row(example)
        again = task.from_row(json.loads(json.dumps(row)), example.id)
        assert again == example
        assert task.to_row(again) == row


def public_folder(folder: Path, *change: tuple[str, Any]) -> Path:
    """The miniature of the public data as a folder, with fields of its second row changed."""
    first, second = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
    (folder / "test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (first, {**second, **dict(change)})),
        encoding="utf-8",
    )
    return folder


def test_public_rows(tmp_path: Path) -> None:
    task = load_task("ioi", source=str(public_folder(tmp_path)))
    first, second = task.pairs("test")
    assert (first.id, second.id) == ("ioi-test-000000", "ioi-test-000001")
    assert first.counterfactual == "After Nick and John left the car park, John gave a ball to"
    assert (first.answers, first.foils, first.counterfactual_answers) == (
        (" John",),
        (" Nick",),
        (" Nick",),
    )
    assert first.tags == {
        "template": "After {name_A} and {name_B} left the {place}, {name_C} gave a {object} to",
        "order": "BABA",
        "subject": "Nick",
        "indirect_object": "John",
        "place": "car park",
        "object": "ball",
    }
    assert (second.tags["order"], second.answers, second.foils) == ("ABBA", (" Eve",), (" Ann",))
    assert second.clean[slice(*second.spans["object"])] == "toy car"
    assert [pair.counterfactual_answers for pair in task.pairs("test", counterfactual=ABC)] == [
        (),
        (),
    ]
    # The first row has the answer key of table 6 here, which is the repeated name; the second has
    # the other.
    both = task.pairs("test", counterfactual="random_names_s1_ioi_flip_s2_ioi_flip_counterfactual")
    assert [pair.counterfactual_answers for pair in both] == [(" Max",), (" Joe",)]
    assert isinstance(task, IOI)
    written = [task.to_row(example) for example in task.examples("test")]
    read = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    read[0]["random_names_s1_ioi_flip_s2_ioi_flip_counterfactual"]["answerKey"] = 0
    assert written == read


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("prompt", "In the zoo, somebody met, and lent a toy car to"),
            "a prompt that is not its template",
        ),
        (
            ("prompt", "In the zoo, Ann and Eve met, and Eve lent a toy car to"),
            "people of another role",
        ),
        (
            ("prompt", "In the zoo, Ann and Eve met, and Sam lent a toy car to"),
            "people of another role",
        ),
        (("choices", ["Ann", "Sam"]), "choices without the right one"),
        ((ABC, None), "no such counterfactual"),
        ((ABC, {"prompt": "In the zoo"}), "its counterfactual: a prompt that is not its template"),
        (("metadata", {}), "a row without 'subject'"),
        (("metadata", None), "a row of another form"),
    ],
)
def test_broken_public_rows(tmp_path: Path, change: tuple[str, Any], reason: str) -> None:
    """They are dropped and counted."""
    pairs = IOI(str(public_folder(tmp_path, change))).pairs("test", counterfactual=ABC)
    assert [pair.id for pair in pairs] == ["ioi-test-000000"] and pairs.dropped == {reason: 1}


# Forms of MIB's templates: with and without place and object, either of them first or twice, ", "
# within.
FORMS = (
    "After {name_A} and {name_B} saw the {place}, {name_C} lent a {object} to",
    "{name_A} and {name_B} stood together. {name_C} sold an {object} to",
    "Now {name_A} and {name_B} quarrelled for long. Afterwards {name_C} spoke to",
    "The {place} {name_A} and {name_B} saw had a {object}. {name_C} lent it to",
    (
        "When {name_A} and {name_B} had a {object} at the {place}, {name_C} chose to sell the"
        " {object} to"
    ),
    "While {name_A} and {name_B} slept, {name_C} took an {object} to",
)


def form_row(
    form: str, place: str, thing: str, *, say: bool = True, template: bool = True
) -> dict[str, Any]:
    """A public row of a form; without its fields in the metadata, or without its template."""
    casts = {
        "": "SIS",
        "s1_io_flip": "ISS",
        "s2_io_flip": "SII",
        "s1_ioi_flip_s2_ioi_flip": "ISI",
        "abc": "SIC",
    }
    casts |= {
        f"random_names{each}": cast
        for each, cast in (("", "ABA"), ("_s1_ioi_flip", "BAA"), ("_s2_ioi_flip", "ABB"))
    }
    casts["random_names_s1_ioi_flip_s2_ioi_flip"] = "BAB"
    people = {"S": "Mary", "I": "John", "A": "Ann Lee", "B": "Bob", "C": "Ann"}

    def struct(cast: str) -> dict[str, Any]:
        names = {f"name_{slot}": people[who] for slot, who in zip("ABC", cast, strict=True)}
        return {
            "prompt": form.format(**names, place=place, object=thing),
            "choices": list(people.values()),
            "answerKey": 0,
        }

    roles = {
        "subject": "S",
        "indirect_object": "I",
        "random_a": "A",
        "random_b": "B",
        "random_c": "C",
    }
    metadata = {role: people[who] for role, who in roles.items()}
    metadata |= {"place": place if say else None, "object": thing if say else None}
    others = {f"{kind}_counterfactual": struct(cast) for kind, cast in casts.items() if kind}
    return {
        **struct(casts[""]),
        "template": form if template else None,
        "metadata": metadata,
        **others,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("place", "thing"), [("store", "ring"), ("train station", "bag of chips")])
@pytest.mark.parametrize("lacks", ["nothing", "fields", "template"])
def test_public_rows_of_every_form(form: str, place: str, thing: str, lacks: str) -> None:
    row = form_row(form, place, thing, say=lacks != "fields", template=lacks != "template")
    example = IOI().from_row(row, "x")
    assert example.tags["template"] == form and set(example.counterfactuals) == set(CHANGES)
    assert [example.prompt.part(f"name_{slot}") for slot in "ABC"] == ["Mary", "John", "Mary"]
    strangers = example.counterfactuals["random_names_s1_ioi_flip_counterfactual"]
    assert [strangers.part(f"name_{slot}") for slot in "ABC"] == [
        "Bob",
        "Ann Lee",
        "Ann Lee",
    ], "Ann Lee is not Ann"
    for field, value in (("place", place), ("object", thing)):
        there = f"{{{field}}}" in form
        assert example.tags.get(field) == (value if there else None)
        assert [
            prompt.part(field) for prompt in (example.prompt, strangers) if field in prompt.spans
        ] == [value, value][: 2 * there]
    assert IOI().to_row(example)["prompt"] == row["prompt"]


def test_a_row_whose_template_says_something_else() -> None:
    """As "a apple" where the prompt has "an apple": the template is made of the prompt."""
    row = form_row(
        "While {name_A} and {name_B} slept, {name_C} took an {object} to", "store", "apple"
    )
    row["template"] = "While {name_A} and {name_B} slept, {name_C} took a {object} to"
    example = IOI().from_row(row, "x")
    assert (
        example.tags["template"]
        == "While {name_A} and {name_B} slept, {name_C} took an {object} to"
    )
    assert (
        example.tags["object"] == "apple"
        and "place" not in example.tags
        and len(example.counterfactuals) == 8
    )


def byte_level(texts: list[str], size: int = 600) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_tokenizer_that_knows_all_names_changes_nothing() -> None:
    tokenizer = word_level(all_words("test"))
    plain = IOI().pairs("test", limit=100)
    assert IOI().pairs("test", tokenizer, limit=100) == plain
    assert IOI().pairs("test", SimpleNamespace(tokenizer=tokenizer), limit=100) == plain
    assert IOI().rows("test", tokenizer, limit=30) == IOI().rows("test", limit=30)


def test_unknown_names_are_left_out() -> None:
    known = set(sorted(NAMES["test"])[:9])
    tokenizer = word_level(all_words("test") - NAMES["test"] | known)
    used = {
        name
        for row in IOI().rows("test", tokenizer)
        for name in [*mentions(row["prompt"]), row["metadata"]["random_c"]]
    }
    assert used == known


def test_too_few_names() -> None:
    tokenizer = word_level(all_words("test") - NAMES["test"] | set(sorted(NAMES["test"])[:5]))
    tokenizer.name_or_path = "tiny-words"
    with pytest.raises(BadPairs, match=r"'tiny-words' has 5 of"):
        IOI().pairs("test", tokenizer)


@pytest.mark.parametrize("kind", CHANGES)
def test_byte_level_tokenizer(kind: str) -> None:
    names = sorted(NAMES["train"])
    # Half of the names are frequent enough to become one token; the rest stay in pieces.
    tokenizer = byte_level(
        [f"I am {name} and {name}, {name}" for name in names[::2] for _ in range(20)]
    )
    whole = {name for name in names if len(tokenizer(" " + name)["input_ids"]) == 1}
    assert 6 <= len(whole) < len(names)
    pairs = IOI().pairs("train", tokenizer, limit=200, counterfactual=kind)
    used = {name for pair in pairs for name in mentions(pair.clean) + mentions(pair.counterfactual)}
    assert used <= whole and len(used) > len(whole) / 2
    batch = Batch.from_pairs(pairs, tokenizer)
    assert tokenizer.batch_decode(batch.answers) == [pair.answers[0] for pair in pairs]
    assert tokenizer.batch_decode(batch.foils) == [pair.foils[0] for pair in pairs]


class AndSplitter:
    """One token a word, but two for a name A that begins with a letter before "M"."""

    unk_token_id = None

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {
            "input_ids": [
                [hash(word) for word in re.sub(r" ([A-L])(\w+) and ", r" \1 \2 and ", text).split()]
                for text in texts
            ]
        }


def test_unequal_lengths_are_dropped_and_counted() -> None:
    tokenizer = AndSplitter()
    plain, flipped = IOI().pairs("test", limit=50), IOI().pairs("test", tokenizer, limit=50)
    assert flipped == plain and not flipped.dropped, "the S2 flip leaves the first clause alone"
    kept = IOI().pairs("test", tokenizer, limit=50, counterfactual="s1_io_flip_counterfactual")
    assert set(kept.dropped) == {LENGTHS}
    everything = IOI().pairs(
        "test", limit=50 + kept.dropped[LENGTHS], counterfactual="s1_io_flip_counterfactual"
    )
    short = [
        pair
        for pair in everything
        if ("A" <= mentions(pair.clean)[0][0] <= "L") == ("A" <= mentions(pair.clean)[1][0] <= "L")
    ]
    assert kept == tuple(short)
    examples = IOI().examples("test", limit=50)
    assert IOI().examples("test", tokenizer, limit=50) == examples, (
        "examples are not filtered by length"
    )


def test_tokenizer_is_called_in_batches() -> None:
    class Counting(AndSplitter):
        calls = 0

        def __call__(self, texts: list[str], **kwargs: Any) -> dict[str, list[list[int]]]:
            self.calls += 1
            return super().__call__(texts, **kwargs)

    tokenizer = Counting()
    IOI().pairs("test", tokenizer, limit=500)
    # Once for the names, then three times for at most 256 pairs. Two short texts show which special
    # tokens are added, each time and once more for the pairs.
    assert tokenizer.calls == 3 + 2 * (3 * 3 + 2)
