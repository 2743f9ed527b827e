"""The corpus of sentences of gym tasks, and the training of a small GPT-NeoX on them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import mechassay as ma
from mechassay.errors import BadUsage, NonFinite
from mechassay.gym import FAMILIES, GymTask, load_gym_task
from mechassay.models.sources import checkpoints
from mechassay.tasks.task import share_of
from mechassay.truth.verification import word_tokenizer
from mechassay.utils.display import SILENT
from studies.gym_neox import training as own_model
from studies.gym_neox.training import (
    PAD,
    GymCorpus,
    GymTraining,
    train_gym_model,
    words_of,
)

Run = Callable[..., Any]
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


def test_a_corpus_without_tasks_or_sentences_is_refused() -> None:
    for tasks, size in (([], 3), (tasks_of_the_package()[:1], 0)):
        with pytest.raises(BadUsage, match="A corpus has tasks and sentences"):
            GymCorpus.of(tasks, size, 0)


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


TINY = {"layers": 1, "width": 16, "heads": 2}


def test_few_steps_need_no_other_setting(tmp_path: Path) -> None:
    training = GymTraining(**TINY, sentences=2, steps=20, batch_size=4)
    every = tasks_of_the_package()[:29]
    train_gym_model(tmp_path / "mine", training, tasks=every, progress=SILENT)
    about = json.loads((tmp_path / "mine" / "training.json").read_text("utf-8"))
    assert about["steps"] == 20 and about["checkpoints"] == [] and len(about["tasks"]) == 29
    assert checkpoints(tmp_path / "mine") == ["step20"]
    with pytest.raises(BadUsage, match="mine holds a training that is finished"):
        train_gym_model(tmp_path / "mine", training, tasks=every, progress=SILENT)


def test_a_model_is_trained_and_run(run: Run, tmp_path: Path) -> None:
    training = GymTraining(**TINY, sentences=5, steps=6, batch_size=8, checkpoints=(0, 3))
    chosen = [load_gym_task(name) for name in (*FAMILIES["agreement"], "cleft")]
    folder = tmp_path / "mine"
    train_gym_model(folder, training, tasks=chosen, progress=SILENT)
    about = json.loads((folder / "training.json").read_text("utf-8"))
    assert set(about["tasks"]) == {*FAMILIES["agreement"], "cleft"}
    assert [step.name for step in sorted(folder.glob("step*"))] == ["step0", "step3", "step6"]
    words = ["gym", "run", "-m", f"{folder}@step3", "-t", "agr_gender", "-M", "mean"]
    limits = ["--train-limit", "8", "--validation-limit", "4", "--limit", "4"]
    done = run(*words, *limits, "-o", tmp_path / "run")
    assert done.code == 0 and "mine@step3" in done.out
