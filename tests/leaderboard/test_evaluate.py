"""Submissions evaluated: runs within limits, resumed, private examples, what no name may hide."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import Board, BoardsFolder
from mechassay.leaderboard.cells import read_cells
from mechassay.leaderboard.evaluate import (
    Evaluation,
    PrivateSeed,
    PrivateSeeds,
    add_seed,
    evaluate,
    published,
    resolved_digits,
)
from mechassay.leaderboard.rules import board_rules
from mechassay.leaderboard.track import BoardTrack, EvaluatedModel, TrackCellLimits
from mechassay.results.reading import read_record
from mechassay.results.records import Record
from mechassay.runs.executors import Here
from mechassay.runs.run import run
from mechassay.utils.display import SILENT

pytestmark = pytest.mark.guard

TRUTH = "truth-ioi"
GRAPH = ma.load_model(TRUTH).graph
TRACK = BoardTrack(
    models={TRUTH: EvaluatedModel(tasks=(TRUTH,))},
    boards=("circuits",),
    splits=("test", "private"),
    limit=4,
)
SEEDS = {epoch: PrivateSeed(epoch, 2**41 + n) for n, epoch in enumerate(("2026-11", "2026-12"))}


def submission(folder: Path, name: str = "mine", seed: int = 0) -> Path:
    """A folder of random scores."""
    values = torch.rand(GRAPH.legal.shape, generator=torch.Generator().manual_seed(seed))
    EdgeScores(GRAPH, values).save(folder / f"{TRUTH}_{TRUTH}" / "a.safetensors")
    (folder / "submission.yaml").write_text(json.dumps({"name": name}))
    return folder


def here(source: Path, folder: Path, track: BoardTrack = TRACK, **about: Any) -> Evaluation:
    """The evaluation in this process, without limits."""
    return evaluate(source, track, folder, executor=Here(), progress=SILENT, **about)


def records(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.glob("runs/*/records/**/*.json"))
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.slow
def test_a_submission_ends_as_runs_that_a_board_is_built_of(tmp_path: Path) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    (source / "submission.yaml").write_text("name: mine, twice\nmethod: dice\n")
    found = here(source, results)
    assert not found.problems and not found.failures
    [file] = records(results)
    assert file.startswith(f"runs/test--{TRUTH}--{TRUTH}--")
    assert file.endswith(f"/records/{TRUTH}--{TRUTH}/a.json")
    header = json.loads((results / "submission.json").read_text())
    assert header["declaration"]["method"] == "dice" and len(header["content"]) == 64
    text = (results / "tables.md").read_text()
    assert "| circuits | CPR | truth-ioi | truth-ioi |" in text and "random " in text
    boards = BoardsFolder.of(tmp_path / "results", tmp_path / "board")
    [board] = boards.boards.values()
    assert boards.declared == {"mine, twice": {"method": "dice"}}
    assert re.search(r">\s*dice\s*<", boards.pages().row("circuits", "mine, twice"))
    assert isinstance(board, Board) and board.rows() == ["mine, twice"]


@pytest.mark.guard
def test_the_same_command_goes_on_and_changes_nothing(tmp_path: Path) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    here(source, results)
    before = records(results)
    shutil.rmtree(results / "submission")  # As in a clone that left it out.
    again = here(source, results)
    assert not again.failures and records(results) == before
    shutil.copytree(source, tmp_path / "around" / "s")
    assert not here(tmp_path / "around", results).problems and records(results) == before


@pytest.mark.slow
def test_what_declares_no_name_is_called_as_the_folder_of_its_results(tmp_path: Path) -> None:
    source = submission(tmp_path / "s")
    (source / "submission.yaml").unlink()
    here(source, tmp_path / "results" / "alone")
    [cell, *_] = read_cells(board_rules()["circuits"], tmp_path / "results")[0]
    assert cell.row == cell.submission == "alone"


def test_mistakes_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    source = submission(tmp_path / "s", name="eap")
    (source / "evil.py").write_text("raise SystemExit")
    (source / "a_b").mkdir()
    found = here(source, tmp_path / "results" / "mine")
    assert {problem.path for problem in found.problems.errors} == {
        "a_b",
        "evil.py",
        "submission.yaml",
    }
    assert not (tmp_path / "results").exists() and not found.results


@pytest.mark.parametrize(
    "name",
    [
        "eap",
        "EAP",
        "eap:steps=3",
        "Random",
        "control: random",
        "dbm+pca",
        "my circuit (MIB)",
        "his (as reported)",
        "еаp",  # Cyrillic letters and a Latin one.
        "еар",  # Cyrillic letters alone.
        "𝐞𝐚𝐩",
        "ｅａｐ",
        "e a p",
        "<b>mine</b>",
    ],
)
def test_names_that_pass_for_another_row_are_refused(name: str, tmp_path: Path) -> None:
    found = here(submission(tmp_path / "s", name), tmp_path / "results" / "mine")
    assert [problem.path for problem in found.problems.errors] == ["submission.yaml"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["eap-ig, 20 steps", "отбор рёбер", "手法 と ひらがな", "DAS 2"])
def test_other_names_are_taken(name: str, tmp_path: Path) -> None:
    found = here(submission(tmp_path / "s", name), tmp_path / "results" / "mine")
    assert not found.problems.errors


@pytest.mark.slow
def test_a_changed_submission_is_a_new_one(tmp_path: Path) -> None:
    results = tmp_path / "results" / "mine"
    here(submission(tmp_path / "s"), results)
    before = records(results)
    with pytest.raises(BadUsage, match="a changed submission is a new one"):
        here(submission(tmp_path / "t", seed=1), results)
    assert records(results) == before
    # What it declares is no content.
    here(submission(tmp_path / "u", name="renamed"), results)
    assert records(results) == before


@pytest.mark.slow
def test_another_track_makes_other_numbers_beside_those_that_are_there(tmp_path: Path) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    here(source, results)
    before = records(results)
    here(source, results, TRACK.model_copy(update={"limit": 5}))
    after = records(results)
    assert len(after) == 2 and before.items() < after.items()
    [board] = BoardsFolder.of(tmp_path / "results", tmp_path / "board").boards.values()
    assert [cell.n for cell in board.cells if cell.column == "cpr"] in ([4, 5], [5, 4])
    here(source, results)
    assert records(results) == after


@pytest.mark.slow
def test_the_same_content_and_a_name_that_looks_the_same_are_refused(tmp_path: Path) -> None:
    here(submission(tmp_path / "s", name="mine"), tmp_path / "results" / "mine")
    with pytest.raises(BadUsage, match="has the content of mine, number by number"):
        here(submission(tmp_path / "t", name="other"), tmp_path / "results" / "other")
    with pytest.raises(BadUsage, match="'m1ne' looks like 'mine'|'Mine.' looks like 'mine'"):
        here(submission(tmp_path / "u", name="Mine.", seed=1), tmp_path / "results" / "other")
    assert not (tmp_path / "results" / "other").exists()


@pytest.mark.slow
def test_what_looks_like_a_run_in_a_submission_is_none(tmp_path: Path) -> None:
    """A record that was handed in, under a plan that was handed in, is on no board."""
    here(submission(tmp_path / "s"), tmp_path / "results" / "mine")
    [run] = (tmp_path / "results" / "mine" / "runs").iterdir()
    forged = tmp_path / "results" / "mine" / "submission" / "forged"
    shutil.copytree(run, forged)
    shutil.copytree(run, forged / "runs" / "x")
    (forged / "submission.json").write_text((run.parent.parent / "submission.json").read_text())
    cells = read_cells(board_rules()["circuits"], tmp_path / "results")[0]
    assert {cell.file.split("/")[1] for cell in cells} == {"runs"}
    assert len(cells) == len({cell.full_id for cell in cells})


@pytest.mark.slow
def test_training_on_the_test_examples_is_said(tmp_path: Path) -> None:
    found = here(submission(tmp_path / "s"), tmp_path / "first" / "mine")
    [record] = next(iter(found.results.values())).records
    declared = {"name": "mine", "train_hashes": [record.data["test"].hash]}
    source = submission(tmp_path / "t")
    (source / "submission.yaml").write_text(json.dumps(declared))
    here(source, tmp_path / "results" / "mine")
    cells = read_cells(board_rules()["circuits"], tmp_path / "results")[0]
    assert all(any("In-sample" in text for text in cell.warnings) for cell in cells)


# --- limits -----------------------------------------------------------------------------------


def limited(track: BoardTrack, **limits: float) -> BoardTrack:
    return track.model_copy(update={"cell": TrackCellLimits(**limits)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"seconds": 0.2}, "took longer than 0.2 s, the limit of time"),
        ({"memory_gb": 0.05}, "more than 0.05 GB, the limit of memory"),
    ],
)
def test_a_cell_over_a_limit_fails_and_goes_on_with_more(
    limits: dict[str, float], says: str, tmp_path: Path
) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    found = evaluate(source, limited(TRACK, **limits), results, progress=SILENT)
    [(name, failure)] = found.failures
    assert name.startswith(f"test--{TRUTH}--{TRUTH}--") and says in failure.message
    assert says in (results / "tables.md").read_text()
    assert not here(source, results).failures and len(records(results)) == 1


# --- private examples -------------------------------------------------------------------------


@pytest.mark.slow
def test_private_numbers_are_rounded_once_an_epoch(tmp_path: Path) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    private: dict[str, Any] = {"private_folder": tmp_path / "secret" / "private"}
    for epoch, seed in SEEDS.items():
        found = here(source, results, seed=seed, **private)
        assert not found.failures and len(found.results) == 2, epoch
    names = [file.split("/")[1].rpartition("--")[0] for file in records(results)]
    splits = ("private-2026-11", "private-2026-12", "test")
    assert names == [f"{split}--{TRUTH}--{TRUTH}" for split in splits]
    files = [results / name for name in records(results)]
    shown, hidden = read_record(files[0]), next((tmp_path / "secret").rglob("records/**/a.json"))
    whole = read_record(hidden)
    assert (
        shown.value("cpr") != whole.value("cpr")
        and abs(shown.value("cpr") - whole.value("cpr")) < 0.5
    )
    text = "".join(
        file.read_text() for file in results.rglob("*.*") if file.suffix != ".safetensors"
    )
    assert all(str(seed.seed) not in text for seed in SEEDS.values())
    assert whole.data["test"].hash not in text and "17" not in str(shown.value("cpr"))
    # Each epoch is a place of its own, and so is the public split.
    [board] = BoardsFolder.of(tmp_path / "results", tmp_path / "board").boards.values()
    titles = [place.title for place in board.places("cpr")]
    assert len(titles) == 3 and sum("2026-11" in title for title in titles) == 1
    # A record that is published is not made again, whoever has lost the private runs.
    before = records(results)
    shutil.rmtree(tmp_path / "secret")
    here(source, results, seed=SEEDS["2026-12"], **private)
    assert records(results) == before and not list((tmp_path / "secret").rglob("records"))


@pytest.mark.slow
def test_private_runs_can_be_read_by_their_owner_alone_and_hide_why_they_fail(
    tmp_path: Path,
) -> None:
    source, results = submission(tmp_path / "s"), tmp_path / "results" / "mine"
    hidden = tmp_path / "secret" / "private"
    track = limited(TRACK, seconds=0.2)
    found = here(source, results, track, seed=SEEDS["2026-11"], private_folder=hidden)
    [(name, failure)] = found.failures
    assert name.startswith("private-2026-11") and failure.error == "TimeLimit"
    assert failure.message == "The reason is withheld: it may repeat private examples."
    assert hidden.stat().st_mode & 0o077 == 0


# --- the command ------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["leaderboard", "evaluate", *words])
    return stopped.value.code, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_prints_the_table_or_every_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "track.yaml").write_text(json.dumps(TRACK.model_dump(mode="json")))
    more = ["--track", str(tmp_path / "track.yaml"), "-o", str(tmp_path / "results" / "mine")]
    source = submission(tmp_path / "s")
    code, out, _ = command(capsys, str(source), *more)
    assert not code and "| circuits | CPR | truth-ioi | truth-ioi |" in out and "Written" in out
    (source / "evil.py").write_text("")
    (source / "c_d").mkdir()
    code, _, err = command(capsys, str(source), *more)
    assert code == 2 and "evil.py: code" in err and "c_d" in err and "2 mistakes" in err
    code, _, err = command(capsys, str(source), *more, "--engine", "here")
    assert code == 2 and "Unknown engine of an evaluation 'here'" in err
    assert len(err.splitlines()) == 1


SEED, OLD = 4_000_000_000_000_000_007, 3_000_000_000_000_000_011
posix = pytest.mark.skipif(os.name != "posix", reason="files have no rights of others here")


def seeds(tmp_path: Path, content: str, mode: int = 0o600) -> Path:
    file = tmp_path / "seeds"
    file.write_text(content)
    file.chmod(mode)
    return file


def test_the_last_seed_is_current_and_old_ones_stay(tmp_path: Path) -> None:
    found = PrivateSeeds.read(seeds(tmp_path, f"# ours\n2026-10 {OLD}\n\n2026-11  {SEED}\n"))
    assert (found.current.epoch, found.current.seed) == ("2026-11", SEED)
    assert [each.epoch for each in found.epochs] == ["2026-10", "2026-11"]


def test_a_seed_is_never_shown(tmp_path: Path) -> None:
    found = PrivateSeeds.read(seeds(tmp_path, f"2026-11 {SEED}\n"))
    for text in (repr(found), str(found), f"{found.current}", repr([found.current])):
        assert str(SEED) not in text and "2026-11" in text


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = seeds(tmp_path, f"2026-11 {SEED}\n", mode)
    with pytest.raises(BadFile, match="others can read it: chmod 600") as caught:
        PrivateSeeds.read(file)
    assert str(SEED) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no seed"),
        ("# nothing\n", "has no seed"),
        (f"{SEED}\n", "line 1: is not EPOCH SEED"),
        (f"\na {SEED} b\n", "line 2: is not EPOCH SEED"),
        (f"../a {SEED}\n", "is not EPOCH SEED"),
        (f"a -{SEED}\n", "no whole number"),
        (f"a {SEED}.0\n", "no whole number"),
        (f"a {SEED}000\n", "no whole number"),
        (f"a {2**63}\n", "below 2\\^63"),
        ("a 12345\n", "nobody finds it by trying"),
        (f"a {SEED}\na {OLD}\n", "has the epoch a twice"),
    ],
)
def test_lines_that_are_none_are_refused_without_their_seed(
    tmp_path: Path, content: str, says: str
) -> None:
    with pytest.raises(BadFile, match=says) as caught:
        PrivateSeeds.read(seeds(tmp_path, content))
    assert str(SEED) not in str(caught.value) and "12345" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        PrivateSeeds.read(tmp_path / "none")
    file = seeds(tmp_path, "")
    file.write_bytes(b"a \xff\xfe12345")
    with pytest.raises(BadFile, match="no text"):
        PrivateSeeds.read(file)


def test_drawn_seeds_can_be_read_and_differ(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "seeds"
    assert [add_seed(file, epoch) for epoch in ("a", "b", "c")] == [1, 2, 3]
    found = PrivateSeeds.read(file)
    assert [each.epoch for each in found.epochs] == ["a", "b", "c"]
    assert len({each.seed for each in found.epochs}) == 3
    assert os.name != "posix" or file.stat().st_mode & 0o777 == 0o600


def test_a_drawn_seed_stands_in_a_line_of_its_own(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}")
    add_seed(file, "b")
    assert PrivateSeeds.read(file).epochs[0].seed == SEED


def test_an_epoch_has_one_seed_and_a_plain_name(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}\n")
    for epoch, says in (("a", "already"), ("b c", "letters"), ("../b", "letters"), ("", "letters")):
        with pytest.raises(BadUsage, match=says):
            add_seed(file, epoch)
    assert file.read_text() == f"a {SEED}\n"


@posix
def test_a_seed_is_not_added_where_others_read(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}\n", 0o644)
    with pytest.raises(BadFile, match="others can read it"):
        add_seed(file, "b")
    assert file.read_text() == f"a {SEED}\n"


# --- what is published ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0.4, 0.6, 1),  # Half of it is .1, 1 in the first place.
        (0.401, 0.6, 2),
        (0.45, 0.55, 2),
        (-30.0, 50.0, -1),
        (0.0, 2e-4, 4),
        (1.0, 1.0, 15),
        (math.nan, 1.0, None),
        (0.0, math.inf, None),
    ],
)
def test_an_interval_resolves_the_digit_of_half_its_width(
    low: float, high: float, places: int | None
) -> None:
    assert resolved_digits(low, high) == places


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_rounding_moves_a_number_by_half_the_interval_at_most(value: float, half: float) -> None:
    low, high = value - half, value + half
    places = resolved_digits(low, high)
    assert places is not None and abs(round(value, places) - value) <= (high - low) / 2
    # A place more would be finer than a tenth of the interval's half.
    assert 10.0**-places > (high - low) / 2 / 10 * (1 - 1e-9)


@pytest.fixture
def private_record(tmp_path: Path) -> Record:
    """A record on private examples of a seed that is no secret here."""
    experiment = CircuitsExperiment(
        ("truth-ioi",),
        methods=("random",),
        train_limit=4,
        limit=4,
        split="private",
        private_seed=SEED,
    )
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    return record


def test_a_published_record_has_rounded_numbers_and_nothing_about_examples(
    private_record: Record,
) -> None:
    record = published(private_record, PrivateSeed("2026-11", SEED))
    assert private_record.tables and private_record.values is not None and private_record.spent
    assert not (record.tables or record.values or record.spent or record.warnings)
    assert record.task.args["epoch"] == "2026-11" and record.data["test"].split == "private"
    for before, after in zip(private_record.measures, record.measures, strict=True):
        own = private_record.measure(before.name)
        places = None if own is None else resolved_digits(own.low, own.high)
        if places is None:
            assert math.isnan(after.value)
        else:
            assert after.value == round(before.value, places) or math.isnan(before.value)
        assert after.n == before.n
    cpr = record.measure("cpr")
    assert cpr is not None and cpr.value != private_record.value("cpr")


def test_hashes_of_private_examples_are_keyed(private_record: Record) -> None:
    first, again = (published(private_record, PrivateSeed("a", SEED)) for _ in range(2))
    other = published(private_record, PrivateSeed("a", OLD))
    assert first.data["test"].hash == again.data["test"].hash != other.data["test"].hash
    text = first.model_dump_json()
    assert private_record.data["test"].hash not in text and str(SEED) not in text
    # Train examples are public: who has them may look.
    assert first.data["train"].hash == private_record.data["train"].hash
