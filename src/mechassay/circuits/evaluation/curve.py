"""Results of an evaluation of circuits: faithfulness at all sizes, controls, the model's accuracy.

A curve holds the objective of every example under every circuit, so that its areas, intervals
and figures follow without another run. Its controls are the empty and the full circuit, random
rankings of edges, and random paths; they are stored with it and can be shared with other curves
on the same examples. The smallest circuit that keeps what ablation changes (`SmallestCircuit`) is
chosen on other pairs than those it is measured on. `ability` says whether the model does the task
that its circuits are to explain, and `ranking` what the scores rank and which pairs they saw: a
record has both, so that conclusions can be checked (`results.preconditions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from jaxtyping import Float

from mechassay.circuits.evaluation.ranking import RankingFacts
from mechassay.circuits.profiles import VERSIONS, Profile
from mechassay.circuits.scores import By
from mechassay.circuits.series import FaithfulnessMetric, RankingCurve
from mechassay.errors import BadUsage
from mechassay.models.ability import Ability
from mechassay.results.curves import EMPTY
from mechassay.results.measures import measure_texts
from mechassay.results.preconditions import RANKING
from mechassay.results.records import (
    Measure,
    Provenance,
    Record,
    Selection,
    Spec,
    Table,
    Values,
    provenance,
)
from mechassay.results.result import RecordContents, Result, StoredByFields
from mechassay.stats.chance import FEW_DRAWS
from mechassay.stats.intervals import NO_INTERVAL, Interval, mean_estimate
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, RawText, interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKINGS: tuple[By, By] = ("value", "magnitude")
"""The kind that files of curves say they have."""
COMPLEMENT = "without it"
"""The column of values of all edges but those of the smallest circuit."""
SMALLEST = "smallest circuit"
"""The table of the smallest circuit."""
HELD = ("label", "profile", "n_edges", "seed")
"""What a file of a curve holds as it is, beside its controls and values."""
Drawn = Mapping[int, tuple[tuple[int, ...], Float[np.ndarray, "sizes n"]]]
"""Random rankings by seed: edges kept at each size, and the objective [sizes, n]."""

TEXTS = measure_texts("circuits")


@dataclass(frozen=True, eq=False, repr=False)
class Controls(OneLine, StoredByFields):
    """Per-example values of the empty and the full circuit, and of random rankings.

    Attributes:
        fractions: sizes that random rankings were cut at.
        random: rankings of edges drawn one by one.
        random_paths: rankings of random paths: circuits as large after pruning as before.
        seconds: that they took.
    """

    file_kind: ClassVar[str] = "controls"

    objective: str
    ids: tuple[str, ...]
    fractions: tuple[float, ...]
    empty: Float[np.ndarray, "n"]
    full: Float[np.ndarray, "n"]
    random: Drawn
    random_paths: Drawn
    seconds: float = math.nan

    @property
    def drawn(self) -> dict[str, Drawn]:
        """Both kinds of random rankings that were run, by name."""
        kinds = {"random": self.random, "random-paths": self.random_paths}
        return {name: drawn for name, drawn in kinds.items() if drawn}


AGREES, MAX_BOUND_GAP = 0.9, 0.1
"""Agreement of a circuit that stands for the model, and how far below it the interval may end."""


@dataclass(frozen=True)
class SmallestCircuit:
    """The smallest circuit by magnitude that keeps a share of what ablation changes.

    Its agreement is at least `target`, the lower end of the interval at most `MAX_BOUND_GAP` less,
    and so at every larger size that was measured, below the full circuit.

    Attributes:
        target: the agreement that was asked for.
        fraction: its size as it was asked for, a share of all edges; None if no circuit does.
        agreement, low, high: of it, on the pairs that it was chosen on; NaN if none does.
        largest: the largest size that was tried.
        cma: the ranking's CMA on these pairs, by which methods can be chosen; None if not known.
        split: where these pairs are from.
        n: how many they are.
    """

    target: float
    fraction: float | None
    agreement: float
    low: float
    high: float
    largest: float
    cma: float | None
    n: int
    split: str = ""

    @staticmethod
    def of(
        fractions: Sequence[float], sweep: RankingCurve, target: float = AGREES, split: str = ""
    ) -> SmallestCircuit:
        """Of the circuits of one ranking.

        Raises:
            BadUsage: a target that is no share.
        """
        if not 0 < target <= 1:
            raise BadUsage(f"An agreement is a share above 0, at most 1; got {target}.")
        chosen = None
        for place in reversed(range(len(fractions) - 1)):
            low = sweep.agreement_intervals[place].low
            if not (sweep.agreement[place] >= target and low >= target - MAX_BOUND_GAP):
                break
            chosen = place
        ends = (math.nan, math.nan, math.nan)
        if chosen is not None:
            low, high, _ = sweep.agreement_intervals[chosen]
            ends = float(sweep.agreement[chosen]), low, high
        fraction = None if chosen is None else float(fractions[chosen])
        largest, n = float(fractions[-2]), sweep.per_example.shape[1]
        return SmallestCircuit(target, fraction, *ends, largest, sweep.cma.value, n, split)


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessCurve(Result, kind="circuits", file_kind="faithfulness curve"):
    """Faithfulness of one set of scores at all sizes; areas, intervals and controls follow.

    `cpr` comes from the ranking by value, `cmd` from the ranking by magnitude, as in MIB; `cma`
    from that by magnitude too.

    Attributes:
        kept: edges that are left at each size after pruning, by ranking.
        values: the objective of each size's circuit, by ranking.
        model, identity: the model in which the circuits were run, with its digests.
        task, dtype: what the scores were found on, by their own word.
        found_in: the scores with the model in which they were found, if it is another one or is not
            known (`models.origin`).
        chosen: the smallest circuit that was chosen on other pairs, if one was asked for.
        complement: the objective of each pair when that circuit's edges alone are ablated.
        tied: edges of each size's cut that tie with edges outside, by ranking.
        ranking: what the scores rank, and whether they were found on these pairs.
        counts: of the pairs, such as how many different prompts they have.
        better: "down" if lower values of the objective are better.
        ability: whether the model does the task; None if that was not measured.
        seed: of the bootstrap.
    """

    label: str
    profile: Profile
    n_edges: int
    groups: tuple[str, ...]
    controls: Controls
    kept: Mapping[By, tuple[int, ...]]
    values: Mapping[By, Float[np.ndarray, "sizes n"]]
    warnings: tuple[str, ...] = ()
    model: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)
    found_in: Mapping[str, str] = field(default_factory=dict)
    task: str = ""
    dtype: str = ""
    chosen: SmallestCircuit | None = None
    complement: Float[np.ndarray, "n"] | None = None
    tied: Mapping[By, tuple[int, ...]] = field(default_factory=dict)
    ranking: RankingFacts | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    better: str = "up"
    ability: Ability | None = None
    seed: int = 0

    @cached_property
    def rule(self) -> FaithfulnessMetric:
        """The arithmetic of its areas."""
        empty, full = self.controls.empty, self.controls.full
        return FaithfulnessMetric(
            self.profile,
            self.fractions,
            self.n_edges,
            empty,
            full,
            self.groups,
            self.seed,
            objective=self.objective,
        )

    @cached_property
    def sweeps(self) -> Mapping[By, RankingCurve]:
        """Circuits of all sizes with their areas, by ranking."""
        return {by: self._sweep(by, self.kept[by], self.values[by]) for by in RANKINGS}

    @cached_property
    def drawn(self) -> dict[str, dict[int, RankingCurve]]:
        """The first `FEW_DRAWS` random rankings of each kind that was run, by kind and seed."""
        return {
            kind: {
                seed: self._sweep("value", *drawn)
                for seed, drawn in sorted(rankings.items())[:FEW_DRAWS]
            }
            for kind, rankings in self.controls.drawn.items()
        }

    @cached_property
    def random_areas(self) -> dict[str, dict[int, dict[str, float]]]:
        """The areas of all random rankings, by kind and seed: what chance may reach."""
        return {
            kind: {seed: self.rule.areas(*drawn) for seed, drawn in sorted(rankings.items())}
            for kind, rankings in self.controls.drawn.items()
        }

    def _sweep(self, by: By, kept: tuple[int, ...], values: np.ndarray) -> RankingCurve:
        asked = tuple(int(p * self.n_edges) for p in self.fractions)
        return self.rule.sweep(by, asked, kept, values)

    @property
    def objective(self) -> str:
        return self.controls.objective

    @property
    def ids(self) -> tuple[str, ...]:
        return self.controls.ids

    @property
    def fractions(self) -> tuple[float, ...]:
        return self.controls.fractions

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
    def cma(self) -> float:
        """Area under circuit-model agreement, edges ranked by magnitude."""
        return self.sweeps["magnitude"].cma.value

    @property
    def cma_interval(self) -> Interval:
        return self.sweeps["magnitude"].cma.interval

    @property
    def faithfulness(self) -> dict[By, Float[np.ndarray, "sizes"]]:
        """f at each size, by ranking."""
        return {by: sweep.faithfulness for by, sweep in self.sweeps.items()}

    @property
    def agreement(self) -> dict[By, Float[np.ndarray, "sizes"]]:
        """Circuit-model agreement at each size, by ranking."""
        return {by: sweep.agreement for by, sweep in self.sweeps.items()}

    def smallest(self, agreement: float = AGREES) -> SmallestCircuit:
        """The smallest circuit by magnitude that keeps this share of what ablation changes.

        Measure it on other pairs than these: `faithfulness_curve` takes it as `chosen`.

        Raises:
            BadUsage: no share above 0.
        """
        return SmallestCircuit.of(self.fractions, self.sweeps["magnitude"], agreement)

    @property
    def n_undefined(self) -> int:
        """Sizes at which f is undefined: all, where it may be that ablation changes nothing."""
        undefined = self.profile == "strict" and not self.rule.defined
        return len(self.fractions) if undefined else 0

    @property
    def random_cpr(self) -> float:
        """Mean CPR of the random rankings of edges drawn one by one."""
        return mean_estimate([sweep.cpr for sweep in self._random]).value

    @property
    def random_cmd(self) -> float:
        """Mean CMD of the random rankings of edges drawn one by one."""
        return mean_estimate([sweep.cmd for sweep in self._random]).value

    @property
    def _random(self) -> Iterable[RankingCurve]:
        return self.drawn.get("random", {}).values()

    def contents(self) -> RecordContents:
        values = {
            f"{by}@{p:g}": row.tolist()
            for by, rows in self.values.items()
            for p, row in zip(self.fractions, rows, strict=True)
        }
        ends = {"clean": self.controls.full.tolist(), "empty": self.controls.empty.tolist()}
        rest = {} if self.complement is None else {COMPLEMENT: self.complement.tolist()}
        args: dict[str, Any] = {"profile": self.profile}
        args |= {"better": self.better} if self.better == "down" else {}
        ranking: dict[str, Spec] = {}
        if self.ranking is not None:
            ranking = {RANKING: Spec(name=self.label, args=self.ranking.args())}
        able = self.ability
        own = list(self.measures())
        return {
            "identities": {"model": dict(self.identity)} if self.identity else {},
            "found_in": dict(self.found_in),
            "specs": {
                "model": Spec(name=self.model, args={"n_edges": self.n_edges}),
                "task": Spec(name=self.task),
                "method": Spec(name=self.label),
                "metric": Spec(name=self.objective, version=VERSIONS[self.profile], args=args),
                **ranking,
            },
            "measures": [
                *own,
                *(able.measures() if able else ()),
                *self.control_measures(),
            ],
            "data": {"test": Selection(hash="", kept=len(self.ids), counts=dict(self.counts))},
            "tables": [
                self.table(),
                *([able.table()] if able else []),
                Table.of("random areas", ("of", "seed"), self._random_areas()),
                *self.smallest_tables(),
            ],
            "values": Values(
                unit="pair",
                ids=list(self.ids),
                groups=list(self.groups),
                columns={**ends, **values, **rest},
            ),
            "warnings": list(self.warnings),
        }

    def record(
        self,
        specs: Mapping[str, Spec] | None = None,
        made: Provenance | None = None,
        **more: Any,
    ) -> Record:
        """The curve as plain data; see `Result.record`."""
        made = made or provenance(device="", dtype=self.dtype, seed=self.seed)
        return super().record(specs, made, **more).concluded()

    def __str__(self) -> str:
        """Return the conclusion: the first sentence of the page of its record."""
        return self.record().conclusion

    def repr_fields(self) -> dict[str, Any]:
        areas = {
            "cpr": (self.cpr, self.cpr_interval, self.random_cpr),
            "cmd": (self.cmd, self.cmd_interval, self.random_cmd),
        }
        areas_text = {
            name: RawText(f"{interval(value, *ends[:2])}, random {number(random)}")
            for name, (value, ends, random) in areas.items()
        }
        return {"label": self.label, **areas_text, "n": len(self.ids), "profile": self.profile}

    @checked
    def plot(self, ax: Axes | None = None, *, ranking: By = "value") -> Figure:
        """The figure of faithfulness over size, with its interval and controls.

        Args:
            ax: where to draw one ranking; without it, both get a figure of their own.
            ranking: the one that is drawn on `ax`.
        """
        return self.record().plot(ax, ranking=ranking)

    def table(self) -> Table:
        """Every circuit that was run: its sizes, the mean objective, f and its interval."""
        lines = [("result", None, sweep) for sweep in self.sweeps.values()]
        lines += [
            (f"control:{kind}", seed, sweep)
            for kind, sweeps in self.drawn.items()
            for seed, sweep in sweeps.items()
        ]
        rows: list[dict[str, Any]] = []
        for of, seed, sweep in lines:
            about = {"ranking": sweep.by, "of": of, "seed": seed}
            for place, fraction in enumerate(self.fractions):
                low, high, _ = sweep.intervals[place]
                size = {"asked": sweep.n_edges_requested[place], "kept": sweep.n_edges_kept[place]}
                if self.tied:
                    size |= {"tied": self.tied[sweep.by][place] if of == "result" else None}
                metric, f = sweep.per_example[place].mean(), sweep.faithfulness[place]
                values = {"metric": float(metric), "f": float(f), "low": low, "high": high}
                low, high, _ = sweep.agreement_intervals[place]
                values |= {"agreement": float(sweep.agreement[place])}
                values |= {"agreement_low": low, "agreement_high": high}
                rows.append({**about, "fraction": fraction, **size, **values})
        return Table.of("curve", ("ranking", "of", "seed", "fraction"), rows)

    def measures(self) -> Iterator[Measure]:
        """The areas."""
        value, magnitude = self.sweeps["value"], self.sweeps["magnitude"]
        areas = {"cpr": value.cpr, "cmd": magnitude.cmd, "cma": magnitude.cma}
        areas |= {"log_cpr": value.log_cpr, "log_cmd": magnitude.log_cmd}
        n = len(self.ids)
        n_undefined = dict.fromkeys(areas, self.n_undefined)
        n_undefined["cma"] = int(np.isnan(magnitude.agreement).sum())
        for name, area in areas.items():
            if area is not None:
                yield TEXTS.measure(
                    name, area.value, area.interval, n=n, n_undefined=n_undefined[name]
                )

    def control_measures(self) -> Iterator[Measure]:
        """What control circuits reach, and how far the curve is from random ones."""
        n = len(self.ids)
        empty, full = float(self.controls.empty.mean()), float(self.controls.full.mean())
        yield TEXTS.measure("objective", empty, of=EMPTY, n=n)
        yield TEXTS.measure("objective", full, of="control:full", n=n)
        ends = self.rule.denominator
        yield TEXTS.measure("denominator", full - empty, ends, of="control:full", n=n)
        magnitude = self.sweeps["magnitude"]
        own = {"cpr": self.sweeps["value"].cpr, "cmd": magnitude.cmd, "cma": magnitude.cma}
        for kind, sweeps in self.drawn.items():
            for name, estimate in own.items():
                mean = mean_estimate([getattr(sweep, name) for sweep in sweeps.values()])
                less = estimate - mean
                yield TEXTS.measure(name, mean.value, mean.interval, of=f"control:{kind}", n=n)
                yield TEXTS.measure(name, less.value, less.interval, of=f"difference:{kind}", n=n)

    def _random_areas(self) -> Iterator[dict[str, Any]]:
        for kind, drawn in self.random_areas.items():
            for seed, areas in drawn.items():
                yield {"of": f"control:{kind}", "seed": seed, **areas}

    def smallest_tables(self) -> Iterator[Table]:
        """The circuit that was chosen: its agreement there and on these pairs, and f without it;
        the ranking's CMA there and here.
        """
        if self.chosen is None:
            return
        chosen, kept = self.chosen, 0
        rows = {"chosen": (chosen.agreement, Interval(chosen.low, chosen.high), chosen.n)}
        if chosen.fraction is not None:
            place, sweep = self.fractions.index(chosen.fraction), self.sweeps["magnitude"]
            share, interval = float(sweep.agreement[place]), sweep.agreement_intervals[place]
            rows["result"] = share, interval, len(self.ids)
            without = (math.nan, NO_INTERVAL)
            if self.complement is not None:
                without = self.rule.faithfulness_of(self.complement)
            rows["without"] = *without, len(self.ids)
            kept = sweep.n_edges_kept[place]
        about = {"target": chosen.target, "fraction": chosen.fraction, "kept": kept}
        about |= {"largest": chosen.largest, "split": chosen.split}
        areas = {"chosen": chosen.cma, "result": self.cma, "without": math.nan}
        lines = (
            {"of": of, **about, "value": value, "low": ends.low, "high": ends.high, "n": n}
            | ({} if chosen.cma is None else {"cma": areas[of]})
            for of, (value, ends, n) in rows.items()
        )
        yield Table.of(SMALLEST, ("of",), lines)


def recomputed(record: Record) -> list[Measure | Table]:
    """The areas, their parts and the curve of a record, from its values of examples.

    Of random rankings no such values are stored. The means of their areas and the differences from
    them follow from the table of these areas; their intervals are taken as they are.

    Returns:
        Nothing of a record that lacks values, or was made by another definition of the areas.

    Raises:
        BadUsage, KeyError, ValueError: the values are none of such a curve.
    """
    values, profile = record.values, str(record.metric.args.get("profile", ""))
    if values is None or record.metric.version != VERSIONS.get(profile):
        return []
    points = record.table("curve").where(of="result")
    lines: dict[By, Table] = {by: points.where(ranking=by) for by in RANKINGS}
    fractions = tuple(lines["value"].numbers("fraction").tolist())
    columns = {name: np.array(column) for name, column in values.columns.items()}
    curve = FaithfulnessCurve(
        label="",
        profile=cast("Profile", profile),
        n_edges=int(str(record.model.args["n_edges"])),
        groups=tuple(values.groups),
        controls=Controls(
            record.metric.name,
            tuple(values.ids),
            fractions,
            columns["empty"],
            columns["clean"],
            {},
            {},
        ),
        kept={by: tuple(map(int, line.numbers("kept"))) for by, line in lines.items()},
        values={by: np.array([columns[f"{by}@{p:g}"] for p in fractions]) for by in RANKINGS},
        chosen=_chosen(record),
        complement=columns.get(COMPLEMENT),
        tied={by: tuple(map(int, line.numbers("tied"))) for by, line in lines.items()}
        if "tied" in points.columns
        else {},
        seed=record.provenance.seed,
    )
    again = [*curve.measures(), *curve.control_measures(), curve.table()]
    again += curve.smallest_tables()
    drawn = record.table("random areas")
    for measure in record.measures:
        kind, _, control = measure.of.partition(":")
        areas = drawn.where(of=f"control:{control}").numbers(measure.name)
        if measure.name in ("cpr", "cmd", "cma") and len(areas):
            mean = float(areas[:FEW_DRAWS].mean())
            value = mean if kind == "control" else getattr(curve, measure.name) - mean
            again.append(measure.model_copy(update={"value": value}))
    return again


def _chosen(record: Record) -> SmallestCircuit | None:
    """The smallest circuit of a record, as its table has it."""
    if not record.has_table(SMALLEST):
        return None
    row = record.table(SMALLEST).where(of="chosen")
    target, largest, value, low, high, fraction = (
        float(row.numbers(name)[0])
        for name in ("target", "largest", "value", "low", "high", "fraction")
    )
    return SmallestCircuit(
        target,
        None if math.isnan(fraction) else fraction,
        value,
        low,
        high,
        largest,
        float(row.numbers("cma")[0]) if "cma" in row.columns else None,
        int(row.numbers("n")[0]),
        str(row.rows()[0]["split"]),
    )
