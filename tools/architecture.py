"""Draws docs/images/architecture.svg from the imports of the code: python tools/architecture.py."""

from __future__ import annotations

import ast
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mechassay"
SMALL = ("errors", "version", "__main__")
INK, LINE, FILL = "#1f2328", "#b9c2cc", "#eef3f8"


def room_of(path: Path) -> str:
    """The room of a file, such as `circuits/methods`; a file at the root is one of its own."""
    folder = path.relative_to(PACKAGE).parent.as_posix()
    if folder == ".":
        return path.stem
    return "models" if folder.startswith("models/") else folder


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports, anywhere in its files."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.stem != "__init__"]
    # The root's own files but for the catalogue of names are too small to be drawn.
    rooms = {path: room_of(path) for path in files}
    rooms = {path: room for path, room in rooms.items() if room not in SMALL}
    graph: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for path, room in rooms.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for module in (f"{node.module}.{alias.name}" for alias in node.names):
                inside = module.split(".")[1:] if module.startswith("mechassay.") else []
                names = ["/".join(inside[:n]) for n in range(len(inside), 0, -1)]
                graph[room] |= {next((name for name in names if name in graph), room)}
    return {room: others - {room} for room, others in graph.items()}


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
    graph = imports()
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
