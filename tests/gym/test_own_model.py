"""Training a small GPT-NeoX: its loss by hand, its checkpoints, and the same after a kill."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mechassay as ma
from mechassay.errors import BadUsage, NonFinite
from mechassay.gym import GymCorpus, GymTask, GymTraining, own_model, train_gym_model
from mechassay.models.sources import checkpoints
from mechassay.progress import SILENT

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
    assert about["last_loss"] == pytest.approx(float(losses.mean()))
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

    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
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
    # A finished training is not begun again.
    for folder in (tmp_path / "mine", trained[0], tmp_path / "mine" / "letter.txt"):
        with pytest.raises(BadUsage, match="does not hold this training, interrupted"):
            train_gym_model(folder, SHORT, tasks=tasks(), progress=SILENT)
    assert (tmp_path / "mine" / "letter.txt").read_text(encoding="utf-8") == "Dear all"


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 3}, {"width": 10}, {"checkpoints": (5001,)}, {"rate": math.inf}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadUsage, match="got"):
        GymTraining(**wrong)  # pyright: ignore[reportArgumentType]
