"""What an adversarial evaluation is compared with,
and what it has to reproduce before it is believed.

    corrupted   KL(M(x) || M(x~)) of every pair: the model on the corrupted prompt, which is the
                empty circuit
    paths       as many edges on random paths from input to logits, all of them live, on a part of
                the pairs
    random      as many edges drawn uniformly, of which few or none are live, on the same part
    full        every edge: must be 0                                    | checks, on the same part
    empty       no edge, run like any circuit: must equal `corrupted`    |

The checks would have shown that the published tables of Uit de Bos and Garriga-Alonso (2024) are
probably those of the empty circuit: there all edges out of the embedding were ablated by mistake,
and the circuit's divergence was that of `corrupted`. A circuit that does not differ from
`corrupted` says nothing; whether it does is for the reader to see, so both are shown.

The part is the first prompts of both pools (or the first pairs), so that the values of the main run
can be compared with it.

What a circuit has to beat is `paths` with as many live edges as it has itself. Of edges drawn
uniformly almost none lie on a path while a circuit is sparse; `random` is then the empty circuit.

Both are drawn with a seed of their own, made of the run's (`control_seed`): a run may be of random
circuits, which are drawn with the run's seed itself, and would else be their own control.
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
from mechassay.adversarial.restriction import first_part
from mechassay.circuits.methods.random import Random
from mechassay.circuits.methods.random_paths import RandomPaths
from mechassay.circuits.scores import Circuit
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.partial_grid import PartialGrid

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
    def of(
        name: str,
        values: Float[np.ndarray, "pairs"],
        answer: Float[np.ndarray, "pairs"],
        allowed: Agreement,
    ) -> Check:
        wrong = ~allowed.holds(values, answer)
        return Check(name, float(np.abs(values - answer).max()), int(values.size), int(wrong.sum()))


@dataclass(frozen=True, eq=False)
class Controls:
    """Controls of one run.

    Attributes:
        checks: full and empty.
        random: for every number of edges, the divergences of as many drawn uniformly, on the part.
        paths: the same for every number of live edges, of random paths.
        n_live: of the circuits of `random`, the edges on a path from input to logits.
        n_edges: of the circuits of `paths`, which may be a few less than asked for.
    """

    checks: tuple[Check, ...]
    random: Mapping[int, Float[np.ndarray, "*part"]]
    paths: Mapping[int, Float[np.ndarray, "*part"]]
    n_live: Mapping[int, int]
    n_edges: Mapping[int, int]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def random_circuit(graph: Graph, n_edges: int, seed: int) -> Circuit:
    """As many edges drawn at random, all sets of edges alike."""
    return Random(seed=seed).draw(graph).top(n_edges)


def random_paths(graph: Graph, n_edges: int, seed: int) -> Circuit:
    """As many edges, or the fewest less, all of them on random paths from input to logits."""
    return RandomPaths(seed=seed).circuit(graph, n_edges)


def control_seed(seed: int) -> int:
    """The seed of the random controls of a run with that seed:
    independent of the run's own random circuits.

    It is the first word of `numpy.random.SeedSequence((seed, CONTROL))`, with a negative seed
    modulo 2^64.
    """
    return int(np.random.SeedSequence((seed % 2**64, CONTROL)).generate_state(1)[0])


@dataclass(frozen=True, eq=False)
class ControlCircuits:
    """The random circuits that those of a run are compared with."""

    random: Mapping[int, Circuit]
    paths: Mapping[int, Circuit]

    @staticmethod
    def of(circuits: Sequence[Circuit], graph: Graph, seed: int) -> ControlCircuits:
        """Of as many edges, and of as many live edges, as each of the circuits.

        Args:
            seed: of the run; that of the random circuits is made of it.
        """
        sizes = sorted({len(circuit) for circuit in circuits})
        live = sorted({len(circuit.pruned()) for circuit in circuits})
        own = control_seed(seed)
        return ControlCircuits(
            {size: random_circuit(graph, size, own) for size in sizes},
            {size: random_paths(graph, size, own) for size in live},
        )

    def with_checks(self, graph: Graph) -> list[Circuit]:
        """The full and the empty circuit, those of `random`, those of `paths`:
        in the order of `controls_of`.
        """
        return [
            Circuit.full(graph),
            Circuit.empty(graph),
            *self.random.values(),
            *self.paths.values(),
        ]


def run_controls(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Pool,
    corrupted: Pool,
    main: Float[np.ndarray, "*pairs"],
    *,
    seed: int = 0,
    side: int = SIDE,
    part: PartialGrid | None = None,
    store: Path | None = None,
    progress: Progress = BAR,
) -> Controls:
    """Run the controls on a part of the pairs.

    Args:
        circuits: of the run; random circuits of their sizes are drawn.
        seed: of the run; that of the random circuits is made of it.
        main: KL(M(x) || M(x~)) as the main run has it: [clean, corrupted] of a grid, else [pairs].
        side: prompts of each pool to take of a grid; of pairs its square.
        part: which pairs of the grid there are.
        store: as `evaluate_pairs`.

    Raises:
        As `evaluate_pairs`.
    """
    places = first_part(part, main.shape, side)
    rows, columns = places[0].tolist(), places[-1].tolist()
    drawn = ControlCircuits.of(circuits, model.graph, seed)
    found = evaluate_pairs(
        model,
        drawn.with_checks(model.graph),
        clean.select(rows),
        corrupted.select(columns),
        grid=main.ndim == 2,
        part=None if part is None else part.select(rows, columns),
        store=store,
        progress=progress,
    )
    return controls_of(
        drawn,
        np.asarray(found.circuits),
        np.asarray(main[np.ix_(*places)]),
        Agreement.of(model.dtype),
    )


def controls_of(
    drawn: ControlCircuits,
    values: Float[np.ndarray, "circuits *part"],
    corrupted: Float[np.ndarray, "*part"],
    allowed: Agreement,
) -> Controls:
    """Controls from the divergences of `ControlCircuits.with_checks`; NaN is no pair."""
    pairs = ~np.isnan(corrupted)
    full, empty, answer = values[0][pairs], values[1][pairs], corrupted[pairs]
    checks = (
        Check.of("full", full, np.zeros_like(full), allowed),
        Check.of("empty", empty, answer, allowed),
    )
    random = dict(zip(drawn.random, values[2:], strict=False))
    paths = dict(zip(drawn.paths, values[2 + len(drawn.random) :], strict=True))
    n_live = {size: len(circuit.pruned()) for size, circuit in drawn.random.items()}
    return Controls(
        checks, random, paths, n_live, {size: len(circuit) for size, circuit in drawn.paths.items()}
    )
