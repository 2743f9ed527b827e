"""Databases of the service: each test that takes `db` or `url` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import postgres_server
from mechassay.service.database import Database
from queue_seen import Forgetful


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    """A PostgreSQL server of this session."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with postgres_server.postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.web)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'board.sqlite'}"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def database() -> Iterator[Callable[..., Database]]:
    """Opens databases, which are closed when the test is over."""
    made: list[Database] = []

    def opened(url: str, patience: float = 30.0) -> Database:
        made.append(Database(url, patience=patience))
        return made[-1]

    yield opened
    for each in made:
        each.close()


@pytest.fixture
def db(url: str, database: Callable[..., Database]) -> Database:
    """A database with the service's tables."""
    made = database(url)
    made.upgrade()
    return made


@pytest.fixture
def lost_connections() -> Iterator[None]:
    """For tests that break connections: pg8000 leaves their sockets to the garbage collector."""
    yield
    gc.collect()


@pytest.fixture
def forgetful(db: Database, url: str) -> Iterator[Forgetful]:
    """The same database, over a connection that can be lost."""
    made = Forgetful(url)
    yield made
    made.close()
