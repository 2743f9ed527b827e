"""Studies as if their package were installed: its entry points, as its pyproject.toml has them."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from cli.conftest import run as run

PROJECT = Path(__file__).parents[2] / "studies" / "pyproject.toml"
ENTRY_POINTS = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str, name: str | None = None) -> list[metadata.EntryPoint]:
        own = [metadata.EntryPoint(*each, group) for each in ENTRY_POINTS.get(group, {}).items()]
        others = metadata.entry_points(group=group)
        return [each for each in (*own, *others) if name in (None, each.name)]

    for module in ("mechassay.utils.registry", "mechassay.cli.main"):
        monkeypatch.setattr(f"{module}.entry_points", entry_points)
