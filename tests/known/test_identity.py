"""No result is shown for content that it does not belong to, and none is made twice.

Each kind of run is run on a model, a task and files. Then one of them changes, and the same command
has to start anew in another folder; or nothing changes but places and times, and the same command
has to find everything done.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from helpers.experiments import DATA, SMALL_EXPERIMENTS, SMALL_GYM_TASK
from mechassay.adversarial.experiments import AdversarialExperiment, SearchExperiment
from mechassay.adversarial.paper import PaperExperiment
from mechassay.adversarial.shift import ShiftExperiment
from mechassay.circuits.methods.random import Random
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.gym.experiments import GymCheckExperiment
from mechassay.interventions.patching import PatchExperiment
from mechassay.measurement.experiment import MeasureExperiment
from mechassay.reproduction.experiment import ReproductionExperiment
from mechassay.results.page import Report
from mechassay.results.records import Record, Spec, provenance
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.cells import Cell
from mechassay.runs.run import opened
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT
from mechassay.variables.experiments import VariablesExperiment

MINE = ("mine",)
PAIRS = ("pairs.jsonl",)
KINDS: dict[str, Any] = {
    "circuits": CircuitsExperiment(
        MINE,
        PAIRS,
        methods=("random",),
        scores=("given.safetensors",),
        known="known.safetensors",
        train_limit=4,
        test_limit=6,
        random_rankings=5,
    ),
    "accuracy": AccuracyExperiment(MINE, PAIRS, limit=4),
    "patch": PatchExperiment(MINE, PAIRS, ("heads", "resid"), limit=4),
    "adversarial": AdversarialExperiment(
        "mine",
        "pairs.jsonl",
        ("given.safetensors@20",),
        n_clean=6,
        n_corrupted=5,
        n_resamples=20,
        n_permutations=20,
        worst=1,
    ),
    "adversarial-search": SearchExperiment(
        "mine",
        "pairs.jsonl",
        ("given.safetensors@20",),
        n_clean=4,
        n_corrupted=4,
        budget=30,
        starts=1,
        restarts=1,
    ),
    "adversarial-shift": ShiftExperiment(
        "mine", ("given.safetensors@20",), "truth-ioi", ("pairs.jsonl",), n_prompts=8
    ),
    "directions": replace(
        SMALL_EXPERIMENTS["directions"], directions=("directions",), model="mine", task="own.yaml"
    ),
    "gym": replace(SMALL_EXPERIMENTS["gym"], models=MINE, tasks=("own.yaml",), methods=("mean",)),
    "gym-check": GymCheckExperiment(MINE, ("own.yaml",), limit=8),
    "measure": MeasureExperiment(
        ("EX1", "M10"),
        MINE,
        PAIRS,
        other_task="other.jsonl",
        circuit="given.safetensors@20",
        sae="my-sae",
        site="resid.1",
        texts="words.jsonl",
        tokens=400,
        window=8,
        n_prompts=6,
        train_limit=6,
    ),
    "variables": VariablesExperiment(
        MINE,
        ("truth-ioi",),
        variables=("answer",),
        featurizers=("full-vector", "dbm+sae"),
        saes="saes",
        layers="2",
        positions=("last",),
        steps=3,
        train_limit=8,
        validation_limit=6,
        test_limit=8,
    ),
    "alignments": replace(SMALL_EXPERIMENTS["alignments"], alignments=("alignment",), model="mine"),
    "saes": replace(
        SMALL_EXPERIMENTS["saes"],
        models=MINE,
        sites=("resid.1",),
        corpus="words.jsonl",
        controls=("random",),
    ),
}
"""An experiment of each kind that measures one model, a task and files, by relative paths."""
TRAINED = ("alignments", "variables")
"""The kinds whose model is truth-ioi-trained; the others run truth-ioi."""


def save_model(name: str, folder: Path = Path("mine"), **options: Any) -> None:
    model = ma.load_model(name)
    shutil.rmtree(folder, ignore_errors=True)
    model.hf.save_pretrained(folder, **options)
    assert model.tokenizer is not None
    model.tokenizer.save_pretrained(folder)


def write_pairs(answer: str = "answers", foil: str = "foils", file: str = "pairs.jsonl") -> None:
    """Pairs of truth-ioi as a file of one's own: all splits have the same rows but for an id."""
    rows: list[dict[str, str]] = []
    for split, limit in (("train", 12), ("validation", 8), ("test", 24)):
        for pair in ma.load_task("truth-ioi").pairs(split, ma.load_model("truth-ioi"), limit=limit):
            row = {"clean": pair.clean, "counterfactual": pair.counterfactual, "split": split}
            rows.append(row | {"answer": getattr(pair, answer)[0], "foil": getattr(pair, foil)[0]})
    Path(file).write_text("\n".join(map(json.dumps, rows)))


def write_sae(folder: str, site: str, seed: int = 0) -> None:
    width = ma.load_model("mine").decoder.d_model
    rows = torch.randn(2 * width, width, generator=torch.Generator().manual_seed(seed))
    rows = torch.nn.functional.normalize(rows)
    bias = torch.zeros(2 * width), torch.zeros(width)
    sae = ma.features.SAE(rows.T.contiguous(), rows, *bias, "topk", k=4, hook=site)
    ma.saes.save_sae(sae, folder)


