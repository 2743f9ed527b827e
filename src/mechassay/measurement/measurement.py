"""The result of a metric of measurement, and how often its thresholds err.

A `Measurement` has both variants, flags and readings. The repaired definition is what counts;
the published one stands beside it. The published reading table is shown with what it says of the
published value, also where that is nothing.

A threshold is shown with the share of simulated inputs that pass it (`simulate`):

    false alarm    of inputs that are worth nothing by construction (a circuit that does nothing)
    power          of inputs of a known worth

A `Scenario` says how such inputs are made, and what both variants of the metric find on them.
The rate of a condition is the share of simulations in which it holds; an undefined value never
does. Rates come with Clopper and Pearson's interval over simulations. They are those of the
scenario: a real circuit may err more or less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    MetricCriterion,
    PageMetric,
    Quantity,
    Reading,
    Variant,
    VariantName,
    page_metric,
    variant,
)
from mechassay.results.records import Measure, Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import clopper_pearson
from mechassay.utils.display import Tabular, html_facts, html_table

ALL = "all conditions"
N_SIMULATIONS = 400
Drawn = Mapping[VariantName, Mapping[str, np.ndarray]]
"""Values of each variant's quantities, one a simulation; NaN is undefined."""


@dataclass(frozen=True)
class Scenario:
    """Inputs of a known worth.

    Attributes:
        name: what they are, in words.
        worthless: whether passing is an error.
        draw: what is found on so many of them.
    """

    name: str
    worthless: bool
    draw: Callable[[np.random.Generator, int], Drawn]


@dataclass(frozen=True)
class PassRate:
    """The share of a scenario's simulations that meet a condition of a variant, or all of them.

    Attributes:
        n: the size of the simulated inputs, such as prompts.
        low, high: of the rate, 95 % over simulations.
    """

    variant: VariantName
    condition: str
    scenario: str
    worthless: bool
    n: int
    rate: float
    low: float
    high: float
    n_simulations: int


class NullTable(Tabular, tuple[PassRate, ...]):
    """Rates of all conditions under all scenarios."""

    def columns(self) -> dict[str, list[Any]]:
        """A row a condition and scenario; `error` says which error the rate is of."""
        return {
            "variant": [rate.variant for rate in self],
            "condition": [rate.condition for rate in self],
            "scenario": [rate.scenario for rate in self],
            "rate": ["false alarm" if rate.worthless else "power" for rate in self],
            "share": [rate.rate for rate in self],
            "low": [rate.low for rate in self],
            "high": [rate.high for rate in self],
            "n": [rate.n for rate in self],
            "simulations": [rate.n_simulations for rate in self],
        }

    def false_alarm(self, variant: VariantName, condition: Condition | str = ALL) -> float:
        """The largest share of worthless inputs that pass; NaN if none was simulated."""
        return max(self._rates(variant, condition, worthless=True), default=math.nan)

    def power(self, variant: VariantName, condition: Condition | str = ALL) -> float:
        """The smallest share of sound inputs that pass; NaN if none was simulated."""
        return min(self._rates(variant, condition, worthless=False), default=math.nan)

    def _rates(
        self, variant: VariantName, condition: Condition | str, *, worthless: bool
    ) -> list[float]:
        wanted = variant, str(condition), worthless
        return [x.rate for x in self if (x.variant, x.condition, x.worthless) == wanted]

    def __repr__(self) -> str:
        return f"NullTable(rows={len(self)})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            [f"{x:.3f}" if isinstance(x, float) else x for x in row]
            for row in zip(*columns.values(), strict=True)
        ]
        return html_facts("How often thresholds err", {}, html_table(tuple(columns), rows))


