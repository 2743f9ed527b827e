"""B10, K-composition: do the weights of a circuit's heads fit each other? No prompt is needed.

`page`      ||W_O W_K|| (Frobenius) of every two heads; the mean over all ordered pairs of the
            circuit's heads, beside that over all pairs of the model; pairs above its mean and
            one standard deviation are strong, and the longest chain of them is the depth. It
            only reports. Half of the pairs lead backwards, pairs of early and of late layers are
            one background, and a product of weights depends on how they are scaled: W_V times 2
            and W_O by 2 is the same head.
`repaired`  the composition scores of Elhage et al. (2021), norms folded in: with OV of the
            writer and the matrix M by which the reader's query, key or value reads (QK, its
            transpose, OV),

                ||M OV|| / (||M|| ||OV||)

            of the circuit's own edges between heads. An edge's percentile is among all pairs of
            heads of its two layers, by the same reader. The null relabels the heads of each
            layer: the same circuit of other heads of the same layers. p is the share of
            relabelled circuits whose mean percentile is as large.

A circuit whose best relabelling is no rarer than 5 % has too few heads and is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.circuit_runs import heads_of
from mechassay.models.decoder import Attention, Decoder, Norm, Projection, at_least_fp32
from mechassay.models.graph import SLOTS, Graph
from mechassay.results.records import Table
from mechassay.utils.display import SILENT, Progress
from mechassay.utils.settings import Within, checked_settings

ID = "B10"
ALPHA = 0.05
REPAIRED = (Condition("p", "<", ALPHA),)
N_DRAWS = 2000
AT_ONCE = 2_000_000
"""Edges of relabelled circuits that are looked up at once."""
Scores = Float[np.ndarray, "slots layers heads layers heads"]
"""Composition by the reader's slot, of writer (layer, head) and reader (layer, head)."""
Edges = Int[np.ndarray, "n 5"]
"""Rows of slot, writer's layer and head, reader's layer and head, as `Scores` are indexed."""


@dataclass(frozen=True)
class Relabelled:
    """A circuit's mean percentile, and those of the same circuit of other heads.

    Attributes:
        drawn: the mean percentile of each relabelling.
    """

    value: float
    drawn: Float[np.ndarray, "draws"]

    @property
    def p(self) -> float:
        """The share of relabelled circuits, and of this one, that are as large."""
        return float((1 + (self.drawn >= self.value - 1e-12).sum()) / (1 + len(self.drawn)))

    @property
    def least_p(self) -> float:
        """What p is if no relabelling is larger: above 5 % nothing can be told."""
        best = max(self.value, float(self.drawn.max()))
        return float((self.drawn >= best - 1e-12).mean())


def percentiles(scores: Scores) -> Scores:
    """Where each pair of heads stands among those of its two layers and slot: 0 to 1, chance .5.

    Ties share the middle of their places. Pairs whose writer is not of an earlier layer have NaN.
    """
    slots, layers, heads = scores.shape[:3]
    out = np.full(scores.shape, np.nan)
    for writer in range(layers):
        for reader in range(writer + 1, layers):
            block = scores[:, writer, :, reader].reshape(slots, -1)
            places = (rankdata(block, axis=1) - 0.5) / heads**2
            out[:, writer, :, reader] = places.reshape(slots, heads, heads)
    return out


