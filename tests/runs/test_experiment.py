"""The command of an experiment, typed at the command line, gives the experiment again."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from helpers.experiments import SMALL_EXPERIMENTS
from mechassay.adversarial.experiments import AdversarialExperiment, SearchExperiment
from mechassay.adversarial.paper import PaperExperiment
from mechassay.cli import execution
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.runs import EXPERIMENTS
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.experiment import PROGRAM, command_line, default_folder, experiment_of
from mechassay.runs.options import options_of

CIRCUITS = CircuitsExperiment(("truth-ioi",), methods=("eap", "eap-ig-inputs:steps=3,points=left"))
PLAIN: dict[str, Any] = {
    "circuits": CIRCUITS,
    "accuracy": AccuracyExperiment(("truth-ioi",), limit=7),
    "adversarial": AdversarialExperiment("gpt2", "ioi", ("truth", "eap@0.5")),
    "adversarial-search": SearchExperiment("gpt2", "ioi", ("truth", "random@150")),
    "adversarial-paper": PaperExperiment("gpt2"),
}
CHANGED: dict[str, Any] = {
    "circuits": replace(
        CIRCUITS,
        models=("truth", "a folder/with 'quotes' $HOME"),
        tasks=("ioi", "mcqa:n_choices=2"),
        counterfactual="abc",
        objective="kl",
        keep="both",
        ablation="optimal",
        train_limit=3,
        split="validation",
        limit=9,
        profile="mib-2025",
        metrics=("completeness:size=0.01", "minimality"),
        dtype="bfloat16",
        prepend_bos=True,
        seed=2**40,
        max_minutes=0.5,
        even_at_chance=False,
    ),
    "evaluation": CircuitsExperiment(("gpt2",), ("ioi",), scores=("s/eap.safetensors",), limit=4),
    "localize": replace(CIRCUITS, stage="localize", pairing="random"),
    "accuracy": AccuracyExperiment(
        ("truth-ioi", "gpt2"), ("arc-easy",), limit=200, scoring="mib-2025"
    ),
    "whole split": AccuracyExperiment(("gpt2",), ("ioi",)),
    "adversarial": AdversarialExperiment(
        "gpt2",
        "ioi",
        ("-odd", "canonical:ioi"),
        n_clean=20,
        n_corrupted=10,
        same=("template,object",),
        where=("place=shop",),
        heat_maps=("place,object",),
        least_effect=0.25,
    ),
    "matched": AdversarialExperiment("gpt2", "greater-than", ("truth",), enumerate_all=True),
    "search": SearchExperiment("gpt2", "ioi", ("truth",), compare=False, budget=10),
}
EVERY = [pytest.param(experiment, id=name) for name, experiment in PLAIN.items()]
EVERY += [pytest.param(experiment, id=f"changed {name}") for name, experiment in CHANGED.items()]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Types a command; gives the experiment that would be run, and the folder."""

    def call(line: str) -> tuple[Any, Path]:
        found: list[tuple[Any, Path]] = []
        monkeypatch.setattr(
            execution,
            "run_and_show",
            lambda experiment, *, output, **_: found.append((experiment, output)),
        )
        program, *words = shlex.split(line)
        assert program == PROGRAM
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
        return found[0]

    scores = tmp_path / "s" / "eap.safetensors"
    scores.parent.mkdir()
    scores.touch()
    monkeypatch.chdir(tmp_path)
    return call


@pytest.mark.parametrize("experiment", EVERY)
def test_the_command_gives_the_experiment_again(experiment: Any, typed: Any) -> None:
    again, output = typed(command_line(experiment, Path("a folder")))
    assert again == experiment
    assert output == Path("a folder")


@pytest.mark.parametrize("experiment", EVERY)
def test_so_does_that_of_the_stored_plan(experiment: Any) -> None:
    plan = json.loads(json.dumps({"kind": experiment.kind, **asdict(experiment)}))
    assert command_line(experiment_of(plan)) == command_line(experiment)


def test_defaults_are_left_out() -> None:
    assert command_line(CircuitsExperiment(("truth-ioi",), methods=("eap",))) == (
        "mechassay circuits run --model truth-ioi --method eap"
    )


def test_a_private_seed_is_never_written(typed: Any) -> None:
    secret = replace(CIRCUITS, split="private", private_seed=987_654_321)
    line = command_line(secret)
    assert "987" not in line and "private-seed" not in line
    assert typed(line)[0] == replace(secret, private_seed=None)


@pytest.mark.parametrize(
    "experiment",
    [
        CircuitsExperiment(("gpt2",), ("ioi",), methods=("eap",), scores=("eap.safetensors",)),
    ],
)
def test_what_no_command_makes_has_none(experiment: Any) -> None:
    assert command_line(experiment) == ""


@pytest.mark.parametrize("kind", EXPERIMENTS.names())
def test_help_names_choices_once(kind: str) -> None:
    experiment = EXPERIMENTS.load(kind)
    hints, about = get_type_hints(experiment), options_of(experiment)
    for name in about:
        choices = [each for each in get_args(_inner(hints[name])) if isinstance(each, str)]
        words = re.findall(r"[\w+-]+", about[name].help)
        # The choices stand before the help; it may explain some of them.
        assert not choices or any(each not in words for each in choices), (name, about[name].help)


def _inner(hint: Any) -> Any:
    """The type of a field's values, of one of them where it takes several."""
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


@pytest.mark.parametrize(
    ("words", "help"),
    [
        (("measure", "null"), "Seed of the simulated inputs."),
        (("truth", "verify"), "Seed of the pairs."),
        (("tasks", "show"), "Seed of the examples."),
        (("saes", "train"), "Seed of what is taken of the texts"),
        (("circuits", "run"), "Seed of the task's examples and of the bootstrap."),
    ],
)
def test_a_seed_says_what_it_is_of(
    words: tuple[str, ...],
    help: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert help in " ".join(re.sub(r"[│╭╰─]", " ", capsys.readouterr().out).split())


def test_a_folder_without_a_name_is_that_of_the_plan() -> None:
    experiment = SMALL_EXPERIMENTS["circuits"]
    folder = default_folder(experiment)
    assert folder.parent.name == "runs" and folder == default_folder(replace(experiment))
    assert folder.name.startswith("circuits-truth-ioi+1-")
    changes = ({"methods": ("eap",)}, {"limit": 7}, {"seed": 1}, {"models": ("truth-ioi",)})
    others = {default_folder(replace(experiment, **change)) for change in changes}
    assert len(others) == 4 and folder not in others
    # What may change from run to run, and what is secret, is not in the name.
    assert default_folder(replace(experiment, max_minutes=1.0)) == folder
    assert default_folder(replace(experiment, private_seed=5)) == folder
    assert "/" not in default_folder(replace(experiment, models=("./a b/c",))).name


@pytest.mark.parametrize("kind", SMALL_EXPERIMENTS)
def test_every_kind_has_a_folder_of_its_own(kind: str) -> None:
    experiment = SMALL_EXPERIMENTS[kind]
    folder = default_folder(experiment)
    assert folder.name.startswith(f"{experiment.kind}-") and len(folder.name) < 100
    assert str(getattr(experiment, "models", (getattr(experiment, "model", ""),))[0]) in folder.name
