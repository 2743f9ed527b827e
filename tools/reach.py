"""Definitions of the package that neither a command nor anything documented reaches.

    python tools/reach.py        print them, and exit with 1 if there are any

A definition is a function, method, class or constant. It is reached if its name occurs in code that
is reached; a method needs its class besides. Docstrings and comments do not count. Reached from the
start are the command line, studies, tools, benchmarks and examples, the code and the names in
backticks of README and docs, and what Python or a library calls by a fixed name. As names are
compared and not objects, what is printed is unreached for certain, and some of what is unreached is
not printed. Tests do not count: what only a test calls belongs to the tests. `EXCEPTIONS` are kept
for another reason.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/mechassay"
EXCEPTIONS: dict[str, str] = {}
"""Definitions that are kept, as printed, with the reason."""
WORD = re.compile(r"[A-Za-z_]\w*")
BY_PROTOCOL = re.compile(
    r"__\w+__|_repr_\w+|visit_\w+|handle_\w+|_save_to_state_dict|list_commands"
)
"""Methods that Python, IPython, `ast`, `html.parser`, torch and typer call."""
CALLED_BY_DECORATOR = re.compile(r"validator|serializer|implements|command|callback")
LONGEST_NAME = 200
"""Longer strings are prose, not names for registries or getattr."""


@dataclass(frozen=True)
class Definition:
    """A function, method, class or constant, and the words of its code."""

    file: str
    owner: str
    name: str
    n_lines: int
    words: frozenset[str]
    decorators: str = ""
    is_function: bool = False

    @property
    def title(self) -> str:
        return f"{self.file}:{self.owner and self.owner + '.'}{self.name}"


def words_of(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Names in code, and words in its short strings."""
    words: set[str] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                words.add(name)
            case ast.alias(name=name):
                words.update(name.split("."))
            case ast.Constant(value=str(text)) if len(text) < LONGEST_NAME:
                words.update(WORD.findall(text))
            case _:
                pass
    return frozenset(words)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string that stands alone, as docstrings do."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def definitions_of(file: str, tree: ast.Module) -> tuple[list[Definition], frozenset[str]]:
    """The definitions of a module, and the words of the rest of it but its imports."""
    found: list[Definition] = []
    rest: list[ast.AST] = []

    def add(node: ast.AST, owner: str, name: str, words: Iterable[ast.AST]) -> None:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(x.lineno for x in decorators)])  # pyright: ignore
        n_lines = node.end_lineno - first + 1  # pyright: ignore
        found.append(
            Definition(
                file,
                owner,
                name,
                n_lines,
                words_of(words),
                " ".join(map(ast.unparse, decorators)),
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef),
            )
        )

    def visit(node: ast.AST, owner: str) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                body = [x for x in node.body if not is_text(x)]
                returns = [node.returns] if node.returns else []
                add(node, owner, node.name, [*body, node.args, *returns, *node.decorator_list])
            case ast.ClassDef():
                inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                own = [x for x in node.body if not isinstance(x, inner) and not is_text(x)]
                add(
                    node,
                    owner,
                    node.name,
                    [*own, *node.bases, *node.decorator_list, *node.keywords],
                )
                for part in (x for x in node.body if isinstance(x, inner)):
                    visit(part, node.name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name != "__all__":
                    parts = (node.value, getattr(node, "annotation", None))
                    add(node, owner, name, [x for x in parts if x])
            case ast.Import() | ast.ImportFrom():
                pass
            case _ if not is_text(node):
                rest.append(node)
            case _:
                pass

    for node in tree.body:
        visit(node, "")
    return found, words_of(rest)


def read_package() -> tuple[list[Definition], dict[str, frozenset[str]]]:
    """All definitions, and the other words of each file. What a room hands on does not count."""
    found: list[Definition] = []
    rest: dict[str, frozenset[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file, text = path.relative_to(PACKAGE).as_posix(), path.read_text("utf-8")
        own, rest[file] = definitions_of(file, ast.parse(text))
        if path.name == "__init__.py":
            handed_on = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name)]
            rest[file] = words_of(handed_on)
        found += own
    return found, rest


def documented() -> Iterator[str]:
    """Words of code and names in backticks in README and docs, and of code outside the package."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        if "generated" in page.parts:
            continue
        text = page.read_text("utf-8")
        for code in re.findall(r"```(?:python|py|pycon|toml)\n(.*?)```", text, flags=re.DOTALL):
            yield from WORD.findall(code)
        for code in re.findall(r"`([^`\n]+)`", text):
            yield from WORD.findall(code)
    for notebook in [*(ROOT / "docs").rglob("*.ipynb"), *(ROOT / "examples").rglob("*.ipynb")]:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield from WORD.findall("".join(cell["source"]))
    for folder in ("studies", "tools", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__):
                yield from words_of([ast.parse(path.read_text("utf-8"))])


def unreached() -> list[Definition]:
    """Definitions that no root reaches, the longest first."""
    definitions, rest = read_package()
    by_name: dict[str, list[Definition]] = defaultdict(list)
    for definition in definitions:
        by_name[definition.name].append(definition)
    names = {*documented(), "main"}
    reached: set[Definition] = set()
    files: set[str] = set()
    classes: set[tuple[str, str]] = set()
    todo = [
        x
        for x in definitions
        if x.file.startswith("cli/") and CALLED_BY_DECORATOR.search(x.decorators)
    ]
    names.update(*(rest[file] for file in rest if file.startswith("cli/")))
    while True:
        while todo:
            definition = todo.pop()
            reached.add(definition)
            names |= definition.words
            if not definition.is_function:
                classes.add((definition.file, definition.name))
            if definition.file not in files:
                files.add(definition.file)
                names |= rest[definition.file]
        for definition in definitions:
            named = definition.name in names
            if definition.owner:
                by_library = BY_PROTOCOL.fullmatch(definition.name)
                by_library = by_library or CALLED_BY_DECORATOR.search(definition.decorators)
                named = (definition.file, definition.owner) in classes and bool(named or by_library)
            elif BY_PROTOCOL.fullmatch(definition.name):
                named = True
            if named and definition not in reached:
                todo.append(definition)
        if not todo:
            break
    return sorted(set(definitions) - reached, key=lambda x: (-x.n_lines, x.title))


def main() -> None:
    """Print what is unreached, and which exceptions are none."""
    found = {definition.title: definition.n_lines for definition in unreached()}
    for title, n_lines in found.items():
        if title not in EXCEPTIONS:
            print(f"{n_lines:5} lines  {title}")
    for title in EXCEPTIONS.keys() - found.keys():
        print(f"{title} is reached, and is no exception.")
    if found.keys() != EXCEPTIONS.keys():
        sys.exit("Nothing reaches these: remove them, document them, or move them to the tests.")


if __name__ == "__main__":
    main()
