"""Docstrings say what a function does, and do not only name another one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_docstring_only_names_another() -> None:
    """A method without a docstring has that of the method it overrides."""
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("src", "studies")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        if re.match(r"See `[\w.]+`", ast.get_docstring(node) or "")
    ]
    assert places == []
