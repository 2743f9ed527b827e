"""Prompts with one field changed: what may change, to what, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.adversarial.edits import field_values, single_field_edits
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, tokenized
from mechassay.adversarial.search import SearchResult, search
from mechassay.circuits.scores import Circuit
from mechassay.examples import Prompt, filled
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.truth.models import Truth, load_truth
from mechassay.truth.tasks import NAMES


def ioi(a: str, b: str, c: str) -> Prompt:
    plain = filled(
        "Then {name_A} and {name_B} met. {name_C} gave it to",
        {"name_A": a, "name_B": b, "name_C": c},
    )
    meaning = {
        "subject": plain.spans["name_A" if c == a else "name_B"],
        "subject_2": plain.spans["name_C"],
    }
    return Prompt(plain.text, (f" {b if c == a else a}",), (), {**plain.spans, **meaning})


def test_a_name_is_changed_wherever_it_stands() -> None:
    values = field_values(
        [ioi("Ann", "Bob", "Ann"), ioi("Christina", "Ann", "Ann"), ioi("Bob", "Christina", "Bob")]
    )
    assert values["name_A"] == ("Ann", "Christina", "Bob") and values["name_C"] == ("Ann", "Bob")
    found = single_field_edits(
        ioi("Ann", "Bob", "Ann"),
        {
            **values,
            "name_C": values["name_A"],
            "subject": values["name_A"],
            "subject_2": values["name_A"],
        },
    )
    # Ann cannot become Bob, who is there; Bob can become Christina, whom name_B has been.
    assert [each.prompt.text for each in found] == [
        ioi("Christina", "Bob", "Christina").text,
        ioi("Ann", "Christina", "Ann").text,
    ]
    assert found[0].change == "name_A, name_C, subject, subject_2: Ann -> Christina"
    for each, wanted in zip(
        found, (ioi("Christina", "Bob", "Christina"), ioi("Ann", "Christina", "Ann")), strict=True
    ):
        assert each.prompt.spans == wanted.spans and each.prompt.answers == ()


def test_a_value_must_be_one_of_every_part_that_changes() -> None:
    prompt = filled("In {century}{year} to {century}", {"century": "17", "year": "33"})
    values = {"century": ("11", "17"), "century_2": ("11", "12"), "year": ("17", "33", "50", "")}
    assert [each.prompt.text for each in single_field_edits(prompt, values)] == [
        "In 1133 to 11",
        "In 1750 to 17",
    ]
    # Where year and century happen to be the same they are one field, for which no value is common
    # to all three.
    same = filled("In {century}{year} to {century}", {"century": "17", "year": "17"})
    assert single_field_edits(same, values) == []


def test_parts_inside_others() -> None:
    text = "pick red or blue now"
    prompt = Prompt(
        text, spans={"choices": (5, 16), "first": (5, 8), "second": (12, 16), "crossing": (14, 20)}
    )
    values = {"choices": ("a or b",), "first": ("green",), "second": ("black",), "crossing": ("x",)}
    (found,) = single_field_edits(prompt, values)
    assert found.prompt.text == "pick green or blue now"
    assert (
        found.prompt.part("choices") == "green or blue"
        and found.prompt.part("second") == "blue"
        and found.prompt.part("crossing") == "ue now"
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=3, max_size=3, unique=True), st.integers(1, 5)
)
def test_templates_stay_intact(words: list[str], times: int) -> None:
    """Every variant is the template with other words, one of them new,
    and its parts are those of a prompt made so.
    """
    template, names = "{x}-{y} {x}/{z}:{y}{x}", "xyz"
    first = dict(zip(names, words, strict=True))
    values = {
        f"{name}{end}": [each * times for each in "abcdefgh"]
        for name in names
        for end in ("", "_2", "_3")
    }
    found = single_field_edits(filled(template, first), values)
    made = [{**first, name: new} for name in names for new in values[name] if new not in words]
    assert {(each.prompt.text, tuple(each.prompt.spans.items())) for each in found} == {
        (prompt.text, tuple(prompt.spans.items()))
        for prompt in (filled(template, each) for each in made)
    }
    assert len(found) == len(made)


@dataclass(frozen=True)
class Space:
    """A model, a circuit, a few prompts of two templates, and all that can be made of these."""

    model: Model
    circuit: Circuit
    clean: Pool
    corrupted: Pool
    everything: np.ndarray


def space(
    model: Model, circuit: Circuit, clean: Sequence[Prompt], corrupted: Sequence[Prompt], n: int
) -> Space:
    """All prompts of both templates, evaluated with each other;
    the pools are n random ones of each.
    """
    whole = [
        Pool(tuple(each), torch.tensor(tokenized(model, [prompt.text for prompt in each])))
        for each in (clean, corrupted)
    ]
    values = evaluate_pairs(model, [circuit], *whole, progress=SILENT).circuits[0]
    rng = np.random.default_rng(4)
    few = [pool.select(rng.choice(len(pool), n, replace=False).tolist()) for pool in whole]
    return Space(model, circuit, few[0], few[1], values)


def two_names(template: str) -> list[Prompt]:
    """The template with any two of six names in its places."""
    return [
        filled(template, {"subject": s, "indirect_object": i}) for s, i in permutations(NAMES, 2)
    ]


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth("truth-ioi")


def without(truth: Truth, place: int) -> Circuit:
    """The true circuit but for one edge."""
    names = truth.circuits["counterfactual"].names()
    return Circuit.from_names(truth.model.graph, [*names[:place], *names[place + 1 :]])


@pytest.fixture(scope="module")
def incomplete() -> Space:
    """A trained ground truth, its circuit without the edge that brings names to the mover,
    and 30 x 30 pairs.
    """
    trained = load_truth("truth-ioi-trained")
    clean, corrupted = (
        "then {indirect_object} , . {subject} and {subject} , . to",
        "then so {subject} {indirect_object} . {subject} , , and to",
    )
    return space(trained.model, without(trained, 3), two_names(clean), two_names(corrupted), 4)


def run(at: Space, **options: Any) -> SearchResult:
    names = {
        name
        for pool in (at.clean, at.corrupted)
        for prompt in pool.prompts
        for name in prompt.spans
    }
    every = sorted(
        {
            word
            for pool in (at.clean, at.corrupted)
            for field in pool.fields.values()
            for word in field
        }
    )
    values = {name: NAMES if "subject" in name or "object" in name else every for name in names}
    arguments: dict[str, Any] = {
        "values": values,
        "starts": 3,
        "restarts": 3,
        "progress": SILENT,
        **options,
    }
    return search(at.model, at.circuit, at.clean, at.corrupted, **arguments)


@pytest.fixture(scope="module")
def plain(incomplete: Space) -> SearchResult:
    return run(incomplete)
