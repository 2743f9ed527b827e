"""What the boards compare, as data (`data/boards.yaml`), and the conditions of a place in words.

A board reads the records of one kind of run. Its rows are methods, its places what they are
tried on (a task of a model), its columns measures. A column's definition has a version. The file
is checked when it is read.

Where several places have the same task and model, `in_words` says what tells them apart:

    40 examples          the number of examples, where it differs
    bf16, cpr@2          a value that says what it is of
    split validation     any other value with its name
    without NAME         controls that other places are compared with

A place gets the words that fewer than half of the places have. It gets all of its words if these
are none, or if another place has the same ones. Hashes say nothing to a reader. Only places that
words leave equal have one behind them, the hash by which a cell's name has its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

import yaml

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.results.curves import CONTROL
from mechassay.results.records import Measure, Record
from mechassay.utils.display import shortened

Better = Literal["up", "down"]
ROW = "{row}"


@dataclass(frozen=True)
class BoardColumn:
    """One number that a board compares.

    Attributes:
        measure: of the record's result; `{row}` in it is the name of the row.
        version: of the definition: cells of two versions are never compared.
        says: what the number is, in one sentence.
        against: the measure by whose controls it is defined, if it is.
        paired: the column of values of single examples whose mean it is; "areas" for areas of
            faithfulness; "" where rows cannot be compared example by example.
    """

    name: str
    measure: str
    title: str
    better: Better
    version: int
    says: str
    paired: str = ""
    against: str = ""

    def __post_init__(self) -> None:
        one_of("direction of a column", self.better, get_args(Better))
        if self.version < 1:
            raise BadUsage(f"Column {self.name}: versions begin at 1; got {self.version}.")

    def measure_in(self, record: Record, row: str = "") -> Measure | None:
        """The measure that a record has for a row, if it has it."""
        return record.measure(self.measure.replace(ROW, row_in(record, row)))

    def values_in(self, record: Record, row: str) -> str:
        """The name of the column of values that a record has for a row."""
        return self.paired.replace(ROW, row_in(record, row))

    @property
    def many_rows(self) -> bool:
        """Whether one record may have a measure for each of many rows."""
        return ROW in self.measure


@dataclass(frozen=True)
class CandidateSites:
    """Where a record says which sites the best was chosen of.

    Attributes:
        table: of the record.
        columns: those that name a site.
        given_with_features: whether features that are read from files have sites of their own.
    """

    table: str
    columns: Sequence[str]
    given_with_features: bool = False


@dataclass(frozen=True)
class BoardRules:
    """What a board reads and compares.

    Attributes:
        kinds: of the experiments whose records it reads.
        row: the role of a record that names its row.
        place: the roles that together are what rows are tried on.
        controls: what each control of the records is, by name.
        candidates: the sites that the best was chosen of; None where all is measured at one place.
        distribution: the table with the statistics of a record's controls; "" where these are
            measures.
    """

    name: str
    title: str
    asks: str
    kinds: tuple[str, ...]
    row: str
    place: tuple[str, ...]
    controls: Mapping[str, str]
    columns: tuple[BoardColumn, ...]
    candidates: CandidateSites | None = None
    distribution: str = ""

    def column(self, name: str) -> BoardColumn:
        """A column by its name.

        Raises:
            UnknownName: the board has none of this name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise UnknownName("column", name, [column.name for column in self.columns])


def row_in(record: Record, row: str) -> str:
    """A row as a record calls it: by its method, if that is a single one, which boards may call
    otherwise.
    """
    spec = record.specs.get("method")
    return (spec.name if spec is not None else "") or row


@cache
def board_rules() -> Mapping[str, BoardRules]:
    """All boards by name, in the order of the file."""
    text = files("mechassay.leaderboard").joinpath("data/boards.yaml").read_text("utf-8")
    return {
        name: BoardRules(
            name=name,
            **{key: about[key] for key in ("title", "asks", "row", "controls")},
            kinds=tuple(about["kinds"]),
            place=tuple(about["place"]),
            columns=tuple(BoardColumn(**column) for column in about["columns"]),
            candidates=CandidateSites(**about["candidates"]) if "candidates" in about else None,
            distribution=about.get("distribution", ""),
        )
        for name, about in yaml.safe_load(text).items()
    }


