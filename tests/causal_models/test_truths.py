"""Causal models of ground truths' tasks, right and wrong: labels against slow readings of the text.

The slow readings know nothing of spans, variables or mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from mechassay.causal_models.true_sites import KNOWN_SITES
from mechassay.errors import UnknownName
from mechassay.tasks import TRUTHS
from mechassay.truth.tasks import COUNTS, DIGITS, TREES
from mechassay.variables import (
    CausalModel,
    distinguish,
    expected_labels,
    hypotheses,
    load_causal_model,
)

Slow = Callable[[list[str], list[str]], "set[str] | None"]
"""The labels of a base and a source, given as words; None where there are none."""
TRAINED = [name for name in TRUTHS.names() if name.endswith("-trained")]
TASKS = {TRUTHS.make(name).name: TRUTHS.make(name) for name in TRAINED}


# --- slow readings --------------------------------------------------------------------------------


def table(words: list[str]) -> list[tuple[str, str]]:
    return [(words[i], words[i + 2]) for i in (1, 4, 7)]


def chosen(words: list[str]) -> str:
    return dict(table(words))[words[-1]]


def same_number(base: list[str], source: list[str]) -> set[str]:
    number = next(n for n, (color, _) in enumerate(table(source)) if color == source[-1])
    return {table(base)[number][1]}


def same_rank(base: list[str], source: list[str]) -> set[str]:
    below = sum(symbol < chosen(source) for _, symbol in table(source))
    for _, symbol in table(base):
        if sum(other < symbol for _, other in table(base)) == below:
            return {symbol}
    raise AssertionError(base)


def fingers(words: list[str]) -> int:
    return len([*range(int(words[5])), *range(int(words[8]))])


def added(words: list[str]) -> int:
    return int(words[4]) + int(words[5]) + int(words[7]) + int(words[8])


def carried(base: list[str], source: list[str]) -> set[str]:
    """The base's tens alone, and the ten fingers of the source."""
    whole = int(base[4]) + int(base[7]) + (10 if fingers(source) > 9 else 0)
    return {str(whole)[:-1]}


def tens_of(base: list[str], source: list[str]) -> set[str]:
    whole = int(source[4]) + int(source[7]) + (10 if fingers(base) > 9 else 0)
    return {str(whole)[:-1]}


def flipped_by_parity(base: list[str], source: list[str]) -> set[str]:
    """Another parity takes a carried ten away, or brings one."""
    own = added(base)
    if fingers(base) % 2 != fingers(source) % 2:
        own += -10 if fingers(base) > 9 else 10
    return {str(own)[:-1]}


def repeated(words: list[str]) -> str:
    (found,) = {word for word in words if word[0].isupper() and words.count(word) == 2}
    return found


def others(words: list[str], name: str) -> set[str] | None:
    there = {word for word in words if word[0].isupper()}
    return there - {name} if name in there else None


def by_order(base: list[str], source: list[str]) -> set[str]:
    names = list(dict.fromkeys(word for word in source if word[0].isupper()))
    place = names.index(next(iter(others(source, repeated(source)) or ())))
    return {list(dict.fromkeys(word for word in base if word[0].isupper()))[place]}


def digit(words: list[str]) -> int:
    return next(int(word) for word in words if word.isdigit())


def larger(than: int) -> set[str] | None:
    return {each for each in DIGITS if int(each) > than} or None


def partner(number: int) -> int:
    """The other number of a pair (0 1), (2 3), ..."""
    return number + 1 if number % 2 == 0 else number - 1


def by_place(base: list[str], source: list[str]) -> set[str] | None:
    places = [words.index(str(digit(words))) % 2 for words in (base, source)]
    own = digit(base)
    return larger(own if places[0] == places[1] else partner(own))


def count_by_places(base: list[str], source: list[str]) -> set[str] | None:
    odd = [sum(words[i] == "x" for i in (1, 3, 5, 7)) % 2 for words in (base, source)]
    own = base.count("x")
    found = own if odd[0] == odd[1] else partner(own)
    return {COUNTS[found - 1]} if found else None


def before_mark(words: list[str]) -> str:
    return next(word for word, then in pairwise(words) if then == "#")


def at_place_of_mark(base: list[str], source: list[str]) -> set[str]:
    return {[word for word in base if word in TREES][source.index("#") - 1]}


def following(words: list[str], asked: str) -> set[str] | None:
    return next(({then} for word, then in pairwise(words) if word == asked), None)


