from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, StatementError

from mechassay.errors import BadUsage, DiskFull, UnknownName
from mechassay.service.database import MIGRATIONS, Database, DatabaseAway
from mechassay.service.tables import Evaluation, Receipt, ServiceTable, Submission, Submitter, now
from postgres_server import PostgresServer

Opened = Callable[..., Database]


def lost(test: Callable[..., None]) -> Callable[..., None]:
    """Of a test that breaks connections to PostgreSQL."""
    marks = pytest.mark.web, pytest.mark.usefixtures("lost_connections")
    for mark in (*marks, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")):
        test = mark(test)
    return test


def somebody(name: str = "ann") -> Submitter:
    return Submitter(name=name, token_hash=name, created=now(), admin=False)


def names(db: Database) -> list[str]:
    return db.read(lambda session: sorted(row.name for row in session.query(Submitter)))


def test_migrations_make_the_tables_that_the_code_describes(db: Database) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, ServiceTable.metadata) == []


def test_an_upgrade_twice_changes_nothing(db: Database) -> None:
    db.write(lambda session: session.add(somebody()))
    db.upgrade()
    assert names(db) == ["ann"]


def test_what_an_older_version_received_is_kept_and_counts(url: str, database: Opened) -> None:
    db, config = database(url), Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with db.engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO submitter VALUES (1, 'ann', 'h', '2026-11-23 10:00', NULL, :no)"),
            {"no": False},
        )
        connection.execute(
            text(
                "INSERT INTO submission (id, submitter_id, kind, name, declaration, digest, file,"
                " n_bytes, state, report, attempts, created) VALUES"
                " ('x', 1, '', 'n', '{}', 'd', 'f', 1, 'received', '[]', 2, '2026-11-23 10:00')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO evaluation (id, submission_id, job, cell, split, state, attempts)"
                " VALUES (1, 'x', 0, 'm--t/eap', 'test', 'waiting', 0)"
            )
        )
    db.upgrade()
    evaluation = db.read(lambda session: session.get_one(Evaluation, 1))
    assert (evaluation.called, evaluation.title) == (None, "m--t/eap")
    (receipt,) = db.read(lambda session: session.query(Receipt).all())
    assert (receipt.submitter_id, receipt.begun) == (1, 0)
    found = db.read(lambda session: session.get_one(Submission, "x"))
    assert (found.attempts, found.deaths, found.created) == (2, 0, receipt.created)


def test_many_upgrades_at_once_make_the_tables_once(url: str, database: Opened) -> None:
    errors: list[Exception] = []

    def upgrade() -> None:
        try:
            database(url).upgrade()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert "submission" in inspect(database(url).engine).get_table_names()


def test_tables_of_a_newer_version_are_refused_and_left_alone(db: Database) -> None:
    db.write(lambda session: session.execute(text("UPDATE alembic_version SET version_num='9999'")))
    with pytest.raises(BadUsage, match=r"newer mechassay \(revision 9999; .* up to 0003\)"):
        db.upgrade()
    stored = db.read(lambda s: s.execute(text("SELECT version_num FROM alembic_version")).scalar())
    assert stored == "9999"


def test_nothing_of_a_transaction_that_raises_is_stored(db: Database) -> None:
    def work(session: object) -> None:
        session.add(somebody())
        session.flush()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        db.write(work)
    assert names(db) == []


def test_a_mistake_is_not_tried_again(db: Database) -> None:
    calls = []

    def work(session: object) -> None:
        calls.append(1)
        session.add_all([somebody(), somebody()])

    with pytest.raises(IntegrityError) as caught:
        db.write(work)
    assert calls == [1]
    assert "hidden" in str(caught.value) and "ann" not in str(caught.value).partition("[SQL")[2]


def test_rows_refer_to_rows_that_are_there(db: Database) -> None:
    lost = Evaluation(submission_id="nobody", job=0, cell="c", split="test")
    # pg8000 has no class of its own for this one.
    with pytest.raises(DBAPIError, match=r"(?i)foreign key"):
        db.write(lambda session: session.add(lost))


def test_times_come_back_as_they_were_in_utc(db: Database) -> None:
    here = datetime(2026, 3, 1, 12, 30, 0, 123456, timezone(timedelta(hours=5)))
    db.write(lambda s: s.add(Submitter(name="x", token_hash="x", created=here, admin=True)))
    found = db.read(lambda session: session.query(Submitter).one())
    assert found.created == here and found.created.tzinfo is UTC
    assert found.created.hour == 7 and found.withdrawn is None


def test_times_without_a_zone_are_refused(db: Database) -> None:
    naive = Submitter(name="x", token_hash="x", created=datetime(2026, 3, 1), admin=True)
    with pytest.raises(StatementError, match="zone"):
        db.write(lambda session: session.add(naive))


