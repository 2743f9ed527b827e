"""Imports run one way: a room knows those before it in `ROOMS`, and no two files know each other.

Every import counts: at the top, in functions, for type checkers, and what `import_module` is given.
What a registry names is found when it is asked for, and does not count. Nor do the public names of
a room's `__init__`, which load at first use.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from mechassay import version

PACKAGE = Path(version.__file__).parent
ROOMS = (
    *("errors", "version", "utils", "prompts", "stats", "results", "models", "tasks", "runs"),
    *("interventions", "features", "circuits", "circuits.methods", "circuits.evaluation"),
    *("truth", "discovery", "causal_models", "variables", "gym", "adversarial", "measurement"),
    *("measurement.metrics", "saes", "saes.metrics", "claims", "documents", "judges"),
    *("leaderboard", "reproduction", "catalog", "planning", "hub", "cli", "testing"),
)
"""The lowest first; `docs/architecture.md` has them in the same order."""
INSIDE = {"models.families": "models"}
"""Folders that are part of another room."""
SEPARABLE = {
    "documents": ("judges.experiment", "judges.options", "cli."),
    "judges": ("reproduction.", "cli."),
    "saes": ("saes.metrics", "cli."),
    "saes.metrics": (),
    "leaderboard": ("hub", "cli."),
    "reproduction": ("cli.",),
}
"""Rooms that could leave: modules that may import them, by how their names begin."""


@cache
def modules() -> dict[str, Path]:
    """Every module by its name below the package; a folder by its own."""
    names: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def files_imported(source: str, known: Collection[str]) -> set[str]:
    """The modules, by their names below the package, that a source imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(x.value) for x in node.args if isinstance(x, ast.Constant)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports name the package"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {x if x.removeprefix("mechassay.") in known else node.module for x in names}
    inside = {name.removeprefix("mechassay.") for name in found if name.startswith("mechassay.")}
    return inside & set(known)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. The package's own names are no module of it."""
    files = modules()
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        source = path.read_text("utf-8")
        is_lazy = path.name == "__init__.py" and "_lazy_exports(" in source
        graph[name] = set() if is_lazy else files_imported(source, files) - {name}
    return graph


def room_of(module: str, path: Path) -> str:
    """The room of a module; a file at the root is a room of its own."""
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return INSIDE.get(folder, folder) or module


def test_rooms_import_only_rooms_before_them() -> None:
    files = modules()
    rooms = {name: room_of(name, path) for name, path in files.items()}
    unknown = sorted(set(rooms.values()) - {*ROOMS, "", "__main__"})
    assert not unknown, f"rooms without a place: {', '.join(unknown)}"
    wrong = [
        f"{name} imports {other}, of a later room"
        for name, others in imports().items()
        for other in sorted(others)
        if rooms[name] in ROOMS and ROOMS.index(rooms[other]) > ROOMS.index(rooms[name])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_files_import_each_other_even_by_a_detour() -> None:
    try:
        list(TopologicalSorter(imports()).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_separable_rooms_are_imported_by_nobody_else() -> None:
    files = modules()
    rooms = {name: room_of(name, path) for name, path in files.items()}
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in sorted(others)
        if rooms[other] in SEPARABLE and rooms[name] != rooms[other]
        if not name.startswith(SEPARABLE[rooms[other]])
    ]
    assert not wrong, "\n".join(wrong)


def test_every_way_of_importing_is_seen() -> None:
    known = {"a", "b", "c.d", "e", "f", "g.h", "i"}
    source = """
import numpy, mechassay.a
from mechassay.e import x
try:
    from mechassay import f, load_model
except ImportError:
    pass
def g():
    from mechassay.g import h
    importlib.import_module("mechassay.b")
    import_module(name)
if TYPE_CHECKING:
    from mechassay.c import d
PAGES = Registry("page", {"i": "mechassay.i:Page"})
"""
    assert files_imported(source, known) == known - {"i"}
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())


def test_no_module_needs_what_only_posix_has() -> None:
    only_posix = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty"}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        if not any(name in source for name in only_posix):
            continue
        for node in ast.parse(source).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            module = [node.module] if isinstance(node, ast.ImportFrom) else []
            imported = (
                {str(name) for name in (*names, *module)}
                if isinstance(node, ast.Import | ast.ImportFrom)
                else set()
            )
            assert not imported & only_posix, path
