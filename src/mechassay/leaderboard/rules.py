"""What the boards compare, as data: `data/boards.yaml`, checked when it is read.

A board reads the records of one kind of run. Its rows are methods, its places what they are tried
on (a task of a model), its columns measures. A column's definition has a version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

import yaml

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.records import Measure, Record

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
        kind: of the records.
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
    kind: str
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
            **{key: said[key] for key in ("title", "asks", "kind", "row", "controls")},
            place=tuple(said["place"]),
            columns=tuple(BoardColumn(**column) for column in said["columns"]),
            candidates=CandidateSites(**said["candidates"]) if "candidates" in said else None,
            distribution=said.get("distribution", ""),
        )
        for name, said in yaml.safe_load(text).items()
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
