"""Distribution shift: does a circuit that was found on a task's prompts hold on others?

A circuit is found on the train split, and evaluated on pairs of the same words (home) and on
shifted ones: `mechassay.tasks.ioi_shift`, or any task of the behaviour. Of each kind of prompts

    left out = mean KL(M(x) || C(x, x')) / mean KL(M(x) || M(x'))

the share of what ablating everything changes that the circuit leaves out: 0 for the whole model,
1 for the empty circuit. Dividing by the second keeps prompts that are harder altogether from
looking like a worse circuit. Uit de Bos and Garriga-Alonso (2024, section 5) ask for such a test.

The difference of each shift from home has an interval that holds for all shifts of a circuit
together: bootstraps over templates, home and shifts drawn apart, and the quantile of the largest
standardised error (as in `circuits.evaluation.differences`). Two controls stand beside it. The
*whole model*: is it still right on the shifted prompts? Where it is not, the behaviour is gone,
and no circuit of it can be tested there. *Random edges*, as many as the circuit has: they leave
out most at home too, so that nothing can become worse, and a circuit like them says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.adversarial.experiments import found_circuit
from mechassay.adversarial.inputs import check_circuits
from mechassay.adversarial.options import ShiftOptions
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.method import check_pairing
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadUsage
from mechassay.prompts.pairs import Pairs
from mechassay.results.measures import measure_texts
from mechassay.results.page import Column, Figure, Page, Report, Row, Section, Text, TextTable
from mechassay.results.plots import draw_points
from mechassay.results.records import Measure, Record, Selection, Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.results.sections import failures_table, framed
from mechassay.results.text import plain_number
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.identities import TASK, Source
from mechassay.runs.names import circuit_labels
from mechassay.runs.worker import Worker, made_by
from mechassay.stats.intervals import (
    LEVEL,
    Estimate,
    Resamples,
    percentile_interval,
    proportion_interval,
    widening,
)
from mechassay.tasks.ioi_shift import HOME as NONE
from mechassay.tasks.ioi_shift import SHIFTS
from mechassay.tasks.task import Task
from mechassay.utils.display import UNDEFINED, interval, share

KIND, HOME = "adversarial-shift", "home"
SHIFTED = "ioi-shift:kind="
LEAST_RIGHT = 0.6
"""Accuracy of the model below which a behaviour is not there to be tested."""
EXPLAINS_LITTLE = 0.5
"""Share that is left out at home from which a shift can hardly make a circuit worse."""


@dataclass(frozen=True, eq=False)
class PromptKind:
    """One kind of prompts.

    Attributes:
        name: "home", or that of the shift.
        circuit, random, empty: divergence of each pair.
        right: whether the model is right on each clean prompt.
        groups: the template of each pair.
    """

    name: str
    circuit: Float[np.ndarray, "n"]
    random: Float[np.ndarray, "n"]
    empty: Float[np.ndarray, "n"]
    right: Float[np.ndarray, "n"]
    groups: tuple[str, ...]

    @property
    def n_groups(self) -> int:
        """Templates."""
        return len(set(self.groups))

    def left_out(self, of: Float[np.ndarray, "n"]) -> float:
        """The share that is left out; NaN if ablating everything changes nothing."""
        whole = float(self.empty.mean())
        return float(of.mean()) / whole if whole > 0 else math.nan

    def draws(self, of: Float[np.ndarray, "n"], seed: int) -> Float[np.ndarray, "resamples"]:
        """The same of resampled templates."""
        resamples = Resamples(self.groups, np.random.default_rng(seed))
        means = resamples.means(np.stack([of, self.empty]))
        with np.errstate(divide="ignore", invalid="ignore"):
            return means[:, 0] / np.where(means[:, 1] > 0, means[:, 1], np.nan)

    @property
    def accuracy(self) -> Estimate:
        """The share of prompts that the model is right on."""
        low, high, _ = proportion_interval(self.right, self.groups)
        return Estimate(float(self.right.mean()), low, high)


def together(
    differences: Float[np.ndarray, "shifts"],
    draws: Float[np.ndarray, "shifts resamples"],
    n_groups: Sequence[int],
) -> list[Estimate]:
    """Differences with intervals that all hold at once; none where one is undefined.

    Args:
        n_groups: of each shift the fewer templates, its own or those at home.
    """
    errors = draws - differences[:, None]
    spreads = np.sqrt(np.nanmean(errors**2, axis=1)) if errors.size else np.zeros(0)
    defined = ~np.isnan(differences) & ~np.isnan(draws).any(axis=1) & (spreads > 0)
    if not defined.any():
        return [Estimate(float(x)) for x in differences]
    largest = np.abs(errors[defined] / spreads[defined, None]).max(axis=0)
    wider = np.array(list(map(widening, n_groups)))
    spans = np.where(defined, np.quantile(largest, LEVEL) * wider * spreads, np.nan)
    return [
        Estimate(float(x), float(x - span), float(x + span))
        for x, span in zip(differences, spans, strict=True)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class DistributionShift(Result, kind=KIND):
    """A circuit on the prompts it was found on, and on shifted ones.

    Attributes:
        home: prompts of the words that the circuit was found on.
        shifts: others.
    """

    model: str
    task: str
    circuit: str
    n_edges: int
    home: PromptKind
    shifts: tuple[PromptKind, ...]
    seed: int = 0

    @property
    def differences(self) -> dict[str, Estimate]:
        """By shift, what the circuit leaves out more than at home; intervals hold together."""
        return self._differences("circuit")

    def _differences(self, of: str) -> dict[str, Estimate]:
        home, kinds = self.home, self.shifts
        base = home.left_out(getattr(home, of))
        values = np.array([kind.left_out(getattr(kind, of)) - base for kind in kinds])
        at_home = home.draws(getattr(home, of), self.seed)
        draws = np.stack(
            [
                kind.draws(getattr(kind, of), self.seed + number) - at_home
                for number, kind in enumerate(kinds, start=1)
            ]
        )
        fewer = [min(kind.n_groups, home.n_groups) for kind in kinds]
        estimates = together(values, draws, fewer)
        return dict(zip((kind.name for kind in kinds), estimates, strict=True))

    def contents(self) -> RecordContents:
        rows = [self._row(kind) for kind in (self.home, *self.shifts)]
        measures: list[Measure] = []
        for name, difference in self.differences.items():
            n = len(next(kind for kind in self.shifts if kind.name == name).circuit)
            measures.append(
                measure_texts(KIND).measure(
                    "left_out_{shift}",
                    Estimate(difference.value, difference.low, difference.high),
                    of=f"difference:{HOME}",
                    n=n,
                    n_undefined=n if math.isnan(difference.value) else 0,
                    shift=name,
                )
            )
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.task),
                "method": Spec(name=self.circuit, args={"edges": self.n_edges}),
                "metric": Spec(name="kl"),
            },
            "measures": measures,
            "tables": [Table.of("prompts", ("prompts",), rows)],
            "warnings": list(self._warnings()),
        }

    def _row(self, kind: PromptKind) -> dict[str, Any]:
        own = kind.left_out(kind.circuit)
        low, high, _ = percentile_interval(
            kind.draws(kind.circuit, self.seed), n_groups=kind.n_groups
        )
        more = Estimate(0.0) if kind is self.home else self.differences[kind.name]
        random = 0.0 if kind is self.home else self._differences("random")[kind.name].value
        accuracy = kind.accuracy
        return {
            "prompts": kind.name,
            "n": len(kind.circuit),
            "templates": kind.n_groups,
            "left_out": own,
            "low": low,
            "high": high,
            "more": more.value,
            "more_low": more.low,
            "more_high": more.high,
            "random": kind.left_out(kind.random),
            "random_more": random,
            "mean_kl": float(kind.circuit.mean()),
            "kl_95": float(np.quantile(kind.circuit, 0.95)),
            "worst_kl": float(kind.circuit.max()),
            "empty_kl": float(kind.empty.mean()),
            "right": accuracy.value,
            "right_low": accuracy.low,
            "right_high": accuracy.high,
        }

    def _warnings(self) -> list[str]:
        texts: list[str] = []
        for kind in (self.home, *self.shifts):
            if kind.accuracy.value <= LEAST_RIGHT:
                texts.append(
                    f"{kind.name}: the model itself is right on {share(kind.accuracy.value)} of the"
                    " prompts, so that there is no behaviour to be kept."
                )
        at_home = self.home.left_out(self.home.circuit)
        if at_home > EXPLAINS_LITTLE:
            texts.append(
                f"The circuit leaves out {share(at_home)} at home, so that a shift can hardly make"
                " it worse."
            )
        return texts


@dataclass(frozen=True)
class ShiftExperiment(ShiftOptions, Experiment):
    """A cell is a circuit; see `ShiftOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("adversarial", "shift")
    grows: ClassVar[tuple[str, ...]] = ("circuits",)

    def check(self, worker: Worker) -> None:
        super().check(worker)
        check_circuits(self.circuits)
        check_pairing(self.pairing)
        for text in self.kinds().values():
            worker.task(text)

    def kinds(self) -> dict[str, str]:
        """Kinds of prompts, and the task that makes each: home first.

        Raises:
            BadUsage: no shift of another task than ioi is named.
        """
        own = self.task.partition(":")[0] == "ioi"
        if not own and not self.shifts:
            raise BadUsage(f"Name what the circuit of {self.task} meets: --to TASK.")
        named = self.shifts or tuple(kind for kind in SHIFTS if kind != NONE)
        for kind in named:
            if kind in SHIFTS and not own:
                raise BadUsage(f"The shift {kind!r} is one of ioi; {self.task} needs --to TASK.")
        tasks = {kind: f"{SHIFTED}{kind}" if kind in SHIFTS else kind for kind in named}
        return {HOME: f"{SHIFTED}{NONE}" if own else self.task, **tasks}

    def cells(self) -> list[Cell]:
        of, labels = {"model": self.model, "task": self.task}, self.labels()
        own = {axis: labels[axis, name] for axis, name in of.items()}
        called = circuit_labels(self.circuits)
        return [
            Cell(cell_name(text), {**own, "circuit": name}, "all", {**of, "circuit": text})
            for text, name in called.items()
        ]

    def sources(self, cell: Cell) -> dict[str, Source]:
        shifts = {kind: Source(TASK, text) for kind, text in self.kinds().items() if kind != HOME}
        return {**super().sources(cell), **shifts}

    def run(self, cell: Cell, worker: Worker) -> Record:
        model = worker.model(self.model, dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = worker.task(self.task)
        circuit = found_circuit(self, cell["circuit"], model, task, worker)
        random = Random(seed=self.seed).draw(model.graph).top(len(circuit.circuit))
        arms = [circuit.circuit, random, Circuit.empty(model.graph)]
        data: dict[str, Selection] = {}
        kinds: list[PromptKind] = []
        for name, text in self.kinds().items():
            own = worker.task(text)
            pairs = own.pairs(
                "test",
                model,
                limit=self.n_prompts,
                counterfactual=self.counterfactual,
                seed=self.seed,
            )
            batch = model.batch(pairs)
            values = evaluate(model, arms, batch, "kl", progress=worker.progress)
            margins = evaluate(
                model, Circuit.full(model.graph), batch, own.objective, progress=worker.progress
            )
            right = (np.asarray(margins) > 0).astype(float)
            own_values, random_values, empty = np.asarray(values)
            groups = _templates(own, pairs)
            kinds.append(PromptKind(name, own_values, random_values, empty, right, groups))
            data[name] = Selection.of(pairs.selection())
        result = DistributionShift(
            model.name,
            task.name,
            circuit.text,
            len(circuit.circuit),
            kinds[0],
            tuple(kinds[1:]),
            self.seed,
        )
        about = {"edges": len(circuit.circuit), **circuit.about}
        return result.record(
            {
                "model": model.spec(n_edges=model.graph.n_edges),
                "task": Spec(name=task.name, version=task.version),
                "method": Spec(name=circuit.text, args=about),
            },
            made_by(model, self.seed, data[HOME].hash),
            data=data,
            found_in=dict(circuit.found_in),
        )


def _templates(task: Task, pairs: Pairs) -> tuple[str, ...]:
    """The template of each pair; of a task without templates each pair is its own group."""
    names = [task.template(pair.tags) for pair in pairs]
    return tuple(name or pair.group or pair.id for name, pair in zip(names, pairs, strict=True))


READING = {
    "Left out": (
        "Of what ablating everything changes, the share that the circuit does not bring back: 0 for"
        " the whole model, 1 for the empty circuit."
    ),
    "More than at home": (
        "With intervals that hold for all shifts of a circuit together, over resampled templates."
    ),
    "Random edges": "As many as the circuit has: what a shift does to a circuit without a reason.",
    "Model right": "The share of prompts that the whole model answers right.",
}


class ShiftPage(Page):
    """Circuits on the prompts they were found on, and on others."""

    def title(self, report: Report) -> str:
        names = dict.fromkeys(
            f"{record.task.name}, {record.model.name}" for record in report.records
        )
        return f"Distribution shift: {'; '.join(names)}"

    def tables(self, report: Report) -> list[TextTable]:
        """The kinds of prompts of every circuit, and what failed."""
        return [*map(_table, report.records), *failures_table(report.failures, "circuit")]

    def sections(self, report: Report) -> list[Section]:
        """Where a circuit becomes worse, a figure, and a row for each kind of prompts."""
        figures = [
            Figure(
                self.draw(record),
                name=record.method.name,
                about=f"{record.method.name}: what is left out, by kind of prompts.",
            )
            for record in report.records
        ]
        return framed(
            report,
            [Text(_verdict(record), "verdict") for record in report.records],
            [Section("Kinds of prompts", tuple(self.tables(report)))],
            figure=figures,
            reading=READING,
            values=[],
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """What the circuit leaves out of each kind of prompts, beside random edges."""
        rows = record.table("prompts").rows()
        own = [
            Estimate(*(plain_number(row[key]) for key in ("left_out", "low", "high")))
            for row in rows
        ]
        random = [Estimate(plain_number(row["random"])) for row in rows]
        points = {record.method.name: own, "random edges": random}
        names = [str(row["prompts"]) for row in rows]
        return draw_points(points, names, "share that is left out", ax=ax)


def _verdict(record: Record) -> str:
    rows = record.table("prompts").rows()
    home, others = rows[0], rows[1:]
    left = plain_number(home["left_out"])
    if math.isnan(left):
        return f"{record.method.name}: ablating everything changes nothing at home."
    first = (
        f"{record.method.name} leaves out {share(left)} at home"
        f" ({interval(left, plain_number(home['low']), plain_number(home['high']))})."
    )
    worse = [row for row in others if plain_number(row["more_low"]) > 0]
    gone = [str(row["prompts"]) for row in others if plain_number(row["right"]) <= LEAST_RIGHT]
    if worse:
        named = ", ".join(
            f"{row['prompts']} ({share(plain_number(row['left_out']))})" for row in worse
        )
        first += f" It is worse on {named}, beyond what templates vary by."
    rest = [row for row in others if row not in worse]
    if rest:
        most = max((plain_number(row["more_high"]) for row in rest), default=math.nan)
        how = UNDEFINED if math.isnan(most) else f"at most {most:+.2f}"
        first += (
            f" On {', '.join(str(row['prompts']) for row in rest)} it is not shown to be worse"
            f" (the difference is {how})."
        )
    if gone:
        first += f" The model itself fails on {', '.join(gone)}."
    return first


def _table(record: Record) -> TextTable:
    rows: list[Row] = []
    for row in record.table("prompts").rows():
        numbers = {name: plain_number(row[name]) for name in row if name != "prompts"}
        more = interval(numbers["more"], numbers["more_low"], numbers["more_high"])
        rows.append(
            Row(
                (
                    str(row["prompts"]),
                    f"{row['n']:,}",
                    f"{row['templates']:,}",
                    interval(numbers["left_out"], numbers["low"], numbers["high"]),
                    "" if row["prompts"] == HOME else more,
                    f"{numbers['random']:.2f}",
                    interval(numbers["right"], numbers["right_low"], numbers["right_high"]),
                    f"{numbers['mean_kl']:.3g}",
                    f"{numbers['kl_95']:.3g}",
                    f"{numbers['worst_kl']:.3g}",
                )
            )
        )
    columns = (
        Column("prompts", numeric=False),
        Column("n"),
        Column("templates", optional=2),
        Column("left out"),
        Column("more than at home"),
        Column("random edges"),
        Column("model right"),
        Column("mean KL", optional=1),
        Column("95 % KL", optional=3),
        Column("worst KL", optional=3),
    )
    title = f"Kinds of prompts, {record.method.name}, {record.method.args['edges']:,} edges"
    return TextTable(title, columns, tuple(rows))
