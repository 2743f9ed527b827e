"""The IOI task: public rows, and prompts read from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ioi_words import ALL_NAMES, all_words, solve, word_level
from mechassay.alignment import token_position
from mechassay.examples import Example, Prompt
from mechassay.tasks import SPLITS, load_task
from mechassay.tasks.ioi import ABC, CHANGES, IOI

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
