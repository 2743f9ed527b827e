"""The packaged model: a NeoX that learned the tasks, which it did not know before training."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache

import pytest
import torch

import mechassay as ma
from mechassay.errors import UnknownName
from mechassay.gym import FAMILIES, GymPairs, GymTraining, corpus_tasks, region_lengths
from mechassay.gym.control_labels import control_labels, with_control_labels
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
    assert checkpoints(FOLDER)[0] == "step0" and len(checkpoints(FOLDER)) >= 6
    last = load(f"{NAME}@{checkpoints(FOLDER)[-1]}")
    for one, other in zip(model.hf.parameters(), last.hf.parameters(), strict=True):
        assert torch.equal(one, other)
    assert {load(f"{NAME}@step0").tokenizer is None, model.tokenizer is None} == {False}
    with pytest.raises(UnknownName, match=r"checkpoint of gym-neox 'step63'.*step0"):
        ma.load_model(f"{NAME}@step63")
    with pytest.raises(UnknownName, match="Did you mean 'gym-neox'"):
        ma.load_model("gym-neos@step0")


def test_the_command_without_options_is_what_made_it() -> None:
    about = json.loads((FOLDER / "training.json").read_text("utf-8"))
    settings = json.loads(json.dumps(asdict(GymTraining())))
    assert {name: about[name] for name in settings} == settings
    assert checkpoints(FOLDER) == [f"step{step}" for step in GymTraining().kept]
    assert set(about["tasks"]) == {task.name for task in corpus_tasks()}


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 4_500_000


@pytest.mark.parametrize("name", ["agr_gender", "npi_any_subj-relc", "filler_gap_subj"])
def test_it_does_what_it_could_not_do_before_training(name: str) -> None:
    pairs = ma.gym.load_gym_task(name).interchanges("test", load(NAME), limit=40)
    assert accuracy(load(NAME), pairs) > 0.9
    assert abs(accuracy(load(f"{NAME}@step0"), pairs) - 0.5) < 0.25


def test_without_training_it_knows_none_of_the_tasks() -> None:
    model = load(f"{NAME}@step0")
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