def test_a_count_of_bytes_may_be_large(db: Database) -> None:
    def work(session: object) -> None:
        session.add(somebody())
        session.flush()
        row = Submission(submitter_id=1, name="n", declaration={"a": [1, None]}, digest="d")
        row.file, row.n_bytes, row.created = "f", 2**40, now()
        session.add(row)

    db.write(work)
    found = db.read(lambda session: session.query(Submission).one())
    assert (found.n_bytes, found.declaration, found.state) == (2**40, {"a": [1, None]}, "received")
    assert len(found.id) == 16 and found.id.isalnum()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(BadUsage, match="between processes"):
        Database(url)


def test_other_databases_are_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="'mysql'.*postgresql, sqlite"):
        Database("mysql://root:secret@host/db")


def test_what_is_no_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadUsage) as caught:
        Database("ann:secret@host")
    assert "secret" not in str(caught.value)


def test_a_password_is_never_shown(database: Opened) -> None:
    db = database("postgresql://ann:secret@127.0.0.1:1/db", patience=0.2)
    assert "secret" not in repr(db) and "ann" in repr(db)
    with pytest.raises(DatabaseAway) as caught:
        names(db)
    assert "secret" not in str(caught.value) and "127.0.0.1" in str(caught.value)


def held(file: Path) -> sqlite3.Connection:
    """A connection that holds SQLite's lock."""
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.fixture
def file(tmp_path: Path, database: Opened) -> Path:
    path = tmp_path / "board.sqlite"
    database(f"sqlite:///{path}").upgrade()
    return path


def test_sqlite_waits_for_a_writer_and_readers_do_not(file: Path, database: Opened) -> None:
    db, other = database(f"sqlite:///{file}", patience=20.0), held(file)
    assert names(db) == []
    threading.Timer(0.4, other.rollback).start()
    begun = time.monotonic()
    db.write(lambda session: session.add(somebody()))
    assert time.monotonic() - begun > 0.3
    assert names(db) == ["ann"]


def test_patience_with_sqlite_ends_in_one_line(file: Path, database: Opened) -> None:
    db, other = database(f"sqlite:///{file}", patience=0.3), held(file)
    with pytest.raises(DatabaseAway, match="does not answer for 0.3 s .*locked"):
        db.write(lambda session: session.add(somebody()))
    other.close()
    db.write(lambda session: session.add(somebody()))
    assert names(db) == ["ann"]


def test_a_full_disk_is_one_line_and_nothing_is_lost(file: Path, database: Opened) -> None:
    db = database(f"sqlite:///{file}")
    db.write(lambda session: session.add(somebody("before")))

    def work(session: object) -> None:
        pages = session.execute(text("PRAGMA page_count")).scalar()
        session.execute(text(f"PRAGMA max_page_count={pages}"))
        session.add_all(somebody(f"{i:050}") for i in range(2000))

    with pytest.raises(DiskFull, match="the disk of the database is full"):
        db.write(work)
    assert names(db) == ["before"]


def test_tables_that_are_not_there_are_no_reason_to_wait(url: str, database: Opened) -> None:
    begun = time.monotonic()
    with pytest.raises(DBAPIError, match="submitter"):
        names(database(url))
    assert time.monotonic() - begun < 5


@lost
def test_postgresql_that_is_killed_and_comes_back_loses_nothing(
    postgres: PostgresServer, database: Opened
) -> None:
    db = database(postgres.new_database(), patience=60.0)
    db.upgrade()
    db.write(lambda session: session.add(somebody("before")))
    postgres.kill()
    back = threading.Timer(1.0, postgres.start)
    back.start()
    db.write(lambda session: session.add(somebody("meanwhile")))
    back.join()
    assert names(db) == ["before", "meanwhile"]


@lost
def test_postgresql_that_is_away_is_one_line_in_time(
    postgres: PostgresServer, database: Opened
) -> None:
    db = database(postgres.new_database(), patience=0.5)
    db.upgrade()
    postgres.kill()
    try:
        begun = time.monotonic()
        with pytest.raises(DatabaseAway, match="does not answer for 0.5 s") as caught:
            names(db)
        assert time.monotonic() - begun < 5
        assert postgres.password not in str(caught.value)
    finally:
        postgres.start()
    assert names(db) == []


@lost
def test_postgresql_that_breaks_a_connection_in_a_transaction(
    postgres: PostgresServer, database: Opened
) -> None:
    db = database(postgres.new_database(), patience=30.0)
    db.upgrade()
    calls = []

    def work(session: object) -> None:
        session.add(somebody())
        session.flush()
        calls.append(1)
        if len(calls) == 1:
            postgres.kill()
            postgres.start()

    db.write(work)
    assert names(db) == ["ann"] and len(calls) == 2


@pytest.mark.web
def test_postgresql_without_such_a_database_is_no_reason_to_wait(
    postgres: PostgresServer, database: Opened
) -> None:
    with pytest.raises(ProgrammingError, match="nothing"):
        names(database(postgres.url("nothing"), patience=60.0))
