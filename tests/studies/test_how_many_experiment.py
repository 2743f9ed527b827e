"""The run that counts the circuits of a task: known answers, bad input, resuming, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.two_behaviours import two_behaviours
from mechassay.errors import BadUsage, UnknownName
from mechassay.results.page import Report, Text
from mechassay.runs.experiment import command_line
from mechassay.runs.options import options_of
from mechassay.runs.run import run
from mechassay.testing import check_experiment
from mechassay.utils.display import SILENT
from studies.how_many import __main__ as study
from studies.how_many.cross_agreement import CrossAgreement
from studies.how_many.experiment import HowManyExperiment
from studies.how_many.page import HowManyPage

Two = tuple[str, str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("how-many")


@pytest.fixture(scope="module")
def two(folder: Path) -> Two:
    """The model of two behaviours, and the files of their pairs, of which train has 44."""
    model, *tasks = two_behaviours(folder)
    for task in tasks:
        rows = [json.loads(line) for line in task.read_text("utf-8").splitlines()]
        moved = [{**row, "split": "train"} for row in rows if row["split"] != "validation"]
        task.write_text("".join(json.dumps(row) + "\n" for row in moved))
    return str(model), str(tasks[0]), str(tasks[1])


@pytest.fixture(scope="module")
def of_two(folder: Path, two: Two) -> Report:
    model, names, fruits = two
    methods = ("eap-ig-inputs:steps=3", "random")
    experiment = HowManyExperiment((model,), (names, fruits), methods, size=9, limit=24)
    return run(experiment, folder / "two", progress=SILENT)


def cross_of(results: Report, place: int = 0) -> CrossAgreement:
    return CrossAgreement.of_record(results.records[place])


def test_two_behaviours_need_two_circuits_and_random_edges_are_none(of_two: Report) -> None:
    assert not of_two.failures
    ours, random = cross_of(of_two), cross_of(of_two, 1)
    assert ours.n_circuits == (2, 2) and ours.noun == "task"
    assert ours.verdict().startswith("The 2 tasks need 2 circuits of 9 edges.")
    assert random.n_circuits == (0, 0) and random.verdict().startswith("No task has a circuit")
    assert of_two.records[0].value("circuits_least") == 2
    assert of_two.records[0].measure("worst_loss").low > 0.9  # pyright: ignore
    selections = of_two.records[0].data
    assert [own.kept for own in selections.values()] == [20, 24, 20, 24]


def test_the_page_begins_with_the_answer_and_has_the_control(of_two: Report) -> None:
    first, second, *_ = HowManyPage().answers(of_two.records)
    assert first == cross_of(of_two).verdict() and second == cross_of(of_two, 1).verdict()
    (loss, kinds) = HowManyPage().tables(Report(of_two.records[:1]))
    assert loss.rows[-1].cells[0] == "another sample" and loss.rows[-1].kind == "control"
    assert loss.rows[0].cells[1] == "0.00" and len(loss.rows) == 3
    assert [row.cells[-1] for row in kinds.rows] == ["24", "24"]
    blocks = HowManyPage().sections(Report(of_two.records))[0].blocks
    assert isinstance(blocks[0], Text)
    text = (of_two.folder / "report.html").read_text("utf-8")
    assert "The 2 tasks need 2 circuits of 9 edges" in text and "<svg" in text


def tagged(two: Two, folder: Path, name: str, tags: list[str]) -> str:
    """The pairs of one behaviour under other names; each name has every so manieth."""
    rows = [json.loads(line) for line in Path(two[1]).read_text("utf-8").splitlines()]
    named = [{**row, "kind": tags[place % len(tags)]} for place, row in enumerate(rows)]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in named))
    return str(file)


def test_one_behaviour_under_two_names_needs_one(two: Two, folder: Path) -> None:
    task = tagged(two, folder, "named", ["a", "b"])
    experiment = HowManyExperiment((two[0],), (task,), over="kind", size=9, train_limit=8, limit=20)
    results = run(experiment, folder / "one", progress=SILENT)
    cross = cross_of(results)
    assert cross.n_circuits == (1, 1) and cross.kinds == ("a", "b")
    assert cross.verdict().startswith("One circuit of 9 edges, found on 'a', serves all 2 kinds:")


def test_kinds_with_too_few_pairs_are_left_out_and_counted(two: Two, folder: Path) -> None:
    task = tagged(two, folder, "few", ["a", "b", "a", "b", "a", "b", "c"])
    experiment = HowManyExperiment(
        (two[0],), (task,), ("random",), "kind", 9, train_limit=4, limit=6
    )
    results = run(experiment, folder / "few", progress=SILENT)
    assert cross_of(results).kinds == ("a", "b")
    assert (
        "1 kind of few.jsonl" in results.records[0].warnings[0]
        or "1 kind of" in (results.records[0].warnings[0])
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"over": "mood"}, "has no tag 'mood'; its tags are kind"),
        ({"over": "kind", "train_limit": 400}, "are needed of two kinds or more"),
        ({"over": "kind", "size": 10**6}, "has 1 to .* edges"),
    ],
)
def test_what_is_wrong_is_one_line(
    two: Two, folder: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    task = tagged(two, folder, "wrong", ["a", "b"])
    asked = {"train_limit": 4, "limit": 6, **fields}
    experiment = HowManyExperiment((two[0],), (task,), ("random",), **asked)  # pyright: ignore
    with pytest.raises(BadUsage, match=message) as refused:
        run(experiment, tmp_path / "out", progress=SILENT)
    assert "\n" not in str(refused.value)


def test_one_template_is_no_comparison(two: Two, folder: Path, tmp_path: Path) -> None:
    task = tagged(two, folder, "single", ["a"])
    experiment = HowManyExperiment(
        (two[0],), (task,), ("random",), "kind", 9, train_limit=4, limit=6
    )
    message = "has in its split train 1 kind, the most common of 64 pairs"
    with pytest.raises(BadUsage, match=message):
        run(experiment, tmp_path / "out", progress=SILENT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "A size is a number of edges, 1 or more"),
        ({"size": 1.5}, "got 1.5"),
        ({"most_kinds": 17}, "between 16 kinds at most; got 17"),
        ({"methods": ("eap", "eap")}, "The method eap is named twice"),
        ({"tasks": ("ioi", "docstring"), "over": "template"}, "leave out --over template"),
        ({"tasks": ("ioi", "greater-than")}, "name one for all with --objective"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_run(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    experiment = HowManyExperiment(**{"models": ("small-gpt2",), "tasks": ("ioi",), **fields})  # pyright: ignore
    with pytest.raises(BadUsage, match=message):
        run(experiment, tmp_path / "out", progress=SILENT)
    assert not (tmp_path / "out").exists()


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    experiment = HowManyExperiment(("small-gpt2",), ("ioi",), ("eapp",))
    with pytest.raises(UnknownName, match="eap"):
        run(experiment, tmp_path / "out", progress=SILENT)


def test_a_run_takes_up_the_scores_that_are_there(two: Two, folder: Path) -> None:
    model, names, fruits = two
    experiment = HowManyExperiment(
        (model,), (names, fruits), ("eap",), size=9, train_limit=4, limit=6
    )
    out = folder / "again"
    first = run(experiment, out, progress=SILENT)
    scores = sorted((out / "scores").rglob("*.safetensors"))
    assert len(scores) == 4
    scores[0].unlink()
    times = [file.stat().st_mtime_ns for file in scores[1:]]
    next((out / "records").rglob("*.json")).unlink()
    second = run(experiment, out, progress=SILENT)
    assert [file.stat().st_mtime_ns for file in scores[1:]] == times and scores[0].is_file()
    assert cross_of(second).verdict() == cross_of(first).verdict()
    assert command_line(experiment).startswith("mechassay how-many run")


def test_groups_are_on_one_side(two: Two, folder: Path) -> None:
    rows = [json.loads(line) for line in Path(two[1]).read_text("utf-8").splitlines()]
    file = folder / "grouped.jsonl"
    grouped = [
        {**row, "kind": "ab"[place % 2], "group": f"g{place // 4}"}
        for place, row in enumerate(rows)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in grouped))
    experiment = HowManyExperiment(
        (two[0],), (str(file),), ("random",), "kind", 9, train_limit=5, limit=10
    )
    cross = cross_of(run(experiment, folder / "grouped", progress=SILENT))
    # Two pairs of a kind are in a group: the sixth goes with the fifth, and to no side.
    assert cross.n_train == (5, 5) and cross.n_test == (10, 10) and cross.n_groups == (5, 5)
    assert "5 independent groups of pairs of a kind are fewer than 20" in cross.verdict()


SMALL = HowManyExperiment(
    ("truth-ioi",),
    ("truth-ioi", "truth-ioi-trained"),
    ("random", "eap"),
    size=9,
    train_limit=4,
    limit=6,
)


def test_the_experiment_keeps_its_promises(tmp_path: Path) -> None:
    check_experiment(SMALL, tmp_path, workers=0)


def test_numbers_of_pairs_have_a_maximum() -> None:
    about = options_of(HowManyExperiment)
    assert about["train_limit"].most is not None and about["limit"].most is not None


def test_the_study_writes_the_tables_of_its_run(tmp_path: Path) -> None:
    study.main(replace(SMALL, methods=("eap",)), tmp_path / "run", tmp_path / "tables.md")
    assert "another sample" in (tmp_path / "tables.md").read_text("utf-8")
