"""The repository of a board, with its workflows run on a host that is played (`board_host`)."""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import yaml

import mechassay as ma
from helpers.board_host import EXPRESSION, Host, JobDone, MadeRepository
from helpers.edits import consistent
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.leaderboard import init
from mechassay.errors import BadUsage
from mechassay.leaderboard.evaluate import resolved_digits
from mechassay.leaderboard.folder import StoredBoards
from mechassay.leaderboard.repository import WORKFLOWS, write_repository
from mechassay.results.reading import read_record
from mechassay.results.records import Record
from mechassay.version import __version__

SEED, NEXT_SEED = 4_611_686_018_427_388_777, 2_305_843_009_213_693_951
TRACK = """
boards: [circuits]
splits: [{splits}]
limit: 10
models:
  truth-ioi: {{tasks: [truth-ioi]}}
upload: {{megabytes: 2, files: 100}}
cell: {{seconds: {seconds}, memory_gb: {memory}}}
"""
SCORES = "truth-ioi_truth-ioi/scores.safetensors"
RECOMPUTE = ("mechassay", "leaderboard", "recompute")


def host(folder: Path, splits: str = "test", seconds: float = 300, memory: float = 8) -> Host:
    """A board of one small model on a host."""
    repository = folder / "written"
    write_repository(repository)
    track = TRACK.format(splits=splits, seconds=seconds, memory=memory)
    (repository / "track.yaml").write_text(track)
    return Host.of(repository, folder)


def submission(name: str = "mine", seed: int = 0) -> dict[str, Any]:
    """The files of random scores of the model's edges."""
    graph = ma.load_model("truth-ioi").graph
    values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(seed))
    with TemporaryDirectory() as folder:
        EdgeScores(graph, values).save(Path(folder) / "scores.safetensors")
        scores = (Path(folder) / "scores.safetensors").read_bytes()
    told = yaml.safe_dump({"name": name, "method": "random numbers"}).encode()
    return {
        f"submissions/{name}/submission.yaml": told,
        f"submissions/{name}/{SCORES}": scores,
    }


# What is written


def test_a_new_empty_or_just_cloned_folder_is_taken(tmp_path: Path) -> None:
    written = write_repository(tmp_path / "new" / "board")
    there = {
        path.relative_to(tmp_path / "new" / "board").as_posix()
        for path in (tmp_path / "new" / "board").rglob("*")
        if path.is_file()
    }
    assert there == set(written)
    assert {"README.md", "OPERATING.md", "track.yaml", "submissions/.gitkeep"} < there
    (tmp_path / "empty").mkdir()
    assert write_repository(tmp_path / "empty") == written
    cloned = MadeRepository.at(tmp_path / "cloned")
    assert write_repository(cloned.folder) == written


def test_what_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "mine").write_text("")
    (tmp_path / "file").write_text("")
    for name, said in (("board", "is not empty .it has mine"), ("file", "is a file")):
        with pytest.raises(BadUsage, match=said) as refused:
            write_repository(tmp_path / name)
        assert len(str(refused.value).splitlines()) == 1
    assert [path.name for path in (tmp_path / "board").iterdir()] == ["mine"]


def test_the_command_names_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path / "board")
    said = capsys.readouterr()
    assert "track.yaml" in said.out.splitlines()
    assert "OPERATING.md" in said.err


def test_the_version_and_the_track_are_those_of_the_package(tmp_path: Path) -> None:
    write_repository(tmp_path / "board")
    lines = (tmp_path / "board" / "requirements.txt").read_text().splitlines()
    assert [x for x in lines if not x.startswith("#")] == [f"mechassay[gguf,hub]=={__version__}"]
    assert "models" in yaml.safe_load((tmp_path / "board" / "track.yaml").read_text())


@pytest.fixture(scope="module")
def workflows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("written") / "board"
    write_repository(folder)
    files = {name: folder / ".github" / "workflows" / f"{name}.yml" for name in WORKFLOWS}
    return {name: yaml.safe_load(file.read_text()) for name, file in files.items()}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_workflow_has_no_more_rights_than_it_needs(
    workflows: dict[str, dict[Any, Any]], name: str
) -> None:
    about = workflows[name]
    for job_name, job in about["jobs"].items():
        rights = job.get("permissions", about["permissions"])
        allowed = {
            "publish": {"contents": "write"},
            "recompute": {"contents": "write"},
            "deploy": {"pages": "write", "id-token": "write"},
        }.get(job_name, {"contents": "read"})
        assert rights == allowed
        assert job["timeout-minutes"] <= 360
        assert ("environment" in job) == (job_name in ("publish", "deploy"))
        for step in job["steps"]:
            # What somebody wrote never becomes a part of a shell's text.
            assert not EXPRESSION.search(step.get("run", ""))
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
                assert "head" not in step["with"].get("ref", "")
            # The token is given to the step that pushes alone, the seed to the one that writes it.
            names = {key for key, value in step.get("env", {}).items() if "secrets." in str(value)}
            assert names <= {"PRIVATE_SEEDS"}
            given = "github.token" in str(step)
            assert not given or "keep-results.sh" in step["run"]
    assert about["defaults"]["run"]["shell"] == "bash"


