"""How faithful circuits are: faithfulness at many sizes, CPR and CMD, with intervals and controls.

For a circuit C, the full model N, the empty circuit 0 and an objective m (means over examples),

    f(C) = (m(C) - m(0)) / (m(N) - m(0))                                   (MIB, eq. 1)
    CPR  = area under f over circuit size      (best edges by value)
    CMD  = area between f and 1                (best edges by magnitude)

at the ten sizes of Mueller et al. (2025), section 3.1, by the trapezoidal rule. Two profiles:

`mib-2025`  exactly their code: circuits of floor(p * edges) edges, pruned before they are run,
            but plotted at their nominal size p; the area starts at p = .001, so that a perfect
            curve has CPR .999. A noisy denominator is divided by all the same.
`strict`    (default) circuits stand at the size they have after pruning; a segment leads from the
            empty circuit at 0; an area over log size stands beside the linear one, in which
            85 % of the weight is on circuits of 20 % and more; where the interval of m(N) - m(0)
            contains 0, f and its areas are undefined (NaN, counted).

The area over log size is the mean of f (of |1 - f|) over log10(edges), from one edge to all of
them; the empty circuit stands at one edge. Intervals resample examples (whole groups) and
recompute every mean; nothing is run again. The controls are the empty circuit (f = 0), the full
circuit (f = 1) and random rankings, whose CPR and CMD say what the sizes alone are worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from mechassay.circuits.node_scores import Scores
from mechassay.circuits.objectives import Objective, load_objective
from mechassay.circuits.per_example import objective_per_example
from mechassay.circuits.scores import By, Circuit, EdgeScores
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.stats import Interval, percentile_interval, resampled_means, trapezoid

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PROFILES = ("strict", "mib-2025")
Profile = Literal["strict", "mib-2025"]
RANDOM_SEEDS = (0, 1, 2)


def evaluate(
    model: Model,
    circuit: Circuit | Sequence[Circuit],
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective = "logit_diff",
    *,
    progress: Progress = BAR,
) -> Float[np.ndarray, "*circuits n"]:
    """The objective per example when only the circuit's edges carry the clean run; the others carry the counterfactual.

    Where a circuit names neurons, its edges carry these alone, and the counterfactual of all others. Several circuits
    share the clean and counterfactual runs of every example.

    Returns:
        float64 values in the order of `pairs`: [n] for one circuit, [circuits, n] for several.

    Raises:
        GraphMismatch: a circuit belongs to another graph than the model's, or its neurons to another width.
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    circuits = [circuit] if isinstance(circuit, Circuit) else list(circuit)
    for each in circuits:
        if each.graph != model.graph:
            raise GraphMismatch(f"The circuit belongs to {each.graph}; the model's graph is {model.graph}.")
        if each.neurons is not None and each.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(f"The circuit has {each.neurons.shape[1]} neurons a node; the model has {model.decoder.d_model}.")
    chosen, batch = load_objective(objective), model.batch(pairs)
    runs = [circuit_runner(model.decoder, model.graph, each.edges, each.neurons) for each in circuits]
    values = objective_per_example(model, batch, chosen, runs, progress=progress)
    return values[0] if isinstance(circuit, Circuit) else values


