"""Metrics of measurement as data: published definitions, and descriptions of their numbers.

Each metric has a file, `data/metrics/ID.yaml`, which is checked when it is read:

    title, establishes, does_not   name of the metric; what a pass shows and does not show
    criterion, needs               criterion of the rubric `RUBRIC`; inputs
    script, labels, keys, defaults, pass, scales    content of the published page, if there is one
    page, repaired                 by quantity: meaning, better (up or down), undefined (why)
    flags                          by flag: its sentence

Code gives numbers and names (`quantity(x, n=n)`, `flag("few_texts", n=3)`), the file the words.
Braces in a sentence are filled with the values that the code gives. `undefined` is a sentence, or
sentences by case: code names a case (`quantity(x, reason="few")`), or the case is `otherwise`.

Every metric has two variants (`Variant`): `page`, the published definition to the letter, and
`repaired`. What is undefined has the value None and a reason. A condition on it neither holds nor
fails, so that nothing undefined ever passes. A reading table (`BandScale`) says in words what
values mean. Published tables write "0.5-0.8" next to "> 0.8", so a value may be on the edge of
bands or in a gap between them; a `Reading` says which. "Loose" bands say low or high without a
number: there the threshold of the pass condition counts. "Remark" scales do not claim to cover all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine
from mechassay.utils.files import load_yaml

if TYPE_CHECKING:
    from mechassay.stats.intervals import Interval


Where = Literal["inside", "edge", "gap", "undefined"]
ANY = "any"
_BOUND = re.compile(r"(?P<sign>[<>=])\s*(?P<number>-?[\d.]+)$")
_BETWEEN = re.compile(r"(?P<low>-?[\d.]+)\s*\.\.\s*(?P<high>-?[\d.]+)$")


@dataclass(frozen=True)
class Range:
    """Values between two bounds, of which neither is certain to belong to it."""

    low: float = -math.inf
    high: float = math.inf

    @staticmethod
    def parse(text: str) -> Range:
        """From "> 0.5", "< 0.2", "0.2 .. 0.5", "= 0" or "any".

        Raises:
            BadUsage: it is none of these.
        """
        text = text.strip()
        if text == ANY:
            return Range()
        if (between := _BETWEEN.match(text)) is not None:
            return Range(float(between["low"]), float(between["high"]))
        bound = _BOUND.match(text)
        if bound is None:
            raise BadUsage(f"A range is > x, < x, = x, x .. y or any; got {text!r}.")
        number = float(bound["number"])
        low = number if bound["sign"] in ">=" else -math.inf
        high = number if bound["sign"] in "<=" else math.inf
        return Range(low, high)

    def holds(self, value: float) -> bool:
        """Whether a value is in it, its bounds included."""
        return self.low <= value <= self.high

    def bounds(self, value: float) -> bool:
        """Whether a value is one of its bounds; a range of one value has none."""
        return self.low < self.high and value in (self.low, self.high)


@dataclass(frozen=True)
class Band:
    """A range for each quantity of the scale, and what it says."""

    ranges: tuple[Range, ...]
    says: str


@dataclass(frozen=True)
class Reading:
    """What a scale says of values.

    Attributes:
        of: the quantities.
        at: inside one band; on the edge of some; in a gap, of which the table says nothing; or
            undefined, as a quantity is.
        says: the words of the bands that hold, or why none does.
    """

    of: tuple[str, ...]
    at: Where
    says: str


@dataclass(frozen=True)
class BandScale:
    """Bands of one quantity, or of several together.

    Attributes:
        remark: it does not claim to cover all values: outside of its bands it says nothing.
        loose: the table says low and high without a number.
    """

    of: tuple[str, ...]
    bands: tuple[Band, ...]
    remark: bool = False
    loose: bool = False

    @staticmethod
    def parse(
        of: Sequence[str],
        bands: Mapping[str, str],
        *,
        remark: bool = False,
        loose: bool = False,
    ) -> BandScale:
        """From texts of ranges; those of several quantities are parted by ";".

        Raises:
            BadUsage: what is no range, or not one a quantity.
        """
        made: list[Band] = []
        for text, says in bands.items():
            ranges = tuple(map(Range.parse, str(text).split(";")))
            if len(ranges) != len(of):
                raise BadUsage(f"A band of {', '.join(of)} has {len(of)} ranges; got {text!r}.")
            made.append(Band(ranges, says))
        return BandScale(tuple(of), tuple(made), remark, loose)

    def read(self, values: Mapping[str, float | None]) -> Reading | None:
        """What it says of values; None where a remark does not apply."""
        own_values = [values.get(name) for name in self.of]
        known = [x for x in own_values if x is not None and not math.isnan(x)]
        if len(known) < len(own_values):
            lacking = [name for name, x in zip(self.of, own_values, strict=True) if x is None]
            return (
                None
                if self.remark
                else Reading(self.of, "undefined", f"{', '.join(lacking) or 'it'} is undefined")
            )
        holding = [
            band
            for band in self.bands
            if all(r.holds(x) for r, x in zip(band.ranges, known, strict=True))
        ]
        text = "; ".join(band.says for band in holding)
        full_text = f"{text} (low and high: by the pass threshold)" if self.loose and text else text
        on_edge = any(
            r.bounds(x) for band in holding for r, x in zip(band.ranges, known, strict=True)
        )
        if not holding:
            gap = "the table says nothing of such a value"
            return None if self.remark else Reading(self.of, "gap", gap)
        if on_edge:
            return Reading(self.of, "edge", f"on the edge of: {full_text}")
        return Reading(self.of, "inside", full_text)


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
        says: its sentence; "" until the metric's data file gives it (`PageMetric.described`).
        values: numbers and words for the braces of the sentence.
    """

    name: str
    says: str = ""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)


