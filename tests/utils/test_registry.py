"""Registries: lazy, extensible by entry points, and every built-in name loads."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from mechassay.circuits.methods import METHODS
from mechassay.errors import UnknownName
from mechassay.models.families import FAMILIES
from mechassay.models.objectives import OBJECTIVES
from mechassay.tasks import TASKS
from mechassay.utils import registry
from mechassay.utils.registry import Registry

BUILT_IN = [
    (kind, name) for kind in (METHODS, OBJECTIVES, FAMILIES, TASKS) for name in kind.built_in
]


def install(monkeypatch: pytest.MonkeyPatch, group: str, **plugins: str) -> None:
    """Pretend that other packages registered `plugins` in one group, and nothing in others."""
    points = [EntryPoint(name, value, group) for name, value in plugins.items()]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [point for point in points if point.group == group]
    )


def test_every_built_in_name_loads() -> None:
    assert not [(kind.kind, name) for kind, name in BUILT_IN if not callable(kind.load(name))]


@pytest.mark.parametrize("name", METHODS.built_in)
def test_an_outline_is_what_the_class_says(name: str) -> None:
    assert METHODS.outline(name) == (METHODS.about(name), METHODS.settings(name))


def test_a_name_is_loaded_only_when_asked_for() -> None:
    shapes = Registry("shape", {"good": "collections:OrderedDict", "bad": "no.such.module:Thing"})
    assert shapes.names() == ["bad", "good"]
    assert shapes.load("good").__name__ == "OrderedDict"
    with pytest.raises(ModuleNotFoundError):
        shapes.load("bad")


def test_an_unknown_name_names_the_kind_and_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Unknown method 'eep'\. Did you mean 'eap'\?"):
        METHODS.load("eep")


def test_other_packages_add_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mechassay.shapes", circle="fractions:Fraction")
    shapes = Registry("shape", {"square": "decimal:Decimal"})
    assert shapes.names() == ["circle", "square"]
    assert shapes.load("circle").__name__ == "Fraction"
    assert Registry("other").names() == []


def test_a_built_in_name_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mechassay.shapes", square="fractions:Fraction")
    assert Registry("shape", {"square": "decimal:Decimal"}).load("square").__name__ == "Decimal"


def test_a_built_in_name_is_found_without_reading_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []

    def entry_points(group: str) -> list[EntryPoint]:
        reads.append(group)
        return []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    shapes = Registry("shape", {"square": "decimal:Decimal"})
    assert "square" in shapes
    assert shapes.load("square").__name__ == "Decimal"
    assert not reads
    assert "circle" not in shapes
    assert None not in shapes
    assert set(reads) == {"mechassay.shapes"}


def test_an_irregular_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mechassay.families", mine="decimal:Decimal")
    assert "mine" in FAMILIES.names()
    assert "mine" not in METHODS.names()
