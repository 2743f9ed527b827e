"""Claims about mechanisms: a rubric, judgments of any rater, scores, and records as evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.claims.claim import Claim, ClaimFile, read_claims
    from mechassay.claims.comparison import RaterComparison, compare
    from mechassay.claims.document import PagedDocument
    from mechassay.claims.dossier import link
    from mechassay.claims.evidence import (
        EvidenceChecks,
        NearestPassage,
        QuoteMatch,
        ScoredJudgments,
        check_evidence,
        find_quote,
        nearest_passage,
        score_judgments,
    )
    from mechassay.claims.judgments import Judgment, Judgments, Rater, read_judgments
    from mechassay.claims.rubric import (
        ClaimScore,
        PaperScore,
        Rubric,
        attainable,
        claim_score,
        load_rubric,
        paper_score,
    )

__all__ = [
    "Claim",
    "ClaimFile",
    "ClaimScore",
    "EvidenceChecks",
    "Judgment",
    "Judgments",
    "NearestPassage",
    "PagedDocument",
    "PaperScore",
    "QuoteMatch",
    "Rater",
    "RaterComparison",
    "Rubric",
    "ScoredJudgments",
    "attainable",
    "check_evidence",
    "claim_score",
    "compare",
    "find_quote",
    "link",
    "load_rubric",
    "nearest_passage",
    "paper_score",
    "read_claims",
    "read_judgments",
    "score_judgments",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "claim": "Claim ClaimFile read_claims",
        "comparison": "RaterComparison compare",
        "document": "PagedDocument",
        "dossier": "link",
        "evidence": "EvidenceChecks NearestPassage QuoteMatch ScoredJudgments check_evidence"
        " find_quote nearest_passage score_judgments",
        "judgments": "Judgment Judgments Rater read_judgments",
        "rubric": "ClaimScore PaperScore Rubric attainable claim_score load_rubric paper_score",
    },
)
