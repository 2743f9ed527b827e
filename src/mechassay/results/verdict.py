"""Conclusions from stored records: preconditions first, then answers, in words of one table.

    record -> preconditions, answers (`Case`: a name with its numbers) -> `Conclusion` -> sentences

A function reads a record and returns a case: "few groups" with {"pairs": 40, "groups": 3}. One
table, `data/verdicts.yaml`, has the standing, the verdict and the sentence of each case. No other
file has words of a verdict, so that page, terminal, printed result and tables say the same.

The headline is the first precondition that is not met ("No verdict: ..."). If all preconditions
are met, the headline has the limits, the first answer, and one sentence on missing fields of the
record. A precondition that one of several methods breaks excludes this method, and is a later line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, wraps
from importlib.resources import files
from typing import Any

from mechassay.results.records import Record
from mechassay.utils.display import counted, interval, number, share
from mechassay.utils.files import load_yaml


class Standing(StrEnum):
    """Standing of a precondition by the stored fields."""

    MET = "met"
    LIMITED = "met with a limit"
    NOT_MET = "not met"
    NOT_KNOWN = "not known"


class Verdict(StrEnum):
    """Answer of records to a question."""

    YES = "yes"
    NO = "no"
    NOT_DISTINGUISHABLE = "not distinguishable"
    NOT_TESTED = "not tested"
    NO_VERDICT = "no verdict"
    NOTHING = "nothing to explain"


Numbers = Mapping[str, Any]
"""What a sentence is made of: numbers, names, and intervals as (value, low, high)."""
NOT_STORED = "not stored"
"""The case of a precondition whose fields a record lacks."""


@dataclass(frozen=True)
class Case:
    """A row of the table of verdicts, with the numbers of a record.

    Attributes:
        part: a precondition ("task") or a question ("small").
        name: the row: "met", "worse".
        numbers: for the slots of its sentence.
        of: the method that the case is about; "" if the case is about all methods.
    """

    part: str
    name: str
    numbers: Numbers = field(default_factory=dict)
    of: str = ""

    @property
    def row(self) -> Mapping[str, str]:
        """What the table has: `standing` (of a precondition), `verdict`, `text`."""
        return table()[self.part][self.name]

    @property
    def standing(self) -> Standing:
        return Standing(self.row["standing"])

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.row["verdict"])

    def text(self, subject: Numbers) -> str:
        """The sentence; empty if the case has none."""
        text = self.row["text"]
        return written(text, {**subject, **self.numbers}) if text else ""


@dataclass(frozen=True)
class Conclusion:
    """Preconditions and answers of the records of one setting.

    Attributes:
        preconditions: in the order in which the headline names the first that is not met.
        answers: the answer to the main question first.
        subject: names that each sentence may use: model, task.
    """

    preconditions: tuple[Case, ...]
    answers: tuple[Case, ...] = ()
    subject: Numbers = field(default_factory=dict)

    @property
    def broken(self) -> Case | None:
        """The first precondition of all methods that is not met."""
        return next((x for x in self._of_all if x.standing is Standing.NOT_MET), None)

    @property
    def _of_all(self) -> list[Case]:
        return [x for x in self.preconditions if not x.of]

    @property
    def _limits(self) -> list[Case]:
        return [x for x in self._of_all if x.standing is Standing.LIMITED]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the main question."""
        if self.broken:
            return self.broken.verdict
        return self.answers[0].verdict if self.answers else Verdict.NOT_TESTED

    @property
    def reason(self) -> str:
        """The sentence of the precondition that is not met; "" if all are met."""
        return self.broken.text(self.subject) if self.broken else ""

    @property
    def headline(self) -> str:
        """The first sentence of the page."""
        if self.broken:
            return f"{_prefix(self.broken.verdict)}{self.reason}"
        if self.answers and self.verdict in (Verdict.NO_VERDICT, Verdict.NOTHING):
            texts = [self.answers[0], *self._limits]
            return f"{_prefix(self.verdict)}{' '.join(x.text(self.subject) for x in texts)}"
        parts = [x.text(self.subject) for x in (*self._limits, *self.answers[:1])]
        unknown = [x for x in self._of_all if x.standing is Standing.NOT_KNOWN]
        parts += [x.text(self.subject) for x in unknown if x.name != NOT_STORED]
        missing = [x.text(self.subject) for x in unknown if x.name == NOT_STORED]
        if missing:
            parts.append(f"This record does not say {', nor '.join(missing)}.")
        return " ".join(filter(None, parts))

    @property
    def lines(self) -> list[str]:
        """The headline, what excludes single methods, and the other answers."""
        excluded = [x for x in self.preconditions if x.of and x.standing is Standing.NOT_MET]
        others = () if self.broken else self.answers[1:]
        texts = [self.headline, *(x.text(self.subject) for x in (*excluded, *others))]
        return list(dict.fromkeys(filter(None, texts)))


def _prefix(verdict: Verdict) -> str:
    return f"{verdict[0].upper()}{verdict[1:]}: "


@cache
def table() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the table of verdicts: standing, verdict and text by part and case."""
    return load_yaml(files("mechassay.results").joinpath("data/verdicts.yaml").read_text("utf-8"))


def written(text: str, numbers: Numbers) -> str:
    """Return a sentence with its numbers.

    Slots: {n}, {n:count pair}, {x:share}, {x:percent}, {x:number}, {x:interval} of (value, low,
    high).

    Raises:
        ValueError: a number is undefined; no sentence has such a number.
        KeyError: a slot has no number.
    """
    return text.format(**{name: _Slot(value) for name, value in numbers.items()})


@dataclass(frozen=True)
class _Slot:
    """A number in a sentence."""

    value: Any

    def __format__(self, spec: str) -> str:
        kind, _, word = spec.partition(" ")
        values: tuple[Any, ...] = self.value if isinstance(self.value, tuple) else (self.value,)
        if any(isinstance(x, float) and math.isnan(x) for x in values[:1]):
            raise ValueError(f"undefined number in a sentence ({spec})")
        match kind:
            case "count":
                return counted(int(values[0]), word)
            case "share":
                return share(values[0])
            case "percent":
                return percent(values[0])
            case "number":
                return number(*values)
            case "interval":
                return interval(*values)
            case "":
                return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)
            case _:
                raise ValueError(f"unknown slot {spec!r}")


def percent(part: float) -> str:
    """Return a share in whole per cent."""
    whole = f"{100 * part:.0f}"
    return "less than 1\u00a0%" if whole == "0" and part > 0 else f"{whole}\u00a0%"


class NotStored(Exception):
    """A record lacks a field, as an older one may. The argument names the field."""


def stored(make: Callable[[Record, str], Case]) -> Callable[..., Case]:
    """Decorate a precondition to return a case "not known" if the record lacks a field of it."""

    @wraps(make)
    def checked(record: Record, of: str = "") -> Case:
        try:
            return make(record, of)
        except NotStored:
            return Case(make.__name__, NOT_STORED, {"method": of}, of)

    return checked
