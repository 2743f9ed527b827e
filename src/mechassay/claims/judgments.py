"""What a rater says of claims: a status for every criterion, with its reason and its evidence.

A rater is a human, a language model, or an execution (`claims.link`); everything after this file is
the same for all three. Evidence is a quote, which has to be found in its document, or a record by
its hash, with the rule that was applied to it. The JSON schema is published in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from mechassay.claims.claim import Claim, check_claims
from mechassay.claims.explain import fault, read_plain
from mechassay.claims.rubric import RUBRIC, Rubric, load_rubric
from mechassay.claims.scoring import STATUSES, Status, check_statuses
from mechassay.display import Tabular, data_frame, html_facts, html_table
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.files import write_text
from mechassay.records import Measure, Stored

RaterKind = Literal["human", "language model", "execution"]
Scope = Literal["claim", "other model"]


def _word(value: Any) -> Any:
    """YAML reads YES and NO as truth values."""
    return {True: "YES", False: "NO"}[value] if isinstance(value, bool) else value


GivenStatus = Annotated[Status, BeforeValidator(_word)]


class Quote(Stored):
    """Words of a document.

    Attributes:
        document: its SHA-256; "" where there is one document.
        prefix, suffix: words before and after, which tell equal passages apart.
        page: from 1; None if it is not known.
    """

    exact: str = Field(min_length=1)
    document: str = ""
    prefix: str = ""
    suffix: str = ""
    page: int | None = Field(default=None, ge=1)


class RecordEvidence(Stored):
    """A record, and what was read from it.

    Attributes:
        file: below the folder of the runs.
        sha256: of the file when it was read; a record that was edited has another.
        rule: the rule that was applied: "mv-27@1:I2".
    """

    file: str
    sha256: str
    rule: str
    measures: tuple[Measure, ...] = ()


class Evidence(Stored):
    """A quote, a record, or what the claim says of itself.

    Attributes:
        declared: the field of the claim that says it.
    """

    quote: Quote | None = None
    record: RecordEvidence | None = None
    declared: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = (self.quote is not None, self.record is not None, bool(self.declared))
        if sum(given) != 1:
            raise ValueError("evidence is a quote, a record, or a field of the claim")
        return self


class Judgment(Stored):
    """The status of one criterion."""

    status: GivenStatus
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()


class Rater(Stored):
    """Who judged, and its name; of an execution, the version of this package."""

    kind: RaterKind
    id: str = Field(min_length=1)


class SourceDocument(Stored):
    """A document that quotes are from, by its hash."""

    sha256: str
    name: str = ""
    title: str = ""
    n_pages: int = 0


class JudgedClaim(Stored):
    """A claim and the judgment of each criterion."""

    claim: Claim
    criteria: dict[str, Judgment]

    @property
    def statuses(self) -> dict[str, Status]:
        """The status of each criterion."""
        return {code: judgment.status for code, judgment in self.criteria.items()}


class Judgments(Stored, Tabular):
    """What one rater says of the claims of one source.

    Attributes:
        scope: "other model" where the model that was run is not the one that is claimed about; such
            judgments stand beside others and never replace them.
    """

    format: Literal[1] = 1
    rubric: str = RUBRIC
    rater: Rater
    scope: Scope = "claim"
    created: str = ""
    documents: tuple[SourceDocument, ...] = ()
    claims: tuple[JudgedClaim, ...] = Field(min_length=1)

    @cached_property
    def criteria(self) -> Rubric:
        """The rubric.

        Raises:
            UnknownName: there is none of that name.
        """
        return load_rubric(self.rubric)

    def claim(self, name: str) -> JudgedClaim:
        """The claim of an id.

        Raises:
            UnknownName: there is none.
        """
        for judged in self.claims:
            if judged.claim.id == name:
                return judged
        raise UnknownName("claim", name, [judged.claim.id for judged in self.claims])

    def __repr__(self) -> str:
        rater = f"{self.rater.kind} {self.rater.id}"
        return f"Judgments({self.rubric} by {rater}, {len(self.claims)} claims)"

    __str__ = __repr__

    def columns(self) -> dict[str, list[Any]]:
        """A row for each criterion of each claim."""
        rows = [
            (judged.claim.id, code, each.status, each.reason, len(each.evidence))
            for judged in self.claims
            for code, each in judged.criteria.items()
        ]
        names = ("claim", "criterion", "status", "reason", "n_evidence")
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns())

    def _repr_html_(self) -> str:
        rows = [
            [judged.claim.id, *(list(judged.statuses.values()).count(each) for each in STATUSES)]
            for judged in self.claims
        ]
        facts = {"rater": f"{self.rater.kind}: {self.rater.id}", "scope": self.scope}
        return html_facts(self.rubric, facts, html_table(("claim", *STATUSES), rows))

    def save(self, path: str | Path) -> Path:
        """Write them as JSON; `read_judgments` reads it."""
        return write_text(Path(path), self.model_dump_json(indent=1) + "\n")


def read_judgments(path: str | Path) -> Judgments:
    """The judgments of a JSON or YAML file.

    Raises:
        BadFile: not readable, or not of this form; the message names the field and the nearest.
    """
    return judgments_of(read_plain(Path(path)), str(path))


def judgments_of(plain: Any, name: str = "judgments") -> Judgments:
    """The judgments that plain values hold.

    Raises:
        BadFile: they are not of this form, or a criterion is missing.
    """
    try:
        found = Judgments.model_validate(plain)
        check_judgments(found)
    except ValidationError as error:
        raise BadFile(f"{name}: {fault(error, Judgments)}") from None
    except BadUsage as error:
        raise BadFile(f"{name}: {error}") from None
    return found


def check_judgments(judgments: Judgments) -> None:
    """Refuse judgments that lack a criterion or have one too many.

    Raises:
        BadUsage: they do.
    """
    check_claims(judgments.rubric, [judged.claim for judged in judgments.claims])
    for judged in judgments.claims:
        try:
            check_statuses(judgments.criteria, judged.statuses)
        except BadUsage as error:
            raise BadUsage(f"{judged.claim.id}: {error}") from None


def ordered(rubric: Rubric, criteria: Mapping[str, Judgment]) -> dict[str, Judgment]:
    """Judgments in the order of the rubric; what is not there is NOT TESTED."""
    nothing = Judgment(status="NOT TESTED")
    return {code: criteria.get(code, nothing) for code in rubric.codes}


def now() -> str:
    """The time, as files state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
