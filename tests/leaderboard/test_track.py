"""The track: what a board evaluates, read from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import mechassay as ma
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.gym import load_gym_task
from mechassay.interventions.model_shape import ModelShape
from mechassay.leaderboard.track import BoardTrack, EvaluatedModel, ModelSizes
from mechassay.models.packaged import packaged_names
from mechassay.models.sources import gym_model_names, truth_names
from mechassay.tasks import load_task

TRACK = BoardTrack(
    models={
        "small": EvaluatedModel(
            load="truth-ioi", tasks=("truth-ioi",), mib_class="GPT2LMHeadModel"
        ),
        "wide": EvaluatedModel(
            tasks=("ioi", "mcqa"),
            shape=ModelSizes(n_layers=2, n_heads=3, d_model=12, d_head=4),
        ),
    },
    limits={"mcqa": 50},
)


def test_the_packaged_track_has_models_and_tasks_that_there_are() -> None:
    track = BoardTrack.read()
    assert set(track.models) <= {*packaged_names(), *truth_names(), *gym_model_names()}
    for about in track.models.values():
        for task in about.tasks:
            assert load_task(task).sizes["test"] >= track.examples_of(task)
        for task in about.gym:
            assert load_gym_task(task).sizes["validation"] >= track.examples_of(task)
    assert track.boards == ("circuits", "variables", "gym", "adversarial")
    assert track.splits == ("test",)


@pytest.mark.real
@pytest.mark.parametrize(
    "name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)]
)
def test_the_packaged_tracks_shapes_are_those_of_the_models(name: str) -> None:
    assert BoardTrack.read().shape(name) == ModelShape.of(ma.load_model(name))


def test_a_track_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "track.yaml"
    file.write_text(yaml.safe_dump(TRACK.model_dump(mode="json")))
    assert BoardTrack.read(file) == TRACK


def test_shapes_are_written_or_those_of_the_loaded_model() -> None:
    assert TRACK.shape("small") == ModelShape.of(ma.load_model("truth-ioi"))
    assert TRACK.shape("wide").d_model == 12 and TRACK.shape("wide").graph.n_heads == 3
    assert TRACK.public_name("truth-ioi") == "small" == TRACK.public_name("small")
    assert TRACK.loaded_from("small") == "truth-ioi" and TRACK.loaded_from("wide") == "wide"
    assert TRACK.examples_of("mcqa") == 50 and TRACK.examples_of("ioi") == 100


def test_what_the_track_does_not_evaluate() -> None:
    assert TRACK.public_task("wide", "mcqa") == "mcqa"
    with pytest.raises(UnknownName, match="Did you mean 'small'"):
        TRACK.public_task("smal", "mcqa")
    with pytest.raises(UnknownName, match="task of the track 'mcq'. Did you mean 'mcqa'"):
        TRACK.public_task("wide", "mcq")
    with pytest.raises(BadUsage, match="does not evaluate small on mcqa; it does truth-ioi"):
        TRACK.public_task("small", "mcqa")


def test_a_trained_truths_task_has_one_name_however_it_is_typed() -> None:
    name = "truth-ioi-trained"
    track = BoardTrack(models={name: EvaluatedModel(tasks=(name,))})
    assert {track.public_task(name, typed) for typed in (name, "truth-ioi")} == {name}
    # A track that calls it by its own name keeps that one.
    track = BoardTrack(models={name: EvaluatedModel(tasks=("truth-ioi",))})
    assert track.public_task(name, "truth-ioi") == "truth-ioi"


def test_gym_tasks_are_tasks_of_their_own() -> None:
    track = BoardTrack(
        models={**TRACK.models, "gym-neox": EvaluatedModel(gym=("agr_gender", "cleft"))}
    )
    track.check_gym("gym-neox", "agr_gender")
    with pytest.raises(UnknownName, match="Did you mean 'cleft'"):
        track.check_gym("gym-neox", "clef")
    with pytest.raises(BadUsage, match="does not evaluate wide on cleft; it does none"):
        track.check_gym("wide", "cleft")
    with pytest.raises(UnknownName, match="task of the track 'cleft'"):
        track.public_task("gym-neox", "cleft")
    with pytest.raises(BadUsage, match="does not evaluate gym-neox on mcqa; it does none"):
        track.public_task("gym-neox", "mcqa")


def test_mibs_causal_folders_are_of_the_tracks_models() -> None:
    wide = TRACK.models["wide"].model_copy(update={"mib_class": "LlamaForCausalLM"})
    board = BoardTrack(models={**TRACK.models, "wide": wide}).causal_board()
    assert board.models["LlamaForCausalLM"].name == "wide"
    assert board.parsed("4_answer_MCQA_LlamaForCausalLM_answer") == (
        "4_answer_MCQA",
        "LlamaForCausalLM",
        "answer",
    )
    with pytest.raises(BadUsage, match="does not evaluate GPT2LMHeadModel on ioi_task"):
        board.parsed("ioi_task_GPT2LMHeadModel_output_token")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {}", "models"),
        ("models: {A_b: {tasks: [ioi]}}", "is no public name"),
        ("models: {a: {tasks: []}}", "models.a: .*a model needs tasks, or gym tasks"),
        ("models: {a: {tasks: [ioi]}}\nlimit: 0", "limit"),
        ("models: {a: {tasks: [ioi]}}\nboards: [all]", "boards"),
        ("models: {a: {tasks: [ioi]}, b: {tasks: [ioi]}}\nmore: 1", "more"),
        (
            "models: {a: {tasks: [ioi], mib_class: X}, b: {tasks: [ioi], mib_class: X}}",
            "two models have the class X",
        ),
        ("models: [", "not a readable track"),
        ("- a", "not a track"),
        ("models: {a: {gym: [cleft]}}\ngym_k: 0", "gym_k"),
        ("models: {a: {}}", "a model needs tasks, or gym tasks"),
        ("models: {a: {gym: [../x]}}", "no name of a gym task"),
    ],
)
def test_what_is_no_track(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "track.yaml").write_text(text)
    with pytest.raises(BadFile, match=said) as error:
        BoardTrack.read(tmp_path / "track.yaml")
    assert "\n" not in str(error.value)


def test_a_track_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="not a readable track"):
        BoardTrack.read(tmp_path / "none.yaml")
