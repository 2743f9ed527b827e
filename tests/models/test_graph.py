"""The graph: published counts, the definition of an edge written a second time, names, paths."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.models.graph import EdgeIndex, Graph, Spelling

SPELLINGS: list[Spelling] = ["mib", "transformer-lens", "dotted"]
graphs = st.builds(
    Graph, st.integers(1, 4), st.integers(1, 3), parallel=st.booleans(), mlp=st.booleans()
)
small_graphs = st.builds(
    Graph, st.integers(1, 2), st.integers(1, 2), parallel=st.booleans(), mlp=st.booleans()
)


@pytest.mark.parametrize(
    ("graph", "n_edges"),
    [
        pytest.param(Graph(12, 12), 32_491, id="GPT-2 small"),
        pytest.param(Graph(24, 14), 179_749, id="Qwen2.5-0.5B"),
        pytest.param(Graph(26, 8), 74_218, id="Gemma-2-2B"),
        pytest.param(Graph(32, 32), 1_592_881, id="Llama-3.1-8B"),
        pytest.param(Graph(4, 8, mlp=False), 1_281, id="attention-only, 4 layers"),
        # By hand: the heads see input (3 edges), the MLP input and perhaps the head, the logits all
        # three writers.
        pytest.param(Graph(1, 1), 3 + 2 + 3, id="one head, one MLP"),
        pytest.param(Graph(1, 1, parallel=True), 3 + 1 + 3, id="one head, one MLP, in parallel"),
    ],
)
def test_published_counts(graph: Graph, n_edges: int) -> None:
    assert graph.n_edges == n_edges


def is_edge(graph: Graph, writer: str, reader: str) -> bool:
    """The definition, from names alone: a reader sees whatever was written before it."""
    if writer == "input" or reader == "logits":
        return True
    layers = [int(re.findall(r"\d+", name)[0]) for name in (writer, reader)]
    if layers[0] != layers[1]:
        return layers[0] < layers[1]
    return writer.startswith("a") and reader.startswith("m") and not graph.parallel


@given(graphs)
def test_legal_is_the_definition_and_a_prefix(graph: Graph) -> None:
    writers = [graph.writer_name(u) for u in range(graph.n_writers)]
    readers = [graph.reader_name(v) for v in range(graph.n_readers)]
    expected = torch.tensor([[is_edge(graph, u, v) for v in readers] for u in writers])
    assert torch.equal(graph.legal, expected)
    assert torch.equal(graph.legal.sum(dim=0), graph.visible)
    assert all(bool(graph.legal[: graph.visible[v], v].all()) for v in range(graph.n_readers))
    assert graph.n_edges == int(expected.sum())
    if not graph.mlp:
        assert not any(name.startswith("m") for name in writers + readers)


@given(graphs)
def test_index_arithmetic_agrees_with_names(graph: Graph) -> None:
    assert graph.writer_name(0) == "input"
    assert graph.reader_name(graph.logits) == "logits"
    for layer in range(graph.n_layers):
        for head in range(graph.n_heads):
            assert graph.writer_name(graph.head(layer, head)) == f"a{layer}.h{head}"
            assert graph.head(layer, head) in range(graph.n_writers)[graph.heads(layer)]
            for slot, letter in enumerate("qkv"):
                assert (
                    graph.reader_name(graph.slot(layer, slot, head))
                    == f"a{layer}.h{head}<{letter}>"
                )
                assert graph.slot(layer, slot, head) in range(graph.n_readers)[graph.slots(layer)]
                assert graph.visible[graph.slot(layer, slot, head)] == graph.seen_by_heads(layer)
        if graph.mlp:
            assert (
                graph.writer_name(graph.mlp_writer(layer))
                == graph.reader_name(graph.mlp_reader(layer))
                == f"m{layer}"
            )
            assert graph.visible[graph.mlp_reader(layer)] == graph.seen_by_mlp(layer)


@given(graphs)
def test_a_reader_feeds_the_writer_of_its_own_name(graph: Graph) -> None:
    for reader, owner in enumerate(graph.reader_owner.tolist()):
        if reader == graph.logits:
            assert owner == graph.n_writers
        else:
            assert graph.writer_name(owner) == graph.reader_name(reader).partition("<")[0]


@given(graphs)
def test_stages_hold_every_reader_once_in_order(graph: Graph) -> None:
    readers = [reader for stage in graph.stages() for reader in range(graph.n_readers)[stage]]
    assert readers == list(range(graph.n_readers))


@given(graphs, st.sampled_from(SPELLINGS), st.data())
def test_names_round_trip_in_every_spelling(
    graph: Graph, spelling: Spelling, data: st.DataObject
) -> None:
    writer = data.draw(st.integers(0, graph.n_writers - 1))
    reader = data.draw(st.integers(0, graph.n_readers - 1))
    assert graph.writer(graph.writer_name(writer, spelling)) == writer
    assert graph.reader(graph.reader_name(reader, spelling)) == reader
    name = graph.edge_name(writer, reader, spelling)
    if bool(graph.legal[writer, reader]):
        assert graph.index(name) == EdgeIndex(writer, reader)
    else:
        with pytest.raises(UnknownName, match=re.escape(f"Unknown edge {name!r}.")):
            graph.index(name)


@given(graphs, st.data())
def test_the_message_about_an_illegal_edge_names_legal_ones(
    graph: Graph, data: st.DataObject
) -> None:
    illegal = (~graph.legal).nonzero().tolist()
    if not illegal:
        return
    name = graph.edge_name(*data.draw(st.sampled_from(illegal)))
    with pytest.raises(UnknownName) as caught:
        graph.index(name)
    said = re.search(
        r"(?:Did you mean '(?P<nearest>[^']+)'\? )?Known: (?P<known>.+)\.", str(caught.value)
    )
    assert said is not None
    for other in said["known"].split(", "):
        assert graph.edge_name(*graph.index(other)).partition("->")[2] == name.partition("->")[2]
    # Short names like a1.h0->m0 and input->m0 have too little in common to suggest one for the
    # other.
    assert said["nearest"] is not None or not name.endswith(">")


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("a9.h6->m10", "a9.h6->m10"),
        ("A9.6->MLP 10", "a9.h6->m10"),
        ("9.6 -> m10", "a9.h6->m10"),
        ("L9H6->mlp10", "a9.h6->m10"),
        ("blocks.9.attn.hook_z[6]->blocks.10.hook_mlp_in", "a9.h6->m10"),
        ("hook_embed->blocks.0.hook_q_input.0", "input->a0.h0<q>"),
        ("embed->A0.0<V>", "input->a0.h0<v>"),
        ("Resid Start->A0.0.V", "input->a0.h0<v>"),
        ("A9.6->A10.0.Q", "a9.h6->a10.h0<q>"),
        ("MLP 11->Resid End", "m11->logits"),
        ("blocks.0.hook_resid_pre->blocks.0.hook_mlp_in", "input->m0"),
        ("blocks.11.hook_mlp_out->blocks.11.hook_resid_post", "m11->logits"),
    ],
)
def test_known_spellings(name: str, same: str) -> None:
    graph = Graph(12, 12)
    assert graph.edge_name(*graph.index(name)) == same


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a12.h0->logits", "Unknown writer 'a12.h0'. Did you mean 'a11.h11'?"),
        ("a0.h12->logits", "Unknown writer 'a0.h12'."),
        ("m12->logits", "Unknown writer 'm12'. Did you mean 'm11'?"),
        ("inptu->logits", "Unknown writer 'inptu'. Did you mean 'input'?"),
        ("input->logit", "Unknown reader 'logit'. Did you mean 'logits'?"),
        ("input->a0.h0", "Unknown reader 'a0.h0'. Did you mean 'a0.h0<"),
        ("input->blocks.3.hook_resid_post", "Unknown reader 'blocks.3.hook_resid_post'."),
        ("input", "Unknown edge 'input'. Did you mean 'input->logits'?"),
        ("m3->a3.h0<q>", "Unknown edge 'm3->a3.h0<q>'. Did you mean "),
        ("logits->input", "Unknown writer 'logits'."),
        ("", "Unknown edge ''."),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(UnknownName) as caught:
        Graph(12, 12).index(name)
    assert str(caught.value).startswith(message)


def test_an_attention_only_graph_has_no_mlp_names() -> None:
    for side in (Graph(2, 2, mlp=False).writer, Graph(2, 2, mlp=False).reader):
        with pytest.raises(UnknownName, match="'m0'"):
            side("m0")


def on_some_path(graph: Graph, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The edges of all walks from `input` to `logits`, found by following every one of them."""
    owner, found = graph.reader_owner.tolist(), set[tuple[int, int]]()

    def walk(writer: int, taken: tuple[tuple[int, int], ...]) -> None:
        for edge in edges:
            if edge[0] != writer:
                continue
            if edge[1] == graph.logits:
                found.update((*taken, edge))
            else:
                walk(owner[edge[1]], (*taken, edge))

    walk(0, ())
    return found