def simulate(
    scenarios: Sequence[Scenario],
    conditions: Mapping[VariantName, Sequence[Condition]],
    n: int,
    *,
    n_simulations: int = N_SIMULATIONS,
    seed: int = 0,
) -> NullTable:
    """The rates of conditions under scenarios of size `n`."""
    rates: list[PassRate] = []
    for number, scenario in enumerate(scenarios):
        rng = np.random.default_rng((seed, number))
        # A definition that divides by 0 is undefined there: the rate counts it as no pass.
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = scenario.draw(rng, n_simulations)
        for name, wanted in conditions.items():
            held = {
                str(rate): _held(rate, np.asarray(drawn[name][rate.quantity], dtype=float))
                for rate in wanted
            }
            if held:
                held[ALL] = np.all(list(held.values()), axis=0)
            for condition, passed in held.items():
                hits = float(passed.sum())
                low, high, _ = clopper_pearson(hits, float(len(passed)))
                rates.append(
                    PassRate(
                        name,
                        condition,
                        scenario.name,
                        scenario.worthless,
                        n,
                        hits / len(passed),
                        low,
                        high,
                        len(passed),
                    )
                )
    return NullTable(rates)


def _held(condition: Condition, values: np.ndarray) -> np.ndarray:
    match condition.sign:
        case "<":
            return values < condition.threshold
        case ">":
            return values > condition.threshold
        case "=":
            return values == condition.threshold


NAMES: Mapping[VariantName, str] = {"repaired": "repaired", "page": "as published"}
"""What variants are called."""
PASSED = {True: "passes", False: "fails", None: "no verdict"}


