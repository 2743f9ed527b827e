"""How faithful circuits are: faithfulness at many sizes, CPR and CMD, with intervals and controls.

For a circuit C, the full model N, the empty circuit 0 and an objective m (means over examples),

    f(C) = (m(C) - m(0)) / (m(N) - m(0))                                   (MIB, eq. 1)

at the ten sizes of Mueller et al. (2025), section 3.1; `areas` defines CPR and CMD. In the profile
`strict` the circuit of size 1 is the full one; edges without a score are in no smaller circuit.

Intervals resample examples (whole groups) and recompute every mean; nothing is run again. The
controls are the empty circuit (f = 0), the full circuit (f = 1), and random rankings of edges drawn
one by one and of random paths, whose edges are all live (`methods.random_paths`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechassay.circuits.areas import (
    FRACTIONS,
    PROFILES,
    AreaRule,
    Profile,
    Sweep,
    check_fractions,
)
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.curve import RANKINGS, Controls, FaithfulnessCurve
from mechassay.circuits.evaluation import objective_per_example
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import By, EdgeScores
from mechassay.circuits.series import CircuitSeries, Ranked
from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, load_objective
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress

__all__ = [
    "FRACTIONS",
    "PROFILES",
    "Controls",
    "FaithfulnessCurve",
    "Profile",
    "Sweep",
    "evaluate",
    "faithfulness_curve",
    "run_controls",
]

RANDOM_SEEDS = (0, 1, 2)


def evaluate(
    model: Model,
    circuit: Circuit | Sequence[Circuit],
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    progress: Progress = BAR,
) -> Float[np.ndarray, "*circuits n"]:
    """The objective per example when only the circuit's edges carry the clean run.

    The others carry the counterfactual. Where a circuit names neurons, its edges carry these alone.
    Several circuits share the clean and counterfactual runs of every example.

    Returns:
        float64 values in the order of `pairs`: [n] for one circuit, [circuits, n] for several.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to
            another width.
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    circuits = [circuit] if isinstance(circuit, Circuit) else list(circuit)
    for each in circuits:
        if each.graph != model.graph:
            raise GraphMismatch(
                f"The circuit belongs to {each.graph}; the model's graph is {model.graph}."
            )
        if each.neurons is not None and each.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(
                f"The circuit has {each.neurons.shape[1]} neurons a node; the model has"
                f" {model.decoder.d_model}."
            )
    decoder, graph = model.decoder, model.graph
    runs = [circuit_runner(decoder, graph, each.edges, each.neurons) for each in circuits]
    values = objective_per_example(
        model, model.batch(pairs), load_objective(objective), runs, progress=progress
    )
    return values[0] if isinstance(circuit, Circuit) else values


