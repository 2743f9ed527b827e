"""Writes the pages that are made from code into docs/generated: python tools/pages.py.

Five kinds: the API reference, one page a package; the command line; the changelog; notebooks, run
and with their figures; and the project's own board, of the runs in docs/board/runs.zip. `make docs`
writes them before it builds the site. Git ignores them.
"""

from __future__ import annotations

import ast
import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mechassay"
TARGET = ROOT / "docs" / "generated"
NOTEBOOKS = ROOT / "docs" / "notebooks"
RUNS = ROOT / "docs" / "board" / "runs.zip"
ALONE = "basics"
"""The page of the modules that stand in no package."""
ASIDE = {"cli", "__main__", "version", "migrations"}
"""What has no API page: the command line has a page of its own, migrations are for Alembic."""


def modules() -> dict[str, list[Path]]:
    """The modules of each page of the API reference."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        if not ASIDE & set(inside):
            found.setdefault(".".join(inside[:-1]) or ALONE, []).append(path)
    return found


def api_page(name: str, paths: list[Path]) -> str:
    """One package: what it is for, a list of its modules, and each module's names."""
    if name == ALONE:
        title, about = "mechassay", docstring(PACKAGE / "__init__.py")
    else:
        folder = PACKAGE.joinpath(*name.split("."))
        title, about = f"mechassay.{name}", docstring(folder / "__init__.py")
    shown = [path for path in paths if path.stem != "__init__" and docstring(path)]
    listed = [f"| [`{path.stem}`][{dotted(path)}] | {first_line(path)} |" for path in shown]
    directives = [f"::: {dotted(path)}\n" for path in shown]
    table = ["| module | about |", "| --- | --- |", *listed]
    names = public_names(PACKAGE if name == ALONE else PACKAGE.joinpath(*name.split(".")))
    links = ", ".join(
        f"[`{public}`][{module}.{public}]" if is_described(module, public) else f"`{public}`"
        for public, module in names.items()
    )
    public = [f"Public names: {links}.\n"] if names else []
    return "\n".join([f"# {title}\n", f"{about}\n", *public, *table, "", *directives])


def public_names(folder: Path) -> dict[str, str]:
    """The names that a package hands on, and the module where each is defined."""
    names: dict[str, str] = {}
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mechassay."):
            module = str(node.module)
            inside = PACKAGE.joinpath(*module.split(".")[1:])
            # A name may be handed on twice.
            further = public_names(inside) if inside.is_dir() and inside != folder else {}
            handed_on = (alias.name for alias in node.names if alias.name != "lazy_exports")
            names |= {name: further.get(name, module) for name in handed_on}
    return names


def is_described(module: str, name: str) -> bool:
    """Whether a module defines a class or function of this name, which the reference describes."""
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    body = ast.parse(path.read_text("utf-8")).body if path.is_file() else []
    kinds = (ast.ClassDef, ast.FunctionDef)
    return any(isinstance(node, kinds) and node.name == name for node in body)


def dotted(path: Path) -> str:
    """The name that a module is imported by."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def docstring(path: Path) -> str:
    """That of a module."""
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


def first_line(path: Path) -> str:
    """The first paragraph of a module's docstring, for a table; tags in it are text."""
    return cell(docstring(path).split("\n\n")[0])


def cell(text: str) -> str:
    """A text within one cell of a table."""
    one_line = " ".join(text.split())
    return one_line.replace("|", r"\|").replace("<", "&lt;").replace("[", r"\[")


def command_page() -> str:
    """Every command with its arguments, options, defaults and help."""
    from typer.main import get_command

    from mechassay.cli.main import GROUPS, app_for

    line = get_command(app_for(list(GROUPS)))
    intro = "`mechassay COMMAND --help` prints the same. An option that may be repeated has a `+`."
    return "\n".join(["# Command line\n", intro, "", *sections("mechassay", line, 1)])


