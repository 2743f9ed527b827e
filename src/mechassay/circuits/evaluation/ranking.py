"""Facts on scores that a conclusion on circuits needs: equal scores, copies, and their origin.

Scores that differ by less than `NOISE` of the largest one are equal: exact patching gives edges
without an effect scores of about 1e-6 of the largest, whose order is rounding. A cut ties where its
last edge has the score of the first edge that is left out. Ties of edges below `SMALL` decide
nothing and do not count: these edges are pruned, or have next to no effect.

Whether two rankings are copies is seen from sketches: `N_SIGNS` sums of all scores with random
signs, of unit norm. Their relative distance is about that of the scores, so a record need not hold
all scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mechassay.circuits.scores import By, EdgeScores
from mechassay.circuits.series import CircuitSeries, Ranked
from mechassay.prompts.batch import Batch

NOISE = 1e-5
"""The difference of two scores, as a share of the largest one, that is rounding."""
SMALL = 1e-3
"""The share of the largest score below which scores decide nothing."""
N_SIGNS = 16
"""Numbers of a sketch."""


@dataclass(frozen=True)
class RankingFacts:
    """Facts on scores, and whether the scores were found on the pairs that measure the circuits.

    Attributes:
        unit: edge, node, neuron; circuit, where circuits were cut before.
        sketch: of the scores, see the module; empty if all are 0.
        selection: how circuits are cut, if the scores say it.
        scored: number of units with a score.
        different: 1 if all scores are equal, 2 if they are not, 0 of circuits.
        known: whether the scores say on which pairs they were found.
        shared: how many pairs of the batch are among them.
    """

    unit: str
    sketch: tuple[float, ...]
    selection: str = ""
    scored: int = 0
    different: int = 0
    known: bool = False
    shared: int = 0

    @classmethod
    def of(cls, scores: Ranked, batch: Batch) -> RankingFacts:
        """Return the facts of scores or circuits, and of the batch that measures the circuits."""
        seen = set(scores.provenance.get("prompts", ()))
        content = scores.provenance.get("data_hash")
        shared = sum(own in seen for own in batch.prompt_hashes())
        if not seen and content and content == batch.content:
            shared = len(batch)
        known = bool(seen or content)
        if isinstance(scores, CircuitSeries):
            kept = np.asarray(sum(circuit.edges.double().numpy() for circuit in scores.circuits))
            return cls("circuit", _sketch(kept), known=known, shared=shared)
        values = scores.values.double().numpy()
        held = values[scores.scored().numpy()]
        largest = float(np.abs(held).max(initial=0.0))
        spread = float(held.max() - held.min()) if len(held) else 0.0
        return cls(
            scores.unit,
            _sketch(np.nan_to_num(values)),
            str(scores.provenance.get("selection", "")),
            len(held),
            2 if spread > NOISE * largest else 1,
            known,
            shared,
        )

    def args(self) -> dict[str, Any]:
        """As arguments of a record's spec."""
        return {**asdict(self), "sketch": list(self.sketch)}


def _sketch(values: np.ndarray) -> tuple[float, ...]:
    """Return sums of values with random signs, of unit norm, in five digits; none if all are 0."""
    flat, rng = values.ravel(), np.random.default_rng(0)
    sums = [float(flat @ (2.0 * rng.integers(0, 2, len(flat)) - 1)) for _ in range(N_SIGNS)]
    norm = float(np.linalg.norm(flat))
    return tuple(float(f"{own / norm:.5g}") for own in sums) if norm else ()


def tied_at(scores: Ranked, fractions: Sequence[float], by: By) -> tuple[int, ...]:
    """Return for each size how many edges in the cut tie with edges outside, see the module.

    Scores of nodes and neurons, circuits that were cut before, and circuits that are grown from the
    logits have no such cut: 0.
    """
    if not isinstance(scores, EdgeScores) or scores.grows:
        return tuple(0 for _ in fractions)
    ranked = scores.values.double().flatten().numpy()[scores.ranking(by)]
    keys = np.abs(ranked) if by == "magnitude" else ranked
    noise = NOISE * float(np.abs(keys).max(initial=0.0))
    small = noise * SMALL / NOISE
    return tuple(_tied(keys, scores.size(float(p)), noise, small) for p in fractions)


def _tied(keys: np.ndarray, n: int, noise: float, small: float) -> int:
    """Return how many of the first n keys equal the next key but for noise; keys fall."""
    if not 0 < n < len(keys) or abs(keys[n]) <= small or keys[n - 1] - keys[n] > noise:
        return 0
    # The first key that is not larger than the next one by more than noise.
    return n - int(np.searchsorted(-keys[:n], -(keys[n] + noise), side="left"))
