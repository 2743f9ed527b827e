"""The entry points of the studies, as if their package were installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from cli.conftest import run as run

PROJECT = Path(__file__).parents[2] / "studies" / "pyproject.toml"
ENTRY_POINTS = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"]


# Fixtures of a module run studies too, and need the entry points before the first test.
@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    def entry_points(*, group: str, name: str | None = None) -> list[metadata.EntryPoint]:
        own = [metadata.EntryPoint(*each, group) for each in ENTRY_POINTS.get(group, {}).items()]
        others = metadata.entry_points(group=group)
        return [each for each in (*own, *others) if name in (None, each.name)]

    with pytest.MonkeyPatch.context() as patch:
        for module in ("mechassay.utils.registry", "mechassay.cli.main"):
            patch.setattr(f"{module}.entry_points", entry_points)
        yield
