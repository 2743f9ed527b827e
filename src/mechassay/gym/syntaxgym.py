"""Test suites of SyntaxGym (Gauthier et al. 2020): sentences in regions, and predictions of them.

A suite has items; every item has the same conditions, and every condition the same numbered
regions. A sentence is its regions that are not empty, with one space between them and none
before punctuation. A prediction says how surprisals of regions compare; it is counted for every
item. *Accuracy* is the share of items in which it holds.

Predictions are formulas, read without `eval`:

    formula  := relation { ("&" | "|") relation }        from the left
    relation := sum [ ("<" | ">" | "=") sum ]
    sum      := term { ("+" | "-") term }
    term     := number | "(" region ";%" condition "%)" | "(" formula ")" | "[" formula "]"

`region` is a number, or "*" for the sum over all regions. "=" allows a difference of 1e-3 and
1e-5 of the right side, as syntaxgym-core does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.gym.gym_task import joined, spaced, spans_of
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Prompt
from mechassay.prompts.rows import short
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular, html_facts, html_table
from mechassay.utils.files import parsed_json

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
        holds = self._formula()
        if self.tokens:
            raise self._wrong(f"{self.tokens[0][0].strip()!r} comes after its end")
        if holds.dtype != np.bool_:
            raise self._wrong("it compares nothing")
        return holds

    def _formula(self) -> np.ndarray:
        truth = self._relation()
        while (sign := self._sign("&|")) is not None:
            other = self._relation()
            if truth.dtype != np.bool_ or other.dtype != np.bool_:
                raise self._wrong(f"{sign!r} joins comparisons")
            truth = _TRUTHS[sign](truth, other)
        return truth

    def _relation(self) -> np.ndarray:
        total = self._sum()
        if (sign := self._sign("<>=")) is None:
            return total
        other = self._sum()
        if total.dtype == np.bool_ or other.dtype == np.bool_:
            raise self._wrong(f"{sign!r} compares numbers")
        return _RELATIONS[sign](total, other)

    def _sum(self) -> np.ndarray:
        total = self._term()
        while (sign := self._sign("+-")) is not None:
            other = self._term()
            if total.dtype == np.bool_ or other.dtype == np.bool_:
                raise self._wrong(f"{sign!r} adds numbers")
            total = _SUMS[sign](total, other)
        return total

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
        formula = self._formula()
        if self._sign(_CLOSES[opened]) is None:
            raise self._wrong(f"{opened!r} is not closed")
        self.depth -= 1
        return formula

    def _sign(self, signs: str) -> str | None:
        """The next token, if it is one of some signs."""
        if self.tokens and (sign := self.tokens[0]["sign"]) is not None and sign in signs:
            self.tokens.pop(0)
            return sign
        return None

    def _wrong(self, why: str) -> BadUsage:
        return BadUsage(f"The prediction {self.text.strip()!r} is not a formula: {why}.")


METRICS = ("sum",)
"""What a region's surprisal may be of those of its tokens."""


@dataclass(frozen=True, eq=False, repr=False)
class SuiteAccuracy(OneLine, Tabular):
    """In which items the predictions of a suite hold.

    Attributes:
        suite: its name.
        predictions: as written.
        holds: by item and prediction.
    """

    suite: str
    predictions: tuple[str, ...]
    holds: Bool[np.ndarray, "items predictions"]

    @property
    def accuracy(self) -> Float[np.ndarray, "predictions"]:
        """The share of items in which each prediction holds."""
        return self.holds.mean(axis=0)

    @property
    def all_hold(self) -> float:
        """The share of items in which all predictions hold."""
        return float(self.holds.all(axis=1).mean())

    def columns(self) -> dict[str, list[Any]]:
        """A row for each prediction."""
        return {"prediction": list(self.predictions), "accuracy": self.accuracy.tolist()}

    def repr_fields(self) -> dict[str, Any]:
        """What a line says of it."""
        return {
            "suite": self.suite,
            "items": len(self.holds),
            "accuracy": tuple(self.accuracy.tolist()),
        }

    def _repr_html_(self) -> str:
        rows = [(a, f"{b:.1%}") for a, b in zip(*self.columns().values(), strict=True)]
        facts = {"items": f"{len(self.holds):,}", "all predictions": f"{self.all_hold:.1%}"}
        return html_facts(self.suite, facts, html_table(("prediction", "accuracy"), rows))