@dataclass(frozen=True, repr=False)
class Measurement(Result, kind="measure"):
    """A metric's result.

    Attributes:
        id: of the metric.
        flags: where the input or the definition makes a number say less than it seems to.
        readings: what the published table says of the published values.
        criterion: what the repaired variant is evidence for.
        null: how often the thresholds err on inputs of this size; None where nothing is decided.
        tables: details, such as a row a head.
    """

    id: str
    title: str
    page: Variant
    repaired: Variant
    flags: tuple[Flag, ...]
    readings: tuple[Reading, ...]
    criterion: MetricCriterion
    null: NullTable | None = None
    tables: tuple[Table, ...] = ()
    values: Values | None = None

    @staticmethod
    def of(
        metric: str | PageMetric,
        page: Mapping[str, Quantity],
        repaired: Mapping[str, Quantity],
        conditions: Sequence[Condition] = (),
        *,
        flags: Iterable[Flag] = (),
        null: NullTable | None = None,
        tables: Iterable[Table] = (),
        values: Values | None = None,
        words: Mapping[str, Any] | None = None,
    ) -> Measurement:
        """Return a result of a metric, in the words of the metric's data file.

        Args:
            metric: identifier of a metric of this package, or a metric that `read_metric` returned.
            page: quantities of the published definition, by the keys of its output.
            repaired: quantities of the repaired definition.
            conditions: conditions of the repaired definition.
            words: values for the braces of the descriptions.

        Raises:
            UnknownName: this package has no such metric.
            BadUsage: the data file does not describe a quantity or a flag; or a condition is on a
                quantity that is missing.
        """
        about = page_metric(metric) if isinstance(metric, str) else metric
        published = variant("page", about.described("page", page, words or {}), about.conditions)
        published_values = published.values
        readings = [scale.read(published_values) for scale in about.scales]
        return Measurement(
            about.id,
            about.title,
            published,
            variant("repaired", about.described("repaired", repaired, words or {}), conditions),
            tuple(map(about.flagged, flags)),
            tuple(reading for reading in readings if reading is not None),
            about.criterion,
            null,
            tuple(tables),
            values,
        )

    @property
    def passed(self) -> bool | None:
        """Whether the repaired definition passes; None where it is undefined or only reports."""
        return self.repaired.passed

    def flagged(self, name: str) -> bool:
        """Whether there is a flag of this name."""
        return any(flag.name == name for flag in self.flags)

    def repr_fields(self) -> dict[str, Any]:
        flags = tuple(flag.name for flag in self.flags)
        passed = {"page": self.page.passed, "repaired": self.repaired.passed}
        return {"id": self.id, **passed, "flags": flags, "criterion": str(self.criterion)}

    def columns(self) -> dict[str, list[Any]]:
        """A row a quantity; None is undefined, with its reason."""
        rows = [(part, name, quantity) for part, name, quantity in self._quantities()]
        return {
            "variant": [part.name for part, _, _ in rows],
            "quantity": [name for _, name, _ in rows],
            "value": [quantity.value for _, _, quantity in rows],
            "low": [quantity.low for _, _, quantity in rows],
            "high": [quantity.high for _, _, quantity in rows],
            "n": [quantity.n for _, _, quantity in rows],
            "reason": [quantity.reason for _, _, quantity in rows],
        }

    def _quantities(self) -> Iterator[tuple[Variant, str, Quantity]]:
        for part in (self.repaired, self.page):
            for name, quantity in part.quantities.items():
                yield part, name, quantity

    def conditions(self) -> Table:
        """Every condition with its value, whether it holds, and how often it errs."""
        return Table.of("conditions", ("variant", "condition"), self._conditions())

    def _conditions(self) -> Iterator[dict[str, Any]]:
        for part in (self.repaired, self.page):
            for condition in part.conditions:
                value, null = part[condition.quantity], self.null
                yield {
                    "variant": part.name,
                    "condition": str(condition),
                    "value": value,
                    "holds": {True: "yes", False: "no", None: "undefined"}[condition.holds(value)],
                    "false_alarm": math.nan
                    if null is None
                    else null.false_alarm(part.name, condition),
                    "power": math.nan if null is None else null.power(part.name, condition),
                }

    def contents(self) -> RecordContents:
        """Quantities as measures (of "result" the repaired ones, of "page" the published ones);
        conditions, readings, flags and rates as tables.
        """
        about: dict[str, Any] = {"rubric": self.criterion.rubric, "criterion": str(self.criterion)}
        rates: list[Table] = []
        if self.null is not None:
            keys = ("variant", "condition", "scenario")
            columns = {key: list(x) for key, x in self.null.columns().items()}
            rates.append(Table(name="rates", keys=keys, columns=columns))
        undefined = [
            f"{self.id}: {name} ({NAMES[part.name]}) is undefined: {quantity.reason}."
            for part, name, quantity in self._quantities()
            if quantity.value is None
        ]
        flags = ({"flag": flag.name, "says": flag.says} for flag in self.flags)
        contents: RecordContents = {
            "specs": {"method": Spec(name=self.id), "metric": Spec(name="", args=about)},
            "measures": [
                self._measure(part, name, quantity) for part, name, quantity in self._quantities()
            ],
            "tables": [
                self._verdicts(),
                self.conditions(),
                Table.of("readings", ("of",), self._readings()),
                Table.of("flags", ("flag",), flags),
                *rates,
                *self.tables,
            ],
            "warnings": [*(f"{self.id}: {flag.says}" for flag in self.flags), *undefined],
        }
        if self.values is not None:
            contents["values"] = self.values
        return contents

    def _measure(self, part: Variant, name: str, quantity: Quantity) -> Measure:
        own = part.name == "repaired"
        return Measure(
            name=name,
            of="result" if own else "page",
            value=math.nan if quantity.value is None else quantity.value,
            low=quantity.low,
            high=quantity.high,
            n=quantity.n,
            n_undefined=int(quantity.value is None),
            better=quantity.better,
            meaning=quantity.meaning,
            criterion=str(self.criterion) if own else "",
        )

    def _verdicts(self) -> Table:
        about = {"title": self.title, "criterion": f"{self.criterion} {self.criterion.name}"}
        rows = (
            {"variant": part.name, "verdict": PASSED[part.passed], **about}
            for part in (self.repaired, self.page)
        )
        return Table.of("verdicts", ("variant",), rows)

    def _readings(self) -> Iterator[dict[str, Any]]:
        for reading in self.readings:
            values = (self.page[name] for name in reading.of)
            text = ", ".join("undefined" if x is None else f"{x:.4g}" for x in values)
            yield {
                "of": ", ".join(reading.of),
                "values": text,
                "at": reading.at,
                "says": reading.says,
            }
