from __future__ import annotations

import pytest
from sqlalchemy import text

from mechassay.errors import BadUsage, UnknownName
from mechassay.service.database import Database
from mechassay.service.tokens import (
    BadToken,
    new_token,
    submitter_of,
    submitters,
    withdraw_token,
)


def test_a_token_is_its_submitters(db: Database) -> None:
    ann, bob = new_token(db, "ann"), new_token(db, "bob", admin=True)
    assert ann != bob and ann.startswith("ma_") and len(ann) == 3 + 43
    assert submitter_of(db, ann).name == "ann" and not submitter_of(db, ann).admin
    assert submitter_of(db, bob).name == "bob" and submitter_of(db, bob).admin
    assert [each.name for each in submitters(db)] == ["ann", "bob"]


@pytest.mark.parametrize("change", [str.upper, lambda t: t[:-1], lambda t: t[3:], lambda _: ""])
def test_wrong_tokens_are_refused_and_not_repeated(db: Database, change: object) -> None:
    wrong = change(new_token(db, "ann"))
    with pytest.raises(BadToken, match="not known") as caught:
        submitter_of(db, wrong)
    assert not wrong or wrong not in str(caught.value)


def test_a_token_that_no_text_holds_is_refused(db: Database) -> None:
    with pytest.raises(BadToken):
        submitter_of(db, "ma_\ud800\x00ü")


def test_the_hash_of_a_token_is_no_token(db: Database) -> None:
    new_token(db, "ann")
    with pytest.raises(BadToken):
        submitter_of(db, submitters(db)[0].token_hash)


def test_a_withdrawn_token_is_refused_and_a_new_one_is_the_same_submitters(db: Database) -> None:
    old = new_token(db, "ann")
    who = submitter_of(db, old).id
    withdraw_token(db, "ann")
    withdraw_token(db, "ann")
    with pytest.raises(BadToken, match="withdrawn on 20"):
        submitter_of(db, old)
    new = new_token(db, "ann")
    assert submitter_of(db, new).id == who
    with pytest.raises(BadToken, match="not known"):
        submitter_of(db, old)


def test_one_good_token_a_submitter(db: Database) -> None:
    token = new_token(db, "ann")
    with pytest.raises(BadUsage, match="'ann' has a token already"):
        new_token(db, "ann")
    assert submitter_of(db, token).name == "ann"


def test_a_token_is_stored_nowhere(db: Database) -> None:
    token = new_token(db, "ann")
    rows = db.read(lambda session: session.execute(text("SELECT * FROM submitter")).all())
    assert "ann" in str(rows) and token not in str(rows) and token[3:] not in str(rows)


def test_who_is_not_there_cannot_be_withdrawn(db: Database) -> None:
    new_token(db, "ann")
    with pytest.raises(UnknownName, match="'anne'. Did you mean 'ann'"):
        withdraw_token(db, "anne")


@pytest.mark.parametrize("name", ["", " ann", "a\nb", "a\x1b[0m", "a" * 65, "a\u202eb", "a<b>"])
def test_names_are_short_and_printable(db: Database, name: str) -> None:
    with pytest.raises(BadUsage, match="printable"):
        new_token(db, name)
    assert submitters(db) == []