@dataclass(frozen=True)
class Area:
    """An area and its interval; NaN where undefined."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Sweep:
    """One ranking's circuits at all sizes.

    Attributes:
        by: what ranked the edges.
        asked, kept: edges asked for, and left after pruning.
        per_example: objective [sizes, n].
        faithfulness, intervals: f at each size.
        cpr, cmd: areas over circuit size.
        log_cpr, log_cmd: areas over log circuit size; None in the profile `mib-2025`.
    """

    by: By
    asked: tuple[int, ...]
    kept: tuple[int, ...]
    per_example: Float[np.ndarray, "sizes n"]
    faithfulness: Float[np.ndarray, "sizes"]
    intervals: tuple[Interval, ...]
    cpr: Area
    cmd: Area
    log_cpr: Area | None
    log_cmd: Area | None


@dataclass(frozen=True)
class Controls:
    """What every evaluation is compared with: per-example values of the empty and the full circuit, and random rankings.

    Attributes:
        random: seed -> (edges kept at each size, objective [sizes, n]).
    """

    objective: str
    ids: tuple[str, ...]
    empty: Float[np.ndarray, "n"]
    full: Float[np.ndarray, "n"]
    random: Mapping[int, tuple[tuple[int, ...], Float[np.ndarray, "sizes n"]]]


@dataclass(frozen=True)
class FaithfulnessCurve:
    """Faithfulness of one set of scores at all sizes, its areas, intervals and controls.

    `cpr` comes from the ranking by value, `cmd` from the ranking by magnitude, as in MIB.
    """

    label: str
    profile: Profile
    objective: str
    n_edges: int
    fractions: tuple[float, ...]
    sweeps: Mapping[By, Sweep]
    controls: Controls
    random: Mapping[int, Sweep]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    denominator: Interval
    n_undefined: int
    warnings: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def cpr(self) -> float:
        """Area under f, edges ranked by value."""
        return self.sweeps["value"].cpr.value

    @property
    def cpr_interval(self) -> Interval:
        return self.sweeps["value"].cpr.interval

    @property
    def cmd(self) -> float:
        """Area between f and 1, edges ranked by magnitude."""
        return self.sweeps["magnitude"].cmd.value

    @property
    def cmd_interval(self) -> Interval:
        return self.sweeps["magnitude"].cmd.interval

    @property
    def faithfulness(self) -> dict[By, Float[np.ndarray, "sizes"]]:
        """f at each size, by ranking."""
        return {by: sweep.faithfulness for by, sweep in self.sweeps.items()}

    @property
    def random_cpr(self) -> float:
        """Mean CPR of the random rankings."""
        return float(np.mean([sweep.cpr.value for sweep in self.random.values()]))

    @property
    def random_cmd(self) -> float:
        """Mean CMD of the random rankings."""
        return float(np.mean([sweep.cmd.value for sweep in self.random.values()]))

    def to_html(self, path: str | Path) -> Path:
        """Write the curve as one self-contained HTML file with figures."""
        from mechassay.report.page import write_page

        return write_page(Path(path), [self])


def faithfulness_curve(
    model: Model,
    scores: Scores,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective = "logit_diff",
    *,
    profile: Profile = "strict",
    fractions: Sequence[float] = FRACTIONS,
    greedy: bool = False,
    controls: Controls | None = None,
    label: str | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> FaithfulnessCurve:
    """Faithfulness at all sizes, CPR and CMD of scores of edges, nodes or neurons.

    A node counts as all edges out of it, a neuron as its share of them (Mueller et al. 2025, section
    3.1): the profile "strict" takes the best that stay within a size, "mib-2025" that share of the nodes
    or neurons. Scores that say so (information flow routes) are cut greedily.

    Args:
        pairs: examples to evaluate on; not those the scores were found on.
        profile: "strict" or "mib-2025".
        greedy: grow circuits from the logits instead of taking the top edges.
        controls: those of another curve on the same pairs and objective, to save their cost.
        seed: of the bootstrap.

    Raises:
        UnknownName: no such profile. GraphMismatch: scores of another graph. Also as `evaluate`.
    """
    if profile not in PROFILES:
        raise UnknownName("profile", profile, PROFILES)
    if scores.graph != model.graph:
        raise GraphMismatch(f"The scores were made on {scores.graph}; the model's graph is {model.graph}.")
    batch, chosen = model.batch(pairs), load_objective(objective)
    if controls is None:
        controls = run_controls(model, batch, chosen, fractions=fractions, progress=progress)
    elif controls.ids != batch.ids or controls.objective != chosen.name:
        raise BadUsage("The controls belong to other examples or another objective than this evaluation.")
    rankings: tuple[By, By] = ("value", "magnitude")
    greedy = greedy or scores.provenance.get("selection") == "greedy"
    wanted = {by: [_cut(scores, float(p), by, greedy, profile) for p in fractions] for by in rankings}
    values = _evaluate_distinct(model, [circuit for by in rankings for circuit in wanted[by]], batch, chosen, progress)
    rule = _Rule(profile, tuple(fractions), model.graph.n_edges, controls, batch.groups, seed)
    asked = tuple(int(p * model.graph.n_edges) for p in fractions)
    found: dict[By, Sweep] = {}
    for place, by in enumerate(rankings):
        kept = tuple(round(circuit.weighted_edge_count()) for circuit in wanted[by])
        found[by] = rule.sweep(by, asked, kept, values[place * len(fractions) : (place + 1) * len(fractions)])
    random = {number: rule.sweep("value", asked, kept, rows) for number, (kept, rows) in controls.random.items()}
    return FaithfulnessCurve(
        label=label or str(scores.provenance.get("method", "scores")),
        profile=profile,
        objective=chosen.name,
        n_edges=model.graph.n_edges,
        fractions=tuple(fractions),
        sweeps=found,
        controls=controls,
        random=random,
        ids=batch.ids,
        groups=batch.groups,
        denominator=rule.denominator,
        n_undefined=len(fractions) if profile == "strict" and not rule.defined else 0,
        warnings=_warnings(model, scores, batch, rule, found["value"].kept),
        notes={str(key): str(value) for key, value in scores.provenance.items()},
    )


def run_controls(
    model: Model,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective = "logit_diff",
    *,
    fractions: Sequence[float] = FRACTIONS,
    seeds: Sequence[int] = RANDOM_SEEDS,
    progress: Progress = BAR,
) -> Controls:
    """Run the empty and the full circuit and random rankings on examples."""
    from mechassay.circuits.methods.random import Random

    batch, chosen = model.batch(pairs), load_objective(objective)
    rankings = {seed: Random(seed=seed).draw(model.graph) for seed in seeds}
    circuits = {seed: [scores.top(float(p)).pruned() for p in fractions] for seed, scores in rankings.items()}
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    values = _evaluate_distinct(model, ends + [circuit for line in circuits.values() for circuit in line], batch, chosen, progress)
    random: dict[int, tuple[tuple[int, ...], Float[np.ndarray, "sizes n"]]] = {}
    for place, (seed, line) in enumerate(circuits.items()):
        begin = 2 + place * len(fractions)
        random[seed] = (tuple(len(circuit) for circuit in line), values[begin : begin + len(fractions)])
    return Controls(chosen.name, batch.ids, values[0], values[1], random)


def _cut(scores: Scores, fraction: float, by: By, greedy: bool, profile: Profile) -> Circuit:
    """The circuit of one size, without what is on no path."""
    if isinstance(scores, EdgeScores):
        return (scores.greedy if greedy else scores.top)(fraction, by=by).pruned()
    return (scores.within if profile == "strict" else scores.top)(fraction, by=by).pruned()


def _evaluate_distinct(
    model: Model, circuits: Sequence[Circuit], batch: Batch, objective: Objective, progress: Progress
) -> Float[np.ndarray, "circuits n"]:
    """`evaluate`, running equal circuits once: after pruning, several small sizes are often the same."""
    places: dict[Circuit, int] = {}
    which = [places.setdefault(circuit, len(places)) for circuit in circuits]
    return evaluate(model, list(places), batch, objective, progress=progress)[which]


class _Rule:
    """A profile's arithmetic: from per-example values to f and its areas, with intervals."""

    def __init__(
        self, profile: Profile, fractions: tuple[float, ...], n_edges: int, controls: Controls, groups: tuple[str, ...], seed: int
    ) -> None:
        self.profile, self.fractions, self.n_edges, self.seed = profile, fractions, n_edges, seed
        self.groups = groups
        self.ends = np.stack((controls.empty, controls.full))
        draws = self._resampled(self.ends)
        self.denominator = percentile_interval(draws[:, 1] - draws[:, 0])
        self.defined = not self.denominator.contains(0.0)

    def _resampled(self, values: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "resamples k"]:
        # The same seed for every call: all statistics of one evaluation see the same resamples.
        return resampled_means(values, self.groups, np.random.default_rng(self.seed))

    def sweep(self, by: By, asked: tuple[int, ...], kept: tuple[int, ...], values: Float[np.ndarray, "sizes n"]) -> Sweep:
        means = np.concatenate((self.ends, values)).mean(axis=1)[None]
        point, draws = self._ratio(means), self._ratio(self._resampled(np.concatenate((self.ends, values))))
        strict = self.profile == "strict"
        if strict and not self.defined:
            point, draws = np.full_like(point, np.nan), np.full_like(draws, np.nan)
        axis = np.array(self.fractions)
        log_areas: list[Area | None] = [None, None]
        areas: list[Area]
        if strict:
            axis = np.concatenate(([0.0], np.array(kept) / self.n_edges))
            point, draws = (np.concatenate((np.zeros((len(f), 1)), f), axis=1) for f in (point, draws))
            if not self.defined:
                point[:], draws[:] = np.nan, np.nan
            log_axis = np.log10(np.maximum(axis * self.n_edges, 1.0)) / np.log10(self.n_edges)
            log_areas = list(_areas(point, draws, log_axis))
        areas = list(_areas(point, draws, axis))
        skip = 1 if strict else 0
        return Sweep(
            by=by,
            asked=asked,
            kept=kept,
            per_example=values,
            faithfulness=point[0, skip:],
            intervals=tuple(percentile_interval(draws[:, column]) for column in range(skip, draws.shape[1])),
            cpr=areas[0],
            cmd=areas[1],
            log_cpr=log_areas[0],
            log_cmd=log_areas[1],
        )

    @staticmethod
    def _ratio(means: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "rows sizes"]:
        empty, full = means[:, :1], means[:, 1:2]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(full == empty, np.nan, (means[:, 2:] - empty) / (full - empty))