def rules_of(name: str) -> BoardRules:
    """The rules of a board.

    Raises:
        UnknownName: there is no such board.
    """
    every = board_rules()
    if name not in every:
        raise UnknownName("board", name, every)
    return every[name]


AS_REPORTED = "as reported"
EXAMPLES, DTYPE, DEFINITION = "examples", "dtype", "definition"
CONTROLS, SITES = "controls", "chosen of"
HASHED = ("examples", "weights", "constants from", "coefficients from", "sha256")
"""Conditions that are hashes, alone or behind a comma."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
LONGEST = 32
NONE = "none"


@dataclass(frozen=True)
class PlaceConditions:
    """What one of several places was measured under.

    Attributes:
        under: the hash of the conditions.
        n: examples; 0 where this is not known.
        reported: whether its numbers are as others reported them.
    """

    under: str
    conditions: Mapping[str, str]
    n: int = 0
    reported: bool = False


def in_words(places: Sequence[PlaceConditions]) -> list[tuple[str, str]]:
    """What each of several places differs by: in short, and in full; "" for a single one."""
    if len(places) < 2:
        return [("", "")] * len(places)
    names = dict.fromkeys(name for place in places for name in place.conditions)
    changed = [name for name in names if len({place.conditions.get(name) for place in places}) > 1]
    words = [_words(place, changed, places) for place in places]
    whole = [", ".join(by_name.values()) for by_name in words]
    rare = [", ".join(_rare(by_name, words)) for by_name in words]
    short = [
        one if one and rare.count(one) == 1 else other
        for one, other in zip(rare, whole, strict=True)
    ]
    short = [
        place_words
        if place_words and short.count(place_words) == 1
        else f"{place_words} #{own_place.under}".strip()
        for place_words, own_place in zip(short, places, strict=True)
    ]
    full = [
        "; ".join(f"{name} {place.conditions.get(name, NONE)}" for name in changed)
        for place in places
    ]
    return list(zip(short, full, strict=True))


def _rare(own: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> list[str]:
    """The words of a place that fewer than half of all have."""
    return [
        value
        for name, value in own.items()
        if 2 * sum(other.get(name) == value for other in every) < len(every)
    ]


def _words(
    own: PlaceConditions, changed: Sequence[str], every: Sequence[PlaceConditions]
) -> dict[str, str]:
    """The words of a place by condition; conditions that words cannot tell have none."""
    if own.reported:
        return {DEFINITION: AS_REPORTED}
    others = [other for other in every if not other.reported]
    words: dict[str, str] = {}
    for name in changed:
        values = [other.conditions.get(name, "") for other in others]
        if len(set(values)) < 2:
            continue  # It is numbers as reported alone that differ by it.
        value = own.conditions.get(name, "")
        if name == EXAMPLES:
            private = " " in value  # The name of an epoch's examples.
            text = value if private else _counted(own, others)
        elif name == CONTROLS:
            text = _without(value, values)
        elif name in (DTYPE, DEFINITION):
            text = DTYPES.get(value, value)
        elif name in HASHED:
            text = ""
        elif name == SITES:
            counts = [other_value.partition(", ")[0] for other_value in values]
            text = value.partition(", ")[0] if len(set(counts)) > 1 else ""
        else:
            text = f"{name} {shortened(value or NONE, LONGEST)}"
        if text:
            words[name] = text
    return words


def _counted(own: PlaceConditions, every: Sequence[PlaceConditions]) -> str:
    """The number of examples, where it is not the same everywhere."""
    differs = own.n and len({other.n for other in every}) > 1
    return f"{own.n:,} examples" if differs else ""


def _without(own: str, every: Sequence[str]) -> str:
    """Which controls a place lacks of those that others have."""
    held = [_names(controls) for controls in (own, *every)]
    every_name = dict.fromkeys(name for names in held for name in names)
    lacking = [name for name in every_name if name not in held[0]]
    return f"without {', '.join(lacking)}" if lacking else "all controls"


def _names(controls: str) -> list[str]:
    named = (part.partition(CONTROL) for part in controls.split(", "))
    return [name for before, _, name in named if name and not before]
