"""Registries: lazy, extensible by entry points, and every built-in name loads."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.methods import METHODS
from mechassay.errors import UnknownName
from mechassay.gym.names import FINDERS
from mechassay.models.families import FAMILIES
from mechassay.models.objectives import OBJECTIVES
from mechassay.tasks import TASKS
from mechassay.utils import registry
from mechassay.utils.registry import Registry, aliases

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


def test_names_of_the_field_stand_for_registered_ones() -> None:
    assert METHODS.full_name("EAP-IG") == "eap-ig-inputs"
    assert METHODS.full_name("eap_ig:steps=3") == "eap-ig-inputs:steps=3"
    assert METHODS.full_name("EActP") == "exact"
    assert METHODS.load("eactp") is METHODS.load("exact")
    assert METHODS.make("EAP-IG-inputs:steps=3") == METHODS.make("eap-ig-inputs:steps=3")
    assert METHODS.full_name("nap-ig") == "nap-ig", "a registered name is never an alias"
    assert METHODS.full_name("folder/eap.safetensors") == "folder/eap.safetensors"
    assert OBJECTIVES.full_name("KL-divergence") == "kl"
    assert METHODS.other_names("exact") == ["eactp", "edge-activation-patching"]
    METHODS.check("eap-ig")


@pytest.mark.parametrize("kind", [METHODS, METRICS, TASKS, FINDERS, OBJECTIVES])
def test_an_alias_stands_for_a_registered_name_and_hides_none(kind: Registry) -> None:
    table = aliases(kind.kind)
    assert table and set(table.values()) <= set(kind.built_in)
    assert not set(table) & set(kind.built_in)
    assert all(alias == alias.lower() and "_" not in alias for alias in table)


def test_a_plug_in_may_have_the_name_of_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mechassay.methods", atp="decimal:Decimal")
    assert METHODS.full_name("atp") == "atp" and METHODS.load("atp").__name__ == "Decimal"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("eap-i", "eap-ig-inputs"),
        ("information", "ifr"),
        ("edge-attribution-patchin", "eap"),
        ("exat", "exact"),
        ("eepp", "eap"),
    ],
)
def test_a_mistyped_name_is_completed_before_it_is_corrected(typed: str, meant: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{meant}'"):
        METHODS.load(typed)
