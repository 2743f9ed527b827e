"""Whole populations: every example of a split, with exact statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import (
    check_finite,
    enumerate_pools,
)
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.errors import BadUsage, UnknownName
from mechassay.examples import Example
from mechassay.progress import SILENT
from mechassay.tasks.ioi import IOI
from mechassay.tasks.task import Task
from mechassay.truth.models import Truth, load_truth
from mechassay.truth.tasks import CompiledIOI


class Gappy(CompiledIOI):
    """The first forty examples, of which every tenth lacks its counterfactual."""

    def population(self, split: str) -> int:
        return 40

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Any]:
        from dataclasses import replace

        stream = super().generate(split, seed, tokenizer)
        for number in range(40):
            example = next(stream)
            yield replace(example, counterfactuals={}) if number % 10 == 0 else example


def test_a_population_is_every_example_with_its_own_counterfactual() -> None:
    task, model = Gappy(), load_truth("truth-ioi").model
    clean, corrupted = enumerate_pools(task, model)
    examples = [example for example in task.generate("test", 0) if example.counterfactuals]
    assert [prompt.text for prompt in clean.prompts] == [
        example.prompt.text for example in examples
    ]
    assert [prompt.text for prompt in corrupted.prompts] == [
        example.counterfactuals["other-prompt"].text for example in examples
    ]
    assert len(clean) == 36 and clean.dropped == {"no such counterfactual": 4}
    with pytest.raises(UnknownName, match="private"):
        enumerate_pools(task, model, split="private")
    with pytest.raises(BadUsage, match="of ioi cannot be enumerated"):
        check_finite(IOI())


def without(truth: Truth, place: int) -> Circuit:
    """The true circuit but for one edge."""
    names = truth.circuits["counterfactual"].names()
    return Circuit.from_names(truth.model.graph, [*names[:place], *names[place + 1 :]])


@dataclass(frozen=True)
class Finite(Task):
    """Forty examples, and no more."""

    name = "finite"
    counterfactuals = ("other-prompt",)
    default_counterfactual = "other-prompt"
    sizes = MappingProxyType({"test": 40})

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        yield from load_truth("truth-ioi").task.examples("test", limit=40)

    def population(self, split: str) -> int:
        return 40


def test_a_population_is_evaluated_whole(truth: Truth) -> None:
    circuit = without(truth, 7)
    clean, corrupted = enumerate_pools(Finite(), truth.model)
    found = evaluate_pairs(
        truth.model, [circuit], clean, corrupted, grid=False, progress=SILENT
    ).circuits[0]
    pairs = truth.task.pairs("test", limit=40)
    slow = np.asarray(evaluate(truth.model, circuit, pairs, "kl", progress=SILENT))
    assert [prompt.text for prompt in clean.prompts] == [pair.clean for pair in pairs]
    np.testing.assert_allclose(found, slow, rtol=0, atol=1e-5)
    with pytest.raises(BadUsage, match="cannot be enumerated"):
        enumerate_pools(truth.task, truth.model)