def flag(name: str, /, **values: Any) -> Flag:
    """Return a flag whose sentence is in the metric's data file, with values for its braces."""
    return Flag(name, values=values)


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


BETTER = ("up", "down", "")
OTHERWISE = "otherwise"
"""Case of `undefined` that counts where code names none."""
NOT_FINITE = "it is not a finite number"
"""Reason of a quantity of which neither code nor data file says why it is undefined."""


def quantity(
    value: float | None,
    *,
    interval: Interval | None = None,
    n: int = 0,
    reason: str = "",
) -> Quantity:
    """Return a quantity of any float: NaN and infinity are None with the reason.

    Args:
        n: number of prompts, runs or heads that the value is computed from.
        reason: why the value is undefined: a case of `undefined` in the metric's data file, or a
            sentence.
    """
    if value is None or not math.isfinite(value):
        return Quantity(None, n=n, reason=reason or NOT_FINITE)
    low, high = (math.nan, math.nan) if interval is None else interval[:2]
    return Quantity(float(value), float(low), float(high), n)


def _filled(text: str, words: Mapping[str, Any]) -> str:
    try:
        return text.format(**words)
    except KeyError as error:
        raise BadUsage(f"The sentence {text!r} needs the word {error}, which is missing.") from None


@dataclass(frozen=True)
class QuantityText:
    """Description of a quantity in the data file of a metric.

    Attributes:
        undefined: why the quantity has no value: a sentence, or one for each case.
    """

    meaning: str = ""
    better: Literal["up", "down", ""] = ""
    undefined: str | Mapping[str, str] = NOT_FINITE

    def __post_init__(self) -> None:
        one_of("better direction of a quantity", self.better, BETTER)

    def of(self, own: Quantity, words: Mapping[str, Any]) -> Quantity:
        """Return a quantity with the meaning, the better direction and the reason of the data file.

        Raises:
            BadUsage: code names a case that the data file does not have, or a brace has no value.
        """
        reason = own.reason
        if own.value is None:
            cases = self.undefined
            cases = {OTHERWISE: cases} if isinstance(cases, str) else cases
            case = OTHERWISE if reason == NOT_FINITE else reason
            if case in cases:
                reason = _filled(cases[case], words)
            elif re.fullmatch(r"\w+", case) and case != OTHERWISE:
                raise BadUsage(
                    f"A data file has no reason {case!r} for an undefined quantity; it has"
                    f" {', '.join(map(repr, cases))}."
                )
        return replace(own, meaning=_filled(self.meaning, words), better=self.better, reason=reason)


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
        for condition in self.conditions:
            if condition.quantity not in self.quantities:
                raise BadUsage(
                    f"The condition {condition} of the variant {self.name} is on no quantity of it:"
                    f" {', '.join(self.quantities)}."
                )

    def __getitem__(self, name: str) -> float | None:
        """The value of a quantity; None where it is undefined. KeyError if there is none."""
        return self.quantities[name].value

    @property
    def values(self) -> dict[str, float | None]:
        """All values by name."""
        return {name: quantity.value for name, quantity in self.quantities.items()}

    @property
    def passed(self) -> bool | None:
        """Whether all conditions hold; None if there are none, or if none fails and one is
        undefined.
        """
        held = [condition.holds(self[condition.quantity]) for condition in self.conditions]
        if False in held:
            return False
        return None if None in held or not held else True

    def repr_fields(self) -> dict[str, Any]:
        values = {
            name: "undefined" if quantity.value is None else quantity.value
            for name, quantity in self.quantities.items()
        }
        return {"name": self.name, "passed": self.passed, **values}


