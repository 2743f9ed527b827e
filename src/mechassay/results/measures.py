"""Descriptions of the numbers of records: title, better direction, unit and meaning are data.

`data/measures.yaml` describes each number by kind of run and name. Code gives the number, and the
words for the braces of the description:

    texts = measure_texts("gym")
    texts.measure("odds_{method}", estimate, n=100, method="das", title="das")

`read_measure_texts` reads the descriptions of another package from a file of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.results.records import Measure
from mechassay.stats.intervals import LEVEL, Estimate, Interval
from mechassay.utils.files import load_yaml


@dataclass(frozen=True)
class MeasureText:
    """Description of a measure; `Measure` has the same fields.

    Attributes:
        name: name of the measure, if the file has several descriptions for one name.
    """

    title: str = ""
    better: Literal["up", "down", ""] = ""
    unit: str = ""
    meaning: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        one_of("better direction of a measure", self.better, ("up", "down", ""))


@dataclass(frozen=True)
class MeasureTexts:
    """Descriptions of the measures of one kind of run."""

    kind: str
    by_name: Mapping[str, MeasureText]

    def measure(
        self,
        name: str,
        value: float | Estimate,
        interval: Interval | None = None,
        *,
        of: str = "result",
        n: int = 0,
        n_undefined: int = 0,
        level: float = LEVEL,
        **words: Any,
    ) -> Measure:
        """Return a measure: a number with its description.

        Args:
            name: name in the file, with its braces: "odds_{method}".
            value: number, or number with its interval.
            interval: interval of the number; it has its own level.
            of, n, n_undefined, level: see `Measure`.
            words: values for the braces of name, title and meaning; {n} has its value.

        Raises:
            UnknownName: the file has no such name under this kind.
            BadUsage: a brace has no value.
        """
        if name not in self.by_name:
            raise UnknownName(f"measure of {self.kind}", name, self.by_name)
        text = self.by_name[name]
        own = value if isinstance(value, Estimate) else Estimate(value)
        low, high, level = interval or Interval(own.low, own.high, level)
        try:
            named, title, meaning = (
                x.format(n=n, **words) for x in (text.name or name, text.title, text.meaning)
            )
        except KeyError as error:
            raise BadUsage(
                f"The measure {name!r} of the kind {self.kind!r} needs a value for the placeholder"
                f" {error}."
            ) from None
        return Measure(
            name=named,
            value=own.value,
            low=low,
            high=high,
            level=level,
            n=n,
            n_undefined=n_undefined,
            of=of,
            better=text.better,
            unit=text.unit,
            title=title,
            meaning=meaning,
        )


def read_measure_texts(file: Traversable | Path) -> dict[str, MeasureTexts]:
    """Read descriptions of measures from a YAML file, and return them by kind of run.

    Raises:
        BadUsage: a measure has a field that is none of title, better, unit, meaning and name.
        UnknownName: a better direction is none of up, down and "".
    """
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_yaml(file.read_text("utf-8"))
    try:
        return {
            kind: MeasureTexts(kind, {name: MeasureText(**text) for name, text in own.items()})
            for kind, own in rows.items()
        }
    except TypeError as error:
        raise BadUsage(
            f"{file.name}: a measure has title, better, unit, meaning and name; {error}."
        ) from error


@cache
def all_measure_texts() -> Mapping[str, MeasureTexts]:
    """Return the descriptions of all measures of this package, by kind of run."""
    return read_measure_texts(files("mechassay.results").joinpath("data", "measures.yaml"))


def measure_texts(kind: str) -> MeasureTexts:
    """Return the descriptions of the measures of one kind of run.

    Raises:
        UnknownName: this package has no such kind.
    """
    known = all_measure_texts()
    if kind not in known:
        raise UnknownName("kind of run", kind, known)
    return known[kind]
