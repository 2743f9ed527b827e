"""Faithfulness over circuit size as arrays, read from records, and what records are called.

Records stand above this module, so that they can draw themselves; `RecordLike` says what of a
record is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mechassay.utils.display import shortened


class Named(Protocol):
    """A plug-in by name, with its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> Mapping[str, Any]: ...


ROLES = ("model", "task", "metric", "method")


class RecordLike(Protocol):
    """A record, as far as it is drawn: its measures, and its tables."""

    @property
    def n(self) -> int: ...
    @property
    def model(self) -> Named: ...
    @property
    def task(self) -> Named: ...
    @property
    def method(self) -> Named: ...
    @property
    def metric(self) -> Named: ...
    @property
    def measures(self) -> Sequence[Any]: ...
    def measure(self, name: str, of: str = "result") -> Any: ...
    def has_table(self, name: str) -> bool: ...
    def table(self, name: str) -> Any: ...


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
        record: RecordLike, ranking: str = "value", of: str = "result", seed: int | None = None
    ) -> Curve:
        """Of a ranking of the result, or of a random seed of a control."""
        names = ("fraction", "f", "low", "high", "kept", "asked")
        fractions, f, low, high, kept, asked = (np.empty(0) for _ in names)
        if record.has_table("curve"):
            rows = record.table("curve").where(ranking=ranking, of=of, seed=seed)
            fractions, f, low, high, kept, asked = map(rows.numbers, names)
        if record.metric.args.get("profile") == "mib-2025":
            return Curve(fractions, fractions, f, low, high, kept)
        n_edges = record.model.args.get("n_edges") or max(asked, default=1.0)
        return Curve(fractions, kept / float(str(n_edges)), f, low, high, kept)


CONTROL = "control:"
"""What `of` begins with in measures of a control."""
EMPTY = f"{CONTROL}empty"
"""`of` in measures of the circuit without edges."""
CONTROLS = {"random": "random edges", "random-paths": "random paths"}
"""The random rankings that a record may have been compared with, and what they are called."""


def control_kinds(record: RecordLike) -> list[str]:
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


def random_curves(record: RecordLike, kind: str) -> dict[int, Curve]:
    """The random rankings of a kind that the record was compared with, by seed."""
    of = f"{CONTROL}{kind}"
    rows = record.table("curve").rows() if record.has_table("curve") else []
    seeds = dict.fromkeys(row["seed"] for row in rows if row["of"] == of)
    numbers = [int(str(seed)) for seed in seeds]
    return {seed: Curve.of(record, of=of, seed=seed) for seed in numbers}


def is_random(record: RecordLike) -> bool:
    """Whether the record is of random scores, run as a method."""
    return record.method.name.split(":")[0] in CONTROLS


def labels(records: Sequence[RecordLike]) -> list[str]:
    """A name for every record: its method, and whatever else tells it from the others."""
    names = [record.method.name for record in records]
    for role in ROLES[:3]:
        others = [getattr(record, role).name for record in records]
        if len(set(others)) > 1:
            pairs = zip(names, others, strict=True)
            names = [", ".join(part for part in pair if part) for pair in pairs]
    numbers = [f"#{n + 1}" for n in range(len(names))]
    for more in (_of_cells(records), list(map(_arguments, records)), numbers):
        count = Counter(names)
        names = [
            ", ".join(filter(None, (name, extra))) if count[name] > 1 else name
            for name, extra in zip(names, more, strict=True)
        ]
    return names


def _of_cells(records: Sequence[RecordLike]) -> list[str]:
    """What else tells cells apart, such as their sites; "" where nothing does."""
    cells: list[Mapping[str, str]] = [getattr(record, "cell", {}) for record in records]
    roles = dict.fromkeys(role for cell in cells for role in cell if role not in ROLES)
    telling = [role for role in roles if len({cell.get(role) for cell in cells}) > 1]
    return [
        ", ".join(
            cell[role] for role in telling if role in cell and cell[role] != record.method.name
        )
        for record, cell in zip(records, cells, strict=True)
    ]


def short_labels(records: Sequence[RecordLike]) -> list[str]:
    """`labels` for figures: long ones lose their middle; two that then are alike are numbered."""
    names = [shortened(name, 40) for name in labels(records)]
    count = Counter(names)
    return [
        f"{name} #{place}" if count[name] > 1 else name for place, name in enumerate(names, start=1)
    ]


def _arguments(record: RecordLike) -> str:
    specs = (record.method, record.task, record.metric)
    return ", ".join(arguments(spec) for spec in specs if spec.args)


def arguments(spec: Named) -> str:
    """A plug-in's arguments: `steps=5, points=left`."""
    return ", ".join(f"{key}={value}" for key, value in spec.args.items())
