"""Circuits of many sizes, and CPR and CMD: how faithful they are, in one number each.

A ranking is cut at every size; a series, such as a folder of MIB's nine circuits, has been cut
already. Both become a curve of faithfulness:

    strict      at a size p the circuit is the largest of the series that has at most p of the
                edges, pruned, and none if all are larger. The area is over the circuits' own
                sizes, as it is for rankings. Of circuits that lie between two of the sizes that
                are measured the largest stands for all, so that no series has more sizes than a
                ranking.
    mib-2025    the benchmark's evaluator: exactly nine circuits, sorted by their weighted edge
                counts before pruning; the k-th stands for the k-th size, however large it is

The circuit of size 1 is the full one. Nothing ranks the edges of a series but how many of its
circuits have them (`counts`).

CPR and CMD (Mueller et al. 2025, section 3.1) are areas under the faithfulness f and under
|1 - f|; CMA is the area under circuit-model agreement. `FaithfulnessMetric` has their formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import ENDINGS, load_scores, read_graph_file, scores_of
from mechassay.circuits.profiles import PROFILES, Profile
from mechassay.circuits.scores import By, EdgeScores, Scores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, one_of
from mechassay.models.graph import Graph
from mechassay.models.objectives import least_size
from mechassay.models.origin import DIGESTS, NAME
from mechassay.stats.intervals import (
    BootstrapEstimate,
    Interval,
    Resamples,
    folded_sum,
    linear_sum,
    percentile_interval,
    resolved_difference,
)
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine
from mechassay.utils.files import LEADS_OUT, kind_of, leads_out, no_folder

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Sizes of circuits by default, as fractions of the model's edges; those of MIB's board."""


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """Sizes to measure, checked: at least two, rising, above 0, the last 1.

    Raises:
        BadUsage: they are not.
    """
    sizes = tuple(map(float, fractions))
    rising = all(a < b for a, b in zip((0.0, *sizes), sizes, strict=False))
    if len(sizes) < 2 or not rising or sizes[-1] != 1:
        text = ", ".join(f"{size:g}" for size in sizes) or "none"
        raise BadUsage(
            f"fractions must be at least two sizes, rising from above 0 to 1; got {text}."
        )
    return sizes


def step_weights(
    sizes: Sequence[float], first: float, *, log: bool = False
) -> Float[np.ndarray, "weights"]:
    """How much of [first, 1] belongs to the empty circuit and to each circuit: up to the next size.

    Args:
        sizes: shares of the edges, not falling.
        log: measure lengths in log x.
    """
    ends = np.clip([0.0, *sizes, 1.0], first, 1.0)
    if log:
        ends = np.log(ends)
    return np.diff(ends) / (ends[-1] - ends[0])


def trapezoid_weights(x: Sequence[float]) -> Float[np.ndarray, "sizes"]:
    """The weight of each value in the area under them by the trapezoidal rule."""
    widths = np.diff(np.asarray(x, dtype=float))
    return (np.append(widths, 0.0) + np.insert(widths, 0, 0.0)) / 2


@checked
def agreement(*, full: ArrayLike, empty: ArrayLike, circuit: ArrayLike) -> Any:
    """Circuit-model agreement A: the share of what ablation changes that a circuit keeps.

    With d_i = full_i - empty_i and e_i = circuit_i - full_i of pair i,

        A = sum_i max(0, |d_i| - |e_i|) / sum_i |d_i|

    It is 1 only where every pair is as in the model, and 0 for the empty circuit. A circuit that
    overshoots earns nothing for it, and errors of two pairs do not cancel, as they may in f.

    Args:
        full, empty: the objective of each pair [n] in the model and in the empty circuit.
        circuit: in one circuit [n], or in several [circuits, n].

    Returns:
        float64: a share in [0, 1] of each circuit; NaN where ablation changes no pair, or by
        rounding alone.
    """
    ends = np.array([empty, full], dtype=float)
    effect, kept = kept_effects(ends[1], ends[0], np.asarray(circuit, dtype=float))
    whole = float(resolved_difference(effect.mean(), 0.0, ends))
    return kept.mean(axis=-1) / (whole if whole != 0 else math.nan)