def sections(name: str, command: Any, level: int) -> Iterator[str]:
    """The section of a command, and those of the commands in it."""
    if level > 1:
        yield f"{'#' * level} {name}\n"
    yield f"{' '.join((command.help or '').split())}\n"
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    shown = [each for each in shown if not each.name.endswith("_completion") or level == 1]
    if shown:
        yield "| argument or option | default | meaning |"
        yield "| --- | --- | --- |"
        yield from (row(parameter) for parameter in shown)
        yield ""
    # Single commands first, so that they do not seem to belong to the group before them.
    for word, inner in getattr(command, "commands", {}).items():
        yield from sections(f"{name} {word}", inner, level + 1)


def row(parameter: Any) -> str:
    """A parameter in the table of its command."""
    if parameter.param_type_name == "argument":
        spelled = parameter.name.upper()
    else:
        spelled = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    more = " +" if getattr(parameter, "multiple", False) else ""
    return f"| `{spelled}`{more} | {default(parameter)} | {cell(parameter.help or '')} |"


def default(parameter: Any) -> str:
    """A parameter's default as it would be typed; empty where nothing stands for it."""
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or value == "" or value == []:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


def run_notebook(path: Path, parameters: str = "") -> Any:
    """A notebook with the outputs of a new run, in a copy of its folder.

    Args:
        parameters: what the cell with the tag "parameters" says, if not its own.

    Raises:
        CellExecutionError: a cell raised an error.
    """
    from tempfile import TemporaryDirectory

    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for part in notebook.cells:
        if parameters and "parameters" in part.metadata.get("tags", ()):
            part.source = parameters
    with TemporaryDirectory() as temporary:
        folder = shutil.copytree(path.parent, Path(temporary) / "notebooks")
        about = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=about).execute()
    return notebook


def notebook_page(path: Path, target: Path) -> str:
    """A run notebook as Markdown; figures that are pixels are written beside it."""
    parts: list[str] = []
    for number, part in enumerate(run_notebook(path).cells):
        if part.cell_type == "markdown":
            parts.append(part.source)
            continue
        parts.append(f"```python\n{part.source}\n```")
        for output in part.get("outputs", []):
            parts.append(shown(output, target.with_name(f"{target.stem}-{number}.png")))
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: Any, figure: Path) -> str:
    """One output of a cell: a figure, HTML or text; without progress and standard error."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```" if output.name == "stdout" else ""
    data = output.get("data", {})
    if "image/png" in data:
        figure.write_bytes(base64.b64decode(data["image/png"]))
        return f"![What the cell above draws]({figure.name})"
    if "image/svg+xml" in data:
        # Within the page, whose colour its text has: a dark page would hide that of a file.
        named = '<svg role="img" aria-label="What the cell above draws"'
        drawn = " ".join(data["image/svg+xml"].replace("<svg", named, 1).split())
        return f'<div class="figure" data-search-exclude>{drawn}</div>'
    if "text/html" in data:
        return "" if "<progress" in data["text/html"] else data["text/html"]
    return f"```text\n{data['text/plain']}\n```" if "text/plain" in data else ""


def write_board(target: Path) -> None:
    """The pages of the project's own board, with all that its cells are computed again from."""
    from tempfile import TemporaryDirectory
    from zipfile import ZipFile

    from mechassay.leaderboard import BoardsFolder

    with TemporaryDirectory() as runs, ZipFile(RUNS) as archive:
        archive.extractall(runs)
        boards = BoardsFolder.of(Path(runs), target)
        boards.keep_artefacts()
        boards.write()


def write(target: Path = TARGET) -> None:
    """All pages, in place of those of an earlier call."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "api").mkdir(parents=True)
    for name, paths in modules().items():
        (target / "api" / f"{name}.md").write_text(api_page(name, paths), "utf-8")
    (target / "cli.md").write_text(command_page(), "utf-8")
    shutil.copy(ROOT / "CHANGELOG.md", target / "changelog.md")
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        page = target / f"{notebook.stem}.md"
        page.write_text(notebook_page(notebook, page), "utf-8")
    write_board(target / "board")


if __name__ == "__main__":
    write()
