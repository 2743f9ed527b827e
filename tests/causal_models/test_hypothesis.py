"""Defaults name variables, kinds and parts of prompts that the tasks and causal models have.

Whether counterfactuals tell hypotheses apart: shares that follow from what the kinds change.
"""

from __future__ import annotations

import pytest

import mechassay as ma
from mechassay.causal_models.hypothesis import DEFAULTS, TaskDefaults, defaults_of
from mechassay.causal_models.task_models import load_causal_model
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.tasks import load_task
from mechassay.variables import CausalModel, Variable, distinguish, expected_labels, with_shifts
from mechassay.variables import load_causal_model as distinction_load_causal_model

OFFLINE = ["ioi", "mcqa", "arithmetic-addition", "greater-than", "ravel"]


@pytest.mark.parametrize("task", OFFLINE)
def test_they_are_there(task: str) -> None:
    about, causal = defaults_of(task), load_causal_model(task)
    assert set(about.variables) <= set(causal.variables)
    examples = about.prepared(ma.load_task(task).examples("train", limit=6))
    known = {kind for each in examples for kind in each.counterfactuals}
    assert set(about.kinds) <= known
    for position in set(about.positions) - {"last", "all"}:
        assert all(position in each.prompt.spans for each in examples)


def test_a_task_without_defaults_has_all_and_the_last_token() -> None:
    assert defaults_of("mine") == TaskDefaults() and TaskDefaults().positions == ("last",)
    assert not TaskDefaults().variables and not TaskDefaults().kinds
    assert [name for name, about in DEFAULTS.items() if about.balanced] == ["ravel"]


MCQA = distinction_load_causal_model("mcqa")


def test_pointer_and_answer_differ_where_labels_change() -> None:
    examples = load_task("mcqa").examples("train", limit=12)
    found = distinguish((MCQA, "answer_pointer"), (MCQA, "answer"), examples)
    # The same symbol stands at the source's place unless symbols change.
    changes = {kind: float("symbol" in kind or "randomLetter" in kind) for kind in found.shares}
    assert found.shares == changes and len(changes) == 9
    assert found.share == pytest.approx(sum(changes.values()) / 9)
    assert found.columns()["decided"] == [12] * 9
    assert "mcqa: answer_pointer" in repr(found) and "symbol" in found._repr_html_()


def test_a_set_that_cannot_tell_is_refused() -> None:
    examples = load_task("mcqa").examples("train", limit=5)
    kinds = ["answerPosition_counterfactual", "noun_counterfactual"]
    with pytest.raises(BadPairs, match="cannot tell mcqa: answer_pointer from mcqa: answer: both"):
        distinguish((MCQA, "answer_pointer"), (MCQA, "answer"), examples, kinds)
    # The noun changes neither.
    with pytest.raises(BadPairs, match=r"from mcqa: nothing: .* all 5 pairs \(5 noun"):
        distinguish((MCQA, "answer"), (MCQA, None), examples, ["noun_counterfactual"])


def test_a_variable_and_itself_cannot_be_told_apart() -> None:
    examples = load_task("mcqa").examples("train", limit=3)
    with pytest.raises(BadPairs, match="both expect the same in all 27 pairs"):
        distinguish((MCQA, "answer"), (MCQA, "answer"), examples)


@pytest.mark.parametrize("task", ["mcqa", "arithmetic-addition", "ravel", "greater-than", "ioi"])
def test_against_nothing_the_share_is_that_of_labels_that_change(task: str) -> None:
    examples = load_task(task).examples("train", limit=10)
    model = distinction_load_causal_model(task)
    for variable in model.inner[:2]:
        labels = expected_labels(model, variable, examples)
        found = distinguish((model, variable), (model, None), examples)
        assert found.share == pytest.approx(labels.changed.mean())
        assert found.dropped == labels.dropped


def test_a_carry_that_changes_is_always_told_from_nothing() -> None:
    examples = load_task("arithmetic-addition").examples("train", limit=20)
    model = distinction_load_causal_model("arithmetic-addition")
    found = distinguish((model, "carry"), (model, None), examples)
    assert found.shares["ones_carry_counterfactual"] == 1.0
    assert 0 < found.shares["random_counterfactual"] < 1
    # What changes a digit of the tens does not change the carry out of the ones.
    assert found.shares["tens_op1_counterfactual"] == 0.0


def test_a_reordered_docstring_tells_what_a_shifted_one_does_not() -> None:
    model = distinction_load_causal_model("docstring")
    examples = with_shifts(load_task("docstring").examples("train", limit=12))
    two = (model, "answer_pointer"), (model, "answer")
    with pytest.raises(BadPairs, match="cannot tell"):
        distinguish(*two, examples, ["shifted_counterfactual"])
    assert distinguish(*two, examples, ["reordered_counterfactual"]).share == 1.0
    other = (model, "last_described"), (model, "answer_pointer")
    assert distinguish(*other, examples, ["reordered_counterfactual"]).share == 1.0
    plain = load_task("docstring").examples("train", limit=3)
    with pytest.raises(BadPairs, match="No pair is decided by both .* 9 what is described last"):
        distinguish(*two, plain)


def test_pairs_of_inputs_of_a_model_without_prompts() -> None:
    def adder(name: str, most: int) -> CausalModel:
        carry = Variable((0, 1), lambda x, y: int(x + y > most))
        return CausalModel(
            name,
            {
                "x": range(10),
                "y": range(10),
                "carry": carry,
                "out": Variable(range(30), lambda x, y, carry: x + y + 10 * carry),
            },
        )

    right, wrong = adder("right", 9), adder("wrong", 10)
    plain = [({"x": 1, "y": 2}, {"x": 5, "y": 5}), ({"x": 1, "y": 2}, {"x": 7, "y": 7})]
    found = distinguish((right, "carry"), (wrong, "carry"), plain)
    assert found.share == 0.5  # a sum of 10 alone tells them
    with pytest.raises(BadPairs, match=r"cannot tell right: carry from wrong: carry"):
        distinguish((right, "carry"), (wrong, "carry"), plain[1:])
    with pytest.raises(UnknownName, match="Did you mean 'carry'"):
        distinguish((right, "cary"), (wrong, "carry"), plain)
    with pytest.raises(BadUsage, match="'right' reads no prompts"):
        distinguish(
            (right, "carry"), (wrong, "carry"), load_task("mcqa").examples("train", limit=1)
        )