@settings(max_examples=200)
@given(small_graphs, st.sampled_from([0.15, 0.3, 0.5]), st.integers(0, 10**6))
def test_on_paths_is_what_following_every_path_finds(
    graph: Graph, density: float, seed: int
) -> None:
    chosen = graph.legal & (
        torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(seed)) < density
    )
    found = {(u, v) for u, v in (chosen & graph.on_paths(chosen)).nonzero().tolist()}
    assert found == on_some_path(graph, {(u, v) for u, v in chosen.nonzero().tolist()})


@given(graphs)
def test_all_edges_of_the_whole_graph_are_on_paths_and_none_of_the_empty(graph: Graph) -> None:
    assert bool(graph.on_paths(graph.legal)[graph.legal].all())
    assert not bool(
        (
            graph.on_paths(torch.zeros_like(graph.legal))
            & graph.legal
            & (torch.arange(graph.n_writers)[:, None] > 0)
        ).any()
    )


@pytest.mark.parametrize("slot", "qkv")
def test_one_reader_of_a_head_is_enough_to_reach_it(slot: str) -> None:
    graph = Graph(2, 2)
    edges = torch.zeros_like(graph.legal)
    for name in (f"input->a0.h1<{slot}>", "a0.h1->m1", "m1->logits", "m0->a1.h0<q>"):
        edges[graph.index(name)] = True
    kept = [graph.edge_name(u, v) for u, v in (edges & graph.on_paths(edges)).nonzero().tolist()]
    assert kept == [f"input->a0.h1<{slot}>", "a0.h1->m1", "m1->logits"]


def test_fingerprints_differ_between_graphs_and_only_there() -> None:
    every = [
        Graph(layers, heads, parallel, mlp)
        for layers, heads in itertools.product(range(1, 13), repeat=2)
        for parallel in (False, True)
        for mlp in (False, True)
    ]
    assert len({graph.fingerprint for graph in every}) == len(every)
    assert Graph(3, 4).fingerprint == Graph(n_layers=3, n_heads=4).fingerprint
    assert re.fullmatch(r"[0-9a-f]{12}", Graph(3, 4).fingerprint)


@pytest.mark.parametrize(("layers", "heads"), [(0, 4), (3, 0), (-1, 1)])
def test_an_impossible_graph(layers: int, heads: int) -> None:
    with pytest.raises(BadUsage, match=f"n_layers={layers}, n_heads={heads}"):
        Graph(layers, heads)
