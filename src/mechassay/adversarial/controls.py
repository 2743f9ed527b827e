"""Controls of an adversarial evaluation: circuits to compare with, and known answers to reproduce.

    corrupted   KL(M(x) || M(x~)) of every pair: the model on the corrupted prompt, which is the
                empty circuit
    paths       as many edges on random paths from input to logits, all of them live
    random      as many edges drawn uniformly, of which few or none are live
    full        every edge: must be 0                                    | checks
    empty       no edge, run like any circuit: must equal `corrupted`    |

All but `corrupted` use the first prompts of each pool, so the main run's values can be compared
with theirs. What a circuit has to beat is `paths` with as many live edges as its own: while a
circuit is sparse, `random` is the empty circuit. Both are drawn with a seed made from the run's
(`control_seed`), which the run's own random circuits use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.divergence import Tolerance
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.options import SIDE
from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.stats.bounds import PartialGrid
from mechassay.utils.display import BAR, OneLine, Progress

CONTROL = 1
"""Makes the seed of random controls another than that of a run's random circuits."""


@dataclass(frozen=True)
class ControlCheck:
    """A control with a known answer.

    Attributes:
        name: which one.
        largest: the largest difference from the answer, in nats.
        n: pairs compared.
        n_wrong: pairs that differ by more than rounding.
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
        allowed: Tolerance,
    ) -> ControlCheck:
        largest, wrong = np.abs(values - answer).max(), ~allowed.holds(values, answer)
        return ControlCheck(name, float(largest), int(values.size), int(wrong.sum()))


@dataclass(frozen=True, eq=False, repr=False)
class ControlResults(OneLine):
    """Controls of one run.

    Attributes:
        checks: full and empty.
        random: by number of edges, the divergences of as many drawn uniformly.
        paths: by number of live edges, the divergences of as many on random paths.
        n_live: edges on a path from input to logits, of the circuits of `random`.
        n_edges: edges of the circuits of `paths`, which may be a few less than asked for.
    """

    checks: tuple[ControlCheck, ...]
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
    """The seed of a run's random controls, independent of the run's own random circuits.

    It is the first word of `numpy.random.SeedSequence((seed, CONTROL))`, with a negative seed
    modulo 2^64.
    """
    return int(np.random.SeedSequence((seed % 2**64, CONTROL)).generate_state(1)[0])


@dataclass(frozen=True, eq=False, repr=False)
class ControlCircuits(OneLine):
    """The random circuits that a run's circuits are compared with."""

    random: Mapping[int, Circuit]
    paths: Mapping[int, Circuit]

    @staticmethod
    def of(circuits: Sequence[Circuit], graph: Graph, seed: int) -> ControlCircuits:
        """With as many edges, and as many live edges, as each circuit of the run with `seed`."""
        sizes = sorted({len(circuit) for circuit in circuits})
        live = sorted({len(circuit.pruned()) for circuit in circuits})
        own = control_seed(seed)
        return ControlCircuits(
            {size: random_circuit(graph, size, own) for size in sizes},
            {size: random_paths(graph, size, own) for size in live},
        )

    def with_checks(self, graph: Graph) -> list[Circuit]:
        """The full and the empty circuit, and all others, in the order of `controls_of`."""
        checks = (Circuit.full(graph), Circuit.empty(graph))
        return [*checks, *self.random.values(), *self.paths.values()]


def first_part(
    part: PartialGrid | None, shape: tuple[int, ...], side: int
) -> tuple[np.ndarray, ...]:
    """Places of the prompts on each axis that controls use: the first `side`, or `side`^2 pairs.

    Of a restricted grid the corrupted prompts are the first that agree with one of the clean ones.
    """
    if part is None or len(shape) == 1:
        return tuple(np.arange(min(n, side if len(shape) == 2 else side**2)) for n in shape)
    rows = np.arange(min(shape[0], side))
    return rows, np.flatnonzero(np.isin(part.corrupted, part.clean[rows]))[:side]


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
) -> ControlResults:
    """Run the controls on a part of the pairs.

    Args:
        circuits: of the run; random circuits of their sizes are drawn.
        seed: of the run.
        main: KL(M(x) || M(x~)) as the main run has it: [clean, corrupted] of a grid, else [pairs].
        side: prompts of each pool to take of a grid; of pairs its square.
        part: the pairs of a restricted grid.
        store: as `evaluate_pairs`.

    Errors are those of `evaluate_pairs`.
    """
    places = first_part(part, main.shape, side)
    rows, columns = places[0].tolist(), places[-1].tolist()
    drawn = ControlCircuits.of(circuits, model.graph, seed)
    values = evaluate_pairs(
        model,
        drawn.with_checks(model.graph),
        clean.select(rows),
        corrupted.select(columns),
        grid=main.ndim == 2,
        part=None if part is None else part.select(rows, columns),
        folder=store,
        progress=progress,
    )
    corrupted_runs = np.asarray(main[np.ix_(*places)])
    return controls_of(
        drawn, np.asarray(values.circuits), corrupted_runs, Tolerance.of(model.dtype)
    )


def controls_of(
    drawn: ControlCircuits,
    values: Float[np.ndarray, "circuits *part"],
    corrupted: Float[np.ndarray, "*part"],
    allowed: Tolerance,
) -> ControlResults:
    """Controls from the divergences of `ControlCircuits.with_checks`; NaN is no pair."""
    pairs = ~np.isnan(corrupted)
    full, empty, answer = values[0][pairs], values[1][pairs], corrupted[pairs]
    checks = (
        ControlCheck.of("full", full, np.zeros_like(full), allowed),
        ControlCheck.of("empty", empty, answer, allowed),
    )
    random = dict(zip(drawn.random, values[2:], strict=False))
    paths = dict(zip(drawn.paths, values[2 + len(drawn.random) :], strict=True))
    n_live = {size: len(circuit.pruned()) for size, circuit in drawn.random.items()}
    n_edges = {size: len(circuit) for size, circuit in drawn.paths.items()}
    return ControlResults(checks, random, paths, n_live, n_edges)
