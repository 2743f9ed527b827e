"""Predictions of SyntaxGym: formulas over the surprisals of regions, read without `eval`.

    formula  := relation { ("&" | "|") relation }        from the left
    relation := sum [ ("<" | ">" | "=") sum ]
    sum      := term { ("+" | "-") term }
    term     := number | "(" region ";%" condition "%)" | "(" formula ")" | "[" formula "]"

`region` is a number, or "*" for the sum over all regions. "=" allows a difference of 1e-3 and
1e-5 of the right side, as syntaxgym-core does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from mechassay.errors import BadUsage

ALL = "*"
RELATIVE, ABSOLUTE = 1e-5, 1e-3
DEEPEST = 50
"""Brackets within brackets."""

Numbers = Float[np.ndarray, "items"]
Truths = Bool[np.ndarray, "items"]
Values = Mapping[tuple[str, str], Numbers]
"""By region and condition, a number for each item."""

_TOKEN = re.compile(
    r"\s*(?:\(\s*(?P<region>\d+|\*)\s*;\s*%(?P<condition>[^%]+)%\s*\)"
    r"|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)|(?P<sign>[-+<>=&|()\[\]]))"
)
_CLOSES = {"(": ")", "[": "]"}
_SUMS: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {"+": np.add, "-": np.subtract}
_TRUTHS: Mapping[str, Callable[[Truths, Truths], Truths]] = {
    "&": np.logical_and,
    "|": np.logical_or,
}


def _equal(a: Numbers, b: Numbers) -> Truths:
    return np.isclose(a, b, rtol=RELATIVE, atol=ABSOLUTE)


_RELATIONS: Mapping[str, Callable[[Numbers, Numbers], Truths]] = {
    "<": np.less,
    ">": np.greater,
    "=": _equal,
}


@dataclass(frozen=True)
class Formula:
    """A prediction.

    Attributes:
        text: as written.
        regions: the regions and conditions that it speaks of.
    """

    text: str
    regions: tuple[tuple[str, str], ...]

    @staticmethod
    def read(text: str) -> Formula:
        """The formula of a text.

        Raises:
            BadUsage: it is none.
        """
        reader = _FormulaReader(text, None)
        reader.whole()
        return Formula(text.strip(), tuple(dict.fromkeys(reader.regions)))

    def holds(self, values: Values) -> Truths:
        """Whether it holds, for each item.

        Args:
            values: surprisals by region and condition. The region "*" is the sum over all regions.

        Raises:
            BadUsage: a region that has no values.
        """
        for region, condition in self.regions:
            if (region, condition) not in values:
                raise BadUsage(
                    f"The prediction {self.text!r} needs region {region} of condition"
                    f" {condition!r}; there are no values of it."
                )
        return _FormulaReader(self.text, values).whole()


class _FormulaReader:
    """Walks through a formula. Without values, every region is one item of surprisal 0."""

    def __init__(self, text: str, values: Values | None) -> None:
        self.text, self.values = text, values
        self.regions: list[tuple[str, str]] = []
        self.tokens: list[re.Match[str]] = []
        self.items = max(map(len, (values or {}).values()), default=1)
        self.depth = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"{text[at:].strip()[:12]!r} cannot be read")
            self.tokens.append(match)
            at = match.end()

    def whole(self) -> Truths:
        found = self._formula()
        if self.tokens:
            raise self._wrong(f"{self.tokens[0][0].strip()!r} comes after its end")
        if found.dtype != np.bool_:
            raise self._wrong("it compares nothing")
        return found

    def _formula(self) -> np.ndarray:
        found = self._relation()
        while (sign := self._sign("&|")) is not None:
            other = self._relation()
            if found.dtype != np.bool_ or other.dtype != np.bool_:
                raise self._wrong(f"{sign!r} joins comparisons")
            found = _TRUTHS[sign](found, other)
        return found

    def _relation(self) -> np.ndarray:
        found = self._sum()
        if (sign := self._sign("<>=")) is None:
            return found
        other = self._sum()
        if found.dtype == np.bool_ or other.dtype == np.bool_:
            raise self._wrong(f"{sign!r} compares numbers")
        return _RELATIONS[sign](found, other)

    def _sum(self) -> np.ndarray:
        found = self._term()
        while (sign := self._sign("+-")) is not None:
            other = self._term()
            if found.dtype == np.bool_ or other.dtype == np.bool_:
                raise self._wrong(f"{sign!r} adds numbers")
            found = _SUMS[sign](found, other)
        return found

    def _term(self) -> np.ndarray:
        if not self.tokens:
            raise self._wrong("it ends too soon")
        token = self.tokens.pop(0)
        if token["number"] is not None:
            return np.full(self.items, float(token["number"]))
        if token["region"] is not None:
            key = (token["region"], token["condition"])
            self.regions.append(key)
            return np.zeros(self.items) if self.values is None else self.values[key]
        if (opened := token["sign"]) not in _CLOSES:
            raise self._wrong(f"{opened!r} stands where a region or a number should")
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._wrong(f"it has more than {DEEPEST} brackets within each other")
        found = self._formula()
        if self._sign(_CLOSES[opened]) is None:
            raise self._wrong(f"{opened!r} is not closed")
        self.depth -= 1
        return found

    def _sign(self, signs: str) -> str | None:
        """The next token, if it is one of some signs."""
        if self.tokens and (sign := self.tokens[0]["sign"]) is not None and sign in signs:
            self.tokens.pop(0)
            return sign
        return None

    def _wrong(self, why: str) -> BadUsage:
        return BadUsage(f"The prediction {self.text.strip()!r} is not a formula: {why}.")
