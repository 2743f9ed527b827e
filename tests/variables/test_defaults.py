"""Defaults name variables, kinds and parts of prompts that the tasks and causal models have."""

from __future__ import annotations

import pytest

import mechassay as ma
from mechassay.variables.defaults import DEFAULTS, TaskDefaults, defaults_of
from mechassay.variables.load import load_causal_model

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
