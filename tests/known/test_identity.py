"""No result is shown for content that it does not belong to, and none is made twice.

Each kind of run is run on a model, a task and files. Then one of them changes, and the same command
has to start anew in another folder; or nothing changes but places and times, and the same command
has to find everything done.
"""

from __future__ import annotations

import json
import os
import re
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
from mechassay.errors import BadUsage
from mechassay.features.sae import load_sae
from mechassay.gym.experiments import GymCheckExperiment
from mechassay.interventions.patching import PatchExperiment
from mechassay.measurement.experiment import MeasureExperiment
from mechassay.models.origin import origin_of
from mechassay.reproduction.experiment import ReproductionExperiment
from mechassay.results.page import BEST, OVERSHOT, Report, plain_text
from mechassay.results.records import Record, Spec, page_of, provenance
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
        limit=6,
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
        limit=8,
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


# Names and labels

SEVERAL = [kind for kind, experiment in KINDS.items() if "models" in vars(experiment)]
"""The kinds that take several models."""
WITH_FILES = [kind for kind in SEVERAL if kind not in ("variables", "saes")]
"""Those whose tasks may be files of one's own."""


def texts_of(report: Report) -> set[str]:
    """The numbers with intervals in the tables of a report, without marks of the best."""
    return {
        cell.strip(f"{BEST}{OVERSHOT} ")
        for table in page_of(report.records[0].kind).tables(report)
        for row in table.rows
        for cell in map(plain_text, row.cells[1:])
        if " [" in cell
    }


def check_labels(report: Report, role: str, labels: set[str]) -> None:
    """Every record has its label in tables, pages and mappings, and no number is lost."""
    assert {record.cell[role] for record in report.records} == labels
    assert {getattr(record, role).name for record in report.records} == labels
    keys = [tuple(record.cell.values()) for record in report.records]
    assert len(set(keys)) == len(keys)
    columns = report.columns()
    assert set(columns[role]) == labels
    assert report.page is not None
    page = report.page.read_text("utf-8")
    files = [*report.folder.glob("*.csv"), *report.folder.glob("*.md")]
    for text in (page, *(file.read_text("utf-8") for file in files)):
        assert all(label in text for label in labels)
    together = texts_of(report)
    # Of the tasks of one model, the gym's first table has means.
    for record in report.records if role == "model" else ():
        alone = texts_of(replace(report, records=[record], failures=[]))
        assert alone <= together, alone - together


@pytest.mark.parametrize("kind", SEVERAL)
def test_two_models_of_one_name(kind: str, place: Path) -> None:
    experiment = prepared(kind)
    shutil.copytree("mine", "one/final")
    other_weights()
    shutil.copytree("mine", "two/final")
    names = ("one/final", "./one/final", str(Path("two/final").absolute()), "two/final")
    report = ma.run(replace(experiment, models=names), "out", progress=SILENT)
    alone = [ma.run(replace(experiment, models=(name,)), progress=SILENT) for name in names[1:3]]
    assert not report.failures and len(report.records) == 2 * len(alone[0].records)
    check_labels(report, "model", {"one/final", "two/final"})
    assert sorted(numbers(report)) == sorted(x for one in alone for x in numbers(one))
    stored = {own["model"] for own in map(json.loads, cells_of_records(report.folder))}
    assert stored == {"one/final", "two/final"}
    for one in alone:
        assert {record.cell["model"] for record in one.records} == {"final"}


def cells_of_records(folder: Path) -> list[str]:
    """The names in the stored records."""
    files = (folder / "records").rglob("*.json")
    return [json.dumps(json.loads(file.read_text())["cell"]) for file in files]


