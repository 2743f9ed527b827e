"""Names of paths, and labels that are unique in a result."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

import mechassay as ma
from helpers.tiny_models import with_words
from mechassay.circuits.methods.random import Random
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadUsage
from mechassay.models.sources import find_source
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.equal_content import _is_file_of  # pyright: ignore[reportPrivateUsage]
from mechassay.runs.experiment import command_line, experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.names import (
    circuit_labels,
    file_labels,
    model_labels,
    name_of,
    names_of,
    stored_name,
    task_labels,
)
from mechassay.runs.run import read_report
from mechassay.utils.display import SILENT


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def folders(*names: str) -> None:
    for name in names:
        Path(name).mkdir(parents=True, exist_ok=True)


def test_a_path_has_one_name(place: Path) -> None:
    folders("a/final", "../elsewhere/final")
    for text in ("a/final", "./a/final", "a/../a/final/", str(place / "a/final")):
        assert name_of(text, "models") == "a/final"
    os.symlink("a", "link")
    assert name_of("link/final", "models") == "link/final", "a moved folder keeps its name"
    os.symlink("elsewhere", "../link")
    assert name_of("../link/final", "models") == "../elsewhere/final"
    assert name_of("../elsewhere/final", "models") == "../elsewhere/final"
    assert name_of(str(place.parent / "elsewhere/final"), "models") == "../elsewhere/final"
    assert name_of("./a/final@step8", "models") == "a/final@step8"
    assert name_of("untrained:./a/final", "models") == "untrained:a/final"
    for text in ("gpt2", "owner/name", "./missing", "truth-ioi", "smollm2-135m@x"):
        assert name_of(text, "models") == text
    folders("truth-ioi")
    assert name_of("truth-ioi", "models") == "truth-ioi", "a name of the package comes first"
    assert names_of(("a/final", "./a/final", "gpt2"), "models") == ("a/final", "gpt2")


def test_a_file_keeps_its_own_name(place: Path) -> None:
    folders("blobs")
    for file in ("pairs.csv", "s.safetensors", "blobs/0a1b"):
        Path(file).touch()
    os.symlink("blobs/0a1b", "model.gguf")
    assert name_of("./model.gguf", "models") == "model.gguf", "the target has another ending"
    assert name_of(str(place / "pairs.csv"), "tasks") == "pairs.csv"
    assert name_of("ioi", "tasks") == "ioi" and name_of("mcqa:n_choices=6", "tasks")
    assert name_of("./s.safetensors@20", "circuits") == "s.safetensors@20"
    assert name_of("eap@20", "circuits") == "eap@20"


def test_labels_are_the_last_parts_that_differ() -> None:
    folders("seed0/final", "seed1/final", "other/seed0/final", "final", "x/gpt2")
    one = model_labels(["seed0/final"])
    assert one == {"seed0/final": "final"}
    assert list(model_labels(["seed0/final", "seed1/final"]).values()) == [
        "seed0/final",
        "seed1/final",
    ]
    every = ["seed0/final", "seed1/final", "other/seed0/final", "final"]
    assert list(model_labels(every).values()) == every
    assert model_labels(["x/gpt2", "gpt2"]) == {"x/gpt2": "x/gpt2", "gpt2": "gpt2"}
    steps = ["seed0/final@step0", "seed0/final@step8", "seed1/final@step0", "untrained:seed0/final"]
    assert list(model_labels(steps).values()) == steps, "revisions share the label of their model"
    assert list(model_labels(steps[:2]).values()) == ["final@step0", "final@step8"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_labels_are_unique(depth: int) -> None:
    parts = ("a", "b")
    lengths = range(1, depth + 1)
    names = ["/".join(own) for n in lengths for own in itertools.product(parts, repeat=n)]
    for label in (
        task_labels([f"{name}.csv" for name in names]),
        circuit_labels([f"{name}.safetensors@{size}" for name in names for size in (20, 0.1)]),
    ):
        assert len(set(label.values())) == len(label)
        assert all(name.endswith(own) for name, own in label.items())
    folders(*names)
    labels = model_labels(names)
    assert len(set(labels.values())) == len(names)
    scores = [f"{name}.safetensors" for name in names]
    files = file_labels(scores, lambda path: Path(path).stem, others=("a", "a/b"))
    assert len({*files.values(), "a", "a/b"}) == len(names) + 2


def test_a_folder_in_the_cache_of_the_hub_has_the_name_of_its_repository(place: Path) -> None:
    cache = "../hub/models--owner--some-model/snapshots"
    one, other = (f"{cache}/{commit * 8}" for commit in ("0123abc9", "fedc4567"))
    folders(one, other)
    Path(one, "config.json").write_text("{}")
    assert model_labels([one]) == {one: "owner/some-model"}
    assert model_labels([one, other]) == {
        one: "owner/some-model@0123abc",
        other: "owner/some-model@fedc456",
    }
    assert stored_name(one) == "owner/some-model" == find_source(one).name
    assert stored_name(f"untrained:{one}") == "untrained:owner/some-model"


def test_records_do_not_name_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    above = os.path.relpath("/home/ann/models/final")
    for name in (above, "/home/ann/models/final"):
        assert stored_name(name) == "models/final"
        assert stored_name(f"{name}@step8") == "models/final@step8"
    assert stored_name("/data/x/final") == "data/x/final" != stored_name("/data/y/final")
    for name in ("a/b/c/final", "gpt2", "owner/name", "mcqa:n_choices=6", "a/pairs.csv"):
        assert stored_name(name) == name


def test_an_experiment_has_names(place: Path) -> None:
    folders("a/final")
    Path("s.safetensors").touch()
    experiment = CircuitsExperiment(
        ("./a/final", str(place / "a/final")),
        ("ioi", "ioi"),
        scores=("./s.safetensors", "s.safetensors"),
    )
    assert experiment.models == ("a/final",) and experiment.tasks == ("ioi",)
    assert experiment.scores == ("s.safetensors",)
    assert "circuits evaluate s.safetensors -m a/final" in command_line(experiment).replace(
        "--model", "-m"
    )


def save_model(path: str, seed: int = 0) -> None:
    hf, tokenizer = with_words(seed=seed)
    for part in (hf, tokenizer):
        part.save_pretrained(path)


def accuracy(*models: str) -> AccuracyExperiment:
    return AccuracyExperiment(models, ("ioi",), limit=4)


def test_a_run_is_reported_from_anywhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of a plan hold, whatever the working directory is and where the model went."""
    save_model("a/final")
    save_model("../elsewhere/final", seed=1)
    first = ma.run(accuracy("a/final", "../elsewhere/final"), "run", progress=SILENT)
    shutil.move("a", "../moved")
    os.symlink("../moved", "a")
    same = ma.run(accuracy("a/final", "../elsewhere/final"), "run", progress=SILENT)
    assert [own.provenance for own in same.records] == [own.provenance for own in first.records]
    (place / "deeper").mkdir()
    for folder in (place, place / "deeper", place.parent / "elsewhere"):
        monkeypatch.chdir(folder)
        stored = RunFolder(place / "run")
        report = read_report(stored, experiment_of(stored.plan()).cells())
        assert len(report.records) == 2 and not report.failures


