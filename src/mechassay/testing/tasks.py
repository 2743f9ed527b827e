"""What every task has to satisfy; authors of tasks may run it on their own.

from mechassay.testing import check_task

check_task(MyTask())
"""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations
from typing import Any

import numpy as np
import torch

from mechassay.examples import Example, Prompt
from mechassay.pairs import content_hash
from mechassay.tasks import SPLITS, Task

PRIVATE_SEED = 31_415


def check_task(task: Task, *, limit: int = 40, seeded: bool = True) -> None:
    """Raise AssertionError at the first promise that the task breaks.

    Args:
        task: the task.
        limit: examples of each split to look at; all are looked at where a split has fewer.
        seeded: whether another seed gives other examples.
    """
    check_configuration(task)
    state = _generators()
    splits = {split: _examples(task, split, limit) for split in SPLITS if task.sizes.get(split)}
    assert _generators() == state, "a global generator was used or seeded"
    for split, examples in splits.items():
        check_examples(task, examples)
        assert _examples(task, split, limit) == examples, (
            f"two calls gave other examples of {split}"
        )
        assert _examples(task, split, max(1, limit // 3)) == examples[: max(1, limit // 3)], (
            "limit does not take the first ones"
        )
        if seeded and len(examples) > 1:
            assert _examples(task, split, limit, seed=1) != examples, (
                f"the seed changes nothing in {split}"
            )
        check_pairs(task, split, examples)
    for (one, some), (other, more) in combinations(splits.items(), 2):
        shared = _texts(some) & _texts(more)
        assert not shared, f"{one} and {other} share a prompt: {next(iter(shared))!r}"


def check_configuration(task: Task) -> None:
    """A frozen dataclass with a name, a version, kinds of counterfactuals and sizes."""
    assert dataclasses.is_dataclass(task) and not isinstance(task, type), "a task is a dataclass"
    kind: Any = type(task)
    assert kind.__dataclass_params__.frozen, "a task is frozen"
    assert task.name and isinstance(task.version, int) and task.version >= 1
    assert task.default_counterfactual in task.counterfactuals
    assert len(set(task.counterfactuals)) == len(task.counterfactuals)
    assert set(task.sizes) <= set(SPLITS) and all(size >= 0 for size in task.sizes.values())


def check_examples(task: Task, examples: list[Example]) -> None:
    """Unique, with answers, and with counterfactuals that differ from the original."""
    assert len({example.id for example in examples}) == len(examples), "ids repeat"
    assert len({example.prompt.text for example in examples}) == len(examples), "prompts repeat"
    for example in examples:
        assert example.prompt.answers, f"{example.id} has no answer"
        assert set(example.counterfactuals) <= set(task.counterfactuals)
        assert all(isinstance(value, str) for value in example.tags.values())
        for prompt in (example.prompt, *example.counterfactuals.values()):
            check_prompt(prompt, example.id)
        for kind, prompt in example.counterfactuals.items():
            assert prompt.text != example.prompt.text, f"{example.id}: {kind} changes nothing"


def check_prompt(prompt: Prompt, id: str) -> None:
    """Spans inside the text, and answers among the choices."""
    for name, (begin, end) in prompt.spans.items():
        assert 0 <= begin < end <= len(prompt.text), (
            f"{id}: the part {name} is outside the text, or empty"
        )
    if prompt.choices and prompt.answers:
        assert set(prompt.answers) <= set(prompt.choices), f"{id}: an answer is no choice"
    assert len(set(prompt.choices)) == len(prompt.choices), f"{id}: a choice comes twice"
    assert "" not in prompt.answers


def check_pairs(task: Task, split: str, examples: list[Example]) -> None:
    """Without a tokenizer, pairs are the examples with the counterfactual; others are counted."""
    for kind in task.counterfactuals:
        there = [example.pair(kind) for example in examples if kind in example.counterfactuals]
        if not there:
            continue
        private = PRIVATE_SEED if split == "private" else None
        n = len(there)
        pairs = task.pairs(split, limit=n, counterfactual=kind, private_seed=private)
        assert content_hash(pairs) == content_hash(there)
        assert sum(pairs.dropped.values()) <= len(examples) - len(there)
        for pair in pairs:
            assert pair.foils, f"{pair.id}: nothing to compare the answers with in {kind}"
            assert not set(pair.answers) & set(pair.foils), f"{pair.id}: an answer is a foil"


def _examples(task: Task, split: str, limit: int, seed: int = 0) -> list[Example]:
    wanted, private = min(limit, task.sizes[split]), PRIVATE_SEED + seed
    private_seed = private if split == "private" else None
    return task.examples(split, limit=wanted, seed=seed, private_seed=private_seed)


def _texts(examples: list[Example]) -> set[str]:
    prompts = ((example.prompt, *example.counterfactuals.values()) for example in examples)
    return {prompt.text for each in prompts for prompt in each}


def _generators() -> tuple[Any, ...]:
    """The states of the global generators."""
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), torch.random.get_rng_state().tolist()
