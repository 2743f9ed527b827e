"""Whether evidence holds: quotes are in their documents, records are as they were.

Two profiles. `paper` takes statuses as they were given. In `verified` a YES or PARTIAL without
evidence that holds is UNSUPPORTED and counts as NO: no quote that is found, and no record whose
file still has its hash. What could not be looked at, as no document or folder was given, is not
supported either, and is counted apart. Nor is a quote that is only in a passage which gives a
reader orders, or that is too short to say anything (`quotes.is_short`).

Records, and what the claim says of itself, are evidence for the criteria whose rule reads them,
and for no others; what a claim says of itself only where an execution looked. A record that was
edited is an error, not a status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mechassay.claims.claim import Claim
from mechassay.claims.documents import PagedDocument
from mechassay.claims.judgments import (
    Evidence,
    JudgedClaim,
    Judgment,
    Judgments,
    Quote,
    RecordEvidence,
)
from mechassay.claims.quotes import find_quote, is_short
from mechassay.claims.rubric import DECLARED, NEEDS, Rubric
from mechassay.claims.scoring import Status
from mechassay.display import OneLine
from mechassay.errors import BadFile
from mechassay.files import file_hash
from mechassay.records import check_unedited

State = Literal[
    "exact",
    "normalised",
    "loose",
    "flagged",
    "too short",
    "not found",
    "other rule",
    "record",
    "declared",
    "not checked",
]
HOLDS: tuple[State, ...] = ("exact", "normalised", "loose", "record", "declared")


@dataclass(frozen=True)
class CheckedEvidence:
    """One piece of evidence, and what came of looking for it; 0 is no page."""

    claim: str
    criterion: str
    evidence: Evidence
    state: State
    page: int = 0


@dataclass(frozen=True, repr=False)
class EvidenceChecks(OneLine):
    """All evidence of judgments, looked at.

    Attributes:
        unsupported: of each claim, criteria whose YES or PARTIAL has no evidence that holds.
    """

    rows: tuple[CheckedEvidence, ...]
    unsupported: Mapping[str, tuple[str, ...]]

    def count(self, *states: State) -> int:
        """Pieces of evidence in these states."""
        return sum(row.state in states for row in self.rows)

    def statuses(self, judged: JudgedClaim) -> dict[str, Status]:
        """The statuses of the profile `verified`."""
        lost = self.unsupported[judged.claim.id]
        return {code: "NO" if code in lost else status for code, status in judged.statuses.items()}


def check_evidence(
    judgments: Judgments,
    documents: Sequence[PagedDocument] = (),
    runs: Path | None = None,
) -> EvidenceChecks:
    """Look for every quote, and at the file of every record.

    Args:
        documents: that quotes are from.
        runs: the folder that records are below.

    Raises:
        BadFile: a record is not there, has no hash of its content, or was edited since it was read.
    """

    def state(each: Evidence, judged: JudgedClaim, code: str) -> tuple[State, int]:
        if each.quote is not None:
            return _quote_state(each.quote, documents)
        codes = read_by(judgments.criteria, code, judged.claim)
        if each.record is not None:
            return _record_state(each.record, judgments.criteria, codes, runs), 0
        executed = judgments.rater.kind == "execution"
        return _declared_state(each.declared, judged.claim, judgments.criteria, codes, executed), 0

    rows: list[CheckedEvidence] = []
    unsupported: dict[str, tuple[str, ...]] = {}
    for judged in judgments.claims:
        name = judged.claim.id
        own = {
            code: [
                CheckedEvidence(name, code, each, *state(each, judged, code))
                for each in judgment.evidence
            ]
            for code, judgment in judged.criteria.items()
        }
        rows += [row for found in own.values() for row in found]
        unsupported[name] = tuple(
            code
            for code, judgment in judged.criteria.items()
            if _says_something(judgment) and not any(row.state in HOLDS for row in own[code])
        )
    return EvidenceChecks(tuple(rows), unsupported)


def _says_something(judgment: Judgment) -> bool:
    return judgment.status in ("YES", "PARTIAL")


def read_by(rubric: Rubric, code: str, claim: Claim) -> tuple[str, ...]:
    """The criteria whose evidence a criterion takes: its own, and that of those it needs."""
    rule = rubric.criterion(code).rule
    needs = rule is not None and any(part.test == NEEDS for part in rule.parts)
    return (code, *(rubric.asked.get(claim.description_mode, ()) if needs else ()))


def _record_state(
    record: RecordEvidence, rubric: Rubric, codes: Sequence[str], runs: Path | None
) -> State:
    if runs is None:
        return "not checked"
    file = inside(runs, record.file)
    digest = file_hash(file)
    if digest != record.sha256:
        raise BadFile(
            f"{runs / record.file}: was edited after it was judged (SHA-256 {digest[:12]}, judged"
            f" {record.sha256[:12]}); link the claim again."
        )
    check_unedited(file)
    ruled = [f"{rubric.key}:{code}" for code in codes if rubric.criterion(code).rule is not None]
    return "record" if record.rule in ruled else "other rule"


def _declared_state(
    field: str, claim: Claim, rubric: Rubric, codes: Sequence[str], executed: bool
) -> State:
    rules = [rule for code in codes if (rule := rubric.criterion(code).rule) is not None]
    asked = {part.measure for rule in rules for part in rule.parts if part.test == DECLARED}
    if not executed or field not in asked:
        return "other rule"
    return "declared" if getattr(claim, field) else "not found"


def _quote_state(quote: Quote, documents: Sequence[PagedDocument]) -> tuple[State, int]:
    wanted = [each for each in documents if quote.document in ("", each.sha256)]
    if not wanted:
        return "not checked", 0
    matches = [find_quote(document, quote.exact) for document in wanted]
    for found in matches:
        if found.match != "none" and not found.flagged:
            return ("too short" if is_short(quote.exact) else found.match), found.page
    flagged = next((found for found in matches if found.flagged), None)
    return ("flagged", flagged.page) if flagged else ("not found", 0)


def inside(folder: Path, name: str) -> Path:
    """A file below a folder.

    Raises:
        BadFile: the name leads out of the folder, or there is no such file.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadFile(f"{name}: leads out of {folder}.")
    if not path.is_file():
        raise BadFile(f"{path}: there is no such record.")
    return path