def asked_elsewhere(base: list[str], source: list[str]) -> set[str] | None:
    """What stands last has nothing after it, and the word before it is followed by the question."""
    return following(base[:-1], source[-1])


def at_place_of_answer(base: list[str], source: list[str]) -> set[str]:
    return {base[source.index(source[-1]) + 1]}


SLOW: dict[str, dict[str, Slow]] = {
    "truth-mcqa": {
        "answer_pointer": same_number,
        "answer": lambda base, source: {chosen(source)},
        "symbol_rank": same_rank,
    },
    "truth-addition": {
        "carry": carried,
        "both_tens": tens_of,
        "answer": lambda base, source: {str(added(source))[:-1]},
        "odd": flipped_by_parity,
    },
    "truth-ioi": {
        "duplicate": lambda base, source: others(base, repeated(source)),
        "answer": lambda base, source: others(source, repeated(source)),
        "name_place": by_order,
    },
    "truth-greater-than": {
        "digit": lambda base, source: larger(digit(source)),
        "odd_place": by_place,
    },
    "truth-fraction": {
        "share": lambda base, source: {COUNTS[source.count("x") - 1]},
        "odd_places": count_by_places,
    },
    "truth-previous-token": {
        "previous": lambda base, source: {before_mark(source)},
        "word_place": at_place_of_mark,
    },
    "truth-induction": {"asked": asked_elsewhere, "word_place": at_place_of_answer},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("task", sorted(TASKS))
def test_labels_are_those_of_a_slow_reading_of_the_text(task: str) -> None:
    examples = TASKS[task].examples("validation", limit=150)
    found = hypotheses(task)
    assert found.keys() == SLOW[task].keys()
    for name, slow in SLOW[task].items():
        labels = expected_labels(found[name].model, found[name].variable, examples)
        by_id = {pair.id: {label.strip() for label in pair.labels} for pair in labels}
        n = 0
        for example in examples:
            for kind, other in example.counterfactuals.items():
                wanted = slow(example.prompt.text.split(), other.text.split())
                assert by_id.get(f"{example.id}/{kind}") == wanted, (name, example.prompt, other)
                n += wanted is not None
        assert n == len(labels) and labels.changed.mean() > 0.3
        bases = {pair.id: set(pair.base_labels) for pair in labels}
        own = {example.id: set(example.prompt.answers) for example in examples}
        assert all(of == own[id.partition("/")[0]] for id, of in bases.items())


@pytest.mark.few(2)
@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_wrong_hypothesis_is_one_of_another_model_and_can_be_told(task: str) -> None:
    found = hypotheses(task)
    (wrong,) = (each for each in found.values() if not each.right)
    right = [each for each in found.values() if each.right]
    assert {each.variable for each in right} == set(KNOWN_SITES[f"{task}-trained"])
    causal = load_causal_model(task)
    assert isinstance(causal, CausalModel) and causal.name == task != wrong.model.name
    examples = TASKS[task].examples("test", limit=100)
    for each in right:
        told = distinguish((wrong.model, wrong.variable), (each.model, each.variable), examples)
        assert told.share > 0.3
    distinguish((wrong.model, wrong.variable), (wrong.model, None), examples)


def test_kinds_tell_the_pointer_from_the_answer_and_the_carry_from_the_sum() -> None:
    choices, adding = (
        TASKS[name].examples("test", limit=100) for name in SLOW if "mc" in name or "ad" in name
    )
    mcqa, addition = load_causal_model("truth-mcqa"), load_causal_model("truth-addition")
    told = distinguish((mcqa, "answer_pointer"), (mcqa, "answer"), choices)
    assert told.shares["answerPosition_counterfactual"] == 0
    assert told.shares["randomLetter_counterfactual"] == 1
    assert told.shares["answerPosition_randomLetter_counterfactual"] == 1
    moved = distinguish((mcqa, "answer_pointer"), (mcqa, None), choices)
    assert moved.shares["randomLetter_counterfactual"] == 0
    assert moved.shares["answerPosition_counterfactual"] == 1
    summed = distinguish((addition, "carry"), (addition, "answer"), adding)
    assert summed.shares["ones_carry_counterfactual"] == 0
    assert summed.shares["random_counterfactual"] > 0.8
    carry = distinguish((addition, "carry"), (addition, None), adding)
    assert carry.shares["ones_carry_counterfactual"] == 1


def test_unknown_tasks_are_told() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'truth-mcqa'"):
        hypotheses("truth-mcq")
