"""Drawings of two circuits: every edge once, marked with whose it is,
and told apart by everybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from itertools import combinations
from xml.etree.ElementTree import Element

import numpy as np
import pytest
import torch

from mechassay.circuits.circuit import Circuit, overlap_of
from mechassay.circuits.drawing import Drawing
from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.draw import (
    ONLY_A,
    ONLY_B,
    PAINTS,
    draw_comparison,
    overlap_grid,
    overlap_text,
)
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import Graph

SVG = "{http://www.w3.org/2000/svg}"
Parse = Callable[[Drawing], Element]

GRAPH = Graph(2, 2)
A = Circuit.from_names(GRAPH, ["input->a0.h0<q>", "a0.h0->m1", "input->m1", "m1->logits"])
B = Circuit.from_names(
    GRAPH, ["input->m1", "m1->logits", "input->a1.h1<v>", "a1.h1->logits", "input->logits"]
)


def groups(root: Element, kind: str) -> list[tuple[str, Element]]:
    """What pointing at a line or node shows, and the shape itself."""
    found = [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]
    return [(str(group.findtext(f"{SVG}title")), list(group)[1]) for group in found]


def held(shape: Element) -> str:
    return str(shape.get("class")).removeprefix("edge ")


def texts(root: Element) -> str:
    return " ".join(str(text.text) for text in root.iter(f"{SVG}text"))


@pytest.fixture(scope="module")
def other(scores: EdgeScores) -> EdgeScores:
    """Scores that agree with the first ones in part."""
    noise = torch.randn(scores.values.shape, generator=torch.Generator().manual_seed(2))
    return EdgeScores.of(
        scores.graph, scores.values.nan_to_num() + scores.values.nan_to_num().abs() * noise
    )


def test_every_edge_is_drawn_once_and_marked_with_whose_it_is(
    scores: EdgeScores, other: EdgeScores, parse: Parse
) -> None:
    a, b = scores.greedy(80, by="magnitude"), other.greedy(120, by="magnitude")
    lines = groups(parse(draw_comparison(a, b, scores_a=scores, scores_b=other)), "link")
    first, second = set(a.names()), set(b.names())
    assert first & second and first - second and second - first
    expected = {
        name: "both" if name in first & second else "only-a" if name in first else "only-b"
        for name in first | second
    }
    assert sorted(text.split()[0] for text, _ in lines) == sorted(expected)
    for text, shape in lines:
        paint = PAINTS[expected[text.split()[0]]]  # pyright: ignore[reportArgumentType]
        assert held(shape) == paint.kind
        assert (shape.get("stroke"), shape.get("stroke-dasharray", "")) == (
            paint.colour,
            paint.dash,
        )


def test_pointing_at_a_line_shows_who_has_it_and_all_scores(parse: Parse) -> None:
    values = torch.full((GRAPH.n_writers, GRAPH.n_readers), float("nan"))
    values[GRAPH.index("input->m1")] = -0.25
    values[GRAPH.index("input->logits")] = 0.5
    root = parse(
        draw_comparison(
            A,
            B,
            names=("eap", "ifr"),
            scores_a=EdgeScores(GRAPH, values),
            scores_b=EdgeScores(GRAPH, 2 * values),
        )
    )
    shown = {text.split()[0]: text.partition("  ")[2] for text, _ in groups(root, "link")}
    assert shown["input->m1"] == "in both; eap -0.25, ifr -0.5"
    assert shown["input->logits"] == "only in ifr; eap +0.5, ifr +1"
    assert shown["a0.h0->m1"] == "only in eap; eap not scored, ifr not scored"
    alone = {text.partition("  ")[2] for text, _ in groups(parse(draw_comparison(A, B)), "link")}
    assert alone == {"in both", "only in A", "only in B"}
    one = dict(
        text.split("  ")
        for text, _ in groups(
            parse(draw_comparison(A, B, scores_b=EdgeScores(GRAPH, values))), "link"
        )
    )
    assert one["input->m1"] == "in both; B -0.25"


def test_nodes_are_marked_with_whose_they_are(parse: Parse) -> None:
    nodes = {
        text.split(",")[0]: (text, shape)
        for text, shape in groups(parse(draw_comparison(A, B)), "node")
        if "," in text
    }
    assert {name: held(shape) for name, (_, shape) in nodes.items()} == {
        "a0.h0": "only-a",
        "m1": "both",
        "a1.h1": "only-b",
    }
    assert nodes["m1"][0] == "m1, in both: 2 in, 1 out; 2 in both; 1 only in A"
    # A node that two circuits reach by different edges is in both.
    split = draw_comparison(
        Circuit.from_names(GRAPH, ["input->m0"]), Circuit.from_names(GRAPH, ["m0->logits"])
    )
    assert [
        held(shape) for text, shape in groups(parse(split), "node") if text.startswith("m0")
    ] == ["both"]


def test_legend_and_caption_count(parse: Parse) -> None:
    root = parse(draw_comparison(A, B, names=("eap", "ifr"), title="two"))
    shown = texts(root)
    assert (
        "in both: 2 edges, 1 node " in shown
        and "only in eap: 2 edges, 1 node " in shown
        and "only in ifr: 3 edges, 1 node " in shown
    )
    caption = overlap_text(overlap_of(A, B), ("eap", "ifr"))
    assert caption in shown and root.findtext(f"{SVG}desc") == caption
    assert (
        f"Of {GRAPH.n_edges} edges, eap has 4 and ifr 5; 2 are in both (Jaccard overlap 0.29)."
        in caption
    )
    assert f"share {20 / GRAPH.n_edges:.2g} on average" in caption
    assert root.get("aria-label") == "two"


def test_the_legend_names_the_lines_that_are_there(parse: Parse) -> None:
    """Rows of the legend are kinds of lines and outlines; widths are named where they differ."""
    none = Circuit.empty(GRAPH)
    for pair in ((A, B), (A, A), (A, none), (none, A), (none, none)):
        root = parse(draw_comparison(*pair))
        there = {held(shape) for kind in ("link", "node") for _, shape in groups(root, kind)}
        named = {str(path.get("class")) for path in root.findall(f"{SVG}path")}
        assert named == there & set(PAINTS) and "width of a line" not in texts(root)
    ones = EdgeScores.of(GRAPH, torch.ones(GRAPH.n_writers, GRAPH.n_readers))
    both = parse(draw_comparison(A, B, scores_a=ones, scores_b=ones))
    assert "The width of a line is |score|" in " ".join(texts(both).split())
    assert "width of a line" not in texts(parse(draw_comparison(A, B, scores_a=ones)))


def test_exchanging_the_circuits_exchanges_their_marks_alone(parse: Parse) -> None:
    there, back = (
        {
            text.split()[0]: (held(shape), shape.get("d"))
            for text, shape in groups(parse(drawing), "link")
        }
        for drawing in (draw_comparison(A, B), draw_comparison(B, A))
    )
    swapped = {"both": "both", "only-a": "only-b", "only-b": "only-a"}
    assert back == {name: (swapped[whose], path) for name, (whose, path) in there.items()}


def test_widths_do_not_depend_on_the_scale_of_a_method(parse: Parse) -> None:
    values = torch.arange(1.0, 1 + GRAPH.legal.numel()).view(GRAPH.n_writers, GRAPH.n_readers)
    scores, scaled = EdgeScores.of(GRAPH, values), EdgeScores.of(GRAPH, -1000 * values)

    def widths(
        scores_a: EdgeScores | None = None, scores_b: EdgeScores | None = None
    ) -> dict[str, str | None]:
        root = parse(draw_comparison(A, B, scores_a=scores_a, scores_b=scores_b))
        return {text.split()[0]: shape.get("stroke-width") for text, shape in groups(root, "link")}

    assert widths(scores, scores) == widths(scores, scaled)
    assert len(set(widths(scores, scores).values())) > 3
    # Scores of one circuit say nothing about the lines of the other.
    assert len(set(widths(scores).values())) == 1 and widths(scores) == widths()


def test_empty_equal_and_disjoint_circuits(parse: Parse) -> None:
    none = Circuit.empty(GRAPH)
    nothing = parse(draw_comparison(none, none))
    assert (
        groups(nothing, "link") == []
        and "no edges" in texts(nothing)
        and "Jaccard overlap undefined" in texts(nothing)
    )
    assert {held(shape) for _, shape in groups(parse(draw_comparison(A, none)), "link")} == {
        "only-a"
    }
    assert {held(shape) for _, shape in groups(parse(draw_comparison(none, A)), "link")} == {
        "only-b"
    }
    assert {held(shape) for _, shape in groups(parse(draw_comparison(A, A)), "link")} == {"both"}
    assert groups(
        parse(draw_comparison(Circuit.from_names(GRAPH, ["input->logits"]), none)), "link"
    )


def test_everything_is_inside_the_drawing(
    scores: EdgeScores, other: EdgeScores, parse: Parse
) -> None:
    long = "a-method-with-settings=" + "x" * 200
    root = parse(
        draw_comparison(
            scores.greedy(60), other.greedy(60), names=(long, "b"), scores_a=scores, scores_b=other
        )
    )
    width, height = (float(root.get(side, "nan")) for side in ("width", "height"))
    for text in root.iter(f"{SVG}text"):
        x, y, size = (float(text.get(key, "nan")) for key in ("x", "y", "font-size"))
        assert 0 < y < height
        if text.get("text-anchor") == "start":
            assert x + 0.53 * size * len(str(text.text)) < width
    for _, shape in groups(root, "link"):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", shape.get("d", ""))]
        assert min(numbers) >= 0 and max(numbers[::2]) <= width and max(numbers[1::2]) <= height


def test_names_are_escaped(parse: Parse) -> None:
    hostile = '</title><script>alert("1")</script>'
    drawing = draw_comparison(A, B, names=(hostile, "&"), title=hostile)
    assert "<script" not in drawing.svg
    assert any(hostile in text for text, _ in groups(parse(drawing), "link"))


def test_what_cannot_be_drawn_is_refused(scores: EdgeScores) -> None:
    with pytest.raises(
        BadUsage, match=r"at most 1,000 edges; the two circuits together have 1,100\."
    ):
        draw_comparison(
            scores.top(600, by="value"), EdgeScores(scores.graph, -scores.values).top(500)
        )
    with pytest.raises(GraphMismatch):
        draw_comparison(A, Circuit.empty(Graph(3, 2)))
    with pytest.raises(GraphMismatch, match="scores"):
        draw_comparison(A, B, scores_b=scores)


def test_the_table_has_the_numbers() -> None:
    grid = overlap_grid(overlap_of(A, B), ("eap", "ifr"))
    edges, nodes = (row.cells for row in grid.rows)
    assert edges[:6] == ("edges", str(GRAPH.n_edges), "4", "5", "2", "0.29")
    assert nodes[:6] == ("heads and MLPs", "6", "2", "2", "1", "0.33")
    assert {len(edges), len(nodes)} == {len(grid.columns)}
    assert [each.heading for each in overlap_grid(overlap_of(A, B), ("a", "b")).columns[2:4]] == [
        "a",
        "b",
    ]


# --- colours
# ----------------------------------------------------------------------------------------

# Linear RGB as people without one kind of cone see it (Machado, Oliveira and Fernandes 2009,
# severity 1).
SIGHT = {
    "full": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue cones": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    share = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB."""
    share = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def palettes() -> dict[str, tuple[str, list[str]]]:
    """Page and the three colours, in light and in dark mode."""
    style = files("mechassay.results").joinpath("templates/style.html").read_text("utf-8")
    light, dark = (
        {key: value for key, value in re.findall(r"--([\w-]+): (#\w{6})", part)}
        for part in style.split("@media")[:2]
    )
    return {
        "light": (light["page"], [light["ink"], ONLY_A, ONLY_B]),
        "dark": (dark["page"], [dark["ink"], dark["mechassay-only-a"], dark["mechassay-only-b"]]),
    }


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_everybody_can_tell_the_colours_apart(mode: str) -> None:
    page, colours = palettes()[mode]
    assert all(contrast(page, colour) >= 3 for colour in colours)
    for sight in SIGHT.values():
        for one, other in combinations(colours, 2):
            assert np.linalg.norm(lab(sight @ linear(one)) - lab(sight @ linear(other))) > 25
    assert len({paint.dash for paint in PAINTS.values()}) == 3
