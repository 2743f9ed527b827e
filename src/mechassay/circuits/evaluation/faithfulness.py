"""How faithful circuits are: f at many sizes, CPR and CMD, completeness and minimality.

For a circuit C, the full model N, the empty circuit 0 and an objective m (means over examples),

    f(C) = (m(C) - m(0)) / (m(N) - m(0))                                   (MIB, eq. 1)

at the ten sizes of Mueller et al. (2025), section 3.1; `circuits.series` defines CPR and CMD. In
the profile `strict` the circuit of size 1 is the full one; edges without a score are in no
smaller circuit. The controls are the empty circuit (f = 0), the full circuit (f = 1), and random
rankings of edges drawn one by one and of random paths, whose edges are all live.

Two more questions are about one circuit: is it all of the mechanism, and is all of it needed?

    completeness   f of the complement: what the model still does when the circuit's edges (and
                   neurons) alone are ablated; 0 where nothing outside the circuit does the same
                   (Wang et al. 2023, section 4)
    minimality     for each edge (or node) of the circuit, the drop of f when it is left out

Wang et al. compare C and N after ablating the same random subsets K of both; here K is the whole
circuit, the largest such subset. An edge whose loss leaves others without a path takes them
along.

Intervals resample examples (whole groups), numerator and denominator together; nothing is run
again. Completeness and minimality are NaN where the interval of m(N) - m(0) contains 0, or where
rounding alone may have made that difference (`stats.intervals`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.curve import (
    AGREES,
    RANKINGS,
    Controls,
    FaithfulnessCurve,
    SmallestCircuit,
)
from mechassay.circuits.evaluation.ranking import RankingFacts, tied_at
from mechassay.circuits.profiles import PROFILES, Profile
from mechassay.circuits.scores import KEPT, By, EdgeScores, Scores
from mechassay.circuits.series import (
    FRACTIONS,
    CircuitSeries,
    FaithfulnessMetric,
    Ranked,
    RankingCurve,
    agreement,
    check_fractions,
    kept_effects,
)
from mechassay.errors import BadUsage, GraphMismatch, NonFinite, one_of
from mechassay.models.ability import Ability, ability_of
from mechassay.models.circuit_forward import circuit_runner, run_in_spans
from mechassay.models.decoder import Readout
from mechassay.models.forward import Contrast, constants_of
from mechassay.models.memory import (
    circuits_at_once,
    kept_run_bytes,
    out_of_memory_is_an_error,
    past_bytes,
    prefix_bytes,
    token_budget,
    trace_bytes,
)
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, least_size, load_objective
from mechassay.models.origin import found_in
from mechassay.models.spans import LongContrast
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.prompts.independence import apart
from mechassay.stats.chance import FEW_DRAWS
from mechassay.stats.intervals import (
    FEW_GROUPS,
    NO_INTERVAL,
    Interval,
    percentile_interval,
    resampled_means,
    resolved_difference,
)
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress


def objective_per_example(
    model: Model,
    batch: Batch,
    objective: Objective,
    circuits: Sequence[Circuit],
    *,
    progress: Progress,
) -> Float[np.ndarray, "circuits n"]:
    """The objective of each example (columns) under each of the circuits (rows), in fp64. Replicas
    of the model take shares of the examples.

    Raises:
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    values, decoder = np.full((len(circuits), len(batch)), np.nan), model.decoder
    # Of a long example clean and reference run, and several circuits, keep keys and values alone.
    longest, kept = batch.n_tokens, past_bytes(decoder) + prefix_bytes(decoder)
    budget = token_budget(trace_bytes(decoder), longest, model.device, kept=kept)
    in_spans = longest > budget
    n_shares = 1 if model.replicas is None else len(model.replicas.devices)
    fair = math.ceil(len(batch) * longest / n_shares)
    chunks = _chunks(model, batch, min(budget, fair), in_spans=in_spans)
    shares = [chunks[first::n_shares] for first in range(min(n_shares, len(chunks)))]
    alone = len(shares) < 2
    sent = [[chunk if alone else chunk.sendable() for _, chunk in share] for share in shares]
    run = partial(_run_chunks, circuits, objective, budget if in_spans else None)
    what = f"running {len(circuits)} circuits" + ("" if alone else ", a share")
    n_here = len(circuits) * sum(len(rows) for share in shares[:1] for rows, _ in share)
    with (
        progress.track(what, n_here) as advance,
        out_of_memory_is_an_error("Evaluating circuits"),
    ):
        results = model.everywhere(run, sent, partial(run, advance=advance))
        for share, of_chunks in zip(shares, results, strict=True):
            for (rows, _), of_chunk in zip(share, of_chunks, strict=True):
                values[:, rows] = of_chunk
    if not np.isfinite(values).all():
        number, row = np.argwhere(~np.isfinite(values))[0]
        raise NonFinite(
            f"{objective.name} of example {batch.ids[row]} is {values[number, row]} in circuit"
            f" {number}: the activations overflow or hold NaN."
        )
    return values


