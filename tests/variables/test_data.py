"""The pairs that a variable is looked for with: which examples are left out, and why; labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.causal_models.labels import ExpectedLabels, expected_labels
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.model import Model, untrained
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Example, Prompt, Unreadable
from mechassay.prompts.tokenization import encode
from mechassay.tasks.task import Task
from mechassay.utils.display import SILENT
from mechassay.variables.data import (
    UNBALANCED,
    WRONG_IMPLIED,
    answered_examples,
    balance,
    variable_pairs,
    with_own_labels,
)


@pytest.fixture(scope="module")
def ioi() -> tuple[Model, Task]:
    return ma.load_model("truth-ioi-trained"), ma.load_task("truth-ioi")


@pytest.fixture(scope="module")
def larger() -> tuple[Model, Task]:
    return ma.load_model("truth-greater-than-trained"), ma.load_task("truth-greater-than-trained")


# --- examples that the model answers ------------------------------------------------------------


def says(model: Model, prompt: Prompt) -> bool:
    """Whether greedy decoding writes a whole answer, one token at a time."""
    assert model.tokenizer is not None
    (begin,) = encode(model.tokenizer, [prompt.text])
    for answer in prompt.answers:
        (whole,) = encode(model.tokenizer, [prompt.text + answer])
        tokens = list(begin)
        while len(tokens) < len(whole):
            logits = model.hf(torch.tensor([[*model.prepend, *tokens]])).logits[0, -1]
            tokens.append(int(logits.argmax()))
        if tokens == list(whole):
            return True
    return False


def slow_reason(model: Model, example: Example, kinds: Sequence[str]) -> str | None:
    others = {kind: example.counterfactuals[kind] for kind in kinds}
    for kind, prompt in {"base": example.prompt, **others}.items():
        if prompt.answers and not says(model, prompt):
            return f"model wrong on {kind}"
    return None


UNREAD = Unreadable("made-x", "unread", "it is not there")


@dataclass(frozen=True)
class Made(Task):
    """A task of given examples, and of what cannot be read."""

    name: ClassVar[str] = "made"
    sizes: ClassVar[Mapping[str, int]] = {"train": 16}
    counterfactuals: ClassVar[tuple[str, ...]] = ("other",)
    default_counterfactual: ClassVar[str] = "other"

    made: tuple[Example | Unreadable, ...]

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        raise NotImplementedError

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        yield from self.made


def half_right(task: Task) -> Made:
    """Every third base, and every second counterfactual, has a wrong answer; two cannot be read."""

    def spoilt(number: int, example: Example) -> Example:
        if number % 3 == 0:
            return replace(example, prompt=replace(example.prompt, answers=(" so",)))
        (kind, other), *more = example.counterfactuals.items()
        if number % 2 == 0:
            other = replace(other, answers=(" so",))
        return replace(example, counterfactuals={kind: other, **dict(more)})

    found = [spoilt(n, each) for n, each in enumerate(task.examples("train", limit=14))]
    return Made((UNREAD, UNREAD, *found))


def test_examples_are_those_that_a_slow_scoring_keeps(ioi: tuple[Model, Task]) -> None:
    model, task = ioi[0], half_right(ioi[1])
    examples = task.examples("train", model)
    kinds = tuple(examples[0].counterfactuals)[:2]
    reasons = [slow_reason(model, each, kinds) for each in examples]
    good = [row for row, reason in enumerate(reasons) if reason is None]
    assert 3 < len(good) < 10
    found = answered_examples(model, task, "train", 3, kinds, progress=SILENT)
    assert [each.id for each in found] == [examples[row].id for row in good[:3]]
    before = Counter(filter(None, reasons[: good[2] + 1]))
    assert dict(found.dropped) == {"unread": 2, **before} and len(before) == 2
    # More than there are: all of the split, each that is left out counted.
    every = answered_examples(model, task, "train", 500, kinds, progress=SILENT)
    assert len(every) == len(good)
    assert dict(every.dropped) == {"unread": 2, **Counter(filter(None, reasons))}


def test_a_model_that_answers_nothing_is_told_with_counts(ioi: tuple[Model, Task]) -> None:
    model, task = ioi
    nothing = replace(untrained(model), name="nothing")
    with pytest.raises(BadPairs) as error:
        answered_examples(nothing, half_right(task), "train", 2, progress=SILENT)
    text = str(error.value)
    assert text.startswith("nothing answers none of ") and "of made (train)" in text
    (n,) = [int(word) for word in text.partition(" examples")[0].split() if word.isdecimal()]
    _, _, told = text.partition("dropped: ")
    counts = [int(part.split()[0]) for part in told.rstrip(".").split(", ")]
    assert "2 unread" in told and sum(counts) == n + 2


def test_a_split_of_which_not_all_can_be_read_is_used_up(ioi: tuple[Model, Task]) -> None:
    """A task refuses a limit above what it has; the whole split is no limit."""
    model, task = ioi
    nine = tuple(task.examples("train", limit=9))
    short = Made((*nine, *(UNREAD for _ in range(7))))
    with pytest.raises(BadUsage, match="has 9 examples; asked for 16"):
        short.examples("train", limit=16)
    found = answered_examples(model, short, "train", 12, progress=SILENT)
    assert len(found) == 9 and found.dropped == {"unread": 7}


def test_kinds_that_are_asked_for_have_to_be_there(ioi: tuple[Model, Task]) -> None:
    model, task = ioi
    with pytest.raises(UnknownName, match="kind of counterfactual of truth-ioi"):
        answered_examples(model, task, "test", 2, ("flipped_counterfactual",), progress=SILENT)
    with pytest.raises(UnknownName, match="split"):
        answered_examples(model, task, "tests", 2, progress=SILENT)


def test_a_prompt_that_nothing_completes_counts_as_right(ioi: tuple[Model, Task]) -> None:
    model, task = ioi
    silent = Made(
        tuple(
            replace(each, counterfactuals={"other": Prompt("then so . to")})
            for each in task.examples("train", limit=4)
        )
    )
    found = answered_examples(model, silent, "train", 4, progress=SILENT)
    assert len(found) == 4 and not found.dropped


# --- balance ------------------------------------------------------------------------------------


def labels_of(changed: Sequence[bool]) -> ExpectedLabels:
    pairs = [
        InterchangePair(f"p{n}", "a", "b", label="x" if new else "y", base_label="y")
        for n, new in enumerate(changed)
    ]
    return ExpectedLabels(
        pairs,
        model="m",
        variable="v",
        base_values=np.full(len(pairs), np.nan),
        dropped={"before": 1},
    )


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ("1000", [0, 1]),
        ("0001", [0, 3]),
        ("110100", [0, 1, 2, 3, 4, 5]),
        ("0000110", [0, 1, 4, 5]),
    ],
)
def test_balanced_pairs_are_the_first_of_each(changed: str, kept: list[int]) -> None:
    found = balance(labels_of([x == "1" for x in changed]))
    assert [pair.id for pair in found] == [f"p{n}" for n in kept]
    assert int(found.changed.sum()) * 2 == len(found)
    left_out = len(changed) - len(kept)
    assert dict(found.dropped) == {"before": 1} | ({UNBALANCED: left_out} if left_out else {})


@pytest.mark.parametrize(("changed", "says"), [("111", "changes"), ("00", "keeps")])
def test_what_cannot_be_balanced_is_one_line(changed: str, says: str) -> None:
    with pytest.raises(BadPairs, match=f"its interchange {says} the label in all {len(changed)}"):
        balance(labels_of([x == "1" for x in changed]))


# --- labels of several right answers ------------------------------------------------------------


def test_of_several_right_labels_the_model_s_own_counts(larger: tuple[Model, Task]) -> None:
    model, task = larger
    causal = ma.variables.load_causal_model("truth-greater-than")
    examples = task.examples("test", limit=12)
    labels = expected_labels(causal, "digit", examples)
    assert any(len(pair.labels) > 1 for pair in labels)
    own = with_own_labels(labels, causal, model, progress=SILENT)
    before = {pair.id: pair for pair in labels}
    assert model.tokenizer is not None
    for pair in own:
        assert pair.label in before[pair.id].labels
        assert pair.base_label in before[pair.id].base_labels
        # What the model writes after the base, and after the base with the source's digit.
        digit = pair.source[slice(*pair.source_spans["digit"])]
        begin, end = pair.base_spans["digit"]
        asked = f"{pair.base[:begin]}{digit}{pair.base[end:]}"
        for prompt, label in ((pair.base, pair.base_label), (asked, pair.label)):
            (tokens,) = encode(model.tokenizer, [prompt])
            (whole,) = encode(model.tokenizer, [prompt + str(label)])
            assert int(model.hf(torch.tensor([tokens])).logits[0, -1].argmax()) == whole[-1]
    assert len(own) + own.dropped.get(WRONG_IMPLIED, 0) == len(labels)


def test_pairs_that_the_model_gets_wrong_are_counted(larger: tuple[Model, Task]) -> None:
    model, task = larger
    causal = ma.variables.load_causal_model("truth-greater-than")
    labels = expected_labels(causal, "digit", task.examples("test", limit=12))
    # After half of the prompts this one is asked for what the model never says.
    spoilt = [
        replace(pair, label=(" so", " to")) if n % 2 else pair for n, pair in enumerate(labels)
    ]
    odd = replace(causal, prompt=lambda texts, base: base.text)
    own = with_own_labels(labels.with_pairs(spoilt), odd, model, progress=SILENT)
    right_after_base = [pair for pair in spoilt if pair.labels != (" so", " to")]
    assert 0 < len(own) <= len(right_after_base)
    assert own.dropped[WRONG_IMPLIED] == len(labels) - len(own)
    never = labels.with_pairs([replace(pair, label=(" so", " to")) for pair in labels])
    with pytest.raises(BadPairs, match=f"answers none of {len(labels)} prompts"):
        with_own_labels(never, odd, model, progress=SILENT)


def test_a_causal_model_without_such_prompts_is_refused(larger: tuple[Model, Task]) -> None:
    model, task = larger
    causal = ma.variables.load_causal_model("truth-greater-than")
    labels = expected_labels(causal, "digit", task.examples("test", limit=4))
    with pytest.raises(BadUsage, match=r"CausalModel\(\.\.\., prompt=\.\.\.\)"):
        with_own_labels(labels, replace(causal, prompt=None), model)
    ioi = ma.load_task("truth-ioi").examples("test", limit=2)
    names = ma.variables.load_causal_model("truth-ioi")
    single = expected_labels(names, "answer", ioi)
    assert with_own_labels(single, names, model) is single


# --- the whole ----------------------------------------------------------------------------------


def test_pairs_of_all_splits_with_labels_and_tokens(larger: tuple[Model, Task]) -> None:
    model, task = larger
    causal = ma.variables.load_causal_model("truth-greater-than")
    examples: Mapping[str, Any] = {s: task.examples(s, limit=6) for s in ("train", "test")}
    found = variable_pairs(model, causal, "digit", examples, progress=SILENT)
    assert found.variable == "digit" and list(found.labels) == ["train", "test"]
    for split, labels in found.labels.items():
        batch = found.batches[split]
        assert [pair.id for pair in labels] == list(batch.ids)
        assert not batch.alignment.get("alternatives"), "one label each"
        # The base's own label is what the base run writes, the label is not it where it changes.
        base = ma.variables.accuracy(
            ma.features.FullVector().fit(model, batch, ma.sites(model, positions=("last",))),
            labels,
            controls=(),
            progress=SILENT,
        )
        nothing = base.right["no intervention"][:, 0]
        own = np.array([pair.label == pair.base_label for pair in labels])
        assert (nothing == own).all()
