"""What scores rank, and which pairs they were found on: what a conclusion on circuits needs.

Scores that differ by less than `NOISE` of the largest one are equal: exact patching gives edges
without an effect scores of about 1e-6 of the largest, whose order is rounding. A cut ties where its
last edge has the score of the first edge that is left out. Ties of edges below `SMALL` decide
nothing and do not count: these edges are pruned, or have next to no effect.

Whether two rankings are copies is seen from sketches: `N_SIGNS` sums of all scores with random
signs, of unit norm. Their relative distance is about that of the scores (Johnson and Lindenstrauss
1984), so a record need not hold all scores.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def ranking_facts(scores: Ranked, batch: Batch) -> dict[str, Any]:
    """Return what scores rank, and how many pairs of a batch they were found on.

    Returns:
        `sketch` of the scores, see the module; `scored` units, `different` scores (at most 2 are
        counted), `unit` and `selection`; `known`: whether the scores say which pairs they
        were found on; `shared`: how many pairs of the batch are among them.
    """
    seen = set(scores.provenance.get("prompts", ()))
    content = scores.provenance.get("data_hash")
    shared = sum(own in seen for own in batch.prompt_hashes())
    if not seen and content and content == batch.content:
        shared = len(batch)
    facts: dict[str, Any] = {"known": bool(seen or content), "shared": shared}
    if isinstance(scores, CircuitSeries):
        kept = sum(circuit.edges.double().numpy() for circuit in scores.circuits)
        return {"sketch": _sketch(np.asarray(kept)), "unit": "circuit", **facts}
    values = scores.values.double().numpy()
    held = values[scores.scored().numpy()]
    largest = float(np.abs(held).max(initial=0.0))
    spread = float(held.max(initial=-np.inf) - held.min(initial=np.inf)) if len(held) else 0.0
    return {
        "sketch": _sketch(np.nan_to_num(values)),
        "unit": scores.unit,
        "selection": str(scores.provenance.get("selection", "")),
        "scored": len(held),
        "different": 2 if spread > NOISE * largest else 1,
        **facts,
    }


def _sketch(values: np.ndarray) -> list[float]:
    """Sums of values with random signs, of unit norm, in five digits; empty if all are 0."""
    flat, rng = values.ravel(), np.random.default_rng(0)
    sums = [float(flat @ (2.0 * rng.integers(0, 2, len(flat)) - 1)) for _ in range(N_SIGNS)]
    norm = float(np.linalg.norm(flat))
    return [float(f"{own / norm:.5g}") for own in sums] if norm else []


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
    """How many of the first n keys, which fall, equal the next one but for noise."""
    if not 0 < n < len(keys) or abs(keys[n]) <= small or keys[n - 1] - keys[n] > noise:
        return 0
    # The first key that is not larger than the next one by more than noise.
    return n - int(np.searchsorted(-keys[:n], -(keys[n] + noise), side="left"))