def test_a_run_that_grows_keeps_its_records(place: Path) -> None:
    for number in (0, 1):
        save_model(f"seed{number}/final", number)
    one = ma.run(accuracy("seed0/final"), "run", progress=SILENT)
    assert one.records[0].cell["model"] == "final"
    two = ma.run(accuracy("seed0/final", "seed1/final"), "run", progress=SILENT)
    assert [own.model.name for own in two.records] == ["seed0/final", "seed1/final"]
    assert two.records[0].provenance == one.records[0].provenance


def test_a_folder_of_circuits_with_the_name_of_a_method_is_refused(place: Path) -> None:
    save_model("m")
    model = ma.load_model("m")
    folders("eap")
    Random(seed=0).draw(model.graph).top(20).save("eap/one.safetensors")
    experiment = CircuitsExperiment(("m",), ("ioi",), methods=("eap",), scores=("eap",))
    with pytest.raises(BadUsage, match="the folder has the name of a method"):
        ma.run(experiment, progress=SILENT)


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("a--ioi/eap.json", "a--ioi", True),
        ("a--ioi.json", "a--ioi", True),
        ("a--ioi.csv/eap.json", "a--ioi", False),
        ("a--ioi.csv.json", "a--ioi", False),
        ("a.x--ioi/eap.json", "a", False),
        ("a--ioi", "a--ioi", False),
    ],
)
def test_the_files_of_a_cell(path: str, name: str, expected: bool) -> None:
    assert _is_file_of(path, name) is expected
