"""Draws docs/images/architecture.svg from the imports of the code: python tools/architecture.py."""

from __future__ import annotations

import ast
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mechassay"
INK, LINE, FILL = "#1f2328", "#b9c2cc", "#eef3f8"


def parts() -> dict[str, list[Path]]:
    """Files by the part of the package that they belong to; small modules stand together."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).parts
        name = inside[0] if len(inside) > 1 else Path(inside[0]).stem
        if name not in ("__init__", "version"):
            found.setdefault(name, []).append(path)
    return found


def imports(files: dict[str, list[Path]]) -> dict[str, set[str]]:
    """The parts that each part imports, anywhere in its files."""
    graph: dict[str, set[str]] = {}
    for name, paths in files.items():
        modules: set[str] = set()
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module)
                elif isinstance(node, ast.Import):
                    modules |= {alias.name for alias in node.names}
        ours = {module.split(".")[1] for module in modules if module.startswith("mechassay.")}
        graph[name] = {part for part in ours if part in files and part != name}
    return graph


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """Each part stands one floor above the highest that it imports."""
    level: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in level:
            level[name] = 1 + max((of(other) for other in graph[name]), default=-1)
        return level[name]

    for name in graph:
        of(name)
    return level


def needed(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that no detour stands for."""

    def reach(name: str) -> set[str]:
        found: set[str] = set()
        for other in graph[name]:
            found |= {other} | reach(other)
        return found

    below = {name: reach(name) for name in graph}
    return {
        (name, other)
        for name, others in graph.items()
        for other in others
        if not any(other in below[between] for between in others - {other})
    }


def draw() -> Path:
    """The picture."""
    files = parts()
    graph = imports(files)
    level = floors(graph)
    rows: dict[int, list[str]] = {}
    for name in sorted(graph):
        rows.setdefault(level[name], []).append(name)
    figure = Figure(figsize=(10, 0.75 * len(rows) + 0.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.6, len(rows) - 0.3))
    axes.axis("off")
    place: dict[str, tuple[float, float]] = {}
    for floor, names in rows.items():
        for number, name in enumerate(names):
            place[name] = (10 * (number + 0.5) / len(names), floor)
    for upper, lower in sorted(needed(graph)):
        (x, y), (u, v) = place[upper], place[lower]
        axes.annotate(
            "", (u, v + 0.24), (x, y - 0.24), arrowprops={"arrowstyle": "->", "color": LINE}
        )
    for name, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.45", "facecolor": FILL, "edgecolor": INK, "linewidth": 0.8}
        axes.text(x, y, name, ha="center", va="center", fontsize=11, color=INK, bbox=box)
    target = ROOT / "docs" / "images" / "architecture.svg"
    # The same picture is the same file.
    with rc_context({"svg.hashsalt": "mechassay"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target


if __name__ == "__main__":
    print(draw())
