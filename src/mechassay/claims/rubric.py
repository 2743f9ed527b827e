"""A rubric: criteria in dimensions, the rules that make scores of statuses, and what to look for.

Rubrics are data (`claims/data`). `mv-27@1` has the 27 criteria and the rules of Tower (2026); its
sentences are ours. `mv-36@1` holds codes, names, statuses and the ladder of the revision with 36
criteria (Tower et al. 2026), and which criterion of `mv-27@1` asks the same. One code may mean
two things in two rubrics: what is stored always names its rubric.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, model_validator

from mechassay.errors import UnknownName
from mechassay.records import Stored

RUBRIC = "mv-27@1"
RUBRICS = (RUBRIC,)
REVISION = "mv-36@1"
DECLARED, NEEDS = "declared", "needs"
"""Tests that read no record: of what a claim says of itself, and of other criteria."""


def _key(name: str) -> str:
    return next((known for known in RUBRICS if name == known.partition("@")[0]), name)


RubricKey = Annotated[str, AfterValidator(_key)]
"""The key of a rubric with its version, however it was named; `load_rubric` refuses an unknown."""

TestName = Literal[
    "interval",
    "conditions",
    "spread",
    "width",
    "ratio",
    "margin",
    "above",
    "share",
    "value",
    "most",
    "known",
    "verdict",
    "declared",
    "needs",
]
Where = Literal["", "other task", "held out", "truth", "other family"]


class Dimension(Stored):
    """Criteria that are scored together, from 0 to 3.

    Attributes:
        levels: of each level, what has to be met; see the data for the notation.
        chosen: what was chosen where the paper's words leave a choice.
    """

    code: str
    name: str
    weight: float
    asks: str
    levels: dict[int, tuple[str, ...]]
    chosen: str = ""


class Tier(Stored):
    """A name for scores from `least` on."""

    name: str
    least: float


class TierCap(Stored):
    """The highest tier of a claim whose dimension has `at_most` so much."""

    dimension: str
    at_most: int
    tier: str
    because: str


class Pitfall(Stored):
    """A mistake that raters make, and the criteria that it is made of."""

    id: str
    about: tuple[str, ...]
    origin: Literal["paper", "ours"]
    text: str


class RecordTest(Stored):
    """A question to records; `claims.link` answers it.

    Attributes:
        kind: of the records.
        measure: of the result; with `loss`, 1 less the measure.
        where: which records: those of the claim's own task, of another, of a split that the circuit
            was not found on, of models whose circuit is known, or of another family.
        task: the only task whose claims it is about.
        against: records that the measure is compared with.
        control: a measure of the same record that it is compared with.
        least, most: the threshold.
        by, n: the conditions that must differ, and how many are needed.
    """

    test: TestName
    measure: str
    kind: str = "faithfulness"
    loss: bool = False
    where: Where = ""
    task: str = ""
    against: Literal["", "other task", "untrained"] = ""
    control: str = ""
    least: float | None = None
    most: float | None = None
    by: tuple[Literal["ablation", "counterfactual"], ...] = ()
    n: int = 1


class ExecutedRule(Stored):
    """How records decide a criterion: YES if all parts are met, NO if none is, else PARTIAL.

    Attributes:
        at_most: PARTIAL where the records can show a part of the criterion alone.
        origin: where the thresholds are from.
        command: which command makes what is missing, by its name in `claims.commands`; "" where
            none does.
    """

    parts: tuple[RecordTest, ...]
    says: str
    origin: str
    at_most: Literal["YES", "PARTIAL"] = "YES"
    command: str = ""

    @model_validator(mode="before")
    @classmethod
    def _one_part(cls, plain: Any) -> Any:
        if not isinstance(plain, dict) or "parts" in plain:
            return plain
        own = {key: plain[key] for key in RecordTest.model_fields if key in plain}
        return {"parts": [own], **{key: plain[key] for key in plain if key not in own}}


class Criterion(Stored):
    """One question about a claim.

    Attributes:
        met, partly, not_met: what YES, PARTIAL and NO say.
        threshold: of the framework's documents.
        leaks: whether evidence of a whole circuit is often taken for that of a part of it.
        rule: how records decide it, where they do.
    """

    code: str
    name: str
    asks: str
    met: str
    partly: str
    not_met: str
    threshold: str
    leaks: bool = False
    rule: ExecutedRule | None = None

    @property
    def dimension(self) -> str:
        """The code of its dimension."""
        return self.code[0]


class Rubric(Stored):
    """Criteria, and how their statuses make a score.

    Attributes:
        statuses: that count in the order from worst to best, with what they add to sums.
        modes, families: of descriptions and of evidence, as a claim names them.
        asked: of each mode, the criteria that have to be met for the evidence to be of its level.
    """

    id: str
    version: int
    name: str
    source: str
    statuses: dict[str, float]
    modes: tuple[str, ...]
    families: tuple[str, ...]
    asked: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    dimensions: tuple[Dimension, ...]
    tiers: tuple[Tier, ...]
    caps: tuple[TierCap, ...]
    pitfalls: tuple[Pitfall, ...]
    criteria: tuple[Criterion, ...]

    def __repr__(self) -> str:
        return f"Rubric({self.key}: {len(self.criteria)} criteria, {self.source})"

    __str__ = __repr__

    @property
    def key(self) -> str:
        """Its id and version, as files name it."""
        return f"{self.id}@{self.version}"

    @cached_property
    def by_code(self) -> dict[str, Criterion]:
        """The criteria by their codes, in their order."""
        return {criterion.code: criterion for criterion in self.criteria}

    @property
    def codes(self) -> tuple[str, ...]:
        """Of the criteria, in their order."""
        return tuple(self.by_code)

    def criterion(self, code: str) -> Criterion:
        """The criterion of a code.

        Raises:
            UnknownName: it has none of that code.
        """
        if code not in self.by_code:
            raise UnknownName(f"criterion of {self.key}", code, self.codes)
        return self.by_code[code]

    def of(self, dimension: str) -> tuple[Criterion, ...]:
        """The criteria of a dimension."""
        return tuple(each for each in self.criteria if each.dimension == dimension)

    @property
    def unused(self) -> tuple[str, ...]:
        """Criteria that no level of a dimension names: they never change a score by themselves."""
        named = " ".join(
            part for each in self.dimensions for level in each.levels.values() for part in level
        )
        summed = {each.code for each in self.dimensions if "sum" in str(each.levels)}
        return tuple(
            each.code
            for each in self.criteria
            if each.code not in named and each.dimension not in summed
        )

    def warnings(self, code: str) -> tuple[str, ...]:
        """The pitfalls of a criterion, in words."""
        return tuple(each.text for each in self.pitfalls if code in each.about)


class Rung(Stored):
    """A tier of a ladder and what it needs beside all below it; "E2 | E4" is either."""

    name: str
    needs: tuple[str, ...]


class Counterpart(Stored):
    """The criterion of another rubric that asks the same, or nearly so."""

    criterion: str = Field(alias="is")
    how: Literal["same", "near"]


class Revision(Stored):
    """A rubric of which codes, names, statuses and the ladder are known.

    Attributes:
        established, excluded: statuses that meet a need of a rung, and that it leaves out.
        mapping: of each other rubric, the counterpart of each code there.
    """

    id: str
    version: int
    name: str
    source: str
    statuses: dict[str, str]
    established: tuple[str, ...]
    excluded: tuple[str, ...]
    criteria: dict[str, str]
    ladder: tuple[Rung, ...]
    mapping: dict[str, dict[str, Counterpart]]

    @property
    def key(self) -> str:
        """Its id and version."""
        return f"{self.id}@{self.version}"


def load_rubric(name: str = RUBRIC) -> Rubric:
    """A rubric by its id, with or without the version: "mv-27@1", "mv-27".

    Raises:
        UnknownName: there is none of that name.
    """
    key = _key(name)
    if key not in RUBRICS:
        raise UnknownName("rubric", name, RUBRICS)
    return _rubric(key)


def load_revision(name: str = REVISION) -> Revision:
    """The revision with 36 criteria.

    Raises:
        UnknownName: there is none of that name.
    """
    if name not in (REVISION, REVISION.partition("@")[0]):
        raise UnknownName("revision of a rubric", name, (REVISION,))
    return _revision()


@cache
def _rubric(key: str) -> Rubric:
    return Rubric.model_validate(_data(key))


@cache
def _revision() -> Revision:
    return Revision.model_validate(_data(REVISION))


def _data(key: str) -> Any:
    name = f"{key.partition('@')[0]}.yaml"
    return yaml.safe_load(files("mechassay.claims").joinpath("data", name).read_text("utf-8"))
