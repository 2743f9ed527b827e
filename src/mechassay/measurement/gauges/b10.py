"""B10, K-composition: products of the weights of heads, which no prompt is needed for.

A head's matrices are taken as the stream meets them: the norm before a reader is folded into what
it reads by, and a norm behind a layer into what its heads write. Only the scales that depend on the
input are left out. Queries and keys are taken at distance 0 where positions rotate them.

With roots L of Gram matrices (L L^T = W W^T), norms of products of d_model by d_model matrices are
those of d_head by d_head ones: ||W_QK OV|| = ||(L_Q^T W_K)(L_V^T W_O)^T||.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.graph import SLOTS, Graph
from mechassay.measurement.formulas import composition as formula
from mechassay.measurement.gauges.arms import heads_of
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.models.decoder import Attention, Decoder, Norm, at_least_fp32
from mechassay.progress import SILENT, Progress

Heads = Float[Tensor, "heads d_head d_model"]
Own = Float[Tensor, "own d_head d_model"]
"""Query heads, or the key and value heads that they share."""


@dataclass(frozen=True)
class KComposition:
    """Do the heads of a circuit fit each other, more than other heads of their layers?

    Attributes:
        draws: relabelled circuits.
    """

    draws: int = formula.N_DRAWS

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "circuit")

    def __post_init__(self) -> None:
        if self.draws < 100:
            raise BadUsage(f"A share of 5 % needs 100 relabelled circuits; got {self.draws}.")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        decoder, circuit = inputs.model.decoder, inputs.circuit
        graph = circuit.graph
        own = heads_of(circuit)
        inside = np.stack([own[graph.heads(layer)].numpy() for layer in range(graph.n_layers)])
        return formula.composition(
            k_products(decoder, inputs.progress),
            inside,
            composition_scores(decoder, inputs.progress),
            head_edges(circuit),
            n_draws=self.draws,
            seed=inputs.seed,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is edges between heads."""
        return formula.null(20 if n is None else n, n_simulations, seed)


def head_edges(circuit: Circuit) -> formula.Edges:
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
    writers = [at_least_fp32(each.out) for each in layers]
    readers = [_of_each_head(at_least_fp32(each.k.weight), each) for each in layers]
    return _products(writers, readers, progress, later=False)


@torch.no_grad()
def composition_scores(decoder: Decoder, progress: Progress = SILENT) -> formula.Scores:
    """Composition scores by slot, writer and reader; NaN where the reader is of no later layer.

    A head that writes nothing, or reads nothing, composes with nothing: 0.
    """
    layers = [layer.attention for layer in decoder.layers]
    writers = [_unit(_written(each)) for each in layers]
    found = [
        _products(writers, [_unit(_read(each)[slot]) for each in layers], progress, later=True)
        for slot in range(len(SLOTS))
    ]
    return np.stack(found)


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
    q = _scaled(_folded(at_least_fp32(attention.q.weight), norm), attention.q_norm)
    k = _scaled(_folded(at_least_fp32(attention.k.weight), norm), attention.k_norm)
    k = _of_each_head(k, attention)
    v = _of_each_head(_folded(at_least_fp32(attention.v.weight), norm), attention)
    return _root(k).mT @ q, _root(q).mT @ k, _root(_out(attention)).mT @ v


def _folded(weight: Own, norm: Norm) -> Own:
    """A map that reads behind a norm: with the norm's weight, and without the mean."""
    wide = weight * norm.weight.to(weight.dtype)
    return wide - wide.mean(dim=-1, keepdim=True) if norm.centred else wide


def _scaled(weight: Own, norm: Norm | None) -> Own:
    """Queries or keys behind a norm of their own: its weight on each of their dimensions."""
    return weight if norm is None else weight * norm.weight.to(weight.dtype)[:, None]


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
