"""Numbers, names and findings of records in words: what tables, figures and pages have in common.

A number is rounded to what its interval supports: two digits of the interval's half-width if it
begins with 1, 2 or 3, else one (the rule of the Particle Data Group). A share that stands beside
the share of chance has at least as many decimals as that: 0.25 of four examples is no 0.2 beside
0.25. The verdict claims no more than intervals do: "more than random" means that the difference
from random rankings over the same examples is above 0, for either kind of them, and that the CPR
itself is.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechassay.records import Measure, Record, Spec

UNDEFINED = "undefined"
CHANCE_DECIMALS = 2
"""Decimals of the share of chance, and the fewest of what is compared with it."""
SMALL = 0.2
"""Circuits up to this share of the edges count as small in the verdict."""

OBJECTIVES = {
    "logit_diff": "logit difference",
    "prob_diff": "probability difference",
    "cross_entropy": "cross-entropy",
    "kl": "KL divergence",
    "js": "Jensen-Shannon divergence",
}


# Numbers


def number(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A value to the precision its interval supports; two decimals where there is no interval."""
    if not math.isfinite(value):
        return UNDEFINED if math.isnan(value) else f"{value}"
    return _fixed(value, _decimals(low, high))


def interval(value: float, low: float, high: float, *, least: int = 0) -> str:
    """A value and its interval, with at least so many decimals: `1.97 [1.71, 2.20]`."""
    if not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return number(value, low, high)
    decimals = max(least, _decimals(low, high))
    shown = _fixed(value, decimals)
    return f"{shown} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def shortened(text: str, most: int, keep: int | None = None) -> str:
    """A text without its middle where it is longer than `most` letters.

    Args:
        keep: letters of its beginning that stay; half of `most` if not given.
    """
    if len(text) <= most:
        return text
    keep = most // 2 if keep is None else keep
    return f"{text[:keep]}…{text[len(text) - (most - 1 - keep) :]}"


def share(fraction: float) -> str:
    """A fraction as a percentage: `0.1 %`, in which lines do not break."""
    return f"{100 * fraction:.3g}\u00a0%"


def _decimals(low: float, high: float) -> int:
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return 2
    power = math.floor(math.log10(half))
    digits = 2 if half / 10**power < 3.55 else 1
    return min(max(digits - 1 - power, 0), 3)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


# Parts of records


def measure(record: Record, name: str) -> Measure | None:
    """The measure of that name, if the record has it."""
    return next((each for each in record.measures if each.name == name), None)


def measure_text(record: Record, name: str, *, least: int = 0) -> str:
    """A measure and its interval, with at least so many decimals;
    empty if the record does not have it.
    """
    found = measure(record, name)
    return "" if found is None else interval(found.value, found.low, found.high, least=least)


def chance_text(chance: float) -> str:
    """What guessing would get right."""
    return f"{chance:.{CHANCE_DECIMALS}f}"


def value_of(record: Record, name: str) -> float:
    """A measure's value; NaN if the record does not have it."""
    found = measure(record, name)
    return math.nan if found is None else found.value


def is_random(record: Record) -> bool:
    """Whether the record is of random scores, run as a method."""
    return record.method.name.split(":")[0] in CONTROLS


def seconds(record: Record) -> float:
    """All time spent on the record; NaN if none was noted."""
    found = [
        value
        for key, value in record.realised.items()
        if key.endswith("seconds") and not math.isnan(value)
    ]
    return math.fsum(found) if found else math.nan


def kept_at(record: Record, fraction: float = 0.01) -> str:
    """Edges left after pruning, of those asked for, at one of the record's sizes;
    empty if it has no such size.
    """
    fractions, line = record.curves.get("fractions", []), record.curves.get("value", {})
    if fraction not in fractions:
        return ""
    place = fractions.index(fraction)
    return f"{line['kept'][place]:,} of {line['asked'][place]:,}"


