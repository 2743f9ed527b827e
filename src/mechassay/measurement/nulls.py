"""How often a threshold errs: the share of simulated inputs that pass it.

    false alarm    of inputs that are worth nothing by construction (a circuit that does nothing)
    power          of inputs of a known worth

A scenario says how such inputs are made, and what both variants of the metric find on them; the
rate of a condition is the share of simulations in which it holds, an undefined value never does.
Rates come with Clopper and Pearson's interval over simulations. They are those of the scenario: a
real circuit may err more or less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechassay.display import Tabular, html_facts, html_table
from mechassay.measurement.variant import Condition, VariantName
from mechassay.stats.intervals import clopper_pearson

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
            "variant": [each.variant for each in self],
            "condition": [each.condition for each in self],
            "scenario": [each.scenario for each in self],
            "rate": ["false alarm" if each.worthless else "power" for each in self],
            "share": [each.rate for each in self],
            "low": [each.low for each in self],
            "high": [each.high for each in self],
            "n": [each.n for each in self],
            "simulations": [each.n_simulations for each in self],
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
                str(each): _held(each, np.asarray(drawn[name][each.quantity], dtype=float))
                for each in wanted
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