def faithfulness_curve(
    model: Model,
    scores: Ranked,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    profile: Profile = "strict",
    fractions: Sequence[float] = FRACTIONS,
    greedy: bool = False,
    controls: Controls | None = None,
    label: str | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> FaithfulnessCurve:
    """Faithfulness at all sizes, CPR and CMD of scores of edges, nodes or neurons, or of circuits.

    A node counts as all edges out of it, a neuron as its share of them (Mueller et al. 2025,
    section 3.1): the profile "strict" takes the best that stay within a size, "mib-2025" that share
    of the nodes or neurons. Scores that say so (information flow routes) are cut greedily. Circuits
    that have been cut already are measured as they are, in both rankings; see `series`.

    Args:
        pairs: examples to evaluate on; not those the scores were found on.
        profile: "strict" or "mib-2025".
        fractions: sizes as shares of the edges, rising, the last 1.
        greedy: grow circuits from the logits instead of taking the top edges.
        controls: those of another curve on the same pairs and objective, to save their cost.
        seed: of the bootstrap.

    Raises:
        UnknownName: no such profile.
        GraphMismatch: scores of another graph.
        BadUsage: `fractions` are no rising sizes that end in 1; controls of other examples,
            objective or sizes; circuits that the profile cannot take.
        NonFinite, OutOfMemory: as `evaluate`.
    """
    one_of("profile", profile, PROFILES)
    sizes = check_fractions(fractions)
    if scores.graph != model.graph:
        raise GraphMismatch(
            f"The scores were made on {scores.graph}; the model's graph is {model.graph}."
        )
    batch, chosen = model.batch(pairs), load_objective(objective)
    if controls is None:
        controls = run_controls(model, batch, chosen, fractions=sizes, progress=progress)
    elif (controls.ids, controls.objective, controls.fractions) != (batch.ids, chosen.name, sizes):
        raise BadUsage(
            "The controls belong to other examples, another objective or other fractions than this"
            " evaluation."
        )
    greedy = greedy or (isinstance(scores, EdgeScores) and scores.grows)
    wanted = {
        by: scores.cut(sizes, profile)
        if isinstance(scores, CircuitSeries)
        else [_cut(scores, p, by, greedy, profile) for p in sizes]
        for by in RANKINGS
    }
    circuits = [circuit for by in RANKINGS for circuit in wanted[by]]
    values = _evaluate_distinct(model, circuits, batch, chosen, progress)
    rule = AreaRule(
        profile,
        sizes,
        model.graph.n_edges,
        controls.empty,
        controls.full,
        batch.groups,
        seed,
        objective=chosen.name,
    )
    kept: dict[By, tuple[int, ...]] = {
        by: tuple(round(circuit.weighted_edge_count()) for circuit in wanted[by]) for by in RANKINGS
    }
    rows = dict(zip(RANKINGS, np.split(values, len(RANKINGS)), strict=True))
    return FaithfulnessCurve.of(
        rule,
        controls,
        kept,
        rows,
        label=label or str(scores.provenance.get("method", "scores")),
        warnings=_warnings(scores, batch, rule, kept["value"]),
        notes={str(key): str(x) for key, x in scores.provenance.items() if key != "prompts"},
    )


def run_controls(
    model: Model,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    fractions: Sequence[float] = FRACTIONS,
    seeds: Sequence[int] = RANDOM_SEEDS,
    progress: Progress = BAR,
) -> Controls:
    """Run the empty and the full circuit and random rankings on examples.

    Raises:
        BadUsage: `fractions` are no rising sizes that end in 1. Also as `evaluate`.
    """
    from mechassay.circuits.methods.random import Random
    from mechassay.circuits.methods.random_paths import RandomPaths

    batch, chosen, sizes = model.batch(pairs), load_objective(objective), check_fractions(fractions)
    kinds = (Random, RandomPaths)
    rankings = [kind(seed=seed).draw(model.graph) for kind in kinds for seed in seeds]
    circuits = [scores.top(p).pruned() for scores in rankings for p in sizes]
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    values = _evaluate_distinct(model, ends + circuits, batch, chosen, progress)
    shape = (len(kinds), len(seeds), len(sizes))
    kept = np.array([len(circuit) for circuit in circuits]).reshape(shape).tolist()
    rows = values[2:].reshape(*shape, len(batch))
    edges, paths = (
        {seed: (tuple(kept[kind][place]), rows[kind, place]) for place, seed in enumerate(seeds)}
        for kind in range(len(kinds))
    )
    return Controls(chosen.name, batch.ids, sizes, values[0], values[1], edges, paths)


def _cut(scores: Scores, fraction: float, by: By, greedy: bool, profile: Profile) -> Circuit:
    """The circuit of one size, without what is on no path."""
    if profile == "strict" and fraction == 1:
        # With what has no score, which comes last and all together.
        return Circuit.full(scores.graph)
    if isinstance(scores, EdgeScores):
        return (scores.greedy if greedy else scores.top)(fraction, by=by).pruned()
    return (scores.within if profile == "strict" else scores.top)(fraction, by=by).pruned()


def _evaluate_distinct(
    model: Model,
    circuits: Sequence[Circuit],
    batch: Batch,
    objective: Objective,
    progress: Progress,
) -> Float[np.ndarray, "circuits n"]:
    """`evaluate`, running equal circuits once: pruned, several small sizes are often the same."""
    places: dict[Circuit, int] = {}
    which = [places.setdefault(circuit, len(places)) for circuit in circuits]
    return evaluate(model, list(places), batch, objective, progress=progress)[which]


def _warnings(
    scores: Ranked, batch: Batch, rule: AreaRule, kept: tuple[int, ...]
) -> tuple[str, ...]:
    lines: list[str] = []
    if not rule.defined:
        low, high, _ = rule.denominator
        what = (
            "f, CPR and CMD are undefined"
            if rule.profile == "strict"
            else "f, CPR and CMD divide by a number that may be 0"
        )
        lines.append(
            f"The interval of the full minus the empty circuit, [{low:.3g}, {high:.3g}], contains"
            f" 0: {what}."
        )
    lines += (
        _not_measured(scores, rule)
        if isinstance(scores, CircuitSeries)
        else _unscored(scores, rule.profile)
    )
    lines += _in_sample(scores, batch)
    n_empty = sum(size == 0 for size in kept)
    if n_empty:
        lines.append(
            f"{n_empty} of {len(kept)} sizes have no path from input to logits: their circuits are"
            " empty."
        )
    if rule.n_groups < 2:
        lines.append("All examples are of one group: there is no interval.")
    elif len(batch) < 30:
        lines.append(f"Only {len(batch)} examples: intervals are rough.")
    return tuple(lines)


def _in_sample(scores: Ranked, batch: Batch) -> list[str]:
    """A line if the scores were found on some of the examples: same tokens and answers, any id."""
    seen = set(scores.provenance.get("prompts", ()))
    if not seen and scores.provenance.get("data_hash") == batch.content:
        return [
            "Evaluated on the examples that the scores were found on: faithfulness is in-sample."
        ]
    hashes = zip(batch.ids, batch.prompt_hashes(), strict=True)
    shared = [name for name, digest in hashes if digest in seen]
    if not shared:
        return []
    named = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
    return [
        f"{len(shared):,} of {len(batch):,} examples ({named}) are among those that the scores were"
        " found on: faithfulness is in-sample."
    ]


def _not_measured(series: CircuitSeries, rule: AreaRule) -> list[str]:
    """A line if circuits stand for none of the sizes."""
    n = series.left_out(rule.fractions) if rule.profile == "strict" else 0
    if n == 0:
        return []
    return [
        f"{n} of {len(series.circuits)} circuits are not measured: a larger one, or the full"
        " circuit, stands for their size."
    ]


def _unscored(scores: Scores, profile: Profile) -> list[str]:
    """A line if something has no score, with what becomes of it."""
    scored = scores.scored()
    total = scores.graph.n_edges if isinstance(scores, EdgeScores) else scored.numel()
    n = total - int(scored.sum())
    if n == 0:
        return []
    where = "only the full circuit has them" if profile == "strict" else "no circuit has them"
    return [f"{n:,} of {total:,} {scores.unit}s have no score: {where}."]
