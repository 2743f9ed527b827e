"""What an adversarial evaluation is compared with, and what it has to reproduce before it is believed.

    corrupted   KL(M(x) || M(x~)) of every pair: the model on the corrupted prompt, which is the empty circuit
    random      a circuit of as many edges, drawn at random, on a part of the pairs
    full        every edge: must be 0                                    | checks, on the same part
    empty       no edge, run like any circuit: must equal `corrupted`    |

The checks would have shown that the published tables of Uit de Bos and Garriga-Alonso (2024) are probably those of the empty
circuit: there all edges out of the embedding were ablated by mistake, and the circuit's divergence was that of `corrupted`. A
circuit that does not differ from `corrupted` says nothing; whether it does is for the reader to see, so both are shown.

The part is the first prompts of both pools (or the first pairs), so that the values of the main run can be compared with it.

The random control is drawn with a seed of its own, made of the run's (`control_circuit`): a run may be of random circuits, which are
drawn with the run's seed itself, and would else be their own control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.agreement import Agreement
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits.methods.random import Random
from mechassay.circuits.scores import Circuit
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress

CONTROL = 1
"""What sets the seed of random controls apart from that of a run's random circuits."""
SIDE = 64
"""Prompts of each pool in the part of a grid; of pairs its square."""


@dataclass(frozen=True)
class Check:
    """A control with a known answer.

    Attributes:
        name: which one.
        largest: the largest difference from the answer, in nats.
        n: pairs looked at.
        n_wrong: of them, those that differ by more than rounding.
    """

    name: str
    largest: float
    n: int
    n_wrong: int

    @property
    def passed(self) -> bool:
        return self.n_wrong == 0

    @staticmethod
    def of(name: str, values: Float[np.ndarray, "*shape"], answer: Float[np.ndarray, "*shape"], allowed: Agreement) -> Check:
        wrong = ~allowed.holds(values, answer)
        return Check(name, float(np.abs(values - answer).max()), int(values.size), int(wrong.sum()))


@dataclass(frozen=True, eq=False)
class Controls:
    """Controls of one run.

    Attributes:
        checks: full and empty.
        random: for every number of edges, the divergences of a random circuit of as many, on the part.
        n_live: of these random circuits, the edges on a path from input to logits.
    """

    checks: tuple[Check, ...]
    random: Mapping[int, Float[np.ndarray, "*part"]]
    n_live: Mapping[int, int]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def random_circuit(graph: Graph, n_edges: int, seed: int) -> Circuit:
    """As many edges drawn at random, all sets of edges alike."""
    return Random(seed=seed).draw(graph).top(n_edges)


def control_circuit(graph: Graph, n_edges: int, seed: int) -> Circuit:
    """The random control of a run with that seed: independent of `random_circuit` with the same seed.

    The seed it is drawn with is the first word of `numpy.random.SeedSequence((seed, CONTROL))`, with a negative seed modulo 2^64.
    """
    return random_circuit(graph, n_edges, int(np.random.SeedSequence((seed % 2**64, CONTROL)).generate_state(1)[0]))


def run_controls(
    model: Model,
    sizes: Sequence[int],
    clean: Pool,
    corrupted: Pool,
    main: Float[np.ndarray, "*pairs"],
    *,
    seed: int = 0,
    side: int = SIDE,
    store: Path | None = None,
    progress: Progress = BAR,
) -> Controls:
    """Run the controls on a part of the pairs.

    Args:
        sizes: numbers of edges to draw random circuits of.
        seed: of the run; that of the random circuits is made of it.
        main: KL(M(x) || M(x~)) as the main run has it: [clean, corrupted] of a grid, else [pairs].
        side: prompts of each pool to take of a grid; of pairs its square.
        store: as `evaluate_pairs`.

    Raises:
        As `evaluate_pairs`.
    """
    grid = main.ndim == 2
    n = [min(len(pool), side if grid else side**2) for pool in (clean, corrupted)]
    circuits = [control_circuit(model.graph, size, seed) for size in sizes]
    found = evaluate_pairs(
        model,
        [Circuit.full(model.graph), Circuit.empty(model.graph), *circuits],
        clean.select(range(n[0])),
        corrupted.select(range(n[1])),
        grid=grid,
        store=store,
        progress=progress,
    )
    part = np.asarray(main[: n[0], : n[1]] if grid else main[: n[0]])
    return controls_of(sizes, circuits, np.asarray(found.circuits), part, Agreement.of(model.dtype))


def controls_of(
    sizes: Sequence[int],
    circuits: Sequence[Circuit],
    values: Float[np.ndarray, "circuits *part"],
    corrupted: Float[np.ndarray, "*part"],
    allowed: Agreement,
) -> Controls:
    """Controls from the divergences of the full, the empty and the random circuits, in that order."""
    checks = (
        Check.of("full", values[0], np.zeros_like(values[0]), allowed),
        Check.of("empty", values[1], corrupted, allowed),
    )
    live = {size: len(circuit.pruned()) for size, circuit in zip(sizes, circuits, strict=True)}
    return Controls(checks, dict(zip(sizes, values[2:], strict=True)), live)
