"""Streams of prompts that come to an end.

Causal models of the trained ground truths:
answers worked by hand, and by a slow reading of the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest

from mechassay.errors import BadPairs
from mechassay.models.graph import Graph
from mechassay.models.sources import MADE_TRUTHS
from mechassay.prompts.pairs import Example, Prompt
from mechassay.tasks import TRUTHS
from mechassay.tasks.task import SPLITS
from mechassay.testing.checks import check_task
from mechassay.truth.tasks import CAUSAL, COUNTS, Causal, CompiledTask, split_of

WORDS = ("oak", "elm", "ash", "yew")


class Short(CompiledTask):
    """Three different words of four: the first of them."""

    name = "short"
    words: ClassVar[tuple[str, ...]] = WORDS
    others: ClassVar[tuple[str, ...]] = ()
    patience: ClassVar[int] = 500

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        words = [WORDS[number] for number in rng.permutation(4)[:3]]
        return Prompt(" ".join(words), (f" {words[0]}",), tuple(f" {word}" for word in WORDS)), ()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_split_ends_when_all_of_its_prompts_have_come(seed: int) -> None:
    for split in ("train", "test"):
        found = [example.prompt.text for example in Short().generate(split, seed)]
        assert sorted(found) == sorted(
            text for text in map(" ".join, permutations(WORDS, 3)) if split_of(text) == split
        )


class Single(Short):
    """One prompt, which belongs to one split."""

    name = "single"

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        return Prompt("oak elm ash", (" oak",), tuple(f" {word}" for word in WORDS)), ()


def test_a_split_without_any_prompt_is_an_error_and_no_endless_search() -> None:
    for split in SPLITS:
        if split == split_of("oak elm ash"):
            assert not list(Single().generate(split, 0)), "no other prompt to compare it with"
            continue
        with pytest.raises(BadPairs, match=f"single: none of 500 prompts drawn .* split '{split}'"):
            list(Single().generate(split, 0))


NAMES = [name for name in CAUSAL.names() if name not in MADE_TRUTHS]


@cache
def examples_of(name: str) -> tuple[Example, ...]:
    return tuple(TRUTHS.make(name).examples("test", limit=200))


def tokens(causal: Causal, *texts: str) -> np.ndarray:
    return np.array([[causal.token(word) for word in text.split()] for text in texts])


def answers(causal: Causal, own: str, other: str, variable: str | None) -> list[str]:
    right = causal.answers(tokens(causal, own), tokens(causal, other), variable)[0]
    return [word for word, is_right in zip(causal.task.words, right, strict=True) if is_right]


@pytest.mark.parametrize(
    ("name", "own", "other", "expected"),
    [
        (
            "truth-previous-token-trained",
            "oak elm # ash yew fir bay box fig =",
            "fig box bay fir yew # ash elm oak =",
            # `previous` at place 2 of the other prompt is box, in place of elm; its own answer is
            # yew.
            {None: ["elm"], "previous": ["box"], "answer": ["yew"]},
        ),
        (
            "truth-previous-token-trained",
            "oak elm # ash yew fir bay box fig =",
            "fig # bay fir yew box ash elm oak =",
            # Before place 2 the other prompt has the mark, which is no answer.
            {None: ["elm"], "previous": [], "answer": ["fig"]},
        ),
        (
            "truth-induction-trained",
            ": oak elm ash yew fir bay box fig oak",
            ": elm ash oak yew fir bay box fig ash",
            # In the other prompt oak stands before place 4, where the own prompt has yew.
            {None: ["elm"], "previous": ["yew"], "answer": ["oak"]},
        ),
        (
            "truth-induction-trained",
            ": oak elm ash yew fir bay box fig oak",
            ": elm ash gum yew fir bay box fig ash",
            {"previous": []},
        ),
        (
            "truth-ioi-trained",
            "then . Ann and Bob , Ann . so to",
            "then Bob . Ann and , so . Bob to",
            {None: ["Bob"], "duplicate": ["Ann"], "inhibited": ["Ann"], "answer": ["Ann"]},
        ),
        (
            "truth-ioi-trained",
            "then . Ann and Bob , Ann . so to",
            "then Cid . Ann and , so . Cid to",
            {"duplicate": [], "answer": ["Ann"]},
        ),
        (
            "truth-fraction-trained",
            ": x a x b c d e f =",
            ": x x x x x b c d =",
            {None: ["two"], "share": ["five"], "answer": ["five"]},
        ),
        (
            "truth-greater-than-trained",
            "then so . 6 and , . so and to",
            "then 8 . so and , . so and to",
            {None: ["7", "8", "9"], "digit": ["9"], "answer": ["9"]},
        ),
        (
            "truth-mcqa-trained",
            ": red 1 K blue 2 B pink 3 T blue",
            ": green 1 Z blue 2 M gray 3 P gray",
            # In the other prompt blue stands before 2 too; its own answer is the third letter.
            {None: ["B"], "previous": ["B"], "answer_pointer": ["T"], "answer": ["P"]},
        ),
        (
            "truth-mcqa-trained",
            ": red 1 K blue 2 B pink 3 T red",
            ": green 1 Z brown 2 M red 3 P green",
            {"previous": ["T"], "answer_pointer": ["K"], "answer": ["Z"]},
        ),
        (
            "truth-mcqa-trained",
            ": red 1 K blue 2 B pink 3 T blue",
            ": green 1 Z brown 2 M gray 3 P gray",
            {"previous": []},
        ),
        (
            "truth-addition-trained",
            ": the sum of 20 7 and 60 4 is",
            ": the sum of 90 1 and 90 2 is",
            # The ones of the first number come from the other prompt: 1 + 4 is below ten.
            {
                **{None: ["9"], "x1": ["8"], "carry": ["8"], "carried": ["8"]},
                **{"both_tens": ["19"], "answer": ["18"]},
            },
        ),
    ],
)
def test_answers_by_hand(
    name: str, own: str, other: str, expected: dict[str | None, list[str]]
) -> None:
    causal = CAUSAL.make(name)
    for variable, words in expected.items():
        assert answers(causal, own, other, variable) == words, variable


@pytest.mark.parametrize("name", NAMES)
def test_without_an_intervention_the_answers_are_those_of_the_task(name: str) -> None:
    causal = CAUSAL.make(name)
    prompts = [example.prompt for example in examples_of(name)]
    own = tokens(causal, *(prompt.text for prompt in prompts))
    right = causal.answers(own, own[::-1], None)
    assert [words_of(causal, row) for row in right] == [
        [answer.strip() for answer in prompt.answers] for prompt in prompts
    ]
    # A variable taken from the prompt itself changes nothing; the answer, taken from another, is
    # the other's.
    for variable in causal.nodes:
        np.testing.assert_array_equal(causal.answers(own, own, variable), right)
    np.testing.assert_array_equal(causal.answers(own, own[::-1], "answer"), right[::-1])


def words_of(causal: Causal, row: Sequence[bool] | np.ndarray) -> list[str]:
    return [word for word, is_right in zip(causal.task.words, row, strict=True) if is_right]


@pytest.mark.parametrize("name", NAMES)
def test_interchanges_are_often_defined(name: str) -> None:
    causal = CAUSAL.make(name)
    prompts = tokens(causal, *(example.prompt.text for example in examples_of(name)))
    for variable in causal.nodes:
        assert causal.answers(prompts, prompts[::-1], variable).any(axis=1).mean() > 0.25, variable


@pytest.mark.parametrize("name", NAMES)
def test_the_circuit_is_edges_between_the_nodes(name: str) -> None:
    causal = CAUSAL.make(name)
    graph = Graph(causal.n_layers, causal.n_heads)
    owner = graph.reader_owner.tolist()
    inside = {0, *(graph.writer(home) for home in causal.nodes.values())}
    for edge in (*causal.edges, *causal.constant_edges, *causal.free_edges):
        writer, reader = graph.index(edge)
        assert writer in inside and (reader == graph.logits or owner[reader] in inside)
    every = (*causal.edges, *causal.constant_edges, *causal.free_edges)
    assert len(set(every)) == len(every)
    assert {graph.index(edge).writer for edge in causal.edges} == inside


NEWER = ["truth-addition-trained", "truth-fraction-trained", "truth-greater-than-trained"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*NEWER, "truth-mcqa-trained"])
def test_the_tasks_keep_their_promises(name: str) -> None:
    task = TRUTHS.make(name)
    check_task(task, limit=12)
    for example in task.examples("validation", limit=60):
        for prompt in (example.prompt, *example.counterfactuals.values()):
            words = prompt.text.split()
            assert (
                len(words) == 10 + (task.name == "truth-mcqa")
                and split_of(prompt.text) == "validation"
            )
            if name == "truth-fraction-trained":
                assert prompt.answers == (f" {COUNTS[words.count('x') - 1]}",)
            elif name == "truth-greater-than-trained":
                digit = next(int(word) for word in words if word.isdigit())
                assert prompt.answers == tuple(f" {number}" for number in range(digit + 1, 10))
            elif name == "truth-addition-trained":
                assert prompt.answers == (f" {sum(map(int, filter(str.isdigit, words))) // 10}",)
            else:
                assert prompt.answers == (f" {words[words.index(words[-1]) + 2]}",)


def test_counterfactuals_of_choices_change_what_their_name_says() -> None:
    examples = examples_of("truth-mcqa-trained")
    seen = {kind for each in examples for kind in each.counterfactuals}
    assert seen == set(TRUTHS.make("truth-mcqa-trained").counterfactuals)
    for example in examples:
        own = example.prompt.text.split()
        for kind, prompt in example.counterfactuals.items():
            words = prompt.text.split()
            same_letters, same_place = words[3::3] == own[3::3], _place(words) == _place(own)
            if kind == "other-prompt":
                continue
            assert sorted(words[1:-1:3]) == sorted(own[1:-1:3]) and words[-1] == own[-1]
            assert same_place is ("answerPosition" not in kind)
            assert (words[1:-1:3] == own[1:-1:3]) is same_place
            assert same_letters is ("randomLetter" not in kind)
            assert same_letters or not set(words[3::3]) & set(own[3::3])
            assert prompt.part("correct_symbol") == prompt.answers[0].strip()
            assert prompt.part("correct_choice") == prompt.part("color") == own[-1]
            for number in range(3):
                assert prompt.part(f"symbol_{number}") == words[3 * number + 3]
                assert prompt.part(f"number_{number}") == words[3 * number + 2] == str(number + 1)
                assert prompt.part(f"choice_{number}") == words[3 * number + 1]


def _place(words: list[str]) -> int:
    return words.index(words[-1])


def test_counterfactuals_of_additions_hold_the_tens_and_change_the_carry() -> None:
    kind = "ones_carry_counterfactual"
    examples = examples_of("truth-addition-trained")
    changed = [
        (example.prompt, example.counterfactuals[kind])
        for example in examples
        if kind in example.counterfactuals
    ]
    assert len(changed) == len(examples)
    for own, other in changed:
        for part in ("op1_first", "op2_first"):
            assert own.part(part) == other.part(part)
        carries = [
            int(each.part("op1_last")) + int(each.part("op2_last")) > 9 for each in (own, other)
        ]
        assert carries[0] != carries[1]


def test_greater_than_has_the_other_digits_as_foils() -> None:
    for example in TRUTHS.make("truth-greater-than-trained").examples("test", limit=50):
        assert sorted((*example.prompt.answers, *(example.foils or ()))) == [
            f" {number}" for number in range(10)
        ]
