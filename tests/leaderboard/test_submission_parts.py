"""Submissions of directions: what is read, evaluated, and computed again from a board."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mechassay.features import Fit
from mechassay.features.featurizer import Directions
from mechassay.gym import load_gym_task
from mechassay.gym.experiments import DirectionsExperiment, GymExperiment
from mechassay.interventions.site import load_site
from mechassay.leaderboard import BoardCell, BoardsFolder, StoredBoards
from mechassay.leaderboard.evaluate import evaluate, experiments_of
from mechassay.leaderboard.plans import made_on_board
from mechassay.leaderboard.recomputation import recompute_made
from mechassay.leaderboard.submission import Submission, read_submission
from mechassay.leaderboard.submission_parts import SubmissionPart
from mechassay.leaderboard.track import BoardTrack, EvaluatedModel
from mechassay.runs.executors import Here
from mechassay.runs.run import run
from mechassay.utils.display import SILENT
from mechassay.utils.files import write_tensors

NEOX, TASK = "gym-neox", "agr_gender"
LIMIT = 8
TRACK = BoardTrack(
    models={
        NEOX: EvaluatedModel(gym=(TASK, "filler_gap_subj")),
        "truth-ioi": EvaluatedModel(tasks=("truth-ioi",)),
    },
    splits=("test", "private"),
    limit=LIMIT,
)


def saved(folder: Path, name: str = "mine-0", width: int = 48) -> Path:
    """One direction at a region of the last layer."""
    fit = Fit({load_site("resid.3@because"): Directions(torch.eye(width)[:, :1])})
    fit.save(folder / f"{name}.safetensors")
    return folder


def told(bundle: Submission) -> dict[str, str]:
    return {problem.path: problem.message for problem in bundle.problems.errors}


@pytest.mark.parametrize("name", [f"{TASK}_{NEOX}", f"{NEOX}--{TASK}"])
def test_a_folder_of_directions_is_read(name: str, tmp_path: Path) -> None:
    saved(tmp_path / name)
    (tmp_path / "submission.yaml").write_text("name: mine\n")
    bundle = read_submission(tmp_path, TRACK)
    assert bundle.valid and bundle.kind == "gym"
    assert bundle.parts == (SubmissionPart(NEOX, TASK, name, "directions"),)
    # Sentences of gym tasks are public, so there is one experiment.
    [(_, _, experiment)] = experiments_of(bundle, TRACK)
    assert experiment == DirectionsExperiment(
        (str(tmp_path / name),), NEOX, TASK, validation_limit=LIMIT, limit=LIMIT
    )
    assert experiment.split == "test"


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    first = saved(tmp_path / f"{TASK}_{NEOX}", width=64)
    saved(first, "other-0")
    (first / "a.py").write_text("raise SystemExit")
    (first / "b.pt").write_bytes(b"PK")
    (first / "c-0.safetensors").symlink_to(tmp_path.parent / "secret")
    saved(tmp_path / f"filler_gap_sub_{NEOX}")
    nan = {"0.vectors": torch.full((48, 1), torch.nan), "losses": torch.zeros(0, 0)}
    site = {"site": "resid.3@pp", "featurizer": "Directions"}
    header = {"kind": "features", "sites": [site], "together": False, "provenance": {}}
    write_tensors(tmp_path / f"filler_gap_subj_{NEOX}" / "mine-0.safetensors", nan, header)
    saved(tmp_path / f"{TASK}_truth-ioi")
    saved(tmp_path / f"{NEOX}--{TASK}")
    saved(tmp_path / "mine")
    (tmp_path / "run.py").write_text("raise SystemExit")
    (tmp_path / "notes.txt").write_text("")
    bundle = read_submission(tmp_path, TRACK)
    said = told(bundle)
    assert bundle.kind == "gym" and not bundle.valid
    for path, part in (
        (f"{TASK}_{NEOX}/mine-0.safetensors", "gym-neox has 48 numbers there"),
        (f"{TASK}_{NEOX}/a.py", "code"),
        (f"{TASK}_{NEOX}/b.pt", "no file of directions"),
        (f"{TASK}_{NEOX}/c-0.safetensors", "leads out"),
        (f"{TASK}_{NEOX}", "directions of 2 methods (mine, other)"),
        (f"filler_gap_subj_{NEOX}/mine-0.safetensors", "resid.3@pp: numbers that are NaN"),
        (f"filler_gap_sub_{NEOX}", "Did you mean 'filler_gap_subj'"),
        (f"{TASK}_truth-ioi", "does not evaluate truth-ioi on agr_gender; it does none"),
        ("mine", "is not named TASK_MODEL"),
        ("run.py", "code"),
    ):
        assert part in said[path], (path, said.get(path))
    assert [each.path for each in bundle.problems if each.warning] == ["notes.txt"]
    # Links are said once.
    assert sum(problem.path.endswith("c-0.safetensors") for problem in bundle.problems) == 1


def test_a_whole_vector_is_above_what_the_track_allows(tmp_path: Path) -> None:
    folder = tmp_path / f"{TASK}_{NEOX}"
    fit = Fit({load_site("resid.3@because"): Directions(torch.eye(48))})
    fit.save(folder / "mine-0.safetensors")
    assert told(read_submission(tmp_path, TRACK)) == {
        f"{TASK}_{NEOX}/mine-0.safetensors": "Site resid.3@because: got 48 directions; a site"
        " may have at most 1 here."
    }
    assert read_submission(tmp_path, TRACK.model_copy(update={"gym_k": 48})).valid
    assert BoardTrack.read().gym_k == 1


def test_two_folders_of_one_task_and_a_pickle(tmp_path: Path) -> None:
    for name in (f"{TASK}_{NEOX}", f"{NEOX}--{TASK}"):
        saved(tmp_path / "twice" / name)
    [message] = told(read_submission(tmp_path / "twice", TRACK)).values()
    assert message.startswith("a second one for agr_gender on gym-neox")
    folder = tmp_path / "pickle" / f"{TASK}_{NEOX}"
    folder.mkdir(parents=True)
    (folder / "mine-0.safetensors").write_bytes(b"\x80\x04]\x94.")
    [message] = told(read_submission(tmp_path / "pickle", TRACK)).values()
    assert "not a readable safetensors file" in message


def test_a_track_that_takes_no_directions(tmp_path: Path) -> None:
    saved(tmp_path / f"{TASK}_{NEOX}")
    track = TRACK.model_copy(update={"boards": ("circuits",)})
    assert "takes no submissions of gym" in told(read_submission(tmp_path, track))["."]


def test_scores_for_a_gym_task_are_no_circuits(tmp_path: Path) -> None:
    folder = tmp_path / f"{TASK}_{NEOX}"
    folder.mkdir()
    (folder / "scores.json").write_text("{}")
    said = told(read_submission(tmp_path, TRACK))
    assert "no file of directions" in said[f"{TASK}_{NEOX}/scores.json"]


def test_the_packaged_track_has_the_tasks_and_limits_of_the_seeded_board() -> None:
    track = BoardTrack.read()
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    [seed] = [line for line in makefile.splitlines() if "gym run" in line and "runs/board" in line]
    about = track.model(NEOX)
    assert about.gym and f"-m {NEOX} " in seed
    assert seed.count(" -t ") == len(about.gym)
    for task in about.gym:
        assert f"-t {task} " in seed and load_gym_task(task).tested
        n = track.examples_of(task)
        assert f"--validation-limit {n} --limit {n} " in seed


# --- evaluated -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The board of one submission: directions that `gym run` found, for control labels too."""
    folder = tmp_path_factory.mktemp("own")
    experiment = GymExperiment(
        (NEOX,),
        (TASK,),
        ("mean",),
        controls=("labels",),
        train_limit=16,
        validation_limit=LIMIT,
        limit=LIMIT,
    )
    run(experiment, folder / "found", progress=SILENT)
    mine = folder / "mine"
    shutil.copytree(folder / "found" / "features", mine)
    one = mine / f"{NEOX}--{TASK}" / "mean-0.safetensors"
    # Labels play no part in it: it is what it finds for control labels too.
    shutil.copy(one, one.with_name("mean-0-control.safetensors"))
    (mine / "submission.yaml").write_text("name: mine\n")
    track = BoardTrack(models={NEOX: EvaluatedModel(gym=(TASK,))}, boards=("gym",), limit=LIMIT)
    result = evaluate(mine, track, folder / "results" / "mine", executor=Here(), progress=SILENT)
    assert not result.problems and not result.failures
    boards = BoardsFolder.of(folder / "results", folder / "board")
    assert boards.keep_artefacts() == ()
    boards.write()
    return folder / "board"


def cells(board: Path) -> dict[str, BoardCell]:
    return {cell.column: cell for cell in StoredBoards.read(board).cells}


def test_the_board_has_the_submission_once_with_its_controls(board: Path) -> None:
    assert set(cells(board)) == {"odds", "selectivity"}
    odds, selectivity = (cells(board)[name] for name in ("odds", "selectivity"))
    assert (odds.row, odds.place) == ("mine", {"model": NEOX, "task": TASK})
    assert odds.value > 5 > 1 > abs(odds.controls["random directions"])
    assert odds.n == LIMIT and set(odds.controls) == {"whole vector", "random directions"}
    assert any("control labels as they were given" in line for line in selectivity.warnings)


@pytest.mark.parametrize("column", ["odds", "selectivity"])
def test_a_cell_is_the_same_again(board: Path, tmp_path: Path, column: str) -> None:
    cell = cells(board)[column]
    made = made_on_board(cell, board, tmp_path / "files")
    again = recompute_made(cell, made, tmp_path / "run", progress=SILENT)
    assert again.agrees and again.n > 100 and again.largest <= 1e-6
