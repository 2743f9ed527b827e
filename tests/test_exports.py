"""The public names: sorted, all there, and cheap to import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import mechassay
from mechassay import version

SOURCE = Path(version.__file__).parents[1]
HEAVY = ["matplotlib", "sklearn", "transformers", "typer"]


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages() -> list[ModuleType]:
    """The packages that hand on public names."""
    files = (SOURCE / "mechassay").rglob("__init__.py")
    lazy = [file.parent for file in files if "_lazy_exports(" in file.read_text("utf-8")]
    return [import_module(".".join(x.relative_to(SOURCE).parts)) for x in sorted(lazy)]


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_every_public_name_is_listed_once_and_loads(package: ModuleType) -> None:
    assert package.__all__ == sorted(set(package.__all__)) == dir(package)
    assert not [name for name in package.__all__ if getattr(package, name, None) is None]


def test_a_public_name_is_one_line_under_type_checking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_room").mkdir()
    (tmp_path / "a_room" / "shapes.py").write_text("class Circle: ...\n", "utf-8")
    (tmp_path / "a_room" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from mechassay.utils.registry import lazy_exports as _lazy_exports\n"
        "if TYPE_CHECKING:\n"
        "    from a_room import shapes as shapes\n"
        "    from a_room.shapes import Circle as Circle\n"
        "SQUARE = 4\n"
        '__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__, "SQUARE")\n',
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    room = import_module("a_room")
    assert room.__all__ == dir(room) == ["Circle", "SQUARE", "shapes"]
    assert "a_room.shapes" not in sys.modules
    assert room.Circle is room.shapes.Circle and room.SQUARE == 4
    with pytest.raises(AttributeError, match="'a_room' has no attribute 'Triangle'"):
        _ = room.Triangle


def test_nothing_of_ours_is_exported_that_is_not_in_the_list() -> None:
    ours = {
        name
        for name, value in vars(mechassay).items()
        if not name.startswith("_")
        and str(getattr(value, "__module__", "")).partition(".")[0] == "mechassay"
    }
    assert ours <= set(mechassay.__all__)


def test_the_names_that_programs_are_written_against() -> None:
    assert {"Batch", "Graph", "Pair", "circuits", "load_model", "load_task"} <= set(
        mechassay.__all__
    )
    assert mechassay.__version__ == version.__version__


def test_no_two_classes_share_a_name() -> None:
    """One noun, one class; a leading underscore makes no other noun."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted((SOURCE / "mechassay").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_importing_mechassay_is_light() -> None:
    assert (
        run(f"import mechassay, sys; print(sorted(set(sys.modules) & set({HEAVY})))").strip()
        == "[]"
    )


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(mechassay, "no_such_name")


def test_the_version_is_the_same_everywhere() -> None:
    number, root = version.__version__, Path(__file__).parents[1]
    assert re.fullmatch(r"\d+\.\d+\.\d+", number)
    assert f"\nversion: {number}\n" in (root / "CITATION.cff").read_text("utf-8")
    assert f"\n## [{number}] - " in (root / "CHANGELOG.md").read_text("utf-8")


def _documented_words() -> set[str]:
    """Words of code and in backticks on all pages but the generated ones, and of examples."""
    root = Path(__file__).parents[1]
    pages = [*root.glob("docs/**/*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    texts = [page.read_text("utf-8") for page in pages if "generated" not in page.parts]
    code = [x for text in texts for x in re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)]
    others = (*root.glob("docs/**/*.ipynb"), *root.glob("examples/**/*.py"))
    return set(re.findall(r"\w+", " ".join([*code, *(x.read_text("utf-8") for x in others)])))


def _signature_words(node: ast.stmt) -> set[str]:
    """Names in annotations of a function or of a class's public methods and fields, and errors."""
    words: set[str] = set()
    for part in [node, *(node.body if isinstance(node, ast.ClassDef) else ())]:
        notes: list[ast.expr | None] = []
        if isinstance(part, ast.FunctionDef):
            every = (*part.args.args, *part.args.kwonlyargs, part.args.vararg, part.args.kwarg)
            notes = [part.returns, *(x.annotation for x in every if x is not None)]
            raised = (ast.get_docstring(part) or "").partition("Raises:")[2]
            words |= set(re.findall(r"\w+", raised))
        elif isinstance(part, ast.AnnAssign):
            notes = [part.annotation]
        words |= {x for note in notes if note for x in re.findall(r"\w+", ast.unparse(note))}
    return words


def test_a_public_name_is_on_a_page_or_in_a_public_signature() -> None:
    """Protocols are what plug-ins implement; experiments are what commands run."""
    public = {name for package in packages() for name in package.__all__}
    mentions: defaultdict[str, set[str]] = defaultdict(set)
    protocols: set[str] = set()
    for file in sorted((SOURCE / "mechassay").rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                named = ast.unparse(
                    node.targets[0] if isinstance(node, ast.Assign) else node.target
                )
                mentions[named] |= set(re.findall(r"\w+", ast.unparse(node)))
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                mentions[node.name] |= _signature_words(node)
                if any("Protocol" in ast.unparse(x) for x in getattr(node, "bases", ())):
                    protocols.add(node.name)
    # What `run` returns holds them.
    kept = (public & (_documented_words() | protocols | {"Failure"})) | {"__version__"}
    kept |= {name for name in public if name.endswith("Experiment")}
    todo = set(kept)
    while todo:
        more = (mentions[todo.pop()] & public) - kept
        kept |= more
        todo |= more
    assert sorted(public - kept) == []
