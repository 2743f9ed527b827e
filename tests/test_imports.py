"""Imports run one way: a module knows those to its left, never those to its right.

errors, version, lazy, registry, progress, files, text, submissions, checkpoint, display -> graph,
drawing, alignment, rows, pairs, examples, interchange_pairs, interchange, curves, figures,
records, stats -> models -> objectives, training -> interventions -> features -> tasks
-> circuits -> truth -> variables -> gym -> saes -> names -> adversarial -> measurement ->
claims -> report -> runs -> leaderboard -> cli; testing may import all. Imports inside
functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from mechassay import version

PACKAGE = Path(version.__file__).parent
ORDER = [
    "errors",
    "version",
    "lazy",
    "registry",
    "progress",
    "files",
    "text",
    "submissions",
    "checkpoint",
    "display",
    "graph",
    "drawing",
    "alignment",
    "rows",
    "pairs",
    "examples",
    "interchange_pairs",
    "interchange",
    "curves",
    "figures",
    "records",
    "stats",
    "models",
    "objectives",
    "training",
    "interventions",
    "features",
    "tasks",
    "circuits",
    "truth",
    "variables",
    "gym",
    "saes",
    "names",
    "adversarial",
    "measurement",
    "claims",
    "report",
    "runs",
    "leaderboard",
    "cli",
    "testing",
]
TOP = len(ORDER)
MODULES = sorted(PACKAGE.rglob("*.py"))


def place(part: str) -> int:
    """Where a part of the package stands in the order;
    the package itself stands above all its parts.
    """
    return ORDER.index(part) if part else TOP


def imports_at_module_level(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when the module is imported, in classes, `if` and `try` too."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def parts_imported(source: str, module: tuple[str, ...]) -> list[str]:
    """The parts of the package that `source` imports at module level; "" for the package itself.

    Args:
        module: the dotted name of the module's package, as a tuple.
    """
    found: list[str] = []
    for node in imports_at_module_level(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            base = (*module[: len(module) - node.level + 1],) if node.level else ()
            whole = base + (tuple(node.module.split(".")) if node.module else ())
            # `from mechassay import graph` imports a part, not the package's own names.
            names = [
                (*whole, alias.name) if whole == ("mechassay",) and alias.name in ORDER else whole
                for alias in node.names
            ]
        found.extend(name[1] if len(name) > 1 else "" for name in names if name[0] == "mechassay")
    return found


def test_modules_import_only_what_is_left_of_them() -> None:
    wrong: list[str] = []
    for path in MODULES:
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        part = "" if inside in (("__init__",), ("__main__",)) else inside[0]
        if part and part not in ORDER:
            wrong.append(f"{part} has no place in the order of imports")
            continue
        parts = parts_imported(path.read_text("utf-8"), ("mechassay", *inside[:-1]))
        right = sorted({other for other in parts if place(other) > place(part)})
        if right:
            wrong.append(f"{'/'.join(inside)} imports {', '.join(right)}, to its right")
    assert not wrong, "\n".join(wrong)


def test_the_check_sees_every_way_of_importing() -> None:
    source = """
import numpy, mechassay.graph
from mechassay import pairs, load_model
from mechassay.circuits.methods import METHODS
from ..models.model import Model
from . import evaluate
if TYPE_CHECKING:
    from mechassay.cli import main
else:
    import mechassay.stats.intervals
try:
    from mechassay.records import Record
except ImportError:
    pass
class A:
    from mechassay.tasks import Task
def f():
    import mechassay.report
"""
    found = parts_imported(source, ("mechassay", "circuits"))
    assert sorted(found) == sorted(
        ["graph", "pairs", "", "circuits", "models", "circuits", "stats", "records", "tasks"]
    )


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by its own."""
    names: dict[str, Path] = {}
    for path in MODULES:
        parts = ("mechassay", *path.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def files_imported(source: str, known: Collection[str]) -> set[str]:
    """The modules that a file imports anywhere: in functions, for type checkers, and those that
    it names to `import_module`. What a registry names is not among them.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {x.value for x in node.args if isinstance(x, ast.Constant)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & set(known)


def test_no_two_files_import_each_other_even_by_a_detour() -> None:
    names = modules()
    # Packages whose names are lazy import theirs for type checkers alone.
    sources = {
        name: path.read_text("utf-8") for name, path in names.items() if path.stem != "__init__"
    }
    graph = {name: files_imported(source, sources) - {name} for name, source in sources.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_a_circle_is_seen() -> None:
    known = {"mechassay.a", "mechassay.b", "mechassay.c.d"}
    source = """
def f():
    from mechassay.a import x
    importlib.import_module("mechassay.b")
    import_module(name)
if TYPE_CHECKING:
    from mechassay.c import d
PAGES = Registry("page", {"e": "mechassay.e:Page"})
"""
    assert files_imported(source, {*known, "mechassay.e"}) == known
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())


def test_no_module_needs_what_only_posix_has() -> None:
    only_posix = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            module = [node.module] if isinstance(node, ast.ImportFrom) else []
            imported = (
                {str(name) for name in (*names, *module)}
                if isinstance(node, ast.Import | ast.ImportFrom)
                else set()
            )
            assert not imported & only_posix, path