def test_what_starts_each_workflow(workflows: dict[str, dict[Any, Any]]) -> None:
    # YAML 1.1 reads the key `on` as True.
    starts = {name: set(about[True]) for name, about in workflows.items()}
    assert starts == {
        "check-change": {"pull_request_target"},
        "evaluate": {"pull_request"},
        "publish": {"push", "workflow_dispatch"},
        "recompute": {"schedule", "workflow_dispatch"},
    }
    secret = {name for name, about in workflows.items() if "secrets." in str(about)}
    assert secret == {"publish"}
    assert workflows["publish"]["jobs"]["publish"]["environment"] == "board"


# The check of a change, as a host runs it


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host on which nothing is merged."""
    return host(tmp_path_factory.mktemp("host"))


MINE = "submissions/mine"
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "track": ({"track.yaml": b"limit: 1"}, ("track.yaml: only submissions/NAME/",)),
    "workflow": (
        {
            ".github/workflows/check-change.yml": b"on: push\njobs: {}\n",
            "scripts/install.sh": b"touch marker",
            "requirements.txt": b"evil",
        },
        (
            ".github/workflows/check-change.yml: only",
            "scripts/install.sh: only",
            "requirements.txt: only",
        ),
    ),
    "link": ({f"{MINE}/a": ("120000", b"/etc/passwd")}, (f"{MINE}/a: is a symbolic link",)),
    "executable": ({f"{MINE}/a": ("100755", b"#!/bin/sh")}, (f"{MINE}/a: is executable",)),
    "two": ({"submissions/other/a": b"1"}, (f"{MINE}: one of 2", "submissions/other: one of 2")),
    "hidden": ({f"{MINE}/.gitattributes": b"* filter=x"}, (f"{MINE}/.gitattributes: a hidden",)),
}


@pytest.mark.guard
@pytest.mark.parametrize("kind", REFUSED)
def test_a_change_of_anything_else_is_refused_by_what_main_has(board: Host, kind: str) -> None:
    files, lines = REFUSED[kind]
    event = board.opened({f"{MINE}/submission.yaml": b"name: mine\n", **files})
    for workflow in ("check-change", "evaluate"):
        done = board.run(workflow, workflow, event)
        assert done.code == 2, done.log
        assert all(f"mechassay: {line}" in done.log for line in lines)
        assert done.artefact is None


@pytest.mark.guard
def test_a_removal_is_taken_and_has_nothing_to_evaluate(board: Host) -> None:
    base = board.own.commit({f"{MINE}/submission.yaml": b"name: mine\n"}, board.main)
    board.own.git("push", "--quiet", "origin", f"{base}:refs/heads/other")
    event = board.opened({}, removed=(MINE,), on=base)
    event["github.event.pull_request.base.sha"] = base
    check = board.run("check-change", "check-change", event)
    assert (check.code, check.log) == (0, "note: submissions/mine: removes it\nmine\n")
    done = board.run("evaluate", "evaluate", event)
    assert done.code == 0, done.log
    assert "there is nothing to evaluate" in done.summary


# Evaluation


@pytest.mark.guard
def test_an_honest_entry_gets_its_table_and_its_result(board: Host) -> None:
    event = board.opened(submission())
    assert board.run("check-change", "check-change", event).code == 0
    done = board.run("evaluate", "evaluate", event)
    assert done.code == 0, done.log
    assert "truth-ioi" in done.summary
    assert "|" in done.summary
    assert done.artefact is not None
    told = json.loads((done.artefact / "submission.json").read_text())
    assert told["declaration"]["name"] == "mine"
    assert list(done.artefact.rglob("records/**/*.json"))


def bomb() -> bytes:
    """A zip archive of 100 kB that holds 100 MB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("truth-ioi_truth-ioi/scores.json", b"0" * 10**8)
    return stream.getvalue()


