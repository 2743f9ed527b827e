from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechassay.service.database import Database
from mechassay.service.settings import PrivateSeeds
from mechassay.service.tokens import BadToken, submitter_of

WORDS = "leaderboard", "token"


def test_a_token_is_printed_once_alone_and_can_be_withdrawn(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    where = "--folder", tmp_path / "new"
    added = run(*WORDS, "add", "ann", *where)
    token = added.out.strip()
    assert added.code == 0 and re.fullmatch(r"ma_[\w-]{43}", token) and "cannot be" in added.err
    assert run(*WORDS, "add", "boss", "--admin", *where).code == 0
    listed = run(*WORDS, "list", *where).out
    assert re.search(r"ann  since 20\d\d-\d\d-\d\d  good\n", listed)
    assert re.search(r"boss .* good  administrator\n", listed) and token not in listed
    assert run(*WORDS, "withdraw", "ann", *where).code == 0
    assert (
        "ann" in run(*WORDS, "list", *where).out
        and "withdrawn 20" in run(*WORDS, "list", *where).out
    )
    db = Database(f"sqlite:///{tmp_path / 'new' / 'board.sqlite'}")
    with pytest.raises(BadToken):
        submitter_of(db, token)
    db.close()


def test_an_empty_list_says_how_to_begin(run: Callable[..., Any], tmp_path: Path) -> None:
    found = run(*WORDS, "list", "--folder", tmp_path)
    assert (found.code, found.out) == (0, "") and "token add NAME" in found.line


def test_the_database_of_the_environment(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHASSAY_DATABASE", f"sqlite:///{tmp_path / 'other.sqlite'}")
    assert run(*WORDS, "add", "ann").code == 0
    assert (tmp_path / "other.sqlite").exists()
    assert run(*WORDS, "list", "--folder", tmp_path / "none").out.startswith("ann")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("withdraw", "nobody"), "Unknown submitter 'nobody'"),
        (("add", "a\nb"), "printable"),
        (("list", "--database", "mysql://ann:secret@host/db"), "Unknown database 'mysql'"),
        (("list", "--database", "ann:secret@host"), "is named by an address"),
        (("list", "--database", "sqlite://"), "between processes"),
    ],
)
def test_mistakes_are_one_line(
    run: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    assert run(*WORDS, "add", "Ann", "--folder", tmp_path).code == 0
    found = run(*WORDS, *words, "--folder", tmp_path)
    assert found.code == 2 and says in found.line and "secret" not in found.err


def test_without_the_extra_the_command_says_what_to_install(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mechassay.service.database")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    found = run(*WORDS, "list", "--folder", tmp_path)
    assert found.code == 2
    assert found.line.endswith("needs the package 'sqlalchemy': pip install 'mechassay[server]'.")


def test_a_seed_is_drawn_and_not_shown(run: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "seeds"
    first, second = (run("leaderboard", "seed", file, epoch) for epoch in ("a", "b"))
    found = PrivateSeeds.read(file)
    assert found.current.epoch == "b" and "the last of 2" in second.out
    for each in found.epochs:
        assert str(each.seed) not in first.out + second.out + first.err + second.err
    again = run("leaderboard", "seed", file, "a")
    assert again.code == 2 and "has a seed of a already" in again.line
