"""Scorings of a model's edges: methods, random rankings, and ones made from the true effects.

A made scoring begins with what exact patching gives the true edges on the train pairs, and noise
of a millionth of their median magnitude on all others, and then does one thing wrong: more noise,
wrong signs, a true edge too low, false edges too high. So its faults are known, and with them how
good it is. All but `magnitudes` and `random order` keep the signs of the effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.metrics import by_edge
from mechassay.circuits.methods import load_method
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.circuits.scores import EdgeScores, Scores
from mechassay.errors import BadPairs, BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.utils.display import SILENT

METHODS: Mapping[str, str] = {
    "eap": "eap",
    "eap gim": "eap:backward=gim",
    "eap-ig-inputs": "eap-ig-inputs",
    "eap-ig-inputs gim": "eap-ig-inputs:backward=gim",
    "eap-ig-activations": "eap-ig-activations",
    "clean-corrupted": "clean-corrupted",
    "ifr": "ifr",
    "exact": "exact",
    "acdc": "acdc",
    "exact-nodes": "exact-nodes",
    "nap-ig": "nap-ig:level=node",
    "ugs": "ugs:steps=100",
    "subnetwork-probing": "subnetwork-probing:steps=300",
    "edge-pruning": "edge-pruning:steps=300",
}
"""What is a method of the study, as the package makes it."""
FEW = (
    *("random edges 0", "random paths 0", "as they are", "noise .3 0", "noise 1 0", "noise 3 0"),
    *("signs .5", "weakest last", "strongest last", "false .1", "false .3", "false .6"),
)
"""What the smaller grids have beside the methods."""
N_RANDOM = 3
TINY = 1e-6
"""Scores of edges that do nothing, in medians of the true ones."""


class Scoring(NamedTuple):
    """Scores with the sort of scoring that they are: "method", "random" or "made"."""

    sort: str
    scores: Scores


class Scorings(NamedTuple):
    """All scorings of one model and sample, and why methods have none."""

    made: Mapping[str, Scoring]
    refused: Mapping[str, str]


def all_scorings(
    model: Model,
    truth: Circuit,
    train: Batch,
    objective: str,
    *,
    methods: Mapping[str, str] = METHODS,
    few: bool = False,
    seed: int = 0,
) -> Scorings:
    """Score with all methods, draw the random rankings, and make the others.

    Args:
        methods: what to call the methods, and how the package makes them; "exact" and
            "eap-ig-inputs" are among them, as others are made from these.
        few: only the made and random ones of `FEW`.
        seed: of what is drawn.
    """
    scored: dict[str, Scores] = {}
    refused: dict[str, str] = {}
    for label, text in methods.items():
        try:
            scored[label] = load_method(text).score(model, train, objective, progress=SILENT)
        except (BadPairs, BadUsage) as error:
            refused[label] = str(error)
    made = {label: Scoring("method", scores) for label, scores in scored.items()}
    graph = model.graph
    for draw in range(N_RANDOM):
        number = N_RANDOM * seed + draw
        made[f"random edges {draw}"] = Scoring("random", Random(seed=number).draw(graph))
        made[f"random paths {draw}"] = Scoring("random", RandomPaths(seed=number).draw(graph))
    exact, integrated = (
        by_edge(scored[label]).values[graph.legal].double().numpy()
        for label in ("exact", "eap-ig-inputs")
    )
    member = truth.edges[graph.legal].numpy()
    for label, values in made_values(exact, integrated, member, np.random.default_rng(seed)):
        made[label] = Scoring("made", _edge_scores(graph, values))
    kept = {label: one for label, one in made.items() if not few or _in_few(label, one)}
    return Scorings(kept, refused)


def _in_few(label: str, scoring: Scoring) -> bool:
    return scoring.sort == "method" or label in FEW


def _edge_scores(graph: Graph, values: Float[np.ndarray, "edges"]) -> EdgeScores:
    table = torch.full(graph.legal.shape, torch.nan)
    table[graph.legal] = torch.from_numpy(values).float()
    return EdgeScores(graph, table, {"method": "made"})


def made_values(
    exact: Float[np.ndarray, "edges"],
    integrated: Float[np.ndarray, "edges"],
    member: Bool[np.ndarray, "edges"],
    rng: np.random.Generator,
) -> Iterator[tuple[str, Float[np.ndarray, "edges"]]]:
    """The 25 made scorings of all edges, by name.

    Args:
        exact: the effects that they are made from.
        integrated: scores of a real method, to which noise is added.
        member: whether an edge is true.
    """
    n, unit = len(exact), float(np.median(np.abs(exact[member])))
    tiny = rng.normal(size=n) * TINY * unit
    base = np.where(member, exact, tiny)
    yield "as they are", base
    yield "magnitudes", np.where(member, np.abs(exact), tiny)
    for name, size in {".1": 0.1, ".3": 0.3, "1": 1.0, "3": 3.0}.items():
        for draw in range(2):
            yield f"noise {name} {draw}", base + rng.normal(size=n) * size * unit
    for name, size in {".3": 0.3, "1": 1.0}.items():
        yield f"eap-ig-inputs, noise {name}", integrated + rng.normal(size=n) * size * unit
    for name, share in {".25": 0.25, ".5": 0.5, "1": 1.0}.items():
        yield f"signs {name}", np.where(rng.random(n) < share, -base, base)
    true = np.flatnonzero(member)
    ordered = true[np.argsort(np.abs(exact[true]))]
    for name, edge in {"weakest": ordered[0], "strongest": ordered[-1]}.items():
        yield f"{name} 0", _changed(base, edge, 0.0)
        # By magnitude below all others, by value below all false ones.
        others = np.where(member, base, np.abs(tiny) + TINY * unit)
        yield f"{name} last", _changed(others, edge, -TINY * TINY * unit)
    false, top = np.flatnonzero(~member), float(np.abs(exact[true]).max())
    for name, share in {".05": 0.05, ".1": 0.1, ".3": 0.3, ".6": 0.6}.items():
        above = rng.permutation(false)[: int(share * n)]
        yield f"false {name}", _changed(base, above, top * (1.01 + rng.random(len(above))))
    lost = rng.permutation(true)[: len(true) // 2]
    yield "half 0", _changed(base, lost, tiny[lost])
    yield "random order", np.where(member, unit * (1 + rng.random(n)), tiny)


def _changed(
    values: Float[np.ndarray, "edges"],
    edges: np.ndarray | np.intp,
    new: np.ndarray | float,
) -> Float[np.ndarray, "edges"]:
    values = values.copy()
    values[edges] = new
    return values
