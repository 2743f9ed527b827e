"""Judgments as records: a record a claim, with its score under every profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechassay.claims.claim import Claim, system_claim
from mechassay.claims.documents import PagedDocument
from mechassay.claims.evidence import CheckedEvidence, EvidenceChecks, check_evidence
from mechassay.claims.judgments import JudgedClaim, Judgments
from mechassay.claims.rubric import Rubric
from mechassay.claims.scoring import (
    ClaimScore,
    PaperScore,
    claim_score,
    lifting,
    paper_score,
)
from mechassay.display import OneLine, html_facts, html_table
from mechassay.records import Check, Measure, Record, Spec, Table, provenance
from mechassay.text import counted, number

KIND = "claims"
NO_SCORE = "No criterion was judged YES, PARTIAL or NO: the claim has no score."


@dataclass(frozen=True, repr=False)
class ScoredJudgments(OneLine):
    """Judgments with their scores.

    Attributes:
        paper, verified, lenient: scores by claim: as judged; with evidence that holds alone; with
            lenient conjuncts.
        source: of all claims, as judged; `source_verified` with evidence that holds alone.
    """

    judgments: Judgments
    evidence: EvidenceChecks
    paper: dict[str, ClaimScore]
    verified: dict[str, ClaimScore]
    lenient: dict[str, ClaimScore]
    source: PaperScore
    source_verified: PaperScore

    def _repr_html_(self) -> str:
        rows = [
            (name, number(score.cvs), score.tier, score.gated_tier, number(self.verified[name].cvs))
            for name, score in self.paper.items()
        ]
        headings = ("claim", "CVS", "tier", "gated tier", "CVS, verified")
        rater = self.judgments.rater
        facts = {"rater": f"{rater.kind}: {rater.id}", "paper": number(self.source.cvs)}
        return html_facts(self.judgments.rubric, facts, html_table(headings, rows))

    def records(self) -> list[Record]:
        """A record for each claim, the system claim first."""
        names = [self.source.system, *(name for name in self.paper if name != self.source.system)]
        return [self._record(self.judgments.claim(name)) for name in names]

    def _record(self, judged: JudgedClaim) -> Record:
        judgments, claim = self.judgments, judged.claim
        rubric = judgments.criteria
        rows = [row for row in self.evidence.rows if row.claim == claim.id]
        rater = f"{judgments.rater.kind}: {judgments.rater.id}"
        score = self.paper[claim.id]
        warnings: list[str] = [] if score.n_judged else [NO_SCORE]
        if judgments.scope == "other model":
            warnings.append(
                f"The evidence is of {claim.model or 'another model'}, not of the model that the"
                " claim is about: it overrides no judgment of that."
            )
        if n := sum(row.state == "not checked" for row in rows):
            warnings.append(
                f"{counted(n, 'piece of evidence was', 'pieces of evidence were')} not checked:"
                " name the --document of quotes, or the folder of the --runs."
            )
        return Record(
            kind=KIND,
            cell={"claim": claim.id, "rater": rater, **_names(claim)},
            specs={
                **{role: Spec(name=name) for role, name in _names(claim).items()},
                "method": Spec(name=claim.id, args={"statement": claim.statement}),
                "rater": Spec(name=judgments.rater.id, args={"kind": judgments.rater.kind}),
                "rubric": Spec(name=rubric.id, version=rubric.version),
            },
            measures=self._measures(claim.id, rubric),
            tables=[
                _criteria(rubric, judged, self.evidence),
                _evidence(rows),
                Table.of(
                    "upgrades",
                    ("criterion",),
                    [
                        {"criterion": code, "name": rubric.criterion(code).name}
                        for code in lifting(rubric, judged.statuses)
                    ],
                ),
            ],
            checks=_checks(rows),
            warnings=warnings,
            provenance=provenance(device="cpu", dtype="float32", seed=0),
        )

    def _measures(self, name: str, rubric: Rubric) -> list[Measure]:
        score, n = self.paper[name], len(rubric.criteria)
        left = n - score.n_judged

        def measure(key: str, title: str, value: float, meaning: str) -> Measure:
            unit = "of 10" if "cvs" in key else "of 3"
            return Measure(
                name=key,
                title=title,
                value=value,
                better="up",
                unit=unit,
                n=n,
                n_undefined=left,
                meaning=meaning,
            )

        levels = [
            measure(each.name.lower(), each.name, float(score.dimensions[each.code]), each.asks)
            for each in rubric.dimensions
        ]
        return [
            measure("cvs", "CVS", score.cvs, "Claim Validity Score of the statuses as judged."),
            measure(
                "cvs verified",
                "CVS, verified",
                self.verified[name].cvs,
                "The score if a YES or PARTIAL without evidence that holds is NO.",
            ),
            measure(
                "cvs lenient",
                "CVS, lenient",
                self.lenient[name].cvs,
                "The score if PARTIAL meets a conjunct of the dimensions' rules.",
            ),
            measure(
                "cvs highest",
                "CVS, highest",
                score.highest,
                "The score if everything that was not tested were YES.",
            ),
            *levels,
        ]


def score_judgments(
    judgments: Judgments,
    documents: Sequence[PagedDocument] = (),
    runs: Path | None = None,
) -> ScoredJudgments:
    """Score every claim under every profile.

    Args:
        documents: in which quotes are looked for.
        runs: the folder of the records that are evidence.

    Raises:
        BadFile: a record is not there, or was edited since it was judged.
    """
    rubric = judgments.criteria
    evidence = check_evidence(judgments, documents, runs)
    own = {judged.claim.id: judged for judged in judgments.claims}
    paper = {name: claim_score(rubric, each.statuses) for name, each in own.items()}
    lenient = {name: claim_score(rubric, each.statuses, "lenient") for name, each in own.items()}
    verified = {name: claim_score(rubric, evidence.statuses(each)) for name, each in own.items()}
    system, why = system_claim([each.claim for each in judgments.claims])
    return ScoredJudgments(
        judgments,
        evidence,
        paper,
        verified,
        lenient,
        paper_score(paper, system, why),
        paper_score(verified, system, why),
    )


def _names(claim: Claim) -> dict[str, str]:
    return {role: name for role, name in (("model", claim.model), ("task", claim.task)) if name}


def _criteria(rubric: Rubric, judged: JudgedClaim, evidence: EvidenceChecks) -> Table:
    verified = evidence.statuses(judged)
    rows = [
        {
            "criterion": each.code,
            "name": each.name,
            "dimension": each.dimension,
            "status": judged.criteria[each.code].status,
            "verified": verified[each.code],
            "reason": judged.criteria[each.code].told,
            "n_evidence": len(judged.criteria[each.code].evidence),
        }
        for each in rubric.criteria
    ]
    return Table.of("criteria", ("criterion",), rows)


def _evidence(rows: Sequence[CheckedEvidence]) -> Table:
    told = [
        {
            "criterion": row.criterion,
            "number": place,
            "state": row.state,
            "page": row.page or (row.evidence.quote.page if row.evidence.quote else None),
            "text": row.evidence.quote.exact if row.evidence.quote else _record_text(row),
        }
        for place, row in enumerate(rows)
    ]
    return Table.of("evidence", ("criterion", "number"), told)


def _record_text(row: CheckedEvidence) -> str:
    record = row.evidence.record
    if record is None:
        return f"the claim's {row.evidence.declared}"
    told = ", ".join(
        f"{each.name} {number(each.value, each.low, each.high)}"
        + (f" [{each.low:.3g}, {each.high:.3g}]" if math.isfinite(each.low) else "")
        for each in record.measures
    )
    return f"{record.file} ({record.sha256[:12]}): {told}"


def _checks(rows: Sequence[CheckedEvidence]) -> list[Check]:
    looked = [row for row in rows if row.evidence.quote and row.state != "not checked"]
    lost = [row for row in looked if row.state in ("not found", "flagged", "too short")]
    if not looked:
        return []
    n, short = (sum(row.state == state for row in lost) for state in ("flagged", "too short"))
    said = f"{len(lost) - n - short} of {len(looked)} quotes are not in their document"
    said += f"; {n} only where it gives a reader orders" if n else ""
    said += f"; {short} are too short to show anything." if short else "."
    return [
        Check(
            name="quotes",
            must_be="in their document",
            largest=float(len(lost)),
            n=len(looked),
            n_wrong=len(lost),
            says=said if lost else "",
        )
    ]