@pytest.mark.guard
def test_all_mistakes_of_a_broken_entry_are_listed(board: Host, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    files = submission("broken") | {
        "submissions/broken/submission.yaml": b"name: <b>\n",
        "submissions/broken/truth-ioi_truth-ioi/method.py": f"open({str(marker)!r}, 'w')".encode(),
        "submissions/broken/truth-ioi_gpt-9/scores.safetensors": b"not one",
        "submissions/broken/truth-ioi_other/scores.pt": pickle.dumps({"a": 1}),
        "submissions/broken/more/scores.zip": bomb(),
    }
    event = board.opened(files)
    assert board.run("check-change", "check-change", event).code == 0
    done = board.run("evaluate", "evaluate", event)
    assert done.code == 1, done.log
    for named in ("submission.yaml", "method.py", "gpt-9", "truth-ioi_other", "more"):
        assert any(named in line for line in done.log.splitlines()), named
    assert "Traceback" not in done.log
    assert not marker.exists()
    assert done.artefact is None


@pytest.mark.guard
def test_a_submission_that_is_a_pickle_or_a_bomb_alone(board: Host) -> None:
    for name, file, content in (
        ("pickle", "scores.pkl", pickle.dumps({"a": 1})),
        ("bomb", "scores.zip", bomb()),
    ):
        done = board.run(
            "evaluate", "evaluate", board.opened({f"submissions/{name}/{file}": content})
        )
        assert done.code == 1, done.log
        assert file in done.log or name in done.log


@pytest.mark.guard
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"seconds": 0.2}, "took longer than 0.2 s, the limit of time"),
        ({"memory": 0.05}, "more than 0.05 GB, the limit of memory"),
    ],
)
def test_a_cell_over_a_limit_fails_and_says_which(
    tmp_path: Path, limits: dict[str, float], said: str
) -> None:
    small = host(tmp_path, **limits)
    done = small.run("evaluate", "evaluate", small.opened(submission()))
    assert done.code == 1, done.log
    assert said in done.log + done.summary


# After the merge


def kept(board: Host) -> dict[str, bytes]:
    """The files of the branch of results."""
    board.own.git("fetch", "--quiet", "origin")
    names = board.own.git("ls-tree", "-r", "--name-only", "origin/results").splitlines()
    folder = board.folder / "kept"
    shutil.rmtree(folder, ignore_errors=True)
    board.own.git("worktree", "prune")
    board.own.git("worktree", "add", "--quiet", "--detach", str(folder), "origin/results")
    return {name: (folder / name).read_bytes() for name in names}


def private_values(pages: Path, epoch: str) -> dict[str, float]:
    """Private numbers of an epoch, by cell."""
    cells = StoredBoards.read(pages).cells
    own = [cell for cell in cells if cell.private and epoch in str(cell.conditions)]
    return {cell.full_id: cell.value for cell in own}


def no_seed(files: dict[str, bytes], *seeds: int) -> bool:
    """Whether no file has a seed in it."""
    return not any(str(seed).encode() in content for content in files.values() for seed in seeds)


