"""What scoring takes: contexts, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from helpers.jobs import SMALL_JOBS
from mechassay.errors import BadPairs
from mechassay.models.model import outline
from mechassay.prompts.pairs import Examples
from mechassay.runs.accuracy import AccuracyJob
from mechassay.runs.accuracy_costs import accuracy_cost
from mechassay.runs.costs import columns_of
from mechassay.tasks import load_task
from mechassay.tasks.task import Task


def operations_of(job: AccuracyJob, task: str) -> float:
    (part,) = accuracy_cost(job, job.cells(), "cpu").models
    return next(step.operations for step in part.steps if step.name == task)


def test_prompts_by_hand(tmp_path: Path) -> None:
    LlamaConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
    ).save_pretrained(tmp_path)
    model, task = outline(str(tmp_path)), load_task("ioi")
    job = AccuracyJob((str(tmp_path),), ("ioi",), limit=1)
    (example,) = task.examples("test", None, limit=1, seed=job.seed)
    prompts = [example.prompt, *example.counterfactuals.values()]
    n_tokens = sum(columns_of(model, [prompt.text]) for prompt in prompts)
    (part,) = accuracy_cost(job, job.cells(), "cpu").models
    by_hand = 2 * (part.size.body * n_tokens + 50 * 12 * len(prompts))
    assert operations_of(job, "ioi") == by_hand


def test_every_task_is_a_step_and_twice_the_examples_take_twice_as_long() -> None:
    job: AccuracyJob = replace(SMALL_JOBS["accuracy"], limit=64)
    for task in job.tasks:
        once = operations_of(job, task)
        assert operations_of(replace(job, limit=128), task) == pytest.approx(2 * once)


def test_a_split_without_examples_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    job: AccuracyJob = replace(SMALL_JOBS["accuracy"], tasks=("truth-ioi",))
    monkeypatch.setattr(Task, "examples", lambda *_, **__: Examples([], {}))
    with pytest.raises(BadPairs, match="no example"):
        accuracy_cost(job, job.cells(), "cpu")