def kept_effects(
    full: Float[np.ndarray, "n"],
    empty: Float[np.ndarray, "n"],
    circuit: Float[np.ndarray, "*circuits n"],
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "*circuits n"]]:
    """What ablation changes of each pair, and what of it each circuit keeps."""
    effect = np.abs(full - empty)
    return effect, np.maximum(0.0, effect - np.abs(circuit - full))


@dataclass(frozen=True, repr=False)
class RankingCurve(OneLine):
    """One ranking's circuits at all sizes: edges asked for and kept, objectives [sizes, n], areas.

    `draws` are the resamples of faithfulness and agreement. `log_cpr` and `log_cmd` are None in the
    profile `mib-2025`.
    """

    by: By
    n_edges_requested: tuple[int, ...]
    n_edges_kept: tuple[int, ...]
    per_example: Float[np.ndarray, "sizes n"]
    faithfulness: Float[np.ndarray, "sizes"]
    agreement: Float[np.ndarray, "sizes"]
    draws: tuple[Float[np.ndarray, "resamples sizes"], Float[np.ndarray, "resamples sizes"]]
    cpr: BootstrapEstimate
    cmd: BootstrapEstimate
    cma: BootstrapEstimate
    log_cpr: BootstrapEstimate | None
    log_cmd: BootstrapEstimate | None

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """Of the faithfulness at each size."""
        return self._intervals(0)

    @cached_property
    def agreement_intervals(self) -> tuple[Interval, ...]:
        """Of the agreement at each size."""
        return self._intervals(1)

    def _intervals(self, which: int) -> tuple[Interval, ...]:
        n = self.cpr.n_groups
        return tuple(percentile_interval(column, n_groups=n) for column in self.draws[which].T)


@lru_cache(maxsize=4)
def _resamples(groups: tuple[str, ...], seed: int) -> Resamples:
    """Resamples of these groups: all methods of a table have the same, and drawing is slow."""
    return Resamples(groups, np.random.default_rng(seed))


