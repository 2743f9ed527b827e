"""The search for worse pairs: it finds the maximum where all pairs can be counted,
and changes prompts only as it may.

Prompts with one field changed: what may change, to what, and what stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tiny_models import with_words
from mechassay.adversarial import hill_climbing as module
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.hill_climbing import (
    SearchResult,
    field_values,
    search,
    single_field_edits,
)
from mechassay.adversarial.pools import Pool, draw_pools, tokenized
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.models.model import Model, make_model
from mechassay.prompts.pairs import Prompt, filled
from mechassay.stats.distribution import expected_maximum
from mechassay.truth.ground_truth import Truth, load_truth
from mechassay.truth.tasks import NAMES
from mechassay.utils.display import SILENT

PARTS = {"indirect_object": NAMES, "subject": NAMES, "subject_2": NAMES}


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


@pytest.fixture(scope="module")
def rugged() -> Space:
    """A random model with a random circuit, where one name may matter as much as another:
    30 x 30 pairs.
    """
    model, tokenizer = with_words()
    found = make_model(model, tokenizer)
    graph = found.graph
    mask = (
        torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    ) & graph.legal
    names = [
        name
        for name, count in (
            (name, len(tokenized(found, [name])[0])) for name in sorted(tokenizer.get_vocab())
        )
        if count == 1 and name.istitle()
    ]
    first, second = (
        [filled(template, {"a": a, "b": b}) for a, b in permutations(names[:6], 2)]
        for template in ("{a} and {b} {a}", "{b} to {a} {b}")
    )
    return space(found, Circuit(graph, mask), first, second, 4)


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


def value_of(at: Space, clean: Prompt, corrupted: Prompt) -> float:
    pools = (
        Pool((each,), torch.tensor(tokenized(at.model, [each.text]))) for each in (clean, corrupted)
    )
    return float(evaluate_pairs(at.model, [at.circuit], *pools, progress=SILENT).circuits[0, 0, 0])


@pytest.fixture(scope="module")
def plain(incomplete: Space) -> SearchResult:
    return run(incomplete)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_the_maximum_of_all_pairs(
    incomplete: Space, plain: SearchResult, seed: int
) -> None:
    everything = incomplete.everything
    found = plain if seed == 0 else run(incomplete, seed=seed)
    assert found.lower_bound == pytest.approx(float(everything.max()), abs=2e-5)
    assert found.finished and found.evaluations < everything.size
    assert found.best.is_local_maximum
    # The pools do not have it, and most pairs are far from it.
    assert found.lower_bound > max(float(found.climbs[0].steps[0].kl), found.random.kl) + 1e-4
    assert float(np.median(everything)) < found.lower_bound - 0.01


@pytest.mark.slow
def test_restarts_find_the_maximum_of_a_random_model(rugged: Space) -> None:
    highest = float(rugged.everything.max())
    few, many = run(rugged, starts=1, restarts=0), run(rugged, starts=1, restarts=40)
    assert (
        few.best.is_local_maximum and few.lower_bound < highest - 0.01
    )  # climbs end at local maxima
    assert many.lower_bound == pytest.approx(highest, abs=1e-4) and many.random.kl < highest - 0.01
    assert many.evaluations <= rugged.everything.size  # nothing is evaluated twice


def test_climbs_go_up_and_say_how(incomplete: Space, plain: SearchResult) -> None:
    found = plain
    assert list(found.climbs) == sorted(found.climbs, key=lambda climb: -climb.kl)
    assert found.best.kl == found.lower_bound
    for climb in found.climbs:
        heights = [step.kl for step in climb.steps]
        assert (
            heights == sorted(heights)
            and climb.steps[0].change == ""
            and all(step.change for step in climb.steps[1:])
        )
        assert [step.evaluations for step in climb.steps] == sorted(
            step.evaluations for step in climb.steps
        )
        assert climb.kl == pytest.approx(
            value_of(incomplete, climb.clean, climb.corrupted), abs=1e-4
        )
    assert max(len(climb.steps) for climb in found.climbs) > 2


def test_prompts_are_those_of_the_templates(plain: SearchResult) -> None:
    clean = {
        prompt.text
        for prompt in two_names("then {indirect_object} , . {subject} and {subject} , . to")
    }
    corrupted = {
        prompt.text
        for prompt in two_names("then so {subject} {indirect_object} . {subject} , , and to")
    }
    for climb in plain.climbs:
        assert climb.clean.text in clean and climb.corrupted.text in corrupted
        assert (
            climb.clean.part("subject")
            == climb.clean.part("subject_2")
            != climb.clean.part("indirect_object")
        )


def test_changes_that_the_tokenizer_does_not_allow_are_left_out(
    incomplete: Space, plain: SearchResult
) -> None:
    """Words that it does not know, and prompts that get longer."""
    values = {name: ("Zoe", "Ann Bob", *NAMES) for name in PARTS}
    with_more = run(incomplete, values=values, compare=False)
    assert (with_more.climbs, with_more.evaluations) == (plain.climbs, plain.evaluations)


@pytest.mark.parametrize("budget", [1, 3, 17, 40, 100])
def test_the_budget_is_kept_and_more_is_never_worse_than_the_start(
    incomplete: Space, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = []

    def counted(
        model: Model, circuits: Sequence[Circuit], clean: Pool, corrupted: Pool, **given: Any
    ) -> Any:
        spent.append(len(clean) * (len(corrupted) if given.get("grid", True) else 1))
        return evaluate_pairs(model, circuits, clean, corrupted, **given)

    monkeypatch.setattr(module, "evaluate_pairs", counted)
    found = run(incomplete, budget=budget, compare=False)
    assert sum(spent) == found.evaluations <= budget and found.finished
    assert all(climb.kl >= climb.steps[0].kl for climb in found.climbs)
    assert math.isnan(found.random.kl) and "random" not in str(found)
    assert found.evaluations == budget or all(climb.is_local_maximum for climb in found.climbs)


def test_the_same_seed_finds_the_same(incomplete: Space) -> None:
    once, again, other = (run(incomplete, seed=seed, starts=1, restarts=1) for seed in (5, 5, 6))
    assert once == again
    assert [climb.steps for climb in other.climbs] != [climb.steps for climb in once.climbs]


def test_from_a_sample_that_is_there(incomplete: Space) -> None:
    grid = evaluate_pairs(
        incomplete.model,
        [incomplete.circuit],
        incomplete.clean,
        incomplete.corrupted,
        progress=SILENT,
    ).circuits[0]
    found = run(incomplete, sample=grid, starts=1, restarts=0)
    (climb,) = found.climbs
    assert climb.steps[0].kl == pytest.approx(float(grid.max()), abs=1e-5)
    assert climb.steps[0].evaluations == 1  # no halving
    assert found.lower_bound == pytest.approx(float(incomplete.everything.max()), abs=2e-5)
    assert found.random == (pytest.approx(float(grid.max())), grid.size)
    few = run(incomplete, sample=grid, starts=1, restarts=0, budget=3)
    assert few.random.pairs == 3 and few.random.kl == pytest.approx(expected_maximum(grid, 3))


def test_an_interrupt_leaves_the_best_so_far(
    incomplete: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"starts": 1, "restarts": 1}
    whole, total = run(incomplete, **few), [0]

    def stopping(at: int) -> Any:
        calls = [0]

        def evaluated(*args: Any, **given: Any) -> Any:
            calls[0] += 1
            total[0] = calls[0]
            if calls[0] == at:
                raise KeyboardInterrupt
            return evaluate_pairs(*args, **given)

        return evaluated

    with monkeypatch.context() as patched:
        patched.setattr(module, "evaluate_pairs", stopping(-1))
        run(incomplete, **few)
    n_calls, best = total[0], -math.inf
    for at in (2, 3, n_calls - 2, n_calls):
        with monkeypatch.context() as patched:
            patched.setattr(module, "evaluate_pairs", stopping(at))
            found = run(incomplete, **few)
        assert not found.finished and "interrupted" in str(found)
        assert (
            best <= found.lower_bound <= whole.lower_bound
            and found.evaluations <= whole.evaluations
        )
        best = found.lower_bound
    assert best == whole.lower_bound  # the last one interrupts the comparison
    with monkeypatch.context() as patched:
        patched.setattr(module, "evaluate_pairs", stopping(1))
        with pytest.raises(KeyboardInterrupt):
            run(incomplete, **few)


def test_halving_keeps_the_worst_prompts(truth: Truth) -> None:
    """Where one clean prompt is worse with everybody, it is a start,
    though few pairs were evaluated.
    """
    circuit = without(truth, 7)
    clean, corrupted = draw_pools(truth.model, truth.task, 64, 64)
    grid = evaluate_pairs(truth.model, [circuit], clean, corrupted, progress=SILENT).circuits[0]
    found = search(
        truth.model,
        circuit,
        clean,
        corrupted,
        budget=1200,
        starts=2,
        restarts=0,
        compare=False,
        progress=SILENT,
    )
    assert found.climbs[0].steps[0].evaluations < grid.size / 4
    assert max(climb.steps[0].kl for climb in found.climbs) >= np.quantile(grid, 0.99)


def test_what_cannot_be_searched(incomplete: Space) -> None:
    for wrong in ({"budget": 0}, {"starts": 0}, {"restarts": -1}):
        with pytest.raises(BadUsage, match="A search needs"):
            run(incomplete, **wrong)
    with pytest.raises(BadUsage, match=r"shape \(4, 4\) of the pools; got \(2, 3\)"):
        run(incomplete, sample=np.zeros((2, 3)))


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