def _areas(point: np.ndarray, draws: np.ndarray, axis: np.ndarray) -> tuple[Area, Area]:
    cpr = Area(float(trapezoid(point, axis)[0]), percentile_interval(trapezoid(draws, axis)))
    cmd = Area(float(trapezoid(np.abs(1 - point), axis)[0]), percentile_interval(trapezoid(np.abs(1 - draws), axis)))
    return cpr, cmd


def _warnings(model: Model, scores: Scores, batch: Batch, rule: _Rule, kept: tuple[int, ...]) -> tuple[str, ...]:
    found: list[str] = []
    if not rule.defined:
        low, high, _ = rule.denominator
        what = "f, CPR and CMD are undefined" if rule.profile == "strict" else "f, CPR and CMD divide by a number that may be 0"
        found.append(f"The interval of the full minus the empty circuit, [{low:.3g}, {high:.3g}], contains 0: {what}.")
    if scores.provenance.get("data_hash") == batch.content:
        found.append("Evaluated on the examples that the scores were found on: faithfulness is in-sample.")
    n_empty = sum(size == 0 for size in kept)
    if n_empty:
        found.append(f"{n_empty} of {len(kept)} sizes have no path from input to logits: their circuits are empty.")
    if len(batch) < 30:
        found.append(f"Only {len(batch)} examples: intervals are rough.")
    return tuple(found)
