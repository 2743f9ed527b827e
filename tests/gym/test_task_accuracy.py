"""Accuracy on a gym task: what it must be by hand, by plain logits, and for models that say one
label always.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.edits import unnoticed
from helpers.planted_gym import CONSTANT, planted_model, planted_task
from helpers.tiny_gguf import of_bytes
from mechassay.errors import BadPairs
from mechassay.gym import GymAccuracy, accuracy, evaluate
from mechassay.models.model import make_model
from mechassay.results.records import Record
from mechassay.stats.intervals import proportion_interval
from mechassay.utils.display import SILENT


def made(margins: list[float], types: tuple[str, ...]) -> GymAccuracy:
    n = len(margins)
    ids, groups = (
        tuple(f"{name}{i // size}" for i in range(n)) for name, size in (("i", 1), ("g", 2))
    )
    return GymAccuracy("m", "t", ids, groups, types, np.array(margins))


def test_by_hand() -> None:
    found = made([1.0, -2.0, 0.0, 0.5], ("one", "many", "one", "many"))
    assert found.right.tolist() == [True, False, False, True]
    low, high, _ = proportion_interval(np.array([1.0, 0, 0, 1]), ["g0", "g0", "g1", "g1"])
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == (0.5, low, high)
    columns = found.columns()
    assert columns["type"] == ["all", "many", "one"] and columns["n"] == [4, 2, 2]
    assert columns["accuracy"] == [0.5, 0.5, 0.5]
    assert columns["margin"] == [-0.125, -0.75, 0.5]
    assert not found.does_it and "50%" in found.warnings()[0]
    right = made([1.0] * 6, ("one", "many") * 3)
    assert right.does_it and right.warnings() == []


def test_plain_logits_give_the_same() -> None:
    model, task = planted_model(), planted_task()
    pairs = task.interchanges("test", model, limit=24)
    found = accuracy(model, pairs)
    tokenizer: Any = model.tokenizer
    for pair, margin in zip(pairs, found.margins, strict=True):
        ids = torch.tensor([tokenizer(pair.base)["input_ids"]])
        hf: Any = model.hf
        logits = hf(ids).logits[0, -1]
        own, other = (tokenizer(text)["input_ids"][0] for text in (pair.base_label, pair.label))
        assert margin == pytest.approx(float(logits[own] - logits[other]), abs=1e-5)
    limits = {"train": 16, "validation": 8, "test": 24}
    other = evaluate(model, task, ("mean",), limits=limits, progress=SILENT)
    np.testing.assert_array_equal(other.right, found.right)
    assert other.accuracy == found.estimate and found.estimate.value == 1.0
    by_name = accuracy(model, task, limit=24)
    np.testing.assert_array_equal(by_name.margins, found.margins)
    assert by_name.split == "test" and repr(by_name).startswith("GymAccuracy(model='planted'")
    assert by_name.plot() is not None and "planted" in by_name._repr_html_()


def test_worthless_models() -> None:
    planted, task = planted_model(), planted_task()
    hf: Any = planted.hf
    tokenizer = planted.tokenizer
    assert tokenizer is not None
    hf.lm_head.weight.zero_()
    # Labels that are equally probable are not right.
    silent = accuracy(make_model(hf, tokenizer), task, limit=24)
    assert silent.estimate.value == 0.0 and not silent.margins.any()
    # One label after every sentence: right in all of one type, in none of the other.
    hf.lm_head.weight[tokenizer.get_vocab()["is"]] = CONSTANT
    always = accuracy(make_model(hf, tokenizer), task, limit=24)
    columns = always.columns()
    by_type = dict(zip(columns["type"], columns["accuracy"], strict=True))
    assert by_type == {"all": 0.5, "one": 1.0, "many": 0.0} and not always.does_it


def test_its_record(tmp_path: Path) -> None:
    model = planted_model()
    found = accuracy(model, planted_task(), limit=8)
    record = found.record()
    again = Record.model_validate_json(record.model_dump_json())
    assert again == record and record.kind == "gym-check" and record.n == 8
    assert unnoticed(record, tmp_path) == set()
    measure = record.measure("accuracy")
    assert measure is not None and measure.value == 1.0 and measure.n == 8
    assert record.values is not None
    np.testing.assert_allclose(record.values.columns["margin"], found.margins)
    assert record.plot() is not None


def test_labels_that_are_not_one_token() -> None:
    """A tokenizer of bytes has no label of one token."""
    model = replace(planted_model(), tokenizer=of_bytes())
    with pytest.raises(BadPairs, match="dropped"):
        accuracy(model, planted_task())
