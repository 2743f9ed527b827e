from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mechassay.service.checks import checked, claim_check, unread
from mechassay.service.database import Database
from mechassay.service.queue import claim, finish, receive, withdraw
from mechassay.service.work import Outcome
from mechassay.submissions import Problem
from submissions_made import queued, submitter, upload

WORDS = "leaderboard", "retry"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'board.sqlite'}")
    made.upgrade()
    yield made
    made.close()


def test_what_waits_again_is_said(run: Callable[..., Any], db: Database, tmp_path: Path) -> None:
    made = queued(db, submitter(db), cells=3).id
    while (held := claim(db, "w", 60.0)) is not None:
        finish(db, held, "w", Outcome("failed", message="no memory"))
    again = run(*WORDS, made, "cell 1", "--folder", tmp_path)
    assert (again.code, again.out) == (0, f"{made}: 1 cell waits again.\n")
    again = run(*WORDS, made, "--database", f"sqlite:///{tmp_path / 'board.sqlite'}")
    assert (again.code, again.out) == (0, f"{made}: 2 cells wait again.\n")
    again = run(*WORDS, made, "--folder", tmp_path)
    assert again.code == 0
    assert again.out == f"{made}: nothing to retry: no cell has failed or was skipped.\n"
    again = run(*WORDS, made, "cell 9", "--folder", tmp_path)
    assert again.code == 2 and "Unknown cell of the submission 'cell 9'" in again.line


def test_what_was_refused_is_told_apart(
    run: Callable[..., Any], db: Database, tmp_path: Path
) -> None:
    for digest, problem in (("1", Problem("a.json", "NaN")), ("2", unread("it died."))):
        made = receive(db, submitter(db, f"ann {digest}"), upload(digest))[0]
        held = claim_check(db, "w", 60.0)
        assert held is not None and checked(db, held, "w", [problem], [])
        again = run(*WORDS, made.id, "--folder", tmp_path)
        says = "received again, for a check" if digest == "2" else "refused for what its report"
        assert again.code == 0 and says in again.out and again.out.count("\n") == 1


def test_mistakes_are_one_line(run: Callable[..., Any], db: Database, tmp_path: Path) -> None:
    ann = submitter(db)
    made = queued(db, ann).id
    withdraw(db, made, ann)
    for submission, says in ((made, "is withdrawn"), ("nobody", "Unknown submission 'nobody'")):
        found = run(*WORDS, submission, "--folder", tmp_path)
        assert found.code == 2 and says in found.line


def test_an_unknown_submission_shows_those_that_there_are(
    run: Callable[..., Any], db: Database, tmp_path: Path
) -> None:
    made = queued(db, submitter(db)).id
    found = run(*WORDS, "nosuch", "--folder", tmp_path)
    assert found.code == 2 and found.line.endswith(f"Unknown submission 'nosuch'. Known: {made}.")


def test_where_there_is_no_service_none_is_made(run: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    for words in (
        [*WORDS, "nosuch"],
        ["leaderboard", "token", "withdraw", "Ann"],
    ):
        found = run(*words, "--folder", folder)
        assert found.code == 2 and "there is no database of a service" in found.line
        assert str(folder / "board.sqlite") in found.line and not folder.exists()