@dataclass(frozen=True)
class Line:
    """One ranking's faithfulness at all sizes, as arrays; NaN is undefined.

    Attributes:
        x: circuit size as a share of the edges: after pruning in the profile `strict`, else as
            asked for.
    """

    x: np.ndarray
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    kept: np.ndarray

    @staticmethod
    def of(record: Record, stored: dict[str, Any]) -> Line:
        """From a part of `record.curves`, or of a random seed's in `record.controls`."""
        arrays = {
            key: np.array(stored[key], dtype=float)
            for key in ("faithfulness", "low", "high", "kept")
        }
        nominal = record.metric.args.get("profile") == "mib-2025"
        x = (
            np.array(record.curves["fractions"], dtype=float)
            if nominal
            else arrays["kept"] / n_edges(record)
        )
        return Line(x, arrays["faithfulness"], arrays["low"], arrays["high"], arrays["kept"])


def n_edges(record: Record) -> int:
    """Edges of the model's graph: the largest circuit there can be."""
    return int(record.model.args.get("n_edges") or max(record.curves["value"]["asked"]))


CONTROLS = {"random": "random edges", "random-paths": "random paths"}
"""The random rankings that a record may have been compared with, and what they are called."""


def random_seeds(record: Record, kind: str = "random") -> dict[str, dict[str, Any]]:
    """The random rankings of a kind that the record was compared with, by seed."""
    return record.controls.get(kind, {}).get("seeds", {})


def control_kinds(record: Record) -> list[str]:
    """The kinds of random rankings that the record was compared with."""
    return [kind for kind in CONTROLS if random_seeds(record, kind)]


def at_random(record: Record, name: str, kind: str = "random") -> tuple[float, float, float]:
    """Mean CPR or CMD of random rankings and its interval over examples; NaN without any."""
    control = record.controls.get(kind, {})
    return _numbers([control.get(name), *control.get(f"{name}_interval", [None, None])])


def beside_random(record: Record, name: str, kind: str = "random") -> tuple[float, float, float]:
    """CPR or CMD less the mean of random rankings, over the same examples,
    and its interval; NaN without any.
    """
    return _numbers(record.controls.get(kind, {}).get(f"{name}_difference", [None, None, None]))


def _numbers(found: Sequence[float | None]) -> tuple[float, float, float]:
    value, low, high = (math.nan if each is None else float(each) for each in found)
    return value, low, high


# Names


def settings(records: Sequence[Record]) -> list[list[Record]]:
    """Records that can be compared, together: those of one model, task, objective and profile."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        specs = [
            spec.model_dump(mode="json") for spec in (record.model, record.task, record.metric)
        ]
        # What a run called a method's cell is no setting of the task.
        specs[1]["args"].pop("cell", None)
        key = json.dumps(specs, sort_keys=True)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def setting_name(record: Record) -> str:
    """What a group of `settings` is called."""
    task = " ".join(filter(None, (record.task.name, str(record.task.args.get("split", "")))))
    return (
        f"{record.model.name}, {task}, {objective(record)}"
        f" ({record.metric.args.get('profile', 'strict')})"
    )


def objective(record: Record) -> str:
    """The objective in words."""
    return OBJECTIVES.get(record.metric.name, record.metric.name)


def labels(records: Sequence[Record]) -> list[str]:
    """A name for every record: its method, and whatever else tells it from the others."""
    found = [record.method.name for record in records]
    for get in (lambda r: r.model, lambda r: r.task, lambda r: r.metric):
        names = [get(record).name for record in records]
        if len(set(names)) > 1:
            found = [f"{label}, {name}" for label, name in zip(found, names, strict=True)]
    found = _told_apart(found, [_arguments(record) for record in records])
    return _told_apart(found, [f"#{number}" for number in range(1, len(found) + 1)])


def _told_apart(names: list[str], more: list[str]) -> list[str]:
    count = Counter(names)
    return [
        f"{name}, {extra}" if count[name] > 1 and extra else name
        for name, extra in zip(names, more, strict=True)
    ]


def _arguments(record: Record) -> str:
    specs = (record.method, record.task, record.metric)
    return ", ".join(arguments(spec) for spec in specs if spec.args)


def arguments(spec: Spec) -> str:
    """A plug-in's arguments: `steps=5, points=left`."""
    return ", ".join(f"{key}={value}" for key, value in spec.args.items())


# The verdict