def relabelled(
    places: Scores, edges: Edges, rng: np.random.Generator, n_draws: int = N_DRAWS
) -> Relabelled:
    """The mean percentile of edges, and of as many draws with the heads of each layer exchanged."""
    slot, a, h, b, g = edges.T
    layers, heads = places.shape[1:3]
    drawn: list[Float[np.ndarray, "draws"]] = []
    step = max(1, AT_ONCE // max(len(edges), layers * heads))
    for first in range(0, n_draws, step):
        some = min(step, n_draws - first)
        new = rng.permuted(np.tile(np.arange(heads), (some, layers, 1)), axis=2)
        drawn.append(places[slot, a, new[:, a, h], b, new[:, b, g]].mean(axis=1))
    return Relabelled(float(places[slot, a, h, b, g].mean()), np.concatenate(drawn))


def composition(
    raw: Float[np.ndarray, "layers heads layers heads"],
    inside: Bool[np.ndarray, "layers heads"],
    scores: Scores,
    edges: Edges,
    *,
    n_draws: int = N_DRAWS,
    seed: int = 0,
) -> Measurement:
    """B10 of a circuit.

    Args:
        raw: ||W_O W_K|| of every writer and reader.
        inside: the circuit's heads.
        scores: composition scores of every writer and reader.
        edges: of the circuit, between heads.

    Raises:
        BadUsage: an edge does not lead to a later layer.
    """
    if len(edges) and not (edges[:, 1] < edges[:, 3]).all():
        raise BadUsage("An edge between heads leads from a layer to a later one.")
    flags: list[Flag] = []
    n = len(edges)
    test, least_p, reason, rows = None, math.nan, "", []
    if n:
        places = percentiles(scores)
        test = relabelled(places, edges, np.random.default_rng((seed, n)), n_draws)
        least_p, rows = test.least_p, _rows(scores, places, edges)
        if least_p > ALPHA:
            flags.append(flag("few_heads", least_p=least_p))
            test, reason = None, "few"
    reach = None if test is None else float(np.quantile(test.drawn, 1 - ALPHA))
    repaired = {
        "percentile": quantity(None if test is None else test.value, n=n, reason=reason),
        "relabelled": quantity(reach, n=n_draws, reason=reason),
        "p": quantity(None if test is None else test.p, n=n, reason=reason),
    }
    return Measurement.of(
        ID,
        _page(raw, inside),
        repaired,
        REPAIRED,
        flags=flags,
        null=null(n) if n else None,
        tables=[Table.of("edges", ("edge",), rows)],
        words={"least_p": least_p, "percent": 100 * (1 - ALPHA)},
    )


def _rows(scores: Scores, places: Scores, edges: Edges) -> list[dict[str, object]]:
    return [
        {
            "edge": f"a{a}.h{h}->a{b}.h{g}<{SLOTS[slot]}>",
            "composition": float(scores[slot, a, h, b, g]),
            "percentile": float(places[slot, a, h, b, g]),
        }
        for slot, a, h, b, g in edges.tolist()
    ]


# As published


def _page(
    raw: Float[np.ndarray, "layers heads layers heads"], inside: Bool[np.ndarray, "layers heads"]
) -> dict[str, Quantity]:
    layers, heads = inside.shape
    matrix, own = raw.reshape(layers * heads, -1), np.flatnonzero(inside)
    every = matrix[~np.eye(len(matrix), dtype=bool)]
    some = matrix[np.ix_(own, own)][~np.eye(len(own), dtype=bool)]
    if not len(some):
        keys = ("k_composition_mean", "background_mean", "ratio", "n_strong_edges", "depth")
        reason = "one_head" if len(matrix) < 2 else "few_heads"
        return {key: quantity(None, n=len(own), reason=reason) for key in keys}
    mean, background = float(some.mean()), float(every.mean())
    strong = matrix > background + float(every.std())
    return {
        "k_composition_mean": quantity(mean, n=len(some)),
        "background_mean": quantity(background, n=len(every)),
        "ratio": quantity(mean / background if background else math.nan, n=len(some)),
        "n_strong_edges": quantity(float(strong[np.ix_(own, own)].sum()), n=len(some)),
        "depth": quantity(float(longest_chain(strong, own.tolist(), heads)), n=len(own)),
    }


def longest_chain(strong: Bool[np.ndarray, "n n"], own: Sequence[int], heads: int) -> int:
    """Heads in the longest chain of strong pairs that lead to later layers; 1 if there is none."""
    length: dict[int, int] = {}
    for reader in own:
        before = [
            length[writer]
            for writer in length
            if writer // heads < reader // heads and strong[writer, reader]
        ]
        length[reader] = 1 + max(before, default=0)
    return max(length.values(), default=1)


# How often the threshold errs


@cache
def null(
    n: int = 20, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0, n_draws: int = 199
) -> NullTable:
    """Rates of the condition for circuits of `n` edges, in four layers of eight heads."""
    layers, heads = 4, 8
    pairs = np.array([(a, b) for a in range(layers) for b in range(a + 1, layers)])

    def one(rng: np.random.Generator, gain: float) -> float:
        scores = rng.standard_normal((len(SLOTS), layers, heads, layers, heads))
        a, b = pairs[rng.integers(len(pairs), size=n)].T
        slot, (h, g) = rng.integers(len(SLOTS), size=n), rng.integers(heads, size=(2, n))
        edges = np.unique(np.stack([slot, a, h, b, g], axis=1), axis=0)
        scores[tuple(edges.T)] += gain
        return relabelled(percentiles(scores), edges, rng, n_draws).p

    def draw(rng: np.random.Generator, size: int, gain: float) -> Drawn:
        return {"page": {}, "repaired": {"p": np.array([one(rng, gain) for _ in range(size)])}}

    scenarios = (
        Scenario("a circuit of heads drawn at random", True, lambda r, size: draw(r, size, 0.0)),
        Scenario(
            "edges that compose more by one spread of pairs",
            False,
            lambda r, size: draw(r, size, 1.0),
        ),
    )
    return simulate(scenarios, thresholds(ID, REPAIRED), n, n_simulations=n_simulations, seed=seed)


Heads = Float[Tensor, "heads d_head d_model"]
Own = Float[Tensor, "own d_head d_model"]
"""Query heads, or the key and value heads that they share."""


@dataclass(frozen=True)
@checked_settings
class KComposition(Gauge):
    """Do the heads of a circuit fit each other, more than other heads of their layers?

    Attributes:
        draws: relabelled circuits.
    """

    draws: Annotated[int, Within(100)] = N_DRAWS

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 20

    def measure(self, inputs: GaugeInputs) -> Measurement:
        decoder, circuit = inputs.model.decoder, inputs.circuit
        graph = circuit.graph
        own = heads_of(circuit)
        inside = np.stack([own[graph.heads(layer)].numpy() for layer in range(graph.n_layers)])
        return composition(
            k_products(decoder, inputs.progress),
            inside,
            composition_scores(decoder, inputs.progress),
            head_edges(circuit),
            n_draws=self.draws,
            seed=inputs.seed,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` edges between heads."""
        return null(n, n_simulations, seed)


def head_edges(circuit: Circuit) -> Edges:
    """The edges of a circuit that lead from a head to a head, on paths from input to logits."""
    graph = circuit.graph
    writers, readers = np.nonzero(circuit.pruned().edges.cpu().numpy())
    rows = [
        (slot, a, h, b, g)
        for writer, reader in zip(writers.tolist(), readers.tolist(), strict=True)
        for a, h in _head_place(graph, writer)
        for slot, b, g in _slot_place(graph, reader)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _head_place(graph: Graph, writer: int) -> list[tuple[int, int]]:
    """The layer and number of a writer, if it is a head."""
    layer, place = divmod(writer - 1, graph.writers_per_layer)
    return [(layer, place)] if writer and place < graph.n_heads else []


def _slot_place(graph: Graph, reader: int) -> list[tuple[int, int, int]]:
    """The slot, layer and number of a reader, if it is a head's."""
    layer, place = divmod(reader, graph.readers_per_layer)
    slot, head = divmod(place, graph.n_heads)
    is_head = reader != graph.logits and slot < len(SLOTS)
    return [(slot, layer, head)] if is_head else []


# Weights


@torch.no_grad()
def k_products(
    decoder: Decoder, progress: Progress = SILENT
) -> Float[np.ndarray, "layers heads layers heads"]:
    """||W_O W_K|| of every two heads, by the weights as they are stored."""
    layers = [layer.attention for layer in decoder.layers]
    writers = [at_least_fp32(layer.out) for layer in layers]
    readers = [_of_each_head(at_least_fp32(layer.k.weight), layer) for layer in layers]
    return _products(writers, readers, progress, later=False)


@torch.no_grad()
def composition_scores(decoder: Decoder, progress: Progress = SILENT) -> Scores:
    """Composition scores by slot, writer and reader; NaN where the reader is of no later layer.

    A head's matrices are taken as the stream meets them: the norm before a reader is folded
    into what it reads by, and a norm behind a layer into what its heads write. Only the scales
    that depend on the input are left out. Queries and keys are taken at distance 0 where
    positions rotate them.

    With roots L of Gram matrices (L L^T = W W^T), norms of products of d_model by d_model
    matrices are those of d_head by d_head ones: ||W_QK OV|| = ||(L_Q^T W_K)(L_V^T W_O)^T||.

    A head that writes nothing, or reads nothing, composes with nothing: 0.
    """
    layers = [layer.attention for layer in decoder.layers]
    writers = [_unit(_written(layer)) for layer in layers]
    products = [
        _products(writers, [_unit(_read(layer)[slot]) for layer in layers], progress, later=True)
        for slot in range(len(SLOTS))
    ]
    return np.stack(products)


def _products(
    writers: list[Heads], readers: list[Heads], progress: Progress, *, later: bool
) -> Float[np.ndarray, "layers heads layers heads"]:
    """||W R^T|| of writers and readers; of readers of later layers alone, if asked."""
    n_layers, heads = len(writers), len(writers[0])
    out = np.full((n_layers, heads, n_layers, heads), np.nan)
    with progress.track("layers composed", n_layers) as advance:
        for a, own in enumerate(writers):
            for b in range(a + 1 if later else 0, n_layers):
                flat = own.flatten(0, 1) @ readers[b].flatten(0, 1).mT
                blocks = flat.unflatten(1, (heads, -1)).unflatten(0, (heads, -1))
                out[a, :, b] = blocks.square().sum(dim=(1, 3)).sqrt().cpu().numpy()
            advance(1)
    return out


def _written(attention: Attention) -> Heads:
    """L_V^T W_O of each head: as large in every direction as its OV matrix writes."""
    values = _of_each_head(_folded(at_least_fp32(attention.v.weight), attention.norm), attention)
    return _root(values).mT @ _out(attention)


def _out(attention: Attention) -> Heads:
    """What heads write by, behind the norm of their sum where there is one."""
    out, norm = at_least_fp32(attention.out), attention.post_norm
    if norm is None:
        return out
    centred = out - out.mean(dim=-1, keepdim=True) if norm.centred else out
    return centred * norm.weight.to(out.dtype)


def _read(attention: Attention) -> tuple[Heads, Heads, Heads]:
    """By what each head's query, key and value read: L_K^T W_Q, L_Q^T W_K and L_O^T W_V."""
    norm = attention.norm
    q = _scaled(_folded(at_least_fp32(attention.q.weight), norm), attention.q, attention.q_norm)
    k = _scaled(_folded(at_least_fp32(attention.k.weight), norm), attention.k, attention.k_norm)
    k = _of_each_head(k, attention)
    v = _of_each_head(_folded(at_least_fp32(attention.v.weight), norm), attention)
    return _root(k).mT @ q, _root(q).mT @ k, _root(_out(attention)).mT @ v


def _folded(weight: Own, norm: Norm) -> Own:
    """A map that reads behind a norm: with the norm's weight, and without the mean."""
    wide = weight * norm.weight.to(weight.dtype)
    return wide - wide.mean(dim=-1, keepdim=True) if norm.centred else wide


def _scaled(weight: Own, projection: Projection, shared: Norm | None) -> Own:
    """Queries or keys behind norms of their own: their weights on each of their dimensions."""
    if projection.norm is not None:
        # One weight for each dimension of each head, whether the norm is over all of them or not.
        weight = weight * projection.norm.weight.to(weight.dtype).view(*weight.shape[:2], 1)
    return weight if shared is None else weight * shared.weight.to(weight.dtype)[:, None]


def _of_each_head(weight: Own, attention: Attention) -> Heads:
    """Key and value heads, once for each query head that shares them."""
    return weight.repeat_interleave(attention.group, dim=0)


def _root(weight: Heads) -> Float[Tensor, "heads d_head d_head"]:
    """L with L L^T = W W^T."""
    values, vectors = torch.linalg.eigh((weight @ weight.mT).double())
    return (vectors * values.clamp(min=0).sqrt()[:, None]).to(weight.dtype)


def _unit(weight: Heads) -> Heads:
    size = weight.flatten(1).norm(dim=1)[:, None, None]
    return weight / torch.where(size > 0, size, torch.ones_like(size))