@dataclass(frozen=True, eq=False, repr=False)
class Suite(OneLine):
    """A test suite.

    Attributes:
        name: of the suite.
        regions: their names, by number.
        conditions: names, in order.
        predictions: of the surprisals of regions.
        items: numbers, in order.
        contents: the text of each region, by item, condition and region.
    """

    name: str
    regions: Mapping[int, str]
    conditions: tuple[str, ...]
    predictions: tuple[Formula, ...]
    items: tuple[int, ...]
    contents: tuple[tuple[tuple[str, ...], ...], ...]

    def repr_fields(self) -> dict[str, Any]:
        """What a line says of it."""
        return {
            "name": self.name,
            "items": len(self.items),
            "conditions": self.conditions,
            "predictions": len(self.predictions),
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The regions' names, each once: a second "np" is "np_2"."""
        lines: list[str] = []
        for name in self.regions.values():
            number = 1
            while (new := name if number == 1 else f"{name}_{number}") in lines:
                number += 1
            lines.append(new)
        return tuple(lines)

    def prompt(self, item: int, condition: str) -> Prompt:
        """A sentence, with its regions as spans.

        Args:
            item: its number in the file.

        Raises:
            UnknownName: no such item or condition.
        """
        return self._prompt(self._texts(item, condition))

    def prompts(self) -> list[Prompt]:
        """All sentences: of each item, all conditions in order."""
        return [
            self.prompt(item, condition) for item in self.items for condition in self.conditions
        ]

    def _texts(self, item: int, condition: str) -> tuple[str, ...]:
        one_of("item", str(item), [str(number) for number in self.items])
        one_of("condition", condition, self.conditions)
        return self.contents[self.items.index(item)][self.conditions.index(condition)]

    def _prompt(self, texts: Sequence[str]) -> Prompt:
        written = [spaced(text.strip()) for text in texts]
        return Prompt(joined(written), spans=spans_of(self.names[: len(texts)], written))

    @checked
    def accuracy(self, surprisals: Float[np.ndarray, "items conditions regions"]) -> SuiteAccuracy:
        """In which items predictions hold.

        Args:
            surprisals: of each region, the sum over its tokens, in the order of `items`,
                `conditions` and `regions`; 0 where a region is empty.

        Raises:
            BadUsage: another shape; a suite without predictions.
        """
        shape = len(self.items), len(self.conditions), len(self.regions)
        if surprisals.shape != shape:
            axes = "items, conditions and regions"
            raise BadUsage(
                f"{self.name} needs surprisals of {shape} {axes}; got {surprisals.shape}."
            )
        if not self.predictions:
            raise BadUsage(f"{self.name} has no predictions.")
        values = {
            (str(number), condition): surprisals[:, column, row]
            for column, condition in enumerate(self.conditions)
            for row, number in enumerate(self.regions)
        }
        for column, condition in enumerate(self.conditions):
            values[ALL, condition] = surprisals[:, column].sum(axis=1)
        holds = [prediction.holds(values) for prediction in self.predictions]
        return SuiteAccuracy(
            self.name,
            tuple(prediction.text for prediction in self.predictions),
            np.stack(holds, axis=1),
        )

    @checked
    def interchanges(self, first: str, second: str, region: int) -> tuple[InterchangePair, ...]:
        """An interchange, and its swap, of each item: what stands before a region in two
        conditions, each with the text of its region as its label.

        Args:
            first, second: conditions that are both grammatical.
            region: the number of the region that is to be predicted.

        Raises:
            UnknownName: no such condition or region.
            BadPairs: an item whose conditions say the same before the region or in it, or nothing.
        """
        one_of("region", str(region), [str(number) for number in self.regions])
        at = [*self.regions].index(region)
        pairs: list[InterchangePair] = []
        for item in self.items:
            texts = [self._texts(item, condition) for condition in (first, second)]
            prompts = [self._prompt(texts_of[:at]) for texts_of in texts]
            labels = [spaced(texts_of[at].strip()) for texts_of in texts]
            if not all([*labels, *(prompt.text for prompt in prompts)]) or (
                labels[0] == labels[1] or prompts[0].text == prompts[1].text
            ):
                raise BadPairs(
                    f"Item {item} of {self.name} does not tell {first!r} from {second!r} before"
                    f" region {region} and in it."
                )
            group = f"{self.name}-{item}"
            for name, (a, b), kinds in (
                (group, (0, 1), (first, second)),
                (f"{group}-swap", (1, 0), (second, first)),
            ):
                pairs.append(
                    InterchangePair(
                        id=name,
                        base=prompts[a].text,
                        source=prompts[b].text,
                        label=labels[b],
                        base_label=labels[a],
                        group=group,
                        kind="other_type",
                        tags={"type": kinds[0], "source_type": kinds[1]},
                        base_spans=prompts[a].spans,
                        source_spans=prompts[b].spans,
                    )
                )
        return tuple(pairs)


@checked
def read_suite(path: str | Path) -> Suite:
    """A suite of a SyntaxGym JSON file.

    Where `predictions` is empty, `string_predictions` of `meta` are read.

    Raises:
        BadFile: no such file, not JSON, or not of this form; the message has the key.
    """
    return parsed_json(path, lambda data: _suite(data, Path(path).stem))


def _suite(data: Any, stem: str) -> Suite:
    meta = _of(dict, data, "the file").get("meta", {})
    names = {
        int(_digits(number, "region_meta")): str(name)
        for number, name in _of(dict, data.get("region_meta"), "region_meta").items()
    }
    regions = dict(sorted(names.items()))
    metric = _of(dict, meta, "meta").get("metric", "sum")
    if metric not in METRICS:
        raise BadUsage(f"meta.metric must be {', '.join(METRICS)}; got {short(metric)}")
    items = _of(list, data.get("items"), "items")
    if not items:
        raise BadUsage("items must have at least one item; got none")
    conditions: tuple[str, ...] = ()
    numbers: list[int] = []
    contents: list[tuple[tuple[str, ...], ...]] = []
    for place, item in enumerate(items):
        at = f"items[{place}]"
        number = _of(int, _of(dict, item, at).get("item_number", place + 1), f"{at}.item_number")
        filled = {
            str(one.get("condition_name")): _contents(one, regions, f"{at}.conditions[{column}]")
            for column, one in enumerate(_of(list, item.get("conditions"), f"{at}.conditions"))
        }
        conditions = conditions or tuple(filled)
        if set(filled) != set(conditions):
            raise BadUsage(
                f"{at}.conditions must be {', '.join(conditions)};"
                f" got {', '.join(filled) or 'none'}"
            )
        if number in numbers:
            raise BadUsage(f"{at}.item_number must be its own; got {number} again")
        numbers.append(number)
        contents.append(tuple(filled[condition] for condition in conditions))
    predictions = _predictions(data, meta)
    for formula in predictions:
        for region, condition in formula.regions:
            one_of("condition of a prediction", condition, conditions)
            one_of("region of a prediction", region, [ALL, *map(str, regions)])
    name = str(meta.get("name") or stem)
    return Suite(name, regions, conditions, predictions, tuple(numbers), tuple(contents))


def _contents(condition: Any, regions: Mapping[int, str], at: str) -> tuple[str, ...]:
    """The texts of a condition's regions, in order."""
    texts: dict[int, str] = {}
    for row, region in enumerate(
        _of(list, _of(dict, condition, at).get("regions"), f"{at}.regions")
    ):
        where = f"{at}.regions[{row}]"
        number = int(
            _digits(_of(dict, region, where).get("region_number"), f"{where}.region_number")
        )
        texts[number] = _of(str, region.get("content"), f"{where}.content")
    if set(texts) != set(regions):
        wanted, got = (", ".join(map(str, sorted(names))) for names in (regions, texts))
        raise BadUsage(f"{at}.regions must be those of region_meta, {wanted}; got {got or 'none'}")
    return tuple(texts[number] for number in regions)


def _predictions(data: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[Formula, ...]:
    given = _of(list, data.get("predictions", []), "predictions")
    formulas = [
        _of(dict, prediction, f"predictions[{row}]").get("formula")
        for row, prediction in enumerate(given)
    ]
    formulas = formulas or _of(list, meta.get("string_predictions", []), "meta.string_predictions")
    return tuple(
        Formula.read(_of(str, text, f"predictions[{row}].formula"))
        for row, text in enumerate(formulas)
    )


def _of(kind: type, value: Any, at: str) -> Any:
    words = {dict: "an object", list: "a list", str: "text", int: "a whole number"}
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadUsage(f"{at} must be {words[kind]}; got {short(value)}")
    return value


def _digits(value: Any, at: str) -> str:
    text = str(value)
    if isinstance(value, bool) or not text.isdigit():
        raise BadUsage(f"{at} must be a number; got {short(value)}")
    return text