@pytest.mark.parametrize("kind", WITH_FILES)
def test_two_files_of_one_name(kind: str, place: Path) -> None:
    experiment = prepared(kind)
    (name,) = experiment.tasks
    change = FILE_CHANGES[name]
    copied(Path(name), Path("a", name))
    change()
    copied(Path(name), Path("b", name))
    names = (f"a/{name}", f"./a/{name}", f"b/{name}")
    report = ma.run(replace(experiment, tasks=names), "out", progress=SILENT)
    one, other = (ma.run(replace(experiment, tasks=(name,)), progress=SILENT) for name in names[1:])
    assert not report.failures
    with_task = [record for record in report.records if "task" in record.cell]
    check_labels(replace(report, records=with_task), "task", {f"a/{name}", f"b/{name}"})
    assert len(with_task) == 2 * sum("task" in record.cell for record in one.records)
    every = numbers(report)
    assert all(own in every for alone in (one, other) for own in numbers(alone))


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", SEVERAL)
def test_two_names_of_equal_content_are_measured_once(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = prepared(kind)
    model = ma.load_model("mine")
    model.hf.save_pretrained("saved-again", max_shard_size="20kB")
    model.tokenizer.save_pretrained("saved-again")  # pyright: ignore[reportOptionalMemberAccess]
    measured: list[str] = []
    run = type(experiment).run

    def counted_run(self: Any, cell: Cell, worker: Worker) -> Record:
        measured.append(cell["model"])
        return run(self, cell, worker)

    monkeypatch.setattr(type(experiment), "run", counted_run)
    report = ma.run(replace(experiment, models=("mine", "saved-again")), "out", progress=SILENT)
    n = len(report.records) // 2
    assert measured == ["mine"] * n and not report.failures
    first, second = report.records[:n], report.records[n:]
    for one, other in zip(first, second, strict=True):
        assert str(one.measures) == str(other.measures) and one.n == other.n
        assert str(one.tables) == str(other.tables)
    check_labels(report, "model", {"mine", "saved-again"})
    assert report.page is not None
    assert "saved-again: the same weights as mine." in report.page.read_text("utf-8")
    worker = opened(replace(experiment, models=("saved-again",)), Path("out"), progress=SILENT)
    assert not worker.folder.cells_left(worker.cells)
    other_weights()
    again = ma.run(replace(experiment, models=("mine", "saved-again")), "new", progress=SILENT)
    assert str(again.records[n:]) != str(again.records[:n]) and len(measured) == 3 * n


def test_two_files_of_equal_content_are_measured_once(place: Path) -> None:
    experiment = prepared("patch")
    for folder in ("a", "b"):
        copied(Path("pairs.jsonl"), Path(folder, "pairs.jsonl"))
    tasks = ("a/pairs.jsonl", "b/pairs.jsonl")
    report = ma.run(replace(experiment, tasks=tasks), progress=SILENT)
    check_labels(report, "task", set(tasks))
    seconds = [record.spent for record in report.records]
    assert seconds[:2] == seconds[2:], "copies"
    assert report.page is not None
    note = "b/pairs.jsonl: the same pairs as a/pairs.jsonl."
    assert note in report.page.read_text("utf-8")


# Results that were found in another model

GIVEN = {
    "circuits": "scores given",
    "adversarial": "circuit given.safetensors@20",
    "adversarial-search": "circuit given.safetensors@20",
    "adversarial-shift": "circuit given.safetensors@20",
    "measure": "circuit given.safetensors@20",
    "variables": "dictionary saes of resid.2@last",
    "alignments": "features full-vector",
    "directions": "directions mean",
}
"""What each kind reads that was found in a model."""


def find(kind: str) -> Any:
    """The experiment of a kind, after what it reads was found in `mine`."""
    experiment = prepared(kind)
    model = ma.load_model("mine")
    scores = Random(seed=0).draw(model.graph)
    replace(scores, provenance=origin_of(model)).save("given.safetensors")
    write_circuit("known.safetensors", 20)
    for folder in ("my-sae", "saes/resid.2"):
        sae = replace(load_sae(folder), model="mine", identity=model.identity.as_dict())
        ma.saes.save_sae(sae, folder)
    if kind == "alignments":
        variables = replace(KINDS["variables"], featurizers=("full-vector",))
        found = ma.run(variables, "found", progress=SILENT)
        (file,) = found.folder.rglob("alignment.json")
        return replace(experiment, alignments=(str(file.parent),))
    if kind == "directions":
        gym = replace(KINDS["gym"], models=("mine",))
        found = ma.run(gym, "found", progress=SILENT)
        (folder,) = (found.folder / "features").iterdir()
        return replace(experiment, directions=(str(folder),))
    return experiment


@pytest.mark.parametrize("kind", GIVEN)
def test_what_was_found_in_another_model_is_refused_or_named(kind: str, place: Path) -> None:
    experiment = find(kind)
    same = ma.run(experiment, "same", progress=SILENT)
    assert same.records and not same.failures
    assert not any(record.found_in for record in same.records)
    shutil.copytree("mine", "copy")
    fields = vars(experiment)
    of_copy = {"models": ("copy",)} if "models" in fields else {"model": "copy"}
    copy = ma.run(replace(experiment, **of_copy), "copy-of-it", progress=SILENT)
    assert numbers(copy) == numbers(same) and not any(record.found_in for record in copy.records)
    other_weights()
    refused = (
        r"found in mine \(weights \w{8}\), which has other weights than mine \(weights \w{8}\)"
    )
    try:
        report = ma.run(experiment, "other", progress=SILENT)
        messages = [failure.message for failure in report.failures]
    except BadUsage as error:
        messages = [str(error)]
    assert messages and all(re.search(refused, message) for message in messages), messages
    transfer = ma.run(replace(experiment, transfer=True), "transfer", progress=SILENT)
    assert transfer.records and not transfer.failures
    before, after = (
        next(iter(run.records)).identities["model"]["weights"][:8] for run in (same, transfer)
    )
    sentence = f"The {GIVEN[kind]} of mine (weights {before}), measured in mine (weights {after})."
    assert sentence in transfer.answers and sentence in str(transfer)
    assert transfer.page is not None and sentence in transfer.page.read_text("utf-8")


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", GIVEN)
def test_what_does_not_name_its_model_is_said(kind: str, place: Path) -> None:
    experiment = prepared(kind)
    report = ma.run(experiment, progress=SILENT)
    assert report.records and not report.failures
    assert all(set(record.found_in.values()) <= {""} for record in report.records)
    assert any(record.found_in for record in report.records)
    assert report.page is not None
    assert "It is not known in which model these were found" in report.page.read_text("utf-8")


def test_the_alignments_of_a_run_of_two_models(place: Path) -> None:
    """Those of the named model are measured, though both models have one folder name."""
    prepared("variables")
    shutil.copytree("mine", "one/final")
    other_weights()
    shutil.copytree("mine", "two/final")
    models = ("one/final", "two/final")
    variables = replace(KINDS["variables"], featurizers=("full-vector",), models=models)
    assert not ma.run(variables, "found", progress=SILENT).failures
    for model in models:
        own = replace(KINDS["alignments"], alignments=("found",), model=model)
        report = ma.run(own, Path("out", model), progress=SILENT)
        assert len(report.records) == 1 and not report.records[0].found_in
