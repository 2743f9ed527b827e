"""What a rater says of claims: a status for every criterion, with its reason and its evidence.

A rater is a human, a language model, or an execution (`claims.link`); everything after this file is
the same for all three. Evidence is a quote, which has to be found in its document, or a record by
its hash, with the rule that was applied to it. Several runs may become one by a vote, and lose what
an audit objects to; judgments keep every step, and what each status was made of. The JSON schema is
published in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from mechassay.claims.claim import Claim, check_claims, fault, read_plain
from mechassay.claims.rubric import (
    JUDGED,
    RUBRIC,
    STATUSES,
    Rubric,
    RubricKey,
    Status,
    check_statuses,
    load_rubric,
)
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.results.records import Measure, Stored
from mechassay.utils.arguments import checked
from mechassay.utils.display import Tabular, counted, data_frame, html_facts, html_table
from mechassay.utils.files import write_text

RaterKind = Literal["human", "language model", "execution", "vote"]
Scope = Literal["claim", "other model"]
StepName = Literal["vote", "audit", "advocate"]
STEPS: tuple[StepName, ...] = get_args(StepName)
"""What judgments may go through before they are scored, in this order."""
PAGES = (".html", ".htm")
"""Endings of what people take for judgments: the form that they are made with."""
NOTES: dict[StepName, str] = {"vote": "MIN-VOTE", "audit": "LEAK", "advocate": "CHALLENGE"}


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


class StatusStep(Stored):
    """What a step made of a status.

    Attributes:
        given: what it was made of: the status of every run, or that before the step.
        why: the objection that was followed.
    """

    step: StepName
    given: dict[str, GivenStatus]
    status: GivenStatus
    why: str = ""

    @property
    def note(self) -> str:
        """The step in words; "" if it changed nothing."""
        most = max(self.given.values(), key=rank, default=self.status)
        if most == self.status:
            return ""
        across = f" across {len(self.given)} runs" if self.step == "vote" else ""
        why = f": {self.why}" if self.why else ""
        if self.step == "vote" and self.why:
            return f"[{self.why.upper()}: {most}→{self.status}{across}]"
        return f"[{NOTES[self.step]}: {most}→{self.status}{across}{why}]"


class Judgment(Stored):
    """The status of one criterion, and the steps that led to it.

    Attributes:
        ends: the worst and the best status that intervals leave open; None if nothing is open.
    """

    status: GivenStatus
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    steps: tuple[StatusStep, ...] = ()
    ends: tuple[GivenStatus, GivenStatus] | None = None

    @property
    def full_reason(self) -> str:
        """The reason, after what steps changed, the last of them first."""
        notes = [step.note for step in reversed(self.steps)]
        return " ".join(filter(None, [*notes, self.reason]))


class Rater(Stored):
    """Who judged, and its name; of an execution, the version of this package; of a vote, whose."""

    kind: RaterKind
    id: str = Field(min_length=1)


class StepInput(Stored):
    """Judgments that a step read, or the rule that it followed.

    Attributes:
        sha256: of their claims as JSON, a line each; a run that repeats another has the same.
        name: by which `StatusStep.given` and `RunClaim.run` mean it.
    """

    name: str
    rater: Rater
    created: str = ""
    sha256: str = ""
    n_claims: int = 0


class TakenStep(Stored):
    """A step that judgments went through.

    Attributes:
        rejected: what an audit or an advocate said that the step does not allow, and why not.
        spared: claims that it may not change.
    """

    step: StepName
    inputs: tuple[StepInput, ...]
    rejected: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()


class RunClaim(Stored):
    """The claim of a run that was taken for this one.

    Attributes:
        similarity: to the claim of the run that led, from 0 to 1.
        system: whether it is that run's claim about the whole system.
    """

    run: str
    claim: str
    statement: str
    similarity: float
    system: bool = False


class SourceDocument(Stored):
    """A document that quotes are from, by its hash."""

    sha256: str
    name: str = ""
    title: str = ""
    n_pages: int = 0


class JudgedClaim(Stored):
    """A claim and the judgment of each criterion; after a vote, the claims that it was made of.

    Attributes:
        n_groups: independent groups of pairs, the fewest of what was read; None if none was.
        unable: why the model is not shown to do the task; "" if it is, or no record says it.
        beyond: words of the statement that no record can carry, with why.
        is_whole: whether the circuit has all edges of the model.
    """

    claim: Claim
    criteria: dict[str, Judgment]
    runs: tuple[RunClaim, ...] = ()
    n_groups: int | None = None
    unable: str = ""
    beyond: dict[str, str] = Field(default_factory=dict)
    is_whole: bool = False

    @property
    def ends(self) -> tuple[dict[str, Status], dict[str, Status]]:
        """The statuses at their worst and at their best, as far as intervals leave them open."""
        worst, best = self.statuses, self.statuses
        for code, judgment in self.criteria.items():
            if judgment.ends is not None:
                worst[code], best[code] = judgment.ends
        return worst, best

    @property
    def statuses(self) -> dict[str, Status]:
        """The status of each criterion."""
        return {code: judgment.status for code, judgment in self.criteria.items()}


class Judgments(Stored, Tabular):
    """What one rater says of the claims of one source.

    Attributes:
        scope: "other model" where the model that was run is not the one that is claimed about; such
            judgments stand beside others and never replace them.
        steps: that they went through.
    """

    format: Literal[1] = 1
    rubric: RubricKey = RUBRIC
    rater: Rater
    scope: Scope = "claim"
    created: str = ""
    documents: tuple[SourceDocument, ...] = ()
    claims: tuple[JudgedClaim, ...] = Field(min_length=1)
    steps: tuple[TakenStep, ...] = ()

    @cached_property
    def criteria(self) -> Rubric:
        """The rubric.

        Raises:
            UnknownName: there is none of that name.
        """
        return load_rubric(self.rubric)

    @checked
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
        return f"Judgments({self.rubric} by {rater}, {counted(len(self.claims), 'claim')})"

    __str__ = __repr__

    def columns(self) -> dict[str, list[Any]]:
        """A row for each criterion of each claim."""
        rows = [
            (judged.claim.id, code, judgment.status, judgment.reason, len(judgment.evidence))
            for judged in self.claims
            for code, judgment in judged.criteria.items()
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
            [
                judged.claim.id,
                *(list(judged.statuses.values()).count(status) for status in STATUSES),
            ]
            for judged in self.claims
        ]
        facts = {"rater": f"{self.rater.kind}: {self.rater.id}", "scope": self.scope}
        return html_facts(self.rubric, facts, html_table(("claim", *STATUSES), rows))

    @checked
    def save(self, path: str | Path) -> Path:
        """Write them as JSON; `read_judgments` reads it."""
        return write_text(Path(path), self.model_dump_json(indent=1) + "\n")


def read_judgments(path: str | Path) -> Judgments:
    """The judgments of a JSON or YAML file.

    Raises:
        BadFile: not readable, or not of this form; the message names the field and the nearest.
        BadUsage: a page, such as the form that judgments are made with, or another ending.
    """
    if Path(path).suffix in PAGES:
        raise BadUsage(
            f"{path}: is a page; judgments are read from the file that a form's button"
            ' "Download judgments" writes: judgments.json.'
        )
    return judgments_of(read_plain(Path(path)), str(path))


def judgments_of(plain: Any, name: str = "judgments") -> Judgments:
    """The judgments that plain values hold.

    Raises:
        BadFile: they are not of this form, or a criterion is missing.
    """
    if _is_claims(plain):
        raise BadFile(
            f"{name}: has claims, which nobody has judged; `mechassay claims form` makes a form"
            " for judging them."
        )
    try:
        judgments = Judgments.model_validate(plain)
        check_judgments(judgments)
    except ValidationError as error:
        raise BadFile(f"{name}: {fault(error, Judgments)}") from None
    except BadUsage as error:
        raise BadFile(f"{name}: {error}") from None
    return judgments


def _is_claims(plain: Any) -> bool:
    """Whether plain values are a file of claims (`claims_of`): no rater, no criteria."""
    if isinstance(plain, dict):
        if "rater" in plain:
            return False
        plain = plain.get("claims", [plain])
    return isinstance(plain, list) and any(
        isinstance(entry, dict) and "statement" in entry for entry in plain
    )


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


def rank(status: Status) -> int:
    """0 for what says nothing; then NO, PARTIAL and YES."""
    return JUDGED.index(status) + 1 if status in JUDGED else 0


def rater_names(judgments: Sequence[Judgments]) -> tuple[str, ...]:
    """Raters by their ids, with numbers where several share one."""
    ids = [own.rater.id for own in judgments]
    return tuple(
        name if ids.count(name) == 1 else f"{name} {ids[: place + 1].count(name)}"
        for place, name in enumerate(ids)
    )


def now() -> str:
    """The time, as files state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
