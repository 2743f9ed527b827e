"""Locals, arguments, fields and private functions say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
REFUSED = {"found", "told", "said", "shown", "each"}
"""Words that fit any value."""


def vague_names(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of every value or private function called by one of these words."""
    for node in ast.walk(ast.parse(text)):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
            name = node.name
        if name.strip("_") in REFUSED:
            yield node.lineno, name  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("for each in (): pass", ["each"]),
        ("[x for _found in ()]", ["_found"]),
        ("def f(said): return lambda told: told", ["said", "told"]),
        ("class A:\n    shown: int", ["shown"]),
        ("if found := 1: pass", ["found"]),
        ("def _told(x): pass", ["_told"]),
        ("class A:\n    @property\n    def found(self): return x.each", []),
    ],
)
def test_vague_names_are_found(text: str, names: list[str]) -> None:
    assert sorted(name for _, name in vague_names(text)) == names


def test_no_value_of_the_package_has_a_vague_name() -> None:
    places = [
        f"{path.relative_to(SRC)}:{line} {name}"
        for path in sorted(SRC.rglob("*.py"))
        for line, name in vague_names(path.read_text("utf-8"))
    ]
    assert places == []
