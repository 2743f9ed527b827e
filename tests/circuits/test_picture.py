"""Drawings as PNG and PDF: the same shapes at the same places, and nothing left out in silence."""

from __future__ import annotations

import re
import zlib
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.drawing import draw_circuit
from mechassay.circuits.picture import picture, write_picture
from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.draw import draw_comparison
from mechassay.errors import BadFile

PICTURES_SVG = 'xmlns="http://www.w3.org/2000/svg" width="{}" height="{}"'


def pixels(path: Path) -> np.ndarray:
    """Red, green and blue of every pixel, from 0 to 1."""
    return np.asarray(imread(path))[:, :, :3]


def drawn(tmp_path: Path, inside: str, width: int = 60, height: int = 40) -> np.ndarray:
    """The picture of an SVG, a pixel of the picture for each of the drawing."""
    svg = f"<svg {PICTURES_SVG.format(width, height)}>{inside}</svg>"
    return pixels(write_picture(tmp_path / "x.png", svg, dpi=72))


def test_a_shape_stands_where_the_svg_has_it(tmp_path: Path) -> None:
    found = drawn(tmp_path, '<rect x="10" y="4" width="20" height="8" rx="1" fill="#0000ff"/>')
    assert found.shape == (40, 60, 3)
    blue = np.argwhere((found == [0, 0, 1]).all(axis=2))
    assert blue.min(axis=0).tolist() == [4, 10] and blue.max(axis=0).tolist() == [11, 29]
    assert (found[20:] == 1).all()


def test_groups_move_and_scale_what_is_in_them(tmp_path: Path) -> None:
    inside = '<g transform="translate(30 20) scale(.5)"><rect x="-8" y="-8" width="16" height="16"'
    found = drawn(tmp_path, f'{inside} rx="1" fill="#ff0000"/></g>')
    red = np.argwhere((found == [1, 0, 0]).all(axis=2))
    assert red.min(axis=0).tolist() == [16, 26] and red.max(axis=0).tolist() == [23, 33]


def test_lines_have_their_width_and_dashes(tmp_path: Path) -> None:
    path = '<path stroke="#00ff00" stroke-width="4" {} fill="none" d="M0 20h60"/>'
    solid = drawn(tmp_path, path.format(""))
    green = (solid == [0, 1, 0]).all(axis=2)
    assert green.sum(axis=0).tolist() == [4] * 60
    dashed = drawn(tmp_path, path.format('stroke-dasharray="10 5"'))
    assert (dashed[19] == [0, 1, 0]).all(axis=1).tolist() == ([True] * 10 + [False] * 5) * 4


def test_opacity_lets_white_through(tmp_path: Path) -> None:
    inside = (
        '<rect x="0" y="0" width="60" height="40" rx="1" fill="currentColor" fill-opacity=".5"/>'
    )
    assert drawn(tmp_path, inside)[20, 30] == pytest.approx([0.5] * 3, abs=0.01)


def test_every_edge_and_text_is_drawn(scores: EdgeScores, circuits: dict[int, Circuit]) -> None:
    for drawing in (
        draw_circuit(scores, circuits[60], title="cost $1$ & more"),
        draw_comparison(circuits[5], circuits[60], names=("a", "b")),
    ):
        figure = picture(drawing.svg)
        (axes,) = figure.axes
        said = {text.get_text() for text in axes.texts}
        assert said == {
            unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawing.svg)
        }
        n_lines = len(re.findall(r'class="edge ', drawing.svg))
        assert n_lines > 0
        shapes = len(re.findall(r"<(?:rect|polygon|path)\b", drawing.svg))
        hits = len(re.findall(r'class="hit"', drawing.svg))
        assert len(axes.patches) == shapes - hits


def test_a_pdf_has_its_text_as_text_and_no_date(
    scores: EdgeScores, circuits: dict[int, Circuit], tmp_path: Path
) -> None:
    drawing = draw_circuit(scores, circuits[5])
    first, second = (
        write_picture(tmp_path / name, drawing.svg).read_bytes() for name in ("a.pdf", "b.pdf")
    )
    assert first == second and first.startswith(b"%PDF")
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", first, flags=re.DOTALL)
    shown = b"".join(zlib.decompress(stream) for stream in streams if stream[:1] == b"x")
    assert b"BT" in shown and b"Tj" in shown.replace(b"TJ", b"Tj")


@pytest.mark.parametrize(
    "inside",
    ['<circle r="3"/>', '<path stroke="#000000" fill="none" d="M0 0A1 1 0 0 0 5 5"/>'],
)
def test_what_our_drawings_do_not_have_is_refused(tmp_path: Path, inside: str) -> None:
    with pytest.raises(BadFile):
        drawn(tmp_path, inside)
    assert list(tmp_path.iterdir()) == []


def test_a_circuit_plots_itself(scores: EdgeScores, circuits: dict[int, Circuit]) -> None:
    figure = circuits[5].plot(scores, title="five")
    said = {text.get_text() for text in figure.axes[0].texts}
    assert {"five", "logits", "input"} <= said
    assert "edge (no edge has a score)" in {x.get_text() for x in circuits[5].plot().axes[0].texts}