def variant(
    name: VariantName, quantities: Mapping[str, Quantity], conditions: Sequence[Condition]
) -> Variant:
    """A variant with the conditions as a tuple."""
    return Variant(name, dict(quantities), tuple(conditions))


RUBRIC = "mv-27@1"
CRITERIA: Mapping[str, str] = {
    "C2": "Structural plausibility",
    "C3": "Task specificity",
    "C5": "Convergent validity",
    "E2": "Graded response",
    "I2": "Sufficiency",
    "M1": "Reliability",
    "M2": "Invariance",
    "M3": "Baseline separation",
    "M4": "Sensitivity",
    "M6": "Construct coverage",
}
"""Criteria of the rubric that the metrics are evidence for. Another rubric may use a code for
something else, so a code never stands without its rubric."""
IN_ORDER = (
    *(
        "M09",
        "EX25",
        "EX24",
        "M07",
        "M08",
        "M10",
        "M11",
        "M12",
        "M13",
        "EX34",
        "EX1",
        "EX2",
        "EX11",
    ),
    *("M14", "MIB", "F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "B10"),
)
"""Metrics of this package, as tables list them."""
_REQUIRED = {"title", "establishes", "does_not", "criterion", "needs"}
_OPTIONAL = {"script", "labels", "keys", "defaults", "pass", "scales", "page", "repaired", "flags"}
_CONDITION = re.compile(r"(?P<key>\w+)\s*(?P<sign>[<>=])\s*(?P<threshold>-?[\d.]+)$")


@dataclass(frozen=True)
class PageMetric:
    """Description of a metric: its data file.

    Attributes:
        id, script: names of the metric and of its published script.
        establishes, does_not: clauses: what a pass shows, and what a pass does not show.
        needs: inputs; "a|b" is either.
        labels: criteria in the words of the published page.
        criterion: criterion of the rubric.
        keys: names of its output.
        defaults: of its usage lines.
        conditions: all of them have to hold for it to pass; none: it only reports.
        texts: descriptions of the quantities of each variant.
        flags: sentences of flags.
    """

    id: str
    title: str
    script: str
    needs: tuple[str, ...]
    labels: tuple[str, ...]
    criterion: MetricCriterion
    keys: tuple[str, ...]
    defaults: Mapping[str, float]
    conditions: tuple[Condition, ...]
    scales: tuple[BandScale, ...]
    establishes: str
    does_not: str
    texts: Mapping[VariantName, Mapping[str, QuantityText]]
    flags: Mapping[str, str]

    def described(
        self, name: VariantName, quantities: Mapping[str, Quantity], words: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the quantities of a variant with their descriptions.

        Args:
            words: values for the braces of sentences.

        Raises:
            BadUsage: a quantity is not in the data file.
        """
        texts = self.texts[name]
        # The first word of a name is the quantity, the rest says of what: "pairwise_d men, women".
        kinds = {key: key.partition(" ")[0] for key in quantities}
        if unknown := [key for key, kind in kinds.items() if kind not in texts]:
            raise BadUsage(
                f"{self.id}.yaml does not describe the quantity {', '.join(unknown)} under"
                f" {name!r}; it describes {', '.join(texts) or 'no quantity'}."
            )
        return {key: texts[kinds[key]].of(own, words) for key, own in quantities.items()}

    def flagged(self, own: Flag) -> Flag:
        """Return a flag with its sentence.

        Raises:
            BadUsage: the flag is not in the data file.
        """
        if own.says:
            return own
        if own.name not in self.flags:
            raise BadUsage(
                f"The data file of {self.id} has no sentence for the flag {own.name!r}; it has"
                f" {', '.join(self.flags) or 'no flag'}."
            )
        return Flag(own.name, _filled(self.flags[own.name], own.values))


def parse_condition(text: str) -> Condition:
    """A condition from its text, "dprime > 1.0".

    Raises:
        BadUsage: it is none.
    """
    match = _CONDITION.match(text.strip())
    if match is None:
        raise BadUsage(
            f"A condition is written key > number, key < number or key = number; got {text!r}."
        )
    sign = one_of("sign of a condition", match["sign"], ("<", ">", "="))
    return Condition(match["key"], sign, float(match["threshold"]))


def read_metric(file: Traversable | Path) -> PageMetric:
    """Read a metric from its data file, whose name without ".yaml" is the identifier.

    Raises:
        BadUsage: the file lacks a field, has one that is not known, or one that cannot be read.
    """
    id = file.name.removesuffix(".yaml")
    row: Mapping[str, Any] = load_yaml(file.read_text("utf-8"))
    lacking = sorted(_REQUIRED - set(row))
    unknown = sorted(set(row) - _REQUIRED - _OPTIONAL)
    if lacking or unknown:
        problems = [f"lacks {', '.join(lacking)}"] * bool(lacking)
        problems += [f"has the unknown {', '.join(unknown)}"] * bool(unknown)
        raise BadUsage(f"{file.name}, the data file of a metric, {' and '.join(problems)}.")
    code = one_of(f"criterion of {RUBRIC} in {file.name}", row["criterion"], CRITERIA)
    try:
        texts: dict[VariantName, dict[str, QuantityText]] = {
            name: {str(key): QuantityText(**text) for key, text in row.get(name, {}).items()}
            for name in VARIANTS
        }
    except TypeError as error:
        raise BadUsage(
            f"{file.name}: a quantity has meaning, better and undefined; {error}."
        ) from error
    scales = tuple(
        BandScale.parse(
            scale["of"],
            scale["bands"],
            remark=bool(scale.get("remark", False)),
            loose=bool(scale.get("loose", False)),
        )
        for scale in row.get("scales", ())
    )
    return PageMetric(
        id,
        row["title"],
        row.get("script", ""),
        tuple(row["needs"]),
        tuple(row.get("labels", ())),
        MetricCriterion(code, CRITERIA[code], RUBRIC),
        tuple(row.get("keys", ())),
        dict(row.get("defaults", {})),
        tuple(map(parse_condition, row.get("pass", ()))),
        scales,
        row["establishes"],
        row["does_not"],
        texts,
        dict(row.get("flags", {})),
    )


@cache
def _own(id: str) -> PageMetric:
    return read_metric(files("mechassay.measurement").joinpath("data", "metrics", f"{id}.yaml"))


@cache
def catalogue() -> Mapping[str, PageMetric]:
    """Return all metrics of this package by identifier."""
    return {id: _own(id) for id in IN_ORDER}


@checked
def page_metric(name: str) -> PageMetric:
    """Return a metric by its identifier in any case, or by the name of its script.

    Raises:
        UnknownName: this package has no such metric.
    """
    if name in IN_ORDER:
        return _own(name)
    metrics = catalogue()
    plain = name.removesuffix(".py").lower()
    names = {metric.id.lower(): metric for metric in metrics.values()}
    names |= {metric.script.lower(): metric for metric in metrics.values() if metric.script}
    if plain not in names:
        scripts = [metric.script for metric in metrics.values() if metric.script]
        raise UnknownName("metric of measurement", name, [*metrics, *scripts])
    return names[plain]


def thresholds(
    metric: str | PageMetric, repaired: Sequence[Condition]
) -> Mapping[VariantName, Sequence[Condition]]:
    """Return the conditions of both variants: the published ones, and the given repaired ones."""
    about = page_metric(metric) if isinstance(metric, str) else metric
    return {"page": about.conditions, "repaired": tuple(repaired)}