def write_scores(file: str, seed: int = 0) -> None:
    model = ma.load_model("truth-ioi")
    Random(seed=seed).draw(model.graph).save(file)


def write_circuit(file: str, n_edges: int) -> None:
    ma.load_scores("given.safetensors").top(n_edges).save(file)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(kind: str) -> Any:
    """The experiment of a kind, after its model, task and files were written."""
    save_model("truth-ioi-trained" if kind in TRAINED else "truth-ioi")
    for file in ("pairs.jsonl", "other.jsonl"):
        write_pairs(file=file)
    write_scores("given.safetensors")
    write_circuit("known.safetensors", 20)
    shutil.copy(SMALL_GYM_TASK, "own.yaml")
    shutil.copy(DATA / "words.jsonl", "words.jsonl")
    shutil.copytree(DATA / "directions" / "gym_small_truth-ioi", "directions")
    shutil.copytree(DATA / "alignments" / "truth_ioi_answer", "alignment")
    write_sae("my-sae", "resid.1")
    write_sae("saes/resid.2", "resid.2")
    return KINDS[kind]


# What changes


def other_weights() -> None:
    from safetensors.torch import load_file, save_file

    file = Path("mine/model.safetensors")
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(0)
    for name, x in tensors.items():
        tensors[name] = x * (1 + 0.5 * torch.randn(x.shape, generator=generator))
    save_file(tensors, file, {"format": "pt"})


def other_tokenizer() -> None:
    file = Path("mine/tokenizer.json")
    data = json.loads(file.read_text())
    words = data["model"]["vocab"]
    words["Ann"], words["Bob"] = words["Bob"], words["Ann"]
    file.write_text(json.dumps(data))


def other_configuration() -> None:
    file = Path("mine/config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "layer_norm_epsilon": 0.5}))


def other_tensors(folder: str) -> Callable[[], None]:
    def change() -> None:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        for file in Path(folder).rglob("*.safetensors"):
            with safe_open(file, "pt") as opened_file:
                metadata = opened_file.metadata()
            tensors = {name: -x for name, x in load_file(file).items()}
            save_file(tensors, file, metadata)

    return change


def edited(file: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new))

    return change


MODEL_CHANGES: dict[str, Callable[[], None]] = {
    "weights": other_weights,
    "tokenizer": other_tokenizer,
    "configuration": other_configuration,
}
FILE_CHANGES: dict[str, Callable[[], None]] = {
    "pairs.jsonl": lambda: write_pairs("foils", "answers"),
    "other.jsonl": lambda: write_pairs("foils", "answers", file="other.jsonl"),
    "given.safetensors": lambda: write_scores("given.safetensors", seed=1),
    "known.safetensors": lambda: (
        ma.load_scores("given.safetensors").top(30).save("known.safetensors")
    ),
    "own.yaml": edited("own.yaml", "[and, so, then]", "[and, so]"),
    "words.jsonl": edited("words.jsonl", "Dan", "Fay"),
    "my-sae": lambda: write_sae("my-sae", "resid.1", seed=1),
    "saes": lambda: write_sae("saes/resid.2", "resid.2", seed=1),
    "directions": other_tensors("directions"),
    "alignment": other_tensors("alignment"),
}
READ: dict[str, tuple[str, ...]] = {
    "circuits": ("pairs.jsonl", "given.safetensors", "known.safetensors"),
    "accuracy": ("pairs.jsonl",),
    "patch": ("pairs.jsonl",),
    "adversarial": ("pairs.jsonl", "given.safetensors"),
    "adversarial-search": ("pairs.jsonl", "given.safetensors"),
    "adversarial-shift": ("pairs.jsonl", "given.safetensors"),
    "directions": ("own.yaml", "directions"),
    "gym": ("own.yaml",),
    "gym-check": ("own.yaml",),
    "measure": ("pairs.jsonl", "other.jsonl", "given.safetensors", "my-sae", "words.jsonl"),
    "variables": ("saes",),
    "alignments": ("alignment",),
    "saes": ("words.jsonl",),
}
"""The files that each kind reads."""


def numbers(report: Report) -> list[str]:
    """The measures, tables and values of each record, without times."""
    return [own.model_dump_json(include={"measures", "tables", "values"}) for own in report.records]


