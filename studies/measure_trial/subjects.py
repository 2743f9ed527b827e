"""Subjects of known worth that metrics are tried on: circuits of ground truths, dictionaries.

    circuits       true            the circuit of a ground truth, verified edge by edge
                   random edges    as many edges, drawn
                   edge missing    the true circuit less one edge, drawn
                   edge wrong      the true circuit with one edge more, drawn
                   edge exchanged  both
    dictionaries   true            planted features at a cosine of .95, in another order
                   random, permuted, merged, noisy (at a cosine of .5): see `saes.synthetic`

Each has all inputs that can be had of it. A ranking of edges begins with the circuit's, in random
order; a trainer's dictionaries have the worth of the dictionary. Beside a dictionary stand two of
which nothing is wrong, one of its width and a wide one, with a row for each kind of a split feature
and for each child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.circuits.scores import EdgeScores
from mechassay.measurement.metric import GaugeInputs
from mechassay.models.graph import Graph
from mechassay.saes.synthetic import SITE, PlantedSettings, PlantedTrainer, Worth, plant
from mechassay.truth.ground_truth import Truth
from mechassay.utils.display import SILENT

TRUE = "true"
ABLATION = "counterfactual"
GOOD_COSINE = 0.95
"""Of the dictionaries of which nothing is wrong with the planted features."""
WORLDS: Mapping[str, PlantedSettings] = {
    "orthogonal features": PlantedSettings(orthogonal=True),
    "oblique features": PlantedSettings(),
    "superposition": PlantedSettings(d=32, n_features=48, active=2.0),
    "rare and frequent": PlantedSettings(
        frequencies=tuple(round(0.3 * 0.88**rank, 4) for rank in range(24))
    ),
    "split features": PlantedSettings(d=48, n_features=16, splits=8, children=2),
    "hierarchy": PlantedSettings(d=48, n_features=16, parents=5, children=3),
}
"""Planted values by name."""
WRONG_DICTIONARIES: Mapping[str, Worth] = {
    "random": "random",
    "decoder permuted": "permuted",
    "merged": "merged",
    "noisy": "noisy",
}


@dataclass(frozen=True, eq=False)
class KnownSubject:
    """Something of known worth.

    Attributes:
        world: the ground truth, or the planted values, by name.
    """

    world: str
    seed: int
    kind: str
    inputs: GaugeInputs

    @property
    def right(self) -> bool:
        return self.kind == TRUE


def near_misses(circuit: Circuit, drawn: torch.Generator) -> dict[str, Circuit]:
    """Circuits that differ from one by a missing edge, a wrong one, or both."""

    def one_of_these(edges: torch.Tensor) -> Circuit:
        places = edges.nonzero()
        place = places[int(torch.randint(len(places), (1,), generator=drawn))]
        chosen = torch.zeros_like(edges)
        chosen[place[0], place[1]] = True
        return Circuit(circuit.graph, chosen)

    missing = one_of_these(circuit.edges)
    wrong = one_of_these(circuit.graph.legal & ~circuit.edges)
    return {
        "edge missing": circuit - missing,
        "edge wrong": circuit | wrong,
        "edge exchanged": (circuit - missing) | wrong,
    }


def ranked_first(circuit: Circuit, seed: int) -> EdgeScores:
    """A ranking with a circuit's edges first, and both parts in random order."""
    graph: Graph = circuit.graph
    drawn = torch.Generator().manual_seed(seed)
    values = torch.rand(graph.legal.shape, generator=drawn) + circuit.edges.float()
    return EdgeScores.of(graph, values, {"method": "given", "settings": {"seed": seed}})


def circuit_subjects(
    truth: Truth,
    seed: int,
    *,
    n_prompts: int,
    train_limit: int,
) -> Iterator[KnownSubject]:
    """The true circuit of a ground truth, random edges, and near misses."""
    model, graph = truth.model, truth.model.graph
    test, train = (
        model.batch(truth.task.pairs(split, model, limit=limit, seed=seed))
        for split, limit in (("test", n_prompts), ("train", train_limit))
    )
    true = truth.circuits[ABLATION]
    drawn = torch.Generator().manual_seed(seed)
    circuits = {
        TRUE: true,
        "random edges": Random(seed=seed).draw(graph).top(len(true)),
        **near_misses(true, drawn),
    }
    for kind, circuit in circuits.items():
        inputs = GaugeInputs(
            model,
            pairs=test,
            train=train,
            circuit=circuit,
            more={"ranking": {"given": ranked_first(circuit, seed)}},
            seed=seed,
            progress=SILENT,
        )
        yield KnownSubject(truth.name, seed, kind, inputs)


def dictionary_subjects(world: str, settings: PlantedSettings, seed: int) -> Iterator[KnownSubject]:
    """Dictionaries of planted values: one of which nothing is wrong, and others."""
    planted = plant(replace(settings, seed=seed))
    store = planted.store()
    same = planted.sae("noisy", cosine=GOOD_COSINE, seed=2 * seed + 1)
    wide = planted.sae("noisy", wide=True, cosine=GOOD_COSINE, seed=2 * seed + 1)
    # Another draw than that of the dictionaries beside it.
    own = 2 * seed + 2
    kinds: dict[str, tuple[Worth, float]] = {TRUE: ("noisy", GOOD_COSINE)}
    kinds |= {kind: (worth, 0.5) for kind, worth in WRONG_DICTIONARIES.items()}
    for kind, (worth, cosine) in kinds.items():
        more = {
            "sae": planted.sae(worth, cosine=cosine, seed=own),
            "other sae": (same, wide),
            "texts": store,
            "trainer": PlantedTrainer(planted, worth, cosine),
        }
        yield KnownSubject(world, seed, kind, GaugeInputs(site=SITE, more=more, seed=seed))


CIRCUITS, DICTIONARIES = "circuits", "dictionaries"
GIVEN: Mapping[str, tuple[str, ...]] = {
    CIRCUITS: ("model", "pairs", "train", "circuit", "ranking"),
    DICTIONARIES: ("sae", "other sae", "texts", "trainer", "site"),
}
"""Inputs that subjects have, by sort."""
_TELLING: Mapping[str, frozenset[str]] = {
    CIRCUITS: frozenset(("circuit", "ranking")),
    DICTIONARIES: frozenset(("sae", "other sae", "texts", "trainer")),
}


def sort_of_subject(gauge: Any) -> str:
    """What a gauge can be tried on: circuits where it looks at one, else dictionaries; "" if it
    looks at neither.
    """
    inputs = {name for need in gauge.needs for name in need.split("|")}
    inputs |= set(getattr(gauge, "uses", ()))
    return next((sort for sort, names in _TELLING.items() if names & inputs), "")
