"""One definition of a metric, as it came out: its quantities, and whether its conditions hold.

Every metric has two variants: `page`, the published definition to the letter, and `repaired`. What
is undefined has the value None and a reason. A condition on it neither holds nor fails, so that
nothing undefined ever passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.stats.intervals import Interval

Sign = Literal["<", ">", "="]
VariantName = Literal["page", "repaired"]
VARIANTS: tuple[VariantName, VariantName] = ("page", "repaired")


@dataclass(frozen=True)
class MetricCriterion:
    """A criterion of a rubric: the code means nothing without the rubric."""

    code: str
    name: str
    rubric: str

    def __str__(self) -> str:
        return f"{self.rubric}:{self.code}"


@dataclass(frozen=True)
class Flag:
    """Where an input, or the definition itself, makes a number say less than it seems to.

    Attributes:
        name: short, for programs: "strong_unreachable".
        says: in a sentence.
    """

    name: str
    says: str


@dataclass(frozen=True)
class Quantity:
    """A number with its interval, or None with the reason why there is none.

    Attributes:
        n: what it is computed from: prompts, runs, heads.
        better: whether higher ("up") or lower ("down") values are better; "" where neither is.

    Raises:
        BadUsage: undefined without a reason, or NaN or infinity for a value.
    """

    value: float | None
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    reason: str = ""
    meaning: str = ""
    better: Literal["up", "down", ""] = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise BadUsage("A quantity that is undefined needs a reason.")
        if self.value is not None and not math.isfinite(self.value):
            raise BadUsage(f"A quantity is finite, or None with a reason; got {self.value}.")


def quantity(
    value: float | None,
    *,
    interval: Interval | None = None,
    n: int = 0,
    reason: str = "it is not a finite number",
    meaning: str = "",
    better: Literal["up", "down", ""] = "",
) -> Quantity:
    """A quantity of any float: NaN and infinity are None with the reason."""
    if value is None or not math.isfinite(value):
        return Quantity(None, n=n, reason=reason, meaning=meaning, better=better)
    low, high = (math.nan, math.nan) if interval is None else interval[:2]
    return Quantity(float(value), float(low), float(high), n, "", meaning, better)


@dataclass(frozen=True)
class Condition:
    """A condition on a quantity: "dprime > 1"."""

    quantity: str
    sign: Sign
    threshold: float

    def __str__(self) -> str:
        return f"{self.quantity} {self.sign} {self.threshold:g}"

    def holds(self, value: float | None) -> bool | None:
        """Whether a value meets it; None if the value is undefined."""
        if value is None or math.isnan(value):
            return None
        match self.sign:
            case "<":
                return value < self.threshold
            case ">":
                return value > self.threshold
            case "=":
                return value == self.threshold


@dataclass(frozen=True, repr=False)
class Variant(OneLine):
    """One definition's quantities, and the conditions that all have to hold for it to pass."""

    name: VariantName
    quantities: Mapping[str, Quantity]
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        for each in self.conditions:
            if each.quantity not in self.quantities:
                raise BadUsage(
                    f"The condition {each} of the variant {self.name} is on no quantity of it:"
                    f" {', '.join(self.quantities)}."
                )

    def __getitem__(self, name: str) -> float | None:
        """The value of a quantity; None where it is undefined. KeyError if there is none."""
        return self.quantities[name].value

    @property
    def values(self) -> dict[str, float | None]:
        """All values by name."""
        return {name: each.value for name, each in self.quantities.items()}

    @property
    def passed(self) -> bool | None:
        """Whether all conditions hold; None if there are none, or if none fails and one is
        undefined.
        """
        held = [each.holds(self[each.quantity]) for each in self.conditions]
        if False in held:
            return False
        return None if None in held or not held else True

    def shown(self) -> dict[str, Any]:
        values = {
            name: "undefined" if each.value is None else each.value
            for name, each in self.quantities.items()
        }
        return {"name": self.name, "passed": self.passed, **values}


def variant(
    name: VariantName, quantities: Mapping[str, Quantity], conditions: Sequence[Condition]
) -> Variant:
    """A variant with the conditions as a tuple."""
    return Variant(name, dict(quantities), tuple(conditions))
