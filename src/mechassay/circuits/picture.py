"""Our drawings as pictures: matplotlib draws the SVGs of `circuits.drawing`, PNG and PDF alike."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Polygon
from matplotlib.path import Path as Curve
from matplotlib.transforms import Affine2D, Transform

from mechassay.errors import BadFile
from mechassay.utils.files import whole

SVG = "{http://www.w3.org/2000/svg}"
POINTS = 72
"""Pixels of a drawing in an inch of the picture: a pixel is a point, as in a PDF."""
FONTS = ("Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
SETTINGS: dict[Any, Any] = {"pdf.fonttype": 42, "font.family": ["sans-serif"]}
ALIGNED = {"start": "left", "middle": "center", "end": "right"}
_COMMANDS = re.compile(r"([MLCh])([^A-Za-z]*)")
_NUMBER = re.compile(r"-?\d*\.?\d+")
_MOVED = re.compile(r"translate\((\S+) (\S+)\) scale\((\S+)\)")


def write_picture(path: Path, svg: str, *, dpi: int = 200) -> Path:
    """Write an SVG of ours as a picture, in the form that the ending of `path` names.

    Raises:
        BadFile: an SVG with something in it that our drawings do not have.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(SETTINGS), whole(path) as file:
        content, form = io.BytesIO(), path.suffix.removeprefix(".")
        dates = {"CreationDate": None} if form == "pdf" else None
        figure = picture(svg)
        figure.savefig(content, format=form, dpi=dpi, facecolor="white", metadata=dates)
        file.write_bytes(content.getvalue())
    return path


def picture(svg: str) -> Figure:
    """An SVG of ours as a matplotlib figure, on white; in a PDF, text stays text.

    The elements are those of our drawings: rectangles, polygons, texts, groups with a
    translation and a scale, and paths of M, L, C and h. Colours are those of the attributes,
    which viewers without CSS see; `currentColor` is black. Anything else in an SVG is an error
    and is not left out silently.

    Raises:
        BadFile: something in it that our drawings do not have.
    """
    root = ElementTree.fromstring(svg)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    figure = Figure(figsize=(width / POINTS, height / POINTS))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    _draw(root, axes, axes.transData, 1.0)
    return figure


def _draw(element: ElementTree.Element, axes: Axes, transform: Transform, scale: float) -> None:
    """Everything within an element, in its order."""
    for child in element:
        kind, about = child.tag.removeprefix(SVG), child.attrib
        match kind:
            case "desc" | "style" | "title":
                continue
            case "g":
                moved = _MOVED.fullmatch(about.get("transform", ""))
                if moved is None:
                    _draw(child, axes, transform, scale)
                    continue
                x, y, inner = map(float, moved.groups())
                placed = Affine2D().scale(inner).translate(x, y) + transform
                _draw(child, axes, placed, scale * inner)
            case "text":
                _text(child, axes, transform, scale)
            case "rect" | "polygon" | "path":
                if about.get("class") != "hit":
                    patch = _shape(kind, about)
                    patch.set(**_paint(about, scale), transform=transform, clip_on=False)
                    axes.add_artist(patch)
            case _:
                raise BadFile(f"A drawing of ours has no element {kind!r}.")


def _text(element: ElementTree.Element, axes: Axes, transform: Transform, scale: float) -> None:
    from matplotlib.font_manager import fontManager

    about, known = element.attrib, set(fontManager.get_font_names())
    axes.text(
        float(about["x"]),
        float(about["y"]),
        element.text or "",
        transform=transform,
        fontsize=float(about["font-size"]) * scale,
        # Few fonts have a weight of 600.
        fontweight="bold" if int(about["font-weight"]) >= 600 else "normal",
        # The last one comes with matplotlib.
        fontfamily=[name for name in FONTS if name in known],
        ha=ALIGNED[about["text-anchor"]],
        va="baseline",
        color="black",
        alpha=float(about.get("fill-opacity", 1.0)),
        parse_math=False,
    )


def _shape(kind: str, about: dict[str, str]) -> Patch:
    if kind == "polygon":
        numbers = list(map(float, _NUMBER.findall(about["points"])))
        return Polygon(list(zip(numbers[::2], numbers[1::2], strict=True)), closed=True)
    if kind == "path":
        return PathPatch(_curve(about["d"]))
    x, y, width, height, round_by = (
        float(about[name]) for name in ("x", "y", "width", "height", "rx")
    )
    style = f"round,pad=0,rounding_size={round_by}"
    return FancyBboxPatch((x, y), width, height, boxstyle=style)


def _curve(text: str) -> Curve:
    """A path of M, L, C and h."""
    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    if _COMMANDS.sub("", text).strip():
        raise BadFile(f"A path of our drawings has only M, L, C and h; got {text[:80]!r}.")
    for command, rest in _COMMANDS.findall(text):
        numbers = list(map(float, _NUMBER.findall(rest)))
        if command == "h":
            points += [(points[-1][0] + numbers[0], points[-1][1])]
            codes += [Curve.LINETO]
            continue
        points += zip(numbers[::2], numbers[1::2], strict=True)
        segment = {"M": [Curve.MOVETO], "L": [Curve.LINETO], "C": [Curve.CURVE4] * 3}[command]
        codes += segment
    return Curve(points, codes)


def _paint(about: dict[str, str], scale: float) -> dict[str, Any]:
    """How a shape is filled and outlined."""
    edge = "edge" in about.get("class", "").split()
    look: dict[str, Any] = {
        "facecolor": _colour(about.get("fill", "none"), about.get("fill-opacity")),
        "edgecolor": _colour(
            about.get("stroke", "none"), ".8" if edge else about.get("stroke-opacity")
        ),
        "linewidth": float(about.get("stroke-width", 0.0)) * scale,
        "capstyle": "butt",
    }
    if dashes := about.get("stroke-dasharray"):
        width = max(look["linewidth"], 1e-9)
        # matplotlib counts dashes in widths of the line.
        look["linestyle"] = (0.0, [float(length) * scale / width for length in dashes.split()])
    return look


def _colour(name: str, opacity: str | None) -> Any:
    if name == "none":
        return "none"
    return ("black" if name == "currentColor" else name, float(opacity or 1.0))
