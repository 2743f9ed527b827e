"""The folder in which an experiment resumes: what is taken over, refused, copied and bound."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from helpers.tiny_models import with_words
from mechassay.circuits.methods.eap import EAP
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage
from mechassay.interventions.patching import PatchExperiment
from mechassay.models.model import Model
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.cells import Cell
from mechassay.runs.executors import Processes
from mechassay.runs.folder import RunFolder
from mechassay.runs.resuming import numbered
from mechassay.runs.run import opened
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT


def save_model(folder: str, seed: int = 0) -> None:
    hf, tokenizer = with_words(seed=seed)
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_pairs(file: str, names: tuple[str, str] = ("Mary", "John")) -> None:
    rows = [
        {"clean": f"When {a} and {b} went to the store , {b} gave a drink to"}
        | {"counterfactual": f"When {a} and {b} went to the store , {a} gave a drink to"}
        | {"answer": f" {a}", "foil": f" {b}", "split": "test"}
        for a, b in (names, names[::-1]) * 3
    ]
    Path(file).write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the models a and b, and two files of pairs."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        save_model(name, number)
    write_pairs("one.jsonl")
    write_pairs("two.jsonl", ("Tom", "James"))
    return tmp_path


TWO = AccuracyExperiment(("a", "b"), ("one.jsonl", "two.jsonl"), limit=4)
CIRCUITS = CircuitsExperiment(
    ("a", "b"),
    ("one.jsonl",),
    methods=("random", "eap"),
    train_limit=4,
    limit=4,
    train_split="test",
    random_rankings=5,
    even_at_chance=True,
)


def run(experiment: Any, output: str | None = None, **about: Any) -> Any:
    return ma.run(experiment, output, progress=SILENT, **about)


def run_anew(experiment: Any) -> Any:
    """Run an experiment whose content changed; the note on it is a warning."""
    with pytest.warns(UserWarning, match="than on"):
        return run(experiment)


def measured_by(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[str]:
    """The names of the cells that an experiment measures from now on."""
    names: list[str] = []
    own = kind.run

    def counted(self: Any, cell: Cell, worker: Worker) -> Any:
        names.append(cell.name)
        return own(self, cell, worker)

    monkeypatch.setattr(kind, "run", counted)
    return names


def test_cells_that_did_not_change_are_taken_over_with_their_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = run(CIRCUITS)
    assert len(first.records) == 4 and not first.failures
    save_model("a", seed=7)
    names = measured_by(monkeypatch, CircuitsExperiment)
    with pytest.warns(UserWarning, match="a has other weights than on .*: 2 cells taken over from"):
        second = run(CIRCUITS)
    assert second.folder == Path(f"{first.folder}-2")
    assert names == ["a--one.jsonl/random", "a--one.jsonl/eap"]
    for name in ("random", "eap"):
        for folder, ending in (("records", "json"), ("scores", "safetensors")):
            of_b = f"{folder}/b--one.jsonl/{name}.{ending}"
            assert (second.folder / of_b).read_bytes() == (first.folder / of_b).read_bytes()
            of_a = f"{folder}/a--one.jsonl/{name}.{ending}"
            if (folder, name) != ("scores", "random"):
                assert (second.folder / of_a).read_bytes() != (first.folder / of_a).read_bytes()
    assert list((second.folder / "kept" / "b--one.jsonl").iterdir())
    fresh = run(CIRCUITS, "fresh")
    for ours, theirs in zip(second.records, fresh.records, strict=True):
        about = {"measures", "tables", "values", "identities"}
        assert ours.model_dump_json(include=about) == theirs.model_dump_json(include=about)
    assert names[2:] == [cell.name for cell in CIRCUITS.cells()]
    run(CIRCUITS)
    assert len(names) == 6, "the newest folder of this content is resumed"


def test_unfinished_work_is_taken_over_too() -> None:
    """Scores of a cell whose measurement failed, as if the disk had been full."""
    run(CIRCUITS)
    folder = RunFolder(Path("runs") / next(Path("runs").iterdir()).name)
    for name in ("a--one.jsonl/eap", "b--one.jsonl/eap"):
        folder.record_file(name).unlink()
    save_model("a", seed=7)
    worker = opened(CIRCUITS, progress=SILENT)
    assert "1 cell taken over" in worker.notes[0] and "3 cells to compute" in worker.notes[0]
    scores = {path.parent.name for path in worker.folder.path.glob("scores/*/eap.safetensors")}
    assert scores == {"b--one.jsonl"}


def test_a_change_and_its_opposite(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(TWO)
    write_pairs("one.jsonl", ("Paul", "Kate"))
    with pytest.warns(UserWarning, match="2 cells taken over"):
        second = run(TWO)
    write_pairs("one.jsonl")
    names = measured_by(monkeypatch, AccuracyExperiment)
    assert run(TWO).folder == first.folder and not names
    write_pairs("one.jsonl", ("Paul", "Kate"))
    assert run(TWO).folder == second.folder and not names


def test_a_named_folder_refuses_with_the_command_to_give() -> None:
    run(TWO, "out")
    save_model("a", seed=7)
    with pytest.raises(BadUsage) as refused:
        run(TWO, "out")
    words = str(refused.value)
    assert "\n" not in words and "out: a has other weights than on" in words
    command = words.partition("For a new folder: ")[2]
    assert command.startswith("mechassay tasks score --model a --model b") and "-o out-2" in command
    assert len(run(TWO, "out-2").records) == 4


def test_two_models_of_one_last_name_have_two_folders() -> None:
    for number in (0, 1):
        save_model(f"seed{number}/final", number)
    folders = [
        run(replace(TWO, models=(name,), tasks=("one.jsonl",))).folder
        for name in ("seed0/final", "seed1/final", "seed0/final")
    ]
    assert folders[0] == folders[2] != folders[1] and folders[1].name == f"{folders[0].name}-2"


def test_a_link_that_points_elsewhere() -> None:
    os.symlink("a", "best")
    experiment = replace(TWO, models=("best",))
    first = run(experiment)
    os.unlink("best")
    os.symlink("b", "best")
    with pytest.warns(UserWarning, match="best has other weights"):
        second = run(experiment)
    assert second.folder != first.folder
    assert {x.identities["model"]["weights"] for x in second.records} == {
        ma.load_model("b").identity.weights
    }


def test_models_in_memory_of_one_name() -> None:
    one, other = (ma.load_model(*with_words(seed=n)[:1], tokenizer=with_words()[1]) for n in (0, 1))
    experiment = replace(TWO, models=("m",), tasks=("one.jsonl",))
    run(experiment, "out", models={"m": one})
    with pytest.raises(BadUsage, match="m has other weights"):
        run(experiment, "out", models={"m": other})
    run(experiment, "out", models={"m": ma.load_model(one.hf, tokenizer=one.tokenizer)})
    with torch.no_grad():
        next(one.hf.parameters()).data.add_(0.1)
    with pytest.raises(BadUsage, match="m has other weights"):
        run(experiment, "out", models={"m": one})


def test_a_model_that_was_edited_in_memory_says_nothing_of_its_files() -> None:
    """Its digests are not taken for those of the files, from which it was loaded."""
    experiment = replace(TWO, models=("a",), tasks=("one.jsonl",))
    model = ma.load_model("a")
    with torch.no_grad():
        for parameter in model.hf.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    edited = run(experiment, "memory", models={"a": model}).records[0]
    assert edited.model.args["identity"] == edited.identities["model"]["weights"]
    before = run(experiment)
    model.hf.save_pretrained("a")
    after = run_anew(experiment)
    assert after.folder != before.folder
    assert after.records[0].identities["model"]["weights"] == edited.model.args["identity"]


def test_another_private_seed_is_other_content() -> None:
    task = replace(CIRCUITS, models=("truth-ioi",), tasks=(), methods=("random",))
    private = replace(task, train_split="train", split="private", private_seed=1)
    first = run(private)
    (record,) = first.records
    assert "secret private seed" in first.folder.joinpath("identities.json").read_text()
    second = run_anew(replace(private, private_seed=2))
    assert second.folder != first.folder
    assert second.records[0].data["test"].hash != record.data["test"].hash
    assert run(private).folder == first.folder


def test_swapped_models_and_records() -> None:
    """Each folder binds both weights, and a record has those of the other name."""
    experiment = replace(TWO, tasks=("one.jsonl",))
    run(experiment, "x")
    shutil.move("a", "c")
    shutil.move("b", "a")
    shutil.move("c", "b")
    run(experiment, "y")
    shutil.copy("x/records/a--one.jsonl.json", "y/records/a--one.jsonl.json")
    with pytest.raises(BadFile, match="is a record of another model"):
        run(experiment, "y")


def test_a_record_of_a_run_with_other_settings_is_refused() -> None:
    experiment = replace(TWO, models=("a",), tasks=("one.jsonl",))
    run(experiment, "x")
    run(replace(experiment, limit=6), "y")
    shutil.copy("x/records/a--one.jsonl.json", "y/records/a--one.jsonl.json")
    with pytest.raises(BadFile, match="is a record of other settings than the folder's other"):
        run(replace(experiment, limit=6), "y")


# Which folder


def test_a_first_cell_that_was_interrupted_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = PatchExperiment(("a",), ("one.jsonl",), limit=4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    own = PatchExperiment.measure
    monkeypatch.setattr(PatchExperiment, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(experiment)
    monkeypatch.setattr(PatchExperiment, "measure", own)
    write_pairs("one.jsonl", ("Paul", "Kate"))
    report = run(experiment)
    assert len(report.records) == 1 and len(list(Path("runs").iterdir())) == 1


def test_a_folder_of_skipped_cells_is_used_again() -> None:
    experiment = replace(CIRCUITS, models=("a",), even_at_chance=False, max_minutes=0.0)
    assert not run(experiment, "out").records
    write_pairs("one.jsonl", ("Paul", "Kate"))
    assert len(run(replace(experiment, max_minutes=None, even_at_chance=True), "o2").records) == 2
    assert not run(experiment, "out").records


def test_a_folder_without_results_hides_no_other() -> None:
    """Its models were never loaded, so that any weights would fit."""
    first = run(TWO)
    save_model("a", seed=7)
    second = opened(TWO, progress=SILENT).folder
    shutil.rmtree(second.path / "records")
    bound = second.identities.stored()
    second.identities.write({key: x for key, x in bound.items() if not key.startswith("model")})
    save_model("a", 0)
    assert opened(TWO, progress=SILENT).folder.path == first.folder


def test_a_deleted_folder_hides_no_other() -> None:
    first = run(TWO)
    save_model("a", seed=7)
    second = run_anew(TWO)
    shutil.rmtree(first.folder)
    assert opened(TWO, progress=SILENT).folder.path == second.folder


def test_cells_of_several_folders_are_taken_over() -> None:
    first = run(TWO)
    save_model("a", seed=7)
    save_model("b", seed=8)
    second = run_anew(TWO)
    save_model("a", 0)
    worker = opened(TWO, progress=SILENT)
    assert not worker.folder.cells_left(worker.cells)
    assert "4 cells taken over from" in worker.notes[0]
    assert str(first.folder) in worker.notes[0] and str(second.folder) in worker.notes[0]


# Files that change during a run


@pytest.mark.parametrize("file", ["a/model.safetensors", "one.jsonl"])
def test_a_file_that_is_touched_while_a_cell_is_measured_fails_nothing(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = AccuracyExperiment.measure

    def slowly(self: Any, cell: Cell, inputs: Any) -> Any:
        os.link(file, f"{file}.link")
        os.utime(file)
        return own(self, cell, inputs)

    monkeypatch.setattr(AccuracyExperiment, "measure", slowly)
    assert len(run(replace(TWO, models=("a",), tasks=("one.jsonl",)), "out").records) == 1


def test_a_folder_that_is_reset_by_another_process_fails_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = replace(TWO, models=("m",), tasks=("one.jsonl",))
    one, other = (ma.load_model(*with_words(seed=n)[:1], tokenizer=with_words()[1]) for n in (0, 1))
    own = AccuracyExperiment.measure

    def meanwhile(self: Any, cell: Cell, inputs: Any) -> Any:
        monkeypatch.setattr(AccuracyExperiment, "measure", own)
        opened(experiment, "out", models={"m": other}, progress=SILENT)
        return own(self, cell, inputs)

    monkeypatch.setattr(AccuracyExperiment, "measure", meanwhile)
    with pytest.raises(BadUsage, match="m has other weights"):
        run(experiment, "out", models={"m": one})
    (record,) = run(experiment, "out", models={"m": other}).records
    assert record.identities["model"]["weights"] == other.identity.weights


@pytest.mark.parametrize("what", ["model", "pairs"])
def test_a_file_that_changes_while_a_cell_is_measured_fails_the_cell(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = AccuracyExperiment.measure

    def slowly(self: Any, cell: Cell, inputs: Any) -> Any:
        result = own(self, cell, inputs)
        if what == "model":
            save_model("a", seed=7)
        else:
            write_pairs("one.jsonl", ("Paul", "Kate"))
        return result

    monkeypatch.setattr(AccuracyExperiment, "measure", slowly)
    experiment = replace(TWO, models=("a",), tasks=("one.jsonl",))
    with pytest.raises(BadUsage, match="changed while the cell was measured"):
        run(experiment, "out")
    (file,) = Path("out/failures").iterdir()
    assert json.loads(file.read_text())["error"] == "BadFile" and not Path("out/records").exists()
    monkeypatch.setattr(AccuracyExperiment, "measure", own)
    (record,) = run(experiment, "out").records
    assert record.identities["model"]["weights"] == ma.load_model("a").identity.weights


def test_weights_that_change_between_two_cells_fail_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = AccuracyExperiment.run
    done: list[str] = []

    def then_train(self: Any, cell: Cell, worker: Worker) -> Any:
        if done:
            save_model("a", seed=7)
            worker._last = None
        done.append(cell.name)
        return own(self, cell, worker)

    monkeypatch.setattr(AccuracyExperiment, "run", then_train)
    report = run(replace(TWO, models=("a",)), "out")
    (failure,) = report.failures
    assert len(report.records) == 1 and "a has other weights than on" in failure.message


def test_a_missing_model_is_a_failed_cell_and_goes_on_in_the_same_folder() -> None:
    shutil.move("b", "away")
    experiment = replace(TWO, tasks=("one.jsonl",))
    first = run(experiment)
    assert len(first.records) == len(first.failures) == 1
    shutil.move("away", "b")
    second = run(experiment)
    assert second.folder == first.folder and len(second.records) == 2
    shutil.rmtree("a")
    third = opened(experiment, progress=SILENT)
    assert third.folder.path == first.folder
    assert any("if a has the weights of" in note for note in third.notes)


# Several processes


@pytest.mark.guard
def test_two_commands_at_once_agree_on_the_folder() -> None:
    first = run(TWO)
    save_model("a", seed=7)
    words = [
        "tasks",
        "score",
        "-m",
        "a",
        "-m",
        "b",
        "-t",
        "one.jsonl",
        "-t",
        "two.jsonl",
        "--limit",
        "4",
    ]
    command = [sys.executable, "-m", "mechassay", *words]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    folders = sorted(path.name for path in Path("runs").iterdir())
    assert folders == sorted([first.folder.name, f"{first.folder.name}-2"])
    report = opened(TWO, progress=SILENT)
    assert report.folder.path.name == folders[-1] and not report.folder.cells_left(report.cells)


@pytest.mark.guard
def test_workers_and_parts_bind_the_same_identities() -> None:
    report = run(TWO, "out", executor=Processes(2))
    assert not report.failures
    bound = RunFolder(Path("out")).identities.stored()
    assert bound.keys() == {
        *("model a", "model b", "task one.jsonl", "task two.jsonl", "settings accuracy")
    }
    worker = opened(TWO, "parts", progress=SILENT, load=False)
    assert not worker.notes
    mechassay = [sys.executable, "-m", "mechassay"]
    part = [*mechassay, "run-cells", "parts", "--part"]
    assert subprocess.run([*part, "1/4"], check=False).returncode == 0
    save_model("a", seed=7)
    other = subprocess.run([*part, "2/4"], check=False, capture_output=True, text=True)
    assert other.returncode == 2 and "a has other weights than on" in other.stderr
    save_model("a", seed=8)
    planned = opened(TWO, "out", progress=SILENT, load=False)
    assert any("if a has the weights of" in note for note in planned.notes)


def test_a_takeover_that_was_killed_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(TWO)
    save_model("a", seed=7)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mechassay.runs.resuming.os.rename", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(TWO, progress=SILENT)
    assert [path for path in Path("runs").iterdir()] == [first.folder]
    monkeypatch.undo()


# Folders of other versions


def without_identities(folder: Path) -> None:
    """Make a folder as versions before identities wrote it."""
    (folder / "identities.json").unlink()
    for file in folder.glob("records/**/*.json"):
        record = ma.read_record(file)
        file.write_text(record.changed(identities={}, cell_digest="").stored_text())


def test_a_folder_without_identities_is_read_and_not_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = run(TWO, "out")
    without_identities(Path("out"))
    with pytest.raises(BadUsage, match=r"out holds results of an earlier version.*report out") as x:
        run(TWO, "out")
    assert "\n" not in str(x.value)
    from mechassay.cli.main import main

    with pytest.raises(SystemExit) as done:
        main(["report", "out"])
    assert done.value.code == 0
    again = ma.read_record(next(Path("out").glob("records/*.json")))
    assert again.measures == report.records[0].measures
    page = Path("out/report.html").read_text()
    assert "Which weights and files were measured is not known" in page


def test_a_newer_method_leads_to_another_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = replace(CIRCUITS, models=("a",), methods=("eap",))
    first = run(experiment)
    monkeypatch.setattr(EAP, "version", EAP.version + 1)
    with pytest.warns(UserWarning, match="holds results of version .* of the method eap"):
        second = run(experiment)
    assert second.folder == numbered(first.folder, 2)
    assert run(experiment).folder == second.folder


# What is not done


def test_a_done_folder_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warm cache, nothing but the state of files is read."""
    now = time.time_ns
    monkeypatch.setattr("mechassay.utils.digests.time.time_ns", lambda: now() + 10**10)
    run(TWO)

    def never(*_: object, **__: object) -> Model:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("mechassay.runs.worker.load_model", never)
    assert len(run(TWO).records) == 4
    save_model("a", seed=7)
    with pytest.raises(AssertionError, match="a model is loaded"):
        run(TWO)


def test_a_dictionary_within_which_the_run_is(place: Path) -> None:
    """A run within a folder that it reads does not change the content of the folder."""
    from mechassay.utils.digests import content_digest

    before = content_digest(place)
    run(PatchExperiment(("a",), ("one.jsonl",), limit=4), "out")
    assert content_digest(place) == before


def test_damaged_identities_are_one_line() -> None:
    run(TWO, "out")
    entry = {"since": "2026-11-28T09:30:00+00:00"}
    for text in ("{", "[]", '{"model a": {}}', json.dumps({"model a": entry, "task t": entry})):
        Path("out/identities.json").write_text(text)
        with pytest.raises(BadFile, match=r"identities\.json: not readable identities"):
            run(TWO, "out")
