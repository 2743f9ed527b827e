"""Small pools of random prompts, and circuits of any model to compare on them."""

from __future__ import annotations

import torch
from torch import Tensor

from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.examples import Prompt
from mechassay.models.model import Model
from mechassay.testing.tiny import VOCABULARY

LENGTH, N_CLEAN, N_CORRUPTED = 6, 5, 3


def pool(tokens: Tensor) -> Pool:
    return Pool(tuple(Prompt(" ".join(map(str, row))) for row in tokens.tolist()), tokens)


def pools(n_clean: int = N_CLEAN, n_corrupted: int = N_CORRUPTED) -> tuple[Pool, Pool]:
    """Prompts that begin alike; one is in both pools."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (n_clean + n_corrupted, LENGTH), generator=generator)
    tokens[:, :2] = tokens[0, :2]
    tokens[n_clean:, 4] = tokens[0, 4]
    tokens[-1] = tokens[n_clean - 1]
    return pool(tokens[:n_clean]), pool(tokens[n_clean:])


def circuits(model: Model) -> list[Circuit]:
    """Few and many edges, some neurons of some writers, and nodes."""
    graph, generator = model.graph, torch.Generator().manual_seed(6)
    masks = [
        (torch.rand(graph.legal.shape, generator=generator) < share) & graph.legal
        for share in (0.15, 0.7)
    ]
    neurons = torch.rand(graph.n_writers, model.decoder.d_model, generator=generator) < 0.5
    nodes = torch.rand(graph.n_writers, generator=generator) < 0.8
    nodes[0] = True
    return [
        *(Circuit(graph, mask) for mask in masks),
        Circuit(graph, masks[1], neurons),
        Circuit.of_nodes(graph, nodes),
    ]