class FaithfulnessMetric:
    """A profile's arithmetic: from per-example values to f and its areas, with intervals.

    f_1 ... f_K is the faithfulness of the circuits cut at the shares p_1 < ... < p_K = 1 of the
    edges, s_k the share that is left after pruning; the empty circuit has s_0 = f_0 = 0. With
    weights w of a profile (Mueller et al. 2025, section 3.1)

        CPR = sum_k w_k f_k         (edges by value)
        CMD = sum_k w_k |1 - f_k|   (by magnitude)

    `strict`    (default) w_k is the length of [s_k, s_k+1) within [p_1, 1], over 1 - p_1, with
                s_K+1 = 1: the mean over sizes x from p_1 to 1 of the largest measured circuit
                that has at most x of the edges. Circuits that do nothing have CPR 0 and CMD 1;
                f = 1 at all sizes gives 1 and 0. The full circuit has no weight. Over log size:
                the same in log x. Where the interval of m(N) - m(0) contains 0, f and its areas
                are undefined (NaN).
    `mib-2025`  the benchmark's arithmetic: the trapezoidal rule over nominal sizes p_k, not
                normalised. f = 1 at all sizes gives CPR .999, circuits that do nothing .25.

    In both, a difference m(N) - m(0) that rounding alone may have made is 0. Intervals are
    those of `stats.intervals`. Noise makes CMD too large where f is near 1 (docs/areas.md).

    CMA (ours) is sum_k w_k A_k with the weights of `strict` in either profile, edges by magnitude;
    A_k is the circuit's `agreement`. It lies in [0, 1].

    `empty` and `full` are the objective of these circuits, and `objective` is its name;
    `groups` is the unit that is resampled.
    """

    def __init__(
        self,
        profile: Profile,
        fractions: Sequence[float],
        n_edges: int,
        empty: Float[np.ndarray, "n"],
        full: Float[np.ndarray, "n"],
        groups: Sequence[str],
        seed: int = 0,
        *,
        objective: str = "",
    ) -> None:
        one_of("profile", profile, PROFILES)
        self.profile: Profile = profile
        self.fractions = check_fractions(fractions)
        self.n_edges = n_edges
        self.groups, self.seed = tuple(groups), seed
        self._resamples = _resamples(self.groups, seed)
        self.n_groups = self._resamples.n_groups
        self.ends, self.least = np.stack((empty, full)), least_size(objective)
        gaps = self._gap(np.vstack((self.ends.mean(axis=1), self._resamples.means(self.ends))))
        self.denominator = percentile_interval(gaps[1:], n_groups=self.n_groups)
        self.defined = not self.denominator.contains(0.0) and bool(gaps[0] != 0)

    def _gap(self, rows: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "rows"]:
        """m(N) - m(0), of means or resamples whose first two columns are m(0) and m(N)."""
        return resolved_difference(rows[:, 1], rows[:, 0], self.ends, least=self.least)

    def sweep(
        self,
        by: By,
        asked: tuple[int, ...],
        kept: tuple[int, ...],
        values: Float[np.ndarray, "sizes n"],
    ) -> RankingCurve:
        """f at all sizes and its areas, from the objective of each size's circuit."""
        f, draws = self._faithfulness(values)
        steps, weights = self._weights(kept)
        kept_shares, kept_draws = self._agreement(values)
        empty = math.nan if np.isnan(kept_shares).any() else 0.0
        cma = linear_sum(
            np.insert(kept_shares, 0, empty),
            np.insert(kept_draws, 0, empty, axis=1),
            steps,
            self.n_groups,
            within=(0.0, 1.0),
        )
        log_cpr = log_cmd = None
        if self.profile == "strict":
            sizes = [size / self.n_edges for size in kept]
            log_weights = step_weights(sizes, self.fractions[0], log=True)
            log_cpr, log_cmd = self._areas(f, draws, log_weights)
        cpr, cmd = self._areas(f, draws, weights)
        return RankingCurve(
            by=by,
            n_edges_requested=asked,
            n_edges_kept=kept,
            per_example=values,
            faithfulness=f,
            agreement=kept_shares,
            draws=(draws, kept_draws),
            cpr=cpr,
            cmd=cmd,
            cma=cma,
            log_cpr=log_cpr,
            log_cmd=log_cmd,
        )

    def areas(
        self, kept: tuple[int, ...], values: Float[np.ndarray, "sizes n"]
    ) -> dict[str, float]:
        """CPR, CMD and CMA of one ranking as `sweep` has them, without resamples."""
        empty, full = self.ends
        gap = float(self._gap(self.ends.mean(axis=1)[None])[0])
        f = (values.mean(axis=1) - empty.mean()) / (gap if gap != 0 else math.nan)
        if self.profile == "strict" and not self.defined:
            f[:] = math.nan
        shares = agreement(full=full, empty=empty, circuit=values)
        steps, weights = self._weights(kept)
        at_empty = weights[0] * (math.nan if np.isnan(f).any() else 1.0)
        return {
            "cpr": float(f @ weights[1:]),
            "cmd": float(np.abs(1 - f) @ weights[1:]) + float(at_empty),
            "cma": float(shares @ steps[1:]),
        }

    def _weights(
        self, kept: tuple[int, ...]
    ) -> tuple[Float[np.ndarray, "weights"], Float[np.ndarray, "weights"]]:
        """The weights of `strict`, and of the profile; the first is that of the empty circuit."""
        steps = step_weights([size / self.n_edges for size in kept], self.fractions[0])
        if self.profile == "strict":
            return steps, steps
        return steps, np.insert(trapezoid_weights(self.fractions), 0, 0.0)

    def faithfulness_of(self, values: Float[np.ndarray, "n"]) -> tuple[float, Interval]:
        """f of one more circuit, with its interval."""
        f, draws = self._faithfulness(values[None])
        return float(f[0]), percentile_interval(draws[:, 0], n_groups=self.n_groups)

    def _agreement(
        self, values: Float[np.ndarray, "sizes n"]
    ) -> tuple[Float[np.ndarray, "sizes"], Float[np.ndarray, "resamples sizes"]]:
        """`agreement` of each size's circuit, of all examples and in every resample."""
        empty, full = self.ends
        effect, kept = kept_effects(full, empty, values)
        means = self._resamples.means(np.vstack((effect[None], kept)))
        shares = agreement(full=full, empty=empty, circuit=values)
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = means[:, 1:] / means[:, :1]
        draws[:, np.isnan(shares)] = math.nan
        return shares, draws

    def _faithfulness(
        self, values: Float[np.ndarray, "sizes n"]
    ) -> tuple[Float[np.ndarray, "sizes"], Float[np.ndarray, "resamples sizes"]]:
        together = np.concatenate((self.ends, values))
        rows = np.vstack((together.mean(axis=1), self._resamples.means(together)))
        gaps = self._gap(rows)
        f = (rows[:, 2:] - rows[:, :1]) / np.where(gaps == 0, math.nan, gaps)[:, None]
        if self.profile == "strict" and not self.defined:
            f[:] = math.nan
        return f[0], f[1:]

    def _areas(
        self,
        f: Float[np.ndarray, "sizes"],
        draws: Float[np.ndarray, "resamples sizes"],
        weights: Float[np.ndarray, "weights"],
    ) -> tuple[BootstrapEstimate, BootstrapEstimate]:
        """CPR and CMD; the first weight is that of the empty circuit."""
        n, empty = self.n_groups, math.nan if np.isnan(f).any() else 0.0
        f, draws = np.insert(f, 0, empty), np.insert(draws, 0, empty, axis=1)
        return linear_sum(f, draws, weights, n), folded_sum(1 - f, 1 - draws, weights, n)