def copied(source: Path, target: Path) -> None:
    """Copy a file or a folder over what is there."""
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def bytes_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_model_or_file_shows_no_old_number(kind: str, place: Path) -> None:
    experiment = prepared(kind)
    first = ma.run(experiment, progress=SILENT)
    assert first.records and not first.failures, first.failures
    assert all(x.identities["model"]["weights"] and x.cell_digest for x in first.records)
    before = bytes_below(first.folder)
    names = ("mine", *READ[kind])
    for name in names:
        copied(Path(name), Path("right", name))
    for what, change in (MODEL_CHANGES | {name: FILE_CHANGES[name] for name in READ[kind]}).items():
        change()
        worker = opened(replace(experiment), progress=SILENT)
        assert worker.folder.path != first.folder, what
        (note,) = worker.notes
        name = "mine" if what in MODEL_CHANGES else what
        assert name in note and " has other " in note.replace("another", "other")
        assert str(worker.folder.path) in note
        # The cells that read what changed are left, and no others.
        left = {cell.name for cell in worker.folder.cells_left(worker.cells)}
        reading = {
            cell.name
            for cell in worker.cells
            if any(source.name.startswith(name) for source in experiment.sources(cell).values())
        }
        assert left == reading and left, what
        if what == "weights":
            again = ma.run(experiment, progress=SILENT)
            fresh = ma.run(experiment, "fresh", progress=SILENT)
            assert again.folder == worker.folder.path and not again.failures
            assert numbers(again) == numbers(fresh)
            # truth-ioi prefers neither label of the gym task, whatever its weights are.
            assert kind == "gym-check" or numbers(again) != numbers(first)
        copied(Path("right", name), Path(name))
        back = opened(replace(experiment), progress=SILENT)
        assert back.folder.path == first.folder and not back.folder.cells_left(back.cells)
    assert bytes_below(first.folder) == before, "nothing in the first folder was overwritten"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_content_is_measured_once(kind: str, place: Path) -> None:
    experiment = prepared(kind)
    first = ma.run(experiment, progress=SILENT)
    assert first.records and not first.failures

    def is_done(output: Path | None = None) -> bool:
        worker = opened(experiment, output, progress=SILENT)
        same = output is not None or worker.folder.path == first.folder
        return same and not worker.folder.cells_left(worker.cells) and not worker.notes

    assert is_done()
    for path in place.rglob("*"):
        os.utime(path)
    assert is_done(), "touched"
    shutil.copytree(first.folder, "copy")
    assert is_done(Path("copy")), "the folder was copied"
    name = "truth-ioi-trained" if kind in TRAINED else "truth-ioi"
    save_model(name, max_shard_size="20kB")
    assert is_done(), "the model was saved again, in shards"
    model = ma.load_model("mine")
    model.tokenizer(["Ann", "Ann and Bob"], padding=False)  # pyright: ignore[reportOptionalCall]
    model.hf.config.use_cache = False
    model.hf.save_pretrained("mine")
    assert is_done(), "after use"
    shutil.copytree("mine", "other")
    shutil.rmtree("mine")
    os.symlink("other", "mine")
    assert is_done(), "a link to a copy"


LONG: dict[str, Any] = {
    "adversarial-paper": PaperExperiment("mine", n_clean=4, n_corrupted=3, n_matched=3, worst=1),
    "reproduction": ReproductionExperiment("adversarial", ("3",), given=("gpt2=mine",)),
}
"""Kinds that run other kinds for hours; their records are stand-ins here."""


@pytest.mark.parametrize("kind", LONG)
def test_runs_of_runs_belong_to_their_model(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("truth-ioi")
    experiment = LONG[kind]
    measured: list[str] = []

    def stand_in(self: Any, cell: Cell, worker: Worker) -> Record:
        measured.append(cell.name)
        sources = self.sources(cell).values()
        models = [worker.model(source.name) for source in sources if source.what == "model"]
        specs = {"model": models[0].spec()} if models else {"model": Spec(name="calculated")}
        made = provenance(device="cpu", dtype="float32", seed=0)
        return Record(kind=kind, specs=specs, measures=[], provenance=made)

    monkeypatch.setattr(type(experiment), "run", stand_in)
    monkeypatch.setattr(type(experiment), "skip", lambda *_: None)
    monkeypatch.setattr(type(experiment), "write", lambda self, report: report.folder)
    first = ma.run(experiment, progress=SILENT)
    # The reproduction has a cell whose model is not on this machine.
    missing = {name for name in measured if name not in first.by_name}
    of_mine = {
        cell.name
        for cell in experiment.cells()
        if any(source.name == "mine" for source in experiment.sources(cell).values())
    }
    assert of_mine and of_mine <= first.by_name.keys()
    measured.clear()
    ma.run(experiment, progress=SILENT)
    assert set(measured) == missing
    measured.clear()
    other_weights()
    with pytest.warns(UserWarning, match="mine has other weights"):
        second = ma.run(experiment, progress=SILENT)
    assert set(measured) == of_mine | missing and second.folder != first.folder


def test_a_judged_document_that_was_edited(place: Path) -> None:
    shutil.copy(SMALL_EXPERIMENTS["assess"].source, "paper.md")
    experiment = replace(SMALL_EXPERIMENTS["assess"], source="paper.md")
    first = ma.run(experiment, progress=SILENT)
    assert len(first.records) == 3 and ma.run(experiment, progress=SILENT).folder == first.folder
    Path("paper.md").write_text(f"{Path('paper.md').read_text()}\nA sentence more.\n")
    with pytest.warns(UserWarning, match=r"paper\.md has other content"):
        second = ma.run(experiment, progress=SILENT)
    assert second.folder != first.folder and len(second.records) == 3