def verdict(records: Sequence[Record]) -> str:
    """One sentence on records of one setting:
    is the best method's circuit better than random ones?
    """
    tried = [record for record in records if not is_random(record)] or list(records)
    defined = [record for record in tried if not math.isnan(value_of(record, "cpr"))]
    if not defined:
        return _undefined(tried[0])
    best = max(defined, key=lambda record: value_of(record, "cpr"))
    name = labels(records)[list(records).index(best)]
    among = f" (the best of {len(tried)} methods by CPR)" if len(tried) > 1 else ""
    subject = f"{_data(best)}, circuits found by {name}{among}"
    return f"{subject} {_compared(best)}{_caution(best)}"


def _data(record: Record) -> str:
    split = record.task.args.get("split")
    of = f" of {record.task.name}" if record.task.name else ""
    return f"On {len(record.example_ids):,} {f'{split} ' if split else ''}pairs{of}"


def _whose(record: Record) -> str:
    return (
        f"{record.model.name}'s {objective(record)}"
        if record.model.name
        else f"the {objective(record)}"
    )


def _compared(record: Record) -> str:
    """What the best method's CPR is worth beside random rankings,
    and beside the empty circuit, whose CPR is 0.
    """
    found, kinds = measure(record, "cpr"), control_kinds(record)
    own, what = f"CPR {measure_text(record, 'cpr')}", f"of {_whose(record)}"
    if found is None or not kinds:
        return f"recover {what} with {own}; there is no random control to compare with."
    control = f"{' and '.join(_control_text(record, kind) for kind in kinds)}"
    gains = [beside_random(record, "cpr", kind) for kind in kinds]
    if record.metric.args.get("profile") == "strict":
        # In that profile the empty circuit is worth 0; random ones may do harm.
        gains.append((found.value, found.low, found.high))
    if any(math.isnan(low) for _, low, _ in gains):
        return f"reach {own} {what}, without an interval, against {control}."
    if all(low > 0 for _, low, _ in gains):
        return f"recover more {what} than random ones{_where(record)}: {own} against {control}."
    if any(high < 0 for _, _, high in gains[: len(kinds)]):
        return f"recover less {what} than random ones: {own} against {control}."
    return (
        f"cannot be told from random ones in how much {what} they recover: {own} against {control}."
    )


def _control_text(record: Record, kind: str) -> str:
    seeds = len(random_seeds(record, kind))
    return (
        f"{interval(*at_random(record, 'cpr', kind))} of {CONTROLS[kind]} ({seeds}"
        f" seed{'s' * (seeds != 1)})"
    )


def _where(record: Record) -> str:
    """At which small sizes the interval of f lies above the random rankings' intervals."""
    line = Line.of(record, record.curves["value"])
    controls = [
        Line.of(record, stored)
        for kind in control_kinds(record)
        for stored in random_seeds(record, kind).values()
    ]
    highest = np.max([control.high for control in controls], axis=0)
    small = np.array(record.curves["fractions"]) <= SMALL
    above, n_small = int((line.low > highest)[small].sum()), int(small.sum())
    if n_small == 0:
        return ""
    if above == n_small:
        return f" at every size up to {share(SMALL)}"
    return (
        f" overall{f' and at {above}' if above else ', but at none'} of the {n_small} sizes up to"
        f" {share(SMALL)}"
    )


def _denominator(record: Record) -> tuple[float, float]:
    low, high, *_ = [*record.controls.get("denominator", []), None, None]
    return (math.nan if low is None else float(low), math.nan if high is None else float(high))


def _caution(record: Record) -> str:
    low, high = _denominator(record)
    if not low <= 0 <= high:
        return ""
    return (
        " These numbers mean little: the full model cannot be told from the empty circuit"
        f" (difference [{low:.3g}, {high:.3g}])."
    )


def _undefined(record: Record) -> str:
    low, high = _denominator(record)
    why = f" (difference [{low:.3g}, {high:.3g}])" if not math.isnan(low) else ""
    return (
        f"{_data(record)}, faithfulness is undefined: {_whose(record)} cannot be told from that of"
        f" the empty circuit{why}."
    )
