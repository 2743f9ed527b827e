"""Circuit drawings: complete, well-formed, without lines under nodes, and legible at any size."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from xml.etree.ElementTree import Element

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.drawing import HELPS, HURTS, UNKNOWN, Drawing, draw_circuit
from mechassay.circuits.graph_layout import Link, lay_out
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import Graph

SVG = "{http://www.w3.org/2000/svg}"
NAN = float("nan")
Circuits = dict[int, Circuit]
Parse = Callable[[Drawing], Element]


def links(root: Element) -> list[Element]:
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == "link"]


def line_of(link: Element) -> Element:
    return link.findall(f"{SVG}path")[0]


def edge_titles(root: Element) -> list[str]:
    return [str(group.findtext(f"{SVG}title")) for group in links(root)]


@pytest.mark.parametrize("n", [5, 60, 300])
def test_every_edge_is_drawn_once(
    scores: EdgeScores, circuits: Circuits, parse: Parse, n: int
) -> None:
    circuit = circuits[n]
    titles = edge_titles(parse(draw_circuit(scores, circuit, least=0.0)))
    assert Counter(title.split()[0] for title in titles) == Counter(circuit.names())
    for title in titles:
        name, shown = title.split()
        assert shown == f"{float(scores.values[circuit.graph.index(name)]):+.3g}"


def test_every_node_is_drawn_once_and_named(
    scores: EdgeScores, circuits: Circuits, parse: Parse
) -> None:
    circuit = circuits[60]
    root = parse(draw_circuit(scores, circuit, least=0.0))
    drawn = [
        str(group.findtext(f"{SVG}text"))
        for group in root.iter(f"{SVG}g")
        if group.get("class") == "node"
    ]
    named = {end.split("<")[0] for name in circuit.names() for end in name.split("->")}
    assert Counter(drawn) == Counter(named | {"input", "logits"})


def test_sign_is_colour_and_magnitude_is_width(parse: Parse) -> None:
    graph = Graph(2, 2)
    values = torch.full((graph.n_writers, graph.n_readers), float("nan"))
    for name, score in {"input->a0.h0<q>": 0.4, "input->m0": -0.1, "a0.h0->logits": 0.1}.items():
        values[graph.index(name)] = score
    names = ["input->a0.h0<q>", "input->m0", "a0.h0->logits", "m0->logits"]
    root = parse(draw_circuit(EdgeScores(graph, values), Circuit.from_names(graph, names)))
    line = {
        str(group.findtext(f"{SVG}title")).split()[0]: group.findall(f"{SVG}path")[0]
        for group in links(root)
    }
    assert [line[name].get("stroke") for name in names] == [HELPS, HURTS, HELPS, UNKNOWN]
    width = {name: float(line[name].get("stroke-width", "nan")) for name in names}
    assert width[names[0]] > width[names[1]] == width[names[2]] > 0
    assert "m0->logits  not scored" in edge_titles(root)
    assert line["m0->logits"].get("stroke-dasharray")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, ["edge (no edge has a score)"]),
        ([NAN, NAN, NAN], ["edge (no edge has a score)"]),
        ([2.0, 1.0, 3.0], ["helps (score > 0)"]),
        ([-2.0, -1.0, -3.0], ["hurts (score < 0)"]),
        ([2.0, -1.0, NAN], ["helps (score > 0)", "hurts (score < 0)", "not scored"]),
        ([0.0, 0.0, 0.0], ["score 0"]),
    ],
)
def test_the_legend_names_the_lines_that_are_there(
    given: list[float] | None, named: list[str], parse: Parse
) -> None:
    graph, edges = Graph(2, 2), ["input->a0.h0<q>", "a0.h0->logits", "input->logits"]
    scores = None
    if given is not None:
        values = torch.full((graph.n_writers, graph.n_readers), NAN)
        for name, score in zip(edges, given, strict=True):
            values[graph.index(name)] = score
        scores = EdgeScores(graph, values)
    root = parse(draw_circuit(scores, Circuit.from_names(graph, edges)))
    look = {
        (line.get("stroke"), line.get("stroke-dasharray")) for line in map(line_of, links(root))
    }
    samples = [path for path in root.findall(f"{SVG}path") if path.get("stroke") != "currentColor"]
    assert {(path.get("stroke"), path.get("stroke-dasharray")) for path in samples} == look
    shown = [str(text.text) for text in root.findall(f"{SVG}text")]
    wide = float(root.get("width", "nan"))
    assert all(
        float(x.get("x", "nan")) + 6.5 * len(str(x.text)) < wide for x in root.findall(f"{SVG}text")
    )
    words = ("helps", "hurts", "not scored", "score 0", "edge (")
    assert [text for text in shown if text.startswith(words)] == named


def test_query_key_and_value_enter_a_head_apart(parse: Parse) -> None:
    graph = Graph(1, 1)
    scores = EdgeScores.of(graph, torch.ones(graph.n_writers, graph.n_readers))
    names = [f"input->a0.h0<{slot}>" for slot in "qkv"] + ["a0.h0->logits"]
    root = parse(draw_circuit(scores, Circuit.from_names(graph, names)))
    ends = {
        str(g.findtext(f"{SVG}title"))[-8:-5]: float(
            re.findall(r"-?[\d.]+", g.findall(f"{SVG}path")[0].get("d", ""))[-2]
        )
        for g in links(root)
    }
    marks = [text.text for text in root.iter(f"{SVG}text") if text.text in ("q", "k", "v")]
    assert marks == ["q", "k", "v"]
    assert len({round(x) for x in ends.values()}) >= 3


def test_lines_keep_clear_of_nodes() -> None:
    """A long link passes a row beside the node in it, however it is pulled."""
    links = [
        Link(None, 0, 0.0, 0.0, 3.0),
        Link(0, 1, 0.0, 0.0, 3.0),
        Link(1, 2, 0.0, 0.0, 3.0),
        Link(0, 2, 0.0, 0.0, 3.0),
        Link(2, None, 0.0, 0.0, 3.0),
    ]
    layout = lay_out([1, 2, 3], [50.0] * 3, links, 5, gap=5.0)
    passing = layout.link_x[3][1]
    assert abs(passing - layout.node_x[1]) >= 25 + 1.5 + 5


def test_layout_untangles() -> None:
    """Two chains that start crossed end side by side."""
    crossed = [Link(0, 3, 0.0, 0.0, 1.0), Link(1, 2, 0.0, 0.0, 1.0)]
    x = lay_out([1, 1, 2, 2], [10.0] * 4, crossed, 4, gap=5.0).node_x
    assert (x[0] < x[1]) == (x[3] < x[2])


def test_the_empty_circuit_and_the_single_edge(parse: Parse) -> None:
    graph = Graph(3, 2)
    scores = EdgeScores.of(graph, torch.zeros(graph.n_writers, graph.n_readers))
    empty = parse(draw_circuit(scores, Circuit.empty(graph)))
    assert edge_titles(empty) == []
    assert "no edges" in [text.text for text in empty.iter(f"{SVG}text")]
    one = parse(draw_circuit(scores, Circuit.from_names(graph, ["input->logits"])))
    assert edge_titles(one) == ["input->logits  +0"]


def test_numbers_are_finite_and_inside(
    scores: EdgeScores, circuits: Circuits, parse: Parse
) -> None:
    root = parse(draw_circuit(scores, circuits[300]))
    width, height = (float(root.get(side, "nan")) for side in ("width", "height"))
    for group in links(root):
        numbers = [
            float(n)
            for n in re.findall(r"-?[\d.]+|nan", group.findall(f"{SVG}path")[0].get("d", ""))
        ]
        assert all(map(math.isfinite, numbers))
        assert min(numbers[::2]) >= 0 and max(numbers[::2]) <= width
        assert min(numbers[1::2]) >= 0 and max(numbers[1::2]) <= height


def test_the_legend_is_inside_and_rows_of_one_layer_stand_closer(parse: Parse) -> None:
    names = ["input->a0.h0<q>", "a0.h0->m0", "m0->a1.h0<q>", "a1.h0->logits"]
    root = parse(draw_circuit(None, Circuit.from_names(Graph(2, 2), names)))
    bottom = float(root.get("height", "nan"))
    assert all(float(text.get("y", "nan")) < bottom - 10 for text in root.iter(f"{SVG}text"))
    nodes = [group for group in root.iter(f"{SVG}g") if group.get("class") == "node"]
    y = {
        str(group.findtext(f"{SVG}title")).split(":")[0]: float(text.get("y", "nan"))
        for group in nodes
        if (text := group.find(f"{SVG}text")) is not None
    }
    # Labels of MLPs stand some points lower than those of heads.
    assert 0 < y["a0.h0"] - y["m0"] < y["m0"] - y["a1.h0"] - 10


def test_a_title_is_escaped(scores: EdgeScores, circuits: Circuits, parse: Parse) -> None:
    hostile = '<script>alert("1")</script>'
    drawing = draw_circuit(scores, circuits[5], title=hostile)
    assert "<script" not in drawing.svg
    assert drawing.title == hostile
    assert parse(drawing).get("aria-label") == hostile


def test_the_same_circuit_gives_the_same_drawing(scores: EdgeScores, circuits: Circuits) -> None:
    circuit = circuits[60]
    assert draw_circuit(scores, circuit) == draw_circuit(scores, circuit)


def test_what_cannot_be_drawn_is_refused(scores: EdgeScores) -> None:
    with pytest.raises(BadUsage, match="at most 1,000 edges"):
        draw_circuit(scores, scores.top(1001))
    with pytest.raises(GraphMismatch):
        draw_circuit(scores, Circuit.empty(Graph(2, 2)))


# What is too weak to draw


def test_edges_under_a_share_of_the_largest_are_left_out_and_counted(parse: Parse) -> None:
    graph = Graph(2, 2)
    given = {"input->m0": 1.0, "m0->logits": -0.5, "input->m1": 0.02, "m1->logits": -1e-6}
    values = torch.full((graph.n_writers, graph.n_readers), float("nan"))
    for name, score in given.items():
        values[graph.index(name)] = score
    scores, circuit = EdgeScores(graph, values), Circuit.from_names(graph, [*given, "m0->m1"])
    drawn = draw_circuit(scores, circuit)
    named = {title.split()[0] for title in edge_titles(parse(drawn))}
    # What has no score may be anything: it is drawn.
    assert named == {*given, "m0->m1"} - {"m1->logits"}
    said = "1 edge with |score| below 1\u00a0% of the largest: not drawn."
    assert said in drawn.about and said in "".join(parse(drawn).itertext())
    assert [name for name, _ in drawn.strongest] == ["input->m0", "m0->logits", "input->m1"]
    assert drawn.strongest[1] == ("m0->logits", -0.5)
    assert "2 edges with |score| below 5" in draw_circuit(scores, circuit, least=0.05).about
    assert "not drawn" not in draw_circuit(scores, circuit, least=0.0).about


@pytest.mark.parametrize("least", [-0.1, 1.5, math.nan])
def test_the_least_is_a_share(scores: EdgeScores, circuits: Circuits, least: float) -> None:
    with pytest.raises(BadUsage, match="a share of the largest, from 0 to 1"):
        draw_circuit(scores, circuits[5], least=least)
