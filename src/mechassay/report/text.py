"""Numbers and names of records in words: what tables, figures and pages share.

A number is rounded to what its interval supports: two digits of the interval's half-width if it
begins with 1, 2 or 3, else one (the rule of the Particle Data Group).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechassay.records import Record, Spec, Table

UNDEFINED = "undefined"
CHANCE_DECIMALS = 2
"""Decimals of the share of chance, and the fewest of what is compared with it."""

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


def measure_text(record: Record, name: str, of: str = "result", *, least: int = 0) -> str:
    """A measure and its interval, with at least so many decimals; empty if there is none."""
    found = record.measure(name, of)
    return "" if found is None else interval(found.value, found.low, found.high, least=least)


def chance_text(chance: float) -> str:
    """What guessing would get right."""
    return f"{chance:.{CHANCE_DECIMALS}f}"


def is_random(record: Record) -> bool:
    """Whether the record is of random scores, run as a method."""
    return record.method.name.split(":")[0] in CONTROLS


def seconds(record: Record) -> float:
    """All time spent on the record; NaN if none was noted."""
    spent = [value for key, value in record.realised.items() if key.endswith("seconds")]
    known = [value for value in spent if not math.isnan(value)]
    return math.fsum(known) if known else math.nan


def kept_at(record: Record, fraction: float = 0.01) -> str:
    """Edges left of those asked for at one of the record's sizes; empty if it has no such size."""
    for row in _curve(record).where(of="result", ranking="value", fraction=fraction).rows():
        return f"{row['kept']:,} of {row['asked']:,}"
    return ""


@dataclass(frozen=True)
class Curve:
    """One ranking's faithfulness at all sizes, as arrays; NaN is undefined.

    Attributes:
        x: circuit size as a share of the edges: after pruning in the profile `strict`, else as
            asked for.
    """

    fractions: np.ndarray
    x: np.ndarray
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    kept: np.ndarray

    @staticmethod
    def of(
        record: Record, ranking: str = "value", of: str = "result", seed: int | None = None
    ) -> Curve:
        """Of a ranking of the result, or of a random seed of a control."""
        rows = _curve(record).where(ranking=ranking, of=of, seed=seed)
        fractions, f, low, high, kept, asked = (
            rows.numbers(name) for name in ("fraction", "f", "low", "high", "kept", "asked")
        )
        if record.metric.args.get("profile") == "mib-2025":
            return Curve(fractions, fractions, f, low, high, kept)
        n_edges = record.model.args.get("n_edges") or max(asked, default=1.0)
        return Curve(fractions, kept / float(str(n_edges)), f, low, high, kept)


def _curve(record: Record) -> Table:
    """The table of faithfulness; one without rows if the record has none."""
    return record.table("curve") if record.has_table("curve") else Table.of("curve", (), [])


CONTROL = "control:"
CONTROLS = {"random": "random edges", "random-paths": "random paths"}
"""The random rankings that a record may have been compared with, and what they are called."""


def control_kinds(record: Record) -> list[str]:
    """The controls that have a measure which the result has too."""
    names = {measure.name for measure in record.measures if measure.of == "result"}
    kinds = [
        measure.of.removeprefix(CONTROL)
        for measure in record.measures
        if measure.of.startswith(CONTROL) and measure.name in names
    ]
    return list(dict.fromkeys(kinds))


def control_name(kind: str) -> str:
    """What a control is called."""
    return CONTROLS.get(kind, kind.replace("-", " "))


def random_curves(record: Record, kind: str) -> dict[int, Curve]:
    """The random rankings of a kind that the record was compared with, by seed."""
    of = f"{CONTROL}{kind}"
    seeds = dict.fromkeys(row["seed"] for row in _curve(record).rows() if row["of"] == of)
    numbers = [int(str(seed)) for seed in seeds]
    return {seed: Curve.of(record, of=of, seed=seed) for seed in numbers}


# Names


def settings(records: Sequence[Record]) -> list[list[Record]]:
    """Records that can be compared, together: those of one model, task, objective and profile."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        specs = [
            spec.model_dump(mode="json") for spec in (record.model, record.task, record.metric)
        ]
        asked = {role: name for role, name in record.cell.items() if role != "method"}
        key = json.dumps([*specs, asked], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def setting_name(record: Record) -> str:
    """What a group of `settings` is called."""
    name, split = record.cell.get("task", record.task.name), record.task.args.get("split", "")
    task = " ".join(filter(None, (name, str(split))))
    profile = record.metric.args.get("profile", "strict")
    return f"{record.model.name}, {task}, {objective(record)} ({profile})"


def objective(record: Record) -> str:
    """The objective in words."""
    return OBJECTIVES.get(record.metric.name, record.metric.name)


def labels(records: Sequence[Record]) -> list[str]:
    """A name for every record: its method, and whatever else tells it from the others."""
    names = [record.method.name for record in records]
    for role in ("model", "task", "metric"):
        others = [getattr(record, role).name for record in records]
        if len(set(others)) > 1:
            names = [f"{name}, {other}" for name, other in zip(names, others, strict=True)]
    for more in (list(map(_arguments, records)), [f"#{n + 1}" for n in range(len(names))]):
        count = Counter(names)
        names = [
            f"{name}, {extra}" if count[name] > 1 and extra else name
            for name, extra in zip(names, more, strict=True)
        ]
    return names


def _arguments(record: Record) -> str:
    specs = (record.method, record.task, record.metric)
    return ", ".join(arguments(spec) for spec in specs if spec.args)


def short_labels(records: Sequence[Record], most: int = 40) -> list[str]:
    """`labels` for figures: long ones lose their middle; two that then are alike are numbered."""
    names = [shortened(name, most) for name in labels(records)]
    count = Counter(names)
    return [
        f"{name} #{place}" if count[name] > 1 else name for place, name in enumerate(names, start=1)
    ]


def arguments(spec: Spec) -> str:
    """A plug-in's arguments: `steps=5, points=left`."""
    return ", ".join(f"{key}={value}" for key, value in spec.args.items())
