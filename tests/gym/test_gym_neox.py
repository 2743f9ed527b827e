"""The packaged model gym-neox: it is loaded by name, and does the tasks that it was trained on."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import mechassay as ma
from mechassay.errors import UnknownName
from mechassay.gym import FAMILIES, GymPairs, region_lengths
from mechassay.gym.interchanges import control_labels, with_control_labels
from mechassay.models.model import Model
from mechassay.models.sources import GYM_FOLDERS, checkpoints, gym_model_names

NAME = "gym-neox"
FOLDER = GYM_FOLDERS / NAME
TASKS = [name for names in FAMILIES.values() for name in names]
load = cache(ma.load_model)


def accuracy(model: Model, pairs: GymPairs) -> float:
    """The share of bases whose own label is more probable, by transformers alone, one by one."""
    right = 0
    for pair in pairs:
        ids = model.tokenizer(pair.base, return_tensors="pt").input_ids
        own, other = (
            model.tokenizer(labels[0]).input_ids for labels in (pair.base_labels, pair.labels)
        )
        assert len(own) == len(other) == 1
        with torch.no_grad():
            logits = model.hf(ids).logits[0, -1]
        right += int(logits[own[0]] > logits[other[0]])
    return right / len(pairs)


def test_it_loads_by_name_like_any_other_model() -> None:
    model = load(NAME)
    assert model.family == "gpt_neox" and model.name == NAME and model.graph.parallel
    assert gym_model_names() == [NAME] and NAME in ma.list_models()
    assert checkpoints(FOLDER) == ["step128", "step2000"]
    last = load(f"{NAME}@step2000")
    for one, other in zip(model.hf.parameters(), last.hf.parameters(), strict=True):
        assert torch.equal(one, other)
    assert {load(f"{NAME}@step128").tokenizer is None, model.tokenizer is None} == {False}
    with pytest.raises(UnknownName, match="Did you mean 'gym-neox'"):
        ma.load_model("gym-neos@step128")


@pytest.mark.parametrize("name", [NAME, f"untrained:{NAME}"])
def test_a_checkpoint_that_is_not_there_is_an_error_that_says_how_to_make_it(name: str) -> None:
    with pytest.raises(
        UnknownName, match=r"checkpoint of gym-neox 'step256'.*: step128, step2000\. `make study"
    ):
        ma.load_model(f"{name}@step256")


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 1_000_000


@pytest.mark.parametrize("name", ["agr_gender", "npi_any_subj-relc", "filler_gap_subj"])
def test_it_does_what_it_could_not_do_before_training(name: str) -> None:
    pairs = ma.gym.load_gym_task(name).interchanges("test", load(NAME), limit=40)
    assert accuracy(load(NAME), pairs) > 0.9
    assert abs(accuracy(load(f"untrained:{NAME}"), pairs) - 0.5) < 0.25


@pytest.mark.slow
def test_without_training_it_knows_none_of_the_tasks() -> None:
    model = load(f"untrained:{NAME}")
    shares = [
        accuracy(model, ma.gym.load_gym_task(name).interchanges("test", model, limit=10))
        for name in TASKS
    ]
    assert abs(sum(shares) / len(shares) - 0.5) < 0.08


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_it_does_every_task(name: str) -> None:
    task = ma.gym.load_gym_task(name)
    assert accuracy(load(NAME), task.interchanges("test", load(NAME))) > 0.9
    if task.filler is not None:
        filled = task.with_filler().interchanges("test", load(NAME))
        assert accuracy(load(NAME), filled) > 0.9


@pytest.mark.few(10)
@pytest.mark.parametrize("name", TASKS)
def test_every_label_and_word_is_a_token(name: str) -> None:
    model, task = load(NAME), ma.gym.load_gym_task(name)
    for each in [task] if task.filler is None else [task, task.with_filler()]:
        pairs = each.interchanges("test", model, limit=6)
        assert not pairs.dropped
        assert all(0 not in model.tokenizer(pair.base).input_ids for pair in pairs)
        batch = pairs.batch(model)
        if each.lengths != "unequal":
            assert region_lengths(batch, each.tested).share == 0
        # Of the control labels too; other lengths or labels would be refused.
        with_control_labels(pairs, control_labels(each.types), batch, model)
