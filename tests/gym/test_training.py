"""Sentences to train on: those of the train split alone, each with a label of its type.

The packaged model: a NeoX that learned the tasks, which it did not know before training.

Training a small GPT-NeoX: its loss by hand, its checkpoints, and the same after a kill.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mechassay as ma
from mechassay.errors import BadPairs, BadUsage, NonFinite, UnknownName
from mechassay.gym import (
    FAMILIES,
    GymCorpus,
    GymPairs,
    GymTask,
    GymTraining,
    gym_tasks,
    load_gym_task,
    region_lengths,
    train_gym_model,
)
from mechassay.gym import training as own_model
from mechassay.gym.interchanges import control_labels, with_control_labels
from mechassay.gym.training import PAD, untrained_neox, words_of
from mechassay.models.model import Model
from mechassay.models.sources import GYM_FOLDERS, checkpoints, gym_model_names
from mechassay.tasks.task import share_of
from mechassay.truth.verification import word_tokenizer
from mechassay.utils.display import SILENT

SIZE = 60


@cache
def tasks_of_the_package() -> list[GymTask]:
    """The 29, and eight of them with a filler."""
    tasks = [load_gym_task(name) for names in FAMILIES.values() for name in names]
    return [*tasks, *(task.with_filler() for task in tasks if task.filler is not None)]


@cache
def corpus() -> GymCorpus:
    return GymCorpus.of(tasks_of_the_package(), SIZE, 0)


def sentences_and_labels(found: GymCorpus) -> list[tuple[str, str]]:
    """As the tasks write them: no space before punctuation."""
    rows = [text.rpartition(" ") for text in found.texts()]
    return [(re.sub(r" ([.,])", r"\1", sentence), label) for sentence, _, label in rows]


def test_every_task_has_equally_many_sentences_of_the_train_split() -> None:
    tasks = tasks_of_the_package()
    assert len(tasks) == 29 + 8 and len(corpus()) == SIZE * len(tasks)
    assert corpus().tasks == tuple(task.name for task in tasks)
    assert {share_of(sentence) for sentence, _ in sentences_and_labels(corpus())} == {"train"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_sentence_of_another_split_is_in_the_corpus(split: str) -> None:
    seen = {sentence for sentence, _ in sentences_and_labels(corpus())}
    for task in tasks_of_the_package()[::3]:
        assert not seen & task.interchanges(split, limit=20).sentences()
    # What is compared is written the same way: some train sentences are found.
    assert seen & load_gym_task("agr_gender").interchanges("train").sentences()


def test_labels_are_those_of_the_sentence() -> None:
    rows = dict(zip(corpus().tasks, range(0, len(corpus()), SIZE), strict=False))
    told = sentences_and_labels(corpus())
    for sentence, label in told[rows["npi_ever_obj-relc"] :][:SIZE]:
        assert label == ("ever" if sentence.startswith("No ") else "never"), sentence
    for sentence, label in told[rows["garden_npz_obj"] :][:SIZE]:
        assert label == ("was" if "," in sentence else "for"), sentence
    labels = {label for _, label in told[rows["agr_sv_num_pp"] :][:SIZE]}
    assert labels == {"are", "were", "have", "is", "was", "has"}


def test_words_are_the_tokens_of_a_tokenizer_of_them() -> None:
    found = corpus()
    tokenizer = word_tokenizer(found.words, 64)
    for text, row in zip(found.texts()[::50], found.ids[::50].tolist(), strict=True):
        assert tokenizer(text).input_ids == [each for each in row if each != PAD]
    assert {"dog", "give", "Soon", "themselves", ",", "."} <= set(found.words)
    assert found.words[0] == "[UNK]" and len(set(found.words)) == len(found.words)
    assert 0 not in found.ids


def test_the_seed_decides() -> None:
    tasks = tasks_of_the_package()[:2]
    first, same, other = (GymCorpus.of(tasks, 20, seed).texts() for seed in (0, 0, 1))
    assert first == same != other
    assert words_of(tasks) == list(GymCorpus.of(tasks, 1, 5).words)


def test_sentences_of_a_split_never_end_and_have_its_types_equally() -> None:
    task = load_gym_task("agr_gender")
    drawn = list(islice(task.sentences("train", np.random.default_rng(0)), 2000))
    assert {each.sentence for each in drawn} < {
        f"{name} {did} because"
        for name in [row[0] for rows in task.choices[0].rows.values() for row in rows]
        for did in [row[0].strip() for rows in task.choices[1].rows.values() for row in rows]
    }
    assert abs(np.mean([each.type == "he" for each in drawn]) - 0.5) < 0.05
    assert all(each.label == f" {each.type}" for each in drawn)


def test_what_there_is_not_is_one_line() -> None:
    (two,) = gym_tasks(
        {"tasks": {"two": {"template": "{a}", "labels": {"x": "u", "y": "v"}, "options": {
            "a": {"x": ["one"], "y": ["two"]}}}}}
    ).values()  # fmt: skip
    missing = {"train", "validation", "test"} - {share_of("one"), share_of("two")}
    with pytest.raises(BadPairs, match="of two has no sentence"):
        next(two.sentences(missing.pop(), np.random.default_rng(0)))
    with pytest.raises(UnknownName, match="split 'tset'"):
        next(two.sentences("tset", np.random.default_rng(0)))
    for tasks, size in (([], 3), ([two], 0)):
        with pytest.raises(BadUsage, match="A corpus has tasks and sentences"):
            GymCorpus.of(tasks, size, 0)


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


def test_without_training_it_is_what_its_training_began_with() -> None:
    about = json.loads((FOLDER / "training.json").read_text("utf-8"))
    settings = {each.name: about[each.name] for each in fields(GymTraining) if each.name in about}
    training = GymTraining(**{**settings, "checkpoints": tuple(settings["checkpoints"])})
    model = load(f"untrained:{NAME}")
    begun = untrained_neox(training, len(model.tokenizer)).state_dict()
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, begun[name]), name


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


SHORT = GymTraining(
    layers=1, width=16, heads=2, sentences=40, steps=12, checkpoints=(0, 1, 8), batch_size=16,
    warmup=4, seed=3,
)  # fmt: skip


@cache
def tasks() -> list[GymTask]:
    return [ma.gym.load_gym_task(name) for name in ("agr_gender", "npi_ever_subj-relc", "cleft")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder = tmp_path_factory.mktemp("neox") / "mine"
    return folder, train_gym_model(folder, SHORT, tasks=tasks(), progress=SILENT)


def test_the_loss_is_the_mean_over_tokens_and_gradients_are_its_own() -> None:
    corpus = GymCorpus.of(tasks(), 4, 0)
    one, other = (own_model.untrained_neox(SHORT, len(corpus.words)) for _ in range(2))
    found = own_model.accumulate(one, corpus.ids)
    nats: list[torch.Tensor] = []
    for row in corpus.ids:
        sentence = row[row >= 0]
        log_p = other(input_ids=sentence[None]).logits[0].log_softmax(-1)
        nats += [-log_p[place, token] for place, token in enumerate(sentence[1:].tolist())]
    mean = torch.stack(nats).mean()
    mean.backward()
    assert found == pytest.approx(float(mean.detach()), rel=1e-5)
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter.grad, other.get_parameter(name).grad, msg=name)
    # Without training, all words are about as likely as each other.
    assert found == pytest.approx(math.log(len(corpus.words)), rel=0.1)


def test_the_rate_rises_and_falls() -> None:
    training = GymTraining(steps=110, warmup=10, rate=1.0, last_rate=0.2, checkpoints=())
    assert [training.rate_at(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert training.rate_at(10) == 1.0 and training.rate_at(60) == pytest.approx(0.6)
    assert training.rate_at(109) == pytest.approx(0.2, abs=1e-3)


def test_training_lowers_the_loss_and_keeps_checkpoints(
    trained: tuple[Path, torch.Tensor],
) -> None:
    folder, losses = trained
    assert len(losses) == 12 and float(losses[-3:].mean()) < float(losses[:3].mean())
    assert checkpoints(folder) == ["step0", "step1", "step8", "step12"]
    about = json.loads((folder / "training.json").read_text("utf-8"))
    assert about["last_loss"] == pytest.approx(float(losses[-1]))  # a tenth of 12 steps
    assert list(about["tasks"]) == [task.name for task in tasks()]
    assert sorted(each.name for each in folder.iterdir() if each.is_file()) == [
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]
    first = own_model.untrained_neox(SHORT, len(GymCorpus.of(tasks(), 1, 0).words))
    stored = ma.load_model(f"{folder}@step0").hf
    for name, value in stored.named_parameters():
        assert torch.equal(value, first.get_parameter(name).half().float()), name
    assert not same(folder / "step0", folder / "step1")
    model = ma.load_model(folder)
    assert model.name == "mine" and model.family == "gpt_neox"
    assert len(tasks()[0].interchanges("test", model, limit=4)) == 4


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_and_ends_the_same(
    trained: tuple[Path, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, losses = trained
    right = own_model.accumulate
    done: list[int] = []

    def until(*given: object) -> float:
        done.append(1)
        if len(done) == 8:
            raise Killed
        return right(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr(own_model, "accumulate", until)
    with pytest.raises(Killed):
        train_gym_model(tmp_path / "mine", SHORT, tasks=tasks(), progress=SILENT)
    again = train_gym_model(tmp_path / "mine", SHORT, tasks=tasks(), progress=SILENT)
    assert len(done) == 12 + 1  # no step was done twice but the one that was killed
    torch.testing.assert_close(again, losses, atol=0, rtol=0)
    for name in checkpoints(whole):
        assert same(whole / name, tmp_path / "mine" / name), name
    assert (whole / "training.json").read_text() == (tmp_path / "mine/training.json").read_text()


def test_a_training_killed_before_anything_was_kept_begins_anew(
    trained: tuple[Path, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(own_model, "accumulate", lambda *_: math.nan)
        with pytest.raises(NonFinite, match="Training mine: the loss of step 0 is nan"):
            train_gym_model(tmp_path / "mine", SHORT, tasks=tasks(), progress=SILENT)
    train_gym_model(tmp_path / "mine", SHORT, tasks=tasks(), progress=SILENT)
    assert same(trained[0] / "step12", tmp_path / "mine" / "step12")


def test_a_folder_of_something_else_is_left_alone(
    trained: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear all", encoding="utf-8")
    for folder, said in (
        (tmp_path / "mine", "does not hold this training, interrupted"),
        (trained[0], "holds a training that is finished"),
        (tmp_path / "mine" / "letter.txt", "does not hold this training, interrupted"),
    ):
        with pytest.raises(BadUsage, match=said):
            train_gym_model(folder, SHORT, tasks=tasks(), progress=SILENT)
    assert (tmp_path / "mine" / "letter.txt").read_text(encoding="utf-8") == "Dear all"


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 3}, {"width": 10}, {"checkpoints": (5001,)}, {"rate": math.inf}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadUsage, match="got"):
        GymTraining(**wrong)  # pyright: ignore[reportArgumentType]