@torch.no_grad()
def _run_chunks(
    circuits: Sequence[Circuit],
    objective: Objective,
    in_spans: int | None,
    model: Model,
    chunks: Sequence[Batch],
    advance: Callable[[int], None] = lambda n: None,
) -> list[Float[np.ndarray, "circuits n"]]:
    """The objective of each chunk's examples under each circuit; `in_spans` of so many tokens."""
    decoder, values = model.decoder, list[np.ndarray]()
    at_once = len(circuits)
    if in_spans is not None and chunks:
        longest = max(chunk.n_tokens for chunk in chunks)
        at_once = circuits_at_once(decoder, longest, model.device)
    runners = [
        circuit_runner(decoder, model.graph, one.edges, one.neurons, in_spans=in_spans is not None)
        for one in circuits
    ]

    def run(chunk: Batch, some: slice) -> tuple[Readout, Iterable[Readout]]:
        if in_spans is not None and len(chunk) * chunk.n_tokens > in_spans:
            long = LongContrast.of(decoder, chunk, max(1, in_spans // len(chunk)))
            return run_in_spans(long, runners[some])
        contrast = Contrast.run(decoder, chunk)
        return contrast.clean.readout(decoder), (runner(contrast) for runner in runners[some])

    for chunk in (chunk.to(model.device) for chunk in chunks):
        values.append(np.full((len(circuits), len(chunk)), np.nan))
        for begin in range(0, len(circuits), max(1, at_once)):
            clean, logits = run(chunk, slice(begin, begin + at_once))
            for number, readout in enumerate(logits, start=begin):
                result = objective(readout, chunk, clean if objective.needs_clean else None)
                values[-1][number] = result.double().cpu().numpy()
                advance(len(chunk))
            # Else two chunks' runs would be held while the next ones are made.
            del clean, logits
    return values


def _chunks(
    model: Model, batch: Batch, budget: int, *, in_spans: bool
) -> list[tuple[list[int], Batch]]:
    """Pairs to run together: of similar length, or of as many columns that differ if that is less
    work. Two runs take all columns, circuits those from a chunk's first difference on.

    However many circuits there are, the chunks are the same: else the full model and the empty
    circuit would have other last bits in one evaluation than in the next.
    """
    plain = list(batch.chunks(budget))
    if constants_of(batch) is not None or in_spans:
        return plain
    changed = 1 - kept_run_bytes(model.decoder) / trace_bytes(model.decoder)

    def work(chunks: Sequence[tuple[list[int], Batch]]) -> int:
        return sum(
            len(chunk) * (chunk.n_tokens + len(FRACTIONS) * int(chunk.changed_columns().max()))
            for _, chunk in chunks
        )

    return min(plain, list(batch.chunks(budget, changed=changed)), key=work)


__all__ = [
    "FRACTIONS",
    "PROFILES",
    "Controls",
    "FaithfulnessCurve",
    "Profile",
    "RankingCurve",
    "evaluate",
    "faithfulness_curve",
    "run_controls",
    "smallest_circuit",
]

RANDOM_SEEDS = tuple(range(FEW_DRAWS))
"""Of the random rankings of each kind: as many as say what chance may reach."""


@checked
def evaluate(
    model: Model,
    circuit: Circuit | Sequence[Circuit],
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    transfer: bool = False,
    progress: Progress = BAR,
) -> Float[np.ndarray, "*circuits n"]:
    """The objective per example when only the circuit's edges carry the clean run.

    The others carry the counterfactual. Where a circuit names neurons, its edges carry these alone.
    Several circuits share the clean and counterfactual runs of every example.

    Args:
        transfer: whether the circuits may have been found in another model.

    Returns:
        float64 values in the order of `pairs`: [n] for one circuit, [circuits, n] for several.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to
            another width.
        BadUsage: a circuit of another model, without `transfer`.
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    circuits = [circuit] if isinstance(circuit, Circuit) else list(circuit)
    for one in circuits:
        if one.graph != model.graph:
            raise GraphMismatch(
                f"The circuit belongs to {one.graph}; the model's graph is {model.graph}."
            )
        if one.neurons is not None and one.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(
                f"The circuit has {one.neurons.shape[1]} neurons a node; the model has"
                f" {model.decoder.d_model}."
            )
    origins = {id(one.provenance): one.provenance for one in circuits if one.provenance}
    for origin in origins.values():
        found_in("circuit", origin, model, transfer=transfer)
    values = objective_per_example(
        model, model.batch(pairs), load_objective(objective), circuits, progress=progress
    )
    return values[0] if isinstance(circuit, Circuit) else values


@checked
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
    chosen: SmallestCircuit | None = None,
    ability: Ability | None = None,
    label: str | None = None,
    transfer: bool = False,
    seed: int = 0,
    progress: Progress = BAR,
) -> FaithfulnessCurve:
    """Faithfulness at all sizes, and areas, of scores of edges, nodes or neurons, or of circuits.

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
        chosen: the smallest circuit that was chosen on other pairs: it is also left out.
        ability: whether the model does the task of these pairs; measured if it is not given.
        transfer: whether the scores may have been found in another model.
        seed: of the bootstrap.

    Raises:
        UnknownName: no such profile.
        GraphMismatch: scores of another graph.
        BadUsage: scores of another model, without `transfer`.
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
    origin = scores.provenance
    label = label or str(origin.get("method", "scores"))
    elsewhere = found_in(f"scores {label}", origin, model, transfer=transfer)
    batch, measured = model.batch(pairs), load_objective(objective)
    batch, counts = apart(batch)
    if controls is None:
        controls = run_controls(model, batch, measured, fractions=sizes, progress=progress)
    elif (controls.ids, controls.objective, controls.fractions) != (
        batch.ids,
        measured.name,
        sizes,
    ):
        raise BadUsage(
            "The controls belong to other examples, another objective or other fractions than this"
            " evaluation."
        )
    wanted = {by: _circuits(scores, sizes, by, greedy, profile) for by in RANKINGS}
    circuits = [circuit for by in RANKINGS for circuit in wanted[by]]
    torn = list[str]()
    if chosen is not None and chosen.fraction is not None:
        try:
            circuits.append(complement(wanted["magnitude"][sizes.index(chosen.fraction)]))
        except BadUsage as error:  # Of circuits with neurons, which somebody else has cut.
            torn.append(f"What is left without the smallest circuit is unknown: {error}")
    values = evaluate_distinct(model, circuits, batch, measured, progress)
    n_ranked = len(RANKINGS) * len(sizes)
    rule = FaithfulnessMetric(
        profile,
        sizes,
        model.graph.n_edges,
        controls.empty,
        controls.full,
        batch.groups,
        seed,
        objective=measured.name,
    )
    kept: dict[By, tuple[int, ...]] = {
        by: tuple(round(circuit.weighted_edge_count()) for circuit in wanted[by]) for by in RANKINGS
    }
    return FaithfulnessCurve(
        label=label,
        profile=profile,
        n_edges=model.graph.n_edges,
        groups=batch.groups,
        controls=controls,
        kept=kept,
        values=dict(zip(RANKINGS, np.split(values[:n_ranked], len(RANKINGS)), strict=True)),
        warnings=(*_warnings(scores, rule, kept["value"]), *torn),
        model=model.name,
        identity=model.known_identity.as_dict(),
        found_in=elsewhere,
        task=str(origin.get("task", "")),
        dtype=str(origin.get("dtype", "")),
        chosen=chosen,
        complement=values[n_ranked] if len(values) > n_ranked else None,
        tied={by: tied_at(scores, sizes, by) for by in RANKINGS},
        ranking=RankingFacts.of(scores, batch),
        counts=counts,
        better=measured.direction,
        ability=ability or ability_of(model, batch),
        seed=seed,
    )


def magnitude_sweep(
    model: Model,
    scores: Ranked,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    profile: Profile = "strict",
    fractions: Sequence[float] = FRACTIONS,
    greedy: bool = False,
    transfer: bool = False,
    seed: int = 0,
    progress: Progress = BAR,
) -> RankingCurve:
    """The circuits by magnitude alone: half a curve, without random rankings.

    Arguments and errors are those of `faithfulness_curve`.
    """
    found_in("scores", scores.provenance, model, transfer=transfer)
    sizes, measured = check_fractions(fractions), load_objective(objective)
    batch, _ = apart(model.batch(pairs))
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    circuits = _circuits(scores, sizes, "magnitude", greedy, profile)
    values = evaluate_distinct(model, ends + circuits, batch, measured, progress)
    rule = FaithfulnessMetric(
        profile,
        sizes,
        model.graph.n_edges,
        values[0],
        values[1],
        batch.groups,
        seed,
        objective=measured.name,
    )
    kept = tuple(round(circuit.weighted_edge_count()) for circuit in circuits)
    return rule.sweep("magnitude", tuple(int(p * rule.n_edges) for p in sizes), kept, values[2:])


@checked
def smallest_circuit(
    model: Model,
    scores: Ranked,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    agreement: float = AGREES,
    split: str = "",
    fractions: Sequence[float] = FRACTIONS,
    **settings: Any,
) -> SmallestCircuit:
    """The smallest circuit by magnitude that keeps this share of what ablation changes.

    Its number on these pairs is the best of several: measure it on others, as `chosen` of
    `faithfulness_curve`.

    Args:
        split: what the pairs are called where this is told.
        settings: those of `magnitude_sweep`.

    Raises:
        BadUsage: no share above 0; others as `faithfulness_curve`.
    """
    sweep = magnitude_sweep(model, scores, pairs, objective, fractions=fractions, **settings)
    return SmallestCircuit.of(check_fractions(fractions), sweep, agreement, split)


def _circuits(
    scores: Ranked, sizes: Sequence[float], by: By, greedy: bool, profile: Profile
) -> list[Circuit]:
    """The circuit of each size, without what is on no path."""
    if isinstance(scores, CircuitSeries):
        return scores.cut(sizes, profile)
    greedy = greedy or (isinstance(scores, EdgeScores) and scores.grows)
    return [_cut(scores, p, by, greedy, profile) for p in sizes]


@checked
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

    Args:
        seeds: of the rankings of each kind. The more, the more methods can be told from chance
            (`stats.chance`).

    Raises:
        BadUsage: `fractions` are no rising sizes that end in 1. Also as `evaluate`.
    """
    from mechassay.circuits.methods.random import Random, RandomPaths

    begin = time.perf_counter()
    batch, chosen, sizes = model.batch(pairs), load_objective(objective), check_fractions(fractions)
    kinds = (Random, RandomPaths)
    rankings = [kind(seed=seed).draw(model.graph) for kind in kinds for seed in seeds]
    circuits = [scores.top(p).pruned() for scores in rankings for p in sizes]
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    values = evaluate_distinct(model, ends + circuits, batch, chosen, progress)
    shape = (len(kinds), len(seeds), len(sizes))
    kept = np.array([len(circuit) for circuit in circuits]).reshape(shape).tolist()
    rows = values[2:].reshape(*shape, len(batch))
    edges, paths = (
        {seed: (tuple(kept[kind][place]), rows[kind, place]) for place, seed in enumerate(seeds)}
        for kind in range(len(kinds))
    )
    seconds = round(time.perf_counter() - begin, 3)
    return Controls(chosen.name, batch.ids, sizes, values[0], values[1], edges, paths, seconds)


def _cut(scores: Scores, fraction: float, by: By, greedy: bool, profile: Profile) -> Circuit:
    """The circuit of one size, without what is on no path."""
    if profile == "strict" and fraction == 1:
        # With what has no score, which comes last and all together.
        return Circuit.full(scores.graph)
    if isinstance(scores, EdgeScores):
        return (scores.greedy if greedy else scores.top)(fraction, by=by).pruned()
    return (scores.within if profile == "strict" else scores.top)(fraction, by=by).pruned()


def evaluate_distinct(
    model: Model,
    circuits: Sequence[Circuit],
    batch: Batch,
    objective: Objective,
    progress: Progress,
) -> Float[np.ndarray, "circuits n"]:
    """`evaluate`, running equal circuits once: pruned, several small sizes are often the same. The
    caller has compared the model of the circuits.
    """
    places: dict[Circuit, int] = {}
    which = [places.setdefault(circuit, len(places)) for circuit in circuits]
    return evaluate(model, list(places), batch, objective, transfer=True, progress=progress)[which]


ROUGH = 30
"""Groups of examples below which intervals are rough."""


def _warnings(scores: Ranked, rule: FaithfulnessMetric, kept: tuple[int, ...]) -> tuple[str, ...]:
    lines = (
        _not_measured(scores, rule)
        if isinstance(scores, CircuitSeries)
        else _unscored(scores, rule.profile)
    )
    n_empty = sum(size == 0 for size in kept)
    if n_empty:
        lines.append(
            f"{n_empty} of {len(kept)} sizes have no path from input to logits: their circuits are"
            " empty."
        )
    if FEW_GROUPS <= rule.n_groups < ROUGH:
        lines.append(f"Only {rule.n_groups} groups of examples: intervals are rough.")
    return tuple(lines)


def _not_measured(series: CircuitSeries, rule: FaithfulnessMetric) -> list[str]:
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
    if scores.provenance.get(KEPT) and not isinstance(scores, EdgeScores):
        where = "every circuit has them, as MIB's evaluator reads its files"
    return [f"{n:,} of {total:,} {scores.unit}s have no score: {where}."]


Unit = Literal["edge", "node"]


@dataclass(frozen=True, eq=False, repr=False)
class Completeness(OneLine):
    """What is left of the behaviour without the circuit.

    Attributes:
        circuit, complement: f of the circuit and of all other edges, with intervals.
        agreement: the share of what ablation changes that the circuit keeps, pair by pair.
        per_example: the objective in the full model, the empty circuit, the circuit, and the
            complement.
    """

    circuit: float
    circuit_interval: Interval
    complement: float
    complement_interval: Interval
    agreement: float
    agreement_interval: Interval
    per_example: Float[np.ndarray, "4 n"]


@dataclass(frozen=True, eq=False, repr=False)
class Minimality(OneLine):
    """What each part of a circuit is worth.

    Attributes:
        parts: names of edges, or of nodes.
        drops: f of the circuit less f without the part; `intervals` beside them.
    """

    parts: tuple[str, ...]
    drops: Float[np.ndarray, "parts"]
    intervals: tuple[Interval, ...]

    def repr_fields(self) -> dict[str, Any]:
        return {"parts": len(self.parts), "unneeded": self.n_unneeded, "largest": self.drops.max()}

    @property
    def n_unneeded(self) -> int:
        """Parts whose interval contains 0 or lies below it, or that have none."""
        return sum(not interval.low > 0 for interval in self.intervals)


@checked
def complement(circuit: Circuit) -> Circuit:
    """All edges of the graph that the circuit does not have,
    and the neurons that its edges leave out.

    Raises:
        BadUsage: a writer has some of its neurons on some of its edges alone: the rest of it is no
            circuit.
    """
    graph, neurons = circuit.graph, circuit.neurons
    if neurons is None:
        return Circuit(graph, graph.legal & ~circuit.edges)
    parted = neurons.any(dim=1) & ~neurons.all(dim=1) & circuit.edges.any(dim=1)
    torn = parted & (graph.legal & ~circuit.edges).any(dim=1)
    if bool(torn.any()):
        name = graph.writer_name(int(torn.nonzero()[0]))
        raise BadUsage(
            f"{name} has some neurons on some of its edges: what is left of it is no circuit; take"
            " all edges out of it."
        )
    # What carries whole writers, or nothing, is left out or taken by edge; the rest by neuron.
    edges = graph.legal & ~(circuit.edges & neurons.all(dim=1)[:, None])
    return Circuit(graph, edges, ~(neurons & parted[:, None]))


@checked
def completeness(
    model: Model,
    circuit: Circuit,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    transfer: bool = False,
    seed: int = 0,
    progress: Progress = BAR,
) -> Completeness:
    """Run a circuit and its complement.

    Args:
        transfer: whether the circuit may have been found in another model.

    Raises:
        BadUsage, GraphMismatch, NonFinite, OutOfMemory: as `evaluate`.
    """
    batch, graph, chosen = model.batch(pairs), model.graph, load_objective(objective)
    circuits = [Circuit.full(graph), Circuit.empty(graph), circuit, complement(circuit)]
    values = evaluate(model, circuits, batch, chosen, transfer=transfer, progress=progress)
    return completeness_of(values, batch.groups, chosen.name, seed=seed)


def completeness_of(
    values: Float[np.ndarray, "4 n"], groups: Sequence[str], objective: str, *, seed: int = 0
) -> Completeness:
    """What the objective of each pair says: in the full model, the empty circuit, the circuit, and
    its complement.
    """
    f, intervals = _shares(values, groups, objective, seed)
    kept = _agreement(values, groups, seed)
    return Completeness(float(f[0]), intervals[0], float(f[1]), intervals[1], *kept, values)


@checked
def minimality(
    model: Model,
    circuit: Circuit,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    unit: Unit = "edge",
    most: int | None = None,
    transfer: bool = False,
    seed: int = 0,
    progress: Progress = BAR,
) -> Minimality:
    """Run a circuit without each of its edges, or without all edges into
    and out of each of its nodes, in turn.

    Args:
        most: parts that are left out, drawn at random where the circuit has more.
        transfer: whether the circuit may have been found in another model.

    Raises:
        BadUsage: an empty circuit, or no part to leave out. UnknownName: no such unit. Also as
            `evaluate`.
    """
    one_of("part of a circuit", unit, get_args(Unit))
    if not len(circuit):
        raise BadUsage("The circuit is empty: there is nothing to leave out.")
    batch, graph, chosen = model.batch(pairs), model.graph, load_objective(objective)
    if most is not None and most < 1:
        raise BadUsage(f"Minimality leaves out one part or more; got most={most}.")
    parts = _edges(circuit) if unit == "edge" else _nodes(circuit)
    if most is not None and len(parts) > most:
        drawn = np.random.default_rng(seed).choice(len(parts), size=most, replace=False)
        names = list(parts)
        parts = {names[place]: parts[names[place]] for place in sorted(drawn.tolist())}
    circuits = [Circuit.full(graph), Circuit.empty(graph), circuit, *parts.values()]
    values = evaluate(model, circuits, batch, chosen, transfer=transfer, progress=progress)
    # The drop of f is the share of m(C) - m(C without the part): the empty circuit cancels.
    drops = np.vstack((values[:2], values[1] + values[2] - values[3:]))
    f, intervals = _shares(drops, batch.groups, chosen.name, seed)
    return Minimality(tuple(parts), f, intervals)


def _edges(circuit: Circuit) -> dict[str, Circuit]:
    without: dict[str, Circuit] = {}
    for writer, reader in circuit.edges.nonzero().tolist():
        edges = circuit.edges.clone()
        edges[writer, reader] = False
        without[circuit.graph.edge_name(writer, reader)] = Circuit(
            circuit.graph, edges, circuit.neurons
        )
    return without


def _nodes(circuit: Circuit) -> dict[str, Circuit]:
    graph, without = circuit.graph, dict[str, Circuit]()
    for writer in torch.nonzero(circuit.edges.any(dim=1)).flatten().tolist():
        edges = circuit.edges.clone()
        edges[writer] = False
        edges[:, graph.reader_owner == writer] = False
        without[graph.writer_name(writer)] = Circuit(graph, edges, circuit.neurons)
    return without


def _agreement(
    values: Float[np.ndarray, "4 n"], groups: Sequence[str], seed: int
) -> tuple[float, Interval]:
    """The agreement of the third row, a circuit, with its interval; the first two are the full
    and the empty circuit.
    """
    share = float(agreement(full=values[0], empty=values[1], circuit=values[2]))
    effect, kept = kept_effects(values[0], values[1], values[2])
    draws = resampled_means(np.stack((kept, effect)), groups, np.random.default_rng(seed))
    if math.isnan(share):
        return share, NO_INTERVAL
    shares = draws[:, 0] / np.where(draws[:, 1] == 0, np.nan, draws[:, 1])
    return share, percentile_interval(shares, n_groups=len(set(groups)))


def _shares(
    values: Float[np.ndarray, "k n"], groups: Sequence[str], objective: str, seed: int
) -> tuple[Float[np.ndarray, "rest"], tuple[Interval, ...]]:
    """(mean of each row - m(0)) / (m(N) - m(0)) of the rows after the first two,
    which are N and 0.
    """
    draws = resampled_means(values, groups, np.random.default_rng(seed))
    rows = np.vstack((values.mean(axis=1), draws))
    least = least_size(objective)
    gaps = resolved_difference(rows[:, 0], rows[:, 1], values[:2], least=least)
    n_groups = len(set(groups))
    gap = percentile_interval(gaps[1:], n_groups=n_groups)
    if gaps[0] == 0 or gap.contains(0.0):
        nothing = float("nan")
        return np.full(len(values) - 2, nothing), (Interval(nothing, nothing, gap.level),) * (
            len(values) - 2
        )
    f = (rows[:, 2:] - rows[:, 1:2]) / np.where(gaps == 0, np.nan, gaps)[:, None]
    return f[0], tuple(percentile_interval(column, n_groups=n_groups) for column in f[1:].T)
