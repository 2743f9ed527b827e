"""Answers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mechassay.circuits import (
    EAP,
    NAP,
    Circuit,
    EdgeScores,
    ExactNodePatching,
    ExactPatching,
    evaluate,
)
from mechassay.circuits.methods.eap import quadrature
from mechassay.models.decoder import Decoder, Layer, Norm, Projection, Readout
from mechassay.models.graph import Graph
from mechassay.models.objectives import Accuracy, CrossEntropy, Js, Kl, LogitDiff, ProbDiff
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.testing.tiny import Subject, subject


def readout(logits: list[list[float]]) -> Readout:
    """A readout with given logits: the identity unembeds them."""
    wide = torch.tensor(logits)
    eye = torch.eye(wide.shape[1])
    norm = Norm(torch.ones(wide.shape[1]), None, 1e-6, centred=False)
    return Readout(wide, Decoder(eye, None, None, (), norm, eye, {}))


def batch(answers: list[list[int]], foils: list[list[int]]) -> Batch:
    tokens = [[0]] * len(answers)
    return Batch.from_tokens(tokens, tokens, answers, foils)


def test_logit_diff_takes_means_over_answers_and_foils() -> None:
    values = LogitDiff()(readout([[1.0, 2.0, 4.0, 9.0]]), batch([[3]], [[0, 2]]))
    assert values.tolist() == [9.0 - 2.5]


def test_logit_diff_with_fewer_answers_in_one_row() -> None:
    values = LogitDiff()(
        readout([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]), batch([[1, 2], [1, NO_TOKEN]], [[0], [0]])
    )
    assert values.tolist() == [2.0, 1.0]


def test_probabilities() -> None:
    # Logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8.
    given, pairs = readout([[0.0, math.log(2), math.log(5)]]), batch([[2]], [[1]])
    assert ProbDiff()(given, pairs).item() == pytest.approx(3 / 8)
    assert CrossEntropy()(given, pairs).item() == pytest.approx(math.log(8 / 5))
    assert Accuracy()(given, pairs).item() == 1.0
    assert Accuracy()(given, batch([[0]], [[1]])).item() == 0.0


def test_divergences_of_two_tokens() -> None:
    # P = (1/4, 3/4), Q = (1/2, 1/2), M = (3/8, 5/8).
    clean, other, pairs = readout([[0.0, math.log(3)]]), readout([[0.0, 0.0]]), batch([[0]], [[1]])
    kl = 1 / 4 * math.log(1 / 2) + 3 / 4 * math.log(3 / 2)
    js = 0.5 * (1 / 4 * math.log(2 / 3) + 3 / 4 * math.log(6 / 5)) + 0.5 * (
        1 / 2 * math.log(4 / 3) + 1 / 2 * math.log(4 / 5)
    )
    assert Kl()(other, pairs, clean).item() == pytest.approx(kl, rel=1e-5)
    assert Js()(other, pairs, clean).item() == pytest.approx(js, rel=1e-5)
    assert Js()(clean, pairs, other).item() == pytest.approx(js, rel=1e-5)
    assert Kl()(clean, pairs, clean).item() == pytest.approx(0.0, abs=1e-7)


GRAPH = Graph(2, 1)


def scored(values: dict[str, float]) -> EdgeScores:
    table = torch.zeros(GRAPH.n_writers, GRAPH.n_readers)
    for name, value in values.items():
        table[GRAPH.index(name)] = value
    return EdgeScores.of(GRAPH, table)


def test_top_by_value_and_by_magnitude() -> None:
    scores = scored({"input->m0": 0.5, "m0->logits": -0.9, "input->logits": 0.2})
    assert scores.top(2).names() == ["input->m0", "input->logits"]
    assert scores.top(2, by="magnitude").names() == ["input->m0", "m0->logits"]
    assert len(scores.top(0)) == 0
    assert len(scores.top(1.0)) == GRAPH.n_edges


def test_ties_go_to_the_lower_index() -> None:
    scores = scored({"input->m1": 1.0, "input->m0": 1.0, "a0.h0->m0": 1.0})
    assert scores.top(1).names() == ["input->m0"]
    assert scores.top(2).names() == ["input->m0", "input->m1"]


def test_greedy_grows_from_the_logits() -> None:
    # The best edge of all, input->a0.h0<q>, is not connected to the logits before a0.h0 is.
    scores = scored(
        {"input->a0.h0<q>": 9.0, "m1->logits": 3.0, "a0.h0->m1": 2.0, "input->logits": 1.0}
    )
    assert scores.greedy(1).names() == ["m1->logits"]
    assert set(scores.greedy(2).names()) == {"m1->logits", "a0.h0->m1"}
    assert set(scores.greedy(3).names()) == {"m1->logits", "a0.h0->m1", "input->a0.h0<q>"}
    assert set(scores.greedy(4).names()) == {
        "m1->logits",
        "a0.h0->m1",
        "input->a0.h0<q>",
        "input->logits",
    }


def test_pruning_removes_what_is_on_no_path() -> None:
    circuit = Circuit.from_names(
        GRAPH, ["input->m0", "m0->logits", "input->a0.h0<q>", "a1.h0->logits", "m0->a1.h0<k>"]
    )
    # a0.h0 leads nowhere; a1.h0 is reached through its key alone, which is enough to move it.
    assert circuit.pruned().names() == ["input->m0", "m0->a1.h0<k>", "m0->logits", "a1.h0->logits"]
    assert circuit.weighted_edge_count() == 5.0
    assert circuit.live().sum() == 3


def test_quadrature_points_and_weights() -> None:
    assert quadrature("left", 5)[0] == (0.0, 0.2, 0.4, 0.6, 0.8)
    assert quadrature("right", 2)[0] == (0.5, 1.0)
    assert quadrature("midpoint", 2)[0] == (0.25, 0.75)
    nodes, weights = quadrature("gauss-legendre", 2)
    assert nodes == pytest.approx((0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3)))
    assert weights == pytest.approx((0.5, 0.5))
    for rule in ("left", "right", "midpoint", "gauss-legendre"):
        assert sum(quadrature(rule, 7)[1]) == pytest.approx(1.0)


def linear(name: str) -> Subject:
    """A tiny model whose logits are linear in the token embeddings.

    Norms only subtract the mean and scale (their eps swamps the variance), queries are 0, so that
    every token attends equally to all before it, and MLPs have no activation function.
    """
    tiny = subject(name, dtype=torch.float64)

    def constant(norm: Norm) -> Norm:
        return replace(norm, eps=1e16, weight=norm.weight * 1e8)

    def layer(old: Layer) -> Layer:
        attention, mlp = old.attention, old.mlp
        assert mlp is not None and mlp.gate is None and attention.post_norm is None
        bias = None if attention.q.bias is None else torch.zeros_like(attention.q.bias)
        blind = replace(
            attention,
            norm=constant(attention.norm),
            q=Projection(torch.zeros_like(attention.q.weight), bias),
        )
        return replace(
            old, attention=blind, mlp=replace(mlp, norm=constant(mlp.norm), act=lambda x: x)
        )

    old = tiny.model.decoder
    decoder = replace(
        old, final_norm=constant(old.final_norm), layers=tuple(layer(each) for each in old.layers)
    )
    return Subject(replace(tiny.model, decoder=decoder), tiny.batch)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_exact_patching_is_attribution_where_the_model_is_linear(name: str) -> None:
    case = linear(name)
    graph = case.model.graph
    exact, estimated = (
        method.score(case.model, case.batch).values for method in (ExactPatching(), EAP())
    )
    torch.testing.assert_close(exact, estimated, rtol=1e-6, atol=1e-6, equal_nan=True)
    # Readers of all kinds have effects, but for queries and keys: attention is constant.
    by_reader = exact.nan_to_num(0).abs().amax(0)
    for layer in range(graph.n_layers):
        queries, keys, values = by_reader[graph.slots(layer)].view(3, -1)
        assert float(values.min()) > 1e-3 and float(by_reader[graph.mlp_reader(layer)]) > 1e-3
        assert float(torch.cat((queries, keys)).max()) < 1e-6


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_effects_of_nodes_where_the_model_is_linear(name: str) -> None:
    """A node's effect is NAP's estimate and the sum of its edges';
    that of `input` is all there is, and the sum of direct ones.
    """
    case = linear(name)
    model, batch, graph = case.model, case.batch, case.model.graph
    found = ExactNodePatching().score(model, batch).values
    torch.testing.assert_close(
        found, NAP(level="node").score(model, batch).values, rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        found, ExactPatching().score(model, batch).values.nansum(1), rtol=1e-5, atol=1e-5
    )
    ends = evaluate(model, [Circuit.full(graph), Circuit.empty(graph)], batch).mean(1)
    assert float(found[0]) == pytest.approx(ends[0] - ends[1], rel=1e-6)
    direct = ExactNodePatching(paths="direct").score(model, batch).values
    assert float(direct.sum()) == pytest.approx(ends[0] - ends[1], rel=1e-5, abs=1e-5)
    # The last heads write for the logits, and (in sequence, not in parallel) for the MLP after
    # them.
    heads = graph.heads(graph.n_layers - 1)
    assert torch.allclose(direct[heads], found[heads], rtol=1e-4) == graph.parallel
