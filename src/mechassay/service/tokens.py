"""Tokens of submitters: shown once, kept as hashes, withdrawn by name.

A token is 32 random bytes behind "ma_". Nobody guesses it from its hash, so SHA-256 is enough:
salts and slow hashes are for passwords that people choose.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.service.database import Database
from mechassay.service.tables import Submitter, now

PREFIX = "ma_"
BYTES = 32
LONGEST_NAME = 64
MARKUP = frozenset("<>&\"'")
"""What means something in a page; names are text there in any case."""


class BadToken(MechassayError):
    """A token that is not known, or no longer good."""

    usage = True


def new_token(db: Database, name: str, *, admin: bool = False) -> str:
    """Make a token for a submitter; this text is stored nowhere, and cannot be shown again.

    A submitter whose token was withdrawn gets a new one, and keeps what was submitted.

    Raises:
        BadUsage: the submitter has a token that is good, or the name is none.
    """
    plain = name.isprintable() and name == name.strip() and not MARKUP.intersection(name)
    if not (plain and 0 < len(name) <= LONGEST_NAME):
        raise BadUsage(
            f"The name of a submitter is 1 to {LONGEST_NAME} printable characters but <, >, & and"
            f" quotes, with no space at its ends; got {name[: LONGEST_NAME + 1]!r}."
        )
    token = PREFIX + secrets.token_urlsafe(BYTES)
    time = now()

    def work(session: Session) -> None:
        found = session.scalar(select(Submitter).filter_by(name=name).with_for_update())
        if found is None:
            found = Submitter(name=name, created=time)
        elif found.withdrawn is None and found.token_hash != _hash(token):
            raise BadUsage(f"{name!r} has a token already: withdraw it to make a new one.")
        found.token_hash, found.withdrawn, found.admin = _hash(token), None, admin
        session.add(found)

    db.write(work)
    return token


def submitter_of(db: Database, token: str) -> Submitter:
    """Whose token it is.

    Raises:
        BadToken: it is nobody's, or was withdrawn.
    """
    wanted = _hash(token)
    found = db.read(lambda session: session.scalar(select(Submitter).filter_by(token_hash=wanted)))
    # The database compares hashes, whose first characters tell nothing of a token's.
    if found is None or not hmac.compare_digest(found.token_hash, wanted):
        raise BadToken("The token is not known here.")
    if found.withdrawn is not None:
        raise BadToken(f"The token was withdrawn on {found.withdrawn:%Y-%m-%d}.")
    return found


def withdraw_token(db: Database, name: str) -> None:
    """Make a submitter's token worthless; what was submitted stays.

    Raises:
        UnknownName: there is no such submitter.
    """
    time = now()

    def work(session: Session) -> None:
        found = session.scalar(select(Submitter).filter_by(name=name).with_for_update())
        if found is None:
            raise UnknownName("submitter", name, session.scalars(select(Submitter.name)))
        found.withdrawn = found.withdrawn or time

    db.write(work)


def submitters(db: Database) -> list[Submitter]:
    """All submitters, by name."""
    return db.read(
        lambda session: list(session.scalars(select(Submitter).order_by(Submitter.name)))
    )


def _hash(token: str) -> str:
    # What somebody sends need not be text; it is refused like any other wrong token.
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
