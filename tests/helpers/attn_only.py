"""Attention-only models the slow way, from a checkpoint's tensors:
one prompt, one head and one query at a time.

Nothing is taken from the package but the numbering of a graph's nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mechassay.models.graph import Graph
from mechassay.prompts.batch import Batch

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Run:
    """A run of one prompt: what every writer wrote, [writers][pos, d],
    and the stream before each layer and after the last.
    """

    writers: list[Tensor]
    streams: list[Tensor]


def graph_of(state: State) -> Graph:
    layers = sum(name.endswith("attn.W_O") for name in state)
    return Graph(layers, len(state["blocks.0.attn.W_O"]), mlp=False)


def layer_norm(state: State, name: str, x: Tensor) -> Tensor:
    rows = [(row - row.mean()) / torch.sqrt(((row - row.mean()) ** 2).mean() + 1e-5) for row in x]
    return torch.stack(rows) * state[f"{name}.w"] + state[f"{name}.b"]


def head_output(
    state: State, layer: int, head: int, streams: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """What a head writes when its query, key and value read these streams."""
    q, k, v = (
        layer_norm(state, f"blocks.{layer}.ln1", x) @ state[f"blocks.{layer}.attn.W_{slot}"][head]
        + state[f"blocks.{layer}.attn.b_{slot}"][head]
        for slot, x in zip("QKV", streams, strict=True)
    )
    rows: list[Tensor] = []
    for place in range(len(q)):
        scores = (
            torch.stack([q[place] @ k[earlier] for earlier in range(place + 1)]) / q.shape[1] ** 0.5
        )
        weights = scores.exp() / scores.exp().sum()
        rows.append(
            sum(
                (weights[earlier] * v[earlier] for earlier in range(place + 1)),
                torch.zeros_like(v[0]),
            )
        )
    return torch.stack(rows) @ state[f"blocks.{layer}.attn.W_O"][head]


def logits_of(state: State, stream: Tensor) -> Tensor:
    return layer_norm(state, "ln_final", stream) @ state["unembed.W_U"] + state.get(
        "unembed.b_U", 0.0
    )


def run(state: State, tokens: Tensor) -> Run:
    graph = graph_of(state)
    embed = state["embed.W_E"][tokens]
    writers, streams = [embed], [embed + state["pos_embed.W_pos"][: len(tokens)]]
    for layer in range(graph.n_layers):
        x = streams[-1]
        heads = [head_output(state, layer, head, (x, x, x)) for head in range(graph.n_heads)]
        writers += heads
        streams.append(x + sum(heads) + state[f"blocks.{layer}.attn.b_O"])
    return Run(writers, streams)


def circuit_logits(state: State, clean: Tensor, reference: Run, coefficients: Tensor) -> Tensor:
    """Logits at the last position with coefficient M[u, v] on every edge:
    x_v = R'_v + sum_u M[u, v] (a_u - a'_u).
    """
    graph = graph_of(state)
    changes = [state["embed.W_E"][clean] - reference.writers[0]]

    def stream(reader: int, layer: int) -> Tensor:
        return reference.streams[layer] + sum(
            coefficients[u, reader] * changes[u] for u in range(int(graph.visible[reader]))
        )

    for layer in range(graph.n_layers):
        outputs: list[Tensor] = []
        for head in range(graph.n_heads):
            q, k, v = (stream(graph.slot(layer, slot, head), layer) for slot in range(3))
            outputs.append(
                head_output(state, layer, head, (q, k, v))
                - reference.writers[graph.head(layer, head)]
            )
        changes += outputs
    return logits_of(state, stream(graph.logits, graph.n_layers))[-1]


def batch_logits(state: State, batch: Batch, coefficients: Tensor) -> Tensor:
    """`circuit_logits` of every pair, each without its padding: [batch, vocab]."""
    rows: list[Tensor] = []
    for clean, other, real in zip(batch.clean, batch.counterfactual, batch.mask, strict=True):
        rows.append(circuit_logits(state, clean[real], run(state, other[real]), coefficients))
    return torch.stack(rows)