@pytest.mark.guard
def test_the_life_of_a_submission(tmp_path: Path) -> None:
    board = host(tmp_path, "test, private")
    pages, seeds = tmp_path / "pages", f"2026-10 {SEED}\n"

    # Nothing is handed in yet.
    first = board.published({"github.sha": board.main})
    assert [done.code for done in first] == [0, 0, 0], first[-1].log
    assert "No submission yet" in (pages / "index.html").read_text()

    # Merges: public and private numbers, and pages.
    for name, seed in (("mine", 0), ("other", 1)):
        event = board.merged(board.opened(submission(name, seed)))
        done = board.published(event, seeds)
        assert [job.code for job in done] == [0, 0, 0], done[-1].log
        assert all(str(SEED) not in job.log for job in done)
    files = kept(board)
    assert {name.split("/")[0] for name in files} == {"mine", "other"}
    assert no_seed(files, SEED)
    assert {cell.private for cell in StoredBoards.read(pages).cells} == {False, True}
    old = private_values(pages, "2026-10")
    assert len({name.split("/")[0] for name in old}) == 2
    # Private numbers have the digits that their intervals resolve, or are withheld.
    private = [cell for cell in StoredBoards.read(pages).cells if cell.private]
    for cell in private:
        places = resolved_digits(cell.low, cell.high)
        if places is None:
            assert math.isnan(cell.value)
            continue
        # The ends are rounded too, by which half their distance may lose a place.
        assert all(round(x, places + 1) == x for x in (cell.value, cell.low, cell.high))
    assert any(math.isfinite(cell.value) for cell in private)

    # A stranger recomputes a cell from the pages alone.
    copied = tmp_path / "stranger"
    shutil.copytree(pages, copied)
    cell = next(x for x in StoredBoards.read(copied).cells if not x.private and x.column == "cpr")
    again = subprocess.run(
        [*RECOMPUTE, "circuits", cell.full_id, "--board", "."],
        cwd=copied,
        env=board.environment,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert list((copied / "recomputed").glob("*.json"))

    # So does the weekly run; its marks are kept. Nothing that was done is computed again, and the
    # pages have the marks from then on.
    weekly = board.run("recompute", "recompute", {})
    assert weekly.code == 0, weekly.log
    board.published({"github.sha": board.main}, seeds)
    marks = {name for name in kept(board) if name.startswith(".recomputed/")}
    assert marks
    assert {name: text for name, text in kept(board).items() if name not in marks} == files
    assert {file.name for file in (pages / "recomputed").iterdir()} == {
        Path(name).name for name in marks
    }

    # Another seed: earlier numbers stay as they are, in a column of their own.
    rotated = board.published({"github.sha": board.main}, f"{seeds}2026-11 {NEXT_SEED}\n")
    assert [job.code for job in rotated] == [0, 0, 0], rotated[-1].log
    assert private_values(pages, "2026-10") == old
    new = private_values(pages, "2026-11")
    assert len(new) == len(old)
    assert not set(new) & set(old)
    assert no_seed(kept(board), SEED, NEXT_SEED)


@pytest.mark.guard
def test_copies_forgeries_and_withdrawals(tmp_path: Path) -> None:
    board = host(tmp_path)
    board.published(board.merged(board.opened(submission())))
    assert {name.split("/")[0] for name in kept(board)} == {"mine"}

    # The same content under another name.
    files = {name.replace("/mine/", "/copy/"): content for name, content in submission().items()}
    files["submissions/copy/submission.yaml"] = b"name: copy\n"
    done = board.run("evaluate", "evaluate", board.opened(files))
    assert done.code == 2, done.log
    assert "mine" in done.log.splitlines()[-1]

    # Numbers that somebody changed on the branch of results, with hashes that fit.
    honest = {
        name: read_record(board.folder / "kept" / name)
        for name in kept(board)
        if "/records/" in name
    }
    assert honest
    tip = board.own.git("rev-parse", "origin/results")

    def forged(change: Callable[[Record], Record]) -> JobDone:
        """The weekly job after a change of all records that are kept."""
        texts = {name: change(record).stored_text().encode() for name, record in honest.items()}
        head = board.own.commit(texts, tip)
        board.own.git("push", "--quiet", "--force", "origin", f"{head}:refs/heads/results")
        return board.run("recompute", "recompute", {})

    raised = forged(
        lambda record: record.changed(
            measures=[x.model_copy(update={"value": x.value + 1}) for x in record.measures]
        )
    )
    assert raised.code == 2 and "the record was edited." in raised.log.splitlines()[-1], raised.log
    # With the values that such numbers follow from, only running the model again tells.
    weekly = forged(lambda record: consistent(record, 0.2))
    assert weekly.code == 1, weekly.log
    assert any(name.startswith(".recomputed/") for name in kept(board))

    # Withdrawn: its results are gone, and the other one stays.
    board.published(board.merged(board.opened(submission("other", 1))))
    rows = {cell.row for cell in StoredBoards.read(tmp_path / "pages").cells}
    event = board.merged(board.opened({}, removed=("submissions/mine",)))
    jobs = board.published(event)
    assert [job.code for job in jobs] == [0, 0, 0], jobs[-1].log
    assert {name.split("/")[0] for name in kept(board)} == {"other", ".recomputed"}
    left = {cell.row for cell in StoredBoards.read(tmp_path / "pages").cells}
    assert left < rows


@pytest.mark.guard
def test_pushes_that_are_no_pull_request(tmp_path: Path) -> None:
    board = host(tmp_path)
    # A maintainer changes what is evaluated: nobody's submission has to be checked.
    track = TRACK.format(splits="test", seconds=200, memory=8).encode()
    done = board.published(board.pushed(board.own.commit({"track.yaml": track}, board.main)))
    assert [job.code for job in done] == [0, 0, 0], done[-1].log
    assert "No submission has changed" in done[0].log
    # Both at once are refused before anything is evaluated, with the secret unused.
    mixed = {**submission(), "track.yaml": track + b"dtype: float32\n"}
    event = board.pushed(board.own.commit(mixed, board.main))
    done = board.published(event, f"2026-10 {SEED}\n")
    assert [job.code for job in done] == [2]
    assert "mechassay: track.yaml: only submissions/NAME/" in done[0].log
    # A force push has no commit to compare with.
    done = board.published({"github.event.before": "1" * 40, "github.sha": board.main})
    assert [job.code for job in done] == [2]
    # Started by hand, once somebody has looked.
    done = board.published({"github.sha": board.main})
    assert [job.code for job in done] == [0, 0, 0], done[-1].log


@pytest.mark.guard
def test_one_that_cannot_be_evaluated_does_not_stop_others(tmp_path: Path) -> None:
    board = host(tmp_path)
    files = {**submission("good"), "submissions/bad/submission.yaml": b"name: bad\n"}
    board.pushed(board.own.commit(files, board.main))
    done = board.published({"github.sha": board.main})
    assert [job.code for job in done] == [0, 0, 1], done[-1].log
    assert "Not evaluated: bad" in done[1].log
    assert {cell.place["model"] for cell in StoredBoards.read(tmp_path / "pages").cells}
    assert {name.split("/")[0] for name in kept(board)} >= {"good"}