CIRCUIT = "circuit"
"""The kind that our files of circuits say they have."""
SIZE_ROUNDING = 1e-9
"""Sizes that differ by less are equal: .1 * 70 is a little more than 7."""


@dataclass(frozen=True, eq=False, repr=False)
class CircuitSeries(OneLine):
    """Circuits of one graph, at least one, the smallest first.

    Attributes:
        circuits: by their weighted edge counts, as they were given.
        provenance: how they came about, as scores say it.
        names: of the circuits, in the same order: those of their files. None has one if empty.

    Raises:
        BadUsage: there is none.
        GraphMismatch: circuits of several graphs.
    """

    graph: Graph
    circuits: tuple[Circuit, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.circuits:
            raise BadUsage("A series of circuits needs at least one.")
        if self.names and len(self.names) != len(self.circuits):
            raise BadUsage(f"{len(self.circuits)} circuits have {len(self.names)} names.")
        for circuit in self.circuits:
            if circuit.graph != self.graph:
                raise GraphMismatch(
                    f"A series has circuits of one graph; got {circuit.graph} beside {self.graph}."
                )
        order = sorted(
            range(len(self.circuits)), key=lambda i: self.circuits[i].weighted_edge_count()
        )
        object.__setattr__(self, "circuits", tuple(self.circuits[i] for i in order))
        if self.names:
            object.__setattr__(self, "names", tuple(self.names[i] for i in order))

    def repr_fields(self) -> dict[str, Any]:
        counts = [circuit.weighted_edge_count() for circuit in self.circuits]
        return {"circuits": len(counts), "smallest": counts[0], "largest": counts[-1]}

    @cached_property
    def _pruned(self) -> tuple[tuple[str, Circuit], ...]:
        """Name and circuit of each without what is on no path, the smallest first."""
        names = self.names or ("",) * len(self.circuits)
        held = [(name, c.pruned()) for name, c in zip(names, self.circuits, strict=True)]
        return tuple(sorted(held, key=lambda member: member[1].weighted_edge_count()))

    @cached_property
    def pruned(self) -> tuple[Circuit, ...]:
        """The circuits without what is on no path, the smallest first."""
        return tuple(circuit for _, circuit in self._pruned)

    def within(self, n: int | float) -> Circuit:
        """The largest circuit, pruned, that has at most n edges, or that share of all of them as a
        float; the empty one if all are larger.
        """
        return self.named_within(n)[1]

    def named_within(self, n: int | float) -> tuple[str, Circuit]:
        """The circuit of `within`, and its name; "" if it has none, or if all are larger."""
        allowed = n * self.graph.n_edges if isinstance(n, float) else n
        fit = [
            circuit
            for circuit in self._pruned
            if circuit[1].weighted_edge_count() <= allowed + SIZE_ROUNDING
        ]
        return fit[-1] if fit else ("", Circuit.empty(self.graph))

    def cut(self, fractions: Sequence[float], profile: Profile = "strict") -> list[Circuit]:
        """The circuit at each size, by a profile; the last size is 1.

        Raises:
            BadUsage: "mib-2025" needs a circuit for each size below 1.
        """
        below, full = fractions[:-1], Circuit.full(self.graph)
        if profile == "strict":
            return [*(self.within(float(p)) for p in below), full]
        if len(self.circuits) != len(below):
            raise BadUsage(
                f"The profile mib-2025 takes {len(below)} circuits, one of each size; got"
                f" {len(self.circuits)}."
            )
        return [*(circuit.pruned() for circuit in self.circuits), full]

    def left_out(self, fractions: Sequence[float] = FRACTIONS) -> int:
        """How many different circuits stand for none of the sizes by the profile "strict"."""
        taken = set(self.cut(fractions))
        return len({circuit for circuit in self.pruned if len(circuit)} - taken)

    def counts(self) -> EdgeScores:
        """How many of the circuits have each edge, as scores."""
        held = torch.stack([circuit.pruned().edges for circuit in self.circuits]).sum(dim=0)
        values = torch.where(self.graph.legal, held.float(), torch.nan)
        return EdgeScores(self.graph, values, self.provenance)

    @staticmethod
    def load(folder: str | Path, graph: Graph | None = None) -> CircuitSeries:
        """Read the circuits of a folder, ours (.safetensors) or EAP-IG's and MIB's (.json, .pt).

        Raises:
            BadFile: no such folder, none in it, something else in it, or a file that is truncated,
                foreign, or holds no circuit.
            GraphMismatch: of another graph than `graph`, or of several.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BadFile(f"{folder}: {no_folder(folder)}; expected one of circuits.")
        paths = circuit_files(folder)
        if not paths:
            raise BadFile(f"{folder}: the folder has no circuits ({', '.join(CIRCUIT_ENDINGS)}).")
        circuits: list[Circuit] = []
        with_scores: list[Path] = []
        for path in paths:
            if path.suffix == ".safetensors":
                circuit = Circuit.load(path, graph)
            else:
                file = read_graph_file(path, graph)
                circuit = Circuit.empty(file.graph) if file.circuit is None else file.circuit
                if scores_of(file) is not None and not len(circuit):
                    with_scores.append(path)
            circuits.append(circuit)
            graph = circuit.graph
        # Of the smallest sizes nothing may be left after pruning, but not of all.
        if with_scores and not any(map(len, circuits)):
            raise BadFile(
                f"{with_scores[0]}: holds scores and no circuit: no edge is in its graph."
            )
        names = tuple(path.name for path in paths)
        about = {"source": folder.name, **_common_origin(folder, circuits)}
        return CircuitSeries(circuits[0].graph, tuple(circuits), about, names)


def _common_origin(folder: Path, circuits: Sequence[Circuit]) -> Mapping[str, Any]:
    """Return the model in which circuits were found; nothing if no file says it.

    Raises:
        BadFile: they were found in several models.
    """
    origins = [circuit.provenance for circuit in circuits if circuit.provenance]
    several = next((x for x in origins if x.get(DIGESTS) != origins[0].get(DIGESTS)), None)
    if several is not None:
        names = " and ".join(str(x.get(NAME)) for x in (origins[0], several))
        raise BadFile(f"{folder}: has circuits of several models ({names}).")
    return origins[0] if origins else {}


CIRCUIT_ENDINGS = (".safetensors", *ENDINGS)
Ranked = Scores | CircuitSeries
"""What a curve of faithfulness is of: scores, or circuits that have been cut already."""


def circuit_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold circuits, sorted by name.

    Raises:
        BadFile: a link that leads out of the folder.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in CIRCUIT_ENDINGS]
    for path in paths:
        if leads_out(path, folder):
            raise BadFile(f"{path}: {LEADS_OUT}")
    return [path for path in paths if path.is_file()]


def is_series(path: Path) -> bool:
    """Whether a path is a folder of circuits, by what its first file says; no file is read whole.

    Several graph files (.json, .pt) in a folder are circuits; one alone may hold scores.
    """
    paths = circuit_files(path) if path.is_dir() else []
    if not paths:
        return False
    return kind_of(paths[0]) == CIRCUIT or (len(paths) > 1 and paths[0].suffix in ENDINGS)


def ranked_name(path: str | Path) -> str:
    """What a file of scores, or a folder of circuits, is called."""
    path = Path(path)
    return path.stem if path.suffix in CIRCUIT_ENDINGS else path.name


def load_ranked(path: str | Path, graph: Graph | None = None) -> Ranked:
    """The circuits of a folder, or the scores of a file; errors as those of both."""
    return CircuitSeries.load(path, graph) if Path(path).is_dir() else load_scores(path, graph)
