"""B10: weights the slow way, circuits whose heads fit, what scaling and names change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config

from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.measurement import measure
from mechassay.measurement.metric import load_gauge
from mechassay.measurement.metrics.k_composition import (
    composition,
    composition_scores,
    head_edges,
    k_products,
    longest_chain,
    null,
    percentiles,
    relabelled,
)
from mechassay.models.decoder import Attention, Decoder
from mechassay.models.model import make_model
from mechassay.testing import tiny

LAYERS, HEADS = 3, 6
RNG = np.random.default_rng


def noise(seed: int = 0) -> Any:
    return RNG(seed).random((3, LAYERS, HEADS, LAYERS, HEADS))


def chain(n: int, slot: int = 0) -> Any:
    """Edges from head i of layer 0 to head i of layer 1."""
    return np.array([(slot, 0, i, 1, i) for i in range(n)])


def found(scores: Any, edges: Any, **more: Any) -> Any:
    inside = np.zeros((LAYERS, HEADS), dtype=bool)
    inside[0, :2] = inside[1, :2] = True
    raw = RNG(1).random((LAYERS, HEADS, LAYERS, HEADS))
    return composition(raw, inside, scores, edges, n_draws=400, **more)


# The formula


def test_percentiles_by_hand() -> None:
    scores = np.full((1, 2, 2, 2, 2), np.nan)
    scores[0, 0, :, 1] = [[3.0, 1.0], [1.0, 9.0]]
    places = percentiles(scores)[0]
    # Of four pairs: two share the places 1 and 2, then 3, then 4; each less a half.
    assert places[0, :, 1].tolist() == [[2.5 / 4, 1 / 4], [1 / 4, 3.5 / 4]]
    assert np.isnan(places[1]).all() and np.isnan(places[0, :, 0]).all()


def test_edges_that_fit_pass_and_others_do_not() -> None:
    scores, edges = noise(), chain(4)
    worthless = found(scores, edges)
    scores[tuple(edges.T)] += 1
    fitting = found(scores, edges)
    assert fitting.passed is True and fitting.repaired["percentile"] > 0.9
    assert worthless.passed is False and worthless.repaired["p"] > 0.05
    scores[tuple(edges.T)] -= 2
    assert found(scores, edges).repaired["p"] > 0.95, "Fitting less than chance is no pass."


def test_p_is_that_of_all_relabellings() -> None:
    """Two layers of three heads have 36 relabellings, which the drawn ones are a sample of."""
    from itertools import permutations

    scores = RNG(3).random((1, 2, 3, 2, 3))
    places, edges = percentiles(scores), np.array([(0, 0, 0, 1, 1), (0, 0, 1, 1, 2)])
    value = np.mean([places[tuple(edge)] for edge in edges])
    every = [
        np.mean([places[0, 0, a[h], 1, b[g]] for _, _, h, _, g in edges])
        for a in permutations(range(3))
        for b in permutations(range(3))
    ]
    drawn = relabelled(places, edges, RNG(0), 4000)
    assert drawn.value == pytest.approx(value)
    assert drawn.p == pytest.approx(np.mean(np.array(every) >= value - 1e-12), abs=0.03)


def test_nothing_is_told_by_too_few_heads() -> None:
    two = RNG(0).random((3, 2, 2, 2, 2))
    edges = np.array([(0, 0, 0, 1, 0)])
    # One edge between two heads and two has four places: the best has a quarter of all draws.
    few = composition(two[0], np.ones((2, 2), dtype=bool), two, edges, n_draws=400)
    assert few.passed is None and few.flagged("few_heads") and few.repaired["percentile"] is None
    every = np.array([(0, 0, h, 1, g) for h in range(HEADS) for g in range(HEADS)])
    assert found(noise(), every).passed is None, "All pairs are no choice of heads."
    none = found(noise(), np.empty((0, 5), dtype=int))
    assert none.passed is None and none.null is None
    assert "no edge" in none.repaired.quantities["p"].reason


def test_edges_lead_to_later_layers() -> None:
    with pytest.raises(BadUsage, match="to a later one"):
        found(noise(), np.array([(0, 1, 0, 1, 1)]))


def test_names_of_heads_and_units_do_not_matter() -> None:
    scores, edges = noise(), chain(4)
    scores[tuple(edges.T)] += 0.4
    other = RNG(5).permuted(np.tile(np.arange(HEADS), (LAYERS, 1)), axis=1)
    renamed = np.empty_like(scores)
    for a in range(LAYERS):
        for b in range(LAYERS):
            renamed[:, a, other[a][:, None], b, other[b][None]] = scores[:, a, :, b]
    moved = [(s, a, other[a][h], b, other[b][g]) for s, a, h, b, g in edges.tolist()]
    mine = found(scores, edges)
    for another in (found(renamed, np.array(moved)), found(np.exp(scores), edges)):
        assert another.repaired["percentile"] == pytest.approx(mine.repaired["percentile"])
        assert another.repaired["p"] == pytest.approx(mine.repaired["p"], abs=0.03)


def test_the_published_numbers_by_hand() -> None:
    raw = np.arange(16, dtype=float).reshape(2, 2, 2, 2)
    inside = np.array([[True, False], [True, False]])
    scores = np.full((3, 2, 2, 2, 2), np.nan)
    page = composition(raw, inside, scores, np.empty((0, 5), dtype=int)).page
    # Heads 0 and 2 of the 4 by 4 matrix: places 2 and 8; of all but the diagonal the mean is 7.5.
    assert page["k_composition_mean"] == 5 and page["background_mean"] == 7.5
    assert page["ratio"] == pytest.approx(5 / 7.5) and page["n_strong_edges"] == 0
    alone = composition(raw, inside & False, scores, np.empty((0, 5), dtype=int)).page
    assert alone["ratio"] is None and alone.passed is None


def test_the_longest_chain_leads_to_later_layers() -> None:
    strong = np.zeros((6, 6), dtype=bool)
    strong[0, 2] = strong[2, 5] = strong[5, 0] = strong[0, 1] = True
    assert longest_chain(strong, [0, 1, 2, 5], heads=2) == 3
    assert longest_chain(strong, [0, 1, 5], heads=2) == 1
    assert longest_chain(strong, [], heads=2) == 1


def test_false_alarms_are_as_rare_as_said() -> None:
    rates = null(20, n_simulations=200)
    assert rates.false_alarm("repaired") < 0.1 and rates.power("repaired") > 0.8


# Weights


def tiny_decoder(family: str) -> Decoder:
    return make_model(tiny.build(family)).decoder


def slowly(decoder: Decoder, slot: int, a: int, h: int, b: int, g: int) -> float:
    """A composition score from whole d_model by d_model matrices."""

    def read(part: Attention, which: str, head: int) -> Any:
        projection, own = getattr(part, which), head // (part.group if which != "q" else 1)
        weight = projection.weight[own].double()
        if projection.norm is not None:
            scales = projection.norm.weight.double().view(projection.weight.shape[:2])
            weight = scales[own][:, None] * weight
        norm = getattr(part, f"{which}_norm", None)
        weight = weight if norm is None else norm.weight.double()[:, None] * weight
        weight = weight * part.norm.weight.double()
        return weight - weight.mean(1, keepdim=True) if part.norm.centred else weight

    def ov(part: Attention, head: int) -> Any:
        out = part.out[head].double()
        out = out if part.post_norm is None else out * part.post_norm.weight.double()
        return out.T @ read(part, "v", head)

    writer, reader = decoder.layers[a].attention, decoder.layers[b].attention
    q, k = read(reader, "q", g), read(reader, "k", g)
    by = (k.T @ q, q.T @ k, ov(reader, g))[slot]
    return float((by @ ov(writer, h)).norm() / by.norm() / ov(writer, h).norm())


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "olmo2", "stablelm_12b"])
def test_scores_are_those_of_whole_matrices(family: str) -> None:
    decoder = tiny_decoder(family)
    scores = composition_scores(decoder)
    for place in ((0, 0, 0, 1, 1), (1, 0, 1, 1, 0), (2, 0, 1, 1, 1)):
        assert scores[place] == pytest.approx(slowly(decoder, *place), rel=1e-4)
    assert np.isnan(scores[:, 1, :, 0]).all() and np.nanmax(scores) <= 1
    part = decoder.layers[1].attention
    key = part.k.weight[1 // part.group]
    raw = k_products(decoder)
    assert raw[0, 0, 1, 1] == pytest.approx(
        float((decoder.layers[0].attention.out[0] @ key.T).norm())
    )


def test_how_weights_are_scaled_changes_the_published_number_alone() -> None:
    """The defect: W_V times 4 and W_O by 4 is the same model, with another K-composition."""
    decoder = tiny_decoder("gpt2")
    part = decoder.layers[0].attention
    scaled = replace(
        part, v=replace(part.v, weight=part.v.weight * 4), out=part.out / 4, out_bias=None
    )
    same = replace(
        decoder, layers=(replace(decoder.layers[0], attention=scaled), *decoder.layers[1:])
    )
    assert k_products(same)[0, 0, 1, 0] == pytest.approx(k_products(decoder)[0, 0, 1, 0] / 4)
    assert composition_scores(same) == pytest.approx(
        composition_scores(decoder), rel=1e-4, nan_ok=True
    )


def test_a_head_that_writes_nothing_composes_with_nothing() -> None:
    decoder = tiny_decoder("gpt2")
    with torch.no_grad():
        decoder.layers[0].attention.out[0].zero_()
    scores = composition_scores(decoder)
    assert (scores[:, 0, 0, 1] == 0).all() and (scores[:, 0, 1, 1] > 0).all()


def test_edges_between_heads_are_those_on_paths() -> None:
    model = make_model(tiny.build("gpt2"))
    names = [
        "input->a0.h0<v>",
        "a0.h0->a1.h1<k>",
        "a1.h1->logits",
        "a0.h1->a1.h0<q>",
        "a0.h0->logits",
    ]
    assert head_edges(Circuit.from_names(model.graph, names)).tolist() == [[1, 0, 0, 1, 1]]
    assert head_edges(Circuit.empty(model.graph)).shape == (0, 5)


# The gauge


def planted(seed: int = 0) -> tuple[Any, Circuit]:
    """A model whose head i of layer 1 reads what head i of layer 0 writes, and the circuit."""
    shape = {"n_embd": 64, "n_head": 8, "n_layer": 2}
    config = GPT2Config(**{**tiny.configs()["gpt2"].to_dict(), **shape})
    model = make_model(tiny.random_model(config, seed=seed))
    one, two = (layer.attention for layer in model.decoder.layers)
    with torch.no_grad():
        for head in range(4):
            two.v.weight[head] += 2 * one.out[head]
    names = [f"input->a0.h{i}<v>" for i in range(8)] + [f"a1.h{i}->logits" for i in range(8)]
    right = [f"a0.h{i}->a1.h{i}<v>" for i in range(4)]
    return model, Circuit.from_names(model.graph, names + right)


def test_a_circuit_whose_heads_fit_passes() -> None:
    model, circuit = planted()
    right = measure("B10", model, circuit=circuit)
    assert right.passed is True and str(right.criterion) == "mv-27@1:C2"
    assert right.repaired["percentile"] > 0.9 and right.page.passed is None
    wrong = [name for name in circuit.names() if "->a1" not in name]
    wrong += [f"a0.h{i}->a1.h{3 - i}<v>" for i in range(4)]
    other = measure("B10", model, circuit=Circuit.from_names(model.graph, wrong))
    assert other.passed is False and other.repaired["percentile"] < 0.7
    # The published number is of whole heads and of keys: it is the same of both.
    assert right.page["k_composition_mean"] == pytest.approx(other.page["k_composition_mean"])


def test_settings_and_script() -> None:
    assert load_gauge("B10_k_composition").id == load_gauge("b10").id == "B10"
    with pytest.raises(BadUsage, match="draws of at least 100"):
        load_gauge("B10:draws=9")
    model, circuit = planted()
    once, twice = (measure("B10", model, circuit=circuit) for _ in range(2))
    assert once.repaired.values == twice.repaired.values
    assert load_gauge("B10").null(10, 20).false_alarm("repaired") < 0.3
