"""How large each room is, and of what: `python tools/size.py [SRC]` prints a table.

Lines are physical ones. A check is an `if` that raises. A helper used once is a function of a
module, named with an underscore, that its file uses at one other place and no test names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef
COLUMNS = ("files", "lines", "docstrings", "imports", "functions", "classes", "checks", "once")


def counts_of(text: str, tests: str) -> Counter[str]:
    """The counts of one file."""
    tree = ast.parse(text)
    counts = Counter(files=1, lines=text.count("\n"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            counts["docstrings"] += length(node.body[0])
        if isinstance(node, ast.Import | ast.ImportFrom):
            counts["imports"] += length(node)
        counts["functions"] += isinstance(node, Function)
        counts["classes"] += isinstance(node, ast.ClassDef)
        if isinstance(node, ast.If):
            counts["checks"] += any(isinstance(line, ast.Raise) for line in node.body)
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("_") and node.name not in tests:
            counts["once"] += len(re.findall(rf"\b{node.name}\b", text)) == 2
    return counts


def length(node: ast.stmt) -> int:
    """The lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(source: Path) -> None:
    """Print a row a room."""
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        room = rooms.setdefault(parts[0] if len(parts) > 1 else "(root)", Counter())
        room.update(counts_of(path.read_text("utf-8"), tests))
    rooms["all"] = sum(rooms.values(), Counter())
    print("".join(f"{name:>12}" for name in ("room", *COLUMNS)))
    for name, counts in rooms.items():
        print("".join(f"{cell:>12}" for cell in (name, *(counts[x] for x in COLUMNS))))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "mechassay")
