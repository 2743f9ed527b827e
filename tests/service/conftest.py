"""Databases of the service: each test that takes `db` or `url` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres_server
from mechassay.service.database import Database


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
def db(url: str) -> Iterator[Database]:
    """A database with the service's tables."""
    made = Database(url)
    made.upgrade()
    yield made
    made.dispose()
