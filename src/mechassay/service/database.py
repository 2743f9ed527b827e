"""The service's database, SQLite or PostgreSQL: transactions that outlive a lost connection.

`read` and `write` run a function in one transaction. One that fails because the database was busy,
chose this transaction as the one to give way, or went away, runs again from its start, with growing
waits, until `patience` is over. A connection that is lost in a commit leaves open whether it
counted, so each change of state (`queue`, `checks`, `retry`) can run twice with the result of once.

SQLite writes ahead into a log, so that readers never wait; a writer takes the lock at its begin, so
that no transaction reads what another one changes before it writes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mechassay.errors import BadUsage, DiskFull, MechassayError, MissingExtra, first_line, one_of

try:
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import URL, Connection, create_engine, event, make_url, text
    from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
    from sqlalchemy.exc import TimeoutError as NoConnection
    from sqlalchemy.orm import Session
except ImportError as error:
    raise MissingExtra("The leaderboard's service", error.name or "", "server") from error

BACKENDS = ("postgresql", "sqlite")
MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 1_835_365_473
"""The number of the lock that PostgreSQL gives one process that upgrades."""
CONNECTIONS = 20
"""That are kept; ten more are opened while these are busy."""
BUSY_SECONDS = 15.0
"""How long one statement waits for SQLite's lock."""
PASSING_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
}
PASSING_POSTGRES = ("08", "40", "53", "57P")
"""Classes of errors that may pass: connection, rolled back, resources, shut down or starting up."""
FULL_POSTGRES = "53100"

FoundT = TypeVar("FoundT")


class DatabaseAway(MechassayError):
    """The database does not answer, or not in time; asking later may help."""


class Database:
    """A database by its address.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`.
        patience: seconds that a transaction is tried again.

    Raises:
        BadUsage: an address of another kind.
    """

    def __init__(self, url: str, *, patience: float = 30.0) -> None:
        self._url, self._patience = _address(url), patience
        sqlite = self._url.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = (
            # One connection is used by one thread at a time, but not always by the same.
            {"timeout": min(BUSY_SECONDS, patience), "check_same_thread": False}
            if sqlite
            else {"timeout": max(1, round(patience)), "tcp_keepalive": True}
        )
        self.engine = create_engine(
            self._url,
            connect_args=arguments,
            pool_pre_ping=not sqlite,
            pool_size=CONNECTIONS,
            pool_timeout=patience,
            hide_parameters=True,  # What is stored shows in no error and in no log.
        )
        if sqlite:
            event.listen(self.engine, "connect", _open_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self._writing = self.engine.execution_options(writes=True)

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)!r})"

    def read(self, work: Callable[[Session], FoundT]) -> FoundT:
        """What `work` finds, of one moment.

        Raises:
            DatabaseAway: the database did not answer in time.
        """
        return self._tried(lambda: self._transaction(work, writes=False))

    def write(self, work: Callable[[Session], FoundT]) -> FoundT:
        """What `work` returns, once all that it changed is stored; nothing is if it raises.

        Raises:
            DatabaseAway: the database did not answer in time.
            DiskFull: there is no room.
        """
        return self._tried(lambda: self._transaction(work, writes=True))

    def upgrade(self, *, new: bool = True) -> None:
        """Bring the tables to what this version needs, from nothing or from an older one.

        Args:
            new: whether a file of SQLite is made where there is none.

        Raises:
            BadUsage: a newer version made them, or there is no file and none is to be made.
        """
        if self._url.get_backend_name() == "sqlite":
            file = Path(str(self._url.database))
            if not new and not file.is_file():
                raise BadUsage(
                    f"{file}: there is no database of a service; name its --folder or --database."
                )
            file.parent.mkdir(parents=True, exist_ok=True)
        self._tried(self._upgraded)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _transaction(self, work: Callable[[Session], FoundT], *, writes: bool) -> FoundT:
        engine = self._writing if writes else self.engine
        with Session(engine, expire_on_commit=False) as session, session.begin():
            return work(session)

    def _tried(self, work: Callable[[], FoundT]) -> FoundT:
        until, wait = time.monotonic() + self._patience, 0.02
        while True:
            try:
                return work()
            except NoConnection as error:
                raise self._away(error) from error
            except (DBAPIError, OSError) as error:
                if _is_full(error):
                    raise DiskFull(f"{self}: the disk of the database is full.") from error
                if not _may_pass(error):
                    raise
                if time.monotonic() + wait > until:
                    raise self._away(error) from error
                if not _is_rollback(error):
                    self.engine.dispose()
            time.sleep(wait)
            wait = min(2 * wait, 1.0)

    def _away(self, error: Exception) -> DatabaseAway:
        cause = first_line(getattr(error, "orig", None) or error)
        return DatabaseAway(f"{self}: does not answer for {self._patience:g} s ({cause}).")

    def _upgraded(self) -> None:
        config = Config()
        # Alembic reads percent signs as references.
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self._writing.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
            self._refuse_newer(connection, ScriptDirectory.from_config(config))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _refuse_newer(self, connection: Connection, script: ScriptDirectory) -> None:
        known = {revision.revision for revision in script.walk_revisions()}
        newer = set(MigrationContext.configure(connection).get_current_heads()) - known
        if newer:
            raise BadUsage(
                f"{self}: its tables were made by a newer mechassay (revision"
                f" {', '.join(sorted(newer))}; this one knows up to {script.get_current_head()})."
                " Install that version."
            )


def _address(url: str) -> URL:
    try:
        found = make_url(url)
    except ArgumentError:
        # It may hold a password: it is not repeated.
        raise BadUsage(
            "The database is named by an address: sqlite:///FILE or"
            " postgresql://USER:PASSWORD@HOST/NAME."
        ) from None
    backend = one_of("database", found.get_backend_name(), BACKENDS)
    if backend == "sqlite" and found.database in (None, "", ":memory:"):
        raise BadUsage("The service shares its database between processes: sqlite:///FILE.")
    return found.set(drivername="sqlite" if backend == "sqlite" else "postgresql+pg8000")


def _open_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # The driver begins no transactions: `_begin_sqlite` does.
    for pragma in ("journal_mode=WAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _code(error: Exception) -> str:
    """PostgreSQL's code of an error; "" of any other."""
    given = getattr(getattr(error, "orig", None), "args", ())
    return str(given[0].get("C", "")) if given and isinstance(given[0], dict) else ""


def _sqlite_code(error: Exception) -> int | None:
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # The rest says more of the same.


def _is_full(error: Exception) -> bool:
    return _sqlite_code(error) == sqlite3.SQLITE_FULL or _code(error) == FULL_POSTGRES


def _is_rollback(error: Exception) -> bool:
    """Whether the connection is well, and only the transaction gave way."""
    return _code(error).startswith("40") or _sqlite_code(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def _may_pass(error: Exception) -> bool:
    code, sqlite = _code(error), _sqlite_code(error)
    if sqlite is not None:
        return sqlite in PASSING_SQLITE
    if code:
        return code.startswith(PASSING_POSTGRES)
    if isinstance(error, DBAPIError):
        # Without a code, the server did not answer at all.
        return isinstance(error, OperationalError) or type(error.orig).__name__ == "InterfaceError"
    return isinstance(error, ConnectionError | TimeoutError)
