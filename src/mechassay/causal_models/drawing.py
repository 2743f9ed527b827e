"""The figure of a causal model: a box for each variable, and an arrow from each of its parents."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

from mechassay.circuits.graph_layout import Link, lay_out
from mechassay.results.plots import GREY, INK, PALETTE, SETTINGS, SIZE, Picture
from mechassay.utils.display import shortened

PROMPT = "text prompt"
LETTER = 0.095
"""Width of a letter, in inches, roughly."""
GAP, STEP = 0.2, 0.95
BOX = 0.25
"""Half the height of a box of two lines, roughly."""
LONGEST = 30


def draw_causal_model(
    titles: Mapping[str, str],
    parents: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    *,
    fixed: Collection[str] = (),
    prompt: bool = False,
    ax: Axes | None = None,
) -> Figure:
    """The figure of a causal model, to save or change: boxes and arrows.

    A variable is a box, with an arrow from each parent; inputs are at the bottom. A variable
    stands on the level of its depth, the longest way to it from an input.
    `circuits.graph_layout` decides the places within a level, and arrows that pass levels go
    between their boxes. A model that reads prompts has the prompt below its inputs.

    Args:
        titles: of the variables by name, parents first.
        parents: of every variable.
        values: of variables, which are written into their boxes.
        fixed: variables whose boxes are coloured.
        prompt: whether inputs are read from a prompt.
        ax: axes to draw on.
    """
    texts = {name: _text(title, name, values) for name, title in titles.items()}
    arrows = [(parent, name) for name in titles for parent in parents[name]]
    if prompt:
        texts = {PROMPT: PROMPT, **texts}
        arrows += [(PROMPT, name) for name in titles if not parents[name]]
    level: dict[str, int] = {}
    for name in texts:
        level[name] = 1 + max((level[a] for a, b in arrows if b == name), default=-1)
    names = list(texts)
    width = [LETTER * max(map(len, texts[name].split("\n"))) + 0.3 for name in names]
    links = [Link(names.index(a), names.index(b), 0.0, 0.0, 0.0) for a, b in arrows]
    n_rows = max(level.values()) + 3
    placed = lay_out([1 + level[name] for name in names], width, links, n_rows, GAP)
    x = dict(zip(names, placed.node_x, strict=True))
    left, right = -0.2, placed.width + 0.2
    bottom, top = -0.45, STEP * max(level.values()) + 0.45
    with rc_context(SETTINGS):
        if ax is None:
            ax = Picture(figsize=(right - left, top - bottom)).add_axes((0.0, 0.0, 1.0, 1.0))
        ax.set_xlim(left, right)
        ax.set_ylim(bottom, top)
        ax.axis("off")
        for name, text in texts.items():
            colour = PALETTE[1] if name in fixed else GREY if name == PROMPT else PALETTE[0]
            label = ax.text(
                x[name],
                STEP * level[name],
                text,
                ha="center",
                va="center",
                color=INK,
                zorder=3,
                fontsize=SIZE - 1,
                bbox={
                    "boxstyle": "round,pad=0.35",
                    "facecolor": f"{colour}22",
                    "edgecolor": colour,
                },
            )
            label.set_parse_math(False)
        for (parent, _), way in zip(arrows, placed.link_x, strict=True):
            patch = FancyArrowPatch(
                path=_curve(way, STEP * level[parent]),
                arrowstyle="-|>",
                mutation_scale=9,
                color=GREY,
                lw=1.1,
                zorder=2,
            )
            ax.add_patch(patch)
        figure: Any = ax.figure
        return figure


def _text(title: str, name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        return title
    value = values[name]
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{title} =\n{shortened(text, LONGEST)}"


def _curve(way: Sequence[float], bottom: float) -> Path:
    """A curve up through places one level apart, upright in each; it ends below the last box."""
    ends = [bottom + STEP * number for number in range(len(way))]
    ends[0], ends[-1] = ends[0] + BOX, ends[-1] - BOX
    points, codes = [(way[0], ends[0])], [Path.MOVETO]
    for (x, y), (to_x, to_y) in pairwise(zip(way, ends, strict=True)):
        middle = (y + to_y) / 2
        points += [(x, middle), (to_x, middle), (to_x, to_y)]
        codes += [Path.CURVE4] * 3
    return Path(points, codes)
